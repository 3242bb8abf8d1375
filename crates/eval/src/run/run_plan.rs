//! The loop over a plan: runs and records every example that is not in the store yet.
//!
//! Examples of a context, and the protocols of an example, run in the lexical order of their prefixes. What prefixes
//! have in common is then read once, whatever the order in which they were asked for.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::Result;

use super::example_runner::ExampleRunner;
use super::inputs_ahead::{InputsAhead, Made};
use super::prepared_example::PreparedExample;
use super::runner::Runner;
use super::stopwatch::PhaseTimes;
use crate::examples::observer::{RunObserver, RunProgress, SkippedWork};
use crate::plan::planner::{PlanCell, Planner, RunPlan, TaskLength};
use crate::records::prompts;
use crate::records::record::Record;
use crate::records::store::Store;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    /// Everything is recorded, or known to have failed.
    Complete,
    /// The run was told to stop. What is recorded stays.
    Interrupted,
}

/// The part of a plan whose records are missing.
#[derive(Debug, Clone)]
pub struct RemainingWork {
    /// The plan, with only those contexts that lack records.
    pub plan: RunPlan,
    /// The number of missing records.
    pub records: usize,
}

/// An event of running a context. Events are reported in order.
pub(super) enum ContextEvent {
    /// A part of the context's cell cannot be run.
    Failed(SkippedWork),
    /// Something failed, but its records could be made in another way.
    Mended(SkippedWork),
    /// An example under a variant has all of its records already, or cannot be made.
    Without,
    /// An example under a variant was run.
    Done(Vec<Record>, Option<KeptPrompt>),
}

/// The prompt of an example as the model read it, to be kept beside its records.
pub(super) struct KeptPrompt {
    file: String,
    text: String,
}

/// Receives the events of a context; an error ends the run.
pub(super) type Tell<'t> = dyn FnMut(ContextEvent) -> Result<()> + 't;

/// Passes failures on as events.
struct Failures<'a, 't>(&'a mut Tell<'t>);

impl RunObserver for Failures<'_, '_> {
    fn progress(&mut self, _: RunProgress<'_>) {}

    fn failed(&mut self, failure: SkippedWork) -> Result<()> {
        (self.0)(ContextEvent::Failed(failure))
    }

    fn mended(&mut self, failure: SkippedWork) {
        // An error is ignored, because only failures may end a run.
        let _ = (self.0)(ContextEvent::Mended(failure));
    }
}

/// The progress of a run. Writes records to the store, and reports to the observer.
pub(super) struct Ledger<'r> {
    runner: &'r Runner<'r>,
    store: &'r mut Store,
    watch: &'r mut dyn RunObserver,
    /// Examples, counted once per variant: done, found and in all; `left` are those that are left in the current cell.
    done: usize,
    found: usize,
    total: usize,
    left: usize,
    /// The work of [`RunProgress`].
    work_done: u64,
    work_found: u64,
    work: u64,
}

impl<'r> Ledger<'r> {
    pub(super) fn new(
        runner: &'r Runner<'r>,
        cells: &[PlanCell],
        store: &'r mut Store,
        watch: &'r mut dyn RunObserver,
    ) -> Self {
        let examples = |cell: &PlanCell| runner.examples_under_variants(cell);
        let work_of = |cell: &PlanCell| runner.work(cell.place.length).saturating_mul(examples(cell) as u64);
        Self {
            total: cells.iter().map(examples).fold(0, usize::saturating_add),
            work: cells.iter().map(work_of).fold(0, u64::saturating_add),
            runner,
            store,
            watch,
            done: 0,
            found: 0,
            left: 0,
            work_done: 0,
            work_found: 0,
        }
    }

    /// The store.
    pub(super) fn store(&self) -> &Store {
        self.store
    }

    /// Begins a cell: counts its examples.
    pub(super) fn begin(&mut self, cell: &PlanCell) {
        self.left = self.runner.examples_under_variants(cell);
    }

    /// Handles an event of a context of the cell `place`.
    pub(super) fn take(&mut self, place: TaskLength, event: ContextEvent) -> Result<()> {
        match event {
            ContextEvent::Failed(failure) => return self.watch.failed(failure),
            ContextEvent::Mended(failure) => self.watch.mended(failure),
            ContextEvent::Without => self.tell(place, &[]),
            ContextEvent::Done(records, prompt) => {
                // The prompt is stored first, so that no record exists without its prompt.
                if let Some(KeptPrompt { file, text }) = prompt {
                    prompts::keep(self.store.dir(), &file, &text)?;
                }
                for record in &records {
                    self.store.append(record)?;
                }
                self.tell(place, &records);
            }
        }
        Ok(())
    }

    fn tell(&mut self, place: TaskLength, records: &[Record]) {
        let of_example = self.runner.work(place.length);
        self.left = self.left.saturating_sub(1);
        self.done += 1;
        self.found += usize::from(records.is_empty());
        self.work_done += of_example;
        self.work_found += if records.is_empty() { of_example } else { 0 };
        self.watch.progress(RunProgress {
            done: self.done,
            found: self.found,
            total: self.total,
            work_done: self.work_done,
            work_found: self.work_found,
            work: self.work,
            task: self.runner.tasks[place.task].name(),
            length: place.length,
            ends_cell: self.left == 0,
            records,
        });
    }
}

impl Runner<'_> {
    /// Runs what is missing from `store` until all is done or `stop` is raised, and tells `watch` after each example.
    /// Returns how it ended, and where the time went. If several devices have a copy of the model, they run contexts
    /// side by side; the order of records and of what `watch` is told stays the same.
    ///
    /// # Errors
    /// If a record cannot be written, or `watch` returns an error for a failure; earlier records stay.
    pub fn run(
        &self,
        mut plan: RunPlan,
        store: &mut Store,
        stop: &AtomicBool,
        watch: &mut dyn RunObserver,
    ) -> Result<(RunEnd, PhaseTimes)> {
        let cells = std::mem::take(&mut plan.cells);
        let ledger = Ledger::new(self, &cells, store, watch);
        match self.model.further_copies.is_empty() {
            true => self.run_in_turn(&cells, plan, (ledger, stop), self.makes_inputs_ahead()),
            false => self.run_side_by_side(&cells, plan, ledger, stop),
        }
    }

    /// Runs one context after the other, and records each example when it is done. If `ahead`, the inputs of each context are made while the
    /// one before it runs.
    pub(super) fn run_in_turn(
        &self,
        cells: &[PlanCell],
        mut plan: RunPlan,
        (ledger, stop): (Ledger<'_>, &AtomicBool),
        ahead: bool,
    ) -> Result<(RunEnd, PhaseTimes)> {
        let mut runner = ExampleRunner::new(&self.model.decoder, stop);
        // `has` and `tell` borrow the ledger in turn, never at once.
        let ledger = RefCell::new(ledger);
        let has = |key: &str| ledger.borrow().store().contains(key);
        let numbered = cells.iter().enumerate();
        let contexts = numbered.flat_map(|(number, cell)| cell.contexts.iter().map(move |context| (number, context)));
        let mut contexts = contexts.peekable();
        let mut begun = 0;
        thread::scope(|scope| {
            let mut inputs = InputsAhead::none();
            while let Some((number, context)) = contexts.next() {
                cells[begun..=number].iter().for_each(|cell| ledger.borrow_mut().begin(cell));
                begun = number + 1;
                let (place, made) = (cells[number].place, inputs.take());
                if let Some((next, context)) = contexts.peek().filter(|_| ahead) {
                    let next = cells[*next].place;
                    let examples = self.missing_examples(&plan, next, context, has);
                    inputs = InputsAhead::begin(scope, (self, stop), next, examples);
                }
                let mut tell = |event: ContextEvent| ledger.borrow_mut().take(place, event);
                let end = self.run_context((place, &context), has, made, (&mut runner, &mut plan), &mut tell)?;
                if end == RunEnd::Interrupted {
                    return Ok((end, runner.spent()));
                }
            }
            cells[begun..].iter().for_each(|cell| ledger.borrow_mut().begin(cell));
            Ok((RunEnd::Complete, runner.spent()))
        })
    }

    /// Runs the examples of a context whose records `has` does not know, and reports events to `tell`. `made` are inputs that are ready.
    pub(super) fn run_context(
        &self,
        (place, context): (TaskLength, &[usize]),
        has: impl Fn(&str) -> bool,
        made: Made,
        (runner, plan): (&mut ExampleRunner<'_>, &mut RunPlan),
        tell: &mut Tell<'_>,
    ) -> Result<RunEnd> {
        if runner.stop().load(Ordering::Relaxed) {
            return Ok(RunEnd::Interrupted);
        }
        let items = self.prepare(plan, (place, context), has, made, &mut Failures(tell))?;
        for _ in items.len()..context.len() * self.config.variants().len() {
            tell(ContextEvent::Without)?;
        }
        for mut item in items {
            if runner.stop().load(Ordering::Relaxed) {
                return Ok(RunEnd::Interrupted);
            }
            item.methods.retain(|m| plan.has(item.place, item.variant, m));
            let Some(records) = self.run_example(&item, runner, plan, &mut Failures(tell))? else {
                return Ok(RunEnd::Interrupted);
            };
            let prompt = self.prompt_to_keep(&item, &records)?;
            tell(ContextEvent::Done(records, prompt))?;
        }
        Ok(RunEnd::Complete)
    }

    /// The number of examples of a cell, each counted once per variant.
    fn examples_under_variants(&self, cell: &PlanCell) -> usize {
        cell.examples().saturating_mul(self.config.variants().len())
    }

    /// The prompt of an example as the model read it; `None` if prompts are not kept.
    fn prompt_to_keep(&self, item: &PreparedExample, records: &[Record]) -> Result<Option<KeptPrompt>> {
        let Some(record) = records.first().filter(|_| self.config.keep_prompts) else { return Ok(None) };
        let file = prompts::file_name(&record.model, &record.task, record.length, record.seed, record.sample);
        Ok(Some(KeptPrompt { file, text: self.model.tokenizer.spell(item.input.prompt())? }))
    }
}

impl Planner<'_> {
    /// The part of a plan whose records are not among `known`.
    pub fn remaining(&self, plan: &RunPlan, known: &[Record]) -> RemainingWork {
        let keys: HashSet<&str> = known.iter().map(|record| record.key.as_str()).collect();
        let recorded = known.iter().map(|record| record.sample + 1).max().unwrap_or(0);
        let (mut left, mut records) = (plan.clone(), 0usize);
        for cell in &mut left.cells {
            let place = cell.place;
            let others = cell.contexts.retain(recorded, |context| {
                let missing = self.missing_records(plan, place, context, |key| keys.contains(key));
                records += missing;
                missing > 0
            });
            records = records.saturating_add(others.saturating_mul(self.records_of_example(plan, place)));
        }
        RemainingWork { plan: left, records }
    }
}

//! The loop over a plan: every example that is not in the store yet is run and recorded.
//!
//! Examples that begin alike, and the protocols of an example, are run in the lexical order of their prefixes: what they
//! have in common is then read once, whatever the order in which they were asked for.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;

use super::example_runner::ExampleRunner;
use super::prepared_example::PreparedExample;
use super::runner::Runner;
use super::stopwatch::PhaseTimes;
use crate::examples::observer::{RunObserver, RunProgress};
use crate::plan::planner::{PlanCell, RunPlan};
use crate::records::prompts;
use crate::records::record::Record;
use crate::records::store::Store;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    /// Everything is recorded, or known to have failed.
    Complete,
    /// It was told to stop; what is recorded stays.
    Interrupted,
}

/// The part of a plan that has no records yet.
#[derive(Debug, Clone)]
pub struct RemainingWork {
    /// The contexts of which anything is missing.
    pub plan: RunPlan,
    /// Number of records to be made.
    pub records: usize,
}

impl Runner<'_> {
    /// Runs what is missing from `store`, telling `watch` after each example, until all is done or `stop` is raised.
    /// Tells how it ended, and where the time went.
    ///
    /// # Errors
    /// If a record cannot be written, or with what `watch` makes of a failure; earlier records stay.
    pub fn run(
        &self,
        mut plan: RunPlan,
        store: &mut Store,
        stop: &AtomicBool,
        watch: &mut dyn RunObserver,
    ) -> Result<(RunEnd, PhaseTimes)> {
        let variants = self.config.variants();
        let cells = std::mem::take(&mut plan.cells);
        let examples = |cell: &PlanCell| cell.examples().saturating_mul(variants.len());
        let work_of = |cell: &PlanCell| self.work(cell.place.length).saturating_mul(examples(cell) as u64);
        let total = cells.iter().map(examples).fold(0, usize::saturating_add);
        let work = cells.iter().map(work_of).fold(0, u64::saturating_add);
        let (mut done, mut work_done, mut work_found) = (0, 0, 0);
        let mut runner = ExampleRunner::new(&self.model.decoder, stop);
        for cell in &cells {
            let mut left = examples(cell);
            let mut tell = |left: usize, records: &[Record], watch: &mut dyn RunObserver| {
                let (of_example, ends_cell) = (self.work(cell.place.length), left == 0);
                (done, work_done) = (done + 1, work_done + of_example);
                work_found += if records.is_empty() { of_example } else { 0 };
                let (task, length) = (self.tasks[cell.place.task].name(), cell.place.length);
                watch.progress(RunProgress {
                    done,
                    total,
                    work_done,
                    work_found,
                    work,
                    task,
                    length,
                    ends_cell,
                    records,
                });
            };
            for context in cell.contexts.iter() {
                let has = |key: &str| store.contains(key);
                let items = self.prepare(&mut plan, cell.place, &context, has, watch)?;
                // Those that are recorded already, or cannot be made.
                for _ in items.len()..context.len() * variants.len() {
                    left -= 1;
                    tell(left, &[], watch);
                }
                for mut item in items {
                    if stop.load(Ordering::Relaxed) {
                        return Ok((RunEnd::Interrupted, runner.spent()));
                    }
                    item.methods.retain(|m| plan.has(item.place, item.variant, m));
                    let Some(records) = self.run_example(&item, &mut runner, &mut plan, watch)? else {
                        return Ok((RunEnd::Interrupted, runner.spent()));
                    };
                    // First, so that no record is there without its prompt.
                    self.keep_prompt(&item, &records, store.dir())?;
                    for record in &records {
                        store.append(record)?;
                    }
                    left -= 1;
                    tell(left, &records, watch);
                }
            }
        }
        Ok((RunEnd::Complete, runner.spent()))
    }

    /// Keeps what was read of an example, where prompts are to be kept.
    fn keep_prompt(&self, item: &PreparedExample, records: &[Record], dir: &Path) -> Result<()> {
        let Some(record) = records.first().filter(|_| self.config.keep_prompts) else { return Ok(()) };
        let name = prompts::file_name(&record.model, &record.task, record.length, record.seed, record.sample);
        prompts::keep(dir, &name, &self.model.tokenizer.spell(item.input.prompt())?)
    }

    /// The part of a plan that has no records among `known`.
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

//! Progress, current scores and failures of a run, on standard error and in the folder's log.

use std::path::Path;

use anyhow::{Result, anyhow};

use super::request::OnFailure;
use spattn_base::error::in_one_line;
use spattn_base::meter::Meter;
use spattn_base::pace::{Count, Position};
use spattn_eval::examples::observer::{RunObserver, RunProgress, SkippedWork};
use spattn_eval::folder::attempts::Log;
use spattn_eval::records::record::Record;
use spattn_eval::summary::running_scores::{ScorePlace, ScoredSample, Scores};

/// The most failed parts that are listed at the end. The log in a sweep's folder has all of them.
const MOST_LISTED: usize = 100;

/// Draws progress and current scores on standard error, and collects failures.
pub(super) struct ProgressReporter {
    on_failure: OnFailure,
    pub(super) meter: Meter,
    pub(super) failures: Vec<SkippedWork>,
    /// Whether the run is still being planned, so that nothing has run.
    is_planning: bool,
    scores: Scores,
    /// The folder's log, once there is one.
    pub(super) log: Option<Log>,
}

impl ProgressReporter {
    pub(super) fn new(on_failure: OnFailure) -> Self {
        let (meter, scores) = (Meter::hidden(), Scores::default());
        Self { on_failure, meter, failures: Vec::new(), is_planning: true, scores, log: None }
    }

    /// Starts the log in a run's folder, beginning with the failures so far.
    pub(super) fn keep_log(&mut self, out: &Path, records: usize) -> Result<()> {
        let mut log = Log::begin(out, records)?;
        self.failures.iter().try_for_each(|failure| log.failed(&failure.what, &failure.error))?;
        self.log = Some(log);
        Ok(())
    }

    /// Starts the display. `records` were stored earlier.
    pub(super) fn begin(&mut self, quiet: bool, records: &[Record]) {
        self.is_planning = false;
        self.meter = Meter::new(quiet, FIRST);
        records.iter().for_each(|record| self.scores.add(&record.into()));
        self.scores.take_current();
    }

    /// Shows that the weights of a model are being loaded.
    pub(super) fn load_model(&mut self, id: &str, number: usize, of: usize) {
        self.meter.begin(&number_of(id, number, of), "loading the weights");
    }

    /// Starts the progress of one model, whose weights are loaded.
    pub(super) fn begin_model(&mut self, id: &str, number: usize, of: usize) {
        self.meter.begin(&number_of(id, number, of), FIRST);
    }

    /// Starts the progress of one batch.
    pub(super) fn begin_batch(&mut self, samples: usize, methods: usize) {
        self.meter.begin(&format!("{samples} samples, {methods} methods  "), FIRST);
    }

    pub(super) fn list(&self) {
        for SkippedWork { what, error } in self.failures.iter().take(MOST_LISTED) {
            eprintln!("failed: {what}: {}", in_one_line(error));
        }
        let more = self.failures.len().saturating_sub(MOST_LISTED);
        if more > 0 {
            eprintln!("failed: {more} more");
        }
    }

    /// Lists the failures and turns them into an error. `others` says what happened to the other parts.
    pub(super) fn verdict(self, others: &str) -> Result<()> {
        if self.failures.is_empty() {
            return Ok(());
        }
        self.list();
        let parts = if self.failures.len() == 1 { "1 part" } else { &format!("{} parts", self.failures.len()) };
        Err(anyhow!("{parts} of the matrix could not be run; all others {others}"))
    }
}

/// What the display says before the first example is done.
const FIRST: &str = "reading the first prompt";

/// A model with its number, if there are several.
fn number_of(id: &str, number: usize, of: usize) -> String {
    if of > 1 { format!("{id} ({number} of {of})  ") } else { String::new() }
}

/// The share of an example's time that goes into reading its prompt, which grows with the prompt's length. The rest is the steps of
/// questions and answers, of which every example has about as many.
fn share_of_reading(records: &[Record]) -> f64 {
    let Some(first) = records.first() else { return 1.0 };
    let own = |whole: f64, reused: f64| (whole - reused).max(0.0);
    let reading = own(first.prefill_s, first.prefill_reused_s);
    let index: f64 = records.iter().map(|r| own(r.index_s, r.index_reused_s)).sum();
    let steps: f64 = records.iter().map(|r| r.decode_s).sum();
    let all = reading + index + steps;
    if all > 0.0 { reading / all } else { 1.0 }
}

/// How far a run is, in work that grows with the lengths of prompts, and in examples.
fn position(p: &RunProgress<'_>) -> Position {
    let count = |work: u64, examples: usize| Count { amount: work as f64, items: examples as f64 };
    Position { done: count(p.work_done, p.done), found: count(p.work_found, p.found), all: count(p.work, p.total) }
}

impl RunObserver for ProgressReporter {
    fn progress(&mut self, p: RunProgress<'_>) {
        p.records.iter().for_each(|record| self.scores.add(&record.into()));
        let scores = &self.scores;
        self.meter.at_position(position(&p), share_of_reading(p.records), || {
            let place = if p.length > 0 { format!("{} {}", p.task, p.length) } else { p.task.to_owned() };
            let scores = p
                .records
                .last()
                .map(|record| scores.line(&ScorePlace::of(&ScoredSample::from(record))))
                .unwrap_or_default();
            format!("{}/{} examples  {place}  {scores}", p.done, p.total)
        });
        if p.ends_cell {
            for place in self.scores.take_current() {
                self.meter.say(&format!("{place}  {}", self.scores.line(&place)));
            }
        }
    }

    fn failed(&mut self, failure: SkippedWork) -> Result<()> {
        if self.on_failure == OnFailure::Stop {
            // Some errors already begin with the model's name.
            let is_named = failure.error.to_string().starts_with(&format!("{}: ", failure.what));
            return Err(if is_named { failure.error } else { failure.error.context(failure.what) });
        }
        // No bar is shown while a matrix is planned, which takes long with thousands of models, so the first failure is printed at once.
        match self.is_planning && self.failures.is_empty() {
            true => eprintln!("note: {} cannot be run: {}", failure.what, in_one_line(&failure.error)),
            false => self.meter.say(&format!("failed: {}: {}", failure.what, in_one_line(&failure.error))),
        }
        if let Some(log) = &mut self.log {
            log.failed(&failure.what, &failure.error)?;
        }
        self.failures.push(failure);
        Ok(())
    }

    fn mended(&mut self, SkippedWork { what, error }: SkippedWork) {
        self.meter.say(&format!("note: {what}: methods are run one by one, because they failed together: {error:#}"));
    }
}

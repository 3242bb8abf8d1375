//! Runs whose next batch depends on the records so far, as in `spattn tune`.

use anyhow::Result;

use super::reporter::ProgressReporter;
use spattn_eval::examples::observer::{RunObserver, RunProgress, SkippedWork};
use spattn_eval::records::record::Record;
use spattn_lab::tune::Batch;
use spattn_tasks::Task;

/// A source of batches, each of which depends on the records so far.
pub(in crate::cli) trait AdaptiveSource {
    /// Checks that the source can use the tasks.
    ///
    /// # Errors
    /// If it cannot use one of them.
    fn check(&self, tasks: &[Box<dyn Task>]) -> Result<()>;

    /// Receives records, both stored and new ones.
    fn take(&mut self, records: &[Record]);

    /// The next batch, once all earlier ones are recorded; `None` to stop.
    fn next(&mut self, tasks: &[Box<dyn Task>]) -> Option<Batch>;
}

/// Passes records to the source of batches, and all callbacks to the reporter.
pub(in crate::cli) struct ForwardingObserver<'a> {
    pub(super) reporter: &'a mut ProgressReporter,
    pub(super) source: &'a mut dyn AdaptiveSource,
}

impl RunObserver for ForwardingObserver<'_> {
    fn progress(&mut self, progress: RunProgress<'_>) {
        self.source.take(progress.records);
        self.reporter.progress(progress);
    }

    fn failed(&mut self, failure: SkippedWork) -> Result<()> {
        self.reporter.failed(failure)
    }

    fn mended(&mut self, failure: SkippedWork) {
        self.reporter.mended(failure);
    }
}

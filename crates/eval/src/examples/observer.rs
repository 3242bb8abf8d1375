//! Callbacks of a run: progress, and parts of the matrix that are skipped.

use anyhow::Result;

use crate::records::record::Record;

/// Progress of a run after an example.
pub struct RunProgress<'a> {
    /// Examples done, counted once per seed and protocol; includes those in `found`.
    pub done: usize,
    /// Examples done without new records: those of the store, and those that failed.
    pub found: usize,
    /// Examples of this shard, counted likewise.
    pub total: usize,
    /// Work done, in the unit of `eval::plan::work`; longer examples are more work.
    pub work_done: u64,
    /// Work of the examples in `found`, which does not count for the speed.
    pub work_found: u64,
    /// Work of all examples of this shard.
    pub work: u64,
    /// The task of the example just done.
    pub task: &'a str,
    /// The requested length of that example.
    pub length: usize,
    /// Whether that was the last example of its task and length.
    pub ends_cell: bool,
    /// The example's new records.
    pub records: &'a [Record],
}

/// A part of the matrix that cannot be run.
#[derive(Debug)]
pub struct SkippedWork {
    /// What is left out: model, and task, length, seed, protocol or method.
    pub what: String,
    /// The reason.
    pub error: anyhow::Error,
}

/// Receives the callbacks of a run.
pub trait RunObserver {
    /// Called after each example.
    fn progress(&mut self, progress: RunProgress<'_>);

    /// Called for a part of the matrix that cannot be run.
    ///
    /// # Errors
    /// An error ends the run. Otherwise, the run goes on with the rest.
    fn failed(&mut self, failure: SkippedWork) -> Result<()>;

    /// Called after a failure whose records could be made in another way.
    fn mended(&mut self, failure: SkippedWork) {
        drop(failure);
    }
}

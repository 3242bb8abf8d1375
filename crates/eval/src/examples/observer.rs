//! Callbacks of a run: progress, and parts of the matrix that are skipped.

use anyhow::Result;

use crate::records::record::Record;

/// Progress of a run after an example.
pub struct RunProgress<'a> {
    /// Examples done, each under each seed and protocol; those found in the store included.
    pub done: usize,
    /// Examples of them that were in the store already, or cannot be made.
    pub found: usize,
    /// Examples of this shard.
    pub total: usize,
    /// Work done, in the unit of `eval::plan::work`; longer examples have more.
    pub work_done: u64,
    /// Work of examples that were in the store already, which does not count for the speed of this run.
    pub work_found: u64,
    /// Work of this shard.
    pub work: u64,
    /// The task of the example just done.
    pub task: &'a str,
    /// The requested length.
    pub length: usize,
    /// Whether it was the last one of its task and length.
    pub ends_cell: bool,
    /// Its new records.
    pub records: &'a [Record],
}

/// A part of the matrix that cannot be run.
#[derive(Debug)]
pub struct SkippedWork {
    /// What is left out: the model, and the task, length, seed, protocol and method as far as they matter.
    pub what: String,
    /// Why.
    pub error: anyhow::Error,
}

/// Receives the callbacks of a run.
pub trait RunObserver {
    /// An example is done.
    fn progress(&mut self, progress: RunProgress<'_>);

    /// A part cannot be run.
    ///
    /// # Errors
    /// An error ends the run; otherwise it continues with the rest.
    fn failed(&mut self, failure: SkippedWork) -> Result<()>;

    /// Something failed, but its records could be made in another way.
    fn mended(&mut self, failure: SkippedWork) {
        drop(failure);
    }
}

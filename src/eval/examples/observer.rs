//! What a run tells whoever looks on: examples that are done, and what cannot be run.

use anyhow::Result;

use crate::eval::records::record::Record;

/// What one step of the loop tells whoever shows progress.
pub struct Progress<'a> {
    /// Examples done, each under each seed and protocol; those found in the store included.
    pub done: usize,
    /// Examples of this share.
    pub total: usize,
    /// The same in units of work, which an example has the more of the longer it is.
    pub work_done: u64,
    /// How much of it was found in the store: that says nothing of how fast work is done.
    pub work_found: u64,
    /// Work of this share.
    pub work: u64,
    /// The task of the example just done.
    pub task: &'a str,
    /// Its length asked for.
    pub length: usize,
    /// Whether it was the last one of its task and length.
    pub ends_cell: bool,
    /// Its new records.
    pub records: &'a [Record],
}

/// Something that cannot be run.
#[derive(Debug)]
pub struct SkippedWork {
    /// What of the matrix is left out: the model, and task, length, seed, protocol and method where they matter.
    pub what: String,
    /// Why.
    pub error: anyhow::Error,
}

/// Whoever looks on while a matrix is run.
pub trait RunObserver {
    /// An example is done.
    fn progress(&mut self, progress: Progress<'_>);

    /// Something cannot be run.
    ///
    /// # Errors
    /// What is returned ends the run; otherwise it goes on with everything else.
    fn failed(&mut self, failure: SkippedWork) -> Result<()>;

    /// Something failed, and its records were made all the same, in another way.
    fn mended(&mut self, failure: &SkippedWork) {
        let _ = failure;
    }
}

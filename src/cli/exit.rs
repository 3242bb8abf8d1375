//! How a command ends: its exit statuses, and an error with advice.

/// Exit status of a run that was told to stop and is to be begun again: a failure for the time being, as mailers have it.
pub(super) const PREEMPTED: u8 = 75;

/// Exit status of a run that was interrupted from the keyboard, as shells have it.
pub(super) const INTERRUPTED: u8 = 130;

/// How a command ended, other than by an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// All was done.
    Completed,
    /// The user stopped it; what was done is kept.
    Interrupted,
    /// A scheduler told it to stop, by SIGTERM, SIGUSR1 or SIGUSR2, or its terminal was closed (SIGHUP); what was done is kept.
    Preempted,
}

/// An error, and what the user can do next.
#[derive(Debug, thiserror::Error)]
#[error("{error:#}")]
pub(super) struct ErrorWithHint {
    pub error: anyhow::Error,
    pub advice: String,
}

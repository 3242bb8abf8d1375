//! How a command ends: its exit statuses, and errors with advice.

/// Exit status of a run that was told to stop and should be started again: a temporary failure, as in `sysexits.h`.
pub(super) const PREEMPTED: u8 = 75;

/// Exit status of a run without failures in which no method was shown to be safe (`--safe-within`).
pub(super) const NOT_SAFE: u8 = 3;

/// Exit status of a run that was interrupted from the keyboard, as in shells.
pub(super) const INTERRUPTED: u8 = 130;

/// How a command without an error ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// All was done.
    Completed,
    /// All was done, and no method was shown to be as safe as `--safe-within` asks for.
    NotSafe,
    /// The user stopped it; what was done is stored.
    Interrupted,
    /// A scheduler stopped it with SIGTERM, SIGUSR1 or SIGUSR2, or its terminal was closed (SIGHUP); what was done is stored.
    Preempted,
}

/// An error, with advice on what the user can do.
#[derive(Debug, thiserror::Error)]
#[error("{error:#}")]
pub(super) struct ErrorWithHint {
    pub error: anyhow::Error,
    pub advice: String,
}

impl ErrorWithHint {
    /// The error without added advice. `ErrorWithHint` is outside the chain of errors, since its message is already that of the whole
    /// chain.
    pub fn without(error: &anyhow::Error) -> &anyhow::Error {
        error.downcast_ref::<Self>().map_or(error, |hinted| &hinted.error)
    }
}

//! Waiting for each other: one process downloads a file, others that want it wait.
//!
//! The system gives a lock back when its process ends, however it ends; a lock file that was left behind holds up
//! nobody. These are the locks that other Hugging Face tools take.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

/// A lock that is held until it is dropped.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "an open file is what holds the lock")] Option<File>);

impl Lock {
    /// Takes the lock of the file at `path`, making it if it is not there. If another process has it, `waiting` is told
    /// so before it is waited for; if the file system has no locks, `unlocked` hears why, and there is none.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn take(path: &Path, waiting: impl FnOnce(), unlocked: impl FnOnce(&io::Error)) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = File::options().create(true).append(true).open(path)?;
        let taken = match file.try_lock() {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => {
                waiting();
                file.lock()
            }
            Err(TryLockError::Error(e)) => Err(e),
        };
        match taken {
            Ok(()) => Ok(Self(Some(file))),
            Err(e) => {
                unlocked(&e);
                Ok(Self(None))
            }
        }
    }
}

//! Locks between processes: one process downloads a file, and others that want it wait.
//!
//! The system releases a lock whenever its process ends, so a leftover lock file blocks nobody. Other Hugging Face tools take the same
//! locks.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

/// A lock that is held until it is dropped.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "an open file is what holds the lock")] Option<File>);

impl Lock {
    /// Takes the lock on the file at `path`, which is created if it does not exist. If another process holds it, calls `waiting` and
    /// then waits. If the file system has no locks, calls `unlocked` with the reason, and locks nothing.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn take(path: &Path, mut waiting: impl FnMut(), unlocked: impl FnOnce(&io::Error)) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        loop {
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
                // Other tools remove the file when they are done, so later processes would lock another one.
                Ok(()) if !is_at(&file, path)? => continue,
                Ok(()) => return Ok(Self(Some(file))),
                Err(e) => {
                    unlocked(&e);
                    return Ok(Self(None));
                }
            }
        }
    }
}

/// Whether the file at a path is this open file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let open = file.metadata()?;
    match path.metadata() {
        Ok(there) => Ok((there.dev(), there.ino()) == (open.dev(), open.ino())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Other systems do not let open files be removed.
#[cfg(not(unix))]
fn is_at(_file: &File, _path: &Path) -> io::Result<bool> {
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_lock_whose_file_was_removed_is_not_taken_for_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("folder/lock");
        let take = |waiting: &mut dyn FnMut()| Lock::take(&path, waiting, |e| panic!("{e}")).unwrap();
        let first = take(&mut || panic!("nobody has it"));
        let (send, receive) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let third = take(&mut || send.send("waits").unwrap());
                send.send("has it").unwrap();
                drop(third);
            });
            assert_eq!(receive.recv().unwrap(), "waits");
            std::fs::remove_file(&path).unwrap();
            let second = take(&mut || panic!("nobody has the new one"));
            drop(first);
            assert_eq!(receive.recv().unwrap(), "waits", "now for the new one");
            assert_eq!(receive.recv_timeout(Duration::from_millis(100)), Err(RecvTimeoutError::Timeout));
            drop(second);
            assert_eq!(receive.recv().unwrap(), "has it");
        });
    }
}

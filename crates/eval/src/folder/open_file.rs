//! Checks that an open file of records is still at its path. If the folder is moved, removed or replaced during a run,
//! writes to the open file still succeed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use spattn_base::error::RunFailure;

/// An open file, and the path by which it was opened.
#[derive(Debug)]
pub struct OpenFile {
    path: PathBuf,
    file: File,
}

impl OpenFile {
    /// Duplicates the handle of a file that was opened by this path.
    ///
    /// # Errors
    /// If the system's limit of open files is reached.
    pub fn of(path: &Path, file: &File) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: file.try_clone()? })
    }

    /// Checks that the path still leads to the open file.
    ///
    /// # Errors
    /// A message that says what happened to the file, as far as can be known.
    pub fn check(&self) -> Result<(), RunFailure> {
        check(&self.path, &self.file)
    }
}

/// Checks that a path still leads to an open file.
///
/// # Errors
/// A message that says what happened to the file, as far as can be known.
pub fn check(path: &Path, file: &File) -> Result<(), RunFailure> {
    if is_of(path, file) {
        return Ok(());
    }
    let (name, folder) = (path.display(), path.parent().unwrap_or(Path::new(".")));
    let happened = match (fs::symlink_metadata(folder), fs::symlink_metadata(path)) {
        (Err(_), _) => format!("the folder {} was moved or removed during the run", folder.display()),
        (Ok(_), Err(_)) => format!("{name} was moved or removed during the run"),
        (Ok(_), Ok(_)) => format!("{name} was replaced by another file during the run"),
    };
    Err(match place_now(file) {
        Some(now) => RunFailure {
            what: format!("{happened}; its records are in {}", now.display()),
            hint: format!(
                "resume with --out {} --resume, and do not change the folder during a run",
                now.parent().unwrap_or(Path::new(".")).display()
            ),
        },
        None => RunFailure {
            what: format!("{happened}; the records in it are gone"),
            hint: "run it again, and do not change the folder during a run".to_owned(),
        },
    })
}

/// Whether a path leads to an open file.
#[cfg(unix)]
pub fn is_of(path: &Path, file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |found: fs::Metadata| (found.dev(), found.ino());
    // If the system does not describe the open file, it counts as unchanged.
    let Ok(open) = file.metadata().map(place) else { return true };
    fs::metadata(path).is_ok_and(|found| place(found) == open)
}

/// Whether a path leads to an open file. This platform can only tell whether it leads to a file.
#[cfg(not(unix))]
pub fn is_of(path: &Path, _: &File) -> bool {
    path.is_file()
}

/// The current path of an open file, if it still has one.
#[cfg(target_os = "linux")]
fn place_now(file: &File) -> Option<PathBuf> {
    use std::os::fd::AsRawFd;
    let now = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    is_of(&now, file).then_some(now)
}

#[cfg(not(target_os = "linux"))]
fn place_now(_: &File) -> Option<PathBuf> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_more_where_it_was_is_noticed_and_found() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, moved) = (temp.path().join("run"), temp.path().join("moved"));
        let path = dir.join("samples.jsonl");
        fs::create_dir(&dir).unwrap();
        let place = OpenFile::of(&path, &File::create(&path).unwrap()).unwrap();
        place.check().unwrap();
        let said = || place.check().unwrap_err().what;

        fs::rename(&dir, &moved).unwrap();
        let what = said();
        assert!(what.contains("run was moved or removed during the run; "), "{what}");
        if cfg!(target_os = "linux") {
            assert!(what.ends_with(&format!("its records are in {}", moved.join("samples.jsonl").display())), "{what}");
        }
        fs::create_dir(&dir).unwrap();
        assert!(said().contains("samples.jsonl was moved or removed"));
        fs::write(&path, "another's").unwrap();
        assert!(said().contains("samples.jsonl was replaced by another file"));
        fs::remove_dir_all(&moved).unwrap();
        assert!(said().ends_with("the records in it are gone"));
    }
}

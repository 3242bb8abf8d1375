//! Files that are replaced as a whole: they are written to a temporary file in the same folder, and then renamed.
//!
//! A reader finds the old file or the new one, never a part, whatever stops the writer: a full disk, a kill. Files that grow during a run
//! (records) are not written in this way.
//!
//! A file that a user names is written through links. In a folder that the program manages, links are not followed: functions whose names
//! end in `here` reject them.
//!
//! This module also detects Git LFS pointers, which stand in for files that were not fetched.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::NamedTempFile;

use crate::error::UsageError;

/// The first bytes of a Git LFS pointer, whatever its version.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Checks that bytes read from a file are not a Git LFS pointer; `name` names the file in messages.
///
/// # Errors
/// If it is one.
pub fn no_lfs_pointer(name: impl Display, bytes: &[u8]) -> Result<(), UsageError> {
    match is_lfs_pointer(bytes) {
        false => Ok(()),
        true => Err(UsageError::new(format!("{name}: a Git LFS pointer, not the file itself"))
            .hint("`git lfs pull` in that repository fetches the file")),
    }
}

/// Whether bytes start like a Git LFS pointer.
pub fn is_lfs_pointer(bytes: &[u8]) -> bool {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).starts_with(LFS_POINTER)
}

/// Like [`no_lfs_pointer`], for a file that another reader opens: reads only its first bytes. Read errors are left to that reader.
///
/// # Errors
/// Those of [`no_lfs_pointer`].
pub fn no_lfs_pointer_at(path: &Path) -> Result<(), UsageError> {
    // A pipe can be read only once.
    if !path.is_file() {
        return Ok(());
    }
    let mut first = Vec::new();
    let most = LFS_POINTER.len() as u64 + 3;
    match File::open(path).and_then(|file| file.take(most).read_to_end(&mut first)) {
        Ok(_) => no_lfs_pointer(path.display(), &first),
        Err(_) => Ok(()),
    }
}

/// Writes a file as a whole, and creates missing folders.
///
/// # Errors
/// If it cannot be written; the error names the file, and its old content is kept.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|e| named(path, &e))?;
    }
    let mut file = WholeFile::create(path)?;
    file.write_all(bytes)?;
    file.finish()
}

/// Checks that a folder is writable, or can be created if it does not exist. Leaves nothing behind: the check uses a file without a name.
///
/// # Errors
/// The reason why it is not.
pub fn check_writable(folder: &Path) -> io::Result<()> {
    existing(folder).map_or(Ok(()), |there| tempfile::tempfile_in(there).map(drop)).map_err(|e| innermost(&e))
}

/// Returns the folder, or its nearest ancestor that exists.
fn existing(folder: &Path) -> Option<PathBuf> {
    let named = |at: &'_ Path| if at.as_os_str().is_empty() { PathBuf::from(".") } else { at.to_owned() };
    folder.ancestors().map(named).find(|at| at.symlink_metadata().is_ok())
}

/// Returns the number of bytes that this user may still write to the disk of a folder, which need not exist yet; `None` if the system does
/// not tell.
#[cfg(any(target_os = "linux", target_os = "macos"))]
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(existing(folder)?).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Returns `None`: on other systems, the free space is not determined.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub fn free_bytes(_: &Path) -> Option<u64> {
    None
}

/// Creates an empty, unnamed file in a folder, for reading and writing: the operating system removes it when it is closed, however the
/// process ends.
///
/// # Errors
/// If it cannot be created.
pub fn unnamed_file(folder: &Path) -> io::Result<File> {
    tempfile::tempfile_in(folder).map_err(|e| innermost(&e))
}

/// Like [`write_whole`], but writes neither through a link nor to a device or a pipe.
///
/// # Errors
/// Those of [`write_whole`], and if the path exists and is not a plain file.
pub fn write_whole_here(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|e| named(path, &e))?;
    }
    replace_here(path, bytes)
}

/// Like [`write_whole_here`], but the folder must exist.
///
/// # Errors
/// Those of [`write_whole_here`], and if the folder does not exist.
pub fn replace_here(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let place = check_plain(path).and_then(|_| Place::aside(path.to_owned())).map_err(|e| named(path, &e))?;
    let mut file = WholeFile { path: path.to_owned(), place: BufWriter::new(place) };
    file.write_all(bytes)?;
    file.finish()
}

/// Opens a file, but neither through a link nor a device or a pipe, which might block forever.
///
/// # Errors
/// If it is not a plain file, or cannot be opened; the error does not name the file.
pub fn open_here(path: &Path, options: &OpenOptions) -> io::Result<File> {
    check_plain(path)?;
    let mut options = options.clone();
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        // The path may have become a link or a pipe since the check.
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    }
    let file = options.open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(not_plain("it is not a regular file")),
    }
}

/// Reads at most the first `most` bytes of a plain file.
///
/// # Errors
/// Those of [`open_here`].
pub fn read_here(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_here(path, OpenOptions::new().read(true))?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether a plain file exists at the path.
///
/// # Errors
/// If something else exists there, such as a link.
pub fn check_plain(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(e) => Err(e),
        Ok(found) if found.is_file() => Ok(true),
        Ok(found) if found.is_symlink() => {
            Err(not_plain("it is a link, and links in a results folder are not followed"))
        }
        Ok(found) if found.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(_) => Err(not_plain("it is not a regular file")),
    }
}

fn not_plain(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, what)
}

/// A file being written, which gets its name when it is [finished](Self::finish). Errors include the name.
#[derive(Debug)]
pub struct WholeFile {
    path: PathBuf,
    place: BufWriter<Place>,
}

/// Where the bytes are written until the file is finished.
#[derive(Debug)]
enum Place {
    /// A temporary file, its final path, and its entry among the unfinished files.
    Aside { file: NamedTempFile, path: PathBuf, _entry: Unfinished },
    /// A device or a pipe, which cannot be replaced.
    Itself(File),
}

/// The temporary files of this process that have not been renamed yet.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    // A panic leaves the list intact.
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An entry of [`UNFINISHED`], removed when dropped.
#[derive(Debug)]
struct Unfinished(PathBuf);

impl Unfinished {
    fn new(path: &Path) -> Self {
        unfinished().push(path.to_owned());
        Self(path.to_owned())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        unfinished().retain(|path| *path != self.0);
    }
}

/// Removes the temporary files of this process, for a thread that ends it at once. Afterwards no file can be started or finished: threads
/// that try wait for the end of the process.
pub fn remove_unfinished() {
    let files = unfinished();
    files.iter().for_each(|path| drop(fs::remove_file(path)));
    std::mem::forget(files);
}

impl WholeFile {
    /// Starts a file in an existing folder. If it is dropped unfinished, nothing remains.
    ///
    /// # Errors
    /// If the folder does not exist or is not writable; the error names the file.
    pub fn create(path: &Path) -> io::Result<Self> {
        let place = Place::for_file(path).map_err(|e| named(path, &e))?;
        Ok(Self { path: path.to_owned(), place: BufWriter::new(place) })
    }

    /// Renames the file to its final name.
    ///
    /// # Errors
    /// If the remaining bytes cannot be written; the old file is then kept.
    pub fn finish(self) -> io::Result<()> {
        let Self { path, place } = self;
        let place = place.into_inner().map_err(|e| named(&path, e.error()))?;
        place.keep().map_err(|e| named(&path, &e))
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.place.write(bytes).map_err(|e| named(&self.path, &e))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.place.flush().map_err(|e| named(&self.path, &e))
    }
}

impl Place {
    fn for_file(path: &Path) -> io::Result<Self> {
        let there = fs::metadata(path).ok();
        if there.as_ref().is_some_and(|file| !file.is_file() && !file.is_dir()) {
            return File::options().write(true).open(path).map(Self::Itself);
        }
        if there.is_some_and(|file| file.is_dir()) {
            return Err(ErrorKind::IsADirectory.into());
        }
        Self::aside(behind_links(path))
    }

    fn aside(path: PathBuf) -> io::Result<Self> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut aside = tempfile::Builder::new();
        aside.prefix(".").suffix(".part");
        // The permissions of any new file; by default, the crate makes the file unreadable for others.
        #[cfg(unix)]
        aside.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let aside = aside.tempfile_in(folder).map_err(|e| innermost(&e))?;
        if let Ok(before) = fs::metadata(&path) {
            aside.as_file().set_permissions(before.permissions())?;
        }
        let entry = Unfinished::new(aside.path());
        Ok(Self::Aside { file: aside, path, _entry: entry })
    }

    fn keep(self) -> io::Result<()> {
        match self {
            Self::Itself(_) => Ok(()),
            Self::Aside { file, path, .. } => file.persist(path).map(drop).map_err(|e| e.error),
        }
    }
}

impl Write for Place {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Aside { file, .. } => file.as_file_mut().write(bytes),
            Self::Itself(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Aside { file, .. } => file.as_file_mut().flush(),
            Self::Itself(file) => file.flush(),
        }
    }
}

/// Returns the file that a link leads to, so that the link itself is kept.
fn behind_links(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Returns the system's message without the temporary file's name.
fn innermost(error: &io::Error) -> io::Error {
    let text = error.to_string();
    let said = text.split_once(" at path ").map_or(text.as_str(), |(said, _)| said);
    io::Error::new(error.kind(), said.to_owned())
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_folder_that_is_not_there_has_the_room_of_the_one_above() {
        let folder = tempfile::tempdir().unwrap();
        let free = free_bytes(folder.path()).unwrap();
        assert!(free > 0);
        let below = free_bytes(&folder.path().join("not/there")).unwrap();
        // Other processes may write to the disk at the same time.
        assert!(below.abs_diff(free) < 1 << 30, "{below} for {free}");
        #[cfg(target_os = "linux")]
        assert_eq!(free_bytes(Path::new("/proc")), Some(0), "nothing can be written there");
    }

    #[test]
    fn pointers_of_git_lfs_are_told_by_their_first_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.jsonl");
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
        for (text, is_pointer) in [
            (pointer.to_owned(), true),
            (format!("\u{feff}{pointer}"), true),
            (format!("\n{pointer}"), false),
            ("version 2 of it".to_owned(), false),
            (String::new(), false),
        ] {
            fs::write(&path, &text).unwrap();
            let said = [no_lfs_pointer("rows.jsonl", text.as_bytes()), no_lfs_pointer_at(&path)];
            assert!(said.iter().all(|said| said.is_err() == is_pointer), "{text}");
        }
        assert_eq!(no_lfs_pointer_at(&dir.path().join("nowhere")), Ok(()));
    }

    #[test]
    fn a_folder_is_asked_whether_it_can_be_written_and_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check_writable(dir.path()).is_ok() && check_writable(&dir.path().join("new/er")).is_ok());
        assert_eq!(names(dir.path()), [""; 0]);
        fs::write(dir.path().join("file"), "x").unwrap();
        assert!(check_writable(&dir.path().join("file")).is_err());
        assert!(check_writable(&dir.path().join("file/below")).is_err());
        assert!(check_writable(Path::new("/proc/none")).is_err());
    }

    #[test]
    fn an_unfinished_file_leaves_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        write_whole(&path, b"old").unwrap();
        let mut file = WholeFile::create(&path).unwrap();
        file.write_all(&vec![b'x'; 1 << 20]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old", "the name changes hands in the end");
        drop(file);
        assert_eq!((fs::read(&path).unwrap(), names(dir.path())), (b"old".to_vec(), vec!["a.txt".to_owned()]));
        write_whole(&path, b"new").unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(dir.path()).len()), (b"new".to_vec(), 1));
    }

    #[test]
    fn folders_are_made_and_errors_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        write_whole(&dir.path().join("a/b/c.txt"), b"x").unwrap();
        assert_eq!(fs::read(dir.path().join("a/b/c.txt")).unwrap(), b"x");
        let error = write_whole(&dir.path().join("a/b/c.txt/d.txt"), b"x").unwrap_err();
        assert!(error.to_string().contains("c.txt/d.txt: "), "{error}");
        let error = write_whole(&dir.path().join("a/b"), b"x").unwrap_err().to_string();
        assert!(error.starts_with("cannot write ") && error.contains("a/b: "), "{error}");
        assert_eq!(names(&dir.path().join("a")), ["b"]);
        let error = WholeFile::create(&dir.path().join("new/c.txt")).unwrap_err().to_string();
        assert!(error.contains("new/c.txt: No such file") && !error.contains(".part"), "{error}");
        assert_eq!(names(dir.path()), ["a"], "only what is written whole makes folders");
    }

    #[cfg(unix)]
    #[test]
    fn links_and_permissions_stay_and_devices_are_written_to() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let mode = |name: &str| fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
        File::create(dir.path().join("plain")).unwrap();
        write_whole(&dir.path().join("file"), b"x").unwrap();
        assert_eq!(mode("file"), mode("plain"), "as open to others as any new file");
        fs::set_permissions(dir.path().join("file"), PermissionsExt::from_mode(0o600)).unwrap();
        symlink("file", dir.path().join("link")).unwrap();
        write_whole(&dir.path().join("link"), b"y").unwrap();
        assert!(fs::symlink_metadata(dir.path().join("link")).unwrap().is_symlink());
        assert_eq!((fs::read(dir.path().join("file")).unwrap(), mode("file")), (b"y".to_vec(), 0o600));
        write_whole(Path::new("/dev/null"), b"z").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[cfg(unix)]
    #[test]
    fn in_a_results_folder_nothing_is_written_or_read_through_a_link() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("theirs"), "x").unwrap();
        symlink("theirs", at("link")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        let options = OpenOptions::new().create(true).append(true).clone();
        for (name, what) in
            [("link", "it is a link"), ("dangling", "it is a link"), ("pipe", "it is not a regular file")]
        {
            let error = write_whole_here(&at(name), b"y").unwrap_err().to_string();
            assert!(error.starts_with("cannot write ") && error.contains(&format!("{name}: {what}")), "{error}");
            assert!(open_here(&at(name), &options).unwrap_err().to_string().starts_with(what));
            assert!(read_here(&at(name), 10).unwrap_err().to_string().starts_with(what));
        }
        assert!(fs::read(at("theirs")).unwrap() == b"x" && !at("nowhere").exists());
        write_whole_here(&at("new/a"), b"abc").unwrap();
        open_here(&at("new/a"), &options).unwrap().write_all(b"d").unwrap();
        assert_eq!(
            (read_here(&at("new/a"), 3).unwrap(), fs::read(at("new/a")).unwrap()),
            (b"abc".to_vec(), b"abcd".to_vec())
        );
        assert_eq!((check_plain(&at("new/a")).unwrap(), check_plain(&at("no")).unwrap()), (true, false));
    }

    #[test]
    fn a_full_device_is_one_line_with_its_name() {
        let full = Path::new("/dev/full");
        if !full.exists() {
            return eprintln!("SKIPPED: there is no /dev/full here");
        }
        let error = write_whole(full, b"x").unwrap_err().to_string();
        assert!(error.starts_with("cannot write /dev/full: No space left"), "{error}");
    }
}

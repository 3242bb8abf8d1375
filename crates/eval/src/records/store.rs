//! A run's folder opened for writing: `manifest.json`, `samples.jsonl`, and the lock that keeps a second writer out.
//!
//! A record is one line, written as a whole and flushed when its example is done. Whatever stops a run, the earlier lines are complete, and
//! at most the last one is incomplete. Reading is in `loaded`, comparing manifests in `stored_manifest`.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::lines::repair;
pub use super::loaded::{LoadedRecords, SAMPLES, load_records};
use super::loaded::{no_file, read_records};
use super::manifest_keys::{CONTENT, MANIFEST};
use super::record::Record;
use super::stored_manifest::{check_belong, merged_manifest};
pub use super::stored_manifest::{identities, load_manifest};
use crate::folder::lease::{Lease, OWNER, Owner, Refused};
use crate::folder::open_file::{self, OpenFile};
use crate::folder::owned_files::{self, OwnFolder};
use spattn_base::disk::{check_plain, open_here, read_here};
use spattn_base::error::{RunFailure, UsageError};

const LOCK: &str = ".lock";

/// What to do with a folder that already holds records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Refuse the folder.
    Fresh,
    /// Keep its records and add the missing ones. A folder without records counts as fresh.
    Resume,
    /// Delete its records.
    Overwrite,
}

/// A run's folder opened for writing by this process alone.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    samples: Samples,
    loaded: LoadedRecords,
    keys: HashSet<String>,
    lease: Lease,
    lock: File,
}

impl Store {
    /// Creates the folder if needed, checks that it can be written, locks it, and opens its records.
    ///
    /// `manifest` is an object. Its field `identity` holds everything that determines results (a list if a matrix has several models, seeds
    /// or protocols). To add records, it must include the stored identity. The rest of a resumed run's manifest is stored under `resumed`.
    ///
    /// # Errors
    /// [`UsageError`] if the folder holds records and `mode` is `Fresh`, if another process writes to it, if the manifest of a resumed run
    /// does not match, or if a record belongs to no run of the manifest; other errors if a file cannot be read or written.
    pub fn open(dir: &Path, mode: OpenMode, manifest: &Value) -> Result<Self> {
        Self::open_checked(dir, mode, manifest, |_, _| Ok(()))
    }

    /// [`open`](Self::open), but `check` first sees the stored manifest and records, if there are any. Only an incomplete last line is
    /// repaired before. Records that `check` removes count as missing, but stay in the file.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open), and those of `check`.
    pub fn open_checked(
        dir: &Path,
        mode: OpenMode,
        manifest: &Value,
        check: impl FnOnce(&Value, &mut LoadedRecords) -> Result<()>,
    ) -> Result<Self> {
        check_free(dir, mode)?;
        let had_lock = dir.join(LOCK).exists();
        let (lock, is_locked) = lock(dir)?;
        let own_lock = lock.try_clone().with_context(|| format!("cannot write to the folder {}", dir.display()))?;
        Self::open_locked(dir, mode, manifest, check, (lock, is_locked)).inspect_err(|_| {
            // A refused folder is left unchanged. The lock is held until its file is removed.
            if !had_lock && open_file::is_of(&dir.join(LOCK), &own_lock) {
                let _ = fs::remove_file(dir.join(LOCK));
            }
        })
    }

    fn open_locked(
        dir: &Path,
        mode: OpenMode,
        manifest: &Value,
        check: impl FnOnce(&Value, &mut LoadedRecords) -> Result<()>,
        (lock, is_locked): (File, bool),
    ) -> Result<Self> {
        let lease = Lease::take(dir, is_locked).map_err(|refused| owned(dir, refused))?;
        // Checked again, because another process may have written before the lease was taken.
        check_free(dir, mode)?;
        let mut own = OwnFolder::of(dir)?;
        if mode == OpenMode::Overwrite {
            own.clear(&[&owned_files::RUN, &owned_files::REPORT, &owned_files::TUNE])?;
        }
        let path = dir.join(SAMPLES);
        let manifest = match holds_records(dir) {
            true => merged_manifest(dir, manifest)?,
            false => manifest.clone(),
        };
        let mut loaded = LoadedRecords::default();
        if holds_records(dir) {
            repair(&path, &mut loaded.notices)?;
            loaded = read_records(&path, loaded.notices)?;
            check_belong(dir, &loaded.records, &manifest)?;
            let stored = load_manifest(dir)?;
            if identities(&stored).iter().any(|identity| CONTENT.iter().any(|key| identity[*key].is_null())) {
                loaded.notices.push(format!("{} {UNKNOWN_CONTENT}", dir.display()));
            }
            check(&stored, &mut loaded)?;
        }
        own.claim([SAMPLES, MANIFEST])?;
        own.write(MANIFEST, format!("{manifest:#}\n").as_bytes())?;
        let keys = loaded.records.iter().map(|r| r.key.clone()).collect();
        Ok(Self { dir: dir.to_owned(), samples: Samples::open(&path)?, loaded, keys, lease, lock })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The records that were stored when the folder was opened.
    pub fn records(&self) -> &[Record] {
        &self.loaded.records
    }

    /// The current number of records.
    pub fn count(&self) -> usize {
        self.keys.len()
    }

    /// What was repaired or left out when the folder was opened.
    pub fn notices(&self) -> &[String] {
        &self.loaded.notices
    }

    /// The keys of all records.
    pub(crate) fn keys(&self) -> &HashSet<String> {
        &self.keys
    }

    /// Whether a record with this key is stored.
    pub fn contains(&self, key: &str) -> bool {
        self.keys.contains(key)
    }

    /// The file of records, to check later that it is still at its path.
    ///
    /// # Errors
    /// If the system's limit of open files is reached.
    pub fn place(&self) -> Result<OpenFile> {
        Ok(OpenFile::of(&self.samples.path, &self.samples.file)?)
    }

    /// Adds a record: one write of the whole line, then a flush. Does nothing if its key is stored already. Returns whether the record was
    /// added.
    ///
    /// # Errors
    /// If the line cannot be written; earlier lines stay readable. Nothing is written if the folder was moved, removed or replaced, if
    /// another process writes to it, or if the record could not be read back (a number that is not finite).
    pub fn append(&mut self, record: &Record) -> Result<bool> {
        if self.contains(&record.key) {
            return Ok(false);
        }
        if !self.lease.is_held() {
            let owner = Owner::of(&self.dir)
                .map_or("another process".to_owned(), |o| format!("process {} on {}", o.pid, o.host));
            let why = match open_file::is_of(&self.dir.join(LOCK), &self.lock) {
                true => "this process did not renew its lock for too long".to_owned(),
                false => format!("its {LOCK} was removed meanwhile"),
            };
            anyhow::bail!("{} is now written by {owner}: {why}", self.dir.display());
        }
        open_file::check(&self.samples.path, &self.samples.file)?;
        self.samples.check_whole()?;
        self.samples.append(&line(record)?)?;
        self.keys.insert(record.key.clone());
        Ok(true)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // The file stays, so that all writers lock the same file. Only the process number in it is removed.
        let _ = self.lock.set_len(0);
    }
}

/// The open file of records, and the length up to which it is complete.
#[derive(Debug)]
struct Samples {
    path: PathBuf,
    file: File,
    whole: u64,
}

impl Samples {
    fn open(path: &Path) -> Result<Self> {
        let mut file = open_here(path, OpenOptions::new().create(true).append(true))
            .with_context(|| format!("cannot write {}", path.display()))?;
        let whole = file.seek(SeekFrom::End(0)).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path: path.to_owned(), file, whole })
    }

    /// Checks that the file is not shorter than what was written to it.
    fn check_whole(&self) -> Result<(), RunFailure> {
        let Ok(length) = self.file.metadata().map(|file| file.len()) else { return Ok(()) };
        if length >= self.whole {
            return Ok(());
        }
        let (name, lost) = (self.path.display(), self.whole - length);
        Err(RunFailure {
            what: format!("{name} was shortened by another program during the run: its last {lost} bytes are gone"),
            hint: "resume with --resume, which runs those examples again, and do not change the folder during a run"
                .to_owned(),
        })
    }

    fn append(&mut self, line: &str) -> Result<()> {
        if let Err(e) = self.file.write_all(line.as_bytes()).and_then(|()| self.file.flush()) {
            // Cuts off a partly written line, so that a later line is not appended to it.
            let _ = self.file.set_len(self.whole);
            return Err(e).with_context(|| format!("cannot write {}", self.path.display()));
        }
        self.whole += line.len() as u64;
        Ok(())
    }
}

/// Serializes a record to one line, after checking that it can be read back.
fn line(record: &Record) -> Result<String> {
    let Record { task, sample, method, .. } = record;
    let failed = || format!("the record of {task}, sample {sample}, method {method} cannot be stored");
    record.check().map_err(anyhow::Error::msg).with_context(failed)?;
    let mut line = serde_json::to_string(record)?;
    serde_json::from_str::<Record>(&line).with_context(failed)?;
    line.push('\n');
    Ok(line)
}

/// Checks, as far as possible without changing anything, that `dir` can be opened in `mode`.
///
/// # Errors
/// [`UsageError`] if it is a file, if it holds records and `mode` is `Fresh`, or if somebody else's file or a link is in the way.
pub fn check_free(dir: &Path, mode: OpenMode) -> Result<(), UsageError> {
    if dir.exists() && !dir.is_dir() {
        return Err(UsageError::new(format!("{} is a file, not a folder", dir.display())).hint(OUT_HINT));
    }
    let samples = dir.join(SAMPLES);
    if samples.is_dir() {
        return Err(no_file(&samples));
    }
    for name in [LOCK, OWNER] {
        let path = dir.join(name);
        check_plain(&path).map_err(|e| not_ours(&path, &e))?;
    }
    // Files that this program did not write are checked first, because no flag allows replacing them.
    owned_files::check(dir, &owned_files::RUN)?;
    match mode == OpenMode::Fresh && holds_records(dir) {
        true => Err(already_there(dir)),
        false => Ok(()),
    }
}

fn not_ours(path: &Path, why: &dyn std::fmt::Display) -> UsageError {
    UsageError::new(format!("cannot write {}: {why}", path.display())).hint(format!("remove it, or {OUT_HINT}"))
}

/// Whether the folder has records. A run that failed before its first record leaves an empty file.
fn holds_records(dir: &Path) -> bool {
    fs::metadata(dir.join(SAMPLES)).is_ok_and(|file| file.len() > 0)
}

/// The end of the note on a folder without [`CONTENT`].
const UNKNOWN_CONTENT: &str = "was written by a version that did not record a model's configuration and chat template: whether they have changed is unknown";

const OUT_HINT: &str = "choose another --out folder";

/// The error for a folder that cannot be written: a usage error if it can never be, but not, for example, if the disk is full.
fn unwritable(dir: &Path, error: std::io::Error) -> anyhow::Error {
    let what = format!("cannot write to the folder {}", dir.display());
    match error.kind() {
        ErrorKind::AlreadyExists
        | ErrorKind::InvalidFilename
        | ErrorKind::InvalidInput
        | ErrorKind::IsADirectory
        | ErrorKind::NotADirectory
        | ErrorKind::NotFound
        | ErrorKind::PermissionDenied
        | ErrorKind::ReadOnlyFilesystem => UsageError::new(format!("{what}: {error}")).hint(OUT_HINT).into(),
        _ => anyhow::Error::new(error).context(what),
    }
}

/// Creates the folder and locks it, which also shows that it can be written. Returns the lock, and whether the file system supports locks.
fn lock(dir: &Path) -> Result<(File, bool)> {
    let failed = || format!("cannot write to the folder {}", dir.display());
    fs::create_dir_all(dir).map_err(|e| unwritable(dir, e))?;
    let path = dir.join(LOCK);
    // A file of another program is not emptied.
    let is_pid = |byte: &u8| byte.is_ascii_digit() || byte.is_ascii_whitespace() || *byte == 0;
    if read_here(&path, 64).is_ok_and(|said| !said.iter().all(is_pid)) {
        return Err(UsageError::new(format!("{} exists, and spattn did not write it", path.display()))
            .hint(format!("move it away, or {OUT_HINT}"))
            .into());
    }
    let options = OpenOptions::new().create(true).truncate(false).read(true).write(true).clone();
    let mut file = open_here(&path, &options).map_err(|e| unwritable(dir, e))?;
    let is_locked = match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => return Err(locked(dir, &path).into()),
        // Some network file systems have no locks. There, only the lease protects the folder.
        Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Unsupported => false,
        Err(TryLockError::Error(e)) => return Err(e).with_context(failed),
    };
    file.set_len(0).with_context(failed)?;
    file.write_all(std::process::id().to_string().as_bytes()).with_context(failed)?;
    Ok((file, is_locked))
}

fn owned(dir: &Path, refused: Refused) -> anyhow::Error {
    match refused {
        Refused::Io(e) => unwritable(dir, e),
        Refused::Owned(owner) => {
            UsageError::new(format!("{} is being written by process {} on {}", dir.display(), owner.pid, owner.host))
                .hint("wait for it to end, or choose another --out folder")
                .into()
        }
    }
}

fn locked(dir: &Path, lock: &Path) -> UsageError {
    let owner = fs::read_to_string(lock).ok().filter(|pid| !pid.trim().is_empty());
    let owner = owner.map_or("another process".to_owned(), |pid| format!("process {}", pid.trim()));
    UsageError::new(format!("{} is being written by {owner}", dir.display()))
        .hint("wait for it to end, or choose another --out folder")
}

fn already_there(dir: &Path) -> UsageError {
    UsageError::new(format!("{} already holds records of a run", dir.display()))
        .hint("--resume continues it, --overwrite throws its records away, --out chooses another folder")
}

#[cfg(test)]
mod tests;

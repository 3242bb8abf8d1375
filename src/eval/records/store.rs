//! A run's folder: `manifest.json`, `samples.jsonl`, and the lock that prevents a second writer.
//!
//! A record is one line, written as a whole and flushed when its example is done. Whatever stops a run, earlier lines are there, and at
//! most the last one is incomplete. Nothing is drawn from records here.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{BufReader, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rayon::prelude::*;
use serde_json::Value;

use super::changes::{self, AXES, Changes};
use super::lines::{is_torn, read_line, repair, said};
use super::manifest_keys::{CALIBRATION, CONTENT, IDENTITY, INPUTS, MANIFEST};
use super::record::{Record, RecordInterner};
use crate::eval::folder::lease::{Lease, OWNER, Owner, Refused};
use crate::eval::folder::open_file::{self, OpenFile};
use crate::eval::folder::owned_files::{self, OwnFolder};
use spattn_base::disk::{check_plain, no_lfs_pointer, open_here, read_here};
use spattn_base::error::{RunFailure, UsageError, in_plain_words};
use spattn_base::given;

/// Name of the file of records within a run's folder.
pub const SAMPLES: &str = "samples.jsonl";
const LOCK: &str = ".lock";
/// Key of the manifest for those of later, resumed runs.
const RESUMED: &str = "resumed";
/// The most bytes of a manifest.
const MOST_OF_MANIFEST: u64 = 256 << 20;

/// What to do with a folder that already holds records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Refuse it.
    Fresh,
    /// Keep its records and add what is missing. An empty folder counts as fresh.
    Resume,
    /// Delete its records.
    Overwrite,
}

/// Records read from a folder, and what was repaired.
#[derive(Debug, Default, PartialEq)]
pub struct Loaded {
    /// One record for each key, in the order of the file.
    pub records: Vec<Record>,
    /// What was repaired or left out, one readable line each.
    pub notices: Vec<String>,
}

/// A run's folder, opened for writing by this process alone.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    samples: Samples,
    loaded: Loaded,
    keys: HashSet<String>,
    lease: Lease,
    lock: File,
}

impl Store {
    /// Creates the folder if needed, checks that it can be written, locks it, and opens its records.
    ///
    /// `manifest` is an object. Its field `identity` holds everything that determines results (a list if a matrix has several models, seeds
    /// or protocols), and must include the stored one for records to be added. The rest of a resumed run's manifest is stored under
    /// `resumed`.
    ///
    /// # Errors
    /// [`UsageError`] if the folder holds records and `mode` is `Fresh`, if another process writes to it, if the manifest of a resumed run
    /// does not match, or if a record belongs to no run of the manifest; other errors if a file cannot be read or written.
    pub fn open(dir: &Path, mode: OpenMode, manifest: &Value) -> Result<Self> {
        Self::open_checked(dir, mode, manifest, |_, _| Ok(()))
    }

    /// As [`open`](Self::open), after `check` has seen the stored manifest and its records, if there are any; nothing is written before.
    /// Records that `check` removes count as missing, and stay in their file.
    ///
    /// # Errors
    /// As [`open`](Self::open), and those of `check`.
    pub fn open_checked(
        dir: &Path,
        mode: OpenMode,
        manifest: &Value,
        check: impl FnOnce(&Value, &mut Loaded) -> Result<()>,
    ) -> Result<Self> {
        check_free(dir, mode)?;
        let had_lock = dir.join(LOCK).exists();
        let (lock, is_locked) = lock(dir)?;
        let held = lock.try_clone().with_context(|| format!("cannot write to the folder {}", dir.display()))?;
        Self::open_locked(dir, mode, manifest, check, (lock, is_locked)).inspect_err(|_| {
            // A refused folder is left unchanged. The lock is held until its file is removed.
            if !had_lock && open_file::is_of(&dir.join(LOCK), &held) {
                let _ = fs::remove_file(dir.join(LOCK));
            }
        })
    }

    fn open_locked(
        dir: &Path,
        mode: OpenMode,
        manifest: &Value,
        check: impl FnOnce(&Value, &mut Loaded) -> Result<()>,
        (lock, is_locked): (File, bool),
    ) -> Result<Self> {
        let lease = Lease::take(dir, is_locked).map_err(|refused| owned(dir, refused))?;
        // Checked again, now that no other process can write.
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
        let mut loaded = Loaded::default();
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

    /// The number of records now.
    pub fn count(&self) -> usize {
        self.keys.len()
    }

    /// What was repaired or left out when the folder was opened.
    pub fn notices(&self) -> &[String] {
        &self.loaded.notices
    }

    /// Whether a record with this key is stored.
    pub fn contains(&self, key: &str) -> bool {
        self.keys.contains(key)
    }

    /// The file of records, for later checks that it is still at its path.
    ///
    /// # Errors
    /// If the system gives no more open files.
    pub fn place(&self) -> Result<OpenFile> {
        Ok(OpenFile::of(&self.samples.path, &self.samples.file)?)
    }

    /// Adds a record: the whole line in one write, then a flush. If its key is stored already, nothing changes; the return value says
    /// whether the record was added.
    ///
    /// # Errors
    /// If the line cannot be written; earlier lines stay readable. If the folder was moved, removed or replaced, if another process writes
    /// to it, or if the record could not be read back (a number that is not finite), nothing is written.
    pub fn append(&mut self, record: &Record) -> Result<bool> {
        if self.contains(&record.key) {
            return Ok(false);
        }
        if !self.lease.is_held() {
            let owner = Owner::of(&self.dir)
                .map_or("another process".to_owned(), |o| format!("process {} on {}", o.pid, o.host));
            let why = match open_file::is_of(&self.dir.join(LOCK), &self.lock) {
                true => "this process was silent for too long".to_owned(),
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
        // The file stays, so that all writers lock the same one; only the process number in it is removed.
        let _ = self.lock.set_len(0);
    }
}

/// The records in a folder, to which a run may still be writing. An incomplete last line is left out; nothing is changed.
///
/// # Errors
/// If the folder has no records file, or a line other than the last cannot be read.
pub fn load_records(dir: &Path) -> Result<Loaded> {
    let path = dir.join(SAMPLES);
    if path.is_dir() {
        return Err(no_file(&path).into());
    }
    if !path.is_file() {
        return Err(UsageError::new(format!("{} holds no {SAMPLES}", dir.display()))
            .hint("give the folder that a run was written to")
            .into());
    }
    read_records(&path, Vec::new())
}

/// The manifest of a run's folder.
///
/// # Errors
/// A [`UsageError`] if it is missing, or not JSON.
pub fn load_manifest(dir: &Path) -> Result<Value> {
    let path = dir.join(MANIFEST);
    let wrong = |what: String| UsageError::new(what).hint("without it records say too little: give another folder");
    let text = given::text(&path, MOST_OF_MANIFEST);
    let text = text.map_err(|e| wrong(format!("cannot read {}: {e}", path.display())))?;
    no_lfs_pointer(path.display(), text.as_bytes())?;
    Ok(serde_json::from_str(&text).map_err(|e| wrong(format!("{} is not JSON: {e}", path.display())))?)
}

// ---- the file of records ----

/// The open file of records, and the length of its complete lines.
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

    /// Checks that the file still has everything that was written to it.
    fn check_whole(&self) -> Result<(), RunFailure> {
        let Ok(length) = self.file.metadata().map(|file| file.len()) else { return Ok(()) };
        if length >= self.whole {
            return Ok(());
        }
        let (name, lost) = (self.path.display(), self.whole - length);
        Err(RunFailure {
            what: format!("{name} was shortened by another program during the run: its last {lost} bytes are gone"),
            hint: "go on with --resume, which runs those examples again, and leave the folder as it is during a run"
                .to_owned(),
        })
    }

    fn append(&mut self, line: &str) -> Result<()> {
        if let Err(e) = self.file.write_all(line.as_bytes()).and_then(|()| self.file.flush()) {
            // Cut off the part of the line that was written, so that a later line does not join it.
            let _ = self.file.set_len(self.whole);
            return Err(e).with_context(|| format!("cannot write {}", self.path.display()));
        }
        self.whole += line.len() as u64;
        Ok(())
    }
}

/// The record as one line that can certainly be read back.
fn line(record: &Record) -> Result<String> {
    let Record { task, sample, method, .. } = record;
    let failed = || format!("the record of {task}, sample {sample}, method {method} cannot be stored");
    record.check().map_err(anyhow::Error::msg).with_context(failed)?;
    let mut line = serde_json::to_string(record)?;
    serde_json::from_str::<Record>(&line).with_context(failed)?;
    line.push('\n');
    Ok(line)
}

fn read_records(path: &Path, mut notices: Vec<String>) -> Result<Loaded> {
    let failed = || format!("cannot read {}", path.display());
    let (mut records, mut shared) = (Vec::new(), RecordInterner::default());
    // One line at a time: records take less memory than text, and there may be millions.
    let (mut lines, mut line) = (BufReader::new(File::open(path).with_context(failed)?), Vec::new());
    for at in 1.. {
        if read_line(&mut lines, &mut line).with_context(failed)? == 0 {
            break;
        }
        let text = said(&line, at == 1);
        if text.is_empty() {
            continue;
        }
        let mut record: Record = match serde_json::from_slice(text) {
            Ok(record) => record,
            Err(_) if is_torn(&line) => {
                notices.push(format!("{}: left out a torn last line of {} bytes", path.display(), line.len()));
                break;
            }
            Err(e) => {
                no_lfs_pointer(path.display(), text)?;
                return Err(not_a_record(path, at, &e));
            }
        };
        record.check().map_err(|what| not_a_record(path, at, &what))?;
        record.share(&mut shared);
        records.push(record);
    }
    records.shrink_to_fit();
    let repeated = drop_repeated(&mut records, by_key_and_example);
    notices.extend(repetition(path, &records, &repeated));
    Ok(Loaded { records, notices })
}

/// A notice about records with repeated keys, in particular if their content differs.
fn repetition(path: &Path, records: &[Record], repeated: &[Record]) -> Option<String> {
    if repeated.is_empty() {
        return None;
    }
    let others = differing(records, repeated, by_key_and_example);
    let said = format!("{}: {} records repeat a key; the first of each key counts", path.display(), repeated.len());
    match others.first() {
        None => Some(said),
        Some((first, Record { task, sample, method, key, score, .. })) => Some(format!(
            "{said}, but {} of them have another score or answer than the first: {task}, sample {sample}, method {method} has {} \
             and {score}; delete the lines that are wrong (key {key}), or all of them and run the folder again with --resume",
            others.len(),
            first.score
        )),
    }
}

fn by_key_and_example(r: &Record) -> [&str; 3] {
    [&r.key, r.example_sha256.as_deref().map_or("", String::as_str), ""]
}

/// Records that were [left out](drop_repeated) and differ in score or answer from the one that was kept. Each pair starts with the kept
/// one.
pub fn differing<'r>(
    kept: &'r [Record],
    left_out: &'r [Record],
    of: fn(&Record) -> [&str; 3],
) -> Vec<(&'r Record, &'r Record)> {
    let told: HashSet<[&str; 3]> = left_out.iter().map(of).collect();
    let kept: HashMap<[&str; 3], &Record> = kept.iter().filter(|r| told.contains(&of(r))).map(|r| (of(r), r)).collect();
    let pairs = left_out.iter().filter_map(|r| kept.get(&of(r)).map(|kept| (*kept, r)));
    pairs.filter(|(a, b)| (a.score, &a.prediction) != (b.score, &b.prediction)).collect()
}

/// Keeps the first of the records with equal `of`, and returns the others.
pub fn drop_repeated(records: &mut Vec<Record>, of: fn(&Record) -> [&str; 3]) -> Vec<Record> {
    // Most are unique. Hashes show that, and are smaller than keys.
    let hasher = RandomState::new();
    let hashes: Vec<u64> = records.par_iter().map(|r| hasher.hash_one(of(r))).collect();
    let mut seen = HashSet::with_capacity(hashes.len());
    let several: HashSet<u64> = hashes.iter().copied().filter(|hash| !seen.insert(*hash)).collect();
    let mut first = HashSet::new();
    let is_repeated: Vec<bool> =
        records.iter().zip(&hashes).map(|(r, hash)| several.contains(hash) && !first.insert(of(r))).collect();
    let mut is_repeated = is_repeated.into_iter();
    records.extract_if(.., |_| is_repeated.next() == Some(true)).collect()
}

fn not_a_record(path: &Path, line: usize, error: &dyn std::fmt::Display) -> anyhow::Error {
    UsageError::new(format!("{}:{line}: not a record: {}", path.display(), in_plain_words(&error.to_string())))
        .hint("delete that line to have its example run again with --resume")
        .into()
}

// ---- the folder ----

/// Checks, without changing anything, that `dir` can be opened in `mode`, as far as can be known.
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
    // Files that this program did not write are checked first: no flag lets them be replaced.
    owned_files::check(dir, &owned_files::RUN)?;
    match mode == OpenMode::Fresh && holds_records(dir) {
        true => Err(already_there(dir)),
        false => Ok(()),
    }
}

fn no_file(samples: &Path) -> UsageError {
    UsageError::new(format!("{} is a folder, not a file of records", samples.display()))
        .hint("move it away, or give another folder")
}

fn not_ours(path: &Path, why: &dyn std::fmt::Display) -> UsageError {
    UsageError::new(format!("cannot write {}: {why}", path.display())).hint(format!("remove it, or {OUT_HINT}"))
}

/// Whether anything was recorded. A run that failed before its first record leaves an empty file.
fn holds_records(dir: &Path) -> bool {
    fs::metadata(dir.join(SAMPLES)).is_ok_and(|file| file.len() > 0)
}

/// The end of the note on a folder without [`CONTENT`].
const UNKNOWN_CONTENT: &str = "was written by a version that did not record a model's configuration and chat template: \
                               nobody can check that these are still the same";

const OUT_HINT: &str = "choose another --out folder";

/// A folder that can never be written is a mistake in the arguments; a full disk, for example, is not.
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

/// Creates the folder and locks it, which also shows that it can be written. Returns whether the file system has locks.
fn lock(dir: &Path) -> Result<(File, bool)> {
    let failed = || format!("cannot write to the folder {}", dir.display());
    fs::create_dir_all(dir).map_err(|e| unwritable(dir, e))?;
    let path = dir.join(LOCK);
    // Another program's file is not emptied.
    let is_pid = |byte: &u8| byte.is_ascii_digit() || byte.is_ascii_whitespace() || *byte == 0;
    if read_here(&path, 64).is_ok_and(|said| !said.iter().all(is_pid)) {
        return Err(UsageError::new(format!("{} is there, and spattn did not write it", path.display()))
            .hint(format!("move it away, or {OUT_HINT}"))
            .into());
    }
    let options = OpenOptions::new().create(true).truncate(false).read(true).write(true).clone();
    let mut file = open_here(&path, &options).map_err(|e| unwritable(dir, e))?;
    let is_locked = match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => return Err(locked(dir, &path).into()),
        // Some network file systems have no locks. There only the lease protects the folder.
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

// ---- the manifest ----

/// The stored manifest with this run's additions.
///
/// # Errors
/// If the two differ in anything that determines results.
fn merged_manifest(dir: &Path, manifest: &Value) -> Result<Value> {
    let mut stored = load_manifest(dir)?;
    let (mut changed, mut lacking) = (BTreeSet::new(), BTreeSet::new());
    for then in identities(&stored) {
        // Compare with the nearest identity: if possible one with the same model, protocol and seed.
        let compared = identities(manifest).into_iter().map(|now| {
            let mut changes = Changes::new();
            changes::compare("", then, now, &mut changes);
            (AXES.iter().filter(|axis| changes.contains_key(**axis)).count(), changes)
        });
        let nearest = compared.min_by_key(|(axes, changes)| (*axes, changes.len()));
        let Some((_, mut changes)) = nearest else { continue };
        // If the model differs, everything of it does.
        let is_other_model = changes.contains_key("model");
        let axes = AXES.iter().filter_map(|axis| Some((*axis, changes.remove(*axis)?)));
        lacking.extend(axes.map(|(axis, (then, _))| changes::lacking(axis, &then)).collect::<Vec<_>>());
        // The missing template is reported already.
        if changes.contains_key("chat_template") {
            changes.remove("tokens.chat_template_sha256");
        }
        if !is_other_model {
            changed.extend(changes.iter().map(|(key, (then, now))| changes::in_words(key, then, now)));
        }
    }
    let calibration = with_known_kinds(&stored[CALIBRATION], &manifest[CALIBRATION]);
    let mut changes = Changes::new();
    changes::compare(CALIBRATION, &calibration, &with_known_kinds(&manifest[CALIBRATION], &calibration), &mut changes);
    changed.extend(changes.iter().map(|(key, (then, now))| changes::in_words(key, then, now)));
    if !changed.is_empty() || !lacking.is_empty() {
        let hint = match changed.is_empty() {
            true => "a matrix may grow: ask for what it has as well, or use another --out folder (or --overwrite)",
            false => "use the same settings, --overwrite, or another --out folder",
        };
        let said: Vec<String> = changed.into_iter().chain(lacking).collect();
        let what = format!("{} was run with other settings: {}", dir.display(), said.join("; "));
        return Err(UsageError::new(what).hint(hint).into());
    }
    // Whether records still match what tasks are made from is checked for each record.
    let inputs = with_known_kinds(&manifest[INPUTS], &stored[INPUTS]);
    let (then, now) = (without_identity(&stored), without_identity(manifest));
    let Some(fields) = stored.as_object_mut() else { return Ok(stored) };
    fields.insert(CALIBRATION.to_owned(), calibration);
    fields.insert(INPUTS.to_owned(), inputs);
    fields.insert(IDENTITY.to_owned(), manifest[IDENTITY].clone());
    if then != now {
        let resumed = fields.entry(RESUMED).or_insert_with(|| Value::Array(Vec::new()));
        if let Some(resumed) = resumed.as_array_mut()
            && !resumed.contains(&now)
        {
            resumed.push(now);
        }
    }
    Ok(stored)
}

/// The identities of a folder's records: one, or those of a matrix.
pub fn identities(manifest: &Value) -> Vec<&Value> {
    match &manifest[IDENTITY] {
        Value::Array(several) => several.iter().collect(),
        one => vec![one],
    }
}

/// The entries of `calibration`, and those of `other` with further kinds, for each model of a matrix.
fn with_known_kinds(calibration: &Value, other: &Value) -> Value {
    let mut all = other.as_object().cloned().unwrap_or_default();
    for (key, own) in calibration.as_object().into_iter().flatten() {
        let known = all.remove(key).filter(Value::is_object);
        let own = known.map_or_else(|| own.clone(), |known| with_known_kinds(own, &known));
        all.insert(key.clone(), own);
    }
    Value::Object(all)
}

fn without_identity(manifest: &Value) -> Value {
    let own = |key: &str| ![IDENTITY, CALIBRATION, INPUTS, RESUMED].contains(&key);
    let rest = manifest.as_object().into_iter().flatten().filter(|(key, _)| own(key));
    Value::Object(rest.map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// Reads a run's folder: its records and its manifest.
///
/// # Errors
/// [`UsageError`] if a record belongs to no run of the manifest; if a file is missing or cannot be read.
pub fn load_run(dir: &Path) -> Result<(Loaded, Value)> {
    let (loaded, manifest) = (load_records(dir)?, load_manifest(dir)?);
    check_belong(dir, &loaded.records, &manifest)?;
    Ok((loaded, manifest))
}

/// Checks that every record has a model, seed and protocol of the manifest, so that lines of another run's file are noticed.
fn check_belong(dir: &Path, records: &[Record], manifest: &Value) -> Result<()> {
    let known = identities(manifest);
    let is = |identity: &Value, r: &Record| {
        identity["model"] == *r.model && identity["protocol"] == *r.protocol && identity["seed"] == r.seed
    };
    match records.iter().position(|r| !known.iter().any(|identity| is(identity, r))) {
        None => Ok(()),
        Some(at) => {
            let Record { model, protocol, seed, .. } = &records[at];
            Err(UsageError::new(format!(
                "{}: record {} is of no run in {MANIFEST}: {model}, {protocol}, seed {seed}",
                dir.join(SAMPLES).display(),
                at + 1
            ))
            .hint("keep the records of each run in a folder of its own; `spattn report` puts folders together")
            .into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::records::record::tests::record;
    use serde_json::json;

    fn manifest(seed: u64) -> Value {
        let mut identity = json!({"model": "builtin", "weights": {"hash": "ab"}, "protocol": "question", "seed": seed});
        CONTENT.iter().for_each(|key| identity[*key] = json!({}));
        json!({"identity": identity, "machine": "one"})
    }

    /// The manifest of a matrix over seeds.
    fn matrix(seeds: &[u64]) -> Value {
        let identities: Vec<Value> = seeds.iter().map(|seed| manifest(*seed)[IDENTITY].clone()).collect();
        json!({"identity": identities, "machine": "one"})
    }

    fn usage(error: anyhow::Error) -> UsageError {
        error.downcast().unwrap()
    }

    fn stored(dir: &Path, samples: usize) {
        let mut store = Store::open(dir, OpenMode::Fresh, &manifest(1)).unwrap();
        for sample in 0..samples {
            assert!(store.append(&record("vt", "full", sample, 1.0)).unwrap());
        }
    }

    #[test]
    fn a_second_fresh_run_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        stored(dir.path(), 1);
        let error = usage(Store::open(dir.path(), OpenMode::Fresh, &manifest(1)).unwrap_err());
        assert!(error.hint.unwrap().contains("--resume"));
    }

    #[test]
    fn a_run_that_recorded_nothing_leaves_its_folder_free() {
        let dir = tempfile::tempdir().unwrap();
        stored(dir.path(), 0);
        Store::open(dir.path(), OpenMode::Fresh, &manifest(2)).unwrap();
        Store::open(dir.path(), OpenMode::Resume, &manifest(3)).unwrap();
        assert_eq!(load_manifest(dir.path()).unwrap(), manifest(3));
    }

    #[test]
    fn a_torn_line_is_cut_off_and_the_rest_kept() {
        let dir = tempfile::tempdir().unwrap();
        stored(dir.path(), 3);
        let path = dir.path().join(SAMPLES);
        let len = fs::metadata(&path).unwrap().len();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(len - 9).unwrap();
        assert_eq!(load_records(dir.path()).unwrap().records.len(), 2);

        let mut store = Store::open(dir.path(), OpenMode::Resume, &manifest(1)).unwrap();
        assert_eq!(store.records().len(), 2);
        assert_eq!(store.notices().len(), 1);
        let missing = record("vt", "full", 2, 1.0);
        assert!(!store.contains(&missing.key));
        assert!(store.append(&missing).unwrap());
        assert_eq!(load_records(dir.path()).unwrap().records.len(), 3);
        assert!(load_records(dir.path()).unwrap().notices.is_empty());
    }

    #[test]
    fn a_whole_last_line_without_newline_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        stored(dir.path(), 2);
        let path = dir.path().join(SAMPLES);
        let len = fs::metadata(&path).unwrap().len();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(len - 1).unwrap();
        assert_eq!(load_records(dir.path()).unwrap().records.len(), 2);
        let mut store = Store::open(dir.path(), OpenMode::Resume, &manifest(1)).unwrap();
        assert!(store.notices().is_empty());
        store.append(&record("vt", "full", 2, 1.0)).unwrap();
        assert_eq!(load_records(dir.path()).unwrap().records.len(), 3);
    }

    #[test]
    fn a_broken_line_in_the_middle_is_an_error_with_its_number() {
        let dir = tempfile::tempdir().unwrap();
        stored(dir.path(), 2);
        let path = dir.path().join(SAMPLES);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replacen("{\"key\"", "{key", 1)).unwrap();
        assert!(usage(load_records(dir.path()).unwrap_err()).what.contains("samples.jsonl:1: not a record"));
    }

    #[test]
    fn two_writers_are_kept_apart() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), OpenMode::Fresh, &manifest(1)).unwrap();
        let error = usage(Store::open(dir.path(), OpenMode::Resume, &manifest(1)).unwrap_err());
        assert!(error.what.contains(&format!("process {}", std::process::id())), "{error}");
        drop(store);
        Store::open(dir.path(), OpenMode::Resume, &manifest(1)).unwrap();
    }

    #[test]
    fn resuming_under_other_settings_names_them() {
        let dir = tempfile::tempdir().unwrap();
        stored(dir.path(), 1);
        let mut other = manifest(2);
        other[IDENTITY]["weights"]["hash"] = json!("cd");
        other["machine"] = json!("two");
        let error = usage(Store::open(dir.path(), OpenMode::Resume, &other).unwrap_err());
        let lacking = "it has records of `--seed` 1, which is not asked for now";
        assert!(error.what.ends_with(&format!("`weights.hash` was \"ab\", is \"cd\"; {lacking}")), "{error}");
    }

    #[test]
    fn a_matrix_may_grow_but_not_change() {
        let dir = tempfile::tempdir().unwrap();
        stored(dir.path(), 1);
        let resume = |manifest: &Value| Store::open(dir.path(), OpenMode::Resume, manifest);
        resume(&matrix(&[1, 2])).unwrap();
        assert_eq!(identities(&load_manifest(dir.path()).unwrap()).len(), 2);
        for fewer in [manifest(1), matrix(&[1, 3])] {
            let error = usage(resume(&fewer).unwrap_err());
            assert!(error.what.ends_with("it has records of `--seed` 2, which is not asked for now"), "{error}");
            assert!(error.hint.unwrap().starts_with("a matrix may grow: ask for what it has as well"));
        }
        let mut other = matrix(&[1, 2]);
        other[IDENTITY][1]["weights"]["hash"] = json!("cd");
        let error = usage(resume(&other).unwrap_err());
        assert!(error.what.ends_with("`weights.hash` was \"ab\", is \"cd\""), "{error}");
        resume(&matrix(&[2, 1, 3])).unwrap();
    }

    #[test]
    fn lines_of_another_runs_file_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        stored(dir.path(), 1);
        for foreign in [
            Record { seed: 2, ..record("vt", "full", 1, 1.0) },
            Record { model: "other".into(), ..record("vt", "full", 1, 1.0) },
            Record { protocol: "decode".into(), ..record("vt", "full", 1, 1.0) },
        ] {
            let path = dir.path().join(SAMPLES);
            let own = fs::read_to_string(&path).unwrap();
            fs::write(&path, format!("{own}{}", line(&foreign).unwrap())).unwrap();
            let error = usage(Store::open(dir.path(), OpenMode::Resume, &manifest(1)).unwrap_err());
            assert!(error.what.contains("samples.jsonl: record 2 is of no run in manifest.json"), "{error}");
            assert_eq!(usage(load_run(dir.path()).unwrap_err()).what, error.what);
            fs::write(&path, own).unwrap();
        }
        Store::open(dir.path(), OpenMode::Resume, &manifest(1)).unwrap();
    }

    #[test]
    fn records_without_a_manifest_are_a_mistake_that_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        stored(dir.path(), 1);
        fs::remove_file(dir.path().join(MANIFEST)).unwrap();
        let error = usage(Store::open(dir.path(), OpenMode::Resume, &manifest(1)).unwrap_err());
        assert!(error.what.contains("cannot read") && error.what.contains(MANIFEST), "{error}");
        assert!(error.hint.unwrap().contains("give another folder"));
    }

    #[test]
    fn a_resumed_run_may_add_calibrations_but_not_change_one() {
        let dir = tempfile::tempdir().unwrap();
        stored(dir.path(), 1);
        let calibrated = |calibration: Value| {
            let mut manifest = manifest(1);
            manifest[CALIBRATION] = calibration;
            Store::open(dir.path(), OpenMode::Resume, &manifest)
        };
        calibrated(json!({ "loki": "a" })).unwrap();
        calibrated(json!({ "hash": "b" })).unwrap();
        calibrated(json!({})).unwrap();
        let error = usage(calibrated(json!({ "hash": "b", "loki": "c" })).unwrap_err());
        assert!(error.what.contains("the calibration of loki has changed since"), "{error}");
        assert_eq!(load_manifest(dir.path()).unwrap()[CALIBRATION], json!({ "loki": "a", "hash": "b" }));
    }

    #[test]
    fn what_does_not_determine_results_may_change_and_is_noted_once() {
        let dir = tempfile::tempdir().unwrap();
        stored(dir.path(), 1);
        let mut other = manifest(1);
        other["machine"] = json!("two");
        for _ in 0..2 {
            Store::open(dir.path(), OpenMode::Resume, &other).unwrap();
        }
        let kept = load_manifest(dir.path()).unwrap();
        assert_eq!((&kept["machine"], &kept[RESUMED]), (&json!("one"), &json!([{"machine": "two"}])));
    }

    #[test]
    fn overwriting_removes_what_was_drawn_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        stored(dir.path(), 2);
        owned_files::write_all(dir.path(), &[("summary.csv", "x"), ("plots/old.svg", "x")]).unwrap();
        for name in ["notes.txt", "plots/notes.txt", "plots/mine.svg"] {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        let store = Store::open(dir.path(), OpenMode::Overwrite, &manifest(2)).unwrap();
        assert!(store.records().is_empty());
        let there = |name: &str| dir.path().join(name).exists();
        assert!(["notes.txt", "plots/notes.txt", "plots/mine.svg"].iter().all(|name| there(name)));
        assert!(!there("summary.csv") && !there("plots/old.svg"));
        assert_eq!(load_records(dir.path()).unwrap().records.len(), 0);
    }

    #[test]
    fn no_mode_replaces_what_another_wrote() {
        for name in ["manifest.json", "summary.csv", "report.html", "plots/a.svg", "prompts/a.gz", LOCK] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "theirs").unwrap();
            for mode in [OpenMode::Fresh, OpenMode::Resume, OpenMode::Overwrite] {
                let error = usage(Store::open(dir.path(), mode, &manifest(1)).unwrap_err());
                assert!(error.what.contains(name) && error.hint.is_some(), "{error}");
                assert!(error.what.contains("spattn did not write it"), "{error}");
                assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
            }
        }
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(SAMPLES)).unwrap();
        for mode in [OpenMode::Fresh, OpenMode::Resume, OpenMode::Overwrite] {
            let error = usage(Store::open(dir.path(), mode, &manifest(1)).unwrap_err());
            assert!(error.what.ends_with("samples.jsonl is a folder, not a file of records"), "{error}");
        }
        assert_eq!(usage(load_records(dir.path()).unwrap_err()).what.split(' ').nth(1), Some("is"));
    }

    #[cfg(unix)]
    #[test]
    fn links_in_a_folder_from_elsewhere_are_not_written_through() {
        for name in [LOCK, OWNER, SAMPLES, MANIFEST, "summary.csv", "plots"] {
            let temp = tempfile::tempdir().unwrap();
            let (dir, theirs) = (temp.path().join("run"), temp.path().join("theirs"));
            stored(&dir, 1);
            fs::write(&theirs, "12345").unwrap();
            let _ = fs::remove_file(dir.join(name));
            std::os::unix::fs::symlink(&theirs, dir.join(name)).unwrap();
            for mode in [OpenMode::Resume, OpenMode::Overwrite] {
                let error = usage(Store::open(&dir, mode, &manifest(1)).unwrap_err());
                assert!(error.what.contains(&format!("{name}: it is a link")) && error.hint.is_some(), "{error}");
            }
            assert_eq!(fs::read_to_string(&theirs).unwrap(), "12345");
        }
    }

    #[test]
    fn records_survive_other_ends_of_lines_and_a_mark() {
        for (mark, end) in [("", "\r"), ("", "\r\n"), ("\u{feff}", "\n"), ("\u{feff}", "\r")] {
            let dir = tempfile::tempdir().unwrap();
            stored(dir.path(), 3);
            let path = dir.path().join(SAMPLES);
            let text = fs::read_to_string(&path).unwrap();
            fs::write(&path, format!("{mark}{}", text.replace('\n', end))).unwrap();
            let marked = format!("\u{feff}{}", fs::read_to_string(dir.path().join(MANIFEST)).unwrap());
            fs::write(dir.path().join(MANIFEST), marked).unwrap();
            let mut store = Store::open(dir.path(), OpenMode::Resume, &manifest(1)).unwrap();
            assert_eq!((store.records().len(), store.notices().len()), (3, 0), "{end:?}");
            assert!(store.append(&record("vt", "full", 3, 1.0)).unwrap());
            assert_eq!(load_records(dir.path()).unwrap().records.len(), 4, "{end:?}");
            // The line number in the error is the editor's.
            let text = fs::read_to_string(&path).unwrap();
            fs::write(&path, text.replacen("\"sample\":1,", "\"sample\":x,", 1)).unwrap();
            let error = usage(load_records(dir.path()).unwrap_err());
            assert!(error.what.contains("samples.jsonl:2: not a record"), "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_goes_during_a_run_is_noticed_at_the_next_record() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, moved) = (temp.path().join("run"), temp.path().join("moved"));
        let mut store = Store::open(&dir, OpenMode::Fresh, &manifest(1)).unwrap();
        assert!(store.append(&record("vt", "full", 0, 1.0)).unwrap());
        fs::rename(&dir, &moved).unwrap();
        let failure: RunFailure = store.append(&record("vt", "full", 1, 1.0)).unwrap_err().downcast().unwrap();
        assert!(failure.what.contains("was moved or removed during the run"), "{failure}");
        assert_eq!(load_records(&moved).unwrap().records.len(), 1, "and nothing more was written");
        fs::rename(&moved, &dir).unwrap();
        assert!(store.append(&record("vt", "full", 1, 1.0)).unwrap(), "it is back");
        fs::remove_file(dir.join(SAMPLES)).unwrap();
        assert!(store.place().unwrap().check().is_err());
        let failure: RunFailure = store.append(&record("vt", "full", 2, 1.0)).unwrap_err().downcast().unwrap();
        assert!(
            failure.what.contains("samples.jsonl was moved or removed") && failure.what.contains("gone"),
            "{failure}"
        );
    }

    #[test]
    fn a_file_that_is_shortened_during_a_run_is_noticed_at_the_next_record() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(SAMPLES);
        let mut store = Store::open(dir.path(), OpenMode::Fresh, &manifest(1)).unwrap();
        (0..2).for_each(|sample| assert!(store.append(&record("vt", "full", sample, 1.0)).unwrap()));
        let length = fs::metadata(&path).unwrap().len();
        for left in [length - 1, length / 2, 0] {
            OpenOptions::new().write(true).open(&path).unwrap().set_len(left).unwrap();
            let failure: RunFailure = store.append(&record("vt", "full", 2, 1.0)).unwrap_err().downcast().unwrap();
            let lost = format!(
                "samples.jsonl was shortened by another program during the run: its last {} bytes",
                length - left
            );
            assert!(failure.what.contains(&lost) && failure.hint.contains("--resume"), "{failure}");
            assert_eq!(fs::metadata(&path).unwrap().len(), left, "nothing more was written");
        }
    }

    #[test]
    fn a_folder_that_is_refused_is_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        stored(dir.path(), 1);
        let open = |mode, seed| Store::open(dir.path(), mode, &manifest(seed));
        let has_lock = || dir.path().join(LOCK).exists();
        assert!(open(OpenMode::Resume, 2).is_err() && has_lock(), "it was there before");
        fs::remove_file(dir.path().join(LOCK)).unwrap();
        assert!(open(OpenMode::Resume, 2).is_err() && !has_lock());
        assert!(open(OpenMode::Fresh, 1).is_err() && !has_lock());
        let refused = |_: &Value, _: &mut Loaded| Err(UsageError::new("no").into());
        assert!(Store::open_checked(dir.path(), OpenMode::Resume, &manifest(1), refused).is_err() && !has_lock());
        let held = open(OpenMode::Resume, 1).unwrap();
        assert!(open(OpenMode::Resume, 1).is_err() && has_lock(), "another's lock stays");
        drop(held);
    }

    #[test]
    fn lines_of_one_key_that_differ_are_told_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        stored(dir.path(), 2);
        let path = dir.path().join(SAMPLES);
        let own = fs::read_to_string(&path).unwrap();
        let said = |record: &Record| {
            fs::write(&path, format!("{own}{}", line(record).unwrap())).unwrap();
            let Loaded { records, notices } = load_records(dir.path()).unwrap();
            assert_eq!((records.len(), notices.len()), (2, 1));
            notices[0].clone()
        };
        let same = record("vt", "full", 1, 1.0);
        assert!(said(&same).ends_with("1 records repeat a key; the first of each key counts"));
        let told = said(&Record { score: 0.25, ..same.clone() });
        assert!(told.contains(
            "1 of them have another score or answer than the first: vt, sample 1, method full has 1 and 0.25"
        ));
        assert!(told.contains(&format!("delete the lines that are wrong (key {})", same.key)), "{told}");
        assert!(said(&Record { prediction: "x".into(), ..same }).contains("another score or answer"));
    }

    #[test]
    fn the_first_record_of_a_key_counts() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(dir.path(), OpenMode::Fresh, &manifest(1)).unwrap();
        let first = record("vt", "full", 0, 1.0);
        assert!(store.append(&first).unwrap());
        assert!(!store.append(&Record { score: 0.0, ..first.clone() }).unwrap());
        let path = dir.path().join(SAMPLES);
        let twice = fs::read_to_string(&path).unwrap().repeat(2);
        fs::write(&path, twice).unwrap();
        let loaded = load_records(dir.path()).unwrap();
        assert_eq!((loaded.records, loaded.notices.len()), (vec![first], 1));
    }

    #[test]
    fn records_that_are_equal_in_what_is_told_are_dropped_after_the_first() {
        let of = |key: &str, model: &str, sample| Record {
            key: key.into(),
            model: model.into(),
            ..record("vt", "full", sample, 1.0)
        };
        let all = || vec![of("a", "x", 0), of("b", "x", 1), of("a", "y", 2), of("a", "x", 3), of("b", "x", 4)];
        let left = |told: fn(&Record) -> [&str; 3]| {
            let mut records = all();
            let dropped = drop_repeated(&mut records, told);
            (records.iter().map(|r| r.sample).collect::<Vec<_>>(), dropped.len())
        };
        assert_eq!(left(|r| [&r.key, "", ""]), (vec![0, 1], 3));
        assert_eq!(left(|r| [&r.key, &r.model, ""]), (vec![0, 1, 2], 2));
        assert_eq!(left(|_| [""; 3]).1, 4);
    }

    #[test]
    fn what_cannot_be_a_record_is_named_by_its_line() {
        let dir = tempfile::tempdir().unwrap();
        stored(dir.path(), 1);
        let path = dir.path().join(SAMPLES);
        let own = fs::read_to_string(&path).unwrap();
        let wrong = serde_json::to_string(&Record { score: 7.0, ..record("vt", "full", 1, 1.0) }).unwrap();
        // Empty lines count, and so does a last line without its ending.
        for (text, at) in [
            (format!("{{}}\n{own}"), 1),
            (format!("{own}\n{{}}\n"), 3),
            (format!("{own}{wrong}\n{own}"), 2),
            (format!("{own}\n\n{wrong}"), 4),
        ] {
            fs::write(&path, text).unwrap();
            let error = usage(load_records(dir.path()).unwrap_err());
            assert!(error.what.contains(&format!("{SAMPLES}:{at}: not a record: ")), "{error}");
        }
    }

    #[test]
    fn a_last_record_without_its_newline_is_read_and_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        stored(dir.path(), 2);
        let path = dir.path().join(SAMPLES);
        let own = fs::read_to_string(&path).unwrap();
        let first = own.lines().next().unwrap();
        for (text, repeated) in [(own.trim_end().to_owned(), None), (format!("{own}{first}"), Some("1 records repeat"))]
        {
            fs::write(&path, text).unwrap();
            let Loaded { records, notices } = load_records(dir.path()).unwrap();
            assert_eq!(records.iter().map(|r| r.sample).collect::<Vec<_>>(), [0, 1]);
            assert_eq!(notices.len(), usize::from(repeated.is_some()), "{notices:?}");
            assert!(notices.iter().all(|notice| notice.contains(repeated.unwrap())), "{notices:?}");
        }
    }

    #[test]
    fn numbers_that_json_cannot_hold_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(dir.path(), OpenMode::Fresh, &manifest(1)).unwrap();
        let error = store.append(&Record { cost1: f64::NAN, ..record("vt", "full", 0, 1.0) }).unwrap_err();
        assert!(error.to_string().contains("sample 0"), "{error}");
        assert!(load_records(dir.path()).unwrap().records.is_empty());
    }

    #[test]
    fn a_full_disk_is_one_line() {
        let full = Path::new("/dev/full");
        let Ok(file) = OpenOptions::new().write(true).open(full) else {
            return eprintln!("SKIPPED: there is no /dev/full here");
        };
        let mut samples = Samples { path: full.to_owned(), file, whole: 0 };
        let error = format!("{:#}", samples.append("{}\n").unwrap_err());
        assert!(error.starts_with("cannot write /dev/full: ") && !error.contains('\n'), "{error}");
    }

    #[test]
    fn what_is_known_to_be_whole_is_all_that_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let whole =
            |store: &Store| assert_eq!(store.samples.whole, fs::metadata(dir.path().join(SAMPLES)).unwrap().len());
        let mut store = Store::open(dir.path(), OpenMode::Fresh, &manifest(1)).unwrap();
        for sample in 0..3 {
            whole(&store);
            assert!(store.append(&record("vt", "full", sample, 1.0)).unwrap());
        }
        whole(&store);
        drop(store);
        whole(&Store::open(dir.path(), OpenMode::Resume, &manifest(1)).unwrap());
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_found_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        // A file in place of the folder fails for the superuser too, unlike a read-only folder.
        let error = usage(Store::open(&file.join("run"), OpenMode::Fresh, &manifest(1)).unwrap_err());
        assert!(error.what.starts_with("cannot write to the folder"), "{error}");
        let error = usage(Store::open(&file, OpenMode::Overwrite, &manifest(1)).unwrap_err());
        assert!(error.what.ends_with("is a file, not a folder") && error.hint.is_some(), "{error}");
    }
}

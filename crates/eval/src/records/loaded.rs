//! Reads a file of records, one in each line. Repeated records and an incomplete last line are left out, with a notice.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result};
use rayon::prelude::*;

use super::lines::{is_torn, read_line, said};
use super::record::{Record, RecordInterner};
use spattn_base::disk::no_lfs_pointer;
use spattn_base::error::{UsageError, in_plain_words};

/// The name of the file of records within a run's folder.
pub const SAMPLES: &str = "samples.jsonl";

/// Records read from a folder, and notices about what was wrong.
#[derive(Debug, Default, PartialEq)]
pub struct LoadedRecords {
    /// The records, one for each key, in the order of the file.
    pub records: Vec<Record>,
    /// What was repaired or left out, one readable line for each.
    pub notices: Vec<String>,
}

/// Reads the records of a folder. A run may still be adding to it: an incomplete last line is left out.
///
/// # Errors
/// If the folder has no records file, or a line other than the last cannot be read.
pub fn load_records(dir: &Path) -> Result<LoadedRecords> {
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

/// Reads the records of a file. `notices` are those of earlier steps.
pub(super) fn read_records(path: &Path, mut notices: Vec<String>) -> Result<LoadedRecords> {
    let failed = || format!("cannot read {}", path.display());
    let (mut records, mut shared) = (Vec::new(), RecordInterner::default());
    // Line by line, because there may be millions of records, and they are smaller in memory than as text.
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
                notices.push(format!("{}: ignored an incomplete last line of {} bytes", path.display(), line.len()));
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
    Ok(LoadedRecords { records, notices })
}

/// The notice about records that repeat the key of an earlier one. It says more if some of them have other content.
fn repetition(path: &Path, records: &[Record], repeated: &[Record]) -> Option<String> {
    if repeated.is_empty() {
        return None;
    }
    let others = differing(records, repeated, by_key_and_example);
    let said = format!("{}: {} records repeat a key; the first of each key counts", path.display(), repeated.len());
    match others.first() {
        None => Some(said),
        Some((first, Record { task, sample, method, key, score, .. })) => Some(format!(
            "{said}, but {} of them differ from the first in score or answer: {task}, sample {sample}, method {method} has {} \
             and {score}; delete the lines that are wrong (key {key}), or all of them and run the folder again with --resume",
            others.len(),
            first.score
        )),
    }
}

fn by_key_and_example(r: &Record) -> [&str; 3] {
    [&r.key, r.example_sha256.as_deref().map_or("", String::as_str), ""]
}

/// The records that were [left out](drop_repeated) and differ in score or answer from the one that was kept, as pairs of kept
/// and left out.
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

/// Keeps the first of the records for which `of` returns the same texts. Returns the others.
pub fn drop_repeated(records: &mut Vec<Record>, of: fn(&Record) -> [&str; 3]) -> Vec<Record> {
    // Most keys occur once. Hashes, which are smaller than keys, tell which may occur several times.
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
        .hint("delete that line; the command that made the run, with `--resume`, then runs its example again")
        .into()
}

pub(super) fn no_file(samples: &Path) -> UsageError {
    UsageError::new(format!("{} is a folder, not a file of records", samples.display()))
        .hint("move it away, or give another folder")
}

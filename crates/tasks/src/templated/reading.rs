//! Reads all rows of a task's files: JSON lines, JSON documents, Parquet tables, and MMLU's CSV tables.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Map, Value};

use super::hub::Hub;
use crate::rows::{Malformed, RowSource, Rows};
use spattn_base::disk::{no_lfs_pointer, no_lfs_pointer_at};
use spattn_base::error::UsageError;
use spattn_base::given;

/// The items made of the rows of several files.
pub(super) struct RowItems<T> {
    /// One item for each usable row: the first row of every file, then the second of every file, and so on.
    pub items: Vec<T>,
    /// For each item, the index of its file.
    files: Vec<usize>,
    /// Notes on malformed rows that were left out, one for each file that has any.
    pub notes: Vec<String>,
}

impl<T> RowItems<T> {
    /// The items with their indices in the published order: all rows of the first file, then all of the second, and so on.
    pub fn in_published_order(self) -> Vec<(usize, T)> {
        let mut by_file: Vec<usize> = (0..self.files.len()).collect();
        by_file.sort_by_key(|item| self.files[*item]);
        let mut places = vec![0; by_file.len()];
        by_file.iter().enumerate().for_each(|(place, item)| places[*item] = place);
        places.into_iter().zip(self.items).collect()
    }
}

/// Makes an item of every row of several files: JSON lines, JSON documents, Parquet tables, or MMLU's CSV tables. If a file has a file
/// of labels beside it (`valid-labels.lst` for `valid.jsonl`), they become the field `label` of its rows. `hub` is for hints.
///
/// # Errors
/// A [`UsageError`] if a file cannot be read or has no usable row, or if `skip_bad` is false and a row is malformed or `make` fails on
/// it.
pub(super) fn make_all<T>(
    files: &[PathBuf],
    skip_bad: bool,
    hub: &Hub,
    make: impl Fn(Map<String, Value>, &Path) -> Result<T>,
) -> Result<RowItems<T>> {
    let (mut items, mut notes) = (Vec::new(), Vec::new());
    for (file, path) in files.iter().enumerate() {
        let is_table = path.extension().is_some_and(|e| e == "csv");
        let read = if is_table { of_table(path, skip_bad, &make) } else { of_lines(path, skip_bad, &make) };
        let (of_file, note) = read.map_err(|e| match e.downcast() {
            Ok(UsageError { what, hint }) => {
                let hints: Vec<String> = hint.into_iter().chain([hub.fields()]).collect();
                UsageError::new(what).hint(hints.join("; ")).into()
            }
            Err(other) => other,
        })?;
        items.extend(of_file.into_iter().map(|(number, item)| (number, file, item)));
        notes.extend(note);
    }
    items.sort_by_key(|(number, file, _)| (*number, *file));
    let (files, items) = items.into_iter().map(|(_, file, item)| (file, item)).unzip();
    Ok(RowItems { items, files, notes })
}

/// The items of a file, each with the number of its row, and the note on rows that were left out.
type OfFile<T> = (Vec<(usize, T)>, Option<String>);

fn of_lines<T>(
    path: &Path,
    skip_bad: bool,
    make: &impl Fn(Map<String, Value>, &Path) -> Result<T>,
) -> Result<OfFile<T>> {
    let labels = labels(path)?;
    let mut items = Vec::new();
    let is_document = path.extension().is_some_and(|ending| ending == "json");
    let source = if is_document { RowSource::document(path)? } else { RowSource::open(path)? };
    let rows = Rows::open(source, skip_bad, |row| {
        let mut fields = row.fields.clone();
        if let Some(labels) = &labels {
            let label =
                labels.get(row.number - 1).ok_or_else(|| row.wrong("the file of labels has no label for it"))?;
            fields.insert("label".to_owned(), label.as_str().into());
        }
        items.push((row.number, make(fields, path).map_err(|e| row.wrong(format!("{e:#}")))?));
        Ok(true)
    })?;
    Ok((items, rows.note()))
}

/// The labels of a file's rows, if there is a file of labels.
fn labels(path: &Path) -> Result<Option<Vec<String>>, UsageError> {
    let labels = path.with_file_name(format!("{}-labels.lst", path.file_stem().unwrap_or_default().to_string_lossy()));
    if !labels.is_file() {
        return Ok(None);
    }
    let (rows, labelled) = (lines(path)?.len(), lines(&labels)?);
    let labelled: Vec<String> = labelled.iter().map(|line| line.trim().to_owned()).collect();
    if labelled.len() != rows {
        let what = format!("{} has {} labels for {rows} rows", labels.display(), labelled.len());
        return Err(UsageError::new(what));
    }
    Ok(Some(labelled))
}

/// The lines of a file. Bytes that are not UTF-8 are replaced here; reading the rows reports them.
fn lines(path: &Path) -> Result<Vec<String>, UsageError> {
    let bytes = given::bytes(path, given::MOST_OF_TEXT)
        .map_err(|e| UsageError::new(format!("cannot read {}: {e}", path.display())))?;
    no_lfs_pointer(path.display(), &bytes)?;
    Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
}

/// Reads a table of MMLU: question, four choices, and the answer as letter or number; with or without a header line.
fn of_table<T>(
    path: &Path,
    skip_bad: bool,
    make: &impl Fn(Map<String, Value>, &Path) -> Result<T>,
) -> Result<OfFile<T>> {
    no_lfs_pointer_at(path)?;
    given::no_packed_at(path)?;
    let unreadable = |e: csv::Error| UsageError::new(format!("cannot read {}: {e}", path.display()));
    let file = given::open(path).map_err(|e| UsageError::new(format!("cannot read {}: {e}", path.display())))?;
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(file);
    let (mut items, mut malformed) = (Vec::new(), Malformed::none(path.display().to_string(), "line"));
    for (number, record) in reader.byte_records().enumerate() {
        let record = record.map_err(unreadable)?;
        if number == 0 && record.get(0) == Some(b"question") && record.get(5) == Some(b"answer") {
            continue;
        }
        match table_row(&record).and_then(|row| make(row, path)) {
            Ok(item) => items.push((number + 1, item)),
            Err(e) => {
                let line = record.position().map_or(0, |p| p.line() as usize);
                malformed.push(line, UsageError::new(format!("{}:{line}: {e:#}", path.display())));
            }
        }
    }
    malformed.judge(items.len(), skip_bad)?;
    Ok((items, malformed.note()))
}

fn table_row(record: &csv::ByteRecord) -> Result<Map<String, Value>> {
    let record = csv::StringRecord::from_byte_record(record.clone()).map_err(|e| anyhow::anyhow!("not UTF-8: {e}"))?;
    anyhow::ensure!(record.len() == 6, "a row has {} columns, not question, four choices and answer", record.len());
    let choices: Vec<Value> = (1..5).map(|i| record[i].into()).collect();
    // The right choice, by its letter or its index.
    let answer = record[5].trim().parse::<u64>().map_or_else(|_| record[5].into(), Value::from);
    let row = [("question", record[0].into()), ("choices", choices.into()), ("answer", answer)];
    Ok(row.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// The subject of a row: its field `subject`. If absent, it is set to the name of the file without the split.
pub(super) fn subject_of(row: &mut Map<String, Value>, path: &Path) -> String {
    let stem = path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
    let subject = ["_test", "_dev", "_val"].iter().find_map(|split| stem.strip_suffix(split)).unwrap_or(&stem);
    row.entry("subject").or_insert_with(|| subject.into()).as_str().unwrap_or(subject).to_owned()
}

/// Reorders items: the first of every subject, then the second of every subject, and so on.
pub(super) fn alternating<T>(items: Vec<T>, subject: impl Fn(&T) -> &str) -> Vec<T> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut rank = |item: &T| {
        let rank = seen.entry(subject(item).to_owned()).or_default();
        *rank += 1;
        *rank
    };
    let mut ranked: Vec<(usize, T)> = items.into_iter().map(|item| (rank(&item), item)).collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, item)| item).collect()
}

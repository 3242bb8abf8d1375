//! Files with one JSON object a line: opened and checked once, then read one row at a time.
//!
//! A row that cannot be used is never left out silently: opening fails with the line of the first and the number of
//! all, or, where the user asked to go on without them (`--skip-bad`), [`Rows::note`] tells how many and where.
//! The file may lie in a zip archive, as LongBench's and WinoGrande's are published, or be a table in Parquet, as most
//! data sets on the Hugging Face hub are, or a JSON document with a list of rows, as CoQA's is: its rows are then taken
//! for lines.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use serde::Deserializer;
use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use zip::result::ZipError;

use super::table::{self, LONGEST_LINE, TooLarge};
pub use super::values::text_or_number;
use super::{answers, digest};
use spattn_base::disk::{no_lfs_pointer, no_lfs_pointer_at};
use spattn_base::error::UsageError;
use spattn_base::foreign::contain;
use spattn_base::given::{self, Given, MARK};

const FILE_HINT: &str = "a prepared file has one JSON object a line";
const CR_HINT: &str = "`tr '\\r' '\\n'` writes lines that end in LF";
const ARCHIVE_HINT: &str = "it is damaged or not the published archive; `spattn data check` compares it";
const DOCUMENT_HINT: &str =
    "a JSON document is expected: a list of rows, or an object with the rows as its list `data`";
const TABLE_HINT: &str = "a table in Parquet is expected, uncompressed or compressed by Snappy";
const LARGE_HINT: &str =
    "a table is held as JSON in memory; JSON lines are read one at a time, and larger ones can be given";
const SKIP_HINT: &str = "--skip-bad goes on without malformed rows";
/// Malformed rows whose places a message names at most.
const PLACES_NAMED: usize = 10;
/// Bytes of a JSON document that is read as a whole.
const MOST_OF_DOCUMENT: u64 = 4 << 30;
/// Empty lines in a row: behind more, no row is looked for.
const MOST_EMPTY: usize = 1_000_000;
/// Malformed rows that are remembered: a file with more is no file of rows.
const MOST_MALFORMED: usize = 100_000;
/// Bytes that a file in an archive may unpack to.
const MOST_UNPACKED: u64 = 16 << 30;

/// Where rows are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowSource {
    /// A file.
    File(PathBuf),
    /// A member of a zip archive.
    Zipped {
        /// The archive.
        archive: PathBuf,
        /// The member's name in it.
        member: String,
    },
    /// A table in Parquet, or a JSON document.
    Table {
        /// The file.
        path: PathBuf,
        /// Its rows as JSON, one a line.
        lines: Arc<Vec<u8>>,
    },
}

impl RowSource {
    /// A file of lines, or of a table by its ending, `.parquet`; a path that goes on below a zip archive,
    /// `data.zip/folder/rows.jsonl`, names a file in it.
    ///
    /// # Errors
    /// [`UsageError`] if a table or an archive cannot be read, or the archive has no such file.
    pub fn open(path: &Path) -> Result<Self, UsageError> {
        if let Some((archive, member)) = member_of(path) {
            read_member(&archive, &member, |_| Ok::<_, UsageError>(()))?;
            return Ok(Self::Zipped { archive, member });
        }
        if path.extension().is_none_or(|ending| ending != "parquet") {
            return Ok(Self::File(path.to_owned()));
        }
        no_lfs_pointer_at(path)?;
        let lines = contain(|| table::lines(path)).map_err(anyhow::Error::from).flatten().map_err(|e| {
            let hint = if e.is::<TooLarge>() { LARGE_HINT } else { TABLE_HINT };
            UsageError::new(format!("cannot read {}: {e:#}", path.display())).hint(hint)
        })?;
        Ok(Self::Table { path: path.to_owned(), lines: Arc::new(lines) })
    }

    /// The rows of a JSON document that is a list of them; or those that it has as its list `data`, with the fields that
    /// tables of the hub have: there, a list of objects is an object of lists.
    ///
    /// # Errors
    /// [`UsageError`] if it is no such document.
    pub fn document(path: &Path) -> Result<Self, UsageError> {
        no_lfs_pointer_at(path)?;
        given::no_packed_at(path)?;
        let lines = document_lines(path)
            .map_err(|e| UsageError::new(format!("cannot read {}: {e:#}", path.display())).hint(DOCUMENT_HINT))?;
        Ok(Self::Table { path: path.to_owned(), lines: Arc::new(lines) })
    }

    /// `member` of `archive`, if both are there.
    ///
    /// # Errors
    /// [`UsageError`] if the archive is there but cannot be read.
    pub fn zipped(archive: &Path, member: &str) -> Result<Option<Self>, UsageError> {
        if !archive.is_file() || open_archive(archive)?.index_for_name(member).is_none() {
            return Ok(None);
        }
        read_member(archive, member, |_| Ok::<_, UsageError>(()))?;
        Ok(Some(Self::Zipped { archive: archive.to_owned(), member: member.to_owned() }))
    }

    /// How messages name it.
    pub fn label(&self) -> String {
        match self {
            Self::File(path) | Self::Table { path, .. } => path.display().to_string(),
            Self::Zipped { archive, member } => format!("{}/{member}", archive.display()),
        }
    }

    /// The name of the file alone, without folders.
    pub fn file_name(&self) -> String {
        let path = match self {
            Self::File(path) | Self::Table { path, .. } => path.as_path(),
            Self::Zipped { member, .. } => Path::new(member),
        };
        path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
    }

    /// Calls `with` with a reader that starts at `offset`.
    fn read_from<T>(&self, offset: u64, with: impl FnOnce(&mut dyn BufRead) -> Result<T>) -> Result<T> {
        let context = || format!("cannot read {}", self.label());
        match self {
            Self::File(path) => {
                let mut reader = BufReader::new(given::open(path).with_context(context)?);
                reader.seek(SeekFrom::Start(offset)).with_context(context)?;
                with(&mut reader)
            }
            Self::Zipped { archive, member } => read_member(archive, member, |packed| {
                let mut reader = BufReader::new(packed);
                // An archive's member is only to be had from its beginning.
                io::copy(&mut reader.by_ref().take(offset), &mut io::sink()).with_context(context)?;
                with(&mut reader)
            }),
            Self::Table { lines, .. } => with(&mut lines.get(offset as usize..).unwrap_or_default()),
        }
    }
}

/// The archive that a path goes through and the member's name in it: `squad.zip` and `dev/rows.jsonl` of
/// `squad.zip/dev/rows.jsonl`. `None` if the path leads through no file that is named `.zip`.
pub(super) fn member_of(path: &Path) -> Option<(PathBuf, String)> {
    let is_archive = |path: &&Path| path.extension().is_some_and(|ending| ending == "zip") && path.is_file();
    let archive = path.ancestors().skip(1).find(is_archive)?;
    let parts: Vec<&str> = path.strip_prefix(archive).ok()?.iter().map(|part| part.to_str()).collect::<Option<_>>()?;
    Some((archive.to_owned(), parts.join("/")))
}

/// Calls `with` with the unpacked bytes of a member of a zip archive.
///
/// # Errors
/// [`UsageError`] if the archive cannot be read or has no such member; those of `with`.
pub(super) fn read_member<T, E: From<UsageError>>(
    archive: &Path,
    member: &str,
    with: impl FnOnce(&mut dyn Read) -> Result<T, E>,
) -> Result<T, E> {
    let mut zip = open_archive(archive)?;
    let mut reader = zip.by_name(member).map_err(|e| match e {
        ZipError::FileNotFound => unreadable(archive, &format!("there is no {member} in it")),
        other => unreadable(archive, &other),
    })?;
    with(&mut reader)
}

fn open_archive(archive: &Path) -> Result<zip::ZipArchive<BufReader<File>>, UsageError> {
    no_lfs_pointer_at(archive)?;
    let file = BufReader::new(given::plain(archive).map_err(|e| unreadable(archive, &e))?);
    zip::ZipArchive::new(file).map_err(|e| unreadable(archive, &e))
}

fn unreadable(archive: &Path, e: &dyn std::fmt::Display) -> UsageError {
    UsageError::new(format!("cannot read {}: {e}", archive.display())).hint(ARCHIVE_HINT)
}

/// The rows of a JSON document as lines.
fn document_lines(path: &Path) -> Result<Vec<u8>> {
    if first_byte(path)? == Some(b'[') {
        return list_lines(path);
    }
    let bytes = given::bytes(path, MOST_OF_DOCUMENT)?;
    let mut document: Value = serde_json::from_slice(bytes.strip_prefix(MARK).unwrap_or(&bytes))?;
    let Some(Value::Array(rows)) = document.get_mut("data").map(Value::take) else {
        anyhow::bail!("it has no list `data`");
    };
    let mut lines = Vec::new();
    for row in rows {
        serde_json::to_writer(&mut lines, &in_lists(row))?;
        lines.write_all(b"\n")?;
    }
    Ok(lines)
}

/// A reader of a document behind the mark that it may begin with.
fn behind_mark(path: &Path) -> io::Result<BufReader<Given>> {
    let mut reader = BufReader::new(given::open(path)?);
    if reader.fill_buf()?.starts_with(MARK) {
        reader.consume(MARK.len());
    }
    Ok(reader)
}

fn first_byte(path: &Path) -> io::Result<Option<u8>> {
    behind_mark(path)?.bytes().find(|byte| byte.as_ref().map_or(true, |byte| !byte.is_ascii_whitespace())).transpose()
}

/// The rows of a list, each of which is made a line as soon as it is read: lists may have gigabytes.
fn list_lines(path: &Path) -> Result<Vec<u8>> {
    struct Lines;
    impl<'de> Visitor<'de> for Lines {
        type Value = Vec<u8>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list of rows")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<Vec<u8>, A::Error> {
            let mut lines = Vec::new();
            while let Some(row) = rows.next_element::<Value>()? {
                serde_json::to_writer(&mut lines, &row).map_err(A::Error::custom)?;
                lines.push(b'\n');
            }
            Ok(lines)
        }
    }
    let mut document = serde_json::Deserializer::from_reader(behind_mark(path)?);
    let lines = document.deserialize_seq(Lines)?;
    document.end()?;
    Ok(lines)
}

/// A value with every list of objects as an object of lists, `null` where an object lacks a field.
fn in_lists(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, in_lists(value))).collect(),
        Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_object) => {
            let mut lists = Map::new();
            for (at, item) in items.iter().enumerate() {
                for (name, value) in item.as_object().into_iter().flatten() {
                    let list = lists.entry(name).or_insert_with(|| vec![Value::Null; items.len()].into());
                    list[at] = value.clone();
                }
            }
            Value::Object(lists)
        }
        other => other,
    }
}

/// A row and its place for messages, `FILE:LINE`.
pub struct Row {
    /// Its fields.
    pub fields: Map<String, Value>,
    /// File and line number.
    pub place: String,
    /// Line number from 1.
    pub number: usize,
}

impl Row {
    /// The text of a field; `None` if it is absent or null.
    ///
    /// # Errors
    /// If it is something else.
    pub fn text(&self, name: &str) -> Result<Option<&str>, UsageError> {
        match self.fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(format!("the field `{name}` is not text"))),
        }
    }

    /// The text of a field that has to be there.
    ///
    /// # Errors
    /// If it is not, or is no text.
    pub fn required(&self, name: &str) -> Result<&str, UsageError> {
        self.text(name)?.ok_or_else(|| self.absent(name))
    }

    /// The error for a field that has to be there, and is not or holds nothing.
    pub fn absent(&self, name: &str) -> UsageError {
        let how = if self.fields.contains_key(name) { "null" } else { "missing" };
        self.wrong(format!("the field `{name}` is {how}"))
    }

    /// A list of texts or numbers that is not empty.
    ///
    /// # Errors
    /// If it is missing or anything else.
    pub fn list(&self, name: &str) -> Result<Vec<String>, UsageError> {
        let wrong = |what: &str| self.wrong(format!("the field `{name}` {what}"));
        let value = self.fields.get(name).filter(|value| !value.is_null()).ok_or_else(|| self.absent(name))?;
        let list = value.as_array().ok_or_else(|| wrong("is not a list"))?;
        let texts: Option<Vec<String>> = list.iter().map(text_or_number).collect();
        match texts {
            Some(texts) if !texts.is_empty() => Ok(texts),
            Some(_) => Err(wrong("is empty")),
            None => Err(wrong("holds something other than texts and numbers")),
        }
    }

    /// The acceptable answers, in `answer` or `answers`: one text, or a list of texts or numbers.
    ///
    /// # Errors
    /// If there is none, or it is something else, such as a list in a text.
    pub fn answers(&self) -> Result<Vec<String>, UsageError> {
        let is_said = |name: &str| self.fields.get(name).is_some_and(|value| !value.is_null());
        let name = match is_said("answer") || (self.fields.contains_key("answer") && !is_said("answers")) {
            true => "answer",
            false => "answers",
        };
        match self.text(name) {
            Ok(Some(one)) => answers::check_one(one).map(|()| vec![one.to_owned()]).map_err(|e| self.at(e)),
            _ => self.list(name),
        }
    }

    /// The same error, at this row.
    pub fn at(&self, error: UsageError) -> UsageError {
        UsageError { hint: error.hint, ..self.wrong(error.what) }
    }

    /// An error at this row.
    pub fn wrong(&self, what: impl std::fmt::Display) -> UsageError {
        UsageError::new(format!("{}: {what}", self.place))
    }
}

/// The rows of a file that cannot be used, of whatever format: what is said of them, and whether that ends the run.
#[derive(Debug)]
pub(super) struct Malformed {
    /// The file, as messages name it.
    file: String,
    /// What a row is counted by: `line`, or `row` where a row is no line.
    unit: &'static str,
    bad: Vec<Bad>,
}

#[derive(Debug)]
struct Bad {
    number: usize,
    error: UsageError,
}

impl Malformed {
    /// Of a file, none so far.
    pub fn none(file: String, unit: &'static str) -> Self {
        Self { file, unit, bad: Vec::new() }
    }

    /// One more, at the line or row `number`, from 1.
    pub fn push(&mut self, number: usize, error: UsageError) {
        self.bad.push(Bad { number, error });
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.bad.is_empty()
    }

    /// Whether what is left will do: `usable` rows.
    ///
    /// # Errors
    /// If there is no usable row, and, unless `skip_bad`, if any is malformed: the first, and where the others are.
    pub fn judge(&self, usable: usize, skip_bad: bool) -> Result<(), UsageError> {
        match self.bad.as_slice() {
            [] if usable == 0 => Err(UsageError::new(format!("{}: there is no row in it", self.file)).hint(FILE_HINT)),
            [first, more @ ..] if usable == 0 || !skip_bad => {
                let mut error = first.error.clone();
                if !more.is_empty() {
                    let (others, all) = (more.len(), usable + self.bad.len());
                    let are = if others == 1 { "is" } else { "are" };
                    error.what += &format!("; {others} more of {all} rows {are} malformed ({})", self.places(more));
                }
                let hints = error.hint.take().into_iter().chain((usable > 0).then(|| SKIP_HINT.to_owned()));
                error.hint = Some(hints.collect::<Vec<_>>().join("; ")).filter(|h| !h.is_empty());
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// What was left out, in one line; `None` if nothing was.
    pub fn note(&self) -> Option<String> {
        let first = self.bad.first()?;
        let rows = match self.bad.len() {
            1 => "1 malformed row is".to_owned(),
            count => format!("{count} malformed rows are"),
        };
        Some(format!("{}: {rows} left out ({}); the first: {}", self.file, self.places(&self.bad), first.error))
    }

    /// `line 3`, or `lines 3, 5, 8 ...`.
    fn places(&self, bad: &[Bad]) -> String {
        let named: Vec<String> = bad.iter().take(PLACES_NAMED).map(|b| b.number.to_string()).collect();
        let more = if bad.len() > PLACES_NAMED { " ..." } else { "" };
        format!("{}{} {}{more}", self.unit, if bad.len() == 1 { "" } else { "s" }, named.join(", "))
    }
}

/// The usable rows of a file.
#[derive(Debug)]
pub struct Rows {
    source: RowSource,
    /// Where each row starts, and its line number from 1; blank lines are no rows.
    starts: Vec<(u64, usize)>,
    malformed: Malformed,
    digest: String,
}

impl Rows {
    /// Opens a file and gives every row to `check`, which says whether it is wanted.
    ///
    /// # Errors
    /// A [`UsageError`] if the file cannot be read or has no usable row at all, and, unless `skip_bad`, if any row is
    /// malformed or `check` fails on it.
    pub fn open(
        source: RowSource,
        skip_bad: bool,
        mut check: impl FnMut(&Row) -> Result<bool, UsageError>,
    ) -> Result<Self> {
        let malformed = Malformed::none(source.label(), "line");
        let mut rows = Self { source: source.clone(), starts: Vec::new(), malformed, digest: String::new() };
        let (mut usable, mut hash) = (0, Sha256::new());
        source.read_from(0, |reader| {
            let (mut at, mut number, mut empty, mut line) = (0, 0, 0, Vec::new());
            loop {
                line.clear();
                let read = reader
                    .take(LONGEST_LINE + 1)
                    .read_until(b'\n', &mut line)
                    .map_err(|e| UsageError::new(format!("cannot read {}: {e}", source.label())))?;
                if read == 0 {
                    return Ok(());
                }
                number += 1;
                if number == 1 {
                    no_lfs_pointer(source.label(), &line)?;
                    given::no_packed(&source.label(), &line)?;
                }
                hash.update(&line);
                if read as u64 > LONGEST_LINE {
                    let what = format!("{}:{number}: longer than {} MiB", source.label(), LONGEST_LINE >> 20);
                    return Err(UsageError::new(what).hint(FILE_HINT).into());
                }
                if line.trim_ascii().is_empty() {
                    empty += 1;
                } else {
                    empty = 0;
                    match rows.parse(&line, number).and_then(|row| check(&row)) {
                        Ok(wanted) => {
                            usable += 1;
                            rows.starts.extend(wanted.then_some((at, number)));
                        }
                        Err(error) => rows.malformed.push(number, error),
                    }
                }
                at += read as u64;
                let is_zipped = matches!(source, RowSource::Zipped { .. });
                let too_much = match () {
                    () if empty > MOST_EMPTY => format!("more than {MOST_EMPTY} empty lines"),
                    () if rows.malformed.bad.len() > MOST_MALFORMED => {
                        format!("more than {MOST_MALFORMED} malformed rows")
                    }
                    () if is_zipped && at > MOST_UNPACKED => {
                        format!("longer than {} GiB unpacked", MOST_UNPACKED >> 30)
                    }
                    () => continue,
                };
                return Err(UsageError::new(format!("{}: {too_much}", source.label())).hint(FILE_HINT).into());
            }
        })?;
        rows.malformed.judge(usable, skip_bad)?;
        rows.digest = digest::hex(hash);
        Ok(rows)
    }

    /// Number of rows that are wanted.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether no row is wanted.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Digest of the whole file, malformed rows included.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Where they are.
    pub fn source(&self) -> &RowSource {
        &self.source
    }

    /// What was left out, in one line.
    pub fn note(&self) -> Option<String> {
        self.malformed.note()
    }

    /// Where the row at `index` among the wanted stands: `FILE:LINE`.
    pub fn place(&self, index: usize) -> Option<String> {
        self.starts.get(index).map(|(_, number)| format!("{}:{number}", self.source.label()))
    }

    /// The row at `index` among the wanted.
    ///
    /// # Errors
    /// If there is none, or the file has changed or gone meanwhile.
    pub fn read(&self, index: usize) -> Result<Row> {
        let &(start, number) = self.starts.get(index).ok_or_else(|| {
            UsageError::new(format!("{} has {} rows, none at {index}", self.source.label(), self.len()))
                .hint("ask for fewer samples (--samples)")
        })?;
        let line = self.source.read_from(start, |reader| {
            let mut line = Vec::new();
            reader.read_until(b'\n', &mut line).with_context(|| format!("cannot read {}", self.source.label()))?;
            Ok(line)
        })?;
        Ok(self.parse(&line, number)?)
    }

    fn parse(&self, line: &[u8], number: usize) -> Result<Row, UsageError> {
        let place = format!("{}:{number}", self.source.label());
        let line = if number == 1 { line.strip_prefix(MARK).unwrap_or(line) } else { line };
        let text = std::str::from_utf8(line).map_err(|e| UsageError::new(format!("{place}: not UTF-8: {e}")))?;
        let value: Value = serde_json::from_str(text.trim_end()).map_err(|e| {
            if has_lines_of_old(text) {
                return UsageError::new(format!("{place}: lines end in CR alone, which ends no line here"))
                    .hint(CR_HINT);
            }
            // The parser's own "at line 1" would contradict the line of the file.
            let reason = e.to_string();
            let reason = reason.split(" at line ").next().unwrap_or_default();
            UsageError::new(format!("{place}: not JSON: {reason} at column {}", e.column())).hint(FILE_HINT)
        })?;
        match (value, given_twice(text)) {
            (Value::Object(_), Some(name)) => {
                Err(UsageError::new(format!("{place}: the field `{name}` is there twice, and only one can be meant")))
            }
            (Value::Object(fields), None) => Ok(Row { fields, place, number }),
            _ => Err(UsageError::new(format!("{place}: not a JSON object"))),
        }
    }
}

/// The first field that an object has twice: a parser takes the last.
fn given_twice(object: &str) -> Option<String> {
    struct Names;
    impl<'de> Visitor<'de> for Names {
        type Value = Option<String>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Option<String>, A::Error> {
            let (mut names, mut twice) = (BTreeSet::new(), None);
            while let Some((name, IgnoredAny)) = fields.next_entry::<String, IgnoredAny>()? {
                if let Some(name) = names.replace(name) {
                    twice.get_or_insert(name);
                }
            }
            Ok(twice)
        }
    }
    serde_json::Deserializer::from_str(object).deserialize_map(Names).ok().flatten()
}

/// Whether a line holds several, as Mac OS wrote them before it was a Unix.
fn has_lines_of_old(line: &str) -> bool {
    let mut lines = line.split('\r').filter(|line| !line.trim().is_empty());
    let begins = |line: Option<&str>| line.is_some_and(|line| line.trim_start().starts_with('{'));
    begins(lines.next()) && begins(lines.next())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn file(bytes: &[u8]) -> (tempfile::TempDir, RowSource) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.jsonl");
        std::fs::write(&path, bytes).unwrap();
        (dir, RowSource::File(path))
    }

    fn has_x(row: &Row) -> Result<bool, UsageError> {
        Ok(row.required("x")? != "unwanted")
    }

    const MIXED: &[u8] =
        b"\xef\xbb\xbf{\"x\": \"1\"}\n\n{\"x\": 2}\n{\"x\": \"unwanted\"}\r\nnonsense\n\xff\xfe\n{\"x\": \"3\"}";

    #[test]
    fn tables_have_the_rows_that_their_writer_gave_them() {
        let tables = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tables");
        let all = |path: &Path| {
            let rows = Rows::open(RowSource::open(path).unwrap(), false, |_| Ok(true)).unwrap();
            (0..rows.len()).map(|i| rows.read(i).unwrap().fields).collect::<Vec<_>>()
        };
        for name in ["ARC-Easy/test", "all/test", "data/validation", "main/test"] {
            let table = tables.join(format!("{name}-00000-of-00001.parquet"));
            let rows = all(&table);
            assert!(!rows.is_empty() && rows == all(&table.with_extension("jsonl")), "{name}: {rows:?}");
        }
        let error = RowSource::open(&tables.join("zstd.parquet")).unwrap_err();
        assert!(error.what.contains("zstd.parquet: ") && error.hint.unwrap().contains("Snappy"), "{}", error.what);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        for bytes in [&b""[..], b"PAR1", b"{\"x\": 1}\n"] {
            std::fs::write(&path, bytes).unwrap();
            assert!(RowSource::open(&path).unwrap_err().what.contains("x.parquet: "));
        }
        assert!(RowSource::open(&dir.path().join("none.parquet")).is_err());
    }

    #[test]
    fn malformed_rows_are_counted_and_named_before_anything_runs() {
        let (_dir, source) = file(MIXED);
        let error = Rows::open(source, false, has_x).unwrap_err().downcast::<UsageError>().unwrap();
        assert!(
            error.what.contains("rows.jsonl:3: the field `x` is not text; 2 more of 6 rows are malformed (lines 5, 6)"),
            "{error}"
        );
        assert!(error.hint.unwrap().contains("--skip-bad"));
    }

    #[test]
    fn skipping_them_is_noted() {
        let (_dir, source) = file(MIXED);
        let rows = Rows::open(source, true, has_x).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows.read(0).unwrap().required("x").unwrap(), "1");
        let last = rows.read(1).unwrap();
        assert_eq!(last.required("x").unwrap(), "3");
        assert!(last.place.ends_with("rows.jsonl:7"));
        assert!(rows.note().unwrap().contains("3 malformed rows are left out (lines 3, 5, 6)"));
        assert!(rows.read(2).is_err());
    }

    #[test]
    fn one_row_is_counted_as_one() {
        let (_dir, source) = file(b"{\"x\": \"1\"}\n3\n");
        let rows = Rows::open(source.clone(), true, has_x).unwrap();
        assert!(rows.note().unwrap().contains(": 1 malformed row is left out (line 2); the first: "));
        let (_dir, source) = file(b"{\"x\": \"1\"}\n3\n4\n");
        let error = Rows::open(source, false, has_x).unwrap_err().to_string();
        assert!(error.ends_with("; 1 more of 3 rows is malformed (line 3)"), "{error}");
    }

    #[test]
    fn a_field_that_is_there_twice_is_refused() {
        for (row, twice) in [
            ("{\"x\": \"1\", \"x\": \"2\"}", true),
            ("{\"x\": \"1\", \"y\": 2, \"\\u0079\": 3}", true),
            ("{\"x\": \"1\", \"X\": \"2\"}", false),
            ("{\"x\": \"1\", \"y\": {\"x\": [\"x\"]}}", false),
        ] {
            let (_dir, source) = file(row.as_bytes());
            let error = Rows::open(source, false, has_x).err().map(|e| e.to_string()).unwrap_or_default();
            assert_eq!(error.contains("is there twice, and only one can be meant"), twice, "{row}: {error}");
        }
    }

    #[test]
    fn lines_that_end_in_cr_alone_are_told() {
        for bytes in
            [&b"{\"x\": \"1\"}\r{\"x\": \"2\"}\r"[..], b"{\"x\": \"1\"}\r\r{\"x\": \"2\"}", b"\r{\"x\": 1} \r {}\r"]
        {
            let (_dir, source) = file(bytes);
            let error = Rows::open(source, false, has_x).unwrap_err().downcast::<UsageError>().unwrap();
            assert!(error.what.ends_with("rows.jsonl:1: lines end in CR alone, which ends no line here"), "{error}");
            assert!(error.hint.unwrap().contains("tr '\\r' '\\n'"));
        }
        for (bytes, what) in
            [(&b"{\"x\": \"1\"} {\"x\": \"2\"}\r\n"[..], "trailing characters"), (b"{\"x\": \"a\rb\"}", "control")]
        {
            let (_dir, source) = file(bytes);
            let error = Rows::open(source, false, has_x).unwrap_err().to_string();
            assert!(error.contains("not JSON: ") && error.contains(what), "{error}");
        }
        let (_dir, source) = file(b"{\"x\": \"1\"}\r\n{\"x\": \"2\"}\r\n");
        assert_eq!(Rows::open(source, false, has_x).unwrap().len(), 2);
    }

    #[test]
    fn a_file_without_a_usable_row_is_refused_even_then() {
        for bytes in [&b""[..], b"\n \n", b"{}", b"\0\0"] {
            let (_dir, source) = file(bytes);
            assert!(Rows::open(source, true, has_x).is_err());
        }
    }

    /// Writes an archive with one member.
    pub(crate) fn archive(path: &Path, member: &str, bytes: &[u8]) {
        let mut zip = zip::ZipWriter::new(File::create(path).unwrap());
        zip.start_file(member, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
        zip.finish().unwrap();
    }

    #[test]
    fn rows_in_an_archive_are_those_of_the_file() {
        let (dir, plain) = file(MIXED);
        let path = dir.path().join("data.zip");
        archive(&path, "data/rows.jsonl", MIXED);
        assert_eq!(RowSource::zipped(&path, "data/other.jsonl"), Ok(None));
        assert_eq!(RowSource::zipped(&path.with_extension("none"), "data/rows.jsonl"), Ok(None));
        let (torn, whole) = (path.with_extension("torn"), std::fs::read(&path).unwrap());
        std::fs::write(&torn, &whole[..whole.len() / 2]).unwrap();
        let error = RowSource::zipped(&torn, "data/rows.jsonl").unwrap_err();
        assert!(error.what.contains("cannot read") && error.hint.unwrap().contains("damaged"), "{}", error.what);
        let zipped = RowSource::zipped(&path, "data/rows.jsonl").unwrap().unwrap();
        assert_eq!(zipped.file_name(), plain.file_name());
        let (plain, zipped) = (Rows::open(plain, true, has_x).unwrap(), Rows::open(zipped, true, has_x).unwrap());
        assert_eq!(plain.len(), zipped.len());
        for index in 0..plain.len() {
            assert_eq!(plain.read(index).unwrap().fields, zipped.read(index).unwrap().fields);
        }
    }

    #[test]
    fn lines_without_rows_are_not_read_for_ever() {
        let row = b"{\"x\": \"1\"}\n";
        let empty = |count: usize| [&row[..], &vec![b'\n'; count], row].concat();
        // The lines, how often they come, and what is said of them.
        let malformed = vec![&b"x\n"[..]; MOST_MALFORMED + 1].concat();
        for (bytes, said) in [
            (empty(MOST_EMPTY), None),
            (empty(MOST_EMPTY + 1), Some("more than 1000000 empty lines")),
            ([malformed.as_slice(), row].concat(), Some("more than 100000 malformed rows")),
        ] {
            let (dir, plain) = file(&bytes);
            let path = dir.path().join("data.zip");
            archive(&path, "rows.jsonl", &bytes);
            for source in [plain, RowSource::zipped(&path, "rows.jsonl").unwrap().unwrap()] {
                let opened = Rows::open(source, true, has_x);
                match said {
                    None => assert_eq!(opened.unwrap().len(), 2),
                    Some(said) => assert!(opened.unwrap_err().to_string().ends_with(said)),
                }
            }
        }
    }

    #[test]
    fn a_line_that_would_fill_the_memory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data.zip");
        archive(&path, "data/rows.jsonl", &vec![b' '; LONGEST_LINE as usize + 2]);
        assert!(path.metadata().unwrap().len() < 1 << 20);
        let zipped = RowSource::zipped(&path, "data/rows.jsonl").unwrap().unwrap();
        let error = Rows::open(zipped, true, has_x).unwrap_err().to_string();
        assert!(error.ends_with("rows.jsonl:1: longer than 64 MiB"), "{error}");
    }

    proptest! {
        /// Whatever the bytes: no panic, and what is wanted can be read again.
        #[test]
        fn any_bytes_can_be_opened(bytes in proptest::collection::vec(prop_oneof![
            any::<u8>(), proptest::sample::select(b"\n\r{}[]\":,\\ux1 ".to_vec()),
        ], 0..300)) {
            let (_dir, source) = file(&bytes);
            if let Ok(rows) = Rows::open(source, true, |_| Ok(true)) {
                for index in 0..rows.len() {
                    rows.read(index).unwrap();
                }
            }
        }

        /// Rows that are cut off or changed at one byte.
        #[test]
        fn damaged_rows_are_errors_and_no_panics(cut in 0usize..60, at in 0usize..60, byte in any::<u8>()) {
            let mut bytes = br#"{"x": "caf\u00e9 \ud83d\ude00", "y": [1, 2.5e3, null], "z": {"a": true}}"#.to_vec();
            let last = bytes.len() - 1;
            bytes[at.min(last)] = byte;
            bytes.truncate(bytes.len() - cut.min(last));
            let (_dir, source) = file(&bytes);
            let _ = Rows::open(source, false, has_x);
        }
    }
}

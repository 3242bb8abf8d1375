//! Files with one JSON object a line: opened and checked once, then read one row at a time.
//!
//! A malformed row is never left out silently. Opening fails with the line of the first one and the total number; if the user asked
//! to continue without them (`--skip-bad`), [`Rows::note`] tells how many there are and where.
//!
//! The rows may also be in a zip archive (LongBench, WinoGrande), in a Parquet table (most sets on the Hugging Face hub), or in a
//! JSON document with a list of rows (CoQA). `source.rs` turns each of these into lines.

mod document;
mod malformed;
mod row;
mod source;
mod values;

use std::collections::BTreeSet;
use std::io::{BufRead, Read};

use anyhow::{Context, Result};
use serde::Deserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use sha2::{Digest, Sha256};

use self::malformed::FILE_HINT;
pub(crate) use self::malformed::Malformed;
pub use self::row::Row;
pub use self::source::RowSource;
pub(crate) use self::source::{member_of, read_member};
pub use self::values::text_or_number;
use super::digest;
use super::table::LONGEST_LINE;
use spattn_base::disk::no_lfs_pointer;
use spattn_base::error::UsageError;
use spattn_base::given::{self, MARK};

const CR_HINT: &str = "`tr '\\r' '\\n'` writes lines that end in LF";
/// The most consecutive empty lines; a file with more is refused.
const MOST_EMPTY: usize = 1_000_000;
/// The most malformed rows; a file with more is refused, even with `--skip-bad`.
const MOST_MALFORMED: usize = 100_000;
/// The most bytes that a file in an archive may unpack to.
const MOST_UNPACKED: u64 = 16 << 30;

/// The rows of a file that a task uses, each found by its offset in the file.
#[derive(Debug)]
pub struct Rows {
    source: RowSource,
    /// For each row, the byte at which it starts and its line number from 1. Empty lines are not rows.
    starts: Vec<(u64, usize)>,
    malformed: Malformed,
    digest: String,
}

impl Rows {
    /// Reads the whole file once and passes every row to `check`, which returns whether the task uses it.
    ///
    /// # Errors
    /// A [`UsageError`] if the file cannot be read or has no usable row, or if `skip_bad` is false and a row is malformed or
    /// `check` fails on it.
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
                    () if rows.malformed.len() > MOST_MALFORMED => {
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

    /// The number of rows that the task uses.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether the task uses no rows.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The digest of the whole file, including malformed and unused rows.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Where the rows are.
    pub fn source(&self) -> &RowSource {
        &self.source
    }

    /// The one-line note on malformed rows that were left out; `None` if there are none.
    pub fn note(&self) -> Option<String> {
        self.malformed.note()
    }

    /// The place of the row at `index`, as `FILE:LINE`; `None` if there are fewer rows.
    pub fn place(&self, index: usize) -> Option<String> {
        self.starts.get(index).map(|(_, number)| format!("{}:{number}", self.source.label()))
    }

    /// Reads the row at `index` from the file.
    ///
    /// # Errors
    /// If there are fewer rows, or the file was changed or removed after it was opened.
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
                return UsageError::new(format!("{place}: lines end in CR alone, not in LF or CR LF")).hint(CR_HINT);
            }
            // The parser's own "at line 1" would contradict the line of the file.
            let reason = e.to_string();
            let reason = reason.split(" at line ").next().unwrap_or_default();
            UsageError::new(format!("{place}: not JSON: {reason} at column {}", e.column())).hint(FILE_HINT)
        })?;
        match (value, given_twice(text)) {
            (Value::Object(_), Some(name)) => {
                Err(UsageError::new(format!("{place}: the field `{name}` is given twice")))
            }
            (Value::Object(fields), None) => Ok(Row { fields, place, number }),
            _ => Err(UsageError::new(format!("{place}: not a JSON object"))),
        }
    }
}

/// The first field that occurs twice in a JSON object, if any: a parser would silently take the last.
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

/// Whether a line holds several lines that end in CR alone, as Mac OS wrote them before version 10.
fn has_lines_of_old(line: &str) -> bool {
    let mut lines = line.split('\r').filter(|line| !line.trim().is_empty());
    let begins = |line: Option<&str>| line.is_some_and(|line| line.trim_start().starts_with('{'));
    begins(lines.next()) && begins(lines.next())
}

#[cfg(test)]
mod tests;

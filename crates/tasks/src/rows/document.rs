//! Reads a JSON document that holds a list of rows as JSON lines.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use anyhow::Result;
use serde::Deserializer;
use serde::de::{Error, SeqAccess, Visitor};
use serde_json::{Map, Value};

use spattn_base::given::{self, Given, MARK};

/// The most bytes of a JSON document that is read in one piece.
const MOST_OF_DOCUMENT: u64 = 4 << 30;

/// The rows of a JSON document as lines.
pub(super) fn document_lines(path: &Path) -> Result<Vec<u8>> {
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

/// A reader of a document that skips the byte order mark, if there is one.
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

/// The rows of a document that is a list. Each becomes a line as soon as it is read, since the list may have gigabytes.
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

/// Turns every list of objects in a value into an object of lists, with `null` where an object lacks a field.
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

//! Checks the directory of a GGUF file before `candle-core` reads it.
//!
//! A file states how many keys, list entries and tensors follow, and how long each text is. candle-core allocates memory by these numbers,
//! replaces bytes that are not UTF-8, and keeps the last of two entries with the same name. [`check`] walks through the directory first: it
//! allocates no more than the file can fill, and refuses what candle-core would misread. It does not interpret the keys.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

use super::types::{TensorType, tensor_type, types_read};
use spattn_base::disk::is_lfs_pointer;
use spattn_base::error::UsageError;
use spattn_base::given;

/// The most bytes of a directory. The largest vocabularies take about 20 MB.
const MOST_BYTES: u64 = 256 << 20;
/// The most keys.
const MOST_KEYS: u64 = 100_000;
/// The most tensors.
const MOST_TENSORS: u64 = 100_000;
/// The most entries of all lists together. The largest vocabularies have 2 million, including their merges.
const MOST_ENTRIES: u64 = 8_000_000;
/// The most bytes of a name of a key or a tensor.
const LONGEST_NAME: usize = 1024;
/// The bytes by which the kind of a file is recognised.
const MOST_OF_START: usize = 128;
/// The deepest nesting of lists.
const DEEPEST: usize = 4;
/// The most axes of a tensor.
const MOST_AXES: u32 = 4;
/// The default alignment of the tensors' data, in bytes.
const ALIGNMENT: u64 = 32;
const ARCHITECTURE: &str = "general.architecture";
const FETCH_AGAIN: &str = "the file may be cut off or damaged: fetch it again";

/// The result of [`check`] for a valid directory.
pub(super) struct Directory {
    /// The architecture that it names.
    pub(super) architecture: Option<String>,
    /// The error for the first tensor of an unsupported type.
    pub(super) unread: Option<UsageError>,
}

/// Walks through the directory of a file.
///
/// # Errors
/// If the file is not a GGUF file of a supported version and byte order, is truncated, states an unreasonable size, or has a tensor beyond
/// its end or two entries with the same name.
pub(super) fn check(path: &Path) -> Result<Directory, UsageError> {
    let label = path.display().to_string();
    let io = |error: std::io::Error| UsageError::new(format!("{label}: {error}"));
    given::plain(path).map_err(io)?;
    let file = File::open(path).map_err(io)?;
    let size = file.metadata().map_err(io)?.len();
    let mut walk = Walk { label: &label, reader: BufReader::new(file), at: 0, size, entries: 0 };
    walk.version()?;
    let tensors = walk.count("tensors", MOST_TENSORS)?;
    let keys = walk.count("keys", MOST_KEYS)?;
    let Keys { architecture, alignment } = walk.keys(keys)?;
    let unread = walk.tensors(tensors, alignment)?;
    Ok(Directory { architecture, unread })
}

/// A position in a directory.
struct Walk<'a> {
    label: &'a str,
    reader: BufReader<File>,
    /// The number of bytes before this position.
    at: u64,
    /// The size of the file in bytes.
    size: u64,
    /// The number of list entries so far.
    entries: u64,
}

/// What the keys state about the rest of the directory.
struct Keys {
    architecture: Option<String>,
    alignment: u64,
}

/// The numbers of the kinds of values.
mod kind {
    pub(super) const U32: u32 = 4;
    pub(super) const TEXT: u32 = 8;
    pub(super) const LIST: u32 = 9;
}

/// The size of a value of this kind in bytes; `None` for texts, lists and unknown kinds.
fn fixed_size(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// Whether a text can be the name of a key or a tensor.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= LONGEST_NAME && !text.chars().any(char::is_control)
}

impl Walk<'_> {
    fn error(&self, what: &str) -> UsageError {
        UsageError::new(format!("{}: {what}", self.label))
    }

    fn damaged(&self, what: &str) -> UsageError {
        self.error(what).hint(FETCH_AGAIN)
    }

    /// Checks that at least this many bytes follow.
    fn require(&self, bytes: u64) -> Result<(), UsageError> {
        match self.at.checked_add(bytes) {
            Some(end) if end <= self.size.min(MOST_BYTES) => Ok(()),
            Some(end) if end <= self.size => {
                let what = format!("its directory is larger than {} MB, which no model's is", MOST_BYTES >> 20);
                Err(self.damaged(&what))
            }
            _ => Err(self.damaged(&format!("truncated: its directory goes beyond its {} bytes", self.size))),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), UsageError> {
        self.require(bytes.len() as u64)?;
        self.reader.read_exact(bytes).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => self.damaged("truncated while it was read"),
            _ => self.error(&error.to_string()),
        })?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn skip(&mut self, bytes: u64) -> Result<(), UsageError> {
        self.require(bytes)?;
        // At most MOST_BYTES, so the cast is exact.
        self.reader.seek_relative(bytes as i64).map_err(|error| self.error(&error.to_string()))?;
        self.at += bytes;
        Ok(())
    }

    fn u32(&mut self) -> Result<u32, UsageError> {
        let mut bytes = [0; 4];
        self.read(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> Result<u64, UsageError> {
        let mut bytes = [0; 8];
        self.read(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The bytes of a text.
    fn text(&mut self) -> Result<Vec<u8>, UsageError> {
        let length = self.u64()?;
        self.require(length)?;
        let mut bytes = vec![0; length as usize];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    /// The name of a key or a tensor, which must not have occurred before.
    fn name(&mut self, what: &str, seen: &mut HashSet<String>) -> Result<String, UsageError> {
        let bytes = self.text()?;
        let name = String::from_utf8(bytes).ok().filter(|name| is_name(name));
        let name = name.ok_or_else(|| self.damaged(&format!("the name of a {what} is not one")))?;
        match seen.insert(name.clone()) {
            true => Ok(name),
            false => Err(self.damaged(&format!("the {what} `{name}` is there twice"))),
        }
    }

    /// Reads the beginning that all files share.
    fn version(&mut self) -> Result<(), UsageError> {
        let start = self.reader.fill_buf().map(|begins| begins[..begins.len().min(MOST_OF_START)].to_vec());
        let start = start.map_err(|error| self.error(&error.to_string()))?;
        if is_lfs_pointer(&start) {
            let error = self.error("a Git LFS pointer, not the file itself");
            return Err(error.hint("run `git lfs pull` in its folder"));
        }
        if let [b'l' | b't' | b'f', b'm' | b'j', b'g', b'g', ..] = start[..] {
            let error = self.error("a GGML file, the format of llama.cpp before GGUF, which is not read");
            return Err(error.hint("convert the model again with llama.cpp's `convert_hf_to_gguf.py`"));
        }
        let [b'G', b'G', b'U', b'F', version @ ..] = &start[..] else {
            return Err(self.error("not a GGUF file").hint("fetch it again, or give another"));
        };
        let Some(version) = version.first_chunk::<4>().copied() else {
            return Err(self.damaged("truncated after its name"));
        };
        self.skip(8)?;
        match (u32::from_le_bytes(version), u32::from_be_bytes(version)) {
            (2 | 3, _) => Ok(()),
            (1, _) => Err(self
                .error("version 1 of GGUF, which is not read: 2 and 3 are")
                .hint("convert the model again with llama.cpp's `convert_hf_to_gguf.py`")),
            (_, 1..=3) => Err(self.error("a GGUF file in big-endian byte order, which is not read").hint(
                "give the little-endian file, or turn it with `gguf_convert_endian.py` of the Python package gguf",
            )),
            (other, _) => Err(self.damaged(&format!("version {other} of GGUF, which is not known: 2 and 3 are read"))),
        }
    }

    fn count(&mut self, of: &str, most: u64) -> Result<u64, UsageError> {
        match self.u64()? {
            count if count <= most => Ok(count),
            count => {
                Err(self.damaged(&format!("it says that it has {count} {of}, and {most} are the most that are read")))
            }
        }
    }

    fn keys(&mut self, count: u64) -> Result<Keys, UsageError> {
        let mut seen = HashSet::new();
        let mut keys = Keys { architecture: None, alignment: ALIGNMENT };
        for _ in 0..count {
            let key = self.name("key", &mut seen)?;
            match (key.as_str(), self.u32()?) {
                ("general.alignment", kind) => {
                    let stated = if kind == kind::U32 { self.u32()? } else { 0 };
                    if !stated.is_power_of_two() {
                        return Err(self.damaged("`general.alignment`: expected a power of two"));
                    }
                    keys.alignment = stated.into();
                }
                (ARCHITECTURE, kind::TEXT) => {
                    keys.architecture = Some(String::from_utf8_lossy(&self.text()?).into_owned());
                }
                (_, kind) => self.value(&key, kind, 0)?,
            }
        }
        Ok(keys)
    }

    fn value(&mut self, key: &str, kind: u32, depth: usize) -> Result<(), UsageError> {
        match (kind, fixed_size(kind)) {
            (_, Some(bytes)) => self.skip(bytes),
            (kind::TEXT, _) => self.value_text(key, None),
            (kind::LIST, _) if depth < DEEPEST => self.list(key, depth),
            (kind::LIST, _) => Err(self.damaged(&format!("`{key}`: lists in lists deeper than {DEEPEST}"))),
            (other, _) => Err(self.damaged(&format!("`{key}`: a value of the unknown kind {other}"))),
        }
    }

    fn list(&mut self, key: &str, depth: usize) -> Result<(), UsageError> {
        let (kind, length) = (self.u32()?, self.u64()?);
        self.entries = self.entries.saturating_add(length);
        if self.entries > MOST_ENTRIES {
            let what = format!("`{key}`: a list of {length} entries, and {MOST_ENTRIES} are the most that are read");
            return Err(self.damaged(&what));
        }
        match fixed_size(kind) {
            // At most MOST_ENTRIES times 8.
            Some(bytes) => self.skip(bytes * length),
            None if kind == kind::TEXT => (0..length).try_for_each(|entry| self.value_text(key, Some(entry))),
            None => (0..length).try_for_each(|_| self.value(key, kind, depth + 1)),
        }
    }

    /// A text, or an entry of a list of texts. Those of a tokenizer must be UTF-8, so that they are read as stored.
    fn value_text(&mut self, key: &str, entry: Option<u64>) -> Result<(), UsageError> {
        if !key.starts_with("tokenizer.") {
            let length = self.u64()?;
            return self.skip(length);
        }
        let bytes = self.text()?;
        let fault = match entry {
            _ if std::str::from_utf8(&bytes).is_err() => "is not UTF-8",
            Some(_) if bytes.ends_with(&[0]) => "ends with a zero byte, which would be lost",
            _ => return Ok(()),
        };
        let entry = entry.map_or_else(|| "the text".to_owned(), |entry| format!("entry {entry}"));
        Err(self.damaged(&format!("`{key}`: {entry} {fault}")))
    }

    /// Checks the positions of all tensors; returns the error for the first one of an unsupported type.
    fn tensors(&mut self, count: u64, alignment: u64) -> Result<Option<UsageError>, UsageError> {
        let (mut seen, mut unread) = (HashSet::new(), None);
        let mut places: Vec<(u64, u64, String)> = Vec::new();
        for _ in 0..count {
            let name = self.name("tensor", &mut seen)?;
            let extents = self.extents(&name)?;
            let number = self.u32()?;
            let offset = self.u64()?;
            if !offset.is_multiple_of(alignment) {
                return Err(self.damaged(&format!("the tensor `{name}` begins at no multiple of {alignment} bytes")));
            }
            match tensor_type(number) {
                TensorType::Blocks { numbers, bytes, name: of } => {
                    places.push((offset, self.bytes(&name, &extents, numbers, bytes, of)?, name));
                }
                TensorType::Unread(stored) => drop(unread.get_or_insert_with(|| self.unread(&name, &stored))),
            }
        }
        let start = self.at.next_multiple_of(alignment);
        self.check_places(places, start)?;
        Ok(unread)
    }

    fn extents(&mut self, name: &str) -> Result<Vec<u64>, UsageError> {
        let axes = self.u32()?;
        if axes > MOST_AXES {
            return Err(
                self.damaged(&format!("the tensor `{name}` has {axes} axes, and {MOST_AXES} are the most there are"))
            );
        }
        (0..axes).map(|_| self.u64()).collect()
    }

    /// The size of a tensor in bytes. Its rows, whose extent comes first, must be whole blocks.
    fn bytes(&self, name: &str, extents: &[u64], block: u64, block_bytes: u64, of: &str) -> Result<u64, UsageError> {
        if extents.contains(&0) {
            return Err(self.damaged(&format!("the tensor `{name}` has no numbers")));
        }
        let row = extents.first().copied().unwrap_or(1);
        if !row.is_multiple_of(block) {
            let what = format!("the tensor `{name}` has rows of {row} numbers, and {of} has blocks of {block}");
            return Err(self.damaged(&what));
        }
        // The size in memory, at most 4 bytes for each number, must also fit 64 bits.
        let numbers = extents
            .iter()
            .try_fold(1u64, |all, extent| all.checked_mul(*extent))
            .filter(|all| all.checked_mul(4).is_some());
        let bytes = numbers.and_then(|numbers| (numbers / block).checked_mul(block_bytes));
        bytes.ok_or_else(|| self.damaged(&format!("the tensor `{name}` is larger than can be: {extents:?}")))
    }

    fn unread(&self, name: &str, stored: &str) -> UsageError {
        let what = format!("the tensor `{name}` is stored as {stored}, which cannot be read");
        self.error(&what).hint(format!("give another quantisation of the same model; read are {}", types_read()))
    }

    /// Checks that tensors lie within the file and do not overlap.
    fn check_places(&self, mut places: Vec<(u64, u64, String)>, start: u64) -> Result<(), UsageError> {
        places.sort_unstable();
        let mut free = 0;
        for (offset, bytes, name) in places {
            let end = start.checked_add(offset).and_then(|from| from.checked_add(bytes));
            if end.is_none_or(|end| end > self.size) {
                let missing = end.map_or(u64::MAX, |end| end - self.size);
                let what = format!("truncated: the tensor `{name}` ends {missing} bytes after the file");
                return Err(self.error(&what).hint("fetch the file again"));
            }
            if offset < free {
                return Err(self.damaged(&format!("the tensor `{name}` begins within another one")));
            }
            free = offset + bytes;
        }
        Ok(())
    }
}

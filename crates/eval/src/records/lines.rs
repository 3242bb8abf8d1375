//! Reads the lines of a file of records, with any line ending, and repairs an incomplete last line.
//!
//! This program ends lines with `\n`. An editor or a file transfer may have changed that to `\r\n` or `\r`, and may have added a byte order
//! mark; such files are still read.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::record::Record;
use spattn_base::disk::open_here;
use spattn_base::error::UsageError;
use spattn_base::given::MARK;

/// How every record begins.
const BEGINNING: &[u8] = b"{\"key\"";
/// How many bytes at the end of a file are searched for the last two lines.
const LOOKED_AT: u64 = 256 << 20;

/// Reads a line with its ending (`\n`, `\r\n` or `\r`). Returns the number of bytes; 0 at the end of the file.
///
/// # Errors
/// If the file cannot be read.
pub fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<usize> {
    line.clear();
    loop {
        let buffer = match reader.fill_buf() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            buffer => buffer?,
        };
        if buffer.is_empty() {
            return Ok(line.len());
        }
        let end = buffer.iter().position(|byte| is_end(*byte));
        let read = end.map_or(buffer.len(), |at| at + 1);
        line.extend_from_slice(&buffer[..read]);
        reader.consume(read);
        if end.is_some() {
            break;
        }
    }
    if line.last() == Some(&b'\r') && reader.fill_buf()?.first() == Some(&b'\n') {
        line.push(b'\n');
        reader.consume(1);
    }
    Ok(line.len())
}

fn is_end(byte: u8) -> bool {
    byte == b'\n' || byte == b'\r'
}

/// The content of a line, without its ending and, in the first line, without the byte order mark.
pub fn said(line: &[u8], is_first: bool) -> &[u8] {
    let line = if is_first { line.strip_prefix(MARK).unwrap_or(line) } else { line };
    line.trim_ascii()
}

/// Whether a line is incomplete: it has no ending, and begins like a record without containing a whole one.
pub fn is_torn(line: &[u8]) -> bool {
    !line.last().is_some_and(|byte| is_end(*byte)) && is_beginning(line.strip_prefix(MARK).unwrap_or(line))
}

fn is_beginning(text: &[u8]) -> bool {
    // After a crash of the machine, a file may end in zeros.
    let is_cut = text.starts_with(BEGINNING) || BEGINNING.starts_with(text) || text.iter().all(|byte| *byte == 0);
    is_cut && !begins_with_record(text)
}

fn begins_with_record(text: &[u8]) -> bool {
    serde_json::Deserializer::from_slice(text).into_iter::<Record>().next().is_some_and(|first| first.is_ok())
}

fn is_record(text: &[u8]) -> bool {
    serde_json::from_slice::<Record>(text).is_ok()
}

/// Completes or removes a last line without an ending, as a killed run may leave it. A whole record gets its line ending. An incomplete one
/// is removed if a whole record precedes it, or, if the file has nothing else, after it was copied to another file.
///
/// # Errors
/// A [`UsageError`] if the file ends in something else; another error if it cannot be read or written.
pub fn repair(path: &Path, notices: &mut Vec<String>) -> Result<()> {
    let failed = || format!("cannot repair {}", path.display());
    let mut file = open_here(path, OpenOptions::new().read(true).write(true)).with_context(failed)?;
    let length = file.seek(SeekFrom::End(0)).with_context(failed)?;
    let from = length.saturating_sub(LOOKED_AT);
    let mut end = Vec::new();
    file.seek(SeekFrom::Start(from)).and_then(|_| file.read_to_end(&mut end)).with_context(failed)?;
    let (before, torn) = end.split_at(end.iter().rposition(|byte| is_end(*byte)).map_or(0, |at| at + 1));
    let tail = said(torn, from == 0 && before.is_empty());
    if tail.is_empty() {
        return Ok(());
    }
    if is_record(tail) {
        return file.write_all(b"\n").with_context(failed);
    }
    let lines = || before.split(|byte| is_end(*byte)).map(|line| said(line, from == 0)).filter(|line| !line.is_empty());
    let name = path.display();
    let bytes = torn.len();
    let notice = match lines().next_back() {
        _ if !is_beginning(tail) => return Err(ends_wrongly(path).into()),
        Some(last) if is_record(last) => format!("{name}: removed an incomplete last line of {bytes} bytes"),
        None if from == 0 => {
            let kept = keep(path, torn).with_context(failed)?;
            format!("{name}: removed an incomplete first line of {bytes} bytes; it is kept in {}", kept.display())
        }
        _ => return Err(ends_wrongly(path).into()),
    };
    file.set_len(length - bytes as u64).with_context(failed)?;
    notices.push(notice);
    Ok(())
}

/// Copies an incomplete line to a new file. Returns the file's path.
fn keep(path: &Path, torn: &[u8]) -> io::Result<PathBuf> {
    for number in 1_u32.. {
        let kept = PathBuf::from(format!("{}.torn-{number}", path.display()));
        match File::options().write(true).create_new(true).open(&kept) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            file => return file?.write_all(torn).map(|()| kept),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn ends_wrongly(path: &Path) -> UsageError {
    UsageError::new(format!("{} ends neither in a record nor in the beginning of one", path.display()))
        .hint("delete the lines at its end that are not records, or choose another --out folder")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::testing::record;
    use std::fs;

    fn lines(text: &[u8]) -> Vec<Vec<u8>> {
        // The small buffer also ends between the two bytes of a line ending.
        let mut reader = io::BufReader::with_capacity(2, text);
        let (mut all, mut line) = (Vec::new(), Vec::new());
        while read_line(&mut reader, &mut line).unwrap() > 0 {
            all.push(line.clone());
        }
        all
    }

    #[test]
    fn lines_end_as_any_system_ends_them() {
        for end in ["\n", "\r\n", "\r"] {
            let text = format!("a{end}{end}bc{end}d");
            let expected: Vec<Vec<u8>> =
                [format!("a{end}"), end.to_owned(), format!("bc{end}"), "d".to_owned()].map(String::into_bytes).into();
            assert_eq!(lines(text.as_bytes()), expected);
        }
        assert_eq!(lines(b""), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_file_is_repaired_without_losing_a_record() {
        let one = serde_json::to_string(&record("vt", "full", 0, 1.0)).unwrap();
        let (torn, mark) = (&one[..one.len() / 2], "\u{feff}");
        // A file, and its content after the repair; `None` if the repair is refused.
        let table = [
            (format!("{one}\n{torn}"), Some(format!("{one}\n"))),
            (format!("{one}\r{torn}"), Some(format!("{one}\r"))),
            (format!("{one}\r\n\r\n{torn}"), Some(format!("{one}\r\n\r\n"))),
            (format!("{mark}{one}\n{torn}"), Some(format!("{mark}{one}\n"))),
            (format!("{one}\r{one}"), Some(format!("{one}\r{one}\n"))),
            (format!("{mark}{one}"), Some(format!("{mark}{one}\n"))),
            (format!("{one}\n"), Some(format!("{one}\n"))),
            (format!("{one}\r"), Some(format!("{one}\r"))),
            (torn.to_owned(), Some(String::new())),
            ("{\"ke".to_owned(), Some(String::new())),
            (format!("{one}{one}"), None),
            (format!("{one}\n{one}{torn}"), None),
            (format!("{one} {torn}"), None),
            (format!("{one}\nnotes"), None),
            (format!("{one}\n\0\0\0"), Some(format!("{one}\n"))),
            ("a text of another\nwith lines".to_owned(), None),
            ("notes".to_owned(), None),
            (format!("{torn}\n{torn}"), None),
        ];
        for (text, left) in table {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("samples.jsonl");
            fs::write(&path, &text).unwrap();
            let mut notices = Vec::new();
            let repaired = repair(&path, &mut notices);
            assert_eq!(fs::read_to_string(&path).unwrap(), *left.as_ref().unwrap_or(&text), "{text}");
            assert_eq!(repaired.is_ok(), left.is_some(), "{text}");
            let is_first = left.as_deref() == Some("");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1 + usize::from(is_first), "{text}");
            if is_first {
                assert_eq!(fs::read_to_string(dir.path().join("samples.jsonl.torn-1")).unwrap(), text);
                assert!(notices[0].contains("it is kept in "), "{notices:?}");
            }
        }
    }
}

//! The measurements of documents, stored as soon as they are made, so that a stopped measurement can be resumed.
//!
//! The journal is a JSON Lines file. The first line holds the identity of the measurements (model, method, prompts, seed ...); each other
//! line has a name and numbers. Numbers are written as the shortest decimal text that reads back to the same bits. An incomplete last
//! line, which a killed process may leave, is dropped and its measurement repeated.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use spattn_base::disk::open_here;
use spattn_base::error::UsageError;
use spattn_eval::folder::owned_files::{self, OwnFolder};
use spattn_eval::records::store::OpenMode;

/// The name of the journal's file.
const FILE: &str = "measured.jsonl";
/// The name of the answer's file in the same folder.
const ANSWER: &str = "tune.json";

/// The measurements in a folder. Only this process may add to them.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    known: BTreeMap<String, Vec<f64>>,
}

impl Journal {
    /// Opens the journal of a folder, which is created if needed. `identity` holds everything that the numbers depend on.
    ///
    /// # Errors
    /// A [`UsageError`] if the folder holds an answer or measurements and `mode` is `Fresh`, if its measurements have another identity, or
    /// if another process writes there; other errors if it cannot be read or written.
    pub fn open(folder: &Path, mode: OpenMode, identity: &Value) -> Result<Self> {
        let path = folder.join(FILE);
        // Checks first for files that this program did not write: no flag allows to replace them.
        OwnFolder::of(folder)?.check(&owned_files::TUNE)?;
        if mode == OpenMode::Fresh && (path.exists() || folder.join(ANSWER).exists()) {
            let what = format!("{} holds an earlier tuning", folder.display());
            let hint = "resume it with --resume, choose another --out folder, or delete it with --overwrite";
            return Err(UsageError::new(what).hint(hint).into());
        }
        let unwritable = |e: std::io::Error| {
            UsageError::new(format!("cannot write to the folder {}: {e}", folder.display()))
                .hint("choose another --out folder")
        };
        std::fs::create_dir_all(folder).map_err(unwritable)?;
        OwnFolder::of(folder)?.claim([FILE])?;
        let options = OpenOptions::new().create(true).truncate(false).read(true).write(true).clone();
        let file = open_here(&path, &options).map_err(unwritable)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(UsageError::new(format!("{} is being written by another process", folder.display()))
                    .hint("wait for it to end, or choose another --out folder")
                    .into());
            }
            // Some network file systems have no locks.
            Err(TryLockError::Error(e)) if e.kind() != ErrorKind::Unsupported => return Err(unwritable(e).into()),
            _ => {}
        }
        let text = if mode == OpenMode::Resume { std::fs::read_to_string(&path) } else { Ok(String::new()) };
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        let (known, whole) = read(&text, identity, &path)?;
        file.set_len(whole as u64).map_err(unwritable)?;
        let mut journal = Self { path, file, known };
        if whole == 0 {
            journal.write(&json!({ "of": identity }))?;
        }
        Ok(journal)
    }

    /// Returns the numbers measured under a name.
    pub fn known(&self, name: &str) -> Option<&[f64]> {
        self.known.get(name).map(Vec::as_slice)
    }

    /// Writes the numbers measured under a name.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn add(&mut self, name: &str, numbers: Vec<f64>) -> Result<()> {
        let texts: Vec<String> = numbers.iter().map(f64::to_string).collect();
        self.write(&json!({ "name": name, "numbers": texts }))?;
        self.known.insert(name.to_owned(), numbers);
        Ok(())
    }

    fn write(&mut self, line: &Value) -> Result<()> {
        use std::io::Seek;
        let failed = |path: &Path| format!("cannot write {}", path.display());
        self.file.seek(std::io::SeekFrom::End(0)).with_context(|| failed(&self.path))?;
        self.file.write_all(format!("{line}\n").as_bytes()).with_context(|| failed(&self.path))
    }
}

/// Reads the measurements in complete lines, and the length of these lines in bytes.
fn read(text: &str, identity: &Value, path: &Path) -> Result<(BTreeMap<String, Vec<f64>>, usize)> {
    let (mut known, mut whole) = (BTreeMap::new(), 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if !line.ends_with('\n') {
            break;
        }
        let damaged = || {
            UsageError::new(format!("{}:{}: this line is not a measurement", path.display(), number + 1))
                .hint("measure again with --overwrite, or choose another --out folder")
        };
        let value: Value = serde_json::from_str(line).map_err(|_| damaged())?;
        if number == 0 {
            if value["of"] != *identity {
                let what = format!("{} has measurements of other settings", path.display());
                let hint = "resume with the command that made it, choose another --out folder, or add --overwrite";
                return Err(UsageError::new(what).hint(hint).into());
            }
        } else {
            let numbers = value["numbers"].as_array().ok_or_else(damaged)?;
            let numbers: Option<Vec<f64>> = numbers.iter().map(|text| text.as_str()?.parse().ok()).collect();
            let name = value["name"].as_str().ok_or_else(damaged)?;
            known.insert(name.to_owned(), numbers.ok_or_else(damaged)?);
        }
        whole += line.len();
    }
    Ok((known, whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_back_to_the_bit_and_a_torn_line_is_left_out() {
        let folder = tempfile::TempDir::new().unwrap();
        let identity = json!({"model": "m", "seed": 3});
        let open = |mode, identity: &Value| Journal::open(folder.path(), mode, identity);
        let numbers = vec![0.1 + 0.2, 1.0 / 3.0, 5e-324, -0.0, 1e300, f64::MAX];
        let mut journal = open(OpenMode::Fresh, &identity).unwrap();
        journal.add("a 1", numbers.clone()).unwrap();
        journal.add("b", vec![2.0]).unwrap();
        assert!(open(OpenMode::Resume, &identity).unwrap_err().to_string().contains("another process"));
        drop(journal);
        let path = folder.path().join(FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 3]).unwrap();
        let mut journal = open(OpenMode::Resume, &identity).unwrap();
        let bits = |numbers: &[f64]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(journal.known("a 1").unwrap()), bits(&numbers));
        assert_eq!(journal.known("b"), None);
        journal.add("b", vec![2.0]).unwrap();
        drop(journal);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "as if it had never been stopped");

        let said = |mode, identity: &Value| open(mode, identity).unwrap_err().to_string();
        assert!(said(OpenMode::Fresh, &identity).contains("holds an earlier tuning"));
        assert!(said(OpenMode::Resume, &json!({"model": "m", "seed": 4})).contains("other settings"));
        std::fs::write(&path, format!("{text}x\n")).unwrap();
        assert!(said(OpenMode::Resume, &identity).contains("measured.jsonl:4: this line is not a measurement"));
        let journal = open(OpenMode::Overwrite, &identity).unwrap();
        assert_eq!(journal.known("a 1"), None);
        drop(journal);
        std::fs::remove_file(&path).unwrap();
        owned_files::write_all(folder.path(), &[(ANSWER, "{}")]).unwrap();
        assert!(said(OpenMode::Fresh, &identity).contains("holds an earlier tuning"));
    }
}

//! Where rows are: in a file of lines, in a member of a zip archive, or in a table or document that is turned into lines.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use zip::result::ZipError;

use super::document::document_lines;
use crate::table::{self, TooLarge};
use spattn_base::disk::no_lfs_pointer_at;
use spattn_base::error::UsageError;
use spattn_base::foreign::contain;
use spattn_base::given;

const ARCHIVE_HINT: &str = "it is damaged or not the published archive; `spattn data check` compares it";
const DOCUMENT_HINT: &str =
    "a JSON document is expected: a list of rows, or an object with the rows as its list `data`";
const TABLE_HINT: &str = "a table in Parquet is expected, uncompressed or compressed by Snappy";
const LARGE_HINT: &str =
    "a table is kept in memory as JSON; convert a larger one to JSON lines, which are read one at a time";

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
    /// A Parquet table or a JSON document.
    Table {
        /// The file.
        path: PathBuf,
        /// Its rows as JSON, one a line.
        lines: Arc<Vec<u8>>,
    },
}

impl RowSource {
    /// The rows at a path: of a file of lines, of a table if the name ends in `.parquet`, or of a file in a zip archive, as in
    /// `data.zip/folder/rows.jsonl`.
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

    /// The rows of a JSON document, which is a list of rows or an object with the list `data`. In the latter case, lists of objects
    /// become objects of lists, as in tables on the Hugging Face hub.
    ///
    /// # Errors
    /// [`UsageError`] if the file cannot be read or is not such a document.
    pub fn document(path: &Path) -> Result<Self, UsageError> {
        no_lfs_pointer_at(path)?;
        given::no_packed_at(path)?;
        let lines = document_lines(path)
            .map_err(|e| UsageError::new(format!("cannot read {}: {e:#}", path.display())).hint(DOCUMENT_HINT))?;
        Ok(Self::Table { path: path.to_owned(), lines: Arc::new(lines) })
    }

    /// The file `member` in `archive`; `None` if the archive does not exist or has no such file.
    ///
    /// # Errors
    /// [`UsageError`] if the archive exists but cannot be read.
    pub fn zipped(archive: &Path, member: &str) -> Result<Option<Self>, UsageError> {
        if !archive.is_file() || open_archive(archive)?.index_for_name(member).is_none() {
            return Ok(None);
        }
        read_member(archive, member, |_| Ok::<_, UsageError>(()))?;
        Ok(Some(Self::Zipped { archive: archive.to_owned(), member: member.to_owned() }))
    }

    /// The path, as shown in messages.
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
    pub(super) fn read_from<T>(&self, offset: u64, with: impl FnOnce(&mut dyn BufRead) -> Result<T>) -> Result<T> {
        let context = || format!("cannot read {}", self.label());
        match self {
            Self::File(path) => {
                let mut reader = BufReader::new(given::open(path).with_context(context)?);
                reader.seek(SeekFrom::Start(offset)).with_context(context)?;
                with(&mut reader)
            }
            Self::Zipped { archive, member } => read_member(archive, member, |packed| {
                let mut reader = BufReader::new(packed);
                // A member of an archive can only be read from its beginning.
                io::copy(&mut reader.by_ref().take(offset), &mut io::sink()).with_context(context)?;
                with(&mut reader)
            }),
            Self::Table { lines, .. } => with(&mut lines.get(offset as usize..).unwrap_or_default()),
        }
    }
}

/// Splits a path into an archive and the name of a file in it: `squad.zip/dev/rows.jsonl` into `squad.zip` and `dev/rows.jsonl`.
/// `None` if no part of the path is a file with a name that ends in `.zip`.
pub(crate) fn member_of(path: &Path) -> Option<(PathBuf, String)> {
    let is_archive = |path: &&Path| path.extension().is_some_and(|ending| ending == "zip") && path.is_file();
    let archive = path.ancestors().skip(1).find(is_archive)?;
    let parts: Vec<&str> = path.strip_prefix(archive).ok()?.iter().map(|part| part.to_str()).collect::<Option<_>>()?;
    Some((archive.to_owned(), parts.join("/")))
}

/// Calls `with` with the unpacked bytes of a member of a zip archive.
///
/// # Errors
/// [`UsageError`] if the archive cannot be read or has no such member; the errors of `with`.
pub(crate) fn read_member<T, E: From<UsageError>>(
    archive: &Path,
    member: &str,
    with: impl FnOnce(&mut dyn Read) -> Result<T, E>,
) -> Result<T, E> {
    let mut zip = open_archive(archive)?;
    let mut reader = zip.by_name(member).map_err(|e| match e {
        ZipError::FileNotFound => unreadable(archive, &format!("it has no {member}")),
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

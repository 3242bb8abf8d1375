//! Raw material for generated examples: word lists, generated sentences, and essays from a folder.
//!
//! The families of tasks build needles, lists and documents from it.

pub mod essays;
pub(crate) mod grammar;
pub(crate) mod wikitext;
pub(crate) mod words;

use std::path::Path;

use spattn_base::disk::no_lfs_pointer;
use spattn_base::error::UsageError;
use spattn_base::given;

/// Reads a text file, without the byte order mark that it may start with.
///
/// # Errors
/// If it cannot be read; also the errors of [`decode`].
pub fn read(path: &Path) -> Result<String, UsageError> {
    let bytes = given::bytes(path, given::MOST_OF_TEXT)
        .map_err(|e| UsageError::new(format!("cannot read {}: {e}", path.display())))?;
    decode(bytes, path)
}

/// Decodes the bytes of a text file, without the byte order mark that they may start with; `path` names the file in errors.
///
/// # Errors
/// If the bytes are not UTF-8, since replacing them would change what the model reads (the error names the line); or if the file is
/// a pointer of Git LFS.
pub fn decode(bytes: Vec<u8>, path: &Path) -> Result<String, UsageError> {
    no_lfs_pointer(path.display(), &bytes)?;
    let text = String::from_utf8(bytes).map_err(|e| {
        let (read, why) = (&e.as_bytes()[..e.utf8_error().valid_up_to()], e.utf8_error());
        let line = 1 + read.iter().filter(|byte| **byte == b'\n').count();
        UsageError::new(format!("{}:{line}: not UTF-8: {why}", path.display())).hint("save the file as UTF-8")
    })?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

//! A results folder on disk: the files in it that this program wrote, the process that writes to it, and
//! the log of attempts.
//!
//! The content of files is not known here: records are in `records`.

pub mod attempts;
pub(crate) mod file_signs;
pub mod lease;
pub mod open_file;
pub mod owned_files;

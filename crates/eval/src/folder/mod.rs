//! A results folder on disk: which files this program wrote, who writes to it now, and what was done to it.
//!
//! What the files hold is not known here: records are in `records`.

pub mod attempts;
pub(crate) mod file_signs;
pub mod lease;
pub mod open_file;
pub mod owned_files;

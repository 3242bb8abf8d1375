//! A run's folder.

use std::path::PathBuf;

use serde_json::Value;

/// A run's folder and what was read from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// The path below the folders' common parent; for a single folder, its name.
    pub name: String,
    /// The folder.
    pub dir: PathBuf,
    /// The manifest.
    pub manifest: Value,
    /// The number of records.
    pub records: usize,
}

//! A run's folder.

use std::path::PathBuf;

use serde_json::Value;

/// A run's folder, as it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// Its path below the folders' common parent; for a single folder, its name.
    pub name: String,
    /// The folder.
    pub dir: PathBuf,
    /// Its manifest.
    pub manifest: Value,
    /// The number of its records.
    pub records: usize,
}

//! A run's folder that was read.

use std::path::PathBuf;

use serde_json::Value;

/// A run's folder that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// Its path below what all folders have in common; its name, if it is the only one.
    pub name: String,
    /// The folder.
    pub dir: PathBuf,
    /// Its manifest.
    pub manifest: Value,
    /// Number of records in it.
    pub records: usize,
}

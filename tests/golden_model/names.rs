//! The names of the golden checkpoints.

use std::fs;
use std::path::{Path, PathBuf};

/// The names of all golden checkpoints, sorted: the folders that `scripts/make_golden_models.py` wrote.
pub fn names() -> Vec<String> {
    let folders = fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = folders.collect();
    names.sort();
    names
}

/// The folder of the golden checkpoints, relative to where the tests run or where they were built.
pub fn root() -> PathBuf {
    const MODELS: &str = "tests/golden/models";
    let here = Path::new(MODELS);
    if here.exists() { here.to_owned() } else { Path::new(env!("CARGO_MANIFEST_DIR")).join(MODELS) }
}

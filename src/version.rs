//! The version, commit and build of this program, for `--version` and the manifests of results.

use serde_json::{Value, json};

/// The version of the package.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Twelve digits of the commit that it was built from, with a `+` appended if files had changed; `None` if unknown.
pub const COMMIT: Option<&str> = option_env!("SPATTN_COMMIT");

/// Profile and target of the build, and `cuda` if it has the engine for GPUs.
pub const BUILD: &str = env!("SPATTN_BUILD");

/// Version, commit and build in one line.
pub fn line() -> String {
    format!("{VERSION} ({}, {BUILD})", COMMIT.unwrap_or("unknown commit"))
}

/// Name, version, commit and build for a manifest.
pub fn as_json() -> Value {
    json!({ "name": "spattn", "version": VERSION, "commit": COMMIT, "build": BUILD })
}

//! What this program is, as `--version` and the manifests of results say it.

use serde_json::{Value, json};

/// Of the package.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Twelve digits of the commit that it was built from, with a `+` behind them if files were changed since; `None` where
/// nobody knows.
pub const COMMIT: Option<&str> = option_env!("SPATTN_COMMIT");

/// Profile and target of the build, and `cuda` if it has the engine for GPUs.
pub const BUILD: &str = env!("SPATTN_BUILD");

/// Version, commit and build in one line.
pub fn line() -> String {
    format!("{VERSION} ({}, {BUILD})", COMMIT.unwrap_or("unknown commit"))
}

/// The same for a manifest.
pub fn as_json() -> Value {
    json!({ "name": "spattn", "version": VERSION, "commit": COMMIT, "build": BUILD })
}

//! What this program was built from, for `--version` and the manifests of results.

use spattn_eval::program::Program;

/// This program.
pub const PROGRAM: Program =
    Program { version: env!("CARGO_PKG_VERSION"), commit: option_env!("SPATTN_COMMIT"), build: env!("SPATTN_BUILD") };

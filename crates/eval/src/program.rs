//! The program that makes a run, as manifests record it: version, commit and build.

use serde_json::{Value, json};

/// A program, identified by version, commit and build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// Its version.
    pub version: &'static str,
    /// The first twelve digits of the commit that it was built from, with a final `+` if files had changed since; `None` if not
    /// known.
    pub commit: Option<&'static str>,
    /// The profile and target of the build, and `cuda` if it has the GPU engine.
    pub build: &'static str,
}

impl Program {
    /// Version, commit and build in one line.
    pub fn line(&self) -> String {
        format!("{} ({}, {})", self.version, self.commit.unwrap_or("unknown commit"), self.build)
    }

    /// The program as manifests record it.
    pub fn as_json(&self) -> Value {
        json!({ "name": "spattn", "version": self.version, "commit": self.commit, "build": self.build })
    }

    /// Whether `recorded`, from a manifest, is this program. A program built from uncommitted changes is never the same, because
    /// another one with the same version and commit may differ.
    pub fn is(&self, recorded: &Value) -> bool {
        let own = self.as_json();
        let is_committed = self.commit.is_none_or(|commit| !commit.ends_with('+'));
        is_committed && ["version", "commit"].iter().all(|key| recorded[*key] == own[*key])
    }
}

//! The program that makes a run: its version, commit and build, which manifests record.

use serde_json::{Value, json};

/// A program by version, commit and build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// Its version.
    pub version: &'static str,
    /// The first twelve digits of the commit that it was built from, with a `+` at the end if files had changed since; `None` if
    /// not known.
    pub commit: Option<&'static str>,
    /// Profile and target of the build, and `cuda` if it has the engine for GPUs.
    pub build: &'static str,
}

impl Program {
    /// One line: version, commit and build.
    pub fn line(&self) -> String {
        format!("{} ({}, {})", self.version, self.commit.unwrap_or("unknown commit"), self.build)
    }

    /// As manifests have it.
    pub fn as_json(&self) -> Value {
        json!({ "name": "spattn", "version": self.version, "commit": self.commit, "build": self.build })
    }

    /// Whether `recorded`, from a manifest, is this program. A program built from uncommitted files may differ from another of equal
    /// name, so it is never the same.
    pub fn is(&self, recorded: &Value) -> bool {
        let own = self.as_json();
        let is_committed = self.commit.is_none_or(|commit| !commit.ends_with('+'));
        is_committed && ["version", "commit"].iter().all(|key| recorded[*key] == own[*key])
    }
}

//! Where a data set comes from: a folder, or a data set repository on the hub.
//!
//! What its files mean, and which are wanted, is known to those who ask.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::files::matching_files;
use super::hub::{self, HubOptions, Wanted};
use spattn_base::error::UsageError;
use spattn_base::privacy;

/// What tells a data set on the hub from a folder.
const PREFIX: &str = "hub:";

/// A data set as the user named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataSource {
    /// A folder.
    Folder(PathBuf),
    /// A data set repository on the hub.
    Hub {
        /// `organisation/name`.
        repo: String,
        /// Branch, tag or commit; `main` if absent.
        revision: Option<String>,
    },
}

/// A data set on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFolder {
    /// Where its files are.
    pub folder: PathBuf,
    /// What a run is recorded with: the folder, or repository, commit and number of files.
    ///
    /// Branches move, so the commit stands for whatever name led to it; the number tells an incomplete
    /// copy from a complete one.
    pub id: String,
    /// What the user should know about how the files were found, a line each.
    pub notes: Vec<String>,
}

impl DataSource {
    /// Reads `hub:org/name[@revision]`; anything else is a folder, which need not exist.
    ///
    /// # Errors
    /// If what follows `hub:` is no such name.
    pub fn parse(spec: &Path) -> Result<Self, UsageError> {
        let Some(id) = spec.to_str().and_then(|s| s.strip_prefix(PREFIX)) else {
            return Ok(Self::Folder(spec.to_owned()));
        };
        let (repo, revision) = hub::parse_id(id).ok_or_else(|| {
            UsageError::new(format!("`{PREFIX}{id}` is no data set on the hub"))
                .hint("give `hub:organisation/name` or `hub:organisation/name@revision`, or a folder")
        })?;
        Ok(Self::Hub { repo, revision })
    }

    /// Finds the folder, downloading from the hub those files that match `patterns` (paths, with at most
    /// one `*` in the last part) and are not in its cache; the environment decides on cache, endpoint,
    /// token and being offline ([`HubOptions::from_env`]).
    ///
    /// # Errors
    /// A [`UsageError`] if the hub's data set is not to be had or has no such file.
    pub fn resolve(&self, patterns: &[&str]) -> Result<DataFolder> {
        match self {
            Self::Hub { .. } => self.resolve_with(patterns, &HubOptions::from_env()?),
            Self::Folder(path) => Ok(DataFolder { folder: path.clone(), id: privacy::path(path), notes: Vec::new() }),
        }
    }

    /// As [`resolve`](Self::resolve), with given options for the hub.
    pub fn resolve_with(&self, patterns: &[&str], options: &HubOptions) -> Result<DataFolder> {
        let Self::Hub { repo, revision } = self else { return self.resolve(patterns) };
        let snapshot = hub::snapshot(repo, revision.as_deref(), Wanted::Data(patterns), options)?;
        let files = matching_files(&snapshot.folder, patterns).len();
        let id = format!("{PREFIX}{repo}@{} (files: {files})", snapshot.commit);
        Ok(DataFolder { folder: snapshot.folder, id, notes: snapshot.notes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(spec: &str) -> Result<DataSource, UsageError> {
        DataSource::parse(Path::new(spec))
    }

    #[test]
    fn only_the_prefix_makes_it_a_hub_id() {
        let hub =
            |revision: Option<&str>| DataSource::Hub { repo: "org/data".into(), revision: revision.map(str::to_owned) };
        assert_eq!(parse("hub:org/data").unwrap(), hub(None));
        assert_eq!(parse("hub:org/data@v1").unwrap(), hub(Some("v1")));
        for folder in ["org/data", "./hub:org/data", "data@v1"] {
            assert_eq!(parse(folder).unwrap(), DataSource::Folder(folder.into()));
        }
    }

    #[test]
    fn a_malformed_id_is_a_mistake() {
        for spec in ["hub:", "hub:data", "hub:datasets/org/data", "hub:org/data@", "hub:org/data@../x", "hub:../x"] {
            let error = parse(spec).unwrap_err();
            assert_eq!(error.what, format!("`{spec}` is no data set on the hub"));
            assert!(error.hint.unwrap().contains("hub:organisation/name@revision"));
        }
    }
}

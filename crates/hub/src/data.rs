//! The source of a data set: a folder, or a data set repository on the hub.
//!
//! The callers know what its files mean and which ones are needed.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::cache::Lack;
use crate::id;
use crate::options::HubOptions;
use crate::patterns::{is_match, matching_files};
use crate::remote::RepoKind;
use crate::repository::{CachedCommit, FetchedCommit, Obstacle};
use crate::snapshot::snapshot;
use crate::wanted::Wanted;
use spattn_base::error::UsageError;
use spattn_base::privacy;

/// The prefix that tells a data set on the hub from a folder.
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
    /// The folder with its files.
    pub folder: PathBuf,
    /// The data set's name in a run's record: the folder, or repository, commit and number of files.
    ///
    /// Branches move, so the commit identifies the data whatever name was given; the number shows whether a copy is complete.
    pub id: String,
    /// What the user should know about how the files were found, one line each.
    pub notes: Vec<String>,
}

impl DataSource {
    /// Reads `hub:org/name[@revision]`; anything else is a folder, which need not exist.
    ///
    /// # Errors
    /// If what follows `hub:` is not a valid name.
    pub fn parse(spec: &Path) -> Result<Self, UsageError> {
        let Some(id) = spec.to_str().and_then(|s| s.strip_prefix(PREFIX)) else {
            return Ok(Self::Folder(spec.to_owned()));
        };
        let (repo, revision) = id::parse_id(id).ok_or_else(|| {
            UsageError::new(format!("`{PREFIX}{id}` is not the name of a data set on the hub"))
                .hint("give `hub:organisation/name` or `hub:organisation/name@revision`, or a folder")
        })?;
        Ok(Self::Hub { repo, revision })
    }

    /// Finds the folder. For a data set on the hub, downloads the files that match `patterns` (paths, with at most one `*` in
    /// the last part) and are not in the cache; the environment determines cache, endpoint, token and offline mode
    /// ([`HubOptions::from_env`]).
    ///
    /// # Errors
    /// A [`UsageError`] if the hub's data set is not available or has no such file.
    pub fn resolve(&self, patterns: &[&str]) -> Result<DataFolder> {
        match self {
            Self::Hub { .. } => self.resolve_with(patterns, &HubOptions::from_env()?),
            Self::Folder(path) => Ok(DataFolder { folder: path.clone(), id: privacy::path(path), notes: Vec::new() }),
        }
    }

    /// Like [`resolve`](Self::resolve), with given options for the hub.
    pub fn resolve_with(&self, patterns: &[&str], options: &HubOptions) -> Result<DataFolder> {
        let Self::Hub { repo, revision } = self else { return self.resolve(patterns) };
        let snapshot = snapshot(repo, revision.as_deref(), &DataFiles(patterns), options)?;
        let files = matching_files(&snapshot.folder, patterns).len();
        let id = format!("{PREFIX}{repo}@{} (files: {files})", snapshot.commit);
        Ok(DataFolder { folder: snapshot.folder, id, notes: snapshot.notes })
    }
}

/// The files of a data set whose paths match one of these patterns.
///
/// Matching files alone do not show whether one is missing, so the cache also stores the names of all files of a commit.
struct DataFiles<'a>(&'a [&'a str]);

impl DataFiles<'_> {
    /// The commit's files that match, if the cache has its file names.
    fn names(&self, cached: &CachedCommit<'_>) -> Option<Vec<String>> {
        Some(cached.names()?.into_iter().filter(|name| is_match(name, self.0)).collect())
    }
}

impl Wanted for DataFiles<'_> {
    fn kind(&self) -> RepoKind {
        RepoKind::Dataset
    }

    fn first(&self) -> Lack {
        Lack::Missing("the data set".to_owned())
    }

    fn first_lack(&self, cached: &CachedCommit<'_>) -> Option<Lack> {
        if let Some(names) = self.names(cached).filter(|names| !names.is_empty()) {
            return names.iter().find_map(|name| cached.lack(name));
        }
        let found = matching_files(&cached.folder(), self.0);
        match found.is_empty() {
            true => Some(self.first()),
            false => found.iter().find_map(|name| cached.lack(name)),
        }
    }

    fn is_known(&self, cached: &CachedCommit<'_>) -> bool {
        self.names(cached).is_some()
    }

    fn doubt(&self, repo: &str, cached: &CachedCommit<'_>, obstacle: &Obstacle) -> Option<String> {
        let doubt = || format!("{repo}: the cache may not have all files of this data set ({obstacle})");
        (!self.is_known(cached)).then(doubt)
    }

    fn fetch(&self, commit: &FetchedCommit<'_>) -> Result<()> {
        let mut names = commit.names();
        names.retain(|name| is_match(name, self.0));
        if names.is_empty() {
            let what = format!("{}: the data set has none of the files that tasks read", commit.repo());
            return Err(UsageError::new(what).hint(format!("these are read: {}", self.0.join(", "))).into());
        }
        // Stored first, so that an interrupted download is recognised as incomplete.
        commit.note_names()?;
        names.into_iter().try_for_each(|name| commit.fetch(name))
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
            assert_eq!(error.what, format!("`{spec}` is not the name of a data set on the hub"));
            assert!(error.hint.unwrap().contains("hub:organisation/name@revision"));
        }
    }
}

//! Finds the wanted files of a repository in the cache, or downloads them into it.
//!
//! Files that are complete in the cache need no network. The revision is resolved to a commit first and all files are taken from it,
//! so a snapshot never mixes versions. A file enters the cache only if its size and hash are those that the hub states, and it is
//! checked again whenever it is used.

use std::path::PathBuf;

use anyhow::{Context, Result};
use hf_hub::Repo;

use crate::cache::RepoCache;
use crate::options::HubOptions;
use crate::remote::{Listing, Remote};
use crate::repository::{CachedCommit, FetchedCommit, Obstacle, Repository, is_commit};
use crate::wanted::Wanted;

/// A commit's files in the cache.
#[derive(Debug)]
pub struct Snapshot {
    /// The folder with these files.
    pub folder: PathBuf,
    /// The commit.
    pub commit: String,
    /// What the user should know about how the files were found, one line each.
    pub notes: Vec<String>,
}

/// Finds the wanted files in the cache or downloads them.
///
/// # Errors
/// One line with what to do about it: the hub has no such repository or file, denies access or cannot be reached, and the cache does
/// not have all wanted files.
pub fn snapshot(repo: &str, revision: Option<&str>, wanted: &dyn Wanted, options: &HubOptions) -> Result<Snapshot> {
    let cache = std::path::absolute(&options.cache).with_context(|| format!("{}", options.cache.display()))?;
    let (kind, revision) = (wanted.kind(), revision.unwrap_or("main"));
    let named = Repo::with_revision(repo.to_owned(), kind.into(), revision.to_owned());
    let cache = RepoCache::new(cache, named, wanted.damage_check());
    let repository = Repository { repo, revision, kind, cache, options };
    let search = Search { repository: &repository, wanted };
    let cached = repository.cached_commit();
    if let Some(commit) = &cached
        && wanted.first_lack(&search.cached(commit)).is_none()
        && wanted.is_known(&search.cached(commit))
    {
        return Ok(search.snapshot(commit, Vec::new()));
    }
    if options.offline {
        return search.cache_alone(cached, &Obstacle::Offline);
    }
    let remote = repository.remote()?;
    match remote.listing(repository.revision) {
        Ok(listing) => search.download(&remote, &listing),
        Err(error) => search.cache_alone(cached, &Obstacle::Http(error)),
    }
}

/// A repository, and the files that are wanted.
struct Search<'a> {
    repository: &'a Repository<'a>,
    wanted: &'a dyn Wanted,
}

impl Search<'_> {
    fn cached<'a>(&'a self, commit: &'a str) -> CachedCommit<'a> {
        CachedCommit { cache: &self.repository.cache, commit }
    }

    fn snapshot(&self, commit: &str, notes: Vec<String>) -> Snapshot {
        Snapshot { folder: self.repository.cache.snapshot(commit), commit: commit.to_owned(), notes }
    }

    /// The snapshot in the cache, used because of `obstacle`, if it has all required files.
    fn cache_alone(&self, cached: Option<String>, obstacle: &Obstacle) -> Result<Snapshot> {
        let lack = match &cached {
            Some(commit) => self.wanted.first_lack(&self.cached(commit)),
            None => Some(self.wanted.first()),
        };
        match (cached, lack) {
            (Some(commit), None) => {
                let doubt = self.wanted.doubt(self.repository.repo, &self.cached(&commit), obstacle);
                Ok(self.snapshot(&commit, doubt.into_iter().collect()))
            }
            (_, lack) => Err(self.repository.unreachable(&lack.unwrap_or_else(|| self.wanted.first()), obstacle)),
        }
    }

    fn download(&self, remote: &Remote<'_>, listing: &Listing) -> Result<Snapshot> {
        let (commit, repository) = (&listing.commit, self.repository);
        if !is_commit(commit) {
            anyhow::bail!("{}: the hub states `{commit}` as the commit, which is not a commit hash", repository.repo);
        }
        self.wanted.fetch(&FetchedCommit { repository, remote, listing })?;
        if repository.revision != commit {
            repository.cache.note_commit(repository.revision, commit)?;
        }
        Ok(self.snapshot(commit, Vec::new()))
    }
}

//! What is wanted of a repository.

use anyhow::Result;

use crate::cache::{DamageCheck, Lack, by_hash};
use crate::remote::RepoKind;
use crate::repository::{CachedCommit, FetchedCommit, Obstacle};

/// What is wanted of a repository: which files, how to tell that the cache has them, and in which order they are fetched.
pub trait Wanted {
    /// The kind of repository that has such files.
    fn kind(&self) -> RepoKind;

    /// What errors call missing where the cache has nothing at all.
    fn first(&self) -> Lack;

    /// The first required file that the cache does not have, or not as it was published.
    fn first_lack(&self, cached: &CachedCommit<'_>) -> Option<Lack>;

    /// Whether the cache tells that the commit has nothing more that is wanted.
    fn is_known(&self, cached: &CachedCommit<'_>) -> bool;

    /// What the user should know where the cache has to do because of `obstacle`, and may lack something that the commit has.
    fn doubt(&self, repo: &str, cached: &CachedCommit<'_>, obstacle: &Obstacle) -> Option<String>;

    /// Gets all that is wanted into the cache.
    ///
    /// # Errors
    /// If the commit does not have it, or [a file cannot be fetched](FetchedCommit::fetch).
    fn fetch(&self, commit: &FetchedCommit<'_>) -> Result<()>;

    /// How files in the cache are compared with the published ones.
    fn damage_check(&self) -> DamageCheck {
        by_hash
    }
}

//! The files that are wanted from a repository.

use anyhow::Result;

use crate::cache::{DamageCheck, Lack, by_hash};
use crate::remote::RepoKind;
use crate::repository::{CachedCommit, FetchedCommit, Obstacle};

/// The files that are wanted from a repository: which ones, how to tell whether the cache has them, and in which order they
/// are fetched.
pub trait Wanted {
    /// The kind of repository that has these files.
    fn kind(&self) -> RepoKind;

    /// What errors report as missing if nothing is cached.
    fn first(&self) -> Lack;

    /// The first required file that is missing in the cache, or differs from the published one.
    fn first_lack(&self, cached: &CachedCommit<'_>) -> Option<Lack>;

    /// Whether the cache shows that the commit has no further wanted files.
    fn is_known(&self, cached: &CachedCommit<'_>) -> bool;

    /// A note for the user if only the cache can be used because of `obstacle`, and the commit may have wanted files that it
    /// lacks.
    fn doubt(&self, repo: &str, cached: &CachedCommit<'_>, obstacle: &Obstacle) -> Option<String>;

    /// Fetches all wanted files into the cache.
    ///
    /// # Errors
    /// If the commit does not have them, or [a file cannot be fetched](FetchedCommit::fetch).
    fn fetch(&self, commit: &FetchedCommit<'_>) -> Result<()>;

    /// How files in the cache are compared with the published ones.
    fn damage_check(&self) -> DamageCheck {
        by_hash
    }
}

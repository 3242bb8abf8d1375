//! The cache on disk, in the layout that other Hugging Face tools use.
//!
//! `blobs/` has each file under its version on the hub, for most files a hash; `snapshots/COMMIT/` has links to these under the
//! names in the repository, `refs/` the commits of branches and tags, and `.no_exist/COMMIT/` the names of files that a commit does
//! not have. Locks are in `.locks/`, beside the repositories.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use hf_hub::{Cache, CacheRepo, Repo};

use crate::checksum::Blob;

/// A repository's folder in the cache. `hf_hub` gives the folders' names; this type fills them.
#[derive(Debug)]
pub(crate) struct RepoCache {
    /// The folder of the cache.
    pub cache: PathBuf,
    /// The folder's name in the cache.
    name: String,
    snapshots: CacheRepo,
    /// How files are compared with the published ones.
    damage: DamageCheck,
}

/// Says how a cached file differs from the published one, given its name in the repository; `None` if no difference is found by the
/// check, which may be partial.
pub type DamageCheck = fn(&str, &Blob) -> Option<String>;

/// Compares the whole file with the hash that is its name.
pub fn by_hash(_: &str, blob: &Blob) -> Option<String> {
    blob.difference().unwrap_or_else(|e| Some(format!("it cannot be read: {e}")))
}

/// Why a file is not in the cache as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lack {
    /// It is missing; with its name in error messages.
    Missing(String),
    /// It exists, but is not what was published.
    Damaged {
        /// Its name in the repository.
        name: String,
        /// What is wrong.
        difference: String,
    },
}

impl RepoCache {
    /// The folder of a repository in the cache folder `cache`.
    pub fn new(cache: PathBuf, repo: Repo, damage: DamageCheck) -> Self {
        let name = repo.folder_name();
        Self { snapshots: Cache::new(cache.clone()).repo(repo), cache, name, damage }
    }

    fn root(&self) -> PathBuf {
        self.cache.join(&self.name)
    }

    /// The folder with a commit's files.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.snapshots.pointer_path(commit)
    }

    /// The path of a version of a file.
    pub fn blob(&self, version: &str) -> PathBuf {
        self.root().join("blobs").join(version)
    }

    /// The lock on which processes that download the same version wait for each other.
    pub fn lock(&self, version: &str) -> PathBuf {
        self.cache.join(".locks").join(&self.name).join(format!("{version}.lock"))
    }

    /// The path of the note that a commit does not have a file.
    pub fn absence(&self, commit: &str, file: &str) -> PathBuf {
        self.root().join(".no_exist").join(commit).join(file)
    }

    /// The path of the names of all files in a data set's commit; no other tool reads it.
    fn names_file(&self, commit: &str) -> PathBuf {
        self.root().join(".spattn").join(format!("{commit}.json"))
    }

    /// The commit of a branch or tag when the hub was last asked.
    pub fn commit_of(&self, revision: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.root().join("refs").join(revision)).ok()?;
        Some(text.trim().to_owned())
    }

    /// Stores the commit of a branch or tag.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn note_commit(&self, revision: &str, commit: &str) -> Result<()> {
        write_aside(&self.root().join("refs").join(revision), commit)
    }

    /// The names of all files of a commit, if they are stored.
    pub fn names(&self, commit: &str) -> Option<Vec<String>> {
        let text = std::fs::read_to_string(self.names_file(commit)).ok()?;
        // If it is malformed, the hub is asked again.
        serde_json::from_str(&text).ok()
    }

    /// Stores the names of all files of a commit.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn note_names(&self, commit: &str, names: &[&str]) -> Result<()> {
        write_aside(&self.names_file(commit), &serde_json::to_string(names)?)
    }

    /// Stores that a commit does not have a file.
    pub fn note_absence(&self, commit: &str, name: &str) {
        let path = self.absence(commit, name);
        // It only saves a request next time, so a failure does not matter.
        let _ = path.parent().map(std::fs::create_dir_all);
        let _ = std::fs::write(path, "");
    }

    /// What is wrong with a file of a commit; `None` if it exists and the check finds no difference from the published one.
    pub fn lack(&self, commit: &str, name: &str) -> Option<Lack> {
        let path = self.snapshot(commit).join(name);
        if !path.is_file() {
            return Some(Lack::Missing(format!("`{name}`")));
        }
        let difference = (self.damage)(name, &Blob::behind(&path)?);
        difference.map(|difference| Lack::Damaged { name: name.to_owned(), difference })
    }

    /// Links a version of a file to its name in a commit.
    ///
    /// # Errors
    /// If the link cannot be made.
    pub fn link(&self, version: &str, commit: &str, name: &str) -> Result<()> {
        let link = self.snapshot(commit).join(name);
        let cannot = || format!("cannot write {}", link.display());
        if let Some(folder) = link.parent() {
            std::fs::create_dir_all(folder).with_context(cannot)?;
        }
        // A relative path from the link's folder to the repository's, so that links stay valid when the cache is moved.
        let up = "../".repeat(2 + name.matches('/').count());
        let aside = aside(&link);
        make_link(Path::new(&format!("{up}blobs/{version}")), &self.blob(version), &aside).with_context(cannot)?;
        // Renaming atomically replaces an existing link, which may be dangling.
        std::fs::rename(&aside, &link).with_context(cannot)
    }
}

#[cfg(unix)]
fn make_link(relative: &Path, _blob: &Path, link: &Path) -> io::Result<()> {
    match std::fs::remove_file(link) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    std::os::unix::fs::symlink(relative, link)
}

#[cfg(not(unix))]
fn make_link(_relative: &Path, blob: &Path, link: &Path) -> io::Result<()> {
    // Symbolic links need a privilege on other systems.
    std::fs::hard_link(blob, link)
}

/// A path beside `path` that no other process or thread uses.
fn aside(path: &Path) -> PathBuf {
    static USED: AtomicU64 = AtomicU64::new(0);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}-{}.tmp", std::process::id(), USED.fetch_add(1, Ordering::Relaxed)));
    PathBuf::from(name)
}

/// Writes a small file atomically: it exists complete or not at all.
fn write_aside(path: &Path, text: &str) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(cannot)?;
    }
    let aside = aside(path);
    std::fs::write(&aside, text).with_context(cannot)?;
    std::fs::rename(&aside, path).with_context(cannot)
}

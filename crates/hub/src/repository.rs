//! One revision of a repository: its files in the cache, and fetching those that are not there.
//!
//! [`Wanted`](crate::Wanted) says which files are needed.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::cache::{Lack, RepoCache};
use crate::download::{DownloadError, Downloader, FROM_START, Job};
use crate::env::check_token;
use crate::http::{Client, HttpError, Refusal, parse_url, without_user};
use crate::options::{HubOptions, offline_by};
use crate::remote::{Listing, Remote, RepoKind};
use spattn_base::error::{RunFailure, UsageError};

/// Why the hub was not or could not be asked.
pub enum Obstacle {
    /// A variable forbids network access.
    Offline,
    /// The request to the hub failed.
    Http(HttpError),
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Offline => write!(f, "{} is set", offline_by().unwrap_or("HF_HUB_OFFLINE")),
            Self::Http(error) => error.fmt(f),
        }
    }
}

/// One revision of a repository.
pub(crate) struct Repository<'a> {
    /// `organisation/name`.
    pub repo: &'a str,
    /// A branch, tag or commit.
    pub revision: &'a str,
    /// The kind of repository.
    pub kind: RepoKind,
    /// Its folder in the cache.
    pub cache: RepoCache,
    /// How to reach the hub.
    pub options: &'a HubOptions,
}

impl Repository<'_> {
    /// The repository on the hub.
    ///
    /// # Errors
    /// If the hub's URL or the token is invalid.
    pub fn remote(&self) -> Result<Remote<'_>, UsageError> {
        let endpoint = parse_url(&self.options.endpoint)
            .map_err(|e| UsageError { what: format!("the hub's address (HF_ENDPOINT): {}", e.what), ..e })?;
        let client = Client::new(self.options.timeouts);
        let client = match &self.options.token {
            Some(token) => {
                check_token(token)?;
                client.with_token(&endpoint, token)
            }
            None => client,
        };
        let downloader = Downloader { client, backoff: self.options.backoff, progress: self.options.progress };
        Ok(Remote { downloader, endpoint, repo: self.repo, kind: self.kind })
    }

    /// The commit of the revision according to the cache.
    pub fn cached_commit(&self) -> Option<String> {
        match self.cache.commit_of(self.revision) {
            Some(commit) => Some(commit).filter(|c| is_commit(c)),
            // A full commit hash needs no reference.
            None => is_commit(self.revision).then(|| self.revision.to_owned()),
        }
    }

    /// The error for something that the cache lacks and that cannot be requested.
    pub fn unreachable(&self, lack: &Lack, obstacle: &Obstacle) -> anyhow::Error {
        let cache = self.cache.cache.display();
        let lack = match lack {
            Lack::Missing(name) => format!("{name} is not in the cache {cache}"),
            Lack::Damaged { name, difference } => format!("`{name}` in the cache {cache} is damaged ({difference})"),
        };
        let what = format!("{}: {lack} and cannot be downloaded: {obstacle}", self.repo);
        match obstacle {
            Obstacle::Offline => UsageError::new(what).hint(format!("unset it, or {}", self.elsewhere())).into(),
            Obstacle::Http(HttpError::Refused(refusal)) if is_denial(refusal) => self.denied(refusal, None).into(),
            Obstacle::Http(error) => RunFailure { what, hint: self.advice(error, FROM_START) }.into(),
        }
    }

    /// What to do about a failure; without network, another machine may download the files.
    fn advice(&self, error: &HttpError, again: &str) -> String {
        match error {
            HttpError::Unresolved { .. } | HttpError::Unconnected { .. } => {
                format!("{}; or {}", error.hint(again), self.elsewhere())
            }
            _ => error.hint(again),
        }
    }

    fn elsewhere(&self) -> String {
        let revision = match self.revision {
            "main" => String::new(),
            other => format!(" --revision {other}"),
        };
        let (option, repo) = (self.kind.tool_option(), self.repo);
        format!(
            "download it on a machine with network (`hf download{option} {repo}{revision}`) and copy the cache, or give a local folder"
        )
    }

    /// The error for a hub that denies access or does not have the requested thing.
    fn denied(&self, refusal: &Refusal, file: Option<&str>) -> UsageError {
        let (repo, noun, endpoint) = (self.repo, self.kind.noun(), without_user(&self.options.endpoint));
        let (code, has_token) = (refusal.code.as_deref().unwrap_or_default(), self.options.token.is_some());
        let with_token = format!("set HF_TOKEN, or log in with `hf auth login`, for private and gated {noun}s");
        let (what, hint) = match (refusal.status, code, file) {
            (_, "GatedRepo", _) => {
                let page = match self.kind {
                    RepoKind::Model => format!("{endpoint}/{repo}"),
                    RepoKind::Dataset => format!("{endpoint}/datasets/{repo}"),
                };
                let token = if has_token { "the token's account" } else { "an account, and set HF_TOKEN to its token" };
                (
                    format!("access to this {noun} is restricted"),
                    format!("accept its conditions at {page} with {token}"),
                )
            }
            (_, "RevisionNotFound", _) => {
                (format!("the hub has no revision `{}` of this {noun}", self.revision), "check the spelling".to_owned())
            }
            (404, _, Some(file)) => (
                format!("the hub lists `{file}` and does not have it"),
                "the repository may have changed; run the same command again, or name another revision".to_owned(),
            ),
            (404, _, None) | (_, "RepoNotFound", _) if has_token => (
                format!("the hub has no revision `{}` of this {noun}, or the token may not see it", self.revision),
                format!("check the spelling, and whose token HF_TOKEN or the token file has; see {endpoint}/{repo}"),
            ),
            (404, _, None) | (_, "RepoNotFound", _) => (
                format!("the hub has no revision `{}` of this {noun}, or denies access", self.revision),
                format!("check the spelling; {with_token}"),
            ),
            (401, ..) if has_token => (
                "the hub does not accept the token".to_owned(),
                format!("HF_TOKEN or the token file may be mistyped or expired; get one at {endpoint}/settings/tokens"),
            ),
            (_, _, _) if has_token => (
                format!("the hub denies the token access to this {noun}"),
                format!("the token needs the right to read {repo}; see {endpoint}/settings/tokens"),
            ),
            _ => (format!("the hub denies access to this {noun} without a token"), with_token),
        };
        UsageError::new(format!("{repo}: {what} ({refusal})")).hint(hint)
    }

    /// Gets a file into the cache, unless it is already there as published.
    fn fetch(&self, remote: &Remote<'_>, commit: &str, name: &str) -> Result<()> {
        match self.cache.lack(commit, name) {
            None => return Ok(()),
            Some(Lack::Damaged { difference, .. }) => {
                eprintln!("note: {}: `{name}` in the cache is damaged ({difference}); downloading it again", self.repo);
            }
            Some(Lack::Missing(_)) => {}
        }
        let url = remote.file(commit, name);
        let stated = remote.stated(name, &url).map_err(|e| self.not_fetched(name, e.into(), FROM_START))?;
        let (target, lock) = (self.cache.blob(&stated.version), self.cache.lock(&stated.version));
        let [unfinished, earlier] = ["incomplete", "part"].map(|end| with_ending(&target, end));
        let label = format!("{}: `{name}`", self.repo);
        let job = Job {
            name: &label,
            url: url.as_str(),
            target: &target,
            unfinished: &unfinished,
            earlier: Some(&earlier),
            lock: &lock,
            expected: stated.expected(),
        };
        remote.downloader.get(&job).map_err(|e| self.not_fetched(name, e, job.again()))?;
        self.cache.link(&stated.version, commit, name)
    }

    fn not_fetched(&self, name: &str, error: DownloadError, again: &str) -> anyhow::Error {
        let what = format!("{}: `{name}` cannot be downloaded: {error}", self.repo);
        let hint = match &error {
            DownloadError::Http(HttpError::Refused(refusal)) if is_denial(refusal) => {
                return self.denied(refusal, Some(name)).into();
            }
            DownloadError::Http(error) => self.advice(error, again),
            DownloadError::Unwritable { .. } => format!("{}, or set HF_HOME to another one", error.hint(again)),
            _ => error.hint(again),
        };
        RunFailure { what, hint }.into()
    }
}

/// The cached files of a commit.
pub struct CachedCommit<'a> {
    pub(crate) cache: &'a RepoCache,
    pub(crate) commit: &'a str,
}

impl CachedCommit<'_> {
    /// The folder with the commit's files.
    pub fn folder(&self) -> PathBuf {
        self.cache.snapshot(self.commit)
    }

    /// What is wrong with a file; `None` if it is cached as published.
    pub fn lack(&self, name: &str) -> Option<Lack> {
        self.cache.lack(self.commit, name)
    }

    /// Whether the cache has a note that the commit has no file with this name.
    pub fn is_known_to_be_absent(&self, name: &str) -> bool {
        self.cache.absence(self.commit, name).is_file()
    }

    /// The names of all files of the commit, if they are cached.
    pub fn names(&self) -> Option<Vec<String>> {
        self.cache.names(self.commit)
    }
}

/// A commit on the hub whose files are fetched into the cache.
pub struct FetchedCommit<'a> {
    pub(crate) repository: &'a Repository<'a>,
    pub(crate) remote: &'a Remote<'a>,
    pub(crate) listing: &'a Listing,
}

impl FetchedCommit<'_> {
    /// `organisation/name`.
    pub fn repo(&self) -> &str {
        self.repository.repo
    }

    /// The names of all files.
    pub fn names(&self) -> Vec<&str> {
        self.listing.names().collect()
    }

    /// Whether the commit has a file with this name.
    pub fn has(&self, name: &str) -> bool {
        self.listing.has(name)
    }

    /// The architecture that the repository's GGUF files state, if the hub has read it.
    pub fn gguf_architecture(&self) -> Option<&str> {
        self.listing.gguf_architecture()
    }

    /// The cache folder with the commit's files.
    pub fn folder(&self) -> PathBuf {
        self.repository.cache.snapshot(&self.listing.commit)
    }

    /// Stores in the cache that the commit has no file with this name.
    pub fn note_absence(&self, name: &str) {
        self.repository.cache.note_absence(&self.listing.commit, name);
    }

    /// Stores the names of all files in the cache.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn note_names(&self) -> Result<()> {
        self.repository.cache.note_names(&self.listing.commit, &self.names())
    }

    /// Gets a file into the cache, unless it is already there as published.
    ///
    /// # Errors
    /// One line with what to do about it: the hub refuses or cannot be reached, the received file is another one, or the cache
    /// cannot be written.
    pub fn fetch(&self, name: &str) -> Result<()> {
        self.repository.fetch(self.remote, &self.listing.commit, name)
    }
}

/// Whether the hub itself answers that access is denied, or that the requested thing does not exist.
fn is_denial(refusal: &Refusal) -> bool {
    refusal.by_first_host && matches!(refusal.status, 401 | 403 | 404 | 410)
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{ending}"));
    PathBuf::from(name)
}

pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

//! The hub's cache on disk, and downloading into it.
//!
//! The cache has the layout that other Hugging Face tools use, so a model that one of them has
//! downloaded is found. A model that is complete in the cache needs no network. One commit is
//! resolved first and all files are taken from it, so a snapshot never mixes versions.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};
use hf_hub::api::RepoInfo;
use hf_hub::api::sync::{Api, ApiBuilder};
use hf_hub::{Cache, Repo, RepoType};

use super::source::{CHAT_TEMPLATE, CONFIG, GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG};
use super::weights::{INDEX_FILE, SINGLE_FILE, shard_names};
use crate::error::UsageError;

/// Files a model may do without. They come first, so that complete weights imply they were looked for.
const OPTIONAL: [&str; 3] = [TOKENIZER_CONFIG, GENERATION_CONFIG, CHAT_TEMPLATE];

/// How to reach the hub and where its cache is.
#[derive(Debug, Clone)]
pub struct HubOptions {
    /// Folder of the cache.
    pub cache: PathBuf,
    /// Address of the hub.
    pub endpoint: String,
    /// Access token for private and gated models.
    pub token: Option<String>,
    /// Whether only the cache may be used.
    pub offline: bool,
    /// How long the hub may take to answer the first request; downloads have no limit.
    pub patience: Duration,
    /// Whether to draw progress bars on standard error.
    pub progress: bool,
}

impl HubOptions {
    /// From the variables that other Hugging Face tools use: `HF_HUB_CACHE`, `HF_HOME`,
    /// `XDG_CACHE_HOME`, `HF_ENDPOINT`, `HF_TOKEN` (else the token file), `HF_HUB_OFFLINE`.
    ///
    /// # Errors
    /// If no variable and no home folder says where the cache is.
    pub fn from_env() -> Result<Self, UsageError> {
        let var = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let home = var("HF_HOME").map(PathBuf::from).or_else(|| {
            let cache = var("XDG_CACHE_HOME").map(PathBuf::from);
            Some(cache.or_else(|| Some(Path::new(&var("HOME")?).join(".cache")))?.join("huggingface"))
        });
        let no_home = || UsageError::new("no home folder, so no cache for models").hint("set HF_HOME to a folder");
        let cache = match (var("HF_HUB_CACHE"), &home) {
            (Some(cache), _) => PathBuf::from(cache),
            (None, Some(home)) => home.join("hub"),
            (None, None) => return Err(no_home()),
        };
        let token_file = || std::fs::read_to_string(home?.join("token")).ok();
        let token = var("HF_TOKEN").or_else(token_file).map(|t| t.trim().to_owned()).filter(|t| !t.is_empty());
        let offline =
            var("HF_HUB_OFFLINE").is_some_and(|v| matches!(v.to_lowercase().as_str(), "1" | "true" | "yes" | "on"));
        Ok(Self { token, offline, ..Self::new(cache, var("HF_ENDPOINT")) })
    }

    /// A cache and, if it is not the public one, the address of the hub; no token, not offline.
    pub fn new(cache: impl Into<PathBuf>, endpoint: Option<String>) -> Self {
        let endpoint = endpoint.unwrap_or_else(|| "https://huggingface.co".to_owned());
        Self {
            cache: cache.into(),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: None,
            offline: false,
            patience: Duration::from_secs(10),
            progress: std::io::stderr().is_terminal(),
        }
    }
}

/// A commit's files in the cache.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub folder: PathBuf,
    pub commit: String,
    pub notes: Vec<String>,
}

/// Finds a model in the cache or downloads it.
pub(super) fn snapshot(repo: &str, revision: Option<&str>, options: &HubOptions) -> Result<Snapshot> {
    // The cache is linked by relative paths, which are computed from absolute ones.
    let cache = std::path::absolute(&options.cache).with_context(|| format!("{}", options.cache.display()))?;
    let place = Place { repo, revision: revision.unwrap_or("main"), cache };
    let cached = place.cached_commit();
    if let Some(commit) = &cached
        && place.first_missing(commit).is_none()
        && place.unknown(commit).is_empty()
    {
        return Ok(place.snapshot(commit, Vec::new()));
    }
    if options.offline {
        return Ok(place.cache_alone(cached, "HF_HUB_OFFLINE is set")?);
    }
    let api = api(&place.cache, options)?;
    match place.listing(&api, options.patience) {
        Ok(info) => place.download(&api, &info),
        Err(reason) => Ok(place.cache_alone(cached, &reason)?),
    }
}

fn api(cache: &Path, options: &HubOptions) -> Result<Api> {
    ApiBuilder::from_cache(Cache::new(cache.to_owned()))
        .with_endpoint(options.endpoint.clone())
        .with_token(options.token.clone())
        .with_progress(options.progress)
        .with_user_agent("spattn", env!("CARGO_PKG_VERSION"))
        .build()
        .context("cannot set up downloads")
}

/// One revision of one repository, and where it is cached.
struct Place<'a> {
    repo: &'a str,
    revision: &'a str,
    cache: PathBuf,
}

impl Place<'_> {
    fn repo_at(&self, revision: &str) -> Repo {
        Repo::with_revision(self.repo.to_owned(), RepoType::Model, revision.to_owned())
    }

    fn root(&self) -> PathBuf {
        self.cache.join(self.repo_at(self.revision).folder_name())
    }

    fn folder(&self, commit: &str) -> PathBuf {
        self.root().join("snapshots").join(commit)
    }

    /// Where other tools, too, note that a commit does not have a file.
    fn absence(&self, commit: &str, file: &str) -> PathBuf {
        self.root().join(".no_exist").join(commit).join(file)
    }

    fn snapshot(&self, commit: &str, notes: Vec<String>) -> Snapshot {
        Snapshot { folder: self.folder(commit), commit: commit.to_owned(), notes }
    }

    /// The commit that the cache has for the revision.
    fn cached_commit(&self) -> Option<String> {
        let reference = self.root().join("refs").join(self.revision);
        match std::fs::read_to_string(reference) {
            Ok(commit) => Some(commit.trim().to_owned()).filter(|c| is_commit(c)),
            // A full commit needs no reference.
            Err(_) => is_commit(self.revision).then(|| self.revision.to_owned()),
        }
    }

    /// The first required file that the cache does not have.
    fn first_missing(&self, commit: &str) -> Option<String> {
        let folder = self.folder(commit);
        let missing = |name: &str| !folder.join(name).is_file();
        if let Some(name) = [CONFIG, TOKENIZER].into_iter().find(|n| missing(n)) {
            return Some(name.to_owned());
        }
        if !missing(SINGLE_FILE) {
            return None;
        }
        match std::fs::read_to_string(folder.join(INDEX_FILE)) {
            // A malformed index is reported when the weights are opened.
            Ok(index) => shard_names(&index).unwrap_or_default().into_iter().find(|n| missing(n)),
            Err(_) => Some(SINGLE_FILE.to_owned()),
        }
    }

    /// The optional files that are neither cached nor known to be absent.
    fn unknown(&self, commit: &str) -> Vec<&'static str> {
        let folder = self.folder(commit);
        let unknown = |name: &&str| !folder.join(name).is_file() && !self.absence(commit, name).is_file();
        OPTIONAL.into_iter().filter(unknown).collect()
    }

    /// What the cache has, if that is enough, although `reason` keeps from the hub.
    fn cache_alone(&self, cached: Option<String>, reason: &str) -> Result<Snapshot, UsageError> {
        let missing = match &cached {
            Some(commit) => self.first_missing(commit),
            None => Some(CONFIG.to_owned()),
        };
        match (cached, missing) {
            (Some(commit), None) => {
                let note = |file: &&str| format!("{}: `{file}` is not in the cache ({reason})", self.repo);
                // Only this one changes prompts.
                let notes = self.unknown(&commit).iter().filter(|f| **f == TOKENIZER_CONFIG).map(note).collect();
                Ok(self.snapshot(&commit, notes))
            }
            (_, missing) => Err(self.unreachable(&missing.unwrap_or_default(), reason)),
        }
    }

    fn unreachable(&self, file: &str, reason: &str) -> UsageError {
        let (repo, cache) = (self.repo, self.cache.display());
        if ["401", "403", "404"].iter().any(|code| reason.contains(&format!("http status: {code}"))) {
            let what = format!(
                "{repo}: the hub has no revision `{}` of this model, or denies access ({reason})",
                self.revision
            );
            return UsageError::new(what).hint("check the spelling; for private and gated models set HF_TOKEN");
        }
        let what = format!("{repo}: `{file}` is not in the cache {cache} and cannot be downloaded: {reason}");
        UsageError::new(what).hint(format!(
            "download it on a machine with network (`hf download {repo}`) and copy the cache, or give a local folder"
        ))
    }

    /// The commit and its files. The client has no timeouts, so a thread waits for it: without
    /// network this fails within `patience`.
    fn listing(&self, api: &Api, patience: Duration) -> Result<RepoInfo, String> {
        let (send, receive) = mpsc::channel();
        let repo = api.repo(self.repo_at(self.revision));
        std::thread::spawn(move || {
            // The receiver may have given up.
            let _ = send.send(repo.info().map_err(|e| e.to_string()));
        });
        match receive.recv_timeout(patience) {
            Ok(answer) => answer.map_err(|e| e.trim_start_matches("request error: ").to_owned()),
            Err(_) => Err(format!("the hub does not answer within {} s", patience.as_secs())),
        }
    }

    fn download(&self, api: &Api, info: &RepoInfo) -> Result<Snapshot> {
        let commit = &info.sha;
        if !is_commit(commit) {
            anyhow::bail!("{}: the hub names `{commit}` as the commit", self.repo);
        }
        let has = |name: &str| info.siblings.iter().any(|s| s.rfilename == name);
        for name in OPTIONAL {
            if has(name) { self.fetch(api, commit, name)? } else { self.note_absence(commit, name) }
        }
        for name in [CONFIG, TOKENIZER] {
            if !has(name) {
                let what = format!("{}: this repository has no {name}", self.repo);
                return Err(UsageError::new(what).hint(super::source::FOLDER_HINT).into());
            }
            self.fetch(api, commit, name)?;
        }
        self.fetch_weights(api, commit, has(SINGLE_FILE), has(INDEX_FILE))?;
        if self.revision != commit {
            let cache = Cache::new(self.cache.clone());
            cache.repo(self.repo_at(self.revision)).create_ref(commit).context("cannot write to the cache")?;
        }
        Ok(self.snapshot(commit, Vec::new()))
    }

    fn fetch_weights(&self, api: &Api, commit: &str, single: bool, index: bool) -> Result<()> {
        if single {
            return self.fetch(api, commit, SINGLE_FILE);
        }
        if !index {
            let what = format!("{}: this repository has no safetensors weights", self.repo);
            return Err(UsageError::new(what).hint("choose one that has, or convert it and give the folder").into());
        }
        self.fetch(api, commit, INDEX_FILE)?;
        let path = self.folder(commit).join(INDEX_FILE);
        let text = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        let shards = shard_names(&text).map_err(|what| anyhow::anyhow!("{}: {what}", path.display()))?;
        shards.iter().try_for_each(|shard| self.fetch(api, commit, shard))
    }

    fn fetch(&self, api: &Api, commit: &str, name: &str) -> Result<()> {
        if self.folder(commit).join(name).is_file() {
            return Ok(());
        }
        let failed = |e: hf_hub::api::sync::ApiError| self.unreachable(name, &e.to_string());
        api.repo(self.repo_at(commit)).download(name).map_err(failed)?;
        Ok(())
    }

    fn note_absence(&self, commit: &str, name: &str) {
        let path = self.absence(commit, name);
        // Only saves a request next time, so a failure does not matter.
        let _ = path.parent().map(std::fs::create_dir_all);
        let _ = std::fs::write(path, "");
    }
}

fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The folder that `--data` names.
pub fn data_folder(data: Option<&Path>) -> Result<Option<PathBuf>> {
    Ok(data.map(Path::to_owned))
}

//! The hub's cache on disk, and downloading into it.
//!
//! The cache has the layout that other Hugging Face tools use, so what one of them has downloaded is
//! found. A model or data set that is complete in the cache needs no network. One commit is resolved
//! first and all files are taken from it, so a snapshot never mixes versions.
//!
//! A model's files say themselves whether one is missing. A data set's do not, so the names of all
//! files of a commit are kept in the cache beside them.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};
use hf_hub::api::RepoInfo;
use hf_hub::api::sync::{Api, ApiBuilder};
use hf_hub::{Cache, Repo, RepoType};

use super::files::{
    CHAT_TEMPLATE, CONFIG, FOLDER_HINT, GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG, is_match, matching_files,
};
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
    /// Access token for private and gated repositories.
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
        let no_home = || UsageError::new("no home folder, so no cache for downloads").hint("set HF_HOME to a folder");
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

/// A model in the hub's cache.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct CachedModel {
    /// `organisation/name`.
    pub id: String,
    /// Bytes of its files, of all commits.
    pub bytes: u64,
    /// Whether it can be loaded without network.
    pub complete: bool,
}

/// The models in the cache, by name. Nothing is downloaded.
pub fn cached_models(options: &HubOptions) -> Vec<CachedModel> {
    let offline = HubOptions { offline: true, ..options.clone() };
    let entries = std::fs::read_dir(&options.cache).into_iter().flatten().flatten();
    let model = |entry: std::fs::DirEntry| {
        let id = entry.file_name().to_str()?.strip_prefix("models--")?.replace("--", "/");
        let blobs = std::fs::read_dir(entry.path().join("blobs")).into_iter().flatten().flatten();
        let bytes = blobs.filter_map(|blob| blob.metadata().ok()).map(|data| data.len()).sum();
        let complete = snapshot(&id, None, Wanted::Model, &offline).is_ok();
        Some(CachedModel { id, bytes, complete })
    };
    let mut models: Vec<CachedModel> = entries.filter_map(model).collect();
    models.sort_by(|a, b| a.id.cmp(&b.id));
    models
}

/// What is wanted of a repository; this also says which kind of repository it is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wanted<'a> {
    /// A model: config, tokenizer, weights, and those of the optional files that it has.
    Model,
    /// A model's config and tokenizer, and those of the optional files that it has, without the weights.
    Texts,
    /// The files of a data set that match one of these patterns ([`is_match`]).
    Data(&'a [&'a str]),
}

impl Wanted<'_> {
    fn repo_type(self) -> RepoType {
        match self {
            Self::Model | Self::Texts => RepoType::Model,
            Self::Data(_) => RepoType::Dataset,
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Self::Model | Self::Texts => "model",
            Self::Data(_) => "data set",
        }
    }

    /// The option that tells the hub's own tool about the kind of repository.
    fn tool_option(self) -> &'static str {
        match self {
            Self::Model | Self::Texts => "",
            Self::Data(_) => " --repo-type dataset",
        }
    }

    /// What is missing if nothing is there.
    fn first(self) -> String {
        match self {
            Self::Model | Self::Texts => format!("`{CONFIG}`"),
            Self::Data(_) => "the data set".to_owned(),
        }
    }
}

/// Reads `org/name[@revision]`.
pub(super) fn parse_id(id: &str) -> Option<(String, Option<String>)> {
    let (repo, revision) = match id.split_once('@') {
        Some((repo, revision)) => (repo, Some(revision)),
        None => (id, None),
    };
    let valid = is_repo(repo) && revision.is_none_or(is_revision);
    valid.then(|| (repo.to_owned(), revision.map(str::to_owned)))
}

fn is_repo(repo: &str) -> bool {
    let part = |p: &str| {
        p.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            && p.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    repo.split_once('/').is_some_and(|(organisation, name)| part(organisation) && part(name))
}

fn is_revision(revision: &str) -> bool {
    // It becomes part of a path in the cache, so it must not climb out of it.
    let part =
        |p: &str| !matches!(p, "" | "." | "..") && p.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    revision.split('/').all(part)
}

/// A commit's files in the cache.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub folder: PathBuf,
    pub commit: String,
    pub notes: Vec<String>,
}

/// Finds what is wanted in the cache or downloads it.
pub(super) fn snapshot(
    repo: &str,
    revision: Option<&str>,
    wanted: Wanted<'_>,
    options: &HubOptions,
) -> Result<Snapshot> {
    // The cache is linked by relative paths, which are computed from absolute ones.
    let cache = std::path::absolute(&options.cache).with_context(|| format!("{}", options.cache.display()))?;
    let place = Place { repo, revision: revision.unwrap_or("main"), wanted, cache };
    let cached = place.cached_commit();
    if let Some(commit) = &cached
        && place.first_missing(commit).is_none()
        && place.is_known(commit)
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
    wanted: Wanted<'a>,
    cache: PathBuf,
}

impl Place<'_> {
    fn repo_at(&self, revision: &str) -> Repo {
        Repo::with_revision(self.repo.to_owned(), self.wanted.repo_type(), revision.to_owned())
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

    /// Where the names of all files of a commit of a data set are.
    fn names_file(&self, commit: &str) -> PathBuf {
        self.root().join(".spattn").join(format!("{commit}.json"))
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

    /// The first required file that the cache does not have, for errors.
    fn first_missing(&self, commit: &str) -> Option<String> {
        let quoted = |name: String| format!("`{name}`");
        match self.wanted {
            Wanted::Model => self.first_missing_of_model(commit).map(quoted),
            Wanted::Texts => self.first_missing_text(commit).map(quoted),
            Wanted::Data(patterns) => match self.wanted_names(commit, patterns) {
                Some(names) if !names.is_empty() => {
                    let folder = self.folder(commit);
                    names.into_iter().find(|name| !folder.join(name).is_file()).map(quoted)
                }
                _ => matching_files(&self.folder(commit), patterns).is_empty().then(|| self.wanted.first()),
            },
        }
    }

    fn first_missing_text(&self, commit: &str) -> Option<String> {
        let folder = self.folder(commit);
        [CONFIG, TOKENIZER].into_iter().find(|name| !folder.join(name).is_file()).map(str::to_owned)
    }

    fn first_missing_of_model(&self, commit: &str) -> Option<String> {
        let folder = self.folder(commit);
        let missing = |name: &str| !folder.join(name).is_file();
        if let Some(name) = self.first_missing_text(commit) {
            return Some(name);
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

    /// Whether the cache tells that there is nothing more to find for the commit.
    fn is_known(&self, commit: &str) -> bool {
        match self.wanted {
            Wanted::Model | Wanted::Texts => self.unknown(commit).is_empty(),
            Wanted::Data(patterns) => self.wanted_names(commit, patterns).is_some(),
        }
    }

    /// The files that the commit of a data set has and that match, if its names are cached.
    fn wanted_names(&self, commit: &str, patterns: &[&str]) -> Option<Vec<String>> {
        let text = std::fs::read_to_string(self.names_file(commit)).ok()?;
        // If it is malformed, the hub is asked again.
        let all: Vec<String> = serde_json::from_str(&text).ok()?;
        Some(all.into_iter().filter(|name| is_match(name, patterns)).collect())
    }

    /// The optional files of a model that are neither cached nor known to be absent.
    fn unknown(&self, commit: &str) -> Vec<&'static str> {
        let folder = self.folder(commit);
        let unknown = |name: &&str| !folder.join(name).is_file() && !self.absence(commit, name).is_file();
        OPTIONAL.into_iter().filter(unknown).collect()
    }

    /// What the cache has, if that is enough, although `reason` keeps from the hub.
    fn cache_alone(&self, cached: Option<String>, reason: &str) -> Result<Snapshot, UsageError> {
        let missing = match &cached {
            Some(commit) => self.first_missing(commit),
            None => Some(self.wanted.first()),
        };
        match (cached, missing) {
            (Some(commit), None) => {
                let doubt = match self.wanted {
                    // Only this one changes prompts.
                    Wanted::Model | Wanted::Texts => self
                        .unknown(&commit)
                        .contains(&TOKENIZER_CONFIG)
                        .then(|| format!("{}: `{TOKENIZER_CONFIG}` is not in the cache ({reason})", self.repo)),
                    Wanted::Data(_) => (!self.is_known(&commit)).then(|| {
                        format!("{}: the cache may not have all files of this data set ({reason})", self.repo)
                    }),
                };
                Ok(self.snapshot(&commit, doubt.into_iter().collect()))
            }
            (_, missing) => Err(self.unreachable(&missing.unwrap_or_default(), reason)),
        }
    }

    fn unreachable(&self, missing: &str, reason: &str) -> UsageError {
        let (repo, noun, cache) = (self.repo, self.wanted.noun(), self.cache.display());
        if ["401", "403", "404"].iter().any(|code| reason.contains(&format!("http status: {code}"))) {
            let what = format!(
                "{repo}: the hub has no revision `{}` of this {noun}, or denies access ({reason})",
                self.revision
            );
            return UsageError::new(what)
                .hint(format!("check the spelling; for private and gated {noun}s set HF_TOKEN"));
        }
        let what = format!("{repo}: {missing} is not in the cache {cache} and cannot be downloaded: {reason}");
        let revision = match self.revision {
            "main" => String::new(),
            other => format!(" --revision {other}"),
        };
        UsageError::new(what).hint(format!(
            "download it on a machine with network (`hf download{} {repo}{revision}`) and copy the cache, or give a local folder",
            self.wanted.tool_option()
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
        match self.wanted {
            Wanted::Model => self.fetch_model(api, info)?,
            Wanted::Texts => self.fetch_texts(api, info)?,
            Wanted::Data(patterns) => self.fetch_data(api, info, patterns)?,
        }
        if self.revision != commit {
            let cache = Cache::new(self.cache.clone());
            cache.repo(self.repo_at(self.revision)).create_ref(commit).context("cannot write to the cache")?;
        }
        Ok(self.snapshot(commit, Vec::new()))
    }

    fn fetch_data(&self, api: &Api, info: &RepoInfo, patterns: &[&str]) -> Result<()> {
        let all: Vec<&str> = info.siblings.iter().map(|s| s.rfilename.as_str()).collect();
        let names: Vec<&str> = all.iter().copied().filter(|name| is_match(name, patterns)).collect();
        if names.is_empty() {
            let what = format!("{}: this data set has none of the files that are looked for", self.repo);
            return Err(UsageError::new(what).hint(format!("it may have {}", patterns.join(", "))).into());
        }
        // First, so that a download that was broken off is known to be one.
        self.keep_names(&info.sha, &all).context("cannot write to the cache")?;
        names.into_iter().try_for_each(|name| self.fetch(api, &info.sha, name))
    }

    fn keep_names(&self, commit: &str, names: &[&str]) -> Result<()> {
        let path = self.names_file(commit);
        // Renamed when it is whole; runs that start together do not share the unfinished file.
        let unfinished = path.with_extension(format!("{}.tmp", std::process::id()));
        std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
        std::fs::write(&unfinished, serde_json::to_string(names)?)?;
        Ok(std::fs::rename(&unfinished, &path)?)
    }

    fn fetch_model(&self, api: &Api, info: &RepoInfo) -> Result<()> {
        self.fetch_texts(api, info)?;
        let has = |name: &str| info.siblings.iter().any(|s| s.rfilename == name);
        self.fetch_weights(api, &info.sha, has(SINGLE_FILE), has(INDEX_FILE))
    }

    fn fetch_texts(&self, api: &Api, info: &RepoInfo) -> Result<()> {
        let commit = &info.sha;
        let has = |name: &str| info.siblings.iter().any(|s| s.rfilename == name);
        for name in OPTIONAL {
            if has(name) { self.fetch(api, commit, name)? } else { self.note_absence(commit, name) }
        }
        for name in [CONFIG, TOKENIZER] {
            if !has(name) {
                let what = format!("{}: this repository has no {name}", self.repo);
                return Err(UsageError::new(what).hint(FOLDER_HINT).into());
            }
            self.fetch(api, commit, name)?;
        }
        Ok(())
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
        let failed = |e: hf_hub::api::sync::ApiError| self.unreachable(&format!("`{name}`"), &e.to_string());
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

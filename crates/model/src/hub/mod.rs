//! The hub: its cache on disk, and downloading into it.
//!
//! The cache has the layout that other Hugging Face tools use, so what one of them has downloaded is
//! found. A model or data set that is complete in the cache needs no network. One commit is resolved
//! first and all files are taken from it, so a snapshot never mixes versions.
//!
//! A model's files say themselves whether one is missing. A data set's do not, so the names of all
//! files of a commit are kept in the cache beside them.
//!
//! A file is in the cache once its size and its hash are those that the hub states; what is there is looked at again
//! whenever it is used.

mod cache;
mod env;
mod remote;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::added_tokens::needs_older_files;
use super::config::ModelConfig;
use super::download::{DownloadError, Downloader, FROM_START, Job};
use super::files::{
    ADAPTER_CONFIG, ADDED_TOKENS, CHAT_TEMPLATE, CONFIG, FOLDER_HINT, GENERATION_CONFIG, SPECIAL_TOKENS, TOKENIZER,
    TOKENIZER_CONFIG, is_match, matching_files,
};
use super::formats::lacking;
use super::http::{Client, HttpError, Refusal, Timeouts, parse_url, without_user};
use super::tensors::{INDEX_FILE, SINGLE_FILE, shard_names};
use cache::{Lack, RepoCache};
use env::{Variables, check_token};
use remote::{Listing, Remote, RepoKind};
use spattn_base::error::{RunFailure, UsageError};

/// Files a model may do without. They come before the weights, so that complete weights imply they were looked for.
const OPTIONAL: [&str; 6] =
    [TOKENIZER_CONFIG, GENERATION_CONFIG, CHAT_TEMPLATE, SPECIAL_TOKENS, ADDED_TOKENS, ADAPTER_CONFIG];
/// The pause before the second try of a request.
const BACKOFF: Duration = Duration::from_secs(1);

/// How to reach the hub and where its cache is.
#[derive(Debug, Clone)]
pub struct HubOptions {
    /// Folder of the cache.
    pub cache: PathBuf,
    /// Address of the hub.
    pub endpoint: String,
    /// Access token for private and gated repositories; sent to the endpoint's scheme, host and port, and nowhere else.
    pub token: Option<String>,
    /// Whether only the cache may be used.
    pub offline: bool,
    /// How long the hub, and where it redirects to, may take.
    pub timeouts: Timeouts,
    /// The pause before the second try of a request; those that follow double.
    pub backoff: Duration,
    /// Whether to draw progress bars on standard error.
    pub progress: bool,
}

impl HubOptions {
    /// From the variables that other Hugging Face tools use: `HF_HUB_CACHE` (once `HUGGINGFACE_HUB_CACHE`), `HF_HOME`,
    /// `XDG_CACHE_HOME`, `HF_ENDPOINT`, `HF_TOKEN` (once `HUGGING_FACE_HUB_TOKEN`; else the file `HF_TOKEN_PATH`),
    /// `HF_HUB_OFFLINE` (else `TRANSFORMERS_OFFLINE`), and those of [`Timeouts::from_env`].
    ///
    /// # Errors
    /// If no variable and no home folder says where the cache is, or one of them makes no sense.
    pub fn from_env() -> Result<Self, UsageError> {
        let (cache, token, timeouts) = (OWN.cache()?, OWN.token(), Timeouts::from_env()?);
        let offline = OWN.offline().is_some();
        Ok(Self { token, timeouts, offline, ..Self::new(cache, OWN.text("HF_ENDPOINT")) })
    }

    /// A cache and, if it is not the public one, the address of the hub; no token, not offline.
    pub fn new(cache: impl Into<PathBuf>, endpoint: Option<String>) -> Self {
        let endpoint = endpoint.unwrap_or_else(|| "https://huggingface.co".to_owned());
        Self {
            cache: cache.into(),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: None,
            offline: false,
            timeouts: Timeouts::default(),
            backoff: BACKOFF,
            progress: std::io::stderr().is_terminal(),
        }
    }
}

/// The variables of this process.
const OWN: Variables<'static> = Variables(&|name| std::env::var_os(name));

/// The variable that forbids to use the network, if one does: `HF_HUB_OFFLINE` or `TRANSFORMERS_OFFLINE`.
pub fn offline_by() -> Option<&'static str> {
    OWN.offline()
}

/// A downloader of files that need no token, as the environment has it ([`Timeouts::from_env`]).
///
/// # Errors
/// As [`Timeouts::from_env`].
pub fn public_downloader() -> Result<Downloader, UsageError> {
    let client = Client::new(Timeouts::from_env()?);
    Ok(Downloader { client, backoff: BACKOFF, progress: std::io::stderr().is_terminal() })
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
    /// Why it cannot be evaluated, if its config says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
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
        // One that was refused when it was to be downloaded has no more than its config.
        let snapshots = std::fs::read_dir(entry.path().join("snapshots")).into_iter().flatten().flatten();
        let configs = snapshots.filter_map(|commit| std::fs::read_to_string(commit.path().join(CONFIG)).ok());
        let refusals = configs.map(|text| ModelConfig::parse(&text, CONFIG).err().map(|error| error.what));
        let refused = refusals.collect::<Option<Vec<String>>>().and_then(|all| all.into_iter().next());
        Some(CachedModel { id, bytes, complete, refused })
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
    fn kind(self) -> RepoKind {
        match self {
            Self::Model | Self::Texts => RepoKind::Model,
            Self::Data(_) => RepoKind::Dataset,
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
    fn first(self) -> Lack {
        Lack::Missing(match self {
            Self::Model | Self::Texts => format!("`{CONFIG}`"),
            Self::Data(_) => "the data set".to_owned(),
        })
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
    let cache = std::path::absolute(&options.cache).with_context(|| format!("{}", options.cache.display()))?;
    let cache = RepoCache { cache, name: format!("{}--{}", wanted.kind().plural(), repo.replace('/', "--")) };
    let search = Search { repo, revision: revision.unwrap_or("main"), wanted, cache, options };
    let cached = search.cached_commit();
    if let Some(commit) = &cached
        && search.first_lack(commit).is_none()
        && search.is_known(commit)
    {
        return Ok(search.snapshot(commit, Vec::new()));
    }
    if options.offline {
        return search.cache_alone(cached, &Obstacle::Offline);
    }
    let remote = search.remote()?;
    match remote.listing(search.revision) {
        Ok(listing) => search.download(&remote, &listing),
        Err(error) => search.cache_alone(cached, &Obstacle::Http(error)),
    }
}

/// What keeps from the hub.
enum Obstacle {
    Offline,
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

/// What is looked for: one revision of one repository.
struct Search<'a> {
    repo: &'a str,
    revision: &'a str,
    wanted: Wanted<'a>,
    cache: RepoCache,
    options: &'a HubOptions,
}

impl Search<'_> {
    fn remote(&self) -> Result<Remote<'_>, UsageError> {
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
        Ok(Remote { downloader, endpoint, repo: self.repo, kind: self.wanted.kind() })
    }

    fn snapshot(&self, commit: &str, notes: Vec<String>) -> Snapshot {
        Snapshot { folder: self.cache.snapshot(commit), commit: commit.to_owned(), notes }
    }

    /// The commit that the cache has for the revision.
    fn cached_commit(&self) -> Option<String> {
        match self.cache.commit_of(self.revision) {
            Some(commit) => Some(commit).filter(|c| is_commit(c)),
            // A full commit needs no reference.
            None => is_commit(self.revision).then(|| self.revision.to_owned()),
        }
    }

    /// The first required file that the cache does not have, or not as it was published.
    fn first_lack(&self, commit: &str) -> Option<Lack> {
        match self.wanted {
            Wanted::Model => self.first_lack_of_model(commit),
            Wanted::Texts => self.first_lack_of_texts(commit),
            Wanted::Data(patterns) => match self.wanted_names(commit, patterns) {
                Some(names) if !names.is_empty() => names.iter().find_map(|name| self.cache.lack(commit, name)),
                _ => {
                    let found = matching_files(&self.cache.snapshot(commit), patterns);
                    let nothing = found.is_empty().then(|| self.wanted.first());
                    nothing.or_else(|| found.iter().find_map(|name| self.cache.lack(commit, name)))
                }
            },
        }
    }

    fn first_lack_of_texts(&self, commit: &str) -> Option<Lack> {
        let lack = |name: &str| self.cache.lack(commit, name);
        let optional = || OPTIONAL.into_iter().filter_map(lack).find(|lack| matches!(lack, Lack::Damaged { .. }));
        [CONFIG, TOKENIZER].into_iter().find_map(lack).or_else(optional)
    }

    fn first_lack_of_model(&self, commit: &str) -> Option<Lack> {
        let lack = |name: &str| self.cache.lack(commit, name);
        let is_missing = |name: &str| matches!(lack(name), Some(Lack::Missing(_)));
        if let Some(lack) = self.first_lack_of_texts(commit) {
            return Some(lack);
        }
        if !is_missing(SINGLE_FILE) {
            return lack(SINGLE_FILE);
        }
        match lack(INDEX_FILE) {
            Some(Lack::Missing(_)) => lack(SINGLE_FILE),
            Some(damaged) => Some(damaged),
            None => {
                let index = std::fs::read_to_string(self.cache.snapshot(commit).join(INDEX_FILE)).unwrap_or_default();
                // A malformed index is reported when the weights are opened.
                shard_names(&index).unwrap_or_default().iter().find_map(|name| lack(name))
            }
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
        Some(self.cache.names(commit)?.into_iter().filter(|name| is_match(name, patterns)).collect())
    }

    /// The optional files of a model that would change what is measured and are neither cached nor known to be absent.
    fn unknown(&self, commit: &str) -> Vec<&'static str> {
        let folder = self.cache.snapshot(commit);
        let settings = std::fs::read_to_string(folder.join(TOKENIZER_CONFIG)).ok();
        let matters = |name: &&str| match *name {
            SPECIAL_TOKENS | ADDED_TOKENS => needs_older_files(settings.as_deref()),
            ADAPTER_CONFIG => false,
            _ => true,
        };
        let unknown = |name: &&str| !folder.join(name).is_file() && !self.cache.absence(commit, name).is_file();
        OPTIONAL.into_iter().filter(matters).filter(unknown).collect()
    }

    /// What a cache that other tools filled may lack of a model, which nothing in it tells apart from a model without it.
    fn doubt(&self, commit: &str, obstacle: &Obstacle) -> Option<String> {
        let unknown: Vec<String> = self.unknown(commit).iter().map(|name| format!("`{name}`")).collect();
        let (last, before) = unknown.split_last()?;
        let (names, are) = match before {
            [] => (last.clone(), "is"),
            _ => (format!("{} and {last}", before.join(", ")), "are"),
        };
        Some(format!(
            "{}: {names} {are} not in the cache ({obstacle}); if the repository has such a file, prompts or the ends of answers \
             differ from its own",
            self.repo
        ))
    }

    /// What the cache has, if that is enough, although something keeps from the hub.
    fn cache_alone(&self, cached: Option<String>, obstacle: &Obstacle) -> Result<Snapshot> {
        let lack = match &cached {
            Some(commit) => self.first_lack(commit),
            None => Some(self.wanted.first()),
        };
        let commit = match (cached, lack) {
            (Some(commit), None) => commit,
            (_, lack) => return Err(self.unreachable(&lack.unwrap_or_else(|| self.wanted.first()), obstacle)),
        };
        let doubt = match self.wanted {
            Wanted::Model | Wanted::Texts => self.doubt(&commit, obstacle),
            Wanted::Data(_) => (!self.is_known(&commit))
                .then(|| format!("{}: the cache may not have all files of this data set ({obstacle})", self.repo)),
        };
        Ok(self.snapshot(&commit, doubt.into_iter().collect()))
    }

    /// The error of what is lacking in the cache and cannot be asked for.
    fn unreachable(&self, lack: &Lack, obstacle: &Obstacle) -> anyhow::Error {
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

    /// What to do about a failure; without network there is still another machine.
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
        let (option, repo) = (self.wanted.tool_option(), self.repo);
        format!(
            "download it on a machine with network (`hf download{option} {repo}{revision}`) and copy the cache, or give a local folder"
        )
    }

    /// The error of a hub that says no to who asks, or to what is asked for.
    fn denied(&self, refusal: &Refusal, file: Option<&str>) -> UsageError {
        let (repo, noun, endpoint) = (self.repo, self.wanted.noun(), without_user(&self.options.endpoint));
        let (code, has_token) = (refusal.code.as_deref().unwrap_or_default(), self.options.token.is_some());
        let with_token = format!("set HF_TOKEN, or log in with `hf auth login`, for private and gated {noun}s");
        let (what, hint) = match (refusal.status, code, file) {
            (_, "GatedRepo", _) => {
                let page = match self.wanted.kind() {
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

    fn download(&self, remote: &Remote<'_>, listing: &Listing) -> Result<Snapshot> {
        let commit = &listing.commit;
        if !is_commit(commit) {
            anyhow::bail!("{}: the hub names `{commit}` as the commit", self.repo);
        }
        match self.wanted {
            Wanted::Model => self.fetch_model(remote, listing)?,
            Wanted::Texts => self.fetch_texts(remote, listing)?,
            Wanted::Data(patterns) => self.fetch_data(remote, listing, patterns)?,
        }
        if self.revision != commit {
            self.cache.note_commit(self.revision, commit)?;
        }
        Ok(self.snapshot(commit, Vec::new()))
    }

    fn fetch_data(&self, remote: &Remote<'_>, listing: &Listing, patterns: &[&str]) -> Result<()> {
        let names: Vec<&str> = listing.names().filter(|name| is_match(name, patterns)).collect();
        if names.is_empty() {
            let what = format!("{}: this data set has none of the files that are looked for", self.repo);
            return Err(UsageError::new(what).hint(format!("it may have {}", patterns.join(", "))).into());
        }
        // First, so that a download that was broken off is known to be one.
        self.cache.note_names(&listing.commit, &listing.names().collect::<Vec<_>>())?;
        names.into_iter().try_for_each(|name| self.fetch(remote, &listing.commit, name))
    }

    fn fetch_model(&self, remote: &Remote<'_>, listing: &Listing) -> Result<()> {
        self.fetch_texts(remote, listing)?;
        self.fetch_weights(remote, listing)
    }

    /// The config comes first: a model that is not supported is refused before anything large is downloaded.
    fn fetch_texts(&self, remote: &Remote<'_>, listing: &Listing) -> Result<()> {
        let commit = &listing.commit;
        for name in [CONFIG, TOKENIZER] {
            if !listing.has(name) {
                let what = format!("{}: this repository has no {name}", self.repo);
                return Err(match name {
                    CONFIG => lacking(what, &listing.names().collect::<Vec<_>>()),
                    _ => UsageError::new(what).hint(FOLDER_HINT),
                }
                .into());
            }
        }
        if matches!(self.wanted, Wanted::Model) && ![SINGLE_FILE, INDEX_FILE].into_iter().any(|name| listing.has(name))
        {
            let what = format!("{}: this repository has no safetensors weights", self.repo);
            return Err(lacking(what, &listing.names().collect::<Vec<_>>()).into());
        }
        self.fetch(remote, commit, CONFIG)?;
        self.check_config(commit)?;
        for name in OPTIONAL {
            match listing.has(name) {
                true => self.fetch(remote, commit, name)?,
                false => self.cache.note_absence(commit, name),
            }
        }
        self.fetch(remote, commit, TOKENIZER)
    }

    fn check_config(&self, commit: &str) -> Result<()> {
        let path = self.cache.snapshot(commit).join(CONFIG);
        let name = path.display().to_string();
        let text = std::fs::read_to_string(&path).with_context(|| format!("{name}: cannot be read"))?;
        ModelConfig::parse(&text, &name)?;
        Ok(())
    }

    fn fetch_weights(&self, remote: &Remote<'_>, listing: &Listing) -> Result<()> {
        let commit = &listing.commit;
        if listing.has(SINGLE_FILE) {
            return self.fetch(remote, commit, SINGLE_FILE);
        }
        self.fetch(remote, commit, INDEX_FILE)?;
        let path = self.cache.snapshot(commit).join(INDEX_FILE);
        let text = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        let shards = shard_names(&text).map_err(|what| anyhow::anyhow!("{}: {what}", path.display()))?;
        shards.iter().try_for_each(|shard| self.fetch(remote, commit, shard))
    }

    /// Gets a file into the cache, unless it is there as it was published.
    fn fetch(&self, remote: &Remote<'_>, commit: &str, name: &str) -> Result<()> {
        match self.cache.lack(commit, name) {
            None => return Ok(()),
            Some(Lack::Damaged { difference, .. }) => {
                eprintln!("note: {}: `{name}` in the cache is damaged ({difference}); fetching it again", self.repo);
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

/// Whether the hub itself says that who asks may not have it, or that there is no such thing.
fn is_denial(refusal: &Refusal) -> bool {
    refusal.by_first_host && matches!(refusal.status, 401 | 403 | 404 | 410)
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{ending}"));
    PathBuf::from(name)
}

fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

//! Models on the Hugging Face hub: which files of a repository are needed, and which models its cache has.
//!
//! [`spattn_hub`] asks the hub, fills its cache and downloads. A model's files themselves show whether one is missing.

use anyhow::{Context, Result};

use super::added_tokens::needs_older_files;
use super::config::ModelConfig;
use super::files::{
    ADAPTER_CONFIG, ADDED_TOKENS, CHAT_TEMPLATE, CONFIG, FOLDER_HINT, GENERATION_CONFIG, INDEX_FILE, SINGLE_FILE,
    SPECIAL_TOKENS, TOKENIZER, TOKENIZER_CONFIG,
};
use super::formats::lacking;
use super::hub_gguf;
use super::tensors::{Weights, shard_names};
use spattn_base::error::UsageError;
use spattn_hub::checksum::Blob;
use spattn_hub::{CachedCommit, DamageCheck, FetchedCommit, Lack, Obstacle, RepoKind, Wanted, by_hash};
pub use spattn_hub::{HubOptions, offline_by, public_downloader};
pub(super) use spattn_hub::{parse_id, snapshot};

/// Files that a model may lack. They are fetched before the weights, so complete weights imply that these files were
/// looked for.
const OPTIONAL: [&str; 6] =
    [TOKENIZER_CONFIG, GENERATION_CONFIG, CHAT_TEMPLATE, SPECIAL_TOKENS, ADDED_TOKENS, ADAPTER_CONFIG];

/// A model in the hub's cache.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct CachedModel {
    /// `organisation/name`.
    pub id: String,
    /// The total bytes of its files in all commits.
    pub bytes: u64,
    /// Whether it can be loaded without network access.
    pub complete: bool,
    /// Why it cannot be evaluated, if its config says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// The models in the cache, by name. Nothing is downloaded. In a repository of GGUF files, each complete model counts as
/// one.
pub fn cached_models(options: &HubOptions) -> Vec<CachedModel> {
    let offline = HubOptions { offline: true, ..options.clone() };
    let entries = std::fs::read_dir(&options.cache).into_iter().flatten().flatten();
    let mut models: Vec<CachedModel> = entries.flat_map(|entry| cached(&entry, &offline)).collect();
    models.sort_by(|a, b| a.id.cmp(&b.id));
    models
}

/// The models of a repository in the cache.
fn cached(entry: &std::fs::DirEntry, offline: &HubOptions) -> Vec<CachedModel> {
    let name = entry.file_name();
    let Some(id) = name.to_str().and_then(|name| name.strip_prefix("models--")) else { return Vec::new() };
    let id = id.replace("--", "/");
    let paths = |folder: &str| {
        let entries = std::fs::read_dir(entry.path().join(folder)).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let commits = paths("snapshots");
    if !commits.iter().any(|commit| commit.join(CONFIG).is_file()) {
        let gguf = hub_gguf::complete_models(&commits).into_iter();
        let gguf =
            gguf.map(|(file, bytes)| CachedModel { id: format!("{id}/{file}"), bytes, complete: true, refused: None });
        let gguf: Vec<CachedModel> = gguf.collect();
        if !gguf.is_empty() {
            return gguf;
        }
    }
    let bytes = paths("blobs").iter().filter_map(|blob| blob.metadata().ok()).map(|data| data.len()).sum();
    let complete = snapshot(&id, None, &ModelRepository::Whole, offline).is_ok();
    // A model that was refused while being downloaded has only its config.
    let configs = commits.iter().filter_map(|commit| std::fs::read_to_string(commit.join(CONFIG)).ok());
    let refusals = configs.map(|text| ModelConfig::parse(&text, CONFIG).err().map(|error| error.what));
    let refused = refusals.collect::<Option<Vec<String>>>().and_then(|all| all.into_iter().next());
    vec![CachedModel { id, bytes, complete, refused }]
}

/// The files that are wanted from a model's repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModelRepository {
    /// Config, tokenizer, weights, and the optional files that exist.
    Whole,
    /// The same files without the weights.
    Texts,
}

impl Wanted for ModelRepository {
    fn kind(&self) -> RepoKind {
        RepoKind::Model
    }

    fn first(&self) -> Lack {
        Lack::Missing(format!("`{CONFIG}`"))
    }

    fn first_lack(&self, cached: &CachedCommit<'_>) -> Option<Lack> {
        let of_texts = first_lack_of_texts(cached);
        match self {
            Self::Texts => of_texts,
            Self::Whole => of_texts.or_else(|| first_lack_of_weights(cached)),
        }
    }

    fn is_known(&self, cached: &CachedCommit<'_>) -> bool {
        unknown(cached).is_empty()
    }

    /// The note on what a cache filled by other tools may lack, since it does not show whether the model has it.
    fn doubt(&self, repo: &str, cached: &CachedCommit<'_>, obstacle: &Obstacle) -> Option<String> {
        let unknown: Vec<String> = unknown(cached).iter().map(|name| format!("`{name}`")).collect();
        let (last, before) = unknown.split_last()?;
        let (names, are) = match before {
            [] => (last.clone(), "is"),
            _ => (format!("{} and {last}", before.join(", ")), "are"),
        };
        Some(format!(
            "{repo}: {names} {are} not in the cache ({obstacle}); if the repository has such a file, prompts or the ends of answers \
             differ from its own"
        ))
    }

    fn fetch(&self, commit: &FetchedCommit<'_>) -> Result<()> {
        self.fetch_texts(commit)?;
        match self {
            Self::Texts => Ok(()),
            Self::Whole => fetch_weights(commit),
        }
    }

    fn damage_check(&self) -> DamageCheck {
        damage
    }
}

/// The hash of weights is checked when they are opened; the sizes in them show an interrupted download.
fn damage(name: &str, blob: &Blob) -> Option<String> {
    match name.ends_with(".safetensors") {
        true => Weights::open_file(&blob.path).err().map(|e| e.to_string()),
        false => by_hash(name, blob),
    }
}

fn first_lack_of_texts(cached: &CachedCommit<'_>) -> Option<Lack> {
    let lack = |name: &str| cached.lack(name);
    let optional = || OPTIONAL.into_iter().filter_map(lack).find(|lack| matches!(lack, Lack::Damaged { .. }));
    [CONFIG, TOKENIZER].into_iter().find_map(lack).or_else(optional)
}

fn first_lack_of_weights(cached: &CachedCommit<'_>) -> Option<Lack> {
    let single = cached.lack(SINGLE_FILE);
    if !matches!(single, Some(Lack::Missing(_))) {
        return single;
    }
    match cached.lack(INDEX_FILE) {
        Some(Lack::Missing(_)) => single,
        Some(damaged) => Some(damaged),
        None => {
            let index = std::fs::read_to_string(cached.folder().join(INDEX_FILE)).unwrap_or_default();
            // A malformed index is reported when the weights are opened.
            shard_names(&index).unwrap_or_default().iter().find_map(|name| cached.lack(name))
        }
    }
}

/// The optional files that would change results and are neither cached nor known to be absent.
fn unknown(cached: &CachedCommit<'_>) -> Vec<&'static str> {
    let folder = cached.folder();
    let settings = std::fs::read_to_string(folder.join(TOKENIZER_CONFIG)).ok();
    let matters = |name: &&str| match *name {
        SPECIAL_TOKENS | ADDED_TOKENS => needs_older_files(settings.as_deref()),
        ADAPTER_CONFIG => false,
        _ => true,
    };
    let unknown = |name: &&str| !folder.join(name).is_file() && !cached.is_known_to_be_absent(name);
    OPTIONAL.into_iter().filter(matters).filter(unknown).collect()
}

impl ModelRepository {
    /// The config comes first, so that an unsupported model is refused before anything large is downloaded.
    fn fetch_texts(self, commit: &FetchedCommit<'_>) -> Result<()> {
        for name in [CONFIG, TOKENIZER] {
            if !commit.has(name) {
                let what = format!("{}: this repository has no {name}", commit.repo());
                return Err(match name {
                    CONFIG => lacking(what, &commit.names()),
                    _ => UsageError::new(what).hint(FOLDER_HINT),
                }
                .into());
            }
        }
        if self == Self::Whole && ![SINGLE_FILE, INDEX_FILE].into_iter().any(|name| commit.has(name)) {
            let what = format!("{}: this repository has no safetensors weights", commit.repo());
            return Err(lacking(what, &commit.names()).into());
        }
        commit.fetch(CONFIG)?;
        check_config(commit)?;
        for name in OPTIONAL {
            match commit.has(name) {
                true => commit.fetch(name)?,
                false => commit.note_absence(name),
            }
        }
        commit.fetch(TOKENIZER)
    }
}

fn check_config(commit: &FetchedCommit<'_>) -> Result<()> {
    let path = commit.folder().join(CONFIG);
    let name = path.display().to_string();
    let text = std::fs::read_to_string(&path).with_context(|| format!("{name}: cannot be read"))?;
    ModelConfig::parse(&text, &name)?;
    Ok(())
}

fn fetch_weights(commit: &FetchedCommit<'_>) -> Result<()> {
    if commit.has(SINGLE_FILE) {
        return commit.fetch(SINGLE_FILE);
    }
    commit.fetch(INDEX_FILE)?;
    let path = commit.folder().join(INDEX_FILE);
    let text = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    let shards = shard_names(&text).map_err(|what| anyhow::anyhow!("{}: {what}", path.display()))?;
    shards.iter().try_for_each(|shard| commit.fetch(shard))
}

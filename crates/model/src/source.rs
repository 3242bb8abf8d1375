//! The source of a model: built into the program, a folder, or the Hugging Face hub.
//!
//! Any source gives the same [`ModelFiles`], with texts read and weights opened but not loaded; or only the [`ModelTexts`], for callers
//! that need a tokenizer but no weights. [`config`](super::config) and [`tokenizer`](super::tokenizer) interpret the texts; downloads are
//! in [`hub`].

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::calibration::{CALIBRATION, CalibrationPlace};
use super::config::ModelConfig;
use super::files::{
    ADAPTER_CONFIG, ADDED_TOKENS, CHAT_TEMPLATE, CONFIG, FOLDER_HINT, GENERATION_CONFIG, SPECIAL_TOKENS, TOKENIZER,
    TOKENIZER_CONFIG,
};
use super::formats;
use super::gguf;
use super::hub::{self, HubOptions, ModelRepository};
use super::hub_gguf::{self, GgufChoice};
use super::tensors::{INDEX_FILE, SINGLE_FILE, Weights, WeightsError};
use super::texts::{ModelTexts, TextFile};
use spattn_base::disk::no_lfs_pointer;
use spattn_base::error::UsageError;
use spattn_base::given;
use spattn_base::privacy;
use spattn_weights_1::WEIGHTS as WEIGHTS_1;
use spattn_weights_2::WEIGHTS as WEIGHTS_2;

/// The most bytes of a text of a model, such as its tokenizer.
const MOST_OF_TEXTS: u64 = 1 << 30;

macro_rules! shape_file {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/models/shapes/", $name, ".json"))
    };
}

/// The name of the model that is built into the program.
pub const BUILTIN: &str = "builtin";
/// The prefix of the names of models with random weights.
pub const RANDOM: &str = "random:";
/// The hint for a GGUF file that does not exist.
const GGUF_HINT: &str = "check the path; a file of a repository on the hub is named ORGANISATION/NAME/FILE.gguf";
/// The seed of random weights.
const RANDOM_SEED: u64 = 1;

/// Published shapes for models with random weights, each with its `config.json`.
const SHAPES: &[(&str, &str)] = &[
    ("llama-3.1-8b", shape_file!("llama-3.1-8b")),
    ("llama-3.1-70b", shape_file!("llama-3.1-70b")),
    ("llama-3.2-1b", shape_file!("llama-3.2-1b")),
    ("llama-2-7b", shape_file!("llama-2-7b")),
    ("mistral-7b", shape_file!("mistral-7b")),
    ("qwen2.5-7b", shape_file!("qwen2.5-7b")),
    ("qwen3-30b-a3b", shape_file!("qwen3-30b-a3b")),
];

/// The names of the published shapes.
pub fn shape_names() -> impl Iterator<Item = &'static str> {
    SHAPES.iter().map(|(name, _)| *name)
}

/// A model as the user named it. It is displayed as records name it, which for a folder is its path, or its name alone ([`privacy`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// The model that is built into the program.
    Builtin,
    /// A published shape, or that of a `config.json`, with random weights and the built-in tokenizer.
    Random(String),
    /// A folder in the layout of a Hugging Face checkpoint.
    Folder(PathBuf),
    /// A GGUF file of llama.cpp.
    Gguf(PathBuf),
    /// A GGUF file of a repository on the hub.
    HubGguf {
        /// `organisation/name`.
        repo: String,
        /// Branch, tag or commit; `main` if absent.
        revision: Option<String>,
        /// The choice among its files.
        choice: GgufChoice,
    },
    /// A repository on the hub.
    Hub {
        /// `organisation/name`.
        repo: String,
        /// Branch, tag or commit; `main` if absent.
        revision: Option<String>,
    },
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Builtin => f.write_str(BUILTIN),
            Self::Random(shape) if privacy::is_left_out() => {
                f.write_str(&privacy::name_of_source(&format!("{RANDOM}{shape}")))
            }
            Self::Random(shape) => write!(f, "{RANDOM}{shape}"),
            Self::Folder(path) | Self::Gguf(path) => f.write_str(&privacy::path(path)),
            Self::HubGguf { repo, revision: None, choice } => write!(f, "{repo}{choice}"),
            Self::HubGguf { repo, revision: Some(revision), choice } => write!(f, "{repo}{choice}@{revision}"),
            Self::Hub { repo, revision: None } => f.write_str(repo),
            Self::Hub { repo, revision: Some(revision) } => write!(f, "{repo}@{revision}"),
        }
    }
}

impl ModelSource {
    /// Parses `builtin`, a folder, a GGUF file, `org/name[@revision]`, or a GGUF file of such a repository: `org/name/file.gguf[@revision]`
    /// or `org/name:TYPE[@revision]`.
    ///
    /// An existing path takes precedence over a hub name with the same spelling. A name that starts with `.`, `/` or `~` is taken for a
    /// path. So is a name ending with `.gguf` that has no folder or is below an existing one, and any other name with more than one `/`
    /// before any `@`. A folder with one GGUF model and no other model stands for that file.
    ///
    /// # Errors
    /// A path that does not exist or is a file of another kind, a folder with several GGUF models and no other model, or a name that is
    /// none of these.
    pub fn parse(spec: &str) -> Result<Self, UsageError> {
        if spec == BUILTIN {
            return Ok(Self::Builtin);
        }
        if let Some(shape) = spec.strip_prefix(RANDOM) {
            return random_config(shape).map(|_| Self::Random(shape.to_owned()));
        }
        if let Some(name) = spec.strip_prefix("builtin:") {
            return Err(UsageError::new(format!("unknown built-in model `{name}`")).hint("the only one is `builtin`"));
        }
        let path = expand_home(spec);
        if path.is_dir() {
            return Self::in_folder(path);
        }
        if path.is_file() && gguf::is_gguf(&path) {
            return Ok(Self::Gguf(path));
        }
        if path.is_file() {
            let what = format!("the model `{spec}` is a file, neither a folder nor a GGUF file");
            return Err(match formats::of_files(&[spec]) {
                // Suggesting a folder would not help.
                Some((format, _)) if !spec.ends_with(".safetensors") => {
                    UsageError::new(format!("{what}, and holds {}", format.what)).hint(format.hint)
                }
                _ => UsageError::new(what).hint(FOLDER_HINT),
            });
        }
        if spec.contains(',') {
            return Err(several_models(spec));
        }
        if gguf::is_gguf(&path) && is_meant_as_path(spec) {
            return Err(UsageError::new(format!("the model file `{spec}` does not exist")).hint(GGUF_HINT));
        }
        if let Some((repo, revision, choice)) = hub_gguf::parse(spec) {
            return Ok(Self::HubGguf { repo, revision, choice });
        }
        let repo = spec.split_once('@').map_or(spec, |(repo, _)| repo);
        if spec.starts_with(['.', '/', '~']) || repo.matches('/').count() > 1 || repo.contains('\\') {
            let kind = if gguf::is_gguf(&path) { "file" } else { "folder" };
            return Err(UsageError::new(format!("the model {kind} `{spec}` does not exist")).hint(FOLDER_HINT));
        }
        let (repo, revision) = hub::parse_id(spec).ok_or_else(|| not_a_model(spec))?;
        Ok(Self::Hub { repo, revision })
    }

    /// The model in a folder: its only GGUF file, if it holds no model in another format.
    fn in_folder(folder: PathBuf) -> Result<Self, UsageError> {
        let names = names_in(&folder);
        if names.iter().any(|name| name == CONFIG || name.ends_with(".safetensors")) {
            return Ok(Self::Folder(folder));
        }
        Ok(hub_gguf::only_model_in(&folder, &names)?.map_or(Self::Folder(folder), Self::Gguf))
    }

    /// Finds the files, downloading from the hub what is not in its cache; the environment determines cache, endpoint, token and offline
    /// mode ([`HubOptions::from_env`]).
    ///
    /// # Errors
    /// A [`UsageError`] if a file is missing or cannot be downloaded, a [`WeightsError`] if weights
    /// are truncated or malformed, an I/O error with the path otherwise.
    pub fn resolve(&self) -> Result<ModelFiles> {
        match self {
            Self::Hub { .. } | Self::HubGguf { .. } => self.resolve_with(&HubOptions::from_env()?),
            Self::Builtin => builtin(),
            Self::Random(_) => Ok(ModelFiles {
                texts: self.resolve_texts()?,
                weights: Weights::random(RANDOM_SEED),
                calibration: CalibrationPlace::None,
            }),
            Self::Folder(path) => ModelFiles::from_folder(path, self.to_string()),
            Self::Gguf(path) => ModelFiles::from_gguf(path, self.to_string()),
        }
    }

    /// The files of a model for a plan: weights are not downloaded from the hub, and may be missing.
    ///
    /// # Errors
    /// Those of [`resolve`](Self::resolve), except for missing weights.
    pub fn resolve_to_plan(&self) -> Result<ModelFiles> {
        match self {
            Self::Folder(path) => ModelFiles::from_folder_to_plan(path, self.to_string()),
            Self::Hub { repo, revision } => {
                let options = HubOptions::from_env()?;
                let snapshot = hub::snapshot(repo, revision.as_deref(), &ModelRepository::Texts, &options)?;
                let mut files = ModelFiles::from_folder_to_plan(&snapshot.folder, self.to_string())?;
                files.revision = Some(snapshot.commit);
                files.notes.extend(snapshot.notes);
                Ok(files)
            }
            _ => self.resolve(),
        }
    }

    /// Only the texts of a model: weights are neither searched for nor downloaded, unless one GGUF file holds both.
    ///
    /// # Errors
    /// Those of [`resolve`](Self::resolve), except for weights.
    pub fn resolve_texts(&self) -> Result<ModelTexts> {
        match self {
            Self::Hub { .. } | Self::HubGguf { .. } => self.resolve_texts_with(&HubOptions::from_env()?),
            Self::Builtin => Ok(builtin_texts()),
            Self::Random(shape) => Ok(ModelTexts {
                id: self.to_string(),
                config: random_config(shape)?,
                notes: vec![format!(
                    "{self} has random weights and the tokenizer of {BUILTIN}: its scores mean nothing"
                )],
                ..builtin_texts()
            }),
            Self::Folder(path) => ModelTexts::from_folder(path, self.to_string()),
            Self::Gguf(path) => Ok(gguf::open(path, self.to_string())?.0),
        }
    }

    /// Like [`resolve_texts`](Self::resolve_texts), with given options for the hub.
    pub fn resolve_texts_with(&self, options: &HubOptions) -> Result<ModelTexts> {
        if let Self::HubGguf { .. } = self {
            return Ok(self.resolve_with(options)?.texts);
        }
        let Self::Hub { repo, revision } = self else { return self.resolve_texts() };
        let snapshot = hub::snapshot(repo, revision.as_deref(), &ModelRepository::Texts, options)?;
        let mut texts = ModelTexts::from_folder(&snapshot.folder, self.to_string())?;
        texts.revision = Some(snapshot.commit);
        texts.notes.extend(snapshot.notes);
        Ok(texts)
    }

    /// Like [`resolve`](Self::resolve), with given options for the hub.
    pub fn resolve_with(&self, options: &HubOptions) -> Result<ModelFiles> {
        let (snapshot, mut files) = match self {
            Self::Hub { repo, revision } => {
                let snapshot = hub::snapshot(repo, revision.as_deref(), &ModelRepository::Whole, options)?;
                let files = ModelFiles::from_folder(&snapshot.folder, self.to_string())?;
                (snapshot, files)
            }
            Self::HubGguf { repo, revision, choice } => {
                let (snapshot, first) = hub_gguf::find(repo, revision.as_deref(), choice, options)?;
                let files = ModelFiles::from_gguf(&first, self.to_string())?;
                (snapshot, files)
            }
            _ => return self.resolve(),
        };
        files.revision = Some(snapshot.commit);
        files.notes.extend(snapshot.notes);
        Ok(files)
    }
}

/// Whether the name of a missing GGUF file is meant as a path: it starts like one, has no folder, or is below an existing one.
fn is_meant_as_path(spec: &str) -> bool {
    let folder = spec.split_once('/').map(|(folder, _)| folder);
    spec.starts_with(['.', '/', '~']) || folder.is_none_or(|folder| Path::new(folder).is_dir())
}

/// The name of a model in records; the model need not exist.
pub fn recorded(spec: &str) -> String {
    match ModelSource::parse(spec) {
        Ok(source) => source.to_string(),
        Err(_) if privacy::is_left_out() => privacy::name_of_source(spec),
        Err(_) => spec.to_owned(),
    }
}

/// The config of a published shape, or of a file.
fn random_config(shape: &str) -> Result<TextFile, UsageError> {
    if let Some((name, text)) = SHAPES.iter().find(|(name, _)| *name == shape) {
        return Ok(TextFile { name: format!("the shape {name}"), text: (*text).into() });
    }
    let path = expand_home(shape);
    if !path.exists() || path.is_dir() {
        return Err(match shape.ends_with(".json") {
            true => UsageError::new(format!("{}: no such file", path.display())),
            false => UsageError::unknown("shape", shape, shape_names()),
        });
    }
    let text = given::text(&path, given::MOST_OF_SETTINGS);
    let text = text.map_err(|e| UsageError::new(format!("{}: {e}", path.display())))?;
    no_lfs_pointer(path.display(), text.as_bytes())?;
    Ok(TextFile { name: path.display().to_string(), text: text.into() })
}

/// The error for several models separated by commas.
fn several_models(spec: &str) -> UsageError {
    let each: Vec<String> = spec.split(',').map(|model| format!("--model {}", model.trim())).collect();
    UsageError::new(format!("`{spec}` is not a model: it is a list"))
        .hint(format!("give --model once for each, where a command takes several, as a sweep does: {}", each.join(" ")))
}

fn not_a_model(spec: &str) -> UsageError {
    let hint = match spattn_base::error::nearest(spec, &[BUILTIN]) {
        Some(near) => format!("did you mean `{near}`?"),
        None => {
            "give `builtin`, a folder, a GGUF file, or a hub id such as `organisation/name` or `organisation/name@revision`".into()
        }
    };
    UsageError::new(format!("`{spec}` is not a model: it is not `{BUILTIN}`, a folder, a GGUF file or a hub id"))
        .hint(hint)
}

fn expand_home(spec: &str) -> PathBuf {
    match (spec.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => PathBuf::from(spec),
    }
}

/// The files of a model: texts read, weights opened.
#[derive(Debug)]
pub struct ModelFiles {
    /// Everything except the weights.
    pub texts: ModelTexts,
    /// The weights.
    pub weights: Weights,
    /// Where calibration artefacts are searched for.
    pub calibration: CalibrationPlace,
}

impl Deref for ModelFiles {
    type Target = ModelTexts;

    fn deref(&self) -> &ModelTexts {
        &self.texts
    }
}

impl DerefMut for ModelFiles {
    fn deref_mut(&mut self) -> &mut ModelTexts {
        &mut self.texts
    }
}

impl ModelFiles {
    /// The contents of a GGUF file and of the files that belong to it; `id` is the model's name in records. Errors as for [`gguf::open`].
    fn from_gguf(path: &Path, id: String) -> Result<Self> {
        let (texts, weights) = gguf::open(path, id)?;
        Ok(Self { texts, weights, calibration: CalibrationPlace::Folder(gguf::calibration(path)) })
    }

    /// Like [`from_folder`](Self::from_folder), for a folder that may have no weights.
    fn from_folder_to_plan(folder: &Path, id: String) -> Result<Self> {
        const WEIGHTS: [&str; 8] = ["safetensors", "index.json", "bin", "pt", "pth", "gguf", "npz", "h5"];
        let is_weights = |name: &String| WEIGHTS.iter().any(|ending| name.ends_with(&format!(".{ending}")));
        if names_in(folder).iter().any(is_weights) {
            return Self::from_folder(folder, id);
        }
        let mut texts = ModelTexts::from_folder(folder, id)?;
        texts.notes.push(format!("the weights of {} are not here yet: the plan goes by its config.json", texts.id));
        Ok(Self { texts, weights: Weights::random(0), calibration: CalibrationPlace::Folder(folder.join(CALIBRATION)) })
    }

    /// The files in `folder`; `id` is the model's name in records. Errors as for [`ModelSource::resolve`].
    pub fn from_folder(folder: &Path, id: String) -> Result<Self> {
        let texts = ModelTexts::from_folder(folder, id)?;
        let opened = match texts.config()?.quantisation {
            Some(quantisation) => Weights::open_quantised_folder(folder, &quantisation),
            None => Weights::open_folder(folder),
        };
        let weights = opened.map_err(|e| match e {
            WeightsError::NoWeights { .. } => {
                match [SINGLE_FILE, INDEX_FILE].iter().try_for_each(|name| is_there(&folder.join(name)).map(drop)) {
                    Err(broken) => broken.into(),
                    Ok(()) => formats::lacking(e.to_string(), &names_in(folder)).into(),
                }
            }
            other => anyhow::Error::from(other),
        })?;
        Ok(Self { texts, weights, calibration: CalibrationPlace::Folder(folder.join(CALIBRATION)) })
    }
}

impl ModelTexts {
    /// The texts in `folder`; `id` is the model's name in records. Errors as for [`ModelSource::resolve_texts`].
    pub fn from_folder(folder: &Path, id: String) -> Result<Self> {
        let required = |name: &str| {
            let found = optional(folder, name)?;
            found.ok_or_else(|| anyhow::Error::from(missing_file(folder, name)))
        };
        let config = required(CONFIG)?;
        // Checked first: an unsupported model needs none of the other files.
        ModelConfig::parse(&config.text, &config.name)?;
        Ok(Self {
            id,
            revision: None,
            config,
            tokenizer: required(TOKENIZER)?,
            tokenizer_config: optional(folder, TOKENIZER_CONFIG)?,
            generation_config: optional(folder, GENERATION_CONFIG)?,
            chat_template: optional(folder, CHAT_TEMPLATE)?,
            special_tokens: optional(folder, SPECIAL_TOKENS)?,
            added_tokens: optional(folder, ADDED_TOKENS)?,
            notes: adapter_note(folder).into_iter().collect(),
        })
    }

    /// The parsed config.
    ///
    /// # Errors
    /// Those of [`ModelConfig::parse`].
    pub fn config(&self) -> Result<ModelConfig, UsageError> {
        ModelConfig::parse(&self.config.text, &self.config.name)
    }
}

fn missing_file(folder: &Path, name: &str) -> UsageError {
    let what = format!("{}: no {name} in this folder", folder.display());
    let names = names_in(folder);
    match name {
        TOKENIZER if names.iter().any(|name| name == "tokenizer.model") => UsageError::new(what).hint(
            "tokenizer.model alone is not read; save the tokenizer with transformers' `save_pretrained` to get tokenizer.json",
        ),
        CONFIG => formats::lacking(what, &names),
        _ => UsageError::new(what).hint(FOLDER_HINT),
    }
}

/// The names of files in a folder, in order.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The note that an adapter beside a model is not applied; with peft installed, transformers would apply it.
fn adapter_note(folder: &Path) -> Option<String> {
    folder.join(ADAPTER_CONFIG).is_file().then(|| {
        format!(
            "{}: the adapter of `{ADAPTER_CONFIG}` is not applied, the model is evaluated without it (merge it with peft's \
             `merge_and_unload()` to evaluate both)",
            folder.display()
        )
    })
}

/// Whether a file of a model exists.
///
/// # Errors
/// If its path is a dangling link or not a file, which must not be treated as a missing file.
fn is_there(path: &Path) -> Result<bool, UsageError> {
    if path.is_file() {
        return Ok(true);
    }
    let wrong = |what: String| UsageError::new(format!("{}: {what}", path.display()));
    match (std::fs::symlink_metadata(path), std::fs::read_link(path)) {
        (Err(_), _) => Ok(false),
        (Ok(found), _) if found.is_dir() => Ok(false),
        (Ok(_), Ok(to)) if !path.exists() => Err(wrong(format!("a link to {}, which is not there", to.display()))
            .hint("its target was moved or deleted: download the model again, or copy the file itself")),
        _ => Err(wrong("it is not a regular file".to_owned()).hint(FOLDER_HINT)),
    }
}

fn optional(folder: &Path, name: &str) -> Result<Option<TextFile>> {
    let path = folder.join(name);
    if !is_there(&path)? {
        return Ok(None);
    }
    let text = given::plain(&path).and_then(|_| given::text(&path, MOST_OF_TEXTS));
    let text = text.with_context(|| format!("{}: cannot be read", path.display()))?;
    no_lfs_pointer(path.display(), text.as_bytes())?;
    Ok(Some(TextFile { name: path.display().to_string(), text: text.into() }))
}

macro_rules! builtin_file {
    ($include:ident, $name:literal) => {
        $include!(concat!(env!("CARGO_MANIFEST_DIR"), "/models/builtin/", $name))
    };
}

/// The weights file, which the compiler joins from the halves in two packages.
static WEIGHTS: [u8; WEIGHTS_1.len() + WEIGHTS_2.len()] = {
    let mut whole = [0; WEIGHTS_1.len() + WEIGHTS_2.len()];
    let (first, second) = whole.split_at_mut(WEIGHTS_1.len());
    first.copy_from_slice(WEIGHTS_1);
    second.copy_from_slice(WEIGHTS_2);
    whole
};

fn builtin() -> Result<ModelFiles> {
    let weights = Weights::from_bytes("builtin/model.safetensors", &WEIGHTS)?;
    Ok(ModelFiles { texts: builtin_texts(), weights, calibration: CalibrationPlace::Embedded })
}

fn builtin_texts() -> ModelTexts {
    let file = |name: &str, text: &'static str| TextFile { name: format!("{BUILTIN}/{name}"), text: text.into() };
    ModelTexts {
        id: BUILTIN.to_owned(),
        revision: None,
        config: file(CONFIG, builtin_file!(include_str, "config.json")),
        tokenizer: file(TOKENIZER, builtin_file!(include_str, "tokenizer.json")),
        tokenizer_config: Some(file(TOKENIZER_CONFIG, builtin_file!(include_str, "tokenizer_config.json"))),
        generation_config: Some(file(GENERATION_CONFIG, builtin_file!(include_str, "generation_config.json"))),
        chat_template: None,
        special_tokens: None,
        added_tokens: None,
        notes: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn weights_in_two_packages_are_the_bytes_of_the_file() {
        let file = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/models/builtin/model.safetensors")).unwrap();
        assert!(file == WEIGHTS, "the halves are not the file");
    }

    fn hub(repo: &str, revision: Option<&str>) -> ModelSource {
        ModelSource::Hub { repo: repo.into(), revision: revision.map(str::to_owned) }
    }

    #[test]
    fn the_three_kinds_of_source() {
        assert_eq!(ModelSource::parse("builtin").unwrap(), ModelSource::Builtin);
        assert_eq!(ModelSource::parse("./src").unwrap(), ModelSource::Folder("./src".into()));
        assert_eq!(ModelSource::parse("src/jinja").unwrap(), ModelSource::Folder("src/jinja".into()));
        assert_eq!(ModelSource::parse("Qwen/Qwen3-0.6B").unwrap(), hub("Qwen/Qwen3-0.6B", None));
        assert_eq!(ModelSource::parse("a/b.c@v1.0").unwrap(), hub("a/b.c", Some("v1.0")));
        assert_eq!(ModelSource::parse("a/b@refs/pr/3").unwrap(), hub("a/b", Some("refs/pr/3")));
        assert_eq!(hub("a/b", Some("c")).to_string(), "a/b@c");
    }

    #[test]
    fn what_is_no_model_is_said_in_one_line() {
        let error = |spec| {
            let e = ModelSource::parse(spec).unwrap_err();
            (e.what, e.hint.unwrap())
        };
        assert_eq!(error("./nowhere").0, "the model folder `./nowhere` does not exist");
        assert_eq!(error("a/b/c").0, "the model folder `a/b/c` does not exist");
        assert_eq!(error("Cargo.toml").0, "the model `Cargo.toml` is a file, neither a folder nor a GGUF file");
        assert_eq!(error("builtin:x").0, "unknown built-in model `x`");
        assert_eq!(error("buitlin").1, "did you mean `builtin`?");
        assert_eq!(error("gpt2").0, "`gpt2` is not a model: it is not `builtin`, a folder, a GGUF file or a hub id");
        for list in ["m,m2", "a/b,c/d@main", "builtin, m"] {
            let (what, hint) = error(list);
            assert!(
                what.contains("is not a model: it is a list") && hint.contains("give --model once for each"),
                "{hint}"
            );
        }
        assert!(error("m,m2").1.ends_with("--model m --model m2"));
        assert!(ModelSource::parse("a/b@../../c").is_err());
        assert!(ModelSource::parse("a/..").is_err());
    }

    #[test]
    fn the_builtin_model_is_complete() {
        let files = ModelSource::Builtin.resolve().unwrap();
        let config = files.config().unwrap();
        assert_eq!(files.id, "builtin");
        let embedding = [config.vocab_size, config.hidden_size];
        assert!(files.weights.read("model.embed_tokens.weight", &embedding).is_ok());
    }
}

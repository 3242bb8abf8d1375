//! What a run is: settings from flags, a config file and the defaults, resolved into a [`RunConfig`] for each model.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::{self, IntoDeserializer, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::protocol::Protocol;
use crate::eval::records::timing::Latency;
use spattn_attention::kv::{KvDtype, MOST_TOKENS};
use spattn_attention::methods::configure;
use spattn_attention::{Configured, DenseLayers, Policy, Schedule, Tail, expand_grid};
use spattn_base::disk::no_lfs_pointer;
use spattn_base::error::UsageError;
use spattn_base::given;
use spattn_kernels::precision::MatmulPrecision;
use spattn_model::device::Device;
use spattn_tasks::Positions;

/// A config shipped with the program.
pub struct ShippedConfig {
    /// Name for `--config`.
    pub name: &'static str,
    /// The file's text.
    pub text: &'static str,
}

/// Configs that can be named without a path.
pub const SHIPPED: &[ShippedConfig] = &[
    ShippedConfig { name: "quick", text: include_str!("../../../configs/quick.toml") },
    ShippedConfig { name: "methods", text: include_str!("../../../configs/methods.toml") },
    ShippedConfig { name: "budgets", text: include_str!("../../../configs/budgets.toml") },
    ShippedConfig { name: "kl-grid", text: include_str!("../../../configs/kl-grid.toml") },
    ShippedConfig { name: "lengths", text: include_str!("../../../configs/lengths.toml") },
    ShippedConfig { name: "protocols", text: include_str!("../../../configs/protocols.toml") },
    ShippedConfig { name: "parity", text: include_str!("../../../configs/parity.toml") },
    ShippedConfig { name: "prefill", text: include_str!("../../../configs/prefill.toml") },
];

/// Examples for each task and length that can be asked for: more than can be run, and far from where sums overflow.
pub const MOST_SAMPLES: usize = 1_000_000_000_000;
/// Methods that can be run together, all grids, sinks, windows and dense layers multiplied.
const MOST_METHODS: usize = 10_000;
/// Values that any other key can list, and combinations of model, seed and protocol, each of which is run.
const MOST_VALUES: usize = 10_000;

/// One value, or several of which each is run. In TOML a value or a list of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Several<T: Clone>(pub Vec<T>);

impl<T: Clone + Serialize> Serialize for Several<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            several => several.serialize(serializer),
        }
    }
}

impl<'de, T: Clone + Deserialize<'de>> Deserialize<'de> for Several<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrMore(PhantomData))
    }
}

/// Reads a value or a list, and leaves it to the value's own type to say what is wrong with it.
struct OneOrMore<T>(PhantomData<T>);

impl<T> OneOrMore<T> {
    fn one<'de, V: IntoDeserializer<'de, E>, E: de::Error>(value: V) -> Result<Several<T>, E>
    where
        T: Clone + Deserialize<'de>,
    {
        Ok(Several(vec![T::deserialize(value.into_deserializer())?]))
    }
}

impl<'de, T: Clone + Deserialize<'de>> Visitor<'de> for OneOrMore<T> {
    type Value = Several<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or a list of values")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Several<T>, E> {
        Self::one(value)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Several<T>, E> {
        Self::one(value)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Several<T>, E> {
        Self::one(value)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Several<T>, E> {
        Self::one(value)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Several<T>, E> {
        Self::one(value.to_owned())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Several<T>, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = items.next_element()? {
            values.push(value);
        }
        Ok(Several(values))
    }
}

/// The values of `key`, each once; `default` if nothing was said.
fn values<T: Clone + Eq + Hash>(key: &str, given: Option<&Several<T>>, default: T) -> Result<Vec<T>, UsageError> {
    let Some(Several(given)) = given else { return Ok(vec![default]) };
    let mut seen = HashSet::with_capacity(given.len());
    let values: Vec<T> = given.iter().filter(|value| seen.insert(*value)).cloned().collect();
    if values.is_empty() {
        return Err(UsageError::new(format!("`{key}` has no value")).hint("give one, or leave the key out"));
    }
    Ok(values)
}

/// Settings of a run, each of which may be left to a lower layer: flags over a config file over
/// `configs/quick.toml`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// One line that says what the config is for.
    pub about: Option<String>,
    /// `builtin`, a folder or a hub id.
    pub model: Option<Several<String>>,
    /// Task names and groups.
    pub tasks: Option<Vec<String>>,
    /// Lengths in tokens, for tasks that are generated to a length.
    pub lengths: Option<Vec<usize>>,
    /// Method specs.
    pub methods: Option<Vec<String>>,
    /// Examples for each task and length.
    pub samples: Option<usize>,
    /// Seed of examples and of methods that draw.
    pub seed: Option<Several<u64>>,
    /// `decode`, `question`, `last:N` or `prefill`.
    pub sparse_from: Option<Several<String>>,
    /// First tokens always attended.
    pub sink: Option<Several<usize>>,
    /// Last prefix tokens always attended.
    pub local: Option<Several<usize>>,
    /// Layers left dense.
    pub dense_layers: Option<Several<String>>,
    /// `exact`, `window:N` or `indexed`: what becomes of the tokens after the prefix.
    pub tail: Option<Several<String>>,
    /// Whether to compare each step with exact attention.
    pub fidelity: Option<bool>,
    /// `shared` or `solo`: what the time of a step is.
    pub latency: Option<Latency>,
    /// `f32`, `bf16` or `f16`; the checkpoint's own type if nowhere given.
    pub dtype: Option<String>,
    /// `f32` or `bf16`: what factors of matrix products on a CPU are rounded to.
    pub matmul_precision: Option<String>,
    /// `cpu`, `cuda` or `cuda:N`.
    pub device: Option<String>,
    /// Folder with data sets, essays and word lists.
    #[serde(serialize_with = "as_shown")]
    pub data: Option<PathBuf>,
    /// Folder with calibration artefacts; the model's own if nowhere given.
    #[serde(serialize_with = "as_shown")]
    pub calibration: Option<PathBuf>,
    /// `varied` or `published`.
    pub positions: Option<Positions>,
    /// Whether prompts go through the model's chat template, if it has one.
    pub chat: Option<bool>,
    /// What the chat template is told before the user's turn: a text, or `@FILE`.
    pub system_prompt: Option<String>,
    /// Whether `full` is left out.
    pub no_full: Option<bool>,
    /// Whether lengths beyond the model's context are allowed.
    pub allow_extrapolation: Option<bool>,
    /// Whether malformed rows of files are left out.
    pub skip_bad: Option<bool>,
    /// Whether prompts are kept beside the records.
    pub keep_prompts: Option<bool>,
    /// Whether the user is left out of what is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anonymous: Option<bool>,
}

impl Settings {
    /// Makes sure that each value is one that can be meant, before anything is made of it.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check_values(&self) -> Result<(), Wrong> {
        self.check_counts()?;
        each("samples", self.samples.iter(), |n| match n {
            0 => Err(UsageError::new("0 samples were asked for").hint("--samples takes a whole number from 1")),
            1..=MOST_SAMPLES => Ok(()),
            n => Err(UsageError::new(format!("{n} samples were asked for"))
                .hint(format!("--samples takes a whole number from 1 to {MOST_SAMPLES}"))),
        })?;
        each("lengths", self.lengths.iter().flatten(), |n| match n {
            1..=MOST_TOKENS => Ok(()),
            n => Err(UsageError::new(format!("a length of {n} was asked for"))
                .hint(format!("a number of tokens from 1 to {MOST_TOKENS}, for example --length 4096"))),
        })?;
        for (key, values) in [("sink", &self.sink), ("local", &self.local)] {
            each(key, values.iter().flat_map(|v| &v.0), |n| match n {
                0..=MOST_TOKENS => Ok(()),
                n => Err(UsageError::new(format!("{n} static tokens were asked for"))
                    .hint(format!("`{key}` takes a number of tokens from 0 to {MOST_TOKENS}"))),
            })?;
        }
        each("sparse_from", self.sparse_from.iter().flat_map(|v| &v.0), |text| text.parse::<Protocol>().map(drop))?;
        each("dense_layers", self.dense_layers.iter().flat_map(|v| &v.0), |text| DenseLayers::parse(text).map(drop))?;
        each("tail", self.tail.iter().flat_map(|v| &v.0), |text| text.parse::<Tail>().map(drop))?;
        each("dtype", self.dtype.iter(), |text| parse_dtype(text).map(drop))?;
        each("matmul_precision", self.matmul_precision.iter(), |text| parse_matmul_precision(text).map(drop))?;
        each("system_prompt", self.system_prompt.iter(), |text| system_text(text).map(drop))?;
        each("device", self.device.iter(), |text| text.parse::<Device>().map(drop))?;
        each("methods", self.methods.iter().flatten(), |text| {
            expand_grid(text)?.iter().try_for_each(|spec| configure(spec, &Policy::default()).map(drop))
        })
    }

    /// Makes sure that lists are no longer than anybody can mean: all of their values are combined.
    fn check_counts(&self) -> Result<(), Wrong> {
        fn count<T: Clone>(values: &Option<Several<T>>) -> usize {
            values.as_ref().map_or(0, |values| values.0.len())
        }
        let counts = [
            ("model", count(&self.model)),
            ("tasks", self.tasks.as_ref().map_or(0, Vec::len)),
            ("lengths", self.lengths.as_ref().map_or(0, Vec::len)),
            ("methods", self.methods.as_ref().map_or(0, Vec::len)),
            ("seed", count(&self.seed)),
            ("sparse_from", count(&self.sparse_from)),
            ("sink", count(&self.sink)),
            ("local", count(&self.local)),
            ("dense_layers", count(&self.dense_layers)),
            ("tail", count(&self.tail)),
        ];
        match counts.into_iter().find(|(_, count)| *count > MOST_VALUES) {
            None => Ok(()),
            Some((key, count)) => {
                let error = UsageError::new(format!("{count} values were given"))
                    .hint(format!("a run takes {MOST_VALUES} at most: run them in parts"));
                Err(Wrong { key, item: 0, error })
            }
        }
    }

    /// A shipped config by name, or a file.
    ///
    /// # Errors
    /// If it is neither, or cannot be read.
    pub fn load(name: &str) -> Result<Self, UsageError> {
        if let Some(shipped) = SHIPPED.iter().find(|c| c.name == name) {
            return Self::parse(shipped.text, name);
        }
        let text = given::text(Path::new(name), given::MOST_OF_SETTINGS).map_err(|e| {
            let known: Vec<&str> = SHIPPED.iter().map(|c| c.name).collect();
            UsageError::new(format!("cannot read config {name}: {e}"))
                .hint(format!("give a TOML file, or a shipped config: {}", known.join(", ")))
        })?;
        no_lfs_pointer(name, text.as_bytes())?;
        Self::parse(&text, name)
    }

    /// These settings, with those of `base` where these are silent.
    pub fn over(self, base: Self) -> Self {
        Self {
            about: self.about.or(base.about),
            model: self.model.or(base.model),
            tasks: self.tasks.or(base.tasks),
            lengths: self.lengths.or(base.lengths),
            methods: self.methods.or(base.methods),
            samples: self.samples.or(base.samples),
            seed: self.seed.or(base.seed),
            sparse_from: self.sparse_from.or(base.sparse_from),
            sink: self.sink.or(base.sink),
            local: self.local.or(base.local),
            dense_layers: self.dense_layers.or(base.dense_layers),
            tail: self.tail.or(base.tail),
            fidelity: self.fidelity.or(base.fidelity),
            latency: self.latency.or(base.latency),
            dtype: self.dtype.or(base.dtype),
            matmul_precision: self.matmul_precision.or(base.matmul_precision),
            device: self.device.or(base.device),
            data: self.data.or(base.data),
            calibration: self.calibration.or(base.calibration),
            positions: self.positions.or(base.positions),
            chat: self.chat.or(base.chat),
            system_prompt: self.system_prompt.or(base.system_prompt),
            no_full: self.no_full.or(base.no_full),
            allow_extrapolation: self.allow_extrapolation.or(base.allow_extrapolation),
            skip_bad: self.skip_bad.or(base.skip_bad),
            keep_prompts: self.keep_prompts.or(base.keep_prompts),
            anonymous: self.anonymous.or(base.anonymous),
        }
    }
}

/// A value that cannot be meant.
#[derive(Debug)]
pub struct Wrong {
    /// Its key.
    pub key: &'static str,
    /// Which value of the key it is, from 0.
    pub item: usize,
    /// What is wrong with it.
    pub error: UsageError,
}

fn each<T>(
    key: &'static str,
    values: impl Iterator<Item = T>,
    mut check: impl FnMut(T) -> Result<(), UsageError>,
) -> Result<(), Wrong> {
    values.enumerate().try_for_each(|(item, value)| check(value).map_err(|error| Wrong { key, item, error }))
}

/// Paths that are not UTF-8 are written as they are shown.
fn as_shown<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_ref().map(|path| path.to_string_lossy()).serialize(serializer)
}

/// What examples are run under, besides the methods: each combination of values is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Variant {
    /// Seed of the examples and of methods that draw.
    pub seed: u64,
    /// Where sparse attention starts.
    pub protocol: Protocol,
}

/// Everything about a run on one model that the user decides, checked.
#[derive(Debug, Clone)]
pub struct RunConfig {
    /// The settings as resolved, those of other models included; goes into the manifest.
    pub settings: Arc<Settings>,
    /// Model as named.
    pub model: String,
    /// Task names and groups.
    pub tasks: Vec<String>,
    /// Lengths in tokens.
    pub lengths: Vec<usize>,
    /// The lengths that the user named himself: rows of files that are too long are cut to each of them, or, if there
    /// are none, to the model's context.
    pub limits: Vec<usize>,
    /// Methods to run, `full` first unless left out.
    pub methods: Vec<Configured>,
    /// Examples for each task and length.
    pub samples: usize,
    /// Seeds of the run.
    pub seeds: Vec<u64>,
    /// Where sparse attention starts.
    pub protocols: Vec<Protocol>,
    /// Whether to compare each step with exact attention.
    pub fidelity: bool,
    /// What the time of a step is.
    pub latency: Latency,
    /// Storage type; the checkpoint's if `None`.
    pub dtype: Option<KvDtype>,
    /// What factors of matrix products on a CPU are rounded to.
    pub matmul_precision: MatmulPrecision,
    /// Where models compute.
    pub device: Device,
    /// Data set as named: a folder or `hub:` and a hub id.
    pub data: Option<PathBuf>,
    /// Folder with calibration artefacts; the model's own if `None`.
    pub calibration: Option<PathBuf>,
    /// How examples are placed.
    pub positions: Positions,
    /// Whether chat templates are used.
    pub chat: bool,
    /// What the chat template is told before the user's turn.
    pub system_prompt: Option<String>,
    /// Whether lengths beyond the model's context are allowed.
    pub allow_extrapolation: bool,
    /// Whether malformed rows of files are left out, and noted.
    pub skip_bad: bool,
    /// Whether prompts are kept beside the records.
    pub keep_prompts: bool,
    /// Whether the user is left out of what is written.
    pub anonymous: bool,
}

impl RunConfig {
    /// Checks settings and fills in what is still missing from the program's defaults: a config for each model.
    ///
    /// # Errors
    /// The first thing that is wrong with them.
    pub fn resolve(settings: Settings) -> Result<Vec<Self>, UsageError> {
        settings.check_values().map_err(|wrong| wrong.error)?;
        let limits = settings.lengths.clone().unwrap_or_default();
        let mut s = settings.over(Settings::parse(SHIPPED[0].text, SHIPPED[0].name)?);
        s.system_prompt = s.system_prompt.as_deref().map(system_text).transpose()?;
        let protocols = values("sparse_from", s.sparse_from.as_ref(), Protocol::Question.to_string())?;
        let protocols = protocols.iter().map(|p| p.parse()).collect::<Result<Vec<Protocol>, _>>()?;
        let methods = resolve_methods(&s)?;
        protocols.iter().try_for_each(|protocol| check_prefill(*protocol, &methods))?;
        let config = Self {
            model: String::new(),
            tasks: s.tasks.clone().unwrap_or_default(),
            lengths: s.lengths.clone().unwrap_or_default(),
            limits,
            methods,
            samples: s.samples.unwrap_or(10),
            seeds: values("seed", s.seed.as_ref(), 42)?,
            protocols,
            fidelity: s.fidelity.unwrap_or(false),
            latency: s.latency.unwrap_or_default(),
            dtype: s.dtype.as_deref().map(parse_dtype).transpose()?,
            matmul_precision: s.matmul_precision.as_deref().map_or(Ok(MatmulPrecision::F32), parse_matmul_precision)?,
            device: s.device.as_deref().map(str::parse).transpose()?.unwrap_or_default(),
            data: s.data.clone(),
            calibration: s.calibration.clone(),
            positions: s.positions.unwrap_or_default(),
            chat: s.chat.unwrap_or(true),
            system_prompt: s.system_prompt.clone(),
            allow_extrapolation: s.allow_extrapolation.unwrap_or(false),
            skip_bad: s.skip_bad.unwrap_or(false),
            keep_prompts: s.keep_prompts.unwrap_or(false),
            anonymous: s.anonymous.unwrap_or(false),
            settings: Arc::new(s),
        };
        config.check()?;
        let models = values("model", config.settings.model.as_ref(), "builtin".to_owned())?;
        let variants = config.seeds.len().saturating_mul(config.protocols.len());
        if models.len().saturating_mul(variants) > MOST_VALUES {
            let (models, seeds, protocols) = (models.len(), config.seeds.len(), config.protocols.len());
            let what = format!("{models} models, {seeds} seeds and {protocols} protocols were asked for");
            let hint = format!("a run has {MOST_VALUES} combinations of them at most: run them in parts");
            return Err(UsageError::new(what).hint(hint));
        }
        Ok(models.into_iter().map(|model| Self { model, ..config.clone() }).collect())
    }

    /// The same of settings that give one value of everything that `spattn eval` takes one of.
    ///
    /// # Errors
    /// As [`RunConfig::resolve`]; if there are several values.
    pub fn resolve_single(settings: Settings) -> Result<Self, UsageError> {
        let mut configs = Self::resolve(settings)?;
        let s = &configs[0].settings;
        let counts = [
            ("model", s.model.as_ref().map(|v| v.0.len())),
            ("seed", s.seed.as_ref().map(|v| v.0.len())),
            ("sparse_from", s.sparse_from.as_ref().map(|v| v.0.len())),
            ("sink", s.sink.as_ref().map(|v| v.0.len())),
            ("local", s.local.as_ref().map(|v| v.0.len())),
            ("dense_layers", s.dense_layers.as_ref().map(|v| v.0.len())),
            ("tail", s.tail.as_ref().map(|v| v.0.len())),
        ];
        match counts.into_iter().find(|(_, count)| count.is_some_and(|count| count > 1)) {
            None => Ok(configs.swap_remove(0)),
            Some((key, _)) => Err(UsageError::new(format!("`{key}` has several values"))
                .hint("`spattn sweep CONFIG` runs a matrix of them; `spattn eval` takes one")),
        }
    }

    /// What every example is run under: all combinations of seed and protocol.
    pub fn variants(&self) -> Vec<Variant> {
        let of_seed = |&seed: &u64| self.protocols.iter().map(move |&protocol| Variant { seed, protocol });
        self.seeds.iter().flat_map(of_seed).collect()
    }

    fn check(&self) -> Result<(), UsageError> {
        if self.tasks.is_empty() {
            return Err(UsageError::new("no task was given").hint("for example --task ruler/niah_single_1"));
        }
        if self.system_prompt.is_some() && !self.chat {
            return Err(UsageError::new("a system prompt is part of the chat template, which is not to be used")
                .hint("leave out --system-prompt, or --no-chat (`chat = false`)"));
        }
        if self.matmul_precision != MatmulPrecision::F32 && self.device != Device::Cpu {
            return Err(UsageError::new("`matmul_precision` is of products on a CPU, and a GPU is to compute").hint(
                "leave it out: on a GPU weights and activations are multiplied in the storage type, see --dtype",
            ));
        }
        Ok(())
    }
}

/// A system prompt as it was asked for: a text, or `@FILE` for what the file says, without white space at its end.
///
/// # Errors
/// If the file cannot be read, or nothing is said.
/// The system prompt that a user gives: a text, or `@FILE` for that of a file.
///
/// # Errors
/// A file that cannot be read; a text that is empty.
pub fn system_text(given: &str) -> Result<String, UsageError> {
    let text = match given.strip_prefix('@') {
        None => given.to_owned(),
        Some(file) => {
            let text = given::text(Path::new(file), given::MOST_OF_SETTINGS).map_err(|e| {
                UsageError::new(format!("cannot read {file}: {e}")).hint("@FILE takes a text file in UTF-8")
            })?;
            no_lfs_pointer(file, text.as_bytes())?;
            text.trim_end().to_owned()
        }
    };
    match text.trim().is_empty() {
        true => Err(UsageError::new("the system prompt is empty").hint("leave it out for none")),
        false => Ok(text),
    }
}

/// Sinks, windows, dense layers and tails in all combinations: what methods are run under unless they say otherwise.
fn policies(s: &Settings) -> Result<Vec<Policy>, UsageError> {
    let default = Policy::default();
    let sinks = values("sink", s.sink.as_ref(), default.sink)?;
    let locals = values("local", s.local.as_ref(), default.local)?;
    let dense = values("dense_layers", s.dense_layers.as_ref(), default.dense_layers.to_string())?;
    let tails = values("tail", s.tail.as_ref(), default.tail.to_string())?;
    let count = [locals.len(), dense.len(), tails.len()].into_iter().fold(sinks.len(), usize::saturating_mul);
    if count > MOST_METHODS {
        return Err(UsageError::new(format!(
            "{count} combinations of `sink`, `local`, `dense_layers` and `tail` were asked for"
        ))
        .hint(format!("a run has {MOST_METHODS} methods at most: run them in parts")));
    }
    let mut policies = Vec::new();
    for layers in dense {
        let dense_layers = DenseLayers::parse(&layers)?;
        for tail in &tails {
            let tail: Tail = tail.parse()?;
            for &sink in &sinks {
                let of = |&local| Policy {
                    sink,
                    local,
                    dense_layers: dense_layers.clone(),
                    tail,
                    schedule: Schedule::default(),
                };
                policies.extend(locals.iter().map(of));
            }
        }
    }
    Ok(policies)
}

/// What methods of these settings are run under unless they say otherwise.
///
/// # Errors
/// If sinks, windows, dense layers or tails are several, or wrong.
pub(crate) fn only_policy(s: &Settings) -> Result<Policy, UsageError> {
    let mut policies = policies(s)?;
    match policies.len() {
        1 => Ok(policies.remove(0)),
        n => Err(UsageError::new(format!("`sink`, `local`, `dense_layers` and `tail` have {n} combinations"))
            .hint("give one value of each, and others in the methods' own specs")),
    }
}

fn resolve_methods(s: &Settings) -> Result<Vec<Configured>, UsageError> {
    let policies = policies(s)?;
    let reference = (s.no_full != Some(true)).then(|| "full".to_owned());
    let mut specs = Vec::new();
    for text in reference.iter().chain(s.methods.iter().flatten()) {
        specs.extend(expand_grid(text)?);
        let count = specs.len().saturating_mul(policies.len());
        if count > MOST_METHODS {
            let what = format!(
                "{count} methods were asked for, up to `{text}`: grids, sinks, windows and dense layers multiply"
            );
            return Err(UsageError::new(what).hint(format!("a run has {MOST_METHODS} at most: run them in parts")));
        }
    }
    let mut methods: Vec<Configured> = Vec::new();
    let mut labels = HashSet::new();
    for spec in &specs {
        for policy in &policies {
            let method = configure(spec, policy)?;
            if labels.insert(method.label()) {
                methods.push(method);
            }
        }
    }
    if methods.is_empty() {
        return Err(UsageError::new("no method is left to run").hint("give one with -m, or leave out --no-full"));
    }
    Ok(methods)
}

fn check_prefill(protocol: Protocol, methods: &[Configured]) -> Result<(), UsageError> {
    if protocol != Protocol::Prefill {
        if let Some(m) = methods.iter().find(|m| m.reader.is_some()) {
            let what =
                format!("`{}` says how the prompt is read, and sparse attention starts at {protocol}", m.label());
            return Err(UsageError::new(what).hint("use --sparse-from prefill, or leave out what stands before `>`"));
        }
        return match methods.iter().find(|m| m.method.decodes_densely()) {
            None => Ok(()),
            Some(m) => Err(UsageError::new(format!(
                "method `{}` is sparse only while the prompt is read, so it cannot be sparse from {protocol}",
                m.label()
            ))
            .hint("use --sparse-from prefill for it; after a dense prompt it would be full attention")),
        };
    }
    match methods.iter().find(|m| m.reads().method.prefill_pattern().is_none()) {
        None => Ok(()),
        Some(m) => Err(UsageError::new(format!(
            "method `{}` has no prefill pattern, so it cannot be sparse from prefill",
            m.label()
        ))
        .hint(
            "write full>... to decode with it after a dense prompt, or use --sparse-from decode, question or last:N; \
             `spattn list methods` says which have one, and none has that is solved for a density on the prompt itself",
        )),
    }
}

/// A storage type by name.
///
/// # Errors
/// A [`UsageError`] that suggests the nearest one.
pub fn parse_dtype(name: &str) -> Result<KvDtype, UsageError> {
    let all = [KvDtype::F32, KvDtype::Bf16, KvDtype::F16];
    all.into_iter()
        .find(|d| d.name() == name)
        .ok_or_else(|| UsageError::unknown("dtype", name, all.iter().map(|d| d.name())))
}

/// A precision of matrix products by name.
///
/// # Errors
/// A [`UsageError`] that suggests the nearest one.
pub fn parse_matmul_precision(name: &str) -> Result<MatmulPrecision, UsageError> {
    let all = MatmulPrecision::ALL;
    all.into_iter()
        .find(|precision| precision.name() == name)
        .ok_or_else(|| UsageError::unknown("matmul precision", name, all.iter().map(|precision| precision.name())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(text: &str) -> Result<RunConfig, UsageError> {
        RunConfig::resolve_single(Settings::parse(text, "test.toml")?)
    }

    fn labels(config: &RunConfig) -> Vec<String> {
        config.methods.iter().map(Configured::label).collect()
    }

    #[test]
    fn every_shipped_config_resolves_and_says_what_it_is_for() {
        for shipped in SHIPPED {
            let settings = Settings::load(shipped.name).unwrap();
            assert!(settings.about.is_some(), "{}", shipped.name);
            assert_eq!(RunConfig::resolve(settings).unwrap()[0].methods[0].name, "full");
        }
    }

    #[test]
    fn grids_multiply_and_repeated_methods_run_once() {
        let c = resolve("methods = ['topk:k={16,64}', 'topk:k=64', 'full']").unwrap();
        assert_eq!(labels(&c), ["full", "topk:k=16", "topk:k=64"]);
    }

    #[test]
    fn several_values_make_a_matrix() {
        let text = "model = ['builtin', 'x/y']\nseed = [1, 2, 1]\nsparse_from = ['question', 'decode']\n\
                    methods = ['topk:k=16', 'quest:sink=8']\nsink = [4, 16]\ndense_layers = ['none', '0+1']";
        let configs = RunConfig::resolve(Settings::parse(text, "test.toml").unwrap()).unwrap();
        assert_eq!(configs.iter().map(|c| c.model.as_str()).collect::<Vec<_>>(), ["builtin", "x/y"]);
        let variants: Vec<_> = configs[0].variants().iter().map(|v| (v.seed, v.protocol.to_string())).collect();
        let expected = [(1, "question"), (1, "decode"), (2, "question"), (2, "decode")];
        assert_eq!(variants, expected.map(|(seed, protocol)| (seed, protocol.to_owned())));
        let topk = labels(&configs[0]).into_iter().filter(|l| l.starts_with("topk")).collect::<Vec<_>>();
        let expected =
            ["topk:k=16", "topk:k=16,sink=16", "topk:k=16,dense_layers=0+1", "topk:k=16,sink=16,dense_layers=0+1"];
        assert_eq!(topk, expected);
        let of_its_own = labels(&configs[0]).iter().filter(|l| l.starts_with("quest")).count();
        assert_eq!(of_its_own, 2, "what a method says itself is not multiplied: {:?}", labels(&configs[0]));
        assert_eq!(labels(&configs[0]).iter().filter(|l| *l == "full").count(), 1);
    }

    #[test]
    fn an_evaluation_takes_one_value_and_a_matrix_at_least_one() {
        for key in ["seed = [1, 2]", "sparse_from = ['question', 'decode']", "sink = [4, 8]", "model = ['a/b', 'c/d']"]
        {
            let e = resolve(key).unwrap_err();
            assert!(e.what.contains("several values") && e.hint.unwrap().contains("spattn sweep"), "{key}");
        }
        assert_eq!(resolve("seed = [7]").unwrap().seeds, [7]);
        assert!(resolve("seed = []").unwrap_err().what.contains("`seed` has no value"));
        let e = resolve("samples = 3\nseed = 'x'").unwrap_err();
        assert_eq!(e.what, "test.toml:2: `seed`: invalid type: string \"x\", expected a whole number");
        let e = resolve("methods = ['topk:k=1..10', 'topk:k=1..5000', 'quest:k=1..5000']").unwrap_err();
        assert!(e.what.starts_with("10011 methods") && e.hint.unwrap().contains("10000 at most"), "{}", e.what);
    }

    #[test]
    fn a_run_has_so_many_methods_at_most() {
        let list = |n: usize| (0..n).map(|i| i.to_string()).collect::<Vec<_>>().join(", ");
        let under = |sinks, locals| {
            let text = format!("methods = []\nsink = [{}]\nlocal = [{}]", list(sinks), list(locals));
            RunConfig::resolve(Settings::parse(&text, "test.toml").unwrap())
        };
        assert_eq!(under(100, 100).unwrap()[0].methods.len(), 1, "`full` is the same under every policy");
        assert!(under(100, 101).unwrap_err().what.starts_with("10100 combinations of `sink`"));
        assert_eq!(resolve("methods = ['topk:k=1..9999']").unwrap().methods.len(), 10_000);
        assert!(resolve("methods = ['topk:k=1..10000']").unwrap_err().what.starts_with("10001 methods"));
    }

    #[test]
    fn a_run_has_a_task() {
        assert_eq!(resolve("tasks = []").unwrap_err().what, "no task was given");
        assert_eq!(resolve("tasks = ['ruler/vt']").unwrap().tasks, ["ruler/vt"]);
    }

    #[test]
    fn mistakes_name_the_file_and_line() {
        let e = resolve("samples = 3\nlenghts = [1]").unwrap_err();
        assert_eq!(e.what, "test.toml:2: unknown key `lenghts`");
        assert_eq!(e.hint.unwrap(), "did you mean `lengths`?");
        assert!(resolve("lengths = 4096").unwrap_err().what.ends_with("integer `4096`, expected a list, in brackets"));
        assert!(resolve("lengths = ['4k']").unwrap_err().what.ends_with("string \"4k\", expected a whole number"));
        assert!(resolve("samples = 0").unwrap_err().what.contains("0 samples"));
        assert!(resolve("dtype = 'f64'").unwrap_err().what.contains("f64"));
        assert!(resolve("no_full = true\nmethods = []").unwrap_err().what.contains("no method"));
    }

    #[test]
    fn sparse_prefill_needs_a_pattern() {
        for method in ["snapkv", "topp:density=0.1"] {
            let e = resolve(&format!("sparse_from = 'prefill'\nmethods = ['{method}']")).unwrap_err();
            assert!(e.what.contains(method) && e.what.contains("prefill pattern"), "{e:?}");
        }
        for method in ["topk", "hip>snapkv", "full>snapkv", "quest>full"] {
            assert!(resolve(&format!("sparse_from = 'prefill'\nmethods = ['{method}']")).is_ok(), "{method}");
            if method.contains('>') {
                let e = resolve(&format!("sparse_from = 'decode'\nmethods = ['{method}']")).unwrap_err();
                assert!(e.what.contains("how the prompt is read") && e.hint.is_some(), "{e:?}");
            }
        }
        assert!(resolve("sparse_from = 'prefill'\nmethods = []").is_ok());
    }

    #[test]
    fn what_decodes_densely_is_refused_where_prompts_are_read_densely() {
        for sparse_from in ["decode", "question", "last:5"] {
            let e = resolve(&format!("sparse_from = '{sparse_from}'\nmethods = ['vertical_slash']")).unwrap_err();
            assert!(e.what.contains("`vertical_slash:") && e.what.ends_with(&format!("sparse from {sparse_from}")));
            assert!(e.hint.unwrap().contains("--sparse-from prefill"));
        }
        assert!(resolve("sparse_from = 'prefill'\nmethods = ['vertical_slash']").is_ok());
        let both = Settings::parse("sparse_from = ['prefill', 'decode']\nmethods = ['vertical_slash']", "test.toml");
        assert!(RunConfig::resolve(both.unwrap()).unwrap_err().what.contains("sparse from decode"));
    }
}

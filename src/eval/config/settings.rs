//! Settings of a run as flags and config files give them, before anything is resolved.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::de::{self, IntoDeserializer, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::protocol::Protocol;
use crate::eval::records::timing::Latency;
use spattn_attention::kv::{KvDtype, MOST_TOKENS};
use spattn_attention::methods::configure;
use spattn_attention::{DenseLayers, Policy, Tail, expand_grid};
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

/// The most examples for each task and length: more than can be run, and far from where sums overflow.
pub const MOST_SAMPLES: usize = 1_000_000_000_000;

/// The most methods that can run together, with all combinations of grids, sinks, windows and dense layers.
pub(super) const MOST_METHODS: usize = 10_000;

/// The most values of any other key, and the most combinations of model, seed and protocol.
pub(super) const MOST_VALUES: usize = 10_000;

/// One value, or several that are each run. In TOML a value or a list.
#[derive(Debug, Clone, PartialEq)]
pub struct OneOrMany<T: Clone>(pub Vec<T>);

impl<T: Clone + Serialize> Serialize for OneOrMany<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            several => several.serialize(serializer),
        }
    }
}

impl<'de, T: Clone + Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrManyVisitor(PhantomData))
    }
}

/// Reads a value or a list. Errors are those of the value's own type.
struct OneOrManyVisitor<T>(PhantomData<T>);

impl<T> OneOrManyVisitor<T> {
    fn one<'de, V: IntoDeserializer<'de, E>, E: de::Error>(value: V) -> Result<OneOrMany<T>, E>
    where
        T: Clone + Deserialize<'de>,
    {
        Ok(OneOrMany(vec![T::deserialize(value.into_deserializer())?]))
    }
}

impl<'de, T: Clone + Deserialize<'de>> Visitor<'de> for OneOrManyVisitor<T> {
    type Value = OneOrMany<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or a list of values")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<OneOrMany<T>, E> {
        Self::one(value)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<OneOrMany<T>, E> {
        Self::one(value)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<OneOrMany<T>, E> {
        Self::one(value)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<OneOrMany<T>, E> {
        Self::one(value)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<OneOrMany<T>, E> {
        Self::one(value.to_owned())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<OneOrMany<T>, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = items.next_element()? {
            values.push(value);
        }
        Ok(OneOrMany(values))
    }
}

/// The values of `key` without duplicates; `default` if none are given.
pub(super) fn values<T: Clone + Eq + Hash>(
    key: &str,
    given: Option<&OneOrMany<T>>,
    default: T,
) -> Result<Vec<T>, UsageError> {
    let Some(OneOrMany(given)) = given else { return Ok(vec![default]) };
    let mut seen = HashSet::with_capacity(given.len());
    let values: Vec<T> = given.iter().filter(|value| seen.insert(*value)).cloned().collect();
    if values.is_empty() {
        return Err(UsageError::new(format!("`{key}` has no value")).hint("give one, or leave the key out"));
    }
    Ok(values)
}

/// Settings of a run. `None` leaves a setting to the layer below: flags, then a config file, then `configs/quick.toml`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// One line that says what the config is for.
    pub about: Option<String>,
    /// `builtin`, a folder or a hub id.
    pub model: Option<OneOrMany<String>>,
    /// Task names and groups.
    pub tasks: Option<Vec<String>>,
    /// Lengths in tokens, for tasks that are generated to a length.
    pub lengths: Option<Vec<usize>>,
    /// Method specs.
    pub methods: Option<Vec<String>>,
    /// Examples for each task and length.
    pub samples: Option<usize>,
    /// Seed of examples and of methods with random choices.
    pub seed: Option<OneOrMany<u64>>,
    /// `decode`, `question`, `last:N` or `prefill`.
    pub sparse_from: Option<OneOrMany<String>>,
    /// First tokens always attended.
    pub sink: Option<OneOrMany<usize>>,
    /// Last prefix tokens always attended.
    pub local: Option<OneOrMany<usize>>,
    /// Layers left dense.
    pub dense_layers: Option<OneOrMany<String>>,
    /// `exact`, `window:N` or `indexed`: how the tail is attended.
    pub tail: Option<OneOrMany<String>>,
    /// Whether to compare each step with exact attention.
    pub fidelity: Option<bool>,
    /// `shared` or `solo`: the kind of step times.
    pub latency: Option<Latency>,
    /// `f32`, `bf16` or `f16`; the checkpoint's own type if not set.
    pub dtype: Option<String>,
    /// `f32` or `bf16`: the precision of the factors of matrix products on a CPU.
    pub matmul_precision: Option<String>,
    /// `cpu`, `cuda` or `cuda:N`.
    pub device: Option<String>,
    /// Folder with data sets, essays and word lists.
    #[serde(serialize_with = "as_shown")]
    pub data: Option<PathBuf>,
    /// Folder with calibration artefacts; the model's own if not set.
    #[serde(serialize_with = "as_shown")]
    pub calibration: Option<PathBuf>,
    /// `varied` or `published`.
    pub positions: Option<Positions>,
    /// Whether prompts go through the model's chat template, if it has one.
    pub chat: Option<bool>,
    /// The system message of the chat template: a text, or `@FILE`.
    pub system_prompt: Option<String>,
    /// Whether `full` is left out.
    pub no_full: Option<bool>,
    /// Whether lengths beyond the model's context are allowed.
    pub allow_extrapolation: Option<bool>,
    /// Whether malformed rows of files are left out.
    pub skip_bad: Option<bool>,
    /// Whether prompts are stored beside the records.
    pub keep_prompts: Option<bool>,
    /// Whether the user's data is hidden in what is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anonymous: Option<bool>,
}

impl Settings {
    /// Checks every value before any is used.
    ///
    /// # Errors
    /// With the first wrong value.
    pub fn check_values(&self) -> Result<(), InvalidValue> {
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

    /// Checks the number of values in lists, because all combinations of them are run.
    fn check_counts(&self) -> Result<(), InvalidValue> {
        fn count<T: Clone>(values: &Option<OneOrMany<T>>) -> usize {
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
                Err(InvalidValue { key, item: 0, error })
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

    /// These settings; those that are missing are taken from `base`.
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

/// A value that is out of range or malformed.
#[derive(Debug)]
pub struct InvalidValue {
    /// Its key.
    pub key: &'static str,
    /// The index of the wrong value in the key's list, from 0.
    pub item: usize,
    /// The fault.
    pub error: UsageError,
}

fn each<T>(
    key: &'static str,
    values: impl Iterator<Item = T>,
    mut check: impl FnMut(T) -> Result<(), UsageError>,
) -> Result<(), InvalidValue> {
    values.enumerate().try_for_each(|(item, value)| check(value).map_err(|error| InvalidValue { key, item, error }))
}

/// Paths that are not UTF-8 are written with replacement characters.
fn as_shown<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_ref().map(|path| path.to_string_lossy()).serialize(serializer)
}

/// A system prompt as a user gives it: a text, or `@FILE` for the text of a file, without white space at its end.
///
/// # Errors
/// If the file cannot be read, or the text is empty.
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

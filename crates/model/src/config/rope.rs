//! The rotary embedding by `config.json`, in both spellings: `rope_theta` with `rope_scaling`, and the newer `rope_parameters`. The
//! formulas are in [`rope`](crate::rope).

use serde::Serialize;
use serde_json::{Map, Value};

use super::keys::Keys;
use spattn_base::error::UsageError;

/// How rotary frequencies are scaled; the formulas are in [`rope`](crate::rope).
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    /// `default`: no scaling.
    Default,
    /// `linear`: positions divided by `factor`.
    Linear {
        /// How many times longer the context becomes.
        factor: f64,
    },
    /// `dynamic` (NTK): the base grows with the sequence once it exceeds the trained length.
    /// The trained length is the config's `max_position_embeddings`.
    Dynamic {
        /// How fast the base grows.
        factor: f64,
    },
    /// `yarn`.
    Yarn(YarnScaling),
    /// `llama3`: low frequencies divided by `factor`, high ones kept, a ramp between.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_max_positions / low_freq_factor` are scaled fully.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_positions / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Trained length in tokens.
        original_max_positions: usize,
    },
}

/// Parameters of YaRN scaling, defaults filled in.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct YarnScaling {
    /// How many times longer the context becomes.
    pub factor: f64,
    /// Trained length in tokens.
    pub original_max_positions: usize,
    /// Factor on cos and sin; derived from `factor` and the `mscale`s if absent.
    pub attention_factor: Option<f64>,
    /// Rotations within the trained length above which a frequency is kept; 32 by default.
    pub beta_fast: f64,
    /// Rotations within the trained length below which a frequency is divided; 1 by default.
    pub beta_slow: f64,
    /// See `attention_factor`.
    pub mscale: Option<f64>,
    /// See `attention_factor`.
    pub mscale_all_dim: Option<f64>,
    /// Whether the ramp's ends are rounded to whole dimensions; true by default.
    pub truncate: bool,
}

impl YarnScaling {
    /// Positions that the trained length is scaled to.
    pub(super) fn reach(&self) -> usize {
        (self.original_max_positions as f64 * self.factor) as usize
    }
}

/// Base and scaling of the rotary embedding.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RopeConfig {
    /// Base of the geometric series of wavelengths.
    pub theta: f64,
    /// How the frequencies are scaled.
    pub scaling: RopeScaling,
}

impl RopeConfig {
    /// Base, kind and what matters most of it, for errors.
    fn in_words(&self) -> String {
        let scaling = match &self.scaling {
            RopeScaling::Default => "no scaling".to_owned(),
            RopeScaling::Linear { factor } => format!("`linear` by {factor}"),
            RopeScaling::Dynamic { factor } => format!("`dynamic` by {factor}"),
            RopeScaling::Yarn(yarn) => {
                format!("`yarn` by {} of {} positions", yarn.factor, yarn.original_max_positions)
            }
            RopeScaling::Llama3 { factor, original_max_positions, .. } => {
                format!("`llama3` by {factor} of {original_max_positions} positions")
            }
        };
        format!("{scaling} with theta {}", self.theta)
    }
}

/// Reads the rotary embedding; what the user should know about it is added to `notes`.
///
/// Transformers 5 takes `rope_scaling`, if it has any key, instead of `rope_parameters`; both are read where they agree.
pub(super) fn rope(keys: &Keys, max_positions: usize, notes: &mut Vec<String>) -> Result<RopeConfig, UsageError> {
    const KEYS: [&str; 2] = ["rope_scaling", "rope_parameters"];
    let empty = Map::new();
    let mut read = |key: &str, map| rope_of(keys, key, map, max_positions, notes);
    let [scaling, parameters] = KEYS.map(|key| keys.object(key).map(|map| map.filter(|map| !map.is_empty())));
    let (scaling, parameters) = match (scaling?, parameters?) {
        (None, parameters) => return read(KEYS[1], parameters.unwrap_or(&empty)),
        (Some(scaling), None) => return read(KEYS[0], scaling),
        (Some(scaling), Some(parameters)) => (read(KEYS[0], scaling)?, read(KEYS[1], parameters)?),
    };
    if scaling == parameters {
        return Ok(scaling);
    }
    let what = format!("it says {}, and `rope_parameters` {}", scaling.in_words(), parameters.in_words());
    Err(keys.error(KEYS[0], &what).hint(
        "keep one of the two, with all of its keys: transformers takes `rope_scaling` alone, with the `rope_theta` in it or beside it",
    ))
}

fn rope_of(
    keys: &Keys,
    name: &str,
    map: &Map<String, Value>,
    max_positions: usize,
    notes: &mut Vec<String>,
) -> Result<RopeConfig, UsageError> {
    let prefix = format!("{name}.");
    let inner = Keys { file: keys.file, prefix: &prefix, map };
    if let Some((key, _)) = inner.map.iter().find(|(_, v)| v.is_object()) {
        return Err(inner.error(key, "RoPE parameters that differ by layer are not supported"));
    }
    let [within, beside] = [&inner, keys].map(|level| level.optional_number("rope_theta"));
    let (within, beside) = (within?, beside?);
    let theta = within.or(beside).unwrap_or(10_000.0);
    if theta <= 1.0 {
        return Err(keys.error("rope_theta", &format!("must be above 1, got {theta}")));
    }
    if let Some(other) = beside.filter(|other| *other != theta) {
        notes.push(format!(
            "{}: `{prefix}rope_theta` is {theta} and `rope_theta` {other}: the former is used, as transformers does",
            keys.file
        ));
    }
    for level in [&inner, keys] {
        if level.optional_number("partial_rotary_factor")?.is_some_and(|share| share != 1.0) {
            return Err(level.error("partial_rotary_factor", "rotating only a part of a head is not supported"));
        }
    }
    Ok(RopeConfig { theta, scaling: rope_scaling(&inner, keys, max_positions)? })
}

fn rope_scaling(inner: &Keys, outer: &Keys, max_positions: usize) -> Result<RopeScaling, UsageError> {
    let kind = match inner.optional_text("rope_type")? {
        Some(kind) => kind,
        None => inner.optional_text("type")?.unwrap_or("default"),
    };
    Ok(match kind {
        "default" => RopeScaling::Default,
        "linear" => RopeScaling::Linear { factor: inner.factor("factor")? },
        "dynamic" => RopeScaling::Dynamic { factor: inner.factor("factor")? },
        "yarn" => RopeScaling::Yarn(yarn(inner, outer, max_positions)?),
        "llama3" => {
            let [low_freq_factor, high_freq_factor] =
                ["low_freq_factor", "high_freq_factor"].map(|key| inner.positive(key));
            let (low_freq_factor, high_freq_factor) = (low_freq_factor?, high_freq_factor?);
            if high_freq_factor <= low_freq_factor {
                let what = format!("must be above `low_freq_factor` ({low_freq_factor}), got {high_freq_factor}");
                return Err(inner.error("high_freq_factor", &what));
            }
            RopeScaling::Llama3 {
                factor: inner.factor("factor")?,
                low_freq_factor,
                high_freq_factor,
                original_max_positions: original_positions(inner, outer, max_positions)?,
            }
        }
        other => {
            return Err(inner
                .error("rope_type", &format!("`{other}` is not supported"))
                .hint("supported: default, linear, dynamic, yarn, llama3"));
        }
    })
}

fn yarn(inner: &Keys, outer: &Keys, max_positions: usize) -> Result<YarnScaling, UsageError> {
    let original = original_positions(inner, outer, max_positions)?;
    // A null factor means the ratio of the two lengths; an absent one is a mistake.
    let factor = match inner.map.get("factor") {
        Some(Value::Null) => max_positions as f64 / original as f64,
        _ => inner.factor("factor")?,
    };
    let or_default = |stated: Option<f64>, default: f64| stated.filter(|v| *v != 0.0).unwrap_or(default);
    let beta_fast = or_default(inner.optional_not_negative("beta_fast")?, 32.0);
    let beta_slow = or_default(inner.optional_not_negative("beta_slow")?, 1.0);
    if beta_fast < beta_slow {
        return Err(inner.error("beta_fast", &format!("must not be below `beta_slow` ({beta_slow}), got {beta_fast}")));
    }
    Ok(YarnScaling {
        factor,
        original_max_positions: original,
        attention_factor: inner.get("attention_factor").map(|_| inner.positive("attention_factor")).transpose()?,
        beta_fast,
        beta_slow,
        mscale: inner.optional_not_negative("mscale")?,
        mscale_all_dim: inner.optional_not_negative("mscale_all_dim")?,
        truncate: inner.flag("truncate", true)?,
    })
}

/// The trained length: beside the RoPE parameters it wins over inside them, as in the reference.
fn original_positions(inner: &Keys, outer: &Keys, max_positions: usize) -> Result<usize, UsageError> {
    const KEY: &str = "original_max_position_embeddings";
    if let Some(stated) = outer.optional_size(KEY)? {
        return Ok(stated);
    }
    Ok(inner.optional_size(KEY)?.unwrap_or(max_positions))
}

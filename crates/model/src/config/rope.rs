//! The rotary embedding in `config.json`, in both spellings: `rope_theta` with `rope_scaling`, and the newer `rope_parameters`. The
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
        /// The factor by which the context becomes longer.
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
    /// `longrope`.
    LongRope(LongRopeScaling),
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
    /// The factor by which the context becomes longer.
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
    /// The number of positions to which the trained length is scaled.
    pub(super) fn reach(&self) -> usize {
        (self.original_max_positions as f64 * self.factor) as usize
    }
}

/// Parameters of LongRoPE: each frequency is divided by its own factor, from one of two lists.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LongRopeScaling {
    /// Factors for sequences up to the trained length, one for each pair of channels.
    pub short_factor: Vec<f64>,
    /// Factors for longer sequences.
    pub long_factor: Vec<f64>,
    /// Trained length in tokens.
    pub original_max_positions: usize,
    /// Factor on cos and sin.
    pub attention_factor: f64,
}

impl LongRopeScaling {
    /// Whether a sequence is longer than the trained length.
    pub(crate) fn is_long(&self, sequence_length: usize) -> bool {
        sequence_length > self.original_max_positions
    }

    /// The factors for a sequence of this length.
    pub(crate) fn factors(&self, sequence_length: usize) -> &[f64] {
        if self.is_long(sequence_length) { &self.long_factor } else { &self.short_factor }
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
    /// A short description (base, kind and main parameter) for errors.
    fn in_words(&self) -> String {
        let scaling = match &self.scaling {
            RopeScaling::Default => "no scaling".to_owned(),
            RopeScaling::Linear { factor } => format!("`linear` by {factor}"),
            RopeScaling::Dynamic { factor } => format!("`dynamic` by {factor}"),
            RopeScaling::Yarn(yarn) => {
                format!("`yarn` by {} of {} positions", yarn.factor, yarn.original_max_positions)
            }
            RopeScaling::LongRope(scaling) => {
                format!("`longrope` of {} positions", scaling.original_max_positions)
            }
            RopeScaling::Llama3 { factor, original_max_positions, .. } => {
                format!("`llama3` by {factor} of {original_max_positions} positions")
            }
        };
        format!("{scaling} with theta {}", self.theta)
    }
}

/// Where the RoPE table of sliding layers is stated, if they have one of their own: in `rope_parameters.sliding_attention`, while that
/// of the other layers is in `rope_parameters.full_attention`. Without `rope_parameters`, it is not scaled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalRope {
    /// The key of its base.
    pub theta_key: Option<&'static str>,
    /// Its base if that key is absent.
    pub theta: f64,
}

/// The old and the new key for scaling.
const KEYS: [&str; 2] = ["rope_scaling", "rope_parameters"];
/// The keys within `rope_parameters` for layers that see all tokens, and for sliding layers.
const BY_TYPE: [&str; 2] = ["full_attention", "sliding_attention"];

/// The share of a head's channels that is rotated, with the key that states it, which may be within the RoPE parameters or beside them;
/// `None` if it is not stated.
pub(crate) fn rotated_share(keys: &Keys) -> Result<Option<(String, f64)>, UsageError> {
    const KEY: &str = "partial_rotary_factor";
    let mut levels = vec![(String::new(), keys.map)];
    for name in KEYS {
        let Some(map) = keys.object(name)? else { continue };
        let by_type = BY_TYPE.iter().filter_map(|key| Some((format!("{name}.{key}."), map.get(*key)?.as_object()?)));
        levels.extend(by_type.chain([(format!("{name}."), map)]));
    }
    // `rope_parameters` takes precedence over `rope_scaling`, and both over the top level.
    for (prefix, map) in levels.into_iter().rev() {
        let full = format!("{}{prefix}", keys.prefix);
        let level = Keys { file: keys.file, prefix: &full, map };
        if let Some(share) = level.optional_number(KEY)? {
            return match share > 0.0 && share <= 1.0 {
                true => Ok(Some((format!("{prefix}{KEY}"), share))),
                false => Err(level.error(KEY, &format!("must be above 0 and at most 1, got {share}"))),
            };
        }
    }
    Ok(None)
}

/// Refuses partly rotated heads, for families that do not have them.
pub(super) fn refuse_share(keys: &Keys) -> Result<(), UsageError> {
    match rotated_share(keys)?.filter(|(_, share)| *share != 1.0) {
        Some((key, _)) => Err(keys.error(&key, "rotating only a part of a head is not supported")),
        None => Ok(()),
    }
}

/// Reads the rotary embeddings by number: that of all layers, or of those that see all tokens, and then that of sliding layers, if they
/// have their own. `theta` is the default base. Adds what the user should know to `notes`.
pub(super) fn ropes(
    keys: &Keys,
    max_positions: usize,
    theta: f64,
    local: Option<LocalRope>,
    notes: &mut Vec<String>,
) -> Result<Vec<RopeConfig>, UsageError> {
    let Some(local) = local else { return Ok(vec![rope(keys, max_positions, theta, notes)?]) };
    let local_theta = match local.theta_key {
        Some(key) => theta_in(keys, key)?.unwrap_or(local.theta),
        None => local.theta,
    };
    let Some(parameters) = keys.object(KEYS[1])?.filter(|map| !map.is_empty()) else {
        let unscaled = RopeConfig { theta: local_theta, scaling: RopeScaling::Default };
        return Ok(vec![rope(keys, max_positions, theta, notes)?, unscaled]);
    };
    if keys.object(KEYS[0])?.is_some_and(|map| !map.is_empty()) {
        let what = "it stands beside `rope_parameters`";
        return Err(keys
            .error(KEYS[0], what)
            .hint("keep `rope_parameters`, which has what each kind of layers is rotated by"));
    }
    let prefix = format!("{}{}.", keys.prefix, KEYS[1]);
    let by_type = Keys { file: keys.file, prefix: &prefix, map: parameters };
    if let Some(other) = parameters.keys().find(|key| !BY_TYPE.contains(&key.as_str())) {
        return Err(by_type.error(other, &format!("expected `{}` and `{}`, each with its own", BY_TYPE[0], BY_TYPE[1])));
    }
    let [full, sliding] = BY_TYPE.map(|key| by_type.object(key).map(|map| map.cloned().unwrap_or_default()));
    let name = |key: &str| format!("{}.{key}", KEYS[1]);
    let full = rope_of(keys, &name(BY_TYPE[0]), &full?, max_positions, theta, notes)?;
    let mut sliding = sliding?;
    // A base outside these objects is that of the other layers.
    sliding.entry("rope_theta").or_insert(local_theta.into());
    let sliding = rope_of(keys, &name(BY_TYPE[1]), &sliding, max_positions, theta, &mut Vec::new())?;
    Ok(vec![full, sliding])
}

/// A base, which must be above 1, if the key is present.
fn theta_in(keys: &Keys, key: &str) -> Result<Option<f64>, UsageError> {
    match keys.optional_number(key)? {
        Some(theta) if theta <= 1.0 => Err(keys.error(key, &format!("must be above 1, got {theta}"))),
        other => Ok(other),
    }
}

/// Reads the rotary embedding of layers that share one.
///
/// Transformers 5 uses `rope_scaling`, if it has any key, instead of `rope_parameters`; both are accepted here if they agree.
fn rope(keys: &Keys, max_positions: usize, theta: f64, notes: &mut Vec<String>) -> Result<RopeConfig, UsageError> {
    let empty = Map::new();
    let mut read = |key: &str, map| rope_of(keys, key, map, max_positions, theta, notes);
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
    default_theta: f64,
    notes: &mut Vec<String>,
) -> Result<RopeConfig, UsageError> {
    let prefix = format!("{}{name}.", keys.prefix);
    let inner = Keys { file: keys.file, prefix: &prefix, map };
    if let Some((key, _)) = inner.map.iter().find(|(_, v)| v.is_object()) {
        return Err(inner.error(key, "RoPE parameters that differ by layer are not supported"));
    }
    let [within, beside] = [&inner, keys].map(|level| level.optional_number("rope_theta"));
    let (within, beside) = (within?, beside?);
    let theta = within.or(beside).unwrap_or(default_theta);
    if theta <= 1.0 {
        return Err(keys.error("rope_theta", &format!("must be above 1, got {theta}")));
    }
    if let Some(other) = beside.filter(|other| *other != theta) {
        notes.push(format!(
            "{}: `{prefix}rope_theta` is {theta} and `rope_theta` {other}: the former is used, as transformers does",
            keys.file
        ));
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
        // `su` is the original name.
        "longrope" | "su" => RopeScaling::LongRope(longrope(inner, outer, max_positions)?),
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
                .hint("supported: default, linear, dynamic, yarn, longrope, llama3"));
        }
    })
}

fn yarn(inner: &Keys, outer: &Keys, max_positions: usize) -> Result<YarnScaling, UsageError> {
    let original = original_positions(inner, outer, max_positions)?;
    // A null factor means the ratio of the two lengths; an absent factor is an error.
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

fn longrope(inner: &Keys, outer: &Keys, max_positions: usize) -> Result<LongRopeScaling, UsageError> {
    let original_max_positions = original_positions(inner, outer, max_positions)?;
    if original_max_positions < 2 {
        return Err(inner.error("original_max_position_embeddings", "must be above 1"));
    }
    let factor = match inner.get("factor") {
        Some(_) => inner.factor("factor")?,
        None => max_positions as f64 / original_max_positions as f64,
    };
    let attention_factor = match inner.get("attention_factor") {
        Some(_) => inner.positive("attention_factor")?,
        None if factor <= 1.0 => 1.0,
        None => (1.0 + factor.ln() / (original_max_positions as f64).ln()).sqrt(),
    };
    Ok(LongRopeScaling {
        short_factor: factors(inner, "short_factor")?,
        long_factor: factors(inner, "long_factor")?,
        original_max_positions,
        attention_factor,
    })
}

/// A list of positive numbers; the key must be present.
fn factors(keys: &Keys, key: &str) -> Result<Vec<f64>, UsageError> {
    const EXPECTED: &str = "expected a list of numbers above 0";
    let Some(value) = keys.get(key) else { return Err(keys.missing(key)) };
    let numbers = value.as_array().ok_or_else(|| keys.error(key, EXPECTED))?.iter();
    let number = |value: &Value| value.as_f64().filter(|x| x.is_finite() && *x > 0.0);
    numbers.map(number).collect::<Option<_>>().ok_or_else(|| keys.error(key, EXPECTED))
}

/// The trained length. As in the reference, one beside the RoPE parameters takes precedence over one inside them.
fn original_positions(inner: &Keys, outer: &Keys, max_positions: usize) -> Result<usize, UsageError> {
    const KEY: &str = "original_max_position_embeddings";
    if let Some(stated) = outer.optional_size(KEY)? {
        return Ok(stated);
    }
    Ok(inner.optional_size(KEY)?.unwrap_or(max_positions))
}

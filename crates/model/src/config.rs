//! The shape of a model, read from a checkpoint's `config.json`.
//!
//! Both spellings of the RoPE parameters are read: `rope_theta` + `rope_scaling`, and the newer
//! `rope_parameters`. Whatever the decoder could not honour is refused here with the file and the
//! key, so that no model runs with a setting ignored. Rotary frequencies live in
//! [`rope`](super::rope); weights in [`tensors`](super::tensors).

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use super::formats::{QUANTISED_HINT, QUANTISED_KEYS, quantised_by};
use spattn_base::error::UsageError;

/// The decoder families that can be evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Architecture {
    /// `LlamaForCausalLM`.
    Llama,
    /// `MistralForCausalLM`: Llama without biases, possibly with a sliding window.
    Mistral,
    /// `Qwen2ForCausalLM` (Qwen2 and Qwen2.5): Llama with biases on q, k and v.
    Qwen2,
    /// `Qwen3ForCausalLM`: Llama with RMS norms on each head of q and k.
    Qwen3,
}

impl Architecture {
    /// All families, in the order they are listed to users.
    pub const ALL: [Self; 4] = [Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3];

    /// The name in `config.json`, such as `LlamaForCausalLM`.
    pub fn class_name(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    fn from_class_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.class_name() == name)
    }

    fn has_sliding_switch(self) -> bool {
        matches!(self, Self::Qwen2 | Self::Qwen3)
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.class_name())
    }
}

/// How rotary frequencies are scaled; the formulas are in [`rope`](super::rope).
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

/// Number format of the checkpoint as its config states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointType {
    /// 32-bit IEEE.
    F32,
    /// 16-bit IEEE.
    F16,
    /// bfloat16.
    Bf16,
}

/// Shape and constants of a model. Serialised, it is what of `config.json` determines a model's answers, as a run's
/// identity holds it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelConfig {
    /// The decoder family.
    pub architecture: Architecture,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the MLP.
    pub intermediate_size: usize,
    /// Number of decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Channels of one head; even.
    pub head_dim: usize,
    /// Added to the mean square inside RMS norms.
    pub rms_norm_eps: f64,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// `max_position_embeddings` as stated; see [`context_limit`](Self::context_limit) for what can be used.
    pub max_position_embeddings: usize,
    /// The longest sequence by another key (`max_sequence_length` and the like), if stated.
    pub stated_length: Option<usize>,
    /// Tokens a sliding layer sees, itself included; `None` if no layer slides.
    pub sliding_window: Option<usize>,
    /// Whether the output matrix is the embedding table.
    pub tie_word_embeddings: bool,
    /// Whether each head of q and k passes an RMS norm before rotation.
    pub qk_norm: bool,
    /// Whether the q, k and v projections have biases.
    pub qkv_bias: bool,
    /// Whether the attention output projection has a bias.
    pub output_bias: bool,
    /// Whether gate, up and down projections have biases.
    pub mlp_bias: bool,
    /// Ids that end a generation, as this file states them; may be empty. The tokenizer says which ones are used.
    #[serde(skip)]
    pub eos_ids: Vec<u32>,
    /// Id of the beginning-of-sequence token, if stated. The tokenizer says which one is used.
    #[serde(skip)]
    pub bos_id: Option<u32>,
    /// Number format of the checkpoint, if stated. What is computed in is part of a run's settings.
    #[serde(skip)]
    pub checkpoint_type: Option<CheckpointType>,
    /// What the user should know about how the file was read, a line each. No part of a run's identity.
    #[serde(skip)]
    pub notes: Vec<String>,
}

impl ModelConfig {
    /// Reads the text of a `config.json`; `file` names it in errors.
    ///
    /// # Errors
    /// One line with the file and the key: text that is no JSON object, an unsupported architecture,
    /// activation or RoPE type, a key that is missing, of the wrong type or inconsistent with others.
    pub fn parse(text: &str, file: &str) -> Result<Self, UsageError> {
        let root: Value = serde_json::from_str(text).map_err(|e| not_json(text, file, &e))?;
        let Value::Object(map) = &root else {
            return Err(UsageError::new(format!("{file}: expected a JSON object")));
        };
        let keys = Keys { file, prefix: "", map };
        let mut config = read(&keys)?;
        config.check(file)?;
        config.notes.extend(keys.unread());
        config.notes.extend(config.notes_on_length().into_iter().map(|note| format!("{file}: {note}")));
        Ok(config)
    }

    /// Longest sequence in tokens, prompt and generated together, that the model is made for.
    ///
    /// `max_position_embeddings` already counts the scaling for `linear` and `llama3`, unless another key states a longer
    /// sequence that `linear` scaling reaches (Vicuna 1.5 16K). It is the
    /// trained length for `dynamic`, and often for `yarn` (published Qwen2.5 configs), where the
    /// factor is applied here. A shorter sliding window limits it too: within the window a sliding
    /// layer equals a full one, beyond it it is not supported.
    pub fn context_limit(&self) -> usize {
        let scaled = self.scaled_length();
        self.sliding_window.map_or(scaled, |window| scaled.min(window))
    }

    /// The context by positions alone.
    fn scaled_length(&self) -> usize {
        let stated = self.max_position_embeddings;
        let times = |positions: usize, factor: f64| (positions as f64 * factor) as usize;
        match &self.rope.scaling {
            RopeScaling::Dynamic { factor } => stated.max(times(stated, *factor)),
            RopeScaling::Yarn(yarn) => stated.max(reach(yarn)),
            RopeScaling::Linear { factor } => {
                stated.max(self.stated_length.unwrap_or(stated).min(times(stated, *factor)))
            }
            RopeScaling::Default | RopeScaling::Llama3 { .. } => stated,
        }
    }

    /// Says what the context is where the file's keys do not agree on it.
    fn notes_on_length(&self) -> Vec<String> {
        let (positions, context) = (self.max_position_embeddings, self.scaled_length());
        let by_keys = match (self.stated_length, &self.rope.scaling) {
            (Some(stated), RopeScaling::Linear { factor }) if stated > positions => Some(format!(
                "the context is {context} tokens: `max_position_embeddings` is {positions}, RoPE is scaled by {factor}, and the \
                 longest sequence is stated to be {stated}"
            )),
            (None, RopeScaling::Linear { factor }) if *factor > 1.0 => Some(format!(
                "the context is `max_position_embeddings`, {positions} tokens, which linear RoPE scaling by {factor} is taken to be \
                 counted in; if it is not, state the longer one as `max_sequence_length`"
            )),
            (_, RopeScaling::Yarn(yarn)) if yarn.factor > 1.0 && reach(yarn) < positions => Some(format!(
                "the context is `max_position_embeddings`, {positions} tokens, although YaRN scales {} positions by {} only",
                yarn.original_max_positions, yarn.factor
            )),
            (Some(stated), _) if stated != context => Some(format!(
                "the context is {context} tokens, as RoPE is made for, although the longest sequence is stated to be {stated}"
            )),
            _ => None,
        };
        let cut = self.sliding_window.filter(|window| *window < context).map(|window| {
            format!("the context is cut from {context} to {window} tokens, the `sliding_window`: beyond it sliding layers are not supported")
        });
        by_keys.into_iter().chain(cut).collect()
    }

    /// Query heads that share one key/value head.
    pub fn group_size(&self) -> usize {
        self.heads / self.kv_heads
    }

    fn check(&self, file: &str) -> Result<(), UsageError> {
        if !self.heads.is_multiple_of(self.kv_heads) {
            let (heads, kv_heads) = (self.heads, self.kv_heads);
            return Err(UsageError::new(format!(
                "{file}: `num_attention_heads` ({heads}) is not a multiple of `num_key_value_heads` ({kv_heads})"
            )));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(UsageError::new(format!("{file}: `head_dim` must be even for RoPE, got {}", self.head_dim)));
        }
        Ok(())
    }
}

/// Why a text is not JSON; Python writes numbers that JSON does not have, and reads them again.
fn not_json(text: &str, file: &str, error: &serde_json::Error) -> UsageError {
    let fault = UsageError::new(format!("{file}: not valid JSON: {error}"));
    let words: Vec<&str> = text.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    match ["NaN", "Infinity"].into_iter().find(|number| words.contains(number)) {
        Some(number) => {
            fault.hint(format!("JSON has no `{number}`, which Python writes: put a number or null in its place"))
        }
        None => fault,
    }
}

/// Positions that YaRN scales its trained length to.
fn reach(yarn: &YarnScaling) -> usize {
    (yarn.original_max_positions as f64 * yarn.factor) as usize
}

fn read(keys: &Keys) -> Result<ModelConfig, UsageError> {
    let architecture = architecture(keys)?;
    refuse_quantised(keys)?;
    let activation = keys.optional_text("hidden_act")?.unwrap_or("silu");
    if !matches!(activation, "silu" | "swish") {
        return Err(keys.error("hidden_act", &format!("only `silu` is supported, got `{activation}`")));
    }
    let heads = keys.size("num_attention_heads")?;
    let hidden_size = keys.size("hidden_size")?;
    let max_position_embeddings = keys.size("max_position_embeddings")?;
    let attention_bias = keys.flag("attention_bias", false)?;
    let (qkv_bias, output_bias) = match architecture {
        Architecture::Llama | Architecture::Qwen3 => (attention_bias, attention_bias),
        Architecture::Mistral => (false, false),
        Architecture::Qwen2 => (true, false),
    };
    let layers = keys.size("num_hidden_layers")?;
    let vocab_size = keys.size("vocab_size")?;
    let mut notes: Vec<String> = other_family(keys, architecture)?.into_iter().collect();
    Ok(ModelConfig {
        architecture,
        vocab_size,
        hidden_size,
        intermediate_size: keys.size("intermediate_size")?,
        layers,
        heads,
        kv_heads: keys.optional_size("num_key_value_heads")?.unwrap_or(heads),
        head_dim: head_dim(keys, architecture, hidden_size, heads)?,
        rms_norm_eps: rms_norm_eps(keys)?,
        rope: rope(keys, max_position_embeddings, &mut notes)?,
        max_position_embeddings,
        stated_length: stated_length(keys),
        sliding_window: sliding_window(keys, architecture, layers)?,
        tie_word_embeddings: keys.flag("tie_word_embeddings", false)?,
        qk_norm: architecture == Architecture::Qwen3,
        qkv_bias,
        output_bias,
        mlp_bias: architecture == Architecture::Llama && keys.flag("mlp_bias", false)?,
        eos_ids: keys.eos_ids(vocab_size)?,
        bos_id: keys.ids("bos_token_id")?.first().copied(),
        checkpoint_type: checkpoint_type(keys)?,
        notes,
    })
}

/// Refused here, before weights are looked for or downloaded.
fn refuse_quantised(keys: &Keys) -> Result<(), UsageError> {
    let Some((key, setting)) = QUANTISED_KEYS.iter().find_map(|key| Some((*key, keys.get(key)?))) else {
        return Ok(());
    };
    let by = quantised_by(key, setting);
    let what = format!("the weights are quantised ({by}); only F32, F16 and BF16 can be read");
    Err(keys.error(key, &what).hint(QUANTISED_HINT))
}

/// The longest sequence by keys that neither transformers nor RoPE goes by; what makes no sense is nobody's business.
fn stated_length(keys: &Keys) -> Option<usize> {
    const KEYS: [&str; 5] = ["max_sequence_length", "max_seq_length", "max_seq_len", "model_max_length", "n_positions"];
    // Some state a number without end.
    const MOST: u64 = 1 << 32;
    let number = |key: &&str| keys.get(key)?.as_u64().filter(|n| (1..MOST).contains(n));
    KEYS.iter().find_map(number).map(|n| n as usize)
}

fn architecture(keys: &Keys) -> Result<Architecture, UsageError> {
    let stated = match keys.get("architectures") {
        Some(Value::Array(names)) => names.first().and_then(Value::as_str),
        Some(_) => return Err(keys.error("architectures", "expected a list of names")),
        None => return Err(keys.missing("architectures")),
    };
    let name = stated.ok_or_else(|| keys.error("architectures", "expected a list with one name"))?;
    Architecture::from_class_name(name).ok_or_else(|| {
        let known = Architecture::ALL.map(Architecture::class_name).join(", ");
        keys.error("architectures", &format!("`{name}` is not supported")).hint(format!("supported: {known}"))
    })
}

/// A note where `model_type`, by which transformers chooses the class, names another family than `architectures`.
fn other_family(keys: &Keys, architecture: Architecture) -> Result<Option<String>, UsageError> {
    let of_class = architecture.class_name().trim_end_matches("ForCausalLM").to_lowercase();
    let stated = keys.optional_text("model_type")?.filter(|stated| *stated != of_class);
    Ok(stated.map(|stated| {
        let file = keys.file;
        format!("{file}: `model_type` is `{stated}`, and `architectures` names {architecture}, as which it is run")
    }))
}

fn head_dim(keys: &Keys, architecture: Architecture, hidden_size: usize, heads: usize) -> Result<usize, UsageError> {
    if let Some(stated) = keys.optional_size("head_dim")? {
        return Ok(stated);
    }
    if architecture == Architecture::Qwen3 {
        // The one family whose heads are not a share of the hidden size when the key is absent.
        return Ok(128);
    }
    if !hidden_size.is_multiple_of(heads) {
        let what =
            format!("{hidden_size} is not a multiple of `num_attention_heads` ({heads}), and there is no `head_dim`");
        return Err(keys.error("hidden_size", &what));
    }
    Ok(hidden_size / heads)
}

fn rms_norm_eps(keys: &Keys) -> Result<f64, UsageError> {
    let eps = keys.optional_number("rms_norm_eps")?.unwrap_or(1e-6);
    match eps > 0.0 && eps < 1.0 {
        true => Ok(eps),
        false => Err(keys.error("rms_norm_eps", &format!("must be above 0 and below 1, got {eps}"))),
    }
}

fn sliding_window(keys: &Keys, architecture: Architecture, layers: usize) -> Result<Option<usize>, UsageError> {
    if architecture == Architecture::Llama {
        return Ok(None);
    }
    // Families differ in what an absent key means; the value is that of the reference implementation.
    const ABSENT: usize = 4096;
    let stated = match keys.map.get("sliding_window") {
        None => Some(ABSENT),
        Some(Value::Null) => None,
        Some(_) => keys.optional_size("sliding_window")?,
    };
    if architecture.has_sliding_switch() && !(keys.flag("use_sliding_window", false)? && slides(keys, layers)?) {
        return Ok(None);
    }
    Ok(stated)
}

/// Whether any layer slides, by `layer_types` or else by `max_window_layers`.
fn slides(keys: &Keys, layers: usize) -> Result<bool, UsageError> {
    match keys.get("layer_types") {
        None => Ok(keys.optional_count("max_window_layers")?.unwrap_or(28) < layers),
        Some(Value::Array(types)) => {
            let known = |t: &Value| matches!(t.as_str(), Some("full_attention" | "sliding_attention"));
            if let Some(other) = types.iter().find(|t| !known(t)) {
                return Err(keys.error("layer_types", &format!("{other} is not supported")));
            }
            Ok(types.iter().any(|t| t == "sliding_attention"))
        }
        Some(_) => Err(keys.error("layer_types", "expected a list of names")),
    }
}

fn checkpoint_type(keys: &Keys) -> Result<Option<CheckpointType>, UsageError> {
    let stated = match keys.optional_text("dtype")? {
        Some(name) => Some(name),
        None => keys.optional_text("torch_dtype")?,
    };
    Ok(match stated {
        Some("float32") => Some(CheckpointType::F32),
        Some("float16") => Some(CheckpointType::F16),
        Some("bfloat16") => Some(CheckpointType::Bf16),
        // Only informative: the weights state their own type.
        _ => None,
    })
}

/// Transformers 5 takes `rope_scaling`, if it has any key, instead of `rope_parameters`; both are read where they agree.
fn rope(keys: &Keys, max_positions: usize, notes: &mut Vec<String>) -> Result<RopeConfig, UsageError> {
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

/// The most of each size: several times that of any model there is, so that a mistake is told as one. Other numbers have 32 bits.
const MOST: [(&str, u64); 7] = [
    ("vocab_size", 1 << 24),
    ("hidden_size", 1 << 18),
    ("intermediate_size", 1 << 20),
    ("num_hidden_layers", 1 << 12),
    ("num_attention_heads", 1 << 12),
    ("num_key_value_heads", 1 << 12),
    ("head_dim", 1 << 12),
];

/// Typed look-ups in one JSON object, with errors that name the file and the key.
struct Keys<'a> {
    file: &'a str,
    prefix: &'a str,
    map: &'a Map<String, Value>,
}

impl<'a> Keys<'a> {
    /// The value of a key; null counts as absent.
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    fn error(&self, key: &str, what: &str) -> UsageError {
        UsageError::new(format!("{}: `{}{key}`: {what}", self.file, self.prefix))
    }

    fn wrong(&self, key: &str, expected: &str, got: &Value) -> UsageError {
        self.error(key, &format!("expected {expected}, got {got}"))
    }

    fn missing(&self, key: &str) -> UsageError {
        UsageError::new(format!("{}: the key `{}{key}` is missing", self.file, self.prefix))
    }

    fn optional_count(&self, key: &str) -> Result<Option<usize>, UsageError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let most = MOST.iter().find(|(bounded, _)| *bounded == key).map_or(u64::from(u32::MAX), |(_, most)| *most);
        match value.as_u64() {
            Some(n) if n <= most => Ok(Some(n as usize)),
            Some(n) => Err(self.error(key, &format!("must be at most {most}, got {n}"))),
            None => Err(self.wrong(key, "a whole number", value)),
        }
    }

    fn optional_size(&self, key: &str) -> Result<Option<usize>, UsageError> {
        match self.optional_count(key)? {
            Some(0) => Err(self.error(key, "must not be 0")),
            other => Ok(other),
        }
    }

    fn size(&self, key: &str) -> Result<usize, UsageError> {
        self.optional_size(key)?.ok_or_else(|| self.missing(key))
    }

    fn optional_number(&self, key: &str) -> Result<Option<f64>, UsageError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64().filter(|x| x.is_finite()) {
            Some(x) => Ok(Some(x)),
            None => Err(self.wrong(key, "a number", value)),
        }
    }

    fn optional_not_negative(&self, key: &str) -> Result<Option<f64>, UsageError> {
        match self.optional_number(key)? {
            Some(x) if x < 0.0 => Err(self.error(key, &format!("must not be negative, got {x}"))),
            other => Ok(other),
        }
    }

    /// A number above 0 that must be there.
    fn positive(&self, key: &str) -> Result<f64, UsageError> {
        let x = self.optional_number(key)?.ok_or_else(|| self.missing(key))?;
        if x <= 0.0 {
            return Err(self.error(key, &format!("must be above 0, got {x}")));
        }
        Ok(x)
    }

    /// How many times longer a context becomes: a number from 1 that must be there.
    fn factor(&self, key: &str) -> Result<f64, UsageError> {
        const MOST: f64 = 1e6;
        let x = self.optional_number(key)?.ok_or_else(|| self.missing(key))?;
        if !(1.0..=MOST).contains(&x) {
            return Err(self.error(key, &format!("must be from 1 to {MOST}, got {x}")));
        }
        Ok(x)
    }

    fn optional_text(&self, key: &str) -> Result<Option<&'a str>, UsageError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(key, "a string", value))
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, UsageError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value.as_bool().ok_or_else(|| self.wrong(key, "true or false", value))
    }

    fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>, UsageError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_object().map(Some).ok_or_else(|| self.wrong(key, "an object", value))
    }

    /// Ids that end a generation, which have to be among `vocab_size`.
    fn eos_ids(&self, vocab_size: usize) -> Result<Vec<u32>, UsageError> {
        const KEY: &str = "eos_token_id";
        let ids = self.ids(KEY)?;
        match ids.iter().find(|id| **id as usize >= vocab_size) {
            None => Ok(ids),
            Some(id) => Err(self
                .error(KEY, &format!("{id} is beyond the vocabulary of {vocab_size}"))
                .hint("no answer could end by it: give the id of a token that the model has, or leave it out")),
        }
    }

    /// Notes on settings that change a model elsewhere and are read neither here nor by transformers.
    fn unread(&self) -> Vec<String> {
        const UNREAD: [(&str, &str); 2] = [
            ("dual_chunk_attention_config", "results published beyond 256K tokens use dual chunk attention"),
            ("rope_condense_ratio", "FastChat divides positions by it; `rope_scaling` of type `linear` does the same"),
        ];
        let is_set = |key: &str| self.get(key).is_some_and(|value| value.as_f64() != Some(1.0));
        let note = |(key, why): &(&str, &str)| format!("{}: `{key}` is not read, as in transformers: {why}", self.file);
        UNREAD.iter().filter(|(key, _)| is_set(key)).map(note).collect()
    }

    /// One token id or a list of them; absent or null is none.
    fn ids(&self, key: &str) -> Result<Vec<u32>, UsageError> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        token_ids(value).ok_or_else(|| self.wrong(key, "a token id or a list of them", value))
    }
}

/// The `eos_token_id` of another file of the model, such as `generation_config.json`.
///
/// # Errors
/// As for `config.json`: a value that is no id, no list of ids, or beyond the vocabulary.
pub(super) fn eos_ids(map: &Map<String, Value>, file: &str, vocab_size: usize) -> Result<Vec<u32>, UsageError> {
    Keys { file, prefix: "", map }.eos_ids(vocab_size)
}

/// Token ids written as one number or a list of numbers; `None` if `value` is neither.
fn token_ids(value: &Value) -> Option<Vec<u32>> {
    let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    match value {
        Value::Array(list) => list.iter().map(id).collect(),
        one => id(one).map(|n| vec![n]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn base() -> Value {
        json!({
            "architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 64,
            "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
            "max_position_embeddings": 2048, "eos_token_id": 2
        })
    }

    fn with(changes: Value) -> Value {
        let mut config = base();
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    }

    fn parse(value: &Value) -> Result<ModelConfig, UsageError> {
        ModelConfig::parse(&value.to_string(), "config.json")
    }

    fn error(changes: Value) -> String {
        parse(&with(changes)).unwrap_err().to_string()
    }

    #[test]
    fn a_model_type_of_another_family_is_told_of() {
        let notes = |changes: Value| parse(&with(changes)).unwrap().notes;
        assert_eq!(notes(json!({"model_type": "llama"})), notes(json!({})));
        let mistral = json!({"architectures": ["MistralForCausalLM"], "sliding_window": null});
        assert_eq!(notes(mistral.clone()).len(), notes(json!({})).len());
        let told = notes(json!({"model_type": "qwen3"}));
        let expected =
            "config.json: `model_type` is `qwen3`, and `architectures` names LlamaForCausalLM, as which it is run";
        assert!(told.contains(&expected.to_owned()), "{told:?}");
    }

    /// Identity leaves notes out, so that they can be reworded and old folders can still be resumed.
    #[test]
    fn notes_are_no_part_of_what_a_run_is() {
        let config = serde_json::to_value(parse(&with(json!({"model_type": "qwen3"}))).unwrap()).unwrap();
        assert_eq!(config, serde_json::to_value(parse(&base()).unwrap()).unwrap());
    }

    #[test]
    fn defaults_are_those_of_the_family() {
        let c = parse(&base()).unwrap();
        assert_eq!((c.kv_heads, c.head_dim, c.rms_norm_eps), (4, 16, 1e-6));
        assert_eq!(c.rope, RopeConfig { theta: 10_000.0, scaling: RopeScaling::Default });
        assert_eq!((c.eos_ids, c.bos_id, c.sliding_window), (vec![2], None, None));
        assert!(!c.tie_word_embeddings && !c.qkv_bias && !c.qk_norm);
    }

    #[test]
    fn both_spellings_of_rope_agree() {
        let llama3 = json!({"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192});
        let mut old = llama3.clone();
        old["rope_type"] = json!("llama3");
        let mut new = old.clone();
        new["rope_theta"] = json!(5e5);
        let mut oldest = llama3.clone();
        oldest["type"] = json!("llama3");
        let a = parse(&with(json!({"rope_theta": 5e5, "rope_scaling": old}))).unwrap().rope;
        let b = parse(&with(json!({"rope_parameters": new}))).unwrap().rope;
        let c = parse(&with(json!({"rope_theta": 5e5, "rope_scaling": oldest}))).unwrap().rope;
        assert_eq!(a, b);
        assert_eq!(a, c);
        assert_eq!(a.theta, 5e5);
    }

    /// What transformers 5.24 does is in `RotaryEmbeddingConfigMixin.convert_rope_params_to_dict`: `rope_scaling`, unless it is
    /// empty, replaces `rope_parameters`; a `rope_theta` within wins over one beside.
    #[test]
    fn of_two_ropes_both_are_read_or_neither() {
        let plain = json!({"rope_type": "default", "rope_theta": 1e6});
        let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512});
        let with_theta = |map: &Value| {
            let mut map = map.clone();
            map["rope_theta"] = json!(1e6);
            map
        };
        let rope = |changes| parse(&with(changes)).map(|c| (c.rope, c.notes));
        let (as_yarn, none) = rope(json!({"rope_parameters": with_theta(&yarn)})).unwrap();
        assert!(none.is_empty() && matches!(&as_yarn.scaling, RopeScaling::Yarn(y) if y.factor == 4.0));
        let same = [
            json!({"rope_parameters": with_theta(&yarn), "rope_scaling": with_theta(&yarn)}),
            json!({"rope_parameters": with_theta(&yarn), "rope_scaling": yarn, "rope_theta": 1e6}),
            json!({"rope_parameters": with_theta(&yarn), "rope_scaling": {}}),
            json!({"rope_parameters": {}, "rope_scaling": yarn, "rope_theta": 1e6}),
            json!({"rope_parameters": null, "rope_scaling": with_theta(&yarn)}),
        ];
        for changes in same {
            assert_eq!(rope(changes.clone()).unwrap(), (as_yarn.clone(), vec![]), "{changes}");
        }
        let error = parse(&with(json!({"rope_parameters": plain, "rope_scaling": yarn}))).unwrap_err();
        assert_eq!(
            error.what,
            "config.json: `rope_scaling`: it says `yarn` by 4 of 512 positions with theta 10000, and `rope_parameters` no scaling \
             with theta 1000000"
        );
        assert!(error.hint.unwrap().starts_with("keep one of the two"));
        let scaling = json!({"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5});
        assert!(rope(json!({"rope_parameters": plain, "rope_scaling": scaling})).is_err());
        let (twice, notes) = rope(json!({"rope_parameters": plain, "rope_theta": 5e5})).unwrap();
        assert_eq!((twice.theta, notes.len()), (1e6, 1));
        assert_eq!(
            notes[0],
            "config.json: `rope_parameters.rope_theta` is 1000000 and `rope_theta` 500000: the former is used, as transformers does"
        );
    }

    /// The rows are published configs: Vicuna 1.5 16K, LLaMA 2 32K of Together, Qwen2.5 with YaRN, Yarn Llama 2 64K.
    #[test]
    fn what_says_another_context_is_counted_or_told_of() {
        let linear = |factor: f64| json!({"type": "linear", "factor": factor});
        let yarn = |factor: f64, original: usize| json!({"type": "yarn", "factor": factor, "original_max_position_embeddings": original});
        for (changes, limit, told) in [
            (json!({"max_position_embeddings": 4096}), 4096, ""),
            (
                json!({"max_position_embeddings": 4096, "max_sequence_length": 16384, "rope_scaling": linear(4.0)}),
                16384,
                "the context is 16384 tokens: `max_position_embeddings` is 4096, RoPE is scaled by 4, and",
            ),
            // More than the scaling reaches.
            (
                json!({"max_position_embeddings": 4096, "max_sequence_length": 65536, "rope_scaling": linear(4.0)}),
                16384,
                "the context is 16384 tokens",
            ),
            (
                json!({"max_position_embeddings": 32768, "rope_scaling": linear(8.0)}),
                32768,
                "linear RoPE scaling by 8 is taken",
            ),
            (json!({"max_position_embeddings": 32768, "max_seq_len": 32768, "rope_scaling": linear(8.0)}), 32768, ""),
            (json!({"max_position_embeddings": 4096, "max_sequence_length": 2048}), 4096, "is stated to be 2048"),
            (json!({"max_position_embeddings": 4096, "max_sequence_length": 8192}), 4096, "is stated to be 8192"),
            (json!({"max_position_embeddings": 4096, "model_max_length": 1e30}), 4096, ""),
            (json!({"max_position_embeddings": 32768, "rope_scaling": yarn(4.0, 32768)}), 131_072, ""),
            (json!({"max_position_embeddings": 65536, "rope_scaling": yarn(16.0, 4096)}), 65536, ""),
            (json!({"max_position_embeddings": 131_072, "rope_scaling": yarn(2.0, 32768)}), 131_072, "by 2 only"),
            (json!({"max_position_embeddings": 4096, "rope_scaling": {"type": "dynamic", "factor": 2.0}}), 8192, ""),
            (
                json!({"architectures": ["MistralForCausalLM"], "max_position_embeddings": 32768, "sliding_window": 4096}),
                4096,
                "is cut from 32768 to 4096 tokens",
            ),
        ] {
            let config = parse(&with(changes.clone())).unwrap();
            assert_eq!(config.context_limit(), limit, "{changes}");
            assert_eq!(config.notes.len(), usize::from(!told.is_empty()), "{changes}: {:?}", config.notes);
            assert!(
                config.notes.iter().all(|n| n.starts_with("config.json: ") && n.contains(told)),
                "{:?}",
                config.notes
            );
        }
    }

    #[test]
    fn settings_that_nobody_reads_are_told_of() {
        let notes = |changes| parse(&with(changes)).unwrap().notes;
        let chunks = notes(json!({"dual_chunk_attention_config": {"chunk_size": 262_144}}));
        assert!(
            chunks.len() == 1 && chunks[0].contains("`dual_chunk_attention_config` is not read, as in transformers")
        );
        assert_eq!(notes(json!({"rope_condense_ratio": 8})).len(), 1);
        assert_eq!(notes(json!({"rope_condense_ratio": 1, "dual_chunk_attention_config": null})), [""; 0]);
    }

    #[test]
    fn the_window_counts_only_where_a_layer_slides() {
        let window = |changes| parse(&with(changes)).unwrap().sliding_window;
        let mistral = json!(["MistralForCausalLM"]);
        let qwen = json!(["Qwen2ForCausalLM"]);
        assert_eq!(window(json!({"architectures": mistral, "sliding_window": null})), None);
        assert_eq!(window(json!({"architectures": mistral, "sliding_window": 512})), Some(512));
        assert_eq!(window(json!({"architectures": mistral})), Some(4096));
        assert_eq!(window(json!({"architectures": qwen, "sliding_window": 512})), None);
        let on = |extra: Value| {
            let mut c = json!({"architectures": qwen, "sliding_window": 512, "use_sliding_window": true});
            c.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            c
        };
        assert_eq!(window(on(json!({"max_window_layers": 2}))), None);
        assert_eq!(window(on(json!({"max_window_layers": 1}))), Some(512));
        assert_eq!(window(on(json!({"max_window_layers": 0}))), Some(512));
        assert_eq!(window(on(json!({"layer_types": ["full_attention", "sliding_attention"]}))), Some(512));
        assert_eq!(window(on(json!({"layer_types": ["full_attention", "full_attention"]}))), None);
    }

    #[test]
    fn the_context_limit_counts_scaling_and_windows() {
        let limit = |changes| parse(&with(changes)).unwrap().context_limit();
        assert_eq!(limit(json!({})), 2048);
        assert_eq!(limit(json!({"rope_scaling": {"rope_type": "linear", "factor": 4.0}})), 2048);
        assert_eq!(limit(json!({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})), 4096);
        let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048});
        assert_eq!(limit(json!({"rope_scaling": yarn})), 8192);
        assert_eq!(limit(json!({"rope_scaling": yarn, "max_position_embeddings": 8192})), 8192);
        assert_eq!(limit(json!({"architectures": ["MistralForCausalLM"], "sliding_window": 512})), 512);
    }

    #[test]
    fn biases_follow_the_family() {
        let biases = |changes| {
            let c = parse(&with(changes)).unwrap();
            (c.qkv_bias, c.output_bias, c.mlp_bias, c.qk_norm)
        };
        assert_eq!(biases(json!({"attention_bias": true, "mlp_bias": true})), (true, true, true, false));
        assert_eq!(biases(json!({"architectures": ["Qwen2ForCausalLM"]})), (true, false, false, false));
        assert_eq!(biases(json!({"architectures": ["Qwen3ForCausalLM"]})), (false, false, false, true));
        assert_eq!(
            biases(json!({"architectures": ["MistralForCausalLM"], "attention_bias": true})),
            (false, false, false, false)
        );
    }

    #[test]
    fn every_mistake_names_the_file_and_the_key() {
        let e = parse(&with(json!({"architectures": ["GPT2LMHeadModel"]}))).unwrap_err();
        assert_eq!(e.what, "config.json: `architectures`: `GPT2LMHeadModel` is not supported");
        assert_eq!(
            e.hint.as_deref(),
            Some("supported: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM")
        );
        assert_eq!(error(json!({"vocab_size": null})), "config.json: the key `vocab_size` is missing");
        assert_eq!(error(json!({"vocab_size": 0})), "config.json: `vocab_size`: must not be 0");
        assert_eq!(error(json!({"vocab_size": "x"})), "config.json: `vocab_size`: expected a whole number, got \"x\"");
        assert_eq!(error(json!({"vocab_size": -1})), "config.json: `vocab_size`: expected a whole number, got -1");
        assert_eq!(
            error(json!({"hidden_act": "gelu"})),
            "config.json: `hidden_act`: only `silu` is supported, got `gelu`"
        );
        assert_eq!(
            error(json!({"num_key_value_heads": 3})),
            "config.json: `num_attention_heads` (4) is not a multiple of `num_key_value_heads` (3)"
        );
        for (key, value) in [("rms_norm_eps", -1e-5), ("rms_norm_eps", 0.0), ("rms_norm_eps", 1.0)] {
            let expected = format!("config.json: `{key}`: must be above 0 and below 1, got {value}");
            assert_eq!(error(json!({key: value})), expected);
        }
        for theta in [-10_000.0, 0.0, 1.0] {
            assert_eq!(
                error(json!({"rope_theta": theta})),
                format!("config.json: `rope_theta`: must be above 1, got {theta}")
            );
        }
        let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0});
        let yarn = json!({"rope_type": "yarn", "factor": 4.0});
        for (scaling, key, value, what) in [
            (&llama3, "factor", json!(-8.0), "must be from 1 to 1000000, got -8"),
            (&llama3, "factor", json!(0.5), "must be from 1 to 1000000, got 0.5"),
            (&llama3, "factor", json!(1e300), "must be from 1 to 1000000, got 1"),
            (&llama3, "low_freq_factor", json!(0), "must be above 0, got 0"),
            (&llama3, "high_freq_factor", json!(1.0), "must be above `low_freq_factor` (1), got 1"),
            (&yarn, "attention_factor", json!(-1), "must be above 0, got -1"),
            (&yarn, "beta_slow", json!(-1), "must not be negative, got -1"),
            (&yarn, "beta_fast", json!(0.5), "must not be below `beta_slow` (1), got 0.5"),
            (&yarn, "mscale", json!(-1), "must not be negative, got -1"),
            (&yarn, "original_max_position_embeddings", json!(0), "must not be 0"),
        ] {
            let mut scaling = scaling.clone();
            scaling[key] = value;
            let error = error(json!({"rope_scaling": scaling}));
            assert!(error.starts_with(&format!("config.json: `rope_scaling.{key}`: {what}")), "{error}");
        }
        assert_eq!(error(json!({"head_dim": 15})), "config.json: `head_dim` must be even for RoPE, got 15");
        assert_eq!(
            error(json!({"hidden_size": 66})),
            "config.json: `hidden_size`: 66 is not a multiple of `num_attention_heads` (4), and there is no `head_dim`"
        );
        assert_eq!(
            error(json!({"rope_scaling": {"rope_type": "longrope"}})),
            "config.json: `rope_scaling.rope_type`: `longrope` is not supported"
        );
        assert_eq!(
            error(json!({"rope_parameters": {"rope_type": "linear"}})),
            "config.json: the key `rope_parameters.factor` is missing"
        );
        assert_eq!(
            error(json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}})),
            "config.json: `rope_parameters.full_attention`: RoPE parameters that differ by layer are not supported"
        );
        assert_eq!(
            error(json!({"eos_token_id": "</s>"})),
            "config.json: `eos_token_id`: expected a token id or a list of them, got \"</s>\""
        );
        for (ids, said) in [(json!(100), "100"), (json!([2, 300]), "300")] {
            assert_eq!(
                error(json!({ "eos_token_id": ids })),
                format!("config.json: `eos_token_id`: {said} is beyond the vocabulary of 100")
            );
        }
        assert_eq!(
            error(json!({"quantization_config": {"quant_method": "gptq", "bits": 4}})),
            "config.json: `quantization_config`: the weights are quantised (GPTQ, 4 bits); only F32, F16 and BF16 can be read"
        );
        assert!(parse(&with(json!({"quantization_config": null}))).is_ok());
        assert_eq!(
            ModelConfig::parse("{\"a\": ", "m/config.json").unwrap_err().to_string(),
            "m/config.json: not valid JSON: EOF while parsing a value at line 1 column 6"
        );
        assert_eq!(ModelConfig::parse("[]", "c.json").unwrap_err().to_string(), "c.json: expected a JSON object");
    }
}

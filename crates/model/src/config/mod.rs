//! The shape of a model, read from a checkpoint's `config.json`.
//!
//! Keys that all families share are read here; those that differ are read by the [family](crate::families). A setting that the decoder
//! cannot honour is an error with file and key, so that no model runs with an ignored setting.

mod quantised;

pub(crate) mod keys;
pub(crate) mod rope;

pub(crate) use keys::eos_ids;
pub use rope::{LongRopeScaling, RopeConfig, RopeScaling, YarnScaling};

use keys::Keys;
use serde::Serialize;
use serde_json::{Map, Value};

use super::families::{self, BlockSpec, FAMILIES, Family, LayerKind, LayerKinds, Sizes};
use super::tensors::quantised::Quantisation;
use spattn_base::error::UsageError;

/// The most experts in all layers together, each of which has its own tensor names: more than twice those of any existing model.
const MOST_EXPERTS: usize = 1 << 17;

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

/// The shape and constants of a model. Its serialised form, which is part of a run's identity, holds everything in `config.json` that
/// determines the model's answers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelConfig {
    /// The decoder family.
    #[serde(rename = "architecture")]
    pub family: &'static Family,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the MLP.
    pub intermediate_size: usize,
    /// Number of decoder layers.
    pub layers: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Channels of one head; an even number.
    pub head_dim: usize,
    /// Added to the mean square inside RMS norms.
    pub rms_norm_eps: f64,
    /// The rotary embedding of all layers, or of those that see all tokens.
    pub rope: RopeConfig,
    /// `max_position_embeddings` as stated; see [`context_limit`](Self::context_limit) for the usable length.
    pub max_position_embeddings: usize,
    /// The longest sequence stated under another key (`max_sequence_length` and the like), if any.
    pub stated_length: Option<usize>,
    /// Tokens that a sliding layer sees, including the current one, as stated; `None` if no layer slides.
    pub sliding_window: Option<usize>,
    /// How the layers differ. A window that is at least as long as any context is left out.
    #[serde(flatten)]
    pub layer_kinds: LayerKinds,
    /// Whether the output matrix is the embedding table.
    pub tie_word_embeddings: bool,
    /// How the checkpoint's weights are quantised, if they are.
    #[serde(skip_serializing_if = "Quantisation::is_told_by_tensors")]
    pub quantisation: Option<Quantisation>,
    /// How the layers are built.
    #[serde(flatten)]
    pub block: BlockSpec,
    /// The ids that end a generation, as stated in this file; may be empty. The tokenizer decides which ones are used.
    #[serde(skip)]
    pub eos_ids: Vec<u32>,
    /// The id of the BOS token, if stated. The tokenizer decides which one is used.
    #[serde(skip)]
    pub bos_id: Option<u32>,
    /// The checkpoint's number format, if stated. The type for computing is one of a run's settings.
    #[serde(skip)]
    pub checkpoint_type: Option<CheckpointType>,
    /// What the user should know about how the file was read, one line each. Not part of a run's identity.
    #[serde(skip)]
    pub notes: Vec<String>,
}

impl ModelConfig {
    /// Reads the text of a `config.json`; `file` names it in errors.
    ///
    /// # Errors
    /// One line with the file and the key: text that is not a JSON object, an unsupported architecture, activation or RoPE type, or a key
    /// that is missing, of the wrong type or inconsistent with others.
    pub fn parse(text: &str, file: &str) -> Result<Self, UsageError> {
        let root: Value = serde_json::from_str(text).map_err(|e| not_json(text, file, &e))?;
        let Value::Object(map) = &root else {
            return Err(UsageError::new(format!("{file}: expected a JSON object")));
        };
        let stated = Keys { file, prefix: "", map };
        let family = family(&stated)?;
        // Refused here, before weights are searched for or downloaded.
        let of_whole = quantised::quantisation(&stated, family)?;
        let prefix = if family.is_wrapper { TEXT_CONFIG_PREFIX } else { "" };
        let map = with_defaults(&stated, family)?;
        let keys = Keys { file, prefix, map: &map };
        let quantisation = match of_whole {
            Some(of_whole) => Some(of_whole),
            None => quantised::quantisation(&keys, family)?,
        };
        let mut config = read(&keys, family, quantisation)?;
        config.check(file)?;
        config.notes.splice(0..0, other_family(&stated, family)?);
        if family.is_wrapper {
            config.notes.push(format!("{file}: {family} reads images too; only its text model is run"));
        }
        config.notes.extend(keys.unread());
        config.notes.extend(config.note_on_length().map(|note| format!("{file}: {note}")));
        Ok(config)
    }

    /// The longest sequence, prompt and generated tokens together, that the model is made for.
    ///
    /// `max_position_embeddings` already includes the scaling for `linear` and `llama3`, unless another key states a longer sequence that
    /// `linear` scaling reaches (Vicuna 1.5 16K). For `dynamic`, and often for `yarn` (published Qwen2.5 configs), it is the trained
    /// length, so the factor is applied here.
    pub fn context_limit(&self) -> usize {
        let stated = self.max_position_embeddings;
        let times = |positions: usize, factor: f64| (positions as f64 * factor) as usize;
        match &self.rope.scaling {
            RopeScaling::Dynamic { factor } => stated.max(times(stated, *factor)),
            RopeScaling::Yarn(yarn) => stated.max(yarn.reach()),
            RopeScaling::Linear { factor } => {
                stated.max(self.stated_length.unwrap_or(stated).min(times(stated, *factor)))
            }
            RopeScaling::Default | RopeScaling::LongRope(_) | RopeScaling::Llama3 { .. } => stated,
        }
    }

    /// The longest sequence that is computed as by the model itself. A window that is at least as long as any context was left out of the
    /// kinds of layers, so beyond that window results would differ.
    pub fn longest_extrapolation(&self) -> usize {
        self.sliding_window.filter(|window| *window >= self.context_limit()).unwrap_or(usize::MAX)
    }

    /// The note on the context length if the file's keys disagree about it.
    fn note_on_length(&self) -> Option<String> {
        let (positions, context) = (self.max_position_embeddings, self.context_limit());
        match (self.stated_length, &self.rope.scaling) {
            (Some(stated), RopeScaling::Linear { factor }) if stated > positions => Some(format!(
                "the context is {context} tokens: `max_position_embeddings` is {positions}, RoPE is scaled by {factor}, and the \
                 longest sequence is stated to be {stated}"
            )),
            (None, RopeScaling::Linear { factor }) if *factor > 1.0 => Some(format!(
                "the context is `max_position_embeddings`, {positions} tokens, which are taken to include linear RoPE scaling by \
                 {factor}; if they do not, state the longer context as `max_sequence_length`"
            )),
            (_, RopeScaling::Yarn(yarn)) if yarn.factor > 1.0 && yarn.reach() < positions => Some(format!(
                "the context is `max_position_embeddings`, {positions} tokens, although YaRN scales {} positions by {} only",
                yarn.original_max_positions, yarn.factor
            )),
            (Some(stated), _) if stated != context => Some(format!(
                "the context is {context} tokens, as RoPE is made for, although the longest sequence is stated to be {stated}"
            )),
            _ => None,
        }
    }

    /// The rotary embeddings in the order of [`LayerKind::rope`].
    pub fn ropes(&self) -> impl Iterator<Item = &RopeConfig> {
        std::iter::once(&self.rope).chain(&self.layer_kinds.further_ropes)
    }

    /// The kind of a layer.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn layer_kind(&self, layer: usize) -> LayerKind {
        self.layer_kinds.kinds[layer]
    }

    /// Sets the number of layers to `layers`, repeating the kinds of the present layers as often as necessary.
    ///
    /// # Panics
    /// If this model has no layer.
    pub fn set_layers(&mut self, layers: usize) {
        let kinds = self.layer_kinds.kinds.iter().copied().cycle();
        self.layer_kinds.kinds = kinds.take(layers).collect();
        assert_eq!(self.layer_kinds.kinds.len(), layers, "a model without layers has no kind of layer");
        self.layers = layers;
    }

    /// Keeps only these layers, in this order.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn keep_layers(&mut self, layers: &[usize]) {
        self.layer_kinds.kinds = layers.iter().map(|layer| self.layer_kind(*layer)).collect();
        self.layers = layers.len();
    }

    /// The number of channels of a head that are rotated, starting with the first.
    pub fn rotated(&self) -> usize {
        self.block.rotated.unwrap_or(self.head_dim)
    }

    /// The size of a GQA group: query heads that share one key/value head.
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
        let experts = self.block.experts.map_or(0, |experts| experts.count);
        if experts * self.layers > MOST_EXPERTS {
            return Err(UsageError::new(format!(
                "{file}: {experts} experts in each of {} layers are more than are read, {MOST_EXPERTS} in all",
                self.layers
            )));
        }
        let pairs = self.rotated() / 2;
        for (name, factors) in self.ropes().flat_map(long_factors) {
            if factors.len() != pairs {
                let what = format!("{} numbers are listed, and {pairs} pairs of channels are rotated", factors.len());
                return Err(UsageError::new(format!("{file}: `{name}`: {what}")));
            }
        }
        Ok(())
    }
}

/// The lists of factors of a rotary embedding, with the names of their keys.
fn long_factors(rope: &RopeConfig) -> Vec<(&'static str, &[f64])> {
    match &rope.scaling {
        RopeScaling::LongRope(scaling) => {
            vec![("short_factor", &scaling.short_factor), ("long_factor", &scaling.long_factor)]
        }
        _ => Vec::new(),
    }
}

/// The error for a text that is not JSON; Python writes and reads numbers that JSON does not have.
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

/// The key under which a class that wraps a text model has the text model's keys.
const TEXT_CONFIG: &str = "text_config";
/// The prefix of such a key in errors.
const TEXT_CONFIG_PREFIX: &str = "text_config.";

/// The keys of the text model, with the class's defaults for absent ones.
fn with_defaults(stated: &Keys, family: &Family) -> Result<Map<String, Value>, UsageError> {
    let mut map = match family.is_wrapper {
        true => text_keys(stated)?,
        false => stated.map.clone(),
    };
    let Ok(Value::Object(defaults)) = serde_json::from_str(family.defaults.keys) else {
        unreachable!("the defaults of a class are a JSON object")
    };
    for (key, value) in defaults {
        // `rope_scaling` is the old spelling of `rope_parameters`.
        let is_stated = map.contains_key(&key) || key == "rope_parameters" && map.contains_key("rope_scaling");
        if !is_stated {
            map.insert(key, value);
        }
    }
    Ok(map)
}

/// The keys of a wrapped text model, with those keys of the wrapper that concern it.
fn text_keys(stated: &Keys) -> Result<Map<String, Value>, UsageError> {
    let mut map = stated.object(TEXT_CONFIG)?.ok_or_else(|| stated.missing(TEXT_CONFIG))?.clone();
    for key in ["eos_token_id", "bos_token_id", "dtype", "torch_dtype"] {
        if let Some(value) = stated.get(key).filter(|_| map.get(key).is_none_or(Value::is_null)) {
            map.insert(key.to_owned(), value.clone());
        }
    }
    // The reference uses only the wrapper's key, which is true by default.
    let is_tied = stated.flag("tie_word_embeddings", true)?;
    map.insert("tie_word_embeddings".to_owned(), is_tied.into());
    Ok(map)
}

fn read(keys: &Keys, family: &'static Family, quantisation: Option<Quantisation>) -> Result<ModelConfig, UsageError> {
    let sizes = Sizes {
        heads: keys.size("num_attention_heads")?,
        hidden_size: keys.size("hidden_size")?,
        layers: keys.size("num_hidden_layers")?,
    };
    let max_position_embeddings = keys.size("max_position_embeddings")?;
    let vocab_size = keys.size("vocab_size")?;
    let own = (family.read)(keys, &sizes)?;
    if own.block.rotated.is_none() {
        rope::refuse_share(keys)?;
    }
    let mut notes = Vec::new();
    let mut ropes = rope::ropes(keys, max_position_embeddings, family.defaults.rope_theta, own.local_rope, &mut notes)?;
    let mut config = ModelConfig {
        family,
        vocab_size,
        hidden_size: sizes.hidden_size,
        intermediate_size: keys.size("intermediate_size")?,
        layers: sizes.layers,
        heads: sizes.heads,
        kv_heads: keys.optional_size("num_key_value_heads")?.unwrap_or(sizes.heads),
        head_dim: own.head_dim,
        rms_norm_eps: rms_norm_eps(keys)?,
        rope: ropes.remove(0),
        max_position_embeddings,
        stated_length: stated_length(keys),
        sliding_window: own.kinds.iter().find_map(|kind| kind.window),
        layer_kinds: LayerKinds { kinds: own.kinds, further_ropes: ropes },
        tie_word_embeddings: keys.flag("tie_word_embeddings", false)?,
        quantisation,
        block: own.block,
        eos_ids: keys.eos_ids(vocab_size)?,
        bos_id: keys.ids("bos_token_id")?.first().copied(),
        checkpoint_type: checkpoint_type(keys)?,
        notes,
    };
    let context = config.context_limit();
    for kind in &mut config.layer_kinds.kinds {
        kind.window = kind.window.filter(|window| *window < context);
    }
    Ok(config)
}

/// The longest sequence stated under keys that neither transformers nor RoPE uses; nonsensical values are ignored.
fn stated_length(keys: &Keys) -> Option<usize> {
    const KEYS: [&str; 5] = ["max_sequence_length", "max_seq_length", "max_seq_len", "model_max_length", "n_positions"];
    // Some configs state a huge number to mean that there is no limit.
    const MOST: u64 = 1 << 32;
    let number = |key: &&str| keys.get(key)?.as_u64().filter(|n| (1..MOST).contains(n));
    KEYS.iter().find_map(number).map(|n| n as usize)
}

fn family(keys: &Keys) -> Result<&'static Family, UsageError> {
    let stated = match keys.get("architectures") {
        Some(Value::Array(names)) => names.first().and_then(Value::as_str),
        Some(_) => return Err(keys.error("architectures", "expected a list of names")),
        None => return Err(keys.missing("architectures")),
    };
    let class = stated.ok_or_else(|| keys.error("architectures", "expected a list with one name"))?;
    families::of_class(class).ok_or_else(|| {
        let known = FAMILIES.iter().map(|family| family.class).collect::<Vec<_>>().join(", ");
        keys.error("architectures", &format!("`{class}` is not supported")).hint(format!("supported: {known}"))
    })
}

/// The note if `model_type`, by which transformers chooses the class, names another family than `architectures`.
fn other_family(keys: &Keys, family: &Family) -> Result<Option<String>, UsageError> {
    let stated = keys.optional_text("model_type")?.filter(|stated| *stated != family.model_type);
    Ok(stated.map(|stated| {
        let file = keys.file;
        format!("{file}: `model_type` is `{stated}`, and `architectures` names {family}, as which it is run")
    }))
}

fn rms_norm_eps(keys: &Keys) -> Result<f64, UsageError> {
    let eps = keys.optional_number("rms_norm_eps")?.unwrap_or(1e-6);
    match eps > 0.0 && eps < 1.0 {
        true => Ok(eps),
        false => Err(keys.error("rms_norm_eps", &format!("must be above 0 and below 1, got {eps}"))),
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
        // Informative only: the weights state their own type.
        _ => None,
    })
}

#[cfg(test)]
mod tests;

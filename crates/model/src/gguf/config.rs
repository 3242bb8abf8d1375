//! The configuration of a GGUF model, as the text of a Hugging Face `config.json`.

use serde_json::{Map, Value, json};

use super::files::GgufFiles;
use super::metadata::Metadata;
use crate::tensors::StoredType;
use spattn_base::error::UsageError;

/// Divisors of rotary frequencies, in files of Llama 3.1 and later.
const ROPE_FREQS: &str = "rope_freqs.weight";

/// A decoder family by its name in GGUF files (`general.architecture`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Family {
    /// The name in files, with which the keys of its settings begin.
    name: &'static str,
    /// The class in `config.json`.
    class: &'static str,
    /// Whether llama.cpp's converter permutes the rows of the query and key matrices.
    permutes: bool,
    /// Numbers of query heads and KV heads; 0 in [`FAMILIES`].
    heads: [usize; 2],
}

/// The families that can be read. Mistral's files are named `llama`.
const FAMILIES: [Family; 3] = [
    Family { name: "llama", class: "LlamaForCausalLM", permutes: true, heads: [0; 2] },
    Family { name: "qwen2", class: "Qwen2ForCausalLM", permutes: false, heads: [0; 2] },
    Family { name: "qwen3", class: "Qwen3ForCausalLM", permutes: false, heads: [0; 2] },
];

impl Family {
    /// Number of heads in the tensor `name` if the converter permuted its rows.
    pub(super) fn permuted_heads(&self, name: &str) -> Option<usize> {
        let part = name.rsplit('.').nth(1)?;
        match part {
            "attn_q" if self.permutes => Some(self.heads[0]),
            "attn_k" if self.permutes => Some(self.heads[1]),
            _ => None,
        }
    }

    /// Whether a tensor is part of the configuration rather than a weight.
    pub(super) fn is_configuration(&self, name: &str) -> bool {
        name == ROPE_FREQS
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }
}

/// The family that a file names.
///
/// # Errors
/// If it is none of those that can be read.
pub(super) fn family(metadata: &Metadata<'_>) -> Result<Family, UsageError> {
    const KEY: &str = "general.architecture";
    let name = metadata.text(KEY)?;
    let Some(family) = FAMILIES.iter().find(|family| family.name == name) else {
        let known = FAMILIES.map(|family| family.name).join(", ");
        return Err(metadata.error(KEY, &format!("`{name}` is not supported")).hint(format!("supported: {known}")));
    };
    let heads = metadata.size(&family.key("attention.head_count"))?;
    let kv_heads = metadata.optional_size(&family.key("attention.head_count_kv"))?.unwrap_or(heads);
    if heads == 0 || kv_heads == 0 {
        return Err(metadata.error(&family.key("attention.head_count"), "a model has at least one head"));
    }
    Ok(Family { heads: [heads, kv_heads], ..*family })
}

/// The configuration of the model, with the keys of a `config.json`.
///
/// # Errors
/// If a key is missing or of the wrong type, or a setting is not supported by the decoder.
pub(super) fn config_json(metadata: &Metadata<'_>, family: Family, files: &GgufFiles) -> Result<Value, UsageError> {
    refuse(metadata, family)?;
    let key = |name: &str| family.key(name);
    let hidden = metadata.size(&key("embedding_length"))?;
    let head_dim = metadata.optional_size(&key("attention.key_length"))?.unwrap_or(hidden / family.heads[0]);
    let rotated = metadata.optional_size(&key("rope.dimension_count"))?.unwrap_or(head_dim);
    if rotated != head_dim {
        let what = format!("{rotated} of the {head_dim} channels of a head are rotated, which is not supported");
        return Err(metadata.error(&key("rope.dimension_count"), &what));
    }
    let has = |name: &str| files.tensors().contains_key(name);
    let context = metadata.size(&key("context_length"))?;
    let theta = metadata.optional_number(&key("rope.freq_base"))?.unwrap_or(10_000.0);
    let mut config = json!({
        "architectures": [family.class],
        "hidden_size": hidden,
        "intermediate_size": metadata.size(&key("feed_forward_length"))?,
        "num_hidden_layers": metadata.size(&key("block_count"))?,
        "num_attention_heads": family.heads[0],
        "num_key_value_heads": family.heads[1],
        "head_dim": head_dim,
        "max_position_embeddings": context,
        "rms_norm_eps": metadata.optional_number(&key("attention.layer_norm_rms_epsilon"))?,
        "rope_theta": theta,
        "vocab_size": vocabulary(metadata, family, files)?,
        "tie_word_embeddings": !has("output.weight"),
        "attention_bias": has("blk.0.attn_q.bias") && family.class != "Qwen2ForCausalLM",
        "hidden_act": "silu",
        "torch_dtype": stored_type(files),
        "bos_token_id": metadata.optional_size("tokenizer.ggml.bos_token_id")?,
        "eos_token_id": end_ids(metadata)?,
    });
    if let (Some(scaling), Some(config)) =
        (rope_scaling(metadata, family, files, theta, head_dim)?, config.as_object_mut())
    {
        config.insert("rope_scaling".to_owned(), scaling);
    }
    if let (Some(window), Some(config)) =
        (metadata.optional_size(&key("attention.sliding_window"))?.filter(|window| *window > 0), config.as_object_mut())
    {
        config.insert("sliding_window".to_owned(), window.into());
    }
    Ok(without_nulls(config))
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            Value::Object(map.into_iter().filter(|(_, value)| !value.is_null()).collect::<Map<_, _>>())
        }
        other => other,
    }
}

/// Checks the settings that a `config.json` could not express and that would be ignored.
fn refuse(metadata: &Metadata<'_>, family: Family) -> Result<(), UsageError> {
    let experts = family.key("expert_count");
    if metadata.optional_size(&experts)?.is_some_and(|count| count > 0) {
        return Err(metadata.error(&experts, "a mixture of experts is not supported"));
    }
    let lengths = [family.key("attention.key_length"), family.key("attention.value_length")];
    let [keys, values] = [metadata.optional_size(&lengths[0])?, metadata.optional_size(&lengths[1])?];
    if keys.is_some() && values.is_some() && keys != values {
        return Err(metadata.error(&lengths[1], "keys and values of different widths are not supported"));
    }
    if let Some(adapter) = metadata.first_key("adapter.") {
        return Err(metadata
            .error(adapter, "the file is an adapter, which is no model by itself")
            .hint("merge it into its base model with llama.cpp's `llama-export-lora`"));
    }
    Ok(())
}

/// Number of rows of the embedding table, which may be more than the tokens of the tokenizer.
fn vocabulary(metadata: &Metadata<'_>, family: Family, files: &GgufFiles) -> Result<usize, UsageError> {
    let rows = files.tensors().get("token_embd.weight").and_then(|place| place.shape().first().copied());
    match rows {
        Some(rows) => Ok(rows),
        None => match metadata.optional_size(&family.key("vocab_size"))? {
            Some(size) => Ok(size),
            None => Ok(metadata.texts("tokenizer.ggml.tokens")?.len()),
        },
    }
}

/// Ids of the tokens that end an answer: end of text and end of turn.
fn end_ids(metadata: &Metadata<'_>) -> Result<Vec<usize>, UsageError> {
    let keys = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"];
    let mut ids = Vec::new();
    for key in keys {
        ids.extend(metadata.optional_size(key)?.filter(|id| !ids.contains(id)));
    }
    Ok(ids)
}

/// The number type that holds all tensors exactly: f32 if any is quantised, since dequantised values need more than 16 bits.
fn stored_type(files: &GgufFiles) -> &'static str {
    let matrices = || files.tensors().values().filter(|place| place.shape().len() > 1);
    let is = |stored| matrices().all(|place| !place.is_quantised() && place.read_type() == stored);
    match (is(StoredType::F16), is(StoredType::Bf16)) {
        (true, false) => "float16",
        (false, true) => "bfloat16",
        _ => "float32",
    }
}

/// The RoPE scaling, as `rope_scaling` of a `config.json`; `None` if there is none.
fn rope_scaling(
    metadata: &Metadata<'_>,
    family: Family,
    files: &GgufFiles,
    theta: f64,
    head_dim: usize,
) -> Result<Option<Value>, UsageError> {
    let key = |name: &str| family.key(&format!("rope.scaling.{name}"));
    if let Some(place) = files.tensors().get(ROPE_FREQS) {
        let read = files.read(place).map_err(|e| UsageError::new(format!("{}: {e}", files.label())))?;
        return llama3(&read.to_f32(), theta, head_dim).map(Some).ok_or_else(|| {
            metadata.error(ROPE_FREQS, "divisors of rotary frequencies that are not those of Llama 3 are not supported")
        });
    }
    let factor = metadata.optional_number(&key("factor"))?;
    // Old files have a linear factor under a key of its own.
    let old = metadata.optional_number(&family.key("rope.scale_linear"))?.filter(|factor| *factor != 1.0);
    match (metadata.optional_text(&key("type"))?, factor) {
        (None, None) | (Some("none"), _) => Ok(old.map(|factor| json!({ "rope_type": "linear", "factor": factor }))),
        (Some("linear") | None, Some(factor)) => Ok(Some(json!({ "rope_type": "linear", "factor": factor }))),
        (Some("yarn"), Some(factor)) => {
            let original = metadata.size(&key("original_context_length"))?;
            let mut yarn = json!({
                "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original,
            });
            for (stored, name) in
                [("attn_factor", "attention_factor"), ("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")]
            {
                if let Some(number) = metadata.optional_number(&key(stored))? {
                    yarn[name] = number.into();
                }
            }
            Ok(Some(yarn))
        }
        (Some(other), factor) => {
            let what = match factor {
                None => format!("`{other}` needs `{}`", key("factor")),
                Some(_) => format!("RoPE scaling by `{other}` is not supported"),
            };
            Err(metadata.error(&key("type"), &what))
        }
    }
}

/// The `llama3` scaling that gives these divisors of the frequencies, if there is one with the published bounds of its ramp (1, 4, and
/// 8,192 trained positions; transformers' `_compute_llama3_parameters`).
fn llama3(divisors: &[f32], theta: f64, head_dim: usize) -> Option<Value> {
    const LOW: f64 = 1.0;
    const HIGH: f64 = 4.0;
    const TRAINED: f64 = 8192.0;
    let factor = f64::from(divisors.iter().copied().fold(0.0f32, f32::max));
    if divisors.len() != head_dim / 2 || factor < 1.0 {
        return None;
    }
    let expected = |channel: usize| {
        let wavelength = 2.0 * std::f64::consts::PI * theta.powf(2.0 * channel as f64 / head_dim as f64);
        let smooth = (TRAINED / wavelength - LOW) / (HIGH - LOW);
        match wavelength {
            short if short < TRAINED / HIGH => 1.0,
            long if long > TRAINED / LOW => factor,
            _ => 1.0 / ((1.0 - smooth) / factor + smooth),
        }
    };
    let fits = divisors
        .iter()
        .enumerate()
        .all(|(channel, divisor)| (f64::from(*divisor) / expected(channel) - 1.0).abs() < 1e-4);
    fits.then(|| {
        json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": LOW, "high_freq_factor": HIGH,
            "original_max_position_embeddings": TRAINED as usize,
        })
    })
}

//! The configuration of a GGUF model, as the text of a Hugging Face `config.json`: the keys that all families share. Those of one family
//! are written by its row in [`families`](super::families).

use std::fmt;

use serde_json::{Value, json};

use super::families::{ARCHITECTURES, Architecture, ExpertStacks, Stated};
use super::files::{GgufFiles, Place};
use super::metadata::{Metadata, shown};
use crate::tensors::StoredType;
use spattn_base::error::UsageError;

/// The hint for a file with a feature that cannot be read from it.
const GIVE_SAFETENSORS: &str = "give the safetensors checkpoint that the file was made from";
/// Divisors of rotary frequencies, in files of Llama 3.1 and later.
const ROPE_FREQS: &str = "rope_freqs.weight";

/// Factors of rotary frequencies, in files of Phi-3 with long prompts.
const ROPE_FACTORS: &str = "rope_factors_";

/// The decoder family of a file.
#[derive(Clone, Copy)]
pub(super) struct Family {
    of: &'static Architecture,
    /// The numbers of query heads and KV heads.
    heads: [usize; 2],
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.of.name)
    }
}

impl Family {
    /// The number that the converter added to the elements of the tensor `name`.
    pub(super) fn offset(&self, name: &str) -> f32 {
        if name.ends_with("norm.weight") { self.of.norm_offset } else { 0.0 }
    }

    /// Whether the converter changes the tensor `name`.
    pub(super) fn changes(&self, name: &str) -> bool {
        self.permuted_heads(name).is_some() || self.offset(name) != 0.0
    }

    /// The name of a layer's tensor in a Hugging Face checkpoint, given its name in files; `None` if the family has no such tensor.
    pub(super) fn layer_name(&self, name: &str) -> Option<&'static str> {
        let router = self.of.experts.filter(|_| name == "ffn_gate_inp").map(|experts| experts.router);
        router.or_else(|| self.of.layer.iter().find(|(known, _)| *known == name).map(|(_, known)| *known))
    }

    /// The stacks of experts, if the family may have any.
    pub(super) fn experts(&self) -> Option<ExpertStacks> {
        self.of.experts
    }

    /// The number of heads in the tensor `name`, if the converter permuted its rows.
    pub(super) fn permuted_heads(&self, name: &str) -> Option<usize> {
        let part = name.rsplit('.').nth(1)?;
        match part {
            "attn_q" if self.of.permutes => Some(self.heads[0]),
            "attn_k" if self.of.permutes => Some(self.heads[1]),
            _ => None,
        }
    }

    /// Whether a tensor is part of the configuration rather than a weight.
    pub(super) fn is_configuration(&self, name: &str) -> bool {
        name == ROPE_FREQS || self.of.has_rope_factors && name.starts_with(ROPE_FACTORS)
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.of.name)
    }
}

/// The key that names the family.
const ARCHITECTURE: &str = "general.architecture";

/// Checks that a family is supported. `place` says where it is named.
///
/// # Errors
/// If the family is not supported.
pub(crate) fn check_architecture(place: &str, name: &str) -> Result<(), UsageError> {
    known(name).map(drop).ok_or_else(|| unsupported(place, name))
}

fn unsupported(place: &str, name: &str) -> UsageError {
    let known = ARCHITECTURES.iter().map(|family| family.name).collect::<Vec<_>>().join(", ");
    let what = format!("{place}: `{ARCHITECTURE}`: `{}` is not supported in GGUF files", shown(name));
    UsageError::new(what).hint(format!("supported: {known}; of other families give the safetensors checkpoint"))
}

fn known(name: &str) -> Option<&'static Architecture> {
    ARCHITECTURES.iter().find(|family| family.name == name)
}

/// The family that a file names.
///
/// # Errors
/// If the family is not supported.
pub(super) fn family(metadata: &Metadata<'_>) -> Result<Family, UsageError> {
    let name = metadata.text(ARCHITECTURE)?;
    let Some(of) = known(name) else { return Err(unsupported(metadata.file(), name)) };
    let family = Family { of, heads: [0; 2] };
    let heads = metadata.size(&family.key("attention.head_count"))?;
    let kv_heads = metadata.optional_size(&family.key("attention.head_count_kv"))?.unwrap_or(heads);
    if heads == 0 || kv_heads == 0 {
        return Err(metadata.error(&family.key("attention.head_count"), "a model has at least one head"));
    }
    Ok(Family { heads: [heads, kv_heads], ..family })
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
    if rotated != head_dim && !family.of.rotates_parts {
        let what = format!("{rotated} of the {head_dim} channels of a head are rotated, which is not supported");
        return Err(metadata.error(&key("rope.dimension_count"), &what));
    }
    let has = |name: &str| files.tensors().contains_key(name);
    let layers = metadata.size(&key("block_count"))?;
    let theta = metadata.optional_number(&key("rope.freq_base"))?.unwrap_or(10_000.0);
    let config = json!({
        "architectures": [family.of.class],
        "hidden_size": hidden,
        "intermediate_size": metadata.size(&key("feed_forward_length"))?,
        "num_hidden_layers": layers,
        "num_attention_heads": family.heads[0],
        "num_key_value_heads": family.heads[1],
        "head_dim": head_dim,
        "max_position_embeddings": metadata.size(&key("context_length"))?,
        "rms_norm_eps": metadata.optional_number(&key("attention.layer_norm_rms_epsilon"))?,
        "rope_theta": theta,
        "rope_scaling": rope_scaling(metadata, family, files, theta, head_dim)?,
        "partial_rotary_factor": family.of.rotates_parts.then_some(rotated as f64 / head_dim as f64),
        "sliding_window": metadata.optional_size(&key("attention.sliding_window"))?.filter(|window| *window > 0),
        "vocab_size": vocabulary(metadata, family, files)?,
        "tie_word_embeddings": !has("output.weight"),
        "attention_bias": has("blk.0.attn_q.bias"),
        "mlp_bias": has("blk.0.ffn_gate.bias"),
        "hidden_act": "silu",
        "torch_dtype": stored_type(files),
        "bos_token_id": metadata.optional_size("tokenizer.ggml.bos_token_id")?,
        "eos_token_id": end_ids(metadata)?,
    });
    let Value::Object(mut config) = config else { unreachable!("a config is an object") };
    config.retain(|_, value| !value.is_null());
    let stated = Stated { name: family.of.name, metadata, files, sizes: [hidden, layers, family.heads[0], head_dim] };
    (family.of.keys)(&stated, &mut config)?;
    config.retain(|_, value| !value.is_null());
    Ok(Value::Object(config))
}

/// Numbers that models of other families have, with the values that have no effect.
const NEUTRAL: [(&str, &[f64]); 18] = [
    ("attention.scale", &[0.0]),
    ("attention.output_scale", &[0.0, 1.0]),
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attn_logit_softcapping", &[0.0]),
    ("final_logit_softcapping", &[0.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("pooling_type", &[0.0]),
    ("attention.temperature_scale", &[0.0]),
    ("expert_count", &[0.0]),
    ("expert_shared_count", &[0.0]),
    ("expert_weights_scale", &[0.0, 1.0]),
    // 1 means softmax.
    ("expert_gating_func", &[1.0]),
    // llama.cpp multiplies the factor of YaRN by these; transformers replaces it by `attention_factor`.
    ("rope.scaling.attn_factor", &[1.0]),
    ("rope.scaling.yarn_attn_factor", &[1.0]),
    ("rope.scaling.yarn_ext_factor", &[1.0]),
];

/// Keys of a family that are read, or that do not affect the decoder.
const KNOWN: [&str; 24] = [
    "attention.causal",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "tensor_data_layout",
    "use_parallel_residual",
    "vocab_size",
];

/// The prefix of the tokenizer's keys.
const TOKENIZER: &str = "tokenizer.ggml.";
/// Keys of the tokenizer that are read, or that affect neither texts nor ids.
const KNOWN_OF_TOKENIZER: [&str; 27] = [
    "add_bos_token",
    "add_eos_token",
    "add_sep_token",
    "add_space_prefix",
    "bos_token_id",
    "cls_token_id",
    "eom_token_id",
    "eos_token_id",
    "eot_token_id",
    "fim_mid_token_id",
    "fim_pad_token_id",
    "fim_pre_token_id",
    "fim_rep_token_id",
    "fim_sep_token_id",
    "fim_suf_token_id",
    "mask_token_id",
    "merges",
    "model",
    "padding_token_id",
    "pre",
    "remove_extra_whitespaces",
    "scores",
    "seperator_token_id",
    "token_type",
    "token_type_count",
    "tokens",
    "unknown_token_id",
];

/// The one-line note on keys of the family and the tokenizer that are not read.
pub(super) fn unread_keys(metadata: &Metadata<'_>, family: Family) -> Option<String> {
    let begins = family.key("");
    let is_neutral = |name: &str| NEUTRAL.iter().any(|(known, _)| *known == name);
    let of_family = metadata.keys(&begins).into_iter().filter(|key| {
        let name = &key[begins.len()..];
        !KNOWN.contains(&name) && !is_neutral(name) && !family.of.own.contains(&name)
    });
    let of_tokenizer = metadata.keys(TOKENIZER).into_iter();
    let of_tokenizer = of_tokenizer.filter(|key| !KNOWN_OF_TOKENIZER.contains(&&key[TOKENIZER.len()..]));
    let unread: Vec<String> = of_family.chain(of_tokenizer).map(|key| format!("`{key}`")).collect();
    match unread.len() {
        0 => None,
        1 => Some(format!("{}: {} is not read", metadata.file(), unread[0])),
        _ => Some(format!("{}: {} are not read", metadata.file(), unread.join(", "))),
    }
}

/// Refuses settings that a `config.json` cannot express and that would be ignored.
fn refuse(metadata: &Metadata<'_>, family: Family) -> Result<(), UsageError> {
    for (name, neutral) in NEUTRAL.iter().filter(|(name, _)| !family.of.own.contains(name)) {
        let key = family.key(name);
        if let Some(stated) = metadata.optional_number(&key)?.filter(|stated| !neutral.contains(stated)) {
            let what = format!("{stated} is not supported in models of `{}`", family.of.name);
            return Err(metadata.error(&key, &what).hint(GIVE_SAFETENSORS));
        }
    }
    let parallel = family.key("use_parallel_residual");
    if metadata.optional_flag(&parallel)? == Some(true) {
        return Err(metadata.error(&parallel, "attention and MLP side by side are not supported"));
    }
    let extra = "tokenizer.ggml.remove_extra_whitespaces";
    if metadata.optional_flag(extra)? == Some(true) {
        return Err(metadata
            .error(extra, "a tokenizer that drops white space is not supported")
            .hint(GIVE_SAFETENSORS));
    }
    let causal = family.key("attention.causal");
    if metadata.optional_flag(&causal)? == Some(false) {
        return Err(metadata.error(&causal, "a model that attends in both directions is not supported"));
    }
    let lengths = [family.key("attention.key_length"), family.key("attention.value_length")];
    let [keys, values] = [metadata.optional_size(&lengths[0])?, metadata.optional_size(&lengths[1])?];
    if keys.is_some() && values.is_some() && keys != values {
        return Err(metadata.error(&lengths[1], "keys and values of different widths are not supported"));
    }
    if let Some(adapter) = metadata.keys("adapter.").first() {
        return Err(metadata
            .error(adapter, "the file is an adapter, which is not a model by itself")
            .hint("merge it into its base model with llama.cpp's `llama-export-lora`"));
    }
    Ok(())
}

/// The number of rows of the embedding table, which may exceed the number of tokens in the tokenizer.
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

/// The ids of the tokens that end an answer: end of text and end of turn.
fn end_ids(metadata: &Metadata<'_>) -> Result<Vec<usize>, UsageError> {
    let keys = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"];
    let mut ids = Vec::new();
    for key in keys {
        ids.extend(metadata.optional_size(key)?.filter(|id| !ids.contains(id)));
    }
    Ok(ids)
}

/// The number type that holds all matrices exactly; `None` if any is quantised, since such a file names no type to compute in.
fn stored_type(files: &GgufFiles) -> Option<&'static str> {
    let matrices = || files.tensors().values().filter(|place| place.shape().len() > 1);
    let is = |stored| matrices().all(|place| place.read_type() == stored);
    match (matrices().any(Place::is_quantised), is(StoredType::F16), is(StoredType::Bf16)) {
        (true, ..) => None,
        (false, true, false) => Some("float16"),
        (false, false, true) => Some("bfloat16"),
        _ => Some("float32"),
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
    // Old files have a linear factor under a different key.
    let old = metadata.optional_number(&family.key("rope.scale_linear"))?.filter(|factor| *factor != 1.0);
    match (metadata.optional_text(&key("type"))?, factor) {
        (None, None) | (Some("none"), _) => Ok(old.map(|factor| json!({ "rope_type": "linear", "factor": factor }))),
        // The family's row writes it.
        (Some("longrope"), _) if family.of.has_rope_factors => Ok(None),
        (Some("linear") | None, Some(factor)) => Ok(Some(json!({ "rope_type": "linear", "factor": factor }))),
        (Some("yarn"), Some(factor)) => {
            let original = metadata.size(&key("original_context_length"))?;
            let mut yarn = json!({
                "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original,
            });
            for (stored, name) in [("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")] {
                if let Some(number) = metadata.optional_number(&key(stored))? {
                    yarn[name] = number.into();
                }
            }
            Ok(Some(yarn))
        }
        (Some(other), factor) => {
            let what = match factor {
                None => format!("`{}` needs `{}`", shown(other), key("factor")),
                Some(_) => format!("RoPE scaling by `{}` is not supported", shown(other)),
            };
            Err(metadata.error(&key("type"), &what))
        }
    }
}

/// The `llama3` scaling that gives these divisors of the frequencies (transformers' `_compute_llama3_parameters`), if there is one with the
/// published bounds of the ramp, 1 and 4, and a power of two as the trained length (8,192 in all published models).
fn llama3(divisors: &[f32], theta: f64, head_dim: usize) -> Option<Value> {
    (6..20).find_map(|power| llama3_of(divisors, theta, head_dim, f64::from(1u32 << power)))
}

fn llama3_of(divisors: &[f32], theta: f64, head_dim: usize, trained: f64) -> Option<Value> {
    const LOW: f64 = 1.0;
    const HIGH: f64 = 4.0;
    let factor = f64::from(divisors.iter().copied().fold(0.0f32, f32::max));
    if divisors.len() != head_dim / 2 || factor < 1.0 {
        return None;
    }
    let expected = |channel: usize| {
        let wavelength = 2.0 * std::f64::consts::PI * theta.powf(2.0 * channel as f64 / head_dim as f64);
        let smooth = (trained / wavelength - LOW) / (HIGH - LOW);
        match wavelength {
            short if short < trained / HIGH => 1.0,
            long if long > trained / LOW => factor,
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
            "original_max_position_embeddings": trained as usize,
        })
    })
}

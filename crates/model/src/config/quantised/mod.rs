//! The settings of `config.json` for quantised weights: which format, and with which parameters.
//!
//! Every key is either read, known not to change the stored weights, or refused: a checkpoint is never unpacked by only a part of
//! its settings. [`tensors::quantised`](crate::tensors::quantised) knows how each format stores its tensors.

mod compressed_tensors;
mod settings;

use serde_json::Value;

use super::keys::Keys;
use crate::families::Family;
use crate::formats::{QUANTISED_HINT, QUANTISED_KEYS, quantised_by};
use crate::tensors::quantised::{Awq, Fp8, Fp8Scales, Gptq, IntBits, Quantisation, QuantisedFormat};
use settings::Settings;
use spattn_base::error::UsageError;

/// The key of MLX; newer versions also write their settings under another key.
const MLX: &str = "quantization";
/// The key that names modules which are not quantised; their tensors show that too.
const NOT_CONVERTED: &str = "modules_to_not_convert";

/// Keys of transformers, AutoGPTQ and GPTQModel about how weights were quantised, or how to compute with them.
const OF_GPTQ_AND_AWQ: [&str; 29] = [
    "act_group_aware",
    "backend",
    "batch_size",
    "block_name_to_quantize",
    "cache_block_outputs",
    "damp_auto_increment",
    "damp_percent",
    "dataset",
    "disable_exllama",
    "do_fuse",
    "exllama_config",
    "fuse_max_seq_len",
    "lm_head",
    "max_input_length",
    "meta",
    "method",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "modules_to_fuse",
    "mse",
    "pad_token_id",
    "static_groups",
    "tokenizer",
    "true_sequential",
    "use_cuda_fp16",
    "use_exllama",
];

/// How the weights are quantised, if the config says that they are. What cannot be read is refused here, before weights are
/// searched for or downloaded.
///
/// # Errors
/// An unsupported format or setting, or a wrong value.
pub(super) fn quantisation(keys: &Keys<'_>, family: &Family) -> Result<Option<Quantisation>, UsageError> {
    let Some((key, setting)) = QUANTISED_KEYS.iter().find_map(|key| Some((*key, keys.get(key)?))) else {
        return Ok(None);
    };
    let (method, Some(map)) = (setting["quant_method"].as_str(), setting.as_object()) else {
        return Err(refused(keys, key, setting, ""));
    };
    let prefix = format!("{}{key}.", keys.prefix);
    let own = Settings { keys: Keys { file: keys.file, prefix: &prefix, map } };
    let read = match method {
        Some("fp8") => fp8(&own),
        Some("fbgemm_fp8") => fbgemm_fp8(&own),
        Some("awq") => awq(&own),
        Some("gptq") => gptq(&own),
        Some("mxfp4") if family.has_mxfp4_experts => mxfp4(&own),
        Some("mxfp4") => Err(refused(keys, key, setting, &format!(" of {family}"))),
        Some("compressed-tensors") => compressed_tensors::quantisation(&own),
        _ => Err(refused(keys, key, setting, "")),
    };
    read.map(Some)
}

/// The error for a format that is not read, or that is not `of` this model.
fn refused(keys: &Keys<'_>, key: &str, setting: &Value, of: &str) -> UsageError {
    let key = if setting["quant_method"].is_null() && keys.get(MLX).is_some() { MLX } else { key };
    let by = quantised_by(key, setting);
    keys.error(key, &format!("the weights are quantised ({by}), which is not read{of}")).hint(QUANTISED_HINT)
}

/// The settings of transformers' `FineGrainedFP8Config`: Qwen3, DeepSeek, Ministral.
fn fp8(own: &Settings<'_>) -> Result<Quantisation, UsageError> {
    own.only(
        &["weight_block_size", "fmt", "expert_dtype"],
        &["activation_scheme", "dequantize", "scale_fmt", "modules_to_convert", NOT_CONVERTED, "ignored_layers"],
    )?;
    own.one_of("fmt", &["e4m3"])?;
    own.one_of("expert_dtype", &["fp8"])?;
    // As in transformers, an absent block size is the default one, and null means no blocks.
    let scales = match own.keys.map.get("weight_block_size") {
        None => Fp8Scales::Block([128, 128]),
        Some(Value::Null) => Fp8Scales::Matrix,
        Some(_) => own.block("weight_block_size")?,
    };
    Ok(Quantisation { format: QuantisedFormat::Fp8(Fp8 { scales }), quantises_activations: true })
}

/// The settings of transformers' `FbgemmFp8Config`: Llama 3.1 405B.
fn fbgemm_fp8(own: &Settings<'_>) -> Result<Quantisation, UsageError> {
    own.only(&[], &["activation_scale_ub", NOT_CONVERTED])?;
    Ok(Quantisation { format: QuantisedFormat::Fp8(Fp8 { scales: Fp8Scales::Row }), quantises_activations: true })
}

fn awq(own: &Settings<'_>) -> Result<Quantisation, UsageError> {
    let harmless = [&OF_GPTQ_AND_AWQ[..], &["sym", "desc_act", NOT_CONVERTED]].concat();
    own.only(&["bits", "group_size", "zero_point", "version", "format", "checkpoint_format", "pack_dtype"], &harmless)?;
    if own.keys.get("backend").is_some_and(|backend| backend == "llm-awq") {
        return Err(own.unread("backend", "`llm-awq` packs weights in another layout"));
    }
    for key in ["version", "format", "checkpoint_format"] {
        own.one_of(key, &["gemm"])?;
    }
    own.one_of("pack_dtype", &["int32"])?;
    bits(own, &[IntBits::Four])?;
    if !own.keys.flag("zero_point", true)? {
        return Err(own.unread("zero_point", "only AWQ with zero points is read"));
    }
    let format = QuantisedFormat::Awq(Awq { group_size: own.group_size()? });
    Ok(Quantisation { format, quantises_activations: false })
}

fn gptq(own: &Settings<'_>) -> Result<Quantisation, UsageError> {
    own.only(
        &["bits", "group_size", "desc_act", "sym", "checkpoint_format", "format", "pack_dtype"],
        &OF_GPTQ_AND_AWQ,
    )?;
    own.one_of("pack_dtype", &["int32"])?;
    // Zero points are stored even for symmetric numbers.
    own.keys.flag("sym", true)?;
    let versions = ["gptq", "gptq_v2"];
    let (older, newer) = (own.one_of("checkpoint_format", &versions)?, own.one_of("format", &versions)?);
    let format = QuantisedFormat::Gptq(Gptq {
        bits: bits(own, &[IntBits::Four, IntBits::Eight])?,
        group_size: own.group_size()?,
        by_activation: own.keys.flag("desc_act", false)?,
        zero_points_less_one: older.or(newer) != Some("gptq_v2"),
    });
    Ok(Quantisation { format, quantises_activations: false })
}

/// `bits`; 4 if absent, as in transformers.
fn bits(own: &Settings<'_>, known: &[IntBits]) -> Result<IntBits, UsageError> {
    match own.keys.get("bits") {
        None => Ok(IntBits::Four),
        Some(_) => own.bits("bits", known),
    }
}

fn mxfp4(own: &Settings<'_>) -> Result<Quantisation, UsageError> {
    own.only(&[], &[NOT_CONVERTED, "dequantize"])?;
    Ok(Quantisation { format: QuantisedFormat::Mxfp4, quantises_activations: false })
}

#[cfg(test)]
mod tests;

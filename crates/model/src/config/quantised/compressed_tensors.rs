//! The settings of compressed-tensors, which llm-compressor writes: a format, and groups of modules that state how weights and
//! activations are quantised. All groups must state the same for weights.

use serde_json::Value;

use super::settings::Settings;
use crate::tensors::quantised::{Fp8, Fp8Scales, GroupSize, IntBits, PackedInts, Quantisation, QuantisedFormat};
use spattn_base::error::UsageError;

/// How weights are quantised, according to the object `quantization_config`.
pub(super) fn quantisation(own: &Settings<'_>) -> Result<Quantisation, UsageError> {
    own.only(
        &["config_groups", "format", "kv_cache_scheme", "sparsity_config", "transform_config"],
        &[
            "dequantize",
            "global_compression_ratio",
            "ignore",
            "quantization_status",
            "run_compressed",
            "use_optimized_inference",
            "version",
        ],
    )?;
    refuse_what_is_not_weights(own)?;
    let packing = own.one_of("format", &["pack-quantized", "float-quantized", "naive-quantized"])?;
    let packing = packing.ok_or_else(|| own.keys.missing("format"))?;
    let groups = groups(own)?;
    let first = groups.first().ok_or_else(|| own.unread("config_groups", "it has no group"))?;
    if groups.iter().any(|group| group.weights != first.weights) {
        return Err(own.unread("config_groups", "modules are quantised in several ways"));
    }
    let is_packed = matches!(first.weights, QuantisedFormat::PackedInts(_));
    if is_packed != (packing == "pack-quantized") {
        return Err(own.unread("format", &format!("`{packing}` of {} is not read", first.weights.name())));
    }
    Ok(Quantisation {
        format: first.weights.clone(),
        quantises_activations: groups.iter().any(|group| group.has_activations),
    })
}

fn refuse_what_is_not_weights(own: &Settings<'_>) -> Result<(), UsageError> {
    if own.says("kv_cache_scheme") {
        let error = own.keys.error("kv_cache_scheme", "the KV cache is to be quantised, which is not done");
        return Err(error.hint("take the key out to evaluate the model with a KV cache that is not quantised"));
    }
    let sparsity = own.keys.object("sparsity_config")?.filter(|sparsity| !sparsity.is_empty());
    if sparsity.is_some_and(|sparsity| sparsity.get("format").is_none_or(|format| format != "dense")) {
        return Err(own.unread("sparsity_config", "sparse weights are not read"));
    }
    match own.says("transform_config") {
        true => Err(own.unread("transform_config", "transformed weights are not read")),
        false => Ok(()),
    }
}

/// How the modules of a group are quantised.
struct Group {
    weights: QuantisedFormat,
    has_activations: bool,
}

fn groups(own: &Settings<'_>) -> Result<Vec<Group>, UsageError> {
    const KEY: &str = "config_groups";
    let groups = own.keys.object(KEY)?.ok_or_else(|| own.keys.missing(KEY))?;
    groups.iter().map(|(name, value)| own.within(&format!("{KEY}.{name}"), value, group)).collect()
}

fn group(own: &Settings<'_>) -> Result<Group, UsageError> {
    own.only(&["weights", "input_activations"], &["targets", "format"])?;
    let value = own.keys.get("weights").ok_or_else(|| own.keys.missing("weights"))?;
    Ok(Group {
        weights: own.within("weights", value, weights)?,
        has_activations: own.keys.object("input_activations")?.is_some(),
    })
}

fn weights(own: &Settings<'_>) -> Result<QuantisedFormat, UsageError> {
    own.only(
        &["num_bits", "type", "symmetric", "strategy", "group_size", "block_structure", "actorder"],
        &["observer", "observer_kwargs", "scale_dtype", "zp_dtype"],
    )?;
    let strategy = own.one_of("strategy", &["tensor", "channel", "group", "block"])?;
    match own.one_of("type", &["int", "float"])? {
        Some("float") => fp8(own, strategy),
        _ => packed_ints(own, strategy),
    }
}

fn fp8(own: &Settings<'_>, strategy: Option<&str>) -> Result<QuantisedFormat, UsageError> {
    own.bits("num_bits", &[IntBits::Eight])?;
    if !own.keys.flag("symmetric", true)? {
        return Err(own.unread("symmetric", "FP8 weights with zero points are not read"));
    }
    let scales = match strategy {
        None | Some("tensor") => Fp8Scales::Matrix,
        Some("channel") => Fp8Scales::Row,
        Some("block") => own.block("block_structure")?,
        Some(_) => return Err(own.unread("strategy", "FP8 weights with a scale for each group are not read")),
    };
    Ok(QuantisedFormat::Fp8(Fp8 { scales }))
}

fn packed_ints(own: &Settings<'_>, strategy: Option<&str>) -> Result<QuantisedFormat, UsageError> {
    let group_size = match strategy {
        Some("channel") => GroupSize::All,
        Some("group") => own.group_size()?,
        _ => return Err(own.unread("strategy", "only `group` and `channel` are read of packed weights")),
    };
    // With ordering by weights, or `static`, the inputs of a group are still adjacent.
    let order = match own.keys.get("actorder") {
        Some(Value::Bool(by_activation)) => by_activation.then_some("group"),
        _ => own.one_of("actorder", &["group", "weight", "static"])?,
    };
    Ok(QuantisedFormat::PackedInts(PackedInts {
        bits: own.bits("num_bits", &[IntBits::Four, IntBits::Eight])?,
        group_size,
        symmetric: own.keys.flag("symmetric", true)?,
        by_activation: order == Some("group"),
    }))
}

//! Qwen3-MoE (30B-A3B, 235B-A22B): Qwen3 with experts in all layers, or in some.

use serde_json::Value;

use super::block::{BlockSpec, TensorNames};
use super::experts::{ExpertNames, ExpertWeights, Experts, StackedNames};
use super::family::{ClassDefaults, Family, FamilyConfig, Sizes};
use super::keys_in_common::{experts_used, head_dim_or_share, silu, sliding_window};
use super::layer_kind::LayerKind;
use crate::config::keys::Keys;
use spattn_base::error::UsageError;

pub(super) static QWEN3_MOE: Family = Family {
    name: "Qwen3-MoE",
    class: "Qwen3MoeForCausalLM",
    model_type: "qwen3_moe",
    defaults: ClassDefaults {
        keys: r#"{
            "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
            "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 32768
        }"#,
        rope_theta: 10_000.0,
    },
    is_wrapper: false,
    has_mxfp4_experts: false,
    read,
};

const NAMES: TensorNames =
    TensorNames { qk_norm: Some(["self_attn.q_norm", "self_attn.k_norm"]), ..TensorNames::LLAMA };

const EXPERT_NAMES: ExpertNames = ExpertNames {
    router: "mlp.gate",
    each: "mlp.experts.",
    gate: "gate_proj",
    up: "up_proj",
    down: "down_proj",
    stacked: StackedNames::TRANSFORMERS,
};

fn read(keys: &Keys<'_>, sizes: &Sizes) -> Result<FamilyConfig, UsageError> {
    let attention_bias = keys.flag("attention_bias", false)?;
    let window = match keys.flag("use_sliding_window", false)? {
        true => sliding_window(keys)?,
        false => None,
    };
    let experts = expert_layers(keys, sizes)?;
    Ok(FamilyConfig {
        head_dim: head_dim_or_share(keys, sizes)?,
        kinds: experts.into_iter().map(|experts| LayerKind { window, experts, ..LayerKind::FULL }).collect(),
        local_rope: None,
        block: BlockSpec {
            names: NAMES,
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            gate: silu(keys)?,
            experts: Some(experts_of(keys)?),
            ..BlockSpec::LLAMA
        },
    })
}

fn experts_of(keys: &Keys<'_>) -> Result<Experts, UsageError> {
    // Transformers 5 writes the second name.
    let count = match keys.optional_size("num_experts")? {
        Some(count) => count,
        None => keys.optional_size("num_local_experts")?.unwrap_or(128),
    };
    Ok(Experts {
        names: EXPERT_NAMES,
        count,
        used: experts_used(keys, count, 8)?,
        width: keys.optional_size("moe_intermediate_size")?.unwrap_or(768),
        weights: match keys.flag("norm_topk_prob", false)? {
            true => ExpertWeights::AmongUsed,
            false => ExpertWeights::AmongAll,
        },
        router_bias: false,
    })
}

/// Which layers have experts: those not listed in `mlp_only_layers` whose number, from 1, is a multiple of `decoder_sparse_step`.
fn expert_layers(keys: &Keys<'_>, sizes: &Sizes) -> Result<Vec<bool>, UsageError> {
    const LISTED: &str = "mlp_only_layers";
    let step = keys.optional_size("decoder_sparse_step")?.unwrap_or(1);
    let numbers = match keys.get(LISTED) {
        None => Some(Vec::new()),
        Some(Value::Array(numbers)) => numbers.iter().map(Value::as_u64).collect(),
        Some(_) => None,
    };
    let dense = numbers.ok_or_else(|| keys.error(LISTED, "expected a list of numbers of layers"))?;
    Ok((0..sizes.layers).map(|layer| !dense.contains(&(layer as u64)) && (layer + 1).is_multiple_of(step)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_have_experts_by_step_and_list() {
        let of = |text: &str| {
            let Ok(Value::Object(map)) = serde_json::from_str(text) else { unreachable!() };
            expert_layers(&Keys { file: "c", prefix: "", map: &map }, &Sizes { hidden_size: 8, layers: 4, heads: 1 })
        };
        assert_eq!(of("{}").unwrap(), [true; 4]);
        assert_eq!(of(r#"{"mlp_only_layers": [0, 3]}"#).unwrap(), [false, true, true, false]);
        assert_eq!(of(r#"{"decoder_sparse_step": 2, "mlp_only_layers": [1]}"#).unwrap(), [false, false, false, true]);
        let error = of(r#"{"mlp_only_layers": [-1]}"#).unwrap_err().to_string();
        assert_eq!(error, "c: `mlp_only_layers`: expected a list of numbers of layers");
    }
}

//! Mixtral: Mistral with experts in all layers.

use super::block::BlockSpec;
use super::experts::{ExpertNames, ExpertWeights, Experts, StackedNames};
use super::family::{ClassDefaults, Family, FamilyConfig, Sizes};
use super::keys_in_common::{experts_used, head_dim_or_share, silu};
use super::layer_kind::LayerKind;
use crate::config::keys::Keys;
use spattn_base::error::UsageError;

pub(super) static MIXTRAL: Family = Family {
    name: "Mixtral",
    class: "MixtralForCausalLM",
    model_type: "mixtral",
    defaults: ClassDefaults {
        keys: r#"{
            "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5
        }"#,
        rope_theta: 1_000_000.0,
    },
    is_wrapper: false,
    has_mxfp4_experts: false,
    read,
};

const EXPERT_NAMES: ExpertNames = ExpertNames {
    router: "block_sparse_moe.gate",
    each: "block_sparse_moe.experts.",
    gate: "w1",
    up: "w3",
    down: "w2",
    stacked: StackedNames::TRANSFORMERS,
};

fn read(keys: &Keys<'_>, sizes: &Sizes) -> Result<FamilyConfig, UsageError> {
    let count = keys.optional_size("num_local_experts")?.unwrap_or(8);
    let experts = Experts {
        names: EXPERT_NAMES,
        count,
        used: experts_used(keys, count, 2)?,
        width: keys.size("intermediate_size")?,
        weights: ExpertWeights::AmongUsed,
        router_bias: false,
    };
    // Unlike in Mistral, no layer slides if this key is absent.
    let kind = LayerKind { window: keys.optional_size("sliding_window")?, experts: true, ..LayerKind::FULL };
    Ok(FamilyConfig {
        head_dim: head_dim_or_share(keys, sizes)?,
        kinds: vec![kind; sizes.layers],
        local_rope: None,
        block: BlockSpec { gate: silu(keys)?, experts: Some(experts), ..BlockSpec::LLAMA },
    })
}

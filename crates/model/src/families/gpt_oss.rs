//! gpt-oss: every other layer slides; heads have sinks; all layers have experts with clamped gates. Published weights of experts are
//! blocks of 4 bits (MXFP4).

use super::block::{BlockSpec, Gate, TensorNames};
use super::experts::{ExpertNames, ExpertWeights, Experts, StackedLayout, StackedNames};
use super::family::{ClassDefaults, Family, FamilyConfig, Sizes};
use super::keys_in_common::{experts_used, head_dim_or_share, kinds_by_type, sliding_window};
use super::layer_kind::LayerKind;
use crate::config::keys::Keys;
use spattn_base::error::UsageError;

pub(super) static GPT_OSS: Family = Family {
    name: "gpt-oss",
    class: "GptOssForCausalLM",
    model_type: "gpt_oss",
    defaults: ClassDefaults {
        keys: r#"{
            "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5, "sliding_window": 128, "attention_bias": true, "num_local_experts": 128,
            "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
            "rope_parameters": {
                "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                "original_max_position_embeddings": 4096
            }
        }"#,
        rope_theta: 150_000.0,
    },
    is_wrapper: false,
    has_mxfp4_experts: true,
    read,
};

const NAMES: TensorNames = TensorNames { sinks: Some("self_attn.sinks"), ..TensorNames::LLAMA };

/// The reference only has all experts in one tensor, so the names of single experts are our own.
const EXPERT_NAMES: ExpertNames = ExpertNames {
    router: "mlp.router",
    each: "mlp.experts.",
    gate: "gate_proj",
    up: "up_proj",
    down: "down_proj",
    stacked: StackedNames { router: "mlp.router", layout: StackedLayout::Alternating, ..StackedNames::TRANSFORMERS },
};

fn read(keys: &Keys<'_>, sizes: &Sizes) -> Result<FamilyConfig, UsageError> {
    let count = keys.size("num_local_experts")?;
    let experts = Experts {
        names: EXPERT_NAMES,
        count,
        used: experts_used(keys, count, 4)?,
        width: keys.size("intermediate_size")?,
        weights: ExpertWeights::AmongUsed,
        router_bias: true,
    };
    let full = LayerKind { experts: true, ..LayerKind::FULL };
    let sliding = LayerKind { window: sliding_window(keys)?, ..full };
    let kinds = kinds_by_type(keys, sizes, sliding, |layer| layer.is_multiple_of(2))?;
    let attention_bias = keys.flag("attention_bias", true)?;
    Ok(FamilyConfig {
        head_dim: head_dim_or_share(keys, sizes)?,
        kinds: kinds.into_iter().map(|kind| LayerKind { experts: true, ..kind }).collect(),
        local_rope: None,
        block: BlockSpec {
            names: NAMES,
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            mlp_bias: true,
            gate: Gate::Clamped {
                slope: keys.positive("swiglu_alpha")? as f32,
                limit: keys.positive("swiglu_limit")? as f32,
            },
            experts: Some(experts),
            ..BlockSpec::LLAMA
        },
    })
}

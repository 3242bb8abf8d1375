//! Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: Llama with one matrix for queries, keys and values, and one for the gate and what it gates.
//! RoPE frequencies may be scaled by two lists of factors, for short and for long prompts, and heads may be partly rotated.

use super::block::{BlockSpec, TensorNames};
use super::family::{ClassDefaults, Family, FamilyConfig, Sizes};
use super::keys_in_common::{head_dim_or_share, rotated, silu};
use super::layer_kind::LayerKind;
use crate::config::keys::Keys;
use spattn_base::error::UsageError;

pub(super) static PHI3: Family = Family {
    name: "Phi-3",
    class: "Phi3ForCausalLM",
    model_type: "phi3",
    defaults: ClassDefaults {
        keys: r#"{
            "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
            "num_attention_heads": 32, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5
        }"#,
        rope_theta: 10_000.0,
    },
    is_wrapper: false,
    has_mxfp4_experts: false,
    read,
};

const NAMES: TensorNames =
    TensorNames { qkv: &["self_attn.qkv_proj"], gate_up: &["mlp.gate_up_proj"], ..TensorNames::LLAMA };

fn read(keys: &Keys<'_>, sizes: &Sizes) -> Result<FamilyConfig, UsageError> {
    let head_dim = head_dim_or_share(keys, sizes)?;
    let window = keys.optional_size("sliding_window")?;
    Ok(FamilyConfig {
        head_dim,
        kinds: vec![LayerKind { window, ..LayerKind::FULL }; sizes.layers],
        local_rope: None,
        block: BlockSpec { names: NAMES, gate: silu(keys)?, rotated: rotated(keys, head_dim)?, ..BlockSpec::LLAMA },
    })
}

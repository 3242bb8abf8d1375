//! GLM-4: one matrix for the gate and what it gates; half of each head is rotated, in pairs of adjacent channels. Models of 2025 (Glm4)
//! also have a norm after each branch.

use super::block::{BlockSpec, RopePairs, TensorNames};
use super::family::{ClassDefaults, Family, FamilyConfig, Sizes};
use super::keys_in_common::{head_dim_or_share, rotated, silu};
use super::layer_kind::LayerKind;
use crate::config::keys::Keys;
use spattn_base::error::UsageError;

pub(super) static GLM: Family = Family {
    name: "GLM-4",
    class: "GlmForCausalLM",
    model_type: "glm",
    defaults: DEFAULTS,
    is_wrapper: false,
    has_mxfp4_experts: false,
    read: |keys, sizes| read(keys, sizes, NAMES),
};

pub(super) static GLM4: Family = Family {
    name: "GLM-4-0414",
    class: "Glm4ForCausalLM",
    model_type: "glm4",
    defaults: DEFAULTS,
    is_wrapper: false,
    has_mxfp4_experts: false,
    read: |keys, sizes| read(keys, sizes, GLM4_NAMES),
};

const DEFAULTS: ClassDefaults = ClassDefaults {
    keys: r#"{
        "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40,
        "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072,
        "rms_norm_eps": 1.5625e-7, "partial_rotary_factor": 0.5
    }"#,
    rope_theta: 10_000.0,
};

const NAMES: TensorNames = TensorNames { gate_up: &["mlp.gate_up_proj"], ..TensorNames::LLAMA };

const GLM4_NAMES: TensorNames = TensorNames {
    attention_post_norm: Some("post_self_attn_layernorm"),
    mlp_post_norm: Some("post_mlp_layernorm"),
    ..NAMES
};

fn read(keys: &Keys<'_>, sizes: &Sizes, names: TensorNames) -> Result<FamilyConfig, UsageError> {
    let head_dim = head_dim_or_share(keys, sizes)?;
    Ok(FamilyConfig {
        head_dim,
        kinds: vec![LayerKind::FULL; sizes.layers],
        local_rope: None,
        block: BlockSpec {
            names,
            qkv_bias: keys.flag("attention_bias", true)?,
            gate: silu(keys)?,
            rotated: rotated(keys, head_dim)?,
            rope_pairs: RopePairs::Neighbours,
            ..BlockSpec::LLAMA
        },
    })
}

//! OLMo 2: norms come after branches instead of before them, and those of queries and keys are over all heads
//! together.

use super::block::{BlockSpec, QkNormOver, TensorNames};
use super::family::{ClassDefaults, Family, FamilyConfig, Sizes};
use super::keys_in_common::{head_dim_or_share, silu};
use super::layer_kind::LayerKind;
use crate::config::keys::Keys;
use spattn_base::error::UsageError;

pub(super) static OLMO2: Family = Family {
    name: "OLMo 2",
    class: "Olmo2ForCausalLM",
    model_type: "olmo2",
    defaults: DEFAULTS,
    is_wrapper: false,
    has_mxfp4_experts: false,
    read,
};

/// The defaults of the classes of OLMo 2 and 3.
pub(super) const DEFAULTS: ClassDefaults = ClassDefaults {
    keys: r#"{
        "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5
    }"#,
    rope_theta: 10_000.0,
};

const NAMES: TensorNames = TensorNames {
    attention_norm: None,
    qk_norm: Some(["self_attn.q_norm", "self_attn.k_norm"]),
    attention_post_norm: Some("post_attention_layernorm"),
    mlp_norm: None,
    mlp_post_norm: Some("post_feedforward_layernorm"),
    ..TensorNames::LLAMA
};

/// The block of OLMo 2 and 3.
pub(super) fn block(keys: &Keys<'_>) -> Result<BlockSpec, UsageError> {
    let attention_bias = keys.flag("attention_bias", false)?;
    Ok(BlockSpec {
        names: NAMES,
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        gate: silu(keys)?,
        qk_norm_over: QkNormOver::AllHeads,
        ..BlockSpec::LLAMA
    })
}

fn read(keys: &Keys<'_>, sizes: &Sizes) -> Result<FamilyConfig, UsageError> {
    Ok(FamilyConfig {
        head_dim: head_dim_or_share(keys, sizes)?,
        kinds: vec![LayerKind::FULL; sizes.layers],
        local_rope: None,
        block: block(keys)?,
    })
}

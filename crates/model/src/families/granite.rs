//! Granite 3: Llama with four factors, on embeddings, attention, branches and logits.

use super::block::{AttentionScale, BlockSpec};
use super::family::{ClassDefaults, Family, FamilyConfig, Sizes};
use super::keys_in_common::{head_dim_or_share, silu};
use super::layer_kind::LayerKind;
use crate::config::keys::Keys;
use spattn_base::error::UsageError;

pub(super) static GRANITE: Family = Family {
    name: "Granite",
    class: "GraniteForCausalLM",
    model_type: "granite",
    defaults: ClassDefaults {
        keys: r#"{
            "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "max_position_embeddings": 2048
        }"#,
        rope_theta: 10_000.0,
    },
    is_wrapper: false,
    has_mxfp4_experts: false,
    read,
};

fn read(keys: &Keys<'_>, sizes: &Sizes) -> Result<FamilyConfig, UsageError> {
    let attention_bias = keys.flag("attention_bias", false)?;
    let factor = |key: &str| match keys.get(key) {
        Some(_) => keys.positive(key).map(|factor| factor as f32),
        None => Ok(1.0),
    };
    Ok(FamilyConfig {
        head_dim: head_dim_or_share(keys, sizes)?,
        kinds: vec![LayerKind::FULL; sizes.layers],
        local_rope: None,
        block: BlockSpec {
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            mlp_bias: keys.flag("mlp_bias", false)?,
            gate: silu(keys)?,
            attention_scale: AttentionScale::Factor(factor("attention_multiplier")?),
            embedding_scale: factor("embedding_multiplier")?,
            branch_scale: factor("residual_multiplier")?,
            logit_divisor: factor("logits_scaling")?,
            ..BlockSpec::LLAMA
        },
    })
}

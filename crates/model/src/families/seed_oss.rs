//! Seed-OSS: Llama with biases on q, k and v, and, by a separate key, one on the attention
//! output.

use super::block::BlockSpec;
use super::family::{ClassDefaults, Family, FamilyConfig, Sizes};
use super::keys_in_common::{head_dim_or_share, silu};
use super::layer_kind::LayerKind;
use crate::config::keys::Keys;
use spattn_base::error::UsageError;

pub(super) static SEED_OSS: Family = Family {
    name: "Seed-OSS",
    class: "SeedOssForCausalLM",
    model_type: "seed_oss",
    defaults: ClassDefaults {
        keys: r#"{
            "vocab_size": 155136, "hidden_size": 4096, "intermediate_size": 27648, "num_hidden_layers": 64,
            "num_attention_heads": 80, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 524288
        }"#,
        rope_theta: 10_000.0,
    },
    is_wrapper: false,
    has_mxfp4_experts: false,
    read,
};

fn read(keys: &Keys<'_>, sizes: &Sizes) -> Result<FamilyConfig, UsageError> {
    Ok(FamilyConfig {
        head_dim: head_dim_or_share(keys, sizes)?,
        kinds: vec![LayerKind::FULL; sizes.layers],
        local_rope: None,
        block: BlockSpec {
            qkv_bias: keys.flag("attention_bias", true)?,
            output_bias: keys.flag("attention_out_bias", false)?,
            mlp_bias: keys.flag("mlp_bias", false)?,
            gate: silu(keys)?,
            ..BlockSpec::LLAMA
        },
    })
}

//! Llama, and models published in its form: Llama 2 to 3.3, Yi, Falcon 3, DeepSeek-R1-Distill-Llama.

use super::block::BlockSpec;
use super::family::{ClassDefaults, Family, FamilyConfig, Sizes};
use super::keys_in_common::{head_dim_or_share, silu};
use super::layer_kind::LayerKind;
use crate::config::keys::Keys;
use spattn_base::error::UsageError;

pub(super) static LLAMA: Family = Family {
    name: "Llama",
    class: "LlamaForCausalLM",
    model_type: "llama",
    defaults: ClassDefaults::COMMON,
    is_wrapper: false,
    has_mxfp4_experts: false,
    read,
};

fn read(keys: &Keys<'_>, sizes: &Sizes) -> Result<FamilyConfig, UsageError> {
    let attention_bias = keys.flag("attention_bias", false)?;
    Ok(FamilyConfig {
        head_dim: head_dim_or_share(keys, sizes)?,
        kinds: vec![LayerKind::FULL; sizes.layers],
        local_rope: None,
        block: BlockSpec {
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            mlp_bias: keys.flag("mlp_bias", false)?,
            gate: silu(keys)?,
            ..BlockSpec::LLAMA
        },
    })
}

//! Qwen2 and Qwen2.5: Llama with biases on q, k and v, whatever the config says. Some layers may slide.

use super::block::BlockSpec;
use super::family::{ClassDefaults, Family, FamilyConfig, Sizes};
use super::keys_in_common::{head_dim_or_share, silu, switched_kinds};
use crate::config::keys::Keys;
use spattn_base::error::UsageError;

pub(super) static QWEN2: Family = Family {
    name: "Qwen2",
    class: "Qwen2ForCausalLM",
    model_type: "qwen2",
    defaults: ClassDefaults::COMMON,
    is_wrapper: false,
    has_mxfp4_experts: false,
    read,
};

fn read(keys: &Keys<'_>, sizes: &Sizes) -> Result<FamilyConfig, UsageError> {
    Ok(FamilyConfig {
        head_dim: head_dim_or_share(keys, sizes)?,
        kinds: switched_kinds(keys, sizes)?,
        local_rope: None,
        block: BlockSpec { qkv_bias: true, gate: silu(keys)?, ..BlockSpec::LLAMA },
    })
}

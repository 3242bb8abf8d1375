//! Qwen3 (dense): Llama with a norm on each head of q and k. Some layers may slide.

use super::block::{BlockSpec, TensorNames};
use super::family::{ClassDefaults, Family, FamilyConfig, Sizes};
use super::keys_in_common::{silu, switched_kinds};
use crate::config::keys::Keys;
use spattn_base::error::UsageError;

pub(super) static QWEN3: Family = Family {
    name: "Qwen3",
    class: "Qwen3ForCausalLM",
    model_type: "qwen3",
    defaults: ClassDefaults::COMMON,
    is_wrapper: false,
    has_mxfp4_experts: false,
    read,
};

const NAMES: TensorNames =
    TensorNames { qk_norm: Some(["self_attn.q_norm", "self_attn.k_norm"]), ..TensorNames::LLAMA };

/// The width of heads does not depend on the hidden size.
const HEAD_DIM: usize = 128;

fn read(keys: &Keys<'_>, sizes: &Sizes) -> Result<FamilyConfig, UsageError> {
    let attention_bias = keys.flag("attention_bias", false)?;
    Ok(FamilyConfig {
        head_dim: keys.optional_size("head_dim")?.unwrap_or(HEAD_DIM),
        kinds: switched_kinds(keys, sizes)?,
        local_rope: None,
        block: BlockSpec {
            names: NAMES,
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            gate: silu(keys)?,
            ..BlockSpec::LLAMA
        },
    })
}

//! Mistral 7B to Nemo: Llama without biases. Either all layers slide or none.

use super::block::BlockSpec;
use super::family::{ClassDefaults, Family, FamilyConfig, Sizes};
use super::keys_in_common::{head_dim_or_share, silu, sliding_window};
use super::layer_kind::LayerKind;
use crate::config::keys::Keys;
use spattn_base::error::UsageError;

pub(super) static MISTRAL: Family = Family {
    name: "Mistral",
    class: "MistralForCausalLM",
    model_type: MODEL_TYPE,
    defaults: ClassDefaults::COMMON,
    is_wrapper: false,
    has_mxfp4_experts: false,
    read,
};

/// The `model_type` of the text model, alone or wrapped.
pub(super) const MODEL_TYPE: &str = "mistral";

pub(super) fn read(keys: &Keys<'_>, sizes: &Sizes) -> Result<FamilyConfig, UsageError> {
    Ok(FamilyConfig {
        head_dim: head_dim_or_share(keys, sizes)?,
        kinds: vec![LayerKind { window: sliding_window(keys)?, ..LayerKind::FULL }; sizes.layers],
        local_rope: None,
        block: BlockSpec { gate: silu(keys)?, ..BlockSpec::LLAMA },
    })
}

//! Mistral 7B to Nemo: Llama without biases. Layers may slide, all of them alike.

use super::block::BlockSpec;
use super::family::{Family, FamilyConfig, Sizes};
use super::keys_in_common::{head_dim_or_share, silu, sliding_window};
use crate::config::keys::Keys;
use spattn_base::error::UsageError;

pub(super) static MISTRAL: Family =
    Family { name: "Mistral", class: "MistralForCausalLM", model_type: "mistral", read };

fn read(keys: &Keys<'_>, sizes: &Sizes) -> Result<FamilyConfig, UsageError> {
    Ok(FamilyConfig {
        head_dim: head_dim_or_share(keys, sizes)?,
        sliding_window: sliding_window(keys)?,
        block: BlockSpec { gate: silu(keys)?, ..BlockSpec::LLAMA },
    })
}

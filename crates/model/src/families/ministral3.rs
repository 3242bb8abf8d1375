//! Ministral 3: Mistral with queries that grow with their position. It is only published inside
//! [`mistral3`](super::mistral3).

use super::block::{BlockSpec, QueryGrowth};
use super::family::{FamilyConfig, Sizes};
use super::layer_kind::LayerKind;
use super::mistral;
use crate::config::keys::Keys;
use spattn_base::error::UsageError;

/// The `model_type` of the text model.
pub(super) const MODEL_TYPE: &str = "ministral3";

/// Reads the keys like those of Mistral, and the growth of queries in `rope_parameters`.
pub(super) fn read(keys: &Keys<'_>, sizes: &Sizes) -> Result<FamilyConfig, UsageError> {
    const ROPE: &str = "rope_parameters";
    let map = keys.object(ROPE)?.ok_or_else(|| keys.missing(ROPE))?;
    let prefix = format!("{}{ROPE}.", keys.prefix);
    let inner = Keys { file: keys.file, prefix: &prefix, map };
    let growth = QueryGrowth {
        beta: inner
            .optional_not_negative("llama_4_scaling_beta")?
            .ok_or_else(|| inner.missing("llama_4_scaling_beta"))? as f32,
        step: inner.size("original_max_position_embeddings")?,
    };
    let mistral = mistral::read(keys, sizes)?;
    Ok(FamilyConfig {
        // Unlike in Mistral, no layer slides if this key is absent.
        kinds: vec![LayerKind { window: keys.optional_size("sliding_window")?, ..LayerKind::FULL }; sizes.layers],
        block: BlockSpec { query_growth: Some(growth), ..mistral.block },
        ..mistral
    })
}

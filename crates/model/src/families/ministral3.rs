//! Ministral 3: Mistral whose queries grow with their position. It is published within [`mistral3`](super::mistral3) alone.

use super::block::{BlockSpec, QueryGrowth};
use super::family::{FamilyConfig, Sizes};
use super::layer_kind::LayerKind;
use super::mistral;
use crate::config::keys::Keys;
use spattn_base::error::UsageError;

/// What `model_type` is for the text model.
pub(super) const MODEL_TYPE: &str = "ministral3";

/// Reads its keys, as Mistral's but for the growth of queries, which is in `rope_parameters`.
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
        // Where there is no such key, no layer slides, other than in Mistral.
        kinds: vec![LayerKind { window: keys.optional_size("sliding_window")?, ..LayerKind::FULL }; sizes.layers],
        block: BlockSpec { query_growth: Some(growth), ..mistral.block },
        ..mistral
    })
}

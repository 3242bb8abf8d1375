//! Prefills a prompt densely in two parts, each with its own observer. The first part is the context; the queries of the second part
//! attend to it.

use std::sync::Arc;

use anyhow::{Result, anyhow};

use spattn_attention::calibration::ObserveChunk;
use spattn_attention::kv::LayerKv;
use spattn_model::decoder::Decoder;

/// Prefills the first `context` tokens of `ids`, then the others if there are any. `before` observes the chunks of the first part at
/// every layer, `behind` those of the second. Returns the keys and values of all layers for all tokens.
///
/// # Errors
/// If the decoder cannot read the tokens, or their keys and values cannot be copied from a device.
pub fn read_apart(
    decoder: &Decoder,
    ids: &[u32],
    context: usize,
    before: &mut ObserveChunk<'_>,
    behind: &mut ObserveChunk<'_>,
) -> Result<Vec<LayerKv>> {
    let alone = "the prefix that was just read has one owner";
    let prefill = decoder.prefill_observed(&ids[..context], ids.len(), before)?;
    let mut prefix = Arc::into_inner(prefill.prefix).ok_or_else(|| anyhow!(alone))?;
    if context < ids.len() {
        let prefill = decoder.prefill_after(prefix, context, ids, ids.len(), behind)?;
        prefix = Arc::into_inner(prefill.prefix).ok_or_else(|| anyhow!(alone))?;
    }
    Ok(prefix.into_layers()?)
}

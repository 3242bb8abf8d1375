//! Reads a prompt densely in two parts and shows both to observers: the first part, which is attended, and the tokens behind
//! it, whose queries attend.

use std::sync::Arc;

use anyhow::{Result, anyhow};

use spattn_attention::calibration::PrefillChunk;
use spattn_attention::kv::LayerKv;
use spattn_model::decoder::Decoder;

/// Reads the first `context` of `ids`, and then the others, if there are any. `before` sees the chunks of the former at every
/// layer, `behind` those of the latter. Keys and values of all layers, of all tokens.
///
/// # Errors
/// If the decoder cannot read them, or what a device holds of them cannot be copied.
pub fn read_apart(
    decoder: &Decoder,
    ids: &[u32],
    context: usize,
    before: &mut dyn FnMut(&PrefillChunk<'_>),
    behind: &mut dyn FnMut(&PrefillChunk<'_>),
) -> Result<Vec<LayerKv>> {
    let alone = "nobody else holds a prefix that was just read";
    let prefill = decoder.prefill_observed(&ids[..context], ids.len(), before)?;
    let mut prefix = Arc::into_inner(prefill.prefix).ok_or_else(|| anyhow!(alone))?;
    if context < ids.len() {
        let prefill = decoder.prefill_after(prefix, context, ids, ids.len(), behind)?;
        prefix = Arc::into_inner(prefill.prefix).ok_or_else(|| anyhow!(alone))?;
    }
    Ok(prefix.into_host()?)
}

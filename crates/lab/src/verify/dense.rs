//! Prefill and decoding with full attention.

use std::sync::Arc;

use anyhow::Result;

use super::numbers::argmax;
use spattn_attention::kv::{KvDtype, Prefix};
use spattn_attention::methods::configure;
use spattn_attention::{IndexCache, Policy, Sequence, expand_grid};
use spattn_model::decoder::Decoder;
use spattn_model::engine::Stream;

/// Starts `count` sequences after a prefix that attend all tokens.
pub(super) fn dense_sequences(prefix: Arc<Prefix>, dtype: KvDtype, count: usize) -> Result<Vec<Sequence>> {
    let full = configure(&expand_grid("full")?[0], &Policy::default())?;
    let mut index = IndexCache::new(prefix, dtype, 0);
    (0..count).map(|_| Ok(index.fork(&full, false)?)).collect()
}

/// Computes rows `[position][hidden_size]` after the last layer at positions.
pub(super) fn rows_at(decoder: &Decoder, ids: &[u32], positions: &[usize]) -> Result<Vec<f32>> {
    let hidden = decoder.config().hidden_size;
    let (_, rows) = decoder.prefill_rows(ids, 0, None)?;
    Ok(positions.iter().flat_map(|position| &rows[position * hidden..(position + 1) * hidden]).copied().collect())
}

/// Computes the logits `[position][vocab_size]` at positions of a text.
#[cfg(feature = "candle")]
pub(super) fn logits_at(decoder: &Decoder, ids: &[u32], positions: &[usize]) -> Result<Vec<f32>> {
    Ok(decoder.logits(&rows_at(decoder, ids, positions)?, |row| positions[row])?)
}

/// Returns the first `count` tokens that greedy decoding appends to a prompt.
pub(super) fn greedy(decoder: &Decoder, prompt: &[u32], count: usize) -> Result<Vec<u32>> {
    let read = decoder.prefill(prompt, prompt.len())?;
    let mut fork = dense_sequences(read.prefix, decoder.dtype(), 1)?.remove(0);
    let mut tokens = vec![argmax(&read.logits) as u32];
    while tokens.len() < count {
        let last = [tokens[tokens.len() - 1]];
        let logits = decoder.step(&mut [Stream { fork: &mut fork, tokens: &last }], prompt.len())?;
        tokens.push(argmax(&logits[0]) as u32);
    }
    Ok(tokens)
}

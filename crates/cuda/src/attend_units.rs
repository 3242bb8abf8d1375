//! The arguments of decode attention: the tokens of each row and KV head, and where keys and values are.

use super::launch::Cache;
use super::prefill::LayerRule;
use super::{Buffer, Storage};

/// Tokens of one row that a unit attends: `0..sink` and `recent..total` of prefix and tail, then selected ones.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a> {
    /// End of the first static part.
    pub sink: usize,
    /// Beginning of the last static part.
    pub recent: usize,
    /// Tokens of prefix and tail.
    pub total: usize,
    /// Selected tokens, all below `total`.
    pub picked: &'a [u32],
}

/// How selected tokens are weighted.
#[derive(Debug, Clone, Copy)]
pub enum Weights<'a> {
    /// By their logits.
    Softmax,
    /// By their logits, from each of which a number is subtracted.
    LogBias(&'a [f32]),
    /// Given weights, whose mass is `exp(log_mass)` in total.
    Explicit(&'a [f32], f32),
}

/// Keys and values after the prefix, for one row: `[layer][keys, values][kv_head][capacity][d]`.
#[derive(Debug, Clone, Copy)]
pub struct Tail<'a> {
    /// The memory.
    pub buffer: &'a Buffer,
    /// Layers.
    pub layers: usize,
    /// Tokens for which memory is reserved.
    pub capacity: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Channels of a head.
    pub d: usize,
    /// Type of the numbers.
    pub storage: Storage,
}

impl Tail<'_> {
    /// Keys and values of one layer.
    pub fn cache(&self, layer: usize) -> Cache<'_> {
        let Self { buffer, capacity, kv_heads, d, storage, .. } = *self;
        let half = kv_heads * capacity * d * storage.bytes();
        Cache {
            keys: buffer,
            values: buffer,
            keys_at: 2 * layer * half,
            values_at: (2 * layer + 1) * half,
            capacity,
            kv_heads,
            d,
            storage,
        }
    }

    /// Whether tensor cores support such heads.
    pub(super) fn fits_tiles(&self) -> bool {
        self.storage.fits_tiles(self.d)
    }

    /// Its device address; checks that all of it lies within the buffer.
    pub(super) fn address(&self) -> u64 {
        self.buffer.address(0, 2 * self.layers * self.kv_heads * self.capacity * self.d * self.storage.bytes())
    }
}

/// The prefix that all rows of a step share, at one layer.
#[derive(Debug, Clone, Copy)]
pub struct Prefix<'a> {
    /// Its keys and values.
    pub cache: Cache<'a>,
    /// Its tokens.
    pub tokens: usize,
    /// Index of the layer.
    pub layer: usize,
    /// Factor of the layer's logits.
    pub scale: f32,
    /// Cap and sinks of the layer; a window is told by the tokens that units attend.
    pub rule: LayerRule<'a>,
}

/// A set of tokens of one KV head, and the queries that attend it.
#[derive(Debug, Clone, Copy)]
pub struct Unit<'a> {
    /// Row of the queries.
    pub row: usize,
    /// First query head.
    pub head: usize,
    /// Query heads, all of one group.
    pub queries: usize,
    /// KV head.
    pub kv_head: usize,
    /// Keys and values after the prefix, for the row.
    pub tail: &'a Tail<'a>,
    /// The tokens to attend.
    pub tokens: Tokens<'a>,
    /// How selected tokens are weighted.
    pub weights: Weights<'a>,
}

//! The arguments of decode attention: the tokens of each row and KV head, and where keys and values are.

use super::launch::Cache;
use super::prefill::LayerRule;
use super::{Buffer, Storage};

/// The tokens of a row that a unit attends: `0..sink` and `recent..total`, then selected ones.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a> {
    /// End of the first static part, the sink tokens.
    pub sink: usize,
    /// Beginning of the last static part, the recent window.
    pub recent: usize,
    /// Number of tokens of prefix and tail.
    pub total: usize,
    /// Selected tokens, all below `total`.
    pub picked: &'a [u32],
}

/// How selected tokens are weighted.
#[derive(Debug, Clone, Copy)]
pub enum Weights<'a> {
    /// By their logits.
    Softmax,
    /// By their logits, less a given number for each token.
    LogBias(&'a [f32]),
    /// By given weights, whose total mass is `exp` of the second number.
    Explicit(&'a [f32], f32),
}

/// Keys and values after the prefix, for one row: `[layer][keys, values][kv_head][capacity][d]`.
#[derive(Debug, Clone, Copy)]
pub struct Tail<'a> {
    /// The memory.
    pub buffer: &'a Buffer,
    /// Number of layers.
    pub layers: usize,
    /// Tokens for which memory is reserved.
    pub capacity: usize,
    /// Number of KV heads.
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

    /// Returns its device address, after checking that all of it lies within the buffer.
    pub(super) fn address(&self) -> u64 {
        self.buffer.address(0, 2 * self.layers * self.kv_heads * self.capacity * self.d * self.storage.bytes())
    }
}

/// The prefix that all rows of a step share, at one layer.
#[derive(Debug, Clone, Copy)]
pub struct Prefix<'a> {
    /// Its keys and values.
    pub cache: Cache<'a>,
    /// Number of its tokens.
    pub tokens: usize,
    /// Index of the layer.
    pub layer: usize,
    /// The factor that scales logits.
    pub scale: f32,
    /// Soft cap and sink logits of the layer. A window is not read: units list the tokens in it.
    pub rule: LayerRule<'a>,
}

/// A set of tokens of one KV head, and the queries that attend it.
#[derive(Debug, Clone, Copy)]
pub struct Unit<'a> {
    /// Index of the row of the queries.
    pub row: usize,
    /// Index of the first query head.
    pub head: usize,
    /// Number of query heads, all of one group.
    pub queries: usize,
    /// Index of the KV head.
    pub kv_head: usize,
    /// Keys and values after the prefix, for the row.
    pub tail: &'a Tail<'a>,
    /// The tokens to attend.
    pub tokens: Tokens<'a>,
    /// How selected tokens are weighted.
    pub weights: Weights<'a>,
}

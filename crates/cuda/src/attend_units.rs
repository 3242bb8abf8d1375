//! What decode attention is told: the tokens of each row and KV head, and where keys and values lie.

use super::launch::Cache;
use super::{Buffer, Storage};

/// Tokens of one row that a unit attends: `0..sink` and `recent..total` of prefix and tail, then picked ones.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a> {
    /// End of the first exact part.
    pub sink: usize,
    /// Beginning of the last exact part.
    pub recent: usize,
    /// Tokens of prefix and tail.
    pub total: usize,
    /// Picked tokens, all below `total`.
    pub picked: &'a [u32],
}

/// What picked tokens bring.
#[derive(Debug, Clone, Copy)]
pub enum Weights<'a> {
    /// Their logits.
    Softmax,
    /// Their logits, each lowered by a number.
    LogBias(&'a [f32]),
    /// Given weights, which stand for `exp(log_mass)` together.
    Explicit(&'a [f32], f32),
}

/// What follows the prefix in one row, `[layer][keys, values][kv_head][capacity][d]`.
#[derive(Debug, Clone, Copy)]
pub struct Tail<'a> {
    /// Holds all of it.
    pub buffer: &'a Buffer,
    /// Layers.
    pub layers: usize,
    /// Tokens that there is room for.
    pub capacity: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Width of a head.
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

    /// Whether tensor cores take such heads.
    pub(super) fn fits_tiles(&self) -> bool {
        self.storage.fits_tiles(self.d)
    }

    /// Where it begins; all of it lies inside the buffer.
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
    /// Which layer.
    pub layer: usize,
    /// Factor of the layer's logits.
    pub scale: f32,
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
    /// What follows the prefix in the row.
    pub tail: &'a Tail<'a>,
    /// What is attended.
    pub tokens: Tokens<'a>,
    /// How picked tokens enter.
    pub weights: Weights<'a>,
}

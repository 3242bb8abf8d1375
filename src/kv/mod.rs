//! Keys and values: the shared, immutable prefix and the private tail behind it.
//!
//! Layout is `[kv_head][token][d]`, so that a head's rows are contiguous. Storage is f32, f16 or
//! bf16; kernels widen as they read. Nothing here selects or attends.

pub mod quantised;
mod store;

use std::sync::Arc;

pub use store::{KvDtype, KvStore};

/// The longest context that can be asked for, in tokens, and the greatest number of tokens that a parameter can name:
/// beyond every published model, and far from where sums of positions overflow.
pub const MOST_TOKENS: usize = 1 << 24;

/// Keys and values of one layer.
#[derive(Debug, Clone)]
pub struct LayerKv {
    /// Rotated keys.
    pub keys: KvStore,
    /// Values.
    pub values: KvStore,
}

impl LayerKv {
    /// Room for `capacity` tokens; grows beyond it if need be.
    pub fn new(dtype: KvDtype, kv_heads: usize, d: usize, capacity: usize) -> Self {
        Self { keys: KvStore::new(dtype, kv_heads, d, capacity), values: KvStore::new(dtype, kv_heads, d, capacity) }
    }

    /// Appends one token; `key` and `value` are `[kv_heads][d]`.
    pub fn append(&mut self, key: &[f32], value: &[f32]) {
        self.keys.append(key);
        self.values.append(value);
    }

    /// Tokens stored.
    pub fn tokens(&self) -> usize {
        self.keys.tokens()
    }

    /// Keeps the first `tokens` tokens, and has room for `capacity` without growing.
    pub fn truncate(&mut self, tokens: usize, capacity: usize) {
        self.keys.truncate(tokens, capacity);
        self.values.truncate(tokens, capacity);
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes()
    }
}

/// The dense prefix of an example: every method and budget forks from the same one.
#[derive(Debug)]
pub struct Prefix {
    layers: Vec<LayerKv>,
    tokens: usize,
}

impl Prefix {
    /// Freezes the prefilled layers, all of which hold the same number of tokens.
    pub fn new(layers: Vec<LayerKv>) -> Arc<Self> {
        let tokens = layers.first().map_or(0, LayerKv::tokens);
        debug_assert!(layers.iter().all(|l| l.tokens() == tokens));
        Arc::new(Self { layers, tokens })
    }

    /// Keys and values of one layer.
    pub fn layer(&self, layer: usize) -> &LayerKv {
        &self.layers[layer]
    }

    /// The layers, to be gone on with: what follows may be cut off and read anew.
    pub fn into_layers(self) -> Vec<LayerKv> {
        self.layers
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Tokens in the prefix.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Bytes of all layers.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(LayerKv::bytes).sum()
    }
}

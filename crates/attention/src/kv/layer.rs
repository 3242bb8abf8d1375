//! Keys and values of one layer in host memory.

use std::ops::Range;

use crate::kv::shape::{KvDtype, KvShape};
use crate::kv::store::KvStore;
use spattn_kernels::Rows;

/// Keys and values of one layer.
#[derive(Debug, Clone)]
pub struct LayerKv {
    /// Rotated keys.
    pub keys: KvStore,
    /// Values.
    pub values: KvStore,
}

impl LayerKv {
    /// Creates an empty layer with room for `capacity` tokens; it grows if needed.
    pub fn new(dtype: KvDtype, kv_heads: usize, d: usize, capacity: usize) -> Self {
        Self { keys: KvStore::new(dtype, kv_heads, d, capacity), values: KvStore::new(dtype, kv_heads, d, capacity) }
    }

    /// Creates a layer of `tokens` tokens, all zeros.
    pub fn zeros(shape: KvShape, tokens: usize) -> Self {
        let zeros = KvStore::zeros(shape, tokens);
        Self { keys: zeros.clone(), values: zeros }
    }

    /// Appends one token; `key` and `value` are `[kv_heads][d]`.
    pub fn append(&mut self, key: &[f32], value: &[f32]) {
        self.keys.append(key);
        self.values.append(value);
    }

    /// Appends tokens; `keys` and `values` are `[token][kv_heads][d]`.
    pub fn append_rows(&mut self, keys: &[f32], values: &[f32]) {
        self.keys.append_rows(keys);
        self.values.append_rows(values);
    }

    /// Number of tokens stored.
    pub fn tokens(&self) -> usize {
        self.keys.tokens()
    }

    /// Keeps the first `tokens` tokens, and reserves room for `capacity` tokens.
    pub fn truncate(&mut self, tokens: usize, capacity: usize) {
        self.keys.truncate(tokens, capacity);
        self.values.truncate(tokens, capacity);
    }

    /// The shape that it shares with other layers.
    pub fn shape(&self) -> KvShape {
        KvShape { kv_heads: self.keys.kv_heads(), d: self.keys.d(), dtype: self.keys.dtype() }
    }

    /// Number of bytes allocated.
    pub fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes()
    }

    /// Calls `visit` with keys and values of some tokens of a KV head.
    pub(super) fn show(&self, kv_head: usize, tokens: Range<usize>, visit: &mut dyn FnMut(Rows<'_>, Rows<'_>)) {
        let d = self.keys.d();
        visit(self.keys.head(kv_head).slice(tokens.clone(), d), self.values.head(kv_head).slice(tokens, d));
    }
}

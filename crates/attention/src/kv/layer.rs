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
    /// Room for `capacity` tokens; grows beyond it if need be.
    pub fn new(dtype: KvDtype, kv_heads: usize, d: usize, capacity: usize) -> Self {
        Self { keys: KvStore::new(dtype, kv_heads, d, capacity), values: KvStore::new(dtype, kv_heads, d, capacity) }
    }

    /// `tokens` tokens of nothing but zeros.
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

    /// Tokens stored.
    pub fn tokens(&self) -> usize {
        self.keys.tokens()
    }

    /// Keeps the first `tokens` tokens, and has room for `capacity` without growing.
    pub fn truncate(&mut self, tokens: usize, capacity: usize) {
        self.keys.truncate(tokens, capacity);
        self.values.truncate(tokens, capacity);
    }

    /// What it has in common with other layers.
    pub fn shape(&self) -> KvShape {
        KvShape { kv_heads: self.keys.kv_heads(), d: self.keys.d(), dtype: self.keys.dtype() }
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes()
    }

    /// Shows keys and values of some tokens of a KV head.
    pub(super) fn show(&self, kv_head: usize, tokens: Range<usize>, visit: &mut dyn FnMut(Rows<'_>, Rows<'_>)) {
        let d = self.keys.d();
        visit(self.keys.head(kv_head).slice(tokens.clone(), d), self.values.head(kv_head).slice(tokens, d));
    }
}

//! One KV head of a finished prefix, and the rank of its layer among the sparse layers.

use std::ops::Range;

use crate::PromptHead;
use crate::kv::{KvDtype, KvError, KvRows};
use crate::types::attention_spec::SoftmaxScale;
use crate::types::budget::Context;
use crate::types::positions::Rotation;
use crate::types::schedule::LayerShare;
use crate::types::scores::score_context;

/// One KV head of one layer of a finished prefix.
#[derive(Debug, Clone)]
pub struct HeadPrefix<'a> {
    /// Layer, from 0.
    pub layer: usize,
    /// Rank of the layer among the sparse layers.
    pub depth: SparseLayerRank,
    /// The model's rotation; `None` if its positions cannot be moved.
    pub rotation: Option<&'a dyn Rotation>,
    /// KV head, from 0.
    pub kv_head: usize,
    /// Rotated keys `[token][d]` of the prefix, read on demand.
    pub keys: KvRows<'a>,
    /// Values `[token][d]` of the prefix, read on demand.
    pub values: KvRows<'a>,
    /// Channels of a head.
    pub d: usize,
    /// Factor of the logits.
    pub scale: SoftmaxScale,
    /// The model's storage type of keys and values. Keys and values are presented in it, however the
    /// prefix is stored.
    pub dtype: KvDtype,
    /// Tokens that may be selected; the others are static.
    pub candidates: Range<usize>,
    /// The statistics that the method needs ([`Method::prompt_needs`](crate::Method::prompt_needs)).
    pub prompt: PromptHead<'a>,
    /// Seed of this example, layer and head.
    pub seed: u64,
}

impl<'a> HeadPrefix<'a> {
    /// Tokens in the prefix.
    pub fn tokens(&self) -> usize {
        self.keys.tokens()
    }

    /// Rotated keys of the candidates, read on demand.
    pub fn candidate_keys(&self) -> KvRows<'a> {
        self.keys.slice(self.candidates.clone())
    }

    /// Values of the candidates, read on demand.
    pub fn candidate_values(&self) -> KvRows<'a> {
        self.values.slice(self.candidates.clone())
    }

    /// Exact `q·k` of one query with a range of the prefix's tokens.
    ///
    /// # Errors
    /// If the keys cannot be read.
    pub fn scores(&self, query: &[f32], tokens: Range<usize>) -> Result<Vec<f32>, KvError> {
        let mut scores = vec![0.0; tokens.len()];
        score_context(query, self.keys.slice(tokens), &mut scores)?;
        Ok(scores)
    }

    /// The context that ends with the prefix, for methods that spend their budget at the end of prefill.
    pub fn context(&self) -> Context {
        Context::new(self.tokens(), &self.candidates).at(self.depth.share)
    }
}

/// Rank of a layer among the sparse layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SparseLayerRank {
    /// Number of sparse layers before it.
    pub rank: usize,
    /// Number of sparse layers.
    pub of: usize,
    /// The layer's share of the budget.
    pub share: LayerShare,
}

impl Default for SparseLayerRank {
    /// The rank of the only layer.
    fn default() -> Self {
        Self { rank: 0, of: 1, share: LayerShare::default() }
    }
}

/// Identifies one KV head, with the storage type and scale of its keys.
#[derive(Debug, Clone, Copy)]
pub struct KvHeadId {
    /// Layer, from 0.
    pub layer: usize,
    /// KV head, from 0.
    pub kv_head: usize,
    /// Channels of a head.
    pub d: usize,
    /// Factor of the logits.
    pub scale: SoftmaxScale,
    /// Storage type of keys and values.
    pub dtype: KvDtype,
}

impl From<&HeadPrefix<'_>> for KvHeadId {
    fn from(prefix: &HeadPrefix<'_>) -> Self {
        Self { layer: prefix.layer, kv_head: prefix.kv_head, d: prefix.d, scale: prefix.scale, dtype: prefix.dtype }
    }
}

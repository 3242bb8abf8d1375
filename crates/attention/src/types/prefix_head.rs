//! One KV head of a finished prefix, and where its layer stands among the layers that are not dense.

use std::ops::Range;

use crate::PromptHead;
use crate::kv::KvDtype;
use crate::types::budget::Context;
use crate::types::positions::Rotation;
use crate::types::schedule::LayerShare;
use crate::types::scores::score_into;
use spattn_kernels::Rows;

/// One KV head of one layer of a finished prefix.
#[derive(Debug, Clone)]
pub struct HeadPrefix<'a> {
    /// Layer, from 0.
    pub layer: usize,
    /// Where the layer stands among those that are not dense.
    pub depth: SparseLayerRank,
    /// How the model's positions are moved; `None` where no turn leads from one to another.
    pub rotation: Option<&'a dyn Rotation>,
    /// KV head, from 0.
    pub kv_head: usize,
    /// Rotated keys `[token][d]` of the whole prefix.
    pub keys: Rows<'a>,
    /// Values `[token][d]` of the whole prefix.
    pub values: Rows<'a>,
    /// Width of a head.
    pub d: usize,
    /// Storage type of keys and values.
    pub dtype: KvDtype,
    /// Tokens that may be picked; the others are attended anyway.
    pub candidates: Range<usize>,
    /// What the method asked for by [`Method::prompt_needs`].
    pub prompt: PromptHead<'a>,
    /// Seed of this example, layer and head.
    pub seed: u64,
}

impl HeadPrefix<'_> {
    /// Exact `q·k` of one query with some tokens of the prefix.
    pub fn scores(&self, query: &[f32], tokens: Range<usize>) -> Vec<f32> {
        let mut scores = vec![0.0; tokens.len()];
        score_into(query, self.keys.slice(tokens, self.d), self.d, &mut scores);
        scores
    }

    /// The prefix as a context, for methods that spend their budget when it ends.
    pub fn context(&self) -> Context {
        Context::new(self.keys.elements() / self.d, &self.candidates).at(self.depth.share)
    }
}

/// Where a layer stands among those that are not dense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SparseLayerRank {
    /// Layers before it, dense ones left out.
    pub rank: usize,
    /// Layers that are not dense.
    pub of: usize,
    /// What it is given of a budget.
    pub share: LayerShare,
}

impl Default for SparseLayerRank {
    /// The only layer.
    fn default() -> Self {
        Self { rank: 0, of: 1, share: LayerShare::default() }
    }
}

/// One KV head, and how its keys are stored.
#[derive(Debug, Clone, Copy)]
pub struct KvHeadId {
    /// Layer, from 0.
    pub layer: usize,
    /// KV head, from 0.
    pub kv_head: usize,
    /// Width of a head.
    pub d: usize,
    /// Storage type of keys and values.
    pub dtype: KvDtype,
}

impl From<&HeadPrefix<'_>> for KvHeadId {
    fn from(prefix: &HeadPrefix<'_>) -> Self {
        Self { layer: prefix.layer, kv_head: prefix.kv_head, d: prefix.d, dtype: prefix.dtype }
    }
}

//! The statistics of the prefix's own attention that a method may ask for.

use crate::types::prompt_shape::PromptShape;
use spattn_base::memory::product;

/// One statistic of the prefix's own attention that a method asks for. "Query" means a rotated, unscaled query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PromptNeed {
    /// The queries of the last `n` tokens, or of all tokens if the prefix is shorter.
    LastQueries(usize),
    /// The queries of `n` evenly spread tokens, or of all tokens if the prefix is shorter.
    SampledQueries(usize),
    /// For each token and query head, the sum of the softmax weights it received from all queries of the prefix, its own included.
    AttentionMass,
    /// For each token and KV head, the mean of `q·k` (unscaled) of its key with the queries of the next `n` tokens.
    FollowingScores(usize),
}

impl PromptNeed {
    /// Bytes kept for a prefix of this shape, if no longer prefix is planned.
    pub fn bytes(self, shape: &PromptShape) -> usize {
        let numbers = match self {
            Self::LastQueries(n) | Self::SampledQueries(n) => product([n.min(shape.tokens), shape.heads, shape.d]),
            Self::AttentionMass => product([shape.tokens, shape.heads]),
            Self::FollowingScores(_) => product([shape.tokens, shape.kv_heads]),
        };
        product([shape.layers, numbers, size_of::<f32>()])
    }

    /// Positions of the tokens whose queries are kept, ascending; none for needs that keep no queries.
    pub(super) fn query_positions(self, tokens: usize) -> Vec<u32> {
        match self {
            Self::LastQueries(n) => (tokens.saturating_sub(n) as u32..tokens as u32).collect(),
            Self::SampledQueries(n) if n < tokens => {
                // The middle of each of `n` equal parts.
                (0..n).map(|i| ((2 * i + 1) * tokens / (2 * n)) as u32).collect()
            }
            Self::SampledQueries(_) => (0..tokens as u32).collect(),
            Self::AttentionMass | Self::FollowingScores(_) => Vec::new(),
        }
    }
}

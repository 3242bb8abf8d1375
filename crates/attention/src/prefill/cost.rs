//! The cost of a block of query rows at one layer, and the layout of its queries.

use std::ops::Range;

use rayon::prelude::*;

use crate::cost::Cost;

/// Cost of a block at one layer, the number of tokens that each query head attended, and the number in context, summed
/// over rows.
pub(crate) struct BlockCost {
    pub(super) cost: Cost,
    pub(super) attended: Vec<usize>,
    pub(super) context: usize,
}

impl BlockCost {
    /// The cost of planning a mask for `heads` query heads.
    pub(crate) fn planning(cost: Cost, heads: usize) -> Self {
        Self { cost, attended: vec![0; heads], context: 0 }
    }

    /// Adds the cost of scoring.
    pub(crate) fn with(mut self, scoring: Cost) -> Self {
        self.cost += scoring;
        self
    }

    /// The cost of attention over `rows` rows, without bytes.
    pub(crate) fn new(attended: Vec<usize>, context: usize, rows: usize, d: usize) -> Self {
        let (all, of_full) = (attended.iter().sum::<usize>() as u64, (attended.len() * context) as u64);
        let cost = Cost {
            steps: (attended.len() * rows) as u64,
            context_tokens: of_full,
            attended_tokens: all,
            attend_flops: 4 * d as u64 * all,
            full_flops: 4 * d as u64 * of_full,
            ..Cost::default()
        };
        Self { cost, attended, context }
    }
}

/// Returns the rows `[row][head][d]` of some heads as `[head][row][d]`.
pub(crate) fn by_head(queries: &[f32], heads: usize, d: usize, some: Range<usize>) -> Vec<f32> {
    some.flat_map(|head| queries.chunks_exact(heads * d).flat_map(move |row| &row[head * d..][..d])).copied().collect()
}

/// Splits queries `[row][head][d]` of `heads` heads by KV head: `[head of its group][row][d]` for each. `(kv_heads, d)`
/// are the number of KV heads and the channels of a head.
pub(crate) fn queries_by_group(queries: &[f32], heads: usize, (kv_heads, d): (usize, usize)) -> Vec<Vec<f32>> {
    let group = heads / kv_heads;
    let of = |kv_head: usize| by_head(queries, heads, d, kv_head * group..(kv_head + 1) * group);
    (0..kv_heads).into_par_iter().map(of).collect()
}

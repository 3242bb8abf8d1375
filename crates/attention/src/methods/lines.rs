//! Vertical and diagonal lines of a prompt's attention map, found by the attention of its last queries; and block maps.
//!
//! A vertical is a token that all later rows attend; a slash is a distance at which every row attends one token
//! (MInference, Jiang et al. 2024, §3.2 and Algorithm 2).

use std::ops::Range;

use rayon::prelude::*;

use crate::cost::Cost;
use crate::prefill::lines::vote_flops;
use crate::types::scores::{FEW_QUERIES, score_into};
use crate::{AddedLines, LineVotes, Mask, Policy, QueryBlock};
use spattn_kernels::Rows;

/// Votes of the last `count` queries (or all) of one head of the group; `prompt` must contain these rows.
pub(super) fn votes_of_last(prompt: &QueryBlock<'_>, head: usize, count: usize, cost: &mut Cost) -> LineVotes {
    let mut votes = LineVotes::none(prompt.end());
    each_last_attention(prompt, head, count, cost, |position, weights| votes.take(position, weights));
    votes
}

/// Calls `find` for each query head of a group, in parallel, and adds the costs.
pub(crate) fn of_each_head<T: Send>(
    group: usize,
    cost: &mut Cost,
    find: impl Fn(usize, &mut Cost) -> T + Sync,
) -> Vec<T> {
    let of_head = |head: usize| {
        let mut own = Cost::default();
        (find(head, &mut own), own)
    };
    let (found, costs): (Vec<T>, Vec<Cost>) = (0..group).into_par_iter().map(of_head).unzip();
    costs.into_iter().for_each(|own| *cost += own);
    found
}

/// Calls `visit` with the position of each of the last `count` queries of a head, ascending, and with its softmax
/// weights over all tokens up to itself. Counts the FLOPs.
pub(super) fn each_last_attention(
    prompt: &QueryBlock<'_>,
    head: usize,
    count: usize,
    cost: &mut Cost,
    mut visit: impl FnMut(usize, &[f32]),
) {
    let (d, tokens) = (prompt.d, prompt.end());
    let first = tokens.saturating_sub(count).max(prompt.first);
    let mut logits = vec![0.0; tokens * FEW_QUERIES.min(tokens - first)];
    for together in (first..tokens).step_by(FEW_QUERIES) {
        // Several queries in one pass, so that keys are converted to f32 once for them.
        let rows = FEW_QUERIES.min(tokens - together);
        let queries = &prompt.head(head)[(together - prompt.first) * d..][..rows * d];
        score_into(queries, prompt.keys.slice(0..tokens, d), d, &mut logits[..rows * tokens]);
        for (position, logits) in (together..).zip(logits.chunks_exact_mut(tokens).take(rows)) {
            let seen = &mut logits[..position + 1];
            softmax(seen, prompt.scale.factor());
            visit(position, seen);
        }
    }
    cost.score_flops += vote_flops(tokens - first, tokens, d);
}

/// Softmax of scaled logits, in place.
pub(super) fn softmax(logits: &mut [f32], scale: f32) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter_mut().for_each(|x| *x = ((*x - max) * scale).exp());
    let sum: f32 = logits.iter().sum();
    logits.iter_mut().for_each(|x| *x /= sum);
}

/// Returns the indexes of `range` by score, the best first; of equal scores, the lower index first.
pub(crate) fn ranked(scores: &[f32], range: Range<usize>) -> Vec<u32> {
    let mut order: Vec<u32> = (range.start as u32..range.end.max(range.start) as u32).collect();
    order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
    order
}

/// Returns the first `count` of the [`ranked`] indexes of `range`, in any order.
pub(crate) fn best(scores: &[f32], range: Range<usize>, count: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (range.start as u32..range.end.max(range.start) as u32).collect();
    if count < order.len() {
        let score = |index: &u32| scores[*index as usize];
        order.select_nth_unstable_by(count, |a, b| score(b).total_cmp(&score(a)).then(a.cmp(b)));
        order.truncate(count);
    }
    order
}

/// The static tokens of a prompt: the sink, and for each row a window of the last tokens up to itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Static {
    /// Number of sink tokens.
    pub(super) sink: usize,
    /// Tokens of a row's window, the row's own included; at least 1.
    pub(super) window: usize,
}

impl Static {
    /// The static tokens by the policy, in a prompt of `tokens` tokens.
    pub(super) fn new(policy: &Policy, tokens: usize) -> Self {
        Self { sink: policy.sink.min(tokens), window: policy.local.max(1) }
    }

    /// First token of the window of the row at `position`.
    pub(super) fn start(self, position: usize) -> usize {
        (position + 1).saturating_sub(self.window)
    }

    /// Number of static tokens of the row at `position`.
    pub(super) fn tokens(self, position: usize) -> usize {
        position + 1 - self.picked(position).len()
    }

    /// Candidates of the row at `position`: tokens that it attends only if they are selected.
    pub(super) fn picked(self, position: usize) -> Range<usize> {
        let start = self.start(position);
        self.sink.min(start)..start
    }

    /// First token of the window of each row of a block.
    pub(super) fn starts(self, block: &QueryBlock<'_>) -> Vec<usize> {
        (block.first..block.first + block.rows).map(|position| self.start(position)).collect()
    }

    /// Mask of the static tokens alone.
    pub(super) fn mask(self, block: &QueryBlock<'_>) -> Mask {
        let sinks = 0..self.sink.min(block.first + block.rows) as u32;
        Mask::new(sinks.collect(), self.starts(block))
    }
}

/// Number of query-token pairs in dense causal attention over a prompt.
pub(super) fn all_pairs(tokens: usize) -> usize {
    tokens * (tokens + 1) / 2
}

/// Lines of one attention map; the sink and the window are among them.
pub(super) struct Lines {
    /// Tokens, ascending, with the sink.
    vertical: Vec<u32>,
    /// Distances beyond the window, ascending.
    slashes: Vec<usize>,
    fixed: Static,
}

impl Lines {
    /// The given verticals and slashes, with the static tokens.
    pub(super) fn new(vertical: &[u32], slashes: &[u32], fixed: Static) -> Self {
        let mut vertical: Vec<u32> = (0..fixed.sink as u32).chain(vertical.iter().copied()).collect();
        let mut slashes: Vec<usize> = slashes.iter().map(|offset| *offset as usize).collect();
        vertical.sort_unstable();
        slashes.sort_unstable();
        Self { vertical, slashes, fixed }
    }

    /// The lines without the window.
    pub(super) fn into_added(self) -> AddedLines {
        AddedLines { vertical: self.vertical, slashes: self.slashes }
    }

    /// Number of pairs of a query and a token on the lines, in a prompt of `tokens` tokens. A vertical and a slash
    /// share one pair, or none if they would meet past the end of the prompt.
    pub(super) fn pairs(&self, tokens: usize) -> usize {
        let offsets = || (0..self.fixed.window.min(tokens)).chain(self.slashes.iter().copied());
        let on_vertical: usize = self.vertical.iter().map(|token| tokens - *token as usize).sum();
        let on_slashes: usize = offsets().map(|offset| tokens - offset).sum();
        let met = |offset: usize| self.vertical.partition_point(|token| (*token as usize) < tokens - offset);
        on_vertical + on_slashes - offsets().map(met).sum::<usize>()
    }

    /// The mask of a block of rows.
    pub(super) fn mask(&self, block: &QueryBlock<'_>) -> Mask {
        let end = block.first + block.rows;
        let seen = self.vertical.partition_point(|token| (*token as usize) < end);
        let reach = self.slashes.partition_point(|offset| *offset < end);
        Mask {
            slashes: self.slashes[..reach].to_vec(),
            ..Mask::new(self.vertical[..seen].to_vec(), self.fixed.starts(block))
        }
    }
}

/// Smallest block size: the cost of the block-wise estimate is quadratic in the number of blocks.
pub(super) const LEAST_BLOCK: usize = 8;

/// Means of every `size` rows `[row][d]`; the last mean may be over fewer.
pub(super) fn pooled(rows: &[f32], size: usize, d: usize) -> Vec<f32> {
    let mean = |block: &[f32]| {
        let mut mean = vec![0.0; d];
        block.chunks_exact(d).for_each(|row| mean.iter_mut().zip(row).for_each(|(sum, x)| *sum += x));
        let count = (block.len() / d) as f32;
        mean.iter_mut().for_each(|x| *x /= count);
        mean
    };
    rows.chunks(size * d).flat_map(mean).collect()
}

/// Block-wise estimate of an attention map: softmax of each mean query over the mean keys up to its own block,
/// `[block][..=block]` (MInference's Algorithm 3, FlexPrefill's Algorithm 4).
pub(super) fn block_attention(prompt: &QueryBlock<'_>, head: usize, size: usize, cost: &mut Cost) -> Vec<Vec<f32>> {
    let d = prompt.d;
    let keys = pooled(&prompt.keys.slice(0..prompt.rows, d).to_f32(), size, d);
    let queries = pooled(prompt.head(head), size, d);
    let row = |(block, query): (usize, &[f32])| {
        let mut scores = vec![0.0; block + 1];
        score_into(query, Rows::F32(&keys[..(block + 1) * d]), d, &mut scores);
        cost.score_flops += 2 * ((block + 1) * d) as u64;
        softmax(&mut scores, prompt.scale.factor());
        scores
    };
    queries.chunks_exact(d).enumerate().map(row).collect()
}

/// Key blocks that each block of queries attends, beside the static tokens.
pub(super) struct BlockMap {
    /// Key blocks of each block of queries, ascending.
    blocks: Vec<Vec<u32>>,
    size: usize,
    fixed: Static,
}

impl BlockMap {
    /// A map of blocks of `size` tokens from pairs of a query block and a key block, in any order.
    pub(super) fn new(pairs: &[(u32, u32)], size: usize, tokens: usize, fixed: Static) -> Self {
        let mut blocks = vec![Vec::new(); tokens.div_ceil(size)];
        pairs.iter().for_each(|(of_queries, of_keys)| blocks[*of_queries as usize].push(*of_keys));
        blocks.iter_mut().for_each(|keys| keys.sort_unstable());
        Self { blocks, size, fixed }
    }

    /// Number of pairs of a query and a token that a pair of blocks adds to the static tokens.
    pub(super) fn added((of_queries, of_keys): (u32, u32), size: usize, tokens: usize, fixed: Static) -> usize {
        let within = |block: u32| block as usize * size..((block as usize + 1) * size).min(tokens);
        let keys = within(of_keys);
        let seen = |position: usize| {
            let picked = fixed.picked(position);
            keys.end.min(picked.end).saturating_sub(keys.start.max(picked.start))
        };
        within(of_queries).map(seen).sum()
    }

    /// The mask of a block of rows, which has to lie within one block of this map.
    pub(super) fn mask(&self, block: &QueryBlock<'_>) -> Mask {
        let (sink, end) = (self.fixed.sink, block.first + block.rows);
        let tokens = |keys: &u32| *keys as usize * self.size..((*keys as usize + 1) * self.size).min(end);
        let picked = self.blocks[block.first / self.size].iter().flat_map(tokens).filter(|token| *token >= sink);
        let common = (0..sink.min(end)).chain(picked).map(|token| token as u32).collect();
        Mask::new(common, self.fixed.starts(block))
    }
}

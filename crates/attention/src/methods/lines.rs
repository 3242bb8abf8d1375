//! Vertical and diagonal lines of a prompt's attention map, found by the attention of its last queries.
//!
//! A vertical line is a token that all later ones attend, a slash a distance at which each token attends one
//! (MInference, Jiang et al. 2024, §3.2 and Algorithm 2).

use std::ops::Range;

use rayon::prelude::*;

use crate::cost::Cost;
use crate::types::scores::{FEW_QUERIES, score_into};
use crate::{Mask, Policy, QueryBlock};
use spattn_kernels::Rows;

/// Attention that some of the last queries of one query head give to lines, summed over them.
pub(crate) struct LineVotes {
    /// By token.
    pub(super) vertical: Vec<f32>,
    /// By distance from the query back to the token.
    pub(super) slash: Vec<f32>,
}

impl LineVotes {
    /// Of no query, over so many tokens.
    pub(super) fn none(tokens: usize) -> Self {
        Self { vertical: vec![0.0; tokens], slash: vec![0.0; tokens] }
    }

    /// Adds what the query at `position` gives to the tokens up to itself.
    pub(super) fn take(&mut self, position: usize, weights: &[f32]) {
        for (token, weight) in weights.iter().enumerate() {
            self.vertical[token] += weight;
            self.slash[position - token] += weight;
        }
    }

    /// Of the last `count` queries of a head of the prompt's group, or of all if there are fewer.
    pub(super) fn of_last(prompt: &QueryBlock<'_>, head: usize, count: usize, cost: &mut Cost) -> Self {
        let mut votes = Self::none(prompt.rows);
        each_last_attention(prompt, head, count, cost, |position, weights| votes.take(position, weights));
        votes
    }

    /// What several heads give together.
    pub(super) fn add(mut self, other: &Self) -> Self {
        let add = |sums: &mut [f32], more: &[f32]| sums.iter_mut().zip(more).for_each(|(sum, x)| *sum += x);
        add(&mut self.vertical, &other.vertical);
        add(&mut self.slash, &other.slash);
        self
    }
}

/// What `find` finds for each query head of a group, in parallel; adds what that costs.
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

/// Calls `visit` with the positions of the last `count` queries of a head, ascending, and the softmax of each over all
/// tokens up to itself.
pub(super) fn each_last_attention(
    prompt: &QueryBlock<'_>,
    head: usize,
    count: usize,
    cost: &mut Cost,
    mut visit: impl FnMut(usize, &[f32]),
) {
    let (d, tokens) = (prompt.d, prompt.rows);
    let first = tokens.saturating_sub(count);
    let mut logits = vec![0.0; tokens * FEW_QUERIES.min(tokens - first)];
    for together in (first..tokens).step_by(FEW_QUERIES) {
        // Keys are widened once for all of them.
        let rows = FEW_QUERIES.min(tokens - together);
        let queries = &prompt.head(head)[together * d..][..rows * d];
        score_into(queries, prompt.keys.slice(0..tokens, d), d, &mut logits[..rows * tokens]);
        for (position, logits) in (together..).zip(logits.chunks_exact_mut(tokens).take(rows)) {
            let seen = &mut logits[..position + 1];
            softmax(seen, prompt.scale.factor());
            visit(position, seen);
        }
    }
    cost.score_flops += 2 * ((tokens - first) * tokens * d) as u64;
}

/// Softmax of scaled logits, in place.
pub(super) fn softmax(logits: &mut [f32], scale: f32) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter_mut().for_each(|x| *x = ((*x - max) * scale).exp());
    let sum: f32 = logits.iter().sum();
    logits.iter_mut().for_each(|x| *x /= sum);
}

/// Numbers of a range by their scores, the best first, the lower of equals.
pub(crate) fn ranked(scores: &[f32], range: Range<usize>) -> Vec<u32> {
    let mut order: Vec<u32> = (range.start as u32..range.end.max(range.start) as u32).collect();
    order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
    order
}

/// What is attended of a prompt whatever is picked, as every method of a run has it: sinks, and for each row the last
/// tokens up to itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Static {
    /// First tokens.
    pub(super) sink: usize,
    /// Last tokens up to a row, its own included; at least 1.
    pub(super) window: usize,
}

impl Static {
    /// By the policy, in a prompt of so many tokens.
    pub(super) fn new(policy: &Policy, tokens: usize) -> Self {
        Self { sink: policy.sink.min(tokens), window: policy.local.max(1) }
    }

    /// First token of the window of a row.
    pub(super) fn start(self, position: usize) -> usize {
        (position + 1).saturating_sub(self.window)
    }

    /// How many tokens a row sees by this.
    pub(super) fn tokens(self, position: usize) -> usize {
        position + 1 - self.picked(position).len()
    }

    /// Tokens that a row sees only if they are picked.
    pub(super) fn picked(self, position: usize) -> Range<usize> {
        let start = self.start(position);
        self.sink.min(start)..start
    }

    /// The stretches of a block's rows.
    pub(super) fn starts(self, block: &QueryBlock<'_>) -> Vec<usize> {
        (block.first..block.first + block.rows).map(|position| self.start(position)).collect()
    }

    /// What a block's rows attend by this alone.
    pub(super) fn mask(self, block: &QueryBlock<'_>) -> Mask {
        let sinks = 0..self.sink.min(block.first + block.rows) as u32;
        Mask::new(sinks.collect(), self.starts(block))
    }
}

/// Pairs of a query and a token up to it, which full attention over a prompt has.
pub(super) fn all_pairs(tokens: usize) -> usize {
    tokens * (tokens + 1) / 2
}

/// Lines of one attention map, sinks and window among them.
pub(super) struct Lines {
    /// Tokens, ascending, sinks included.
    vertical: Vec<u32>,
    /// Distances, ascending, none of them within the window.
    slashes: Vec<usize>,
    fixed: Static,
}

impl Lines {
    /// The first so many of ranked verticals and slashes, beside what is static.
    pub(super) fn new(vertical: &[u32], slashes: &[u32], fixed: Static) -> Self {
        let mut vertical: Vec<u32> = (0..fixed.sink as u32).chain(vertical.iter().copied()).collect();
        let mut slashes: Vec<usize> = slashes.iter().map(|offset| *offset as usize).collect();
        vertical.sort_unstable();
        slashes.sort_unstable();
        Self { vertical, slashes, fixed }
    }

    /// Pairs of a query and a token that lie on a line of a prompt of so many tokens. A vertical and a slash share one
    /// pair, or none if they meet behind its end.
    pub(super) fn pairs(&self, tokens: usize) -> usize {
        let offsets = || (0..self.fixed.window.min(tokens)).chain(self.slashes.iter().copied());
        let on_vertical: usize = self.vertical.iter().map(|token| tokens - *token as usize).sum();
        let on_slashes: usize = offsets().map(|offset| tokens - offset).sum();
        let met = |offset: usize| self.vertical.partition_point(|token| (*token as usize) < tokens - offset);
        on_vertical + on_slashes - offsets().map(met).sum::<usize>()
    }

    /// What the rows of a block attend.
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

/// Fewest tokens a block: the estimate of a map by blocks is square in their number.
pub(super) const LEAST_BLOCK: usize = 8;

/// Means of every `size` rows `[row][d]`; the last is of those that are left.
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

/// Attention of each mean query to the mean keys up to its own block, `[block][..=block]`: the block-wise estimate of an
/// attention map (MInference's Algorithm 3, FlexPrefill's Algorithm 4).
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

/// Key blocks that each block of queries attends, beside what is static.
pub(super) struct BlockMap {
    /// For each block of queries, ascending.
    blocks: Vec<Vec<u32>>,
    size: usize,
    fixed: Static,
}

impl BlockMap {
    /// Of blocks of `size` tokens, given by pairs of a query block and a key block, in any order.
    pub(super) fn new(pairs: &[(u32, u32)], size: usize, tokens: usize, fixed: Static) -> Self {
        let mut blocks = vec![Vec::new(); tokens.div_ceil(size)];
        pairs.iter().for_each(|(of_queries, of_keys)| blocks[*of_queries as usize].push(*of_keys));
        blocks.iter_mut().for_each(|keys| keys.sort_unstable());
        Self { blocks, size, fixed }
    }

    /// Pairs of a query and a token that a pair of blocks adds to what is static.
    pub(super) fn added((of_queries, of_keys): (u32, u32), size: usize, tokens: usize, fixed: Static) -> usize {
        let within = |block: u32| block as usize * size..((block as usize + 1) * size).min(tokens);
        let keys = within(of_keys);
        let seen = |position: usize| {
            let picked = fixed.picked(position);
            keys.end.min(picked.end).saturating_sub(keys.start.max(picked.start))
        };
        within(of_queries).map(seen).sum()
    }

    /// What the rows of a block attend; it lies within one block of this map.
    pub(super) fn mask(&self, block: &QueryBlock<'_>) -> Mask {
        let (sink, end) = (self.fixed.sink, block.first + block.rows);
        let tokens = |keys: &u32| *keys as usize * self.size..((*keys as usize + 1) * self.size).min(end);
        let picked = self.blocks[block.first / self.size].iter().flat_map(tokens).filter(|token| *token >= sink);
        let common = (0..sink.min(end)).chain(picked).map(|token| token as u32).collect();
        Mask::new(common, self.fixed.starts(block))
    }
}

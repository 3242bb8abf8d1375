//! `minference`: prefill by the pattern that keeps most of a head's attention: A-shape, vertical-slash or block-sparse
//! (MInference, Jiang et al. 2024).
//!
//! Each query head chooses among three patterns with the same number of pairs of a query and a token:
//! - A-shape: the sink and a wider window.
//! - Vertical-slash: as many tokens as distances, by the votes of the last `snapshot` queries (Algorithm 2).
//! - Block-sparse: for each block of queries its best key blocks, by the means of both (Algorithm 3).
//!
//! A head takes the pattern that keeps most of the attention of those last queries; of equal ones, the first listed.
//! Nothing is stored: decoding is dense.
//!
//! Decisions where the paper leaves room:
//! - The authors choose a head's pattern once for a model, by the output's error on one example (Algorithm 1). Here it
//!   is chosen for each prompt, by the attention of its last queries that it keeps, so no calibration is needed.
//! - Equal cost means an equal number of pairs, counted exactly: as many as rows that attend `k` tokens beyond sink and
//!   window have, or as a density allows. The paper's search space has its own sizes for each pattern.
//! - Lines are single tokens; blocks are cut from the first token on.

use std::sync::Arc;

use super::ParamInfo;
use super::lines::{
    BlockMap, LEAST_BLOCK, Lines, Static, all_pairs, block_attention, each_last_attention, of_each_head, ranked,
};
use super::prefill_only::PrefillOnly;
use crate::cost::Cost;
use crate::kv::MOST_TOKENS;
use crate::methods::{MethodEntry, Preset};
use crate::{LineVotes, Mask, Masks, PromptMask, PromptPlan, QueryBlock, Role, Tuned, least_reaching};

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "minference",
    role: Role::Method,
    about: "for each head A-shape, vertical-slash or block-sparse, whichever keeps most of its attention",
    reference: "MInference (Jiang et al. 2024, arXiv:2407.02490)",
    params: &[
        ParamInfo { key: "k", default: "1024", about: "tokens a row attends beyond the static ones, on average" },
        ParamInfo { key: "snapshot", default: "64", about: "last queries of the prompt, whose attention decides" },
        ParamInfo { key: "block", default: "64", about: "tokens a block of the block-sparse pattern, from 8" },
    ],
    presets: &[Preset {
        name: "repo",
        values: &[("k", "7096"), ("snapshot", "64"), ("block", "64"), ("sink", "30"), ("local", "100")],
        source: "MInference's code: its default head has 1,000 verticals, 6,096 slashes, 64 last queries and blocks of 64",
    }],
    build: |params| {
        let k = params.tuned_within("k", 1024, 1..=MOST_TOKENS)?;
        let snapshot = params.get_minor("snapshot", 64)?;
        let block = params.get_minor_within("block", 64, LEAST_BLOCK..=MOST_TOKENS)?;
        Ok(Arc::new(PrefillOnly(MInference { k, snapshot, block })))
    },
};

/// Sparse prefill in which each head takes one of three patterns.
struct MInference {
    k: Tuned<usize>,
    snapshot: usize,
    block: usize,
}

/// The pattern of one head.
enum Pattern {
    /// The sink and a window alone.
    AShape(Static),
    VerticalSlash(Lines),
    BlockSparse(BlockMap),
}

impl Pattern {
    fn mask(&self, block: &QueryBlock<'_>) -> Mask {
        match self {
            Self::AShape(fixed) => fixed.mask(block),
            Self::VerticalSlash(lines) => lines.mask(block),
            Self::BlockSparse(map) => map.mask(block),
        }
    }

    /// The attention of the last queries that the pattern keeps; `attention` lists their positions and weights.
    fn kept(&self, prompt: &QueryBlock<'_>, attention: &[(usize, Vec<f32>)]) -> f64 {
        let of_row = |(position, weights): &(usize, Vec<f32>)| {
            let row = QueryBlock { queries: &[], rows: 1, first: *position, ..prompt.clone() };
            let tokens = self.mask(&row).row_tokens(*position, *position);
            tokens.iter().map(|token| f64::from(weights[*token as usize])).sum::<f64>()
        };
        attention.iter().map(of_row).sum()
    }
}

impl MInference {
    /// Number of pairs of a query and a token that each pattern should have.
    fn pairs(&self, tokens: usize, fixed: Static) -> f64 {
        match self.k {
            Tuned::Density(density) => density * all_pairs(tokens) as f64,
            Tuned::Value(k) => {
                let of_row = |position: usize| (fixed.tokens(position) + k).min(position + 1);
                (0..tokens).map(of_row).sum::<usize>() as f64
            }
        }
    }

    /// The three patterns of one head, in the order of the module's list.
    fn patterns(
        &self,
        prompt: &QueryBlock<'_>,
        votes: &LineVotes,
        estimate: &[Vec<f32>],
        (wanted, fixed): (f64, Static),
    ) -> [Pattern; 3] {
        let tokens = prompt.rows;
        let wider = |more: usize| Static { window: fixed.window + more, ..fixed };
        let in_window = |more: usize| (0..tokens).map(|position| wider(more).tokens(position)).sum::<usize>() as f64;
        let more = least_reaching(0..=tokens, wanted, in_window);

        let vertical = ranked(&votes.vertical, fixed.sink..tokens);
        let slashes = ranked(&votes.slash, fixed.window.min(tokens)..tokens);
        let lines = |count: usize| {
            Lines::new(&vertical[..count.min(vertical.len())], &slashes[..count.min(slashes.len())], fixed)
        };
        let count = least_reaching(0..=tokens, wanted, |count| lines(count).pairs(tokens) as f64);

        [
            Pattern::AShape(wider(more)),
            Pattern::VerticalSlash(lines(count)),
            Pattern::BlockSparse(self.best_blocks(estimate, tokens, (wanted, fixed))),
        ]
    }

    /// Gives each block of queries equally many of its best key blocks: as many as bring the pairs nearest to `wanted`.
    fn best_blocks(&self, estimate: &[Vec<f32>], tokens: usize, (wanted, fixed): (f64, Static)) -> BlockMap {
        // For each rank, the block pairs of that rank, one for each block of queries that has as many key blocks.
        let mut by_rank: Vec<Vec<(u32, u32)>> = vec![Vec::new(); estimate.len()];
        for (queries, scores) in (0..).zip(estimate) {
            let keys = ranked(scores, 0..scores.len());
            keys.into_iter().zip(&mut by_rank).for_each(|(keys, pairs)| pairs.push((queries, keys)));
        }
        let mut sum = (0..tokens).map(|position| fixed.tokens(position)).sum::<usize>() as f64;
        let is_near = |pairs: &&Vec<(u32, u32)>| {
            let more: usize = pairs.iter().map(|pair| BlockMap::added(*pair, self.block, tokens, fixed)).sum();
            sum += more as f64;
            sum - more as f64 / 2.0 <= wanted
        };
        let picked: Vec<(u32, u32)> = by_rank.iter().take_while(is_near).flatten().copied().collect();
        BlockMap::new(&picked, self.block, tokens, fixed)
    }
}

impl PromptMask for MInference {
    fn query_rows(&self) -> usize {
        self.block
    }

    fn plan<'p>(&'p self, prompt: &QueryBlock<'p>, cost: &mut Cost) -> PromptPlan<'p> {
        let fixed = Static::new(prompt.policy, prompt.rows);
        let budget = (self.pairs(prompt.rows, fixed), fixed);
        let pattern = |head: usize, cost: &mut Cost| {
            let (mut attention, mut votes) = (Vec::new(), LineVotes::none(prompt.rows));
            each_last_attention(prompt, head, self.snapshot, cost, |position, weights| {
                votes.take(position, weights);
                attention.push((position, weights.to_vec()));
            });
            let estimate = block_attention(prompt, head, self.block, cost);
            let patterns = self.patterns(prompt, &votes, &estimate, budget).map(|p| (p.kept(prompt, &attention), p));
            let better = |a: (f64, Pattern), b: (f64, Pattern)| if b.0 > a.0 { b } else { a };
            patterns.into_iter().reduce(better).expect("three patterns").1
        };
        let patterns: Vec<Pattern> = of_each_head(prompt.group, cost, pattern);
        Box::new(move |block| Masks::PerHead(patterns.iter().map(|pattern| pattern.mask(block)).collect()))
    }
}

#[cfg(test)]
mod tests {
    use crate::Policy;
    use crate::prefill::testing::{D, Layer, assert_sees, is_static, noise, plain, score_flops, softmax_up_to};
    use std::collections::BTreeSet;

    /// The tokens that each row sees, by position.
    type Rows = Vec<BTreeSet<usize>>;

    fn pairs(rows: &Rows) -> usize {
        rows.iter().map(BTreeSet::len).sum()
    }

    fn rows(tokens: usize, policy: &Policy, sees: impl Fn(usize, usize) -> bool) -> Rows {
        let row = |p: usize| (0..=p).filter(|t| is_static(policy, p, *t) || sees(p, *t)).collect();
        (0..tokens).map(row).collect()
    }

    fn best(sums: &[f64], first: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (first..sums.len()).collect();
        order.sort_by(|a, b| sums[*b].total_cmp(&sums[*a]));
        order
    }

    /// A-shape, vertical-slash and block-sparse with `wanted` pairs; sizes are tried one after the other.
    fn patterns(layer: &Layer, head: usize, wanted: usize, snapshot: usize, size: usize, policy: &Policy) -> [Rows; 3] {
        let n = layer.tokens();
        let first = |of: &dyn Fn(usize) -> Rows| (0..=n).map(of).find(|rows| pairs(rows) >= wanted).unwrap();
        let window = policy.local.max(1);
        let a_shape = first(&|more| rows(n, policy, |p, t| t + window + more > p));
        let (mut by_token, mut by_distance) = (vec![0.0; n], vec![0.0; n]);
        for position in n.saturating_sub(snapshot)..n {
            for (token, weight) in softmax_up_to(layer, position, head).into_iter().enumerate() {
                by_token[token] += weight;
                by_distance[position - token] += weight;
            }
        }
        let (vertical, slashes) = (best(&by_token, policy.sink.min(n)), best(&by_distance, window.min(n)));
        let lines = first(&|count| {
            let (vertical, slashes) = (&vertical[..count.min(vertical.len())], &slashes[..count.min(slashes.len())]);
            rows(n, policy, |p, t| vertical.contains(&t) || slashes.contains(&(p - t)))
        });
        let mean = |vectors: &[Vec<f32>]| -> Vec<f64> {
            (0..D).map(|c| vectors.iter().map(|x| f64::from(x[c])).sum::<f64>() / vectors.len() as f64).collect()
        };
        let queries: Vec<Vec<f32>> = (0..n).map(|p| layer.query(p, head).to_vec()).collect();
        let keys: Vec<Vec<f64>> = layer.keys(head).chunks(size).map(mean).collect();
        let ranks: Vec<Vec<usize>> = queries
            .chunks(size)
            .enumerate()
            .map(|(block, queries)| {
                let query = mean(queries);
                let score = |key: &Vec<f64>| query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>();
                best(&keys[..=block].iter().map(score).collect::<Vec<f64>>(), 0)
            })
            .collect();
        let blocks =
            |count: usize| rows(n, policy, |p, t| ranks[p / size].iter().take(count).any(|block| *block == t / size));
        let count = (0..keys.len()).find(|count| {
            let (less, more) = (pairs(&blocks(*count)) as f64, pairs(&blocks(count + 1)) as f64);
            (less + more) / 2.0 > wanted as f64
        });
        [a_shape, lines, blocks(count.unwrap_or(keys.len()))]
    }

    /// The pattern that keeps most of the attention of the last queries, with its number.
    fn chosen(layer: &Layer, head: usize, k: usize, snapshot: usize, size: usize, policy: &Policy) -> (usize, Rows) {
        let n = layer.tokens();
        let fixed = rows(n, policy, |_, _| false);
        let wanted = fixed.iter().enumerate().map(|(position, row)| (row.len() + k).min(position + 1)).sum();
        let kept = |rows: &Rows| -> f64 {
            (n.saturating_sub(snapshot)..n)
                .map(|position| {
                    let weights = softmax_up_to(layer, position, head);
                    rows[position].iter().map(|token| weights[*token]).sum::<f64>()
                })
                .sum()
        };
        let patterns = patterns(layer, head, wanted, snapshot, size, policy);
        let best = (0..3).reduce(|a, b| if kept(&patterns[b]) > kept(&patterns[a]) { b } else { a }).unwrap();
        (best, patterns[best].clone())
    }

    /// Checks all heads; returns the number of each head's pattern.
    fn check(layer: &Layer, (k, snapshot, size): (usize, usize, usize), policy: &Policy) -> Vec<usize> {
        let spec = format!("minference:k={k},snapshot={snapshot},block={size}");
        let by_head: Vec<(usize, Rows)> =
            (0..layer.heads).map(|head| chosen(layer, head, k, snapshot, size, policy)).collect();
        assert_sees(layer, &spec, policy, |head, position| plain(by_head[head].1[position].iter().copied()));
        by_head.into_iter().map(|(pattern, _)| pattern).collect()
    }

    #[test]
    fn a_head_has_the_pattern_that_keeps_most_of_its_attention() {
        for (tokens, heads, kv_heads) in [(120, 4, 2), (9, 2, 1)] {
            let layer = Layer::new(tokens, heads, kv_heads);
            for (settings, (sink, local)) in
                [((20, 64, 16), (4, 10)), ((33, 5, 8), (0, 0)), ((7, 1, 64), (2, 3)), ((500, 9, 11), (1, 1))]
            {
                check(&layer, settings, &Policy { sink, local, ..Policy::default() });
            }
        }
    }

    #[test]
    fn windows_lines_and_blocks_are_told_apart() {
        let (n, size) = (320, 16);
        let policy = Policy { sink: 2, local: 8, ..Policy::default() };
        let jitter = |t: usize| noise(D, t as u64).into_iter().map(|x| 0.02 * x);
        let vector = |t: usize, strong: &[(usize, f32)]| -> Vec<f32> {
            let mut x: Vec<f32> = jitter(t).collect();
            strong.iter().for_each(|(channel, value)| x[*channel] += value);
            x
        };
        // Vectors turn slowly with position: tokens nearby have large products, over more than half of the budget.
        let near = |t: usize| vector(t, &[(0, 4.0 * (t as f32 / 70.0).cos()), (1, 4.0 * (t as f32 / 70.0).sin())]);
        let turning: Vec<Vec<f32>> = (0..n).map(near).collect();
        assert_eq!(check(&Layer::of(&turning, &turning), (40, n, 64), &policy), [0], "a window");
        // One token in every other block, which all queries look for.
        let marked: Vec<Vec<f32>> = (0..n).map(|t| vector(t, &[(3, if t % 32 == 9 { 8.0 } else { 0.0 })])).collect();
        let looking: Vec<Vec<f32>> = (0..n).map(|t| vector(1000 + t, &[(3, 8.0)])).collect();
        assert_eq!(check(&Layer::of(&marked, &looking), (40, 64, size), &policy), [1], "lines");
        // Each block of queries looks for its own block, far away.
        let key = |t: usize| vector(t, &[(t / size % D, 9.0)]);
        let query = |t: usize| vector(2000 + t, &[((t / size * 5 + 3) % D, 9.0)]);
        let apart = Layer::of(&(0..n).map(key).collect::<Vec<_>>(), &(0..n).map(query).collect::<Vec<_>>());
        assert_eq!(check(&apart, (40, 64, size), &policy), [2], "blocks");
    }

    #[test]
    fn votes_and_estimates_are_paid_for() {
        let layer = Layer::new(150, 4, 2);
        let flops = |spec: &str| score_flops(&layer, spec, &Policy::default());
        assert_eq!(flops("minference:block=16"), 4 * (64 * 150 + 10 * 11 / 2) * 2 * D);
        assert_eq!(flops("minference:block=50,snapshot=9"), 4 * (9 * 150 + 3 * 4 / 2) * 2 * D);
    }
}

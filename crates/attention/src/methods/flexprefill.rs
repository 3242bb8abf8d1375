//! `flexprefill`: prefill by lines or blocks, as many as cover a share of a head's estimated attention (FlexPrefill, Lai et al. 2025).
//!
//! The last block of queries chooses the pattern (Algorithm 2). The softmax of its mean query over mean keys is compared with
//! the attention that its queries give to the same key blocks. If the square root of the Jensen-Shannon divergence is below
//! `tau`, the estimate is trusted for all blocks of queries, and block pairs are selected by it (Algorithm 4); otherwise
//! verticals and slashes are selected by the attention of the last queries (Algorithm 3). Either way the best are taken until
//! they cover a share `gamma` of the attention, together with sink and window. Nothing is stored: decoding is dense.
//!
//! Decisions where the paper leaves room:
//! - Lines are single tokens and distances, as in Algorithm 3; the authors' kernel rounds them to blocks.
//! - The estimate of Algorithm 4 is a causal softmax for each block of queries. The blocks of all rows compete, and
//!   each row of the estimate has the same weight. Logarithms are natural.
//! - At least `min_budget` verticals and as many slashes are selected, or blocks with as many tokens for each block of
//!   queries. The authors' code takes the union of both for heads with blocks.
//! - A density replaces `gamma`, and is met by each head; `min_budget` has no effect then.

use std::sync::Arc;

use super::ParamInfo;
use super::lines::{
    BlockMap, LEAST_BLOCK, Lines, Static, all_pairs, block_attention, of_each_head, pooled, ranked, softmax,
    votes_of_last,
};
use super::prefill_only::PrefillOnly;
use crate::cost::Cost;
use crate::kv::MOST_TOKENS;
use crate::methods::{MethodEntry, Preset};
use crate::types::scores::score_into;
use crate::{LineVotes, Mask, Masks, PromptMask, PromptPlan, QueryBlock, Role, Tuned};
use spattn_kernels::Rows;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "flexprefill",
    role: Role::Method,
    about: "for each head lines or blocks, as many as cover a share of its estimated attention",
    reference: "FlexPrefill (Lai et al. 2025, arXiv:2502.20766)",
    params: &[
        ParamInfo { key: "gamma", default: "0.9", about: "share of the estimated attention to cover, above 0 to 1" },
        ParamInfo {
            key: "tau",
            default: "0.1",
            about: "0 to 1: a head whose estimate is off by less than this goes by blocks, others by lines",
        },
        ParamInfo { key: "block", default: "128", about: "tokens a block, of queries and of keys, from 8" },
        ParamInfo { key: "min_budget", default: "0", about: "tokens picked at least, of either kind" },
    ],
    presets: &[Preset {
        name: "repo",
        values: &[("gamma", "0.9"), ("tau", "0.1"), ("block", "128"), ("min_budget", "1024")],
        source: "FlexPrefill's code, ops/flex_prefill_attention.py: its example's settings",
    }],
    build: |params| {
        const SHARE: &str = "a number above 0 and up to 1";
        let gamma = params.tuned("gamma", 0.9, SHARE)?;
        if let Tuned::Value(gamma) = gamma
            && !(gamma > 0.0 && gamma <= 1.0)
        {
            return Err(params.bad_value("gamma", &gamma.to_string(), SHARE));
        }
        let tau: f64 = params.get_minor_as("tau", 0.1, "a number from 0 to 1")?;
        if !(0.0..=1.0).contains(&tau) {
            return Err(params.bad_value("tau", &tau.to_string(), "a number from 0 to 1"));
        }
        let block = params.get_minor_within("block", 128, LEAST_BLOCK..=MOST_TOKENS)?;
        let min_budget = params.get_minor_within("min_budget", 0, 0..=MOST_TOKENS)?;
        Ok(Arc::new(PrefillOnly(FlexPrefill { gamma, tau, block, min_budget })))
    },
};

/// Sparse prefill by lines or blocks that cover a share of a head's attention.
struct FlexPrefill {
    gamma: Tuned<f64>,
    tau: f64,
    block: usize,
    min_budget: usize,
}

/// The pattern of one head.
enum Pattern {
    Lines(Lines),
    Blocks(BlockMap),
}

impl Pattern {
    fn mask(&self, block: &QueryBlock<'_>) -> Mask {
        match self {
            Self::Lines(lines) => lines.mask(block),
            Self::Blocks(map) => map.mask(block),
        }
    }
}

/// Lines or block pairs ranked by their attention, the most first.
struct Ranking {
    order: Vec<u32>,
    /// `covered[i]`: share of the attention on the static tokens and the first `i + 1` of `order`.
    covered: Vec<f64>,
}

impl Ranking {
    fn new(scores: &[f32], range: std::ops::Range<usize>) -> Self {
        let total: f64 = scores.iter().map(|x| f64::from(*x)).sum();
        let order = ranked(scores, range.clone());
        // Static tokens cover their share whatever is selected.
        let picked: f64 = order.iter().map(|i| f64::from(scores[*i as usize])).sum();
        let mut sum = total - picked;
        let covered = order.iter().map(|i| {
            sum += f64::from(scores[*i as usize]);
            sum / total
        });
        Self { covered: covered.collect(), order }
    }

    /// The fewest items that cover a share `gamma` together with the static tokens, but at least `least`.
    fn covering(&self, gamma: f64, least: usize) -> &[u32] {
        // With `gamma` 1 all are taken, whatever the rounding of the sums.
        let needed = if gamma < 1.0 { self.covered.partition_point(|x| *x < gamma) + 1 } else { self.order.len() };
        &self.order[..needed.max(least).min(self.order.len())]
    }
}

impl FlexPrefill {
    /// Votes of the last block of queries, and how far its estimate by block means is off: the square root of the
    /// Jensen-Shannon divergence (Algorithm 2).
    fn look(&self, prompt: &QueryBlock<'_>, head: usize, cost: &mut Cost) -> (LineVotes, f64) {
        let (d, tokens) = (prompt.d, prompt.rows);
        let last = tokens.min(self.block);
        let votes = votes_of_last(prompt, head, last, cost);
        let keys = pooled(&prompt.keys.slice(0..tokens, d).to_f32(), self.block, d);
        let query = pooled(&prompt.head(head)[(tokens - last) * d..], last, d);
        let mut estimate = vec![0.0; keys.len() / d];
        score_into(&query, Rows::F32(&keys), d, &mut estimate);
        cost.score_flops += 2 * keys.len() as u64;
        softmax(&mut estimate, prompt.scale.factor());
        let given: Vec<f32> =
            votes.vertical.chunks(self.block).map(|block| block.iter().sum::<f32>() / last as f32).collect();
        (votes, root_divergence(&estimate, &given))
    }

    fn lines(&self, votes: &LineVotes, fixed: Static) -> Lines {
        let tokens = votes.vertical.len();
        let vertical = Ranking::new(&votes.vertical, fixed.sink..tokens);
        let slashes = Ranking::new(&votes.slash, fixed.window.min(tokens)..tokens);
        let lines = |gamma: f64, least: usize| {
            Lines::new(vertical.covering(gamma, least), slashes.covering(gamma, least), fixed)
        };
        match self.gamma {
            Tuned::Value(gamma) => lines(gamma, self.min_budget),
            Tuned::Density(density) => {
                let wanted = density * all_pairs(tokens) as f64;
                lines(least_share(wanted, |gamma| lines(gamma, 0).pairs(tokens) as f64), 0)
            }
        }
    }

    /// The block pairs that cover enough of the estimate, over all blocks of queries.
    fn blocks(&self, estimate: &[Vec<f32>], tokens: usize, fixed: Static) -> BlockMap {
        let pair = |queries: usize| (0..=queries).map(move |keys| (queries as u32, keys as u32));
        let pairs: Vec<(u32, u32)> = (0..estimate.len()).flat_map(pair).collect();
        let ranking = Ranking::new(&estimate.concat(), 0..pairs.len());
        let of = |ranks: &[u32]| ranks.iter().map(|rank| pairs[*rank as usize]).collect::<Vec<_>>();
        let picked = match self.gamma {
            Tuned::Value(gamma) => of(ranking.covering(gamma, 0)),
            Tuned::Density(density) => {
                let wanted = density * all_pairs(tokens) as f64;
                let alone: usize = (0..tokens).map(|position| fixed.tokens(position)).sum();
                let mut sum = alone as f64;
                let all = of(&ranking.order);
                // Stops where a further pair would lead away from the wanted number.
                let is_near = |pair: &&(u32, u32)| {
                    let more = BlockMap::added(**pair, self.block, tokens, fixed) as f64;
                    sum += more;
                    sum - more / 2.0 <= wanted
                };
                all.iter().take_while(is_near).copied().collect()
            }
        };
        let least = if self.gamma.density().is_some() { 0 } else { self.min_budget.div_ceil(self.block) };
        BlockMap::new(&with_at_least(picked, estimate, least), self.block, tokens, fixed)
    }
}

/// The pairs, and for each block of queries its `least` best key blocks.
fn with_at_least(mut pairs: Vec<(u32, u32)>, estimate: &[Vec<f32>], least: usize) -> Vec<(u32, u32)> {
    for (queries, scores) in (0..).zip(estimate) {
        pairs.extend(ranked(scores, 0..scores.len()).into_iter().take(least).map(|keys| (queries, keys)));
    }
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

/// Finds, by bisection, the smallest share at which `pairs` reaches `wanted`; `pairs` must not decrease.
fn least_share(wanted: f64, pairs: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        match pairs(middle) >= wanted {
            true => high = middle,
            false => low = middle,
        }
    }
    high
}

/// Square root of the Jensen-Shannon divergence of two distributions, in nats.
fn root_divergence(p: &[f32], q: &[f32]) -> f64 {
    let against_mean = |p: f32, q: f32| {
        let (p, mean) = (f64::from(p), (f64::from(p) + f64::from(q)) / 2.0);
        if p > 0.0 { p * (p / mean).ln() } else { 0.0 }
    };
    let sum: f64 = p.iter().zip(q).map(|(p, q)| against_mean(*p, *q) + against_mean(*q, *p)).sum();
    (sum / 2.0).max(0.0).sqrt()
}

impl PromptMask for FlexPrefill {
    fn query_rows(&self) -> usize {
        self.block
    }

    fn plan<'p>(&'p self, prompt: &QueryBlock<'p>, cost: &mut Cost) -> PromptPlan<'p> {
        let fixed = Static::new(prompt.policy, prompt.rows);
        let pattern = |head: usize, cost: &mut Cost| {
            let (votes, off) = self.look(prompt, head, cost);
            match off < self.tau {
                true => {
                    let estimate = block_attention(prompt, head, self.block, cost);
                    Pattern::Blocks(self.blocks(&estimate, prompt.rows, fixed))
                }
                false => Pattern::Lines(self.lines(&votes, fixed)),
            }
        };
        let patterns: Vec<Pattern> = of_each_head(prompt.group, cost, pattern);
        Box::new(move |block| Masks::PerHead(patterns.iter().map(|pattern| pattern.mask(block)).collect()))
    }
}

#[cfg(test)]
mod tests {
    use crate::Policy;
    use crate::prefill::testing::{D, Layer, assert_sees, is_static, plain, score_flops, softmax_up_to};

    /// Mean of some vectors.
    fn mean(vectors: &[Vec<f32>]) -> Vec<f64> {
        (0..D).map(|c| vectors.iter().map(|x| f64::from(x[c])).sum::<f64>() / vectors.len() as f64).collect()
    }

    fn softmax(logits: &[f64]) -> Vec<f64> {
        let sum: f64 = logits.iter().map(|x| x.exp()).sum();
        logits.iter().map(|x| x.exp() / sum).collect()
    }

    /// Queries `[token][D]` of a head.
    fn queries(layer: &Layer, head: usize) -> Vec<Vec<f32>> {
        (0..layer.tokens()).map(|position| layer.query(position, head).to_vec()).collect()
    }

    /// Softmax of a mean query over mean keys.
    fn estimated(query: &[f64], keys: &[Vec<f64>]) -> Vec<f64> {
        let dot = |key: &Vec<f64>| query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>() / (D as f64).sqrt();
        softmax(&keys.iter().map(dot).collect::<Vec<f64>>())
    }

    /// How far the estimate for the last block is off: root of the Jensen-Shannon divergence.
    fn off(layer: &Layer, head: usize, size: usize) -> f64 {
        let (n, keys) = (layer.tokens(), layer.keys(head));
        let last = n.min(size);
        let keys: Vec<Vec<f64>> = keys.chunks(size).map(mean).collect();
        let p = estimated(&mean(&queries(layer, head)[n - last..]), &keys);
        let mut q = vec![0.0; keys.len()];
        for position in n - last..n {
            for (token, weight) in softmax_up_to(layer, position, head).into_iter().enumerate() {
                q[token / size] += weight / last as f64;
            }
        }
        let divergence = |p: &[f64], m: &[f64]| p.iter().zip(m).map(|(p, m)| p * (p / m).ln()).sum::<f64>();
        let m: Vec<f64> = p.iter().zip(&q).map(|(p, q)| (p + q) / 2.0).collect();
        (divergence(&p, &m) / 2.0 + divergence(&q, &m) / 2.0).max(0.0).sqrt()
    }

    /// The fewest items, the largest first, that reach a share `gamma` of `whole` together with `already`; at least `least`.
    fn fewest(scores: &[(usize, f64)], already: f64, whole: f64, gamma: f64, least: usize) -> Vec<usize> {
        let mut order = scores.to_vec();
        order.sort_by(|a, b| b.1.total_cmp(&a.1));
        let (mut sum, mut taken) = (already, Vec::new());
        for (thing, score) in order {
            if !taken.is_empty() && sum >= gamma * whole && taken.len() >= least {
                break;
            }
            sum += score;
            taken.push(thing);
        }
        taken
    }

    /// Whether a row of the head sees a token: a function of position and token.
    fn expected(
        layer: &Layer,
        head: usize,
        (gamma, tau, size, least): (f64, f64, usize, usize),
        policy: &Policy,
    ) -> Box<dyn Fn(usize, usize) -> bool> {
        let n = layer.tokens();
        if off(layer, head, size) < tau {
            let keys: Vec<Vec<f64>> = layer.keys(head).chunks(size).map(mean).collect();
            let means: Vec<Vec<f64>> = queries(layer, head).chunks(size).map(mean).collect();
            let map: Vec<Vec<f64>> = (0..keys.len()).map(|i| estimated(&means[i], &keys[..=i])).collect();
            let all = |(i, row): (usize, &Vec<f64>)| {
                row.iter().enumerate().map(|(j, x)| (i * 1000 + j, *x)).collect::<Vec<_>>()
            };
            let flat: Vec<(usize, f64)> = map.iter().enumerate().flat_map(all).collect();
            let mut taken = fewest(&flat, 0.0, map.len() as f64, gamma, 0);
            for row in map.iter().enumerate() {
                if least > 0 {
                    taken.extend(fewest(&all(row), 0.0, 2.0, 1.0, least).into_iter().take(least.div_ceil(size)));
                }
            }
            return Box::new(move |position, token| taken.contains(&(position / size * 1000 + token / size)));
        }
        let (mut by_token, mut by_distance) = (vec![0.0; n], vec![0.0; n]);
        for position in n.saturating_sub(size)..n {
            for (token, weight) in softmax_up_to(layer, position, head).into_iter().enumerate() {
                by_token[token] += weight;
                by_distance[position - token] += weight;
            }
        }
        let chosen = |sums: &[f64], fixed: usize| {
            let picks: Vec<(usize, f64)> = sums.iter().copied().enumerate().skip(fixed).collect();
            fewest(&picks, sums.iter().take(fixed).sum(), sums.iter().sum(), gamma, least)
        };
        let (vertical, slashes) = (chosen(&by_token, policy.sink), chosen(&by_distance, policy.local.max(1)));
        Box::new(move |position, token| vertical.contains(&token) || slashes.contains(&(position - token)))
    }

    fn check(layer: &Layer, settings: (f64, f64, usize, usize), policy: &Policy) {
        let (gamma, tau, size, least) = settings;
        let spec = format!("flexprefill:gamma={gamma},tau={tau},block={size},min_budget={least}");
        let by_head: Vec<_> = (0..layer.heads).map(|head| expected(layer, head, settings, policy)).collect();
        assert_sees(layer, &spec, policy, |head, position| {
            plain((0..=position).filter(|token| is_static(policy, position, *token) || by_head[head](position, *token)))
        });
    }

    #[test]
    fn rows_see_what_covers_a_share_of_the_estimated_attention() {
        for (tokens, heads, kv_heads) in [(150, 4, 2), (33, 2, 1), (5, 1, 1)] {
            let layer = Layer::new(tokens, heads, kv_heads);
            for (sink, local) in [(4, 10), (0, 0)] {
                let policy = Policy { sink, local, ..Policy::default() };
                // No multiples of a row's share of the map: a sum could equal such a `gamma`, and rounding would decide.
                for gamma in [0.23, 0.61, 0.953] {
                    // By lines, by blocks, and each with a least number.
                    for (tau, size, least) in [(0.0, 16, 0), (1.0, 16, 0), (1.0, 9, 0), (0.0, 16, 30), (1.0, 8, 30)] {
                        check(&layer, (gamma, tau, size, least), &policy);
                    }
                }
            }
        }
    }

    #[test]
    fn a_head_whose_estimate_is_far_off_goes_by_lines() {
        let layer = Layer::new(150, 4, 2);
        let mut offs: Vec<f64> = (0..4).map(|head| off(&layer, head, 16)).collect();
        offs.sort_by(f64::total_cmp);
        let tau = (offs[1] + offs[2]) / 2.0;
        assert!(offs[2] - offs[1] > 1e-4, "two heads on either side: {offs:?}");
        check(&layer, (0.47, tau, 16, 0), &Policy::default());
    }

    #[test]
    fn looking_and_estimating_are_paid_for() {
        let layer = Layer::new(150, 4, 2);
        // Ten blocks of 16 tokens: the last queries see all keys, and a mean query all mean keys.
        let look = 16 * 150 + 10;
        let flops = |spec: &str| score_flops(&layer, spec, &Policy::default());
        assert_eq!(flops("flexprefill:block=16,tau=0"), 4 * look * 2 * D);
        assert_eq!(flops("flexprefill:block=16,tau=1"), 4 * (look + 10 * 11 / 2) * 2 * D);
    }
}

//! `expected_attention`: evicts once after the prefix, by the attention expected from future queries (Expected
//! Attention, Devoto et al. 2025, arXiv:2510.00636).
//!
//! Queries before RoPE are taken as normally distributed, with the mean `μ` and covariance `Σ` of the prefix's queries.
//! With the mean rotation `R̄` of the next `future` positions, the expected exponential of the logit with a key `k` is
//! `exp(k·R̄μ/√d + k·R̄ΣR̄ᵀk/2d)`. A token's score is that, normalised over the candidates, averaged over the query
//! heads of the group and multiplied by the norm of the value. After the prefix the best `k` candidates are kept and
//! the others evicted for good. Only the list of kept tokens is stored; selecting costs nothing in a decode step. Scores do not
//! depend on the budget, so sequences with several budgets share them.
//!
//! The authors' code (kvpress) computes `μ` and `Σ` from the hidden states of all tokens after the first four. Here they
//! are computed from `queries` queries, evenly spread over the prefix and after the sink, with their rotation undone. If a
//! model's rotation changes with the length of the text, it cannot be undone, and queries are used as they were rotated.

#[cfg(feature = "cuda")]
mod cuda;

use std::borrow::Cow;
use std::sync::Arc;

use rayon::prelude::*;

use super::ParamInfo;
use crate::IndexKey;
use crate::backend::reasons::HostReason;
use crate::cost::Cost;
use crate::index::pca::Covariance;
use crate::kv::{KvDtype, KvError, KvShape, MOST_TOKENS};
use crate::methods::{MethodEntry, Preset};
use crate::spec::KEEP;
use crate::types::attention_spec::SoftmaxScale;
use crate::types::budget::Context;
use crate::{
    Budget, HeadPrefix, IndexBuilder, Method, Probe, PromptHead, PromptNeed, PromptShape, Role, Rotation,
    SelectedTokens, Selection, Solved, Step, TailRule,
};
use spattn_kernels::quadratic::{Forms, forms};
use spattn_kernels::topk::top_k;
use spattn_kernels::{GPU_WIDEST, Rows};

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "expected_attention",
    role: Role::Method,
    about: "evicts after the prefix: keeps the keys that queries to come are expected to attend",
    reference: "Expected Attention (Devoto et al. 2025, arXiv:2510.00636)",
    params: &[
        ParamInfo { key: "ratio", default: "0.5", about: "share of the prefix kept by a KV head, above 0 to 1" },
        ParamInfo {
            key: "k",
            default: "-",
            about: "instead of ratio: tokens kept by a KV head; 0 leaves sinks and window",
        },
        KEEP,
        ParamInfo {
            key: "queries",
            default: "512",
            about: "queries of the prefix whose mean and covariance are taken",
        },
        ParamInfo { key: "future", default: "512", about: "positions to come over which rotations are averaged" },
        ParamInfo { key: "covariance", default: "true", about: "true | false: use the covariance, or the mean alone" },
        ParamInfo { key: "norm", default: "true", about: "true | false: multiply by the norms of values" },
    ],
    presets: &[Preset {
        name: "repo",
        values: &[
            ("ratio", "0.5"),
            ("future", "512"),
            ("covariance", "true"),
            ("norm", "true"),
            ("sink", "4"),
            ("local", "0"),
        ],
        source: "kvpress, expected_attention_press.py: 512 future positions, covariance and value norms, 4 sinks; half of the \
                 tokens is one of its compression ratios",
    }],
    build: |params| {
        let budget = params.budget_of_evicting(Budget::Ratio(0.5))?;
        let queries = params.get_minor("queries", 512)?;
        let future = params.get_minor_within("future", 512, 1..=MOST_FUTURE.min(MOST_TOKENS))?;
        let covariance = params.choice("covariance", &["true", "false"])? == "true";
        let norm = params.choice("norm", &["true", "false"])? == "true";
        Ok(Arc::new(ExpectedAttention { budget, queries, future, covariance, norm }))
    },
};

/// Limit of `future`: the mean rotation is a sum over all positions, for each channel.
const MOST_FUTURE: usize = 1 << 16;

/// The most bytes that a GPU takes for partial sums over the queries.
const MOST_PARTIAL_SUMS: usize = 35_000_000;

/// Eviction by the expected attention of queries to come.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ExpectedAttention {
    budget: Budget,
    queries: usize,
    future: usize,
    covariance: bool,
    norm: bool,
}

/// Normal distribution of future queries, in `f64`.
struct Queries {
    mean: Vec<f64>,
    /// `[d][d]`.
    covariance: Vec<f64>,
}

impl Queries {
    /// The distribution with mean and covariance of `queries: [query][d]`.
    fn new(queries: &[f32], d: usize) -> Self {
        let mut covariance = Covariance::new(d);
        covariance.add(queries);
        let count = (queries.len() / d).max(1) as f64;
        let mean = (0..d).map(|c| queries.iter().skip(c).step_by(d).map(|x| f64::from(*x)).sum::<f64>() / count);
        Self { mean: mean.collect(), covariance: covariance.matrix() }
    }

    /// The distribution after a linear map `[d][d]`, if there is one.
    fn mapped_by(self, map: Option<&[f64]>) -> Self {
        match map {
            Some(map) => self.mapped(map),
            None => self,
        }
    }

    /// The distribution after a linear map `[d][d]`.
    fn mapped(&self, map: &[f64]) -> Self {
        let d = self.mean.len();
        let half = product(map, &self.covariance, d);
        let covariance = product(&half, &transposed(map, d), d);
        let mean = map.chunks_exact(d).map(|row| row.iter().zip(&self.mean).map(|(a, b)| a * b).sum()).collect();
        Self { mean, covariance }
    }
}

/// Product of matrices `[d][d]`.
fn product(a: &[f64], b: &[f64], d: usize) -> Vec<f64> {
    let mut c = vec![0.0; d * d];
    for (row, out) in a.chunks_exact(d).zip(c.chunks_exact_mut(d)) {
        for (x, b) in row.iter().zip(b.chunks_exact(d)) {
            out.iter_mut().zip(b).for_each(|(out, y)| *out += x * y);
        }
    }
    c
}

fn transposed(a: &[f64], d: usize) -> Vec<f64> {
    (0..d * d).map(|i| a[i % d * d + i / d]).collect()
}

/// Mean of the rotations to positions `first..first + count`, `[d][d]`.
fn mean_rotation(rotation: &dyn Rotation, d: usize, first: usize, count: usize) -> Vec<f64> {
    let mut mean = vec![0.0; d * d];
    let mut units = vec![0.0f32; d * d];
    for position in first..first + count {
        units.fill(0.0);
        units.iter_mut().step_by(d + 1).for_each(|x| *x = 1.0);
        // Turning the c-th unit vector back gives the c-th row of the rotation, whose inverse is its transpose.
        rotation.turn_rows_back(&mut units, d, position);
        mean.iter_mut().zip(&units).for_each(|(mean, x)| *mean += f64::from(*x) / count as f64);
    }
    mean
}

impl ExpectedAttention {
    /// The sampled queries after the sinks with their rotation undone, for all heads of the group: `[query][head][d]`.
    fn unrotated(&self, prompt: &PromptHead<'_>, rotation: Option<&dyn Rotation>, sinks: usize, d: usize) -> Vec<f32> {
        let group = prompt.group();
        let (positions, _) = prompt.sampled_queries(self.queries, 0);
        let of_head = |head: usize| match prompt.sampled_queries(self.queries, head).1 {
            Rows::F32(rows) => Cow::Borrowed(rows),
            rows => Cow::Owned(rows.to_f32()),
        };
        let heads: Vec<Cow<'_, [f32]>> = (0..group).map(of_head).collect();
        let after_sinks = positions.partition_point(|p| (*p as usize) < sinks);
        let positions = &positions[after_sinks..];
        let mut unrotated = vec![0.0; positions.len() * group * d];
        let rows = unrotated.par_chunks_exact_mut(group * d).zip(positions).enumerate();
        rows.for_each(|(row, (queries, position))| {
            for (query, head) in queries.chunks_exact_mut(d).zip(&heads) {
                query.copy_from_slice(&head[(after_sinks + row) * d..][..d]);
            }
            // All heads of a position are turned back at once, since its angles are the same.
            if let Some(turn) = rotation {
                turn.turn_rows_back(queries, d, *position as usize);
            }
        });
        unrotated
    }

    /// The logarithm of the expected exponential of a key's logit, from the key's forms; without the covariance, the mean query's logit.
    fn log_expected(&self, linear: f64, quadratic: f64, scale: SoftmaxScale) -> f64 {
        let linear = linear / scale.divisor();
        if self.covariance { linear + quadratic / (2.0 * scale.squared_divisor()) } else { linear }
    }

    /// Scores of the candidates for the group: each head's logarithms are exponentiated and normalised over the candidates, averaged
    /// over the heads, and multiplied by the norms of values, if given.
    fn merged(logs_of_heads: Vec<Vec<f64>>, norms: Option<Vec<f64>>) -> Vec<f32> {
        let group = logs_of_heads.len();
        let mut scores = vec![0.0; logs_of_heads.first().map_or(0, Vec::len)];
        for mut logs in logs_of_heads {
            let max = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            logs.iter_mut().for_each(|log| *log = (*log - max).exp());
            let sum: f64 = logs.iter().sum();
            scores.iter_mut().zip(logs).for_each(|(score, x)| *score += x / sum / group as f64);
        }
        for (score, norm) in scores.iter_mut().zip(norms.into_iter().flatten()) {
            *score *= norm;
        }
        scores.into_iter().map(|score| score as f32).collect()
    }

    /// Score of each candidate, for the group.
    fn scores(&self, prefix: &HeadPrefix<'_>) -> Result<Vec<f32>, KvError> {
        let (d, tokens, count) = (prefix.d, prefix.tokens(), prefix.candidates.len());
        let rotation = prefix.rotation.map(|turn| mean_rotation(turn, d, tokens, self.future));
        let unrotated = self.unrotated(&prefix.prompt, prefix.rotation, prefix.candidates.start, d);
        let of_head = |head: usize| -> Queries {
            let rows = unrotated.chunks_exact(prefix.prompt.group() * d).flat_map(|row| &row[head * d..][..d]);
            Queries::new(&rows.copied().collect::<Vec<f32>>(), d).mapped_by(rotation.as_deref())
        };
        let queries: Vec<Queries> = (0..prefix.prompt.group()).map(of_head).collect();
        let mut logs_of_heads = vec![Vec::with_capacity(count); queries.len()];
        let log = |Forms { linear, quadratic }| self.log_expected(linear, quadratic, prefix.scale);
        prefix.candidate_keys().each_block(1, |keys| {
            for (queries, logs) in queries.iter().zip(&mut logs_of_heads) {
                let matrix = if self.covariance { &queries.covariance[..] } else { &[] };
                logs.extend(forms(&queries.mean, matrix, keys).into_iter().map(log));
            }
        })?;
        let norm = |value: &[f32]| value.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt();
        let mut norms = Vec::with_capacity(count);
        if self.norm {
            prefix.candidate_values().each_block(1, |values| norms.extend(values.chunks_exact(d).map(norm)))?;
        }
        Ok(Self::merged(logs_of_heads, self.norm.then_some(norms)))
    }
}

/// The scores of one KV head's candidates, from which sequences of any budget choose what they keep.
struct Scores {
    /// One for each candidate; empty if nothing is kept.
    of_candidates: Vec<f32>,
    /// The first candidate.
    first: u32,
    /// The tokens of the prefix, from which a budget given as a share is computed.
    context: Context,
}

/// The settings that determine scores.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ScoreSettings {
    queries: usize,
    future: usize,
    covariance: bool,
    norm: bool,
    /// False if nothing is kept.
    is_computed: bool,
}

impl IndexBuilder for ExpectedAttention {
    fn fits(&self, shape: KvShape) -> bool {
        HostReason::of_head_width(shape.d, GPU_WIDEST, 1).is_none()
    }

    /// A group's queries with their sums, then the group's forms of all keys, and the norms of values.
    fn bytes(&self, prefix: &PromptShape, _: KvDtype) -> usize {
        let PromptShape { heads, kv_heads, d, tokens, .. } = *prefix;
        let (group, queries) = (heads / kv_heads, self.queries.min(tokens));
        let sums = MOST_PARTIAL_SUMS + group * (d + d * d) * size_of::<f64>();
        match self.budget.is_none() {
            true => 0,
            false => group * queries * d * size_of::<f32>() + sums + (2 * group + 1) * tokens * size_of::<f64>(),
        }
    }
}

impl Method for ExpectedAttention {
    type Index = Scores;
    /// The candidates kept, ascending.
    type State = Vec<u32>;

    fn prompt_needs(&self) -> Vec<PromptNeed> {
        if self.budget.is_none() { Vec::new() } else { vec![PromptNeed::SampledQueries(self.queries)] }
    }

    fn solve(&self, probe: &Probe<'_>) -> Result<Option<Solved<Self>>, KvError> {
        let Some(k) = probe.tokens_once(self.budget) else { return Ok(None) };
        Ok(Some(Solved { method: Self { budget: Budget::Tokens(k), ..self.clone() }, params: format!("k={k}") }))
    }

    fn index_key(&self) -> IndexKey {
        let Self { budget, queries, future, covariance, norm } = *self;
        IndexKey::new(ScoreSettings { queries, future, covariance, norm, is_computed: !budget.is_none() })
    }

    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Scores, KvError> {
        let of_candidates = if self.budget.is_none() { Vec::new() } else { self.scores(prefix)? };
        Ok(Scores { of_candidates, first: prefix.candidates.start as u32, context: prefix.context() })
    }

    /// Counts nothing: scores are needed only to start sequences.
    fn index_bytes(&self, _: &Scores) -> usize {
        0
    }

    /// The list of kept tokens, as stored here. An implementation that moves the kept keys and values together needs no list.
    fn state_bytes(&self, kept: &Vec<u32>) -> usize {
        size_of_val(kept.as_slice())
    }

    fn start(&self, scores: &Scores) -> Vec<u32> {
        let best = top_k(&scores.of_candidates, self.budget.tokens(scores.context));
        best.into_iter().map(|place| place + scores.first).collect()
    }

    fn tail_rule(&self) -> TailRule {
        TailRule::Exact("it compresses the prompt once and keeps all that is generated")
    }

    fn select(&self, _: &Step<'_>, _: &Scores, kept: &mut Vec<u32>, _: &mut Cost) -> Result<Selection, KvError> {
        Ok(Selection::Shared(SelectedTokens::softmax(kept.clone())))
    }

    fn selects_once(&self) -> bool {
        true
    }

    fn kept_tokens(&self, prefix: &PromptShape) -> usize {
        let budget = self.budget.tokens(Context::new(prefix.tokens, &(0..prefix.tokens)));
        prefix.kv_heads * budget.min(prefix.tokens)
    }

    fn index_builder(&self) -> Option<&dyn IndexBuilder> {
        Some(self)
    }

    fn resident_candidates(&self, _: &Scores, kept: &Vec<u32>) -> Option<usize> {
        Some(kept.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Turn, angle, configured, noise, none, prompt_queries, random_stats};
    use crate::kv::{KvDtype, LayerKv, Prefix};
    use crate::{IndexCache, Policy};
    use std::sync::Arc;

    const D: usize = 8;
    const GROUP: usize = 2;
    const TOKENS: usize = 120;

    /// `x: [d]` rotated by `positions` positions, with the tests' RoPE.
    fn turned(x: &[f64], positions: f64) -> Vec<f64> {
        let half = D / 2;
        let mut y = vec![0.0; D];
        for pair in 0..half {
            let (sin, cos) = (angle(pair, D, 1) * positions).sin_cos();
            y[pair] = x[pair] * cos - x[pair + half] * sin;
            y[pair + half] = x[pair + half] * cos + x[pair] * sin;
        }
        y
    }

    /// Scores by the definition, in loops: the mean rotation is applied to each query before mean and variance are taken.
    fn scores(keys: &[Vec<f64>], values: &[Vec<f64>], sink: usize, future: usize, flags: [bool; 2]) -> Vec<f64> {
        let of_prompt = prompt_queries(0, TOKENS * GROUP * D);
        let mut scores = vec![0.0; keys.len()];
        for head in 0..GROUP {
            let queries: Vec<Vec<f64>> = (sink..TOKENS)
                .map(|t| {
                    let query = &of_prompt[(t * GROUP + head) * D..][..D];
                    let plain = turned(&query.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), -(t as f64));
                    let mut mean = vec![0.0; D];
                    for position in TOKENS..TOKENS + future {
                        let ahead = turned(&plain, position as f64);
                        mean.iter_mut().zip(ahead).for_each(|(m, x)| *m += x / future as f64);
                    }
                    mean
                })
                .collect();
            let count = queries.len() as f64;
            let expected = |key: &Vec<f64>| {
                let dots: Vec<f64> =
                    queries.iter().map(|q| q.iter().zip(key).map(|(a, b)| a * b).sum::<f64>()).collect();
                let mean = dots.iter().sum::<f64>() / count;
                let variance = dots.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
                let half = if flags[0] { variance / (2 * D) as f64 } else { 0.0 };
                (mean / (D as f64).sqrt() + half).exp()
            };
            let of_keys: Vec<f64> = keys[sink..].iter().map(expected).collect();
            let sum: f64 = of_keys.iter().sum();
            scores[sink..].iter_mut().zip(of_keys).for_each(|(score, x)| *score += x / sum);
        }
        let norm = |value: &[f64]| value.iter().map(|x| x * x).sum::<f64>().sqrt();
        for (score, value) in scores.iter_mut().zip(values) {
            *score *= if flags[1] { norm(value) } else { 1.0 };
        }
        scores
    }

    fn check(future: usize, k: usize, sink: usize, flags: [bool; 2], scale: f32) {
        let mut kv = LayerKv::new(KvDtype::F32, 1, D, TOKENS);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let exact = |row: &[f32]| row.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
        for t in 0..TOKENS as u64 {
            // Some keys are long in single channels.
            let mut key = noise(D, 60 + t);
            key[t as usize % D] *= scale;
            let value: Vec<f32> = noise(D, 6_000 + t).iter().map(|x| x * (1 + t % 5) as f32).collect();
            kv.append(&key, &value);
            keys.push(exact(&key));
            values.push(exact(&value));
        }
        let spec = format!(
            "expected_attention:k={k},queries={TOKENS},future={future},covariance={},norm={}",
            flags[0], flags[1]
        );
        let scores = scores(&keys, &values, sink, future, flags);
        let mut order: Vec<usize> = (sink..TOKENS).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        let kept: Vec<usize> = (0..sink).chain(order[..k].iter().copied()).collect();

        let method = configured(&spec, &Policy { sink, ..none() });
        let prefix = Prefix::new(vec![kv]);
        let stats = random_stats(&method.method, &prefix, GROUP);
        let mut cache = IndexCache::new(prefix, KvDtype::F32, 1).with_stats(stats).with_rotation(Arc::new(Turn));
        let mut fork = cache.fork(&method, false).unwrap();
        let (queries, key, value) = (noise(GROUP * D, 1), noise(D, 2), noise(D, 3));
        let mut out = vec![f32::NAN; GROUP * D];
        fork.step(0, &queries, &key, &value, &mut out).unwrap();
        assert_eq!(fork.kv_tokens_held() as usize, sink + k + 1, "{spec}");
        keys.push(exact(&key));
        values.push(exact(&value));
        for (query, out) in queries.chunks(D).zip(out.chunks(D)) {
            let attended = || kept.iter().copied().chain([TOKENS]);
            let weight = |t: usize| {
                (query.iter().zip(&keys[t]).map(|(a, b)| f64::from(*a) * b).sum::<f64>() / (D as f64).sqrt()).exp()
            };
            let sum: f64 = attended().map(weight).sum();
            for (c, ours) in out.iter().enumerate() {
                let expected = attended().map(|t| weight(t) * values[t][c]).sum::<f64>() / sum;
                assert!((f64::from(*ours) - expected).abs() < 1e-5, "{spec}, scale {scale}, channel {c}");
            }
        }
    }

    #[test]
    fn keeps_what_normal_queries_at_positions_to_come_are_expected_to_attend() {
        for scale in [1.0, 6.0] {
            for (future, k, sink) in [(1, 20, 0), (40, 20, 3), (300, 9, 4)] {
                for flags in [[true, true], [true, false], [false, true], [false, false]] {
                    check(future, k, sink, flags, scale);
                }
            }
        }
    }
}

//! `sparq`: selects by scores on the query's largest channels; the mean value stands for tokens not selected (SparQ
//! Attention, Ribar et al. 2024).
//!
//! The index holds the sum of the candidates' values and, with `storage=2xK`, a copy of their keys by channel. A decode
//! step takes the `r` channels with the largest `|q_c|` and reads them of all candidates. With `q̂` the query on these
//! channels, `ŝ = softmax(q̂·K / τ)`, `τ = √(d·‖q̂‖₁/‖q‖₁)`, estimates the attention. The top `k` tokens are attended
//! exactly and get the share `α = Σ ŝ` over them; the mean value gets `1 − α`. Here static tokens are attended exactly,
//! so `ŝ`, `α` and the mean are over the candidates, and the mean enters with the candidates' share of the softmax.
//! Without static tokens this is the paper's formula.
//!
//! A channel of a row-major key cache is not contiguous. `storage=2xK` reads the copy; `storage=1xK` reads the channels
//! in place, and counts the numbers used, not the cache lines around them. Both select the same tokens; they differ in
//! the size of the index, and in whether bytes count as auxiliary or as KV cache.
//!
//! With `per=kv_head`, as the authors do for GQA, `|q|` is summed over the group before channels are chosen, and scores,
//! each divided by its `τ`, are summed (or `reduce=max`) before tokens are selected; `α` remains each head's own.

#[cfg(feature = "cuda")]
mod cuda;
mod device;

use std::sync::Arc;

use super::ParamInfo;
use crate::IndexKey;
use crate::backend::reasons::HostReason;
use crate::backend::scorer::DeviceScorer;
use crate::cost::Cost;
use crate::kv::{KvError, KvRows, KvStore};
use crate::methods::{MethodEntry, Preset};
use crate::scored::granularity::Granularity;
use crate::scored::method::Scored;
use crate::scored::scorer::{Growth, NewTokens, Part, Scorer, Segment, SelectionSource};
use crate::scored::select::Top;
use crate::types::attention_spec::SoftmaxScale;
use crate::types::channels::Channels;
use crate::types::prefix_head::KvHeadId;
use crate::types::scores::GroupQueries;
use crate::{Budget, HeadPrefix, Role, SelectedTokens, Selection, Weighting};
use spattn_kernels::rows::{Elem, with_rows};
use spattn_kernels::softmax::softmax;
use spattn_kernels::topk::top_k;
use spattn_kernels::weighted_lists;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "sparq",
    role: Role::Method,
    about: "top-k by the query's largest channels, and the mean value for the rest",
    reference: "SparQ Attention (Ribar et al. 2023, arXiv:2312.04985)",
    params: &[
        ParamInfo { key: "r", default: "d/8", about: "channels of the query: a number, or a share d/N of the head" },
        ParamInfo { key: "k", default: "64", about: "tokens picked beyond the static ones" },
        ParamInfo { key: "ratio", default: "-", about: "instead of k: share of the context, above 0 to 1" },
        ParamInfo { key: "storage", default: "2xK", about: "2xK | 1xK: keep a copy of the keys by channels, or not" },
        Granularity::INFO,
        Granularity::REDUCE,
    ],
    presets: &[
        Preset {
            name: "paper",
            values: &[
                ("r", "d/4"),
                ("k", "96"),
                ("per", "kv_head"),
                ("sink", "0"),
                ("local", "32"),
                ("tail", "indexed"),
            ],
            source: "SparQ's Llama 3 sweep: k 128, a quarter of it local, r 32 of 128 channels, shared by the GQA group",
        },
        Preset {
            name: "repo",
            values: &[
                ("r", "32"),
                ("k", "96"),
                ("per", "kv_head"),
                ("sink", "0"),
                ("local", "32"),
                ("tail", "indexed"),
            ],
            source: "SparQ's code, 2023-sparse-attention/rmoe-95-llama3: k 128, of which 32 local, ranks 8 to 64 (32 \
                     here); |q| and scores summed over the GQA group; its window moves on",
        },
    ],
    build: |params| {
        let r = Channels::read(params, "r", Channels::Share(8))?;
        // Scores divided by `τ` are logits, but a plain top-k is used: the mean value makes up for what is left out.
        let picker = Arc::new(Top { budget: params.budget(Budget::Tokens(64))? });
        let by_channel = params.choice("storage", &["2xK", "1xK"])? == "2xK";
        let per = Granularity::read(params)?;
        Ok(Arc::new(Scored::with(QueryChannels { r, by_channel, per }, picker, per)))
    },
};

/// Scores candidates by `q̂·k/τ` on the largest channels of each query, or of the queries of a group at one position.
#[derive(Clone)]
struct QueryChannels {
    r: Channels,
    by_channel: bool,
    per: Granularity,
}

/// The index over some candidates of one KV head.
struct Kept {
    /// Sum of the candidates' values, `[d]`.
    sum: Vec<f64>,
    tokens: usize,
    copy: Copy,
}

/// The copy of the keys.
enum Copy {
    None,
    /// `[channel][token]`.
    ByChannel(KvStore),
    /// `[token][channel]`, for tokens that are appended one by one.
    ByToken(KvStore),
}

impl Scorer for QueryChannels {
    type Index = Kept;

    fn required_head_dim(&self) -> Option<(&'static str, usize)> {
        self.r.asked("r")
    }

    /// Leaves out the number of channels and the grouping, which concern only queries.
    fn index_key(&self) -> IndexKey {
        let Self { r: _, by_channel, per: _ } = self;
        IndexKey::new(*by_channel)
    }

    /// The copy by channel needs all keys at once: each row holds one channel of all of them.
    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Kept, KvError> {
        let (d, n) = (prefix.d, prefix.candidates.len());
        let mut kept = Kept { sum: vec![0.0; d], tokens: 0, copy: Copy::None };
        prefix.candidate_values().each_block(1, |values| kept.add_values(values))?;
        if self.by_channel {
            let keys = prefix.candidate_keys().to_f32()?;
            let mut store = KvStore::new(prefix.dtype, 1, n, d);
            for c in 0..d {
                store.append(&keys.iter().skip(c).step_by(d).copied().collect::<Vec<_>>());
            }
            kept.copy = Copy::ByChannel(store);
        }
        Ok(kept)
    }

    fn growth(&self) -> Growth {
        Growth::Free("new keys join the copy, new values the mean")
    }

    fn empty(&self, place: KvHeadId, _: Option<&Kept>) -> Kept {
        let copy = match self.by_channel {
            true => Copy::ByToken(KvStore::new(place.dtype, 1, place.d, 0)),
            false => Copy::None,
        };
        Kept { sum: vec![0.0; place.d], tokens: 0, copy }
    }

    fn append(&self, kept: &mut Kept, from: usize, new: &NewTokens<'_>) {
        debug_assert_eq!(from, kept.tokens, "each token is a grain");
        kept.add_values(new.values);
        if let Copy::ByToken(store) = &mut kept.copy {
            new.keys.chunks_exact(new.place.d).for_each(|key| store.append(key));
        }
    }

    fn index_bytes(&self, kept: &Kept) -> usize {
        let copy = match &kept.copy {
            Copy::None => 0,
            Copy::ByChannel(store) | Copy::ByToken(store) => store.stored_bytes(),
        };
        kept.sum.len() * size_of::<f32>() + copy
    }

    fn scores(
        &self,
        queries: &GroupQueries<'_>,
        segment: &Segment<'_, Kept>,
        cost: &mut Cost,
    ) -> Result<Vec<f32>, KvError> {
        let (d, n, group) = (queries.d, segment.keys.tokens(), queries.group());
        let mut scores = vec![0.0; queries.count() * n];
        let query = |h: usize, row: usize| &queries.head(h)[row * d..][..d];
        let each = if self.per == Granularity::QueryHead { 1 } else { group };
        for (row, first) in (0..queries.rows).flat_map(|row| (0..group).step_by(each).map(move |first| (row, first))) {
            let heads = first..first + each;
            let magnitude = |c: usize| heads.clone().map(|h| query(h, row)[c].abs()).sum::<f32>();
            let channels = top_k(&(0..d).map(magnitude).collect::<Vec<_>>(), self.r.of(d));
            let weights_of = |h: usize| {
                let (query, factor) = (query(h, row), 1.0 / temperature(query(h, row), &channels, queries.scale));
                channels.iter().map(move |c| query[*c as usize] * factor).collect::<Vec<f32>>()
            };
            // With a single row, the scores of heads that choose together are contiguous and computed in one call.
            let at_once = if queries.rows == 1 { each } else { 1 };
            for head in heads.clone().step_by(at_once) {
                let weights = (head..head + at_once).flat_map(weights_of).collect::<Vec<f32>>();
                let out = &mut scores[(head * queries.rows + row) * n..][..at_once * n];
                segment.score(&channels, &weights, at_once, out)?;
            }
        }
        // Query heads that choose together read their channels once.
        let (numbers, reads) = (self.r.of(d) * n, queries.count() / each);
        match segment.index.copy {
            Copy::None => cost.kv_bytes += (reads * segment.keys.bytes() * self.r.of(d) / d) as u64,
            // The copy is in the model's storage type, whatever type the keys are stored in.
            _ => cost.aux_bytes += (reads * numbers * segment.keys.dtype().bytes()) as u64,
        }
        cost.score_flops += (2 * queries.count() * numbers) as u64;
        Ok(scores)
    }

    fn device(&self) -> Result<&dyn DeviceScorer, HostReason> {
        // Without the copy, kernels would have to read keys whole.
        if self.by_channel { Ok(self) } else { Err(HostReason::setting("storage", "1xK")) }
    }

    fn weighs(&self) -> bool {
        true
    }

    /// Gives the selected tokens their share of the candidates' softmax, and the mean value the rest.
    fn weigh(
        &self,
        from: &SelectionSource<'_, Kept>,
        selection: &mut Selection,
        cost: &mut Cost,
    ) -> Result<(), KvError> {
        let tokens: usize = from.parts.iter().map(|part| part.tokens).sum();
        let mean = mean_value(from.parts, tokens)?;
        let mut remainder = |picks: &mut SelectedTokens, logits: &[f32]| {
            let top: Vec<u32> = picks.tokens.iter().map(|t| t - from.first as u32).collect();
            let shares = logits.chunks_exact(tokens).map(|logits| rest_share(logits, &top)).collect();
            picks.weighting = Weighting::Remainder { shares, value: mean.clone() };
            cost.aux_bytes += size_of_val(mean.as_slice()) as u64;
        };
        match selection {
            Selection::Shared(picks) => remainder(picks, from.scores),
            Selection::PerHead(heads) => {
                heads.iter_mut().zip(from.scores.chunks_exact(tokens)).for_each(|(picks, own)| remainder(picks, own));
            }
        }
        Ok(())
    }
}

impl Kept {
    fn add_values(&mut self, values: &[f32]) {
        let d = self.sum.len();
        self.tokens += values.len() / d;
        for value in values.chunks_exact(d) {
            self.sum.iter_mut().zip(value).for_each(|(sum, v)| *sum += f64::from(*v));
        }
    }
}

impl Segment<'_, Kept> {
    /// Adds `Σ_i weights[h][i] · key[channels[i]]` of every key to `out: [head][token]`, for `heads` heads.
    fn score(&self, channels: &[u32], weights: &[f32], heads: usize, out: &mut [f32]) -> Result<(), KvError> {
        let d = self.index.sum.len();
        match &self.index.copy {
            Copy::ByChannel(store) => weighted_lists(store.head(0), channels, weights, heads, out),
            Copy::ByToken(store) => strided(KvRows::lent(store.head(0), d), channels, weights, out)?,
            Copy::None => strided(self.keys, channels, weights, out)?,
        }
        Ok(())
    }
}

/// Mean value of the `tokens` candidates in `parts`, `[d]`.
fn mean_value(parts: &[Part<'_, Kept>], tokens: usize) -> Result<Vec<f32>, KvError> {
    let mut sums = vec![0.0f64; parts.first().map_or(0, |part| part.index.sum.len())];
    for part in parts {
        if part.tokens == part.index.tokens {
            sums.iter_mut().zip(&part.index.sum).for_each(|(sum, own)| *sum += own);
            continue;
        }
        // The index also holds tokens that this position does not see, so its sum cannot be used.
        part.values.each_block(1, |values| {
            for value in values.chunks_exact(sums.len()) {
                sums.iter_mut().zip(value).for_each(|(sum, v)| *sum += f64::from(*v));
            }
        })?;
    }
    Ok(sums.into_iter().map(|sum| (sum / tokens as f64) as f32).collect())
}

/// `τ = √(d·‖q̂‖₁/‖q‖₁)`, where `√d` is the divisor of the layer's logits; `√d` for a query of zeros.
fn temperature(query: &[f32], channels: &[u32], scale: SoftmaxScale) -> f32 {
    let all: f32 = query.iter().map(|q| q.abs()).sum();
    let covered: f32 = channels.iter().map(|c| query[*c as usize].abs()).sum();
    let coverage = if covered > 0.0 { covered / all } else { 1.0 };
    (scale.squared_divisor() as f32 * coverage).sqrt()
}

/// `1 − α`: the share of `softmax(logits)` outside `top` (ascending). The outside is summed, so the share is 0 if nothing is outside.
fn rest_share(logits: &[f32], top: &[u32]) -> f32 {
    let mut weights = logits.to_vec();
    softmax(&mut weights);
    let mut inside = 0.0;
    for t in top {
        inside += f64::from(std::mem::take(&mut weights[*t as usize]));
    }
    let outside = total(&weights);
    // With `per=kv_head`, nearly all of a head's weight may be outside the group's selection.
    ((outside / (inside + outside)) as f32).min(MOST_REST)
}

/// Sum in f64, in several lanes.
fn total(weights: &[f32]) -> f64 {
    const LANES: usize = 8;
    let mut lanes = [0.0f64; LANES];
    let (whole, rest) = weights.as_chunks::<LANES>();
    for chunk in whole {
        lanes.iter_mut().zip(chunk).for_each(|(lane, w)| *lane += f64::from(*w));
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|w| f64::from(*w)).sum::<f64>()
}

/// Largest share of the remainder. It is applied relative to the selected tokens' mass, which must not be 0.
const MOST_REST: f32 = 1.0 - f32::EPSILON;

/// Adds `Σ_i weights[h][i] · rows[t][channels[i]]` to `out[h][t]`.
fn strided(rows: KvRows<'_>, channels: &[u32], weights: &[f32], out: &mut [f32]) -> Result<(), KvError> {
    let (d, tokens) = (rows.d(), rows.tokens());
    rows.scan(|first, piece| {
        with_rows!(piece, data => {
            for (t, row) in data.chunks_exact(d).enumerate() {
                for (weights, out) in weights.chunks_exact(channels.len()).zip(out.chunks_exact_mut(tokens)) {
                    for (c, w) in channels.iter().zip(weights) {
                        out[first + t] += w * row[*c as usize].to_f32();
                    }
                }
            }
        });
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_close, noise, none, prefix, random_kv, run, select};
    use super::*;
    use crate::kv::KvDtype;

    /// The paper's formula in f64, without static tokens, for one group: outputs `[group][d]`.
    fn reference(queries: &[f32], keys: &[f32], values: &[f32], d: usize, r: usize, k: usize, joint: bool) -> Vec<f32> {
        let softmax = |logits: &[f64]| -> Vec<f64> {
            let max = logits.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = logits.iter().map(|l| (l - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            weights.into_iter().map(|w| w / sum).collect()
        };
        let largest = |of: &[f64], count: usize| {
            let mut order: Vec<usize> = (0..of.len()).collect();
            order.sort_by(|a, b| of[*b].total_cmp(&of[*a]));
            order.truncate(count);
            order
        };
        let group: Vec<Vec<f64>> = queries.chunks(d).map(|q| q.iter().map(|x| f64::from(*x)).collect()).collect();
        let tokens = keys.len() / d;
        let magnitude =
            |heads: &[Vec<f64>]| (0..d).map(|c| heads.iter().map(|q| q[c].abs()).sum()).collect::<Vec<f64>>();
        let logits = |q: &[f64], channels: &[usize]| -> Vec<f64> {
            let norm = |x: f64| x / q.iter().map(|x| x.abs()).sum::<f64>();
            let tau = (d as f64 * norm(channels.iter().map(|c| q[*c].abs()).sum())).sqrt();
            let score = |t: usize| channels.iter().map(|c| q[*c] * f64::from(keys[t * d + c])).sum::<f64>() / tau;
            (0..tokens).map(score).collect()
        };
        let mut out = Vec::new();
        for head in 0..group.len() {
            let shared = if joint { &group[..] } else { &group[head..=head] };
            let channels = largest(&magnitude(shared), r);
            let all: Vec<Vec<f64>> = shared.iter().map(|q| logits(q, &channels)).collect();
            let sum: Vec<f64> = (0..tokens).map(|t| all.iter().map(|l| l[t]).sum()).collect();
            let top = largest(&sum, k);
            let approximate = softmax(&logits(&group[head], &channels));
            let alpha: f64 = top.iter().map(|t| approximate[*t]).sum();
            let exact = |t: &usize| {
                (0..d).map(|c| group[head][c] * f64::from(keys[t * d + c])).sum::<f64>() / (d as f64).sqrt()
            };
            let weights = softmax(&top.iter().map(exact).collect::<Vec<_>>());
            for c in 0..d {
                let mean = (0..tokens).map(|t| f64::from(values[t * d + c])).sum::<f64>() / tokens as f64;
                let picked: f64 = top.iter().zip(&weights).map(|(t, w)| w * f64::from(values[t * d + c])).sum();
                out.push((alpha * picked + (1.0 - alpha) * mean) as f32);
            }
        }
        out
    }

    #[test]
    fn equals_the_papers_formula_where_no_token_is_static() {
        let (d, n) = (32, 150);
        let kv = random_kv(KvDtype::F32, 1, n, d, 9);
        let (keys, values) = (kv.keys.head(0).to_f32(), kv.values.head(0).to_f32());
        let queries: Vec<f32> = noise(4 * d, 10).iter().map(|q| 2.0 * q).collect();
        for (per, joint) in [("query_head", false), ("kv_head", true)] {
            let spec = format!("sparq:r=8,k=12,per={per}");
            let (selection, _) = select(&spec, &kv, &queries, 0..n);
            let out = crate::testing::attend(&kv, &queries, &selection);
            assert_close(&out, &reference(&queries, &keys, &values, d, 8, 12, joint), 1e-4, &spec);
        }
    }

    #[test]
    fn a_copy_of_the_keys_changes_where_bytes_are_read_and_nothing_else() {
        let prefix = prefix(1, 1, 500, 32);
        for per in ["query_head", "kv_head"] {
            let outcome = |storage: &str| {
                let spec = format!("sparq:r=4,k=10,storage={storage},per={per}");
                let (out, fork) = run(&prefix, &spec, &none(), 2, 2);
                (out, fork.aux_bits(), fork.costs().total(|_| true))
            };
            let ((out, aux, cost), (out_copy, aux_copy, cost_copy)) = (outcome("1xK"), outcome("2xK"));
            assert_eq!(out, out_copy);
            assert_eq!(aux_copy - aux, 32.0 * 32.0, "a second copy of the keys");
            assert_eq!(cost.kv_bytes + cost.aux_bytes, cost_copy.kv_bytes + cost_copy.aux_bytes);
            let lists = if per == "query_head" { 2 } else { 1 };
            assert_eq!(
                cost.kv_bytes - cost_copy.kv_bytes,
                2 * lists * 4 * 500 * 4,
                "steps, lists, channels, tokens, f32"
            );
        }
    }

    #[test]
    fn what_is_left_over_is_a_share_even_if_rounding_is_against_it() {
        assert_eq!(rest_share(&[1.0, 5.0, -3.0], &[0, 1, 2]), 0.0);
        assert!((rest_share(&[0.0; 4], &[1]) - 0.75).abs() < 1e-6);
        let hopeless = rest_share(&[100.0, -100.0], &[1]);
        assert!(hopeless < 1.0 && (hopeless / (1.0 - hopeless)).is_finite());
        assert_eq!(temperature(&[0.0; 16], &[1, 2], SoftmaxScale::inverse_root(16)), 4.0);
    }
}

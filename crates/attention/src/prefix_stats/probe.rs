//! What a method measures before a run, to find the value of its own parameter that gives a density.
//!
//! The last queries of the prefix are put to its keys: what they would attend stands for what the queries that
//! follow will. Where no query was kept, keys stand in for queries. One value is solved for all layers and heads of
//! an example, as such parameters are set for a model and not for each head; heads keep their differences.

use std::ops::Range;

use rayon::prelude::*;

use crate::calibration::collector::PrefillChunk;
use crate::kv::{KvDtype, Prefix};
use crate::prefix_stats::stats::PromptHead;
use crate::types::budget::{Budget, Context};
use crate::types::prefix_head::{HeadPrefix, SparseLayerRank};
use crate::types::scores::score_into;

/// The last queries of a prefix, rotated, as they attend: `[query][head][d]` for each layer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecentQueries {
    layers: Vec<Vec<f32>>,
    heads: usize,
    /// How long the prefix will be, if that is known.
    prefix_tokens: Option<usize>,
}

impl RecentQueries {
    /// Queries kept of each head.
    pub const COUNT: usize = 16;

    /// Nothing seen yet of a prefix of so many tokens: all but its end will not be looked at.
    pub fn of_prefix(tokens: usize) -> Self {
        Self { prefix_tokens: Some(tokens), ..Self::default() }
    }

    /// Takes in a chunk of a dense prefill; of the queries seen so far at its layer the last are kept.
    pub fn observe(&mut self, chunk: &PrefillChunk<'_>) {
        if self.prefix_tokens.is_some_and(|tokens| chunk.end() + Self::COUNT <= tokens) {
            return;
        }
        if self.layers.len() <= chunk.layer {
            self.layers.resize(chunk.layer + 1, Vec::new());
        }
        self.heads = chunk.heads;
        let (kept, most) = (&mut self.layers[chunk.layer], Self::COUNT * chunk.heads * chunk.d());
        kept.extend_from_slice(&chunk.last_queries(Self::COUNT));
        kept.drain(..kept.len().saturating_sub(most));
    }

    /// Queries of the group of one KV head, `[query][d]`; empty if none were kept.
    fn of_group(&self, layer: usize, kv_head: usize, kv_heads: usize, d: usize) -> Vec<f32> {
        let group = self.heads / kv_heads;
        let of_token = |token: &[f32]| token[kv_head * group * d..][..group * d].to_vec();
        self.layers
            .get(layer)
            .map_or(Vec::new(), |queries| queries.chunks_exact(self.heads * d).flat_map(of_token).collect())
    }
}

/// A prefix to be measured, with the mean context of the tokens that are known to follow it.
pub struct Probe<'a> {
    /// Keys and values.
    pub(crate) prefix: &'a Prefix,
    /// Queries to put to them.
    pub(crate) queries: &'a RecentQueries,
    /// Storage type of keys and values.
    pub(crate) dtype: KvDtype,
    /// Layers that attend everything, which are left out.
    pub(crate) dense: &'a [bool],
    /// Tokens that may be picked.
    pub(crate) candidates: Range<usize>,
    /// What is in context, and what is static.
    pub(crate) context: Context,
}

/// One KV head of a probed prefix.
pub struct ProbeHead<'a> {
    /// The head.
    pub prefix: HeadPrefix<'a>,
    /// Queries of its group, rotated, unscaled, `[query][d]`.
    pub queries: Vec<f32>,
}

impl ProbeHead<'_> {
    /// The candidates' keys, `[token][d]`.
    pub fn keys(&self) -> spattn_kernels::Rows<'_> {
        self.prefix.keys.slice(self.prefix.candidates.clone(), self.prefix.d)
    }

    /// Calls `visit` with every query's logits of the candidates: the scaled `q·k`.
    pub fn each_logits(&self, mut visit: impl FnMut(&[f32])) {
        let (d, scale) = (self.prefix.d, self.prefix.scale.factor());
        let mut logits = vec![0.0; self.prefix.candidates.len()];
        for query in self.queries.chunks_exact(d) {
            score_into(query, self.keys(), d, &mut logits);
            logits.iter_mut().for_each(|x| *x *= scale);
            visit(&logits);
        }
    }
}

impl Probe<'_> {
    /// Tokens that may be picked; at least one.
    pub fn candidates(&self) -> usize {
        self.candidates.len()
    }

    /// How many candidates each query should pick on average for the tokens attended to be a share `density`.
    pub fn tokens(&self, density: f64) -> f64 {
        self.context.missing(density).max(1) as f64
    }

    /// What a method that spends its budget once, when the prefix ends, keeps to meet the density asked for on average over the tokens that
    /// are known to follow; `None` if none was asked for.
    pub fn tokens_once(&self, budget: Budget) -> Option<usize> {
        match budget {
            Budget::Density(density) => Some(self.context.missing(density).max(1)),
            Budget::Tokens(_) | Budget::Ratio(_) => None,
        }
    }

    /// What `measure` makes of each KV head of each layer that is not dense, in their order.
    pub fn measure<T: Send>(&self, measure: impl Fn(&ProbeHead<'_>) -> T + Sync) -> Vec<T> {
        let layers: Vec<usize> = (0..self.prefix.layers()).filter(|layer| !self.dense[*layer]).collect();
        let kv_heads = self.prefix.shape().kv_heads;
        let heads = layers.into_par_iter().flat_map_iter(|layer| (0..kv_heads).map(move |kv_head| (layer, kv_head)));
        heads.map(|(layer, kv_head)| measure(&self.head(layer, kv_head))).collect()
    }

    fn head(&self, layer: usize, kv_head: usize) -> ProbeHead<'_> {
        let kv = self.prefix.layer(layer);
        let d = kv.keys.d();
        let (keys, values) = (kv.keys.head(kv_head), kv.values.head(kv_head));
        let mut queries = self.queries.of_group(layer, kv_head, kv.keys.kv_heads(), d);
        if queries.is_empty() {
            let step = self.candidates.len().div_ceil(RecentQueries::COUNT);
            let sampled = self.candidates.clone().step_by(step);
            queries = sampled.flat_map(|token| keys.slice(token..token + 1, d).to_f32()).collect();
        }
        let candidates = self.candidates.clone();
        let prompt = PromptHead::default();
        let depth = SparseLayerRank::default();
        let prefix = HeadPrefix {
            layer,
            depth,
            rotation: None,
            kv_head,
            keys,
            values,
            d,
            scale: self.prefix.spec(layer).scale,
            dtype: self.dtype,
            candidates,
            prompt,
            seed: 0,
        };
        ProbeHead { prefix, queries }
    }
}

/// Counts of numbers in `0..1`, in bins of equal width, with their sums, so that a mean of any function of them is
/// known to the width of a bin.
#[derive(Debug, Clone)]
pub struct Histogram {
    bins: Vec<(u64, f64)>,
}

impl Histogram {
    const BINS: usize = 1024;

    /// Nothing counted.
    pub fn new() -> Self {
        Self { bins: vec![(0, 0.0); Self::BINS] }
    }

    /// Counts one number; what is below 0 or above 1 goes into the first or last bin.
    pub fn add(&mut self, x: f64) {
        let bin = ((x * Self::BINS as f64) as usize).min(Self::BINS - 1);
        self.bins[bin].0 += 1;
        self.bins[bin].1 += x;
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Self) {
        for (bin, (count, sum)) in self.bins.iter_mut().zip(&other.bins) {
            bin.0 += count;
            bin.1 += sum;
        }
    }

    /// Mean of `f` over all numbers counted, each taken as the mean of its bin.
    pub fn mean(&self, f: impl Fn(f64) -> f64) -> f64 {
        let filled = self.bins.iter().filter(|(count, _)| *count > 0);
        let (mut all, mut total) = (0u64, 0.0);
        for (count, sum) in filled {
            all += count;
            total += *count as f64 * f(sum / *count as f64);
        }
        total / all.max(1) as f64
    }

    /// All histograms in one.
    pub fn pooled(parts: Vec<Self>) -> Self {
        let mut pooled = Self::new();
        parts.iter().for_each(|part| pooled.merge(part));
        pooled
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

/// The least whole number in `range` for which `f`, which does not fall, reaches `target`; the end if none does.
pub fn least_reaching(range: std::ops::RangeInclusive<usize>, target: f64, f: impl Fn(usize) -> f64) -> usize {
    let (mut low, mut high) = range.into_inner();
    while low < high {
        let middle = low + (high - low) / 2;
        match f(middle) >= target {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::LayerKv;

    #[test]
    fn the_last_queries_are_kept_over_chunks_of_any_size() {
        let (heads, d) = (2, 4);
        let mut kv = LayerKv::new(KvDtype::F32, 1, d, 64);
        let mut recent = RecentQueries::default();
        let mut all: Vec<f32> = Vec::new();
        for tokens in [3, 40, 5] {
            let first = kv.tokens();
            let queries: Vec<f32> = (0..tokens * heads * d).map(|i| (all.len() + i) as f32).collect();
            (0..tokens).for_each(|_| kv.append(&[0.0; 4], &[0.0; 4]));
            recent.observe(&PrefillChunk::new(0, first, &queries, heads, &kv));
            all.extend(&queries);
        }
        let last = &all[all.len() - RecentQueries::COUNT * heads * d..];
        assert_eq!(recent.of_group(0, 0, 1, d), last);
        let second: Vec<f32> = last.chunks(heads * d).flat_map(|token| &token[d..]).copied().collect();
        assert_eq!(recent.of_group(0, 1, 2, d), second);
        assert!(recent.of_group(1, 0, 1, d).is_empty());
    }

    #[test]
    fn means_over_bins_are_close_to_means() {
        let numbers: Vec<f64> = (0..5000).map(|i| (i as f64 * 0.618).fract()).collect();
        let mut halves = vec![Histogram::new(), Histogram::new()];
        numbers.iter().enumerate().for_each(|(i, x)| halves[i % 2].add(*x));
        let f = |x: f64| x.powi(10);
        let mean = numbers.iter().map(|x| f(*x)).sum::<f64>() / numbers.len() as f64;
        assert!((Histogram::pooled(halves).mean(f) / mean - 1.0).abs() < 1e-3);
        assert_eq!(Histogram::new().mean(f), 0.0);
    }

    #[test]
    fn the_least_number_that_reaches_a_target() {
        assert_eq!(least_reaching(1..=100, 50.0, |x| x as f64 * 2.0), 25);
        assert_eq!(least_reaching(1..=100, 1e9, |x| x as f64), 100);
        assert_eq!(least_reaching(3..=100, 0.0, |x| x as f64), 3);
    }
}

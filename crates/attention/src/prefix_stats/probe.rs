//! Finds the value of a method's own parameter (a threshold, a share) that yields the requested density.
//!
//! The last queries of the prefix are scored against its keys, as a stand-in for the queries that will follow. If no query was kept,
//! keys are used as queries. One value is found for all layers and heads of an example, because published methods set such a
//! parameter per model and not per head; densities of single heads differ.

use std::ops::Range;

use rayon::prelude::*;

use crate::calibration::collector::PrefillChunk;
use crate::kv::{KvDtype, KvError, KvPart, KvRows, KvShape, Prefix, ReadCounter};
use crate::prefix_stats::stats::PromptHead;
use crate::types::budget::{Budget, Context};
use crate::types::prefix_head::{HeadPrefix, SparseLayerRank};
use crate::types::scores::score_each;

/// The last queries of a prefix, rotated and unscaled: `[query][query head][d]` for each layer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecentQueries {
    layers: Vec<Vec<f32>>,
    heads: usize,
    /// Tokens of the whole prefix, if known.
    prefix_tokens: Option<usize>,
}

impl RecentQueries {
    /// Queries kept for each head.
    pub const COUNT: usize = 16;

    /// Creates an empty value for a prefix of `tokens` tokens; chunks that hold none of its last queries are skipped.
    pub fn of_prefix(tokens: usize) -> Self {
        Self { prefix_tokens: Some(tokens), ..Self::default() }
    }

    /// Adds a chunk of a dense prefill, keeping the last queries of its layer.
    ///
    /// # Errors
    /// If a device that computes the chunk fails.
    pub fn observe(&mut self, chunk: &PrefillChunk<'_>) -> Result<(), KvError> {
        if self.prefix_tokens.is_some_and(|tokens| chunk.end() + Self::COUNT <= tokens) {
            return Ok(());
        }
        if self.layers.len() <= chunk.layer {
            self.layers.resize(chunk.layer + 1, Vec::new());
        }
        self.heads = chunk.heads;
        let (kept, most) = (&mut self.layers[chunk.layer], Self::COUNT * chunk.heads * chunk.d());
        kept.extend_from_slice(&chunk.last_queries(Self::COUNT)?);
        kept.drain(..kept.len().saturating_sub(most));
        Ok(())
    }

    /// The queries `[query][d]` of the query heads of one KV head; empty if none were kept.
    fn of_group(&self, layer: usize, kv_head: usize, kv_heads: usize, d: usize) -> Vec<f32> {
        let group = self.heads / kv_heads;
        let of_token = |token: &[f32]| token[kv_head * group * d..][..group * d].to_vec();
        self.layers
            .get(layer)
            .map_or(Vec::new(), |queries| queries.chunks_exact(self.heads * d).flat_map(of_token).collect())
    }
}

/// A prefix on which a parameter is solved for a density.
pub struct Probe<'a> {
    /// Keys and values.
    pub(crate) prefix: &'a Prefix,
    /// Queries by which the keys are scored.
    pub(crate) queries: &'a RecentQueries,
    /// Storage type of keys and values.
    pub(crate) dtype: KvDtype,
    /// Whether each layer is dense; dense layers are not probed.
    pub(crate) dense: &'a [bool],
    /// Tokens that a method selects from.
    pub(crate) candidates: Range<usize>,
    /// Tokens in context and static tokens, on average over the tokens known to follow the prefix.
    pub(crate) context: Context,
    /// Counts reads, if the prefix cannot be borrowed.
    pub(crate) reads: &'a ReadCounter,
}

/// One KV head of a probed prefix.
pub struct ProbeHead<'a> {
    /// The head.
    pub prefix: HeadPrefix<'a>,
    /// Rotated, unscaled queries `[query][d]` of its query heads.
    pub queries: Vec<f32>,
}

impl ProbeHead<'_> {
    /// Calls `visit` with every query's logits (scaled `q·k`) of the candidates.
    ///
    /// # Errors
    /// If the keys cannot be read.
    pub fn each_logits(&self, mut visit: impl FnMut(&[f32])) -> Result<(), KvError> {
        self.each_logits_of(self.prefix.candidates.clone(), |_, logits| visit(logits))
    }

    /// Calls `visit` with the number of every query and its logits of a range of the prefix's tokens.
    ///
    /// # Errors
    /// If the keys cannot be read.
    pub fn each_logits_of(&self, tokens: Range<usize>, mut visit: impl FnMut(usize, &[f32])) -> Result<(), KvError> {
        let scale = self.prefix.scale.factor();
        score_each(&self.queries, self.prefix.keys.slice(tokens), |query, logits| {
            logits.iter_mut().for_each(|x| *x *= scale);
            visit(query, logits);
        })
    }
}

impl Probe<'_> {
    /// Number of candidates, at least one.
    pub fn candidates(&self) -> usize {
        self.candidates.len()
    }

    /// Number of candidates that each query must select on average to reach `density`.
    pub fn tokens(&self, density: f64) -> f64 {
        self.context.missing(density).max(1) as f64
    }

    /// Number of candidates that a method keeps if it selects once, when the prefix ends, to meet a density on average over the
    /// tokens known to follow; `None` if the budget is not a density.
    pub fn tokens_once(&self, budget: Budget) -> Option<usize> {
        match budget {
            Budget::Density(density) => Some(self.context.missing(density).max(1)),
            Budget::Tokens(_) | Budget::Ratio(_) | Budget::Kept(_) => None,
        }
    }

    /// The results of `measure` on each KV head of each sparse layer, in their order.
    ///
    /// # Errors
    /// If keys and values of a layer cannot be read.
    pub fn measure<T: Send>(
        &self,
        measure: impl Fn(&ProbeHead<'_>) -> Result<T, KvError> + Sync,
    ) -> Result<Vec<T>, KvError> {
        let layers: Vec<usize> = (0..self.prefix.layers()).filter(|layer| !self.dense[*layer]).collect();
        let kv_heads = self.prefix.shape().kv_heads;
        let heads = layers.into_par_iter().flat_map_iter(|layer| (0..kv_heads).map(move |kv_head| (layer, kv_head)));
        let of_head = |(layer, kv_head)| {
            let (head, tokens) = (self.prefix.head(layer, kv_head)?, self.prefix.tokens());
            let rows = [KvPart::Keys, KvPart::Values].map(|part| KvRows::of_head(head, part, tokens, self.reads));
            measure(&self.head(layer, kv_head, rows)?)
        };
        heads.map(of_head).collect()
    }

    fn head<'r>(
        &'r self,
        layer: usize,
        kv_head: usize,
        [keys, values]: [KvRows<'r>; 2],
    ) -> Result<ProbeHead<'r>, KvError> {
        let KvShape { d, kv_heads, .. } = self.prefix.shape();
        let mut queries = self.queries.of_group(layer, kv_head, kv_heads, d);
        if queries.is_empty() {
            let step = self.candidates.len().div_ceil(RecentQueries::COUNT);
            let sampled: Vec<u32> = self.candidates.clone().step_by(step).map(|token| token as u32).collect();
            queries = keys.gather(&sampled)?;
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
        Ok(ProbeHead { prefix, queries })
    }
}

/// A histogram of numbers from 0 to 1, with the count and sum of each bin. Means of functions can be computed from it to about a
/// bin's width.
#[derive(Debug, Clone)]
pub struct Histogram {
    bins: Vec<(u64, f64)>,
}

impl Histogram {
    const BINS: usize = 1024;

    /// An empty histogram.
    pub fn new() -> Self {
        Self { bins: vec![(0, 0.0); Self::BINS] }
    }

    /// Counts `x`. Numbers below 0 or above 1 go into the first or the last bin.
    pub fn add(&mut self, x: f64) {
        let bin = ((x * Self::BINS as f64) as usize).min(Self::BINS - 1);
        self.bins[bin].0 += 1;
        self.bins[bin].1 += x;
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (bin, (count, sum)) in self.bins.iter_mut().zip(&other.bins) {
            bin.0 += count;
            bin.1 += sum;
        }
    }

    /// The mean of `f` over all numbers, each taken as the mean of its bin.
    pub fn mean(&self, f: impl Fn(f64) -> f64) -> f64 {
        let filled = self.bins.iter().filter(|(count, _)| *count > 0);
        let (mut all, mut total) = (0u64, 0.0);
        for (count, sum) in filled {
            all += count;
            total += *count as f64 * f(sum / *count as f64);
        }
        total / all.max(1) as f64
    }

    /// The sum of histograms.
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

/// The smallest integer in `range` at which the non-decreasing `f` reaches `target`, or the end of `range` if there is none.
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
            recent.observe(&PrefillChunk::new(0, first, &queries, heads, &kv)).unwrap();
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

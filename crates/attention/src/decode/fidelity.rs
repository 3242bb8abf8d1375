//! Fidelity: comparison with exact attention on the same inputs, step by step.
//!
//! For each query head, three things are measured, whatever weighting the method uses: how far its output is from
//! that of exact attention, which of the tokens with the largest logits it attended, and what share of the exact
//! softmax went to tokens that it did not attend.

use crate::decode::head_kv::HeadKv;
use crate::kv::KvError;
use crate::types::scores::score_context;
use crate::types::selection::{AttendedTokens, Selection, StaticTokens};
use spattn_kernels::cap_logits;
use spattn_kernels::topk::top_k;

/// Sums over steps, by layer and query head.
#[derive(Debug, Clone)]
pub struct FidelityMeter {
    layers: Vec<Vec<HeadSums>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct HeadSums {
    error: f64,
    recall: f64,
    dropped: f64,
    count: u64,
}

/// The position of the compared query heads in the model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Layer, from 0.
    pub layer: usize,
    /// The first of the group's query heads.
    pub first_head: usize,
}

impl FidelityMeter {
    /// Creates a meter for `layers` layers, without comparisons.
    pub fn new(layers: usize) -> Self {
        Self { layers: vec![Vec::new(); layers] }
    }

    /// Mean of `‖o − o_full‖ / ‖o_full‖`, `[layer][query head]`.
    pub fn output_error(&self) -> Vec<Vec<f64>> {
        self.means(|head| head.error)
    }

    /// Mean recall of the exact top-k, where `k` is the number of tokens attended, `[layer][query head]`.
    pub fn recall(&self) -> Vec<Vec<f64>> {
        self.means(|head| head.recall)
    }

    /// Mean exact attention mass of the tokens that were not attended, `[layer][query head]`.
    pub fn dropped_mass(&self) -> Vec<Vec<f64>> {
        self.means(|head| head.dropped)
    }

    fn means(&self, of: fn(&HeadSums) -> f64) -> Vec<Vec<f64>> {
        let mean = |head: &HeadSums| of(head) / head.count.max(1) as f64;
        self.layers.iter().map(|heads| heads.iter().map(mean).collect()).collect()
    }

    /// Adds the comparisons of another sequence over the same layers.
    pub(crate) fn absorb(&mut self, other: &Self) {
        for (own, other) in self.layers.iter_mut().zip(&other.layers) {
            own.resize(own.len().max(other.len()), HeadSums::default());
            for (own, other) in own.iter_mut().zip(other) {
                own.error += other.error;
                own.recall += other.recall;
                own.dropped += other.dropped;
                own.count += other.count;
            }
        }
    }

    /// Compares one step of one KV head with exact attention.
    pub(crate) fn compare(
        &mut self,
        place: Place,
        kv: &HeadKv<'_>,
        queries: &[f32],
        picked: &AttendedTokens,
        out: &[f32],
    ) -> Result<(), KvError> {
        let AttendedTokens { exact, selection } = picked;
        let (group, scale) = (queries.len() / kv.d, kv.spec.scale.factor());
        let scaled: Vec<f32> = queries.iter().map(|q| q * scale).collect();
        let mut acc = kv.spec.accumulator(group, kv.d);
        kv.attend_positions(&scaled, kv.visible(), &mut acc)?;
        kv.add_sinks(&mut acc);
        let mut full = vec![0.0; out.len()];
        acc.finish(&mut full);
        let heads = &mut self.layers[place.layer];
        heads.resize(heads.len().max(place.first_head + group), HeadSums::default());
        for (h, query) in scaled.chunks_exact(kv.d).enumerate() {
            let range = h * kv.d..(h + 1) * kv.d;
            let attended = Attended::new(kv.total(), *exact, selection.as_ref(), h);
            let sums = &mut heads[place.first_head + h];
            sums.error += relative_error(&out[range.clone()], &full[range]);
            sums.count += 1;
            if attended.count == kv.visible().len() {
                sums.recall += 1.0;
                continue;
            }
            let logits = logits(kv, query)?;
            sums.recall += attended.recall(&logits);
            let sink = kv.spec.sinks_of(kv.kv_head, group).get(h).copied();
            sums.dropped += attended.dropped_mass(&logits, sink);
        }
        Ok(())
    }
}

fn relative_error(out: &[f32], full: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let difference: f64 = out.iter().zip(full).map(|(a, b)| square(*a as f64 - *b as f64)).sum();
    let norm: f64 = full.iter().map(|b| square(*b as f64)).sum();
    if norm == 0.0 { difference.sqrt() } else { (difference / norm).sqrt() }
}

/// Returns the logits of all tokens in context for a scaled query, with the layer's cap; tokens that the layer hides
/// get no weight.
fn logits(kv: &HeadKv<'_>, scaled: &[f32]) -> Result<Vec<f32>, KvError> {
    let mut logits = vec![0.0; kv.total()];
    score_context(scaled, kv.keys(), &mut logits)?;
    if let Some(cap) = kv.spec.soft_cap {
        cap_logits(&mut logits, 1.0, cap);
    }
    logits[..kv.visible().start].fill(f32::NEG_INFINITY);
    Ok(logits)
}

/// The tokens in context that a query head attended.
struct Attended {
    tokens: Vec<bool>,
    count: usize,
}

impl Attended {
    fn new(total: usize, exact: StaticTokens, selection: Option<&Selection>, head: usize) -> Self {
        let mut tokens = vec![false; total];
        tokens[..exact.sink].fill(true);
        tokens[exact.recent..].fill(true);
        let picks = match selection {
            None => &[][..],
            Some(Selection::Shared(picks)) => &picks.tokens,
            Some(Selection::PerHead(heads)) => &heads[head].tokens,
        };
        picks.iter().for_each(|t| tokens[*t as usize] = true);
        Self { count: tokens.iter().filter(|attended| **attended).count(), tokens }
    }

    /// Recall of the exact top-k, where `k` tokens were attended: the attended share of the `k` tokens with the largest
    /// logits.
    fn recall(&self, logits: &[f32]) -> f64 {
        let top = top_k(logits, self.count);
        top.iter().filter(|t| self.tokens[**t as usize]).count() as f64 / self.count.max(1) as f64
    }

    /// Softmax mass of the tokens that were not attended. The denominator includes the sink logit, which has no
    /// value, if there is one.
    fn dropped_mass(&self, logits: &[f32], sink: Option<f32>) -> f64 {
        let max = logits.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
        let (mut kept, mut dropped) = (sink.map_or(0.0, |sink| f64::from(sink - max).exp()), 0.0);
        for (logit, attended) in logits.iter().zip(&self.tokens) {
            let weight = f64::from(logit - max).exp();
            *(if *attended { &mut kept } else { &mut dropped }) += weight;
        }
        dropped / (kept + dropped)
    }
}

//! Comparison with exact attention on the same inputs, step by step.

use super::head::HeadKv;
use super::method::{Exact, Selection, score_into};
use crate::kernels::cpu::Accumulator;
use crate::kernels::cpu::topk::top_k;

/// Sums of output error and recall by layer, over steps and query heads.
#[derive(Debug, Clone)]
pub struct FidelityMeter {
    layers: Vec<LayerSums>,
}

#[derive(Debug, Clone, Copy, Default)]
struct LayerSums {
    error: f64,
    recall: f64,
    count: u64,
}

impl FidelityMeter {
    /// Nothing compared yet, for `layers` layers.
    pub fn new(layers: usize) -> Self {
        Self { layers: vec![LayerSums::default(); layers] }
    }

    /// Mean of `‖o − o_full‖ / ‖o_full‖` by layer; 0 for a layer never compared.
    pub fn output_error(&self) -> Vec<f64> {
        self.layers.iter().map(|l| l.error / l.count.max(1) as f64).collect()
    }

    /// Mean recall of the exact top-k by layer, `k` being the number of tokens attended; 1 for a layer
    /// never compared.
    pub fn recall(&self) -> Vec<f64> {
        self.layers.iter().map(|l| if l.count == 0 { 1.0 } else { l.recall / l.count as f64 }).collect()
    }

    /// Compares one step of one KV head with exact attention.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn compare(
        &mut self,
        layer: usize,
        kv: &HeadKv<'_>,
        queries: &[f32],
        scale: f32,
        exact: Exact,
        selection: Option<&Selection>,
        out: &[f32],
    ) {
        let scaled: Vec<f32> = queries.iter().map(|q| q * scale).collect();
        let mut acc = Accumulator::new(queries.len() / kv.d, kv.d);
        kv.attend_positions(&scaled, 0..kv.total(), &mut acc);
        let mut full = vec![0.0; out.len()];
        acc.finish(&mut full);
        let sums = &mut self.layers[layer];
        for (h, query) in queries.chunks_exact(kv.d).enumerate() {
            let range = h * kv.d..(h + 1) * kv.d;
            sums.error += relative_error(&out[range.clone()], &full[range]);
            sums.recall += recall(kv, query, exact, selection, h);
            sums.count += 1;
        }
    }
}

fn relative_error(out: &[f32], full: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let difference: f64 = out.iter().zip(full).map(|(a, b)| square(*a as f64 - *b as f64)).sum();
    let norm: f64 = full.iter().map(|b| square(*b as f64)).sum();
    if norm == 0.0 { difference.sqrt() } else { (difference / norm).sqrt() }
}

/// Share of the exact top-k tokens (by `q·k`, over the whole context) among the `k` attended ones.
fn recall(kv: &HeadKv<'_>, query: &[f32], exact: Exact, selection: Option<&Selection>, head: usize) -> f64 {
    let total = kv.total();
    let mut attended = vec![false; total];
    attended[..exact.sink].fill(true);
    attended[exact.recent..].fill(true);
    let picks = match selection {
        None => &[][..],
        Some(Selection::Shared(picks)) => &picks.tokens,
        Some(Selection::PerHead(heads)) => &heads[head].tokens,
    };
    for &t in picks {
        attended[t as usize] = true;
    }
    let k = attended.iter().filter(|a| **a).count();
    if k == total {
        return 1.0;
    }
    let mut scores = vec![0.0; total];
    score_into(query, kv.prefix_keys, kv.d, &mut scores[..kv.prefix_tokens]);
    score_into(query, kv.tail_keys, kv.d, &mut scores[kv.prefix_tokens..]);
    let top = top_k(&scores, k);
    top.iter().filter(|&&t| attended[t as usize]).count() as f64 / k as f64
}

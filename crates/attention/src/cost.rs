//! Counters of the work that attention did: tokens, FLOPs, bytes. The code that does the work counts it.

use std::ops::AddAssign;

use crate::kv::tier::TierBytes;

/// Work of attention, summed over steps, layers or heads.
///
/// A multiply-add counts as two FLOPs. "Full" is what exact attention over the whole context takes for the same queries: `4·n·d` per query
/// head and step (`2·n·d` each for `q·K` and `p·V`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Steps, counted for each query head.
    pub steps: u64,
    /// Tokens in context, summed over query-head steps.
    pub context_tokens: u64,
    /// Tokens attended (static ones included), summed over query-head steps.
    pub attended_tokens: u64,
    /// Static tokens among those attended. Not counted in a masked prefill.
    pub exact_tokens: u64,
    /// FLOPs of finding which tokens to attend.
    pub score_flops: u64,
    /// The part of `score_flops` that projects queries onto shared data (hyperplanes).
    pub projection_flops: u64,
    /// FLOPs of attending the selected tokens.
    pub attend_flops: u64,
    /// FLOPs of exact attention over the whole context.
    pub full_flops: u64,
    /// Bytes of K and V read, wherever they are.
    pub kv_bytes: u64,
    /// Bytes of K and V that the source of the prefix brought from each tier: whole pages, each time that they were read. For a source that
    /// keeps [pages](crate::kv::KvSource::paging) in memory, host bytes are those that the sequence would find there if it had that memory
    /// to itself. Zero where the source lends its rows. Below a GPU, `host` is what crossed the bus; if the host attends what it selects,
    /// that includes queries, their codes and partial softmaxes.
    pub fetched: TierBytes,
    /// Bytes of auxiliary data (index, summaries, labels) read.
    pub aux_bytes: u64,
    /// Bytes of data that all heads, layers and sequences share (hyperplanes), counted at each use. They are small and stay in
    /// caches, so they do not count as reads from memory.
    pub shared_bytes: u64,
    /// How often shared data was used: `shared_bytes` divided by this is its size.
    pub shared_uses: u64,
    /// Bytes of scores and counts that selection writes and reads.
    pub select_bytes: u64,
    /// Tokens attended after the prefix that do not count as budget, without the current one.
    pub free_tokens: u64,
    /// Tokens that a layer's own queries would have selected, where tokens are [selected ahead](crate::Method::selects_ahead) and
    /// [misses are counted](crate::Sequence::counting_misses). A selection that a group shares counts once.
    pub wanted_tokens: u64,
    /// Those of the `wanted_tokens` that were not selected ahead.
    pub missed_tokens: u64,
}

impl Cost {
    /// Tokens attended over tokens in context; 1 if nothing was counted.
    pub fn density(&self) -> f64 {
        ratio(self.attended_tokens, self.context_tokens)
    }

    /// FLOPs of scoring over FLOPs of full attention.
    pub fn cost1(&self) -> f64 {
        self.score_flops as f64 / self.full_flops.max(1) as f64
    }

    /// Tokens selected over tokens in context, without static ones; 1 if nothing was counted.
    pub fn picked_density(&self) -> f64 {
        ratio(self.attended_tokens.saturating_sub(self.exact_tokens), self.context_tokens)
    }

    /// FLOPs of scoring without projections onto shared data, over FLOPs of full attention.
    pub fn cost1_published(&self) -> f64 {
        self.score_flops.saturating_sub(self.projection_flops) as f64 / self.full_flops.max(1) as f64
    }

    /// FLOPs of attending selected tokens over FLOPs of full attention, without static tokens; 1 if nothing was counted.
    pub fn cost2_picked(&self) -> f64 {
        let per_token = self.full_flops.checked_div(self.context_tokens).unwrap_or(0);
        ratio(self.attend_flops.saturating_sub(per_token * self.exact_tokens), self.full_flops)
    }

    /// Bytes of shared data, counted once; 0 if there is none.
    pub fn shared_resident(&self) -> f64 {
        self.shared_bytes as f64 / self.shared_uses.max(1) as f64
    }

    /// Moves work that attention does anyway out of the cost of finding: `products` products of a query head with a key of `d` numbers, and
    /// reads of keys that take `bytes` together. Attention counts them itself.
    pub fn leave_to_attention(&mut self, products: usize, d: usize, bytes: usize) {
        let (flops, read) = (2 * (products * d) as u64, bytes as u64);
        debug_assert!(
            flops <= self.score_flops && read <= self.kv_bytes,
            "selection counted fewer products or bytes than attention takes over"
        );
        self.score_flops = self.score_flops.saturating_sub(flops);
        self.kv_bytes = self.kv_bytes.saturating_sub(read);
    }

    /// The share of the wanted tokens that were not selected ahead; `None` if no misses were counted.
    pub fn missed_share(&self) -> Option<f64> {
        (self.wanted_tokens > 0).then(|| ratio(self.missed_tokens, self.wanted_tokens))
    }

    /// FLOPs of the gathered attention over FLOPs of full attention; 1 if nothing was counted.
    pub fn cost2(&self) -> f64 {
        ratio(self.attend_flops, self.full_flops)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.context_tokens += other.context_tokens;
        self.attended_tokens += other.attended_tokens;
        self.score_flops += other.score_flops;
        self.projection_flops += other.projection_flops;
        self.exact_tokens += other.exact_tokens;
        self.shared_uses += other.shared_uses;
        self.attend_flops += other.attend_flops;
        self.full_flops += other.full_flops;
        self.kv_bytes += other.kv_bytes;
        self.fetched += other.fetched;
        self.aux_bytes += other.aux_bytes;
        self.shared_bytes += other.shared_bytes;
        self.select_bytes += other.select_bytes;
        self.free_tokens += other.free_tokens;
        self.wanted_tokens += other.wanted_tokens;
        self.missed_tokens += other.missed_tokens;
    }
}

/// One [`Cost`] for each layer of a model, and the tokens that each query head attended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerCosts {
    layers: Vec<Cost>,
    /// Tokens attended and tokens in context, `[layer][query head]`.
    heads: Vec<Vec<(u64, u64)>>,
}

impl LayerCosts {
    /// Empty counters for `layers` layers.
    pub fn new(layers: usize) -> Self {
        Self { layers: vec![Cost::default(); layers], heads: vec![Vec::new(); layers] }
    }

    /// The counter of one layer.
    pub fn layer_mut(&mut self, layer: usize) -> &mut Cost {
        &mut self.layers[layer]
    }

    /// Counts what some query heads, from `first` on, attended of `context` tokens.
    pub fn count_heads(&mut self, layer: usize, first: usize, attended: &[usize], context: usize) {
        let heads = &mut self.heads[layer];
        heads.resize(heads.len().max(first + attended.len()), (0, 0));
        for (counts, attended) in heads[first..].iter_mut().zip(attended) {
            counts.0 += *attended as u64;
            counts.1 += context as u64;
        }
    }

    /// Adds the counts of another run through the same layers.
    pub fn absorb(&mut self, other: &Self) {
        for (own, other) in self.layers.iter_mut().zip(&other.layers) {
            *own += *other;
        }
        for (own, other) in self.heads.iter_mut().zip(&other.heads) {
            own.resize(own.len().max(other.len()), (0, 0));
            for (own, other) in own.iter_mut().zip(other) {
                own.0 += other.0;
                own.1 += other.1;
            }
        }
    }

    /// Density of each query head of a layer; empty if none attended.
    pub fn head_densities(&self, layer: usize) -> Vec<f64> {
        self.heads[layer].iter().map(|(attended, context)| ratio(*attended, *context)).collect()
    }

    /// Sum over the layers that `keep` accepts.
    pub fn total(&self, keep: impl Fn(usize) -> bool) -> Cost {
        let mut total = Cost::default();
        for (_, cost) in self.layers.iter().enumerate().filter(|(layer, _)| keep(*layer)) {
            total += *cost;
        }
        total
    }

    /// Counters by layer.
    pub fn layers(&self) -> &[Cost] {
        &self.layers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_tokens_and_projections_can_be_left_out() {
        let cost = Cost {
            context_tokens: 1000,
            attended_tokens: 150,
            exact_tokens: 130,
            score_flops: 700,
            projection_flops: 600,
            attend_flops: 4 * 16 * 150,
            full_flops: 4 * 16 * 1000,
            shared_bytes: 768,
            shared_uses: 2,
            ..Cost::default()
        };
        assert_eq!((cost.density(), cost.picked_density()), (0.15, 0.02));
        assert_eq!((cost.cost2(), cost.cost2_picked()), (0.15, 0.02));
        assert_eq!((cost.cost1_published(), cost.cost1()), (100.0 / 64_000.0, 700.0 / 64_000.0));
        assert_eq!((cost.shared_resident(), Cost::default().shared_resident()), (384.0, 0.0));
        assert_eq!(Cost::default().picked_density(), 1.0);
    }

    #[test]
    fn what_attention_does_anyway_is_no_cost_of_finding() {
        let found = Cost { score_flops: 2 * 100 * 16, kv_bytes: 60 * 16 * 2, aux_bytes: 5, ..Cost::default() };
        let mut left = found;
        left.leave_to_attention(30, 16, 20 * 16 * 2);
        assert_eq!(left, Cost { score_flops: 2 * 70 * 16, kv_bytes: 40 * 16 * 2, ..found });
        left.leave_to_attention(70, 16, 40 * 16 * 2);
        assert_eq!(left, Cost { score_flops: 0, kv_bytes: 0, ..found });
    }

    #[test]
    fn heads_are_counted_by_themselves() {
        let mut costs = LayerCosts::new(2);
        costs.count_heads(1, 2, &[5, 10], 10);
        costs.count_heads(1, 0, &[1, 2], 10);
        costs.count_heads(1, 0, &[9, 8], 90);
        assert_eq!(costs.head_densities(1), [0.1, 0.1, 0.5, 1.0]);
        assert!(costs.head_densities(0).is_empty());
        let mut sum = LayerCosts::new(2);
        sum.count_heads(1, 0, &[10], 10);
        sum.absorb(&costs);
        assert_eq!(sum.head_densities(1), [20.0 / 110.0, 0.1, 0.5, 1.0]);
    }
}

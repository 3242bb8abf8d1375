//! What a sequence costs: counted when a token is attended, collected from a device, and summed over sequences.

use std::any::Any;

use crate::cost::Cost;
use crate::decode::index_cache::{HAS_FORM, Index};
use crate::decode::sequence::{Selector, Sequence};
use crate::kv::{KvPart, KvShape, Tier};
use crate::method::TailRule;
use crate::types::selection::{SelectionCounts, StaticTokens};

/// What a device found in its caches at a layer, instead of reading it over the bus.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheHits {
    /// Keys and values of attended tokens, each of one KV head.
    pub tokens: u64,
    /// Keys that selection scored.
    pub keys: u64,
}

impl Sequence {
    /// Adds the costs, times and fidelity of another sequence of the same method on the same prefix; caches and states
    /// stay apart.
    pub fn merge_counters(&mut self, other: &Sequence) {
        self.costs.absorb(other.costs());
        self.index_time += other.index_time;
        self.attention_time += other.attention_time;
        self.has_whole_steps |= other.has_whole_steps;
        if let (Some(own), Some(other)) = (&mut self.fidelity, &other.fidelity) {
            own.absorb(other);
        }
    }

    /// Bytes of keys and values that this sequence needs at this point, over all layers: all tokens in context, less
    /// the evicted ones. Tokens that are not stored as codes are the last ones: of fewer tokens than all, they are held first.
    pub fn kv_bytes_held(&self) -> u64 {
        let (rows, kv_heads) = (self.prefix.row_bytes(), self.prefix.shape().kv_heads);
        let last = kv_heads * (self.tokens() - rows.coded_tokens());
        let of_layer = |held: usize| {
            let plain = held.min(last);
            KvPart::BOTH.map(|part| rows.of_counts(part, held - plain, plain)).iter().sum::<usize>()
        };
        self.tokens_held().into_iter().map(of_layer).sum::<usize>() as u64
    }

    /// Tokens whose keys and values this sequence needs at this point, mean over layers and KV heads. A KV head keeps
    /// what any query head of its group keeps.
    pub fn kv_tokens_held(&self) -> f64 {
        let held = self.tokens_held();
        let kv_heads = held.len() * self.prefix.shape().kv_heads;
        held.iter().sum::<usize>() as f64 / kv_heads.max(1) as f64
    }

    /// Resident tokens of each layer, summed over its KV heads.
    fn tokens_held(&self) -> Vec<usize> {
        let total = self.tokens();
        let exact = self.method.method.exact(&self.method.policy, self.prefix.tokens(), total);
        let fixed = exact.sink + total - exact.recent;
        let held = |seen: usize, index: &Index, state: &Box<dyn Any + Send>| {
            let resident = self.method.method.resident_candidates(index.as_ref(), state.as_ref());
            resident.map_or(seen, |held| seen.min(fixed + held))
        };
        let of_layer = |layer: usize| {
            let (kv_heads, indexes) = (self.prefix.shape().kv_heads, &self.indexes.by_layer[layer]);
            match &self.selector {
                _ if self.dense[layer] => kv_heads * self.seen_by_full(layer, total),
                _ if !indexes.is_empty() => {
                    let seen = self.seen_by_full(layer, total);
                    indexes.iter().zip(&self.states[layer]).map(|(i, s)| held(seen, i, s)).sum()
                }
                // A device selects from all tokens, unless it said how many are resident.
                Selector::Device { resident, .. } => {
                    resident[layer].map_or(kv_heads * total, |held| kv_heads * fixed + held)
                }
                // Without an index there was nothing to select: what is not static now has left for good.
                Selector::Host => kv_heads * fixed.min(self.seen_by_full(layer, total)),
            }
        };
        (0..self.prefix.layers()).map(of_layer).collect()
    }

    /// Adds the counters of a device since the last call, `[layer][kv_heads + heads + 1]`, summed over steps: tokens
    /// read by each KV head, tokens attended by each query head, and index entries read.
    pub fn collect_device_counters(&mut self, picks: &[u64]) {
        if let Selector::Device { has_uncollected, .. } = &mut self.selector {
            *has_uncollected = false;
        }
        let (layers, shape) = (self.prefix.layers(), self.prefix.shape());
        let method = self.method.method.clone();
        let form = method.device_form().expect(HAS_FORM);
        let crosses_bus = self.crosses_bus();
        for (layer, picks) in picks.chunks_exact(picks.len() / layers).enumerate() {
            let (read, picks) = picks.split_at(shape.kv_heads);
            let (entries, attended) = picks.split_last().expect("the counts end with the entries read");
            let tokens: u64 = attended.iter().sum();
            let step = self.step_shape(attended.len() / shape.kv_heads, 0);
            let cost = self.costs.layer_mut(layer);
            let before = cost.kv_bytes;
            *cost += form.cost_of_picks(&step, *entries, tokens);
            let read = read.iter().sum::<u64>();
            if form.takes_products(step.group) {
                let bytes = read as usize * shape.d * shape.dtype.bytes();
                cost.leave_to_attention(tokens as usize, shape.d, bytes);
            }
            cost.kv_bytes += read * shape.row_bytes() as u64;
            if crosses_bus {
                cost.fetched.host += cost.kv_bytes - before;
            }
            cost.attended_tokens += tokens;
            cost.attend_flops += attend_flops(shape.d) * tokens;
            if tokens > 0 {
                let attended: Vec<usize> = attended.iter().map(|tokens| *tokens as usize).collect();
                self.costs.count_heads(layer, 0, &attended, 0);
            }
        }
    }

    /// Moves the bytes that a device found in its caches from the host tier of the costs to the device tier. `hits` has those of each layer,
    /// among what was [collected](Self::collect_device_counters) since the last call.
    pub fn collect_cache_hits(&mut self, hits: &[CacheHits]) {
        if !self.crosses_bus() {
            return;
        }
        let KvShape { d, dtype, .. } = self.prefix.shape();
        let row_bytes = self.prefix.shape().row_bytes() as u64;
        for (layer, CacheHits { tokens, keys }) in hits.iter().enumerate() {
            let fetched = &mut self.costs.layer_mut(layer).fetched;
            let bytes = (tokens * row_bytes + keys * (d * dtype.bytes()) as u64).min(fetched.host);
            fetched.host -= bytes;
            fetched.device += bytes;
        }
    }

    /// Whether a device reads the prefix from host memory, so that bytes cross the bus, and these can be counted: all tokens that are
    /// selected are tokens of the prefix.
    pub fn crosses_bus(&self) -> bool {
        let source = self.prefix.source();
        let is_on_host = source.device().is_some_and(|device| device.tier() == Tier::Host);
        is_on_host && !self.method.has_moving_candidates()
    }

    /// Sets how many evictable tokens a layer still holds, summed over KV heads, as counted on the device.
    pub fn set_resident_tokens(&mut self, layer: usize, tokens: usize) {
        if let Selector::Device { resident, .. } = &mut self.selector {
            resident[layer] = Some(tokens);
        }
    }

    /// Of the first `total` tokens, those that full attention of a layer attends: all, or the layer's window.
    fn seen_by_full(&self, layer: usize, total: usize) -> usize {
        total - self.prefix.spec(layer).first_visible(total)
    }

    /// Adds the cost of attending static and selected tokens for the query heads of a KV head to `cost`, the cost of its selection.
    pub(super) fn count(
        &mut self,
        layer: usize,
        kv_head: usize,
        exact: StaticTokens,
        selected: &SelectionCounts,
        mut cost: Cost,
    ) {
        let (total, shape, group) = (self.total(layer), self.prefix.shape(), selected.of_heads.len());
        let seen = self.seen_by_full(layer, total);
        let attended: Vec<usize> = selected.of_heads.iter().map(|picked| exact.tokens(total) + picked).collect();
        let summed: usize = attended.iter().sum();
        let rows = self.prefix.row_bytes();
        let of_static = rows.both(0..exact.sink) + rows.both(exact.recent..total);
        cost.kv_bytes += (of_static + selected.bytes) as u64;
        if self.crosses_bus() {
            // All selected tokens are tokens of the prefix.
            let behind = exact.recent.clamp(self.prefix.tokens().min(total), total)..total;
            let of_selected = match self.attends_part_on_host(layer) {
                // Queries go to the host, and partial softmaxes to the device.
                true => group * (shape.d * shape.dtype.bytes() + (2 + shape.d) * size_of::<f32>()),
                false => selected.bytes,
            };
            cost.fetched.host += (of_static - rows.both(behind) + of_selected) as u64;
        }
        cost.attend_flops += (selected.remainders * 2 * shape.d) as u64;
        cost.steps += group as u64;
        cost.context_tokens += (group * seen) as u64;
        cost.attended_tokens += summed as u64;
        cost.exact_tokens += (group * exact.tokens(total)) as u64;
        let has_rule = matches!(self.method.method.tail_rule(), TailRule::Own(_));
        if !self.dense[layer] && !self.method.has_moving_candidates() && !has_rule {
            cost.free_tokens += (group * (self.tail_tokens[layer].min(seen) - 1)) as u64;
        }
        let per_token = attend_flops(shape.d);
        cost.attend_flops += per_token * summed as u64;
        cost.full_flops += per_token * (group * seen) as u64;
        self.costs.count_heads(layer, kv_head * group, &attended, seen);
        *self.costs.layer_mut(layer) += cost;
    }
}

/// FLOPs of attending one token by one query head.
fn attend_flops(d: usize) -> u64 {
    4 * d as u64
}

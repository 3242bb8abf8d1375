//! What one method cost on one example: what was counted and timed while it ran.

use std::time::Duration;

use crate::records::costs::{FetchedBytes, KvTokens, PublishedCosts};
use crate::records::fidelity::{Fidelity, FidelitySpread, HeadFidelity, Spread, four_digits};
use crate::records::timing::{Solo, StepTime};
use spattn_attention::cost::Cost;
use spattn_attention::kv::TierBytes;
use spattn_attention::{IndexTime, Sequence};
use spattn_kernels::topk::argmax;

/// Counters and times of one method on one example, over all of its sequences.
pub struct MethodCosts {
    /// Tokens behind the prefix that were fed through the model: the rest of the prompt, and of the answer all but the last.
    pub steps: usize,
    /// Sequences that took each step together.
    pub streams: usize,
    /// The share of the steps' time that is attributed to this method, by kind of work.
    pub step_time: StepTime,
    /// Whether kinds of work were timed apart; otherwise only their sum is known.
    pub is_time_split: bool,
    /// Latency of a step of this method alone on the machine, if it was asked for.
    pub solo: Option<Solo>,
    /// Where tokens were selected, if the engine computes on a device: `host`, or `device` if the host selected none in a
    /// step. A random selection that looks at no query is made on the host too, though no step waits for it.
    pub select_on: &'static str,
    /// Time to build the method's index, in this or an earlier run.
    pub index: IndexTime,
    /// Time to read the prompt, if the method read it by itself.
    pub prefill: Option<Duration>,
    /// Density over all layers.
    pub density: f64,
    /// Density over the layers not dense by policy.
    pub density_sparse_layers: f64,
    /// Density of each layer.
    pub density_by_layer: Vec<f64>,
    /// Density over the query heads of the layers not dense by policy.
    pub density_spread: Option<Spread>,
    /// Parameters solved for the requested density.
    pub solved: Option<String>,
    /// Densities and costs as published tables count them: only over layers that are not dense by policy, with and without static tokens.
    /// `None` if the method does not count what finding tokens costs.
    pub comparable: Option<PublishedCosts>,
    /// Scoring FLOPs over full attention's; `None` if the method does not count them.
    pub cost1: Option<f64>,
    /// Attention FLOPs over full attention's.
    pub cost2: f64,
    /// Bits per prefix token per KV head; `None` if the method does not count them.
    pub aux_bits: Option<f64>,
    /// Bits of a token's key and value in a KV head, in the model's storage type.
    pub kv_bits: u32,
    /// Bytes per step, all layers; `None` if there was no step, or the method does not count them.
    pub bytes: Option<StepBytes>,
    /// Bytes that a step fetched by tier; `None` if there was no step, or the KV cache is in memory.
    pub fetched: Option<FetchedBytes>,
    /// Share of the attended tokens that belong to the tail and were attended in addition to the budget.
    pub free_share: f64,
    /// Share of the tokens that its own queries would have selected and that were not selected ahead; `None` if none are.
    pub missed_share: Option<f64>,
    /// Bytes of K and V that the method alone would keep at the end.
    pub kv_bytes_held: u64,
    /// `kv_bytes_held` in tokens.
    pub kv_tokens: KvTokens,
    /// Closeness to exact attention, if asked for.
    pub fidelity: Option<Fidelity>,
}

/// Bytes of a step, summed over layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepBytes {
    /// K, V and auxiliary data that are read.
    pub read: f64,
    /// What all heads share, as if every head read it separately.
    pub shared: f64,
    /// Scores and counts that are written and read again for a selection.
    pub select: f64,
}

impl StepBytes {
    fn of(cost: &Cost, steps: usize) -> Self {
        let each = |bytes: u64| bytes as f64 / steps as f64;
        Self {
            read: each(cost.kv_bytes + cost.aux_bytes),
            shared: each(cost.shared_bytes),
            select: each(cost.select_bytes),
        }
    }
}

impl MethodCosts {
    /// What the sequences of one method, of which there is at least one, cost together: they took `steps` steps.
    pub(crate) fn of_sequences(mut sequences: Vec<Sequence>, steps: usize, step_time: StepTime) -> Self {
        let solved = sequences[0].solved().map(str::to_owned);
        // What has to be kept in the end is what the longest sequence needs.
        let longest = argmax(&sequences.iter().map(|sequence| sequence.tokens() as f32).collect::<Vec<_>>());
        let mut all = sequences.swap_remove(longest);
        sequences.iter().for_each(|other| all.merge_counters(other));
        Self { solved, ..Self::of_sequence(&all, steps, step_time) }
    }

    fn of_sequence(sequence: &Sequence, steps: usize, step_time: StepTime) -> Self {
        let all = sequence.costs().total(|_| true);
        let sparse = sequence.costs().total(|layer| !sequence.is_dense(layer));
        let counts = sequence.counts_costs();
        Self {
            steps,
            streams: 1,
            step_time,
            is_time_split: !sequence.has_whole_steps(),
            solo: None,
            select_on: if sequence.selects_on_host() { "host" } else { "device" },
            index: sequence.index_time(),
            prefill: None,
            density: all.density(),
            density_sparse_layers: sparse.density(),
            comparable: counts.then(|| PublishedCosts::of(&sparse)),
            cost1: counts.then(|| all.cost1()),
            cost2: all.cost2(),
            aux_bits: counts.then(|| sequence.aux_bits()),
            kv_bits: sequence.kv_bits(),
            bytes: (counts && steps > 0).then(|| StepBytes::of(&all, steps)),
            fetched: fetched(sequence, &all, steps),
            free_share: sparse.free_tokens as f64 / sparse.attended_tokens.max(1) as f64,
            missed_share: all.missed_share(),
            kv_bytes_held: sequence.kv_bytes_held(),
            kv_tokens: KvTokens { held: sequence.kv_tokens_held(), context: sequence.tokens() },
            density_by_layer: sequence.costs().layers().iter().map(|cost| four_digits(cost.density())).collect(),
            density_spread: spread(sequence, &densities(sequence)),
            solved: sequence.solved().map(str::to_owned),
            fidelity: fidelity(sequence),
        }
    }
}

/// Bytes that each of so many steps fetched, where the KV cache is not in memory.
fn fetched(sequence: &Sequence, all: &Cost, steps: usize) -> Option<FetchedBytes> {
    let each = |bytes: u64| bytes as f64 / steps as f64;
    let TierBytes { device, host, disk } = all.fetched;
    match sequence.prefix().source().paging() {
        _ if steps == 0 => None,
        Some(_) => Some(FetchedBytes { memory: each(host), disk: each(disk), bus: None }),
        None if sequence.crosses_bus() => Some(FetchedBytes { memory: each(device), disk: 0.0, bus: Some(each(host)) }),
        None => None,
    }
}

/// Density `[layer][query head]`.
fn densities(sequence: &Sequence) -> Vec<Vec<f64>> {
    let costs = sequence.costs();
    (0..costs.layers().len()).map(|layer| costs.head_densities(layer)).collect()
}

/// Over the heads of the layers that are not dense by policy, of numbers `[layer][query head]`.
fn spread(sequence: &Sequence, by_head: &[Vec<f64>]) -> Option<Spread> {
    let sparse = by_head.iter().enumerate().filter(|(layer, _)| !sequence.is_dense(*layer));
    Spread::of(sparse.flat_map(|(_, heads)| heads.iter().copied()))
}

fn fidelity(sequence: &Sequence) -> Option<Fidelity> {
    let meter = sequence.fidelity()?;
    let (error, recall, dropped) = (meter.output_error(), meter.recall(), meter.dropped_mass());
    // A layer without attention has missed nothing.
    let by_layer = |heads: &[Vec<f64>], of_none: f64| -> Vec<f64> {
        heads.iter().map(|layer| if layer.is_empty() { of_none } else { spattn_stats::mean(layer) }).collect()
    };
    let spread = match (spread(sequence, &error), spread(sequence, &recall), spread(sequence, &dropped)) {
        (Some(output_error), Some(recall), Some(dropped_mass)) => {
            Some(FidelitySpread { output_error, recall, dropped_mass })
        }
        _ => None,
    };
    let short = |heads: &[Vec<f64>]| -> Vec<Vec<f64>> {
        heads.iter().map(|layer| layer.iter().copied().map(four_digits).collect()).collect()
    };
    Some(Fidelity {
        output_error: by_layer(&error, 0.0),
        recall: by_layer(&recall, 1.0),
        dropped_mass: by_layer(&dropped, 0.0),
        spread,
        heads: Some(HeadFidelity {
            density: short(&densities(sequence)),
            output_error: short(&error),
            recall: short(&recall),
            dropped_mass: short(&dropped),
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_a_step() {
        let cost = Cost { kv_bytes: 60, aux_bytes: 30, shared_bytes: 12, select_bytes: 6, ..Cost::default() };
        assert_eq!(StepBytes::of(&cost, 3), StepBytes { read: 30.0, shared: 4.0, select: 2.0 });
    }
}

//! The results of one method on one example: its tokens, counters and times.

use std::time::Duration;

use crate::eval::records::costs::{KvTokens, PublishedCosts};
use crate::eval::records::fidelity::{Fidelity, FidelitySpread, HeadFidelity, Spread, four_digits};
use crate::eval::records::timing::{Solo, StepTime};
use spattn_attention::cost::Cost;
use spattn_attention::{IndexTime, Sequence};

/// Tokens, counters and times of one method on one example.
pub struct MethodResult {
    /// Generated tokens, a final EOS included.
    pub tokens: Vec<u32>,
    /// Whether an EOS ended the generation.
    pub stopped: bool,
    /// Tokens read or generated after the prefix and fed through the model.
    pub steps: usize,
    /// Streams that took each step together.
    pub together: usize,
    /// The share of the steps' time that is attributed to this method.
    pub decode: Duration,
    /// That time by kind of work; `None` if it was not measured separately.
    pub parts: Option<StepTime>,
    /// Times of steps in which the method ran alone, if requested.
    pub solo: Option<Solo>,
    /// Where tokens were selected, if the engine computes on a device: `host`, or `device` if none were selected on the host. Random
    /// selections that depend on no data also count as `host`, although no step waits for them.
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
    pub comparable: PublishedCosts,
    /// Scoring FLOPs over full attention's.
    pub cost1: f64,
    /// Attention FLOPs over full attention's.
    pub cost2: f64,
    /// Bits per prefix token per KV head.
    pub aux_bits: f64,
    /// Bytes per step, all layers; `None` if there was no step.
    pub bytes: Option<StepBytes>,
    /// Share of the attended tokens that belong to the tail and were attended in addition to the budget.
    pub free_share: f64,
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

impl MethodResult {
    /// The counts of `fork` over `steps` steps, without generated tokens.
    pub(crate) fn of(fork: &Sequence, steps: usize, parts: StepTime) -> Self {
        let all = fork.costs().total(|_| true);
        let sparse = fork.costs().total(|layer| !fork.is_dense(layer));
        Self {
            tokens: Vec::new(),
            stopped: false,
            steps,
            together: 1,
            decode: Duration::from_secs_f64(parts.steps()),
            parts: (!fork.has_whole_steps()).then_some(parts),
            solo: None,
            select_on: if fork.selects_on_host() { "host" } else { "device" },
            index: fork.index_time(),
            prefill: None,
            density: all.density(),
            density_sparse_layers: sparse.density(),
            comparable: PublishedCosts::of(&sparse),
            cost1: all.cost1(),
            cost2: all.cost2(),
            aux_bits: fork.aux_bits(),
            bytes: (steps > 0).then(|| StepBytes::of(&all, steps)),
            free_share: sparse.free_tokens as f64 / sparse.attended_tokens.max(1) as f64,
            kv_bytes_held: fork.kv_bytes_held(),
            kv_tokens: KvTokens { held: fork.kv_tokens_held(), context: fork.tokens() },
            density_by_layer: fork.costs().layers().iter().map(|cost| four_digits(cost.density())).collect(),
            density_spread: spread(fork, &densities(fork)),
            solved: fork.solved().map(str::to_owned),
            fidelity: fidelity(fork),
        }
    }
}

/// Density `[layer][query head]`.
fn densities(fork: &Sequence) -> Vec<Vec<f64>> {
    let costs = fork.costs();
    (0..costs.layers().len()).map(|layer| costs.head_densities(layer)).collect()
}

/// The spread of numbers `[layer][query head]` over the layers that are not dense by policy.
fn spread(fork: &Sequence, by_head: &[Vec<f64>]) -> Option<Spread> {
    let sparse = by_head.iter().enumerate().filter(|(layer, _)| !fork.is_dense(*layer));
    Spread::of(sparse.flat_map(|(_, heads)| heads.iter().copied()))
}

fn fidelity(fork: &Sequence) -> Option<Fidelity> {
    let meter = fork.fidelity()?;
    let (error, recall, dropped) = (meter.output_error(), meter.recall(), meter.dropped_mass());
    // A layer without attention has missed nothing.
    let by_layer = |heads: &[Vec<f64>], of_none: f64| -> Vec<f64> {
        heads.iter().map(|layer| if layer.is_empty() { of_none } else { spattn_stats::mean(layer) }).collect()
    };
    let spread = match (spread(fork, &error), spread(fork, &recall), spread(fork, &dropped)) {
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
            density: short(&densities(fork)),
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

//! One step of attention over one or more layers, for one method: the part of a decode step between two weight matrices.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::row::BenchRow;
use super::sequence::BenchSequence;
use super::turns::{Runs, Turn};
use spattn_attention::cost::Cost;
use spattn_attention::kv::Prefix;
use spattn_attention::{AttentionTime, Configured, IndexCache, Rotation, Sequence, StartError};
use spattn_model::dimensions::Dimensions;

/// The sequences of one method, one for each input, that take decode steps together.
pub struct Stepping<'s> {
    inputs: &'s [BenchSequence],
    sequences: Vec<Sequence>,
    out: Vec<f32>,
}

impl<'s> Stepping<'s> {
    /// Builds the indexes of `method` on each sequence, or reuses those that earlier methods left in `caches`.
    pub fn new(
        method: &Configured,
        inputs: &'s [BenchSequence],
        caches: &mut [IndexCache],
        dimensions: &Dimensions,
    ) -> Result<Self, StartError> {
        let start = |cache: &mut IndexCache| -> Result<Sequence, StartError> {
            Ok(cache.fork(method, false)?.with_selection_breakdown())
        };
        let (sequences, c) = (caches.iter_mut().map(start).collect::<Result<_, _>>()?, dimensions.config());
        Ok(Self { inputs, sequences, out: vec![0.0; c.heads * c.head_dim] })
    }
}

impl Runs for Stepping<'_> {
    fn turn(&mut self, number: usize) -> Result<Turn> {
        let before = worked(&self.sequences);
        let start = Instant::now();
        for (sequence, input) in self.sequences.iter_mut().zip(self.inputs) {
            for (layer, row) in input.steps[number].iter().enumerate() {
                sequence.step(layer, &row.queries, &row.key, &row.value, &mut self.out)?;
            }
        }
        let time = start.elapsed();
        std::hint::black_box(&self.out);
        Ok(shared_out(time, time, worked(&self.sequences) - before))
    }

    fn count(&self, row: &mut BenchRow) {
        count_steps(&self.sequences, row);
    }
}

/// The time that sequences have spent on attention so far.
pub fn worked(sequences: &[Sequence]) -> AttentionTime {
    let mut sum = AttentionTime::default();
    sequences.iter().for_each(|sequence| sum += sequence.attention_time());
    sum
}

/// A turn that took `time`, of which `attention` was attention. That part is divided in proportion to the processors' work.
pub fn shared_out(time: Duration, attention: Duration, worked: AttentionTime) -> Turn {
    let all = worked.worked().as_secs_f64();
    let share = |part: Duration| if all > 0.0 { attention.mul_f64(part.as_secs_f64() / all) } else { Duration::ZERO };
    let [score, pick] = [worked.parts.score, worked.parts.pick].map(share);
    Turn { time, score, pick, select: share(worked.select), attend: share(worked.attend) }
}

/// An empty index cache for each sequence.
pub fn caches(
    sequences: &[BenchSequence],
    dimensions: &Dimensions,
    rotation: Option<&Arc<dyn Rotation>>,
) -> Vec<IndexCache> {
    sequences.iter().map(|sequence| sequence.cache(dimensions, rotation.cloned())).collect()
}

/// Bytes of auxiliary memory for a prefix, at `bits` for each token and KV head.
pub fn aux_bytes(prefix: &Prefix, bits: f64) -> u64 {
    let rows = prefix.tokens() * prefix.shape().kv_heads * prefix.layers();
    (rows as f64 * bits / 8.0).round() as u64
}

/// Writes the counters of sequences into a row: for one step of all sequences, over all layers.
pub fn count_steps(sequences: &[Sequence], row: &mut BenchRow) {
    let Some(first) = sequences.first() else { return };
    let steps = (first.tokens() - first.prefix().tokens()).max(1) as u64;
    let mut cost = Cost::default();
    sequences.iter().for_each(|sequence| cost += sequence.costs().total(|_| true));
    let index: Duration = sequences.iter().map(|sequence| sequence.index_time().whole).sum();
    row.density = cost.density();
    row.limit_bytes += (cost.kv_bytes + cost.aux_bytes) / steps;
    row.bytes = row.limit_bytes + cost.select_bytes / steps;
    row.flops += (cost.score_flops + cost.attend_flops) / steps;
    row.bus_bytes = first.crosses_bus().then_some(cost.fetched.host / steps);
    row.host_bytes = host_bytes(sequences).map(|bytes| bytes / steps);
    if first.aux_bits() > 0.0 {
        (row.index_ms, row.aux_bits) = (Some(1e3 * index.as_secs_f64()), Some(first.aux_bits()));
        row.aux_bytes = Some(sequences.iter().map(|sequence| aux_bytes(sequence.prefix(), sequence.aux_bits())).sum());
    }
    if let Some(solved) = first.solved() {
        row.solved = solved.to_owned();
    }
}

/// Returns the bytes that the host reads if it attends for a device: everything read at the layers where it does, less the static tokens,
/// which the device attends. `None` if the device attends everything, or there is none.
fn host_bytes(sequences: &[Sequence]) -> Option<u64> {
    let first = sequences.first().filter(|sequence| sequence.prefix().device().is_some())?;
    let is_asked = |layer: &usize| first.attends_part_on_host(*layer);
    let asked: Vec<usize> = (0..first.prefix().layers()).filter(is_asked).collect();
    let shape = first.prefix().shape();
    let of_layer = |cost: &Cost| {
        let group = cost.steps / (shape.kv_heads as u64 * (first.tokens() - first.prefix().tokens()).max(1) as u64);
        let fixed = cost.exact_tokens / group.max(1) * shape.row_bytes() as u64;
        (cost.kv_bytes + cost.aux_bytes).saturating_sub(fixed)
    };
    let of_sequence =
        |sequence: &Sequence| asked.iter().map(|layer| of_layer(&sequence.costs().layers()[*layer])).sum::<u64>();
    (!asked.is_empty()).then(|| sequences.iter().map(of_sequence).sum())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::sequence::Wanted;
    use super::*;
    use spattn_attention::kv::KvDtype;
    use spattn_attention::{Policy, expand_grid, methods};
    use spattn_model::source::ModelSource;

    /// In contexts short enough for one thread, and in contexts where each KV head has its own thread.
    #[test]
    fn scoring_and_picking_are_parts_of_selecting_and_selecting_of_the_turn() {
        let config = ModelSource::parse("builtin").unwrap().resolve_texts().unwrap().config().unwrap();
        let mut config = config.clone();
        config.keep_layers(&[0]);
        let dimensions = Dimensions::new(&config, KvDtype::Bf16);
        for context in [700, 5000] {
            let (angles, needs) = (dimensions.angles(context + 3), BTreeSet::new());
            let (steps, seed, layers) = (3, 1, 1);
            let wanted =
                Wanted { dimensions: &dimensions, angles: &angles, layers, context, steps, needs: &needs, seed };
            let sequences = [BenchSequence::drawn(wanted)];
            for (spec, tells) in [
                ("topk:density=0.1", true),
                ("topk:density=0.1,rescore=int4", true),
                ("quest:density=0.1,per=kv_head", true),
                ("knn:index=flat,density=0.1", true),
                ("magicpig:K=8,L=20", false),
                ("streaming_llm", false),
                ("full", false),
            ] {
                let method = methods::configure(&expand_grid(spec).unwrap()[0], &Policy::default()).unwrap();
                let mut caches = caches(&sequences, &dimensions, None);
                let mut stepping = Stepping::new(&method, &sequences, &mut caches, &dimensions).unwrap();
                for number in 0..steps {
                    let turn = stepping.turn(number).unwrap();
                    assert!(turn.score + turn.pick <= turn.select, "{spec} at {context}: {turn:?}");
                    assert!(turn.select + turn.attend <= turn.time + Duration::from_nanos(10), "{spec}: {turn:?}");
                    assert_eq!((turn.score.is_zero(), turn.pick.is_zero()), (!tells, !tells), "{spec}: {turn:?}");
                }
            }
        }
    }
}

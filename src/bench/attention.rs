//! One step of attention of one or more layers, method by method: what a deployment does between two weight matrices.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::row::BenchRow;
use super::sequence::Sequence;
use super::turns::{Runs, Turn};
use crate::attention::{AttentionTime, Configured, Fork, IndexCache, Rotation};
use crate::cost::Cost;
use crate::model::dimensions::Dimensions;

/// Forks of one method, one on each sequence, that step together.
pub struct Stepping<'s> {
    sequences: &'s [Sequence],
    forks: Vec<Fork>,
    out: Vec<f32>,
}

impl<'s> Stepping<'s> {
    /// Builds the indexes of `method` on each sequence, or takes those that earlier methods left in `caches`.
    pub fn new(
        method: &Configured,
        sequences: &'s [Sequence],
        caches: &mut [IndexCache],
        dimensions: &Dimensions,
    ) -> Self {
        let (forks, c) = (caches.iter_mut().map(|cache| cache.fork(method, false)).collect(), dimensions.config());
        Self { sequences, forks, out: vec![0.0; c.heads * c.head_dim] }
    }
}

impl Runs for Stepping<'_> {
    fn turn(&mut self, number: usize) -> Result<Turn> {
        let before = worked(&self.forks);
        let start = Instant::now();
        for (fork, sequence) in self.forks.iter_mut().zip(self.sequences) {
            for (layer, row) in sequence.steps[number].iter().enumerate() {
                fork.step(layer, &row.queries, &row.key, &row.value, &mut self.out);
            }
        }
        let time = start.elapsed();
        std::hint::black_box(&self.out);
        Ok(shared_out(time, worked(&self.forks) - before))
    }

    fn count(&self, row: &mut BenchRow) {
        count_steps(&self.forks, row);
    }
}

/// What forks have spent on attention so far.
pub fn worked(forks: &[Fork]) -> AttentionTime {
    let mut sum = AttentionTime::default();
    forks.iter().for_each(|fork| sum += fork.attention_time());
    sum
}

/// Time that passed, divided as the processors' work was.
fn shared_out(time: Duration, worked: AttentionTime) -> Turn {
    let all = worked.worked().as_secs_f64();
    let share = |part: Duration| if all > 0.0 { time.mul_f64(part.as_secs_f64() / all) } else { Duration::ZERO };
    Turn { time, select: share(worked.select), attend: share(worked.attend), ..Turn::default() }
}

/// Indexes of all sequences, none built yet.
pub fn caches(
    sequences: &[Sequence],
    dimensions: &Dimensions,
    rotation: Option<&Arc<dyn Rotation>>,
) -> Vec<IndexCache> {
    sequences.iter().map(|sequence| sequence.cache(dimensions, rotation.cloned())).collect()
}

/// Puts what forks that step together counted into a row: of one step of all of them, all layers.
pub fn count_steps(forks: &[Fork], row: &mut BenchRow) {
    let Some(first) = forks.first() else { return };
    let steps = (first.tokens() - first.prefix().tokens()).max(1) as u64;
    let mut cost = Cost::default();
    forks.iter().for_each(|fork| cost += fork.costs().total(|_| true));
    let index: Duration = forks.iter().map(|fork| fork.index_time().whole).sum();
    row.density = cost.density();
    row.limit_bytes += (cost.kv_bytes + cost.aux_bytes) / steps;
    row.bytes = row.limit_bytes + cost.select_bytes / steps;
    row.flops += (cost.score_flops + cost.attend_flops) / steps;
    if first.aux_bits() > 0.0 {
        (row.index_ms, row.aux_bits) = (Some(1e3 * index.as_secs_f64()), Some(first.aux_bits()));
    }
    if let Some(solved) = first.solved() {
        row.params = format!("{},{solved}", row.params);
    }
}

//! Means over tasks: one figure a method, for those who look at one.

use super::format::{detectable, distinct};
use super::means;
use crate::eval::record::SummaryRow;
use crate::eval::stats::mean;
use crate::eval::summary::REFERENCE;

/// All methods at one length, averaged over tasks of equal weight.
pub struct Overall {
    /// Length asked for in tokens; 0 if files fix it.
    pub length: usize,
    /// Number of tasks.
    pub tasks: usize,
    /// One for each method, in order of appearance.
    pub means: Vec<Mean>,
}

impl Overall {
    /// Which differences of means can be told from noise, in one line.
    pub fn detectable(&self) -> Option<String> {
        detectable(self.means.iter().map(|m| (m.contexts, m.detectable)))
    }
}

/// One method's means.
pub struct Mean {
    /// Bare name.
    pub method: String,
    /// Canonical parameters.
    pub params: String,
    /// Tasks this method has rows for.
    pub tasks: usize,
    /// Percent.
    pub score: f64,
    /// Mean difference to the reference in points; none for the reference, or where it was not run.
    pub delta: Option<f64>,
    /// The difference to the reference, in points, that can be told from noise; none where `delta` is none.
    pub detectable: Option<f64>,
    /// Number of contexts over all tasks.
    pub contexts: usize,
    /// Share of tokens attended.
    pub density: f64,
    /// Scoring FLOPs over full attention's.
    pub cost1: f64,
    /// Attention FLOPs over full attention's.
    pub cost2: f64,
    /// Bits per token per KV head.
    pub aux_bits: f64,
}

/// The means of rows of one model and protocol, by length; lengths with a single task are left out, and so are
/// tasks without a score in percent, such as perplexities.
pub fn overall(rows: &[SummaryRow]) -> Vec<Overall> {
    let rows: Vec<&SummaryRow> = rows.iter().filter(|r| r.measure.is_score()).collect();
    let mut lengths = distinct(rows.iter().map(|r| r.length));
    lengths.sort_unstable();
    let at = |length| overall_of(&rows.iter().copied().filter(|r| r.length == length).collect::<Vec<_>>(), length);
    lengths.into_iter().map(at).filter(|o| o.tasks > 1).collect()
}

fn overall_of(rows: &[&SummaryRow], length: usize) -> Overall {
    let methods = distinct(rows.iter().map(|r| (&r.method, &r.params)));
    let means = methods.into_iter().map(|(method, params)| {
        let of_method: Vec<&SummaryRow> =
            rows.iter().copied().filter(|r| (&r.method, &r.params) == (method, params)).collect();
        let over = |value: fn(&SummaryRow) -> f64| mean(&of_method.iter().map(|r| value(r)).collect::<Vec<_>>());
        let deltas: Option<Vec<f64>> = of_method.iter().map(|r| r.delta_full).collect();
        Mean {
            method: method.clone(),
            params: params.clone(),
            tasks: of_method.len(),
            score: over(|r| r.score),
            delta: deltas.filter(|_| method != REFERENCE).map(|d| mean(&d)),
            detectable: means::detectable(&of_method),
            contexts: of_method.iter().map(|r| r.contexts).sum(),
            density: over(|r| r.density),
            cost1: over(|r| r.cost1),
            cost2: over(|r| r.cost2),
            aux_bits: over(|r| r.aux_bits),
        }
    });
    Overall { length, tasks: distinct(rows.iter().map(|r| &r.task)).len(), means: means.collect() }
}

//! Independent draws from the distribution that the scores, taken for logits, give to the candidates (MagicPIG,
//! Definition 3.1 and eq. 4–5): a token weighs as often as it was drawn.
//!
//! With `density=` one number of draws is solved for all heads of an example: the least from which the expected
//! number of distinct tokens, `Σ 1 − (1 − w_i)^B`, is large enough on the last queries of its prefix. Where
//! attention is sharp no number of draws is; the most tried is 16 for each candidate.

use std::num::NonZero;
use std::sync::Arc;

use rand::RngExt;

use super::{Picker, ScoredRow};
use crate::attention::{Histogram, Picks, Probe, Solved, Tuned, Weighting, least_reaching};
use crate::cost::Cost;

/// Independent draws from the exact weights of the candidates.
pub(in crate::attention) struct Draws {
    /// Draws for each query.
    pub budget: Tuned<NonZero<usize>>,
}

/// Weights below `exp(−40)` are never drawn.
const SMALLEST_LOG_WEIGHT: f64 = 40.0;

/// Expected distinct tokens among `draws`, as a share of the tokens whose weights were counted, each as
/// `−ln w` over [`SMALLEST_LOG_WEIGHT`].
fn expected_distinct(weights: &Histogram, draws: usize) -> f64 {
    weights.mean(|x| -(draws as f64 * (-(-SMALLEST_LOG_WEIGHT * x).exp()).ln_1p()).exp_m1())
}

impl Picker for Draws {
    fn is_known(&self) -> bool {
        self.budget.density().is_none()
    }

    fn solve(&self, probe: &Probe<'_>) -> Option<Solved<Arc<dyn Picker>>> {
        const MOST_DRAWS: usize = 16;
        let wanted = probe.tokens(self.budget.density()?) / probe.candidates() as f64;
        let weights = Histogram::pooled(probe.measure(|head| {
            let mut weights = Histogram::new();
            head.each_logits(|logits| {
                let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
                let log_sum = max + logits.iter().map(|x| (f64::from(*x) - max).exp()).sum::<f64>().ln();
                logits.iter().for_each(|x| weights.add((log_sum - f64::from(*x)) / SMALLEST_LOG_WEIGHT));
            });
            weights
        }));
        let draws = 1..=MOST_DRAWS * probe.candidates();
        let budget = least_reaching(draws, wanted, |draws| expected_distinct(&weights, draws));
        let picker = Self { budget: Tuned::Value(NonZero::new(budget)?) };
        Some(Solved { method: Arc::new(picker), params: format!("budget={budget}") })
    }

    fn pick(&self, row: &ScoredRow<'_>, cost: &mut Cost) -> Picks {
        // Written, and passed over for the largest and for the sums.
        cost.select_bytes += 3 * row.pass();
        let max = row.scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut cumulative = Vec::with_capacity(row.scores.len());
        let mut total = 0.0f64;
        for s in row.scores {
            total += f64::from((row.scale * (s - max)).exp());
            cumulative.push(total);
        }
        let mut rng = row.rng();
        let budget = self.budget.value().get();
        let mut draws: Vec<u32> = (0..budget)
            .map(|_| {
                let x = rng.random::<f64>() * total;
                cumulative.partition_point(|c| *c <= x).min(row.scores.len() - 1) as u32
            })
            .collect();
        draws.sort_unstable();
        let first = row.candidates.start as u32;
        let mut picks: (Vec<u32>, Vec<f32>) = Default::default();
        for run in draws.chunk_by(|a, b| a == b) {
            picks.0.push(run[0] + first);
            picks.1.push(run.len() as f32 / budget as f32);
        }
        let log_mass = row.scale * max + (total as f32).ln();
        Picks { tokens: picks.0, weighting: Weighting::Direct { weights: picks.1, log_mass } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_distinct_draws_are_those_of_the_formula() {
        let mut weights = Histogram::new();
        let mut exact = vec![0.7, 0.1];
        exact.extend([0.2 / 400.0; 400]);
        exact.iter().for_each(|w: &f64| weights.add(-w.ln() / SMALLEST_LOG_WEIGHT));
        for draws in [1, 16, 500, 100_000] {
            let expected = exact.iter().map(|w| 1.0 - (1.0 - w).powi(draws)).sum::<f64>() / exact.len() as f64;
            let measured = expected_distinct(&weights, draws as usize);
            assert!((measured / expected - 1.0).abs() < 1e-3, "{draws}: {measured} instead of {expected}");
        }
    }
}

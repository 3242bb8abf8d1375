//! `oracle_sampling`: draws from the exact attention distribution (MagicPIG, Definition 3.1).
//!
//! `B` tokens are drawn independently from `w = softmax(s·qKᵀ)` and the output is `Σ (f_i/B)·v_i` over
//! the distinct ones (eq. 4–5), an unbiased estimate whose cost is the number of distinct tokens, at
//! most `1 + B(1 − max w)` in expectation (Theorem 3.3). Static tokens are attended exactly: draws are
//! from the candidates, and the estimate enters with the candidates' exact share of the softmax.
//!
//! With `density=` one number of draws is solved for all heads of an example: the least from which the expected
//! number of distinct tokens, `Σ 1 − (1 − w_i)^B`, is large enough on the last queries of its prefix. Where
//! attention is sharp no number of draws is; the most tried is 16 for each candidate.

use std::num::NonZero;
use std::sync::Arc;

use rand::RngExt;

use super::{MethodEntry, ParamInfo, Preset};
use crate::attention::{
    HeadPrefix, Histogram, Method, Picks, Probe, Selection, Solved, Step, Tuned, Weighting, least_reaching,
};
use crate::cost::Cost;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "oracle_sampling",
    about: "samples from the exact attention weights: the oracle of sampling methods",
    reference: "MagicPIG (Chen et al. 2024, arXiv:2410.16179), Definition 3.1",
    params: &[ParamInfo { key: "budget", default: "64", about: "draws for each query head and step" }],
    presets: &[
        Preset {
            name: "paper",
            values: &[("sink", "4"), ("local", "64"), ("dense_layers", "0+50%")],
            source: "MagicPIG §5 (baselines): 4 sink and 64 local tokens, layers 0 and 16 of 32 kept dense",
        },
        Preset {
            name: "repo",
            values: &[("sink", "4"), ("local", "64"), ("dense_layers", "0+1")],
            source: "MagicPIG's code, evaluations/RULER/pred/oraclesampling_cache: layers 0 and 1 dense",
        },
    ],
    build: |params| {
        let budget = params.tuned_within("budget", NonZero::new(64).expect("not 0"), 1..=MOST_DRAWS)?;
        Ok(Arc::new(OracleSampling { budget }))
    },
};

/// Independent draws from the exact weights of the candidates.
struct OracleSampling {
    budget: Tuned<NonZero<usize>>,
}

/// Draws that can be asked for: each is made, whatever the tokens.
const MOST_DRAWS: usize = 1 << 20;
/// Weights below `exp(−40)` are never drawn.
const SMALLEST_LOG_WEIGHT: f64 = 40.0;

/// Expected distinct tokens among `draws`, as a share of the tokens whose weights were counted, each as
/// `−ln w` over [`SMALLEST_LOG_WEIGHT`].
fn expected_distinct(weights: &Histogram, draws: usize) -> f64 {
    weights.mean(|x| -(draws as f64 * (-(-SMALLEST_LOG_WEIGHT * x).exp()).ln_1p()).exp_m1())
}

impl OracleSampling {
    fn draw(&self, step: &Step<'_>, head: usize, scores: &[f32]) -> Picks {
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut cumulative = Vec::with_capacity(scores.len());
        let mut total = 0.0f64;
        for s in scores {
            total += f64::from((step.scale * (s - max)).exp());
            cumulative.push(total);
        }
        let mut rng = step.rng(head);
        let budget = self.budget.value().get();
        let mut draws: Vec<u32> = (0..budget)
            .map(|_| {
                let x = rng.random::<f64>() * total;
                cumulative.partition_point(|c| *c <= x).min(scores.len() - 1) as u32
            })
            .collect();
        draws.sort_unstable();
        let first = step.candidates.start as u32;
        let mut picks: (Vec<u32>, Vec<f32>) = Default::default();
        for run in draws.chunk_by(|a, b| a == b) {
            picks.0.push(run[0] + first);
            picks.1.push(run.len() as f32 / budget as f32);
        }
        let log_mass = step.scale * max + (total as f32).ln();
        Picks { tokens: picks.0, weighting: Weighting::Direct { weights: picks.1, log_mass } }
    }
}

impl Method for OracleSampling {
    type Index = ();
    type State = ();

    fn solve(&self, probe: &Probe<'_>) -> Option<Solved<Self>> {
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
        let method = Self { budget: Tuned::Value(NonZero::new(budget)?) };
        Some(Solved { method, params: format!("budget={budget}") })
    }

    fn build(&self, _: &HeadPrefix<'_>) {}

    fn index_bytes(&self, (): &()) -> usize {
        0
    }

    fn start(&self, (): &()) {}

    fn select(&self, step: &Step<'_>, (): &(), (): &mut (), cost: &mut Cost) -> Selection {
        let scores = step.exact_scores(cost);
        let n = step.candidates.len();
        Selection::PerHead((0..step.group()).map(|h| self.draw(step, h, &scores[h * n..][..n])).collect())
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

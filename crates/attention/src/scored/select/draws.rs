//! Independent draws from the softmax of the candidates' scores, which are taken as logits (MagicPIG, Definition 3.1 and eq. 4–5).
//! A token's weight is the share of the draws that hit it.
//!
//! With `proposal=value_norm`, tokens are drawn with probability `u_i ∝ w_i‖v_i‖` (MagicPIG, Appendix C), and a token drawn `f_i`
//! times has the weight `(f_i/B)·(w_i/u_i)`. This is unbiased as well, with the least second moment that independent draws can
//! have.
//!
//! With `density=`, one number of draws is solved for all heads of an example: the smallest for which the expected number of
//! distinct tokens, `Σ 1 − (1 − w_i)^B`, is large enough on the last queries of its prefix. If attention is too sharp for any
//! number, 16 draws for each candidate are made.

use std::num::NonZero;
use std::sync::Arc;

use rand::RngExt;

use crate::backend::reasons::HostReason;
use crate::backend::scorer::{DevicePicker, LeastPages};
use crate::cost::Cost;
use crate::kv::KvError;
use crate::method::Solved;
use crate::scored::select::picker::{Picker, ScoredRow};
use crate::types::budget::{Context, Tuned};
use crate::types::selection::{SelectedTokens, Weighting};
use crate::{Histogram, Probe, ProbeHead, least_reaching};

/// Independent draws from the exact weights of the candidates.
pub(crate) struct Draws {
    /// Draws for each query.
    pub budget: Tuned<NonZero<usize>>,
    /// The distribution from which tokens are drawn.
    pub proposal: Proposal,
}

/// What the probability of drawing a token is proportional to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proposal {
    /// Its weight `w`.
    Attention,
    /// `w‖v‖`, its weight times the norm of its value.
    ValueNorm,
}

/// Number of passes over the scores: one to write them, one for the maximum, one for the sums.
const PASSES: u64 = 3;

/// Weights below `exp(−40)` are never drawn.
const SMALLEST_LOG_WEIGHT: f64 = 40.0;

/// Expected distinct tokens among `draws`, as a share of the tokens whose weights were counted. The histogram holds `−ln w`
/// divided by [`SMALLEST_LOG_WEIGHT`].
fn expected_distinct(weights: &Histogram, draws: usize) -> f64 {
    weights.mean(|x| -(draws as f64 * (-(-SMALLEST_LOG_WEIGHT * x).exp()).ln_1p()).exp_m1())
}

impl Proposal {
    /// The term added to the logarithm of each candidate's weight.
    fn log_norms(self, head: &ProbeHead<'_>) -> Result<Vec<f64>, KvError> {
        let values = head.prefix.candidate_values();
        match self {
            Self::Attention => Ok(vec![0.0; values.tokens()]),
            Self::ValueNorm => {
                let mut norms = Vec::with_capacity(values.tokens());
                let log_norm = |v: &[f32]| {
                    let square: f64 = v.iter().map(|x| f64::from(*x).powi(2)).sum();
                    0.5 * square.max(f64::MIN_POSITIVE).ln()
                };
                values.each_block(1, |values| norms.extend(values.chunks_exact(head.prefix.d).map(log_norm)))?;
                Ok(norms)
            }
        }
    }
}

impl Picker for Draws {
    fn is_known(&self) -> bool {
        self.budget.density().is_none()
    }

    fn solve(&self, probe: &Probe<'_>) -> Result<Option<Solved<Arc<dyn Picker>>>, KvError> {
        const MOST_DRAWS: usize = 16;
        let Some(density) = self.budget.density() else { return Ok(None) };
        let wanted = probe.tokens(density) / probe.candidates() as f64;
        let weights = Histogram::pooled(probe.measure(|head| {
            let mut weights = Histogram::new();
            let norms = self.proposal.log_norms(head)?;
            head.each_logits(|logits| {
                let logs: Vec<f64> = logits.iter().zip(&norms).map(|(x, norm)| f64::from(*x) + norm).collect();
                let max = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let log_sum = max + logs.iter().map(|x| (x - max).exp()).sum::<f64>().ln();
                logs.iter().for_each(|x| weights.add((log_sum - x) / SMALLEST_LOG_WEIGHT));
            })?;
            Ok(weights)
        })?);
        let draws = 1..=MOST_DRAWS * probe.candidates();
        let budget = least_reaching(draws, wanted, |draws| expected_distinct(&weights, draws));
        let picker = Self { budget: Tuned::Value(NonZero::new(budget).unwrap_or(NonZero::<usize>::MIN)), ..*self };
        Ok(Some(Solved { method: Arc::new(picker), params: format!("budget={budget}") }))
    }

    fn pick(&self, row: &ScoredRow<'_>, cost: &mut Cost) -> Result<SelectedTokens, KvError> {
        // A prefix without candidates cannot be solved for, so all candidates after it are attended.
        let Tuned::Value(budget) = self.budget else {
            return Ok(SelectedTokens::softmax(row.candidates.clone().map(|t| t as u32).collect()));
        };
        cost.select_bytes += PASSES * row.pass();
        let max = row.scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let norms = match self.proposal {
            Proposal::Attention => Vec::new(),
            Proposal::ValueNorm => (row.value_norms)(cost)?,
        };
        let mut cumulative = Vec::with_capacity(row.scores.len());
        let (mut total, mut mass) = (0.0f64, 0.0f64);
        for (i, s) in row.scores.iter().enumerate() {
            let weight = f64::from((row.scale * (s - max)).exp());
            mass += weight;
            total += norms.get(i).map_or(weight, |norm| weight * f64::from(*norm));
            cumulative.push(total);
        }
        let mut rng = row.rng();
        let budget = budget.get();
        let mut draws: Vec<u32> = (0..budget)
            .map(|_| {
                let x = rng.random::<f64>() * total;
                cumulative.partition_point(|c| *c <= x).min(row.scores.len() - 1) as u32
            })
            .collect();
        // Corrects the weight of a token drawn by `u` instead of `w`. A value of norm 0 adds nothing, whatever its weight.
        let correction = |token: u32| match norms.get(token as usize) {
            Some(norm) if *norm > 0.0 => (total / (f64::from(*norm) * mass)) as f32,
            _ => 1.0,
        };
        draws.sort_unstable();
        let first = row.candidates.start as u32;
        let mut picks: (Vec<u32>, Vec<f32>) = Default::default();
        for run in draws.chunk_by(|a, b| a == b) {
            picks.0.push(run[0] + first);
            picks.1.push(correction(run[0]) * (run.len() as f32 / budget as f32));
        }
        let log_mass = row.scale * max + (mass as f32).ln();
        Ok(SelectedTokens::weighted(picks.0, Weighting::Direct { weights: picks.1, log_mass }))
    }

    fn device(&self) -> Result<&dyn DevicePicker, HostReason> {
        match (self.budget, self.proposal) {
            (_, Proposal::ValueNorm) => Err(HostReason::setting("proposal", "value_norm")),
            (Tuned::Density(_), _) => Err(HostReason::UnsolvedDensity),
            (Tuned::Value(_), Proposal::Attention) => Ok(self),
        }
    }
}

impl DevicePicker for Draws {
    fn cost(&self, scores: usize) -> Cost {
        Cost { select_bytes: PASSES * (scores * size_of::<f32>()) as u64, ..Cost::default() }
    }

    fn budget_units(&self, _: Context, pages: &LeastPages) -> u32 {
        self.budget.value().get().min(pages.all) as u32
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

//! The smallest set of top-scored candidates that covers a share of the estimated attention (top-p).
//!
//! Scores are taken as logits. The share is of the candidates' mass, because static tokens are attended anyway.
//! Sharp attention takes few tokens, flat attention many: the budget is an outcome. With `density=`, one share is
//! solved for all heads of an example, from the exact logits of the last queries of its prefix.

use std::sync::Arc;

use crate::Probe;
use crate::backend::reasons::HostReason;
use crate::backend::scorer::{DevicePicker, LeastPages};
use crate::cost::Cost;
use crate::kv::KvError;
use crate::method::Solved;
use crate::scored::select::picker::{Picker, ScoredRow};
use crate::spec::Params;
use crate::types::budget::{Context, Tuned};
use crate::types::selection::SelectedTokens;
use spattn_base::error::UsageError;
use spattn_kernels::share::{share_passes, top_share};

/// The smallest set of candidates with a share of the mass.
pub(crate) struct TopShare {
    /// Share of the candidates' mass; above 0 and up to 1.
    pub p: Tuned<f64>,
}

impl TopShare {
    /// Reads `p`, or a `density` to solve it for.
    pub(crate) fn read(params: &mut Params) -> Result<Self, UsageError> {
        const RANGE: &str = "a number above 0 and up to 1";
        let p = params.tuned("p", 0.95, RANGE)?;
        match p {
            Tuned::Value(p) if !(p > 0.0 && p <= 1.0) => Err(params.bad_value("p", &p.to_string(), RANGE)),
            _ => Ok(Self { p }),
        }
    }
}

/// Cumulative weights of the candidates, the heaviest first; the largest weight is 1.
struct Covered(Vec<f64>);

impl Covered {
    /// Computes the cumulative weights from logits.
    fn new(logits: &[f32]) -> Self {
        let mut descending = logits.to_vec();
        descending.sort_unstable_by(|a, b| b.total_cmp(a));
        let max = descending.first().copied().unwrap_or(0.0);
        let mut total = 0.0;
        let covered = descending.into_iter().map(|logit| {
            total += f64::from((logit - max).exp());
            total
        });
        Self(covered.collect())
    }

    /// Number of heaviest candidates that cover a share `p`.
    fn needed(&self, p: f64) -> usize {
        let all = self.0.len();
        let total = self.0.last().copied().unwrap_or(0.0);
        if p < 1.0 { (self.0.partition_point(|covered| *covered < p * total) + 1).min(all) } else { all }
    }
}

/// Log-odds of the shares tried for a density: from 0.0003 to 1 − 10⁻⁷.
fn ladder() -> impl Iterator<Item = f64> {
    (-64..=128).map(|eighths| f64::from(eighths) / 8.0)
}

fn share(log_odds: f64) -> f64 {
    1.0 / (1.0 + (-log_odds).exp())
}

impl Picker for TopShare {
    fn is_known(&self) -> bool {
        self.p.density().is_none()
    }

    /// Measures the mean number of tokens needed on a ladder of shares, and interpolates the share that gives the
    /// wanted number.
    fn solve(&self, probe: &Probe<'_>) -> Result<Option<Solved<Arc<dyn Picker>>>, KvError> {
        let Some(density) = self.p.density() else { return Ok(None) };
        let wanted = probe.tokens(density);
        let heads = probe.measure(|head| {
            let (mut needed, mut queries) = (vec![0.0; ladder().count()], 0.0);
            head.each_logits(|logits| {
                let covered = Covered::new(logits);
                needed.iter_mut().zip(ladder()).for_each(|(sum, rung)| *sum += covered.needed(share(rung)) as f64);
                queries += 1.0;
            })?;
            Ok((needed, queries))
        })?;
        let queries: f64 = heads.iter().map(|(_, queries)| queries).sum();
        let mean = |rung: usize| heads.iter().map(|(needed, _)| needed[rung]).sum::<f64>() / queries;
        let rungs: Vec<(f64, f64)> = ladder().enumerate().map(|(i, log_odds)| (log_odds, mean(i))).collect();
        let p = match rungs.iter().position(|(_, tokens)| *tokens >= wanted) {
            _ if wanted >= probe.candidates() as f64 => 1.0,
            None => 1.0,
            Some(0) => share(rungs[0].0),
            Some(above) => {
                let [(low, fewer), (high, more)] = [rungs[above - 1], rungs[above]];
                share(low + (high - low) * (wanted - fewer) / (more - fewer))
            }
        };
        Ok(Some(Solved { method: Arc::new(Self { p: Tuned::Value(p) }), params: format!("p={p:.7}") }))
    }

    /// Pages hold equally many tokens, so a page's share follows from its score.
    fn pick(&self, row: &ScoredRow<'_>, cost: &mut Cost) -> Result<SelectedTokens, KvError> {
        *cost += self.cost(row.scores.len());
        Ok(SelectedTokens::softmax(row.tokens(&top_share(row.scores, row.scale, self.p.value(), row.least))))
    }

    fn device(&self) -> Result<&dyn DevicePicker, HostReason> {
        match self.p {
            Tuned::Value(_) => Ok(self),
            Tuned::Density(_) => Err(HostReason::UnsolvedDensity),
        }
    }
}

impl DevicePicker for TopShare {
    fn cost(&self, scores: usize) -> Cost {
        let pass = (scores * size_of::<f32>()) as u64;
        Cost { select_bytes: pass * share_passes(scores), ..Cost::default() }
    }

    fn budget_units(&self, _: Context, pages: &LeastPages) -> u32 {
        pages.all as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A solved share yields the requested density only if steps select as many tokens as the ladder counts.
    #[test]
    fn the_ladder_counts_what_is_picked() {
        for n in [200, 5000] {
            let logits: Vec<f32> = (0..n).map(|i| ((i * 37) % 101) as f32 / 20.0 + i as f32 * 1e-5).collect();
            let covered = Covered::new(&logits);
            for rung in ladder() {
                let (counted, picked) = (covered.needed(share(rung)), top_share(&logits, 1.0, share(rung), 0).len());
                // Near 1, rounding decides how many tokens a share covers.
                let spare = if rung > 12.0 { n / 200 } else { 1 };
                assert!(counted.abs_diff(picked) <= spare, "{n}, {rung}: {counted} counted, {picked} picked");
            }
            assert_eq!(covered.needed(1.0), n);
        }
        assert_eq!(Covered::new(&[]).needed(0.5), 0);
    }
}

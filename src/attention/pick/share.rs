//! As many of the largest scores as it takes to cover a share of the attention that they estimate (top-p).
//!
//! Scores are taken for logits. The share is of the candidates' mass: static tokens are attended anyway. Where
//! attention is sharp this takes few tokens, where it is flat many, so the budget is an outcome. With `density=` one
//! share is solved for all heads of an example, by the exact logits of the last queries of its prefix.

use std::sync::Arc;

use super::{Picker, ScoredRow};
use crate::attention::{Params, Picks, Probe, Solved, Tuned};
use crate::cost::Cost;
use crate::error::UsageError;

/// The smallest set of candidates with a share of the mass.
pub(in crate::attention) struct TopShare {
    /// Share of the candidates' mass, above 0 to 1.
    pub p: Tuned<f64>,
}

impl TopShare {
    /// Reads `p`, or the `density` that it is to give.
    pub(in crate::attention) fn read(params: &mut Params) -> Result<Self, UsageError> {
        const RANGE: &str = "a number above 0 and up to 1";
        let p = params.tuned("p", 0.95, RANGE)?;
        match p {
            Tuned::Value(p) if !(p > 0.0 && p <= 1.0) => Err(params.bad_value("p", &p.to_string(), RANGE)),
            _ => Ok(Self { p }),
        }
    }
}

/// Candidates by weight, the heaviest first.
struct Ranking {
    /// Positions among the candidates.
    order: Vec<u32>,
    /// Weights of the first so many, the largest weight being 1.
    covered: Vec<f64>,
}

impl Ranking {
    /// From unscaled scores.
    fn new(scores: &[f32], scale: f32) -> Self {
        let mut order: Vec<u32> = (0..scores.len() as u32).collect();
        order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
        let max = order.first().map_or(0.0, |i| scores[*i as usize]);
        let mut total = 0.0;
        let weights = order.iter().map(|i| f64::from((scale * (scores[*i as usize] - max)).exp()));
        let covered = weights.map(|weight| {
            total += weight;
            total
        });
        Self { covered: covered.collect(), order }
    }

    /// How many of the heaviest it takes to cover a share `p`.
    fn needed(&self, p: f64) -> usize {
        let all = self.order.len();
        let total = self.covered.last().copied().unwrap_or(0.0);
        if p < 1.0 { (self.covered.partition_point(|covered| *covered < p * total) + 1).min(all) } else { all }
    }
}

/// Shares that are tried for a density, by their log-odds: from 0.0003 to all but 10⁻⁷.
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

    /// Mean tokens needed on a ladder of shares, and the share between two rungs that gives the number wanted.
    fn solve(&self, probe: &Probe<'_>) -> Option<Solved<Arc<dyn Picker>>> {
        let wanted = probe.tokens(self.p.density()?);
        let heads = probe.measure(|head| {
            let (mut needed, mut queries) = (vec![0.0; ladder().count()], 0.0);
            head.each_logits(|logits| {
                let ranking = Ranking::new(logits, 1.0);
                needed.iter_mut().zip(ladder()).for_each(|(sum, rung)| *sum += ranking.needed(share(rung)) as f64);
                queries += 1.0;
            });
            (needed, queries)
        });
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
        Some(Solved { method: Arc::new(Self { p: Tuned::Value(p) }), params: format!("p={p:.7}") })
    }

    /// Pages have as many tokens, so a page's share is that of its score.
    fn pick(&self, row: &ScoredRow<'_>, cost: &mut Cost) -> Picks {
        // Written, sorted in as many passes as halves can be merged, and summed up.
        cost.select_bytes += row.pass() * (2 + u64::from(row.scores.len().next_power_of_two().trailing_zeros()));
        let ranking = Ranking::new(row.scores, row.scale);
        let needed = ranking.needed(self.p.value()).max(row.least).min(row.scores.len());
        let mut pages = ranking.order[..needed].to_vec();
        pages.sort_unstable();
        Picks::softmax(row.tokens(&pages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cover(p: f64, scores: &[f32], scale: f32) -> Vec<u32> {
        let ranking = Ranking::new(scores, scale);
        ranking.order[..ranking.needed(p)].to_vec()
    }

    #[test]
    fn covers_the_share_with_no_token_to_spare() {
        let scores: Vec<f32> = (0..200).map(|i| ((i * 37) % 101) as f32 / 10.0).collect();
        let weights: Vec<f64> = scores.iter().map(|s| f64::from(*s * 0.5).exp()).collect();
        let total: f64 = weights.iter().sum();
        for p in [0.01, 0.3, 0.9, 0.999] {
            let picked = cover(p, &scores, 0.5);
            let mass = |picked: &[u32]| picked.iter().map(|i| weights[*i as usize]).sum::<f64>() / total;
            assert!(mass(&picked) >= p - 1e-5, "{p}: {}", mass(&picked));
            assert!(mass(&picked[..picked.len() - 1]) < p + 1e-5, "{p}");
            let least = picked.iter().map(|i| scores[*i as usize]).fold(f32::INFINITY, f32::min);
            assert!((0..200u32).all(|i| picked.contains(&i) || scores[i as usize] <= least), "{p}");
        }
        assert_eq!(cover(1.0, &scores, 0.5).len(), 200);
        assert_eq!(cover(0.5, &[0.0, 100.0, 0.0], 1.0), [1]);
        assert!(cover(0.5, &[], 1.0).is_empty());
    }
}

//! The best candidates by score, and a uniform sample of the rest, as large as an error bound requires (vAttention,
//! arXiv:2510.05688).
//!
//! Attention is a ratio of sums over tokens. The tokens with the largest scores, and the static ones, are summed exactly. The
//! sum over the rest is estimated from tokens drawn uniformly without replacement: if `b` of `N` were drawn, each counts
//! `N/b` times. A base sample determines `b`. It gives the standard deviation `σ` of `exp(q·k/√d)` and an estimate of the
//! denominator `D`. By the central limit theorem, `b ≥ (z·N·σ / (ε·D))²` tokens are needed for the denominator to be off by
//! more than `ε·D` with probability `δ`, where `z` is the normal quantile of `1 − δ/2`.
//!
//! As in the authors' code, the bound is on the denominator; the paper also has one on the numerator, which would need
//! values, and one on both. As in the code, the `b` tokens are drawn from all of the rest; a token of the base sample is
//! attended only if it is drawn again. So at most `b` tokens are attended besides the best, and the size of the sample, which
//! depends on the base sample, biases neither sum. `b` is at least the size of the base sample. Unlike this module, the code
//! draws with replacement and uses the quantile of `1 − δ`, although errors have two sides.
//!
//! With `density=`, half of the budget is selected by score, the base sample is an eighth of it, and one `ε` is solved for
//! all heads of an example, so that the sample is the other half on average. Two things make the density exceed the request:
//! a group that shares a selection draws as many tokens as its most demanding head, and scores that miss some of the best
//! tokens leave a rest that varies more.

use std::sync::Arc;

use rand::seq::index;
use rand_chacha::ChaCha8Rng;
use statrs::function::erf::erfc_inv;

use crate::backend::reasons::HostReason;
use crate::backend::scorer::DevicePicker;
use crate::cost::Cost;
use crate::kv::KvError;
use crate::method::Solved;
use crate::scored::select::picker::{Picker, ScoredRow};
use crate::scored::select::rescored::others;
use crate::spec::Params;
use crate::types::budget::Budget;
use crate::types::seed::mix_seed;
use crate::types::selection::{SelectedTokens, Weighting};
use crate::{Probe, ProbeHead};
use rand::SeedableRng;
use spattn_base::error::UsageError;
use spattn_kernels::topk::top_k;

/// The best candidates, and a sample of the rest.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    /// Number of tokens selected by score, in whole pages; a density covers the tokens selected by score and the drawn ones
    /// together.
    pub budget: Budget,
    /// Allowed error of the denominator, as a share of it.
    pub epsilon: f64,
    /// Probability of a larger error.
    pub delta: f64,
    /// Size of the base sample, as a share of the tokens not selected by score.
    pub base: f64,
}

impl Sample {
    /// Default of the allowed error, and of the probability of a larger error.
    pub const TOLERANCE: f64 = 0.1;
    /// Default share of the base sample.
    pub const BASE: f64 = 0.05;

    /// Reads the budget, `epsilon`, `delta` and `base`.
    pub(crate) fn read(
        params: &mut Params,
        budget: impl FnOnce(&mut Params) -> Result<Budget, UsageError>,
    ) -> Result<Self, UsageError> {
        const BELOW_ONE: &str = "a number above 0 and below 1";
        let budget = budget(params)?;
        let mut share = |key, default: f64, most: f64, range| {
            let x: f64 = params.get_minor_as(key, default, range)?;
            if x > 0.0 && x <= most { Ok(x) } else { Err(params.bad_value(key, &x.to_string(), range)) }
        };
        let below_one = 1.0 - f64::EPSILON;
        let epsilon = share("epsilon", Self::TOLERANCE, 1.0, "a number above 0 and up to 1")?;
        let delta = share("delta", Self::TOLERANCE, below_one, BELOW_ONE)?;
        let base = share("base", Self::BASE, below_one, BELOW_ONE)?;
        Ok(Self { budget, epsilon, delta, base })
    }

    /// Size of the base sample of `rest` tokens; at least two, because a standard deviation needs two.
    fn base_of(&self, rest: usize) -> usize {
        ((self.base * rest as f64).ceil() as usize).max(2)
    }

    /// The quantile of the normal distribution that an error of either sign exceeds with probability `delta`.
    fn quantile(&self) -> f64 {
        std::f64::consts::SQRT_2 * erfc_inv(self.delta)
    }

    /// Number of the `rest` tokens to draw, given the relative deviation of a base sample of `base` tokens.
    fn size(&self, relative_deviation: f64, base: usize, rest: usize) -> usize {
        let needed = (self.quantile() * relative_deviation / self.epsilon).powi(2).ceil();
        (needed as usize).clamp(base, rest.max(base))
    }

    /// The relative deviation for each query of a probed head, if `best` tokens are selected by score.
    fn deviations(&self, head: &ProbeHead<'_>, best: usize) -> Result<Vec<f64>, KvError> {
        let (candidates, tokens) = (head.prefix.candidates.clone(), head.prefix.tokens());
        let (rest, place) = (candidates.len() - best, mix_seed(head.prefix.layer as u64, head.prefix.kv_head as u64));
        let base = self.base_of(rest);
        let mut deviations = Vec::new();
        head.each_logits_of(0..tokens, |i, logits| {
            let mut rng = ChaCha8Rng::seed_from_u64(mix_seed(place, i as u64));
            let first = candidates.start as u32;
            let picked: Vec<u32> = top_k(&logits[candidates.clone()], best).iter().map(|i| i + first).collect();
            let drawn = outside(&picked, first, &draw(&mut rng, rest, base));
            let fixed = (0..candidates.start).chain(candidates.end..tokens).chain(picked.iter().map(|t| *t as usize));
            let fixed: Vec<f32> = fixed.map(|t| logits[t]).collect();
            let drawn: Vec<f32> = drawn.iter().map(|t| logits[*t as usize]).collect();
            deviations.push(relative_deviation(&fixed, &drawn, rest));
        })?;
        Ok(deviations)
    }
}

/// `N·σ/D`: the standard deviation of one draw's estimate of the sum over the `rest` tokens, as a share of the denominator.
/// The denominator is estimated from the logits of a `base` sample; `fixed` logits are summed exactly.
fn relative_deviation(fixed: &[f32], base: &[f32], rest: usize) -> f64 {
    let max = fixed.iter().chain(base).copied().fold(f32::NEG_INFINITY, f32::max);
    let exponential = |logit: &f32| (f64::from(*logit) - f64::from(max)).exp();
    let of_base: Vec<f64> = base.iter().map(exponential).collect();
    let mean = of_base.iter().sum::<f64>() / of_base.len() as f64;
    let variance = of_base.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (of_base.len() - 1) as f64;
    let denominator = fixed.iter().map(exponential).sum::<f64>() + rest as f64 * mean;
    rest as f64 * variance.sqrt() / denominator
}

/// Draws `count` of `0..all` uniformly, ascending.
fn draw(rng: &mut ChaCha8Rng, all: usize, count: usize) -> Vec<u32> {
    let mut drawn: Vec<u32> = index::sample(rng, all, count).iter().map(|i| i as u32).collect();
    drawn.sort_unstable();
    drawn
}

/// Returns the numbers at the given `places` in the sequence `first..` without the `taken` numbers; all lists are ascending.
fn outside(taken: &[u32], first: u32, places: &[u32]) -> Vec<u32> {
    let mut passed = 0;
    let number = |place: &u32| {
        while taken.get(passed).is_some_and(|t| *t - first <= place + passed as u32) {
            passed += 1;
        }
        first + place + passed as u32
    };
    places.iter().map(number).collect()
}

impl Picker for Sample {
    fn device(&self) -> Result<&dyn DevicePicker, HostReason> {
        Err(HostReason::Selection("by a sample of the rest"))
    }

    fn is_known(&self) -> bool {
        !matches!(self.budget, Budget::Density(_))
    }

    fn pick(&self, row: &ScoredRow<'_>, cost: &mut Cost) -> Result<SelectedTokens, KvError> {
        cost.select_bytes += 2 * row.pass();
        let pages = self.budget.blocks(row.context, row.page).max(row.least);
        let mut tokens = row.tokens(&top_k(row.scores, pages));
        let (first, best) = (row.candidates.start as u32, tokens.len());
        let rest = row.candidates.len() - best;
        let base = self.base_of(rest);
        let all = || SelectedTokens::softmax(row.candidates.clone().map(|t| t as u32).collect());
        if base >= rest {
            return Ok(all());
        }
        let mut rng = row.rng();
        let looked_at = outside(&tokens, first, &draw(&mut rng, rest, base));
        let fixed: Vec<u32> = row.fixed().chain(tokens.iter().copied()).collect();
        let (fixed, of_base) = (row.exact_logits(&fixed)?, row.exact_logits(&looked_at)?);
        let deviations = fixed.iter().zip(&of_base).map(|(fixed, base)| relative_deviation(fixed, base, rest));
        let size = self.size(deviations.fold(0.0, f64::max), base, rest);
        if size >= rest {
            return Ok(all());
        }
        let drawn = outside(&tokens, first, &draw(&mut rng, rest, size));
        // The drawn tokens of the base sample are attended, so attention counts them.
        (row.pass_over)(&others(&looked_at, &drawn), cost);
        let mut log_u = vec![0.0; best];
        log_u.resize(best + size, (size as f64 / rest as f64).ln() as f32);
        tokens.extend(drawn);
        Ok(SelectedTokens::weighted(tokens, Weighting::LogBias(log_u)))
    }

    fn solve(&self, probe: &Probe<'_>) -> Result<Option<Solved<Arc<dyn Picker>>>, KvError> {
        let Budget::Density(density) = self.budget else { return Ok(None) };
        let (wanted, candidates) = (probe.tokens(density), probe.candidates());
        let best = (wanted / 2.0).round().max(1.0) as usize;
        if wanted >= candidates as f64 {
            let picker = Self { budget: Budget::Tokens(candidates), ..*self };
            return Ok(Some(Solved { method: Arc::new(picker), params: format!("k={candidates}") }));
        }
        let rest = candidates - best;
        let base = (wanted / 8.0 / rest as f64).min(0.5);
        let with = |epsilon| Self { budget: Budget::Tokens(best), epsilon, base, ..*self };
        let sampler = with(1.0);
        let drawn = sampler.base_of(rest);
        let wanted = wanted - best as f64;
        if drawn >= rest {
            return Ok(Some(solved(sampler)));
        }
        let deviations = probe.measure(|head| sampler.deviations(head, best))?.concat();
        let mean = |epsilon| {
            let sizes = deviations.iter().map(|x| with(epsilon).size(*x, drawn, rest) as f64);
            sizes.sum::<f64>() / deviations.len() as f64
        };
        // Bisects on the logarithm: sample sizes fall as the error grows.
        let (mut low, mut high) = (SMALLEST_EPSILON, 1.0f64);
        for _ in 0..STEPS {
            let middle = (low * high).sqrt();
            if mean(middle) > wanted { low = middle } else { high = middle }
        }
        Ok(Some(solved(with(high))))
    }
}

/// The smallest error that is tried; practically all of the rest is drawn then.
const SMALLEST_EPSILON: f64 = 1e-6;

/// Steps of the bisection.
const STEPS: usize = 40;

fn solved(sampler: Sample) -> Solved<Arc<dyn Picker>> {
    let Budget::Tokens(k) = sampler.budget else { unreachable!("sampling is solved for a budget in tokens") };
    let params = format!("k={k},epsilon={:.7},base={:.7}", sampler.epsilon, sampler.base);
    Solved { method: Arc::new(sampler), params }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_outside_are_those_of_a_list_without_what_is_taken() {
        for (taken, first) in [(vec![], 5u32), (vec![5, 6, 9], 5), (vec![7, 8, 20], 3), (vec![11, 12], 11)] {
            let left: Vec<u32> = (first..60).filter(|x| !taken.contains(x)).collect();
            for places in [vec![], vec![0], vec![0, 1, 2, 3], vec![1, 7, 8, 30]] {
                let expected: Vec<u32> = places.iter().map(|p| left[*p as usize]).collect();
                assert_eq!(outside(&taken, first, &places), expected, "{taken:?} from {first}, {places:?}");
            }
        }
    }

    /// Reference: scipy 1.17.1, `stats.norm.ppf(1 - delta / 2)`.
    #[test]
    fn quantiles_are_of_both_sides() {
        let sample = |delta| Sample { budget: Budget::Tokens(1), epsilon: 0.1, delta, base: 0.1 };
        for (delta, quantile) in
            [(0.05, 1.959_963_984_540_054), (0.1, 1.644_853_626_951_472), (0.5, 0.674_489_750_196_081)]
        {
            assert!((sample(delta).quantile() - quantile).abs() < 1e-7);
        }
    }
}

//! The interval of a mean paired difference, the test of whether it is a gain, and the smallest detectable difference.

use super::distributions::{Z, beta_quantile, half_tail, normal_tail, root};
use super::sample::SampleSize;
use super::{Estimate, LEAST_CONTEXTS, Level, Sample};

/// The 80 % quantile of the standard normal distribution; a difference counts as detectable if the power is 80 %.
const Z_POWER: f64 = 0.841_621_233_572_914_3;
const POWER: f64 = 0.8;

/// Gains and losses as shares of the number of examples, and this number.
pub(super) struct Discordance {
    gained: f64,
    lost: f64,
    /// Effective number of examples.
    n: f64,
}

/// If fewer contexts differ, the exact test decides whether there is a difference. Tango's interval and McNemar's test are approximations
/// for many contexts: if four pairs differ, all in one direction, they report a difference, although chance produces this in one of eight
/// cases. With five, all in one direction, the mid-p value is below 5 % (Fagerland, Lydersen and Laake, BMC Medical Research Methodology
/// 13, 2013).
const LEAST_DIFFERING: usize = 5;

/// The number of contexts that gained and lost, as counted by the exact test of a difference.
#[derive(Clone, Copy)]
struct Signs {
    gained: usize,
    lost: usize,
}

impl Signs {
    fn of(samples: &[Sample]) -> Self {
        let mut signs = Self { gained: 0, lost: 0 };
        for sample in samples {
            for context in sample.by_context() {
                let gain = context.iter().map(|at| sample.values[*at]).sum::<f64>();
                signs.gained += usize::from(gain > 0.0);
                signs.lost += usize::from(gain < 0.0);
            }
        }
        signs
    }

    /// Returns the probability of at least as many gains if gains and losses are equally likely (McNemar's exact test); `None` if enough
    /// contexts differ for the formulas.
    fn few_p(self) -> Option<f64> {
        let differ = self.gained + self.lost;
        (differ < LEAST_DIFFERING).then(|| if self.gained == 0 { 1.0 } else { half_tail(differ, self.lost) })
    }

    fn turned(self) -> Self {
        Self { gained: self.lost, lost: self.gained }
    }
}

impl Discordance {
    /// The discordance of `contexts` independent examples, all of them lost.
    pub(super) fn all_lost(contexts: usize) -> Self {
        Self { gained: 0.0, lost: 1.0, n: contexts as f64 }
    }

    /// Computes the discordance at a level. `None` for fewer than two contexts, or if a difference is not finite.
    fn of(differences: &Sample, level: Level) -> Option<Self> {
        Some(Discordances::of(differences)?.at(level, differences.contexts() as f64))
    }

    /// Returns Tango's score for a true difference: by how many standard errors, under that difference, the observed difference exceeds
    /// it.
    pub(super) fn standard_errors_above(&self, difference: f64) -> f64 {
        let Self { gained, lost, n } = self;
        let spread = difference * (1.0 - difference);
        // The maximum-likelihood estimate of the share of losses under that difference.
        let (a, b, c) = (2.0, (2.0 - gained + lost) * difference - gained - lost, -lost * spread);
        let losses = (((b * b - 4.0 * a * c).max(0.0)).sqrt() - b) / (2.0 * a);
        let variance = (2.0 * losses + spread).max(0.0) / n;
        (gained - lost - difference) / variance.sqrt().max(f64::MIN_POSITIVE)
    }
}

/// Gains and losses of a sample, from which a [`Discordance`] follows for any level and any number of such contexts.
pub(super) struct Discordances {
    gained: f64,
    lost: f64,
    size: SampleSize,
}

impl Discordances {
    /// Counts gains and losses. `None` for fewer than two contexts, or if a difference is not finite.
    pub(super) fn of(differences: &Sample) -> Option<Self> {
        let mean = differences.mean();
        if differences.contexts() < 2 || !mean.is_finite() {
            return None;
        }
        let share = |part: fn(f64) -> f64| differences.values.iter().map(|d| part(*d)).sum::<f64>() / differences.n();
        let (gained, lost) = (share(|d| d.max(0.0)), share(|d| (-d).max(0.0)));
        let is_whole = differences.values.iter().all(|d| [-1.0, 0.0, 1.0].contains(d));
        Some(Self { gained, lost, size: differences.size_of_differences(variance(gained, lost), is_whole) })
    }

    /// Returns the discordance at a level, for `contexts` contexts.
    pub(super) fn at(&self, level: Level, contexts: f64) -> Discordance {
        Discordance { gained: self.gained, lost: self.lost, n: self.size.effective(level, contexts) }
    }
}

/// Returns the variance of a difference that is 1, −1 or 0, from the shares of gains and losses.
fn variance(gained: f64, lost: f64) -> f64 {
    gained + lost - (gained - lost).powi(2)
}

/// Returns the mean of paired differences of scores in 0..=1, with its 95 % interval; `None` without differences, no ends for a single
/// context.
///
/// If all differences are 1, −1 or 0 and each has its own context, the interval is Tango's score interval for paired proportions
/// (Statistics in Medicine 17, 1998), which keeps its coverage even if nothing or everything differs: 20 equal pairs give ±16 points.
/// Otherwise it is Tango's interval for the number of all-or-nothing examples that would vary as much, as in [`score`](super::score()).
///
/// If fewer than five contexts differ, the interval excludes 0 only if the exact test finds a difference; otherwise it is extended to 0.
pub fn difference(differences: &Sample) -> Option<Estimate> {
    difference_at(differences, Level::SINGLE)
}

/// Like [`difference`], with an interval for another level.
pub fn difference_at(differences: &Sample, level: Level) -> Option<Estimate> {
    if differences.is_empty() {
        return None;
    }
    let mean = differences.mean();
    let Some(of) = Discordance::of(differences, level) else { return Some(Estimate { mean, ends: None }) };
    let end =
        |low: f64, high: f64, score: f64| root(low, high, |difference| score - of.standard_errors_above(difference));
    let (mean_in_range, z) = (mean.clamp(-1.0, 1.0), level.z());
    let (low, high) = (end(-1.0, mean_in_range, z), end(mean_in_range, 1.0, -z));
    let signs = Signs::of(std::slice::from_ref(differences));
    let is_noise = |signs: Signs| signs.few_p().is_some_and(|p| p > level.tail());
    let low = if is_noise(signs) { low.min(0.0) } else { low };
    let high = if is_noise(signs.turned()) { high.max(0.0) } else { high };
    Some(Estimate::around(mean, (low, high)))
}

/// Returns the probability of a mean gain in scores at least as large if there is no true gain; `None` for fewer than two contexts. It is
/// below 2.5 % exactly if the interval of [`difference()`] lies above 0 (McNemar's test, or the exact one if fewer than five contexts
/// differ).
pub fn gain_p(differences: &Sample) -> Option<f64> {
    let of = Discordance::of(differences, Level::SINGLE)?;
    let exact = Signs::of(std::slice::from_ref(differences)).few_p();
    Some(exact.unwrap_or_else(|| normal_tail(standard_errors(&[of]))))
}

/// Whether the mean over some samples of paired differences, all of equal weight, is a gain beyond noise at a level. `None` if this cannot
/// be told: one sample has a single context, or all together have fewer than [`LEAST_CONTEXTS`].
///
/// Uses McNemar's test, as in [`gain_p`], with the standard error of the mean if there is no difference.
pub fn is_gain(samples: &[Sample], level: Level) -> Option<bool> {
    if samples.iter().map(Sample::contexts).sum::<usize>() < LEAST_CONTEXTS {
        return None;
    }
    let all: Vec<Discordance> = samples.iter().map(|of| Discordance::of(of, level)).collect::<Option<_>>()?;
    let is_noise = Signs::of(samples).few_p().is_some_and(|p| p > level.tail());
    Some(!is_noise && standard_errors(&all) > level.z())
}

/// Returns by how many standard errors, if there is no difference, the mean gain over samples of equal weight exceeds 0.
fn standard_errors(of: &[Discordance]) -> f64 {
    let gain = of.iter().map(|of| of.gained - of.lost).sum::<f64>();
    let variance = of.iter().map(|of| (of.gained + of.lost) / of.n).sum::<f64>();
    if variance > 0.0 { gain / variance.sqrt() } else { 0.0 }
}

/// Returns the true mean difference in 0..=1 that would be found beyond noise in 80 % of such samples, at the observed variance; `None` if
/// none would.
///
/// It is at least that of [`nearest_detectable`], for examples that lose as much as the largest observed loss or gain: equal pairs have no
/// variance, but would have some if there were a difference.
pub fn least_detectable(differences: &Sample) -> Option<f64> {
    let of = Discordance::of(differences, Level::SINGLE)?;
    let observed = (Z + Z_POWER) * (variance(of.gained, of.lost).max(0.0) / of.n).sqrt();
    let most = differences.values.iter().fold(0.0, |most: f64, d| most.max(d.abs()));
    let at_best = nearest_detectable(of.n)? * if most > 0.0 { most.min(1.0) } else { 1.0 };
    Some(observed.max(at_best)).filter(|difference| *difference <= 1.0)
}

/// Returns the true share of examples lost that would be found beyond noise in 80 % of samples of `n` independent examples, if none is
/// gained: the best that `n` examples can do. `None` if no loss can be told from noise.
pub fn nearest_detectable(n: f64) -> Option<f64> {
    // McNemar's test needs more losses than 1.96² = 3.84.
    let least_lost = (Z * Z).floor() + 1.0;
    let others = n - least_lost + 1.0;
    // A beta distribution gives the probability that at least this many of `n` examples are lost.
    (others > 0.0).then(|| beta_quantile(least_lost, others, POWER))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample of `n` examples, of which some are gained and some lost.
    fn of(gained: usize, lost: usize, n: usize) -> Sample {
        let value = |i| if i < gained { 1.0 } else { -f64::from(u8::from(i < gained + lost)) };
        Sample::independent(&(0..n).map(value).collect::<Vec<_>>())
    }

    /// Reference: the definition by constrained maximum likelihood, maximised and inverted numerically with scipy 1.17.1
    /// (`scripts/interval_reference.py`); the second is in the table of Fagerland, Lydersen and Laake, Statistics in
    /// Medicine 33 (2014): −0.517 to −0.026.
    const TANGO: [(usize, usize, usize, f64, f64); 8] = [
        (0, 0, 20, -0.161_125_158, 0.161_125_158),
        (1, 7, 21, -0.517_232_277, -0.026_003_030),
        (0, 15, 20, -0.888_138_299, -0.468_030_973),
        (5, 0, 20, 0.048_593_552, 0.468_700_878),
        (12, 2, 50, 0.061_112_407, 0.344_708_748),
        (0, 20, 20, -1.0, -0.677_749_684),
        (1, 0, 5, -0.321_378_955, 0.624_465_370),
        (30, 31, 100, -0.161_715_532, 0.142_232_863),
    ];

    #[test]
    fn paired_proportions_have_tangos_interval() {
        for (gained, lost, n, low, high) in TANGO {
            let found = difference(&of(gained, lost, n)).unwrap().ends.unwrap();
            assert!((found.0 - low).abs() < 2e-6 && (found.1 - high).abs() < 2e-6, "{gained} {lost} {n}: {found:?}");
        }
    }

    #[test]
    fn equal_pairs_are_no_proof_of_equality() {
        // If nothing differs, the ends are ± z² / (n + z²).
        let (low, high) = difference(&of(0, 0, 20)).unwrap().ends.unwrap();
        assert!((high - Z * Z / (20.0 + Z * Z)).abs() < 1e-9 && (low + high).abs() < 1e-9, "{low} {high}");
        let shared = Sample::new((0..100).map(|i| (i / 5, 0.0)));
        let ends = difference(&shared).unwrap().ends.unwrap();
        assert!((ends.0 - low).abs() < 1e-9 && (ends.1 - high).abs() < 1e-9, "as many as contexts: {ends:?}");
        assert_eq!(difference(&of(1, 0, 1)), Some(Estimate { mean: 1.0, ends: None }));
        assert_eq!(difference(&of(0, 0, 0)), None);
    }

    #[test]
    fn small_differences_of_shares_are_told_where_whole_ones_are_not() {
        let losses: Vec<f64> = (0..40).map(|i| if i % 2 == 0 { -0.1 } else { -0.2 }).collect();
        let (low, high) = difference(&Sample::independent(&losses)).unwrap().ends.unwrap();
        assert!(-0.25 < low && high < -0.05, "{low} {high}");
        let one: Vec<f64> = (0..20).map(|i| if i == 3 { -1.0 / 3.0 } else { 0.0 }).collect();
        let (low, high) = difference(&Sample::independent(&one)).unwrap().ends.unwrap();
        assert!(low < -0.04 && high > 0.0, "{low} {high}");
    }

    /// Reference: statsmodels 0.15.0, half of `mcnemar([[0, b], [c, 9]], exact=False, correction=False).pvalue`.
    const MCNEMAR: [(usize, usize, f64); 4] = [
        (5, 0, 0.012_673_659_338_734_163),
        (9, 2, 0.017_404_239_405_933_625),
        (3, 7, 0.897_048_394_633_967_7),
        (20, 1, 1.690_636_281_650_788_6e-5),
    ];

    #[test]
    fn the_test_is_mcnemars_and_agrees_with_the_interval() {
        for (gained, lost, p) in MCNEMAR {
            let found = gain_p(&of(gained, lost, 40)).unwrap();
            assert!((found - p).abs() < 1e-9 * p, "{gained} {lost}: {found}");
        }
        for n in [5, 20, 60] {
            for (gained, lost) in (0..=n).flat_map(|gained| (0..=n - gained).map(move |lost| (gained, lost))) {
                let sample = of(gained, lost, n);
                let (low, p) = (difference(&sample).unwrap().low().unwrap(), gain_p(&sample).unwrap());
                assert_eq!(low > 1e-9, p < 0.025, "{gained} {lost} {n}: {low} {p}");
            }
        }
        assert_eq!((gain_p(&of(0, 0, 20)), gain_p(&of(1, 0, 1))), (Some(1.0), None));
    }

    /// Returns the share of samples of `n` pairs whose interval excludes 0, over all outcomes. Each pair differs with probability
    /// `differs`, and then in either direction with equal probability.
    fn wrongly_told(n: usize, differs: f64) -> f64 {
        let choose = |n: usize, k: usize| (0..k).map(|i| (n - i) as f64 / (i + 1) as f64).product::<f64>();
        let mut share = 0.0;
        for (gained, lost) in (0..=n).flat_map(|gained| (0..=n - gained).map(move |lost| (gained, lost))) {
            let (low, high) = difference(&of(gained, lost, n)).unwrap().ends.unwrap();
            if low > 1e-9 || high < -1e-9 {
                let same = n - gained - lost;
                let ways = choose(n, same) * choose(gained + lost, gained);
                share += ways * (differs / 2.0).powi((gained + lost) as i32) * (1.0 - differs).powi(same as i32);
            }
        }
        share
    }

    #[test]
    fn no_difference_is_rarely_told_for_one_however_few_are_asked() {
        let worst = |n: usize| (1..=20).map(|i| wrongly_told(n, f64::from(i) / 20.0)).fold(0.0, f64::max);
        // Without the exact test, it would be one of eight samples of four pairs, and 7.8 % of samples of five.
        assert_eq!([2, 3, 4].map(worst), [0.0; 3]);
        for n in [5, 6, 7, 8, 12, 20] {
            assert!(worst(n) < 0.0704, "{n}: {}", worst(n));
        }
    }

    #[test]
    fn where_few_pairs_differ_the_interval_leaves_0_out_only_with_the_exact_test() {
        // McNemar's exact test of 4 to 0 has a two-sided p of 0.125.
        for n in [4, 5, 20, 400] {
            let (low, high) = difference(&of(0, 4, n)).unwrap().ends.unwrap();
            assert!(low < -4.0 / n as f64 + 1e-9 && high == 0.0, "{n}: {low} {high}");
            let (low, high) = difference(&of(4, 0, n)).unwrap().ends.unwrap();
            assert!(high > 4.0 / n as f64 - 1e-9 && low == 0.0, "{n}: {low} {high}");
            assert!((gain_p(&of(4, 0, n)).unwrap() - 0.0625).abs() < 1e-9);
        }
        // At 50 %, the exact test finds a difference in three of three, and so does the interval.
        let (low, _) = difference_at(&of(3, 0, 20), Level::with(0.5, 1)).unwrap().ends.unwrap();
        assert!(low > 0.0, "{low}");
        // Four contexts of five questions count as four.
        let shared = Sample::new((0..100).map(|i| (i / 5, if i < 20 { -1.0 } else { 0.0 })));
        assert_eq!(difference(&shared).unwrap().high(), Some(0.0));
        // Two in each of two tasks count as four.
        assert_eq!(is_gain(&[of(2, 0, 10), of(2, 0, 10)], Level::SINGLE), Some(false));
        assert_eq!(is_gain(&[of(3, 0, 10), of(3, 0, 10)], Level::SINGLE), Some(true));
    }

    /// Reference: scipy 1.17.1, the root over p of `stats.binom.sf(3, n, p) - 0.8`.
    const NEAREST: [(f64, f64); 5] = [
        (4.0, 0.945_741_609_003_175_8),
        (10.0, 0.483_657_237_414_851_6),
        (20.0, 0.258_635_204_738_202_4),
        (50.0, 0.107_542_047_870_384_31),
        (100.0, 0.054_458_877_119_297_65),
    ];

    #[test]
    fn what_can_be_told_at_best_is_the_power_of_the_test() {
        for (n, expected) in NEAREST {
            let found = nearest_detectable(n).unwrap();
            assert!((found - expected).abs() < 1e-9, "{n}: {found}");
        }
        assert_eq!([0.0, 1.0, 3.0].map(nearest_detectable), [None; 3], "three losses are never beyond noise");
    }

    #[test]
    fn what_varies_more_is_told_less() {
        let at_best = nearest_detectable(20.0);
        assert_eq!(least_detectable(&of(0, 0, 20)), at_best);
        assert_eq!(least_detectable(&of(0, 1, 20)), at_best, "less variance than a detectable difference would have");
        let noisy = least_detectable(&of(8, 8, 20)).unwrap();
        assert!((noisy - 2.801_585_2 * (0.8f64 / 20.0).sqrt()).abs() < 1e-6, "{noisy}");
        let thirds: Vec<f64> = (0..20).map(|i| if i == 3 { -1.0 / 3.0 } else { 0.0 }).collect();
        assert!(least_detectable(&Sample::independent(&thirds)) < at_best);
        assert_eq!(least_detectable(&of(1, 1, 3)), None);
    }

    #[test]
    fn values_that_are_no_scores_do_not_panic() {
        for values in [&[7.0, -9.0][..], &[f64::NAN, 1.0], &[f64::INFINITY, 1.0], &[5.0, 5.0]] {
            let sample = Sample::independent(values);
            assert!(difference(&sample).is_some());
            let _ = (gain_p(&sample), least_detectable(&sample));
        }
    }
}

//! The interval of a mean score.

use super::distributions::beta_quantile;
use super::{CONFIDENCE, Estimate, Level, Sample};

/// Returns the mean of scores in 0..=1 with its 95 % interval; `None` without scores, no ends for a single context.
///
/// If all scores are 0 or 1 and each has its own context, the interval is Clopper and Pearson's: of the usual intervals, it is the only one
/// that never covers less than stated (Wilson's falls to 85 % if the true score is near 0 or 1, as that of `full` is on most tasks).
/// Otherwise it is that interval for the number of all-or-nothing examples that would vary as much (Korn and Graubard): scores between 0
/// and 1 vary less, examples that share a context more. If all scores are 1, it is the interval for as many right answers as there are
/// contexts. That is valid for every bounded score: with mean μ, a score is 1 with a probability of at most μ.
pub fn score(sample: &Sample) -> Option<Estimate> {
    if sample.is_empty() {
        return None;
    }
    let mean = sample.mean();
    if sample.contexts() < 2 || !mean.is_finite() {
        return Some(Estimate { mean, ends: None });
    }
    let is_whole = sample.values.iter().all(|score| *score == 0.0 || *score == 1.0);
    let n = sample.effective(mean * (1.0 - mean), is_whole, Level::SINGLE);
    Some(Estimate::around(mean, clopper_pearson((mean * n).clamp(0.0, n), n)))
}

/// Returns the interval of the probability of a success, after `right` of `n`; both may be fractions.
fn clopper_pearson(right: f64, n: f64) -> (f64, f64) {
    /// Smaller fractions of an example are rounding errors in the sum of scores.
    const NONE: f64 = 1e-9;
    const TAIL: f64 = (1.0 - CONFIDENCE) / 2.0;
    let wrong = n - right;
    let low = if right < NONE { 0.0 } else { beta_quantile(right, wrong + 1.0, TAIL) };
    let high = if wrong < NONE { 1.0 } else { beta_quantile(right + 1.0, wrong, 1.0 - TAIL) };
    (low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the interval for `right` of `n`.
    fn of(right: usize, n: usize) -> (f64, f64) {
        let scores: Vec<f64> = (0..n).map(|i| f64::from(u8::from(i < right))).collect();
        score(&Sample::independent(&scores)).unwrap().ends.unwrap()
    }

    /// Reference: statsmodels 0.15.0, `stats.proportion.proportion_confint(x, n, method="beta")`.
    const CLOPPER_PEARSON: [(usize, usize, f64, f64); 8] = [
        (20, 20, 0.831_566_529_016_914_6, 1.0),
        (19, 20, 0.751_267_237_227_972_2, 0.998_734_910_502_050_2),
        (0, 20, 0.0, 0.168_433_470_983_085_34),
        (10, 20, 0.271_957_849_560_791_83, 0.728_042_150_439_208_2),
        (3, 5, 0.146_632_799_634_673_13, 0.947_255_049_473_683_1),
        (5, 5, 0.478_176_249_895_018_5, 1.0),
        (99, 100, 0.945_540_614_607_919_4, 0.999_746_853_967_022_6),
        (1, 2, 0.012_579_117_093_425_05, 0.987_420_882_906_574_9),
    ];

    #[test]
    fn proportions_have_clopper_pearsons_interval() {
        for (right, n, low, high) in CLOPPER_PEARSON {
            let found = of(right, n);
            assert!((found.0 - low).abs() < 1e-9 && (found.1 - high).abs() < 1e-9, "{right} of {n}: {found:?}");
        }
    }

    #[test]
    fn one_context_has_no_interval_and_no_score_no_mean() {
        assert_eq!(score(&Sample::independent(&[0.7])), Some(Estimate { mean: 0.7, ends: None }));
        let depths = Sample::new([(0, 1.0), (0, 1.0), (0, 0.0), (0, 1.0)]);
        assert_eq!(score(&depths), Some(Estimate { mean: 0.75, ends: None }));
        assert_eq!(score(&Sample::independent(&[])), None);
    }

    #[test]
    fn shared_contexts_widen_the_interval() {
        let right = |i: usize| f64::from(u8::from(!i.is_multiple_of(4)));
        let apart = score(&Sample::new((0..100).map(|i| (i, right(i / 5))))).unwrap();
        let shared = score(&Sample::new((0..100).map(|i| (i / 5, right(i / 5))))).unwrap();
        assert_eq!(apart.mean, shared.mean);
        let width = |e: Estimate| e.ends.map(|(low, high)| high - low).unwrap();
        assert!(width(shared) > 2.0 * width(apart), "{shared:?} {apart:?}");
        // All right: as many answers as there are contexts.
        let all = score(&Sample::new((0..100).map(|i| (i / 5, 1.0)))).unwrap();
        assert_eq!(all.ends.unwrap(), of(20, 20));
    }

    #[test]
    fn scores_between_0_and_1_tell_more_but_never_all() {
        let thirds: Vec<f64> = (0..20).map(|i| if i % 2 == 0 { 1.0 / 3.0 } else { 2.0 / 3.0 }).collect();
        let (low, high) = score(&Sample::independent(&thirds)).unwrap().ends.unwrap();
        assert!(0.35 < low && low < 0.45 && 0.55 < high && high < 0.65, "{low} {high}");
        let (low, high) = score(&Sample::independent(&[0.5; 20])).unwrap().ends.unwrap();
        assert!(low < 0.47 && high > 0.53, "values that do not vary are no proof: {low} {high}");
        let nearly: Vec<f64> = (0..20).map(|i| if i == 0 { 0.999 } else { 1.0 }).collect();
        let (low, high) = score(&Sample::independent(&nearly)).unwrap().ends.unwrap();
        assert!(low < 0.998 && high > 0.999_9, "{low} {high}");
    }

    #[test]
    fn values_that_are_no_scores_do_not_panic() {
        for values in [&[7.0, 9.0][..], &[-1.0, 0.0], &[f64::NAN, 1.0], &[f64::INFINITY, 1.0]] {
            assert!(score(&Sample::independent(values)).is_some());
        }
    }
}

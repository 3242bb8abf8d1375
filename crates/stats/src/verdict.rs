//! The verdict on a loss: within a limit, beyond it, or too few examples to tell.
//!
//! A loss is the mean over some places (tasks at a length), all of equal weight, of the paired differences between a reference and a
//! method. A verdict follows from its interval alone: *safe* if the upper end is at most the limit, *not safe* if the lower end is above
//! it. The interval is that of [`difference_at`], for the differences of all places together ([`pooled`]).
//!
//! Several methods are judged at once. The error is divided by their number (Bonferroni, [`Level::with`]), at both ends, so that all
//! intervals of a table hold together with the stated confidence. Holm's procedure would decide a little more, but its answers are not
//! intervals, and a table shows how large the loss is at least or at most.
//!
//! Nothing here knows methods or tasks. Bounds for repeated looks are in [`evidence`](crate::evidence).

use super::difference::{Discordance, Discordances};
use super::evidence::Evidence;
use super::{Estimate, LEAST_CONTEXTS, Level, Sample, difference_at, mean};

/// The limit for a loss, and the confidence required of the answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limit {
    /// The largest loss that counts as none, in the unit of the losses: a share of the largest score for [`Limit::judge`].
    pub loss: f64,
    /// The confidence level of the interval.
    pub level: Level,
}

/// What can be said of a loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// The loss is within the limit.
    Safe {
        /// The loss is at most this.
        loss_at_most: f64,
    },
    /// The loss is beyond the limit.
    NotSafe {
        /// The loss is at least this.
        loss_at_least: f64,
    },
    /// There are too few examples to tell.
    TooFew {
        /// Number of contexts of all places together that would suffice if further ones are like those so far; `None` if not even
        /// [`MOST_CONTEXTS`] would. If there are fewer than [`LEAST_CONTEXTS`]: the smallest number with which anything can be told.
        contexts_needed: Option<usize>,
        /// What that number of contexts would show.
        would_show: Prospect,
    },
}

/// What more contexts would show, if they are like those so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prospect {
    /// The loss is within the limit.
    Safe,
    /// The loss is beyond the limit.
    NotSafe,
    /// Not known: there are fewer than [`LEAST_CONTEXTS`] contexts so far, or values are NaN.
    Unknown,
}

/// A verdict with the numbers behind it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judgement {
    /// The mean loss, with the interval that the verdict follows from. No ends if all examples share one context.
    pub loss: Estimate,
    /// Number of contexts.
    pub contexts: usize,
    /// The verdict.
    pub verdict: Verdict,
}

/// Larger numbers of contexts are not worth reporting.
pub const MOST_CONTEXTS: usize = 100_000;

impl Limit {
    /// Judges the loss of a method from its paired differences to the reference (method minus reference, scores in 0..=1), one sample for
    /// each place. `None` without places, or if a place has no example.
    pub fn judge(&self, places: &[Sample]) -> Option<Judgement> {
        let (sample, scale) = pooled(places)?;
        let loss = loss_of(&sample, scale, self.level)?;
        let within = Self { loss: self.loss / scale, ..*self };
        Some(self.judgement(loss, sample.contexts(), || match sample.contexts() < LEAST_CONTEXTS {
            true => (self.least_contexts(), Prospect::Unknown),
            false => within.contexts_needed(&sample),
        }))
    }

    /// Like [`judge`](Self::judge), with an interval that holds at all looks together, so that examples may be added until a verdict is
    /// reached ([`Evidence`]). The interval is wider. Each context counts with the mean of its losses.
    pub fn judge_at_any_time(&self, places: &[Sample]) -> Option<Judgement> {
        let losses: Vec<Vec<f64>> = places.iter().map(losses_of_contexts).collect();
        let evidence = Evidence::new(&losses)?;
        let error = self.level.tail();
        let loss = Estimate { mean: evidence.mean(), ends: Some(evidence.bounds(error)) };
        let contexts = evidence.rounds() * places.len();
        let needed = || {
            let contexts = evidence.rounds_needed(self.loss, error).and_then(|n| counted((n * places.len()) as f64));
            (contexts, self.side_of(loss.mean))
        };
        Some(self.judgement(loss, contexts, needed))
    }

    /// Judges a loss in any unit, such as percent of a perplexity, from its mean and an interval of this level over `contexts` contexts.
    /// The number of contexts needed is estimated from the width of the interval, which falls with the square root of the number of
    /// contexts.
    pub fn judge_interval(&self, loss: Estimate, contexts: usize) -> Judgement {
        let by_width = |(low, high): (f64, f64)| {
            let (width, room) = match loss.mean <= self.loss {
                true => (high - loss.mean, self.loss - loss.mean),
                false => (loss.mean - low, loss.mean - self.loss),
            };
            counted(contexts as f64 * (width / room).powi(2)).map(|n| n.max(LEAST_CONTEXTS))
        };
        self.judgement(loss, contexts, || match contexts < LEAST_CONTEXTS {
            true => (Some(LEAST_CONTEXTS), Prospect::Unknown),
            false => (loss.ends.and_then(by_width), self.side_of(loss.mean)),
        })
    }

    /// Returns the verdict that follows from an interval. `needed` is called only if there are too few examples.
    pub(crate) fn judgement(
        &self,
        loss: Estimate,
        contexts: usize,
        needed: impl FnOnce() -> (Option<usize>, Prospect),
    ) -> Judgement {
        let verdict = match loss.ends.filter(|_| contexts >= LEAST_CONTEXTS) {
            Some((_, high)) if high <= self.loss => Verdict::Safe { loss_at_most: high },
            Some((low, _)) if low > self.loss => Verdict::NotSafe { loss_at_least: low },
            _ => {
                let (contexts_needed, would_show) = needed();
                Verdict::TooFew { contexts_needed, would_show }
            }
        };
        Judgement { loss, contexts, verdict }
    }

    /// Returns the side of the limit on which a mean loss lies.
    fn side_of(&self, mean: f64) -> Prospect {
        if mean.is_nan() {
            Prospect::Unknown
        } else if mean <= self.loss {
            Prospect::Safe
        } else {
            Prospect::NotSafe
        }
    }

    /// Returns the smallest number of contexts with which a loss of scores can get a verdict: not safe if everything is lost, or safe if
    /// nothing is. `None` if no number is enough.
    pub fn least_contexts(&self) -> Option<usize> {
        let all_lost = |contexts: usize| Discordance::all_lost(contexts).standard_errors_above(-self.loss);
        let not_safe = fewest_that(LEAST_CONTEXTS - 1, |contexts| -all_lost(contexts) > self.level.z());
        not_safe.into_iter().chain(self.fewest_contexts()).min()
    }

    /// Returns the smallest number of contexts with which a loss of scores can be called safe: the number that suffices if nothing
    /// differs. `None` if the limit is 0.
    ///
    /// It is never less than the exact binomial bound requires: `n` equal examples exclude a share `p` of lost ones if `(1 − p)^n` is
    /// below the error of one side.
    pub fn fewest_contexts(&self) -> Option<usize> {
        let of_score = self.level.z().powi(2) * (1.0 - self.loss) / self.loss;
        let exact = self.level.tail().ln() / (-self.loss).ln_1p();
        counted(of_score.max(exact)).map(|n| n.max(LEAST_CONTEXTS))
    }

    /// Returns the number of contexts that would show on which side of the limit the loss is, if gains, losses and their spread over
    /// contexts stay as they are. If that is the safe side, it is at least [`fewest_contexts`](Self::fewest_contexts).
    fn contexts_needed(&self, differences: &Sample) -> (Option<usize>, Prospect) {
        let Some(of) = Discordances::of(differences) else { return (None, Prospect::Unknown) };
        let errors = |contexts: usize| of.at(self.level, contexts as f64).standard_errors_above(-self.loss);
        let is_within = errors(differences.contexts()) > 0.0;
        let needed = fewest_that(differences.contexts(), |contexts| errors(contexts).abs() >= self.level.z());
        match is_within {
            true => (needed.and_then(|needed| Some(self.fewest_contexts()?.max(needed))), Prospect::Safe),
            false => (needed, Prospect::NotSafe),
        }
    }
}

/// Returns the mean loss over places, with its interval, from their differences as combined by [`pooled`]. Places of different sizes give
/// a scale above 1, with which the interval would exceed what scores allow, so it is cut at −1 and 1.
pub(crate) fn loss_of(differences: &Sample, scale: f64, level: Level) -> Option<Estimate> {
    let loss = negated(difference_at(differences, level)?.scaled(scale));
    let possible = |(low, high): (f64, f64)| (low.max(loss.mean.min(-1.0)), high.min(loss.mean.max(1.0)));
    Some(Estimate { ends: loss.ends.map(possible), ..loss })
}

/// Returns the mean loss in each context, from differences.
fn losses_of_contexts(differences: &Sample) -> Vec<f64> {
    let of_context = |places: &[usize]| -mean(&places.iter().map(|at| differences.values[*at]).collect::<Vec<_>>());
    differences.by_context().map(of_context).collect()
}

/// Returns the smallest number of contexts above `low` for which `is_so` holds. It must not hold for `low`, and must hold for all numbers
/// from some number on. `None` if that number is beyond [`MOST_CONTEXTS`].
fn fewest_that(mut low: usize, is_so: impl Fn(usize) -> bool) -> Option<usize> {
    let mut high = MOST_CONTEXTS;
    if low >= high || !is_so(high) {
        return None;
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if is_so(middle) { high = middle } else { low = middle }
    }
    Some(high)
}

/// Rounds a number of contexts up; `None` beyond [`MOST_CONTEXTS`].
fn counted(contexts: f64) -> Option<usize> {
    (contexts.is_finite() && contexts <= MOST_CONTEXTS as f64).then(|| contexts.ceil() as usize)
}

fn negated(gain: Estimate) -> Estimate {
    Estimate { mean: -gain.mean, ends: gain.ends.map(|(low, high)| (-high, -low)) }
}

/// Combines the values of several samples into one sample, whose mean times the returned factor is the mean of the samples' means. `None`
/// without samples, or if any is empty.
///
/// Values of smaller samples weigh more. All are divided by the largest weight, so that values in −1..=1 stay there; for samples of equal
/// size nothing changes, and the factor is 1. Contexts of different samples are different contexts. An interval for the mean of
/// independent values with one distribution is valid for these as well, because different means of the samples only make their joint mean
/// vary less.
pub fn pooled(samples: &[Sample]) -> Option<(Sample, f64)> {
    let least = samples.iter().map(|of| of.values.len()).min().filter(|least| *least > 0)?;
    let n = samples.iter().map(|of| of.values.len()).sum::<usize>();
    let of_sample = |(at, of): (usize, &Sample)| -> Vec<((usize, usize), f64)> {
        let weight = least as f64 / of.values.len() as f64;
        let of_context = |(context, places): (usize, &[usize])| -> Vec<((usize, usize), f64)> {
            places.iter().map(|place| ((at, context), weight * of.values[*place])).collect()
        };
        of.by_context().enumerate().flat_map(of_context).collect()
    };
    let all = samples.iter().enumerate().flat_map(of_sample);
    let scale = n as f64 / (samples.len() * least) as f64;
    Some((Sample::new(all), scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Differences of `n` examples, of which some are gained and some lost.
    fn of(gained: usize, lost: usize, n: usize) -> Sample {
        let value = |i| if i < gained { 1.0 } else { -f64::from(u8::from(i < gained + lost)) };
        Sample::independent(&(0..n).map(value).collect::<Vec<_>>())
    }

    fn limit(points: f64, comparisons: usize) -> Limit {
        Limit { loss: points / 100.0, level: Level::of_each(comparisons) }
    }

    fn verdict(limit: &Limit, places: &[Sample]) -> Verdict {
        limit.judge(places).unwrap().verdict
    }

    fn is_safe(limit: &Limit, places: &[Sample]) -> bool {
        matches!(verdict(limit, places), Verdict::Safe { .. })
    }

    #[test]
    fn a_verdict_is_told_by_the_ends_of_the_interval() {
        // From the table of Tango's intervals in `difference`: 1 gained and 7 lost of 21 are a loss of 2.6 to 51.7 points.
        let told = verdict(&limit(1.0, 1), &[of(1, 7, 21)]);
        let Verdict::NotSafe { loss_at_least } = told else { panic!("{told:?}") };
        assert!((loss_at_least - 0.026_003_030).abs() < 2e-6, "{loss_at_least}");
        assert!(matches!(verdict(&limit(3.0, 1), &[of(1, 7, 21)]), Verdict::TooFew { .. }));
        // Twenty equal pairs leave an uncertainty of 16.1 points.
        let told = verdict(&limit(16.2, 1), &[of(0, 0, 20)]);
        let Verdict::Safe { loss_at_most } = told else { panic!("{told:?}") };
        assert!((loss_at_most - 0.161_125_158).abs() < 2e-6, "{loss_at_most}");
        assert!(matches!(verdict(&limit(16.0, 1), &[of(0, 0, 20)]), Verdict::TooFew { .. }));
        assert_eq!((limit(1.0, 1).judge(&[]), limit(1.0, 1).judge(&[of(0, 0, 0), of(0, 0, 9)])), (None, None));
    }

    #[test]
    fn with_four_contexts_nothing_is_told() {
        // The losses in four contexts say nothing about how many contexts would suffice.
        for (lost, comparisons, least) in [(4, 1, 5), (0, 1, 5), (2, 26, 10)] {
            let told = limit(1.0, comparisons).judge(&[of(0, lost, 4)]).unwrap();
            let few = Verdict::TooFew { contexts_needed: Some(least), would_show: Prospect::Unknown };
            assert_eq!(told.verdict, few, "{lost} {comparisons}");
            // The number is the smallest with which anything can be told, as found by counting up.
            let tells =
                |n: &usize| !matches!(verdict(&limit(1.0, comparisons), &[of(0, *n, *n)]), Verdict::TooFew { .. });
            assert_eq!((1..100).find(tells), Some(least), "{comparisons}");
        }
        let of_one = Sample::new((0..20).map(|_| (0, -1.0)));
        let told = limit(1.0, 1).judge(&[of_one]).unwrap();
        assert_eq!((told.loss.ends, told.contexts), (None, 1));
        assert_eq!(told.verdict, Verdict::TooFew { contexts_needed: Some(5), would_show: Prospect::Unknown });
    }

    #[test]
    fn what_one_comparison_tells_many_do_not() {
        // For 450 equal pairs, the interval ends at z² / (450 + z²): 0.85 points with one comparison, 1.29 with four.
        let places = [of(0, 0, 450)];
        assert!(is_safe(&limit(1.0, 1), &places) && !is_safe(&limit(1.0, 4), &places));
        // 6 lost of 20 are 2.45 standard errors from no loss; four comparisons need 2.50.
        let at_0 = |comparisons| limit(0.0, comparisons);
        assert!(matches!(verdict(&at_0(3), &[of(0, 6, 20)]), Verdict::NotSafe { .. }));
        assert!(matches!(verdict(&at_0(4), &[of(0, 6, 20)]), Verdict::TooFew { .. }));
    }

    /// Reference: scipy 1.17.1, `log(0.025 / m) / log(1 - p)`, rounded up: the smallest number of equal examples that excludes a share of
    /// losses above p, for m comparisons.
    const EXACT: [(f64, usize, usize); 4] = [(1.0, 1, 368), (5.0, 1, 72), (10.0, 1, 36), (1.0, 10, 597)];

    #[test]
    fn the_fewest_contexts_suffice_where_nothing_differs_and_are_not_below_the_exact_bound() {
        for (points, comparisons, exact) in EXACT {
            let limit = limit(points, comparisons);
            let fewest = limit.fewest_contexts().unwrap();
            assert!(fewest >= exact, "{points} {comparisons}: {fewest}");
            assert!(is_safe(&limit, &[of(0, 0, fewest)]), "{points} {comparisons}: {fewest}");
            assert_eq!(
                limit.judge(&[of(0, 0, 20)]).unwrap().verdict,
                Verdict::TooFew { contexts_needed: Some(fewest), would_show: Prospect::Safe }
            );
        }
        assert_eq!(limit(0.0, 1).fewest_contexts(), None);
    }

    #[test]
    fn as_many_as_are_needed_tell_and_fewer_do_not() {
        let times = |gained, lost, n, times: usize| of(gained * times, lost * times, n * times);
        for (points, gained, lost) in [(1.0, 2, 3), (1.0, 0, 3), (10.0, 0, 1), (10.0, 3, 4)] {
            let limit = limit(points, 1);
            let Verdict::TooFew { contexts_needed, would_show } = verdict(&limit, &[of(gained, lost, 20)]) else {
                panic!("{points} {gained} {lost}")
            };
            let needed = contexts_needed.unwrap();
            let then = verdict(&limit, &[times(gained, lost, 20, needed.div_ceil(20))]);
            let shown = if matches!(then, Verdict::Safe { .. }) { Prospect::Safe } else { Prospect::NotSafe };
            assert_eq!(would_show, shown, "{points} {gained} {lost}");
            let is_told =
                |count: usize| !matches!(verdict(&limit, &[times(gained, lost, 20, count)]), Verdict::TooFew { .. });
            assert!(is_told(needed.div_ceil(20)), "{points} {gained} {lost}: {needed}");
            assert!(!is_told((needed - 1) / 20), "{points} {gained} {lost}: {needed}");
        }
        // A loss of exactly the limit never gets a verdict.
        assert!(matches!(verdict(&limit(5.0, 1), &[of(0, 1, 20)]), Verdict::TooFew { contexts_needed: None, .. }));
    }

    #[test]
    fn examples_that_share_a_context_need_more_contexts_than_they_have() {
        // Eight contexts of five questions; in three contexts all are lost.
        let shared = Sample::new((0..40).map(|i| (i / 5, if i < 15 { -1.0 } else { 0.0 })));
        let apart = Sample::new((0..40).map(|i| (i, if i < 15 { -1.0 } else { 0.0 })));
        let limit = limit(10.0, 1);
        assert!(matches!(verdict(&limit, &[apart]), Verdict::NotSafe { .. }));
        let told = verdict(&limit, &[shared]);
        let Verdict::TooFew { contexts_needed: Some(needed), .. } = told else { panic!("{told:?}") };
        assert!((9..40).contains(&needed), "{needed}");
        let of_needed = Sample::new((0..needed * 5).map(|i| (i / 5, if i / 5 % 8 < 3 { -1.0 } else { 0.0 })));
        assert!(matches!(verdict(&limit, &[of_needed]), Verdict::NotSafe { .. }), "{needed}");
    }

    #[test]
    fn a_mean_over_tasks_needs_fewer_examples_of_each() {
        let tasks = |n: usize| vec![of(0, 0, n); 4];
        assert!(is_safe(&limit(1.0, 1), &tasks(96)) && !is_safe(&limit(1.0, 1), &tasks(95)), "384 and 380 together");
        // Pooled samples of equal size are one sample: the same as all of the values together.
        let parts = [of(1, 2, 30), of(0, 4, 30)];
        let whole = Sample::independent(&[parts[0].values.clone(), parts[1].values.clone()].concat());
        assert_eq!(limit(1.0, 1).judge(&parts), limit(1.0, 1).judge(&[whole]));
    }

    #[test]
    fn tasks_of_other_sizes_weigh_the_same() {
        let (small, large) = (of(0, 5, 10), of(0, 0, 40));
        let (sample, scale) = pooled(&[small, large]).unwrap();
        assert!((sample.mean() * scale + 0.25).abs() < 1e-12, "half of 50 points: {}", sample.mean() * scale);
        assert_eq!((sample.contexts(), scale), (50, 2.5));
        assert!(sample.values.iter().all(|value| (-1.0..=1.0).contains(value)));
        let told = limit(1.0, 1).judge(&[of(0, 5, 10), of(0, 0, 40)]).unwrap();
        assert!((told.loss.mean - 0.25).abs() < 1e-12 && told.loss.low() < Some(0.25), "{told:?}");
    }

    #[test]
    fn an_interval_stays_within_what_scores_allow() {
        // As after Ctrl-C, one task has more examples than the other.
        for (first, second) in [(20, 15), (20, 5), (7, 60), (5, 5)] {
            for lost in [0.0, 0.5, 1.0] {
                let places = [first, second].map(|n| of(0, (lost * n as f64) as usize, n));
                let loss = limit(1.0, 1).judge(&places).unwrap().loss;
                let (low, high) = loss.ends.unwrap();
                assert!(
                    -1.0 <= low && low <= loss.mean && loss.mean <= high && high <= 1.0 + 1e-12,
                    "{first} {second}: {loss:?}"
                );
            }
        }
    }

    #[test]
    fn an_interval_in_another_unit_is_judged_alike() {
        let limit = limit(100.0, 1);
        let few = |contexts_needed, would_show| Verdict::TooFew { contexts_needed, would_show };
        let judged = |mean: f64, half: f64, contexts| {
            limit.judge_interval(Estimate { mean, ends: Some((mean - half, mean + half)) }, contexts).verdict
        };
        assert_eq!(judged(0.25, 0.5, 20), Verdict::Safe { loss_at_most: 0.75 });
        assert_eq!(judged(3.0, 1.0, 20), Verdict::NotSafe { loss_at_least: 2.0 });
        assert_eq!(judged(0.5, 1.0, 20), few(Some(80), Prospect::Safe), "half the width");
        assert_eq!(judged(1.5, 1.0, 20), few(Some(80), Prospect::NotSafe), "half the width");
        assert_eq!(judged(1.0, 1.0, 4), few(Some(5), Prospect::Unknown));
        assert_eq!(judged(1.0, 1.0, 20), few(None, Prospect::Safe));
        assert!(matches!(judged(0.0, 0.5, 4), Verdict::TooFew { .. }));
    }

    #[test]
    fn at_any_time_takes_more_examples_and_counts_contexts_once() {
        let limit = limit(10.0, 1);
        let at_any_time = |places: &[Sample]| limit.judge_at_any_time(places).unwrap();
        assert!(is_safe(&limit, &[of(0, 0, 40)]));
        let told = at_any_time(&[of(0, 0, 40)]);
        let Verdict::TooFew { contexts_needed: Some(needed), would_show: Prospect::Safe } = told.verdict else {
            panic!("{told:?}")
        };
        assert!((41..80).contains(&needed), "{needed}");
        assert!(matches!(at_any_time(&[of(0, 0, needed)]).verdict, Verdict::Safe { .. }));
        assert!(matches!(at_any_time(&[of(0, 30, 40)]).verdict, Verdict::NotSafe { .. }));
        // Two groups of 20 count as one of 40, and five questions about a context as one value.
        let seen = |places: &[Sample]| (at_any_time(places).loss, at_any_time(places).contexts);
        assert_eq!(seen(&[of(0, 5, 20), of(0, 5, 20)]), seen(&[of(0, 10, 40)]));
        let shared = Sample::new((0..200).map(|i| (i / 5, if i < 50 { -1.0 } else { 0.0 })));
        assert_eq!(seen(&[shared]), seen(&[of(0, 10, 40)]));
        assert_eq!(limit.judge_at_any_time(&[]), None);
    }

    #[test]
    fn values_that_are_no_scores_do_not_panic() {
        for values in [&[7.0, -9.0, 1.0, 0.0, 0.0][..], &[f64::NAN; 6], &[f64::INFINITY; 6], &[5.0; 6]] {
            assert!(limit(1.0, 1).judge(&[Sample::independent(values)]).is_some());
        }
    }
}

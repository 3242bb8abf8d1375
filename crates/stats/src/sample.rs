//! Values with their contexts, and their mean with its interval.

use super::distributions::t_quantile;
use super::level::Level;

/// Number of contexts needed before a difference counts as beyond noise: with fewer, no test keeps its error rate.
pub const LEAST_CONTEXTS: usize = 5;

/// A mean and its 95 % interval, in the unit of the values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Mean of the values.
    pub mean: f64,
    /// Lower end, at most the mean, and upper end, at least the mean; `None` if all values belong to one context.
    pub ends: Option<(f64, f64)>,
}

impl Estimate {
    /// Returns the estimate with all numbers multiplied by a positive `factor`.
    pub fn scaled(self, factor: f64) -> Self {
        Self { mean: self.mean * factor, ends: self.ends.map(|(low, high)| (low * factor, high * factor)) }
    }

    /// Returns the lower end, if there is one.
    pub fn low(&self) -> Option<f64> {
        self.ends.map(|(low, _)| low)
    }

    /// Returns the upper end, if there is one.
    pub fn high(&self) -> Option<f64> {
        self.ends.map(|(_, high)| high)
    }

    /// Makes an estimate whose mean lies between the ends, which rounding may move by an ulp.
    pub(crate) fn around(mean: f64, (low, high): (f64, f64)) -> Self {
        Self { mean, ends: Some((low.min(mean), high.max(mean))) }
    }
}

/// Values of examples, and which of them share a context.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub(crate) values: Vec<f64>,
    /// Indices of the values, grouped by context.
    pub(crate) places: Vec<usize>,
    /// Where each context's indices end in `places`.
    pub(crate) ends: Vec<usize>,
}

impl Sample {
    /// A sample of values in the order of the examples, each with its context.
    pub fn new<C: Ord>(observed: impl IntoIterator<Item = (C, f64)>) -> Self {
        let (contexts, values): (Vec<C>, Vec<f64>) = observed.into_iter().unzip();
        let mut places: Vec<usize> = (0..values.len()).collect();
        places.sort_by(|a, b| contexts[*a].cmp(&contexts[*b]));
        let is_last = |at: &usize| places.get(at + 1).is_none_or(|next| contexts[*next] != contexts[places[*at]]);
        let ends = (0..places.len()).filter(is_last).map(|at| at + 1).collect();
        Self { values, places, ends }
    }

    /// A sample in which each value has its own context.
    pub fn independent(values: &[f64]) -> Self {
        Self::new(values.iter().copied().enumerate())
    }

    /// Number of contexts, which are the independent units.
    pub fn contexts(&self) -> usize {
        self.ends.len()
    }

    /// Iterates over the indices of the values, by context.
    pub(crate) fn by_context(&self) -> impl Iterator<Item = &[usize]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, end)| &self.places[begin..*end])
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub(crate) fn n(&self) -> f64 {
        self.values.len() as f64
    }

    pub(crate) fn mean(&self) -> f64 {
        mean(&self.values)
    }

    /// Whether every example has its own context.
    pub(crate) fn is_independent(&self) -> bool {
        self.ends.len() == self.values.len()
    }

    /// Estimates the variance of the sum of the values minus `centre`, from the sums by context.
    pub(crate) fn variance_of_sum(&self, centre: f64) -> f64 {
        let sum = |context: &[usize]| context.iter().map(|i| self.values[*i] - centre).sum::<f64>();
        let groups = self.ends.len() as f64;
        groups / (groups - 1.0) * self.by_context().map(|context| sum(context).powi(2)).sum::<f64>()
    }

    /// The effective number of examples if all examples of a context were alike.
    pub(crate) fn least_effective(&self) -> f64 {
        self.n().powi(2) / self.by_context().map(|context| (context.len() as f64).powi(2)).sum::<f64>()
    }

    /// Returns the number of independent all-or-nothing examples, with variance `whole` each, whose mean would be as certain as this
    /// sample's at a level. `is_whole` says whether the values are all or nothing. There must be two contexts.
    pub(crate) fn effective(&self, whole: f64, is_whole: bool, level: Level) -> f64 {
        self.size(whole, is_whole).effective(level, self.ends.len() as f64)
    }

    /// Returns the data from which the effective number of examples follows, at any level and for any number of such contexts.
    ///
    /// This is Korn and Graubard's effective sample size (Survey Methodology 24, 1998): the variance is measured between contexts, with
    /// Student's t for their number. Few contexts may be alike by chance, so one more is assumed in which all examples are alike and all or
    /// nothing. There must be two contexts.
    pub(crate) fn size(&self, whole: f64, is_whole: bool) -> SampleSize {
        let (n, least) = (self.n(), self.least_effective());
        let spread = if is_whole && self.is_independent() {
            Spread::Independent
        } else if whole < NO_VARIANCE {
            Spread::None
        } else {
            // Both in units of the variance of independent all-or-nothing examples.
            Spread::Measured { measured: self.variance_of_sum(self.mean()) / (n * whole), most: n / least }
        };
        SampleSize { n, least, contexts: self.ends.len() as f64, spread, rare: None }
    }

    /// Like [`size`](Self::size), for paired differences. Most of them are 0 if a method is good, and then two things are different.
    ///
    /// First, only contexts that differ show how large differences are. If a few gain a little, losses that were not seen may be whole. So
    /// one more context that differs is assumed, whose differences are all or nothing, and as alike as was measured. This matters only for
    /// scores between 0 and 1.
    ///
    /// Second, differences are at least as informative as if all examples of a context were alike and all or nothing. So examples that are
    /// copies of each other count exactly as one.
    pub(crate) fn size_of_differences(&self, whole: f64, is_whole: bool) -> SampleSize {
        let size = self.size(whole, is_whole);
        let Spread::Measured { measured, most } = size.spread else { return size };
        let differs = |context: &&[usize]| context.iter().any(|at| self.values[*at] != 0.0);
        let mean = self.mean();
        let of_one = self.values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (self.n() * whole);
        let if_whole = if of_one > NO_VARIANCE && !is_whole { (measured / of_one).min(most) } else { 0.0 };
        SampleSize { rare: Some(Rare { differ: self.by_context().filter(differs).count() as f64, if_whole }), ..size }
    }
}

/// A smaller variance is a rounding error.
const NO_VARIANCE: f64 = 1e-12;

/// The size of a sample, with what its effective size depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SampleSize {
    n: f64,
    /// The effective number of examples if all examples of a context were alike.
    least: f64,
    contexts: f64,
    spread: Spread,
    /// Set for differences whose variance was measured.
    rare: Option<Rare>,
}

/// How the values of a sample vary, compared with independent all-or-nothing examples.
#[derive(Debug, Clone, Copy)]
enum Spread {
    /// They are independent all-or-nothing examples.
    Independent,
    /// They do not vary.
    None,
    /// They vary by these factors: as measured between contexts, and if all examples of a context were alike and all or nothing.
    Measured { measured: f64, most: f64 },
}

/// Data on differences that may be rare.
#[derive(Debug, Clone, Copy)]
struct Rare {
    /// Number of contexts in which an example differs.
    differ: f64,
    /// The factor of [`Spread::Measured`] if all differences were whole and as alike within contexts as the measured ones; 0 if they are
    /// whole.
    if_whole: f64,
}

impl Rare {
    /// Returns the measured factor with one more context that differs, whose differences are whole.
    fn with_one_whole(&self, measured: f64, times: f64) -> f64 {
        let differ = self.differ * times;
        (differ * measured + self.if_whole) / (differ + 1.0)
    }
}

impl SampleSize {
    /// Returns the effective number of examples at a level, for `contexts` contexts like those of the sample.
    pub(crate) fn effective(&self, level: Level, contexts: f64) -> f64 {
        let times = contexts / self.contexts;
        match self.spread {
            Spread::Independent => self.n * times,
            Spread::None => self.least * times,
            Spread::Measured { measured, most } => {
                let design = ((contexts - 1.0) * measured + most) / contexts;
                let of_design = |design: f64| self.n * times / design * (level.z() / level.t(contexts - 1.0)).powi(2);
                match self.rare {
                    None => of_design(design),
                    Some(rare) => of_design(design.max(rare.with_one_whole(measured, times))).max(self.least * times),
                }
            }
        }
    }
}

/// Returns the mean of unbounded values with its 95 % interval by Student's t over contexts; `None` without values, no ends for a single
/// context. If nothing varies, the interval has no width. Use it for counts; for shares of right answers, use [`score()`](super::score()).
pub fn mean_interval(values: &Sample) -> Option<Estimate> {
    if values.is_empty() {
        return None;
    }
    let mean = values.mean();
    if values.contexts() < 2 {
        return Some(Estimate { mean, ends: None });
    }
    let half = values.variance_of_sum(mean).sqrt() / values.n() * t_quantile(values.contexts() as f64 - 1.0);
    Some(Estimate { mean, ends: Some((mean - half, mean + half)) })
}

/// Returns the mean of the values, summed in their order; 0 for none.
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// Returns a quantile of sorted values, interpolated linearly between neighbours (NumPy's default).
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len() - 1) as f64;
    let (below, part) = (at.floor() as usize, at.fract());
    match sorted.get(below + 1) {
        Some(above) => sorted[below] + part * (above - sorted[below]),
        None => sorted[below],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distributions::Z;

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(quantile(&[0.0, 1.0, 2.0], 0.25), 0.5);
        assert_eq!(quantile(&[0.0, 1.0, 2.0], 1.0), 2.0);
    }

    #[test]
    fn examples_that_are_alike_within_contexts_count_once() {
        let alike = Sample::new((0..60).map(|i| (i / 3, f64::from(u8::from(i / 3 % 2 == 0)))));
        assert_eq!((alike.contexts(), alike.least_effective()), (20, 20.0));
        // Twenty contexts, one of them assumed, with Student's t for their number.
        let expected = 20.0 * (20.0 / 21.0) * (Z / 2.093_024_054_408_263).powi(2);
        assert!(
            (alike.effective(0.25, true, Level::SINGLE) - expected).abs() < 1e-6,
            "{}",
            alike.effective(0.25, true, Level::SINGLE)
        );
        // Every context has as many right as wrong answers, so only the assumed context varies.
        let mixed = Sample::new((0..40).map(|i| (i / 2, f64::from(u8::from(i % 2 == 0)))));
        assert!(mixed.effective(0.25, true, Level::SINGLE) > 40.0);
    }

    /// Returns the effective number of examples of differences.
    fn effective(sample: &Sample) -> f64 {
        let share = |part: fn(f64) -> f64| sample.values.iter().map(|d| part(*d)).sum::<f64>() / sample.n();
        let (gained, lost) = (share(|d| d.max(0.0)), share(|d| (-d).max(0.0)));
        let is_whole = sample.values.iter().all(|d| [-1.0, 0.0, 1.0].contains(d));
        let whole = gained + lost - (gained - lost).powi(2);
        sample.size_of_differences(whole, is_whole).effective(Level::SINGLE, sample.contexts() as f64)
    }

    #[test]
    fn differences_that_are_copies_are_as_one() {
        for lost in [-1.0, -0.25] {
            let of = |copies: usize| {
                Sample::new((0..20 * copies).map(|i| (i / copies, if i / copies < 6 { lost } else { 0.0 })))
            };
            let (one, five) = (effective(&of(1)), effective(&of(5)));
            assert!((one - five).abs() < 1e-9 * one, "{lost}: {one} {five}");
            assert!(if lost == -1.0 { one == 20.0 } else { one > 20.0 }, "{lost}: {one}");
        }
    }

    #[test]
    fn few_small_differences_do_not_show_that_others_are_small() {
        // One gain of 0.2 in 50: the measured factor is about 0.2. Of the two contexts that differ, one is assumed, and is whole.
        let of =
            |gains: usize| Sample::independent(&(0..50).map(|i| if i < gains { 0.2 } else { 0.0 }).collect::<Vec<_>>());
        let t = (Z / Level::SINGLE.t(49.0)).powi(2);
        let found = effective(&of(1));
        // The variance between contexts is 50 / 49 times that of one example.
        let (of_one, between) = ((0.04 - 0.2 * 0.004) / (0.2 - 0.004 * 0.2), 50.0 / 49.0);
        let expected = 50.0 * t / ((of_one * between + 1.0) / 2.0);
        assert!((found - expected).abs() < 1e-9 * expected, "{found} {expected}");
        // If all contexts differ, the context that is assumed among all contexts decides.
        let all = Sample::independent(&(0..50).map(|i| -0.1 - 0.1 * f64::from(i % 2)).collect::<Vec<_>>());
        let whole = 0.15 * (1.0 - 0.15);
        let plain = all.size(whole, false).effective(Level::SINGLE, 50.0);
        assert!((effective(&all) - plain).abs() < 1e-9 * plain, "{plain}");
        // Whole losses change nothing, shared or not.
        let shared = Sample::new((0..100).map(|i| (i / 5, if i % 5 == 0 && i < 50 { -1.0 } else { 0.0 })));
        let plain = shared.size(0.09, true).effective(Level::SINGLE, 20.0);
        assert_eq!(effective(&shared), plain);
    }

    #[test]
    fn whole_examples_with_contexts_of_their_own_count_as_they_are() {
        let sample = Sample::independent(&[1.0, 0.0, 1.0, 1.0]);
        assert_eq!(sample.effective(0.1875, true, Level::SINGLE), 4.0);
        assert_eq!(Sample::independent(&[1.0; 4]).effective(0.0, false, Level::SINGLE), 4.0);
    }
}

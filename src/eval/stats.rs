//! Means and differences with bootstrap intervals, on plain numbers.
//!
//! Nothing here knows records; callers pass values in the order of the examples, and the same values in the
//! same order give the same interval on every machine.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::BTreeMap;

/// Number of resamples of every bootstrap.
pub const RESAMPLES: usize = 2_000;

/// Share of the resampled means that lies within an interval.
pub const CONFIDENCE: f64 = 0.95;

/// A mean and its 95 % percentile bootstrap interval, in the unit of the values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Mean of the values.
    pub mean: f64,
    /// Lower end, at most the mean.
    pub low: f64,
    /// Upper end, at least the mean.
    pub high: f64,
}

impl Interval {
    /// The interval with every number multiplied by a positive `factor`.
    pub fn scaled(self, factor: f64) -> Self {
        Self { mean: self.mean * factor, low: self.low * factor, high: self.high * factor }
    }

    /// Whether all of it lies above 0.
    pub fn is_positive(&self) -> bool {
        self.low > 0.0
    }
}

/// Sum of the values over their number, in their order; 0 for none.
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// Mean of the values with its bootstrap interval over [`RESAMPLES`] resamples; `None` without values.
///
/// A single value, and values that are all equal, give the point.
pub fn bootstrap_mean(values: &[f64], seed: u64) -> Option<Interval> {
    let first = *values.first()?;
    if values.iter().all(|value| *value == first) {
        return Some(Interval { mean: first, low: first, high: first });
    }
    bootstrap(values.len(), seed, |picked| picked.iter().map(|i| values[*i]).sum::<f64>() / values.len() as f64)
}

/// A statistic of `n` examples (`mean`: its value over all of them, in order) with its bootstrap interval over
/// [`RESAMPLES`] resamples; `None` without examples. The statistic is given the indices of the examples picked.
pub fn bootstrap(n: usize, seed: u64, statistic: impl Fn(&[usize]) -> f64) -> Option<Interval> {
    if n == 0 {
        return None;
    }
    let mut picked = vec![0; n];
    let resample = |draw: &mut dyn FnMut(usize) -> usize| {
        picked.iter_mut().for_each(|i| *i = draw(n));
        statistic(&picked)
    };
    Some(percentile_interval(statistic(&(0..n).collect::<Vec<_>>()), seed, resample))
}

/// The 95 % interval of [`RESAMPLES`] values of `resample`, around `mean`; it is given a function that draws one of so
/// many numbers from 0 on.
fn percentile_interval(
    mean: f64,
    seed: u64,
    mut resample: impl FnMut(&mut dyn FnMut(usize) -> usize) -> f64,
) -> Interval {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // Multiply and shift: the bias is below n / 2^32, and no library's choice of sampler changes results.
    let mut draw = |n: usize| ((u64::from(rng.next_u32()) * n as u64) >> 32) as usize;
    let mut resampled: Vec<f64> = (0..RESAMPLES).map(|_| resample(&mut draw)).collect();
    resampled.sort_by(f64::total_cmp);
    let tail = (1.0 - CONFIDENCE) / 2.0;
    // Rounding in the sums may put an end beyond the mean by an ulp.
    Interval { mean, low: quantile(&resampled, tail).min(mean), high: quantile(&resampled, 1.0 - tail).max(mean) }
}

/// Mean of the means of several groups of values, each of the same weight, with its bootstrap interval over
/// [`RESAMPLES`] resamples within each group; `None` if there are no groups, or one of them is empty.
pub fn bootstrap_groups(groups: &[Vec<f64>], seed: u64) -> Option<Interval> {
    if groups.is_empty() || groups.iter().any(Vec::is_empty) {
        return None;
    }
    if groups.iter().all(|group| group.iter().all(|value| *value == group[0])) {
        let mean = mean(&groups.iter().map(|group| group[0]).collect::<Vec<_>>());
        return Some(Interval { mean, low: mean, high: mean });
    }
    let mean_of =
        |of_group: &mut dyn FnMut(&[f64]) -> f64| mean(&groups.iter().map(|group| of_group(group)).collect::<Vec<_>>());
    let resample = |draw: &mut dyn FnMut(usize) -> usize| {
        mean_of(&mut |group| (0..group.len()).map(|_| group[draw(group.len())]).sum::<f64>() / group.len() as f64)
    };
    Some(percentile_interval(mean_of(&mut |group| mean(group)), seed, resample))
}

/// Mean of the paired differences `a − b` over the examples that both have, with its bootstrap interval;
/// `None` if they have none in common. Keys say which example a value belongs to.
///
/// The resampling is over examples, so what is common to both (hard and easy examples) cancels.
pub fn paired_difference<K: Ord>(a: &BTreeMap<K, f64>, b: &BTreeMap<K, f64>, seed: u64) -> Option<Interval> {
    bootstrap_mean(&differences(a, b), seed)
}

/// `a − b` for every key that both have, in the order of the keys.
pub fn differences<K: Ord>(a: &BTreeMap<K, f64>, b: &BTreeMap<K, f64>) -> Vec<f64> {
    a.iter().filter_map(|(key, a)| b.get(key).map(|b| a - b)).collect()
}

/// Quantile of sorted values, interpolated linearly between neighbours (NumPy's default).
pub(super) fn quantile(sorted: &[f64], share: f64) -> f64 {
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

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(quantile(&[0.0, 1.0, 2.0], 0.25), 0.5);
        assert_eq!(quantile(&[0.0, 1.0, 2.0], 1.0), 2.0);
    }

    #[test]
    fn one_value_is_its_own_interval_and_none_has_none() {
        assert_eq!(bootstrap_mean(&[0.7], 1), Some(Interval { mean: 0.7, low: 0.7, high: 0.7 }));
        assert_eq!(bootstrap_mean(&[0.1; 30], 1).map(|i| (i.low, i.mean, i.high)), Some((0.1, 0.1, 0.1)));
        assert_eq!(bootstrap_mean(&[], 1), None);
    }

    #[test]
    fn the_interval_is_about_two_standard_errors_wide() {
        let values: Vec<f64> = (0..400).map(|i| f64::from(i % 2)).collect();
        let interval = bootstrap_mean(&values, 7).unwrap();
        // Standard error 0.5 / sqrt(400) = 0.025.
        assert_eq!(interval.mean, 0.5);
        assert!((interval.high - 0.549).abs() < 0.006 && (interval.low - 0.451).abs() < 0.006, "{interval:?}");
        assert_eq!(bootstrap_mean(&values, 7), Some(interval));
    }

    #[test]
    fn a_ratio_of_sums_is_not_a_mean_of_ratios() {
        let (parts, wholes) = ([1.0, 9.0], [1.0, 3.0]);
        let sum = |values: &[f64; 2], picked: &[usize]| picked.iter().map(|i| values[*i]).sum::<f64>();
        let ratio = bootstrap(2, 0, |picked| sum(&parts, picked) / sum(&wholes, picked)).unwrap();
        assert_eq!((ratio.low, ratio.mean, ratio.high), (1.0, 2.5, 3.0));
        assert_eq!(bootstrap(0, 0, |_| 0.0), None);
    }

    #[test]
    fn groups_weigh_the_same_and_are_resampled_within() {
        let noisy: Vec<f64> = (0..400).map(|i| f64::from(i % 2)).collect();
        let both = bootstrap_groups(&[noisy.clone(), vec![1.0; 10]], 3).unwrap();
        // Half the standard error of the first group, 0.5 / sqrt(400), as the second does not vary.
        assert_eq!(both.mean, 0.75);
        assert!((both.high - 0.7745).abs() < 0.004 && (both.low - 0.7255).abs() < 0.004, "{both:?}");
        assert_eq!(bootstrap_groups(&[vec![0.0], vec![1.0, 1.0, 1.0]], 3).map(|i| (i.low, i.high)), Some((0.5, 0.5)));
        assert_eq!(bootstrap_groups(&[noisy, vec![]], 3), None);
        assert_eq!(bootstrap_groups(&[], 3), None);
    }

    #[test]
    fn pairs_are_found_by_key_and_cancel_what_both_share() {
        let easy_and_hard = |shift: f64| (0..50).map(|i| (i, f64::from(i % 5) / 8.0 + shift)).collect();
        let (mut a, b): (BTreeMap<i32, f64>, BTreeMap<i32, f64>) = (easy_and_hard(0.25), easy_and_hard(0.0));
        a.insert(99, 1000.0);
        let difference = paired_difference(&a, &b, 0).unwrap();
        assert_eq!((difference.low, difference.mean, difference.high), (0.25, 0.25, 0.25));
        assert_eq!(paired_difference(&a, &BTreeMap::new(), 0), None);
    }
}

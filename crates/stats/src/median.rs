//! Medians, with intervals that assume nothing about the distribution of values.

use super::distributions::half_tail;
use super::{CONFIDENCE, Estimate, Sample};

/// Returns the median over contexts of each context's median, with its 95 % interval: the k-th smallest and the k-th largest of these
/// medians, for the largest k that the binomial distribution allows. `None` without values; no ends for fewer than six contexts, because
/// even their smallest and largest values do not cover 95 %.
pub fn median_interval(sample: &Sample) -> Option<Estimate> {
    let of_context = |places: &[usize]| median(places.iter().map(|i| sample.values[*i]).collect());
    let mut medians: Vec<f64> = sample.by_context().filter_map(of_context).collect();
    medians.sort_by(f64::total_cmp);
    let n = medians.len();
    let ends = rank(n).map(|k| (medians[k - 1], medians[n - k]));
    Some(Estimate { mean: median(medians)?, ends })
}

/// Returns the middle value, or the mean of the two middle ones; `None` without values.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    Some((values.get(n / 2)? + values[(n - 1) / 2]) / 2.0)
}

/// Returns the largest rank k, from 1, for which the k-th smallest of `n` values exceeds their true median with at most half of the
/// probability that an interval may miss; `None` if there is none.
fn rank(n: usize) -> Option<usize> {
    let may_miss = (1.0 - CONFIDENCE) / 2.0;
    (1..=n / 2).take_while(|k| half_tail(n, k - 1) <= may_miss).last()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_those_of_the_tables() {
        // P(at most 0 of 5) = 1/32; of 6, 1/64; P(at most 1 of 8) = 9/256, of 9, 10/512; P(at most 5 of 20) = 0.0207.
        let found = [0, 1, 5, 6, 8, 9, 11, 12, 20, 100].map(rank);
        let expected = [None, None, None, Some(1), Some(1), Some(2), Some(2), Some(3), Some(6), Some(40)];
        assert_eq!(found, expected);
        assert_eq!(rank(5000), Some(2431));
    }

    #[test]
    fn ends_are_values_and_one_that_strays_moves_nothing() {
        let of = |values: &[f64]| median_interval(&Sample::independent(values));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[3.0, 1.0]), Some(Estimate { mean: 2.0, ends: None }));
        let nine = [9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0];
        assert_eq!(of(&nine), Some(Estimate { mean: 5.0, ends: Some((2.0, 8.0)) }));
        let mut strays = nine;
        strays[0] = 1e9;
        assert_eq!(of(&strays), of(&nine));
    }

    #[test]
    fn examples_of_a_context_count_once() {
        let sample = Sample::new((0..24).map(|i| (i / 4, (i / 4) as f64 + [0.0, 0.25, 0.5, 9.0][i % 4])));
        assert_eq!(median_interval(&sample), Some(Estimate { mean: 2.875, ends: Some((0.375, 5.375)) }));
    }
}

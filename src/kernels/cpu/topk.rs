//! Selection of the largest scores.

use std::cmp::Ordering;

/// Positions of the `k` largest scores, ascending; equal scores favour the lower position.
///
/// `k` above the length selects everything. Not-a-number counts as smallest.
pub fn top_k(scores: &[f32], k: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    if k < scores.len() {
        if k > 0 {
            order.select_nth_unstable_by(k - 1, |&a, &b| descending(scores, a, b));
        }
        order.truncate(k);
        order.sort_unstable();
    }
    order
}

fn descending(scores: &[f32], a: u32, b: u32) -> Ordering {
    let value = |i: u32| {
        let s = scores[i as usize];
        if s.is_nan() { f32::NEG_INFINITY } else { s }
    };
    value(b).total_cmp(&value(a)).then(a.cmp(&b))
}

/// Position of the largest value, the first among equals; 0 for an empty slice.
pub fn argmax(values: &[f32]) -> usize {
    let mut best = 0;
    for (i, v) in values.iter().enumerate() {
        if *v > values[best] || values[best].is_nan() {
            best = i;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_a_full_sort(scores in proptest::collection::vec(-5i8..5, 0..200), k in 0usize..220) {
            let scores: Vec<f32> = scores.into_iter().map(f32::from).collect();
            let mut sorted: Vec<u32> = (0..scores.len() as u32).collect();
            sorted.sort_by(|&a, &b| descending(&scores, a, b));
            sorted.truncate(k);
            sorted.sort_unstable();
            prop_assert_eq!(top_k(&scores, k), sorted);
        }
    }

    #[test]
    fn ties_favour_the_lower_position() {
        assert_eq!(top_k(&[1.0, 3.0, 3.0, 3.0], 2), [1, 2]);
    }

    #[test]
    fn argmax_takes_the_first_of_equals_and_skips_nan() {
        assert_eq!(argmax(&[0.0, 2.0, 2.0]), 1);
        assert_eq!(argmax(&[f32::NAN, -1.0]), 1);
    }
}

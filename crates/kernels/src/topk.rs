//! Selection of the largest scores.

use super::simd::{Simd, dispatch};

/// Number of scores in the sample that estimates the k-th largest.
const SAMPLE: usize = 512;

/// Returns the positions of the `k` largest scores, ascending; among equal scores, the lower positions are selected.
///
/// If `k` exceeds the length, everything is selected. NaN counts as smallest.
///
/// An equally spaced sample gives a bound that slightly more than `k` scores exceed. One pass over all scores collects those, and the k-th
/// largest is found among them. The sample affects the time, not the result.
pub fn top_k(scores: &[f32], k: usize) -> Vec<u32> {
    if k >= scores.len() {
        return (0..scores.len() as u32).collect();
    }
    if k == 0 {
        return Vec::new();
    }
    let found = candidates(scores, k);
    if found.positions.len() == k {
        return found.positions;
    }
    let key = largest(&found.keys, k);
    let equal = k - found.keys.iter().filter(|other| **other > key).count();
    found.keep(Threshold { key, equal })
}

/// Ascending positions of scores that may be among the largest, with their [ordered] keys.
///
/// [ordered]: ordered
pub(super) struct Candidates {
    pub positions: Vec<u32>,
    pub keys: Vec<u32>,
}

/// The threshold of a selection: its last score.
#[derive(Debug, Clone, Copy)]
pub(super) struct Threshold {
    /// The [ordered] key of the score.
    ///
    /// [ordered]: ordered
    pub key: u32,
    /// Number of scores with this key that are selected, the earlier ones first.
    pub equal: usize,
}

impl Candidates {
    /// Returns the positions that the threshold selects.
    pub fn keep(self, cut: Threshold) -> Vec<u32> {
        let Self { mut positions, keys } = self;
        let (mut keys, mut equal) = (keys.iter(), cut.equal);
        positions.retain(|_| match keys.next() {
            Some(key) if *key == cut.key && equal > 0 => {
                equal -= 1;
                true
            }
            Some(key) => *key > cut.key,
            None => false,
        });
        positions
    }
}

/// Returns at least `k` scores, among them the `k` largest.
fn candidates(scores: &[f32], k: usize) -> Candidates {
    if let Some(bound) = bound(scores, k) {
        let found = above(scores, bound);
        if found.positions.len() >= k {
            return found;
        }
    }
    all(scores)
}

/// Returns every score.
pub(super) fn all(scores: &[f32]) -> Candidates {
    let keys = scores.iter().map(|score| ordered(*score)).collect();
    Candidates { positions: (0..scores.len() as u32).collect(), keys }
}

/// Returns a bound that most likely at least `k` scores exceed, and not many more; `None` if a sample would not pay off.
fn bound(scores: &[f32], k: usize) -> Option<f32> {
    let share = k as f64 / scores.len() as f64;
    let expected = share * SAMPLE as f64;
    // Three standard deviations and three more than expected, so that a second pass is rare.
    let rank = (expected + 3.0 * (expected * (1.0 - share)).sqrt() + 3.0).ceil() as usize;
    if scores.len() < 4 * SAMPLE || 2 * rank > SAMPLE {
        return None;
    }
    let mut sample: Vec<u32> = (0..SAMPLE).map(|i| ordered(scores[i * scores.len() / SAMPLE])).collect();
    let chosen = *sample.select_nth_unstable_by(rank - 1, |a, b| b.cmp(a)).1;
    let value = sample_value(chosen);
    value.is_finite().then(|| value.next_down())
}

/// Returns bits that sort as the numbers do. NaN sorts with negative infinity.
pub(super) fn ordered(score: f32) -> u32 {
    let score = if score.is_nan() { f32::NEG_INFINITY } else { score };
    let bits = score.to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

/// Returns the number with these [`ordered`] bits.
fn sample_value(ordered: u32) -> f32 {
    f32::from_bits(if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered })
}

dispatch! {
    /// Returns the `k`-th largest of at least `k` keys, found bit by bit. Each bit takes a pass that counts keys without branching, which
    /// is faster than a partition with unpredictable branches.
    fn largest[](keys: &[u32], k: usize) -> u32 = largest_kernel
}

#[inline(always)]
unsafe fn largest_kernel<S: Simd>(keys: &[u32], k: usize) -> u32 {
    let mut found = 0;
    for bit in (0..u32::BITS).rev() {
        let tried = found | 1 << bit;
        let mut reach = 0u32;
        for key in keys {
            reach += u32::from(*key >= tried);
        }
        if reach as usize >= k {
            found = tried;
        }
    }
    found
}

dispatch! {
    /// Returns all scores above `bound`, which must be finite.
    pub(super) fn above[](scores: &[f32], bound: f32) -> Candidates = above_kernel
}

#[inline(always)]
unsafe fn above_kernel<S: Simd>(scores: &[f32], bound: f32) -> Candidates {
    /// Number of scores between two reservations of memory.
    const STRETCH: usize = 1024;
    let (mut positions, mut kept) = (Vec::<u32>::new(), Vec::<f32>::new());
    let (whole, mut count) = (scores.len() / S::LANES * S::LANES, 0);
    for begin in (0..whole).step_by(STRETCH) {
        // Whole vectors are written at the end, so reserve memory for one more.
        positions.reserve(STRETCH + S::LANES);
        kept.reserve(STRETCH + S::LANES);
        for first in (begin..whole.min(begin + STRETCH)).step_by(S::LANES) {
            // SAFETY: `first + LANES` is within `scores`; the CPU supports `S` (caller). At most `first - begin` were kept in this stretch,
            // so one more vector fits. The difference of two floats is positive exactly if the first is larger, and NaN if the first is
            // NaN.
            unsafe {
                let own = S::load(scores.as_ptr().add(first));
                let over = S::positive(S::add(own, S::splat(-bound)));
                S::keep(over, own, first as u32, kept.as_mut_ptr().add(count), positions.as_mut_ptr().add(count));
                count += over.count_ones() as usize;
            }
        }
        // SAFETY: `count` elements have been written, and the memory for them was reserved.
        unsafe {
            positions.set_len(count);
            kept.set_len(count);
        }
    }
    for (at, score) in scores.iter().enumerate().skip(whole).filter(|(_, score)| **score > bound) {
        positions.push(at as u32);
        kept.push(*score);
    }
    // NaN exceeds no bound, so all kept scores are numbers.
    let mut keys = Vec::with_capacity(kept.len());
    for score in kept {
        keys.push(ordered(score));
    }
    Candidates { positions, keys }
}

dispatch! {
    /// Adds `offsets` to every row of `rows: [n][offsets]`, and appends the position of each row's largest sum; of equal sums, the first.
    pub fn argmax_rows[](rows: &mut [f32], offsets: &[f32], found: &mut Vec<u32>) = argmax_rows_kernel
}

#[inline(always)]
unsafe fn argmax_rows_kernel<S: Simd>(rows: &mut [f32], offsets: &[f32], found: &mut Vec<u32>) {
    const LANES: usize = 16;
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    for row in rows.chunks_exact_mut(offsets.len()) {
        row.iter_mut().zip(offsets).for_each(|(x, offset)| *x += offset);
        let (whole, rest) = row.as_chunks::<LANES>();
        let mut lanes = [f32::NEG_INFINITY; LANES];
        for chunk in whole {
            lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane = larger(*lane, *x));
        }
        let largest = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, b| larger(a, *b));
        found.push(row.iter().position(|x| *x == largest).unwrap_or(0) as u32);
    }
}

/// Returns the position of the largest value; of equal values, the first. 0 for an empty slice.
pub fn argmax(values: &[f32]) -> usize {
    const LANES: usize = 16;
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (whole, rest) = values.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in whole {
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane = larger(*lane, *x));
    }
    let largest = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, b| larger(a, *b));
    values.iter().position(|x| *x == largest).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cmp::Ordering;

    fn descending(scores: &[f32], a: u32, b: u32) -> Ordering {
        let value = |i: u32| {
            let s = scores[i as usize];
            if s.is_nan() { f32::NEG_INFINITY } else { s }
        };
        value(b).total_cmp(&value(a)).then(a.cmp(&b))
    }

    fn sorted(scores: &[f32], k: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..scores.len() as u32).collect();
        order.sort_by(|&a, &b| descending(scores, a, b));
        order.truncate(k);
        order.sort_unstable();
        order
    }

    proptest! {
        #[test]
        fn equals_a_full_sort(scores in proptest::collection::vec(-5i8..5, 0..200), k in 0usize..220) {
            let scores: Vec<f32> = scores.into_iter().map(f32::from).collect();
            prop_assert_eq!(top_k(&scores, k), sorted(&scores, k));
        }
    }

    #[test]
    fn long_rows_of_every_kind_equal_a_full_sort() {
        let n = 9001;
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0, f32::MIN_POSITIVE / 2.0, f32::MAX, f32::MIN];
        let wave = |i: usize| (i as f32 * 0.7).sin() * (i as f32 * 0.013).cos();
        let rows: [Vec<f32>; 8] = [
            (0..n).map(wave).collect(),
            // The sample sees only low scores, or only high ones.
            (0..n).map(|i| if (0..SAMPLE).any(|s| s * n / SAMPLE == i) { -9.0 } else { wave(i) }).collect(),
            (0..n).map(|i| if (0..SAMPLE).any(|s| s * n / SAMPLE == i) { 9.0 } else { wave(i) }).collect(),
            (0..n).map(|i| -((i * 7 % 32) as f32)).collect(),
            vec![1.5; n],
            (0..n).map(|i| odd[i * 5 % 11 % 8]).collect(),
            (0..n).map(|i| if i % 3 == 0 { f32::NEG_INFINITY } else { wave(i) }).collect(),
            vec![f32::NEG_INFINITY; n],
        ];
        for (number, scores) in rows.iter().enumerate() {
            for k in [0, 1, 2, 31, 300, 1200, 4400, n - 1, n, n + 1] {
                assert_eq!(top_k(scores, k), sorted(scores, k), "row {number}, k = {k}");
            }
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

    #[test]
    fn the_largest_of_every_row_is_found() {
        for width in [1, 3, 16, 37, 64] {
            let value = |i: usize| ((i * 7919) % 23) as f32 - 11.0;
            let mut rows: Vec<f32> = (0..20 * width).map(value).collect();
            let offsets: Vec<f32> = (0..width).map(|i| value(i + 5) / 4.0).collect();
            let sum = |row: &[f32]| row.iter().zip(&offsets).map(|(x, o)| x + o).collect::<Vec<f32>>();
            let expected: Vec<u32> = rows.chunks(width).map(|row| argmax(&sum(row)) as u32).collect();
            let mut found = Vec::new();
            argmax_rows(&mut rows, &offsets, &mut found);
            assert_eq!(found, expected, "{width}");
        }
        let mut found = Vec::new();
        argmax_rows(&mut [f32::NAN, f32::NAN], &[0.0, 0.0], &mut found);
        assert_eq!(found, [0]);
    }
}

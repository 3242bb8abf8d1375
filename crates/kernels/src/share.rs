//! Selects the fewest largest scores that together have a given share of the softmax mass; scores are logits.

use super::simd::{Simd, dispatch};
use super::topk::{Candidates, Threshold, above, all, ordered, top_k};

/// Number of scores in the sample with which a row is searched. The share is reached between two neighbours of the sample, which are found
/// by the masses above them. `CUTS + 1` is a product of one factor per round, `TRIED` in the first and `TRIED + 1` in the others, so every
/// row needs the same number of rounds.
const CUTS: usize = 4 * 5 * 5 * 5 - 1;
/// Number of rounds of the search.
const ROUNDS: usize = 4;
/// Number of bounds whose masses are computed in a round.
const TRIED: usize = 4;
/// Shorter rows are sorted completely.
const LEAST_CUT: usize = 4 * CUTS;

/// Returns ascending positions of the fewest largest scores that have a share `p` of the mass, but at least `least` of them. Among equal
/// scores, the earlier are selected.
///
/// A score's mass is `e^(scale · score)`. NaN has no mass. If the largest score is infinite, no other score has any mass.
///
/// Only scores between two neighbours of a sample are sorted. The choice of the sample affects nothing but rounding: masses above both
/// neighbours are summed in the order of the row.
pub fn top_share(scores: &[f32], scale: f32, p: f64, least: usize) -> Vec<u32> {
    if p >= 1.0 || least >= scores.len() {
        return (0..scores.len() as u32).collect();
    }
    let mut weights = Vec::new();
    let max = weigh(scores, scale, &mut weights);
    if !max.is_finite() {
        return top_k(scores, least.max(1));
    }
    let row = WeightedScores { scores, weights: &weights };
    let picked = row.cover(p);
    if picked.len() < least { top_k(scores, least) } else { picked }
}

/// Number of passes over a row of `scores` scores, of four bytes per score. Scores are written once, and read three times: to find the
/// largest, to weight, and to pick. Weights are written once, and read together with scores in every round. A short row is sorted instead,
/// in as many passes as a merge sort makes.
pub fn share_passes(scores: usize) -> u64 {
    let told = if scores < LEAST_CUT { 1 } else { ROUNDS };
    let sorted = if scores < LEAST_CUT { scores.next_power_of_two().trailing_zeros() } else { 0 };
    5 + 2 * told as u64 + u64::from(sorted)
}

/// Scores with their weights.
struct WeightedScores<'a> {
    scores: &'a [f32],
    /// Weights relative to the largest, which is 1.
    weights: &'a [f32],
}

/// Bounds of the score at which a share is reached: below `high`, and at `low` or above.
struct ScoreBounds {
    low: f32,
    high: f32,
    /// Mass of all scores from `high` on.
    above: f64,
    /// Mass to reach.
    wanted: f64,
}

impl WeightedScores<'_> {
    /// Returns the positions of the fewest largest scores that have a share `p`.
    fn cover(&self, p: f64) -> Vec<u32> {
        let between = self.between(p);
        let found = if between.low > f32::MIN { above(self.scores, between.low.next_down()) } else { all(self.scores) };
        let cut = self.cut(&found, &between);
        found.keep(cut)
    }

    /// Returns the last score needed, among those found.
    fn cut(&self, found: &Candidates, between: &ScoreBounds) -> Threshold {
        let high = ordered(between.high);
        let mut undecided: Vec<(u32, u32)> =
            found.keys.iter().zip(&found.positions).filter(|(key, _)| **key < high).map(|(k, p)| (*k, *p)).collect();
        undecided.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        let (mut mass, mut last, mut equal) = (between.above, high, usize::MAX);
        for (key, position) in undecided {
            equal = if key == last { equal + 1 } else { 1 };
            last = key;
            mass += f64::from(self.weights[position as usize]);
            if mass >= between.wanted {
                break;
            }
        }
        Threshold { key: last, equal }
    }

    /// Returns the neighbours in a sample between which a share `p` is reached; for a short row, infinite bounds.
    fn between(&self, p: f64) -> ScoreBounds {
        if self.scores.len() < LEAST_CUT {
            let wanted = p * self.masses([f32::NEG_INFINITY; TRIED])[0];
            return ScoreBounds { low: f32::NEG_INFINITY, high: f32::INFINITY, above: 0.0, wanted };
        }
        let cuts = self.sample();
        // Treat the sample as if infinity preceded it and negative infinity followed it.
        let score =
            |i: usize| if i == 0 { f32::INFINITY } else { cuts.get(i - 1).copied().unwrap_or(f32::NEG_INFINITY) };
        let mut width = CUTS.div_ceil(TRIED);
        let tried = [1, 2, 3, 4].map(|i| score(i * width));
        let masses = self.masses(tried);
        let wanted = p * masses[TRIED - 1];
        let mut first = 0;
        let mut above = 0.0;
        let mut narrow = |first: &mut usize, width: usize, masses: [f64; TRIED]| {
            for mass in masses {
                if mass >= wanted {
                    break;
                }
                (*first, above) = (*first + width, mass);
            }
        };
        narrow(&mut first, width, masses);
        for _ in 1..ROUNDS {
            width /= TRIED + 1;
            let masses = self.masses([1, 2, 3, 4].map(|i| score(first + i * width)));
            narrow(&mut first, width, masses);
        }
        ScoreBounds { low: score(first + 1), high: score(first), above, wanted }
    }

    /// Returns an equally spaced sample, largest first.
    fn sample(&self) -> Vec<f32> {
        let mut sample: Vec<f32> = (0..CUTS).map(|i| self.scores[i * self.scores.len() / CUTS]).collect();
        sample.sort_unstable_by_key(|score| std::cmp::Reverse(ordered(*score)));
        sample
    }

    /// Returns the mass of all scores at or above each bound. Rounding never gives a higher bound the greater mass.
    fn masses(&self, bounds: [f32; TRIED]) -> [f64; TRIED] {
        masses(self.scores, self.weights, bounds)
    }
}

dispatch! {
    /// Writes the weight of every score; returns the largest score.
    fn weigh[](scores: &[f32], scale: f32, weights: &mut Vec<f32>) -> f32 = weigh_kernel
}

#[inline(always)]
unsafe fn weigh_kernel<S: Simd>(scores: &[f32], scale: f32, weights: &mut Vec<f32>) -> f32 {
    const CHAINS: usize = 4;
    let whole = scores.len() / S::LANES * S::LANES;
    let mut max = f32::NEG_INFINITY;
    for score in &scores[whole..] {
        max = max.max(*score);
    }
    weights.clear();
    weights.resize(scores.len(), 0.0);
    // SAFETY: every load and store is of whole vectors within both; the CPU supports `S` (caller).
    unsafe {
        let mut chains = [S::splat(max); CHAINS];
        let block = CHAINS * S::LANES;
        let blocks = whole / block * block;
        for first in (0..blocks).step_by(block) {
            for (i, chain) in chains.iter_mut().enumerate() {
                // The order matters: `max` returns its second operand if the first is NaN.
                *chain = S::max(S::load(scores.as_ptr().add(first + i * S::LANES)), *chain);
            }
        }
        for first in (blocks..whole).step_by(S::LANES) {
            chains[0] = S::max(S::load(scores.as_ptr().add(first)), chains[0]);
        }
        for chain in chains {
            max = max.max(S::maximum(chain));
        }
        let (factor, offset) = (S::splat(scale), S::splat(-max));
        for first in (0..whole).step_by(S::LANES) {
            let logit = S::mul(factor, S::add(S::load(scores.as_ptr().add(first)), offset));
            S::store(weights.as_mut_ptr().add(first), S::exp(logit));
        }
    }
    for (weight, score) in weights[whole..].iter_mut().zip(&scores[whole..]) {
        let logit = scale * (score - max);
        *weight = if logit.is_nan() { 0.0 } else { logit.exp() };
    }
    max
}

dispatch! {
    fn masses[](scores: &[f32], weights: &[f32], bounds: [f32; TRIED]) -> [f64; TRIED] = masses_kernel
}

#[inline(always)]
unsafe fn masses_kernel<S: Simd>(scores: &[f32], weights: &[f32], bounds: [f32; TRIED]) -> [f64; TRIED] {
    /// Number of vectors summed in f32 before the sum is added in f64.
    const STRETCH: usize = 8;
    assert_eq!(scores.len(), weights.len(), "scores and weights differ in number");
    let whole = scores.len() / S::LANES * S::LANES;
    let mut masses = [0.0; TRIED];
    for begin in (0..whole).step_by(STRETCH * S::LANES) {
        // SAFETY: whole vectors within both, which are equally long; the CPU supports `S` (caller).
        unsafe {
            let mut sums = [S::splat(0.0); TRIED];
            for first in (begin..whole.min(begin + STRETCH * S::LANES)).step_by(S::LANES) {
                let (score, weight) = (S::load(scores.as_ptr().add(first)), S::load(weights.as_ptr().add(first)));
                for (sum, bound) in sums.iter_mut().zip(bounds) {
                    *sum = S::add(*sum, S::zero_below(score, S::splat(bound), weight));
                }
            }
            for (mass, sum) in masses.iter_mut().zip(S::sum_each(sums)) {
                *mass += f64::from(sum);
            }
        }
    }
    for (score, weight) in scores[whole..].iter().zip(&weights[whole..]) {
        for (mass, bound) in masses.iter_mut().zip(bounds) {
            if *score >= bound {
                *mass += f64::from(*weight);
            }
        }
    }
    masses
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Selects by a full sort and f64 sums: returns the smallest and the largest count that rounding allows, and all positions in the order
    /// of selection.
    fn sorted(scores: &[f32], scale: f32, p: f64) -> (usize, usize, Vec<u32>) {
        let mut order: Vec<u32> = (0..scores.len() as u32).collect();
        order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
        let max = f64::from(scores[order[0] as usize]);
        let mut mass = 0.0;
        let weight = |i: &u32| (f64::from(scale) * (f64::from(scores[*i as usize]) - max)).exp();
        let covered = order.iter().map(|i| {
            mass += weight(i);
            mass
        });
        let covered: Vec<f64> = covered.collect();
        let total = covered[covered.len() - 1];
        let needed = |share: f64| (covered.partition_point(|c| *c < share * total) + 1).min(order.len());
        const ROUNDING: f64 = 2e-6;
        (needed(p * (1.0 - ROUNDING)), needed((p * (1.0 + ROUNDING)).min(1.0)), order)
    }

    fn check(scores: &[f32], scale: f32, p: f64, what: &str) {
        let picked = top_share(scores, scale, p, 0);
        let (fewest, most, order) = sorted(scores, scale, p);
        assert!((fewest..=most).contains(&picked.len()), "{what}, {p}: {} of {fewest} to {most}", picked.len());
        let mut expected = order[..picked.len()].to_vec();
        expected.sort_unstable();
        assert_eq!(picked, expected, "{what}, {p}");
    }

    #[test]
    fn rows_of_every_kind_give_what_a_full_sort_gives() {
        let wave = |i: usize| (i as f32 * 0.7).sin() * (i as f32 * 0.013).cos();
        for n in [1, 2, 17, 200, LEAST_CUT - 1, LEAST_CUT, 9001] {
            let seen = |i: usize| (0..CUTS).any(|s| s * n / CUTS == i);
            let rows: [(&str, Vec<f32>); 9] = [
                ("spread", (0..n).map(|i| 9.0 * wave(i)).collect()),
                ("flat", (0..n).map(|i| 0.01 * wave(i)).collect()),
                ("few values", (0..n).map(|i| (i * 37 % 11) as f32).collect()),
                ("one heavy", (0..n).map(|i| if i == n / 3 { 60.0 } else { wave(i) }).collect()),
                ("sampled are low", (0..n).map(|i| if seen(i) { -9.0 } else { wave(i) }).collect()),
                ("sampled are high", (0..n).map(|i| if seen(i) { 9.0 } else { wave(i) }).collect()),
                ("far apart", (0..n).map(|i| 200.0 * wave(i)).collect()),
                ("one by one less", (0..n).map(|i| -(i as f32) / 100.0).collect()),
                ("many masked", (0..n).map(|i| if i % 3 == 0 { f32::NEG_INFINITY } else { wave(i) }).collect()),
            ];
            for (what, scores) in rows {
                for p in [1e-9, 0.01, 0.3, 0.5, 0.77, 0.95, 0.999] {
                    check(&scores, 1.0, p, &format!("{what}, {n}"));
                    check(&scores, 0.125, p, &format!("{what} scaled, {n}"));
                }
            }
        }
    }

    #[test]
    fn of_equal_scores_the_earlier_are_taken_as_many_as_the_share_says() {
        for n in [8, 5000] {
            for p in [0.25, 0.5, 0.75] {
                let expected: Vec<u32> = (0..(n as f64 * p) as u32).collect();
                assert_eq!(top_share(&vec![-3.5; n], 0.3, p, 0), expected);
            }
        }
        let mut scores = vec![0.0; 4096];
        scores[4000] = 1.0;
        assert_eq!(top_share(&scores, 1.0, 3.0 / 4096.0, 0), [0, 4000]);
    }

    #[test]
    fn bounds_of_the_share_and_the_least_number() {
        let scores: Vec<f32> = (0..5000).map(|i| (i as f32 * 0.3).sin()).collect();
        assert_eq!(top_share(&scores, 1.0, 1.0, 0).len(), 5000);
        let nearly = top_share(&scores, 1.0, 1.0 - 1e-7, 0).len();
        assert!((4990..=5000).contains(&nearly), "{nearly}");
        assert_eq!(top_share(&scores, 1.0, 1e-30, 0).len(), 1);
        assert_eq!(top_share(&scores, 1.0, 1e-30, 7), top_k(&scores, 7));
        assert_eq!(top_share(&scores, 1.0, 0.5, 6000).len(), 5000);
        assert_eq!(top_share(&[0.0, 100.0, 0.0], 1.0, 0.5, 0), [1]);
        assert!(top_share(&[], 1.0, 0.5, 0).is_empty());
    }

    #[test]
    fn what_is_not_a_number_is_not_picked() {
        for n in [20, 4000] {
            let mut scores = vec![0.0f32; n];
            scores[3] = f32::NAN;
            scores[n - 1] = f32::NAN;
            assert_eq!(top_share(&scores, 1.0, 0.999_999, 0).len(), n - 2);
            scores[5] = f32::INFINITY;
            assert_eq!(top_share(&scores, 1.0, 0.9, 0), [5]);
            assert_eq!(top_share(&vec![f32::NEG_INFINITY; n], 1.0, 0.9, 2), [0, 1]);
        }
    }

    #[test]
    fn rows_of_no_more_than_a_few_scores_are_sorted_and_others_passed_over() {
        assert_eq!([1, 2, 289, LEAST_CUT, 1 << 20].map(share_passes), [7, 8, 16, 13, 13]);
    }
}

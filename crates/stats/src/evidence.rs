//! Bounds of a mean that hold however often they are looked at.
//!
//! An interval for a fixed number of examples is wrong more often than stated if one looks repeatedly and stops when it suits. These bounds
//! hold at all looks together, for any bounded values, without approximation. They come from a bettor who cannot win on average if the mean
//! is `m` or more: each value `x` multiplies the bettor's stake by `1 + λ·(m − x)`. Once the stake has grown by a factor of `1/α`, one may
//! conclude that the mean is below `m`, and is wrong with a probability of at most `α` (Ville's inequality; Waudby-Smith and Ramdas,
//! "Estimating means of bounded random variables by betting", JRSS B 86, 2024).
//!
//! With several groups of equal weight, every round has one value from each. Within a round, the expected factor of independent groups is
//! `Π(1 + λ·(m − m_g)) ≤ (1 + λ·(m − mean m_g))^G`, because a geometric mean is at most the arithmetic one. So the values of all groups are
//! bets on the mean of the groups' means.
//!
//! The stake is divided over a few sizes of bets in advance, so the result depends only on the values, not on their order.

use std::collections::BTreeMap;

use super::distributions::root;

/// Sizes of bets, as shares of the largest bet that cannot lose more than the stake, and the share of the stake on each. The largest one
/// wins fastest if hardly anything varies, as with methods that are good enough to be chosen.
const BETS: [(f64, f64); 5] = [(0.9, 0.5), (0.45, 0.125), (0.225, 0.125), (0.1125, 0.125), (0.056_25, 0.125)];

/// Values in −1..=1 of some groups, the same number for each group.
#[derive(Debug, Clone, PartialEq)]
pub struct Evidence {
    /// Distinct values, ascending, each with the number of times it was observed.
    counts: Vec<(f64, f64)>,
    /// Number of values in each group.
    rounds: usize,
    mean: f64,
}

/// The side of a limit on which the mean lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// At or below the limit.
    Below,
    /// Above the limit.
    Above,
}

impl Evidence {
    /// Takes the first values of each group, as many as the shortest group has. `None` if there are none, or a value is NaN. Values outside
    /// −1..=1 are clamped.
    pub fn new(groups: &[Vec<f64>]) -> Option<Self> {
        let rounds = groups.iter().map(Vec::len).min().filter(|rounds| *rounds > 0)?;
        let values: Vec<f64> = groups.iter().flat_map(|group| &group[..rounds]).map(|x| x.clamp(-1.0, 1.0)).collect();
        if values.iter().any(|x| x.is_nan()) {
            return None;
        }
        let mut counted: BTreeMap<i64, (f64, f64)> = BTreeMap::new();
        for x in values.iter().map(|x| x + 0.0) {
            counted.entry(in_order(x)).or_insert((x, 0.0)).1 += 1.0;
        }
        let counts: Vec<(f64, f64)> = counted.into_values().collect();
        let mean = counts.iter().map(|(x, count)| x * count).sum::<f64>() / values.len() as f64;
        Some(Self { counts, rounds, mean })
    }

    /// Number of values in each group.
    pub fn rounds(&self) -> usize {
        self.rounds
    }

    /// The mean of the groups' means.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Returns the side of `limit` on which the mean lies; each answer is wrong with a probability of at most `error`. `None` if it cannot
    /// be told.
    pub fn side(&self, limit: f64, error: f64) -> Option<Side> {
        [Side::Below, Side::Above].into_iter().find(|side| self.log_stake(*side, limit) >= -error.ln())
    }

    /// Returns the mean's lower and upper bound; each is ever wrong with a probability of at most `error`.
    pub fn bounds(&self, error: f64) -> (f64, f64) {
        let reached = |side, mean| self.log_stake(side, mean) + error.ln();
        let high = root(self.mean, 1.0, |mean| reached(Side::Below, mean));
        let low = root(-1.0, self.mean, |mean| -reached(Side::Above, mean));
        (low.min(self.mean), high.max(self.mean))
    }

    /// Estimates how many values per group are needed to tell on which side of `limit` the observed mean lies, if further values are like
    /// those so far; `None` if no number suffices.
    pub fn rounds_needed(&self, limit: f64, error: f64) -> Option<usize> {
        const MOST: f64 = 1e9;
        let side = if self.mean <= limit { Side::Below } else { Side::Above };
        let logs = self.logs(side, limit);
        let most = MOST / self.rounds as f64;
        let lacking = |times: f64| spread(&logs, times) + error.ln();
        if lacking(most) < 0.0 {
            return None;
        }
        Some((root(0.0, most, lacking) * self.rounds as f64).ceil() as usize)
    }

    /// Returns the logarithm of the factor by which a stake on a side of `limit` has grown.
    fn log_stake(&self, side: Side, limit: f64) -> f64 {
        spread(&self.logs(side, limit), 1.0)
    }

    /// Like [`log_stake`](Self::log_stake), for each size of bets.
    fn logs(&self, side: Side, limit: f64) -> [f64; BETS.len()] {
        // A bet that the mean lies above is a bet that the mean of the negated values lies below.
        let sign = if side == Side::Below { 1.0 } else { -1.0 };
        // If the limit is at the edge of the range, there is nothing to bet on.
        let room = 1.0 - sign * limit;
        BETS.map(|(bet, _)| {
            let gain = |x: f64| if room > 0.0 { bet * sign * (limit - x) / room } else { f64::INFINITY };
            self.counts.iter().map(|(x, count)| count * gain(*x).ln_1p()).sum()
        })
    }
}

/// Returns the logarithm of the divided stake if the observed values are repeated `times` times; `logs` are the logarithms for one time.
fn spread(logs: &[f64; BETS.len()], times: f64) -> f64 {
    let logs = || logs.iter().zip(BETS).map(|(log, (_, share))| times * log + share.ln());
    let most = logs().fold(f64::NEG_INFINITY, f64::max);
    if most.is_finite() { most + logs().map(|log| (log - most).exp()).sum::<f64>().ln() } else { most }
}

/// Estimates how many values per group are needed, with `groups` groups, to tell that the mean is at or below `limit` in the best case, in
/// which all values are 0.
pub fn fewest_rounds(groups: usize, limit: f64, error: f64) -> Option<usize> {
    Evidence::new(&vec![vec![0.0]; groups])?.rounds_needed(limit, error)
}

/// Returns an integer that sorts as the double does.
fn in_order(x: f64) -> i64 {
    let bits = x.to_bits() as i64;
    bits ^ (((bits >> 63) as u64) >> 1) as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    fn of(gained: usize, lost: usize, n: usize) -> Evidence {
        let value = |i| if i < lost { 1.0 } else { -f64::from(u8::from(i < lost + gained)) };
        Evidence::new(&[(0..n).map(value).collect()]).unwrap()
    }

    /// Naive reference: updates every stake value by value, in order.
    fn stake_by_hand(groups: &[Vec<f64>], limit: f64, is_below: bool) -> f64 {
        let mut stakes: Vec<f64> = BETS.iter().map(|(_, share)| *share).collect();
        for round in 0..groups[0].len() {
            for group in groups {
                for (stake, (bet, _)) in stakes.iter_mut().zip(BETS) {
                    let gain = if is_below {
                        (limit - group[round]) / (1.0 - limit)
                    } else {
                        (group[round] - limit) / (1.0 + limit)
                    };
                    *stake *= 1.0 + bet * gain;
                }
            }
        }
        stakes.iter().sum()
    }

    #[test]
    fn stakes_are_those_of_a_bettor_who_goes_value_by_value() {
        let mut random = ChaCha8Rng::seed_from_u64(3);
        for limit in [-0.3, 0.0, 0.05, 0.6] {
            let groups: Vec<Vec<f64>> =
                (0..3).map(|_| (0..20).map(|_| random.random_range(-1.0..=1.0)).collect()).collect();
            let evidence = Evidence::new(&groups).unwrap();
            for (side, is_below) in [(Side::Below, true), (Side::Above, false)] {
                let (found, by_hand) = (evidence.log_stake(side, limit), stake_by_hand(&groups, limit, is_below).ln());
                assert!((found - by_hand).abs() < 1e-9 * by_hand.abs().max(1.0), "{found} {by_hand}");
            }
        }
    }

    #[test]
    fn the_order_of_values_changes_no_bit() {
        let values: Vec<f64> = (0..50).map(|i| f64::from(i * 37 % 50) / 25.0 - 1.0).collect();
        let turned: Vec<f64> = values.iter().rev().copied().collect();
        assert_eq!(Evidence::new(&[values]), Evidence::new(&[turned]));
        assert!([-1.0, -0.5, 0.0, 0.5, 1.0].map(in_order).is_sorted());
    }

    #[test]
    fn bounds_are_where_the_side_is_told() {
        for (gained, lost, n) in [(0, 0, 30), (3, 5, 100), (0, 20, 20), (20, 0, 20), (1, 0, 1)] {
            let evidence = of(gained, lost, n);
            let (low, high) = evidence.bounds(0.01);
            assert!((-1.0..=evidence.mean()).contains(&low) && (evidence.mean()..=1.0).contains(&high));
            if high < 1.0 - 1e-9 {
                assert_eq!(evidence.side(high + 1e-9, 0.01), Some(Side::Below), "{gained} {lost} {n}");
                assert_eq!(evidence.side(high - 1e-9, 0.01), None, "{gained} {lost} {n}");
            }
            if low > -1.0 + 1e-9 {
                assert_eq!(evidence.side(low - 1e-9, 0.01), Some(Side::Above), "{gained} {lost} {n}");
                assert_eq!(evidence.side(low + 1e-9, 0.01), None, "{gained} {lost} {n}");
            }
        }
    }

    #[test]
    fn more_examples_and_more_groups_tell_more() {
        let high = |n: usize| of(0, 0, n).bounds(0.05).1;
        assert!(high(20) > high(40) && high(40) > high(400) && high(400) < 0.011, "{} {}", high(20), high(400));
        let two = Evidence::new(&[vec![0.0; 200], vec![0.0; 200]]).unwrap();
        assert_eq!(two.bounds(0.05), of(0, 0, 400).bounds(0.05));
        // With groups of unequal length, the first values count.
        let cut = Evidence::new(&[vec![0.0; 3], vec![0.0, 0.0, 0.0, 1.0]]).unwrap();
        assert_eq!((cut.rounds(), cut.mean()), (3, 0.0));
        assert_eq!((Evidence::new(&[]), Evidence::new(&[vec![1.0], vec![]])), (None, None));
        assert_eq!(Evidence::new(&[vec![f64::NAN]]), None);
    }

    #[test]
    fn what_is_needed_is_enough_and_little_less_is_not() {
        for (gained, lost, n, limit) in [(0, 0, 8, 0.05), (1, 1, 32, 0.05), (0, 9, 60, 0.05), (2, 5, 100, 0.1)] {
            let needed = of(gained, lost, n).rounds_needed(limit, 0.01).unwrap();
            let times = needed.div_ceil(n);
            assert!(of(gained * times, lost * times, n * times).side(limit, 0.01).is_some(), "{needed}");
            let fewer = (needed / n).saturating_sub(1);
            if fewer > 0 {
                assert_eq!(of(gained * fewer, lost * fewer, n * fewer).side(limit, 0.01), None, "{needed}");
            }
        }
        assert_eq!(of(0, 5, 100).rounds_needed(0.05, 0.01), None, "at the limit itself nothing is ever told");
        let fewest = fewest_rounds(2, 0.01, 0.05 / 12.0).unwrap();
        assert_eq!(Evidence::new(&vec![vec![0.0; fewest]; 2]).unwrap().side(0.01, 0.05 / 12.0), Some(Side::Below));
    }

    /// Looking after every round and stopping at the first answer is wrong no more often than stated. The mean is at the limit, the hardest
    /// case; in some cases one group has all of the loss.
    #[test]
    fn looking_after_every_round_is_wrong_no_more_often_than_stated() {
        const RUNS: u64 = 2000;
        const ERROR: f64 = 0.1;
        // Probabilities of a loss and of a gain in each group; the mean loss over groups is always 0.1.
        let cases: [&[(f64, f64)]; 4] =
            [&[(0.1, 0.0)], &[(0.3, 0.2)], &[(0.2, 0.0), (0.0, 0.0)], &[(0.5, 0.2), (0.0, 0.1), (0.1, 0.0)]];
        for groups in cases {
            let mut wrong = [0, 0];
            for run in 0..RUNS {
                let mut random = ChaCha8Rng::seed_from_u64(run);
                let mut values: Vec<Vec<f64>> = vec![Vec::new(); groups.len()];
                let told = (0..120).find_map(|round| {
                    for (values, (loss, gain)) in values.iter_mut().zip(groups) {
                        let drawn: f64 = random.random();
                        values.push(f64::from(u8::from(drawn < *loss)) - f64::from(u8::from(drawn > 1.0 - gain)));
                    }
                    // Both answers are checked with the true mean as limit, the hardest case for either.
                    let evidence = Evidence::new(&values).filter(|_| round % 4 == 3)?;
                    let below = (evidence.log_stake(Side::Below, 0.1) >= -ERROR.ln()).then_some(0);
                    below.or((evidence.log_stake(Side::Above, 0.1) >= -ERROR.ln()).then_some(1))
                });
                if let Some(side) = told {
                    wrong[side] += 1;
                }
            }
            let most = (RUNS as f64 * ERROR) as usize;
            assert!(wrong.iter().all(|count| *count <= most), "{groups:?}: {wrong:?} of {RUNS}");
            assert!(
                wrong.iter().sum::<usize>() > RUNS as usize / 100,
                "a rule that never errs tells too little: {wrong:?}"
            );
        }
    }
}

//! Seeds and draws: everything random in a task comes from here.
//!
//! Draws are implemented here rather than taken from `rand`'s distributions, so that an example stays the same when
//! that crate improves its algorithms. The published generator's own shuffle is in `ruler/published.rs`.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use sha2::{Digest, Sha256};

/// The seed of one example: the first eight bytes (little-endian) of the SHA-256 of run seed, task name, length and
/// index. Examples of different tasks, lengths or indices are independent, and an example does not depend on those
/// generated before it.
pub fn example_seed(seed: u64, task: &str, length: usize, index: usize) -> u64 {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update((task.len() as u64).to_le_bytes());
    hash.update(task.as_bytes());
    hash.update((length as u64).to_le_bytes());
    hash.update((index as u64).to_le_bytes());
    let digest = hash.finalize();
    let mut first = [0u8; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first)
}

/// A stream of draws. Each part of an example (keys, positions, order, …) uses its own stream, so that growing the
/// example by one unit leaves the rest unchanged.
#[derive(Debug, Clone)]
pub struct Draw(ChaCha8Rng);

impl Draw {
    /// The stream numbered `stream` of `seed`; streams of one seed are independent.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self(rng)
    }

    /// A number in `0..bound`, uniformly distributed. `bound` must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = bound as u64;
        // Draws beyond the last whole multiple of `bound` would favour small numbers, so they are repeated.
        let last_multiple = u64::MAX - u64::MAX % bound;
        loop {
            let drawn = self.0.next_u64();
            if drawn < last_multiple {
                return (drawn % bound) as usize;
            }
        }
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// 128 random bits.
    pub fn bits(&mut self) -> u128 {
        u128::from(self.0.next_u64()) << 64 | u128::from(self.0.next_u64())
    }

    /// One of `items`, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// Shuffles `items` (Fisher–Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// `count` different numbers of `0..bound` in random order; all of them if `count` is at least `bound`.
    pub fn distinct(&mut self, count: usize, bound: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..bound).collect();
        let count = count.min(bound);
        for i in 0..count {
            all.swap(i, i + self.below(bound - i));
        }
        all.truncate(count);
        all
    }

    /// `length` random letters starting at `first` (`b'a'` or `b'A'`).
    pub fn letters(&mut self, length: usize, first: u8) -> String {
        (0..length).map(|_| char::from(first + self.below(26) as u8)).collect()
    }
}

/// What the seeds of training rows hash instead of a task's name, or in front of it. No task's name starts with it.
pub const TRAINING_DOMAIN: &str = "train/";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ_in_every_part() {
        let base = example_seed(1, "ruler/vt", 4096, 0);
        assert_eq!(base, example_seed(1, "ruler/vt", 4096, 0));
        for other in [
            example_seed(2, "ruler/vt", 4096, 0),
            example_seed(1, "ruler/v", 4096, 0),
            example_seed(1, "ruler/vt", 8192, 0),
            example_seed(1, "ruler/vt", 4096, 1),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn the_seed_of_an_example_never_changes() {
        // Recorded runs can only be repeated as long as this holds.
        assert_eq!(example_seed(42, "ruler/vt", 4096, 7), 2_604_015_748_980_615_328);
    }

    #[test]
    fn draws_are_even_and_distinct() {
        let mut draw = Draw::new(7, 0);
        let mut counts = [0usize; 10];
        for _ in 0..10_000 {
            counts[draw.below(10)] += 1;
        }
        assert!(counts.iter().all(|&c| (850..1150).contains(&c)), "{counts:?}");
        let mut sample = draw.distinct(50, 60);
        sample.sort_unstable();
        sample.dedup();
        assert_eq!(sample.len(), 50);
        assert_eq!(draw.distinct(9, 3).len(), 3);
    }

    #[test]
    fn streams_are_independent_of_each_other() {
        let a: Vec<usize> = (0..8).map(|_| 0).scan(Draw::new(1, 0), |d, _| Some(d.below(1000))).collect();
        let b: Vec<usize> = (0..8).map(|_| 0).scan(Draw::new(1, 1), |d, _| Some(d.below(1000))).collect();
        assert_ne!(a, b);
    }
}

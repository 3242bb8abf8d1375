//! Assigns contexts to shards so that all shards have about the same work: the longest context first, each to the shard with the least work
//! so far.
//!
//! Contexts of generated samples count as equally long, and there may be any number of them: they are assigned in rounds, without a list.
//! The assignment depends only on the work, in whole numbers, so every shard computes the same one on any machine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The largest number of shards.
pub const MOST_SHARDS: usize = 100_000;

/// The work of the contexts of a task at a length, in units that are the same on every machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// The work of reading a context.
    pub context: u64,
    /// The work of each example on it.
    pub example: u64,
}

impl Work {
    /// The work of a context with `examples` examples.
    pub fn of(&self, examples: usize) -> u64 {
        self.context.saturating_add(self.example.saturating_mul(examples as u64))
    }
}

/// The work assigned so far, by shard.
#[derive(Debug, Clone)]
pub struct ShardLoads {
    of_shard: Vec<u64>,
    /// The shard that comes first among shards with equal work.
    first: usize,
}

impl ShardLoads {
    /// Starts with no work for `shards` shards. `turn` counts independent assignments to the same shards (one for each model of a matrix),
    /// so that their remainders go to different shards.
    pub fn new(shards: usize, turn: usize) -> Self {
        let shards = shards.max(1);
        Self { of_shard: vec![0; shards], first: turn % shards }
    }

    /// The work of each shard.
    pub fn of_shards(&self) -> &[u64] {
        &self.of_shard
    }

    /// Assigns `contexts` contexts of equal work.
    pub fn deal_alike(&mut self, contexts: usize, work: u64) -> ShardAssignment {
        let shards = self.of_shard.len();
        let (rounds, rest) = (contexts / shards, contexts % shards);
        let all = work.saturating_mul(rounds as u64);
        self.of_shard.iter_mut().for_each(|load| *load = load.saturating_add(all));
        let mut least: Vec<usize> = if rest > 0 { (0..shards).collect() } else { Vec::new() };
        least.sort_by_key(|shard| (self.of_shard[*shard], self.place(*shard)));
        least.truncate(rest);
        for shard in &least {
            self.of_shard[*shard] = self.of_shard[*shard].saturating_add(work);
        }
        ShardAssignment::Rounds { contexts, shards, rest: least }
    }

    /// Assigns contexts, each with its work in `work`.
    pub fn deal_each(&mut self, work: &[u64]) -> ShardAssignment {
        let mut longest: Vec<usize> = (0..work.len()).collect();
        longest.sort_by_key(|context| (Reverse(work[*context]), *context));
        let entry = |shard: usize, load: u64| Reverse((load, self.place(shard), shard));
        let mut least: BinaryHeap<_> =
            self.of_shard.iter().enumerate().map(|(shard, load)| entry(shard, *load)).collect();
        let mut shard_of = vec![0; work.len()];
        for context in longest {
            if let Some(Reverse((load, place, shard))) = least.pop() {
                shard_of[context] = shard;
                least.push(Reverse((load.saturating_add(work[context]), place, shard)));
            }
        }
        for Reverse((load, _, shard)) in least {
            self.of_shard[shard] = load;
        }
        ShardAssignment::Each(shard_of)
    }

    fn place(&self, shard: usize) -> usize {
        let shards = self.of_shard.len();
        (shard + shards - self.first) % shards
    }
}

/// Which shard gets which contexts of a task at a length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardAssignment {
    /// Every shard gets one context in each full round. The shards in `rest` then get one more each, in this order.
    Rounds {
        /// The number of contexts.
        contexts: usize,
        /// The number of shards.
        shards: usize,
        /// The shards with one more context.
        rest: Vec<usize>,
    },
    /// The shard of each context.
    Each(Vec<usize>),
}

impl ShardAssignment {
    /// The number of contexts in full rounds, and the shard's extra context; `None` if contexts are listed.
    pub(crate) fn rounds_of(&self, shard: usize) -> Option<(usize, Option<usize>)> {
        match self {
            Self::Each(_) => None,
            Self::Rounds { contexts, rest, .. } => {
                let end = contexts - rest.len();
                Some((end, rest.iter().position(|other| *other == shard).map(|at| end + at)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of contexts that each shard has of each assignment, found by listing them.
    fn counts(deals: &[ShardAssignment], shards: usize) -> Vec<Vec<usize>> {
        let of = |deal: &ShardAssignment, shard: usize| match deal {
            ShardAssignment::Each(shard_of) => shard_of.iter().filter(|of| **of == shard).count(),
            ShardAssignment::Rounds { contexts, rest, .. } => {
                (contexts - rest.len()) / shards + usize::from(rest.contains(&shard))
            }
        };
        (0..shards).map(|shard| deals.iter().map(|deal| of(deal, shard)).collect()).collect()
    }

    #[test]
    fn rounds_and_single_contexts_are_dealt_alike() {
        for (contexts, shards, turn) in [(10, 8, 0), (10, 8, 5), (3, 4, 1), (16, 4, 0), (0, 3, 0), (7, 1, 0)] {
            for work in [9, 5, 2] {
                let (mut rounds, mut each) = (ShardLoads::new(shards, turn), ShardLoads::new(shards, turn));
                rounds.deal_alike(contexts, work);
                each.deal_each(&vec![work; contexts]);
                let [mut a, mut b] = [&rounds, &each].map(|loads| loads.of_shards().to_vec());
                a.sort_unstable();
                b.sort_unstable();
                assert_eq!(a, b, "{contexts} contexts to {shards} shards");
            }
        }
    }

    #[test]
    fn what_is_left_over_goes_to_those_that_have_least() {
        let mut loads = ShardLoads::new(4, 0);
        let deals = [loads.deal_alike(6, 10), loads.deal_alike(5, 4), loads.deal_alike(3, 1)];
        // Six contexts of work 10: two shards get two. Five of work 4: the first of the other shards gets two. Three of work 1: all shards
        // but the one with most work get one.
        assert_eq!(counts(&deals, 4), [vec![2, 1, 1], vec![2, 1, 0], vec![1, 2, 1], vec![1, 1, 1]]);
        assert_eq!(loads.of_shards(), [25, 24, 19, 15]);
        let mut turned = ShardLoads::new(4, 2);
        turned.deal_alike(1, 10);
        assert_eq!(turned.of_shards(), [0, 0, 10, 0]);
    }

    #[test]
    fn the_longest_come_first_and_no_shard_has_more_than_one_context_too_many() {
        let work: Vec<u64> = (0..100).map(|i| (i * 7919) % 1000 + 1).collect();
        let mut loads = ShardLoads::new(7, 0);
        let deal = loads.deal_each(&work);
        let ShardAssignment::Each(shard_of) = &deal else { panic!("{deal:?}") };
        let of = |shard: usize| work.iter().zip(shard_of).filter(|(_, of)| **of == shard).map(|(w, _)| w).sum::<u64>();
        assert_eq!(loads.of_shards(), (0..7).map(of).collect::<Vec<_>>());
        let (most, least) = (loads.of_shards().iter().max().unwrap(), loads.of_shards().iter().min().unwrap());
        assert!(most - least <= 70, "a hundredth of a shard: {:?}", loads.of_shards());
        // The same assignment, computed by searching all shards each time.
        let (mut sorted, mut expected) = (work, [0; 7]);
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        for of_context in sorted {
            let shard = (0..7).min_by_key(|shard| (expected[*shard], *shard)).unwrap();
            expected[shard] += of_context;
        }
        assert_eq!(loads.of_shards(), expected);
    }

    #[test]
    fn work_beyond_all_numbers_does_not_wrap_around() {
        let mut loads = ShardLoads::new(2, 0);
        loads.deal_alike(usize::MAX, u64::MAX);
        loads.deal_each(&[u64::MAX; 3]);
        assert_eq!(loads.of_shards(), [u64::MAX; 2]);
        assert_eq!(Work { context: 1, example: u64::MAX }.of(2), u64::MAX);
    }
}

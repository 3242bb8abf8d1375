//! `bigbird`: sink, sliding window and random blocks (Zaheer et al. 2020, its §2 and App. A).
//!
//! BigBird draws, for every block of queries, the blocks of keys that it attends besides the global tokens
//! (here the first `sink`) and the window. While decoding, the block of queries is that of the current
//! position: the draw stays for `block` tokens and is then made anew, from a seed of the example, layer, head
//! and query block. Blocks are cut over what lies between sink and window, which slides over generated
//! tokens too.

use std::num::NonZero;
use std::ops::Range;
use std::sync::Arc;

use super::streaming_llm::{last_tokens, window_tokens};
use super::{Granularity, MethodEntry, ParamInfo, Preset};
use crate::attention::pick::page_tokens;
use crate::attention::{
    BlockMask, Budget, Context, Exact, HeadPrefix, Masks, Method, Picks, Policy, PrefillPattern, QueryBlock, Selection,
    Step, TailRule, Tuned, mix_seed,
};
use crate::cost::Cost;
use crate::kv::MOST_TOKENS;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "bigbird",
    about: "sink, sliding window and random blocks",
    reference: "BigBird (Zaheer et al. 2020, arXiv:2007.14062)",
    params: &[
        ParamInfo { key: "window", default: "256", about: "last tokens attended, the current one included" },
        ParamInfo { key: "blocks", default: "3", about: "random blocks" },
        ParamInfo { key: "block", default: "64", about: "tokens a block, and tokens that share a draw" },
        Granularity::INFO,
    ],
    presets: &[Preset {
        name: "paper",
        values: &[("sink", "128"), ("window", "192"), ("blocks", "3"), ("block", "64")],
        source: "BigBird App. E: blocks of 64 tokens; 2 global, 3 in the window, 3 random",
    }],
    build: |params| {
        let blocks = params.tuned_within("blocks", NonZero::new(3).expect("not 0"), 1..=MOST_TOKENS)?;
        let window = match blocks {
            // One half each.
            Tuned::Density(density) if !params.is_given("window") => {
                params.take("window");
                Tuned::Density(density / 2.0)
            }
            _ => Tuned::Value(NonZero::new(params.get_positive("window", 256)?).expect("not 0")),
        };
        let block = params.get_minor("block", 64)?;
        Ok(Arc::new(BigBird { window, blocks, block, per: Granularity::read_per(params)? }))
    },
};

/// Sink, window and drawn blocks.
struct BigBird {
    window: Tuned<NonZero<usize>>,
    blocks: Tuned<NonZero<usize>>,
    block: usize,
    per: Granularity,
}

impl BigBird {
    /// The tokens that one head attends besides sink and window, while its draw has this seed.
    fn draw(&self, candidates: &Range<usize>, count: usize, seed: u64) -> Vec<u32> {
        // A block's rank is its own: one that the window sets free later changes no other.
        let rank = |block: &u32| mix_seed(seed, u64::from(*block));
        let mut blocks: Vec<u32> = (0..candidates.len().div_ceil(self.block) as u32).collect();
        blocks.sort_unstable_by_key(rank);
        blocks.truncate(count);
        blocks.sort_unstable();
        page_tokens(&blocks, self.block, candidates)
    }

    fn count(&self, context: Context) -> usize {
        match self.blocks {
            Tuned::Value(blocks) => blocks.get(),
            Tuned::Density(density) => Budget::Density(density).blocks(context, self.block),
        }
    }
}

impl Method for BigBird {
    /// Seed of the example, layer and KV head.
    type Index = u64;
    type State = ();

    fn build(&self, prefix: &HeadPrefix<'_>) -> u64 {
        prefix.seed
    }

    fn index_bytes(&self, seed: &u64) -> usize {
        size_of_val(seed)
    }

    fn start(&self, _: &u64) {}

    fn select(&self, step: &Step<'_>, seed: &u64, (): &mut (), _: &mut Cost) -> Selection {
        let of_block = mix_seed(*seed, ((step.context.tokens - 1) / self.block) as u64);
        let count = self.count(step.context);
        let draw = |head: usize| Picks::softmax(self.draw(&step.candidates, count, mix_seed(of_block, head as u64)));
        match self.per {
            Granularity::KvHead(_) => Selection::Shared(draw(0)),
            Granularity::QueryHead => Selection::PerHead((0..step.group()).map(draw).collect()),
        }
    }

    fn exact(&self, policy: &Policy, _prefix_tokens: usize, total_tokens: usize) -> Exact {
        last_tokens(policy, window_tokens(self.window, policy, total_tokens), total_tokens)
    }

    fn tail_rule(&self) -> TailRule {
        TailRule::Own("its window moves on by itself, and blocks are drawn from what leaves it: set window")
    }

    fn follows_tail(&self) -> bool {
        true
    }

    fn prefill_pattern(&self) -> Option<PrefillPattern<'_>> {
        Some(PrefillPattern::Blocks(self))
    }
}

impl BlockMask for BigBird {
    fn query_rows(&self) -> usize {
        self.block
    }

    /// The draw is the one that decoding makes for these positions, from what lies between sinks and the first row's
    /// window, which is that of all rows.
    fn masks(&self, block: &QueryBlock<'_>, _: &mut Cost) -> Masks {
        let (candidates, context) = block.candidates(self.exact(block.policy, 0, block.first + 1));
        let (count, of_block) = (self.count(context), mix_seed(block.seed, (block.first / self.block) as u64));
        let drawn =
            |head: usize| block.mask(&candidates, self.draw(&candidates, count, mix_seed(of_block, head as u64)));
        match self.per {
            Granularity::KvHead(_) => Masks::Shared(drawn(0)),
            Granularity::QueryHead => Masks::PerHead((0..block.group()).map(drawn).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Stepper, none};
    use crate::attention::Tuned;
    use crate::attention::{Policy, Selection};
    use std::collections::BTreeSet;

    /// Blocks between sink and window that head `head` picked, checked to be whole.
    fn blocks(selection: &Selection, head: usize, sink: usize, end: usize, block: usize) -> BTreeSet<usize> {
        let Selection::PerHead(heads) = selection else { panic!("one set for each query head") };
        let tokens: Vec<usize> = heads[head].tokens.iter().map(|t| *t as usize).collect();
        let blocks: BTreeSet<usize> = tokens.iter().map(|t| (t - sink) / block).collect();
        let whole = blocks.iter().flat_map(|b| sink + b * block..(sink + (b + 1) * block).min(end));
        assert_eq!(tokens, whole.collect::<Vec<_>>());
        blocks
    }

    #[test]
    fn whole_blocks_are_drawn_anew_for_every_block_of_queries() {
        let policy = Policy { sink: 3, ..none() };
        let mut stepper = Stepper::new("bigbird:window=10,blocks=2,block=8", &policy, 100, 2);
        let mut draws: Vec<[BTreeSet<usize>; 2]> = Vec::new();
        for t in 100..180 {
            let (selection, _) = stepper.step();
            let end = t + 1 - 10;
            draws.push([0, 1].map(|head| blocks(&selection, head, 3, end, 8)));
            assert!(draws.iter().last().unwrap().iter().all(|drawn| drawn.len() == 2));
        }
        // A draw changes at multiples of 8, or where the window sets a block of better rank free.
        let changes = |head: usize| (1..80).filter(|i| draws[*i][head] != draws[i - 1][head]).collect::<Vec<_>>();
        for head in [0, 1] {
            let at: Vec<usize> = changes(head).into_iter().map(|i| 100 + i).collect();
            let freed = |t: &usize| (*t + 1 - 10 - 3) % 8 == 1;
            assert!(at.iter().all(|t| t % 8 == 0 || freed(t)), "{at:?}");
            assert!(at.iter().filter(|t| **t % 8 == 0).count() >= 7, "{at:?}");
        }
        assert_ne!(changes(0), changes(1));
        let all: BTreeSet<usize> = draws.iter().flatten().flatten().copied().collect();
        assert!(all.len() > 12, "two of 11 to 21 blocks, ten times for two heads: {all:?}");
    }

    #[test]
    fn every_block_is_as_likely_as_any_other() {
        let method = super::BigBird {
            window: Tuned::Density(0.5),
            blocks: Tuned::Density(0.5),
            block: 5,
            per: super::Granularity::QueryHead,
        };
        let mut counts = [0usize; 12];
        for seed in 0..4000 {
            method.draw(&(7..67), 3, seed).chunks(5).for_each(|block| counts[(block[0] as usize - 7) / 5] += 1);
        }
        // 4000 · 3 / 12 = 1000 with a standard deviation of 27.
        assert!(counts.iter().all(|c| (870..1130).contains(c)), "{counts:?}");
    }
}

//! `bigbird`: sink, sliding window and random blocks of keys (BigBird, Zaheer et al. 2020, §2 and App. A).
//!
//! Nothing is stored but a seed, and selecting costs nothing. For each block of queries, BigBird draws random key
//! blocks, which are attended beside the global tokens (here the sink) and the window. At a decode step the block of
//! queries is that of the current position: a draw holds for `block_q` tokens. Its seed comes from the example, layer,
//! head and query block. Key blocks of `block` tokens divide the tokens between sink and window; the window slides over
//! generated tokens too. The paper's code has one size for both kinds of blocks, as here if `block_q` is not given.

use std::num::NonZero;
use std::ops::Range;
use std::sync::Arc;

use super::ParamInfo;
use super::streaming_llm::{last_tokens, window_tokens};
use crate::cost::Cost;
use crate::kv::{KvError, MOST_TOKENS};
use crate::methods::{MethodEntry, Preset};
use crate::scored::granularity::Granularity;
use crate::scored::select::page_tokens;
use crate::{
    BlockMask, Budget, Context, HeadPrefix, Masks, Method, Policy, PrefillPattern, QueryBlock, Role, SelectedTokens,
    Selection, StaticTokens, Step, TailRule, Tuned, mix_seed,
};

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "bigbird",
    role: Role::Method,
    about: "sink, sliding window and random blocks",
    reference: "BigBird (Zaheer et al. 2020, arXiv:2007.14062)",
    params: &[
        ParamInfo { key: "window", default: "256", about: "last tokens attended, the current one included" },
        ParamInfo { key: "blocks", default: "3", about: "random blocks" },
        ParamInfo { key: "block", default: "64", about: "tokens a block of keys" },
        ParamInfo {
            key: "block_q",
            default: "64",
            about: "tokens a block of queries, which share a draw; as many as in `block` if it is not given",
        },
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
            // Window and random blocks get half of the density each.
            Tuned::Density(density) if !params.is_given("window") => {
                params.take("window");
                Tuned::Density(density / 2.0)
            }
            _ => Tuned::Value(NonZero::new(params.get_positive("window", 256)?).expect("not 0")),
        };
        let block = params.get_minor("block", 64)?;
        let query_block = params.get_minor("block_q", block)?;
        Ok(Arc::new(BigBird { window, blocks, block, query_block, per: Granularity::read_per(params)? }))
    },
};

/// Sink, window and randomly drawn blocks.
struct BigBird {
    window: Tuned<NonZero<usize>>,
    blocks: Tuned<NonZero<usize>>,
    /// Tokens of a key block.
    block: usize,
    /// Tokens of a block of queries.
    query_block: usize,
    per: Granularity,
}

impl BigBird {
    /// The tokens of `count` randomly drawn blocks of the candidates.
    fn draw(&self, candidates: &Range<usize>, count: usize, seed: u64) -> Vec<u32> {
        // A block's rank depends only on the seed and the block's number, so blocks that leave the window later do not change
        // the ranks of others.
        let rank = |block: u32| (mix_seed(seed, u64::from(block)), block);
        let mut ranked: Vec<(u64, u32)> = (0..candidates.len().div_ceil(self.block) as u32).map(rank).collect();
        if count < ranked.len() {
            ranked.select_nth_unstable(count);
            ranked.truncate(count);
        }
        let mut blocks: Vec<u32> = ranked.into_iter().map(|(_, block)| block).collect();
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

    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<u64, KvError> {
        Ok(prefix.seed)
    }

    fn index_bytes(&self, seed: &u64) -> usize {
        size_of_val(seed)
    }

    fn start(&self, _: &u64) {}

    fn select(&self, step: &Step<'_>, seed: &u64, (): &mut (), _: &mut Cost) -> Result<Selection, KvError> {
        let of_block = mix_seed(*seed, ((step.context.tokens - 1) / self.query_block) as u64);
        let count = self.count(step.context);
        let draw =
            |head: usize| SelectedTokens::softmax(self.draw(&step.candidates, count, mix_seed(of_block, head as u64)));
        Ok(match self.per {
            Granularity::KvHead(_) => Selection::Shared(draw(0)),
            Granularity::QueryHead => Selection::PerHead((0..step.group()).map(draw).collect()),
        })
    }

    fn is_data_independent(&self) -> bool {
        true
    }

    fn exact(&self, policy: &Policy, _prefix_tokens: usize, total_tokens: usize) -> StaticTokens {
        last_tokens(policy, window_tokens(self.window, policy, total_tokens), total_tokens)
    }

    fn tail_rule(&self) -> TailRule {
        TailRule::Own("its window moves on by itself, and blocks are drawn from what leaves it: set window")
    }

    fn manages_decoded_tokens(&self) -> bool {
        true
    }

    fn prefill_pattern(&self) -> Option<PrefillPattern<'_>> {
        Some(PrefillPattern::Blocks(self))
    }
}

impl BlockMask for BigBird {
    fn query_rows(&self) -> usize {
        self.query_block
    }

    /// Makes the draw that decoding makes at these positions, from the tokens between the sink and the window of the block's
    /// first row. All rows attend everything from that window on.
    fn masks(&self, block: &QueryBlock<'_>, _: &mut Cost) -> Masks {
        let (candidates, context) = block.candidates(self.exact(block.policy, 0, block.first + 1));
        let (count, of_block) = (self.count(context), mix_seed(block.seed, (block.first / self.query_block) as u64));
        let drawn =
            |head: usize| block.mask(&candidates, self.draw(&candidates, count, mix_seed(of_block, head as u64)));
        match self.per {
            Granularity::KvHead(_) => Masks::Shared(drawn(0)),
            Granularity::QueryHead => Masks::PerHead((0..block.group).map(drawn).collect()),
        }
    }

    fn is_data_independent(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Stepper, none};
    use crate::Tuned;
    use crate::prefill::testing::{Layer, assert_sees, method, plain};
    use crate::{Policy, Selection};
    use std::collections::BTreeSet;

    /// The blocks between sink and window that a query head selected; checks that each is whole.
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
        // A draw changes at multiples of 8, or where a block of better rank leaves the window.
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
            query_block: 5,
            per: super::Granularity::QueryHead,
        };
        let mut counts = [0usize; 12];
        for seed in 0..4000 {
            method.draw(&(7..67), 3, seed).chunks(5).for_each(|block| counts[(block[0] as usize - 7) / 5] += 1);
        }
        // 4000 · 3 / 12 = 1000 with a standard deviation of 27.
        assert!(counts.iter().all(|c| (870..1130).contains(c)), "{counts:?}");
    }
    /// The key blocks that a prompt row sees between the sink and its query block's window; checks that each is whole.
    fn drawn(seen: &[(usize, f32)], (sink, end): (usize, usize), block: usize) -> BTreeSet<usize> {
        let tokens: Vec<usize> = seen.iter().map(|(token, _)| *token).filter(|t| (sink..end).contains(t)).collect();
        let blocks: BTreeSet<usize> = tokens.iter().map(|t| (t - sink) / block).collect();
        let whole = blocks.iter().flat_map(|b| sink + b * block..(sink + (b + 1) * block).min(end));
        assert_eq!(tokens, whole.collect::<Vec<_>>());
        blocks
    }

    #[test]
    fn each_block_of_queries_of_a_prompt_has_draws_of_its_own() {
        let (tokens, sink, window) = (600, 5, 30);
        let policy = Policy { sink, ..none() };
        let layer = Layer::new(tokens, 4, 2);
        for (block, query_block, blocks, per) in
            [(8, 8, 3, "query_head"), (8, 20, 3, "query_head"), (20, 4, 2, "query_head"), (8, 8, 3, "kv_head")]
        {
            let size = if query_block == block { String::new() } else { format!(",block_q={query_block}") };
            let spec = format!("bigbird:window={window},blocks={blocks},block={block}{size},per={per}");
            let seen = layer.seen(&method(&spec, &policy));
            let (mut all, mut equal, mut equal_heads) = (BTreeSet::new(), 0, 0);
            let of = |head: usize, first: usize| {
                let end = (first + 1 - window).max(sink);
                let of_rows: Vec<BTreeSet<usize>> = (first..(first + query_block).min(tokens))
                    .map(|row| {
                        let rest: Vec<usize> = seen[head][row].iter().map(|(t, _)| *t).filter(|t| *t >= end).collect();
                        assert_eq!(rest, (end..=row).collect::<Vec<_>>(), "{spec}: all from the first row's window on");
                        assert!(seen[head][row][..sink].iter().map(|(t, _)| *t).eq(0..sink), "sinks");
                        drawn(&seen[head][row], (sink, end), block)
                    })
                    .collect();
                assert!(of_rows.iter().all(|rows| *rows == of_rows[0]), "{spec}: rows of a block share a draw");
                let there = (end - sink).div_ceil(block);
                assert_eq!(of_rows[0].len(), blocks.min(there), "{spec}: row {first}");
                of_rows[0].clone()
            };
            let firsts: Vec<usize> = (0..tokens).step_by(query_block).filter(|first| *first >= 400).collect();
            for pair in firsts.windows(2) {
                let draws: Vec<BTreeSet<usize>> = (0..4).map(|head| of(head, pair[0])).collect();
                equal += usize::from(draws[0] == of(0, pair[1]));
                equal_heads += usize::from(draws[0] == draws[1]);
                all.extend(draws[0].iter().copied());
            }
            // Draws seldom repeat, and together they reach as many blocks as independent draws would.
            let there = 560.0 / block as f64;
            let met = there * (1.0 - (1.0 - blocks as f64 / there).powi(firsts.len() as i32 - 1));
            assert!(equal * 5 < firsts.len(), "{spec}: {equal} of {} draws are the one before", firsts.len());
            assert!(all.len() as f64 > 0.7 * met, "{spec}: {all:?}, where {met} were expected");
            match per {
                "kv_head" => assert_eq!(equal_heads, firsts.len() - 1, "one draw for the group"),
                _ => assert!(equal_heads * 5 < firsts.len(), "{spec}: heads draw for themselves"),
            }
        }
    }

    #[test]
    fn early_rows_of_a_prompt_see_all_that_is_there() {
        let layer = Layer::new(36, 1, 1);
        let policy = Policy { sink: 2, ..none() };
        assert_sees(&layer, "bigbird:window=10,blocks=3,block=8,block_q=4", &policy, |_, position| plain(0..=position));
    }
}

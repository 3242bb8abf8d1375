//! What blocks and rows of a prompt attend: the masks, and the traits by which methods give them.

use std::any::Any;
use std::ops::Range;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::cost::Cost;
use crate::kv::KvShape;
use crate::types::budget::Context;
use crate::types::policy::Policy;
use crate::types::positions::Grouped;
use crate::types::prefix_head::KvHeadId;
use crate::types::schedule::LayerShare;
use crate::types::seed::mix_seed;
use crate::types::selection::{Selection, StaticTokens};
#[cfg(feature = "cuda")]
use spattn_cuda::{Sampling, Tree};
use spattn_kernels::Rows;
use spattn_kernels::prefill::{RowVisibility, ScatteredToken};

/// How a method attends during prefill.
#[derive(Clone, Copy)]
pub enum PrefillPattern<'a> {
    /// Every token attends every earlier one.
    Dense,
    /// Blocks of query rows attend what the method picks for them.
    Blocks(&'a dyn BlockMask),
    /// Every row attends its own picks.
    Rows(&'a dyn RowMask),
    /// As for blocks, picked when all of the prompt's queries and keys at a layer are there.
    Whole(&'a dyn PromptMask),
}

impl PrefillPattern<'_> {
    /// Query rows of a block; 1 where there are none.
    pub(super) fn query_rows(&self) -> usize {
        match self {
            Self::Dense => 1,
            Self::Rows(_) => ROWS_AT_ONCE,
            Self::Blocks(mask) => mask.query_rows(),
            Self::Whole(mask) => mask.query_rows(),
        }
    }
}

/// Rows that are scored together where every row attends its own picks.
pub(crate) const ROWS_AT_ONCE: usize = 32;

/// What blocks of query rows attend.
pub trait BlockMask: Send + Sync {
    /// Query rows of a block; blocks are counted from the first token. At least 1.
    fn query_rows(&self) -> usize;

    /// What the rows of a block attend. Adds what scoring cost (`score_flops`) to `cost`; attending is counted by the
    /// caller.
    fn masks(&self, block: &QueryBlock<'_>, cost: &mut Cost) -> Masks;

    /// Whether that follows from where a block is: then nobody has to show it queries and keys.
    fn is_data_independent(&self) -> bool {
        false
    }

    /// How a device finds it, if one can.
    fn device_form(&self) -> Option<&dyn SearchedMask> {
        None
    }
}

/// A mask of a prompt's blocks that a device finds: by a search among the candidates of each block, which are the same for all
/// heads. All tokens that follow them are attended anyway, and so is what lies before.
pub trait SearchedMask: Send + Sync {
    /// Whether there is a form for keys and values of this shape.
    fn fits(&self, shape: KvShape) -> bool;

    /// Lists of a block: one for each query head, or for each KV head.
    fn lists(&self, heads: usize, kv_heads: usize) -> usize;

    /// The candidates of a block, of which nobody shows queries or keys, and how many key blocks of them are kept.
    fn searched(&self, block: &QueryBlock<'_>) -> (Range<usize>, usize);

    /// Tokens of a key block.
    fn key_block(&self) -> usize;

    /// Key blocks, what stands for them, and which rows are scored; the candidates are those of each block.
    #[cfg(feature = "cuda")]
    fn search(&self) -> (Tree, Sampling);

    /// What so many products of a query and a key cost.
    fn cost(&self, products: u64, d: usize) -> Cost {
        Cost { score_flops: products * (2 * d) as u64, ..Cost::default() }
    }
}

/// What blocks of query rows attend, where that depends on tokens behind them: on the last queries, on what all tokens hash
/// to. A prompt then passes layer by layer as a whole, so that its activations are in memory at once.
pub trait PromptMask: Send + Sync {
    /// Query rows of a block; blocks are counted from the first token. At least 1.
    fn query_rows(&self) -> usize;

    /// The most [tokens of its own](Mask::own) that a row of a prompt of so many tokens has, each counted once; 0 where no row has any.
    fn own_tokens(&self, _tokens: usize) -> usize {
        0
    }

    /// What blocks attend at one layer and KV head. `prompt` is the block of all rows. Adds what scoring cost
    /// (`score_flops`) to `cost`; attending is counted by the caller. The diagonals of a list are those of all of its blocks, as far
    /// as they reach.
    fn plan<'p>(&'p self, prompt: &QueryBlock<'p>, cost: &mut Cost) -> PromptPlan<'p>;
}

/// The masks of each block of a prompt at one layer and KV head.
pub type PromptPlan<'p> = Box<dyn Fn(&QueryBlock<'_>) -> Masks + Send + Sync + 'p>;

/// The query rows of one KV head's group in a block of tokens, and what they may look at.
#[derive(Debug, Clone)]
pub struct QueryBlock<'a> {
    /// Layer, from 0.
    pub layer: usize,
    /// KV head, from 0.
    pub kv_head: usize,
    /// Query heads of its group.
    pub group: usize,
    /// Rotated, unscaled queries `[group][row][d]`.
    pub queries: &'a [f32],
    /// Rows of each head.
    pub rows: usize,
    /// Position of the first row.
    pub first: usize,
    /// Width of a head.
    pub d: usize,
    /// Rotated keys `[token][d]` of all tokens read so far; those behind a row are not for it.
    pub keys: Rows<'a>,
    /// How each row sees tokens far from it, if not where they are.
    pub grouped: Option<Grouped<'a>>,
    /// Sinks and window.
    pub policy: &'a Policy,
    /// What the layer is given of a budget.
    pub share: LayerShare,
    /// Seed of this example, layer and KV head.
    pub seed: u64,
}

impl<'a> QueryBlock<'a> {
    /// `rows` rows from position `first` on of which nobody looks at queries or keys, at the first layer and with seed 0.
    pub(crate) fn unseen(
        policy: &'a Policy,
        (kv_head, group): (usize, usize),
        (first, rows): (usize, usize),
        d: usize,
    ) -> Self {
        let (queries, keys) = (&[][..], Rows::F32(&[]));
        let share = LayerShare::default();
        Self { layer: 0, kv_head, group, queries, rows, first, d, keys, grouped: None, policy, share, seed: 0 }
    }

    /// The rows `[row][d]` of one head of the group.
    pub fn head(&self, head: usize) -> &[f32] {
        &self.queries[head * self.rows * self.d..][..self.rows * self.d]
    }

    /// What `exact` leaves to pick of the tokens before the first row, which so every row may see, and the context of
    /// that row.
    pub fn candidates(&self, exact: StaticTokens) -> (Range<usize>, Context) {
        let candidates = exact.candidates(self.first);
        let context = Context::new(self.first + 1, &candidates).at(self.share);
        (candidates, context)
    }

    /// The mask of rows that attend `picks` of the candidates, ascending, and all that is no candidate: the tokens before
    /// those, and from their end on. So nothing falls between what may be picked and a window.
    pub fn mask(&self, candidates: &Range<usize>, picks: impl IntoIterator<Item = u32>) -> Mask {
        Mask::new((0..candidates.start as u32).chain(picks).collect(), vec![candidates.end; self.rows])
    }

    /// A generator for one head of the group, the same whenever this block is read.
    pub fn rng(&self, head: usize) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(mix_seed(mix_seed(self.seed, self.first as u64), head as u64))
    }
}

/// The masks of a block at one KV head.
#[derive(Debug, Clone, PartialEq)]
pub enum Masks {
    /// One for the whole group: keys and values are gathered once.
    Shared(Mask),
    /// One for each query head of the group.
    PerHead(Vec<Mask>),
}

/// What the rows of a block attend: causal whatever it says, always the row's own token, and each token once, however many
/// parts name it.
#[derive(Debug, Clone, PartialEq)]
pub struct Mask {
    /// Tokens that all rows attend as far as they may see them, ascending.
    pub common: Vec<u32>,
    /// For each row the first token of a stretch that it attends up to its own; ascending.
    pub starts: Vec<usize>,
    /// Diagonals, ascending: a row at position `i` attends token `i - offset` for each of these offsets.
    pub slashes: Vec<usize>,
    /// For each row further tokens, which it alone attends; empty if no row has any.
    pub own: Vec<Vec<WeightedToken>>,
}

/// A token that stands for others too.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WeightedToken {
    /// Its position.
    pub token: u32,
    /// Added to its scaled logit: the logarithm of how many tokens it stands for, 0 for itself alone. Where another part
    /// of the mask names the token, it stands for itself.
    pub log_weight: f32,
}

impl WeightedToken {
    /// One that stands for itself.
    pub fn plain(token: u32) -> Self {
        Self { token, log_weight: 0.0 }
    }
}

impl Mask {
    /// Of rows that attend tokens in common, and each a stretch from its start to itself.
    pub fn new(common: Vec<u32>, starts: Vec<usize>) -> Self {
        Self { common, starts, slashes: Vec::new(), own: Vec::new() }
    }

    /// The tokens up to `position` that the row there attends, in any order; `first` is the first row's position.
    pub fn row_tokens(&self, first: usize, position: usize) -> Vec<u32> {
        let (front, begin) = self.front(first);
        let start = self.starts[position - first].min(position).max(begin);
        let common = self.common[..front].iter().copied().take_while(|token| *token as usize <= position);
        let singles = self.singles(position - first, position, front).into_iter().map(|single| single.token);
        common.chain(singles).chain(start as u32..position as u32 + 1).collect()
    }

    /// The tokens that some row attends, and what each row sees of these. `first` is the first row's position.
    ///
    /// In front are the common tokens before all stretches, then single tokens, then all tokens from the first stretch on.
    pub(super) fn resolve(&self, first: usize) -> (Vec<u32>, Vec<RowVisibility>) {
        let end = first + self.starts.len();
        let (front, begin) = self.front(first);
        let singles: Vec<Vec<WeightedToken>> =
            (0..self.starts.len()).map(|row| self.singles(row, first + row, front)).collect();
        let (between, places) = pack(singles.iter().flatten().map(|single| single.token as usize), begin);
        let behind = front + between.len();
        let place = |token: usize| if token < begin { front + places[token] } else { behind + token - begin };
        let sight = |(row, singles): (usize, &Vec<WeightedToken>)| {
            let position = first + row;
            let start = self.starts[row].min(position).max(begin);
            RowVisibility {
                common: self.common[..front].partition_point(|token| *token as usize <= position),
                stretch: place(start)..place((position + 1).max(start)),
                singles: singles
                    .iter()
                    .map(|single| ScatteredToken { place: place(single.token as usize), log_weight: single.log_weight })
                    .collect(),
            }
        };
        let sights = singles.iter().enumerate().map(sight).collect();
        let tokens = self.common[..front].iter().copied().chain(between).chain(begin as u32..end as u32).collect();
        (tokens, sights)
    }

    /// How many of the common tokens lie in front of all stretches or go on into them without a gap, and the token from
    /// which on stretches are packed.
    fn front(&self, first: usize) -> (usize, usize) {
        let start = self.starts.first().map_or(first, |start| (*start).min(first));
        let before = self.common.partition_point(|token| (*token as usize) < start);
        let joined =
            self.common[before..].iter().zip(start as u32..).take_while(|(token, next)| **token == *next).count();
        (before + joined, start + joined)
    }

    /// What a row sees besides the `front` common tokens and its stretch, ascending.
    fn singles(&self, row: usize, position: usize, front: usize) -> Vec<WeightedToken> {
        let (front, late) = self.common.split_at(front);
        let slashes = self.slashes.iter().rev().filter_map(|offset| position.checked_sub(*offset));
        let plain = late.iter().copied().chain(slashes.map(|token| token as u32)).map(WeightedToken::plain);
        let own = self.own.get(row).into_iter().flatten().copied();
        let (start, behind_front) = (self.starts[row].min(position), front.last().map_or(0, |last| *last + 1));
        let is_single = |single: &WeightedToken| {
            let WeightedToken { token, .. } = *single;
            (token as usize) < start && (token >= behind_front || front.binary_search(&token).is_err())
        };
        let mut singles: Vec<WeightedToken> = plain.chain(own).filter(is_single).collect();
        // Stable: a token that stands for itself comes before the same with a weight.
        singles.sort_by_key(|single| single.token);
        singles.dedup_by_key(|single| single.token);
        singles
    }
}

/// The tokens before `end`, each once and ascending, and by token the place that it has among them.
pub(super) fn pack(tokens: impl Iterator<Item = usize>, end: usize) -> (Vec<u32>, Vec<usize>) {
    let mut tokens = tokens.filter(|token| *token < end).peekable();
    if tokens.peek().is_none() {
        return (Vec::new(), Vec::new());
    }
    let mut places = vec![usize::MAX; end];
    tokens.for_each(|token| places[token] = 0);
    let packed: Vec<u32> = (0..end as u32).filter(|token| places[*token as usize] == 0).collect();
    packed.iter().enumerate().for_each(|(place, token)| places[*token as usize] = place);
    (packed, places)
}

/// Picks for each row of a prompt.
pub trait RowMask: Send + Sync {
    /// What is stored of a KV head before its first token.
    fn begin(&self) -> Box<dyn Any + Send + Sync>;

    /// Takes in the tokens that may be picked by the last row that was read.
    fn take_in(&self, state: &mut (dyn Any + Send + Sync), head: &RowHead<'_>, candidates: Range<usize>);

    /// What each row of a block picks, all of whose candidates were taken in. Adds what scoring cost (`score_flops`).
    fn picks(&self, block: &QueryBlock<'_>, head: &RowHead<'_>, state: &dyn Any, cost: &mut Cost) -> Vec<Selection>;
}

/// Keys and values `[token][d]` of a KV head, as far as they were read.
pub struct RowHead<'a> {
    /// Which one.
    pub place: KvHeadId,
    /// Rotated keys.
    pub keys: Rows<'a>,
    /// Values.
    pub values: Rows<'a>,
}

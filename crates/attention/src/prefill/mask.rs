//! Which tokens the blocks and rows of a prompt attend: masks, and the traits through which methods provide them.

use std::any::Any;
use std::ops::Range;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::backend::active::MaskLaunch;
use crate::cost::Cost;
use crate::kv::KvShape;
use crate::prefill::lines::{AddedLines, LineVotes};
use crate::prefill::shared_tokens::{RowSlices, SliceBounds, WeightedToken};
use crate::types::attention_spec::SoftmaxScale;
use crate::types::budget::Context;
use crate::types::policy::Policy;
use crate::types::positions::Grouped;
use crate::types::prefix_head::KvHeadId;
use crate::types::schedule::LayerShare;
use crate::types::seed::mix_seed;
use crate::types::selection::{Selection, StaticTokens};
use spattn_kernels::Rows;
use spattn_kernels::prefill::{RowVisibility, ScatteredToken};

/// How a method attends during prefill.
#[derive(Clone, Copy)]
pub enum PrefillPattern<'a> {
    /// Every token attends every earlier one.
    Dense,
    /// Blocks of query rows attend the tokens that the method selects for them.
    Blocks(&'a dyn BlockMask),
    /// Every row attends its own selection.
    Rows(&'a dyn RowMask),
    /// Like `Blocks`, but selected once all queries and keys of the prompt at a layer are known.
    Whole(&'a dyn PromptMask),
}

impl PrefillPattern<'_> {
    /// Number of query rows of a block; 1 if there are no blocks.
    pub(super) fn query_rows(&self) -> usize {
        match self {
            Self::Dense => 1,
            Self::Rows(_) => ROWS_AT_ONCE,
            Self::Blocks(mask) => mask.query_rows(),
            Self::Whole(mask) => mask.query_rows(),
        }
    }
}

/// Number of rows scored together if every row has its own selection.
pub(crate) const ROWS_AT_ONCE: usize = 32;

/// Masks of blocks of query rows.
pub trait BlockMask: Send + Sync {
    /// Number of query rows of a block; blocks are counted from the first token. At least 1.
    fn query_rows(&self) -> usize;

    /// Computes the masks of a block. Adds the cost of scoring (`score_flops`) to `cost`; the caller counts attention.
    fn masks(&self, block: &QueryBlock<'_>, cost: &mut Cost) -> Masks;

    /// Whether masks follow from the block's position; queries and keys may then be empty.
    fn is_data_independent(&self) -> bool {
        false
    }

    /// The form in which a device finds the masks; `None` if it cannot.
    fn device_form(&self) -> Option<&dyn SearchedMask> {
        None
    }
}

/// A mask that a device finds by searching among the candidates of each block, which are the same for all heads. All
/// tokens before and after the candidates are attended.
pub trait SearchedMask: MaskLaunch + Send + Sync {
    /// Whether a device can search with keys and values of this shape.
    fn fits(&self, shape: KvShape) -> bool;

    /// Number of lists of a block: one for each query head, or for each KV head.
    fn lists(&self, heads: usize, kv_heads: usize) -> usize;

    /// Returns a block's candidates, which follow from its position alone, and the number of key blocks to keep.
    fn searched(&self, block: &QueryBlock<'_>) -> (Range<usize>, usize);

    /// Number of tokens in a key block.
    fn key_block(&self) -> usize;

    /// Cost of `products` products of a query with a key.
    fn cost(&self, products: u64, d: usize) -> Cost {
        Cost { score_flops: products * (2 * d) as u64, ..Cost::default() }
    }
}

/// Masks that depend on later tokens of the prompt: on the last queries, or on hashes of all tokens. The prompt is then
/// read layer by layer as a whole, with all its activations in memory.
pub trait PromptMask: Send + Sync {
    /// Number of query rows of a block; blocks are counted from the first token. At least 1.
    fn query_rows(&self) -> usize;

    /// Upper bound of the number of distinct [single-row tokens](Mask::own) of a row, in a prompt of `tokens` tokens; 0
    /// if no row has any.
    fn own_tokens(&self, _tokens: usize) -> usize {
        0
    }

    /// Bounds of the [slices](Mask::slices) of rows, in a prompt of `tokens` tokens; zeros if no row has any.
    fn slice_bounds(&self, _tokens: usize) -> SliceBounds {
        SliceBounds::default()
    }

    /// Number of the prompt's last queries that a plan reads; `None` if it reads all.
    fn last_queries(&self) -> Option<usize> {
        None
    }

    /// Plans the masks of one layer and KV head. `prompt` is the block of all rows, or at least of the [last
    /// rows](Self::last_queries) that the plan reads. Adds the cost of scoring (`score_flops`) to `cost`; the caller
    /// counts attention. All blocks of a list have the same diagonals, as far as these reach.
    fn plan<'p>(&'p self, prompt: &QueryBlock<'p>, cost: &mut Cost) -> PromptPlan<'p>;

    /// The plan as lines that are the same for all blocks; `None` if it does not have this form.
    fn lined(&self) -> Option<&dyn LinedMask> {
        None
    }
}

/// Returns the masks of each block of a prompt at one layer and KV head.
pub type PromptPlan<'p> = Box<dyn Fn(&QueryBlock<'_>) -> Masks + Send + Sync + 'p>;

/// A mask of lines, which the votes of the prompt's last queries choose. Rows also attend a band up to themselves and, if the mask has
/// a search, what it finds. So a device needs no more of the host than the choice of lines.
pub trait LinedMask: Send + Sync {
    /// The masks of blocks that a search finds and to which the lines are added; `None` if the lines and the band are all.
    fn searched(&self) -> Option<&dyn BlockMask>;

    /// Number of the prompt's last queries that vote.
    fn voters(&self) -> usize;

    /// Returns the start of each row's band, the same for all heads. `block` has no queries and no keys.
    fn starts(&self, block: &QueryBlock<'_>) -> Vec<usize>;

    /// Chooses the lines of each mask of a KV head, by the votes of each of its query heads.
    fn choose(&self, votes: Vec<LineVotes>, policy: &Policy) -> Vec<AddedLines>;
}

/// The query rows of one KV head's group in a block of tokens, and the keys that they may see.
#[derive(Debug, Clone)]
pub struct QueryBlock<'a> {
    /// Layer, from 0.
    pub layer: usize,
    /// KV head, from 0.
    pub kv_head: usize,
    /// Number of query heads of the group.
    pub group: usize,
    /// Rotated, unscaled queries `[group][row][d]`.
    pub queries: &'a [f32],
    /// Number of rows of each head.
    pub rows: usize,
    /// Position of the first row.
    pub first: usize,
    /// Channels of a head.
    pub d: usize,
    /// Factor of the logits.
    pub scale: SoftmaxScale,
    /// Rotated keys `[token][d]` of all tokens read so far; a row must not use those after its own token.
    pub keys: Rows<'a>,
    /// Grouped positions; `None` if positions are the original ones.
    pub grouped: Option<Grouped<'a>>,
    /// The policy, with its sink and window.
    pub policy: &'a Policy,
    /// The layer's share of the budget.
    pub share: LayerShare,
    /// Seed of this example, layer and KV head.
    pub seed: u64,
}

impl<'a> QueryBlock<'a> {
    /// A block of `rows` rows from position `first`, without queries and keys, at layer 0 and with seed 0.
    pub(crate) fn unseen(
        policy: &'a Policy,
        (kv_head, group): (usize, usize),
        (first, rows): (usize, usize),
        d: usize,
    ) -> Self {
        let (queries, keys) = (&[][..], Rows::F32(&[]));
        let (share, scale) = (LayerShare::default(), SoftmaxScale::inverse_root(d));
        Self { layer: 0, kv_head, group, queries, rows, first, d, scale, keys, grouped: None, policy, share, seed: 0 }
    }

    /// Number of tokens up to the last row.
    pub fn end(&self) -> usize {
        self.first + self.rows
    }

    /// Returns the rows `[row][d]` of one head of the group.
    pub fn head(&self, head: usize) -> &[f32] {
        &self.queries[head * self.rows * self.d..][..self.rows * self.d]
    }

    /// Returns the candidates before the first row, which every row may see, and the context of the first row.
    pub fn candidates(&self, exact: StaticTokens) -> (Range<usize>, Context) {
        let candidates = exact.candidates(self.first);
        let context = Context::new(self.first + 1, &candidates).at(self.share);
        (candidates, context)
    }

    /// Returns the mask of rows that attend `picks`, ascending, and every token that is not a candidate, so that no
    /// token is lost between the candidates and the window.
    pub fn mask(&self, candidates: &Range<usize>, picks: impl IntoIterator<Item = u32>) -> Mask {
        Mask::new((0..candidates.start as u32).chain(picks).collect(), vec![candidates.end; self.rows])
    }

    /// A random generator for one head of the group, which depends only on the seed, the block and the head.
    pub fn rng(&self, head: usize) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(mix_seed(mix_seed(self.seed, self.first as u64), head as u64))
    }
}

/// The masks of a block at one KV head.
#[derive(Debug, Clone, PartialEq)]
pub enum Masks {
    /// One mask for the whole group: keys and values are gathered once.
    Shared(Mask),
    /// One mask for each query head of the group.
    PerHead(Vec<Mask>),
}

/// The tokens that the rows of a block attend. A mask is always causal, contains each row's own token, and counts a
/// token once, however many parts of the mask name it.
#[derive(Debug, Clone, PartialEq)]
pub struct Mask {
    /// Tokens that all rows attend, as far as causality allows; ascending.
    pub common: Vec<u32>,
    /// For each row, the start of the band that it attends up to its own token; ascending.
    pub starts: Vec<usize>,
    /// Diagonals, ascending: a row at position `i` attends token `i - offset` for each of these offsets.
    pub slashes: Vec<usize>,
    /// For each row, further tokens that it alone attends; empty if no row has any.
    pub own: Vec<Vec<WeightedToken>>,
    /// Slices of shared tokens that each row attends; then `common` has no gap, and there are no diagonals and no `own`.
    pub slices: Option<RowSlices>,
}

impl Mask {
    /// The mask of rows that all attend `common`, and each row a band from its start to itself.
    pub fn new(common: Vec<u32>, starts: Vec<usize>) -> Self {
        Self { common, starts, slashes: Vec::new(), own: Vec::new(), slices: None }
    }

    /// The mask of rows that attend the first `sink` tokens, slices of shared tokens, and a band from their start.
    pub fn sliced(sink: usize, starts: Vec<usize>, slices: RowSlices) -> Self {
        Self { slices: Some(slices), ..Self::new((0..sink as u32).collect(), starts) }
    }

    /// Returns the tokens that the row at `position` attends, in any order; `first` is the first row's position.
    pub fn row_tokens(&self, first: usize, position: usize) -> Vec<u32> {
        let (front, begin) = self.front(first);
        let start = self.starts[position - first].min(position).max(begin);
        let common = self.common[..front].iter().copied().take_while(|token| *token as usize <= position);
        let singles = self.singles(position - first, position, front).into_iter().map(|single| single.token);
        common.chain(singles).chain(start as u32..position as u32 + 1).collect()
    }

    /// Returns the union of the rows' tokens, and what each row sees of it. `first` is the first row's position.
    ///
    /// The order is: common tokens before all bands, scattered tokens, then all tokens from the first band on.
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
        let visibility = singles.iter().enumerate().map(sight).collect();
        let tokens = self.common[..front].iter().copied().chain(between).chain(begin as u32..end as u32).collect();
        (tokens, visibility)
    }

    /// Returns the number of common tokens that lie before all bands or continue into them without a gap, and the token
    /// from which bands are packed.
    fn front(&self, first: usize) -> (usize, usize) {
        let start = self.starts.first().map_or(first, |start| (*start).min(first));
        let before = self.common.partition_point(|token| (*token as usize) < start);
        let joined =
            self.common[before..].iter().zip(start as u32..).take_while(|(token, next)| **token == *next).count();
        (before + joined, start + joined)
    }

    /// Returns the tokens that a row sees besides the first `front` common tokens and its band; ascending.
    fn singles(&self, row: usize, position: usize, front: usize) -> Vec<WeightedToken> {
        let (front, late) = self.common.split_at(front);
        let slashes = self.slashes.iter().rev().filter_map(|offset| position.checked_sub(*offset));
        let plain = late.iter().copied().chain(slashes.map(|token| token as u32)).map(WeightedToken::plain);
        let own = self.own.get(row).into_iter().flatten().copied();
        let of_slices =
            self.slices.iter().flat_map(|slices| slices.rows[row].iter().flat_map(|slice| slices.of.of(slice)));
        let (start, behind_front) = (self.starts[row].min(position), front.last().map_or(0, |last| *last + 1));
        let is_single = |single: &WeightedToken| {
            let WeightedToken { token, .. } = *single;
            (token as usize) < start && (token >= behind_front || front.binary_search(&token).is_err())
        };
        let mut singles: Vec<WeightedToken> = plain.chain(own).chain(of_slices).filter(is_single).collect();
        // The sort is stable, so a plain token comes before the same token with a weight.
        singles.sort_by_key(|single| single.token);
        singles.dedup_by_key(|single| single.token);
        singles
    }
}

/// Returns the distinct tokens before `end`, ascending, and for each token its index among them.
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

/// Selections for each row of a prompt.
pub trait RowMask: Send + Sync {
    /// Creates the state of a KV head before its first token.
    fn begin(&self) -> Box<dyn Any + Send + Sync>;

    /// Adds the candidates of the last row read to the state.
    fn take_in(&self, state: &mut (dyn Any + Send + Sync), head: &RowHead<'_>, candidates: Range<usize>);

    /// Returns the selection of each row of a block; `state` holds the candidates of all its rows. Adds the cost of
    /// scoring (`score_flops`).
    fn picks(&self, block: &QueryBlock<'_>, head: &RowHead<'_>, state: &dyn Any, cost: &mut Cost) -> Vec<Selection>;
}

/// Keys and values `[token][d]` of a KV head, as far as they have been read.
pub struct RowHead<'a> {
    /// The KV head.
    pub place: KvHeadId,
    /// Rotated keys.
    pub keys: Rows<'a>,
    /// Values.
    pub values: Rows<'a>,
}

//! Sparse attention while a prompt is read: blocks of query rows attend what a method's mask leaves them.
//!
//! A [`BlockMask`] says what the rows of a block attend at one KV head; a [`PromptMask`] says it when it has seen all of the
//! prompt at that head, which then passes a layer as a whole. [`SparsePrefill`] gathers those keys and values, attends and
//! counts. What is read so becomes a prefix like any other, only that its keys and values are those that
//! the method itself led to, so no other method shares it.

use std::ops::Range;
use std::sync::Arc;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::calibration::PrefillChunk;
use super::prefill_rows::{RowMask, RowReader};
use crate::cost::{Cost, LayerCosts};
#[cfg(feature = "cuda")]
use crate::device::workspaces::MaskRoom;
use crate::kv::{KvShape, MOST_TOKENS};
use crate::types::positions::GIVEN_ROTATION;
use crate::types::seed::head_seed;
use crate::{Configured, Context, Exact, Grouped, LayerShare, Policy, Positions, PromptShape, Rotation, mix_seed};
#[cfg(feature = "cuda")]
use spattn_cuda::{Sampling, Tree};
use spattn_kernels::Rows;
use spattn_kernels::prefill::{PackedHead, Sight, Single, block_attention, causal_attention};

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
    fn query_rows(&self) -> usize {
        match self {
            Self::Dense => 1,
            Self::Rows(_) => RowReader::ROWS,
            Self::Blocks(mask) => mask.query_rows(),
            Self::Whole(mask) => mask.query_rows(),
        }
    }
}

/// What blocks of query rows attend.
pub trait BlockMask: Send + Sync {
    /// Query rows of a block; blocks are counted from the first token. At least 1.
    fn query_rows(&self) -> usize;

    /// What the rows of a block attend. Adds what scoring cost (`score_flops`) to `cost`; attending is counted by the
    /// caller.
    fn masks(&self, block: &QueryBlock<'_>, cost: &mut Cost) -> Masks;

    /// Whether that follows from where a block is: then nobody has to show it queries and keys.
    fn is_blind(&self) -> bool {
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
    pub(super) fn unseen(
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
    pub fn candidates(&self, exact: Exact) -> (Range<usize>, Context) {
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
    fn resolve(&self, first: usize) -> (Vec<u32>, Vec<Sight>) {
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
            Sight {
                common: self.common[..front].partition_point(|token| *token as usize <= position),
                stretch: place(start)..place((position + 1).max(start)),
                singles: singles
                    .iter()
                    .map(|single| Single { place: place(single.token as usize), log_weight: single.log_weight })
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
fn pack(tokens: impl Iterator<Item = usize>, end: usize) -> (Vec<u32>, Vec<usize>) {
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

/// A method that reads a prompt by its mask.
pub struct SparsePrefill<'a> {
    pub(super) pattern: PrefillPattern<'a>,
    /// What is stored where every row has its own picks.
    rows: Option<RowReader<'a>>,
    pub(super) policy: &'a Policy,
    pub(super) positions: Positions,
    rotation: Option<Arc<dyn Rotation>>,
    /// By layer: whether it attends everything by policy.
    pub(super) dense: Vec<bool>,
    pub(super) seed: u64,
    pub(super) costs: LayerCosts,
    /// What a device that reads the prompt holds of it.
    #[cfg(feature = "cuda")]
    pub(super) there: MaskRoom,
}

/// Bytes that the lists of `rows` rows take on a device that attends what a mask leaves them, at the end of a prompt of this shape:
/// more than before it; with the rows' own tokens, where there are any. Nothing where the host attends.
pub fn mask_list_bytes(method: &Configured, prompt: &PromptShape, rows: usize) -> usize {
    let PromptShape { heads, kv_heads, d, tokens, .. } = *prompt;
    let mask = match method.reads().method.prefill_pattern() {
        Some(PrefillPattern::Blocks(mask)) => mask,
        Some(PrefillPattern::Whole(mask)) => {
            return PlannedBlock::of(mask, heads, d, tokens).bytes_of(tokens.div_ceil(mask.query_rows()));
        }
        _ => return 0,
    };
    let policy = &method.reads().policy;
    let here = mask.query_rows().min(tokens.max(1));
    let block = QueryBlock::unseen(policy, (0, heads / kv_heads), (tokens.saturating_sub(here), here), d);
    let (lists, most) = match (mask.is_blind(), mask.device_form()) {
        (true, _) => match mask.masks(&block, &mut Cost::default()) {
            Masks::Shared(mask) => (kv_heads, mask.common.len()),
            Masks::PerHead(masks) => (heads, masks.iter().map(|mask| mask.common.len()).max().unwrap_or(0)),
        },
        (false, Some(form)) => {
            let (candidates, keep) = form.searched(&block);
            let found = keep.saturating_mul(form.key_block()).min(candidates.len());
            (form.lists(heads, kv_heads), candidates.start + found)
        }
        (false, None) => (0, 0),
    };
    size_of::<u32>() * rows.min(tokens).div_ceil(mask.query_rows()) * lists * most
}

/// Bytes that lists of a planned mask and rows' own tokens take at most, if those of a single block do not take more.
const PLANNED_LIST_BYTES: usize = 512 << 20;
/// Bytes of a row's own token and of its weight.
const OWN_TOKEN_BYTES: usize = size_of::<u32>() + size_of::<f32>();

/// What a block of a planned mask takes on a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlannedBlock {
    /// Lists of all tokens, for every head, and of rows that have tokens of their own where these begin and what they come to.
    fixed: usize,
    /// Tokens of rows' own, at most.
    own: usize,
}

impl PlannedBlock {
    /// Of a mask of so many heads, `d` wide, in a prompt of so many tokens.
    pub(super) fn of(mask: &dyn PromptMask, heads: usize, d: usize, tokens: usize) -> Self {
        let (rows, own) = (mask.query_rows().min(tokens) * heads, mask.own_tokens(tokens));
        // Where they begin; a maximum, a sum, and sums of values.
        let of_row = if own > 0 { size_of::<u64>() + size_of::<f32>() * (2 + d) } else { 0 };
        Self { fixed: size_of::<u32>() * heads * tokens + rows * of_row, own: rows * own }
    }

    /// Bytes of one whose rows have so many tokens of their own.
    pub(super) fn bytes(&self, own: usize) -> usize {
        self.fixed + OWN_TOKEN_BYTES * own
    }

    /// Bytes that a prompt of so many blocks takes at most at a time.
    fn bytes_of(&self, blocks: usize) -> usize {
        let most = self.bytes(self.own);
        most.saturating_mul(blocks).min(most.max(PLANNED_LIST_BYTES))
    }

    /// How many more blocks are to be looked at, where some wait that take so many bytes: as many as there is room for if they take
    /// what those do, but no more than those, as they may take more. The first ones are taken to have all that they can have.
    #[cfg(feature = "cuda")]
    pub(super) fn ahead(&self, waiting: &[usize]) -> usize {
        let room = PLANNED_LIST_BYTES.saturating_sub(waiting.iter().sum());
        match waiting.len() {
            0 => (room / self.bytes(self.own).max(1)).max(1),
            count => (room / (waiting.iter().sum::<usize>() / count).max(1)).min(count),
        }
    }

    /// How many of the blocks that wait, which take so many bytes, there is room for at a time: at least one.
    #[cfg(feature = "cuda")]
    pub(super) fn at_once(waiting: &[usize]) -> usize {
        let sums = waiting.iter().scan(0, |sum, bytes| {
            *sum += bytes;
            Some(*sum)
        });
        sums.take_while(|sum| *sum <= PLANNED_LIST_BYTES).count().max(1)
    }
}

/// What a block cost at one layer, and what each query head attended of `context` tokens, summed over rows.
pub(super) struct BlockCost {
    cost: Cost,
    attended: Vec<usize>,
    context: usize,
}

/// What says which tokens a block attends.
type Masking<'a> = dyn Fn(&QueryBlock<'_>, &mut Cost) -> Masks + Sync + 'a;

impl<'a> SparsePrefill<'a> {
    /// For a method with a mask, in a model of so many layers; `seed` is the context's. `None` if the method reads
    /// densely or has no prefill pattern.
    pub fn new(method: &'a Configured, layers: usize, seed: u64) -> Option<Self> {
        let pattern = method.method.prefill_pattern().filter(|pattern| !matches!(pattern, PrefillPattern::Dense))?;
        let dense = method.policy.dense(layers);
        let (policy, positions) = (&method.policy, method.method.positions());
        let rows = match pattern {
            PrefillPattern::Rows(mask) => Some(RowReader::new(mask, method, layers, seed)),
            _ => None,
        };
        let costs = LayerCosts::new(layers);
        Some(Self {
            pattern,
            rows,
            policy,
            positions,
            rotation: None,
            dense,
            seed,
            costs,
            #[cfg(feature = "cuda")]
            there: MaskRoom::default(),
        })
    }

    /// How the model's positions are moved, for methods that attend at others than the original ones
    /// ([`Positions`]); such a method cannot read without.
    pub fn with_rotation(self, rotation: Option<Arc<dyn Rotation>>) -> Self {
        Self { rotation, ..self }
    }

    /// Whole blocks of rows, about `most` rows together, but at least one block; all that there can be if the method has
    /// to see the whole prompt.
    pub fn chunk_rows(&self, most: usize) -> usize {
        let rows = self.pattern.query_rows();
        match self.pattern {
            PrefillPattern::Whole(_) => MOST_TOKENS.next_multiple_of(rows),
            _ => (most / rows).max(1) * rows,
        }
    }

    /// Attends a chunk, which begins with a block, into `out: [token][head][d]`.
    pub fn attend(&mut self, chunk: &PrefillChunk<'_>, out: &mut [f32]) {
        let rows = self.pattern.query_rows();
        debug_assert!(chunk.first.is_multiple_of(rows), "blocks are counted from the first token");
        chunk.show();
        let counted = match (self.dense[chunk.layer], self.pattern) {
            (true, _) | (_, PrefillPattern::Dense) => self.attend_all(chunk, out),
            (false, PrefillPattern::Rows(_)) => self.rows.as_mut().expect("made with the pattern").attend(chunk, out),
            (false, PrefillPattern::Blocks(mask)) => {
                self.attend_blocks(chunk, mask.query_rows(), &|block, cost| mask.masks(block, cost), out)
            }
            (false, PrefillPattern::Whole(mask)) => self.attend_whole(chunk, mask, out),
        };
        counted.into_iter().for_each(|counted| self.count(chunk.layer, counted));
    }

    /// Counts what was attended at a layer.
    pub(super) fn count(&mut self, layer: usize, BlockCost { cost, attended, context }: BlockCost) {
        // Bytes are those of a decoding step: here many rows share what is read.
        *self.costs.layer_mut(layer) += Cost { kv_bytes: 0, aux_bytes: 0, ..cost };
        self.costs.count_heads(layer, 0, &attended, context);
    }

    /// A chunk that is all of the prompt: what its blocks attend is planned first, for each KV head.
    fn attend_whole(&self, chunk: &PrefillChunk<'_>, mask: &dyn PromptMask, out: &mut [f32]) -> Vec<BlockCost> {
        assert_eq!(chunk.first, 0, "a mask over the whole prompt sees it in one chunk");
        let queries = queries_by_group(chunk);
        let (plans, costs) = self.plan(chunk, mask, &queries);
        let masking = |block: &QueryBlock<'_>, _: &mut Cost| plans[block.kv_head](block);
        let mut counted = self.attend_blocks(chunk, mask.query_rows(), &masking, out);
        counted.extend(costs.into_iter().map(|cost| BlockCost::planning(cost, chunk.heads)));
        counted
    }

    /// What the blocks of a prompt attend, by KV head, and what it cost to plan that; `queries` are the chunk's, by group.
    pub(super) fn plan<'p>(
        &'p self,
        chunk: &PrefillChunk<'p>,
        mask: &'p dyn PromptMask,
        queries: &'p [Vec<f32>],
    ) -> (Vec<PromptPlan<'p>>, Vec<Cost>) {
        let plan = |kv_head: usize| {
            let mut cost = Cost::default();
            (mask.plan(&self.block(chunk, kv_head, 0, &queries[kv_head], chunk.tokens()), &mut cost), cost)
        };
        (0..queries.len()).into_par_iter().map(plan).unzip()
    }

    /// A layer that is dense by policy. Where positions are grouped, all tokens are seen so.
    fn attend_all(&self, chunk: &PrefillChunk<'_>, out: &mut [f32]) -> Vec<BlockCost> {
        let end = chunk.first + chunk.tokens();
        match self.positions {
            Positions::Grouped(grouping) if grouping.far(end - 1) > 0 => {
                let all = |block: &QueryBlock<'_>, _: &mut Cost| Masks::Shared(Mask::new(vec![], vec![0; block.rows]));
                self.attend_blocks(chunk, DENSE_ROWS, &all, out)
            }
            _ => {
                attend_densely(chunk, out);
                let context = (chunk.first..end).map(|position| position + 1).sum();
                vec![BlockCost::new(vec![context; chunk.heads], context, chunk.tokens(), chunk.d())]
            }
        }
    }

    /// Attends a chunk in blocks of so many rows.
    fn attend_blocks(
        &self,
        chunk: &PrefillChunk<'_>,
        rows: usize,
        masking: &Masking<'_>,
        out: &mut [f32],
    ) -> Vec<BlockCost> {
        let blocks = out.par_chunks_mut(rows * chunk.heads * chunk.d()).enumerate().with_max_len(1);
        blocks.map(|(block, out)| self.attend_block(chunk, masking, block * rows, out)).collect()
    }

    /// Some rows of one KV head's group, from the chunk's `skipped`-th on.
    fn block<'b>(
        &'b self,
        chunk: &PrefillChunk<'b>,
        kv_head: usize,
        skipped: usize,
        queries: &'b [f32],
        rows: usize,
    ) -> QueryBlock<'b> {
        QueryBlock {
            layer: chunk.layer,
            kv_head,
            group: chunk.heads / chunk.kv_heads(),
            queries,
            rows,
            first: chunk.first + skipped,
            d: chunk.d(),
            keys: chunk.kv().keys.head(kv_head),
            grouped: self.positions.grouped(self.rotation.as_deref()),
            policy: self.policy,
            share: self.policy.schedule.share(&self.dense, chunk.layer),
            seed: head_seed(self.seed, chunk.layer, kv_head),
        }
    }

    /// The block whose first row is the chunk's `skipped`-th.
    fn attend_block(
        &self,
        chunk: &PrefillChunk<'_>,
        masking: &Masking<'_>,
        skipped: usize,
        out: &mut [f32],
    ) -> BlockCost {
        let (d, heads, kv_heads) = (chunk.d(), chunk.heads, chunk.kv_heads());
        let (width, group) = (heads * d, heads / kv_heads);
        let (rows, first) = (out.len() / width, chunk.first + skipped);
        let queries = &chunk.queries()[skipped * width..][..out.len()];
        let (mut cost, mut attended) = (Cost::default(), vec![0; heads]);
        for kv_head in 0..kv_heads {
            let own = by_head(queries, heads, d, kv_head * group..(kv_head + 1) * group);
            let block = self.block(chunk, kv_head, skipped, &own, rows);
            let values = chunk.kv().values.head(kv_head);
            let (masks, sharing) = match masking(&block, &mut cost) {
                Masks::Shared(mask) => (vec![mask], group),
                Masks::PerHead(masks) => (masks, 1),
            };
            for (first_head, mask) in (kv_head * group..).step_by(sharing).zip(&masks) {
                let (tokens, sights) = mask.resolve(first);
                let seen = sights.iter().map(Sight::tokens).sum();
                attended[first_head..first_head + sharing].fill(seen);
                let of = (first_head..first_head + sharing).map(|head| (head, heads));
                let seen = Seen { keys: block.keys, values, d, tokens: &tokens, sights: &sights };
                match self.two_sided(&seen, &block, mask) {
                    Some(cache) => of.for_each(|of| self.attend_two_sided(&cache, queries, of, out)),
                    None => {
                        let packed = PackedHead::gathered(block.keys, values, d, &tokens);
                        of.for_each(|of| block_attention(queries, of, &packed, &sights, scale(d), out));
                    }
                }
            }
        }
        let context = (first..first + rows).map(|position| position + 1).sum();
        BlockCost::new(attended, context, rows, d).with(cost)
    }

    /// What the rows see, if their queries stand at two positions.
    fn two_sided(&self, seen: &Seen<'_>, block: &QueryBlock<'_>, mask: &Mask) -> Option<TwoSided> {
        let last = block.first + block.rows - 1;
        match self.positions {
            Positions::Original => None,
            Positions::WithinCache => Some(TwoSided::within_cache(seen, mask.common.len())),
            Positions::Grouped(grouping) if grouping.far(last) == 0 => None,
            Positions::Grouped(_) => Some(TwoSided::grouped(seen, block.grouped?, block.first)),
        }
    }

    /// Attends where the query of each row stands at two positions.
    fn attend_two_sided(&self, cache: &TwoSided, queries: &[f32], (head, heads): (usize, usize), out: &mut [f32]) {
        let (d, rotation) = (cache.d, self.rotation.as_ref().expect(GIVEN_ROTATION));
        let mut both = vec![0.0; cache.sights.len() * 2 * d];
        for (row, (both, shift)) in both.chunks_exact_mut(2 * d).zip(&cache.shifts).enumerate() {
            let query = &queries[(row * heads + head) * d..][..d];
            both[..d].copy_from_slice(query);
            both[d..].copy_from_slice(query);
            rotation.turn_back(&mut both[..d], *shift);
        }
        let mut attended = vec![0.0; both.len()];
        block_attention(&both, (0, 1), &cache.packed, &cache.sights, scale(d), &mut attended);
        for (row, attended) in attended.chunks_exact(2 * d).enumerate() {
            out[(row * heads + head) * d..][..d].copy_from_slice(&attended[..d]);
        }
    }

    /// What was counted.
    pub fn into_costs(self) -> LayerCosts {
        self.costs
    }
}

/// Query rows that are read together in a dense layer whose positions are grouped.
const DENSE_ROWS: usize = 256;

impl BlockCost {
    /// What planning a mask cost, of so many heads.
    pub(super) fn planning(cost: Cost, heads: usize) -> Self {
        Self { cost, attended: vec![0; heads], context: 0 }
    }

    /// With what scoring cost.
    pub(super) fn with(mut self, scoring: Cost) -> Self {
        self.cost += scoring;
        self
    }

    /// Attending alone, of `rows` rows; no bytes yet.
    pub(super) fn new(attended: Vec<usize>, context: usize, rows: usize, d: usize) -> Self {
        let (all, of_full) = (attended.iter().sum::<usize>() as u64, (attended.len() * context) as u64);
        let cost = Cost {
            steps: (attended.len() * rows) as u64,
            context_tokens: of_full,
            attended_tokens: all,
            attend_flops: 4 * d as u64 * all,
            full_flops: 4 * d as u64 * of_full,
            ..Cost::default()
        };
        Self { cost, attended, context }
    }
}

/// Exact attention of a chunk over all tokens up to each of its own, into `out: [token][head][d]`.
pub fn attend_densely(chunk: &PrefillChunk<'_>, out: &mut [f32]) {
    let (d, kv_heads) = (chunk.d(), chunk.kv_heads());
    let pack = |head: usize| PackedHead::new(chunk.kv().keys.head(head), chunk.kv().values.head(head), d);
    let packed: Vec<PackedHead> = (0..kv_heads).into_par_iter().map(pack).collect();
    causal_attention(chunk.queries(), &packed, chunk.heads, scale(d), out);
}

/// The tokens that some row of a block attends, and what each row sees of these.
struct Seen<'a> {
    /// `[token][d]` of the whole context.
    keys: Rows<'a>,
    values: Rows<'a>,
    d: usize,
    tokens: &'a [u32],
    sights: &'a [Sight],
}

/// Keys and values of rows whose queries stand at two positions: one for the first of the packed tokens, one for the others.
///
/// A key is twice as wide as a head, with zeros in the half that meets the other query, so that one product with both
/// queries side by side has the right logit for either kind of token, and one softmax goes over all.
struct TwoSided {
    packed: PackedHead,
    sights: Vec<Sight>,
    /// For each row how much earlier its query stands for the first tokens.
    shifts: Vec<usize>,
    d: usize,
}

impl TwoSided {
    /// Of keys and values `[token][d]`, the first `split` of which meet the first query.
    fn new(keys: &[f32], values: &[f32], d: usize, split: usize, sights: Vec<Sight>, shifts: Vec<usize>) -> Self {
        let widened = |rows: &[f32], side: fn(usize, usize) -> usize| -> Vec<f32> {
            let mut wide = vec![0.0; 2 * rows.len()];
            for (at, (wide, row)) in wide.chunks_exact_mut(2 * d).zip(rows.chunks_exact(d)).enumerate() {
                wide[side(at, split) * d..][..d].copy_from_slice(row);
            }
            wide
        };
        let keys = widened(keys, |at, split| usize::from(at >= split));
        let values = widened(values, |_, _| 0);
        let packed = PackedHead::new(Rows::F32(&keys), Rows::F32(&values), 2 * d);
        Self { packed, sights, shifts, d }
    }

    /// Positions within the cache of each row: its query stands nearer to the `sinks` first tokens by the tokens between
    /// these and its window, which it does not see.
    fn within_cache(seen: &Seen<'_>, sinks: usize) -> Self {
        let Seen { keys, values, d, tokens, sights } = *seen;
        let gap = |sight: &Sight| match sight.stretch.is_empty() {
            true => 0,
            false => tokens[sight.stretch.start] as usize - sight.common,
        };
        let shifts = sights.iter().map(gap).collect();
        Self::new(&keys.gather(tokens, d), &values.gather(tokens, d), d, sinks, sights.to_vec(), shifts)
    }

    /// Grouped positions, where the first row is at `first`. Tokens that are far ones of some rows and neighbours of others
    /// are there twice.
    fn grouped(seen: &Seen<'_>, grouped: Grouped<'_>, first: usize) -> Self {
        let Seen { keys, values, d, tokens, sights } = *seen;
        let positions = first..first + sights.len();
        let far_of = |position: usize| grouped.grouping.far(position);
        let (far, far_places) = numbered(tokens, |token| token < far_of(positions.end - 1));
        let (near, near_places) = numbered(tokens, |token| token >= far_of(first));
        let sight = |(position, sight): (usize, &Sight)| {
            let is_far = |single: &Single| (tokens[single.place] as usize) < far_of(position);
            let moved = |single: Single| match is_far(&single) {
                true => Single { place: far_places[single.place], ..single },
                false => Single { place: far.len() + near_places[single.place], ..single },
            };
            let (front, back): (Vec<Single>, Vec<Single>) = sight.each().partition(is_far);
            Sight::of(&front.into_iter().chain(back).map(moved).collect::<Vec<Single>>())
        };
        let sights = positions.clone().zip(sights).map(sight).collect();
        let shifts = positions.map(|position| grouped.grouping.query_shift(position)).collect();
        let packed = [&far[..], &near[..]].concat();
        let (mut keys, values) = (keys.gather(&packed, d), values.gather(&packed, d));
        grouped.turn_keys(&mut keys[..far.len() * d], d, &far);
        Self::new(&keys, &values, d, far.len(), sights, shifts)
    }
}

/// The tokens that `is_one` holds of, and for each of `tokens` how many of those come before it.
fn numbered(tokens: &[u32], is_one: impl Fn(usize) -> bool) -> (Vec<u32>, Vec<usize>) {
    let (mut ones, mut places) = (Vec::new(), Vec::with_capacity(tokens.len()));
    for token in tokens {
        places.push(ones.len());
        if is_one(*token as usize) {
            ones.push(*token);
        }
    }
    (ones, places)
}

/// Rows `[row][head][d]` of some heads as `[head][row][d]`.
pub(super) fn by_head(queries: &[f32], heads: usize, d: usize, some: Range<usize>) -> Vec<f32> {
    some.flat_map(|head| queries.chunks_exact(heads * d).flat_map(move |row| &row[head * d..][..d])).copied().collect()
}

/// The queries of each KV head's group in a chunk, `[head][row][d]`.
pub(super) fn queries_by_group(chunk: &PrefillChunk<'_>) -> Vec<Vec<f32>> {
    let group = chunk.heads / chunk.kv_heads();
    let of = |kv_head: usize| by_head(chunk.queries(), chunk.heads, chunk.d(), kv_head * group..(kv_head + 1) * group);
    (0..chunk.kv_heads()).into_par_iter().map(of).collect()
}

fn scale(d: usize) -> f32 {
    1.0 / (d as f32).sqrt()
}

/// Layers of noise, and what methods attend of them.
#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use crate::expand_grid;
    use crate::kv::{KvDtype, LayerKv};
    use crate::methods::configure;
    use proptest::prelude::*;
    use rand::RngExt;
    use std::collections::BTreeMap;

    /// Width of a head.
    pub(crate) const D: usize = 16;

    pub(crate) fn noise(n: usize, seed: u64) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..n).map(|_| rng.random_range(-1.5..1.5)).collect()
    }

    pub(crate) fn method(spec: &str, policy: &Policy) -> Configured {
        configure(&expand_grid(spec).unwrap()[0], policy).unwrap()
    }

    pub(crate) fn assert_close(ours: &[f32], expected: &[f32], what: &str) {
        assert_eq!(ours.len(), expected.len());
        let worst = ours.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5, "{what}: off by {worst}");
    }

    /// Tokens at one layer.
    pub(crate) struct Layer {
        pub(crate) kv: LayerKv,
        /// `[token][head][D]`.
        pub(crate) queries: Vec<f32>,
        pub(crate) heads: usize,
    }

    /// Seed of what a context draws.
    pub(crate) const SEED: u64 = 3;

    impl Layer {
        /// Of noise.
        pub(crate) fn new(tokens: usize, heads: usize, kv_heads: usize) -> Self {
            let mut kv = LayerKv::new(KvDtype::F32, kv_heads, D, tokens);
            (0..tokens as u64).for_each(|t| kv.append(&noise(kv_heads * D, t), &noise(kv_heads * D, 50_000 + t)));
            Self { kv, queries: noise(tokens * heads * D, 99), heads }
        }

        /// With one KV head of these keys, one query head of these queries, and values of noise.
        pub(crate) fn of(keys: &[Vec<f32>], queries: &[Vec<f32>]) -> Self {
            let mut kv = LayerKv::new(KvDtype::F32, 1, D, keys.len());
            (0..).zip(keys).for_each(|(t, key)| kv.append(key, &noise(D, 50_000 + t)));
            Self { kv, queries: queries.concat(), heads: 1 }
        }

        pub(crate) fn tokens(&self) -> usize {
            self.kv.tokens()
        }

        pub(crate) fn group(&self) -> usize {
            self.heads / self.kv.keys.kv_heads()
        }

        /// `[D]`.
        pub(crate) fn query(&self, position: usize, head: usize) -> &[f32] {
            &self.queries[(position * self.heads + head) * D..][..D]
        }

        /// Keys `[token][D]` that a query head reads.
        pub(crate) fn keys(&self, head: usize) -> Vec<Vec<f32>> {
            self.kv.keys.head(head / self.group()).to_f32().chunks(D).map(<[f32]>::to_vec).collect()
        }

        /// Scaled `q·k`.
        pub(crate) fn logit(&self, position: usize, head: usize, key: &[f32]) -> f64 {
            let pairs = self.query(position, head).iter().zip(key);
            pairs.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() / (D as f64).sqrt()
        }

        /// Attends all tokens in chunks of about `most` rows; output and what was counted.
        pub(crate) fn attend(&self, method: &Configured, most: usize) -> (Vec<f32>, LayerCosts) {
            self.attend_moved(method, most, None)
        }

        /// The same with the model's rotation.
        pub(crate) fn attend_moved(
            &self,
            method: &Configured,
            most: usize,
            rotation: Option<Arc<dyn Rotation>>,
        ) -> (Vec<f32>, LayerCosts) {
            let mut sparse = SparsePrefill::new(method, 1, SEED).unwrap().with_rotation(rotation);
            let (width, mut out) = (self.heads * D, Vec::new());
            for (i, queries) in self.queries.chunks(sparse.chunk_rows(most) * width).enumerate() {
                let first = i * sparse.chunk_rows(most);
                let mut kv = self.kv.clone();
                kv.truncate(first + queries.len() / width, self.tokens());
                let mut attended = vec![f32::NAN; queries.len()];
                let chunk = PrefillChunk::new(0, first, queries, self.heads, &kv);
                sparse.attend(&chunk, &mut attended);
                out.extend(attended);
            }
            (out, sparse.into_costs())
        }

        /// Softmax over the tokens that `sees` leaves a row (position, head, token) with a bias on their logits, computed one
        /// by one.
        pub(crate) fn reference(&self, sees: impl Fn(usize, usize, usize) -> Option<f32>) -> Vec<f32> {
            let by_head = |head: usize| (self.keys(head), self.kv.values.head(head / self.group()).to_f32());
            let (stored, mut out): (Vec<_>, _) = ((0..self.heads).map(by_head).collect(), Vec::new());
            for (position, head) in (0..self.tokens()).flat_map(|position| (0..self.heads).map(move |h| (position, h)))
            {
                let (keys, values) = &stored[head];
                let seen = (0..=position).filter_map(|token| Some((token, sees(position, head, token)?)));
                let weighted = |(token, bias): (usize, f32)| {
                    (token, (self.logit(position, head, &keys[token]) + f64::from(bias)).exp())
                };
                let weights: Vec<(usize, f64)> = seen.map(weighted).collect();
                let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
                let channel = |c: usize| {
                    let values = weights.iter().map(|(token, weight)| weight * f64::from(values[token * D + c]));
                    (values.sum::<f64>() / sum) as f32
                };
                out.extend((0..D).map(channel));
            }
            out
        }

        fn block<'b>(
            &'b self,
            method: &'b Configured,
            kv_head: usize,
            (first, rows): (usize, usize),
            queries: &'b [f32],
        ) -> QueryBlock<'b> {
            QueryBlock {
                layer: 0,
                kv_head,
                group: self.group(),
                queries,
                rows,
                first,
                d: D,
                keys: self.kv.keys.head(kv_head),
                grouped: None,
                policy: &method.policy,
                share: LayerShare::default(),
                seed: head_seed(SEED, 0, kv_head),
            }
        }

        /// The masks of each block for each query head as the method gives them, and what giving them cost.
        pub(crate) fn masks(&self, method: &Configured) -> (Vec<Vec<Mask>>, Cost) {
            let pattern = method.method.prefill_pattern().expect("a mask");
            let (kv_heads, tokens, mut cost) = (self.kv.keys.kv_heads(), self.tokens(), Cost::default());
            let group = self.group();
            let of = |kv_head: usize, first: usize, rows: usize| {
                let queries = &self.queries[first * self.heads * D..][..rows * self.heads * D];
                by_head(queries, self.heads, D, kv_head * group..(kv_head + 1) * group)
            };
            let prompts: Vec<Vec<f32>> = (0..kv_heads).map(|kv_head| of(kv_head, 0, tokens)).collect();
            let mut plans: Vec<PromptPlan> = Vec::new();
            if let PrefillPattern::Whole(mask) = pattern {
                for (kv_head, queries) in prompts.iter().enumerate() {
                    plans.push(mask.plan(&self.block(method, kv_head, (0, tokens), queries), &mut cost));
                }
            }
            let mut all = Vec::new();
            for first in (0..tokens).step_by(pattern.query_rows()) {
                let rows = pattern.query_rows().min(tokens - first);
                let mut of_block = Vec::new();
                for kv_head in 0..kv_heads {
                    let queries = of(kv_head, first, rows);
                    let block = self.block(method, kv_head, (first, rows), &queries);
                    let masks = match pattern {
                        PrefillPattern::Blocks(mask) => mask.masks(&block, &mut cost),
                        _ => plans[block.kv_head](&block),
                    };
                    match masks {
                        Masks::Shared(mask) => of_block.extend(vec![mask; group]),
                        Masks::PerHead(masks) => of_block.extend(masks),
                    }
                }
                all.push(of_block);
            }
            (all, cost)
        }

        /// What each row of each query head sees, `[head][position]`: tokens, ascending, and the biases on their logits.
        pub(crate) fn seen(&self, method: &Configured) -> Vec<Vec<Vec<(usize, f32)>>> {
            let rows = method.method.prefill_pattern().expect("a mask").query_rows();
            let mut seen = vec![Vec::new(); self.heads];
            for (block, masks) in self.masks(method).0.iter().enumerate() {
                for (seen, mask) in seen.iter_mut().zip(masks) {
                    seen.extend(resolved(mask, block * rows));
                }
            }
            seen
        }
    }

    /// Checks that each row sees what `expected` says of its head and position: tokens with the biases on their logits.
    pub(crate) fn assert_sees(
        layer: &Layer,
        spec: &str,
        policy: &Policy,
        expected: impl Fn(usize, usize) -> BTreeMap<usize, f32>,
    ) {
        for (head, rows) in layer.seen(&method(spec, policy)).iter().enumerate() {
            assert_eq!(rows.len(), layer.tokens());
            for (position, seen) in rows.iter().enumerate() {
                let (seen, expected) = (seen.iter().copied().collect::<BTreeMap<_, _>>(), expected(head, position));
                let tokens = |seen: &BTreeMap<usize, f32>| seen.keys().copied().collect::<Vec<_>>();
                assert_eq!(tokens(&seen), tokens(&expected), "{spec} with {policy:?}: head {head}, row {position}");
                let off = seen.values().zip(expected.values()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(off < 1e-5, "{spec}: head {head}, row {position}: biases are off by {off}");
            }
        }
    }

    /// Tokens that stand for themselves.
    pub(crate) fn plain(tokens: impl Iterator<Item = usize>) -> BTreeMap<usize, f32> {
        tokens.map(|token| (token, 0.0)).collect()
    }

    /// Whether a row sees a token as one of the sinks, or in a window that holds at least the row itself.
    pub(crate) fn is_static(policy: &Policy, position: usize, token: usize) -> bool {
        token < policy.sink || token + policy.local.max(1) > position
    }

    /// Softmax in `f64` over the tokens up to a row.
    pub(crate) fn softmax_up_to(layer: &Layer, position: usize, head: usize) -> Vec<f64> {
        let keys = layer.keys(head);
        let weights: Vec<f64> = keys[..=position].iter().map(|key| layer.logit(position, head, key).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / sum).collect()
    }

    /// FLOPs of scoring that a method counts when it reads a layer.
    pub(crate) fn score_flops(layer: &Layer, spec: &str, policy: &Policy) -> usize {
        layer.attend(&method(spec, policy), 64).1.total(|_| true).score_flops as usize
    }

    /// What each row of a mask sees, as it is attended.
    pub(crate) fn resolved(mask: &Mask, first: usize) -> Vec<Vec<(usize, f32)>> {
        let (tokens, sights) = mask.resolve(first);
        let of_row = |sight: &Sight| {
            let plain = (0..sight.common).chain(sight.stretch.clone()).map(|place| (place, 0.0));
            let all = plain.chain(sight.singles.iter().map(|single| (single.place, single.log_weight)));
            let mut seen: Vec<(usize, f32)> = all.map(|(place, bias)| (tokens[place] as usize, bias)).collect();
            seen.sort_by_key(|(token, _)| *token);
            seen
        };
        sights.iter().map(of_row).collect()
    }

    /// Masks of any parts, which may overlap each other and lie behind the rows.
    pub(crate) fn any_mask() -> impl Strategy<Value = (usize, Mask)> {
        (0usize..90, 1usize..40).prop_flat_map(|(first, rows)| {
            let end = first + rows;
            let starts = proptest::collection::vec(0..end + 3, rows);
            let set = |most: usize| proptest::collection::btree_set(0..end, 0..most);
            let own = move || proptest::collection::btree_map(0..end as u32, -2.0f32..2.0, 0..12);
            let own =
                prop_oneof![Just(0), Just(rows)].prop_flat_map(move |rows| proptest::collection::vec(own(), rows));
            (Just(first), starts, set(30), set(20), own, 0usize..60).prop_map(
                |(first, starts, common, slashes, own, sinks)| {
                    let (end, mut starts) = (first + starts.len(), starts);
                    starts.sort_unstable();
                    let mut common: std::collections::BTreeSet<usize> = common;
                    common.extend(0..sinks.min(end) / 2);
                    let own = own.into_iter().map(|row| {
                        row.into_iter().map(|(token, log_weight)| WeightedToken { token, log_weight }).collect()
                    });
                    let common = common.into_iter().map(|token| token as u32).collect();
                    (first, Mask { common, starts, slashes: slashes.into_iter().collect(), own: own.collect() })
                },
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{D, Layer, any_mask, assert_close, method, resolved};
    use super::*;
    use crate::Picks;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// What a mask says of a token for a row, by what its parts mean: the bias on its logit, if the row attends it.
    fn says(mask: &Mask, first: usize, position: usize, token: usize) -> Option<f32> {
        let row = position - first;
        let is_plain = token >= mask.starts[row].min(position)
            || mask.common.contains(&(token as u32))
            || mask.slashes.iter().any(|offset| token + offset == position);
        let own = mask.own.get(row).into_iter().flatten().find(|own| own.token as usize == token);
        match (token <= position, is_plain) {
            (false, _) => None,
            (true, true) => Some(0.0),
            (true, false) => own.map(|own| own.log_weight),
        }
    }

    const SPECS: [&str; 27] = [
        "streaming_llm:window=37",
        "a_shape:density=0.3",
        "bigbird:window=10,blocks=3,block=8",
        "bigbird:density=0.4,block=12,per=kv_head",
        "hip:k=24",
        "hip:k=40,b_q=10,b_k=3,b_sq=3,per=kv_head",
        "hip:density=0.25,b_q=64",
        "hip:ratio=0.1,b_q=1,b_k=1,b_sq=1",
        "hip:k=16,n_e=3,top_r=4",
        "hip:k=16,b_q=24,window=row,query_offset=last,chunks=aligned",
        "hip:k=16,b_q=24,window=row,vd=true,vertical=6,slash=5,snapshot=9",
        "vertical_slash:vertical=9,slash=7",
        "vertical_slash:vertical=20,slash=0,snapshot=3,per=kv_head",
        "vertical_slash:density=0.3",
        "minference:k=30,block=16",
        "minference:density=0.3,snapshot=5",
        "flexprefill:block=24,tau=0",
        "flexprefill:gamma=0.3,block=10,tau=1",
        "flexprefill:gamma=0.3,block=16,min_budget=40",
        "flexprefill:density=0.3,block=16",
        "hyper_attention:sample=9,block=8,min_seq_len=10",
        "hyper_attention:sample=0,block=16",
        "hyper_attention:sample=300,block=1,min_seq_len=1,lsh_num_projs=16",
        "hyper_attention:density=0.4,block=4,min_seq_len=8",
        "reformer:bucket=10",
        "reformer:bucket=16,hashes=3",
        "reformer:density=0.3",
    ];

    #[test]
    fn rows_attend_what_the_mask_says_and_nothing_behind_them() {
        for (tokens, heads, kv_heads) in [(1, 2, 1), (70, 4, 2), (230, 4, 2), (150, 3, 3)] {
            let layer = Layer::new(tokens, heads, kv_heads);
            for (spec, policy) in SPECS.iter().flat_map(|spec| {
                [(4, 20), (0, 0), (90, 5)].map(|(sink, local)| (spec, Policy { sink, local, ..Policy::default() }))
            }) {
                let method = method(spec, &policy);
                let (masks, _) = layer.masks(&method);
                let rows = method.method.prefill_pattern().unwrap().query_rows();
                let sees = |position: usize, head: usize, token: usize| {
                    says(&masks[position / rows][head], position - position % rows, position, token)
                };
                let what = format!("{spec} with {policy:?} on {tokens} tokens");
                assert!(
                    (0..tokens).all(|at| (0..heads).all(|head| sees(at, head, at) == Some(0.0))),
                    "{what}: the own token"
                );
                let (out, costs) = layer.attend(&method, tokens);
                assert_close(&out, &layer.reference(sees), &what);
                let count = |head: usize, position: usize| {
                    (0..=position).filter(|t| sees(position, head, *t).is_some()).count()
                };
                let all = (0..heads).flat_map(|head| (0..tokens).map(move |position| (head, position)));
                let attended: usize = all.map(|(head, position)| count(head, position)).sum();
                let total = costs.total(|_| true);
                assert_eq!(total.attended_tokens, attended as u64, "{what}");
                assert_eq!(total.context_tokens, (heads * tokens * (tokens + 1) / 2) as u64);
                assert_eq!(
                    (total.steps, total.full_flops),
                    ((heads * tokens) as u64, 4 * D as u64 * total.context_tokens)
                );
                let densities = costs.head_densities(0);
                assert!((densities.iter().sum::<f64>() / heads as f64 - total.density()).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn chunks_and_threads_do_not_change_a_bit() {
        let layer = Layer::new(200, 4, 2);
        for spec in SPECS {
            let method = method(spec, &Policy::default());
            let on = |threads: usize, most: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| layer.attend(&method, most))
            };
            let once = on(1, 200);
            assert!(once == on(3, 200) && once == on(2, 1) && once == on(1, 77), "{spec}");
        }
    }

    #[test]
    fn masks_over_a_prompt_say_how_many_tokens_rows_have_of_their_own_and_lists_keep_their_diagonals() {
        let layer = Layer::new(230, 4, 2);
        let mut seen = [0, 0];
        for spec in SPECS {
            let method = method(spec, &Policy::default());
            let Some(PrefillPattern::Whole(mask)) = method.method.prefill_pattern() else { continue };
            let (masks, _) = layer.masks(&method);
            let distinct = |own: &Vec<WeightedToken>| own.iter().map(|own| own.token).collect::<BTreeSet<_>>().len();
            let own = masks.iter().flatten().flat_map(|mask| mask.own.iter().map(distinct)).max().unwrap_or(0);
            let most = mask.own_tokens(230);
            assert!(own <= most && most <= 230 && (own > 0) == (most > 0), "{spec}: {own} of {most} tokens");
            seen[usize::from(own > 0)] += 1;
            let last = masks.last().unwrap();
            for (block, of_heads) in masks.iter().enumerate() {
                let end = ((block + 1) * mask.query_rows()).min(230);
                for (own, all) in of_heads.iter().zip(last) {
                    let reaching = |mask: &Mask| -> Vec<usize> {
                        mask.slashes.iter().copied().filter(|distance| *distance < end).collect()
                    };
                    assert_eq!(reaching(own), reaching(all), "{spec}, block {block}");
                }
            }
        }
        assert!(seen.iter().all(|count| *count > 3), "{seen:?} masks of both kinds");
    }

    #[test]
    fn lists_of_a_plan_take_no_more_than_their_share_or_a_block() {
        let (heads, d) = (32, 128);
        let bytes = |mask: &dyn PromptMask, tokens: usize| {
            PlannedBlock::of(mask, heads, d, tokens).bytes_of(tokens.div_ceil(mask.query_rows()))
        };
        // All blocks of a short prompt; of a long one as many as there is room for; at least one.
        let (plain, each) = (Costly { plan: 0, block: 0 }, 4 * 32);
        assert_eq!(bytes(&plain, 1000), 32 * each * 1000);
        assert_eq!(bytes(&plain, 131_072), PLANNED_LIST_BYTES);
        assert_eq!(bytes(&plain, 8 << 20), each * (8 << 20));
        // Of each row and head a begin, a partial softmax, and the tokens with their weights.
        let own = |tokens: usize, most: usize| 4 * heads * tokens + 32 * heads * (8 + 4 * (2 + d) + 8 * most);
        assert_eq!(bytes(&Owning(100), 1000), 32 * own(1000, 100));
        assert_eq!(bytes(&Owning(100), 131_072), PLANNED_LIST_BYTES);
        assert_eq!(bytes(&Owning(131_072), 131_072), own(131_072, 131_072));
    }

    /// A mask whose rows have up to so many tokens of their own.
    struct Owning(usize);

    impl PromptMask for Owning {
        fn query_rows(&self) -> usize {
            32
        }

        fn own_tokens(&self, _: usize) -> usize {
            self.0
        }

        fn plan<'p>(&'p self, _: &QueryBlock<'p>, _: &mut Cost) -> PromptPlan<'p> {
            unreachable!("nobody asks")
        }
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn a_prompt_is_planned_in_pieces_that_fit() {
        // What a block takes: the same for all; ever more, up to what it can be; much of a few.
        let sizes: [&dyn Fn(usize) -> usize; 4] = [
            &|_| 4 << 20,
            &|block| (1 << 20) + (block << 15),
            &|block| if block % 50 == 49 { 400 << 20 } else { 5 << 20 },
            &|_| PLANNED_LIST_BYTES + 1,
        ];
        for (of, size) in sizes.into_iter().enumerate() {
            let blocks = 300;
            let most = (0..blocks).map(size).max().unwrap();
            let planned = PlannedBlock { fixed: 0, own: most / OWN_TOKEN_BYTES };
            let (mut waiting, mut known, mut pieces) = (Vec::new(), 0, Vec::new());
            while pieces.iter().sum::<usize>() < blocks {
                loop {
                    let more = planned.ahead(&waiting).min(blocks - known);
                    if more == 0 {
                        break;
                    }
                    waiting.extend((known..known + more).map(size));
                    known += more;
                }
                assert!(
                    waiting.iter().sum::<usize>() <= 3 * PLANNED_LIST_BYTES.max(most),
                    "sizes {of}: all that waits"
                );
                let here = PlannedBlock::at_once(&waiting);
                let bytes: usize = waiting.drain(..here).sum();
                assert!(bytes <= PLANNED_LIST_BYTES || here == 1, "sizes {of}: {bytes} bytes of a piece");
                pieces.push(here);
            }
            let expected = [vec![128, 128, 44], vec![152, 74, 57, 17], vec![], vec![1; 300]];
            assert!(expected[of].is_empty() || pieces == expected[of], "sizes {of}: {pieces:?}");
        }
    }

    #[test]
    fn with_all_tokens_left_it_is_exact_attention() {
        let layer = Layer::new(170, 4, 2);
        let full = layer.reference(|_, _, _| Some(0.0));
        let dense = Policy { dense_layers: crate::DenseLayers::parse("0").unwrap(), ..Policy::default() };
        for (spec, policy) in [
            ("a_shape:window=170", Policy::default()),
            ("bigbird:window=5,blocks=100,block=16", Policy::default()),
            ("hip:k=200", Policy::default()),
            ("hip:k=2,vd=true,vertical=200", Policy::default()),
            ("hip:k=2,vd=true,slash=200", Policy::default()),
            ("hip:k=200,window=row", Policy { sink: 4, local: 3, ..Policy::default() }),
            ("hip:ratio=1,b_k=7,per=kv_head", Policy::default()),
            ("streaming_llm:window=3", dense.clone()),
            ("vertical_slash:vertical=200,slash=0", Policy::default()),
            ("vertical_slash:vertical=0,slash=200", Policy::default()),
            ("vertical_slash:density=1", Policy::default()),
            ("minference:k=200", Policy::default()),
            ("minference:density=1,block=16", Policy::default()),
            ("flexprefill:gamma=1,tau=0", Policy::default()),
            ("flexprefill:gamma=1,tau=1,block=16", Policy::default()),
            ("flexprefill:min_budget=170,tau=0", Policy::default()),
            ("hyper_attention:min_seq_len=170", Policy::default()),
            ("hyper_attention:block=100,sample=0", Policy::default()),
            ("reformer:bucket=170", Policy::default()),
            ("reformer:density=1", Policy::default()),
            ("vertical_slash:vertical=0,slash=0", dense.clone()),
            ("hip:k=2", dense),
        ] {
            let (out, costs) = layer.attend(&method(spec, &policy), 64);
            assert_close(&out, &full, spec);
            assert_eq!((costs.total(|_| true).density(), costs.total(|_| true).cost2()), (1.0, 1.0), "{spec}");
        }
    }

    #[test]
    fn a_block_of_one_row_is_searched_as_a_decoding_step_is() {
        // The last token as a step over a prefix of all others, and as the last row of a prompt.
        let layer = Layer::new(161, 2, 1);
        for spec in
            ["hip:k=24,b_q=1,b_sq=1", "hip:k=30,b_q=1,b_sq=1,b_k=3,per=kv_head", "hip:k=10,b_q=1,b_sq=1,top_r=3"]
        {
            let method = method(spec, &Policy { sink: 4, local: 11, ..Policy::default() });
            let (masks, _) = layer.masks(&method);
            let found = |head: usize| {
                let Mask { common, starts, .. } = &masks[160][head];
                assert_eq!((common[..4].to_vec(), starts[0]), (vec![0, 1, 2, 3], 150), "ten before it, and itself");
                common[4..].to_vec()
            };
            let keys = layer.kv.keys.head(0);
            let step = crate::Step {
                layer: 0,
                depth: crate::Depth::default(),
                kv_head: 0,
                queries: &layer.queries[160 * 2 * D..],
                d: D,
                scale: 0.25,
                keys: keys.slice(0..160, D),
                values: keys.slice(0..160, D),
                tail_keys: keys.slice(160..161, D),
                tail_values: Rows::F32(&[]),
                dtype: crate::kv::KvDtype::F32,
                indexed: 4..150,
                candidates: 4..150,
                context: Context::new(161, &(4..150)),
                grouped: None,
                moves_on: false,
                generated: 0,
                seed: 1,
            };
            let mut state = method.method.start(&());
            let picked = match method.method.select(&step, &(), state.as_mut(), &mut Cost::default()) {
                crate::Selection::Shared(picks) => vec![picks.clone(), picks],
                crate::Selection::PerHead(heads) => heads,
            };
            assert_eq!(picked, [0, 1].map(|head| Picks::softmax(found(head))), "{spec}");
        }
    }
    proptest! {
        #[test]
        fn a_row_sees_each_token_of_its_mask_once((first, mask) in any_mask()) {
            for (row, seen) in resolved(&mask, first).iter().enumerate() {
                let position = first + row;
                let expected: Vec<(usize, f32)> = (0..=position)
                    .filter_map(|token| Some((token, says(&mask, first, position, token)?)))
                    .collect();
                prop_assert_eq!(seen, &expected, "row {} of {:?}", row, mask);
                let mut tokens: Vec<usize> = mask.row_tokens(first, position).iter().map(|t| *t as usize).collect();
                tokens.sort_unstable();
                prop_assert_eq!(tokens, expected.iter().map(|(token, _)| *token).collect::<Vec<_>>());
            }
        }

        #[test]
        fn packed_tokens_are_each_packed_once((first, mask) in any_mask()) {
            let (tokens, _) = mask.resolve(first);
            let distinct: std::collections::BTreeSet<u32> = tokens.iter().copied().collect();
            prop_assert_eq!(distinct.len(), tokens.len());
        }
    }

    /// A mask that is given, for all blocks.
    struct Given(Vec<Mask>);

    impl PromptMask for Given {
        fn query_rows(&self) -> usize {
            32
        }

        fn plan<'p>(&'p self, _: &QueryBlock<'p>, _: &mut Cost) -> PromptPlan<'p> {
            Box::new(|block| Masks::Shared(self.0[block.first / 32].clone()))
        }
    }

    /// A mask of windows that costs something to find, for each KV head of a layer and for each of its blocks.
    struct Costly {
        plan: u64,
        block: u64,
    }

    impl BlockMask for Costly {
        fn query_rows(&self) -> usize {
            32
        }

        fn masks(&self, block: &QueryBlock<'_>, cost: &mut Cost) -> Masks {
            cost.score_flops += self.block;
            Masks::Shared(Mask::new(Vec::new(), (block.first..block.first + block.rows).collect()))
        }
    }

    impl PromptMask for Costly {
        fn query_rows(&self) -> usize {
            32
        }

        fn plan<'p>(&'p self, _: &QueryBlock<'p>, cost: &mut Cost) -> PromptPlan<'p> {
            cost.score_flops += self.plan;
            Box::new(|block| self.masks(block, &mut Cost::default()))
        }
    }

    #[test]
    fn what_finding_a_mask_costs_is_counted_once() {
        let layer = Layer::new(150, 4, 2);
        let costly = Costly { plan: 1000, block: 7 };
        let window = method("streaming_llm", &Policy::default());
        for (pattern, flops) in
            [(PrefillPattern::Blocks(&costly), 2 * 5 * 7), (PrefillPattern::Whole(&costly), 2 * 1000)]
        {
            let mut sparse = SparsePrefill::new(&window, 1, 3).unwrap();
            sparse.pattern = pattern;
            let mut out = vec![f32::NAN; layer.queries.len()];
            let chunk = PrefillChunk::new(0, 0, &layer.queries, 4, &layer.kv);
            sparse.attend(&chunk, &mut out);
            let total = sparse.into_costs().total(|_| true);
            assert_eq!((total.score_flops, total.attended_tokens, total.steps), (flops, 4 * 150, 4 * 150));
        }
    }

    #[test]
    fn verticals_slashes_and_weighted_tokens_are_attended_in_one_softmax() {
        let layer = Layer::new(150, 2, 1);
        let weighted = |position: usize| {
            let tokens = (0..position as u32).step_by(11);
            tokens.map(|token| WeightedToken { token, log_weight: (token % 7) as f32 * 0.5 - 1.0 }).collect()
        };
        let mask = |first: usize| {
            let rows = first..(first + 32).min(150);
            Mask {
                slashes: vec![9, 10, 40, 77],
                own: rows.clone().map(weighted).collect(),
                ..Mask::new(
                    vec![0, 1, 30, 31, 90, 120],
                    rows.map(|position: usize| position.saturating_sub(5)).collect(),
                )
            }
        };
        let given = Given((0..150).step_by(32).map(mask).collect());
        let method = method("streaming_llm", &Policy::default());
        let mut sparse = SparsePrefill::new(&method, 1, 3).unwrap();
        sparse.pattern = PrefillPattern::Whole(&given);
        let mut out = vec![f32::NAN; layer.queries.len()];
        sparse.attend(&PrefillChunk::new(0, 0, &layer.queries, 2, &layer.kv), &mut out);
        let sees = |position: usize, token: usize| {
            let distance = position - token;
            let is_plain =
                distance <= 5 || [9, 10, 40, 77].contains(&distance) || [0, 1, 30, 31, 90, 120].contains(&token);
            match is_plain {
                true => Some(0.0),
                false => token.is_multiple_of(11).then_some((token % 7) as f32 * 0.5 - 1.0),
            }
        };
        assert_close(&out, &layer.reference(|position, _, token| sees(position, token)), "by hand");
        let pairs = (0..150).map(|position| (0..=position).filter(|token| sees(position, *token).is_some()).count());
        assert_eq!(sparse.into_costs().total(|_| true).attended_tokens as usize, 2 * pairs.sum::<usize>());
    }
}

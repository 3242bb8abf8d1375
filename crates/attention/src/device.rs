//! Device forms: methods that pick where the prefix is.
//!
//! A method's host form is the [`Method`](super::Method) trait. A [`DeviceForm`] is optional, and batched: it builds an index of
//! all KV heads of a layer, and picks for all heads of all rows that share the method, into lists that are attended where they
//! are. Nothing waits for it. What it picks is what the host form would pick, but for scores that differ by rounding, and so is
//! what it costs: what is known beforehand is counted by the [formula](DeviceForm::cost) that the host form counts by, and picks
//! are counted on the device until a run [settles](super::Fork::settle).
//!
//! For methods of a [`Scorer`](super::scorer::Scorer) and a [`Picker`](super::pick::Picker) each of the two has a form of its own,
//! and whatever has both goes together ([`Scored`](super::scored::Scored)).

#[cfg(feature = "cuda")]
use std::ops::Range;

#[cfg(feature = "cuda")]
use rayon::prelude::*;

#[cfg(feature = "cuda")]
use super::prompt::{PromptHead, PromptStats};
use crate::cost::Cost;
use crate::kv::{KvDtype, KvShape};
use crate::types::budget::Context;
#[cfg(feature = "cuda")]
use crate::types::prefix_head::{Depth, HeadPrefix};
use crate::types::prompt_shape::PromptShape;
#[cfg(feature = "cuda")]
use crate::types::seed::{RowSeed, head_seed};
#[cfg(feature = "cuda")]
use spattn_cuda::{
    BlockLists, Buffer, Cache, CollisionRoom, DrawRoom, Gpu, GpuError, HashTables, HeldTokens, HoldingRoom, Mirrored,
    Nets, Pages, Queries, Reduction, ScoreRoom, Scores, Searched, TokenLists, TreeRoom,
};
use spattn_kernels::GPU_ROW_WIDTHS;
#[cfg(feature = "cuda")]
use spattn_kernels::Rows;

/// What a step of one KV head is like, as far as the cost of picking depends on it.
#[derive(Debug, Clone, Copy)]
pub struct StepShape {
    /// Query heads of the group.
    pub group: usize,
    /// Width of a head.
    pub d: usize,
    /// Storage type of keys and values.
    pub dtype: KvDtype,
    /// Tokens that may be picked.
    pub candidates: usize,
    /// Tokens that are attended whatever is picked.
    pub exact: usize,
    /// How much is picked, in units that the method knows.
    pub number: u32,
}

/// Whoever builds or picks has asked whether a form fits.
#[cfg(feature = "cuda")]
pub(super) const FITS: &str = "a form is used where it fits";

/// Whoever picks at once has asked whether a scorer does.
#[cfg(feature = "cuda")]
pub(super) const AT_ONCE: &str = "who picks at once says so";

/// The width of the rows in which an index holds so many numbers of each key, if there are such rows.
pub(super) fn row_width(numbers: usize) -> Option<usize> {
    GPU_ROW_WIDTHS.into_iter().find(|width| (1..=*width).contains(&numbers))
}

/// A method's form on a device. Its candidates are those of the prefix, unless [runs hold something](Self::holds).
pub trait DeviceForm: Send + Sync {
    /// Whether there is a form for keys and values of this shape.
    fn fits(&self, shape: KvShape) -> bool;

    /// Generated tokens that attend what was picked once, before something is picked anew: whoever steps keeps it so long.
    fn refresh(&self) -> usize {
        1
    }

    /// What it costs to score the candidates of one KV head at a step, and to pass over the scores.
    fn cost(&self, step: &StepShape) -> Cost;

    /// What picking costs beyond that, where it depends on what is found: entries of an index that were read, and tokens
    /// that were picked, of all lists together.
    fn cost_of_picks(&self, _step: &StepShape, _entries: u64, _picked: u64) -> Cost {
        Cost::default()
    }

    /// Whether the products of the query heads of a group of so many with the tokens that they then attend are part of that
    /// [cost](Self::cost): attention takes them over, and they count there alone. Not by default.
    fn takes_products(&self, _group: usize) -> bool {
        false
    }

    /// Whether a row's [number](Self::number) says all that a budget says, so that rows of methods which differ in nothing else are picked
    /// for together; not by default.
    fn numbers_are_budgets(&self) -> bool {
        false
    }

    /// How much is picked in a context of a prefix with so many candidates, in units that the method knows.
    fn number(&self, context: Context, candidates: usize) -> u32;

    /// Bytes of the device's memory that its indexes of all layers of a prefix take at most.
    fn index_bytes(&self, prefix: &PromptShape, dtype: KvDtype) -> usize;

    /// Whether runs hold something of their own, which follows the tokens behind the prefix.
    fn holds(&self) -> bool {
        false
    }

    /// Bytes of the device's memory that what a run holds at a layer takes at most; nothing by default.
    fn held_bytes(&self, _prefix: &PromptShape) -> usize {
        0
    }

    /// Bytes of the device's memory that the lists of one row take at most; they are used again from layer to layer.
    fn list_bytes(&self, prefix: &PromptShape) -> usize;

    /// The index of all KV heads of a layer.
    ///
    /// # Errors
    /// If the device fails.
    #[cfg(feature = "cuda")]
    fn build_all(&self, layer: &DeviceLayer<'_>, learned: &Learned<'_>) -> Result<DeviceIndex, GpuError>;

    /// What a run that goes on from an index to `total` tokens in context holds at the layer, and changes from step to
    /// step; nothing by default.
    ///
    /// # Errors
    /// If the device fails.
    #[cfg(feature = "cuda")]
    fn start_all(&self, _gpu: &Gpu, _index: &DeviceIndex, _total: usize) -> Result<Option<HeldTokens>, GpuError> {
        Ok(None)
    }

    /// Picks for all heads of all rows of a step, into a list for each query head or each KV head. All work is only asked for.
    ///
    /// # Errors
    /// If the device fails.
    #[cfg(feature = "cuda")]
    fn select_all(
        &self,
        step: &DeviceStep<'_>,
        index: &DeviceIndex,
        room: &mut DeviceRoom,
        scratch: &mut DeviceScratch,
    ) -> Result<(), GpuError>;

    /// Scores all candidates and picks nothing, for whoever times that alone; what is returned says whether
    /// [`select_all`](Self::select_all) does so too.
    ///
    /// # Errors
    /// If the device fails.
    #[cfg(feature = "cuda")]
    fn score_alone(
        &self,
        _step: &DeviceStep<'_>,
        _index: &DeviceIndex,
        _scratch: &mut DeviceScratch,
    ) -> Result<Scoring, GpuError> {
        Ok(Scoring::Never)
    }
}

/// Whether a form writes scores of all candidates and picks by them.
#[cfg(feature = "cuda")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    /// It has no such scores.
    Never,
    /// It could, and picks without them.
    Apart,
    /// Whatever it picks.
    Always,
}

/// What a device holds about the keys of one layer.
#[derive(Debug, Default)]
pub struct DeviceIndex {
    /// In an order that the method knows.
    #[cfg(feature = "cuda")]
    pub buffers: Vec<Buffer>,
    /// What queries go through before they are compared with it.
    #[cfg(feature = "cuda")]
    pub nets: Option<Nets>,
    /// Tables that queries collide in.
    #[cfg(feature = "cuda")]
    pub tables: Option<HashTables>,
    /// What runs hold when they begin.
    #[cfg(feature = "cuda")]
    pub held: Option<HeldTokens>,
    /// Bytes that the host form's index of the same keys takes.
    pub bytes: usize,
}

/// One layer of a finished prefix in a device's memory.
#[cfg(feature = "cuda")]
#[derive(Clone)]
pub struct DeviceLayer<'a> {
    /// The device.
    pub gpu: &'a Gpu,
    /// Layer, from 0.
    pub layer: usize,
    /// Keys and values of all KV heads.
    pub cache: Cache<'a>,
    /// Storage type of keys and values.
    pub dtype: KvDtype,
    /// Tokens that may be picked; at least one.
    pub candidates: Range<usize>,
}

/// What the host knows of a finished prefix beside its keys and values, and how many sequences lie in a layer as further KV heads.
#[cfg(feature = "cuda")]
#[derive(Clone, Copy)]
pub struct Learned<'a> {
    /// What indexes draw from.
    pub seed: u64,
    /// What was gathered while the prompt was read; `None` if nothing was.
    pub stats: Option<&'a PromptStats>,
}

/// A step of one layer: the rows that share a method.
#[cfg(feature = "cuda")]
pub struct DeviceStep<'a> {
    /// What they go on from.
    pub prefix: DeviceLayer<'a>,
    /// Their rotated, unscaled queries.
    pub queries: Queries<'a>,
    /// The [number](DeviceForm::number) of each.
    pub numbers: &'a [u32],
    /// What the draws of each come from.
    pub seeds: &'a [RowSeed],
    /// Of each, what its run has of its own.
    pub runs: &'a [RunThere<'a>],
}

/// What the run of a row has of its own at a layer.
#[cfg(feature = "cuda")]
#[derive(Debug, Clone, Copy)]
pub struct RunThere<'a> {
    /// Keys and values behind the prefix.
    pub tail: Cache<'a>,
    /// What it [holds](DeviceForm::start_all).
    pub held: Option<&'a HeldTokens>,
}

/// Room for what rows that share a method pick, kept from step to step.
#[cfg(feature = "cuda")]
#[derive(Debug, Default)]
pub struct DeviceRoom {
    /// What is picked.
    pub lists: TokenLists,
    /// A number for each row, for whoever picks.
    pub numbers: Mirrored<u32>,
    /// What lies between scores and draws, for whoever draws.
    pub draws: DrawRoom,
}

/// Room for what is needed in between, for all methods.
#[cfg(feature = "cuda")]
#[derive(Debug, Default)]
pub struct DeviceScratch {
    /// Scores of candidates.
    pub scores: ScoreRoom,
    /// Scores that those are made of.
    pub parts: ScoreRoom,
    /// What queries are made into before they are compared with an index, in one or two parts.
    pub queries: [Option<Buffer>; 2],
    /// The numbers of rows in the order in which they are.
    pub in_order: Mirrored<u32>,
    /// What lies between the rounds of a search.
    pub tree: TreeRoom,
    /// What lies between a query and what it collides with.
    pub collisions: CollisionRoom,
    /// What lies between what is held and what it receives.
    pub holding: HoldingRoom,
}

/// What a device holds while a prompt is read by a mask, kept from chunk to chunk.
#[cfg(feature = "cuda")]
#[derive(Debug, Default)]
pub(super) struct MaskRoom {
    /// What blocks of rows attend.
    pub(super) lists: BlockLists,
    /// What they search, where it is searched for.
    pub(super) searched: Mirrored<Searched>,
    /// Products that searches took, and tokens that rows see of what was found: u64 `[layer][head][2]`.
    pub(super) counters: Option<Buffer>,
}

/// A scorer's form on a device.
pub(crate) trait DeviceScorer: Send + Sync {
    /// As [`DeviceForm::fits`]; every shape by default.
    fn fits(&self, _shape: KvShape) -> bool {
        true
    }

    /// What it costs to score the candidates of one KV head at a step.
    fn cost(&self, step: &StepShape) -> Cost;

    /// As [`DeviceForm::index_bytes`], of one layer; nothing by default.
    fn layer_bytes(&self, _prefix: &PromptShape, _dtype: KvDtype) -> usize {
        0
    }

    /// The index of all KV heads of a layer; nothing by default.
    #[cfg(feature = "cuda")]
    fn build_all(&self, _layer: &DeviceLayer<'_>, _learned: &Learned<'_>) -> Result<DeviceIndex, GpuError> {
        Ok(DeviceIndex::default())
    }

    /// Scores of every page of the candidates for some rows into `scratch.scores`, in lists by query head, or by KV head if they
    /// are reduced.
    #[cfg(feature = "cuda")]
    fn score_all(
        &self,
        step: &DeviceStep<'_>,
        rows: Range<usize>,
        index: &DeviceIndex,
        reduction: Option<Reduction>,
        scratch: &mut DeviceScratch,
    ) -> Result<(), GpuError>;

    /// Whether it picks the tokens with the largest scores for all rows at once, without writing scores; not by default.
    #[cfg(feature = "cuda")]
    fn picks_at_once(&self, _step: &DeviceStep<'_>, _index: &DeviceIndex, _reduction: Option<Reduction>) -> bool {
        false
    }

    /// Picks them, as many as `to.numbers` says, where it [does so](Self::picks_at_once).
    #[cfg(feature = "cuda")]
    fn pick_at_once(
        &self,
        _step: &DeviceStep<'_>,
        _index: &DeviceIndex,
        _reduction: Option<Reduction>,
        _scratch: &mut DeviceScratch,
        _to: &mut DeviceRoom,
    ) -> Result<(), GpuError> {
        unreachable!("{AT_ONCE}")
    }

    /// Weighs what was picked by the scores that [`score_all`](Self::score_all) made last, from row `first` on: as a scorer weighs
    /// on the host. Nothing by default: picks enter by their logits.
    #[cfg(feature = "cuda")]
    fn weigh_all(
        &self,
        _step: &DeviceStep<'_>,
        _index: &DeviceIndex,
        _first: usize,
        _scratch: &DeviceScratch,
        _to: &mut DeviceRoom,
    ) -> Result<(), GpuError> {
        Ok(())
    }
}

/// What `build` makes of each KV head of a layer on the host, from keys and values that come down from the device.
#[cfg(feature = "cuda")]
pub(super) fn build_here<I: Send>(
    layer: &DeviceLayer<'_>,
    learned: &Learned<'_>,
    build: impl Fn(&HeadPrefix<'_>) -> I + Sync,
) -> Result<Vec<I>, GpuError> {
    let down = |kv_head| layer.cache.download_rows(layer.gpu, kv_head, 0..layer.candidates.end);
    let rows: Vec<[Vec<f32>; 2]> = (0..layer.cache.kv_heads).map(down).collect::<Result<_, _>>()?;
    let of_head = |(kv_head, [keys, values]): (usize, &[Vec<f32>; 2])| {
        build(&HeadPrefix {
            layer: layer.layer,
            depth: Depth::default(),
            rotation: None,
            kv_head,
            keys: Rows::F32(keys),
            values: Rows::F32(values),
            d: layer.cache.d,
            dtype: layer.dtype,
            candidates: layer.candidates.clone(),
            prompt: learned.stats.map_or_else(PromptHead::default, |stats| stats.head(layer.layer, kv_head)),
            seed: head_seed(learned.seed, layer.layer, kv_head),
        })
    };
    Ok(rows.par_iter().enumerate().map(of_head).collect())
}

/// A picker's form on a device.
pub(super) trait DevicePicker: Send + Sync {
    /// What it costs to pick once by so many scores.
    fn cost(&self, scores: usize) -> Cost;

    /// Whether it picks the largest scores, as many as [`number`](Self::number) says; not by default.
    fn is_of_largest(&self) -> bool {
        false
    }

    /// As [`DeviceForm::number`], of candidates in so many pages: how many are picked, or the most that may be.
    fn number(&self, context: Context, pages: &LeastPages) -> u32;

    /// Makes room in `to` for `lists` lists of each row, and sends what has to be known of the rows.
    #[cfg(feature = "cuda")]
    fn prepare(&self, step: &DeviceStep<'_>, pages: &Pages, lists: usize, to: &mut DeviceRoom) -> Result<(), GpuError>;

    /// What is picked by the scores of some rows, from row `first` on, of pages of which `least` are picked at least.
    #[cfg(feature = "cuda")]
    fn pick_all(
        &self,
        step: &DeviceStep<'_>,
        pages: (&Pages, usize),
        scores: &Scores,
        first: usize,
        to: &mut DeviceRoom,
    ) -> Result<(), GpuError>;
}

/// Pages of candidates, and how many are picked at least.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeastPages {
    /// Tokens a page.
    pub size: usize,
    /// How many there are.
    pub all: usize,
    /// Picked at least.
    pub least: usize,
}

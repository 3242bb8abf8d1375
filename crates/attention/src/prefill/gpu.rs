//! Sparse prefill on a device. The tokens of a block come from one of three places: the host, if they follow from the
//! block's position; a search on the device; or, for a mask over the whole prompt, a plan that the host makes from
//! downloaded queries and keys. Then a kernel gathers and attends the tokens. Prompts that are read along lines are in
//! `gpu_lines.rs`, those in which each row has its own selection in `gpu_rows.rs`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use crate::calibration::collector::PrefillChunk;
use crate::cost::Cost;
use crate::kv::{KvError, KvShape};
use crate::prefill::cost::{BlockCost, queries_by_group};
use crate::prefill::gpu_memory::{PLANNED_LIST_BYTES, PlannedBlock};
use crate::prefill::mask::{BlockMask, LinedMask, Mask, Masks, PrefillPattern, PromptMask, QueryBlock, SearchedMask};
use crate::prefill::shared_tokens::{SharedTokens, TokenSlice, WeightedToken};
use crate::prefill::sparse_prefill::{SparsePrefill, planned};
use crate::types::positions::Positions;
use crate::types::seed::head_seed;
use spattn_cuda::{
    BlockLists, BlockShape, Buffer, Cache, Gpu, GpuError, HostDeviceVec, PerRowSlices, PerRowTokens, PromptSearch,
    Rows, Run, Searched, SharedList, Slice, Timeline,
};

/// Why a device could not attend rows of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DevicePrefillError {
    /// The device failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Queries, keys and values that the host needs for its plan could not be copied from the device.
    #[error(transparent)]
    Kv(#[from] KvError),
}

/// Marks the boundary between two pieces of work on a timeline.
pub(super) type Marking<'a> = dyn FnMut() -> Result<(), GpuError> + 'a;

/// Bytes of a pair of counters.
const COUNTERS: usize = 2 * size_of::<u64>();

/// Memory of each device, by [`Gpu::id`], because the layers of a model may be on several devices.
type MaskWorkspaces = BTreeMap<u64, MaskWorkspace>;

/// Device memory of a masked prefill, kept from chunk to chunk.
#[derive(Debug, Default)]
struct MaskWorkspace {
    /// The tokens that blocks of rows attend.
    lists: BlockLists,
    /// The ranges that blocks search, for masks found by a search on the device.
    searched: HostDeviceVec<Searched>,
    /// Number of products computed by searches, and number of tokens of the result that rows see: u64
    /// `[layer][head][2]`.
    counters: Option<Buffer>,
}

impl SparsePrefill<'_> {
    fn mask_workspace(&mut self, gpu: &Gpu) -> &mut MaskWorkspace {
        self.workspaces_mut().of::<MaskWorkspaces>().entry(gpu.id()).or_default()
    }

    /// Attends rows of a layer on the device into `out` `[row][head][d]`. The first row starts a block, and `chunk`
    /// gives the host access to the same rows. Returns `false` and does nothing if the host has to attend. Marks
    /// `timeline` between selection and attention; if rows are attended in pieces, also at the end of a piece and at
    /// the start of the next.
    ///
    /// # Errors
    /// If the device fails, or a plan needs queries and keys that cannot be copied to the host.
    pub fn attend_on_device(
        &mut self,
        gpu: &Gpu,
        chunk: &PrefillChunk<'_>,
        rows: &Rows<'_>,
        cache: &Cache<'_>,
        out: &mut Buffer,
        mut timeline: Option<&mut Timeline>,
    ) -> Result<bool, DevicePrefillError> {
        let (layer, shape) = (chunk.layer, chunk.shape());
        let mut mark = || timeline.as_mut().map_or(Ok(()), |timeline| gpu.mark(timeline));
        let last = rows.first + rows.count - 1;
        if self.dense[layer] && !matches!(self.positions, Positions::Grouped(grouping) if grouping.far(last) > 0) {
            mark()?;
            gpu.prefill_attention(rows, cache, out)?;
            let spec = chunk.spec();
            let seen = |position: usize| position + 1 - spec.first_visible(position + 1);
            let context = (rows.first..rows.first + rows.count).map(seen).sum();
            self.count(layer, BlockCost::new(vec![context; rows.heads], context, rows.count, cache.d));
            return Ok(true);
        }
        if let (PrefillPattern::Rows(_), Positions::Original, false) = (self.pattern, self.positions, self.dense[layer])
        {
            return Ok(self.attend_rows_there(gpu, chunk, (rows, cache), out, &mut mark)?);
        }
        let has_kernel = rows.rule.is_plain() && gpu.attends_blocks(cache.storage, cache.d);
        if self.dense[layer] || self.positions != Positions::Original || !has_kernel {
            return Ok(false);
        }
        let mask = match self.pattern {
            PrefillPattern::Blocks(mask) => mask,
            PrefillPattern::Whole(mask) => {
                if let Some(lined) = mask.lined() {
                    let mask = (lined, mask.query_rows());
                    if self.attend_lined(gpu, (layer, shape), mask, (rows, cache), out, &mut mark)? {
                        return Ok(true);
                    }
                }
                return self.attend_planned(gpu, chunk, mask, (rows, cache), out, &mut mark);
            }
            _ => return Ok(false),
        };
        let is_known = match (mask.is_data_independent(), Search::of(mask, shape)) {
            (true, _) => {
                let masks = |block: &QueryBlock<'_>| mask.masks(block, &mut Cost::default());
                let mut lists = std::mem::take(&mut self.mask_workspace(gpu).lists);
                let placed = self.place(gpu, &mut lists, layer, (mask.query_rows(), &masks), rows, cache)?;
                self.mask_workspace(gpu).lists = lists;
                let is_placed = placed.is_some();
                placed.into_iter().for_each(|cost| self.count(layer, cost));
                is_placed
            }
            (false, Some(search)) => {
                let mut lists = std::mem::take(&mut self.mask_workspace(gpu).lists);
                let seen = self.search(gpu, layer, &search, rows, cache, &mut lists)?;
                self.mask_workspace(gpu).lists = lists;
                // The tokens that the search finds are counted when its counters are collected.
                let count = |stretches| BlockCost::new(vec![stretches; rows.heads], context(rows), rows.count, cache.d);
                seen.into_iter().for_each(|stretches| self.count(layer, count(stretches)));
                seen.is_some()
            }
            (false, None) => false,
        };
        if is_known {
            mark()?;
            gpu.attend_blocks(rows, cache, &self.mask_workspace(gpu).lists, out)?;
        }
        Ok(is_known)
    }

    /// Attends all rows of a prompt with a mask that the host plans, in pieces of as many rows as the memory for token
    /// lists holds.
    fn attend_planned(
        &mut self,
        gpu: &Gpu,
        chunk: &PrefillChunk<'_>,
        mask: &dyn PromptMask,
        (rows, cache): (&Rows<'_>, &Cache<'_>),
        out: &mut Buffer,
        mark: &mut Marking<'_>,
    ) -> Result<bool, DevicePrefillError> {
        assert_eq!(rows.first, 0, "a mask over the whole prompt needs the prompt as one chunk");
        let mut lists = std::mem::take(&mut self.mask_workspace(gpu).lists);
        let count = mask.last_queries().unwrap_or(rows.count).min(rows.count);
        let queries = match count == rows.count {
            true => Cow::Borrowed(chunk.queries()?),
            false => chunk.last_queries(count)?,
        };
        let queries = queries_by_group(&queries, rows.heads, (cache.kv_heads, cache.d));
        let blocks = self.last_rows(chunk, chunk.kv()?, &queries, count);
        let (plans, costs) = planned(&blocks, |block, cost| mask.plan(block, cost));
        let masks = |block: &QueryBlock<'_>| plans[block.kv_head](block);
        let (layer, block_rows) = (chunk.layer, mask.query_rows());
        let (blocks, block) =
            (rows.count.div_ceil(block_rows), PlannedBlock::of(mask, rows.heads, cache.d, rows.count));
        let mut counted = Vec::new();
        let (mut waiting, mut bytes, mut sent) = (Vec::new(), Vec::new(), 0);
        while sent < blocks {
            if sent > 0 {
                mark()?;
                mark()?;
            }
            let placed = |blocks| self.placed(layer, (block_rows, &masks), rows, blocks, cache);
            look_ahead(&block, (&mut waiting, &mut bytes), sent..blocks, cache.kv_heads, &placed);
            let here = PlannedBlock::at_once(&bytes);
            bytes.drain(..here);
            let of_piece: Vec<Vec<Placed>> = waiting.drain(..here * cache.kv_heads).collect();
            let skip = sent * block_rows;
            let count = (here * block_rows).min(rows.count - skip);
            let piece = Rows { skip: rows.skip + skip, count, first: rows.first + skip, ..*rows };
            let cost = send(gpu, &mut lists, &of_piece, block_rows, &piece, cache)?;
            counted.push(cost.expect("all blocks of a planned list have the same diagonals"));
            mark()?;
            gpu.attend_blocks(&piece, cache, &lists, out)?;
            sent += here;
        }
        drop(plans);
        self.mask_workspace(gpu).lists = lists;
        counted.extend(costs.into_iter().map(|cost| BlockCost::planning(cost, rows.heads)));
        counted.into_iter().for_each(|cost| self.count(layer, cost));
        Ok(true)
    }

    /// Adds the counters of a device's searches at the layers it holds, after the whole prompt has been read.
    ///
    /// # Errors
    /// If the device failed.
    pub fn collect_device_counters(
        &mut self,
        gpu: &Gpu,
        layers: Range<usize>,
        (heads, shape): (usize, KvShape),
    ) -> Result<(), GpuError> {
        if matches!(self.pattern, PrefillPattern::Rows(_)) {
            return self.collect_row_counters(gpu, layers, (heads, shape));
        }
        self.collect_line_counters(gpu, layers.clone(), (heads, shape.d))?;
        let Some(buffer) = self.mask_workspace(gpu).counters.take() else { return Ok(()) };
        // If lines are added to the lists, what rows see of them is counted together with the lines.
        let (mask, counts_seen) = match self.pattern {
            PrefillPattern::Blocks(mask) => (mask, true),
            PrefillPattern::Whole(mask) => match mask.lined().and_then(LinedMask::searched) {
                Some(mask) => (mask, false),
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        let Some(form) = mask.device_form() else { return Ok(()) };
        let mut counters = vec![0u64; buffer.bytes() / size_of::<u64>()];
        gpu.download(&buffer, 0, &mut counters)?;
        let lists = form.lists(heads, shape.kv_heads);
        let of_layers = counters.chunks_exact(2 * heads).enumerate().filter(|(layer, _)| layers.contains(layer));
        for (layer, counters) in of_layers {
            let products = counters[..2 * lists].iter().step_by(2).sum();
            let seen = counters[1..2 * lists].iter().step_by(2).map(|seen| if counts_seen { *seen } else { 0 });
            let attended = seen.flat_map(|seen| vec![seen as usize; heads / lists]).collect();
            self.count(layer, BlockCost::new(attended, 0, 0, shape.d).with(form.cost(products, shape.d)));
        }
        Ok(())
    }

    pub(super) fn unseen(
        &self,
        layer: usize,
        (kv_head, group): (usize, usize),
        (first, rows): (usize, usize),
        d: usize,
    ) -> QueryBlock<'_> {
        QueryBlock {
            layer,
            share: self.policy.schedule.share(&self.dense, layer),
            seed: head_seed(self.seed, layer, kv_head),
            ..QueryBlock::unseen(self.policy, (kv_head, group), (first, rows), d)
        }
    }

    /// Uploads the lists of blocks whose mask follows from their position, and returns the cost of attending them.
    /// `None` if a mask has single-row tokens, for which no memory is planned here, or diagonals that differ between
    /// blocks.
    fn place(
        &self,
        gpu: &Gpu,
        to: &mut BlockLists,
        layer: usize,
        (block_rows, masks): (usize, &Placing<'_>),
        rows: &Rows<'_>,
        cache: &Cache<'_>,
    ) -> Result<Option<BlockCost>, GpuError> {
        let placed = self.placed(layer, (block_rows, masks), rows, 0..rows.count.div_ceil(block_rows), cache);
        match placed.iter().flatten().all(|list| list.own.is_empty()) {
            true => send(gpu, to, &placed, block_rows, rows, cache),
            false => Ok(None),
        }
    }

    /// Returns the lists of some blocks, `[block][kv_head]`: one for the group, or one for each of its heads.
    fn placed(
        &self,
        layer: usize,
        (block_rows, masks): (usize, &Placing<'_>),
        rows: &Rows<'_>,
        blocks: Range<usize>,
        cache: &Cache<'_>,
    ) -> Vec<Vec<Placed>> {
        let (kv_heads, group) = (cache.kv_heads, rows.heads / cache.kv_heads);
        let of = |i: usize| {
            let (block, kv_head) = (i / kv_heads, i % kv_heads);
            let first = rows.first + block * block_rows;
            let here = block_rows.min(rows.first + rows.count - first);
            match masks(&self.unseen(layer, (kv_head, group), (first, here), cache.d)) {
                Masks::Shared(mask) => vec![Placed::of(&mask, first)],
                Masks::PerHead(masks) => masks.iter().map(|mask| Placed::of(mask, first)).collect(),
            }
        };
        (blocks.start * kv_heads..blocks.end * kv_heads).into_par_iter().map(of).collect()
    }

    /// Lets the device search the lists, into `to`, and returns the number of tokens that the rows see of their own
    /// bands, summed over rows. `None` if it cannot keep as many key blocks as the mask asks for.
    pub(super) fn search(
        &mut self,
        gpu: &Gpu,
        layer: usize,
        search: &Search<'_>,
        rows: &Rows<'_>,
        cache: &Cache<'_>,
        to: &mut BlockLists,
    ) -> Result<Option<usize>, GpuError> {
        let SearchedRows { blocks, starts, most, stretches } = self.searched(layer, search, rows, cache);
        let shape = search.shape(rows, cache);
        let (tree, sampling) = search.form.search();
        let layers = self.dense.len();
        let MaskWorkspace { searched, counters, .. } = self.mask_workspace(gpu);
        searched.set(gpu, blocks)?;
        let prompt = PromptSearch { tree, sampling, blocks: searched };
        if !gpu.searches_prompt(&prompt, &shape, rows.heads, cache) {
            return Ok(None);
        }
        let counters = match counters {
            Some(counters) => counters,
            None => counters.insert(gpu.upload(&vec![0u64; 2 * layers * rows.heads])?),
        };
        to.resize(gpu, shape, most, starts)?;
        gpu.search_prompt(rows, cache, &prompt, to, (counters, COUNTERS * layer * rows.heads))?;
        Ok(Some(stretches))
    }

    /// Returns the most tokens that a search of the rows finds for a block; `None` if the device cannot keep as many key
    /// blocks as the mask asks for.
    pub(super) fn most_found(
        &mut self,
        gpu: &Gpu,
        layer: usize,
        search: &Search<'_>,
        rows: &Rows<'_>,
        cache: &Cache<'_>,
    ) -> Result<Option<usize>, GpuError> {
        let SearchedRows { blocks, most, .. } = self.searched(layer, search, rows, cache);
        let shape = search.shape(rows, cache);
        let (tree, sampling) = search.form.search();
        let searched = &mut self.mask_workspace(gpu).searched;
        searched.set(gpu, blocks)?;
        let fits = gpu.searches_prompt(&PromptSearch { tree, sampling, blocks: searched }, &shape, rows.heads, cache);
        Ok(fits.then_some(most))
    }

    /// Returns the candidates of each block of rows.
    fn searched(&self, layer: usize, search: &Search<'_>, rows: &Rows<'_>, cache: &Cache<'_>) -> SearchedRows {
        let (form, block_rows, end) = (search.form, search.mask.query_rows(), rows.first + rows.count);
        let group = rows.heads / cache.kv_heads;
        let mut all = SearchedRows::default();
        for first in (rows.first..end).step_by(block_rows) {
            let here = block_rows.min(end - first);
            let (candidates, keep) = form.searched(&self.unseen(layer, (0, group), (first, here), cache.d));
            let keep = keep.min(candidates.len().div_ceil(form.key_block()));
            all.most = all.most.max(candidates.start + (keep * form.key_block()).min(candidates.len()));
            all.starts.extend(vec![candidates.end as u32; here]);
            all.stretches += (first..first + here).map(|position| position + 1 - candidates.end).sum::<usize>();
            all.blocks.push(Searched {
                begin: candidates.start as u32,
                tokens: candidates.len() as u32,
                keep: keep as u32,
            });
        }
        all
    }
}

/// A mask that a device finds by a search.
pub(super) struct Search<'m> {
    mask: &'m dyn BlockMask,
    form: &'m dyn SearchedMask,
}

impl<'m> Search<'m> {
    /// The search of a mask; `None` if a device cannot search with keys and values of this shape.
    pub(super) fn of(mask: &'m dyn BlockMask, shape: KvShape) -> Option<Self> {
        Some(Self { mask, form: mask.device_form().filter(|form| form.fits(shape))? })
    }

    fn shape(&self, rows: &Rows<'_>, cache: &Cache<'_>) -> BlockShape {
        let lists = self.form.lists(rows.heads, cache.kv_heads);
        BlockShape { rows: rows.count, block_rows: self.mask.query_rows(), lists }
    }
}

/// What the blocks of some rows search.
#[derive(Default)]
struct SearchedRows {
    blocks: Vec<Searched>,
    /// Where the band of each row starts.
    starts: Vec<u32>,
    /// The most tokens that are found for a block.
    most: usize,
    /// Number of tokens that the rows see of their own bands, summed over rows.
    stretches: usize,
}

/// Number of tokens in context, summed over rows.
pub(super) fn context(rows: &Rows<'_>) -> usize {
    (rows.first..rows.first + rows.count).map(|position| position + 1).sum()
}

impl PlannedBlock {
    /// Number of blocks to plan next when blocks of `waiting` bytes are waiting. As many as fit if they take as much as
    /// the waiting ones, but at most as many as are waiting, because they may take more. The first blocks are assumed
    /// to take the upper bound.
    fn ahead(&self, waiting: &[usize]) -> usize {
        let room = PLANNED_LIST_BYTES.saturating_sub(waiting.iter().sum());
        match waiting.len() {
            0 => (room / self.bytes(self.own).max(1)).max(1),
            count => (room / (waiting.iter().sum::<usize>() / count).max(1)).min(count),
        }
    }

    /// Number of waiting blocks, of `waiting` bytes, that fit at a time; at least 1.
    fn at_once(waiting: &[usize]) -> usize {
        let sums = waiting.iter().scan(0, |sum, bytes| {
            *sum += bytes;
            Some(*sum)
        });
        sums.take_while(|sum| *sum <= PLANNED_LIST_BYTES).count().max(1)
    }
}

/// Plans further blocks until the waiting ones fill a piece; adds their lists, `[block][kv_head]`, and the bytes of
/// each block.
fn look_ahead(
    of_block: &PlannedBlock,
    (waiting, bytes): (&mut Vec<Vec<Placed>>, &mut Vec<usize>),
    unsent: Range<usize>,
    kv_heads: usize,
    placed: &dyn Fn(Range<usize>) -> Vec<Vec<Placed>>,
) {
    loop {
        let next = unsent.start + bytes.len();
        let more = of_block.ahead(bytes).min(unsent.end - next);
        if more == 0 {
            return;
        }
        let further = placed(next..next + more);
        bytes.extend(further.chunks(kv_heads).map(|block| of_block.bytes(own_tokens(block))));
        waiting.extend(further);
    }
}

/// Number of single-row tokens in a block's lists, `[kv_head]`, if heads share no list.
fn own_tokens(block: &[Vec<Placed>]) -> usize {
    let heads = block.iter().map(Vec::len).max().unwrap_or(0);
    let of_lists = |lists: &Vec<Placed>| {
        lists.iter().map(|list| list.own.uploaded()).sum::<usize>() * (heads / lists.len().max(1))
    };
    block.iter().map(of_lists).sum()
}

/// Uploads the lists of all blocks, `[block][kv_head]`, and returns the cost of attending them. `None` if diagonals
/// differ between the blocks of a list.
fn send(
    gpu: &Gpu,
    to: &mut BlockLists,
    placed: &[Vec<Placed>],
    block_rows: usize,
    rows: &Rows<'_>,
    cache: &Cache<'_>,
) -> Result<Option<BlockCost>, GpuError> {
    let group = rows.heads / cache.kv_heads;
    let is_shared = placed.iter().all(|lists| lists.len() == 1);
    let sharing = if is_shared { group } else { 1 };
    let repeats = |lists: &Vec<Placed>| if lists.len() == 1 { group / sharing } else { 1 };
    let placed: Vec<&Placed> =
        placed.iter().flat_map(|lists| lists.iter().flat_map(|list| vec![list; repeats(lists)])).collect();
    let lists = rows.heads / sharing;
    let shape = BlockShape { rows: rows.count, block_rows, lists };
    let starts_of = |list: usize| placed.iter().skip(list).step_by(lists).flat_map(|placed| &placed.starts);
    let is_alike = placed.chunks(lists).all(|block| block.iter().all(|list| list.starts == block[0].starts));
    let starts = (0..if is_alike { 1 } else { lists }).flat_map(starts_of).copied().collect();
    let mut attended = vec![0; rows.heads];
    for (i, placed) in placed.iter().enumerate() {
        attended[i % lists * sharing..][..sharing].iter_mut().for_each(|sum| *sum += placed.seen);
    }
    let most = placed.iter().map(|placed| placed.tokens).max().unwrap_or(0);
    let runs: Vec<&[Run]> = placed.iter().map(|placed| &placed.runs[..]).collect();
    to.resize(gpu, shape, most, starts)?;
    to.write(gpu, &runs)?;
    let Some(diagonals) = diagonals(&placed, lists, rows.first, block_rows) else { return Ok(None) };
    if diagonals.iter().any(|distances| !distances.is_empty()) {
        to.set_diagonals(gpu, &diagonals, rows.first + rows.count - 1)?;
    }
    set_own(gpu, to, &placed, lists, rows, cache)?;
    Ok(Some(BlockCost::new(attended, context(rows), rows.count, cache.d)))
}

/// Uploads what single rows attend, from `placed` `[block][list]`. The first rows of a prompt bring the shared tokens, which stay for all others.
fn set_own(
    gpu: &Gpu,
    to: &mut BlockLists,
    placed: &[&Placed],
    lists: usize,
    rows: &Rows<'_>,
    cache: &Cache<'_>,
) -> Result<(), GpuError> {
    let tokens: Option<Vec<&PerRowTokens>> = placed.iter().map(|placed| placed.own.tokens()).collect();
    if let Some(tokens) = tokens {
        return to.set_own(gpu, &tokens, (rows.heads, cache.d));
    }
    let slices: Option<Vec<_>> = placed.iter().map(|placed| placed.own.slices()).collect();
    let slices = slices.expect("all blocks of a plan have slices, or none has");
    let (shared, slices): (Vec<&Arc<SharedTokens>>, Vec<&PerRowSlices>) = slices.into_iter().unzip();
    let is_same = |(i, of): (usize, &&Arc<SharedTokens>)| Arc::ptr_eq(of, shared[i % lists]);
    assert!(shared.iter().enumerate().all(is_same), "all blocks of a list have slices of the same tokens");
    if rows.first == 0 {
        let of_lists = shared[..lists].iter();
        let of_lists: Vec<SharedList<'_>> = of_lists
            .map(|of| SharedList { tokens: of.tokens(), log_weights: of.log_weights(), groups: of.groups() })
            .collect();
        to.set_shared(gpu, &of_lists)?;
    }
    to.set_slices(gpu, &slices, (rows.heads, cache.d))
}

/// Computes the masks of a block from its position, without queries and keys.
type Placing<'a> = dyn Fn(&QueryBlock<'_>) -> Masks + Sync + 'a;

/// The diagonals of each list, from `placed` `[block][list]` with the first row at `first`. They are those of its last
/// block if every block has exactly those that reach it; otherwise `None`.
fn diagonals<'p>(placed: &[&'p Placed], lists: usize, first: usize, block_rows: usize) -> Option<Vec<&'p [usize]>> {
    let last = &placed[placed.len() - lists..];
    let is_alike = |(i, of): (usize, &&Placed)| {
        let (block, all) = (i / lists, &last[i % lists].slashes);
        let reached = all.partition_point(|distance| *distance < first + (block + 1) * block_rows);
        of.slashes[..] == all[..reached]
    };
    let is_fit = placed.iter().enumerate().all(is_alike);
    is_fit.then(|| last.iter().map(|of| &of.slashes[..]).collect())
}

/// One token list of a block, ready for upload.
struct Placed {
    runs: Vec<Run>,
    /// Number of tokens in the list.
    tokens: usize,
    /// Distances of diagonals that reach the block, ascending.
    slashes: Vec<usize>,
    /// Start of each row's band.
    starts: Vec<u32>,
    /// What single rows attend besides.
    own: OfRows,
    /// Number of attended tokens, summed over rows.
    seen: usize,
}

/// Tokens of single rows.
enum OfRows {
    /// The tokens of each row; empty if no row has any.
    Tokens(PerRowTokens),
    /// Slices of shared tokens.
    Slices(Arc<SharedTokens>, PerRowSlices),
}

impl OfRows {
    fn tokens(&self) -> Option<&PerRowTokens> {
        match self {
            Self::Tokens(tokens) => Some(tokens),
            Self::Slices(..) => None,
        }
    }

    fn slices(&self) -> Option<(&Arc<SharedTokens>, &PerRowSlices)> {
        match self {
            Self::Tokens(_) => None,
            Self::Slices(of, slices) => Some((of, slices)),
        }
    }

    fn is_empty(&self) -> bool {
        self.uploaded() == 0 && self.slices().is_none()
    }

    /// Number of tokens that are uploaded with each block.
    fn uploaded(&self) -> usize {
        self.tokens().map_or(0, PerRowTokens::tokens)
    }
}

impl Placed {
    /// Makes the list of a mask whose first row is at `first`.
    fn of(mask: &Mask, first: usize) -> Self {
        let end = first + mask.starts.len();
        let slashes = mask.slashes[..mask.slashes.partition_point(|distance| *distance < end)].to_vec();
        let starts: Vec<u32> =
            (first..).zip(&mask.starts).map(|(position, start)| (*start).min(position) as u32).collect();
        let seen = |(position, start): (usize, &u32)| {
            let listed = mask.common.partition_point(|token| token < start);
            // Diagonals that meet the row before its band.
            let reached = slashes.partition_point(|distance| *distance <= position);
            let met = reached - slashes.partition_point(|distance| *distance + (*start as usize) <= position);
            listed + met + position + 1 - *start as usize
        };
        let (own, of_own) = own_rows(mask, first, &starts, &slashes);
        let parts = (first..).zip(&starts).map(seen).sum::<usize>() + of_own;
        let seen = parts - listed_on_diagonals(&mask.common, &slashes, first, &starts);
        Self { runs: Run::of(&mask.common), tokens: mask.common.len(), slashes, starts, own, seen }
    }
}

/// Number of pairs of a row and a token before its band that both the list and a diagonal give to the row. Rows start
/// at `first`, their bands at `starts`, which ascend; `common` and `slashes` ascend, too.
fn listed_on_diagonals(common: &[u32], slashes: &[usize], first: usize, starts: &[u32]) -> usize {
    let (Some(&start), false) = (starts.first(), slashes.is_empty()) else { return 0 };
    let end = first + starts.len();
    let (before, behind) = common.split_at(common.partition_point(|token| *token < start));
    // For a token before all bands, count the diagonals whose distance is that of some row from the token. These
    // distances, `first - token..end - token`, fall as tokens ascend.
    let (mut below_end, mut below_first) = (slashes.len(), slashes.len());
    let mut met = 0;
    for token in before {
        let token = *token as usize;
        below_end -= slashes[..below_end].iter().rev().take_while(|distance| **distance >= end - token).count();
        below_first -= slashes[..below_first].iter().rev().take_while(|distance| **distance >= first - token).count();
        met += below_end - below_first;
    }
    let late = |(position, start): (usize, &u32)| {
        let seen = behind.iter().take_while(|token| *token < start);
        seen.filter(|token| slashes.binary_search(&(position - **token as usize)).is_ok()).count()
    };
    met + (first..).zip(starts).map(late).sum::<usize>()
}

/// What single rows attend besides list, band and diagonals, and the number of these tokens. Rows start at `first`, their bands at
/// `starts`; `slashes` are the distances of diagonals.
fn own_rows(mask: &Mask, first: usize, starts: &[u32], slashes: &[usize]) -> (OfRows, usize) {
    let Some(slices) = &mask.slices else {
        let tokens = own_tokens_of_rows(mask, first, starts, slashes);
        let count = tokens.tokens();
        return (OfRows::Tokens(tokens), count);
    };
    let sink = mask.common.len() as u32;
    assert!(
        mask.common.last().is_none_or(|last| last + 1 == sink) && slashes.is_empty() && mask.own.is_empty(),
        "rows with slices attend besides a sink and a band alone"
    );
    let (mut rows, mut count) = (PerRowSlices::default(), 0);
    for (start, of_row) in starts.iter().zip(&slices.rows) {
        let seen = of_row.iter().map(|slice| slices.of.clipped(slice, sink..*start));
        let seen = seen.filter(|slice| !slice.range.is_empty()).map(|slice| {
            count += slices.of.count(&slice);
            let TokenSlice { range, without } = slice;
            Slice { begin: range.start, end: range.end, without: without.unwrap_or(Slice::ALL) }
        });
        rows.add_row(seen, *start as usize);
    }
    (OfRows::Slices(slices.of.clone(), rows), count)
}

/// The tokens that single rows attend besides list, band and diagonals; of duplicates, the first counts. Rows start at
/// `first`, their bands at `starts`; `slashes` are the distances of diagonals.
fn own_tokens_of_rows(mask: &Mask, first: usize, starts: &[u32], slashes: &[usize]) -> PerRowTokens {
    let mut rows = PerRowTokens::default();
    if mask.own.iter().all(Vec::is_empty) {
        return rows;
    }
    let end = first + starts.len();
    let mut is_slash = vec![false; if slashes.is_empty() { 0 } else { end }];
    slashes.iter().for_each(|distance| is_slash[*distance] = true);
    let mut is_known = vec![false; end];
    mask.common.iter().take_while(|token| (**token as usize) < end).for_each(|token| is_known[*token as usize] = true);
    for ((position, start), own) in (first..).zip(starts).zip(&mask.own) {
        let mut found: Vec<(u32, f32)> = Vec::with_capacity(own.len());
        for WeightedToken { token, log_weight } in own {
            let on_slash = || is_slash.get(position - *token as usize) == Some(&true);
            // A band ends with its row, so no token follows it.
            if token < start && !is_known[*token as usize] && !on_slash() {
                is_known[*token as usize] = true;
                found.push((*token, *log_weight));
            }
        }
        found.iter().for_each(|(token, _)| is_known[*token as usize] = false);
        rows.add_row(found.into_iter());
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefill::gpu_memory::OWN_TOKEN_BYTES;
    use crate::prefill::testing::{any_mask, resolved};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// The tokens that a row of a placed list sees, with the biases on their logits, each as often as it is seen.
    fn seen(placed: &Placed, mask: &Mask, (row, position): (usize, usize)) -> Vec<(usize, f32)> {
        let start = placed.starts[row] as usize;
        let (common, slashes) = (mask.common.iter().map(|token| *token as usize), placed.slashes.iter());
        let met = slashes.filter_map(|distance| position.checked_sub(*distance));
        let before: std::collections::BTreeSet<usize> = common.chain(met).filter(|token| *token < start).collect();
        let plain = before.into_iter().chain(start..position + 1).map(|token| (token, 0.0));
        let own: Vec<(usize, f32)> = match &placed.own {
            OfRows::Tokens(tokens) => {
                let of_row = tokens.rows().nth(row).into_iter();
                of_row.flat_map(|(t, w)| t.iter().map(|t| *t as usize).zip(w.iter().copied())).collect()
            }
            OfRows::Slices(of, slices) => {
                let places = slices.rows().nth(row).unwrap().iter().flat_map(|slice| {
                    (slice.begin as usize..slice.end as usize).filter(|place| of.groups()[*place] != slice.without)
                });
                places.map(|place| (of.tokens()[place] as usize, of.log_weights()[place])).collect()
            }
        };
        plain.chain(own).collect()
    }

    proptest! {
        #[test]
        fn rows_see_on_a_device_what_they_see_on_the_host((first, mask) in any_mask(), repeats in 1usize..3) {
            // Naming a token again must not change its weight.
            let again = |own: &Vec<WeightedToken>| -> Vec<WeightedToken> {
                let more = own.iter().rev().map(|own| WeightedToken { log_weight: own.log_weight + 1.0, ..*own });
                own.iter().copied().chain(more.take((repeats - 1) * own.len())).collect()
            };
            let mask = Mask { own: mask.own.iter().map(again).collect(), ..mask };
            let placed = Placed::of(&mask, first);
            let mut attended = 0;
            for (row, expected) in resolved(&mask, first).into_iter().enumerate() {
                let position = first + row;
                let seen = seen(&placed, &mask, (row, position));
                prop_assert_eq!(seen.len(), mask.row_tokens(first, position).len(), "row {} of {:?}", row, mask);
                attended += seen.len();
                prop_assert_eq!(
                    seen.into_iter().collect::<BTreeMap<_, _>>(),
                    expected.into_iter().collect::<BTreeMap<_, _>>(),
                    "row {} of {:?}", row, mask
                );
            }
            prop_assert_eq!(placed.seen, attended);
        }
    }

    /// A list whose row has `own` single-row tokens.
    fn list(first: usize, own: usize) -> Placed {
        let own = (0..own as u32).map(WeightedToken::plain).collect();
        Placed::of(&Mask { own: vec![own], ..Mask::new(Vec::new(), vec![first]) }, first)
    }

    #[test]
    fn own_tokens_are_counted_for_each_list_that_is_sent() {
        assert_eq!(own_tokens(&[vec![list(90, 3)], vec![list(90, 5)]]), 8);
        assert_eq!(own_tokens(&[vec![list(90, 3), list(90, 4)], vec![list(90, 1), list(90, 2)]]), 10);
        // If another KV head has lists by head, a shared list is uploaded once for each head.
        assert_eq!(own_tokens(&[vec![list(90, 3)], vec![list(90, 1), list(90, 2)]]), 9);
    }

    #[test]
    fn blocks_wait_in_their_order_until_they_fill_a_piece() {
        struct Wide;
        impl PromptMask for Wide {
            fn query_rows(&self) -> usize {
                1
            }
            fn own_tokens(&self, tokens: usize) -> usize {
                tokens
            }
            fn plan<'p>(&'p self, _: &QueryBlock<'p>, _: &mut Cost) -> crate::PromptPlan<'p> {
                unreachable!("the test asks for no plan")
            }
        }
        // A block takes a sixteenth of a piece, plus its single-row tokens.
        let of_block = PlannedBlock::of(&Wide, 1, 64, 8 << 20);
        let (kv_heads, blocks) = (2, 40);
        let placed = |some: Range<usize>| -> Vec<Vec<Placed>> {
            some.flat_map(|block| (0..kv_heads).map(move |_| vec![list(100 + block, block)])).collect()
        };
        let (mut waiting, mut bytes, mut sent, mut pieces) = (Vec::new(), Vec::new(), 0, Vec::new());
        while sent < blocks {
            look_ahead(&of_block, (&mut waiting, &mut bytes), sent..blocks, kv_heads, &placed);
            assert_eq!(waiting.len(), kv_heads * bytes.len());
            let here = PlannedBlock::at_once(&bytes);
            for (i, bytes) in bytes.drain(..here).enumerate() {
                assert_eq!(bytes, of_block.bytes(2 * (sent + i)));
            }
            for (i, lists) in waiting.drain(..kv_heads * here).enumerate() {
                assert_eq!(lists[0].starts, [100 + (sent + i / kv_heads) as u32]);
            }
            pieces.push(here);
            sent += here;
        }
        assert_eq!((pieces, waiting.len()), (vec![15, 15, 10], 0));
    }

    #[test]
    fn a_prompt_is_planned_in_pieces_that_fit() {
        // Bytes of a block: the same for all; increasing up to the bound; large for a few.
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
}

//! Sparse attention of a prompt on the device that reads it: what blocks of rows attend is worked out on the host where it follows
//! from where they are, searched for on the device, or, for a mask over the whole prompt, planned on the host, which is shown
//! queries and keys for that; then a kernel gathers it. Masks with tokens of a row's own are not attended here.

use rayon::prelude::*;

use super::calibration::PrefillChunk;
use super::device::MaskRoom;
use super::engine::head_seed;
use super::method::Positions;
use super::prefill::{
    BlockCost, BlockMask, Mask, Masks, PLANNED_LIST_BYTES, PrefillPattern, PromptMask, QueryBlock, SearchedMask,
    SparsePrefill, queries_by_group,
};
use crate::cost::Cost;
use crate::kernels::cuda::{
    BlockLists, BlockShape, Buffer, Cache, Gpu, GpuError, PromptSearch, Rows, Run, Searched, Timeline,
};
use crate::kv::KvShape;

/// Bytes of a pair of counters.
const COUNTERS: usize = 2 * size_of::<u64>();

impl SparsePrefill<'_> {
    /// Attends rows of a layer on the device, into `out` `[row][head][d]`; the first begins a block, and `chunk` shows the same rows to
    /// the host. `false`, and nothing done, if attending takes the host. A timeline is marked between finding out what is attended
    /// and attending it; where rows are attended in pieces, at the end of one and at the beginning of the next as well.
    ///
    /// # Errors
    /// If the device fails.
    pub fn attend_there(
        &mut self,
        gpu: &Gpu,
        chunk: &PrefillChunk<'_>,
        rows: &Rows<'_>,
        cache: &Cache<'_>,
        out: &mut Buffer,
        mut timeline: Option<&mut Timeline>,
    ) -> Result<bool, GpuError> {
        let (layer, shape) = (chunk.layer, chunk.shape());
        let mut mark = || timeline.as_mut().map_or(Ok(()), |timeline| gpu.mark(timeline));
        let last = rows.first + rows.count - 1;
        if self.dense[layer] && !matches!(self.positions, Positions::Grouped(grouping) if grouping.far(last) > 0) {
            mark()?;
            gpu.prefill_attention(rows, cache, out)?;
            let context = context(rows);
            self.count(layer, BlockCost::new(vec![context; rows.heads], context, rows.count, cache.d));
            return Ok(true);
        }
        if self.dense[layer] || self.positions != Positions::Original || !gpu.attends_blocks(cache.storage, cache.d) {
            return Ok(false);
        }
        let mask = match self.pattern {
            PrefillPattern::Blocks(mask) => mask,
            PrefillPattern::Whole(mask) if !mask.has_own_tokens() => {
                return self.attend_planned(gpu, chunk, mask, (rows, cache), out, &mut mark);
            }
            _ => return Ok(false),
        };
        let is_known = match (mask.is_blind(), mask.device_form().filter(|form| form.fits(shape))) {
            (true, _) => {
                let masks = |block: &QueryBlock<'_>| mask.masks(block, &mut Cost::default());
                let mut lists = std::mem::take(&mut self.there.lists);
                let placed = self.place(gpu, &mut lists, layer, (mask.query_rows(), &masks), rows, cache)?;
                self.there.lists = lists;
                let is_placed = placed.is_some();
                placed.into_iter().for_each(|cost| self.count(layer, cost));
                is_placed
            }
            (false, Some(form)) => self.search(gpu, layer, (mask, form), rows, cache)?,
            (false, None) => false,
        };
        if is_known {
            mark()?;
            gpu.attend_blocks(rows, cache, &self.there.lists, out)?;
        }
        Ok(is_known)
    }

    /// All rows of a prompt by a mask that the host plans: in pieces of as many rows as lists of all tokens have room for.
    fn attend_planned(
        &mut self,
        gpu: &Gpu,
        chunk: &PrefillChunk<'_>,
        mask: &dyn PromptMask,
        (rows, cache): (&Rows<'_>, &Cache<'_>),
        out: &mut Buffer,
        mark: &mut dyn FnMut() -> Result<(), GpuError>,
    ) -> Result<bool, GpuError> {
        let mut lists = std::mem::take(&mut self.there.lists);
        chunk.show();
        let queries = queries_by_group(chunk);
        let (plans, costs) = self.plan(chunk, mask, &queries);
        let masks = |block: &QueryBlock<'_>| plans[block.kv_head](block);
        let block_rows = mask.query_rows();
        let at_once = block_rows * (PLANNED_LIST_BYTES / (size_of::<u32>() * rows.heads * rows.count)).max(1);
        let layer = chunk.layer;
        let mut counted = Vec::new();
        for skip in (0..rows.count).step_by(at_once) {
            let count = at_once.min(rows.count - skip);
            let piece = Rows { skip: rows.skip + skip, count, first: rows.first + skip, ..*rows };
            if skip > 0 {
                mark()?;
                mark()?;
            }
            let placed = self.place(gpu, &mut lists, layer, (block_rows, &masks), &piece, cache)?;
            counted.push(placed.expect("a mask with tokens of a row's own, or diagonals of a block's own, says so"));
            mark()?;
            gpu.attend_blocks(&piece, cache, &lists, out)?;
        }
        drop(plans);
        self.there.lists = lists;
        counted.extend(costs.into_iter().map(|cost| BlockCost::planning(cost, rows.heads)));
        counted.into_iter().for_each(|cost| self.count(layer, cost));
        Ok(true)
    }

    /// Counts what the device found, when all of the prompt has been read.
    ///
    /// # Errors
    /// If the device failed.
    pub fn settle_there(&mut self, gpu: &Gpu, (heads, shape): (usize, KvShape)) -> Result<(), GpuError> {
        let Some(buffer) = self.there.counters.take() else { return Ok(()) };
        let PrefillPattern::Blocks(mask) = self.pattern else { return Ok(()) };
        let Some(form) = mask.device_form() else { return Ok(()) };
        let mut counters = vec![0u64; buffer.bytes() / size_of::<u64>()];
        gpu.download(&buffer, 0, &mut counters)?;
        let lists = form.lists(heads, shape.kv_heads);
        for (layer, counters) in counters.chunks_exact(2 * heads).enumerate().take(self.dense.len()) {
            let products = counters[..2 * lists].iter().step_by(2).sum();
            let seen = counters[1..2 * lists].iter().step_by(2);
            let attended = seen.flat_map(|seen| vec![*seen as usize; heads / lists]).collect();
            self.count(layer, BlockCost::new(attended, 0, 0, shape.d).with(form.cost(products, shape.d)));
        }
        Ok(())
    }

    fn unseen(
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

    /// Lists of blocks of so many rows whose place says what they attend, and what that is. `None` if a mask has more than a list,
    /// a stretch and diagonals that are those of all of its blocks.
    fn place(
        &self,
        gpu: &Gpu,
        to: &mut BlockLists,
        layer: usize,
        (block_rows, masks): (usize, &Placing<'_>),
        rows: &Rows<'_>,
        cache: &Cache<'_>,
    ) -> Result<Option<BlockCost>, GpuError> {
        let (kv_heads, group) = (cache.kv_heads, rows.heads / cache.kv_heads);
        let blocks = rows.count.div_ceil(block_rows);
        let of = |i: usize| {
            let (block, kv_head) = (i / kv_heads, i % kv_heads);
            let first = rows.first + block * block_rows;
            let here = block_rows.min(rows.first + rows.count - first);
            match masks(&self.unseen(layer, (kv_head, group), (first, here), cache.d)) {
                Masks::Shared(mask) => Placed::of(&mask, first).map(|placed| vec![placed]),
                Masks::PerHead(masks) => masks.iter().map(|mask| Placed::of(mask, first)).collect(),
            }
        };
        let placed: Option<Vec<Vec<Placed>>> = (0..blocks * kv_heads).into_par_iter().map(of).collect();
        let Some(placed) = placed else { return Ok(None) };
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
        Ok(Some(BlockCost::new(attended, context(rows), rows.count, cache.d)))
    }

    /// Lists that the device searches for. `false` if it cannot keep as much as is searched for.
    fn search(
        &mut self,
        gpu: &Gpu,
        layer: usize,
        (mask, form): (&dyn BlockMask, &dyn SearchedMask),
        rows: &Rows<'_>,
        cache: &Cache<'_>,
    ) -> Result<bool, GpuError> {
        let (block_rows, end) = (mask.query_rows(), rows.first + rows.count);
        let group = rows.heads / cache.kv_heads;
        let shape = BlockShape { rows: rows.count, block_rows, lists: form.lists(rows.heads, cache.kv_heads) };
        let (mut blocks, mut starts, mut most, mut stretches) = (Vec::new(), Vec::new(), 0, 0);
        for first in (rows.first..end).step_by(block_rows) {
            let here = block_rows.min(end - first);
            let (candidates, keep) = form.searched(&self.unseen(layer, (0, group), (first, here), cache.d));
            let keep = keep.min(candidates.len().div_ceil(form.key_block()));
            most = most.max(candidates.start + (keep * form.key_block()).min(candidates.len()));
            starts.extend(vec![candidates.end as u32; here]);
            stretches += (first..first + here).map(|position| position + 1 - candidates.end).sum::<usize>();
            blocks.push(Searched {
                begin: candidates.start as u32,
                tokens: candidates.len() as u32,
                keep: keep as u32,
            });
        }
        self.there.searched.set(gpu, blocks)?;
        let (tree, sampling) = form.search();
        let layers = self.dense.len();
        let MaskRoom { lists, searched, counters } = &mut self.there;
        let search = PromptSearch { tree, sampling, blocks: searched };
        if !gpu.searches_prompt(&search, &shape, rows.heads, cache) {
            return Ok(false);
        }
        let counters = match counters {
            Some(counters) => counters,
            None => counters.insert(gpu.upload(&vec![0u64; 2 * layers * rows.heads])?),
        };
        lists.resize(gpu, shape, most, starts)?;
        gpu.search_prompt(rows, cache, &search, lists, (counters, COUNTERS * layer * rows.heads))?;
        // What was found is counted when the device says how much it is.
        self.count(layer, BlockCost::new(vec![stretches; rows.heads], context(rows), rows.count, cache.d));
        Ok(true)
    }
}

/// Pairs of a row and a token up to it.
fn context(rows: &Rows<'_>) -> usize {
    (rows.first..rows.first + rows.count).map(|position| position + 1).sum()
}

/// What says which tokens a block attends, of which nobody looks at queries or keys.
type Placing<'a> = dyn Fn(&QueryBlock<'_>) -> Masks + Sync + 'a;

/// The diagonals of each list, `placed` `[block][list]` from position `first` on: those of its last block, where every block has what
/// reaches it of them. `None` if one does not.
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

/// A list of a block that was placed.
struct Placed {
    runs: Vec<Run>,
    /// Tokens of the list.
    tokens: usize,
    /// Distances of diagonals that reach the block, ascending.
    slashes: Vec<usize>,
    /// Of each row.
    starts: Vec<u32>,
    /// Tokens that the rows attend together.
    seen: usize,
}

impl Placed {
    /// What a mask leaves rows from position `first` on; `None` if some of it is a row's own.
    fn of(mask: &Mask, first: usize) -> Option<Self> {
        if mask.own.iter().any(|own| !own.is_empty()) {
            return None;
        }
        let end = first + mask.starts.len();
        let slashes = mask.slashes[..mask.slashes.partition_point(|distance| *distance < end)].to_vec();
        let mut is_slash = vec![false; if slashes.is_empty() { 0 } else { end }];
        slashes.iter().for_each(|distance| is_slash[*distance] = true);
        let starts: Vec<u32> =
            (first..).zip(&mask.starts).map(|(position, start)| (*start).min(position) as u32).collect();
        let seen = |(position, start): (usize, &u32)| {
            let listed = &mask.common[..mask.common.partition_point(|token| token < start)];
            // Diagonals that meet the row before its stretch.
            let reached = slashes.partition_point(|distance| *distance <= position);
            let met = reached - slashes.partition_point(|distance| *distance + (*start as usize) <= position);
            let both = match met {
                0 => 0,
                _ => listed.iter().filter(|token| is_slash[position - **token as usize]).count(),
            };
            listed.len() + met - both + position + 1 - *start as usize
        };
        let seen = (first..).zip(&starts).map(seen).sum();
        Some(Self { runs: Run::of(&mask.common), tokens: mask.common.len(), slashes, starts, seen })
    }
}

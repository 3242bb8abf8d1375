//! Sparse attention of a prompt on the device that reads it: what blocks of rows attend is worked out on the host where it follows
//! from where they are, or searched for on the device; then a kernel gathers it. Masks that the host has to look at queries and
//! keys for are not attended here.

use rayon::prelude::*;

use super::device::SearchedMask;
use super::engine::head_seed;
use super::method::Positions;
use super::prefill::{BlockCost, BlockMask, Mask, Masks, PrefillPattern, QueryBlock, SparsePrefill};
use crate::cost::Cost;
use crate::kernels::cuda::{
    BlockLists, BlockShape, Buffer, Cache, Gpu, GpuError, Mirrored, PromptSearch, Rows, Run, Searched, Timeline,
};
use crate::kv::KvShape;

/// What a device holds while a prompt is read.
#[derive(Default)]
pub(super) struct There {
    lists: BlockLists,
    searched: Mirrored<Searched>,
    /// Products that searches took, and tokens that rows see of what was found: u64 `[layer][head][2]`.
    counters: Option<Buffer>,
}

/// Bytes of a pair of counters.
const COUNTERS: usize = 2 * size_of::<u64>();

impl SparsePrefill<'_> {
    /// Attends rows of a layer on the device, into `out` `[row][head][d]`; the first begins a block. `false`, and nothing done, if
    /// that takes the host. A timeline is marked between finding out what is attended and attending it.
    ///
    /// # Errors
    /// If the device fails.
    pub fn attend_there(
        &mut self,
        gpu: &Gpu,
        (layer, shape): (usize, KvShape),
        rows: &Rows<'_>,
        cache: &Cache<'_>,
        out: &mut Buffer,
        timeline: Option<&mut Timeline>,
    ) -> Result<bool, GpuError> {
        let mark = || timeline.map_or(Ok(()), |timeline| gpu.mark(timeline));
        let last = rows.first + rows.count - 1;
        if self.dense[layer] && !matches!(self.positions, Positions::Grouped(grouping) if grouping.far(last) > 0) {
            mark()?;
            gpu.prefill_attention(rows, cache, out)?;
            let context = context(rows);
            self.count(layer, BlockCost::new(vec![context; rows.heads], context, rows.count, cache.d));
            return Ok(true);
        }
        let PrefillPattern::Blocks(mask) = self.pattern else { return Ok(false) };
        if self.dense[layer] || self.positions != Positions::Original || !gpu.attends_blocks(cache.storage, cache.d) {
            return Ok(false);
        }
        let is_known = match (mask.is_blind(), mask.device_form().filter(|form| form.fits(shape))) {
            (true, _) => self.place(gpu, layer, mask, rows, cache)?,
            (false, Some(form)) => self.search(gpu, layer, (mask, form), rows, cache)?,
            (false, None) => false,
        };
        if is_known {
            mark()?;
            gpu.attend_blocks(rows, cache, &self.there.lists, out)?;
        }
        Ok(is_known)
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
            seed: head_seed(self.seed, layer, kv_head),
            ..QueryBlock::unseen(self.policy, (kv_head, group), (first, rows), d)
        }
    }

    /// Lists of blocks whose place says what they attend. `false` if a mask has more than a list and a stretch.
    fn place(
        &mut self,
        gpu: &Gpu,
        layer: usize,
        mask: &dyn BlockMask,
        rows: &Rows<'_>,
        cache: &Cache<'_>,
    ) -> Result<bool, GpuError> {
        let (kv_heads, group) = (cache.kv_heads, rows.heads / cache.kv_heads);
        let block_rows = mask.query_rows();
        let blocks = rows.count.div_ceil(block_rows);
        let of = |i: usize| {
            let (block, kv_head) = (i / kv_heads, i % kv_heads);
            let first = rows.first + block * block_rows;
            let here = block_rows.min(rows.first + rows.count - first);
            mask.masks(&self.unseen(layer, (kv_head, group), (first, here), cache.d), &mut Cost::default())
        };
        let masks: Vec<Masks> = (0..blocks * kv_heads).into_par_iter().map(of).collect();
        let is_shared = masks.iter().all(|masks| matches!(masks, Masks::Shared(_)));
        let sharing = if is_shared { group } else { 1 };
        let masks: Vec<&Mask> = masks.iter().flat_map(|masks| lists_of(masks, group / sharing)).collect();
        if masks.iter().any(|mask| !mask.slashes.is_empty() || mask.own.iter().any(|own| !own.is_empty())) {
            return Ok(false);
        }
        let lists = rows.heads / sharing;
        let shape = BlockShape { rows: rows.count, block_rows, lists };
        let mut starts = vec![0; lists * rows.count];
        let mut attended = vec![0; rows.heads];
        for (i, mask) in masks.iter().enumerate() {
            let (block, list) = (i / lists, i % lists);
            for (row, start) in (block * block_rows..).zip(&mask.starts) {
                let position = rows.first + row;
                let start = (*start).min(position);
                starts[list * rows.count + row] = start as u32;
                let seen = mask.common.partition_point(|token| (*token as usize) < start) + position + 1 - start;
                attended[list * sharing..][..sharing].iter_mut().for_each(|sum| *sum += seen);
            }
        }
        let most = masks.iter().map(|mask| mask.common.len()).max().unwrap_or(0);
        let runs: Vec<Vec<Run>> = masks.par_iter().map(|mask| Run::of(&mask.common)).collect();
        self.there.lists.resize(gpu, shape, most, starts)?;
        self.there.lists.write(gpu, &runs)?;
        self.count(layer, BlockCost::new(attended, context(rows), rows.count, cache.d));
        Ok(true)
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
        let There { lists, searched, counters } = &mut self.there;
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

/// The masks of a KV head's lists.
fn lists_of(masks: &Masks, lists: usize) -> Vec<&Mask> {
    match masks {
        Masks::Shared(mask) => vec![mask; lists],
        Masks::PerHead(masks) => masks.iter().collect(),
    }
}

//! Sparse attention of a prompt on the device that reads it: what blocks of rows attend is worked out on the host where it follows
//! from where they are, or searched for on the device; then a kernel gathers it. Masks that the host has to look at queries and
//! keys for are not attended here.

use rayon::prelude::*;

use super::device::MaskRoom;
use super::engine::head_seed;
use super::method::Positions;
use super::prefill::{BlockCost, BlockMask, Mask, Masks, PrefillPattern, QueryBlock, SearchedMask, SparsePrefill};
use crate::cost::Cost;
use crate::kernels::cuda::{BlockShape, Buffer, Cache, Gpu, GpuError, PromptSearch, Rows, Run, Searched, Timeline};
use crate::kv::KvShape;

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
            share: self.policy.schedule.share(&self.dense, layer),
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
            match mask.masks(&self.unseen(layer, (kv_head, group), (first, here), cache.d), &mut Cost::default()) {
                Masks::Shared(mask) => Placed::of(&mask, first).map(|placed| vec![placed]),
                Masks::PerHead(masks) => masks.iter().map(|mask| Placed::of(mask, first)).collect(),
            }
        };
        let placed: Option<Vec<Vec<Placed>>> = (0..blocks * kv_heads).into_par_iter().map(of).collect();
        let Some(placed) = placed else { return Ok(false) };
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

/// A list of a block that was placed.
struct Placed {
    runs: Vec<Run>,
    /// Tokens of the list.
    tokens: usize,
    /// Of each row.
    starts: Vec<u32>,
    /// Tokens that the rows attend together.
    seen: usize,
}

impl Placed {
    /// What a mask leaves rows from position `first` on; `None` if that is more than a list and a stretch.
    fn of(mask: &Mask, first: usize) -> Option<Self> {
        if !mask.slashes.is_empty() || mask.own.iter().any(|own| !own.is_empty()) {
            return None;
        }
        let starts: Vec<u32> =
            (first..).zip(&mask.starts).map(|(position, start)| (*start).min(position) as u32).collect();
        let seen = |(position, start): (usize, &u32)| {
            mask.common.partition_point(|token| token < start) + position + 1 - *start as usize
        };
        let seen = (first..).zip(&starts).map(seen).sum();
        Some(Self { runs: Run::of(&mask.common), tokens: mask.common.len(), starts, seen })
    }
}

//! Prompts that a device reads along lines. The last queries vote on the device, and the host chooses lines by the votes. Then the device
//! joins the lines of each block with what it finds by a search, if the mask has one, and attends them. So neither queries nor keys come
//! to the host, and no lists go to the device.

use std::collections::BTreeMap;
use std::ops::Range;

use rayon::prelude::*;

use crate::cost::Cost;
use crate::kv::KvShape;
use crate::prefill::cost::BlockCost;
use crate::prefill::gpu::{Marking, Search, context};
use crate::prefill::gpu_memory::PLANNED_LIST_BYTES;
use crate::prefill::lines::{AddedLines, LineVotes, vote_flops};
use crate::prefill::mask::LinedMask;
use crate::prefill::sparse_prefill::SparsePrefill;
use spattn_cuda::{BlockLists, BlockShape, Buffer, Cache, Gpu, GpuError, Rows, VerticalLines};

/// Memory of each device, by [`Gpu::id`], because the layers of a model may be on several devices.
type LineWorkspaces = BTreeMap<u64, LineWorkspace>;

/// Device memory of a prompt that is read along lines, kept from layer to layer.
#[derive(Debug, Default)]
struct LineWorkspace {
    /// The tokens that a search finds for blocks of rows.
    found: BlockLists,
    verticals: VerticalLines,
    /// What blocks of rows attend.
    joined: BlockLists,
    /// Logarithms of the sums of the voters' exponentials, f32 `[head][row]`.
    log_sums: Option<Buffer>,
    /// Number of joined tokens that rows attend: u64 `[layer][head]`.
    counters: Option<Buffer>,
    /// Number of joined lists of a block.
    lists: usize,
}

impl LineWorkspace {
    /// Lets the last `voters` rows vote: each query head for tokens, and for distances. Overwrites their rows of `out`.
    fn votes(
        &mut self,
        gpu: &Gpu,
        voters: usize,
        rows: &Rows<'_>,
        cache: &Cache<'_>,
        out: &mut Buffer,
    ) -> Result<Vec<LineVotes>, GpuError> {
        let tokens = rows.count;
        if voters == 0 {
            return Ok(vec![LineVotes::none(tokens); rows.heads]);
        }
        let first = tokens - voters;
        let last = Rows { skip: rows.skip + first, count: voters, first, ..*rows };
        let log_sums = gpu.reserved(&mut self.log_sums, size_of::<f32>() * rows.heads * voters)?;
        gpu.prefill_attention_and_sums(&last, cache, out, log_sums)?;
        let mut masses = [vec![0f32; rows.heads * tokens], vec![0f32; rows.heads * tokens]];
        let [mut by_token, mut by_distance] = [gpu.upload(&masses[0])?, gpu.upload(&masses[1])?];
        gpu.add_attention_mass(&last, cache, log_sums, 0..voters, &mut by_token)?;
        gpu.add_distance_mass(&last, cache, log_sums, 0..voters, &mut by_distance)?;
        gpu.download(&by_token, 0, &mut masses[0])?;
        gpu.download(&by_distance, 0, &mut masses[1])?;
        let [by_token, by_distance] = masses;
        let of_heads = by_token.chunks_exact(tokens).zip(by_distance.chunks_exact(tokens));
        Ok(of_heads.map(|(vertical, slash)| LineVotes { vertical: vertical.to_vec(), slash: slash.to_vec() }).collect())
    }
}

/// The lines of a layer, and what rows attend besides.
struct Lined<'m> {
    layer: usize,
    mask: &'m dyn LinedMask,
    /// Rows of a block.
    block_rows: usize,
    search: Option<Search<'m>>,
    /// The most tokens that a search finds for a block.
    found: usize,
    /// The lines of each list.
    lines: Vec<AddedLines>,
}

impl Lined<'_> {
    /// Upper bound of the number of tokens in a joined list, in a prompt of `tokens` tokens.
    fn most(&self, tokens: usize) -> usize {
        let longest = self.lines.iter().map(|lines| lines.vertical.len()).max().unwrap_or(0);
        (self.found + longest).min(tokens)
    }

    /// Number of rows whose lists fit into the memory for lists, in whole blocks; at least one block.
    fn rows_at_once(&self, tokens: usize) -> usize {
        let bytes = size_of::<u32>() * self.lines.len() * (self.found + self.most(tokens));
        (PLANNED_LIST_BYTES / bytes.max(1)).max(1) * self.block_rows
    }

    /// Returns the diagonals of each list that reach rows before `end`.
    fn diagonals(&self, end: usize) -> Vec<&[usize]> {
        let reaching = |lines: &'_ AddedLines| lines.slashes.partition_point(|distance| *distance < end);
        self.lines.iter().map(|lines| &lines.slashes[..reaching(lines)]).collect()
    }

    /// Number of tokens that the rows with these starts of bands attend in their bands, and by each list's diagonals before their bands.
    fn beside_lists(&self, starts: &[u32]) -> Vec<usize> {
        let of_list = |lines: &AddedLines| {
            // For each distance, the number of diagonals at smaller ones.
            let mut below = vec![0; starts.len() + 1];
            lines
                .slashes
                .iter()
                .filter(|distance| **distance < starts.len())
                .for_each(|distance| below[distance + 1] = 1);
            (1..below.len()).for_each(|distance| below[distance] += below[distance - 1]);
            let of_row = |(position, start): (usize, &u32)| {
                let band = position + 1 - *start as usize;
                band + below[position + 1] - below[band]
            };
            starts.iter().enumerate().map(of_row).sum()
        };
        self.lines.par_iter().map(of_list).collect()
    }
}

impl SparsePrefill<'_> {
    fn line_workspace(&mut self, gpu: &Gpu) -> &mut LineWorkspace {
        self.workspaces_mut().of::<LineWorkspaces>().entry(gpu.id()).or_default()
    }

    /// Attends all rows of a prompt along lines, in pieces of as many rows as the memory for token lists holds. Returns `false` if the
    /// device cannot; then nothing has been done.
    pub(super) fn attend_lined(
        &mut self,
        gpu: &Gpu,
        (layer, shape): (usize, KvShape),
        (mask, block_rows): (&dyn LinedMask, usize),
        (rows, cache): (&Rows<'_>, &Cache<'_>),
        out: &mut Buffer,
        mark: &mut Marking<'_>,
    ) -> Result<bool, GpuError> {
        assert_eq!(rows.first, 0, "lines are chosen by a whole prompt, in one chunk");
        let search = match mask.searched() {
            None => None,
            Some(mask) => match Search::of(mask, shape) {
                Some(search) => Some(search),
                None => return Ok(false),
            },
        };
        let found = match &search {
            None => Some(0),
            Some(search) => self.most_found(gpu, layer, search, rows, cache)?,
        };
        let (Some(found), true) = (found, gpu.joins_lines(rows.count)) else { return Ok(false) };
        let mut workspace = std::mem::take(self.line_workspace(gpu));
        let voters = mask.voters().min(rows.count);
        let votes = workspace.votes(gpu, voters, rows, cache, out)?;
        let (group, policy) = (rows.heads / cache.kv_heads, self.policy);
        let lines = votes.par_chunks(group).flat_map(|votes| mask.choose(votes.to_vec(), policy)).collect();
        let lined = Lined { layer, mask, block_rows, search, found, lines };
        workspace.lists = lined.lines.len();
        let verticals: Vec<&[u32]> = lined.lines.iter().map(|lines| &lines.vertical[..]).collect();
        workspace.verticals.set(gpu, &verticals)?;
        let at_once = lined.rows_at_once(rows.count);
        let mut starts = Vec::with_capacity(rows.count);
        for first in (0..rows.count).step_by(at_once) {
            if first > 0 {
                mark()?;
            }
            let piece = Rows { skip: rows.skip + first, count: at_once.min(rows.count - first), first, ..*rows };
            let of_piece = self.band_starts(&lined, &piece, cache);
            starts.extend_from_slice(&of_piece);
            self.join(gpu, &lined, of_piece, (&piece, cache), &mut workspace)?;
            mark()?;
            gpu.attend_blocks(&piece, cache, &workspace.joined, out)?;
            if first + at_once < rows.count {
                mark()?;
            }
        }
        *self.line_workspace(gpu) = workspace;
        let sharing = rows.heads / lined.lines.len();
        let attended = lined.beside_lists(&starts).into_iter().flat_map(|seen| vec![seen; sharing]).collect();
        let score_flops = rows.heads as u64 * vote_flops(voters, rows.count, cache.d);
        // The tokens of joined lists are counted when the device's counters are collected.
        let cost = BlockCost::new(attended, context(rows), rows.count, cache.d);
        self.count(layer, cost.with(Cost { score_flops, ..Cost::default() }));
        Ok(true)
    }

    /// Joins the lists of some rows with the lines.
    fn join(
        &mut self,
        gpu: &Gpu,
        lined: &Lined<'_>,
        starts: Vec<u32>,
        (rows, cache): (&Rows<'_>, &Cache<'_>),
        workspace: &mut LineWorkspace,
    ) -> Result<(), GpuError> {
        let &Lined { layer, block_rows, ref search, ref lines, .. } = lined;
        let LineWorkspace { found, verticals, joined, counters, .. } = workspace;
        if let Some(search) = search {
            let searched = self.search(gpu, layer, search, rows, cache, found)?;
            assert!(searched.is_some(), "a search that fits all rows fits some of them");
        }
        let (end, layers) = (rows.first + rows.count, self.dense.len());
        joined.resize(gpu, BlockShape { rows: rows.count, block_rows, lists: lines.len() }, lined.most(end), starts)?;
        let diagonals = lined.diagonals(end);
        if diagonals.iter().any(|distances| !distances.is_empty()) {
            joined.set_diagonals(gpu, &diagonals, end - 1)?;
        }
        let counters = match counters {
            Some(counters) => counters,
            None => counters.insert(gpu.upload(&vec![0u64; layers * rows.heads])?),
        };
        let found = search.is_some().then_some(&*found);
        gpu.join_lines(rows.first, found, verticals, joined, (counters, size_of::<u64>() * layer * rows.heads))
    }

    /// Returns the start of the band of each of some rows.
    fn band_starts(&self, lined: &Lined<'_>, rows: &Rows<'_>, cache: &Cache<'_>) -> Vec<u32> {
        let (end, group) = (rows.first + rows.count, rows.heads / cache.kv_heads);
        let of_block = |first: usize| {
            let here = lined.block_rows.min(end - first);
            let starts = lined.mask.starts(&self.unseen(lined.layer, (0, group), (first, here), cache.d));
            (first..).zip(starts).map(|(position, start)| start.min(position) as u32).collect::<Vec<_>>()
        };
        (rows.first..end).step_by(lined.block_rows).flat_map(of_block).collect()
    }

    /// Adds the counters of joined tokens at the layers that a device holds, after the whole prompt has been read.
    ///
    /// # Errors
    /// If the device failed.
    pub(super) fn collect_line_counters(
        &mut self,
        gpu: &Gpu,
        layers: Range<usize>,
        (heads, d): (usize, usize),
    ) -> Result<(), GpuError> {
        let workspace = self.line_workspace(gpu);
        let (Some(buffer), lists) = (workspace.counters.take(), workspace.lists) else { return Ok(()) };
        let mut counters = vec![0u64; buffer.bytes() / size_of::<u64>()];
        gpu.download(&buffer, 0, &mut counters)?;
        for (layer, counters) in counters.chunks_exact(heads).enumerate().filter(|(layer, _)| layers.contains(layer)) {
            let attended = counters[..lists].iter().flat_map(|seen| vec![*seen as usize; heads / lists]).collect();
            self.count(layer, BlockCost::new(attended, 0, 0, d));
        }
        Ok(())
    }
}

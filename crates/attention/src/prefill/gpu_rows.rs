//! Sparse prefill on a device in which every row has its own selection: the device selects for some rows at a time, like decode
//! steps at their positions with `tail=indexed`, and attends the lists.
//!
//! The index of the candidates is rebuilt for each piece of rows, from keys that are in the cache anyway.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::backend::active::{DeviceLayer, DeviceScratch, DeviceSequence, DeviceStep, DeviceWorkspace};
use crate::backend::form::StepShape;
use crate::backend::index::PrefixStatsView;
use crate::calibration::collector::PrefillChunk;
use crate::cost::Cost;
use crate::kv::KvShape;
use crate::prefill::cost::BlockCost;
use crate::prefill::gpu::{Marking, context};
use crate::prefill::gpu_memory::rows_at_once;
use crate::prefill::rows::{device_rows_form, scoring_cost};
use crate::prefill::sparse_prefill::SparsePrefill;
use crate::types::budget::Context;
use crate::types::prompt_shape::PromptShape;
use crate::types::seed::RowSeed;
use crate::types::selection::StaticTokens;
use spattn_cuda::{
    Attention, AttentionWorkspace, Buffer, Cache, Gpu, GpuError, HostDeviceVec, Prefix, Queries, Rows, Tail, Tokens,
    Unit, Weights,
};

/// Memory of each device, by [`Gpu::id`], because the layers of a model may be on several devices.
type RowsWorkspaces = BTreeMap<u64, RowsWorkspace>;

/// Device memory of a prefill with a selection for each row, kept from piece to piece.
#[derive(Default)]
struct RowsWorkspace {
    /// Rows of the query buffer.
    rows: HostDeviceVec<u32>,
    picks: DeviceWorkspace,
    scratch: DeviceScratch,
    attention: AttentionWorkspace,
    /// Counters of the selected tokens, u64 `[layer][kv_heads + heads + 1]` ([`Gpu::count_picks`]).
    counters: Option<Buffer>,
    /// Where the selections of a piece's rows are counted.
    counting: HostDeviceVec<u64>,
}

/// Consecutive rows of a chunk, all of which have candidates.
struct Piece<'a> {
    rows: Rows<'a>,
    /// The static tokens of each row.
    exact: Vec<StaticTokens>,
}

impl Piece<'_> {
    /// Number of tokens in context of each row.
    fn totals(&self) -> Range<usize> {
        self.rows.first + 1..self.rows.first + self.rows.count + 1
    }
}

impl SparsePrefill<'_> {
    /// Attends rows of a layer on the device, each by its own selection. Like
    /// [`attend_on_device`](SparsePrefill::attend_on_device), for a layer that is not dense.
    pub(super) fn attend_rows_there(
        &mut self,
        gpu: &Gpu,
        chunk: &PrefillChunk<'_>,
        (rows, cache): (&Rows<'_>, &Cache<'_>),
        out: &mut Buffer,
        mark: &mut Marking<'_>,
    ) -> Result<bool, GpuError> {
        let Some(form) = device_rows_form(self.method.method.as_ref(), chunk.shape()) else { return Ok(false) };
        let end = rows.first + rows.count;
        let shape = PromptShape { layers: 1, heads: rows.heads, kv_heads: cache.kv_heads, d: cache.d, tokens: end };
        let at_once = rows_at_once(form, &shape);
        let exact = |row: usize| StaticTokens::sliding(self.policy, rows.first + row + 1);
        let all: Vec<StaticTokens> = (0..rows.count).map(exact).collect();
        // The first rows, for which no token is a candidate yet.
        let bare = all.partition_point(|exact| exact.sink >= exact.recent);
        if bare > 0 {
            mark()?;
            gpu.prefill_attention(&Rows { count: bare, ..*rows }, cache, out)?;
            let seen = context(&Rows { count: bare, ..*rows });
            self.count(chunk.layer, BlockCost::new(vec![seen; rows.heads], seen, bare, cache.d));
        }
        for skip in (bare..rows.count).step_by(at_once) {
            if skip > 0 {
                mark()?;
                mark()?;
            }
            let count = at_once.min(rows.count - skip);
            let rows = Rows { skip: rows.skip + skip, count, first: rows.first + skip, ..*rows };
            let piece = Piece { rows, exact: all[skip..skip + count].to_vec() };
            self.select_piece(gpu, chunk, &piece, cache)?;
            mark()?;
            self.attend_piece(gpu, &piece, cache, out)?;
        }
        Ok(true)
    }

    fn rows_workspace(&mut self, gpu: &Gpu) -> &mut RowsWorkspace {
        self.workspaces_mut().of::<RowsWorkspaces>().entry(gpu.id()).or_default()
    }

    /// Lets the device select for the rows of a piece, and counts the part of the cost known beforehand.
    fn select_piece(
        &mut self,
        gpu: &Gpu,
        chunk: &PrefillChunk<'_>,
        piece: &Piece<'_>,
        cache: &Cache<'_>,
    ) -> Result<(), GpuError> {
        let (method, layer, shape) = (self.method, chunk.layer, chunk.shape());
        let form = method.method.device_form().expect("`device_rows_form` found the form");
        let (Some(first), Some(last)) = (piece.exact.first(), piece.exact.last()) else { return Ok(()) };
        let candidates = first.sink..last.recent;
        let share = self.policy.schedule.share(&self.dense, layer);
        let budget = |(total, exact): (usize, &StaticTokens)| {
            let candidates = exact.sink..exact.recent;
            form.budget_units(Context::new(total, &candidates).at(share), candidates.len())
        };
        let budget_units: Vec<u32> = piece.totals().zip(&piece.exact).map(budget).collect();
        let ends: Vec<usize> = piece.exact.iter().map(|exact| exact.recent).collect();
        let run = self.seed;
        let seeds: Vec<RowSeed> = piece.totals().map(|total| RowSeed { run, total }).collect();
        let layers = self.dense.len();
        let Rows { queries, stride, heads, skip, count, .. } = piece.rows;
        let RowsWorkspace { rows, picks, scratch, counters, counting, .. } = self.rows_workspace(gpu);
        rows.set(gpu, (skip..skip + count).map(|row| row as u32).collect())?;
        let prefix = DeviceLayer {
            gpu,
            layer,
            cache: *cache,
            scale: chunk.spec().scale,
            dtype: shape.dtype,
            candidates: candidates.clone(),
        };
        let index = form.build_all(&prefix, &PrefixStatsView { seed: run, stats: None })?;
        // All tokens of a row are in the cache, so nothing is read from its tail.
        let runs = vec![DeviceSequence { tail: *cache, held: None }; count];
        let step = DeviceStep {
            prefix,
            prefix_tokens: piece.totals().end - 1,
            ends: Some(&ends),
            queries: Queries { queries, stride, heads, rows },
            budget_units: &budget_units,
            seeds: &seeds,
            runs: &runs,
            keys: None,
        };
        form.select_all(&step, &index, picks, scratch)?;
        let each = shape.kv_heads + heads + 1;
        let counters = match counters {
            Some(counters) => counters,
            None => counters.insert(gpu.upload(&vec![0u64; each * layers])?),
        };
        let to: Vec<(&Buffer, u64)> = vec![(counters, 1); count];
        let tokens = candidates.start..picks.lists.end();
        gpu.count_picks(&picks.lists, (shape.kv_heads, heads), tokens, &to, each * layer, counting)?;
        let of_rows = piece.totals().zip(&piece.exact).zip(&budget_units);
        let of_rows = of_rows.map(|((total, exact), number)| (total, *exact, *number));
        let cost = scoring_cost(form, (heads / shape.kv_heads, shape), of_rows);
        let exact = piece.totals().zip(&piece.exact).map(|(total, exact)| exact.tokens(total)).sum();
        let counted = BlockCost::new(vec![exact; heads], context(&piece.rows), count, shape.d);
        self.count(layer, counted.with(cost));
        Ok(())
    }

    /// Attends the selected and static tokens of the rows of a piece.
    fn attend_piece(
        &mut self,
        gpu: &Gpu,
        piece: &Piece<'_>,
        cache: &Cache<'_>,
        out: &mut Buffer,
    ) -> Result<(), GpuError> {
        let Rows { queries, stride, heads, skip, scale, rule, .. } = piece.rows;
        let RowsWorkspace { picks, attention: workspace, .. } = self.rows_workspace(gpu);
        let (lists, kv_heads) = (&picks.lists, cache.kv_heads);
        let tokens = piece.totals().end - 1;
        let group = heads / kv_heads;
        let tail = Tail { buffer: cache.keys, layers: 1, capacity: 0, kv_heads, d: cache.d, storage: cache.storage };
        let exact_of = |(total, exact): (usize, &StaticTokens)| kv_heads * exact.tokens(total);
        let statics: usize = piece.totals().zip(&piece.exact).map(exact_of).sum();
        let rows = piece.rows.count;
        let expected = statics + rows * lists.lists() * lists.expected();
        let sizes = (rows * lists.lists(), expected);
        let mut attention = Attention::new(rows, heads, sizes, gpu.processors()).in_workspace(workspace);
        for ((row, total), exact) in piece.totals().enumerate().zip(&piece.exact) {
            for kv_head in 0..kv_heads {
                let unit = |head: usize, queries: usize, (sink, recent): (usize, usize)| {
                    let tokens = Tokens { sink, recent, total, picked: &[] };
                    Unit { row, head, queries, kv_head, tail: &tail, tokens, weights: Weights::Softmax }
                };
                let (first, statics) = (kv_head * group, (exact.sink, exact.recent));
                if lists.lists() == kv_heads {
                    attention.add_list(0, &unit(first, group, statics), lists.list(row, kv_head), tokens);
                    continue;
                }
                attention.add(0, &unit(first, group, statics), tokens);
                (first..first + group).for_each(|head| {
                    attention.add_list(1, &unit(head, 1, (0, total)), lists.list(row, head), tokens);
                });
            }
        }
        let prepared = gpu.prepare(&mut attention, workspace, cache.d)?;
        let prefix = Prefix { cache: *cache, tokens, layer: 0, scale, rule };
        gpu.attend_from(&prepared, &prefix, (queries, stride, skip), out)?;
        workspace.keep(attention);
        Ok(())
    }

    /// Like [`collect_device_counters`](SparsePrefill::collect_device_counters), for rows with their own selections.
    pub(super) fn collect_row_counters(
        &mut self,
        gpu: &Gpu,
        layers: Range<usize>,
        (heads, shape): (usize, KvShape),
    ) -> Result<(), GpuError> {
        let Some(buffer) = self.rows_workspace(gpu).counters.take() else { return Ok(()) };
        let mut counters = vec![0u64; buffer.bytes() / size_of::<u64>()];
        gpu.download(&buffer, 0, &mut counters)?;
        let (method, each) = (self.method, shape.kv_heads + heads + 1);
        let form = method.method.device_form().expect("`device_rows_form` found the form");
        let group = heads / shape.kv_heads;
        let step =
            StepShape { group, d: shape.d, dtype: shape.dtype, candidates: 0, all_candidates: 0, exact: 0, number: 0 };
        for (layer, counters) in counters.chunks_exact(each).enumerate().filter(|(layer, _)| layers.contains(layer)) {
            let attended: Vec<usize> =
                counters[shape.kv_heads..each - 1].iter().map(|tokens| *tokens as usize).collect();
            let tokens: usize = attended.iter().sum();
            let cost = self.costs.layer_mut(layer);
            // Bytes are not counted during prefill.
            *cost += Cost { kv_bytes: 0, aux_bytes: 0, ..form.cost_of_picks(&step, counters[each - 1], tokens as u64) };
            if form.takes_products(group) {
                cost.leave_to_attention(tokens, shape.d, 0);
            }
            self.count(layer, BlockCost::new(attended, 0, 0, shape.d));
        }
        Ok(())
    }
}

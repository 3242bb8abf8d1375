//! A step on one GPU: what each row attends, where its tokens are selected, and all layers of the segment in turn.

use std::time::Duration;

use rayon::prelude::*;

use super::asked::Asked;
use super::host::{Numbers, download_wide};
use super::kv::{DevicePrefix, LayerCaches, SequenceKv, Tail, sequence_kv, sequence_kv_mut, shared};
use super::model::{Segment, StepAngles};
use super::row_plan::{HeadPlan, RowOfLists, RowPlan};
use super::workspace::{ComparedPicks, LayerPicks, Recorded, SelectionWorkspace, Work, Workspace};
use crate::engine::{EngineError, GpuUse, Stream};
use crate::rope::Rope;
use spattn_attention::kv::{DeviceKv, KvError, Tier};
use spattn_attention::{
    AttendedPart, AttentionTime, CacheHits, DeviceLayer, DeviceScratch, DeviceSequence, DeviceStep, DeviceWorkspace,
    LayerStep, RowSeed, SelectionSite, StaticTokens,
};
use spattn_base::clock::Section;
use spattn_cuda::{
    self as kernels, Attention, AttentionWorkspace, Buffer, CountedLists, GpuError, HeldTokens, HostDeviceVec, Place,
    Prepared, Queries, TokenLists,
};

/// What is the same for all layers of a step, on all GPUs.
pub(super) struct StepPlan<'a> {
    pub(super) rows: &'a [Row],
    /// Indexed by the number of the RoPE table.
    pub(super) angles: &'a [StepAngles],
}

/// Streams whose tokens the device selects together, and their rows.
pub(super) struct Group {
    pub(super) streams: Vec<usize>,
    pub(super) rows: Vec<u32>,
    /// The end of the candidates of each of `rows`, if tokens of the tail become candidates.
    ends: Option<Vec<usize>>,
    seeds: Vec<RowSeed>,
    /// Rows that reuse a selection: that of one of `rows` in the same step, or that of an earlier step if `None`.
    again: Vec<(u32, Option<usize>)>,
    /// Whether the method selects ahead.
    is_ahead: bool,
    /// Whether all candidates are in context before the step.
    knows_candidates: bool,
}

impl Group {
    /// Whether the tokens of a layer are selected while the layer before computes. That takes queries that are known one layer earlier, and
    /// candidates that are all in context before the step. Otherwise, the layer selects by the same queries once its keys are stored.
    fn picks_early(&self, layer: usize, streams: &[Stream<'_>]) -> bool {
        self.knows_candidates && self.selects_ahead_at(layer, streams)
    }

    /// Whether the tokens of a layer are selected by queries that are known one layer earlier.
    fn selects_ahead_at(&self, layer: usize, streams: &[Stream<'_>]) -> bool {
        self.is_ahead && streams[self.streams[0]].fork.selects_ahead_at(layer)
    }

    /// Returns the row for which listed tokens are fetched. It must be the only one, so that copies take no more memory than was planned.
    fn only_row(&self) -> Option<u32> {
        match (&self.rows[..], &self.again[..]) {
            ([row], []) | ([], [(row, None)]) => Some(*row),
            _ => None,
        }
    }

    /// Whether the only row reuses the selection of an earlier step.
    fn attends_again(&self) -> bool {
        self.rows.is_empty() && self.only_row().is_some()
    }
}

/// A row of a step.
pub(super) struct Row {
    pub(super) stream: usize,
    /// The number of tokens in context, including its own.
    pub(super) total: usize,
}

/// Computes the frequencies of one RoPE table: common ones for all rows of a step, or those of each row.
fn step_frequencies(rope: &Rope, positions: &[usize], prompt_tokens: usize) -> (Vec<f32>, StepAngles) {
    if rope.fixed_up_to().is_none() {
        let (inverse, scaling) = rope.frequencies(prompt_tokens);
        return (inverse, StepAngles { by_row: false, scaling });
    }
    let of_row = |position: &usize| rope.frequencies(rope.length_at(prompt_tokens, *position));
    let of_rows: Vec<(Vec<f32>, f32)> = positions.iter().map(of_row).collect();
    let scaling = of_rows.first().map_or(1.0, |(_, scaling)| *scaling);
    (of_rows.into_iter().flat_map(|(inverse, _)| inverse).collect(), StepAngles { by_row: true, scaling })
}

/// Whether the host reads the queries, keys and values of a stream at a layer.
fn looks(stream: &Stream<'_>, layer: usize) -> bool {
    waits_for_host(stream, layer) && !stream.fork.takes_queries_alone(layer)
}

/// Whether a layer waits for the host, which reads something of a stream there.
fn waits_for_host(stream: &Stream<'_>, layer: usize) -> bool {
    stream.fork.selection_site(layer) == SelectionSite::Host || stream.fork.needs_host()
}

/// Whether the device counts misses of a stream.
fn compares(stream: &Stream<'_>) -> bool {
    let fork = &stream.fork;
    fork.selects_on_device() && (0..fork.prefix().layers()).any(|layer| fork.counts_misses_at(layer))
}

/// Returns the rows of a step, stream by stream.
pub(super) fn rows_of(streams: &[Stream<'_>]) -> Vec<Row> {
    let of_stream = |(index, stream): (usize, &Stream<'_>)| {
        let held = stream.fork.tokens();
        (0..stream.tokens.len()).map(move |i| Row { stream: index, total: held + i + 1 }).collect::<Vec<_>>()
    };
    streams.iter().enumerate().flat_map(of_stream).collect()
}

/// Groups the rows for which the device selects together.
pub(super) fn groups_of(streams: &[Stream<'_>], rows: &[Row]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (index, stream) in streams.iter().enumerate().filter(|(_, stream)| stream.fork.selects_on_device()) {
        let alike = |group: &&mut Group| streams[group.streams[0]].fork.selects_together_with(stream.fork);
        match groups.iter_mut().find(alike) {
            Some(group) => group.streams.push(index),
            None => {
                groups.push(Group {
                    streams: vec![index],
                    rows: Vec::new(),
                    ends: stream.fork.device_candidates_move().then(Vec::new),
                    seeds: Vec::new(),
                    again: Vec::new(),
                    is_ahead: stream.fork.method().method.selects_ahead(),
                    knows_candidates: true,
                });
            }
        }
    }
    for (i, row) in rows.iter().enumerate() {
        let Some(group) = groups.iter_mut().find(|group| group.streams.contains(&row.stream)) else { continue };
        let fork = &*streams[row.stream].fork;
        if fork.selects_anew(row.total) {
            group.rows.push(i as u32);
            if let Some(ends) = &mut group.ends {
                let end = fork.device_candidates(row.total).end;
                group.knows_candidates &= end <= fork.tokens();
                ends.push(end);
            }
            group.seeds.push(fork.row_seed(row.total));
        } else {
            let of_stream = |own: &u32| rows[*own as usize].stream == row.stream;
            group.again.push((i as u32, group.rows.iter().rposition(of_stream)));
        }
    }
    groups
}

impl Segment {
    /// Uploads the frequencies of a step's rows for each RoPE table.
    pub(super) fn send_frequencies(
        &self,
        workspace: &mut Workspace,
        positions: &[usize],
        prompt_tokens: usize,
    ) -> Result<Vec<StepAngles>, GpuError> {
        let tables = self.ropes().iter().map(|rope| step_frequencies(rope, positions, prompt_tokens));
        let tables: Vec<(Vec<f32>, StepAngles)> = tables.collect();
        workspace.inverse.resize_with(tables.len(), || None);
        for ((inverse, _), buffer) in tables.iter().zip(&mut workspace.inverse) {
            self.gpu.reserve(buffer, size_of_val(inverse.as_slice()))?;
            self.gpu.upload_to(buffer.as_mut().expect("it was reserved"), 0, inverse)?;
        }
        Ok(tables.into_iter().map(|(_, angles)| angles).collect())
    }

    /// Makes what a stream has on this GPU, with room for its tail; `old` is what it had before.
    pub(super) fn make_tail(&self, stream: &mut Stream<'_>, old: Option<SequenceKv>) -> Result<SequenceKv, GpuError> {
        let held = stream.fork.tokens() - stream.fork.prefix().tokens();
        let is_new = old.is_none();
        let (tail, picked, again, missed, mut kept, cached, holding) = match old {
            Some(own) => (Some(own.tail), own.picked, own.again, own.missed, own.kept, own.cached, own.held),
            None => (None, None, None, None, Vec::new(), self.empty_caches(stream)?, Vec::new()),
        };
        let needed = held + stream.tokens.len();
        let tail = Tail::of(&self.gpu, self.shape(), self.range.len(), tail, held, needed)?;
        let picked = match (picked, stream.fork.selects_on_device()) {
            (None, true) => Some(self.gpu.alloc(8 * self.counters())?),
            (picked, _) => picked,
        };
        let again = match again {
            None if !cached.is_empty() => Some(self.gpu.alloc(8 * self.counters())?),
            again => again,
        };
        let missed = match (missed, compares(stream)) {
            (None, true) => Some(self.gpu.alloc(size_of::<[u64; 2]>() * self.range.len())?),
            (missed, _) => missed,
        };
        if stream.fork.selects_on_device() {
            kept.resize_with(self.range.len(), TokenLists::default);
        }
        if is_new {
            self.send_fixed(stream, &mut kept)?;
        }
        let holding = self.hold(stream, holding)?;
        Ok(SequenceKv { tail, picked, again, missed, kept, cached, held: holding })
    }

    /// Uploads what a sequence selected when it started, at the layers where it attends that in all steps.
    fn send_fixed(&self, stream: &mut Stream<'_>, kept: &mut Vec<TokenLists>) -> Result<(), GpuError> {
        let end = stream.fork.prefix().tokens();
        for layer in self.range.clone() {
            if stream.fork.selection_site(layer) == SelectionSite::Fixed {
                kept.resize_with(self.range.len(), TokenLists::default);
                let lists = stream.fork.fixed_selections(layer, self.config.heads);
                kept[self.place_of(layer)] = TokenLists::upload(&self.gpu, &lists, end)?;
            }
        }
        Ok(())
    }

    /// Makes caches at each layer of this GPU for what a sequence fetches from host memory. Layers at which the method scores all keys get
    /// none, because they read all keys over the bus in any case.
    fn empty_caches(&self, stream: &Stream<'_>) -> Result<Vec<LayerCaches>, GpuError> {
        let (fork, prefix, c) = (&*stream.fork, shared(stream.fork.prefix()), &self.config);
        let (Some(bytes), true) = (prefix.cached, fork.selects_on_device()) else { return Ok(Vec::new()) };
        let form_at = |layer: usize| {
            fork.device_form(layer).map(|(form, _)| form).filter(|form| !form.takes_products(c.heads / c.kv_heads))
        };
        let heads = c.kv_heads * (0..c.layers).filter(|layer| form_at(*layer).is_some()).count();
        let of_layer = |layer| match form_at(layer) {
            Some(form) => LayerCaches::new(&self.gpu, self.shape(), prefix.tokens, (bytes, heads), form.scores_keys()),
            None => Ok(LayerCaches::default()),
        };
        self.range.clone().map(of_layer).collect()
    }

    /// Returns what a sequence found at each layer of this GPU since the last call, in its caches and, by the counters `again`, in the copies
    /// of what it attends again.
    pub(super) fn take_hits(&self, own: &mut SequenceKv, again: Option<&[u64]>) -> Result<Vec<CacheHits>, GpuError> {
        let (kv_heads, each) = (self.config.kv_heads, self.counters() / self.range.len());
        let of_layer = |(place, caches): (usize, &mut LayerCaches)| {
            let mut hits = caches.take_hits(&self.gpu)?;
            hits.tokens += again.map_or(0, |again| again[place * each..][..kv_heads].iter().sum());
            Ok(hits)
        };
        own.cached.iter_mut().enumerate().map(of_layer).collect()
    }

    /// Makes what a sequence holds at each layer, with room for all of its tokens: `held` as it was, or its start.
    fn hold(
        &self,
        stream: &Stream<'_>,
        mut held: Vec<Option<HeldTokens>>,
    ) -> Result<Vec<Option<HeldTokens>>, GpuError> {
        let total = stream.fork.tokens() + stream.tokens.len();
        held.resize_with(self.range.len(), || None);
        for (layer, held) in self.range.clone().zip(&mut held) {
            let Some((form, index)) = stream.fork.device_form(layer) else { continue };
            match held {
                None => *held = form.start_all(&self.gpu, index, total)?,
                Some(own) if own.has_room(total) => {}
                Some(own) => *held = Some(own.with_room(&self.gpu, total)?),
            }
        }
        Ok(held)
    }

    /// Uploads where the rows' keys and values go at every layer.
    pub(super) fn send_places(&self, workspace: &mut Workspace, streams: &[Stream<'_>]) -> Result<(), GpuError> {
        let mut places: Vec<Vec<Place>> = vec![Vec::new(); self.range.len()];
        for stream in streams {
            let (prefix, held) = (stream.fork.prefix().tokens(), stream.fork.tokens());
            let tail = self.tail_of(stream);
            for i in 0..stream.tokens.len() {
                for (layer, places) in places.iter_mut().enumerate() {
                    places.push(tail.cache(layer).place(held + i - prefix));
                }
            }
        }
        let places = places.concat();
        let buffer = self.gpu.reserved(&mut workspace.places, size_of_val(places.as_slice()))?;
        self.gpu.upload_to(buffer, 0, &places)
    }

    /// Returns a stream's tail on this GPU.
    fn tail_of<'s>(&self, stream: &'s Stream<'_>) -> kernels::Tail<'s> {
        sequence_kv(stream.fork, self.number).tail.view(self.shape(), self.range.len())
    }

    /// Computes the layers of a step in which tokens are selected.
    pub(super) fn step_picking(
        &self,
        workspace: &mut Workspace,
        streams: &mut [Stream<'_>],
        plan: &StepPlan<'_>,
        groups: &[Group],
    ) -> Result<(), EngineError> {
        self.send_groups(workspace, groups)?;
        workspace.timeline.clear();
        workspace.work.clear();
        self.gpu.mark(&mut workspace.timeline)?;
        let stepped = self.step_layers(workspace, streams, plan, groups);
        // A failed step may leave fetches unfinished, and their buffers must not be freed before the tokens have arrived.
        let arrived = workspace.picks.iter_mut().try_for_each(|picks| picks.await_tokens(&self.gpu));
        stepped.and(arrived.map_err(EngineError::from))
    }

    /// Computes all layers of a step in which tokens are selected.
    fn step_layers(
        &self,
        workspace: &mut Workspace,
        streams: &mut [Stream<'_>],
        plan: &StepPlan<'_>,
        groups: &[Group],
    ) -> Result<(), EngineError> {
        let (rows, compares) = (plan.rows.len(), streams.iter().any(compares));
        for index in self.range.clone() {
            self.forward_layer(workspace, rows, index, 0, |workspace, layer| -> Result<(), EngineError> {
                self.rotate_rows(workspace, rows, index, layer, plan.angles)?;
                self.gpu.mark(&mut workspace.timeline)?;
                self.attend_streams(workspace, index, streams, plan, groups)?;
                self.gpu.mark(&mut workspace.timeline)?;
                if compares {
                    self.count_misses(workspace, index, streams, plan.rows, groups)?;
                    self.gpu.mark(&mut workspace.timeline)?;
                }
                Ok(())
            })?;
            self.gpu.mark(&mut workspace.timeline)?;
        }
        Ok(())
    }

    /// Adds the times of a step's parts on this GPU to `used`, and each stream's attention time to it; `false` if nothing was selected.
    pub(super) fn note_times(
        &self,
        workspace: &Workspace,
        streams: &mut [Stream<'_>],
        used: &mut GpuUse,
    ) -> Result<bool, GpuError> {
        let spans = workspace.timeline.spans()?;
        let parts = 4 + usize::from(streams.iter().any(compares));
        for ((place, layer), spans) in self.range.clone().enumerate().zip(spans.chunks_exact(parts)) {
            let [begin, select, attend, finish] = [spans[0], spans[1], spans[2], spans[parts - 1]];
            let compare = if parts == 5 { spans[3] } else { Duration::ZERO };
            let host = streams.iter().any(|stream| waits_for_host(stream, layer));
            let of_layer = &workspace.work[place * streams.len()..][..streams.len()];
            share_attention([select, attend, compare], host, of_layer, streams);
            used.weights += begin + finish;
            used.attend += attend;
            match host {
                true => used.select_on_host += select,
                false => used.select_on_device += select,
            }
        }
        Ok(!spans.is_empty())
    }

    /// Computes the layers of a step in which nothing is selected, so that what each layer attends is known before the first.
    pub(super) fn step_exactly(
        &self,
        workspace: &mut Workspace,
        streams: &mut [Stream<'_>],
        plan: &StepPlan<'_>,
    ) -> Result<(), EngineError> {
        let width = self.widths().1;
        workspace.timeline.clear();
        let prefix = streams[0].fork.prefix().clone();
        let device = shared(&prefix);
        let (prepared, attention_of) = self.prepare_exactly(workspace, streams, plan.rows)?;
        let key = self.key_of(workspace, device, &prepared, &attention_of, plan);
        let launch = |workspace: &mut Workspace| -> Result<(), EngineError> {
            let rows = plan.rows.len();
            for (place, index) in self.range.clone().enumerate() {
                self.forward_layer(workspace, rows, index, 0, |workspace, layer| {
                    self.rotate_rows(workspace, rows, index, layer, plan.angles)?;
                    let scale = prefix.spec(index).scale.factor();
                    let (cache, rule) = (device.cache(index), self.rule(index));
                    let prefix = kernels::Prefix { cache, tokens: device.tokens, layer: place, scale, rule };
                    let Workspace { qkv, attended, .. } = &mut *workspace;
                    self.gpu.attend(&prepared[attention_of[place]], &prefix, qkv, width, attended, None)
                })?;
            }
            Ok(())
        };
        let repeats = self.repeats(plan.rows.len());
        let known = workspace.recorded.take().filter(|known| repeats && known.key == key);
        let Some(Recorded { recording, .. }) = known else {
            workspace.recorded = repeats.then_some(Recorded { key, recording: None });
            return launch(workspace);
        };
        let mut recording = match recording {
            Some(recording) => recording,
            None => self.gpu.record(|| launch(workspace))?,
        };
        self.gpu.replay(&mut recording)?;
        workspace.recorded = Some(Recorded { key, recording: Some(recording) });
        Ok(())
    }

    /// Whether the launches of a step with this many rows can be recorded. Products of several rows are computed by a library, which may do
    /// more than launch kernels.
    pub(super) fn repeats(&self, rows: usize) -> bool {
        rows == 1 && self.config.hidden_size.is_multiple_of(8) && self.routes_on_device()
    }

    /// Uploads each distinct list of attended tokens once, and returns which of them each layer attends.
    fn prepare_exactly(
        &self,
        workspace: &mut Workspace,
        streams: &mut [Stream<'_>],
        rows: &[Row],
    ) -> Result<(Vec<Prepared>, Vec<usize>), GpuError> {
        let c = &self.config;
        let mut different: Vec<Vec<StaticTokens>> = Vec::new();
        let mut attention_of = Vec::with_capacity(self.range.len());
        for layer in self.range.clone() {
            let static_tokens = |stream: &mut Stream<'_>| match stream.fork.begin_step(layer) {
                LayerStep::StaticOnly(step) => step.finish(c.heads),
                _ => unreachable!("steps with a selection are run by `step_picking`"),
            };
            let of_stream = |stream: &mut Stream<'_>| -> Vec<StaticTokens> {
                (0..stream.tokens.len()).map(|_| static_tokens(stream)).collect()
            };
            let exact: Vec<StaticTokens> = streams.iter_mut().flat_map(of_stream).collect();
            let known = different.iter().position(|other| *other == exact);
            attention_of.push(known.unwrap_or(different.len()));
            if known.is_none() {
                different.push(exact);
            }
        }
        workspace.exact.resize_with(workspace.exact.len().max(different.len()), AttentionWorkspace::default);
        let mut prepared = Vec::with_capacity(different.len());
        for (exact, lists) in different.into_iter().zip(&mut workspace.exact) {
            let plans: Vec<RowPlan> = exact.into_iter().map(RowPlan::Exact).collect();
            let mut attention = self.attention_of(streams, rows, &plans, &[], lists);
            prepared.push(self.gpu.prepare(&mut attention, lists, c.head_dim)?);
        }
        Ok((prepared, attention_of))
    }

    /// Returns everything that the launches of a step's layers depend on.
    fn key_of(
        &self,
        workspace: &Workspace,
        prefix: &DevicePrefix,
        prepared: &[Prepared],
        attention_of: &[usize],
        plan: &StepPlan<'_>,
    ) -> Vec<u64> {
        let buffers = std::iter::once(&workspace.places).chain(&workspace.inverse);
        let ids = buffers.map(|buffer| buffer.as_ref().map_or(0, Buffer::id));
        let counts = [plan.rows.len() as u64, prefix.tokens as u64, prefix.capacity as u64];
        let of_table = |angles: &StepAngles| [u64::from(angles.by_row), u64::from(angles.scaling.to_bits())];
        let numbers = plan.angles.iter().flat_map(of_table);
        let layers = prefix.layers[self.range.clone()].iter().flat_map(|layer| [layer.keys.id(), layer.values.id()]);
        let lists = prepared.iter().flat_map(Prepared::launches).chain(attention_of.iter().map(|list| *list as u64));
        ids.chain(counts).chain(numbers).chain(layers).chain(lists).collect()
    }

    /// Uploads which rows the device selects for together.
    fn send_groups(&self, workspace: &mut Workspace, groups: &[Group]) -> Result<(), GpuError> {
        if workspace.picks.len() < groups.len() {
            workspace.picks.resize_with(groups.len(), SelectionWorkspace::default);
        }
        let of_groups = groups.iter().zip(&mut workspace.picks);
        of_groups.into_iter().try_for_each(|(group, workspace)| {
            workspace.alternates = group.is_ahead;
            workspace.rows.set(&self.gpu, group.rows.clone())
        })
    }

    /// Returns the lists that [`RowOfLists`] numbers.
    fn lists_of<'a>(
        &self,
        (picks, groups): (&'a [SelectionWorkspace], &[Group]),
        streams: &'a [Stream<'_>],
        layer: usize,
        none: &'a TokenLists,
    ) -> Vec<&'a TokenLists> {
        let place = self.place_of(layer);
        let kept = |(number, stream): (usize, &'a Stream<'_>)| {
            let mut fetched = groups.iter().zip(picks).filter(|(group, _)| group.streams.contains(&number));
            let kept = sequence_kv(stream.fork, self.number).kept.get(place).unwrap_or(none);
            let is_fetched = |group: &Group| group.attends_again() && self.is_cached(group, layer, streams);
            match fetched.find(|(group, _)| is_fetched(group) && !kept.has_copies()) {
                Some((_, workspace)) => &workspace.picked(layer).lists,
                None => kept,
            }
        };
        let kept = streams.iter().enumerate().map(kept);
        kept.chain(picks.iter().map(|workspace| &workspace.picked(layer).lists)).collect()
    }

    /// Selects on the device at a layer, except for groups whose tokens were selected while the layer before computed.
    fn pick_there(
        &self,
        workspace: &mut Workspace,
        layer: usize,
        streams: &[Stream<'_>],
        rows: &[Row],
        groups: &[Group],
    ) -> Result<(), GpuError> {
        let Workspace { qkv, ahead, picks, scratch, .. } = workspace;
        let is_here = |group: &Group| !group.picks_early(layer, streams);
        for (group, workspace) in groups.iter().zip(&mut *picks) {
            if !is_here(group) {
                continue;
            }
            let queries = match (group.selects_ahead_at(layer, streams), &*ahead) {
                (true, Some(ahead)) => ahead,
                (true, None) => unreachable!("the layer before made the queries ahead"),
                (false, _) => &*qkv,
            };
            let at = (layer, streams, rows);
            self.pick_for_group(group, workspace.of_layer(layer), queries, scratch, at)?;
            if self.is_cached(group, layer, streams) {
                self.fetch_for_group(group, workspace.of_layer(layer), at)?;
            }
        }
        self.count_for_groups(picks, groups, is_here, (layer, streams, rows))
    }

    /// Whether the tokens that a group attends at a layer are fetched into a cache.
    fn is_cached(&self, group: &Group, layer: usize, streams: &[Stream<'_>]) -> bool {
        let cached = &sequence_kv(streams[group.streams[0]].fork, self.number).cached;
        cached.get(self.place_of(layer)).is_some_and(|caches| caches.tokens.is_some())
    }

    /// Makes the queries by which a layer's tokens are selected ahead from the previous layer's input: `last_input`, or else the current
    /// residual stream. Selects and fetches for groups that need not wait for the layer's keys. Returns whether anything is selected ahead.
    fn pick_ahead(
        &self,
        workspace: &mut Workspace,
        last_input: Option<&Buffer>,
        layer: usize,
        streams: &[Stream<'_>],
        (plan, groups): (&StepPlan<'_>, &[Group]),
    ) -> Result<bool, GpuError> {
        if !streams.iter().any(|stream| stream.fork.selects_ahead_at(layer)) {
            return Ok(false);
        }
        self.make_queries_ahead(workspace, last_input, plan.rows.len(), layer, plan.angles)?;
        let Workspace { ahead: Some(ahead), picks, scratch, .. } = workspace else {
            unreachable!("`make_queries_ahead` reserved the queries")
        };
        let (is_early, at) = (|group: &Group| group.picks_early(layer, streams), (layer, streams, plan.rows));
        for (group, workspace) in groups.iter().zip(&mut *picks) {
            if !is_early(group) {
                continue;
            }
            self.pick_for_group(group, workspace.of_layer(layer), ahead, scratch, at)?;
            self.fetch_for_group(group, workspace.of_layer(layer), at)?;
        }
        self.count_for_groups(picks, groups, is_early, at)?;
        Ok(true)
    }

    /// Fetches the tokens selected for a group if the prefix is in host memory.
    fn fetch_for_group(
        &self,
        group: &Group,
        picks: LayerPicks<'_>,
        (layer, streams, rows): (usize, &[Stream<'_>], &[Row]),
    ) -> Result<(), GpuError> {
        let Some(row) = group.only_row() else { return Ok(()) };
        let stream = &streams[rows[row as usize].stream];
        let (prefix, place) = (shared(stream.fork.prefix()), self.place_of(layer));
        if prefix.tier() != Tier::Host || stream.fork.device_form(layer).is_none() {
            return Ok(());
        }
        let own = sequence_kv(stream.fork, self.number);
        let lists = &mut picks.own.lists;
        let (tail, cache) = (self.tail_of(stream), own.cached.get(place).and_then(|caches| caches.tokens.as_ref()));
        match (group.attends_again(), cache) {
            (true, None) => return Ok(()),
            // They were fetched when they were selected.
            (true, Some(_)) if own.kept[place].has_copies() => return Ok(()),
            (true, Some(_)) => lists.keep(&self.gpu, &own.kept[place], 0)?,
            (false, _) => {}
        }
        self.gpu.fetch_tokens(lists, &prefix.cache(layer), prefix.tokens, &[tail.cache(place)], cache)
    }

    /// Hands the queries made ahead to the streams whose tokens the host selects.
    fn give_queries_ahead(
        &self,
        workspace: &Workspace,
        layer: usize,
        streams: &mut [Stream<'_>],
    ) -> Result<(), GpuError> {
        let ((width, stacked), mut first) = (self.widths(), 0);
        for stream in streams {
            let (rows, begin) = (stream.tokens.len(), first);
            first += rows;
            let is_asked = stream.fork.selects_ahead_at(layer) && !stream.fork.selects_on_device();
            let (true, Some(ahead)) = (is_asked, &workspace.ahead) else { continue };
            let numbers = download_wide(&self.gpu, ahead, begin * stacked, rows * stacked, self.storage())?;
            stream.fork.set_queries_ahead(layer, numbers.chunks_exact(stacked).map(|row| row[..width].to_vec()));
        }
        Ok(())
    }

    /// Selects on the device at a layer for the rows of a group that need a new selection, by these queries.
    fn pick_for_group(
        &self,
        group: &Group,
        picks: LayerPicks<'_>,
        queries: &Buffer,
        scratch: &mut DeviceScratch,
        at: (usize, &[Stream<'_>], &[Row]),
    ) -> Result<(), GpuError> {
        if group.rows.is_empty() {
            return Ok(());
        }
        let queries = Queries { queries, stride: self.widths().1, heads: self.config.heads, rows: picks.rows };
        self.select_for_group(group, queries, picks.own, scratch, at)
    }

    /// Counts the tokens that the rows of some groups attend at a layer: those just selected, and those of earlier selections.
    fn count_for_groups(
        &self,
        picks: &mut [SelectionWorkspace],
        groups: &[Group],
        is_counted: impl Fn(&Group) -> bool,
        (layer, streams, rows): (usize, &[Stream<'_>], &[Row]),
    ) -> Result<(), GpuError> {
        let (c, place) = (&self.config, self.place_of(layer));
        let run_of = |row: u32| sequence_kv(streams[rows[row as usize].stream].fork, self.number);
        let counters_of = |row: u32| run_of(row).picked.as_ref().expect("`make_tails` reserved the counters");
        let mut counted = Vec::new();
        for (group, workspace) in groups.iter().zip(picks).filter(|(group, _)| is_counted(group)) {
            let fork = &*streams[group.streams[0]].fork;
            if fork.device_form(layer).is_none() {
                continue;
            }
            let first = fork.prefix_candidates().start;
            let LayerPicks { counters: addresses, counters_of_kept, own, .. } = workspace.of_layer(layer);
            if !group.rows.is_empty() {
                let times = |i: usize| 1 + group.again.iter().filter(|(_, of)| *of == Some(i)).count() as u64;
                let counters = |(i, row): (usize, &u32)| (counters_of(*row), times(i));
                counted.push(CountedLists {
                    tokens: first..own.lists.end(),
                    lists: &own.lists,
                    counters: group.rows.iter().enumerate().map(counters).collect(),
                    workspace: addresses,
                });
            }
            let again = group.again.iter().filter(|(_, of)| of.is_none());
            counters_of_kept.resize_with(group.again.len().max(counters_of_kept.len()), HostDeviceVec::default);
            for ((row, _), addresses) in again.zip(counters_of_kept) {
                let (own, kept) = (run_of(*row), &run_of(*row).kept[place]);
                let counters = own.again.as_ref().filter(|_| kept.has_copies()).unwrap_or_else(|| counters_of(*row));
                counted.push(CountedLists {
                    tokens: first..kept.end(),
                    lists: kept,
                    counters: vec![(counters, 1)],
                    workspace: addresses,
                });
            }
        }
        self.gpu.count_all_picks(counted, (c.kv_heads, c.heads), place * (c.kv_heads + c.heads + 1))
    }

    /// Selects on the device at a layer for rows that share a method, by these queries.
    fn select_for_group(
        &self,
        group: &Group,
        queries: Queries<'_>,
        to: &mut DeviceWorkspace,
        scratch: &mut DeviceScratch,
        (layer, streams, rows): (usize, &[Stream<'_>], &[Row]),
    ) -> Result<(), GpuError> {
        let fork = &*streams[group.streams[0]].fork;
        let Some((form, index)) = fork.device_form(layer) else { return Ok(()) };
        let (cache, candidates) = (shared(fork.prefix()).cache(layer), fork.prefix_candidates());
        let (scale, dtype) = (fork.prefix().spec(layer).scale, self.dtype());
        let place = self.place_of(layer);
        let tails: Vec<kernels::Tail<'_>> = streams.iter().map(|stream| self.tail_of(stream)).collect();
        let there = |row: &u32| {
            let stream = rows[*row as usize].stream;
            let held = sequence_kv(streams[stream].fork, self.number).held[place].as_ref();
            DeviceSequence { tail: tails[stream].cache(place), held }
        };
        let runs: Vec<DeviceSequence<'_>> = group.rows.iter().map(there).collect();
        let budget_of = |row: &u32| {
            let Row { stream, total } = rows[*row as usize];
            streams[stream].fork.budget_units(layer, total)
        };
        let budgets: Vec<u32> = group.rows.iter().map(budget_of).collect();
        // Sequences do not share caches, so that what one of them finds does not depend on others.
        let keys = match group.streams[..] {
            [stream] => sequence_kv(streams[stream].fork, self.number).cached.get(place),
            _ => None,
        };
        let keys = keys.and_then(|caches| caches.keys.as_ref());
        let step = DeviceStep {
            prefix: DeviceLayer { gpu: &self.gpu, layer, cache, scale, dtype, candidates },
            prefix_tokens: fork.prefix().tokens(),
            ends: group.ends.as_deref(),
            queries,
            budget_units: &budgets,
            seeds: &group.seeds,
            runs: &runs,
            keys,
        };
        form.select_all(&step, index, to, scratch)
    }

    /// Counts the tokens that a layer's own queries would have selected, and those of them that were not selected ahead.
    fn count_misses(
        &self,
        workspace: &mut Workspace,
        layer: usize,
        streams: &[Stream<'_>],
        rows: &[Row],
        groups: &[Group],
    ) -> Result<(), GpuError> {
        let Workspace { qkv, picks, scratch, .. } = workspace;
        for (group, workspace) in groups.iter().zip(picks) {
            let counts = |stream: &usize| streams[*stream].fork.counts_misses_at(layer);
            if group.rows.is_empty() || !group.is_ahead || !group.streams.iter().all(counts) {
                continue;
            }
            let ComparedPicks { rows: numbers, picked, wanted, missing } = workspace.compared(layer);
            let queries = Queries { queries: qkv, stride: self.widths().1, heads: self.config.heads, rows: numbers };
            self.select_for_group(group, queries, wanted, scratch, (layer, streams, rows))?;
            let counters_of = |row: &u32| {
                let own = sequence_kv(streams[rows[*row as usize].stream].fork, self.number);
                own.missed.as_ref().expect("`make_tails` reserved the counters of misses")
            };
            let counters: Vec<&Buffer> = group.rows.iter().map(counters_of).collect();
            let lists = [&wanted.lists, &picked.lists];
            let tokens = 0..wanted.lists.end().max(picked.lists.end());
            self.gpu.count_missing(lists, tokens, &counters, 2 * self.place_of(layer), missing)?;
        }
        Ok(())
    }

    /// Selects for all rows that need it, and attends.
    fn attend_streams(
        &self,
        workspace: &mut Workspace,
        layer: usize,
        streams: &mut [Stream<'_>],
        plan: &StepPlan<'_>,
        groups: &[Group],
    ) -> Result<(), EngineError> {
        let ((width, stacked), rows) = (self.widths(), plan.rows);
        let numbers = match streams.iter().any(|stream| looks(stream, layer)) {
            true => download_wide(&self.gpu, &workspace.qkv, 0, rows.len() * stacked, self.storage())?,
            false => Vec::new(),
        };
        let asked = self.ask(workspace, layer, streams)?;
        if let Some(input) = workspace.last_input.take() {
            self.pick_ahead(workspace, Some(&input), layer, streams, (plan, groups))?;
            self.give_queries_ahead(workspace, layer, streams)?;
        }
        // Enqueued before the host selects, so that both select at the same time.
        self.pick_there(workspace, layer, streams, rows, groups)?;
        let is_ahead = self.look_ahead(workspace, layer + 1, streams, (plan, groups))?;
        let (plans, picking) = self.plan_rows(layer, streams, (&numbers, &asked), groups)?;
        if is_ahead {
            self.give_queries_ahead(workspace, layer + 1, streams)?;
        }
        let watched = streams.iter().any(|stream| stream.fork.fidelity().is_some());
        if watched {
            self.gpu.reserve(&mut workspace.wide, 4 * rows.len() * width)?;
        }
        self.gpu.mark(&mut workspace.timeline)?;
        self.note_work(workspace, layer, picking, streams, (rows, groups), &plans);
        let mut picked = workspace.picks.iter_mut().map(|picks| picks.of_layer(layer).own);
        picked.try_for_each(|picks| self.gpu.await_tokens(&mut picks.lists))?;
        self.attend_rows(workspace, layer, streams, (rows, groups), &plans, watched)?;
        self.keep_picks(&mut workspace.picks, layer, streams, rows, groups)?;
        for (i, plan) in plans.iter().enumerate() {
            if let RowPlan::Done(out) = plan {
                let numbers = Numbers::narrow(out.clone(), self.storage());
                numbers.upload_to(&self.gpu, &mut workspace.attended, i * width * self.dtype().bytes())?;
            }
        }
        if watched {
            self.compare(workspace, layer, streams, rows, &plans, &numbers)?;
        }
        Ok(())
    }

    /// Selects ahead for a layer, or keeps its input if another GPU has the layer. Returns whether queries were made for it here.
    fn look_ahead(
        &self,
        workspace: &mut Workspace,
        layer: usize,
        streams: &[Stream<'_>],
        (plan, groups): (&StepPlan<'_>, &[Group]),
    ) -> Result<bool, GpuError> {
        if self.range.contains(&layer) {
            return self.pick_ahead(workspace, None, layer, streams, (plan, groups));
        }
        if layer < self.config.layers && streams.iter().any(|stream| stream.fork.selects_ahead_at(layer)) {
            let bytes = size_of::<f32>() * plan.rows.len() * self.config.hidden_size;
            let mut input = self.gpu.alloc(bytes)?;
            self.gpu.copy(&workspace.x, 0, &mut input, 0, bytes)?;
            workspace.last_input = Some(input);
        }
        Ok(false)
    }

    /// Records the work of each stream at a layer of a step; `picking` is the host's selection time for each stream.
    fn note_work(
        &self,
        workspace: &mut Workspace,
        layer: usize,
        picking: Vec<Duration>,
        streams: &[Stream<'_>],
        (rows, groups): (&[Row], &[Group]),
        plans: &[RowPlan],
    ) {
        let none = TokenLists::default();
        let lists = self.lists_of((&workspace.picks, groups), streams, layer, &none);
        let mut work: Vec<Work> = picking.into_iter().map(|host| Work { host, ..Work::default() }).collect();
        for (row, plan) in rows.iter().zip(plans) {
            let fork = &streams[row.stream].fork;
            // Selection ahead for the next layer runs here.
            let next =
                self.range.contains(&(layer + 1)) && fork.selects_on_device() && fork.selects_ahead_at(layer + 1);
            let here = matches!(plan, RowPlan::Left(..))
                && fork.selects_on_device()
                && !(layer > self.range.start && fork.selects_ahead_at(layer));
            work[row.stream].picked_rows += usize::from(here) + usize::from(next);
            work[row.stream].compared_rows += usize::from(fork.selects_on_device() && fork.counts_misses_at(layer));
            work[row.stream].tokens += plan.tokens(row.total, self.config.kv_heads, &lists);
        }
        workspace.work.extend(work);
    }

    /// Keeps the last selection of each stream whose later tokens reuse it, and its copies if it was fetched.
    fn keep_picks(
        &self,
        picks: &mut [SelectionWorkspace],
        layer: usize,
        streams: &mut [Stream<'_>],
        rows: &[Row],
        groups: &[Group],
    ) -> Result<(), GpuError> {
        for (group, workspace) in groups.iter().zip(picks) {
            for stream in &group.streams {
                let fork = &mut *streams[*stream].fork;
                let of_stream = |row: &u32| rows[*row as usize].stream == *stream;
                // Nothing was selected at a dense layer.
                let is_kept = fork.reuses_selections() && fork.device_form(layer).is_some();
                let (Some(last), true) = (group.rows.iter().rposition(of_stream), is_kept) else { continue };
                sequence_kv_mut(fork, self.number).kept[self.place_of(layer)].keep(
                    &self.gpu,
                    &workspace.picked(layer).lists,
                    last,
                )?;
            }
            self.keep_copies(group, workspace, layer, streams);
        }
        Ok(())
    }

    /// Keeps the copies of what the only row of a group attends, for later tokens that attend it again. They are attended with what the row
    /// has kept, which has the same tokens.
    fn keep_copies(&self, group: &Group, workspace: &mut SelectionWorkspace, layer: usize, streams: &mut [Stream<'_>]) {
        let is_kept = streams[group.streams[0]].fork.reuses_selections() && self.is_cached(group, layer, streams);
        if group.only_row().is_none() || !is_kept {
            return;
        }
        let fork = &mut *streams[group.streams[0]].fork;
        let kept = &mut sequence_kv_mut(fork, self.number).kept[self.place_of(layer)];
        let lists = &mut workspace.of_layer(layer).own.lists;
        if lists.has_copies() && !kept.has_copies() {
            kept.take_copies(lists);
        }
    }

    /// Returns what each row attends, stream by stream, and how long the host took to select for each stream.
    fn plan_rows(
        &self,
        layer: usize,
        streams: &mut [Stream<'_>],
        (numbers, asked): (&[f32], &[Option<Asked>]),
        groups: &[Group],
    ) -> Result<(Vec<RowPlan>, Vec<Duration>), KvError> {
        let (width, stacked) = self.widths();
        let key_width = self.config.kv_heads * self.config.head_dim;
        let firsts: Vec<usize> = streams
            .iter()
            .scan(0, |next, stream| {
                let first = *next;
                *next += stream.tokens.len();
                Some(first)
            })
            .collect();
        let count = streams.len();
        let selects_here = |stream: &Stream<'_>| {
            let site = stream.fork.selection_site(layer);
            matches!(site, SelectionSite::Host | SelectionSite::DataIndependent) || stream.fork.needs_host()
        };
        let plan = |(number, (stream, first)): (usize, (&mut Stream<'_>, usize))| -> Result<(Vec<RowPlan>, Duration), KvError> {
            // Reading the processor's clock for every row takes longer than planning what the device selects.
            let (before, section) = (stream.fork.attention_time(), selects_here(stream).then(Section::begin));
            let row = |i: usize| {
                let heads = self.config.heads;
                // Only steps on the host read these; if there are none, `numbers` is empty.
                let numbers = || {
                    let (queries, kv) = numbers[(first + i) * stacked..][..stacked].split_at(width);
                    let (key, value) = kv.split_at(key_width);
                    (queries, key, value)
                };
                Ok(match stream.fork.begin_step(layer) {
                    LayerStep::StaticOnly(step) => RowPlan::Exact(step.finish(heads)),
                    LayerStep::DataIndependent(step) => RowPlan::Picked(step.finish(heads)),
                    LayerStep::Fixed(step) => RowPlan::Left(step.finish(heads), RowOfLists { lists: number, row: 0 }),
                    LayerStep::Device(step) => {
                        RowPlan::Left(step.finish(heads), lists_of_row(groups, first + i, (number, count)))
                    }
                    LayerStep::Host(step) => {
                        let (queries, key, value) = numbers();
                        RowPlan::Picked(step.select(queries, key, value)?)
                    }
                    LayerStep::HostAttendsPart(step) => {
                        let asked = asked[number].as_ref().expect("`ask` went through the same streams");
                        RowPlan::Merged(match asked.queries.is_empty() {
                            true => {
                                let (queries, key, value) = numbers();
                                step.attend(queries, Some([key, value]), &asked.codes[i])?
                            }
                            false => step.attend(&asked.queries[i * width..][..width], None, &asked.codes[i])?,
                        })
                    }
                    LayerStep::HostAttends(step) => {
                        let (queries, key, value) = numbers();
                        let mut out = vec![0.0; width];
                        step.attend(queries, key, value, &mut out)?;
                        RowPlan::Done(out)
                    }
                })
            };
            let plans: Vec<RowPlan> = (0..stream.tokens.len()).map(row).collect::<Result<_, KvError>>()?;
            let here = section.map_or(Duration::ZERO, Section::end);
            Ok((plans, here + stream.fork.take_busy_time_since(before)))
        };
        let selects = streams.iter().any(selects_here);
        let work: Vec<_> = streams.iter_mut().zip(firsts).enumerate().collect();
        // Threads are woken only for what takes longer than to wake them.
        let planned = match selects {
            true => work.into_par_iter().map(plan).collect::<Result<Vec<_>, _>>()?,
            false => work.into_iter().map(plan).collect::<Result<Vec<_>, _>>()?,
        };
        let (planned, picking): (Vec<Vec<RowPlan>>, Vec<Duration>) = planned.into_iter().unzip();
        Ok((planned.into_iter().flatten().collect(), picking))
    }

    /// Attends what was planned, except for rows that the host has attended.
    fn attend_rows(
        &self,
        workspace: &mut Workspace,
        layer: usize,
        streams: &[Stream<'_>],
        (rows, groups): (&[Row], &[Group]),
        plans: &[RowPlan],
        watched: bool,
    ) -> Result<(), GpuError> {
        let c = &self.config;
        let prefix = streams[0].fork.prefix().clone();
        let Workspace { qkv, attended, wide, picks, attention, .. } = workspace;
        let own = &mut attention[if picks.iter().any(|picks| picks.alternates) { layer % 2 } else { 0 }];
        let none = TokenLists::default();
        let lists = self.lists_of((picks, groups), streams, layer, &none);
        let mut attention = self.attention_of(streams, rows, plans, &lists, own);
        let wide = wide.as_mut().filter(|_| watched);
        let (cache, scale) = (shared(&prefix).cache(layer), prefix.spec(layer).scale.factor());
        let prefix = kernels::Prefix {
            cache,
            tokens: prefix.tokens(),
            layer: self.place_of(layer),
            scale,
            rule: self.rule(layer),
        };
        let prepared = self.gpu.prepare(&mut attention, own, c.head_dim)?;
        own.keep(attention);
        self.gpu.attend(&prepared, &prefix, qkv, self.widths().1, attended, wide)
    }

    /// Collects what the rows of a step attend.
    fn attention_of(
        &self,
        streams: &[Stream<'_>],
        rows: &[Row],
        plans: &[RowPlan],
        lists: &[&TokenLists],
        workspace: &mut AttentionWorkspace,
    ) -> Attention {
        let c = &self.config;
        let prefix_tokens = streams[0].fork.prefix().tokens();
        let tails: Vec<kernels::Tail<'_>> = streams.iter().map(|stream| self.tail_of(stream)).collect();
        let group = c.heads / c.kv_heads;
        let of_row = |(row, plan): (&Row, &RowPlan)| plan.tokens(row.total, c.kv_heads, lists);
        let expected: usize = rows.iter().zip(plans).map(of_row).sum();
        let units: usize = plans.iter().map(|plan| plan.units(c.kv_heads, lists)).sum();
        let mut attention =
            Attention::new(rows.len(), c.heads, (units, expected), self.gpu.processors()).in_workspace(workspace);
        for (i, (row, plan)) in rows.iter().zip(plans).enumerate() {
            for kv_head in 0..c.kv_heads {
                let parts = HeadPlan { row: i, kv_head, group, total: row.total, tail: &tails[row.stream] };
                parts.add(&mut attention, plan, prefix_tokens, lists);
            }
        }
        attention
    }

    /// Shows the attention output to the streams that are compared with exact attention.
    fn compare(
        &self,
        workspace: &Workspace,
        layer: usize,
        streams: &mut [Stream<'_>],
        rows: &[Row],
        plans: &[RowPlan],
        numbers: &[f32],
    ) -> Result<(), EngineError> {
        let (width, stacked) = self.widths();
        let mut out = vec![0.0; rows.len() * width];
        self.gpu.download(workspace.wide.as_ref().expect("attention reserved the outputs in f32"), 0, &mut out)?;
        for (i, (row, plan)) in rows.iter().zip(plans).enumerate() {
            let (RowPlan::Picked(picked) | RowPlan::Merged(AttendedPart { picked, .. })) = plan else { continue };
            let queries = &numbers[i * stacked..][..width];
            streams[row.stream].fork.compare(layer, queries, picked, row.total, &out[i * width..][..width])?;
        }
        Ok(())
    }
}

/// Splits a layer's times among streams: the selection time by the host's time for each stream or, if only the device selects, by rows; the
/// attention time by the tokens that each attended; the time of counting misses by rows.
fn share_attention([select, attend, compare]: [Duration; 3], on_host: bool, work: &[Work], streams: &mut [Stream<'_>]) {
    let on_host = on_host || work.iter().all(|work| work.picked_rows == 0);
    let picked = |work: &Work| if on_host { work.host.as_secs_f64() } else { work.picked_rows as f64 };
    let share = |of: &dyn Fn(&Work) -> f64, own: &Work, time: Duration| {
        let all: f64 = work.iter().map(of).sum();
        if all > 0.0 { time.mul_f64(of(own) / all) } else { Duration::ZERO }
    };
    for (stream, own) in streams.iter_mut().zip(work) {
        let (select, attend) = (share(&picked, own, select), share(&|work| work.tokens as f64, own, attend));
        let compare = share(&|work| work.compared_rows as f64, own, compare);
        stream.fork.add_attention_time(AttentionTime {
            select,
            attend,
            compare,
            elapsed: select + attend + compare,
            ..AttentionTime::default()
        });
    }
}

/// Returns which list has the device's selection for a row of a step; the row belongs to `stream`, one of `streams`.
fn lists_of_row(groups: &[Group], row: usize, (stream, streams): (usize, usize)) -> RowOfLists {
    let place = |(group, of): (usize, &Group)| {
        let lists = streams + group;
        if let Some(row) = of.rows.iter().position(|own| *own as usize == row) {
            return Some(RowOfLists { lists, row });
        }
        let (_, of) = of.again.iter().find(|(own, _)| *own as usize == row)?;
        let kept = RowOfLists { lists: stream, row: 0 };
        Some(of.map_or(kept, |row| RowOfLists { lists, row }))
    };
    groups.iter().enumerate().find_map(place).expect("each row that the device selects for is in a group")
}

//! A step: what each row attends, who picks it, and all layers in turn.

use std::sync::PoisonError;
use std::time::Duration;

use rayon::prelude::*;

use super::host::{Numbers, download_wide};
use super::kv::{DevicePrefix, RunKv, Tail, run_kv, run_kv_mut, shared, tail_of};
use super::model::Cuda;
use super::weights::Linear;
use super::workspace::{Recorded, SelectionWorkspace, Work, Workspace};
use crate::engine::{EngineError, Stream};
use crate::layers::Layer;
use spattn_attention::{
    AttendedTokens, AttentionTime, DeviceLayer, DeviceSequence, DeviceStep, RowSeed, SelectedTokens, Selection,
    SelectionSite, StaticTokens, Weighting,
};
use spattn_base::clock::Section;
use spattn_cuda::{
    self as kernels, Attention, AttentionWorkspace, Buffer, GpuError, HeldTokens, Place, Positions, Prepared, Queries,
    Timeline, TokenLists, Tokens, Unit, Weights,
};

/// What is the same at all layers of a step.
pub(super) struct StepPlan<'a> {
    pub(super) rows: &'a [Row],
    pub(super) by_row: bool,
    pub(super) scaling: f32,
}

/// What one row of a step attends at a layer.
pub(super) enum RowPlan {
    /// So much, for all KV heads.
    Exact(StaticTokens),
    /// What each KV head picked.
    Picked(Vec<AttendedTokens>),
    /// So much, and what the device picks for a row of those that it picks for together.
    Left(StaticTokens, RowOfLists),
    /// The host has attended, `[heads][d]`.
    Done(Vec<f32>),
}

/// A row of the lists of a step: what each stream has [kept](RunKv::kept), then those that the device picks for together.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowOfLists {
    pub(super) lists: usize,
    pub(super) row: usize,
}

/// Streams that the device picks for together, and their rows.
pub(super) struct Group {
    pub(super) streams: Vec<usize>,
    pub(super) rows: Vec<u32>,
    pub(super) numbers: Vec<u32>,
    seeds: Vec<RowSeed>,
    /// Rows that attend again what was picked before: for one of `rows` in the same step, or, without, in an earlier one.
    again: Vec<(u32, Option<usize>)>,
}

/// A row of a step.
pub(super) struct Row {
    pub(super) stream: usize,
    /// Tokens in context, its own included.
    pub(super) total: usize,
}

/// Whether the host looks at queries, keys and values of a stream at a layer.
pub(super) fn looks(stream: &Stream<'_>, layer: usize) -> bool {
    stream.fork.selection_site(layer) == SelectionSite::Host || stream.fork.needs_host()
}

impl Cuda {
    /// Frequencies of all rows of a step, or of each, and the factor of cos and sin.
    pub(super) fn step_frequencies(&self, positions: &[usize], prompt_tokens: usize) -> (Vec<f32>, bool, f32) {
        let length = |position: usize| prompt_tokens.max(position + 1);
        if self.rope.fixed_up_to().is_none() {
            let (inverse, scaling) = self.rope.frequencies(prompt_tokens);
            return (inverse, false, scaling);
        }
        let of_rows: Vec<(Vec<f32>, f32)> = positions.iter().map(|p| self.rope.frequencies(length(*p))).collect();
        let scaling = of_rows.first().map_or(1.0, |(_, scaling)| *scaling);
        (of_rows.into_iter().flat_map(|(inverse, _)| inverse).collect(), true, scaling)
    }

    /// Makes room for what each stream reads behind its prefix.
    pub(super) fn make_tails(&self, streams: &mut [Stream<'_>]) -> Result<(), GpuError> {
        for stream in streams {
            let held = stream.fork.tokens() - stream.fork.prefix().tokens();
            let old = stream.fork.device_mut().take().and_then(|own| own.downcast::<RunKv>().ok());
            let (tail, picked, mut kept, holding) = old
                .map_or((None, None, Vec::new(), Vec::new()), |own| (Some(own.tail), own.picked, own.kept, own.held));
            let needed = held + stream.tokens.len();
            let tail = Tail::of(&self.gpu, self.shape(), self.config.layers, tail, held, needed)?;
            let picked = match (picked, stream.fork.selects_on_device()) {
                (None, true) => Some(self.gpu.alloc(8 * self.counters())?),
                (picked, _) => picked,
            };
            if stream.fork.selects_on_device() {
                kept.resize_with(self.config.layers, TokenLists::default);
            }
            let holding = self.hold(stream, holding)?;
            *stream.fork.device_mut() = Some(Box::new(RunKv { tail, picked, kept, held: holding }));
        }
        Ok(())
    }

    /// What a run holds at each layer, with room for what it can hold behind a stream: as it was, or as it begins.
    fn hold(
        &self,
        stream: &Stream<'_>,
        mut held: Vec<Option<HeldTokens>>,
    ) -> Result<Vec<Option<HeldTokens>>, GpuError> {
        let total = stream.fork.tokens() + stream.tokens.len();
        held.resize_with(self.config.layers, || None);
        for (layer, held) in held.iter_mut().enumerate() {
            let Some((form, index)) = stream.fork.device_form(layer) else { continue };
            match held {
                None => *held = form.start_all(&self.gpu, index, total)?,
                Some(own) if own.has_room(total) => {}
                Some(own) => *held = Some(own.with_room(&self.gpu, total)?),
            }
        }
        Ok(held)
    }

    /// Sends where the rows' keys and values go, at every layer; says what the rows are.
    pub(super) fn send_places(&self, room: &mut Workspace, streams: &mut [Stream<'_>]) -> Result<Vec<Row>, GpuError> {
        let (layers, shape) = (self.config.layers, self.shape());
        let mut rows = Vec::new();
        let mut places: Vec<Vec<Place>> = vec![Vec::new(); layers];
        for (index, stream) in streams.iter_mut().enumerate() {
            let (prefix, held) = (stream.fork.prefix().tokens(), stream.fork.tokens());
            let tail = tail_of(stream.fork).view(shape, layers);
            for i in 0..stream.tokens.len() {
                rows.push(Row { stream: index, total: held + i + 1 });
                for (layer, places) in places.iter_mut().enumerate() {
                    places.push(tail.cache(layer).place(held + i - prefix));
                }
            }
        }
        let places = places.concat();
        self.gpu.reserve(&mut room.places, size_of_val(places.as_slice()))?;
        let buffer = room.places.as_mut().expect("it was reserved");
        self.gpu.upload_to(buffer, 0, &places)?;
        Ok(rows)
    }

    /// All layers of a step where something is picked.
    pub(super) fn step_picking(
        &self,
        room: &mut Workspace,
        streams: &mut [Stream<'_>],
        plan: &StepPlan<'_>,
    ) -> Result<(), EngineError> {
        let groups = self.send_groups(room, streams, plan.rows)?;
        room.timeline.clear();
        room.work.clear();
        self.gpu.mark(&mut room.timeline)?;
        for (index, layer) in self.parts.layers.iter().enumerate() {
            self.begin_layer(room, index, layer, plan)?;
            self.gpu.mark(&mut room.timeline)?;
            self.attend_streams(room, index, streams, plan.rows, &groups)?;
            self.gpu.mark(&mut room.timeline)?;
            self.finish_layer(room, plan.rows.len(), index, 0, layer)?;
            self.gpu.mark(&mut room.timeline)?;
        }
        Ok(())
    }

    /// Adds where a step's time went, and what of it was attention to each stream.
    pub(super) fn note_times(
        &self,
        timeline: &Timeline,
        work: &[Work],
        streams: &mut [Stream<'_>],
    ) -> Result<(), GpuError> {
        let spans = timeline.spans()?;
        if spans.is_empty() {
            streams.iter_mut().for_each(|stream| stream.fork.mark_time_unattributed());
            return Ok(());
        }
        for (layer, spans) in spans.chunks_exact(4).enumerate() {
            let host = streams.iter().any(|stream| looks(stream, layer));
            let of_layer = &work[layer * streams.len()..][..streams.len()];
            share_attention([spans[1], spans[2]], host, of_layer, streams);
        }
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.steps += 1;
        for (layer, spans) in spans.chunks_exact(4).enumerate() {
            let [begin, select, attend, finish] = [spans[0], spans[1], spans[2], spans[3]];
            used.weights += begin + finish;
            used.attend += attend;
            match streams.iter().any(|stream| looks(stream, layer)) {
                true => used.select_on_host += select,
                false => used.select_on_device += select,
            }
        }
        Ok(())
    }

    /// All layers of a step where nothing is picked: what each attends is known before the first.
    pub(super) fn step_exactly(
        &self,
        room: &mut Workspace,
        streams: &mut [Stream<'_>],
        plan: &StepPlan<'_>,
    ) -> Result<(), EngineError> {
        let (c, width) = (&self.config, self.widths().1);
        let prefix = streams[0].fork.prefix().clone();
        let device = shared(&prefix);
        let (prepared, attention_of) = self.prepare_exactly(room, streams, plan.rows)?;
        let key = self.key_of(room, device, &prepared, &attention_of, plan);
        let launch = |room: &mut Workspace| -> Result<(), EngineError> {
            for (index, layer) in self.parts.layers.iter().enumerate() {
                self.begin_layer(room, index, layer, plan)?;
                let scale = prefix.spec(index).scale.factor();
                let prefix = kernels::Prefix { cache: device.cache(index), tokens: device.tokens, layer: index, scale };
                let Workspace { qkv, attended, .. } = &mut *room;
                self.gpu.attend(&prepared[attention_of[index]], &prefix, qkv, width, attended, None)?;
                self.finish_layer(room, plan.rows.len(), index, 0, layer)?;
            }
            Ok(())
        };
        // Products of several rows are a library's, which may do more than launch kernels.
        let repeats = plan.rows.len() == 1 && c.hidden_size.is_multiple_of(8);
        let known = room.recorded.take().filter(|known| repeats && known.key == key);
        let Some(Recorded { recording, .. }) = known else {
            room.recorded = repeats.then_some(Recorded { key, recording: None });
            return launch(room);
        };
        let mut recording = match recording {
            Some(recording) => recording,
            None => self.gpu.record(|| launch(room))?,
        };
        self.gpu.replay(&mut recording)?;
        room.recorded = Some(Recorded { key, recording: Some(recording) });
        Ok(())
    }

    /// Projections of all rows at a layer, rotated; keys and values are stored.
    fn begin_layer(
        &self,
        room: &mut Workspace,
        index: usize,
        layer: &Layer<Linear, Buffer>,
        plan: &StepPlan<'_>,
    ) -> Result<(), GpuError> {
        let (c, rows) = (&self.config, plan.rows.len());
        self.project(room, rows, index, 0, layer)?;
        let shape = (c.kv_heads, c.head_dim, self.storage());
        let Workspace { qkv, positions, places, inverse, .. } = room;
        let (Some(inverse), Some(places)) = (inverse, places) else { unreachable!("both were sent") };
        let at = Positions { positions, inverse, by_row: plan.by_row, scaling: plan.scaling };
        let offset = index * rows * size_of::<Place>();
        self.gpu.rope_scattered(qkv, rows, &at, c.heads, self.norms(layer).as_ref(), shape, places, offset)
    }

    /// Sends what the layers attend, each list once; and says which of them each layer attends.
    fn prepare_exactly(
        &self,
        room: &mut Workspace,
        streams: &mut [Stream<'_>],
        rows: &[Row],
    ) -> Result<(Vec<Prepared>, Vec<usize>), GpuError> {
        let c = &self.config;
        let mut different: Vec<Vec<StaticTokens>> = Vec::new();
        let mut attention_of = Vec::with_capacity(c.layers);
        for layer in 0..c.layers {
            let exact: Vec<StaticTokens> = streams
                .iter_mut()
                .flat_map(|stream| {
                    (0..stream.tokens.len()).map(|_| stream.fork.attend_static_only(layer, c.heads)).collect::<Vec<_>>()
                })
                .collect();
            let known = different.iter().position(|other| *other == exact);
            attention_of.push(known.unwrap_or(different.len()));
            if known.is_none() {
                different.push(exact);
            }
        }
        room.exact.resize_with(room.exact.len().max(different.len()), AttentionWorkspace::default);
        let mut prepared = Vec::with_capacity(different.len());
        for (exact, lists) in different.into_iter().zip(&mut room.exact) {
            let plans: Vec<RowPlan> = exact.into_iter().map(RowPlan::Exact).collect();
            let mut attention = self.attention_of(streams, rows, &plans, &[], lists);
            prepared.push(self.gpu.prepare(&mut attention, lists, c.head_dim)?);
        }
        Ok((prepared, attention_of))
    }

    /// All that launching the layers of a step depends on.
    fn key_of(
        &self,
        room: &Workspace,
        prefix: &DevicePrefix,
        prepared: &[Prepared],
        attention_of: &[usize],
        plan: &StepPlan<'_>,
    ) -> Vec<u64> {
        let ids = [&room.places, &room.inverse].map(|buffer| buffer.as_ref().map_or(0, Buffer::id));
        let counts = [plan.rows.len() as u64, prefix.tokens as u64, prefix.capacity as u64];
        let numbers = [u64::from(plan.by_row), u64::from(plan.scaling.to_bits())];
        let layers = prefix.layers.iter().flat_map(|(keys, values)| [keys.id(), values.id()]);
        let lists = prepared.iter().flat_map(Prepared::launches).chain(attention_of.iter().map(|list| *list as u64));
        ids.into_iter().chain(counts).chain(numbers).chain(layers).chain(lists).collect()
    }

    /// Puts together the rows that the device picks for together, and sends which they are.
    fn send_groups(&self, room: &mut Workspace, streams: &[Stream<'_>], rows: &[Row]) -> Result<Vec<Group>, GpuError> {
        let mut groups: Vec<Group> = Vec::new();
        for (index, stream) in streams.iter().enumerate().filter(|(_, stream)| stream.fork.selects_on_device()) {
            let alike = |group: &&mut Group| streams[group.streams[0]].fork.selects_together_with(stream.fork);
            match groups.iter_mut().find(alike) {
                Some(group) => group.streams.push(index),
                None => {
                    groups.push(Group {
                        streams: vec![index],
                        rows: Vec::new(),
                        numbers: Vec::new(),
                        seeds: Vec::new(),
                        again: Vec::new(),
                    });
                }
            }
        }
        for (i, row) in rows.iter().enumerate() {
            let Some(group) = groups.iter_mut().find(|group| group.streams.contains(&row.stream)) else { continue };
            let fork = &*streams[row.stream].fork;
            if fork.selects_anew(row.total) {
                group.rows.push(i as u32);
                group.numbers.push(fork.budget_units(row.total));
                group.seeds.push(fork.row_seed(row.total));
            } else {
                let of_stream = |own: &u32| rows[*own as usize].stream == row.stream;
                group.again.push((i as u32, group.rows.iter().rposition(of_stream)));
            }
        }
        if room.picks.len() < groups.len() {
            room.picks.resize_with(groups.len(), SelectionWorkspace::default);
        }
        for (group, room) in groups.iter().zip(&mut room.picks) {
            room.rows.set(&self.gpu, group.rows.clone())?;
        }
        Ok(groups)
    }

    /// Has the device pick at a layer for rows that share a method, and count what it picked.
    fn pick_there(
        &self,
        room: &mut Workspace,
        layer: usize,
        streams: &[Stream<'_>],
        rows: &[Row],
        groups: &[Group],
    ) -> Result<(), GpuError> {
        let c = &self.config;
        let Workspace { qkv, picks, scratch, .. } = room;
        for (group, room) in groups.iter().zip(picks) {
            let fork = &*streams[group.streams[0]].fork;
            let Some((form, index)) = fork.device_form(layer) else { continue };
            let (cache, candidates) = (shared(fork.prefix()).cache(layer), fork.prefix_candidates());
            let (scale, dtype) = (fork.prefix().spec(layer).scale, self.dtype);
            let prefix = DeviceLayer { gpu: &self.gpu, layer, cache, scale, dtype, candidates: candidates.clone() };
            let run_of = |row: u32| run_kv(streams[rows[row as usize].stream].fork);
            let counters_of = |row: u32| run_of(row).picked.as_ref().expect("a step makes room for what it counts");
            let (heads, offset) = ((c.kv_heads, c.heads), layer * (c.kv_heads + c.heads + 1));
            if !group.rows.is_empty() {
                let queries = Queries { queries: qkv, stride: self.widths().1, heads: c.heads, rows: &room.rows };
                let tails: Vec<kernels::Tail<'_>> =
                    streams.iter().map(|stream| tail_of(stream.fork).view(self.shape(), c.layers)).collect();
                let there = |row: &u32| DeviceSequence {
                    tail: tails[rows[*row as usize].stream].cache(layer),
                    held: run_of(*row).held[layer].as_ref(),
                };
                let runs: Vec<DeviceSequence<'_>> = group.rows.iter().map(there).collect();
                let step =
                    DeviceStep { prefix, queries, budget_units: &group.numbers, seeds: &group.seeds, runs: &runs };
                form.select_all(&step, index, &mut room.own, scratch)?;
                let times = |i: usize| 1 + group.again.iter().filter(|(_, of)| *of == Some(i)).count() as u64;
                let counters = |(i, row): (usize, &u32)| (counters_of(*row), times(i));
                let counters: Vec<(&Buffer, u64)> = group.rows.iter().enumerate().map(counters).collect();
                let SelectionWorkspace { own, counters: addresses, .. } = &mut *room;
                let tokens = candidates.start..own.lists.end();
                self.gpu.count_picks(&own.lists, heads, tokens, &counters, offset, addresses)?;
            }
            for (row, _) in group.again.iter().filter(|(_, of)| of.is_none()) {
                let (kept, counters) = (&run_of(*row).kept[layer], [(counters_of(*row), 1)]);
                self.gpu.count_picks(kept, heads, candidates.clone(), &counters, offset, &mut room.counters_of_kept)?;
            }
        }
        Ok(())
    }

    /// Picks for all rows, where there is something to pick, and attends.
    fn attend_streams(
        &self,
        room: &mut Workspace,
        layer: usize,
        streams: &mut [Stream<'_>],
        rows: &[Row],
        groups: &[Group],
    ) -> Result<(), EngineError> {
        let (width, stacked) = self.widths();
        let numbers = match streams.iter().any(|stream| looks(stream, layer)) {
            true => download_wide(&self.gpu, &room.qkv, 0, rows.len() * stacked, self.storage())?,
            false => Vec::new(),
        };
        // What the host picks, it picks meanwhile.
        self.pick_there(room, layer, streams, rows, groups)?;
        let (plans, picking) = self.plan_rows(layer, streams, &numbers, groups);
        if let Some(failure) = streams.iter().find_map(|stream| stream.fork.prefix().failure()) {
            return Err(failure.clone().into());
        }
        let watched = streams.iter().any(|stream| stream.fork.fidelity().is_some());
        if watched {
            self.gpu.reserve(&mut room.wide, 4 * rows.len() * width)?;
        }
        self.gpu.mark(&mut room.timeline)?;
        self.note_work(room, layer, picking, streams, rows, &plans);
        self.attend_rows(room, layer, streams, rows, &plans, watched)?;
        self.keep_picks(&room.picks, layer, streams, rows, groups)?;
        for (i, plan) in plans.iter().enumerate() {
            if let RowPlan::Done(out) = plan {
                let numbers = Numbers::narrow(out.clone(), self.storage());
                numbers.upload_to(&self.gpu, &mut room.attended, i * width * self.dtype.bytes())?;
            }
        }
        if watched {
            self.compare(room, layer, streams, rows, &plans, &numbers)?;
        }
        Ok(())
    }

    /// Notes what a layer of a step is for each stream, of which the host was so long `picking`.
    fn note_work(
        &self,
        room: &mut Workspace,
        layer: usize,
        picking: Vec<Duration>,
        streams: &[Stream<'_>],
        rows: &[Row],
        plans: &[RowPlan],
    ) {
        let none = TokenLists::default();
        let lists = lists_of(&room.picks, streams, layer, &none);
        let mut work: Vec<Work> = picking.into_iter().map(|host| Work { host, ..Work::default() }).collect();
        for (row, plan) in rows.iter().zip(plans) {
            work[row.stream].picked_rows += usize::from(matches!(plan, RowPlan::Left(..)));
            work[row.stream].tokens += plan.tokens(row.total, self.config.kv_heads, &lists);
        }
        room.work.extend(work);
    }

    /// Keeps what was picked last for each stream, where later tokens attend it again.
    fn keep_picks(
        &self,
        picks: &[SelectionWorkspace],
        layer: usize,
        streams: &mut [Stream<'_>],
        rows: &[Row],
        groups: &[Group],
    ) -> Result<(), GpuError> {
        for (group, room) in groups.iter().zip(picks) {
            for stream in &group.streams {
                let fork = &mut *streams[*stream].fork;
                let of_stream = |row: &u32| rows[*row as usize].stream == *stream;
                let (Some(last), true) = (group.rows.iter().rposition(of_stream), fork.reuses_selections()) else {
                    continue;
                };
                run_kv_mut(fork).kept[layer].keep(&self.gpu, &room.own.lists, last)?;
            }
        }
        Ok(())
    }

    /// What each row attends, stream by stream, and how long the host took for that of each stream.
    fn plan_rows(
        &self,
        layer: usize,
        streams: &mut [Stream<'_>],
        numbers: &[f32],
        groups: &[Group],
    ) -> (Vec<RowPlan>, Vec<Duration>) {
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
        let plan = |(number, (stream, first)): (usize, (&mut Stream<'_>, usize))| -> (Vec<RowPlan>, Duration) {
            let (before, section) = (stream.fork.attention_time(), Section::begin());
            let row = |i: usize| {
                let (fork, heads) = (&mut *stream.fork, self.config.heads);
                match fork.selection_site(layer) {
                    SelectionSite::Device => {
                        return RowPlan::Left(
                            fork.select_on_device(layer, heads),
                            lists_of_row(groups, first + i, (number, count)),
                        );
                    }
                    SelectionSite::DataIndependent => {
                        return RowPlan::Picked(fork.select_without_queries(layer, heads));
                    }
                    SelectionSite::None if !fork.needs_host() => {
                        return RowPlan::Exact(fork.attend_static_only(layer, heads));
                    }
                    SelectionSite::None | SelectionSite::Host => {}
                }
                let (queries, kv) = numbers[(first + i) * stacked..][..stacked].split_at(width);
                let (key, value) = kv.split_at(key_width);
                if !fork.moves_positions() {
                    return RowPlan::Picked(fork.select(layer, queries, key, value));
                }
                let mut out = vec![0.0; width];
                fork.step(layer, queries, key, value, &mut out);
                RowPlan::Done(out)
            };
            let plans: Vec<RowPlan> = (0..stream.tokens.len()).map(row).collect();
            let here = section.end();
            (plans, here + stream.fork.take_busy_time_since(before))
        };
        let work: Vec<_> = streams.iter_mut().zip(firsts).enumerate().collect();
        let (planned, picking): (Vec<Vec<RowPlan>>, Vec<Duration>) = work.into_par_iter().map(plan).unzip();
        (planned.into_iter().flatten().collect(), picking)
    }

    /// Attends what was planned, but for rows that are done.
    fn attend_rows(
        &self,
        room: &mut Workspace,
        layer: usize,
        streams: &[Stream<'_>],
        rows: &[Row],
        plans: &[RowPlan],
        watched: bool,
    ) -> Result<(), GpuError> {
        let c = &self.config;
        let prefix = streams[0].fork.prefix().clone();
        let Workspace { qkv, attended, wide, picks, attention: own, .. } = room;
        let none = TokenLists::default();
        let lists = lists_of(picks, streams, layer, &none);
        let mut attention = self.attention_of(streams, rows, plans, &lists, own);
        let wide = wide.as_mut().filter(|_| watched);
        let (cache, scale) = (shared(&prefix).cache(layer), prefix.spec(layer).scale.factor());
        let prefix = kernels::Prefix { cache, tokens: prefix.tokens(), layer, scale };
        let prepared = self.gpu.prepare(&mut attention, own, c.head_dim)?;
        own.keep(attention);
        self.gpu.attend(&prepared, &prefix, qkv, self.widths().1, attended, wide)
    }

    /// What the rows of a step attend.
    fn attention_of(
        &self,
        streams: &[Stream<'_>],
        rows: &[Row],
        plans: &[RowPlan],
        lists: &[&TokenLists],
        room: &mut AttentionWorkspace,
    ) -> Attention {
        let (c, shape) = (&self.config, self.shape());
        let prefix_tokens = streams[0].fork.prefix().tokens();
        let tails: Vec<kernels::Tail<'_>> =
            streams.iter().map(|stream| tail_of(stream.fork).view(shape, c.layers)).collect();
        let group = c.heads / c.kv_heads;
        let of_row = |(row, plan): (&Row, &RowPlan)| plan.tokens(row.total, c.kv_heads, lists);
        let expected: usize = rows.iter().zip(plans).map(of_row).sum();
        let units: usize = plans.iter().map(|plan| plan.units(c.kv_heads, lists)).sum();
        let mut attention = Attention::new(rows.len(), c.heads, (units, expected), self.gpu.processors()).in_room(room);
        for (i, (row, plan)) in rows.iter().zip(plans).enumerate() {
            for kv_head in 0..c.kv_heads {
                let parts = HeadPlan { row: i, kv_head, group, total: row.total, tail: &tails[row.stream] };
                parts.add(&mut attention, plan, prefix_tokens, lists);
            }
        }
        attention
    }

    /// Shows runs that are compared with exact attention what was attended.
    fn compare(
        &self,
        room: &Workspace,
        layer: usize,
        streams: &mut [Stream<'_>],
        rows: &[Row],
        plans: &[RowPlan],
        numbers: &[f32],
    ) -> Result<(), GpuError> {
        let (width, stacked) = self.widths();
        let mut out = vec![0.0; rows.len() * width];
        self.gpu.download(room.wide.as_ref().expect("it was reserved"), 0, &mut out)?;
        for (i, (row, plan)) in rows.iter().zip(plans).enumerate() {
            let RowPlan::Picked(picked) = plan else { continue };
            let queries = &numbers[i * stacked..][..width];
            streams[row.stream].fork.compare(layer, queries, picked, row.total, &out[i * width..][..width]);
        }
        Ok(())
    }
}

/// Shares the time that a layer took to select and to attend: the one by how long the host was picking for each stream, or,
/// where the device alone picks, by rows; the other by the tokens that each attended.
fn share_attention([select, attend]: [Duration; 2], on_host: bool, work: &[Work], streams: &mut [Stream<'_>]) {
    let on_host = on_host || work.iter().all(|work| work.picked_rows == 0);
    let picked = |work: &Work| if on_host { work.host.as_secs_f64() } else { work.picked_rows as f64 };
    let share = |of: &dyn Fn(&Work) -> f64, own: &Work, time: Duration| {
        let all: f64 = work.iter().map(of).sum();
        if all > 0.0 { time.mul_f64(of(own) / all) } else { Duration::ZERO }
    };
    for (stream, own) in streams.iter_mut().zip(work) {
        let (select, attend) = (share(&picked, own, select), share(&|work| work.tokens as f64, own, attend));
        stream.fork.add_attention_time(AttentionTime {
            select,
            attend,
            elapsed: select + attend,
            ..AttentionTime::default()
        });
    }
}

impl RowPlan {
    /// Tokens attended, summed over KV heads.
    pub(super) fn tokens(&self, total: usize, kv_heads: usize, lists: &[&TokenLists]) -> usize {
        let of_head = |picked: &AttendedTokens| {
            let picks = match &picked.selection {
                None => 0,
                Some(Selection::Shared(picks)) => picks.tokens.len(),
                Some(Selection::PerHead(heads)) => heads.iter().map(|picks| picks.tokens.len()).sum(),
            };
            picked.exact.tokens(total) + picks
        };
        match self {
            Self::Exact(exact) => kv_heads * exact.tokens(total),
            Self::Picked(heads) => heads.iter().map(of_head).sum(),
            Self::Left(exact, of) => {
                let lists = lists[of.lists];
                kv_heads * exact.tokens(total) + lists.lists() * lists.expected()
            }
            Self::Done(_) => 0,
        }
    }

    /// Units that most of these tokens are in.
    pub(super) fn units(&self, kv_heads: usize, lists: &[&TokenLists]) -> usize {
        let of_head = |picked: &AttendedTokens| match &picked.selection {
            Some(Selection::PerHead(heads)) => heads.len(),
            Some(Selection::Shared(_)) | None => 1,
        };
        match self {
            Self::Exact(_) => kv_heads,
            Self::Picked(heads) => heads.iter().map(of_head).sum(),
            Self::Left(_, of) => lists[of.lists].lists(),
            Self::Done(_) => 0,
        }
    }
}

/// One KV head of one row, and what it may attend.
pub(super) struct HeadPlan<'a> {
    pub(super) row: usize,
    pub(super) kv_head: usize,
    pub(super) group: usize,
    pub(super) total: usize,
    pub(super) tail: &'a kernels::Tail<'a>,
}

impl HeadPlan<'_> {
    /// Adds what the head attends: exact parts with the group's picks, or first these and then the picks of each query.
    pub(super) fn add(&self, attention: &mut Attention, plan: &RowPlan, prefix_tokens: usize, lists: &[&TokenLists]) {
        let head = self.kv_head * self.group;
        let (exact, selection) = match plan {
            RowPlan::Exact(exact) => (*exact, None),
            RowPlan::Picked(heads) => (heads[self.kv_head].exact, heads[self.kv_head].selection.as_ref()),
            RowPlan::Left(exact, of) => {
                return self.add_lists(attention, *exact, lists[of.lists], of.row, prefix_tokens);
            }
            RowPlan::Done(_) => return,
        };
        let mut add =
            |part: usize, head: usize, queries: usize, exact: StaticTokens, picks: Option<&SelectedTokens>| {
                let weights = match picks.map(|picks| &picks.weighting) {
                    None | Some(Weighting::Softmax | Weighting::Remainder { .. }) => Weights::Softmax,
                    Some(Weighting::LogBias(log_u)) => Weights::LogBias(log_u),
                    Some(Weighting::Direct { weights, log_mass }) => Weights::Explicit(weights, *log_mass),
                };
                let picked = picks.map_or(&[][..], |picks| &picks.tokens);
                let tokens = Tokens { sink: exact.sink, recent: exact.recent, total: self.total, picked };
                let (row, kv_head, tail) = (self.row, self.kv_head, self.tail);
                attention.add(part, &Unit { row, head, queries, kv_head, tail, tokens, weights }, prefix_tokens);
                if let Some(Weighting::Remainder { shares, value }) = picks.map(|picks| &picks.weighting) {
                    shares.iter().enumerate().for_each(|(i, share)| attention.give_rest(row, head + i, *share, value));
                }
            };
        let nothing = StaticTokens { sink: 0, recent: self.total };
        match selection {
            None => add(0, head, self.group, exact, None),
            Some(Selection::Shared(picks)) if matches!(picks.weighting, Weighting::Softmax | Weighting::LogBias(_)) => {
                add(0, head, self.group, exact, Some(picks));
            }
            Some(Selection::Shared(picks)) => {
                add(0, head, self.group, exact, None);
                add(1, head, self.group, nothing, Some(picks));
            }
            Some(Selection::PerHead(heads)) => {
                add(0, head, self.group, exact, None);
                heads.iter().enumerate().for_each(|(i, picks)| add(1, head + i, 1, nothing, Some(picks)));
            }
        }
    }

    /// As [`add`](Self::add), with what the device picked.
    fn add_lists(
        &self,
        attention: &mut Attention,
        exact: StaticTokens,
        lists: &TokenLists,
        of_row: usize,
        prefix_tokens: usize,
    ) {
        let Self { row, kv_head, group, total, tail } = *self;
        let unit = |head: usize, queries: usize, exact: StaticTokens| {
            let tokens = Tokens { sink: exact.sink, recent: exact.recent, total, picked: &[] };
            Unit { row, head, queries, kv_head, tail, tokens, weights: Weights::Softmax }
        };
        let (first, nothing) = (kv_head * group, StaticTokens { sink: 0, recent: total });
        let is_shared = lists.lists() * group == self.heads();
        let rests: Vec<_> = (first..first + group).filter_map(|head| Some((head, lists.rest(of_row, head)?))).collect();
        if is_shared && rests.is_empty() {
            return attention.add_list(0, &unit(first, group, exact), lists.list(of_row, kv_head), prefix_tokens);
        }
        attention.add(0, &unit(first, group, exact), prefix_tokens);
        match is_shared {
            true => attention.add_list(1, &unit(first, group, nothing), lists.list(of_row, kv_head), prefix_tokens),
            false => (first..first + group).for_each(|head| {
                attention.add_list(1, &unit(head, 1, nothing), lists.list(of_row, head), prefix_tokens);
            }),
        }
        rests.into_iter().for_each(|(head, places)| attention.give_rest_there(row, head, places));
    }

    /// Query heads of all KV heads.
    fn heads(&self) -> usize {
        self.group * self.tail.kv_heads
    }
}

/// The lists that [`RowOfLists`] numbers.
fn lists_of<'a>(
    picks: &'a [SelectionWorkspace],
    streams: &'a [Stream<'_>],
    layer: usize,
    none: &'a TokenLists,
) -> Vec<&'a TokenLists> {
    let kept = streams.iter().map(|stream| run_kv(stream.fork).kept.get(layer).unwrap_or(none));
    kept.chain(picks.iter().map(|room| &room.own.lists)).collect()
}

/// What the device picks for a row of a step with so many streams, which is one of `stream`.
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
    groups.iter().enumerate().find_map(place).expect("every row that the device picks for is in a group")
}

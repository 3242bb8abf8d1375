//! Attention of one layer without a model around it, for timing: the keys and values of several sequences, their queries, and one token
//! after each context.
//!
//! Sequences of one step are stored as the KV heads of a single sequence: 8 sequences of 8 KV heads become 64 KV heads, and their queries
//! become one row. The keys and values can be stored several times, so that a measured step reads a copy that is in no GPU cache.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::host::Numbers;
use super::kv::{DevicePrefix, LayerCaches, PrefixLayer, Tail, shared, storage};
use super::row_plan::{HeadPlan, RowOfLists, RowPlan};
use super::workspace::{LayerPicks, SelectionWorkspace};
use spattn_attention::cost::Cost;
use spattn_attention::kv::{DeviceKv, KvShape, LayerKv, Prefix, Tier};
use spattn_attention::{AttentionSpec, LayerSpecs};
use spattn_attention::{
    DeviceForm, DeviceIndex, DeviceLayer, DeviceScratch, DeviceSequence, DeviceStep, DeviceWorkspace, LayerStep,
    MaterializesScores, PrefixStatsView, PromptStats, Sequence, StaticTokens,
};
use spattn_cuda::{
    self as kernels, Attention, AttentionWorkspace, Buffer, Cache, Flood, Gpu, GpuError, HeldTokens, HostDeviceVec,
    Place, Prepared, Queries, Recording, Timeline,
};

/// One attention layer of several sequences on a device.
pub struct LayerAlone {
    pub(super) gpu: Arc<Gpu>,
    pub(super) shape: KvShape,
    heads: usize,
    prefix: Arc<Prefix>,
    /// Further copies of the prefix, at other addresses.
    copies: Vec<DevicePrefix>,
    /// Bytes of GPU memory in which each run keeps what it has fetched from host memory.
    cached: Option<usize>,
    /// The one token after the context, in every copy.
    pub(super) tail: Tail,
    /// What was gathered about the contexts of all sequences, whose heads are numbered as those of one.
    stats: Option<PromptStats>,
    queries: Mutex<Buffer>,
    flood: Mutex<Flood>,
}

impl std::fmt::Debug for LayerAlone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LayerAlone({} tokens of {} KV heads)", self.prefix.tokens(), self.shape.kv_heads)
    }
}

/// The first token after a context.
#[derive(Debug, Clone, Copy)]
pub struct Following<'a> {
    /// Its key, `[kv_head][d]`.
    pub key: &'a [f32],
    /// Its value.
    pub value: &'a [f32],
}

impl LayerAlone {
    /// Copies `batch` sequences, repeating the given ones in turn, to the tier's memory: the device's, or host memory that kernels read.
    /// Each sequence has `heads` query heads and is followed by its token. All of them are stored `copies` times; forks continue from the
    /// first copy.
    ///
    /// # Errors
    /// If they do not fit.
    ///
    /// # Panics
    /// If there is no sequence, or if sequences differ in shape or length.
    pub fn new(
        gpu: Arc<Gpu>,
        heads: usize,
        sequences: &[(&LayerKv, Following<'_>)],
        batch: usize,
        (copies, tier): (usize, Tier),
    ) -> Result<Self, GpuError> {
        let of_one = sequences[0].0.shape();
        let tokens = sequences[0].0.tokens();
        assert!(
            sequences.iter().all(|(kv, _)| kv.shape() == of_one && kv.tokens() == tokens),
            "the sequences differ in shape or in tokens"
        );
        let shape = KvShape { kv_heads: batch * of_one.kv_heads, ..of_one };
        let mut first = DevicePrefix::in_tier(tier, [&gpu], shape, tokens)?;
        first.tokens = tokens;
        let copies = copies.max(1);
        let mut tail = Tail::of(&gpu, shape, copies, None, 0, 1)?;
        let (row, side) =
            (shape.d * shape.dtype.bytes(), shape.kv_heads * tail.capacity * shape.d * shape.dtype.bytes());
        for head in 0..shape.kv_heads {
            let (kv, following) = &sequences[head / of_one.kv_heads % sequences.len()];
            let own = head % of_one.kv_heads;
            let PrefixLayer { keys, values, .. } = &mut first.layers[0];
            gpu.upload_rows(keys, head * tokens * row, kv.keys.head(own))?;
            gpu.upload_rows(values, head * tokens * row, kv.values.head(own))?;
            for (number, rows) in [following.key, following.value].into_iter().enumerate() {
                let numbers = Numbers::narrow(rows[own * shape.d..][..shape.d].to_vec(), storage(shape.dtype));
                for copy in 0..copies {
                    let side = (2 * copy + number) * side;
                    numbers.upload_to(&gpu, &mut tail.buffer, side + head * tail.capacity * row)?;
                }
            }
        }
        let copy = |_: usize| -> Result<DevicePrefix, GpuError> {
            let mut copy = DevicePrefix::in_tier(tier, [&gpu], shape, tokens)?;
            copy.tokens = tokens;
            let (from, to) = (&first.layers[0], &mut copy.layers[0]);
            gpu.copy(&from.keys, 0, &mut to.keys, 0, from.keys.bytes())?;
            gpu.copy(&from.values, 0, &mut to.values, 0, from.values.bytes())?;
            Ok(copy)
        };
        let copies = (1..copies).map(copy).collect::<Result<_, _>>()?;
        let all_heads = batch * heads;
        Ok(Self {
            queries: Mutex::new(gpu.alloc(all_heads * row)?),
            flood: Mutex::new(Flood::new(&gpu)?),
            prefix: Prefix::on_device(
                LayerSpecs::uniform(1, AttentionSpec::of_width(of_one.d)),
                tokens,
                Box::new(first),
            ),
            gpu,
            shape,
            heads: all_heads,
            copies,
            cached: None,
            tail,
            stats: None,
        })
    }

    /// Sets what was gathered about the contexts of all sequences.
    pub fn knowing(self, stats: Option<PromptStats>) -> Self {
        Self { stats, ..self }
    }

    /// Sets in how many bytes of GPU memory each run keeps what it has fetched from host memory.
    pub fn keeping(self, cached: Option<usize>) -> Self {
        Self { cached, ..self }
    }

    /// Returns what was gathered about the contexts.
    pub fn stats(&self) -> Option<&PromptStats> {
        self.stats.as_ref()
    }

    /// Returns the first copy, from which indexes are built and which sequences are forked from.
    pub fn prefix(&self) -> &Arc<Prefix> {
        &self.prefix
    }

    /// Returns the number of copies, including the first.
    pub fn copies(&self) -> usize {
        1 + self.copies.len()
    }

    /// Returns the number of query heads of all sequences.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Uploads rotated queries `[sequence][head][d]`, which all runs use from now on.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn ask(&self, queries: Vec<f32>) -> Result<(), GpuError> {
        assert_eq!(queries.len(), self.heads * self.shape.d, "queries are not `[sequence][head][d]`");
        let mut own = self.queries.lock().unwrap_or_else(PoisonError::into_inner);
        Numbers::narrow(queries, storage(self.shape.dtype)).upload_to(&self.gpu, &mut own, 0)
    }

    /// Lends the buffer of queries to `act`, to read or to write.
    ///
    /// # Errors
    /// Those of `act`.
    pub(super) fn with_queries<T>(&self, act: impl FnOnce(&mut Buffer) -> Result<T, GpuError>) -> Result<T, GpuError> {
        act(&mut self.queries.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns where the keys and values of the next token of each of `rows` sequences are stored in a copy.
    pub(super) fn places(&self, copy: usize, rows: usize) -> Vec<Place> {
        let tail = self.tail.view(self.shape, self.copies());
        let each = self.shape.kv_heads / rows;
        (0..rows).map(|row| tail.cache(copy).place_from(row * each, 0)).collect()
    }

    /// Enqueues work that evicts from the device's caches what it wrote before; does not wait for it.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn flood(&self) -> Result<(), GpuError> {
        self.flood.lock().unwrap_or_else(PoisonError::into_inner).pass(&self.gpu)
    }

    /// Makes a run of the method of `fork`, which must not have made a step yet; `None` if the method selects on the host.
    ///
    /// # Errors
    /// If the device fails.
    pub fn run(self: &Arc<Self>, mut fork: Sequence) -> Result<Option<RunAlone>, GpuError> {
        let exact = match fork.begin_step(0) {
            LayerStep::StaticOnly(step) => step.finish(self.heads),
            LayerStep::Device(step) => step.finish(self.heads),
            LayerStep::DataIndependent(_)
            | LayerStep::Fixed(_)
            | LayerStep::Host(_)
            | LayerStep::HostAttendsPart(_)
            | LayerStep::HostAttends(_) => return Ok(None),
        };
        let mut run = RunAlone {
            layer: self.clone(),
            picks: Vec::new(),
            caches: self.empty_caches(&fork)?,
            in_order: HostDeviceVec::default(),
            indexes: self.further_indexes(&fork)?,
            held: Vec::new(),
            scratch: DeviceScratch::default(),
            attention: Vec::new(),
            out: self.gpu.alloc(self.heads * self.shape.d * self.shape.dtype.bytes())?,
            prepared: Vec::new(),
            recordings: Vec::new(),
            scoring: MaterializesScores::No,
            timeline: Timeline::default(),
            number: fork.budget_units(0, fork.tokens()),
            found: [0; 3],
            fork,
        };
        run.reserve()?;
        run.hold()?;
        for copy in 0..run.slots() {
            run.select_asked(copy)?;
            if copy == 0 {
                run.count()?;
            }
            run.prepare_copy(copy, exact)?;
        }
        // A first step allocates everything that the recorded step uses.
        run.step()?;
        run.record()?;
        Ok(Some(run))
    }

    /// Makes caches for each copy, if runs keep what the method selects and fetches; empty if not.
    fn empty_caches(&self, fork: &Sequence) -> Result<Vec<LayerCaches>, GpuError> {
        let group = self.heads / self.shape.kv_heads;
        let form = fork.device_form(0).map(|(form, _)| form).filter(|form| !form.takes_products(group));
        let (Some(bytes), Some(form)) = (self.cached, form) else { return Ok(Vec::new()) };
        let (tokens, heads) = (self.prefix.tokens(), self.copies() * self.shape.kv_heads);
        let of_copy = |_| LayerCaches::new(&self.gpu, self.shape, tokens, (bytes, heads), form.scores_keys());
        (0..self.copies()).map(of_copy).collect()
    }

    /// Builds the index of each copy but the first, if the method selects on the device.
    fn further_indexes(&self, fork: &Sequence) -> Result<Vec<DeviceIndex>, GpuError> {
        let Some((form, _)) = fork.device_form(0) else { return Ok(Vec::new()) };
        // The seed hardly affects how long a step takes.
        let learned = PrefixStatsView { seed: 0, stats: self.stats.as_ref() };
        self.copies.iter().map(|copy| form.build_all(&self.place(copy.cache(0), fork), &learned)).collect()
    }

    fn place<'a>(&'a self, cache: Cache<'a>, fork: &Sequence) -> DeviceLayer<'a> {
        let (dtype, candidates) = (self.shape.dtype, fork.prefix_candidates());
        let scale = self.prefix.spec(0).scale;
        DeviceLayer { gpu: &self.gpu, layer: 0, cache, scale, dtype, candidates }
    }

    fn caches(&self) -> impl Iterator<Item = Cache<'_>> {
        [shared(&self.prefix)].into_iter().chain(&self.copies).map(|copy| copy.cache(0))
    }
}

/// The panic message where attention runs before `prepare`.
const PREPARED: &str = "`prepare` ran before attention";

/// The time that one step takes at one copy, averaged over the steps that share a selection.
#[derive(Debug, Clone, Copy, Default)]
pub struct AloneTimes {
    /// The whole step.
    pub whole: Duration,
    /// Selection alone, timed by itself.
    pub select: Duration,
    /// Attention to the selected tokens alone, timed by itself.
    pub attend: Duration,
    /// Scoring alone, timed by itself; zero if the method does not score all candidates.
    pub score: Duration,
    /// The part of selection after scoring; zero if the method does not write scores.
    pub pick: Duration,
}

/// A method that repeats its step after the same context.
pub struct RunAlone {
    layer: Arc<LayerAlone>,
    fork: Sequence,
    number: u32,
    /// Index entries read by one selection; tokens that it selected; and how many these are if a KV head's token counts once.
    found: [u64; 3],
    /// The indexes of all copies but the first.
    indexes: Vec<DeviceIndex>,
    /// What the run holds of each copy if its method evicts tokens. Its contents change from step to step, its size does not.
    held: Vec<Option<HeldTokens>>,
    /// One for all copies or, if the run keeps what it fetches, one for each.
    picks: Vec<SelectionWorkspace>,
    /// What the run keeps of each copy; empty if it keeps nothing.
    caches: Vec<LayerCaches>,
    /// The numbers of the sequences, 0, 1, 2 and so on, as row numbers.
    in_order: HostDeviceVec<u32>,
    scratch: DeviceScratch,
    attention: Vec<AttentionWorkspace>,
    /// What copies attend, by [slot](Self::slot).
    prepared: Vec<Option<Prepared>>,
    out: Buffer,
    /// The whole step; then, if the method selects on the device, selection, attention and, if it can score alone, scoring.
    recordings: Vec<Recording>,
    scoring: MaterializesScores,
    timeline: Timeline,
}

impl std::fmt::Debug for RunAlone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RunAlone({:?})", self.layer)
    }
}

impl RunAlone {
    /// Returns the sequence, whose costs are those of one step at the first copy.
    pub fn fork(&self) -> &Sequence {
        &self.fork
    }

    /// Times a step at all copies with events of the device, with cold caches.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn times(&mut self) -> Result<AloneTimes, GpuError> {
        let (layer, copies) = (self.layer.clone(), self.layer.copies() as u32);
        let mut spans = [Duration::ZERO; 4];
        for (recording, span) in self.recordings.iter_mut().zip(&mut spans) {
            // The flood lets the host run ahead of the device, so that no launch is waited for.
            layer.flood()?;
            self.timeline.clear();
            layer.gpu.mark(&mut self.timeline)?;
            layer.gpu.replay(recording)?;
            layer.gpu.mark(&mut self.timeline)?;
            layer.gpu.synchronize()?;
            *span = self.timeline.spans()?[0] / copies;
        }
        let ([whole, select, attend, score], steps) = (spans, self.refresh());
        Ok(match self.recordings.len() {
            1 => AloneTimes { whole, attend: whole, ..AloneTimes::default() },
            _ => {
                let whole = (whole + attend * (steps - 1)) / steps;
                let pick =
                    if self.scoring == MaterializesScores::Yes { select.saturating_sub(score) } else { Duration::ZERO };
                AloneTimes { whole, select: select / steps, attend, score: score / steps, pick: pick / steps }
            }
        })
    }

    /// Whether selections write scores, whose time can be told from that of picking.
    pub fn materializes_scores(&self) -> MaterializesScores {
        self.scoring
    }

    /// Returns the number of steps that share a selection.
    pub fn refresh(&self) -> u32 {
        self.fork.device_form(0).map_or(1, |(form, _)| form.refresh() as u32)
    }

    /// Returns the part of the run's counted cost that one selection caused, and the share of it that falls to one step.
    pub fn picking(&self) -> (Cost, f64) {
        let kv_heads = self.layer.shape.kv_heads;
        let Some((form, _)) = self.fork.device_form(0) else { return (Cost::default(), 1.0) };
        let step = self.fork.step_shape(self.layer.heads / kv_heads, self.number);
        let mut cost = form.cost_of_picks(&step, self.found[0], self.found[1]);
        (0..kv_heads).for_each(|_| cost += form.cost(&step));
        if self.fork.crosses_bus() {
            cost.fetched.host = cost.kv_bytes;
        }
        (cost, 1.0 / f64::from(self.refresh()))
    }

    /// Returns the outputs of the last step, `[sequence][head][d]`.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn outputs(&self) -> Result<Vec<f32>, GpuError> {
        let (layer, count) = (&self.layer, self.layer.heads * self.layer.shape.d);
        super::host::download_wide(&layer.gpu, &self.out, 0, count, storage(layer.shape.dtype))
    }

    /// Takes one step at every copy without timing it.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn step(&mut self) -> Result<(), GpuError> {
        (0..self.layer.copies()).try_for_each(|copy| {
            self.select_asked(copy)?;
            self.fetch(copy)?;
            self.attend_asked(copy)
        })
    }

    /// Whether the tokens of a layer are selected ahead, while the layer before computes.
    pub fn selects_ahead(&self) -> bool {
        self.fork.method().method.selects_ahead()
    }

    /// Whether the run keeps what it fetches from host memory.
    pub fn has_caches(&self) -> bool {
        !self.caches.is_empty()
    }

    /// Returns the bytes that all copies found in their caches since the last call.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn take_found_bytes(&mut self) -> Result<u64, GpuError> {
        let (gpu, KvShape { d, dtype, .. }) = (&self.layer.gpu, self.layer.shape);
        let row_bytes = self.layer.shape.row_bytes() as u64;
        let mut bytes = 0;
        for caches in &mut self.caches {
            let hits = caches.take_hits(gpu)?;
            bytes += hits.tokens * row_bytes + hits.keys * (d * dtype.bytes()) as u64;
        }
        Ok(bytes)
    }

    /// Returns the bytes of the prefix that one copy's selection, and attention to what it selects, read.
    pub fn selected_bytes(&self) -> u64 {
        let (cost, _) = self.picking();
        cost.kv_bytes + self.found[2] * self.layer.shape.row_bytes() as u64
    }

    /// Fetches the tokens selected for a copy if its prefix is in host memory, and they are selected ahead or kept.
    fn fetch(&mut self, copy: usize) -> Result<(), GpuError> {
        let layer = self.layer.clone();
        let fetches = self.selects_ahead() || self.has_caches();
        if !fetches || shared(&layer.prefix).tier() != Tier::Host || self.fork.device_form(0).is_none() {
            return Ok(());
        }
        let cache = layer.caches().nth(copy).expect("`copy` is below the number of copies");
        let tail = layer.tail.view(layer.shape, layer.copies());
        let place = self.place_of(copy);
        let lists = &mut self.picks[place].of_layer(copy).own.lists;
        let kept = self.caches.get(copy).and_then(|caches| caches.tokens.as_ref());
        layer.gpu.fetch_tokens(lists, &cache, layer.prefix.tokens(), &[tail.cache(copy)], kept)
    }

    /// Makes the workspaces of selections, and room for what copies attend.
    fn reserve(&mut self) -> Result<(), GpuError> {
        let count = if self.has_caches() { self.layer.copies() } else { 1 };
        self.picks.resize_with(count, SelectionWorkspace::default);
        let alternates = self.selects_ahead();
        for picks in &mut self.picks {
            picks.rows.set(&self.layer.gpu, vec![0])?;
            picks.alternates = alternates;
        }
        let slots = self.slots();
        self.attention.resize_with(slots, AttentionWorkspace::default);
        self.prepared.resize_with(slots, || None);
        Ok(())
    }

    /// Returns which workspace has the selection of a copy.
    fn place_of(&self, copy: usize) -> usize {
        if self.has_caches() { copy } else { 0 }
    }

    /// Selects for a copy by queries `[sequence][head][d]` that are known one layer earlier, and fetches the selected tokens.
    pub(super) fn select_ahead(&mut self, copy: usize, queries: &Buffer) -> Result<(), GpuError> {
        self.select(copy, queries)?;
        self.fetch(copy)
    }

    /// Fetches the first selection of a copy if need be, and prepares its attention.
    fn prepare_copy(&mut self, copy: usize, exact: StaticTokens) -> Result<(), GpuError> {
        self.fetch(copy)?;
        self.await_tokens(copy)?;
        self.prepare(copy, exact)
    }

    /// Makes the work enqueued next wait until the tokens fetched for a copy have arrived.
    fn await_tokens(&mut self, copy: usize) -> Result<(), GpuError> {
        let place = self.place_of(copy);
        self.layer.gpu.await_tokens(&mut self.picks[place].of_layer(copy).own.lists)
    }

    /// Creates what the run holds of each copy.
    fn hold(&mut self) -> Result<(), GpuError> {
        let Some((form, first)) = self.fork.device_form(0) else { return Ok(()) };
        let (gpu, total) = (&self.layer.gpu, self.fork.tokens());
        let start = |index| form.start_all(gpu, index, total);
        self.held = [first].into_iter().chain(&self.indexes).map(start).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn record(&mut self) -> Result<(), GpuError> {
        // A single layer has no layer before it to overlap with, so its times would say nothing about selecting ahead. And repeating parts
        // of a step would change what caches hold.
        if self.selects_ahead() || self.has_caches() {
            return Ok(());
        }
        let gpu = self.layer.gpu.clone();
        let whole = gpu.record(|| self.step())?;
        self.recordings.push(whole);
        if self.fork.device_form(0).is_some() {
            let copies = 0..self.layer.copies();
            let select = gpu.record(|| copies.clone().try_for_each(|copy| self.select_asked(copy)))?;
            let attend = gpu.record(|| copies.clone().try_for_each(|copy| self.attend_asked(copy)))?;
            self.recordings.extend([select, attend]);
            self.scoring = self.score(0)?;
            if self.scoring != MaterializesScores::No {
                let score = gpu.record(|| copies.clone().try_for_each(|copy| self.score(copy).map(drop)))?;
                self.recordings.push(score);
            }
        }
        Ok(())
    }

    /// Selects for a copy by queries `[sequence][head][d]`, if the method selects at all.
    fn select(&mut self, copy: usize, queries: &Buffer) -> Result<(), GpuError> {
        let select =
            |form: &dyn DeviceForm, step: &DeviceStep<'_>, index: &DeviceIndex, picks: &mut _, scratch: &mut _| {
                form.select_all(step, index, picks, scratch)
            };
        self.with_form(copy, queries, select).map(drop)
    }

    /// Selects for a copy by the queries given to [`ask`](LayerAlone::ask).
    fn select_asked(&mut self, copy: usize) -> Result<(), GpuError> {
        let layer = self.layer.clone();
        layer.with_queries(|queries| self.select(copy, queries))
    }

    /// Scores the candidates of a copy, if the method can.
    fn score(&mut self, copy: usize) -> Result<MaterializesScores, GpuError> {
        let layer = self.layer.clone();
        let score = |form: &dyn DeviceForm, step: &DeviceStep<'_>, index: &DeviceIndex, _: &mut _, scratch: &mut _| {
            form.score_only(step, index, scratch)
        };
        let scored = layer.with_queries(|queries| self.with_form(copy, queries, score))?;
        Ok(scored.unwrap_or(MaterializesScores::No))
    }

    /// Runs `act` with the method's device form and a copy's step, if the method has a device form.
    fn with_form<T>(
        &mut self,
        copy: usize,
        queries: &Buffer,
        act: impl FnOnce(
            &dyn DeviceForm,
            &DeviceStep<'_>,
            &DeviceIndex,
            &mut DeviceWorkspace,
            &mut DeviceScratch,
        ) -> Result<T, GpuError>,
    ) -> Result<Option<T>, GpuError> {
        let Some((form, first)) = self.fork.device_form(0) else { return Ok(None) };
        let (layer, index) = (&self.layer, if copy == 0 { first } else { &self.indexes[copy - 1] });
        let cache = layer.caches().nth(copy).expect("`copy` is below the number of copies");
        let stride = layer.heads * layer.shape.d;
        let tail = layer.tail.view(layer.shape, layer.copies());
        let place = self.place_of(copy);
        let LayerPicks { rows, own, .. } = self.picks[place].of_layer(copy);
        let queries = Queries { queries, stride, heads: layer.heads, rows };
        let total = self.fork.tokens();
        let ends = self.fork.device_candidates_move().then(|| [self.fork.device_candidates(total).end]);
        let step = DeviceStep {
            prefix: layer.place(cache, &self.fork),
            prefix_tokens: layer.prefix.tokens(),
            ends: ends.as_ref().map(|ends| ends.as_slice()),
            queries,
            budget_units: &[self.number],
            seeds: &[self.fork.row_seed(self.fork.tokens())],
            runs: &[DeviceSequence { tail: tail.cache(copy), held: self.held[copy].as_ref() }],
            keys: self.caches.get(copy).and_then(|caches| caches.keys.as_ref()),
        };
        act(form, &step, index, own, &mut self.scratch).map(Some)
    }

    /// Counts the selected tokens.
    fn count(&mut self) -> Result<(), GpuError> {
        if self.fork.device_form(0).is_none() {
            return Ok(());
        }
        let (gpu, kv_heads, heads) = (&self.layer.gpu, self.layer.shape.kv_heads, self.layer.heads);
        let counters = gpu.alloc(8 * (kv_heads + heads + 1))?;
        let LayerPicks { own, counters: workspace, .. } = self.picks[0].of_layer(0);
        let tokens = self.fork.prefix_candidates().start..own.lists.end();
        gpu.count_picks(&own.lists, (kv_heads, heads), tokens, &[(&counters, 1)], 0, workspace)?;
        let mut picked = vec![0; kv_heads + heads + 1];
        gpu.download(&counters, 0, &mut picked)?;
        let [read, attended] = [0..kv_heads, kv_heads..kv_heads + heads].map(|range| picked[range].iter().sum());
        self.found = [picked[kv_heads + heads], attended, read];
        self.fork.collect_device_counters(&picked);
        Ok(())
    }

    /// Prepares the lists of tokens that a copy attends.
    fn prepare(&mut self, copy: usize, exact: StaticTokens) -> Result<(), GpuError> {
        let (layer, total) = (&self.layer, self.fork.tokens());
        let (kv_heads, prefix_tokens) = (layer.shape.kv_heads, layer.prefix.tokens());
        let tail = layer.tail.view(layer.shape, layer.copies());
        let lists = [&self.picks[self.place_of(copy)].picked(copy).lists];
        let plan = match self.fork.device_form(0) {
            Some(_) => RowPlan::Left(exact, RowOfLists { lists: 0, row: 0 }),
            None => RowPlan::Exact(exact),
        };
        let expected = plan.tokens(total, kv_heads, &lists);
        let sizes = (plan.units(kv_heads, &lists), expected);
        let mut attention = Attention::new(1, layer.heads, sizes, layer.gpu.processors());
        let group = layer.heads / kv_heads;
        for kv_head in 0..kv_heads {
            HeadPlan { row: 0, kv_head, group, total, tail: &tail }.add(&mut attention, &plan, prefix_tokens, &lists);
        }
        let slot = self.slot(copy);
        self.prepared[slot] = Some(layer.gpu.prepare(&mut attention, &mut self.attention[slot], layer.shape.d)?);
        Ok(())
    }

    /// Attends a copy by the queries given to [`ask`](LayerAlone::ask).
    fn attend_asked(&mut self, copy: usize) -> Result<(), GpuError> {
        let layer = self.layer.clone();
        self.await_tokens(copy)?;
        let prepared = self.prepared[self.slot(copy)].as_ref().expect(PREPARED);
        layer.with_queries(|queries| attend(&layer, prepared, copy, queries, &mut self.out))
    }

    /// Attends a copy by queries `[sequence][head][d]`, into `out` of the same shape. If `picks`, selects first.
    pub(super) fn step_layer(
        &mut self,
        copy: usize,
        picks: bool,
        queries: &Buffer,
        out: &mut Buffer,
    ) -> Result<(), GpuError> {
        if picks {
            self.select(copy, queries)?;
            self.fetch(copy)?;
        }
        self.await_tokens(copy)?;
        attend(&self.layer, self.prepared[self.slot(copy)].as_ref().expect(PREPARED), copy, queries, out)
    }

    /// Returns which prepared lists a copy uses: its own if the run keeps what it fetches; odd copies have others than even ones if tokens
    /// are selected ahead.
    fn slot(&self, copy: usize) -> usize {
        copy % self.slots()
    }

    /// Returns the number of prepared lists.
    fn slots(&self) -> usize {
        match (self.has_caches(), self.selects_ahead()) {
            (true, _) => self.layer.copies(),
            (false, true) => self.layer.copies().min(2),
            (false, false) => 1,
        }
    }

    /// Uploads the numbers of `rows` sequences.
    pub(super) fn rows_in_order(&mut self, rows: usize) -> Result<(), GpuError> {
        self.in_order.set(&self.layer.gpu, (0..rows as u32).collect())
    }

    /// Returns the numbers of the sequences.
    pub(super) fn in_order(&self) -> &HostDeviceVec<u32> {
        &self.in_order
    }
}

fn attend(
    layer: &LayerAlone,
    prepared: &Prepared,
    copy: usize,
    queries: &Buffer,
    out: &mut Buffer,
) -> Result<(), GpuError> {
    let cache = layer.caches().nth(copy).expect("`copy` is below the number of copies");
    let scale = layer.prefix.spec(0).scale.factor();
    let prefix =
        kernels::Prefix { cache, tokens: layer.prefix.tokens(), layer: copy, scale, rule: kernels::LayerRule::PLAIN };
    layer.gpu.attend(prepared, &prefix, queries, layer.heads * layer.shape.d, out, None)
}

//! Timing on a GPU: one layer's attention for all sequences is one launch of recorded kernels, timed by device events.
//!
//! A batch has only a few distinct sequences. The others are copies at other addresses, which read equally many bytes that are not in a
//! cache. If a layer is small, several copies of it take the step one after the other, so that a launch is long enough to time; the time of
//! one is reported.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::attention::count_steps;
use super::index::count_index;
use super::row::{BenchRow, Roof};
use super::sequence::BenchSequence;
use super::turns::{Between, Flood as HostFlood, Runs, Turn};
use spattn_attention::kv::{KvDtype, KvError, LayerKv, Tier};
use spattn_attention::{Configured, IndexCache, PromptStats, Rotation};
use spattn_cuda::{Flood, Gpu, Into, Storage, WeightMatrix};
use spattn_model::cuda::{AloneTimes, BatchWorkspace, Following, LayerAlone, PartAlone, PartTimes, RunAlone};
use spattn_model::decoder::Decoder;
use spattn_model::dimensions::Dimensions;

/// Distinct sequences of a batch; the others are copies of them.
pub(super) const DRAWN: usize = 2;
/// A layer is copied until keys and values have this many bytes, or there are this many copies.
const LEAST_BYTES: usize = 3 << 29;
const MOST_COPIES: usize = 16;
/// Rows, outputs and inputs of the matrix product that measures the device's peak, and how often it runs.
const PRODUCT: [usize; 3] = [8192, 8192, 8192];
const PRODUCTS: usize = 10;

/// A GPU, with what is needed between turns.
pub(super) struct OnGpu {
    /// The device.
    pub gpu: Arc<Gpu>,
    /// The device's name.
    pub name: String,
    flood: Mutex<Flood>,
    /// Evicts the contents of the host's caches, and measures how fast the host reads; made when it is first needed.
    host: OnceLock<Mutex<HostFlood>>,
    /// Whether the host attends something, so that its caches have to be evicted, too.
    floods_host: AtomicBool,
}

impl OnGpu {
    fn host(&self) -> MutexGuard<'_, HostFlood> {
        self.host.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes turns evict the contents of the host's caches from now on.
    pub fn flood_host(&self) {
        self.floods_host.store(true, Ordering::Relaxed);
    }

    /// Opens the device.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn open(ordinal: usize) -> Result<Self> {
        let gpu = Arc::new(Gpu::open(ordinal)?);
        let flood = Mutex::new(Flood::new(&gpu)?);
        let (host, floods_host) = (OnceLock::new(), AtomicBool::new(false));
        Ok(Self { name: gpu.info()?.name, gpu, flood, host, floods_host })
    }

    /// Evicts the contents of the caches, and waits for it.
    ///
    /// # Errors
    /// If the device fails.
    pub fn flood(&self) -> Result<()> {
        if self.floods_host.load(Ordering::Relaxed) {
            Between::before_turn(&mut *self.host())?;
        }
        self.flood.lock().unwrap_or_else(PoisonError::into_inner).pass(&self.gpu)?;
        Ok(self.gpu.synchronize()?)
    }

    /// The bandwidth of a copy, and the throughput of a large product in bf16; also the bandwidths of the link to the host, if keys and
    /// values are in `tier`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn roof(&self, tier: Tier) -> Result<Roof> {
        let link = match tier {
            Tier::Host => Some(self.gpu.link_bandwidth()?.map(|bandwidth| bandwidth / 1e9)),
            Tier::Device | Tier::Disk => None,
        };
        let (read_gbps, peak_gflops) = (self.gpu.copy_bandwidth()? / 1e9, self.product_gflops()?);
        let host_gbps = (tier == Tier::Host).then(|| self.host().roof().read_gbps);
        Ok(Roof { read_gbps, peak_gflops, is_tiled: false, link_gbps: link, host_gbps })
    }

    fn product_gflops(&self) -> Result<f64> {
        let [rows, outputs, inputs] = PRODUCT;
        // Random numbers, because zeros are multiplied faster.
        let noise = |count: usize, seed: u64| -> Vec<half::bf16> {
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                half::bf16::from_f32((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
            };
            (0..count).map(|_| next()).collect()
        };
        let (weights, x) = (self.gpu.upload(&noise(outputs * inputs, 1))?, self.gpu.upload(&noise(rows * inputs, 2))?);
        let mut out = self.gpu.alloc(2 * rows * outputs)?;
        let mut times = Vec::new();
        for _ in 0..PRODUCTS {
            self.gpu.synchronize()?;
            let start = Instant::now();
            let weights = WeightMatrix { data: &weights, outputs, inputs };
            self.gpu.multiply(Storage::Bf16, weights, &x, rows, &mut out, Into::Narrow)?;
            self.gpu.synchronize()?;
            times.push(start.elapsed());
        }
        times.sort();
        let operations = 2.0 * (rows * outputs * inputs) as f64;
        Ok(operations / times[times.len() / 2].as_secs_f64() / 1e9)
    }
}

/// The number of copies of a layer that make a launch long enough to time.
///
/// # Errors
/// If the layer cannot be read.
pub(super) fn copies(sequences: &[BenchSequence], batch: usize) -> Result<usize, KvError> {
    let kv = sequences.first().map_or(Ok(1), |sequence| sequence.prefix.layer(0).map(LayerKv::bytes))?;
    Ok((LEAST_BYTES / (batch * kv.max(1))).clamp(1, MOST_COPIES))
}

/// Copies sequences to where the device reads them: `batch` that step together, in `copies` copies of the layer. Each method keeps what it
/// fetches of a sequence in `cached` bytes.
///
/// # Errors
/// If they do not fit.
pub(super) fn layer(
    gpu: &Arc<Gpu>,
    dimensions: &Dimensions,
    sequences: &[BenchSequence],
    batch: usize,
    (copies, tier, cached): (usize, Tier, Option<usize>),
) -> Result<Arc<LayerAlone>> {
    let with_next: Vec<_> = sequences
        .iter()
        .map(|sequence| {
            let next = &sequence.steps[0][0];
            Ok((sequence.prefix.layer(0)?, Following { key: &next.key, value: &next.value }))
        })
        .collect::<Result<_, KvError>>()?;
    let heads = dimensions.config().heads;
    let stats: Vec<&PromptStats> = sequences.iter().filter_map(BenchSequence::stats).collect();
    let stats = PromptStats::beside(&stats, batch);
    let layer = LayerAlone::new(gpu.clone(), heads, &with_next, batch, (copies, tier))?;
    Ok(Arc::new(layer.knowing(stats).keeping(cached.map(|bytes| batch * bytes))))
}

/// An empty index cache for a layer on the device.
pub(super) fn cache(layer: &LayerAlone, dtype: KvDtype, seed: u64, rotation: Option<&Arc<dyn Rotation>>) -> IndexCache {
    let mut cache = IndexCache::new(layer.prefix().clone(), dtype, seed).with_prompt(layer.prefix().tokens());
    if let Some(stats) = layer.stats() {
        cache = cache.with_stats(stats.clone());
    }
    match rotation {
        Some(rotation) => cache.with_rotation(rotation.clone()),
        None => cache,
    }
}

/// A method that takes steps on the device.
pub(super) struct SteppingThere<'s> {
    layer: Arc<LayerAlone>,
    run: RunAlone,
    sequences: &'s [BenchSequence],
    batch: usize,
}

impl<'s> SteppingThere<'s> {
    /// Builds a method's indexes and records its step; `None` if it selects on the host.
    ///
    /// # Errors
    /// If the device fails.
    pub fn new(
        method: &Configured,
        layer: &Arc<LayerAlone>,
        cache: &mut IndexCache,
        sequences: &'s [BenchSequence],
        batch: usize,
    ) -> Result<Option<Self>> {
        if !cache.can_stay_on_device(method) {
            return Ok(None);
        }
        layer.ask(queries(sequences, batch, 0))?;
        let sequence = cache.fork(method, false)?;
        Ok(layer.run(sequence)?.map(|run| Self { layer: layer.clone(), run, sequences, batch }))
    }
}

/// A method that selects on the host and attends there what it selects, while the device attends its other tokens.
pub(super) struct SteppingBeside<'s> {
    layer: Arc<LayerAlone>,
    run: PartAlone,
    sequences: &'s [BenchSequence],
    batch: usize,
}

impl<'s> SteppingBeside<'s> {
    /// Builds a method's indexes; `None` unless the host attends what it selects.
    ///
    /// # Errors
    /// If the device fails.
    pub fn new(
        method: &Configured,
        layer: &Arc<LayerAlone>,
        cache: &mut IndexCache,
        (sequences, batch): (&'s [BenchSequence], usize),
        steps: usize,
    ) -> Result<Option<Self>> {
        if !method.method.attends_on_host() {
            return Ok(None);
        }
        let run = layer.run_part(cache.fork(method, false)?, steps)?;
        Ok(run.map(|run| Self { layer: layer.clone(), run, sequences, batch }))
    }
}

impl Runs for SteppingBeside<'_> {
    /// Takes the wall-clock time of one layer, which waits for the host. The host's part, including its attention, counts as selection.
    fn turn(&mut self, number: usize) -> Result<Turn> {
        self.layer.ask(queries(self.sequences, self.batch, number))?;
        self.layer.flood()?;
        let PartTimes { whole, host } = self.run.step()?;
        Ok(Turn { select: host, attend: whole.saturating_sub(host), ..Turn::of(whole) })
    }

    fn count(&self, row: &mut BenchRow) {
        count_steps(std::slice::from_ref(self.run.fork()), row);
    }
}

/// Makes an index cache over a prefix of the whole model in host memory, whose layers all repeat that of the first sequence.
///
/// # Errors
/// If it does not fit.
pub(super) fn cache_of_model(decoder: &Decoder, sequences: &[BenchSequence], seed: u64) -> Result<IndexCache> {
    let cuda = decoder.cuda().expect("the model is on the device");
    let kv = sequences.first().map(|sequence| sequence.prefix.layer(0)).transpose()?;
    let layers: Vec<&LayerKv> = kv.into_iter().cycle().take(decoder.config().layers).collect();
    let prefix = cuda.prefix_on_host(&layers)?;
    let tokens = prefix.tokens();
    Ok(IndexCache::new(prefix, decoder.dtype(), seed).with_prompt(tokens))
}

/// A method that builds its index of one layer on the device.
pub(super) struct BuildingThere<'s> {
    method: &'s Configured,
    layer: Arc<LayerAlone>,
    dtype: KvDtype,
    seed: u64,
    rotation: Option<Arc<dyn Rotation>>,
    aux_bits: f64,
}

impl<'s> BuildingThere<'s> {
    /// Prepares a build; `None` if the method has no index on the device.
    pub fn new(
        method: &'s Configured,
        layer: &Arc<LayerAlone>,
        dtype: KvDtype,
        seed: u64,
        rotation: Option<Arc<dyn Rotation>>,
    ) -> Option<Self> {
        let cache = cache(layer, dtype, seed, rotation.as_ref());
        let builds = !method.method.is_static_only() && cache.can_stay_on_device(method);
        builds.then(|| Self { method, layer: layer.clone(), dtype, seed, rotation, aux_bits: 0.0 })
    }
}

impl Runs for BuildingThere<'_> {
    /// Wall-clock time until the device has finished.
    fn turn(&mut self, _: usize) -> Result<Turn> {
        let sequence = cache(&self.layer, self.dtype, self.seed, self.rotation.as_ref()).fork(self.method, false)?;
        self.aux_bits = sequence.aux_bits();
        Ok(Turn::of(sequence.index_time().whole))
    }

    fn count(&self, row: &mut BenchRow) {
        count_index(self.layer.prefix(), self.aux_bits, row);
    }
}

/// Whole decode steps of a model after the same contexts.
pub(super) struct DecodingThere<'s> {
    stepping: SteppingThere<'s>,
    decoder: &'s Decoder,
    workspace: BatchWorkspace,
    /// Bytes that each step that selected found in caches.
    found: Vec<u64>,
}

impl<'s> DecodingThere<'s> {
    /// Whole steps of `decoder`, with the attention of `stepping`.
    pub fn new(decoder: &'s Decoder, stepping: SteppingThere<'s>) -> Self {
        Self { stepping, decoder, workspace: BatchWorkspace::default(), found: Vec::new() }
    }
}

impl DecodingThere<'_> {
    /// Returns the bytes that crossed the bus in a step, over all layers: the mean over turns but the first, which began with empty caches
    /// and took some steps more to record them.
    fn bus_bytes(&self, layers: u64) -> Option<u64> {
        let run = &self.stepping.run;
        let all = run.fork().crosses_bus().then(|| run.fork().costs().total(|_| true).fetched.host)?;
        let found = self.found.get(1..).filter(|found| !found.is_empty())?;
        let (found, selected) = (found.iter().sum::<u64>() / found.len() as u64, run.selected_bytes());
        let of_selecting = (layers * selected).saturating_sub(found) / u64::from(run.refresh());
        Some(layers * all.saturating_sub(selected) + of_selecting)
    }
}

impl Runs for DecodingThere<'_> {
    /// The mean time of the steps that share one selection.
    fn turn(&mut self, number: usize) -> Result<Turn> {
        let Self { stepping, decoder, workspace, found } = self;
        let cuda = decoder.cuda().expect("the model is on the device");
        let token = number as u32 % decoder.config().vocab_size as u32;
        let tokens = vec![token; stepping.batch];
        let refresh = stepping.run.refresh();
        let mut step = |picks| cuda.step_batch(&stepping.layer, &mut stepping.run, &tokens, picks, workspace);
        let picking = step(true)?;
        if stepping.run.has_caches() {
            found.push(stepping.run.take_found_bytes()?);
        }
        let mut step = |picks| cuda.step_batch(&stepping.layer, &mut stepping.run, &tokens, picks, workspace);
        let time = if refresh == 1 { picking } else { (picking + step(false)? * (refresh - 1)) / refresh };
        if stepping.run.selects_ahead() || stepping.run.has_caches() {
            return Ok(Turn::of(time));
        }
        let (alone, layers) = (stepping.run.times()?, stepping.layer.copies() as u32);
        Ok(turn(time, &alone, layers))
    }

    fn count(&self, row: &mut BenchRow) {
        let layers = self.stepping.layer.copies() as u64;
        self.stepping.count(row);
        row.layers = layers as usize;
        let numbers = self.decoder.step_weight_numbers();
        let weights = self.decoder.step_weight_bytes() as u64;
        row.limit_bytes = layers * row.limit_bytes + weights;
        row.bytes = layers * row.bytes + weights;
        row.bus_bytes = row.bus_bytes.map(|bytes| layers * bytes);
        if self.stepping.run.has_caches() {
            row.bus_bytes = self.bus_bytes(layers);
        }
        row.flops = layers * row.flops + 2 * self.stepping.batch as u64 * numbers as u64;
        if self.stepping.run.selects_ahead() || self.stepping.run.has_caches() {
            // What is picked and fetched ahead overlaps with the rest, so that the parts do not add up to the whole.
            (row.weights_us, row.weights_low_us, row.weights_high_us) = (None, None, None);
        }
    }
}

/// The queries of all sequences of a batch at a step.
fn queries(sequences: &[BenchSequence], batch: usize, step: usize) -> Vec<f32> {
    (0..batch).flat_map(|i| sequences[i % sequences.len()].steps[step][0].queries.iter().copied()).collect()
}

/// A turn over `layers` layers. Each part was timed separately for one layer.
fn turn(time: Duration, alone: &AloneTimes, layers: u32) -> Turn {
    let AloneTimes { select, attend, score, pick, .. } = *alone;
    Turn { time, score: score * layers, pick: pick * layers, select: select * layers, attend: attend * layers }
}

impl Runs for SteppingThere<'_> {
    fn turn(&mut self, number: usize) -> Result<Turn> {
        self.layer.ask(queries(self.sequences, self.batch, number))?;
        let times = self.run.times()?;
        Ok(turn(times.whole, &times, 1))
    }

    fn count(&self, row: &mut BenchRow) {
        count_steps(std::slice::from_ref(self.run.fork()), row);
        // If several steps share one selection, each counts an equal part of its cost.
        let (cost, share) = self.run.picking();
        let rest = |number: u64| ((1.0 - share) * number as f64) as u64;
        row.limit_bytes -= rest(cost.kv_bytes + cost.aux_bytes);
        row.bytes -= rest(cost.kv_bytes + cost.aux_bytes + cost.select_bytes);
        row.flops -= rest(cost.score_flops);
        row.bus_bytes = row.bus_bytes.map(|bytes| bytes - rest(cost.fetched.host));
    }
}

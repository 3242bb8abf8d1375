//! The engine on an NVIDIA GPU: weights, the prefix, the tails and all arithmetic on rows live there.
//!
//! Methods with a [form on a device](crate::attention::DeviceForm) pick where the prefix is, into lists that are attended there;
//! these, and runs that only attend exactly, wait for nothing within a step. The others pick on the host, by the code that all
//! engines share: queries and the new keys and values come down, picks go up, and the GPU attends them; who picks without a look
//! at anything has nothing come down. A prefix is copied to the host, layer by layer, when somebody looks at it there. Rows that
//! are attended at other positions than they were read at are attended on the host as well.
//!
//! The residual stream is f32; what feeds a product, keys and values are of the storage type; sums are f32.

use std::any::Any;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;

use super::dimensions::{Dimensions, GPU_PREFILL_CHUNK};
use super::engine::{Engine, EngineError, GpuUse, NotFinite, Prefill, Reading, Stream, first_not_finite, positions};
use super::layers::{Checkpoint, Layer, Parts, Source};
use super::weights::{RawTensor, WeightsError};
use crate::attention::calibration::{DeviceChunk, PrefillChunk};
use crate::attention::{
    DeviceLayer, DeviceRoom, DeviceScratch, DeviceStep, Exact, Fork, Picked, Picks, Selection, Selects, Weighting,
};
use crate::kernels::cuda::{
    self as kernels, Attention, AttentionRoom, Buffer, Cache, Gpu, GpuError, Into, Mirrored, Norms, Place, Plain,
    Positions, Prepared, Queries, Recording, Rows, Storage, Timeline, TokenLists, Tokens, Unit, Weights,
};
use crate::kv::{DeviceFailure, DeviceKv, KvDtype, KvShape, KvStore, LayerKv, Prefix, RowsMut};

/// Room for so many tokens behind the prefix, before a tail has to grow.
const TAIL_CAPACITY: usize = 64;
/// What `broken` holds while all numbers are finite.
const UNBROKEN: u64 = u64::MAX;

impl From<GpuError> for DeviceFailure {
    fn from(error: GpuError) -> Self {
        Self(error.to_string())
    }
}

impl From<GpuError> for EngineError {
    fn from(error: GpuError) -> Self {
        Self::Device(error.into())
    }
}

fn storage(dtype: KvDtype) -> Storage {
    match dtype {
        KvDtype::F32 => Storage::F32,
        KvDtype::F16 => Storage::F16,
        KvDtype::Bf16 => Storage::Bf16,
    }
}

/// A weight matrix on the device.
struct Matrix {
    data: Buffer,
    outputs: usize,
    inputs: usize,
}

/// A weight matrix and its bias.
struct Linear {
    weight: Matrix,
    bias: Option<Buffer>,
}

/// Why the weights are not on the device.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadFailure {
    /// A tensor is not what it should be.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] GpuError),
}

/// Takes a checkpoint's tensors to a device.
struct ToDevice<'a> {
    checkpoint: Checkpoint<'a>,
    gpu: &'a Gpu,
}

impl ToDevice<'_> {
    fn put<T: Plain>(&self, tensors: &[RawTensor], to: fn(&RawTensor) -> Vec<T>) -> Result<Buffer, GpuError> {
        let total: usize = tensors.iter().map(|tensor| tensor.len() * size_of::<T>()).sum();
        let mut buffer = self.gpu.alloc(total)?;
        let mut at = 0;
        for tensor in tensors {
            let numbers = to(tensor);
            self.gpu.upload_to(&mut buffer, at, &numbers)?;
            at += size_of_val(numbers.as_slice());
        }
        // The copies read what is freed here.
        self.gpu.synchronize()?;
        Ok(buffer)
    }
}

impl Source for ToDevice<'_> {
    type Matrix = Matrix;
    type Linear = Linear;
    type Vector = Buffer;
    type Error = LoadFailure;

    fn matrix(&self, names: &[&str], outputs: &[usize], inputs: usize) -> Result<Matrix, LoadFailure> {
        let tensors = self.checkpoint.matrices(names, outputs, inputs)?;
        let data = match self.checkpoint.dtype {
            KvDtype::F32 => self.put(&tensors, RawTensor::to_f32),
            KvDtype::F16 => self.put(&tensors, RawTensor::to_f16),
            KvDtype::Bf16 => self.put(&tensors, RawTensor::to_bf16),
        }?;
        Ok(Matrix { data, outputs: outputs.iter().sum(), inputs })
    }

    fn linear(&self, names: &[&str], outputs: &[usize], inputs: usize, bias: bool) -> Result<Linear, LoadFailure> {
        let bias = match bias {
            true => Some(self.gpu.upload(&self.checkpoint.biases(names, outputs)?)?),
            false => None,
        };
        Ok(Linear { weight: self.matrix(names, outputs, inputs)?, bias })
    }

    fn vector(&self, name: &str, len: usize) -> Result<Buffer, LoadFailure> {
        let vector = self.checkpoint.vector(name, len)?;
        Ok(self.gpu.upload(&vector)?)
    }
}

/// Weights on a GPU.
pub(super) struct Cuda {
    dimensions: Dimensions,
    gpu: Arc<Gpu>,
    name: String,
    parts: Parts<Matrix, Linear, Buffer>,
    room: Mutex<Option<Room>>,
    used: Mutex<GpuUse>,
}

impl Deref for Cuda {
    type Target = Dimensions;

    fn deref(&self) -> &Dimensions {
        &self.dimensions
    }
}

/// Activations of so many rows, kept from one use to the next.
struct Room {
    rows: usize,
    tokens: Buffer,
    positions: Buffer,
    /// f32, `[hidden]` a row.
    x: Buffer,
    normed: Buffer,
    qkv: Buffer,
    attended: Buffer,
    /// The same in f32, where the host looks at it.
    wide: Option<Buffer>,
    gate_up: Buffer,
    gated: Buffer,
    broken: Buffer,
    places: Option<Buffer>,
    /// Frequencies of a step.
    inverse: Option<Buffer>,
    logits: Option<Buffer>,
    attention: AttentionRoom,
    /// One for each of what the layers of a step attend, where nothing is picked.
    exact: Vec<AttentionRoom>,
    recorded: Option<Recorded>,
    /// Of a step in which tokens are picked: four marks a layer.
    timeline: Timeline,
    /// Of rows that the device picks for, method by method.
    picks: Vec<PickRoom>,
    scratch: DeviceScratch,
}

/// The layers of a step whose shape repeats.
struct Recorded {
    /// All that launching them depends on.
    key: Vec<u64>,
    /// Made when the shape comes up a second time.
    recording: Option<Recording>,
}

/// What is the same at all layers of a step.
struct StepPlan<'a> {
    rows: &'a [Row],
    by_row: bool,
    scaling: f32,
}

/// What is kept for rows that the device picks for together.
#[derive(Default)]
struct PickRoom {
    rows: Mirrored<u32>,
    counters: Mirrored<u64>,
    own: DeviceRoom,
}

/// Numbers of a storage type on the host.
enum Numbers {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Numbers {
    fn narrow(numbers: Vec<f32>, storage: Storage) -> Self {
        match storage {
            Storage::F32 => Self::F32(numbers),
            Storage::F16 => Self::F16(numbers.par_iter().map(|x| f16::from_f32(*x)).collect()),
            Storage::Bf16 => Self::Bf16(numbers.par_iter().map(|x| bf16::from_f32(*x)).collect()),
        }
    }

    fn upload_to(&self, gpu: &Gpu, buffer: &mut Buffer, offset: usize) -> Result<(), GpuError> {
        match self {
            Self::F32(numbers) => gpu.upload_to(buffer, offset, numbers),
            Self::F16(numbers) => gpu.upload_to(buffer, offset, numbers),
            Self::Bf16(numbers) => gpu.upload_to(buffer, offset, numbers),
        }
    }
}

/// Downloads `count` numbers of `storage` behind the first `skip` of a buffer, as f32.
fn download_wide(
    gpu: &Gpu,
    buffer: &Buffer,
    skip: usize,
    count: usize,
    storage: Storage,
) -> Result<Vec<f32>, GpuError> {
    /// Numbers that one thread widens at a time.
    const PIECE: usize = 1 << 16;
    let (mut wide, offset) = (vec![0.0; count], skip * storage.bytes());
    match storage {
        Storage::F32 => gpu.download(buffer, offset, &mut wide)?,
        Storage::F16 => {
            let mut numbers = vec![f16::ZERO; count];
            gpu.download(buffer, offset, &mut numbers)?;
            let pieces = wide.par_chunks_mut(PIECE).zip(numbers.par_chunks(PIECE));
            pieces.for_each(|(wide, numbers)| numbers.convert_to_f32_slice(wide));
        }
        Storage::Bf16 => {
            let mut numbers = vec![bf16::ZERO; count];
            gpu.download(buffer, offset, &mut numbers)?;
            let pieces = wide.par_chunks_mut(PIECE).zip(numbers.par_chunks(PIECE));
            pieces.for_each(|(wide, numbers)| numbers.convert_to_f32_slice(wide));
        }
    }
    Ok(wide)
}

/// A prefix in a GPU's memory.
struct DevicePrefix {
    gpu: Arc<Gpu>,
    shape: KvShape,
    /// Keys and values, `[kv_head][capacity][d]`.
    layers: Vec<(Buffer, Buffer)>,
    capacity: usize,
    tokens: usize,
}

impl std::fmt::Debug for DevicePrefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DevicePrefix({} tokens on {:?})", self.tokens, self.gpu)
    }
}

impl DevicePrefix {
    fn new(gpu: &Arc<Gpu>, shape: KvShape, layers: usize, capacity: usize) -> Result<Self, GpuError> {
        let bytes = shape.kv_heads * capacity * shape.d * shape.dtype.bytes();
        let layers =
            (0..layers).map(|_| Ok((gpu.alloc(bytes)?, gpu.alloc(bytes)?))).collect::<Result<_, GpuError>>()?;
        Ok(Self { gpu: gpu.clone(), shape, layers, capacity, tokens: 0 })
    }

    /// The first tokens of this prefix, with room for more.
    fn kept(mut self, tokens: usize, capacity: usize) -> Result<Self, GpuError> {
        assert!(tokens <= self.tokens, "cannot keep more tokens than there are");
        self.tokens = tokens;
        if capacity <= self.capacity {
            return Ok(self);
        }
        let KvShape { kv_heads, d, dtype } = self.shape;
        let (row, old) = (d * dtype.bytes(), self.capacity);
        for (keys, values) in &mut self.layers {
            for buffer in [keys, values] {
                let mut grown = self.gpu.alloc(kv_heads * capacity * row)?;
                for head in 0..kv_heads {
                    self.gpu.copy(buffer, head * old * row, &mut grown, head * capacity * row, tokens * row)?;
                }
                *buffer = grown;
            }
        }
        self.capacity = capacity;
        Ok(self)
    }

    fn cache(&self, layer: usize) -> Cache<'_> {
        let (keys, values) = &self.layers[layer];
        let KvShape { kv_heads, d, dtype } = self.shape;
        let capacity = self.capacity;
        Cache { keys, values, keys_at: 0, values_at: 0, capacity, kv_heads, d, storage: storage(dtype) }
    }

    /// The first tokens of a layer, on the host.
    fn copy_tokens(&self, layer: usize, tokens: usize) -> Result<LayerKv, GpuError> {
        let (keys, values) = &self.layers[layer];
        let stride = self.capacity * self.shape.d * self.shape.dtype.bytes();
        let store = |buffer: &Buffer| {
            KvStore::filled(self.shape, tokens, |head, rows| match rows {
                RowsMut::F32(rows) => self.gpu.download(buffer, head * stride, rows),
                RowsMut::F16(rows) => self.gpu.download(buffer, head * stride, rows),
                RowsMut::Bf16(rows) => self.gpu.download(buffer, head * stride, rows),
            })
        };
        Ok(LayerKv { keys: store(keys)?, values: store(values)? })
    }
}

impl DeviceKv for DevicePrefix {
    fn shape(&self) -> KvShape {
        self.shape
    }

    fn copy_layer(&self, layer: usize) -> Result<LayerKv, DeviceFailure> {
        Ok(self.copy_tokens(layer, self.tokens)?)
    }

    fn on_gpu(&self, layer: usize) -> Option<(&Gpu, Cache<'_>)> {
        Some((&self.gpu, self.cache(layer)))
    }
}

/// What follows the prefix of one run: `[layer][keys, values][kv_head][capacity][d]`.
struct Tail {
    buffer: Buffer,
    capacity: usize,
}

impl Tail {
    /// Room for at least `tokens`, with what the first `held` of an earlier one are.
    fn of(
        gpu: &Gpu,
        shape: KvShape,
        layers: usize,
        old: Option<Tail>,
        held: usize,
        tokens: usize,
    ) -> Result<Self, GpuError> {
        if let Some(tail) = old {
            if tail.capacity >= tokens {
                return Ok(tail);
            }
            let grown = Self::empty(gpu, shape, layers, tokens.next_power_of_two())?;
            return tail.moved(gpu, shape, layers, held, grown);
        }
        Self::empty(gpu, shape, layers, tokens.next_power_of_two().max(TAIL_CAPACITY))
    }

    fn empty(gpu: &Gpu, shape: KvShape, layers: usize, capacity: usize) -> Result<Self, GpuError> {
        let bytes = layers * shape.kv_heads * capacity * shape.row_bytes();
        Ok(Self { buffer: gpu.alloc(bytes)?, capacity })
    }

    fn moved(self, gpu: &Gpu, shape: KvShape, layers: usize, held: usize, mut to: Self) -> Result<Self, GpuError> {
        let row = shape.d * shape.dtype.bytes();
        for run in 0..2 * layers * shape.kv_heads {
            gpu.copy(&self.buffer, run * self.capacity * row, &mut to.buffer, run * to.capacity * row, held * row)?;
        }
        Ok(to)
    }

    fn view(&self, shape: KvShape, layers: usize) -> kernels::Tail<'_> {
        let KvShape { kv_heads, d, dtype } = shape;
        let Self { buffer, capacity } = self;
        kernels::Tail { buffer, layers, capacity: *capacity, kv_heads, d, storage: storage(dtype) }
    }
}

/// What a run has on the device.
struct RunKv {
    tail: Tail,
    /// Where the device picks: u64 `[layer][kv_heads + heads]`, the tokens that were read and attended of what it picked.
    picked: Option<Buffer>,
}

/// What a run has on the device.
fn run_kv(fork: &Fork) -> &RunKv {
    let own = fork.device().and_then(|own| own.downcast_ref());
    own.expect("a step makes room for every run's tokens before it reads them")
}

/// The tail that a run has on the device.
fn tail_of(fork: &Fork) -> &Tail {
    &run_kv(fork).tail
}

/// A chunk of a prompt that the host may look at.
struct HostView<'a> {
    gpu: &'a Gpu,
    qkv: &'a Buffer,
    rows: usize,
    /// Numbers in a row of queries, and in one of queries, keys and values.
    widths: (usize, usize),
    prefix: &'a DevicePrefix,
    layer: usize,
    end: usize,
    queries: OnceLock<Vec<f32>>,
    kv: OnceLock<LayerKv>,
    /// Why something could not be shown: then zeros were, and nothing that follows from them may be used.
    failure: OnceLock<GpuError>,
}

impl DeviceChunk for HostView<'_> {
    fn queries(&self) -> &[f32] {
        self.queries.get_or_init(|| self.last_queries(self.rows))
    }

    fn last_queries(&self, count: usize) -> Vec<f32> {
        let storage = storage(self.prefix.shape.dtype);
        let (width, stacked) = self.widths;
        let skip = (self.rows - count) * stacked;
        let rows = download_wide(self.gpu, self.qkv, skip, count * stacked, storage);
        let rows = rows.unwrap_or_else(|failure| {
            // The first is what matters.
            let _ = self.failure.set(failure);
            vec![0.0; count * stacked]
        });
        rows.chunks_exact(stacked).flat_map(|row| &row[..width]).copied().collect()
    }

    fn kv(&self) -> &LayerKv {
        self.kv.get_or_init(|| {
            self.prefix.copy_tokens(self.layer, self.end).unwrap_or_else(|failure| {
                let _ = self.failure.set(failure);
                LayerKv::zeros(self.prefix.shape, self.end)
            })
        })
    }
}

/// What one row of a step attends at a layer.
enum RowPlan {
    /// So much, for all KV heads.
    Exact(Exact),
    /// What each KV head picked.
    Picked(Vec<Picked>),
    /// So much, and what the device picks for a row of those that it picks for together.
    Left(Exact, RowOfGroup),
    /// The host has attended, `[heads][d]`.
    Done(Vec<f32>),
}

/// A row among those that the device picks for together.
#[derive(Debug, Clone, Copy)]
struct RowOfGroup {
    group: usize,
    row: usize,
}

/// Streams that the device picks for together, and their rows.
struct Group {
    streams: Vec<usize>,
    rows: Vec<u32>,
    numbers: Vec<u32>,
}

/// A row of a step.
struct Row {
    stream: usize,
    /// Tokens in context, its own included.
    total: usize,
}

impl Engine for Cuda {
    fn read(
        &self,
        known: Option<(Prefix, usize)>,
        tokens: &[u32],
        prompt_tokens: usize,
        mut reading: Reading<'_, '_>,
    ) -> Result<Prefill, EngineError> {
        let mut prefix = match known {
            Some((prefix, kept)) => owned(prefix).kept(kept, tokens.len())?,
            None => DevicePrefix::new(&self.gpu, self.shape(), self.config.layers, tokens.len())?,
        };
        let most = reading.sparse.as_ref().map_or(GPU_PREFILL_CHUNK, |sparse| sparse.chunk_rows(GPU_PREFILL_CHUNK));
        let (inverse, scaling) = self.rope.frequencies(prompt_tokens);
        let inverse = self.gpu.upload(&inverse)?;
        let kept = prefix.tokens;
        let mut logits = Vec::new();
        for (i, chunk) in tokens[kept..].chunks(most).enumerate() {
            let first = kept + i * most;
            let is_last = first + chunk.len() == tokens.len();
            let row = self.read_chunk(&mut prefix, chunk, first, (&inverse, scaling), &mut reading, is_last)?;
            if is_last {
                logits = row;
            }
        }
        let layers = self.config.layers;
        Ok(Prefill { prefix: Prefix::on_device(layers, prefix.tokens, Box::new(prefix)), logits })
    }

    fn step(&self, streams: &mut [Stream<'_>], prompt_tokens: usize) -> Result<Vec<f32>, EngineError> {
        let c = &self.config;
        let first = streams[0].fork.prefix();
        assert!(
            streams.iter().all(|s| Arc::ptr_eq(s.fork.prefix(), first)),
            "streams that step together share a prefix"
        );
        let positions = positions(streams);
        let rows = positions.len();
        self.make_tails(streams)?;
        let mut guard = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let room = self.reserve(&mut guard, rows)?;
        let tokens: Vec<u32> = streams.iter().flat_map(|stream| stream.tokens).copied().collect();
        self.start(room, &tokens, positions.iter().map(|position| *position as u32).collect())?;
        let (inverse, by_row, scaling) = self.step_frequencies(&positions, prompt_tokens);
        self.gpu.reserve(&mut room.inverse, size_of_val(inverse.as_slice()))?;
        self.gpu.upload_to(room.inverse.as_mut().expect("it was reserved"), 0, &inverse)?;
        if let Some(failure) = streams.iter().find_map(|stream| stream.fork.prefix().failure()) {
            return Err(failure.clone().into());
        }
        let plan = StepPlan { rows: &self.send_places(room, streams)?, by_row, scaling };
        let picks = |layer: usize, stream: &Stream<'_>| stream.fork.selects(layer) != Selects::Nothing;
        let looks = |stream: &Stream<'_>| stream.fork.needs_host() || (0..c.layers).any(|layer| picks(layer, stream));
        match streams.iter().any(looks) {
            true => self.step_picking(room, streams, &plan)?,
            false => {
                room.timeline.clear();
                self.step_exactly(room, streams, &plan)?;
            }
        }
        let mut x = vec![0.0; rows * c.hidden_size];
        self.gpu.download(&room.x, 0, &mut x)?;
        self.note_times(&room.timeline, streams)?;
        self.check(room, |row| positions[row])?;
        match first_not_finite(&x, c.hidden_size) {
            Some(row) => Err(NotFinite::Activations { layer: c.layers - 1, position: positions[row] }.into()),
            None => Ok(x),
        }
    }

    fn settle(&self, fork: &mut Fork) -> Result<(), EngineError> {
        let own = fork.device_mut().as_mut().and_then(|own| own.downcast_mut::<RunKv>());
        let Some(buffer) = own.and_then(|own| own.picked.take()) else { return Ok(()) };
        let mut picked = vec![0; self.counters()];
        self.gpu.download(&buffer, 0, &mut picked)?;
        fork.settle(&picked);
        Ok(())
    }

    fn logits(&self, x: &[f32]) -> Result<Vec<f32>, EngineError> {
        let rows = x.len() / self.config.hidden_size;
        let mut guard = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let room = self.reserve(&mut guard, rows)?;
        self.gpu.upload_to(&mut room.x, 0, x)?;
        self.logits_of(room, 0, rows)
    }

    fn gpu(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn gpu_use(&self) -> Option<GpuUse> {
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        Some(GpuUse { most_bytes: self.gpu.most_bytes(), ..used })
    }

    fn groups(&self, _: usize) -> usize {
        1
    }
}

/// Whether the host looks at queries, keys and values of a stream at a layer.
fn looks(stream: &Stream<'_>, layer: usize) -> bool {
    stream.fork.selects(layer) == Selects::OnHost || stream.fork.needs_host()
}

/// The device's part of a prefix that nobody else holds.
fn owned(prefix: Prefix) -> DevicePrefix {
    let device: Box<dyn Any> = prefix.into_device().expect("a GPU's prefixes are on the GPU");
    *device.downcast().expect("a GPU's prefixes are on the GPU")
}

/// The device's part of a prefix.
fn shared(prefix: &Prefix) -> &DevicePrefix {
    let device: &dyn Any = prefix.device().expect("a GPU's runs go on from a prefix there");
    device.downcast_ref().expect("a GPU's prefixes are on the GPU")
}

impl Cuda {
    /// Takes the weights to a GPU, converted to the storage type.
    ///
    /// # Errors
    /// If a tensor is not what it should be, or the device cannot take them.
    pub fn load(dimensions: &Dimensions, weights: &super::weights::Weights, gpu: Gpu) -> Result<Self, LoadFailure> {
        let checkpoint = Checkpoint { weights, dtype: dimensions.dtype };
        let parts = Parts::load(&dimensions.config, &ToDevice { checkpoint, gpu: &gpu })?;
        let name = gpu.info()?.name;
        Ok(Self {
            dimensions: dimensions.clone(),
            gpu: Arc::new(gpu),
            name,
            parts,
            room: Mutex::default(),
            used: Mutex::default(),
        })
    }

    fn storage(&self) -> Storage {
        storage(self.dtype)
    }

    fn shape(&self) -> KvShape {
        KvShape { kv_heads: self.config.kv_heads, d: self.config.head_dim, dtype: self.dtype }
    }

    /// Numbers in a row of queries, and in one of queries, keys and values.
    fn widths(&self) -> (usize, usize) {
        let c = &self.config;
        (c.heads * c.head_dim, (c.heads + 2 * c.kv_heads) * c.head_dim)
    }

    /// Counters of what the device picks for a run.
    fn counters(&self) -> usize {
        self.config.layers * (self.config.kv_heads + self.config.heads)
    }

    fn norms<'a>(&self, layer: &'a Layer<Linear, Buffer>) -> Option<Norms<'a>> {
        let (query, key) = layer.qk_norm.as_ref()?;
        Some(Norms { query, key, eps: self.config.rms_norm_eps as f32 })
    }

    /// Room for so many rows; what it held is lost where it has to grow.
    fn reserve<'a>(&self, room: &'a mut Option<Room>, rows: usize) -> Result<&'a mut Room, GpuError> {
        if room.as_ref().is_none_or(|room| room.rows < rows) {
            *room = None;
            *room = Some(self.make_room(rows.next_power_of_two())?);
        }
        Ok(room.as_mut().expect("it was made"))
    }

    fn make_room(&self, rows: usize) -> Result<Room, GpuError> {
        let (c, bytes) = (&self.config, self.dtype.bytes());
        let (width, stacked) = self.widths();
        let gpu = &self.gpu;
        Ok(Room {
            rows,
            tokens: gpu.alloc(4 * rows)?,
            positions: gpu.alloc(4 * rows)?,
            x: gpu.alloc(4 * rows * c.hidden_size)?,
            normed: gpu.alloc(bytes * rows * c.hidden_size)?,
            qkv: gpu.alloc(bytes * rows * stacked)?,
            attended: gpu.alloc(bytes * rows * width)?,
            wide: None,
            gate_up: gpu.alloc(bytes * rows * 2 * c.intermediate_size)?,
            gated: gpu.alloc(bytes * rows * c.intermediate_size)?,
            broken: gpu.alloc(8)?,
            places: None,
            inverse: None,
            logits: None,
            attention: AttentionRoom::default(),
            exact: Vec::new(),
            recorded: None,
            timeline: Timeline::default(),
            picks: Vec::new(),
            scratch: DeviceScratch::default(),
        })
    }

    /// Embeds tokens, and notes where they stand.
    fn start(&self, room: &mut Room, tokens: &[u32], positions: Vec<u32>) -> Result<(), GpuError> {
        let vocab = self.config.vocab_size as u32;
        assert!(tokens.iter().all(|token| *token < vocab), "tokens were compared with the vocabulary");
        self.gpu.upload_to(&mut room.tokens, 0, tokens)?;
        self.gpu.upload_to(&mut room.positions, 0, &positions)?;
        self.gpu.upload_to(&mut room.broken, 0, &[UNBROKEN])?;
        let (hidden, table) = (self.config.hidden_size, &self.parts.embedding.data);
        self.gpu.embed(self.storage(), table, &room.tokens, tokens.len(), &mut room.x, hidden)
    }

    /// Norms the residual stream into `normed`. `mark` says behind how many layers it is.
    fn norm(
        &self,
        room: &mut Room,
        skip: usize,
        rows: usize,
        weight: &Buffer,
        mark: usize,
        first: usize,
    ) -> Result<(), GpuError> {
        let (storage, hidden, eps) = (self.storage(), self.config.hidden_size, self.config.rms_norm_eps as f32);
        let Room { x, normed, broken, .. } = room;
        self.gpu.rms_norm(storage, x, skip, rows, weight, eps, normed, hidden, (mark as u64, first as u64, broken))
    }

    /// Stacked queries, keys and values of all rows at a layer.
    fn project(
        &self,
        room: &mut Room,
        rows: usize,
        index: usize,
        first: usize,
        layer: &Layer<Linear, Buffer>,
    ) -> Result<(), GpuError> {
        self.norm(room, 0, rows, &layer.attention_norm, index, first)?;
        self.apply(&layer.qkv, &room.normed, rows, &mut room.qkv, Into::Narrow)
    }

    /// What follows attention at a layer.
    fn finish_layer(
        &self,
        room: &mut Room,
        rows: usize,
        index: usize,
        first: usize,
        layer: &Layer<Linear, Buffer>,
    ) -> Result<(), GpuError> {
        self.apply(&layer.output, &room.attended, rows, &mut room.x, Into::Add)?;
        self.norm(room, 0, rows, &layer.mlp_norm, index + 1, first)?;
        self.apply(&layer.gate_up, &room.normed, rows, &mut room.gate_up, Into::Narrow)?;
        let Room { gate_up, gated, x, .. } = room;
        self.gpu.silu_gate(self.storage(), gate_up, rows, gated, self.config.intermediate_size)?;
        self.apply(&layer.down, gated, rows, x, Into::Add)
    }

    fn apply(&self, linear: &Linear, x: &Buffer, rows: usize, out: &mut Buffer, into: Into) -> Result<(), GpuError> {
        let Matrix { data, outputs, inputs } = &linear.weight;
        self.gpu.multiply(self.storage(), data, x, rows, out, *outputs, *inputs, into)?;
        let Some(bias) = &linear.bias else { return Ok(()) };
        let storage = if into == Into::Narrow { self.storage() } else { Storage::F32 };
        self.gpu.add_bias(storage, out, rows, bias, *outputs)
    }

    /// Logits of `rows` rows of the residual stream from row `skip` on.
    fn logits_of(&self, room: &mut Room, skip: usize, rows: usize) -> Result<Vec<f32>, EngineError> {
        let head = self.parts.head();
        self.norm(room, skip, rows, &self.parts.norm, self.config.layers, 0)?;
        self.gpu.reserve(&mut room.logits, 4 * rows * head.outputs)?;
        let Room { normed, logits, .. } = room;
        let logits = logits.as_mut().expect("it was reserved");
        self.gpu.multiply(self.storage(), &head.data, normed, rows, logits, head.outputs, head.inputs, Into::Wide)?;
        let mut out = vec![0.0; rows * head.outputs];
        self.gpu.download(logits, 0, &mut out)?;
        Ok(out)
    }

    /// Fails if a number between the layers was not finite; `position` is that of a row as the norms counted them.
    fn check(&self, room: &Room, position: impl Fn(usize) -> usize) -> Result<(), EngineError> {
        let mut broken = [0u64];
        self.gpu.download(&room.broken, 0, &mut broken)?;
        let [broken] = broken;
        if broken == UNBROKEN {
            return Ok(());
        }
        let (mark, row) = ((broken >> 32) as usize, (broken & u64::from(u32::MAX)) as usize);
        Err(NotFinite::Activations { layer: mark.saturating_sub(1), position: position(row) }.into())
    }

    /// Reads a chunk into the prefix; the last row's logits, if they are wanted.
    fn read_chunk(
        &self,
        prefix: &mut DevicePrefix,
        tokens: &[u32],
        first: usize,
        (inverse, scaling): (&Buffer, f32),
        reading: &mut Reading<'_, '_>,
        wants_logits: bool,
    ) -> Result<Vec<f32>, EngineError> {
        let (c, rows) = (&self.config, tokens.len());
        let mut guard = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let room = self.reserve(&mut guard, rows)?;
        self.start(room, tokens, (first..first + rows).map(|position| position as u32).collect())?;
        prefix.tokens = first + rows;
        for (index, layer) in self.parts.layers.iter().enumerate() {
            self.project(room, rows, index, first, layer)?;
            let Room { qkv, positions, .. } = &mut *room;
            let at = Positions { positions, inverse, by_row: false, scaling };
            let norms = self.norms(layer);
            self.gpu.rope(qkv, rows, &at, c.heads, norms.as_ref(), &prefix.cache(index), first)?;
            self.attend_chunk(room, prefix, index, first, rows, reading)?;
            self.finish_layer(room, rows, index, first, layer)?;
        }
        // The last norm looks at what the last layer left.
        self.norm(room, 0, rows, &self.parts.norm, c.layers, first)?;
        self.check(room, |position| position)?;
        if let Some(finished) = &mut reading.finished {
            let mut x = vec![0.0; rows * c.hidden_size];
            self.gpu.download(&room.x, 0, &mut x)?;
            finished(first, &x);
        }
        if wants_logits { self.logits_of(room, rows - 1, 1) } else { Ok(Vec::new()) }
    }

    /// Attention of a chunk, by the device or a mask of the host, with whoever looks on.
    fn attend_chunk(
        &self,
        room: &mut Room,
        prefix: &DevicePrefix,
        layer: usize,
        first: usize,
        rows: usize,
        reading: &mut Reading<'_, '_>,
    ) -> Result<(), GpuError> {
        let (c, widths) = (&self.config, self.widths());
        let Room { qkv, attended, .. } = room;
        let view = HostView {
            gpu: &self.gpu,
            qkv,
            rows,
            widths,
            prefix,
            layer,
            end: first + rows,
            queries: OnceLock::new(),
            kv: OnceLock::new(),
            failure: OnceLock::new(),
        };
        let chunk = PrefillChunk::on_device(layer, first, rows, c.heads, self.shape(), &view);
        if let Some(observe) = &mut reading.observe {
            observe(&chunk);
        }
        match &mut reading.sparse {
            Some(sparse) => {
                let mut out = vec![0.0; rows * widths.0];
                sparse.attend(&chunk, &mut out);
                Numbers::narrow(out, self.storage()).upload_to(&self.gpu, attended, 0)?;
            }
            None => {
                let queries = Rows { queries: qkv, stride: widths.1, count: rows, heads: c.heads, first };
                self.gpu.prefill_attention(&queries, &prefix.cache(layer), attended)?;
            }
        }
        view.failure.into_inner().map_or(Ok(()), Err)
    }

    /// Frequencies of all rows of a step, or of each, and the factor of cos and sin.
    fn step_frequencies(&self, positions: &[usize], prompt_tokens: usize) -> (Vec<f32>, bool, f32) {
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
    fn make_tails(&self, streams: &mut [Stream<'_>]) -> Result<(), GpuError> {
        for stream in streams {
            let held = stream.fork.tokens() - stream.fork.prefix().tokens();
            let old = stream.fork.device_mut().take().and_then(|own| own.downcast::<RunKv>().ok());
            let (tail, picked) = old.map_or((None, None), |own| (Some(own.tail), own.picked));
            let needed = held + stream.tokens.len();
            let tail = Tail::of(&self.gpu, self.shape(), self.config.layers, tail, held, needed)?;
            let picked = match (picked, stream.fork.picks_on_device()) {
                (None, true) => Some(self.gpu.alloc(8 * self.counters())?),
                (picked, _) => picked,
            };
            *stream.fork.device_mut() = Some(Box::new(RunKv { tail, picked }));
        }
        Ok(())
    }

    /// Sends where the rows' keys and values go, at every layer; says what the rows are.
    fn send_places(&self, room: &mut Room, streams: &mut [Stream<'_>]) -> Result<Vec<Row>, GpuError> {
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
    fn step_picking(
        &self,
        room: &mut Room,
        streams: &mut [Stream<'_>],
        plan: &StepPlan<'_>,
    ) -> Result<(), EngineError> {
        let groups = self.send_groups(room, streams, plan.rows)?;
        room.timeline.clear();
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

    /// Adds where a step's time went.
    fn note_times(&self, timeline: &Timeline, streams: &[Stream<'_>]) -> Result<(), GpuError> {
        let spans = timeline.spans()?;
        if spans.is_empty() {
            return Ok(());
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
    fn step_exactly(
        &self,
        room: &mut Room,
        streams: &mut [Stream<'_>],
        plan: &StepPlan<'_>,
    ) -> Result<(), EngineError> {
        let (c, width) = (&self.config, self.widths().1);
        let prefix = streams[0].fork.prefix().clone();
        let device = shared(&prefix);
        let (prepared, attention_of) = self.prepare_exactly(room, streams, plan.rows)?;
        let key = self.key_of(room, device, &prepared, &attention_of, plan);
        let launch = |room: &mut Room| -> Result<(), EngineError> {
            for (index, layer) in self.parts.layers.iter().enumerate() {
                self.begin_layer(room, index, layer, plan)?;
                let prefix = kernels::Prefix { cache: device.cache(index), tokens: device.tokens, layer: index };
                let Room { qkv, attended, .. } = &mut *room;
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
        room: &mut Room,
        index: usize,
        layer: &Layer<Linear, Buffer>,
        plan: &StepPlan<'_>,
    ) -> Result<(), GpuError> {
        let (c, rows) = (&self.config, plan.rows.len());
        self.project(room, rows, index, 0, layer)?;
        let shape = (c.kv_heads, c.head_dim, self.storage());
        let Room { qkv, positions, places, inverse, .. } = room;
        let (Some(inverse), Some(places)) = (inverse, places) else { unreachable!("both were sent") };
        let at = Positions { positions, inverse, by_row: plan.by_row, scaling: plan.scaling };
        let offset = index * rows * size_of::<Place>();
        self.gpu.rope_scattered(qkv, rows, &at, c.heads, self.norms(layer).as_ref(), shape, places, offset)
    }

    /// Sends what the layers attend, each list once; and says which of them each layer attends.
    fn prepare_exactly(
        &self,
        room: &mut Room,
        streams: &mut [Stream<'_>],
        rows: &[Row],
    ) -> Result<(Vec<Prepared>, Vec<usize>), GpuError> {
        let c = &self.config;
        let mut different: Vec<Vec<Exact>> = Vec::new();
        let mut attention_of = Vec::with_capacity(c.layers);
        for layer in 0..c.layers {
            let exact: Vec<Exact> = streams
                .iter_mut()
                .flat_map(|stream| {
                    (0..stream.tokens.len()).map(|_| stream.fork.pass(layer, c.heads)).collect::<Vec<_>>()
                })
                .collect();
            let known = different.iter().position(|other| *other == exact);
            attention_of.push(known.unwrap_or(different.len()));
            if known.is_none() {
                different.push(exact);
            }
        }
        room.exact.resize_with(room.exact.len().max(different.len()), AttentionRoom::default);
        let mut prepared = Vec::with_capacity(different.len());
        for (exact, lists) in different.into_iter().zip(&mut room.exact) {
            let plans: Vec<RowPlan> = exact.into_iter().map(RowPlan::Exact).collect();
            let mut attention = self.attention_of(streams, rows, &plans, &[]);
            prepared.push(self.gpu.prepare(&mut attention, lists, c.head_dim)?);
        }
        Ok((prepared, attention_of))
    }

    /// All that launching the layers of a step depends on.
    fn key_of(
        &self,
        room: &Room,
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
    fn send_groups(&self, room: &mut Room, streams: &[Stream<'_>], rows: &[Row]) -> Result<Vec<Group>, GpuError> {
        let mut groups: Vec<Group> = Vec::new();
        for (index, stream) in streams.iter().enumerate().filter(|(_, stream)| stream.fork.picks_on_device()) {
            let alike = |group: &&mut Group| streams[group.streams[0]].fork.selects_with(stream.fork);
            match groups.iter_mut().find(alike) {
                Some(group) => group.streams.push(index),
                None => groups.push(Group { streams: vec![index], rows: Vec::new(), numbers: Vec::new() }),
            }
        }
        for (i, row) in rows.iter().enumerate() {
            let Some(group) = groups.iter_mut().find(|group| group.streams.contains(&row.stream)) else { continue };
            group.rows.push(i as u32);
            group.numbers.push(streams[row.stream].fork.number(row.total));
        }
        if room.picks.len() < groups.len() {
            room.picks.resize_with(groups.len(), PickRoom::default);
        }
        for (group, room) in groups.iter().zip(&mut room.picks) {
            room.rows.set(&self.gpu, group.rows.clone())?;
        }
        Ok(groups)
    }

    /// Has the device pick at a layer for rows that share a method, and count what it picked.
    fn pick_there(
        &self,
        room: &mut Room,
        layer: usize,
        streams: &[Stream<'_>],
        rows: &[Row],
        groups: &[Group],
    ) -> Result<(), GpuError> {
        let c = &self.config;
        let Room { qkv, picks, scratch, .. } = room;
        for (group, room) in groups.iter().zip(picks) {
            let fork = &*streams[group.streams[0]].fork;
            let Some((form, index)) = fork.device_form(layer) else { continue };
            let (cache, candidates) = (shared(fork.prefix()).cache(layer), fork.prefix_candidates());
            let prefix =
                DeviceLayer { gpu: &self.gpu, layer, cache, dtype: self.dtype, candidates: candidates.clone() };
            let queries = Queries { queries: qkv, stride: self.widths().1, heads: c.heads, rows: &room.rows };
            let step = DeviceStep { prefix, queries, numbers: &group.numbers };
            form.select_all(&step, index, &mut room.own, scratch)?;
            let counters = |row: &u32| run_kv(streams[rows[*row as usize].stream].fork).picked.as_ref();
            let counters: Option<Vec<&Buffer>> = group.rows.iter().map(counters).collect();
            let counters = counters.expect("a step makes room for what it counts");
            let (heads, offset) = ((c.kv_heads, c.heads), layer * (c.kv_heads + c.heads));
            self.gpu.count_picks(&room.own.lists, heads, candidates, &counters, offset, &mut room.counters)?;
        }
        Ok(())
    }

    /// Picks for all rows, where there is something to pick, and attends.
    fn attend_streams(
        &self,
        room: &mut Room,
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
        let plans = self.plan_rows(layer, streams, &numbers, groups);
        if let Some(failure) = streams.iter().find_map(|stream| stream.fork.prefix().failure()) {
            return Err(failure.clone().into());
        }
        let watched = streams.iter().any(|stream| stream.fork.fidelity().is_some());
        if watched {
            self.gpu.reserve(&mut room.wide, 4 * rows.len() * width)?;
        }
        self.gpu.mark(&mut room.timeline)?;
        self.attend_rows(room, layer, streams, rows, &plans, watched)?;
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

    /// What each row attends, stream by stream.
    fn plan_rows(&self, layer: usize, streams: &mut [Stream<'_>], numbers: &[f32], groups: &[Group]) -> Vec<RowPlan> {
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
        let plan = |(stream, first): (&mut Stream<'_>, usize)| -> Vec<RowPlan> {
            let start = Instant::now();
            let row = |i: usize| {
                let (fork, heads) = (&mut *stream.fork, self.config.heads);
                match fork.selects(layer) {
                    Selects::OnDevice => return RowPlan::Left(fork.leave(layer, heads), of_group(groups, first + i)),
                    Selects::Blindly => return RowPlan::Picked(fork.draw(layer, heads)),
                    Selects::Nothing if !fork.needs_host() => return RowPlan::Exact(fork.pass(layer, heads)),
                    Selects::Nothing | Selects::OnHost => {}
                }
                let (queries, kv) = numbers[(first + i) * stacked..][..stacked].split_at(width);
                let (key, value) = kv.split_at(key_width);
                if !fork.moves_positions() {
                    return RowPlan::Picked(fork.pick(layer, queries, key, value));
                }
                let mut out = vec![0.0; width];
                fork.step(layer, queries, key, value, &mut out);
                RowPlan::Done(out)
            };
            let plans: Vec<RowPlan> = (0..stream.tokens.len()).map(row).collect();
            if !stream.fork.moves_positions() {
                stream.fork.spent(start.elapsed());
            }
            plans
        };
        let work: Vec<_> = streams.iter_mut().zip(firsts).collect();
        let planned: Vec<Vec<RowPlan>> = work.into_par_iter().map(plan).collect();
        planned.into_iter().flatten().collect()
    }

    /// Attends what was planned, but for rows that are done.
    fn attend_rows(
        &self,
        room: &mut Room,
        layer: usize,
        streams: &mut [Stream<'_>],
        rows: &[Row],
        plans: &[RowPlan],
        watched: bool,
    ) -> Result<(), GpuError> {
        let c = &self.config;
        let prefix = streams[0].fork.prefix().clone();
        let lists: Vec<&TokenLists> = room.picks.iter().map(|room| &room.own.lists).collect();
        let mut attention = self.attention_of(streams, rows, plans, &lists);
        let Room { qkv, attended, wide, attention: lists, .. } = room;
        let wide = wide.as_mut().filter(|_| watched);
        let prefix = kernels::Prefix { cache: shared(&prefix).cache(layer), tokens: prefix.tokens(), layer };
        let prepared = self.gpu.prepare(&mut attention, lists, c.head_dim)?;
        self.gpu.attend(&prepared, &prefix, qkv, self.widths().1, attended, wide)
    }

    /// What the rows of a step attend.
    fn attention_of(
        &self,
        streams: &mut [Stream<'_>],
        rows: &[Row],
        plans: &[RowPlan],
        lists: &[&TokenLists],
    ) -> Attention {
        let (c, shape) = (&self.config, self.shape());
        let prefix_tokens = streams[0].fork.prefix().tokens();
        let tails: Vec<kernels::Tail<'_>> =
            streams.iter_mut().map(|stream| tail_of(stream.fork).view(shape, c.layers)).collect();
        let group = c.heads / c.kv_heads;
        let of_row = |(row, plan): (&Row, &RowPlan)| plan.tokens(row.total, c.kv_heads, lists);
        let expected: usize = rows.iter().zip(plans).map(of_row).sum();
        let mut attention = Attention::new(rows.len(), c.heads, expected, self.gpu.processors());
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
        room: &Room,
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

impl RowPlan {
    /// Tokens attended, summed over KV heads.
    fn tokens(&self, total: usize, kv_heads: usize, lists: &[&TokenLists]) -> usize {
        let of_head = |picked: &Picked| {
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
                let lists = lists[of.group];
                kv_heads * exact.tokens(total) + lists.lists() * lists.most()
            }
            Self::Done(_) => 0,
        }
    }
}

/// One KV head of one row, and what it may attend.
struct HeadPlan<'a> {
    row: usize,
    kv_head: usize,
    group: usize,
    total: usize,
    tail: &'a kernels::Tail<'a>,
}

impl HeadPlan<'_> {
    /// Adds what the head attends: exact parts with the group's picks, or first these and then the picks of each query.
    fn add(&self, attention: &mut Attention, plan: &RowPlan, prefix_tokens: usize, lists: &[&TokenLists]) {
        let head = self.kv_head * self.group;
        let (exact, selection) = match plan {
            RowPlan::Exact(exact) => (*exact, None),
            RowPlan::Picked(heads) => (heads[self.kv_head].exact, heads[self.kv_head].selection.as_ref()),
            RowPlan::Left(exact, of) => {
                return self.add_lists(attention, *exact, lists[of.group], of.row, prefix_tokens);
            }
            RowPlan::Done(_) => return,
        };
        let mut add = |part: usize, head: usize, queries: usize, exact: Exact, picks: Option<&Picks>| {
            let weights = match picks.map(|picks| &picks.weighting) {
                None | Some(Weighting::Softmax | Weighting::Remainder { .. }) => Weights::Logits,
                Some(Weighting::LogBias(log_u)) => Weights::Lowered(log_u),
                Some(Weighting::Direct { weights, log_mass }) => Weights::Given(weights, *log_mass),
            };
            let picked = picks.map_or(&[][..], |picks| &picks.tokens);
            let tokens = Tokens { sink: exact.sink, recent: exact.recent, total: self.total, picked };
            let (row, kv_head, tail) = (self.row, self.kv_head, self.tail);
            attention.add(part, &Unit { row, head, queries, kv_head, tail, tokens, weights }, prefix_tokens);
            if let Some(Weighting::Remainder { shares, value }) = picks.map(|picks| &picks.weighting) {
                shares.iter().enumerate().for_each(|(i, share)| attention.give_rest(row, head + i, *share, value));
            }
        };
        let nothing = Exact { sink: 0, recent: self.total };
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
        exact: Exact,
        lists: &TokenLists,
        of_row: usize,
        prefix_tokens: usize,
    ) {
        let Self { row, kv_head, group, total, tail } = *self;
        let unit = |head: usize, queries: usize, exact: Exact| {
            let tokens = Tokens { sink: exact.sink, recent: exact.recent, total, picked: &[] };
            Unit { row, head, queries, kv_head, tail, tokens, weights: Weights::Logits }
        };
        let (first, nothing) = (kv_head * group, Exact { sink: 0, recent: total });
        let is_shared = lists.lists() * group == self.heads();
        if is_shared {
            return attention.add_list(0, &unit(first, group, exact), lists.list(of_row, kv_head), prefix_tokens);
        }
        attention.add(0, &unit(first, group, exact), prefix_tokens);
        for head in first..first + group {
            attention.add_list(1, &unit(head, 1, nothing), lists.list(of_row, head), prefix_tokens);
        }
    }

    /// Query heads of all KV heads.
    fn heads(&self) -> usize {
        self.group * self.tail.kv_heads
    }
}

/// Where the device picks for a row of a step.
fn of_group(groups: &[Group], row: usize) -> RowOfGroup {
    let place = |(group, of): (usize, &Group)| {
        let row = of.rows.iter().position(|own| *own as usize == row)?;
        Some(RowOfGroup { group, row })
    };
    groups.iter().enumerate().find_map(place).expect("every row that the device picks for is in a group")
}

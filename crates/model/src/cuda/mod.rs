//! The engine on an NVIDIA GPU: weights, the prefix, the tails and all arithmetic on rows live there.
//!
//! Methods with a [form on a device](spattn_attention::DeviceForm) pick where the prefix is, into lists that are attended there;
//! these, and runs that only attend exactly, wait for nothing within a step. The others pick on the host, by the code that all
//! engines share: queries and the new keys and values come down, picks go up, and the GPU attends them; who picks without a look
//! at anything has nothing come down. A prefix is copied to the host, layer by layer, when somebody looks at it there. Rows that
//! are attended at other positions than they were read at are attended on the host as well. A prompt that is read by a mask is
//! attended on the device where it can be told there what blocks of rows attend ([`attend_there`](spattn_attention::SparsePrefill::attend_there)).
//!
//! The residual stream is f32; what feeds a product, keys and values are of the storage type; sums are f32.

mod alone;
mod batch;
mod host;
mod kv;
mod prompt;
mod step;

pub use alone::{AloneTimes, Following, LayerAlone, RunAlone};
pub use batch::BatchRoom;
pub use prompt::{PromptAlone, ReadTimes};

use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use self::host::{HostRoom, HostView, Numbers};
use self::kv::{DevicePrefix, RunKv, owned};
use self::step::{PickRoom, Recorded, StepPlan, Work};
use super::dimensions::{Dimensions, GPU_PREFILL_CHUNK};
use super::engine::{Engine, EngineError, GpuUse, NotFinite, Prefill, Reading, Stream, first_not_finite, positions};
use super::layers::{Checkpoint, Layer, Parts, Source};
use super::weights::{RawTensor, WeightsError};
use spattn_attention::calibration::PrefillChunk;
use spattn_attention::kv::{KvDtype, KvShape, Prefix};
use spattn_attention::{DeviceScratch, Fork, Selects};
use spattn_cuda::{AttentionRoom, Buffer, Gpu, GpuError, Into, Norms, Plain, Positions, Rows, Storage, Timeline};

/// What `broken` holds while all numbers are finite.
const UNBROKEN: u64 = u64::MAX;

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
pub struct Cuda {
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
    /// Of the same, for each layer and stream.
    work: Vec<Work>,
    /// Of rows that the device picks for, method by method.
    picks: Vec<PickRoom>,
    scratch: DeviceScratch,
    host: HostRoom,
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
        if let Some(room) = self.room.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            room.host = HostRoom::default();
        }
        if let Some(sparse) = &mut reading.sparse {
            sparse.settle_there(&self.gpu, (self.config.heads, self.shape()))?;
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
        self.note_times(&room.timeline, &room.work, streams)?;
        self.check(room, |row| positions[row])?;
        match first_not_finite(&x, c.hidden_size) {
            Some(row) => Err(NotFinite::Activations { layer: c.layers - 1, position: positions[row] }.into()),
            None => Ok(x),
        }
    }

    fn settle(&self, fork: &mut Fork) -> Result<(), EngineError> {
        let kv_heads = self.config.kv_heads;
        let Some(own) = fork.device_mut().as_mut().and_then(|own| own.downcast_mut::<RunKv>()) else { return Ok(()) };
        let Some(buffer) = own.picked.take() else { return Ok(()) };
        let mut picked = vec![0; self.counters()];
        self.gpu.download(&buffer, 0, &mut picked)?;
        let held = own.held.iter().map(|held| held.as_ref().map(|held| held.count(&self.gpu, kv_heads)).transpose());
        let held: Vec<Option<usize>> = held.collect::<Result<_, _>>()?;
        fork.settle(&picked);
        for (layer, tokens) in held.into_iter().enumerate() {
            tokens.into_iter().for_each(|tokens| fork.hold_there(layer, tokens));
        }
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

impl Cuda {
    /// Takes the weights to a GPU, converted to the storage type.
    ///
    /// # Errors
    /// If a tensor is not what it should be, or the device cannot take them.
    pub(crate) fn load(
        dimensions: &Dimensions,
        weights: &super::weights::Weights,
        gpu: Gpu,
    ) -> Result<Self, LoadFailure> {
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
        self.config.layers * (self.config.kv_heads + self.config.heads + 1)
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
            work: Vec::new(),
            picks: Vec::new(),
            scratch: DeviceScratch::default(),
            host: HostRoom::default(),
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
        let Room { qkv, attended, host, .. } = room;
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
            room: Mutex::new(host),
            attended: Mutex::new(&mut *attended),
            log_sums: OnceLock::new(),
            failure: OnceLock::new(),
        };
        let chunk = PrefillChunk::on_device(layer, first, rows, c.heads, self.shape(), &view);
        if let Some(observe) = &mut reading.observe {
            observe(&chunk);
        }
        let (queries, cache) =
            (Rows { queries: qkv, skip: 0, stride: widths.1, count: rows, heads: c.heads, first }, prefix.cache(layer));
        let Some(sparse) = reading.sparse.as_mut() else {
            return match view.close() {
                Some(failure) => Err(failure),
                None => self.gpu.prefill_attention(&queries, &cache, attended),
            };
        };
        let is_attended = {
            let mut attended = view.attended.lock().unwrap_or_else(PoisonError::into_inner);
            sparse.attend_there(&self.gpu, &chunk, &queries, &cache, &mut attended, None)?
        };
        let masked = (!is_attended).then(|| {
            let mut out = vec![0.0; rows * widths.0];
            sparse.attend(&chunk, &mut out);
            out
        });
        if let Some(failure) = view.close() {
            return Err(failure);
        }
        match masked {
            Some(out) => Numbers::narrow(out, self.storage()).upload_to(&self.gpu, attended, 0),
            None => Ok(()),
        }
    }
}

//! Keys and values on GPUs: a prefix that runs share, and what each of them reads behind it. Both are where the layers are.

use std::any::Any;
use std::sync::Arc;

use spattn_attention::Sequence;
use spattn_attention::kv::{DeviceFailure, DeviceKv, KvDtype, KvShape, KvStore, LayerKv, Prefix, RowsMut};
use spattn_cuda::{self as kernels, Buffer, Cache, Gpu, GpuError, Storage};

/// How a device stores numbers of this type.
pub(super) fn storage(dtype: KvDtype) -> Storage {
    match dtype {
        KvDtype::F32 => Storage::F32,
        KvDtype::F16 => Storage::F16,
        KvDtype::Bf16 => Storage::Bf16,
    }
}

/// Room for so many tokens behind the prefix, before a tail has to grow.
const TAIL_CAPACITY: usize = 64;

/// A prefix in the memory of the GPUs that hold the layers.
pub(super) struct DevicePrefix {
    pub(super) shape: KvShape,
    pub(super) layers: Vec<PrefixLayer>,
    pub(super) capacity: usize,
    pub(super) tokens: usize,
}

/// Keys and values of a layer, each `[kv_head][capacity][d]`, and the GPU that holds them.
pub(super) struct PrefixLayer {
    gpu: Arc<Gpu>,
    pub(super) keys: Buffer,
    pub(super) values: Buffer,
}

impl std::fmt::Debug for DevicePrefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gpus: Vec<usize> = self.layers.iter().map(|layer| layer.gpu.ordinal()).collect();
        write!(f, "DevicePrefix({} tokens on GPUs {gpus:?})", self.tokens)
    }
}

impl DevicePrefix {
    /// An empty prefix with room for so many tokens; `gpus` has the GPU of each layer.
    pub(super) fn new<'g>(
        gpus: impl IntoIterator<Item = &'g Arc<Gpu>>,
        shape: KvShape,
        capacity: usize,
    ) -> Result<Self, GpuError> {
        let bytes = shape.kv_heads * capacity * shape.d * shape.dtype.bytes();
        let layer = |gpu: &Arc<Gpu>| -> Result<PrefixLayer, GpuError> {
            Ok(PrefixLayer { keys: gpu.alloc(bytes)?, values: gpu.alloc(bytes)?, gpu: gpu.clone() })
        };
        let layers = gpus.into_iter().map(layer).collect::<Result<_, GpuError>>()?;
        Ok(Self { shape, layers, capacity, tokens: 0 })
    }

    /// The first tokens of this prefix, with room for more.
    pub(super) fn kept(mut self, tokens: usize, capacity: usize) -> Result<Self, GpuError> {
        assert!(tokens <= self.tokens, "cannot keep {tokens} of {} tokens", self.tokens);
        self.tokens = tokens;
        if capacity <= self.capacity {
            return Ok(self);
        }
        let KvShape { kv_heads, d, dtype } = self.shape;
        let (row, old) = (d * dtype.bytes(), self.capacity);
        for PrefixLayer { gpu, keys, values } in &mut self.layers {
            for buffer in [keys, values] {
                let mut grown = gpu.alloc(kv_heads * capacity * row)?;
                for head in 0..kv_heads {
                    gpu.copy(buffer, head * old * row, &mut grown, head * capacity * row, tokens * row)?;
                }
                *buffer = grown;
            }
        }
        self.capacity = capacity;
        Ok(self)
    }

    pub(super) fn cache(&self, layer: usize) -> Cache<'_> {
        let PrefixLayer { keys, values, .. } = &self.layers[layer];
        let KvShape { kv_heads, d, dtype } = self.shape;
        let capacity = self.capacity;
        Cache { keys, values, keys_at: 0, values_at: 0, capacity, kv_heads, d, storage: storage(dtype) }
    }

    /// The first tokens of a layer, on the host, in the memory of others that nobody needs any more.
    pub(super) fn copy_tokens(&self, layer: usize, tokens: usize, spare: LayerKv) -> Result<LayerKv, GpuError> {
        let PrefixLayer { gpu, keys, values } = &self.layers[layer];
        let stride = self.capacity * self.shape.d * self.shape.dtype.bytes();
        let store = |buffer: &Buffer, spare: KvStore| {
            spare.refilled(self.shape, tokens, |head, rows| match rows {
                RowsMut::F32(rows) => gpu.download(buffer, head * stride, rows),
                RowsMut::F16(rows) => gpu.download(buffer, head * stride, rows),
                RowsMut::Bf16(rows) => gpu.download(buffer, head * stride, rows),
            })
        };
        Ok(LayerKv { keys: store(keys, spare.keys)?, values: store(values, spare.values)? })
    }
}

impl DeviceKv for DevicePrefix {
    fn shape(&self) -> KvShape {
        self.shape
    }

    fn copy_layer(&self, layer: usize) -> Result<LayerKv, DeviceFailure> {
        Ok(self.copy_tokens(layer, self.tokens, LayerKv::zeros(self.shape, 0))?)
    }

    fn on_gpu(&self, layer: usize) -> Option<(&Gpu, Cache<'_>)> {
        Some((&self.layers[layer].gpu, self.cache(layer)))
    }
}

/// What follows the prefix of one run, at the layers of one GPU: `[layer][keys, values][kv_head][capacity][d]`.
pub(super) struct Tail {
    pub(super) buffer: Buffer,
    pub(super) capacity: usize,
}

impl Tail {
    /// Room for at least `tokens`, with what the first `held` of an earlier one are.
    pub(super) fn of(
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

    pub(super) fn view(&self, shape: KvShape, layers: usize) -> kernels::Tail<'_> {
        let KvShape { kv_heads, d, dtype } = shape;
        let Self { buffer, capacity } = self;
        kernels::Tail { buffer, layers, capacity: *capacity, kv_heads, d, storage: storage(dtype) }
    }
}

/// What a run has on each GPU, in the order of the segments.
pub(super) struct SequenceParts(pub(super) Vec<SequenceKv>);

/// What a run has on one GPU. Layers are those of the GPU's segment, counted from its first.
pub(super) struct SequenceKv {
    pub(super) tail: Tail,
    /// Where the device picks: u64 `[layer][kv_heads + heads + 1]`, the tokens that were read and attended of what it picked,
    /// and the entries of an index.
    pub(super) picked: Option<Buffer>,
    /// What the device picked last, by layer, for tokens that attend it again.
    pub(super) kept: Vec<kernels::TokenLists>,
    /// What the run holds at each layer, where its method lets tokens go on the device.
    pub(super) held: Vec<Option<kernels::HeldTokens>>,
}

/// What a run has on the GPU of a segment.
pub(super) fn sequence_kv(fork: &Sequence, segment: usize) -> &SequenceKv {
    let own = fork.device().and_then(|own| own.downcast_ref::<SequenceParts>());
    &own.expect("`make_tails` reserved the tail of every sequence").0[segment]
}

/// As [`sequence_kv`], to change.
pub(super) fn sequence_kv_mut(fork: &mut Sequence, segment: usize) -> &mut SequenceKv {
    let own = fork.device_mut().as_mut().and_then(|own| own.downcast_mut::<SequenceParts>());
    &mut own.expect("`make_tails` reserved the tail of every sequence").0[segment]
}

/// The device's part of a prefix that nobody else holds.
pub(super) fn owned(prefix: Prefix) -> DevicePrefix {
    let device: Box<dyn Any> = prefix.into_device().expect("the engine of a GPU made this prefix");
    *device.downcast().expect("the engine of a GPU made this prefix")
}

/// The device's part of a prefix.
pub(super) fn shared(prefix: &Prefix) -> &DevicePrefix {
    let device: &dyn Any = prefix.device().expect("a sequence of a GPU has its prefix on the GPU");
    device.downcast_ref().expect("the engine of a GPU made this prefix")
}

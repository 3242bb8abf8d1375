//! Keys and values on the device: a prefix that runs share, and what each of them reads behind it.

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

/// A prefix in a GPU's memory.
pub(super) struct DevicePrefix {
    pub(super) gpu: Arc<Gpu>,
    pub(super) shape: KvShape,
    /// Keys and values, `[kv_head][capacity][d]`.
    pub(super) layers: Vec<(Buffer, Buffer)>,
    pub(super) capacity: usize,
    pub(super) tokens: usize,
}

impl std::fmt::Debug for DevicePrefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DevicePrefix({} tokens on {:?})", self.tokens, self.gpu)
    }
}

impl DevicePrefix {
    pub(super) fn new(gpu: &Arc<Gpu>, shape: KvShape, layers: usize, capacity: usize) -> Result<Self, GpuError> {
        let bytes = shape.kv_heads * capacity * shape.d * shape.dtype.bytes();
        let layers =
            (0..layers).map(|_| Ok((gpu.alloc(bytes)?, gpu.alloc(bytes)?))).collect::<Result<_, GpuError>>()?;
        Ok(Self { gpu: gpu.clone(), shape, layers, capacity, tokens: 0 })
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

    pub(super) fn cache(&self, layer: usize) -> Cache<'_> {
        let (keys, values) = &self.layers[layer];
        let KvShape { kv_heads, d, dtype } = self.shape;
        let capacity = self.capacity;
        Cache { keys, values, keys_at: 0, values_at: 0, capacity, kv_heads, d, storage: storage(dtype) }
    }

    /// The first tokens of a layer, on the host, in the memory of others that nobody needs any more.
    pub(super) fn copy_tokens(&self, layer: usize, tokens: usize, spare: LayerKv) -> Result<LayerKv, GpuError> {
        let (keys, values) = &self.layers[layer];
        let stride = self.capacity * self.shape.d * self.shape.dtype.bytes();
        let store = |buffer: &Buffer, spare: KvStore| {
            spare.refilled(self.shape, tokens, |head, rows| match rows {
                RowsMut::F32(rows) => self.gpu.download(buffer, head * stride, rows),
                RowsMut::F16(rows) => self.gpu.download(buffer, head * stride, rows),
                RowsMut::Bf16(rows) => self.gpu.download(buffer, head * stride, rows),
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
        Some((&self.gpu, self.cache(layer)))
    }
}

/// What follows the prefix of one run: `[layer][keys, values][kv_head][capacity][d]`.
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

/// What a run has on the device.
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

/// What a run has on the device.
pub(super) fn sequence_kv(fork: &Sequence) -> &SequenceKv {
    let own = fork.device().and_then(|own| own.downcast_ref());
    own.expect("`make_tails` reserved the tail of every sequence")
}

/// As [`sequence_kv`], to change.
pub(super) fn sequence_kv_mut(fork: &mut Sequence) -> &mut SequenceKv {
    let own = fork.device_mut().as_mut().and_then(|own| own.downcast_mut());
    own.expect("`make_tails` reserved the tail of every sequence")
}

/// The tail that a run has on the device.
pub(super) fn tail_of(fork: &Sequence) -> &Tail {
    &sequence_kv(fork).tail
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

//! Keys and values on GPUs: a prefix that sequences share, and the tail of each sequence. Both are on the GPUs that hold the layers, except
//! that a prefix may be in host memory, which kernels read over the bus. Such a prompt is read with one layer at a time in GPU memory.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use spattn_attention::kv::{
    CachedPart, DeviceFailure, DeviceKv, KvDtype, KvShape, KvStore, LayerKv, Prefix, RowsMut, Tier, TokenSlots,
};
use spattn_attention::{CacheHits, Sequence};
use spattn_cuda::{
    self as kernels, Buffer, Cache, Gpu, GpuError, KeyCache, KeyCacheShape, Plain, Storage, TokenCache, TokenCacheShape,
};
use spattn_kernels::Rows;

/// Returns how a device stores numbers of this type.
pub(super) fn storage(dtype: KvDtype) -> Storage {
    match dtype {
        KvDtype::F32 => Storage::F32,
        KvDtype::F16 => Storage::F16,
        KvDtype::Bf16 => Storage::Bf16,
    }
}

/// The number of tokens for which a tail has room before it has to grow.
const TAIL_CAPACITY: usize = 64;

/// A prefix in the memory of the GPUs that hold the layers, or in host memory that they read.
pub(super) struct DevicePrefix {
    pub(super) shape: KvShape,
    pub(super) layers: Vec<PrefixLayer>,
    pub(super) capacity: usize,
    pub(super) tokens: usize,
    /// Bytes of GPU memory in which each sequence keeps tokens that it has fetched from host memory.
    pub(super) cached: Option<usize>,
    tier: Tier,
    /// Room for one layer on each GPU, used while a prompt is read into host memory.
    staged: Vec<StagedLayer>,
}

/// Room for one layer in the memory of a GPU.
struct StagedLayer {
    /// The layer that is there now.
    layer: Option<usize>,
    room: PrefixLayer,
}

/// Keys and values of a layer, each `[kv_head][capacity][d]`, and the GPU that holds them.
pub(super) struct PrefixLayer {
    pub(super) gpu: Arc<Gpu>,
    pub(super) keys: Buffer,
    pub(super) values: Buffer,
}

impl std::fmt::Debug for DevicePrefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gpus: Vec<usize> = self.layers.iter().map(|layer| layer.gpu.ordinal()).collect();
        write!(f, "DevicePrefix({} tokens in {} for GPUs {gpus:?})", self.tokens, self.tier)
    }
}

impl PrefixLayer {
    /// Allocates room for `capacity` tokens in a tier.
    fn new(gpu: &Arc<Gpu>, shape: KvShape, capacity: usize, tier: Tier) -> Result<Self, GpuError> {
        let bytes = shape.kv_heads * capacity * shape.d * shape.dtype.bytes();
        Ok(Self { keys: alloc(gpu, tier, bytes)?, values: alloc(gpu, tier, bytes)?, gpu: gpu.clone() })
    }

    /// Copies some tokens of a layer; both layers have room for `capacity` tokens.
    fn copy_from(
        &mut self,
        other: &Self,
        shape: KvShape,
        capacity: usize,
        tokens: Range<usize>,
    ) -> Result<(), GpuError> {
        let row = shape.d * shape.dtype.bytes();
        let (first, stride, len) = (tokens.start * row, capacity * row, tokens.len() * row);
        for (from, to) in [(&other.keys, &mut self.keys), (&other.values, &mut self.values)] {
            self.gpu.copy_pieces((from, first, stride), (to, first, stride), shape.kv_heads, len)?;
        }
        Ok(())
    }
}

/// Returns numbers of a buffer in pinned host memory.
fn pinned<T: Plain>(buffer: &Buffer, offset: usize, count: usize) -> Result<&[T], GpuError> {
    let numbers = buffer.host_numbers(offset, count)?;
    Ok(numbers.expect("layers of the host's tier are allocated in pinned memory"))
}

/// Allocates memory of a tier that a GPU reads and writes.
fn alloc(gpu: &Gpu, tier: Tier, bytes: usize) -> Result<Buffer, GpuError> {
    match tier {
        Tier::Host => gpu.alloc_on_host(bytes),
        _ => gpu.alloc(bytes),
    }
}

impl DevicePrefix {
    /// Makes an empty prefix with room for `capacity` tokens; `gpus` has the GPU of each layer.
    pub(super) fn new<'g>(
        gpus: impl IntoIterator<Item = &'g Arc<Gpu>>,
        shape: KvShape,
        capacity: usize,
    ) -> Result<Self, GpuError> {
        Self::in_tier(Tier::Device, gpus, shape, capacity)
    }

    /// Makes an empty prefix in the memory of the GPUs or of the host; see [`new`](Self::new).
    pub(super) fn in_tier<'g>(
        tier: Tier,
        gpus: impl IntoIterator<Item = &'g Arc<Gpu>>,
        shape: KvShape,
        capacity: usize,
    ) -> Result<Self, GpuError> {
        let layer = |gpu: &Arc<Gpu>| PrefixLayer::new(gpu, shape, capacity, tier);
        let layers = gpus.into_iter().map(layer).collect::<Result<_, GpuError>>()?;
        Ok(Self { shape, layers, capacity, tokens: 0, cached: None, tier, staged: Vec::new() })
    }

    /// Brings a layer with its first `known` tokens to the memory where a chunk of a prompt is added to it. The added tokens are lost
    /// unless they are [stored](Self::store).
    pub(super) fn stage(&mut self, layer: usize, known: usize) -> Result<(), GpuError> {
        if self.tier == Tier::Device {
            return Ok(());
        }
        let own = &self.layers[layer];
        let of_gpu = |staged: &StagedLayer| staged.room.gpu.ordinal() == own.gpu.ordinal();
        let place = match self.staged.iter().position(of_gpu) {
            Some(place) => place,
            None => {
                let room = PrefixLayer::new(&own.gpu, self.shape, self.capacity, Tier::Device)?;
                self.staged.push(StagedLayer { layer: None, room });
                self.staged.len() - 1
            }
        };
        let staged = &mut self.staged[place];
        staged.room.copy_from(own, self.shape, self.capacity, 0..known)?;
        staged.layer = Some(layer);
        Ok(())
    }

    /// Copies the tokens that were added to a [staged](Self::stage) layer back to the prefix.
    pub(super) fn store(&mut self, layer: usize, added: Range<usize>) -> Result<(), GpuError> {
        let Some(staged) = self.staged.iter_mut().find(|staged| staged.layer == Some(layer)) else { return Ok(()) };
        staged.layer = None;
        self.layers[layer].copy_from(&staged.room, self.shape, self.capacity, added)
    }

    /// Frees the memory that only reading a prompt needs.
    pub(super) fn end_reading(&mut self) {
        self.staged.clear();
    }

    /// Returns where a layer is now.
    fn place(&self, layer: usize) -> &PrefixLayer {
        let staged = self.staged.iter().find(|staged| staged.layer == Some(layer));
        staged.map_or(&self.layers[layer], |staged| &staged.room)
    }

    /// Keeps the first tokens of this prefix, with room for `capacity`.
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
                let mut grown = alloc(gpu, self.tier, kv_heads * capacity * row)?;
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
        let PrefixLayer { keys, values, .. } = self.place(layer);
        let KvShape { kv_heads, d, dtype } = self.shape;
        let capacity = self.capacity;
        Cache { keys, values, keys_at: 0, values_at: 0, capacity, kv_heads, d, storage: storage(dtype) }
    }

    /// Returns the first tokens of a KV head: keys or values that are in host memory.
    fn rows_on_host<'b>(&self, buffer: &'b Buffer, kv_head: usize, tokens: usize) -> Result<Rows<'b>, GpuError> {
        let KvShape { d, dtype, .. } = self.shape;
        let (offset, count) = (kv_head * self.capacity * d * dtype.bytes(), tokens * d);
        Ok(match dtype {
            KvDtype::F32 => Rows::F32(pinned(buffer, offset, count)?),
            KvDtype::F16 => Rows::F16(pinned(buffer, offset, count)?),
            KvDtype::Bf16 => Rows::Bf16(pinned(buffer, offset, count)?),
        })
    }

    /// Copies the first tokens of a layer to the host, into the memory of `spare`.
    pub(super) fn copy_tokens(&self, layer: usize, tokens: usize, spare: LayerKv) -> Result<LayerKv, GpuError> {
        let PrefixLayer { gpu, keys, values } = self.place(layer);
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

    fn tier(&self) -> Tier {
        self.tier
    }

    fn copy_layer(&self, layer: usize) -> Result<LayerKv, DeviceFailure> {
        Ok(self.copy_tokens(layer, self.tokens, LayerKv::zeros(self.shape, 0))?)
    }

    fn on_host(&self, layer: usize, kv_head: usize, tokens: usize) -> Option<Result<[Rows<'_>; 2], DeviceFailure>> {
        if self.tier != Tier::Host {
            return None;
        }
        let PrefixLayer { keys, values, .. } = &self.layers[layer];
        let rows = |buffer| self.rows_on_host(buffer, kv_head, tokens);
        let both = rows(keys).and_then(|keys| Ok([keys, rows(values)?]));
        Some(both.map_err(DeviceFailure::from))
    }

    fn on_gpu(&self, layer: usize) -> Option<(&Gpu, Cache<'_>)> {
        Some((&self.layers[layer].gpu, self.cache(layer)))
    }
}

/// The tokens of one sequence after the prefix, at the layers of one GPU: `[layer][keys, values][kv_head][capacity][d]`.
pub(super) struct Tail {
    pub(super) buffer: Buffer,
    pub(super) capacity: usize,
}

impl Tail {
    /// Makes room for at least `tokens`; keeps the first `held` tokens of `old`.
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

/// What a sequence has on each GPU, in the order of the segments.
pub(super) struct SequenceParts(pub(super) Vec<SequenceKv>);

/// What a sequence has on one GPU. Layers are counted from the first of the GPU's segment.
pub(super) struct SequenceKv {
    pub(super) tail: Tail,
    /// Counters of what the device selects: u64 `[layer][kv_heads + heads + 1]`, the selected tokens read and attended, and the index
    /// entries.
    pub(super) picked: Option<Buffer>,
    /// Counters of misses where tokens are selected ahead: u64 `[layer][2]`, the tokens that the layer's own queries would have selected,
    /// and how many of them were not selected.
    pub(super) missed: Option<Buffer>,
    /// The device's last selection at each layer, for tokens that reuse it.
    pub(super) kept: Vec<kernels::TokenLists>,
    /// Counters like `picked`, of tokens that were attended again, and whose copies the device still had.
    pub(super) again: Option<Buffer>,
    /// What the sequence has fetched of the prefix, by layer; empty if it keeps nothing.
    pub(super) cached: Vec<LayerCaches>,
    /// What the sequence holds at each layer if its method evicts tokens on the device.
    pub(super) held: Vec<Option<kernels::HeldTokens>>,
}

/// What a sequence has fetched of a layer of a prefix in host memory, and keeps on the GPU.
#[derive(Debug, Default)]
pub(super) struct LayerCaches {
    /// Keys and values that attention reads.
    pub(super) tokens: Option<TokenCache>,
    /// Keys that selection scores.
    pub(super) keys: Option<KeyCache>,
}

impl LayerCaches {
    /// Makes empty caches for a prefix with `tokens` tokens, in one of the layers for whose KV heads, `heads` in all, there are `bytes`.
    pub(super) fn new(
        gpu: &Gpu,
        shape: KvShape,
        tokens: usize,
        (bytes, heads): (usize, usize),
        scores_keys: bool,
    ) -> Result<Self, GpuError> {
        let (KvShape { kv_heads, d, .. }, storage) = (shape, storage(shape.dtype));
        let [slots, key_slots] = CachedPart::divide(bytes, scores_keys)
            .map(|(part, bytes)| TokenSlots { bytes, heads, tokens, shape, part }.of_head());
        let of_tokens = TokenCacheShape { kv_heads, d, storage, tokens, slots };
        let of_keys = KeyCacheShape { kv_heads, d, storage, tokens, slots: key_slots };
        Ok(Self {
            tokens: (slots > 0).then(|| TokenCache::new(gpu, of_tokens)).transpose()?,
            keys: (key_slots > 0).then(|| KeyCache::new(gpu, of_keys)).transpose()?,
        })
    }

    /// Returns the hits since the last call.
    pub(super) fn take_hits(&mut self, gpu: &Gpu) -> Result<CacheHits, GpuError> {
        Ok(CacheHits {
            tokens: self.tokens.as_mut().map_or(Ok(0), |tokens| tokens.take_hits(gpu))?,
            keys: self.keys.as_mut().map_or(Ok(0), |keys| keys.take_hits(gpu))?,
        })
    }
}

/// Returns what a sequence has on the GPU of a segment.
pub(super) fn sequence_kv(fork: &Sequence, segment: usize) -> &SequenceKv {
    let own = fork.device().and_then(|own| own.downcast_ref::<SequenceParts>());
    &own.expect("`make_tails` reserved the tail of every sequence").0[segment]
}

/// Returns what a sequence has on the GPU of a segment, mutably.
pub(super) fn sequence_kv_mut(fork: &mut Sequence, segment: usize) -> &mut SequenceKv {
    let own = fork.device_mut().as_mut().and_then(|own| own.downcast_mut::<SequenceParts>());
    &mut own.expect("`make_tails` reserved the tail of every sequence").0[segment]
}

/// Returns the device's part of a prefix that is not shared.
pub(super) fn owned(prefix: Prefix) -> DevicePrefix {
    let device: Box<dyn Any> = prefix.into_device().expect("the engine of a GPU made this prefix");
    *device.downcast().expect("the engine of a GPU made this prefix")
}

/// Returns the device's part of a prefix.
pub(super) fn shared(prefix: &Prefix) -> &DevicePrefix {
    let device: &dyn Any = prefix.device().expect("a sequence of a GPU has its prefix on the GPU");
    device.downcast_ref().expect("the engine of a GPU made this prefix")
}

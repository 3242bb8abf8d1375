//! [`KeyCache`]: device copies of keys that searches have scored, of a prefix in host memory, so that later searches need not read them
//! over the bus again.
//!
//! [`search_tree`](Gpu::search_tree) reads through a cache: keys that it holds are read in the device's memory, others over the bus. A key
//! read over the bus is staged, and after the search staged keys replace the least recently used ones. What a cache holds depends on the
//! searches alone.

use cudarc::driver::{DeviceRepr, LaunchConfig};
use spattn_kernels::{GPU_KEY_CACHE_BYTES, GPU_SLOT_BYTES};

use super::{Buffer, Gpu, GpuError, Storage, failed};

/// The operation, as errors name it.
const WHAT: &str = "keeping keys";
/// The most rounds of a search.
pub(super) const ROUNDS: usize = 32;
/// Threads of a block that assigns slots, and of one that copies.
const PLACING: u32 = 1024;
const COPYING: u32 = 256;
/// Blocks that copy the keys of a KV head.
const BLOCKS: u32 = 16;
/// Bytes that a thread copies at once.
const PIECE_BYTES: usize = 16;

/// The shape of a cache and of the prefix that it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyCacheShape {
    /// Number of KV heads.
    pub kv_heads: usize,
    /// Width of a key.
    pub d: usize,
    /// Type of the numbers.
    pub storage: Storage,
    /// Number of tokens of the prefix.
    pub tokens: usize,
    /// Number of keys that each KV head can hold.
    pub slots: usize,
}

impl KeyCacheShape {
    /// Bytes of a key.
    fn row_bytes(&self) -> usize {
        self.d * self.storage.bytes()
    }

    /// Words that have a bit for each token.
    fn words(&self) -> usize {
        self.tokens.div_ceil(u32::BITS as usize)
    }

    /// Bytes of the device's memory that a cache of this shape takes.
    pub fn bytes(&self) -> usize {
        let of_tokens = (self.tokens + self.words()) * size_of::<u32>();
        self.kv_heads * (self.slots * (self.row_bytes() + GPU_SLOT_BYTES) + of_tokens + GPU_KEY_CACHE_BYTES)
    }

    /// Bytes of the room for the keys that one search reads, which all caches of this shape share.
    pub(super) fn staged_bytes(&self) -> usize {
        self.kv_heads * self.slots * self.row_bytes()
    }
}

/// A cache of keys of one layer of a prefix. It is empty at first.
#[derive(Debug)]
pub struct KeyCache {
    shape: KeyCacheShape,
    /// `[kv_head][slots][d]`.
    keys: Buffer,
    /// u32 `[kv_head][tokens]`: the slot of each token's key, plus one; 0 for none.
    place_of: Buffer,
    /// u32 `[kv_head][slots]`: the token in each slot, plus one, or 0 for none; and the search in which it was used last.
    token_in: Buffer,
    used_in: Buffer,
    /// A bit for each token of each KV head, and u32 `[kv_head][ROUNDS]`: what a search has read first. Zero between searches.
    read: Buffer,
    counts: Buffer,
    /// `[kv_head][slots]`: places among the staged keys and slots of what a search has read; and u32 `[kv_head]`: how many these are.
    taken: Buffer,
    taken_counts: Buffer,
    /// u32 `[kv_head]`: searches so far; u64 `[kv_head]`: scored keys that were found in the cache.
    steps: Buffer,
    hits: Buffer,
}

/// What a slot of a cache holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldKey {
    /// The token.
    pub token: u32,
    /// The bytes of its key.
    pub key: Vec<u8>,
}

/// Mirrors the kernels' struct `KeyCache`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceKeyCache {
    place_of: u64,
    token_in: u64,
    used_in: u64,
    read: u64,
    counts: u64,
    taken: u64,
    taken_counts: u64,
    steps: u64,
    pub(super) hits: u64,
    keys: u64,
    staged: u64,
    tokens: u32,
    first: u32,
    slots: u32,
    unused: u32,
}

// SAFETY: laid out as the kernels' struct.
unsafe impl DeviceRepr for DeviceKeyCache {}

impl KeyCache {
    /// Allocates an empty cache.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    ///
    /// # Panics
    /// If it has no slots, or if the bytes of a key are not a multiple of 16.
    pub fn new(gpu: &Gpu, shape: KeyCacheShape) -> Result<Self, GpuError> {
        assert!(shape.slots > 0, "a cache without slots holds no keys");
        let row_bytes = shape.row_bytes();
        assert!(row_bytes.is_multiple_of(PIECE_BYTES), "the kernel does not support keys of {row_bytes} bytes");
        let KeyCacheShape { kv_heads, tokens, slots, .. } = shape;
        let words = |count: usize| gpu.alloc(kv_heads * count * size_of::<u32>());
        Ok(Self {
            shape,
            keys: gpu.alloc(kv_heads * slots * row_bytes)?,
            place_of: words(tokens)?,
            token_in: words(slots)?,
            used_in: words(slots)?,
            read: words(shape.words())?,
            counts: words(ROUNDS)?,
            taken: words(2 * slots)?,
            taken_counts: words(1)?,
            steps: words(1)?,
            hits: gpu.alloc(kv_heads * size_of::<u64>())?,
        })
    }

    /// The shape that it was made with.
    pub fn shape(&self) -> KeyCacheShape {
        self.shape
    }

    /// Returns how many scored keys were found on the device since the last call, over all KV heads: in the cache, or staged in an earlier
    /// round of the same search. A key counts once for each list and round in which it was scored, as a list's
    /// [entries](crate::TokenListLayout::counted) do.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn take_hits(&mut self, gpu: &Gpu) -> Result<u64, GpuError> {
        gpu.take_counts(&mut self.hits)
    }

    /// Copies to the host what each slot of a KV head holds; `None` for empty slots.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn download(&self, gpu: &Gpu, kv_head: usize) -> Result<Vec<Option<HeldKey>>, GpuError> {
        let (slots, row_bytes) = (self.shape.slots, self.shape.row_bytes());
        let (mut tokens, mut keys) = (vec![0u32; slots], vec![0u8; slots * row_bytes]);
        gpu.download(&self.token_in, kv_head * slots * size_of::<u32>(), &mut tokens)?;
        gpu.download(&self.keys, kv_head * slots * row_bytes, &mut keys)?;
        let of_slot =
            |(token, key): (u32, &[u8])| (token != 0).then(|| HeldKey { token: token - 1, key: key.to_vec() });
        Ok(tokens.into_iter().zip(keys.chunks_exact(row_bytes)).map(of_slot).collect())
    }

    /// The cache for a search whose candidates begin with token `first`, with room for what it reads.
    pub(super) fn on_device(&self, first: usize, staged: &Buffer) -> DeviceKeyCache {
        let Self { shape, keys, place_of, token_in, used_in, read, counts, taken, taken_counts, steps, hits } = self;
        let whole = |buffer: &Buffer| buffer.address(0, buffer.bytes());
        DeviceKeyCache {
            place_of: whole(place_of),
            token_in: whole(token_in),
            used_in: whole(used_in),
            read: whole(read),
            counts: whole(counts),
            taken: whole(taken),
            taken_counts: whole(taken_counts),
            steps: whole(steps),
            hits: whole(hits),
            keys: whole(keys),
            staged: staged.address(0, shape.staged_bytes()),
            tokens: shape.tokens as u32,
            first: first as u32,
            slots: shape.slots as u32,
            unused: 0,
        }
    }
}

impl Gpu {
    /// Enqueues kernels that give the keys staged by a search slots in a cache, and copy them there.
    pub(super) fn keep_staged(&self, shape: KeyCacheShape, cache: &DeviceKeyCache) -> Result<(), GpuError> {
        let kv_heads = shape.kv_heads as u32;
        let function = self.function("key_cache", "place_keys")?;
        let mut launch = self.launch(&function);
        launch.arg(cache);
        let grid = LaunchConfig { grid_dim: (kv_heads, 1, 1), block_dim: (PLACING, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the cache has these KV heads, and the search, enqueued before on the same stream, staged keys of its prefix only.
        unsafe { launch.launch(grid) }.map_err(failed(WHAT))?;
        let function = self.function("key_cache", "copy_staged")?;
        let pieces = (shape.row_bytes() / PIECE_BYTES) as u32;
        let mut launch = self.launch(&function);
        launch.arg(cache).arg(&pieces);
        let grid = LaunchConfig { grid_dim: (BLOCKS, kv_heads, 1), block_dim: (COPYING, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: `place_keys`, enqueued before on the same stream, names places among the staged keys and slots of the cache only.
        unsafe { launch.launch(grid) }.map_err(failed(WHAT))
    }
}

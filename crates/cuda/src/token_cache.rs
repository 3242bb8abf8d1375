//! [`TokenCache`]: device copies of keys and values of some tokens of a prefix in host memory, so that these need not cross the bus again.
//!
//! [`fetch_tokens`](Gpu::fetch_tokens) reads through a cache: tokens that it holds are copied within the device; others are fetched and
//! replace the least recently used ones. What a cache holds depends on the selections alone.

use cudarc::driver::{DeviceRepr, LaunchConfig};
use spattn_kernels::GPU_SLOT_BYTES;

use super::fetched::WHAT;
use super::kernel::Launch;
use super::launch::Cache;
use super::token_lists::TokenLists;
use super::{Buffer, Gpu, GpuError, Storage, failed};

/// Threads of a block that assigns slots, and of one that copies.
const PLACING: u32 = 1024;
const COPYING: u32 = 256;
/// The most blocks that fetch at the same time.
const BLOCKS: usize = 16;

/// The shape of a cache and of the prefix that it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenCacheShape {
    /// Number of KV heads.
    pub kv_heads: usize,
    /// Width of a key and of a value.
    pub d: usize,
    /// Type of the numbers.
    pub storage: Storage,
    /// Number of tokens of the prefix.
    pub tokens: usize,
    /// Number of tokens that each KV head can hold.
    pub slots: usize,
}

impl TokenCacheShape {
    /// Bytes of a key.
    fn row_bytes(&self) -> usize {
        self.d * self.storage.bytes()
    }

    /// Bytes of the device's memory that a cache of this shape takes.
    pub fn bytes(&self) -> usize {
        let of_head = self.slots * (2 * self.row_bytes() + GPU_SLOT_BYTES) + self.tokens * size_of::<u32>();
        self.kv_heads * (of_head + 2 * size_of::<u32>() + size_of::<u64>())
    }
}

/// A cache of tokens of one layer of a prefix. It is empty at first.
#[derive(Debug)]
pub struct TokenCache {
    shape: TokenCacheShape,
    /// `[kv_head][slots][d]`.
    keys: Buffer,
    values: Buffer,
    /// u32 `[kv_head][tokens]`: the slot of each token, plus one; 0 for none.
    slot_of: Buffer,
    /// u32 `[kv_head][slots]`: the token in each slot, plus one, or 0 for none; and the step in which it was used last.
    token_in: Buffer,
    used_in: Buffer,
    /// `[kv_head][slots]`: token and slot of what a step has to fetch; and u32 `[kv_head]`: how many these are.
    missing: Buffer,
    missing_counts: Buffer,
    /// u32 `[kv_head]`: steps so far; u64 `[kv_head]`: tokens that were found in the cache.
    steps: Buffer,
    hits: Buffer,
}

/// Mirrors the kernels' struct `TokenCache`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceTokenCache {
    slot_of: u64,
    token_in: u64,
    used_in: u64,
    missing: u64,
    missing_counts: u64,
    steps: u64,
    hits: u64,
    keys: u64,
    values: u64,
    tokens: u32,
    slots: u32,
}

// SAFETY: laid out as the kernels' struct.
unsafe impl DeviceRepr for DeviceTokenCache {}

/// Mirrors the kernels' structs `Rows`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceRows {
    pub(super) keys: u64,
    pub(super) values: u64,
    pub(super) stride: u64,
}

// SAFETY: laid out as the kernels' structs.
unsafe impl DeviceRepr for DeviceRows {}

impl DeviceTokenCache {
    /// Stands for no cache.
    pub(super) const NONE: Self = Self {
        slot_of: 0,
        token_in: 0,
        used_in: 0,
        missing: 0,
        missing_counts: 0,
        steps: 0,
        hits: 0,
        keys: 0,
        values: 0,
        tokens: 0,
        slots: 0,
    };
}

impl TokenCache {
    /// Allocates an empty cache.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    ///
    /// # Panics
    /// If it has no slots.
    pub fn new(gpu: &Gpu, shape: TokenCacheShape) -> Result<Self, GpuError> {
        assert!(shape.slots > 0, "a cache without slots holds no tokens");
        let TokenCacheShape { kv_heads, tokens, slots, .. } = shape;
        let words = |count: usize| gpu.alloc(kv_heads * count * size_of::<u32>());
        let rows = || gpu.alloc(kv_heads * slots * shape.row_bytes());
        Ok(Self {
            shape,
            keys: rows()?,
            values: rows()?,
            slot_of: words(tokens)?,
            token_in: words(slots)?,
            used_in: words(slots)?,
            missing: words(2 * slots)?,
            missing_counts: words(1)?,
            steps: words(1)?,
            hits: gpu.alloc(kv_heads * size_of::<u64>())?,
        })
    }

    /// The shape that it was made with.
    pub fn shape(&self) -> TokenCacheShape {
        self.shape
    }

    /// Returns how many tokens were found in the cache since the last call, over all KV heads. A KV head's token counts once in a step.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn take_hits(&mut self, gpu: &Gpu) -> Result<u64, GpuError> {
        gpu.take_counts(&mut self.hits)
    }

    pub(super) fn on_device(&self) -> DeviceTokenCache {
        let Self { shape, keys, values, slot_of, token_in, used_in, missing, missing_counts, steps, hits } = self;
        let whole = |buffer: &Buffer| buffer.address(0, buffer.bytes());
        DeviceTokenCache {
            slot_of: whole(slot_of),
            token_in: whole(token_in),
            used_in: whole(used_in),
            missing: whole(missing),
            missing_counts: whole(missing_counts),
            steps: whole(steps),
            hits: whole(hits),
            keys: whole(keys),
            values: whole(values),
            tokens: shape.tokens as u32,
            slots: shape.slots as u32,
        }
    }
}

impl Gpu {
    /// Enqueues, on the stream of fetches, kernels that give the tokens of one row's lists slots in a cache, and copy those that it lacks
    /// there from the prefix.
    pub(super) fn fill_cache(
        &self,
        cache: &TokenCache,
        lists: &TokenLists,
        prefix: &Cache<'_>,
        from: DeviceRows,
        pieces: u32,
    ) -> Result<(), GpuError> {
        let ([tokens, counts], device) = (lists.addresses(0), cache.on_device());
        let [most, lists_each, kv_heads] =
            [lists.most(), lists.lists() / prefix.kv_heads, prefix.kv_heads].map(|number| number as u32);
        let function = self.function("token_cache", "place_tokens")?;
        let mut launch = Launch::new(&self.fetching, &function);
        launch.arg(&tokens).arg(&most).arg(&counts).arg(&lists_each).arg(&device);
        let grid = LaunchConfig { grid_dim: (kv_heads, 1, 1), block_dim: (PLACING, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the cache is that of the prefix, as `fetch_tokens` checked, and each KV head has equally many lists.
        unsafe { launch.launch(grid) }.map_err(failed(WHAT))?;
        let function = self.function("token_cache", "fetch_missing")?;
        let mut launch = Launch::new(&self.fetching, &function);
        launch.arg(&device).arg(&kv_heads).arg(&from).arg(&pieces);
        let heads_at_once = prefix.kv_heads.min(BLOCKS);
        let blocks = ((BLOCKS / heads_at_once) as u32, heads_at_once as u32, 1);
        let grid = LaunchConfig { grid_dim: blocks, block_dim: (COPYING, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: `place_tokens`, enqueued before on the same stream, names tokens of the prefix and slots of the cache only.
        unsafe { launch.launch(grid) }.map_err(failed(WHAT))
    }
}

//! Copies keys and values of selected tokens to device memory before they are attended, on a separate stream, beside other work.
//!
//! Events order the two streams: a copy waits for the lists of tokens, which are enqueued before it, and attention waits for the copy.
//! Lists that are selected anew have no copies until the next [fetch](Gpu::fetch_tokens), so that no stale copy is attended.

use std::sync::atomic::Ordering;

use cudarc::driver::LaunchConfig;

use super::fetched::WHAT;
use super::kernel::Launch;
use super::launch::Cache;
use super::token_cache::{DeviceRows, DeviceTokenCache, TokenCache};
use super::token_lists::TokenLists;
use super::{Gpu, GpuError, failed};

/// Threads of a block.
const THREADS: u32 = 256;
/// The most blocks that copy from host memory: few, because the device computes beside them. The half megabyte that they request at a time
/// keeps the bus busy.
const BLOCKS: usize = 16;
/// The most blocks that copy within device memory, from a token cache.
const BLOCKS_WITHIN: usize = 64;
/// Bytes that a thread copies at once.
const PIECE_BYTES: usize = 16;

/// Keys and values of a cache, in pieces.
fn rows_of(cache: &Cache<'_>, pieces: usize) -> DeviceRows {
    DeviceRows { keys: cache.key(0, 0), values: cache.value(0, 0), stride: (cache.capacity * pieces) as u64 }
}

impl Gpu {
    /// Begins to copy the keys and values of all tokens of `lists` to device memory, beside the work that is enqueued next. They are read
    /// from `prefix`, which has `prefix_tokens` tokens, and after it from `tails`, one for each row's sequence. Until they have
    /// [waited](Self::await_tokens) for the copies, callers keep both and do not change the keys and values of listed tokens. From then on,
    /// attention over the lists reads the copies. With `cache`, the token cache of the prefix, there must be a single row; only tokens that
    /// the cache lacks are fetched.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the lists are neither by query head nor by KV head, or have tokens beyond prefix and tails; if the bytes of a key are not a
    /// multiple of 16; or if `cache` is of another prefix, or there are several rows.
    pub fn fetch_tokens(
        &self,
        lists: &mut TokenLists,
        prefix: &Cache<'_>,
        prefix_tokens: usize,
        tails: &[Cache<'_>],
        cache: Option<&TokenCache>,
    ) -> Result<(), GpuError> {
        let row_bytes = prefix.d * prefix.storage.bytes();
        let (rows, of_row, most) = (lists.rows(), lists.lists(), lists.most());
        assert!(row_bytes.is_multiple_of(PIECE_BYTES), "the kernel does not support keys of {row_bytes} bytes");
        assert!(
            rows == tails.len()
                && of_row > 0
                && of_row.is_multiple_of(prefix.kv_heads)
                && prefix_tokens <= prefix.capacity,
            "{of_row} lists of {rows} rows do not fit {} KV heads and {} tails",
            prefix.kv_heads,
            tails.len()
        );
        let fits = |tail: &Cache<'_>| {
            let alike = (tail.kv_heads, tail.d, tail.storage) == (prefix.kv_heads, prefix.d, prefix.storage);
            alike && lists.end() <= prefix_tokens + tail.capacity
        };
        assert!(tails.iter().all(fits), "lists have tokens below {}, beyond prefix and tail", lists.end());
        let is_of_prefix = |cache: &TokenCache| {
            let of = cache.shape();
            let alike = (of.kv_heads, of.d, of.storage) == (prefix.kv_heads, prefix.d, prefix.storage);
            alike && of.tokens == prefix_tokens && rows == 1
        };
        assert!(cache.is_none_or(is_of_prefix), "a cache of another prefix, or for {rows} rows: {cache:?}");
        lists.fetched.forget(self)?;
        lists.fetched.reserve(self, rows * of_row, most, row_bytes)?;
        lists.fetched.begin(self)?;
        let pieces = (row_bytes / PIECE_BYTES) as u32;
        let filled = cache.map_or(Ok(()), |cache| {
            self.fill_cache(cache, lists, prefix, rows_of(prefix, row_bytes / PIECE_BYTES), pieces)
        });
        let mut rows = tails.iter().enumerate();
        let began = filled.and_then(|()| {
            rows.try_for_each(|(row, tail)| self.fetch_row(lists, row, (prefix, prefix_tokens), tail, cache))
        });
        // Also after a failure: what was enqueued before it must be waited for.
        let ended = lists.fetched.end(self);
        self.fetches.fetch_add(1, Ordering::Relaxed);
        began.and(ended)
    }

    /// Returns how many times [`fetch_tokens`](Self::fetch_tokens) has begun to copy.
    pub fn fetches(&self) -> usize {
        self.fetches.load(Ordering::Relaxed)
    }

    /// Enqueues the copies of a row's lists.
    fn fetch_row(
        &self,
        lists: &TokenLists,
        row: usize,
        (prefix, prefix_tokens): (&Cache<'_>, usize),
        tail: &Cache<'_>,
        cache: Option<&TokenCache>,
    ) -> Result<(), GpuError> {
        let (of_row, most) = (lists.lists(), lists.most());
        let pieces = prefix.d * prefix.storage.bytes() / PIECE_BYTES;
        let ([tokens, counts], to) = (lists.addresses(row), lists.fetched.room(row, of_row * most));
        let (of_prefix, of_tail) = (rows_of(prefix, pieces), rows_of(tail, pieces));
        let held = cache.map_or(DeviceTokenCache::NONE, TokenCache::on_device);
        let [most_arg, lists_arg, each, prefix_tokens, pieces] =
            [most, of_row, of_row / prefix.kv_heads, prefix_tokens, pieces].map(|number| number as u32);
        let function = self.function("fetch_tokens", "fetch_tokens")?;
        let mut launch = Launch::new(&self.fetching, &function);
        launch.arg(&tokens).arg(&most_arg).arg(&counts).arg(&lists_arg).arg(&each).arg(&of_prefix).arg(&prefix_tokens);
        launch.arg(&of_tail).arg(&pieces).arg(&held).arg(&to[0]).arg(&to[1]);
        let most_blocks = if cache.is_some() { BLOCKS_WITHIN } else { BLOCKS };
        let lists_at_once = of_row.min(most_blocks);
        let blocks = ((most_blocks / lists_at_once) as u32, lists_at_once as u32, 1);
        let grid = LaunchConfig { grid_dim: blocks, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the lists' tokens lie in prefix and tail, and the copies have room for all, as `fetch_tokens` checked. Buffers are freed
        // in the order of the other stream, which waits for the copies first: `FetchedTokens` ensures this for the copies' buffers, the
        // caller for others.
        unsafe { launch.launch(grid) }.map_err(failed(WHAT))
    }

    /// Makes all work that is enqueued from now on wait for the [copies](Self::fetch_tokens) of the lists' tokens. The host does not wait.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn await_tokens(&self, lists: &mut TokenLists) -> Result<(), GpuError> {
        lists.fetched.wait(self)
    }
}

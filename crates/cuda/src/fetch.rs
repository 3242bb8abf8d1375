//! Keys and values of selected tokens that are copied to the memory of the device before they are attended, on a stream of their own, while
//! the device computes something else.
//!
//! Events order the two streams. A copy begins when the lists of tokens are there, which are enqueued before it; attention begins when the
//! copy is done. Lists that are selected anew have no copies until the next [fetch](Gpu::fetch_tokens), so that no copy of others is attended.

use std::sync::atomic::Ordering;

use cudarc::driver::{CudaEvent, DeviceRepr, LaunchConfig};
use spattn_kernels::GPU_FETCH_STEP;

use super::buffer::reserved;
use super::kernel::Launch;
use super::launch::Cache;
use super::token_lists::TokenLists;
use super::{Buffer, Gpu, GpuError, failed};

/// Threads of a block.
const THREADS: u32 = 256;
/// Blocks that copy together: few, since the device computes beside them, and enough that the bus is never idle.
const BLOCKS: usize = 64;
/// Bytes that a thread copies at once.
const PIECE_BYTES: usize = 16;

/// What failed.
const WHAT: &str = "fetching tokens";

/// Keys and values of the tokens of lists, each `[row][list][most][d]`.
#[derive(Debug, Default)]
pub(super) struct FetchedTokens {
    keys: Option<Buffer>,
    values: Option<Buffer>,
    /// Bytes of a key.
    row_bytes: usize,
    progress: Progress,
    /// When the lists are there, and when the copies are.
    events: Option<[CudaEvent; 2]>,
}

/// How far copies are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Progress {
    /// There are none of what the lists have now.
    #[default]
    Nothing,
    /// They were enqueued, and nothing waits for them yet.
    UnderWay,
    /// All work that is enqueued from now on waits for them.
    Awaited,
}

/// As the kernel's struct `Rows`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct DeviceRows {
    keys: u64,
    values: u64,
    stride: u64,
}

// SAFETY: as the kernel's struct.
unsafe impl DeviceRepr for DeviceRows {}

impl Drop for FetchedTokens {
    fn drop(&mut self) {
        // Nothing else waits for copies that are under way, and they write what is freed now.
        if let (Progress::UnderWay, Some([_, copied])) = (self.progress, &self.events) {
            // If the device has failed, it writes nothing any more.
            copied.context().record_err(copied.synchronize());
        }
    }
}

impl FetchedTokens {
    /// Leaves copies as they are, of which none is attended from now on.
    pub(super) fn forget(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        self.wait(gpu)?;
        self.progress = Progress::Nothing;
        Ok(())
    }

    /// Has all work that is enqueued from now on wait for copies that are under way.
    fn wait(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        if let (Progress::UnderWay, Some([_, copied])) = (self.progress, &self.events) {
            gpu.stream.wait(copied).map_err(failed(WHAT))?;
            gpu.waits_for_fetched.store(true, Ordering::Relaxed);
            self.progress = Progress::Awaited;
        }
        Ok(())
    }

    /// Addresses of the keys and of the values of a list of `most` tokens; zeros if they were not fetched.
    pub(super) fn addresses(&self, list: usize, most: usize) -> [u64; 2] {
        assert!(self.progress != Progress::UnderWay, "nothing waits for the tokens that are fetched");
        if self.progress == Progress::Nothing {
            return [0; 2];
        }
        let bytes = most * self.row_bytes;
        [&self.keys, &self.values].map(|rows| reserved(rows, "fetched tokens").address(list * bytes, bytes))
    }

    /// Reserves the copies of lists of so many tokens, and the events.
    fn reserve(&mut self, gpu: &Gpu, lists: usize, most: usize, row_bytes: usize) -> Result<(), GpuError> {
        self.row_bytes = row_bytes;
        let bytes = lists * most.next_multiple_of(GPU_FETCH_STEP) * row_bytes;
        gpu.reserve(&mut self.keys, bytes)?;
        gpu.reserve(&mut self.values, bytes)?;
        if self.events.is_none() {
            let event = || gpu.context.new_event(None).map_err(failed(WHAT));
            self.events = Some([event()?, event()?]);
        }
        Ok(())
    }
}

impl Gpu {
    /// Begins to copy the keys and values of all tokens of lists to the memory of the device, beside the work that is enqueued next. They are
    /// read from `prefix`, which has `prefix_tokens` tokens, and from the sequence of each row behind it, whose caches are `tails`. Nothing that
    /// these have for tokens of the lists changes before somebody [waits](Self::await_tokens) for the copies; then the lists are attended by
    /// them.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the lists are not by query head or by KV head, have tokens that neither prefix nor tails have, or keys are not a multiple of 16 bytes
    /// long.
    pub fn fetch_tokens(
        &self,
        lists: &mut TokenLists,
        prefix: &Cache<'_>,
        prefix_tokens: usize,
        tails: &[Cache<'_>],
    ) -> Result<(), GpuError> {
        let row_bytes = prefix.d * prefix.storage.bytes();
        let (rows, of_row, most) = (lists.rows(), lists.lists(), lists.most());
        assert!(row_bytes.is_multiple_of(PIECE_BYTES), "the kernel does not support keys of {row_bytes} bytes");
        assert!(
            rows == tails.len() && of_row > 0 && of_row.is_multiple_of(prefix.kv_heads) && prefix_tokens <= prefix.capacity,
            "{of_row} lists of {rows} rows do not fit {} KV heads and {} tails",
            prefix.kv_heads,
            tails.len()
        );
        let fits = |tail: &Cache<'_>| {
            let alike = (tail.kv_heads, tail.d, tail.storage) == (prefix.kv_heads, prefix.d, prefix.storage);
            alike && lists.end() <= prefix_tokens + tail.capacity
        };
        assert!(tails.iter().all(fits), "lists have tokens below {}, beyond prefix and tail", lists.end());
        lists.fetched.forget(self)?;
        lists.fetched.reserve(self, rows * of_row, most, row_bytes)?;
        let fetched = &lists.fetched;
        let Some([picked, copied]) = &fetched.events else { unreachable!("`reserve` made the events") };
        picked.record(&self.stream).map_err(failed(WHAT))?;
        self.fetching.wait(picked).map_err(failed(WHAT))?;
        let began = tails.iter().enumerate().try_for_each(|(row, tail)| {
            self.fetch_row(lists, row, prefix, prefix_tokens, tail)
        });
        // What was enqueued is waited for, even if not all of it could be.
        let recorded = copied.record(&self.fetching).map_err(failed(WHAT));
        lists.fetched.progress = Progress::UnderWay;
        self.fetches.fetch_add(1, Ordering::Relaxed);
        began.and(recorded)
    }

    /// How often [`fetch_tokens`](Self::fetch_tokens) has copied something so far.
    pub fn fetches(&self) -> usize {
        self.fetches.load(Ordering::Relaxed)
    }

    /// Enqueues the copies of a row's lists.
    fn fetch_row(
        &self,
        lists: &TokenLists,
        row: usize,
        prefix: &Cache<'_>,
        prefix_tokens: usize,
        tail: &Cache<'_>,
    ) -> Result<(), GpuError> {
        let (fetched, of_row, most) = (&lists.fetched, lists.lists(), lists.most());
        let pieces = fetched.row_bytes / PIECE_BYTES;
        let bytes = of_row * most * fetched.row_bytes;
        let [tokens, counts] = lists.addresses(row);
        let to = [&fetched.keys, &fetched.values]
            .map(|rows| reserved(rows, "fetched tokens").address(row * bytes, bytes));
        let of_cache = |cache: &Cache<'_>| DeviceRows {
            keys: cache.key(0, 0),
            values: cache.value(0, 0),
            stride: (cache.capacity * pieces) as u64,
        };
        let (of_prefix, of_tail) = (of_cache(prefix), of_cache(tail));
        let [most_arg, each, prefix_tokens, pieces] =
            [most, of_row / prefix.kv_heads, prefix_tokens, pieces].map(|number| number as u32);
        let function = self.function("fetch_tokens", "fetch_tokens")?;
        let mut launch = Launch::new(&self.fetching, &function);
        launch.arg(&tokens).arg(&most_arg).arg(&counts).arg(&each).arg(&of_prefix).arg(&prefix_tokens).arg(&of_tail);
        launch.arg(&pieces).arg(&to[0]).arg(&to[1]);
        let blocks = (BLOCKS.div_ceil(of_row) as u32, of_row as u32, 1);
        let grid = LaunchConfig { grid_dim: blocks, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the lists' tokens lie in prefix and tail, and the copies have room for all, as `fetch_tokens` checked. Buffers are freed in the
        // order of the other stream, which waits for the copies before: `forget`, `wait` and `drop` of `FetchedTokens` see to that.
        unsafe { launch.launch(grid) }.map_err(failed(WHAT))
    }

    /// Has all work that is enqueued from now on wait until the tokens of lists that are [fetched](Self::fetch_tokens) are there. The host does
    /// not wait.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn await_tokens(&self, lists: &mut TokenLists) -> Result<(), GpuError> {
        lists.fetched.wait(self)
    }
}

//! [`FetchedTokens`]: copies of the keys and values of selected tokens, and their progress.

use std::sync::atomic::Ordering;

use cudarc::driver::CudaEvent;
use spattn_kernels::GPU_FETCH_STEP;

use super::buffer::reserved;
use super::{Buffer, Gpu, GpuError, failed};

/// The operation, as errors name it.
pub(super) const WHAT: &str = "fetching tokens";

/// Keys and values of the tokens of lists, each `[row][list][most][d]`.
#[derive(Debug, Default)]
pub(super) struct FetchedTokens {
    keys: Option<Buffer>,
    values: Option<Buffer>,
    /// Bytes of a key.
    row_bytes: usize,
    progress: Progress,
    /// Events that mark when the lists and when the copies are complete.
    events: Option<[CudaEvent; 2]>,
}

/// The state of the copies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Progress {
    /// There are no copies of what the lists have now.
    #[default]
    Nothing,
    /// The copies are enqueued, and no work waits for them yet.
    UnderWay,
    /// All work that is enqueued from now on waits for the copies.
    Awaited,
}

impl Drop for FetchedTokens {
    fn drop(&mut self) {
        // No work waits for these copies yet, and they write the memory that is freed now.
        if let (Progress::UnderWay, Some([_, copied])) = (self.progress, &self.events) {
            // If the device has failed, it writes nothing any more.
            copied.context().record_err(copied.synchronize());
        }
    }
}

impl FetchedTokens {
    /// Discards the copies: none is attended from now on.
    pub(super) fn forget(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        self.wait(gpu)?;
        self.progress = Progress::Nothing;
        Ok(())
    }

    /// Whether there are copies, or they are under way.
    pub(super) fn is_there(&self) -> bool {
        self.progress != Progress::Nothing
    }

    /// Makes all work that is enqueued from now on wait for copies that are under way.
    pub(super) fn wait(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        if let (Progress::UnderWay, Some([_, copied])) = (self.progress, &self.events) {
            gpu.stream.wait(copied).map_err(failed(WHAT))?;
            gpu.waits_for_fetched.store(true, Ordering::Relaxed);
            self.progress = Progress::Awaited;
        }
        Ok(())
    }

    /// Makes the copies that are enqueued next wait for the lists, which are already enqueued.
    pub(super) fn begin(&self, gpu: &Gpu) -> Result<(), GpuError> {
        let [picked, _] = self.events();
        picked.record(&gpu.stream).and_then(|()| gpu.fetching.wait(picked)).map_err(failed(WHAT))
    }

    /// Notes that all copies are enqueued.
    pub(super) fn end(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        self.progress = Progress::UnderWay;
        let [_, copied] = self.events();
        copied.record(&gpu.fetching).map_err(failed(WHAT))
    }

    fn events(&self) -> &[CudaEvent; 2] {
        self.events.as_ref().expect("`reserve` made the events")
    }

    /// Addresses of the keys and values of a list of `most` tokens; zeros if they were not fetched.
    ///
    /// # Panics
    /// If copies are under way and no work waits for them yet.
    pub(super) fn addresses(&self, list: usize, most: usize) -> [u64; 2] {
        assert!(self.progress != Progress::UnderWay, "nothing waits for the tokens that are fetched");
        if self.progress == Progress::Nothing { [0; 2] } else { self.room(list, most) }
    }

    /// Addresses of the room for keys and values of `tokens` tokens, after `before` such rooms.
    pub(super) fn room(&self, before: usize, tokens: usize) -> [u64; 2] {
        let bytes = tokens * self.row_bytes;
        [&self.keys, &self.values].map(|rows| reserved(rows, "fetched tokens").address(before * bytes, bytes))
    }

    /// Copies the keys and values of `tokens` tokens, after `before` others, to the host.
    ///
    /// # Panics
    /// If there are none, or no work waits for them yet.
    pub(super) fn download(&self, gpu: &Gpu, before: usize, tokens: usize) -> Result<[Vec<u8>; 2], GpuError> {
        assert!(self.progress == Progress::Awaited, "the tokens were not fetched, or nothing waits for them");
        let copied = |rows: &Option<Buffer>| {
            let mut bytes = vec![0; tokens * self.row_bytes];
            gpu.download(reserved(rows, "fetched tokens"), before * self.row_bytes, &mut bytes)?;
            Ok(bytes)
        };
        Ok([copied(&self.keys)?, copied(&self.values)?])
    }

    /// Reserves memory for copies of `lists` lists of `most` tokens, and the events.
    pub(super) fn reserve(&mut self, gpu: &Gpu, lists: usize, most: usize, row_bytes: usize) -> Result<(), GpuError> {
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

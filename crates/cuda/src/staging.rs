//! [`Staging`]: pinned pages through which the host uploads without waiting.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, PinnedHostSlice};

/// Bytes that are downloaded at a time.
pub(super) const LANDING: usize = 16 << 20;

/// Pinned memory for copies to the device, during which the host goes on. Copies from other memory wait for the stream.
pub(super) struct Staging {
    slots: Vec<(PinnedHostSlice<u8>, CudaEvent)>,
    next: usize,
}

impl Staging {
    /// How many copies may run at the same time.
    const SLOTS: usize = 32;
    /// Bytes of a slot.
    const SLOT: usize = 1 << 18;
    /// The most bytes that are staged: longer data are copied directly.
    pub(super) const MOST: usize = Self::SLOTS / 2 * Self::SLOT;

    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        let slot = || {
            // SAFETY: bytes need no initial value, and every byte is written before it is copied.
            let pages = unsafe { context.alloc_pinned(Self::SLOT) }?;
            Ok((pages, context.new_event(None)?))
        };
        Ok(Self { slots: (0..Self::SLOTS).map(|_| slot()).collect::<Result<_, DriverError>>()?, next: 0 })
    }

    /// Copies bytes to an address, in the order of the stream. Waits only if all slots are in use.
    pub(super) fn copy(&mut self, bytes: &[u8], to: u64, stream: &CudaStream) -> Result<(), DriverError> {
        let mut pieces = bytes.chunks(Self::SLOT).enumerate();
        pieces.try_for_each(|(i, piece)| self.copy_piece(piece, to + (i * Self::SLOT) as u64, stream))
    }

    /// Copies at most [`SLOT`](Self::SLOT) bytes.
    fn copy_piece(&mut self, bytes: &[u8], to: u64, stream: &CudaStream) -> Result<(), DriverError> {
        let (pages, copied) = &mut self.slots[self.next];
        self.next = (self.next + 1) % Self::SLOTS;
        copied.synchronize()?;
        let pages = &mut pages.as_mut_slice()?[..bytes.len()];
        pages.copy_from_slice(bytes);
        // SAFETY: the caller has checked the range at the address; the slot is not written again before its event `copied` has passed.
        unsafe { cudarc::driver::result::memcpy_htod_async(to, pages, stream.cu_stream()) }?;
        copied.record(stream)
    }
}

//! [`Buffer`]: memory of a GPU, or of the host where a GPU can read and write it, counted as long as it is held.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cudarc::driver::result::{free_host, malloc_host};
use cudarc::driver::sys::CU_MEMHOSTALLOC_PORTABLE;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DriverError};
use half::{bf16, f16};

/// Numbers that are stored alike on host and device.
///
/// # Safety
/// Every bit pattern must be valid, and there must be no padding.
pub unsafe trait Plain: Copy + Default + Send + Sync + 'static {}

// SAFETY: integers and floats have no padding, and every bit pattern is valid.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for f64 {}
// SAFETY: as above.
unsafe impl Plain for f16 {}
// SAFETY: as above.
unsafe impl Plain for bf16 {}

/// Memory that kernels of a GPU read and write: its own, or pinned memory of the host, which they reach over the bus.
pub struct Buffer {
    memory: Memory,
    held: HeldBytes,
}

/// Where a buffer is.
enum Memory {
    /// In the memory of the device.
    Device(CudaSlice<u8>),
    /// In pinned memory of the host.
    Host(PinnedBytes),
}

/// Pinned memory of the host, at an address that is the same on all devices.
struct PinnedBytes {
    address: u64,
    /// The stream on which all work with it is enqueued.
    stream: Arc<CudaStream>,
    /// Whether work that writes it may be under way.
    is_written: AtomicBool,
}

impl PinnedBytes {
    /// So many bytes, all zero.
    fn zeros(bytes: usize, stream: &Arc<CudaStream>) -> Result<Self, DriverError> {
        stream.context().bind_to_thread()?;
        // SAFETY: the context is bound, and what is allocated is written below before anybody reads it.
        let start = unsafe { malloc_host(bytes, CU_MEMHOSTALLOC_PORTABLE) }?;
        // SAFETY: `bytes` bytes were allocated at `start`, and nobody else knows them yet.
        unsafe { std::ptr::write_bytes(start.cast::<u8>(), 0, bytes) };
        Ok(Self { address: start as u64, stream: stream.clone(), is_written: AtomicBool::new(false) })
    }
}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        let context = self.stream.context();
        context.record_err(context.bind_to_thread());
        // Kernels and copies that use it may still run.
        context.record_err(self.stream.synchronize());
        // SAFETY: the address is that of an allocation of `malloc_host`, and nothing that was enqueued uses it any more.
        context.record_err(unsafe { free_host(self.address as *mut _) });
    }
}

/// Bytes that all buffers of a GPU have now, and the most that they had at any time.
#[derive(Debug, Default)]
pub(super) struct MemoryUse {
    now: AtomicUsize,
    pub(super) most: AtomicUsize,
}

/// A buffer's share of [`MemoryUse`], given back when it is dropped.
pub(super) struct HeldBytes {
    bytes: usize,
    memory: Arc<MemoryUse>,
}

impl HeldBytes {
    pub(super) fn new(bytes: usize, memory: &Arc<MemoryUse>) -> Self {
        let before = memory.now.fetch_add(bytes, Ordering::Relaxed);
        memory.most.fetch_max(before + bytes, Ordering::Relaxed);
        Self { bytes, memory: memory.clone() }
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.memory.now.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // The memory is freed in the order of its own stream, in its own context, whichever the thread used last.
        if let Memory::Device(slice) = &self.memory {
            let context = slice.context();
            context.record_err(context.bind_to_thread());
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes())
    }
}

impl Buffer {
    /// What was allocated on a device.
    pub(super) fn on_device(slice: CudaSlice<u8>, held: HeldBytes) -> Self {
        Self { memory: Memory::Device(slice), held }
    }

    /// So many bytes of pinned memory of the host, all zero, for work on this stream.
    pub(super) fn on_host(held: HeldBytes, stream: &Arc<CudaStream>) -> Result<Self, DriverError> {
        Ok(Self { memory: Memory::Host(PinnedBytes::zeros(held.bytes, stream)?), held })
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.held.bytes
    }

    /// A number that no other living buffer has.
    pub fn id(&self) -> u64 {
        self.address(0, 0)
    }

    /// The address of the byte `offset`; `len` bytes from there on lie inside the buffer.
    ///
    /// # Panics
    /// If they do not.
    pub(super) fn address(&self, offset: usize, len: usize) -> u64 {
        assert!(
            offset + len <= self.bytes(),
            "{len} bytes at offset {offset} do not lie in a buffer of {} bytes",
            self.bytes()
        );
        let address = match &self.memory {
            Memory::Device(slice) => slice.device_ptr(slice.stream()).0,
            Memory::Host(pinned) => pinned.address,
        };
        address + offset as u64
    }
}

impl Buffer {
    /// Bytes of pinned host memory, as the host reads them; `None` if the buffer is on a device.
    ///
    /// # Safety
    /// No work that writes them is enqueued.
    ///
    /// # Panics
    /// If they do not lie inside the buffer.
    pub(super) unsafe fn on_host_bytes(&self, offset: usize, len: usize) -> Option<&[u8]> {
        let address = self.address(offset, len);
        // SAFETY: `address` checked the range, all of which was written when it was allocated; nobody writes it (caller).
        let bytes = || unsafe { std::slice::from_raw_parts(address as *const u8, len) };
        matches!(self.memory, Memory::Host(_)).then(bytes)
    }

    /// As [`on_host_bytes`](Self::on_host_bytes), to be written.
    ///
    /// # Safety
    /// No work that reads or writes them is enqueued.
    ///
    /// # Panics
    /// As there.
    pub(super) unsafe fn on_host_bytes_mut(&mut self, offset: usize, len: usize) -> Option<&mut [u8]> {
        let address = self.address(offset, len);
        // SAFETY: as above, and the buffer is borrowed exclusively.
        let bytes = || unsafe { std::slice::from_raw_parts_mut(address as *mut u8, len) };
        matches!(self.memory, Memory::Host(_)).then(bytes)
    }

    /// Waits for work that may still write it, if it is in host memory: then no more is enqueued while it is borrowed, since kernels only read
    /// such memory, and what copies to it borrows it exclusively and [is noted](Self::note_written). Whether it is there.
    ///
    /// # Errors
    /// Those of earlier work on the device.
    pub(super) fn settle(&self) -> Result<bool, DriverError> {
        let Memory::Host(pinned) = &self.memory else { return Ok(false) };
        if pinned.is_written.load(Ordering::Acquire) {
            pinned.stream.context().bind_to_thread()?;
            pinned.stream.synchronize()?;
            pinned.is_written.store(false, Ordering::Release);
        }
        Ok(true)
    }

    /// Notes that work is enqueued which writes the buffer.
    pub(super) fn note_written(&mut self) {
        if let Memory::Host(pinned) = &mut self.memory {
            *pinned.is_written.get_mut() = true;
        }
    }

    /// Whether it is in host memory.
    pub(super) fn is_on_host(&self) -> bool {
        matches!(self.memory, Memory::Host(_))
    }
}

/// A buffer that a launcher or a caller has reserved.
///
/// # Panics
/// If it was not reserved; the message names it.
pub(super) fn reserved<'b>(buffer: &'b Option<Buffer>, name: &str) -> &'b Buffer {
    buffer.as_ref().unwrap_or_else(|| panic!("no device memory is reserved for {name}"))
}

/// The bytes of numbers.
pub(super) fn bytes_of<T: Plain>(numbers: &[T]) -> &[u8] {
    // SAFETY: `Plain` numbers have no padding.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast::<u8>(), size_of_val(numbers)) }
}

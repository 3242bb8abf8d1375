//! [`Buffer`]: memory of a GPU, or host memory that a GPU can read and write, whose bytes are counted while it is held.

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
// SAFETY: as for `u8`.
unsafe impl Plain for u16 {}
// SAFETY: as for `u8`.
unsafe impl Plain for u32 {}
// SAFETY: as for `u8`.
unsafe impl Plain for u64 {}
// SAFETY: as for `u8`.
unsafe impl Plain for f32 {}
// SAFETY: as for `u8`.
unsafe impl Plain for f64 {}
// SAFETY: as for `u8`.
unsafe impl Plain for f16 {}
// SAFETY: as for `u8`.
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
    /// The stream of all work that uses the memory.
    stream: Arc<CudaStream>,
    /// Whether enqueued work may still write the memory.
    is_written: AtomicBool,
}

impl PinnedBytes {
    /// Allocates `bytes` bytes, all zero.
    fn zeros(bytes: usize, stream: &Arc<CudaStream>) -> Result<Self, DriverError> {
        stream.context().bind_to_thread()?;
        // SAFETY: the context is bound, and the memory is written below before it is read.
        let start = unsafe { malloc_host(bytes, CU_MEMHOSTALLOC_PORTABLE) }?;
        // SAFETY: `bytes` bytes were allocated at `start`, and nothing else refers to them yet.
        unsafe { std::ptr::write_bytes(start.cast::<u8>(), 0, bytes) };
        Ok(Self { address: start as u64, stream: stream.clone(), is_written: AtomicBool::new(false) })
    }
}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        let context = self.stream.context();
        context.record_err(context.bind_to_thread());
        // Kernels and copies that use the memory may still run.
        context.record_err(self.stream.synchronize());
        // SAFETY: `malloc_host` allocated this address, and no enqueued work uses it any more.
        context.record_err(unsafe { free_host(self.address as *mut _) });
    }
}

/// Bytes that all buffers of a GPU hold now, and the most that they ever held.
#[derive(Debug, Default)]
pub(super) struct MemoryUse {
    now: AtomicUsize,
    pub(super) most: AtomicUsize,
}

/// A buffer's share of [`MemoryUse`], subtracted when it is dropped.
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
        // The memory is freed on its own stream, which needs its own context; the thread may have used another one last.
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
    /// Wraps memory that was allocated on a device.
    pub(super) fn on_device(slice: CudaSlice<u8>, held: HeldBytes) -> Self {
        Self { memory: Memory::Device(slice), held }
    }

    /// Allocates `held` bytes of pinned host memory, all zero, for work on this stream.
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

    /// Returns the address of byte `offset`, from which `len` bytes lie inside the buffer.
    ///
    /// # Panics
    /// If the bytes do not lie inside the buffer.
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
    /// Returns bytes of pinned host memory for the host to read; `None` if the buffer is on a device.
    ///
    /// # Safety
    /// No enqueued work may write these bytes.
    ///
    /// # Panics
    /// If the bytes do not lie inside the buffer.
    pub(super) unsafe fn on_host_bytes(&self, offset: usize, len: usize) -> Option<&[u8]> {
        let address = self.address(offset, len);
        // SAFETY: `address` checked the range, which was written when it was allocated; nothing writes it, as the caller ensures.
        let bytes = || unsafe { std::slice::from_raw_parts(address as *const u8, len) };
        matches!(self.memory, Memory::Host(_)).then(bytes)
    }

    /// Like [`on_host_bytes`](Self::on_host_bytes), for the host to write.
    ///
    /// # Safety
    /// No enqueued work may read or write these bytes.
    ///
    /// # Panics
    /// If the bytes do not lie inside the buffer.
    pub(super) unsafe fn on_host_bytes_mut(&mut self, offset: usize, len: usize) -> Option<&mut [u8]> {
        let address = self.address(offset, len);
        // SAFETY: as in `on_host_bytes`, and the buffer is borrowed exclusively.
        let bytes = || unsafe { std::slice::from_raw_parts_mut(address as *mut u8, len) };
        matches!(self.memory, Memory::Host(_)).then(bytes)
    }

    /// If the buffer is in host memory, waits for work that may still write it, and returns true. While the buffer is borrowed, no more
    /// such work is enqueued: kernels only read host memory, and a copy to it borrows it exclusively and [is noted](Self::note_written).
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

    /// Notes that enqueued work writes the buffer.
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

/// Returns a buffer that a launcher or a caller has reserved.
///
/// # Panics
/// If it was not reserved; the message names it.
pub(super) fn reserved<'b>(buffer: &'b Option<Buffer>, name: &str) -> &'b Buffer {
    buffer.as_ref().unwrap_or_else(|| panic!("no device memory is reserved for {name}"))
}

/// Returns the bytes of a slice of numbers.
pub(super) fn bytes_of<T: Plain>(numbers: &[T]) -> &[u8] {
    // SAFETY: `Plain` numbers have no padding.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast::<u8>(), size_of_val(numbers)) }
}

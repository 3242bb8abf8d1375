//! [`Buffer`]: memory of a GPU, counted as long as it is held.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::{CudaSlice, DevicePtr};
use half::{bf16, f16};

/// Numbers that are stored alike on host and device.
///
/// # Safety
/// Every bit pattern must be valid, and there must be no padding.
pub unsafe trait Plain: Copy + Default + Send + Sync + 'static {}

// SAFETY: integers and floats have no padding, and every bit pattern is valid.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for f16 {}
// SAFETY: as above.
unsafe impl Plain for bf16 {}

/// Device memory of a GPU.
pub struct Buffer {
    pub(super) slice: CudaSlice<u8>,
    pub(super) held: HeldBytes,
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
        let context = self.slice.context();
        context.record_err(context.bind_to_thread());
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes())
    }
}

impl Buffer {
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
        let (address, _guard) = self.slice.device_ptr(self.slice.stream());
        address + offset as u64
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

//! Evicts the caches of a GPU, for timing.

use super::{Buffer, Gpu, GpuError};

/// Bytes copied: far more than any cache holds.
const BYTES: usize = 256 << 20;

/// Memory that is copied to evict everything else from the caches.
#[derive(Debug)]
pub struct Flood {
    from: Buffer,
    to: Buffer,
}

impl Flood {
    /// Allocates the memory.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn new(gpu: &Gpu) -> Result<Self, GpuError> {
        Ok(Self { from: gpu.alloc(BYTES)?, to: gpu.alloc(BYTES)? })
    }

    /// Evicts everything written before from the caches, before the device runs later work. Does not wait.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn pass(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        gpu.copy(&self.from, 0, &mut self.to, 0, BYTES)
    }
}

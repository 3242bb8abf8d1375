//! Emptying the caches of a GPU, for timing.

use super::{Buffer, Gpu, GpuError};

/// Bytes that are copied: far more than any cache holds.
const BYTES: usize = 256 << 20;

/// Memory whose copying throws out of the caches what they hold.
#[derive(Debug)]
pub struct Flood {
    from: Buffer,
    to: Buffer,
}

impl Flood {
    /// Makes room for it.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn new(gpu: &Gpu) -> Result<Self, GpuError> {
        Ok(Self { from: gpu.alloc(BYTES)?, to: gpu.alloc(BYTES)? })
    }

    /// What has been written before is in no cache any more when the device comes to what is asked for next. Nothing waits
    /// for that.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn pass(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        gpu.copy(&self.from, 0, &mut self.to, 0, BYTES)
    }
}

//! [`HostDeviceVec`]: numbers that are kept on both host and device.

use std::ops::Range;

use super::{Buffer, Gpu, GpuError, Plain};

/// Numbers on both host and device; uploaded when they change.
#[derive(Debug, Default)]
pub struct HostDeviceVec<T> {
    host: Vec<T>,
    device: Option<Buffer>,
}

impl<T: Plain + PartialEq> HostDeviceVec<T> {
    /// Sets both copies to `numbers`.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn set(&mut self, gpu: &Gpu, numbers: Vec<T>) -> Result<(), GpuError> {
        if self.host == numbers && self.device.is_some() {
            return Ok(());
        }
        self.host.clear();
        let bytes = size_of_val(numbers.as_slice());
        let device = gpu.reserved(&mut self.device, bytes)?;
        gpu.upload_to(device, 0, &numbers)?;
        self.host = numbers;
        Ok(())
    }

    /// Like [`set`](Self::set), for numbers that are copied only if they differ.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn set_to(&mut self, gpu: &Gpu, numbers: &[T]) -> Result<(), GpuError> {
        match self.host == numbers && self.device.is_some() {
            true => Ok(()),
            false => self.set(gpu, numbers.to_vec()),
        }
    }

    /// The numbers.
    pub fn numbers(&self) -> &[T] {
        &self.host
    }

    /// Returns the device address of a range of the numbers.
    pub(super) fn address(&self, range: Range<usize>) -> u64 {
        assert!(range.end <= self.host.len(), "range {range:?} is beyond {} numbers", self.host.len());
        let device = self.device.as_ref().expect("`set` is called before `address`");
        device.address(range.start * size_of::<T>(), range.len() * size_of::<T>())
    }
}

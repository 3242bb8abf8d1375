//! Memory of a GPU, and host memory that it can use: allocating and copying it.

use std::sync::PoisonError;

use cudarc::driver::DriverError;
use cudarc::driver::result::{memcpy_dtoh_async, memcpy_htod_async};
use cudarc::driver::sys::{CUresult, cuMemcpyAsync};
use rayon::prelude::*;

use super::buffer::{Buffer, HeldBytes, Plain, bytes_of};
use super::staging::{LANDING, Staging};
use super::{Gpu, GpuError, failed, may_deal};
use spattn_kernels::Rows as StoredRows;

/// Bytes of a download that a thread copies at a time.
const COPIED: usize = 1 << 18;

impl Buffer {
    /// Returns `count` numbers in pinned host memory from byte `offset` on; `None` if the buffer is on a device. Waits for copies that may
    /// still write them.
    ///
    /// # Errors
    /// [`GpuError`] of earlier work on the device.
    ///
    /// # Panics
    /// If they do not lie inside the buffer, or `offset` is not aligned for such numbers.
    pub fn host_numbers<T: Plain>(&self, offset: usize, count: usize) -> Result<Option<&[T]>, GpuError> {
        if !self.settle().map_err(failed("waiting for copies to host memory"))? {
            return Ok(None);
        }
        // SAFETY: `settle` waited for all work that writes them, and no more is enqueued while the buffer is borrowed.
        let Some(bytes) = (unsafe { self.on_host_bytes(offset, count * size_of::<T>()) }) else { return Ok(None) };
        let start = bytes.as_ptr().cast::<T>();
        assert!(start.is_aligned(), "numbers at byte {offset} are not aligned");
        // SAFETY: as many bytes are borrowed, at an aligned address; any bytes are valid `Plain` numbers.
        Ok(Some(unsafe { std::slice::from_raw_parts(start, count) }))
    }
}

impl Gpu {
    /// Allocates `bytes` bytes of device memory, all zero.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn alloc(&self, bytes: usize) -> Result<Buffer, GpuError> {
        let bytes = bytes.max(1);
        let allocated = self.context.bind_to_thread().and_then(|()| self.stream.alloc_zeros(bytes));
        match allocated {
            Ok(slice) => Ok(Buffer::on_device(slice, HeldBytes::new(bytes, &self.memory))),
            Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                let free = self.context.mem_get_info().map_or(0, |(free, _)| free);
                Err(GpuError::OutOfMemory { asked: bytes, free })
            }
            Err(error) => Err(failed("allocating memory")(error)),
        }
    }

    /// Allocates `bytes` bytes of pinned host memory, all zero, which kernels reach over the bus.
    ///
    /// # Errors
    /// [`GpuError::OutOfHostMemory`] if the host does not have them, or the driver cannot pin them.
    pub fn alloc_on_host(&self, bytes: usize) -> Result<Buffer, GpuError> {
        let bytes = bytes.max(1);
        Buffer::on_host(HeldBytes::new(bytes, &self.host_memory), &self.stream).map_err(|error| match error {
            DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => GpuError::OutOfHostMemory { asked: bytes },
            error => failed("allocating pinned host memory")(error),
        })
    }

    /// Makes `buffer` at least `bytes` long. If it has to grow, its content is lost.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn reserve(&self, buffer: &mut Option<Buffer>, bytes: usize) -> Result<(), GpuError> {
        if buffer.as_ref().is_none_or(|buffer| buffer.bytes() < bytes) {
            *buffer = None;
            *buffer = Some(self.alloc(bytes)?);
        }
        Ok(())
    }

    /// Like [`reserve`](Self::reserve); returns the buffer.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn reserved<'b>(&self, buffer: &'b mut Option<Buffer>, bytes: usize) -> Result<&'b mut Buffer, GpuError> {
        self.reserve(buffer, bytes)?;
        Ok(buffer.as_mut().expect("`reserve` made the buffer"))
    }

    /// Copies numbers to the device, into a new buffer.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn upload<T: Plain>(&self, numbers: &[T]) -> Result<Buffer, GpuError> {
        let mut buffer = self.alloc(size_of_val(numbers))?;
        self.upload_to(&mut buffer, 0, numbers)?;
        Ok(buffer)
    }

    /// Returns the sum of the u64 counters that a buffer consists of, and sets them to zero.
    pub(super) fn take_counts(&self, counters: &mut Buffer) -> Result<u64, GpuError> {
        let mut counts = vec![0u64; counters.bytes() / size_of::<u64>()];
        self.download(counters, 0, &mut counts)?;
        self.upload_to(counters, 0, &vec![0u64; counts.len()])?;
        Ok(counts.iter().sum())
    }

    /// Copies numbers to the device, to byte `offset` of a buffer and on. Waits for earlier work if the buffer is in host memory.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If they do not fit.
    pub fn upload_to<T: Plain>(&self, buffer: &mut Buffer, offset: usize, numbers: &[T]) -> Result<(), GpuError> {
        let bytes = bytes_of(numbers);
        let address = buffer.address(offset, bytes.len());
        self.context.bind_to_thread().map_err(failed("binding its context to a thread"))?;
        if bytes.is_empty() {
            return Ok(());
        }
        if buffer.is_on_host() {
            self.synchronize()?;
            // SAFETY: all work that was enqueued is done.
            let pinned = unsafe { buffer.on_host_bytes_mut(offset, bytes.len()) };
            pinned.into_iter().for_each(|pinned| pinned.copy_from_slice(bytes));
            return Ok(());
        }
        if bytes.len() <= Staging::MOST {
            let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
            return staging.copy(bytes, address, &self.stream).map_err(failed("copying to the device"));
        }
        // SAFETY: the range lies inside the buffer as checked above. Copies from memory that is not pinned have read it when the call returns.
        unsafe { memcpy_htod_async(address, bytes, self.stream.cu_stream()) }.map_err(failed("copying to the device"))
    }

    /// Copies rows to the device in their storage type, to byte `offset` of a buffer and on.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If they do not fit.
    pub fn upload_rows(&self, buffer: &mut Buffer, offset: usize, rows: StoredRows<'_>) -> Result<(), GpuError> {
        match rows {
            StoredRows::F32(rows) => self.upload_to(buffer, offset, rows),
            StoredRows::F16(rows) => self.upload_to(buffer, offset, rows),
            StoredRows::Bf16(rows) => self.upload_to(buffer, offset, rows),
        }
    }

    /// Copies numbers to the host, from byte `offset` of a buffer on. Waits until all enqueued work is done.
    ///
    /// # Errors
    /// [`GpuError`]; errors of earlier work on the device are returned here too.
    ///
    /// # Panics
    /// If the buffer has fewer bytes.
    pub fn download<T: Plain>(&self, buffer: &Buffer, offset: usize, numbers: &mut [T]) -> Result<(), GpuError> {
        let len = size_of_val(numbers);
        let from = buffer.address(offset, len);
        // SAFETY: `Plain` numbers have no padding, and any bytes are valid.
        let bytes = unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast::<u8>(), len) };
        self.context.bind_to_thread().map_err(failed("binding its context to a thread"))?;
        if buffer.is_on_host() {
            self.synchronize()?;
            // SAFETY: all work that was enqueued is done.
            let pinned = unsafe { buffer.on_host_bytes(offset, len) }.unwrap_or_default();
            let pieces = bytes.par_chunks_mut(COPIED).zip(pinned.par_chunks(COPIED));
            pieces.for_each(|(to, from)| to.copy_from_slice(from));
            return Ok(());
        }
        let mut landing = self.landing.lock().unwrap_or_else(PoisonError::into_inner);
        let landing = landing.as_mut_slice().map_err(failed("copying to the host"))?;
        for (i, piece) in bytes.chunks_mut(LANDING).enumerate() {
            let (landed, at) = (&mut landing[..piece.len()], from + (i * LANDING) as u64);
            // SAFETY: the range lies inside the buffer as checked above, and the pinned memory is not touched before the copy is done.
            unsafe { memcpy_dtoh_async(landed, at, self.stream.cu_stream()) }.map_err(failed("copying to the host"))?;
            self.synchronize()?;
            // Several threads copy, because the first write to pages that are new to the process is slow.
            match may_deal() {
                true => {
                    let pieces = piece.par_chunks_mut(COPIED).zip(landed.par_chunks(COPIED));
                    pieces.for_each(|(to, from)| to.copy_from_slice(from));
                }
                false => piece.copy_from_slice(landed),
            }
        }
        if len == 0 { self.synchronize() } else { Ok(()) }
    }

    /// Like [`download`](Self::download), into new memory.
    pub(super) fn downloaded<T: Plain + Default>(
        &self,
        buffer: &Buffer,
        offset: usize,
        count: usize,
    ) -> Result<Vec<T>, GpuError> {
        let mut numbers = vec![T::default(); count];
        self.download(buffer, offset, &mut numbers)?;
        Ok(numbers)
    }

    /// Copies `len` bytes from one buffer to another, in the order of the stream.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If either range is not inside its buffer.
    pub fn copy(
        &self,
        from: &Buffer,
        offset: usize,
        to: &mut Buffer,
        place: usize,
        len: usize,
    ) -> Result<(), GpuError> {
        let (source, target) = (from.address(offset, len), to.address(place, len));
        if len == 0 {
            return Ok(());
        }
        to.note_written();
        self.context.bind_to_thread().map_err(failed("binding its context to a thread"))?;
        // SAFETY: both ranges lie inside their buffers as checked above, and buffers are freed in the order of the stream. Pinned memory
        // has the same address on the device.
        unsafe { cuMemcpyAsync(target, source, len, self.stream.cu_stream()) }
            .result()
            .map_err(failed("copying between buffers"))
    }

    /// Copies `pieces` pieces of `len` bytes from one buffer to another, in the order of the stream: piece `i` goes from byte
    /// `from.1 + i * from.2` to byte `to.1 + i * to.2`.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a piece is not inside its buffer.
    pub fn copy_pieces(
        &self,
        from: (&Buffer, usize, usize),
        to: (&mut Buffer, usize, usize),
        pieces: usize,
        len: usize,
    ) -> Result<(), GpuError> {
        (0..pieces).try_for_each(|i| self.copy(from.0, from.1 + i * from.2, to.0, to.1 + i * to.2, len))
    }
}

//! Copies from one GPU to another, in the order of both streams.

use std::fmt;
use std::ptr;

use cudarc::driver::result::memcpy_dtod_async;
use cudarc::driver::sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemLocation, CUmemLocationType, CUresult, cuCtxEnablePeerAccess,
    cuDeviceCanAccessPeer, cuDeviceGetMemPool, cuMemPoolSetAccess, cuMemcpyPeerAsync,
};

use super::{Buffer, Gpu, GpuError, failed};

/// How data goes from one GPU to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Both are the same device.
    SameDevice,
    /// Each reads the other's memory directly.
    Direct,
    /// The driver does not grant that, and copies through host memory.
    ThroughHost,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SameDevice => "within one device",
            Self::Direct => "directly",
            Self::ThroughHost => "through the host's memory",
        })
    }
}

/// How many numbers are sent when two GPUs are linked, to check that they arrive unchanged.
const TRIED: u32 = 1 << 18;

impl Gpu {
    /// The number of the device, as the driver counts them.
    pub fn ordinal(&self) -> usize {
        self.context.ordinal()
    }

    /// Prepares copies between this GPU and another, in both directions, and tests them.
    ///
    /// # Errors
    /// [`GpuError`]; also if what one sends arrives changed at the other, as on machines whose settings break copies between devices.
    pub fn link(&self, other: &Self) -> Result<Link, GpuError> {
        if self.context == other.context {
            return Ok(Link::SameDevice);
        }
        let is_direct = self.let_access(other)? && other.let_access(self)?;
        self.try_to_receive(other)?;
        other.try_to_receive(self)?;
        Ok(if is_direct { Link::Direct } else { Link::ThroughHost })
    }

    /// Lets another GPU access the memory of this one; returns whether the driver grants it.
    fn let_access(&self, reader: &Self) -> Result<bool, GpuError> {
        const WHAT: &str = "linking two GPUs";
        let (own, other) = (self.context.cu_device(), reader.context.cu_device());
        let mut can = 0;
        // SAFETY: the call writes one number to `can`.
        unsafe { cuDeviceCanAccessPeer(&raw mut can, other, own) }.result().map_err(failed(WHAT))?;
        if can == 0 {
            return Ok(false);
        }
        if !self.context.has_async_alloc() {
            reader.context.bind_to_thread().map_err(failed("binding its context to a thread"))?;
            // SAFETY: both contexts exist as long as the two GPUs.
            let granted = unsafe { cuCtxEnablePeerAccess(self.context.cu_ctx(), 0) };
            return Ok(matches!(granted, CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED));
        }
        // Buffers come from the device's memory pool, to which access between contexts does not apply.
        let mut pool = ptr::null_mut();
        // SAFETY: the call writes one handle to `pool`, which exists as long as the device.
        unsafe { cuDeviceGetMemPool(&raw mut pool, own) }.result().map_err(failed(WHAT))?;
        let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: other };
        let access = CUmemAccessDesc { location, flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
        // SAFETY: the pool exists, and `access` is one description.
        Ok(unsafe { cuMemPoolSetAccess(pool, &raw const access, 1) } == CUresult::CUDA_SUCCESS)
    }

    /// Sends numbers from another GPU to this one and checks that they arrive unchanged.
    fn try_to_receive(&self, other: &Self) -> Result<(), GpuError> {
        let sent: Vec<u32> = (0..TRIED).map(|i| i.wrapping_mul(0x9E37_79B9) ^ 0x5A5A_5A5A).collect();
        let bytes = size_of_val(sent.as_slice());
        let (from, mut to) = (other.upload(&sent)?, self.alloc(bytes)?);
        self.receive(&mut to, other, &from, bytes)?;
        match self.downloaded::<u32>(&to, 0, sent.len())? == sent {
            true => Ok(()),
            false => Err(GpuError::Failed {
                what: "copying between GPUs",
                why: format!(
                    "numbers from GPU {} arrive changed at GPU {}: have an administrator check the machine's IOMMU and ACS settings, or use \
                     one GPU",
                    other.ordinal(),
                    self.ordinal()
                ),
            }),
        }
    }

    /// Copies the first `len` bytes of a buffer of another GPU to the beginning of a buffer of this one. The copy waits for all work that
    /// is enqueued on either, and later work on either waits for the copy; the host does not wait.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If one of the buffers has fewer bytes.
    pub fn receive(&self, to: &mut Buffer, other: &Self, from: &Buffer, len: usize) -> Result<(), GpuError> {
        const WHAT: &str = "copying between GPUs";
        let (source, target) = (from.address(0, len), to.address(0, len));
        if len == 0 {
            return Ok(());
        }
        to.note_written();
        let ready = other.stream.record_event(None).map_err(failed(WHAT))?;
        self.stream.wait(&ready).map_err(failed(WHAT))?;
        self.context.bind_to_thread().map_err(failed("binding its context to a thread"))?;
        let stream = self.stream.cu_stream();
        // SAFETY: both ranges lie inside their buffers as checked above. The source is not written, nor is either freed, before the copy
        // is done: both streams wait for it, and buffers are freed in the order of their stream.
        let copied = unsafe {
            match self.context == other.context {
                true => memcpy_dtod_async(target, source, len, stream),
                false => {
                    let (own, others) = (self.context.cu_ctx(), other.context.cu_ctx());
                    cuMemcpyPeerAsync(target, own, source, others, len, stream).result()
                }
            }
        };
        copied.map_err(failed(WHAT))?;
        let done = self.stream.record_event(None).map_err(failed(WHAT))?;
        other.stream.wait(&done).map_err(failed(WHAT))
    }
}

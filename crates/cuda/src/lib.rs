//! Launchers of the kernels in `kernels/*.cu`: the only code that talks to a GPU.
//!
//! A [`Gpu`] is one device with one stream: work runs in the order in which it was enqueued, and only [`Gpu::download`] waits for it. A
//! [`Buffer`] is device memory in bytes. Launchers check that everything that a kernel touches lies inside its buffers, so no argument can
//! make a kernel read or write elsewhere. Indices *within* buffers (selected tokens, token ids) are checked where they are known, by the
//! callers named at each launcher. Nothing here depends on a model or a method.

mod attend;
mod block_shape;
mod blocks;
mod cache_flush;
mod channels;
mod codes;
mod collisions;
mod draws;
mod hamming_top_k;
mod heavy_hitters;
mod labels;
mod launch;
mod maps;
mod per_row_tokens;
mod prefill;
mod record;
mod select;
mod timeline;
mod tree;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use cudarc::cublas::CudaBlas;
use cudarc::driver::result::memcpy_dtoh_async;
use cudarc::driver::sys::{CUdevice_attribute, CUfunction_attribute, CUresult};
use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaModule, CudaSlice, CudaStream, DevicePtr, DriverError, PinnedHostSlice,
};
use cudarc::nvrtc::Ptx;
use half::{bf16, f16};
use rayon::prelude::*;

use spattn_kernels::Rows as StoredRows;

pub use attend::{Attention, AttentionWorkspace, Prefix, Prepared, Tail, Tokens, Unit, Weights};
pub use block_shape::BlockShape;
pub use blocks::{BlockLists, PromptSearch, Run, Sampling, Searched};
pub use cache_flush::Flood;
pub use channels::{ChosenChannels, KeysByChannel};
pub use codes::CodedKeys;
pub use collisions::{CollisionWorkspace, HashTables, SamplingSpec, TableShape};
pub use draws::{DRAW_KEY, DrawWorkspace};
pub use hamming_top_k::Nearest;
pub use heavy_hitters::{HeldList, HeldSizes, HeldTokens, HoldingPrefix, HoldingRow, HoldingWorkspace};
pub use labels::{ChannelLists, LabelCodes};
pub use launch::{Cache, Into, Norms, Place, Positions};
pub use maps::{Directions, Nets, Signatures, TieOrder, maps_fit};
pub use per_row_tokens::PerRowTokens;
pub use prefill::Rows;
pub use record::Recording;
pub use select::{
    HostDeviceVec, IndexRows, PageBounds, Pages, ProjectedQueries, Queries, Reduction, ScoreWorkspace, Scores,
    TokenList, TokenLists,
};
pub use timeline::Timeline;
pub use tree::{Tree, TreeWorkspace};

/// The compiled kernels: for each file in `kernels/` its name, whether it is for Hopper GPUs only, and its code.
const MODULES: &[(&str, bool, &[u8])] = include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// The oldest compute capability that the code runs on.
const LEAST_CAPABILITY: (i32, i32) = (8, 0);
/// Bytes of one copy to the host, and the part of them that one thread copies on.
const LANDING: usize = 16 << 20;
const COPIED: usize = 1 << 18;
/// Major compute capability of the GPUs that can run the kernels with `wgmma`.
const HOPPER: i32 = 9;
/// The CUDA version that the bindings and kernels need, as `1000 * major + 10 * minor`.
const LEAST_DRIVER: i32 = 13_000;

/// Why a GPU cannot be used, or what failed on it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// The driver's library is missing.
    #[error("there is no NVIDIA driver on this machine (libcuda cannot be loaded)")]
    NoDriver,
    /// A library of the CUDA toolkit is missing.
    #[error("{0} cannot be loaded: it is part of the CUDA 13 runtime libraries")]
    NoLibrary(&'static str),
    /// The driver lists no such device.
    #[error("there is no GPU {ordinal}: the driver lists {count}")]
    NoDevice {
        /// The requested device.
        ordinal: usize,
        /// How many devices there are.
        count: usize,
    },
    /// The driver is older than the CUDA version that is needed.
    #[error("the driver supports CUDA {}.{}, and this build needs {}.{}", .has / 1000, .has % 1000 / 10, .needs / 1000, .needs % 1000 / 10)]
    OldDriver {
        /// The version that it supports, as `1000 * major + 10 * minor`.
        has: i32,
        /// The version that is needed.
        needs: i32,
    },
    /// The device is too old for the kernels.
    #[error("{name} has compute capability {}.{}, and the kernels need {}.{} or newer", .has.0, .has.1, LEAST_CAPABILITY.0, LEAST_CAPABILITY.1)]
    OldDevice {
        /// Name of the device.
        name: String,
        /// Its compute capability.
        has: (i32, i32),
    },
    /// The device does not have enough free memory.
    #[error(
        "the GPU has {:.1} GB of memory left, and {:.1} GB more were needed: choose a shorter --length, fewer methods at a time \
         or --dtype bf16",
        *.free as f64 / 1e9, *.asked as f64 / 1e9
    )]
    OutOfMemory {
        /// Bytes that were requested.
        asked: usize,
        /// Bytes that were free at that time.
        free: usize,
    },
    /// Any other error of the driver or a library.
    #[error("the GPU failed at {what}: {why}")]
    Failed {
        /// What was being done.
        what: &'static str,
        /// The error's own message.
        why: String,
    },
}

/// Makes an error that says what was being done.
fn failed(what: &'static str) -> impl Fn(DriverError) -> GpuError {
    move |error| GpuError::Failed { what, why: error.to_string() }
}

/// The types in which kernels store numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Storage {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl Storage {
    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Whether the kernels on tensor cores support heads of `d` channels.
    fn fits_tiles(self, d: usize) -> bool {
        self != Self::F32 && matches!(d, 64 | 128)
    }

    /// The ending of the names of its kernels.
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

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
    slice: CudaSlice<u8>,
    held: Held,
}

/// Bytes that all buffers of a GPU have now, and the most that they had at any time.
#[derive(Debug, Default)]
struct Memory {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// A buffer's share of [`Memory`], given back when it is dropped.
struct Held {
    bytes: usize,
    memory: Arc<Memory>,
}

impl Held {
    fn new(bytes: usize, memory: &Arc<Memory>) -> Self {
        let before = memory.now.fetch_add(bytes, Ordering::Relaxed);
        memory.most.fetch_max(before + bytes, Ordering::Relaxed);
        Self { bytes, memory: memory.clone() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.now.fetch_sub(self.bytes, Ordering::Relaxed);
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
    /// If they do not lie inside.
    fn address(&self, offset: usize, len: usize) -> u64 {
        assert!(offset + len <= self.bytes(), "{len} bytes at {offset} of a buffer of {}", self.bytes());
        let (address, _guard) = self.slice.device_ptr(self.slice.stream());
        address + offset as u64
    }
}

/// Properties of a device, to be shown.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuInfo {
    /// Name of the device.
    pub name: String,
    /// Major and minor compute capability.
    pub capability: (i32, i32),
    /// Bytes of its memory.
    pub memory: usize,
    /// Bytes that are free now.
    pub free: usize,
    /// The newest CUDA that the driver supports, as `major.minor`.
    pub driver: String,
}

/// One GPU, its stream, and the kernels loaded on it.
pub struct Gpu {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    blas: CudaBlas,
    modules: HashMap<&'static str, Arc<CudaModule>>,
    functions: Mutex<HashMap<String, Function>>,
    processors: usize,
    is_hopper: bool,
    /// Most bytes of shared memory that a block can have.
    most_shared: usize,
    /// For kernels that draw work from a queue: zero between launches.
    counter: Buffer,
    staging: Mutex<Staging>,
    /// Pinned memory for copies to the host.
    landing: Mutex<PinnedHostSlice<u8>>,
    memory: Arc<Memory>,
}

/// A kernel that was loaded.
struct Function {
    function: CudaFunction,
    /// Bytes of dynamic shared memory that it is allowed to use.
    shared: u32,
}

/// Pinned memory for copies to the device: the host goes on while they run. Copies from other memory wait for the stream.
struct Staging {
    slots: Vec<(PinnedHostSlice<u8>, CudaEvent)>,
    next: usize,
}

impl Staging {
    /// How many copies may run at the same time.
    const SLOTS: usize = 32;
    /// Bytes of a slot.
    const SLOT: usize = 1 << 18;
    /// Longer data are copied without staging.
    const MOST: usize = Self::SLOTS / 2 * Self::SLOT;

    fn new(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        let slot = || {
            // SAFETY: bytes need no initial value, and every byte is written before it is copied.
            let pages = unsafe { context.alloc_pinned(Self::SLOT) }?;
            Ok((pages, context.new_event(None)?))
        };
        Ok(Self { slots: (0..Self::SLOTS).map(|_| slot()).collect::<Result<_, DriverError>>()?, next: 0 })
    }

    /// Copies bytes to an address, in the order of the stream. Waits only if all slots are in use.
    fn copy(&mut self, bytes: &[u8], to: u64, stream: &CudaStream) -> Result<(), DriverError> {
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
        // SAFETY: the caller has checked the range behind the address; the slot is not written again before its event `copied` has passed.
        unsafe { cudarc::driver::result::memcpy_htod_async(to, pages, stream.cu_stream()) }?;
        copied.record(stream)
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpu({})", self.context.ordinal())
    }
}

/// How many GPUs the driver lists.
///
/// # Errors
/// [`GpuError::NoDriver`], or what the driver says.
pub fn count() -> Result<usize, GpuError> {
    // SAFETY: the call only looks for the library and loads it.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err(GpuError::NoDriver);
    }
    match CudaContext::device_count() {
        Ok(count) => Ok(count.max(0) as usize),
        Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(0),
        Err(error) => Err(failed("counting devices")(error)),
    }
}

/// Bytes of a device's memory that are free now.
///
/// # Errors
/// As [`count`].
pub fn free_bytes(ordinal: usize) -> Result<u64, GpuError> {
    let count = count()?;
    if ordinal >= count {
        return Err(GpuError::NoDevice { ordinal, count });
    }
    let context = CudaContext::new(ordinal).map_err(failed("opening the device"))?;
    let (free, _) = context.mem_get_info().map_err(failed("asking for its memory"))?;
    Ok(free as u64)
}

/// The newest CUDA that the driver supports, as `1000 * major + 10 * minor`.
fn driver_version() -> Result<i32, GpuError> {
    let mut version = 0;
    // SAFETY: the call writes one number to `version`.
    unsafe { cudarc::driver::sys::cuDriverGetVersion(&mut version) }
        .result()
        .map_err(failed("asking for its version"))?;
    Ok(version)
}

impl Gpu {
    /// Opens a device and loads all kernels.
    ///
    /// # Errors
    /// The [`GpuError`] that names what is missing.
    pub fn open(ordinal: usize) -> Result<Self, GpuError> {
        let count = count()?;
        if ordinal >= count {
            return Err(GpuError::NoDevice { ordinal, count });
        }
        let has = driver_version()?;
        if has < LEAST_DRIVER {
            return Err(GpuError::OldDriver { has, needs: LEAST_DRIVER });
        }
        // SAFETY: the call only looks for the library and loads it.
        if !unsafe { cudarc::cublas::sys::is_culib_present() } {
            return Err(GpuError::NoLibrary("libcublas"));
        }
        let context = CudaContext::new(ordinal).map_err(failed("opening the device"))?;
        let capability = context.compute_capability().map_err(failed("asking for its capability"))?;
        if capability < LEAST_CAPABILITY {
            let name = context.name().map_err(failed("asking for its name"))?;
            return Err(GpuError::OldDevice { name, has: capability });
        }
        // SAFETY: events are needed to order the work of several streams; here all work is enqueued on one.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(failed("making a stream"))?;
        let blas = CudaBlas::new(stream.clone())
            .map_err(|error| GpuError::Failed { what: "starting cuBLAS", why: format!("{error:?}") })?;
        let usable = |(_, hopper_only, _): &&(&str, bool, &[u8])| !hopper_only || capability.0 == HOPPER;
        let load = |(name, _, code): &(&'static str, bool, &[u8])| {
            let module = context.load_module(Ptx::from_binary(code.to_vec())).map_err(failed("loading kernels"))?;
            Ok((*name, module))
        };
        let modules = MODULES.iter().filter(usable).map(load).collect::<Result<_, GpuError>>()?;
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let processors = context.attribute(attribute).map_err(failed("counting processors"))? as usize;
        let is_hopper = capability.0 == HOPPER;
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let most_shared = context.attribute(attribute).map_err(failed("asking for its shared memory"))? as usize;
        let memory = Arc::new(Memory::default());
        let slice = stream.alloc_zeros(4).map_err(failed("making room"))?;
        let counter = Buffer { slice, held: Held::new(4, &memory) };
        let staging = Mutex::new(Staging::new(&context).map_err(failed("making room"))?);
        // SAFETY: bytes need no initial value, and every byte is copied to before it is read.
        let landing = Mutex::new(unsafe { context.alloc_pinned(LANDING) }.map_err(failed("making room"))?);
        let functions = Mutex::default();
        Ok(Self {
            context,
            stream,
            blas,
            modules,
            functions,
            processors,
            is_hopper,
            most_shared,
            counter,
            staging,
            landing,
            memory,
        })
    }

    /// Properties of the device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn info(&self) -> Result<GpuInfo, GpuError> {
        let (free, memory) = self.context.mem_get_info().map_err(failed("asking for its memory"))?;
        let driver = driver_version()?;
        Ok(GpuInfo {
            name: self.context.name().map_err(failed("asking for its name"))?,
            capability: self.context.compute_capability().map_err(failed("asking for its capability"))?,
            memory,
            free,
            driver: format!("{}.{}", driver / 1000, driver % 1000 / 10),
        })
    }

    /// Bytes per second of a copy within the device, reads and writes both counted: the median of nine.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn copy_bandwidth(&self) -> Result<f64, GpuError> {
        const BYTES: usize = 1 << 30;
        let (from, mut to) = (self.alloc(BYTES)?, self.alloc(BYTES)?);
        let mut times = Vec::new();
        for _ in 0..9 {
            self.synchronize()?;
            let start = Instant::now();
            self.copy(&from, 0, &mut to, 0, BYTES)?;
            self.synchronize()?;
            times.push(start.elapsed());
        }
        times.sort();
        Ok(2.0 * BYTES as f64 / times[times.len() / 2].as_secs_f64())
    }

    /// The most bytes that its buffers had together at any time.
    pub fn most_bytes(&self) -> usize {
        self.memory.most.load(Ordering::Relaxed)
    }

    /// Number of multiprocessors.
    pub fn processors(&self) -> usize {
        self.processors
    }

    /// Allocates memory of `bytes` bytes, all zero.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn alloc(&self, bytes: usize) -> Result<Buffer, GpuError> {
        let bytes = bytes.max(1);
        let allocated = self.context.bind_to_thread().and_then(|()| self.stream.alloc_zeros(bytes));
        match allocated {
            Ok(slice) => Ok(Buffer { slice, held: Held::new(bytes, &self.memory) }),
            Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                let free = self.context.mem_get_info().map_or(0, |(free, _)| free);
                Err(GpuError::OutOfMemory { asked: bytes, free })
            }
            Err(error) => Err(failed("making room")(error)),
        }
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

    /// Copies numbers to the device, into a new buffer.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn upload<T: Plain>(&self, numbers: &[T]) -> Result<Buffer, GpuError> {
        let mut buffer = self.alloc(size_of_val(numbers))?;
        self.upload_to(&mut buffer, 0, numbers)?;
        Ok(buffer)
    }

    /// Copies numbers to the device, to byte `offset` of a buffer and on.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If they do not fit.
    pub fn upload_to<T: Plain>(&self, buffer: &mut Buffer, offset: usize, numbers: &[T]) -> Result<(), GpuError> {
        let bytes = bytes_of(numbers);
        let address = buffer.address(offset, bytes.len());
        self.context.bind_to_thread().map_err(failed("taking up a thread"))?;
        if bytes.is_empty() {
            return Ok(());
        }
        if bytes.len() <= Staging::MOST {
            let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
            return staging.copy(bytes, address, &self.stream).map_err(failed("copying to the device"));
        }
        let mut to = buffer.slice.slice_mut(offset..offset + bytes.len());
        self.stream.memcpy_htod(bytes, &mut to).map_err(failed("copying to the device"))
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
        self.context.bind_to_thread().map_err(failed("taking up a thread"))?;
        let mut landing = self.landing.lock().unwrap_or_else(PoisonError::into_inner);
        let landing = landing.as_mut_slice().map_err(failed("copying to the host"))?;
        for (i, piece) in bytes.chunks_mut(LANDING).enumerate() {
            let (landed, at) = (&mut landing[..piece.len()], from + (i * LANDING) as u64);
            // SAFETY: the range lies inside the buffer as checked above, and the pinned memory is not touched before the copy is done.
            unsafe { memcpy_dtoh_async(landed, at, self.stream.cu_stream()) }.map_err(failed("copying to the host"))?;
            self.synchronize()?;
            // Several threads copy: the first write to pages that are new to the process is slow.
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

    /// As [`download`](Self::download), into new memory.
    fn downloaded<T: Plain + Default>(&self, buffer: &Buffer, offset: usize, count: usize) -> Result<Vec<T>, GpuError> {
        let mut numbers = vec![T::default(); count];
        self.download(buffer, offset, &mut numbers)?;
        Ok(numbers)
    }

    /// Copies `len` bytes within the device.
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
        if len == 0 {
            return Ok(());
        }
        let from = from.slice.slice(offset..offset + len);
        let mut to = to.slice.slice_mut(place..place + len);
        self.stream.memcpy_dtod(&from, &mut to).map_err(failed("copying on the device"))
    }

    /// Waits until all enqueued work is done.
    ///
    /// # Errors
    /// Errors of earlier work on the device.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        self.stream.synchronize().map_err(failed("running kernels"))
    }

    /// Loads a kernel of a module.
    fn function(&self, module: &'static str, name: &str) -> Result<CudaFunction, GpuError> {
        self.with_shared(module, name, 0)
    }

    /// Loads a kernel of a module and allows it `bytes` bytes of dynamic shared memory.
    fn with_shared(&self, module: &'static str, name: &str, bytes: u32) -> Result<CudaFunction, GpuError> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if !functions.contains_key(name) {
            let function = self.modules[module].load_function(name).map_err(failed("looking for a kernel"))?;
            functions.insert(name.to_owned(), Function { function, shared: 0 });
        }
        let known = functions.get_mut(name).expect("it was inserted");
        if known.shared < bytes {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            known.function.set_attribute(attribute, bytes as i32).map_err(failed("asking for shared memory"))?;
            known.shared = bytes;
        }
        Ok(known.function.clone())
    }
}

/// Whether a thread that holds a lock may hand out work to the thread pool. A thread of the pool may not: while it waits, it could run
/// other work that needs the same lock, and so wait for itself.
pub fn may_deal() -> bool {
    rayon::current_thread_index().is_none()
}

/// The bytes of numbers.
fn bytes_of<T: Plain>(numbers: &[T]) -> &[u8] {
    // SAFETY: `Plain` numbers have no padding.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast::<u8>(), size_of_val(numbers)) }
}

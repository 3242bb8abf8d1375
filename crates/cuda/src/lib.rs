//! Launchers of the kernels in `kernels/*.cu`: the only code that talks to a GPU.
//!
//! A [`Gpu`] is one device with one stream: work runs in the order in which it was enqueued, except what is
//! [fetched ahead](Gpu::fetch_tokens), which runs beside it. The host waits in [`Gpu::download`], [`Gpu::synchronize`] and what calls them.
//! A [`Buffer`] is device memory in bytes. Launchers check that everything that a kernel touches lies inside its buffers, so no argument
//! can make a kernel read or write elsewhere. Indices *within* buffers (selected tokens, token ids) are checked where they are known, by
//! the callers named at each launcher. Nothing here depends on a model or a method.

mod argmax;
mod attend;
mod attend_units;
mod block_shape;
mod blocks;
mod buffer;
mod cache_flush;
mod channels;
mod coded_bounds;
mod codes;
mod collisions;
mod count;
mod distributions;
mod draws;
mod experts;
mod fetch;
mod fetched;
mod forms;
mod hamming_top_k;
mod heavy_hitters;
mod host_device_vec;
mod kernel;
mod key_cache;
mod labels;
mod launch;
mod maps;
mod peers;
mod per_row_tokens;
mod prefill;
mod quantised;
mod queries;
mod record;
mod score_launch;
mod scores;
mod sides;
mod staging;
mod tail;
mod timeline;
mod token_cache;
mod token_lists;
mod top_k_launch;
mod transfer;
mod tree;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use cudarc::cublas::CudaBlas;
use cudarc::driver::result::stream::get_priority_range;
use cudarc::driver::sys::{CUdevice_attribute, CUfunction_attribute, CUresult};
use cudarc::driver::{CudaContext, CudaModule, CudaStream, DriverError, PinnedHostSlice};
use cudarc::nvrtc::Ptx;

use buffer::{HeldBytes, MemoryUse};
use kernel::{Kernel, Launch};
use staging::{LANDING, Staging};

pub use attend::{Attention, AttentionWorkspace, Prepared};
pub use attend_units::{Prefix, Tail, Tokens, Unit, Weights};
pub use block_shape::BlockShape;
pub use blocks::{BlockLists, PromptSearch, Run, Sampling, Searched, VerticalLines};
pub use buffer::{Buffer, Plain};
pub use cache_flush::Flood;
pub use channels::{ChosenChannels, KeysByChannel};
pub use coded_bounds::{CodedBounds, CodedBoundsWorkspace, PageCodes};
pub use codes::CodedKeys;
pub use collisions::{CollisionWorkspace, DownloadedTables, HashTables, SamplingSpec, TableNumbers, TableShape};
pub use count::CountedLists;
pub use distributions::{NormalizedRows, RowSum};
pub use draws::{DRAW_KEY, DrawWorkspace};
pub use experts::{ExpertMatrices, MOST_EXPERTS, MOST_USED_EXPERTS, Routes, RowMatrix};
pub use forms::{RowMoments, forms_fit};
pub use hamming_top_k::Nearest;
pub use heavy_hitters::{HeldList, HeldSizes, HeldTokens, HoldingPrefix, HoldingRow, HoldingWorkspace};
pub use host_device_vec::HostDeviceVec;
pub use key_cache::{HeldKey, KeyCache, KeyCacheShape};
pub use labels::{ChannelLists, CodeRounding, LabelCodes};
pub use launch::{
    Cache, Columns, EmbeddingTable, FiniteCheck, Gate, Into, Norms, Place, Positions, QueryGrowth, RmsNorm, Rotation,
    RowPart, WeightMatrix,
};
pub use maps::{Directions, Nets, Signatures, TieOrder, maps_fit};
pub use peers::Link;
pub use per_row_tokens::{PerRowSlices, PerRowTokens, SharedList, Slice};
pub use prefill::{LayerRule, Rows};
pub use quantised::QuantisedMatrix;
pub use queries::{IndexRows, PageBounds, Pages, ProjectedQueries, Queries};
pub use record::Recording;
pub use scores::{Reduction, ScoreWorkspace, Scores};
pub use sides::KeySides;
pub use tail::{TailRow, TailRows};
pub use timeline::Timeline;
pub use token_cache::{TokenCache, TokenCacheShape};
pub use token_lists::{TokenList, TokenListLayout, TokenLists};
pub use tree::{SearchedKeys, Tree, TreeTails, TreeWorkspace};

/// A compiled file of `kernels/`.
struct Module {
    name: &'static str,
    /// Whether it is for Hopper GPUs only.
    hopper_only: bool,
    /// Whether, on Hopper GPUs, its kernels may start early and wait by themselves for those ahead.
    waits: bool,
    code: &'static [u8],
}

/// All compiled files, by name.
const MODULES: &[Module] = include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// The oldest compute capability that the code runs on.
const LEAST_CAPABILITY: (i32, i32) = (8, 0);
/// Major compute capability of the GPUs that can run the kernels with `wgmma`.
const HOPPER: i32 = 9;
/// The CUDA version that the bindings and kernels need, as `1000 * major + 10 * minor`.
const LEAST_DRIVER: i32 = 13_000;
/// The first CUDA version whose graphs keep that a kernel may start before the one ahead has ended.
const GRAPHS_START_EARLY: i32 = 12_030;
const _: () = assert!(LEAST_DRIVER >= GRAPHS_START_EARLY, "graphs would lose the order of kernels that start early");

/// Why a GPU cannot be used, or what failed on it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// The driver's library is missing.
    #[error("there is no NVIDIA driver on this machine (libcuda cannot be loaded)")]
    NoDriver,
    /// A library of the CUDA toolkit is missing.
    #[error("{0} cannot be loaded: install the runtime libraries of CUDA 13, of which it is a part")]
    NoLibrary(&'static str),
    /// The driver lists no such device.
    #[error("there is no GPU number {ordinal}: the driver lists {count}, counted from 0")]
    NoDevice {
        /// The requested device.
        ordinal: usize,
        /// How many devices there are.
        count: usize,
    },
    /// The driver is older than the CUDA version that is needed.
    #[error("the NVIDIA driver supports CUDA {}.{}, and this build needs {}.{}: install a newer driver", .has / 1000, .has % 1000 / 10, .needs / 1000, .needs % 1000 / 10)]
    OldDriver {
        /// The version that the driver supports, as `1000 * major + 10 * minor`.
        has: i32,
        /// The version that is needed.
        needs: i32,
    },
    /// The device is too old for the kernels.
    #[error("the GPU {name} has compute capability {}.{}, and the kernels need {}.{} or newer", .has.0, .has.1, LEAST_CAPABILITY.0, LEAST_CAPABILITY.1)]
    OldDevice {
        /// Name of the device.
        name: String,
        /// Its compute capability.
        has: (i32, i32),
    },
    /// The host cannot pin that much memory.
    #[error("the host has no {:.1} GB of memory that the GPU can read: choose a shorter --length or --dtype bf16", *.asked as f64 / 1e9)]
    OutOfHostMemory {
        /// Bytes that were requested.
        asked: usize,
    },
    /// The device does not have enough free memory.
    #[error(
        "the GPU has {:.1} GB of free memory, and {:.1} GB more are needed: choose a shorter --length, fewer methods at a time \
         or --dtype bf16",
        *.free as f64 / 1e9, *.asked as f64 / 1e9
    )]
    OutOfMemory {
        /// Bytes that were requested.
        asked: usize,
        /// Bytes that were free at that time.
        free: usize,
    },
    /// An error that CUDA calls sticky: a kernel or the device failed, and every later call of this process fails with it again.
    #[error("the GPU failed: {why}; this process cannot use it any more")]
    Fatal {
        /// The driver's description.
        why: String,
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

/// Returns a function that makes an error naming what was being done, or a fatal error, whose cause is an earlier launch.
fn failed(what: &'static str) -> impl Fn(DriverError) -> GpuError {
    move |error| match is_fatal(error.0) {
        true => GpuError::Fatal { why: in_words(error) },
        false => GpuError::Failed { what, why: error.to_string() },
    }
}

/// Whether, by the driver's documentation of its results, a process that had this error must be ended.
fn is_fatal(error: CUresult) -> bool {
    matches!(
        error,
        CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
    )
}

/// Returns the driver's description of an error, or its name if there is no driver to ask.
fn in_words(error: DriverError) -> String {
    let described = error.error_string().ok().and_then(|text| text.to_str().ok().map(str::to_owned));
    described.unwrap_or_else(|| format!("{:?}", error.0))
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

    /// The suffix of its kernels' names.
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

/// Properties of a device, for display.
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
    /// A number that no other [`Gpu`] has.
    id: u64,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    /// The stream of copies that run beside the work of `stream`. Events make each of the two wait for the other.
    fetching: Arc<CudaStream>,
    /// Whether a wait for fetched tokens was enqueued after the last launch.
    waits_for_fetched: AtomicBool,
    /// How many fetches have begun.
    fetches: AtomicUsize,
    blas: CudaBlas,
    /// Modules by name, each with whether its kernels may start before the one ahead has ended.
    modules: HashMap<&'static str, (Arc<CudaModule>, bool)>,
    functions: Mutex<HashMap<String, Function>>,
    processors: usize,
    is_hopper: bool,
    /// Whether kernels that can start before the one ahead has ended do so.
    overlaps: AtomicBool,
    /// The most bytes of shared memory that a block can have.
    most_shared: usize,
    /// The counter of kernels that draw work from a queue: zero between launches.
    counter: Buffer,
    staging: Mutex<Staging>,
    /// Pinned memory for copies to the host.
    landing: Mutex<PinnedHostSlice<u8>>,
    memory: Arc<MemoryUse>,
    /// The use of pinned host memory that is allocated for the GPU.
    host_memory: Arc<MemoryUse>,
}

/// A loaded kernel, and what it may use.
struct Function {
    kernel: Kernel,
    /// Bytes of dynamic shared memory that it may use.
    shared: u32,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpu({})", self.context.ordinal())
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // The cuBLAS handle and the rest are released in the GPU's own context; the thread may have used another one last.
        self.context.record_err(self.context.bind_to_thread());
    }
}

/// Returns how many GPUs the driver lists.
///
/// # Errors
/// [`GpuError::NoDriver`], or the driver's error.
pub fn count() -> Result<usize, GpuError> {
    // SAFETY: the call only looks for the library and loads it.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err(GpuError::NoDriver);
    }
    match CudaContext::device_count() {
        Ok(count) => Ok(count.max(0) as usize),
        Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(0),
        Err(error) => Err(failed("counting GPUs")(error)),
    }
}

/// Returns the bytes of a device's memory that are free now.
///
/// # Errors
/// Those of [`count()`], and [`GpuError::NoDevice`].
pub fn free_bytes(ordinal: usize) -> Result<u64, GpuError> {
    let count = count()?;
    if ordinal >= count {
        return Err(GpuError::NoDevice { ordinal, count });
    }
    let context = CudaContext::new(ordinal).map_err(failed("opening it"))?;
    let (free, _) = context.mem_get_info().map_err(failed("reading how much memory is free"))?;
    Ok(free as u64)
}

/// Returns the newest CUDA version that the driver supports, as `1000 * major + 10 * minor`.
fn driver_version() -> Result<i32, GpuError> {
    let mut version = 0;
    // SAFETY: the call writes one number to `version`.
    unsafe { cudarc::driver::sys::cuDriverGetVersion(&mut version) }
        .result()
        .map_err(failed("reading the driver's version"))?;
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
        let context = CudaContext::new(ordinal).map_err(failed("opening it"))?;
        let capability = context.compute_capability().map_err(failed("reading its compute capability"))?;
        if capability < LEAST_CAPABILITY {
            let name = context.name().map_err(failed("reading its name"))?;
            return Err(GpuError::OldDevice { name, has: capability });
        }
        // SAFETY: tracked events order work on several streams. Here all work is on one, except fetches, which have events of their own.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(failed("creating a stream"))?;
        // Fetches take few blocks and must begin while other kernels run, so their stream has the highest priority.
        let (_, first) = get_priority_range().map_err(failed("creating a stream"))?;
        let fetching = context.new_stream_with_priority(first).map_err(failed("creating a stream"))?;
        let blas = CudaBlas::new(stream.clone())
            .map_err(|error| GpuError::Failed { what: "starting cuBLAS", why: format!("{error:?}") })?;
        let usable = |module: &&Module| !module.hopper_only || capability.0 == HOPPER;
        let load = |Module { name, waits, code, .. }: &Module| {
            let module = context.load_module(Ptx::from_binary(code.to_vec())).map_err(failed("loading kernels"))?;
            Ok((*name, (module, *waits && capability.0 == HOPPER)))
        };
        let modules = MODULES.iter().filter(usable).map(load).collect::<Result<_, GpuError>>()?;
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let processors =
            context.attribute(attribute).map_err(failed("reading its number of multiprocessors"))? as usize;
        let is_hopper = capability.0 == HOPPER;
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let most_shared =
            context.attribute(attribute).map_err(failed("reading the size of its shared memory"))? as usize;
        let memory = Arc::new(MemoryUse::default());
        let slice = stream.alloc_zeros(4).map_err(failed("allocating memory"))?;
        let counter = Buffer::on_device(slice, HeldBytes::new(4, &memory));
        let staging = Mutex::new(Staging::new(&context).map_err(failed("allocating memory"))?);
        // SAFETY: bytes need no initial value, and every byte is written before it is read.
        let landing = Mutex::new(unsafe { context.alloc_pinned(LANDING) }.map_err(failed("allocating memory"))?);
        let functions = Mutex::default();
        static OPENED: AtomicU64 = AtomicU64::new(0);
        Ok(Self {
            id: OPENED.fetch_add(1, Ordering::Relaxed),
            context,
            stream,
            fetching,
            waits_for_fetched: AtomicBool::new(false),
            fetches: AtomicUsize::new(0),
            blas,
            modules,
            functions,
            processors,
            is_hopper,
            overlaps: AtomicBool::new(true),
            most_shared,
            counter,
            staging,
            landing,
            memory,
            host_memory: Arc::default(),
        })
    }

    /// A number that no other opened GPU of the program has, not even one for the same device.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the properties of the device.
    ///
    /// # Errors
    /// The driver's error.
    pub fn info(&self) -> Result<GpuInfo, GpuError> {
        let (free, memory) = self.context.mem_get_info().map_err(failed("reading how much memory is free"))?;
        let driver = driver_version()?;
        Ok(GpuInfo {
            name: self.context.name().map_err(failed("reading its name"))?,
            capability: self.context.compute_capability().map_err(failed("reading its compute capability"))?,
            memory,
            free,
            driver: format!("{}.{}", driver / 1000, driver % 1000 / 10),
        })
    }

    /// Measures the bytes per second of a copy within the device, reads and writes both counted: the median of nine.
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

    /// Measures the bytes per second of copies from pinned host memory to the device and back, one direction at a time: medians of nine.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn link_bandwidth(&self) -> Result<[f64; 2], GpuError> {
        const BYTES: usize = 1 << 28;
        let (mut here, mut there) = (self.alloc_on_host(BYTES)?, self.alloc(BYTES)?);
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..9 {
            self.synchronize()?;
            let start = Instant::now();
            self.copy(&here, 0, &mut there, 0, BYTES)?;
            self.synchronize()?;
            let middle = Instant::now();
            self.copy(&there, 0, &mut here, 0, BYTES)?;
            self.synchronize()?;
            times[0].push(middle - start);
            times[1].push(middle.elapsed());
        }
        Ok(times.map(|mut times| {
            times.sort();
            BYTES as f64 / times[times.len() / 2].as_secs_f64()
        }))
    }

    /// The most bytes of device memory that its buffers ever had together.
    pub fn most_bytes(&self) -> usize {
        self.memory.most.load(Ordering::Relaxed)
    }

    /// Number of multiprocessors.
    pub fn processors(&self) -> usize {
        self.processors
    }

    /// Waits until all enqueued work is done.
    ///
    /// # Errors
    /// Errors of earlier work on the device.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        self.stream.synchronize().map_err(failed("running kernels"))
    }

    /// Sets whether kernels that wait by themselves may start before the one ahead has ended, as they may by default: for tests, and to
    /// time what it is worth. No result depends on it; recordings stay as they are.
    pub fn overlap_kernels(&self, overlaps: bool) {
        self.overlaps.store(overlaps, Ordering::Relaxed);
    }

    /// Loads a kernel of a module.
    fn function(&self, module: &'static str, name: &str) -> Result<Kernel, GpuError> {
        self.with_shared(module, name, 0)
    }

    /// Loads a kernel of a module and allows it `bytes` bytes of dynamic shared memory.
    fn with_shared(&self, module: &'static str, name: &str, bytes: u32) -> Result<Kernel, GpuError> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        // The driver loads and changes functions in the thread's current context.
        if functions.get(name).is_none_or(|known| known.shared < bytes) {
            self.context.bind_to_thread().map_err(failed("binding its context to a thread"))?;
        }
        if !functions.contains_key(name) {
            let (module, starts_early) = &self.modules[module];
            let function = module.load_function(name).map_err(failed("loading a kernel"))?;
            let kernel = Kernel { function, starts_early: *starts_early };
            functions.insert(name.to_owned(), Function { kernel, shared: 0 });
        }
        let known = functions.get_mut(name).expect("the kernel was inserted above");
        if known.shared < bytes {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            known
                .kernel
                .function
                .set_attribute(attribute, bytes as i32)
                .map_err(failed("setting a kernel's shared memory"))?;
            known.shared = bytes;
        }
        let starts_early = known.kernel.starts_early && self.overlaps.load(Ordering::Relaxed);
        Ok(Kernel { starts_early, ..known.kernel.clone() })
    }

    /// Returns a launch of a kernel, without arguments yet.
    fn launch<'a>(&'a self, kernel: &'a Kernel) -> Launch<'a> {
        Launch::new(&self.stream, kernel).in_order(self.waits_for_fetched.swap(false, Ordering::Relaxed))
    }
}

/// Whether a thread that holds a lock may hand out work to the thread pool. A thread of the pool may not: while it waits, it could run
/// other work that needs the same lock, and so wait for itself.
pub fn may_deal() -> bool {
    rayon::current_thread_index().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the errors with their numbers in the driver's header.
    #[test]
    fn a_process_is_over_for_what_the_driver_says_so() {
        let ends = [214, 700, 702, 710, 714, 715, 716, 717, 718, 719];
        let goes_on =
            [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_INVALID_VALUE, CUresult::CUDA_ERROR_NOT_FOUND];
        let all = [
            CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
            CUresult::CUDA_ERROR_ASSERT,
            CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
            CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
            CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
            CUresult::CUDA_ERROR_INVALID_PC,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
        ];
        assert_eq!(all.map(|error| error as u32), ends);
        assert!(all.into_iter().all(is_fatal) && !goes_on.into_iter().any(is_fatal));
    }
}

//! Causal attention of many rows at once: on the tensor cores of a Hopper GPU, or by the kernel for all widths and devices.

use std::ops::Range;

use cudarc::driver::sys::{
    CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
    CUtensorMapSwizzle, cuTensorMapEncodeTiled,
};
use cudarc::driver::{DeviceRepr, LaunchConfig};

use super::launch::Cache;
use super::{Buffer, Gpu, GpuError, Storage, failed};

/// Rows of a prompt with causal attention.
pub struct Rows<'a> {
    /// Rotated queries `[row][stride]`, head `h` at `h * d`.
    pub queries: &'a Buffer,
    /// Number of rows before these in the query buffer and in the output.
    pub skip: usize,
    /// Numbers from one row to the next.
    pub stride: usize,
    /// Number of rows.
    pub count: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Position of the first row. The cache holds keys and values up to the last row's position.
    pub first: usize,
    /// The factor that scales logits.
    pub scale: f32,
    /// How the layer departs from plain causal softmax attention.
    pub rule: LayerRule<'a>,
}

/// How a layer departs from plain causal softmax attention.
#[derive(Debug, Clone, Copy)]
pub struct LayerRule<'a> {
    /// How many of the last tokens a token attends, itself included; `None` for all. Decode steps ignore it: units list their tokens.
    pub window: Option<usize>,
    /// A scaled product `x` becomes `cap · tanh(x / cap)`; `None` to leave it.
    pub soft_cap: Option<f32>,
    /// A sink logit, which has no value, for each query head, f32; `None` for none.
    pub sinks: Option<&'a Buffer>,
}

impl LayerRule<'_> {
    /// Plain attention: no window, soft cap or sink logits.
    pub const PLAIN: Self = Self { window: None, soft_cap: None, sinks: None };

    /// Whether there is no window, soft cap or sink logit.
    pub fn is_plain(&self) -> bool {
        self.window.is_none() && self.soft_cap.is_none() && self.sinks.is_none()
    }

    /// The soft cap as kernels take it: 0 for none.
    pub(super) fn cap(&self) -> f32 {
        self.soft_cap.unwrap_or(0.0)
    }

    /// The address of the sink logits of `heads` query heads, or 0.
    pub(super) fn sinks_address(&self, heads: usize) -> u64 {
        self.sinks.map_or(0, |sinks| sinks.address(0, size_of::<f32>() * heads))
    }
}

/// A tensor map, which kernels receive by value.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct TensorMap(CUtensorMap);

// SAFETY: the kernel's parameter is the same type.
unsafe impl DeviceRepr for TensorMap {}

/// Sizes of the kernel for Hopper GPUs at one head width.
struct Shape {
    queries: u32,
    threads: u32,
    shared_bytes: u32,
}

impl Shape {
    fn of(d: usize) -> Option<Self> {
        match d {
            64 => Some(Self { queries: 192, threads: 512, shared_bytes: 91_264 }),
            128 => Some(Self { queries: 128, threads: 384, shared_bytes: 164_992 }),
            _ => None,
        }
    }
}

/// Bytes of shared memory for the softmax weights of 64 rows and 64 keys, when masses are summed.
const MASS_WEIGHTS_BYTES: u32 = 4 * 64 * 65;

/// Bytes of keys and values that are worked on at the same time, so that they stay in the L2 cache.
const SECTION_BYTES: usize = 24 << 20;

impl Gpu {
    /// Computes the attention of each row over all tokens up to its own position, under `rows.rule`, into `out` `[row][head][d]`.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn prefill_attention(&self, rows: &Rows<'_>, cache: &Cache<'_>, out: &mut Buffer) -> Result<(), GpuError> {
        self.attend_rows(rows, cache, out, 0)
    }

    /// Like [`prefill_attention`](Self::prefill_attention), but also writes the logarithm of each row's sum of exponentials, f32
    /// `[head][row]`, to `log_sums`.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn prefill_attention_and_sums(
        &self,
        rows: &Rows<'_>,
        cache: &Cache<'_>,
        out: &mut Buffer,
        log_sums: &mut Buffer,
    ) -> Result<(), GpuError> {
        let log_sums = log_sums.address(0, size_of::<f32>() * rows.heads * rows.count);
        self.attend_rows(rows, cache, out, log_sums)
    }

    /// Adds the softmax weights of a range of the rows to the mass of each key, f32 `[head][key]`, for all keys up to the last of these
    /// rows. Weights are added in the order of rows.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small, or the range is empty or goes beyond the rows.
    pub fn add_attention_mass(
        &self,
        rows: &Rows<'_>,
        cache: &Cache<'_>,
        log_sums: &Buffer,
        range: Range<usize>,
        mass: &mut Buffer,
    ) -> Result<(), GpuError> {
        self.add_mass("attention_mass", rows, cache, (log_sums, range), mass)
    }

    /// Like [`add_attention_mass`](Self::add_attention_mass), for the mass of each distance from a row back to a key, f32
    /// `[head][distance]`; keys have 16-bit types.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small, the range is empty or goes beyond the rows, or keys are in f32.
    pub fn add_distance_mass(
        &self,
        rows: &Rows<'_>,
        cache: &Cache<'_>,
        log_sums: &Buffer,
        range: Range<usize>,
        mass: &mut Buffer,
    ) -> Result<(), GpuError> {
        assert_ne!(cache.storage, Storage::F32, "there is no kernel for keys in f32");
        self.add_mass("distance_mass", rows, cache, (log_sums, range), mass)
    }

    /// Adds the softmax weights of some rows with the kernel of this name.
    fn add_mass(
        &self,
        kernel: &str,
        rows: &Rows<'_>,
        cache: &Cache<'_>,
        (log_sums, range): (&Buffer, Range<usize>),
        mass: &mut Buffer,
    ) -> Result<(), GpuError> {
        assert!(!range.is_empty() && range.end <= rows.count, "rows {range:?} do not lie in {} rows", rows.count);
        let (bytes, some, end) = (cache.storage.bytes(), range.len(), rows.first + range.end);
        assert!(
            end <= cache.capacity && rows.stride.is_multiple_of(8),
            "rows that end at {end} and are {} numbers apart do not fit a cache of {} tokens",
            rows.stride,
            cache.capacity
        );
        let width = ((some - 1) * rows.stride + rows.heads * cache.d) * bytes;
        let queries = rows.queries.address((rows.skip + range.start) * rows.stride * bytes, width);
        let sums_bytes = size_of::<f32>() * ((rows.heads - 1) * rows.count + some);
        let sums = log_sums.address(size_of::<f32>() * range.start, sums_bytes);
        let (keys, mass) = (cache.key(0, 0), mass.address(0, size_of::<f32>() * rows.heads * end));
        let width = [64, 128, 256].into_iter().find(|width| *width >= cache.d as u32);
        let width = width.expect("heads have at most 256 channels");
        let (threads, shared_bytes) = match cache.storage {
            Storage::F32 => (256, 512 * (width + 4) + MASS_WEIGHTS_BYTES),
            Storage::F16 | Storage::Bf16 => (128, 384 * width + MASS_WEIGHTS_BYTES),
        };
        let name = format!("{kernel}_{}", cache.storage.name());
        let function = self.with_shared("attention_mass", &name, shared_bytes)?;
        let (d, stride, kv_stride) = (cache.d as i32, rows.stride as i32, cache.head_stride() as i64);
        let (some, first) = (some as i32, (rows.first + range.start) as i32);
        let (heads, kv_heads, sums_stride) = (rows.heads as i32, cache.kv_heads as i32, rows.count as i32);
        let (mass_stride, scale) = (end as i64, rows.scale);
        let mut launch = self.launch(&function);
        launch.arg(&queries).arg(&keys).arg(&sums).arg(&mass).arg(&d).arg(&stride).arg(&some).arg(&first);
        launch.arg(&heads).arg(&kv_heads).arg(&sums_stride).arg(&kv_stride).arg(&mass_stride).arg(&scale);
        let grid = LaunchConfig {
            grid_dim: (end.div_ceil(64) as u32, rows.heads as u32, 1),
            block_dim: (threads, 1, 1),
            shared_mem_bytes: shared_bytes,
        };
        // SAFETY: queries, sums and mass are as large as checked by `address`, and the cache holds `end` keys of each KV head.
        unsafe { launch.launch(grid) }.map_err(failed("adding up attention weights"))
    }

    /// Runs causal attention; `lse` is the address for the logarithms of the rows' sums of exponentials, or 0.
    fn attend_rows(&self, rows: &Rows<'_>, cache: &Cache<'_>, out: &mut Buffer, lse: u64) -> Result<(), GpuError> {
        assert!(
            rows.first + rows.count <= cache.capacity,
            "rows end at {}, beyond the cache's {} tokens",
            rows.first + rows.count,
            cache.capacity
        );
        let has_kernel = self.is_hopper && cache.storage != Storage::F32 && rows.rule.is_plain();
        match Shape::of(cache.d).filter(|_| has_kernel) {
            Some(shape) => self.prefill_hopper(&shape, rows, cache, out, lse),
            None => self.prefill_any(rows, cache, out, lse),
        }
    }

    fn prefill_hopper(
        &self,
        shape: &Shape,
        rows: &Rows<'_>,
        cache: &Cache<'_>,
        out: &mut Buffer,
        lse: u64,
    ) -> Result<(), GpuError> {
        let (d, bytes, kv_heads) = (cache.d as u64, cache.storage.bytes() as u64, cache.kv_heads as u64);
        let (queries, out) = addresses(rows, cache, out);
        let total = (rows.first + rows.count) as u64;
        let (count, heads) = (rows.count as u64, rows.heads as u32);
        let pieces = d / 64;
        // Tensor maps are encoded for the thread's current context.
        self.context.bind_to_thread().map_err(failed("binding its context to a thread"))?;
        let query_map = tensor_map(
            cache.storage,
            queries,
            [64, count, pieces, u64::from(heads)],
            [bytes * rows.stride as u64, 128, bytes * d],
            [64, shape.queries, pieces as u32, 1],
        )?;
        let [key_map, value_map] = [cache.key(0, 0), cache.value(0, 0)].map(|address| {
            tensor_map(
                cache.storage,
                address,
                [64, total, pieces, kv_heads],
                [bytes * d, 128, bytes * cache.head_stride()],
                [64, d as u32, 1, 1],
            )
        });
        let (key_map, value_map) = (key_map?, value_map?);
        let group = heads / cache.kv_heads as u32;
        let pairs = d == 128 && group.is_multiple_of(2);
        let kind = if pairs { "pair_" } else { "" };
        let name = format!("prefill_attention_{kind}{}_{d}", cache.storage.name());
        let function = self.with_shared("prefill_attention", &name, shape.shared_bytes)?;
        let counter = self.counter.address(0, 4);
        let scale = rows.scale;
        let (count, first) = (rows.count as i32, rows.first as i32);
        let section = (SECTION_BYTES as u64 / (4 * d * total)).clamp(1, kv_heads) as i32;
        let (heads_arg, kv_heads) = (rows.heads as i32, kv_heads as i32);
        // A pair of blocks works on tiles of two heads.
        let together = if pairs { 2 } else { 1 };
        let tiles = heads / together * (rows.count as u32).div_ceil(shape.queries);
        let blocks = together * tiles.min(self.processors as u32 / together);
        let mut launch = self.launch(&function);
        launch.arg(&query_map).arg(&key_map).arg(&value_map).arg(&out).arg(&lse).arg(&counter);
        launch.arg(&count).arg(&first).arg(&heads_arg).arg(&kv_heads).arg(&section).arg(&scale);
        let grid = LaunchConfig {
            grid_dim: (blocks, 1, 1),
            block_dim: (shape.threads, 1, 1),
            shared_mem_bytes: shape.shared_bytes,
        };
        // SAFETY: the maps bound what is read, and `out` holds all rows. Launches run one after another on one stream, so they can share
        // the counter, which each leaves at zero.
        unsafe { launch.launch(grid) }.map_err(failed("attending a prompt's tokens"))
    }

    fn prefill_any(&self, rows: &Rows<'_>, cache: &Cache<'_>, out: &mut Buffer, lse: u64) -> Result<(), GpuError> {
        let (queries, out) = addresses(rows, cache, out);
        let (keys, values) = (cache.key(0, 0), cache.value(0, 0));
        let width = cache.d.next_multiple_of(64) as u32;
        let (threads, shared_bytes) = match cache.storage {
            Storage::F32 => (256, 512 * (width + 4) + 9216),
            Storage::F16 | Storage::Bf16 => (128, 384 * width),
        };
        let kind = if rows.rule.is_plain() { "any" } else { "rule" };
        let name = format!("prefill_attention_{kind}_{}", cache.storage.name());
        let function = self.with_shared("prefill_attention_any", &name, shared_bytes)?;
        let scale = rows.scale;
        let (d, stride, kv_stride) = (cache.d as i32, rows.stride as i32, cache.head_stride() as i64);
        let (count, first) = (rows.count as i32, rows.first as i32);
        let (heads, kv_heads) = (rows.heads as i32, cache.kv_heads as i32);
        let mut launch = self.launch(&function);
        launch.arg(&queries).arg(&keys).arg(&values).arg(&out).arg(&lse).arg(&d).arg(&stride).arg(&kv_stride);
        launch.arg(&count).arg(&first).arg(&heads).arg(&kv_heads).arg(&scale);
        // A window as long as the context has the effect of none.
        let window = rows.rule.window.unwrap_or(rows.first + rows.count).min(i32::MAX as usize) as i32;
        let (cap, sinks) = (rows.rule.cap(), rows.rule.sinks_address(rows.heads));
        if !rows.rule.is_plain() {
            launch.arg(&window).arg(&cap).arg(&sinks);
        }
        let grid = LaunchConfig {
            grid_dim: (rows.heads as u32, (rows.count as u32).div_ceil(64), 1),
            block_dim: (threads, 1, 1),
            shared_mem_bytes: shared_bytes,
        };
        // SAFETY: queries, cache and output are as large as checked by `addresses` and the caller.
        unsafe { launch.launch(grid) }.map_err(failed("attending a prompt's tokens"))
    }
}

/// Returns the addresses of the queries and of the output, after checking that both buffers hold all rows.
pub(super) fn addresses(rows: &Rows<'_>, cache: &Cache<'_>, out: &mut Buffer) -> (u64, u64) {
    let bytes = cache.storage.bytes();
    let width = rows.heads * cache.d;
    assert!(
        rows.stride >= width && rows.stride.is_multiple_of(8) && rows.count > 0,
        "{} rows of {width} numbers, {} numbers apart, do not fit the kernel",
        rows.count,
        rows.stride
    );
    let queries =
        rows.queries.address(rows.skip * rows.stride * bytes, ((rows.count - 1) * rows.stride + width) * bytes);
    (queries, out.address(rows.skip * width * bytes, rows.count * width * bytes))
}

/// Encodes a map of a four-dimensional 16-bit tensor with 128-byte swizzled tiles. Strides in bytes, for all dimensions but the first.
fn tensor_map(
    storage: Storage,
    address: u64,
    sizes: [u64; 4],
    strides: [u64; 3],
    tile: [u32; 4],
) -> Result<TensorMap, GpuError> {
    let kind = match storage {
        Storage::Bf16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        Storage::F16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        Storage::F32 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    };
    let mut map = TensorMap(CUtensorMap { opaque: [0; 16] });
    let steps = [1u32; 4];
    // SAFETY: the lists have the lengths that four dimensions need, and the map is initialised by the call.
    unsafe {
        cuTensorMapEncodeTiled(
            &mut map.0,
            kind,
            4,
            address as *mut _,
            sizes.as_ptr(),
            strides.as_ptr(),
            tile.as_ptr(),
            steps.as_ptr(),
            CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    }
    .result()
    .map_err(failed("encoding a tensor map"))?;
    Ok(map)
}

//! Launchers for rows of activations: embedding, norms, products with weights, RoPE, gates.

use std::ops::Range;

use cudarc::cublas::result::gemm_ex;
use cudarc::cublas::sys::{cublasComputeType_t, cublasGemmAlgo_t, cublasOperation_t, cudaDataType_t};
use cudarc::driver::LaunchConfig;
use half::{bf16, f16};

use super::{Buffer, Gpu, GpuError, Storage, failed};

/// Outputs that one block of `gemv` computes.
const GEMV_OUTPUTS: usize = 4;
/// For `gemv_hopper`: warps of a block; numbers in each warp's ring of shared memory; bytes of shared memory that a multiprocessor can give
/// to its blocks.
const STREAM_WARPS: usize = 8;
const STREAM_RING: usize = 4 * 1024;
const STREAM_SHARED: usize = 224 << 10;
/// With fewer rows than this, each row gets several blocks, because one block each would not fill the GPU.
const FEW_ROWS: usize = 32;
/// The most rows in the second dimension of a grid.
const GRID_ROWS: usize = (1 << 16) - 1;
/// Channels that a thread reads at once.
const PIECE: usize = 8;

/// What is computed from a gate and from what it gates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Gate {
    /// `x · σ(x)` of the gate `x`, times what it gates.
    Silu,
    /// GELU of the gate, by its approximation with tanh, times what it gates.
    GeluTanh,
    /// `x · σ(slope · x) · (y + 1)`, with the gate `x` cut to at most `limit`, and what it gates, `y`, to `-limit..=limit`.
    Clamped {
        /// The steepness of the sigmoid.
        slope: f32,
        /// The largest number of the gate, and the largest absolute value of what it gates.
        limit: f32,
    },
}

/// How a product is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Into {
    /// Stored in the storage type of the operands.
    Narrow,
    /// Stored as f32.
    Wide,
    /// Added to f32 numbers.
    Add,
}

/// Which columns of an output a product writes, where its rows are wider than the product.
#[derive(Debug, Clone, Copy)]
pub struct Columns {
    /// The first one.
    pub first: usize,
    /// Width of a row of the output.
    pub stride: usize,
}

/// The weights of a linear layer.
#[derive(Debug, Clone, Copy)]
pub struct WeightMatrix<'a> {
    /// `[outputs][inputs]`, in the storage type of the activations. A product of one row may read them before the kernel ahead has ended.
    /// So weights that a kernel wrote must be multiplied with several rows, or after a copy or [`Gpu::synchronize`].
    pub data: &'a Buffer,
    /// Width of an output row.
    pub outputs: usize,
    /// Width of an input row.
    pub inputs: usize,
}

/// An RMS norm over rows of the residual stream.
#[derive(Debug, Clone, Copy)]
pub struct RmsNorm<'a> {
    /// Weights, `[hidden]` f32.
    pub weight: Option<&'a Buffer>,
    /// Added to the mean square.
    pub eps: f32,
    /// Width of a row.
    pub hidden: usize,
}

/// An embedding table `[vocab][hidden]` in device memory.
#[derive(Debug, Clone, Copy)]
pub struct EmbeddingTable<'a> {
    /// The numbers.
    pub numbers: &'a Buffer,
    /// Their type.
    pub storage: Storage,
    /// Numbers of a row.
    pub hidden: usize,
    /// The factor that rows are multiplied by.
    pub scale: f32,
}

/// The same part of each row of a matrix.
#[derive(Debug, Clone, Copy)]
pub struct RowPart {
    /// Number of rows.
    pub rows: usize,
    /// Numbers from one row to the next.
    pub stride: usize,
    /// The first number of the part within a row.
    pub first: usize,
}

/// Where a norm notes the first row with a number that is not finite.
pub struct FiniteCheck<'a> {
    /// A u64 that becomes the least of itself and `mark << 32 | first_row + row` of such rows, where `row` counts the normed rows.
    pub broken: &'a mut Buffer,
    /// Orders the norms of a forward pass: the least mark is noted.
    pub mark: u64,
    /// The index of the first normed row.
    pub first_row: u64,
}

/// Weights of the RMS norms of query and key heads, `[d]` f32 each.
pub struct Norms<'a> {
    /// For queries.
    pub query: &'a Buffer,
    /// For keys.
    pub key: &'a Buffer,
    /// Added to the mean square.
    pub eps: f32,
}

/// Positions of rows, and how heads are rotated.
pub struct Positions<'a> {
    /// One u32 for each row.
    pub positions: &'a Buffer,
    /// Channels of a head that are rotated, from the first on: an even number, or 0.
    pub rotated: usize,
    /// Whether channels `2i` and `2i + 1` are rotated together, rather than `i` and `i + rotated / 2`.
    pub neighbours: bool,
    /// Inverse frequencies: `[rotated / 2]` f32 for all rows, or `[row][rotated / 2]`.
    pub inverse: &'a Buffer,
    /// Whether `inverse` has frequencies for each row.
    pub by_row: bool,
    /// Factor of cos and sin.
    pub scaling: f32,
}

/// How rotated queries are scaled by their position `p`: they are multiplied by `1 + beta · ln(1 + ⌊p / step⌋)`.
#[derive(Debug, Clone, Copy)]
pub struct QueryGrowth {
    /// How fast the factor grows.
    pub beta: f32,
    /// Number of positions of a step; not 0.
    pub step: u32,
}

/// How rows of stacked queries, keys and values, `[heads + 2 kv_heads][d]` each, are normed and rotated.
pub struct Rotation<'a> {
    /// The number of rows.
    pub rows: usize,
    /// Number of query heads of a row.
    pub heads: usize,
    /// The norms of query and key heads, if the model has them.
    pub norms: Option<Norms<'a>>,
    /// Positions and frequencies.
    pub positions: Positions<'a>,
    /// How queries are scaled by their position, if they are.
    pub growth: Option<QueryGrowth>,
}

/// Where the key and value of one row are written: those of KV head `h` at `h * head_stride` numbers after these addresses.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Place {
    keys: u64,
    values: u64,
    head_stride: u64,
}

// SAFETY: three integers of eight bytes, for which any bits are valid. Only `Cache::place_from` makes useful ones.
unsafe impl super::Plain for Place {}

/// Keys and values of one layer, each `[kv_head][capacity][d]`, within larger buffers.
#[derive(Debug, Clone, Copy)]
pub struct Cache<'a> {
    /// Holds the keys.
    pub keys: &'a Buffer,
    /// Holds the values.
    pub values: &'a Buffer,
    /// Byte of `keys` at which the layer begins.
    pub keys_at: usize,
    /// Byte of `values` at which the layer begins.
    pub values_at: usize,
    /// Number of tokens for which memory is reserved.
    pub capacity: usize,
    /// Number of KV heads.
    pub kv_heads: usize,
    /// Channels of a head.
    pub d: usize,
    /// Type of the numbers.
    pub storage: Storage,
}

impl Cache<'_> {
    /// Bytes of the layer's keys, or of its values.
    fn bytes(&self) -> usize {
        self.kv_heads * self.capacity * self.d * self.storage.bytes()
    }

    /// Returns the address of a token's key in a KV head, after checking that the layer's keys from there on lie inside the buffer.
    pub(super) fn key(&self, kv_head: usize, token: usize) -> u64 {
        let offset = self.offset(kv_head, token);
        self.keys.address(self.keys_at + offset, self.bytes() - offset)
    }

    /// Like [`key`](Self::key), for the value.
    pub(super) fn value(&self, kv_head: usize, token: usize) -> u64 {
        let offset = self.offset(kv_head, token);
        self.values.address(self.values_at + offset, self.bytes() - offset)
    }

    fn offset(&self, kv_head: usize, token: usize) -> usize {
        assert!(
            token <= self.capacity && kv_head < self.kv_heads,
            "token {token} or KV head {kv_head} is beyond a cache of {} tokens and {} KV heads",
            self.capacity,
            self.kv_heads
        );
        (kv_head * self.capacity + token) * self.d * self.storage.bytes()
    }

    /// Copies the keys and values of a range of tokens of a KV head to the host, each `[token][d]`. Waits for the device.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the range ends beyond `capacity`.
    pub fn download_rows(&self, gpu: &Gpu, kv_head: usize, tokens: Range<usize>) -> Result<[Vec<f32>; 2], GpuError> {
        assert!(tokens.end <= self.capacity, "tokens {tokens:?} do not lie in a cache of {}", self.capacity);
        let (at, count) = (self.offset(kv_head, tokens.start), tokens.len() * self.d);
        let rows = |buffer: &Buffer, offset: usize| -> Result<Vec<f32>, GpuError> {
            Ok(match self.storage {
                Storage::F32 => gpu.downloaded(buffer, offset, count)?,
                Storage::F16 => widened(&gpu.downloaded::<f16>(buffer, offset, count)?),
                Storage::Bf16 => widened(&gpu.downloaded::<bf16>(buffer, offset, count)?),
            })
        };
        Ok([rows(self.keys, self.keys_at + at)?, rows(self.values, self.values_at + at)?])
    }

    /// Numbers from one KV head to the next.
    pub(super) fn head_stride(&self) -> u64 {
        (self.capacity * self.d) as u64
    }

    /// Returns where the key and value of a token are written.
    ///
    /// # Panics
    /// If `token` is not below `capacity`.
    pub fn place(&self, token: usize) -> Place {
        self.place_from(0, token)
    }

    /// Like [`place`](Self::place), for the KV heads from `kv_head` on.
    ///
    /// # Panics
    /// If `token` is not below `capacity`, or there is no such KV head.
    pub fn place_from(&self, kv_head: usize, token: usize) -> Place {
        assert!(
            token < self.capacity && kv_head < self.kv_heads,
            "token {token} or KV head {kv_head} is beyond a cache of {} tokens and {} KV heads",
            self.capacity,
            self.kv_heads
        );
        Place { keys: self.key(kv_head, token), values: self.value(kv_head, token), head_stride: self.head_stride() }
    }
}

fn widened<T: Copy + core::convert::Into<f32>>(numbers: &[T]) -> Vec<f32> {
    numbers.iter().map(|x| (*x).into()).collect()
}

/// A grid of one block for each row.
fn by_row(rows: usize, threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (rows as u32, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

/// Threads that norm a row: one for every four numbers, in whole warps, at most 1024.
fn norm_threads(hidden: usize) -> u32 {
    hidden.div_ceil(4).next_multiple_of(32).min(1024) as u32
}

impl Gpu {
    /// Copies a row of `table` to `x` as f32, times its scale, for each of the first `rows` token ids. The caller has checked that ids are
    /// below the number of rows of the table.
    ///
    /// # Errors
    /// [`GpuError`], as for all launchers.
    ///
    /// # Panics
    /// As all launchers: if a buffer is too small for the arguments.
    pub fn embed(
        &self,
        table: EmbeddingTable<'_>,
        tokens: &Buffer,
        rows: usize,
        x: &mut Buffer,
    ) -> Result<(), GpuError> {
        let EmbeddingTable { numbers, storage, hidden, scale } = table;
        let function = self.function("rows", &format!("embed_{}", storage.name()))?;
        let (table, tokens, x) = (numbers.address(0, 0), tokens.address(0, 4 * rows), x.address(0, 4 * rows * hidden));
        let hidden = hidden as i32;
        let mut launch = self.launch(&function);
        launch.arg(&table).arg(&tokens).arg(&x).arg(&hidden).arg(&scale);
        // SAFETY: x and the ids are as long as checked above; the caller has checked that ids are below the number of rows.
        unsafe { launch.launch(by_row(rows, 256)) }.map_err(failed("embedding"))
    }

    /// Writes the RMS norm of some rows of `x` `[hidden]` f32 to the first rows of `out`, of type `storage`.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn rms_norm(
        &self,
        storage: Storage,
        norm: RmsNorm<'_>,
        x: &Buffer,
        rows: Range<usize>,
        out: &mut Buffer,
        check: FiniteCheck<'_>,
    ) -> Result<(), GpuError> {
        let (RmsNorm { weight, eps, hidden }, FiniteCheck { broken, mark, first_row: first }) = (norm, check);
        let function = self.function("rows", &format!("rms_norm_{}", storage.name()))?;
        let (skip, rows) = (rows.start, rows.len());
        let from = x.address(4 * skip * hidden, 4 * rows * hidden);
        let weight = weight.map_or(0, |weight| weight.address(0, 4 * hidden));
        let out = out.address(0, rows * hidden * storage.bytes());
        let (broken, hidden) = (broken.address(0, 8), hidden as i32);
        let mut launch = self.launch(&function);
        launch.arg(&from).arg(&weight).arg(&out).arg(&hidden).arg(&eps).arg(&mark).arg(&first).arg(&broken);
        // SAFETY: all buffers are as long as checked above.
        unsafe { launch.launch(by_row(rows, norm_threads(hidden as usize))) }.map_err(failed("norming"))
    }

    /// Norms a part of each row of `x` in place. The part is as wide as `norm`.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the part is not within a row, or a buffer is too small.
    pub fn norm_part(
        &self,
        storage: Storage,
        x: &mut Buffer,
        part: RowPart,
        norm: RmsNorm<'_>,
    ) -> Result<(), GpuError> {
        let (RowPart { rows, stride, first }, RmsNorm { weight, eps, hidden: width }) = (part, norm);
        let weight = weight.expect("a part is normed with weights");
        assert!(first + width <= stride, "numbers {first} to {} of rows of {stride}", first + width);
        let function = self.function("rows", &format!("norm_part_{}", storage.name()))?;
        let x = x.address(0, rows * stride * storage.bytes()) + (first * storage.bytes()) as u64;
        let weight = weight.address(0, 4 * width);
        let (stride, width) = (stride as i32, width as i32);
        let mut launch = self.launch(&function);
        launch.arg(&x).arg(&stride).arg(&width).arg(&weight).arg(&eps);
        // SAFETY: both buffers are as long as checked above, and the part lies within a row.
        unsafe { launch.launch(by_row(rows, norm_threads(width as usize))) }.map_err(failed("norming a part"))
    }

    /// Adds rows `[hidden]` f32 of `branch`, or with a weight their RMS norm, times `scale`, to those of `x`.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn add_branch(
        &self,
        x: &mut Buffer,
        branch: &Buffer,
        rows: usize,
        hidden: usize,
        weight: Option<&Buffer>,
        (eps, scale): (f32, f32),
    ) -> Result<(), GpuError> {
        let function = self.function("rows", "add_branch")?;
        let (x, branch) = (x.address(0, 4 * rows * hidden), branch.address(0, 4 * rows * hidden));
        let weight = weight.map_or(0, |weight| weight.address(0, 4 * hidden));
        let threads = norm_threads(hidden);
        let hidden = hidden as i32;
        let mut launch = self.launch(&function);
        launch.arg(&x).arg(&branch).arg(&weight).arg(&eps).arg(&scale).arg(&hidden);
        // SAFETY: all buffers are as long as checked above.
        unsafe { launch.launch(by_row(rows, threads)) }.map_err(failed("adding a branch"))
    }

    /// Adds `bias` `[width]` f32 to rows of type `storage`.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn add_bias(
        &self,
        storage: Storage,
        x: &mut Buffer,
        rows: usize,
        bias: &Buffer,
        width: usize,
    ) -> Result<(), GpuError> {
        self.add_bias_to(storage, x, RowPart { rows, stride: width, first: 0 }, bias, width)
    }

    /// Adds `bias` `[width]` f32 to a part of rows of type `storage`.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the part is not within a row, or a buffer is too small.
    pub fn add_bias_to(
        &self,
        storage: Storage,
        x: &mut Buffer,
        part: RowPart,
        bias: &Buffer,
        width: usize,
    ) -> Result<(), GpuError> {
        let RowPart { rows, stride, first } = part;
        assert!(first + width <= stride, "numbers {first} to {} of rows of {stride}", first + width);
        let function = self.function("rows", &format!("add_bias_{}", storage.name()))?;
        let x = x.address(0, rows * stride * storage.bytes()) + (first * storage.bytes()) as u64;
        let bias = bias.address(0, 4 * width);
        let (width, stride) = (width as i32, stride as i32);
        let mut launch = self.launch(&function);
        launch.arg(&x).arg(&bias).arg(&width).arg(&stride);
        // SAFETY: both buffers are as long as checked above, and the part lies within a row.
        unsafe { launch.launch(by_row(rows, 256)) }.map_err(failed("adding a bias"))
    }

    /// Applies `gate` to rows `[2][inner]`, the gate first, into rows `[inner]`.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn gate(
        &self,
        gate: Gate,
        storage: Storage,
        gate_up: &Buffer,
        rows: usize,
        out: &mut Buffer,
        inner: usize,
    ) -> Result<(), GpuError> {
        assert!(inner.is_multiple_of(PIECE), "the inner width {inner} is no multiple of {PIECE}");
        let name = match gate {
            Gate::Silu => "silu_gate",
            Gate::GeluTanh => "gelu_tanh_gate",
            Gate::Clamped { .. } => "clamped_gate",
        };
        let function = self.function("rows", &format!("{name}_{}", storage.name()))?;
        let (row, width) = (inner * storage.bytes(), inner as i32);
        let blocks = inner.div_ceil(PIECE * 128) as u32;
        for first in (0..rows).step_by(GRID_ROWS) {
            let count = GRID_ROWS.min(rows - first);
            let gate_up = gate_up.address(2 * first * row, 2 * count * row);
            let out = out.address(first * row, count * row);
            let mut launch = self.launch(&function);
            launch.arg(&gate_up).arg(&out).arg(&width);
            if let Gate::Clamped { slope, limit } = &gate {
                launch.arg(slope).arg(limit);
            }
            let grid = (blocks, count as u32, 1);
            let grid = LaunchConfig { grid_dim: grid, block_dim: (128, 1, 1), shared_mem_bytes: 0 };
            // SAFETY: both buffers are as long as checked above, and pieces do not cross a row's end.
            unsafe { launch.launch(grid) }.map_err(failed("gating"))?;
        }
        Ok(())
    }

    /// Computes `x · wᵀ` for `rows` rows `[inputs]`, into rows `[outputs]`. Sums are f32. F32 operands are multiplied in f32, not in TF32.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn multiply(
        &self,
        storage: Storage,
        w: WeightMatrix<'_>,
        x: &Buffer,
        rows: usize,
        out: &mut Buffer,
        into: Into,
    ) -> Result<(), GpuError> {
        let columns = Columns { first: 0, stride: w.outputs };
        self.multiply_columns(storage, w, x, rows, (out, columns), into)
    }

    /// Like [`multiply`](Self::multiply), for a part of a layer's outputs, into some columns of `out`.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the columns do not lie within a row.
    pub fn multiply_columns(
        &self,
        storage: Storage,
        w: WeightMatrix<'_>,
        x: &Buffer,
        rows: usize,
        (out, columns): (&mut Buffer, Columns),
        into: Into,
    ) -> Result<(), GpuError> {
        let WeightMatrix { data: w, outputs, inputs } = w;
        assert!(columns.first + outputs <= columns.stride, "columns lie within a row");
        let wide = if into == Into::Narrow { storage } else { Storage::F32 };
        let w = w.address(0, outputs * inputs * storage.bytes());
        let x = x.address(0, rows * inputs * storage.bytes());
        let written = rows.checked_sub(1).map_or(0, |others| others * columns.stride + outputs);
        let out = out.address(columns.first * wide.bytes(), written * wide.bytes());
        if rows == 1 && inputs.is_multiple_of(PIECE) {
            return self.gemv(storage, [w, x, out], outputs, inputs, into);
        }
        self.gemm(storage, [w, x, out], [rows, outputs, inputs, columns.stride], into)
    }

    /// Multiplies matrices at checked addresses; rows of `out` are `stride` numbers apart.
    fn gemm(
        &self,
        storage: Storage,
        [w, x, out]: [u64; 3],
        [rows, outputs, inputs, stride]: [usize; 4],
        into: Into,
    ) -> Result<(), GpuError> {
        let wide = if into == Into::Narrow { storage } else { Storage::F32 };
        let data = |storage| match storage {
            Storage::F32 => cudaDataType_t::CUDA_R_32F,
            Storage::F16 => cudaDataType_t::CUDA_R_16F,
            Storage::Bf16 => cudaDataType_t::CUDA_R_16BF,
        };
        let (one, beta) = (1.0f32, if into == Into::Add { 1.0f32 } else { 0.0 });
        // cuBLAS uses the thread's current context.
        self.context.bind_to_thread().map_err(failed("binding its context to a thread"))?;
        // Column-major, as cuBLAS counts: out [outputs][rows] = wᵀ [outputs][inputs] · x [inputs][rows].
        // SAFETY: the three matrices are as large as the callers have checked; both factors are on the stack until the call returns.
        unsafe {
            gemm_ex(
                *self.blas.handle(),
                cublasOperation_t::CUBLAS_OP_T,
                cublasOperation_t::CUBLAS_OP_N,
                outputs as i32,
                rows as i32,
                inputs as i32,
                (&raw const one).cast(),
                w as *const _,
                data(storage),
                inputs as i32,
                x as *const _,
                data(storage),
                inputs as i32,
                (&raw const beta).cast(),
                out as *mut _,
                data(wide),
                stride as i32,
                cublasComputeType_t::CUBLAS_COMPUTE_32F,
                cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        }
        .map_err(|error| GpuError::Failed { what: "multiplying", why: format!("{error:?}") })
    }

    /// Like [`multiply`](Self::multiply), for one row.
    fn gemv(
        &self,
        storage: Storage,
        [w, x, out]: [u64; 3],
        outputs: usize,
        inputs: usize,
        into: Into,
    ) -> Result<(), GpuError> {
        let kind = match into {
            Into::Narrow => "narrow",
            Into::Wide => "wide",
            Into::Add => "add",
        };
        let shared = (STREAM_WARPS * STREAM_RING + inputs) * storage.bytes();
        let each = (STREAM_SHARED / shared).min(2);
        let streams = self.is_hopper && storage != Storage::F32 && each > 0;
        let (function, blocks, threads, shared) = match streams {
            true => {
                // Exactly `each` blocks fit a multiprocessor: otherwise, blocks that start early would crowd onto the first ones with room.
                let shared = shared.max(STREAM_SHARED / (each + 1) + (2 << 10));
                let name = format!("gemv_hopper_{kind}_{}", storage.name());
                let function = self.with_shared("gemv_hopper", &name, shared as u32)?;
                (function, each * self.processors, 32 * STREAM_WARPS, shared)
            }
            false => {
                let function = self.function("gemv", &format!("gemv_{kind}_{}", storage.name()))?;
                (function, outputs.div_ceil(GEMV_OUTPUTS), 32 * GEMV_OUTPUTS, 0)
            }
        };
        let (outputs, inputs) = (outputs as i32, inputs as i32);
        let mut launch = self.launch(&function);
        launch.arg(&w).arg(&x).arg(&out).arg(&outputs).arg(&inputs);
        let grid = LaunchConfig {
            grid_dim: (blocks as u32, 1, 1),
            block_dim: (threads as u32, 1, 1),
            shared_mem_bytes: shared as u32,
        };
        // SAFETY: the caller has checked the three matrices.
        unsafe { launch.launch(grid) }.map_err(failed("multiplying"))
    }

    /// Norms (if there are norms) and rotates the query and key heads of rows. Writes keys and values to `cache`, one row after the other
    /// from token `first` on.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn rope(
        &self,
        rows: &mut Buffer,
        rotation: &Rotation<'_>,
        cache: &Cache<'_>,
        first: usize,
    ) -> Result<(), GpuError> {
        let count = rotation.rows;
        assert!(
            first + count <= cache.capacity,
            "tokens end at {}, beyond the cache's {}",
            first + count,
            cache.capacity
        );
        let Place { keys, values, head_stride } = cache.place(first);
        let shape = (cache.kv_heads, cache.d, cache.storage);
        self.rope_to(rows, rotation, shape, 0, [keys, values, head_stride])
    }

    /// Like [`rope`](Self::rope), but writes each row's key and value to a [`Place`]. `places` holds one for each row from byte `offset`
    /// on; all must lie in caches that the caller holds. `shape` is the number of KV heads, the width of a head and the storage type.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn rope_scattered(
        &self,
        rows: &mut Buffer,
        rotation: &Rotation<'_>,
        shape: (usize, usize, Storage),
        places: &Buffer,
        offset: usize,
    ) -> Result<(), GpuError> {
        let places = places.address(offset, rotation.rows * size_of::<Place>());
        self.rope_to(rows, rotation, shape, places, [0; 3])
    }

    /// Like [`rope`](Self::rope), for the queries alone; keys and values of the rows are neither changed nor written to a cache.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn rope_queries(
        &self,
        rows: &mut Buffer,
        rotation: &Rotation<'_>,
        shape: (usize, usize, Storage),
    ) -> Result<(), GpuError> {
        self.rope_to(rows, rotation, shape, 0, [0; 3])
    }

    /// Like [`rope`](Self::rope), with the address of a [`Place`] for each row, or 0 and the first row's place as three numbers; with
    /// neither, only queries are rotated.
    fn rope_to(
        &self,
        rows: &mut Buffer,
        rotation: &Rotation<'_>,
        (kv_heads, d, storage): (usize, usize, Storage),
        places: u64,
        [keys, values, head_stride]: [u64; 3],
    ) -> Result<(), GpuError> {
        let Rotation { rows: count, heads, norms, positions: at, growth } = rotation;
        let (count, heads, norms) = (*count, *heads, norms.as_ref());
        let function = self.function("rope", &format!("rope_{}", storage.name()))?;
        let rows = rows.address(0, count * (heads + 2 * kv_heads) * d * storage.bytes());
        let positions = at.positions.address(0, 4 * count);
        let lists = if at.by_row { count } else { 1 };
        assert!(at.rotated <= d && at.rotated.is_multiple_of(2), "{} of {d} channels are rotated", at.rotated);
        let inverse = at.inverse.address(0, 4 * lists * at.rotated / 2);
        let stride = if at.by_row { at.rotated as i32 / 2 } else { 0 };
        let (rotated, neighbours) = (at.rotated as i32, i32::from(at.neighbours));
        let query_norm = norms.map_or(0, |norms| norms.query.address(0, 4 * d));
        let key_norm = norms.map_or(0, |norms| norms.key.address(0, 4 * d));
        let eps = norms.map_or(0.0f32, |norms| norms.eps);
        assert!(growth.is_none_or(|growth| growth.step > 0), "queries grow in steps of no position");
        let QueryGrowth { beta, step } = growth.unwrap_or(QueryGrowth { beta: 0.0, step: 0 });
        let (heads, kv_heads, d) = (heads as i32, kv_heads as i32, d as i32);
        let mut launch = self.launch(&function);
        launch.arg(&rows).arg(&positions).arg(&inverse).arg(&stride).arg(&at.scaling).arg(&rotated).arg(&neighbours);
        launch.arg(&heads).arg(&kv_heads).arg(&d).arg(&query_norm).arg(&key_norm).arg(&eps).arg(&beta).arg(&step);
        launch.arg(&places).arg(&keys).arg(&values).arg(&head_stride);
        let shares = if count < FEW_ROWS { (heads as u32 + 2 * kv_heads as u32).div_ceil(8) } else { 1 };
        let grid = LaunchConfig { grid_dim: (count as u32, shares, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: rows, positions, frequencies and norms are as long as checked above; keys and values are written where a `Cache` has
        // memory.
        unsafe { launch.launch(grid) }.map_err(failed("rotating"))
    }
}

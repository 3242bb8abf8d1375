//! Hash tables of keys by random hyperplanes, and the tokens that collide with queries in them (MagicPIG).

use std::ops::Range;

use cudarc::driver::{DeviceRepr, LaunchConfig};

use super::buffer::reserved;
use super::host_device_vec::HostDeviceVec;
use super::launch::Cache;
use super::queries::Queries;
use super::token_lists::TokenLists;
use super::{Buffer, Gpu, GpuError, Plain, Storage, failed};
use spattn_kernels::memory::in_large_pages;
use spattn_kernels::{GPU_WIDEST, NARROW_TOKENS};

/// Threads of a block that hashes, and its vectors, which are also the most planes at a time.
const THREADS: u32 = 256;
const TILE: usize = 64;
/// Bytes of a tile: vectors and normals by channel, and a byte for each plane and vector.
const TILE_BYTES: u32 = (2 * 4 * GPU_WIDEST * (TILE + 4) + TILE * TILE) as u32;
/// Tokens whose keys a block sums.
const SUMMED: usize = 1024;
/// Threads of a block that sorts or samples.
const SAMPLERS: u32 = 512;
/// The most bits of a code: shared memory holds a number for each code.
const MOST_BITS: usize = 15;
/// The most words of a set of tokens in shared memory; longer contexts are processed in ranges. Shorter ones are also split, into
/// ranges of at least `LEAST_WORDS` words, until each multiprocessor has `BLOCKS_EACH` blocks.
const MOST_WORDS: usize = 8192;
const LEAST_WORDS: usize = 256;
const BLOCKS_EACH: usize = 2;
/// The buffer of codes, as messages name it.
const CODES: &str = "codes of queries";

/// The shape of the hash tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableShape {
    /// Hyperplanes of a table.
    pub bits: usize,
    /// Number of tables.
    pub tables: usize,
    /// Channels of a head.
    pub d: usize,
}

impl TableShape {
    /// Whether the kernels support this shape.
    pub fn fits(self) -> bool {
        let Self { bits, tables, d } = self;
        d.is_multiple_of(8) && (8..=GPU_WIDEST).contains(&d) && (1..=MOST_BITS).contains(&bits) && tables > 0
    }

    /// Bytes of a token index and of a bound, if there are `tokens` tokens.
    pub fn number_bytes(tokens: usize) -> usize {
        if tokens <= NARROW_TOKENS { 2 } else { 4 }
    }

    /// Bytes of the tables of one KV head.
    pub fn bytes(self, tokens: usize) -> usize {
        self.tables * ((1 << self.bits) + 1 + tokens) * Self::number_bytes(tokens)
    }
}

/// Hash tables of all KV heads of a layer.
#[derive(Debug)]
pub struct HashTables {
    shape: TableShape,
    tokens: Range<usize>,
    kv_heads: usize,
    /// `[table * bits + bit][d]` f32.
    planes: Buffer,
    /// `[kv_head][d]` f32, if keys are centred.
    means: Option<Buffer>,
    /// Lengths of the (centred) keys, `[kv_head][token]` f32.
    lengths: Buffer,
    /// `[kv_head][table][2^bits + 1]`: where each code's tokens begin.
    bounds: Buffer,
    /// `[kv_head][table][token]`, sorted by code.
    sorted: Buffer,
}

/// Which tokens are sampled, and with what probability.
#[derive(Debug, Clone, Copy)]
pub struct SamplingSpec<'a> {
    /// In how many tables a token must collide with the query to be sampled, 1 or 2.
    pub least: u8,
    /// Added to every probability.
    pub floor: f64,
    /// Logarithms of probabilities at equal steps of the sine of half the angle, from 0 to `farthest`.
    pub log_probabilities: &'a HostDeviceVec<f32>,
    /// The last of these sines; probabilities beyond it are computed.
    pub farthest: f64,
}

/// Mirrors the kernel's struct `Sampling`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct DeviceSampling {
    bits: u32,
    tables: u32,
    least: u32,
    steps: u32,
    farthest: f64,
    floor: f64,
    log_probabilities: u64,
}

// SAFETY: laid out as the kernel's struct.
unsafe impl DeviceRepr for DeviceSampling {}

/// Memory for intermediate results between hashing queries and weighting the tokens that they collide with.
#[derive(Debug, Default)]
pub struct CollisionWorkspace {
    /// `[row][head][table]` u16.
    codes: Option<Buffer>,
    /// `[row][head][range][word]` u32, a bit for each token.
    marks: Option<Buffer>,
    /// `[row][head][range]` u32, the number of marked tokens.
    found: Option<Buffer>,
}

/// The hash tables of a KV head, in host memory.
#[derive(Debug, Clone, PartialEq)]
pub struct DownloadedTables {
    /// Where each code's tokens begin, `[table][2^bits + 1]`; and the tokens by code, `[table][token]`, counted from the first.
    pub numbers: TableNumbers,
    /// The mean that was subtracted from keys, `[d]`; empty if they were not centred.
    pub mean: Vec<f32>,
    /// Lengths of the (centred) keys.
    pub lengths: Vec<f32>,
}

/// Bounds and tokens of hash tables, in 16 bits below 65,536 tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum TableNumbers {
    /// In 16 bits.
    Narrow(Vec<u16>, Vec<u16>),
    /// In 32 bits.
    Wide(Vec<u32>, Vec<u32>),
}

impl HashTables {
    /// Copies the tables of a KV head to the host.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If there is no such head.
    pub fn download(&self, gpu: &Gpu, kv_head: usize) -> Result<DownloadedTables, GpuError> {
        let Self { shape: TableShape { bits, tables, d }, kv_heads, .. } = *self;
        let count = self.tokens.len();
        assert!(kv_head < kv_heads, "KV head {kv_head} of {kv_heads}");
        let (bounds, sorted) = (tables * ((1 << bits) + 1), tables * count);
        let number = TableShape::number_bytes(count);
        let (first_bound, first_token) = (kv_head * bounds * number, kv_head * sorted * number);
        let numbers = match number {
            2 => TableNumbers::Narrow(
                gpu.downloaded_apart(&self.bounds, first_bound, bounds)?,
                gpu.downloaded_apart(&self.sorted, first_token, sorted)?,
            ),
            _ => TableNumbers::Wide(
                gpu.downloaded_apart(&self.bounds, first_bound, bounds)?,
                gpu.downloaded_apart(&self.sorted, first_token, sorted)?,
            ),
        };
        let mean = self.means.as_ref().map(|means| gpu.downloaded(means, 4 * kv_head * d, d)).transpose()?;
        let lengths = gpu.downloaded(&self.lengths, 4 * kv_head * count, count)?;
        Ok(DownloadedTables { numbers, mean: mean.unwrap_or_default(), lengths })
    }

    /// Bytes of the tables, the means and the lengths.
    pub fn bytes(&self) -> usize {
        let means = self.means.as_ref().map_or(0, |_| 4 * self.kv_heads * self.shape.d);
        self.kv_heads * (self.shape.bytes(self.tokens.len()) + 4 * self.tokens.len()) + means
    }
}

impl Gpu {
    /// Hashes the keys of some tokens by `planes` `[table * bits + bit][d]`; if `is_centred`, their mean is subtracted first.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If `planes` does not have the shape, or the shape is not supported.
    pub fn hash_keys(
        &self,
        keys: &Cache<'_>,
        tokens: Range<usize>,
        shape: TableShape,
        (planes, is_centred): (&[f32], bool),
    ) -> Result<HashTables, GpuError> {
        let TableShape { bits, tables, d } = shape;
        assert!(
            shape.fits() && keys.d == d && planes.len() == bits * tables * d,
            "the kernel does not support {shape:?} for keys of {} channels and {} numbers of hyperplanes",
            keys.d,
            planes.len()
        );
        assert!(
            tokens.end <= keys.capacity && !tokens.is_empty(),
            "tokens {tokens:?} do not lie in a cache of {}",
            keys.capacity
        );
        let (count, kv_heads, name) = (tokens.len(), keys.kv_heads, keys.storage.name());
        let number = TableShape::number_bytes(count);
        let made = HashTables {
            shape,
            tokens: tokens.clone(),
            kv_heads,
            planes: self.upload(planes)?,
            means: if is_centred { Some(self.mean_keys(keys, tokens.clone())?) } else { None },
            lengths: self.alloc(4 * kv_heads * count)?,
            bounds: self.alloc(kv_heads * tables * ((1 << bits) + 1) * number)?,
            sorted: self.alloc(kv_heads * tables * count * number)?,
        };
        // Codes are made for one KV head at a time, because they take as much memory as its sorted tokens.
        let codes = self.alloc(2 * tables * count)?;
        let hash = self.with_shared("collisions", &format!("hash_keys_{name}"), TILE_BYTES)?;
        let shared = 4 << bits;
        let sort = self.with_shared("collisions", &format!("sort_codes_{}", 8 * number), shared)?;
        let (own_planes, codes_at) =
            (made.planes.address(0, 4 * bits * tables * d), codes.address(0, 2 * tables * count));
        let (tokens_in_all, width, bits_of, tables_of) = (count as u32, d as i32, bits as u32, tables as u32);
        for head in 0..kv_heads {
            let from = keys.key(head, tokens.start);
            let mean = made.means.as_ref().map_or(0, |means| means.address(4 * head * d, 4 * d));
            let lengths = made.lengths.address(4 * head * count, 4 * count);
            let mut launch = self.launch(&hash);
            launch.arg(&from).arg(&tokens_in_all).arg(&width).arg(&mean).arg(&own_planes).arg(&bits_of).arg(&tables_of);
            launch.arg(&codes_at).arg(&lengths);
            let grid = (count.div_ceil(TILE) as u32, tables.div_ceil(TILE / bits) as u32, 1);
            let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS, 1, 1), shared_mem_bytes: TILE_BYTES };
            // SAFETY: keys, planes, mean, codes and lengths are as long as checked and made above.
            unsafe { launch.launch(grid) }.map_err(failed("hashing keys"))?;
            let bytes = tables * ((1 << bits) + 1) * number;
            let bounds = made.bounds.address(head * bytes, bytes);
            let sorted = made.sorted.address(head * tables * count * number, tables * count * number);
            let mut launch = self.launch(&sort);
            launch.arg(&codes_at).arg(&tokens_in_all).arg(&bits_of).arg(&bounds).arg(&sorted);
            let grid =
                LaunchConfig { grid_dim: (tables as u32, 1, 1), block_dim: (SAMPLERS, 1, 1), shared_mem_bytes: shared };
            // SAFETY: codes, bounds and tables are as long as made above.
            unsafe { launch.launch(grid) }.map_err(failed("sorting codes"))?;
        }
        // Wait for the uploads, which read the caller's memory.
        self.synchronize()?;
        Ok(made)
    }

    /// Computes the means of the keys of some tokens, `[kv_head][d]` in f32, from sums in f64.
    pub(super) fn mean_keys(&self, keys: &Cache<'_>, tokens: Range<usize>) -> Result<Buffer, GpuError> {
        let (d, kv_heads, count) = (keys.d, keys.kv_heads, tokens.len());
        let pieces = count.div_ceil(SUMMED);
        let (sums, means) = (self.alloc(8 * kv_heads * pieces * d)?, self.alloc(4 * kv_heads * d)?);
        let (sums_at, means_at) = (sums.address(0, 8 * kv_heads * pieces * d), means.address(0, 4 * kv_heads * d));
        let (from, stride) = (keys.key(0, tokens.start), keys.head_stride());
        let (count, width, pieces) = (count as u32, d as i32, pieces as u32);
        let function = self.function("collisions", &format!("sum_keys_{}", keys.storage.name()))?;
        let mut launch = self.launch(&function);
        launch.arg(&from).arg(&stride).arg(&count).arg(&width).arg(&sums_at);
        let grid = (pieces, kv_heads as u32, 1);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: keys and sums are as long as checked and made above.
        unsafe { launch.launch(grid) }.map_err(failed("computing the means of keys"))?;
        let function = self.function("collisions", "mean_of_sums")?;
        let mut launch = self.launch(&function);
        launch.arg(&sums_at).arg(&pieces).arg(&count).arg(&width).arg(&means_at);
        let grid = (kv_heads as u32, 1, 1);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (GPU_WIDEST as u32, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: sums and means are as long as made above.
        unsafe { launch.launch(grid) }.map_err(failed("computing the means of keys"))?;
        Ok(means)
    }

    /// Copies numbers of a buffer to host memory in large pages, because they are read at distant places.
    fn downloaded_apart<T: Plain>(&self, buffer: &Buffer, offset: usize, count: usize) -> Result<Vec<T>, GpuError> {
        let mut numbers = vec![T::default(); count];
        in_large_pages(&mut numbers);
        self.download(buffer, offset, &mut numbers)?;
        Ok(numbers)
    }

    /// Hashes queries by `planes` `[table * bits + bit][d]` f32, and returns their codes `[row][head][table]`. Waits for the device.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small, or the shape is not supported.
    pub fn hash_queries(
        &self,
        queries: &Queries<'_>,
        storage: Storage,
        shape: TableShape,
        planes: &Buffer,
        workspace: &mut CollisionWorkspace,
    ) -> Result<Vec<u16>, GpuError> {
        let count = queries.rows.numbers().len() * queries.heads * shape.tables;
        if count == 0 {
            return Ok(Vec::new());
        }
        self.enqueue_hashes(queries, storage, shape, planes, &mut workspace.codes)?;
        self.downloaded(reserved(&workspace.codes, CODES), 0, count)
    }

    /// Enqueues the hashing of queries, and returns the address of their codes, for which `codes` is reserved.
    fn enqueue_hashes(
        &self,
        queries: &Queries<'_>,
        storage: Storage,
        shape: TableShape,
        planes: &Buffer,
        codes: &mut Option<Buffer>,
    ) -> Result<u64, GpuError> {
        let (rows, heads, TableShape { bits, tables, d }) = (queries.rows.numbers().len(), queries.heads, shape);
        assert!(shape.fits(), "the kernel does not support {shape:?}");
        let bytes = 2 * rows * heads * tables;
        self.reserve(codes, bytes)?;
        let codes_at = reserved(codes, CODES).address(0, bytes);
        let (from, list) = (queries.address(0..rows, d, storage), queries.list(0..rows));
        let (row_stride, planes) = (queries.stride as u64, planes.address(0, 4 * bits * tables * d));
        let (heads_of, all, width) = (heads as u32, (rows * heads) as u32, d as i32);
        let hash = self.with_shared("collisions", &format!("hash_queries_{}", storage.name()), TILE_BYTES)?;
        let (bits_of, tables_of) = (bits as u32, tables as u32);
        let mut launch = self.launch(&hash);
        launch.arg(&list).arg(&from).arg(&row_stride).arg(&heads_of).arg(&all).arg(&width).arg(&planes).arg(&bits_of);
        launch.arg(&tables_of).arg(&codes_at);
        let grid = ((rows * heads).div_ceil(TILE) as u32, tables.div_ceil(TILE / bits) as u32, 1);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS, 1, 1), shared_mem_bytes: TILE_BYTES };
        // SAFETY: queries, planes and codes are as long as checked and made above.
        unsafe { launch.launch(grid) }.map_err(failed("hashing queries"))?;
        Ok(codes_at)
    }

    /// For every query head of some rows, samples the tokens that collide with its query in enough tables, in ascending order, with the
    /// logarithms of their sampling probabilities, into `lists` that have [room](crate::TokenListLayout::weighted) for all tokens.
    /// `workspace` holds intermediate results.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn sample_collisions(
        &self,
        queries: &Queries<'_>,
        keys: &Cache<'_>,
        (tables, chances): (&HashTables, &SamplingSpec<'_>),
        lists: &mut TokenLists,
        workspace: &mut CollisionWorkspace,
    ) -> Result<(), GpuError> {
        let (rows, heads, shape, count) =
            (queries.rows.numbers().len(), queries.heads, tables.shape, tables.tokens.len());
        let TableShape { bits, tables: in_all, d } = shape;
        assert!(
            keys.d == d && keys.kv_heads == tables.kv_heads && tables.tokens.end <= keys.capacity,
            "the hash tables do not belong to these keys ({shape:?})"
        );
        assert!(
            lists.lists() == heads && lists.most() >= count,
            "{} lists of {} tokens do not fit {heads} query heads and {count} tokens",
            lists.lists(),
            lists.most()
        );
        if rows == 0 {
            return Ok(());
        }
        let codes_at = self.enqueue_hashes(queries, keys.storage, shape, &tables.planes, &mut workspace.codes)?;
        let (from, list) = (queries.address(0..rows, d, keys.storage), queries.list(0..rows));
        let (row_stride, width, name) = (queries.stride as u64, d as i32, keys.storage.name());

        let number = TableShape::number_bytes(count);
        let all_words = count.div_ceil(32);
        let even = all_words.div_ceil((BLOCKS_EACH * self.processors()).div_ceil(rows * heads));
        let words = even.clamp(LEAST_WORDS, MOST_WORDS).min(all_words);
        let ranges = all_words.div_ceil(words);
        self.reserve(&mut workspace.marks, 4 * rows * heads * ranges * words)?;
        self.reserve(&mut workspace.found, 4 * rows * heads * ranges)?;
        let marks = reserved(&workspace.marks, "marks of tokens").address(0, 4 * rows * heads * ranges * words);
        let found = reserved(&workspace.found, "numbers of marked tokens").address(0, 4 * rows * heads * ranges);
        let kv_heads = tables.kv_heads;
        let bounds = tables.bounds.address(0, kv_heads * in_all * ((1 << bits) + 1) * number);
        let sorted = tables.sorted.address(0, kv_heads * in_all * count * number);
        let (group, words_of, tokens_in_all) = ((heads / kv_heads) as i32, words as u32, count as u32);
        let steps = chances.log_probabilities.numbers().len();
        let sampling = DeviceSampling {
            bits: bits as u32,
            tables: in_all as u32,
            least: chances.least.into(),
            steps: (steps - 1) as u32,
            farthest: chances.farthest,
            floor: chances.floor,
            log_probabilities: chances.log_probabilities.address(0..steps),
        };
        let entries = lists.entries(0);
        let shared = (2 * 4 * words) as u32;
        let grid = (heads as u32, rows as u32, ranges as u32);
        let meet = self.with_shared("collisions", &format!("meet_collisions_{}", 8 * number), shared)?;
        let mut launch = self.launch(&meet);
        launch.arg(&codes_at).arg(&group).arg(&tokens_in_all).arg(&bounds).arg(&sorted).arg(&sampling).arg(&words_of);
        launch.arg(&marks).arg(&found).arg(&entries);
        let blocks = LaunchConfig { grid_dim: grid, block_dim: (SAMPLERS, 1, 1), shared_mem_bytes: shared };
        // SAFETY: codes, tables, marks and numbers of entries are as long as checked and made above.
        unsafe { launch.launch(blocks) }.map_err(failed("counting collisions"))?;

        let (own_keys, head_stride) = (keys.key(0, tables.tokens.start), keys.head_stride());
        let means = tables.means.as_ref().map_or(0, |means| means.address(0, 4 * kv_heads * d));
        let lengths = tables.lengths.address(0, 4 * kv_heads * count);
        let ([tokens, counts], weights) = (lists.addresses(0), lists.weights(0));
        let (first, most) = (tables.tokens.start as u32, lists.most() as u32);
        let weigh = self.function("collisions", &format!("weigh_collisions_{name}"))?;
        let mut launch = self.launch(&weigh);
        launch.arg(&list).arg(&from).arg(&row_stride).arg(&group).arg(&own_keys).arg(&head_stride).arg(&tokens_in_all);
        launch.arg(&width).arg(&means).arg(&lengths).arg(&sampling).arg(&words_of).arg(&marks).arg(&found).arg(&first);
        launch.arg(&tokens).arg(&weights).arg(&most).arg(&counts);
        let blocks = LaunchConfig { grid_dim: grid, block_dim: (SAMPLERS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: queries, keys, tables, marks and lists are as long as checked and made above.
        unsafe { launch.launch(blocks) }.map_err(failed("weighting sampled tokens"))
    }
}

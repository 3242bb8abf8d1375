//! Block-sparse prefill attention: the rows of a block attend a common list of tokens, and each row a stretch of tokens that ends with
//! itself. Also the tree search that makes such lists.

mod line_lists;

use cudarc::driver::{DeviceRepr, LaunchConfig};

pub use self::line_lists::VerticalLines;
use super::block_shape::{BlockShape, LIST_STEP};
use super::buffer::reserved;
use super::launch::Cache;
use super::per_row_tokens::{OwnTokens, PerRowSlices, PerRowTokens, SharedList};
use super::prefill::{Rows, addresses};
use super::tree::{DeviceTree, Tree};
use super::{Buffer, Gpu, GpuError, HostDeviceVec, Plain, Storage, failed};

/// Threads of a block that attends or searches, and of a block that writes runs.
const THREADS: u32 = 128;
const WRITERS: u32 = 256;
/// Keys of a tile.
const TILE_KEYS: usize = 64;
/// Bits of a word.
const WORD_BITS: usize = 32;
/// Rows of the smaller and of the larger tile.
const TILES: [usize; 2] = [32, 64];
/// Sampled rows of one product on tensor cores, and the padding between them in shared memory, in numbers.
const SAMPLES: usize = 16;
const SAMPLE_GAP: usize = 32;
/// Bytes of shared memory for each block that a search keeps: two spans, and the scores of two branches.
const KEPT_BYTES: usize = 2 * 8 + 2 * 4;
/// Bytes of static shared memory that are left to the kernel.
const OWN_SHARED: usize = 1 << 10;

/// Consecutive tokens in a list.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Run {
    first: u32,
    count: u32,
    place: u32,
}

// SAFETY: three words, for which any bits are valid.
unsafe impl Plain for Run {}

impl Run {
    /// The runs of an ascending list of tokens.
    pub fn of(tokens: &[u32]) -> Vec<Self> {
        let mut runs: Vec<Self> = Vec::new();
        for (place, token) in tokens.iter().enumerate() {
            match runs.last_mut() {
                Some(run) if run.first + run.count == *token => run.count += 1,
                _ => runs.push(Self { first: *token, count: 1, place: place as u32 }),
            }
        }
        runs
    }
}

/// What the rows of a chunk attend: before a row's start, the tokens of its block's list and those at the distances of the list's
/// diagonals; all tokens from the start up to the row itself; and tokens of single rows.
#[derive(Debug, Default)]
pub struct BlockLists {
    shape: BlockShape,
    /// The number of tokens that each list has memory for.
    most: usize,
    /// All listed tokens are below this position.
    end: usize,
    /// `[block][list][most]`.
    tokens: Option<Buffer>,
    /// `[block][list]`.
    counts: Option<Buffer>,
    /// `[list][row]`, or `[row]` for all lists.
    starts: HostDeviceVec<u32>,
    /// Diagonals: `[list][word]`, a bit for each distance.
    distances: HostDeviceVec<u32>,
    /// Words of a list's diagonals; 0 if no list has any.
    distance_words: usize,
    own: OwnTokens,
    runs: Option<Buffer>,
    begins: Option<Buffer>,
}

impl BlockLists {
    /// Reserves memory for lists of up to `most` tokens, which must then be written. `starts` are `[list][row]`, or `[row]` for all lists,
    /// each at most the position of its row.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If `starts` has neither one number for each row nor one for each row of each list.
    pub fn resize(&mut self, gpu: &Gpu, shape: BlockShape, most: usize, starts: Vec<u32>) -> Result<(), GpuError> {
        let BlockShape { rows, lists, .. } = shape;
        assert!(
            starts.len() == rows || starts.len() == lists * rows,
            "{} starts do not fit {rows} rows and {lists} lists",
            starts.len()
        );
        (self.shape, self.most, self.end, self.distance_words) = (shape, most.max(1), 0, 0);
        self.own.clear();
        let count = shape.blocks() * lists;
        gpu.reserve(&mut self.tokens, (4 * count * self.most).next_multiple_of(LIST_STEP))?;
        gpu.reserve(&mut self.counts, 4 * count)?;
        self.starts.set(gpu, starts)
    }

    /// Sets the diagonals of each list, which are the same in all blocks: distances of at most `last`, the position of the last row.
    /// [`resize`](Self::resize) removes them.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the number of lists is wrong, or a distance is greater than `last`.
    pub fn set_diagonals(&mut self, gpu: &Gpu, diagonals: &[&[usize]], last: usize) -> Result<(), GpuError> {
        assert_eq!(diagonals.len(), self.shape.lists, "one set of diagonals for each list");
        self.distance_words = (last + 1).div_ceil(WORD_BITS);
        let mut words = vec![0; diagonals.len() * self.distance_words];
        for (words, distances) in words.chunks_exact_mut(self.distance_words).zip(diagonals) {
            distances.iter().for_each(|distance| words[distance / WORD_BITS] |= 1 << (distance % WORD_BITS));
        }
        self.distances.set(gpu, words)
    }

    /// Sets the tokens that single rows attend, `[block][list]`; `heads` are the number of query heads and their width. They must not
    /// include tokens that the row attends through its block. [`resize`](Self::resize) removes them.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the number of lists is wrong, or one has more rows than a block.
    pub fn set_own(&mut self, gpu: &Gpu, blocks: &[&PerRowTokens], heads: (usize, usize)) -> Result<(), GpuError> {
        self.own.set(gpu, &self.shape, blocks, heads)
    }

    /// Sets the tokens that the rows of each list share. They stay when the lists are [resized](Self::resize), until others are set.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a token has no weight or no group.
    pub fn set_shared(&mut self, gpu: &Gpu, lists: &[SharedList<'_>]) -> Result<(), GpuError> {
        self.own.set_shared(gpu, lists)
    }

    /// Like [`set_own`](Self::set_own), with slices of the [shared tokens](Self::set_shared) of each list.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the number of lists is wrong, one has more rows than a block, or a slice ends beyond the shared tokens.
    pub fn set_slices(&mut self, gpu: &Gpu, blocks: &[&PerRowSlices], heads: (usize, usize)) -> Result<(), GpuError> {
        self.own.set_slices(gpu, &self.shape, blocks, heads)
    }

    /// Writes the lists, `[block][list]`, each given as runs.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the number of lists is wrong, or one is longer than its memory.
    pub fn write(&mut self, gpu: &Gpu, lists: &[&[Run]]) -> Result<(), GpuError> {
        assert_eq!(lists.len(), self.shape.blocks() * self.shape.lists, "`lists` is not `[block][list]`");
        let ends = lists.iter().filter_map(|runs| runs.last());
        assert!(
            ends.map(|run| (run.place + run.count) as usize).all(|count| count <= self.most),
            "a list has more than {} tokens",
            self.most
        );
        let ends = lists.iter().scan(0, |sum, runs| {
            *sum += runs.len() as u32;
            Some(*sum)
        });
        let begins: Vec<u32> = std::iter::once(0).chain(ends).collect();
        let runs: Vec<Run> = lists.concat();
        self.end = runs.iter().map(|run| (run.first + run.count) as usize).max().unwrap_or(0);
        let [tokens, counts] = self.addresses();
        let of_begins = gpu.reserved(&mut self.begins, size_of_val(&begins[..]))?;
        gpu.upload_to(of_begins, 0, &begins)?;
        let of_runs = gpu.reserved(&mut self.runs, size_of_val(&runs[..]).max(1))?;
        gpu.upload_to(of_runs, 0, &runs)?;
        let (of_runs, of_begins) =
            (of_runs.address(0, size_of_val(&runs[..])), of_begins.address(0, size_of_val(&begins[..])));
        let most = self.most as u32;
        let function = gpu.function("attend_blocks", "write_runs")?;
        let mut launch = gpu.launch(&function);
        launch.arg(&of_runs).arg(&of_begins).arg(&tokens).arg(&most).arg(&counts);
        let grid =
            LaunchConfig { grid_dim: (lists.len() as u32, 1, 1), block_dim: (WRITERS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: runs and begins were uploaded, and every run ends within `most` tokens of its list.
        unsafe { launch.launch(grid) }.map_err(failed("writing lists"))
    }

    /// Copies one list to the host.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn download(&self, gpu: &Gpu, block: usize, list: usize) -> Result<Vec<u32>, GpuError> {
        let (index, mut count) = (block * self.shape.lists + list, [0u32]);
        gpu.download(reserved(&self.counts, "list lengths"), 4 * index, &mut count)?;
        let mut tokens = vec![0; count[0] as usize];
        gpu.download(reserved(&self.tokens, "block lists"), 4 * index * self.most, &mut tokens)?;
        Ok(tokens)
    }

    /// Device addresses of tokens and counts.
    fn addresses(&self) -> [u64; 2] {
        let count = self.shape.blocks() * self.shape.lists;
        let (tokens, counts) = (reserved(&self.tokens, "block lists"), reserved(&self.counts, "list lengths"));
        [tokens.address(0, 4 * count * self.most), counts.address(0, 4 * count)]
    }

    /// Bytes of the lists of a chunk.
    pub fn bytes(shape: &BlockShape, most: usize) -> usize {
        (4 * shape.blocks() * shape.lists * most).next_multiple_of(LIST_STEP)
    }
}

/// Mirrors the kernel's struct `Seen`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Seen {
    tokens: u64,
    counts: u64,
    starts: u64,
    distances: u64,
    partials: u64,
    most: u32,
    starts_stride: u32,
    block_rows: u32,
    lists: u32,
    distance_words: u32,
}

// SAFETY: laid out as the kernel's struct.
unsafe impl DeviceRepr for Seen {}

/// The candidates of a block of rows. Mirrors the kernel's struct `Searched`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Searched {
    /// The first candidate; the tokens before it are always attended.
    pub begin: u32,
    /// Number of candidates.
    pub tokens: u32,
    /// Number of key blocks to keep.
    pub keep: u32,
}

// SAFETY: three words, for which any bits are valid.
unsafe impl Plain for Searched {}

/// Which rows of a block are scored: of every `stride` rows, the first or the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampling {
    /// Distance between scored rows, at most the rows of a block.
    pub stride: usize,
    /// Whether the last of every `stride` rows is scored, not the first.
    pub last: bool,
}

/// Mirrors the kernel's struct `Sampling`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct DeviceSampling {
    rows: u32,
    stride: u32,
    last: u32,
}

// SAFETY: laid out as the kernel's struct.
unsafe impl DeviceRepr for DeviceSampling {}

/// A search for the lists of all blocks of a chunk.
pub struct PromptSearch<'a> {
    /// The key blocks and how they are represented. Its candidates are replaced by those of each block of rows.
    pub tree: Tree,
    /// Rows that are scored.
    pub sampling: Sampling,
    /// The candidates of each block of rows.
    pub blocks: &'a HostDeviceVec<Searched>,
}

impl PromptSearch<'_> {
    /// Bytes of shared memory, if `sharing` query heads share a list.
    fn shared_bytes(&self, block_rows: usize, sharing: usize, d: usize) -> usize {
        let keep = self.most_kept();
        self.sample_tiles(block_rows, sharing) * SAMPLES * (d + SAMPLE_GAP) * 2 + keep * KEPT_BYTES
    }

    /// The most key blocks that a search keeps. Blocks of rows that keep all candidates do not search.
    fn most_kept(&self) -> usize {
        let searching =
            self.blocks.numbers().iter().filter(|own| own.keep < own.tokens.div_ceil(self.tree.size as u32));
        searching.map(|own| own.keep as usize).max().unwrap_or(0)
    }

    /// Number of tiles of 16 rows that are sampled for a list.
    fn sample_tiles(&self, block_rows: usize, sharing: usize) -> usize {
        (block_rows.div_ceil(self.sampling.stride) * sharing).div_ceil(SAMPLES)
    }
}

impl Gpu {
    /// Whether the kernels support keys of this type and width.
    pub fn attends_blocks(&self, storage: Storage, d: usize) -> bool {
        storage != Storage::F32 && d.is_multiple_of(8) && d <= 256
    }

    /// Computes the attention of each row over what `seen` allows, into `out` `[row][head][d]`.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small, or the shape is not supported.
    pub fn attend_blocks(
        &self,
        rows: &Rows<'_>,
        cache: &Cache<'_>,
        seen: &BlockLists,
        out: &mut Buffer,
    ) -> Result<(), GpuError> {
        let BlockShape { block_rows, lists, .. } = seen.shape;
        assert!(
            self.attends_blocks(cache.storage, cache.d),
            "the kernel does not support heads of {} channels in {}",
            cache.d,
            cache.storage.name()
        );
        assert!(
            seen.shape.rows == rows.count && rows.first + rows.count <= cache.capacity,
            "{} rows from {} on do not fit the lists ({:?})",
            rows.count,
            rows.first,
            seen.shape
        );
        assert!(
            rows.heads.is_multiple_of(lists) && lists.is_multiple_of(cache.kv_heads),
            "{lists} lists do not fit {} query heads and {} KV heads",
            rows.heads,
            cache.kv_heads
        );
        assert!(seen.end <= rows.first + rows.count, "lists have tokens below {}, after the last row", seen.end);
        let words = (rows.first + rows.count).div_ceil(WORD_BITS);
        assert!(
            [0, words].contains(&seen.distance_words),
            "diagonals have {} words instead of {words}",
            seen.distance_words
        );
        assert!(
            seen.own.end() <= rows.first + rows.count,
            "rows have own tokens below {}, after the last row",
            seen.own.end()
        );
        let (queries, out) = addresses(rows, cache, out);
        let (keys, values) = (cache.key(0, 0), cache.value(0, 0));
        let partials = self.attend_own(rows, cache, queries, (&seen.own, &seen.shape))?;
        let [tokens, counts] = seen.addresses();
        let numbers = block_rows * rows.heads / lists;
        let has_lines = seen.distance_words > 0;
        let tile = if numbers <= TILES[0] && !has_lines { TILES[0] } else { TILES[1] };
        let width =
            [64, 128, 256].into_iter().find(|width| *width >= cache.d).expect("heads have at most 256 channels");
        let met_words = if has_lines { (rows.first + rows.count).div_ceil(TILE_KEYS * WORD_BITS) } else { 0 };
        let shared_bytes = ((tile + 2 * TILE_KEYS) * 2 * width + size_of::<u32>() * met_words) as u32;
        let storage = cache.storage.name();
        let name = match has_lines {
            true => format!("attend_lines_{storage}_{width}"),
            false => format!("attend_blocks_{storage}_{width}_{tile}"),
        };
        let function = self.with_shared("attend_blocks", &name, shared_bytes)?;
        let starts = seen.starts.numbers();
        let own = Seen {
            tokens,
            counts,
            starts: seen.starts.address(0..starts.len()),
            distances: if has_lines { seen.distances.address(0..lists * seen.distance_words) } else { 0 },
            partials,
            most: seen.most as u32,
            starts_stride: if starts.len() == rows.count { 0 } else { rows.count as u32 },
            block_rows: block_rows as u32,
            lists: lists as u32,
            distance_words: seen.distance_words as u32,
        };
        let scale = rows.scale;
        let (d, stride, kv_stride) = (cache.d as i32, rows.stride as i32, cache.head_stride() as i64);
        let (count, first) = (rows.count as i32, rows.first as i32);
        let (heads, kv_heads) = (rows.heads as i32, cache.kv_heads as i32);
        let mut launch = self.launch(&function);
        launch.arg(&queries).arg(&keys).arg(&values).arg(&out).arg(&d).arg(&stride).arg(&kv_stride);
        launch.arg(&count).arg(&first).arg(&heads).arg(&kv_heads).arg(&scale).arg(&own);
        let grid = LaunchConfig {
            grid_dim: ((seen.shape.blocks() * numbers.div_ceil(tile)) as u32, lists as u32, 1),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: shared_bytes,
        };
        // SAFETY: queries, cache and output are as large as `addresses` and the checks above require. Lists hold tokens below their `end`,
        // stretches end with the rows, diagonals have a bit for every distance up to the last row, and partials belong to these rows and
        // heads.
        unsafe { launch.launch(grid) }.map_err(failed("attending a prompt's blocks"))
    }

    /// Whether the device supports this search: the width of heads, and the shared memory for kept blocks.
    pub fn searches_prompt(
        &self,
        search: &PromptSearch<'_>,
        shape: &BlockShape,
        heads: usize,
        cache: &Cache<'_>,
    ) -> bool {
        let shared = search.shared_bytes(shape.block_rows, heads / shape.lists, cache.d);
        cache.storage.fits_tiles(cache.d) && shared + OWN_SHARED <= self.most_shared
    }

    /// Searches the key blocks for the rows of each block, and writes their tokens to `lists`, which must have room for them: first all
    /// tokens before the candidates, then those found. Adds two numbers for each list to `counters`, u64 `[list][2]` from byte
    /// `counters_at` on: the products computed, and the listed tokens times the rows that attend them.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small, or the device [does not support](Self::searches_prompt) the search.
    pub fn search_prompt(
        &self,
        rows: &Rows<'_>,
        cache: &Cache<'_>,
        search: &PromptSearch<'_>,
        lists: &mut BlockLists,
        (counters, counters_at): (&mut Buffer, usize),
    ) -> Result<(), GpuError> {
        let (shape, blocks, tree) = (lists.shape, search.blocks.numbers(), &search.tree);
        assert!(
            self.searches_prompt(search, &shape, rows.heads, cache),
            "the device does not support the search ({shape:?})"
        );
        assert!(
            blocks.len() == shape.blocks() && shape.rows == rows.count,
            "{} blocks and {} rows do not fit the lists ({shape:?})",
            blocks.len(),
            rows.count
        );
        assert!(
            (1..=tree.size).contains(&tree.stride),
            "the stride of a search is from 1 to the block's size: {tree:?}"
        );
        assert!(
            (1..=shape.block_rows).contains(&search.sampling.stride),
            "the stride of sampled rows is from 1 to {}: {:?}",
            shape.block_rows,
            search.sampling
        );
        for (block, own) in blocks.iter().enumerate() {
            let end = (own.begin + own.tokens) as usize;
            assert!(
                end <= rows.first + (block * shape.block_rows).min(rows.count),
                "candidates of block {block} end at {end}, after its first row"
            );
            let found = (own.keep as usize * tree.size).min(own.tokens as usize);
            assert!(
                own.begin as usize + found <= lists.most,
                "block {block} selects {found} tokens after {}, more than the {} of a list",
                own.begin,
                lists.most
            );
        }
        assert!(
            rows.heads.is_multiple_of(shape.lists) && shape.lists.is_multiple_of(cache.kv_heads),
            "{} lists do not fit {} query heads and {} KV heads",
            shape.lists,
            rows.heads,
            cache.kv_heads
        );
        assert!(
            rows.stride.is_multiple_of(8) && rows.stride >= rows.heads * cache.d,
            "rows of {} query heads, {} numbers apart, do not fit the kernel",
            rows.heads,
            rows.stride
        );
        let numbers = (rows.count - 1) * rows.stride + rows.heads * cache.d;
        let queries = rows.queries.address(0, numbers * cache.storage.bytes());
        lists.end = blocks.iter().map(|own| (own.begin + own.tokens) as usize).max().unwrap_or(0);
        let [tokens, counts] = lists.addresses();
        let counters = counters.address(counters_at, 16 * shape.lists);
        let sharing = rows.heads / shape.lists;
        let shared_bytes = search.shared_bytes(shape.block_rows, sharing, cache.d) as u32;
        let (keep, tiles) = (search.most_kept() as u32, search.sample_tiles(shape.block_rows, sharing) as u32);
        let name = format!("search_prompt_{}_{}", cache.storage.name(), cache.d);
        let function = self.with_shared("tree_prompt", &name, shared_bytes)?;
        let tree = DeviceTree::of(tree);
        let Sampling { stride, last } = search.sampling;
        let sampling = DeviceSampling { rows: shape.block_rows as u32, stride: stride as u32, last: u32::from(last) };
        let (row_stride, count, heads) = (rows.stride as u32, rows.count as u32, rows.heads as u32);
        let (keys, kv_stride, kv_heads) = (cache.key(0, 0), cache.head_stride(), cache.kv_heads as u32);
        let (searched, most) = (search.blocks.address(0..blocks.len()), lists.most as u32);
        let mut launch = self.launch(&function);
        launch.arg(&queries).arg(&row_stride).arg(&count).arg(&heads).arg(&keys).arg(&kv_stride).arg(&kv_heads);
        launch.arg(&tree).arg(&sampling).arg(&searched).arg(&keep).arg(&tiles);
        launch.arg(&tokens).arg(&most).arg(&counts).arg(&counters);
        let grid = LaunchConfig {
            grid_dim: (shape.blocks() as u32, shape.lists as u32, 1),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: shared_bytes,
        };
        // SAFETY: queries, keys, lists and counters are as long as checked, and the candidates lie before the rows.
        unsafe { launch.launch(grid) }.map_err(failed("searching for a prompt's blocks"))
    }
}

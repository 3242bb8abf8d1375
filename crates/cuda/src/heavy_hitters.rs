//! The tokens that runs of an evicting method (H2O) hold on the device: heavy hitters and a window, with the attention each has received.

use std::collections::HashSet;
use std::ops::Range;

use cudarc::driver::{DeviceRepr, LaunchConfig};

use super::buffer::reserved;
use super::host_device_vec::HostDeviceVec;
use super::queries::Queries;
use super::token_lists::{TokenListLayout, TokenLists};
use super::{Buffer, Cache, Gpu, GpuError, failed};

/// Threads of a block, for each of the three kernels.
const EVICTING: u32 = 1024;
const WEIGHING: u32 = 128;
const ADDING: usize = 256;
/// Tokens of a tile, and the most query heads, whose logits a block computes.
const TILE: usize = 64;
const MOST_HEADS: usize = 8;
/// The widest head.
const WIDEST: usize = 256;
/// Words of a row as kernels read it; and how many steps' rows are kept on the device: more than a model has layers.
const ROW_WORDS: usize = 7;
const KEPT: usize = 128;

/// What a list holds when a run begins: heavy hitters with their masses, and the masses of the window, oldest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeldList {
    /// Heavy hitters.
    pub tokens: Vec<u32>,
    /// The attention that each has received.
    pub masses: Vec<f32>,
    /// The attention that the tokens of the window have received.
    pub window: Vec<f32>,
}

/// The most heavy hitters in a list, and the length of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldSizes {
    /// The most heavy hitters in a list.
    pub budget: usize,
    /// Number of tokens of the window; at least 1.
    pub window: usize,
}

/// What a run holds at a layer, with a list for each query head or KV head: `[list]` counts of heavy hitters,
/// `[list][capacity]` their tokens and masses, and `[list][window]` masses of the window, with token `t` at `t % window`.
#[derive(Debug)]
pub struct HeldTokens {
    buffer: Buffer,
    sizes: HeldSizes,
    lists: usize,
    /// The number of heavy hitters that each list has memory for.
    capacity: usize,
}

/// A row of a step, with its run.
#[derive(Debug, Clone, Copy)]
pub struct HoldingRow<'a> {
    /// What the run holds.
    pub held: &'a HeldTokens,
    /// The run's keys after the prefix.
    pub tail: Cache<'a>,
    /// Number of tokens in context, the row's own included.
    pub total: usize,
}

/// The prefix that the rows share.
#[derive(Debug, Clone, Copy)]
pub struct HoldingPrefix<'a> {
    /// Its keys.
    pub keys: Cache<'a>,
    /// Number of its tokens.
    pub tokens: usize,
    /// Number of sink tokens at its beginning, which are always held.
    pub sink: usize,
    /// The factor that scales logits.
    pub scale: f32,
}

/// Memory for intermediate results between the launches of a step.
#[derive(Debug, Default)]
pub struct HoldingWorkspace {
    /// The rows uploaded for recent steps. A step with such rows needs no upload, so it can be recorded.
    rows: Vec<HostDeviceVec<u64>>,
    /// The index of the entry that is overwritten next.
    next: usize,
    logits: Option<Buffer>,
    tiles: Option<Buffer>,
}

impl HeldTokens {
    /// Uploads what each list holds after a prefix of `tokens` tokens, with room for one token more.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a list has too many heavy hitters, or not one mass for each token.
    pub fn upload(gpu: &Gpu, sizes: HeldSizes, tokens: usize, lists: &[HeldList]) -> Result<Self, GpuError> {
        let HeldSizes { budget, window } = sizes;
        let first = tokens - window;
        let most = lists.iter().map(|list| list.tokens.len()).max().unwrap_or(0);
        assert!(
            most <= budget && window > 0,
            "a list has {most} heavy hitters, the budget is {budget}, the recent window {window}"
        );
        let capacity = budget.min(most + 1);
        let counts = lists.iter().map(|list| list.tokens.len() as u32);
        let padded = |numbers: Vec<u32>| numbers.into_iter().chain(std::iter::repeat(0)).take(capacity);
        let of_tokens = lists.iter().flat_map(|list| padded(list.tokens.clone()));
        let bits = |masses: &[f32]| masses.iter().map(|mass| mass.to_bits()).collect::<Vec<u32>>();
        let of_masses = lists.iter().flat_map(|list| {
            assert!(
                list.masses.len() == list.tokens.len() && list.window.len() == window,
                "one mass for each token of a list"
            );
            padded(bits(&list.masses))
        });
        let of_window = lists.iter().flat_map(|list| {
            let mut places = bits(&list.window);
            places.rotate_right(first % window);
            places
        });
        let words: Vec<u32> = counts.chain(of_tokens).chain(of_masses).chain(of_window).collect();
        Ok(Self { buffer: gpu.upload(&words)?, sizes, lists: lists.len(), capacity })
    }

    /// Bytes of `lists` lists with room for `capacity` heavy hitters.
    pub fn bytes_of(lists: usize, capacity: usize, window: usize) -> usize {
        4 * lists * (1 + 2 * capacity + window)
    }

    /// The most heavy hitters in a list, and the length of the window.
    pub fn sizes(&self) -> HeldSizes {
        self.sizes
    }

    /// Copies the held tokens to new memory, for a run that continues from here to `total` tokens in context.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn with_room(&self, gpu: &Gpu, total: usize) -> Result<Self, GpuError> {
        let Self { ref buffer, sizes, lists, capacity: old } = *self;
        let capacity =
            if self.has_room(total) { old } else { sizes.budget.min(self.needed(total).next_power_of_two()) };
        let mut to = gpu.alloc(Self::bytes_of(lists, capacity, sizes.window))?;
        gpu.copy(buffer, 0, &mut to, 0, 4 * lists)?;
        let parts = if capacity == old { 1 } else { 2 * lists };
        let (from_each, to_each) = (2 * lists * old / parts, 2 * lists * capacity / parts);
        for part in 0..parts {
            let (from, at) = (4 * (lists + part * from_each), 4 * (lists + part * to_each));
            gpu.copy(buffer, from, &mut to, at, 4 * from_each)?;
        }
        let (from, at) = (4 * lists * (1 + 2 * old), 4 * lists * (1 + 2 * capacity));
        gpu.copy(buffer, from, &mut to, at, 4 * lists * sizes.window)?;
        Ok(Self { buffer: to, sizes, lists, capacity })
    }

    /// Whether there is memory for all that a run can hold with `total` tokens in context.
    pub fn has_room(&self, total: usize) -> bool {
        self.capacity >= self.needed(total)
    }

    fn needed(&self, total: usize) -> usize {
        self.sizes.budget.min(total.saturating_sub(self.sizes.window))
    }

    /// Returns what each list holds with `total` tokens in context, heavy hitters in ascending order.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn download(&self, gpu: &Gpu, total: usize) -> Result<Vec<HeldList>, GpuError> {
        let Self { lists, capacity, sizes: HeldSizes { window, .. }, .. } = *self;
        let mut words = vec![0u32; Self::bytes_of(lists, capacity, window) / 4];
        gpu.download(&self.buffer, 0, &mut words)?;
        let (counts, words) = words.split_at(lists);
        let (tokens, words) = words.split_at(lists * capacity);
        let (masses, places) = words.split_at(lists * capacity);
        let list = |list: usize| {
            let held = list * capacity..list * capacity + counts[list] as usize;
            let mut heavy: Vec<(u32, u32)> =
                tokens[held.clone()].iter().copied().zip(masses[held].iter().copied()).collect();
            heavy.sort_unstable();
            let mut places = places[list * window..][..window].to_vec();
            places.rotate_left((total - window) % window);
            HeldList {
                tokens: heavy.iter().map(|(token, _)| *token).collect(),
                masses: heavy.iter().map(|(_, mass)| f32::from_bits(*mass)).collect(),
                window: places.into_iter().map(f32::from_bits).collect(),
            }
        };
        Ok((0..lists).map(list).collect())
    }

    /// Returns the number of distinct heavy hitters in the lists of each KV head, which are consecutive, summed over `kv_heads` KV heads.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn count(&self, gpu: &Gpu, kv_heads: usize) -> Result<usize, GpuError> {
        // The window's order does not matter here.
        let lists = self.download(gpu, self.sizes.window)?;
        let different = |lists: &[HeldList]| lists.iter().flat_map(|list| &list.tokens).collect::<HashSet<_>>().len();
        Ok(lists.chunks_exact(self.lists / kv_heads).map(different).sum())
    }

    fn address(&self) -> u64 {
        self.buffer.address(0, Self::bytes_of(self.lists, self.capacity, self.sizes.window))
    }
}

impl HoldingWorkspace {
    /// Uploads the words of a step's rows, unless they are on the device already, and returns their index.
    fn send(&mut self, gpu: &Gpu, words: Vec<u64>) -> Result<usize, GpuError> {
        if let Some(known) = self.rows.iter().position(|rows| rows.numbers() == words) {
            return Ok(known);
        }
        let at = self.next;
        self.next = (at + 1) % KEPT;
        if at == self.rows.len() {
            self.rows.push(HostDeviceVec::default());
        }
        self.rows[at].set(gpu, words)?;
        Ok(at)
    }
}

/// Returns, for each row, how many earlier rows belong to the same run.
fn rounds(rows: &[HoldingRow<'_>]) -> Vec<usize> {
    let run = |row: &HoldingRow<'_>| row.held.buffer.id();
    (0..rows.len()).map(|i| rows[..i].iter().filter(|row| run(row) == run(&rows[i])).count()).collect()
}

impl Gpu {
    /// Whether the kernels support keys of this width.
    pub fn weighs_held(d: usize) -> bool {
        d.is_multiple_of(8) && d <= WIDEST
    }

    /// Runs a step for `rows`; rows of the same run are processed one after the other. The token that leaves the window competes with the
    /// heavy hitters; these become the row's selected tokens; and the weights of the row's queries over sink, heavy hitters and window are
    /// added to the masses.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the runs' sizes differ, one has no room for another token, or queries, prefix and tails do not fit the rows.
    pub fn evict_and_weigh(
        &self,
        queries: &Queries<'_>,
        prefix: &HoldingPrefix<'_>,
        rows: &[HoldingRow<'_>],
        lists: &mut TokenLists,
        workspace: &mut HoldingWorkspace,
    ) -> Result<(), GpuError> {
        let Some(HoldingRow { held, .. }) = rows.first() else { return Ok(()) };
        let (HeldSizes { budget, window }, in_row) = (held.sizes, held.lists);
        let (d, storage, kv_heads) = (prefix.keys.d, prefix.keys.storage, prefix.keys.kv_heads);
        assert!(
            Self::weighs_held(d) && queries.stride.is_multiple_of(8),
            "the kernel does not support heads of {d} channels, or rows {} numbers apart",
            queries.stride
        );
        assert!(
            in_row == queries.heads || in_row == kv_heads,
            "{in_row} lists in a row do not fit {} query heads and {kv_heads} KV heads",
            queries.heads
        );
        assert!(
            rows.len() <= queries.rows.numbers().len() && prefix.sink + window <= prefix.tokens,
            "{} rows of queries do not fit {} rows, or a prefix of {} tokens is too short for sink and window",
            queries.rows.numbers().len(),
            rows.len(),
            prefix.tokens
        );
        assert!(
            prefix.tokens <= prefix.keys.capacity,
            "a prefix of {} tokens does not fit a cache of {}",
            prefix.tokens,
            prefix.keys.capacity
        );
        let most = rows.iter().map(|row| row.held.capacity).max().unwrap_or(0);
        let ends: Vec<usize> = rows.iter().map(|row| row.total - window).collect();
        lists.resize(self, TokenListLayout::new(in_row, most), ends)?;
        let rounds = rounds(rows);
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|i| rounds[*i]);
        let words = |i: &usize| -> [u64; ROW_WORDS] {
            let HoldingRow { held, tail, total } = rows[*i];
            assert!(
                held.sizes == (HeldSizes { budget, window }) && held.lists == in_row && held.has_room(total),
                "rows differ in budget, window or lists, or one has no room for another token"
            );
            assert!(
                total > prefix.tokens && total <= prefix.tokens + tail.capacity,
                "{total} tokens in context do not fit {} of the prefix and at most {} of the tail",
                prefix.tokens,
                tail.capacity
            );
            assert!(
                tail.kv_heads == kv_heads && tail.d == d && tail.storage == storage,
                "the tail's keys differ from the prefix's in heads, width or type"
            );
            let query = queries.rows.numbers()[*i];
            let numbers = [held.capacity, total, query as usize, *i].map(|number| number as u64);
            [held.address(), numbers[0], tail.key(0, 0), tail.head_stride(), numbers[1], numbers[2], numbers[3]]
        };
        let at = workspace.send(self, order.iter().flat_map(words).collect())?;
        let step = Holding { queries, prefix, sizes: HeldSizes { budget, window }, in_row, most, at };
        for round in order.chunk_by(|a, b| rounds[*a] == rounds[*b]) {
            let first = order.iter().position(|i| *i == round[0]).expect("a round is a part of `order`");
            self.hold(&step, first..first + round.len(), lists, workspace)?;
        }
        Ok(())
    }

    /// Launches the three kernels for some rows, which all belong to different runs.
    fn hold(
        &self,
        step: &Holding<'_>,
        rows: Range<usize>,
        lists: &TokenLists,
        workspace: &mut HoldingWorkspace,
    ) -> Result<(), GpuError> {
        let Holding { queries, prefix, sizes: HeldSizes { budget, window }, in_row, most, at } = *step;
        let (heads, kv_heads, d, storage) = (queries.heads, prefix.keys.kv_heads, prefix.keys.d, prefix.keys.storage);
        let (group, ends, count) = (heads / kv_heads, prefix.sink + window, rows.len() as u32);
        let (end_tiles, heavy_tiles) = (ends.div_ceil(TILE), most.div_ceil(TILE));
        let (stride, tile_stride) = ((ends + most).next_multiple_of(4), end_tiles + heavy_tiles);
        self.reserve(&mut workspace.logits, 4 * rows.len() * heads * stride)?;
        self.reserve(&mut workspace.tiles, 8 * rows.len() * heads * tile_stride)?;
        let logits = Logits {
            logits: reserved(&workspace.logits, "logits").address(0, 4 * rows.len() * heads * stride),
            tiles: reserved(&workspace.tiles, "sums of tiles").address(0, 8 * rows.len() * heads * tile_stride),
            stride: stride as u64,
            tile_stride: tile_stride as u32,
        };
        let rows = workspace.rows[at].address(ROW_WORDS * rows.start..ROW_WORDS * rows.end);
        let [picks, counts] = lists.addresses(0);
        let [sink, budget, width, most, prefix_tokens] =
            [prefix.sink, budget, window, most, prefix.tokens].map(|number| number as u32);
        let function = self.function("heavy_hitters", "evict")?;
        let mut launch = self.launch(&function);
        launch.arg(&rows).arg(&budget).arg(&width).arg(&picks).arg(&most).arg(&counts);
        let grid =
            LaunchConfig { grid_dim: (in_row as u32, count, 1), block_dim: (EVICTING, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: rows, the memory of each run, and the lists are as long as the caller checked.
        unsafe { launch.launch(grid) }.map_err(failed("evicting tokens"))?;

        let lanes = d.next_power_of_two().max(64) / 8;
        let function = self.function("heavy_hitters", &format!("weigh_held_{}_{lanes}", storage.name()))?;
        let from = queries.address(0..queries.rows.numbers().len(), d, storage);
        let (query_stride, keys, key_stride) =
            (queries.stride as u64, prefix.keys.key(0, 0), prefix.keys.head_stride());
        let [all_heads, all_lists, kv, d_of] = [heads, in_row, kv_heads, d].map(|number| number as i32);
        let scale = prefix.scale;
        let blocks = end_tiles + in_row / kv_heads * heavy_tiles;
        let mut launch = self.launch(&function);
        launch.arg(&rows).arg(&from).arg(&query_stride).arg(&all_heads).arg(&all_lists).arg(&kv).arg(&keys);
        launch
            .arg(&key_stride)
            .arg(&prefix_tokens)
            .arg(&sink)
            .arg(&most)
            .arg(&width)
            .arg(&d_of)
            .arg(&scale)
            .arg(&logits);
        let grid = (blocks as u32, (kv_heads * group.div_ceil(MOST_HEADS)) as u32, count);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (WEIGHING, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: queries, keys of prefix and tails, and the memory for logits are as long as checked by the caller and made above; held
        // tokens are below the row's total.
        unsafe { launch.launch(grid) }.map_err(failed("scoring kept tokens"))?;

        let function = self.function("heavy_hitters", "add_weights")?;
        let mut launch = self.launch(&function);
        launch.arg(&rows).arg(&all_heads).arg(&sink).arg(&most).arg(&width).arg(&logits);
        let blocks = (window + most as usize).div_ceil(ADDING) as u32;
        let grid = LaunchConfig {
            grid_dim: (blocks, in_row as u32, count),
            block_dim: (ADDING as u32, 1, 1),
            shared_mem_bytes: (8 * heads / in_row) as u32,
        };
        // SAFETY: as for the launch above.
        unsafe { launch.launch(grid) }.map_err(failed("adding up attention weights"))
    }
}

/// What all rows of a step share.
struct Holding<'a> {
    queries: &'a Queries<'a>,
    prefix: &'a HoldingPrefix<'a>,
    sizes: HeldSizes,
    in_row: usize,
    most: usize,
    /// The index of its rows in the workspace.
    at: usize,
}

/// Addresses of logits and of the tiles' results. Mirrors the kernels' struct `Logits`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Logits {
    logits: u64,
    tiles: u64,
    stride: u64,
    tile_stride: u32,
}

// SAFETY: only numbers, laid out as the kernels' struct.
unsafe impl DeviceRepr for Logits {}

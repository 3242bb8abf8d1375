//! Choosing tokens on the device: scores of candidates, the largest of them, and counting what was chosen.
//!
//! What comes out are [`TokenLists`], which [`Attention`](super::Attention) attends. The kernels can only choose candidates, so
//! nobody has to look at the lists.

use std::ops::Range;

use cudarc::driver::{LaunchConfig, PushKernelArg};

use super::launch::Cache;
use super::{Buffer, Gpu, GpuError, Plain, Storage, failed};

/// Candidates that a block of a scoring kernel takes.
const TILE: usize = 256;
/// Most query heads that one takes.
const MOST_QUERIES: usize = 8;
/// The same where tensor cores score.
const MMA_TILE: usize = 512;
/// Queries of all rows that one product on tensor cores takes.
const MMA_QUERIES: usize = 16;
/// Threads of a block that chooses, or counts.
const THREADS: u32 = 1024;
/// A list of scores takes a multiple of so many.
const WIDE: usize = 4;
/// Lists are allocated in steps of so many bytes, so that those that grow with the context do not move at every step.
const LIST_STEP: usize = 1 << 18;

/// Numbers that host and device hold alike, sent when they change.
#[derive(Debug, Default)]
pub struct Mirrored<T> {
    host: Vec<T>,
    device: Option<Buffer>,
}

impl<T: Plain + PartialEq> Mirrored<T> {
    /// Makes both hold `numbers`.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn set(&mut self, gpu: &Gpu, numbers: Vec<T>) -> Result<(), GpuError> {
        if self.host == numbers && self.device.is_some() {
            return Ok(());
        }
        self.host.clear();
        let bytes = size_of_val(numbers.as_slice());
        gpu.reserve(&mut self.device, bytes)?;
        let Some(device) = &mut self.device else { unreachable!("it was reserved") };
        gpu.upload_to(device, 0, &numbers)?;
        self.host = numbers;
        Ok(())
    }

    /// What both hold.
    pub fn numbers(&self) -> &[T] {
        &self.host
    }

    /// Where some of them are on the device.
    fn address(&self, range: Range<usize>) -> u64 {
        assert!(range.end <= self.host.len(), "{range:?} of {} numbers", self.host.len());
        let device = self.device.as_ref().expect("what is used was set");
        device.address(range.start * size_of::<T>(), range.len() * size_of::<T>())
    }
}

/// Queries of some rows of a step.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    /// Rotated queries `[row][stride]`, head `h` at `h * d`.
    pub queries: &'a Buffer,
    /// Numbers from one row to the next.
    pub stride: usize,
    /// Query heads.
    pub heads: usize,
    /// The rows.
    pub rows: &'a Mirrored<u32>,
}

/// Channel-wise bounds of pages of keys, `[kv_head][page][d]` each.
#[derive(Debug, Clone, Copy)]
pub struct PageBounds<'a> {
    /// Minima.
    pub lower: &'a Buffer,
    /// Maxima.
    pub upper: &'a Buffer,
    /// Pages of a KV head.
    pub pages: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub d: usize,
    /// Type of the numbers.
    pub storage: Storage,
}

impl PageBounds<'_> {
    /// Bytes of either bounds.
    pub fn bytes(&self) -> usize {
        self.kv_heads * self.pages * self.d * self.storage.bytes()
    }
}

/// Scores of candidates, `[row][list][stride]` f32.
#[derive(Debug, Default)]
pub struct Scores {
    buffer: Option<Buffer>,
    rows: usize,
    lists: usize,
    columns: usize,
}

impl Scores {
    /// Makes room for `lists` lists of `columns` scores in each of `rows` rows.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn resize(&mut self, gpu: &Gpu, rows: usize, lists: usize, columns: usize) -> Result<(), GpuError> {
        (self.rows, self.lists, self.columns) = (rows, lists, columns);
        gpu.reserve(&mut self.buffer, rows * Self::row_bytes(lists, columns))
    }

    /// Copies one list to the host.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn download(&self, gpu: &Gpu, row: usize, list: usize) -> Result<Vec<f32>, GpuError> {
        let mut scores = vec![0.0; self.columns];
        let buffer = self.buffer.as_ref().expect("there is room");
        gpu.download(buffer, 4 * (row * self.lists + list) * self.stride(), &mut scores)?;
        Ok(scores)
    }

    /// Copies scores `[row][list][column]` to the device.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn upload(&mut self, gpu: &Gpu, scores: &[f32]) -> Result<(), GpuError> {
        assert_eq!(scores.len(), self.rows * self.lists * self.columns, "a score for each column");
        let mut padded = vec![f32::NAN; self.rows * self.lists * self.stride()];
        let columns = self.columns.max(1);
        let lists = scores.chunks_exact(columns).zip(padded.chunks_exact_mut(self.stride().max(1)));
        lists.for_each(|(from, to)| to[..columns].copy_from_slice(from));
        gpu.upload_to(self.buffer.as_mut().expect("there is room"), 0, &padded)
    }

    /// Scores from one list to the next.
    fn stride(&self) -> usize {
        Self::stride_of(self.columns)
    }

    fn stride_of(columns: usize) -> usize {
        columns.next_multiple_of(WIDE)
    }

    /// Bytes of one row of so many lists.
    pub fn row_bytes(lists: usize, columns: usize) -> usize {
        4 * lists * Self::stride_of(columns)
    }

    fn address(&self) -> u64 {
        let buffer = self.buffer.as_ref().expect("there is room");
        buffer.address(0, 4 * self.rows * self.lists * self.stride())
    }
}

/// Lists of tokens that a device chose, `[row][list][most]`, and how many each has.
#[derive(Debug, Default)]
pub struct TokenLists {
    tokens: Option<Buffer>,
    counts: Option<Buffer>,
    rows: usize,
    lists: usize,
    most: usize,
    /// All tokens lie below this one.
    end: usize,
}

/// One of [`TokenLists`].
#[derive(Debug, Clone, Copy)]
pub struct TokenList<'a> {
    lists: &'a TokenLists,
    index: usize,
}

impl TokenLists {
    /// Makes room for `lists` lists of up to `most` tokens below `end` in each of `rows` rows, all of which a launcher then
    /// has to write.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn resize(&mut self, gpu: &Gpu, rows: usize, lists: usize, most: usize, end: usize) -> Result<(), GpuError> {
        (self.rows, self.lists, self.most, self.end) = (rows, lists, most, end);
        gpu.reserve(&mut self.tokens, (4 * rows * lists * most).next_multiple_of(LIST_STEP))?;
        gpu.reserve(&mut self.counts, (4 * rows * lists).next_multiple_of(WIDE))
    }

    /// Lists of a row.
    pub fn lists(&self) -> usize {
        self.lists
    }

    /// Tokens that a list has at most.
    pub fn most(&self) -> usize {
        self.most
    }

    /// A list of a row.
    ///
    /// # Panics
    /// If there is none.
    pub fn list(&self, row: usize, list: usize) -> TokenList<'_> {
        assert!(row < self.rows && list < self.lists, "list {list} of row {row}");
        TokenList { lists: self, index: row * self.lists + list }
    }

    /// Copies one list to the host.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn download(&self, gpu: &Gpu, row: usize, list: usize) -> Result<Vec<u32>, GpuError> {
        let (mut count, index) = ([0u32], self.list(row, list).index);
        let (tokens, counts) = (self.tokens.as_ref().expect("there is room"), self.counts.as_ref());
        gpu.download(counts.expect("there is room"), 4 * index, &mut count)?;
        let mut list = vec![0; count[0] as usize];
        gpu.download(tokens, 4 * index * self.most, &mut list)?;
        Ok(list)
    }

    /// Addresses of tokens and counts from a row on.
    fn addresses(&self, row: usize) -> [u64; 2] {
        let (rows, first) = (self.rows - row, row * self.lists);
        let (tokens, counts) = (self.tokens.as_ref().expect("there is room"), self.counts.as_ref());
        let counts = counts.expect("there is room").address(4 * first, 4 * rows * self.lists);
        [tokens.address(4 * first * self.most, 4 * rows * self.lists * self.most), counts]
    }
}

impl TokenList<'_> {
    /// Tokens that it has at most.
    pub fn most(&self) -> usize {
        self.lists.most
    }

    /// All its tokens lie below this one.
    pub(super) fn end(&self) -> usize {
        self.lists.end
    }

    /// Where its tokens and their count are.
    pub(super) fn addresses(&self) -> [u64; 2] {
        let TokenLists { tokens, counts, most, .. } = self.lists;
        let (tokens, counts) = (tokens.as_ref().expect("there is room"), counts.as_ref().expect("there is room"));
        [tokens.address(4 * self.index * most, 4 * most), counts.address(4 * self.index, 4)]
    }
}

/// How the scores of a group's heads become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Added, in the order of heads.
    Sum,
    /// The largest.
    Max,
}

/// Pages of equal size, cut over some tokens; the last one may be shorter.
#[derive(Debug, Clone)]
pub struct Pages {
    /// All tokens.
    pub tokens: Range<usize>,
    /// Tokens a page.
    pub size: usize,
}

impl Pages {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.tokens.len().div_ceil(self.size)
    }
}

/// What scoring kernels read: addresses of rows `[d]`, and where they lie.
struct Scored {
    kind: &'static str,
    upper: u64,
    lower: u64,
    head_stride: u64,
    columns: usize,
    kv_heads: usize,
    d: usize,
    storage: Storage,
}

impl Gpu {
    /// `q·k` of the queries of some rows with the keys of `tokens`, into lists by query head.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn score_keys(
        &self,
        queries: &Queries<'_>,
        rows: Range<usize>,
        keys: &Cache<'_>,
        tokens: Range<usize>,
        out: &mut Scores,
    ) -> Result<(), GpuError> {
        assert!(tokens.end <= keys.capacity, "tokens up to {} of {}", tokens.end, keys.capacity);
        let scored = Scored {
            kind: "dots",
            upper: keys.key(0, tokens.start),
            lower: 0,
            head_stride: keys.head_stride(),
            columns: tokens.len(),
            kv_heads: keys.kv_heads,
            d: keys.d,
            storage: keys.storage,
        };
        self.score(queries, rows, &scored, out)
    }

    /// The largest `q·k` that a key within each page's bounds can have, into lists by query head.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn score_bounds(
        &self,
        queries: &Queries<'_>,
        rows: Range<usize>,
        bounds: &PageBounds<'_>,
        out: &mut Scores,
    ) -> Result<(), GpuError> {
        let PageBounds { lower, upper, pages, kv_heads, d, storage } = *bounds;
        let scored = Scored {
            kind: "bounds",
            upper: upper.address(0, bounds.bytes()),
            lower: lower.address(0, bounds.bytes()),
            head_stride: (pages * d) as u64,
            columns: pages,
            kv_heads,
            d,
            storage,
        };
        self.score(queries, rows, &scored, out)
    }

    fn score(
        &self,
        queries: &Queries<'_>,
        rows: Range<usize>,
        scored: &Scored,
        out: &mut Scores,
    ) -> Result<(), GpuError> {
        let Scored { kind, upper, lower, head_stride, columns, kv_heads, d, storage } = *scored;
        let (heads, stride) = (queries.heads, queries.stride);
        assert!(d.is_multiple_of(8) && d <= 256 && stride.is_multiple_of(8), "heads of {d} channels");
        assert!(heads.is_multiple_of(kv_heads), "{heads} query heads for {kv_heads}");
        out.resize(self, rows.len(), heads, columns)?;
        if rows.is_empty() || columns == 0 {
            return Ok(());
        }
        let last = queries.rows.numbers()[rows.clone()].iter().max().map_or(0, |row| *row as usize);
        let from = queries.queries.address(0, (last * stride + heads * d) * storage.bytes());
        let group = heads / kv_heads;
        if storage.fits_tiles(d) && group <= MMA_QUERIES {
            return self.score_tiles(queries, rows, scored, from, out);
        }
        let taken = group.min(MOST_QUERIES).next_power_of_two();
        let lanes = d.next_power_of_two().max(64) / 8;
        let function = self.function("scores", &format!("{kind}_{}_{taken}_{lanes}", storage.name()))?;
        let grid = (columns.div_ceil(TILE) as u32, (kv_heads * group.div_ceil(taken)) as u32, rows.len() as u32);
        let (list, to) = (queries.rows.address(rows), out.address());
        let (row_stride, out_stride) = (stride as u64, out.stride() as u64);
        let (heads, group, columns, d) = (heads as i32, group as i32, columns as u32, d as i32);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&list).arg(&from).arg(&row_stride).arg(&heads).arg(&group).arg(&upper).arg(&lower);
        launch.arg(&head_stride).arg(&columns).arg(&d).arg(&to).arg(&out_stride);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (128, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: rows of queries, what is scored, and the scores lie inside buffers as checked above and by the callers.
        unsafe { launch.launch(grid) }.map(drop).map_err(failed("scoring"))
    }

    /// [`score`](Self::score) on tensor cores; queries begin at `from`, and there is room for the scores.
    fn score_tiles(
        &self,
        queries: &Queries<'_>,
        rows: Range<usize>,
        scored: &Scored,
        from: u64,
        out: &Scores,
    ) -> Result<(), GpuError> {
        let Scored { kind, upper, lower, head_stride, columns, kv_heads, d, storage } = *scored;
        let group = queries.heads / kv_heads;
        let function = self.function("score_tiles", &format!("{kind}_tiles_{}_{d}", storage.name()))?;
        let tiles = rows.len().div_ceil(MMA_QUERIES / group);
        let grid = (columns.div_ceil(MMA_TILE) as u32, kv_heads as u32, tiles as u32);
        let (count, list, to) = (rows.len() as u32, queries.rows.address(rows), out.address());
        let (row_stride, out_stride) = (queries.stride as u64, out.stride() as u64);
        let (heads, group, columns) = (queries.heads as i32, group as i32, columns as u32);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&list).arg(&count).arg(&from).arg(&row_stride).arg(&heads).arg(&group).arg(&upper).arg(&lower);
        launch.arg(&head_stride).arg(&columns).arg(&to).arg(&out_stride);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (128, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the caller has checked rows of queries, what is scored, and the scores.
        unsafe { launch.launch(grid) }.map(drop).map_err(failed("scoring"))
    }

    /// What the scores of the query heads of each of `kv_heads` groups reduce to, into lists by KV head.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn reduce_scores(
        &self,
        scores: &Scores,
        kv_heads: usize,
        reduction: Reduction,
        out: &mut Scores,
    ) -> Result<(), GpuError> {
        let Scores { rows, lists, columns, .. } = *scores;
        assert!(lists.is_multiple_of(kv_heads), "{lists} lists for {kv_heads} KV heads");
        out.resize(self, rows, kv_heads, columns)?;
        if rows == 0 || columns == 0 {
            return Ok(());
        }
        let function = self.function("scores", "reduce_scores")?;
        let (from, to, stride) = (scores.address(), out.address(), scores.stride() as u64);
        let grid = (columns.div_ceil(256) as u32, kv_heads as u32, rows as u32);
        let (group, columns, largest) =
            ((lists / kv_heads) as i32, columns as u32, i32::from(reduction == Reduction::Max));
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&from).arg(&stride).arg(&group).arg(&columns).arg(&largest).arg(&to);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (256, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: both hold `rows` rows of their lists, of one stride.
        unsafe { launch.launch(grid) }.map(drop).map_err(failed("reducing scores"))
    }

    /// Bounds of the pages of a layer's keys, into `lower` and `upper` as [`PageBounds`] has them.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn page_bounds(
        &self,
        keys: &Cache<'_>,
        pages: &Pages,
        lower: &mut Buffer,
        upper: &mut Buffer,
    ) -> Result<(), GpuError> {
        let Cache { capacity, kv_heads, d, storage, .. } = *keys;
        assert!(pages.tokens.end <= capacity && pages.size > 0 && d <= 1024, "pages of {capacity} tokens");
        if pages.count() == 0 {
            return Ok(());
        }
        let bytes = kv_heads * pages.count() * d * storage.bytes();
        let (lower, upper) = (lower.address(0, bytes), upper.address(0, bytes));
        let (from, stride) = (keys.key(0, pages.tokens.start), keys.head_stride());
        let function = self.function("page_bounds", &format!("page_bounds_{}", storage.name()))?;
        let grid = (pages.count() as u32, kv_heads as u32, 1);
        let block = (d.next_multiple_of(32) as u32, 1, 1);
        // A page may be longer than all there is.
        let size = pages.size.min(pages.tokens.len()) as u32;
        let (tokens, d) = (pages.tokens.len() as u32, d as i32);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&from).arg(&stride).arg(&tokens).arg(&size).arg(&d).arg(&lower).arg(&upper);
        let grid = LaunchConfig { grid_dim: grid, block_dim: block, shared_mem_bytes: 0 };
        // SAFETY: keys and bounds are as long as checked above.
        unsafe { launch.launch(grid) }.map(drop).map_err(failed("bounding pages"))
    }

    /// The tokens of the pages with the largest scores, ascending; of equal scores the earlier page. `chosen` says how many
    /// pages for each row of `lists`, of which the scores are those from row `first` on.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If `lists` have no room for them, or scores and pages do not fit.
    pub fn top_pages(
        &self,
        scores: &Scores,
        chosen: &Mirrored<u32>,
        first: usize,
        pages: &Pages,
        lists: &mut TokenLists,
    ) -> Result<(), GpuError> {
        let rows = first..first + scores.rows;
        assert!(pages.count() == scores.columns && lists.lists == scores.lists, "a score for each page of each list");
        assert!(rows.end <= lists.rows && pages.tokens.end <= lists.end, "lists of {} rows", lists.rows);
        let most = chosen.numbers()[rows.clone()].iter().max().map_or(0, |most| *most as usize);
        assert!(
            lists.most >= most.saturating_mul(pages.size).min(pages.tokens.len()),
            "lists of {} tokens",
            lists.most
        );
        if scores.rows == 0 || scores.lists == 0 {
            return Ok(());
        }
        let function = self.function("top_pages", "top_pages")?;
        let grid = (scores.lists as u32, scores.rows as u32, 1);
        let (from, stride, columns) = (scores.address(), scores.stride() as u64, scores.columns as u32);
        let chosen = chosen.address(rows);
        let [tokens, counts] = lists.addresses(first);
        let size = pages.size.min(pages.tokens.len()) as u32;
        let (begin, end, most) = (pages.tokens.start as u32, pages.tokens.end as u32, lists.most as u32);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&from).arg(&stride).arg(&columns).arg(&chosen).arg(&size).arg(&begin).arg(&end);
        launch.arg(&tokens).arg(&most).arg(&counts);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: scores, numbers of pages and lists are as long as checked above.
        unsafe { launch.launch(grid) }.map(drop).map_err(failed("choosing pages"))
    }

    /// Adds to each row's counters how many different tokens the lists of each KV head have together, and how many each
    /// query head attends: u64 from number `offset` on, `[kv_head]`, then `[head]`. Lists are by KV head or by query head,
    /// of tokens in `tokens`.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small.
    #[allow(clippy::too_many_arguments)]
    pub fn count_picks(
        &self,
        lists: &TokenLists,
        (kv_heads, heads): (usize, usize),
        tokens: Range<usize>,
        counters: &[&Buffer],
        offset: usize,
        room: &mut Mirrored<u64>,
    ) -> Result<(), GpuError> {
        assert!(lists.lists == heads || lists.lists == kv_heads, "{} lists of a row", lists.lists);
        assert_eq!(counters.len(), lists.rows, "counters for each row");
        if lists.rows == 0 {
            return Ok(());
        }
        let needed = 8 * (offset + kv_heads + heads);
        room.set(self, counters.iter().map(|buffer| buffer.address(0, needed)).collect())?;
        let function = self.function("count_picks", "count_picks")?;
        let [from, counts] = lists.addresses(0);
        let to = room.address(0..lists.rows);
        let grid = (kv_heads as u32, lists.rows as u32, 1);
        let (most, group, offset) = (lists.most as u32, (heads / kv_heads) as u32, offset as u64);
        let of_group = (lists.lists / kv_heads) as u32;
        let (first, end) = (tokens.start as u32, tokens.end as u32);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&from).arg(&most).arg(&counts).arg(&of_group).arg(&group).arg(&first).arg(&end);
        launch.arg(&to).arg(&offset);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: lists and counters are as long as checked above.
        unsafe { launch.launch(grid) }.map(drop).map_err(failed("counting picks"))
    }
}

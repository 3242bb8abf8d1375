//! Launchers that select tokens on the device: they score candidates, find the largest scores, and count what was selected.
//!
//! The results are [`TokenLists`], which [`Attention`](super::Attention) attends. Kernels write only candidates to them, so the lists need
//! no check on the host.

use std::ops::Range;

use cudarc::driver::{LaunchConfig, PushKernelArg};

use super::launch::Cache;
use super::{Buffer, Gpu, GpuError, Plain, Storage, failed};
use spattn_kernels::GPU_ROW_WIDTHS;

/// Candidates for each block of a scoring kernel.
const TILE: usize = 256;
/// Most query heads for each block.
const MOST_QUERIES: usize = 8;
/// Candidates for each block of a scoring kernel on tensor cores.
const MMA_TILE: usize = 1024;
/// Queries of all rows in one product on tensor cores.
const MMA_QUERIES: usize = 16;
/// Threads of a block that selects or counts.
const THREADS: u32 = 1024;
/// Lists with at least `CLUSTERED` scores are searched by a cluster of blocks; up to `FEW_LISTS` lists get larger clusters. Then threads of
/// such a block, and its shared memory beside its marks.
const CLUSTERED: usize = 4096;
const FEW_LISTS: usize = 32;
const CLUSTER_THREADS: u32 = 512;
const CLUSTER_SHARED: usize = 66 << 10;
/// The part of a list that a block of a cluster searches is a multiple of `CHUNK` scores, and at most `LARGEST_CHUNK`, since shared memory
/// holds two bits for each score.
const CHUNK: usize = 128;
const LARGEST_CHUNK: usize = 1 << 19;
/// The stride of a list of scores is a multiple of this.
const WIDE: usize = 4;
/// Token lists are allocated in steps of this many bytes, so that lists that grow with the context are not reallocated at every step.
const LIST_STEP: usize = 1 << 18;

/// Numbers that host and device hold alike; they are uploaded when they change.
#[derive(Debug, Default)]
pub struct HostDeviceVec<T> {
    host: Vec<T>,
    device: Option<Buffer>,
}

impl<T: Plain + PartialEq> HostDeviceVec<T> {
    /// Sets both to `numbers`.
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

    /// The numbers that both hold.
    pub fn numbers(&self) -> &[T] {
        &self.host
    }

    /// Device address of a range of the numbers.
    pub(super) fn address(&self, range: Range<usize>) -> u64 {
        assert!(range.end <= self.host.len(), "{range:?} of {} numbers", self.host.len());
        let device = self.device.as_ref().expect("what is used was set");
        device.address(range.start * size_of::<T>(), range.len() * size_of::<T>())
    }
}

/// Queries of some rows in a buffer.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    /// Rotated queries `[row][stride]`, head `h` at `h * d`.
    pub queries: &'a Buffer,
    /// Numbers from one row to the next.
    pub stride: usize,
    /// Query heads.
    pub heads: usize,
    /// Indices of the rows in the buffer.
    pub rows: &'a HostDeviceVec<u32>,
}

/// Channel-wise bounds of pages of keys, each `[kv_head][page][d]`.
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
    /// Channels of a head.
    pub d: usize,
    /// Type of the numbers.
    pub storage: Storage,
}

impl PageBounds<'_> {
    /// Bytes of `lower`, or of `upper`.
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
    /// Reserves memory for `lists` lists of `columns` scores in each of `rows` rows.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn resize(&mut self, gpu: &Gpu, rows: usize, lists: usize, columns: usize) -> Result<(), GpuError> {
        (self.rows, self.lists, self.columns) = (rows, lists, columns);
        gpu.reserve(&mut self.buffer, rows * Self::row_bytes(lists, columns))
    }

    /// Copies one list of scores to the host.
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

    /// Number of rows, and of lists in each.
    ///
    /// # Panics
    /// If the lists do not have `columns` columns.
    pub(super) fn shape(&self, columns: usize) -> (usize, usize) {
        assert_eq!(self.columns, columns, "a score for each column");
        (self.rows, self.lists)
    }

    /// Scores from one list to the next.
    pub(super) fn stride(&self) -> usize {
        Self::stride_of(self.columns)
    }

    fn stride_of(columns: usize) -> usize {
        columns.next_multiple_of(WIDE)
    }

    /// Bytes of one row of `lists` lists.
    pub fn row_bytes(lists: usize, columns: usize) -> usize {
        4 * lists * Self::stride_of(columns)
    }

    pub(super) fn address(&self) -> u64 {
        let buffer = self.buffer.as_ref().expect("there is room");
        buffer.address(0, 4 * self.rows * self.lists * self.stride())
    }
}

/// Memory for scores by query head, and for the reduced scores of each group.
#[derive(Debug, Default)]
pub struct ScoreWorkspace {
    by_head: Scores,
    by_group: Scores,
    /// Two numbers for each tile of scores.
    tiles: Option<Buffer>,
}

impl ScoreWorkspace {
    /// The last scores: by query head, or by KV head if they were reduced.
    pub fn of(&self, reduction: Option<Reduction>) -> &Scores {
        if reduction.is_some() { &self.by_group } else { &self.by_head }
    }

    /// Reserves memory for scores by query head, for as many columns of reduced scores by KV head, and for two numbers for each of `tiles`
    /// tiles of a query head. Returns the three addresses.
    pub(super) fn resized_both(
        &mut self,
        gpu: &Gpu,
        rows: usize,
        (heads, kv_heads): (usize, usize),
        columns: usize,
        tiles: usize,
    ) -> Result<[u64; 3], GpuError> {
        self.by_head.resize(gpu, rows, heads, columns)?;
        self.by_group.resize(gpu, rows, kv_heads, columns)?;
        gpu.reserve(&mut self.tiles, 8 * rows * heads * tiles)?;
        Ok([self.by_head.address(), self.by_group.address(), self.tiles(rows, heads, tiles)])
    }

    /// Address of the tiles' numbers.
    pub(super) fn tiles(&self, rows: usize, heads: usize, tiles: usize) -> u64 {
        self.tiles.as_ref().expect("there is room").address(0, 8 * rows * heads * tiles)
    }

    /// Reduces the scores by query head.
    pub(super) fn reduce(&mut self, gpu: &Gpu, kv_heads: usize, reduction: Reduction) -> Result<(), GpuError> {
        gpu.reduce_scores(&self.by_head, kv_heads, reduction, &mut self.by_group)
    }

    /// Reserves memory for the scores of `heads` query heads, or for reduced scores of `kv_heads` KV heads if there is a reduction.
    pub(super) fn resized(
        &mut self,
        gpu: &Gpu,
        rows: usize,
        (heads, kv_heads): (usize, usize),
        columns: usize,
        reduction: Option<Reduction>,
    ) -> Result<&mut Scores, GpuError> {
        let (scores, lists) =
            if reduction.is_some() { (&mut self.by_group, kv_heads) } else { (&mut self.by_head, heads) };
        scores.resize(gpu, rows, lists, columns)?;
        Ok(scores)
    }
}

/// Lists of tokens selected on the device, `[row][list][most]`, and the number of tokens in each list.
#[derive(Debug, Default)]
pub struct TokenLists {
    tokens: Option<Buffer>,
    counts: Option<Buffer>,
    /// What is subtracted from each token's logit.
    weights: Option<Buffer>,
    /// How many index entries were read for each list.
    entries: Option<Buffer>,
    /// For each query head, the share of the mass that its selection leaves over; and the value that represents what was not selected.
    shares: Option<Buffer>,
    values: Option<Buffer>,
    /// Query heads, KV heads and channels of a value, if something is left over.
    rest: Option<[usize; 3]>,
    are_weighted: bool,
    are_counted: bool,
    rows: usize,
    lists: usize,
    most: usize,
    expected: usize,
    /// For each row, a position above all its tokens.
    ends: Vec<usize>,
}

/// One list of [`TokenLists`].
#[derive(Debug, Clone, Copy)]
pub struct TokenList<'a> {
    lists: &'a TokenLists,
    index: usize,
}

impl TokenLists {
    /// Reserves `lists` lists of up to `most` tokens below `end` in each of `rows` rows. A launcher must then write all of them.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn resize(&mut self, gpu: &Gpu, rows: usize, lists: usize, most: usize, end: usize) -> Result<(), GpuError> {
        self.resize_to(gpu, lists, most, vec![end; rows])
    }

    /// As [`resize`](Self::resize), with an end for each row.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn resize_to(&mut self, gpu: &Gpu, lists: usize, most: usize, ends: Vec<usize>) -> Result<(), GpuError> {
        let rows = ends.len();
        (self.rows, self.lists, self.most, self.ends) = (rows, lists, most, ends);
        (self.expected, self.are_weighted, self.are_counted, self.rest) = (most, false, false, None);
        gpu.reserve(&mut self.tokens, (4 * rows * lists * most).next_multiple_of(LIST_STEP))?;
        gpu.reserve(&mut self.counts, (4 * rows * lists).next_multiple_of(WIDE))
    }

    /// As [`resize`](Self::resize), for lists whose lengths depend on the data: about `expected` tokens.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn resize_open(
        &mut self,
        gpu: &Gpu,
        [rows, lists]: [usize; 2],
        [most, expected]: [usize; 2],
        end: usize,
    ) -> Result<(), GpuError> {
        self.resize(gpu, rows, lists, most, end)?;
        self.expected = expected.min(most);
        Ok(())
    }

    /// As [`resize`](Self::resize), for lists that also count the index entries that were read for them.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn resize_counted(
        &mut self,
        gpu: &Gpu,
        [rows, lists]: [usize; 2],
        most: usize,
        end: usize,
    ) -> Result<(), GpuError> {
        self.resize(gpu, rows, lists, most, end)?;
        self.are_counted = true;
        gpu.reserve(&mut self.entries, (4 * rows * lists).next_multiple_of(WIDE))
    }

    /// As [`resize_counted`](Self::resize_counted), for lists that also hold what is subtracted from each token's logit. Their lengths
    /// depend on the data: about `expected` tokens.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn resize_weighted(
        &mut self,
        gpu: &Gpu,
        [rows, lists]: [usize; 2],
        [most, expected]: [usize; 2],
        end: usize,
    ) -> Result<(), GpuError> {
        self.resize_counted(gpu, [rows, lists], most, end)?;
        (self.expected, self.are_weighted) = (expected.min(most), true);
        gpu.reserve(&mut self.weights, (4 * rows * lists * most).next_multiple_of(LIST_STEP))
    }

    /// Reserves what the selections of `heads` query heads of each row leave over: a share of the mass of the selected and the unselected
    /// tokens together, and for each KV head a value `[d]` that represents the unselected tokens.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub(super) fn reserve_rests(&mut self, gpu: &Gpu, heads: usize, kv_heads: usize, d: usize) -> Result<(), GpuError> {
        assert!(self.lists == heads || self.lists == kv_heads, "{} lists of a row", self.lists);
        self.rest = Some([heads, kv_heads, d]);
        gpu.reserve(&mut self.shares, (4 * self.rows * heads).next_multiple_of(WIDE))?;
        gpu.reserve(&mut self.values, 4 * kv_heads * d)
    }

    /// Addresses of the shares `[row][head]` from row `first` on, and of the values `[kv_head][d]`.
    pub(super) fn rests(&self, first: usize, rows: usize) -> [u64; 2] {
        let [heads, kv_heads, d] = self.rest.expect("there is room");
        assert!(first + rows <= self.rows, "rows up to {} of {}", first + rows, self.rows);
        let (shares, values) = (self.shares.as_ref().expect("there is room"), self.values.as_ref());
        let values = values.expect("there is room").address(0, 4 * kv_heads * d);
        [shares.address(4 * first * heads, 4 * rows * heads), values]
    }

    /// Addresses of the share that a query head of a row leaves over, and of the value that represents it; `None` if nothing is left over.
    ///
    /// # Panics
    /// If there is no such row or head.
    pub fn rest(&self, row: usize, head: usize) -> Option<[u64; 2]> {
        let [heads, kv_heads, d] = self.rest?;
        assert!(head < heads, "head {head} of {heads}");
        let [shares, values] = self.rests(row, 1);
        Some([shares + 4 * head as u64, values + (4 * (head / (heads / kv_heads)) * d) as u64])
    }

    /// Copies the shares that the query heads of a row leave over to the host.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If nothing is left over.
    pub fn download_shares(&self, gpu: &Gpu, row: usize) -> Result<Vec<f32>, GpuError> {
        let [heads, ..] = self.rest.expect("something is left over");
        let mut shares = vec![0.0; heads];
        gpu.download(self.shares.as_ref().expect("there is room"), 4 * row * heads, &mut shares)?;
        Ok(shares)
    }

    /// Becomes a copy of one row of `from`, without weights and without shares left over.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If there is no such row.
    pub fn keep(&mut self, gpu: &Gpu, from: &Self, row: usize) -> Result<(), GpuError> {
        let Self { lists, most, .. } = *from;
        assert!(row < from.rows && !from.are_weighted && from.rest.is_none(), "row {row} of {}", from.rows);
        self.resize(gpu, 1, lists, most, from.ends[row])?;
        let parts = [(&from.tokens, &mut self.tokens, 4 * lists * most), (&from.counts, &mut self.counts, 4 * lists)];
        for (from, to, bytes) in parts {
            let (from, to) = (from.as_ref().expect("there is room"), to.as_mut().expect("it was reserved"));
            gpu.copy(from, row * bytes, to, 0, bytes)?;
        }
        Ok(())
    }

    /// A position above all tokens.
    pub fn end(&self) -> usize {
        self.ends.iter().copied().max().unwrap_or(0)
    }

    /// Number of lists in a row.
    pub fn lists(&self) -> usize {
        self.lists
    }

    /// Most tokens of a list.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Expected number of tokens of a list.
    pub fn expected(&self) -> usize {
        self.expected
    }

    /// One list of a row.
    ///
    /// # Panics
    /// If there is no such list.
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

    /// Copies what is subtracted from the logits of one list to the host.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the lists have no weights.
    pub fn download_weights(&self, gpu: &Gpu, row: usize, list: usize) -> Result<Vec<f32>, GpuError> {
        assert!(self.are_weighted, "lists of tokens alone");
        let (mut count, index) = ([0u32], self.list(row, list).index);
        gpu.download(self.counts.as_ref().expect("there is room"), 4 * index, &mut count)?;
        let mut weights = vec![0.0; count[0] as usize];
        gpu.download(self.weights.as_ref().expect("there is room"), 4 * index * self.most, &mut weights)?;
        Ok(weights)
    }

    /// Copies the number of index entries that were read for one list to the host.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the lists do not count them.
    pub fn download_entries(&self, gpu: &Gpu, row: usize, list: usize) -> Result<u32, GpuError> {
        assert!(self.are_counted, "lists of tokens alone");
        let (mut entries, index) = ([0u32], self.list(row, list).index);
        gpu.download(self.entries.as_ref().expect("there is room"), 4 * index, &mut entries)?;
        Ok(entries[0])
    }

    /// Address of the weights of all lists from a row on.
    pub(super) fn weights(&self, row: usize) -> u64 {
        assert!(self.are_weighted, "lists of tokens alone");
        let (rows, first) = (self.rows - row, row * self.lists);
        let weights = self.weights.as_ref().expect("there is room");
        weights.address(4 * first * self.most, 4 * rows * self.lists * self.most)
    }

    /// Address of the index entry counts of all lists from a row on.
    pub(super) fn entries(&self, row: usize) -> u64 {
        assert!(self.are_counted, "lists of tokens alone");
        let (rows, first) = (self.rows - row, row * self.lists);
        self.entries.as_ref().expect("there is room").address(4 * first, 4 * rows * self.lists)
    }

    /// Checks that the lists have at least `rows` rows of `lists` lists, each with memory for `most` tokens below `end`.
    ///
    /// # Panics
    /// If they do not.
    pub(super) fn assert_room(&self, [rows, lists]: [usize; 2], most: usize, end: usize) {
        assert!(self.rows >= rows && self.lists == lists, "{rows} rows of {lists} lists");
        assert!(self.most >= most && self.end() >= end, "lists of {} tokens below {}", self.most, self.end());
    }

    /// Addresses of the tokens and of the counts from a row on.
    pub(super) fn addresses(&self, row: usize) -> [u64; 2] {
        let (rows, first) = (self.rows - row, row * self.lists);
        let (tokens, counts) = (self.tokens.as_ref().expect("there is room"), self.counts.as_ref());
        let counts = counts.expect("there is room").address(4 * first, 4 * rows * self.lists);
        [tokens.address(4 * first * self.most, 4 * rows * self.lists * self.most), counts]
    }
}

impl TokenList<'_> {
    /// Most tokens of the list.
    pub fn most(&self) -> usize {
        self.lists.most
    }

    /// Expected number of tokens of the list.
    pub fn expected(&self) -> usize {
        self.lists.expected
    }

    /// A position above all its tokens.
    pub(super) fn end(&self) -> usize {
        self.lists.ends[self.index / self.lists.lists]
    }

    /// Addresses of its tokens and of their count.
    pub(super) fn addresses(&self) -> [u64; 2] {
        let TokenLists { tokens, counts, most, .. } = self.lists;
        let (tokens, counts) = (tokens.as_ref().expect("there is room"), counts.as_ref().expect("there is room"));
        [tokens.address(4 * self.index * most, 4 * most), counts.address(4 * self.index, 4)]
    }

    /// Address of what is subtracted from its logits; 0 if nothing is.
    pub(super) fn weights(&self) -> u64 {
        let TokenLists { weights, most, are_weighted, .. } = self.lists;
        let weights = weights.as_ref().filter(|_| *are_weighted);
        weights.map_or(0, |weights| weights.address(4 * self.index * most, 4 * most))
    }
}

/// How the scores of a group's query heads become one score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their maximum.
    Max,
}

impl Reduction {
    /// The kernels' number for a reduction, or for none.
    pub(super) fn number(reduction: Option<Self>) -> i32 {
        match reduction {
            None => 0,
            Some(Self::Sum) => 1,
            Some(Self::Max) => 2,
        }
    }
}

/// Projected queries `[row][head][width]`, each number as the sum of a high and a low part.
#[derive(Debug, Clone, Copy)]
pub struct ProjectedQueries<'a> {
    /// The numbers, rounded to their storage type.
    pub high: &'a Buffer,
    /// What rounding left over, if it is kept.
    pub low: Option<&'a Buffer>,
    /// Query heads.
    pub heads: usize,
    /// Numbers of a projected query.
    pub width: usize,
    /// Indices of the rows: 0, 1, 2 and so on.
    pub rows: &'a HostDeviceVec<u32>,
}

/// Rows `[kv_head][row][width]` of an index.
#[derive(Debug, Clone, Copy)]
pub struct IndexRows<'a> {
    /// The numbers.
    pub rows: &'a Buffer,
    /// Rows of each KV head.
    pub count: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Type of the numbers.
    pub storage: Storage,
}

/// Pages of equal size over a range of tokens; the last page may be shorter.
#[derive(Debug, Clone)]
pub struct Pages {
    /// The range of tokens.
    pub tokens: Range<usize>,
    /// Tokens of a page.
    pub size: usize,
}

impl Pages {
    /// Number of pages.
    pub fn count(&self) -> usize {
        self.tokens.len().div_ceil(self.size)
    }
}

/// Arguments of scoring kernels: addresses of the rows `[d]` that are scored, and their layout.
struct ScoreArgs {
    kind: &'static str,
    upper: u64,
    lower: u64,
    head_stride: u64,
    columns: usize,
    kv_heads: usize,
    d: usize,
    storage: Storage,
}

/// Queries for scoring kernels: addresses of the first row and of the row indices, and the number of these.
struct QueryArgs {
    from: u64,
    rest: u64,
    stride: usize,
    heads: usize,
    list: u64,
    rows: usize,
}

impl Queries<'_> {
    /// The address of row 0. The largest of `rows` is checked to lie inside the buffer.
    ///
    /// # Panics
    /// If it does not lie inside.
    pub(super) fn address(&self, rows: Range<usize>, d: usize, storage: Storage) -> u64 {
        let last = self.rows.numbers()[rows].iter().max().map_or(0, |row| *row as usize);
        self.queries.address(0, (last * self.stride + self.heads * d) * storage.bytes())
    }

    /// Address of the row indices for a range of rows.
    pub(super) fn list(&self, rows: Range<usize>) -> u64 {
        self.rows.address(rows)
    }
}

/// How many blocks search one of `lists` lists of `columns` scores together: as few as can hold the list, but more if there are few lists.
fn cluster_of(lists: usize, columns: usize) -> usize {
    match (lists <= FEW_LISTS, columns) {
        (false, ..=0x1_0000) => 2,
        (true, ..=0x1_0000) | (false, ..=0x4_0000) => 4,
        _ => 8,
    }
}

impl Gpu {
    /// Scores of keys: `q·k` for the queries of a range of rows and the keys of `tokens`, into lists by query head, or by KV head if they
    /// are reduced.
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
        reduction: Option<Reduction>,
        room: &mut ScoreWorkspace,
    ) -> Result<(), GpuError> {
        assert!(tokens.end <= keys.capacity, "tokens up to {} of {}", tokens.end, keys.capacity);
        let scored = ScoreArgs {
            kind: "dots",
            upper: keys.key(0, tokens.start),
            lower: 0,
            head_stride: keys.head_stride(),
            columns: tokens.len(),
            kv_heads: keys.kv_heads,
            d: keys.d,
            storage: keys.storage,
        };
        self.score(&Self::asking(queries, rows, keys.d, keys.storage), &scored, reduction, room)
    }

    /// Scores of pages: the largest `q·k` that a key within the bounds of each page can have, into lists by query head, or by KV head if
    /// they are reduced.
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
        reduction: Option<Reduction>,
        room: &mut ScoreWorkspace,
    ) -> Result<(), GpuError> {
        let PageBounds { lower, upper, pages, kv_heads, d, storage } = *bounds;
        let scored = ScoreArgs {
            kind: "bounds",
            upper: upper.address(0, bounds.bytes()),
            lower: lower.address(0, bounds.bytes()),
            head_stride: (pages * d) as u64,
            columns: pages,
            kv_heads,
            d,
            storage,
        };
        self.score(&Self::asking(queries, rows, d, storage), &scored, reduction, room)
    }

    /// Scores of index rows: products of projected queries with rows of the same width, into lists by query head, or by KV head if they are
    /// reduced. Queries that were already summed for each KV head count as reduced by [`Sum`](Reduction::Sum).
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn score_rows(
        &self,
        queries: &ProjectedQueries<'_>,
        index: &IndexRows<'_>,
        reduction: Option<Reduction>,
        room: &mut ScoreWorkspace,
    ) -> Result<(), GpuError> {
        let ProjectedQueries { high: most, low: rest, heads, width, rows } = *queries;
        let IndexRows { count, kv_heads, storage, .. } = *index;
        let on_tiles = Self::fits_tiles(storage, width);
        assert!(rest.is_none() || on_tiles, "queries in two parts {width} wide");
        let bytes = rows.numbers().len() * heads * width * storage.bytes();
        let scored = ScoreArgs {
            kind: if rest.is_some() { "split" } else { "dots" },
            upper: index.rows.address(0, kv_heads * count * width * storage.bytes()),
            lower: 0,
            head_stride: (count * width) as u64,
            columns: count,
            kv_heads,
            d: width,
            storage,
        };
        let asking = QueryArgs {
            from: most.address(0, bytes),
            rest: rest.map_or(0, |rest| rest.address(0, bytes)),
            stride: heads * width,
            heads,
            list: rows.address(0..rows.numbers().len()),
            rows: rows.numbers().len(),
        };
        if heads == kv_heads && reduction == Some(Reduction::Sum) {
            let out = room.resized(self, asking.rows, (heads, kv_heads), count, reduction)?;
            return self.score_into(&asking, &scored, None, out);
        }
        self.score(&asking, &scored, reduction, room)
    }

    fn asking(queries: &Queries<'_>, rows: Range<usize>, d: usize, storage: Storage) -> QueryArgs {
        QueryArgs {
            from: queries.address(rows.clone(), d, storage),
            rest: 0,
            stride: queries.stride,
            heads: queries.heads,
            list: queries.list(rows.clone()),
            rows: rows.len(),
        }
    }

    /// Whether tensor cores score rows of `d` numbers.
    fn fits_tiles(storage: Storage, d: usize) -> bool {
        storage != Storage::F32 && GPU_ROW_WIDTHS.contains(&d)
    }

    fn score(
        &self,
        asking: &QueryArgs,
        scored: &ScoreArgs,
        reduction: Option<Reduction>,
        room: &mut ScoreWorkspace,
    ) -> Result<(), GpuError> {
        let ScoreArgs { d, kv_heads, columns, storage, .. } = *scored;
        let QueryArgs { stride, heads, rows, .. } = *asking;
        assert!(d.is_multiple_of(8) && d <= 256 && stride.is_multiple_of(8), "heads of {d} channels");
        assert!(heads.is_multiple_of(kv_heads), "{heads} query heads for {kv_heads}");
        let group = heads / kv_heads;
        let on_tiles = Self::fits_tiles(storage, d);
        // Groups that do not fit in one product are reduced afterwards.
        let at_once = reduction.filter(|_| on_tiles && group <= MMA_QUERIES);
        let out = room.resized(self, rows, (heads, kv_heads), columns, at_once)?;
        self.score_into(asking, scored, at_once, out)?;
        match reduction.filter(|_| at_once.is_none()) {
            Some(reduction) => room.reduce(self, kv_heads, reduction),
            None => Ok(()),
        }
    }

    /// [`score`](Self::score) into memory that is already reserved; only tensor cores reduce here.
    fn score_into(
        &self,
        asking: &QueryArgs,
        scored: &ScoreArgs,
        reduction: Option<Reduction>,
        out: &Scores,
    ) -> Result<(), GpuError> {
        match Self::fits_tiles(scored.storage, scored.d) {
            _ if asking.rows == 0 || scored.columns == 0 => Ok(()),
            true => self.score_tiles(asking, scored, reduction, out),
            false => self.score_any(asking, scored, out),
        }
    }

    /// [`score`](Self::score) for all widths and types, into lists by query head.
    fn score_any(&self, asking: &QueryArgs, scored: &ScoreArgs, out: &Scores) -> Result<(), GpuError> {
        let ScoreArgs { kind, upper, lower, head_stride, columns, kv_heads, d, storage } = *scored;
        let QueryArgs { from, stride, heads, list, rows, .. } = *asking;
        let group = heads / kv_heads;
        let taken = group.min(MOST_QUERIES).next_power_of_two();
        let lanes = d.next_power_of_two().max(64) / 8;
        let function = self.function("scores", &format!("{kind}_{}_{taken}_{lanes}", storage.name()))?;
        let grid = (columns.div_ceil(TILE) as u32, (kv_heads * group.div_ceil(taken)) as u32, rows as u32);
        let to = out.address();
        let (row_stride, out_stride) = (stride as u64, out.stride() as u64);
        let (heads, group, columns, d) = (heads as i32, group as i32, columns as u32, d as i32);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&list).arg(&from).arg(&row_stride).arg(&heads).arg(&group).arg(&upper).arg(&lower);
        launch.arg(&head_stride).arg(&columns).arg(&d).arg(&to).arg(&out_stride);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (128, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the callers have checked that rows of queries, scored rows and scores lie inside their buffers.
        unsafe { launch.launch(grid) }.map(drop).map_err(failed("scoring"))
    }

    /// [`score`](Self::score) on tensor cores, into memory that is already reserved; reduced or not.
    fn score_tiles(
        &self,
        asking: &QueryArgs,
        scored: &ScoreArgs,
        reduction: Option<Reduction>,
        out: &Scores,
    ) -> Result<(), GpuError> {
        let ScoreArgs { kind, upper, lower, head_stride, columns, kv_heads, d, storage } = *scored;
        let QueryArgs { from, rest, stride, heads, list, rows } = *asking;
        let group = heads / kv_heads;
        let function = self.function("score_tiles", &format!("{kind}_tiles_{}_{d}", storage.name()))?;
        let (count, to, reduced) = (rows as u32, out.address(), Reduction::number(reduction));
        let (row_stride, out_stride, columns) = (stride as u64, out.stride() as u64, columns as u32);
        for first in (0..group).step_by(MMA_QUERIES) {
            let some = (group - first).min(MMA_QUERIES);
            let places = some.next_power_of_two();
            let tiles = rows.div_ceil(MMA_QUERIES / places);
            let grid = (columns.div_ceil(MMA_TILE as u32), kv_heads as u32, tiles as u32);
            let [heads, group, first, some, places] = [heads, group, first, some, places].map(|n| n as i32);
            let mut launch = self.stream.launch_builder(&function);
            launch.arg(&list).arg(&count).arg(&from).arg(&rest).arg(&row_stride).arg(&heads).arg(&group).arg(&first);
            launch.arg(&some).arg(&places).arg(&upper).arg(&lower).arg(&head_stride).arg(&columns).arg(&reduced);
            launch.arg(&to).arg(&out_stride);
            let grid = LaunchConfig { grid_dim: grid, block_dim: (128, 1, 1), shared_mem_bytes: 0 };
            // SAFETY: the callers have checked rows of queries, scored rows and scores.
            unsafe { launch.launch(grid) }.map_err(failed("scoring"))?;
        }
        Ok(())
    }

    /// Reduces the scores of the query heads of each of `kv_heads` groups, into lists by KV head.
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
        // SAFETY: both hold `rows` rows of their lists, with the same stride.
        unsafe { launch.launch(grid) }.map(drop).map_err(failed("reducing scores"))
    }

    /// Sums of scores over runs of `size` columns, into lists by query head, or by KV head if they are reduced. The sum of a shorter last
    /// run is scaled up to `size` columns.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn sum_runs(
        &self,
        scores: &Scores,
        size: usize,
        kv_heads: usize,
        reduction: Option<Reduction>,
        room: &mut ScoreWorkspace,
    ) -> Result<(), GpuError> {
        let Scores { rows, lists, columns, .. } = *scores;
        let out = room.resized(self, rows, (lists, kv_heads), columns.div_ceil(size), None)?;
        if rows * lists == 0 || columns == 0 {
            return Ok(());
        }
        let function = self.function("scores", "sum_runs")?;
        let (from, from_stride, to, stride) =
            (scores.address(), scores.stride() as u64, out.address(), out.stride() as u64);
        let grid = (columns.div_ceil(size).div_ceil(256) as u32, (rows * lists) as u32, 1);
        let (columns, size) = (columns as u32, size as u32);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&from).arg(&from_stride).arg(&columns).arg(&size).arg(&to).arg(&stride);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (256, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: both hold `rows * lists` lists, one of columns and one of runs.
        unsafe { launch.launch(grid) }.map_err(failed("adding up scores"))?;
        match reduction {
            Some(reduction) => room.reduce(self, kv_heads, reduction),
            None => Ok(()),
        }
    }

    /// Computes the bounds of the pages of a layer's keys, into `lower` and `upper` with the layout of [`PageBounds`].
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
        // A page may be longer than the range of tokens.
        let size = pages.size.min(pages.tokens.len()) as u32;
        let (tokens, d) = (pages.tokens.len() as u32, d as i32);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&from).arg(&stride).arg(&tokens).arg(&size).arg(&d).arg(&lower).arg(&upper);
        let grid = LaunchConfig { grid_dim: grid, block_dim: block, shared_mem_bytes: 0 };
        // SAFETY: keys and bounds are as long as checked above.
        unsafe { launch.launch(grid) }.map(drop).map_err(failed("bounding pages"))
    }

    /// Selects the tokens of the pages with the largest scores, in ascending order; of equal scores the earlier page. `chosen` has the
    /// number of pages for each row of `lists`. The scores are those of the rows from `first` on.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If `lists` have no memory for them, or scores and pages do not match.
    pub fn top_pages(
        &self,
        scores: &Scores,
        chosen: &HostDeviceVec<u32>,
        first: usize,
        pages: &Pages,
        lists: &mut TokenLists,
    ) -> Result<(), GpuError> {
        let rows = first..first + scores.rows;
        assert!(pages.count() == scores.columns && lists.lists == scores.lists, "a score for each page of each list");
        assert!(rows.end <= lists.rows && pages.tokens.end <= lists.end(), "lists of {} rows", lists.rows);
        let most = chosen.numbers()[rows.clone()].iter().max().map_or(0, |most| *most as usize);
        assert!(
            lists.most >= most.saturating_mul(pages.size).min(pages.tokens.len()),
            "lists of {} tokens",
            lists.most
        );
        if scores.rows == 0 || scores.lists == 0 {
            return Ok(());
        }
        let (from, stride, columns) = (scores.address(), scores.stride() as u64, scores.columns as u32);
        let chosen = chosen.address(rows);
        let [tokens, counts] = lists.addresses(first);
        let size = pages.size.min(pages.tokens.len()) as u32;
        let (begin, end, most) = (pages.tokens.start as u32, pages.tokens.end as u32, lists.most as u32);
        let cluster = cluster_of(scores.rows * scores.lists, scores.columns);
        let chunk = scores.columns.div_ceil(cluster).next_multiple_of(CHUNK);
        let clustered = self.is_hopper && scores.columns >= CLUSTERED && chunk <= LARGEST_CHUNK;
        let (blocks, threads, shared) = match clustered {
            true => (cluster * scores.lists, CLUSTER_THREADS, (CLUSTER_SHARED + chunk / 4) as u32),
            false => (scores.lists, THREADS, 0),
        };
        let function = match clustered {
            true => self.with_shared("top_pages_hopper", &format!("top_pages_hopper_{cluster}"), shared),
            false => self.function("top_pages", "top_pages"),
        }?;
        let chunk = chunk as u32;
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&from).arg(&stride).arg(&columns);
        if clustered {
            launch.arg(&chunk);
        }
        launch.arg(&chosen).arg(&size).arg(&begin).arg(&end).arg(&tokens).arg(&most).arg(&counts);
        let grid = (blocks as u32, scores.rows as u32, 1);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (threads, 1, 1), shared_mem_bytes: shared };
        // SAFETY: scores, numbers of pages and lists are as long as checked above.
        unsafe { launch.launch(grid) }.map(drop).map_err(failed("choosing pages"))
    }

    /// Selects the tokens of the fewest pages with the largest scores that hold a share of the mass of all pages, and at least `least`
    /// pages, in ascending order; of equal scores the earlier page. A page's mass is `exp(scale * score)`. The scores are those of the rows
    /// of `lists` from `first` on.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If `lists` have no memory for all tokens, or scores and pages do not match.
    pub fn top_share(
        &self,
        scores: &Scores,
        (share, scale, least): (f64, f32, usize),
        first: usize,
        pages: &Pages,
        lists: &mut TokenLists,
    ) -> Result<(), GpuError> {
        assert!(pages.count() == scores.columns && lists.lists == scores.lists, "a score for each page of each list");
        assert!(first + scores.rows <= lists.rows && pages.tokens.end <= lists.end(), "lists of {} rows", lists.rows);
        assert!(lists.most >= pages.tokens.len(), "lists of {} tokens", lists.most);
        if scores.rows == 0 || scores.lists == 0 {
            return Ok(());
        }
        let (from, stride, columns) = (scores.address(), scores.stride() as u64, scores.columns as u32);
        let [tokens, counts] = lists.addresses(first);
        let size = pages.size.min(pages.tokens.len()) as u32;
        let (begin, end, most) = (pages.tokens.start as u32, pages.tokens.end as u32, lists.most as u32);
        let least = least.min(scores.columns) as u32;
        let function = self.function("top_share", "top_share")?;
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&from).arg(&stride).arg(&columns).arg(&share).arg(&scale).arg(&least);
        launch.arg(&size).arg(&begin).arg(&end).arg(&tokens).arg(&most).arg(&counts);
        let grid = (scores.lists as u32, scores.rows as u32, 1);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: scores and lists are as long as checked above.
        unsafe { launch.launch(grid) }.map(drop).map_err(failed("choosing a share of the mass"))
    }

    /// Adds to each row's counters how many distinct tokens the lists of each KV head have together, how many tokens each query head
    /// attends, and how many index entries were read for all lists. Counters are u64: `[kv_head]`, `[head]` and one more, from number
    /// `offset` on. Lists are by KV head or by query head, with tokens in the range `tokens`. Tokens read and attended are multiplied by
    /// the number that `counters` gives for the row.
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
        counters: &[(&Buffer, u64)],
        offset: usize,
        room: &mut HostDeviceVec<u64>,
    ) -> Result<(), GpuError> {
        assert!(lists.lists == heads || lists.lists == kv_heads, "{} lists of a row", lists.lists);
        assert_eq!(counters.len(), lists.rows, "counters for each row");
        if lists.rows == 0 {
            return Ok(());
        }
        let needed = 8 * (offset + kv_heads + heads + 1);
        room.set(self, counters.iter().flat_map(|(buffer, times)| [buffer.address(0, needed), *times]).collect())?;
        let function = self.function("count_picks", "count_picks")?;
        let [from, counts] = lists.addresses(0);
        let to = room.address(0..2 * lists.rows);
        let entries = if lists.are_counted { lists.entries(0) } else { 0 };
        let grid = (kv_heads as u32, lists.rows as u32, 1);
        let (most, group, offset) = (lists.most as u32, (heads / kv_heads) as u32, offset as u64);
        let of_group = (lists.lists / kv_heads) as u32;
        let (first, end) = (tokens.start as u32, tokens.end as u32);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&from).arg(&most).arg(&counts).arg(&entries).arg(&of_group).arg(&group).arg(&first).arg(&end);
        launch.arg(&to).arg(&offset);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: lists and counters are as long as checked above.
        unsafe { launch.launch(grid) }.map(drop).map_err(failed("counting picks"))
    }
}

//! Scores of candidates on the device, by query head or reduced over the heads of a group.

use super::buffer::reserved;
use super::{Buffer, Gpu, GpuError};

/// The distance between lists is a multiple of this many scores, because lists are read in vectors.
const WIDE: usize = 4;

/// Scores of candidates, `[row][list][stride]` f32.
#[derive(Debug, Default)]
pub struct Scores {
    buffer: Option<Buffer>,
    pub(super) rows: usize,
    pub(super) lists: usize,
    pub(super) columns: usize,
    /// Number of columns after these, which are filled later.
    behind: usize,
}

impl Scores {
    /// Reserves memory for `lists` lists of `columns` scores in each of `rows` rows.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn resize(&mut self, gpu: &Gpu, rows: usize, lists: usize, columns: usize) -> Result<(), GpuError> {
        (self.rows, self.lists, self.columns) = (rows, lists, columns);
        gpu.reserve(&mut self.buffer, rows * Self::row_bytes(lists, columns + self.behind))
    }

    /// Counts the columns reserved after the others as filled.
    pub(super) fn include_behind(&mut self) {
        self.columns += std::mem::take(&mut self.behind);
    }

    /// Copies one list of scores to the host.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn download(&self, gpu: &Gpu, row: usize, list: usize) -> Result<Vec<f32>, GpuError> {
        let mut scores = vec![0.0; self.columns];
        let buffer = reserved(&self.buffer, "scores");
        gpu.download(buffer, 4 * (row * self.lists + list) * self.stride(), &mut scores)?;
        Ok(scores)
    }

    /// Copies scores `[row][list][column]` to the device.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn upload(&mut self, gpu: &Gpu, scores: &[f32]) -> Result<(), GpuError> {
        assert_eq!(scores.len(), self.rows * self.lists * self.columns, "one score for each row, list and column");
        let mut padded = vec![f32::NAN; self.rows * self.lists * self.stride()];
        let columns = self.columns.max(1);
        let lists = scores.chunks_exact(columns).zip(padded.chunks_exact_mut(self.stride().max(1)));
        lists.for_each(|(from, to)| to[..columns].copy_from_slice(from));
        gpu.upload_to(self.buffer.as_mut().expect("`resize` reserved the scores"), 0, &padded)
    }

    /// Number of rows, and of lists in each.
    ///
    /// # Panics
    /// If the lists do not have `columns` columns.
    pub(super) fn shape(&self, columns: usize) -> (usize, usize) {
        assert_eq!(self.columns, columns, "scores in a list, and tokens or pages");
        (self.rows, self.lists)
    }

    /// Scores from one list to the next.
    pub(super) fn stride(&self) -> usize {
        Self::stride_of(self.columns + self.behind)
    }

    fn stride_of(columns: usize) -> usize {
        columns.next_multiple_of(WIDE)
    }

    /// Bytes of one row of `lists` lists of `columns` scores.
    pub fn row_bytes(lists: usize, columns: usize) -> usize {
        4 * lists * Self::stride_of(columns)
    }

    pub(super) fn address(&self) -> u64 {
        let buffer = reserved(&self.buffer, "scores");
        buffer.address(0, 4 * self.rows * self.lists * self.stride())
    }
}

/// Memory for scores by query head, and for the reduced scores of each group.
#[derive(Debug, Default)]
pub struct ScoreWorkspace {
    by_head: Scores,
    by_group: Scores,
    /// Two numbers for each tile of a query head.
    tiles: Option<Buffer>,
}

impl ScoreWorkspace {
    /// Makes the next scores leave room for `columns` columns after theirs, which [`TailRows::join`](crate::TailRows::join) fills.
    pub fn reserve_behind(&mut self, columns: usize) {
        (self.by_head.behind, self.by_group.behind) = (columns, columns);
    }

    /// Like [`of`](Self::of), but mutable.
    pub fn of_mut(&mut self, reduction: Option<Reduction>) -> &mut Scores {
        if reduction.is_some() { &mut self.by_group } else { &mut self.by_head }
    }

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
        reserved(&self.tiles, "numbers of tiles").address(0, 8 * rows * heads * tiles)
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

//! Candidates of a row that the index of the shared prefix lacks: tokens after the prefix, and those of the index's last, incomplete part.
//!
//! Their keys are gathered next to each other, and indexed and scored like keys of a prefix; then their scores join those of the prefix.

use std::ops::Range;

use cudarc::driver::LaunchConfig;

use super::buffer::reserved;
use super::host_device_vec::HostDeviceVec;
use super::launch::Cache;
use super::scores::Scores;
use super::{Buffer, Gpu, GpuError, failed};

/// Threads of a block.
const THREADS: usize = 256;
/// Words of a row as kernels read it.
const ROW_WORDS: usize = 5;
/// Bytes of a piece of a key that a thread copies.
const PIECE_BYTES: usize = 16;
/// Stands for the column of the open page in a row that has none.
const NO_COLUMN: u32 = u32::MAX;

/// The candidates of a row that the index of the prefix does not hold, and where their scores go.
#[derive(Debug, Clone)]
pub struct TailRow<'a> {
    /// Keys of the row's sequence after the prefix.
    pub keys: Cache<'a>,
    /// The candidates: positions in prefix and tail.
    pub tokens: Range<usize>,
    /// The columns of their pages.
    pub columns: Range<usize>,
    /// Number of tokens of a page. The first candidate begins a page.
    pub page: usize,
    /// The column of a page that is always selected.
    pub open: Option<usize>,
}

/// The candidates of all rows of a step, and their keys.
#[derive(Debug, Default)]
pub struct TailRows {
    table: HostDeviceVec<u64>,
    keys: Option<Buffer>,
    room: usize,
}

impl TailRows {
    /// Sets the rows, each with room for `room` candidates, after a prefix of `prefix_tokens` tokens.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a row has more candidates, some beyond its keys, or pages without tokens.
    pub fn set(&mut self, gpu: &Gpu, rows: &[TailRow<'_>], room: usize, prefix_tokens: usize) -> Result<(), GpuError> {
        let words = |row: &TailRow<'_>| -> [u64; ROW_WORDS] {
            let TailRow { keys, tokens, columns, page, open } = row;
            assert!(
                *page > 0 && tokens.len() <= room && tokens.end <= prefix_tokens + keys.capacity,
                "tokens {tokens:?} in pages of {page} do not fit room for {room}, or {} tokens behind a prefix of {prefix_tokens}",
                keys.capacity
            );
            let pair = |low: usize, high: usize| low as u64 | (high as u64) << 32;
            let stride = keys.capacity * pieces_of(keys);
            let open = open.map_or(NO_COLUMN, |column| column as u32);
            [
                keys.key(0, 0),
                stride as u64,
                pair(tokens.start, tokens.len()),
                pair(columns.start, columns.len()),
                u64::from(open) | (*page as u64) << 32,
            ]
        };
        self.room = room;
        self.table.set(gpu, rows.iter().flat_map(words).collect())
    }

    fn address(&self, rows: &Range<usize>) -> u64 {
        self.table.address(ROW_WORDS * rows.start..ROW_WORDS * rows.end)
    }

    /// Gathers the keys of some rows' candidates into a cache, row after row, each with its room. A row with fewer candidates repeats its
    /// last key to the end of the last page, and then this page: neither changes the ranges of keys or of bounds of pages. The cache has no
    /// values: its keys are in their place.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the bytes of a key are not a multiple of 16.
    pub fn gather(
        &mut self,
        gpu: &Gpu,
        prefix: &Cache<'_>,
        prefix_tokens: usize,
        rows: &Range<usize>,
    ) -> Result<Cache<'_>, GpuError> {
        let Cache { kv_heads, d, storage, .. } = *prefix;
        let (room, pieces) = (self.room, pieces_of(prefix));
        let capacity = rows.len() * room;
        let bytes = kv_heads * capacity * d * storage.bytes();
        gpu.reserve(&mut self.keys, bytes)?;
        let to = reserved(&self.keys, "gathered keys");
        if capacity > 0 {
            let (table, from, stride) = (self.address(rows), prefix.key(0, 0), (prefix.capacity * pieces) as u64);
            let (tokens, out) = (prefix_tokens as u32, to.address(0, bytes));
            let blocks = ((room * pieces).div_ceil(THREADS) as u32, kv_heads as u32, rows.len() as u32);
            let [pieces, room] = [pieces, room].map(|n| n as u32);
            let function = gpu.function("tail", "gather_tail")?;
            let mut launch = gpu.launch(&function);
            launch.arg(&table).arg(&from).arg(&stride).arg(&tokens).arg(&pieces).arg(&room).arg(&out);
            let grid = LaunchConfig { grid_dim: blocks, block_dim: (THREADS as u32, 1, 1), shared_mem_bytes: 0 };
            // SAFETY: `set` checked that the rows' candidates lie in prefix and tail; the keys of both and the room for all were checked.
            unsafe { launch.launch(grid) }.map_err(failed("gathering keys"))?;
        }
        Ok(Cache { keys: to, values: to, keys_at: 0, values_at: 0, capacity, kv_heads, d, storage })
    }

    /// Writes the scores of the pages of some rows' candidates after those of the prefix in `scores`, which must have
    /// [room](crate::ScoreWorkspace::reserve_behind) for them. `own` are the scores of all pages of the gathered keys; `None` if no row has
    /// such candidates. Columns that a row lacks get negative infinity, its open page positive infinity.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the scores do not match the rows.
    pub fn join(
        &self,
        gpu: &Gpu,
        rows: &Range<usize>,
        own: Option<&Scores>,
        scores: &mut Scores,
    ) -> Result<(), GpuError> {
        scores.include_behind();
        let (columns, lists) = (scores.columns, scores.lists);
        assert!(
            scores.rows == rows.len()
                && own.is_none_or(|own| (own.rows, own.lists) == (scores.rows, lists))
                && own.is_none_or(|own| own.columns.is_multiple_of(rows.len().max(1))),
            "the scores of {} rows are to be joined with others",
            rows.len()
        );
        let words = &self.table.numbers()[ROW_WORDS * rows.start..ROW_WORDS * rows.end];
        let room = own.map_or(0, |own| own.columns / rows.len().max(1));
        let pages = words.chunks_exact(ROW_WORDS).map(|row| ((row[3] as u32) as usize, (row[3] >> 32) as usize));
        assert!(
            pages.into_iter().all(|(first, pages)| pages <= room && first + pages <= columns),
            "a row has more pages than there are scores"
        );
        if rows.is_empty() || lists == 0 {
            return Ok(());
        }
        let (table, to, stride) = (self.address(rows), scores.address(), scores.stride() as u64);
        let (from, from_stride) = own.map_or((to, stride), |own| (own.address(), own.stride() as u64));
        let (room, columns) = (room as u32, columns as u32);
        let function = gpu.function("tail", "join_scores")?;
        let mut launch = gpu.launch(&function);
        launch.arg(&table).arg(&from).arg(&from_stride).arg(&room).arg(&to).arg(&stride).arg(&columns);
        let grid = LaunchConfig {
            grid_dim: (lists as u32, rows.len() as u32, 1),
            block_dim: (THREADS as u32, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: scores have the rows, lists and columns that were checked above.
        unsafe { launch.launch(grid) }.map_err(failed("joining scores"))
    }
}

/// Returns the number of pieces of a key.
///
/// # Panics
/// If a key is not a whole number of pieces.
fn pieces_of(keys: &Cache<'_>) -> usize {
    let bytes = keys.d * keys.storage.bytes();
    assert!(bytes.is_multiple_of(PIECE_BYTES), "the kernel does not support keys of {bytes} bytes");
    bytes / PIECE_BYTES
}

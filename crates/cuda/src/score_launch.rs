//! Launches that score candidates, and reduce their scores.

use std::ops::Range;

use cudarc::driver::LaunchConfig;

use super::launch::Cache;
use super::queries::{IndexRows, PageBounds, Pages, ProjectedQueries, Queries};
use super::scores::{Reduction, ScoreWorkspace, Scores};
use super::{Buffer, Gpu, GpuError, Storage, failed};
use spattn_kernels::GPU_ROW_WIDTHS;

/// Candidates for each block of a scoring kernel.
const TILE: usize = 256;
/// The most query heads for each block.
const MOST_QUERIES: usize = 8;
/// Candidates of a block that scores on tensor cores.
const MMA_TILE: usize = 1024;
/// Queries of all rows in one product on tensor cores.
const MMA_QUERIES: usize = 16;

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

/// Queries for scoring kernels: addresses of row 0 and of the row indices, and the layout and number of rows.
struct QueryArgs {
    from: u64,
    rest: u64,
    stride: usize,
    heads: usize,
    list: u64,
    rows: usize,
}

impl Gpu {
    /// Scores keys by `q·k`, for the queries of a range of rows and the keys of `tokens`, into lists by query head, or by KV head if the
    /// scores are reduced.
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
        workspace: &mut ScoreWorkspace,
    ) -> Result<(), GpuError> {
        assert!(tokens.end <= keys.capacity, "tokens {tokens:?} do not lie in a cache of {}", keys.capacity);
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
        self.score(&Self::asking(queries, rows, keys.d, keys.storage), &scored, reduction, workspace)
    }

    /// Scores pages by the largest `q·k` that a key within the bounds of each page can have, into lists by query head, or by KV head if the
    /// scores are reduced.
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
        workspace: &mut ScoreWorkspace,
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
        self.score(&Self::asking(queries, rows, d, storage), &scored, reduction, workspace)
    }

    /// Scores index rows by their products with projected queries of the same width, into lists by query head, or by KV head if the scores
    /// are reduced. Queries that were already summed for each KV head count as reduced by [`Sum`](Reduction::Sum).
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
        workspace: &mut ScoreWorkspace,
    ) -> Result<(), GpuError> {
        let ProjectedQueries { high: most, low: rest, heads, width, rows } = *queries;
        let IndexRows { count, kv_heads, storage, .. } = *index;
        let on_tiles = Self::fits_tiles(storage, width);
        assert!(rest.is_none() || on_tiles, "the kernel does not support queries in two parts of {width} channels");
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
            let out = workspace.resized(self, asking.rows, (heads, kv_heads), count, reduction)?;
            return self.score_into(&asking, &scored, None, out);
        }
        self.score(&asking, &scored, reduction, workspace)
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
        workspace: &mut ScoreWorkspace,
    ) -> Result<(), GpuError> {
        let ScoreArgs { d, kv_heads, columns, storage, .. } = *scored;
        let QueryArgs { stride, heads, rows, .. } = *asking;
        assert!(
            d.is_multiple_of(8) && d <= 256 && stride.is_multiple_of(8),
            "the kernel does not support heads of {d} channels, or rows {stride} numbers apart"
        );
        assert!(heads.is_multiple_of(kv_heads), "{heads} query heads are no multiple of {kv_heads} KV heads");
        let group = heads / kv_heads;
        let on_tiles = Self::fits_tiles(storage, d);
        // Groups that do not fit in one product are reduced afterwards.
        let at_once = reduction.filter(|_| on_tiles && group <= MMA_QUERIES);
        let out = workspace.resized(self, rows, (heads, kv_heads), columns, at_once)?;
        self.score_into(asking, scored, at_once, out)?;
        match reduction.filter(|_| at_once.is_none()) {
            Some(reduction) => workspace.reduce(self, kv_heads, reduction),
            None => Ok(()),
        }
    }

    /// Like [`score`](Self::score), into memory that is already reserved; only tensor cores reduce here.
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

    /// Like [`score`](Self::score), for all widths and types, into lists by query head.
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
        let mut launch = self.launch(&function);
        launch.arg(&list).arg(&from).arg(&row_stride).arg(&heads).arg(&group).arg(&upper).arg(&lower);
        launch.arg(&head_stride).arg(&columns).arg(&d).arg(&to).arg(&out_stride);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (128, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the callers have checked that rows of queries, scored rows and scores lie inside their buffers.
        unsafe { launch.launch(grid) }.map_err(failed("scoring"))
    }

    /// Like [`score`](Self::score), on tensor cores, into memory that is already reserved; reduced or not.
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
            let mut launch = self.launch(&function);
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
        assert!(lists.is_multiple_of(kv_heads), "{lists} lists do not fit {kv_heads} KV heads");
        out.resize(self, rows, kv_heads, columns)?;
        if rows == 0 || columns == 0 {
            return Ok(());
        }
        let function = self.function("scores", "reduce_scores")?;
        let (from, to, stride) = (scores.address(), out.address(), scores.stride() as u64);
        let grid = (columns.div_ceil(256) as u32, kv_heads as u32, rows as u32);
        let (group, columns, largest) =
            ((lists / kv_heads) as i32, columns as u32, i32::from(reduction == Reduction::Max));
        let mut launch = self.launch(&function);
        launch.arg(&from).arg(&stride).arg(&group).arg(&columns).arg(&largest).arg(&to);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (256, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: both hold `rows` rows of their lists, with the same stride.
        unsafe { launch.launch(grid) }.map_err(failed("reducing scores"))
    }

    /// Sums scores over runs of `size` columns, into lists by query head, or by KV head if the sums are reduced. The sum of a shorter last
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
        workspace: &mut ScoreWorkspace,
    ) -> Result<(), GpuError> {
        let Scores { rows, lists, columns, .. } = *scores;
        let out = workspace.resized(self, rows, (lists, kv_heads), columns.div_ceil(size), None)?;
        if rows * lists == 0 || columns == 0 {
            return Ok(());
        }
        let function = self.function("scores", "sum_runs")?;
        let (from, from_stride, to, stride) =
            (scores.address(), scores.stride() as u64, out.address(), out.stride() as u64);
        let grid = (columns.div_ceil(size).div_ceil(256) as u32, (rows * lists) as u32, 1);
        let (columns, size) = (columns as u32, size as u32);
        let mut launch = self.launch(&function);
        launch.arg(&from).arg(&from_stride).arg(&columns).arg(&size).arg(&to).arg(&stride);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (256, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: both hold `rows * lists` lists, one of columns and one of runs.
        unsafe { launch.launch(grid) }.map_err(failed("adding up scores"))?;
        match reduction {
            Some(reduction) => workspace.reduce(self, kv_heads, reduction),
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
        assert!(
            pages.tokens.end <= capacity && pages.size > 0 && d <= 1024,
            "the kernel does not support pages of {} tokens of {:?}, {d} channels, in a cache of {capacity}",
            pages.size,
            pages.tokens
        );
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
        let mut launch = self.launch(&function);
        launch.arg(&from).arg(&stride).arg(&tokens).arg(&size).arg(&d).arg(&lower).arg(&upper);
        let grid = LaunchConfig { grid_dim: grid, block_dim: block, shared_mem_bytes: 0 };
        // SAFETY: keys and bounds are as long as checked above.
        unsafe { launch.launch(grid) }.map_err(failed("computing bounds of pages"))
    }
}

//! Page bounds in 4 or 2 bits (Quest): minima rounded down and maxima rounded up, each channel by its own range over 128 pages.
//!
//! The largest `q·k` that a key within a page's bounds can have is the product of the query's positive part with the maxima plus that of its
//! negative part with the minima. Both are products with [labels](super::labels) that have all channels.

use std::ops::Range;

use cudarc::driver::LaunchConfig;

use super::buffer::reserved;
use super::host_device_vec::HostDeviceVec;
use super::labels::{ChannelLists, CodeRounding, LabelCodes};
use super::launch::Cache;
use super::queries::{Pages, Queries};
use super::scores::{Reduction, ScoreWorkspace};
use super::{Buffer, Gpu, GpuError, Storage, failed};

/// Threads of a block.
const THREADS: usize = 256;

/// The shape of a layer's coded bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodedBounds {
    /// Bits of a number, 4 or 2.
    pub bits: usize,
    /// Number of pages of a KV head.
    pub pages: usize,
    /// Number of KV heads.
    pub kv_heads: usize,
    /// Channels of a head.
    pub d: usize,
}

/// Codes of the minima and of the maxima of a layer's pages, each with its ranges.
#[derive(Debug)]
pub struct PageCodes {
    /// The indices of all channels, u32.
    channels: Buffer,
    /// Ranges and codes of the minima, and of the maxima.
    lower: [Buffer; 2],
    upper: [Buffer; 2],
}

/// Memory for scoring by coded bounds, besides that for the scores.
#[derive(Debug, Default)]
pub struct CodedBoundsWorkspace {
    /// Positive and negative parts of queries, `[row][head][d]`.
    parts: [Option<Buffer>; 2],
    /// Row numbers `0..rows`.
    in_order: HostDeviceVec<u32>,
    /// Products with the minima.
    lower: ScoreWorkspace,
}

impl CodedBounds {
    /// Whether the kernels support heads of `d` channels.
    pub fn fits(d: usize) -> bool {
        LabelCodes::fits(d)
    }

    fn labels<'b>(&self, channels: &'b Buffer) -> LabelCodes<'b> {
        let Self { bits, pages, kv_heads, d } = *self;
        LabelCodes { channels: ChannelLists { buffer: channels, heads: 1, width: d }, bits, tokens: pages, kv_heads }
    }
}

impl Gpu {
    /// Computes the bounds of the pages of a layer's keys in `bits` bits.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the pages are not in the cache, or there are too many channels.
    pub fn code_bounds(&self, keys: &Cache<'_>, pages: &Pages, bits: usize) -> Result<PageCodes, GpuError> {
        let (kv_heads, d, storage) = (keys.kv_heads, keys.d, keys.storage);
        let shape = CodedBounds { bits, pages: pages.count(), kv_heads, d };
        let bytes = kv_heads * pages.count() * d * storage.bytes();
        let (mut least, mut most) = (self.alloc(bytes)?, self.alloc(bytes)?);
        self.page_bounds(keys, pages, &mut least, &mut most)?;
        let channels = self.upload(&(0..d as u32).collect::<Vec<_>>())?;
        let code = |bounds: &Buffer, rounding: CodeRounding| -> Result<[Buffer; 2], GpuError> {
            let labels = shape.labels(&channels);
            let [range_bytes, code_bytes] = labels.bytes();
            let (mut ranges, mut codes) = (self.alloc(range_bytes)?, self.alloc(code_bytes)?);
            let capacity = pages.count();
            let rows = Cache { keys: bounds, values: bounds, keys_at: 0, values_at: 0, capacity, kv_heads, d, storage };
            self.build_labels(&rows, (0, rounding), &labels, [&mut ranges, &mut codes])?;
            Ok([ranges, codes])
        };
        let (lower, upper) = (code(&least, CodeRounding::Down)?, code(&most, CodeRounding::Up)?);
        Ok(PageCodes { channels, lower, upper })
    }

    /// Scores pages by their coded bounds, into lists by query head, or by KV head if the scores are reduced.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn score_coded_bounds(
        &self,
        (queries, rows): (&Queries<'_>, Range<usize>),
        storage: Storage,
        (shape, codes): (&CodedBounds, &PageCodes),
        reduction: Option<Reduction>,
        (scores, workspace): (&mut ScoreWorkspace, &mut CodedBoundsWorkspace),
    ) -> Result<(), GpuError> {
        let (d, heads, count) = (shape.d, queries.heads, rows.len());
        self.part_by_sign((queries, rows), (d, storage), workspace)?;
        workspace.in_order.set(self, (0..count as u32).collect())?;
        let CodedBoundsWorkspace { parts, in_order, lower } = workspace;
        // The sum over heads can be taken of each product; the maximum only of the sum of both products.
        let at_once = reduction.filter(|reduction| *reduction == Reduction::Sum);
        let labels = shape.labels(&codes.channels);
        let sides = [(&parts[0], &codes.upper, &mut *scores), (&parts[1], &codes.lower, &mut *lower)];
        for (part, [ranges, codes], to) in sides {
            let of_part =
                Queries { queries: reserved(part, "parts of queries"), stride: heads * d, heads, rows: in_order };
            self.score_labels((&of_part, 0..count), (d, storage), &labels, [ranges, codes], at_once, to)?;
        }
        self.add_scores(lower, scores, at_once)?;
        match reduction.filter(|_| at_once.is_none()) {
            Some(reduction) => scores.reduce(self, shape.kv_heads, reduction),
            None => Ok(()),
        }
    }

    /// Writes the positive and the negative parts of the queries of some rows.
    fn part_by_sign(
        &self,
        (queries, rows): (&Queries<'_>, Range<usize>),
        (d, storage): (usize, Storage),
        workspace: &mut CodedBoundsWorkspace,
    ) -> Result<(), GpuError> {
        let (count, width) = (rows.len(), queries.heads * d);
        let bytes = count * width * storage.bytes();
        for part in &mut workspace.parts {
            self.reserve(part, bytes)?;
        }
        if count == 0 {
            return Ok(());
        }
        let [positive, negative] =
            workspace.parts.each_ref().map(|part| reserved(part, "parts of queries").address(0, bytes));
        let (from, list) = (queries.address(rows.clone(), d, storage), queries.list(rows));
        let (row_stride, channels) = (queries.stride as u64, width as u32);
        let function = self.function("signed_parts", &format!("signed_parts_{}", storage.name()))?;
        let mut launch = self.launch(&function);
        launch.arg(&list).arg(&from).arg(&row_stride).arg(&channels).arg(&positive).arg(&negative);
        let grid = (width.div_ceil(THREADS) as u32, count as u32, 1);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS as u32, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: queries are as long as `address` checked, and both parts have room for all rows.
        unsafe { launch.launch(grid) }.map_err(failed("parting queries by sign"))
    }

    /// Adds the scores `from` to `to`, which has the same rows, lists and columns.
    fn add_scores(
        &self,
        from: &ScoreWorkspace,
        to: &mut ScoreWorkspace,
        reduction: Option<Reduction>,
    ) -> Result<(), GpuError> {
        let (from, to) = (from.of(reduction), to.of_mut(reduction));
        assert_eq!((from.rows, from.lists, from.columns), (to.rows, to.lists, to.columns), "scores of the same shape");
        let lists = from.rows * from.lists;
        if lists * from.columns == 0 {
            return Ok(());
        }
        let (addresses, strides) = ([from.address(), to.address()], [from.stride() as u64, to.stride() as u64]);
        let columns = from.columns as u32;
        let function = self.function("signed_parts", "add_scores")?;
        let mut launch = self.launch(&function);
        launch.arg(&addresses[0]).arg(&strides[0]).arg(&columns).arg(&addresses[1]).arg(&strides[1]);
        let grid = (from.columns.div_ceil(THREADS) as u32, lists as u32, 1);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS as u32, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: both have `lists` lists of `columns` scores.
        unsafe { launch.launch(grid) }.map_err(failed("adding scores"))
    }
}

//! Labels (Double Sparsity): a few channels of each key, in 4 or 2 bits or unquantised, and their products with queries.

use std::ops::Range;

use cudarc::driver::LaunchConfig;

use super::launch::Cache;
use super::queries::Queries;
use super::scores::{Reduction, ScoreWorkspace};
use super::{Buffer, Gpu, GpuError, Storage, failed};

/// Tokens that share a channel's range.
const GROUP: usize = 128;
/// Channels of one product, and the most channels of a label.
const DEPTH: usize = 16;
const MOST_CHANNELS: usize = 128;
/// Query heads of a block, its warps, and the most groups of tokens of a warp: the more it has, the less often queries are read.
const QUERIES: usize = 8;
const WARPS: usize = 4;
const MOST_EACH: usize = 16;
/// Blocks that run on a multiprocessor at the same time.
const BLOCKS_EACH: usize = 4;
/// Threads of a block that gathers.
const THREADS: usize = 256;
/// Bytes of a channel's range.
const RANGE_BYTES: usize = 8;

/// Channels of each KV head of a model, `[kv_head][width]` u32; repeated if a cache has more heads.
#[derive(Debug, Clone, Copy)]
pub struct ChannelLists<'a> {
    /// Indices of the channels, below the width of a head.
    pub buffer: &'a Buffer,
    /// Number of KV heads.
    pub heads: usize,
    /// Number of channels of each KV head.
    pub width: usize,
}

impl ChannelLists<'_> {
    fn address(&self) -> u64 {
        self.buffer.address(0, 4 * self.heads * self.width)
    }
}

/// How numbers are rounded to codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeRounding {
    /// To the nearest number that a code stands for.
    Nearest,
    /// To the nearest one that is not greater.
    Down,
    /// To the nearest one that is not less.
    Up,
}

/// Quantised labels of all KV heads of a layer.
#[derive(Debug, Clone, Copy)]
pub struct LabelCodes<'a> {
    /// The channels that make up the labels.
    pub channels: ChannelLists<'a>,
    /// Bits of a number, 4 or 2.
    pub bits: usize,
    /// Number of tokens.
    pub tokens: usize,
    /// Number of KV heads.
    pub kv_heads: usize,
}

impl LabelCodes<'_> {
    /// Whether the kernels support this number of channels.
    pub fn fits(width: usize) -> bool {
        (1..=MOST_CHANNELS).contains(&width)
    }

    /// The number of channels, padded for the kernels to `DEPTH` times a power of two.
    fn padded(&self) -> usize {
        DEPTH * self.channels.width.div_ceil(DEPTH).next_power_of_two()
    }

    /// Bytes of the ranges, and of the codes.
    pub fn bytes(&self) -> [usize; 2] {
        let numbers = self.kv_heads * self.tokens.div_ceil(GROUP) * self.padded();
        [numbers * RANGE_BYTES, numbers * GROUP * self.bits / 8]
    }
}

impl Gpu {
    /// Builds labels of the keys of tokens from `first` on into `ranges` and `codes`, which must have their [bytes](LabelCodes::bytes).
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small, or there are too many channels.
    pub fn build_labels(
        &self,
        keys: &Cache<'_>,
        (first, rounding): (usize, CodeRounding),
        labels: &LabelCodes<'_>,
        [ranges, codes]: [&mut Buffer; 2],
    ) -> Result<(), GpuError> {
        let LabelCodes { channels, bits, tokens, kv_heads } = *labels;
        assert!(
            first + tokens <= keys.capacity && kv_heads == keys.kv_heads,
            "labels of {tokens} tokens from {first} on do not fit a cache of {}",
            keys.capacity
        );
        assert!(
            LabelCodes::fits(channels.width) && channels.width <= keys.d,
            "the kernel does not support labels of {} of {} channels",
            channels.width,
            keys.d
        );
        let [range_bytes, code_bytes] = labels.bytes();
        let (ranges, codes) = (ranges.address(0, range_bytes), codes.address(0, code_bytes));
        if tokens == 0 {
            return Ok(());
        }
        let function = self.function("label_scores", &format!("build_labels_{}_{bits}", keys.storage.name()))?;
        let (from, stride, chosen) = (keys.key(0, first), keys.head_stride(), channels.address());
        let (tokens, d, heads) = (tokens as u32, keys.d as i32, channels.heads as u32);
        let (width, padded, rounding) = (channels.width as u32, labels.padded() as u32, rounding as i32);
        let mut launch = self.launch(&function);
        launch.arg(&from).arg(&stride).arg(&tokens).arg(&d).arg(&chosen).arg(&heads).arg(&width).arg(&padded);
        launch.arg(&rounding).arg(&ranges).arg(&codes);
        let grid = LaunchConfig {
            grid_dim: (tokens.div_ceil(GROUP as u32), kv_heads as u32, 1),
            block_dim: (GROUP as u32, 1, 1),
            shared_mem_bytes: padded * GROUP as u32,
        };
        // SAFETY: keys, channels, ranges and codes are as long as checked above; channels lie within a head, as callers ensure.
        unsafe { launch.launch(grid) }.map_err(failed("making labels"))
    }

    /// Multiplies queries of some rows with labels, over the labels' channels, into lists by query head, or by KV head if they are reduced.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn score_labels(
        &self,
        (queries, rows): (&Queries<'_>, Range<usize>),
        (d, storage): (usize, Storage),
        labels: &LabelCodes<'_>,
        [ranges, codes]: [&Buffer; 2],
        reduction: Option<Reduction>,
        workspace: &mut ScoreWorkspace,
    ) -> Result<(), GpuError> {
        let LabelCodes { channels, bits, tokens, kv_heads } = *labels;
        let heads = queries.heads;
        assert!(heads.is_multiple_of(kv_heads), "{heads} query heads are no multiple of {kv_heads} KV heads");
        let group = heads / kv_heads;
        // If one product cannot take a whole group, reduce afterwards; sums are computed from summed queries.
        let sums = reduction == Some(Reduction::Sum);
        let at_once = reduction.filter(|_| sums || group <= QUERIES);
        let out = workspace.resized(self, rows.len(), (heads, kv_heads), tokens, at_once)?;
        let [range_bytes, code_bytes] = labels.bytes();
        let (ranges, codes) = (ranges.address(0, range_bytes), codes.address(0, code_bytes));
        let blocks = labels.padded() / DEPTH;
        let function = self.function("label_scores", &format!("label_scores_{}_{bits}_{blocks}", storage.name()))?;
        let (from, list) = (queries.address(rows.clone(), d, storage), queries.list(rows.clone()));
        let (chosen, channel_heads, width) = (channels.address(), channels.heads as u32, channels.width as u32);
        let (row_stride, to, stride) = (queries.stride as u64, out.address(), out.stride() as u64);
        let reduced = Reduction::number(at_once);
        let heads_at_once = if sums { group } else { QUERIES };
        for first in (0..group).step_by(heads_at_once).filter(|_| tokens > 0 && !rows.is_empty()) {
            let some = (group - first).min(heads_at_once);
            let places = if sums { 1 } else { some.next_power_of_two() };
            let tiles = rows.len().div_ceil(QUERIES / places);
            let groups = tokens.div_ceil(GROUP);
            let each = (groups * kv_heads * tiles).div_ceil(WARPS * BLOCKS_EACH * self.processors()).min(MOST_EACH);
            let grid = (groups.div_ceil(WARPS * each) as u32, kv_heads as u32, tiles as u32);
            let [d, heads, group, first, some, places] = [d, heads, group, first, some, places].map(|n| n as i32);
            let (count, tokens, each) = (rows.len() as u32, tokens as u32, each as u32);
            let mut launch = self.launch(&function);
            launch.arg(&list).arg(&count).arg(&from).arg(&row_stride).arg(&d).arg(&heads).arg(&group).arg(&first);
            launch.arg(&some).arg(&places).arg(&chosen).arg(&channel_heads).arg(&width).arg(&ranges).arg(&codes);
            launch.arg(&tokens).arg(&each).arg(&reduced).arg(&to).arg(&stride);
            let grid = LaunchConfig { grid_dim: grid, block_dim: (32 * WARPS as u32, 1, 1), shared_mem_bytes: 0 };
            // SAFETY: queries, channels, labels and scores are as long as checked above.
            unsafe { launch.launch(grid) }.map_err(failed("scoring labels"))?;
        }
        match reduction.filter(|_| at_once.is_none()) {
            Some(reduction) => workspace.reduce(self, kv_heads, reduction),
            None => Ok(()),
        }
    }

    /// Copies the listed channels of some tokens' keys to `[kv_head][token][padded]` in their type, with zeros beyond the last channel.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn gather_keys(
        &self,
        keys: &Cache<'_>,
        tokens: Range<usize>,
        channels: &ChannelLists<'_>,
        padded: usize,
        out: &mut Buffer,
    ) -> Result<(), GpuError> {
        assert!(
            tokens.end <= keys.capacity && channels.width <= padded.min(keys.d),
            "{} channels padded to {padded}, or tokens {tokens:?} in a cache of {}, are out of range",
            channels.width,
            keys.capacity
        );
        let bytes = keys.kv_heads * tokens.len() * padded * keys.storage.bytes();
        let gathering = Gathering {
            rows: 0,
            from: keys.key(0, tokens.start),
            row_stride: keys.d as u64,
            head_stride: keys.head_stride(),
            count: tokens.len(),
            heads: keys.kv_heads,
            group: 1,
            row_major: 0,
        };
        self.gather(&gathering, channels, padded, keys.storage, out.address(0, bytes))
    }

    /// Copies the listed channels of queries to `[row][head][padded]`, with zeros beyond the last channel.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn gather_queries(
        &self,
        (queries, rows): (&Queries<'_>, Range<usize>),
        (d, kv_heads, storage): (usize, usize, Storage),
        channels: &ChannelLists<'_>,
        padded: usize,
        out: &mut Buffer,
    ) -> Result<(), GpuError> {
        assert!(
            channels.width <= padded.min(d),
            "{} of {d} channels do not fit rows padded to {padded}",
            channels.width
        );
        let bytes = rows.len() * queries.heads * padded * storage.bytes();
        let gathering = Gathering {
            rows: queries.list(rows.clone()),
            from: queries.address(rows.clone(), d, storage),
            row_stride: queries.stride as u64,
            head_stride: d as u64,
            count: rows.len(),
            heads: queries.heads,
            group: queries.heads / kv_heads,
            row_major: 1,
        };
        self.gather(&gathering, channels, padded, storage, out.address(0, bytes))
    }

    fn gather(
        &self,
        of: &Gathering,
        channels: &ChannelLists<'_>,
        padded: usize,
        storage: Storage,
        to: u64,
    ) -> Result<(), GpuError> {
        if of.count == 0 {
            return Ok(());
        }
        let function = self.function("maps", &format!("gather_channels_{}", storage.name()))?;
        let (chosen, channel_heads, width) = (channels.address(), channels.heads as u32, channels.width as i32);
        let grid = ((of.count * padded).div_ceil(THREADS) as u32, of.heads as u32, 1);
        let (count, group, padded) = (of.count as u32, of.group as i32, padded as i32);
        let mut launch = self.launch(&function);
        launch.arg(&of.rows).arg(&of.from).arg(&of.row_stride).arg(&of.head_stride).arg(&count).arg(&group);
        launch.arg(&chosen).arg(&channel_heads).arg(&width).arg(&padded).arg(&to).arg(&of.row_major);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS as u32, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: rows, channels and the output are as long as the callers checked.
        unsafe { launch.launch(grid) }.map_err(failed("gathering channels"))
    }
}

/// Rows whose channels are gathered.
struct Gathering {
    rows: u64,
    from: u64,
    row_stride: u64,
    head_stride: u64,
    count: usize,
    heads: usize,
    group: usize,
    row_major: i32,
}

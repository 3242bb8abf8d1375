//! Tokens that single rows of a prompt attend besides those of their blocks, and the partial softmaxes over them, which are merged with
//! the rows' attention. A row attends slices of lists: of one that the row has for itself, or of lists that rows share.

use cudarc::driver::{DeviceRepr, LaunchConfig};

use super::block_shape::{BlockShape, LIST_STEP};
use super::buffer::reserved;
use super::launch::Cache;
use super::prefill::Rows;
use super::{Buffer, Gpu, GpuError, HostDeviceVec, Plain, failed};

/// Rows of a block of threads: one for each warp.
const ROWS: usize = 4;
/// Threads of a warp.
const WARP: usize = 32;
/// Numbers of a partial softmax besides its output: the maximum and the sum.
const SCALARS: usize = 2;

/// Tokens that each row of a block attends by itself, for one list of the block.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PerRowTokens {
    /// How many tokens each row has.
    counts: Vec<u32>,
    /// Tokens of all rows, row after row.
    tokens: Vec<u32>,
    /// Added to the scaled logits of the tokens; 0 for a token that represents only itself.
    log_weights: Vec<f32>,
}

impl PerRowTokens {
    /// Adds a row with its tokens and their log weights, and returns the number of tokens. No token may occur twice, nor be one that the
    /// row attends through its list, stretch or diagonals.
    pub fn add_row(&mut self, tokens: impl Iterator<Item = (u32, f32)>) -> usize {
        let before = self.tokens.len();
        tokens.for_each(|(token, log_weight)| {
            self.tokens.push(token);
            self.log_weights.push(log_weight);
        });
        let count = self.tokens.len() - before;
        self.counts.push(count as u32);
        count
    }

    /// Number of tokens of all rows.
    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// The tokens of each row, and what is added to their logits.
    pub fn rows(&self) -> impl Iterator<Item = (&[u32], &[f32])> {
        let begins = self.counts.iter().scan(0, |end, count| {
            let begin = *end;
            *end += *count as usize;
            Some(begin..*end)
        });
        begins.map(|range| (&self.tokens[range.clone()], &self.log_weights[range]))
    }
}

/// A stretch of a list of tokens, without those of one group. Mirrors the kernel's struct `Slice`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slice {
    /// Place of the first token.
    pub begin: u32,
    /// Place behind the last token.
    pub end: u32,
    /// The group that is left out, or [`ALL`](Self::ALL).
    pub without: u32,
}

// SAFETY: three words, for which any bits are valid.
unsafe impl Plain for Slice {}

impl Slice {
    /// No group is left out; not the number of a group.
    pub const ALL: u32 = u32::MAX;
}

/// The slices that each row of a block attends, for one list of the block.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PerRowSlices {
    /// How many slices each row has.
    counts: Vec<u32>,
    /// Slices of all rows, row after row.
    slices: Vec<Slice>,
    /// All tokens of the slices are below this position.
    end: usize,
}

impl PerRowSlices {
    /// Adds a row with slices of tokens below `end`. They must not have a token in common, nor one that the row attends through its list,
    /// stretch or diagonals.
    pub fn add_row(&mut self, slices: impl Iterator<Item = Slice>, end: usize) {
        let before = self.slices.len();
        self.end = self.end.max(end);
        self.slices.extend(slices);
        self.counts.push((self.slices.len() - before) as u32);
    }

    /// The slices of each row.
    pub fn rows(&self) -> impl Iterator<Item = &[Slice]> {
        let begins = self.counts.iter().scan(0, |end, count| {
            let begin = *end;
            *end += *count as usize;
            Some(begin..*end)
        });
        begins.map(|range| &self.slices[range])
    }
}

/// Tokens that rows of one list share.
#[derive(Debug, Clone, Copy)]
pub struct SharedList<'a> {
    /// Positions of the tokens.
    pub tokens: &'a [u32],
    /// Added to the scaled logits of the tokens.
    pub log_weights: &'a [f32],
    /// The group of each token.
    pub groups: &'a [u32],
}

/// The tokens of all rows of a chunk, on the device, and memory for their partial softmaxes.
#[derive(Debug, Default)]
pub(super) struct OwnTokens {
    /// Where the slices of each row begin, `[block][list][row]` (every block with all its rows), and the end of the last ones. Unused if
    /// no row has tokens.
    begins: HostDeviceVec<u32>,
    slices: HostDeviceVec<Slice>,
    tokens: Option<Buffer>,
    log_weights: Option<Buffer>,
    groups: Option<Buffer>,
    /// Where the tokens of each list begin, if rows share them, and the end of the last ones.
    shared: Vec<u32>,
    /// Whether some `log_weights` are not 0.
    is_weighted: bool,
    partials: Option<Buffer>,
    /// All tokens are below this position.
    end: usize,
    /// Query heads and channels of a head of `partials`; zeros if no row has tokens.
    of: (usize, usize),
}

/// Mirrors the kernel's struct `Own`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Own {
    begins: u64,
    slices: u64,
    tokens: u64,
    weights: u64,
    groups: u64,
    partials: u64,
    block_rows: u32,
    lists: u32,
}

// SAFETY: laid out as the kernel's struct.
unsafe impl DeviceRepr for Own {}

/// Bytes of the partial softmaxes of `rows` rows.
fn partial_bytes(rows: usize, heads: usize, d: usize) -> usize {
    size_of::<f32>() * rows * heads * (d + SCALARS)
}

impl OwnTokens {
    /// Takes the tokens of all rows away. Shared tokens stay.
    pub(super) fn clear(&mut self) {
        self.of = (0, 0);
    }

    /// Whether no row has tokens.
    pub(super) fn is_empty(&self) -> bool {
        self.of == (0, 0)
    }

    /// A position above all tokens.
    pub(super) fn end(&self) -> usize {
        if self.is_empty() { 0 } else { self.end }
    }

    /// Uploads the tokens of all blocks, `[block][list]`, and reserves partial softmaxes of `heads` query heads of `d` channels.
    pub(super) fn set(
        &mut self,
        gpu: &Gpu,
        shape: &BlockShape,
        blocks: &[&PerRowTokens],
        (heads, d): (usize, usize),
    ) -> Result<(), GpuError> {
        self.clear();
        if blocks.iter().all(|own| own.tokens.is_empty()) {
            return Ok(());
        }
        self.shared.clear();
        let lists: Vec<(&[u32], &[f32])> =
            blocks.iter().map(|own| (own.tokens.as_slice(), own.log_weights.as_slice())).collect();
        self.upload(gpu, &lists)?;
        let slices = slices_of_tokens(blocks);
        self.set_rows(gpu, shape, &slices.iter().collect::<Vec<_>>(), (heads, d))
    }

    /// Uploads the tokens that the rows of each list share. They stay until others are set.
    pub(super) fn set_shared(&mut self, gpu: &Gpu, lists: &[SharedList<'_>]) -> Result<(), GpuError> {
        self.clear();
        assert!(
            lists.iter().all(|of| of.log_weights.len() == of.tokens.len() && of.groups.len() == of.tokens.len()),
            "shared tokens have a weight and a group each"
        );
        assert!(
            lists.iter().all(|of| of.groups.iter().all(|group| *group != Slice::ALL)),
            "{} is not the number of a group",
            Slice::ALL
        );
        assert!(
            lists.iter().all(|of| of.groups.len() < u32::MAX as usize / lists.len()),
            "places of shared tokens are below 2^32"
        );
        self.upload(gpu, &lists.iter().map(|of| (of.tokens, of.log_weights)).collect::<Vec<_>>())?;
        self.shared = ends(lists.iter().map(|of| of.tokens.len() as u32));
        let bytes = size_of::<u32>() * self.count();
        let groups = gpu.reserved(&mut self.groups, bytes.next_multiple_of(LIST_STEP))?;
        for (of, first) in lists.iter().zip(&self.shared) {
            gpu.upload_to(groups, size_of::<u32>() * *first as usize, of.groups)?;
        }
        Ok(())
    }

    /// Sets the slices of shared tokens of all blocks, `[block][list]`.
    pub(super) fn set_slices(
        &mut self,
        gpu: &Gpu,
        shape: &BlockShape,
        blocks: &[&PerRowSlices],
        heads: (usize, usize),
    ) -> Result<(), GpuError> {
        assert_eq!(self.shared.len(), shape.lists + 1, "each list has shared tokens");
        let of_list = |list: usize| self.shared[list + 1] - self.shared[list];
        for (i, own) in blocks.iter().enumerate() {
            let most = of_list(i % shape.lists);
            assert!(
                own.slices.iter().all(|slice| slice.begin <= slice.end && slice.end <= most),
                "slices of block {} end beyond {most} shared tokens",
                i / shape.lists
            );
        }
        let moved = |(i, own): (usize, &&PerRowSlices)| {
            let first = self.shared[i % shape.lists];
            let slices =
                own.slices.iter().map(|slice| Slice { begin: first + slice.begin, end: first + slice.end, ..*slice });
            PerRowSlices { counts: own.counts.clone(), slices: slices.collect(), end: own.end }
        };
        let blocks: Vec<PerRowSlices> = blocks.iter().enumerate().map(moved).collect();
        self.set_rows(gpu, shape, &blocks.iter().collect::<Vec<_>>(), heads)
    }

    /// Uploads lists of tokens with what is added to their logits, one behind the other.
    fn upload(&mut self, gpu: &Gpu, lists: &[(&[u32], &[f32])]) -> Result<(), GpuError> {
        let count: usize = lists.iter().map(|(tokens, _)| tokens.len()).sum();
        assert!(u32::try_from(count).is_ok(), "{count} tokens of single rows are too many");
        let bytes = (size_of::<u32>() * count).next_multiple_of(LIST_STEP);
        self.is_weighted = lists.iter().any(|(_, weights)| weights.iter().any(|weight| *weight != 0.0));
        gpu.reserve(&mut self.tokens, bytes)?;
        if self.is_weighted {
            gpu.reserve(&mut self.log_weights, bytes)?;
        }
        let mut at = 0;
        for (tokens, log_weights) in lists {
            if let Some(to) = &mut self.tokens {
                gpu.upload_to(to, at, tokens)?;
            }
            if let Some(to) = self.log_weights.as_mut().filter(|_| self.is_weighted) {
                gpu.upload_to(to, at, log_weights)?;
            }
            at += size_of_val(*tokens);
        }
        Ok(())
    }

    /// Uploads the slices of all blocks, `[block][list]`, whose tokens are there.
    fn set_rows(
        &mut self,
        gpu: &Gpu,
        shape: &BlockShape,
        blocks: &[&PerRowSlices],
        (heads, d): (usize, usize),
    ) -> Result<(), GpuError> {
        assert_eq!(blocks.len(), shape.blocks() * shape.lists, "`blocks` is not `[block][list]`");
        assert!(
            blocks.iter().all(|own| own.counts.len() <= shape.block_rows),
            "a list has own tokens of more than {} rows",
            shape.block_rows
        );
        self.clear();
        let slices: Vec<Slice> = blocks.iter().flat_map(|own| &own.slices).copied().collect();
        if slices.is_empty() {
            return Ok(());
        }
        gpu.reserve(&mut self.partials, partial_bytes(shape.rows, heads, d))?;
        self.begins.set(gpu, begins(blocks, shape.block_rows))?;
        self.slices.set(gpu, slices)?;
        self.end = blocks.iter().map(|own| own.end).max().unwrap_or(0);
        self.of = (heads, d);
        Ok(())
    }

    /// Number of shared tokens.
    fn count(&self) -> usize {
        self.shared.last().map_or(0, |end| *end as usize)
    }

    /// Addresses for the kernel.
    fn addresses(&self, shape: &BlockShape) -> Own {
        let ((heads, d), slices) = (self.of, self.slices.numbers());
        let bytes = size_of::<u32>() * slices.iter().map(|slice| slice.end as usize).max().unwrap_or(0);
        let of = |buffer: &Option<Buffer>, bytes: usize| reserved(buffer, "tokens of single rows").address(0, bytes);
        Own {
            begins: self.begins.address(0..self.begins.numbers().len()),
            slices: self.slices.address(0..slices.len()),
            tokens: of(&self.tokens, bytes),
            weights: if self.is_weighted { of(&self.log_weights, bytes) } else { 0 },
            groups: if self.shared.is_empty() { 0 } else { of(&self.groups, bytes) },
            partials: of(&self.partials, partial_bytes(shape.rows, heads, d)),
            block_rows: shape.block_rows as u32,
            lists: shape.lists as u32,
        }
    }
}

/// Returns a zero and the sums of the numbers up to each.
fn ends(counts: impl Iterator<Item = u32>) -> Vec<u32> {
    let ends = counts.scan(0, |sum, count| {
        *sum += count;
        Some(*sum)
    });
    std::iter::once(0).chain(ends).collect()
}

/// Returns one slice for each row that has tokens: all of them.
fn slices_of_tokens(blocks: &[&PerRowTokens]) -> Vec<PerRowSlices> {
    let mut at = 0;
    let mut of_row = |count: u32| {
        let begin = at;
        at += count;
        (count > 0).then_some(Slice { begin, end: at, without: Slice::ALL })
    };
    let of_block = |own: &&PerRowTokens| {
        let end = own.tokens.iter().max().map_or(0, |token| *token as usize + 1);
        let mut slices = PerRowSlices::default();
        own.counts.iter().for_each(|count| slices.add_row(of_row(*count).into_iter(), end));
        slices
    };
    blocks.iter().map(of_block).collect()
}

/// Returns where the slices of each row of each list begin, and where the last ones end. Every block counts as having `block_rows` rows.
fn begins(blocks: &[&PerRowSlices], block_rows: usize) -> Vec<u32> {
    ends(blocks.iter().flat_map(|own| {
        let missing = block_rows - own.counts.len();
        own.counts.iter().copied().chain(std::iter::repeat_n(0, missing))
    }))
}

impl Gpu {
    /// Computes the partial softmaxes of rows over their own tokens. Returns their address, or 0 if no row has own tokens.
    pub(super) fn attend_own(
        &self,
        rows: &Rows<'_>,
        cache: &Cache<'_>,
        queries: u64,
        (own, shape): (&OwnTokens, &BlockShape),
    ) -> Result<u64, GpuError> {
        if own.is_empty() {
            return Ok(0);
        }
        assert_eq!(own.of, (rows.heads, cache.d), "query heads and width differ from those given to `set`");
        assert!(
            shape.rows == rows.count && rows.heads.is_multiple_of(shape.lists),
            "{} rows of {} query heads do not fit {shape:?}",
            rows.count,
            rows.heads
        );
        assert!(own.end <= cache.capacity, "own tokens below {} do not lie in a cache of {}", own.end, cache.capacity);
        let width =
            [64, 128, 256].into_iter().find(|width| *width >= cache.d).expect("heads have at most 256 channels");
        let function = self.function("attend_own", &format!("attend_own_{}_{width}", cache.storage.name()))?;
        let (keys, values, scale) = (cache.key(0, 0), cache.value(0, 0), rows.scale);
        let (d, stride, kv_stride) = (cache.d as i32, rows.stride as i32, cache.head_stride() as i64);
        let (count, heads, kv_heads) = (rows.count as i32, rows.heads as i32, cache.kv_heads as i32);
        let to = own.addresses(shape);
        let mut launch = self.launch(&function);
        launch.arg(&queries).arg(&keys).arg(&values).arg(&d).arg(&stride).arg(&kv_stride);
        launch.arg(&count).arg(&heads).arg(&kv_heads).arg(&scale).arg(&to);
        let grid = LaunchConfig {
            grid_dim: (rows.count.div_ceil(ROWS) as u32, rows.heads as u32, 1),
            block_dim: ((ROWS * WARP) as u32, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the caller has checked queries and cache; tokens are below `end`, slices end with the tokens, `begins` has an entry for
        // each row and the last end, and there are partials for all rows and heads.
        unsafe { launch.launch(grid) }.map_err(failed("attending rows' own tokens"))?;
        Ok(to.partials)
    }
}

#[cfg(test)]
mod tests {
    use super::{PerRowSlices, PerRowTokens, Slice, begins, slices_of_tokens};

    #[test]
    fn rows_that_are_not_there_have_no_tokens() {
        let rows = |counts: &[usize]| {
            let mut own = PerRowTokens::default();
            counts.iter().for_each(|count| assert_eq!(own.add_row((0..*count as u32).map(|i| (i, 0.5))), *count));
            own
        };
        // Two lists of a block of three rows, and two of a block with one row.
        let blocks = [rows(&[2, 0, 1]), rows(&[0, 0, 4]), rows(&[3]), rows(&[])];
        let of: Vec<&PerRowTokens> = blocks.iter().collect();
        let slices = slices_of_tokens(&of);
        let all = |begin: u32, end: u32| Slice { begin, end, without: Slice::ALL };
        let found: Vec<Vec<&[Slice]>> = slices.iter().map(|of| of.rows().collect()).collect();
        let expected: [Vec<Vec<Slice>>; 4] = [
            vec![vec![all(0, 2)], vec![], vec![all(2, 3)]],
            vec![vec![], vec![], vec![all(3, 7)]],
            vec![vec![all(7, 10)]],
            vec![],
        ];
        assert_eq!(found, expected);
        let slices: Vec<&PerRowSlices> = slices.iter().collect();
        assert_eq!(begins(&slices, 3), [0, 1, 1, 2, 2, 2, 3, 4, 4, 4, 4, 4, 4]);
        let of_first: Vec<(&[u32], &[f32])> = blocks[0].rows().collect();
        assert_eq!(of_first, [(&[0, 1][..], &[0.5, 0.5][..]), (&[], &[]), (&[0], &[0.5])]);
        assert_eq!(blocks.map(|own| own.tokens()), [3, 4, 3, 0]);
    }
}

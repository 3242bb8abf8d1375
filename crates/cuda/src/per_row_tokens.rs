//! Tokens that single rows of a prompt attend besides those of their blocks, and the partial softmaxes over them, which are merged with
//! the rows' attention.

use cudarc::driver::{DeviceRepr, LaunchConfig};

use super::block_shape::{BlockShape, LIST_STEP};
use super::buffer::reserved;
use super::launch::Cache;
use super::prefill::Rows;
use super::{Buffer, Gpu, GpuError, HostDeviceVec, failed};

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

/// The tokens of all rows of a chunk, on the device, and memory for their partial softmaxes.
#[derive(Debug, Default)]
pub(super) struct OwnTokens {
    /// Where the tokens of each row begin, `[block][list][row]` (every block with all its rows), and the end of the last ones. Unused if
    /// no row has tokens.
    begins: HostDeviceVec<u64>,
    tokens: Option<Buffer>,
    log_weights: Option<Buffer>,
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
    tokens: u64,
    weights: u64,
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
    /// Removes all tokens.
    pub(super) fn clear(&mut self) {
        (self.of, self.end) = ((0, 0), 0);
    }

    /// Whether no row has tokens.
    pub(super) fn is_empty(&self) -> bool {
        self.of == (0, 0)
    }

    /// A position above all tokens.
    pub(super) fn end(&self) -> usize {
        self.end
    }

    /// Uploads the tokens of all blocks, `[block][list]`, and reserves partial softmaxes of `heads` query heads of `d` channels.
    pub(super) fn set(
        &mut self,
        gpu: &Gpu,
        shape: &BlockShape,
        blocks: &[&PerRowTokens],
        (heads, d): (usize, usize),
    ) -> Result<(), GpuError> {
        assert_eq!(blocks.len(), shape.blocks() * shape.lists, "`blocks` is not `[block][list]`");
        assert!(
            blocks.iter().all(|own| own.counts.len() <= shape.block_rows),
            "a list has own tokens of more than {} rows",
            shape.block_rows
        );
        self.clear();
        let count = blocks.iter().map(|own| own.tokens()).sum::<usize>();
        if count == 0 {
            return Ok(());
        }
        let bytes = size_of::<u32>() * count;
        self.end = blocks.iter().flat_map(|own| &own.tokens).map(|token| *token as usize + 1).max().unwrap_or(0);
        self.is_weighted = blocks.iter().any(|own| own.log_weights.iter().any(|weight| *weight != 0.0));
        gpu.reserve(&mut self.tokens, bytes.next_multiple_of(LIST_STEP))?;
        if self.is_weighted {
            gpu.reserve(&mut self.log_weights, bytes.next_multiple_of(LIST_STEP))?;
        }
        gpu.reserve(&mut self.partials, partial_bytes(shape.rows, heads, d))?;
        self.begins.set(gpu, begins(blocks, shape.block_rows))?;
        let mut at = 0;
        for own in blocks {
            if let Some(tokens) = &mut self.tokens {
                gpu.upload_to(tokens, at, &own.tokens)?;
            }
            if let Some(log_weights) = self.log_weights.as_mut().filter(|_| self.is_weighted) {
                gpu.upload_to(log_weights, at, &own.log_weights)?;
            }
            at += size_of_val(&own.tokens[..]);
        }
        self.of = (heads, d);
        Ok(())
    }

    /// Addresses for the kernel.
    fn addresses(&self, shape: &BlockShape) -> Own {
        let (begins, (heads, d)) = (self.begins.numbers(), self.of);
        let bytes = size_of::<u32>() * begins.last().map_or(0, |count| *count as usize);
        let of = |buffer: &Option<Buffer>, bytes: usize| reserved(buffer, "tokens of single rows").address(0, bytes);
        Own {
            begins: self.begins.address(0..begins.len()),
            tokens: of(&self.tokens, bytes),
            weights: if self.is_weighted { of(&self.log_weights, bytes) } else { 0 },
            partials: of(&self.partials, partial_bytes(shape.rows, heads, d)),
            block_rows: shape.block_rows as u32,
            lists: shape.lists as u32,
        }
    }
}

/// Returns where the tokens of each row of each list begin, and where the last ones end. Every block counts as having `block_rows` rows.
fn begins(blocks: &[&PerRowTokens], block_rows: usize) -> Vec<u64> {
    let counts = blocks.iter().flat_map(|own| {
        let missing = block_rows - own.counts.len();
        own.counts.iter().copied().chain(std::iter::repeat_n(0, missing))
    });
    let ends = counts.scan(0, |sum, count| {
        *sum += u64::from(count);
        Some(*sum)
    });
    std::iter::once(0).chain(ends).collect()
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
        // SAFETY: the caller has checked queries and cache; tokens are below `end`, `begins` has an entry for each row and the last end,
        // and there are partials for all rows and heads.
        unsafe { launch.launch(grid) }.map_err(failed("attending rows' own tokens"))?;
        Ok(to.partials)
    }
}

#[cfg(test)]
mod tests {
    use super::{PerRowTokens, begins};

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
        assert_eq!(begins(&of, 3), [0, 2, 2, 3, 3, 3, 7, 10, 10, 10, 10, 10, 10]);
        let of_first: Vec<(&[u32], &[f32])> = blocks[0].rows().collect();
        assert_eq!(of_first, [(&[0, 1][..], &[0.5, 0.5][..]), (&[], &[]), (&[0], &[0.5])]);
        assert_eq!(blocks.map(|own| own.tokens()), [3, 4, 3, 0]);
    }
}

//! Statistics in f64 for methods that model queries by a normal distribution: sums of rows and of their products, linear and quadratic
//! forms of keys, norms of values. Launchers of `kernels/forms.cu`.

use std::ops::Range;

use cudarc::driver::LaunchConfig;

use super::launch::Cache;
use super::{Buffer, Gpu, GpuError, failed};

/// Threads of a block, and the side of the tiles of a product.
const THREADS: usize = 256;
const TILE: usize = 64;
/// Rows that are loaded at a time.
const STAGE: usize = 16;
/// Numbers that a block computes for a chunk of rows: products of two tiles of channels, and sums of one.
const PART: usize = TILE * TILE + TILE;
/// The most chunks of a head's rows; and the number of blocks that fill a GPU, above which rows are not cut into more chunks.
const CHUNKS: usize = 64;
const BLOCKS: usize = 1024;
/// Tokens of a block that computes norms, one for each thread.
const NORM_TOKENS: usize = 128;
/// The widest head.
const WIDEST: usize = 256;

/// Sums over the rows of a head.
#[derive(Debug, Clone, PartialEq)]
pub struct RowMoments {
    /// `Σ x`, `[d]`.
    pub sum: Vec<f64>,
    /// `Σ x·xᵀ`, `[d][d]`.
    pub products: Vec<f64>,
}

/// Whether the kernels can sum rows and compute forms and norms of heads of `d` channels.
pub fn forms_fit(d: usize) -> bool {
    (1..=WIDEST).contains(&d)
}

/// Returns the number of chunks that a head's rows, at least one, are cut into: so few that the results of all blocks take less than 35 MB,
/// unless those of single chunks take more.
fn chunks(heads: usize, rows: usize, pairs: usize) -> usize {
    (BLOCKS / (heads * pairs)).clamp(1, CHUNKS).min(rows.div_ceil(STAGE))
}

/// Returns the number of tokens in a range, after checking that it lies in the cache.
fn count_within(cache: &Cache<'_>, tokens: &Range<usize>) -> usize {
    let Cache { capacity, d, .. } = *cache;
    assert!(
        tokens.end <= capacity && forms_fit(d),
        "tokens {tokens:?} of {d} channels do not lie in a cache of {capacity}, or the kernel does not support them"
    );
    tokens.len()
}

impl Gpu {
    /// Returns, for each head of `numbers` `[row][head][d]` f32, the sums over its rows and over their products, added in f64 in chunks
    /// that depend on the shape alone. Waits for the device.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the buffer is too small, or the heads do not [fit](forms_fit).
    pub fn moments(
        &self,
        numbers: &Buffer,
        (heads, rows, d): (usize, usize, usize),
    ) -> Result<Vec<RowMoments>, GpuError> {
        assert!(forms_fit(d), "the kernel does not support heads of {d} channels");
        let from = numbers.address(0, size_of::<f32>() * heads * rows * d);
        if heads == 0 || rows == 0 {
            return Ok(vec![RowMoments { sum: vec![0.0; d], products: vec![0.0; d * d] }; heads]);
        }
        let (tiles, of_head) = (d.div_ceil(TILE), d + d * d);
        let pairs = tiles * (tiles + 1) / 2;
        let chunks = chunks(heads, rows, pairs);
        let part_bytes = size_of::<f64>() * heads * chunks * pairs * PART;
        let (parts, found) = (self.alloc(part_bytes)?, self.alloc(size_of::<f64>() * heads * of_head)?);
        let (of_chunks, to) = (parts.address(0, part_bytes), found.address(0, size_of::<f64>() * heads * of_head));
        let (count, width, chunk_count) = (rows as u32, d as i32, chunks as u32);
        let function = self.function("forms", "chunk_moments")?;
        let mut launch = self.launch(&function);
        launch.arg(&from).arg(&count).arg(&width).arg(&of_chunks);
        let block = (THREADS as u32, 1, 1);
        let grid = LaunchConfig {
            grid_dim: (heads as u32, chunks as u32, pairs as u32),
            block_dim: block,
            shared_mem_bytes: 0,
        };
        // SAFETY: the rows are as long as checked above, and there is a part for each block.
        unsafe { launch.launch(grid) }.map_err(failed("adding up products of rows"))?;
        let function = self.function("forms", "moments_of_chunks")?;
        let mut launch = self.launch(&function);
        launch.arg(&of_chunks).arg(&chunk_count).arg(&width).arg(&to);
        let grid = LaunchConfig {
            grid_dim: (heads as u32, of_head.div_ceil(THREADS) as u32, 1),
            block_dim: block,
            shared_mem_bytes: 0,
        };
        // SAFETY: the parts were just made, and there is room for the sums of each head.
        unsafe { launch.launch(grid) }.map_err(failed("adding up chunks of rows"))?;
        let numbers: Vec<f64> = self.downloaded(&found, 0, heads * of_head)?;
        let split = |of_head: &[f64]| {
            let (sum, products) = of_head.split_at(d);
            RowMoments { sum: sum.to_vec(), products: products.to_vec() }
        };
        Ok(numbers.chunks_exact(of_head).map(split).collect())
    }

    /// Returns the linear and quadratic forms `[Σ mean·k, kᵀMk]` in f64 of the keys of a range of tokens of a KV head, `[head][token]` for
    /// the query heads of its group. Each query head has a mean, `[head][d]`, and a matrix M, `[head][d][d]`; without matrices, the
    /// quadratic forms are 0. Waits for the device.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If means and matrices do not have these shapes, there are no such tokens, or the heads do not [fit](forms_fit).
    pub fn forms(
        &self,
        cache: &Cache<'_>,
        kv_head: usize,
        tokens: Range<usize>,
        mean: &[f64],
        matrix: Option<&[f64]>,
    ) -> Result<Vec<[f64; 2]>, GpuError> {
        let (count, d) = (count_within(cache, &tokens), cache.d);
        let group = mean.len() / d;
        assert!(
            mean.len() == group * d && matrix.is_none_or(|matrix| matrix.len() == group * d * d),
            "{} numbers of means and {:?} of matrices are not those of heads of {d} channels",
            mean.len(),
            matrix.map(<[f64]>::len)
        );
        if count == 0 || group == 0 {
            return Ok(Vec::new());
        }
        let keys = cache.key(kv_head, tokens.start);
        let (means, matrices) = (self.upload(mean)?, matrix.map(|matrix| self.upload(matrix)).transpose()?);
        let found = self.alloc(size_of::<[f64; 2]>() * group * count)?;
        let (of_means, to) =
            (means.address(0, size_of_val(mean)), found.address(0, size_of::<[f64; 2]>() * group * count));
        let of_matrices = matrices.as_ref().map_or(0, |matrices| matrices.address(0, size_of::<f64>() * group * d * d));
        let (length, width) = (count as u32, d as i32);
        let function = self.function("forms", &format!("key_forms_{}", cache.storage.name()))?;
        let mut launch = self.launch(&function);
        launch.arg(&keys).arg(&length).arg(&width).arg(&of_means).arg(&of_matrices).arg(&to);
        let grid = LaunchConfig {
            grid_dim: (count.div_ceil(TILE) as u32, group as u32, 1),
            block_dim: (THREADS as u32, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the keys lie in the cache; means, matrices and results are as long as checked above.
        unsafe { launch.launch(grid) }.map_err(failed("computing forms of keys"))?;
        let numbers: Vec<f64> = self.downloaded(&found, 0, 2 * group * count)?;
        Ok(numbers.as_chunks().0.to_vec())
    }

    /// Returns the norms of the values of a range of tokens of a KV head. Squares are f32 and are added in f64 in the order of the
    /// channels, so that the host's sum has the same bits. Waits for the device.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If there are no such tokens, or the heads do not [fit](forms_fit).
    pub fn value_norms(&self, cache: &Cache<'_>, kv_head: usize, tokens: Range<usize>) -> Result<Vec<f64>, GpuError> {
        let count = count_within(cache, &tokens);
        if count == 0 {
            return Ok(Vec::new());
        }
        let found = self.alloc(size_of::<f64>() * count)?;
        let (values, to) = (cache.value(kv_head, tokens.start), found.address(0, size_of::<f64>() * count));
        let (length, width) = (count as u32, cache.d as i32);
        let function = self.function("forms", &format!("value_norms_{}", cache.storage.name()))?;
        let mut launch = self.launch(&function);
        launch.arg(&values).arg(&length).arg(&width).arg(&to);
        let grid = LaunchConfig {
            grid_dim: (count.div_ceil(NORM_TOKENS) as u32, 1, 1),
            block_dim: (NORM_TOKENS as u32, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the values lie in the cache, and there is room for the norm of each.
        unsafe { launch.launch(grid) }.map_err(failed("computing norms of values"))?;
        self.downloaded(&found, 0, count)
    }
}

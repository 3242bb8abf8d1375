//! Keys represented by centroids, with a code for each run of channels, and scores from tables of the query's products with all centroids.

use std::ops::Range;

use cudarc::driver::LaunchConfig;

use super::buffer::reserved;
use super::queries::Queries;
use super::scores::{Reduction, ScoreWorkspace};
use super::{Buffer, Gpu, GpuError, Storage, failed};

/// Threads of a block, tokens of a thread, and the most heads that a block processes at a time.
const THREADS: u32 = 256;
const EACH: usize = 4;
const MOST_HEADS: usize = 4;
/// The most bytes of tables in a block's shared memory.
const MOST_SHARED: usize = 160 << 10;
/// The widest head that the kernel supports.
const WIDEST: usize = 256;

/// Codes of a layer's keys, and their centroids.
#[derive(Debug, Clone, Copy)]
pub struct CodedKeys<'a> {
    /// u8 `[kv_head][part][tokens]`, tokens padded to a multiple of four.
    pub codes: &'a Buffer,
    /// f32 `[kv_head][centroid][d]`: row `i` holds centroid `i` of every part.
    pub centroids: &'a Buffer,
    /// Number of runs of channels: part `i` of `p` begins at channel `i * d / p`.
    pub parts: usize,
    /// Number of centroids of a part.
    pub count: usize,
    /// Number of tokens.
    pub tokens: usize,
    /// Number of KV heads.
    pub kv_heads: usize,
}

impl CodedKeys<'_> {
    /// Whether the kernels support this number of parts and centroids, and heads of this width.
    pub fn fits(parts: usize, count: usize, d: usize) -> bool {
        d <= WIDEST && (1..=256).contains(&count) && 4 * parts * count <= MOST_SHARED
    }

    /// Distance between lists of codes, in tokens.
    pub fn stride(tokens: usize) -> usize {
        tokens.next_multiple_of(EACH)
    }

    /// Bytes of a query's products with all centroids.
    fn table_bytes(&self) -> usize {
        4 * self.parts * self.count
    }
}

impl Gpu {
    /// Scores keys by their centroids, into lists by query head, or by KV head if the scores are reduced. `tables` is memory for the
    /// queries' products with centroids.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small, or the keys do not [fit](CodedKeys::fits).
    pub fn score_codes(
        &self,
        (queries, rows): (&Queries<'_>, Range<usize>),
        (d, storage): (usize, Storage),
        keys: &CodedKeys<'_>,
        reduction: Option<Reduction>,
        tables: &mut Option<Buffer>,
        workspace: &mut ScoreWorkspace,
    ) -> Result<(), GpuError> {
        let CodedKeys { parts, count, tokens, kv_heads, .. } = *keys;
        let heads = queries.heads;
        assert!(heads.is_multiple_of(kv_heads), "{heads} query heads are no multiple of {kv_heads} KV heads");
        assert!(
            CodedKeys::fits(parts, count, d) && parts <= d,
            "the kernel does not support {parts} parts of {count} centroids for {d} channels"
        );
        let group = heads / kv_heads;
        let out = workspace.resized(self, rows.len(), (heads, kv_heads), tokens, None)?;
        if rows.is_empty() || tokens == 0 {
            return Ok(());
        }
        let bytes = rows.len() * heads * keys.table_bytes();
        self.reserve(tables, bytes)?;
        let tables = reserved(tables, "products with centroids").address(0, bytes);
        let centroids = keys.centroids.address(0, 4 * kv_heads * count * d);
        let codes = keys.codes.address(0, kv_heads * parts * CodedKeys::stride(tokens));
        let (list, from) = (queries.list(rows.clone()), queries.address(rows.clone(), d, storage));
        let (row_stride, key_stride) = (queries.stride as u64, CodedKeys::stride(tokens) as u64);
        let (to, stride, columns) = (out.address(), out.stride() as u64, tokens as u32);
        let at_once = MOST_HEADS.min(MOST_SHARED / keys.table_bytes()).min(group);
        let shared = (at_once * keys.table_bytes()) as u32;
        let [all_heads, of_group, count, parts, width, at_once] =
            [heads, group, count, parts, d, at_once].map(|n| n as i32);

        let function = self.function("code_scores", &format!("centroid_products_{}", storage.name()))?;
        let mut launch = self.launch(&function);
        launch.arg(&list).arg(&from).arg(&row_stride).arg(&of_group).arg(&centroids).arg(&count).arg(&parts);
        launch.arg(&width).arg(&tables);
        let grid = (heads as u32, rows.len() as u32, 1);
        let blocks = LaunchConfig { grid_dim: grid, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: queries, centroids and tables are as long as checked and made above.
        unsafe { launch.launch(blocks) }.map_err(failed("multiplying with centroids"))?;

        let function = self.with_shared("code_scores", "code_scores", shared)?;
        let mut launch = self.launch(&function);
        launch.arg(&tables).arg(&codes).arg(&key_stride).arg(&columns).arg(&all_heads).arg(&of_group).arg(&count);
        launch.arg(&parts).arg(&at_once).arg(&to).arg(&stride);
        let grid = (tokens.div_ceil(EACH * THREADS as usize) as u32, kv_heads as u32, rows.len() as u32);
        let blocks = LaunchConfig { grid_dim: grid, block_dim: (THREADS, 1, 1), shared_mem_bytes: shared };
        // SAFETY: tables, codes and scores are as long as checked and made above; codes are below the number of centroids, as callers
        // ensure, so every code is within its part's table.
        unsafe { launch.launch(blocks) }.map_err(failed("adding up table entries"))?;
        match reduction {
            Some(reduction) => workspace.reduce(self, kv_heads, reduction),
            None => Ok(()),
        }
    }
}

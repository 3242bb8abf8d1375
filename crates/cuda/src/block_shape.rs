//! How the rows of a prompt's chunk are cut into blocks, and how much memory the blocks' lists take.

/// Memory for lists is allocated in multiples of this many bytes.
pub(super) const LIST_STEP: usize = 1 << 20;

/// How the rows of a chunk are cut into blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockShape {
    /// Rows of the chunk.
    pub rows: usize,
    /// Rows of a block; the last may have fewer.
    pub block_rows: usize,
    /// Lists of a block: one for each query head, or for each KV head, whose query heads then share it.
    pub lists: usize,
}

impl BlockShape {
    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.rows.div_ceil(self.block_rows.max(1))
    }
}

//! How the rows of a prompt's chunk are cut into blocks, and their lists allocated: what all parts of what they see depend on.

/// Lists are allocated in steps of so many bytes.
pub(super) const LIST_STEP: usize = 1 << 20;

/// How the rows of a chunk are cut up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockShape {
    /// Rows of the chunk.
    pub rows: usize,
    /// Rows of a block; the last may have fewer.
    pub block_rows: usize,
    /// Lists of a block: query heads, or KV heads whose query heads share one.
    pub lists: usize,
}

impl BlockShape {
    /// Blocks.
    pub fn blocks(&self) -> usize {
        self.rows.div_ceil(self.block_rows.max(1))
    }
}

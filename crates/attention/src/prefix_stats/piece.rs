//! The part of a prefill chunk that lies in one block of the summation order.

use std::ops::Range;

use crate::calibration::collector::PrefillChunk;

/// Tokens of a chunk within one block.
pub(super) struct Piece<'a> {
    pub(super) chunk: &'a PrefillChunk<'a>,
    pub(super) tokens: Range<usize>,
    /// Position of the block's first token.
    pub(super) block: usize,
    /// End of the block (exclusive); the prefix may end before it.
    pub(super) blocks_end: usize,
}

impl Piece<'_> {
    /// Whether this piece ends its block in a prefix of `tokens` tokens.
    pub(super) fn ends_block(&self, tokens: usize) -> bool {
        self.tokens.end == self.blocks_end.min(tokens)
    }

    /// Number of query heads per KV head.
    pub(super) fn group(&self) -> usize {
        self.chunk.heads / self.chunk.kv_heads()
    }
}

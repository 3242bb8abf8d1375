//! The types of blocks, by name and size.

use super::formats::{Format, Q4K, Q4x0, Q4x1, Q5K, Q5x0, Q5x1, Q6K, Q8x0};

/// The layout of a block. Names and bytes are those of llama.cpp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockType {
    /// 32 numbers of 4 bits around 8, and a scale.
    Q4_0,
    /// 32 numbers of 4 bits, a scale and an offset.
    Q4_1,
    /// 32 numbers of 5 bits around 16, and a scale.
    Q5_0,
    /// 32 numbers of 5 bits, a scale and an offset.
    Q5_1,
    /// 32 signed numbers of 8 bits, and a scale.
    Q8_0,
    /// 256 numbers of 4 bits; each group of 32 has a scale and an offset of 6 bits.
    Q4K,
    /// 256 numbers of 5 bits; each group of 32 has a scale and an offset of 6 bits.
    Q5K,
    /// 256 numbers of 6 bits around 32; each group of 16 has a scale of 8 bits.
    Q6K,
}

/// Evaluates `$body` with `$format` as the [`Format`] of a [`BlockType`].
macro_rules! with_format {
    (@ $own:ident, $format:ident => $body:expr) => {{
        type $format = $own;
        $body
    }};
    ($block_type:expr, $format:ident => $body:expr) => {
        match $block_type {
            BlockType::Q4_0 => with_format!(@ Q4x0, $format => $body),
            BlockType::Q4_1 => with_format!(@ Q4x1, $format => $body),
            BlockType::Q5_0 => with_format!(@ Q5x0, $format => $body),
            BlockType::Q5_1 => with_format!(@ Q5x1, $format => $body),
            BlockType::Q8_0 => with_format!(@ Q8x0, $format => $body),
            BlockType::Q4K => with_format!(@ Q4K, $format => $body),
            BlockType::Q5K => with_format!(@ Q5K, $format => $body),
            BlockType::Q6K => with_format!(@ Q6K, $format => $body),
        }
    };
}

impl BlockType {
    /// All types.
    pub const ALL: [Self; 8] =
        [Self::Q4_0, Self::Q4_1, Self::Q5_0, Self::Q5_1, Self::Q8_0, Self::Q4K, Self::Q5K, Self::Q6K];

    /// Returns the name in lower case, as on the command line and in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q8_0 => "q8_0",
            Self::Q4K => "q4_k",
            Self::Q5K => "q5_k",
            Self::Q6K => "q6_k",
        }
    }

    /// Number of elements in a block.
    pub fn numbers(self) -> usize {
        with_format!(self, F => F::NUMBERS)
    }

    /// Number of bytes of a block.
    pub fn bytes(self) -> usize {
        with_format!(self, F => F::BYTES)
    }

    /// Number of bytes of the blocks that hold `numbers` elements; the last block
    /// may be partly used.
    pub fn bytes_of(self, numbers: usize) -> usize {
        numbers.div_ceil(self.numbers()).saturating_mul(self.bytes())
    }
}

pub(super) use with_format;

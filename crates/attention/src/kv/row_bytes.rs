//! The bytes that a token's key and value take as stored: all counts of bytes read or held come from here.

use std::ops::Range;

use crate::kv::shape::{KvPart, KvShape};

/// Bytes of a token's key and of its value in a KV head, as stored. The first tokens may be stored as codes; all others are numbers of
/// the model's storage type.
///
/// The bytes of a group's scales are divided among its tokens: reading a coded token counts its share of them, in whole bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowBytes {
    /// Number of first tokens that are stored as codes.
    coded: usize,
    /// Bytes of the key and of the value of a coded token, including its share of the scales.
    of_coded: [usize; 2],
    /// Bytes of the key, or of the value, of any other token.
    of_plain: usize,
}

impl RowBytes {
    /// Storage without coded tokens.
    pub fn plain(shape: KvShape) -> Self {
        Self { coded: 0, of_coded: [0; 2], of_plain: shape.d * shape.dtype.bytes() }
    }

    /// Storage with the first `tokens` tokens as codes, with `bytes` for a key and a value.
    pub fn coded(shape: KvShape, tokens: usize, bytes: [usize; 2]) -> Self {
        Self { coded: tokens, of_coded: bytes, ..Self::plain(shape) }
    }

    /// The same storage, with tokens numbered from `first` on.
    pub fn numbered_from(self, first: usize) -> Self {
        Self { coded: self.coded.saturating_sub(first), ..self }
    }

    /// The same storage, in which at most the first `tokens` tokens are codes.
    pub fn up_to(self, tokens: usize) -> Self {
        Self { coded: self.coded.min(tokens), ..self }
    }

    /// Number of first tokens that are stored as codes.
    pub fn coded_tokens(&self) -> usize {
        self.coded
    }

    /// Bytes of the keys, or of the values, of `coded` coded tokens and `plain` others.
    pub fn of_counts(&self, part: KvPart, coded: usize, plain: usize) -> usize {
        coded * self.of_coded[part as usize] + plain * self.of_plain
    }

    /// Bytes of the keys, or of the values, of consecutive tokens.
    pub fn of_range(&self, part: KvPart, tokens: Range<usize>) -> usize {
        let plain = tokens.end.max(self.coded) - tokens.start.max(self.coded);
        self.of_counts(part, tokens.len() - plain.min(tokens.len()), plain)
    }

    /// Bytes of the keys, or of the values, of the listed tokens, each as often as it is listed.
    pub fn of_tokens(&self, part: KvPart, tokens: &[u32]) -> usize {
        let coded = match self.coded {
            0 => 0,
            end => tokens.iter().filter(|token| (**token as usize) < end).count(),
        };
        self.of_counts(part, coded, tokens.len() - coded)
    }

    /// Bytes of keys and values of consecutive tokens.
    pub fn both(&self, tokens: Range<usize>) -> usize {
        KvPart::BOTH.map(|part| self.of_range(part, tokens.clone())).iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::KvDtype;

    const SHAPE: KvShape = KvShape { kv_heads: 1, d: 4, dtype: KvDtype::F32 };

    #[test]
    fn codes_and_numbers_are_counted_token_by_token() {
        let rows = RowBytes::coded(SHAPE, 10, [3, 5]);
        for (range, coded, plain) in [(0..4, 4, 0), (8..13, 2, 3), (10..12, 0, 2), (11..11, 0, 0), (3..3, 0, 0)] {
            assert_eq!(rows.of_range(KvPart::Keys, range.clone()), 3 * coded + 16 * plain, "{range:?}");
            assert_eq!(rows.of_range(KvPart::Values, range.clone()), 5 * coded + 16 * plain, "{range:?}");
            let tokens: Vec<u32> = range.clone().map(|t| t as u32).collect();
            assert_eq!(rows.of_tokens(KvPart::Values, &tokens), 5 * coded + 16 * plain, "{range:?}");
            // Numbered from the seventh token on, three coded tokens are left.
            let from = range.start.max(7)..range.end.max(7);
            let shifted = rows.numbered_from(7).of_range(KvPart::Keys, from.start - 7..from.end - 7);
            assert_eq!(shifted, rows.of_range(KvPart::Keys, from), "{range:?}");
        }
        assert_eq!((rows.both(0..1), rows.both(9..11)), (8, 8 + 32));
        assert_eq!(RowBytes::plain(SHAPE).both(0..1), 32);
    }
}

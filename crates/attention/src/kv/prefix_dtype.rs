//! How a run may store the keys and values of a prefix: as the model computes them, or as codes.

use std::fmt;
use std::str::FromStr;

use crate::kv::row_bytes::RowBytes;
use crate::kv::shape::KvShape;
use spattn_base::error::UsageError;

/// Number of tokens of a channel of keys, or channels of a token's value, that share a range: the group size of KIVI's experiments
/// (§4.1).
pub(super) const GROUP: usize = 32;

/// Bytes of a group's range: its minimum and its step, in 16 bits each.
pub(super) const RANGE_BYTES: usize = 4;

/// How the keys and values of a finished prefix are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PrefixDtype {
    /// Exactly as the model computes them.
    #[default]
    Model,
    /// 8-bit floats (e4m3), with one scale for the keys and one for the values of a KV head.
    F8,
    /// 8-bit codes: keys by channel in groups of tokens, values by token in groups of channels (KIVI, §3.2).
    Q8,
    /// Like `Q8`, with 4 bits.
    Q4,
    /// Like `Q8`, with 2 bits, as in KIVI.
    Q2,
}

impl PrefixDtype {
    /// All storage types.
    pub const ALL: [Self; 5] = [Self::Model, Self::F8, Self::Q8, Self::Q4, Self::Q2];
    /// The names of all storage types, in that order.
    pub const NAMES: [&str; 5] = ["model", "f8", "q8", "q4", "q2"];

    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Whether keys and values are those that the model computed.
    pub fn is_exact(self) -> bool {
        self == Self::Model
    }

    /// Number of bits per element; `None` if the model's storage type decides.
    pub fn bits(self) -> Option<usize> {
        match self {
            Self::Model => None,
            Self::F8 | Self::Q8 => Some(8),
            Self::Q4 => Some(4),
            Self::Q2 => Some(2),
        }
    }

    /// Number of tokens, from the first on, of a prefix of `tokens` tokens that are stored as codes: all whole groups of keys. Later
    /// tokens are stored as the model computes them.
    pub fn coded_tokens(self, tokens: usize) -> usize {
        match self {
            Self::Model => 0,
            Self::F8 => tokens,
            Self::Q8 | Self::Q4 | Self::Q2 => tokens / GROUP * GROUP,
        }
    }

    /// The bytes of a token's key and value in a prefix of `tokens` tokens of a model with this shape.
    pub fn row_bytes(self, shape: KvShape, tokens: usize) -> RowBytes {
        match self {
            Self::Model => RowBytes::plain(shape),
            _ => RowBytes::coded(shape, self.coded_tokens(tokens), self.coded_bytes(shape.d)),
        }
    }

    /// Bytes of the key and of the value of a coded token with `d` channels, including its share of the ranges.
    pub(super) fn coded_bytes(self, d: usize) -> [usize; 2] {
        let codes = (d * self.bits().unwrap_or(0)).div_ceil(8);
        match self {
            Self::Model | Self::F8 => [codes; 2],
            Self::Q8 | Self::Q4 | Self::Q2 => {
                [codes + (d * RANGE_BYTES).div_ceil(GROUP), codes + d.div_ceil(GROUP) * RANGE_BYTES]
            }
        }
    }

    /// Bytes of memory that a copy of a prefix of `tokens` tokens takes besides the prefix itself: codes, scales, and the tokens that
    /// fill no group. 0 for the [model's](Self::Model) own type.
    pub fn bytes_of_copy(self, shape: KvShape, layers: usize, tokens: usize) -> usize {
        /// The scales of keys and values of a KV head.
        const F8_SCALES: usize = 2 * size_of::<f32>();
        let rows = self.row_bytes(shape, tokens);
        let of_head = match self {
            Self::Model => return 0,
            Self::F8 => rows.both(0..tokens).saturating_add(F8_SCALES),
            Self::Q8 | Self::Q4 | Self::Q2 => rows.both(0..tokens),
        };
        of_head.saturating_mul(shape.kv_heads).saturating_mul(layers)
    }
}

impl fmt::Display for PrefixDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PrefixDtype {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Self, UsageError> {
        let known = Self::ALL.into_iter().find(|dtype| dtype.name() == text);
        known.ok_or_else(|| UsageError::unknown("kv-dtype", text, Self::NAMES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::KvDtype;

    #[test]
    fn names_are_read_as_they_are_written() {
        for dtype in PrefixDtype::ALL {
            assert_eq!(dtype.to_string().parse(), Ok(dtype));
        }
        for text in ["", "int4", "Q4", "f16", "q3"] {
            assert!(text.parse::<PrefixDtype>().unwrap_err().hint.is_some(), "{text}");
        }
    }

    #[test]
    fn whole_groups_are_coded_and_the_rest_stays() {
        assert_eq!([0, 31, 32, 100].map(|n| PrefixDtype::Q4.coded_tokens(n)), [0, 0, 32, 96]);
        assert_eq!([PrefixDtype::F8, PrefixDtype::Model].map(|dtype| dtype.coded_tokens(100)), [100, 0]);
    }

    #[test]
    fn a_copy_takes_codes_scales_and_the_rest() {
        let shape = KvShape { kv_heads: 3, d: 64, dtype: KvDtype::F16 };
        let of = |dtype: PrefixDtype| dtype.bytes_of_copy(shape, 2, 100);
        // 96 tokens of 64 channels in codes and 4 tokens in 16 bits, for 3 KV heads of 2 layers, keys and values. Scales: 4 bytes for
        // each of 64 channels of 3 groups of keys, and for each of 2 groups of channels of 96 values.
        let rest = 2 * 4 * 64 * 2;
        let scales = 3 * 64 * 4 + 96 * 2 * 4;
        assert_eq!(of(PrefixDtype::Q4), 6 * (2 * 96 * 32 + scales + rest));
        assert_eq!(of(PrefixDtype::Q8), 6 * (2 * 96 * 64 + scales + rest));
        assert_eq!(of(PrefixDtype::Q2), 6 * (2 * 96 * 16 + scales + rest));
        assert_eq!(of(PrefixDtype::F8), 6 * (2 * 100 * 64 + 8));
        assert_eq!(of(PrefixDtype::Model), 0);
    }
}

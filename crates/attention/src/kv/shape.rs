//! Storage types, the shape that all layers of a KV cache share, and the two parts stored for each token.

use spattn_kernels::Rows;

/// The longest context, in tokens, and the largest number of tokens that a parameter may name: more than any published model supports, and
/// low enough that sums of positions do not overflow.
pub const MOST_TOKENS: usize = 1 << 24;

/// The shape that all layers of a cache share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Number of KV heads of a layer.
    pub kv_heads: usize,
    /// Channels of a head.
    pub d: usize,
    /// Storage type.
    pub dtype: KvDtype,
}

impl KvShape {
    /// Bytes of one token's key and value for one KV head.
    pub fn row_bytes(&self) -> usize {
        2 * self.d * self.dtype.bytes()
    }
}

/// One of the two rows stored for a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvPart {
    /// The key.
    Keys,
    /// The value.
    Values,
}

impl KvPart {
    /// Both parts.
    pub const BOTH: [Self; 2] = [Self::Keys, Self::Values];

    /// Returns this part of keys and values.
    pub(super) fn of<'r>(self, keys: Rows<'r>, values: Rows<'r>) -> Rows<'r> {
        match self {
            Self::Keys => keys,
            Self::Values => values,
        }
    }
}

/// Storage type of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl KvDtype {
    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            KvDtype::F32 => "f32",
            KvDtype::F16 => "f16",
            KvDtype::Bf16 => "bf16",
        }
    }

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            KvDtype::F32 => 4,
            KvDtype::F16 | KvDtype::Bf16 => 2,
        }
    }
}

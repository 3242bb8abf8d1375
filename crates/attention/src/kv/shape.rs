//! Storage types, and the shape that all layers of a KV cache share.

/// The longest context, in tokens, and the largest number of tokens that a parameter may name: above every published model, and low enough
/// that sums of positions do not overflow.
pub const MOST_TOKENS: usize = 1 << 24;

/// The shape that all layers of a cache share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// KV heads of a layer.
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
    /// Its name on the command line.
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

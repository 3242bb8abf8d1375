//! The type that an engine keeps weight matrices in.

use half::{bf16, f16};
use spattn_attention::kv::KvDtype;

/// Storage type of weight matrices in an engine's memory; vectors (norms, biases) are f32.
///
/// It is independent of the type of keys and values, [`KvDtype`], although `--dtype` sets both ([`StorageTypes`]). Matrices that
/// stay in the blocks of their file have none of these types ([`KeptBlocks`](crate::dimensions::KeptBlocks)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightDtype {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl WeightDtype {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// Bytes of a matrix with `numbers` elements.
    pub fn bytes_of(self, numbers: usize) -> usize {
        numbers.saturating_mul(match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        })
    }

    /// `x`, rounded to this type.
    pub(crate) fn rounded(self, x: f32) -> f32 {
        match self {
            Self::F32 => x,
            Self::F16 => f16::from_f32(x).to_f32(),
            Self::Bf16 => bf16::from_f32(x).to_f32(),
        }
    }

    /// The smallest magnitude that rounds to infinity in this type; such numbers are refused.
    pub(crate) fn limit(self) -> f32 {
        match self {
            Self::F16 => 65_520.0,
            Self::F32 | Self::Bf16 => f32::INFINITY,
        }
    }
}

/// The types in which a decoder stores its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StorageTypes {
    /// Weight matrices.
    pub weights: WeightDtype,
    /// Keys and values.
    pub kv: KvDtype,
}

/// The same type for both, as `--dtype` sets it.
impl From<KvDtype> for StorageTypes {
    fn from(kv: KvDtype) -> Self {
        let weights = match kv {
            KvDtype::F32 => WeightDtype::F32,
            KvDtype::F16 => WeightDtype::F16,
            KvDtype::Bf16 => WeightDtype::Bf16,
        };
        Self { weights, kv }
    }
}

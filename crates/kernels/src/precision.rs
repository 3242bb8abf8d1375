//! The precision of matrix products for prompts and weights: one choice for the whole process, like the instruction set.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// The type that factors of matrix products are rounded to. Sums are always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MatmulPrecision {
    /// No rounding.
    #[default]
    F32,
    /// Both factors are rounded to bf16, which is faster on processors with [instructions](super::tiles) for it.
    Bf16,
}

impl MatmulPrecision {
    /// Both precisions.
    pub const ALL: [Self; 2] = [Self::F32, Self::Bf16];

    /// Returns its name in flags and manifests.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

impl fmt::Display for MatmulPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

static BF16: AtomicBool = AtomicBool::new(false);

/// Sets the precision for weights loaded and prompts read from now on. Call it once, before a model is loaded.
pub fn set_matmul_precision(precision: MatmulPrecision) {
    BF16.store(precision == MatmulPrecision::Bf16, Ordering::Relaxed);
}

/// Returns the precision that was set last; f32 if none was.
pub fn matmul_precision() -> MatmulPrecision {
    if BF16.load(Ordering::Relaxed) { MatmulPrecision::Bf16 } else { MatmulPrecision::F32 }
}

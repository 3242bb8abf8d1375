//! In what numbers prompts and weights are multiplied: a choice for the whole process, as the instruction set is.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// What factors of matrix products are rounded to; sums are f32 in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MatmulPrecision {
    /// Nothing is rounded.
    #[default]
    F32,
    /// Both factors are rounded to bf16, so that processors with [instructions](super::tiles) for it multiply faster.
    Bf16,
}

impl MatmulPrecision {
    /// All there are.
    pub const ALL: [Self; 2] = [Self::F32, Self::Bf16];

    /// As users and manifests call it.
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

/// Chooses for weights that are loaded and prompts that are read from now on. To be called before a model is loaded, once.
pub fn set_matmul_precision(precision: MatmulPrecision) {
    BF16.store(precision == MatmulPrecision::Bf16, Ordering::Relaxed);
}

/// What was chosen last; f32 if nothing was.
pub fn matmul_precision() -> MatmulPrecision {
    if BF16.load(Ordering::Relaxed) { MatmulPrecision::Bf16 } else { MatmulPrecision::F32 }
}

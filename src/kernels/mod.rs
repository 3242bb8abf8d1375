//! Compute primitives over plain slices: dot products, attention over ranges and gathered tokens,
//! blocked causal prefill, thin matrix products, top-k selection.
//!
//! This floor knows tokens, rows and heads, but no method, model or file. It is the only floor
//! with `unsafe`: SIMD intrinsics behind runtime detection, each tested against a scalar reference, launches on a GPU, and the
//! program's allocator.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod heap;

/// Widths of rows that kernels on a GPU score on tensor cores; also builds without them have to know what they would take.
pub const GPU_ROW_WIDTHS: [usize; 3] = [32, 64, 128];

/// The widest head that kernels on a GPU map to something else, and the most numbers that they map it to.
pub const GPU_WIDEST: usize = 128;

/// Tokens of which a number, and how many there are, fit in 16 bits.
pub const NARROW_TOKENS: usize = u16::MAX as usize;

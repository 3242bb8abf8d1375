//! Compute primitives over plain slices: dot products, attention over ranges and gathered tokens,
//! blocked causal prefill, thin matrix products, top-k selection.
//!
//! This floor knows tokens, rows and heads, but no method, model or file. It is the only floor
//! with `unsafe`: SIMD intrinsics behind runtime detection, each tested against a scalar reference, and launches on a GPU.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;

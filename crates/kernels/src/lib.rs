//! Compute kernels on the CPU, over plain slices: dot products, attention over ranges and gathered tokens, blocked causal prefill,
//! thin matrix products, top-k selection. This crate knows tokens, rows and heads, but no method, model or file.
//!
//! Beside `spattn-cuda` it is the only crate with `unsafe`: SIMD intrinsics behind runtime detection, each tested against a scalar
//! reference, and the program's [allocator](heap).
//!
//! Arithmetic is f32 throughout, but for [products in bf16](tiles) where they are [chosen](precision); keys, values and
//! weights may be stored in 16 bits.
//!
//! Every result is a fixed function of its inputs: neither the number of threads nor how rows are
//! batched changes a bit of it.

pub mod attend;
pub mod codes;
pub mod elementwise;
pub mod fetch;
pub mod hamming;
pub mod heap;
pub mod hyperplanes;
pub mod linear;
pub mod logit_rule;
pub mod matmul;
pub mod memory;
pub mod pieces;
pub mod precision;
pub mod prefill;
pub mod roof;
pub mod rows;
pub mod share;
mod simd;
pub mod softmax;
pub mod tiles;
pub mod topk;

/// Widths of rows that kernels on a GPU score on tensor cores; also builds without them have to know what they would take.
pub const GPU_ROW_WIDTHS: [usize; 3] = [32, 64, 128];

/// The widest head that kernels on a GPU map to something else, and the most numbers that they map it to.
pub const GPU_WIDEST: usize = 128;

/// Tokens of which a number, and how many there are, fit in 16 bits.
pub const NARROW_TOKENS: usize = u16::MAX as usize;

pub use attend::{Accumulator, attend_list, attend_range, weighted_list, weighted_lists};
pub use logit_rule::{LogitRule, cap_logits};
pub use rows::{Elem, Joined, Rows};
pub use simd::{check_isa, isa_name};

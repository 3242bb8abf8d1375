//! Compute kernels on the CPU, over plain slices: dot products, attention over ranges and gathered tokens, blocked causal prefill,
//! thin matrix products, top-k selection. This crate knows tokens, rows and heads, but no method, model or file.
//!
//! Besides `spattn-cuda`, this is the only crate with `unsafe`: SIMD intrinsics behind runtime detection, each tested against a scalar
//! reference, and the program's [allocator](heap).
//!
//! Arithmetic is f32, except for [products in bf16](tiles) if that precision is [chosen](precision). Keys, values and weights may be stored
//! in 16 bits, weights also [in blocks](quantised) of a few bits a number.
//!
//! Every result is a fixed function of its inputs: neither the number of threads nor the batching of rows changes a bit.

pub mod attend;
pub mod codes;
pub mod distribution;
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
pub mod quadratic;
pub mod quantised;
pub mod roof;
pub mod rows;
pub mod share;
mod simd;
pub mod softmax;
pub mod tiles;
pub mod topk;

/// Row widths that GPU kernels score on tensor cores. Kept here because builds without a GPU have to know them, too.
pub const GPU_ROW_WIDTHS: [usize; 3] = [32, 64, 128];

/// Room for keys and values that a GPU fetches ahead is for a multiple of so many tokens, so that it need not grow at every step. Kept here as
/// above.
pub const GPU_FETCH_STEP: usize = 256;

/// Bytes that a slot of a GPU's token cache takes besides a key and a value. Kept here for builds without a GPU.
pub const GPU_SLOT_BYTES: usize = 16;

/// Bytes of counters that a GPU's key cache has for each KV head: one for each round of a search, and four more. Kept here as above.
pub const GPU_KEY_CACHE_BYTES: usize = 32 * size_of::<u32>() + 2 * size_of::<u32>() + size_of::<u64>();

/// The widest head, and the most outputs per head, that GPU kernels for learned maps support.
pub const GPU_WIDEST: usize = 128;

/// The largest token number, and number of tokens, that fits in 16 bits.
pub const NARROW_TOKENS: usize = u16::MAX as usize;

pub use attend::{Accumulator, attend_list, attend_range, attend_scored, weighted_list, weighted_lists};
pub use logit_rule::{LogitRule, cap_logits};
pub use rows::{Elem, Joined, Rows};
pub use simd::{check_isa, isa_name};

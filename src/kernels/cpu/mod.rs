//! CPU kernels. Arithmetic is f32 throughout, but for [products in bf16](tiles) where they are [chosen](precision); keys, values and
//! weights may be stored in 16 bits.
//!
//! Every result is a fixed function of its inputs: neither the number of threads nor how rows are
//! batched changes a bit of it.

pub mod attend;
pub mod codes;
pub mod elementwise;
pub mod fetch;
pub mod hamming;
pub mod hyperplanes;
pub mod linear;
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

pub use attend::{Accumulator, attend_list, attend_range, weighted_list, weighted_lists};
pub use rows::{Elem, Joined, Rows};
pub use simd::{check_isa, isa_name};

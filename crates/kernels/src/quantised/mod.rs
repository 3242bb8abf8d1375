//! Matrices whose elements are stored in blocks of a few bits each, as in GGUF files, and products with them.
//!
//! A block holds 32 or 256 consecutive elements of a row as small integers, the codes, and the parameters that decode them: element =
//! scale · code + offset, where 16 or 32 elements share scale and offset. `formats` has the layout of each [`BlockType`], and `lanes` the
//! vector operations that layouts are read with. `product` multiplies activations in f32; nothing is rounded but sums. Blocks of several
//! rows can be interleaved (`strips`), so that the same products take fewer instructions (`strip_product`).
//!
//! Nothing here knows files.

mod block_type;
mod formats;
mod lanes;
mod product;
mod strip_product;
mod strips;
#[cfg(test)]
mod tests;

pub use block_type::BlockType;
pub use product::{BlockRows, RowLayout, linear_quantised};

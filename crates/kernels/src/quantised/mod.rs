//! Matrices whose numbers are stored in blocks of a few bits each, as GGUF files hold them, and products with them.
//!
//! A block holds 32 or 256 neighbouring numbers of a row as small whole numbers, the codes, and what turns codes into numbers: number =
//! scale · code + offset, where scale and offset are shared by 16 or 32 numbers. `formats` has the layout of each [`BlockType`], and
//! `lanes` the vector operations that layouts are read with. `product` multiplies activations in f32; nothing is rounded but sums. Blocks
//! of several rows can be laid side by side (`strips`), which makes the same products in fewer instructions (`strip_product`).
//!
//! Files are not known here.

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

//! MXFP4, as gpt-oss stores its experts: blocks of 32 numbers of 4 bits (E2M1) with a scale that is a power of two (E8M0).
//!
//! | part | type | shape |
//! |---|---|---|
//! | `_blocks` | U8 | `[experts][rows][columns / 32][16]`: two numbers a byte, the first in the lower half |
//! | `_scales` | U8 | `[experts][rows][columns / 32]` |
//!
//! The tensor of both, as transformers saves it when it is not quantised, is `[experts][columns][rows]`.

use half::bf16;
use rayon::prelude::*;
use safetensors::Dtype;

use super::parts::{Endings, Packing, Parts};
use crate::tensors::error::WeightsError;
use crate::tensors::stored::{StoredTensor, StoredType};

/// Experts quantised to MXFP4: the format has no parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mxfp4;

const BLOCKS: &str = "_blocks";
const SCALES: &str = "_scales";
/// Numbers of a block.
const BLOCK: usize = 32;

/// The sizes of E2M1 numbers by their lower three bits; the fourth is the sign.
const SIZES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Unpacks blocks, 16 bytes each, with their scales, a byte each: 32 numbers for each block, in order. With blocks
/// `[experts][rows][columns / 32][16]` the result is `[experts][rows][columns]`.
///
/// A scale of 255 is NaN. All other numbers are exact in bf16 as well, but for those above its range.
///
/// # Panics
/// If there are not 16 bytes for each scale.
pub fn unpack(blocks: &[u8], scales: &[u8]) -> Vec<f32> {
    assert_eq!(blocks.len(), scales.len() * BLOCK / 2, "a block is 16 bytes with a scale");
    let mut numbers = vec![0.0; scales.len() * BLOCK];
    let blocks = blocks.as_chunks::<{ BLOCK / 2 }>().0;
    numbers.par_chunks_mut(BLOCK).zip(blocks).zip(scales).for_each(|((numbers, bytes), scale)| {
        let scale = power_of_two(*scale);
        for (pair, byte) in numbers.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
            *pair = [e2m1(byte & 0xF) * scale, e2m1(byte >> 4) * scale];
        }
    });
    numbers
}

/// The scale 2^(byte − 127) of the type E8M0; 255 is NaN.
pub(super) fn power_of_two(byte: u8) -> f32 {
    match byte {
        // Smaller than a normal f32.
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(byte) << 23),
    }
}

fn e2m1(nibble: u8) -> f32 {
    let size = SIZES[usize::from(nibble & 7)];
    if nibble & 8 == 0 { size } else { -size }
}

impl Packing for Mxfp4 {
    fn endings(&self) -> Endings {
        Endings { packed: BLOCKS, packed_type: None, plain: "", others: &[SCALES] }
    }

    fn unpacked_type(&self) -> StoredType {
        StoredType::Bf16
    }

    fn shape(&self, parts: &Parts<'_>) -> Result<Vec<usize>, WeightsError> {
        let [experts, rows, blocks, bytes] = parts.axes(BLOCKS, &[Dtype::U8])?;
        if bytes != BLOCK / 2 {
            return Err(parts.wrong(BLOCKS, format!("its blocks have {bytes} bytes, expected 16")));
        }
        parts.expect(SCALES, &[Dtype::U8], [experts, rows, blocks])?;
        Ok(vec![experts, blocks * BLOCK, rows])
    }

    /// Unpacks an expert at a time: all together are too large to hold in f32.
    fn unpack(&self, parts: &Parts<'_>, shape: &[usize]) -> Result<StoredTensor, WeightsError> {
        let (columns, rows) = (shape[1], shape[2]);
        let (blocks, scales) = (parts.bytes(BLOCKS)?, parts.bytes(SCALES)?);
        let mut bytes = vec![0u8; shape.iter().product::<usize>() * size_of::<bf16>()];
        let of_expert = (rows * columns).max(BLOCK);
        let packed = blocks.chunks(of_expert / 2).zip(scales.chunks(of_expert / BLOCK));
        for (out, (blocks, scales)) in bytes.chunks_mut(of_expert * size_of::<bf16>()).zip(packed) {
            let numbers = unpack(blocks, scales);
            out.par_chunks_mut(rows * size_of::<bf16>()).enumerate().for_each(|(column, out)| {
                for (row, word) in out.as_chunks_mut().0.iter_mut().enumerate() {
                    *word = bf16::from_f32(numbers[row * columns + column]).to_le_bytes();
                }
            });
        }
        Ok(StoredTensor { dtype: StoredType::Bf16, shape: shape.to_vec(), bytes })
    }
}

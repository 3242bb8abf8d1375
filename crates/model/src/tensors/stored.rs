//! A tensor as its file stores it, and its numbers in the types that engines compute with.
//!
//! Where tensors are read from is the business of a [`TensorSource`](super::TensorSource).

use std::cmp::Ordering;
use std::fmt;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;

/// How a file stores the numbers of a tensor: those types that can be read.
///
/// A quantised type is a further variant: its [`bytes`](Self::bytes) become those of a block, and `widen` below turns blocks
/// into f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredType {
    /// 32-bit IEEE.
    F32,
    /// 16-bit IEEE.
    F16,
    /// bfloat16.
    Bf16,
}

impl StoredType {
    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

impl fmt::Display for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        })
    }
}

/// A tensor as it is stored: row-major, little-endian.
#[derive(Debug, Clone)]
pub struct StoredTensor {
    /// Number format of `bytes`.
    pub dtype: StoredType,
    /// Extent of each axis, slowest first.
    pub shape: Vec<usize>,
    /// The numbers.
    pub bytes: Vec<u8>,
}

impl StoredTensor {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers as `f32`; exact from every stored type.
    pub fn to_f32(&self) -> Vec<f32> {
        self.convert(|bytes, out| widen(self.dtype, bytes, out))
    }

    /// The numbers as `f16`, rounded to nearest; what exceeds its range (±65504) becomes infinite.
    pub fn to_f16(&self) -> Vec<f16> {
        self.convert(|bytes, out: &mut [f16]| match self.dtype {
            StoredType::F16 => copy(bytes, out, f16::from_le_bytes),
            _ => out.convert_from_f32_slice(&widened(self.dtype, bytes, out.len())),
        })
    }

    /// The numbers as `bf16`, rounded to nearest.
    pub fn to_bf16(&self) -> Vec<bf16> {
        self.convert(|bytes, out: &mut [bf16]| match self.dtype {
            StoredType::Bf16 => copy(bytes, out, bf16::from_le_bytes),
            _ => out.convert_from_f32_slice(&widened(self.dtype, bytes, out.len())),
        })
    }

    /// The first number whose size is not below `limit`, NaN among them, and its place.
    pub fn first_beyond(&self, limit: f32) -> Option<(usize, f32)> {
        const BLOCK: usize = 1 << 14;
        let blocks = self.bytes.par_chunks(BLOCK * self.dtype.bytes()).enumerate();
        let found = blocks.filter_map(|(block, bytes)| {
            let mut values = vec![0.0; bytes.len() / self.dtype.bytes()];
            widen(self.dtype, bytes, &mut values);
            // Not being below is what NaN has in common with what is too large.
            let at = values.iter().position(|value| value.abs().partial_cmp(&limit) != Some(Ordering::Less))?;
            Some((block * BLOCK + at, values[at]))
        });
        found.min_by_key(|(at, _)| *at)
    }

    /// Converts in blocks that stay in the cache, on all threads: a checkpoint is gigabytes.
    fn convert<T: Copy + Default + Send>(&self, block: impl Fn(&[u8], &mut [T]) + Sync) -> Vec<T> {
        const BLOCK: usize = 1 << 14;
        let mut out = vec![T::default(); self.len()];
        let bytes = self.bytes.par_chunks(BLOCK * self.dtype.bytes());
        out.par_chunks_mut(BLOCK).zip(bytes).for_each(|(out, bytes)| block(bytes, out));
        out
    }
}

fn copy<T, const N: usize>(bytes: &[u8], out: &mut [T], convert: impl Fn([u8; N]) -> T) {
    for (out, word) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *out = convert(*word);
    }
}

fn widen(dtype: StoredType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        StoredType::F32 => copy(bytes, out, f32::from_le_bytes),
        StoredType::Bf16 => copy(bytes, out, |word| bf16::from_le_bytes(word).to_f32()),
        StoredType::F16 => {
            let mut halves = vec![f16::ZERO; out.len()];
            copy(bytes, &mut halves, f16::from_le_bytes);
            halves.convert_to_f32_slice(out);
        }
    }
}

fn widened(dtype: StoredType, bytes: &[u8], len: usize) -> Vec<f32> {
    let mut wide = vec![0.0; len];
    widen(dtype, bytes, &mut wide);
    wide
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_back_in_order() {
        let values: Vec<f32> = (0..40_000).map(|i| (i % 2048) as f32).collect();
        let bytes = values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
        let tensor = StoredTensor { dtype: StoredType::F16, shape: vec![40, 1000], bytes };
        assert_eq!(tensor.to_f32(), values);
        assert!(tensor.to_bf16().iter().zip(&values).all(|(b, v)| *b == bf16::from_f32(*v)));
    }

    #[test]
    fn half_precision_is_exact_both_ways() {
        let values = [1.0f32, -0.333_251_95, 65504.0, 6.1e-5];
        let bytes = values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
        let tensor = StoredTensor { dtype: StoredType::F16, shape: vec![4], bytes };
        let back: Vec<f16> = tensor.to_f32().into_iter().map(f16::from_f32).collect();
        assert_eq!(back, tensor.to_f16());
    }
}

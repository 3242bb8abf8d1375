//! A tensor as stored in its file, and its conversion to the types that engines compute with.
//!
//! A [`TensorSource`](super::TensorSource) reads tensors.

use std::cmp::Ordering;
use std::fmt;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;
use spattn_kernels::quantised::BlockType;

/// How a file stores the numbers of a tensor, for the types that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredType {
    /// 32-bit IEEE.
    F32,
    /// 16-bit IEEE.
    F16,
    /// bfloat16.
    Bf16,
    /// Quantised, in blocks. A tensor consists of whole blocks.
    Blocks(BlockType),
}

impl StoredType {
    /// Bytes of `numbers` numbers.
    pub fn bytes_of(self, numbers: usize) -> usize {
        match self {
            Self::F32 => numbers.saturating_mul(4),
            Self::F16 | Self::Bf16 => numbers.saturating_mul(2),
            Self::Blocks(block_type) => block_type.bytes_of(numbers),
        }
    }

    /// The count of numbers in `bytes` bytes.
    fn numbers_of(self, bytes: usize) -> usize {
        match self {
            Self::F32 => bytes / 4,
            Self::F16 | Self::Bf16 => bytes / 2,
            Self::Blocks(block_type) => bytes / block_type.bytes() * block_type.numbers(),
        }
    }
}

impl fmt::Display for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Blocks(block_type) => block_type.name(),
        })
    }
}

/// The count of numbers that are converted together: whole blocks of every type, and few enough for the cache.
const AT_ONCE: usize = 1 << 14;

/// A tensor as it is stored: row-major, little-endian; quantised ones as blocks in the order of their numbers.
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

    /// The numbers from `first` on, as many as `shape` has: as stored, unless they do not begin and end at a block boundary.
    ///
    /// # Panics
    /// If there are fewer numbers.
    pub(crate) fn part(self, first: usize, shape: &[usize]) -> Self {
        let (all, count) = (self.plain_unless_whole(first), shape.iter().product::<usize>());
        let all = all.plain_unless_whole(count);
        let (start, len) = (all.dtype.bytes_of(first), all.dtype.bytes_of(count));
        Self { dtype: all.dtype, shape: shape.to_vec(), bytes: all.bytes[start..start + len].to_vec() }
    }

    /// The tensor itself, with blocks widened to f32 if `numbers` numbers are not whole blocks.
    pub(super) fn plain_unless_whole(self, numbers: usize) -> Self {
        match self.dtype {
            StoredType::Blocks(block_type) if !numbers.is_multiple_of(block_type.numbers()) => {
                let bytes = self.to_f32().into_iter().flat_map(f32::to_le_bytes).collect();
                Self { dtype: StoredType::F32, bytes, ..self }
            }
            _ => self,
        }
    }

    /// The numbers as `f32`: exact, except that quantised numbers with offsets are rounded once.
    pub fn to_f32(&self) -> Vec<f32> {
        self.convert(|bytes, out| widen(self.dtype, bytes, out))
    }

    /// The numbers as `f16`, rounded to nearest; numbers beyond its range (±65504) become infinite.
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

    /// The first number whose magnitude is not below `limit`, or that is NaN, and its index.
    pub fn first_beyond(&self, limit: f32) -> Option<(usize, f32)> {
        let blocks = self.bytes.par_chunks(self.dtype.bytes_of(AT_ONCE)).enumerate();
        let found = blocks.filter_map(|(block, bytes)| {
            let mut values = vec![0.0; self.dtype.numbers_of(bytes.len())];
            widen(self.dtype, bytes, &mut values);
            // Both NaN and too large numbers fail to compare as less.
            let at = values.iter().position(|value| value.abs().partial_cmp(&limit) != Some(Ordering::Less))?;
            Some((block * AT_ONCE + at, values[at]))
        });
        found.min_by_key(|(at, _)| *at)
    }

    /// Converts pieces that fit the cache, on all threads, since a checkpoint has gigabytes.
    fn convert<T: Copy + Default + Send>(&self, piece: impl Fn(&[u8], &mut [T]) + Sync) -> Vec<T> {
        let mut out = vec![T::default(); self.len()];
        let bytes = self.bytes.par_chunks(self.dtype.bytes_of(AT_ONCE));
        out.par_chunks_mut(AT_ONCE).zip(bytes).for_each(|(out, bytes)| piece(bytes, out));
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
        StoredType::Blocks(block_type) => block_type.dequantise(bytes, out),
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
    use candle_core::quantized::{GgmlDType, QTensor};
    use candle_core::{Device, Tensor};

    use super::*;

    #[test]
    fn blocks_hold_the_numbers_that_candle_reads() {
        let values: Vec<f32> =
            (0..12_288u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 1e6 - 8.0).collect();
        let exact = Tensor::new(values.as_slice(), &Device::Cpu).unwrap().reshape((16, 768)).unwrap();
        for (block_type, theirs) in [
            (BlockType::Q4_0, GgmlDType::Q4_0),
            (BlockType::Q4_1, GgmlDType::Q4_1),
            (BlockType::Q5_0, GgmlDType::Q5_0),
            (BlockType::Q5_1, GgmlDType::Q5_1),
            (BlockType::Q8_0, GgmlDType::Q8_0),
            (BlockType::Q4K, GgmlDType::Q4K),
            (BlockType::Q5K, GgmlDType::Q5K),
            (BlockType::Q6K, GgmlDType::Q6K),
        ] {
            let quantised = QTensor::quantize(&exact, theirs).unwrap();
            let bytes = quantised.data().unwrap().into_owned();
            let tensor = StoredTensor { dtype: StoredType::Blocks(block_type), shape: vec![16, 768], bytes };
            let read = quantised.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(tensor.to_f32(), read, "{}", block_type.name());
            assert_eq!(tensor.bytes.len(), tensor.dtype.bytes_of(tensor.len()));
            assert!(tensor.to_f16().iter().zip(&read).all(|(half, number)| *half == f16::from_f32(*number)));
            assert_eq!(tensor.first_beyond(f32::INFINITY), None);
            let largest = read.iter().copied().map(f32::abs).fold(0.0, f32::max);
            let first = read.iter().position(|number| number.abs() == largest).unwrap();
            assert_eq!(tensor.first_beyond(largest), Some((first, read[first])), "{}", block_type.name());
        }
    }

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

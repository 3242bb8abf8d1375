//! FP8 (E4M3) with one scale for a matrix, for each of its rows, or for each of its blocks: the format of the FP8 checkpoints of
//! Qwen3, DeepSeek and Ministral, and of compressed-tensors.
//!
//! | part | type | shape |
//! |---|---|---|
//! | `.weight` | F8_E4M3 | `[outputs][inputs]` |
//! | `.weight_scale` or `.weight_scale_inv` | F32, BF16, F16 or F8_E8M0 | see [`Fp8Scales`] |
//!
//! Both names mean the factor that an FP8 number is multiplied by. Scales of activations (`.input_scale`, `.activation_scale`) are
//! ignored: activations are not quantised here.

use std::ops::Range;

use safetensors::Dtype;
use serde::Serialize;

use super::parts::{Endings, FLOATS, Packing, Parts, matrix_by_rows};
use crate::tensors::error::WeightsError;
use crate::tensors::stored::StoredTensor;

/// How a checkpoint is quantised to FP8.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fp8 {
    /// The unit that has a scale.
    pub scales: Fp8Scales,
}

/// The unit that has a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fp8Scales {
    /// A matrix: the shape is `[]`, `[1]` or `[1][1]`.
    Matrix,
    /// Each row: `[outputs]` or `[outputs][1]`.
    Row,
    /// Each block of this many rows and columns, both at least 1: `[⌈outputs / rows⌉][⌈inputs / columns⌉]`.
    Block([usize; 2]),
}

const WEIGHT: &str = ".weight";
/// The names of the part with the scales, of which a tensor has one.
const SCALES: [&str; 2] = [".weight_scale_inv", ".weight_scale"];

impl Fp8Scales {
    /// The shapes that the scales of a matrix may have.
    fn shapes(self, [outputs, inputs]: [usize; 2]) -> Vec<Vec<usize>> {
        match self {
            Self::Matrix => vec![vec![], vec![1], vec![1, 1]],
            Self::Row => vec![vec![outputs, 1], vec![outputs]],
            Self::Block([rows, columns]) => vec![vec![outputs.div_ceil(rows), inputs.div_ceil(columns)]],
        }
    }
}

/// The name of the part with the scales.
fn scales(parts: &Parts<'_>) -> Result<&'static str, WeightsError> {
    let stored: Vec<&str> = SCALES.into_iter().filter(|part| parts.has(part)).collect();
    match stored.as_slice() {
        [one] => Ok(one),
        [] => Err(parts
            .wrong(WEIGHT, format!("neither `{}` nor `{}` is stored", parts.name(SCALES[0]), parts.name(SCALES[1])))),
        _ => {
            Err(parts
                .wrong(WEIGHT, format!("both `{}` and `{}` are stored", parts.name(SCALES[0]), parts.name(SCALES[1]))))
        }
    }
}

fn read_scales(parts: &Parts<'_>, part: &str) -> Result<Vec<f32>, WeightsError> {
    match parts.dtype(part) {
        Some(Dtype::F8_E8M0) => Ok(parts.bytes(part)?.into_iter().map(power_of_two).collect()),
        _ => parts.floats(part),
    }
}

impl Packing for Fp8 {
    fn endings(&self) -> Endings {
        Endings {
            packed: WEIGHT,
            packed_type: Some(Dtype::F8_E4M3),
            plain: WEIGHT,
            others: &[".weight_scale_inv", ".weight_scale", ".input_scale", ".activation_scale"],
        }
    }

    fn shape(&self, parts: &Parts<'_>) -> Result<[usize; 2], WeightsError> {
        let shape: [usize; 2] = parts.axes(WEIGHT, &[Dtype::F8_E4M3])?;
        let part = scales(parts)?;
        let (got, expected) = (parts.shape(part)?, self.scales.shapes(shape));
        if !expected.iter().any(|expected| expected == got) {
            return Err(parts.wrong(part, format!("it has shape {got:?}, expected {:?}", expected[0])));
        }
        match parts.dtype(part) {
            Some(dtype) if !FLOATS.contains(&dtype) && dtype != Dtype::F8_E8M0 => {
                Err(parts.wrong(part, format!("it holds {dtype:?}, which is no type of scales")))
            }
            _ => Ok(shape),
        }
    }

    fn unpack(
        &self,
        parts: &Parts<'_>,
        [_, inputs]: [usize; 2],
        rows: Range<usize>,
    ) -> Result<StoredTensor, WeightsError> {
        let (numbers, scales) = (parts.bytes_of_rows(WEIGHT, inputs, &rows)?, read_scales(parts, scales(parts)?)?);
        let table: Vec<f32> = (0..=u8::MAX).map(e4m3).collect();
        let scale = |row: usize, column: usize| match self.scales {
            Fp8Scales::Matrix => scales[0],
            Fp8Scales::Row => scales[row],
            Fp8Scales::Block([rows, columns]) => scales[row / rows * inputs.div_ceil(columns) + column / columns],
        };
        let first = rows.start;
        Ok(matrix_by_rows(rows, inputs, |row, weights| {
            let numbers = &numbers[(row - first) * inputs..][..inputs];
            for (column, (weight, number)) in weights.iter_mut().zip(numbers).enumerate() {
                *weight = table[usize::from(*number)] * scale(row, column);
            }
        }))
    }
}

/// The scale 2^(byte − 127) of the type E8M0; 255 is NaN.
fn power_of_two(byte: u8) -> f32 {
    match byte {
        // Too small for a normal f32.
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(byte) << 23),
    }
}

/// A number with 1 sign bit, 4 exponent bits (bias 7) and 3 mantissa bits. There is no infinity; all exponent and mantissa bits set
/// means NaN.
fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 0xF), f32::from(byte & 7));
    let size = match (exponent, byte & 0x7F) {
        (_, 0x7F) => f32::NAN,
        (0, _) => mantissa / 8.0 * f32::powi(2.0, -6),
        _ => (1.0 + mantissa / 8.0) * f32::powi(2.0, exponent - 7),
    };
    if byte & 0x80 == 0 { size } else { -size }
}

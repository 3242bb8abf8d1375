//! The format `pack-quantized` of compressed-tensors (llm-compressor): numbers of 4 or 8 bits, with adjacent inputs in a word.
//!
//! | part | type | shape |
//! |---|---|---|
//! | `.weight_packed` | I32 | `[outputs][⌈inputs · bits / 32⌉]` |
//! | `.weight_scale` | F16, BF16 or F32 | `[outputs][groups]` |
//! | `.weight_zero_point` | I32 | `[⌈outputs · bits / 32⌉][groups]`; absent if numbers are symmetric |
//! | `.weight_shape` | I64 or I32 | `[2]`: outputs and inputs |
//! | `.weight_g_idx` | I32 | `[inputs]`: the group of each input, if inputs were ordered by their activations |

use std::ops::Range;

use safetensors::Dtype;
use serde::Serialize;

use super::int_groups::{self, GroupSize, IntBits, stored_groups};
use super::parts::{self, Endings, FLOATS, Packing, Parts};
use crate::tensors::error::WeightsError;
use crate::tensors::stored::StoredTensor;

/// How a checkpoint is quantised by compressed-tensors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PackedInts {
    /// Bits of a number.
    pub bits: IntBits,
    /// Inputs that share a scale.
    pub group_size: GroupSize,
    /// Whether there are no zero points.
    pub symmetric: bool,
    /// Whether inputs were ordered by their activations, so that the inputs of a group are not adjacent and `.weight_g_idx` is
    /// required.
    pub by_activation: bool,
}

const WEIGHT: &str = ".weight_packed";
const SCALES: &str = ".weight_scale";
const ZEROS: &str = ".weight_zero_point";
const SHAPE: &str = ".weight_shape";
const GROUPS: &str = ".weight_g_idx";

impl PackedInts {
    /// The stated shape: outputs and inputs.
    fn stated_shape(parts: &Parts<'_>) -> Result<[usize; 2], WeightsError> {
        let types = [Dtype::I64, Dtype::I32];
        parts.expect(SHAPE, &types, [2])?;
        let bytes = parts.bytes(SHAPE)?;
        let stated: Vec<i64> = match parts.dtype(SHAPE) {
            Some(Dtype::I64) => bytes.as_chunks().0.iter().map(|word| i64::from_le_bytes(*word)).collect(),
            _ => bytes.as_chunks().0.iter().map(|word| i64::from(i32::from_le_bytes(*word))).collect(),
        };
        let extents = stated.iter().map(|extent| usize::try_from(*extent).ok()).collect::<Option<Vec<usize>>>();
        let extents = extents.and_then(|extents| <[usize; 2]>::try_from(extents).ok());
        extents.ok_or_else(|| parts.wrong(SHAPE, format!("{stated:?} is no shape of a matrix")))
    }
}

impl Packing for PackedInts {
    fn endings(&self) -> Endings {
        Endings { packed: WEIGHT, packed_type: None, plain: ".weight", others: &[SCALES, ZEROS, SHAPE, GROUPS] }
    }

    fn shape(&self, parts: &Parts<'_>) -> Result<[usize; 2], WeightsError> {
        let [_, words] = parts.axes::<2>(WEIGHT, &[Dtype::I32])?;
        let [outputs, inputs] = Self::stated_shape(parts)?;
        let per_word = self.bits.per_word();
        // Checked in this order, so that no product is formed of numbers that the file merely states.
        if inputs.div_ceil(per_word) != words {
            return Err(parts.wrong(SHAPE, format!("{inputs} inputs are not {words} words of {per_word}")));
        }
        parts.expect(WEIGHT, &[Dtype::I32], [outputs, words])?;
        let groups = self.group_size.groups_of(inputs);
        parts.expect(SCALES, &FLOATS, [outputs, groups])?;
        if !self.symmetric {
            parts.expect(ZEROS, &[Dtype::I32], [outputs.div_ceil(per_word), groups])?;
        }
        if self.by_activation || parts.has(GROUPS) {
            parts.expect(GROUPS, &[Dtype::I32], [inputs])?;
        }
        Ok([outputs, inputs])
    }

    fn unpack(
        &self,
        parts: &Parts<'_>,
        [_, inputs]: [usize; 2],
        rows: Range<usize>,
    ) -> Result<StoredTensor, WeightsError> {
        let per_word = self.bits.per_word();
        let (words, groups) = (inputs.div_ceil(per_word), self.group_size.groups_of(inputs));
        let group_of_input = match parts.has(GROUPS) {
            true => stored_groups(parts, GROUPS, groups)?,
            false => self.group_size.of_inputs(inputs),
        };
        let numbers = parts::words(&parts.bytes_of_rows(WEIGHT, words * size_of::<u32>(), &rows)?);
        let (first, scales) = (rows.start, parts.floats(SCALES)?);
        let zeros = if self.symmetric { None } else { Some(parts.words(ZEROS)?) };
        Ok(int_groups::unpack(
            rows,
            &group_of_input,
            |output, input| self.bits.of_word(numbers[(output - first) * words + input / per_word], input % per_word),
            // Numbers and zero points are both stored as signed numbers, offset by half of the range.
            |group, output| match &zeros {
                Some(zeros) => self.bits.of_word(zeros[output / per_word * groups + group], output % per_word),
                None => self.bits.half(),
            },
            |group, output| scales[output * groups + group],
        ))
    }
}

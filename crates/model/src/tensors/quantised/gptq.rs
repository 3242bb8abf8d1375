//! GPTQ, as written by AutoGPTQ and GPTQModel: numbers of 4 or 8 bits, transposed, with adjacent inputs in a word.
//!
//! | part | type | shape |
//! |---|---|---|
//! | `.qweight` | I32 | `[inputs · bits / 32][outputs]` |
//! | `.qzeros` | I32 | `[groups][⌈outputs · bits / 32⌉]` |
//! | `.scales` | F16, BF16 or F32 | `[groups][outputs]` |
//! | `.g_idx` | I32 | `[inputs]`: the group of each input; optional if the inputs of a group are adjacent |

use std::ops::Range;

use safetensors::Dtype;
use serde::Serialize;

use super::int_groups::{self, GroupSize, IntBits, stored_groups};
use super::parts::{Endings, FLOATS, Packing, Parts};
use crate::tensors::error::WeightsError;
use crate::tensors::stored::StoredTensor;

/// How a checkpoint is quantised by GPTQ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gptq {
    /// Bits of a number.
    pub bits: IntBits,
    /// Inputs that share a scale.
    pub group_size: GroupSize,
    /// Whether inputs were ordered by their activations, so that the inputs of a group are not adjacent and `.g_idx` is required.
    pub by_activation: bool,
    /// Whether zero points are stored minus 1, as in the first version of the format and most checkpoints.
    pub zero_points_less_one: bool,
}

const WEIGHT: &str = ".qweight";
const ZEROS: &str = ".qzeros";
const SCALES: &str = ".scales";
const GROUPS: &str = ".g_idx";

impl Gptq {
    /// The words of zero points, with the 1 added that the first version of the format subtracts.
    ///
    /// GPTQModel adds it to whole words, so a carry goes to the next number; it writes words by the inverse subtraction.
    fn zero_points(&self, parts: &Parts<'_>) -> Result<Vec<u32>, WeightsError> {
        let ones = match (self.zero_points_less_one, self.bits) {
            (false, _) => 0,
            (true, IntBits::Four) => 0x1111_1111,
            (true, IntBits::Eight) => 0x0101_0101,
        };
        Ok(parts.words(ZEROS)?.into_iter().map(|word: u32| word.wrapping_add(ones)).collect())
    }
}

impl Packing for Gptq {
    fn endings(&self) -> Endings {
        Endings { packed: WEIGHT, packed_type: None, plain: ".weight", others: &[ZEROS, SCALES, GROUPS] }
    }

    fn shape(&self, parts: &Parts<'_>) -> Result<[usize; 2], WeightsError> {
        let [words, outputs] = parts.axes(WEIGHT, &[Dtype::I32])?;
        let per_word = self.bits.per_word();
        let inputs = words * per_word;
        let groups = self.group_size.groups_of(inputs);
        parts.expect(ZEROS, &[Dtype::I32], [groups, outputs.div_ceil(per_word)])?;
        parts.expect(SCALES, &FLOATS, [groups, outputs])?;
        if self.by_activation || parts.has(GROUPS) {
            parts.expect(GROUPS, &[Dtype::I32], [inputs])?;
        }
        Ok([outputs, inputs])
    }

    fn unpack(
        &self,
        parts: &Parts<'_>,
        [outputs, inputs]: [usize; 2],
        rows: Range<usize>,
    ) -> Result<StoredTensor, WeightsError> {
        let per_word = self.bits.per_word();
        let group_of_input = match parts.has(GROUPS) {
            true => stored_groups(parts, GROUPS, self.group_size.groups_of(inputs))?,
            false => self.group_size.of_inputs(inputs),
        };
        let (numbers, zeros, scales) = (parts.words(WEIGHT)?, self.zero_points(parts)?, parts.floats(SCALES)?);
        Ok(int_groups::unpack(
            rows,
            &group_of_input,
            |output, input| self.bits.of_word(numbers[input / per_word * outputs + output], input % per_word),
            |group, output| {
                self.bits.of_word(zeros[group * outputs.div_ceil(per_word) + output / per_word], output % per_word)
            },
            |group, output| scales[group * outputs + output],
        ))
    }
}

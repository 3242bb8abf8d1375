//! AWQ in the `gemm` layout of AutoAWQ: numbers of 4 bits, transposed, with the outputs of a word interleaved.
//!
//! | part | type | shape |
//! |---|---|---|
//! | `.qweight` | I32 | `[inputs][outputs / 8]` |
//! | `.qzeros` | I32 | `[groups][outputs / 8]` |
//! | `.scales` | F16, BF16 or F32 | `[groups][outputs]` |

use std::ops::Range;

use safetensors::Dtype;
use serde::Serialize;

use super::int_groups::{self, GroupSize, IntBits};
use super::parts::{Endings, FLOATS, Packing, Parts};
use crate::tensors::error::WeightsError;
use crate::tensors::stored::StoredTensor;

/// How a checkpoint is quantised by AWQ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Awq {
    /// Inputs that share a scale.
    pub group_size: GroupSize,
}

const BITS: IntBits = IntBits::Four;
const WEIGHT: &str = ".qweight";
const ZEROS: &str = ".qzeros";
const SCALES: &str = ".scales";

/// The place in a word, counted from the lowest bits, of each of its 8 outputs: even outputs are in the lower half, odd ones in
/// the upper.
const PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

impl Packing for Awq {
    fn endings(&self) -> Endings {
        Endings { packed: WEIGHT, packed_type: None, plain: ".weight", others: &[ZEROS, SCALES] }
    }

    fn shape(&self, parts: &Parts<'_>) -> Result<[usize; 2], WeightsError> {
        let [inputs, words] = parts.axes(WEIGHT, &[Dtype::I32])?;
        let groups = self.group_size.groups_of(inputs);
        let outputs = words * BITS.per_word();
        parts.expect(ZEROS, &[Dtype::I32], [groups, words])?;
        parts.expect(SCALES, &FLOATS, [groups, outputs])?;
        Ok([outputs, inputs])
    }

    fn unpack(
        &self,
        parts: &Parts<'_>,
        [outputs, inputs]: [usize; 2],
        rows: Range<usize>,
    ) -> Result<StoredTensor, WeightsError> {
        let (numbers, zeros, scales) = (parts.words(WEIGHT)?, parts.words(ZEROS)?, parts.floats(SCALES)?);
        let of_row = |words: &[u32], row: usize, output: usize| {
            let (word, within) = (output / BITS.per_word(), output % BITS.per_word());
            BITS.of_word(words[row * (outputs / BITS.per_word()) + word], PLACES[within])
        };
        Ok(int_groups::unpack(
            rows,
            &self.group_size.of_inputs(inputs),
            |output, input| of_row(&numbers, input, output),
            |group, output| of_row(&zeros, group, output),
            |group, output| scales[group * outputs + output],
        ))
    }
}

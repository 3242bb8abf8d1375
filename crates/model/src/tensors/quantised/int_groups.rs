//! What the integer formats share: integers of few bits in 32-bit words, and a scale and a zero point for each group of inputs. A
//! weight is `(number − zero point) × scale`.

use std::ops::Range;

use serde::Serialize;

use super::parts::{Parts, matrix_by_rows};
use crate::tensors::error::WeightsError;
use crate::tensors::stored::StoredTensor;

/// Bits of a packed number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(into = "usize")]
pub enum IntBits {
    /// Eight in a word.
    Four,
    /// Four in a word.
    Eight,
}

impl From<IntBits> for usize {
    fn from(bits: IntBits) -> Self {
        match bits {
            IntBits::Four => 4,
            IntBits::Eight => 8,
        }
    }
}

impl IntBits {
    /// Numbers in a word.
    pub(super) fn per_word(self) -> usize {
        32 / usize::from(self)
    }

    /// The number at an index in a word, from 0 at the lowest bits.
    pub(super) fn of_word(self, word: u32, place: usize) -> i32 {
        let bits = usize::from(self);
        (word >> (place * bits) & ((1 << bits) - 1)) as i32
    }

    /// Half of the range, by which packed signed numbers are offset.
    pub(super) fn half(self) -> i32 {
        1 << (usize::from(self) - 1)
    }
}

/// Inputs that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupSize {
    /// All inputs of an output.
    All,
    /// This many adjacent inputs; at least 1.
    Neighbours(usize),
}

impl GroupSize {
    /// The number of groups for `inputs` inputs; the last group may be smaller.
    pub(super) fn groups_of(self, inputs: usize) -> usize {
        match self {
            Self::All => 1,
            Self::Neighbours(size) => inputs.div_ceil(size),
        }
    }

    /// The group of each input, if groups consist of adjacent inputs.
    pub(super) fn of_inputs(self, inputs: usize) -> Vec<usize> {
        (0..inputs).map(|input| if let Self::Neighbours(size) = self { input / size } else { 0 }).collect()
    }
}

/// Reads which group each input belongs to.
///
/// # Errors
/// If it cannot be read, or a group is not below `groups`.
pub(super) fn stored_groups(parts: &Parts<'_>, part: &str, groups: usize) -> Result<Vec<usize>, WeightsError> {
    let indices: Vec<usize> = parts.words(part)?.into_iter().map(|index| index as usize).collect();
    match indices.iter().position(|index| *index >= groups) {
        None => Ok(indices),
        Some(input) => {
            // Negative groups are read as large numbers.
            let got = indices[input] as u32 as i32;
            Err(parts.wrong(part, format!("input {input} is in group {got}, and there are {groups} groups")))
        }
    }
}

/// Unpacks some rows of a matrix `[outputs][inputs]` of packed integers.
///
/// `group_of_input` has the group of each input; `number` is called with output and input, `zero_point` and `scale` with group and
/// output.
pub(super) fn unpack(
    outputs: Range<usize>,
    group_of_input: &[usize],
    number: impl Fn(usize, usize) -> i32 + Sync,
    zero_point: impl Fn(usize, usize) -> i32 + Sync,
    scale: impl Fn(usize, usize) -> f32 + Sync,
) -> StoredTensor {
    matrix_by_rows(outputs, group_of_input.len(), |output, row| {
        for (input, (weight, group)) in row.iter_mut().zip(group_of_input).enumerate() {
            *weight = (number(output, input) - zero_point(*group, output)) as f32 * scale(*group, output);
        }
    })
}

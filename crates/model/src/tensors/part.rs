//! Tensors that are parts of larger ones in a file: consecutive numbers, rows and columns that alternate with others, or rows of 4-bit
//! blocks.

use half::bf16;

use super::error::WeightsError;
use super::source::{TensorInfo, TensorSource};
use super::stored::{StoredTensor, StoredType};

/// A tensor that is part of a larger one.
#[derive(Debug, Clone)]
pub(super) struct Part {
    /// The name of the larger tensor in the source.
    pub whole: String,
    /// Where its numbers are.
    pub form: PartForm,
    pub info: TensorInfo,
}

/// Where the numbers of a part are in the larger tensor.
#[derive(Debug, Clone)]
pub enum PartForm {
    /// They are consecutive, starting at this number.
    Consecutive(usize),
    /// Row `r` and column `c` is number `at + r · row + c · column` of the `len` numbers from `first` on.
    Strided {
        /// The first number of the larger tensor that is read.
        first: usize,
        /// The count of numbers that are read.
        len: usize,
        /// The index of the part's first number among these.
        at: usize,
        /// The distance from one row to the next.
        row: usize,
        /// The distance from one column to the next.
        column: usize,
    },
    /// The larger tensor has blocks of [`MXFP4_BLOCK`] numbers of 4 bits, row by row; another tensor has a scale for each block. Row `r` of
    /// the part is row `first + at + r · step`.
    Mxfp4 {
        /// The name of the scales' tensor in the source.
        scales: String,
        /// The first row of the larger tensor that is read.
        first: usize,
        /// The index of the part's first row among these.
        at: usize,
        /// The distance from one row to the next.
        step: usize,
    },
}

/// The number of elements in a block of MXFP4, which share a scale.
pub const MXFP4_BLOCK: usize = 32;
/// Bytes of a block, without its scale.
const MXFP4_BYTES: usize = MXFP4_BLOCK / 2;
/// The values of the 16 numbers of 4 bits: a sign, two bits of exponent, one of mantissa.
const FP4: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

impl Part {
    /// Whether its numbers, in rows of `columns`, consist of whole blocks of `block` numbers of the larger tensor.
    pub(super) fn has_whole_blocks(&self, columns: usize, block: usize) -> bool {
        match self.form {
            PartForm::Consecutive(first) => first.is_multiple_of(block) && columns.is_multiple_of(block),
            PartForm::Strided { .. } | PartForm::Mxfp4 { .. } => false,
        }
    }

    /// Reads the part from `source`.
    ///
    /// # Errors
    /// Those of [`TensorSource::read`].
    pub(super) fn read(
        &self,
        source: &dyn TensorSource,
        name: &str,
        shape: &[usize],
    ) -> Result<StoredTensor, WeightsError> {
        self.info.readable_as(name, shape, || source.file_of(&self.whole))?;
        let whole = source.tensor(&self.whole).map_or(&[][..], |whole| &whole.shape);
        let columns = shape.last().copied().unwrap_or(1);
        match &self.form {
            PartForm::Consecutive(first) => source.read_part(&self.whole, whole, *first, shape),
            PartForm::Strided { first, len, at, row, column } => {
                // Blocks are widened, since a single number is not a whole block of any type.
                let gathered_from = source.read_part(&self.whole, whole, *first, &[*len])?.plain_unless_whole(1);
                let StoredTensor { dtype, bytes, .. } = gathered_from;
                let size = dtype.bytes_of(1);
                let number = |i: usize| at + i / columns * row + i % columns * column;
                let count = shape.iter().product::<usize>();
                let gathered = (0..count).flat_map(|i| &bytes[number(i) * size..][..size]).copied().collect();
                Ok(StoredTensor { dtype, shape: shape.to_vec(), bytes: gathered })
            }
            PartForm::Mxfp4 { scales, first, at, step } => {
                let (rows, blocks) = (shape[0], columns / MXFP4_BLOCK);
                let (read, row_bytes) = (rows * step, blocks * MXFP4_BYTES);
                let numbers = source.read_bytes(&self.whole, (first * row_bytes) as u64, read * row_bytes)?;
                let scales = source.read_bytes(scales, (first * blocks) as u64, read * blocks)?;
                let row = |row: usize| {
                    let place = at + row * step;
                    widened_row(&numbers[place * row_bytes..][..row_bytes], &scales[place * blocks..][..blocks])
                };
                let bytes = (0..rows).flat_map(row).flat_map(bf16::to_le_bytes).collect();
                Ok(StoredTensor { dtype: StoredType::Bf16, shape: shape.to_vec(), bytes })
            }
        }
    }
}

/// The numbers of a row of blocks, which bf16 holds exactly. The low bits of a byte are the first of its two numbers.
fn widened_row(numbers: &[u8], scales: &[u8]) -> Vec<bf16> {
    let block = |(bytes, scale): (&[u8], &u8)| {
        // The scale is an exponent without mantissa, with the bias of f32.
        let scale = f64::from(i32::from(*scale) - 127).exp2();
        let number = move |bits: u8| bf16::from_f64(f64::from(FP4[usize::from(bits)]) * scale);
        bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]).map(number).collect::<Vec<_>>()
    };
    numbers.chunks_exact(MXFP4_BYTES).zip(scales).flat_map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with the table of transformers 5.24 (`integrations/mxfp4.py`), and `ldexp` by the scale minus 127.
    #[test]
    fn blocks_of_four_bits_are_widened() {
        let bytes: Vec<u8> = (0..16).map(|i| i | (15 - i) << 4).collect();
        let row = widened_row(&[bytes.clone(), bytes].concat(), &[127, 130]);
        let numbers: Vec<f32> = row.iter().map(|x| x.to_f32()).collect();
        assert_eq!(numbers[..8], [0.0, -6.0, 0.5, -4.0, 1.0, -3.0, 1.5, -2.0]);
        assert_eq!(numbers[30..32], [-6.0, 0.0]);
        assert_eq!(numbers[32 + 3], -32.0, "eight times as much");
    }
}

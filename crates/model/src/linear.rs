//! Weight matrices in their storage types, and products with them.
//!
//! Weights stay in f32, f16 or bf16, or in the quantised blocks of their file. Arithmetic is in f32 ([`linear_rows`],
//! [`linear_quantised`]), or with factors rounded to bf16 ([`tiles`]).

use std::sync::Arc;

use half::{bf16, f16};

use super::tensors::{StoredTensor, StoredType, WeightDtype};
use spattn_kernels::Rows;
use spattn_kernels::linear::linear_rows;
use spattn_kernels::memory::begin_with_line;
use spattn_kernels::precision::{MatmulPrecision, matmul_precision};
use spattn_kernels::quantised::{BlockRows, BlockType, RowLayout, linear_quantised};
use spattn_kernels::tiles::{self, LeftTiles, RightTiles};

/// A `[rows][columns]` matrix in its storage type.
#[derive(Debug, Clone)]
pub struct Matrix {
    data: Arc<Data>,
    columns: usize,
}

#[derive(Debug)]
enum Data {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    /// Packed once, for products in bf16.
    Tiles(RightTiles),
    /// Quantised, in parts that may have different types: a file may store the values' rows of a layer in more bits than the queries'.
    Blocks(Vec<Blocks>),
    /// Matrices on top of each other, some quantised and some not.
    Mixed(Vec<Matrix>),
}

/// Rows in blocks of one type.
#[derive(Debug)]
struct Blocks {
    block_type: BlockType,
    layout: RowLayout,
    bytes: Vec<u8>,
    /// The offset of the blocks in `bytes`.
    first: usize,
}

impl Blocks {
    /// The rows of a tensor. Those that make whole strips are interleaved in place; the others are left unchanged.
    fn of_rows(block_type: BlockType, mut bytes: Vec<u8>, columns: usize) -> Vec<Self> {
        let strip_bytes = block_type.strip_rows().unwrap_or(usize::MAX).saturating_mul(block_type.bytes_of(columns));
        let rest = bytes.split_off(bytes.len() / strip_bytes * strip_bytes);
        let rows = Self { block_type, layout: RowLayout::Rows, bytes: rest, first: 0 };
        if bytes.is_empty() {
            return vec![rows];
        }
        let first = begin_with_line(&mut bytes);
        block_type.lay_side_by_side(&mut bytes[first..], columns);
        let strips = Self { block_type, layout: RowLayout::Strips, bytes, first };
        [strips, rows].into_iter().filter(|part| !part.bytes.is_empty()).collect()
    }

    fn rows(&self) -> BlockRows<'_> {
        BlockRows { block_type: self.block_type, layout: self.layout, blocks: &self.bytes[self.first..] }
    }

    /// The number of rows, which have this many columns.
    fn len(&self, columns: usize) -> usize {
        self.rows().blocks.len() / self.block_type.bytes_of(columns)
    }
}

impl Matrix {
    /// Stacks tensors of equal width, converted to `dtype`; for products in bf16, converted to bf16.
    pub fn stack(tensors: &[StoredTensor], columns: usize, dtype: WeightDtype) -> Self {
        Self::for_precision(matmul_precision(), tensors, columns, dtype)
    }

    fn for_precision(precision: MatmulPrecision, tensors: &[StoredTensor], columns: usize, dtype: WeightDtype) -> Self {
        if precision == MatmulPrecision::Bf16 {
            let rows: Vec<bf16> = tensors.iter().flat_map(StoredTensor::to_bf16).collect();
            return Self { data: Arc::new(Data::Tiles(RightTiles::of_rows(&rows, columns))), columns };
        }
        let data = match dtype {
            WeightDtype::F32 => Data::F32(tensors.iter().flat_map(StoredTensor::to_f32).collect()),
            WeightDtype::F16 => Data::F16(tensors.iter().flat_map(StoredTensor::to_f16).collect()),
            WeightDtype::Bf16 => Data::Bf16(tensors.iter().flat_map(StoredTensor::to_bf16).collect()),
        };
        Self { data: Arc::new(data), columns }
    }

    /// Like [`stack`](Self::stack) with products in f32, but tensors stored in blocks are kept if their rows are whole blocks.
    pub fn stack_blocks(tensors: Vec<StoredTensor>, columns: usize, dtype: WeightDtype) -> Self {
        let stays = |tensor: &StoredTensor| match tensor.dtype {
            StoredType::Blocks(block_type) => columns.is_multiple_of(block_type.numbers()).then_some(block_type),
            StoredType::F32 | StoredType::F16 | StoredType::Bf16 => None,
        };
        let staying = tensors.iter().filter(|tensor| stays(tensor).is_some()).count();
        if staying == 0 {
            return Self::for_precision(MatmulPrecision::F32, &tensors, columns, dtype);
        }
        let data = match staying == tensors.len() {
            true => {
                let blocks = |tensor: StoredTensor| Some(Blocks::of_rows(stays(&tensor)?, tensor.bytes, columns));
                Data::Blocks(tensors.into_iter().filter_map(blocks).flatten().collect())
            }
            false => {
                Data::Mixed(tensors.into_iter().map(|one| Self::stack_blocks(vec![one], columns, dtype)).collect())
            }
        };
        Self { data: Arc::new(data), columns }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        match &*self.data {
            Data::F32(v) => v.len() / self.columns,
            Data::F16(v) => v.len() / self.columns,
            Data::Bf16(v) => v.len() / self.columns,
            Data::Tiles(tiles) => tiles.outputs(),
            Data::Blocks(parts) => parts.iter().map(|part| part.len(self.columns)).sum(),
            Data::Mixed(parts) => parts.iter().map(Self::len).sum(),
        }
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of bytes stored.
    pub fn bytes(&self) -> usize {
        match &*self.data {
            Data::F32(v) => size_of_val(v.as_slice()),
            Data::F16(v) => size_of_val(v.as_slice()),
            Data::Bf16(v) => size_of_val(v.as_slice()),
            Data::Tiles(tiles) => tiles.bytes(),
            Data::Blocks(parts) => parts.iter().map(|part| part.rows().blocks.len()).sum(),
            Data::Mixed(parts) => parts.iter().map(Self::bytes).sum(),
        }
    }

    /// One row as f32.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        match &*self.data {
            Data::F32(v) => Rows::F32(v).read(row, out),
            Data::F16(v) => Rows::F16(v).read(row, out),
            Data::Bf16(v) => Rows::Bf16(v).read(row, out),
            Data::Tiles(tiles) => tiles.read_row(row, out),
            Data::Blocks(parts) => {
                let (part, row) = part_of(parts, row, |part| part.len(self.columns));
                part.rows().read_row(row, out);
            }
            Data::Mixed(parts) => {
                let (part, row) = part_of(parts, row, Self::len);
                part.read_row(row, out);
            }
        }
    }

    /// `x · Wᵀ` for rows of `x`; a row's result does not depend on the others.
    pub fn times(&self, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len() / self.columns * self.len()];
        match &*self.data {
            Data::F32(w) => linear_rows(x, w, self.columns, &mut out),
            Data::F16(w) => linear_rows(x, w, self.columns, &mut out),
            Data::Bf16(w) => linear_rows(x, w, self.columns, &mut out),
            Data::Tiles(w) => tiles::multiply(&LeftTiles::new(x, self.columns), w, &mut out),
            Data::Blocks(parts) => {
                let parts: Vec<BlockRows<'_>> = parts.iter().map(Blocks::rows).collect();
                linear_quantised(x, &parts, self.columns, &mut out);
            }
            Data::Mixed(parts) => self.times_parts(parts, x, &mut out),
        }
        out
    }

    fn times_parts(&self, parts: &[Self], x: &[f32], out: &mut [f32]) {
        let mut first = 0;
        for part in parts {
            let (products, width) = (part.times(x), part.len());
            for (out, products) in out.chunks_exact_mut(self.len()).zip(products.chunks_exact(width)) {
                out[first..first + width].copy_from_slice(products);
            }
            first += width;
        }
    }
}

/// The part that holds a row, and the row's index in it.
///
/// # Panics
/// If there is no such row.
fn part_of<P>(parts: &[P], row: usize, len: impl Fn(&P) -> usize) -> (&P, usize) {
    let mut within = row;
    for part in parts {
        match within.checked_sub(len(part)) {
            Some(behind) => within = behind,
            None => return (part, within),
        }
    }
    panic!("there is no row {row}")
}

/// A matrix with an optional bias.
#[derive(Debug, Clone)]
pub struct Linear {
    /// `[outputs][inputs]`.
    pub weight: Matrix,
    /// One for each output.
    pub bias: Option<Vec<f32>>,
}

impl Linear {
    /// `x · Wᵀ + b` for rows of `x`; a row's result does not depend on the others.
    pub fn apply(&self, x: &[f32]) -> Vec<f32> {
        let mut out = self.weight.times(x);
        if let Some(bias) = &self.bias {
            for row in out.chunks_exact_mut(bias.len()) {
                row.iter_mut().zip(bias).for_each(|(o, b)| *o += b);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::Weights;

    #[test]
    fn a_stack_of_blocks_of_several_types_and_plain_rows_is_one_matrix() {
        let columns = 288;
        let tensor = |block_type: Option<BlockType>, rows: usize, seed: u64| {
            let weights = block_type.map_or_else(|| Weights::random(seed), |of| Weights::random_in(seed, of));
            weights.read("layer.weight", &[rows, columns]).unwrap()
        };
        let (small, wide) = (tensor(Some(BlockType::Q5_0), 5, 1), tensor(Some(BlockType::Q8_0), 3, 2));
        let (whole, plain) = (tensor(Some(BlockType::Q4K), 4, 3), tensor(None, 6, 4));
        assert_eq!(whole.dtype, StoredType::Bf16, "288 is not whole blocks of 256");
        let x: Vec<f32> = (0..2 * columns).map(|i| (i as f32 * 0.7).sin()).collect();
        for (tensors, bytes) in [
            (vec![small.clone(), wide.clone()], 5 * 9 * 22 + 3 * 9 * 34),
            (vec![wide, plain.clone(), small], 5 * 9 * 22 + 3 * 9 * 34 + 6 * 288 * 4),
            (vec![plain, whole], 10 * 288 * 4),
        ] {
            let all: Vec<f32> = tensors.iter().flat_map(StoredTensor::to_f32).collect();
            let expected = Matrix::for_precision(MatmulPrecision::F32, &tensors, columns, WeightDtype::F32);
            let stack = Matrix::stack_blocks(tensors, columns, WeightDtype::F32);
            assert_eq!((stack.len(), stack.bytes()), (all.len() / columns, bytes));
            for (row, exact) in all.chunks_exact(columns).enumerate() {
                let mut read = vec![f32::NAN; columns];
                stack.read_row(row, &mut read);
                assert_eq!(read, exact, "row {row}");
            }
            assert_eq!(stack.times(&x), expected.times(&x));
        }
    }

    #[test]
    fn a_matrix_of_larger_blocks_is_the_same_in_strips_and_the_rows_behind_them() {
        let columns = 512;
        for block_type in [BlockType::Q4K, BlockType::Q5K, BlockType::Q6K] {
            let of = |rows: usize| Weights::random_in(5, block_type).read("layer.weight", &[rows, columns]).unwrap();
            for rows in [3, 16, 37] {
                let (above, below) = (of(rows), of(21));
                assert_eq!(above.dtype, StoredType::Blocks(block_type));
                let all: Vec<f32> = [&above, &below].into_iter().flat_map(StoredTensor::to_f32).collect();
                let stack = Matrix::stack_blocks(vec![above, below], columns, WeightDtype::F32);
                assert_eq!((stack.len(), stack.bytes()), (rows + 21, block_type.bytes_of(all.len())));
                for (row, exact) in all.chunks_exact(columns).enumerate() {
                    let mut read = vec![f32::NAN; columns];
                    stack.read_row(row, &mut read);
                    assert_eq!(read, exact, "row {row}");
                }
                let x: Vec<f32> = (0..9 * columns).map(|i| (i as f32 * 0.7).sin()).collect();
                for batch in [1, 5, 9] {
                    let mut expected = vec![0.0; batch * (rows + 21)];
                    linear_rows(&x[..batch * columns], &all, columns, &mut expected);
                    assert_eq!(stack.times(&x[..batch * columns]), expected, "{rows} rows, {batch} at a time");
                }
            }
        }
    }

    #[test]
    fn stacked_matrices_multiply_alike_in_every_type() {
        let (rows, columns) = (70, 96);
        let values: Vec<f32> = (0..rows * columns).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let raw = StoredTensor { dtype: StoredType::F32, shape: vec![rows, columns], bytes };
        let x: Vec<f32> = (0..columns).map(|i| ((i * 13 % 29) as f32 - 14.0) / 16.0).collect();
        for (precision, dtype) in [
            (MatmulPrecision::F32, WeightDtype::F32),
            (MatmulPrecision::F32, WeightDtype::F16),
            (MatmulPrecision::F32, WeightDtype::Bf16),
            (MatmulPrecision::Bf16, WeightDtype::Bf16),
        ] {
            let weight = Matrix::for_precision(precision, &[raw.clone(), raw.clone()], columns, dtype);
            // Tiles are padded to 32 rows.
            let stored = if precision == MatmulPrecision::Bf16 { 160 } else { 2 * rows };
            assert_eq!((weight.len(), weight.bytes()), (2 * rows, dtype.bytes_of(stored * columns)));
            let mut row = vec![f32::NAN; columns];
            weight.read_row(rows + 3, &mut row);
            assert!(row.iter().zip(&values[3 * columns..]).all(|(a, b)| (a - b).abs() < 4e-3), "{dtype:?}");
            let out = Linear { weight, bias: Some(vec![1.0; 2 * rows]) }.apply(&x);
            for (o, got) in out.iter().enumerate() {
                let exact: f32 = values[o % rows * columns..][..columns].iter().zip(&x).map(|(a, b)| a * b).sum();
                assert!((got - exact - 1.0).abs() < 2e-2, "{dtype:?}: {got} against {exact} + 1");
            }
        }
    }
}

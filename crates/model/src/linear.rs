//! Weight matrices as they are stored, and multiplying by them.
//!
//! Weights stay in f32, f16 or bf16; arithmetic is f32 ([`linear_rows`]), or its factors are rounded to bf16 ([`tiles`]).

use std::sync::Arc;

use half::{bf16, f16};

use super::tensors::{StoredTensor, WeightDtype};
use spattn_kernels::Rows;
use spattn_kernels::linear::linear_rows;
use spattn_kernels::precision::{MatmulPrecision, matmul_precision};
use spattn_kernels::tiles::{self, LeftTiles, RightTiles};

/// A `[rows][columns]` matrix as it is stored.
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
    /// For products in bf16: packed once.
    Tiles(RightTiles),
}

impl Matrix {
    /// Stacks tensors of equal width on top of one another, converted to `dtype`; or, where products are in bf16, to that.
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

    /// Number of rows.
    pub fn len(&self) -> usize {
        match &*self.data {
            Data::F32(v) => v.len() / self.columns,
            Data::F16(v) => v.len() / self.columns,
            Data::Bf16(v) => v.len() / self.columns,
            Data::Tiles(tiles) => tiles.outputs(),
        }
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes stored.
    pub fn bytes(&self) -> usize {
        match &*self.data {
            Data::F32(v) => size_of_val(v.as_slice()),
            Data::F16(v) => size_of_val(v.as_slice()),
            Data::Bf16(v) => size_of_val(v.as_slice()),
            Data::Tiles(tiles) => tiles.bytes(),
        }
    }

    /// One row as f32.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        match &*self.data {
            Data::F32(v) => Rows::F32(v).read(row, out),
            Data::F16(v) => Rows::F16(v).read(row, out),
            Data::Bf16(v) => Rows::Bf16(v).read(row, out),
            Data::Tiles(tiles) => tiles.read_row(row, out),
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
        }
        out
    }
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
    use crate::tensors::StoredType;

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

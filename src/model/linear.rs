//! Weight matrices and the two ways of multiplying by them.
//!
//! Weights stay in their storage type (f32, f16 or bf16); arithmetic is f32. A few rows (decoding) go
//! through [`linear_rows`], which streams the weights once and gives each row the same bits in any
//! batch. Many rows (prefill) go through candle's matrix product over a widened copy.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use half::{bf16, f16};
use rayon::prelude::*;

use super::weights::RawTensor;
use crate::kernels::cpu::linear::linear_rows;
use crate::kernels::cpu::{Elem, Rows};
use crate::kv::KvDtype;

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
}

impl Matrix {
    /// Stacks tensors of equal width on top of one another, converted to `dtype`.
    pub fn stack(tensors: &[RawTensor], columns: usize, dtype: KvDtype) -> Self {
        let data = match dtype {
            KvDtype::F32 => Data::F32(tensors.iter().flat_map(RawTensor::to_f32).collect()),
            KvDtype::F16 => Data::F16(tensors.iter().flat_map(RawTensor::to_f16).collect()),
            KvDtype::Bf16 => Data::Bf16(tensors.iter().flat_map(RawTensor::to_bf16).collect()),
        };
        Self { data: Arc::new(data), columns }
    }

    fn rows(&self) -> Rows<'_> {
        match &*self.data {
            Data::F32(v) => Rows::F32(v),
            Data::F16(v) => Rows::F16(v),
            Data::Bf16(v) => Rows::Bf16(v),
        }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows().elements() / self.columns
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes stored.
    pub fn bytes(&self) -> usize {
        self.rows().elements() * self.rows().elem_bytes()
    }

    /// One row as f32.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        self.rows().read(row, out);
    }

    /// `x · Wᵀ` for a few rows of `x`; a row's result does not depend on the others.
    pub fn times_few(&self, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len() / self.columns * self.len()];
        match &*self.data {
            Data::F32(w) => linear_rows(x, w, self.columns, &mut out),
            Data::F16(w) => linear_rows(x, w, self.columns, &mut out),
            Data::Bf16(w) => linear_rows(x, w, self.columns, &mut out),
        }
        out
    }

    /// `x · Wᵀ` for many rows of `x`.
    pub fn times_many(&self, x: Vec<f32>) -> candle_core::Result<Vec<f32>> {
        let rows = x.len() / self.columns;
        let x = Tensor::from_vec(x, (rows, self.columns), &Device::Cpu)?;
        let w = Tensor::from_vec(self.widened().into_owned(), (self.len(), self.columns), &Device::Cpu)?;
        x.matmul(&w.t()?)?.flatten_all()?.to_vec1()
    }

    fn widened(&self) -> Cow<'_, [f32]> {
        fn widen<T: Elem>(data: &[T]) -> Vec<f32> {
            data.par_iter().with_min_len(1 << 14).map(|x| x.to_f32()).collect()
        }
        match &*self.data {
            Data::F32(w) => Cow::Borrowed(w),
            Data::F16(w) => Cow::Owned(widen(w)),
            Data::Bf16(w) => Cow::Owned(widen(w)),
        }
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
    /// For a few rows (see [`Matrix::times_few`]).
    pub fn few(&self, x: &[f32]) -> Vec<f32> {
        self.with_bias(self.weight.times_few(x))
    }

    /// For many rows (see [`Matrix::times_many`]).
    pub fn many(&self, x: Vec<f32>) -> candle_core::Result<Vec<f32>> {
        Ok(self.with_bias(self.weight.times_many(x)?))
    }

    fn with_bias(&self, mut out: Vec<f32>) -> Vec<f32> {
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
    use crate::model::weights::WeightType;

    #[test]
    fn both_products_agree_in_every_type() {
        let (rows, columns) = (70, 96);
        let values: Vec<f32> = (0..rows * columns).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let raw = RawTensor { dtype: WeightType::F32, shape: vec![rows, columns], bytes };
        let x: Vec<f32> = (0..5 * columns).map(|i| ((i * 13 % 29) as f32 - 14.0) / 16.0).collect();
        for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
            let matrix = Matrix::stack(&[raw.clone(), raw.clone()], columns, dtype);
            assert_eq!(matrix.len(), 2 * rows);
            let (few, many) = (matrix.times_few(&x), matrix.times_many(x.clone()).unwrap());
            for (a, b) in few.iter().zip(&many) {
                assert!((a - b).abs() < 1e-3, "{dtype:?}: {a} against {b}");
            }
        }
    }
}

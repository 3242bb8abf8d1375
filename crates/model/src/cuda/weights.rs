//! A checkpoint's tensors on their way to a GPU.

use spattn_cuda::{Buffer, Gpu, GpuError, Plain, WeightMatrix};

use crate::layers::{Checkpoint, Source};
use crate::tensors::{StoredTensor, WeightDtype, WeightsError};

/// A weight matrix on the device.
pub(super) struct Matrix {
    pub(super) data: Buffer,
    pub(super) outputs: usize,
    pub(super) inputs: usize,
}

impl Matrix {
    /// The matrix as a factor of a product.
    pub(super) fn as_operand(&self) -> WeightMatrix<'_> {
        let Self { data, outputs, inputs } = self;
        WeightMatrix { data, outputs: *outputs, inputs: *inputs }
    }
}

/// A weight matrix and its bias.
pub(super) struct Linear {
    pub(super) weight: Matrix,
    pub(super) bias: Option<Buffer>,
}

/// Why the weights are not on the device.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadFailure {
    /// A tensor is not what it should be.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] GpuError),
}

/// Takes a checkpoint's tensors to a device.
pub(super) struct ToDevice<'a> {
    pub(super) checkpoint: Checkpoint<'a>,
    pub(super) gpu: &'a Gpu,
}

impl ToDevice<'_> {
    fn put<T: Plain>(&self, tensors: &[StoredTensor], to: fn(&StoredTensor) -> Vec<T>) -> Result<Buffer, GpuError> {
        let total: usize = tensors.iter().map(|tensor| tensor.len() * size_of::<T>()).sum();
        let mut buffer = self.gpu.alloc(total)?;
        let mut at = 0;
        for tensor in tensors {
            let numbers = to(tensor);
            self.gpu.upload_to(&mut buffer, at, &numbers)?;
            at += size_of_val(numbers.as_slice());
        }
        // The copies read what is freed here.
        self.gpu.synchronize()?;
        Ok(buffer)
    }
}

impl Source for ToDevice<'_> {
    type Matrix = Matrix;
    type Linear = Linear;
    type Vector = Buffer;
    type Error = LoadFailure;

    fn matrix(&self, names: &[String], outputs: &[usize], inputs: usize) -> Result<Matrix, LoadFailure> {
        let tensors = self.checkpoint.matrices(names, outputs, inputs)?;
        let data = match self.checkpoint.dtype {
            WeightDtype::F32 => self.put(&tensors, StoredTensor::to_f32),
            WeightDtype::F16 => self.put(&tensors, StoredTensor::to_f16),
            WeightDtype::Bf16 => self.put(&tensors, StoredTensor::to_bf16),
        }?;
        Ok(Matrix { data, outputs: outputs.iter().sum(), inputs })
    }

    fn linear(&self, names: &[String], outputs: &[usize], inputs: usize, bias: bool) -> Result<Linear, LoadFailure> {
        let bias = match bias {
            true => Some(self.gpu.upload(&self.checkpoint.biases(names, outputs)?)?),
            false => None,
        };
        Ok(Linear { weight: self.matrix(names, outputs, inputs)?, bias })
    }

    fn norm(&self, name: &str, width: usize, offset: f32) -> Result<Buffer, LoadFailure> {
        let weights = self.checkpoint.norm(name, width, offset)?;
        Ok(self.gpu.upload(&weights)?)
    }
}

//! A checkpoint's tensors on their way to a GPU.

use spattn_cuda::{Buffer, Gpu, GpuError, Plain, QuantisedMatrix};

use crate::layers::{Checkpoint, Source};
use crate::tensors::{StoredTensor, StoredType, WeightDtype, WeightsError};

/// A weight matrix on the device.
pub(super) struct Matrix {
    pub(super) data: Data,
    pub(super) outputs: usize,
    pub(super) inputs: usize,
}

/// The numbers of a matrix.
pub(super) enum Data {
    /// In the storage type.
    Plain(Buffer),
    /// In quantised blocks: parts on top of one another, each of one type.
    Blocks(Vec<QuantisedMatrix>),
}

impl Matrix {
    /// The numbers in the storage type; `None` for a matrix in blocks.
    pub(super) fn plain(&self) -> Option<&Buffer> {
        match &self.data {
            Data::Plain(buffer) => Some(buffer),
            Data::Blocks(_) => None,
        }
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

    /// Tensors that stay in blocks; `None` if one of them does not, since a stacked matrix is in blocks as a whole or not at all.
    fn blocks(&self, tensors: &[StoredTensor], inputs: usize) -> Result<Option<Vec<QuantisedMatrix>>, GpuError> {
        let stays = |tensor: &StoredTensor| match tensor.dtype {
            StoredType::Blocks(block_type) => inputs.is_multiple_of(block_type.numbers()).then_some(block_type),
            StoredType::F32 | StoredType::F16 | StoredType::Bf16 => None,
        };
        let types: Option<Vec<_>> = tensors.iter().map(stays).collect();
        let Some(types) = types.filter(|_| self.checkpoint.keeps_blocks) else { return Ok(None) };
        let parts = types
            .into_iter()
            .zip(tensors)
            .map(|(block_type, tensor)| self.gpu.upload_blocks(block_type, &tensor.bytes, inputs));
        parts.collect::<Result<_, _>>().map(Some)
    }
}

impl Source for ToDevice<'_> {
    type Matrix = Matrix;
    type Linear = Linear;
    type Vector = Buffer;
    type Error = LoadFailure;

    fn matrix(&self, names: &[String], outputs: &[usize], inputs: usize) -> Result<Matrix, LoadFailure> {
        let tensors = self.checkpoint.matrices(names, outputs, inputs)?;
        if let Some(parts) = self.blocks(&tensors, inputs)? {
            return Ok(Matrix { data: Data::Blocks(parts), outputs: outputs.iter().sum(), inputs });
        }
        let data = match self.checkpoint.dtype {
            WeightDtype::F32 => self.put(&tensors, StoredTensor::to_f32),
            WeightDtype::F16 => self.put(&tensors, StoredTensor::to_f16),
            WeightDtype::Bf16 => self.put(&tensors, StoredTensor::to_bf16),
        }?;
        let data = Data::Plain(data);
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

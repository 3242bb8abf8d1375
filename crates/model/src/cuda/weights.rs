//! The upload of a checkpoint's tensors to a GPU.

use spattn_cuda::{Buffer, Gpu, GpuError, Plain, QuantisedMatrix};

use crate::layers::{Checkpoint, Source};
use crate::tensors::{StoredTensor, StoredType, WeightDtype, WeightsError};
use spattn_kernels::quantised::BlockType;

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
    /// Parts stacked by rows, at least one of them in quantised blocks.
    Parts(Vec<Part>),
}

/// Some rows of a matrix, from consecutive tensors of the checkpoint.
pub(super) enum Part {
    /// Rows in the storage type, `outputs` of them.
    Plain { data: Buffer, outputs: usize },
    /// Rows in quantised blocks of one type.
    Blocks(QuantisedMatrix),
}

impl Part {
    /// Returns the number of rows.
    pub(super) fn outputs(&self) -> usize {
        match self {
            Self::Plain { outputs, .. } => *outputs,
            Self::Blocks(blocks) => blocks.outputs(),
        }
    }
}

impl Matrix {
    /// Returns the numbers in the storage type; `None` if some part of the matrix is in blocks.
    pub(super) fn plain(&self) -> Option<&Buffer> {
        match &self.data {
            Data::Plain(buffer) => Some(buffer),
            Data::Parts(_) => None,
        }
    }
}

/// A weight matrix and its bias.
pub(super) struct Linear {
    pub(super) weight: Matrix,
    pub(super) bias: Option<Buffer>,
}

/// Why loading the weights to the device failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadFailure {
    /// A tensor is not as expected.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] GpuError),
}

/// Uploads a checkpoint's tensors to a device.
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
        // The uploads read memory that is freed when this function returns.
        self.gpu.synchronize()?;
        Ok(buffer)
    }

    /// Stacks tensors by rows, converted to the storage type.
    fn convert(&self, tensors: &[StoredTensor]) -> Result<Buffer, GpuError> {
        match self.checkpoint.dtype {
            WeightDtype::F32 => self.put(tensors, StoredTensor::to_f32),
            WeightDtype::F16 => self.put(tensors, StoredTensor::to_f16),
            WeightDtype::Bf16 => self.put(tensors, StoredTensor::to_bf16),
        }
    }

    /// Returns the type of the blocks that a tensor stays in; `None` if it is converted.
    fn kept(&self, tensor: &StoredTensor, inputs: usize) -> Option<BlockType> {
        let StoredType::Blocks(block_type) = tensor.dtype else { return None };
        (self.checkpoint.keeps_blocks && inputs.is_multiple_of(block_type.numbers())).then_some(block_type)
    }

    /// Stacks tensors by rows in few parts: consecutive tensors in blocks of the same type make one part, and so do consecutive tensors
    /// of plain numbers. Each part takes a launch, and memory is read slowly at the beginning and the end of a launch.
    fn parts(&self, tensors: &[StoredTensor], inputs: usize) -> Result<Vec<Part>, GpuError> {
        let alike = |a: &StoredTensor, b: &StoredTensor| self.kept(a, inputs) == self.kept(b, inputs);
        tensors.chunk_by(alike).map(|run| self.part(run, inputs)).collect()
    }

    /// Uploads consecutive tensors of one kind as one part.
    fn part(&self, run: &[StoredTensor], inputs: usize) -> Result<Part, GpuError> {
        match self.kept(&run[0], inputs) {
            Some(block_type) => {
                let blocks: Vec<&[u8]> = run.iter().map(|tensor| tensor.bytes.as_slice()).collect();
                self.gpu.upload_blocks(block_type, &blocks.concat(), inputs).map(Part::Blocks)
            }
            None => {
                let outputs = run.iter().map(|tensor| tensor.len() / inputs).sum();
                Ok(Part::Plain { data: self.convert(run)?, outputs })
            }
        }
    }
}

impl Source for ToDevice<'_> {
    type Matrix = Matrix;
    type Linear = Linear;
    type Vector = Buffer;
    type Error = LoadFailure;

    fn matrix(&self, names: &[String], outputs: &[usize], inputs: usize) -> Result<Matrix, LoadFailure> {
        let tensors = self.checkpoint.matrices(names, outputs, inputs)?;
        let data = match tensors.iter().any(|tensor| self.kept(tensor, inputs).is_some()) {
            true => Data::Parts(self.parts(&tensors, inputs)?),
            false => Data::Plain(self.convert(&tensors)?),
        };
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

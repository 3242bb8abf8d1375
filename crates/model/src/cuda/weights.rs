//! A checkpoint's tensors on their way to a GPU.

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
    /// Parts on top of one another, at least one of them in quantised blocks.
    Parts(Vec<Part>),
}

/// Some rows of a matrix: what tensors of the checkpoint that follow each other have become.
pub(super) enum Part {
    /// So many rows in the storage type.
    Plain { data: Buffer, outputs: usize },
    /// In quantised blocks of one type.
    Blocks(QuantisedMatrix),
}

impl Part {
    /// Number of rows.
    pub(super) fn outputs(&self) -> usize {
        match self {
            Self::Plain { outputs, .. } => *outputs,
            Self::Blocks(blocks) => blocks.outputs(),
        }
    }
}

impl Matrix {
    /// The numbers in the storage type; `None` for a matrix that is in blocks or has parts that are.
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

    /// Tensors on top of one another, converted to the storage type.
    fn convert(&self, tensors: &[StoredTensor]) -> Result<Buffer, GpuError> {
        match self.checkpoint.dtype {
            WeightDtype::F32 => self.put(tensors, StoredTensor::to_f32),
            WeightDtype::F16 => self.put(tensors, StoredTensor::to_f16),
            WeightDtype::Bf16 => self.put(tensors, StoredTensor::to_bf16),
        }
    }

    /// The blocks that a tensor stays in.
    fn kept(&self, tensor: &StoredTensor, inputs: usize) -> Option<BlockType> {
        let StoredType::Blocks(block_type) = tensor.dtype else { return None };
        (self.checkpoint.keeps_blocks && inputs.is_multiple_of(block_type.numbers())).then_some(block_type)
    }

    /// Tensors on top of one another as few parts: those that follow each other in blocks of the same type are one, and so are those that
    /// follow each other as plain numbers. Each part takes a launch, during whose beginning and end memory is read slowly.
    fn parts(&self, tensors: &[StoredTensor], inputs: usize) -> Result<Vec<Part>, GpuError> {
        let alike = |a: &StoredTensor, b: &StoredTensor| self.kept(a, inputs) == self.kept(b, inputs);
        tensors.chunk_by(alike).map(|run| self.part(run, inputs)).collect()
    }

    /// A run of tensors of one kind.
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

//! Where tensors come from: the interface between file formats and what is made of tensors.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;

use super::error::WeightsError;
use super::stored::{StoredTensor, StoredType};
use spattn_kernels::quantised::BlockType;

/// What is known of a tensor before it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Extent of each axis, slowest first.
    pub shape: Vec<usize>,
    /// How its numbers are stored; what the format calls a type that cannot be read.
    pub stored: Result<StoredType, String>,
    /// Bytes in the file.
    pub bytes: u64,
}

impl TensorInfo {
    /// The type that the tensor `name` is read as, if it has the shape that is asked for.
    ///
    /// # Errors
    /// [`WeightsError::WrongShape`]; [`WeightsError::UnsupportedType`]. `file` names the file in them.
    pub(super) fn readable_as(
        &self,
        name: &str,
        shape: &[usize],
        file: impl Fn() -> String,
    ) -> Result<StoredType, WeightsError> {
        let name = name.to_owned();
        if self.shape != shape {
            let (got, expected) = (self.shape.clone(), shape.to_vec());
            return Err(WeightsError::WrongShape { file: file(), name, got, expected });
        }
        self.stored.clone().map_err(|dtype| WeightsError::UnsupportedType { file: file(), name, dtype })
    }
}

/// How files store their tensors, where that is more than the types of numbers that are read.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct StoredFormat {
    /// The file format.
    pub name: &'static str,
    /// What the files say of all their tensors together, such as `Q4_K_M`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_type: Option<String>,
    /// How many tensors are stored in each type.
    pub types: BTreeMap<String, usize>,
}

/// Tensors by name: a file format, or numbers that are made up.
///
/// Tensors have the names and shapes of Hugging Face checkpoints: matrices are `[outputs][inputs]`, row-major. What they mean is
/// the decoder's business.
///
/// # Adding a format
/// A format, as GGUF is, is one file beside `safetensors.rs` that implements this trait, and a constructor of
/// [`Weights`](super::Weights) that opens it:
///
/// - opening reads the directory of the file, checks sizes and offsets, and makes a [`TensorInfo`] of each tensor. No numbers
///   are read yet;
/// - names are translated there (`blk.0.attn_q.weight` to `model.layers.0.self_attn.q_proj.weight`), and extents are turned round
///   where the format states the fastest first;
/// - what the format permutes is put back in [`read`](Self::read) (rows of q and k of llama.cpp, which rotates neighbouring
///   channels);
/// - types that cannot be read yet are `Err` with their name in [`TensorInfo::stored`]. Quantised types are those of
///   [`BlockType`], which the kernels multiply by.
///
/// A format whose files also hold the configuration or the tokenizer gives these as texts, in
/// [`ModelFiles`](crate::source::ModelFiles).
pub trait TensorSource: Debug + Send + Sync {
    /// What stands for the whole in errors: the file, the index of shards, or what made the numbers up.
    fn label(&self) -> &str;

    /// The file that a tensor is in, for errors; the label if there is no such tensor.
    fn file_of(&self, _name: &str) -> String {
        self.label().to_owned()
    }

    /// The files, in order; none where tensors are in no file.
    fn files(&self) -> Vec<&Path> {
        Vec::new()
    }

    /// Names of all tensors, sorted; none where any name will do.
    fn names(&self) -> Vec<&str>;

    /// What is known of a tensor; `None` if there is none of this name, or any shape will do.
    fn tensor(&self, name: &str) -> Option<&TensorInfo>;

    /// The blocks that the matrix `name` is stored in, if it is quantised.
    fn block_type(&self, name: &str) -> Option<BlockType> {
        match self.tensor(name)?.stored {
            Ok(StoredType::Blocks(block_type)) => Some(block_type),
            _ => None,
        }
    }

    /// Reads the tensor `name`, which is to have `shape`, as it is stored; [`StoredTensor::to_f32`] widens it. May be called from
    /// several threads at once.
    ///
    /// # Errors
    /// If there is no such tensor, its shape is another one, its type cannot be read, or reading fails.
    fn read(&self, name: &str, shape: &[usize]) -> Result<StoredTensor, WeightsError>;

    /// Reads a part of the tensor `name`, which is to have the shape `whole`: as many numbers as `shape` has, from number `first` on. A part
    /// of blocks is widened to f32 if it does not begin and end with a block.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Panics
    /// If the tensor has fewer.
    fn read_part(
        &self,
        name: &str,
        whole: &[usize],
        first: usize,
        shape: &[usize],
    ) -> Result<StoredTensor, WeightsError> {
        Ok(self.read(name, whole)?.part(first, shape))
    }

    /// Bytes of a tensor as they are stored, whatever their type: so many from byte `first` on.
    ///
    /// # Errors
    /// If there is no such tensor, reading fails, or the format gives numbers alone.
    fn read_bytes(&self, name: &str, _first: u64, _len: usize) -> Result<Vec<u8>, WeightsError> {
        Err(WeightsError::MissingTensor { file: self.label().to_owned(), name: name.to_owned() })
    }

    /// Whether two tensors have the same shape and numbers.
    ///
    /// # Errors
    /// If one of them is not there, or cannot be read.
    fn are_equal(&self, one: &str, other: &str) -> Result<bool, WeightsError> {
        have_equal_numbers(self, one, other)
    }

    /// Identity of all tensors in hexadecimal. May read everything once.
    ///
    /// # Errors
    /// If a file cannot be read, or is one of the hub's cache and not what its name there says.
    fn sha256(&self) -> Result<String, WeightsError>;

    /// How many tensors are made of packed parts when they are read.
    fn unpacked_tensors(&self) -> usize {
        0
    }

    /// How the files store the tensors, if records are to name it.
    fn format(&self) -> Option<StoredFormat> {
        None
    }

    /// Whether numbers are made up, so that what a model answers means nothing.
    fn is_random(&self) -> bool {
        false
    }
}

/// As [`TensorSource::are_equal`], by reading both tensors whole.
pub(super) fn have_equal_numbers<S: TensorSource + ?Sized>(
    source: &S,
    one: &str,
    other: &str,
) -> Result<bool, WeightsError> {
    let shape = |name: &str| {
        let missing = || WeightsError::MissingTensor { file: source.label().to_owned(), name: name.to_owned() };
        source.tensor(name).map(|tensor| tensor.shape.clone()).ok_or_else(missing)
    };
    let (a, b) = (shape(one)?, shape(other)?);
    Ok(a == b && source.read(one, &a)?.to_f32() == source.read(other, &b)?.to_f32())
}

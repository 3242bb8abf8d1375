//! The interface between file formats and the users of tensors.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;

use super::error::WeightsError;
use super::stored::{StoredTensor, StoredType};
use spattn_kernels::quantised::BlockType;

/// The properties of a tensor that are known before it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Extent of each axis, slowest first.
    pub shape: Vec<usize>,
    /// How its numbers are stored; for a type that cannot be read, the format's name for it.
    pub stored: Result<StoredType, String>,
    /// Its size in the file in bytes.
    pub bytes: u64,
}

impl TensorInfo {
    /// The type that the tensor `name` is read as, if it has the requested shape.
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

/// How files store their tensors, if that is not just a type of plain numbers.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct StoredFormat {
    /// The file format.
    pub name: &'static str,
    /// The files' name for the type of all tensors together, such as `Q4_K_M`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_type: Option<String>,
    /// The number of tensors stored in each type.
    pub types: BTreeMap<String, usize>,
}

/// Tensors by name, from a file format or made up.
///
/// Tensors have the names and shapes of Hugging Face checkpoints: matrices are `[outputs][inputs]`, row-major. The decoder knows what they
/// mean.
///
/// # Adding a format
/// A format such as GGUF is one file beside `safetensors.rs` that implements this trait, and a constructor of [`Weights`](super::Weights)
/// that opens it:
///
/// - opening reads the directory of the file, checks sizes and offsets, and makes a [`TensorInfo`] for each tensor, without reading
///   numbers;
/// - names are translated there (`blk.0.attn_q.weight` to `model.layers.0.self_attn.q_proj.weight`), and extents are reversed if the
///   format has the fastest first;
/// - [`read`](Self::read) undoes permutations of the format (rows of q and k in llama.cpp, which rotates adjacent channels);
/// - types that cannot be read yet are `Err` with their name in [`TensorInfo::stored`]. Quantised types are those of [`BlockType`], which
///   the kernels can multiply by.
///
/// A format whose files also hold the configuration or the tokenizer provides these as texts, in [`ModelFiles`](crate::source::ModelFiles).
pub trait TensorSource: Debug + Send + Sync {
    /// The name of the whole in errors: the file, the index of shards, or what made the numbers up.
    fn label(&self) -> &str;

    /// The file that a tensor is in, for errors; the label if there is no such tensor.
    fn file_of(&self, _name: &str) -> String {
        self.label().to_owned()
    }

    /// The files, in order; none if tensors are not in files.
    fn files(&self) -> Vec<&Path> {
        Vec::new()
    }

    /// The names of all tensors, sorted; empty if any name is valid.
    fn names(&self) -> Vec<&str>;

    /// The properties of a tensor; `None` if there is none with this name, or any shape is valid.
    fn tensor(&self, name: &str) -> Option<&TensorInfo>;

    /// The blocks that the matrix `name` is stored in, if it is quantised.
    fn block_type(&self, name: &str) -> Option<BlockType> {
        match self.tensor(name)?.stored {
            Ok(StoredType::Blocks(block_type)) => Some(block_type),
            _ => None,
        }
    }

    /// Reads the tensor `name`, whose shape must be `shape`, as it is stored; [`StoredTensor::to_f32`] widens it. May be called from
    /// several threads at once.
    ///
    /// # Errors
    /// If there is no such tensor, its shape differs, its type cannot be read, or reading fails.
    fn read(&self, name: &str, shape: &[usize]) -> Result<StoredTensor, WeightsError>;

    /// Reads a part of the tensor `name`, whose shape must be `whole`: as many numbers as `shape` has, from number `first` on. Blocks are
    /// widened to f32 if the part does not begin and end at a block boundary.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    ///
    /// # Panics
    /// If the tensor has fewer numbers.
    fn read_part(
        &self,
        name: &str,
        whole: &[usize],
        first: usize,
        shape: &[usize],
    ) -> Result<StoredTensor, WeightsError> {
        Ok(self.read(name, whole)?.part(first, shape))
    }

    /// Reads `len` bytes of a tensor as stored, whatever its type, from byte `first` on.
    ///
    /// # Errors
    /// If there is no such tensor, reading fails, or the format only provides numbers.
    fn read_bytes(&self, name: &str, _first: u64, _len: usize) -> Result<Vec<u8>, WeightsError> {
        Err(WeightsError::MissingTensor { file: self.label().to_owned(), name: name.to_owned() })
    }

    /// Whether two tensors have the same shape and numbers.
    ///
    /// # Errors
    /// If one of them does not exist or cannot be read.
    fn are_equal(&self, one: &str, other: &str) -> Result<bool, WeightsError> {
        have_equal_numbers(self, one, other)
    }

    /// The identity of all tensors in hexadecimal. May read everything once.
    ///
    /// # Errors
    /// If a file cannot be read, or is in the hub's cache under the name of another hash.
    fn sha256(&self) -> Result<String, WeightsError>;

    /// The number of tensors that are unpacked from parts when they are read.
    fn unpacked_tensors(&self) -> usize {
        0
    }

    /// How the files store the tensors, if records should name that.
    fn format(&self) -> Option<StoredFormat> {
        None
    }

    /// Whether numbers are made up, so that the model's answers mean nothing.
    fn is_random(&self) -> bool {
        false
    }
}

/// Like [`TensorSource::are_equal`], by reading both tensors completely.
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

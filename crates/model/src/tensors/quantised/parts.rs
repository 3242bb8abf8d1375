//! The stored parts of one quantised tensor, with checks of their shapes and types; and the interface of a format.

use std::ops::Range;

use rayon::prelude::*;
use safetensors::Dtype;

use crate::tensors::error::WeightsError;
use crate::tensors::safetensors::SafetensorsFiles;
use crate::tensors::source::TensorSource;
use crate::tensors::stored::{StoredTensor, StoredType};

/// Number types that are read without unpacking.
pub(super) const FLOATS: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::BF16];

/// How a format stores a matrix as several tensors.
pub(super) trait Packing {
    /// The name endings of its parts.
    fn endings(&self) -> Endings;

    /// Rows and columns of the unpacked matrix: outputs and inputs.
    ///
    /// # Errors
    /// If a part is missing or empty, or its shape or type does not fit the other parts or the config. No weights are read.
    fn shape(&self, parts: &Parts<'_>) -> Result<[usize; 2], WeightsError>;

    /// Reads the parts and unpacks some rows of the matrix, in f32; `shape` is the result of [`shape`](Self::shape), and `rows` are
    /// within it.
    ///
    /// # Errors
    /// If reading fails, or the numbers of a part are out of range.
    fn unpack(&self, parts: &Parts<'_>, shape: [usize; 2], rows: Range<usize>) -> Result<StoredTensor, WeightsError>;
}

/// The name endings of a quantised tensor's parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Endings {
    /// The part with the numbers; a tensor that has it is quantised.
    pub packed: &'static str,
    /// The type of this part, if the tensor has the same name when it is not quantised.
    pub packed_type: Option<Dtype>,
    /// The ending of the tensor when it is not quantised.
    pub plain: &'static str,
    /// The endings of the other parts, which may be absent.
    pub others: &'static [&'static str],
}

impl Endings {
    /// The common prefix of the names of a tensor's parts, if `name` is the part with the numbers.
    pub fn module<'a>(&self, name: &'a str, stored_as: Option<Dtype>) -> Option<&'a str> {
        let module = name.strip_suffix(self.packed)?;
        (self.packed_type.is_none() || self.packed_type == stored_as).then_some(module)
    }

    /// All endings of parts.
    pub fn all(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.packed).chain(self.others.iter().copied())
    }
}

/// The parts of one quantised tensor, each identified by its name's ending.
#[derive(Debug)]
pub(super) struct Parts<'a> {
    files: &'a SafetensorsFiles,
    module: &'a str,
    packed: &'static str,
}

impl<'a> Parts<'a> {
    /// The parts in `files` whose names begin with `module`; `packed` is the one with the numbers.
    pub fn new(files: &'a SafetensorsFiles, module: &'a str, packed: &'static str) -> Self {
        Self { files, module, packed }
    }

    /// The full name of a part.
    pub fn name(&self, part: &str) -> String {
        format!("{}{part}", self.module)
    }

    /// The file with the numbers.
    pub fn file(&self) -> String {
        self.files.file_of(&self.name(self.packed))
    }

    /// Whether a part is stored.
    pub fn has(&self, part: &str) -> bool {
        self.files.tensor(&self.name(part)).is_some()
    }

    /// The stored type of a part, if it exists.
    pub fn dtype(&self, part: &str) -> Option<Dtype> {
        self.files.stored_as(&self.name(part))
    }

    /// Bytes of a part in the file; 0 if it does not exist.
    pub fn stored_bytes(&self, part: &str) -> u64 {
        self.files.tensor(&self.name(part)).map_or(0, |tensor| tensor.bytes)
    }

    /// An error about a part.
    pub fn wrong(&self, part: &str, what: String) -> WeightsError {
        let name = self.name(part);
        WeightsError::Quantised { file: self.files.file_of(&name), name, what }
    }

    /// The shape of a part.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn shape(&self, part: &str) -> Result<&'a [usize], WeightsError> {
        match self.files.tensor(&self.name(part)) {
            Some(tensor) => Ok(&tensor.shape),
            None => Err(self.wrong(self.packed, format!("`{}` is not stored", self.name(part)))),
        }
    }

    /// The extents of a part that has `N` axes and one of the types. None of them is 0: otherwise another extent could be larger than
    /// the file, and so could the unpacked matrix.
    ///
    /// # Errors
    /// If it does not exist, or differs.
    pub fn axes<const N: usize>(&self, part: &str, types: &[Dtype]) -> Result<[usize; N], WeightsError> {
        let shape = self.shape(part)?;
        let dtype = self.dtype(part);
        if !types.iter().any(|known| Some(*known) == dtype) {
            let names: Vec<String> = types.iter().map(|known| format!("{known:?}")).collect();
            let got = dtype.map_or_else(|| "nothing".to_owned(), |dtype| format!("{dtype:?}"));
            return Err(self.wrong(part, format!("it holds {got}, expected {}", names.join(" or "))));
        }
        let wrong = |expected: &str| self.wrong(part, format!("it has shape {shape:?}, expected {expected}"));
        let axes: [usize; N] = shape.try_into().map_err(|_| wrong(&format!("{N} axes")))?;
        if axes.contains(&0) { Err(wrong("one that is not empty")) } else { Ok(axes) }
    }

    /// Checks that a part has a shape and one of the types.
    ///
    /// # Errors
    /// If it does not exist, or differs.
    pub fn expect<const N: usize>(&self, part: &str, types: &[Dtype], shape: [usize; N]) -> Result<(), WeightsError> {
        let got: [usize; N] = self.axes(part, types)?;
        match got == shape {
            true => Ok(()),
            false => Err(self.wrong(part, format!("it has shape {got:?}, expected {shape:?}"))),
        }
    }

    /// The bytes of a part.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn bytes(&self, part: &str) -> Result<Vec<u8>, WeightsError> {
        self.files.read_bytes(&self.name(part), 0, self.stored_bytes(part) as usize)
    }

    /// The bytes of some rows of a part, whose rows have `row_bytes` bytes.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn bytes_of_rows(&self, part: &str, row_bytes: usize, rows: &Range<usize>) -> Result<Vec<u8>, WeightsError> {
        self.files.read_bytes(&self.name(part), (rows.start * row_bytes) as u64, rows.len() * row_bytes)
    }

    /// The contents of a part with 32-bit words.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn words(&self, part: &str) -> Result<Vec<u32>, WeightsError> {
        Ok(words(&self.bytes(part)?))
    }

    /// The contents of a part with one of the types [`FLOATS`].
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn floats(&self, part: &str) -> Result<Vec<f32>, WeightsError> {
        Ok(self.files.read(&self.name(part), self.shape(part)?)?.to_f32())
    }
}

/// The 32-bit words in these bytes.
pub(super) fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Makes a matrix of some rows in f32, which are filled one by one on all threads.
pub(super) fn matrix_by_rows(
    rows: Range<usize>,
    columns: usize,
    fill: impl Fn(usize, &mut [f32]) + Sync,
) -> StoredTensor {
    let row_bytes = columns * size_of::<f32>();
    let (shape, mut bytes) = (vec![rows.len(), columns], vec![0u8; rows.len() * row_bytes]);
    let filled = bytes.par_chunks_mut(row_bytes).zip(rows);
    filled.for_each_with(vec![0.0f32; columns], |numbers, (bytes, row)| {
        fill(row, numbers);
        let words = bytes.as_chunks_mut().0;
        words.iter_mut().zip(numbers.iter()).for_each(|(word, number)| *word = number.to_le_bytes());
    });
    StoredTensor { dtype: StoredType::F32, shape, bytes }
}

//! The weights of a model: any source of tensors, and checks of the numbers read from it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::dtype::WeightDtype;
use super::error::WeightsError;
use super::part::{Part, PartForm};
use super::quantised::{Quantisation, QuantisedTensors};
use super::random::RandomTensors;
use super::safetensors::SafetensorsFiles;
use super::source::{StoredFormat, TensorInfo, TensorSource};
use super::stored::{StoredTensor, StoredType};
use spattn_kernels::quantised::BlockType;

/// An opened checkpoint: the positions of all tensors, but not their contents.
#[derive(Debug)]
pub struct Weights {
    source: Box<dyn TensorSource>,
    /// Additional names of tensors, with their names in the source.
    aliases: BTreeMap<String, String>,
    /// Tensors of the source that are not offered under their own names.
    renamed: BTreeSet<String>,
    /// Tensors that are parts of a larger one in the source.
    parts: BTreeMap<String, Part>,
}

impl<S: TensorSource + 'static> From<S> for Weights {
    fn from(source: S) -> Self {
        Self { source: Box::new(source), aliases: BTreeMap::new(), renamed: BTreeSet::new(), parts: BTreeMap::new() }
    }
}

impl Weights {
    /// Opens the weights in a folder: one safetensors file, or shards and their index.
    ///
    /// # Errors
    /// Those of [`SafetensorsFiles::open_folder`].
    pub fn open_folder(folder: &Path) -> Result<Self, WeightsError> {
        SafetensorsFiles::open_folder(folder).map(Self::from)
    }

    /// Like [`open_folder`](Self::open_folder), but tensors that are quantised according to `quantisation` are unpacked when they are
    /// read.
    ///
    /// # Errors
    /// The same; also [`WeightsError::Quantised`] if the parts of a quantised tensor do not fit together.
    pub fn open_quantised_folder(folder: &Path, quantisation: &Quantisation) -> Result<Self, WeightsError> {
        QuantisedTensors::new(SafetensorsFiles::open_folder(folder)?, quantisation.format.clone()).map(Self::from)
    }

    /// Opens one safetensors file. Errors as for [`open_folder`](Self::open_folder).
    pub fn open_file(path: &Path) -> Result<Self, WeightsError> {
        SafetensorsFiles::open_file(path).map(Self::from)
    }

    /// Opens a safetensors file held in memory; `label` names it in errors. Errors as for [`open_folder`](Self::open_folder).
    pub fn from_bytes(label: &str, bytes: &'static [u8]) -> Result<Self, WeightsError> {
        SafetensorsFiles::from_bytes(label, bytes).map(Self::from)
    }

    /// Weights of any shape, drawn from a seed ([`RandomTensors`]).
    pub fn random(seed: u64) -> Self {
        RandomTensors::new(seed).into()
    }

    /// Like [`random`](Self::random), but matrices are in blocks of a type if their rows are whole blocks.
    pub fn random_in(seed: u64, block_type: BlockType) -> Self {
        RandomTensors::in_blocks(seed, block_type).into()
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        let mut names = self.source.names();
        names.retain(|name| !self.renamed.contains(*name));
        names.extend(self.aliases.keys().chain(self.parts.keys()).map(String::as_str));
        names.sort_unstable();
        names.into_iter()
    }

    /// Whether there is a tensor with this name.
    pub fn contains(&self, name: &str) -> bool {
        self.tensor(name).is_some()
    }

    /// The shape of a tensor, if there is one with this name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(&self.tensor(name)?.shape)
    }

    /// Whether there is a tensor with this name whose type can be read.
    pub fn is_readable(&self, name: &str) -> bool {
        self.tensor(name).is_some_and(|tensor| tensor.stored.is_ok())
    }

    /// The block type in which the matrix `name` with this many columns is read, if it is quantised and its rows are whole blocks.
    pub fn block_type(&self, name: &str, columns: usize) -> Option<BlockType> {
        let block_type = self.source.block_type(self.name_in_source(name))?;
        let numbers = block_type.numbers();
        let is_whole = match self.parts.get(name) {
            Some(part) => part.has_whole_blocks(columns, numbers),
            None => columns.is_multiple_of(numbers),
        };
        is_whole.then_some(block_type)
    }

    /// The name of the whole in errors: the file, or the index.
    pub fn label(&self) -> &str {
        self.source.label()
    }

    /// Like [`TensorSource::unpacked_tensors`], including the parts made of 4-bit blocks.
    pub fn unpacked_tensors(&self) -> usize {
        let of_blocks = self.parts.values().filter(|part| matches!(part.form, PartForm::Mxfp4 { .. }));
        self.source.unpacked_tensors() + of_blocks.count()
    }

    /// Like [`TensorSource::files`].
    pub fn files(&self) -> Vec<&Path> {
        self.source.files()
    }

    /// Like [`TensorSource::format`].
    pub fn format(&self) -> Option<StoredFormat> {
        self.source.format()
    }

    /// Whether numbers are drawn instead of read.
    pub fn is_random(&self) -> bool {
        self.source.is_random()
    }

    /// The total bytes of all tensors as they are stored.
    pub fn total_bytes(&self) -> u64 {
        self.names().filter_map(|name| self.tensor(name)).map(|tensor| tensor.bytes).sum()
    }

    /// Makes the tensor `name` also readable as `other`, if it exists.
    pub fn alias(&mut self, name: &str, other: &str) {
        if self.contains(name) {
            self.aliases.insert(other.to_owned(), self.name_in_source(name).to_owned());
        }
    }

    /// Replaces prefixes of tensor names, given as pairs of old and new prefix; the first pair that matches a name is used.
    pub fn rename(&mut self, prefixes: &[(&str, &str)]) {
        let new_name =
            |name: &str| prefixes.iter().find_map(|(old, new)| Some(format!("{new}{}", name.strip_prefix(old)?)));
        let pairs = self.source.names().into_iter().filter_map(|name| Some((new_name(name)?, name.to_owned())));
        let pairs: Vec<(String, String)> = pairs.collect();
        self.renamed.extend(pairs.iter().map(|(_, old)| old.clone()));
        self.aliases.extend(pairs);
    }

    /// Makes a tensor readable as several consecutive parts, given by names and shapes, and no longer as one.
    ///
    /// # Panics
    /// If there is no such tensor, or the parts do not have as many numbers as it.
    pub fn divide(&mut self, name: &str, parts: impl IntoIterator<Item = (String, Vec<usize>)>) {
        let whole = self.name_in_source(name).to_owned();
        let TensorInfo { shape, stored, bytes } = self.tensor(name).expect("a tensor of this name").clone();
        let numbers: usize = shape.iter().product();
        let mut first = 0;
        for (name, shape) in parts {
            let count: usize = shape.iter().product();
            let bytes = share(bytes, count, numbers);
            let info = TensorInfo { shape, stored: stored.clone(), bytes };
            self.parts.insert(name, Part { whole: whole.clone(), form: PartForm::Consecutive(first), info });
            first += count;
        }
        assert_eq!(first, numbers, "parts of {name}");
        self.aliases.remove(name);
        self.renamed.insert(whole);
    }

    /// Makes a part of the tensor `name` readable as the tensor `part` with this shape. Blocks of 4 bits are read as bf16.
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn add_part(&mut self, name: &str, part: String, shape: Vec<usize>, form: PartForm) {
        let whole = self.name_in_source(name).to_owned();
        let TensorInfo { shape: of_whole, stored, bytes } = self.tensor(name).expect("a tensor of this name").clone();
        let numbers: usize = shape.iter().product();
        let info = match form {
            PartForm::Mxfp4 { .. } => TensorInfo { shape, stored: Ok(StoredType::Bf16), bytes: numbers as u64 / 2 },
            _ => {
                let all: usize = of_whole.iter().product();
                TensorInfo { shape, stored, bytes: share(bytes, numbers, all) }
            }
        };
        self.parts.insert(part, Part { whole, form, info });
    }

    /// Hides a tensor whose parts are read instead.
    pub fn leave_out(&mut self, name: &str) {
        let whole = self.name_in_source(name).to_owned();
        self.aliases.remove(name);
        self.renamed.insert(whole);
    }

    /// Like [`TensorSource::are_equal`].
    ///
    /// # Errors
    /// The same.
    pub fn are_equal(&self, one: &str, other: &str) -> Result<bool, WeightsError> {
        self.source.are_equal(self.name_in_source(one), self.name_in_source(other))
    }

    /// Like [`TensorSource::read`].
    ///
    /// # Errors
    /// The same.
    pub fn read(&self, name: &str, shape: &[usize]) -> Result<StoredTensor, WeightsError> {
        let Some(part) = self.parts.get(name) else { return self.source.read(self.name_in_source(name), shape) };
        part.read(self.source.as_ref(), name, shape)
    }

    /// Like [`read`](Self::read), but all numbers must be finite and fit `dtype`.
    ///
    /// # Errors
    /// The same; also [`WeightsError::NotFinite`] and [`WeightsError::TooLarge`].
    pub fn read_for(&self, name: &str, shape: &[usize], dtype: WeightDtype) -> Result<StoredTensor, WeightsError> {
        let tensor = self.read(name, shape)?;
        let Some((place, value)) = tensor.first_beyond(dtype.limit()) else { return Ok(tensor) };
        let (file, name) = (self.source.file_of(self.name_in_source(name)), name.to_owned());
        if value.is_finite() {
            return Err(WeightsError::TooLarge { file, name, value, dtype: dtype.name() });
        }
        Err(WeightsError::NotFinite { file, name, value, at: by_axis(place, shape) })
    }

    /// Like [`TensorSource::sha256`].
    ///
    /// # Errors
    /// The same.
    pub fn sha256(&self) -> Result<String, WeightsError> {
        self.source.sha256()
    }

    /// The name of a tensor in the source.
    pub(crate) fn name_in_source<'a>(&'a self, name: &'a str) -> &'a str {
        let part = self.parts.get(name).map(|part| &part.whole);
        part.or_else(|| self.aliases.get(name)).map_or(name, String::as_str)
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let part = self.parts.get(name).map(|part| &part.info);
        part.or_else(|| self.source.tensor(self.name_in_source(name)))
    }
}

/// The bytes of `count` of `all` numbers; those of a quantised tensor need not be whole bytes.
fn share(bytes: u64, count: usize, all: usize) -> u64 {
    (u128::from(bytes) * count as u128).checked_div(all as u128).unwrap_or(0) as u64
}

/// The index on each axis of a number in a tensor.
fn by_axis(place: usize, shape: &[usize]) -> Vec<usize> {
    let mut rest = place;
    let mut at: Vec<usize> = shape
        .iter()
        .rev()
        .map(|extent| {
            let index = rest % extent;
            rest /= extent;
            index
        })
        .collect();
    at.reverse();
    at
}

//! The weights of a model: a source of tensors, whichever it is, and checks of the numbers that are taken from it.

use std::collections::BTreeMap;
use std::path::Path;

use super::dtype::WeightDtype;
use super::error::WeightsError;
use super::quantised::{Quantisation, QuantisedTensors};
use super::random::RandomTensors;
use super::safetensors::SafetensorsFiles;
use super::source::{TensorInfo, TensorSource};
use super::stored::StoredTensor;

/// An opened checkpoint: where each tensor is, but not the tensors.
#[derive(Debug)]
pub struct Weights {
    source: Box<dyn TensorSource>,
    /// Further names of tensors, with the names that the source has for them.
    aliases: BTreeMap<String, String>,
}

impl<S: TensorSource + 'static> From<S> for Weights {
    fn from(source: S) -> Self {
        Self { source: Box::new(source), aliases: BTreeMap::new() }
    }
}

impl Weights {
    /// Opens the weights in a folder: one safetensors file, or shards and their index.
    ///
    /// # Errors
    /// As [`SafetensorsFiles::open_folder`].
    pub fn open_folder(folder: &Path) -> Result<Self, WeightsError> {
        SafetensorsFiles::open_folder(folder).map(Self::from)
    }

    /// As [`open_folder`](Self::open_folder), with the tensors that are quantised as `quantisation` says unpacked when they are read.
    ///
    /// # Errors
    /// As there; [`WeightsError::Quantised`] if the parts of a quantised tensor do not fit together.
    pub fn open_quantised_folder(folder: &Path, quantisation: &Quantisation) -> Result<Self, WeightsError> {
        QuantisedTensors::new(SafetensorsFiles::open_folder(folder)?, quantisation.clone()).map(Self::from)
    }

    /// Opens one safetensors file. Errors as for [`open_folder`](Self::open_folder).
    pub fn open_file(path: &Path) -> Result<Self, WeightsError> {
        SafetensorsFiles::open_file(path).map(Self::from)
    }

    /// Opens a safetensors file held in memory; `label` names it in errors. Errors as for [`open_folder`](Self::open_folder).
    pub fn from_bytes(label: &str, bytes: &'static [u8]) -> Result<Self, WeightsError> {
        SafetensorsFiles::from_bytes(label, bytes).map(Self::from)
    }

    /// Weights of any shape that are drawn from a seed ([`RandomTensors`]).
    pub fn random(seed: u64) -> Self {
        RandomTensors::new(seed).into()
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        let mut names = self.source.names();
        names.extend(self.aliases.keys().map(String::as_str));
        names.sort_unstable();
        names.into_iter()
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.tensor(name).is_some()
    }

    /// The shape of a tensor, if there is one of this name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(&self.tensor(name)?.shape)
    }

    /// Whether there is a tensor of this name whose type can be read.
    pub fn is_readable(&self, name: &str) -> bool {
        self.tensor(name).is_some_and(|tensor| tensor.stored.is_ok())
    }

    /// What stands for the whole in errors: the file, or the index.
    pub fn label(&self) -> &str {
        self.source.label()
    }

    /// As [`TensorSource::unpacked_tensors`].
    pub fn unpacked_tensors(&self) -> usize {
        self.source.unpacked_tensors()
    }

    /// Whether numbers are drawn instead of read.
    pub fn is_random(&self) -> bool {
        self.source.is_random()
    }

    /// Bytes of all tensors together, as they are stored.
    pub fn total_bytes(&self) -> u64 {
        self.names().filter_map(|name| self.tensor(name)).map(|tensor| tensor.bytes).sum()
    }

    /// Lets the tensor `name` be read as `other` too, if it is there.
    pub fn alias(&mut self, name: &str, other: &str) {
        if self.contains(name) {
            self.aliases.insert(other.to_owned(), self.name_in_source(name).to_owned());
        }
    }

    /// As [`TensorSource::are_equal`].
    ///
    /// # Errors
    /// As there.
    pub fn are_equal(&self, one: &str, other: &str) -> Result<bool, WeightsError> {
        self.source.are_equal(self.name_in_source(one), self.name_in_source(other))
    }

    /// As [`TensorSource::read`].
    ///
    /// # Errors
    /// As there.
    pub fn read(&self, name: &str, shape: &[usize]) -> Result<StoredTensor, WeightsError> {
        self.source.read(self.name_in_source(name), shape)
    }

    /// As [`read`](Self::read), of numbers that are all finite and that `dtype` can hold.
    ///
    /// # Errors
    /// As there; [`WeightsError::NotFinite`], [`WeightsError::TooLarge`].
    pub fn read_for(&self, name: &str, shape: &[usize], dtype: WeightDtype) -> Result<StoredTensor, WeightsError> {
        let tensor = self.read(name, shape)?;
        let Some((place, value)) = tensor.first_beyond(dtype.limit()) else { return Ok(tensor) };
        let (file, name) = (self.source.file_of(self.name_in_source(name)), name.to_owned());
        if value.is_finite() {
            return Err(WeightsError::TooLarge { file, name, value, dtype: dtype.name() });
        }
        Err(WeightsError::NotFinite { file, name, value, at: by_axis(place, shape) })
    }

    /// As [`TensorSource::sha256`].
    ///
    /// # Errors
    /// As there.
    pub fn sha256(&self) -> Result<String, WeightsError> {
        self.source.sha256()
    }

    fn name_in_source<'a>(&'a self, name: &'a str) -> &'a str {
        self.aliases.get(name).map_or(name, String::as_str)
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.source.tensor(self.name_in_source(name))
    }
}

/// Where a number of a tensor is, by its index on each axis.
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

//! Quantised tensors of safetensors checkpoints, unpacked when they are read.
//!
//! A quantised matrix is stored as several tensors: its numbers in few bits, their scales, and more. `QuantisedTensors` offers the
//! matrix under the name that it has in an unquantised checkpoint, and unpacks it when it is read, so that memory holds one packed
//! tensor at a time. Each format has a file here that knows its layout. [`config`](crate::config) knows how `config.json` states a
//! format. Keeping weights quantised in memory is not done in this module.

mod awq;
mod fp8;
mod gptq;
mod int_groups;
mod packed_ints;
mod parts;
mod scheme;

use std::collections::{BTreeMap, BTreeSet};

use super::error::WeightsError;
use super::safetensors::SafetensorsFiles;
use super::source::{StoredFormat, TensorInfo, TensorSource, have_equal_numbers};
use super::stored::{StoredTensor, StoredType};
use parts::{Packing, Parts};

pub use awq::Awq;
pub use fp8::{Fp8, Fp8Scales};
pub use gptq::Gptq;
pub use int_groups::{GroupSize, IntBits};
pub use packed_ints::PackedInts;
pub use scheme::{Quantisation, QuantisedFormat};

/// Safetensors files with some quantised tensors.
#[derive(Debug)]
pub(super) struct QuantisedTensors {
    files: SafetensorsFiles,
    format: QuantisedFormat,
    /// The unpacked matrices, by the names under which they are read.
    unpacked: BTreeMap<String, Unpacked>,
    /// Stored tensors that are parts of others, and are not offered themselves.
    hidden: BTreeSet<String>,
}

/// A matrix that is unpacked from several parts.
#[derive(Debug)]
struct Unpacked {
    /// The prefix of the names of its parts.
    module: String,
    /// Rows and columns.
    shape: [usize; 2],
    /// Its shape, type and size for readers.
    info: TensorInfo,
}

impl QuantisedTensors {
    /// The tensors in `files`; those with packed parts are quantised in `format`.
    ///
    /// # Errors
    /// If a part of a quantised tensor is missing, empty, or has a wrong shape or type. No weights are read.
    pub(super) fn new(files: SafetensorsFiles, format: QuantisedFormat) -> Result<Self, WeightsError> {
        let (mut unpacked, mut hidden) = (BTreeMap::new(), BTreeSet::new());
        if let Some(packing) = format.packing() {
            let endings = packing.endings();
            for name in files.names() {
                let Some(module) = endings.module(name, files.stored_as(name)) else { continue };
                let parts = Parts::new(&files, module, endings.packed);
                unpacked.insert(format!("{module}{}", endings.plain), Unpacked::new(packing, &parts, module)?);
                hidden.extend(endings.all().map(|part| parts.name(part)));
            }
        }
        Ok(Self { files, format, unpacked, hidden })
    }

    /// A tensor that is unpacked when it is read, and its format.
    fn unpacked(&self, name: &str) -> Option<(&dyn Packing, &Unpacked)> {
        Some((self.format.packing()?, self.unpacked.get(name)?))
    }
}

impl Unpacked {
    fn new(packing: &dyn Packing, parts: &Parts<'_>, module: &str) -> Result<Self, WeightsError> {
        let endings = packing.endings();
        if endings.plain != endings.packed && parts.has(endings.plain) {
            return Err(parts.wrong(endings.packed, format!("`{}` is stored as well", parts.name(endings.plain))));
        }
        let shape = packing.shape(parts)?;
        let bytes = endings.all().map(|part| parts.stored_bytes(part)).sum();
        let info = TensorInfo { shape: shape.to_vec(), stored: Ok(StoredType::F32), bytes };
        Ok(Self { module: module.to_owned(), shape, info })
    }

    fn parts<'a>(&'a self, files: &'a SafetensorsFiles, packing: &dyn Packing) -> Parts<'a> {
        Parts::new(files, &self.module, packing.endings().packed)
    }
}

impl TensorSource for QuantisedTensors {
    fn label(&self) -> &str {
        self.files.label()
    }

    fn file_of(&self, name: &str) -> String {
        match self.unpacked(name) {
            Some((packing, unpacked)) => unpacked.parts(&self.files, packing).file(),
            None => self.files.file_of(name),
        }
    }

    fn names(&self) -> Vec<&str> {
        let stored = self.files.names().into_iter().filter(|name| !self.hidden.contains(*name));
        let mut names: Vec<&str> = stored.chain(self.unpacked.keys().map(String::as_str)).collect();
        names.sort_unstable();
        names
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        match self.unpacked.get(name) {
            Some(unpacked) => Some(&unpacked.info),
            None if self.hidden.contains(name) => None,
            None => self.files.tensor(name),
        }
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<StoredTensor, WeightsError> {
        let Some((packing, unpacked)) = self.unpacked(name) else { return self.files.read(name, shape) };
        unpacked.info.readable_as(name, shape, || self.file_of(name))?;
        packing.unpack(&unpacked.parts(&self.files, packing), unpacked.shape, 0..unpacked.shape[0])
    }

    /// Unpacks only the rows that contain the part.
    fn read_part(
        &self,
        name: &str,
        whole: &[usize],
        first: usize,
        shape: &[usize],
    ) -> Result<StoredTensor, WeightsError> {
        let Some((packing, unpacked)) = self.unpacked(name) else {
            return self.files.read_part(name, whole, first, shape);
        };
        unpacked.info.readable_as(name, whole, || self.file_of(name))?;
        let [rows, columns] = unpacked.shape;
        let end = first + shape.iter().product::<usize>();
        assert!(end <= rows * columns, "a part of `{name}`");
        let range = first / columns..end.div_ceil(columns);
        let skipped = first - range.start * columns;
        let rows = packing.unpack(&unpacked.parts(&self.files, packing), unpacked.shape, range)?;
        Ok(rows.part(skipped, shape))
    }

    fn read_bytes(&self, name: &str, first: u64, len: usize) -> Result<Vec<u8>, WeightsError> {
        self.files.read_bytes(name, first, len)
    }

    fn are_equal(&self, one: &str, other: &str) -> Result<bool, WeightsError> {
        match [one, other].iter().any(|name| self.unpacked.contains_key(*name)) {
            true => have_equal_numbers(self, one, other),
            false => self.files.are_equal(one, other),
        }
    }

    /// The SHA-256 of the files as they are stored.
    fn sha256(&self) -> Result<String, WeightsError> {
        self.files.sha256()
    }

    fn unpacked_tensors(&self) -> usize {
        self.unpacked.len()
    }

    fn format(&self) -> Option<StoredFormat> {
        let mut types = BTreeMap::new();
        for name in self.files.names() {
            if let Some(dtype) = self.files.stored_as(name) {
                *types.entry(format!("{dtype:?}")).or_default() += 1;
            }
        }
        Some(StoredFormat { name: "safetensors", file_type: Some(self.format.name()), types })
    }
}

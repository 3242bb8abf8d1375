//! Quantised tensors of safetensors checkpoints, unpacked when they are read.
//!
//! A quantised matrix is stored as several tensors: its numbers in few bits, their scales, and more. [`QuantisedTensors`] offers the
//! matrix under the name that it has in a checkpoint that is not quantised, and unpacks it when it is asked for, so that memory holds
//! one packed tensor at a time. Each format has a file here that knows its layout. How `config.json` states a format is known to
//! [`config`](crate::config), and keeping weights quantised in memory is no business of this module.

mod awq;
mod fp8;
mod gptq;
mod int_groups;
mod mxfp4;
mod packed_ints;
mod parts;
mod scheme;

use std::collections::{BTreeMap, BTreeSet};

use super::error::WeightsError;
use super::safetensors::SafetensorsFiles;
use super::source::{TensorInfo, TensorSource};
use super::stored::StoredTensor;
use parts::Parts;

pub use awq::Awq;
pub use fp8::{Fp8, Fp8Scales};
pub use gptq::Gptq;
pub use int_groups::{GroupSize, IntBits};
pub use mxfp4::unpack as unpack_mxfp4;
pub use packed_ints::PackedInts;
pub use scheme::{PackedFormat, Quantisation};

/// Safetensors files of which some tensors are quantised.
#[derive(Debug)]
pub(super) struct QuantisedTensors {
    files: SafetensorsFiles,
    quantisation: Quantisation,
    /// By the name that it is read by.
    unpacked: BTreeMap<String, Unpacked>,
    /// Stored tensors that are parts of others, and are not offered.
    hidden: BTreeSet<String>,
}

/// A tensor that is made of packed parts.
#[derive(Debug)]
struct Unpacked {
    /// What names of its parts begin with.
    module: String,
    info: TensorInfo,
}

impl QuantisedTensors {
    /// The tensors in `files`, quantised as `quantisation` says.
    ///
    /// # Errors
    /// If a part of a quantised tensor is missing or has a wrong shape or type, or a module is quantised that the config lists as not
    /// quantised. No numbers are read.
    pub(super) fn new(files: SafetensorsFiles, quantisation: Quantisation) -> Result<Self, WeightsError> {
        let packing = quantisation.format.packing();
        let endings = packing.endings();
        let (mut unpacked, mut hidden) = (BTreeMap::new(), BTreeSet::new());
        for name in files.names() {
            let Some(module) = endings.module(name, files.stored_as(name)) else { continue };
            let parts = Parts::new(&files, module, endings.packed);
            if quantisation.ignores(module) {
                return Err(parts.wrong(endings.packed, "config.json lists this module as not quantised".to_owned()));
            }
            let plain = format!("{module}{}", endings.plain);
            if endings.plain != endings.packed && files.tensor(&plain).is_some() {
                return Err(parts.wrong(endings.packed, format!("`{plain}` is stored as well")));
            }
            let info = TensorInfo {
                shape: packing.shape(&parts)?,
                stored: Ok(packing.unpacked_type()),
                bytes: endings.all().map(|part| parts.stored_bytes(part)).sum(),
            };
            hidden.extend(endings.all().map(|part| parts.name(part)));
            unpacked.insert(plain, Unpacked { module: module.to_owned(), info });
        }
        Ok(Self { files, quantisation, unpacked, hidden })
    }

    fn parts<'a>(&'a self, unpacked: &'a Unpacked) -> Parts<'a> {
        Parts::new(&self.files, &unpacked.module, self.quantisation.format.packing().endings().packed)
    }
}

impl TensorSource for QuantisedTensors {
    fn label(&self) -> &str {
        self.files.label()
    }

    fn file_of(&self, name: &str) -> String {
        match self.unpacked.get(name) {
            Some(unpacked) => self.parts(unpacked).file(),
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
        let Some(unpacked) = self.unpacked.get(name) else { return self.files.read(name, shape) };
        unpacked.info.readable_as(name, shape, || self.file_of(name))?;
        self.quantisation.format.packing().unpack(&self.parts(unpacked), shape)
    }

    /// That of the files, as they are stored.
    fn sha256(&self) -> Result<String, WeightsError> {
        self.files.sha256()
    }

    fn unpacked_tensors(&self) -> usize {
        self.unpacked.len()
    }
}

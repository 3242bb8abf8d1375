//! The model: its files, configuration and weights, its tokenizer and its forward pass.
//!
//! A model is a decoder of one of the [`families`], in the layout of a Hugging Face checkpoint. Its [`tensors`] are read by name from any
//! format that implements [`TensorSource`](tensors::TensorSource). This crate does not know tasks or runs; attention methods are in
//! `spattn-attention`, downloads in `spattn-hub`.

mod added_tokens;
pub mod calibration;
pub mod chat;
pub mod checkpoint;
pub mod config;
mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(test)]
mod damage_tests;
pub mod decoder;
pub mod device;
pub mod dimensions;
mod division;
pub mod engine;
pub mod families;
pub mod files;
mod formats;
mod generation;
pub mod gguf;
pub mod hub;
pub mod hub_gguf;
pub mod jinja;
mod kept_blocks;
mod layers;
pub mod linear;
mod markup;
#[cfg(test)]
mod naive_tests;
mod patterns;
#[cfg(test)]
mod quantised_tests;
pub mod rope;
mod routing;
pub mod source;
mod stacked_experts;
pub mod tensors;
pub mod texts;
pub mod token_scores;
pub mod tokenizer;

pub use spattn_hub::{checksum, data, download, http, lock};

pub use checkpoint::CheckpointTensor;
pub use division::GpuShare;

use std::collections::VecDeque;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};

use calibration::{CALIBRATION, CalibrationPlace};
use config::CheckpointType;
use decoder::{Decoder, Dimensions};
use device::{Device, Placement};
use source::{ModelFiles, ModelSource};
use spattn_attention::artefact::ModelShape;
use spattn_attention::kv::KvDtype;
use spattn_base::error::{RunFailure, UsageError};
use spattn_kernels::precision::{MatmulPrecision, matmul_precision};
use tensors::{StoredFormat, StoredTensor, Weights, WeightsError};
use tokenizer::{Tokenizer, TokenizerOptions};

/// Adds a hint to an error. Damaged weights in the hub's cache can be fetched again only after the user has moved them away, since other
/// programs use the cache too.
fn explained(error: WeightsError) -> anyhow::Error {
    match &error {
        WeightsError::Damaged { blob, .. } => {
            let hint = format!("remove {}; the same command then downloads it again", blob.display());
            RunFailure { what: error.to_string(), hint }.into()
        }
        _ => error.into(),
    }
}

/// The user's choice of storage types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorageOptions {
    /// The type of keys, values, and weights that do not stay in quantised blocks; the checkpoint's own type if `None`.
    pub dtype: Option<KvDtype>,
    /// The type for a checkpoint that states none, such as a file of quantised weights.
    pub unnamed: KvDtype,
    /// Whether weights in quantised blocks are also converted.
    pub dequantise: bool,
}

/// The checkpoint's own type, or else f32; quantised blocks are kept.
impl Default for StorageOptions {
    fn default() -> Self {
        Self { dtype: None, unnamed: KvDtype::F32, dequantise: false }
    }
}

/// The given type; quantised blocks are kept.
impl From<Option<KvDtype>> for StorageOptions {
    fn from(dtype: Option<KvDtype>) -> Self {
        Self { dtype, ..Self::default() }
    }
}

impl StorageOptions {
    /// The storage type of keys and values, and a note if it is neither the user's choice nor the checkpoint's type.
    fn choose(self, named: Option<CheckpointType>) -> (KvDtype, Option<String>) {
        let of_checkpoint = named.map(|named| match named {
            CheckpointType::F16 => KvDtype::F16,
            CheckpointType::Bf16 => KvDtype::Bf16,
            CheckpointType::F32 => KvDtype::F32,
        });
        match (self.dtype.or(of_checkpoint), self.unnamed) {
            (Some(dtype), _) => (dtype, None),
            (None, KvDtype::F32) => (KvDtype::F32, None),
            (None, dtype) => {
                let name = dtype.name();
                let note = format!(
                    "keys, values and activations are in {name}: the model's file names no type, and a GPU multiplies 32-bit numbers \
                     slowly (--dtype chooses)"
                );
                (dtype, Some(note))
            }
        }
    }
}

/// A model whose files were found and checked, but whose weights are not in memory: enough to plan a run and its memory.
pub struct OpenModel {
    /// The name that the user gave.
    pub id: String,
    /// The commit of the hub's repository, if the model is from the hub.
    pub revision: Option<String>,
    /// The identity of the weights; empty if the model was opened [for a plan](Self::open_to_plan).
    pub weights_sha256: String,
    /// How its files store the weights, if records name that.
    pub format: Option<StoredFormat>,
    /// The decoder's shapes and sizes.
    pub dimensions: Dimensions,
    /// Converts text to tokens and back, with the chat template.
    pub tokenizer: Tokenizer,
    /// What the user should know about the files, one line each.
    pub notes: Vec<String>,
    /// Where its calibration artefacts are searched for.
    pub calibration: CalibrationPlace,
    /// Where artefacts are written unless the user says otherwise; `None` if the model has no folder of its own.
    pub writable_calibration: Option<PathBuf>,
    weights: Weights,
}

/// A model ready to run.
pub struct Model {
    opened: OpenModel,
    /// The forward pass.
    pub decoder: Decoder,
    /// The same on further devices, if [each has a copy](Device::copies).
    pub further_copies: Vec<Decoder>,
}

impl Deref for Model {
    type Target = OpenModel;

    fn deref(&self) -> &OpenModel {
        &self.opened
    }
}

impl Model {
    /// The forward passes of all copies, which give the same results.
    pub fn decoders(&self) -> impl Iterator<Item = &Decoder> {
        std::iter::once(&self.decoder).chain(&self.further_copies)
    }

    /// Finds, checks and loads a model for the processor's cores, like [`OpenModel::open`] and [`OpenModel::load`].
    ///
    /// # Errors
    /// Those of these two.
    pub fn load(source: &ModelSource, dtype: Option<KvDtype>, options: TokenizerOptions) -> Result<Self> {
        OpenModel::open(source, dtype, options)?.load(Device::Cpu)
    }
}

impl OpenModel {
    /// Finds and checks a model. `storage` gives the types of weights, keys and values.
    ///
    /// # Errors
    /// Those of [`ModelSource::resolve`] and [`Tokenizer::load`]; also if the weights cannot be read.
    pub fn open(source: &ModelSource, storage: impl Into<StorageOptions>, options: TokenizerOptions) -> Result<Self> {
        let opened = Self::of_files(source, source.resolve()?, None, storage.into(), options)?;
        Ok(Self { weights_sha256: opened.weights.sha256().map_err(explained)?, ..opened })
    }

    /// Like [`open`](Self::open), for a plan: no weights are read or downloaded from the hub, so [`weights_sha256`](Self::weights_sha256)
    /// is empty. Tensors are known from the headers of local files; a note says if there are none.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), except for missing weights.
    pub fn open_to_plan(
        source: &ModelSource,
        storage: impl Into<StorageOptions>,
        options: TokenizerOptions,
    ) -> Result<Self> {
        Self::of_files(source, source.resolve_to_plan()?, None, storage.into(), options)
    }

    /// Like [`open`](Self::open), but weights are neither searched for nor downloaded, which is enough to plan the memory of a run. Loading
    /// the model gives random weights.
    ///
    /// # Errors
    /// Those of [`ModelSource::resolve_texts`] and [`Tokenizer::load`].
    pub fn open_without_weights(
        source: &ModelSource,
        storage: impl Into<StorageOptions>,
        options: TokenizerOptions,
    ) -> Result<Self> {
        let (texts, sized_by) = match source {
            // One file holds everything, so it shows the size of the weights.
            ModelSource::Gguf(file) => {
                gguf::open(file, source.to_string()).map(|(texts, weights)| (texts, Some(weights)))?
            }
            _ => (source.resolve_texts()?, None),
        };
        let files = ModelFiles { texts, weights: Weights::random(0), calibration: CalibrationPlace::None };
        let opened = Self::of_files(source, files, sized_by.as_ref(), storage.into(), options)?;
        Ok(Self { weights_sha256: opened.weights.sha256().map_err(explained)?, ..opened })
    }

    /// A model with these files; the identity of its weights is left empty.
    fn of_files(
        source: &ModelSource,
        mut files: ModelFiles,
        sized_by: Option<&Weights>,
        storage: StorageOptions,
        options: TokenizerOptions,
    ) -> Result<Self> {
        let mut config = files.config()?;
        let stored_notes = checkpoint::compare(&mut config, &mut files.weights)?;
        let tokenizer = Tokenizer::load(&files, &config, options)?;
        let (dtype, of_dtype) = storage.choose(config.checkpoint_type);
        let mut dimensions = Dimensions::new(&config, dtype);
        // Products in bf16 need all weights in bf16.
        if !storage.dequantise && matmul_precision() == MatmulPrecision::F32 {
            dimensions = dimensions.keeping_blocks(sized_by.unwrap_or(&files.weights));
        }
        let of_quantised = checkpoint::note_on_quantised(&config, &files.weights, dimensions.weight_dtype());
        let writable_calibration = match source {
            ModelSource::Folder(folder) => Some(folder.join(CALIBRATION)),
            ModelSource::Gguf(file) => Some(gguf::calibration(file)),
            ModelSource::Builtin | ModelSource::Random(_) | ModelSource::Hub { .. } | ModelSource::HubGguf { .. } => {
                None
            }
        };
        Ok(Self {
            calibration: files.calibration,
            writable_calibration,
            dimensions,
            format: files.weights.format(),
            weights_sha256: String::new(),
            id: files.texts.id,
            revision: files.texts.revision,
            notes: [
                files.texts.notes,
                config.notes,
                tokenizer.notes().to_vec(),
                stored_notes,
                of_quantised.into_iter().chain(of_dtype).collect(),
            ]
            .concat(),
            tokenizer,
            weights: files.weights,
        })
    }

    /// The tensors of the checkpoint, both those that the decoder uses and those that nothing reads.
    pub fn tensors(&self) -> Vec<CheckpointTensor> {
        checkpoint::tensors(self.dimensions.config(), &self.weights)
    }

    /// The files with the weights, in order; none for a model that is not stored in files.
    pub fn weight_files(&self) -> Vec<&Path> {
        self.weights.files()
    }

    /// Reads a tensor as it is stored.
    ///
    /// # Errors
    /// Those of [`TensorSource::read`](tensors::TensorSource::read).
    pub fn read_tensor(&self, name: &str, shape: &[usize]) -> Result<StoredTensor, WeightsError> {
        self.weights.read(name, shape)
    }

    /// Loads the weights onto their device; a device given alone means any context length.
    ///
    /// # Errors
    /// Those of [`Decoder::load`]; a [`UsageError`], before memory is allocated, if the device does not exist or cannot have enough memory,
    /// or if copies would be on different GPUs, which may give different answers.
    pub fn load(self, placement: impl Into<Placement>) -> Result<Model> {
        let Placement { device, tokens } = placement.into();
        if device == Device::Cpu {
            self.dimensions.check_weights(&self.id)?;
        }
        device.check(self.dimensions.config().layers)?;
        let mut copies: VecDeque<Decoder> = VecDeque::new();
        let devices = device.copies()?;
        for (number, device) in devices.iter().enumerate() {
            // Copies on one GPU share its weights.
            let first = devices[..number].iter().position(|known| known == device);
            copies.push_back(match first {
                Some(first) => copies[first].beside()?,
                None => self.decoder(Placement { device: *device, tokens })?,
            });
        }
        let decoder = copies.pop_front().expect("a device holds at least one copy");
        if let Some(other) = copies.iter().find(|copy| copy.gpu() != decoder.gpu()) {
            let names = [decoder.gpu(), other.gpu()].map(|name| name.unwrap_or_default().to_owned());
            let what = format!("device `{device}`: {} and {} may give different records", names[0], names[1]);
            return Err(UsageError::new(what).hint("choose GPUs of one kind by CUDA_VISIBLE_DEVICES").into());
        }
        Ok(Model { decoder, further_copies: copies.into(), opened: self })
    }

    /// One copy of the forward pass. If the model was opened [for a plan](Self::open_to_plan) and the checkpoint's weights are missing, it
    /// has random weights.
    ///
    /// # Errors
    /// Those of [`Decoder::load`].
    pub fn decoder(&self, placement: Placement) -> Result<Decoder> {
        Ok(Decoder::load(&self.dimensions, &self.weights, placement)?)
    }

    /// Checks that the model knows all tokens of a text.
    ///
    /// # Errors
    /// If the embedding table has no row for one of them.
    pub fn check_tokens(&self, ids: &[u32]) -> Result<(), UsageError> {
        let known = self.dimensions.config().vocab_size;
        match ids.iter().find(|id| **id as usize >= known) {
            None => Ok(()),
            Some(id) => {
                let what = format!("the tokenizer of {} gives token {id}, and the model has {known}", self.id);
                Err(UsageError::new(what)
                    .hint("its tokenizer.json belongs to another model, or to another version of it"))
            }
        }
    }

    /// What determines answers besides weights and storage types: the decoder's configuration, and how the tokenizer makes prompts and ends
    /// answers.
    pub fn configuration(&self) -> Value {
        json!({
            "config": self.dimensions.config(),
            "tokenizer_sha256": self.tokenizer.sha256(),
            "tokens": self.tokenizer.identity(),
        })
    }

    /// The shape and weights that a calibration artefact must be made for to fit this model.
    pub fn shape(&self) -> ModelShape {
        let c = self.dimensions.config();
        ModelShape {
            weights_sha256: self.weights_sha256.clone(),
            layers: c.layers,
            heads: c.heads,
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_the_users_then_the_checkpoints_then_that_of_the_device() {
        let on_gpu = StorageOptions { unnamed: KvDtype::Bf16, ..StorageOptions::default() };
        let chosen = |storage: StorageOptions, named| storage.choose(named);
        assert_eq!(chosen(on_gpu, Some(CheckpointType::F32)), (KvDtype::F32, None));
        assert_eq!(chosen(StorageOptions { dtype: Some(KvDtype::F16), ..on_gpu }, None), (KvDtype::F16, None));
        assert_eq!(chosen(StorageOptions::default(), None), (KvDtype::F32, None));
        let (dtype, note) = chosen(on_gpu, None);
        assert!(dtype == KvDtype::Bf16 && note.unwrap().starts_with("keys, values and activations are in bf16"));
    }
}

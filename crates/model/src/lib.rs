//! The model: where it comes from, its configuration and weights, its tokenizer and its forward pass.
//!
//! A model is a decoder of one of the [`families`], in the layout of a Hugging Face checkpoint. Its [`tensors`] are read by name from
//! any format that implements [`TensorSource`](tensors::TensorSource). Nothing here knows a task or a run; attention methods come from
//! `spattn-attention`, downloads from `spattn-hub`.

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

/// Weights that are damaged in the hub's cache can be fetched again, but not before they are out of the way: the cache is
/// other programs' too.
fn explained(error: WeightsError) -> anyhow::Error {
    match &error {
        WeightsError::Damaged { blob, .. } => {
            let hint = format!("remove {}; the same command then downloads it again", blob.display());
            RunFailure { what: error.to_string(), hint }.into()
        }
        _ => error.into(),
    }
}

/// What the user wants numbers to be stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorageOptions {
    /// Keys, values, and weights that do not stay in quantised blocks; the checkpoint's own type if `None`.
    pub dtype: Option<KvDtype>,
    /// The type of a checkpoint that names none, as a file of quantised weights does not.
    pub unnamed: KvDtype,
    /// Whether weights in quantised blocks are converted as well.
    pub dequantise: bool,
}

/// The checkpoint's own type, or f32, with quantised blocks kept.
impl Default for StorageOptions {
    fn default() -> Self {
        Self { dtype: None, unnamed: KvDtype::F32, dequantise: false }
    }
}

/// Of this type, with quantised blocks kept.
impl From<Option<KvDtype>> for StorageOptions {
    fn from(dtype: Option<KvDtype>) -> Self {
        Self { dtype, ..Self::default() }
    }
}

impl StorageOptions {
    /// The type of a checkpoint's keys and values, and a note to the user where it is neither theirs nor the checkpoint's.
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

/// A model that was found and checked, all but its weights in memory: enough to plan and to size a run.
pub struct OpenModel {
    /// As the user named it.
    pub id: String,
    /// Commit of the hub's repository, if it came from there.
    pub revision: Option<String>,
    /// Identity of the weights; empty if it was opened [for a plan](Self::open_to_plan).
    pub weights_sha256: String,
    /// How its files store the weights, where records name it.
    pub format: Option<StoredFormat>,
    /// What the decoder is like.
    pub dimensions: Dimensions,
    /// Text to tokens and back, chat template included.
    pub tokenizer: Tokenizer,
    /// What the user should know about the files, one line each.
    pub notes: Vec<String>,
    /// Where its calibration artefacts are looked for.
    pub calibration: CalibrationPlace,
    /// Where they are written unless the user says otherwise: only a model's own folder will do.
    pub writable_calibration: Option<PathBuf>,
    weights: Weights,
}

/// A model ready to run.
pub struct Model {
    opened: OpenModel,
    /// The forward pass.
    pub decoder: Decoder,
    /// The same on further devices, where [each has a copy](Device::copies).
    pub further_copies: Vec<Decoder>,
}

impl Deref for Model {
    type Target = OpenModel;

    fn deref(&self) -> &OpenModel {
        &self.opened
    }
}

impl Model {
    /// The forward passes of all copies, which give the same.
    pub fn decoders(&self) -> impl Iterator<Item = &Decoder> {
        std::iter::once(&self.decoder).chain(&self.further_copies)
    }

    /// Finds, checks and loads a model for the processor's cores, as [`OpenModel::open`] and [`OpenModel::load`].
    ///
    /// # Errors
    /// As these two.
    pub fn load(source: &ModelSource, dtype: Option<KvDtype>, options: TokenizerOptions) -> Result<Self> {
        OpenModel::open(source, dtype, options)?.load(Device::Cpu)
    }
}

impl OpenModel {
    /// Finds and checks a model. `storage` is what weights, keys and values are stored in.
    ///
    /// # Errors
    /// As [`ModelSource::resolve`] and [`Tokenizer::load`], or if the weights cannot be read.
    pub fn open(source: &ModelSource, storage: impl Into<StorageOptions>, options: TokenizerOptions) -> Result<Self> {
        let opened = Self::of_files(source, source.resolve()?, None, storage.into(), options)?;
        Ok(Self { weights_sha256: opened.weights.sha256().map_err(explained)?, ..opened })
    }

    /// As [`open`](Self::open) for a plan: no weight is read, and none is downloaded from the hub, so
    /// [`weights_sha256`](Self::weights_sha256) is empty. Tensors are known by the headers of files that are here; a note says if there are
    /// none.
    ///
    /// # Errors
    /// As [`open`](Self::open), except for weights that are not here.
    pub fn open_to_plan(
        source: &ModelSource,
        storage: impl Into<StorageOptions>,
        options: TokenizerOptions,
    ) -> Result<Self> {
        Self::of_files(source, source.resolve_to_plan()?, None, storage.into(), options)
    }

    /// As [`open`](Self::open) of a model whose weights are neither looked for nor downloaded: enough to size a run. What is
    /// loaded of it are random numbers.
    ///
    /// # Errors
    /// As [`ModelSource::resolve_texts`] and [`Tokenizer::load`].
    pub fn open_without_weights(
        source: &ModelSource,
        storage: impl Into<StorageOptions>,
        options: TokenizerOptions,
    ) -> Result<Self> {
        let (texts, sized_by) = match source {
            // One file has all, and says what its weights take.
            ModelSource::Gguf(file) => {
                gguf::open(file, source.to_string()).map(|(texts, weights)| (texts, Some(weights)))?
            }
            _ => (source.resolve_texts()?, None),
        };
        let files = ModelFiles { texts, weights: Weights::random(0), calibration: CalibrationPlace::None };
        let opened = Self::of_files(source, files, sized_by.as_ref(), storage.into(), options)?;
        Ok(Self { weights_sha256: opened.weights.sha256().map_err(explained)?, ..opened })
    }

    /// A model of these files; the identity of its weights is left empty.
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
        // Products in bf16 take all weights in bf16.
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

    /// The tensors of the checkpoint: those that the decoder computes with, and those that nothing reads.
    pub fn tensors(&self) -> Vec<CheckpointTensor> {
        checkpoint::tensors(self.dimensions.config(), &self.weights)
    }

    /// The files with the weights, in order; none for a model that is in no file.
    pub fn weight_files(&self) -> Vec<&Path> {
        self.weights.files()
    }

    /// Reads a tensor as it is stored.
    ///
    /// # Errors
    /// As [`TensorSource::read`](tensors::TensorSource::read).
    pub fn read_tensor(&self, name: &str, shape: &[usize]) -> Result<StoredTensor, WeightsError> {
        self.weights.read(name, shape)
    }

    /// Reads the weights to where they are needed; a device alone stands for any context.
    ///
    /// # Errors
    /// As [`Decoder::load`]; a [`UsageError`] if there is no such device, or cannot be so much memory, before any is taken; or if copies would
    /// be on different GPUs, which may give different answers.
    pub fn load(self, placement: impl Into<Placement>) -> Result<Model> {
        let Placement { device, tokens } = placement.into();
        if device == Device::Cpu {
            self.dimensions.check_weights(&self.id)?;
        }
        device.check(self.dimensions.config().layers)?;
        let copy = |device| self.decoder(Placement { device, tokens });
        let mut copies = device.copies()?.into_iter().map(copy).collect::<Result<VecDeque<Decoder>>>()?;
        let decoder = copies.pop_front().expect("a device holds at least one copy");
        if let Some(other) = copies.iter().find(|copy| copy.gpu() != decoder.gpu()) {
            let names = [decoder.gpu(), other.gpu()].map(|name| name.unwrap_or_default().to_owned());
            let what = format!("device `{device}`: {} and {} may give different records", names[0], names[1]);
            return Err(UsageError::new(what).hint("choose GPUs of one kind by CUDA_VISIBLE_DEVICES").into());
        }
        Ok(Model { decoder, further_copies: copies.into(), opened: self })
    }

    /// One copy of the forward pass. Of a model that was opened [for a plan](Self::open_to_plan), its weights are random numbers if the
    /// checkpoint's are not here.
    ///
    /// # Errors
    /// As [`Decoder::load`].
    pub fn decoder(&self, placement: Placement) -> Result<Decoder> {
        Ok(Decoder::load(&self.dimensions, &self.weights, placement)?)
    }

    /// Makes sure that the model knows all tokens of a text.
    ///
    /// # Errors
    /// If the tokenizer gave one that the embedding table has no row for.
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

    /// What determines answers besides weights and the type that is computed in: the decoder's configuration, and how the
    /// tokenizer makes prompts and ends answers.
    pub fn configuration(&self) -> Value {
        json!({
            "config": self.dimensions.config(),
            "tokenizer_sha256": self.tokenizer.sha256(),
            "tokens": self.tokenizer.identity(),
        })
    }

    /// What an artefact has to be made for to fit this model.
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

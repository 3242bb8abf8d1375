//! Checks whether the program computes a model right (`spattn verify`).
//!
//! [`Verification::run`] reads a model, measures it and judges. Without a reference it checks whether all tensors are read, whether texts
//! come back from their tokens, and whether the decoder agrees with itself. An [`HfReference`] holds what transformers computed with the
//! same files; with it, the first layer and position that differ are found, and the files that explain it. With the feature `candle`,
//! candle-transformers computes the same model. Other modules print the findings.

mod against;
mod alone;
#[cfg(feature = "candle")]
mod candle;
mod check;
mod dense;
mod numbers;
#[cfg(feature = "candle")]
mod passage;
mod python;
mod reference;
mod rows;
mod tensors;
mod texts;

use anyhow::Result;
use serde_json::{Map, Value};

pub use check::{Check, CheckResult};
pub use python::write_reference;
pub use reference::{HfChat, HfLine, HfMetadata, HfReference};

use against::{dtype_of, judge_files, judge_forward};
use alone::{Itself, LEAST_TOKENS};
use rows::RowSums;
use spattn_attention::kv::KvDtype;
use spattn_base::error::UsageError;
use spattn_model::device::Device;
use spattn_model::source::ModelSource;
use spattn_model::tokenizer::TokenizerOptions;
use spattn_model::{Model, OpenModel};
use tensors::OurTensor;

/// A model to verify, and what to compare it with.
pub struct Verification<'a> {
    /// The model.
    pub source: &'a ModelSource,
    /// The device that computes.
    pub device: Device,
    /// The storage type of weights, keys and values; if `None`, the reference's type, or else f32.
    pub dtype: Option<KvDtype>,
    /// The program that it is compared with.
    pub referee: Option<Referee<'a>>,
}

/// Another program that computes the model.
#[derive(Clone, Copy)]
pub enum Referee<'a> {
    /// transformers, which computed this reference.
    Hf(&'a HfReference),
    /// candle-transformers, which computes during the verification.
    #[cfg(feature = "candle")]
    Candle {
        /// Tokens of the text; if `None`, 64 more than the model was trained for, at most 2,112.
        tokens: Option<usize>,
    },
}

/// The number of parts of a verification on the CPU without a reference.
const ALONE: usize = 8;

/// What was verified, and what was found.
pub struct Verified {
    /// The model as the user named it.
    pub model: String,
    /// Commit of the hub's repository, if it came from there.
    pub revision: Option<String>,
    /// Identity of the weights.
    pub weights_sha256: String,
    /// The storage type of weights, keys and values.
    pub dtype: KvDtype,
    /// The program that it was compared with; `None` if there was none.
    pub referee: Option<String>,
    /// Notes for the user about the files.
    pub notes: Vec<String>,
    /// The checks, ordered so that a fault of one explains faults of later ones.
    pub checks: Vec<Check>,
}

impl Verification<'_> {
    /// Reads the model and checks it. Before each part, calls `progress` with its name, the number of parts done and the number of parts.
    ///
    /// # Errors
    /// As [`OpenModel::open`] and [`OpenModel::load`]; if the forward pass yields numbers that are not finite.
    pub fn run(&self, progress: &mut dyn FnMut(&str, usize, usize)) -> Result<Verified> {
        let parts = ALONE + usize::from(self.device != Device::Cpu) + usize::from(self.referee.is_some());
        let mut done = 0;
        let mut begin = |what: &str| {
            progress(what, done, parts);
            done += 1;
        };
        let opened = self.open()?;
        begin("reading all tensors");
        // Checks the memory before any tensor is read.
        opened.dimensions.check_weights(&opened.id)?;
        let mut verified = Verified {
            model: opened.id.clone(),
            revision: opened.revision.clone(),
            weights_sha256: opened.weights_sha256.clone(),
            dtype: opened.dimensions.dtype(),
            referee: self.reference().map(HfReference::origin),
            notes: opened.notes.clone(),
            checks: self.judge_files(&opened)?,
        };
        let is_broken = |check: &Check| check.name == tensors::FINITE && check.is_failure();
        if !verified.checks.iter().any(is_broken) {
            begin("loading the weights");
            self.judge_decoder(opened.load(self.device)?, &mut verified, &mut begin)?;
        }
        Ok(verified)
    }

    /// Returns what transformers computed.
    fn reference(&self) -> Option<&HfReference> {
        match self.referee {
            Some(Referee::Hf(reference)) => Some(reference),
            _ => None,
        }
    }

    fn open(&self) -> Result<OpenModel> {
        let of_reference = self.reference().map(dtype_of).transpose()?;
        let dtype = self.dtype.or(of_reference).unwrap_or(KvDtype::F32);
        OpenModel::open(self.source, Some(dtype), TokenizerOptions::default())
    }

    /// Judges what needs no forward pass.
    fn judge_files(&self, model: &OpenModel) -> Result<Vec<Check>> {
        let ours = our_tensors(model)?;
        let mut checks = vec![tensors::all_are_read(&ours), tensors::all_are_finite(&ours)];
        let config = model.dimensions.config();
        checks.push(alone::tokens_round_trip(&model.tokenizer, config.vocab_size)?);
        match self.reference() {
            None => checks.push(alone::chat_renders(&model.tokenizer)),
            Some(reference) => {
                checks.push(tensors::are_those_of(&ours, &reference.rows, config.head_dim));
                checks.extend(judge_files(model, &config_of(self.source)?, reference)?);
            }
        }
        Ok(checks)
    }

    /// Judges what the decoder computes.
    fn judge_decoder(&self, model: Model, verified: &mut Verified, begin: &mut dyn FnMut(&str)) -> Result<()> {
        verified.checks.extend(self.judge_alone(&model, begin)?);
        if self.referee.is_some() {
            begin("the decoder beside the reference");
        }
        match self.referee {
            None => {}
            Some(Referee::Hf(reference)) => verified.checks.extend(judge_forward(&model.decoder, reference)?),
            #[cfg(feature = "candle")]
            Some(Referee::Candle { tokens }) => {
                let beside = candle::judge(model, &config_of(self.source)?, tokens)?;
                verified.checks.extend(beside.checks);
                verified.referee = beside.name;
            }
        }
        Ok(())
    }

    fn judge_alone(&self, model: &Model, begin: &mut dyn FnMut(&str)) -> Result<Vec<Check>> {
        let decoder = &model.decoder;
        let ids = alone::text(&model.tokenizer, decoder.config().context_limit())?;
        if model.check_tokens(&ids).is_err() || ids.len() < LEAST_TOKENS {
            return Ok(vec![Check::skipped("decoder", "its text has too few tokens that the model knows")]);
        }
        begin("reading a text");
        let itself = Itself::read(decoder, &ids, self.device)?;
        let mut checks = Vec::new();
        begin("how well the text is predicted");
        checks.push(alone::surprise(decoder, &ids)?);
        begin("beginnings of the text");
        checks.push(itself.keeps_prefixes()?);
        begin("steps beside reading");
        checks.push(itself.decodes()?);
        begin("steps in a batch");
        checks.push(itself.ignores_the_batch()?);
        begin("other numbers of threads");
        checks.push(itself.ignores_threads()?);
        if self.device != Device::Cpu {
            begin("the CPU beside the GPU");
            checks.push(itself.agrees_with(&self.open()?.load(Device::Cpu)?.decoder)?);
        }
        Ok(checks)
    }
}

/// Reads each tensor once.
fn our_tensors(model: &OpenModel) -> Result<Vec<OurTensor>> {
    let read = |tensor: spattn_model::CheckpointTensor| -> Result<OurTensor> {
        let rows = match tensor.is_read {
            true => Some(RowSums::new(&model.read_tensor(&tensor.name, &tensor.shape)?.to_f32(), &tensor.shape)),
            false => None,
        };
        Ok(OurTensor { name: tensor.name, rows })
    };
    model.tensors().into_iter().map(read).collect()
}

/// The model's `config.json`.
fn config_of(source: &ModelSource) -> Result<Map<String, Value>> {
    let file = source.resolve_texts()?.config;
    let value = serde_json::from_str(&file.text);
    value.map_err(|e| UsageError::new(format!("{}: not valid JSON: {e}", file.name)).into())
}

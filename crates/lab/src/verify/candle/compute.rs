//! What candle computes with a model, in f32 on the CPU. It reads the weight files itself; only the weights of a model without files
//! are read here for it.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use candle_core::quantized::gguf_file::Content;
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use serde_json::{Map, Value};

use super::designs::Build;
use super::limits::Judged;
use super::networks::{Network, logits};
use crate::verify::numbers::argmax;
use crate::verify::passage::{NEW_TOKENS, Passage};
use spattn_base::error::UsageError;
use spattn_base::memory;
use spattn_model::OpenModel;
use spattn_model::checkpoint::name_alone;
use spattn_model::tokenizer::Tokenizer;

/// The candle version that the rows of [`designs`](super::designs) describe.
pub(super) const VERSION: &str = "0.11.1";

/// Candle's implementation of a model, with its weights.
pub(super) struct Candle {
    judged: Judged,
    files: Vec<PathBuf>,
    /// The number of weights.
    weights: usize,
    /// The tensors of a model without files.
    given: HashMap<String, Tensor>,
}

/// What candle computed over a passage.
pub(super) struct Computed {
    /// Logits `[position][vocab_size]`.
    pub logits: Vec<f32>,
    /// The tokens that greedy decoding appends to the prompt.
    pub continuation: Vec<u32>,
    /// By how much the logit of each of these tokens exceeds the second largest.
    pub gaps: Vec<f64>,
}

impl Candle {
    /// Finds candle's implementation of a model with this `config.json`.
    ///
    /// # Errors
    /// If tensors cannot be read. The inner error says why candle is no referee.
    pub(super) fn of(model: &OpenModel, config: &Map<String, Value>) -> Result<Result<Self, String>> {
        let files: Vec<PathBuf> = model.weight_files().into_iter().map(Path::to_owned).collect();
        let judged = match Judged::of(config, model.format.is_some()) {
            Ok(judged) => judged,
            Err(why) => return Ok(Err(why)),
        };
        if judged.design.is_of_gguf() && files.len() != 1 {
            return Ok(Err("candle reads a GGUF model from one file only".to_owned()));
        }
        let given = if files.is_empty() { tensors_of(model)? } else { HashMap::new() };
        Ok(Ok(Self { judged, files, weights: model.dimensions.weight_numbers(), given }))
    }

    /// Names the program and the module that the model is compared with.
    pub(super) fn name(&self) -> String {
        format!("candle-transformers {VERSION} ({}) in f32", self.judged.design.module)
    }

    /// The smallest tolerance for differences.
    pub(super) fn tolerance(&self) -> f64 {
        self.judged.design.tolerance
    }

    /// Returns what both programs read: a text of `tokens` tokens, or as many as a reference of transformers has.
    ///
    /// # Errors
    /// If the text cannot be tokenised.
    pub(super) fn passage(&self, tokenizer: &Tokenizer, tokens: Option<usize>) -> Result<Passage> {
        Passage::new(tokenizer, self.judged.trained(), tokens, self.judged.most_tokens())
    }

    /// Checks that the machine has the memory that candle takes: for the files, and for the weights in f32.
    ///
    /// # Errors
    /// If the memory is too small.
    pub(super) fn check_memory(&self) -> Result<(), UsageError> {
        let stored: u64 = self.files.iter().map(|file| length(file)).sum();
        memory::check(
            stored.saturating_add(4 * self.weights as u64),
            "the model takes, in candle,",
            "choose a smaller model, or write a reference on another machine: docs/verify.md says how, with scripts/verify_hf.py",
        )
    }

    /// Reads the weights, and computes logits and a continuation.
    ///
    /// # Errors
    /// In candle's words, if it cannot read the weights or compute the model.
    pub(super) fn compute(self, passage: &Passage) -> Result<Computed> {
        let tokens = passage.ids.len().max(passage.prompt.len() + NEW_TOKENS);
        let mut network = self.network(tokens)?;
        let logits = at_positions(network.as_mut(), passage)?;
        network.restart();
        let (continuation, gaps) = greedy(network.as_mut(), &passage.prompt)?;
        Ok(Computed { logits, continuation, gaps })
    }

    fn network(self, tokens: usize) -> Result<Box<dyn Network>> {
        match self.judged.design.build {
            Build::Gguf(build) => {
                let path = self.files.first().context("a GGUF file")?;
                let mut file = File::open(path)?;
                Ok(build(Content::read(&mut file)?, &mut file)?)
            }
            Build::Folder(build) => {
                let mut tensors = self.given;
                for path in &self.files {
                    tensors.extend(candle_core::safetensors::load(path, &Device::Cpu)?);
                }
                let tensors: HashMap<String, Tensor> =
                    tensors.into_iter().map(|(name, tensor)| (name_alone(&name), tensor)).collect();
                let (tensors, has_head) = with_head(tensors);
                let config = self.judged.config(tokens, has_head);
                Ok(build(&config, VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu))?)
            }
        }
    }
}

fn length(file: &Path) -> u64 {
    file.metadata().map_or(0, |metadata| metadata.len())
}

/// Reads the tensors of a model without files.
fn tensors_of(model: &OpenModel) -> Result<HashMap<String, Tensor>> {
    let read = |tensor: &spattn_model::CheckpointTensor| -> Result<(String, Tensor)> {
        let numbers = model.read_tensor(&tensor.name, &tensor.shape)?.to_f32();
        Ok((tensor.name.clone(), Tensor::from_vec(numbers, tensor.shape.as_slice(), &Device::Cpu)?))
    };
    model.tensors().iter().filter(|tensor| tensor.is_read).map(read).collect()
}

/// Adds an output matrix if none is stored: the embedding table. Also returns whether one was stored. Some of candle's models need a
/// stored output matrix, and none reads a stored one if `tie_word_embeddings` is true, which transformers does.
fn with_head(mut tensors: HashMap<String, Tensor>) -> (HashMap<String, Tensor>, bool) {
    const HEAD: &str = "lm_head.weight";
    let is_stored = tensors.contains_key(HEAD);
    if let (false, Some(table)) = (is_stored, tensors.get("model.embed_tokens.weight").cloned()) {
        tensors.insert(HEAD.to_owned(), table);
    }
    (tensors, is_stored)
}

/// Computes logits at positions of a text, reading from one position to the next, so that the KV cache is checked as well.
fn at_positions(network: &mut dyn Network, passage: &Passage) -> candle_core::Result<Vec<f32>> {
    let mut all = Vec::new();
    let mut read = 0;
    for position in &passage.positions {
        all.extend(logits(network, &passage.ids[read..=*position], read)?);
        read = position + 1;
    }
    Ok(all)
}

/// Returns the tokens that greedy decoding appends, each with the gap between its logit and the second largest.
fn greedy(network: &mut dyn Network, prompt: &[u32]) -> candle_core::Result<(Vec<u32>, Vec<f64>)> {
    let (mut tokens, mut gaps) = (Vec::new(), Vec::new());
    let mut last = logits(network, prompt, 0)?;
    loop {
        let first = argmax(&last);
        let second = (0..last.len()).filter(|i| *i != first).map(|i| last[i]).fold(f32::NEG_INFINITY, f32::max);
        tokens.push(first as u32);
        gaps.push(f64::from(last[first]) - f64::from(second));
        if tokens.len() == NEW_TOKENS {
            return Ok((tokens, gaps));
        }
        last = logits(network, &tokens[tokens.len() - 1..], prompt.len() + tokens.len() - 1)?;
    }
}

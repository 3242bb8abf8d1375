//! What transformers computed with a model: the file that `scripts/verify_hf.py` writes.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use serde_json::{Map, Value};
use spattn_base::error::{UsageError, in_plain_words};
use spattn_base::given;
use spattn_model::checkpoint::name_alone;

/// The version of the file's layout.
const FORMAT: u32 = 1;
/// The most bytes of a reference: row sums of 100 billion weights take a tenth of it.
const MOST_BYTES: u64 = 2 << 30;
/// The key of the metadata in the file.
const METADATA: &str = "spattn_verify";
/// The prefix of the names of row sums.
const ROWS: &str = "rows/";
/// What to do with a file that cannot be read.
const HINT: &str = "write it with scripts/verify_hf.py of this version's source (docs/verify.md says how)";

/// A reference whose content was checked: shapes fit each other, positions rise from 0.
#[derive(Debug, Clone)]
pub struct HfReference {
    /// The metadata.
    pub said: HfMetadata,
    /// The tokens of the text.
    pub ids: Vec<u32>,
    /// The positions of `logits` and `hidden`.
    pub positions: Vec<usize>,
    /// `[position][vocab_size]`.
    pub logits: Vec<f32>,
    /// `[layers passed][position][hidden_size]`.
    pub hidden: Vec<Vec<f32>>,
    /// RoPE's frequencies for this text, if there is one set of them.
    pub inverse_frequencies: Option<Vec<f32>>,
    /// Row sums by the tensor's name, as in a checkpoint of the text model alone.
    pub rows: BTreeMap<String, Vec<f64>>,
}

/// The metadata of a reference.
#[derive(Debug, Clone, Deserialize)]
pub struct HfMetadata {
    format: u32,
    /// Version of transformers.
    pub transformers: String,
    /// Version of PyTorch.
    pub torch: String,
    /// The type that it computed in: `float32`, `bfloat16` or `float16`.
    pub dtype: String,
    /// `config.json`.
    pub config: Map<String, Value>,
    /// `max_position_embeddings`.
    pub trained: usize,
    /// The tokens that the tokenizer puts in front of a text.
    pub front: Vec<u32>,
    /// Texts with their tokens.
    pub lines: Vec<HfLine>,
    /// A rendered conversation; `None` without a template.
    pub chat: Option<HfChat>,
    /// Id of the BOS token.
    pub bos: Option<u32>,
    /// Ids that end a generation.
    pub eos: Vec<u32>,
    /// The prompt, in tokens.
    pub prompt: Vec<u32>,
    /// The tokens that greedy decoding appends to the prompt.
    pub continuation: Vec<u32>,
    /// By how much the logit of each appended token exceeds the second largest.
    pub gaps: Vec<f64>,
}

/// A text with its tokens, without any token in front.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HfLine {
    /// The text.
    pub text: String,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// The text that the tokens are decoded to.
    pub decoded: String,
}

/// A user's turn, rendered by the chat template.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HfChat {
    /// What the user says.
    pub user: String,
    /// The prompt.
    pub text: String,
    /// Its tokens.
    pub ids: Vec<u32>,
}

impl HfReference {
    /// Reads a reference.
    ///
    /// # Errors
    /// If the file cannot be read, or was not written by `scripts/verify_hf.py`.
    pub fn read(path: &Path) -> Result<Self, UsageError> {
        let fault = |what: String| UsageError::new(format!("{}: {what}", path.display())).hint(HINT);
        let bytes = given::bytes(path, MOST_BYTES)
            .map_err(|e| UsageError::new(format!("cannot read {}: {e}", path.display())).hint(HINT))?;
        Self::parse(&bytes).map_err(fault)
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let file = SafeTensors::deserialize(bytes).map_err(|e| format!("no safetensors file: {e}"))?;
        let said = metadata(bytes)?;
        let file = File(&file);
        let ids: Vec<u32> = file.whole("ids")?;
        let positions: Vec<usize> = file.whole("positions")?;
        let rises = positions.first() == Some(&0) && positions.is_sorted_by(|a, b| a < b);
        if !rises || positions.last().is_some_and(|last| *last >= ids.len()) {
            return Err("positions do not rise from 0 within the text".to_owned());
        }
        let (states, logits) = (file.floats("hidden", 3)?, file.floats("logits", 2)?);
        if states.shape[1] != positions.len() || logits.shape[0] != positions.len() {
            return Err("`hidden` or `logits` have another number of positions".to_owned());
        }
        let of_depth = states.shape[1] * states.shape[2];
        if of_depth == 0 || logits.numbers.is_empty() {
            return Err("`hidden` or `logits` are empty".to_owned());
        }
        if said.prompt.is_empty() || said.continuation.is_empty() || said.gaps.len() != said.continuation.len() {
            return Err("prompt, continuation and gaps do not fit".to_owned());
        }
        Ok(Self {
            hidden: states.numbers.chunks_exact(of_depth).map(<[f32]>::to_vec).collect(),
            logits: logits.numbers,
            inverse_frequencies: match file.0.tensor("inv_freq") {
                Ok(_) => Some(file.floats("inv_freq", 1)?.numbers),
                Err(_) => None,
            },
            rows: file.rows()?,
            said,
            ids,
            positions,
        })
    }

    /// Names the program that computed it.
    pub(super) fn origin(&self) -> String {
        let said = &self.said;
        format!("transformers {} with torch {} in {}", said.transformers, said.torch, said.dtype)
    }

    /// The hidden size.
    pub(super) fn hidden_size(&self) -> usize {
        self.hidden.first().map_or(0, |depth| depth.len() / self.positions.len())
    }

    /// The number of logits at a position.
    pub(super) fn vocab_size(&self) -> usize {
        self.logits.len() / self.positions.len()
    }
}

fn metadata(bytes: &[u8]) -> Result<HfMetadata, String> {
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| e.to_string())?;
    let text = header.metadata().as_ref().and_then(|keys| keys.get(METADATA));
    let text = text.ok_or_else(|| format!("no metadata `{METADATA}`: this is no reference"))?;
    let said: HfMetadata =
        serde_json::from_str(text).map_err(|e| format!("metadata `{METADATA}`: {}", in_plain_words(&e.to_string())))?;
    match said.format {
        FORMAT => Ok(said),
        other => Err(format!("a reference of format {other}; this version reads {FORMAT}")),
    }
}

/// The tensors of a reference.
struct File<'a>(&'a SafeTensors<'a>);

struct Floats {
    shape: Vec<usize>,
    numbers: Vec<f32>,
}

impl File<'_> {
    fn bytes(&self, name: &str, dtype: Dtype, axes: usize) -> Result<(Vec<usize>, &[u8]), String> {
        let tensor = self.0.tensor(name).map_err(|_| format!("no tensor `{name}`"))?;
        if tensor.dtype() != dtype || tensor.shape().len() != axes {
            return Err(format!("`{name}` is {:?} {:?}", tensor.dtype(), tensor.shape()));
        }
        Ok((tensor.shape().to_vec(), tensor.data()))
    }

    /// Reads whole numbers from 0.
    fn whole<T: TryFrom<i64>>(&self, name: &str) -> Result<Vec<T>, String> {
        let (_, bytes) = self.bytes(name, Dtype::I64, 1)?;
        let number = |word: &[u8; 8]| T::try_from(i64::from_le_bytes(*word));
        let numbers: Result<Vec<T>, _> = bytes.as_chunks().0.iter().map(number).collect();
        numbers.map_err(|_| format!("`{name}` has a number that is out of range"))
    }

    fn floats(&self, name: &str, axes: usize) -> Result<Floats, String> {
        let (shape, bytes) = self.bytes(name, Dtype::F32, axes)?;
        Ok(Floats { shape, numbers: bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect() })
    }

    fn rows(&self) -> Result<BTreeMap<String, Vec<f64>>, String> {
        let names = self.0.names().into_iter();
        let of_row = names.filter_map(|name| Some((name, name.strip_prefix(ROWS)?)));
        of_row
            .map(|(name, tensor)| {
                let (_, bytes) = self.bytes(name, Dtype::F64, 1)?;
                let sums = bytes.as_chunks().0.iter().map(|word| f64::from_le_bytes(*word)).collect();
                Ok((name_alone(tensor), sums))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_are_no_references() {
        let said = |bytes: &[u8]| HfReference::parse(bytes).unwrap_err();
        assert!(said(b"{}").starts_with("no safetensors file"), "{}", said(b"{}"));
        let header = |header: &str| [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
        assert_eq!(said(&header("{}      ")), "no metadata `spattn_verify`: this is no reference");
        let broken = header(r#"{"__metadata__":{"spattn_verify":"{}"}}  "#);
        assert!(said(&broken).starts_with("metadata `spattn_verify`: missing field"), "{}", said(&broken));
    }
}

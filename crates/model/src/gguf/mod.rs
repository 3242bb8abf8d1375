//! Models in GGUF, the file format of llama.cpp: one file, or several from `gguf-split`, with weights, configuration and tokenizer.
//!
//! A file is translated to the contents of a Hugging Face folder: `config` and `families` write a `config.json`, `tokenizer` writes a
//! `tokenizer.json` and a `tokenizer_config.json`, and `tensors` reads weights by Hugging Face names. So the rest of the program works as
//! for a folder. A setting without an equivalent there is an error that names its key.
//!
//! `candle-core` reads the container, after `directory` has checked what it does not check itself, and the quantised types that the kernels
//! do not support; other quantised tensors keep their blocks. candle's tokenizer reader is not used: for unknown names it falls back to
//! GPT-2's splitting.

mod config;
mod directory;
mod families;
#[cfg(test)]
mod family_tests;
mod files;
mod metadata;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod refusal_tests;
pub(crate) mod split;
mod tensors;
mod tokenizer;
#[cfg(test)]
mod tokenizer_tests;
mod types;
#[cfg(test)]
mod writer;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::calibration::CALIBRATION;
use crate::files::{CONFIG, TOKENIZER, TOKENIZER_CONFIG};
use crate::tensors::Weights;
use crate::texts::{ModelTexts, TextFile};
use anyhow::Result;
use files::GgufFiles;
use metadata::Metadata;
use spattn_base::error::UsageError;
use tensors::GgufTensors;

pub(crate) use config::check_architecture;

/// The key of the number for the file's type.
const FILE_TYPE: &str = "general.file_type";

/// Whether the name of a file ends with `.gguf`, in any case.
pub fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// The folder of a file's calibration artefacts. It is beside the file and named after it, since one folder may hold several models.
pub fn calibration(path: &Path) -> PathBuf {
    path.with_extension(CALIBRATION)
}

/// Checks that the files of a model can be read as GGUF, without interpreting their contents.
///
/// # Errors
/// Those of [`open`] for a file that is not GGUF, truncated or damaged.
pub(crate) fn check(path: &Path) -> Result<(), UsageError> {
    directory::check(path).map(drop)
}

/// Opens a GGUF file and, if the model is split, its other files. Returns the texts, and the weights without reading their numbers.
/// Records name the model `id`.
///
/// # Errors
/// A [`UsageError`] with the file and the key if the file is not GGUF, is truncated, has a tensor of an unsupported type, is of an
/// unsupported family, or has a tokenizer that is not known exactly.
pub fn open(path: &Path, id: String) -> Result<(ModelTexts, Weights)> {
    let files = GgufFiles::open(path, config::check_architecture)?;
    let metadata = Metadata::new(files.label(), files.metadata());
    let family = config::family(&metadata)?;
    let config = config::config_json(&metadata, family, &files)?;
    let tokenizer = tokenizer::read(&metadata)?;
    let notes = config::unread_keys(&metadata, family).into_iter().chain(tokenizer.note.clone());
    let notes = notes.chain(widened(&files)).collect();
    let file_type = metadata.optional_size(FILE_TYPE)?.map(types::file_type);
    let text = |name: &str, value: &Value| TextFile {
        name: format!("{} ({name})", files.label()),
        text: value.to_string().into(),
    };
    let texts = ModelTexts {
        id,
        revision: None,
        config: text(CONFIG, &config),
        tokenizer: text(TOKENIZER, &tokenizer.tokenizer),
        tokenizer_config: Some(text(TOKENIZER_CONFIG, &tokenizer.config)),
        generation_config: None,
        chat_template: None,
        special_tokens: None,
        added_tokens: None,
        notes,
    };
    let mut weights = Weights::from(GgufTensors::new(files, family, file_type));
    tensors::divide_experts(family, &mut weights);
    Ok((texts, weights))
}

/// The note on weights that are not kept as they are in the file.
fn widened(files: &GgufFiles) -> Option<String> {
    let types: Vec<String> = files.widened_types().into_iter().collect();
    let of = types.join(" and ");
    (!types.is_empty()).then(|| format!("{}: weights in {of} are converted when they are loaded", files.label()))
}

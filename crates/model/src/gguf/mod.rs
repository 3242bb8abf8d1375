//! Models in GGUF, the file format of llama.cpp: one file, or several that `gguf-split` made, with weights, configuration and
//! tokenizer.
//!
//! What a file says is turned into what a Hugging Face folder holds: [`config`] writes the text of a `config.json`, [`tokenizer`]
//! those of a `tokenizer.json` and a `tokenizer_config.json`, and [`tensors`] reads weights by Hugging Face names. So everything
//! above works as it does for a folder. Whatever a file says that cannot be expressed so is refused by the name of its key.
//!
//! The container is read by `candle-core`, and so are quantised types that the kernels do not know; the others stay in blocks. Its tokenizer reader is not used: it falls back to GPT-2's
//! splitting for names that it does not know.

mod config;
mod files;
mod metadata;
mod tensors;
mod tokenizer;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::calibration::CALIBRATION;
use crate::files::{CONFIG, TOKENIZER, TOKENIZER_CONFIG};
use crate::tensors::Weights;
use crate::texts::{ModelTexts, TextFile};
use anyhow::Result;
use files::GgufFiles;
use metadata::Metadata;
use tensors::GgufTensors;

/// Whether a path is named as a GGUF file is.
pub fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// The folder of a file's calibrations: beside it, named after it, as a folder may hold several models.
pub fn calibration(path: &Path) -> PathBuf {
    path.with_extension(CALIBRATION)
}

/// Opens a GGUF file, and those that belong to it if it was split: its texts, and its weights without reading their numbers. `id` is
/// how records name the model.
///
/// # Errors
/// A [`UsageError`](spattn_base::error::UsageError) with the file and the key if the file is not GGUF, is truncated, has a tensor of a
/// type that cannot be read, is of a family that is not supported, or has a tokenizer that is not known exactly.
pub fn open(path: &Path, id: String) -> Result<(ModelTexts, Weights)> {
    let files = GgufFiles::open(path)?;
    let metadata = Metadata::new(files.label(), files.metadata());
    let family = config::family(&metadata)?;
    let config = config::config_json(&metadata, family, &files)?;
    let tokenizer = tokenizer::read(&metadata)?;
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
        notes: widened(&files).into_iter().collect(),
    };
    Ok((texts, GgufTensors::new(files, family).into()))
}

/// Says which weights are not kept as the file has them.
fn widened(files: &GgufFiles) -> Option<String> {
    let types: Vec<String> = files.widened_types().into_iter().collect();
    let of = types.join(" and ");
    (!types.is_empty()).then(|| format!("{}: weights in {of} are converted when they are loaded", files.label()))
}

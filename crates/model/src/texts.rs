//! The texts of a model's files from any source, and how JSON in them is read.

use std::borrow::Cow;

use serde_json::{Map, Value};
use spattn_base::error::UsageError;

#[cfg(doc)]
use crate::files::{
    ADDED_TOKENS, CHAT_TEMPLATE, CONFIG, GENERATION_CONFIG, SPECIAL_TOKENS, TOKENIZER, TOKENIZER_CONFIG,
};

/// A text with its name for errors.
#[derive(Debug, Clone)]
pub struct TextFile {
    /// Path, or a label for built-in files.
    pub name: String,
    /// Contents.
    pub text: Cow<'static, str>,
}

/// The files of a model besides its weights.
#[derive(Debug)]
pub struct ModelTexts {
    /// The model's name in records: `builtin`, the folder, or the hub id.
    pub id: String,
    /// The commit on the hub, if there is one.
    pub revision: Option<String>,
    /// [`CONFIG`].
    pub config: TextFile,
    /// [`TOKENIZER`].
    pub tokenizer: TextFile,
    /// [`TOKENIZER_CONFIG`].
    pub tokenizer_config: Option<TextFile>,
    /// [`GENERATION_CONFIG`].
    pub generation_config: Option<TextFile>,
    /// [`CHAT_TEMPLATE`].
    pub chat_template: Option<TextFile>,
    /// [`SPECIAL_TOKENS`].
    pub special_tokens: Option<TextFile>,
    /// [`ADDED_TOKENS`].
    pub added_tokens: Option<TextFile>,
    /// What the user should know about how the files were found, one line each.
    pub notes: Vec<String>,
}

/// The object in a file; empty if there is no file.
///
/// # Errors
/// A text that is not a JSON object, with the file's name.
pub(super) fn object(file: Option<&TextFile>) -> Result<Map<String, Value>, UsageError> {
    let Some(file) = file else { return Ok(Map::new()) };
    match serde_json::from_str(&file.text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(UsageError::new(format!("{}: expected a JSON object", file.name))),
        Err(e) => Err(UsageError::new(format!("{}: not valid JSON: {e}", file.name))),
    }
}

/// The text of a special token, which is written as a string or as an object with the
/// text.
pub(super) fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

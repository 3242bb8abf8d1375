//! One row: its fields, with errors that name the file and the line.

use serde_json::{Map, Value};

use super::values::text_or_number;
use crate::answers;
use spattn_base::error::UsageError;

/// A row with its place in a file.
pub struct Row {
    /// Its fields.
    pub fields: Map<String, Value>,
    /// File and line, as `FILE:LINE`, for messages.
    pub place: String,
    /// Line number from 1.
    pub number: usize,
}

impl Row {
    /// The text of a field; `None` if the field is absent or null.
    ///
    /// # Errors
    /// If it is not a text.
    pub fn text(&self, name: &str) -> Result<Option<&str>, UsageError> {
        match self.fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(format!("the field `{name}` is not text"))),
        }
    }

    /// The text of a required field.
    ///
    /// # Errors
    /// If it is absent, null or not a text.
    pub fn required(&self, name: &str) -> Result<&str, UsageError> {
        self.text(name)?.ok_or_else(|| self.absent(name))
    }

    /// The error for a required field that is absent or null.
    pub fn absent(&self, name: &str) -> UsageError {
        let how = if self.fields.contains_key(name) { "null" } else { "missing" };
        self.wrong(format!("the field `{name}` is {how}"))
    }

    /// The items of a required field that is a non-empty list of texts or numbers.
    ///
    /// # Errors
    /// If it is anything else.
    pub fn list(&self, name: &str) -> Result<Vec<String>, UsageError> {
        let wrong = |what: &str| self.wrong(format!("the field `{name}` {what}"));
        let value = self.fields.get(name).filter(|value| !value.is_null()).ok_or_else(|| self.absent(name))?;
        let list = value.as_array().ok_or_else(|| wrong("is not a list"))?;
        let texts: Option<Vec<String>> = list.iter().map(text_or_number).collect();
        match texts {
            Some(texts) if !texts.is_empty() => Ok(texts),
            Some(_) => Err(wrong("is empty")),
            None => Err(wrong("holds something other than texts and numbers")),
        }
    }

    /// The acceptable answers, from the field `answer` or `answers`: one text, or a list of texts or numbers.
    ///
    /// # Errors
    /// If both fields are absent, or the answers are anything else, such as a list written as text.
    pub fn answers(&self) -> Result<Vec<String>, UsageError> {
        let is_said = |name: &str| self.fields.get(name).is_some_and(|value| !value.is_null());
        let name = match is_said("answer") || (self.fields.contains_key("answer") && !is_said("answers")) {
            true => "answer",
            false => "answers",
        };
        match self.text(name) {
            Ok(Some(one)) => answers::check_one(one).map(|()| vec![one.to_owned()]).map_err(|e| self.at(e)),
            _ => self.list(name),
        }
    }

    /// The error with the place of this row in front.
    pub fn at(&self, error: UsageError) -> UsageError {
        UsageError { hint: error.hint, ..self.wrong(error.what) }
    }

    /// An error about this row, with its place in front.
    pub fn wrong(&self, what: impl std::fmt::Display) -> UsageError {
        UsageError::new(format!("{}: {what}", self.place))
    }
}

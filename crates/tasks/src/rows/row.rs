//! One row: its fields, with errors that name the file and the line.

use serde_json::{Map, Value};

use super::values::text_or_number;
use crate::answers;
use spattn_base::error::UsageError;

/// A row and its place for messages, `FILE:LINE`.
pub struct Row {
    /// Its fields.
    pub fields: Map<String, Value>,
    /// File and line number.
    pub place: String,
    /// Line number from 1.
    pub number: usize,
}

impl Row {
    /// The text of a field; `None` if it is absent or null.
    ///
    /// # Errors
    /// If it is something else.
    pub fn text(&self, name: &str) -> Result<Option<&str>, UsageError> {
        match self.fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(format!("the field `{name}` is not text"))),
        }
    }

    /// The text of a field that has to be there.
    ///
    /// # Errors
    /// If it is not, or is no text.
    pub fn required(&self, name: &str) -> Result<&str, UsageError> {
        self.text(name)?.ok_or_else(|| self.absent(name))
    }

    /// The error for a field that has to be there, and is not or holds nothing.
    pub fn absent(&self, name: &str) -> UsageError {
        let how = if self.fields.contains_key(name) { "null" } else { "missing" };
        self.wrong(format!("the field `{name}` is {how}"))
    }

    /// A list of texts or numbers that is not empty.
    ///
    /// # Errors
    /// If it is missing or anything else.
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

    /// The acceptable answers, in `answer` or `answers`: one text, or a list of texts or numbers.
    ///
    /// # Errors
    /// If there is none, or it is something else, such as a list in a text.
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

    /// The same error, at this row.
    pub fn at(&self, error: UsageError) -> UsageError {
        UsageError { hint: error.hint, ..self.wrong(error.what) }
    }

    /// An error at this row.
    pub fn wrong(&self, what: impl std::fmt::Display) -> UsageError {
        UsageError::new(format!("{}: {what}", self.place))
    }
}

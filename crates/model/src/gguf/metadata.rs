//! The metadata of a GGUF file, read by key and type. Each error names the file and the key.

use std::collections::HashMap;

use candle_core::quantized::gguf_file::Value;
use spattn_base::error::UsageError;

/// The key-value pairs of a file.
pub(super) struct Metadata<'a> {
    file: &'a str,
    values: &'a HashMap<String, Value>,
}

impl<'a> Metadata<'a> {
    /// Wraps the pairs `values`; `file` names the file in errors.
    pub(super) fn new(file: &'a str, values: &'a HashMap<String, Value>) -> Self {
        Self { file, values }
    }

    /// The file.
    pub(super) fn file(&self) -> &'a str {
        self.file
    }

    /// The keys that begin with `prefix`, in order.
    pub(super) fn keys(&self, prefix: &str) -> Vec<&'a str> {
        let mut keys: Vec<&str> =
            self.values.keys().map(String::as_str).filter(|key| key.starts_with(prefix)).collect();
        keys.sort_unstable();
        keys
    }

    /// An error about `key`.
    pub(super) fn error(&self, key: &str, what: &str) -> UsageError {
        UsageError::new(format!("{}: `{key}`: {what}", self.file))
    }

    fn missing(&self, key: &str) -> UsageError {
        UsageError::new(format!("{}: no `{key}`", self.file))
            .hint("the file may have been written by an old converter: convert it again with llama.cpp's")
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, UsageError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(value) => match read(value) {
                Some(read) => Ok(Some(read)),
                None => Err(self.error(key, &format!("expected {expected}, and it is {}", kind(value)))),
            },
        }
    }

    /// A non-negative integer, if the key is present.
    pub(super) fn optional_size(&self, key: &str) -> Result<Option<usize>, UsageError> {
        self.typed(key, "a whole number", |value| whole(value)?.try_into().ok())
    }

    /// A whole number.
    pub(super) fn size(&self, key: &str) -> Result<usize, UsageError> {
        self.optional_size(key)?.ok_or_else(|| self.missing(key))
    }

    /// A number, if the key is present.
    pub(super) fn optional_number(&self, key: &str) -> Result<Option<f64>, UsageError> {
        self.typed(key, "a number", |value| match value {
            // Its shortest decimal text is parsed, as a config.json states it: 1e-6, not
            // 9.99999997e-7.
            Value::F32(number) => number.to_string().parse().ok(),
            Value::F64(number) => Some(*number),
            other => Some(whole(other)? as f64),
        })
    }

    /// True or false, if the key is present.
    pub(super) fn optional_flag(&self, key: &str) -> Result<Option<bool>, UsageError> {
        self.typed(key, "true or false", |value| value.to_bool().ok())
    }

    /// A text, if the key is present.
    pub(super) fn optional_text(&self, key: &str) -> Result<Option<&'a str>, UsageError> {
        self.typed(key, "a text", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// A text.
    pub(super) fn text(&self, key: &str) -> Result<&'a str, UsageError> {
        self.optional_text(key)?.ok_or_else(|| self.missing(key))
    }

    /// A list of texts, if the key is present.
    pub(super) fn optional_texts(&self, key: &str) -> Result<Option<Vec<&'a str>>, UsageError> {
        self.typed(key, "a list of texts", |value| {
            let items = value.to_vec().ok()?.iter();
            items.map(|item| if let Value::String(text) = item { Some(text.as_str()) } else { None }).collect()
        })
    }

    /// A list of texts.
    pub(super) fn texts(&self, key: &str) -> Result<Vec<&'a str>, UsageError> {
        self.optional_texts(key)?.ok_or_else(|| self.missing(key))
    }

    /// A list of integers, if the key is present.
    pub(super) fn optional_sizes(&self, key: &str) -> Result<Option<Vec<i64>>, UsageError> {
        self.typed(key, "a list of whole numbers", |value| value.to_vec().ok()?.iter().map(whole).collect())
    }

    /// A list of Booleans, if the key is present.
    pub(super) fn optional_flags(&self, key: &str) -> Result<Option<Vec<bool>>, UsageError> {
        self.typed(key, "a list of true and false", |value| {
            value.to_vec().ok()?.iter().map(|item| item.to_bool().ok()).collect()
        })
    }

    /// A list of single-precision numbers, if the key is present.
    pub(super) fn optional_numbers(&self, key: &str) -> Result<Option<Vec<f32>>, UsageError> {
        self.typed(key, "a list of numbers", |value| {
            value.to_vec().ok()?.iter().map(|item| item.to_f32().ok()).collect()
        })
    }
}

/// A text from a file as messages show it: in one line of limited length.
pub(super) fn shown(text: &str) -> String {
    const LONGEST: usize = 80;
    let more = if text.chars().nth(LONGEST).is_some() { "…" } else { "" };
    let escaped =
        text.chars().take(LONGEST).map(|c| if c.is_control() { c.escape_default().to_string() } else { c.into() });
    format!("{}{more}", escaped.collect::<String>())
}

/// The name of a value's type in messages.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Bool(_) => "true or false",
        Value::F32(_) | Value::F64(_) => "a number with a fraction",
        _ => "a whole number",
    }
}

/// An integer of any type, if it fits i64.
fn whole(value: &Value) -> Option<i64> {
    Some(match value {
        Value::U8(n) => i64::from(*n),
        Value::I8(n) => i64::from(*n),
        Value::U16(n) => i64::from(*n),
        Value::I16(n) => i64::from(*n),
        Value::U32(n) => i64::from(*n),
        Value::I32(n) => i64::from(*n),
        Value::U64(n) => i64::try_from(*n).ok()?,
        Value::I64(n) => *n,
        _ => return None,
    })
}

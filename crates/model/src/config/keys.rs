//! Typed look-ups in a JSON object such as `config.json`, with errors that name the file and the key.

use serde_json::{Map, Value};

use spattn_base::error::UsageError;

/// The largest value of each size: several times that of any existing model, so that a mistake is reported as one. Other numbers
/// may have 32 bits.
const MOST: [(&str, u64); 11] = [
    ("vocab_size", 1 << 24),
    ("hidden_size", 1 << 18),
    ("intermediate_size", 1 << 20),
    ("num_hidden_layers", 1 << 12),
    ("num_attention_heads", 1 << 12),
    ("num_key_value_heads", 1 << 12),
    ("head_dim", 1 << 12),
    ("num_experts", 1 << 12),
    ("num_local_experts", 1 << 12),
    ("num_experts_per_tok", 1 << 12),
    ("moe_intermediate_size", 1 << 20),
];

/// Typed look-ups in one JSON object, with errors that name the file and the key.
pub(crate) struct Keys<'a> {
    /// The file, for errors.
    pub file: &'a str,
    /// The prefix of a key in errors, for objects within the file.
    pub prefix: &'a str,
    /// The object.
    pub map: &'a Map<String, Value>,
}

impl<'a> Keys<'a> {
    /// The value of a key; null counts as absent.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    /// An error about a key.
    pub fn error(&self, key: &str, what: &str) -> UsageError {
        UsageError::new(format!("{}: `{}{key}`: {what}", self.file, self.prefix))
    }

    /// The error for a value that is not of the `expected` type.
    pub fn wrong(&self, key: &str, expected: &str, got: &Value) -> UsageError {
        self.error(key, &format!("expected {expected}, got {got}"))
    }

    /// The error for a missing key.
    pub fn missing(&self, key: &str) -> UsageError {
        UsageError::new(format!("{}: the key `{}{key}` is missing", self.file, self.prefix))
    }

    /// A non-negative integer, if the key is present.
    pub fn optional_count(&self, key: &str) -> Result<Option<usize>, UsageError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let most = MOST.iter().find(|(bounded, _)| *bounded == key).map_or(u64::from(u32::MAX), |(_, most)| *most);
        match value.as_u64() {
            Some(n) if n <= most => Ok(Some(n as usize)),
            Some(n) => Err(self.error(key, &format!("must be at most {most}, got {n}"))),
            None => Err(self.wrong(key, "a whole number", value)),
        }
    }

    /// A positive integer, if the key is present.
    pub fn optional_size(&self, key: &str) -> Result<Option<usize>, UsageError> {
        match self.optional_count(key)? {
            Some(0) => Err(self.error(key, "must not be 0")),
            other => Ok(other),
        }
    }

    /// A positive integer; the key must be present.
    pub fn size(&self, key: &str) -> Result<usize, UsageError> {
        self.optional_size(key)?.ok_or_else(|| self.missing(key))
    }

    /// A finite number, if the key is present.
    pub fn optional_number(&self, key: &str) -> Result<Option<f64>, UsageError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64().filter(|x| x.is_finite()) {
            Some(x) => Ok(Some(x)),
            None => Err(self.wrong(key, "a number", value)),
        }
    }

    /// A non-negative number, if the key is present.
    pub fn optional_not_negative(&self, key: &str) -> Result<Option<f64>, UsageError> {
        match self.optional_number(key)? {
            Some(x) if x < 0.0 => Err(self.error(key, &format!("must not be negative, got {x}"))),
            other => Ok(other),
        }
    }

    /// A positive number; the key must be present.
    pub fn positive(&self, key: &str) -> Result<f64, UsageError> {
        let x = self.optional_number(key)?.ok_or_else(|| self.missing(key))?;
        if x <= 0.0 {
            return Err(self.error(key, &format!("must be above 0, got {x}")));
        }
        Ok(x)
    }

    /// The factor by which a context becomes longer: a number of at least 1; the key must be present.
    pub fn factor(&self, key: &str) -> Result<f64, UsageError> {
        const MOST: f64 = 1e6;
        let x = self.optional_number(key)?.ok_or_else(|| self.missing(key))?;
        if !(1.0..=MOST).contains(&x) {
            return Err(self.error(key, &format!("must be from 1 to {MOST}, got {x}")));
        }
        Ok(x)
    }

    /// A string, if the key is present.
    pub fn optional_text(&self, key: &str) -> Result<Option<&'a str>, UsageError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(key, "a string", value))
    }

    /// True or false; `default` if the key is absent.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool, UsageError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value.as_bool().ok_or_else(|| self.wrong(key, "true or false", value))
    }

    /// An object, if the key is present.
    pub fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>, UsageError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_object().map(Some).ok_or_else(|| self.wrong(key, "an object", value))
    }

    /// The ids that end a generation, which must be below `vocab_size`.
    pub fn eos_ids(&self, vocab_size: usize) -> Result<Vec<u32>, UsageError> {
        const KEY: &str = "eos_token_id";
        let ids = self.ids(KEY)?;
        match ids.iter().find(|id| **id as usize >= vocab_size) {
            None => Ok(ids),
            Some(id) => Err(self
                .error(KEY, &format!("{id} is beyond the vocabulary of {vocab_size}"))
                .hint("no answer could end by it: give the id of a token that the model has, or leave it out")),
        }
    }

    /// Notes on settings that change a model in other programs, but are read neither here nor by transformers.
    pub fn unread(&self) -> Vec<String> {
        const UNREAD: [(&str, &str); 2] = [
            ("dual_chunk_attention_config", "results published beyond 256K tokens use dual chunk attention"),
            ("rope_condense_ratio", "FastChat divides positions by it; `rope_scaling` of type `linear` does the same"),
        ];
        let is_set = |key: &str| self.get(key).is_some_and(|value| value.as_f64() != Some(1.0));
        let note = |(key, why): &(&str, &str)| format!("{}: `{key}` is not read, as in transformers: {why}", self.file);
        UNREAD.iter().filter(|(key, _)| is_set(key)).map(note).collect()
    }

    /// One token id or a list of them; empty if absent or null.
    pub fn ids(&self, key: &str) -> Result<Vec<u32>, UsageError> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        token_ids(value).ok_or_else(|| self.wrong(key, "a token id or a list of them", value))
    }
}

/// The `eos_token_id` of another file of the model, such as `generation_config.json`.
///
/// # Errors
/// As for `config.json`: a value that is neither an id nor a list of ids, or an id outside the vocabulary.
pub(crate) fn eos_ids(map: &Map<String, Value>, file: &str, vocab_size: usize) -> Result<Vec<u32>, UsageError> {
    Keys { file, prefix: "", map }.eos_ids(vocab_size)
}

/// Token ids given as one number or a list of numbers; `None` if `value` is neither.
fn token_ids(value: &Value) -> Option<Vec<u32>> {
    let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    match value {
        Value::Array(list) => list.iter().map(id).collect(),
        one => id(one).map(|n| vec![n]),
    }
}

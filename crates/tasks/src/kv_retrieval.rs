//! Rows of Lost in the Middle's key-value retrieval (Liu et al. 2023, arXiv:2307.03172, section 3), and their prompt.
//!
//! A row has a list of pairs of UUIDs, one of their keys, and its value: `ordered_kv_records`, `key`, `value`. Here the pairs keep
//! the order of the file. The grid family (`grid/records.rs`) moves the pair that is asked for to each depth in turn, as in the
//! publication, and also generates pairs. The prompt is data in `tasks/kv_retrieval.toml`.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::metrics::Metric;
use super::ruler::template::substitute;
use spattn_base::error::{UsageError, in_plain_words};

/// The field by which rows are recognised.
pub const PAIRS: &str = "ordered_kv_records";

/// The prompt, and how its answers are scored.
pub static DEFINITION: LazyLock<KvRetrievalDefinition> = LazyLock::new(|| {
    // The file is embedded, so a mistake in it is ours, and the tests find it.
    toml::from_str(include_str!("../tasks/kv_retrieval.toml")).expect("tasks/kv_retrieval.toml is well-formed")
});

/// What the definition file holds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvRetrievalDefinition {
    /// How predictions are scored.
    pub metric: Metric,
    /// Tokens to generate at most.
    pub tokens_to_generate: usize,
    context_template: String,
    question_template: String,
}

/// A prompt that asks for the value of a key.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyValueQuestion {
    /// Instruction and pairs.
    pub context: String,
    /// The text that names the key, up to where the value belongs.
    pub question: String,
    /// The value of the key.
    pub answer: String,
}

/// A row: pairs of key and value, with a question about one of them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct KeyValueRow {
    ordered_kv_records: Vec<(String, String)>,
    key: String,
    value: String,
}

impl KeyValueRow {
    /// Parses the fields of a row; `place` (`FILE:LINE`) names it in errors.
    ///
    /// # Errors
    /// If a field is missing or of the wrong type, or the pairs do not assign this value alone to the key.
    pub fn parse(fields: &Map<String, Value>, place: &str) -> Result<Self, UsageError> {
        let wrong = |what: String| {
            UsageError::new(format!("{place}: {what}"))
                .hint(format!("a row of key-value retrieval has {PAIRS} (a list of pairs of texts), key and value"))
        };
        let row: Self =
            serde_json::from_value(Value::Object(fields.clone())).map_err(|e| wrong(in_plain_words(&e.to_string())))?;
        let is_asked = |(key, value): &(String, String)| (key, value) == (&row.key, &row.value);
        if row.value.trim().is_empty() || !row.pairs().iter().any(is_asked) {
            return Err(wrong(format!("no pair has the key `{}` and the value `{}`", row.key, row.value)));
        }
        if row.pairs().iter().any(|(key, value)| *key == row.key && *value != row.value) {
            return Err(wrong(format!("the pairs have several values for the key `{}`", row.key)));
        }
        Ok(row)
    }

    /// Keys and values, in the order of the row.
    pub fn pairs(&self) -> &[(String, String)] {
        &self.ordered_kv_records
    }

    /// The pair with the key that is asked for.
    pub fn asked(&self) -> &(String, String) {
        let is_asked = |(key, value): &&(String, String)| (key, value) == (&self.key, &self.value);
        self.pairs().iter().find(is_asked).expect("`parse` checked that the pair is there")
    }
}

/// Writes the prompt that asks for `key`, one of the keys of `pairs`, and its `value`.
pub fn question(pairs: &[(String, String)], key: &str, value: &str) -> KeyValueQuestion {
    let records: Vec<String> = pairs.iter().map(|(k, v)| format!("\"{k}\": \"{v}\"")).collect();
    let records = format!("{{{}}}", records.join(",\n "));
    KeyValueQuestion {
        context: substitute(&DEFINITION.context_template, &[("records", &records)]),
        question: substitute(&DEFINITION.question_template, &[("key", key)]),
        answer: value.to_owned(),
    }
}

/// The prompt of a row; `place` (`FILE:LINE`) names the row in errors.
///
/// # Errors
/// As [`KeyValueRow::parse`].
pub fn question_of_row(fields: &Map<String, Value>, place: &str) -> Result<KeyValueQuestion, UsageError> {
    let row = KeyValueRow::parse(fields, place)?;
    Ok(question(row.pairs(), &row.key, &row.value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: &str) -> Result<KeyValueQuestion, UsageError> {
        question_of_row(serde_json::from_str::<Value>(text).unwrap().as_object().unwrap(), "rows.jsonl:1")
    }

    #[test]
    fn the_prompt_is_the_published_one() {
        let got = row(r#"{"ordered_kv_records": [["a", "1"], ["b", "2"], ["c", "3"]], "key": "b", "value": "2"}"#);
        let got = got.unwrap();
        assert_eq!(
            got.context + &got.question,
            "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n\
             {\"a\": \"1\",\n \"b\": \"2\",\n \"c\": \"3\"}\n\nKey: \"b\"\nCorresponding value:"
        );
        assert_eq!(got.answer, "2");
    }

    #[test]
    fn a_row_without_its_answer_is_an_error() {
        let error = row(r#"{"ordered_kv_records": [["a", "1"]], "key": "a", "value": "2"}"#).unwrap_err();
        assert_eq!(error.what, "rows.jsonl:1: no pair has the key `a` and the value `2`");
        let error = row(r#"{"ordered_kv_records": [["a", "1"], ["a", "2"]], "key": "a", "value": "1"}"#).unwrap_err();
        assert_eq!(error.what, "rows.jsonl:1: the pairs have several values for the key `a`");
        let same =
            r#"{"ordered_kv_records": [["a", "1"], ["a", "1"], ["b", "2"], ["b", "3"]], "key": "a", "value": "1"}"#;
        assert!(row(same).is_ok(), "others may have two");
        let error = row(r#"{"ordered_kv_records": [["a", "1"]], "key": "a"}"#).unwrap_err();
        assert!(error.what.contains("missing field `value`"), "{error}");
    }
}

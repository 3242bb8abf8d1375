//! Rows of documents with their summaries, such as BookSum's (`tasks/summary.toml`).
//!
//! The definition lists pairs of field names for document and summary; a row has the fields of one pair.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::answers::check_one;
use super::metrics::Metric;
use super::ruler::template::substitute;
use spattn_base::error::UsageError;

/// The prompt, and how its answers are scored.
pub static DEFINITION: LazyLock<SummaryDefinition> = LazyLock::new(|| {
    // The file is embedded, so a mistake in it is ours, and the tests find it.
    toml::from_str(include_str!("../tasks/summary.toml")).expect("tasks/summary.toml is well-formed")
});

/// What the definition file holds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SummaryDefinition {
    /// How predictions are scored.
    pub metric: Metric,
    /// Metrics that are recorded in addition.
    pub also: Vec<Metric>,
    /// Tokens to generate at most.
    pub tokens_to_generate: usize,
    context_template: String,
    question_template: String,
    fields: Vec<FieldNames>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldNames {
    document: String,
    summary: String,
}

/// A row as a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct SummaryQuestion {
    /// Instruction and document.
    pub context: String,
    /// The text after the document, which asks for the summary.
    pub question: String,
    /// The summaries to compare with.
    pub references: Vec<String>,
}

fn names(fields: &Map<String, Value>) -> Option<&'static FieldNames> {
    DEFINITION.fields.iter().find(|names| fields.contains_key(&names.document) && fields.contains_key(&names.summary))
}

/// Whether a row has a document and a summary.
pub fn is_row(fields: &Map<String, Value>) -> bool {
    names(fields).is_some()
}

/// The prompt of a row; `place` (`FILE:LINE`) names the row in errors.
///
/// # Errors
/// If the row has no document with a summary, the document is blank or not a text, or the summary is neither a text nor a list of
/// texts.
pub fn question_of_row(fields: &Map<String, Value>, place: &str) -> Result<SummaryQuestion, UsageError> {
    let wrong = |what: String| {
        UsageError::new(format!("{place}: {what}")).hint("a row has a document and its summary, both texts")
    };
    let names = names(fields).ok_or_else(|| wrong("the row has no document with a summary".to_owned()))?;
    let text = |value: &Value| value.as_str().filter(|text| !text.trim().is_empty()).map(str::to_owned);
    let no_text = |name: &str| wrong(format!("the field `{name}` is empty or not text"));
    let document = text(&fields[&names.document]).ok_or_else(|| no_text(&names.document))?;
    let references: Option<Vec<String>> = match &fields[&names.summary] {
        Value::Array(several) => several.iter().map(text).collect(),
        one => text(one).map(|one| vec![one]),
    };
    let references = references.filter(|r| !r.is_empty()).ok_or_else(|| no_text(&names.summary))?;
    if let [one] = references.as_slice() {
        check_one(one).map_err(|e| UsageError { hint: e.hint, ..wrong(e.what) })?;
    }
    Ok(SummaryQuestion {
        context: substitute(&DEFINITION.context_template, &[("document", &document)]),
        question: DEFINITION.question_template.clone(),
        references,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Map<String, Value> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn documents_and_summaries_are_found_by_their_names() {
        let of_book =
            question_of_row(&fields(r#"{"chapter": "A {x}.", "summary_text": "B.", "id": 1}"#), "f:1").unwrap();
        assert_eq!(of_book.context, "Read the following text and write a summary of it.\n\nA {x}.\n\n");
        assert_eq!((of_book.question.as_str(), of_book.references), ("Summary:", vec!["B.".to_owned()]));
        let several = question_of_row(&fields(r#"{"document": "A.", "summary": ["B.", "C."]}"#), "f:1").unwrap();
        assert_eq!(several.references, ["B.", "C."]);
        assert!(!is_row(&fields(r#"{"document": "A."}"#)));
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, what) in [
            (r#"{"document": 3, "summary": "x"}"#, "`document` is empty or not text"),
            (r#"{"document": "x", "summary": []}"#, "`summary` is empty or not text"),
            (r#"{"document": "x"}"#, "no document with a summary"),
            (r#"{"document": "x", "summary": "['a', 'b']"}"#, "a list written as text"),
        ] {
            let error = question_of_row(&fields(text), "f.jsonl:3").unwrap_err();
            assert!(error.what.starts_with("f.jsonl:3: ") && error.what.contains(what), "{error}");
        }
    }
}

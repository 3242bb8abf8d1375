//! LongEval's line retrieval: rows of prepared files, and the prompt of generated ones (`tasks/longeval_lines.toml`).

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::metrics::Metric;
use super::ruler::template::substitute;
use spattn_base::error::{UsageError, in_plain_words};

/// The field by which rows are recognised.
pub const ANSWER: &str = "expected_number";

/// The prompt, and how its answers are scored.
pub static DEFINITION: LazyLock<LongEvalDefinition> = LazyLock::new(|| {
    // The file is embedded, so a mistake in it is ours, and the tests find it.
    toml::from_str(include_str!("../tasks/longeval_lines.toml")).expect("tasks/longeval_lines.toml is well-formed")
});

/// What the definition file holds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongEvalDefinition {
    /// How predictions are scored.
    pub metric: Metric,
    /// Tokens to generate at most.
    pub tokens_to_generate: usize,
    low: usize,
    high: usize,
    line: String,
    context_template: String,
    question_template: String,
    question_mark: String,
}

impl LongEvalDefinition {
    /// The smallest and the largest number in a generated line.
    pub fn range(&self) -> (usize, usize) {
        (self.low, self.high)
    }
}

/// Context and question for lines of `(key, number)`; the question asks for the number of the key `asked`.
pub fn prompt(lines: &[(String, String)], asked: &str) -> (String, String) {
    let line = |(key, value): &(String, String)| substitute(&DEFINITION.line, &[("key", key), ("value", value)]);
    let records: Vec<String> = lines.iter().map(line).collect();
    let context = substitute(&DEFINITION.context_template, &[("records", &records.join("\n"))]);
    (context, substitute(&DEFINITION.question_template, &[("key", asked)]))
}

/// A row as a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct LineQuestion {
    /// Instruction and lines.
    pub context: String,
    /// The question, which names the line.
    pub question: String,
    /// The number.
    pub answer: String,
}

#[derive(Deserialize)]
struct Fields {
    prompt: String,
    expected_number: u64,
    correct_line: String,
}

/// Splits the prompt of a row into context and question; `place` (`FILE:LINE`) names the row in errors.
///
/// # Errors
/// If a field is missing or of the wrong type, or the prompt has no question or no line with the number.
pub fn question_of_row(fields: &Map<String, Value>, place: &str) -> Result<LineQuestion, UsageError> {
    let wrong = |what: String| {
        UsageError::new(format!("{place}: {what}"))
            .hint("a row of LongEval's lines has prompt, correct_line (texts) and expected_number")
    };
    let Fields { prompt, expected_number, correct_line } =
        serde_json::from_value(Value::Object(fields.clone())).map_err(|e| wrong(in_plain_words(&e.to_string())))?;
    let answer = expected_number.to_string();
    if !prompt.contains(correct_line.trim()) || !correct_line.contains(&answer) {
        return Err(wrong(format!("the prompt has no line with the number {answer}")));
    }
    let mark = &DEFINITION.question_mark;
    let at = prompt
        .rfind(mark.as_str())
        .ok_or_else(|| wrong(format!("the prompt has no question after its lines (`{mark}`)")))?;
    Ok(LineQuestion { question: prompt[at..].to_owned(), context: prompt[..at].to_owned(), answer })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: &str) -> Result<LineQuestion, UsageError> {
        question_of_row(serde_json::from_str::<Value>(text).unwrap().as_object().unwrap(), "lines.jsonl:7")
    }

    #[test]
    fn a_generated_prompt_reads_back_as_a_row() {
        let lines = [("a-b", "12"), ("c-d", "34")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let (context, question) = prompt(&lines, "c-d");
        assert!(
            context.ends_with("start:\n\nline a-b: REGISTER_CONTENT is <12>\nline c-d: REGISTER_CONTENT is <34>\n\n")
        );
        let row_text = serde_json::json!({
            "prompt": format!("{context}{question}"),
            "correct_line": "line c-d: REGISTER_CONTENT is <34>\n",
            "expected_number": 34,
        });
        assert_eq!(row(&row_text.to_string()).unwrap(), LineQuestion { context, question, answer: "34".to_owned() });
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, what) in [
            (r#"{"expected_number": 3}"#, "missing field `prompt`"),
            (r#"{"prompt": "x", "correct_line": "<4>", "expected_number": 4}"#, "no line with the number 4"),
            (r#"{"prompt": "<4>", "correct_line": "<4>", "expected_number": 4}"#, "has no question after its lines"),
        ] {
            let error = row(text).unwrap_err();
            assert!(error.what.starts_with("lines.jsonl:7: ") && error.what.contains(what), "{error}");
        }
    }
}

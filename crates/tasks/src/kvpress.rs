//! Rows as kvpress has them (github.com/NVIDIA/kvpress, its data sets `simonjegou/ruler` and others): `context`, `question`,
//! `answer_prefix`, `answer`, `task`, `max_new_tokens`.
//!
//! kvpress splits a prompt of RULER into context, question and answer prefix. Joined without separators, they are the prompt again.
//! (For a model without a chat template, kvpress puts a line break before the answer prefix. RULER does not, and neither does
//! this.) If `task` is a task of RULER, it also tells how the row is scored.

use serde_json::Value;

use super::metrics::Metric;
use super::metrics::datasets::Dataset;
use super::rows::Row;
use super::ruler;
use spattn_attention::kv::MOST_TOKENS;
use spattn_base::error::UsageError;

const TASK: &str = "task";
const TOKENS: &str = "max_new_tokens";
const PREFIX: &str = "answer_prefix";
/// The field that kvpress needs in every row.
const PREFIX_HINT: &str = "rows of kvpress need it, if empty as \"answer_prefix\": \"\"; for rows of another kind, remove `task` and `max_new_tokens`";
/// The fields by which a row with context and question is recognised as one of kvpress.
const OWN: [&str; 2] = [TASK, TOKENS];

/// A row's prompt in parts, with its answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// The text up to the question.
    pub context: String,
    /// The question.
    pub question: String,
    /// Start of the answer.
    pub answer_prefix: String,
    /// Acceptable answers, or all parts of the answer.
    pub references: Vec<String>,
}

/// Whether a row is one of kvpress, by its fields.
pub fn is_row(row: &Row) -> bool {
    let has = |name: &str| row.fields.contains_key(name);
    has("context") && has("question") && OWN.iter().any(|name| has(name))
}

/// Reads a row.
///
/// # Errors
/// If a field is missing or of another type.
pub fn question(row: &Row) -> Result<Question, UsageError> {
    Ok(Question {
        context: row.required("context")?.to_owned(),
        question: row.text("question")?.unwrap_or_default().to_owned(),
        answer_prefix: row.required(PREFIX).map_err(|e| e.hint(PREFIX_HINT))?.to_owned(),
        references: row.answers()?,
    })
}

/// The full name of the task of RULER that a row belongs to; `None` if it names another or none.
///
/// # Errors
/// If the field is no text.
fn task(row: &Row) -> Result<Option<String>, UsageError> {
    let name = row.text(TASK)?.map(|name| format!("ruler/{name}"));
    Ok(name.filter(|name| Dataset::parse(name).is_ok()))
}

/// The metric of the task that a row names.
///
/// # Errors
/// If it names no task of RULER's.
pub fn metric(row: &Row) -> Result<Metric, UsageError> {
    match task(row)?.map(|name| Dataset::parse(&name)) {
        Some(Ok(dataset)) => Ok(dataset.metric),
        _ => {
            let named = row
                .text(TASK)?
                .map_or("is missing".to_owned(), |name| format!("is `{name}`, which is not a task of RULER"));
            Err(row.wrong(format!("the field `{TASK}` {named}: the metric of the row is unknown")))
        }
    }
}

/// Tokens to generate: what the row says, or else its task.
///
/// # Errors
/// If neither does, or the row does not say a number of tokens.
pub fn max_new_tokens(row: &Row) -> Result<usize, UsageError> {
    match row.fields.get(TOKENS) {
        None | Some(Value::Null) => task(row)?
            .and_then(|name| ruler::max_new_tokens(&name))
            .ok_or_else(|| row.wrong(format!("the field `{TOKENS}` is missing"))),
        Some(value) => tokens(value)
            .ok_or_else(|| row.wrong(format!("the field `{TOKENS}` is not a whole number from 1 to {MOST_TOKENS}"))),
    }
}

/// A number of tokens; tables with gaps write whole numbers as `128.0`.
fn tokens(value: &Value) -> Option<usize> {
    let whole = |number: f64| (number.fract() == 0.0 && (1.0..=MOST_TOKENS as f64).contains(&number)).then_some(number);
    value.as_f64().and_then(whole).map(|number| number as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(fields: Value) -> Row {
        let Value::Object(fields) = fields else { panic!("{fields}") };
        Row { fields, place: "f.jsonl:3".to_owned(), number: 3 }
    }

    #[test]
    fn tasks_are_scored_and_end_as_rulers_do() {
        // kvpress' evaluation/benchmarks/ruler: metric and number of tokens of each kind of task.
        for (kind, metric_name, count) in [
            ("niah_single_1", "string_match_all", 128),
            ("niah_multivalue", "string_match_all", 128),
            ("vt", "string_match_all", 30),
            ("cwe", "string_match_all", 120),
            ("fwe", "string_match_all", 50),
            ("qa_1", "string_match_part", 32),
            ("qa_2", "string_match_part", 32),
        ] {
            let of = row(json!({"context": "c", "question": "q", "answer": ["a"], "task": kind}));
            assert!(is_row(&of));
            assert_eq!((metric(&of).unwrap().name(), max_new_tokens(&of).unwrap()), (metric_name, count), "{kind}");
        }
    }

    /// kvpress reads the answer prefix of every row, and every element of its list of answers.
    #[test]
    fn a_row_has_an_answer_prefix_and_a_list_that_is_one() {
        let base = json!({"context": "c", "question": "q", "answer_prefix": "", "answer": ["a"], "task": "vt"});
        let with = |name: &str, value: Value| {
            let mut fields = base.clone();
            fields[name] = value;
            question(&row(fields))
        };
        let mut without = base.clone();
        without.as_object_mut().unwrap().remove(PREFIX);
        let told =
            |read: Result<Question, UsageError>| read.map_err(|e| (e.what, e.hint.unwrap_or_default())).unwrap_err();
        let (what, hint) = told(question(&row(without)));
        assert_eq!(what, "f.jsonl:3: the field `answer_prefix` is missing");
        assert!(hint.contains("\"answer_prefix\": \"\""), "{hint}");
        assert_eq!(told(with(PREFIX, Value::Null)).0, "f.jsonl:3: the field `answer_prefix` is null");
        for list in ["['a', 'b']", "['a' 'b']", "[\"a\"]"] {
            assert!(told(with("answer", list.into())).0.contains("an answer is a list written as text"));
        }
        assert_eq!(told(with("answer", Value::Null)).0, "f.jsonl:3: the field `answer` is null");
        assert_eq!(with("answer", "a".into()).unwrap().references, ["a"]);
    }

    #[test]
    fn what_a_row_does_not_say_is_named() {
        let base = json!({"context": "c", "question": "q", "answer": "a"});
        let with = |name: &str, value: Value| {
            let mut fields = base.clone();
            fields[name] = value;
            row(fields)
        };
        assert!(!is_row(&row(base.clone())) && is_row(&with(TASK, json!(null))));
        let unknown = metric(&with(TASK, json!("passkey"))).unwrap_err().what;
        assert_eq!(
            unknown,
            "f.jsonl:3: the field `task` is `passkey`, which is not a task of RULER: the metric of the row is unknown"
        );
        assert!(metric(&with(TOKENS, json!(3))).unwrap_err().what.contains("the field `task` is missing"));
        assert!(metric(&with(TASK, json!(3))).unwrap_err().what.contains("the field `task` is not text"));
        assert!(
            max_new_tokens(&with(TASK, json!("passkey"))).unwrap_err().what.contains("`max_new_tokens` is missing")
        );
        for (value, tokens) in [(json!(3), Some(3)), (json!(128.0), Some(128)), (json!(MOST_TOKENS), Some(MOST_TOKENS))]
        {
            assert_eq!(max_new_tokens(&with(TOKENS, value)).ok(), tokens);
        }
        for value in [json!(0), json!(-1), json!(2.5), json!("64"), json!(1e300), json!(MOST_TOKENS + 1), json!([3])] {
            assert!(max_new_tokens(&with(TOKENS, value)).unwrap_err().what.contains("is not a whole number from 1"));
        }
    }
}

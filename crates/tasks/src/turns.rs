//! Rows with several questions on one context: `context`, and `turns` (or SCBench's `multi_turns`), a list of objects with a
//! `question` (or `input`) and its `answers` (or `answer`: one text or several).
//!
//! Every question is an example of its own. Its prompt is the context, an empty line and the question, without earlier questions,
//! so all questions of a row share one prefill of the context.

use serde_json::{Map, Value};

use super::answers::{check_one, check_same};
use super::rows::text_or_number;
use spattn_base::error::UsageError;
use spattn_base::text::is_blank;

/// Possible field names: the list of questions here; a question and its answers below.
const LISTS: [&str; 2] = ["turns", "multi_turns"];
const QUESTIONS: [&str; 2] = ["question", "input"];
const ANSWERS: [&str; 2] = ["answers", "answer"];

/// A question as a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// The context that all questions of the row share.
    pub context: String,
    /// The question.
    pub question: String,
    /// Acceptable answers.
    pub references: Vec<String>,
}

fn first<'a>(fields: &'a Map<String, Value>, names: &[&str]) -> Option<&'a Value> {
    names.iter().find_map(|name| fields.get(*name).filter(|value| !value.is_null()))
}

/// The number of questions in a row's list; `None` if the row has no such list.
pub fn count(fields: &Map<String, Value>) -> Option<usize> {
    Some(first(fields, &LISTS)?.as_array().map_or(1, |turns| turns.len().max(1)))
}

/// The question numbered `number` (from 0) of a row; `place` (`FILE:LINE`) names the row in errors.
///
/// # Errors
/// If context, question or answers are missing or not texts.
pub fn turn(fields: &Map<String, Value>, number: usize, place: &str) -> Result<Turn, UsageError> {
    let wrong = |what: &str| {
        UsageError::new(format!("{place}: {what}"))
            .hint("a row with several questions has context, and turns: a list of objects with question and answers")
    };
    let at = |e: UsageError| UsageError { hint: e.hint, ..wrong(&e.what) };
    check_same(fields, &LISTS).map_err(at)?;
    if let Some(name) = QUESTIONS.iter().chain(&ANSWERS).find(|name| fields.get(**name).is_some_and(|v| !v.is_null())) {
        return Err(wrong(&format!(
            "the field `{name}` does not belong in a row with `turns`, where each question has its own"
        )));
    }
    let context = fields.get("context").and_then(Value::as_str).filter(|context| !is_blank(context));
    let context = context.ok_or_else(|| wrong("there is no context"))?;
    let turns = first(fields, &LISTS).and_then(Value::as_array).filter(|t| !t.is_empty());
    let turn = turns.ok_or_else(|| wrong("there is no list of questions"))?.get(number).and_then(Value::as_object);
    let which = |what: &str| wrong(&format!("question {}: {what}", number + 1));
    let turn = turn.ok_or_else(|| which("no JSON object"))?;
    let at = |e: UsageError| UsageError { hint: e.hint, ..which(&e.what) };
    check_same(turn, &QUESTIONS).and_then(|()| check_same(turn, &ANSWERS)).map_err(at)?;
    let question = first(turn, &QUESTIONS).and_then(Value::as_str).filter(|question| !is_blank(question));
    let question = question.ok_or_else(|| which("there is no question"))?;
    let text = |value: &Value| text_or_number(value).filter(|text| !text.is_empty());
    let references: Option<Vec<String>> = match first(turn, &ANSWERS) {
        Some(Value::Array(several)) => several.iter().map(text).collect(),
        one => one.and_then(text).map(|one| vec![one]),
    };
    let references = references.filter(|r| !r.is_empty()).ok_or_else(|| which("there is no answer"))?;
    if let Some(Value::String(one)) = first(turn, &ANSWERS) {
        check_one(one).map_err(at)?;
    }
    Ok(Turn { context: format!("{context}\n\n"), question: question.to_owned(), references })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Map<String, Value> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn every_question_is_an_example_on_the_same_context() {
        let row = fields(
            r#"{"context": "C.", "turns": [{"question": "Q1?", "answers": ["a", 2]}, {"input": "Q2?", "answer": "b"}]}"#,
        );
        assert_eq!(count(&row), Some(2));
        let turns = [0, 1].map(|n| turn(&row, n, "f:1").unwrap());
        assert_eq!((turns[0].context.as_str(), turns[0].question.as_str()), ("C.\n\n", "Q1?"));
        assert_eq!(
            (turns[0].references.as_slice(), turns[1].references.as_slice()),
            (&["a".to_owned(), "2".to_owned()][..], &["b".to_owned()][..])
        );
        assert_eq!(count(&fields(r#"{"context": "C."}"#)), None);
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, what) in [
            (r#"{"turns": []}"#, "there is no context"),
            (r#"{"context": "C", "turns": []}"#, "no list of questions"),
            (r#"{"context": "C", "turns": [3]}"#, "question 1: no JSON object"),
            (r#"{"context": "C", "turns": [{}]}"#, "question 1: there is no question"),
            (r#"{"context": "C", "turns": [{"question": "q", "answers": []}]}"#, "question 1: there is no answer"),
            (
                r#"{"context": "C", "turns": [{"question": "q", "answers": ["a"]}], "question": "r"}"#,
                "the field `question` does not belong in a row with `turns`",
            ),
            (r#"{"context": " ", "turns": [{"question": "q", "answers": ["a"]}]}"#, "there is no context"),
            (r#"{"context": "C", "turns": [{"question": " ", "answers": ["a"]}]}"#, "question 1: there is no question"),
            (
                r#"{"context": "C", "turns": [{"question": "q", "input": "r", "answer": "a"}]}"#,
                "question 1: the fields `question` and `input` mean the same, but differ",
            ),
            (
                r#"{"context": "C", "turns": [{"question": "q", "answers": ["a"], "answer": "b"}]}"#,
                "question 1: the fields `answers` and `answer` mean the same, but differ",
            ),
            (
                r#"{"context": "C", "turns": [{"question": "q", "answer": "a"}], "multi_turns": []}"#,
                "the fields `turns` and `multi_turns` mean the same, but differ",
            ),
            (
                r#"{"context": "C", "turns": [{"question": "q", "answer": "['a', 'b']"}]}"#,
                "question 1: an answer is a list written as text",
            ),
            (
                r#"{"context": "C", "turns": [{"question": "q", "answer": 12345678901234567890123}]}"#,
                "question 1: there is no answer",
            ),
        ] {
            let error = turn(&fields(text), 0, "f.jsonl:3").unwrap_err();
            assert!(error.what.starts_with("f.jsonl:3: ") && error.what.contains(what), "{error}");
        }
    }
}

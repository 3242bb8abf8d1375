//! Checks whether a metric can tell right predictions from wrong ones by the reference answers.
//!
//! If it cannot, a row of the user's own file is refused. A row of a published set is still scored, as the set's own program does,
//! and a note mentions it. A published row is refused only for a blank answer, which no published set has.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::metrics::{Flaw, Metric, python_literal};
use super::rows::text_or_number;
use spattn_base::error::UsageError;
use spattn_base::text::is_blank;

/// The most characters of an answer that a message shows.
const SHOWN: usize = 60;

/// Checks the answers of a row of the user's own file: some prediction must be right by `metric`, and an empty one must be wrong.
///
/// # Errors
/// If an answer is blank, or the answers hold nothing that the metric compares.
pub fn check(metric: Metric, references: &[String]) -> Result<(), UsageError> {
    match metric.flaw(references) {
        None => Ok(()),
        Some(Flaw::Blank) => Err(blank()),
        Some(Flaw::Nothing { reference }) => {
            Err(UsageError::new(format!("`{metric}` ignores all of the answer {:?}", shown(&reference)))
                .hint("use another metric (`spattn list metrics`), or correct the answer"))
        }
    }
}

/// Checks the answers of a row of a published set. Returns whether the metric compares anything in them.
///
/// # Errors
/// If an answer is blank.
pub fn check_published(metric: Metric, references: &[String]) -> Result<bool, UsageError> {
    match metric.flaw(references) {
        None => Ok(true),
        Some(Flaw::Blank) => Err(blank()),
        Some(Flaw::Nothing { .. }) => Ok(false),
    }
}

/// The note on `count` rows of a published set in whose answers the metric compares nothing; `None` if there are none.
pub fn note(place: &str, count: usize, metric: Metric) -> Option<String> {
    let rows = if count == 1 { "1 row has".to_owned() } else { format!("{count} rows have") };
    (count > 0).then(|| {
        format!("{place}: {rows} answers that `{metric}` ignores; they are scored as by the published program")
    })
}

/// Checks that an answer is not a list written as text, as some tables have it: `['a', 'b']`, or numpy's `['a' 'b']`.
///
/// # Errors
/// If it is such a list.
pub fn check_one(answer: &str) -> Result<(), UsageError> {
    let Some(inside) = answer.trim().strip_prefix('[').and_then(|text| text.strip_suffix(']')) else { return Ok(()) };
    let is_quote = |c: char| c == '\'' || c == '"';
    let is_quoted = inside.trim().starts_with(is_quote) && inside.trim().ends_with(is_quote);
    match is_quoted || python_literal::parse(answer).is_some_and(|value| value.is_array()) {
        false => Ok(()),
        true => Err(UsageError::new("an answer is a list written as text")
            .hint("write a list of JSON: [\"a\", \"b\"]; if the text itself is the answer, put it into a list")),
    }
}

/// Checks that those of the fields `names` that a row has are equal, since only one of them is read.
///
/// # Errors
/// If two of them differ.
pub fn check_same(fields: &Map<String, Value>, names: &[&str]) -> Result<(), UsageError> {
    let said = |name: &&str| Some((name.to_string(), texts(fields.get(*name).filter(|value| !value.is_null())?)));
    let mut there = names.iter().filter_map(said);
    let Some((first, texts)) = there.next() else { return Ok(()) };
    match there.find(|(_, others)| *others != texts) {
        None => Ok(()),
        Some((other, _)) => {
            Err(UsageError::new(format!("the fields `{first}` and `{other}` mean the same, but differ"))
                .hint("remove one of them from the row"))
        }
    }
}

/// The texts of a field that holds one text or a list of them.
fn texts(value: &Value) -> BTreeSet<String> {
    let one = |value: &Value| text_or_number(value).unwrap_or_else(|| value.to_string());
    match value {
        Value::Array(several) => several.iter().map(one).collect(),
        value => BTreeSet::from([one(value)]),
    }
}

/// Checks the class names for a metric that looks for them in a prediction. Returns whether an answer is one of the classes, and
/// true for all other metrics.
///
/// # Errors
/// If there is no class, or one is blank. For a row of the user's own file also if a class is listed twice (it would count as two),
/// or no answer is a class.
pub fn check_classes(
    metric: Metric,
    references: &[String],
    classes: &[String],
    is_published: bool,
) -> Result<bool, UsageError> {
    if !metric.needs_classes() {
        return Ok(true);
    }
    let wrong = |what: String| Err(UsageError::new(what).hint("list every class once, spelled as in the answers"));
    let is_there = references.iter().any(|reference| classes.contains(reference));
    let twice = classes.iter().enumerate().find(|(at, class)| classes[..*at].contains(class));
    match twice.filter(|_| !is_published) {
        _ if classes.is_empty() => wrong("the field `all_classes` is empty".to_owned()),
        _ if classes.iter().any(|class| is_blank(class)) => {
            wrong("a name in `all_classes` is empty or white space".to_owned())
        }
        Some((_, class)) => wrong(format!("`all_classes` names {:?} twice", shown(class))),
        None if !is_there && !is_published => {
            wrong("no answer is one of `all_classes`: no prediction can be right".to_owned())
        }
        None => Ok(is_there),
    }
}

/// The beginning of an answer, for messages.
fn shown(answer: &str) -> String {
    answer.chars().take(SHOWN).collect()
}

fn blank() -> UsageError {
    UsageError::new("an answer is empty or white space: any prediction, or an empty one, would be right")
        .hint("give the answer's text, or leave the row out")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    /// Blank texts: white space as Python's `str.strip` removes it (U+001C and U+3000 too), and invisible characters.
    const BLANK: [&str; 8] = ["", " ", "\n", "\t\r\n", "\u{1c}", "\u{a0}\u{3000}", "\u{200b}", "\u{ad}\u{feff}"];

    #[test]
    fn blank_answers_are_refused_by_every_metric_alone_and_beside_others() {
        for metric in Metric::all() {
            for blank in BLANK {
                for answers in [references(&[blank]), references(&[blank, "Paris 7"]), references(&["Paris 7", blank])]
                {
                    assert!(check(metric, &answers).is_err(), "{metric} {answers:?}");
                    assert!(check_published(metric, &answers).is_err(), "{metric} {answers:?}");
                }
            }
        }
    }

    /// For each metric, answers in which it compares nothing, and one in which it compares something. Each published program
    /// ignores other characters: articles and ASCII punctuation (SQuAD, LongBench, CoQA), everything but ASCII letters and digits
    /// (`rouge_score`), full stops (`rouge`), commas and dollar signs (GSM8K), LaTeX's spacing (AIME). Others look in a prediction
    /// for a number (GSM8K) or for one of four letters (LongBench v2).
    const NOTHING: [(&str, &[&str], &str); 26] = [
        ("string_match_all", &["\u{1}\u{2}"], "!"),
        ("string_match_part", &["\u{1}\n\u{7}"], "the"),
        ("qa_f1", &["the", "A", "a, an: the!", "?!"], "thesis"),
        ("coqa_f1", &["the", "...", "An."], "no"),
        ("coqa_em", &["the", "...", "An."], "no"),
        ("qa_f1_ascii", &["The the", "--"], "é"),
        ("qa_f1_zh", &["，。", "？！…"], "不"),
        ("qa_f1_zh_characters", &["，。", "?"], "不"),
        ("rouge_l", &["...", ". ."], "the"),
        ("rouge_l_zh", &[".", " . "], "。"),
        ("rouge_1", &["..."], "a"),
        ("rouge_2", &["...", "Paris", "Paris."], "Paris, France"),
        ("rouge_l_recall", &["..."], "a"),
        ("rouge_lsum", &["。", "中文", "!?"], "a"),
        ("rouge_score_2", &["a", "中 b"], "a b"),
        ("retrieval", &["7", "paragraph 7"], "Paragraph 7"),
        ("retrieval_zh", &["7", "Paragraph 7"], "段落7"),
        ("count", &["seven"], "7"),
        ("first_number", &["seven", "-"], "0"),
        ("gsm8k_strict", &["$", ",", ".", "$,.", "seven", "7 apples", "[invalid]", "-"], "7"),
        ("gsm8k_hashes", &["$", "seven", "7 apples", "1/2", "--7"], "-1,234.50"),
        ("correct_letter", &["E", "a", "A.", "0", "a rose"], "D"),
        ("answer_is", &["!", "(.)"], "(A)"),
        ("aime", &["\\!", "\\left\\right", "^\\circ"], "204"),
        ("bleu_4", &["of three words"], "of as many as five"),
        ("first_letter", &["E", "abc"], "B"),
    ];

    #[test]
    fn answers_of_which_a_metric_compares_nothing_are_refused() {
        for (name, nothing, something) in NOTHING {
            let metric = Metric::parse(name).unwrap();
            for answer in nothing {
                let error = check(metric, &references(&[answer])).unwrap_err();
                assert!(error.what.starts_with(&format!("`{name}` ignores all of the answer")), "{error}");
                assert_eq!(check_published(metric, &references(&[answer])), Ok(false), "{name} {answer}");
            }
            assert_eq!(check(metric, &references(&[something])), Ok(()), "{name} {something}");
            assert_eq!(check_published(metric, &references(&[something])), Ok(true));
        }
    }

    #[test]
    fn beside_another_answer_it_counts_only_where_nothing_equals_nothing() {
        for (name, nothing, something) in NOTHING {
            let metric = Metric::parse(name).unwrap();
            let both = references(&[something, nothing[0]]);
            // Predictions in which the published rule also finds nothing.
            let said = ["", "The answer is ,,.", "#### ,,", "answer is !."];
            let is_right = |said: &str| metric.score(&metric.postprocess(said), &references(&nothing[..1]), &[]) > 0.0;
            assert_eq!(check(metric, &both).is_err(), said.into_iter().any(is_right), "{name}");
        }
    }

    /// Lists as pandas writes them (`str` of a list or of a numpy array), and as JSON.
    #[test]
    fn a_list_in_a_text_is_no_answer() {
        for text in ["['a', 'b']", "['a' 'b']", "[\"a\"]", " [1, 2] ", "['it''s']", "[]", "[None]", "['a',\n 'b']"] {
            assert!(check_one(text).unwrap_err().what.contains("list written as text"), "{text}");
        }
        for text in ["a", "[a]", "['a'] and", "[INST] a [/INST]", "x[1]", "[x for x in y]", "", "[", "(1, 2)"] {
            assert_eq!(check_one(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn fields_of_one_meaning_have_to_agree() {
        let check = |row: &str| check_same(&serde_json::from_str(row).unwrap(), &["answer", "answers", "outputs"]);
        for row in [
            r#"{"answer": "a"}"#,
            r#"{"answer": "a", "answers": ["a"]}"#,
            r#"{"answer": 7, "answers": ["7"], "outputs": "7"}"#,
            r#"{"answers": ["a", "b"], "outputs": ["b", "a"]}"#,
            r#"{"answer": null, "answers": ["a"]}"#,
            "{}",
        ] {
            assert_eq!(check(row), Ok(()), "{row}");
        }
        for (row, named) in [
            (r#"{"answer": "a", "answers": ["b"]}"#, "`answer` and `answers`"),
            (r#"{"answer": "a", "answers": ["a", "b"]}"#, "`answer` and `answers`"),
            (r#"{"answer": "a", "outputs": ["A"]}"#, "`answer` and `outputs`"),
            (r#"{"answers": ["a"], "outputs": []}"#, "`answers` and `outputs`"),
            (r#"{"answer": {"text": "a"}, "answers": ["a"]}"#, "`answer` and `answers`"),
        ] {
            assert!(check(row).unwrap_err().what.contains(named), "{row}");
        }
    }

    #[test]
    fn classes_have_names_that_can_be_told_apart_and_an_answer_is_one() {
        let check = |classes: &[&str], is_published| {
            let metric = Metric::parse("classification").unwrap();
            let said = check_classes(metric, &references(&["C", "A"]), &references(classes), is_published);
            said.map_err(|e| e.what)
        };
        for (classes, own, published) in [
            (&["A", "a"][..], Ok(true), Ok(true)),
            (&[], Err("the field `all_classes` is empty"), Err("the field `all_classes` is empty")),
            (
                &["A", " "],
                Err("a name in `all_classes` is empty or white space"),
                Err("a name in `all_classes` is empty or white space"),
            ),
            (&["A", "B", "A"], Err("`all_classes` names \"A\" twice"), Ok(true)),
            (&["B"], Err("no answer is one of `all_classes`: no prediction can be right"), Ok(false)),
        ] {
            assert_eq!(check(classes, false), own.map_err(str::to_owned), "{classes:?}");
            assert_eq!(check(classes, true), published.map_err(str::to_owned), "{classes:?}");
        }
        assert_eq!(check_classes(Metric::QaF1, &references(&["C"]), &[], false), Ok(true));
    }

    /// An empty prediction never gets the full score for an accepted answer.
    #[test]
    fn no_answer_that_is_let_through_is_right_for_a_prediction_of_nothing() {
        let answers =
            ["the", "!", "$", "\\!", ".", "0", "a", "x y", "，", "中", "7", "\u{1}", "A.", "{}", "[]", "#### "];
        for metric in Metric::all() {
            // LooGLE's scorer reads an empty prediction as the word "None", which is none of these answers.
            for answer in answers.map(|answer| references(&[answer])) {
                for prediction in ["", " ", "\n"] {
                    let score = metric.score(&metric.postprocess(prediction), &answer, &answer);
                    // `code_sim` gives partial credit to white space if the answer has some.
                    assert!(
                        score < 0.99 || check(metric, &answer).is_err(),
                        "{metric} {answer:?} {prediction:?} {score}"
                    );
                }
            }
        }
    }
}

//! Reference answers of rows: whether a score against them says anything of a prediction.
//!
//! Rows of one's own are refused where it does not. Rows of a published set are scored as its program scores them, which
//! is said; only blank answers, which no published set has, are refused there too.

use super::metrics::{Flaw, Metric};
use crate::error::UsageError;

/// Characters of an answer that a message shows at most.
const SHOWN: usize = 60;

/// Makes sure that an answer can be right, and none at all cannot.
///
/// # Errors
/// If an answer is blank, or the metric compares nothing of them.
pub fn check(metric: Metric, references: &[String]) -> Result<(), UsageError> {
    match metric.flaw(references) {
        None => Ok(()),
        Some(Flaw::Blank) => Err(blank()),
        Some(Flaw::Nothing { reference }) => {
            let shown: String = reference.chars().take(SHOWN).collect();
            Err(UsageError::new(format!("`{metric}` compares nothing of the answer {shown:?}"))
                .hint("another metric may (`spattn list metrics`), or the answer is not the one that was meant"))
        }
    }
}

/// The same for a row of a published set: whether its answers hold something that the metric compares.
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

/// What is to be said of so many rows of a published set, of whose answers the metric compares nothing.
pub fn note(place: &str, count: usize, metric: Metric) -> Option<String> {
    let rows = if count == 1 { "1 row has".to_owned() } else { format!("{count} rows have") };
    (count > 0).then(|| {
        format!("{place}: {rows} answers of which `{metric}` compares nothing; scored as the published program does")
    })
}

fn blank() -> UsageError {
    UsageError::new("an answer is empty or white space: any prediction would hold it, or an empty one equal it")
        .hint("give the answer's text, or leave the row out")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    /// What Python's `str.strip` takes off, U+001C and U+3000 among it.
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

    /// By metric: answers of which it compares nothing, and one of which it compares something. What each rule takes out
    /// is as its published program has it: articles and ASCII punctuation (SQuAD, LongBench, CoQA), what is no letter or
    /// digit of ASCII (`rouge_score`), full stops (`rouge`), commas and dollars (GSM8K), LaTeX's spacing (AIME).
    const NOTHING: [(&str, &[&str], &str); 24] = [
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
        ("gsm8k_strict", &["$", ",", ".", "$,."], "7"),
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
                assert!(error.what.starts_with(&format!("`{name}` compares nothing of the answer")), "{error}");
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
            // Predictions in which the published rule finds nothing either.
            let said = ["", "The answer is ,,.", "#### ,,", "answer is !."];
            let is_right = |said: &str| metric.score(&metric.postprocess(said), &references(&nothing[..1]), &[]) > 0.0;
            assert_eq!(check(metric, &both).is_err(), said.into_iter().any(is_right), "{name}");
        }
    }

    /// A prediction of nothing is right for no answer that is let through, and one that is right for any is not let through.
    #[test]
    fn no_answer_that_is_let_through_is_right_for_a_prediction_of_nothing() {
        let answers =
            ["the", "!", "$", "\\!", ".", "0", "a", "x y", "，", "中", "7", "\u{1}", "A.", "{}", "[]", "#### "];
        for metric in Metric::all() {
            // LooGLE's scorer takes an empty prediction for the word "None", which is no answer here.
            for answer in answers.map(|answer| references(&[answer])) {
                for prediction in ["", " ", "\n"] {
                    let score = metric.score(&metric.postprocess(prediction), &answer, &answer);
                    // White space has a part of an answer's characters, which `code_sim` counts.
                    assert!(
                        score < 0.99 || check(metric, &answer).is_err(),
                        "{metric} {answer:?} {prediction:?} {score}"
                    );
                }
            }
        }
    }
}

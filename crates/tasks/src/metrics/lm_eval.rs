//! lm-eval's scorers of generated answers: GSM8K, which extracts numbers from reasoning, and CoQA, which has answers by several
//! people.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;

use super::{python, qa_f1};

/// The text that lm-eval scores if its pattern does not match.
const NOTHING: &str = "[invalid]";

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("the constant pattern is valid")
}

/// `strict-match`: the number after the first "The answer is", compared by `exact_match` without commas, dollar signs and a final
/// full stop.
pub fn gsm8k_strict(prediction: &str, answer: &str) -> f64 {
    static SAID: LazyLock<Regex> = LazyLock::new(|| pattern(r"The answer is (\-?[0-9\.,]+)."));
    let said = SAID.captures(prediction).and_then(|found| found.get(1));
    same_number(said.map_or(NOTHING, |said| said.as_str()), answer)
}

/// `strict-match` with training rows as examples: the number after the first `####`.
pub fn gsm8k_hashes(prediction: &str, answer: &str) -> f64 {
    static MARKED: LazyLock<Regex> = LazyLock::new(|| pattern(r"#### (\-?[0-9\.,]+)"));
    let marked = MARKED.captures(prediction).and_then(|found| found.get(1));
    same_number(marked.map_or(NOTHING, |marked| marked.as_str()), answer)
}

/// `flexible-extract`: the last number of the prediction, compared like that of `strict-match`.
pub fn gsm8k_flexible(prediction: &str, answer: &str) -> f64 {
    static NUMBER: LazyLock<Regex> = LazyLock::new(|| pattern(r"-?[$0-9.,]{2,}|-?[0-9]+"));
    let last = NUMBER.find_iter(prediction).last();
    same_number(last.map_or(NOTHING, |number| number.as_str()), answer)
}

fn same_number(number: &str, answer: &str) -> f64 {
    f64::from(u8::from(bare_number(number) == bare_number(answer)))
}

/// A number in the form that `exact_match` compares.
fn bare_number(text: &str) -> String {
    let text = text.trim().replace([',', '$'], "");
    let text = text.rsplit("#### ").next().unwrap_or_default().to_lowercase();
    text.strip_suffix('.').map_or(text.clone(), str::to_owned)
}

/// Whether a GSM8K answer is a number of the form that is extracted from predictions.
pub fn compares_number(answer: &str) -> bool {
    let bare = bare_number(answer);
    let digits = bare.strip_prefix('-').unwrap_or(&bare);
    digits.contains(|c: char| c.is_ascii_digit()) && digits.chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// `get-answer` of MMLU with chain of thought: the text after the first "answer is ", without the last character of its line,
/// compared by `exact_match` ignoring case and punctuation.
pub fn answer_is(prediction: &str, answer: &str) -> f64 {
    const SAID: &str = "answer is ";
    let behind = |(at, _): (usize, &str)| {
        let line = prediction[at + SAID.len()..].split('\n').next().unwrap_or_default();
        let (last, _) = line.char_indices().next_back()?;
        Some(&line[..last])
    };
    let said = prediction.match_indices(SAID).find_map(behind).map_or(NOTHING, python::strip);
    f64::from(u8::from(bare_letters(said) == bare_letters(answer)))
}

/// The text that `exact_match` compares when it ignores case and punctuation.
fn bare_letters(text: &str) -> String {
    text.to_lowercase().replace(|c: char| c.is_ascii_punctuation(), "")
}

/// Whether an answer has characters that [`answer_is`] compares.
pub fn compares_letters(answer: &str) -> bool {
    !python::strip(&bare_letters(answer)).is_empty()
}

/// The answers in order, without those that equal an earlier one ignoring case. lm-eval removes repeated answers from CoQA before
/// scoring, so that an answer given twice is not compared with itself. (CoQA's own script keeps them and gives higher scores.)
pub fn distinct_answers(answers: &[String]) -> Vec<&String> {
    let mut seen = BTreeSet::new();
    answers.iter().filter(|answer| seen.insert(answer.to_lowercase())).collect()
}

/// CoQA's F1 of the prediction's first line. Each answer is left out in turn, and the best score against the others is taken; the
/// result is the mean of these. A single answer is scored directly. Repeated answers count once ([`distinct_answers`]).
pub fn coqa_f1(prediction: &str, answers: &[String]) -> f64 {
    leaving_one_out(prediction, answers, qa_f1::squad_f1)
}

/// Like [`coqa_f1`], with exact match instead of F1.
pub fn coqa_em(prediction: &str, answers: &[String]) -> f64 {
    leaving_one_out(prediction, answers, qa_f1::squad_exact)
}

fn leaving_one_out(prediction: &str, answers: &[String], score: fn(&str, &str) -> f64) -> f64 {
    let prediction = prediction.trim().split('\n').next().unwrap_or_default();
    let scores: Vec<f64> = distinct_answers(answers).into_iter().map(|answer| score(prediction, answer)).collect();
    if let [] | [_] = scores[..] {
        return scores.first().copied().unwrap_or(0.0);
    }
    let best_without = |left_out: usize| {
        let others = scores.iter().enumerate().filter(|(i, _)| *i != left_out);
        others.map(|(_, score)| *score).fold(0.0, f64::max)
    };
    (0..scores.len()).map(best_without).sum::<f64>() / scores.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_that_is_said_to_be_the_answer() {
        assert_eq!(gsm8k_strict("So 3 + 4. The answer is 7. Q", "7"), 1.0);
        assert_eq!(gsm8k_strict("The answer is 1,234.\n", "1234"), 1.0);
        assert_eq!(gsm8k_strict("The answer is -5.", "-5"), 1.0);
        assert_eq!(gsm8k_strict("The answer is 7. The answer is 8.", "8"), 0.0, "the first counts");
        assert_eq!(gsm8k_strict("The answer is $7.", "7"), 0.0, "no dollar sign in the pattern");
        assert_eq!(gsm8k_strict("the answer is 7.", "7"), 0.0);
        // The pattern needs one more character after the number, so it takes the last character of the number.
        assert_eq!((gsm8k_strict("The answer is 12", "12"), gsm8k_strict("The answer is 12", "1")), (0.0, 1.0));
    }

    #[test]
    fn the_last_number_of_all() {
        assert_eq!(gsm8k_flexible("3 and then $1,234.", "1234"), 1.0);
        assert_eq!(gsm8k_flexible("7 of 8 are left", "8"), 1.0);
        assert_eq!(gsm8k_flexible("none", "8"), 0.0);
        // Two full stops match the published pattern, but are not a number.
        assert_eq!(gsm8k_flexible("It is 8 ... well", "8"), 0.0);
    }

    #[test]
    fn answers_of_several_people_are_each_left_out_once() {
        let answers = |texts: &[&str]| texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();
        assert_eq!(coqa_em(" Ann\nQ: Who?", &answers(&["Ann"])), 1.0);
        assert_eq!(coqa_em("Ann", &answers(&["Ann", "she"])), 0.5);
        assert_eq!(coqa_em("Ann", &answers(&["Ann", "she", "the Ann!"])), 1.0);
        assert_eq!(coqa_em("Ann", &answers(&["Ann", "she", "ANN", "Ann"])), 0.5, "the same answer again is none");
        assert_eq!(coqa_em("Ann", &answers(&["Ann", "ann"])), 1.0, "a single answer");
        assert_eq!(coqa_f1("Ann Lee", &answers(&["Ann", "nobody"])), (2.0 / 3.0) / 2.0);
        assert_eq!((coqa_f1("", &answers(&["a"])), coqa_em("x", &[])), (1.0, 0.0), "no words on either side are equal");
    }
}

//! Scorers of InfiniteBench (`compute_scores.py`), and those of SCBench that differ from them.
//!
//! Where the published code raises an exception (a fraction where a whole number is expected), the answer is parsed as in SCBench.

use std::sync::LazyLock;

use regex::Regex;

use super::python::{strip, words};

/// Characters that separate words, besides white space.
const MARKS: [char; 9] = [':', '"', '\'', '.', ',', '?', '!', '{', '}'];
/// Phrases that precede the letter of an option.
const CHOICE_MARKS: [&str; 4] = ["answer is:", "answer:", "answer is", "option is"];
/// Phrases that precede the name of a function.
const FUNCTION_MARKS: [&str; 4] = ["answer is:", "is:", "answer:", "correct option is:"];
const LETTERS: [char; 4] = ['A', 'B', 'C', 'D'];

fn right(is_right: bool) -> f64 {
    f64::from(u8::from(is_right))
}

/// The words of a text, separated by `marks` and white space.
fn words_between<'a>(text: &'a str, marks: &'a [char]) -> impl Iterator<Item = &'a str> {
    text.split(|c| marks.contains(&c)).flat_map(words)
}

/// `kv_retrieval`: 1 if the answer is a word of the prediction.
pub fn word(prediction: &str, answer: &str) -> f64 {
    right(words_between(prediction, &MARKS).any(|word| word == answer))
}

/// `longdialogue_qa_eng`: 1 if the name is a word of the upper-cased prediction.
pub fn name(prediction: &str, answer: &str) -> f64 {
    right(words_between(prediction, &MARKS).any(|word| word.to_uppercase() == answer))
}

fn digit_runs(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_digit()).filter(|run| !run.is_empty())
}

/// `passkey`, `number_string`: 1 if the first run of digits equals the answer as text.
pub fn first_digits(prediction: &str, answer: &str) -> f64 {
    right(digit_runs(prediction).next().unwrap_or_default() == answer)
}

/// A whole number as Python's `int` reads it (ASCII digits only), without leading zeros.
fn integer(text: &str) -> Option<String> {
    let (minus, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let is_number = digits.split('_').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    let digits = digits.replace('_', "");
    let value = digits.trim_start_matches('0');
    is_number.then(|| if value.is_empty() { "0".to_owned() } else { format!("{minus}{value}") })
}

/// Whether an answer is a whole number.
pub fn is_whole_number(answer: &str) -> bool {
    integer(strip(answer)).is_some()
}

/// Whether an answer is a number.
pub fn is_number(answer: &str) -> bool {
    strip(answer).parse::<f64>().is_ok_and(f64::is_finite)
}

/// Whether an answer, a list of whole numbers as text, contains a number.
pub fn has_whole_number(answer: &str) -> bool {
    !whole_numbers(answer).is_empty()
}

/// `code_run`: 1 if the last word is the number.
pub fn last_word_number(prediction: &str, answer: &str) -> f64 {
    let last = words_between(prediction, &['.', '`', '\'', '"', ':']).last();
    let said = last.and_then(integer);
    right(said.is_some() && said == integer(strip(answer)))
}

/// `math_find`: 1 if the first number has the value of the answer; if the answer is a whole number, decimals are truncated.
pub fn first_value(prediction: &str, answer: &str) -> f64 {
    static NUMBER: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"[0-9]+\.[0-9]+|[0-9]+").expect("the constant pattern is valid"));
    let first = NUMBER.find(prediction).and_then(|number| number.as_str().parse::<f64>().ok());
    let (Some(first), Ok(answer_value)) = (first, strip(answer).parse::<f64>()) else { return 0.0 };
    let first = if integer(strip(answer)).is_some() { first.trunc() } else { first };
    right(first == answer_value)
}

/// `math_calc`: the share of the answer's numbers before the first that differs from the prediction's. The answer is a list of whole
/// numbers as text.
pub fn leading_numbers(prediction: &str, answer: &str) -> f64 {
    let answer = whole_numbers(answer);
    if answer.is_empty() {
        return 0.0;
    }
    let said = digit_runs(prediction).filter_map(integer);
    let same = answer.iter().zip(said).take_while(|(a, b)| **a == *b).count();
    same as f64 / answer.len() as f64
}

/// The numbers in a list of whole numbers as text.
fn whole_numbers(list: &str) -> Vec<String> {
    list.split(|c: char| "[], ".contains(c) || c.is_whitespace()).filter_map(integer).collect()
}

/// The text with each of `marks` and each run of spaces replaced by one space.
fn blanked(text: &str, marks: &[&str]) -> String {
    let mut text = marks.iter().fold(text.to_owned(), |text, mark| text.replace(mark, " "));
    while text.contains("  ") {
        text = text.replace("  ", " ");
    }
    text
}

/// The text after the first of `marks` that occurs in it, without the character that follows the mark. Marks are tried in order.
fn announced<'a>(text: &'a str, marks: &[&str]) -> Option<&'a str> {
    let (at, mark) = marks.iter().find_map(|mark| Some((text.find(mark)?, mark)))?;
    let mut after = text[at + mark.len()..].chars();
    after.next();
    Some(after.as_str())
}

/// `longbook_choice_eng`: 1 if the prediction gives the letter or the text of the right option; `answers` holds both.
pub fn choice(prediction: &str, answers: &[String]) -> f64 {
    let is_right = |said: &str| answers.iter().any(|answer| answer == said);
    let prediction = strip(prediction);
    let Some(first) = prediction.chars().next() else { return 0.0 };
    if LETTERS.contains(&first) {
        return right(is_right(&prediction[..1]));
    }
    if is_right(prediction) {
        return 1.0;
    }
    let text = blanked(prediction, &["\n", "\"", "'", ".", ",", "?", "!", "{", "}"]);
    if let Some(after) = announced(&text, &CHOICE_MARKS) {
        return right(!after.is_empty() && answers.iter().any(|answer| after.starts_with(answer)));
    }
    // As published, the letter is tested as a substring of `ABCD`; `AB` passes too, but equals no answer.
    let letter = words(&text).find(|word| "ABCD".contains(word));
    right(letter.is_some_and(is_right))
}

/// `code_debug`: 1 if the prediction begins with the letter, or has the letter or the function after one of the phrases. `answers` holds
/// both.
pub fn function_choice(prediction: &str, answers: &[String]) -> f64 {
    let prediction = strip(prediction);
    let begins = |letter: &String| {
        let rest = prediction.strip_prefix(letter.as_str());
        letter.len() == 1
            && letter.starts_with(LETTERS)
            && rest.is_some_and(|rest| rest.starts_with('.') || rest.starts_with(':'))
    };
    if answers.iter().any(begins) {
        return 1.0;
    }
    let text = blanked(prediction, &["\n", "`", "'", "\"", "-", "*", "Option", "option"]);
    let after = announced(&text, &FUNCTION_MARKS).unwrap_or_default();
    right(!after.is_empty() && answers.iter().any(|answer| after.starts_with(answer)))
}

/// SCBench's `kv`, `prefix_suffix`: 1 if the answer is anywhere in the prediction.
pub fn contains(prediction: &str, answer: &str) -> f64 {
    right(prediction.contains(answer))
}

/// SCBench's `qa_eng`, `many_shot`: like [`contains`], ignoring case.
pub fn contains_in_capitals(prediction: &str, answer: &str) -> f64 {
    right(strip(prediction).to_uppercase().contains(&answer.to_uppercase()))
}

/// SCBench's `vt`: the share of the answers that are in the prediction, ignoring case, rounded to whole percent.
pub fn contains_all_percent(prediction: &str, answers: &[String]) -> f64 {
    if answers.is_empty() {
        return 0.0;
    }
    let prediction = prediction.to_lowercase();
    let found = answers.iter().filter(|answer| prediction.contains(&answer.to_lowercase())).count();
    (100.0 * found as f64 / answers.len() as f64).round_ties_even() / 100.0
}

/// LongBench v2: 1 if "The correct answer is" is followed by the letter, in brackets or, if that does not occur, without.
pub fn correct_letter(prediction: &str, answer: &str) -> f64 {
    static SAID: LazyLock<[Regex; 2]> = LazyLock::new(|| {
        [r"The correct answer is \(([A-D])\)", r"The correct answer is ([A-D])"]
            .map(|pattern| Regex::new(pattern).expect("the constant pattern is valid"))
    });
    let bare = strip(prediction).replace('*', "");
    let said = SAID.iter().find_map(|pattern| Some(pattern.captures(&bare)?.get(1)?.as_str()));
    right(said == Some(answer))
}

/// Whether an answer is a letter that [`correct_letter`] finds.
pub fn is_letter(answer: &str) -> bool {
    matches!(answer, "A" | "B" | "C" | "D")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_those_of_the_published_rules() {
        let golden: serde_json::Value =
            serde_json::from_str(include_str!("../../../../tests/golden/long_sets.json")).unwrap();
        for case in golden["scores"].as_array().unwrap() {
            let metric = super::super::Metric::parse(case["metric"].as_str().unwrap()).unwrap();
            let references: Vec<String> = serde_json::from_value(case["references"].clone()).unwrap();
            let score = metric.score(case["prediction"].as_str().unwrap(), &references, &[]);
            assert!((score - case["score"].as_f64().unwrap()).abs() < 1e-12, "{score}: {case}");
        }
    }

    #[test]
    fn whole_numbers_are_those_of_python() {
        let all = ["7", "-07", "+1_000", "000", "-0", "1__0", "_1", "", "-", "1.0", "x"].map(integer);
        let some = ["7", "-7", "1000", "0", "0"].map(|n| Some(n.to_owned()));
        assert_eq!(all[..5], some);
        assert!(all[5..].iter().all(Option::is_none), "{all:?}");
    }

    #[test]
    fn one_character_after_a_mark_is_passed_over() {
        assert_eq!(announced("so the answer is: B", &CHOICE_MARKS), Some("B"));
        assert_eq!(announced("the answer is:", &CHOICE_MARKS), Some(""));
        assert_eq!(announced("the answer is:é", &CHOICE_MARKS), Some(""));
        assert_eq!(announced("nothing", &CHOICE_MARKS), None);
    }
}

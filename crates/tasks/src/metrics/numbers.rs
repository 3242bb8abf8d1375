//! Metrics that look for a number in the prediction: those of LongBench, passkeys and LongEval's lines.

use super::python::{digit_runs, is_digit};

/// `count_score`: the share of the numbers in the prediction that equal the answer as text.
pub fn count(prediction: &str, answer: &str) -> f64 {
    let (mut total, mut right) = (0usize, 0usize);
    for number in digit_runs(prediction) {
        total += 1;
        right += usize::from(number == answer);
    }
    if total == 0 { 0.0 } else { right as f64 / total as f64 }
}

/// `retrieval_score`: [`count`] of the number that follows `label` in the answer.
/// An answer without such a number scores 0 (the published code raises an exception).
pub fn retrieval(label: &str, prediction: &str, answer: &str) -> f64 {
    match labelled_number(label, answer) {
        Some(id) => count(prediction, id),
        None => 0.0,
    }
}

/// The first run of digits that directly follows `label`.
fn labelled_number<'a>(label: &str, text: &'a str) -> Option<&'a str> {
    text.match_indices(label).find_map(|(at, _)| {
        let rest = &text[at + label.len()..];
        let end = rest.find(|c| !is_digit(c)).unwrap_or(rest.len());
        (end > 0).then(|| &rest[..end])
    })
}

/// Whether an answer names a paragraph.
pub fn names_paragraph(label: &str, answer: &str) -> bool {
    labelled_number(label, answer).is_some()
}

/// Whether an answer has a digit.
pub fn compares(answer: &str) -> bool {
    digit_runs(answer).next().is_some()
}

/// 1 if the first number in the prediction has the value of the answer.
pub fn first(prediction: &str, answer: &str) -> f64 {
    same_value(digit_runs(prediction).next(), answer)
}

/// 1 if the last number in the prediction has the value of the answer.
pub fn last(prediction: &str, answer: &str) -> f64 {
    same_value(digit_runs(prediction).last(), answer)
}

/// Compares whole numbers as the published scripts do: leading zeros do not matter.
fn same_value(number: Option<&str>, answer: &str) -> f64 {
    let value = |digits: &str| digits.trim_start_matches('0').to_owned();
    f64::from(u8::from(number.is_some_and(|number| value(number) == value(answer))))
}

/// The share of the answer's digits that equal the digit at the same position among the digits of the prediction; other
/// characters of the prediction are skipped.
pub fn digit_match(prediction: &str, answer: &str) -> f64 {
    let digits = prediction.chars().filter(|c| is_digit(*c));
    let right = answer.chars().zip(digits).filter(|(a, b)| a == b).count();
    right as f64 / answer.chars().count().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_or_the_last_number_is_compared_by_value() {
        assert_eq!((first("it is 042, not 7", "42"), last("it is 042, not 7", "42")), (1.0, 0.0));
        assert_eq!((first("7 or 42", "42"), last("7 or 42", "42")), (0.0, 1.0));
        assert_eq!((first("142", "42"), first("none", "42"), last("", "42")), (0.0, 0.0, 0.0));
    }

    #[test]
    fn digits_count_at_their_place() {
        assert_eq!(digit_match(" $12 345$. 99", "12345"), 1.0);
        assert_eq!(digit_match("12845", "12345"), 0.8);
        assert_eq!(digit_match("2345", "12345"), 0.0);
        assert_eq!(digit_match("123", "12345"), 0.6);
    }

    #[test]
    fn every_number_counts_and_leading_zeros_matter() {
        assert_eq!(count("4 or 04 or 14", "4"), 1.0 / 3.0);
        assert_eq!(count("four", "4"), 0.0);
    }

    #[test]
    fn the_label_must_stand_directly_before_the_number() {
        assert_eq!(labelled_number("Paragraph ", "Paragraph x, Paragraph 12."), Some("12"));
        assert_eq!(retrieval("Paragraph ", "Paragraph 3", "paragraph 3"), 0.0);
        assert_eq!(retrieval("段落", "段落7", "段落7"), 1.0);
    }
}

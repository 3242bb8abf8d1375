//! LongBench's scores that look for a number in the prediction.

use super::python::{digit_runs, is_digit};

/// `count_score`: the share of the numbers in the prediction that are written like the answer.
pub fn count(prediction: &str, answer: &str) -> f64 {
    let (mut total, mut right) = (0usize, 0usize);
    for number in digit_runs(prediction) {
        total += 1;
        right += usize::from(number == answer);
    }
    if total == 0 { 0.0 } else { right as f64 / total as f64 }
}

/// `retrieval_score`: [`count`] of the number that follows `label` in the answer.
///
/// An answer without one scores 0 (the published code fails there).
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

#[cfg(test)]
mod tests {
    use super::*;

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

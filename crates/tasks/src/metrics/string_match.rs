//! RULER's substring matching (`scripts/eval/synthetic/constants.py`), and how it cleans predictions.

use super::python::strip;

/// `postprocess_pred`: strip, every character of U+0000..=U+001F becomes a newline, strip.
pub fn postprocess(prediction: &str) -> String {
    let lines: String = strip(prediction).chars().map(|c| if c <= '\u{1f}' { '\n' } else { c }).collect();
    strip(&lines).to_owned()
}

/// Whether a reference has characters besides those that [`postprocess`] removes from predictions.
pub fn compares(reference: &str) -> bool {
    !postprocess(reference).is_empty()
}

/// `string_match_all`: the share of references that occur in the prediction, both lower-cased.
/// An empty reference occurs everywhere.
pub fn all(prediction: &str, references: &[String]) -> f64 {
    if references.is_empty() {
        return 0.0;
    }
    let prediction = prediction.to_lowercase();
    let found = references.iter().filter(|r| prediction.contains(&r.to_lowercase())).count();
    found as f64 / references.len() as f64
}

/// `string_match_part`: 1 if any reference occurs in the prediction, both lower-cased.
pub fn part(prediction: &str, references: &[String]) -> f64 {
    let prediction = prediction.to_lowercase();
    let found = references.iter().any(|r| prediction.contains(&r.to_lowercase()));
    f64::from(u8::from(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_newlines_inside_and_go_at_the_ends() {
        assert_eq!(postprocess(" \u{7}a\u{0}b\tc\u{7f}\u{1c}\n"), "a\nb\nc\u{7f}");
        assert_eq!(postprocess("\u{1} \u{2}"), "");
    }

    #[test]
    fn part_needs_one_reference_and_all_counts_them() {
        let references = ["Alpha".to_owned(), "beta".to_owned()];
        assert_eq!(part("ALPHABET", &references), 1.0);
        assert_eq!(all("ALPHABET", &references), 0.5);
    }
}

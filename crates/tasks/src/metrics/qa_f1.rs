//! Question answering: SQuAD's normalisation, exact match, and the F1 of bags of words.

use super::python::{is_word, strip, words};
use std::collections::HashMap;

/// `qa_f1_score`: F1 of the multisets of words after [`normalize`].
pub fn qa_f1(prediction: &str, reference: &str) -> f64 {
    f1(&normalize(prediction), &normalize(reference))
}

/// `f1_score` of two multisets of words.
pub fn f1(prediction: &[String], reference: &[String]) -> f64 {
    let same = common(prediction, reference);
    if same == 0 {
        return 0.0;
    }
    let precision = same as f64 / prediction.len() as f64;
    let recall = same as f64 / reference.len() as f64;
    (2.0 * precision * recall) / (precision + recall)
}

/// SQuAD's `exact_match_score`: 1 if both are equal after [`normalize`].
/// A reference that is empty after normalisation (an option `A`, or `!`) is compared unchanged except for white space at its ends: by
/// SQuAD's rule any prediction without words would be right.
pub fn exact_match(prediction: &str, reference: &str) -> f64 {
    let normalized = normalize(reference);
    let equal = match normalized.is_empty() {
        true => strip(prediction) == strip(reference),
        false => normalize(prediction) == normalized,
    };
    f64::from(u8::from(equal))
}

/// Whether a reference has words after [`normalize`].
pub fn compares(reference: &str) -> bool {
    !normalize(reference).is_empty()
}

/// SQuAD 2's `compute_exact`: 1 if both are equal after [`normalize`].
pub fn squad_exact(prediction: &str, reference: &str) -> f64 {
    f64::from(u8::from(normalize(prediction) == normalize(reference)))
}

/// SQuAD 2's `compute_f1`: like [`qa_f1`], but 1 if neither text has words.
pub fn squad_f1(prediction: &str, reference: &str) -> f64 {
    let (prediction, reference) = (normalize(prediction), normalize(reference));
    if prediction.is_empty() || reference.is_empty() {
        return f64::from(u8::from(prediction == reference));
    }
    f1(&prediction, &reference)
}

/// `normalize_answer`, split into words: lower-cases, removes ASCII punctuation and articles, and splits at white space. Curly quotes
/// and dashes are kept.
pub(super) fn normalize(text: &str) -> Vec<String> {
    let text: String = text.to_lowercase().chars().filter(|c| !c.is_ascii_punctuation()).collect();
    words(&without_articles(&text)).map(str::to_owned).collect()
}

/// `re.sub(r"\b(a|an|the)\b", " ", text)`.
fn without_articles(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let run = rest[word..].find(is_word).map_or(rest.len(), |gap| word + gap);
        kept.push_str(match &rest[..word] {
            "a" | "an" | "the" => " ",
            other => other,
        });
        kept.push_str(&rest[word..run]);
        rest = &rest[run..];
    }
    kept
}

/// The size of the intersection of two multisets.
fn common(a: &[String], b: &[String]) -> usize {
    let mut left: HashMap<&str, usize> = HashMap::new();
    for word in a {
        *left.entry(word).or_default() += 1;
    }
    b.iter().filter(|word| left.get_mut(word.as_str()).is_some_and(take)).count()
}

fn take(count: &mut usize) -> bool {
    let some = *count > 0;
    *count = count.saturating_sub(1);
    some
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn articles_go_only_as_whole_words() {
        assert_eq!(without_articles("the thesis, an ant a"), "  thesis,   ant  ");
        assert_eq!(without_articles(" …a_b the"), " …a_b  ");
    }

    #[test]
    fn exact_match_normalises_but_keeps_choices_apart() {
        assert_eq!(exact_match("The Nile.", "nile"), 1.0);
        assert_eq!(exact_match(" A\n", "A"), 1.0);
        assert_eq!(exact_match("the", "A"), 0.0);
        assert_eq!(exact_match("", "A"), 0.0);
    }

    #[test]
    fn repeated_words_count_as_often_as_both_have_them() {
        let bag = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(common(&bag("x x y"), &bag("x x x z")), 2);
    }
}

//! Scorers of ZeroSCROLLS, equal to those in `metrics/` of its data set on the hub.

use super::python::{is_digit, is_word};
use super::qa_f1;
use super::rouge_sum::{rouge_score_l, rouge_score_n};

/// `f1_score`: F1 of the bags of normalised words, converted to ASCII. The published rule converts by `unidecode`, this one by a
/// port of it: both agree on 425 of the 432 characters from Latin-1 to Latin Extended-B and on the letters of modern Greek and
/// Russian, but not on all characters of other scripts.
pub fn qa_f1_ascii(prediction: &str, reference: &str) -> f64 {
    qa_f1::f1(&ascii_words(prediction), &ascii_words(reference))
}

fn ascii_words(text: &str) -> Vec<String> {
    let ascii = deunicode::deunicode(&qa_f1::normalize(text).join(" "));
    ascii.split_whitespace().map(str::to_owned).collect()
}

/// Whether [`qa_f1_ascii`] finds words in a reference.
pub fn compares_words(reference: &str) -> bool {
    !ascii_words(reference).is_empty()
}

/// Whether a reference names an option.
pub fn has_letter(reference: &str) -> bool {
    letter(reference).is_some()
}

/// Whether a reference has a percentage.
pub fn has_percentage(reference: &str) -> bool {
    percentage(reference).is_some()
}

/// Whether a reference has an order of at least two items.
pub fn has_order(reference: &str) -> bool {
    places(reference).is_some_and(|places| places.len() > 1)
}

/// `accuracy_score`: 1 if the first of the letters A to D that stands alone as a word is the reference's.
pub fn first_letter(prediction: &str, reference: &str) -> f64 {
    let [said, right] = [prediction, reference].map(letter);
    f64::from(right.is_some() && said == right)
}

/// `re.search(r"\b[A-D]\b", text)`.
fn letter(text: &str) -> Option<char> {
    let mut before = None;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let alone = !before.is_some_and(is_word) && !rest.peek().copied().is_some_and(is_word);
        if alone && ('A'..='D').contains(&c) {
            return Some(c);
        }
        before = Some(c);
    }
    None
}

/// `exp_similarity_score`: 1 for equal percentages, halved for every ten points between them; 0 if a text has no percentage.
pub fn percent_similarity(prediction: &str, reference: &str) -> f64 {
    match (percentage(prediction), percentage(reference)) {
        (Some(said), Some(right)) => 0.5f64.powf((said - right).abs() / 10.0),
        _ => 0.0,
    }
}

/// `re.search(r"\d+\.?\d*%", text)` without the percent sign.
fn percentage(text: &str) -> Option<f64> {
    let starts = text.char_indices().filter(|(_, c)| is_digit(*c)).map(|(at, _)| &text[at..]);
    let number = |text: &str| {
        let (number, _) = text.split_once('%')?;
        let whole = number.trim_start_matches(is_digit);
        let fraction = whole.strip_prefix('.').unwrap_or(whole);
        fraction.chars().all(is_digit).then(|| number.parse().ok())?
    };
    starts.filter_map(number).next()
}

/// `concordant_index_score`: the share of pairs in the right order; 0 if the prediction does not have exactly the numbers of the
/// reference.
pub fn order_concordance(prediction: &str, reference: &str) -> f64 {
    let (Some(said), Some(right)) = (places(prediction), places(reference)) else { return 0.0 };
    if said.len() != right.len() || said.len() < 2 {
        return 0.0;
    }
    let pairs = (0..said.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
    let (mut all, mut same) = (0usize, 0usize);
    for (a, b) in pairs {
        all += 1;
        same += usize::from((said[a] < said[b]) == (right[a] < right[b]));
    }
    same as f64 / all as f64
}

/// The positions of the numbers 1, 2, … in a text that has each of them exactly once.
fn places(text: &str) -> Option<Vec<usize>> {
    let kept: String = text.chars().filter(|c| c.is_ascii_digit() || c.is_whitespace() || *c == ',').collect();
    let numbers = kept.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty());
    let numbers: Vec<usize> = numbers.map(str::parse).collect::<Result<_, _>>().ok()?;
    let mut places = vec![None; numbers.len()];
    for (place, number) in numbers.into_iter().enumerate() {
        let free = places.get_mut(number.checked_sub(1)?).filter(|taken| taken.is_none())?;
        *free = Some(place);
    }
    places.into_iter().collect()
}

/// Geometric mean of ROUGE-1, -2 and -L of the package `rouge_score`, each the best over the references.
/// The published score is computed from means over a data set; [`rouge_score_n`] and [`rouge_score_l`] give the scores of each text.
pub fn rouge_score_mean(prediction: &str, references: &[String]) -> f64 {
    let best = |score: &dyn Fn(&str) -> f64| references.iter().map(|r| score(r)).fold(0.0, f64::max);
    let all = best(&|r| rouge_score_n(1, prediction, r)) * best(&|r| rouge_score_n(2, prediction, r));
    (all * best(&|r| rouge_score_l(prediction, r))).cbrt()
}

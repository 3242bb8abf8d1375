//! Automatic scorers of LooGLE (`Evaluation/automatic_metrics.py`): BLEU as NLTK computes it, recall of ROUGE, and masked names.
//!
//! Not implemented: METEOR, whose published score depends on the order of sets, which differs in each run; and BERTScore and the
//! judgement of GPT-4, which need those models.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::python::words;
use super::{python_literal, rouge};

/// The prediction, or "None" if it is empty.
fn said(prediction: &str) -> &str {
    if prediction.is_empty() { "None" } else { prediction }
}

/// Whether a reference has a run of four words, which BLEU-4 counts.
pub fn compares_runs(reference: &str) -> bool {
    words(reference).nth(3).is_some()
}

/// Whether a reference is a dictionary with names.
pub fn has_names(reference: &str) -> bool {
    dict(reference).is_some_and(|names| names.values().any(Value::is_string))
}

/// `sentence_bleu` for n-grams of one length only, without smoothing: clipped precision times the brevity penalty.
pub fn bleu(n: usize, prediction: &str, reference: &str) -> f64 {
    let prediction: Vec<&str> = words(said(prediction)).collect();
    let reference: Vec<&str> = words(reference).collect();
    let precision = |n: usize| {
        let (of_prediction, of_reference) = (ngrams(n, &prediction), ngrams(n, &reference));
        let both = |(gram, count): (&&[&str], &usize)| *count.min(of_reference.get(gram).unwrap_or(&0));
        let matched: usize = of_prediction.iter().map(both).sum();
        (matched, of_prediction.values().sum::<usize>().max(1))
    };
    let (matched, all) = precision(n);
    // Without a common word the score is 0. If words but no n-grams are common, NLTK replaces 0 by Python's smallest positive float.
    if precision(1).0 == 0 {
        return 0.0;
    }
    let share = if matched == 0 { f64::MIN_POSITIVE } else { matched as f64 / all as f64 };
    let brevity = match prediction.len() > reference.len() {
        true => 1.0,
        false => (1.0 - reference.len() as f64 / prediction.len() as f64).exp(),
    };
    brevity * share
}

fn ngrams<'a, 'b>(n: usize, words: &'b [&'a str]) -> HashMap<&'b [&'a str], usize> {
    let mut counts = HashMap::new();
    words.windows(n).for_each(|gram| *counts.entry(gram).or_default() += 1);
    counts
}

/// Recall of ROUGE-N of the package `rouge`.
pub fn rouge_n_recall(n: usize, prediction: &str, reference: &str) -> f64 {
    rouge::rouge_n_recall(n, said(prediction), reference)
}

/// Recall of ROUGE-L of the package `rouge`.
pub fn rouge_l_recall(prediction: &str, reference: &str) -> f64 {
    rouge::rouge_l_recall(said(prediction), reference)
}

/// `get_exact_match`: the share of the masked names that the prediction, a Python dictionary, gives exactly.
pub fn cloze_exact(prediction: &str, reference: &str) -> f64 {
    cloze(prediction, reference, |said, right| said == right)
}

/// `get_partial_match`: the share of the masked names of which the prediction gives at least one word.
pub fn cloze_partial(prediction: &str, reference: &str) -> f64 {
    cloze(prediction, reference, |said, right| words(said).any(|word| words(right).any(|other| other == word)))
}

/// The share of a question's names that fit. The published number is a share of all names of a data set.
fn cloze(prediction: &str, reference: &str, fits: impl Fn(&str, &str) -> bool) -> f64 {
    let (Some(said), Some(right)) = (dict(prediction), dict(reference)) else { return 0.0 };
    let fits = |(mask, name): &(&String, &Value)| {
        let said = said.get(mask.as_str()).and_then(Value::as_str);
        said.zip(name.as_str()).is_some_and(|(said, name)| fits(said, name))
    };
    let matched = right.iter().filter(fits).count();
    if right.is_empty() { 0.0 } else { matched as f64 / right.len() as f64 }
}

fn dict(text: &str) -> Option<Map<String, Value>> {
    match python_literal::parse(text)? {
        Value::Object(fields) => Some(fields),
        _ => None,
    }
}

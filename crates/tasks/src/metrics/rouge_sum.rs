//! ROUGE as computed by Google's Python package `rouge_score` 0.1.2 without stemming, the way Hugging Face's `evaluate` uses it.
//!
//! Unlike the package `rouge`, it lower-cases, keeps only ASCII letters and digits, and counts each word as often as it occurs in both
//! texts. For `rougeLsum` each line is a sentence; the other scores ignore sentences.

use std::collections::{BTreeSet, HashMap};

/// The words of each non-empty line, as numbers.
fn lines(text: &str, ids: &mut HashMap<String, u32>) -> Vec<Vec<u32>> {
    let mut words = |line: &str| {
        let lower = line.to_lowercase();
        let words = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let numbers = words.map(|word| {
            let next = ids.len() as u32;
            *ids.entry(word.to_owned()).or_insert(next)
        });
        numbers.collect()
    };
    text.split('\n').filter(|line| !line.is_empty()).map(&mut words).collect()
}

/// The number of occurrences of each word in a text.
fn counts(lines: &[Vec<u32>]) -> HashMap<u32, usize> {
    let mut counts = HashMap::new();
    lines.iter().flatten().for_each(|word| *counts.entry(*word).or_default() += 1);
    counts
}

/// The number of words of a reference, after normalisation.
fn words_in(reference: &str) -> usize {
    lines(reference, &mut HashMap::new()).iter().map(Vec::len).sum()
}

/// Whether a reference has a word.
pub fn compares_words(reference: &str) -> bool {
    words_in(reference) > 0
}

/// Whether a reference has two words, which ROUGE-2 counts.
pub fn compares_pairs(reference: &str) -> bool {
    words_in(reference) > 1
}

/// `rougeN`: F of the bags of n-grams.
pub fn rouge_score_n(n: usize, prediction: &str, reference: &str) -> f64 {
    let mut ids = HashMap::new();
    let [of_prediction, of_reference] = [prediction, reference].map(|text| lines(text, &mut ids).concat());
    let bag = |words: &[u32]| {
        let mut bag: HashMap<Vec<u32>, usize> = HashMap::new();
        words.windows(n).for_each(|gram| *bag.entry(gram.to_vec()).or_default() += 1);
        bag
    };
    let (of_prediction, of_reference) = (bag(&of_prediction), bag(&of_reference));
    let both = |(gram, count): (&Vec<u32>, &usize)| *count.min(of_reference.get(gram).unwrap_or(&0));
    let hits = of_prediction.iter().map(both).sum();
    f_score(hits, of_prediction.values().sum(), of_reference.values().sum())
}

/// `rougeL`: F of the longest common subsequence of the words.
pub fn rouge_score_l(prediction: &str, reference: &str) -> f64 {
    let mut ids = HashMap::new();
    let [prediction, reference] = [prediction, reference].map(|text| lines(text, &mut ids).concat());
    f_score(common_places(&reference, &prediction).len(), prediction.len(), reference.len())
}

/// F for a number of common items of two texts.
fn f_score(hits: usize, of_prediction: usize, of_reference: usize) -> f64 {
    if hits == 0 {
        return 0.0;
    }
    let (precision, recall) = (hits as f64 / of_prediction as f64, hits as f64 / of_reference as f64);
    2.0 * precision * recall / (precision + recall)
}

/// `rougeLsum`: F of the summary-level longest common subsequences.
pub fn rouge_lsum(prediction: &str, reference: &str) -> f64 {
    let mut ids = HashMap::new();
    let (prediction, reference) = (lines(prediction, &mut ids), lines(reference, &mut ids));
    let [of_prediction, of_reference] =
        [&prediction, &reference].map(|lines| lines.iter().map(Vec::len).sum::<usize>());
    if of_prediction == 0 || of_reference == 0 {
        return 0.0;
    }
    let mut left = [counts(&prediction), counts(&reference)];
    let mut hits = 0;
    for line in &reference {
        let union: BTreeSet<usize> = prediction.iter().flat_map(|other| common_places(line, other)).collect();
        for word in union.into_iter().map(|place| line[place]) {
            if left.iter().all(|counts| counts.get(&word).is_some_and(|count| *count > 0)) {
                hits += 1;
                left.iter_mut().for_each(|counts| *counts.entry(word).or_default() -= 1);
            }
        }
    }
    f_score(hits, of_prediction, of_reference)
}

/// Positions in `x` of a longest common subsequence; among several, the one that the package finds.
fn common_places(x: &[u32], y: &[u32]) -> Vec<usize> {
    let width = y.len() + 1;
    let mut lengths = vec![0u32; (x.len() + 1) * width];
    for i in 1..=x.len() {
        for j in 1..=y.len() {
            lengths[i * width + j] = match x[i - 1] == y[j - 1] {
                true => lengths[(i - 1) * width + j - 1] + 1,
                false => lengths[(i - 1) * width + j].max(lengths[i * width + j - 1]),
            };
        }
    }
    let (mut i, mut j, mut found) = (x.len(), y.len(), Vec::new());
    while i > 0 && j > 0 {
        if x[i - 1] == y[j - 1] {
            found.push(i - 1);
            i -= 1;
            j -= 1;
        } else if lengths[i * width + j - 1] > lengths[(i - 1) * width + j] {
            j -= 1;
        } else {
            i -= 1;
        }
    }
    found
}

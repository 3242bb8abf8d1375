//! ROUGE as computed by the Python package `rouge` 1.0.1, which LongBench uses.
//!
//! It differs from other ROUGE packages: a sentence ends at every full stop, n-grams and words are sets (repetitions count once),
//! nothing is lower-cased or stemmed, and a perfect score is 0.999999995.

use super::python::words;
use std::collections::{HashMap, HashSet};

/// F of ROUGE-N over sets of n-grams; 0 if either text has no sentence.
pub fn rouge_n(n: usize, prediction: &str, reference: &str) -> f64 {
    overlap_of_ngrams(n, prediction, reference).map_or(0.0, Overlap::f)
}

/// Recall of ROUGE-N over sets of n-grams; 0 if either text has no sentence.
pub fn rouge_n_recall(n: usize, prediction: &str, reference: &str) -> f64 {
    overlap_of_ngrams(n, prediction, reference).map_or(0.0, Overlap::recall)
}

/// F of the summary-level ROUGE-L. Where the package raises an exception, it is 0, as in LongBench's scorer: for a text without a
/// sentence, and for a recursion too deep for Python's stack.
pub fn rouge_l(prediction: &str, reference: &str) -> f64 {
    overlap_of_lcs(prediction, reference).map_or(0.0, Overlap::f)
}

/// Recall of the summary-level ROUGE-L; 0 where [`rouge_l`] is.
pub fn rouge_l_recall(prediction: &str, reference: &str) -> f64 {
    overlap_of_lcs(prediction, reference).map_or(0.0, Overlap::recall)
}

/// Whether a reference has a word.
pub fn compares_words(reference: &str) -> bool {
    sentences(reference).concat().iter().any(|word| !word.is_empty())
}

/// Whether a reference has two words, which ROUGE-2 counts.
pub fn compares_pairs(reference: &str) -> bool {
    compares_words(reference) && sentences(reference).concat().len() > 1
}

/// The number of common items of two texts, and the number of items of each.
#[derive(Clone, Copy)]
struct Overlap {
    both: usize,
    of_prediction: usize,
    of_reference: usize,
}

impl Overlap {
    fn share(self, whole: usize) -> f64 {
        if whole == 0 { 0.0 } else { self.both as f64 / whole as f64 }
    }

    fn recall(self) -> f64 {
        self.share(self.of_reference)
    }

    /// The package's F in its order of operations, with 1e-8 added to avoid a division by zero.
    fn f(self) -> f64 {
        let (precision, recall) = (self.share(self.of_prediction), self.recall());
        2.0 * ((precision * recall) / (precision + recall + 1e-8))
    }
}

/// The overlap of the sets of n-grams; `None` if either text has no sentence.
fn overlap_of_ngrams(n: usize, prediction: &str, reference: &str) -> Option<Overlap> {
    let (prediction, reference) = (sentences(prediction), sentences(reference));
    if prediction.is_empty() || reference.is_empty() {
        return None;
    }
    let (prediction, reference) = (prediction.concat(), reference.concat());
    let of_prediction: HashSet<&[&str]> = prediction.windows(n).collect();
    let of_reference: HashSet<&[&str]> = reference.windows(n).collect();
    let both = of_prediction.intersection(&of_reference).count();
    Some(Overlap { both, of_prediction: of_prediction.len(), of_reference: of_reference.len() })
}

/// The overlap of the summary-level ROUGE-L; `None` if either text has no sentence, or a recursion is too deep.
fn overlap_of_lcs(prediction: &str, reference: &str) -> Option<Overlap> {
    let (prediction, reference) = (sentences(prediction), sentences(reference));
    if prediction.is_empty() || reference.is_empty() {
        return None;
    }
    let mut ids = HashMap::new();
    let prediction = numbered(&prediction, &mut ids);
    let reference = numbered(&reference, &mut ids);
    let both = union_of_lcs(&prediction, &reference)?.len();
    Some(Overlap { both, of_prediction: distinct(&prediction), of_reference: distinct(&reference) })
}

/// The words of each sentence, where full stops separate sentences. As in the package, pure white space is a sentence with one empty
/// word, and an empty piece is not a sentence.
fn sentences(text: &str) -> Vec<Vec<&str>> {
    text.split('.').filter(|piece| !piece.is_empty()).map(words_or_empty).collect()
}

fn words_or_empty(piece: &str) -> Vec<&str> {
    let found: Vec<&str> = words(piece).collect();
    if found.is_empty() { vec![""] } else { found }
}

/// The words as numbers; equal words have equal numbers.
fn numbered<'a>(sentences: &[Vec<&'a str>], ids: &mut HashMap<&'a str, u32>) -> Vec<Vec<u32>> {
    let mut number = |word: &&'a str| {
        let next = ids.len() as u32;
        *ids.entry(*word).or_insert(next)
    };
    sentences.iter().map(|sentence| sentence.iter().map(&mut number).collect()).collect()
}

fn distinct(sentences: &[Vec<u32>]) -> usize {
    sentences.iter().flatten().collect::<HashSet<_>>().len()
}

/// All words that are in the longest common subsequence of some pair of sentences; `None` if a recursion is too deep.
fn union_of_lcs(prediction: &[Vec<u32>], reference: &[Vec<u32>]) -> Option<HashSet<u32>> {
    let mut union = HashSet::new();
    for of_reference in reference {
        for of_prediction in prediction {
            union.extend(lcs(of_reference, of_prediction)?);
        }
    }
    Some(union)
}

/// The package walks back through its table by recursion, with one stack frame for each step. CPython's limit of 1000 frames leaves
/// 990 steps in LongBench's evaluation; beyond them an exception makes the score 0.
const DEEPEST_WALK: usize = 990;

/// The words of a longest common subsequence; among several, the one that the package finds. `None` if the walk through the table
/// has more than [`DEEPEST_WALK`] steps.
fn lcs(x: &[u32], y: &[u32]) -> Option<Vec<u32>> {
    let table = LcsTable::new(x, y);
    let mut found = Vec::new();
    let (mut i, mut j, mut steps) = (x.len(), y.len(), 0);
    while i > 0 && j > 0 {
        if x[i - 1] == y[j - 1] {
            found.push(x[i - 1]);
            i -= 1;
            j -= 1;
        } else if table.at(i - 1, j) > table.at(i, j - 1) {
            i -= 1;
        } else {
            j -= 1;
        }
        steps += 1;
    }
    (steps <= DEEPEST_WALK).then_some(found)
}

/// Lengths of the longest common subsequences of all pairs of prefixes.
struct LcsTable {
    lengths: Vec<u32>,
    width: usize,
}

impl LcsTable {
    fn new(x: &[u32], y: &[u32]) -> Self {
        let width = y.len() + 1;
        let mut lengths = vec![0; (x.len() + 1) * width];
        for i in 1..=x.len() {
            for j in 1..=y.len() {
                lengths[i * width + j] = if x[i - 1] == y[j - 1] {
                    lengths[(i - 1) * width + j - 1] + 1
                } else {
                    lengths[(i - 1) * width + j].max(lengths[i * width + j - 1])
                };
            }
        }
        Self { lengths, width }
    }

    fn at(&self, i: usize, j: usize) -> u32 {
        self.lengths[i * self.width + j]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_perfect_score_is_just_below_one() {
        assert_eq!(rouge_l("one two. three", "one two. three"), 0.999999995);
        assert_eq!(rouge_n(2, "one two. three", "one two three"), 0.999999995);
    }

    #[test]
    fn texts_without_a_sentence_score_zero() {
        assert_eq!(rouge_l("", "x"), 0.0);
        assert_eq!(rouge_l("...", "x"), 0.0);
        assert_eq!(rouge_n(1, "x", ""), 0.0);
        // White space is a sentence of one empty word.
        assert_eq!(rouge_l(" ", "\n"), 0.999999995);
    }

    #[test]
    fn one_word_has_no_bigram() {
        assert_eq!(rouge_n(2, "word", "word"), 0.0);
    }

    #[test]
    fn sentences_too_long_for_pythons_stack_score_zero() {
        let long = |n: usize| (0..n).map(|i| format!("w{i} ")).collect::<String>();
        assert!(rouge_l(&long(990), &long(990)) > 0.99);
        assert_eq!(rouge_l(&long(991), &long(991)), 0.0);
    }
}

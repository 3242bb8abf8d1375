//! Frequent words extraction (RULER, section 3 "Aggregation"; `scripts/data/synthetic/freq_words_extraction.py`).
//!
//! The prompt is a list of made-up words whose counts follow a zeta distribution: the word of rank k appears int(N · k^−α / ζ(α))
//! times, where the size search varies N. The word of rank 1 is dots, which the prompt says to ignore. Ranks 2, 3 and 4 are the
//! answer. N is always large enough that rank 4 appears more often than rank 5.

use std::collections::HashSet;

use anyhow::Result;
use serde::Deserialize;

use super::base::{Base, Generator, shuffled_order};
use super::fit::{self, Draft, Request, Units};
use super::template::{RulerDefinition, TaskDefinition, substitute};
use crate::TaskOptions;
use crate::seed::Draw;

/// This base task.
pub const BASE: Base = Base { name: "fwe", file: include_str!("../../tasks/ruler/fwe.toml"), make };

/// Streams of random draws, one for each part of an example.
mod part {
    pub const WORDS: u64 = 0;
    pub const ORDER: u64 = 1;
}

#[derive(Debug, Clone, Deserialize)]
struct Shared {
    dots: String,
    letters: usize,
    tokens_per_word: usize,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    alpha: f64,
    answers: usize,
}

struct FrequentWords {
    definition: RulerDefinition,
    shared: Shared,
    parameters: Parameters,
}

fn make(definition: &RulerDefinition, task: &TaskDefinition, _: &TaskOptions) -> Result<Box<dyn Generator>> {
    Ok(Box::new(FrequentWords { definition: definition.clone(), shared: definition.own()?, parameters: task.read()? }))
}

impl Generator for FrequentWords {
    fn source(&self) -> String {
        "generated".to_owned()
    }

    fn generate(&self, request: &Request) -> Result<Draft> {
        let prompt_tokens = request.length.saturating_sub(request.max_new_tokens);
        // Rank 1 is not an answer, and one more rank shows where the answers end.
        let size = (prompt_tokens / self.shared.tokens_per_word).max(self.parameters.answers + 2);
        let units = Units { least: self.fewest_words(), most: 8 * request.length.max(self.fewest_words()), probe: 100 };
        fit::fill(request, units, |attempt, words| {
            let vocabulary = self.vocabulary(size, &mut request.draw(attempt, part::WORDS));
            Ok(self.draft(&vocabulary, words, request, &mut request.draw(attempt, part::ORDER)))
        })
    }
}

impl FrequentWords {
    fn vocabulary(&self, size: usize, draw: &mut Draw) -> Vec<String> {
        let mut taken = HashSet::new();
        let mut words = vec![self.shared.dots.clone()];
        while words.len() < size {
            let word = draw.letters(self.shared.letters, b'a');
            if taken.insert(word.clone()) {
                words.push(word);
            }
        }
        words
    }

    /// The smallest N from which on the last word of the answer always appears more often than the next rank.
    fn fewest_words(&self) -> usize {
        let share = |rank: usize| (rank as f64).powf(-self.parameters.alpha) / zeta(self.parameters.alpha);
        let last = self.parameters.answers + 1;
        (1.0 / (share(last) - share(last + 1))).ceil() as usize
    }

    fn draft(&self, vocabulary: &[String], words: usize, request: &Request, draw: &mut Draw) -> Draft {
        let scale = words as f64 / zeta(self.parameters.alpha);
        let mut list: Vec<&str> = Vec::new();
        for (i, word) in vocabulary.iter().enumerate() {
            let count = (scale * ((i + 1) as f64).powf(-self.parameters.alpha)) as usize;
            list.extend(std::iter::repeat_n(word.as_str(), count));
        }
        let order = shuffled_order(list.len(), request.positions, draw);
        let context = order.into_iter().map(|i| list[i]).collect::<Vec<_>>().join(" ");
        Draft {
            context: substitute(&self.definition.context_template, &[("context", &context)]),
            question: self.definition.question_template.clone(),
            answer_prefix: self.definition.answer_prefix.clone(),
            references: vocabulary[1..=self.parameters.answers].to_vec(),
            note: None,
        }
    }
}

/// Riemann's zeta function for `s` > 1: a sum to 20 with the Euler–Maclaurin remainder, accurate to 1e-12.
fn zeta(s: f64) -> f64 {
    const N: f64 = 20.0;
    let head: f64 = (1..20).map(|k| f64::from(k).powf(-s)).sum();
    let tail = N.powf(1.0 - s) / (s - 1.0) + 0.5 * N.powf(-s);
    let corrections = s / 12.0 * N.powf(-s - 1.0) - s * (s + 1.0) * (s + 2.0) / 720.0 * N.powf(-s - 3.0)
        + s * (s + 1.0) * (s + 2.0) * (s + 3.0) * (s + 4.0) / 30_240.0 * N.powf(-s - 5.0);
    head + tail + corrections
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use crate::Positions;
    use crate::ruler::testing::{Words, example, example_with};

    #[test]
    fn zeta_is_zeta() {
        assert!((zeta(2.0) - std::f64::consts::PI.powi(2) / 6.0).abs() < 1e-12);
        assert!((zeta(3.0) - 1.202_056_903_159_594).abs() < 1e-12);
        assert!((zeta(1.5) - 2.612_375_348_685_488).abs() < 1e-11);
    }

    fn ranked(context: &str) -> Vec<(usize, String)> {
        let list = context.rsplit_once("coded words. ").unwrap().1;
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for word in list.split_whitespace() {
            *counts.entry(word).or_default() += 1;
        }
        let mut ranked: Vec<(usize, String)> = counts.into_iter().map(|(w, n)| (n, w.to_owned())).collect();
        ranked.sort_by(|a, b| b.cmp(a));
        ranked
    }

    #[test]
    fn the_answer_is_what_counting_gives() {
        for length in [512, 1024, 4096, 16_384] {
            let e = example("ruler/fwe", length, 1);
            let ranked = ranked(&e.context);
            assert_eq!(ranked[0].1, "...");
            let top: Vec<&String> = ranked[1..4].iter().map(|(_, w)| w).collect();
            assert_eq!(top, e.references.iter().collect::<Vec<_>>());
            assert!(ranked[3].0 > ranked[4].0, "no tie at {length}");
            assert!(e.references.iter().all(|w| w.len() == 6));
        }
    }

    #[test]
    fn counts_follow_the_zeta_distribution() {
        let ranked = ranked(&example("ruler/fwe", 8192, 0).context);
        let first = ranked[0].0 as f64;
        for (k, (count, _)) in ranked.iter().take(10).enumerate() {
            let expected = first / ((k + 1) as f64).powi(2);
            assert!((*count as f64 - expected).abs() <= 1.0, "rank {}: {count}, not {expected}", k + 1);
        }
    }

    fn places(positions: Positions, index: usize) -> Vec<usize> {
        let e = example_with("ruler/fwe", 2048, index, positions, &Words);
        let list = e.context.rsplit_once("coded words. ").unwrap().1;
        list.split_whitespace().enumerate().filter(|(_, w)| *w == e.references[0]).map(|(i, _)| i).collect()
    }

    #[test]
    fn only_published_positions_repeat() {
        let distinct = |positions| (0..6).map(|i| places(positions, i)).collect::<HashSet<_>>().len();
        assert_eq!(distinct(Positions::Published), 1);
        assert_eq!(distinct(Positions::Varied), 6);
    }
}

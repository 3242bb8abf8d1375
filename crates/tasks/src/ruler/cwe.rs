//! Common words extraction (RULER, section 3 "Aggregation"; `scripts/data/synthetic/common_words_extraction.py`).
//!
//! The prompt is a numbered list in which ten words appear more often than the others, after a solved example with a shorter list.
//! RULER's generator shuffles all lists of equal length the same way. Here every list has its own order, unless the user asks for
//! published positions.

use anyhow::Result;
use serde::Deserialize;

use super::base::{Base, Generator, shuffled_order};
use super::fit::{self, Draft, Request, Units};
use super::template::{RulerDefinition, TaskDefinition, substitute};
use crate::seed::Draw;
use crate::text::words::Words;
use crate::{TaskOptions, assets, digest};

/// This base task.
pub const BASE: Base = Base { name: "cwe", file: include_str!("../../tasks/ruler/cwe.toml"), make };

/// Streams of random draws, one for each part of an example.
mod part {
    pub const WORDS: u64 = 0;
    pub const ORDER: u64 = 1;
    pub const SHOT_WORDS: u64 = 2;
    pub const SHOT_ORDER: u64 = 3;
}

/// An upper bound of the number of words; the size search stops earlier, at the words there are.
const MOST_WORDS: usize = 150_000;

#[derive(Debug, Clone, Deserialize)]
struct Shared {
    item: String,
    shot: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    common: usize,
    short_below: usize,
    list: Times,
    short_list: Times,
    shot_list: ShotList,
    short_shot_list: ShotList,
}

/// How often each word of a list appears.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Times {
    common_times: usize,
    other_times: usize,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShotList {
    words: usize,
    common_times: usize,
    other_times: usize,
}

struct CommonWords {
    definition: RulerDefinition,
    shared: Shared,
    parameters: Parameters,
    words: Words,
}

fn make(definition: &RulerDefinition, task: &TaskDefinition, options: &TaskOptions) -> Result<Box<dyn Generator>> {
    Ok(Box::new(CommonWords {
        definition: definition.clone(),
        shared: definition.own()?,
        parameters: task.read()?,
        words: assets::words(options)?,
    }))
}

impl Generator for CommonWords {
    fn source(&self) -> String {
        format!("words={}", self.words.label())
    }

    fn data(&self) -> String {
        digest::of(&self.words)
    }

    fn generate(&self, request: &Request) -> Result<Draft> {
        let is_short = request.length < self.parameters.short_below;
        let times = if is_short { self.parameters.short_list } else { self.parameters.list };
        let shot = self.shot(request, is_short);
        let units = Units { least: self.parameters.common + 1, most: MOST_WORDS, probe: 60 };
        let mut shuffled: Vec<_> = Vec::new();
        fit::fill(request, units, |attempt, count| {
            if shuffled.len() as u64 <= attempt {
                shuffled.push(self.words.shuffled(request.seed, request.stream(attempt, part::WORDS)));
            }
            let words = shuffled[attempt as usize].first(count);
            let mut draft = self.draft(words, times, request, &mut request.draw(attempt, part::ORDER));
            draft.context.insert_str(0, &shot);
            Ok(draft)
        })
    }
}

impl CommonWords {
    fn shot(&self, request: &Request, is_short: bool) -> String {
        let list = if is_short { self.parameters.short_shot_list } else { self.parameters.shot_list };
        let times = Times { common_times: list.common_times, other_times: list.other_times };
        let mut shuffled = self.words.shuffled(request.seed, request.stream(0, part::SHOT_WORDS));
        let words = shuffled.first(list.words);
        let draft = self.draft(words, times, request, &mut request.draw(0, part::SHOT_ORDER));
        let prompt = format!("{}{}", draft.context, draft.question);
        let answer = self.numbered(draft.references.iter().map(String::as_str));
        substitute(
            &self.shared.shot,
            &[("prompt", &prompt), ("answer_prefix", &draft.answer_prefix), ("answer", &answer)],
        )
    }

    /// A list whose common words are the first of `words`.
    fn draft(&self, words: &[&str], times: Times, request: &Request, draw: &mut Draw) -> Draft {
        let common = &words[..self.parameters.common.min(words.len())];
        let others = &words[common.len()..];
        let mut list = common.repeat(times.common_times);
        list.extend(others.repeat(times.other_times));
        let order = shuffled_order(list.len(), request.positions, draw);
        let context = self.numbered(order.into_iter().map(|i| list[i]));
        Draft {
            context: substitute(&self.definition.context_template, &[("context", &context)]),
            question: self.definition.question_template.clone(),
            answer_prefix: self.definition.answer_prefix.clone(),
            references: common.iter().map(|w| (*w).to_owned()).collect(),
            note: None,
        }
    }

    fn numbered<'a>(&self, words: impl Iterator<Item = &'a str>) -> String {
        let mut out = String::new();
        for (i, word) in words.enumerate() {
            if i > 0 {
                out.push(' ');
            }
            out.push_str(&substitute(&self.shared.item, &[("number", &(i + 1).to_string()), ("word", word)]));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use crate::Positions;
    use crate::ruler::testing::{Words, example, example_with};

    /// The number of occurrences of each word in a numbered list.
    fn counts(list: &str) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (i, pair) in list.split_whitespace().collect::<Vec<_>>().chunks(2).enumerate() {
            assert_eq!(pair[0], format!("{}.", i + 1));
            *counts.entry(pair[1].to_owned()).or_default() += 1;
        }
        counts
    }

    fn lists(context: &str) -> Vec<&str> {
        context
            .split("Memorize the ones that appear most often.\n")
            .skip(1)
            .map(|l| l.lines().next().unwrap())
            .collect()
    }

    #[test]
    fn counts_are_the_published_ones() {
        for (length, shot, main) in [(2048, (20, 3, 1), (6, 1)), (4096, (40, 10, 3), (30, 3))] {
            let e = example("ruler/cwe", length, 0);
            let lists = lists(&e.context);
            assert_eq!(lists.len(), 2);
            let (in_shot, in_main) = (counts(lists[0]), counts(lists[1]));
            assert_eq!(in_shot.len(), shot.0);
            assert_eq!(in_shot.values().filter(|&&n| n == shot.1).count(), 10);
            assert_eq!(in_shot.values().filter(|&&n| n == shot.2).count(), shot.0 - 10);
            assert_eq!(e.references.len(), 10);
            for (word, count) in &in_main {
                let expected = if e.references.contains(word) { main.0 } else { main.1 };
                assert_eq!(*count, expected, "{word}");
            }
        }
    }

    #[test]
    fn the_solved_example_is_solved() {
        let e = example("ruler/cwe", 4096, 2);
        let (shot, main) = e.context.split_once("\nBelow is").unwrap();
        assert!(main.starts_with(" a numbered list of words."));
        let answer = shot.rsplit_once("appear most often in the list are: ").unwrap().1;
        let named: HashSet<String> = counts(answer).into_keys().collect();
        let most: HashSet<String> =
            counts(lists(shot)[0]).into_iter().filter(|(_, n)| *n == 10).map(|(w, _)| w).collect();
        assert_eq!(named, most);
    }

    /// The item numbers of the first common word.
    fn places(positions: Positions, index: usize) -> Vec<usize> {
        let e = example_with("ruler/cwe", 4096, index, positions, &Words);
        let words: Vec<&str> = lists(&e.context)[1].split_whitespace().skip(1).step_by(2).collect();
        words.iter().enumerate().filter(|(_, w)| **w == e.references[0]).map(|(i, _)| i).collect()
    }

    #[test]
    fn only_published_positions_repeat() {
        let distinct = |positions| (0..6).map(|i| places(positions, i)).collect::<HashSet<_>>().len();
        assert_eq!(distinct(Positions::Published), 1, "equal numbers of words, equal order");
        assert_eq!(distinct(Positions::Varied), 6);
    }
}

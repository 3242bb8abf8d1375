//! Rows of the families `cwe` and `fwe`: lists of words, and a question about the most frequent ones.

use std::collections::HashSet;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::draw::{fraction, percent};
use super::needles::made_up;
use super::row::{Class, RowBuilder};
use super::train_file::{ListWording, numbered_item};
use super::wording;
use crate::ruler::definition;
use crate::seed::Draw;
use crate::text::words::{Words, dictionary_words};

/// The most different words of a list; more would make each one rarer.
const MOST_WORDS: usize = 8_000;

/// Writes a numbered list in which some words occur more often than the others, and asks for them.
pub fn write_common(row: &mut RowBuilder, draw: &mut Draw) -> Result<()> {
    let (definition, _) = definition("cwe").context("there is no base task `cwe`")?;
    let common = if percent(65, draw) { 10 } else { draw.between(1, 9) };
    let published = ListWording {
        intro: definition.context_template.clone(),
        ask: format!("{}{}", definition.question_template, definition.answer_prefix),
        item: numbered_item(),
    };
    let text = wording::common(&counted(common), draw).unwrap_or_else(|| for_count(published, common));
    let (before, after) =
        text.intro.split_once("{context}").context("the introduction of the list has no `{context}`")?;
    row.context(before);

    let mut words = WordSource::new(draw);
    let mut taken = HashSet::new();
    let mut fresh = |draw: &mut Draw| loop {
        let word = words.next(draw);
        if taken.insert(word.clone()) {
            return word;
        }
    };
    let mut asked: Vec<String> = (0..common).map(|_| fresh(draw)).collect();
    let answer_room = 8 + row.cost(&numbered(asked.iter().map(String::as_str)));
    let room = row.left().saturating_sub(row.cost(after) + row.cost(&text.ask) + answer_room);
    // Item numbers from 1000 on have one token more, which `past_thousand` counts.
    let costs = |row: &RowBuilder, word: &str| row.cost(&format!(" {}", item(&text.item, 999, word)));
    let other_times = *draw.pick(&[1, 1, 2, 3, 3, 3]);
    let wished =
        if percent(40, draw) && other_times == 3 { 30 } else { draw.between((2 * other_times + 2).max(6), 40) };
    let a_round: usize = asked.iter().map(|w| costs(row, w)).sum();
    // The common words occur more often than the others, and take at most three quarters of the list if that is possible.
    let common_times = wished.min(room * 3 / 4 / a_round.max(1)).max(other_times + 1);
    let mut list: Vec<String> = Vec::new();
    let mut used = 0;
    let past_thousand = |len: usize| len.saturating_sub(999);
    for _ in 0..common_times {
        if used + a_round <= room {
            used += a_round;
            list.extend(asked.iter().cloned());
        }
    }
    for _ in 0..MOST_WORDS {
        let word = fresh(draw);
        let cost = other_times * costs(row, &word);
        if used + cost + past_thousand(list.len() + other_times) > room {
            break;
        }
        used += cost;
        list.extend(std::iter::repeat_n(word, other_times));
    }
    draw.shuffle(&mut list);
    let items: Vec<String> = list.iter().enumerate().map(|(i, word)| item(&text.item, i + 1, word)).collect();
    row.context(&items.join(" "));
    row.context(after);
    draw.shuffle(&mut asked);
    row.ask(&text.ask, &format!(" {}", numbered(asked.iter().map(String::as_str))), Class::Count);
    Ok(())
}

/// The published question, asking for `count` words instead of 10.
fn for_count(text: ListWording, count: usize) -> ListWording {
    let words = counted(count);
    let ask = match count {
        1 => text.ask.replace("What are the 10", "What is the 1").replace(" common words", " common word"),
        _ => text.ask.replace("the 10", &format!("the {count}")),
    };
    let ask = ask.replace("top 10 words that appear", &format!("top {words} that appear"));
    ListWording { ask, ..text }
}

fn counted(count: usize) -> String {
    format!("{count} {}", if count == 1 { "word" } else { "words" })
}

fn item(form: &str, number: usize, word: &str) -> String {
    form.replace("{number}", &number.to_string()).replace("{word}", word)
}

fn numbered<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.enumerate().map(|(i, word)| format!("{}. {word}", i + 1)).collect::<Vec<_>>().join(" ")
}

/// The source of a list's words: the evaluated task, the dictionary, or a generator of made-up words.
enum WordSource {
    Pool(Words),
    Dictionary,
    MadeUp,
}

impl WordSource {
    fn new(draw: &mut Draw) -> Self {
        match draw.below(20) {
            0..=9 => Self::Pool(Words::from_crates()),
            10..=16 => Self::Dictionary,
            _ => Self::MadeUp,
        }
    }

    fn next(&mut self, draw: &mut Draw) -> String {
        match self {
            Self::Pool(words) => draw.pick(words.pool()).clone(),
            Self::Dictionary => (*draw.pick(dictionary_words())).to_owned(),
            Self::MadeUp => made_up(draw),
        }
    }
}

#[derive(Debug, Deserialize)]
struct CodedTextShape {
    dots: String,
    letters: usize,
    tokens_per_word: usize,
}

/// Writes made-up words whose counts follow a zeta distribution, and asks for the three most frequent.
pub fn write_frequent(row: &mut RowBuilder, draw: &mut Draw) -> Result<()> {
    let (definition, file) = definition("fwe").context("there is no base task `fwe`")?;
    let shared: CodedTextShape = toml::from_str(file)?;
    let published = ListWording {
        intro: definition.context_template.clone(),
        ask: format!("{}{}", definition.question_template, definition.answer_prefix),
        item: String::new(),
    };
    let text = wording::frequent(draw).unwrap_or(published);
    let (before, after) =
        text.intro.split_once("{context}").context("the introduction of the list has no `{context}`")?;
    row.context(before);
    let vocabulary = (row.length() / shared.tokens_per_word).max(7);
    let mut taken = HashSet::new();
    let letters = if percent(85, draw) { shared.letters } else { draw.between(4, 8) };
    let words: Vec<String> = std::iter::once(shared.dots)
        .chain(std::iter::repeat_with(|| draw.letters(letters, b'a')).filter(|w| taken.insert(w.clone())))
        .take(vocabulary)
        .collect();
    let costs: Vec<usize> = words.iter().map(|w| row.cost(&format!(" {w}"))).collect();
    let room = row.left().saturating_sub(row.cost(after) + row.cost(&text.ask) + 30);
    let alpha = if percent(40, draw) { 2.0 } else { 1.6 + 1.2 * fraction(draw) };
    let jitter = if percent(60, draw) { 0.0 } else { 0.3 };
    let shares: Vec<f64> =
        (0..words.len()).map(|i| ((i + 1) as f64).powf(-alpha) * (1.0 + jitter * (fraction(draw) - 0.5))).collect();
    let mut counts = largest_counts(&shares, &costs, room);
    // The word of rank 1 is the dots. The answer is the next three words, each of which occurs more often than any later
    // one.
    let mut ranked: Vec<usize> = (1..words.len()).collect();
    ranked.sort_by_key(|&i| std::cmp::Reverse(counts[i]));
    for (rank, &i) in ranked.iter().enumerate().skip(3) {
        let limit = counts[ranked[2]].saturating_sub(1);
        counts[i] = counts[i].min(limit);
        debug_assert!(rank >= 3);
    }
    let mut list: Vec<&str> = Vec::new();
    for (word, count) in words.iter().zip(&counts) {
        list.extend(std::iter::repeat_n(word.as_str(), *count));
    }
    draw.shuffle(&mut list);
    row.context(&list.join(" "));
    row.context(after);
    let answer: Vec<&str> = ranked[..3].iter().map(|&i| words[i].as_str()).collect();
    row.ask(&text.ask, &format!(" {}.", answer.join(", ")), Class::Count);
    Ok(())
}

/// The number of occurrences of each word: `int(N · share)`, for the largest N with which the list fits `room` tokens.
fn largest_counts(shares: &[f64], costs: &[usize], room: usize) -> Vec<usize> {
    let counts = |n: f64| -> Vec<usize> { shares.iter().map(|s| (n * s) as usize).collect() };
    let tokens = |n: f64| counts(n).iter().zip(costs).map(|(count, cost)| count * cost).sum::<usize>();
    let (mut low, mut high) = (0.0, 4.0 * room as f64 + 4.0);
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        if tokens(middle) <= room { low = middle } else { high = middle }
    }
    counts(low)
}

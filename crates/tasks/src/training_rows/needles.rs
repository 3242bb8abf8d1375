//! Rows of the family `niah`: needles in a haystack, with many keys and many questions in one context.

use std::collections::HashSet;

use anyhow::{Context, Result};

use super::books::Books;
use super::draw::{fraction, log_uniform, percent};
use super::row::{Class, RowBuilder, scatter};
use super::train_file::NeedleWording;
use super::wording;
use crate::ruler::definition;
use crate::ruler::{NeedleKind, NeedleTexts, enumerate};
use crate::ruler::{RulerDefinition, substitute};
use crate::seed::Draw;
use crate::text::grammar::Grammar;
use crate::text::words::{Words, dictionary_words};

/// The least tokens of a row with UUIDs, which would leave too little room for anything else in a shorter one.
const UUIDS_FROM: usize = 500;

/// A key made of words. Half are keys of the evaluated task; the others are made of any words, so that the model does not memorise
/// the list of keys.
pub fn word_key(draw: &mut Draw) -> String {
    match draw.below(10) {
        0..=4 => Words::from_crates().key(draw),
        5..=7 => format!("{}-{}", draw.pick(dictionary_words()), draw.pick(dictionary_words())),
        8 => format!("{}-{}", made_up(draw), draw.pick(dictionary_words())),
        _ => (*draw.pick(dictionary_words())).to_owned(),
    }
}

/// A made-up word of two to four syllables.
pub fn made_up(draw: &mut Draw) -> String {
    const FIRST: &[u8] = b"bcdfghjklmnprstvwz";
    const VOWELS: &[u8] = b"aeiou";
    let mut out = String::new();
    for _ in 0..draw.between(2, 4) {
        out.push(char::from(*draw.pick(FIRST)));
        out.push(char::from(*draw.pick(VOWELS)));
        if percent(30, draw) {
            out.push(char::from(*draw.pick(FIRST)));
        }
    }
    out
}

/// The kinds of haystack, as in the tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Haystack {
    Noise,
    Essay,
    Needle,
}

/// Templates of the texts around keys and values. Those that end in `_all` ask for several values.
struct NeedleTemplates {
    intro: String,
    statement: String,
    ask: String,
    prefix: String,
    ask_all: String,
    prefix_all: String,
}

impl NeedleTemplates {
    fn published(definition: &RulerDefinition, shared: &NeedleTexts, asks_one: bool) -> Self {
        let singular = |template: &str| {
            shared.singular.iter().fold(template.to_owned(), |text, (plural, one)| text.replace(plural, one))
        };
        let intro = &definition.context_template;
        Self {
            intro: if asks_one { singular(intro) } else { intro.clone() },
            statement: shared.needle.clone(),
            ask: singular(&definition.question_template),
            prefix: singular(&definition.answer_prefix),
            ask_all: definition.question_template.clone(),
            prefix_all: definition.answer_prefix.clone(),
        }
    }

    fn other(wording: NeedleWording) -> Self {
        let NeedleWording { intro, statement, ask, prefix, ask_all, prefix_all } = wording;
        Self { intro, statement, ask, prefix, ask_all, prefix_all }
    }

    /// Fills a template with the kind of the values and the pairs `more`.
    fn with(&self, template: &str, value: NeedleKind, asks_one: bool, more: &[(&str, &str)]) -> String {
        let plural = value.plural();
        let one = &plural[..plural.len() - 1];
        let named = if asks_one { one } else { plural };
        let mut values = vec![("type_needle_v", named), ("type", plural), ("one", one)];
        values.extend_from_slice(more);
        substitute(template, &values)
    }
}

/// A key with its values.
struct KeyedValues {
    key: String,
    values: Vec<String>,
}

/// What one question asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QuestionStyle {
    Single,
    AllValues,
    SeveralKeys,
}

/// A context of needles under construction.
struct NeedleContext<'a> {
    text: NeedleTemplates,
    value: NeedleKind,
    entries: Vec<KeyedValues>,
    /// Indices of the keys with one value.
    of_one: Vec<usize>,
    /// Indices of the keys with several values.
    of_many: Vec<usize>,
    draw: &'a mut Draw,
}

/// Writes a context with needles, and as many questions as fit.
pub fn write(row: &mut RowBuilder, draw: &mut Draw, books: &Books) -> Result<()> {
    let (definition, file) = definition("niah").context("there is no base task `niah`")?;
    let shared: NeedleTexts = toml::from_str(file)?;
    let length = row.length();
    let haystack = match draw.below(20) {
        0..=3 => Haystack::Noise,
        4..=11 => Haystack::Essay,
        _ => Haystack::Needle,
    };
    let allows_uuids = length >= UUIDS_FROM;
    let key = match draw.below(20) {
        0..=4 if allows_uuids => NeedleKind::Uuids,
        5..=7 => NeedleKind::Numbers,
        _ => NeedleKind::Words,
    };
    let value = match draw.below(20) {
        0..=6 if allows_uuids => NeedleKind::Uuids,
        7..=9 => NeedleKind::Words,
        _ => NeedleKind::Numbers,
    };
    let style = match draw.below(20) {
        0..=7 => QuestionStyle::Single,
        8..=15 => QuestionStyle::AllValues,
        _ => QuestionStyle::SeveralKeys,
    };
    let text = wording::needles(value, draw).map_or_else(
        || NeedleTemplates::published(definition, &shared, style == QuestionStyle::Single),
        NeedleTemplates::other,
    );

    let intro = text.with(&text.intro, value, style == QuestionStyle::Single, &[]);
    let (before, after) =
        intro.split_once("{context}").context("the introduction of the haystack has no `{context}`")?;
    row.context(before);
    let few = haystack != Haystack::Needle && percent(30, draw);
    // With few keys there are few different questions, and the answer to a repeated one can be copied.
    let for_questions = if few { 0 } else { (length as f64 * (0.03 + 0.37 * fraction(draw))) as usize };
    let least = largest_question(row, &text, key, value, style);
    let room = row.left().saturating_sub(row.cost(after) + for_questions.max(least));

    let mut context = NeedleContext { text, value, entries: Vec::new(), of_one: Vec::new(), of_many: Vec::new(), draw };
    let most_keys = match haystack {
        Haystack::Needle => usize::MAX,
        _ if few => context.draw.between(1, 4),
        _ => log_uniform(2.0, (length as f64 / 40.0).max(2.0), context.draw).max(1),
    };
    let plan = ContextPlan { room, haystack, key, most_keys, style };
    let units = context.fill(row, plan, &shared, books);
    let joined = units.join(if haystack == Haystack::Essay { " " } else { "\n" });
    row.context(&joined);
    row.context(after);
    context.ask(row, style, &joined);
    Ok(())
}

/// An upper bound of the tokens of a question of this style with its answer.
fn largest_question(
    row: &RowBuilder,
    text: &NeedleTemplates,
    key: NeedleKind,
    value: NeedleKind,
    style: QuestionStyle,
) -> usize {
    let cost = |kind: NeedleKind| match kind {
        NeedleKind::Words => 9,
        NeedleKind::Numbers => 5,
        NeedleKind::Uuids => 28,
    };
    let (key, value) = (cost(key), cost(value));
    let words = row.cost(&text.ask_all) + row.cost(&text.prefix_all);
    words
        + match style {
            QuestionStyle::Single => 2 * key + value + 4,
            QuestionStyle::AllValues => 2 * key + 5 * value + 4,
            QuestionStyle::SeveralKeys => 3 * (3 * key + value + 4),
        }
}

/// The properties of a context that are drawn before its text.
struct ContextPlan {
    /// Tokens that the context may have.
    room: usize,
    /// What surrounds the needles.
    haystack: Haystack,
    /// The kind of the keys.
    key: NeedleKind,
    /// The most keys.
    most_keys: usize,
    /// The style of the first question.
    style: QuestionStyle,
}

impl NeedleContext<'_> {
    /// Draws keys and values. Returns the lines or sentences of the context, needles included.
    fn fill(&mut self, row: &RowBuilder, plan: ContextPlan, shared: &NeedleTexts, books: &Books) -> Vec<String> {
        let ContextPlan { room, haystack, key, most_keys, style } = plan;
        let separator = if haystack == Haystack::Essay { " " } else { "\n" };
        let for_needles = if haystack == Haystack::Needle { room } else { room * 6 / 10 };
        let mut taken = HashSet::new();
        let mut needles: Vec<String> = Vec::new();
        let mut used = 0;
        while self.entries.len() < most_keys {
            let drawn = key.draw(self.draw, word_key);
            if !taken.insert(drawn.clone()) {
                continue;
            }
            let values: Vec<String> =
                (0..self.number_of_values(style)).map(|_| self.value.draw(self.draw, word_key)).collect();
            let of_key: Vec<String> = values.iter().map(|value| self.needle(&drawn, value)).collect();
            let cost: usize = of_key.iter().map(|n| row.cost(&format!("{separator}{n}"))).sum();
            if used + cost > for_needles && (!self.entries.is_empty() || used + cost > room) {
                break;
            }
            used += cost;
            needles.extend(of_key);
            let list = if values.len() > 1 { &mut self.of_many } else { &mut self.of_one };
            list.push(self.entries.len());
            self.entries.push(KeyedValues { key: drawn, values });
        }
        self.draw.shuffle(&mut needles);
        if haystack == Haystack::Needle {
            return needles;
        }
        let units = haystack_units(
            row,
            room.saturating_sub(used),
            haystack == Haystack::Noise,
            &shared.noise,
            self.draw,
            books,
        );
        scatter(units, needles, self.draw)
    }

    /// The number of values of a key. It is not always the four of the evaluated task, so that the model has to see in the text
    /// when to stop.
    fn number_of_values(&mut self, style: QuestionStyle) -> usize {
        match (style, self.draw.below(10)) {
            (QuestionStyle::AllValues, 0..=3) => 4,
            (QuestionStyle::AllValues, 4..=6) => self.draw.between(2, 8),
            (QuestionStyle::Single | QuestionStyle::SeveralKeys, 0) => self.draw.between(2, 4),
            _ => 1,
        }
    }

    fn needle(&self, key: &str, value: &str) -> String {
        // The published needle names the kind of value in the plural, whatever the question is.
        self.text.with(&self.text.statement, self.value, false, &[("key", key), ("query", key), ("value", value)])
    }

    /// Appends questions until one does not fit, at times fewer: the first in the given style, the others in any style.
    fn ask(&mut self, row: &mut RowBuilder, style: QuestionStyle, context: &str) {
        if self.entries.is_empty() {
            // The row is too short for one needle.
            return;
        }
        let mut asked = HashSet::new();
        let mut repeats = 0;
        for number in 0.. {
            let style = match (number, self.draw.below(20)) {
                (0, _) => style,
                (_, 0..=11) => QuestionStyle::Single,
                (_, 12..=16) => QuestionStyle::AllValues,
                _ => QuestionStyle::SeveralKeys,
            };
            let (question, answer) = self.question(style, context);
            if !asked.insert(question.clone()) {
                repeats += 1;
                if repeats > 20 {
                    return;
                }
                continue;
            }
            let question = if number == 0 { question } else { format!("\n{question}") };
            if !row.ask(&question, &answer, Class::Answer) || percent(2, self.draw) {
                return;
            }
        }
    }

    fn question(&mut self, style: QuestionStyle, context: &str) -> (String, String) {
        let several = style == QuestionStyle::SeveralKeys && self.of_one.len() > 1;
        if several {
            return self.several_keys();
        }
        let wants_many = style == QuestionStyle::AllValues || self.of_one.is_empty();
        if wants_many && !self.of_many.is_empty() {
            let entry = &self.entries[*self.draw.pick(&self.of_many)];
            let mut values = entry.values.clone();
            // In text order, so that each next value, and the end of the list, is determined.
            values.sort_by_key(|value| context.find(&self.needle(&entry.key, value)));
            return (self.words(&entry.key, false), format!(" {}.", values.join(", ")));
        }
        let entry = &self.entries[*self.draw.pick(&self.of_one)];
        (self.words(&entry.key, true), format!(" {}.", entry.values[0]))
    }

    fn several_keys(&mut self) -> (String, String) {
        let most = self.of_one.len().min(4);
        let count = if percent(50, self.draw) { most } else { self.draw.between(2, most) };
        let asked = self.draw.distinct(count, self.of_one.len());
        let entries: Vec<&KeyedValues> = asked.iter().map(|&i| &self.entries[self.of_one[i]]).collect();
        let query = enumerate(&entries.iter().map(|e| e.key.as_str()).collect::<Vec<_>>());
        (self.words(&query, false), several_answers(entries.iter().map(|e| (e.key.as_str(), e.values[0].as_str()))))
    }

    fn words(&self, query: &str, one: bool) -> String {
        let (ask, prefix) = match one {
            true => (&self.text.ask, &self.text.prefix),
            false => (&self.text.ask_all, &self.text.prefix_all),
        };
        self.text.with(&format!("{ask}{prefix}"), self.value, one, &[("key", query), ("query", query)])
    }
}

/// The answer to a question about several keys: each key and its value.
pub fn several_answers<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let all: Vec<String> = pairs.map(|(key, value)| format!("{key}: {value}")).collect();
    format!(" {}.", all.join(", "))
}

/// The units of a haystack that fit `room` tokens: copies of the noise `line`, or sentences of the grammar or of a book.
pub fn haystack_units(
    row: &RowBuilder,
    room: usize,
    noise: bool,
    line: &str,
    draw: &mut Draw,
    books: &Books,
) -> Vec<String> {
    if noise {
        return row.fill(room, "\n", || line.to_owned());
    }
    if !books.is_empty() && percent(45, draw) {
        let mut sentences = books.sentences(room * 5, draw).into_iter();
        let mut runs_out = false;
        let mut units = row.fill(room, " ", || {
            sentences.next().unwrap_or_else(|| {
                runs_out = true;
                Grammar::house().sentence(draw)
            })
        });
        if runs_out && units.is_empty() {
            units.push(Grammar::house().sentence(draw));
        }
        return units;
    }
    row.fill(room, " ", || Grammar::house().sentence(draw))
}

//! Needles in a haystack with many keys and many questions a context.

use std::collections::HashSet;

use anyhow::{Context, Result};

use super::books::Books;
use super::draw::{fraction, log_uniform, percent};
use super::page::{Class, Page, scatter};
use super::train_file::NeedleWording;
use super::wording;
use crate::ruler::definition;
use crate::ruler::{NeedleKind, NeedleTexts, enumerate};
use crate::ruler::{RulerDefinition, substitute};
use crate::seed::Draw;
use crate::text::grammar::Grammar;
use crate::text::words::{Words, dictionary_words};

/// Below so many tokens uuids leave room for too little else.
const UUIDS_FROM: usize = 500;

/// A key of words: often as evaluated, and often of any other words, so that no list is learnt by heart.
pub fn word_key(draw: &mut Draw) -> String {
    match draw.below(10) {
        0..=4 => Words::from_crates().key(draw),
        5..=7 => format!("{}-{}", draw.pick(dictionary_words()), draw.pick(dictionary_words())),
        8 => format!("{}-{}", made_up(draw), draw.pick(dictionary_words())),
        _ => (*draw.pick(dictionary_words())).to_owned(),
    }
}

/// Something that could be a word, of two to four syllables.
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

/// The haystacks, as in the tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Haystack {
    Noise,
    Essay,
    Needle,
}

/// The words around keys and values.
struct Text {
    intro: String,
    statement: String,
    ask: String,
    prefix: String,
    ask_all: String,
    prefix_all: String,
}

impl Text {
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

    /// `template` with the type of the values and what else is known.
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
struct Entry {
    key: String,
    values: Vec<String>,
}

/// What is asked at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Single,
    AllValues,
    SeveralKeys,
}

/// A context of needles under way.
struct Scene<'a> {
    text: Text,
    value: NeedleKind,
    entries: Vec<Entry>,
    of_one: Vec<usize>,
    of_many: Vec<usize>,
    draw: &'a mut Draw,
}

/// Writes a context with needles and as many questions as fit.
pub fn write(page: &mut Page, draw: &mut Draw, books: &Books) -> Result<()> {
    let (definition, file) = definition("niah").context("there is a base task `niah`")?;
    let shared: NeedleTexts = toml::from_str(file)?;
    let length = page.length();
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
        0..=7 => Style::Single,
        8..=15 => Style::AllValues,
        _ => Style::SeveralKeys,
    };
    let text = wording::needles(value, draw)
        .map_or_else(|| Text::published(definition, &shared, style == Style::Single), Text::other);

    let intro = text.with(&text.intro, value, style == Style::Single, &[]);
    let (before, after) = intro.split_once("{context}").context("an introduction has a {context}")?;
    page.context(before);
    let few = haystack != Haystack::Needle && percent(30, draw);
    // Few keys leave little to ask, and a question asked again is only copied.
    let for_questions = if few { 0 } else { (length as f64 * (0.03 + 0.37 * fraction(draw))) as usize };
    let least = least_question(page, &text, key, value, style);
    let room = page.room().saturating_sub(page.cost(after) + for_questions.max(least));

    let mut scene = Scene { text, value, entries: Vec::new(), of_one: Vec::new(), of_many: Vec::new(), draw };
    let most_keys = match haystack {
        Haystack::Needle => usize::MAX,
        _ if few => scene.draw.between(1, 4),
        _ => log_uniform(2.0, (length as f64 / 40.0).max(2.0), scene.draw).max(1),
    };
    let context = ContextPlan { room, haystack, key, most_keys, style };
    let units = scene.fill(page, context, &shared, books);
    let joined = units.join(if haystack == Haystack::Essay { " " } else { "\n" });
    page.context(&joined);
    page.context(after);
    scene.ask(page, style, &joined);
    Ok(())
}

/// Tokens that the largest question of a style may need.
fn least_question(page: &Page, text: &Text, key: NeedleKind, value: NeedleKind, style: Style) -> usize {
    let cost = |kind: NeedleKind| match kind {
        NeedleKind::Words => 9,
        NeedleKind::Numbers => 5,
        NeedleKind::Uuids => 28,
    };
    let (key, value) = (cost(key), cost(value));
    let words = page.cost(&text.ask_all) + page.cost(&text.prefix_all);
    words
        + match style {
            Style::Single => 2 * key + value + 4,
            Style::AllValues => 2 * key + 5 * value + 4,
            Style::SeveralKeys => 3 * (3 * key + value + 4),
        }
}

/// What was drawn of a context before its text.
struct ContextPlan {
    /// Tokens that the context may have.
    room: usize,
    /// What lies between the needles.
    haystack: Haystack,
    /// The kind of the keys.
    key: NeedleKind,
    /// The most keys.
    most_keys: usize,
    /// What is asked.
    style: Style,
}

impl Scene<'_> {
    /// Draws keys and values and returns the lines or sentences of the context with the needles in them.
    fn fill(&mut self, page: &Page, context: ContextPlan, shared: &NeedleTexts, books: &Books) -> Vec<String> {
        let ContextPlan { room, haystack, key, most_keys, style } = context;
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
            let cost: usize = of_key.iter().map(|n| page.cost(&format!("{separator}{n}"))).sum();
            if used + cost > for_needles && (!self.entries.is_empty() || used + cost > room) {
                break;
            }
            used += cost;
            needles.extend(of_key);
            let list = if values.len() > 1 { &mut self.of_many } else { &mut self.of_one };
            list.push(self.entries.len());
            self.entries.push(Entry { key: drawn, values });
        }
        self.draw.shuffle(&mut needles);
        if haystack == Haystack::Needle {
            return needles;
        }
        let units = hay(page, room.saturating_sub(used), haystack == Haystack::Noise, &shared.noise, self.draw, books);
        scatter(units, needles, self.draw)
    }

    /// Mostly four values, as evaluated; else any number, so that when to stop is to be seen in the text.
    fn number_of_values(&mut self, style: Style) -> usize {
        match (style, self.draw.below(10)) {
            (Style::AllValues, 0..=3) => 4,
            (Style::AllValues, 4..=6) => self.draw.between(2, 8),
            (Style::Single | Style::SeveralKeys, 0) => self.draw.between(2, 4),
            _ => 1,
        }
    }

    fn needle(&self, key: &str, value: &str) -> String {
        // The published needle names the type in the plural, whatever is asked.
        self.text.with(&self.text.statement, self.value, false, &[("key", key), ("query", key), ("value", value)])
    }

    /// Appends questions in the asked style first, then in any, until nothing fits.
    fn ask(&mut self, page: &mut Page, style: Style, context: &str) {
        if self.entries.is_empty() {
            // Too short a row for a single needle.
            return;
        }
        let mut asked = HashSet::new();
        let mut repeats = 0;
        for number in 0.. {
            let style = match (number, self.draw.below(20)) {
                (0, _) => style,
                (_, 0..=11) => Style::Single,
                (_, 12..=16) => Style::AllValues,
                _ => Style::SeveralKeys,
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
            if !page.ask(&question, &answer, Class::Answer) || percent(2, self.draw) {
                return;
            }
        }
    }

    fn question(&mut self, style: Style, context: &str) -> (String, String) {
        let several = style == Style::SeveralKeys && self.of_one.len() > 1;
        if several {
            return self.several_keys();
        }
        let wants_many = style == Style::AllValues || self.of_one.is_empty();
        if wants_many && !self.of_many.is_empty() {
            let entry = &self.entries[*self.draw.pick(&self.of_many)];
            let mut values = entry.values.clone();
            // In the order of the text: there is one right next value, and an end.
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
        let entries: Vec<&Entry> = asked.iter().map(|&i| &self.entries[self.of_one[i]]).collect();
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

/// The answer to a question about several keys: each key with its value.
pub fn several_answers<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let all: Vec<String> = pairs.map(|(key, value)| format!("{key}: {value}")).collect();
    format!(" {}.", all.join(", "))
}

/// Lines of noise, or sentences of the grammar or of a book.
pub fn hay(page: &Page, room: usize, noise: bool, line: &str, draw: &mut Draw, books: &Books) -> Vec<String> {
    if noise {
        return page.fill(room, "\n", || line.to_owned());
    }
    if !books.is_empty() && percent(45, draw) {
        let mut sentences = books.sentences(room * 5, draw).into_iter();
        let mut runs_out = false;
        let mut units = page.fill(room, " ", || {
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
    page.fill(room, " ", || Grammar::house().sentence(draw))
}

//! Needle in a haystack, over lengths and depths (Kamradt 2023; templates and sources in `tasks/needle.toml`).
//!
//! The haystack consists of whole sentences of essays. A needle is put into the gap between sentences that is nearest to its depth,
//! counted in bytes. (The published script counts tokens and steps back to the end of a sentence.)

use std::sync::LazyLock;

use anyhow::Result;
use serde::Deserialize;

use super::base::{Base, Member, Options, Scene, Setting};
use crate::metrics::Metric;
use crate::ruler::fit::{Draft, Request, Units};
use crate::ruler::template::substitute;
use crate::seed::Draw;
use crate::text::essays::{Essays, HaystackReader, sentences};
use crate::text::words::Words;
use crate::{TaskOptions, assets, digest};
use spattn_base::error::UsageError;

pub(super) const BASE: Base = Base { name: "needle", members, steps: 11, count: None, takes_file: false, make };

/// Streams of random draws, one for each part of an example.
mod part {
    pub const VALUES: u64 = 0;
    pub const HAYSTACK: u64 = 1;
}

static FILE: LazyLock<File> = LazyLock::new(|| {
    // The file is embedded, so a mistake in it is ours, and the tests find it.
    toml::from_str(include_str!("../../tasks/needle.toml")).expect("tasks/needle.toml is well-formed")
});

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    metric: Metric,
    digits: u32,
    cities: Vec<String>,
    tasks: Vec<Definition>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Definition {
    name: String,
    about: String,
    tokens_to_generate: usize,
    context_template: String,
    question_template: String,
    answer_prefix: String,
    needles: Vec<String>,
    answers: Vec<String>,
}

fn full_name(definition: &Definition) -> String {
    format!("{}/{}", BASE.name, definition.name)
}

fn members() -> Vec<Member> {
    let member = |d: &Definition| Member {
        name: full_name(d),
        about: d.about.clone(),
        metric: FILE.metric,
        max_new_tokens: d.tokens_to_generate,
    };
    FILE.tasks.iter().map(member).collect()
}

fn make(name: &str, _: &Options, options: &TaskOptions) -> Result<Box<dyn Setting>> {
    let definition = FILE.tasks.iter().find(|d| full_name(d) == name);
    let definition = definition.ok_or_else(|| UsageError::unknown("needle", name, FILE.tasks.iter().map(full_name)))?;
    Ok(Box::new(Needles {
        definition: definition.clone(),
        words: assets::words(options)?,
        essays: assets::essays(options)?,
    }))
}

struct Needles {
    definition: Definition,
    words: Words,
    essays: Essays,
}

impl Setting for Needles {
    fn source(&self) -> String {
        format!("essays={} words={}", self.essays.label(), self.words.label())
    }

    fn data(&self) -> String {
        digest::of(&(&self.words, &self.essays))
    }

    fn units(&self, length: usize) -> Units {
        Units { least: 1, most: 4 * length, probe: 250 }
    }

    fn scene<'a>(&'a self, request: &'a Request<'a>, attempt: u64) -> Result<Box<dyn Scene + 'a>> {
        let mut draw = request.draw(attempt, part::VALUES);
        let values = [("key", self.words.key(&mut draw)), ("city", city(&mut draw)), ("number", number(&mut draw))];
        let values: Vec<(&str, &str)> = values.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let filled = |template: &String| substitute(template, &values);
        Ok(Box::new(Haystack {
            context_template: &self.definition.context_template,
            needles: self.definition.needles.iter().map(filled).collect(),
            draft: Draft {
                context: String::new(),
                question: filled(&self.definition.question_template),
                answer_prefix: filled(&self.definition.answer_prefix),
                references: self.definition.answers.iter().map(filled).collect(),
                note: None,
            },
            essay: self.essays.reader(request.seed, request.stream(attempt, part::HAYSTACK)),
        }))
    }

    fn one_context(&self) -> bool {
        false
    }
}

fn city(draw: &mut Draw) -> String {
    draw.pick(&FILE.cities).clone()
}

fn number(draw: &mut Draw) -> String {
    let least = 10usize.pow(FILE.digits - 1);
    draw.between(least, 10 * least - 1).to_string()
}

struct Haystack<'a> {
    context_template: &'a str,
    needles: Vec<String>,
    /// The example without its context.
    draft: Draft,
    essay: HaystackReader,
}

impl Scene for Haystack<'_> {
    fn draft(&mut self, units: usize, depth: f64) -> Draft {
        let text = self.essay.text(units);
        let haystack = place(&whole_sentences(&text), &self.needles, depth);
        Draft { context: substitute(self.context_template, &[("haystack", &haystack)]), ..self.draft.clone() }
    }
}

/// The complete sentences of a text; a last sentence that is cut off is dropped.
fn whole_sentences(text: &str) -> Vec<&str> {
    let mut all = sentences(text);
    let ends = |s: &&str| s.trim_end_matches(['"', '\'', ')', ']', '”', '’']).ends_with(['.', '!', '?']);
    if all.last().is_some_and(|last| !ends(last)) {
        all.pop();
    }
    all
}

/// Joins the sentences with the needles between them: the first needle at `depth` percent, the others evenly spaced from there to
/// the end.
fn place(sentences: &[&str], needles: &[String], depth: f64) -> String {
    let spacing = (100.0 - depth) / needles.len() as f64;
    let places: Vec<usize> =
        (0..needles.len()).map(|i| nearest_gap(sentences, (depth + i as f64 * spacing) / 100.0)).collect();
    let mut out = String::new();
    for (i, sentence) in sentences.iter().enumerate() {
        places.iter().zip(needles).filter(|(at, _)| **at == i).for_each(|(_, needle)| join(&mut out, needle));
        join(&mut out, sentence);
    }
    places.iter().zip(needles).filter(|(at, _)| **at == sentences.len()).for_each(|(_, needle)| join(&mut out, needle));
    out
}

/// The number of sentences before the gap nearest to a share (0..=1) of the text.
fn nearest_gap(sentences: &[&str], share: f64) -> usize {
    let wanted = share * sentences.iter().map(|s| s.len()).sum::<usize>() as f64;
    let mut before = 0;
    for (i, sentence) in sentences.iter().enumerate() {
        if before as f64 + sentence.len() as f64 / 2.0 >= wanted {
            return i;
        }
        before += sentence.len();
    }
    sentences.len()
}

/// Appends a piece after a space, unless a line break already separates them.
fn join(out: &mut String, piece: &str) {
    if !out.is_empty() && !out.ends_with('\n') && !piece.starts_with('\n') {
        out.push(' ');
    }
    out.push_str(piece);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_needle_goes_into_the_nearest_gap() {
        let text = ["Aaaa.", "Bb.", "Cccccccccc."];
        let at = |share| nearest_gap(&text, share);
        assert_eq!([at(0.0), at(0.1), at(0.3), at(0.5), at(0.8), at(1.0)], [0, 0, 1, 2, 3, 3]);
        assert_eq!(nearest_gap(&[], 0.5), 0);
    }

    #[test]
    fn several_needles_are_spread_over_the_rest() {
        let text: Vec<&str> = vec!["Abcd."; 10];
        let needles = ["N1.", "N2."].map(str::to_owned);
        let words: Vec<String> = place(&text, &needles, 20.0).split(' ').map(str::to_owned).collect();
        assert_eq!((words.iter().position(|w| w == "N1."), words.iter().position(|w| w == "N2.")), (Some(2), Some(7)));
        let at_end = place(&text, &needles, 100.0);
        assert!(at_end.ends_with("Abcd. N1. N2."), "{at_end}");
    }

    #[test]
    fn line_breaks_of_a_needle_replace_spaces() {
        assert_eq!(place(&["A b.", "C d."], &["\nN.\n".to_owned()], 50.0), "A b.\nN.\nC d.");
        assert_eq!(whole_sentences("One. Two \"three.\" And"), ["One.", "Two \"three.\""]);
    }
}

//! Needle in a haystack (RULER, section 3 "Retrieval"; `scripts/data/synthetic/niah.py`).
//!
//! Needles are sentences that give a key its value. They lie among repeated noise lines, in essays (between sentences, at depths drawn
//! from 40 percentages) or among other needles. Two things differ from the published script: all keys of an example are different, so
//! there is one right answer; and the order of several needles is drawn for every example, unless the user asks for published positions.

use std::collections::HashSet;

use anyhow::Result;
use serde::Deserialize;

use super::base::{Base, Generator, shuffled_order};
use super::fit::{self, Draft, Request, Units};
use super::template::{RulerDefinition, TaskDefinition, substitute};
use crate::seed::Draw;
use crate::text::essays::{Essays, HaystackReader, sentences};
use crate::text::words::Words;
use crate::{TaskOptions, assets, digest};

/// This base task.
pub const BASE: Base = Base { name: "niah", file: include_str!("../../tasks/ruler/niah.toml"), make };

/// Streams of random draws, one for each part of an example.
mod part {
    pub const NEEDLES: u64 = 0;
    pub const ORDER: u64 = 1;
    pub const PLACES: u64 = 2;
    pub const QUERY: u64 = 3;
    pub const HAYSTACK: u64 = 4;
}

/// The texts that all needle tasks share.
#[derive(Debug, Clone, Deserialize)]
pub struct NeedleTexts {
    /// The sentence that gives a key its value.
    pub needle: String,
    /// One line of the noise haystack.
    pub noise: String,
    /// Replacements `(plural, singular)` in the templates, for questions about one value.
    pub singular: Vec<(String, String)>,
    depths: usize,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    haystack: Haystack,
    key: NeedleKind,
    value: NeedleKind,
    keys: usize,
    values: usize,
    queries: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Haystack {
    Noise,
    Essay,
    Needle,
}

/// The kind of a needle's key or value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NeedleKind {
    Words,
    Numbers,
    Uuids,
}

impl NeedleKind {
    pub fn plural(self) -> &'static str {
        match self {
            Self::Words => "words",
            Self::Numbers => "numbers",
            Self::Uuids => "uuids",
        }
    }

    /// Draws a random key or value; words come from `words`.
    pub fn draw(self, draw: &mut Draw, words: impl FnOnce(&mut Draw) -> String) -> String {
        match self {
            Self::Words => words(draw),
            Self::Numbers => draw.between(1_000_000, 9_999_999).to_string(),
            Self::Uuids => uuid(draw.bits()),
        }
    }
}

struct Niah {
    definition: RulerDefinition,
    shared: NeedleTexts,
    parameters: Parameters,
    words: Words,
    essays: Essays,
}

fn make(definition: &RulerDefinition, task: &TaskDefinition, options: &TaskOptions) -> Result<Box<dyn Generator>> {
    let shared: NeedleTexts = definition.own()?;
    let mut parameters: Parameters = task.read()?;
    parameters.keys = parameters.keys.max(parameters.queries);
    let mut definition = definition.clone();
    if parameters.queries * parameters.values == 1 {
        for template in
            [&mut definition.context_template, &mut definition.question_template, &mut definition.answer_prefix]
        {
            for (plural, singular) in &shared.singular {
                *template = template.replace(plural, singular);
            }
        }
    }
    let essays = if parameters.haystack == Haystack::Essay { assets::essays(options)? } else { Essays::Grammar };
    Ok(Box::new(Niah { definition, shared, parameters, words: assets::words(options)?, essays }))
}

impl Generator for Niah {
    fn source(&self) -> String {
        let essays = match self.parameters.haystack {
            Haystack::Essay => format!("essays={} ", self.essays.label()),
            Haystack::Noise | Haystack::Needle => String::new(),
        };
        format!("{essays}words={}", self.words.label())
    }

    fn data(&self) -> String {
        digest::of(&(&self.words, &self.essays))
    }

    fn generate(&self, request: &Request) -> Result<Draft> {
        let mut attempts: Vec<Attempt> = Vec::new();
        fit::fill(request, self.units(request.length), |attempt, count| {
            if attempts.len() as u64 <= attempt {
                attempts.push(Attempt::new(self, request, attempt));
            }
            let context = attempts[attempt as usize].context(count);
            Ok(attempts[attempt as usize].draft(&context))
        })
    }
}

impl Niah {
    fn units(&self, length: usize) -> Units {
        let needles = self.parameters.keys * self.parameters.values;
        match self.parameters.haystack {
            Haystack::Essay => Units { least: 1, most: 4 * length, probe: 250 },
            Haystack::Noise => Units { least: needles, most: length, probe: 20 },
            Haystack::Needle => Units { least: needles, most: length, probe: 10 },
        }
    }

    /// The type as the question names it: in the singular if it asks for one value.
    fn asked_type(&self) -> &'static str {
        let plural = self.parameters.value.plural();
        if self.parameters.queries * self.parameters.values == 1 { &plural[..plural.len() - 1] } else { plural }
    }
}

/// One attempt at an example; its haystack grows while the size is searched.
struct Attempt<'a> {
    niah: &'a Niah,
    request: &'a Request<'a>,
    number: u64,
    needles: Vec<String>,
    query: String,
    answers: Vec<String>,
    taken: HashSet<String>,
    distractors: Vec<String>,
    distractor_draw: Draw,
    essay: HaystackReader,
}

impl<'a> Attempt<'a> {
    fn new(niah: &'a Niah, request: &'a Request, number: u64) -> Self {
        let mut attempt = Self {
            niah,
            request,
            number,
            needles: Vec::new(),
            query: String::new(),
            answers: Vec::new(),
            taken: HashSet::new(),
            distractors: Vec::new(),
            distractor_draw: request.draw(number, part::HAYSTACK),
            essay: niah.essays.reader(request.seed, request.stream(number, part::HAYSTACK)),
        };
        attempt.draw_needles();
        attempt
    }

    fn draw_needles(&mut self) {
        let parameters = &self.niah.parameters;
        let mut draw = self.request.draw(self.number, part::NEEDLES);
        let (mut keys, mut values, mut needles) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..parameters.keys {
            let key = self.new_key(&mut draw);
            let of_key: Vec<String> =
                (0..parameters.values).map(|_| self.random(parameters.value, &mut draw)).collect();
            needles.extend(of_key.iter().map(|value| self.needle(&key, value)));
            keys.push(key);
            values.push(of_key);
        }
        let mut order_draw = self.request.draw(self.number, part::ORDER);
        let order = shuffled_order(needles.len(), self.request.positions, &mut order_draw);
        self.needles = order.iter().map(|&i| needles[i].clone()).collect();

        let mut query_draw = self.request.draw(self.number, part::QUERY);
        let asked = query_draw.distinct(parameters.queries, parameters.keys);
        self.query = enumerate(&asked.iter().map(|&i| keys[i].as_str()).collect::<Vec<_>>());
        self.answers = asked.iter().flat_map(|&i| values[i].iter().cloned()).collect();
    }

    fn random(&self, kind: NeedleKind, draw: &mut Draw) -> String {
        kind.draw(draw, |draw| self.niah.words.key(draw))
    }

    fn new_key(&mut self, draw: &mut Draw) -> String {
        // A folder's word lists may be tiny, so after some draws a repeated key is accepted.
        const DRAWS: usize = 50;
        let mut key = self.random(self.niah.parameters.key, draw);
        for _ in 0..DRAWS {
            if self.taken.insert(key.clone()) {
                break;
            }
            key = self.random(self.niah.parameters.key, draw);
        }
        key
    }

    fn needle(&self, key: &str, value: &str) -> String {
        let kind = self.niah.parameters.value.plural();
        substitute(&self.niah.shared.needle, &[("type_needle_v", kind), ("key", key), ("value", value)])
    }

    /// The haystack of `count` units with the needles in it.
    fn context(&mut self, count: usize) -> String {
        match self.niah.parameters.haystack {
            Haystack::Essay => {
                let text = self.essay.text(count);
                self.among_sentences(&sentences(&text))
            }
            Haystack::Noise => self.among_lines(vec![self.niah.shared.noise.clone(); count]),
            Haystack::Needle => {
                self.grow_distractors(count);
                self.among_lines(self.distractors[..count].to_vec())
            }
        }
    }

    fn grow_distractors(&mut self, count: usize) {
        let mut draw = self.distractor_draw.clone();
        while self.distractors.len() < count {
            let key = self.new_key(&mut draw);
            let value = self.random(self.niah.parameters.value, &mut draw);
            self.distractors.push(self.needle(&key, &value));
        }
        self.distractor_draw = draw;
    }

    /// Puts the needles at depths drawn from evenly spaced percentages. As in RULER, adjacent needles have two spaces between them, and a
    /// needle at either end of the text leaves an extra space there.
    fn among_sentences(&self, sentences: &[&str]) -> String {
        let steps = self.niah.shared.depths;
        let mut draw = self.request.draw(self.number, part::PLACES);
        let mut places: Vec<usize> = draw
            .distinct(self.needles.len(), steps)
            .into_iter()
            .map(|step| (100.0 * step as f64 / (steps - 1) as f64).round())
            .map(|depth| (sentences.len() as f64 * (depth / 100.0)) as usize)
            .collect();
        places.sort_unstable();
        let mut pieces: Vec<String> = Vec::new();
        let mut from = 0;
        for (place, needle) in places.into_iter().zip(&self.needles) {
            pieces.push(sentences[from..place].join(" "));
            pieces.push(needle.clone());
            from = place;
        }
        pieces.push(sentences[from..].join(" "));
        pieces.join(" ")
    }

    /// Puts the needles before lines drawn without repetition. As in RULER, the first needle goes before the last of these lines.
    fn among_lines(&self, mut lines: Vec<String>) -> String {
        let mut draw = self.request.draw(self.number, part::PLACES);
        let mut places = draw.distinct(self.needles.len(), lines.len());
        places.sort_unstable_by(|a, b| b.cmp(a));
        for (place, needle) in places.into_iter().zip(&self.needles) {
            lines.insert(place, needle.clone());
        }
        lines.join("\n")
    }

    fn draft(&self, context: &str) -> Draft {
        let definition = &self.niah.definition;
        let values = [("type_needle_v", self.niah.asked_type()), ("query", self.query.as_str()), ("context", context)];
        Draft {
            context: substitute(&definition.context_template, &values),
            question: substitute(&definition.question_template, &values),
            answer_prefix: substitute(&definition.answer_prefix, &values),
            references: self.answers.clone(),
            note: None,
        }
    }
}

/// Joins keys as `a`, `a, and b` or `a, b, and c`.
pub fn enumerate(keys: &[&str]) -> String {
    match keys {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{}, and {last}", first.join(", ")),
    }
}

/// A UUID of version 4 (RFC 9562) from 128 random bits.
pub fn uuid(bits: u128) -> String {
    let version = (bits & !(0xf << 76)) | 0x4 << 76;
    let variant = (version & !(0x3 << 62)) | 0x2 << 62;
    let hex = format!("{variant:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Positions;
    use crate::ruler::testing::{Words as WordCounter, example, example_with};

    #[test]
    fn uuids_are_version_four() {
        let u = uuid(u128::MAX);
        assert_eq!(u, "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(uuid(0), "00000000-0000-4000-8000-000000000000");
    }

    #[test]
    fn keys_are_enumerated_as_published() {
        assert_eq!(enumerate(&["a"]), "a");
        assert_eq!(enumerate(&["a", "b"]), "a, and b");
        assert_eq!(enumerate(&["a", "b", "c", "d"]), "a, b, c, and d");
    }

    #[test]
    fn one_needle_reads_in_the_singular() {
        let e = example("ruler/niah_single_1", 1024, 0);
        assert!(e.context.starts_with(
            "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about the number afterwards.\nThe grass"
        ) || e.context.contains("afterwards.\nOne of the special magic numbers for "));
        assert!(e.question.starts_with("What is the special magic number for "));
        assert!(e.question.ends_with(" mentioned in the provided text?"));
        assert!(
            e.answer_prefix.starts_with(" The special magic number for ")
                && e.answer_prefix.ends_with(" mentioned in the provided text is")
        );
        assert!(e.context.contains("One of the special magic numbers for "), "needles keep the plural");
    }

    #[test]
    fn several_needles_read_in_the_plural() {
        for task in ["ruler/niah_multivalue", "ruler/niah_multiquery"] {
            let e = example(task, 1024, 3);
            assert!(e.context.starts_with("Some special magic numbers are hidden within the following text."));
            assert!(e.question.starts_with("What are all the special magic numbers for "));
            assert!(e.answer_prefix.ends_with(" mentioned in the provided text are"));
            assert_eq!(e.references.len(), 4);
        }
    }

    #[test]
    fn each_answer_stands_in_exactly_one_needle() {
        for task in [
            "niah_single_1",
            "niah_single_2",
            "niah_single_3",
            "niah_multikey_1",
            "niah_multikey_2",
            "niah_multikey_3",
            "niah_multivalue",
            "niah_multiquery",
        ] {
            let e = example(&format!("ruler/{task}"), 2048, 1);
            for answer in &e.references {
                assert_eq!(e.context.matches(answer.as_str()).count(), 1, "{task}");
                let (before, _) = e.context.split_once(answer.as_str()).unwrap();
                let start = before.rfind("One of the special magic ").unwrap();
                let key = before[start..].split(" for ").nth(1).unwrap().split(" is: ").next().unwrap();
                assert!(e.question.contains(key), "{task}: {key} is asked for");
            }
        }
    }

    #[test]
    fn keys_differ_within_an_example() {
        let e = example("ruler/niah_multikey_2", 8192, 0);
        let keys: Vec<&str> =
            e.context.lines().filter_map(|l| l.split(" for ").nth(1)?.split(" is: ").next()).collect();
        let distinct: HashSet<&&str> = keys.iter().collect();
        assert!(keys.len() > 100 && distinct.len() == keys.len());
    }

    fn depth(task: &str, index: usize) -> f64 {
        let e = example(task, 2048, index);
        e.context.find(e.references[0].as_str()).unwrap() as f64 / e.context.len() as f64
    }

    #[test]
    fn depths_are_spread_evenly_over_examples() {
        for task in ["ruler/niah_single_1", "ruler/niah_single_2", "ruler/niah_multikey_2"] {
            let mut quarters = [0usize; 4];
            for index in 0..120 {
                quarters[((depth(task, index) * 4.0) as usize).min(3)] += 1;
            }
            assert!(quarters.iter().all(|&n| (15..=48).contains(&n)), "{task}: {quarters:?}");
        }
    }

    #[test]
    fn published_positions_fix_the_order_of_needles() {
        // The positions of the four values of one key, in the order in which the values were drawn.
        let ranks = |positions, index| {
            let e = example_with("ruler/niah_multivalue", 2048, index, positions, &WordCounter);
            let at: Vec<usize> = e.references.iter().map(|r| e.context.find(r.as_str()).unwrap()).collect();
            let mut order: Vec<usize> = (0..4).collect();
            order.sort_by_key(|&i| at[i]);
            order
        };
        let varied: HashSet<Vec<usize>> = (0..12).map(|i| ranks(Positions::Varied, i)).collect();
        let published: HashSet<Vec<usize>> = (0..12).map(|i| ranks(Positions::Published, i)).collect();
        assert!(varied.len() > 4);
        assert_eq!(published.len(), 1);
    }
}

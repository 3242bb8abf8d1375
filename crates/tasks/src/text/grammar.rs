//! A grammar that generates any number of essay-like sentences about made-up persons and places.
//!
//! Patterns and words are data (`tasks/text/grammar.toml`). The sentences are the haystack if the user gives no essays, and the
//! filler of synthetic documents. They have no meaning, and hardly ever repeat.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::seed::Draw;

static GRAMMAR: LazyLock<Grammar> = LazyLock::new(Grammar::load);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GrammarFile {
    patterns: Vec<String>,
    nouns: String,
    adjectives: String,
    verbs: String,
    jobs: String,
    sports: String,
    first_names: String,
    beginnings: String,
    middles: String,
    surname_ends: String,
    place_ends: String,
    country_ends: String,
    company_ends: String,
}

/// Sentence patterns and the words that fill them.
#[derive(Debug)]
pub struct Grammar {
    patterns: Vec<Vec<Piece>>,
    nouns: Mixed,
    adjectives: Mixed,
    verbs: Vec<String>,
    jobs: Vec<String>,
    sports: Vec<String>,
    first_names: Vec<String>,
    beginnings: Vec<String>,
    middles: Vec<String>,
    surname_ends: Vec<String>,
    place_ends: Vec<String>,
    country_ends: Vec<String>,
    company_ends: Vec<String>,
}

/// The words of the definition file, and those of the crate `petname`, which are many but of few kinds (animals, praise).
#[derive(Debug)]
struct Mixed {
    own: Vec<String>,
    more: Vec<String>,
}

impl Mixed {
    fn new(own: &str, more: &[&str]) -> Self {
        Self { own: list(own), more: more.iter().map(|w| (*w).to_owned()).collect() }
    }

    /// A random word; one in three comes from the crate.
    fn pick(&self, draw: &mut Draw) -> &str {
        let words = if draw.below(3) == 0 { &self.more } else { &self.own };
        draw.pick::<String>(words)
    }
}

#[derive(Debug)]
enum Piece {
    Text(String),
    Noun,
    Adjective,
    ANoun,
    AnAdjective,
    Verb,
    Person,
    Place,
    Year,
    Count,
}

impl Grammar {
    /// The embedded grammar.
    pub fn house() -> &'static Self {
        &GRAMMAR
    }

    fn load() -> Self {
        // The file is embedded, so a mistake in it is ours, and the tests below find it.
        let file: GrammarFile = toml::from_str(include_str!("../../tasks/text/grammar.toml"))
            .expect("tasks/text/grammar.toml is well-formed");
        let petnames = petname::Petnames::medium();
        Self {
            patterns: file.patterns.iter().map(|p| parse(p)).collect(),
            nouns: Mixed::new(&file.nouns, &petnames.nouns),
            adjectives: Mixed::new(&file.adjectives, &petnames.adjectives),
            verbs: list(&file.verbs),
            jobs: list(&file.jobs),
            sports: list(&file.sports),
            first_names: list(&file.first_names),
            beginnings: list(&file.beginnings),
            middles: list(&file.middles),
            surname_ends: list(&file.surname_ends),
            place_ends: list(&file.place_ends),
            country_ends: list(&file.country_ends),
            company_ends: list(&file.company_ends),
        }
    }

    /// One sentence, without a space before or after it.
    pub fn sentence(&self, draw: &mut Draw) -> String {
        let mut out = String::new();
        for piece in draw.pick(&self.patterns) {
            let word = match piece {
                Piece::Text(text) => text.clone(),
                Piece::Noun => self.nouns.pick(draw).to_owned(),
                Piece::Adjective => self.adjectives.pick(draw).to_owned(),
                Piece::ANoun => with_article(self.nouns.pick(draw)),
                Piece::AnAdjective => with_article(self.adjectives.pick(draw)),
                Piece::Verb => draw.pick(&self.verbs).clone(),
                Piece::Person => self.person(draw),
                Piece::Place => self.place(draw),
                Piece::Year => self.year(draw),
                Piece::Count => draw.between(2, 999).to_string(),
            };
            out.push_str(&word);
        }
        out
    }

    /// A first name and a made-up surname.
    pub fn person(&self, draw: &mut Draw) -> String {
        let first = draw.pick(&self.first_names).clone();
        format!("{first} {}", self.made_up(&self.surname_ends, draw))
    }

    /// A made-up town.
    pub fn place(&self, draw: &mut Draw) -> String {
        self.made_up(&self.place_ends, draw)
    }

    /// A made-up country.
    pub fn country(&self, draw: &mut Draw) -> String {
        self.made_up(&self.country_ends, draw)
    }

    /// A made-up company.
    pub fn company(&self, draw: &mut Draw) -> String {
        self.made_up(&self.company_ends, draw)
    }

    /// A noun such as `lantern`.
    pub fn noun(&self, draw: &mut Draw) -> String {
        self.nouns.pick(draw).to_owned()
    }

    /// A year of the last three centuries.
    pub fn year(&self, draw: &mut Draw) -> String {
        draw.between(1700, 2020).to_string()
    }

    /// An occupation.
    pub fn job(&self, draw: &mut Draw) -> String {
        draw.pick(&self.jobs).clone()
    }

    /// A sport.
    pub fn sport(&self, draw: &mut Draw) -> String {
        draw.pick(&self.sports).clone()
    }

    fn made_up(&self, ends: &[String], draw: &mut Draw) -> String {
        let beginning = draw.pick(&self.beginnings).clone();
        let middle = draw.pick(&self.middles).clone();
        format!("{beginning}{middle}{}", draw.pick(ends))
    }
}

fn parse(pattern: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, tail) = after.split_once('}').expect("every brace of a pattern is closed");
        if !before.is_empty() {
            pieces.push(Piece::Text(before.to_owned()));
        }
        pieces.push(placeholder(name));
        rest = tail;
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.to_owned()));
    }
    pieces
}

fn placeholder(name: &str) -> Piece {
    match name {
        "noun" => Piece::Noun,
        "adj" => Piece::Adjective,
        "a noun" => Piece::ANoun,
        "a adj" => Piece::AnAdjective,
        "verb" => Piece::Verb,
        "person" => Piece::Person,
        "place" => Piece::Place,
        "year" => Piece::Year,
        "count" => Piece::Count,
        other => panic!("tasks/text/grammar.toml: unknown placeholder {{{other}}}"),
    }
}

fn with_article(word: &str) -> String {
    let article = if word.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {word}")
}

fn list(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn there_are_many_patterns() {
        assert!(Grammar::house().patterns.len() >= 60);
    }

    #[test]
    fn sentences_are_whole_and_hardly_repeat() {
        let mut draw = Draw::new(5, 0);
        let sentences: Vec<String> = (0..5_000).map(|_| Grammar::house().sentence(&mut draw)).collect();
        for s in &sentences {
            assert!(s.ends_with(['.', '?']), "{s}");
            assert!(s.starts_with(|c: char| c.is_uppercase()), "{s}");
            assert!(!s.contains(['{', '}', '\n']) && !s.contains("  "), "{s}");
        }
        let distinct: HashSet<&String> = sentences.iter().collect();
        assert!(distinct.len() > 4_950, "{} of 5000", distinct.len());
    }

    #[test]
    fn the_same_seed_gives_the_same_text() {
        let text = |seed| Grammar::house().sentence(&mut Draw::new(seed, 2));
        assert_eq!(text(1), text(1));
    }
}

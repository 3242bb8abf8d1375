//! Training rows for the built-in model, from the same templates, words and units as the tasks.
//!
//! A row is one context with as many questions as fit, each answered and ended by the end token, so
//! that every token read is used many times. A fixed share of the rows is *shaped*: examples exactly as
//! the tasks make them, solved examples included. The rest is wider than the tasks: other numbers of
//! keys and values, other words, other wordings (`tasks/train.toml`), and runs of real text.
//!
//! Seeds: a row's seed hashes the domain [`SEED_DOMAIN`] where an evaluated example hashes its task's
//! name. No task's name starts with it, so no row is drawn from the seed of any evaluated example.

mod books;
mod documents;
mod lists;
mod needles;
mod page;
mod records;
mod shaped;
mod tokens;
mod variables;
mod wording;

use std::sync::LazyLock;

use anyhow::Result;
use serde::Deserialize;

pub use self::books::Books;
use self::page::Page;
pub use self::page::{Class, Encoder, Row, Segment};
pub use self::tokens::PieceEncoder;
use super::seed::{Draw, example_seed};
use spattn_base::error::UsageError;

/// What the seeds of training rows hash in place of a task's name, or in front of it.
pub const SEED_DOMAIN: &str = "train/";

/// The family of the books' tails, which no other family uses.
pub const HELD_OUT: &str = "held_out";

static FILE: LazyLock<TrainFile> = LazyLock::new(|| {
    // Embedded: a mistake in it is ours, and the tests find it.
    toml::from_str(include_str!("../../tasks/train.toml")).expect("tasks/train.toml is well-formed")
});

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrainFile {
    family: Vec<FamilyShare>,
    shaped: ShapedShares,
    wording: Wording,
    kv: RecordText,
    passkey: RecordText,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FamilyShare {
    name: String,
    share: usize,
    from: usize,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShapedShares {
    share: usize,
    from: usize,
    tasks: Vec<(String, usize)>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wording {
    percent: usize,
    drawn: usize,
    words: Vec<String>,
    items: Vec<String>,
    frames: Vec<String>,
    needles: Vec<NeedleWording>,
    chains: Vec<ChainWording>,
    common: Vec<ListWording>,
    frequent: Vec<ListWording>,
    documents: Vec<DocumentWording>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct NeedleWording {
    intro: String,
    statement: String,
    ask: String,
    prefix: String,
    ask_all: String,
    prefix_all: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChainWording {
    intro: String,
    first: String,
    link: String,
    ask: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListWording {
    intro: String,
    ask: String,
    /// One word of the list.
    #[serde(default = "numbered_item")]
    item: String,
}

fn numbered_item() -> String {
    "{number}. {word}".to_owned()
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct DocumentWording {
    intro: String,
    ask: String,
    prefix: String,
    /// A document and its number.
    #[serde(default = "numbered_document")]
    frame: String,
}

fn numbered_document() -> String {
    "Document {i}:\n{document}".to_owned()
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordText {
    context: String,
    #[serde(default)]
    statement: String,
    ask: String,
}

/// Makes rows of one mix of families.
pub struct Trainer {
    books: Books,
    shaped: shaped::Shaped,
    names: Vec<String>,
}

impl Trainer {
    /// A source of rows with real text from `books`, which may be empty.
    ///
    /// # Errors
    /// If an embedded definition is malformed.
    pub fn new(books: Books) -> Result<Self> {
        let shaped = shaped::Shaped::new(&FILE.shaped.tasks)?;
        let mut names: Vec<String> = FILE.family.iter().map(|f| f.name.clone()).collect();
        names.extend(FILE.shaped.tasks.iter().map(|(name, _)| name.clone()));
        names.push(HELD_OUT.to_owned());
        Ok(Self { books, shaped, names })
    }

    /// Every family by its number in [`Row::family`].
    pub fn families(&self) -> &[String] {
        &self.names
    }

    /// Row number `index` of a length: at most `length` tokens, always the same for the same seed,
    /// length, index and tokenizer. `family` restricts what it may be.
    ///
    /// # Errors
    /// An unknown family, or one that cannot make rows of this length.
    pub fn row(
        &self,
        seed: u64,
        index: usize,
        length: usize,
        family: Option<&str>,
        encoder: &dyn Encoder,
    ) -> Result<Row> {
        let of_row = example_seed(seed, SEED_DOMAIN, length, index);
        let name = match family {
            Some(name) => name,
            None => self.choose(length, &mut Draw::new(of_row, 0)),
        };
        let number = self
            .names
            .iter()
            .position(|n| n == name)
            .ok_or_else(|| UsageError::unknown("family of training rows", name, &self.names))?;
        let mut page = Page::new(encoder, length, number);
        let draw = &mut Draw::new(of_row, 1);
        match name {
            "niah" => needles::write(&mut page, draw, &self.books)?,
            "vt" => variables::write(&mut page, draw, &self.books)?,
            "cwe" => lists::write_common(&mut page, draw)?,
            "fwe" => lists::write_frequent(&mut page, draw)?,
            "qa" => documents::write(&mut page, draw)?,
            "kv" => records::write_pairs(&mut page, draw),
            "passkey" => records::write_passkey(&mut page, draw, &self.books),
            "copy" => records::write_copy(&mut page, draw),
            "books" => self.books.write(&mut page, draw, false),
            HELD_OUT => self.books.write(&mut page, draw, true),
            task => self.shaped.write(task, &mut page, seed, index)?,
        }
        Ok(page.finish())
    }

    /// A family for a row of `length`; without books there are no rows of text.
    fn choose(&self, length: usize, draw: &mut Draw) -> &str {
        let has_books = !self.books.is_empty();
        let fits = |f: &&FamilyShare| f.from <= length && (f.name != "books" || has_books);
        let shaped = if length >= FILE.shaped.from { FILE.shaped.share } else { 0 };
        let total = shaped + FILE.family.iter().filter(fits).map(|f| f.share).sum::<usize>();
        let mut left = draw.below(total);
        for family in FILE.family.iter().filter(fits) {
            if left < family.share {
                return &family.name;
            }
            left -= family.share;
        }
        let mut left = draw.below(FILE.shaped.tasks.iter().map(|(_, share)| share).sum());
        for (name, share) in &FILE.shaped.tasks {
            if left < *share {
                return name;
            }
            left -= share;
        }
        HELD_OUT
    }
}

/// A number in 0..1.
fn fraction(draw: &mut Draw) -> f64 {
    const STEPS: usize = 1 << 30;
    draw.below(STEPS) as f64 / STEPS as f64
}

/// A number between `low` and `high`, every factor equally likely.
fn log_uniform(low: f64, high: f64, draw: &mut Draw) -> usize {
    (low * (high / low).max(1.0).powf(fraction(draw))) as usize
}

/// Whether something happens that happens `percent` times in a hundred.
fn percent(percent: usize, draw: &mut Draw) -> bool {
    draw.below(100) < percent
}

#[cfg(test)]
mod tests;

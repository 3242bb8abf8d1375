//! Rows that the built-in model is trained on, from the templates, words and texts of the tasks.
//!
//! A row is one context with as many questions as fit. Each question is followed by its answer and the end token, so one context
//! trains the model many times. A fixed share of the rows is *shaped*: they are examples exactly as the tasks make them, with
//! their answers. All others vary more than the tasks do: in the number of keys and values, in words, in wordings
//! (`training_rows.toml`), and some are running text.
//!
//! Seeds: where the seed of an evaluated example hashes the task's name, that of a row hashes [`TRAINING_DOMAIN`]. No task's name
//! begins with it, so no row shares its seed with an evaluated example.
//!
//! The tool `train-rows` (`crates/train-rows`) writes rows for `scripts/train_builtin/`. Calibrations that are trained read them too.
//! No evaluation does.

mod books;
mod documents;
mod draw;
mod lists;
mod needles;
mod page;
mod records;
mod shaped;
mod train_file;
mod variables;
mod wording;

use anyhow::Result;

pub use self::books::Books;
use self::page::Page;
pub use self::page::{Class, Encoder, Segment, TrainingRow};
use self::train_file::{FILE, FamilyShare};
use crate::seed::{Draw, TRAINING_DOMAIN, example_seed};
use spattn_base::error::UsageError;

/// The family of the books' tails, which no other family uses.
pub const HELD_OUT: &str = "held_out";

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

    /// Every family by its number in [`TrainingRow::family`].
    pub fn families(&self) -> &[String] {
        &self.names
    }

    /// TrainingRow number `index` of a length: at most `length` tokens, always the same for the same seed,
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
    ) -> Result<TrainingRow> {
        let of_row = example_seed(seed, TRAINING_DOMAIN, length, index);
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

#[cfg(test)]
mod tests;

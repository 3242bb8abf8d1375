//! Rows for training the built-in model, made from the tasks' templates, words and texts.
//!
//! A row is one context with as many questions as fit. Each question is followed by its answer and the end token, so the model learns
//! from one context many times. A fixed share of the rows are examples exactly as the tasks make them, with their answers
//! (`task_examples.rs`). The others vary more than the tasks do: in the number of keys and values, in words, and in wordings
//! (`training_rows.toml`). Some rows are running text.
//!
//! The seed of an evaluated example hashes the name of its task; the seed of a row hashes [`TRAINING_DOMAIN`] instead. No task's name
//! begins with that, so no row shares its seed with an evaluated example.
//!
//! The tool `train-rows` (`crates/train-rows`) writes rows for `scripts/train_builtin/`. Trained calibrations also learn from these rows;
//! evaluations never use them.

mod books;
mod documents;
mod draw;
mod lists;
mod needles;
mod records;
mod row;
mod task_examples;
mod train_file;
mod variables;
mod wording;

use anyhow::Result;

pub use self::books::Books;
use self::row::RowBuilder;
pub use self::row::{Class, Encoder, Segment, TrainingRow};
use self::train_file::{FILE, FamilyShare};
use crate::seed::{Draw, TRAINING_DOMAIN, example_seed};
use spattn_base::error::UsageError;

/// The family of held-out text: the end of each book, which no other family uses.
pub const HELD_OUT: &str = "held_out";

/// Makes training rows of one family or of a mix of families.
pub struct Trainer {
    books: Books,
    task_examples: task_examples::TaskExamples,
    names: Vec<String>,
}

impl Trainer {
    /// Takes running text from `books`. If that is empty, no row is running text.
    ///
    /// # Errors
    /// If an embedded definition of a task is malformed.
    pub fn new(books: Books) -> Result<Self> {
        let task_examples = task_examples::TaskExamples::new(&FILE.task_examples.tasks)?;
        let mut names: Vec<String> = FILE.family.iter().map(|f| f.name.clone()).collect();
        names.extend(FILE.task_examples.tasks.iter().map(|(name, _)| name.clone()));
        names.push(HELD_OUT.to_owned());
        Ok(Self { books, task_examples, names })
    }

    /// Names of all families, in the order of [`TrainingRow::family`].
    pub fn families(&self) -> &[String] {
        &self.names
    }

    /// The row numbered `index` among those of at most `length` tokens, which depends only on the arguments. Without a `family`, one is
    /// drawn.
    ///
    /// # Errors
    /// A [`UsageError`] if the family is unknown; another error if the family cannot make rows of this length.
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
        let mut row = RowBuilder::new(encoder, length, number);
        let draw = &mut Draw::new(of_row, 1);
        match name {
            "niah" => needles::write(&mut row, draw, &self.books)?,
            "vt" => variables::write(&mut row, draw, &self.books)?,
            "cwe" => lists::write_common(&mut row, draw)?,
            "fwe" => lists::write_frequent(&mut row, draw)?,
            "qa" => documents::write(&mut row, draw)?,
            "kv" => records::write_pairs(&mut row, draw),
            "passkey" => records::write_passkey(&mut row, draw, &self.books),
            "copy" => records::write_copy(&mut row, draw),
            "books" => self.books.write(&mut row, draw, false),
            HELD_OUT => self.books.write(&mut row, draw, true),
            task => self.task_examples.write(task, &mut row, seed, index)?,
        }
        Ok(row.finish())
    }

    /// Draws a family for a row of `length` tokens by the shares in `training_rows.toml`. Running text needs books.
    fn choose(&self, length: usize, draw: &mut Draw) -> &str {
        let has_books = !self.books.is_empty();
        let fits = |f: &&FamilyShare| f.from <= length && (f.name != "books" || has_books);
        let of_tasks = if length >= FILE.task_examples.from { FILE.task_examples.share } else { 0 };
        let total = of_tasks + FILE.family.iter().filter(fits).map(|f| f.share).sum::<usize>();
        let mut left = draw.below(total);
        for family in FILE.family.iter().filter(fits) {
            if left < family.share {
                return &family.name;
            }
            left -= family.share;
        }
        let mut left = draw.below(FILE.task_examples.tasks.iter().map(|(_, share)| share).sum());
        for (name, share) in &FILE.task_examples.tasks {
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

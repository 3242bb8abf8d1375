//! Running text from books, for rows of text and as sentences of haystacks.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;

use super::draw::percent;
use super::row::{Class, RowBuilder};
use crate::seed::Draw;
use crate::text::{self, essays};
use spattn_base::error::UsageError;

/// Thousandths at the end of each book that are held out to measure the loss on.
const HELD_OUT_PER_MILLE: usize = 10;
/// Upper bound of the mean number of bytes of a token.
const BYTES_A_TOKEN: usize = 6;

/// Texts of books.
#[derive(Debug, Clone, Default)]
pub struct Books {
    texts: Arc<[String]>,
    /// For each text, the total bytes of the texts up to and including it, without held-out parts.
    ends: Arc<[usize]>,
}

impl Books {
    /// Reads every `*.txt` of a folder, in the order of their names.
    ///
    /// # Errors
    /// If the folder or a file cannot be read, or no file has enough text.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let texts =
            essays::text_files(folder)?.iter().map(|path| text::read(path)).collect::<Result<Vec<_>, UsageError>>()?;
        let books = Self::new(texts);
        if books.is_empty() {
            return Err(UsageError::new(format!("there is no text in {}", folder.display()))
                .hint("a folder of books holds *.txt files of running text")
                .into());
        }
        Ok(books)
    }

    /// Keeps the texts of at least 1,000 bytes.
    pub fn new(texts: Vec<String>) -> Self {
        let texts: Vec<String> = texts.into_iter().filter(|t| t.len() >= 1000).collect();
        let mut total = 0;
        let ends = texts
            .iter()
            .map(|t| {
                total += kept(t);
                total
            })
            .collect();
        Self { texts: texts.into(), ends }
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Fills a row with running text, in one of three cases without the line breaks within paragraphs. With `held_out`, the text
    /// comes from the held-out parts and is always unchanged.
    pub fn write(&self, row: &mut RowBuilder, draw: &mut Draw, held_out: bool) {
        let unwrap = percent(33, draw) && !held_out;
        let text = self.run((row.left() + 8) * BYTES_A_TOKEN, draw, held_out);
        let text = if unwrap { unwrapped(text) } else { text.to_owned() };
        // Appends as many whole words as fit.
        let mut words = text.as_str();
        while !words.is_empty() && row.left() > 0 {
            let mut end = (row.left() * 3).min(words.len());
            while !words.is_char_boundary(end) {
                end += 1;
            }
            let cut = if end == words.len() { end } else { end + words[end..].find([' ', '\n']).unwrap_or(0) };
            if row.cost(&words[..cut]) > row.left() {
                break;
            }
            row.push(&words[..cut], Class::Text, false);
            words = &words[cut..];
        }
    }

    /// About `bytes` bytes of a book, starting at the beginning of a line.
    fn run(&self, bytes: usize, draw: &mut Draw, held_out: bool) -> &str {
        let Some(total) = self.ends.last() else { return "" };
        let at = draw.below(*total);
        let book = self.ends.partition_point(|end| *end <= at);
        let text = self.texts[book].as_str();
        let kept = kept(text);
        let (low, high) = if held_out { (kept, text.len()) } else { (0, kept) };
        let latest = high.saturating_sub(bytes).max(low);
        let start = line_start(text, low + draw.below(latest - low + 1)).max(low);
        let mut end = (start + bytes).min(high);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        &text[start.min(end)..end]
    }

    /// Consecutive whole sentences of about `bytes` bytes; fewer if the book ends.
    pub fn sentences(&self, bytes: usize, draw: &mut Draw) -> Vec<String> {
        let text: Vec<&str> = self.run(bytes, draw, false).split_whitespace().collect();
        let text = text.join(" ");
        let all = essays::sentences(&text);
        // The first and the last sentence are probably incomplete.
        let whole = if all.len() > 4 { &all[1..all.len() - 1] } else { &all[..] };
        whole.iter().map(|s| (*s).to_owned()).collect()
    }
}

/// Number of bytes of `text` that are not held out.
fn kept(text: &str) -> usize {
    let mut at = text.len() - text.len() * HELD_OUT_PER_MILLE / 1000;
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// The start of the line of byte `at`.
fn line_start(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    text[..at].rfind('\n').map_or(0, |i| i + 1)
}

/// Replaces the line breaks within paragraphs by spaces.
fn unwrapped(text: &str) -> String {
    let paragraphs: Vec<String> = text.split("\n\n").map(|p| p.replace('\n', " ")).collect();
    paragraphs.join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_lose_their_line_breaks_and_nothing_else() {
        assert_eq!(unwrapped("a\nb\n\nc d\ne"), "a b\n\nc d e");
    }

    #[test]
    fn tails_are_held_out() {
        let lines = |word: &str, n: usize| format!("{word} words in a line.\n").repeat(n);
        let text = lines("Kept", 990) + &lines("Held", 10);
        let books = Books::new(vec![text]);
        for i in 0..50 {
            let draw = &mut Draw::new(i, 0);
            assert!(!books.run(400, draw, false).contains("Held"));
            assert!(!books.run(100, draw, true).contains("Kept"));
            assert!(books.sentences(600, draw).iter().all(|s| s == "Kept words in a line."));
        }
    }
}

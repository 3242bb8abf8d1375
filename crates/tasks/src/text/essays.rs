//! Essays as haystacks: text from a folder or from the grammar in `grammar.rs`, as words and as sentences.
//!
//! As in RULER, a haystack of n words consists of the first n words of the text, which starts again when it ends. Needles are put
//! between its sentences. RULER finds sentences with NLTK's trained punkt model. [`sentences`] uses a short rule instead, which
//! differs at some abbreviations; it only decides between which sentences a needle may be put.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::grammar::Grammar;
use crate::seed::Draw;
use spattn_base::error::{UsageError, in_plain_words};

/// Where essay text comes from.
#[derive(Debug, Clone, Hash)]
pub enum Essays {
    /// Text of the grammar in `grammar.rs`, different for every example.
    Grammar,
    /// The words of a file or folder.
    Text {
        /// File or folder name, for the record.
        label: String,
        /// The whitespace-separated words in order.
        words: Arc<[String]>,
        /// Where in these words a haystack starts.
        start: Start,
    },
}

/// Where the haystack of an example starts in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Start {
    /// At the beginning of the text, the same for every example, as in RULER.
    Beginning,
    /// At a random sentence, drawn for every example.
    Anywhere,
}

#[derive(Deserialize)]
struct EssayFile {
    text: String,
}

impl Essays {
    /// Reads RULER's `PaulGrahamEssays.json` (`{"text": ...}`).
    ///
    /// # Errors
    /// If the file cannot be read, is not JSON of this form, or has no words.
    pub fn from_json(path: &Path) -> Result<Self> {
        let json = super::read(path)?;
        let file: EssayFile = serde_json::from_str(&json).map_err(|e| {
            UsageError::new(format!(
                "{}:{}: not an essay file: {}",
                path.display(),
                e.line(),
                in_plain_words(&e.to_string())
            ))
            .hint("expected one JSON object with the field `text`")
        })?;
        Self::from_text(path, &file.text, Start::Beginning)
    }

    /// Reads every `*.txt` of a folder in file-name order.
    ///
    /// # Errors
    /// If the folder or a file cannot be read, or no file has words.
    pub fn from_folder(folder: &Path, start: Start) -> Result<Self> {
        let mut text = String::new();
        for path in text_files(folder)? {
            text.push_str(&super::read(&path)?);
            text.push('\n');
        }
        Self::from_text(folder, &text, start)
    }

    fn from_text(path: &Path, text: &str, start: Start) -> Result<Self> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        if words.is_empty() {
            return Err(UsageError::new(format!("there is no text in {}", path.display())).into());
        }
        let label = path.file_name().map_or_else(|| "essays".to_owned(), |n| n.to_string_lossy().into_owned());
        Ok(Self::Text { label, words: words.into(), start })
    }

    /// `grammar`, or the name of the file or folder, for the record.
    pub fn label(&self) -> &str {
        match self {
            Self::Grammar => "grammar",
            Self::Text { label, .. } => label,
        }
    }

    /// A reader of a haystack from its beginning. `seed` and `stream` determine the grammar's text, and where in a text it starts, if
    /// it may start anywhere.
    pub fn reader(&self, seed: u64, stream: u64) -> HaystackReader {
        match self {
            Self::Grammar => HaystackReader::Growing { words: Vec::new(), draw: Box::new(Draw::new(seed, stream)) },
            Self::Text { words, start, .. } => {
                let from = match start {
                    Start::Beginning => 0,
                    Start::Anywhere => sentence_start(words, Draw::new(seed, stream).below(words.len())),
                };
                HaystackReader::Fixed { words: Arc::clone(words), from }
            }
        }
    }
}

/// The `*.txt` files of `folder` in file-name order.
///
/// # Errors
/// If the folder cannot be read.
pub fn text_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)
        .map_err(|e| UsageError::new(format!("cannot read the folder {}: {e}", folder.display())))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read the folder {}", folder.display()))?.path();
        if path.extension().is_some_and(|e| e == "txt") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Reads the first words of a haystack.
#[derive(Debug)]
pub enum HaystackReader {
    /// The words of a file, which start again when they run out.
    Fixed {
        /// All words.
        words: Arc<[String]>,
        /// The index of the first word to read.
        from: usize,
    },
    /// The words of the grammar, made on demand.
    Growing {
        /// Words made so far.
        words: Vec<String>,
        /// The draws for further sentences.
        draw: Box<Draw>,
    },
}

impl HaystackReader {
    /// The first `count` words, joined by single spaces.
    pub fn text(&mut self, count: usize) -> String {
        match self {
            Self::Fixed { words, from } => join(words[*from..].iter().chain(&words[..*from]).cycle().take(count)),
            Self::Growing { words, draw } => {
                while words.len() < count {
                    let sentence = Grammar::house().sentence(draw);
                    words.extend(sentence.split(' ').map(str::to_owned));
                }
                join(words[..count].iter())
            }
        }
    }
}

fn join<'a>(words: impl Iterator<Item = &'a String>) -> String {
    let mut out = String::new();
    for word in words {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}

/// The first word from `at` on that begins a sentence; `at` if there is none.
fn sentence_start(words: &[String], at: usize) -> usize {
    let begins = |i: &usize| *i == 0 || ends_sentence(&words[*i - 1]) && may_start_sentence(&words[*i]);
    (at..words.len()).find(begins).unwrap_or(at)
}

/// Splits a text whose words are separated by single spaces into sentences, without the spaces between them.
///
/// A sentence ends after a word that ends in `.`, `!` or `?` (closing quotes and brackets may follow),
/// unless the word is a known abbreviation or an initial, or the next word starts in lower case.
pub fn sentences(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut start = 0;
    for (space, _) in text.match_indices(' ') {
        let word = text[start..space].rsplit(' ').next().unwrap_or_default();
        if space > start && ends_sentence(word) && may_start_sentence(&text[space + 1..]) {
            out.push(&text[start..space]);
            start = space + 1;
        }
    }
    if start < text.len() {
        out.push(&text[start..]);
    }
    out
}

fn ends_sentence(word: &str) -> bool {
    const ABBREVIATIONS: [&str; 22] = [
        "mr", "mrs", "ms", "dr", "prof", "st", "jr", "sr", "vs", "etc", "e.g", "i.e", "cf", "no", "vol", "fig", "inc",
        "co", "ltd", "u.s", "a.m", "p.m",
    ];
    let word = word.trim_end_matches(['"', '\'', ')', ']', '”', '’']);
    if word.ends_with(['!', '?']) {
        return true;
    }
    let Some(stem) = word.strip_suffix('.') else {
        return false;
    };
    let stem = stem.trim_start_matches(['"', '\'', '(', '[', '“', '‘']).to_lowercase();
    let is_initial = stem.chars().count() == 1 && stem != "i" && stem.chars().all(char::is_alphabetic);
    !is_initial && !ABBREVIATIONS.contains(&stem.as_str())
}

fn may_start_sentence(rest: &str) -> bool {
    rest.chars().find(|c| c.is_alphanumeric()).is_none_or(|c| !c.is_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sentences_end_where_a_reader_would_end_them() {
        let text = "I met Dr. Who. He said \"Go home.\" Then J. P. left, e.g. by bus! Why? it rained. 12 of us stayed";
        assert_eq!(
            sentences(text),
            [
                "I met Dr. Who.",
                "He said \"Go home.\"",
                "Then J. P. left, e.g. by bus!",
                "Why? it rained.",
                "12 of us stayed"
            ]
        );
        assert!(sentences("").is_empty());
    }

    #[test]
    fn a_text_shorter_than_asked_for_starts_again() {
        let essays = Essays::from_text(Path::new("x.txt"), "a  b\n\tc", Start::Beginning).unwrap();
        assert_eq!(essays.reader(0, 0).text(7), "a b c a b c a");
        assert_eq!(essays.label(), "x.txt");
    }

    #[test]
    fn books_are_read_from_sentences_anywhere() {
        let text: String = (0..50).map(|i| format!("Sentence number {i} ends. ")).collect();
        let books = Essays::from_text(Path::new("books"), &text, Start::Anywhere).unwrap();
        let starts: std::collections::HashSet<String> = (0..20).map(|seed| books.reader(seed, 0).text(4)).collect();
        assert!(starts.len() > 10, "{starts:?}");
        assert!(starts.iter().all(|s| s.starts_with("Sentence number ") && s.ends_with(" ends.")), "{starts:?}");
        let mut reader = books.reader(3, 0);
        let whole = reader.text(200);
        assert!(whole.starts_with(&reader.text(30)), "longer text begins with shorter text");
        assert_eq!(whole.matches("Sentence number 0 ends.").count(), 1, "it goes on at the beginning");
    }

    #[test]
    fn grammar_text_is_a_prefix_of_longer_text() {
        let mut reader = Essays::Grammar.reader(9, 4);
        let short = reader.text(100);
        assert!(reader.text(5_000).starts_with(&short));
        assert_eq!(reader.text(100), short);
        assert_eq!(short.split(' ').count(), 100);
    }

    #[test]
    fn folders_are_read_in_name_order_and_errors_name_the_place() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("b.txt"), "two").unwrap();
        std::fs::write(dir.path().join("a.txt"), "one").unwrap();
        std::fs::write(dir.path().join("c.md"), "no").unwrap();
        assert_eq!(Essays::from_folder(dir.path(), Start::Beginning).unwrap().reader(0, 0).text(2), "one two");
        let bad = dir.path().join("e.json");
        std::fs::write(&bad, "{\n\"text\": 3}").unwrap();
        assert!(Essays::from_json(&bad).unwrap_err().to_string().contains("e.json:2"));
        assert!(Essays::from_folder(&dir.path().join("none"), Start::Beginning).is_err());
        std::fs::write(dir.path().join("d.txt"), b"three \xff").unwrap();
        let error = Essays::from_folder(dir.path(), Start::Beginning).unwrap_err().to_string();
        assert!(error.contains("d.txt:1: not UTF-8"), "what the model reads is what the file says: {error}");
    }

    proptest! {
        #[test]
        fn cutting_loses_nothing(text in "([a-zA-Z0-9.!?\"']{1,6} ){0,40}[a-z.]{1,5}") {
            prop_assert_eq!(sentences(&text).join(" "), text);
        }
    }
}

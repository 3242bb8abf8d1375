//! Counters and shorthands for the tests of the base tasks.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;

use crate::{Example, Positions, PromptCounter, Task, TaskOptions, resolve};

/// Counts one token for each whitespace-separated word, and five for the prompt's frame.
pub struct Words;

impl PromptCounter for Words {
    fn prompt_tokens(&self, user: &str, answer_prefix: &str) -> Result<usize> {
        Ok(5 + user.split_whitespace().count() + answer_prefix.split_whitespace().count())
    }
}

/// Counts one token for every three bytes of a word, to imitate a tokenizer with subwords, and 20 for
/// the frame of a chat template.
pub struct Subwords;

impl PromptCounter for Subwords {
    fn prompt_tokens(&self, user: &str, answer_prefix: &str) -> Result<usize> {
        let count = |text: &str| text.split_whitespace().map(|word| word.len().div_ceil(3)).sum::<usize>();
        Ok(20 + count(user) + count(answer_prefix))
    }
}

/// Counts like `Subwords`, and counts its own calls.
#[derive(Default)]
pub struct Asked(pub AtomicUsize);

impl PromptCounter for Asked {
    fn prompt_tokens(&self, user: &str, answer_prefix: &str) -> Result<usize> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Subwords.prompt_tokens(user, answer_prefix)
    }
}

/// A real tokenizer, from a `tokenizer.json`.
pub struct Real(Mutex<tokenizers::Tokenizer>);

impl Real {
    /// The tokenizer of the built-in model or of a checkpoint beside the repository, if there is one.
    pub fn find() -> Option<Self> {
        let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let places = ["models/builtin/tokenizer.json", "../shared/models/builtin-probe/tokenizer.json"];
        let file = places.iter().map(|p| root.join(p)).find(|p| p.is_file());
        if file.is_none() {
            eprintln!("skipped: no {}", places.join(" and no "));
        }
        Some(Self(Mutex::new(tokenizers::Tokenizer::from_file(file?).unwrap())))
    }
}

impl PromptCounter for Real {
    fn prompt_tokens(&self, user: &str, answer_prefix: &str) -> Result<usize> {
        let text = format!("{user}{answer_prefix}");
        Ok(self.0.lock().unwrap().encode(text, true).map_err(|e| anyhow::anyhow!("{e}"))?.len())
    }
}

/// The data folder beside the repository, if there is one.
pub fn shared_data() -> Option<PathBuf> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data"));
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: no folder {}", folder.display());
    None
}

/// The single task that `name` stands for.
pub fn task(name: &str, options: &TaskOptions) -> Box<dyn Task> {
    resolve(&[name.to_owned()], options).unwrap().remove(0)
}

/// An example of `name` with the offline defaults, measured in words.
pub fn example(name: &str, length: usize, index: usize) -> Example {
    example_with(name, length, index, Positions::Varied, &Words)
}

/// An example of `name` with the offline defaults.
pub fn example_with(
    name: &str,
    length: usize,
    index: usize,
    positions: Positions,
    counter: &dyn PromptCounter,
) -> Example {
    let options = TaskOptions { positions, ..TaskOptions::default() };
    task(name, &options).example(length, index, 42, counter).unwrap()
}

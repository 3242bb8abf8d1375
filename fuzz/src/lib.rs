//! What the fuzz targets share: folders in memory, substitutes for a tokenizer, and checks of error messages.

use std::fs;
use std::path::{Path, PathBuf};

use spattn::error::UsageError;
use spattn::tasks::likelihood::{TextEncoder, TextTokens};
use spattn::tasks::{PromptCounter, Task, TaskOptions, resolve};
use tempfile::TempDir;

/// The table of readers that the tests of the tasks use.
#[path = "../../crates/tasks/src/fuzz/readers.rs"]
pub mod readers;

/// Separates the files of an input that consists of several.
pub const NEXT_FILE: &[u8] = b"\n=====\n";

/// A folder that is removed when dropped, in memory if the system has such a place.
pub fn folder() -> TempDir {
    let shared = Path::new("/dev/shm");
    let made = if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() };
    made.expect("a temporary folder can be made")
}

/// Writes a file below a folder, and creates the folders of its path.
pub fn put(folder: &Path, file: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(file);
    fs::create_dir_all(path.parent().expect("a file lies in a folder")).expect("folders can be made");
    fs::write(&path, bytes).expect("a file can be written");
    path
}

/// The files of an input, separated by [`NEXT_FILE`].
pub fn files(mut input: &[u8]) -> Vec<&[u8]> {
    let mut files = Vec::new();
    while let Some(at) = input.windows(NEXT_FILE.len()).position(|w| w == NEXT_FILE) {
        files.push(&input[..at]);
        input = &input[at + NEXT_FILE.len()..];
    }
    files.push(input);
    files
}

/// The first byte as an index below `choices`, and the rest.
pub fn choice(input: &[u8], choices: usize) -> Option<(usize, &[u8])> {
    let (first, rest) = input.split_first()?;
    Some((usize::from(*first) % choices, rest))
}

/// Checks that a message is not empty.
pub fn check_line(line: &str) {
    assert!(!line.trim().is_empty(), "an error without a word");
}

/// Checks the messages of a user's error.
pub fn check_usage(error: &UsageError) {
    check_line(&error.what);
    error.hint.as_deref().into_iter().for_each(check_line);
}

/// Checks the messages of any error.
pub fn check_error(error: &anyhow::Error) {
    match error.downcast_ref::<UsageError>() {
        Some(usage) => check_usage(usage),
        None => error.chain().for_each(|e| check_line(&e.to_string())),
    }
}

/// The value of a result; an error is checked.
pub fn read<T>(result: anyhow::Result<T>) -> Option<T> {
    result.map_err(|error| check_error(&error)).ok()
}

/// The value of a result with a user's error; an error is checked.
pub fn read_usage<T>(result: Result<T, UsageError>) -> Option<T> {
    result.map_err(|error| check_usage(&error)).ok()
}

/// Counts one token for each word.
pub struct Words;

impl PromptCounter for Words {
    fn prompt_tokens(&self, user: &str, answer_prefix: &str) -> anyhow::Result<usize> {
        Ok(5 + user.split_whitespace().count() + answer_prefix.split_whitespace().count())
    }
}

/// Counts one token for each character, and one in front.
pub struct Characters;

impl TextEncoder for Characters {
    fn encode(&self, text: &str) -> anyhow::Result<TextTokens> {
        let ends = text.char_indices().map(|(at, c)| at + c.len_utf8()).collect();
        Ok(TextTokens { ids: text.chars().map(u32::from).collect(), ends })
    }

    fn front(&self) -> &[u32] {
        &[1]
    }
}

/// Opens a task on the files of a folder (`{}` in its name stands for the folder), and makes its first examples.
pub fn open_task(name: &str, folder: &Path, skip_bad: bool) {
    let options = TaskOptions { data: Some(folder.to_owned()), skip_bad, ..TaskOptions::default() };
    let name = name.replace("{}", &folder.display().to_string());
    for task in read(resolve(&[name], &options)).unwrap_or_default() {
        make_first(&*task);
    }
}

/// Makes the first examples or passages of a task, and scores answers to them.
pub fn make_first(task: &dyn Task) {
    task.notes().iter().for_each(|note| check_line(note));
    let count = task.available().unwrap_or(1).min(2);
    if let Some(passages) = task.likelihood() {
        (0..count).for_each(|index| drop(read(passages.passage(64, index, 7, &Characters))));
        return;
    }
    for index in 0..count * task.cells().min(3) {
        let Some(example) = read(task.example(256, index, 7, &Words)) else { continue };
        for prediction in ["", "x 1\n7", &example.references.join(" ")] {
            let score = example.score(prediction);
            assert!((0.0..=1.0).contains(&score), "{score} of {prediction:?}");
        }
    }
}

//! Where tasks find their text: a data folder given by the user, or the offline defaults.
//!
//! A file in the folder is used if it is there, and examples name it in their `source`; otherwise the default is used. Nothing
//! is downloaded here: [`data_files`](super::data_files) lists the files that a download may need.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::TaskOptions;
use super::rows::{self, RowSource};
use super::text::essays::{self, Essays, Start};
use super::text::words::Words;
use spattn_base::error::UsageError;

pub(super) const ESSAY_FILES: &[&str] = &["ruler_assets/PaulGrahamEssays.json", "PaulGrahamEssays.json"];
pub(super) const ESSAY_TEXTS: &[&str] = &["paul_graham_essays/*.txt", "essays/*.txt"];
pub(super) const BOOK_TEXTS: &[&str] = &["books/*.txt"];
pub(super) const WORD_LISTS: &[&str] = &["wordlists/*.txt"];
pub(super) const SQUAD: &[&str] = &["squad/dev-v2.0.json", "dev-v2.0.json"];
pub(super) const HOTPOTQA_FILES: &[&str] = &["hotpotqa/*.json"];
pub(super) const HOTPOTQA: &[&str] = &["hotpot_dev_distractor_v1.json"];
/// Where LongBench's files may be in a data folder, and the archive in which they are published.
const LONGBENCH_FOLDERS: &[&str] = &["longbench/", "LongBench/", "data/", ""];
pub(super) const LONGBENCH_FILES: &[&str] = &["longbench/*.jsonl", "LongBench/*.jsonl", "data/*.jsonl"];
pub(super) const LONGBENCH_ARCHIVES: &[&str] = &["data.zip", "longbench/data.zip", "LongBench/data.zip"];

/// Where WikiText-2's test text is looked for.
pub const WIKITEXT2: &[&str] = &[
    "wikitext2/wiki.test.raw",
    "wikitext-2-raw/wiki.test.raw",
    "wiki.test.raw",
    "wikitext2/wikitext-2-raw-v1.zip/wikitext-2-raw/wiki.test.raw",
    "wikitext-2-raw-v1.zip/wikitext-2-raw/wiki.test.raw",
];
/// Where PG-19's test books are looked for.
pub const PG19: &[&str] = &["pg19/test/*.txt", "pg19/*.txt"];

/// Essays from `ruler_assets/PaulGrahamEssays.json`, `PaulGrahamEssays.json`, `paul_graham_essays/*.txt` or `essays/*.txt`,
/// which every example reads from the beginning, as RULER does; else from `books/*.txt`, where each example starts at another
/// place; else sentences of the grammar in `text/grammar.rs`.
///
/// # Errors
/// If an asset exists but cannot be read.
pub fn essays(options: &TaskOptions) -> Result<Essays> {
    if let Some(file) = first_file(options, ESSAY_FILES) {
        return Essays::from_json(&file);
    }
    for (patterns, start) in [(ESSAY_TEXTS, Start::Beginning), (BOOK_TEXTS, Start::Anywhere)] {
        for folder in folders(options, patterns) {
            if !essays::text_files(&folder)?.is_empty() {
                return Essays::from_folder(&folder, start);
            }
        }
    }
    Ok(Essays::Grammar)
}

/// Word lists from `wordlists/`; else those of the crates `random_word` and `petname`.
///
/// # Errors
/// If the folder exists, but a list is missing, unreadable or empty.
pub fn words(options: &TaskOptions) -> Result<Words> {
    match folders(options, WORD_LISTS).first() {
        Some(folder) => Words::from_folder(folder),
        None => Ok(Words::from_crates()),
    }
}

/// SQuAD's `squad/dev-v2.0.json` or `dev-v2.0.json`.
pub fn squad(options: &TaskOptions) -> Option<PathBuf> {
    first_file(options, SQUAD)
}

/// The first of `hotpotqa/*.json` by name, or `hotpot_dev_distractor_v1.json`.
pub fn hotpotqa(options: &TaskOptions) -> Option<PathBuf> {
    let in_folder = folders(options, HOTPOTQA_FILES).into_iter().find_map(|folder| {
        let mut files: Vec<PathBuf> = std::fs::read_dir(folder).ok()?.filter_map(|e| Some(e.ok()?.path())).collect();
        files.sort();
        files.into_iter().find(|f| f.extension().is_some_and(|e| e == "json"))
    });
    in_folder.or_else(|| first_file(options, HOTPOTQA))
}

/// The LongBench file with this name (`hotpotqa.jsonl`), in `longbench/`, `LongBench/`, `data/` or the folder itself, or in an
/// archive `data.zip` there.
///
/// # Errors
/// If an archive exists but cannot be read.
pub fn longbench(options: &TaskOptions, file: &str) -> Result<Option<RowSource>, UsageError> {
    let Some(data) = &options.data else { return Ok(None) };
    let plain = LONGBENCH_FOLDERS.iter().map(|folder| data.join(format!("{folder}{file}"))).find(|path| path.is_file());
    let member = format!("data/{file}");
    if let Some(path) = plain {
        return Ok(Some(RowSource::File(path)));
    }
    let zipped = |archive: &str| RowSource::zipped(&data.join(archive), &member).transpose();
    LONGBENCH_ARCHIVES.iter().find_map(|archive| zipped(archive)).transpose()
}

/// WikiText-2's test text.
pub fn wikitext2(options: &TaskOptions) -> Option<PathBuf> {
    first_file(options, WIKITEXT2)
}

/// The folder of PG-19's test books.
pub fn pg19(options: &TaskOptions) -> Option<PathBuf> {
    folders(options, PG19).into_iter().next()
}

/// The files of the data folder that match a path with at most one `*` in its last part, sorted by name. A path into an existing
/// archive (`data.zip/rows.jsonl`) matches only itself.
pub(super) fn matching(options: &TaskOptions, pattern: &str) -> Vec<PathBuf> {
    let Some(data) = &options.data else {
        return Vec::new();
    };
    let path = data.join(pattern);
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str())) else {
        return Vec::new();
    };
    let Some((start, end)) = name.split_once('*') else {
        return if may_be_read(&path) { vec![path] } else { Vec::new() };
    };
    let fits = |name: &str| name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end);
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> =
        entries.filter(|e| e.file_name().to_str().is_some_and(fits)).map(|e| e.path()).collect();
    files.sort();
    files
}

fn first_file(options: &TaskOptions, names: &[&str]) -> Option<PathBuf> {
    let data = options.data.as_ref()?;
    names.iter().map(|name| data.join(name)).find(|path| may_be_read(path))
}

/// Whether a path names a file or leads into an archive. If the archive lacks the file or is damaged, reading it is an error
/// later; no other place is tried.
fn may_be_read(path: &Path) -> bool {
    path.is_file() || rows::member_of(path).is_some()
}

/// The existing folders among `patterns`.
fn folders(options: &TaskOptions, patterns: &[&str]) -> Vec<PathBuf> {
    let Some(data) = &options.data else {
        return Vec::new();
    };
    let names = patterns.iter().filter_map(|pattern| Some(pattern.rsplit_once('/')?.0));
    names.map(|name| data.join(name)).filter(|path| path.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_asset_in_the_folder_wins_over_the_default() {
        let dir = tempfile::tempdir().unwrap();
        let options = TaskOptions { data: Some(dir.path().to_owned()), ..TaskOptions::default() };
        assert_eq!(essays(&options).unwrap().label(), "grammar");
        assert_eq!(words(&options).unwrap().label(), "petname");
        assert!(squad(&options).is_none() && hotpotqa(&options).is_none());

        std::fs::create_dir(dir.path().join("books")).unwrap();
        std::fs::write(dir.path().join("books/a.txt"), "Some text. And more of it.").unwrap();
        assert_eq!(essays(&options).unwrap().label(), "books");
        std::fs::remove_file(dir.path().join("books/a.txt")).unwrap();

        std::fs::create_dir(dir.path().join("essays")).unwrap();
        assert_eq!(essays(&options).unwrap().label(), "grammar", "an empty folder is no haystack");
        std::fs::write(dir.path().join("essays/a.txt"), "some text").unwrap();
        assert_eq!(essays(&options).unwrap().label(), "essays");
        std::fs::write(dir.path().join("PaulGrahamEssays.json"), r#"{"text": "more text"}"#).unwrap();
        assert_eq!(essays(&options).unwrap().label(), "PaulGrahamEssays.json");

        std::fs::create_dir(dir.path().join("wordlists")).unwrap();
        assert!(words(&options).is_err(), "an incomplete folder is a mistake, not a reason for the default");
        std::fs::create_dir(dir.path().join("hotpotqa")).unwrap();
        std::fs::write(dir.path().join("hotpotqa/x.json"), "[]").unwrap();
        assert!(hotpotqa(&options).unwrap().ends_with("hotpotqa/x.json"));
    }
}

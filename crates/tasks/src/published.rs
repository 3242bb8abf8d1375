//! Published data sets that tasks read: where to get them, and whether the files in a folder are the published ones.
//!
//! `tasks/datasets.toml` lists them. If a fixed version is published, files are compared by SHA-256. Their content is read by the
//! tasks' own readers, and the number of rows is compared with the published number.

use std::fmt;
use std::ops::Add;
use std::path::Path;
use std::sync::LazyLock;

use anyhow::Result;
use serde::Deserialize;

use super::metrics::datasets::{LENGTH_RANGES, LengthRange};
use super::rows::Rows;
use super::{TaskOptions, assets, longbench, resolve};
use spattn_base::error::UsageError;
use spattn_base::text::size;
use spattn_model::checksum::{Digest, Expected};

static SETS: LazyLock<Vec<DataSet>> = LazyLock::new(|| {
    let file: File = toml::from_str(include_str!("../tasks/datasets.toml"))
        // The file is embedded, so a mistake in it is ours, and the tests find it.
        .expect("tasks/datasets.toml is well-formed");
    file.sets
});

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    sets: Vec<DataSet>,
}

/// A published data set.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSet {
    /// Its name on the command line.
    pub name: String,
    /// A description, and which tasks read it.
    pub about: String,
    /// Its licence.
    pub licence: String,
    /// How to get it by hand.
    pub how: String,
    content: Content,
    /// The published number of questions, if it is known.
    questions: Option<usize>,
    /// Its files.
    pub files: Vec<DataFile>,
}

/// A file of a data set.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataFile {
    /// Its path in a data folder.
    pub path: String,
    /// Where it is published; `None` if the user has to put it there by hand.
    pub url: Option<String>,
    bytes: Option<u64>,
    sha256: Option<String>,
}

impl DataFile {
    /// The number and SHA-256 of its bytes, as far as known.
    pub fn expected(&self) -> Expected<'_> {
        Expected { bytes: self.bytes, digest: self.sha256.as_deref().map(Digest::Sha256) }
    }

    /// Its size, if that is stated.
    pub fn size(&self) -> DataSize {
        DataSize { known: self.bytes.unwrap_or(0), unknown: usize::from(self.bytes.is_none()) }
    }
}

/// The published size of a data set: the sum of the bytes that `tasks/datasets.toml` states.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DataSize {
    /// The total bytes of files whose size is stated.
    pub known: u64,
    /// The number of files whose size is not stated.
    pub unknown: usize,
}

impl Add for DataSize {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { known: self.known.saturating_add(other.known), unknown: self.unknown + other.unknown }
    }
}

impl fmt::Display for DataSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.known, self.unknown) {
            (known, 0) => f.pad(&size(known)),
            (0, _) => f.pad("size not published"),
            (known, _) => f.pad(&format!("over {}", size(known))),
        }
    }
}

/// How the content of a set is checked.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "String")]
enum Content {
    LongBench,
    WordLists,
    Essays,
    /// By reading the questions of the task or group with this name.
    Task(String),
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        match text.as_str() {
            "longbench" => Self::LongBench,
            "wordlists" => Self::WordLists,
            "essays" => Self::Essays,
            _ => Self::Task(text),
        }
    }
}

/// Whether a file or the content of a set is as published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It is as published; the text says what was compared or counted.
    Right(String),
    /// It does not exist.
    Missing,
    /// It exists, but differs; the text says how.
    Wrong(String),
}

/// The result of checking one file, or the content of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The path of the file in the data folder, or `content of SET`.
    pub what: String,
    /// Whether it is as published.
    pub state: State,
}

impl DataSet {
    /// All data sets.
    pub fn all() -> &'static [Self] {
        &SETS
    }

    /// The set with this name.
    ///
    /// # Errors
    /// If no set has this name; the hint suggests the nearest one.
    pub fn find(name: &str) -> Result<&'static Self, UsageError> {
        let known = || SETS.iter().map(|set| set.name.as_str());
        SETS.iter().find(|set| set.name == name).ok_or_else(|| UsageError::unknown("data set", name, known()))
    }

    /// The size of its files.
    pub fn size(&self) -> DataSize {
        self.files.iter().map(DataFile::size).fold(DataSize::default(), Add::add)
    }

    /// Whether all of its files can be downloaded; otherwise the user has to put some there by hand.
    pub fn is_downloadable(&self) -> bool {
        self.files.iter().all(|file| file.url.is_some())
    }

    /// Compares the files in a data folder with the published ones.
    pub fn check(&self, folder: &Path) -> Vec<Finding> {
        let options = TaskOptions { data: Some(folder.to_owned()), ..TaskOptions::default() };
        let files = self.files.iter().map(|file| Finding { what: file.path.clone(), state: bytes_of(file, folder) });
        let mut findings: Vec<Finding> = files.collect();
        let content = match &self.content {
            Content::LongBench => {
                // The archive and the unpacked files are equally good.
                let parts = check_longbench(&options);
                if parts.iter().any(|part| part.state != State::Missing) {
                    findings.retain(|finding| finding.state != State::Missing);
                }
                parts
            }
            _ if findings.iter().any(|f| f.state == State::Missing) => Vec::new(),
            _ => vec![Finding { what: format!("content of {}", self.name), state: self.check_readable(&options) }],
        };
        findings.extend(content);
        findings
    }

    /// Reads the data with the readers of the tasks, and counts the questions.
    fn check_readable(&self, options: &TaskOptions) -> State {
        let readable = || "readable".to_owned();
        let read = match &self.content {
            Content::LongBench => Ok(String::new()),
            Content::WordLists => assets::words(options).map(|_| readable()),
            Content::Essays => assets::essays(options).map(|_| readable()),
            Content::Task(name) => questions_of(name, options).and_then(|found| match (found, self.questions) {
                (Some(found), Some(published)) if found != published => {
                    anyhow::bail!("{found} questions, {published} are published")
                }
                (Some(found), _) => Ok(format!("{found} questions")),
                (None, _) => Ok(readable()),
            }),
        };
        read.map_or_else(|error| State::Wrong(format!("{error:#}")), State::Right)
    }
}

fn questions_of(task: &str, options: &TaskOptions) -> Result<Option<usize>> {
    // If it is the name of a group, the questions of all its tasks count.
    Ok(resolve(&[task.to_owned()], options)?.iter().map(|task| task.available()).sum())
}

fn bytes_of(file: &DataFile, folder: &Path) -> State {
    let path = folder.join(&file.path);
    if !path.is_file() {
        return State::Missing;
    }
    match file.expected().difference(&path) {
        Ok(None) if file.sha256.is_some() => State::Right("SHA-256 as published".to_owned()),
        Ok(None) => State::Right("no version is fixed".to_owned()),
        Ok(Some(difference)) => State::Wrong(difference),
        Err(error) => State::Wrong(error.to_string()),
    }
}

/// Checks the fields and the number of rows of each published file of LongBench.
fn check_longbench(options: &TaskOptions) -> Vec<Finding> {
    let one = |file: &str| {
        let source = match assets::longbench(options, file) {
            Ok(Some(source)) => source,
            Ok(None) => return State::Missing,
            Err(error) => return State::Wrong(error.to_string()),
        };
        let set = longbench::Set::find(file.trim_end_matches(".jsonl"));
        set.map_or(State::Missing, |set| count_longbench(set, file, source))
    };
    longbench::file_names().map(|file| Finding { what: file.to_owned(), state: one(file) }).collect()
}

fn count_longbench(set: &longbench::Set, file: &str, source: super::rows::RowSource) -> State {
    let mut by_length = [0; LENGTH_RANGES.len()];
    let rows = Rows::open(source, false, |row| {
        set.prompt(row)?;
        let range = LengthRange::of(longbench::length(row)?);
        let at = LENGTH_RANGES.iter().position(|r| r == range).unwrap_or_default();
        by_length[at] += 1;
        Ok(true)
    });
    let rows = match rows {
        Ok(rows) => rows.len(),
        Err(error) => return State::Wrong(format!("{error:#}")),
    };
    let plain = format!("{}.jsonl", set.name) == file;
    match set.rows_by_length {
        _ if plain && rows != set.rows => State::Wrong(format!("{rows} rows, {} are published", set.rows)),
        Some(published) if !plain && by_length != published => {
            State::Wrong(format!("{by_length:?} rows by length, {published:?} are published"))
        }
        _ => State::Right(format!("{rows} rows")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::data_files;
    use crate::ruler::testing::shared_data;

    #[test]
    fn a_size_says_what_is_unknown_of_it() {
        let of = |known, unknown| DataSize { known, unknown }.to_string();
        assert_eq!([of(113_932_529, 0), of(0, 2), of(330_598, 1)], ["113.9 MB", "size not published", "over 331 KB"]);
        let named = |name: &str| DataSet::find(name).unwrap();
        let found = ["longbench", "essays", "arc_easy"].map(|name| named(name).size().to_string());
        assert_eq!(found, ["113.9 MB", "size not published", "over 331 KB"]);
        assert_eq!(["longbench", "wordlists"].map(|name| named(name).is_downloadable()), [true, false]);
    }

    #[test]
    fn every_set_can_be_had_or_says_how() {
        let names: Vec<&str> = SETS.iter().map(|s| s.name.as_str()).collect();
        let chosen = ["mmlu", "arc_easy", "arc_challenge", "hellaswag", "piqa", "openbookqa", "gsm8k"];
        let long = ["longbench_v2", "infinitebench", "scbench", "zeroscrolls", "loogle", "loogle_sample"];
        let official = ["winogrande", "boolq", "coqa", "wikitext2"];
        assert_eq!(
            names,
            [&["longbench", "squad", "hotpotqa", "wordlists", "essays"][..], &chosen, &official, &long].concat()
        );
        for file in SETS.iter().flat_map(|s| &s.files) {
            assert!(
                file.url.as_ref().is_none_or(|url| url.starts_with("https://") && file.sha256.is_some()),
                "{file:?}"
            );
            assert!(file.sha256.as_ref().is_none_or(|sha| sha.len() == 64), "{file:?}");
            let fits = |pattern: &&str| match pattern.split_once('*') {
                None => *pattern == file.path,
                Some((start, end)) => file.path.starts_with(start) && file.path.ends_with(end),
            };
            assert!(data_files::patterns().iter().any(fits), "no task looks for {}", file.path);
        }
        assert!(SETS.iter().all(|s| !s.how.is_empty() && !s.licence.is_empty()));
        assert_eq!(DataSet::find("longbnch").unwrap_err().hint.as_deref(), Some("did you mean `longbench`?"));
    }

    #[test]
    fn an_empty_folder_has_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for set in SETS.iter() {
            assert!(set.check(dir.path()).iter().all(|f| f.state == State::Missing), "{}", set.name);
        }
    }

    #[test]
    fn questions_are_counted_and_bytes_compared() {
        let dir = tempfile::tempdir().unwrap();
        let set = DataSet::find("gsm8k").unwrap();
        let path = dir.path().join(&set.files[0].path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let table =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tables/main/test-00000-of-00001.parquet");
        std::fs::copy(table, path).unwrap();
        let [bytes, content] = &set.check(dir.path())[..] else { panic!("a file and its content") };
        assert!(matches!(&bytes.state, State::Wrong(what) if what.contains("SHA-256")), "{bytes:?}");
        assert_eq!(content.state, State::Wrong("2 questions, 1319 are published".to_owned()));
    }

    /// Writes an archive into a data folder.
    fn archive(folder: &Path, path: &str, members: &[(&str, String)]) {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut zip = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
        for (member, text) in members {
            zip.start_file(*member, zip::write::SimpleFileOptions::default()).unwrap();
            zip.write_all(text.as_bytes()).unwrap();
        }
        zip.finish().unwrap();
    }

    #[test]
    fn archives_are_read_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let grande = r#"{"qID": "1-1", "sentence": "Ann thanked Eve, as _ had helped.", "option1": "Ann", "option2": "Eve", "answer": "2"}"#;
        let members = [("winogrande_1.1/dev.jsonl", grande), ("winogrande_1.1/dev-labels.lst", "2\n")];
        archive(dir.path(), "winogrande/winogrande_1.1.zip", &members.map(|(name, text)| (name, text.to_owned())));
        let boolq = r#"{"question": "is it", "passage": "It is.", "idx": 0, "label": true}"#;
        archive(dir.path(), "boolq/BoolQ.zip", &[("BoolQ/val.jsonl", format!("{boolq}\n").repeat(3270))]);
        let text = ("wikitext-2-raw/wiki.test.raw", " \n = Title = \n".to_owned());
        archive(dir.path(), "wikitext2/wikitext-2-raw-v1.zip", &[text]);
        for (name, content) in [
            ("winogrande", State::Wrong("1 questions, 1267 are published".to_owned())),
            ("boolq", State::Right("3270 questions".to_owned())),
            ("wikitext2", State::Right("readable".to_owned())),
        ] {
            let [bytes, found] = &DataSet::find(name).unwrap().check(dir.path())[..] else { panic!("{name}") };
            assert!(matches!(&bytes.state, State::Wrong(what) if what.contains("the published file")), "{bytes:?}");
            assert_eq!(found.state, content, "{name}");
        }
    }

    #[test]
    fn archives_that_are_no_such_are_told_in_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let told = |name: &str| {
            let found = DataSet::find(name).unwrap().check(dir.path());
            let State::Wrong(what) = &found[1].state else { panic!("{found:?}") };
            assert!(!what.contains('\n'), "{what}");
            what.clone()
        };
        let put = |path: &str, bytes: &[u8]| {
            std::fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
            std::fs::write(dir.path().join(path), bytes).unwrap();
        };
        archive(dir.path(), "boolq/BoolQ.zip", &[("BoolQ/train.jsonl", "{}".to_owned())]);
        assert!(told("boolq").ends_with("BoolQ.zip: it has no BoolQ/val.jsonl"), "{}", told("boolq"));
        for bytes in [&b""[..], b"PK\x03\x04", b"<html>not found</html>"] {
            put("winogrande/winogrande_1.1.zip", bytes);
            assert!(told("winogrande").contains("cannot read "), "{}", told("winogrande"));
            assert!(told("winogrande").contains("winogrande_1.1.zip: "), "{}", told("winogrande"));
        }
        // Changes one byte of the packed data.
        let path = "wikitext2/wikitext-2-raw-v1.zip";
        archive(dir.path(), path, &[("wikitext-2-raw/wiki.test.raw", "a text of words \n".repeat(9))]);
        let mut bytes = std::fs::read(dir.path().join(path)).unwrap();
        let packed = 30 + "wikitext-2-raw/wiki.test.raw".len() + 4;
        bytes[packed] ^= 0x10;
        put(path, &bytes);
        assert!(told("wikitext2").contains("cannot read "), "{}", told("wikitext2"));
        assert!(told("wikitext2").contains("wiki.test.raw: "), "{}", told("wikitext2"));
    }

    #[test]
    fn conversations_are_read_as_published() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("coqa/coqa-dev-v1.0.json");
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        let check = || DataSet::find("coqa").unwrap().check(dir.path())[1].state.clone();
        let said =
            |turn: usize, text: &str| format!(r#"{{"span_start": 0, "input_text": "{text}", "turn_id": {turn}}}"#);
        let two = |a: &str, b: &str| format!("[{}, {}]", said(1, a), said(2, b));
        let story = format!(
            r#"{{"source": "x", "id": "1", "filename": "f", "story": "Ann ran.", "questions": {}, "answers": {}, "additional_answers": {{"0": {}}}, "name": "f"}}"#,
            two("Who ran?", "Why?"),
            two("Ann", "no idea"),
            two("she", "unknown")
        );
        std::fs::write(&path, format!(r#"{{"version": "1.0", "data": [{story}, {story}]}}"#)).unwrap();
        assert_eq!(check(), State::Wrong("4 questions, 7983 are published".to_owned()));
        std::fs::write(&path, format!(r#"{{"data": [{story}, {{"story": "x"}}]}}"#)).unwrap();
        assert!(matches!(check(), State::Wrong(what) if what.contains("coqa-dev-v1.0.json:2: a field is missing")));
        for (text, why) in
            [("{\"data\": [", "EOF"), ("7", "no list `data`"), ("[1", "EOF"), ("{\"data\": {}}", "no list `data`")]
        {
            std::fs::write(&path, text).unwrap();
            let State::Wrong(what) = check() else { panic!("{text}") };
            assert!(what.contains("coqa-dev-v1.0.json: ") && what.contains(why), "{what}");
        }
        // A list is read as rows.
        std::fs::write(&path, "[1]").unwrap();
        assert!(matches!(check(), State::Wrong(what) if what.contains("coqa-dev-v1.0.json:1: not a JSON object")));
    }

    #[test]
    fn tasks_without_data_say_what_to_fetch() {
        let dir = tempfile::tempdir().unwrap();
        let options = TaskOptions { data: Some(dir.path().to_owned()), ..TaskOptions::default() };
        let of_templates = |task: &&String| ["mcq/", "gen/", "ppl/"].iter().any(|family| task.starts_with(family));
        let mut seen = 0;
        for (set, task) in SETS.iter().filter_map(|s| match &s.content {
            Content::Task(task) => Some((s, task)).filter(|(_, task)| of_templates(task)),
            _ => None,
        }) {
            let error = resolve(std::slice::from_ref(task), &options).err().unwrap().downcast::<UsageError>().unwrap();
            let fetch = format!("`spattn data fetch {}`", set.name);
            assert!(error.hint.as_ref().is_some_and(|hint| hint.contains(&fetch)), "{task}: {error:?}");
            seen += 1;
        }
        assert_eq!(seen, 11);
    }

    #[test]
    fn rows_are_counted_and_their_fields_read() {
        let dir = tempfile::tempdir().unwrap();
        let row = r#"{"context": "x", "input": "y", "answers": ["z"], "length": 9}"#;
        let put = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
        put("multifieldqa_en.jsonl", format!("{row}\n").repeat(150));
        put("multifieldqa_en_e.jsonl", format!("{row}\n").repeat(150));
        put("qasper.jsonl", format!("{row}\n").repeat(199));
        put("hotpotqa.jsonl", "{}".to_owned());
        let found = DataSet::find("longbench").unwrap().check(dir.path());
        let state = |name: &str| found.iter().find(|f| f.what == name).unwrap().state.clone();
        assert_eq!(state("multifieldqa_en.jsonl"), State::Right("150 rows".to_owned()));
        let wrong = |name: &str, why: &str| {
            let State::Wrong(what) = state(name) else { panic!("{name}") };
            assert!(what.contains(why), "{what}");
        };
        wrong("qasper.jsonl", "199 rows, 200 are published");
        wrong("multifieldqa_en_e.jsonl", "[150, 0, 0] rows by length, [67, 70, 13] are published");
        wrong("hotpotqa.jsonl", "the field `context` is missing");
        assert_eq!(state("trec.jsonl"), State::Missing);
        assert!(found.iter().all(|f| f.what != "longbench/data.zip"), "single files will do");
    }

    #[test]
    fn bytes_are_compared_with_the_published_ones() {
        let Some(data) = shared_data() else { return };
        let found = DataSet::find("wordlists").unwrap().check(&data);
        assert!(found.iter().all(|f| matches!(f.state, State::Right(_))), "{found:?}");
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("squad")).unwrap();
        std::fs::write(dir.path().join("squad/dev-v2.0.json"), "{}").unwrap();
        let found = DataSet::find("squad").unwrap().check(dir.path());
        assert_eq!(found[0].state, State::Wrong("it has 2 bytes, the published file 4370528".to_owned()));
    }
}

//! Runs every reader of files on damaged files. Each must return an error with file and line, or leave the row out and
//! count it; it must not panic, or lose a row silently.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::likelihood::{TextEncoder, TextTokens};
use super::ruler::testing::Words;
use super::{Task, TaskOptions, resolve};
use spattn_base::error::UsageError;

mod readers;

use readers::{DOCUMENTS, FileReader, READERS};

/// A tokenizer with one token for each character and one in front of the text.
struct Characters;

impl TextEncoder for Characters {
    fn encode(&self, text: &str) -> anyhow::Result<TextTokens> {
        let ends = text.char_indices().map(|(at, c)| at + c.len_utf8()).collect();
        Ok(TextTokens { ids: text.chars().map(u32::from).collect(), ends })
    }

    fn front(&self) -> &[u32] {
        &[1]
    }
}

fn put(folder: &Path, file: &str, bytes: &[u8]) {
    let path = folder.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Opens the task on the files of a folder; every error must be a [`UsageError`].
fn open(task: &str, folder: &Path, skip_bad: bool) -> Result<Box<dyn Task>, UsageError> {
    let options = TaskOptions { data: Some(folder.to_owned()), skip_bad, ..TaskOptions::default() };
    let name = task.replace("{}", &folder.display().to_string());
    match resolve(&[name], &options) {
        Ok(mut tasks) => Ok(tasks.remove(0)),
        Err(error) => Err(error.downcast().expect("a mistake in a file is the user's")),
    }
}

impl FileReader {
    fn open(&self, bytes: &[u8], skip_bad: bool) -> Result<Opened, UsageError> {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), self.file, bytes);
        let task = open(self.task, dir.path(), skip_bad)?;
        // Notes on used rows name the folder, which differs in each run.
        let notes = task.notes().into_iter().filter(|note| note.contains("left out")).collect();
        Ok(Opened { available: task.available(), notes, made: make_all(&*task) })
    }
}

/// What a task makes of its files.
#[derive(Debug, PartialEq)]
struct Opened {
    available: Option<usize>,
    /// The notes on rows that were left out.
    notes: Vec<String>,
    made: Vec<String>,
}

/// Makes and scores the task's first examples.
fn make_all(task: &dyn Task) -> Vec<String> {
    let count = task.available().unwrap_or(2).min(3);
    if let Some(passages) = task.likelihood() {
        // Whether an option has a token of its own is only known with a tokenizer, so this error may come late.
        let made = (0..count).map(|index| passages.passage(64, index, 7, &Characters));
        return made.map(|p| of_user(p.map(|p| format!("{:?} {:?}", p.prompt, p.continuations)))).collect();
    }
    let made = (0..count * task.cells()).map(|index| task.example(256, index, 7, &Words));
    let texts = made.map(|example| {
        // A sized task may have too little text for a length, or a length too short for it.
        assert!(task.is_sized() || example.is_ok(), "what was opened can be read: {example:?}");
        of_user(example.map(|example| {
            for prediction in ["", "x 1\n7", &example.references.join(" ")] {
                let score = example.score(prediction);
                assert!((0.0..=1.0).contains(&score), "{score} of {prediction:?}");
            }
            example.user_turn() + &example.answer_prefix
        }))
    });
    texts.collect()
}

/// The example as text, or the message of the user's mistake.
fn of_user(made: anyhow::Result<String>) -> String {
    made.unwrap_or_else(|error| error.downcast::<UsageError>().expect("a mistake in a file is the user's").what)
}

/// Collects the paths of all values inside a value.
fn paths(value: &Value, at: &str, found: &mut Vec<String>) {
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(name, value)| (format!("{at}/{name}"), value)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(i, value)| (format!("{at}/{i}"), value)).collect(),
        _ => Vec::new(),
    };
    for (path, value) in inner {
        paths(value, &path, found);
        found.push(path);
    }
}

/// Values that may stand where a field expects something else.
fn odd_values() -> Vec<Value> {
    let deep = (0..100).fold(Value::Null, |inner, _| json!([inner]));
    vec![
        Value::Null,
        json!(-1),
        json!(1e300),
        json!(u64::MAX),
        json!(true),
        json!(""),
        json!(" \u{0}\u{feff}\u{2028}"),
        json!("{{ x }} {% _ %} [title]"),
        json!("7"),
        json!([]),
        json!([[]]),
        json!({}),
        json!({"input_text": "x"}),
        deep,
    ]
}

/// Ways to damage a row: another value at some path, a missing field, a cut, or other bytes inside.
#[derive(Debug, Clone)]
enum Damage {
    Replaced(usize, usize),
    Removed(usize),
    Cut(usize),
    Inserted(usize, &'static [u8]),
    Whole(&'static str),
}

const BYTES: [&[u8]; 8] = [b"\0", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\"", b"{", b"\\", b"\\ud800"];
const WHOLE: [&str; 6] = ["{}", "[]", "null", "\"x\"", "{\"a\": 1} {\"b\": 2}", "\u{feff}{}"];

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        4 => (any::<usize>(), any::<usize>()).prop_map(|(at, value)| Damage::Replaced(at, value)),
        1 => any::<usize>().prop_map(Damage::Removed),
        1 => any::<usize>().prop_map(Damage::Cut),
        2 => (any::<usize>(), proptest::sample::select(BYTES.to_vec())).prop_map(|(at, b)| Damage::Inserted(at, b)),
        1 => proptest::sample::select(WHOLE.to_vec()).prop_map(Damage::Whole),
    ]
}

impl Damage {
    fn of(&self, row: &str) -> Vec<u8> {
        let mut value: Value = serde_json::from_str(row).unwrap();
        let mut bytes = row.as_bytes().to_vec();
        match self {
            Self::Replaced(at, odd) => {
                let mut all = Vec::new();
                paths(&value, "", &mut all);
                let (odd_values, at) = (odd_values(), at % all.len());
                *value.pointer_mut(&all[at]).unwrap() = odd_values[odd % odd_values.len()].clone();
                bytes = value.to_string().into_bytes();
            }
            Self::Removed(at) => {
                let fields = value.as_object_mut().unwrap();
                let name = fields.keys().nth(at % fields.len()).unwrap().clone();
                fields.remove(&name);
                bytes = value.to_string().into_bytes();
            }
            Self::Cut(at) => bytes.truncate(1 + at % (bytes.len() - 1)),
            Self::Inserted(at, more) => {
                let at = at % bytes.len();
                bytes.splice(at..at, more.iter().copied());
            }
            Self::Whole(text) => bytes = text.as_bytes().to_vec(),
        }
        bytes
    }
}

impl Opened {
    /// The number of rows left out according to the notes, the N of `N malformed rows are left out`; 0 without a note.
    fn left_out(&self) -> usize {
        let number =
            |note: &String| -> Option<usize> { note.split_once(" malformed row")?.0.rsplit(' ').next()?.parse().ok() };
        self.notes.iter().map(|note| number(note).expect("a note says how many")).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The second of three rows is damaged: it is either used, or named and counted.
    #[test]
    fn a_spoilt_row_is_named_and_counted(which in 0..READERS.len(), damage in damage()) {
        let reader = &READERS[which];
        let row = reader.row.as_bytes();
        let spoilt = damage.of(reader.row);
        let file = [row, &spoilt, row].join(&b"\n"[..]);
        let kept = reader.open(&file, true).unwrap_or_else(|error| panic!("two rows are good: {error}"));
        prop_assert_eq!(kept.available.unwrap() + kept.left_out(), 3, "{}: {:?}", reader.task, kept.notes);
        match reader.open(&file, false) {
            Ok(all) => prop_assert_eq!(all, kept),
            Err(error) => {
                let name = reader.file.rsplit('/').next().unwrap();
                prop_assert!(error.what.contains(&format!("{name}:2: ")), "{}: {}", reader.task, error);
                prop_assert!(error.hint.as_ref().unwrap().contains("--skip-bad"), "{:?}", error.hint);
                prop_assert_eq!(kept.left_out(), 1);
            }
        }
    }

    /// Any bytes in any kind of file give something usable or an error.
    #[test]
    fn any_bytes_are_read_or_refused(
        which in 0..READERS.len() + DOCUMENTS.len(),
        bytes in proptest::collection::vec(prop_oneof![
            any::<u8>(), proptest::sample::select(b"\n\r{}[]\":,\\ux1 ".to_vec()),
        ], 0..200),
        skip_bad in any::<bool>(),
    ) {
        match which.checked_sub(READERS.len()) {
            None => drop(READERS[which].open(&bytes, skip_bad)),
            Some(document) => drop(DOCUMENTS[document].open(&bytes, skip_bad)),
        }
    }

    /// Tests documents and tables that are cut or changed at one byte.
    #[test]
    fn damaged_documents_are_read_or_refused(
        which in 0..DOCUMENTS.len(),
        at in any::<usize>(),
        more in proptest::sample::select([&BYTES[..], &[b"\n", b",", b"[", b"}"]].concat()),
        cut in any::<bool>(),
        skip_bad in any::<bool>(),
    ) {
        let document = &DOCUMENTS[which];
        let mut bytes = document.row.as_bytes().to_vec();
        let at = at % bytes.len();
        if cut {
            bytes.truncate(at);
        }
        bytes.splice(at..at, more.iter().copied());
        if let Err(error) = document.open(&bytes, skip_bad) {
            let name = document.file.rsplit('/').next().unwrap();
            prop_assert!(error.what.contains(name) || error.what.contains("essays"), "{}: {}", document.task, error);
        }
    }
}

/// Other line ends, a byte order mark and blank lines do not change the examples.
#[test]
fn line_ends_and_marks_change_nothing() {
    let opened =
        |reader: &FileReader, text: &str| reader.open(text.as_bytes(), false).unwrap_or_else(|e| panic!("{e}"));
    for reader in READERS {
        let plain = opened(reader, &[reader.row, reader.row].join("\n"));
        let marked = format!("\u{feff}{}\r\n\r\n  \n{}\r\n", reader.row, reader.row);
        assert!(plain.made.len() >= 2, "{}", reader.task);
        assert_eq!(plain, opened(reader, &marked), "{}", reader.task);
    }
    for document in DOCUMENTS {
        let marked = format!("\u{feff}{}", document.row);
        assert_eq!(opened(document, document.row), opened(document, &marked), "{}", document.task);
    }
}

/// Every family that reads files is in `READERS` or `DOCUMENTS`.
#[test]
fn no_reader_is_forgotten() {
    let known = |name: &str| READERS.iter().chain(DOCUMENTS).any(|reader| reader.task.starts_with(name));
    let prefix = |name: &str| name.split('/').next().unwrap().split(':').next().unwrap().to_owned();
    let makes_its_own = ["ruler_reworded", "needle", "passkey", "longeval_lines", "longbench_e"];
    for task in super::catalog() {
        let family = prefix(&task.name);
        let is_known = known(&family) || makes_its_own.contains(&family.as_str());
        assert!(is_known, "`{}` has no row in READERS or DOCUMENTS, nor is it said to make its text itself", task.name);
        let is_checked = !["mcq", "gen"].contains(&family.as_str()) || known(&task.name);
        assert!(is_checked, "`{}` has no row of its own in READERS or DOCUMENTS", task.name);
    }
}

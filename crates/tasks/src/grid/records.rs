//! Lists of records with a question about one: key-value pairs (Lost in the Middle) and lines (LongEval).
//!
//! A list is generated to a length or to a number of records. A sample is one list, and each depth asks for the record there.
//! Pairs from a file are treated as in the publication: the pair that the row asks for is moved to each depth.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context, Result};

use super::base::{Base, Member, Scene, Setting};
use crate::rows::{RowSource, Rows};
use crate::ruler::fit::{Draft, Request, Units};
use crate::ruler::uuid;
use crate::seed::Draw;
use crate::text::words::Words;
use crate::{assets, digest, kv_retrieval, longeval};
use spattn_base::error::UsageError;
use spattn_base::given;

pub(super) const PAIRS: Base = Base {
    name: "kv_retrieval",
    members: || {
        let definition = &kv_retrieval::DEFINITION;
        vec![Member {
            name: PAIRS.name.to_owned(),
            about: "the value of one key among pairs of uuids, at every depth (Lost in the Middle)".to_owned(),
            metric: definition.metric,
            max_new_tokens: definition.tokens_to_generate,
        }]
    },
    steps: 5,
    count: Some("pairs"),
    takes_file: true,
    make: |_, given, options| match &given.file {
        Some(path) => Ok(Box::new(PairFile::open(path, options.skip_bad)?)),
        None => Ok(Box::new(Pairs)),
    },
};

pub(super) const LINES: Base = Base {
    name: "longeval_lines",
    members: || {
        let definition = &longeval::DEFINITION;
        vec![Member {
            name: LINES.name.to_owned(),
            about: "the number in one of many lines, at every depth (LongEval)".to_owned(),
            metric: definition.metric,
            max_new_tokens: definition.tokens_to_generate,
        }]
    },
    steps: 5,
    count: Some("lines"),
    takes_file: false,
    make: |_, _, options| Ok(Box::new(Lines { words: assets::words(options)? })),
};

/// The fewest records of a list: the one that is asked for and another.
const LEAST: usize = 2;

/// The stream of random draws for the records.
const RECORDS: u64 = 0;

/// Index of the record at `depth` percent of `count` records.
fn at_depth(depth: f64, count: usize) -> usize {
    (depth / 100.0 * (count - 1) as f64).round() as usize
}

/// A key and its value.
type Pair = (String, String);

/// Keys with their values, generated on demand.
struct Growing<'a> {
    made: Vec<Pair>,
    next: Box<dyn FnMut() -> Pair + 'a>,
    write: fn(&[Pair], &Pair) -> Draft,
}

impl Scene for Growing<'_> {
    fn draft(&mut self, units: usize, depth: f64) -> Draft {
        while self.made.len() < units {
            self.made.push((self.next)());
        }
        let records = &self.made[..units];
        (self.write)(records, &records[at_depth(depth, units)])
    }
}

// ---- key-value pairs ----

struct Pairs;

fn write_pairs(pairs: &[Pair], (key, value): &Pair) -> Draft {
    let kv_retrieval::KeyValueQuestion { context, question, answer } = kv_retrieval::question(pairs, key, value);
    Draft { context, question, references: vec![answer], ..Draft::default() }
}

impl Setting for Pairs {
    fn source(&self) -> String {
        "random uuids".to_owned()
    }

    fn units(&self, length: usize) -> Units {
        Units { least: LEAST, most: length, probe: 10 }
    }

    fn scene<'a>(&'a self, request: &'a Request<'a>, attempt: u64) -> Result<Box<dyn Scene + 'a>> {
        let mut draw = request.draw(attempt, RECORDS);
        let next = Box::new(move || (uuid(draw.bits()), uuid(draw.bits())));
        Ok(Box::new(Growing { made: Vec::new(), next, write: write_pairs }))
    }

    fn one_context(&self) -> bool {
        true
    }
}

/// The published rows, where the pair that a row asks for is moved to the depth.
struct PairFile {
    file: String,
    rows: Vec<kv_retrieval::KeyValueRow>,
    digest: String,
    note: Option<String>,
}

impl PairFile {
    fn open(path: &Path, skip_bad: bool) -> Result<Self> {
        given::open(path).map(drop).map_err(|e| {
            UsageError::new(format!("cannot read {}: {e}", path.display()))
                .hint("kv_retrieval:file=PATH takes a file with one JSON object a line")
        })?;
        let mut rows = Vec::new();
        let file = Rows::open(RowSource::File(path.to_owned()), skip_bad, |row| {
            rows.push(kv_retrieval::KeyValueRow::parse(&row.fields, &row.place)?);
            Ok(true)
        })?;
        Ok(Self { file: file.source().file_name(), rows, digest: file.digest().to_owned(), note: file.note() })
    }
}

impl Setting for PairFile {
    fn source(&self) -> String {
        self.file.clone()
    }

    fn data(&self) -> String {
        self.digest.clone()
    }

    fn units(&self, length: usize) -> Units {
        Pairs.units(length)
    }

    fn scene<'a>(&'a self, request: &'a Request<'a>, _: u64) -> Result<Box<dyn Scene + 'a>> {
        let row = self
            .rows
            .get(request.index)
            .with_context(|| format!("{} has {} rows, none at {}", self.file, self.rows.len(), request.index))?;
        Ok(Box::new(Moved(row)))
    }

    fn one_context(&self) -> bool {
        false
    }

    fn available(&self) -> Option<usize> {
        Some(self.rows.len())
    }

    fn notes(&self) -> Vec<String> {
        self.note.iter().cloned().collect()
    }
}

struct Moved<'a>(&'a kv_retrieval::KeyValueRow);

impl Scene for Moved<'_> {
    fn draft(&mut self, _: usize, depth: f64) -> Draft {
        let asked = self.0.asked();
        let mut pairs: Vec<_> = self.0.pairs().iter().filter(|pair| *pair != asked).cloned().collect();
        pairs.insert(at_depth(depth, pairs.len() + 1), asked.clone());
        write_pairs(&pairs, asked)
    }
}

// ---- lines ----

struct Lines {
    words: Words,
}

impl Lines {
    /// A key that no line has yet, as long as the word lists have one left.
    fn new_key(&self, draw: &mut Draw, taken: &mut HashSet<String>) -> String {
        const DRAWS: usize = 50;
        let keys = std::iter::repeat_with(|| self.words.key(draw)).take(DRAWS);
        let mut last = String::new();
        for key in keys {
            let is_new = taken.insert(key.clone());
            last = key;
            if is_new {
                break;
            }
        }
        last
    }
}

impl Setting for Lines {
    fn source(&self) -> String {
        format!("words={}", self.words.label())
    }

    fn data(&self) -> String {
        digest::of(&self.words)
    }

    fn units(&self, length: usize) -> Units {
        Units { least: LEAST, most: length, probe: 20 }
    }

    fn scene<'a>(&'a self, request: &'a Request<'a>, attempt: u64) -> Result<Box<dyn Scene + 'a>> {
        let mut draw = request.draw(attempt, RECORDS);
        let mut taken = HashSet::new();
        let (low, high) = longeval::DEFINITION.range();
        let next = Box::new(move || (self.new_key(&mut draw, &mut taken), draw.between(low, high).to_string()));
        let write = |lines: &[Pair], (key, value): &Pair| {
            let (context, question) = longeval::prompt(lines, key);
            Draft { context, question, references: vec![value.clone()], ..Draft::default() }
        };
        Ok(Box::new(Growing { made: Vec::new(), next, write }))
    }

    fn one_context(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_and_the_middle_are_hit() {
        assert_eq!([0.0, 25.0, 50.0, 100.0].map(|d| at_depth(d, 75)), [0, 19, 37, 74]);
        assert_eq!(at_depth(100.0, 2), 1);
    }

    #[test]
    fn the_pair_asked_for_is_moved_and_the_others_keep_their_order() {
        let row = r#"{"ordered_kv_records": [["a", "1"], ["b", "2"], ["c", "3"]], "key": "b", "value": "2"}"#;
        let row = kv_retrieval::KeyValueRow::parse(&serde_json::from_str(row).unwrap(), "rows:1").unwrap();
        let order = |depth| {
            let context = Moved(&row).draft(0, depth).context;
            ["a", "b", "c"].map(|key| context.find(&format!("\"{key}\"")).unwrap())
        };
        let [a, b, c] = order(0.0);
        assert!(b < a && a < c);
        let [a, b, c] = order(100.0);
        assert!(a < c && c < b);
    }

    #[test]
    fn malformed_rows_of_a_file_are_named_with_their_line_or_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kv.jsonl");
        let good = r#"{"ordered_kv_records": [["a", "1"]], "key": "a", "value": "1"}"#;
        for (bad, what) in [("{", "not JSON"), ("[]", "not a JSON object"), (r#"{"key": "a"}"#, "ordered_kv_records")] {
            std::fs::write(&path, format!("\u{feff}{good}\r\n\n{bad}\n")).unwrap();
            let error = PairFile::open(&path, false).err().unwrap().to_string();
            assert!(error.contains("kv.jsonl:3: ") && error.contains(what), "{error}");
            let file = PairFile::open(&path, true).unwrap();
            assert_eq!((file.rows.len(), file.source().as_str()), (1, "kv.jsonl"));
            assert!(file.notes()[0].contains("1 malformed row is left out (line 3)"), "{:?}", file.notes());
        }
        std::fs::write(&path, "\n").unwrap();
        assert!(PairFile::open(&path, true).err().unwrap().to_string().contains("no row"));
        assert!(PairFile::open(dir.path(), true).err().unwrap().to_string().contains("cannot read"));
    }
}

//! Groups records as other programs store results: by model, start of sparse attention, and method with its parameters.

use std::collections::BTreeMap;

use serde_json::Value;

use super::merge::{Merged, Source};
use spattn_base::clock;
use spattn_eval::records::record::Record;
use spattn_eval::records::stored_manifest::{identities, is_of};

/// The records of one method on one model.
#[derive(Debug, Clone)]
pub(super) struct MethodRecords<'a> {
    /// One of the records, for what they have in common.
    pub head: &'a Record,
    /// The records by task, in order of length, seed and sample.
    pub tasks: BTreeMap<&'a str, Vec<&'a Record>>,
}

impl<'a> MethodRecords<'a> {
    /// All groups, in the order of their first records.
    pub fn all(merged: &'a Merged) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        let mut places: BTreeMap<[&str; 4], usize> = BTreeMap::new();
        for record in &merged.records {
            let key = [&*record.model, &*record.protocol, &*record.method, &*record.params];
            let at = *places.entry(key).or_insert_with(|| {
                groups.push(Self { head: record, tasks: BTreeMap::new() });
                groups.len() - 1
            });
            groups[at].tasks.entry(&record.task).or_default().push(record);
        }
        for records in groups.iter_mut().flat_map(|group| group.tasks.values_mut()) {
            records.sort_by_key(|r| (r.length, r.seed, r.sample));
        }
        groups
    }

    /// The method as users write it, for example `quest:page=16`.
    pub fn label(&self) -> String {
        match self.head.params.is_empty() {
            true => self.head.method.to_string(),
            false => format!("{}:{}", self.head.method, self.head.params),
        }
    }

    /// All records of the group.
    pub fn records(&self) -> impl Iterator<Item = &'a Record> {
        self.tasks.values().flatten().copied()
    }
}

/// What the manifests of runs state about a model.
pub(super) struct OfModel<'a> {
    /// The manifest of the most recent run of the model.
    pub manifest: &'a Value,
    /// The model's identity in that manifest.
    pub identity: &'a Value,
}

impl<'a> OfModel<'a> {
    /// Finds a model by its name in records, which may have a suffix that tells runs apart.
    pub fn find(sources: &'a [Source], model: &str) -> Option<Self> {
        let of = |source: &'a Source| {
            let identity = identities(&source.manifest)
                .into_iter()
                .find(|identity| is_of(model, identity["model"].as_str().unwrap_or_default()))?;
            Some(Self { manifest: &source.manifest, identity })
        };
        sources.iter().filter_map(of).max_by_key(Self::seconds)
    }

    /// When the run was made, in seconds since 1970; 0 if the manifest does not state it.
    pub fn seconds(&self) -> u64 {
        self.manifest["created"].as_str().and_then(clock::seconds_of_date).unwrap_or(0)
    }
}

/// A list in Python's notation, for example `['a', 'b']`.
pub(super) fn python_list(texts: &[String]) -> String {
    format!("[{}]", texts.iter().map(|text| python_text(text)).collect::<Vec<_>>().join(", "))
}

/// A text in Python's notation: in single quotes, or in double quotes if it has single quotes inside and no double ones.
fn python_text(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut written = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => written.push_str("\\\\"),
            '\n' => written.push_str("\\n"),
            '\r' => written.push_str("\\r"),
            '\t' => written.push_str("\\t"),
            c if c == quote => written.extend(['\\', c]),
            c if c.is_control() => written.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => written.push(c),
        }
    }
    written.push(quote);
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use spattn_eval::records::testing::record;

    #[test]
    fn records_are_divided_by_method_and_task_and_sorted() {
        let of = |task: &str, method: &str, sample: usize, length: usize| Record {
            length,
            ..record(task, method, sample, 1.0)
        };
        let merged = Merged {
            records: vec![
                of("b", "full", 1, 8),
                of("b", "full", 0, 8),
                of("b", "quest", 0, 8),
                of("a", "full", 5, 4),
                of("b", "full", 2, 4),
            ],
            ..Merged::default()
        };
        let groups = MethodRecords::all(&merged);
        assert_eq!(groups.iter().map(MethodRecords::label).collect::<Vec<_>>(), ["full", "quest"]);
        let samples = |task: &str| groups[0].tasks[task].iter().map(|r| r.sample).collect::<Vec<_>>();
        assert_eq!((samples("a"), samples("b")), (vec![5], vec![2, 0, 1]));
        assert_eq!(groups[0].records().count(), 4);
    }

    #[test]
    fn the_last_run_of_a_model_tells_of_it() {
        let source = |created: &str, model: &str| Source {
            name: created.to_owned(),
            dir: created.into(),
            manifest: json!({"created": created, "identity": {"model": model}}),
            records: 1,
        };
        let sources = [
            source("2026-01-02T00:00:00Z", "m"),
            source("2026-01-01T00:00:00Z", "m"),
            source("2026-01-03T00:00:00Z", "mm"),
        ];
        let found = OfModel::find(&sources, "m (dtype=f16)").unwrap();
        assert_eq!((found.seconds(), &found.identity["model"]), (1_767_312_000, &json!("m")));
        assert!(OfModel::find(&sources, "other").is_none());
    }

    #[test]
    fn lists_are_written_as_python_does() {
        let list = |texts: &[&str]| python_list(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        assert_eq!(list(&["a", "b c"]), "['a', 'b c']");
        assert_eq!(list(&["it's", "a \"b\"", "it's \"b\"", "\\n\n"]), r#"["it's", 'a "b"', 'it\'s "b"', '\\n\n']"#);
        assert_eq!(list(&[]), "[]");
    }
}

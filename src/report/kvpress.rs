//! `spattn report --format kvpress`: results in the files of kvpress' evaluation, for its leaderboard.
//!
//! Each data set, length, model and method has a folder with `predictions.csv`, `metrics.json` and `config.yaml`, with the names and
//! fields of kvpress' `evaluate.py`. RULER's tasks of one length share a folder; each set of LongBench has its own.
//!
//! A method gets a press's name only if it does exactly what the press does. Other methods, and presses with other settings, are named
//! `spattn-METHOD-PARAMS`. Their compression ratio is the share of the context's tokens that they evict, which is 0 for methods that keep
//! all tokens and attend some. RULER is scored by kvpress' own rule, which removes control characters from predictions.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Value, json};

use super::by_method::{MethodRecords, OfModel, python_list};
use super::lm_eval::Exported;
use super::merge::Merged;
use spattn_attention::methods;
use spattn_attention::methods::kvpress::{Meaning, PARAMETERS};
use spattn_eval::records::record::Record;
use spattn_stats::mean;
use spattn_tasks::metrics::datasets::Dataset;

/// A method that equals a press of the same name if it has the settings of its preset `kvpress`, with any `keep`.
struct ExactPress {
    method: &'static str,
    class: &'static str,
    /// Settings that must hold besides the preset's, because the press has no parameter for them.
    besides: &'static [(&'static str, &'static str)],
}

const EXACT: [ExactPress; 2] = [
    ExactPress {
        method: "snapkv",
        class: "SnapKVPress",
        besides: &[("dense_layers", "none"), ("schedule", "uniform")],
    },
    ExactPress {
        method: "streaming_llm",
        class: "StreamingLLMPress",
        besides: &[("rolling", "false"), ("dense_layers", "none")],
    },
];

/// The parameter for which a press takes any value.
const KEEP: &str = "keep";

impl ExactPress {
    /// The press that equals a method with these settings, if there is one.
    fn of(method: &str, settings: &BTreeMap<String, String>) -> Option<&'static Self> {
        let is_set = |(key, value): (&str, &str)| key == KEEP || settings.get(key).is_some_and(|own| own == value);
        let press = EXACT.iter().find(|press| press.method == method)?;
        press.settings().all(is_set).then_some(press)
    }

    /// The settings with which the method equals this press.
    fn settings(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let entry = methods::find(self.method).expect("a press is a method here");
        let preset = entry.presets.iter().find(|preset| preset.name == "kvpress").expect("a press has a preset");
        preset.values.iter().chain(self.besides).copied()
    }

    /// The press in Python: its class and parameters.
    fn command(&self, ratio: f64) -> String {
        let own = PARAMETERS.iter().filter(|parameter| parameter.methods.contains(&self.method));
        let set = own.filter_map(|parameter| {
            let value = match parameter.here {
                Meaning::Rest(KEEP) => ratio.to_string(),
                Meaning::Same(ours) => self.settings().find(|(key, _)| *key == ours)?.1.to_owned(),
                Meaning::Rest(_) | Meaning::Other(_) => return None,
            };
            Some(format!("{}={value}", parameter.theirs))
        });
        format!("{}({})", self.class, set.collect::<Vec<_>>().join(", "))
    }
}

/// The name of a method in kvpress.
#[derive(Debug, Clone, PartialEq)]
struct PressName {
    name: String,
    ratio: f64,
    command: String,
}

impl PressName {
    fn of(group: &MethodRecords<'_>) -> Self {
        let label = group.label();
        if group.head.is_reference() {
            return Self { name: "no_press".to_owned(), ratio: 0.0, command: "None".to_owned() };
        }
        let settings = group.head.settings();
        let exact = ExactPress::of(&group.head.method, &settings);
        let keep = settings.get(KEEP).and_then(|keep| keep.parse::<f64>().ok());
        match (exact, keep) {
            (Some(press), Some(keep)) => {
                // Shares written in decimals are seldom exact in binary.
                let ratio = ((1.0 - keep) * 1e9).round() / 1e9;
                Self { name: press.method.to_owned(), ratio, command: press.command(ratio) }
            }
            // kvpress makes the folder's name from this name.
            _ => Self { name: plain(&format!("spattn-{label}")), ratio: evicted(group), command: label },
        }
    }
}

/// The share of the context's tokens that a method evicts, averaged over its examples.
fn evicted(group: &MethodRecords<'_>) -> f64 {
    let of = |record: &Record| {
        let kv = record.kv_tokens?;
        Some((kv.context as f64 - kv.held).max(0.0) / record.prefix_tokens.max(1) as f64)
    };
    mean(&group.records().filter_map(of).collect::<Vec<_>>()).min(1.0)
}

/// A data set of kvpress' evaluation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct DataSet {
    name: String,
    part: String,
}

/// The data set of a record, and the name of its task within it.
fn place(record: &Record) -> (DataSet, String) {
    let set = |name: &str, part: &str| DataSet { name: name.to_owned(), part: part.to_owned() };
    let task = &*record.task;
    match task.split_once('/') {
        Some(("ruler", name)) => (set("ruler", &record.length.to_string()), name.to_owned()),
        Some(("longbench", name)) => (set("longbench", name), name.to_owned()),
        Some(("longbench_e", name)) => {
            let (name, range) = name.split_once('/').unwrap_or((name, ""));
            (set("longbench-e", &format!("{name}_e")), range.to_owned())
        }
        Some(("infinitebench", name)) => (set("infinitebench", name), name.to_owned()),
        // Rows made by kvpress, one file for a task.
        Some((file, name)) if file.starts_with("jsonl:") && Dataset::parse(&format!("ruler/{name}")).is_ok() => {
            (set("ruler", file.trim_start_matches("jsonl:")), name.to_owned())
        }
        _ => (set(task, ""), task.to_owned()),
    }
}

/// Makes the files of all records.
///
/// # Errors
/// None in practice; the CSV writer's signature has one.
pub fn export(merged: &Merged) -> Result<Exported> {
    let mut exported = Exported::default();
    for group in MethodRecords::all(merged) {
        let query_aware = match &*group.head.protocol {
            "question" => false,
            "decode" => true,
            other => {
                exported.notes.push(format!("{}: kvpress has no --sparse-from {other}: left out", group.label()));
                continue;
            }
        };
        let press = PressName::of(&group);
        let mut sets: BTreeMap<DataSet, BTreeMap<String, Vec<&Record>>> = BTreeMap::new();
        for record in group.records() {
            let (set, task) = place(record);
            sets.entry(set).or_default().entry(task).or_default().push(record);
        }
        for (set, tasks) in &sets {
            let folder = folder(set, &group.head.model, &press, query_aware);
            let mut add = |name: &str, text: String| exported.files.push((format!("{folder}/{name}"), text));
            add("predictions.csv", predictions(tasks, press.ratio)?);
            add("metrics.json", python_json(&metrics(set, tasks)));
            add(
                "config.yaml",
                config(set, &group, &press, query_aware, OfModel::find(&merged.sources, &group.head.model).as_ref()),
            );
        }
    }
    if !exported.files.is_empty() {
        exported.notes.push(
            "examples are those of the run: kvpress' own rows are run by --task jsonl:FILE; questions may be shortened in the middle"
                .to_owned(),
        );
    }
    Ok(exported)
}

/// A text as part of a folder's name that is valid on any file system.
fn plain(text: &str) -> String {
    text.replace('/', "--").replace(|c: char| "\"<>:|\\?*".contains(c) || c.is_control(), "-")
}

/// The name of a folder, made as `EvaluationConfig.get_results_dir` does.
fn folder(set: &DataSet, model: &str, press: &PressName, query_aware: bool) -> String {
    let mut parts =
        vec![plain(&set.name), plain(&set.part), plain(model), plain(&press.name), format!("{:.2}", press.ratio)];
    parts.retain(|part| !part.is_empty());
    parts.extend(query_aware.then(|| "query_aware".to_owned()));
    parts.join("__")
}

/// Renders `predictions.csv`. Cells are not escaped, because programs compare them.
fn predictions(tasks: &BTreeMap<String, Vec<&Record>>, ratio: f64) -> Result<String> {
    let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
    writer.write_record(["question", "answer", "task", "max_new_tokens", "predicted_answer", "compression_ratio"])?;
    for (task, records) in tasks {
        for record in records {
            writer.write_record([
                &*record.question,
                &python_list(&record.references),
                task,
                &record.max_new_tokens.to_string(),
                &*record.prediction,
                &ratio.to_string(),
            ])?;
        }
    }
    Ok(String::from_utf8(writer.into_inner().map_err(|e| e.into_error())?)?)
}

/// The scores that kvpress' scorer of a data set returns.
fn metrics(set: &DataSet, tasks: &BTreeMap<String, Vec<&Record>>) -> Value {
    let mean_of = |records: &[&Record]| mean(&records.iter().map(|r| r.score).collect::<Vec<_>>());
    let all: Vec<&Record> = tasks.values().flatten().copied().collect();
    match set.name.as_str() {
        "ruler" => tasks
            .iter()
            .map(|(task, records)| (task.clone(), json!({ "string_match": string_match(task, records) })))
            .collect(),
        "longbench" => json!(in_percent(mean_of(&all))),
        "longbench-e" => {
            tasks.iter().map(|(range, records)| (range.clone(), json!(in_percent(mean_of(records))))).collect()
        }
        "infinitebench" => json!(mean_of(&all)),
        _ => {
            let of = |records: &[&Record]| {
                let metric = records[0].metric.map_or("score", |metric| metric.name());
                json!({ metric: in_percent(mean_of(records)) })
            };
            tasks.iter().map(|(task, records)| (task.clone(), of(records))).collect()
        }
    }
}

/// A share in percent, rounded to two digits.
fn in_percent(share: f64) -> f64 {
    (1e4 * share).round() / 100.0
}

/// RULER's score by kvpress' rule (`benchmarks/ruler/calculate_metrics.py`): the share of references found; for questions, whether any is.
fn string_match(task: &str, records: &[&Record]) -> f64 {
    let cleaned =
        |text: &str| text.trim().chars().filter(|c| u32::from(*c) > 0x1f).collect::<String>().trim().to_lowercase();
    let of = |record: &&Record| {
        let prediction = cleaned(&record.prediction);
        let found = record.references.iter().filter(|reference| prediction.contains(&reference.to_lowercase())).count();
        match task.split('_').next() {
            Some("qa") => f64::from(u8::from(found > 0)),
            _ => found as f64 / record.references.len().max(1) as f64,
        }
    };
    in_percent(mean(&records.iter().map(of).collect::<Vec<_>>()))
}

/// JSON in the layout of Python's `json.dump(indent=4)`.
fn python_json(value: &Value) -> String {
    let mut text = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, formatter);
    // Writing to memory does not fail.
    let _ = serde::Serialize::serialize(value, &mut serializer);
    String::from_utf8_lossy(&text).into_owned()
}

/// Renders `config.yaml`, with the fields of `EvaluationConfig`.
fn config(
    set: &DataSet,
    group: &MethodRecords<'_>,
    press: &PressName,
    query_aware: bool,
    of_model: Option<&OfModel<'_>>,
) -> String {
    let dtype = of_model.and_then(|found| found.identity["dtype"].as_str());
    let data_dir = if set.part.is_empty() { "null".to_owned() } else { yaml_text(&set.part) };
    let ratio = if press.ratio.fract() == 0.0 { format!("{:.1}", press.ratio) } else { press.ratio.to_string() };
    let lines = [
        ("dataset", yaml_text(&set.name)),
        ("data_dir", data_dir),
        ("model", yaml_text(&group.head.model)),
        ("device", "null".to_owned()),
        ("press_name", yaml_text(&press.name)),
        ("compression_ratio", ratio),
        ("key_channel_compression_ratio", "null".to_owned()),
        ("fraction", "1.0".to_owned()),
        ("max_new_tokens", "null".to_owned()),
        ("max_context_length", "null".to_owned()),
        ("query_aware", query_aware.to_string()),
        ("needle_depth", "null".to_owned()),
        ("compression_interval", "null".to_owned()),
        ("target_size", "null".to_owned()),
        ("hidden_states_buffer_size", "null".to_owned()),
        ("output_dir", "./results".to_owned()),
        ("log_level", "INFO".to_owned()),
        ("model_kwargs", dtype.map_or("{}".to_owned(), |dtype| format!("\n  dtype: {}", yaml_text(dtype)))),
        ("press_init_command", yaml_text(&press.command)),
        ("seed", group.head.seed.to_string()),
        ("fp8", "false".to_owned()),
    ];
    let line = |(key, value): &(&str, String)| match value.starts_with('\n') {
        true => format!("{key}:{value}\n"),
        false => format!("{key}: {value}\n"),
    };
    lines.iter().map(line).collect()
}

/// A text in YAML: without quotes if it cannot be mistaken for anything else.
fn yaml_text(text: &str) -> String {
    let is_bare = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-./".contains(&b))
        && !["null", "true", "false", "yes", "no", "on", "off", "y", "n", "None"].contains(&text);
    match is_bare {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "''").replace(['\n', '\r'], " ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::records::costs::KvTokens;
    use spattn_eval::records::testing::record;
    use spattn_tasks::metrics::Metric;

    fn of(task: &str, method: &str, params: &str, prediction: &str) -> Record {
        Record {
            model: "org/model".into(),
            length: 4096,
            params: params.into(),
            protocol: "question".into(),
            prediction: prediction.into(),
            references: vec!["12".to_owned(), "34".to_owned()].into(),
            metric: Some(Metric::StringMatchAll),
            prefix_tokens: 100,
            kv_tokens: Some(KvTokens { held: 60.0, context: 110 }),
            ..record(task, method, 0, 0.5)
        }
    }

    fn exported(records: Vec<Record>) -> Exported {
        export(&Merged { records, ..Merged::default() }).unwrap()
    }

    #[test]
    fn folders_and_files_are_those_of_its_evaluation() {
        let press =
            "keep=0.25,window=64,kernel=5,pool=avg,per=kv_head,sink=0,local=0,dense_layers=none,schedule=uniform";
        let exported = exported(vec![
            of("ruler/vt", "full", "", "12 and 34"),
            of("ruler/qa_1", "full", "", "1\u{1}2"),
            of("ruler/vt", "snapkv", press, "12"),
            of("longbench/qasper", "quest", "page=16", "x"),
        ]);
        let names: Vec<&str> = exported.files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "ruler__4096__org--model__no_press__0.00/predictions.csv",
                "ruler__4096__org--model__no_press__0.00/metrics.json",
                "ruler__4096__org--model__no_press__0.00/config.yaml",
                "ruler__4096__org--model__snapkv__0.75/predictions.csv",
                "ruler__4096__org--model__snapkv__0.75/metrics.json",
                "ruler__4096__org--model__snapkv__0.75/config.yaml",
                "longbench__qasper__org--model__spattn-quest-page=16__0.50/predictions.csv",
                "longbench__qasper__org--model__spattn-quest-page=16__0.50/metrics.json",
                "longbench__qasper__org--model__spattn-quest-page=16__0.50/config.yaml",
            ]
        );
        let text = |at: usize| exported.files[at].1.as_str();
        assert_eq!(
            text(1),
            "{\n    \"qa_1\": {\n        \"string_match\": 100.0\n    },\n    \"vt\": {\n        \"string_match\": 100.0\n    }\n}"
        );
        assert_eq!(
            text(3),
            "question,answer,task,max_new_tokens,predicted_answer,compression_ratio\nquestion,\"['12', '34']\",vt,40,12,0.75\n"
        );
        assert_eq!(text(4), "{\n    \"vt\": {\n        \"string_match\": 50.0\n    }\n}");
        assert_eq!(text(7), "50.0");
        for line in [
            "dataset: ruler",
            "data_dir: '4096'",
            "model: org/model",
            "press_name: snapkv",
            "compression_ratio: 0.75",
            "query_aware: false",
            "model_kwargs: {}",
            "press_init_command: 'SnapKVPress(compression_ratio=0.75, window_size=64, kernel_size=5)'",
        ] {
            assert!(text(5).lines().any(|own| own == line), "{line}: {}", text(5));
        }
        assert!(
            text(8).replace('\'', "").contains("press_name: spattn-quest-page=16\ncompression_ratio: 0.5\n"),
            "{}",
            text(8)
        );
    }

    #[test]
    fn rows_of_kvpress_by_task_are_its_own_data_set() {
        let exported = exported(vec![
            of("jsonl:4096/vt", "full", "", "12"),
            of("jsonl:4096/qa_1", "full", "", "12"),
            of("jsonl:mine", "full", "", "12"),
        ]);
        let folders: Vec<&str> =
            exported.files.iter().step_by(3).map(|(name, _)| name.split('/').next().unwrap()).collect();
        assert_eq!(folders, ["jsonl-mine__org--model__no_press__0.00", "ruler__4096__org--model__no_press__0.00"]);
        assert_eq!(exported.files[4].1.matches("string_match").count(), 2);
    }

    #[test]
    fn a_method_with_other_settings_is_no_press_and_other_protocols_are_left_out() {
        let other = exported(vec![of("ruler/vt", "snapkv", "k=64", "12")]);
        assert!(other.files[0].0.contains("spattn-snapkv-k=64"), "{:?}", other.files[0].0);
        let last = exported(vec![Record { protocol: "last:32".into(), ..of("ruler/vt", "snapkv", "k=64", "12") }]);
        assert!(last.files.is_empty() && last.notes[0].contains("no --sparse-from last:32"));
        let aware = exported(vec![Record { protocol: "decode".into(), ..of("ruler/vt", "full", "", "12") }]);
        assert!(aware.files[0].0.starts_with("ruler__4096__org--model__no_press__0.00__query_aware/"));
        assert!(aware.files[2].1.contains("query_aware: true\n"));
    }
}

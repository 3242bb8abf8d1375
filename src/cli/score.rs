//! `spattn score`: score predictions made elsewhere by the published rules.

use crate::error::UsageError;
use crate::eval::stats::mean;
use crate::tasks::metrics::Metric;
use crate::tasks::metrics::datasets::Dataset;
use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Score predictions made elsewhere.
///
/// Each line of the file is a JSON object with `prediction` (or `pred`), and the answers under `answers`, `outputs`,
/// `ground_truths` or `references`: one string or a list. Classification also needs `all_classes`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example: spattn score predictions.jsonl --dataset hotpotqa --json")]
pub struct ScoreArgs {
    /// File of predictions, one JSON object a line
    ///
    /// Example: predictions.jsonl with {"prediction": "Paris", "answers": ["Paris", "paris"]}
    #[arg(value_name = "FILE.jsonl")]
    pub file: PathBuf,

    /// How to score each line: the name of a metric
    ///
    /// Example: --metric qa_f1. One of string_match_all, string_match_part, exact_match, qa_f1, rouge_l, rouge_1, rouge_2,
    /// classification, retrieval, retrieval_zh, count, code_sim, first_number, last_number, digit_match.
    #[arg(long, value_name = "NAME", conflicts_with = "dataset", required_unless_present = "dataset")]
    pub metric: Option<String>,

    /// Score as a LongBench data set or a RULER task is scored, with its cut to the first line
    ///
    /// Example: --dataset trec, --dataset longbench/hotpotqa, --dataset ruler/qa_1
    #[arg(long, value_name = "NAME")]
    pub dataset: Option<String>,

    /// Print JSON with the score of every row instead of one line
    ///
    /// Example: spattn score predictions.jsonl --metric qa_f1 --json
    #[arg(long)]
    pub json: bool,
}

/// The scores of a file; its JSON is a contract.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScoreReport {
    /// Name of the metric.
    pub metric: String,
    /// Number of rows.
    pub n: usize,
    /// Mean score, percent.
    pub score: f64,
    /// Score of each row in 0..=1, in the order of the file.
    pub rows: Vec<f64>,
}

/// Scores a file and prints the result on standard output.
///
/// # Errors
/// As [`score_file`], or if standard output cannot be written.
pub fn run(args: ScoreArgs) -> Result<()> {
    let report = score_file(&args.file, args.metric.as_deref(), args.dataset.as_deref())?;
    let text = match args.json {
        true => serde_json::to_string(&report)?,
        false => format!("{}: {:.2} % over {} rows", report.metric, report.score, report.n),
    };
    writeln!(std::io::stdout().lock(), "{text}").context("cannot write to standard output")
}

/// Scores every row of a file by `metric`, or as `dataset` is scored; exactly one of the two is needed.
///
/// Predictions are cleaned first as the published evaluation does ([`Metric::postprocess`],
/// [`Dataset::postprocess`]). Empty lines are skipped.
///
/// # Errors
/// [`UsageError`] for an unknown name and, as `path:line`, for a row that cannot be scored; also if the file cannot be
/// read or has no rows.
pub fn score_file(path: &Path, metric: Option<&str>, dataset: Option<&str>) -> Result<ScoreReport> {
    let rule = Rule::new(metric, dataset)?;
    let bytes = fs::read(path).map_err(|e| {
        UsageError::new(format!("cannot read {}: {e}", path.display()))
            .hint("give a file with one JSON object a line: prediction, and answers")
    })?;
    let mut rows = Vec::new();
    for (at, line) in bytes.split(|b| *b == b'\n').enumerate() {
        let line = if at == 0 { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line };
        if line.trim_ascii().is_empty() {
            continue;
        }
        let score = rule
            .score(line)
            .map_err(|e| UsageError { what: format!("{}:{}: {}", path.display(), at + 1, e.what), hint: e.hint })?;
        rows.push(score);
    }
    if rows.is_empty() {
        return Err(UsageError::new(format!("{} has no rows to score", path.display())).into());
    }
    Ok(ScoreReport { metric: rule.metric.name().to_owned(), n: rows.len(), score: 100.0 * mean(&rows), rows })
}

/// How rows are cleaned and scored.
struct Rule {
    metric: Metric,
    dataset: Option<&'static Dataset>,
}

impl Rule {
    fn new(metric: Option<&str>, dataset: Option<&str>) -> Result<Self, UsageError> {
        match (metric, dataset) {
            (Some(name), None) => Ok(Self { metric: Metric::parse(name)?, dataset: None }),
            (None, Some(name)) => {
                let dataset = Dataset::parse(name)?;
                Ok(Self { metric: dataset.metric()?, dataset: Some(dataset) })
            }
            _ => Err(UsageError::new("either --metric or --dataset is needed, not both")
                .hint("for example --metric qa_f1, or --dataset hotpotqa")),
        }
    }

    /// The score of one line.
    fn score(&self, line: &[u8]) -> Result<f64, UsageError> {
        let row: Map<String, Value> =
            serde_json::from_slice(line).map_err(|e| UsageError::new(format!("not a JSON object: {e}")))?;
        let prediction = prediction(&row)?;
        let prediction = match self.dataset {
            Some(dataset) => dataset.postprocess(self.metric, prediction),
            None => self.metric.postprocess(prediction),
        };
        let classes = if self.metric.needs_classes() { classes(&row, self.metric)? } else { Vec::new() };
        Ok(self.metric.score(&prediction, &references(&row)?, &classes))
    }
}

// ---- fields of a row ----

const PREDICTION: [&str; 2] = ["prediction", "pred"];
const REFERENCES: [&str; 4] = ["answers", "outputs", "ground_truths", "references"];

/// The first of these fields that is there and not null.
fn field<'a>(row: &'a Map<String, Value>, names: &[&'static str]) -> Result<(&'static str, &'a Value), UsageError> {
    names
        .iter()
        .find_map(|name| row.get(*name).filter(|value| !value.is_null()).map(|value| (*name, value)))
        .ok_or_else(|| UsageError::new(format!("no field `{}`", names.join("` or `"))))
}

fn prediction(row: &Map<String, Value>) -> Result<&str, UsageError> {
    let (name, value) = field(row, &PREDICTION)?;
    value.as_str().ok_or_else(|| UsageError::new(format!("field `{name}` is not a string")))
}

fn references(row: &Map<String, Value>) -> Result<Vec<String>, UsageError> {
    let (name, value) = field(row, &REFERENCES)?;
    let references = strings(name, value)?;
    if references.is_empty() {
        return Err(UsageError::new(format!("field `{name}` is empty")));
    }
    Ok(references)
}

fn classes(row: &Map<String, Value>, metric: Metric) -> Result<Vec<String>, UsageError> {
    let needed = |e: UsageError| e.hint(format!("metric `{metric}` needs the list of all class names"));
    let (name, value) = field(row, &["all_classes"]).map_err(needed)?;
    strings(name, value)
}

/// One string or a list of strings; numbers are taken as they are written.
fn strings(name: &str, value: &Value) -> Result<Vec<String>, UsageError> {
    let one = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(UsageError::new(format!("field `{name}` is not a string or a list of strings"))),
    };
    match value {
        Value::Array(values) => values.iter().map(one).collect(),
        value => Ok(vec![one(value)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser)]
    struct Root {
        #[command(flatten)]
        args: ScoreArgs,
    }

    fn score(text: &str, metric: Option<&str>, dataset: Option<&str>) -> Result<ScoreReport, UsageError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.jsonl");
        fs::write(&path, text).unwrap();
        score_file(&path, metric, dataset).map_err(|e| e.downcast().unwrap())
    }

    #[test]
    fn rows_in_any_of_the_known_fields_are_scored() {
        let rows = concat!(
            "\u{feff}{\"prediction\": \"the Nile\", \"answers\": [\"nile\"]}\r\n",
            "{\"pred\": \"Nile\", \"outputs\": \"Amazon\"}\n\n",
            "{\"prediction\": \"7\", \"answers\": null, \"references\": [7, \"x\"]}"
        );
        let report = score(rows, Some("qa_f1"), None).unwrap();
        assert_eq!((report.n, report.rows), (3, vec![1.0, 0.0, 1.0]));
        assert!((report.score - 200.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn the_json_has_the_agreed_keys() {
        let report = score("{\"prediction\": \"x\", \"answers\": \"x\"}", Some("exact_match"), None).unwrap();
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(json, r#"{"metric":"exact_match","n":1,"score":100.0,"rows":[1.0]}"#);
    }

    #[test]
    fn a_data_set_brings_its_own_cleaning() {
        let row = r#"{"prediction": "\nLake\nRiver", "answers": ["Lake"], "all_classes": ["Lake", "River"]}"#;
        assert_eq!(score(row, None, Some("trec")).unwrap().rows, [1.0]);
        assert_eq!(score(row, Some("classification"), None).unwrap().rows, [0.5]);
    }

    #[test]
    fn malformed_rows_are_named_by_their_line() {
        let good = "{\"prediction\": \"x\", \"answers\": \"x\"}\n";
        for (bad, problem) in [
            ("{\"prediction\": \"x\"}", "no field `answers` or"),
            ("{\"answers\": \"x\"}", "no field `prediction` or `pred`"),
            ("{\"prediction\": 3, \"answers\": \"x\"}", "`prediction` is not a string"),
            ("{\"prediction\": \"x\", \"answers\": []}", "`answers` is empty"),
            ("{\"prediction\": \"x\", \"answers\": [{}]}", "`answers` is not a string or"),
            ("[1]", "not a JSON object"),
            ("{\"prediction\": \"\\ud800\", \"answers\": \"x\"}", "not a JSON object"),
        ] {
            let error = score(&format!("{good}{bad}\n{good}"), Some("qa_f1"), None).unwrap_err();
            assert!(error.what.contains("rows.jsonl:2: ") && error.what.contains(problem), "{error}");
        }
        let error = score(good, Some("classification"), None).unwrap_err();
        assert!(error.what.contains(":1: no field `all_classes`") && error.hint.is_some(), "{error}");
    }

    #[test]
    fn names_and_empty_files_are_checked() {
        assert!(score("", Some("qa_f1"), None).unwrap_err().what.contains("no rows"));
        assert!(score("", Some("qaf1"), None).unwrap_err().hint.unwrap().contains("qa_f1"));
        assert!(score("", None, Some("vcsum")).unwrap_err().what.contains("segmenter"));
        assert!(score("", None, None).is_err());
    }

    #[test]
    fn arguments_exclude_each_other_and_help_lists_every_metric() {
        Root::command().debug_assert();
        let parse = |args: &[&str]| Root::try_parse_from([&["score", "x.jsonl"], args].concat());
        assert!(parse(&[]).is_err() && parse(&["--metric", "count", "--dataset", "vt"]).is_err());
        assert_eq!(parse(&["--dataset", "vt"]).unwrap_or_else(|e| panic!("{e}")).args.dataset.as_deref(), Some("vt"));
        let help = Root::command().render_long_help().to_string();
        assert!(Metric::all().all(|m| help.contains(m.name())), "{help}");
    }
}

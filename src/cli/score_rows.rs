//! Scores one row of predictions, and finds its prediction, answers and classes.
//!
//! [`score`](super::score) reads the files and prints the results.

use std::path::Path;

use serde_json::Value;

use spattn_base::error::UsageError;
use spattn_stats::mean;
use spattn_tasks::metrics::datasets::{Dataset, LengthRange};
use spattn_tasks::metrics::{Metric, first_line};
use spattn_tasks::rows::{Row, text_or_number};
use spattn_tasks::{answers, longbench};

/// A row with its score.
pub(super) struct Scored {
    pub group: String,
    pub metric: Metric,
    pub score: f64,
    pub is_empty: bool,
    /// Whether the answers hold anything that the metric compares.
    pub compares: bool,
    /// The score that the row itself states; `None` if the user chose the rule.
    pub stored: Option<f64>,
}

/// How a row is cleaned and scored.
#[derive(Clone, Copy)]
pub(super) struct Rule {
    metric: Metric,
    first_line: bool,
    /// Whether the rule is that of a published set. Its rows are then scored whatever they hold.
    is_published: bool,
}

impl From<&Dataset> for Rule {
    fn from(dataset: &Dataset) -> Self {
        Self { metric: dataset.metric, first_line: dataset.first_line, is_published: true }
    }
}

/// The rule that the user gave for all rows, if any.
pub(super) fn given_rule(metric: Option<&str>, dataset: Option<&str>) -> Result<Option<Rule>, UsageError> {
    match (metric, dataset) {
        (Some(name), None) => Ok(Some(Rule { metric: Metric::parse(name)?, first_line: false, is_published: false })),
        (None, Some(name)) => Ok(Some(Rule::from(Dataset::parse(name)?))),
        (None, None) => Ok(None),
        _ => Err(UsageError::new("either --metric or --dataset can be given, not both")
            .hint("for example --metric qa_f1, or --dataset hotpotqa")),
    }
}

/// Whether a record's score comes from the probability of given text.
pub(super) fn is_of_likelihood(row: &Row) -> bool {
    ["likelihood", "choice"].iter().any(|name| row.fields.get(*name).is_some_and(|value| !value.is_null()))
}

/// How the rows of a file are scored and grouped.
pub(super) struct Scorer {
    /// The rule that the user gave for all rows.
    given: Option<Rule>,
    /// The data set that the file is named after.
    of_file: Option<&'static Dataset>,
    by_length: bool,
}

impl Scorer {
    /// Scores the rows of a file; with `by_length`, by length whatever the file is called.
    pub(super) fn new(given: Option<Rule>, file: &Path, by_length: bool) -> Self {
        let stem = file.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
        let of_file = Dataset::parse(&stem).ok();
        let is_extended = (of_file.is_some() && stem.ends_with("_e"))
            || file.parent().is_some_and(|folder| folder.iter().any(|part| part == "pred_e"));
        Self { given, of_file, by_length: by_length || is_extended }
    }

    /// Scores a row.
    ///
    /// # Errors
    /// `path:line` of a row that cannot be scored, and why.
    pub(super) fn score_row(&self, row: &Row) -> Result<Scored, UsageError> {
        let (rule, name) = self.rule(row)?;
        let predictions = predictions(row)?;
        let classes = if rule.metric.needs_classes() { classes(row, rule.metric)? } else { Vec::new() };
        let references = references(row)?;
        let compares = match rule.is_published {
            true => answers::check_published(rule.metric, &references),
            false => answers::check(rule.metric, &references).map(|()| true),
        };
        let is_a_class = answers::check_classes(rule.metric, &references, &classes, rule.is_published);
        let is_a_class = is_a_class.map_err(|e| row.at(e))?;
        let compares = compares.map_err(|e| row.at(e))? && is_a_class;
        let group = match self.by_length {
            true => format!("{name} {}", LengthRange::of(longbench::length(row)?).name).trim().to_owned(),
            false => name,
        };
        let score = |prediction: &str| {
            let kept = if rule.first_line { first_line(prediction) } else { prediction };
            rule.metric.score(&rule.metric.postprocess(kept), &references, &classes)
        };
        Ok(Scored {
            group,
            metric: rule.metric,
            score: mean(&predictions.iter().map(|text| score(text)).collect::<Vec<_>>()),
            is_empty: predictions.iter().all(|text| text.trim().is_empty()),
            compares,
            stored: self.given.is_none().then(|| row.fields.get("score")?.as_f64()).flatten(),
        })
    }

    /// How a row is scored, and the name of its group.
    fn rule(&self, row: &Row) -> Result<(Rule, String), UsageError> {
        if let Some(rule) = self.given {
            return Ok((rule, String::new()));
        }
        if let Some(task) = row.text("task")? {
            let rule = match row.text("metric")? {
                Some(metric) => Rule {
                    metric: at(row, Metric::parse(metric))?,
                    first_line: row.fields.get("first_line") == Some(&true.into()),
                    // The run accepted these rows, so they are scored again.
                    is_published: true,
                },
                // Records of older versions have no metric.
                None => Rule::from(at(row, Dataset::parse(task))?),
            };
            return Ok((rule, record_name(row, task)?));
        }
        let dataset = match (row.text("dataset")?, self.of_file) {
            (Some(name), _) => at(row, Dataset::parse(name))?,
            (None, Some(dataset)) => dataset,
            (None, None) => {
                let what = row.wrong("the metric is unknown: neither the row nor the file's name has one");
                return Err(what.hint("give --metric or --dataset, for example --dataset hotpotqa"));
            }
        };
        Ok((dataset.into(), format!("{}/{}", dataset.family, dataset.name)))
    }
}

/// An error at a row.
fn at<T>(row: &Row, result: Result<T, UsageError>) -> Result<T, UsageError> {
    result.map_err(|e| UsageError { hint: e.hint, ..row.wrong(e.what) })
}

/// Task, length and method of a record.
fn record_name(row: &Row, task: &str) -> Result<String, UsageError> {
    let mut name = task.to_owned();
    if let Some(length) = row.fields.get("length").and_then(|l| l.as_u64()).filter(|l| *l > 0) {
        name += &format!(" at {length}");
    }
    for (field, before) in [("method", ", "), ("params", ":")] {
        if let Some(text) = row.text(field)?.filter(|text| !text.is_empty()) {
            name = name + before + text;
        }
    }
    Ok(name)
}

// ---- fields of a row ----

const PREDICTION: [&str; 2] = ["prediction", "pred"];
const REFERENCES: [&str; 4] = ["answers", "outputs", "ground_truths", "references"];

/// The first of these fields that is present and not null.
fn field<'a>(row: &'a Row, names: &[&'static str]) -> Result<(&'static str, &'a Value), UsageError> {
    names
        .iter()
        .find_map(|name| row.fields.get(*name).filter(|value| !value.is_null()).map(|value| (*name, value)))
        .ok_or_else(|| {
            row.wrong(format!("no field `{}`", names.join("` or `")))
                .hint("a row needs a prediction and its answers: see `spattn score --help`")
        })
}

fn prediction(row: &Row) -> Result<&str, UsageError> {
    at(row, answers::check_same(&row.fields, &PREDICTION))?;
    let (name, value) = field(row, &PREDICTION)?;
    value.as_str().ok_or_else(|| row.wrong(format!("field `{name}` is not a string")))
}

/// The predictions of a row: one, or one for each repeat of a run.
fn predictions(row: &Row) -> Result<Vec<&str>, UsageError> {
    let first = prediction(row)?;
    let Some(repeats) = row.fields.get("repeats").filter(|value| !value.is_null()) else { return Ok(vec![first]) };
    let of_repeat = |repeat: &'_ Value| repeat.get(PREDICTION[0]).and_then(Value::as_str).is_some();
    match repeats.as_array().filter(|repeats| !repeats.is_empty() && repeats.iter().all(of_repeat)) {
        Some(repeats) => Ok(repeats.iter().filter_map(|repeat| repeat[PREDICTION[0]].as_str()).collect()),
        None => Err(row.wrong(format!("field `repeats` is no list of objects with `{}`", PREDICTION[0]))),
    }
}

fn references(row: &Row) -> Result<Vec<String>, UsageError> {
    at(row, answers::check_same(&row.fields, &REFERENCES))?;
    let (name, value) = field(row, &REFERENCES)?;
    if let Value::String(one) = value {
        at(row, answers::check_one(one))?;
    }
    let references = strings(row, name, value)?;
    if references.is_empty() {
        return Err(row.wrong(format!("field `{name}` is empty")));
    }
    Ok(references)
}

fn classes(row: &Row, metric: Metric) -> Result<Vec<String>, UsageError> {
    let needed = |e: UsageError| e.hint(format!("metric `{metric}` needs the list of all class names"));
    let (name, value) = field(row, &["all_classes"]).map_err(needed)?;
    if !value.is_array() {
        return Err(needed(row.wrong(format!("field `{name}` is not a list"))));
    }
    strings(row, name, value)
}

/// A string, or a list of strings. Numbers are taken as written.
fn strings(row: &Row, name: &str, value: &Value) -> Result<Vec<String>, UsageError> {
    let one = |value: &Value| {
        text_or_number(value).ok_or_else(|| row.wrong(format!("field `{name}` is not a string or a list of strings")))
    };
    match value {
        Value::Array(values) => values.iter().map(one).collect(),
        value => Ok(vec![one(value)?]),
    }
}

//! Any value of the summary in a table of any rows and columns.
//!
//! What is neither row nor column is averaged over if it is task or length (each of the same weight, perplexities never),
//! and has a table of its own otherwise: models, protocols and settings are never mixed.

use std::cmp::Ordering;

use serde_json::{Map, Value as Json, json};

use super::Report;
use super::csv::COLUMNS;
use super::format::{direction, distinct, number, setting_name, signed, tokens};
use super::means;
use crate::error::UsageError;
use crate::eval::checks::Warning;
use crate::eval::record::SummaryRow;
use crate::eval::stats::{Estimate, mean};
use crate::eval::summary::{REFERENCE, natural};

/// Something that rows of the summary differ in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dimension {
    /// Model id.
    Model,
    /// Where sparse attention started.
    Protocol,
    /// Full task name.
    Task,
    /// Length asked for.
    Length,
    /// Method with those of its parameters that are no dimension themselves.
    Method,
    /// One parameter of methods; rows of methods without it are left out.
    Param(String),
}

impl Dimension {
    /// Reads a name; what is no field of the summary is a parameter of a method.
    pub fn parse(name: &str) -> Self {
        match name {
            "model" => Self::Model,
            "protocol" => Self::Protocol,
            "task" => Self::Task,
            "length" => Self::Length,
            "method" => Self::Method,
            param => Self::Param(param.to_owned()),
        }
    }

    /// Its name, as parsed.
    pub fn name(&self) -> &str {
        match self {
            Self::Model => "model",
            Self::Protocol => "protocol",
            Self::Task => "task",
            Self::Length => "length",
            Self::Method => "method",
            Self::Param(name) => name,
        }
    }

    fn is_param(&self) -> bool {
        matches!(self, Self::Param(_))
    }
}

/// What tables to make.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// Dimensions downwards.
    pub rows: Vec<Dimension>,
    /// Dimensions to the right.
    pub columns: Vec<Dimension>,
    /// Columns of `summary.csv` to show, a table each.
    pub values: Vec<String>,
}

impl Layout {
    /// Reads lists of names: dimensions down, dimensions to the right, and values.
    ///
    /// # Errors
    /// Unknown or repeated names; `known` are the rows that are to be shown.
    pub fn parse(
        rows: &[String],
        columns: &[String],
        values: &[String],
        known: &[SummaryRow],
    ) -> Result<Self, UsageError> {
        let parse = |names: &[String]| names.iter().map(|name| Dimension::parse(name)).collect::<Vec<_>>();
        let layout =
            Self { rows: parse(rows), columns: parse(columns), values: values.iter().map(|v| value_name(v)).collect() };
        let all: Vec<&Dimension> = layout.dimensions().collect();
        let params = distinct(known.iter().flat_map(|r| params(r).into_iter().map(|(key, _)| key)));
        for (i, dimension) in all.iter().enumerate() {
            if all[..i].contains(dimension) {
                return Err(UsageError::new(format!("`{}` is given twice among rows and columns", dimension.name()))
                    .hint("each of model, protocol, task, length, method or a parameter can be used once"));
            }
            if dimension.is_param() && !params.contains(&dimension.name()) {
                let names = ["model", "protocol", "task", "length", "method"].into_iter().chain(params.iter().copied());
                return Err(UsageError::unknown("dimension", dimension.name(), names));
            }
        }
        for value in &layout.values {
            if !shown_values().any(|known| known == value) {
                return Err(UsageError::unknown("value", value, shown_values()));
            }
        }
        Ok(layout)
    }

    fn dimensions(&self) -> impl Iterator<Item = &Dimension> {
        self.rows.iter().chain(&self.columns)
    }

    fn has(&self, dimension: &Dimension) -> bool {
        self.dimensions().any(|d| d == dimension)
    }
}

/// Columns of the summary that are no values of a table: what rows are told apart by, and text.
const TEXT: [&str; 7] = ["model", "task", "length", "method", "params", "protocol", "measure"];

/// Values that a table can show: the summary's numbers but the ends of intervals, which come with their means; and
/// `delta`, which is short for `delta_full`.
fn shown_values() -> impl Iterator<Item = &'static str> {
    let is_end = |column: &str| column.ends_with("_low") || column.ends_with("_high");
    let numbers = COLUMNS.into_iter().filter(move |column| !TEXT.contains(column) && !is_end(column));
    numbers.chain(["delta"])
}

fn value_name(name: &str) -> String {
    if name == "delta" { "delta_full".to_owned() } else { name.to_owned() }
}

/// A table of one value.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// What all of it shares, and what was averaged.
    pub caption: String,
    /// The column of the summary that it shows.
    pub value: String,
    /// Names of the dimensions downwards.
    pub row_names: Vec<String>,
    /// Names of the dimensions to the right.
    pub column_names: Vec<String>,
    /// Values of the dimensions of each line.
    pub rows: Vec<Vec<String>>,
    /// Values of the dimensions of each column.
    pub columns: Vec<Vec<String>>,
    /// What is shared by all of the table, by name of the dimension.
    pub fixed: Vec<(String, String)>,
    /// The cells, by lines.
    pub cells: Vec<Vec<Option<Entry>>>,
    /// What is to be known of marked cells, from 1.
    pub notes: Vec<String>,
}

/// A cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The value, or its mean.
    pub value: f64,
    /// Its 95 % interval, for scores and differences of more than one context.
    pub ends: Option<(f64, f64)>,
    /// Examples in it.
    pub n: usize,
    /// Rows of the summary it is the mean of.
    pub averaged: usize,
    /// Numbers of the notes about it, from 1.
    pub notes: Vec<usize>,
    /// For text: whether the value is a perplexity.
    is_perplexity: bool,
}

/// The tables of a layout, by what is not averaged, and in it by value. Tables without a value are left out.
pub fn tables(report: &Report, layout: &Layout) -> Vec<Table> {
    let shown: Vec<usize> = (0..report.rows.len()).filter(|i| has_params(&report.rows[*i], layout)).collect();
    let apart = |i: &usize| table_of(&report.rows[*i], layout);
    let mut tables = Vec::new();
    for group in distinct(shown.iter().map(apart)) {
        let of: Vec<usize> = shown.iter().copied().filter(|i| apart(i) == group).collect();
        tables.extend(layout.values.iter().map(|value| table(report, layout, &group, &of, value)));
    }
    tables.retain(|t| t.cells.iter().flatten().any(Option::is_some));
    tables
}

fn params(row: &SummaryRow) -> Vec<(&str, &str)> {
    row.params.split(',').filter_map(|p| p.split_once('=')).collect()
}

fn has_params(row: &SummaryRow, layout: &Layout) -> bool {
    let params = params(row);
    layout.dimensions().filter(|d| d.is_param()).all(|d| params.iter().any(|(key, _)| *key == d.name()))
}

/// The value of a dimension as it is shown.
fn shown(row: &SummaryRow, dimension: &Dimension, layout: &Layout) -> String {
    match dimension {
        Dimension::Model => row.model.clone(),
        Dimension::Protocol => row.protocol.clone(),
        Dimension::Task => format!("{}{}", row.task, direction(row)),
        Dimension::Length if row.length == 0 => "as is".to_owned(),
        Dimension::Length => tokens(row.length),
        Dimension::Method => {
            let used = |key: &str| layout.dimensions().any(|d| d.is_param() && d.name() == key);
            let rest = row.params.split(',').filter(|p| p.split_once('=').is_none_or(|(key, _)| !used(key)));
            setting_name(&row.method, &rest.collect::<Vec<_>>().join(","))
        }
        Dimension::Param(name) => {
            params(row).iter().find(|(key, _)| key == name).map(|(_, value)| (*value).to_owned()).unwrap_or_default()
        }
    }
}

/// What a table is about: the dimensions that are neither shown nor averaged.
fn table_of(row: &SummaryRow, layout: &Layout) -> Vec<(String, String)> {
    let mut all = vec![Dimension::Model, Dimension::Protocol, Dimension::Method];
    if !row.measure.is_score() {
        all.extend([Dimension::Task, Dimension::Length]);
    }
    let apart = all.into_iter().filter(|d| !layout.has(d));
    let mut fixed: Vec<(String, String)> = apart.map(|d| (d.name().to_owned(), shown(row, &d, layout))).collect();
    fixed.push(("measure".to_owned(), row.measure.name().to_owned()));
    fixed
}

/// The values of some dimensions in all rows, in the order of the summary; lengths and parameters by their size.
fn headings(rows: &[&SummaryRow], dimensions: &[Dimension], layout: &Layout) -> Vec<Vec<String>> {
    let of = |row: &&SummaryRow| dimensions.iter().map(|d| shown(row, d, layout)).collect::<Vec<_>>();
    let sizes = |row: &&SummaryRow| (of(row), row.length);
    let with_length = distinct(rows.iter().map(sizes));
    let first = |i: usize, value: &String| with_length.iter().position(|(h, _)| h[i] == *value).unwrap_or(usize::MAX);
    let length_of = |i: usize, value: &String| with_length.iter().find(|(h, _)| h[i] == *value).map_or(0, |(_, l)| *l);
    let mut headings = distinct(rows.iter().map(of));
    headings.sort_by(|a, b| {
        let compare = |i: usize| match dimensions[i] {
            Dimension::Length => length_of(i, &a[i]).cmp(&length_of(i, &b[i])),
            Dimension::Param(_) => natural(&a[i], &b[i]),
            _ => first(i, &a[i]).cmp(&first(i, &b[i])),
        };
        (0..dimensions.len()).map(compare).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    });
    headings
}

fn table(report: &Report, layout: &Layout, fixed: &[(String, String)], of: &[usize], value: &str) -> Table {
    let all: Vec<&SummaryRow> = of.iter().map(|i| &report.rows[*i]).collect();
    let (rows, columns) = (headings(&all, &layout.rows, layout), headings(&all, &layout.columns, layout));
    let names = |dimensions: &[Dimension]| dimensions.iter().map(|d| d.name().to_owned()).collect();
    let mut notes = Vec::new();
    let cells = rows
        .iter()
        .map(|row| {
            columns
                .iter()
                .map(|column| {
                    let is_here = |i: &&usize| {
                        let at = |dimensions: &[Dimension], heading: &[String]| {
                            dimensions
                                .iter()
                                .zip(heading)
                                .all(|(d, value)| shown(&report.rows[**i], d, layout) == *value)
                        };
                        at(&layout.rows, row) && at(&layout.columns, column)
                    };
                    let here: Vec<usize> = of.iter().filter(is_here).copied().collect();
                    entry(report, &here, value, &mut notes)
                })
                .collect()
        })
        .collect();
    let mut table = Table {
        caption: String::new(),
        value: value.to_owned(),
        row_names: names(&layout.rows),
        column_names: names(&layout.columns),
        rows,
        columns,
        fixed: fixed.to_vec(),
        cells,
        notes,
    };
    table.mark_incomplete();
    table.caption = caption(&table, &all, layout);
    table
}

fn caption(table: &Table, rows: &[&SummaryRow], layout: &Layout) -> String {
    let what = match table.value.as_str() {
        "score" => {
            if rows.iter().all(|r| r.measure.is_score()) {
                "score in %"
            } else {
                "perplexity (less is better)"
            }
        }
        "delta_full" => "difference to full",
        other => other,
    };
    let shared: Vec<String> = table
        .fixed
        .iter()
        .filter(|(name, _)| name != "measure")
        .map(|(name, value)| if name == "protocol" { format!("sparse from {value}") } else { value.clone() })
        .collect();
    let mut averaged = Vec::new();
    let tasks = distinct(rows.iter().map(|r| r.task.as_str())).len();
    let lengths = distinct(rows.iter().map(|r| r.length));
    if !layout.has(&Dimension::Task) && tasks > 1 {
        averaged.push(format!("{tasks} tasks"));
    }
    if !layout.has(&Dimension::Length) {
        match lengths.as_slice() {
            [length] if *length > 0 => averaged.push(format!("{} tokens", tokens(*length))),
            [_] => {}
            several => averaged.push(format!("{} lengths", several.len())),
        }
    }
    let over = if tasks > 1 && !layout.has(&Dimension::Task) || lengths.len() > 1 && !layout.has(&Dimension::Length) {
        format!(", mean over {}", averaged.join(" and "))
    } else if averaged.is_empty() {
        String::new()
    } else {
        format!(", {}", averaged.join(", "))
    };
    let shared = if shared.is_empty() { String::new() } else { format!(": {}", shared.join(", ")) };
    format!("{what}{shared}{over}")
}

fn entry(report: &Report, here: &[usize], value: &str, notes: &mut Vec<String>) -> Option<Entry> {
    let rows: Vec<&SummaryRow> = here.iter().map(|i| &report.rows[*i]).collect();
    let first = rows.first()?;
    let estimate = match value {
        "score" => means::score(&rows),
        "delta_full" if first.method == REFERENCE => None,
        "delta_full" => means::delta(&rows),
        "detectable" => means::detectable(&rows).map(|mean| Estimate { mean, ends: None }),
        _ => {
            let values: Vec<f64> = rows.iter().map(|r| field(r, value)).collect::<Option<_>>()?;
            Some(Estimate { mean: mean(&values), ends: None })
        }
    }?;
    let about = report.warnings.iter().filter(|w| rows.iter().any(|r| is_about(w, r)));
    let mut number = |w: &Warning| {
        let text = format!("`{}` {w}", w.code);
        let known = notes.iter().position(|n| *n == text).unwrap_or_else(|| {
            notes.push(text);
            notes.len() - 1
        });
        known + 1
    };
    Some(Entry {
        value: estimate.mean,
        ends: estimate.ends,
        n: rows.iter().map(|r| r.n).sum(),
        averaged: rows.len(),
        notes: distinct(about.map(&mut number)),
        is_perplexity: !first.measure.is_score(),
    })
}

/// Whether a warning concerns a row.
pub fn is_about(w: &Warning, r: &SummaryRow) -> bool {
    (&w.model, &w.protocol, &w.task, w.length) == (&r.model, &r.protocol, &r.task, r.length)
        && w.method.as_ref().is_none_or(|method| *method == r.method)
        && w.params.as_ref().is_none_or(|params| *params == r.params)
}

/// A numeric column of the summary by its name.
fn field(row: &SummaryRow, name: &str) -> Option<f64> {
    serde_json::to_value(row).ok()?.get(name)?.as_f64()
}

impl Table {
    /// Marks cells that are means of fewer rows than the others of their table.
    fn mark_incomplete(&mut self) {
        let most = self.cells.iter().flatten().flatten().map(|e| e.averaged).max().unwrap_or(0);
        for entry in self.cells.iter_mut().flatten().flatten().filter(|e| e.averaged < most) {
            let text =
                format!("mean over {} of {most} tasks and lengths: not to be compared with the others", entry.averaged);
            let known = self.notes.iter().position(|n| *n == text).unwrap_or_else(|| {
                self.notes.push(text);
                self.notes.len() - 1
            });
            entry.notes.push(known + 1);
        }
    }

    /// The value of a cell as text, with its interval, without its notes.
    pub fn text(&self, entry: &Entry) -> String {
        let shown = |x: f64| match self.value.as_str() {
            _ if entry.is_perplexity && self.value == "score" => format!("{x:.3}"),
            _ if entry.is_perplexity && self.value == "delta_full" => signed(x, 3),
            "score" | "same_top" | "acc" | "acc_norm" => format!("{x:.1}"),
            "delta_full" => signed(x, 1),
            "n" => format!("{x:.0}"),
            _ => number(x),
        };
        match entry.ends {
            Some((low, high)) => format!("{} [{} {}]", shown(entry.value), shown(low), shown(high)),
            None => shown(entry.value),
        }
    }

    /// The headings of the columns, those of the dimensions downwards first.
    pub fn headings(&self) -> Vec<String> {
        let joined = |heading: &Vec<String>| if heading.is_empty() { self.value.clone() } else { heading.join(", ") };
        self.row_names.iter().cloned().chain(self.columns.iter().map(joined)).collect()
    }

    /// The cells as objects: each with the values of all dimensions, `value`, `low`, `high`, `n`, `averaged` and its notes.
    fn objects(&self) -> Vec<Map<String, Json>> {
        let mut objects = Vec::new();
        for (row, line) in self.rows.iter().zip(&self.cells) {
            for (column, entry) in self.columns.iter().zip(line) {
                let Some(entry) = entry else { continue };
                let named = self.fixed.iter().map(|(name, value)| (name, value));
                let named = named.chain(self.row_names.iter().zip(row)).chain(self.column_names.iter().zip(column));
                let mut object: Map<String, Json> = named.map(|(name, value)| (name.clone(), json!(value))).collect();
                let notes: Vec<&str> = entry.notes.iter().map(|n| self.notes[n - 1].as_str()).collect();
                object.insert("name".to_owned(), json!(self.value));
                object.insert("value".to_owned(), json!(entry.value));
                object.insert("low".to_owned(), json!(entry.ends.map(|e| e.0)));
                object.insert("high".to_owned(), json!(entry.ends.map(|e| e.1)));
                object.insert("n".to_owned(), json!(entry.n));
                object.insert("averaged".to_owned(), json!(entry.averaged));
                object.insert("notes".to_owned(), json!(notes));
                objects.push(object);
            }
        }
        objects
    }
}

/// Tables as one JSON array with an object a cell.
pub fn json(tables: &[Table]) -> String {
    let all: Vec<Map<String, Json>> = tables.iter().flat_map(Table::objects).collect();
    format!("{:#}\n", json!(all))
}

/// Tables as CSV with a line a cell (tidy data): the dimensions of all tables, then what [`json()`] has.
///
/// # Errors
/// None in practice; the writer's signature has one.
pub fn csv(tables: &[Table]) -> anyhow::Result<String> {
    let objects: Vec<Map<String, Json>> = tables.iter().flat_map(Table::objects).collect();
    let mut names = distinct(objects.iter().flat_map(|o| o.keys().cloned()));
    // What only some tables have would else follow the values.
    const LAST: [&str; 7] = ["name", "value", "low", "high", "n", "averaged", "notes"];
    names.sort_by_key(|name| LAST.iter().position(|last| last == name).map_or(0, |at| at + 1));
    let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
    writer.write_record(&names)?;
    for object in &objects {
        let text = |name: &String| match object.get(name) {
            Some(Json::String(text)) => text.clone(),
            Some(Json::Array(notes)) => notes.iter().filter_map(Json::as_str).collect::<Vec<_>>().join("; "),
            Some(Json::Null) | None => String::new(),
            Some(other) => other.to_string(),
        };
        writer.write_record(names.iter().map(text))?;
    }
    Ok(String::from_utf8(writer.into_inner().map_err(|e| e.into_error())?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::record::Record;
    use crate::eval::record::tests::{perplexity, record};

    fn at(task: &str, length: usize, method: &str, params: &str, sample: usize, score: f64) -> Record {
        let key = format!("{task}{length}{method}{params}{sample}");
        // Without a limit for what is generated, no length has to be filled.
        Record { length, params: params.into(), key, max_new_tokens: 0, ..record(task, method, sample, score) }
    }

    fn records() -> Vec<Record> {
        let mut records = Vec::new();
        for task in ["ruler/vt", "ruler/cwe"] {
            for length in [1024, 16384, 4096] {
                records.push(at(task, length, "full", "", 0, 1.0));
                for (params, score) in [("K=10,L=75,sink=4", 0.5), ("K=8,L=75,sink=4", 0.75)] {
                    records.push(at(task, length, "magicpig", params, 0, score));
                }
            }
        }
        records
    }

    fn layout(rows: &[&str], columns: &[&str], value: &str, report: &Report) -> Result<Layout, UsageError> {
        let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        Layout::parse(&owned(rows), &owned(columns), &[value.to_owned()], &report.rows)
    }

    fn made(records: &[Record], rows: &[&str], columns: &[&str], value: &str) -> Vec<Table> {
        let report = Report::new(records, &[]);
        tables(&report, &layout(rows, columns, value, &report).unwrap())
    }

    fn texts(table: &Table) -> Vec<Vec<String>> {
        let text = |e: &Option<Entry>| e.as_ref().map_or(String::new(), |e| table.text(e));
        table.cells.iter().map(|line| line.iter().map(text).collect()).collect()
    }

    #[test]
    fn values_are_the_numbers_of_the_summary() {
        assert!(TEXT.iter().all(|column| COLUMNS.contains(column)), "a column was renamed");
        let shown: Vec<&str> = shown_values().collect();
        for known in ["n", "score", "delta_full", "density", "dropped_mass_max", "kl_mean", "acc_norm", "delta"] {
            assert!(shown.contains(&known), "{known}");
        }
        assert!(!shown.contains(&"ci_low") && !shown.contains(&"delta_high") && !shown.contains(&"method"));
        assert_eq!(shown.len(), COLUMNS.len() - TEXT.len() - 4 + 1);
    }

    #[test]
    fn methods_by_lengths_are_means_over_tasks_in_order_of_size() {
        let tables = made(&records(), &["method"], &["length"], "delta");
        assert_eq!(tables.len(), 1);
        assert_eq!(tables[0].headings(), ["method", "1K", "4K", "16K"]);
        assert_eq!(tables[0].rows, [["full"], ["magicpig K=8,L=75,sink=4"], ["magicpig K=10,L=75,sink=4"]]);
        let cell = "-25.0";
        assert_eq!(texts(&tables[0])[..2], [vec![String::new(); 3], vec![cell.to_owned(); 3]]);
        assert!(
            tables[0].caption.contains("builtin, sparse from question, mean over 2 tasks"),
            "{}",
            tables[0].caption
        );
    }

    #[test]
    fn parameters_make_tables_of_the_methods_that_have_them() {
        let tables = made(&records(), &["K"], &["L"], "score");
        assert_eq!(tables.len(), 1, "full has no K");
        assert_eq!(
            (&tables[0].rows, texts(&tables[0])),
            (
                &vec![vec!["8".to_owned()], vec!["10".to_owned()]],
                vec![vec!["75.0".to_owned()], vec!["50.0".to_owned()]],
            )
        );
        assert!(tables[0].caption.contains("magicpig sink=4"), "{}", tables[0].caption);
    }

    #[test]
    fn models_and_perplexities_are_not_averaged() {
        let mut records = records();
        records.push(Record { model: "other".into(), ..at("ruler/vt", 1024, "full", "", 0, 0.0) });
        records.extend([perplexity("full", 0, 1.0), Record { task: "ppl/b".into(), ..perplexity("full", 0, 2.0) }]);
        let tables = made(&records, &["method"], &["length"], "score");
        let captions: Vec<&str> = tables.iter().map(|t| t.caption.as_str()).collect();
        assert_eq!(captions.len(), 4, "{captions:?}");
        assert!(captions[1].contains("perplexity") && captions[1].contains("ppl/"), "{captions:?}");
    }

    #[test]
    fn what_is_suspect_or_incomplete_is_marked() {
        let mut records = records();
        records[1].prediction = String::new();
        records.push(at("ruler/vt", 1024, "quest", "", 0, 1.0));
        let table = made(&records, &["method"], &["length"], "score").remove(0);
        let noted: Vec<&str> = table.notes.iter().map(String::as_str).collect();
        assert!(noted[0].contains("`empty_predictions` ruler/vt at 1024, magicpig:K=10,L=75,sink=4"), "{noted:?}");
        assert!(noted[1].contains("mean over 1 of 2 tasks"), "{noted:?}");
        let marked = |line: usize| table.cells[line][0].as_ref().unwrap().notes.clone();
        let line = |name: &str| table.rows.iter().position(|r| r[0].starts_with(name)).unwrap();
        assert_eq!((marked(line("magicpig K=10")), marked(line("quest"))), (vec![1], vec![2]));
        let text = csv(&[table]).unwrap();
        assert!(
            text.starts_with("model,protocol,measure,method,length,name,value,low,high,n,averaged,notes\n"),
            "{text}"
        );
    }

    #[test]
    fn unknown_names_are_mistakes() {
        let made = records();
        let report = Report::new(&made, &[]);
        let message = |rows: &[&str], columns: &[&str], value| layout(rows, columns, value, &report).unwrap_err();
        assert!(message(&["taks"], &[], "score").hint.unwrap().contains("task"));
        assert!(message(&["task"], &["task"], "score").what.contains("twice"));
        assert!(message(&["task"], &[], "scores").hint.unwrap().contains("score"));
    }
}

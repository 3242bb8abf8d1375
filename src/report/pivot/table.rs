//! The table of a pivot, and the forms that need no layout: JSON, and CSV with a line for each cell.

use serde_json::{Map, Value as Json, json};

use super::layout::NAMES;
use crate::report::csv::finished;
use crate::report::format::{distinct, number, signed};
use spattn_attention::Role;
use spattn_eval::summary::warnings::MANY;

/// A table of one value.
#[derive(Debug, Clone, PartialEq)]
pub struct PivotTable {
    /// What all of the table shares, and what was averaged.
    pub caption: String,
    /// The summary's column that the table shows.
    pub value: String,
    /// The names of the rows' dimensions.
    pub row_names: Vec<String>,
    /// The names of the columns' dimensions.
    pub column_names: Vec<String>,
    /// The values of the dimensions of each row.
    pub rows: Vec<Vec<String>>,
    /// The values of the dimensions of each column.
    pub columns: Vec<Vec<String>>,
    /// The dimensions whose value the whole table shares, by name.
    pub fixed: Vec<(String, String)>,
    /// The cells, row by row.
    pub cells: Vec<Vec<Option<Entry>>>,
    /// Whether scores of methods were compared. If they were and none is the best, they could not be told apart.
    pub are_compared: bool,
    /// Notes about marked cells, numbered from 1.
    pub notes: Vec<String>,
    /// Notes about the whole table.
    pub general: Vec<String>,
}

/// A cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The value, or the mean of several.
    pub value: f64,
    /// Its 95 % interval, for scores and differences of more than one context.
    pub ends: Option<(f64, f64)>,
    /// The number of examples.
    pub n: usize,
    /// The number of summary rows that the value is the mean of.
    pub averaged: usize,
    /// The numbers of the notes about the cell, from 1.
    pub notes: Vec<usize>,
    /// Whether the value is a perplexity.
    pub is_perplexity: bool,
    /// The role of the method.
    pub role: Role,
    /// Whether this is the best score of a method in its column, or is not told from the best while others are. If columns hold scores that
    /// cannot be compared, such as those of different tasks, the same within its row.
    pub is_best: bool,
}

/// Notes as they are shown: several of one kind are shown as one.
pub struct ShownNotes {
    /// The texts, in order.
    pub texts: Vec<String>,
    /// For each note, the number of the text that stands for it, from 1.
    numbers: Vec<usize>,
}

impl ShownNotes {
    /// Groups the notes. A note's kind is the text in backticks at its beginning.
    pub fn of(notes: &[String]) -> Self {
        let kinds: Vec<Option<&str>> =
            notes.iter().map(|note| Some(note.strip_prefix('`')?.split_once('`')?.0)).collect();
        let (mut texts, mut numbers, mut known) = (Vec::new(), Vec::new(), Vec::new());
        for (note, kind) in notes.iter().zip(&kinds) {
            let (Some(name), count) = (kind, kinds.iter().filter(|other| *other == kind).count()) else {
                texts.push(note.clone());
                numbers.push(texts.len());
                continue;
            };
            if let Some((_, number)) = known.iter().find(|(other, _)| other == name && count >= MANY) {
                numbers.push(*number);
                continue;
            }
            let more =
                if count >= MANY { format!("; and {} more that are `{name}`", count - 1) } else { String::new() };
            texts.push(format!("{note}{more}"));
            numbers.push(texts.len());
            known.push((*name, texts.len()));
        }
        Self { texts, numbers }
    }

    /// The shown numbers for notes with these numbers (from 1), each once and in order.
    pub fn numbers(&self, notes: &[usize]) -> Vec<usize> {
        let mut shown: Vec<usize> = notes.iter().filter_map(|note| self.numbers.get(note - 1).copied()).collect();
        shown.sort_unstable();
        shown.dedup();
        shown
    }
}

/// Keeps the values at places where `kept` is true.
fn retain<T>(values: &mut Vec<T>, kept: &[bool]) {
    let mut kept = kept.iter();
    values.retain(|_| kept.next().copied().unwrap_or(false));
}

impl PivotTable {
    /// The range of the cells' numbers of examples, and the number of tasks and lengths in each; `None` for an empty table.
    pub fn about_n(&self) -> Option<String> {
        let entries = || self.cells.iter().flatten().flatten();
        let range = |of: fn(&Entry) -> usize| {
            let (least, most) = (entries().map(of).min()?, entries().map(of).max()?);
            Some(if least == most { least.to_string() } else { format!("{least} to {most}") })
        };
        let (n, averaged) = (range(|entry| entry.n)?, range(|entry| entry.averaged)?);
        Some(match averaged.as_str() {
            "1" => format!("n\u{a0}=\u{a0}{n} examples in each cell."),
            several => format!("n\u{a0}=\u{a0}{n} examples in each cell, of {several} tasks and lengths together."),
        })
    }

    /// The rows of the best entries in a column.
    pub fn best_lines(&self, column: usize) -> Vec<usize> {
        let is_best = |line: &usize| self.cells[*line][column].as_ref().is_some_and(|entry| entry.is_best);
        (0..self.cells.len()).filter(is_best).collect()
    }

    /// The table without rows and columns that have no value.
    pub(super) fn without_empty(mut self) -> Self {
        let has_value = |cells: &[Option<Entry>]| cells.iter().any(Option::is_some);
        let kept: Vec<bool> = self.cells.iter().map(|line| has_value(line)).collect();
        retain(&mut self.rows, &kept);
        retain(&mut self.cells, &kept);
        let kept: Vec<bool> =
            (0..self.columns.len()).map(|i| self.cells.iter().any(|line| line[i].is_some())).collect();
        retain(&mut self.columns, &kept);
        self.cells.iter_mut().for_each(|line| retain(line, &kept));
        self
    }

    /// The value of a cell as text, with its interval but without its notes.
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

    /// The headings of the columns, those of the rows' dimensions first.
    pub fn headings(&self) -> Vec<String> {
        // The value of a parameter says little without its name.
        let named = |(name, value): (&String, &String)| match NAMES.contains(&name.as_str()) {
            true => value.clone(),
            false => format!("{name}={value}"),
        };
        let joined = |heading: &Vec<String>| match heading.is_empty() {
            true => self.value.clone(),
            false => self.column_names.iter().zip(heading).map(named).collect::<Vec<_>>().join(", "),
        };
        self.row_names.iter().cloned().chain(self.columns.iter().map(joined)).collect()
    }

    /// The cells as objects, each with the values of all dimensions, `value`, `low`, `high`, `n`, `averaged` and its notes.
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

/// Tables as one JSON array with an object for each cell.
pub fn json(tables: &[PivotTable]) -> String {
    let all: Vec<Map<String, Json>> = tables.iter().flat_map(PivotTable::objects).collect();
    format!("{:#}\n", json!(all))
}

/// Tables as CSV with a line for each cell (tidy data): the dimensions of all tables, then the other fields of [`json()`].
///
/// # Errors
/// None in practice; the writer's signature has one.
pub fn csv(tables: &[PivotTable]) -> anyhow::Result<String> {
    let objects: Vec<Map<String, Json>> = tables.iter().flat_map(PivotTable::objects).collect();
    let mut names = distinct(objects.iter().flat_map(|o| o.keys().cloned()));
    // Dimensions that only some tables have would otherwise come after the values.
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
    finished(writer)
}

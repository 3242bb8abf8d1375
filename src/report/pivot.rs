//! Tables of any value of the summary, by any rows and columns.
//!
//! Tasks and lengths that are neither rows nor columns are averaged with equal weights, except for perplexities. Any other dimension that
//! is neither gets separate tables: models, protocols and settings are never mixed. All means of a table are over the same tasks and
//! lengths; if cells have different ones, there is a table for each set.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde_json::{Map, Value as Json, json};

use super::Report;
use super::best::{self, Candidate, Shown};
use super::csv::{COLUMNS, finished};
use super::format::{direction, distinct, number, params_without, setting_name, signed, tokens};
use super::{means, stand_ins};
use crate::eval::records::order::natural;
use crate::eval::records::record::REFERENCE;
use crate::eval::summary::cells::Cell;
use crate::eval::summary::self_checks::{MANY, Warning};
use crate::eval::summary::summarize;
use crate::eval::summary::summary_row::SummaryRow;
use spattn_attention::Role;
use spattn_base::error::UsageError;
use spattn_stats::{Estimate, mean};
use spattn_tasks::likelihood::Measure;

/// A property in which rows of the summary differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dimension {
    /// Model id.
    Model,
    /// Where sparse attention started.
    Protocol,
    /// Full task name.
    Task,
    /// The requested length.
    Length,
    /// Method, with the parameters that are not dimensions themselves.
    Method,
    /// Seed of the run. If it is not a dimension, the examples of all seeds are pooled.
    RunSeed,
    /// A parameter of methods, set or default. Rows of methods without it are left out.
    Param(String),
}

/// The names of dimensions that are not parameters.
const NAMES: [&str; 6] = ["model", "protocol", "task", "length", "method", RUN_SEED];
const RUN_SEED: &str = "run_seed";

impl Dimension {
    /// Reads a name. A name that is not a field of the summary is a parameter of a method.
    pub fn parse(name: &str) -> Self {
        match name {
            "model" => Self::Model,
            "protocol" => Self::Protocol,
            "task" => Self::Task,
            "length" => Self::Length,
            "method" => Self::Method,
            RUN_SEED => Self::RunSeed,
            param => Self::Param(param.to_owned()),
        }
    }

    /// The name, as [`parse`](Self::parse) reads it.
    pub fn name(&self) -> &str {
        match self {
            Self::Model => "model",
            Self::Protocol => "protocol",
            Self::Task => "task",
            Self::Length => "length",
            Self::Method => "method",
            Self::RunSeed => RUN_SEED,
            Self::Param(name) => name,
        }
    }

    fn is_param(&self) -> bool {
        matches!(self, Self::Param(_))
    }
}

/// Which tables to make.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// The dimensions of the lines.
    pub rows: Vec<Dimension>,
    /// The dimensions of the columns.
    pub columns: Vec<Dimension>,
    /// The columns of `summary.csv` to show, each in a table of its own.
    pub values: Vec<String>,
}

impl Layout {
    /// Reads the names of line dimensions, column dimensions, and values.
    ///
    /// # Errors
    /// For unknown or repeated names. `known` are the rows to show.
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
        let params: BTreeSet<&str> = known.iter().flat_map(|r| r.settings.keys().map(String::as_str)).collect();
        for (i, dimension) in all.iter().enumerate() {
            if all[..i].contains(dimension) {
                return Err(UsageError::new(format!("`{}` is given twice among rows and columns", dimension.name()))
                    .hint(format!("each of {} or a parameter can be used once", NAMES.join(", "))));
            }
            if dimension.is_param() && !params.contains(dimension.name()) {
                let unknown = UsageError::unknown("dimension", dimension.name(), NAMES.into_iter().chain(params));
                return Err(match dimension.name() {
                    "seed" => {
                        unknown.hint(format!("no method here has a parameter `seed`; a run's own is `{RUN_SEED}`"))
                    }
                    _ => unknown,
                });
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

/// Columns of the summary that cannot be values of a table: keys of rows, and text.
const TEXT: [&str; 9] = ["model", "task", "length", "method", "params", "protocol", "measure", "timed", "latency"];

/// The values that a table can show: the summary's numbers, except for ends of intervals, which are shown with their means; and `delta`,
/// short for `delta_full`.
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
    /// What all cells have in common, and what was averaged.
    pub caption: String,
    /// The summary's column that is shown.
    pub value: String,
    /// The names of the line dimensions.
    pub row_names: Vec<String>,
    /// The names of the column dimensions.
    pub column_names: Vec<String>,
    /// The values of the line dimensions, for each line.
    pub rows: Vec<Vec<String>>,
    /// The values of the column dimensions, for each column.
    pub columns: Vec<Vec<String>>,
    /// What all cells have in common, by name of the dimension.
    pub fixed: Vec<(String, String)>,
    /// The cells, by line.
    pub cells: Vec<Vec<Option<Entry>>>,
    /// The notes that cells refer to, counted from 1.
    pub notes: Vec<String>,
}

/// A cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The value, or the mean of several.
    pub value: f64,
    /// The ends of its 95 % interval, for scores and differences of more than one context.
    pub ends: Option<(f64, f64)>,
    /// The number of examples.
    pub n: usize,
    /// The number of summary rows in the mean.
    pub averaged: usize,
    /// The notes that it refers to, counted from 1.
    pub notes: Vec<usize>,
    /// Whether the value is a perplexity's.
    pub is_perplexity: bool,
    /// The role of its method.
    pub role: Role,
    /// Whether it is the best score of a method in its column, or noise does not distinguish it from that. If a column holds things that
    /// cannot be compared, such as tasks, the same in its line.
    pub is_best: bool,
}

/// The notes as shown, with several of one kind merged.
pub struct ShownNotes {
    /// The texts, in order.
    pub texts: Vec<String>,
    /// For each note, the number of the text that stands for it, counted from 1.
    numbers: Vec<usize>,
}

impl ShownNotes {
    /// Merges notes of the same kind. The kind is the text in backticks at their start.
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

    /// The numbers to show for some notes, counted from 1, ascending and without duplicates.
    pub fn numbers(&self, notes: &[usize]) -> Vec<usize> {
        let mut shown: Vec<usize> = notes.iter().filter_map(|note| self.numbers.get(note - 1).copied()).collect();
        shown.sort_unstable();
        shown.dedup();
        shown
    }
}

/// A row of the summary, for all seeds or for one.
#[derive(Clone, Copy)]
struct Line<'v> {
    seed: Option<u64>,
    row: &'v SummaryRow,
    cell: &'v Cell<'v>,
}

/// Rows with their cells, for all seeds or for one.
struct OfSeed<'v> {
    seed: Option<u64>,
    rows: Vec<SummaryRow>,
    cells: Vec<Cell<'v>>,
}

impl OfSeed<'_> {
    fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        self.rows.iter().zip(&self.cells).map(|(row, cell)| Line { seed: self.seed, row, cell })
    }
}

/// The rows of each seed.
fn by_seed<'v>(report: &Report<'v>) -> Vec<OfSeed<'v>> {
    let seeds: BTreeSet<u64> = report.cells.iter().flat_map(Cell::seeds).collect();
    let of_seed = |seed: u64| {
        let cells: Vec<Cell> = report.cells.iter().filter_map(|cell| cell.of_seed(seed)).collect();
        OfSeed { seed: Some(seed), rows: summarize::rows(&cells), cells }
    };
    seeds.into_iter().map(of_seed).collect()
}

/// The task and length that a value is averaged over; `None` for those that are dimensions of the table.
type Averaged<'a> = (Option<&'a str>, Option<usize>);

/// The tables of a layout, grouped by what is not averaged, and then by value. Tables without a value are left out.
pub fn tables(report: &Report, layout: &Layout) -> Vec<Table> {
    let rows = match layout.has(&Dimension::RunSeed) {
        true => by_seed(report),
        false => vec![OfSeed { seed: None, rows: report.rows.clone(), cells: report.cells.clone() }],
    };
    let lines = rows.iter().flat_map(OfSeed::lines);
    let (shown, left_out): (Vec<Line>, Vec<Line>) = lines.partition(|line| has_params(line.row, layout));
    let apart = |line: &Line| table_of(line, layout);
    let mut tables = Vec::new();
    for group in distinct(shown.iter().map(apart)) {
        let of: Vec<Line> = shown.iter().copied().filter(|line| apart(line) == group).collect();
        let notes = unknown_params(&of, &left_out, layout);
        for value in &layout.values {
            tables.extend(tables_of(report, layout, &group, &of, value).into_iter().map(|mut table| {
                table.notes.extend(notes.clone());
                table
            }));
        }
    }
    tables.retain(|t| t.cells.iter().flatten().any(Option::is_some));
    tables
}

fn has_params(row: &SummaryRow, layout: &Layout) -> bool {
    layout.dimensions().filter(|d| d.is_param()).all(|d| row.settings.contains_key(d.name()))
}

/// A note about rows that lack a parameter that other rows of their method have.
fn unknown_params(shown: &[Line], left_out: &[Line], layout: &Layout) -> Option<String> {
    let has_kin = |line: &&Line| shown.iter().any(|other| other.row.method == line.row.method);
    let without = left_out.iter().filter(has_kin).count();
    let names: Vec<&str> = layout.dimensions().filter(|d| d.is_param()).map(Dimension::name).collect();
    (without > 0).then(|| {
        format!(
            "{without} rows are left out: they do not say {}; either they have it not, or they are from before parameters \
             at their default were recorded",
            names.join(" or ")
        )
    })
}

/// The value of a dimension as text.
fn shown(line: &Line, dimension: &Dimension, layout: &Layout) -> String {
    let row = line.row;
    match dimension {
        Dimension::Model => row.model.clone(),
        Dimension::Protocol => row.protocol.clone(),
        Dimension::Task => format!("{}{}", row.task, direction(row)),
        Dimension::Length if row.length == 0 => "as is".to_owned(),
        Dimension::Length => tokens(row.length),
        Dimension::Method => {
            let used = |key: &str| layout.dimensions().any(|d| d.is_param() && d.name() == key);
            setting_name(&row.method, &params_without(row, used))
        }
        Dimension::RunSeed => line.seed.map_or_else(String::new, |seed| seed.to_string()),
        Dimension::Param(name) => row.settings.get(name).cloned().unwrap_or_default(),
    }
}

/// What a table is about: the dimensions that are neither shown nor averaged.
fn table_of(line: &Line, layout: &Layout) -> Vec<(String, String)> {
    let mut all = vec![Dimension::Model, Dimension::Protocol, Dimension::Method];
    if !line.row.measure.is_score() {
        all.extend([Dimension::Task, Dimension::Length]);
    }
    let apart = all.into_iter().filter(|d| !layout.has(d));
    let mut fixed: Vec<(String, String)> = apart.map(|d| (d.name().to_owned(), shown(line, &d, layout))).collect();
    fixed.push(("measure".to_owned(), line.row.measure.name().to_owned()));
    fixed
}

/// The values of some dimensions in all rows, in the order of the summary; lengths and parameters are sorted by size.
fn headings(lines: &[Line], dimensions: &[Dimension], layout: &Layout) -> Vec<Vec<String>> {
    let of = |line: &Line| dimensions.iter().map(|d| shown(line, d, layout)).collect::<Vec<_>>();
    let sizes = |line: &Line| (of(line), line.row.length);
    let with_length = distinct(lines.iter().map(sizes));
    let first = |i: usize, value: &String| with_length.iter().position(|(h, _)| h[i] == *value).unwrap_or(usize::MAX);
    let length_of = |i: usize, value: &String| with_length.iter().find(|(h, _)| h[i] == *value).map_or(0, |(_, l)| *l);
    let mut headings = distinct(lines.iter().map(of));
    headings.sort_by(|a, b| {
        let compare = |i: usize| match dimensions[i] {
            Dimension::Length => length_of(i, &a[i]).cmp(&length_of(i, &b[i])),
            Dimension::Param(_) | Dimension::RunSeed => natural(&a[i], &b[i]),
            _ => first(i, &a[i]).cmp(&first(i, &b[i])),
        };
        (0..dimensions.len()).map(compare).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    });
    headings
}

/// The tables of one value: one for each set of tasks and lengths that a cell has, with all cells that have at least these, and one for the
/// set that all cells share. Dense attention has no table of its own if there are others.
fn tables_of(report: &Report, layout: &Layout, fixed: &[(String, String)], of: &[Line], value: &str) -> Vec<Table> {
    let (rows, columns) = (headings(of, &layout.rows, layout), headings(of, &layout.columns, layout));
    let at = |line: &Line, dimensions: &[Dimension], headings: &[Vec<String>]| {
        headings.iter().position(|h| dimensions.iter().zip(h).all(|(d, value)| shown(line, d, layout) == *value))
    };
    let mut cells: Vec<Vec<Vec<Line>>> = vec![vec![Vec::new(); columns.len()]; rows.len()];
    for line in of.iter().filter(|line| has_value(line, value)) {
        if let (Some(row), Some(column)) = (at(line, &layout.rows, &rows), at(line, &layout.columns, &columns)) {
            cells[row][column].push(*line);
        }
    }
    let sets: Vec<BTreeSet<Averaged>> = (cells.iter().flatten())
        .filter(|lines| !lines.is_empty())
        .map(|lines| lines.iter().map(|line| averaged(line, layout)).collect())
        .collect();
    let all: BTreeSet<Averaged> = sets.iter().flatten().copied().collect();
    let names = |dimensions: &[Dimension]| dimensions.iter().map(|d| d.name().to_owned()).collect();
    let table = |scope: &BTreeSet<Averaged>| {
        let mut notes = Vec::new();
        let mut cell = |lines: &Vec<Line>| {
            let here = within(lines, scope, layout);
            (here.len() == scope.len()).then(|| entry(report, &here, value, &mut notes)).flatten()
        };
        let mut entries: Vec<Vec<Option<Entry>>> =
            cells.iter().map(|row| row.iter().map(&mut cell).collect()).collect();
        if value == "score" {
            mark_best(&mut entries, |row, column| within(&cells[row][column], scope, layout));
        }
        let mut table = Table {
            caption: caption(value, layout, fixed, scope, &all),
            value: value.to_owned(),
            row_names: names(&layout.rows),
            column_names: names(&layout.columns),
            rows: rows.clone(),
            columns: columns.clone(),
            fixed: fixed.to_vec(),
            cells: entries,
            notes,
        };
        if scope.len() < all.len() {
            table.fixed.push(("over".to_owned(), over(scope).join(", ")));
        }
        table.without_empty()
    };
    let shared = means::shared_sets(&sets);
    let mut tables: Vec<Table> = shared.iter().filter(|scope| !scope.is_empty()).map(table).collect();
    if tables.len() > 1 {
        tables.retain(|table| table.cells.iter().flatten().flatten().any(|entry| entry.role != Role::Reference));
    }
    tables
}

/// The lines within a scope.
fn within<'v>(lines: &[Line<'v>], scope: &BTreeSet<Averaged>, layout: &Layout) -> Vec<Line<'v>> {
    lines.iter().copied().filter(|line| scope.contains(&averaged(line, layout))).collect()
}

fn averaged<'v>(line: &Line<'v>, layout: &Layout) -> Averaged<'v> {
    let task = (!layout.has(&Dimension::Task)).then_some(line.row.task.as_str());
    (task, (!layout.has(&Dimension::Length)).then_some(line.row.length))
}

fn has_value(line: &Line, value: &str) -> bool {
    match value {
        "score" => true,
        "delta_full" => line.row.method != REFERENCE && line.row.delta_full.is_some(),
        _ => field(line.row, value).is_some(),
    }
}

/// Tasks and lengths as text.
fn over(scope: &BTreeSet<Averaged>) -> Vec<String> {
    let tasks = distinct(scope.iter().filter_map(|(task, _)| *task));
    let lengths = distinct(scope.iter().filter_map(|(_, length)| *length).filter(|length| *length > 0));
    let whole =
        scope.len() == tasks.len().max(1) * scope.iter().map(|(_, length)| length).collect::<BTreeSet<_>>().len();
    match whole {
        true => tasks.into_iter().map(str::to_owned).chain(lengths.into_iter().map(tokens)).collect(),
        false => {
            let pair = |(task, length): &Averaged| {
                let length = length.filter(|length| *length > 0).map(|length| format!(" at {}", tokens(length)));
                format!("{}{}", task.unwrap_or_default(), length.unwrap_or_default()).trim().to_owned()
            };
            scope.iter().map(pair).collect()
        }
    }
}

fn caption(
    value: &str,
    layout: &Layout,
    fixed: &[(String, String)],
    scope: &BTreeSet<Averaged>,
    all: &BTreeSet<Averaged>,
) -> String {
    let is_score = fixed.iter().any(|(name, value)| name == "measure" && *value == Measure::Score.name());
    let what = match value {
        "score" if is_score => "score in %",
        "score" => "perplexity (less is better)",
        "delta_full" => "difference to full",
        other => other,
    };
    let shared: Vec<String> = (fixed.iter())
        .filter(|(name, _)| name != "measure")
        .map(|(name, value)| if name == "protocol" { format!("sparse from {value}") } else { value.clone() })
        .collect();
    let shared = if shared.is_empty() { String::new() } else { format!(": {}", shared.join(", ")) };
    let tasks = distinct(scope.iter().filter_map(|(task, _)| *task));
    let note = stand_ins::note(&tasks).filter(|_| tasks.len() > 1).map_or(String::new(), |note| format!("; {note}"));
    let by = layout.dimensions().map(Dimension::name).collect::<Vec<_>>().join(" and ");
    format!("{what} by {by}{shared}{}{note}", averaged_text(scope, all))
}

/// What values are means over; or the task and length, if there is only one.
fn averaged_text(scope: &BTreeSet<Averaged>, all: &BTreeSet<Averaged>) -> String {
    let count = |of: &BTreeSet<Averaged>| {
        let tasks = of.iter().filter_map(|(task, _)| *task).collect::<BTreeSet<_>>().len();
        (tasks, of.iter().filter_map(|(_, length)| *length).collect::<BTreeSet<_>>())
    };
    let (tasks, lengths) = count(scope);
    if scope.len() < all.len() {
        let named = over(scope).join(", ");
        return match scope.len() {
            1 => format!(", {named} only"),
            n => format!(", mean over {n} of {} that differ in task and length: {named}", all.len()),
        };
    }
    let mut averaged = Vec::new();
    if tasks > 1 {
        averaged.push(format!("{tasks} tasks"));
    }
    match lengths.iter().copied().collect::<Vec<_>>().as_slice() {
        [] | [0] => {}
        [length] => averaged.push(format!("{} tokens", tokens(*length))),
        several => averaged.push(format!("{} lengths", several.len())),
    }
    match averaged.is_empty() {
        true => String::new(),
        false if scope.len() > 1 => format!(", mean over {}", averaged.join(" and ")),
        false => format!(", {}", averaged.join(", ")),
    }
}

fn entry(report: &Report, here: &[Line], value: &str, notes: &mut Vec<String>) -> Option<Entry> {
    let rows: Vec<&SummaryRow> = here.iter().map(|line| line.row).collect();
    let first = rows.first()?;
    let estimate = match value {
        "score" => means::score(&rows),
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
        role: Role::of(&first.method),
        is_best: false,
    })
}

/// Marks the best of a table's scores. `lines_of` gives the rows behind each entry.
fn mark_best<'v>(entries: &mut [Vec<Option<Entry>>], lines_of: impl Fn(usize, usize) -> Vec<Line<'v>>) {
    let mut shown = Vec::new();
    for (row, line) in entries.iter().enumerate() {
        let methods = line.iter().enumerate().filter_map(|(column, entry)| Some((column, entry.as_ref()?)));
        for (column, entry) in methods.filter(|(_, entry)| entry.role == Role::Method) {
            let here = lines_of(row, column);
            let candidate = Candidate { score: entry.value, cells: here.iter().map(|line| line.cell).collect() };
            shown.push(Shown { at: (row, column), seed: here.first().and_then(|line| line.seed), candidate });
        }
    }
    for (row, column) in best::of_table(&shown) {
        entries[row][column].iter_mut().for_each(|entry| entry.is_best = true);
    }
}

/// Keeps the values whose entry in `kept` is true.
fn retain<T>(values: &mut Vec<T>, kept: &[bool]) {
    let mut kept = kept.iter();
    values.retain(|_| kept.next().copied().unwrap_or(false));
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
    /// The lines with the best entries of a column.
    pub fn best_lines(&self, column: usize) -> Vec<usize> {
        let is_best = |line: &usize| self.cells[*line][column].as_ref().is_some_and(|entry| entry.is_best);
        (0..self.cells.len()).filter(is_best).collect()
    }

    /// The table without lines and columns that have no value.
    fn without_empty(mut self) -> Self {
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

    /// A cell's value with its interval as text, without notes.
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

    /// The headings of all columns; those of the line dimensions come first.
    pub fn headings(&self) -> Vec<String> {
        // A parameter's value says little without its name.
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

/// Tables as one JSON array with one object for each cell.
pub fn json(tables: &[Table]) -> String {
    let all: Vec<Map<String, Json>> = tables.iter().flat_map(Table::objects).collect();
    format!("{:#}\n", json!(all))
}

/// Tables as CSV with one line for each cell (tidy data): the dimensions of all tables, then the fields of [`json()`].
///
/// # Errors
/// None in practice; the writer's signature has one.
pub fn csv(tables: &[Table]) -> anyhow::Result<String> {
    let objects: Vec<Map<String, Json>> = tables.iter().flat_map(Table::objects).collect();
    let mut names = distinct(objects.iter().flat_map(|o| o.keys().cloned()));
    // Otherwise, dimensions that only some tables have would come after the values.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::records::record::Record;
    use crate::eval::records::record::tests::{perplexity, record};
    use std::collections::BTreeMap;

    fn at(task: &str, length: usize, method: &str, params: &str, sample: usize, score: f64) -> Record {
        let key = format!("{task}{length}{method}{params}{sample}");
        // Without a limit on generated tokens, examples need not fill the length.
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
    fn many_notes_of_a_kind_are_shown_as_one() {
        let notes: Vec<String> =
            ["`a` 1", "`b` 1", "`a` 2", "one of its own", "`a` 3", "`b` 2", "`a` 4"].map(str::to_owned).to_vec();
        let shown = ShownNotes::of(&notes);
        assert_eq!(shown.texts, ["`a` 1; and 3 more that are `a`", "`b` 1", "one of its own", "`b` 2"]);
        assert_eq!(shown.numbers(&[1, 2, 7]), [1, 2]);
        assert_eq!(shown.numbers(&[4, 6, 5]), [1, 3, 4]);
        assert_eq!(ShownNotes::of(&notes[..4]).texts, notes[..4], "two of a kind are told apart");
    }

    #[test]
    fn values_are_the_numbers_of_the_summary() {
        assert!(TEXT.iter().all(|column| COLUMNS.contains(column)), "a column was renamed");
        let shown: Vec<&str> = shown_values().collect();
        for known in ["n", "score", "delta_full", "density", "dropped_mass_max", "kl_mean", "acc_norm", "delta"] {
            assert!(shown.contains(&known), "{known}");
        }
        assert!(!shown.contains(&"ci_low") && !shown.contains(&"delta_high") && !shown.contains(&"method"));
        assert_eq!(shown.len(), COLUMNS.len() - TEXT.len() - 6 + 1);
    }

    #[test]
    fn methods_by_lengths_are_means_over_tasks_in_order_of_size() {
        let tables = made(&records(), &["method"], &["length"], "delta");
        assert_eq!(tables.len(), 1);
        assert_eq!(tables[0].headings(), ["method", "1K", "4K", "16K"]);
        assert_eq!(tables[0].rows, [["magicpig K=8,L=75,sink=4"], ["magicpig K=10,L=75,sink=4"]]);
        let cell = "-25.0";
        assert_eq!(texts(&tables[0])[0], vec![cell.to_owned(); 3]);
        assert!(
            tables[0].caption.contains("builtin, sparse from question, mean over 2 tasks"),
            "{}",
            tables[0].caption
        );
    }

    #[test]
    fn a_mean_says_which_of_its_tasks_are_stand_ins() {
        let records = ["ruler/vt", "ruler/qa_synth_hop2"].map(|task| at(task, 1024, "full", "", 0, 1.0));
        let mean = made(&records, &["method"], &["length"], "score").remove(0).caption;
        assert!(mean.ends_with("for a published one (ruler/qa_synth_hop2 for ruler/qa_2)"), "{mean}");
        let by_task = made(&records, &["method"], &["task"], "score").remove(0).caption;
        assert!(!by_task.contains("stand-in"), "{by_task}");
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
    fn what_is_suspect_is_marked() {
        let mut records = records();
        records[1].prediction = "".into();
        let table = made(&records, &["method"], &["length"], "score").remove(0);
        let noted: Vec<&str> = table.notes.iter().map(String::as_str).collect();
        assert!(noted[0].contains("`empty_predictions` ruler/vt at 1024, magicpig:K=10,L=75,sink=4"), "{noted:?}");
        let line = table.rows.iter().position(|r| r[0].starts_with("magicpig K=10")).unwrap();
        assert_eq!(table.cells[line][0].as_ref().unwrap().notes, [1]);
        let text = csv(&[table]).unwrap();
        assert!(
            text.starts_with("model,protocol,measure,method,length,name,value,low,high,n,averaged,notes\n"),
            "{text}"
        );
    }

    #[test]
    fn means_over_other_tasks_have_tables_of_their_own() {
        let mut records = records();
        records.push(at("ruler/vt", 1024, "quest", "", 0, 1.0));
        let tables = made(&records, &["method"], &["length"], "score");
        let seen: Vec<_> = tables.iter().map(|t| (t.rows.len(), t.columns.len(), t.caption.as_str())).collect();
        assert_eq!(
            seen,
            [
                (3, 3, "score in % by method and length: builtin, sparse from question, mean over 2 tasks"),
                (4, 3, "score in % by method and length: builtin, sparse from question, ruler/vt only"),
            ]
        );
        // Two lengths of a task are as little comparable with two other lengths as two tasks are.
        let of = |method: &str, lengths: [usize; 2], score| {
            lengths.map(|length| at("ruler/vt", length, method, "", 0, score)).to_vec()
        };
        let records = [of("full", [1024, 2048], 1.0), of("full", [4096, 8192], 1.0), of("topk", [1024, 2048], 1.0)];
        let mut records = records.concat();
        records.extend(of("quest", [4096, 8192], 0.5));
        let tables = made(&records, &["method"], &[], "score");
        let seen: Vec<_> = tables.iter().map(|t| (t.caption.clone(), t.rows.concat().join(" "))).collect();
        let caption = |lengths| {
            format!(
                "score in % by method: builtin, sparse from question, mean over 2 of 4 that differ in task and length: {lengths}"
            )
        };
        assert_eq!(
            seen,
            [
                (caption("ruler/vt, 1K, 2K"), "full topk".to_owned()),
                (caption("ruler/vt, 4K, 8K"), "full quest".to_owned())
            ]
        );
    }

    #[test]
    fn parameters_at_their_default_are_dimensions_too() {
        let hip = |b_k: &str, b_q: &str| {
            let params = [("b_k", b_k, "2"), ("b_q", b_q, "32")];
            let named: Vec<String> = params
                .iter()
                .filter(|(_, value, default)| value != default)
                .map(|(k, v, _)| format!("{k}={v}"))
                .collect();
            let settings: BTreeMap<_, _> = params.iter().map(|(k, v, _)| ((*k).to_owned(), (*v).to_owned())).collect();
            Record { settings: settings.into(), ..at("ruler/vt", 1024, "hip", &named.join(","), 0, 1.0) }
        };
        let mut records: Vec<Record> =
            ["2", "4", "8"].iter().flat_map(|b_k| ["16", "32"].map(|b_q| hip(b_k, b_q))).collect();
        let tables = made(&records, &["b_k"], &["b_q"], "score");
        assert_eq!(tables.len(), 1);
        let cells = tables[0].cells.iter().flatten().flatten().count();
        assert_eq!((cells, &tables[0].rows.concat().join(" ")), (6, &"2 4 8".to_owned()));
        assert_eq!(tables[0].headings(), ["b_k", "b_q=16", "b_q=32"], "a number alone says little");
        assert!(tables[0].notes.is_empty());
        // A record from before parameters were stored is left out, and a note says so.
        records.push(at("ruler/vt", 1024, "hip", "k=64", 0, 0.0));
        let notes = made(&records, &["b_k"], &["b_q"], "score").remove(0).notes;
        assert!(notes[0].starts_with("1 rows are left out: they do not say b_k or b_q"), "{notes:?}");
    }

    #[test]
    fn seeds_of_a_run_are_a_dimension() {
        let mut records = Vec::new();
        for (seed, score) in [(1, 1.0), (2, 0.5), (10, 0.0)] {
            for (method, score) in [("full", 1.0), ("quest", score)] {
                let key = format!("{method}{seed}");
                records.push(Record { seed, key, ..at("ruler/vt", 1024, method, "", 0, score) });
            }
        }
        let table = made(&records, &["method"], &["run_seed"], "delta").remove(0);
        assert_eq!(table.columns.concat(), ["1", "2", "10"]);
        let values: Vec<f64> = table.cells[0].iter().flatten().map(|e| e.value).collect();
        assert_eq!((table.rows.concat(), values), (vec!["quest".to_owned()], vec![0.0, -50.0, -100.0]));
        let report = Report::new(&records, &[]);
        assert!(layout(&["seed"], &[], "score", &report).unwrap_err().hint.unwrap().contains("`run_seed`"));
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

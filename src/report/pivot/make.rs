//! Makes the tables of a pivot from the rows of a report.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use super::layout::{Dimension, Layout};
use super::table::{Entry, PivotTable};
use crate::report::Report;
use crate::report::best::{self, ComparedSetting, Shown};
use crate::report::format::{direction, distinct, params_without, setting_name, tokens};
use crate::report::{means, stand_ins};
use spattn_attention::Role;
use spattn_eval::records::order::natural;
use spattn_eval::summary::cells::SummaryCell;
use spattn_eval::summary::columns::{self, SummaryRow};
use spattn_eval::summary::summarize;
use spattn_eval::summary::warnings::Warning;
use spattn_stats::{Estimate, mean};
use spattn_tasks::likelihood::Measure;

/// A row of the summary, over all seeds or of one.
#[derive(Clone, Copy)]
struct Line<'v> {
    seed: Option<u64>,
    row: &'v SummaryRow,
    cell: &'v SummaryCell<'v>,
}

/// Rows with their cells, over all seeds or of one.
struct OfSeed<'v> {
    seed: Option<u64>,
    rows: Vec<SummaryRow>,
    cells: Vec<SummaryCell<'v>>,
}

impl OfSeed<'_> {
    fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        self.rows.iter().zip(&self.cells).map(|(row, cell)| Line { seed: self.seed, row, cell })
    }
}

/// The rows of each seed separately.
fn by_seed<'v>(report: &Report<'v>) -> Vec<OfSeed<'v>> {
    let seeds: BTreeSet<u64> = report.cells.iter().flat_map(SummaryCell::seeds).collect();
    let of_seed = |seed: u64| {
        let cells: Vec<SummaryCell> = report.cells.iter().filter_map(|cell| cell.of_seed(seed)).collect();
        OfSeed { seed: Some(seed), rows: summarize::rows(&cells), cells }
    };
    seeds.into_iter().map(of_seed).collect()
}

/// What a value is averaged over: task and length, each unless it is a dimension of the table.
type Averaged<'a> = (Option<&'a str>, Option<usize>);

/// The tables of a layout, ordered by what is not averaged, then by value. Tables without any value are left out.
pub fn tables(report: &Report, layout: &Layout) -> Vec<PivotTable> {
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

/// A note about rows that lack a parameter which other rows of their method state.
fn unknown_params(shown: &[Line], left_out: &[Line], layout: &Layout) -> Option<String> {
    let has_kin = |line: &&Line| shown.iter().any(|other| other.row.method == line.row.method);
    let without = left_out.iter().filter(has_kin).count();
    let names: Vec<&str> = layout.dimensions().filter(|d| d.is_param()).map(Dimension::name).collect();
    (without > 0).then(|| {
        let rows = if without == 1 { "1 row is".to_owned() } else { format!("{without} rows are") };
        format!("{rows} not shown: without {}", names.join(" or "))
    })
}

/// The shown value of a dimension.
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

/// What a table is about: the values of dimensions that are neither shown nor averaged.
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

/// The values of some dimensions in all rows, in the order of the summary; lengths and parameters by size.
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

/// The tables of one value: one for each set of tasks and lengths that a cell has, with the cells that have at least
/// these, and one for what all cells share. Dense attention has no table to itself if there are others.
fn tables_of(
    report: &Report,
    layout: &Layout,
    fixed: &[(String, String)],
    of: &[Line],
    value: &str,
) -> Vec<PivotTable> {
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
        let lines_of = |row: usize, column: usize| within(&cells[row][column], scope, layout);
        let are_compared = value == "score" && mark_best(&mut entries, lines_of);
        let mut table = PivotTable {
            caption: caption(value, layout, fixed, scope, &all),
            value: value.to_owned(),
            row_names: names(&layout.rows),
            column_names: names(&layout.columns),
            rows: rows.clone(),
            columns: columns.clone(),
            fixed: fixed.to_vec(),
            cells: entries,
            are_compared,
            notes,
            general: report.warnings.iter().filter(|w| w.is_general()).map(|w| w.message.clone()).collect(),
        };
        if scope.len() < all.len() {
            table.fixed.push(("over".to_owned(), over(scope).join(", ")));
        }
        table.without_empty()
    };
    let shared = means::shared_sets(&sets);
    let mut tables: Vec<PivotTable> = shared.iter().filter(|scope| !scope.is_empty()).map(table).collect();
    if tables.len() > 1 {
        tables.retain(|table| table.cells.iter().flatten().flatten().any(|entry| entry.role != Role::Reference));
    }
    tables
}

/// The lines whose task and length are in a scope.
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
        "delta_full" => !line.row.is_reference() && line.row.delta_full.is_some(),
        _ => field(line.row, value).is_some(),
    }
}

/// Tasks and lengths in words.
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

/// What the values are means over; or their task or length, if there is only one.
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
            n => format!(", mean over {n} of {} cells of task and length: {named}", all.len()),
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
        "score" => columns::mean_score(&rows),
        "delta_full" => columns::mean_delta(&rows),
        "detectable" => columns::mean_detectable(&rows).map(|mean| Estimate { mean, ends: None }),
        _ => {
            let values: Vec<f64> = rows.iter().map(|r| field(r, value)).collect::<Option<_>>()?;
            Some(Estimate { mean: mean(&values), ends: None })
        }
    }?;
    let about = report.warnings.iter().filter(|w| rows.iter().any(|r| w.is_about(r)));
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
        role: first.role(),
        is_best: false,
    })
}

/// Marks the best of a table's scores. `lines_of` returns the lines of an entry. Returns whether any were compared.
fn mark_best<'v>(entries: &mut [Vec<Option<Entry>>], lines_of: impl Fn(usize, usize) -> Vec<Line<'v>>) -> bool {
    let mut shown = Vec::new();
    for (row, line) in entries.iter().enumerate() {
        let methods = line.iter().enumerate().filter_map(|(column, entry)| Some((column, entry.as_ref()?)));
        for (column, entry) in methods.filter(|(_, entry)| entry.role == Role::Method) {
            let here = lines_of(row, column);
            let candidate = ComparedSetting { score: entry.value, cells: here.iter().map(|line| line.cell).collect() };
            shown.push(Shown { at: (row, column), seed: here.first().and_then(|line| line.seed), candidate });
        }
    }
    let best = best::of_table(&shown);
    for (row, column) in best.places {
        entries[row][column].iter_mut().for_each(|entry| entry.is_best = true);
    }
    best.are_compared
}

/// A number of a summary row, by the name of its column.
fn field(row: &SummaryRow, name: &str) -> Option<f64> {
    (columns::find(name)?.value)(row).number()
}

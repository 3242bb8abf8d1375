//! An item's numbers: a Markdown table for each run, and all of them as CSV.

use std::fmt::Write as _;

use anyhow::Result;

use super::files::ItemResults;
use super::words::{counted_words, lengths, model, paper_title, tokens};
use crate::report::csv::finished;
use crate::report::latex::{WideTable, of_papers};
use crate::report::tabular::Numbers;
use spattn_base::text::in_markdown;
use spattn_lab::papers::counts::{counted, together};
use spattn_lab::papers::item::{Item, Line};
use spattn_lab::papers::numbers::{short, with_interval};
use spattn_lab::papers::outcome::{CellOutcome, ItemOutcome, Number, OutcomeRow, TIMES, model_title};
use spattn_lab::papers::title_of;
use spattn_model::checksum::sha256_hex;

/// The headings of a column: one for the paper's numbers, one for measured numbers.
struct Headings {
    at: usize,
    published: Option<String>,
    measured: Option<String>,
}

/// The table of an outcome. Each column has the paper's numbers and the measured ones, under the names of their models.
pub fn table(results: &ItemResults, outcome: &ItemOutcome) -> String {
    let columns = headings(&results.item, outcome);
    let names = columns.iter().flat_map(|column| [&column.published, &column.measured]).flatten();
    let names: Vec<String> = names.map(|name| in_markdown(name).into_owned()).collect();
    if names.is_empty() {
        return String::new();
    }
    let mut text = format!("| | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    for row in &outcome.rows {
        let cells: Vec<String> = columns.iter().flat_map(|column| cells(column, row)).collect();
        if cells.iter().any(|cell| !cell.is_empty()) {
            let _ = writeln!(text, "| {} | {} |", in_markdown(&row.name), cells.join(" | "));
        }
    }
    text
}

/// The headings of the columns that have numbers.
fn headings(item: &Item, outcome: &ItemOutcome) -> Vec<Headings> {
    let paper = paper_model(item);
    let is_times = outcome.variant == TIMES;
    let own =
        item.columns.iter().enumerate().filter(|(_, line)| !outcome.is_measured() || item.is_time(line) == is_times);
    let heading = |(at, line): (usize, &Line)| {
        let has = |of: fn(&CellOutcome) -> bool| outcome.rows.iter().any(|row| row.cells.get(at).is_some_and(of));
        let published = has(|cell| cell.published.is_some());
        let measured = has(|cell| cell.measured.is_some());
        Headings {
            at,
            published: published.then(|| format!("{}: {paper}", line.name)),
            measured: measured.then(|| measured_heading(line, outcome)),
        }
    };
    own.map(heading).collect()
}

/// The heading of the paper's numbers: the paper's model.
pub fn paper_model(item: &Item) -> String {
    match item.run.as_ref().and_then(|run| run.model.as_ref()).map(|models| models.0.as_slice()) {
        Some([one]) => format!("paper ({})", model_title(one)),
        _ => "paper".to_owned(),
    }
}

/// The heading of measured numbers. It says how the column on this model differs from the paper's.
fn measured_heading(line: &Line, outcome: &ItemOutcome) -> String {
    let own = line.select(outcome.run().variant);
    let mut differs = Vec::new();
    if own.length != line.length {
        differs.extend(own.length.map(tokens));
    }
    if own.tasks != line.tasks {
        let names = own.tasks.iter().flatten().map(String::as_str).collect::<Vec<_>>();
        differs.push(if names.len() > 2 { format!("{} tasks", names.len()) } else { names.join(", ") });
    }
    // The tasks alone identify a column of scores; a column of other numbers needs its name too.
    let name = match (differs.is_empty(), line.value.is_some()) {
        (true, _) => line.name.clone(),
        (_, true) => format!("{} ({} here)", line.name, differs.join(", ")),
        (_, false) => format!("{} here", differs.join(", ")),
    };
    format!("{name}: measured ({})", measured_on(outcome))
}

/// The model or machine that numbers were measured on, and the lengths.
pub fn measured_on(outcome: &ItemOutcome) -> String {
    let model = match outcome.variant.as_str() {
        TIMES => "GPU".to_owned(),
        _ if outcome.model.is_empty() => "the row's model".to_owned(),
        _ => model_title(&outcome.model),
    };
    lengths(outcome).map_or(model.clone(), |lengths| format!("{model}, {lengths}"))
}

fn cells(column: &Headings, row: &OutcomeRow) -> Vec<String> {
    let cell = row.cells.get(column.at).copied().unwrap_or_default();
    let published = column.published.as_ref().map(|_| cell.published.map_or(String::new(), |x| x.to_string()));
    let measured = column.measured.as_ref().map(|_| cell.measured.map_or(String::new(), number));
    published.into_iter().chain(measured).collect()
}

/// A number with its interval.
pub fn number(Number { mean, ends, .. }: Number) -> String {
    match ends.map(|ends| with_interval(mean, ends)) {
        Some((mean, Some((low, high)))) => format!("{mean} [{low} {high}]"),
        _ => short(mean),
    }
}

/// The tables of all outcomes for LaTeX.
pub fn latex(results: &ItemResults) -> String {
    of_papers(&results.outcomes.iter().map(|outcome| latex_of(results, outcome)).collect::<String>())
}

fn latex_of(results: &ItemResults, outcome: &ItemOutcome) -> String {
    let columns = headings(&results.item, outcome);
    let is_shown =
        |row: &&OutcomeRow| columns.iter().flat_map(|column| cells(column, row)).any(|cell| !cell.is_empty());
    let rows: Vec<&OutcomeRow> = outcome.rows.iter().filter(is_shown).collect();
    let mut shown = Vec::new();
    for column in &columns {
        let lines: Vec<Vec<String>> = rows.iter().map(|row| cells(column, row)).collect();
        for (at, heading) in [&column.published, &column.measured].into_iter().flatten().enumerate() {
            shown.push(Numbers::new(heading, lines.iter().map(|line| line[at].clone()).collect(), false));
        }
    }
    let (paper, item) = results.name.split_once('/').unwrap_or(("", &results.name));
    let on =
        if outcome.variant.is_empty() { "the paper's numbers".to_owned() } else { format!("on {}", model(outcome)) };
    let caption = format!("{}, {}: {}, {on}", paper_title(paper), title_of(item), results.item.title);
    let names: Vec<Vec<String>> = rows.iter().map(|row| vec![row.name.clone()]).collect();
    let about = about_n(results, outcome);
    WideTable { caption: &caption, headings: &["setting"], rows: &names, columns: &shown, notes: Vec::new() }
        .text(|_| about.iter().cloned().collect())
}

/// How many examples the measured numbers are from, as a range for each kind of example; `None` if nothing was measured.
fn about_n(results: &ItemResults, outcome: &ItemOutcome) -> Option<String> {
    let named = |row: &OutcomeRow| row.stands_for.first().unwrap_or(&row.name).clone();
    let cells = outcome.rows.iter().flat_map(|row| outcome.columns.iter().map(move |column| (named(row), column)));
    let counts = cells.filter_map(|(row, column)| counted(&results.item, outcome, &[(&row, column)]));
    let all: Vec<String> = together(counts).iter().map(counted_words).collect();
    (!all.is_empty()).then(|| format!("Measured numbers are of {}, with 95 % intervals.", all.join("; ")))
}

/// A line for each cell of each outcome: row, column, published, measured, both ends of the interval, n, and the run.
pub fn csv(results: &ItemResults) -> Result<String> {
    let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
    writer.write_record(["row", "column", "published", "measured", "ci_low", "ci_high", "n", "variant", "model"])?;
    let has_name =
        |row: &OutcomeRow| results.item.rows.iter().any(|line| line.name == row.name && line.counts.is_some());
    for outcome in &results.outcomes {
        for row in &outcome.rows {
            for (column, cell) in outcome.columns.iter().zip(&row.cells) {
                let of = |text: &str| if cell.measured.is_some() { text.to_owned() } else { String::new() };
                let [mean, low, high] = cell.measured.map_or_else(Default::default, fields);
                writer.write_record([
                    row.name.clone(),
                    column.clone(),
                    cell.published.map_or(String::new(), |x| x.to_string()),
                    mean,
                    low,
                    high,
                    // Older results do not state the number of things that an analysis draws itself.
                    cell.measured.filter(|m| m.is_named || !has_name(row)).map_or(String::new(), |m| m.n.to_string()),
                    of(&outcome.variant),
                    of(&outcome.model),
                ])?;
            }
        }
    }
    finished(writer)
}

/// A measured number and the ends of its interval, as fields of CSV.
fn fields(Number { mean, ends, .. }: Number) -> [String; 3] {
    [Some(mean), ends.map(|ends| ends.0), ends.map(|ends| ends.1)].map(|x| x.map_or(String::new(), |x| x.to_string()))
}

/// The SHA-256 of an outcome's measured cells, over the lines of [`csv`] that have a measured number, with the fields `row`, `column`,
/// `measured`, `ci_low` and `ci_high` and without a heading. It covers no verdicts or other texts, so it does not change when claims are
/// judged again. `None` if nothing was measured.
///
/// # Errors
/// None for numbers and names.
pub fn cells_sha256(outcome: &ItemOutcome) -> Result<Option<String>> {
    let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
    for row in &outcome.rows {
        for (column, cell) in outcome.columns.iter().zip(&row.cells) {
            if let Some(number) = cell.measured {
                let [mean, low, high] = fields(number);
                writer.write_record([&row.name, column, &mean, &low, &high])?;
            }
        }
    }
    Ok(Some(finished(writer)?).filter(|text| !text.is_empty()).map(|text| sha256_hex(text.as_bytes())))
}

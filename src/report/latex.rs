//! LaTeX tables for a paper, with `booktabs` rules and numbers aligned by `siunitx`, at most as wide as the text of an article.

use super::format::{TableColumn, capital, columns, fitting, setting, tokens};
use super::parameters::ShownParams;
use super::pivot::{PivotTable, ShownNotes};
use super::tabular::{Numbers, TEXT_WIDTH, Tabular, marked, width};
use super::{Report, best, excess, sampling};
use spattn_eval::summary::cells::SummaryCell;
use spattn_eval::summary::columns::SummaryRow;
use spattn_eval::summary::warnings::Warning;

/// A comment that names the packages a document needs.
const NEEDS: &str =
    "% Needs \\usepackage{array,booktabs,siunitx}. Each table is as wide as the text of the class article at most.\n";

/// The note below a table with bold numbers.
const BOLD: &str = "Bold: the best score of a method (no oracle, no floor), and all that are not significantly worse, where some are. Each is compared with the best on the same examples, at a level of 2.5 % divided by the number of comparisons.";
/// The note below a table whose methods could not be told apart.
const NONE_BOLD: &str = "No score is bold: compared on the same examples, at a level of 2.5 % divided by the number of comparisons, no setting is significantly worse than the best one.";

/// The note about bold numbers; `None` if no methods are compared.
fn about_bold(any: bool, are_compared: bool) -> Option<String> {
    match (any, are_compared) {
        (true, _) => Some(BOLD.to_owned()),
        (false, true) => Some(NONE_BOLD.to_owned()),
        (false, false) => None,
    }
}

/// Renders `summary.tex`: a table for each task and length, with as many columns of `summary.md` as fit. Warnings are sentences below the
/// table whose rows they concern.
pub fn summary(report: &Report, no_intervals: bool) -> String {
    let mut text = NEEDS.to_owned();
    // Facts about all tables, and general warnings, go below the first table.
    let warnings = report.warnings.iter().filter(|w| w.is_general()).map(|warning| sentence(&warning.message));
    let mut general: Vec<String> = sampling::line(report).into_iter().chain(warnings).collect();
    let place = |r: &SummaryRow| (setting(r), r.task.clone(), r.length);
    let mut cells = report.cells.as_slice();
    for rows in report.rows.chunk_by(|a, b| place(a) == place(b)) {
        let (of_rows, rest) = cells.split_at(rows.len().min(cells.len()));
        text.push_str(&of_place(report, rows, of_rows, std::mem::take(&mut general), no_intervals));
        cells = rest;
    }
    with_breaks(&text)
}

/// Adds page breaks: LaTeX holds back tables without text between them until the page ends, at most 52 of them (18 before 2015). A long
/// file ends with a break, so that none are held back when the next file begins.
fn with_breaks(text: &str) -> String {
    const HELD: usize = 6;
    const END: &str = "\\end{table}\n";
    let mut parts: Vec<String> = text.split_inclusive(END).map(str::to_owned).collect();
    let last = parts.len().saturating_sub(1);
    for (at, part) in parts.iter_mut().enumerate() {
        if (at + 1) % HELD == 0 || (at == last && at >= HELD) {
            part.push_str("\\clearpage\n");
        }
    }
    parts.concat()
}

/// The table of one task and length. `cells` belong to its rows.
fn of_place(
    report: &Report,
    rows: &[SummaryRow],
    cells: &[SummaryCell],
    of_all: Vec<String>,
    no_intervals: bool,
) -> String {
    let length = if rows[0].length > 0 { format!(", {} tokens", tokens(rows[0].length)) } else { String::new() };
    let shared_n = rows.iter().all(|r| (r.n, r.contexts) == (rows[0].n, rows[0].contexts));
    let params = ShownParams::of_rows(rows);
    let names: Vec<Vec<String>> =
        rows.iter().map(|r| vec![name(&r.method, params.in_row(&r.method, &r.params))]).collect();
    let best = best::of_rows(rows, cells);
    let shown = |columns: &[TableColumn]| {
        let mut shown: Vec<Numbers> = columns.iter().map(|c| numbers(c, rows, no_intervals)).collect();
        if let Some(score) = shown.iter_mut().find(|c| c.heading != "n") {
            score.bold.clone_from(&best.places);
        }
        shown
    };
    let all: Vec<TableColumn> = columns(rows).into_iter().filter(|c| !(shared_n && c.heading == "n")).collect();
    let (columns, left_out) = fitting(all, |columns| width(&["setting"], &names, &shown(columns)) <= TEXT_WIDTH);
    let columns = shown(&columns);
    let about: Vec<Vec<String>> = rows.iter().map(|row| notes_of(row, &report.warnings)).collect();
    let shown = ShownNotes::of(&about.concat());
    let mut before = 0;
    let marks = about.iter().map(|notes| {
        let numbers: Vec<usize> = (before + 1..=before + notes.len()).collect();
        before += notes.len();
        marked(&shown.numbers(&numbers))
    });
    let marks = marks.collect();
    let mut general: Vec<String> = params.line().map(|line| sentence(&line)).into_iter().collect();
    general.extend(about_bold(!best.places.is_empty(), best.are_compared));
    general.extend((!left_out.is_empty()).then(|| format!("Not shown: {}.", left_out.join(", "))));
    let of_task = report.warnings.iter().filter(|w| !w.is_general() && w.method.is_none() && w.is_about(&rows[0]));
    general.extend(of_task.map(|warning| sentence(&warning.message)));
    general.extend(of_all);
    let n = if shared_n { format!(", n\u{a0}=\u{a0}{}", rows[0].n) } else { String::new() };
    Tabular {
        caption: format!("{}: {}{length}{n}", setting(&rows[0]), rows[0].task),
        label: slug(&[&rows[0].model, &rows[0].protocol.to_string(), &rows[0].task, &tokens(rows[0].length)]),
        text_headings: vec!["setting".to_owned()],
        texts: names,
        marks,
        columns,
        notes: shown.texts.iter().map(|note| sentence(&without_code(note))).collect(),
        general,
    }
    .text()
}

/// The notes about a row, each preceded by its kind in backticks: costs above those of dense attention, and warnings without the task and
/// setting, which the table names.
fn notes_of(row: &SummaryRow, warnings: &[Warning]) -> Vec<String> {
    let costs = excess::sentences(row).into_iter().map(|(mark, text)| format!("`{mark}` {text}"));
    let own = warnings.iter().filter(|w| w.method.is_some() && w.is_about(row));
    costs.chain(own.map(|warning| format!("`{}` {}", warning.code, warning.message))).collect()
}

/// A note without its kind. [`ShownNotes`] groups notes by kind.
fn without_code(note: &str) -> String {
    let Some((code, text)) = note.strip_prefix('`').and_then(|note| note.split_once("` ")) else {
        return note.to_owned();
    };
    text.replace(".; and ", "; and ").replace(&format!(" that are `{code}`"), " of this kind")
}

/// A text with a space after each comma, so that a line can break there.
fn spaced(text: &str) -> String {
    text.split(',').map(str::trim_start).collect::<Vec<_>>().join(", ")
}

/// A text as a sentence. A first letter that stands alone, such as `n`, is a symbol and stays as it is.
fn sentence(text: &str) -> String {
    let is_symbol = text.chars().nth(1).is_none_or(|second| !second.is_alphanumeric());
    let text = if is_symbol { spaced(text) } else { capital(&spaced(text)) };
    if text.ends_with(['.', '?', '!']) { text } else { text + "." }
}

/// A method and its parameters, with spaces so that a line can break there.
fn name(method: &str, params: &str) -> String {
    let params = params.replace(',', ", ");
    if params.is_empty() { method.to_owned() } else { format!("{method} ({params})") }
}

/// The cells of a column of the summary.
fn numbers(column: &TableColumn, rows: &[SummaryRow], no_intervals: bool) -> Numbers {
    Numbers::new(column.heading, rows.iter().map(|r| column.brief(r)).collect(), no_intervals)
}

/// The tables of a pivot. Columns that do not fit are continued in a further table.
pub fn pivot(tables: &[PivotTable], no_intervals: bool) -> String {
    with_breaks(&(NEEDS.to_owned() + &tables.iter().map(|table| of_pivot(table, no_intervals)).collect::<String>()))
}

fn of_pivot(table: &PivotTable, no_intervals: bool) -> String {
    let shown = ShownNotes::of(&table.notes);
    let entries = |at: usize| table.cells.iter().map(move |line| line[at].as_ref());
    let names = table.headings();
    let column = |at: usize| {
        let texts = entries(at).map(|entry| entry.map_or(String::new(), |e| table.text(e)));
        let mut numbers = Numbers::new(&names[table.row_names.len() + at], texts.collect(), no_intervals);
        numbers.marks = entries(at).map(|e| e.map_or(String::new(), |e| marked(&shown.numbers(&e.notes)))).collect();
        numbers.bold = table.best_lines(at);
        numbers
    };
    let all: Vec<Numbers> = (0..table.columns.len()).map(column).collect();
    let headings: Vec<&str> = table.row_names.iter().map(String::as_str).collect();
    let breakable = |row: &Vec<String>| row.iter().map(|name| spaced(name)).collect::<Vec<_>>();
    let rows: Vec<Vec<String>> = table.rows.iter().map(breakable).collect();
    let notes = shown.texts.iter().map(|note| spaced(&without_code(note))).collect();
    let about = |columns: &[Numbers]| {
        let bold = about_bold(columns.iter().any(|c| !c.bold.is_empty()), table.are_compared);
        let general = table.general.iter().map(|line| sentence(line));
        table.about_n().into_iter().chain(bold).chain(general).collect()
    };
    WideTable { caption: &table.caption, headings: &headings, rows: &rows, columns: &all, notes }.text(about)
}

/// A table that is continued in further tables if its columns do not fit the width of the text.
pub(super) struct WideTable<'t> {
    /// What the table is about.
    pub caption: &'t str,
    /// The headings of the text columns.
    pub headings: &'t [&'t str],
    /// The texts of each line.
    pub rows: &'t [Vec<String>],
    /// The columns of numbers.
    pub columns: &'t [Numbers],
    /// The notes, in the order of their marks.
    pub notes: Vec<String>,
}

impl WideTable<'_> {
    /// Renders the tables. `about` returns the lines below a table with these columns.
    pub(super) fn text(&self, about: impl Fn(&[Numbers]) -> Vec<String>) -> String {
        let Self { caption, headings, rows, columns: all, notes } = self;
        let (mut text, mut first, mut part) = (String::new(), 0, 1);
        while first < all.len() {
            let fits = |end: &usize| width(headings, rows, &all[first..*end]) <= TEXT_WIDTH;
            // Adding columns never makes a table narrower, so the first that does not fit ends it.
            let end = (first + 1..=all.len()).take_while(fits).last().unwrap_or(first + 1);
            let continued = if part > 1 { " (further columns)" } else { "" };
            text += &Tabular {
                caption: format!("{}{continued}", capital(caption)),
                label: slug(&[caption, &if part > 1 { format!("columns {part}") } else { String::new() }]),
                text_headings: headings.iter().map(|heading| (*heading).to_owned()).collect(),
                texts: rows.to_vec(),
                marks: vec![String::new(); rows.len()],
                columns: all[first..end].to_vec(),
                notes: notes.clone(),
                general: about(&all[first..end]),
            }
            .text();
            (first, part) = (end, part + 1);
        }
        text
    }
}

/// The tables of a paper's item, preceded by the packages that they need.
pub(super) fn of_papers(tables: &str) -> String {
    with_breaks(&(NEEDS.to_owned() + tables))
}

/// The label of a table, for `\ref`.
fn slug(parts: &[&str]) -> String {
    let text: String =
        parts.join(" ").chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { ' ' }).collect();
    format!("tab:{}", text.split_whitespace().collect::<Vec<_>>().join("-"))
}

#[cfg(test)]
mod tests;

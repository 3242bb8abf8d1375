//! The table on the terminal.

use super::format::{Column, about_times, columns, detectable, direction, mean_columns, setting, tokens};
use super::{MeanTable, Report, pivot};
use crate::eval::record::SummaryRow;
use comfy_table::{CellAlignment, ContentArrangement, ContentLineStyle, LineStyle, Table, TableStyle};

/// A rule under the headings and nothing else.
const STYLE: TableStyle = TableStyle::new()
    .header_lines(ContentLineStyle::none().junction(' '))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .content_lines(ContentLineStyle::none().junction(' '));

/// Leading columns, which are text.
const TEXT_COLUMNS: usize = 2;

/// The rows as aligned tables, one for each model and protocol; within it, each task and length has a line of its
/// own above its methods, which keeps the table within 120 characters for all but long parameters.
///
/// Rows are shown in the order given, which is that of the summary. Intervals are rounded to whole points; the
/// files have them in full. Without rows it says so.
pub fn render(report: &Report) -> String {
    if report.rows.is_empty() {
        return "no results\n".to_owned();
    }
    let mut text = String::new();
    for rows in report.rows.chunk_by(|a, b| setting(a) == setting(b)) {
        text.push_str(&format!("{}\n\n{}", setting(&rows[0]), one_table(rows)));
        text.push_str(&below(about_times(rows).map(str::to_owned)));
        text.push_str(&below(detectable(rows.iter().map(|r| (r.contexts, r.detectable)))));
        text.extend(report.means_of(&rows[0]).map(means));
    }
    text
}

/// A line below a table.
fn below(line: Option<String>) -> String {
    line.map_or(String::new(), |line| format!("{line}\n"))
}

/// Tables of a pivot, each under its caption and with its notes.
pub fn pivot(tables: &[pivot::Table]) -> String {
    let one = |table: &pivot::Table| {
        let cell = |entry: &Option<pivot::Entry>| {
            let Some(entry) = entry else { return String::new() };
            let marks: Vec<String> = entry.notes.iter().map(usize::to_string).collect();
            let marks = if marks.is_empty() { String::new() } else { format!(" ({})", marks.join(",")) };
            table.text(entry) + &marks
        };
        let rows = table.rows.iter().zip(&table.cells);
        let rows = rows.map(|(row, cells)| row.iter().cloned().chain(cells.iter().map(cell)).collect());
        let lines = lines(table.headings(), rows.collect(), table.row_names.len()).concat();
        let notes: String = (1..).zip(&table.notes).map(|(i, note)| format!("({i}) {note}\n")).collect();
        format!("{}\n\n{lines}{notes}", table.caption)
    };
    tables.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn one_table(rows: &[SummaryRow]) -> String {
    let lines = aligned(rows);
    let groups = rows.chunk_by(|a, b| (&a.task, a.length) == (&b.task, b.length));
    grouped(&lines, &groups.map(|rows| (place(&rows[0]), rows.len())).collect::<Vec<_>>())
}

/// The lines of a table whose rows are in groups, given by the line above each and its number of rows.
pub(super) fn grouped(lines: &[String], groups: &[(String, usize)]) -> String {
    let rows: usize = groups.iter().map(|(_, rows)| rows).sum();
    // Rows are never wrapped, so the lines after the heading are the rows.
    let (heading, body) = lines.split_at(lines.len().saturating_sub(rows));
    let mut text: String = heading.concat();
    let mut body = body.iter();
    for (at, (above, rows)) in groups.iter().enumerate() {
        if at > 0 {
            text.push('\n');
        }
        text.push_str(above);
        text.extend(body.by_ref().take(*rows).map(String::as_str));
    }
    text
}

/// The task and length of the rows below.
fn place(row: &SummaryRow) -> String {
    format!("{}{}{}\n", row.task, at(row), direction(row))
}

/// Means over tasks, below the tasks.
fn means(table: &MeanTable) -> String {
    let columns = mean_columns(&table.rows);
    let headings = ["method", "params"].into_iter().chain(columns.iter().map(|c| c.heading)).map(str::to_owned);
    let rows = table.rows.iter().map(|row| cells(row, &columns)).collect();
    let notes: String = table.notes.iter().map(|note| format!("note: {note}\n")).collect();
    format!(
        "\n{}{}\n{notes}{}{}",
        table.title(),
        at(&table.rows[0]),
        lines(headings.collect(), rows, TEXT_COLUMNS).concat(),
        below(table.detectable())
    )
}

/// The length of rows, after what they are of.
fn at(row: &SummaryRow) -> String {
    if row.length > 0 { format!(", {} tokens", tokens(row.length)) } else { String::new() }
}

/// The lines of the heading and of all rows.
fn aligned(rows: &[SummaryRow]) -> Vec<String> {
    // Headings longer than their numbers take two lines.
    let columns = columns(rows);
    let broken = |heading: &str| match heading {
        "score %" | "Δ full" | "KL p99" => heading.to_owned(),
        _ => heading.replace(' ', "\n").replace('/', "/\n"),
    };
    let headings = columns.iter().map(|c| broken(c.heading));
    let headings = ["method", "params"].into_iter().map(str::to_owned).chain(headings).collect();
    lines(headings, rows.iter().map(|row| cells(row, &columns)).collect(), TEXT_COLUMNS)
}

/// Aligned lines: numbers to the right, behind so many columns of text.
pub(super) fn lines(headings: Vec<String>, rows: Vec<Vec<String>>, text_columns: usize) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(STYLE).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings);
    table.add_rows(rows);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if at >= text_columns {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn cells(row: &SummaryRow, columns: &[&Column]) -> Vec<String> {
    [row.method.clone(), row.params.clone()].into_iter().chain(columns.iter().map(|c| (c.brief)(row))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::record::tests::record;
    use crate::eval::record::{KvTokens, Record};

    #[test]
    fn tasks_are_named_once_and_kept_apart() {
        let records = [("ruler/vt", "full"), ("ruler/vt", "topk"), ("ruler/cwe", "full"), ("ruler/cwe", "topk")]
            .map(|(task, method)| record(task, method, 0, 1.0));
        let text = render(&Report::new(&records, &[]));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "builtin, sparse from question");
        assert!(lines[2].starts_with("method") && lines[4].starts_with("───"), "{text}");
        assert_eq!((lines[5], lines[8], lines[9]), ("ruler/vt, 4K tokens", "", "ruler/cwe, 4K tokens"), "{text}");
        assert!(lines[6].starts_with("full ") && lines[7].contains("100.0     0.0    0.100"), "{text}");
    }

    #[test]
    fn tables_end_with_what_they_can_tell() {
        let table = |n: usize| {
            let records: Vec<_> = ["ruler/vt", "ruler/cwe"]
                .iter()
                .flat_map(|task| (0..n).flat_map(move |i| ["full", "topk"].map(|method| record(task, method, i, 1.0))))
                .collect();
            render(&Report::new(&records, &[]))
        };
        let text = table(20);
        assert!(text.contains("100.0 [83 100]") && text.contains("0.0 [-16 +16]"), "{text}");
        let told = |n, points| {
            format!(
                "\nat n = {n}, a true difference to full below {points} points is lost in noise more than once in five runs\n"
            )
        };
        assert!(text.contains(&told(20, 26)) && text.ends_with(&told(40, 18)), "{text}");
        assert!(!table(9).contains("at n = 9"), "that is for the self-check to say");
    }

    #[test]
    fn examples_that_share_contexts_are_counted_with_them() {
        let records: Vec<_> = (0..20)
            .map(|i| crate::eval::record::Record {
                context: Some(i / 5 * 5),
                ..record("needle/number", "full", i, 1.0)
            })
            .collect();
        let text = render(&Report::new(&records, &[]));
        assert!(text.contains("20 (4)  100.0 [40 100]"), "{text}");
    }

    #[test]
    fn a_mean_says_which_of_its_tasks_are_stand_ins() {
        let text = |second: &str| {
            let records = ["ruler/vt", second].map(|task| record(task, "full", 0, 1.0));
            render(&Report::new(&records, &[]))
        };
        let said = "mean over 2 tasks, 4K tokens\nnote: 1 of 2 tasks is a synthetic stand-in for a published one \
                    (ruler/qa_synth for ruler/qa_1)\nmethod";
        assert!(text("ruler/qa_synth").contains(said), "{}", text("ruler/qa_synth"));
        assert!(text("ruler/qa_1").contains("mean over 2 tasks, 4K tokens\nmethod"), "{}", text("ruler/qa_1"));
    }

    #[test]
    fn what_is_held_has_a_column_where_something_was_let_go() {
        let with = |method: &str, held: f64| Record {
            kv_tokens: Some(KvTokens { held, context: 4060 }),
            ..record("ruler/vt", method, 0, 1.0)
        };
        let text = render(&Report::new(&[with("full", 4060.0), with("snapkv", 790.0)], &[]));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[2].ends_with("tokens") && lines[3].ends_with("held"), "{text}");
        assert!(lines[6].ends_with("8.33") && lines[7].ends_with("790"), "empty for who holds everything: {text}");
        assert!(!render(&Report::new(&[with("full", 4060.0)], &[])).contains("held"));
    }

    #[test]
    fn nothing_is_said_to_be_nothing() {
        assert_eq!(render(&Report::new(&[], &[])), "no results\n");
    }
}

//! `summary.md`, the page for readers.

use std::fmt::Write as _;

use super::format::{capital, columns, detectable, direction, distinct, legend, mean_columns, setting, tokens};
use super::others::{OtherScore, other_scores};
use super::parameters::ShownParams;
use super::pivot::{Entry, PivotTable, ShownNotes};
use super::plots::{Figure, Figures};
use super::{MeanTable, Report, excess, kv_type, sampling, verdict};
use spattn_base::text::in_markdown;
use spattn_eval::summary::columns::SummaryRow;
use spattn_eval::summary::prefill_savings::PrefillSavings;
use spattn_eval::summary::warnings::in_short;

/// Renders the page: what was run, the verdicts, the means over tasks, a table for each task and length, the warnings of the
/// self-checks, and links to the other files (paths relative to the page).
pub fn render(report: &Report, files: &[&str], figures: &Figures) -> String {
    let mut page = String::from("# Results\n\n");
    page.push_str(&header(report));
    page.push_str(&notes(report));
    page.push_str(&verdict::markdown::render(&report.verdicts, |at| report.ranking(at)));
    page.push_str(&warnings(report));
    let other_scores = other_scores(&report.rows, report.records);
    for rows in report.rows.chunk_by(|a, b| setting(a) == setting(b)) {
        let names = ShownParams::of_rows(rows);
        let _ = write!(page, "\n## {}\n", in_markdown(&setting(&rows[0])));
        let said = names.line().into_iter().chain(excess::lines(rows, &names));
        page.extend(said.map(|line| format!("\n{}.\n", in_markdown(&capital(&line)))));
        page.extend(report.means_of(&rows[0]).map(|table| means(table, &names)));
        page.push_str(&below(detectable(rows.iter().map(|r| (r.contexts, r.detectable))), "On one task"));
        let mut kv_type = kv_type::line(report, rows);
        for rows in rows.chunk_by(|a, b| (&a.task, a.length) == (&b.task, b.length)) {
            page.push_str(&task(rows, report, &names));
            // The line is the same below all tables of a model, so it is shown once.
            page.extend(kv_type.take().map(|line| format!("\n{}.\n", in_markdown(&capital(&line)))));
            page.push_str(&others(rows, &other_scores, &names));
        }
    }
    page.push_str(&about_columns(&report.rows));
    page.push_str(&file_list(files, figures));
    page.push_str(&all_warnings(report));
    page
}

// ---- parts of the page ----

fn header(report: &Report) -> String {
    let records = report.records;
    let list = |values: Vec<String>| if values.is_empty() { "none".to_owned() } else { values.join(", ") };
    let sorted = |mut values: Vec<u64>| {
        values.sort_unstable();
        values.dedup();
        list(values.iter().map(u64::to_string).collect())
    };
    let rows = &report.rows;
    let lines = [
        ("model", list(distinct(rows.iter().map(|r| r.model.clone())))),
        ("sparse from", list(distinct(rows.iter().map(|r| r.protocol.clone())))),
        ("seed", sorted(records.iter().map(|r| r.seed).collect())),
        ("records", records.len().to_string()),
    ];
    let kv_type = kv_type::of_all(report).map(|of| ("keys and values", of));
    let lines = lines.into_iter().chain(kv_type);
    let mut text: String = lines.map(|(name, value)| format!("- {name}: {}\n", in_markdown(&value))).collect();
    if let Some(line) = sampling::line(report) {
        let _ = writeln!(text, "- {}", in_markdown(&line));
    }
    let sharing = PrefillSavings::of(records);
    if sharing.is_worth_saying() {
        let _ = writeln!(text, "- {sharing}");
    }
    text
}

/// Notes on how the records were merged.
fn notes(report: &Report) -> String {
    let lines: String = report.notes.iter().map(|note| format!("- note: {note}\n")).collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

fn warnings(report: &Report) -> String {
    if report.warnings.is_empty() {
        return "\nThe self-checks found nothing to warn about.\n".to_owned();
    }
    let mut text = format!("\n## Look at these first: {} warnings\n\n", report.warnings.len());
    for (code, line) in in_short(&report.warnings) {
        let _ = writeln!(text, "- `{code}` {}", in_markdown(&line));
    }
    text
}

/// Lists all warnings one by one, if [`warnings`] groups some of them.
fn all_warnings(report: &Report) -> String {
    if in_short(&report.warnings).len() == report.warnings.len() {
        return String::new();
    }
    let mut text = "\n## All warnings\n\n".to_owned();
    for warning in &report.warnings {
        let _ = writeln!(text, "- `{}` {}", warning.code, in_markdown(&warning.to_string()));
    }
    text
}

/// What the columns of the tables mean, one line for each column.
fn about_columns(rows: &[SummaryRow]) -> String {
    // Explanations are Markdown already: names in them have backticks.
    let line = |(heading, about): (&str, &str)| format!("- **{}**: {about}\n", in_markdown(heading));
    let lines: String = legend(&columns(rows)).into_iter().map(line).collect();
    if rows.is_empty() { String::new() } else { format!("\n## What the columns mean\n\n{lines}") }
}

fn means(table: &MeanTable, names: &ShownParams) -> String {
    let title = table.title();
    let title = in_markdown(&title);
    let mut text = format!("\n### {}{}{}\n\n", title[..1].to_uppercase(), &title[1..], at(table.rows[0].length));
    table.notes.iter().for_each(|note| text.push_str(&format!("{}.\n\n", in_markdown(note))));
    let columns = mean_columns(&table.rows);
    text.push_str(&line(["method", "params"].into_iter().chain(columns.iter().map(|c| c.heading))));
    text.push_str(&rule(2, columns.len()));
    for row in &table.rows {
        let name = name(row, names);
        text.push_str(&line(name.into_iter().chain(columns.iter().map(|c| c.cell(row)))));
    }
    text + &below(table.detectable(), "Of these means")
}

/// The cells with a row's method and parameters. The method is marked if it costs more than dense attention; the parameters are those
/// to be shown.
fn name(row: &SummaryRow, names: &ShownParams) -> [String; 2] {
    [row.method.clone() + &excess::marks(row), names.in_row(&row.method, &row.params).to_owned()]
}

/// A paragraph about the detectable difference.
fn below(line: Option<String>, about: &str) -> String {
    line.map_or(String::new(), |line| format!("\n{about}: {line}.\n"))
}

fn task(rows: &[SummaryRow], report: &Report, names: &ShownParams) -> String {
    let mut text = format!("\n### {}{}{}\n\n", in_markdown(&rows[0].task), at(rows[0].length), direction(&rows[0]));
    let columns = columns(rows);
    // Warnings about single settings are shown in their rows; warnings about the task are above the table.
    let checks = |row: &SummaryRow| {
        let own = report.warnings.iter().filter(|w| w.method.is_some() && w.is_about(row));
        own.map(|w| format!("`{}`", w.code)).collect::<Vec<_>>().join(", ")
    };
    let has_checks = rows.iter().any(|row| !checks(row).is_empty());
    let headings = ["method", "params"].into_iter().chain(columns.iter().map(|c| c.heading));
    text.push_str(&line(headings.chain(has_checks.then_some("look at"))));
    let rule = rule(2, columns.len());
    text.push_str(&if has_checks { rule.replace('\n', "---|\n") } else { rule });
    for row in rows {
        let name = name(row, names);
        let cells = name.into_iter().chain(columns.iter().map(|c| c.cell(row)));
        text.push_str(&line(cells.chain(has_checks.then(|| checks(row)))));
    }
    text
}

/// The tables of a pivot, each with its caption and notes.
pub fn pivot(tables: &[PivotTable]) -> String {
    let one = |table: &PivotTable| {
        let shown = ShownNotes::of(&table.notes);
        let mut text = format!("**{}**\n\n", in_markdown(&table.caption));
        text.push_str(&line(table.headings()));
        text.push_str(&rule(table.row_names.len(), table.columns.len()));
        for (row, cells) in table.rows.iter().zip(&table.cells) {
            let cell = |entry: &Option<Entry>| {
                let marked = |e: &Entry| in_markdown(&table.text(e)).into_owned() + &marks(&shown.numbers(&e.notes));
                entry.as_ref().map_or(String::new(), marked)
            };
            let names = row.iter().map(|name| in_markdown(name).into_owned());
            text.push_str(&line_of(names.chain(cells.iter().map(cell))));
        }
        let notes =
            shown.texts.iter().enumerate().map(|(i, note)| format!("- <sup>{}</sup> {}\n", i + 1, in_markdown(note)));
        let notes: String = notes.collect();
        if notes.is_empty() { text } else { format!("{text}\n{notes}") }
    };
    tables.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn marks(numbers: &[usize]) -> String {
    let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
    if numbers.is_empty() { String::new() } else { format!("<sup>{}</sup>", numbers.join(",")) }
}

/// The scores of a task by its other metrics; empty if there are none.
fn others(rows: &[SummaryRow], all: &[OtherScore], names: &ShownParams) -> String {
    let is_here = |score: &&OtherScore| rows.iter().any(|row| std::ptr::eq(score.row, row));
    let scores: Vec<&OtherScore> = all.iter().filter(is_here).collect();
    let metrics: Vec<&str> = distinct(scores.iter().map(|s| s.metric.as_str()));
    if metrics.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n");
    text.push_str(&line(
        ["method", "params"].into_iter().map(str::to_owned).chain(metrics.iter().map(|m| format!("{m} %"))),
    ));
    text.push_str(&rule(2, metrics.len()));
    for row in rows {
        let of = |metric: &&str| scores.iter().find(|s| std::ptr::eq(s.row, row) && s.metric == *metric);
        let cells = metrics.iter().map(|m| of(m).map_or(String::new(), |s| format!("{:.1}", s.score)));
        text.push_str(&line(name(row, names).into_iter().chain(cells)));
    }
    text
}

fn file_list(files: &[&str], figures: &Figures) -> String {
    let mut text = String::from("\n## Files\n\n- [samples.jsonl](samples.jsonl): one record an example and method\n");
    for file in files {
        let _ = writeln!(text, "- [{file}]({file})");
    }
    let Figures { first, others, .. } = figures;
    for Figure { file, title, .. } in first {
        let _ = write!(text, "\n![{}](plots/{file})\n", in_markdown(title));
    }
    if !others.is_empty() {
        let _ = write!(text, "\n{}:\n\n", counted(others.len()));
    }
    for Figure { file, title, .. } in others {
        let _ = writeln!(text, "- [{}](plots/{file})", in_markdown(title));
    }
    let lines = figures.left_out_line().into_iter().chain(figures.not_drawn_line());
    text.extend(lines.map(|line| format!("\n{line}\n")));
    text
}

/// The number of plots that are not shown.
pub(super) fn counted(others: usize) -> String {
    format!("{others} more plot{}", if others == 1 { "" } else { "s" })
}

// ---- Markdown ----

fn at(length: usize) -> String {
    if length == 0 { String::new() } else { format!(", {} tokens", tokens(length)) }
}

/// A row of a table, made from plain text.
pub(super) fn line<S: AsRef<str>>(cells: impl IntoIterator<Item = S>) -> String {
    line_of(cells.into_iter().map(|cell| in_markdown(cell.as_ref()).into_owned()))
}

/// A row of a table, made from Markdown.
fn line_of(cells: impl IntoIterator<Item = String>) -> String {
    format!("| {} |\n", cells.into_iter().collect::<Vec<_>>().join(" | "))
}

/// The line under the headings: text columns are left-aligned, numbers right-aligned.
pub(super) fn rule(text: usize, numbers: usize) -> String {
    format!("|{}{}\n", "---|".repeat(text), "---:|".repeat(numbers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::records::costs::KvTokens;
    use spattn_eval::records::record::Record;
    use spattn_eval::records::testing::record;

    #[test]
    fn the_page_has_every_part() {
        let records = ["ruler/vt", "ruler/cwe"]
            .map(|task| [record(task, "full", 0, 0.25), record(task, "topk", 0, 0.0)])
            .concat();
        let figure =
            Figure { file: "score_vs_density.svg".into(), title: "Score against density".into(), svg: String::new() };
        let other = Figure { file: "time.svg".into(), title: "Time".into(), svg: String::new() };
        let left_out = vec![("score_vs_cost.svg".to_owned(), "100".to_owned())];
        let figures = Figures { first: vec![figure], others: vec![other], left_out, ..Figures::default() };
        let page = render(&Report::new(&records, &[]), &["summary.csv"], &figures);
        for part in [
            "- seed: 1\n",
            "## builtin, sparse from question",
            "### Mean over 2 tasks, 4K tokens",
            "| topk |  | 0.0 | -25.0 |",
            "### ruler/vt, 4K tokens",
            "`low_reference` ruler/vt at 4096, full: the dense score is 25.0 %",
            "density | FLOPs % | read % | index % | look at |\n|---|---|---:",
            "\n## What the columns mean\n\n- **n**: Number of examples",
            "\n- **FLOPs %**: FLOPs of finding and attending tokens (`cost1` + `cost2`), relative to",
            "![Score against density](plots/score_vs_density.svg)\n\n1 more plot:\n\n- [Time](plots/time.svg)\n",
            "\nPlots with one value only are left out: score_vs_cost.svg (100).\n",
        ] {
            assert!(page.contains(part), "{part} is missing in\n{page}");
        }
    }

    #[test]
    fn a_mean_says_which_of_its_tasks_are_stand_ins() {
        let records = ["ruler/vt", "ruler/qa_synth"].map(|task| record(task, "full", 0, 1.0));
        let page = render(&Report::new(&records, &[]), &[], &Figures::default());
        let said = "### Mean over 2 tasks, 4K tokens\n\n1 of 2 tasks is a synthetic stand-in for a published one \
                    (ruler/qa_synth for ruler/qa_1).\n\n| method";
        assert!(page.contains(said), "{page}");
    }

    #[test]
    fn what_is_held_is_in_the_page_where_something_was_let_go() {
        let held = KvTokens { held: 790.5, context: 4060 };
        let records = [
            record("ruler/vt", "full", 0, 1.0),
            Record { kv_tokens: Some(held), ..record("ruler/vt", "snapkv", 0, 1.0) },
        ];
        let page = render(&Report::new(&records, &[]), &[], &Figures::default());
        assert!(page.contains("| index % | tokens held |"), "{page}");
        assert!(page.contains(" 1.56 | 790 |") && page.contains("a KV head stores what any"), "{page}");
    }

    #[test]
    fn what_settings_share_is_said_once_and_what_costs_too_much_is_marked() {
        let of = |params: &str, bits: f64| Record {
            params: params.into(),
            key: params.into(),
            aux_bits: Some(bits),
            ..record("ruler/vt", "magicpig", 0, 1.0)
        };
        let records = [record("ruler/vt", "full", 0, 1.0), of("K=10,L=75", 1500.0), of("K=10,L=150", 3072.0)];
        let page = render(&Report::new(&records, &[]), &[], &Figures::default());
        for part in [
            "\nAll rows but full: K=10.\n",
            "| magicpig | L=75 | 1 |",
            "| magicpig† | L=150 | 1 |",
            "\n† the index is larger than the keys and values: magicpig L=150 (1.50 ×).\n",
        ] {
            assert!(page.contains(part), "{part} is missing in\n{page}");
        }
    }

    #[test]
    fn an_empty_report_is_a_page_too() {
        assert!(render(&Report::new(&[], &[]), &[], &Figures::default()).contains("- model: none"));
    }
}

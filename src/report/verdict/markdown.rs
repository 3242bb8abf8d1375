//! The verdict in `summary.md`.

use std::fmt::Write as _;

use spattn_base::text::in_markdown;
use spattn_eval::summary::verdicts::{JudgedSetting, VerdictTable};

use super::matrix::{VerdictMatrix, below, by_task, costs};
use super::sentence::sentence;
use super::{shown, words};

/// The section. `more` has further lines below each table, such as the best method at a
/// budget.
pub fn render(tables: &[VerdictTable], more: impl Fn(usize) -> Vec<String>) -> String {
    let mut text = String::new();
    let (first, line) = shown(tables);
    for (at, table) in first.iter().enumerate() {
        let title = words::title(table, tables);
        let _ = write!(text, "\n## Verdict: {}\n\n{}\n\n", in_markdown(&title), in_markdown(&sentence(table)));
        text.push_str(&matrix(table));
        let lines: Vec<String> = below(table).iter().map(|line| in_markdown(line).into_owned()).collect();
        let _ = writeln!(text, "\n{}", lines.join(" "));
        text.push_str(&tasks(table));
        let lines = more(at);
        if !lines.is_empty() {
            let _ = write!(text, "\nMethods compared at each budget:\n\n");
            lines.iter().for_each(|line| text.push_str(&format!("- {}\n", in_markdown(line))));
        }
    }
    if let Some(line) = line {
        let _ = write!(text, "\n{line}\n");
    }
    text
}

fn matrix(table: &VerdictTable) -> String {
    let matrix = VerdictMatrix::of(table);
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let headings =
        std::iter::once("method / asked for".to_owned()).chain(matrix.budgets.iter().map(|b| words::budget(*b)));
    let mut text = line(headings.collect());
    text.push_str(&format!("|{}\n", "---|".repeat(1 + matrix.budgets.len())));
    for (name, cells) in &matrix.rows {
        let cell = |settings: &Vec<&JudgedSetting>| {
            settings.iter().map(|setting| cell(table, setting)).collect::<Vec<_>>().join("<br>")
        };
        text.push_str(&line(std::iter::once(in_markdown(name).into_owned()).chain(cells.iter().map(cell)).collect()));
    }
    text
}

/// The verdicts on each task; empty for a table with a single task.
fn tasks(table: &VerdictTable) -> String {
    let rows = by_task(table);
    if rows.is_empty() {
        return String::new();
    }
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let headings = std::iter::once("method").chain(table.tasks.iter().map(String::as_str));
    let mut text =
        format!("\nOn each task:\n\n{}", line(headings.map(|name| in_markdown(name).into_owned()).collect()));
    text.push_str(&format!("|{}\n", "---|".repeat(1 + table.tasks.len())));
    for (name, cells) in rows {
        text.push_str(&line(std::iter::once(in_markdown(&name).into_owned()).chain(cells).collect()));
    }
    text
}

/// The words, with the part before a colon in bold, then the difference and the costs.
fn cell(table: &VerdictTable, setting: &JudgedSetting) -> String {
    let said = words::finding(table, setting);
    let said = match said.split_once(':') {
        Some((word, rest)) => format!("**{word}**:{rest}"),
        None => format!("**{said}**"),
    };
    let difference = words::difference(table, setting);
    let difference = if difference.is_empty() { difference } else { format!("Δ {difference}") };
    let parts = [said, difference, costs(setting)];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("<br>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::verdict::testing::{run, table};

    #[test]
    fn the_section_has_sentence_table_and_rule() {
        let of = |method: &str, params: &str, lost| run("vt", method, params, lost, 20);
        let tables = [table(&[of("full", "", 0), of("quest", "density=0.05", 15), of("quest", "density=0.2", 0)], 1.0)];
        let text = render(&tables, |_| vec!["at 5 %: only `quest`".to_owned()]);
        for part in [
            "\n## Verdict: vt at 4K tokens\n\n20 examples cannot prove any setting safe. Proven worse: `quest 5 %` (−75, ",
            "| method / asked for | 5 % | 20 % |\n|---|---|---|\n| quest | **not safe**: loses at least 3",
            "<br>Δ -75.0 [-",
            "<br>memory +12 %, reads 10 % | **too few examples**: about 500 if it loses nothing<br>Δ 0.0 [-",
            "\nFull attention scores 100.0. Safe: loses at most 1 point",
            "\n- at 5 %: only `quest`\n",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}

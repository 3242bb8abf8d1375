//! The verdict on a terminal: the sentence, then a line for each setting, by requested budget. The page's table of methods by budgets does
//! not fit 80 columns if there are three budgets or more.

use spattn_eval::summary::verdicts::{JudgedSetting, VerdictTable};

use super::matrix::{VerdictMatrix, below};
use super::sentence::{sentence, whole};
use super::{shown, words};

/// The verdicts as text; empty without tables. No line is longer than `width`, if it is given and the words allow it.
pub fn render(tables: &[VerdictTable], width: Option<usize>) -> String {
    let (first, line) = shown(tables);
    let parts: Vec<String> = first.iter().map(|table| of_table(table, tables, width)).collect();
    let line = line.map_or(String::new(), |line| format!("\n{line}\n"));
    parts.join("\n") + &line
}

fn of_table(table: &VerdictTable, among: &[VerdictTable], width: Option<usize>) -> String {
    let mut text = wrapped(&format!("Verdict: {}", words::title(table, among)), width);
    // Backticks mark names only in markup.
    text += &wrapped(&sentence(table).replace('`', ""), width);
    let lines = lines(table);
    let (columns, left_out) = fitting(&lines, width);
    text.push('\n');
    for line in std::iter::once(HEADINGS.map(str::to_owned)).chain(lines) {
        text += &(joined(&line, &columns) + "\n");
    }
    text.push('\n');
    text += &wrapped(&below(table).join(" "), width);
    if !left_out.is_empty() {
        text += &wrapped(&format!("left out for want of room: {} (summary.md has all)", left_out.join(", ")), width);
    }
    text
}

const COLUMNS: usize = 8;
/// The cell of `attended` is empty if the request was met.
const HEADINGS: [&str; COLUMNS] =
    ["asked for", "attended", "method", "verdict", "Δ of verdict", "memory", "reads", "ms alone"];
/// The columns that are left out on a narrow terminal, in this order.
const LEFT_OUT_FIRST: [usize; 4] = [4, 7, 5, 6];

type Line = [String; COLUMNS];

fn lines(table: &VerdictTable) -> Vec<Line> {
    let matrix = VerdictMatrix::of(table);
    let mut lines = Vec::new();
    for (column, budget) in matrix.budgets.iter().enumerate() {
        let here =
            matrix.rows.iter().flat_map(|(name, cells)| cells[column].iter().map(move |setting| (name, *setting)));
        for (at, (name, setting)) in here.enumerate() {
            let heading = if at == 0 { budget.name() } else { String::new() };
            lines.push(line(table, heading, name, setting));
        }
    }
    lines
}

fn line(table: &VerdictTable, budget: String, name: &str, setting: &JudgedSetting) -> Line {
    [
        budget,
        setting.attended_instead.map_or(String::new(), |share| format!("{} %", words::percent_of(share))),
        name.to_owned(),
        words::brief(table, setting),
        words::difference(table, setting),
        setting.memory_percent.map_or(String::new(), |percent| format!("+{}", whole(percent))),
        setting.bytes_percent.map_or(String::new(), whole),
        setting.solo_ms.map_or(String::new(), |ms| format!("{ms:.1}")),
    ]
}

/// The widths of the shown columns (0 for the others), and the names of the columns left out.
fn fitting(lines: &[Line], width: Option<usize>) -> ([usize; COLUMNS], Vec<&'static str>) {
    let of_column = |column: usize| -> usize {
        let cells = lines.iter().map(|line| line[column].chars().count());
        match cells.max().unwrap_or(0) {
            0 => 0,
            most => most.max(HEADINGS[column].chars().count()),
        }
    };
    let mut columns: [usize; COLUMNS] = std::array::from_fn(of_column);
    let mut left_out = Vec::new();
    for column in LEFT_OUT_FIRST {
        if width.is_none_or(|width| total(&columns) <= width) {
            break;
        }
        if columns[column] > 0 {
            columns[column] = 0;
            left_out.push(HEADINGS[column]);
        }
    }
    (columns, left_out)
}

/// The number of characters between columns.
const GAP: usize = 2;

fn total(columns: &[usize; COLUMNS]) -> usize {
    let shown = columns.iter().filter(|width| **width > 0);
    shown.clone().sum::<usize>() + GAP * shown.count().saturating_sub(1)
}

fn joined(line: &Line, columns: &[usize; COLUMNS]) -> String {
    let cells = line.iter().zip(columns).filter(|(_, width)| **width > 0);
    let padded = cells.map(|(cell, width)| format!("{cell}{}", " ".repeat(width.saturating_sub(cell.chars().count()))));
    padded.collect::<Vec<_>>().join(&" ".repeat(GAP)).trim_end().to_owned()
}

fn wrapped(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return format!("{text}\n") };
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::verdict::testing::{run, table};
    use spattn_eval::records::record::Record;

    fn two() -> Vec<VerdictTable> {
        let of = |method: &str, params: &str, lost| -> Vec<Record> { run("vt", method, params, lost, 20) };
        let runs = [
            of("full", "", 0),
            of("quest", "density=0.05", 15),
            of("double_sparsity", "density=0.05", 0),
            of("quest", "density=0.2", 0),
            of("topk", "density=0.05", 0),
        ];
        vec![table(&runs, 1.0)]
    }

    #[test]
    fn each_setting_has_a_line_under_the_budget_asked_for() {
        let text = render(&two(), None);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "Verdict: vt at 4K tokens");
        assert!(
            lines[1].starts_with("20 examples cannot prove any setting safe. Proven worse: quest 5 % (−75"),
            "{text}"
        );
        assert!(
            lines[3].starts_with("asked for  method           verdict ") && lines[3].ends_with("  memory  reads"),
            "{text}"
        );
        assert!(lines[4].starts_with("5 %        double_sparsity  too few: about 570 if it loses nothing"), "{text}");
        assert!(lines[5].starts_with("           quest            not safe: loses at least 3"), "{text}");
        assert!(lines[6].starts_with("           topk             oracle, for comparison "), "{text}");
        assert!(lines[7].starts_with("20 %       quest            too few: about "), "{text}");
    }

    #[test]
    fn what_was_attended_stands_beside_what_was_asked_for() {
        let mut tables = two();
        let is_quest = |setting: &&mut JudgedSetting| setting.method == "quest" && setting.budget.name() == "5 %";
        tables[0].settings.iter_mut().find(is_quest).unwrap().attended_instead = Some(0.152);
        let text = render(&tables, Some(80));
        let line = text.lines().find(|line| line.contains(" 15 % ") && line.contains("quest")).unwrap_or_default();
        assert!(line.contains("not safe") && text.contains("asked for  attended  method"), "{text}");
        assert!(render(&tables, None).contains("quest 5 % (15 % attended; −75"), "{text}");
    }

    #[test]
    fn at_eighty_columns_what_is_left_out_is_said() {
        let text = render(&two(), Some(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("left out for want of room: Δ of verdict, memory (summary.md has all)"), "{text}");
        assert!(text.contains("  reads\n") && text.contains("  10 %\n") && !text.contains("+12 %"), "{text}");
    }
}

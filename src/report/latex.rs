//! LaTeX tables with the rules of `booktabs`.

use super::Report;
use super::format::{columns, setting, tokens};
use super::pivot::{Table, is_about};
use crate::eval::record::SummaryRow;

/// `summary.tex`: a table for each task and length, with the columns of `summary.md`, warnings below the rows they concern.
pub fn summary(report: &Report) -> String {
    let mut text = String::from("% Needs \\usepackage{booktabs}.\n");
    for warning in report.warnings.iter().filter(|w| w.is_general()) {
        text.push_str(&format!("\\par\\footnotesize {}\n", escaped(&warning.to_string())));
    }
    let place = |r: &SummaryRow| (setting(r), r.task.clone(), r.length);
    for rows in report.rows.chunk_by(|a, b| place(a) == place(b)) {
        let length = if rows[0].length > 0 { format!(", {} tokens", tokens(rows[0].length)) } else { String::new() };
        let columns = columns(rows);
        let headings = ["method", "params"].into_iter().chain(columns.iter().map(|c| c.heading)).map(str::to_owned);
        let mut notes = Vec::new();
        let line = |row: &SummaryRow| {
            let mut cells = vec![row.method.clone(), row.params.clone()];
            cells.extend(columns.iter().map(|c| (c.cell)(row)));
            let mut cells: Vec<String> = cells.iter().map(|cell| escaped(cell)).collect();
            for warning in report.warnings.iter().filter(|w| w.method.is_some() && is_about(w, row)) {
                notes.push(warning.to_string());
                cells[0].push_str(&mark(notes.len()));
            }
            cells
        };
        let lines = rows.iter().map(line).collect();
        let of_place = report.warnings.iter().filter(|w| w.method.is_none() && is_about(w, &rows[0]));
        let general: Vec<String> = of_place.map(ToString::to_string).collect();
        let caption = format!("{}: {}{length}", setting(&rows[0]), rows[0].task);
        text.push_str(&tabular(&caption, 2, headings.collect(), lines, &notes, &general));
    }
    text
}

/// Tables of a pivot.
pub fn pivot(tables: &[Table]) -> String {
    let one = |table: &Table| {
        let line = |(row, cells): (&Vec<String>, &Vec<Option<_>>)| {
            let cell = |entry: &Option<super::pivot::Entry>| {
                let Some(entry) = entry else { return String::new() };
                let marks: String = entry.notes.iter().map(|n| mark(*n)).collect();
                escaped(&table.text(entry)) + &marks
            };
            row.iter().map(|name| escaped(name)).chain(cells.iter().map(cell)).collect::<Vec<_>>()
        };
        let lines = table.rows.iter().zip(&table.cells).map(line).collect();
        tabular(&table.caption, table.row_names.len(), table.headings(), lines, &table.notes, &[])
    };
    "% Needs \\usepackage{booktabs}.\n".to_owned() + &tables.iter().map(one).collect::<String>()
}

fn mark(note: usize) -> String {
    format!("\\textsuperscript{{{note}}}")
}

fn tabular(
    caption: &str,
    text_columns: usize,
    headings: Vec<String>,
    lines: Vec<Vec<String>>,
    notes: &[String],
    general: &[String],
) -> String {
    let alignment = "l".repeat(text_columns) + &"r".repeat(headings.len().saturating_sub(text_columns));
    let headings: Vec<String> = headings.iter().map(|h| escaped(h)).collect();
    let mut text = format!(
        "\n\\begin{{table}}\n\\centering\n\\caption{{{}}}\n\\begin{{tabular}}{{{alignment}}}\n\\toprule\n{} \\\\\n\\midrule\n",
        escaped(caption),
        headings.join(" & ")
    );
    for line in lines {
        text.push_str(&format!("{} \\\\\n", line.join(" & ")));
    }
    text.push_str("\\bottomrule\n\\end{tabular}\n");
    for (i, note) in notes.iter().enumerate() {
        text.push_str(&format!("\\par\\footnotesize {} {}\n", mark(i + 1), escaped(note)));
    }
    for note in general {
        text.push_str(&format!("\\par\\footnotesize {}\n", escaped(note)));
    }
    text + "\\end{table}\n"
}

/// Text as LaTeX shows it.
fn escaped(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => format!("\\{c}"),
            '~' => "\\textasciitilde{}".to_owned(),
            '^' => "\\textasciicircum{}".to_owned(),
            '\\' => "\\textbackslash{}".to_owned(),
            '<' => "\\textless{}".to_owned(),
            '>' => "\\textgreater{}".to_owned(),
            '|' => "\\textbar{}".to_owned(),
            'Δ' => "$\\Delta$".to_owned(),
            '‖' => "$\\|$".to_owned(),
            '×' => "$\\times$".to_owned(),
            '`' => "'".to_owned(),
            c => c.to_string(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::record::Record;
    use crate::eval::record::tests::record;

    #[test]
    fn tables_have_rules_and_escaped_text_and_marks() {
        let empty = |sample| Record {
            prediction: "".into(),
            params: "per=kv_head".into(),
            ..record("vt", "topk", sample, 0.0)
        };
        let records = [record("vt", "full", 0, 1.0), empty(0), empty(1)];
        let text = summary(&Report::new(&records, &[]));
        for part in [
            "booktabs}.\n\\par\\footnotesize n = 1: on one task no difference can be told",
            "\\begin{tabular}{llrrrrrrrrr}\n\\toprule\nmethod & params & n & score \\% & $\\Delta$ full &",
            "topk\\textsuperscript{1} & per=kv\\_head & 2 & 0.0 [0.0 84.2] & -100.0 &",
            "\\bottomrule\n\\end{tabular}\n\\par\\footnotesize \\textsuperscript{1} vt at 4096, topk:per=kv\\_head: 2 of 2",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert_eq!(escaped("a_b^c\\{50 %}"), "a\\_b\\textasciicircum{}c\\textbackslash{}\\{50 \\%\\}");
    }
}

//! The results of `spattn analyze`: tables on the terminal, CSV, JSON, drawings and a page.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};

use super::csv::finished;
use super::format::{capital, tokens};
use super::markdown::{line, rule};
use super::plots::Figure;
use super::plots::analyses::figure;
use super::table::lines;
use spattn_base::text::in_markdown;
use spattn_lab::analyze::AnalysisFindings;
use spattn_lab::analyze::findings::{FindingsRow, Table, Unit};

/// Facts about what was read, for the head of the page: pairs of name and value.
pub type Facts = [(String, String)];

/// The name of the file with all tables.
pub const RESULT: &str = "analyze.json";
/// The name of the page.
pub const PAGE: &str = "analyze.md";

/// The tables to print: all except those by head.
pub fn terminal(found: &[AnalysisFindings]) -> String {
    let mut text = String::new();
    for AnalysisFindings { analysis, findings } in found {
        let _ = write!(text, "\n{}: {} ({})\n", analysis.name, analysis.about, analysis.reference);
        for table in findings.tables.iter().filter(|table| !table.is_detail) {
            let _ = write!(text, "\n{}\n\n", table.title);
            let headings = headings(table).map(|name| name.replace(", ", ",\n")).collect();
            let rows = table.rows.iter().map(|row| cells(table, row)).collect();
            text.push_str(&lines(headings, rows, table.keys.len()).concat());
        }
        findings.notes.iter().for_each(|note| text.push_str(&format!("note: {note}\n")));
    }
    text
}

fn headings(table: &Table) -> impl Iterator<Item = String> + '_ {
    let unit = |unit: Unit, name: &str| if unit == Unit::Share { format!("{name} (%)") } else { name.to_owned() };
    table.keys.iter().cloned().chain(table.columns.iter().map(move |column| unit(column.unit, &column.name)))
}

fn cells(table: &Table, row: &FindingsRow) -> Vec<String> {
    let cell = |(unit, number): (Unit, &Option<f64>)| number.map_or(String::new(), |number| shown(unit, number));
    let units = table.columns.iter().map(|column| column.unit);
    row.keys.iter().cloned().chain(units.zip(&row.numbers).map(cell)).collect()
}

/// A number as text, by its unit.
fn shown(unit: Unit, x: f64) -> String {
    let size = x.abs();
    let text = match unit {
        Unit::Share if 100.0 * size < 0.995 => format!("{:.2}", 100.0 * x),
        Unit::Share => format!("{:.1}", 100.0 * x),
        Unit::Tokens if size < 99.5 => format!("{x:.1}"),
        Unit::Tokens => format!("{x:.0}"),
        Unit::Number if size == 0.0 => "0".to_owned(),
        Unit::Number if size >= 99.5 => format!("{x:.0}"),
        Unit::Number if size < 0.0995 => format!("{x:.4}"),
        Unit::Number => format!("{x:.3}"),
    };
    match text.strip_prefix('-') {
        Some(zero) if zero.bytes().all(|b| matches!(b, b'0' | b'.')) => zero.to_owned(),
        _ => text,
    }
}

/// A table as CSV, with all digits.
///
/// # Errors
/// None in practice; the CSV writer's signature has one.
pub fn csv(table: &Table) -> Result<String> {
    let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
    writer.write_record(table.keys.iter().chain(table.columns.iter().map(|column| &column.name)))?;
    for row in &table.rows {
        let number = |x: &Option<f64>| x.map_or(String::new(), |x| x.to_string());
        writer.write_record(row.keys.iter().cloned().chain(row.numbers.iter().map(number)))?;
    }
    finished(writer)
}

/// All results as JSON, with all digits.
///
/// # Errors
/// None in practice; the JSON writer's signature has one.
pub fn json(found: &[AnalysisFindings], manifest: &Value) -> Result<String> {
    let one = |AnalysisFindings { analysis, findings }: &AnalysisFindings| {
        json!({
            "name": analysis.name,
            "about": analysis.about,
            "reference": analysis.reference,
            "tables": findings.tables,
            "notes": findings.notes,
        })
    };
    let all = json!({ "manifest": manifest, "analyses": found.iter().map(one).collect::<Vec<_>>() });
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

/// The page: what was read, and each analysis with its tables and drawings (paths relative to the page).
pub fn page(found: &[AnalysisFindings], facts: &Facts, figures: &[Vec<Figure>]) -> String {
    let mut text = "# What attention looks like\n\n".to_owned();
    facts.iter().for_each(|(name, value)| text.push_str(&format!("- {name}: {}\n", in_markdown(value))));
    for (AnalysisFindings { analysis, findings }, figures) in found.iter().zip(figures) {
        let _ = write!(text, "\n## {}\n\n{} ({}).\n", analysis.name, capital(analysis.about), analysis.reference);
        findings.notes.iter().for_each(|note| text.push_str(&format!("\n{}.\n", in_markdown(&capital(note)))));
        for Figure { file, title, .. } in figures {
            let _ = write!(text, "\n![{}](plots/{file})\n", in_markdown(title));
        }
        for table in &findings.tables {
            let file = format!("tables/{}.csv", table.name);
            let title = in_markdown(&table.title);
            if table.is_detail {
                let _ = write!(text, "\n{title}: [{file}]({file}), {} rows.\n", table.rows.len());
                continue;
            }
            let _ = write!(text, "\n{title} ([CSV]({file})).\n\n");
            text.push_str(&line(headings(table)));
            text.push_str(&rule(table.keys.len(), table.columns.len()));
            table.rows.iter().for_each(|row| text.push_str(&line(cells(table, row))));
        }
    }
    text
}

/// Writes `analyze.json`, `analyze.md`, `tables/*.csv` and `plots/*` into a folder. Returns the paths of the files.
///
/// # Errors
/// If one cannot be written.
pub fn write(found: &[AnalysisFindings], facts: &Facts, manifest: &Value, folder: &Path) -> Result<Vec<PathBuf>> {
    let draw = |found: &AnalysisFindings| found.findings.drawings.iter().map(figure).collect::<Result<Vec<_>>>();
    let figures: Vec<Vec<Figure>> = found.iter().map(|found| Ok(draw(found)?.concat())).collect::<Result<_>>()?;
    let mut files = vec![(RESULT.to_owned(), json(found, manifest)?), (PAGE.to_owned(), page(found, facts, &figures))];
    for table in found.iter().flat_map(|found| &found.findings.tables) {
        files.push((format!("tables/{}.csv", table.name), csv(table)?));
    }
    super::write_files(files, &figures.concat(), folder)
}

/// The facts about what was read.
pub fn facts(model: &str, tasks: &[String], length: usize, documents: usize, queries: usize) -> Vec<(String, String)> {
    let fact = |name: &str, value: String| (name.to_owned(), value);
    vec![
        fact("model", model.to_owned()),
        fact("read", tasks.join(", ")),
        fact("documents", format!("{documents} of up to {} tokens", tokens(length))),
        fact("queries", format!("those of the last {queries} tokens of each, of every head")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_lab::analyze::{Findings, select};

    fn found() -> Vec<AnalysisFindings> {
        let mut table = Table::new("t", "What it shows", &["layer"], &[("a, b", Unit::Share), ("n", Unit::Tokens)]);
        table.push(["0"], [0.1234, 12.0]);
        table.push(["1"], [f64::NAN, 1234.5]);
        let detail = Table { name: "u".into(), ..table.clone() }.detail();
        let findings = Findings { tables: vec![table, detail], drawings: Vec::new(), notes: vec!["so it is".into()] };
        vec![AnalysisFindings { analysis: select(&["mass".to_owned()]).unwrap()[0], findings }]
    }

    #[test]
    fn tables_say_the_same_everywhere() {
        let found = found();
        let text = terminal(&found);
        let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().map(squeezed).collect();
        assert!(lines.contains(&"0 12.3 12.0".to_owned()) && lines.contains(&"1 1234".to_owned()), "{text}");
        assert!(lines.contains(&"note: so it is".to_owned()), "{text}");
        assert_eq!(csv(&found[0].findings.tables[0]).unwrap(), "layer,\"a, b\",n\n0,0.1234,12\n1,,1234.5\n");
        let json: Value = serde_json::from_str(&json(&found, &json!({})).unwrap()).unwrap();
        assert_eq!(json["analyses"][0]["tables"][0]["rows"][1]["numbers"], json!([null, 1234.5]));
        let page = page(&found, &facts("builtin", &["vt".into()], 2048, 3, 16), &[Vec::new()]);
        assert!(
            page.contains("| layer | a, b (%) | n |\n|---|---:|---:|\n| 0 | 12.3 | 12.0 |\n| 1 |  | 1234 |\n"),
            "{page}"
        );
        assert!(
            page.contains("[tables/u.csv](tables/u.csv), 2 rows.")
                && page.contains("- documents: 3 of up to 2K tokens\n")
        );
    }

    #[test]
    fn numbers_have_a_few_digits_and_no_negative_zero() {
        assert_eq!([0.05, 0.5, 123.4, -0.00001].map(|x| shown(Unit::Number, x)), ["0.0500", "0.500", "123", "0.0000"]);
        assert_eq!([0.001, 0.5].map(|x| shown(Unit::Share, x)), ["0.10", "50.0"]);
    }
}

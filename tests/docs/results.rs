//! The committed results of the papers: their log can be checked, and their pages leave open nothing that the results decide.

use std::collections::HashMap;
use std::path::Path;

use super::{Page, cells, markdown_under, root};

/// The last row of the log for each item, variant and model. The stored results come from these rows.
fn last_rows(log: &Path) -> Vec<HashMap<String, String>> {
    let mut log = csv::Reader::from_path(log).unwrap();
    let rows: Vec<HashMap<String, String>> = log.deserialize().map(|row| row.unwrap()).collect();
    let of = |row: &HashMap<String, String>| ["item", "run", "model"].map(|key| row[key].clone());
    let last: HashMap<_, _> = rows.iter().enumerate().map(|(at, row)| (of(row), at)).collect();
    rows.iter().enumerate().filter(|(at, row)| last[&of(row)] == *at).map(|(_, row)| row.clone()).collect()
}

#[test]
fn the_digests_of_the_log_are_those_of_the_tables() {
    let papers = root().join("results/papers");
    let rows = last_rows(&papers.join("log.csv"));
    assert!(rows.len() > 50, "{}", rows.len());
    let is_other = |row: &&HashMap<String, String>| {
        let table = papers.join(&row["item"]).join("table.csv");
        cells::digest(&table, &row["run"], &row["model"]) != row["cells_sha256"]
    };
    let other: Vec<String> =
        rows.iter().filter(is_other).map(|row| format!("{} on {}", row["item"], row["model"])).collect();
    assert!(other.is_empty(), "the log has another digest of {other:#?}");
}

/// The lines of all pages for which `is_wrong` holds, with their pages.
fn lines(is_wrong: impl Fn(&Page, &str) -> bool) -> Vec<String> {
    let pages = markdown_under("results/papers");
    assert!(pages.len() > 90, "{}", pages.len());
    let of = |page: &Page| {
        let wrong = page.text.lines().filter(|line| is_wrong(page, line));
        wrong.map(|line| format!("{}: {line}", page.name)).collect::<Vec<_>>()
    };
    pages.iter().flat_map(of).collect()
}

#[test]
fn every_number_of_examples_in_a_verdict_is_of_named_or_counted_tasks() {
    let is_verdict = |line: &str| ["| ", "**", "*Tried:*"].iter().any(|begin| line.starts_with(begin));
    let is_bare = |rest: &str| !rest.split([')', ';']).next().unwrap_or_default().contains(" of ");
    let bare = lines(|_, line| is_verdict(line) && line.split("n = ").skip(1).any(is_bare));
    assert!(bare.is_empty(), "{bare:#?}");
}

#[test]
fn no_page_lists_a_fact_or_a_setting_without_a_value() {
    let is_fact = |line: &str| line.starts_with("- ") && line.trim_end().ends_with(':');
    // Tables of numbers have empty cells. Tables of settings come after the heading.
    let is_setting = |page: &Page, line: &str| {
        let settings = page.text.split_once("\n## Settings").map_or("", |(_, settings)| settings);
        line.starts_with("| ") && line.contains("|  |") && settings.contains(line)
    };
    let empty = lines(|page, line| is_fact(line) || is_setting(page, line));
    assert!(empty.is_empty(), "{empty:#?}");
}

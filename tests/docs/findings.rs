//! What the first page of the papers states with an interval is in the table that it is about.

use std::collections::HashMap;
use std::fs;

use super::root;

/// The numbers of `61.7 [58.3 65.0]` in a sentence: a value and the ends of its interval.
fn with_intervals(sentence: &str) -> Vec<[f64; 3]> {
    let mut found = Vec::new();
    for (before, after) in sentence.match_indices(" [").map(|(at, _)| (&sentence[..at], &sentence[at + 2..])) {
        let value = before.rsplit(' ').next().unwrap_or_default();
        let inside = after.split(']').next().unwrap_or_default();
        let numbers: Option<Vec<f64>> = [value].into_iter().chain(inside.split(' ')).map(|x| x.parse().ok()).collect();
        found.extend(numbers.and_then(|numbers| <[f64; 3]>::try_from(numbers).ok()));
    }
    found
}

#[test]
fn what_the_first_finding_states_is_in_the_table_of_all_methods() {
    let text = fs::read_to_string(root().join("configs/papers/findings.toml")).unwrap();
    let findings: toml::Table = text.parse().unwrap();
    let stated = with_intervals(findings["findings"][0].as_str().unwrap());
    assert!(stated.len() >= 5, "{stated:?}");
    let mut table = csv::Reader::from_path(root().join("results/papers/all/table-1/table.csv")).unwrap();
    let rows: Vec<HashMap<String, String>> = table.deserialize().map(|row| row.unwrap()).collect();
    let is_of_ruler = |row: &&HashMap<String, String>| row["variant"] == "real" && row["column"] == "RULER (%)";
    let measured: Vec<[Option<f64>; 3]> = rows
        .iter()
        .filter(is_of_ruler)
        .map(|row| ["measured", "ci_low", "ci_high"].map(|key| row[key].parse::<f64>().ok()))
        .collect();
    // Stated with one decimal.
    let is = |stated: &[f64; 3], cell: &[Option<f64>; 3]| {
        stated.iter().zip(cell).all(|(stated, cell)| cell.is_some_and(|cell| (cell - stated).abs() <= 0.05 + 1e-9))
    };
    for numbers in &stated {
        assert!(measured.iter().any(|cell| is(numbers, cell)), "no method has {numbers:?}");
    }
}

#[test]
fn numbers_with_intervals_are_read() {
    assert_eq!(with_intervals("It has 6.5 [5.0 8] and 7 [to 9], 3 [1 to 2]."), [[6.5, 5.0, 8.0]]);
}

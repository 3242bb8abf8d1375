//! The numbers that the first page of the papers states are those of the tables that it is about.

use std::collections::HashMap;
use std::fs;

use super::root;

/// The numbers of `61.7 [58.3 65.0]` or `20 [15 to 24]` in a sentence: a value and the ends of its interval.
fn with_intervals(sentence: &str) -> Vec<[f64; 3]> {
    let mut found = Vec::new();
    for (before, after) in sentence.match_indices(" [").map(|(at, _)| (&sentence[..at], &sentence[at + 2..])) {
        let value = before.rsplit(' ').next().unwrap_or_default();
        let inside = after.split(']').next().unwrap_or_default().replace(" to ", " ");
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

/// A number that a finding states, and the cell that it is of.
struct Stated {
    finding: usize,
    /// The words around the number, as they stand there.
    words: &'static str,
    number: f64,
    /// Half of the last digit that is stated.
    within: f64,
    /// Item, run, row and column.
    cell: [&'static str; 4],
    /// A row of the same column: the number is how much less the cell has.
    below: Option<&'static str>,
}

const fn is(finding: usize, words: &'static str, number: f64, within: f64, cell: [&'static str; 4]) -> Stated {
    Stated { finding, words, number, within, cell, below: None }
}

/// Points that a method loses to dense attention in MagicPIG's table 3.
const fn loss(words: &'static str, number: f64, row: &'static str) -> Stated {
    let cell = ["magicpig/table-3", "real", row, "16K"];
    Stated { finding: 1, words, number, within: 0.5, cell, below: Some("Full") }
}

/// What the other findings state.
const STATED: [Stated; 14] = [
    loss("(10,150) loses 20 [", 20.0, "MagicPIG (10,150)"),
    loss("and 8 [", 8.0, "MagicPIG (9,120)"),
    loss("Quest loses 5 at 4 %", 5.0, "Quest (16,0.04)"),
    is(1, "of 48 points", 48.0, 0.5, ["magicpig/table-3", "real", "Full", "16K"]),
    is(1, "at 2.0 % of the tokens", 0.020, 0.0005, ["magicpig/table-3", "real", "MagicPIG (10,150)", "Cost2"]),
    is(1, "(9,120) at 4.0 %", 0.040, 0.0005, ["magicpig/table-3", "real", "MagicPIG (9,120)", "Cost2"]),
    is(2, "is 25 against Flash", 25.0, 0.5, ["hip/figure-6", "times", "HiP", "128k, decoding, times as fast"]),
    is(2, "15.5 against cuDNN", 15.5, 0.05, ["hip/figure-6", "times", "HiP", "128k, decoding, times as fast as cuDNN"]),
    is(3, "samples 3.6 % on the built-in", 3.6, 0.05, ["magicpig/table-8", "builtin", "(10,150)", "Sampled (%)"]),
    is(3, "and 2.0 % on Qwen2.5", 2.0, 0.05, ["magicpig/table-8", "real", "(10,150)", "Sampled (%)"]),
    is(3, "with (7,300) 61 % on the built-in", 61.0, 0.5, ["magicpig/table-8", "builtin", "(7,300)", "Sampled (%)"]),
    is(3, "66 % on Qwen2.5", 66.0, 0.5, ["magicpig/table-8", "real", "(7,300)", "Sampled (%)"]),
    is(4, "a cosine of 0.27", 0.27, 0.005, ["magicpig/figure-2", "real", "all layers", "cos(k_sink, k_avg)"]),
    is(4, "hold 98.6 % of the mass", 98.6, 0.05, ["magicpig/figure-2", "real", "all layers", "Top 20 % (%)"]),
];

fn measured(item: &str, run: &str, row: &str, column: &str) -> f64 {
    let mut table = csv::Reader::from_path(root().join("results/papers").join(item).join("table.csv")).unwrap();
    let rows = table.deserialize::<HashMap<String, String>>().map(|row| row.unwrap());
    let is = |cell: &HashMap<String, String>| cell["variant"] == run && cell["row"] == row && cell["column"] == column;
    let found = rows.into_iter().find(is).unwrap_or_else(|| panic!("{item} has no {run}, {row}, {column}"));
    found["measured"].parse().unwrap()
}

#[test]
fn what_the_other_findings_state_is_in_their_tables() {
    let text = fs::read_to_string(root().join("configs/papers/findings.toml")).unwrap();
    let findings: toml::Table = text.parse().unwrap();
    for stated in &STATED {
        let Stated { finding, words, number, within, cell: [item, run, row, column], below } = stated;
        let sentence = findings["findings"][*finding].as_str().unwrap();
        assert!(sentence.contains(words), "\"{words}\" is not in: {sentence}");
        let cell = measured(item, run, row, column);
        let cell = below.map_or(cell, |row| measured(item, run, row, column) - cell);
        assert!((cell - number).abs() <= within + 1e-9, "\"{words}\": {item} has {cell}");
    }
}

#[test]
fn the_second_findings_intervals_are_those_of_its_claims() {
    let text = fs::read_to_string(root().join("configs/papers/findings.toml")).unwrap();
    let findings: toml::Table = text.parse().unwrap();
    let stated = with_intervals(findings["findings"][1].as_str().unwrap());
    assert_eq!(stated.len(), 2, "{stated:?}");
    let file = root().join("results/papers/magicpig/table-3/result-real-qwen2.5-coder-0.5b-instruct.json");
    let result: serde_json::Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let claims = result["claims"].as_array().unwrap().iter().flat_map(|claim| claim["why"].as_array().unwrap());
    let differences: Vec<[f64; 3]> = claims.flat_map(|why| with_intervals(why.as_str().unwrap())).collect();
    // A loss is a difference below zero.
    let is = |[loss, low, high]: &[f64; 3], [difference, from, to]: &[f64; 3]| {
        [(loss, difference), (low, to), (high, from)].iter().all(|(stated, own)| (*stated + *own).abs() <= 0.5 + 1e-9)
    };
    for loss in &stated {
        assert!(differences.iter().any(|own| is(loss, own)), "no comparison has {loss:?}");
    }
}

#[test]
fn numbers_with_intervals_are_read() {
    assert_eq!(with_intervals("It has 6.5 [5.0 8] and 7 [to 9], 3 [1 to 2]."), [[6.5, 5.0, 8.0], [3.0, 1.0, 2.0]]);
    assert_eq!(with_intervals("A: -19.56 [-23.66 to -15.44], at"), [[-19.56, -23.66, -15.44]]);
}

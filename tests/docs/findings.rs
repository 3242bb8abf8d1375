//! The numbers stated on the papers' front page and in the answers on their pages are those of the tables that they refer to.

use std::collections::HashMap;
use std::fs;

use serde_json::Value;

use super::root;

/// The numbers of texts such as `61.7 [58.3 65.0]` or `20 [15 to 24]` in a sentence: a value and the ends of its interval.
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
    // Numbers are stated with one decimal.
    let is = |stated: &[f64; 3], cell: &[Option<f64>; 3]| {
        stated.iter().zip(cell).all(|(stated, cell)| cell.is_some_and(|cell| (cell - stated).abs() <= 0.05 + 1e-9))
    };
    for numbers in &stated {
        assert!(measured.iter().any(|cell| is(numbers, cell)), "no method has {numbers:?}");
    }
}

/// A number that a finding states, and the cell that it comes from.
struct Stated {
    finding: usize,
    /// The words around the number.
    words: &'static str,
    number: f64,
    /// The tolerance: half a unit of the last digit stated.
    within: f64,
    /// Item, run, row and column.
    cell: [&'static str; 4],
    /// Another row of the same column. The number is how much lower the cell is than that row.
    below: Option<&'static str>,
}

const fn is(finding: usize, words: &'static str, number: f64, within: f64, cell: [&'static str; 4]) -> Stated {
    Stated { finding, words, number, within, cell, below: None }
}

/// The points that a method loses against dense attention in MagicPIG's table 3.
const fn loss(words: &'static str, number: f64, row: &'static str) -> Stated {
    let cell = ["magicpig/table-3", "real", row, "16K"];
    Stated { finding: 1, words, number, within: 0.5, cell, below: Some("Full") }
}

/// The numbers that all findings except the first state.
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
    // A loss is stated as positive, but its difference is below zero.
    let is = |[loss, low, high]: &[f64; 3], [difference, from, to]: &[f64; 3]| {
        [(loss, difference), (low, to), (high, from)].iter().all(|(stated, own)| (*stated + *own).abs() <= 0.5 + 1e-9)
    };
    for loss in &stated {
        assert!(differences.iter().any(|own| is(loss, own)), "no comparison has {loss:?}");
    }
}

const MODEL: &str = "Qwen2.5-Coder-0.5B-Instruct";

/// A part of an answer that has numbers, and what the result on [`MODEL`] must contain for it.
enum Part {
    /// The length of the run.
    Length(&'static str, &'static str, usize),
    /// The number of tasks in the run, and of examples of each in a cell.
    Examples(&'static str, [&'static str; 3], usize, usize),
    /// A measured number: item, row and column, the number, and half a unit of its last digit.
    Cell(&'static str, [&'static str; 3], f64, f64),
    /// A cell's number and its interval, with one decimal.
    Interval(&'static str, [&'static str; 3]),
    /// The size of a difference and its interval, with one decimal: item, and what is compared.
    Difference(&'static str, [&'static str; 2]),
    /// The verdict on a claim, which is found by its words.
    Verdict(&'static str, [&'static str; 3]),
    /// A comparison that is undecided, found by its first words.
    Open(&'static str, [&'static str; 2]),
    /// Numbers in the names of settings and tables.
    Name(&'static str),
}

use Part::{Cell, Difference, Examples, Interval, Length, Name, Open, Verdict};

/// The papers' answers, each as all its parts that have numbers.
const ANSWERS: [(&str, &[Part]); 5] = [
    (
        "magicpig",
        &[
            Length("at 16K tokens", "magicpig/table-3", 16_384),
            Examples("50 examples of each of six RULER tasks", ["magicpig/table-3", "MagicPIG (9,120)", "16K"], 6, 50),
            Cell("(9,120), scores 40.7", ["magicpig/table-3", "MagicPIG (9,120)", "Avg."], 40.7, 0.05),
            Cell("at 4.0 % of the tokens", ["magicpig/table-3", "MagicPIG (9,120)", "Cost2"], 0.040, 0.0005),
            Difference(
                "7.5 [3.7 to 11.5] points less than dense",
                ["magicpig/table-3", "Avg.: MagicPIG (9,120) − Full"],
            ),
            Difference(
                "4.2 [0.6 to 7.9] less than Quest",
                ["magicpig/table-3", "Avg.: MagicPIG (9,120) − Quest (32,0.06)"],
            ),
            Name("with (32,0.06)"),
            Verdict(
                "less than half of Quest's computation",
                ["magicpig/table-3", "With (9,120) MagicPIG takes no more than half of Quest's computation", "holds"],
            ),
            Cell("1.8 % of the tokens", ["magicpig/table-3", "Oracle sampling (1024)", "Cost2"], 0.018, 0.0005),
            Cell("score 48.0", ["magicpig/table-3", "Oracle sampling (1024)", "Avg."], 48.0, 0.05),
            Cell("dense attention 48.2", ["magicpig/table-3", "Full", "Avg."], 48.2, 0.05),
            Name("(table 3)"),
        ],
    ),
    (
        "hashattention",
        &[
            Length("at 8K tokens", "hashattention/table-1", 8192),
            Examples(
                "100 examples of each of four RULER tasks",
                ["hashattention/table-1", "HashAttention 32", "Average"],
                4,
                100,
            ),
            Cell("32 bits score 39.8", ["hashattention/table-1", "HashAttention 32", "Average"], 39.8, 0.05),
            Cell("(dense attention 56.4)", ["hashattention/table-1", "Full Model", "Average"], 56.4, 0.05),
            Cell("(35.4)", ["hashattention/table-1", "Quest 32 (pg=16,bit=2)", "Average"], 35.4, 0.05),
            Open(
                "to Double Sparsity with as many",
                ["hashattention/table-1", "Average: HashAttention 32 − DS 32 (ch=16,bit=2)"],
            ),
            Cell("(42.1)", ["hashattention/table-1", "DS 32 (ch=16,bit=2)", "Average"], 42.1, 0.05),
            Name("with 64 bits score more"),
            Cell("46.7 and", ["hashattention/table-1", "Quest 64 (pg=16,bit=4)", "Average"], 46.7, 0.05),
            Cell("45.2", ["hashattention/table-1", "DS 64 (ch=16,bit=4)", "Average"], 45.2, 0.05),
            Name("(table 1)"),
            Length("at 16K tokens", "hashattention/figure-3", 16384),
            Examples(
                "100 examples of each of five tasks",
                ["hashattention/figure-3", "HashAttention 16x", "Average"],
                5,
                100,
            ),
            Difference(
                "4.0 [0.9 to 7.2] points below Quest",
                ["hashattention/figure-3", "Average: HashAttention 16x − Quest 16x"],
            ),
            Name("(figure 3)"),
            Examples("20 examples of each task", ["hashattention/table-8", "16x LSH 32", "Average"], 4, 20),
            Cell("32 score 26.8", ["hashattention/table-8", "16x LSH 32", "Average"], 26.8, 0.05),
            Open("a difference that is open", ["hashattention/table-8", "Average: 16x LSH 32 − 16x HashAttention 32"]),
            Name("512 score"),
            Difference(
                "14.4 [4.3 to 24.5] points more",
                ["hashattention/table-8", "Average: 16x LSH 512 − 16x HashAttention 32"],
            ),
            Name("(table 8)"),
        ],
    ),
    (
        "double-sparsity",
        &[
            Length("at 8K tokens", "double-sparsity/table-1", 8192),
            Examples(
                "100 examples of each of six RULER tasks",
                ["double-sparsity/table-1", "Double Sparsity", "Score"],
                6,
                100,
            ),
            Cell("scores 36.7", ["double-sparsity/table-1", "Double Sparsity", "Score"], 36.7, 0.05),
            Difference("19.8 [17.0 to 22.8] points less", ["double-sparsity/table-1", "Score: Double Sparsity − Full"]),
            Cell("scores 56.0", ["double-sparsity/table-1", "Exact 1/16", "Score"], 56.0, 0.05),
            Name("(table 1)"),
            Examples("100 windows of", ["double-sparsity/table-2", MODEL, "1/16"], 1, 100),
            Length("2K tokens", "double-sparsity/table-2", 2048),
            Name("WikiText-2"),
            Cell("from 29.2", ["double-sparsity/table-2", MODEL, "1"], 29.2, 0.05),
            Cell("to 42.6", ["double-sparsity/table-2", MODEL, "1/16"], 42.6, 0.05),
            Cell("to 29.7", ["double-sparsity/table-2", MODEL, "1/16, sinks and window"], 29.7, 0.05),
            Name("(table 2)"),
        ],
    ),
    (
        "topk",
        &[
            Length("at 8K tokens", "topk/table-1", 8192),
            Examples("six RULER tasks with 400 examples of each", ["topk/table-1", "1%", "8192"], 6, 400),
            Name("about 1 % of the tokens"),
            Cell("score 53.5", ["topk/table-1", "1%", "8192"], 53.5, 0.05),
            Verdict(
                "more than 95 % of dense attention's",
                ["topk/table-1", "At 8K 1 % of the context reaches 95 % of dense attention", "holds"],
            ),
            Cell("55.6", ["topk/table-1", "Full", "8192"], 55.6, 0.05),
            Name("(table 1)"),
            Verdict(
                "for a needle 0.1 % are enough",
                ["topk/table-2", "A tenth of a percent is enough for a needle", "holds"],
            ),
            Cell("takes 6.4 % and more", ["topk/table-2", "Word Counting", "k for 95 % (%)"], 6.4, 0.05),
            Examples("200 examples", ["topk/table-2", "Question Answering", "k for 95 % (%)"], 6, 200),
            Open("leave it open", ["topk/table-2", "Question Answering, k for 95 % (%)"]),
            Name("(table 2)"),
        ],
    ),
    (
        "hip",
        &[
            Length("at 16K tokens", "hip/table-2-dense-prefill", 16_384),
            Name("with 2K of them"),
            Difference("4.1 [2.9 to 5.6] points less", ["hip/table-2-dense-prefill", "16k: DS HiP 2k − FlashAttn"]),
            Cell("56.9", ["hip/table-2-dense-prefill", "16k", "FlashAttn"], 56.9, 0.05),
            Examples(
                "250 examples of each of five RULER tasks",
                ["hip/table-2-dense-prefill", "16k", "DS HiP 2k"],
                5,
                250,
            ),
            Difference("4.0 [2.8 to 5.5] less", ["hip/table-2-dense-prefill", "16k: exact 2k − DS HiP 2k"]),
            Name("BigBird with 4K"),
            Cell("scores 20.2", ["hip/table-2-dense-prefill", "16k", "DS BigBird 4k"], 20.2, 0.05),
            Examples("50 examples of each", ["hip/table-2-dense-prefill", "16k", "DS BigBird 4k"], 5, 50),
            Interval("44.9 [42.6 to 47.2]", ["hip/table-2-sparse-prefill", "16k", "SD HiP 2k"]),
            Interval("41.5 [39.1 to 43.8]", ["hip/table-2-sparse-prefill", "16k", "SS HiP 2k"]),
            Interval("47.8 [45.5 to 50.0]", ["hip/table-2-sparse-prefill", "16k", "FlashAttn"]),
            Examples("100 examples of each of six tasks", ["hip/table-2-sparse-prefill", "16k", "SS HiP 2k"], 6, 100),
            Name("(table 2)"),
        ],
    ),
];

/// The result of an item on [`MODEL`].
fn result(item: &str) -> Value {
    let file = format!("results/papers/{item}/result-real-{}.json", MODEL.to_ascii_lowercase());
    serde_json::from_str(&fs::read_to_string(root().join(file)).unwrap()).unwrap()
}

/// A fact that a result states about its run.
fn fact(item: &str, what: &str) -> String {
    let result = result(item);
    let found = result["ran"].as_array().unwrap().iter().find(|fact| fact[0] == what);
    found.unwrap_or_else(|| panic!("{item} says no {what}"))[1].as_str().unwrap().to_owned()
}

/// A cell's measured number on [`MODEL`], the ends of its interval, and its number of examples.
fn cell([item, row, column]: [&str; 3]) -> [Option<f64>; 4] {
    let mut table = csv::Reader::from_path(root().join("results/papers").join(item).join("table.csv")).unwrap();
    let rows = table.deserialize::<HashMap<String, String>>().map(|row| row.unwrap());
    let is = |cell: &HashMap<String, String>| cell["model"] == MODEL && cell["row"] == row && cell["column"] == column;
    let found = rows.into_iter().find(is).unwrap_or_else(|| panic!("{item} has no {row}, {column}"));
    ["measured", "ci_low", "ci_high", "n"].map(|field| found[field].parse().ok())
}

/// The comparisons of a result's claims and experiments that begin with these words.
fn comparisons(item: &str, begin: &str) -> Vec<String> {
    let result = result(item);
    let claims = result["claims"].as_array().unwrap().iter();
    let tried = claims.clone().flat_map(|claim| claim["tried"].as_array().into_iter().flatten());
    let all = claims.chain(tried).flat_map(|judged| judged["why"].as_array().unwrap()).map(|why| why.as_str().unwrap());
    let begins =
        |why: &&str| why.strip_prefix(begin).is_some_and(|rest| [':', ','].iter().any(|c| rest.starts_with(*c)));
    let own: Vec<String> = all.filter(|why| begins(why)).map(str::to_owned).collect();
    assert!(!own.is_empty(), "{item} has no {begin}");
    own
}

/// Whether stated numbers are rounded from others to one decimal.
fn is_rounded(stated: &[f64; 3], own: &[f64; 3]) -> bool {
    stated.iter().zip(own).all(|(stated, own)| (stated - own).abs() <= 0.05 + 1e-9)
}

impl Part {
    /// The words of this part in the answer.
    fn words(&self) -> &'static str {
        match self {
            Length(words, ..) | Examples(words, ..) | Cell(words, ..) | Interval(words, ..) => words,
            Difference(words, ..) | Verdict(words, ..) | Open(words, ..) | Name(words) => words,
        }
    }

    /// Why the results do not contain this part; `None` if they do.
    fn fault(&self) -> Option<String> {
        let (is_so, own) = match *self {
            Name(_) => (true, String::new()),
            Length(_, item, tokens) => {
                let lengths = fact(item, "lengths");
                (lengths == tokens.to_string(), lengths)
            }
            Examples(_, at, tasks, n) => {
                let (own, examples) = (fact(at[0], "tasks").split(", ").count(), cell(at)[3]);
                (own == tasks && examples == Some(n as f64), format!("{examples:?} of {own} tasks"))
            }
            Cell(_, at, number, within) => {
                let measured = cell(at)[0];
                (measured.is_some_and(|own| (own - number).abs() <= within + 1e-9), format!("{measured:?}"))
            }
            Interval(words, at) => {
                let [Some(mean), Some(low), Some(high), _] = cell(at) else { return Some(format!("{at:?}")) };
                let [stated] = with_intervals(words)[..] else { return Some("no interval is stated".to_owned()) };
                (is_rounded(&stated, &[mean, low, high]), format!("{mean} [{low} {high}]"))
            }
            Difference(words, [item, begin]) => {
                let own = comparisons(item, begin);
                let [stated] = with_intervals(words)[..] else { return Some("no interval is stated".to_owned()) };
                // A loss is stated as positive, but its difference is below zero.
                let sizes = own.iter().flat_map(|why| with_intervals(why));
                let mut sizes = sizes.map(|own| if own[0] < 0.0 { [-own[0], -own[2], -own[1]] } else { own });
                (sizes.any(|own| is_rounded(&stated, &own)), own.join("; "))
            }
            Verdict(_, [item, says, verdict]) => {
                let result = result(item);
                let claims = result["claims"].as_array().unwrap();
                let own = claims.iter().find(|claim| claim["says"] == says).map(|claim| claim["measured"].clone());
                (own.as_ref().is_some_and(|own| own == verdict), format!("{own:?}"))
            }
            Open(_, [item, begin]) => {
                let own = comparisons(item, begin);
                (own.iter().any(|why| why.ends_with("? open")), own.join("; "))
            }
        };
        (!is_so).then_some(own)
    }
}

/// The answer on a paper's page.
fn answer(paper: &str) -> String {
    let text = fs::read_to_string(root().join("configs/papers/findings.toml")).unwrap();
    let findings: toml::Table = text.parse().unwrap();
    let own = findings["paper"].as_array().unwrap().iter().find(|one| one["name"].as_str() == Some(paper));
    own.unwrap().get("answer").unwrap_or_else(|| panic!("{paper} has no answer")).as_str().unwrap().to_owned()
}

#[test]
fn what_the_answers_state_is_in_their_results() {
    for (paper, parts) in &ANSWERS {
        let answer = answer(paper);
        for part in *parts {
            let words = part.words();
            assert!(answer.contains(words), "{paper}: \"{words}\" is not in: {answer}");
            if let Some(own) = part.fault() {
                panic!("{paper}: \"{words}\": the result has {own}");
            }
        }
    }
}

#[test]
fn every_number_of_an_answer_is_held_against_a_result() {
    for (paper, parts) in &ANSWERS {
        let answer = answer(paper);
        assert!(answer.contains(MODEL) && answer.contains("examples of each"), "{paper}: {answer}");
        let rest = parts.iter().fold(answer.replace(MODEL, ""), |rest, part| rest.replace(part.words(), ""));
        assert!(!rest.contains(|c: char| c.is_ascii_digit()), "{paper}: a number that no part has is left in: {rest}");
    }
}

#[test]
fn numbers_with_intervals_are_read() {
    assert_eq!(with_intervals("It has 6.5 [5.0 8] and 7 [to 9], 3 [1 to 2]."), [[6.5, 5.0, 8.0], [3.0, 1.0, 2.0]]);
    assert_eq!(with_intervals("A: -19.56 [-23.66 to -15.44], at"), [[-19.56, -23.66, -15.44]]);
}

//! The verdict as users see it: at the end of the terminal's output, in `verdict.json`, in the exit status of `--safe-within`, and in runs
//! that add examples until it is reached.

use std::fs;
use std::path::Path;

use serde_json::Value;
use spattn::eval::records::record::Record;
use spattn::eval::records::store::load_records;
use tempfile::TempDir;

use super::program::{self, Ran};

/// Runs the program on a terminal of 80 columns.
fn spattn(args: &[&str]) -> Ran {
    program::spattn(args).env("COLUMNS", "80").run()
}

/// A run of a method that attends half of the context, and of one that attends almost nothing.
const RUN: [&str; 11] = [
    "eval",
    "-q",
    "-t",
    "ruler/niah_single_2",
    "-l",
    "512",
    "-m",
    "quest:density=0.6",
    "-m",
    "streaming_llm:window=16",
    "--local=16",
];

fn run(dir: &Path, more: &[&str]) -> Ran {
    spattn(&[&RUN[..], &["--out", dir.to_str().unwrap()], more].concat())
}

fn verdict(dir: &Path) -> Value {
    let stored: Value = serde_json::from_str(&fs::read_to_string(dir.join("verdict.json")).unwrap()).unwrap();
    assert_eq!(stored["verdicts"].as_array().unwrap().len(), 1);
    stored["verdicts"][0].clone()
}

fn words(verdict: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    verdict["settings"].as_array().unwrap().iter().map(|s| (text(&s["method"]), text(&s["verdict"]))).collect()
}

#[test]
fn the_verdict_ends_the_output_and_decides_the_status_if_asked() {
    let temp = TempDir::new().unwrap();
    let dir = temp.path().join("run");
    let few = run(&dir, &["-n", "8", "--safe-within", "5"]);
    assert_eq!(few.status, Some(3), "{}", few.stderr);
    assert!(
        few.stderr
            .contains("no method is shown to be safe within 5 points: 1 not safe, 1 with too few examples to tell"),
        "{}",
        few.stderr
    );
    let (_, end) = few.stdout.split_once("\nVerdict: ruler/niah_single_2 at 512 tokens\n").unwrap();
    assert!(end.contains("cannot prove any setting safe.") && end.contains("Proven worse: streaming_llm"), "{end}");
    assert!(end.lines().all(|line| line.chars().count() <= 80), "{end}");
    let found = verdict(&dir);
    assert_eq!(words(&found), [("quest", "too_few"), ("streaming_llm", "not_safe")].map(|(m, w)| (m.into(), w.into())));
    assert!(found["settings"][0]["memory_percent"].as_f64().unwrap() > 1.0, "{found}");
    for name in ["summary.md", "report.html"] {
        assert!(
            fs::read_to_string(dir.join(name)).unwrap().contains("Verdict: ruler/niah_single_2 at 512 tokens"),
            "{name}"
        );
    }
    // The same records, with a wider limit and without `--safe-within`.
    let report = |more: &[&str]| spattn(&[&["report", dir.to_str().unwrap()][..], more].concat());
    let wide = report(&["--safe-within", "60"]);
    assert_eq!((wide.status, wide.stderr.trim()), (Some(0), "safe within 60 points: quest 60 %"));
    assert_eq!(verdict(&dir)["rule"]["limit"], 60.0);
    // The limit that the run was given is kept, and is used if no other is given. Only the flag sets the exit status.
    assert_eq!((report(&[]).status, verdict(&dir)["rule"]["limit"].as_f64()), (Some(0), Some(5.0)));
    assert_eq!(
        report(&["--safe-within", "60", "--confidence", "0.9999"]).status,
        Some(3),
        "eight examples are not so sure"
    );
}

#[test]
fn merged_runs_with_other_limits_are_held_to_the_strictest() {
    let temp = TempDir::new().unwrap();
    let of = |name: &str, more: &[&str]| {
        let dir = temp.path().join(name);
        let ran = run(&dir, &[&["-n", "1"], more].concat());
        assert!(matches!(ran.status, Some(0 | 3)), "{}", ran.stderr);
        dir.to_str().unwrap().to_owned()
    };
    let (five, two) = (of("five", &["--safe-within", "5"]), of("two", &["--seed", "9", "--safe-within", "2"]));
    let out = temp.path().join("merged");
    let report = |more: &[&str]| {
        let ran = spattn(&[&["report", &five, &two, "--out", out.to_str().unwrap()][..], more].concat());
        let stored: Value = serde_json::from_str(&fs::read_to_string(out.join("verdict.json")).unwrap()).unwrap();
        (ran.stderr, stored["verdicts"][0]["rule"]["limit"].as_f64())
    };
    let (said, limit) = report(&[]);
    assert!(said.contains("held to different limits (five to 5 points at 95 %, two to 2 points at 95 %)"), "{said}");
    assert_eq!(limit, Some(2.0));
    let (said, limit) = report(&["--safe-within", "3"]);
    assert!(!said.contains("different limits"), "{said}");
    assert_eq!(limit, Some(3.0));
    // A resumed run without the flag keeps the earlier limit.
    let dir = temp.path().join("five");
    let again = run(&dir, &["-n", "2", "--resume"]);
    assert_eq!((again.status, verdict(&dir)["rule"]["limit"].as_f64()), (Some(0), Some(5.0)), "{}", again.stderr);
    let other = run(&dir, &["-n", "2", "--resume", "--safe-within", "4"]);
    assert_eq!((other.status, verdict(&dir)["rule"]["limit"].as_f64()), (Some(3), Some(4.0)), "{}", other.stderr);
    assert_eq!((spattn(&["report", &five]).status, verdict(&dir)["rule"]["limit"].as_f64()), (Some(0), Some(4.0)));
}

/// The records in their order, without times.
fn records(dir: &Path) -> Vec<Record> {
    let mut records = load_records(dir).unwrap().records;
    records.iter_mut().for_each(Record::leave_out_times);
    records.sort_by(|a, b| a.key.cmp(&b.key));
    records
}

#[test]
fn examples_are_added_until_it_is_told_and_are_those_of_a_run_of_that_size() {
    let temp = TempDir::new().unwrap();
    let (added, whole) = (temp.path().join("added"), temp.path().join("whole"));
    let until = ["--until-certain", "--safe-within", "30"];
    let stopped = run(&added, &[&until[..], &["-n", "2", "--max-samples", "6"]].concat());
    assert_eq!(stopped.status, Some(3), "{}", stopped.stderr);
    let told = run(&added, &[&until[..], &["-n", "2", "--max-samples", "60", "--resume"]].concat());
    assert_eq!(told.status, Some(0), "{}{}", told.stdout, told.stderr);
    let found = verdict(&added);
    assert_eq!(words(&found), [("quest", "safe"), ("streaming_llm", "not_safe")].map(|(m, w)| (m.into(), w.into())));
    let n = found["examples"].as_u64().unwrap();
    assert!((10..60).contains(&n), "{n}");
    assert_eq!(run(&whole, &["-n", &n.to_string()]).status, Some(0));
    assert_eq!(records(&added), records(&whole));
    // A later report uses bounds that hold at every look. Those for a fixed number of examples are narrower.
    assert_eq!(spattn(&["report", added.to_str().unwrap(), "--safe-within", "30"]).status, Some(0));
    let [any, fixed] = [&added, &whole].map(|dir| {
        assert_eq!(spattn(&["report", dir.to_str().unwrap(), "--safe-within", "30"]).status, Some(0));
        verdict(dir)["settings"][0]["loss_high"].as_f64().unwrap()
    });
    assert!(any > fixed, "{any} {fixed}");
}

#[test]
fn a_run_without_an_end_is_refused() {
    let temp = TempDir::new().unwrap();
    let refused = |more: &[&str], what: &str| {
        let ran = run(&temp.path().join("run"), more);
        assert_eq!(ran.status, Some(2), "{more:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(what), "{more:?}: {}", ran.stderr);
    };
    refused(&["--until-certain"], "--until-certain needs a bound");
    refused(&["--max-samples", "20"], "--max-samples is a bound of --until-certain");
    refused(&["--until-certain", "--max-time", "30"], "--max-time: `30` is no time");
    refused(
        &["--until-certain", "--max-samples", "5", "-n", "6"],
        "--max-samples 5 is less than the 6 of the first look",
    );
    refused(&["--until-certain", "--max-samples", "9", "-n", "6", "--shard", "1/2"], "a shard has a part of them");
}

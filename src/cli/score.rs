//! `spattn score`: scores predictions made elsewhere, or those of a run again, by the published rules.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use super::output::{print_json, print_line};
use super::score_rows::{Scored, Scorer, given_rule, is_of_likelihood};
use spattn_base::error::UsageError;
use spattn_base::given;
use spattn_eval::records::store::SAMPLES;
use spattn_stats::mean;
use spattn_tasks::answers;
use spattn_tasks::metrics::Metric;
use spattn_tasks::rows::{RowSource, Rows};

/// Score predictions of other programs, or those of a run again.
///
/// Each line of a file is a JSON object with `prediction` (or `pred`), and the answers under `answers`, `outputs`,
/// `ground_truths` or `references`: one string or a list. Classification also needs `all_classes`. Without --metric and
/// --dataset, the metric is taken from the rows (`metric` and `first_line` in a run's samples.jsonl, or `dataset`) or from the
/// name of the file, as in LongBench's pred/MODEL/hotpotqa.jsonl and RULER's pred/niah_single_1.jsonl.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  spattn score predictions.jsonl --dataset hotpotqa --json
  spattn score results/llama-8k                 (samples.jsonl of a run)
  spattn score LongBench/pred/llama             (all *.jsonl of a folder, one line a data set)
  spattn score LongBench/pred_e/llama           (LongBench-E: one line a data set and range of lengths)")]
pub struct ScoreArgs {
    /// File of predictions, one JSON object a line, or a folder with such files
    ///
    /// Example: predictions.jsonl with {"prediction": "Paris", "answers": ["Paris", "paris"]}
    #[arg(value_name = "FILE.jsonl|DIR")]
    pub file: PathBuf,

    /// Metric that scores each line
    ///
    /// Example: --metric qa_f1 (`spattn list metrics` shows all)
    #[arg(long, value_name = "NAME", conflicts_with = "dataset")]
    pub metric: Option<String>,

    /// Score as for this LongBench data set or RULER task, with its cut to the first line
    ///
    /// Example: --dataset trec, --dataset longbench/hotpotqa, --dataset ruler/qa_1
    #[arg(long, value_name = "NAME")]
    pub dataset: Option<String>,

    /// Give scores by LongBench-E's ranges of `length`; without it, this is done for files in a folder pred_e and for
    /// names that end in _e
    ///
    /// Example: spattn score hotpotqa.jsonl --by-length
    #[arg(long)]
    pub by_length: bool,

    /// Leave out malformed rows instead of stopping; their number and lines are noted
    ///
    /// Example: spattn score predictions.jsonl --metric qa_f1 --skip-bad
    #[arg(long)]
    pub skip_bad: bool,

    /// Print JSON with the score of every row instead of a line for each group of rows
    ///
    /// Example: spattn score predictions.jsonl --metric qa_f1 --json
    #[arg(long)]
    pub json: bool,
}

/// The scores of a file. Other programs rely on its JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScoreReport {
    /// Name of the metric; `mixed` if there are several.
    pub metric: String,
    /// Number of rows.
    pub n: usize,
    /// Mean score, percent.
    pub score: f64,
    /// Score of each row in 0..=1, in the order of the file.
    pub rows: Vec<f64>,
    /// The scores by data set, or by task and method; empty if all rows are in one group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupReport>,
    /// Notes for the user, one line each.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// The scores of a group of rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupReport {
    /// The data set and its range of lengths; or the task, length and method.
    pub name: String,
    /// Name of the metric.
    pub metric: &'static str,
    /// Number of rows.
    pub n: usize,
    /// Mean score, percent.
    pub score: f64,
    /// Number of predictions without any text.
    pub empty: usize,
}

/// Scores a file and prints the result on standard output.
///
/// # Errors
/// As [`score_path`], or if standard output cannot be written.
pub fn score_predictions(args: ScoreArgs) -> Result<()> {
    let report = score_path(&args)?;
    report.notes.iter().for_each(|note| eprintln!("note: {note}"));
    match args.json {
        true => print_json(&serde_json::to_string(&report)?),
        false => print_line(&report.text()),
    }
}

impl ScoreReport {
    fn new(scored: &[Scored], notes: Vec<String>) -> Self {
        let rows: Vec<f64> = scored.iter().map(|s| s.score).collect();
        let mut groups: Vec<(&str, Vec<&Scored>)> = Vec::new();
        for row in scored {
            match groups.iter_mut().find(|(name, _)| *name == row.group) {
                Some((_, members)) => members.push(row),
                None => groups.push((&row.group, vec![row])),
            }
        }
        let groups: Vec<GroupReport> = groups.iter().map(|(name, members)| GroupReport::new(name, members)).collect();
        let metric = match groups.as_slice() {
            [first, rest @ ..] if rest.iter().all(|g| g.metric == first.metric) => first.metric,
            _ => "mixed",
        };
        Self {
            metric: metric.to_owned(),
            n: rows.len(),
            score: 100.0 * mean(&rows),
            rows,
            groups: if matches!(groups.as_slice(), [only] if only.name.is_empty()) { Vec::new() } else { groups },
            notes,
        }
    }

    fn text(&self) -> String {
        if self.groups.is_empty() {
            return format!("{}: {:.2} % over {} rows", self.metric, self.score, self.n);
        }
        let width = self.groups.iter().map(|g| g.name.chars().count()).max().unwrap_or(0);
        let line = |g: &GroupReport| {
            let empty = if g.empty > 0 { format!("  ({} empty)", g.empty) } else { String::new() };
            format!("{:<width$}  {:<17} {:>6.2} % over {} rows{empty}", g.name, g.metric, g.score, g.n)
        };
        self.groups.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

impl GroupReport {
    fn new(name: &str, members: &[&Scored]) -> Self {
        let scores: Vec<f64> = members.iter().map(|s| s.score).collect();
        let same = members.iter().all(|s| s.metric == members[0].metric);
        Self {
            name: name.to_owned(),
            metric: if same { members[0].metric.name() } else { "mixed" },
            n: scores.len(),
            score: 100.0 * mean(&scores),
            empty: members.iter().filter(|s| s.is_empty).count(),
        }
    }
}

/// Scores every row of a file, or of all files in a folder.
///
/// Predictions are first cleaned as in the published evaluation ([`Metric::postprocess`], `Dataset::postprocess`). Empty lines are
/// skipped.
///
/// # Errors
/// [`UsageError`] for an unknown name and, as `path:line`, for a row that cannot be scored; also if the file cannot be read or has no rows.
pub fn score_path(args: &ScoreArgs) -> Result<ScoreReport> {
    let given = given_rule(args.metric.as_deref(), args.dataset.as_deref())?;
    let by_length = args.by_length || args.dataset.as_ref().is_some_and(|name| name.ends_with("_e"));
    let (mut scored, mut notes, mut of_likelihood) = (Vec::new(), Vec::new(), 0);
    for file in files(&args.file)? {
        let scorer = Scorer::new(given, &file, by_length);
        let before = scored.len();
        let rows = Rows::open(RowSource::File(file), args.skip_bad, |row| {
            match is_of_likelihood(row) {
                true => of_likelihood += 1,
                false => scored.push(scorer.score_row(row)?),
            }
            Ok(true)
        })?;
        notes.extend(rows.note());
        notes.extend(uncompared(&rows.source().label(), &scored[before..]));
    }
    if of_likelihood > 0 {
        let what =
            format!("{of_likelihood} records of perplexity or multiple choice have no prediction to score again");
        if scored.is_empty() {
            return Err(UsageError::new(what).hint("their scores are in the run's summary").into());
        }
        notes.push(what);
    }
    let changed = scored.iter().filter(|s| s.stored.is_some_and(|stored| (stored - s.score).abs() > 1e-9)).count();
    if changed > 0 {
        notes.push(format!("{changed} of {} scores differ from those in the file", scored.len()));
    }
    Ok(ScoreReport::new(&scored, notes))
}

/// Notes about rows of published sets whose answers hold nothing that the metric compares, one note for each metric.
fn uncompared(label: &str, scored: &[Scored]) -> Vec<String> {
    let mut counts: BTreeMap<&str, (usize, Metric)> = BTreeMap::new();
    for row in scored.iter().filter(|row| !row.compares) {
        counts.entry(row.metric.name()).or_insert((0, row.metric)).0 += 1;
    }
    counts.into_values().filter_map(|(count, metric)| answers::note(label, count, metric)).collect()
}

/// The files to score: the file itself; for a folder, its `samples.jsonl`, or if it has none, every `*.jsonl` in order of name.
fn files(path: &Path) -> Result<Vec<PathBuf>, UsageError> {
    let unreadable = |e: std::io::Error| {
        UsageError::new(format!("cannot read {}: {e}", path.display()))
            .hint("give a file with one JSON object a line: prediction, and answers")
    };
    if !path.is_dir() {
        given::open(path).map_err(unreadable)?;
        return Ok(vec![path.to_owned()]);
    }
    let samples = path.join(SAMPLES);
    if samples.is_file() {
        return Ok(vec![samples]);
    }
    let entries = std::fs::read_dir(path).map_err(unreadable)?;
    let mut files: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    files.retain(|file| file.extension().is_some_and(|e| e == "jsonl"));
    files.sort();
    match files.is_empty() {
        true => Err(UsageError::new(format!("{} has no *.jsonl to score", path.display()))),
        false => Ok(files),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};
    use proptest::prelude::*;
    use std::fs;

    #[derive(Parser)]
    struct Root {
        #[command(flatten)]
        args: ScoreArgs,
    }

    fn score(text: &str, metric: Option<&str>, dataset: Option<&str>) -> Result<ScoreReport, UsageError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.jsonl");
        fs::write(&path, text).unwrap();
        score_at(&path, metric, dataset)
    }

    fn score_at(path: &Path, metric: Option<&str>, dataset: Option<&str>) -> Result<ScoreReport, UsageError> {
        let owned = |name: Option<&str>| name.map(str::to_owned);
        score_path(&ScoreArgs {
            file: path.to_owned(),
            metric: owned(metric),
            dataset: owned(dataset),
            by_length: false,
            skip_bad: false,
            json: false,
        })
        .map_err(|e| e.downcast().unwrap())
    }

    /// A folder with these files.
    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    fn group(name: &str, metric: &'static str, n: usize, score: f64, empty: usize) -> GroupReport {
        GroupReport { name: name.to_owned(), metric, n, score, empty }
    }

    #[test]
    fn a_folder_of_published_predictions_is_scored_by_data_set() {
        let hotpotqa =
            "{\"pred\": \"\\nthe Nile\", \"answers\": [\"x\", \"Nile\"], \"all_classes\": null, \"length\": 5000}\n";
        let trec = "{\"pred\": \"\\nLake\\nRiver\", \"answers\": [\"Lake\"], \"all_classes\": [\"Lake\", \"River\"], \"length\": 9}\n";
        let vt = "{\"index\": 0, \"pred\": \" \", \"input\": \"i\", \"outputs\": [\"A\", \"B\"], \"others\": {}, \"truncation\": -1, \"length\": -1}\n";
        let dir = folder(&[
            ("a/hotpotqa.jsonl", hotpotqa),
            ("a/trec.jsonl", trec),
            ("a/vt.jsonl", vt),
            ("a/result.json", "{}"),
        ]);
        let report = score_at(&dir.path().join("a"), None, None).unwrap();
        assert_eq!(
            report.groups,
            [
                group("longbench/hotpotqa", "qa_f1", 1, 100.0, 0),
                group("longbench/trec", "classification", 1, 100.0, 0),
                group("ruler/vt", "string_match_all", 1, 0.0, 1)
            ]
        );
        assert_eq!((report.metric.as_str(), report.n), ("mixed", 3));
        assert!(report.text().contains("ruler/vt") && report.text().contains("(1 empty)"));
    }

    #[test]
    fn longbench_e_is_scored_by_range_of_length() {
        let row = |length: usize, pred: &str| {
            format!("{{\"pred\": \"{pred}\", \"answers\": [\"a1\"], \"length\": {length}}}\n")
        };
        let rows = [row(10, "a1"), row(20, "no"), row(4000, "a1"), row(9000, "no")].concat();
        let dir = folder(&[("pred_e/m/hotpotqa.jsonl", &rows), ("hotpotqa_e.jsonl", &rows), ("hotpotqa.jsonl", &rows)]);
        for name in ["pred_e/m/hotpotqa.jsonl", "hotpotqa_e.jsonl"] {
            let groups = score_at(&dir.path().join(name), None, None).unwrap().groups;
            assert_eq!(
                groups,
                [
                    group("longbench/hotpotqa 0-4k", "qa_f1", 2, 50.0, 0),
                    group("longbench/hotpotqa 4-8k", "qa_f1", 1, 100.0, 0),
                    group("longbench/hotpotqa 8k+", "qa_f1", 1, 0.0, 0)
                ]
            );
        }
        assert_eq!(score_at(&dir.path().join("hotpotqa.jsonl"), None, None).unwrap().groups.len(), 1);
        let no_length = folder(&[("lcc_e.jsonl", "{\"pred\": \"x\", \"answers\": [\"x\"]}")]);
        assert!(score_at(&no_length.path().join("lcc_e.jsonl"), None, None).unwrap_err().what.contains("`length`"));
    }

    #[test]
    fn records_of_a_run_are_scored_as_they_were() {
        let record = |method: &str, metric: &str, first_line: bool, score: f64| {
            serde_json::json!({
                "key": "k", "task": "longbench/samsum", "length": 2048, "method": method, "params": "k=8", "metric": metric,
                "first_line": first_line, "prediction": "a b\nc d", "references": ["a b"], "score": score
            })
            .to_string()
        };
        let rows = [record("full", "qa_f1", true, 1.0), record("topk", "qa_f1", false, 0.1)].join("\n");
        let dir = folder(&[("samples.jsonl", &rows), ("other.jsonl", "")]);
        let report = score_at(dir.path(), None, None).unwrap();
        assert_eq!(report.groups[0], group("longbench/samsum at 2048, full:k=8", "qa_f1", 1, 100.0, 0));
        assert!(report.groups[1].score < 100.0);
        assert_eq!(report.notes, ["1 of 2 scores differ from those in the file"]);
    }

    #[test]
    fn rows_that_do_not_say_how_to_score_them_need_to_be_told() {
        let error = score("{\"pred\": \"x\", \"answers\": [\"x\"]}", None, None).unwrap_err();
        assert!(error.what.contains("the metric is unknown") && error.hint.unwrap().contains("--dataset"));
        let by_row = score("{\"pred\": \"x\", \"answers\": [\"x\"], \"dataset\": \"qasper_e\"}", None, None).unwrap();
        assert_eq!(by_row.groups, [group("longbench/qasper", "qa_f1", 1, 100.0, 0)]);
    }

    proptest! {
        /// For any fields, the result is a score in 0..=1 or an error, never a panic.
        #[test]
        fn any_row_is_scored_or_refused(
            prediction in "(.|\n|[0-9]|Paragraph |段落|\\.){0,30}",
            answers in proptest::collection::vec("(.|[0-9]|Paragraph [0-9]|中文|`|#){0,12}", 0..3),
            classes in proptest::collection::vec(".{0,3}", 0..4),
            metric in proptest::sample::select(Metric::all().collect::<Vec<_>>()),
        ) {
            let row = serde_json::json!({"pred": prediction, "answers": answers, "all_classes": classes});
            if let Ok(report) = score(&row.to_string(), Some(metric.name()), None) {
                prop_assert!((0.0..=1.0).contains(&report.rows[0]), "{}: {:?}", metric, report.rows);
            }
        }

        #[test]
        fn any_bytes_are_scored_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("hotpotqa.jsonl");
            fs::write(&path, bytes).unwrap();
            let _ = score_at(&path, None, None);
        }
    }

    #[test]
    fn rows_in_any_of_the_known_fields_are_scored() {
        let rows = concat!(
            "\u{feff}{\"prediction\": \"the Nile\", \"answers\": [\"nile\"]}\r\n",
            "{\"pred\": \"Nile\", \"outputs\": \"Amazon\"}\n\n",
            "{\"prediction\": \"7\", \"answers\": null, \"references\": [7, \"x\"]}"
        );
        let report = score(rows, Some("qa_f1"), None).unwrap();
        assert_eq!((report.n, report.rows), (3, vec![1.0, 0.0, 1.0]));
        assert!((report.score - 200.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn rows_that_can_be_read_in_two_ways_or_name_no_class_are_refused() {
        for (row, metric, dataset, what) in [
            (
                r#"{"pred": "x", "answers": ["a"], "outputs": ["b"]}"#,
                Some("qa_f1"),
                None,
                "`answers` and `outputs` mean the same",
            ),
            (
                r#"{"pred": "x", "prediction": "y", "answers": ["a"]}"#,
                Some("qa_f1"),
                None,
                "`prediction` and `pred` mean the same",
            ),
            (r#"{"pred": "x", "answers": "['a', 'b']"}"#, Some("qa_f1"), None, "a list written as text"),
            (
                r#"{"pred": "x", "answers": [12345678901234567890123]}"#,
                Some("qa_f1"),
                None,
                "is not a string or a list",
            ),
            (r#"{"pred": "a", "answers": ["a"], "all_classes": []}"#, None, Some("trec"), "`all_classes` is empty"),
            (
                r#"{"pred": "a", "answers": ["a"], "all_classes": ["a", " "]}"#,
                None,
                Some("lsht"),
                "is empty or white space",
            ),
            (
                r#"{"pred": "a", "answers": ["a"], "all_classes": "a"}"#,
                None,
                Some("trec"),
                "`all_classes` is not a list",
            ),
            (r#"{"pred": "a", "answers": ["a"], "all_classes": []}"#, Some("classification"), None, "is empty"),
            (
                r#"{"pred": "a", "answers": ["a"], "all_classes": ["b"]}"#,
                Some("classification"),
                None,
                "no answer is one of",
            ),
        ] {
            let error = score(row, metric, dataset).map(|report| report.score).unwrap_err();
            assert!(error.what.contains("rows.jsonl:1: ") && error.what.contains(what), "{error}");
        }
        let same = r#"{"pred": "x", "prediction": "x", "answers": ["x"], "outputs": "x"}"#;
        assert_eq!(score(same, Some("qa_f1"), None).unwrap().rows, [1.0]);
        let none = r#"{"pred": "a", "answers": ["a"], "all_classes": ["b"]}"#;
        let report = score(none, None, Some("trec")).unwrap();
        assert!(report.rows == [0.0] && report.notes[0].contains("1 row has answers that"), "{:?}", report.notes);
    }

    #[test]
    fn the_json_has_the_agreed_keys() {
        let report = score("{\"prediction\": \"x\", \"answers\": \"x\"}", Some("exact_match"), None).unwrap();
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(json, r#"{"metric":"exact_match","n":1,"score":100.0,"rows":[1.0]}"#);
    }

    #[test]
    fn a_data_set_brings_its_own_cleaning() {
        let row = r#"{"prediction": "\nLake\nRiver", "answers": ["Lake"], "all_classes": ["Lake", "River"]}"#;
        assert_eq!(score(row, None, Some("trec")).unwrap().rows, [1.0]);
        assert_eq!(score(row, Some("classification"), None).unwrap().rows, [0.5]);
    }

    #[test]
    fn answers_of_nothing_are_no_answers() {
        let row = |answers: &str| format!("{{\"prediction\": \"\", \"answers\": {answers}}}\n");
        for answers in ["[\"\"]", "\"  \"", "[\"\\n\"]", "[\"\", \"x\"]", "[\"x\", \"\\u3000\"]"] {
            for (metric, dataset) in
                [(Some("string_match_all"), None), (Some("exact_match"), None), (None, Some("qa_1"))]
            {
                let error = score(&(row("\"x\"") + &row(answers)), metric, dataset).unwrap_err();
                assert!(error.what.contains("rows.jsonl:2: an answer is empty or white space"), "{answers}: {error}");
                assert!(error.hint.unwrap().contains("--skip-bad"), "{answers}");
            }
        }
        let error = score(&row("\"the\""), Some("qa_f1"), None).unwrap_err();
        assert!(error.what.contains(":1: `qa_f1` ignores all of the answer \"the\""), "{error}");
        // LongBench's program accepts such a row, and scores it 0.
        let published = score(&(row("\"the\"") + &row("\"x\"")), None, Some("hotpotqa")).unwrap();
        assert_eq!(published.rows, [0.0, 0.0]);
        assert!(published.notes[0].contains("1 row has answers that `qa_f1` ignores"), "{:?}", published.notes);
    }

    #[test]
    fn malformed_rows_are_named_by_their_line() {
        let good = "{\"prediction\": \"x\", \"answers\": \"x\"}\n";
        for (bad, problem) in [
            ("{\"prediction\": \"x\"}", "no field `answers` or"),
            ("{\"answers\": \"x\"}", "no field `prediction` or `pred`"),
            ("{\"prediction\": 3, \"answers\": \"x\"}", "`prediction` is not a string"),
            ("{\"prediction\": \"x\", \"answers\": []}", "`answers` is empty"),
            ("{\"prediction\": \"x\", \"answers\": [{}]}", "`answers` is not a string or"),
            ("[1]", "not a JSON object"),
            ("{\"prediction\": \"\\ud800\", \"answers\": \"x\"}", "not JSON"),
        ] {
            let error = score(&format!("{good}{bad}\n{good}"), Some("qa_f1"), None).unwrap_err();
            assert!(error.what.contains("rows.jsonl:2: ") && error.what.contains(problem), "{error}");
            let explained = error.hint.as_deref().is_some_and(|hint| hint.contains("`spattn score --help`"));
            assert_eq!(explained, problem.starts_with("no field"), "{error}");
        }
        let error = score(good, Some("classification"), None).unwrap_err();
        assert!(error.what.contains(":1: no field `all_classes`") && error.hint.is_some(), "{error}");
    }

    #[test]
    fn names_and_empty_files_are_checked() {
        assert!(score("", Some("qa_f1"), None).unwrap_err().what.contains("no row"));
        assert!(score("", Some("qaf1"), None).unwrap_err().hint.unwrap().contains("qa_f1"));
        assert!(score("", None, Some("vcsun")).unwrap_err().hint.unwrap().contains("vcsum"));
        assert!(score("", Some("qa_f1"), Some("vcsum")).is_err());
    }

    #[test]
    fn arguments_exclude_each_other_and_help_says_where_metrics_are_listed() {
        Root::command().debug_assert();
        let parse = |args: &[&str]| Root::try_parse_from([&["score", "x.jsonl"], args].concat());
        assert!(parse(&[]).is_ok() && parse(&["--metric", "count", "--dataset", "vt"]).is_err());
        assert_eq!(parse(&["--dataset", "vt"]).unwrap_or_else(|e| panic!("{e}")).args.dataset.as_deref(), Some("vt"));
        let help = Root::command().render_long_help().to_string();
        assert!(help.contains("spattn list metrics"), "{help}");
    }
}

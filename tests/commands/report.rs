//! Scorers, statistics, the run folder and reports, through the library's public interface.

use serde_json::Value;
use spattn::tasks::metrics::Metric;
use spattn::tasks::metrics::datasets::Dataset;

/// The strings in a JSON list.
fn strings(value: &Value) -> Vec<String> {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter().map(|v| v.as_str().unwrap().to_owned()).collect()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-12
}

#[test]
fn metrics_agree_with_our_golden_values() {
    let mut rows: Vec<Value> = serde_json::from_str(include_str!("../golden/metrics.json")).unwrap();
    let long_sets: Value = serde_json::from_str(include_str!("../golden/long_sets.json")).unwrap();
    rows.extend(long_sets["scores"].as_array().unwrap().iter().cloned());
    for row in &rows {
        let metric = Metric::parse(row["metric"].as_str().unwrap()).unwrap();
        let prediction = metric.postprocess(row["prediction"].as_str().unwrap());
        let score = metric.score(&prediction, &strings(&row["references"]), &strings(&row["all_classes"]));
        assert!(close(score, row["score"].as_f64().unwrap()), "{score} for {row}");
    }
    // AIME is also compared with the published program, in the metric's own tests.
    let aime: Vec<Value> = serde_json::from_str(include_str!("../golden/aime.json")).unwrap();
    for row in &aime {
        let text = |key: &str| row[key].as_str().unwrap().to_owned();
        assert_eq!(
            Metric::Aime.score(&text("prediction"), &[text("answer")], &[]),
            row["score"].as_f64().unwrap(),
            "{row}"
        );
    }
    let covered = |metric: Metric| metric == Metric::Aime || rows.iter().any(|row| row["metric"] == metric.name());
    assert!(Metric::all().all(covered));
}

/// The larger set of golden values from the official code, if it is available.
fn shared_golden() -> Option<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/data/metric_golden.json");
    match std::fs::read(path) {
        Ok(bytes) => Some(serde_json::from_slice(&bytes).unwrap()),
        Err(e) => {
            eprintln!("SKIPPED: the official golden values are not here ({path}: {e})");
            None
        }
    }
}

#[test]
fn metrics_agree_with_the_official_golden_values() {
    let Some(golden) = shared_golden() else { return };
    for (section, metric) in [
        ("qa_f1_score", Metric::QaF1),
        ("rouge_score", Metric::RougeL),
        ("classification_score", Metric::Classification),
        ("retrieval_score", Metric::Retrieval),
        ("count_score", Metric::Count),
        ("code_sim_score", Metric::CodeSim),
    ] {
        for row in golden["metrics"][section].as_array().unwrap() {
            let classes = strings(&row["all_classes"]);
            let prediction = row["prediction"].as_str().unwrap();
            let score = |references: &[String]| metric.score(prediction, references, &classes);
            let references = strings(&row["ground_truths"]);
            assert!(close(score(&references), row["score"].as_f64().unwrap()), "{row}");
            for (reference, expected) in references.iter().zip(row["scores"].as_array().unwrap()) {
                assert!(close(score(std::slice::from_ref(reference)), expected.as_f64().unwrap()), "{row}");
            }
        }
    }
}

/// Whether a mean equals the percentage with two decimals that the official tools print.
fn same_percent(scores: &[f64], printed: &Value) -> bool {
    let mean = 100.0 * scores.iter().sum::<f64>() / scores.len() as f64;
    (mean - printed.as_f64().unwrap()).abs() <= 0.005 + 1e-9
}

#[test]
fn string_matching_agrees_with_the_official_golden_values() {
    let Some(golden) = shared_golden() else { return };
    for row in golden["metrics"]["ruler_string_match"].as_array().unwrap() {
        let predictions = strings(&row["predictions"]);
        let references: Vec<_> = row["references"].as_array().unwrap().iter().map(strings).collect();
        for metric in [Metric::StringMatchAll, Metric::StringMatchPart] {
            let cleaned: Vec<_> = predictions.iter().map(|p| metric.postprocess(p)).collect();
            assert_eq!(cleaned, strings(&row["postprocessed"]));
            let score = |predictions: &[String]| -> Vec<f64> {
                predictions.iter().zip(&references).map(|(p, r)| metric.score(p, r, &[])).collect()
            };
            assert!(same_percent(&score(&cleaned), &row[metric.name()]), "{metric}: {row}");
            assert!(same_percent(&score(&predictions), &row[format!("{metric}_raw")]), "{metric} raw: {row}");
        }
    }
}

#[test]
fn whole_data_sets_agree_with_the_official_golden_values() {
    let Some(golden) = shared_golden() else { return };
    for row in golden["metrics"]["longbench_dataset_score"].as_array().unwrap() {
        let dataset = Dataset::parse(row["dataset"].as_str().unwrap()).unwrap();
        let classes = strings(&row["all_classes"]);
        let answers = row["answers"].as_array().unwrap().iter().map(strings);
        let scores: Vec<f64> = strings(&row["predictions"])
            .iter()
            .zip(answers)
            .map(|(p, answers)| dataset.metric.score(&dataset.postprocess(p), &answers, &classes))
            .collect();
        assert!(same_percent(&scores, &row["score"]), "{scores:?}: {row}");
    }
}

// ---- records ----

use proptest::prelude::*;
use spattn::eval::records::fidelity::Spread;
use spattn::eval::records::record::Record;
use spattn::eval::records::store;
use spattn::eval::summary::summarize;
use spattn::report::Report;
use spattn::stats::{self, Sample};
use spattn::tasks::likelihood::Measure;
use std::collections::BTreeMap;

fn record(task: &str, method: &str, params: &str, sample: usize, score: f64) -> Record {
    let dense = method == "full";
    Record {
        key: format!("{task}/{method}/{params}/{sample}"),
        model: "builtin".into(),
        task: task.into(),
        length: 4096,
        sample,
        seed: 7,
        example_sha256: None,
        revision: 1,
        context: None,
        method: method.into(),
        params: params.into(),
        settings: Default::default(),
        conditions: None,
        index_reused_s: 0.0,
        protocol: "question".into(),
        source: "grammar".into(),
        question: "Which?".into(),
        prediction: "…\n\u{1f}".into(),
        thought: None,
        repeats: Box::default(),
        references: vec!["é".to_owned()].into(),
        all_classes: Vec::new().into(),
        score,
        other_scores: Default::default(),
        depth: None,
        metric: Some(Metric::StringMatchAll),
        first_line: false,
        cut_tokens: None,
        prompt_tokens: 4000 + sample % 50,
        prefix_tokens: 3900,
        new_tokens: 20,
        max_new_tokens: 30,
        stopped: true,
        bos_tokens: Some(1),
        density: if dense { 1.0 } else { 0.1 / (1.0 + sample as f64) },
        density_sparse_layers: 0.05,
        comparable: None,
        cost1: Some(0.1 / 3.0),
        cost2: 0.1,
        aux_bits: Some(32.0),
        kv_bits: Some(1024),
        kv_bytes_per_token: Some(4096.0),
        shared_bytes_per_token: None,
        select_bytes_per_token: None,
        missed_share: None,
        fetched_per_token: None,
        free_share: None,
        kv_bytes_held: Some(1 << 20),
        kv_tokens: None,
        prefill_s: 0.3,
        prefill_reused_s: 0.0,
        reused_tokens: 0,
        index_s: 0.01,
        decode_s: 0.7 / (3.0 + sample as f64),
        select_s: None,
        attend_s: None,
        weights_s: None,
        solo: None,
        steps: 33,
        solved: None,
        density_by_layer: [1.0, 0.05].into(),
        density_spread: Spread::of([0.01, 0.05, 0.09]).map(Box::new),
        fidelity: None,
        measure: Measure::Score,
        likelihood: None,
        choice: None,
    }
}

/// Records of four tasks, `full` and five settings, with twelve samples each.
fn sweep() -> Vec<Record> {
    let settings =
        [("full", ""), ("topk", "k=16"), ("topk", "k=64"), ("quest", "k=64"), ("random", "k=64"), ("topp", "")];
    let mut records = Vec::new();
    for task in ["ruler/vt", "ruler/cwe", "ruler/niah_multikey_2", "passkey"] {
        for (m, (method, params)) in settings.into_iter().enumerate() {
            records.extend((0..12).map(|i| record(task, method, params, i, ((i * 7 + m * 3) % 10) as f64 / 9.0)));
        }
    }
    records
}

#[test]
fn a_report_made_twice_is_the_same_to_the_byte() {
    let records = sweep();
    let made = |records: &[Record]| -> BTreeMap<String, Vec<u8>> {
        let dir = tempfile::tempdir().unwrap();
        let files = Report::new(records, &[]).write_all(dir.path()).unwrap().files;
        let name = |path: &std::path::Path| path.strip_prefix(dir.path()).unwrap().display().to_string();
        files.iter().map(|path| (name(path), std::fs::read(path).unwrap())).collect()
    };
    let first = made(&records);
    let figures = ["score_vs_bytes", "score_vs_cost", "score_vs_density", "time", "verdict"];
    let drawn = figures.iter().flat_map(|f| ["png", "svg"].map(|ending| format!("plots/{f}.{ending}")));
    let tables = ["report.html", "summary.csv", "summary.md", "verdict.json"].map(str::to_owned);
    assert_eq!(first.keys().cloned().collect::<Vec<_>>(), drawn.chain(tables).collect::<Vec<_>>());
    assert_eq!(first, made(&records.iter().rev().cloned().collect::<Vec<_>>()));
}

/// The files of a report on some records, by name.
fn written(records: &[Record]) -> BTreeMap<String, String> {
    let dir = tempfile::tempdir().unwrap();
    let files = Report::new(records, &[]).write_all(dir.path()).unwrap().files;
    let name = |path: &std::path::Path| path.strip_prefix(dir.path()).unwrap().display().to_string();
    let texts = files.iter().filter(|path| path.extension() != Some("png".as_ref()));
    texts.map(|path| (name(path), std::fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn a_large_sweep_shows_a_handful_and_links_the_rest() {
    let mut records = Vec::new();
    for length in [1024, 2048, 4096, 8192] {
        for k in 0..60 {
            let (method, params) = if k == 0 { ("full", String::new()) } else { ("quest", format!("k={k}")) };
            let made = record("ruler/vt", method, &params, 0, f64::from((k * 7 + length) % 10) / 9.0);
            let (key, length) = (format!("{}/{length}", made.key), length as usize);
            let density = if k == 0 { 1.0 } else { f64::from(k) / 64.0 };
            records.push(Record { key, length, density, ..made });
        }
    }
    let files = written(&records);
    let figures: Vec<&String> = files.keys().filter(|name| name.ends_with(".svg")).collect();
    // Score against three costs at four lengths, score against length, and 240 bars of time on several
    // pages.
    assert!(figures.len() > 3 * 4 + 1 + 4, "{figures:?}");
    for name in &figures {
        let height: u32 = files[*name].split("height=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
        assert!(height <= 1200, "{name} is {height} high");
    }
    let (page, summary) = (&files["report.html"], &files["summary.md"]);
    let images: Vec<&str> = summary.lines().filter(|line| line.starts_with("![")).collect();
    assert!((2..=8).contains(&images.len()), "{images:?}");
    for first in ["plots/score_vs_density_1024.svg", "plots/score_vs_length.svg", "plots/time.svg"] {
        assert!(images.iter().any(|line| line.ends_with(&format!("({first})"))), "{first} of {images:?}");
    }
    let (shown, behind) = page.split_once("<details id=\"plots-more\">").unwrap();
    assert_eq!(shown.matches("<figure id=").count(), images.len());
    assert_eq!(behind.matches("<figure id=").count(), figures.len() - images.len());
    for name in figures {
        assert!(
            summary.contains(&format!("({name})")) && page.contains(&format!("href=\"{name}\"")),
            "{name} is linked"
        );
    }
    assert!(summary.contains("](plots/time-2.svg)") && files["plots/time-2.svg"].contains("(2 of "));
}

#[test]
fn figures_of_one_number_are_left_out_and_told_of() {
    let files = written(&[record("ruler/vt", "full", "", 0, 1.0), record("ruler/vt", "quest", "k=8", 0, 1.0)]);
    assert_eq!(files.keys().filter(|name| name.ends_with(".svg")).collect::<Vec<_>>(), ["plots/time.svg"]);
    let said = "Plots with one value only are left out: score_vs_density.svg (100), score_vs_cost.svg (100)";
    assert!(files["summary.md"].contains(said) && files["report.html"].contains(said), "{}", files["summary.md"]);
}

#[test]
fn a_method_has_one_colour_in_all_figures() {
    let mut records = Vec::new();
    // `quest` comes first in one figure, and after two others in the second.
    for (length, methods) in [(1024, &["quest", "loki"][..]), (4096, &["snapkv", "h2o", "quest"])] {
        for (i, method) in methods.iter().enumerate() {
            let made = record("ruler/vt", method, "", 0, i as f64 / 4.0);
            records.push(Record { key: format!("{}/{length}", made.key), length, ..made });
        }
    }
    let files = written(&records);
    let colour = |file: &str| {
        let legend = files[file].rsplit_once("\nquest\n").unwrap().0;
        legend.rsplit_once("fill=\"#").map(|(before, _)| before.rsplit("fill=\"#").next().unwrap()[..6].to_owned())
    };
    let [one, other] = ["plots/score_vs_density_1024.svg", "plots/score_vs_density_4096.svg"].map(colour);
    assert!(one.is_some() && one == other, "{one:?} {other:?}");
    assert!(one != Some("FFFFFF".into()) && one != Some("282828".into()));
}

#[test]
fn records_come_back_from_the_folder_and_give_the_same_summary() {
    let dir = tempfile::tempdir().unwrap();
    let manifest = serde_json::json!({"identity": {"seed": 7}});
    let records = sweep();
    let mut store = store::Store::open(dir.path(), store::OpenMode::Fresh, &manifest).unwrap();
    for record in &records {
        assert!(store.append(record).unwrap());
    }
    drop(store);
    let loaded = store::load_records(dir.path()).unwrap();
    assert!(loaded.notices.is_empty());
    let csv = |records| spattn::report::csv::render(&summarize::summarize(records, &[])).unwrap();
    assert_eq!(csv(&loaded.records), csv(&records));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_interval_is_around_its_mean_and_never_a_point(
        scores in prop::collection::vec(0.0..=1.0f64, 2..60),
        whole: bool,
        of_a_context in 1..4usize,
    ) {
        let score = |s: &f64| if whole { s.round() } else { *s };
        let of = |values: Vec<f64>| Sample::new(values.into_iter().enumerate().map(|(i, v)| (i / of_a_context, v)));
        let sample = of(scores.iter().map(score).collect());
        let found = stats::score(&sample).unwrap();
        prop_assert_eq!(found.ends.is_some(), sample.contexts() > 1);
        let differences = of(scores.iter().rev().zip(&scores).map(|(a, b)| score(a) - score(b)).collect());
        let found_difference = stats::difference(&differences).unwrap();
        for (estimate, least) in [(found, 0.0), (found_difference, -1.0)] {
            let Some((low, high)) = estimate.ends else { continue };
            prop_assert!(least <= low && low <= estimate.mean && estimate.mean <= high && high <= 1.0, "{:?}", estimate);
            prop_assert!(high - low > 1e-6, "{:?}", estimate);
        }
    }

    #[test]
    fn metrics_take_any_text_and_stay_in_range(
        prediction in "\\PC{0,40}|[\\x00-\\x20a-c.0-9#/`\n]{0,60}",
        references in prop::collection::vec("\\PC{0,20}|[\\x00-\\x20a-c.0-9]{0,30}|Paragraph [0-9]{1,2}", 0..4),
        classes in prop::collection::vec("[a-c]{0,3}", 0..5),
    ) {
        for metric in Metric::all() {
            let cleaned = metric.postprocess(&prediction);
            let score = metric.score(&cleaned, &references, &classes);
            prop_assert!((0.0..=1.0).contains(&score), "{metric}: {score}");
        }
    }

    #[test]
    fn the_summary_does_not_depend_on_the_order_of_records(shuffled in Just(sweep()).prop_shuffle()) {
        prop_assert_eq!(summarize::summarize(&shuffled, &[]), summarize::summarize(&sweep(), &[]));
        prop_assert_eq!(spattn::eval::summary::self_checks::check(&shuffled, &[]), spattn::eval::summary::self_checks::check(&sweep(), &[]));
    }
}

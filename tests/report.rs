//! Scorers, statistics, the run folder and what is drawn from it, through the public interface.

use serde_json::Value;
use spattn::tasks::metrics::Metric;
use spattn::tasks::metrics::datasets::Dataset;

/// Strings of a JSON list.
fn strings(value: &Value) -> Vec<String> {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter().map(|v| v.as_str().unwrap().to_owned()).collect()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-12
}

#[test]
fn metrics_agree_with_our_golden_values() {
    let rows: Vec<Value> = serde_json::from_str(include_str!("golden/metrics.json")).unwrap();
    for row in &rows {
        let metric = Metric::parse(row["metric"].as_str().unwrap()).unwrap();
        let prediction = metric.postprocess(row["prediction"].as_str().unwrap());
        let score = metric.score(&prediction, &strings(&row["references"]), &strings(&row["all_classes"]));
        assert!(close(score, row["score"].as_f64().unwrap()), "{score} for {row}");
    }
    let covered = |metric: Metric| rows.iter().any(|row| row["metric"] == metric.name());
    assert!(Metric::all().all(covered));
}

/// The larger set of golden values, of the official code itself, where it is at hand.
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

/// Percent with two decimals, as the official tools print a mean.
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
        let metric = dataset.metric().unwrap();
        let classes = strings(&row["all_classes"]);
        let answers = row["answers"].as_array().unwrap().iter().map(strings);
        let scores: Vec<f64> = strings(&row["predictions"])
            .iter()
            .zip(answers)
            .map(|(p, answers)| metric.score(&dataset.postprocess(metric, p), &answers, &classes))
            .collect();
        assert!(same_percent(&scores, &row["score"]), "{scores:?}: {row}");
    }
}

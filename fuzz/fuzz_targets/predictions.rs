//! Predictions for `spattn score`. The first byte chooses the rule for scoring.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use spattn::cli::score::{ScoreArgs, score_path};
use spattn::tasks::metrics::Metric;
use spattn_fuzz::{choice, folder, put, read};

/// Names of files that determine the rule.
const FILES: [&str; 6] =
    ["x.jsonl", "hotpotqa.jsonl", "trec_e.jsonl", "lcc.jsonl", "niah_single_1.jsonl", "qa_1.jsonl"];

fuzz_target!(|input: &[u8]| -> Corpus {
    let metrics: Vec<Metric> = Metric::all().collect();
    let Some((which, bytes)) = choice(input, FILES.len() + metrics.len()) else { return Corpus::Reject };
    let (name, metric) = match which.checked_sub(FILES.len()) {
        None => (FILES[which], None),
        Some(at) => (FILES[0], Some(metrics[at].name().to_owned())),
    };
    let dir = folder();
    let file = put(dir.path(), name, bytes);
    for skip_bad in [false, true] {
        let args = ScoreArgs {
            file: file.clone(),
            metric: metric.clone(),
            dataset: None,
            by_length: false,
            skip_bad,
            json: false,
        };
        if let Some(report) = read(score_path(&args)) {
            assert!(report.rows.iter().all(|score| (0.0..=1.0).contains(score)), "{:?}", report.rows);
        }
    }
    Corpus::Keep
});

//! `metrics.csv`: the mean scores by every metric, for tasks that record several.

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;

use super::csv::finished;
use spattn_eval::records::record::Record;
use spattn_eval::summary::cells::place;
use spattn_eval::summary::columns::SummaryRow;
use spattn_stats::mean;

/// The mean score of a summary row by a metric other than its main one.
#[derive(Debug, Clone, PartialEq)]
pub struct OtherScore<'a> {
    /// The row.
    pub row: &'a SummaryRow,
    /// The name of the metric.
    pub metric: String,
    /// Number of examples.
    pub n: usize,
    /// Mean score, percent.
    pub score: f64,
}

/// The scores of the summary's rows by other metrics, in the order of rows, then of metrics' names.
pub fn other_scores<'a>(rows: &'a [SummaryRow], records: &[Record]) -> Vec<OtherScore<'a>> {
    let mut by_row: HashMap<RowKey<'_>, ByMetric<'_>> = HashMap::new();
    for r in records.iter().filter(|r| !r.other_scores.is_empty()) {
        let key = (place(r), r.method.as_str(), r.params.as_str());
        let by_metric = by_row.entry(key).or_default();
        for (metric, score) in &r.other_scores {
            by_metric.entry(metric).or_default().insert((r.seed, r.sample), *score);
        }
    }
    let of_row = |row: &'a SummaryRow| {
        let place = (row.model.as_str(), row.protocol.as_str(), row.task.as_str(), row.length);
        let by_metric = by_row.get(&(place, row.method.as_str(), row.params.as_str()));
        let one = move |(metric, scores): (&&str, &BTreeMap<_, f64>)| {
            let scores: Vec<f64> = scores.values().copied().collect();
            OtherScore { row, metric: (*metric).to_owned(), n: scores.len(), score: 100.0 * mean(&scores) }
        };
        by_metric.into_iter().flatten().map(one).collect::<Vec<_>>()
    };
    rows.iter().flat_map(of_row).collect()
}

/// The key of a row: its [`place`], method and parameters.
type RowKey<'r> = ((&'r str, &'r str, &'r str, usize), &'r str, &'r str);
/// The scores of examples, by metric.
type ByMetric<'r> = BTreeMap<&'r str, BTreeMap<(u64, usize), f64>>;

/// Renders the scores as CSV with a heading line.
///
/// # Errors
/// None in practice; the CSV writer's signature has one.
pub fn csv(scores: &[OtherScore]) -> Result<String> {
    let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
    writer.write_record(["model", "task", "length", "method", "params", "protocol", "metric", "n", "score"])?;
    for OtherScore { row, metric, n, score } in scores {
        let (length, n, score) = (row.length.to_string(), n.to_string(), format!("{score:.4}"));
        writer.write_record([
            &row.model,
            &row.task,
            &length,
            &row.method,
            &row.params,
            &row.protocol,
            metric,
            &n,
            &score,
        ])?;
    }
    finished(writer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::records::testing::record;
    use spattn_eval::summary::summarize::summarize;

    #[test]
    fn means_are_by_row_and_metric() {
        let with = |sample, score: f64| Record {
            other_scores: [("rouge_1".to_owned(), score), ("rouge_2".to_owned(), 0.0)].into(),
            ..record("jsonl:books", "full", sample, 0.5)
        };
        let records = [with(0, 0.25), with(1, 0.75), record("ruler/vt", "full", 0, 1.0)];
        let rows = summarize(&records, &[]);
        let others = other_scores(&rows, &records);
        let seen: Vec<_> = others.iter().map(|o| (o.row.task.as_str(), o.metric.as_str(), o.n, o.score)).collect();
        assert_eq!(seen, [("jsonl:books", "rouge_1", 2, 50.0), ("jsonl:books", "rouge_2", 2, 0.0)]);
        assert!(csv(&others).unwrap().contains("builtin,jsonl:books,4096,full,,question,rouge_1,2,50.0000"));
    }
}

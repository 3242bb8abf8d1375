//! Means over several rows of the summary, with intervals from the examples of all of them.

use crate::eval::record::SummaryRow;
use crate::eval::stats::several::{detectable_of, mean_of};
use crate::eval::stats::{self, Estimate};

use super::format::distinct;

/// Mean of the scores of several rows, each of the same weight, in percent.
pub fn score(rows: &[&SummaryRow]) -> Option<Estimate> {
    mean_of(&rows.iter().map(|r| Estimate { mean: r.score, ends: r.ci_low.zip(r.ci_high) }).collect::<Vec<_>>())
}

/// Mean of the differences to dense attention on common examples, in points; `None` if a row has none.
pub fn delta(rows: &[&SummaryRow]) -> Option<Estimate> {
    let of_row = |r: &&SummaryRow| Some(Estimate { mean: r.delta_full?, ends: r.delta_low.zip(r.delta_high) });
    mean_of(&rows.iter().map(of_row).collect::<Option<Vec<_>>>()?)
}

/// The difference to dense attention, in points, that can be told from noise in such a mean; `None` if a row has none.
pub fn detectable(rows: &[&SummaryRow]) -> Option<f64> {
    detectable_of(&rows.iter().map(|r| r.detectable).collect::<Vec<_>>())
}

/// A row of means over all tasks for each setting that has all of them: one for each (model, protocol, length, setting)
/// where there are several tasks with scores.
pub fn over_tasks(rows: &[SummaryRow]) -> Vec<SummaryRow> {
    let scored: Vec<usize> = (0..rows.len()).filter(|i| rows[*i].measure.is_score()).collect();
    let place = |i: &usize| (rows[*i].model.as_str(), rows[*i].protocol.as_str(), rows[*i].length);
    let mut means = Vec::new();
    for at in distinct(scored.iter().map(place)) {
        let here: Vec<usize> = scored.iter().copied().filter(|i| place(i) == at).collect();
        let tasks = distinct(here.iter().map(|i| rows[*i].task.as_str())).len();
        for setting in distinct(here.iter().map(|i| (rows[*i].method.as_str(), rows[*i].params.as_str()))) {
            let of: Vec<usize> = here
                .iter()
                .copied()
                .filter(|i| (rows[*i].method.as_str(), rows[*i].params.as_str()) == setting)
                .collect();
            if tasks > 1 && of.len() == tasks {
                means.extend(mean_row(&of, rows));
            }
        }
    }
    means
}

fn mean_row(of: &[usize], rows: &[SummaryRow]) -> Option<SummaryRow> {
    let of_rows: Vec<&SummaryRow> = of.iter().map(|i| &rows[*i]).collect();
    let (score, delta) = (score(&of_rows)?, delta(&of_rows));
    let over = |value: fn(&SummaryRow) -> f64| stats::mean(&of_rows.iter().map(|r| value(r)).collect::<Vec<_>>());
    Some(SummaryRow {
        task: format!("mean of {} tasks", of.len()),
        n: of_rows.iter().map(|r| r.n).sum(),
        score: score.mean,
        ci_low: score.low(),
        ci_high: score.high(),
        delta_full: delta.map(|d| d.mean),
        delta_low: delta.and_then(|d| d.low()),
        delta_high: delta.and_then(|d| d.high()),
        contexts: of_rows.iter().map(|r| r.contexts).sum(),
        detectable: detectable(&of_rows),
        density: over(|r| r.density),
        density_sparse_layers: over(|r| r.density_sparse_layers),
        cost1: over(|r| r.cost1),
        cost2: over(|r| r.cost2),
        cost_total: over(|r| r.cost_total),
        aux_bits: over(|r| r.aux_bits),
        kv_bytes_per_token: over(|r| r.kv_bytes_per_token),
        prefill_s: over(|r| r.prefill_s),
        decode_ms_per_token: over(|r| r.decode_ms_per_token),
        ..of_rows[0].clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::record::tests::record;
    use crate::eval::summary::summarize;

    #[test]
    fn means_over_tasks_are_of_settings_that_have_all_of_them() {
        let mut records = Vec::new();
        for (task, scores) in [("ruler/vt", [1.0, 0.5]), ("ruler/cwe", [0.0, 0.5])] {
            for (i, score) in scores.into_iter().enumerate() {
                records.extend([record(task, "full", i, 1.0), record(task, "quest", i, score)]);
            }
        }
        records.push(record("ruler/vt", "random", 0, 0.0));
        let means = over_tasks(&summarize(&records, &[]));
        let seen: Vec<_> = means.iter().map(|r| (r.method.as_str(), r.n, r.score, r.delta_full)).collect();
        assert_eq!(seen, [("full", 4, 100.0, Some(0.0)), ("quest", 4, 50.0, Some(-50.0))]);
        assert_eq!(means[0].task, "mean of 2 tasks");
        assert!(means[1].ci_low < Some(50.0) && means[1].delta_high > Some(-50.0), "{means:?}");
        assert!(means[0].ci_low < Some(100.0) && means[0].ci_high == Some(100.0), "at the edge: {:?}", means[0]);
    }
}

//! Means over several rows of the summary, with intervals from the examples of all of them.

use crate::eval::record::SummaryRow;
use crate::eval::stats::{self, Interval};
use crate::eval::summary::{Cell, SEED};

use super::format::distinct;

/// Mean of the scores of several rows, each of the same weight, in percent; `cells` are their records.
pub fn score(rows: &[&SummaryRow], cells: &[&Cell]) -> Option<Interval> {
    if let [row] = rows {
        return Some(Interval { mean: row.score, low: row.ci_low, high: row.ci_high });
    }
    let groups: Vec<Vec<f64>> = cells.iter().map(|cell| cell.scores().into_values().collect()).collect();
    stats::bootstrap_groups(&groups, SEED).map(|interval| interval.scaled(100.0))
}

/// Mean of the differences to dense attention on common examples, in points; `None` if a row has none. `all` are the
/// cells in which dense attention is looked for.
pub fn delta(rows: &[&SummaryRow], cells: &[&Cell], all: &[Cell]) -> Option<Interval> {
    if let [SummaryRow { delta_full: Some(mean), delta_low: Some(low), delta_high: Some(high), .. }] = rows {
        return Some(Interval { mean: *mean, low: *low, high: *high });
    }
    let differences = |cell: &&Cell| Some(stats::differences(&cell.scores(), &cell.reference(all)?.scores()));
    let groups: Vec<Vec<f64>> = cells.iter().map(differences).collect::<Option<_>>()?;
    stats::bootstrap_groups(&groups, SEED).map(|interval| interval.scaled(100.0))
}

/// A row of means over all tasks for each setting that has all of them: one for each (model, protocol, length, setting)
/// where there are several tasks with scores. `rows` and `cells` belong together.
pub fn over_tasks(rows: &[SummaryRow], cells: &[Cell]) -> Vec<SummaryRow> {
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
                means.extend(mean_row(&of, rows, cells));
            }
        }
    }
    means
}

fn mean_row(of: &[usize], rows: &[SummaryRow], cells: &[Cell]) -> Option<SummaryRow> {
    let of_rows: Vec<&SummaryRow> = of.iter().map(|i| &rows[*i]).collect();
    let of_cells: Vec<&Cell> = of.iter().map(|i| &cells[*i]).collect();
    let score = score(&of_rows, &of_cells)?;
    let delta = delta(&of_rows, &of_cells, cells);
    let over = |value: fn(&SummaryRow) -> f64| stats::mean(&of_rows.iter().map(|r| value(r)).collect::<Vec<_>>());
    Some(SummaryRow {
        task: format!("mean of {} tasks", of.len()),
        n: of_rows.iter().map(|r| r.n).sum(),
        score: score.mean,
        ci_low: score.low,
        ci_high: score.high,
        delta_full: delta.map(|d| d.mean),
        delta_low: delta.map(|d| d.low),
        delta_high: delta.map(|d| d.high),
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
    use crate::eval::summary::{group, summarize};

    #[test]
    fn means_over_tasks_are_of_settings_that_have_all_of_them() {
        let mut records = Vec::new();
        for (task, scores) in [("ruler/vt", [1.0, 0.5]), ("ruler/cwe", [0.0, 0.5])] {
            for (i, score) in scores.into_iter().enumerate() {
                records.extend([record(task, "full", i, 1.0), record(task, "quest", i, score)]);
            }
        }
        records.push(record("ruler/vt", "random", 0, 0.0));
        let means = over_tasks(&summarize(&records, &[]), &group(&records, &[]));
        let seen: Vec<_> = means.iter().map(|r| (r.method.as_str(), r.n, r.score, r.delta_full)).collect();
        assert_eq!(seen, [("full", 4, 100.0, Some(0.0)), ("quest", 4, 50.0, Some(-50.0))]);
        assert_eq!(means[0].task, "mean of 2 tasks");
        assert!(means[1].ci_low < 50.0 && means[1].delta_high > Some(-50.0), "{means:?}");
    }
}

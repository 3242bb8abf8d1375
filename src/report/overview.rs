//! The means in the page's overview, with their intervals. The page looks them up and computes none itself.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::format::distinct;
use super::means::shared_sets;
use spattn_eval::summary::columns::{SummaryRow, mean_delta, mean_score};
use spattn_stats::Estimate;

/// The dimensions that the overview can show as columns.
const DIMENSIONS: [&str; 4] = ["task", "length", "protocol", "model"];

/// Indices of rows in the summary, in its order.
type Rows = Vec<usize>;

/// The score and the difference to dense attention, each with the ends of its interval, for all sets of rows that the overview averages.
/// The key of a set is the indices of its rows, joined by commas.
pub fn means(rows: &[SummaryRow]) -> BTreeMap<String, Value> {
    DIMENSIONS.iter().flat_map(|by| averaged(rows, by)).map(|of| (key(&of), mean(&of, rows))).collect()
}

fn key(of: &[usize]) -> String {
    of.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

fn mean(of: &[usize], rows: &[SummaryRow]) -> Value {
    let of: Vec<&SummaryRow> = of.iter().map(|i| &rows[*i]).collect();
    let told = |estimate: Option<Estimate>| estimate.map(|e| json!([e.mean, e.low(), e.high()]));
    json!({"score": told(mean_score(&of)), "delta_full": told(mean_delta(&of))})
}

/// A row's task and length, except for the one that the column shows.
fn scope<'a>(row: &'a SummaryRow, by: &str) -> (&'a str, usize) {
    (if by == "task" { "" } else { &row.task }, if by == "length" { 0 } else { row.length })
}

/// The sets of rows that are averaged in a cell: all its rows, and those with a task or length that all cells have.
fn averaged(rows: &[SummaryRow], by: &str) -> BTreeSet<Rows> {
    let mut cells: BTreeMap<(&str, &str, &str, &str, String), Rows> = BTreeMap::new();
    for (i, r) in rows.iter().enumerate().filter(|(_, r)| r.measure.is_score()) {
        let column = match by {
            "task" => r.task.clone(),
            "length" => r.length.to_string(),
            _ => String::new(),
        };
        cells.entry((&r.model, &r.protocol, &r.method, &r.params, column)).or_default().push(i);
    }
    let sets: Vec<BTreeSet<_>> =
        distinct(cells.values().map(|of| of.iter().map(|i| scope(&rows[*i], by)).collect::<BTreeSet<_>>()));
    let scopes = shared_sets(&sets);
    let within = |of: &Rows, set: &BTreeSet<_>| -> Rows {
        of.iter().copied().filter(|i| set.contains(&scope(&rows[*i], by))).collect()
    };
    let all = cells.values().flat_map(|of| scopes.iter().map(move |set| within(of, set)));
    all.filter(|of| of.len() > 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::records::testing::record;
    use spattn_eval::summary::summarize::summarize;

    #[test]
    fn what_the_overview_averages_has_its_interval() {
        let records = ["a", "b"].map(|task| {
            [
                record(task, "full", 0, 1.0),
                record(task, "full", 1, 1.0),
                record(task, "topk", 0, 1.0),
                record(task, "topk", 1, 0.5),
            ]
        });
        let rows = summarize(&records.concat(), &[]);
        let made = means(&rows);
        // Rows are sorted by task: full on a, topk on a, full on b, topk on b. Each mean is over the tasks of one method.
        assert_eq!(made.keys().collect::<Vec<_>>(), ["0,2", "1,3"]);
        assert_eq!((&made["1,3"]["score"][0], &made["1,3"]["delta_full"][0]), (&json!(75.0), &json!(-25.0)));
        let [low, high] = [1, 2].map(|end| made["1,3"]["score"][end].as_f64().unwrap());
        assert!(rows[1].ci_low.unwrap() < low && low < 75.0 && 75.0 < high && high < rows[1].ci_high.unwrap());
    }
}

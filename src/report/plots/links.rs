//! `transfers_vs_bandwidth.svg`: how long a step's transfers take over a link of each bandwidth to the tier that keeps keys and values,
//! with a line for each setting of a method. The times are computed from the bytes that steps fetched.

use anyhow::Result;

use super::axis::{Axis, tick_label};
use super::chart::{Chart, ChartPanel, ChartPoint, Data, LARGE};
use super::looks::{MOST_SETTINGS, looks, setting_names};
use super::{Figures, end_of, suffix};
use crate::report::format::{distinct, tokens};
use spattn_eval::records::record::is_reference;
use spattn_eval::summary::columns::SummaryRow;

/// Bandwidths in GB/s: from that of a disk to that of links between processors and GPUs.
const BANDWIDTHS: [usize; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// The bytes fetched for each token from the tier of keys and values, from disk or over the bus. `None` if all were in memory.
pub(super) fn fetched_bytes(row: &SummaryRow) -> Option<f64> {
    row.fetched_bus_per_token.or(row.fetched_disk_per_token)
}

/// One figure for each model, length and protocol whose steps fetched something: for the mean over tasks, or for the only task. `means` are
/// as for [`trade::figures`](super::trade::figures). At most `most` pages are drawn.
///
/// # Errors
/// If the drawing fails, for which text output gives no cause.
pub fn figures(rows: &[SummaryRow], means: &[SummaryRow], most: usize) -> Result<Figures> {
    let scene = |r: &SummaryRow| (r.model.clone(), r.length, r.protocol.clone());
    let fetching = |r: &&SummaryRow| fetched_bytes(r).is_some_and(|bytes| bytes > 0.0);
    let all: Vec<&SummaryRow> = means.iter().chain(rows).filter(fetching).collect();
    let scenes = distinct(all.iter().map(|r| scene(r)));
    let mut figures = Figures::up_to(most);
    for at in &scenes {
        let of_scene = || all.iter().copied().filter(|r| scene(r) == *at);
        let Some(first) = of_scene().next() else { continue };
        let shown: Vec<&SummaryRow> = of_scene().filter(|r| r.task == first.task).collect();
        let charts: Vec<Chart> = shown.chunks(MOST_SETTINGS).map(|some| chart(first, some)).collect();
        let (model, length, protocol) = at;
        let suffix = suffix(&[
            (scenes.iter().any(|s| s.0 != *model), model),
            (scenes.iter().any(|s| s.1 != *length), &length.to_string()),
            (scenes.iter().any(|s| s.2 != *protocol), protocol),
        ]);
        figures.charts(&format!("transfers_vs_bandwidth{suffix}.svg"), &charts, false)?;
    }
    Ok(figures)
}

/// The chart of `rows`, which have the task of `first`.
fn chart(first: &SummaryRow, rows: &[&SummaryRow]) -> Chart {
    let methods: Vec<&str> = rows.iter().map(|r| r.method.as_str()).collect();
    let settings: Vec<(&str, &str)> = rows.iter().map(|r| (r.method.as_str(), r.params.as_str())).collect();
    let (names, note) = setting_names(&settings);
    let data: Vec<Data> = rows.iter().map(|r| line(fetched_bytes(r).unwrap_or(0.0))).collect();
    let times = data.iter().flat_map(|data| data.points.iter().map(|point| point.y));
    let length = if first.length > 0 { format!(", {} tokens", tokens(first.length)) } else { String::new() };
    let link = if first.fetched_bus_per_token.is_some() { "the bus" } else { "the disk" };
    Chart {
        title: format!(
            "Time of transfers against bandwidth: {}{length}, sparse from {}",
            end_of(&first.model),
            first.protocol
        ),
        x_label: format!("bandwidth of {link} (GB/s)"),
        y_label: "ms of transfers per token".to_owned(),
        x_tick: tick_label,
        y_tick: tick_label,
        least_panel: LARGE,
        has_roles: true,
        has_level: rows.iter().any(|r| is_reference(&r.method, &r.params)),
        panels: vec![ChartPanel {
            title: first.task.clone(),
            x: Axis::of_lengths(&BANDWIDTHS),
            y: Axis::of_rates(times),
            level: None,
            focus: None,
            labels: Vec::new(),
            data: data.clone(),
        }],
        series: names.into_iter().zip(looks(&methods)).collect(),
        notes: [
            "computed: the bytes that a token fetched, over the bandwidth; a step takes as long at least, unless transfers overlap with it"
                .to_owned(),
        ]
        .into_iter()
        .chain(note)
        .collect(),
    }
}

/// The time to fetch `bytes` bytes at each bandwidth, in ms.
fn line(bytes: f64) -> Data {
    let point =
        |bandwidth: &usize| ChartPoint { x: *bandwidth as f64, y: bytes / (*bandwidth as f64 * 1e6), ends: None };
    Data { points: BANDWIDTHS.iter().map(point).collect(), line: (0..BANDWIDTHS.len()).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::records::costs::FetchedBytes;
    use spattn_eval::records::record::Record;
    use spattn_eval::records::testing::record;
    use spattn_eval::summary::summarize::summarize;

    fn fetching(task: &str, method: &str, bytes: FetchedBytes) -> Record {
        Record { fetched_per_token: Some(bytes.into()), ..record(task, method, 0, 0.5) }
    }

    fn of_bus(bytes: f64) -> FetchedBytes {
        FetchedBytes { memory: 0.0, disk: 0.0, bus: Some(bytes) }
    }

    #[test]
    fn bytes_take_their_time_at_each_bandwidth() {
        // At 1 GB/s, 100 MB take 100 ms.
        let data = line(100e6);
        assert_eq!((data.points[0].x, data.points[0].y), (1.0, 100.0));
        assert_eq!((data.points[5].x, data.points[5].y), (32.0, 100.0 / 32.0));
    }

    #[test]
    fn only_what_fetched_something_is_drawn() {
        let in_memory = record("ruler/vt", "full", 0, 0.5);
        let of_pages = |method, disk| fetching("ruler/vt", method, FetchedBytes { memory: 5.0, disk, bus: None });
        let drawn = |records: &[Record]| figures(&summarize(records, &[]), &[], 99).unwrap();
        assert_eq!(drawn(std::slice::from_ref(&in_memory)), Figures::up_to(99));
        assert_eq!(drawn(&[of_pages("full", 0.0)]), Figures::up_to(99), "all pages were in memory");
        let found = drawn(&[of_pages("full", 64e6), of_pages("quest", 4e6), of_pages("topk", 0.0)]).first;
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].file, "transfers_vs_bandwidth.svg");
        for text in ["full (dense)", "quest", "bandwidth of the disk (GB/s)", "\n512\n", "ruler/vt"] {
            assert!(found[0].svg.contains(text), "{text}");
        }
        assert!(!found[0].svg.contains("topk"));
        let bus = drawn(&[fetching("ruler/vt", "full", of_bus(1e6))]).first;
        assert!(bus[0].svg.contains("bandwidth of the bus (GB/s)"));
    }

    #[test]
    fn several_tasks_are_drawn_as_their_mean() {
        let records = [fetching("ruler/vt", "full", of_bus(2e6)), fetching("ruler/cwe", "full", of_bus(4e6))];
        let rows = summarize(&records, &[]);
        let mean = SummaryRow { task: "mean".to_owned(), fetched_bus_per_token: Some(3e6), ..rows[0].clone() };
        let found = figures(&rows, &[mean], 99).unwrap().first;
        assert_eq!(found.len(), 1);
        assert!(found[0].svg.contains("\nmean\n") && !found[0].svg.contains("ruler/vt"));
    }
}

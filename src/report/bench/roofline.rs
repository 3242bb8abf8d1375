//! `roofline.svg`: operations per second against operations per byte, below the machine's limits.

use anyhow::Result;

use super::latency::pages_of;
use super::scene::Scene;
use super::series::{Series, named, series};
use crate::report::format::{number, tokens};
use crate::report::plots::Figure;
use crate::report::plots::axis::{Axis, tick_label};
use crate::report::plots::chart::{Chart, ChartPanel, ChartPoint, Data, LARGE};
use crate::report::plots::pen::SeriesLook;
use spattn_lab::bench::{BenchRow, Roof};

/// Draws the rows with counted operations and bytes, in a panel for each context; `None` if there are none.
pub fn figure(scene: &Scene, all: &[Scene], roof: &Roof) -> Option<Result<Vec<Figure>>> {
    let counted: Vec<&BenchRow> = scene.rows.iter().copied().filter(|row| place(row).is_some()).collect();
    if counted.is_empty() {
        return None;
    }
    Some(pages_of(&chart(&Scene { rows: counted }, roof), &scene.file_name("roofline", all)))
}

/// A row's FLOPs per byte and its GFLOP/s; `None` if they were not counted.
fn place(row: &BenchRow) -> Option<ChartPoint> {
    let is_counted = row.flops > 0 && row.bytes > 0 && row.gflops > 0.0;
    is_counted.then(|| ChartPoint { x: row.flops as f64 / row.bytes as f64, y: row.gflops, ends: None })
}

/// The chart of a scene whose rows all have counts.
fn chart(scene: &Scene, roof: &Roof) -> Chart {
    let series = series(&scene.rows, Series::of);
    let points: Vec<ChartPoint> = scene.rows.iter().filter_map(|row| place(row)).collect();
    let ridge = roof.peak_gflops / roof.read_gbps;
    let x = || Axis::of_rates(points.iter().map(|point| point.x).chain([ridge]));
    let edge = edge(roof, &x());
    let y = || Axis::of_rates(points.iter().chain(&edge).map(|point| point.y));
    let panels = scene.contexts().into_iter().map(|context| {
        let rows = scene.at(context);
        let of_series = |of: &Series| Data {
            points: rows.iter().filter(|row| Series::of(row) == *of).filter_map(|row| place(row)).collect(),
            line: Vec::new(),
        };
        let roof = Data { points: edge.clone(), line: (0..edge.len()).collect() };
        ChartPanel {
            title: format!("{} tokens", tokens(context)),
            x: x(),
            y: y(),
            level: None,
            focus: None,
            labels: Vec::new(),
            data: std::iter::once(roof).chain(series.iter().map(|(of, ..)| of_series(of))).collect(),
        }
    });
    let roof_name = format!("{} GB/s, {} GFLOP/s", number(roof.read_gbps), number(roof.peak_gflops));
    Chart {
        title: format!("Roofline: {}", scene.title()),
        x_label: "FLOPs a byte".to_owned(),
        y_label: "GFLOP/s".to_owned(),
        x_tick: tick_label,
        y_tick: tick_label,
        least_panel: LARGE,
        has_roles: true,
        has_level: false,
        notes: Vec::new(),
        panels: panels.collect(),
        series: std::iter::once((roof_name, SeriesLook::Roof)).chain(named(&series)).collect(),
    }
}

/// The machine's limit: its bandwidth up to the ridge, then its peak; empty if the limit is unknown.
fn edge(roof: &Roof, x: &Axis) -> Vec<ChartPoint> {
    let ridge = roof.peak_gflops / roof.read_gbps;
    if !(ridge.is_finite() && ridge > 0.0) {
        return Vec::new();
    }
    let at = |x: f64| ChartPoint { x, y: (x * roof.read_gbps).min(roof.peak_gflops), ends: None };
    vec![at(x.low), at(ridge), at(x.high)]
}

#[cfg(test)]
mod tests {
    use super::super::scene::scenes;
    use super::super::tests::{bench, full, row};
    use super::*;

    #[test]
    fn rows_are_points_below_two_lines() {
        let counted = |bytes, gflops, row: BenchRow| BenchRow { flops: 1000, bytes, gflops, ..row };
        let bench = bench(vec![
            counted(500, 30.0, full(4096)),
            counted(2000, 8.0, row("quest", "density=0.05")),
            counted(1000, 12.0, row("quest", "density=0.1")),
        ]);
        let chart = chart(&scenes(&bench)[0], &bench.roof);
        let names: Vec<&str> = chart.series.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["20.0 GB/s, 200 GFLOP/s", "full", "quest"]);
        let places = |series: usize| {
            chart.panels[0].data[series].points.iter().map(|point| (point.x, point.y)).collect::<Vec<_>>()
        };
        assert_eq!((places(1), places(2)), (vec![(2.0, 30.0)], vec![(0.5, 8.0), (1.0, 12.0)]));
        let (roof, x) = (places(0), &chart.panels[0].x);
        assert_eq!(roof[1], (10.0, 200.0), "200 / 20 operations a byte");
        assert!(roof[0].0 < 0.5 && (roof[0].1 / roof[0].0 - 20.0).abs() < 1e-9, "bytes limit: {roof:?}");
        assert!(roof[2].0 > 10.0 && roof[2].1 == 200.0, "operations limit: {roof:?}");
        assert!(x.log && chart.panels[0].y.log && chart.panels[0].y.high > 200.0 && chart.panels[0].y.low < 8.0);
    }

    #[test]
    fn an_unknown_roof_is_left_out() {
        let bench = bench(vec![BenchRow { flops: 10, bytes: 10, gflops: 1.0, ..full(4096) }]);
        for (read_gbps, peak_gflops) in [(0.0, 0.0), (20.0, 0.0), (0.0, 200.0), (f64::NAN, 200.0)] {
            let roof = Roof { read_gbps, peak_gflops, ..Roof::default() };
            let scenes = scenes(&bench);
            assert!(chart(&scenes[0], &roof).panels[0].data[0].points.is_empty(), "{roof:?}");
            assert!(figure(&scenes[0], &scenes, &roof).unwrap().is_ok());
        }
    }
}

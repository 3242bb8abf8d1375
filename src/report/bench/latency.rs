//! `latency_vs_context.svg` and `latency_vs_density.svg`: how long each setting takes.

use anyhow::Result;

use super::scene::Scene;
use super::series::{Series, asked_density, named, series, time_tick, timed, times};
use crate::report::format::{distinct, tokens};
use spattn_lab::bench::BenchRow;

use crate::report::plots::axis::{Axis, tick_label};
use crate::report::plots::chart::{Chart, ChartPanel, Data, LARGE, pages};
use crate::report::plots::{Figure, paged};

const TIME: &str = "median time";
/// From this density on, a setting counts as attending all tokens. The margin is for rounding.
const ALL: f64 = 1.0 - 1e-9;

/// Draws time against context, both logarithmic, with a panel for each requested density; `None` for a scene with a single context.
pub fn against_context(scene: &Scene, all: &[Scene]) -> Option<Result<Vec<Figure>>> {
    if scene.contexts().len() < 2 {
        return None;
    }
    Some(pages_of(&context_chart(scene), &scene.file_name("latency_vs_context", all)))
}

/// Draws time against density, with `full` as a level, for each context at which a method has several densities; `None` if there is none.
pub fn against_density(scene: &Scene, all: &[Scene]) -> Option<Result<Vec<Figure>>> {
    let contexts: Vec<usize> = scene.contexts().into_iter().filter(|c| has_densities(&scene.at(*c))).collect();
    if contexts.is_empty() {
        return None;
    }
    Some(pages_of(&density_chart(scene, &contexts), &scene.file_name("latency_vs_density", all)))
}

/// The pages of a chart, as many as its height needs.
pub fn pages_of(chart: &Chart, file: &str) -> Result<Vec<Figure>> {
    Ok(paged(file, &chart.title, pages(std::slice::from_ref(chart), usize::MAX)?))
}

// ---- context ----

/// What the settings of a panel have in common.
#[derive(Debug, Clone, PartialEq)]
enum Share<'a> {
    /// They attend all tokens, and are drawn in every panel for comparison.
    All,
    /// They request this density.
    Asked(&'a str),
    /// They set their own budgets.
    Own,
}

impl Share<'_> {
    fn title(&self) -> String {
        match self {
            Share::All => "all tokens".to_owned(),
            Share::Asked(density) => format!("density {density}"),
            Share::Own => "budgets of their own".to_owned(),
        }
    }
}

/// What a row's setting shares with others. It counts as `All` only if it attends all tokens at every context, because a fixed number of
/// tokens may cover a short context.
fn share<'a>(row: &'a BenchRow, rows: &[&BenchRow]) -> Share<'a> {
    let is_same =
        |other: &&&BenchRow| (&other.method, &other.params, other.peer) == (&row.method, &row.params, row.peer);
    match asked_density(row) {
        Some(density) => Share::Asked(density),
        None if rows.iter().filter(is_same).all(|other| other.density >= ALL) => Share::All,
        None => Share::Own,
    }
}

fn context_chart(scene: &Scene) -> Chart {
    let series = series(&scene.rows, Series::of);
    let placed: Vec<(&BenchRow, Share)> = scene.rows.iter().map(|row| (*row, share(row, &scene.rows))).collect();
    let mut shares = distinct(placed.iter().map(|(_, share)| share.clone()).filter(|share| *share != Share::All));
    if shares.is_empty() {
        shares.push(Share::All);
    }
    shares.sort_by(|a, b| asked(a).total_cmp(&asked(b)));
    let panel = |here: &Share| {
        let is_here = |share: &Share| share == here || *share == Share::All;
        let shown: Vec<&BenchRow> = placed.iter().filter(|(_, share)| is_here(share)).map(|(row, _)| *row).collect();
        ChartPanel {
            title: here.title(),
            x: Axis::of_lengths(&scene.contexts()),
            // All panels have the same axis, for comparison.
            y: Axis::of_rates(times(&scene.rows)),
            level: None,
            focus: None,
            labels: Vec::new(),
            data: series.iter().map(|(of, ..)| over_context(of, &shown)).collect(),
        }
    };
    Chart {
        title: format!("Time against context: {}", scene.title()),
        x_label: "context (tokens)".to_owned(),
        y_label: TIME.to_owned(),
        x_tick: |tick| tokens(tick as usize),
        y_tick: time_tick,
        least_panel: LARGE,
        has_roles: true,
        has_level: series.iter().any(|(of, ..)| of.is_reference()),
        notes: Vec::new(),
        panels: shares.iter().map(panel).collect(),
        series: named(&series),
    }
}

/// The sort key of a panel: its requested density; panels without one come last.
fn asked(share: &Share) -> f64 {
    match share {
        Share::Asked(density) => density.parse().unwrap_or(f64::MAX),
        Share::All | Share::Own => f64::INFINITY,
    }
}

fn over_context(series: &Series, rows: &[&BenchRow]) -> Data {
    let mut of: Vec<&&BenchRow> = rows.iter().filter(|row| Series::of(row) == *series).collect();
    of.sort_by_key(|row| row.context);
    Data { points: of.iter().map(|row| timed(row, row.context as f64)).collect(), line: (0..of.len()).collect() }
}

// ---- density ----

/// Whether a method has several densities in these rows.
fn has_densities(rows: &[&BenchRow]) -> bool {
    let series: Vec<(Series, f64)> = rows.iter().map(|row| (Series::of_any_budget(row, rows), row.density)).collect();
    series.iter().any(|(of, density)| series.iter().any(|(other, another)| density != another && of == other))
}

fn density_chart(scene: &Scene, contexts: &[usize]) -> Chart {
    let of = |row| Series::of_any_budget(row, &scene.rows);
    let series = series(&scene.rows, of);
    let panel = |context: &usize| {
        let rows = scene.at(*context);
        let percents: Vec<f64> = rows.iter().filter(|row| !is_level(row)).map(|row| 100.0 * row.density).collect();
        let x = Axis::of_costs(&percents);
        ChartPanel {
            title: format!("{} tokens", tokens(*context)),
            y: Axis::of_rates(times(&rows)),
            level: rows.iter().find(|row| Series::of(row).is_reference()).map(|row| row.time_us),
            focus: None,
            labels: Vec::new(),
            data: series
                .iter()
                .map(|(here, ..)| over_density(rows.iter().copied().filter(|row| of(row) == *here), &x))
                .collect(),
            x,
        }
    };
    Chart {
        title: format!("Time against density: {}", scene.title()),
        x_label: "density (% of tokens attended)".to_owned(),
        y_label: TIME.to_owned(),
        x_tick: tick_label,
        y_tick: time_tick,
        least_panel: LARGE,
        has_roles: true,
        has_level: scene.rows.iter().any(|row| Series::of(row).is_reference()),
        notes: Vec::new(),
        panels: contexts.iter().map(panel).collect(),
        series: named(&series),
    }
}

/// Whether a row is drawn as a level instead of at its density: dense attention, and peers that attend everything.
fn is_level(row: &BenchRow) -> bool {
    Series::of(row).is_reference() || (row.peer && row.density >= ALL)
}

/// The points of a series at one context. Dense attention has none, because it is drawn as the chart's level. A peer that attends
/// everything has two, one at each end of the axis.
fn over_density<'r>(rows: impl Iterator<Item = &'r BenchRow>, x: &Axis) -> Data {
    let mut rows: Vec<&BenchRow> = rows.filter(|row| !Series::of(row).is_reference()).collect();
    rows.sort_by(|a, b| a.density.total_cmp(&b.density));
    let places = |row: &BenchRow| if is_level(row) { vec![x.low, x.high] } else { vec![100.0 * row.density] };
    let points: Vec<_> = rows.iter().flat_map(|row| places(row).into_iter().map(|x| timed(row, x))).collect();
    Data { line: (0..points.len()).collect(), points }
}

#[cfg(test)]
mod tests {
    use super::super::scene::scenes;
    use super::super::tests::{bench, full, peer, row, sparse};
    use super::*;
    use crate::report::plots::chart::ChartPoint;
    use spattn_lab::bench::Bench;

    fn at(us: f64, row: BenchRow) -> BenchRow {
        BenchRow { time_us: us, ..row }
    }

    fn points<'c>(chart: &'c Chart, panel: usize, name: &str) -> &'c [ChartPoint] {
        let series = chart.series.iter().position(|(known, _)| known == name).unwrap();
        &chart.panels[panel].data[series].points
    }

    fn places(points: &[ChartPoint]) -> Vec<(f64, f64)> {
        points.iter().map(|point| (point.x, point.y)).collect()
    }

    fn two_contexts() -> Bench {
        let narrow = BenchRow { time_low_us: Some(45.0), time_high_us: Some(55.0), ..sparse("quest", 0.1, 4096) };
        bench(vec![
            at(400.0, full(4096)),
            at(50.0, narrow),
            at(30.0, sparse("quest", 0.05, 4096)),
            at(60.0, peer(4096)),
            at(1600.0, full(16384)),
            at(120.0, sparse("quest", 0.1, 16384)),
            at(70.0, sparse("quest", 0.05, 16384)),
            at(240.0, peer(16384)),
        ])
    }

    #[test]
    fn each_density_has_a_panel_with_all_that_is_dense_in_it() {
        let bench = two_contexts();
        let chart = context_chart(&scenes(&bench)[0]);
        assert_eq!(chart.panels.iter().map(|p| p.title.as_str()).collect::<Vec<_>>(), ["density 0.05", "density 0.1"]);
        assert_eq!(places(points(&chart, 0, "quest")), [(4096.0, 30.0), (16384.0, 70.0)]);
        assert_eq!(places(points(&chart, 1, "quest")), [(4096.0, 50.0), (16384.0, 120.0)]);
        assert_eq!(points(&chart, 1, "quest")[0].ends, Some((45.0, 55.0)));
        for panel in [0, 1] {
            assert_eq!(places(points(&chart, panel, "full")), [(4096.0, 400.0), (16384.0, 1600.0)]);
            assert_eq!(places(points(&chart, panel, "torch_sdpa_bf16 (peer)")), [(4096.0, 60.0), (16384.0, 240.0)]);
            let axis = &chart.panels[panel].y;
            assert!(axis.log && axis.low < 30.0 && axis.high > 1600.0);
        }
    }

    #[test]
    fn budgets_in_tokens_have_a_panel_though_they_may_be_all_tokens() {
        let topk = |context| BenchRow { context, density: 4096.0 / context as f64, ..row("topk", "k=4096") };
        let bench = bench(vec![full(4096), topk(4096), full(16384), topk(16384)]);
        let chart = context_chart(&scenes(&bench)[0]);
        assert_eq!(chart.panels.iter().map(|p| p.title.as_str()).collect::<Vec<_>>(), ["budgets of their own"]);
        assert_eq!(points(&chart, 0, "topk").len(), 2);
    }

    #[test]
    fn densities_are_points_and_what_reads_all_is_a_level() {
        let bench = two_contexts();
        let chart = density_chart(&scenes(&bench)[0], &[4096, 16384]);
        assert_eq!(places(points(&chart, 1, "quest")), [(5.0, 70.0), (10.0, 120.0)]);
        assert_eq!((chart.panels[0].level, chart.panels[1].level), (Some(400.0), Some(1600.0)));
        assert!(points(&chart, 1, "full").is_empty());
        let peer = points(&chart, 1, "torch_sdpa_bf16 (peer)");
        assert_eq!(peer.iter().map(|point| point.y).collect::<Vec<_>>(), [240.0, 240.0]);
        assert!(peer[0].x < 5.0 && peer[1].x > 10.0);
    }

    #[test]
    fn budgets_in_tokens_are_points_of_one_line() {
        let topk = |k: usize, us| at(us, BenchRow { density: k as f64 / 4096.0, ..row("topk", &format!("k={k}")) });
        let bench = bench(vec![full(4096), topk(1024, 40.0), topk(256, 20.0)]);
        let scenes = scenes(&bench);
        assert!(against_density(&scenes[0], &scenes).is_some());
        let chart = density_chart(&scenes[0], &[4096]);
        assert_eq!(places(points(&chart, 0, "topk")), [(6.25, 20.0), (25.0, 40.0)]);
    }

    #[test]
    fn what_is_higher_than_a_page_goes_on_in_another_file() {
        let row = |density: usize, context| sparse("quest", density as f64 / 100.0, context);
        let rows = (1..9).flat_map(|density| [row(density, 4096), row(density, 8192)]).collect();
        let bench = bench(rows);
        let scenes = scenes(&bench);
        let figures = against_context(&scenes[0], &scenes).unwrap().unwrap();
        let files: Vec<&str> = figures.iter().map(|figure| figure.file.as_str()).collect();
        assert_eq!(files, ["latency_vs_context.svg", "latency_vs_context-2.svg"], "eight densities, six panels a page");
        assert!(figures[1].title.ends_with("(2 of 2)") && figures[1].svg.contains("density 0.08"));
    }

    #[test]
    fn text_says_what_is_drawn() {
        let bench = two_contexts();
        let scenes = scenes(&bench);
        let context = against_context(&scenes[0], &scenes).unwrap().unwrap();
        let density = against_density(&scenes[0], &scenes).unwrap().unwrap();
        let [context, density] = [&context[0], &density[0]];
        for text in
            ["Time against context: attention, llama3-8b", "\n4K\n", "\n16K\n", "full (dense)", "100 µs", "1 ms"]
        {
            assert!(context.svg.contains(text), "{text}");
        }
        for text in ["16K tokens", "density (% of tokens attended)", "torch_sdpa_bf16 (peer)"] {
            assert!(density.svg.contains(text), "{text}");
        }
    }
}

//! Draws the results of `spattn tune`: loss against budget with the limit as a line, error against density of LSH shapes, and the
//! layers' budgets and errors under each schedule.

use anyhow::Result;

use super::axis::{Axis, tick_label};
use super::chart::{self, Chart, ChartPanel, ChartPoint, Data, LARGE, SMALL};
use super::pen::SeriesLook;
use super::{Figure, paged};
use spattn_lab::tune::schedules::{MeasuredSchedule as Dealt, ScheduleOutcome};
use spattn_lab::tune::shapes::{ShapeOutcome, Target};
use spattn_lab::tune::{BudgetVerdict, CandidateRow, MethodOutcome, TuneOutcome};

/// The pages of the drawing of a search, with a panel for each method; empty if nothing was measured.
///
/// # Errors
/// If the drawing fails, for which text output gives no cause.
pub fn figure(outcome: &TuneOutcome) -> Result<Vec<Figure>> {
    let methods: Vec<&MethodOutcome> = outcome.methods.iter().filter(|method| !method.rows.is_empty()).collect();
    let Some(first) = methods.first() else { return Ok(Vec::new()) };
    let limit = 100.0 * outcome.goal.limit;
    let title = format!("Loss to full by {}", first.parameter);
    let chart = Chart {
        title: title.clone(),
        x_label: first.parameter.clone(),
        y_label: "loss (points)".to_owned(),
        x_tick: tick_label,
        y_tick: tick_label,
        least_panel: if methods.len() > 1 { SMALL } else { LARGE },
        has_roles: false,
        has_level: false,
        notes: Vec::new(),
        panels: methods.iter().map(|method| panel(method, limit)).collect(),
        series: vec![
            (format!("allowed: {}", tick_label(limit)), SeriesLook::Roof),
            ("within".to_owned(), SeriesLook::Method(7, 0)),
            ("beyond".to_owned(), SeriesLook::Method(1, 0)),
            ("not certain".to_owned(), SeriesLook::Oracle(3, 0)),
            ("chosen".to_owned(), SeriesLook::Peer(0)),
        ],
    };
    Ok(paged("tune.svg", &title, chart::pages(&[chart], usize::MAX)?))
}

fn panel(method: &MethodOutcome, limit: f64) -> ChartPanel {
    let point = |row: &CandidateRow| {
        let [y, low, high] = [row.loss, row.low, row.high].map(|share| 100.0 * share);
        ChartPoint { x: row.value, y, ends: Some((low, high)) }
    };
    let of = |is_in: &dyn Fn(&CandidateRow) -> bool| Data {
        points: method.rows.iter().filter(|row| is_in(row)).map(point).collect(),
        line: Vec::new(),
    };
    let x = Axis::of_rates(method.rows.iter().map(|row| row.value));
    let ends = [x.low, x.high].map(|x| ChartPoint { x, y: limit, ends: None });
    let allowed = Data { points: ends.to_vec(), line: vec![0, 1] };
    let chosen = Data {
        points: of(&|row| method.spec.as_ref() == Some(&row.spec)).points.into_iter().map(without_ends).collect(),
        line: Vec::new(),
    };
    let verdict = |verdict: BudgetVerdict| of(&move |row: &CandidateRow| row.verdict == verdict);
    let all = method.rows.iter().map(point);
    let heights = all.flat_map(|point| [point.y].into_iter().chain(point.ends.map(|ends| ends.1)));
    let low = method.rows.iter().map(|row| 100.0 * row.low).fold(0.0, f64::min);
    let heights: Vec<f64> = heights.chain([limit, low]).collect();
    ChartPanel {
        title: method.base.clone(),
        x,
        y: Axis::of_values(&heights),
        level: None,
        focus: None,
        labels: Vec::new(),
        data: vec![
            allowed,
            verdict(BudgetVerdict::Within),
            verdict(BudgetVerdict::Beyond),
            verdict(BudgetVerdict::Open),
            chosen,
        ],
    }
}

/// A point without its interval, which is drawn in the series of its verdict.
fn without_ends(point: ChartPoint) -> ChartPoint {
    ChartPoint { ends: None, ..point }
}

/// Draws the error of shapes against their density: predicted for all, measured for the checked ones, and the target as a line.
///
/// # Errors
/// If the drawing fails, for which text output gives no cause.
pub fn shapes(outcome: &ShapeOutcome) -> Result<Figure> {
    let at = |x: f64, y: f64| ChartPoint { x, y, ends: None };
    let points = |points: Vec<ChartPoint>| Data { points, line: Vec::new() };
    let all: Vec<ChartPoint> = outcome.predicted.iter().map(|p| at(p.density, p.error)).collect();
    let before = outcome.checked.iter().map(|c| at(c.predicted.density, c.predicted.error)).collect();
    let measured: Vec<ChartPoint> = outcome
        .checked
        .iter()
        .map(|c| ChartPoint { ends: c.error.low.zip(c.error.high), ..at(c.density.mean, c.error.mean) })
        .collect();
    let heights = all.iter().chain(&measured).map(|point| point.y);
    let x = Axis::of_rates(all.iter().chain(&measured).map(|point| point.x));
    let y = Axis::of_rates(heights.filter(|y| *y > 1e-4));
    let (ends, name) = match outcome.target {
        Target::Density(density) => ([at(density, y.low), at(density, y.high)], "density asked for"),
        Target::Error(error) => ([at(x.low, error), at(x.high, error)], "error asked for"),
    };
    let chosen = outcome.chosen.map(|at| without_ends(measured[at])).into_iter().collect();
    let title = "Error of the attention output by density".to_owned();
    let chart = Chart {
        title: title.clone(),
        x_label: "share of the context attended".to_owned(),
        y_label: "relative error".to_owned(),
        x_tick: tick_label,
        y_tick: tick_label,
        least_panel: LARGE,
        has_roles: false,
        has_level: false,
        notes: Vec::new(),
        series: vec![
            (name.to_owned(), SeriesLook::Roof),
            ("predicted".to_owned(), SeriesLook::Oracle(1, 0)),
            ("checked: predicted".to_owned(), SeriesLook::Method(1, 0)),
            ("checked: measured".to_owned(), SeriesLook::Method(0, 0)),
            ("chosen".to_owned(), SeriesLook::Peer(0)),
        ],
        panels: vec![ChartPanel {
            title: outcome.base.clone(),
            x,
            y,
            level: None,
            focus: None,
            labels: Vec::new(),
            data: vec![
                Data { points: ends.to_vec(), line: vec![0, 1] },
                points(all),
                points(before),
                points(measured.clone()),
                points(chosen),
            ],
        }],
    };
    Ok(Figure { file: "tune.svg".to_owned(), title, svg: chart.svg()? })
}

/// Draws the budget and error of each layer, by schedule.
///
/// # Errors
/// If the drawing fails, for which text output gives no cause.
pub fn schedules(outcome: &ScheduleOutcome) -> Result<Figure> {
    let title = format!("Budgets and errors by layer: {}", outcome.base);
    let panel = |title: &str, numbers: fn(&Dealt) -> &Vec<f64>| {
        let line = |of: &Dealt| {
            let point = |(layer, y): (&usize, &f64)| ChartPoint { x: *layer as f64, y: *y, ends: None };
            let points: Vec<ChartPoint> = outcome.layers.iter().zip(numbers(of)).map(point).collect();
            Data { line: (0..points.len()).collect(), points }
        };
        let heights = outcome.schedules.iter().flat_map(|of| numbers(of).iter().copied());
        ChartPanel {
            title: title.to_owned(),
            x: Axis::of_values(&outcome.layers.iter().map(|layer| *layer as f64).collect::<Vec<f64>>()),
            y: Axis::from_zero(heights.fold(0.0, f64::max)),
            level: None,
            focus: None,
            labels: Vec::new(),
            data: outcome.schedules.iter().map(line).collect(),
        }
    };
    let name = |(at, of): (usize, &Dealt)| {
        let mark = if at == outcome.chosen { ", chosen" } else { "" };
        (format!("{} (mean error {:.4}{mark})", of.name, of.error.mean), SeriesLook::Method(at, 0))
    };
    let chart = Chart {
        title: title.clone(),
        x_label: "layer".to_owned(),
        y_label: String::new(),
        x_tick: tick_label,
        y_tick: tick_label,
        least_panel: SMALL,
        has_roles: false,
        has_level: false,
        notes: Vec::new(),
        panels: vec![
            panel("budget, multiples of the mean", |of| &of.multiples),
            panel("relative error of the output", |of| &of.errors),
        ],
        series: outcome.schedules.iter().enumerate().map(name).collect(),
    };
    Ok(Figure { file: "tune.svg".to_owned(), title, svg: chart.svg()? })
}

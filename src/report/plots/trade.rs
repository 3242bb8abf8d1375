//! `score_vs_*.svg`: score (or perplexity) against cost, with a panel for each task and a colour for each method.
//!
//! Every measured point is drawn. A line joins those settings of a method that no other setting of it beats at the same or a lower cost
//! (its Pareto front); a note says so if the line leaves out points. Only a measured latency is called one: shares of common steps
//! (`--latency shared`) have no figure. Oracles and floors are hollow and grey, behind the methods: exact `topk` and `topp` show what a
//! search could reach, `oracle_sampling` what sampling could, and `random` what needs no search.

use std::collections::BTreeSet;

use anyhow::Result;

use super::axis::{Axis, tick_label};
use super::chart::{Chart, ChartPanel, ChartPoint, Data, LARGE, SMALL};
use super::links::fetched_bytes;
use super::looks::{legend_name, looks};
use super::pen::SeriesLook;
use super::{Figures, end_of, suffix};
use crate::report::format::{distinct, tokens};
use spattn_attention::Role;
use spattn_eval::summary::columns::SummaryRow;
use spattn_tasks::likelihood::Measure;

/// A cost that scores are plotted against.
struct Cost {
    name: &'static str,
    title: &'static str,
    label: &'static str,
    /// The cost of a row; `None` if it was not counted or measured, so that the row is not drawn.
    of: fn(&SummaryRow) -> Option<f64>,
    /// Whether dense attention has its own position. If it is always at 100 %, that says nothing.
    has_dense: bool,
    /// Whether the cost is a time.
    is_time: bool,
}

impl Cost {
    /// Whether a row is drawn. Times taken under different conditions cannot share an axis, and shares of common steps are no latencies.
    fn is_drawn(&self, row: &SummaryRow) -> bool {
        !self.is_time || (row.is_timed_alone() && !row.is_timed_apart)
    }

    /// Whether the rows have this cost. Bytes and times are those of steps after the prefix, so a text that is read in one pass has none,
    /// not even under `full`.
    fn is_measured(&self, rows: &[&SummaryRow]) -> bool {
        !self.has_dense || rows.iter().any(|r| (self.of)(r).is_some_and(|cost| cost > 0.0))
    }
}

const COSTS: [Cost; 5] = [
    Cost {
        name: "density",
        title: "density",
        label: "density (% of tokens attended)",
        of: |r| Some(100.0 * r.density),
        has_dense: false,
        is_time: false,
    },
    Cost {
        name: "cost",
        title: "FLOPs",
        label: "FLOPs (% of dense attention)",
        of: |r| Some(100.0 * r.cost_total?),
        has_dense: false,
        is_time: false,
    },
    Cost {
        name: "bytes",
        title: "bytes read",
        label: "MB read per token",
        of: |r| Some(r.kv_bytes_per_token? / 1e6),
        has_dense: true,
        is_time: false,
    },
    Cost {
        name: "transfers",
        title: "transfers",
        label: "MB fetched per token",
        of: |r| Some(fetched_bytes(r)? / 1e6),
        has_dense: true,
        is_time: false,
    },
    Cost {
        name: "latency",
        title: "latency",
        label: "latency (ms per token)",
        of: |r| r.decode_ms_per_token,
        has_dense: true,
        is_time: true,
    },
];

/// Draws score with 95 % intervals against density, FLOPs, bytes, transfers and latency: one figure for each measured cost, model, length,
/// protocol and measure, in the order of the rows. `means` are rows of means over tasks, which have their own panel. `full` is a dashed
/// line. If there are several figures, their file names contain what differs. At most `most` pages are drawn for each cost.
///
/// # Errors
/// If the drawing fails, for which text output gives no cause.
pub fn figures(rows: &[SummaryRow], means: &[SummaryRow], most: usize) -> Result<Figures> {
    let scenes = distinct(rows.iter().map(Scene::of));
    let mut figures = Figures::default();
    for cost in &COSTS {
        let mut pages_left = most;
        for scene in &scenes {
            let of_scene = |r: &&SummaryRow| Scene::of(r) == *scene;
            let shown: Vec<&SummaryRow> = means.iter().filter(of_scene).chain(rows.iter().filter(of_scene)).collect();
            let shown: Vec<&SummaryRow> = shown.into_iter().filter(|r| cost.is_drawn(r)).collect();
            let known: Vec<&SummaryRow> = shown.iter().copied().filter(|r| (cost.of)(r).is_some()).collect();
            let is_of_dense_alone =
                !cost.has_dense && known.len() < shown.len() && known.iter().all(|r| r.is_reference());
            let shown = known;
            if is_of_dense_alone || !cost.is_measured(&shown) {
                continue;
            }
            let file = scene.file_name(&format!("vs_{}", cost.name), &scenes);
            let mut drawn = Figures::up_to(pages_left);
            if drawn.is_full(&file) {
                figures.take(drawn);
                continue;
            }
            let (all, of_each) = (chart(scene, cost, &shown), by_method(scene, cost, &shown));
            let file_of_each = scene.file_name("of_each", &scenes);
            let all = if of_each.is_some() { without_crowd(all, &file_of_each) } else { all };
            drawn.charts(&file, &[all], true)?;
            if let Some(chart) = of_each.filter(|_| cost.name == "density") {
                let mut each = Figures::up_to(drawn.pages_left);
                each.charts(&file_of_each, &[chart], true)?;
                drawn.pages_left = each.pages_left;
                drawn.take(each);
            }
            pages_left = drawn.pages_left;
            if figures.first.is_empty() { figures.take(drawn) } else { figures.take_behind(drawn) }
        }
    }
    Ok(figures)
}

/// What the panels of a figure have in common.
#[derive(Clone, Copy, PartialEq)]
struct Scene<'a> {
    model: &'a str,
    length: usize,
    protocol: &'a str,
    measure: Measure,
}

impl<'a> Scene<'a> {
    fn of(r: &'a SummaryRow) -> Self {
        Self { model: &r.model, length: r.length, protocol: &r.protocol, measure: r.measure }
    }

    fn title(&self, cost: &Cost) -> String {
        let length = if self.length > 0 { format!(", {} tokens", tokens(self.length)) } else { String::new() };
        let what = super::measure_title(self.measure);
        format!("{what} against {}: {}{length}, sparse from {}", cost.title, end_of(self.model), self.protocol)
    }

    fn file_name(&self, what: &str, all: &[Scene]) -> String {
        let all: Vec<&Scene> = all.iter().filter(|s| s.measure == self.measure).collect();
        let suffix = suffix(&[
            (all.iter().any(|s| s.model != self.model), self.model),
            (all.iter().any(|s| s.length != self.length), &self.length.to_string()),
            (all.iter().any(|s| s.protocol != self.protocol), self.protocol),
        ]);
        format!("{}_{what}{suffix}.svg", self.measure.name())
    }
}

fn chart(scene: &Scene, cost: &Cost, rows: &[&SummaryRow]) -> Chart {
    let is_shown = |r: &SummaryRow| cost.has_dense || !r.is_reference();
    let methods = distinct(rows.iter().filter(|r| is_shown(r)).map(|r| r.method.as_str()));
    // Oracles and floors come first, so that they are drawn below the others.
    let is_beside = |method: &&str| matches!(Role::of(method), Role::Oracle | Role::Floor);
    let (beside, others): (Vec<&str>, Vec<&str>) = methods.into_iter().partition(is_beside);
    let methods: Vec<&str> = beside.into_iter().chain(others).collect();
    let is_clear = methods.iter().filter(|method| Role::of(method) == Role::Method).count() < MANY;
    let x = || Axis::of_costs(&rows.iter().filter(|r| is_shown(r)).filter_map(|r| (cost.of)(r)).collect::<Vec<_>>());
    let panels = distinct(rows.iter().map(|r| r.task.as_str())).into_iter().map(|task| {
        let of_task: Vec<&SummaryRow> = rows.iter().copied().filter(|r| r.task == task).collect();
        let of_method = |method: &&str| data(of_task.iter().copied().filter(|r| r.method == **method), cost);
        ChartPanel {
            title: task.to_owned(),
            x: x(),
            y: super::score_axis(scene.measure, rows, &of_task),
            level: of_task.iter().find(|r| r.is_reference()).map(|r| r.score),
            focus: None,
            labels: if is_clear { named(&methods, &of_task, cost) } else { Vec::new() },
            data: methods.iter().map(of_method).collect(),
        }
    });
    let panels: Vec<ChartPanel> = panels.collect();
    Chart {
        title: scene.title(cost),
        notes: notes(scene, &panels, rows),
        x_label: cost.label.to_owned(),
        y_label: super::measure_label(scene.measure).to_owned(),
        x_tick: tick_label,
        y_tick: tick_label,
        least_panel: SMALL,
        has_roles: true,
        has_level: rows.iter().any(|r| r.is_reference()),
        panels,
        series: methods.iter().map(|m| legend_name(m)).zip(looks(&methods)).collect(),
    }
}

/// Notes on lines that leave out points, and on missing intervals.
fn notes(scene: &Scene, panels: &[ChartPanel], rows: &[&SummaryRow]) -> Vec<String> {
    let mut data = panels.iter().flat_map(|panel| &panel.data);
    let passes_by = data.any(|data| data.line.len() < data.points.len());
    let front = passes_by.then_some(FRONT_NOTE);
    let is_unknown = |row: &&&SummaryRow| row.ci_low.is_none();
    let unknown = rows.iter().filter(is_unknown).count();
    let what = super::measure_title(scene.measure).to_lowercase();
    let bars = match unknown {
        0 => format!("bars: 95 % intervals of the {what}"),
        n if n == rows.len() => {
            format!("no bars: all examples ask about one context, so no interval of the {what} is known")
        }
        _ => format!("bars: 95 % intervals of the {what}, where there is more than one context"),
    };
    front.map(str::to_owned).into_iter().chain([bars]).collect()
}

const FRONT_NOTE: &str =
    "lines: settings that no other of the method beats at the same or a lower cost; all measured points are drawn";

/// Enlarges the chart and removes its intervals if these would cover too much. The title then names the file that has them.
fn without_crowd(mut chart: Chart, file_of_each: &str) -> Chart {
    let methods = chart.series.iter().filter(|(_, look)| matches!(look, SeriesLook::Method(..))).count();
    if methods < CROWD {
        return chart;
    }
    let points = chart.panels.iter_mut().flat_map(|panel| &mut panel.data).flat_map(|data| &mut data.points);
    points.for_each(|point| point.ends = None);
    chart.notes.retain(|note| note == FRONT_NOTE);
    Chart { title: format!("{} (intervals: {file_of_each})", chart.title), least_panel: LARGE, ..chart }
}

/// From this many methods on, lines in one panel are hard to follow.
const MANY: usize = 5;
/// From this many methods on, intervals in one panel cover too much.
const CROWD: usize = 10;

/// A chart with a panel for each method, which is drawn in front of the others and has labels on its points, for the mean over tasks or the
/// only task. `None` if one panel for all is clear enough.
fn by_method(scene: &Scene, cost: &Cost, rows: &[&SummaryRow]) -> Option<Chart> {
    let first = rows.first()?;
    let rows: Vec<&SummaryRow> = rows.iter().copied().filter(|r| r.task == first.task).collect();
    let all = chart(scene, cost, &rows);
    let (all_methods, panel) = (&all.series, all.panels.into_iter().next()?);
    let of = |method: &str| rows.iter().copied().filter(|r| r.method == method).collect::<Vec<_>>();
    let shown: Vec<usize> =
        (0..all_methods.len()).filter(|i| matches!(all_methods[*i].1, SeriesLook::Method(..))).collect();
    let has_settings = shown.iter().any(|i| of(&all_methods[*i].0).len() > 1);
    if shown.len() < MANY || !has_settings {
        return None;
    }
    let mut panels = Vec::new();
    for series in shown {
        let method = &all_methods[series].0;
        let rows = of(method);
        let named = differing(&rows, false);
        let labels = rows.iter().map(|row| joined(row, &named, |_, value| value.to_owned())).collect();
        let names = named.join(", ");
        panels.push(ChartPanel {
            title: if names.is_empty() { method.clone() } else { format!("{method}: {names}") },
            x: panel.x.clone(),
            y: panel.y.clone(),
            level: panel.level,
            focus: Some(series),
            labels: vec![(series, labels)],
            data: panel.data.clone(),
        });
    }
    Some(Chart {
        title: format!("Each method: {}, {}", first.task, scene.title(cost)),
        least_panel: OF_ONE,
        panels,
        ..all
    })
}

/// The size of a panel for one method.
const OF_ONE: (i32, i32) = (330, 250);

/// The labels of the points of methods with several settings, by the method's index. A label names its parameters if it has several, or if
/// the label before it has a different one.
fn named(methods: &[&str], of_task: &[&SummaryRow], cost: &Cost) -> Vec<(usize, Vec<String>)> {
    let of_method = |(i, method): (usize, &&str)| {
        let rows: Vec<&SummaryRow> = of_task.iter().copied().filter(|r| r.method == **method).collect();
        let keys = differing(&rows, cost.name != "density");
        let own =
            |row: &SummaryRow| keys.iter().copied().filter(|key| row.settings.contains_key(*key)).collect::<Vec<_>>();
        let label = |at: usize| {
            // A label with several values names each; one with a single value names it only at the start of a run of equal parameters.
            let is_new = own(rows[at]).len() > 1 || at == 0 || own(rows[at]) != own(rows[at - 1]);
            joined(rows[at], &keys, |key, value| if is_new { format!("{key}={value}") } else { value.to_owned() })
        };
        (!keys.is_empty()).then(|| (i, (0..rows.len()).map(label).collect()))
    };
    methods.iter().enumerate().filter_map(of_method).collect()
}

/// The parameters in which a method's rows differ, or that only some rows have. The density counts only if no axis shows it.
fn differing<'a>(rows: &[&'a SummaryRow], with_density: bool) -> Vec<&'a str> {
    let keys: BTreeSet<&str> = rows.iter().flat_map(|row| row.settings.keys().map(String::as_str)).collect();
    let differs = |key: &&str| {
        (with_density || *key != "density")
            && rows.iter().any(|row| row.settings.get(*key) != rows[0].settings.get(*key))
    };
    keys.into_iter().filter(differs).collect()
}

/// A row's values of some parameters, as a label.
fn joined(row: &SummaryRow, keys: &[&str], shown: impl Fn(&str, &str) -> String) -> String {
    let values = keys.iter().filter_map(|key| Some(shown(key, row.settings.get(*key)?)));
    values.collect::<Vec<_>>().join(", ")
}

/// The points of a method, and the line through its Pareto front.
fn data<'a>(rows: impl Iterator<Item = &'a SummaryRow>, cost: &Cost) -> Data {
    let rows: Vec<&SummaryRow> = rows.collect();
    let points: Vec<ChartPoint> = rows
        .iter()
        .filter_map(|r| Some(ChartPoint { x: (cost.of)(r)?, y: r.score, ends: r.ci_low.zip(r.ci_high) }))
        .collect();
    let less_is_better = rows.first().is_some_and(|r| r.measure == Measure::Perplexity);
    Data { line: front(&points, less_is_better), points }
}

/// The indices of the points that are better than all cheaper ones, from left to right.
fn front(points: &[ChartPoint], less_is_better: bool) -> Vec<usize> {
    let merit = |i: usize| if less_is_better { -points[i].y } else { points[i].y };
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by(|a, b| points[*a].x.total_cmp(&points[*b].x).then(merit(*b).total_cmp(&merit(*a))));
    let mut best = f64::NEG_INFINITY;
    order.retain(|i| {
        let better = merit(*i) > best;
        best = best.max(merit(*i));
        better
    });
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::plots::Figure;
    use spattn_eval::records::record::Record;
    use spattn_eval::records::testing::{perplexity, record};
    use spattn_eval::records::timing::{Latency, Solo, TimingConditions};
    use spattn_eval::summary::summarize::summarize;

    /// The figures of records: those to look at first, then the others.
    fn drawn(records: &[Record]) -> Vec<Figure> {
        figures(&summarize(records, &[]), &[], 99).unwrap().drawn().cloned().collect()
    }

    fn files(figures: &[Figure]) -> Vec<&str> {
        figures.iter().map(|f| f.file.as_str()).collect()
    }

    #[test]
    fn a_figure_names_its_tasks_and_methods_and_is_the_same_twice() {
        let records = [("ruler/vt", "full", 1.0), ("ruler/vt", "topk", 0.5), ("ruler/cwe", "quest", 0.5)]
            .map(|(task, method, score)| record(task, method, 0, score));
        let figures = drawn(&records);
        let names = ["score_vs_density.svg", "score_vs_cost.svg", "score_vs_bytes.svg"];
        assert_eq!(files(&figures), names);
        for text in ["ruler/vt", "ruler/cwe", "quest", "topk (oracle)", "full (dense)", "builtin, 4K tokens"] {
            assert!(figures[0].svg.contains(text), "{text}");
        }
        assert_eq!(drawn(&records), figures);
    }

    #[test]
    fn only_measured_latencies_have_a_figure_of_latency() {
        let timed = |method: &str, latency: Option<Latency>, score: f64| {
            let solo = (latency == Some(Latency::Solo)).then(|| Solo { steps: 2, ms: vec![1.5, 1.5].into() });
            let (together, threads, simd) = (1, 2, "avx2".to_owned());
            let conditions = TimingConditions {
                fidelity: false,
                together,
                latency,
                threads,
                simd,
                cpu: None,
                gpu: None,
                select_on: None,
                kv: None,
            };
            Record {
                solo: solo.map(Box::new),
                conditions: Some(conditions.into()),
                ..record("ruler/vt", method, 0, score)
            }
        };
        let of = |latency| drawn(&[timed("full", latency, 1.0), timed("quest", latency, 0.5)]);
        for shared in [None, Some(Latency::Shared)] {
            assert!(of(shared).iter().all(|f| !f.title.contains("latency") && !f.file.contains("latency")));
        }
        let solo = of(Some(Latency::Solo));
        let figure = solo.iter().find(|figure| figure.file == "score_vs_latency.svg").unwrap();
        assert!(
            figure.title.starts_with("Score against latency: builtin") && figure.svg.contains("latency (ms per token")
        );
    }

    #[test]
    fn only_caches_outside_memory_have_a_figure_of_transfers() {
        use spattn_eval::records::costs::FetchedBytes;
        let of = |method: &str, disk: f64, score: f64| {
            let fetched = FetchedBytes { memory: 0.0, disk, bus: None };
            Record { fetched_per_token: Some(fetched.into()), ..record("ruler/vt", method, 0, score) }
        };
        let figures = drawn(&[of("full", 8e6, 1.0), of("quest", 1e6, 0.5)]);
        let figure = figures.iter().find(|figure| figure.file == "score_vs_transfers.svg").unwrap();
        assert!(figure.title.starts_with("Score against transfers: builtin"), "{}", figure.title);
        assert!(figure.svg.contains("MB fetched per token"));
        let in_memory = drawn(&[record("ruler/vt", "full", 0, 1.0), record("ruler/vt", "quest", 0, 0.5)]);
        assert!(in_memory.iter().all(|figure| !figure.file.contains("transfers")));
    }

    #[test]
    fn lines_that_pass_points_by_and_missing_intervals_are_said() {
        let at = |k: usize, score: f64, sample: usize| Record {
            params: format!("k={k}").into(),
            key: format!("{k} {sample}"),
            density: k as f64 / 100.0,
            ..record("ruler/vt", "quest", sample, score)
        };
        let says = |records: &[Record], what: &str| drawn(records)[0].svg.contains(what);
        let rising = [at(5, 0.0, 0), at(20, 0.5, 0), at(40, 0.75, 0)];
        assert!(!says(&rising, FRONT_NOTE), "the line goes through all points");
        let falling = [at(5, 0.25, 0), at(20, 0.0, 0), at(40, 0.75, 0)];
        assert!(says(&falling, &FRONT_NOTE[..40]) && says(&falling, "no bars: all examples ask about one context"));
        let many: Vec<Record> = (0..8).flat_map(|i| [at(5, 0.25, i), at(20, 0.75, i)]).collect();
        assert!(says(&many, "bars: 95 % intervals of the score") && !says(&many, "no bars"));
    }

    #[test]
    fn texts_read_in_one_pass_have_no_steps_to_be_set_against() {
        let value = |method| if method == "full" { 2.0 } else { 3.0 };
        let read = |method| Record { kv_bytes_per_token: None, decode_s: 0.0, ..perplexity(method, 0, value(method)) };
        let names = ["perplexity_vs_density.svg", "perplexity_vs_cost.svg"];
        assert_eq!(files(&drawn(&[read("full"), read("hip")])), names);
        let with_steps = [perplexity("full", 0, 2.0), perplexity("quest", 0, 2.5), read("hip")];
        let figures = drawn(&with_steps);
        assert_eq!(files(&figures), [names[0], names[1], "perplexity_vs_bytes.svg"], "where some have steps");
        let shows_hip: Vec<bool> = figures.iter().map(|figure| figure.svg.contains("\nhip\n")).collect();
        assert_eq!(shows_hip, [true, true, false], "no bytes were counted for it");
    }

    #[test]
    fn several_figures_say_in_their_names_what_differs() {
        let base = [record("ruler/vt", "full", 0, 1.0), record("ruler/vt", "topk", 0, 0.5)];
        let longer = base.clone().map(|r| Record { length: 8192, ..r });
        let other = base.clone().map(|r| Record { model: "org/model@v1".into(), ..r });
        let records = [base, longer, other].concat();
        assert_eq!(
            files(&drawn(&records))[..3],
            [
                "score_vs_density_builtin_4096.svg",
                "score_vs_density_builtin_8192.svg",
                "score_vs_density_org-model-v1_4096.svg"
            ]
        );
    }

    #[test]
    fn perplexities_have_figures_and_axes_of_their_own() {
        let scores = [record("ruler/vt", "topk", 0, 0.5), record("ruler/vt", "full", 0, 1.0)];
        let records = [&scores[..], &[perplexity("full", 0, 2.0), perplexity("topk", 0, 6.0)]].concat();
        let figures = drawn(&records);
        assert_eq!(files(&figures)[..2], ["perplexity_vs_density.svg", "score_vs_density.svg"]);
        assert!(figures[0].svg.contains("perplexity (less is better)") && !figures[0].svg.contains("ruler/vt"));
        let other = Record { task: "ppl/other".into(), ..perplexity("topk", 0, 5.0) };
        let rows = summarize(&[perplexity("topk", 0, 2.0), other], &[]);
        let chart = chart(&Scene::of(&rows[0]), &COSTS[0], &rows.iter().collect::<Vec<_>>());
        assert!(chart.panels[0].y.low > chart.panels[1].y.high, "each text has its own axis");
    }

    #[test]
    fn many_methods_have_a_panel_each_with_their_settings_named() {
        let set = |method: &str, density: f64| Record {
            params: format!("k={},density={density},per=kv_head", 616.0 * density).into(),
            density,
            key: format!("{method}{density}"),
            ..record("ruler/vt", method, 0, 4.0 * density)
        };
        let of = |methods: &[&str]| -> Vec<Record> {
            let sparse = methods.iter().flat_map(|method| [set(method, 0.125), set(method, 0.25)]);
            sparse.chain([record("ruler/vt", "full", 0, 1.0), record("ruler/vt", "topk", 0, 1.0)]).collect()
        };
        let few = drawn(&of(&["quest", "loki", "sparq", "hip"]));
        assert!(few.iter().all(|figure| figure.file != "score_of_each.svg"));
        assert!(
            few[0].svg.contains("\nk=77\n") && few[0].svg.contains("\n154\n") && !few[0].svg.contains("0.125"),
            "points of few methods have names"
        );
        let dense = few.iter().find(|figure| figure.file == "score_vs_cost.svg").unwrap();
        assert!(dense.svg.contains("\ndensity=0.125, k=77\n"), "the density too, where the axis does not tell it");
        let many = drawn(&of(&["quest", "loki", "sparq", "hip", "tova"]));
        let each = many.iter().find(|figure| figure.file == "score_of_each.svg").unwrap();
        for method in ["quest", "loki", "sparq", "hip", "tova"] {
            assert!(each.svg.contains(&format!("{method}: k\n")), "{method}");
        }
        assert_eq!(each.svg.matches(">\n77\n").count(), 5, "each names its point");
        // In each of the five panels the lines of the other methods are faint, and no others are.
        let faint = |figure: &Figure| figure.svg.matches("#CDCDCD").count();
        assert!(faint(each) >= 5 * 4 && few.iter().all(|figure| faint(figure) == 0), "{}", faint(each));
        for part in ["the other methods", "topk (oracle)", "Each method: ruler/vt, Score against density"] {
            assert!(each.svg.contains(part), "{part}");
        }
        assert!(
            !each.svg.contains("kv_head") && !each.svg.contains("0.125"),
            "nor what all have, nor what the axis tells"
        );
    }

    #[test]
    fn settings_by_other_parameters_have_labels_too() {
        let set = |params: &str, density: f64| Record {
            params: params.into(),
            key: params.into(),
            density,
            ..record("ruler/vt", "magicpig", 0, density)
        };
        let rows =
            [("density=0.1", 0.1), ("density=0.2", 0.2), ("K=8,L=75", 0.3), ("K=8,L=150", 0.4), ("K=9,L=75", 0.5)];
        let figures = drawn(&rows.map(|(params, density)| set(params, density)));
        let [by_density, by_cost] = [&figures[0].svg, &figures[1].svg];
        assert!(by_density.contains("\nK=8, L=75\n") && by_density.contains("\nK=8, L=150\n"), "{by_density}");
        assert!(!by_density.contains("density=0.1"), "which the axis tells");
        // A point without a label has no hairline, which would be a line of two points that ends beside a label.
        let is_short = |line: &str| {
            let Some((_, points)) = line.split_once("points=\"") else { return false };
            let numbers: Vec<i32> =
                points.split(['"', ' ', ',']).take(4).filter_map(|number| number.parse().ok()).collect();
            matches!(numbers[..], [a, b, c, d] if (a - c).abs() <= 8 && (b - d).abs() <= 9 && a != c && b != d)
        };
        let hairlines = by_density.lines().filter(|line| line.contains("<polyline") && is_short(line)).count();
        assert_eq!(hairlines, 3, "{by_density}");
        let rows = summarize(&rows.map(|(params, density)| set(params, density)), &[]);
        let rows: Vec<&SummaryRow> = rows.iter().collect();
        assert_eq!(differing(&rows, true), ["K", "L", "density"]);
        assert!(by_cost.contains("FLOPs (% of dense attention)"));
    }

    #[test]
    fn what_would_be_one_number_is_left_out() {
        assert!(drawn(&[]).is_empty());
        for (method, density) in [("full", 1.0), ("topk", 0.0), ("topk", 1.0)] {
            let of = figures(&summarize(&[Record { density, ..record("vt", method, 0, 0.0) }], &[]), &[], 99).unwrap();
            assert_eq!((of.drawn().count(), of.left_out.len()), (0, 3));
            assert_eq!(of.left_out[0], ("score_vs_density.svg".to_owned(), "0".to_owned()));
        }
        let of = |method, density, score| Record {
            density,
            key: format!("{method}{density}"),
            params: format!("k={density}").into(),
            ..record("vt", method, 0, score)
        };
        assert_eq!(
            files(&drawn(&[of("topk", 0.1, 1.0), of("topk", 0.2, 1.0)]))[0],
            "score_vs_density.svg",
            "at two densities"
        );
        assert_eq!(
            files(&drawn(&[of("full", 1.0, 1.0), of("topk", 0.2, 0.5)]))[0],
            "score_vs_density.svg",
            "two scores"
        );
    }

    #[test]
    fn the_front_leaves_out_what_is_beaten_at_less_cost() {
        let point = |x: f64, y: f64| ChartPoint { x, y, ends: Some((y, y)) };
        let points = [point(3.0, 80.0), point(1.0, 50.0), point(2.0, 40.0), point(4.0, 80.0)];
        assert_eq!(front(&points, false), [1, 0]);
        assert_eq!(front(&points, true), [1, 2]);
    }
}

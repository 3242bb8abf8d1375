//! `score_vs_length.svg`: scores by length, with a panel for each task and a line for each setting of a method.

use anyhow::Result;

use super::axis::{Axis, tick_label};
use super::chart::{Chart, ChartPanel, ChartPoint, Data, SMALL};
use super::looks::{MOST_SETTINGS, looks, setting_names};
use super::{Figures, end_of, suffix};
use crate::report::format::{distinct, tokens};
use spattn_eval::records::record::is_reference;
use spattn_eval::summary::columns::SummaryRow;

/// One figure for each model, protocol and measure with rows at several lengths, with at most `most` pages in total. `means` are as
/// for [`trade::figures`](super::trade::figures). If there are several figures, their file names contain what differs.
///
/// # Errors
/// If the drawing fails, for which text output gives no cause.
pub fn figures(rows: &[SummaryRow], means: &[SummaryRow], most: usize) -> Result<Figures> {
    let scene = |r: &SummaryRow| (r.model.clone(), r.protocol.clone(), r.measure);
    let scenes = distinct(rows.iter().filter(|r| r.length > 0).map(scene));
    let mut figures = Figures::up_to(most);
    for at in &scenes {
        let shown: Vec<&SummaryRow> = means.iter().chain(rows).filter(|r| r.length > 0 && scene(r) == *at).collect();
        let charts: Vec<Chart> = together(&shown).iter().map(|of| chart(of, &shown)).collect();
        let (model, protocol, measure) = at;
        let alike = || scenes.iter().filter(|s| s.2 == *measure);
        let suffix = suffix(&[(alike().any(|s| s.0 != *model), model), (alike().any(|s| s.1 != *protocol), protocol)]);
        if charts.iter().flat_map(|chart| &chart.panels).any(|panel| panel.x.ticks.len() > 1) {
            figures.charts(&format!("{}_vs_length{suffix}.svg", measure.name()), &charts, false)?;
        }
    }
    Ok(figures)
}

/// The rows of each page: some of the settings, and dense attention on every page.
fn together<'a>(rows: &[&'a SummaryRow]) -> Vec<Vec<&'a SummaryRow>> {
    let settings = distinct(rows.iter().filter(|r| !r.is_reference()).map(|r| (&r.method, &r.params)));
    let of = |some: &[(&String, &String)]| {
        let is_here = |r: &&&SummaryRow| r.is_reference() || some.contains(&(&r.method, &r.params));
        rows.iter().filter(is_here).copied().collect::<Vec<_>>()
    };
    if settings.is_empty() { vec![rows.to_vec()] } else { settings.chunks(MOST_SETTINGS).map(of).collect() }
}

/// The chart of `rows`, of which there is at least one. The axes fit `all`.
fn chart(rows: &[&SummaryRow], all: &[&SummaryRow]) -> Chart {
    let settings = distinct(rows.iter().map(|r| (r.method.as_str(), r.params.as_str())));
    let methods: Vec<&str> = settings.iter().map(|(method, _)| *method).collect();
    let (names, note) = setting_names(&settings);
    let series = names.into_iter().zip(looks(&methods)).collect();
    let mut lengths = distinct(all.iter().map(|r| r.length));
    lengths.sort_unstable();
    let panels = distinct(rows.iter().map(|r| r.task.as_str())).into_iter().map(|task| {
        let of_task: Vec<&SummaryRow> = rows.iter().copied().filter(|r| r.task == task).collect();
        let all_of_task: Vec<&SummaryRow> = all.iter().copied().filter(|r| r.task == task).collect();
        let data = |(method, params): &(&str, &str)| {
            let mut of: Vec<&&SummaryRow> =
                of_task.iter().filter(|r| r.method == *method && r.params == *params).collect();
            of.sort_by_key(|r| r.length);
            let point = |r: &&&SummaryRow| ChartPoint { x: r.length as f64, y: r.score, ends: r.ci_low.zip(r.ci_high) };
            Data { points: of.iter().map(point).collect(), line: (0..of.len()).collect() }
        };
        ChartPanel {
            title: task.to_owned(),
            x: Axis::of_lengths(&lengths),
            y: super::score_axis(rows[0].measure, all, &all_of_task),
            level: None,
            focus: None,
            labels: Vec::new(),
            data: settings.iter().map(data).collect(),
        }
    });
    Chart {
        title: format!(
            "{} against length: {}, sparse from {}",
            super::measure_title(rows[0].measure),
            end_of(&rows[0].model),
            rows[0].protocol
        ),
        x_label: "length (tokens)".to_owned(),
        y_label: super::measure_label(rows[0].measure).to_owned(),
        x_tick: |tick| tokens(tick as usize),
        y_tick: tick_label,
        least_panel: SMALL,
        has_roles: true,
        has_level: settings.iter().any(|(method, params)| is_reference(method, params)),
        panels: panels.collect(),
        series,
        notes: note.into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::records::record::Record;
    use spattn_eval::records::testing::record;
    use spattn_eval::summary::summarize::summarize;

    #[test]
    fn lengths_need_to_differ() {
        let at = |length, params: &str| Record {
            length,
            params: params.into(),
            key: format!("{length}{params}"),
            ..record("ruler/vt", "topk", 0, 0.5)
        };
        let drawn = |records: &[Record]| figures(&summarize(records, &[]), &[], 99).unwrap();
        assert_eq!(drawn(&[at(1024, "k=8")]), Figures::up_to(99));
        let flat = [at(1024, "k=8"), at(4096, "k=8"), at(4096, "k=16")];
        assert_eq!(drawn(&flat).left_out, [("score_vs_length.svg".to_owned(), "50".to_owned())]);
        let [short, long, wide] = flat;
        let figures = drawn(&[short, long, Record { score: 1.0, ..wide }]).first;
        assert_eq!(figures.iter().map(|f| f.file.as_str()).collect::<Vec<_>>(), ["score_vs_length.svg"]);
        for text in ["\n1K\n", "\n4K\n", "topk k=8 (oracle)", "topk k=16 (oracle)"] {
            assert!(figures[0].svg.contains(text), "{text}");
        }
    }
    #[test]
    fn many_settings_are_on_several_pages_with_dense_attention_on_each() {
        let at = |length, method: &str, k: usize| Record {
            length,
            // Dense attention has no parameters.
            params: if method == "full" { String::new() } else { format!("k={k}") }.into(),
            key: format!("{method}{length}{k}"),
            ..record("ruler/vt", method, 0, k as f64 / 100.0)
        };
        let of = |length| (0..50).map(move |k| at(length, "quest", k)).chain([at(length, "full", 100)]);
        let records: Vec<Record> = of(1024).chain(of(2048)).collect();
        let all = figures(&summarize(&records, &[]), &[], 99).unwrap();
        assert_eq!((all.first.len(), all.others.len()), (1, 2));
        assert_eq!(all.others[1].file, "score_vs_length-3.svg");
        let named = |k: usize| all.drawn().filter(|f| f.svg.contains(&format!("\nquest k={k}\n"))).count();
        assert!((0..50).all(|k| named(k) == 1) && all.drawn().all(|f| f.svg.contains("full (dense)")));
        let ticks = |f: &&super::super::Figure| ["\n0\n", "\n100\n"].iter().all(|tick| f.svg.contains(tick));
        assert_eq!(all.drawn().filter(ticks).count(), 3, "one axis for all");
    }
}

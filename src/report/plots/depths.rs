//! `plots/depth_*.svg` and `depths.csv`: scores by length and depth, for tasks that set where in the context the answer lies.
//!
//! A figure shows a task under a protocol, with a panel for each method: lengths go from left to right, depths from top to bottom.

use std::collections::BTreeMap;

use anyhow::Result;

use super::axis::tick_label;
use super::grid::{Grid, GridPanel, Scale};
use super::{Figures, as_file_name, end_of, suffix};
use crate::report::csv::finished;
use crate::report::format::{distinct, tokens};
use crate::report::parameters::ShownParams;
use spattn_eval::records::order::{MethodOrder, compare_tasks, natural};
use spattn_eval::records::record::Record;

/// The mean score of one method at one length and depth.
#[derive(Debug, Clone, PartialEq)]
pub struct DepthScore {
    /// The model's id.
    pub model: String,
    /// The task's full name.
    pub task: String,
    /// Where sparse attention starts.
    pub protocol: String,
    /// The requested length in tokens; 0 if the number of records or a file determines it.
    pub length: usize,
    /// How much of the context precedes the answer, in percent.
    pub depth: f64,
    /// The method's name without parameters.
    pub method: String,
    /// The parameters in canonical form.
    pub params: String,
    /// The number of examples.
    pub n: usize,
    /// The mean score in percent.
    pub score: f64,
    /// The mean number of tokens of the prompt.
    pub prompt_tokens: f64,
}

impl DepthScore {
    fn figure(&self) -> (&str, &str, &str) {
        (&self.model, &self.task, &self.protocol)
    }

    fn method(&self) -> (&str, &str) {
        (&self.method, &self.params)
    }
}

/// The cells of all records that have a depth, one for each (model, task, protocol, method, params, length, depth), in this order.
/// Methods are in the summary's order, for which `order` is as there. Records that repeat an example count once.
pub fn cells(records: &[Record], order: &[(String, String)]) -> Vec<DepthScore> {
    let mut groups: BTreeMap<_, BTreeMap<(u64, usize), &Record>> = BTreeMap::new();
    for r in records {
        let Some(depth) = r.depth else { continue };
        // Percentages are not negative, so their bits are in the same order.
        let key = (&r.model, &r.task, &r.protocol, &r.method, &r.params, r.length, depth.to_bits());
        let kept = groups.entry(key).or_default().entry((r.seed, r.sample)).or_insert(r);
        if r.key < kept.key {
            *kept = r;
        }
    }
    let mut cells: Vec<DepthScore> =
        groups.into_values().map(|examples| cell(examples.into_values().collect())).collect();
    let given = MethodOrder::of(order);
    let place = |c: &DepthScore| given.rank(&c.method, &c.params);
    cells.sort_by(|a, b| {
        natural(&a.model, &b.model)
            .then_with(|| compare_tasks(&a.task, &b.task))
            .then_with(|| natural(&a.protocol, &b.protocol))
            .then_with(|| place(a).cmp(&place(b)))
            .then_with(|| natural(&a.method, &b.method).then_with(|| natural(&a.params, &b.params)))
            .then_with(|| a.length.cmp(&b.length))
            .then_with(|| a.depth.total_cmp(&b.depth))
    });
    cells
}

/// The cell of some examples, of which there is at least one.
fn cell(examples: Vec<&Record>) -> DepthScore {
    let n = examples.len();
    let mean = |of: fn(&Record) -> f64| examples.iter().map(|r| of(r)).sum::<f64>() / n as f64;
    let head = examples[0];
    DepthScore {
        model: head.model.to_string(),
        task: head.task.to_string(),
        protocol: head.protocol.to_string(),
        length: head.length,
        depth: head.depth.unwrap_or_default(),
        method: head.method.to_string(),
        params: head.params.to_string(),
        n,
        score: 100.0 * mean(|r| r.score),
        prompt_tokens: mean(|r| r.prompt_tokens as f64),
    }
}

/// Renders `depths.csv`: a line for each cell, below a heading line.
///
/// # Errors
/// None in practice; the CSV writer's signature has one.
pub fn csv(cells: &[DepthScore]) -> Result<String> {
    let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
    writer.write_record(["model", "task", "length", "depth", "method", "params", "protocol", "n", "score"])?;
    for c in cells {
        let (length, depth, n) = (c.length.to_string(), c.depth.to_string(), c.n.to_string());
        let score = format!("{:.4}", c.score);
        writer.write_record([&c.model, &c.task, &length, &depth, &c.method, &c.params, &c.protocol, &n, &score])?;
    }
    finished(writer)
}

/// One figure for each model, task and protocol, with at most `most` pages in total. If there are several figures, their file names
/// contain what differs.
///
/// # Errors
/// If the drawing fails, for which text output gives no cause.
pub fn figures(cells: &[DepthScore], most: usize) -> Result<Figures> {
    let all: Vec<_> = distinct(cells.iter().map(DepthScore::figure));
    let mut figures = Figures::up_to(most);
    for &(model, task, protocol) in &all {
        let suffix =
            suffix(&[(all.iter().any(|f| f.0 != model), model), (all.iter().any(|f| f.2 != protocol), protocol)]);
        let file = format!("depth_{}{suffix}.svg", as_file_name(task));
        if figures.is_full(&file) {
            continue;
        }
        let shown: Vec<&DepthScore> = cells.iter().filter(|c| c.figure() == (model, task, protocol)).collect();
        figures.grid(&file, &grid(&shown))?;
    }
    Ok(figures)
}

/// The heat map of some cells, of which there is at least one.
fn grid(cells: &[&DepthScore]) -> Grid {
    let (model, task, protocol) = cells[0].figure();
    let mut lengths = distinct(cells.iter().map(|c| c.length));
    lengths.sort_unstable();
    let mut depths = distinct(cells.iter().map(|c| c.depth));
    depths.sort_by(f64::total_cmp);
    let names = ShownParams::of(cells.iter().map(|c| c.method()), usize::MAX);
    let panel = |(method, params): (&str, &str)| GridPanel {
        title: names.name(method, params),
        cells: cells
            .iter()
            .filter(|c| c.method() == (method, params))
            .map(|c| {
                let line = depths.iter().position(|d| *d == c.depth).unwrap_or(0);
                (line, lengths.iter().position(|l| *l == c.length).unwrap_or(0), c.score)
            })
            .collect(),
    };
    Grid {
        title: format!("{task}: score by length and depth, {}, sparse from {protocol}", end_of(model)),
        x_label: "length (tokens)".to_owned(),
        y_label: "depth (%)".to_owned(),
        panels: distinct(cells.iter().map(|c| c.method())).into_iter().map(panel).collect(),
        columns: lengths.iter().map(|length| length_label(cells, *length)).collect(),
        lines: depths.iter().map(|depth| tick_label((10.0 * depth).round() / 10.0)).collect(),
        scale: Scale::percent(),
        notes: names.note().into_iter().collect(),
    }
}

/// The requested length; without one, the approximate length of the prompts.
fn length_label(cells: &[&DepthScore], length: usize) -> String {
    if length > 0 {
        return tokens(length);
    }
    let of: Vec<f64> = cells.iter().map(|c| c.prompt_tokens).collect();
    format!("~{}", (of.iter().sum::<f64>() / of.len() as f64).round())
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::records::testing::record;

    fn at(method: &str, length: usize, depth: f64, sample: usize, score: f64) -> Record {
        let key = format!("{method}{length}{depth}{sample}");
        Record { length, depth: Some(depth), key, ..record("needle/number", method, sample, score) }
    }

    fn records() -> Vec<Record> {
        vec![
            at("topk", 2048, 100.0, 1, 0.0),
            at("topk", 2048, 0.0, 2, 1.0),
            at("topk", 2048, 0.0, 0, 0.0),
            at("full", 2048, 0.0, 0, 1.0),
            at("full", 1024, 0.0, 0, 1.0),
            record("ruler/vt", "full", 0, 1.0),
        ]
    }

    #[test]
    fn cells_are_means_in_order_and_leave_out_what_has_no_depth() {
        let all = cells(&records(), &[]);
        let seen: Vec<_> = all.iter().map(|c| (c.method.as_str(), c.length, c.depth, c.n, c.score)).collect();
        assert_eq!(
            seen,
            [
                ("full", 1024, 0.0, 1, 100.0),
                ("full", 2048, 0.0, 1, 100.0),
                ("topk", 2048, 0.0, 2, 50.0),
                ("topk", 2048, 100.0, 1, 0.0)
            ]
        );
        let text = csv(&all).unwrap();
        assert!(text.contains("builtin,needle/number,2048,0,topk,,question,2,50.0000"), "{text}");
        let mut reversed = records();
        reversed.reverse();
        assert_eq!(cells(&reversed, &[]), all);
    }

    #[test]
    fn a_record_that_is_there_twice_counts_once() {
        let once = records();
        assert_eq!(cells(&[once.clone(), once.clone()].concat(), &[]), cells(&once, &[]));
    }

    #[test]
    fn a_figure_has_a_panel_a_method_and_a_value_a_cell() {
        let drawn = figures(&cells(&records(), &[]), 99).unwrap().first;
        assert_eq!(drawn.len(), 1);
        assert_eq!(drawn[0].file, "depth_needle-number.svg");
        for text in ["\nfull\n", "\ntopk\n", "\n1K\n", "\n2K\n", "\n50\n", "depth (%)", "score (%)"] {
            assert!(drawn[0].svg.contains(text), "{text}");
        }
        assert!(figures(&[], 99).unwrap().first.is_empty());
    }
}

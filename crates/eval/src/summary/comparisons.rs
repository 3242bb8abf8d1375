//! Self-checks that compare settings with each other: a sparse method that beats dense attention, and a larger budget that
//! scores worse, both beyond noise.

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::cells::{SummaryCell, by_place, merit};
use super::warnings::{Check, Warning};
use crate::records::record::Record;
use spattn_stats::several::greatest_discovery;
use spattn_stats::{Estimate, ratios};
use spattn_tasks::likelihood::Measure;

/// A density or an output error counts as larger than another from this factor on.
const LARGER: f64 = 1.02;
/// The most layers that one warning names.
const MOST_LAYERS: usize = 4;

/// How much `a` is better than `b` on common examples, in points or in nats per token.
fn gain(a: &SummaryCell, b: &SummaryCell) -> Option<Estimate> {
    let differences = a.differences(b, merit);
    match a.measure() {
        Measure::Score => spattn_stats::difference(&differences).map(|gain| gain.scaled(100.0)),
        Measure::Perplexity => ratios::mean_interval(&differences),
    }
}

/// The probability that noise alone makes `a` so much better than `b`; `None` if there are too few common examples.
fn gain_p(a: &SummaryCell, b: &SummaryCell) -> Option<f64> {
    let differences = a.differences(b, merit);
    if differences.contexts() < spattn_stats::LEAST_CONTEXTS {
        return None;
    }
    match a.measure() {
        Measure::Score => spattn_stats::gain_p(&differences),
        Measure::Perplexity => ratios::gain_p(&differences),
    }
}

/// The largest p-values at which a gain counts as real, given the number of such comparisons that the records allow.
pub(super) struct Discoveries {
    /// For gains of sparse methods over dense attention.
    above: Option<f64>,
    /// For gains of smaller budgets over larger ones.
    falls: Option<f64>,
}

impl Discoveries {
    pub(super) fn among(cells: &[SummaryCell]) -> Self {
        let above = |cells: &&[SummaryCell]| -> Vec<f64> {
            let Some(full) = cells.iter().find(|cell| cell.head().is_reference()) else { return Vec::new() };
            let others = cells.par_iter().filter(|cell| !cell.head().is_reference());
            others.filter_map(|cell| gain_p(cell, full)).collect()
        };
        let falls = |cells: &&[SummaryCell]| -> Vec<f64> {
            let steps = ladders(cells).into_values().flat_map(|cells| steps(&cells)).collect::<Vec<_>>();
            steps.into_par_iter().filter_map(|(low, high)| gain_p(low, high)).collect()
        };
        let places = by_place(cells);
        let discoveries = |of: &(dyn Fn(&&[SummaryCell]) -> Vec<f64> + Sync)| {
            greatest_discovery(&places.par_iter().flat_map_iter(of).collect::<Vec<_>>())
        };
        Self { above: discoveries(&above), falls: discoveries(&falls) }
    }
}

/// Warns if a sparse setting is better than dense attention beyond noise.
pub(super) fn above(cell: &SummaryCell, full: &SummaryCell, real: &Discoveries) -> Option<Warning> {
    real.above.filter(|most| gain_p(cell, full).is_some_and(|p| p <= *most))?;
    let gain = gain(cell, full)?;
    let (low, high) = gain.ends?;
    let message = match cell.measure() {
        Measure::Score => format!(
            "significantly better than dense: {:+.1} points (95 % interval {low:+.1} to {high:+.1}); check the prompt for a mistake",
            gain.mean
        ),
        Measure::Perplexity => format!(
            "significantly better than dense: {:.4} nats a token less (95 % interval {low:.4} to {high:.4}); is the text \
             longer than the model can use?",
            gain.mean
        ),
    };
    Some(Warning::of_cell(Check::AboveReference, cell, message))
}

/// For each method and each numeric parameter varied alone: the pair of settings with the worst fall of the score, beyond
/// noise, as the density grows.
pub(super) fn not_monotone(cells: &[SummaryCell], real: &Discoveries) -> Vec<Warning> {
    ladders(cells).into_iter().filter_map(|(ladder, cells)| worst_step(&ladder, &cells, real)).collect()
}

fn ladders<'b, 'a>(cells: &'b [SummaryCell<'a>]) -> BTreeMap<Ladder, Vec<&'b SummaryCell<'a>>> {
    let mut ladders: BTreeMap<Ladder, Vec<&SummaryCell>> = BTreeMap::new();
    for cell in cells {
        for ladder in ladders_of(cell.head()) {
            ladders.entry(ladder).or_default().push(cell);
        }
    }
    ladders
}

/// A key for settings of a method that differ in one parameter only.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Ladder {
    method: String,
    varied: String,
    /// The other parameters.
    fixed: BTreeMap<String, String>,
}

fn ladders_of(r: &Record) -> Vec<Ladder> {
    let settings = r.settings();
    let is_numeric = |value: &String| value.trim_end_matches('%').parse::<f64>().is_ok();
    let ladder = |varied: &String| {
        let mut fixed = settings.clone();
        fixed.remove(varied);
        Ladder { method: r.method.to_string(), varied: varied.clone(), fixed }
    };
    settings.iter().filter(|(_, value)| is_numeric(value)).map(|(key, _)| ladder(key)).collect()
}

fn mean_density(cell: &SummaryCell) -> f64 {
    cell.mean(|r| r.density)
}

/// The most settings of a ladder of which all pairs are compared.
const ALL_COMPARED: usize = 64;

/// Pairs of a smaller and a larger budget. These are all pairs, or, for many settings, those that are 1, 2, 4, 8 and so on
/// apart in their order, so that their number grows no faster than n log n.
pub(super) fn steps<'b, 'a>(cells: &[&'b SummaryCell<'a>]) -> Vec<(&'b SummaryCell<'a>, &'b SummaryCell<'a>)> {
    let mut sorted: Vec<(f64, &SummaryCell)> = cells.iter().map(|cell| (mean_density(cell), *cell)).collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let is_few = sorted.len() <= ALL_COMPARED;
    let apart: Vec<usize> = (1..sorted.len()).filter(|apart| is_few || apart.is_power_of_two()).collect();
    // Settings such as a seed or a page size may not change the density. Only a real step in budget counts.
    let above = |(at, (density, low)): (usize, &(f64, &'b SummaryCell<'a>))| {
        let (least, low) = (LARGER * density, *low);
        let larger = apart.iter().filter_map(|apart| sorted.get(at + apart));
        larger.filter(|(density, _)| *density > least).map(|(_, high)| (low, *high)).collect::<Vec<_>>()
    };
    sorted.iter().enumerate().flat_map(above).collect()
}

fn worst_step(ladder: &Ladder, cells: &[&SummaryCell], real: &Discoveries) -> Option<Warning> {
    let most = real.falls?;
    let mut worst: Option<(Estimate, &SummaryCell, &SummaryCell)> = None;
    for (low, high) in steps(cells) {
        if gain_p(low, high).is_none_or(|p| p > most) {
            continue;
        }
        if let Some(fall) = gain(low, high)
            && worst.as_ref().is_none_or(|(worst, ..)| fall.low() > worst.low())
        {
            worst = Some((fall, low, high));
        }
    }
    let (fall, low, high) = worst?;
    let ends = fall.ends?;
    let (of_low, of_high, loss) = match low.measure() {
        Measure::Score => (
            format!("score falls as the density grows with {}: {:.1} %", ladder.varied, low.score()),
            format!("{:.1} %", high.score()),
            format!("{:.1} points (95 % interval {:.1} to {:.1})", fall.mean, ends.0, ends.1),
        ),
        Measure::Perplexity => (
            format!("perplexity rises as the density grows with {}: {:.3}", ladder.varied, low.score()),
            format!("{:.3}", high.score()),
            format!("{:.4} nats a token (95 % interval {:.4} to {:.4})", fall.mean, ends.0, ends.1),
        ),
    };
    let message = format!(
        "{of_low} at density {:.4} ({}), {of_high} at {:.4}, a loss of {loss}{}",
        mean_density(low),
        low.head().params,
        mean_density(high),
        where_errors_rise(low, high).unwrap_or_default(),
    );
    Some(Warning::of_cell(Check::NotMonotone, high, message))
}

/// The layers whose outputs are further from exact attention's at the larger budget; `None` if not all records of both
/// settings have errors of the same layers (`--fidelity`).
///
/// This tells two causes of a fall apart: the attention itself got worse (the largest logits of a head that attends widely are
/// a biased sample of its tokens, MagicPIG section 3), or it got better and the model still answers worse.
fn where_errors_rise(low: &SummaryCell, high: &SummaryCell) -> Option<String> {
    let (low, high) = (errors_by_layer(low)?, errors_by_layer(high)?);
    if low.len() != high.len() {
        return None;
    }
    let risen: Vec<String> = (low.iter().zip(&high).enumerate())
        .filter(|(_, (low, high))| **high > LARGER * **low)
        .map(|(layer, (low, high))| format!("layer {layer} ({low:.2} to {high:.2})"))
        .collect();
    let more = match risen.len().saturating_sub(MOST_LAYERS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(match risen.is_empty() {
        true => "; output error rises in no layer".into(),
        false => format!("; output error rises in {}{more}", risen[..risen.len().min(MOST_LAYERS)].join(", ")),
    })
}

/// The mean output error of every layer over the records; `None` if a record lacks errors, or has another number of layers.
fn errors_by_layer(cell: &SummaryCell) -> Option<Vec<f64>> {
    let depth = cell.head().fidelity.as_ref()?.output_error.len();
    let known = |r: &Record| r.fidelity.as_ref().is_some_and(|f| f.output_error.len() == depth);
    let of_layer = |layer: usize| cell.mean(|r| r.fidelity.as_ref().map_or(0.0, |f| f.output_error[layer]));
    cell.records.iter().all(|r| known(r)).then(|| (0..depth).map(of_layer).collect())
}

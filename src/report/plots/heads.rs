//! `heads_*.svg`: how close each query head came to exact attention, by layer and head, from records made with `--fidelity`.

use anyhow::Result;

use super::grid::{Deeper, Grid, GridPanel, Scale};
use super::{Figures, end_of, suffix};
use crate::report::format::{distinct, tokens};
use crate::report::parameters::ShownParams;
use spattn_eval::records::fidelity::HeadFidelity;
use spattn_eval::records::record::is_reference;
use spattn_eval::summary::cells::SummaryCell;

/// A quantity to draw: its part of the file name, its title, its scale's direction, and the field it is read from.
type Quantity = (&'static str, &'static str, Deeper, fn(&HeadFidelity) -> &Vec<Vec<f64>>);
const QUANTITIES: [Quantity; 4] = [
    ("error", "output error", Deeper::LessIsBetter, |h| &h.output_error),
    ("recall", "recall", Deeper::MoreIsBetter, |h| &h.recall),
    ("dropped", "dropped mass", Deeper::LessIsBetter, |h| &h.dropped_mass),
    ("density", "density", Deeper::LessIsBetter, |h| &h.density),
];

/// Four figures for each model, protocol and length, with a panel for each setting that has records by head: means over all its
/// examples and tasks. If there are several figures, their file names contain what differs. At most `most` pages are drawn.
///
/// # Errors
/// If the drawing fails, for which text output gives no cause.
pub fn figures(cells: &[SummaryCell], most: usize) -> Result<Figures> {
    let scene = |c: &SummaryCell| (c.head().model.to_string(), c.head().protocol.to_string(), c.head().length);
    let with_heads: Vec<&SummaryCell> = cells.iter().filter(|c| c.records.iter().any(|r| heads(r).is_some())).collect();
    let scenes = distinct(with_heads.iter().map(|c| scene(c)));
    let mut figures = Figures::up_to(most);
    for at in &scenes {
        let shown: Vec<&SummaryCell> = with_heads.iter().copied().filter(|c| scene(c) == *at).collect();
        let (model, protocol, length) = at;
        let suffix = suffix(&[
            (scenes.iter().any(|s| s.0 != *model), model),
            (scenes.iter().any(|s| s.2 != *length), &length.to_string()),
            (scenes.iter().any(|s| s.1 != *protocol), protocol),
        ]);
        for quantity in &QUANTITIES {
            let file = format!("heads_{}{suffix}.svg", quantity.0);
            if figures.is_full(&file) {
                continue;
            }
            let grid = grid(quantity, &shown, at);
            if !grid.panels.is_empty() {
                figures.grid(&file, &grid)?;
            }
        }
    }
    Ok(figures)
}

fn heads(r: &spattn_eval::records::record::Record) -> Option<&HeadFidelity> {
    r.fidelity.as_ref()?.heads.as_ref()
}

fn grid(quantity: &Quantity, cells: &[&SummaryCell], (model, protocol, length): &(String, String, usize)) -> Grid {
    let (_, title, deeper, _) = quantity;
    // Dense attention is left out: it has no error and attends everything.
    let settings = distinct(cells.iter().map(|c| (c.head().method.as_str(), c.head().params.as_str())));
    let settings: Vec<(&str, &str)> =
        settings.into_iter().filter(|(method, params)| !is_reference(method, params)).collect();
    let names = ShownParams::of(settings.iter().copied(), usize::MAX);
    let maps = settings.iter().map(|(method, params)| {
        let of = cells.iter().filter(|c| (c.head().method.as_str(), c.head().params.as_str()) == (*method, *params));
        (names.name(method, params), mean_map(of.flat_map(|c| &c.records).filter_map(|r| heads(r)), quantity.3))
    });
    let maps: Vec<(String, Vec<Vec<f64>>)> = maps.filter(|(_, map)| !map.is_empty()).collect();
    let values = || maps.iter().flat_map(|(_, map)| map.iter().flatten().copied());
    let most = |size: fn(&Vec<Vec<f64>>) -> usize| maps.iter().map(|(_, map)| size(map)).max().unwrap_or(0);
    let numbers = |n: usize| (0..n).map(|i| i.to_string()).collect();
    let panel = |(title, map): &(String, Vec<Vec<f64>>)| {
        let line = |(line, values): (usize, &Vec<f64>)| {
            values.iter().enumerate().map(move |(head, value)| (line, head, *value)).collect::<Vec<_>>()
        };
        GridPanel { title: title.clone(), cells: map.iter().enumerate().flat_map(line).collect() }
    };
    let at = if *length > 0 { format!(", {} tokens", tokens(*length)) } else { String::new() };
    Grid {
        title: format!("{title} by layer and query head: {}{at}, sparse from {protocol}", end_of(model)),
        x_label: "query head".to_owned(),
        y_label: "layer".to_owned(),
        columns: numbers(most(|map| map.first().map_or(0, Vec::len))),
        lines: numbers(most(Vec::len)),
        panels: maps.iter().map(panel).collect(),
        scale: match *title {
            "recall" => Scale::up_to(title, [1.0].into_iter(), *deeper),
            _ => Scale::up_to(title, values(), *deeper),
        },
        notes: names.note().into_iter().collect(),
    }
}

/// The mean of maps of the same shape. Maps of another shape than the first one are ignored.
fn mean_map<'a>(
    maps: impl Iterator<Item = &'a HeadFidelity>,
    of: fn(&HeadFidelity) -> &Vec<Vec<f64>>,
) -> Vec<Vec<f64>> {
    let mut sum: Vec<Vec<f64>> = Vec::new();
    let mut n = 0usize;
    for map in maps.map(of) {
        if sum.is_empty() {
            sum = map.iter().map(|line| vec![0.0; line.len()]).collect();
        }
        if map.iter().map(Vec::len).eq(sum.iter().map(Vec::len)) {
            sum.iter_mut().flatten().zip(map.iter().flatten()).for_each(|(sum, value)| *sum += value);
            n += 1;
        }
    }
    sum.iter_mut().flatten().for_each(|value| *value /= n.max(1) as f64);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::records::fidelity::Fidelity;
    use spattn_eval::records::record::Record;
    use spattn_eval::records::testing::record;
    use spattn_eval::summary::cells::group;

    fn with_heads(method: &str, sample: usize, error: f64) -> Record {
        let map = |value: f64| vec![vec![value, 0.0], vec![0.0, value]];
        let heads =
            HeadFidelity { density: map(0.1), output_error: map(error), recall: map(0.9), dropped_mass: map(0.0) };
        let fidelity = Fidelity {
            output_error: vec![error],
            recall: vec![0.9],
            dropped_mass: vec![],
            spread: None,
            heads: Some(heads),
        };
        Record { fidelity: Some(fidelity.into()), ..record("ruler/vt", method, sample, 1.0) }
    }

    #[test]
    fn maps_are_means_over_examples_and_leave_out_dense_attention() {
        let records = [with_heads("full", 0, 0.0), with_heads("topk", 0, 0.1), with_heads("topk", 1, 0.3)];
        let cells = group(&records, &[]);
        let all = figures(&cells, 99).unwrap();
        let (drawn, left_out): (Vec<_>, _) = (all.drawn().collect(), &all.left_out);
        let files: Vec<_> = drawn.iter().map(|f| f.file.as_str()).collect();
        assert_eq!(files, ["heads_error.svg", "heads_recall.svg", "heads_density.svg"]);
        assert_eq!(*left_out, [("heads_dropped.svg".to_owned(), "0".to_owned())], "nothing was dropped anywhere");
        assert!(
            drawn[0].svg.contains("\n0.2\n") && drawn[0].svg.contains("\ntopk\n") && !drawn[0].svg.contains("\nfull\n")
        );
        assert!(figures(&group(&[record("vt", "topk", 0, 1.0)], &[]), 99).unwrap().first.is_empty());
    }
}

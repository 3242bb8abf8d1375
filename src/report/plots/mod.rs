//! `plots/*.svg` and `plots/*.png`: drawings of summary rows and records, one file a kind of figure.

pub mod analyses;
pub mod depths;
pub mod papers;
pub mod png;
pub mod trade;
pub mod tuning;

pub(super) mod axis;
pub(super) mod bars;
pub(super) mod chart;
mod grid;
mod heads;
mod lengths;
mod params;
pub(super) mod pen;

use anyhow::Result;

use self::axis::Axis;
use super::Report;
use crate::eval::record::SummaryRow;
use crate::tasks::likelihood::Measure;

/// One drawing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// File name, ending in `.svg`.
    pub file: String,
    /// What it shows, as in its title.
    pub title: String,
    /// The drawing.
    pub svg: String,
}

/// All figures of a report, in the order in which one looks at them.
///
/// # Errors
/// If a drawing fails, for which text output gives no cause.
pub fn figures(report: &Report) -> Result<Vec<Figure>> {
    let means: Vec<SummaryRow> = report.means.iter().flat_map(|table| table.rows.iter().cloned()).collect();
    let rows = &report.rows;
    Ok([
        trade::figures(rows, &means)?,
        lengths::figures(rows, &means)?,
        params::figures(rows, &means)?,
        depths::figures(&report.depths)?,
        bars::figures(&report.rows, &report.means)?,
        heads::figures(&report.cells)?,
    ]
    .concat())
}

/// The vertical axis of the rows of a task: scores have the same in all panels, perplexities of different texts have
/// little in common.
fn score_axis(measure: Measure, all: &[&SummaryRow], of_task: &[&SummaryRow]) -> Axis {
    let ends = |rows: &[&SummaryRow]| {
        let of_row = |r: &&SummaryRow| [r.ci_low.unwrap_or(r.score), r.ci_high.unwrap_or(r.score)];
        rows.iter().flat_map(of_row).collect::<Vec<_>>()
    };
    match measure {
        Measure::Score => Axis::of_scores(ends(all).into_iter()),
        Measure::Perplexity => Axis::of_perplexities(ends(of_task).into_iter()),
    }
}

fn measure_title(measure: Measure) -> &'static str {
    match measure {
        Measure::Score => "Score",
        Measure::Perplexity => "Perplexity",
    }
}

fn measure_label(measure: Measure) -> &'static str {
    match measure {
        Measure::Score => "score (%)",
        Measure::Perplexity => "perplexity (less is better)",
    }
}

/// What differs from the other figures of a kind, to follow in a file name.
pub(super) fn suffix(parts: &[(bool, &str)]) -> String {
    parts.iter().filter(|(differs, _)| *differs).map(|(_, part)| format!("_{}", as_file_name(part))).collect()
}

/// The end of a model's name, which says most, where all of it would not fit into a title.
pub(super) fn end_of(model: &str) -> String {
    const LONGEST: usize = 36;
    match model.char_indices().rev().nth(LONGEST) {
        Some((start, _)) => format!("…{}", model[start..].chars().skip(1).collect::<String>()),
        None => model.to_owned(),
    }
}

/// Letters, digits, `.` and `-`; a run of anything else becomes one `-`.
fn as_file_name(text: &str) -> String {
    let kept = |c: char| c.is_ascii_alphanumeric() || c == '.';
    text.split(|c| !kept(c)).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_model_names_keep_their_end() {
        assert_eq!(end_of(&("x".repeat(50) + "é")), format!("…{}é", "x".repeat(35)));
        assert_eq!(end_of("org/model"), "org/model");
    }
}

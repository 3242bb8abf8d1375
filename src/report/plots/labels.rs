//! What all kinds of figures share: axes of scores, labels, and file names.

use super::axis::Axis;
use spattn_eval::summary::columns::SummaryRow;
use spattn_tasks::likelihood::Measure;

/// The vertical axis for a task's rows. Scores have the same axis in all panels. Perplexities of different texts are hardly comparable,
/// so each panel has its own axis.
pub(super) fn score_axis(measure: Measure, all: &[&SummaryRow], of_task: &[&SummaryRow]) -> Axis {
    let ends = |rows: &[&SummaryRow]| {
        let of_row = |r: &&SummaryRow| [r.ci_low.unwrap_or(r.score), r.ci_high.unwrap_or(r.score)];
        rows.iter().flat_map(of_row).collect::<Vec<_>>()
    };
    match measure {
        Measure::Score => Axis::of_scores(ends(all).into_iter()),
        Measure::Perplexity => Axis::of_perplexities(ends(of_task).into_iter()),
    }
}

pub(super) fn measure_title(measure: Measure) -> &'static str {
    match measure {
        Measure::Score => "Score",
        Measure::Perplexity => "Perplexity",
    }
}

pub(super) fn measure_label(measure: Measure) -> &'static str {
    match measure {
        Measure::Score => "score (%)",
        Measure::Perplexity => "perplexity (less is better)",
    }
}

/// The part of a file name that distinguishes a figure from others of its kind.
pub(in crate::report) fn suffix(parts: &[(bool, &str)]) -> String {
    parts.iter().filter(|(differs, _)| *differs).map(|(_, part)| format!("_{}", as_file_name(part))).collect()
}

/// The end of a model's name, which says most, if the whole name does not fit into a title.
pub(in crate::report) fn end_of(model: &str) -> String {
    const LONGEST: usize = 36;
    match model.char_indices().rev().nth(LONGEST) {
        Some((start, _)) => format!("…{}", model[start..].chars().skip(1).collect::<String>()),
        None => model.to_owned(),
    }
}

/// Text as part of a file name: letters, digits, `.` and `-`. A run of any other characters becomes one `-`.
pub(super) fn as_file_name(text: &str) -> String {
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

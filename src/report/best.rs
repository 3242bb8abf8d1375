//! Which of several settings are best, as far as noise lets one tell.

use super::pivot::Table;
use crate::attention::Role;
use crate::eval::record::SummaryRow;
use crate::eval::stats::Estimate;

/// What one line of a table has.
pub struct Candidate {
    /// Where it is among those that are compared.
    pub line: usize,
    /// Its score or perplexity.
    pub score: Estimate,
}

/// Lines of the best score, and of those whose interval reaches it; none where nothing is compared.
pub fn level(candidates: &[Candidate], less_is_better: bool) -> Vec<usize> {
    let sign = if less_is_better { -1.0 } else { 1.0 };
    let best = candidates.iter().map(|c| sign * c.score.mean).fold(f64::NEG_INFINITY, f64::max);
    let reach = |c: &Candidate| {
        let end = c.score.ends.map_or(c.score.mean, |(low, high)| if less_is_better { low } else { high });
        sign * end >= best || sign * c.score.mean >= best
    };
    match candidates.len() {
        0 | 1 => Vec::new(),
        _ => candidates.iter().filter(|c| reach(c)).map(|c| c.line).collect(),
    }
}

/// The best of the methods' settings among rows of one task and length: no oracle, no floor, not dense attention.
pub fn of_rows(rows: &[SummaryRow]) -> Vec<usize> {
    let sparse = rows.iter().enumerate().filter(|(_, row)| Role::of(&row.method) == Role::Method);
    let candidates: Vec<Candidate> = sparse
        .map(|(line, r)| Candidate { line, score: Estimate { mean: r.score, ends: r.ci_low.zip(r.ci_high) } })
        .collect();
    level(&candidates, rows.iter().any(|r| !r.measure.is_score()))
}

/// The best methods' lines of a column of a pivot that shows scores, as for [`of_rows`]; none of one that shows something else.
pub fn of_column(table: &Table, column: usize) -> Vec<usize> {
    if table.value != "score" {
        return Vec::new();
    }
    let entries = || table.cells.iter().enumerate().filter_map(|(line, cells)| Some((line, cells[column].as_ref()?)));
    let sparse = entries().filter(|(_, entry)| entry.role == Role::Method);
    let candidates: Vec<Candidate> = sparse
        .map(|(line, entry)| Candidate { line, score: Estimate { mean: entry.value, ends: entry.ends } })
        .collect();
    level(&candidates, entries().any(|(_, entry)| entry.is_perplexity))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(scores: &[(f64, Option<(f64, f64)>)]) -> Vec<Candidate> {
        scores
            .iter()
            .enumerate()
            .map(|(line, &(mean, ends))| Candidate { line, score: Estimate { mean, ends } })
            .collect()
    }

    #[test]
    fn those_whose_interval_reaches_the_best_are_level_with_it() {
        let scores = [(90.0, Some((80.0, 95.0))), (85.0, Some((70.0, 90.0))), (60.0, Some((50.0, 89.0))), (90.0, None)];
        assert_eq!(level(&candidates(&scores), false), [0, 1, 3]);
        let perplexities = [(3.0, Some((2.5, 3.5))), (2.4, None), (2.6, Some((2.3, 2.9)))];
        assert_eq!(level(&candidates(&perplexities), true), [1, 2]);
        assert_eq!(level(&candidates(&scores[..1]), false), [0; 0], "nothing is compared");
    }
}

//! `plots/*.svg` and `plots/*.png`: drawings of summary rows and records. Each kind of figure has a file here.

pub mod analyses;
pub mod depths;
pub mod papers;
pub mod png;
pub mod trade;
pub mod tuning;

pub(super) mod axis;
pub(super) mod bars;
pub(super) mod chart;
mod figures;
mod grid;
mod heads;
mod joins;
mod labels;
mod lengths;
mod links;
pub(super) mod looks;
mod pages;
mod palette;
mod paper_grids;
mod paper_rows;
mod params;
pub(super) mod pen;
mod verdict;

use anyhow::Result;

pub use self::figures::{Figures, MOST_PAGES};
use self::labels::{as_file_name, measure_label, measure_title, score_axis};
pub(super) use self::labels::{end_of, suffix};
pub use self::pages::Figure;
pub(super) use self::pages::{Pages, paged};
use super::Report;
use spattn_eval::summary::columns::SummaryRow;

/// All figures of a report, with at most `most` pages of each kind.
///
/// # Errors
/// If a drawing fails, for which text output gives no cause.
pub fn figures(report: &Report, most: usize) -> Result<Figures> {
    let means: Vec<SummaryRow> = report.means.iter().flat_map(|table| table.rows.iter().cloned()).collect();
    let rows = &report.rows;
    Ok(Figures::join([
        trade::figures(rows, &means, most)?,
        lengths::figures(rows, &means, most)?,
        links::figures(rows, &means, most)?,
        params::figures(rows, &means, most)?,
        depths::figures(&report.depths, most)?,
        bars::figures(&report.rows, &report.means, most)?,
        heads::figures(&report.cells, most)?,
        verdict::figures(&report.verdicts, most)?,
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_kind_so_many_pages_are_drawn_and_the_others_are_said_in_one_line() {
        use spattn_eval::records::record::Record;
        use spattn_eval::records::testing::record;
        let at = |task: String, length, method: &str, score| Record {
            length,
            key: format!("{task}{length}{method}"),
            depth: Some(0.0),
            ..record(&task, method, 0, score)
        };
        let both = |task: String, length| [at(task.clone(), length, "full", 1.0), at(task, length, "quest", 0.5)];
        let lengths: Vec<Record> = (0..60).flat_map(|i| both("vt".into(), 1000 + i)).collect();
        let tasks: Vec<Record> = (0..700).flat_map(|i| both(format!("t{i}"), 4096)).collect();
        for records in [&lengths, &tasks] {
            let report = Report::new(records, &[]);
            let count = |figures: &Figures, kind: &str| figures.drawn().filter(|f| f.file.starts_with(kind)).count();
            let (some, all) = (figures(&report, 5).unwrap(), figures(&report, usize::MAX).unwrap());
            for kind in ["score_vs_density", "score_vs_cost", "score_vs_bytes"] {
                assert_eq!(count(&some, kind), 5, "{kind}");
                assert!(count(&all, kind) > 30, "{kind}");
            }
            assert!(some.drawn().all(|figure| all.drawn().any(|other| other == figure)), "the first, as they are");
            let left: usize = some.not_drawn.iter().map(|(_, pages)| pages).sum();
            let depths = if std::ptr::eq(records, &tasks) { 695 } else { 0 };
            assert!(left >= all.drawn().count() - some.drawn().count() && left >= depths, "{left}");
            let said = some.not_drawn_line().unwrap();
            assert!(said.contains("`spattn report --all-plots` draws the rest: score_vs_density"), "{said}");
            assert!(said.len() < 400 && said.ends_with(" more."), "{said}");
            assert_eq!(all.not_drawn_line(), None);
        }
    }
}

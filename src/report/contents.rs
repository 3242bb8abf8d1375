//! The contents of a report: records, their summary, means, and the runs that they come from.

use super::means::{self, MeanTable};
use super::merge::{Merged, Source};
use super::plots::{MOST_PAGES, depths};
use super::ranking;
use spattn_eval::records::record::Record;
use spattn_eval::summary::cells::{self, SummaryCell};
use spattn_eval::summary::columns::SummaryRow;
use spattn_eval::summary::self_checks;
use spattn_eval::summary::summarize;
use spattn_eval::summary::verdicts::{self, VerdictRule, VerdictTable};
use spattn_eval::summary::warnings::Warning;

/// Everything that a report is drawn from.
#[derive(Debug, Clone, PartialEq)]
pub struct Report<'a> {
    /// The records.
    pub records: &'a [Record],
    /// The summary of the records.
    pub rows: Vec<SummaryRow>,
    /// The records of each row of the summary.
    pub cells: Vec<SummaryCell<'a>>,
    /// Means over tasks.
    pub means: Vec<MeanTable>,
    /// The scores by length and depth, for tasks that decide on the depth.
    pub depths: Vec<depths::DepthScore>,
    /// What the self-checks found in the records.
    pub warnings: Vec<Warning>,
    /// Which methods are safe.
    pub verdicts: Vec<VerdictTable>,
    /// The runs that the records come from, if they are known.
    pub sources: &'a [Source],
    /// Notes on how the runs were merged.
    pub notes: &'a [String],
    /// The most pages drawn of each kind of plot.
    pub most_pages: usize,
}

impl<'a> Report<'a> {
    /// Summarises and checks records. `order` lists (method, params) as the user gave them.
    pub fn new(records: &'a [Record], order: &[(String, String)]) -> Self {
        let cells = cells::group(records, order);
        let rows = summarize::rows(&cells);
        Self {
            means: means::over_tasks(&rows, &cells),
            records,
            depths: depths::cells(records, order),
            warnings: self_checks::check_cells(&cells),
            verdicts: verdicts::judge(&rows, &cells, VerdictRule::default()),
            rows,
            cells,
            sources: &[],
            notes: &[],
            most_pages: MOST_PAGES,
        }
    }

    /// The report of merged runs.
    pub fn of(merged: &'a Merged) -> Self {
        Self { sources: &merged.sources, notes: &merged.notes, ..Self::new(&merged.records, &merged.order) }
    }

    /// The same report, with methods held to another rule.
    pub fn judged_by(self, rule: VerdictRule) -> Self {
        Self { verdicts: verdicts::judge(&self.rows, &self.cells, rule), ..self }
    }

    /// The lines below a table of verdicts that compare methods with each other.
    pub fn ranking(&self, verdict: usize) -> Vec<String> {
        ranking::lines(&self.verdicts[verdict], &self.rows, &self.cells)
    }

    /// The means over tasks with a row's model and protocol, by length.
    pub fn means_of(&self, row: &SummaryRow) -> impl Iterator<Item = &MeanTable> {
        let place = (row.model.clone(), row.protocol.clone());
        self.means.iter().filter(move |t| t.rows.iter().any(|r| (&r.model, &r.protocol) == (&place.0, &place.1)))
    }
}

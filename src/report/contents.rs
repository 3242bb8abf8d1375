//! What reports are drawn from: records, their summary, means, and the runs that they are from.

use super::means::{self, MeanTable};
use super::merge::{Merged, Source};
use super::plots::{MOST_PAGES, depths};
use crate::eval::records::record::Record;
use crate::eval::summary::cells::{self, SummaryCell};
use crate::eval::summary::columns::SummaryRow;
use crate::eval::summary::self_checks;
use crate::eval::summary::summarize;
use crate::eval::summary::warnings::Warning;

/// All that reports are drawn from.
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
    /// The runs that the records are from, if they are known.
    pub sources: &'a [Source],
    /// What is to be known of how these were put together.
    pub notes: &'a [String],
    /// Pages of each kind of plot that are drawn at most.
    pub most_pages: usize,
}

impl<'a> Report<'a> {
    /// Summarises and checks records; `order` lists (method, params) as the user gave them.
    pub fn new(records: &'a [Record], order: &[(String, String)]) -> Self {
        let cells = cells::group(records, order);
        let rows = summarize::rows(&cells);
        Self {
            means: means::over_tasks(&rows, &cells),
            records,
            rows,
            depths: depths::cells(records, order),
            warnings: self_checks::check_cells(&cells),
            cells,
            sources: &[],
            notes: &[],
            most_pages: MOST_PAGES,
        }
    }

    /// Of runs that were read.
    pub fn of(merged: &'a Merged) -> Self {
        Self { sources: &merged.sources, notes: &merged.notes, ..Self::new(&merged.records, &merged.order) }
    }

    /// The means over tasks for the model and protocol of a row, in the order of lengths.
    pub fn means_of(&self, row: &SummaryRow) -> impl Iterator<Item = &MeanTable> {
        let place = (row.model.clone(), row.protocol.clone());
        self.means.iter().filter(move |t| t.rows.iter().any(|r| (&r.model, &r.protocol) == (&place.0, &place.1)))
    }
}

//! The rows of a paper's table that are drawn.

use spattn_lab::papers::item::{Item, Line};
use spattn_lab::papers::outcome::{ItemOutcome, OutcomeRow};

/// A row of an outcome, with the item's row that it is or stands in for.
#[derive(Clone, Copy)]
pub(super) struct DrawnRow<'a> {
    /// The item's row.
    pub line: &'a Line,
    /// The outcome's row.
    pub row: &'a OutcomeRow,
    /// The model that its numbers are from, if rows have several models.
    pub model: Option<&'a str>,
}

/// The rows of an outcome to draw. Correlations are not comparable with other numbers.
pub(super) fn drawn_rows<'a>(outcome: &'a ItemOutcome, item: &'a Item) -> Vec<DrawnRow<'a>> {
    let find = |name: &str| item.rows.iter().find(|line| line.name == name);
    let one = |row: &'a OutcomeRow| {
        let (line, model) = match row.stands_for.first() {
            None => (find(&row.name)?, find(&row.name)?.model.as_deref()),
            Some(name) => (find(name)?, Some(outcome.model.as_str())),
        };
        line.correlation.is_none().then_some(DrawnRow { line, row, model })
    };
    outcome.rows.iter().filter_map(one).collect()
}

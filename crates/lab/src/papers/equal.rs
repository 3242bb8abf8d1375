//! A comparison of methods at equal costs, as an item states it. [`super::equal_rows`] makes it.

use serde::Deserialize;

use spattn_base::error::UsageError;

/// A comparison at equal costs.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EqualCost {
    /// Its heading.
    pub title: String,
    /// The column with the costs.
    pub cost: String,
    /// The row whose cost is 100 %.
    pub dense: String,
    /// The shares of that cost, in percent, ascending.
    pub within: Vec<f64>,
    /// The columns that are shown.
    pub shows: Vec<String>,
    /// What the reader should know about the costs.
    #[serde(default)]
    pub note: Option<String>,
}

impl EqualCost {
    /// Returns the columns that the comparison reads.
    pub(super) fn columns(&self) -> impl Iterator<Item = &String> {
        [&self.cost].into_iter().chain(&self.shows)
    }

    /// Checks everything but names.
    ///
    /// # Errors
    /// If the shares are not positive and rising, or nothing is shown.
    pub(super) fn check(&self) -> Result<(), UsageError> {
        let rises = self.within.windows(2).all(|pair| pair[0] < pair[1]);
        if !rises || self.within.first().is_none_or(|least| *least <= 0.0) {
            return Err(
                UsageError::new("[[equal]]: `within` needs shares in percent that rise").hint("within = [5, 10, 20]")
            );
        }
        match self.shows.is_empty() {
            true => Err(UsageError::new("[[equal]]: there is nothing to show").hint("name columns in `shows`")),
            false => Ok(()),
        }
    }
}

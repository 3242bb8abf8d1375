//! Cells that are computed from other cells: the column at which a score is reached, and the correlation of two columns.

use serde::Deserialize;

use spattn_base::error::UsageError;
use spattn_stats::Estimate;

/// The smallest of several columns, each standing for an amount, at which a row's score reaches a share of its score in another column.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reaching {
    /// Columns with their amounts, ascending.
    pub steps: Vec<(String, f64)>,
    /// The column whose score is to be reached.
    pub of: String,
    /// The share of that score to be reached.
    pub share: f64,
    /// The amount at which the score is that of `of`, so that it certainly suffices.
    pub whole: f64,
}

/// Pearson's correlation of two columns over some rows.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Correlation {
    /// The first column.
    pub x: String,
    /// The second column.
    pub y: String,
    /// The rows.
    pub rows: Vec<String>,
}

impl Reaching {
    /// Returns the names of all its columns.
    pub fn columns(&self) -> impl Iterator<Item = &String> {
        self.steps.iter().map(|(column, _)| column).chain([&self.of])
    }

    /// Checks the steps.
    ///
    /// # Errors
    /// If there are none, or the amounts do not rise up to the whole.
    pub fn check(&self) -> Result<(), UsageError> {
        let amounts: Vec<f64> = self.steps.iter().map(|(_, amount)| *amount).chain([self.whole]).collect();
        match amounts.len() > 1 && amounts.windows(2).all(|pair| pair[0] < pair[1]) {
            true => Ok(()),
            false => Err(UsageError::new("`reaches` needs `steps` whose amounts rise up to `whole`")
                .hint("write steps = [[\"column\", amount], ...], with the smallest amount first")),
        }
    }

    /// Returns the smallest amount from which on the share is reached, given each step less the share (`step − share·of`). The interval
    /// goes from the smallest amount that may suffice to the smallest that certainly does, which is the whole if no step does. `None` if
    /// no step suffices.
    pub fn of(&self, short: &[Option<Estimate>]) -> Option<Estimate> {
        let short: Vec<Estimate> = short.iter().copied().collect::<Option<_>>()?;
        // An amount counts only if no larger one falls short.
        let from = |reaches: &dyn Fn(&Estimate) -> bool| {
            let first = short.iter().rposition(|step| !reaches(step)).map_or(0, |last| last + 1);
            self.steps.get(first).map(|(_, amount)| *amount)
        };
        let mean = from(&|step| step.mean >= 0.0)?;
        let may = from(&|step| step.high().is_none_or(|high| high >= 0.0))?;
        let certainly = from(&|step| step.low().is_some_and(|low| low >= 0.0)).unwrap_or(self.whole);
        Some(Estimate { mean, ends: Some((may.min(mean), certainly.max(mean))) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reaching() -> Reaching {
        let steps = [("a", 1.0), ("b", 4.0), ("c", 16.0)];
        Reaching {
            steps: steps.map(|(name, amount)| (name.to_owned(), amount)).to_vec(),
            of: "dense".to_owned(),
            share: 0.95,
            whole: 100.0,
        }
    }

    fn step(mean: f64, half: f64) -> Option<Estimate> {
        Some(Estimate { mean, ends: Some((mean - half, mean + half)) })
    }

    #[test]
    fn the_least_amount_is_the_one_from_which_on_no_step_falls_short() {
        let of = |steps: &[Option<Estimate>]| reaching().of(steps).map(|e| (e.mean, e.ends));
        assert_eq!(of(&[step(-30.0, 5.0), step(1.0, 0.5), step(4.0, 1.0)]), Some((4.0, Some((4.0, 4.0)))));
        // The first step may suffice; the second does not certainly suffice.
        assert_eq!(of(&[step(-3.0, 5.0), step(1.0, 2.0), step(4.0, 1.0)]), Some((4.0, Some((1.0, 16.0)))));
        // If a step falls short, smaller amounts do not count as sufficient.
        assert_eq!(of(&[step(1.0, 0.5), step(-9.0, 1.0), step(4.0, 1.0)]), Some((16.0, Some((16.0, 16.0)))));
        assert_eq!(of(&[step(-3.0, 1.0), step(-2.0, 1.0), step(1.0, 3.0)]), Some((16.0, Some((16.0, 100.0)))));
        assert_eq!(of(&[step(-3.0, 1.0), step(-2.0, 1.0), step(-1.0, 3.0)]), None, "beyond what was measured");
        assert_eq!(of(&[step(1.0, 1.0), None, step(1.0, 1.0)]), None);
        assert!(reaching().check().is_ok() && Reaching { whole: 16.0, ..reaching() }.check().is_err());
    }
}

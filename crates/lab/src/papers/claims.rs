//! Claims as tests on the cells of a table, and their verdicts.
//!
//! A test is a list of comparisons. A 95 % interval confirms a comparison, contradicts it, or leaves it open. Published numbers have no
//! intervals, so their comparisons use the numbers alone.

use serde::{Deserialize, Serialize};

use spattn_base::error::UsageError;
use spattn_stats::Estimate;

/// A test of a claim. Rows and columns are those of the item, by name.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Test {
    /// Each of `rows` is greater than each of `than` by more than `by`, in each of `columns`.
    Above(Against),
    /// Each of `rows` is less than each of `than` by more than `by`.
    Below(Against),
    /// None of `rows` is less than any of `than` by more than `by`.
    NoLower(Against),
    /// None of `rows` is greater than any of `than` by more than `by`.
    NoHigher(Against),
    /// Along the line, the last is greater than the first by more than `by`, and no step falls by more than `slack`.
    Rises(Along),
    /// Along the line, the last is less than the first by more than `by`, and no step rises by more than `slack`.
    Falls(Along),
    /// `row` is greater than `with` in the first of `columns` and less in the last.
    Crosses(Crossing),
    /// `row` is between `at_least` and `at_most` times `to`.
    Ratio(Ratio),
    /// Each of `rows` is between `at_least` and `at_most`.
    Between(RowBounds),
}

/// Rows that are compared with other rows.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Against {
    rows: Vec<String>,
    than: Vec<String>,
    columns: Vec<String>,
    #[serde(default)]
    by: f64,
    /// Whether columns are compared with columns; then `rows` and `than` name columns, and `columns` names rows.
    #[serde(default)]
    transposed: bool,
}

/// Rows or columns in an order: one of the two lists has several entries.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Along {
    rows: Vec<String>,
    columns: Vec<String>,
    /// Whether the order is that of `rows`, within each of `columns`, rather than that of `columns`, within each of `rows`.
    #[serde(default)]
    over_rows: bool,
    #[serde(default)]
    by: f64,
    #[serde(default)]
    slack: f64,
}

/// Two rows whose order changes from the first column to the last.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Crossing {
    row: String,
    with: String,
    columns: Vec<String>,
}

/// The ratio of two rows.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ratio {
    row: String,
    to: String,
    columns: Vec<String>,
    at_least: Option<f64>,
    at_most: Option<f64>,
    /// Whether columns are compared, as in [`Against`]; then `row` and `to` name columns, and `columns` names rows.
    #[serde(default)]
    transposed: bool,
}

/// Rows with bounds.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowBounds {
    rows: Vec<String>,
    columns: Vec<String>,
    at_least: Option<Limit>,
    at_most: Option<Limit>,
}

/// A limit of a claim: a number, or a share of a value that follows from the length, so that the claim can be tested at another length.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(untagged, expecting = "a number, or { of_even_weights = SHARE }")]
pub enum Limit {
    /// In the unit of the cells.
    Number(f64),
    /// A share of the entropy of even weights over the context that was run, `ln` of its tokens, in nats.
    EvenWeights(OfEvenWeights),
}

/// The table form of [`Limit::EvenWeights`].
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfEvenWeights {
    /// The share: above 0, at most 1.
    of_even_weights: f64,
}

impl Limit {
    /// Returns the limit as a number; a share as it is.
    fn number(self) -> f64 {
        match self {
            Self::Number(number) => number,
            Self::EvenWeights(OfEvenWeights { of_even_weights }) => of_even_weights,
        }
    }

    fn is_share(self) -> bool {
        matches!(self, Self::EvenWeights(_))
    }
}

/// A cell, as its row and column.
pub type CellName<'a> = (&'a str, &'a str);

/// One comparison of a test: `left − factor·right` (or `left` alone) against a bound.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison<'a> {
    /// The first cell.
    pub left: CellName<'a>,
    /// The factor and the cell that is subtracted.
    pub right: Option<(f64, CellName<'a>)>,
    /// The bound.
    pub bound: Bound,
    /// Whether the claim holds unless the comparison is contradicted or not measured, as with the single steps of a rise.
    pub is_lenient: bool,
    /// Whether it is the upper end of a range whose lower end is the comparison before it. A number outside the range satisfies one end, so
    /// both ends are judged together.
    pub ends_range: bool,
    /// Whether the bound is a share of the entropy of even weights. [`at_length`](Self::at_length) turns such a share into a number and
    /// records the tokens.
    pub share: ShareOf,
}

/// What the bound of a comparison is a share of.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum ShareOf {
    /// Of nothing: the bound is a number.
    #[default]
    Nothing,
    /// Of the entropy of even weights over a context whose length is not known yet.
    EvenWeights,
    /// The bound is now a number: this share of the logarithm of these tokens.
    LogOf(f64, usize),
}

/// A bound on a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// More than this.
    Over(f64),
    /// At least this.
    AtLeast(f64),
    /// Less than this.
    Under(f64),
    /// At most this.
    AtMost(f64),
}

/// What an interval says about a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoundVerdict {
    /// The bound holds.
    Yes,
    /// The bound does not hold.
    No,
    /// The interval leaves it open, or there is no interval.
    Open,
    /// A cell was not measured.
    Unmeasured,
}

/// The verdict on a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimVerdict {
    /// All comparisons are confirmed; lenient ones may be open.
    Holds,
    /// Some are confirmed, others are open, contradicted or not measured.
    HoldsInPart,
    /// None is confirmed, and some are contradicted.
    DoesNotHold,
    /// None is confirmed or contradicted, and some are open.
    CannotBeTold,
    /// The claim follows from the method's definition, and the numbers do not contradict it.
    ByConstruction,
    /// There are no numbers to test the claim with.
    NotTested,
}

impl BoundVerdict {
    /// Returns the verdict on a range, from those on its lower end and its `upper` end.
    pub(super) fn of_range(self, upper: Self) -> Self {
        match (self, upper) {
            (Self::No, _) | (_, Self::No) => Self::No,
            (Self::Unmeasured, _) | (_, Self::Unmeasured) => Self::Unmeasured,
            (Self::Yes, Self::Yes) => Self::Yes,
            _ => Self::Open,
        }
    }
}

impl ClaimVerdict {
    /// The verdict in words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::HoldsInPart => "holds in part",
            Self::DoesNotHold => "does not hold",
            Self::CannotBeTold => "cannot be told",
            Self::ByConstruction => "by construction",
            Self::NotTested => "not tested",
        }
    }

    /// Derives the verdict from all comparisons, each with whether it is lenient.
    pub fn of(told: &[(BoundVerdict, bool)]) -> Self {
        let count = |which: BoundVerdict, lenient: bool| told.iter().filter(|t| **t == (which, lenient)).count();
        let strict = told.iter().filter(|(_, lenient)| !lenient).count();
        let (yes, no, open) =
            (count(BoundVerdict::Yes, false), count(BoundVerdict::No, false), count(BoundVerdict::Open, false));
        let gaps = count(BoundVerdict::Unmeasured, true);
        match (yes, no + count(BoundVerdict::No, true)) {
            _ if yes + no + open == 0 => Self::NotTested,
            (yes, 0) if yes == strict && gaps == 0 => Self::Holds,
            (0, 0) => Self::CannotBeTold,
            (0, _) => Self::DoesNotHold,
            _ => Self::HoldsInPart,
        }
    }
}

impl Bound {
    /// Returns the number of the bound.
    pub(super) fn number(self) -> f64 {
        match self {
            Self::Over(bound) | Self::AtLeast(bound) | Self::Under(bound) | Self::AtMost(bound) => bound,
        }
    }

    fn with(self, number: f64) -> Self {
        match self {
            Self::Over(_) => Self::Over(number),
            Self::AtLeast(_) => Self::AtLeast(number),
            Self::Under(_) => Self::Under(number),
            Self::AtMost(_) => Self::AtMost(number),
        }
    }

    /// Returns what an estimate's interval says about the bound.
    pub fn told(self, estimate: &Estimate) -> BoundVerdict {
        let Some((low, high)) = estimate.ends else { return BoundVerdict::Open };
        let (is, is_not) = match self {
            Self::Over(bound) => (low > bound, high <= bound),
            Self::AtLeast(bound) => (low >= bound, high < bound),
            Self::Under(bound) => (high < bound, low >= bound),
            Self::AtMost(bound) => (high <= bound, low > bound),
        };
        match (is, is_not) {
            (true, _) => BoundVerdict::Yes,
            (_, true) => BoundVerdict::No,
            _ => BoundVerdict::Open,
        }
    }

    /// Returns whether a number is within the bound, with a margin because published numbers and their differences are rounded.
    pub fn holds(self, number: f64) -> bool {
        const ROUNDING: f64 = 1e-9;
        match self {
            Self::Over(bound) => number > bound + ROUNDING,
            Self::AtLeast(bound) => number >= bound - ROUNDING,
            Self::Under(bound) => number < bound - ROUNDING,
            Self::AtMost(bound) => number <= bound + ROUNDING,
        }
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Over(bound) => write!(f, "above {bound}"),
            Self::AtLeast(bound) => write!(f, "at least {bound}"),
            Self::Under(bound) => write!(f, "below {bound}"),
            Self::AtMost(bound) => write!(f, "at most {bound}"),
        }
    }
}

impl Test {
    /// Returns the names of all rows in the test.
    pub fn rows(&self) -> impl Iterator<Item = &str> {
        let (many, one): (Vec<&Vec<String>>, Vec<&String>) = match self {
            Self::Above(t) | Self::Below(t) | Self::NoLower(t) | Self::NoHigher(t) if t.transposed => {
                (vec![&t.columns], vec![])
            }
            Self::Above(t) | Self::Below(t) | Self::NoLower(t) | Self::NoHigher(t) => (vec![&t.rows, &t.than], vec![]),
            Self::Rises(t) | Self::Falls(t) => (vec![&t.rows], vec![]),
            Self::Crosses(t) => (vec![], vec![&t.row, &t.with]),
            Self::Ratio(t) if t.transposed => (vec![&t.columns], vec![]),
            Self::Ratio(t) => (vec![], vec![&t.row, &t.to]),
            Self::Between(t) => (vec![&t.rows], vec![]),
        };
        many.into_iter().flatten().chain(one).map(String::as_str)
    }

    /// Returns the names of all columns in the test.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        let (many, one): (Vec<&Vec<String>>, Vec<&String>) = match self {
            Self::Above(t) | Self::Below(t) | Self::NoLower(t) | Self::NoHigher(t) if t.transposed => {
                (vec![&t.rows, &t.than], vec![])
            }
            Self::Above(t) | Self::Below(t) | Self::NoLower(t) | Self::NoHigher(t) => (vec![&t.columns], vec![]),
            Self::Rises(t) | Self::Falls(t) => (vec![&t.columns], vec![]),
            Self::Crosses(t) => (vec![&t.columns], vec![]),
            Self::Ratio(t) if t.transposed => (vec![], vec![&t.row, &t.to]),
            Self::Ratio(t) => (vec![&t.columns], vec![]),
            Self::Between(t) => (vec![&t.columns], vec![]),
        };
        many.into_iter().flatten().chain(one).map(String::as_str)
    }

    /// Checks that there is something to compare.
    ///
    /// # Errors
    /// If there is not; the error says what is missing.
    pub(super) fn check(&self) -> Result<(), UsageError> {
        let has_bound = match self {
            Self::Ratio(Ratio { at_least, at_most, .. }) => at_least.or(*at_most).is_some(),
            Self::Between(RowBounds { at_least, at_most, .. }) => at_least.or(*at_most).is_some(),
            _ => true,
        };
        if !has_bound {
            return Err(UsageError::new("it has no bound").hint("give at_least, at_most or both"));
        }
        let is_wrong = |c: &Comparison<'_>| {
            let share = c.bound.number();
            c.share == ShareOf::EvenWeights && !(share > 0.0 && share <= 1.0)
        };
        if let Self::Between(RowBounds { at_least: Some(least), at_most: Some(most), .. }) = self
            && least.is_share() != most.is_share()
        {
            return Err(UsageError::new("one end of the range is a number, and the other a share")
                .hint("give both ends in the unit of the cells, or both as `of_even_weights`"));
        }
        if self.comparisons().iter().any(is_wrong) {
            return Err(UsageError::new("`of_even_weights` is not a share above 0 to 1")
                .hint("half of the entropy of even weights is { of_even_weights = 0.5 }"));
        }
        match self.comparisons().is_empty() {
            true => {
                Err(UsageError::new("the test compares nothing")
                    .hint("name rows and columns; an order has two or more"))
            }
            false => Ok(()),
        }
    }

    /// Returns the comparisons of the test.
    pub fn comparisons(&self) -> Vec<Comparison<'_>> {
        match self {
            Self::Above(t) => t.each(Bound::Over(t.by)),
            Self::Below(t) => t.each(Bound::Under(0.0 - t.by)),
            Self::NoLower(t) => t.each(Bound::AtLeast(0.0 - t.by)),
            Self::NoHigher(t) => t.each(Bound::AtMost(t.by)),
            Self::Rises(t) => t.along(Bound::Over(t.by), Bound::AtLeast(0.0 - t.slack)),
            Self::Falls(t) => t.along(Bound::Under(0.0 - t.by), Bound::AtMost(t.slack)),
            Self::Crosses(t) => {
                let [first, .., last] = t.columns.as_slice() else { return Vec::new() };
                let ends = [(first, Bound::Over(0.0)), (last, Bound::Under(0.0))];
                ends.map(|(column, bound)| comparison((&t.row, column), Some((1.0, (&t.with, column))), bound)).to_vec()
            }
            Self::Ratio(t) => {
                let of = |column| {
                    let at = |factor: Option<f64>, bound| {
                        let (own, other) = match t.transposed {
                            false => ((t.row.as_str(), column), (t.to.as_str(), column)),
                            true => ((column, t.row.as_str()), (column, t.to.as_str())),
                        };
                        factor.map(|factor| comparison(own, Some((factor, other)), bound))
                    };
                    range(at(t.at_least, Bound::AtLeast(0.0)), at(t.at_most, Bound::AtMost(0.0)))
                };
                t.columns.iter().flat_map(|column| of(column.as_str())).collect()
            }
            Self::Between(t) => {
                let cells =
                    t.rows.iter().flat_map(|row| t.columns.iter().map(move |column| (row.as_str(), column.as_str())));
                let of_limit = |cell, limit: Limit, bound: fn(f64) -> Bound| {
                    let share = if limit.is_share() { ShareOf::EvenWeights } else { ShareOf::Nothing };
                    Comparison { share, ..comparison(cell, None, bound(limit.number())) }
                };
                let of = |cell| {
                    let at_least = t.at_least.map(|limit| of_limit(cell, limit, Bound::AtLeast));
                    range(at_least, t.at_most.map(|limit| of_limit(cell, limit, Bound::AtMost)))
                };
                cells.flat_map(of).collect()
            }
        }
    }
}

fn comparison<'a>(left: CellName<'a>, right: Option<(f64, CellName<'a>)>, bound: Bound) -> Comparison<'a> {
    Comparison { left, right, bound, is_lenient: false, ends_range: false, share: ShareOf::Nothing }
}

/// Joins the comparisons of one number with a lower bound, an upper bound, or both ends of a range.
fn range<'a>(lower: Option<Comparison<'a>>, upper: Option<Comparison<'a>>) -> impl Iterator<Item = Comparison<'a>> {
    let ends_range = lower.is_some();
    lower.into_iter().chain(upper.map(|upper| Comparison { ends_range, ..upper }))
}

impl Comparison<'_> {
    /// Turns a share into a number for contexts of `tokens` tokens; a bound that is a number stays as it is. `None` if the bound is a share
    /// and the length is unknown.
    pub fn at_length(self, tokens: Option<usize>) -> Option<Self> {
        if self.share != ShareOf::EvenWeights {
            return Some(self);
        }
        let (tokens, share) = (tokens?, self.bound.number());
        Some(Self {
            bound: self.bound.with(share * (tokens as f64).ln()),
            share: ShareOf::LogOf(share, tokens),
            ..self
        })
    }

    /// Returns the bound in words, with what it was computed from: `at most 3.81 (0.5 × ln 2048)`.
    pub fn bound_text(&self) -> String {
        match self.share {
            ShareOf::LogOf(share, tokens) => {
                let rounded = (100.0 * self.bound.number()).round() / 100.0;
                format!("{} ({share} × ln {tokens})", self.bound.with(rounded))
            }
            _ => self.bound.to_string(),
        }
    }
}

impl Against {
    fn each(&self, bound: Bound) -> Vec<Comparison<'_>> {
        let mut all = Vec::new();
        for column in &self.columns {
            for row in &self.rows {
                all.extend(self.than.iter().map(|than| match self.transposed {
                    false => comparison((row, column), Some((1.0, (than, column))), bound),
                    true => comparison((column, row), Some((1.0, (column, than))), bound),
                }));
            }
        }
        all
    }
}

impl Along {
    /// Compares in each line the last cell with the first, and each cell with the one before it.
    fn along(&self, whole: Bound, step: Bound) -> Vec<Comparison<'_>> {
        let cell = |line: &'_ String, at: &'_ String| -> (usize, usize) {
            let find = |list: &[String], name: &String| list.iter().position(|n| n == name).unwrap_or(0);
            if self.over_rows {
                (find(&self.rows, at), find(&self.columns, line))
            } else {
                (find(&self.rows, line), find(&self.columns, at))
            }
        };
        let (lines, order) = if self.over_rows { (&self.columns, &self.rows) } else { (&self.rows, &self.columns) };
        let place = |(row, column): (usize, usize)| (self.rows[row].as_str(), self.columns[column].as_str());
        let mut all = Vec::new();
        for line in lines {
            let [first, .., last] = order.as_slice() else { continue };
            let pair = |from, to, bound| comparison(place(cell(line, to)), Some((1.0, place(cell(line, from)))), bound);
            all.push(pair(first, last, whole));
            if order.len() > 2 {
                all.extend(order.windows(2).map(|w| Comparison { is_lenient: true, ..pair(&w[0], &w[1], step) }));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(low: f64, high: f64) -> Estimate {
        Estimate { mean: (low + high) / 2.0, ends: Some((low, high)) }
    }

    fn test(text: &str) -> Test {
        #[derive(Deserialize)]
        struct Only {
            test: Test,
        }
        toml::from_str::<Only>(&format!("test = {text}")).unwrap().test
    }

    #[test]
    fn intervals_tell_or_leave_open() {
        let rows = [
            (Bound::Over(0.0), [BoundVerdict::Yes, BoundVerdict::Open, BoundVerdict::No]),
            (Bound::AtLeast(0.0), [BoundVerdict::Yes, BoundVerdict::Open, BoundVerdict::No]),
            (Bound::Under(0.0), [BoundVerdict::No, BoundVerdict::Open, BoundVerdict::Yes]),
            (Bound::AtMost(0.0), [BoundVerdict::No, BoundVerdict::Open, BoundVerdict::Yes]),
        ];
        for (bound, told) in rows {
            let found = [between(1.0, 2.0), between(-1.0, 2.0), between(-2.0, -1.0)].map(|e| bound.told(&e));
            assert_eq!(found, told, "{bound}");
        }
        // An interval that touches the bound.
        let zero = between(0.0, 0.0);
        let found =
            [Bound::Over(0.0), Bound::AtLeast(0.0), Bound::Under(0.0), Bound::AtMost(0.0)].map(|b| b.told(&zero));
        assert_eq!(found, [BoundVerdict::No, BoundVerdict::Yes, BoundVerdict::No, BoundVerdict::Yes]);
        assert_eq!(Bound::Over(0.0).told(&Estimate { mean: 5.0, ends: None }), BoundVerdict::Open, "one context");
        assert!(Bound::AtMost(1.0).holds(1.0) && !Bound::Under(1.0).holds(1.0) && Bound::Over(0.5).holds(0.6));
    }

    #[test]
    fn verdicts_follow_from_what_was_told() {
        use BoundVerdict::{No, Open, Unmeasured, Yes};
        let of = |told: &[BoundVerdict]| ClaimVerdict::of(&told.iter().map(|t| (*t, false)).collect::<Vec<_>>());
        assert_eq!(of(&[Yes, Yes]), ClaimVerdict::Holds);
        assert_eq!(of(&[Yes, No]), ClaimVerdict::HoldsInPart);
        assert_eq!(of(&[Yes, Open]), ClaimVerdict::HoldsInPart);
        assert_eq!(of(&[Yes, Unmeasured]), ClaimVerdict::HoldsInPart);
        assert_eq!(of(&[No, Open]), ClaimVerdict::DoesNotHold);
        assert_eq!(of(&[Open, Open]), ClaimVerdict::CannotBeTold);
        assert_eq!(of(&[Unmeasured]), ClaimVerdict::NotTested);
        assert_eq!(of(&[]), ClaimVerdict::NotTested);
        // An open step does not weaken a claim; a contradicted or unmeasured one does.
        assert_eq!(ClaimVerdict::of(&[(Yes, false), (Unmeasured, true)]), ClaimVerdict::HoldsInPart);
        assert_eq!(ClaimVerdict::of(&[(Open, false), (Unmeasured, true)]), ClaimVerdict::CannotBeTold);
        assert_eq!(ClaimVerdict::of(&[(Yes, false), (Open, true)]), ClaimVerdict::Holds);
        assert_eq!(ClaimVerdict::of(&[(Yes, false), (No, true)]), ClaimVerdict::HoldsInPart);
        assert_eq!(ClaimVerdict::of(&[(Open, false), (Yes, true)]), ClaimVerdict::CannotBeTold);
        assert_eq!(ClaimVerdict::of(&[(Open, false), (No, true)]), ClaimVerdict::DoesNotHold);
    }

    #[test]
    fn tests_compare_what_they_name() {
        let told = |text: &str| -> Vec<String> {
            let of = |c: &Comparison<'_>| match c.right {
                Some((f, right)) => format!("{:?} - {f} {right:?} {}", c.left, c.bound),
                None => format!("{:?} {}", c.left, c.bound),
            };
            test(text).comparisons().iter().map(of).collect()
        };
        let above = told("{ above = { rows = ['a', 'b'], than = ['c'], columns = ['x'], by = 2 } }");
        assert_eq!(above, [r#"("a", "x") - 1 ("c", "x") above 2"#, r#"("b", "x") - 1 ("c", "x") above 2"#]);
        let lower = told("{ no_lower = { rows = ['a'], than = ['c'], columns = ['x', 'y'], by = 2 } }");
        assert_eq!(lower, [r#"("a", "x") - 1 ("c", "x") at least -2"#, r#"("a", "y") - 1 ("c", "y") at least -2"#]);
        let columns = told("{ above = { rows = ['x'], than = ['y'], columns = ['a'], transposed = true } }");
        assert_eq!(columns, [r#"("a", "x") - 1 ("a", "y") above 0"#]);
        let falls = told("{ falls = { rows = ['a', 'b', 'c'], columns = ['x'], over_rows = true, slack = 1 } }");
        let expected = [
            r#"("c", "x") - 1 ("a", "x") below 0"#,
            r#"("b", "x") - 1 ("a", "x") at most 1"#,
            r#"("c", "x") - 1 ("b", "x") at most 1"#,
        ];
        assert_eq!(falls, expected);
        let rises = told("{ rises = { rows = ['a'], columns = ['x', 'y'] } }");
        assert_eq!(rises, [r#"("a", "y") - 1 ("a", "x") above 0"#]);
        let crosses = told("{ crosses = { row = 'a', with = 'b', columns = ['x', 'y', 'z'] } }");
        assert_eq!(crosses, [r#"("a", "x") - 1 ("b", "x") above 0"#, r#"("a", "z") - 1 ("b", "z") below 0"#]);
        let ratio = told("{ ratio = { row = 'a', to = 'b', columns = ['x'], at_least = 0.5, at_most = 2 } }");
        assert_eq!(ratio, [r#"("a", "x") - 0.5 ("b", "x") at least 0"#, r#"("a", "x") - 2 ("b", "x") at most 0"#]);
        let of_columns = "{ ratio = { row = 'x', to = 'y', columns = ['a'], at_least = 0.5, transposed = true } }";
        assert_eq!(told(of_columns), [r#"("a", "x") - 0.5 ("a", "y") at least 0"#]);
        let of_columns = test(of_columns);
        assert_eq!(of_columns.rows().collect::<Vec<_>>(), ["a"]);
        assert_eq!(of_columns.columns().collect::<Vec<_>>(), ["x", "y"]);
        let bounds = told("{ between = { rows = ['a'], columns = ['x'], at_most = 2 } }");
        assert_eq!(bounds, [r#"("a", "x") at most 2"#]);
    }

    #[test]
    fn both_ends_of_a_range_are_one_answer() {
        use BoundVerdict::{No, Open, Unmeasured, Yes};
        let ends = |text: &str| test(text).comparisons().iter().map(|c| c.ends_range).collect::<Vec<_>>();
        let range = "{ between = { rows = ['a', 'b'], columns = ['x'], at_least = 1, at_most = 2 } }";
        assert_eq!(ends(range), [false, true, false, true]);
        assert_eq!(ends("{ between = { rows = ['a', 'b'], columns = ['x'], at_most = 2 } }"), [false, false]);
        let ratio = "{ ratio = { row = 'a', to = 'b', columns = ['x', 'y'], at_least = 0.5, at_most = 2 } }";
        assert_eq!(ends(ratio), [false, true, false, true]);
        // A number above the range satisfies its lower end.
        let of = [(Yes, No), (No, Yes), (Yes, Yes), (Yes, Open), (Open, No), (Open, Open), (Unmeasured, Unmeasured)];
        let ranges = of.map(|(lower, upper)| lower.of_range(upper));
        assert_eq!(ranges, [No, No, Yes, Open, No, Open, Unmeasured]);
    }

    #[test]
    fn a_share_of_even_weights_is_a_number_at_the_length_that_was_run() {
        let of = "{ between = { rows = ['a'], columns = ['x'], at_most = { of_even_weights = 0.5 } } }";
        let test_of = test(of);
        assert!(test_of.check().is_ok());
        // Half of ln 4096 is 4.16, half of ln 2048 is 3.81: numbers in between are within the bound at one length only.
        let estimate = between(3.9, 4.1);
        let at = |tokens| test_of.comparisons().remove(0).at_length(Some(tokens)).unwrap();
        assert_eq!(
            (at(4096).bound.told(&estimate), at(2048).bound.told(&estimate)),
            (BoundVerdict::Yes, BoundVerdict::No)
        );
        assert_eq!(at(4096).bound_text(), "at most 4.16 (0.5 × ln 4096)");
        assert_eq!(at(2048).bound_text(), "at most 3.81 (0.5 × ln 2048)");
        let open = test_of.comparisons().remove(0);
        assert!(open.clone().at_length(None).is_none(), "no bound without a length");
        let plain = test("{ between = { rows = ['a'], columns = ['x'], at_most = 12.348 } }");
        let plain = plain.comparisons().remove(0).at_length(None).unwrap();
        assert_eq!(plain.bound_text(), "at most 12.348");
        let refused = test(&of.replace("0.5", "1.5")).check().unwrap_err().what;
        assert!(refused.contains("not a share"), "{refused}");
        let unknown = format!("test = {}", of.replace("of_even_weights", "of_weights"));
        #[derive(Debug, Deserialize)]
        #[allow(dead_code)]
        struct Only {
            test: Test,
        }
        let error = toml::from_str::<Only>(&unknown).unwrap_err().to_string();
        assert!(error.contains("{ of_even_weights = SHARE }"), "{error}");
    }

    #[test]
    fn what_compares_nothing_is_refused() {
        let refused = |text: &str| test(text).check().unwrap_err().what;
        assert!(refused("{ between = { rows = ['a'], columns = ['x'] } }").contains("no bound"));
        let mixed =
            "{ between = { rows = ['a'], columns = ['x'], at_least = 1, at_most = { of_even_weights = 0.5 } } }";
        assert!(refused(mixed).contains("the other a share"));
        assert!(refused("{ rises = { rows = ['a'], columns = ['x'] } }").contains("compares nothing"));
        assert!(refused("{ above = { rows = [], than = ['c'], columns = ['x'] } }").contains("compares nothing"));
        assert!(refused("{ crosses = { row = 'a', with = 'b', columns = ['x'] } }").contains("compares nothing"));
    }
}

//! Methods at equal costs: of each method's budgets, the dearest one whose measured cost is within a share of dense attention's. Nothing
//! is interpolated: each number belongs to a budget that was run, and stands beside that budget's measured cost.

use super::equal::EqualCost;
use super::item::Item;
use super::outcome::{Cell, ItemOutcome, Number};

/// One method in a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct EqualRow {
    /// The method's name.
    pub group: String,
    /// For each share, the dearest budget within it; `None` if none is.
    pub picked: Vec<Option<Picked>>,
    /// The least cost of the method's budgets, in percent of dense attention's.
    pub least: f64,
}

/// The budget that is shown for a method.
#[derive(Debug, Clone, PartialEq)]
pub struct Picked {
    /// The row's name.
    pub row: String,
    /// Its cost in percent of dense attention's.
    pub cost: f64,
    /// The shown numbers, and whether each is a score at the floor.
    pub shown: Vec<Option<(Number, bool)>>,
}

impl EqualCost {
    /// Compares the methods, one row each in the order of the item's rows; empty if dense attention's cost was not measured.
    pub fn rows(&self, item: &Item, outcome: &ItemOutcome) -> Vec<EqualRow> {
        let mean = |row: &str| outcome.number(row, &self.cost).map(|(number, _)| number.mean);
        let Some(dense) = mean(&self.dense).filter(|dense| *dense > 0.0) else { return Vec::new() };
        let mut groups: Vec<(&str, Vec<Picked>)> = Vec::new();
        for row in &item.rows {
            let (Some(group), Some(cost)) = (row.group.as_deref(), mean(&row.name)) else { continue };
            let shown = |column: &String| -> Option<Cell> { outcome.number(&row.name, column) };
            let shown = self.shows.iter().map(shown).collect();
            let budget = Picked { row: row.name.clone(), cost: 100.0 * cost / dense, shown };
            match groups.iter_mut().find(|(name, _)| *name == group) {
                Some((_, budgets)) => budgets.push(budget),
                None => groups.push((group, vec![budget])),
            }
        }
        groups.into_iter().map(|(group, budgets)| self.row(group, &budgets)).collect()
    }

    fn row(&self, group: &str, budgets: &[Picked]) -> EqualRow {
        let within = |most: &f64| {
            let fits = budgets.iter().filter(|budget| budget.cost <= *most);
            fits.max_by(|a, b| a.cost.total_cmp(&b.cost)).cloned()
        };
        EqualRow {
            group: group.to_owned(),
            picked: self.within.iter().map(within).collect(),
            least: budgets.iter().map(|budget| budget.cost).fold(f64::INFINITY, f64::min),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::{CellOutcome, OutcomeRow};
    use super::*;

    const ITEM: &str = "
title = 'a'
[run]
model = 'x/y'
tasks = ['ruler/vt']
[[row]]
name = 'Full'
method = 'full'
[[row]]
name = 'Top 1'
group = 'Top'
method = 'topk:k=1'
[[row]]
name = 'Top 3'
group = 'Top'
method = 'topk:k=3'
[[row]]
name = 'Top 2'
group = 'Top'
method = 'topk:k=2'
[[row]]
name = 'Quest'
group = 'Quest'
method = 'quest'
[[column]]
name = 'VT'
[[column]]
name = 'Read'
value = 'kv_bytes_per_token'
[[equal]]
title = 'At equal bytes'
cost = 'Read'
dense = 'Full'
within = [10, 20]
shows = ['VT']
";

    fn outcome(numbers: &[(&str, f64, f64)]) -> ItemOutcome {
        let cell = |mean| CellOutcome {
            measured: Some(Number { mean, ends: None, n: 1, most: None, is_named: false }),
            ..CellOutcome::default()
        };
        let row = |(name, score, read): &(&str, f64, f64)| OutcomeRow {
            name: (*name).to_owned(),
            cells: vec![cell(*score), cell(*read)],
            ..OutcomeRow::default()
        };
        ItemOutcome {
            columns: vec!["VT".to_owned(), "Read".to_owned()],
            rows: numbers.iter().map(row).collect(),
            ..ItemOutcome::default()
        }
    }

    #[test]
    fn the_dearest_budget_within_a_share_is_taken_whatever_it_scores() {
        let item = Item::parse(ITEM, "item.toml").unwrap();
        let numbers = [
            ("Full", 90.0, 200.0),
            ("Top 1", 80.0, 10.0),
            ("Top 3", 70.0, 41.0),
            ("Top 2", 60.0, 20.0),
            ("Quest", 50.0, 90.0),
        ];
        let rows = item.equal[0].rows(&item, &outcome(&numbers));
        let names: Vec<_> = rows.iter().map(|row| row.group.as_str()).collect();
        assert_eq!(names, ["Top", "Quest"]);
        let picked = |row: &EqualRow| -> Vec<_> {
            row.picked.iter().map(|one| one.as_ref().map(|one| (one.row.clone(), one.cost))).collect()
        };
        // A budget at the bound is within it; one half a percent above the bound is not.
        assert_eq!(picked(&rows[0]), [Some(("Top 2".to_owned(), 10.0)), Some(("Top 2".to_owned(), 10.0))]);
        assert_eq!((picked(&rows[1]), rows[1].least), (vec![None, None], 45.0));
        assert_eq!(rows[0].picked[0].as_ref().unwrap().shown[0].unwrap().0.mean, 60.0);
        assert!(
            item.equal[0].rows(&item, &outcome(&numbers[1..])).is_empty(),
            "without dense attention there is no share"
        );
    }

    #[test]
    fn shares_that_do_not_rise_and_unknown_names_are_refused() {
        let error = |from: &str, to: &str| Item::parse(&ITEM.replace(from, to), "item.toml").unwrap_err().what;
        assert!(error("[10, 20]", "[20, 10]").contains("rise"));
        assert!(error("cost = 'Read'", "cost = 'Bytes'").contains("unknown column `Bytes`"));
        assert!(error("dense = 'Full'", "dense = 'Dense'").contains("unknown row `Dense`"));
    }
}

//! Tables that compare methods at equal costs, for an item's page and the front page.

use std::fmt::Write as _;

use super::files::ItemResults;
use super::table::number;
use spattn_base::text::in_markdown;
use spattn_lab::papers::equal::EqualCost;
use spattn_lab::papers::equal_rows::EqualRow;
use spattn_lab::papers::numbers::short;
use spattn_lab::papers::outcome::ItemOutcome;

/// All comparisons of an item at equal costs, from an outcome's numbers; empty if there are none.
pub fn equal_costs(results: &ItemResults, outcome: &ItemOutcome) -> String {
    results.item.equal.iter().map(|equal| one(results, outcome, equal)).collect()
}

fn one(results: &ItemResults, outcome: &ItemOutcome, equal: &EqualCost) -> String {
    let rows = equal.rows(&results.item, outcome);
    if rows.is_empty() {
        return String::new();
    }
    // A column that this run did not measure is not shown.
    let is_shown =
        |at: &usize| rows.iter().flat_map(|row| row.picked.iter().flatten()).any(|picked| picked.shown[*at].is_some());
    let at: Vec<usize> = (0..equal.shows.len()).filter(is_shown).collect();
    let shows: Vec<&String> = at.iter().map(|at| &equal.shows[*at]).collect();
    let mut text = format!("\n### {}\n\n", in_markdown(&equal.title));
    let shares: Vec<String> = equal.within.iter().map(|share| format!("at most {share} %")).collect();
    let headings = |share: &String| {
        let shown = shows.iter().map(|column| format!("{}, {share}", in_markdown(column)));
        shown.chain([format!("budget, {share}")]).collect::<Vec<_>>().join(" | ")
    };
    let all: Vec<String> = shares.iter().map(headings).collect();
    let width = equal.within.len() * (shows.len() + 1);
    let _ = write!(text, "| method | {} |\n|---|{}\n", all.join(" | "), "---|".repeat(width));
    for row in &rows {
        let _ = writeln!(text, "| {} | {} |", in_markdown(&row.group), cells(row, &at).join(" | "));
    }
    let dense: Vec<String> = shows.iter().filter_map(|column| dense(outcome, equal, column)).collect();
    let _ = writeln!(
        text,
        "\nDense attention: {}. Each cell is of the dearest budget that was run and whose cost ({}) is within the share of dense attention's, beside the \
         share that was measured; nothing is interpolated.{}",
        dense.join(", "),
        in_markdown(&equal.cost),
        equal.note.as_ref().map_or(String::new(), |note| format!(" {}", in_markdown(note)))
    );
    text
}

fn dense(outcome: &ItemOutcome, equal: &EqualCost, column: &str) -> Option<String> {
    let (known, _) = outcome.number(&equal.dense, column)?;
    Some(format!("{} {}", in_markdown(column), number(known)))
}

/// The cells of a method: for each share, the numbers and the budget with its cost. If no budget is within the share, the least cost.
fn cells(row: &EqualRow, shown: &[usize]) -> Vec<String> {
    let mut cells = Vec::new();
    for picked in &row.picked {
        let Some(picked) = picked else {
            cells.extend(std::iter::repeat_n("–".to_owned(), shown.len()));
            cells.push(format!("from {} %", short(row.least)));
            continue;
        };
        let text = |cell: &Option<_>| match cell {
            Some((known, at_floor)) => format!("{}{}", number(*known), if *at_floor { " (at the floor)" } else { "" }),
            None => String::new(),
        };
        cells.extend(shown.iter().map(|at| text(&picked.shown[*at])));
        cells.push(format!("{}: {} %", in_markdown(&picked.row), short(picked.cost)));
    }
    cells
}

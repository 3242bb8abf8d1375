//! A paper's table over two parameters, as heat maps: one of published numbers, one of measured numbers.
//!
//! A row's name is its place, as `(8,75)` or `DS 1/4`. Rows whose names do not end in a number have none, and are named below.

use anyhow::Result;

use super::grid::{Deeper, Grid, GridPanel, Scale};
use super::paper_rows::DrawnRow;
use super::{Figure, MOST_PAGES, paged};
use spattn_lab::papers::item::GridAxes;
use spattn_lab::papers::numbers::short;
use spattn_lab::papers::outcome::CellOutcome;

/// The place of a row: its labels on both axes.
fn place(name: &str) -> Option<(String, String)> {
    let bracketed =
        name.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).and_then(|rest| rest.split_once(','));
    let (line, column) = bracketed.or_else(|| name.rsplit_once(' '))?;
    let (line, column) = (line.trim(), column.trim());
    column.starts_with(|first: char| first.is_ascii_digit()).then(|| (line.to_owned(), column.to_owned()))
}

/// The heat maps of a column.
///
/// # Errors
/// If the drawing fails, for which text output gives no cause.
pub(super) fn figures(
    axes: &GridAxes,
    (rows, at): (&[DrawnRow<'_>], usize),
    title: &str,
    file: &str,
    has_published: bool,
) -> Result<Vec<Figure>> {
    let (mut lines, mut columns): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    let (mut published, mut measured, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        let cell: CellOutcome = row.row.cells.get(at).copied().unwrap_or_default();
        let own = cell.published.filter(|_| has_published);
        let ours = cell.measured.map(|number| number.mean);
        let Some((line, column)) = place(&row.row.name) else {
            let numbers =
                [own.map(|x| format!("{} published", short(x))), ours.map(|x| format!("{} measured", short(x)))];
            let numbers: Vec<String> = numbers.into_iter().flatten().collect();
            if !numbers.is_empty() {
                notes.push(format!("{}: {}", row.row.name, numbers.join(", ")));
            }
            continue;
        };
        let (line, column) = (index(&mut lines, line), index(&mut columns, column));
        published.extend(own.map(|value| (line, column, value)));
        measured.extend(ours.map(|value| (line, column, value)));
    }
    let panels: Vec<GridPanel> = [("published", published), ("measured", measured)]
        .into_iter()
        .filter(|(_, cells)| !cells.is_empty())
        .map(|(title, cells)| GridPanel { title: title.to_owned(), cells })
        .collect();
    if panels.is_empty() {
        return Ok(Vec::new());
    }
    let values: Vec<f64> = panels.iter().flat_map(|panel| panel.cells.iter().map(|cell| cell.2)).collect();
    let grid = Grid {
        title: title.to_owned(),
        x_label: axes.across.clone(),
        y_label: axes.down.clone(),
        columns,
        lines,
        panels,
        scale: Scale::up_to(&axes.of, values.into_iter(), Deeper::More),
        notes,
    };
    Ok(paged(file, title, grid.pages(MOST_PAGES)?))
}

/// The index of a name. A new name is appended.
fn index(names: &mut Vec<String>, name: String) -> usize {
    names.iter().position(|known| *known == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    })
}

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn a_place_is_in_the_rows_name() {
        let of = |name: &str| place(name).map(|(line, column)| format!("{line}|{column}"));
        assert_eq!(["DS 1/4", "(8, 75)", "Full"].map(of), [Some("DS|1/4".into()), Some("8|75".into()), None]);
        assert_eq!(of("DS 1/16, sinks and window"), None);
    }
}

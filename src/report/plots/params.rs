//! `params_*.svg`: scores over two parameters of a method, such as the K and L of LSH.

use std::collections::BTreeSet;

use anyhow::Result;

use super::grid::{Grid, Panel, Scale};
use super::{Figures, as_file_name, end_of};
use crate::eval::order::natural;
use crate::eval::record::SummaryRow;
use crate::report::format::{distinct, params_without, tokens};

/// The rows in which two numeric parameters vary and all else is one setting.
struct Plane<'a> {
    model: &'a str,
    protocol: &'a str,
    length: usize,
    method: &'a str,
    x: String,
    y: String,
    /// The other parameters.
    rest: String,
}

/// One figure for each model, protocol, length, method and pair of numeric parameters with at least two values each,
/// with a panel for each task; `means` as for [`trade::figures`](super::trade::figures). Perplexities have none.
///
/// # Errors
/// If the drawing fails, for which text output gives no cause.
pub fn figures(rows: &[SummaryRow], means: &[SummaryRow]) -> Result<Figures> {
    let rows: Vec<&SummaryRow> = means.iter().chain(rows).filter(|r| r.measure.is_score()).collect();
    let planes = planes(&rows);
    let mut files = BTreeSet::new();
    let mut figures = Figures::default();
    for plane in &planes {
        let several = planes.iter().filter(|p| (p.method, p.length) == (plane.method, plane.length)).count() > 1;
        let mut parts = vec![plane.method.to_owned(), format!("{}-{}", plane.y, plane.x)];
        parts.extend((plane.length > 0).then(|| plane.length.to_string()));
        if several {
            parts.extend([as_file_name(plane.model), as_file_name(plane.protocol), as_file_name(&plane.rest)]);
        }
        parts.retain(|part| !part.is_empty());
        let grid = plane.grid(&rows);
        let file = format!("params_{}.svg", parts.join("_"));
        if files.insert(file.clone()) {
            figures.grid(&file, &grid)?;
        }
    }
    Ok(figures)
}

fn is_number(value: &str) -> bool {
    value.parse::<f64>().is_ok()
}

/// The values of two parameters, and what is left of those that are named.
fn split<'a>(row: &'a SummaryRow, y: &str, x: &str) -> Option<(&'a str, &'a str, String)> {
    let of = |key: &str| row.settings.get(key).map(String::as_str).filter(|value| is_number(value));
    Some((of(y)?, of(x)?, params_without(row, |key| key == x || key == y)))
}

fn planes<'a>(rows: &[&'a SummaryRow]) -> Vec<Plane<'a>> {
    let mut planes: Vec<Plane> = Vec::new();
    for row in rows {
        let numeric: Vec<&str> =
            row.settings.iter().filter(|(_, value)| is_number(value)).map(|(key, _)| key.as_str()).collect();
        for (i, y) in numeric.iter().enumerate() {
            for x in &numeric[i + 1..] {
                let Some((_, _, rest)) = split(row, y, x) else { continue };
                let SummaryRow { model, protocol, length, method, .. } = row;
                let plane = Plane { model, protocol, length: *length, method, x: (*x).into(), y: (*y).into(), rest };
                let known = planes.iter().any(|p| p.place() == plane.place());
                if !known && plane.is_grid(rows) {
                    planes.push(plane);
                }
            }
        }
    }
    planes
}

impl<'a> Plane<'a> {
    fn place(&self) -> (&str, &str, usize, &str, &str, &str, &str) {
        (self.model, self.protocol, self.length, self.method, &self.x, &self.y, &self.rest)
    }

    /// Rows in the plane with their values of `y` and `x`.
    fn rows(&self, rows: &[&'a SummaryRow]) -> Vec<(&'a str, &'a str, &'a SummaryRow)> {
        let is_here = |r: &SummaryRow| {
            (r.model.as_str(), r.protocol.as_str(), r.length, r.method.as_str())
                == (self.model, self.protocol, self.length, self.method)
        };
        let placed = |r: &&'a SummaryRow| {
            let (y, x, rest) = split(r, &self.y, &self.x)?;
            (is_here(r) && rest == self.rest).then_some((y, x, *r))
        };
        rows.iter().filter_map(placed).collect()
    }

    fn is_grid(&self, rows: &[&'a SummaryRow]) -> bool {
        let rows = self.rows(rows);
        let several = |values: Vec<&str>| distinct(values).len() > 1;
        several(rows.iter().map(|r| r.0).collect()) && several(rows.iter().map(|r| r.1).collect())
    }

    fn grid(&self, rows: &[&'a SummaryRow]) -> Grid {
        let rows = self.rows(rows);
        let values = |of: fn(&(&'a str, &'a str, &'a SummaryRow)) -> &'a str| {
            let mut all = distinct(rows.iter().map(of));
            all.sort_by(|a, b| natural(a, b));
            all
        };
        let (ys, xs) = (values(|r| r.0), values(|r| r.1));
        let at = |all: &[&str], value: &str| all.iter().position(|v| *v == value).unwrap_or(0);
        let panel = |task: &str| Panel {
            title: task.to_owned(),
            cells: rows
                .iter()
                .filter(|r| r.2.task == task)
                .map(|(y, x, r)| (at(&ys, y), at(&xs, x), r.score))
                .collect(),
        };
        let length = if self.length > 0 { format!(", {} tokens", tokens(self.length)) } else { String::new() };
        let rest = if self.rest.is_empty() { String::new() } else { format!(" ({})", self.rest) };
        Grid {
            title: format!(
                "{}{rest}: score by {} and {}, {}{length}, sparse from {}",
                self.method,
                self.y,
                self.x,
                end_of(self.model),
                self.protocol
            ),
            x_label: self.x.clone(),
            y_label: self.y.clone(),
            panels: distinct(rows.iter().map(|r| r.2.task.as_str())).into_iter().map(panel).collect(),
            columns: xs.iter().map(|v| (*v).to_owned()).collect(),
            lines: ys.iter().map(|v| (*v).to_owned()).collect(),
            scale: Scale::percent(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::record::Record;
    use crate::eval::record::tests::record;
    use crate::eval::summary::summarize;

    #[test]
    fn two_values_of_two_parameters_make_a_map() {
        let at = |params: &str, score| Record {
            params: params.into(),
            key: params.into(),
            ..record("ruler/vt", "magicpig", 0, score)
        };
        let drawn = |records: &[Record]| figures(&summarize(records, &[]), &[]).unwrap().first;
        let line = [at("K=8,L=75", 1.0), at("K=8,L=150", 0.5)];
        assert!(drawn(&line).is_empty());
        let figures = drawn(&[line.to_vec(), vec![at("K=10,L=75", 0.25)]].concat());
        assert_eq!(figures.iter().map(|f| f.file.as_str()).collect::<Vec<_>>(), ["params_magicpig_K-L_4096.svg"]);
        let title = "magicpig: score by K and L, builtin, 4K tokens, sparse from question";
        assert_eq!(figures[0].title, title, "maps of several protocols are told apart");
        let svg = &figures[0].svg;
        assert!(svg.find("\n8\n") < svg.find("\n10\n"), "values in their own order");
        assert!(svg.contains("\n25\n") && svg.contains("\n150\n"));
    }
}

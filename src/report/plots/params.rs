//! `params_*.svg`: scores over two parameters of a method, for example K and L of LSH.

use std::collections::{BTreeSet, HashMap};

use anyhow::Result;

use super::grid::{Grid, GridPanel, Scale};
use super::{Figures, as_file_name, end_of};
use crate::report::format::{params_without, tokens};
use spattn_eval::records::order::natural;
use spattn_eval::summary::columns::SummaryRow;

/// What rows have in common that differ only in two numeric parameters.
#[derive(PartialEq, Eq, Hash, Clone)]
struct Plane<'a> {
    model: &'a str,
    protocol: &'a str,
    length: usize,
    method: &'a str,
    x: &'a str,
    y: &'a str,
    /// All other parameters, as text.
    rest: String,
}

/// A row of a plane, with its values of the parameters `y` and `x`.
type Placed<'a> = (&'a str, &'a str, &'a SummaryRow);

/// One figure for each model, protocol, length, method and pair of numeric parameters with at least two values each, with a panel for each
/// task. `means` are as for [`trade::figures`](super::trade::figures). Perplexities are not drawn. At most `most` pages are drawn.
///
/// # Errors
/// If the drawing fails, for which text output gives no cause.
pub fn figures(rows: &[SummaryRow], means: &[SummaryRow], most: usize) -> Result<Figures> {
    let planes = planes(means.iter().chain(rows).filter(|r| r.measure.is_score()));
    let mut together: HashMap<(&str, usize), usize> = HashMap::new();
    planes.iter().for_each(|(plane, _)| *together.entry((plane.method, plane.length)).or_default() += 1);
    let mut files = BTreeSet::new();
    let mut figures = Figures::up_to(most);
    for (plane, rows) in &planes {
        let mut parts = vec![plane.method.to_owned(), format!("{}-{}", plane.y, plane.x)];
        parts.extend((plane.length > 0).then(|| plane.length.to_string()));
        if together[&(plane.method, plane.length)] > 1 {
            parts.extend([as_file_name(plane.model), as_file_name(plane.protocol), as_file_name(&plane.rest)]);
        }
        parts.retain(|part| !part.is_empty());
        let file = format!("params_{}.svg", parts.join("_"));
        if files.insert(file.clone()) && !figures.is_full(&file) {
            figures.grid(&file, &plane.grid(rows))?;
        }
    }
    Ok(figures)
}

fn is_number(value: &str) -> bool {
    value.parse::<f64>().is_ok()
}

/// The planes in which both parameters have several values, in the order of their first rows.
fn planes<'a>(rows: impl Iterator<Item = &'a SummaryRow>) -> Vec<(Plane<'a>, Vec<Placed<'a>>)> {
    let mut known: HashMap<Plane, usize> = HashMap::new();
    let mut planes: Vec<(Plane, Vec<Placed>)> = Vec::new();
    for row in rows {
        let SummaryRow { model, protocol, length, method, .. } = row;
        let numeric: Vec<(&str, &str)> =
            row.settings.iter().map(|(key, value)| (key.as_str(), value.as_str())).filter(|s| is_number(s.1)).collect();
        for (i, (y, of_y)) in numeric.iter().enumerate() {
            for (x, of_x) in &numeric[i + 1..] {
                let rest = params_without(row, |key| key == *x || key == *y);
                let plane = Plane { model, protocol, length: *length, method, x, y, rest };
                let at = *known.entry(plane).or_insert_with_key(|plane| {
                    planes.push((plane.clone(), Vec::new()));
                    planes.len() - 1
                });
                planes[at].1.push((of_y, of_x, row));
            }
        }
    }
    let is_grid =
        |rows: &[Placed]| rows.iter().any(|row| row.0 != rows[0].0) && rows.iter().any(|row| row.1 != rows[0].1);
    planes.retain(|(_, rows)| is_grid(rows));
    planes
}

impl<'a> Plane<'a> {
    /// The heat map of `rows`, of which there is at least one.
    fn grid(&self, rows: &[Placed<'a>]) -> Grid {
        let values = |of: fn(&Placed<'a>) -> &'a str| {
            let mut all: Vec<&str> = rows.iter().map(of).collect();
            all.sort_by(|a, b| natural(a, b));
            all.dedup();
            all
        };
        let (ys, xs) = (values(|r| r.0), values(|r| r.1));
        let at = |all: &[&str]| all.iter().enumerate().map(|(i, value)| ((*value).to_owned(), i)).collect();
        let (of_y, of_x): (HashMap<String, usize>, HashMap<String, usize>) = (at(&ys), at(&xs));
        let mut tasks: HashMap<&str, usize> = HashMap::new();
        let mut panels: Vec<GridPanel> = Vec::new();
        for (y, x, row) in rows {
            let task = *tasks.entry(&row.task).or_insert_with(|| {
                panels.push(GridPanel { title: row.task.clone(), cells: Vec::new() });
                panels.len() - 1
            });
            panels[task].cells.push((of_y[*y], of_x[*x], row.score));
        }
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
            x_label: self.x.to_owned(),
            y_label: self.y.to_owned(),
            panels,
            columns: xs.iter().map(|v| (*v).to_owned()).collect(),
            lines: ys.iter().map(|v| (*v).to_owned()).collect(),
            scale: Scale::percent(),
            notes: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::records::record::Record;
    use spattn_eval::records::testing::record;
    use spattn_eval::summary::summarize::summarize;

    #[test]
    fn two_values_of_two_parameters_make_a_map() {
        let at = |params: &str, score| Record {
            params: params.into(),
            key: params.into(),
            ..record("ruler/vt", "magicpig", 0, score)
        };
        let drawn = |records: &[Record]| figures(&summarize(records, &[]), &[], 99).unwrap().first;
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

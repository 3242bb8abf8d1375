//! The results of an analysis: tables of numbers, and what to draw from them. Other modules lay them out.

use std::collections::BTreeMap;

use serde::Serialize;

/// The results of an analysis.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Findings {
    /// The tables, in the order to read them.
    pub tables: Vec<Table>,
    /// The drawings, in the order to look at them.
    #[serde(skip)]
    pub drawings: Vec<Drawing>,
    /// Notes for the reader, one line each.
    pub notes: Vec<String>,
}

/// A table of numbers, with keys that name its rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Table {
    /// The name of its file, without the extension.
    pub name: String,
    /// What it shows, and what the means are over.
    pub title: String,
    /// The headings of the key columns.
    pub keys: Vec<String>,
    /// The number columns.
    pub columns: Vec<Column>,
    /// The rows.
    pub rows: Vec<FindingsRow>,
    /// Whether it is too long to print, such as one row for each head.
    pub is_detail: bool,
}

/// A column of numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Column {
    /// The heading.
    pub name: String,
    /// The unit of its numbers.
    pub unit: Unit,
    /// The number of draws that its numbers are averaged over, if the analysis made them itself; `None` if they
    /// are averaged over the documents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drawn: Option<usize>,
}

/// How numbers are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A share, shown in percent.
    Share,
    /// A plain number.
    Number,
    /// A number of tokens.
    Tokens,
}

/// A row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FindingsRow {
    /// One key for each of the table's `keys`.
    pub keys: Vec<String>,
    /// One number for each column; `None` if it is missing.
    pub numbers: Vec<Option<f64>>,
}

impl Table {
    /// A table without rows.
    pub fn new(name: &str, title: &str, keys: &[&str], columns: &[(&str, Unit)]) -> Self {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let columns =
            columns.iter().map(|(name, unit)| Column { name: (*name).to_owned(), unit: *unit, drawn: None }).collect();
        Self {
            name: name.to_owned(),
            title: title.to_owned(),
            keys: owned(keys),
            columns,
            rows: Vec::new(),
            is_detail: false,
        }
    }

    /// The same table, marked as too long to print.
    pub fn detail(self) -> Self {
        Self { is_detail: true, ..self }
    }

    /// Returns the table with `columns` marked as averaged over `count` draws of the analysis itself.
    pub fn drawn(mut self, columns: &[&str], count: usize) -> Self {
        let own = self.columns.iter_mut().filter(|column| columns.contains(&column.name.as_str()));
        own.for_each(|column| column.drawn = Some(count));
        self
    }

    /// Adds a row. Numbers that are not finite count as missing.
    pub fn push<K: ToString>(&mut self, keys: impl IntoIterator<Item = K>, numbers: impl IntoIterator<Item = f64>) {
        let finite = |x: f64| Some(x).filter(|x| x.is_finite());
        let row = FindingsRow {
            keys: keys.into_iter().map(|key| key.to_string()).collect(),
            numbers: numbers.into_iter().map(finite).collect(),
        };
        debug_assert_eq!((row.keys.len(), row.numbers.len()), (self.keys.len(), self.columns.len()));
        self.rows.push(row);
    }
}

/// A drawing.
#[derive(Debug, Clone, PartialEq)]
pub enum Drawing {
    /// Lines in panels.
    Lines(Lines),
    /// Shades by layer and query head.
    Map(Map),
}

/// Lines in panels with common axes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Lines {
    /// The name of its file, without the extension.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// The label of the horizontal axis.
    pub x_label: String,
    /// The label of the vertical axis.
    pub y_label: String,
    /// Whether the horizontal axis is logarithmic.
    pub log_x: bool,
    /// Whether the vertical axis is logarithmic.
    pub log_y: bool,
    /// The panels.
    pub panels: Vec<Panel>,
}

/// One panel.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Panel {
    /// The panel's title.
    pub title: String,
    /// The lines' names and points.
    pub series: Vec<(String, Vec<Point>)>,
}

/// A point of a line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The horizontal coordinate.
    pub x: f64,
    /// The vertical coordinate.
    pub y: f64,
    /// The least and greatest of the values whose mean is `y`; `None` if they are not shown.
    pub ends: Option<(f64, f64)>,
}

impl Point {
    /// A point without a range.
    pub fn at(x: f64, y: f64) -> Self {
        Self { x, y, ends: None }
    }
}

/// Cells `(layer, head, number)`.
pub type Cells = Vec<(usize, usize, f64)>;

/// Numbers by layer and query head, such as shares, whose scale starts at 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Map {
    /// The name of its file, without the extension.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// What the numbers are.
    pub label: String,
    /// The panels' titles and cells.
    pub panels: Vec<(String, Cells)>,
}

// ---- means ----

/// The key of a tally: a task's documents at one layer and query head.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TallyKey {
    /// The task, or the text's name.
    pub task: String,
    /// Layer, from 0.
    pub layer: usize,
    /// Query head, from 0.
    pub head: usize,
}

/// Sums over queries, by task, layer and head.
#[derive(Debug, Clone, Default)]
pub struct Tally(BTreeMap<TallyKey, (Vec<f64>, usize)>);

impl Tally {
    /// Adds the numbers of one query.
    pub fn add(&mut self, task: &str, layer: usize, head: usize, numbers: &[f64]) {
        let place = TallyKey { task: task.to_owned(), layer, head };
        let (sums, count) = self.0.entry(place).or_insert_with(|| (vec![0.0; numbers.len()], 0));
        sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        *count += 1;
    }

    /// Returns the means over all queries of each group. Keys whose group is `None` are left out.
    pub fn means<G: Ord>(&self, group: impl Fn(&TallyKey) -> Option<G>) -> BTreeMap<G, Vec<f64>> {
        let mut sums: BTreeMap<G, (Vec<f64>, usize)> = BTreeMap::new();
        for (place, (numbers, count)) in &self.0 {
            let Some(group) = group(place) else { continue };
            let (sum, all) = sums.entry(group).or_insert_with(|| (vec![0.0; numbers.len()], 0));
            sum.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
            *all += count;
        }
        let mean = |(sums, count): (Vec<f64>, usize)| sums.into_iter().map(|sum| sum / count.max(1) as f64).collect();
        sums.into_iter().map(|(group, sums)| (group, mean(sums))).collect()
    }

    /// Returns the means by layer and head.
    pub fn heads(&self) -> BTreeMap<(usize, usize), Vec<f64>> {
        self.means(|place| Some((place.layer, place.head)))
    }

    /// Returns the means by layer.
    pub fn layers(&self) -> BTreeMap<usize, Vec<f64>> {
        self.means(|place| Some(place.layer))
    }

    /// Returns the means by task.
    pub fn tasks(&self) -> BTreeMap<String, Vec<f64>> {
        self.means(|place| Some(place.task.clone()))
    }

    /// Returns the overall means; `None` if nothing was added.
    pub fn overall(&self) -> Option<Vec<f64>> {
        self.means(|_| Some(())).remove(&())
    }

    /// Returns a table of the means by layer, with the overall means as the last row.
    pub fn layer_table(&self, name: &str, title: &str, columns: &[(&str, Unit)]) -> Table {
        let mut table = Table::new(name, title, &["layer"], columns);
        self.layers().into_iter().for_each(|(layer, numbers)| table.push([layer.to_string()], numbers));
        self.overall().into_iter().for_each(|numbers| table.push(["all"], numbers));
        table
    }

    /// Returns a table of the means by layer and head, too long to print. `keys` are their headings.
    pub fn head_table(&self, name: &str, title: &str, keys: [&str; 2], columns: &[(&str, Unit)]) -> Table {
        let mut table = Table::new(name, title, &keys, columns).detail();
        self.heads().into_iter().for_each(|((layer, head), numbers)| table.push([layer, head], numbers));
        table
    }

    /// Returns number `at` of every layer and head, as the cells of a [`Map`].
    pub fn panel(&self, at: usize) -> Cells {
        self.heads().into_iter().map(|((layer, head), numbers)| (layer, head, numbers[at])).collect()
    }

    /// Returns number `at` by layer: the mean over heads, with the least and the greatest head as ends.
    pub fn by_layer(&self, at: usize) -> Vec<Point> {
        let heads = self.panel(at);
        let of_layer = |(layer, means): (usize, Vec<f64>)| {
            let all = || heads.iter().filter(|head| head.0 == layer).map(|head| head.2);
            let ends = (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max));
            Point { x: layer as f64, y: means[at], ends: Some(ends) }
        };
        self.layers().into_iter().map(of_layer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_over_all_queries_of_a_group() {
        let mut tally = Tally::default();
        for (task, layer, head, number) in [("a", 0, 0, 1.0), ("a", 0, 0, 2.0), ("b", 0, 1, 6.0), ("b", 2, 0, 4.0)] {
            tally.add(task, layer, head, &[number, -number]);
        }
        assert_eq!(tally.overall().unwrap(), [3.25, -3.25]);
        assert_eq!(tally.layers(), BTreeMap::from([(0, vec![3.0, -3.0]), (2, vec![4.0, -4.0])]));
        assert_eq!(tally.panel(0), [(0, 0, 1.5), (0, 1, 6.0), (2, 0, 4.0)]);
        assert_eq!(tally.by_layer(0)[0], Point { x: 0.0, y: 3.0, ends: Some((1.5, 6.0)) });
        assert_eq!(tally.tasks()["b"], [5.0, -5.0]);
        assert_eq!(Tally::default().overall(), None);
    }
}

//! A paper's table as a drawing: columns (or rows) from left to right, a line for each row (or column), measured with
//! intervals and filled, published dashed and hollow.

use anyhow::Result;
use plotters::style::text_anchor::HPos;

use super::axis::{Axis, tick_label};
use super::pen::{CHARACTER, GRID, INK, LEAST_WIDTH, Look, Pen, Point, SIZE, TITLE_HEIGHT, draw, title_width};
use crate::eval::papers::item::{Item, Line};
use crate::eval::papers::outcome::{CellOutcome, Outcome};
use crate::eval::papers::seen::Found;
use crate::eval::papers::times::Timed;
use crate::eval::papers::values::Value;

/// Height of the plotted area, and of a line of the legend.
const HEIGHT: i32 = 320;
const LEGEND_LINE: i32 = 24;
/// Room for the numbers of the axis, and for the names below.
const LEFT: i32 = 84;
const BELOW: i32 = 40;
/// Between two columns.
const STEP: i32 = 110;

/// Cells along a line.
struct Series {
    name: String,
    cells: Vec<CellOutcome>,
}

/// The drawing of an item; `None` where no number could be drawn.
///
/// # Errors
/// If the drawing fails, for which text output gives no cause.
pub fn figure(outcome: &Outcome, item: &Item) -> Result<Option<String>> {
    let drawn = drawn_columns(item);
    let (Some(first), over_rows) = (drawn.first(), item.plot.as_ref().is_some_and(|plot| plot.over_rows)) else {
        return Ok(None);
    };
    let column = &item.columns[*first];
    let columns: Vec<&Line> = drawn.iter().map(|i| &item.columns[*i]).collect();
    let kind = Kind::of(item, &columns);
    // A correlation is no number of the others' kind.
    let rows: Vec<usize> = (0..item.rows.len()).filter(|i| item.rows[*i].correlation.is_none()).collect();
    let (names, series) =
        if over_rows { along_rows(outcome, &rows, &drawn) } else { along_columns(outcome, &rows, &drawn) };
    let series: Vec<Series> = series.into_iter().filter(|s| !numbers(&s.cells).is_empty()).collect();
    if series.is_empty() || names.is_empty() {
        return Ok(None);
    }
    let all: Vec<f64> = series.iter().flat_map(|s| numbers(&s.cells)).collect();
    let axis = match kind {
        Kind::Value(Value::Score) if all.iter().all(|x| (0.0..=100.0).contains(x)) => {
            Axis::of_scores(all.iter().copied())
        }
        Kind::Value(Value::Score) => Axis::of_perplexities(all.iter().copied()),
        _ if all.iter().any(|x| *x < 0.0) => Axis::of_values(&all),
        _ => Axis::of_costs(&all),
    };
    let wide = names.iter().map(|name| (name.chars().count() as i32 + 2) * CHARACTER).max().unwrap_or(0).max(STEP);
    let title = format!("{}: {}", outcome.name, kind.label(column.percent, &item.title));
    let width = (LEFT + wide * names.len() as i32 + 20).max(LEAST_WIDTH).max(title_width(&title));
    let height = TITLE_HEIGHT + HEIGHT + BELOW + LEGEND_LINE * (series.len() as i32 + 1) + 10;
    let frame = Frame { axis, width, columns: names.len() as i32 };
    let svg = draw((width, height), &title, |pen| {
        frame.draw(pen, &names)?;
        series.iter().enumerate().try_for_each(|(i, one)| frame.series(pen, look(i, &one.name), one))?;
        frame.legend(pen, &series)
    })?;
    Ok(Some(svg))
}

/// What is drawn upwards.
enum Kind {
    /// A number of records.
    Value(Value),
    /// A number of what was found, by its name where all lines have the same.
    Found(Option<String>),
    /// How many times as fast as what, where all lines have the same.
    Ratio(Option<String>),
    /// A time, by its column.
    Time(Option<String>),
}

impl Kind {
    fn of(item: &Item, columns: &[&Line]) -> Self {
        let cells = || columns.iter().flat_map(|column| item.rows.iter().map(move |row| (*column, row)));
        if columns.iter().any(|column| column.time.is_some()) {
            let timed = |(column, row): (&Line, &Line)| Timed::over(column.time.clone(), row.time.clone());
            let all: Vec<Timed> = cells().filter_map(timed).collect();
            return match all.iter().any(|timed| timed.against.is_some()) {
                true => Self::Ratio(common(all.into_iter().map(|timed| timed.against))),
                false => Self::Time(common(all.into_iter().map(|timed| timed.column))),
            };
        }
        let found: Vec<Found> =
            cells().filter_map(|(column, row)| Found::over(column.found.clone(), row.found.clone())).collect();
        match (found.is_empty(), columns) {
            (true, [column, ..]) => {
                let row = item.rows.first().and_then(|row| row.value);
                Self::Value(column.value.or(row).unwrap_or(Value::Score))
            }
            _ => Self::Found(common(found.into_iter().map(|found| found.column))),
        }
    }

    /// In words; `title` where lines are of different things.
    fn label(&self, percent: bool, title: &str) -> String {
        let unit = if percent { ", %" } else { "" };
        match self {
            Self::Value(value) => value.label(percent),
            Self::Found(Some(name)) => format!("{name}{unit}"),
            Self::Found(None) => format!("{title}{unit}"),
            Self::Ratio(Some(other)) => format!("times as fast as {other}"),
            Self::Ratio(None) => "times as fast".to_owned(),
            Self::Time(Some(column)) => column.clone(),
            Self::Time(None) => title.to_owned(),
        }
    }
}

/// What all of some have, if it is the same.
fn common(mut all: impl Iterator<Item = Option<String>>) -> Option<String> {
    let first = all.next()??;
    all.all(|other| other.as_ref() == Some(&first)).then_some(first)
}

/// Indices of the columns that are drawn.
fn drawn_columns(item: &Item) -> Vec<usize> {
    match &item.plot {
        Some(plot) => {
            plot.columns.iter().filter_map(|name| item.columns.iter().position(|c| c.name == *name)).collect()
        }
        None => {
            let kind = |line: &Line| (line.value, line.percent);
            let same = |line: &Line| item.columns.first().is_some_and(|first| kind(first) == kind(line));
            (0..item.columns.len()).filter(|i| same(&item.columns[*i])).collect()
        }
    }
}

fn along_columns(outcome: &Outcome, rows: &[usize], drawn: &[usize]) -> (Vec<String>, Vec<Series>) {
    let names = drawn.iter().map(|i| outcome.columns[*i].clone()).collect();
    let one = |row: &crate::eval::papers::outcome::Row| Series {
        name: row.name.clone(),
        cells: drawn.iter().map(|i| row.cells[*i]).collect(),
    };
    (names, rows.iter().map(|i| one(&outcome.rows[*i])).collect())
}

fn along_rows(outcome: &Outcome, rows: &[usize], drawn: &[usize]) -> (Vec<String>, Vec<Series>) {
    let names = rows.iter().map(|row| outcome.rows[*row].name.clone()).collect();
    let one = |i: &usize| Series {
        name: outcome.columns[*i].clone(),
        cells: rows.iter().map(|row| outcome.rows[*row].cells[*i]).collect(),
    };
    (names, drawn.iter().map(one).collect())
}

/// All numbers of a line, ends of intervals too.
fn numbers(cells: &[CellOutcome]) -> Vec<f64> {
    let of = |cell: &CellOutcome| {
        let ends = cell.measured.and_then(|m| m.ends);
        [cell.published, cell.measured.map(|m| m.mean), ends.map(|e| e.0), ends.map(|e| e.1)]
    };
    cells.iter().flat_map(of).flatten().filter(|x| x.is_finite()).collect()
}

fn look(i: usize, name: &str) -> Look {
    if name.to_lowercase().starts_with("full") { Look::Dense } else { Look::Method(i, 0) }
}

/// The plotted area.
struct Frame {
    axis: Axis,
    width: i32,
    columns: i32,
}

impl Frame {
    const TOP: i32 = TITLE_HEIGHT;
    const BOTTOM: i32 = TITLE_HEIGHT + HEIGHT;

    fn x(&self, column: usize) -> i32 {
        let step = (self.width - LEFT - 20) / self.columns.max(1);
        LEFT + step / 2 + step * column as i32
    }

    fn y(&self, value: f64) -> i32 {
        self.axis.at(value, Self::BOTTOM - 6, Self::TOP + 6)
    }

    fn draw(&self, pen: &Pen, names: &[String]) -> Result<()> {
        let right = self.width - 20;
        for tick in &self.axis.ticks {
            pen.line(&[(LEFT, self.y(*tick)), (right, self.y(*tick))], GRID, 1)?;
            pen.text(&tick_label(*tick), (LEFT - 8, self.y(*tick)), SIZE, HPos::Right)?;
        }
        pen.edge((LEFT, Self::TOP), (right, Self::BOTTOM), INK)?;
        let label =
            |(i, name): (usize, &String)| pen.text(name, (self.x(i), Self::BOTTOM + BELOW / 2), SIZE, HPos::Center);
        names.iter().enumerate().try_for_each(label)
    }

    fn series(&self, pen: &Pen, look: Look, series: &Series) -> Result<()> {
        let points = |of: fn(&CellOutcome) -> Option<f64>| -> Vec<Point> {
            let point = |(i, cell): (usize, &CellOutcome)| Some((self.x(i), self.y(of(cell)?)));
            series.cells.iter().enumerate().filter_map(point).collect()
        };
        let published = points(|cell| cell.published);
        pen.faint(look, &published)?;
        published.iter().try_for_each(|at| pen.hollow(look, *at))?;
        let measured = points(|cell| cell.measured.map(|m| m.mean));
        pen.stroke(look, &measured)?;
        for (i, cell) in series.cells.iter().enumerate() {
            if let Some((low, high)) = cell.measured.and_then(|m| m.ends) {
                pen.interval(look, self.x(i), (self.y(low), self.y(high)))?;
            }
        }
        measured.iter().try_for_each(|at| pen.marker(look, *at))
    }

    fn legend(&self, pen: &Pen, series: &[Series]) -> Result<()> {
        let line = |i: usize| Self::BOTTOM + BELOW + LEGEND_LINE / 2 + LEGEND_LINE * i as i32;
        for (i, one) in series.iter().enumerate() {
            pen.marker(look(i, &one.name), (LEFT + 10, line(i)))?;
            pen.text(&one.name, (LEFT + 26, line(i)), SIZE, HPos::Left)?;
        }
        let below = line(series.len());
        pen.text(
            "filled: measured, with 95 % interval; hollow and dashed: published",
            (LEFT + 26, below),
            SIZE,
            HPos::Left,
        )
    }
}

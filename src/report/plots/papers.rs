//! A paper's table as a drawing: columns (or rows) from left to right, with a line for each row (or column). Measured numbers are filled
//! and have intervals, published ones are hollow and dashed. Lines join only neighbours that are steps of one quantity (`joins.rs`): never
//! a number and an average, nor different methods, tasks or models. Tables over two parameters are heat maps (`paper_grids.rs`).
//!
//! If each line or point belongs to a different method, it has that method's colour and marker (`looks.rs`). Lines for several settings of
//! one method get colours and markers by position, because dashes mark published numbers.

use std::ops::Range;

use anyhow::Result;
use plotters::style::text_anchor::HPos;

use super::axis::{Axis, tick_label};
use super::joins::{Break, breaks};
use super::looks::of_lines;
use super::paper_grids;
use super::paper_rows::{DrawnRow, drawn_rows};
use super::pen::{
    CHARACTER, GRID, INK, LEAST_WIDTH, MOST_HEIGHT, Pen, Pixel, SIZE, SeriesLook, TITLE_HEIGHT, draw, in_lines,
    page_title, title_width,
};
use super::{Figure, paged};
use spattn_lab::papers::item::{Item, Line, Variant};
use spattn_lab::papers::outcome::{CellOutcome, ItemOutcome, TIMES, model_title};
use spattn_lab::papers::seen::TableSelection;
use spattn_lab::papers::times::Timed;
use spattn_lab::papers::values::Value;

/// The height of the plotted area, and of a line in the legend.
const HEIGHT: i32 = 320;
const LEGEND_LINE: i32 = 24;
/// The margins: for the axis' numbers, after the last column, and for the names below.
const LEFT: i32 = 84;
const RIGHT: i32 = 20;
const BELOW: i32 = 48;
/// The least distance between two columns.
const STEP: i32 = 110;
/// The greatest width of a row of columns. Further columns continue below.
const MOST_WIDTH: i32 = 1320;
/// The cells that a line goes through.
struct Series {
    name: String,
    look: SeriesLook,
    /// The look of each point, if it differs from the line's.
    points: Option<Vec<SeriesLook>>,
    cells: Vec<CellOutcome>,
}

/// The pages of an outcome's drawing: `file` and further files; empty if there are no numbers to draw.
///
/// # Errors
/// If the drawing fails, for which text output gives no cause.
pub fn figures(outcome: &ItemOutcome, item: &Item, file: &str) -> Result<Vec<Figure>> {
    let rows = drawn_rows(outcome, item);
    let drawn = drawn_columns(item, outcome, &rows);
    let Some(first) = drawn.first() else { return Ok(Vec::new()) };
    // With a single column, all points would be at the same place, so its rows are drawn from left to right.
    let over_rows = drawn.len() == 1 || item.plot.as_ref().is_some_and(|plot| plot.over_rows);
    let column = &item.columns[*first];
    let columns: Vec<&Line> = drawn.iter().map(|i| &item.columns[*i]).collect();
    let kinds = Kinds::of(item, outcome, &rows, &columns);
    let title = format!("{}: {}", outcome.name, kinds.shown().label(column.percent, &item.title));
    let title = if outcome.is_measured() { format!("{title}, {}", measured_on(outcome)) } else { title };
    if let Some(grid) = item.plot.as_ref().and_then(|plot| plot.grid.as_ref()) {
        return paper_grids::figures(grid, (&rows, *first), &title, file, kinds.has_published());
    }
    let (names, mut series) =
        if over_rows { along_rows(outcome, item, &rows, &drawn) } else { along_columns(outcome, &rows, &drawn) };
    if !kinds.has_published() {
        series.iter_mut().flat_map(|line| &mut line.cells).for_each(|cell| cell.published = None);
    }
    if let Kind::Value(value) = kinds.shown() {
        let is_other = |row: &DrawnRow<'_>, column: &Line| item.value(row.line, column) != *value;
        leave_out_others(&mut series, (&rows, &columns), over_rows, is_other);
    }
    let series: Vec<Series> = series.into_iter().filter(|s| !numbers(&s.cells).is_empty()).collect();
    if series.is_empty() || names.is_empty() {
        return Ok(Vec::new());
    }
    let all: Vec<f64> = series.iter().flat_map(|s| numbers(&s.cells)).collect();
    let axis = match kinds.shown() {
        Kind::Several(labels) if labels.iter().any(|label| label == PERPLEXITY) => {
            Axis::of_perplexities(all.iter().copied())
        }
        Kind::Several(_) | Kind::Value(Value::Score) if all.iter().all(|x| (0.0..=100.0).contains(x)) => {
            Axis::of_scores(all.iter().copied())
        }
        Kind::Value(Value::Score) => Axis::of_perplexities(all.iter().copied()),
        _ if all.iter().any(|x| *x < 0.0) => Axis::of_values(&all),
        _ => Axis::of_costs(&all),
    };
    let places: Vec<(&Line, Option<&str>)> = match over_rows {
        true => rows.iter().map(|row| (row.line, row.model)).collect(),
        false => columns.iter().map(|column| (*column, None)).collect(),
    };
    let breaks = breaks(&places, &names);
    let (names, breaks, series) = without_empty_places(names, &breaks, series);
    let note = note(outcome, &series);
    let drawing = Drawing { title: &title, note: &note, axis, names, breaks, series };
    Ok(paged(file, &title, drawing.pages()?))
}

/// Leaves out cells whose quantity is not the one on the axis.
fn leave_out_others(
    series: &mut [Series],
    (rows, columns): (&[DrawnRow<'_>], &[&Line]),
    over_rows: bool,
    is_other: impl Fn(&DrawnRow<'_>, &Line) -> bool,
) {
    for (line, of_line) in series.iter_mut().enumerate() {
        for (at, cell) in of_line.cells.iter_mut().enumerate() {
            let (row, column) = if over_rows { (at, line) } else { (line, at) };
            if is_other(&rows[row], columns[column]) {
                *cell = CellOutcome::default();
            }
        }
    }
}

/// Leaves out the places where no line has a number. Lines end where one was left out.
fn without_empty_places(
    names: Vec<String>,
    breaks: &[Break],
    series: Vec<Series>,
) -> (Vec<String>, Vec<Break>, Vec<Series>) {
    let has_number = |at: &usize| series.iter().any(|line| !numbers(&line.cells[*at..=*at]).is_empty());
    let kept: Vec<usize> = (0..names.len()).filter(has_number).collect();
    let break_before = |(place, at): (usize, &usize)| {
        let next = place.checked_sub(1).map_or(0, |before| kept[before] + 1);
        let ends = if next < *at { Break::Line } else { Break::None };
        breaks[next..=*at].iter().copied().fold(ends, Break::max)
    };
    let breaks = kept.iter().enumerate().map(break_before).collect();
    let of_line = |line: Series| Series {
        points: line.points.map(|points| kept.iter().map(|at| points[*at]).collect()),
        cells: kept.iter().map(|at| line.cells[*at]).collect(),
        ..line
    };
    let names = kept.iter().map(|at| names[*at].clone()).collect();
    (names, breaks, series.into_iter().map(of_line).collect())
}

/// What numbers were measured on, for titles and notes.
fn measured_on(outcome: &ItemOutcome) -> String {
    match outcome.variant.as_str() {
        TIMES => "measured on a GPU".to_owned(),
        _ if outcome.model.is_empty() => "measured on the rows' models".to_owned(),
        _ => format!("measured on {}", model_title(&outcome.model)),
    }
}

/// The note on what the marks mean.
fn note(outcome: &ItemOutcome, series: &[Series]) -> String {
    let has = |of: fn(&CellOutcome) -> bool| series.iter().any(|line| line.cells.iter().any(of));
    let measured =
        has(|cell| cell.measured.is_some()).then(|| format!("filled: {}, with 95 % interval", measured_on(outcome)));
    let published = has(|cell| cell.published.is_some()).then(|| "hollow and dashed: published".to_owned());
    measured.into_iter().chain(published).collect::<Vec<_>>().join("; ")
}

/// The quantities of an outcome's published and measured numbers.
struct Kinds {
    published: Option<Kind>,
    measured: Option<Kind>,
}

impl Kinds {
    fn of(item: &Item, outcome: &ItemOutcome, rows: &[DrawnRow<'_>], columns: &[&Line]) -> Self {
        let cells = |of: fn(&CellOutcome) -> bool| -> Vec<(&Line, &Line)> {
            let mut found = Vec::new();
            for row in rows {
                for column in columns {
                    let at = item.columns.iter().position(|line| line.name == column.name);
                    let cell = at.and_then(|at| row.row.cells.get(at));
                    found.extend(cell.filter(|cell| of(cell)).map(|_| (*column, row.line)));
                }
            }
            found
        };
        let kind =
            |variant: Variant, cells: &[(&Line, &Line)]| (!cells.is_empty()).then(|| Kind::of(item, variant, cells));
        Self {
            published: kind(Variant::Paper, &cells(|cell| cell.published.is_some())),
            measured: kind(outcome.run().variant, &cells(|cell| cell.measured.is_some())),
        }
    }

    /// The quantity on the axis: that of the measured numbers, or without any that of the published ones.
    fn shown(&self) -> &Kind {
        const NOTHING: &Kind = &Kind::Value(Value::Score);
        self.measured.as_ref().or(self.published.as_ref()).unwrap_or(NOTHING)
    }

    /// Whether the published numbers have the quantity on the axis.
    fn has_published(&self) -> bool {
        match (&self.published, &self.measured) {
            (Some(published), Some(measured)) => published == measured,
            (published, _) => published.is_some(),
        }
    }
}

/// The quantity on the vertical axis.
#[derive(PartialEq)]
enum Kind {
    /// A value of records, such as a score.
    Value(Value),
    /// Several values of records in words, because some rows' scores are perplexities.
    Several(Vec<String>),
    /// A number found by an analysis; its name if all lines have the same.
    Found(Option<String>),
    /// A speed-up; what it is relative to if that is the same for all lines.
    Ratio(Option<String>),
    /// A time; its column if that is the same for all lines.
    Time(Option<String>),
}

impl Kind {
    /// The quantity of some cells, each with its column and row.
    fn of(item: &Item, variant: Variant, cells: &[(&Line, &Line)]) -> Self {
        if cells.iter().any(|(column, _)| column.time.is_some()) {
            let timed = |(column, row): &(&Line, &Line)| Timed::over(column.time.clone(), row.time.clone());
            let all: Vec<Timed> = cells.iter().filter_map(timed).collect();
            return match all.iter().any(|timed| timed.against.is_some()) {
                true => Self::Ratio(common(all.into_iter().map(|timed| timed.against))),
                false => Self::Time(common(all.into_iter().map(|timed| timed.column))),
            };
        }
        let selected = |line: &Line| line.select(variant).found;
        let found: Vec<TableSelection> =
            cells.iter().filter_map(|(column, row)| TableSelection::over(selected(column), selected(row))).collect();
        if !found.is_empty() {
            return Self::Found(common(found.into_iter().map(|found| found.column)));
        }
        let mut labels: Vec<String> = Vec::new();
        for (column, row) in cells {
            let label = value_label(item, variant, row, column);
            if !labels.contains(&label) {
                labels.push(label);
            }
        }
        if labels.iter().any(|label| label == PERPLEXITY) {
            return Self::Several(labels);
        }
        let first = cells.first();
        Self::Value(first.map_or(Value::Score, |(column, row)| item.value(row, column)))
    }

    /// The label of the axis, which is `title` if the lines show different quantities.
    fn label(&self, percent: bool, title: &str) -> String {
        let unit = if percent { ", %" } else { "" };
        match self {
            Self::Value(value) => value.label(percent),
            Self::Several(labels) => labels.join("; "),
            Self::Found(Some(name)) => format!("{name}{unit}"),
            Self::Found(None) => format!("{title}{unit}"),
            Self::Ratio(Some(other)) => format!("times as fast as {other}"),
            Self::Ratio(None) => "times as fast".to_owned(),
            Self::Time(Some(column)) => column.clone(),
            Self::Time(None) => title.to_owned(),
        }
    }
}

const PERPLEXITY: &str = "perplexity";

/// The quantity of a cell in words. A score is a perplexity if the run's tasks score every token of a text.
fn value_label(item: &Item, variant: Variant, row: &Line, column: &Line) -> String {
    let value = item.value(row, column);
    let (of_column, of_row) = (column.select(variant), row.select(variant));
    let of_run = || item.settings(variant).and_then(|settings| settings.tasks);
    let tasks = of_column.tasks.or(of_row.tasks).or_else(of_run);
    let is_of_texts = tasks.is_some_and(|tasks| tasks.iter().all(|task| task.starts_with("ppl/")));
    let is_ours = [row, column].iter().any(|line| line.model.as_deref() == Some("builtin"));
    match value == Value::Score && is_of_texts && !is_ours {
        true => PERPLEXITY.to_owned(),
        false => value.label(row.percent || column.percent),
    }
}

/// The common value, if all values are the same.
fn common(mut all: impl Iterator<Item = Option<String>>) -> Option<String> {
    let first = all.next()??;
    all.all(|other| other.as_ref() == Some(&first)).then_some(first)
}

/// The indices of the columns to draw: those that the item names, otherwise those of the same kind as the first. If the outcome has no
/// number there, those of the same kind as the first column that has one.
fn drawn_columns(item: &Item, outcome: &ItemOutcome, rows: &[DrawnRow<'_>]) -> Vec<usize> {
    let is_times = outcome.variant == TIMES;
    let has = |at: usize, of: fn(&CellOutcome) -> bool| rows.iter().any(|row| row.row.cells.get(at).is_some_and(of));
    let is_shown = |at: usize| match outcome.is_measured() {
        true => item.is_time(&item.columns[at]) == is_times && has(at, |cell| cell.measured.is_some()),
        // Published times are drawn together with measured ones.
        false => !item.is_time(&item.columns[at]) && has(at, |cell| cell.published.is_some()),
    };
    let kind = |line: &Line| (line.value, line.percent, line.time.is_some());
    let like = |at: usize| -> Vec<usize> {
        (0..item.columns.len()).filter(|i| kind(&item.columns[*i]) == kind(&item.columns[at])).collect()
    };
    let is_known = outcome.is_measured() || item.is_run(Variant::Paper);
    let named: Vec<usize> = match &item.plot {
        Some(plot) if !plot.columns.is_empty() => {
            plot.columns.iter().filter_map(|name| item.columns.iter().position(|c| c.name == *name)).collect()
        }
        // A table that cannot be run does not say what its columns are, so they are not drawn together.
        _ if item.columns.is_empty() || !is_known => Vec::new(),
        _ => like(0),
    };
    if named.iter().any(|at| is_shown(*at)) {
        return named;
    }
    (0..item.columns.len()).find(|at| is_known && is_shown(*at)).map_or(Vec::new(), like)
}

fn along_columns(outcome: &ItemOutcome, rows: &[DrawnRow<'_>], drawn: &[usize]) -> (Vec<String>, Vec<Series>) {
    let names = drawn.iter().map(|i| outcome.columns[*i].clone()).collect();
    let looks = of_lines(&methods_of(rows));
    let one = |(row, look): (&DrawnRow<'_>, SeriesLook)| {
        let cells = drawn.iter().map(|i| row.row.cells[*i]).collect();
        Series { name: row.row.name.clone(), look, points: None, cells }
    };
    (names, rows.iter().zip(looks).map(one).collect())
}

fn along_rows(
    outcome: &ItemOutcome,
    item: &Item,
    rows: &[DrawnRow<'_>],
    drawn: &[usize],
) -> (Vec<String>, Vec<Series>) {
    let names: Vec<&str> = rows.iter().map(|row| row.row.name.as_str()).collect();
    let names = short_names(&names, &format!(" on {}", model_title(&outcome.model)));
    let columns: Vec<Option<&str>> = drawn.iter().map(|i| item.columns[*i].method.as_deref()).collect();
    // If there is only one line, its points can show their methods.
    let points = (drawn.len() == 1).then(|| methods_of(rows)).filter(|of| of.iter().all(Option::is_some));
    let points = points.map(|of| of.iter().map(|method| of_lines(&[*method])[0]).collect::<Vec<_>>());
    let one = |(i, look): (&usize, SeriesLook)| Series {
        name: item.columns[*i].name.clone(),
        look: if points.is_some() { SeriesLook::Other } else { look },
        points: points.clone(),
        cells: rows.iter().map(|row| row.row.cells[*i]).collect(),
    };
    (names, drawn.iter().zip(of_lines(&columns)).map(one).collect())
}

/// Shortens the names of rows that end with `model`, which the title has: leaves it out, and the parameters that all rows of a
/// method have.
fn short_names(names: &[&str], model: &str) -> Vec<String> {
    let parts = |name: &&str| -> Option<(String, Vec<String>)> {
        let (method, params) = name.strip_suffix(model)?.split_once(' ')?;
        Some((method.to_owned(), params.split(", ").map(str::to_owned).collect()))
    };
    let all: Vec<_> = names.iter().map(parts).collect();
    let short = |(name, own): (&&str, &Option<(String, Vec<String>)>)| {
        let Some((method, params)) = own else { return name.strip_suffix(model).unwrap_or(name).to_owned() };
        let alike: Vec<_> = all.iter().flatten().filter(|(other, _)| other == method).collect();
        let differs = |param: &&String| alike.len() == 1 || !alike.iter().all(|(_, others)| others.contains(param));
        let kept: Vec<&str> = params.iter().filter(differs).map(String::as_str).collect();
        format!("{method} {}", kept.join(", ")).trim_end().to_owned()
    };
    names.iter().zip(&all).map(short).collect()
}

/// The method of each row: the one that was run, otherwise the paper's.
fn methods_of<'a>(rows: &[DrawnRow<'a>]) -> Vec<Option<&'a str>> {
    rows.iter().map(|row| row.row.method.as_deref().or(row.line.method.as_deref())).collect()
}

/// All numbers of a line, including the ends of intervals.
fn numbers(cells: &[CellOutcome]) -> Vec<f64> {
    let of = |cell: &CellOutcome| {
        let ends = cell.measured.and_then(|m| m.ends);
        [cell.published, cell.measured.map(|m| m.mean), ends.map(|e| e.0), ends.map(|e| e.1)]
    };
    cells.iter().flat_map(of).flatten().filter(|x| x.is_finite()).collect()
}

/// The contents of all pages.
struct Drawing<'a> {
    title: &'a str,
    /// What the marks mean, for below the legend.
    note: &'a str,
    axis: Axis,
    /// The names of the places, from left to right.
    names: Vec<String>,
    /// What ends before each place.
    breaks: Vec<Break>,
    series: Vec<Series>,
}

/// Divides places into rows of about equal length, with at most `most` places each.
fn in_rows(places: Range<usize>, most: usize) -> Vec<Range<usize>> {
    let rows = places.len().div_ceil(most).max(1);
    let most = places.len().div_ceil(rows).max(1);
    places.clone().step_by(most).map(|first| first..(first + most).min(places.end)).collect()
}

/// A row of columns, and where it is drawn.
struct Frame<'a> {
    drawing: &'a Drawing<'a>,
    columns: Range<usize>,
    step: i32,
    top: i32,
}

impl Drawing<'_> {
    /// The width of a column, in pixels.
    fn step(&self) -> i32 {
        self.names.iter().map(|name| (name.chars().count() as i32 + 2) * CHARACTER).max().unwrap_or(0).max(STEP)
    }

    /// The columns in each row of the drawing. Rows never mix models, and those of a model have about the same length.
    fn rows(&self) -> Vec<Range<usize>> {
        let most = ((MOST_WIDTH - LEFT - RIGHT) / self.step()).max(1) as usize;
        let inner = (1..self.names.len()).filter(|at| self.breaks[*at] == Break::Row);
        let ends: Vec<usize> = inner.chain([self.names.len()]).collect();
        let starts = [0].into_iter().chain(ends.iter().copied());
        starts.zip(&ends).flat_map(|(start, end)| in_rows(start..*end, most)).collect()
    }

    fn pages(&self) -> Result<Vec<String>> {
        let rows = self.rows();
        let columns = rows.iter().map(ExactSizeIterator::len).max().unwrap_or(1) as i32;
        let own = LEFT + self.step() * columns + RIGHT;
        let width = own.max(LEAST_WIDTH).max(title_width(&page_title(self.title, 0, rows.len())));
        let step = (width - LEFT - RIGHT) / columns;
        let entries = self.legend(width).last().map_or(0, |(_, (_, line))| line + 1);
        let legend = (entries + self.note_lines(width).len() as i32) * LEGEND_LINE + 10;
        let most = ((MOST_HEIGHT - TITLE_HEIGHT - legend) / (HEIGHT + BELOW)).max(1);
        let pages: Vec<&[Range<usize>]> = rows.chunks(most as usize).collect();
        let draw_page = |(i, rows): (usize, &&[Range<usize>])| {
            let below = TITLE_HEIGHT + (HEIGHT + BELOW) * rows.len() as i32;
            draw((width, below + legend), &page_title(self.title, i, pages.len()), |pen| {
                for (i, columns) in (0..).zip(*rows) {
                    let top = TITLE_HEIGHT + i * (HEIGHT + BELOW);
                    Frame { drawing: self, columns: columns.clone(), step, top }.draw(pen)?;
                }
                self.draw_legend(pen, width, below)
            })
        };
        pages.iter().enumerate().map(draw_page).collect()
    }

    /// The series with a look of their own, each with the left end of its legend entry in pixels and its line.
    fn legend(&self, width: i32) -> Vec<(&Series, Pixel)> {
        let named: Vec<&Series> = self.series.iter().filter(|series| series.points.is_none()).collect();
        let longest = named.iter().map(|series| series.name.chars().count() as i32).max().unwrap_or(0);
        let entry = longest * CHARACTER + 44;
        let columns = ((width - LEFT) / entry).clamp(1, named.len().max(1) as i32);
        named.into_iter().zip((0..).map(|i| (LEFT + i % columns * entry, i / columns))).collect()
    }

    fn draw_legend(&self, pen: &Pen, width: i32, top: i32) -> Result<()> {
        let y = |line: i32| top + LEGEND_LINE / 2 + LEGEND_LINE * line;
        let entries = self.legend(width);
        for (series, (x, line)) in &entries {
            pen.filled(series.look, (x + 10, y(*line)))?;
            pen.text(&series.name, (x + 26, y(*line)), SIZE, HPos::Left)?;
        }
        let below = entries.last().map_or(0, |(_, (_, line))| line + 1);
        (below..)
            .zip(&self.note_lines(width))
            .try_for_each(|(line, note)| pen.text(note, (LEFT, y(line)), SIZE - 2, HPos::Left))
    }

    fn note_lines(&self, width: i32) -> Vec<String> {
        in_lines(self.note, width - LEFT - RIGHT)
    }
}

impl Frame<'_> {
    fn bottom(&self) -> i32 {
        self.top + HEIGHT
    }

    fn x(&self, column: usize) -> i32 {
        LEFT + self.step / 2 + self.step * (column - self.columns.start) as i32
    }

    fn y(&self, value: f64) -> i32 {
        self.drawing.axis.at(value, self.bottom() - 6, self.top + 6)
    }

    fn draw(&self, pen: &Pen) -> Result<()> {
        let right = LEFT + self.step * self.columns.len() as i32;
        for tick in &self.drawing.axis.ticks {
            pen.line(&[(LEFT, self.y(*tick)), (right, self.y(*tick))], GRID, 1)?;
            pen.text(&tick_label(*tick), (LEFT - 8, self.y(*tick)), SIZE, HPos::Right)?;
        }
        pen.edge((LEFT, self.top), (right, self.bottom()), INK)?;
        for column in self.columns.clone() {
            let name = &self.drawing.names[column];
            pen.text(name, (self.x(column), self.bottom() + 20), SIZE, HPos::Center)?;
        }
        self.drawing.series.iter().try_for_each(|series| self.series(pen, series))
    }

    fn series(&self, pen: &Pen, series: &Series) -> Result<()> {
        let points = |of: fn(&CellOutcome) -> Option<f64>| -> Vec<(SeriesLook, Pixel)> {
            let look = |column: usize| series.points.as_ref().map_or(series.look, |points| points[column]);
            let point = |column: usize| Some((look(column), (self.x(column), self.y(of(&series.cells[column])?))));
            self.columns.clone().filter_map(point).collect()
        };
        // A segment joins each place with the next if both have a number and no break is between them.
        let segments = |of: fn(&CellOutcome) -> Option<f64>| -> Vec<[Pixel; 2]> {
            let place = |column: usize| Some((self.x(column), self.y(of(&series.cells[column])?)));
            let inner = self.columns.clone().skip(1).filter(|column| self.drawing.breaks[*column] == Break::None);
            inner.filter_map(|column| Some([place(column - 1)?, place(column)?])).collect()
        };
        let published = points(|cell| cell.published);
        segments(|cell| cell.published).iter().try_for_each(|ends| pen.faint(series.look, ends))?;
        published.iter().try_for_each(|(look, at)| pen.hollow(*look, *at))?;
        let measured = points(|cell| cell.measured.map(|m| m.mean));
        let lines = segments(|cell| cell.measured.map(|m| m.mean));
        lines.iter().try_for_each(|ends| pen.line(ends, series.look.colour(), 2))?;
        for (look, (x, y)) in &measured {
            let is_here = |column: &usize| self.x(*column) == *x;
            let cell = self.columns.clone().find(is_here).and_then(|column| series.cells[column].measured);
            if let Some((low, high)) = cell.and_then(|m| m.ends) {
                pen.interval(*look, *x, (self.y(low), self.y(high)))?;
            }
            pen.filled(*look, (*x, *y))?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "papers_tests.rs"]
mod tests;

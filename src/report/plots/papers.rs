//! A paper's table as a drawing: columns (or rows) from left to right, with a line for each row (or column). Measured numbers are filled
//! and have intervals, published ones are hollow and dashed. Lines join neighbours only, and only what belongs together: never a number with
//! an average, nor settings of different methods or models.
//!
//! If lines or points each belong to a different method, they have its colour and marker (`looks.rs`). Lines for several settings of one
//! method get colours and markers by position, because dashes mark published numbers.

use std::ops::Range;

use anyhow::Result;
use plotters::style::text_anchor::HPos;

use super::axis::{Axis, tick_label};
use super::looks::of_lines;
use super::pen::{
    CHARACTER, GRID, INK, LEAST_WIDTH, MOST_HEIGHT, Pen, Pixel, SIZE, SeriesLook, TITLE_HEIGHT, draw, page_title,
    title_width,
};
use super::{Figure, paged};
use spattn_lab::papers::item::{Item, Line};
use spattn_lab::papers::outcome::{CellOutcome, ItemOutcome, OutcomeRow};
use spattn_lab::papers::seen::TableSelection;
use spattn_lab::papers::times::Timed;
use spattn_lab::papers::values::Value;

/// The height of the plotted area, and of a line of the legend.
const HEIGHT: i32 = 320;
const LEGEND_LINE: i32 = 24;
/// The margins: for the numbers of the axis, after the last column, and for the names below.
const LEFT: i32 = 84;
const RIGHT: i32 = 20;
const BELOW: i32 = 48;
/// The least distance of two columns.
const STEP: i32 = 110;
/// The greatest width of a row of columns. Further columns continue below.
const MOST_WIDTH: i32 = 1320;
const NOTE: &str = "filled: measured, with 95 % interval; hollow and dashed: published";

/// The cells along a line.
struct Series {
    name: String,
    look: SeriesLook,
    /// How each point looks, if not as the line.
    points: Option<Vec<SeriesLook>>,
    cells: Vec<CellOutcome>,
}

/// The pages of an item's drawing; empty if there is no number to draw.
///
/// # Errors
/// If the drawing fails, for which text output gives no cause.
pub fn figures(outcome: &ItemOutcome, item: &Item) -> Result<Vec<Figure>> {
    let drawn = drawn_columns(item);
    let Some(first) = drawn.first() else { return Ok(Vec::new()) };
    // The points of a single column would lie on top of each other.
    let over_rows = drawn.len() == 1 || item.plot.as_ref().is_some_and(|plot| plot.over_rows);
    let column = &item.columns[*first];
    let columns: Vec<&Line> = drawn.iter().map(|i| &item.columns[*i]).collect();
    let kind = Kind::of(item, &columns);
    // A correlation is not comparable with the other numbers.
    let rows: Vec<usize> = (0..item.rows.len()).filter(|i| item.rows[*i].correlation.is_none()).collect();
    let (names, series) =
        if over_rows { along_rows(outcome, item, &rows, &drawn) } else { along_columns(outcome, item, &rows, &drawn) };
    let series: Vec<Series> = series.into_iter().filter(|s| !numbers(&s.cells).is_empty()).collect();
    if series.is_empty() || names.is_empty() {
        return Ok(Vec::new());
    }
    let all: Vec<f64> = series.iter().flat_map(|s| numbers(&s.cells)).collect();
    let axis = match kind {
        Kind::Several(_) => Axis::of_perplexities(all.iter().copied()),
        Kind::Value(Value::Score) if all.iter().all(|x| (0.0..=100.0).contains(x)) => {
            Axis::of_scores(all.iter().copied())
        }
        Kind::Value(Value::Score) => Axis::of_perplexities(all.iter().copied()),
        _ if all.iter().any(|x| *x < 0.0) => Axis::of_values(&all),
        _ => Axis::of_costs(&all),
    };
    let title = format!("{}: {}", outcome.name, kind.label(column.percent, &item.title));
    let breaks = if over_rows { row_breaks(item, &rows) } else { vec![Break::None; drawn.len()] };
    let breaks =
        breaks.into_iter().zip(&names).map(|(at, name)| if is_average(name) { at.max(Break::Line) } else { at });
    let breaks = after_averages(breaks.collect(), &names);
    let drawing = Drawing { title: &title, axis, names, breaks, series };
    Ok(paged("plot.svg", &title, drawing.pages()?))
}

/// The quantity on the vertical axis.
enum Kind {
    /// A value of records.
    Value(Value),
    /// Values of records, some of them perplexities by their rows; in words.
    Several(Vec<String>),
    /// A number of an analysis, with its name if all lines have the same.
    Found(Option<String>),
    /// A speed-up, with what it is over if all lines have the same.
    Ratio(Option<String>),
    /// A time, with its column.
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
        let found: Vec<TableSelection> =
            cells().filter_map(|(column, row)| TableSelection::over(column.found.clone(), row.found.clone())).collect();
        match (found.is_empty(), columns) {
            (true, [column, ..]) => {
                let mut labels: Vec<String> = Vec::new();
                for (column, row) in cells().filter(|(_, row)| row.correlation.is_none()) {
                    let label = value_label(item, row, column);
                    if !labels.contains(&label) {
                        labels.push(label);
                    }
                }
                if labels.iter().any(|label| label == PERPLEXITY) {
                    return Self::Several(labels);
                }
                let row = item.rows.first().and_then(|row| row.value);
                Self::Value(column.value.or(row).unwrap_or(Value::Score))
            }
            _ => Self::Found(common(found.into_iter().map(|found| found.column))),
        }
    }

    /// The label of the axis; `title` if the lines show different quantities.
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

/// The quantity of a cell, in words. A score is a perplexity if the paper's run scores every token of texts.
fn value_label(item: &Item, row: &Line, column: &Line) -> String {
    let value = item.value(row, column);
    let tasks = column.tasks.as_ref().or(row.tasks.as_ref()).or(item.run.as_ref().and_then(|run| run.tasks.as_ref()));
    let is_of_texts = tasks.is_some_and(|tasks| tasks.iter().all(|task| task.starts_with("ppl/")));
    let is_ours = [row, column].iter().any(|line| line.model.as_deref() == Some("builtin"));
    match value == Value::Score && is_of_texts && !is_ours {
        true => PERPLEXITY.to_owned(),
        false => value.label(row.percent || column.percent),
    }
}

/// The value that all have, if it is the same.
fn common(mut all: impl Iterator<Item = Option<String>>) -> Option<String> {
    let first = all.next()??;
    all.all(|other| other.as_ref() == Some(&first)).then_some(first)
}

/// The indices of the columns that are drawn.
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

fn along_columns(outcome: &ItemOutcome, item: &Item, rows: &[usize], drawn: &[usize]) -> (Vec<String>, Vec<Series>) {
    let names = drawn.iter().map(|i| outcome.columns[*i].clone()).collect();
    let looks = of_lines(&methods_of(outcome, item, rows));
    let one = |(i, look): (&usize, SeriesLook)| {
        let row: &OutcomeRow = &outcome.rows[*i];
        Series { name: row.name.clone(), look, points: None, cells: drawn.iter().map(|i| row.cells[*i]).collect() }
    };
    (names, rows.iter().zip(looks).map(one).collect())
}

fn along_rows(outcome: &ItemOutcome, item: &Item, rows: &[usize], drawn: &[usize]) -> (Vec<String>, Vec<Series>) {
    let names = rows.iter().map(|row| outcome.rows[*row].name.clone()).collect();
    let columns: Vec<Option<&str>> = drawn.iter().map(|i| item.columns[*i].method.as_deref()).collect();
    // If there is a single line, its points can show their methods.
    let points =
        (drawn.len() == 1).then(|| methods_of(outcome, item, rows)).filter(|of| of.iter().all(Option::is_some));
    let points = points.map(|of| of.iter().map(|method| of_lines(&[*method])[0]).collect::<Vec<_>>());
    let one = |(i, look): (&usize, SeriesLook)| Series {
        name: outcome.columns[*i].clone(),
        look: if points.is_some() { SeriesLook::Other } else { look },
        points: points.clone(),
        cells: rows.iter().map(|row| outcome.rows[*row].cells[*i]).collect(),
    };
    (names, drawn.iter().zip(of_lines(&columns)).map(one).collect())
}

/// The method of each of some rows, as it was run or otherwise as in the paper.
fn methods_of<'a>(outcome: &'a ItemOutcome, item: &'a Item, rows: &[usize]) -> Vec<Option<&'a str>> {
    let in_paper = |name: &str| item.rows.iter().find(|row| row.name == name).and_then(|row| row.method.as_deref());
    let of = |row: &'a OutcomeRow| row.method.as_deref().or_else(|| in_paper(&row.name));
    rows.iter().map(|i| of(&outcome.rows[*i])).collect()
}

/// What ends before a place from left to right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Break {
    /// Nothing: a line goes on.
    None,
    /// Lines.
    Line,
    /// Lines, and the row of places: another model begins.
    Row,
}

/// Whether a row or column is a mean of others.
fn is_average(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["avg", "average", "mean"].iter().any(|word| name.trim_end_matches('.') == *word)
}

/// The breaks, and one behind each average.
fn after_averages(mut breaks: Vec<Break>, names: &[String]) -> Vec<Break> {
    for at in 1..breaks.len() {
        if is_average(&names[at - 1]) {
            breaks[at] = breaks[at].max(Break::Line);
        }
    }
    breaks
}

/// What ends before each of some rows: settings of one method on one model belong together.
fn row_breaks(item: &Item, rows: &[usize]) -> Vec<Break> {
    let method = |row: &Line| row.method.as_deref().map(|spec| spec.split(':').next().unwrap_or(spec).to_owned());
    let between = |pair: &[usize]| {
        let (before, here) = (&item.rows[pair[0]], &item.rows[pair[1]]);
        match (before.model == here.model, method(before) == method(here)) {
            (false, _) => Break::Row,
            (true, false) => Break::Line,
            (true, true) => Break::None,
        }
    };
    let first = if rows.is_empty() { None } else { Some(Break::None) };
    first.into_iter().chain(rows.windows(2).map(between)).collect()
}

/// All numbers of a line, ends of intervals included.
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
    axis: Axis,
    /// The names from left to right.
    names: Vec<String>,
    /// What ends before each of them.
    breaks: Vec<Break>,
    series: Vec<Series>,
}

/// Places divided into rows of at most so many, about equally.
fn in_rows(places: Range<usize>, most: usize) -> Vec<Range<usize>> {
    let rows = places.len().div_ceil(most).max(1);
    let most = places.len().div_ceil(rows).max(1);
    places.clone().step_by(most).map(|first| first..(first + most).min(places.end)).collect()
}

/// A row of columns.
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

    /// The columns of each row of the drawing: models apart, and each divided into about equal numbers.
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
        let legend = (self.legend(width).last().map_or(0, |(_, (_, line))| line + 1) + 1) * LEGEND_LINE + 10;
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

    /// Series that have a look of their own, each with the pixel where its entry starts and its line.
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
        pen.text(NOTE, (LEFT, y(below)), SIZE - 2, HPos::Left)
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
        // From each place to the next, where both have a number and belong together.
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
mod tests {
    use super::*;
    use spattn_lab::papers::item::Variant;
    use spattn_lab::papers::measure::Evidence;
    use spattn_lab::papers::outcome::judge;

    /// An item with some rows (name and method), drawn over rows or columns.
    fn drawn(plot: &str, rows: &[(&str, &str)]) -> Vec<Figure> {
        drawn_of("ruler/vt", plot, rows)
    }

    /// The same for a task.
    fn drawn_of(task: &str, plot: &str, rows: &[(&str, &str)]) -> Vec<Figure> {
        let mut text = format!("title = 't'\n{plot}\n[run]\nmodel = 'x/y'\ntasks = ['{task}']\n[builtin]\n");
        for (name, method) in rows {
            text += &format!("[[row]]\nname = '{name}'\nmethod = '{method}'\n");
        }
        text += "[[column]]\nname = 'VT'\n[[column]]\nname = 'CWE'\n";
        for (name, _) in rows {
            text += &format!("[[published]]\nrow = '{name}'\nvalues = {{ VT = 50, CWE = 60 }}\n");
        }
        let item = Item::parse(&text, "item.toml").unwrap();
        figures(&judge("p/t", &item, Variant::Builtin, Evidence { records: &[], seen: &[] }).unwrap(), &item).unwrap()
    }

    #[test]
    fn perplexities_are_no_scores() {
        let rows = [("Quest", "quest"), ("Ours", "magicpig")];
        let titles = ["ruler/vt", "ppl/wikitext2"].map(|task| drawn_of(task, "", &rows).remove(0).title);
        assert_eq!(titles, ["p/t: score, %", "p/t: perplexity"]);
        let ours = [("Quest", "quest"), ("Ours", "magicpig'\nmodel = 'builtin")];
        assert_eq!(drawn_of("ppl/wikitext2", "", &ours).remove(0).title, "p/t: perplexity; score, %");
    }

    fn colours(svg: &str) -> Vec<String> {
        let hollow = |look: SeriesLook| {
            let colour = look.colour();
            format!("fill=\"#{:02X}{:02X}{:02X}\"", colour.0, colour.1, colour.2)
        };
        let known = ["quest", "magicpig", "topk"];
        let has = |name: &&str| svg.contains(&hollow(of_lines(&[Some(name)])[0]));
        known.iter().filter(|name| has(name)).map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn rows_that_are_methods_have_their_colours() {
        let [page] = &drawn("", &[("Quest", "quest"), ("Ours", "magicpig")])[..] else { panic!("one page") };
        assert_eq!(colours(&page.svg), ["quest", "magicpig"]);
        let [page] = &drawn(
            "plot = { columns = ['VT'], over_rows = true }",
            &[("A", "quest"), ("B", "topk:k=8"), ("C", "topk:k=9")],
        )[..] else {
            panic!("one page")
        };
        assert_eq!(colours(&page.svg), ["quest", "topk"], "points of one line too");
    }

    #[test]
    fn lines_join_neighbours_that_belong_together() {
        // Of what is drawn along rows: faint lines of published numbers, each of many dashes.
        let of = |rows: &[(&str, &str)]| drawn("plot = { columns = ['VT'], over_rows = true }", rows).remove(0).svg;
        let dashes = |svg: &str| svg.matches("<polyline").count();
        let bare = dashes(&of(&[("A", "quest:page=16"), ("B", "topk:k=8"), ("C", "hip")]));
        let joined = dashes(&of(&[("A", "quest:page=16"), ("B", "quest:page=32"), ("C", "hip")]));
        assert!(joined > bare + 5, "{joined} {bare}");
        let average = dashes(&of(&[("A", "quest:page=16"), ("Avg.", "quest:page=32"), ("C", "quest")]));
        assert_eq!(average, bare, "an average is no neighbour, on neither side");
        let text = "title = 't'\n[run]\nmodel = ['a', 'b']\ntasks = ['ruler/vt']\n[builtin]\n";
        let row =
            |model: &str, name: &str| format!("[[row]]\nname = '{model}{name}'\nmodel = '{model}'\nmethod = 'quest'\n");
        let rows = ["a", "b"].map(|model| ["1", "2", "3", "4", "5"].map(|name| row(model, name)).concat()).concat();
        let item = Item::parse(&format!("{text}{rows}[[column]]\nname = 'VT'\n"), "item.toml").unwrap();
        let breaks = row_breaks(&item, &(0..10).collect::<Vec<_>>());
        assert_eq!((breaks[4], breaks[5], breaks[6]), (Break::None, Break::Row, Break::None));
        let names: Vec<String> = item.rows.iter().map(|row| row.name.repeat(14)).collect();
        let drawing = Drawing { title: "t", axis: Axis::from_zero(1.0), names, breaks, series: Vec::new() };
        assert_eq!(drawing.rows(), [0..3, 3..5, 5..8, 8..10], "no row has two models");
    }

    #[test]
    fn many_columns_go_on_below_and_on_other_pages() {
        let names: Vec<String> = (0..70).map(|i| format!("row{i}x")).collect();
        let rows: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "quest")).collect();
        let pages = drawn("plot = { columns = ['VT'], over_rows = true }", &rows);
        assert!(
            pages.len() > 1 && pages[1].file == "plot-2.svg" && pages[1].title.contains("(2 of"),
            "{}",
            pages.len()
        );
        let sizes = |svg: &str, key: &str| -> i32 {
            svg.split(&format!(" {key}=\"")).nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
        };
        for page in &pages {
            assert!(sizes(&page.svg, "width") <= MOST_WIDTH && sizes(&page.svg, "height") <= MOST_HEIGHT);
        }
        let on = |name: &String| pages.iter().filter(|page| page.svg.contains(&format!("\n{name}\n"))).count();
        assert!(names.iter().all(|name| on(name) == 1), "each once");
    }
}

//! Charts: panels of points with intervals, and a legend below all panels.

use anyhow::Result;
use plotters::style::text_anchor::HPos;

use super::Pages;
use super::axis::Axis;
use super::pen::{
    self, CHARACTER, GRID, INK, LEAST_WIDTH, MOST_HEIGHT, Pen, Pixel, SIZE, SeriesLook, TITLE_HEIGHT, page_title,
    title_width,
};

/// The least size of a panel with few lines.
pub const SMALL: Pixel = (345, 280);
/// The least size of a panel with many lines.
pub const LARGE: Pixel = (620, 520);
/// The least height of a panel that stands alone.
const LONE_HEIGHT: i32 = 400;
const MOST_COLUMNS: usize = 3;
/// The most columns of panels of which each is about one series.
const MOST_OF_SERIES: usize = 4;
const LEGEND_LINE: i32 = 26;
const ORACLE_NOTE: &str = "grey, hollow, dashed: an oracle, which selects by exact scores of all tokens";
const FLOOR_NOTE: &str = "grey, hollow, dotted: a floor, which selects without scores";
/// The margins around a panel's frame, for labels.
const LEFT: i32 = 74;
const TOP: i32 = 32;
const RIGHT: i32 = 16;
const BOTTOM: i32 = 58;
/// The distance of the data from the frame, so that markers at the ends are not cut off.
const INSET: i32 = 10;

/// A figure made of panels.
pub struct Chart {
    /// The title.
    pub title: String,
    /// The label of the horizontal axis.
    pub x_label: String,
    /// The label of the vertical axis.
    pub y_label: String,
    /// The label of a tick on the horizontal axis.
    pub x_tick: fn(f64) -> String,
    /// The label of a tick on the vertical axis.
    pub y_tick: fn(f64) -> String,
    /// The least width and height of a panel with its labels, in pixels.
    pub least_panel: Pixel,
    /// Whether dense attention is drawn as a level or a line, and named first. Otherwise it is a series like the others.
    pub has_level: bool,
    /// Whether the series are methods, some of which may be oracles or floors.
    pub has_roles: bool,
    /// The panels, row by row.
    pub panels: Vec<ChartPanel>,
    /// The name and look of each series.
    pub series: Vec<(String, SeriesLook)>,
    /// Notes on the whole chart: sentences below the legend.
    pub notes: Vec<String>,
}

/// One frame of a chart.
pub struct ChartPanel {
    /// The title.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The level of dense attention.
    pub level: Option<f64>,
    /// The points and line of each series of the chart.
    pub data: Vec<Data>,
    /// The index of the series that the panel is about, if it is about one. All other methods are then drawn faintly.
    pub focus: Option<usize>,
    /// The labels of points, by the index of their series.
    pub labels: Vec<(usize, Vec<String>)>,
}

impl ChartPanel {
    /// The look of a series in this panel.
    fn look(&self, series: usize, look: SeriesLook) -> SeriesLook {
        match self.focus {
            Some(focus) if focus != series && matches!(look, SeriesLook::Method(..)) => SeriesLook::Other,
            _ => look,
        }
    }
}

/// A series in a panel.
#[derive(Default, Clone)]
pub struct Data {
    /// Measured points.
    pub points: Vec<ChartPoint>,
    /// The indices of the points that the line goes through, in order.
    pub line: Vec<usize>,
}

/// A point with a vertical interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChartPoint {
    /// The horizontal value.
    pub x: f64,
    /// The vertical value.
    pub y: f64,
    /// The ends of the interval, if there is one.
    pub ends: Option<(f64, f64)>,
}

/// The edges of the data area, in pixels.
struct Frame {
    left: i32,
    top: i32,
    right: i32,
    bottom: i32,
}

impl Frame {
    fn place(&self, panel: &ChartPanel, x: f64, y: f64) -> Pixel {
        let x = panel.x.at(x, self.left + INSET, self.right - INSET);
        (x, panel.y.at(y, self.bottom - INSET, self.top + INSET))
    }

    fn middle(&self) -> Pixel {
        ((self.left + self.right) / 2, (self.top + self.bottom) / 2)
    }
}

impl Chart {
    /// Draws the chart on one page.
    ///
    /// # Errors
    /// If the drawing fails, for which text output gives no cause.
    pub fn svg(&self) -> Result<String> {
        self.page(&self.panels, &self.title)
    }

    /// The panels of each page, as many as its height allows.
    fn dealt(&self) -> std::slice::Chunks<'_, ChartPanel> {
        let (width, columns, (_, height)) = self.layout();
        let beside = TITLE_HEIGHT + self.legend_height(width) + INSET;
        let rows = ((MOST_HEIGHT - beside) / height).max(1);
        self.panels.chunks((rows * columns) as usize)
    }

    /// The width of a page, its number of columns, and the size of a panel.
    fn layout(&self) -> (i32, i32, Pixel) {
        let most = if self.has_focus() { MOST_OF_SERIES } else { MOST_COLUMNS };
        let columns = ((self.panels.len() as f64).sqrt().ceil() as usize).clamp(1, most) as i32;
        let title = page_title(&self.title, 0, self.panels.len());
        let width = LEAST_WIDTH.max(columns * self.least_panel.0).max(title_width(&title));
        let least = self.least_panel.1;
        (width, columns, (width / columns, if self.panels.len() > 1 { least } else { least.max(LONE_HEIGHT) }))
    }

    fn legend_height(&self, width: i32) -> i32 {
        let lines = self.legend(width).last().map_or(0, |(_, (_, line))| line + 1);
        (lines + self.notes(width).len() as i32) * LEGEND_LINE
    }

    fn page(&self, shown: &[ChartPanel], title: &str) -> Result<String> {
        let (width, columns, panel) = self.layout();
        let panels = (shown.len() as i32 + columns - 1) / columns * panel.1;
        let (entries, frame_left) = (self.legend(width), self.left());
        let height = TITLE_HEIGHT + panels + self.legend_height(width) + INSET;
        pen::draw((width, height), title, |pen| {
            for (i, content) in (0..).zip(shown) {
                let (left, top) = (i % columns * panel.0, TITLE_HEIGHT + i / columns * panel.1);
                let (right, bottom) = (left + panel.0 - RIGHT, top + panel.1 - BOTTOM);
                self.panel(pen, content, &Frame { left: left + frame_left, top: top + TOP, right, bottom })?;
            }
            let y = |line: i32| TITLE_HEIGHT + panels + line * LEGEND_LINE + LEGEND_LINE / 2;
            entries.iter().try_for_each(|((name, look), (x, line))| {
                entry(pen, name, *look, !self.has_level || *look != SeriesLook::Dense, (*x, y(*line)))
            })?;
            let below = entries.last().map_or(0, |(_, (_, line))| line + 1);
            (below..)
                .zip(self.notes(width))
                .try_for_each(|(line, note)| pen.text(&note, (self.notes_left(width), y(line)), SIZE - 2, HPos::Left))
        })
    }

    /// The lines below the legend: what the looks of oracles and floors mean, if there are any, and the chart's own notes.
    fn notes(&self, width: i32) -> Vec<String> {
        let has = |is: fn(&SeriesLook) -> bool| self.has_roles && self.series.iter().any(|(_, look)| is(look));
        let oracle = has(|look| matches!(look, SeriesLook::Oracle(..)));
        let floor = has(|look| matches!(look, SeriesLook::Floor(..)));
        let looks = oracle.then_some(ORACLE_NOTE).into_iter().chain(floor.then_some(FLOOR_NOTE));
        let own = self.notes.iter().map(String::as_str);
        let available = width - self.notes_left(width) - INSET;
        looks.chain(own).flat_map(|note| pen::in_lines(note, available)).collect()
    }

    /// The left end of the notes: below the first entry of the legend.
    fn notes_left(&self, width: i32) -> i32 {
        self.legend(width).first().map_or(INSET, |(_, (x, _))| *x).min(width / 3)
    }

    /// The number that all points and levels show, if it is the same; otherwise `None`. `is_x_measured` says whether horizontal values
    /// were measured, and so have to be equal too.
    pub fn only_number(&self, is_x_measured: bool) -> Option<String> {
        let points = || self.panels.iter().flat_map(|panel| panel.data.iter().flat_map(|data| &data.points));
        let levels = self.panels.iter().filter_map(|panel| panel.level);
        let heights: Vec<String> = points().map(|point| point.y).chain(levels).map(self.y_tick).collect();
        let first = heights.first()?;
        let xs: Vec<f64> = points().map(|point| point.x).collect();
        let is_one_place = xs.iter().all(|x| *x == xs[0]);
        (heights.iter().all(|height| height == first) && (is_one_place || !is_x_measured)).then(|| first.clone())
    }

    /// Whether each panel is about one series.
    fn has_focus(&self) -> bool {
        self.panels.iter().any(|panel| panel.focus.is_some())
    }

    /// The left margin of a frame, wide enough for the longest tick label.
    fn left(&self) -> i32 {
        let ticks = self.panels.iter().flat_map(|panel| &panel.y.ticks);
        let longest = ticks.map(|tick| (self.y_tick)(*tick).chars().count() as i32).max().unwrap_or(0);
        LEFT.max(longest * CHARACTER + 38)
    }

    fn panel(&self, pen: &Pen, panel: &ChartPanel, frame: &Frame) -> Result<()> {
        self.axes(pen, panel, frame)?;
        pen.text(&panel.title, (frame.middle().0, frame.top - 14), SIZE, HPos::Center)?;
        if let Some(level) = panel.level {
            let y = frame.place(panel, panel.x.low, level).1;
            pen.stroke(SeriesLook::Dense, &[(frame.left, y), (frame.right, y)])?;
        }
        let mut all: Vec<(SeriesLook, &Data)> =
            (0..).zip(&self.series).map(|(series, (_, look))| panel.look(series, *look)).zip(&panel.data).collect();
        // Faint series are drawn first, below the others.
        all.sort_by_key(|(look, _)| *look != SeriesLook::Other);
        let all = || all.iter().copied();
        let place = |point: &ChartPoint| frame.place(panel, point.x, point.y);
        // Intervals are drawn first and markers last, so that markers are on top.
        for (look, data) in all() {
            for point in &data.points {
                let Some((low, high)) = point.ends else { continue };
                let end = |y| frame.place(panel, point.x, y).1;
                pen.interval(look, place(point).0, (end(low), end(high)))?;
            }
        }
        for (look, data) in all().filter(|(_, data)| data.line.len() > 1) {
            pen.stroke(look, &data.line.iter().map(|i| place(&data.points[*i])).collect::<Vec<_>>())?;
        }
        for (look, data) in all() {
            data.points.iter().try_for_each(|point| pen.marker(look, place(point)))?;
        }
        self.labels(pen, panel, frame)
    }

    /// Writes the labels of points where there is space.
    fn labels(&self, pen: &Pen, panel: &ChartPanel, frame: &Frame) -> Result<()> {
        let place = |point: &ChartPoint| frame.place(panel, point.x, point.y);
        let seen = |series: usize| panel.look(series, self.series[series].1) != SeriesLook::Other;
        let markers: Vec<Pixel> = (0..)
            .zip(&panel.data)
            .filter(|(series, _)| seen(*series))
            .flat_map(|(_, data)| data.points.iter().map(place))
            .collect();
        let intervals: Vec<(i32, i32, i32)> = (0..)
            .zip(&panel.data)
            .filter(|(series, _)| seen(*series))
            .flat_map(|(_, data)| &data.points)
            .filter_map(|point| {
                let (low, high) = point.ends?;
                let y = |end| frame.place(panel, point.x, end).1;
                Some((place(point).0, y(high), y(low)))
            })
            .collect();
        let mut taken: Vec<(Pixel, i32)> = Vec::new();
        for (series, labels) in &panel.labels {
            let ink = if panel.focus.is_some() { INK } else { self.series[*series].1.colour() };
            let named = panel.data[*series].points.iter().zip(labels).filter(|(_, label)| !label.is_empty());
            for (point, label) in named {
                let ((x, y), half) = (place(point), label.chars().count() as i32 * (CHARACTER - 1) / 2);
                // Beside the point and clear of intervals; otherwise above or below it; nowhere if other labels or markers are in the way.
                let (aside, near) =
                    (half + 9, x.clamp(frame.left + half + 2, (frame.right - half - 3).max(frame.left + half + 2)));
                let beside = [(x + aside, y - 9), (x - aside, y - 9), (x + aside, y + 9), (x - aside, y + 9)];
                let sides = beside.into_iter().chain([(near, y - 16), (near, y + 18)]);
                let is_apart =
                    |a: &Pixel, b: &Pixel, room: Pixel| (a.0 - b.0).abs() > room.0 || (a.1 - b.1).abs() > room.1;
                let free = |place: &Pixel| {
                    taken.iter().all(|(at, other)| is_apart(at, place, (half + other + 4, 16)))
                        && markers.iter().all(|at| is_apart(at, place, (half + 5, 12)))
                };
                let inside = |place: &Pixel| {
                    (frame.top + 8..frame.bottom - 6).contains(&place.1)
                        && (frame.left + half + 2..frame.right - half).contains(&place.0)
                };
                let is_clear = |(x, y): &Pixel| {
                    intervals
                        .iter()
                        .all(|(at, top, bottom)| (at - x).abs() > half + 1 || y + 8 < *top || y - 8 > *bottom)
                };
                let sides: Vec<Pixel> = sides.filter(|side| inside(side) && free(side)).collect();
                if let Some(side) = sides.iter().find(|side| is_clear(side)).or(sides.first()).copied() {
                    // A hairline shows which point the label belongs to.
                    pen.line(&[(x, y), (x + (side.0 - x).clamp(-8, 8), y + (side.1 - y).clamp(-9, 9))], ink, 1)?;
                    pen.coloured(label, side, SIZE - 3, HPos::Center, ink)?;
                    taken.push((side, half));
                }
            }
        }
        Ok(())
    }

    fn axes(&self, pen: &Pen, panel: &ChartPanel, frame: &Frame) -> Result<()> {
        for &tick in &panel.x.ticks {
            let x = frame.place(panel, tick, panel.y.low).0;
            pen.line(&[(x, frame.top), (x, frame.bottom)], GRID, 1)?;
            pen.text(&(self.x_tick)(tick), (x, frame.bottom + 14), SIZE, HPos::Center)?;
        }
        for &tick in &panel.y.ticks {
            let y = frame.place(panel, panel.x.low, tick).1;
            pen.line(&[(frame.left, y), (frame.right, y)], GRID, 1)?;
            pen.text(&(self.y_tick)(tick), (frame.left - 7, y), SIZE, HPos::Right)?;
        }
        pen.edge((frame.left, frame.top), (frame.right, frame.bottom), INK)?;
        pen.text(&self.x_label, (frame.middle().0, frame.bottom + 38), SIZE, HPos::Center)?;
        pen.upwards(&self.y_label, (frame.left - self.left() + 16, frame.middle().1))
    }

    /// Each entry of the legend with its left end in pixels and its line. All columns are equally wide.
    fn legend(&self, width: i32) -> Vec<(Entry<'_>, Pixel)> {
        let dense = self.has_level.then_some(("full (dense)", SeriesLook::Dense));
        let in_titles = |look: &SeriesLook| self.has_focus() && matches!(look, SeriesLook::Method(..));
        let series = self.series.iter().map(|(name, look)| (name.as_str(), *look));
        let series = series.filter(|(_, look)| !in_titles(look) && (!self.has_level || *look != SeriesLook::Dense));
        let others = self.has_focus().then_some(("the other methods", SeriesLook::Other));
        let entries: Vec<_> = dense.into_iter().chain(series).chain(others).collect();
        let longest = entries.iter().map(|(name, _)| name.chars().count() as i32).max().unwrap_or(0);
        let entry = longest * CHARACTER + SWATCH + 30;
        let columns = ((width - INSET) / entry).clamp(1, entries.len().max(1) as i32);
        let left = ((width - columns * entry) / 2).max(INSET);
        entries.into_iter().zip((0..).map(|i| (left + i % columns * entry, i / columns))).collect()
    }
}

/// Draws the charts of one figure, each on as many pages as needed, but only the first `most` pages.
///
/// # Errors
/// If the drawing fails, for which text output gives no cause.
pub fn pages(charts: &[Chart], most: usize) -> Result<Pages> {
    let pages: Vec<(&Chart, &[ChartPanel])> =
        charts.iter().flat_map(|chart| chart.dealt().map(move |panels| (chart, panels))).collect();
    Pages::of(&pages, most, |i, (chart, panels)| chart.page(panels, &page_title(&chart.title, i, pages.len())))
}

/// The name and look of a series.
type Entry<'a> = (&'a str, SeriesLook);

const SWATCH: i32 = 36;

fn entry(pen: &Pen, name: &str, look: SeriesLook, has_marker: bool, (x, y): Pixel) -> Result<()> {
    pen.stroke(look, &[(x, y), (x + SWATCH, y)])?;
    if has_marker {
        pen.marker(look, (x + SWATCH / 2, y))?;
    }
    pen.text(name, (x + SWATCH + 8, y), SIZE, HPos::Left)
}

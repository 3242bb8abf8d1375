//! Panels of points with intervals, the series named below all of them.

use anyhow::Result;
use plotters::style::text_anchor::HPos;

use super::axis::Axis;
use super::pen::{self, CHARACTER, GRID, INK, LEAST_WIDTH, Look, Pen, Point, SIZE, TITLE_HEIGHT, title_width};

/// A panel of a few lines.
pub const SMALL: Point = (345, 280);
/// A panel of many.
pub const LARGE: Point = (620, 520);
/// Height of a panel that stands alone.
const LONE_HEIGHT: i32 = 400;
const MOST_COLUMNS: usize = 3;
/// Of panels that are about one series each.
const MOST_OF_SERIES: usize = 4;
const LEGEND_LINE: i32 = 26;
/// Room around the frame of a panel for its labels.
const LEFT: i32 = 74;
const TOP: i32 = 32;
const RIGHT: i32 = 16;
const BOTTOM: i32 = 58;
/// Distance of the data from the frame, so that markers at the ends are whole.
const INSET: i32 = 10;

/// A figure of panels.
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// What runs to the right.
    pub x_label: String,
    /// What runs upwards.
    pub y_label: String,
    /// What a tick of the horizontal axis is called.
    pub x_tick: fn(f64) -> String,
    /// What a tick of the vertical axis is called.
    pub y_tick: fn(f64) -> String,
    /// The least width and height of a panel with its labels, in pixels.
    pub least_panel: Point,
    /// Whether dense attention is a level or a line, which is then named first; otherwise it is a series as the others.
    pub has_level: bool,
    /// The panels, by rows.
    pub panels: Vec<Panel>,
    /// Name and look of each series.
    pub series: Vec<(String, Look)>,
}

/// One frame of a chart.
pub struct Panel {
    /// What it is about.
    pub title: String,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// Dense attention's level.
    pub level: Option<f64>,
    /// Points and line of each series of the chart.
    pub data: Vec<Data>,
    /// The series that the panel is about, if it is about one: other methods are then drawn faintly.
    pub focus: Option<Focus>,
}

/// A series by itself, in a panel that is named after it.
pub struct Focus {
    /// Its number.
    pub series: usize,
    /// What each of its points is called.
    pub labels: Vec<String>,
}

impl Panel {
    /// How a series looks in it.
    fn look(&self, series: usize, look: Look) -> Look {
        match &self.focus {
            Some(focus) if focus.series != series && matches!(look, Look::Method(_)) => Look::Other,
            _ => look,
        }
    }
}

/// A series in a panel.
#[derive(Default, Clone)]
pub struct Data {
    /// Measured points.
    pub points: Vec<Measured>,
    /// Which of them the line goes through, in its order.
    pub line: Vec<usize>,
}

/// A point with the interval of its height.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// To the right.
    pub x: f64,
    /// Upwards.
    pub y: f64,
    /// Ends of the interval, if there is one.
    pub ends: Option<(f64, f64)>,
}

/// Edges of the data region.
struct Frame {
    left: i32,
    top: i32,
    right: i32,
    bottom: i32,
}

impl Frame {
    fn place(&self, panel: &Panel, x: f64, y: f64) -> Point {
        let x = panel.x.at(x, self.left + INSET, self.right - INSET);
        (x, panel.y.at(y, self.bottom - INSET, self.top + INSET))
    }

    fn middle(&self) -> Point {
        ((self.left + self.right) / 2, (self.top + self.bottom) / 2)
    }
}

impl Chart {
    /// Draws it.
    ///
    /// # Errors
    /// If the drawing fails, for which text output gives no cause.
    pub fn svg(&self) -> Result<String> {
        let most = if self.has_focus() { MOST_OF_SERIES } else { MOST_COLUMNS };
        let columns = ((self.panels.len() as f64).sqrt().ceil() as usize).clamp(1, most) as i32;
        let width = LEAST_WIDTH.max(columns * self.least_panel.0).max(title_width(&self.title));
        let (least, frame_left) = (self.least_panel.1, self.left());
        let panel = (width / columns, if self.panels.len() > 1 { least } else { least.max(LONE_HEIGHT) });
        let panels = (self.panels.len() as i32 + columns - 1) / columns * panel.1;
        let entries = self.legend(width);
        let lines = entries.last().map_or(0, |(_, (_, line))| line + 1);
        let height = TITLE_HEIGHT + panels + lines * LEGEND_LINE + INSET;
        pen::draw((width, height), &self.title, |pen| {
            for (i, content) in (0..).zip(&self.panels) {
                let (left, top) = (i % columns * panel.0, TITLE_HEIGHT + i / columns * panel.1);
                let (right, bottom) = (left + panel.0 - RIGHT, top + panel.1 - BOTTOM);
                self.panel(pen, content, &Frame { left: left + frame_left, top: top + TOP, right, bottom })?;
            }
            entries.iter().try_for_each(|((name, look), (x, line))| {
                let y = TITLE_HEIGHT + panels + line * LEGEND_LINE + LEGEND_LINE / 2;
                entry(pen, name, *look, !self.has_level || *look != Look::Dense, (*x, y))
            })
        })
    }

    /// Whether its panels are about one series each.
    fn has_focus(&self) -> bool {
        self.panels.iter().any(|panel| panel.focus.is_some())
    }

    /// Room to the left of a frame, for ticks as long as there are.
    fn left(&self) -> i32 {
        let ticks = self.panels.iter().flat_map(|panel| &panel.y.ticks);
        let longest = ticks.map(|tick| (self.y_tick)(*tick).chars().count() as i32).max().unwrap_or(0);
        LEFT.max(longest * CHARACTER + 38)
    }

    fn panel(&self, pen: &Pen, panel: &Panel, frame: &Frame) -> Result<()> {
        self.axes(pen, panel, frame)?;
        pen.text(&panel.title, (frame.middle().0, frame.top - 14), SIZE, HPos::Center)?;
        if let Some(level) = panel.level {
            let y = frame.place(panel, panel.x.low, level).1;
            pen.stroke(Look::Dense, &[(frame.left, y), (frame.right, y)])?;
        }
        let mut all: Vec<(Look, &Data)> =
            (0..).zip(&self.series).map(|(series, (_, look))| panel.look(series, *look)).zip(&panel.data).collect();
        // What is faint lies below.
        all.sort_by_key(|(look, _)| *look != Look::Other);
        let all = || all.iter().copied();
        let place = |point: &Measured| frame.place(panel, point.x, point.y);
        // Intervals first, markers last: what is read best lies on top.
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
        let Some(focus) = &panel.focus else { return Ok(()) };
        let mut taken: Vec<Point> = Vec::new();
        for (point, label) in panel.data[focus.series].points.iter().zip(&focus.labels) {
            let ((x, y), half) = (place(point), label.chars().count() as i32 * CHARACTER / 2);
            let middle = x.clamp(frame.left + half, (frame.right - half).max(frame.left + half));
            // Above the point, or below it where there is no room; nowhere where another one is.
            let free = |place: &Point| {
                taken.iter().all(|t| (t.0 - place.0).abs() > 2 * half + 4 || (t.1 - place.1).abs() > 16)
            };
            let sides = [y - 14, y + 16].map(|y| (middle, y));
            let inside = |place: &Point| (frame.top + 8..frame.bottom - 6).contains(&place.1);
            if let Some(side) = sides.into_iter().find(|side| inside(side) && free(side)) {
                pen.text(label, side, SIZE - 3, HPos::Center)?;
                taken.push(side);
            }
        }
        Ok(())
    }

    fn axes(&self, pen: &Pen, panel: &Panel, frame: &Frame) -> Result<()> {
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

    /// Every entry with the pixel where it starts and its line; equally wide columns.
    fn legend(&self, width: i32) -> Vec<(Entry<'_>, Point)> {
        let dense = self.has_level.then_some(("full (dense)", Look::Dense));
        let in_titles = |look: &Look| self.has_focus() && matches!(look, Look::Method(_));
        let series = self.series.iter().map(|(name, look)| (name.as_str(), *look));
        let series = series.filter(|(_, look)| !in_titles(look) && (!self.has_level || *look != Look::Dense));
        let others = self.has_focus().then_some(("the other methods", Look::Other));
        let entries: Vec<_> = dense.into_iter().chain(series).chain(others).collect();
        let longest = entries.iter().map(|(name, _)| name.chars().count() as i32).max().unwrap_or(0);
        let entry = longest * CHARACTER + SWATCH + 30;
        let columns = ((width - INSET) / entry).clamp(1, entries.len().max(1) as i32);
        let left = ((width - columns * entry) / 2).max(INSET);
        entries.into_iter().zip((0..).map(|i| (left + i % columns * entry, i / columns))).collect()
    }
}

/// Name and look of a series.
type Entry<'a> = (&'a str, Look);

const SWATCH: i32 = 36;

fn entry(pen: &Pen, name: &str, look: Look, has_marker: bool, (x, y): Point) -> Result<()> {
    pen.stroke(look, &[(x, y), (x + SWATCH, y)])?;
    if has_marker {
        pen.marker(look, (x + SWATCH / 2, y))?;
    }
    pen.text(name, (x + SWATCH + 8, y), SIZE, HPos::Left)
}

//! `plots/*.svg`: score (or perplexity) against density, one panel a task and one line a method.
//!
//! Drawn in pixels onto plotters' SVG backend, with text as SVG text: no fonts of the system are needed, and
//! the same rows give the same bytes. Colours are distinct to colour-blind readers, and every method has
//! its own marker, so that figures survive being printed in grey.

use super::format::{distinct, tokens};
use crate::eval::record::SummaryRow;
use crate::eval::summary::REFERENCE;
use crate::tasks::likelihood::Measure;
use anyhow::Result;
use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::element::{Circle, Drawable, PathElement, PointCollection, Polygon, Rectangle, Text};
use plotters::prelude::{DrawingArea, IntoDrawingArea, RGBColor, WHITE};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontDesc, FontFamily, FontStyle, FontTransform, TextStyle};

/// One drawing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// File name.
    pub file: String,
    /// The drawing.
    pub svg: String,
}

/// Score against density with 95 % intervals: one figure for each model, length, protocol and measure, in the order of
/// the rows; perplexities are in figures of their own, `perplexity_vs_density.svg`. `full` is a dashed line. If there is one figure only, its file is `score_vs_density.svg`; otherwise what
/// differs between them follows in the name.
///
/// # Errors
/// If the drawing fails, for which text output gives no cause.
pub fn score_vs_density(rows: &[SummaryRow]) -> Result<Vec<Figure>> {
    let scenes = distinct(rows.iter().map(Scene::of));
    let draw = |scene: &Scene| {
        let rows: Vec<&SummaryRow> = rows.iter().filter(|r| Scene::of(r) == *scene).collect();
        Ok(Figure { file: scene.file_name(&scenes), svg: Plot::new(scene, &rows).svg()? })
    };
    scenes.iter().map(draw).collect()
}

/// What the panels of a figure have in common.
#[derive(Clone, Copy, PartialEq)]
struct Scene<'a> {
    model: &'a str,
    length: usize,
    protocol: &'a str,
    measure: Measure,
}

impl<'a> Scene<'a> {
    fn of(r: &'a SummaryRow) -> Self {
        Self { model: &r.model, length: r.length, protocol: &r.protocol, measure: r.measure }
    }

    fn title(&self) -> String {
        let length = if self.length > 0 { format!(", {} tokens", tokens(self.length)) } else { String::new() };
        let what = match self.measure {
            Measure::Score => "Score",
            Measure::Perplexity => "Perplexity",
        };
        format!("{what} against density: {}{length}, sparse from {}", end_of(self.model), self.protocol)
    }

    fn file_name(&self, all: &[Scene]) -> String {
        let all: Vec<&Scene> = all.iter().filter(|s| s.measure == self.measure).collect();
        let parts = [
            (all.iter().any(|s| s.model != self.model), self.model.to_owned()),
            (all.iter().any(|s| s.length != self.length), self.length.to_string()),
            (all.iter().any(|s| s.protocol != self.protocol), self.protocol.to_owned()),
        ];
        let differing = parts.iter().filter(|(differs, _)| *differs);
        let suffix: String = differing.map(|(_, part)| format!("_{}", as_file_name(part))).collect();
        format!("{}_vs_density{suffix}.svg", self.measure.name())
    }
}

/// The end of a model's name, which says most, where all of it would not fit into a title.
pub(super) fn end_of(model: &str) -> String {
    const LONGEST: usize = 36;
    match model.char_indices().rev().nth(LONGEST) {
        Some((start, _)) => format!("…{}", model[start..].chars().skip(1).collect::<String>()),
        None => model.to_owned(),
    }
}

/// Letters, digits, `.` and `-`; a run of anything else becomes one `-`.
pub(super) fn as_file_name(text: &str) -> String {
    let kept = |c: char| c.is_ascii_alphanumeric() || c == '.';
    text.split(|c| !kept(c)).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
}

// ---- sizes in pixels, and colours ----

const PANEL: (i32, i32) = (330, 250);
/// Height of a panel that stands alone.
const LONE_HEIGHT: i32 = 380;
const LEAST_WIDTH: i32 = 660;
const TITLE_HEIGHT: i32 = 44;
const LEGEND_LINE: i32 = 24;
const LEGEND_ENTRY: i32 = 160;
/// Room around the frame of a panel for its labels.
const LEFT: i32 = 62;
const TOP: i32 = 28;
const RIGHT: i32 = 14;
const BOTTOM: i32 = 50;
/// Distance of the data from the frame, so that markers at the ends are whole.
const INSET: i32 = 9;
const RADIUS: i32 = 5;
/// plotters divides by 1.24 for SVG: these are 12 and 15 px.
pub(super) const SIZE: i32 = 15;
pub(super) const TITLE_SIZE: i32 = 19;
/// About the width of a character at `SIZE`.
const CHARACTER: i32 = 7;

pub(super) const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(226, 226, 226);
/// Okabe and Ito's colours without their yellow, which is too faint on white, and a brown.
const PALETTE: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(128, 84, 60),
];
/// Outlines of markers in units of their radius; a circle comes before them. Their number and that of the
/// colours have no common divisor, so 56 methods look different.
const MARKERS: [&[(f64, f64)]; 7] = [
    &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
    &[(0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)],
    &[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
    &[(0.0, 1.2), (1.1, -0.8), (-1.1, -0.8)],
    &[
        (-0.4, -1.2),
        (0.4, -1.2),
        (0.4, -0.4),
        (1.2, -0.4),
        (1.2, 0.4),
        (0.4, 0.4),
        (0.4, 1.2),
        (-0.4, 1.2),
        (-0.4, 0.4),
        (-1.2, 0.4),
        (-1.2, -0.4),
        (-0.4, -0.4),
    ],
    &[(-1.2, 0.0), (0.8, -1.1), (0.8, 1.1)],
    &[(1.2, 0.0), (-0.8, -1.1), (-0.8, 1.1)],
];

// ---- axes ----

/// A linear or logarithmic axis with its ticks.
struct Axis {
    low: f64,
    high: f64,
    log: bool,
    ticks: Vec<f64>,
}

impl Axis {
    /// For densities in percent: logarithmic if they span over a decade.
    fn of_densities(values: &[f64]) -> Self {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        if !least.is_finite() || most <= 0.0 {
            return Self::linear(0.0, 100.0);
        }
        match least > 0.0 && most / least > 10.0 {
            true => Self::logarithmic(least, most),
            false => Self::linear(least - 0.1 * (most - least), most + 0.1 * (most - least).max(0.1 * most)),
        }
    }

    /// For scores in percent: whole tens around them, and 100 at most.
    fn of_scores(values: impl Iterator<Item = f64> + Clone) -> Self {
        let low = values.clone().fold(100.0, f64::min);
        let high = values.fold(0.0, f64::max);
        let low = ((low / 10.0).floor() * 10.0).clamp(0.0, 90.0);
        Self::linear(low, ((high / 10.0).ceil() * 10.0).clamp(low + 10.0, 100.0))
    }

    /// For perplexities: logarithmic if they span over a decade.
    fn of_perplexities(values: impl Iterator<Item = f64> + Clone) -> Self {
        const MARGIN: f64 = 0.05;
        let least = values.clone().fold(f64::INFINITY, f64::min);
        let most = values.fold(0.0, f64::max);
        match most / least > 10.0 {
            true => Self::logarithmic(least, most),
            false => {
                let margin = MARGIN * (most - least).max(0.1 * most);
                Self::linear(least - margin, most + margin)
            }
        }
    }

    fn linear(low: f64, high: f64) -> Self {
        const MOST_TICKS: f64 = 6.0;
        let low = low.max(0.0);
        let step = round_up((high - low) / MOST_TICKS);
        let (first, last) = ((low / step).ceil() as i64, (high / step + 1e-9).floor() as i64);
        Self { low, high, log: false, ticks: (first..=last).map(|i| i as f64 * step).collect() }
    }

    fn logarithmic(least: f64, most: f64) -> Self {
        const MARGIN: f64 = 1.1;
        let (low, high) = (least / MARGIN, most * MARGIN);
        let decades = (low.log10().floor() as i32)..=(high.log10().ceil() as i32);
        let wide = most / least > 300.0;
        let steps: &[f64] = if wide { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let all = decades.flat_map(|d| steps.iter().map(move |step| step * 10f64.powi(d)));
        Self { low, high, log: true, ticks: all.filter(|tick| (low..=high).contains(tick)).collect() }
    }

    /// The pixel of a value when the axis runs from `from` to `to`.
    fn at(&self, value: f64, from: i32, to: i32) -> i32 {
        let scale = |x: f64| if self.log { x.max(f64::MIN_POSITIVE).log10() } else { x };
        let share = (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low));
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.5 };
        (f64::from(from) + share * f64::from(to - from)).round() as i32
    }
}

/// The least of 1, 2, 5, 10, 20, ... (and their fractions) that is not below `step`.
fn round_up(step: f64) -> f64 {
    let decade = 10f64.powf(step.max(1e-6).log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * decade >= step * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * decade
}

/// A tick as text without trailing zeros.
fn tick_label(tick: f64) -> String {
    let text = format!("{tick:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

// ---- the figure ----

/// A figure ready to be drawn.
struct Plot<'a> {
    title: String,
    panels: Vec<Panel<'a>>,
    /// The sparse methods; the place in here decides on colour and marker.
    methods: Vec<&'a str>,
    has_reference: bool,
    x: Axis,
    y_label: &'static str,
    columns: usize,
    panel_size: (i32, i32),
}

/// The rows of a task.
struct Panel<'a> {
    task: &'a str,
    rows: Vec<&'a SummaryRow>,
    /// The same for all panels of scores; perplexities of different texts have little in common.
    y: Axis,
}

impl<'a> Plot<'a> {
    fn new(scene: &Scene, rows: &[&'a SummaryRow]) -> Self {
        let sparse: Vec<&SummaryRow> = rows.iter().copied().filter(|r| r.method != REFERENCE).collect();
        let of_task = |task| rows.iter().copied().filter(|r| r.task == task).collect::<Vec<_>>();
        let ends = |rows: &[&SummaryRow]| rows.iter().flat_map(|r| [r.ci_low, r.ci_high]).collect::<Vec<_>>();
        let panel = |task| {
            let of_task = of_task(task);
            let y = match scene.measure {
                Measure::Score => Axis::of_scores(ends(rows).into_iter()),
                Measure::Perplexity => Axis::of_perplexities(ends(&of_task).into_iter()),
            };
            Panel { task, rows: of_task, y }
        };
        let panels: Vec<Panel> = distinct(rows.iter().map(|r| r.task.as_str())).into_iter().map(panel).collect();
        let columns = ((panels.len() as f64).sqrt().ceil() as usize).clamp(1, 4);
        Self {
            title: scene.title(),
            methods: distinct(sparse.iter().map(|r| r.method.as_str())),
            has_reference: sparse.len() < rows.len(),
            x: Axis::of_densities(&sparse.iter().map(|r| 100.0 * r.density).collect::<Vec<_>>()),
            y_label: match scene.measure {
                Measure::Score => "score (%)",
                Measure::Perplexity => "perplexity (less is better)",
            },
            columns,
            panel_size: (
                PANEL.0.max(LEAST_WIDTH / columns as i32),
                if panels.len() > 1 { PANEL.1 } else { LONE_HEIGHT },
            ),
            panels,
        }
    }

    fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        let width = self.columns as i32 * self.panel_size.0;
        let panels = self.panels.len().div_ceil(self.columns) as i32 * self.panel_size.1;
        let entries = self.legend(width);
        let lines = entries.last().map_or(0, |(_, (_, line))| line + 1);
        let height = TITLE_HEIGHT + panels + lines * LEGEND_LINE + INSET;
        {
            let area = SVGBackend::with_string(&mut svg, (width as u32, height as u32)).into_drawing_area();
            let pen = Pen { area: &area };
            area.fill(&WHITE)?;
            pen.text(&self.title, (width / 2, TITLE_HEIGHT / 2), TITLE_SIZE, HPos::Center)?;
            for (i, panel) in self.panels.iter().enumerate() {
                let (column, line) = ((i % self.columns) as i32, (i / self.columns) as i32);
                self.draw_panel(&pen, panel, (column * self.panel_size.0, TITLE_HEIGHT + line * self.panel_size.1))?;
            }
            for (entry, (x, line)) in entries {
                let y = TITLE_HEIGHT + panels + line * LEGEND_LINE + LEGEND_LINE / 2;
                self.draw_entry(&pen, entry, (x, y))?;
            }
            area.present()?;
        }
        Ok(svg)
    }

    fn draw_panel(&self, pen: &Pen, panel: &Panel, corner: (i32, i32)) -> Result<()> {
        let frame = Frame {
            left: corner.0 + LEFT,
            top: corner.1 + TOP,
            right: corner.0 + self.panel_size.0 - RIGHT,
            bottom: corner.1 + self.panel_size.1 - BOTTOM,
            y: &panel.y,
        };
        self.draw_axes(pen, &frame)?;
        pen.text(panel.task, ((frame.left + frame.right) / 2, frame.top - 12), SIZE, HPos::Center)?;
        for full in panel.rows.iter().filter(|r| r.method == REFERENCE) {
            let y = self.place(&frame, full).1;
            pen.dashes((frame.left, y), frame.right)?;
        }
        // Intervals first, markers last: what is read best lies on top.
        for draw in [Self::draw_intervals, Self::draw_line, Self::draw_markers] {
            for (i, method) in self.methods.iter().enumerate() {
                let mut rows: Vec<&SummaryRow> = panel.rows.iter().copied().filter(|r| r.method == *method).collect();
                rows.sort_by(|a, b| a.density.total_cmp(&b.density));
                draw(self, pen, &frame, i, &rows)?;
            }
        }
        Ok(())
    }

    fn draw_axes(&self, pen: &Pen, frame: &Frame) -> Result<()> {
        for &tick in &self.x.ticks {
            let x = self.x.at(tick, frame.left + INSET, frame.right - INSET);
            pen.line(&[(x, frame.top), (x, frame.bottom)], GRID, 1)?;
            pen.text(&tick_label(tick), (x, frame.bottom + 12), SIZE, HPos::Center)?;
        }
        for &tick in &frame.y.ticks {
            let y = frame.y.at(tick, frame.bottom - INSET, frame.top + INSET);
            pen.line(&[(frame.left, y), (frame.right, y)], GRID, 1)?;
            pen.text(&tick_label(tick), (frame.left - 6, y), SIZE, HPos::Right)?;
        }
        pen.frame(frame)?;
        let middle = ((frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2);
        pen.text("density (% of tokens attended)", (middle.0, frame.bottom + 32), SIZE, HPos::Center)?;
        pen.upwards(self.y_label, (frame.left - LEFT + 18, middle.1))
    }

    fn place(&self, frame: &Frame, row: &SummaryRow) -> (i32, i32) {
        let x = self.x.at(100.0 * row.density, frame.left + INSET, frame.right - INSET);
        (x, frame.score_at(row.score))
    }

    fn draw_intervals(&self, pen: &Pen, frame: &Frame, method: usize, rows: &[&SummaryRow]) -> Result<()> {
        const CAP: i32 = 3;
        for row in rows {
            let x = self.place(frame, row).0;
            let (low, high) = (frame.score_at(row.ci_low), frame.score_at(row.ci_high));
            for path in [[(x, low), (x, high)], [(x - CAP, low), (x + CAP, low)], [(x - CAP, high), (x + CAP, high)]] {
                pen.line(&path, colour(method), 1)?;
            }
        }
        Ok(())
    }

    fn draw_line(&self, pen: &Pen, frame: &Frame, method: usize, rows: &[&SummaryRow]) -> Result<()> {
        let points: Vec<_> = rows.iter().map(|row| self.place(frame, row)).collect();
        if points.len() > 1 { pen.line(&points, colour(method), 2) } else { Ok(()) }
    }

    fn draw_markers(&self, pen: &Pen, frame: &Frame, method: usize, rows: &[&SummaryRow]) -> Result<()> {
        rows.iter().try_for_each(|row| pen.marker(method, self.place(frame, row)))
    }

    // ---- the legend ----

    /// Every entry with the pixel where it starts and its line; equally wide columns.
    fn legend(&self, width: i32) -> Vec<(Entry<'a>, (i32, i32))> {
        let methods = self.methods.iter().enumerate().map(|(i, name)| Entry { name, method: Some(i) });
        let full = self.has_reference.then_some(Entry { name: "full (dense)", method: None });
        let entries: Vec<Entry> = full.into_iter().chain(methods).collect();
        let longest = entries.iter().map(|e| e.name.chars().count() as i32).max().unwrap_or(0);
        let entry_width = LEGEND_ENTRY.max(longest * CHARACTER + 56);
        let columns = ((width - LEFT) / entry_width).clamp(1, entries.len().max(1) as i32);
        let left = ((width - columns * entry_width) / 2).max(INSET);
        let place = |i: i32| (left + i % columns * entry_width, i / columns);
        entries.into_iter().zip((0..).map(place)).collect()
    }

    fn draw_entry(&self, pen: &Pen, entry: Entry, (x, y): (i32, i32)) -> Result<()> {
        const SWATCH: i32 = 36;
        match entry.method {
            Some(method) => {
                pen.line(&[(x, y), (x + SWATCH, y)], colour(method), 2)?;
                pen.marker(method, (x + SWATCH / 2, y))?;
            }
            None => pen.dashes((x, y), x + SWATCH)?,
        }
        pen.text(entry.name, (x + SWATCH + 8, y), SIZE, HPos::Left)
    }
}

/// A line of the legend; `full` has no place among the methods.
#[derive(Clone, Copy)]
struct Entry<'a> {
    name: &'a str,
    method: Option<usize>,
}

fn colour(method: usize) -> RGBColor {
    PALETTE[method % PALETTE.len()]
}

// ---- drawing ----

/// Edges of the data region.
struct Frame<'a> {
    left: i32,
    top: i32,
    right: i32,
    bottom: i32,
    /// The scores' axis.
    y: &'a Axis,
}

impl Frame<'_> {
    fn score_at(&self, score: f64) -> i32 {
        self.y.at(score, self.bottom - INSET, self.top + INSET)
    }
}

/// Draws in pixels.
pub(super) struct Pen<'a, 'b> {
    /// What is drawn on.
    pub area: &'a DrawingArea<SVGBackend<'b>, Shift>,
}

impl<'b> Pen<'_, 'b> {
    /// Draws anything.
    pub fn draw<E>(&self, element: E) -> Result<()>
    where
        for<'e> &'e E: PointCollection<'e, (i32, i32)>,
        E: Drawable<SVGBackend<'b>>,
    {
        Ok(self.area.draw(&element)?)
    }

    fn line(&self, points: &[(i32, i32)], colour: RGBColor, width: u32) -> Result<()> {
        self.draw(PathElement::new(points.to_vec(), colour.stroke_width(width)))
    }

    /// The horizontal line of `full`.
    fn dashes(&self, (from, y): (i32, i32), to: i32) -> Result<()> {
        const DASH: i32 = 8;
        const GAP: i32 = 5;
        (from..to)
            .step_by((DASH + GAP) as usize)
            .try_for_each(|x| self.line(&[(x, y), ((x + DASH).min(to), y)], INK, 2))
    }

    fn frame(&self, frame: &Frame) -> Result<()> {
        self.draw(Rectangle::new([(frame.left, frame.top), (frame.right, frame.bottom)], INK.stroke_width(1)))
    }

    /// The marker of a method with a thin white rim, so that markers on each other can be told apart.
    fn marker(&self, method: usize, at: (i32, i32)) -> Result<()> {
        self.shape(method, at, RADIUS + 1, WHITE)?;
        self.shape(method, at, RADIUS, colour(method))
    }

    fn shape(&self, method: usize, (x, y): (i32, i32), radius: i32, colour: RGBColor) -> Result<()> {
        let Some(outline) = (method % (MARKERS.len() + 1)).checked_sub(1).map(|i| MARKERS[i]) else {
            return self.draw(Circle::new((x, y), radius, colour.filled()));
        };
        let scaled = |offset: f64| (offset * f64::from(radius)).round() as i32;
        let corners: Vec<_> = outline.iter().map(|(dx, dy)| (x + scaled(*dx), y + scaled(*dy))).collect();
        self.draw(Polygon::new(corners, colour.filled()))
    }

    /// Writes text beside or around `at`.
    pub fn text(&self, text: &str, at: (i32, i32), size: i32, anchor: HPos) -> Result<()> {
        self.coloured(text, at, size, anchor, INK)
    }

    /// As [`text`](Self::text), in a colour.
    pub fn coloured(&self, text: &str, at: (i32, i32), size: i32, anchor: HPos, ink: RGBColor) -> Result<()> {
        self.draw(Text::new(text.to_owned(), at, style(font(size), anchor).color(&ink)))
    }

    /// Writes text upwards, around `at`.
    pub fn upwards(&self, text: &str, at: (i32, i32)) -> Result<()> {
        let font = font(SIZE).transform(FontTransform::Rotate270);
        self.draw(Text::new(text.to_owned(), at, style(font, HPos::Center)))
    }
}

fn font(size: i32) -> FontDesc<'static> {
    FontDesc::new(FontFamily::SansSerif, f64::from(size), FontStyle::Normal)
}

fn style(font: FontDesc<'static>, anchor: HPos) -> TextStyle<'static> {
    TextStyle::from(font).color(&INK).pos(Pos::new(anchor, VPos::Center))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::record::Record;
    use crate::eval::record::tests::record;
    use crate::eval::summary::summarize;

    fn rows() -> Vec<SummaryRow> {
        let records = [("ruler/vt", "full"), ("ruler/vt", "topk"), ("ruler/cwe", "topk")]
            .map(|(task, method)| record(task, method, 0, 0.5));
        summarize(&records, &[])
    }

    #[test]
    fn a_figure_names_its_tasks_and_methods_and_is_the_same_twice() {
        let figures = score_vs_density(&rows()).unwrap();
        assert_eq!(figures.len(), 1);
        assert_eq!(figures[0].file, "score_vs_density.svg");
        for text in ["ruler/vt", "ruler/cwe", "topk", "full (dense)", "builtin, 4K tokens, sparse from question"] {
            assert!(figures[0].svg.contains(text), "{text}");
        }
        assert_eq!(score_vs_density(&rows()).unwrap(), figures);
    }

    #[test]
    fn several_figures_say_in_their_names_what_differs() {
        let base = record("ruler/vt", "topk", 0, 0.5);
        let records = [
            base.clone(),
            Record { length: 8192, ..base.clone() },
            Record { model: "org/model@v1".into(), ..base.clone() },
        ];
        let files: Vec<_> = score_vs_density(&summarize(&records, &[])).unwrap().into_iter().map(|f| f.file).collect();
        assert_eq!(
            files,
            [
                "score_vs_density_builtin_4096.svg",
                "score_vs_density_builtin_8192.svg",
                "score_vs_density_org-model-v1_4096.svg"
            ]
        );
    }

    #[test]
    fn perplexities_have_a_figure_of_their_own() {
        use crate::eval::record::tests::perplexity;
        let records = [record("ruler/vt", "topk", 0, 0.5), perplexity("full", 0, 2.0), perplexity("topk", 0, 6.0)];
        let figures = score_vs_density(&summarize(&records, &[])).unwrap();
        let files: Vec<_> = figures.iter().map(|f| f.file.as_str()).collect();
        assert_eq!(files, ["perplexity_vs_density.svg", "score_vs_density.svg"]);
        assert!(figures[0].svg.contains("perplexity (less is better)") && !figures[0].svg.contains("ruler/vt"));
        let other = Record { task: "ppl/other".into(), ..perplexity("topk", 0, 5.0) };
        let rows = summarize(&[perplexity("topk", 0, 2.0), other], &[]);
        let refs: Vec<&SummaryRow> = rows.iter().collect();
        let plot = Plot::new(&Scene::of(&rows[0]), &refs);
        assert!(plot.panels[0].y.low > plot.panels[1].y.high, "each text has its own axis");
        let axis = Axis::of_perplexities([12.0, 15.0].into_iter());
        assert!(!axis.log && axis.low > 11.0 && axis.high < 16.0);
        assert!(Axis::of_perplexities([12.0, 1500.0].into_iter()).log);
    }

    #[test]
    fn no_rows_and_lone_rows_are_no_trouble() {
        assert!(score_vs_density(&[]).unwrap().is_empty());
        let lone = |method, density| {
            let record = Record { density, ..record("vt", method, 0, 0.0) };
            score_vs_density(&summarize(&[record], &[])).unwrap().len()
        };
        assert_eq!((lone("full", 1.0), lone("topk", 0.0), lone("topk", 1.0)), (1, 1, 1));
    }

    #[test]
    fn long_model_names_keep_their_end() {
        assert_eq!(end_of(&("x".repeat(50) + "é")), format!("…{}é", "x".repeat(35)));
        assert_eq!(end_of("org/model"), "org/model");
    }

    #[test]
    fn ticks_are_round_and_inside() {
        let axis = Axis::of_densities(&[0.9, 30.0]);
        assert!(axis.log);
        assert_eq!(axis.ticks.iter().map(|t| tick_label(*t)).collect::<Vec<_>>(), ["1", "2", "5", "10", "20"]);
        assert_eq!(Axis::of_scores([71.0, 98.0].into_iter()).ticks, [70.0, 75.0, 80.0, 85.0, 90.0, 95.0, 100.0]);
        assert_eq!(round_up(0.3), 0.5);
    }
}

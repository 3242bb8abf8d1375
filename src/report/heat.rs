//! `plots/depth_*.svg` and `depths.csv`: scores by length and depth, for tasks that decide where in the context the
//! answer lies.
//!
//! A figure shows a task under a protocol, with a panel for every method: lengths from left to right, depths downwards,
//! the mean score in every cell in figures and as a shade. Shades run from dark at 0 to nearly white at 100 in steps of
//! lightness, so they can be told apart in grey as well.

use std::collections::BTreeMap;

use anyhow::Result;
use plotters::backend::SVGBackend;
use plotters::element::Rectangle;
use plotters::prelude::{IntoDrawingArea, RGBColor, WHITE};
use plotters::style::Color;
use plotters::style::text_anchor::HPos;

use super::format::{distinct, tokens};
use super::plots::{Figure, INK, Pen, SIZE, TITLE_SIZE, as_file_name, end_of};
use crate::eval::record::Record;
use crate::eval::summary::{REFERENCE, compare_tasks, natural};

/// The mean score of one method at one length and depth.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// Model id as given.
    pub model: String,
    /// Full task name.
    pub task: String,
    /// Where sparse attention started.
    pub protocol: String,
    /// Length asked for in tokens; 0 if the number of records or a file fixes it.
    pub length: usize,
    /// Percent of the context before what is asked for.
    pub depth: f64,
    /// Bare method name.
    pub method: String,
    /// Canonical parameters.
    pub params: String,
    /// Number of examples.
    pub n: usize,
    /// Mean score, percent.
    pub score: f64,
    /// Mean tokens of the prompt.
    pub prompt_tokens: f64,
}

impl Cell {
    fn figure(&self) -> (&str, &str, &str) {
        (&self.model, &self.task, &self.protocol)
    }

    fn method(&self) -> (&str, &str) {
        (&self.method, &self.params)
    }
}

/// The cells of all records that have a depth, one for each (model, task, protocol, method, params, length, depth), in
/// this order; methods as in the summary (`order` as there). Records that repeat an example count once.
pub fn cells(records: &[Record], order: &[(String, String)]) -> Vec<Cell> {
    let mut groups: BTreeMap<_, BTreeMap<(u64, usize), &Record>> = BTreeMap::new();
    for r in records {
        let Some(depth) = r.depth else { continue };
        // Percentages have a total order as bits: they are not negative.
        let key = (&r.model, &r.task, &r.protocol, &r.method, &r.params, r.length, depth.to_bits());
        let kept = groups.entry(key).or_default().entry((r.seed, r.sample)).or_insert(r);
        if r.key < kept.key {
            *kept = r;
        }
    }
    let mut cells: Vec<Cell> = groups.into_values().map(|examples| cell(examples.into_values().collect())).collect();
    let place = |c: &Cell| {
        let given = order.iter().position(|(method, params)| (method.as_str(), params.as_str()) == c.method());
        (c.method != REFERENCE, given.unwrap_or(usize::MAX))
    };
    cells.sort_by(|a, b| {
        natural(&a.model, &b.model)
            .then_with(|| compare_tasks(&a.task, &b.task))
            .then_with(|| natural(&a.protocol, &b.protocol))
            .then_with(|| place(a).cmp(&place(b)))
            .then_with(|| natural(&a.method, &b.method).then_with(|| natural(&a.params, &b.params)))
            .then_with(|| a.length.cmp(&b.length))
            .then_with(|| a.depth.total_cmp(&b.depth))
    });
    cells
}

/// `examples` is never empty.
fn cell(examples: Vec<&Record>) -> Cell {
    let n = examples.len();
    let mean = |of: fn(&Record) -> f64| examples.iter().map(|r| of(r)).sum::<f64>() / n as f64;
    let head = examples[0];
    Cell {
        model: head.model.clone(),
        task: head.task.clone(),
        protocol: head.protocol.clone(),
        length: head.length,
        depth: head.depth.unwrap_or_default(),
        method: head.method.clone(),
        params: head.params.clone(),
        n,
        score: 100.0 * mean(|r| r.score),
        prompt_tokens: mean(|r| r.prompt_tokens as f64),
    }
}

/// `depths.csv`: the cells, with a heading line.
///
/// # Errors
/// None in practice; the writer's signature has one.
pub fn csv(cells: &[Cell]) -> Result<String> {
    let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
    writer.write_record(["model", "task", "length", "depth", "method", "params", "protocol", "n", "score"])?;
    for c in cells {
        let (length, depth, n) = (c.length.to_string(), c.depth.to_string(), c.n.to_string());
        let score = format!("{:.4}", c.score);
        writer.write_record([&c.model, &c.task, &length, &depth, &c.method, &c.params, &c.protocol, &n, &score])?;
    }
    Ok(String::from_utf8(writer.into_inner().map_err(|e| e.into_error())?)?)
}

/// One figure for each model, task and protocol. What differs between several figures is in their file names.
///
/// # Errors
/// If the drawing fails, for which text output gives no cause.
pub fn figures(cells: &[Cell]) -> Result<Vec<Figure>> {
    let all: Vec<_> = distinct(cells.iter().map(Cell::figure));
    let draw = |&(model, task, protocol): &(&str, &str, &str)| {
        let mut parts = vec![task];
        parts.extend(all.iter().any(|f| f.0 != model).then_some(model));
        parts.extend(all.iter().any(|f| f.2 != protocol).then_some(protocol));
        let parts: Vec<String> = parts.into_iter().map(as_file_name).collect();
        let shown: Vec<&Cell> = cells.iter().filter(|c| c.figure() == (model, task, protocol)).collect();
        Ok(Figure { file: format!("depth_{}.svg", parts.join("_")), svg: Map::new(shown).svg()? })
    };
    all.iter().map(draw).collect()
}

// ---- the figure ----

const TITLE_HEIGHT: i32 = 44;
const LEGEND_HEIGHT: i32 = 62;
/// Room around a panel's cells for its labels.
const LEFT: i32 = 66;
const TOP: i32 = 30;
const RIGHT: i32 = 16;
const BOTTOM: i32 = 48;
const CELL_WIDTH: i32 = 48;
const CELL_HEIGHT: i32 = 22;
const LEAST_WIDTH: i32 = 660;
/// About the width of a character.
const CHARACTER: i32 = 8;
const MOST_COLUMNS: usize = 4;

struct Map<'a> {
    cells: Vec<&'a Cell>,
    methods: Vec<(&'a str, &'a str)>,
    lengths: Vec<usize>,
    depths: Vec<f64>,
    /// Of a panel, in pixels.
    size: (i32, i32),
    columns: usize,
}

impl<'a> Map<'a> {
    fn new(cells: Vec<&'a Cell>) -> Self {
        let methods = distinct(cells.iter().map(|c| c.method()));
        let mut lengths = distinct(cells.iter().map(|c| c.length));
        lengths.sort_unstable();
        let mut depths = distinct(cells.iter().map(|c| c.depth));
        depths.sort_by(f64::total_cmp);
        let longest = methods.iter().map(|m| label(m).chars().count() as i32).max().unwrap_or(0);
        let inner = (lengths.len() as i32 * CELL_WIDTH).max(longest * CHARACTER);
        Self {
            size: (LEFT + inner + RIGHT, TOP + depths.len() as i32 * CELL_HEIGHT + BOTTOM),
            columns: methods.len().clamp(1, MOST_COLUMNS),
            cells,
            methods,
            lengths,
            depths,
        }
    }

    fn title(&self) -> String {
        let (model, task, protocol) = self.cells[0].figure();
        format!("{task}: score by length and depth, {}, sparse from {protocol}", end_of(model))
    }

    fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        let title = self.title();
        let panels = self.columns as i32 * self.size.0;
        let width = panels.max(LEAST_WIDTH).max(title.chars().count() as i32 * (CHARACTER + 1));
        let rows = self.methods.len().div_ceil(self.columns) as i32;
        let height = TITLE_HEIGHT + rows * self.size.1 + LEGEND_HEIGHT;
        {
            let area = SVGBackend::with_string(&mut svg, (width as u32, height as u32)).into_drawing_area();
            let pen = Pen { area: &area };
            area.fill(&WHITE)?;
            pen.text(&title, (width / 2, TITLE_HEIGHT / 2), TITLE_SIZE, HPos::Center)?;
            for (i, method) in self.methods.iter().enumerate() {
                let (column, row) = ((i % self.columns) as i32, (i / self.columns) as i32);
                let left = (width - panels) / 2 + column * self.size.0;
                self.panel(&pen, method, (left + LEFT, TITLE_HEIGHT + row * self.size.1 + TOP))?;
            }
            legend(&pen, (width / 2, height - LEGEND_HEIGHT + 8))?;
            area.present()?;
        }
        Ok(svg)
    }

    /// The cells of a method, from `corner` on.
    fn panel(&self, pen: &Pen, method: &(&str, &str), (left, top): (i32, i32)) -> Result<()> {
        let (width, height) = (self.lengths.len() as i32 * CELL_WIDTH, self.depths.len() as i32 * CELL_HEIGHT);
        let middle = left + width / 2;
        let centred = middle.max(left + label(method).chars().count() as i32 * CHARACTER / 2 - LEFT / 2);
        pen.text(&label(method), (centred, top - 14), SIZE, HPos::Center)?;
        for (i, depth) in self.depths.iter().enumerate() {
            let y = top + i as i32 * CELL_HEIGHT + CELL_HEIGHT / 2;
            pen.text(&rounded(*depth), (left - 6, y), SIZE, HPos::Right)?;
        }
        for (i, length) in self.lengths.iter().enumerate() {
            let x = left + i as i32 * CELL_WIDTH + CELL_WIDTH / 2;
            pen.text(&self.length_label(*length), (x, top + height + 12), SIZE, HPos::Center)?;
        }
        pen.text("length (tokens)", (middle, top + height + 31), SIZE, HPos::Center)?;
        pen.upwards("depth (%)", (left - LEFT + 18, top + height / 2))?;
        for cell in self.cells.iter().filter(|c| c.method() == *method) {
            let column = self.lengths.iter().position(|l| *l == cell.length).unwrap_or(0) as i32;
            let row = self.depths.iter().position(|d| *d == cell.depth).unwrap_or(0) as i32;
            let (x, y) = (left + column * CELL_WIDTH, top + row * CELL_HEIGHT);
            shaded(pen, (x, y), (CELL_WIDTH, CELL_HEIGHT), cell.score)?;
            let ink = if is_dark(cell.score) { WHITE } else { INK };
            pen.coloured(&rounded(cell.score), (x + CELL_WIDTH / 2, y + CELL_HEIGHT / 2), SIZE, HPos::Center, ink)?;
        }
        Ok(())
    }

    /// The length asked for; of what has none, about how long its prompts are.
    fn length_label(&self, length: usize) -> String {
        if length > 0 {
            return tokens(length);
        }
        let of: Vec<f64> = self.cells.iter().map(|c| c.prompt_tokens).collect();
        format!("~{}", (of.iter().sum::<f64>() / of.len() as f64).round())
    }
}

fn label((method, params): &(&str, &str)) -> String {
    if params.is_empty() { (*method).to_owned() } else { format!("{method} {params}") }
}

/// A number without decimals, or with one where it has some.
fn rounded(x: f64) -> String {
    let text = format!("{x:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

fn legend(pen: &Pen, (middle, top): (i32, i32)) -> Result<()> {
    const STEP: i32 = 34;
    let left = middle - 11 * STEP / 2;
    for i in 0..=10 {
        let x = left + i * STEP;
        shaded(pen, (x, top), (STEP, 14), f64::from(i * 10))?;
        pen.text(&(i * 10).to_string(), (x + STEP / 2, top + 24), SIZE, HPos::Center)?;
    }
    pen.text("score (%)", (middle, top + 42), SIZE, HPos::Center)
}

fn shaded(pen: &Pen, (x, y): (i32, i32), (width, height): (i32, i32), score: f64) -> Result<()> {
    let area = [(x, y), (x + width, y + height)];
    pen.draw(Rectangle::new(area, shade(score).filled()))?;
    pen.draw(Rectangle::new(area, WHITE.stroke_width(1)))
}

/// Colours from 0 to 100 %, evenly spaced, each lighter than the one before.
const SHADES: [(f64, f64, f64); 5] =
    [(72.0, 24.0, 16.0), (152.0, 52.0, 20.0), (218.0, 104.0, 36.0), (248.0, 176.0, 112.0), (255.0, 243.0, 228.0)];

fn shade(score: f64) -> RGBColor {
    let at = (score / 100.0).clamp(0.0, 1.0) * (SHADES.len() - 1) as f64;
    let below = (at as usize).min(SHADES.len() - 2);
    let (a, b, share) = (SHADES[below], SHADES[below + 1], at - below as f64);
    let mix = |a: f64, b: f64| (a + (b - a) * share).round() as u8;
    RGBColor(mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
}

fn lightness(RGBColor(red, green, blue): RGBColor) -> f64 {
    0.299 * f64::from(red) + 0.587 * f64::from(green) + 0.114 * f64::from(blue)
}

fn is_dark(score: f64) -> bool {
    lightness(shade(score)) < 140.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::record::tests::record;

    fn at(method: &str, length: usize, depth: f64, sample: usize, score: f64) -> Record {
        let key = format!("{method}{length}{depth}{sample}");
        Record { length, depth: Some(depth), key, ..record("needle/number", method, sample, score) }
    }

    fn records() -> Vec<Record> {
        vec![
            at("topk", 2048, 100.0, 1, 0.0),
            at("topk", 2048, 0.0, 2, 1.0),
            at("topk", 2048, 0.0, 0, 0.0),
            at("full", 2048, 0.0, 0, 1.0),
            at("full", 1024, 0.0, 0, 1.0),
            record("ruler/vt", "full", 0, 1.0),
        ]
    }

    #[test]
    fn cells_are_means_in_order_and_leave_out_what_has_no_depth() {
        let all = cells(&records(), &[]);
        let seen: Vec<_> = all.iter().map(|c| (c.method.as_str(), c.length, c.depth, c.n, c.score)).collect();
        assert_eq!(
            seen,
            [
                ("full", 1024, 0.0, 1, 100.0),
                ("full", 2048, 0.0, 1, 100.0),
                ("topk", 2048, 0.0, 2, 50.0),
                ("topk", 2048, 100.0, 1, 0.0)
            ]
        );
        let text = csv(&all).unwrap();
        assert!(text.contains("builtin,needle/number,2048,0,topk,,question,2,50.0000"), "{text}");
        let mut reversed = records();
        reversed.reverse();
        assert_eq!(cells(&reversed, &[]), all);
    }

    #[test]
    fn a_record_that_is_there_twice_counts_once() {
        let once = records();
        assert_eq!(cells(&[once.clone(), once.clone()].concat(), &[]), cells(&once, &[]));
    }

    #[test]
    fn a_figure_has_a_panel_a_method_and_a_value_a_cell() {
        let drawn = figures(&cells(&records(), &[])).unwrap();
        assert_eq!(drawn.len(), 1);
        assert_eq!(drawn[0].file, "depth_needle-number.svg");
        for text in ["\nfull\n", "\ntopk\n", "\n1K\n", "\n2K\n", "\n50\n", "depth (%)", "score (%)"] {
            assert!(drawn[0].svg.contains(text), "{text}");
        }
        assert!(figures(&[]).unwrap().is_empty());
    }

    #[test]
    fn shades_get_lighter_with_the_score_and_figures_stand_out_on_them() {
        let all: Vec<f64> = (0..=100).map(|s| lightness(shade(f64::from(s)))).collect();
        assert!(all.windows(2).all(|w| w[0] < w[1]));
        for score in 0..=100 {
            let score = f64::from(score);
            let ink = if is_dark(score) { 255.0 } else { lightness(INK) };
            assert!((lightness(shade(score)) - ink).abs() > 90.0, "{score}");
        }
    }
}

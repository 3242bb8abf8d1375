//! Heat maps: panels of shaded cells with the value in each where there is room, and one scale for all.
//!
//! Shades run from dark for the worst to nearly white for the best in steps of lightness, so they can be told apart in grey.

use anyhow::Result;
use plotters::prelude::{RGBColor, WHITE};
use plotters::style::text_anchor::HPos;

use super::axis::round_up;
use super::pen::{self, CHARACTER, INK, LEAST_WIDTH, Pen, Point, SIZE, TITLE_HEIGHT, title_width};

/// A figure of shaded cells.
pub struct Grid {
    /// What it shows.
    pub title: String,
    /// What runs to the right.
    pub x_label: String,
    /// What runs downwards.
    pub y_label: String,
    /// Names of the columns of every panel.
    pub columns: Vec<String>,
    /// Names of the lines of every panel.
    pub lines: Vec<String>,
    /// The panels, by rows.
    pub panels: Vec<Panel>,
    /// What values mean.
    pub scale: Scale,
}

/// One block of cells.
pub struct Panel {
    /// What it is about.
    pub title: String,
    /// Line, column and value; what is missing stays white.
    pub cells: Vec<(usize, usize, f64)>,
}

/// How values become shades and text.
pub struct Scale {
    /// What is measured, with its unit.
    pub label: String,
    /// The value at the end of the scale; it begins at 0.
    pub high: f64,
    /// Whether 0 is the best.
    pub less_is_better: bool,
}

impl Scale {
    /// Of scores in percent.
    pub fn percent() -> Self {
        Self { label: "score (%)".to_owned(), high: 100.0, less_is_better: false }
    }

    /// Up to a round number that is not below any value.
    pub fn up_to(label: &str, values: impl Iterator<Item = f64>, less_is_better: bool) -> Self {
        let high = values.fold(0.0, f64::max);
        Self { label: label.to_owned(), high: if high > 0.0 { round_up(high) } else { 1.0 }, less_is_better }
    }

    /// From 0, the darkest, to 100.
    fn lightness(&self, value: f64) -> f64 {
        let share = 100.0 * value / self.high;
        if self.less_is_better { 100.0 - share } else { share }
    }

    /// With a decimal where values are in percent, and three digits otherwise; no zeros at the end.
    fn text(&self, value: f64) -> String {
        let decimals = if self.high >= 10.0 { 1 } else { 2 + usize::from(self.high <= 0.1) };
        let text = format!("{value:.decimals$}");
        let text = text.trim_end_matches('0').trim_end_matches('.');
        text.strip_prefix('0').filter(|rest| rest.starts_with('.')).unwrap_or(text).to_owned()
    }
}

const LEGEND_HEIGHT: i32 = 72;
/// Room around a panel's cells for its labels.
const TOP: i32 = 34;
const RIGHT: i32 = 18;
const BOTTOM: i32 = 56;
/// Cells with their value in them, and cells of large maps without.
const WITH_TEXT: Point = (52, 26);
const WITHOUT: Point = (14, 14);
const MOST_WITH_TEXT: usize = 16;
const MOST_WIDTH: i32 = 1320;

impl Grid {
    /// Draws it.
    ///
    /// # Errors
    /// If the drawing fails, for which text output gives no cause.
    pub fn svg(&self) -> Result<String> {
        let panel = self.panel_size();
        let columns = (MOST_WIDTH / panel.0).clamp(1, self.panels.len().max(1) as i32).min(4);
        let panels = columns * panel.0;
        let width = panels.max(LEAST_WIDTH).max(title_width(&self.title));
        let rows = (self.panels.len() as i32 + columns - 1) / columns;
        let height = TITLE_HEIGHT + rows * panel.1 + LEGEND_HEIGHT;
        pen::draw((width, height), &self.title, |pen| {
            for (i, content) in (0..).zip(&self.panels) {
                let left = (width - panels) / 2 + i % columns * panel.0 + self.left();
                self.panel(pen, content, (left, TITLE_HEIGHT + i / columns * panel.1 + TOP))?;
            }
            self.legend(pen, (width / 2, height - LEGEND_HEIGHT + 8))
        })
    }

    fn cell(&self) -> Point {
        if self.columns.len() > MOST_WITH_TEXT { WITHOUT } else { WITH_TEXT }
    }

    fn inner(&self) -> Point {
        (self.columns.len() as i32 * self.cell().0, self.lines.len() as i32 * self.cell().1)
    }

    /// Room to the left of the cells.
    fn left(&self) -> i32 {
        let longest = self.lines.iter().map(|name| name.chars().count() as i32).max().unwrap_or(0);
        40 + longest * CHARACTER
    }

    fn panel_size(&self) -> Point {
        let longest = self.panels.iter().map(|p| p.title.chars().count() as i32).max().unwrap_or(0);
        let inner = self.inner();
        let width = inner.0.max(self.x_label.chars().count() as i32 * CHARACTER);
        ((self.left() + width).max(longest * CHARACTER) + RIGHT, TOP + inner.1 + BOTTOM)
    }

    /// The cells of a panel, from `corner` on.
    fn panel(&self, pen: &Pen, panel: &Panel, (left, top): Point) -> Result<()> {
        let (cell, inner) = (self.cell(), self.inner());
        let middle = left + inner.0 / 2;
        // A title may be wider than the cells: it begins where the panel does.
        let half = panel.title.chars().count() as i32 * CHARACTER / 2;
        pen.text(&panel.title, (middle.max(left - self.left() + half), top - 16), SIZE, HPos::Center)?;
        for (i, name) in (0..).zip(&self.lines).filter(|(i, _)| i % self.step(self.lines.len()) == 0) {
            pen.text(name, (left - 7, top + i * cell.1 + cell.1 / 2), SIZE, HPos::Right)?;
        }
        for (i, name) in (0..).zip(&self.columns).filter(|(i, _)| i % self.step(self.columns.len()) == 0) {
            pen.text(name, (left + i * cell.0 + cell.0 / 2, top + inner.1 + 14), SIZE, HPos::Center)?;
        }
        pen.text(&self.x_label, (middle, top + inner.1 + 36), SIZE, HPos::Center)?;
        pen.upwards(&self.y_label, (left - self.left() + 14, top + inner.1 / 2))?;
        for (line, column, value) in &panel.cells {
            let at = (left + *column as i32 * cell.0, top + *line as i32 * cell.1);
            self.shaded(pen, at, cell, *value)?;
            if cell == WITH_TEXT {
                let ink = if is_dark(self.scale.lightness(*value)) { WHITE } else { INK };
                let middle = (at.0 + cell.0 / 2, at.1 + cell.1 / 2);
                pen.coloured(&self.scale.text(*value), middle, SIZE, HPos::Center, ink)?;
            }
        }
        pen.edge((left, top), (left + inner.0, top + inner.1), INK)
    }

    /// Every how many lines or columns a name has room.
    fn step(&self, names: usize) -> i32 {
        if self.cell() == WITHOUT { (names as i32 / 8).max(2) } else { 1 }
    }

    fn legend(&self, pen: &Pen, (middle, top): Point) -> Result<()> {
        const STEP: i32 = 42;
        let left = middle - 11 * STEP / 2;
        for i in 0..=10 {
            let (x, value) = (left + i * STEP, f64::from(i) * self.scale.high / 10.0);
            self.shaded(pen, (x, top), (STEP, 14), value)?;
            pen.text(&self.scale.text(value), (x + STEP / 2, top + 26), SIZE, HPos::Center)?;
        }
        pen.text(&self.scale.label, (middle, top + 48), SIZE, HPos::Center)
    }

    fn shaded(&self, pen: &Pen, (x, y): Point, (width, height): Point, value: f64) -> Result<()> {
        pen.fill((x, y), (x + width, y + height), shade(self.scale.lightness(value)))?;
        // Small cells would be all edge.
        if (width, height) == WITHOUT { Ok(()) } else { pen.edge((x, y), (x + width, y + height), WHITE) }
    }
}

/// Colours from 0 to 100, evenly spaced, each lighter than the one before.
const SHADES: [(f64, f64, f64); 5] =
    [(72.0, 24.0, 16.0), (152.0, 52.0, 20.0), (218.0, 104.0, 36.0), (248.0, 176.0, 112.0), (255.0, 243.0, 228.0)];

fn shade(lightness: f64) -> RGBColor {
    let at = (lightness / 100.0).clamp(0.0, 1.0) * (SHADES.len() - 1) as f64;
    let below = (at as usize).min(SHADES.len() - 2);
    let (a, b, share) = (SHADES[below], SHADES[below + 1], at - below as f64);
    let mix = |a: f64, b: f64| (a + (b - a) * share).round() as u8;
    RGBColor(mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
}

fn brightness(RGBColor(red, green, blue): RGBColor) -> f64 {
    0.299 * f64::from(red) + 0.587 * f64::from(green) + 0.114 * f64::from(blue)
}

fn is_dark(lightness: f64) -> bool {
    brightness(shade(lightness)) < 140.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shades_get_lighter_with_the_score_and_figures_stand_out_on_them() {
        let all: Vec<f64> = (0..=100).map(|s| brightness(shade(f64::from(s)))).collect();
        assert!(all.windows(2).all(|w| w[0] < w[1]));
        for score in 0..=100 {
            let score = f64::from(score);
            let ink = if is_dark(score) { 255.0 } else { brightness(INK) };
            assert!((brightness(shade(score)) - ink).abs() > 90.0, "{score}");
        }
    }

    #[test]
    fn scales_end_at_round_numbers_and_turn_where_less_is_better() {
        let error = Scale::up_to("output error", [0.31, 0.07].into_iter(), true);
        assert_eq!((error.high, error.lightness(0.0), error.lightness(0.5)), (0.5, 100.0, 0.0));
        assert_eq!([0.31, 0.5, 0.0].map(|v| error.text(v)), [".31", ".5", "0"]);
        assert_eq!([100.0, 33.33, 0.0].map(|v| Scale::percent().text(v)), ["100", "33.3", "0"]);
        assert_eq!(Scale::up_to("", std::iter::empty(), true).high, 1.0);
    }
}

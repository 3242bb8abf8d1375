//! Heat maps: panels of shaded cells with a common scale. Cells contain their value if there is space.
//!
//! Darker always means better, or larger if no value is better. Shades run from nearly white to dark in steps of lightness, so that
//! they also differ in greyscale. The scale is drawn below the cells.

use std::ops::Range;

use anyhow::Result;
use plotters::prelude::{RGBColor, WHITE};
use plotters::style::text_anchor::HPos;

use super::Pages;
use super::axis::round_up;
use super::pen::{
    self, CHARACTER, INK, LEAST_WIDTH, MOST_HEIGHT, Pen, Pixel, SIZE, TITLE_HEIGHT, page_title, title_width,
};

/// A figure of shaded cells.
pub struct Grid {
    /// The title.
    pub title: String,
    /// The label of the horizontal axis.
    pub x_label: String,
    /// The label of the vertical axis, which runs downwards.
    pub y_label: String,
    /// The names of the columns, which are the same in all panels.
    pub columns: Vec<String>,
    /// The names of the lines, which are the same in all panels.
    pub lines: Vec<String>,
    /// The panels, row by row.
    pub panels: Vec<GridPanel>,
    /// The scale of the values.
    pub scale: Scale,
    /// Notes on the whole figure: sentences below the scale.
    pub notes: Vec<String>,
}

/// One block of cells.
pub struct GridPanel {
    /// The title.
    pub title: String,
    /// The line, column and value of each cell. Missing cells stay white.
    pub cells: Vec<(usize, usize, f64)>,
}

/// The contents of one page.
struct Page<'a> {
    panels: &'a [GridPanel],
    lines: Range<usize>,
    title: String,
}

/// Maps values to shades and text.
pub struct Scale {
    /// The name of the quantity, with its unit.
    pub label: String,
    /// The upper end of the scale, which starts at 0.
    pub high: f64,
    /// Which values have deeper shades.
    pub deeper: Deeper,
}

/// Which values have deeper shades.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deeper {
    /// Larger values, which are better.
    MoreIsBetter,
    /// Smaller values, which are better.
    LessIsBetter,
    /// Larger values, none of which is better.
    More,
}

impl Scale {
    /// The scale of scores in percent.
    pub fn percent() -> Self {
        Self { label: "score (%)".to_owned(), high: 100.0, deeper: Deeper::MoreIsBetter }
    }

    /// A scale up to a round number that is at least as large as any value.
    pub fn up_to(label: &str, values: impl Iterator<Item = f64>, deeper: Deeper) -> Self {
        let high = values.fold(0.0, f64::max);
        Self { label: label.to_owned(), high: if high > 0.0 { round_up(high) } else { 1.0 }, deeper }
    }

    /// How deep the shade of a value is, from 0 to 100.
    fn depth(&self, value: f64) -> f64 {
        let share = 100.0 * value / self.high;
        if self.deeper == Deeper::LessIsBetter { 100.0 - share } else { share }
    }

    /// The text below the scale.
    fn caption(&self) -> String {
        let meaning = if self.deeper == Deeper::More { "larger" } else { "better" };
        format!("{}: darker is {meaning}", self.label)
    }

    /// The most decimals that are useful: one for percentages, otherwise enough for three digits.
    fn most_decimals(&self) -> usize {
        if self.high >= 10.0 { 1 } else { 2 + usize::from(self.high <= 0.1) }
    }

    /// A single value as text, without trailing zeros.
    fn text(&self, value: f64) -> String {
        let decimals = (0..self.most_decimals()).find(|decimals| is_whole_at(value, *decimals, self.most_decimals()));
        fixed(value, decimals.unwrap_or(self.most_decimals()))
    }
}

/// Whether a value, rounded to `most` decimals, needs no more than `decimals`.
fn is_whole_at(value: f64, decimals: usize, most: usize) -> bool {
    format!("{value:.most$}").bytes().rev().take(most - decimals).all(|digit| digit == b'0')
}

/// A value with `decimals` decimals. One that rounds to 0 is written without decimals.
fn fixed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let is_zero = text.bytes().all(|digit| matches!(digit, b'0' | b'.'));
    if is_zero { "0".to_owned() } else { text }
}

const LEGEND_HEIGHT: i32 = 72;
/// The height of a line below the scale, and the left margin of these lines.
const NOTE_LINE: i32 = 24;
const NOTES_LEFT: i32 = 20;
/// The margins around a panel's cells, for labels.
const TOP: i32 = 34;
const RIGHT: i32 = 18;
const BOTTOM: i32 = 56;
/// The size of a cell that contains its value; and the limits for cells of large maps, which contain none and are as large as fits.
const WITH_TEXT: Pixel = (52, 26);
const LARGEST: Pixel = (14, 14);
const SMALLEST: Pixel = (4, 8);
/// The most columns of cells with values, for several panels and for a single one.
const MOST_WITH_TEXT: usize = 16;
const MOST_ALONE: usize = 23;
const MOST_WIDTH: i32 = 1320;

impl Grid {
    /// Draws the map on one page.
    ///
    /// # Errors
    /// If the drawing fails, for which text output gives no cause.
    #[cfg(test)]
    pub fn svg(&self) -> Result<String> {
        self.page(&Page { panels: &self.panels, lines: 0..self.lines.len(), title: self.title.clone() })
    }

    /// Draws the map on as many pages as needed, but only the first `most`. First the panels are divided among pages, then the lines of
    /// panels that are higher than a page.
    ///
    /// # Errors
    /// If the drawing fails, for which text output gives no cause.
    pub fn pages(&self, most: usize) -> Result<Pages> {
        let notes = self.note_lines(LEAST_WIDTH).len() as i32 * NOTE_LINE;
        let available = MOST_HEIGHT - TITLE_HEIGHT - LEGEND_HEIGHT - notes;
        let most_lines = ((available - TOP - BOTTOM) / self.cell().1).max(1) as usize;
        let mut pages = Vec::new();
        for start in (0..self.lines.len()).step_by(most_lines) {
            let lines = start..(start + most_lines).min(self.lines.len());
            let rows = (available / self.panel_size(lines.len()).1).max(1);
            let panels = self.panels.chunks((rows * self.across()) as usize);
            pages.extend(panels.map(|panels| (panels, lines.clone())));
        }
        Pages::of(&pages, most, |i, (panels, lines)| {
            self.page(&Page { panels, lines: lines.clone(), title: page_title(&self.title, i, pages.len()) })
        })
    }

    /// The number that all cells show, if it is the same; otherwise `None`.
    pub fn only_number(&self) -> Option<String> {
        let mut numbers = self.values().map(|value| self.scale.text(value));
        let first = numbers.next()?;
        numbers.all(|number| number == first).then_some(first)
    }

    fn values(&self) -> impl Iterator<Item = f64> + '_ {
        self.panels.iter().flat_map(|panel| panel.cells.iter().map(|cell| cell.2))
    }

    fn page(&self, page: &Page) -> Result<String> {
        let panel = self.panel_size(page.lines.len());
        let columns = self.across().min(page.panels.len().max(1) as i32);
        let panels = columns * panel.0;
        let width = panels.max(LEAST_WIDTH).max(title_width(&page.title));
        let rows = (page.panels.len() as i32 + columns - 1) / columns;
        let notes = self.note_lines(width);
        let legend_top = TITLE_HEIGHT + rows * panel.1 + 8;
        let height = TITLE_HEIGHT + rows * panel.1 + LEGEND_HEIGHT + notes.len() as i32 * NOTE_LINE;
        pen::draw((width, height), &page.title, |pen| {
            for (i, content) in (0..).zip(page.panels) {
                let left = (width - panels) / 2 + i % columns * panel.0 + self.left();
                self.panel(pen, content, &page.lines, (left, TITLE_HEIGHT + i / columns * panel.1 + TOP))?;
            }
            self.legend(pen, (width / 2, legend_top))?;
            (0..).zip(&notes).try_for_each(|(line, note)| {
                let y = legend_top + LEGEND_HEIGHT + line * NOTE_LINE;
                pen.text(note, (width / 2, y), SIZE - 2, HPos::Center)
            })
        })
    }

    /// The number of panels side by side.
    fn across(&self) -> i32 {
        (MOST_WIDTH / self.panel_size(self.lines.len()).0).clamp(1, self.panels.len().max(1) as i32).min(4)
    }

    fn has_text(&self) -> bool {
        self.columns.len() <= if self.panels.len() == 1 { MOST_ALONE } else { MOST_WITH_TEXT }
    }

    fn cell(&self) -> Pixel {
        if self.has_text() {
            return WITH_TEXT;
        }
        let fitting =
            |available: i32, count: usize, least: i32, most: i32| (available / count.max(1) as i32).clamp(least, most);
        let available = (MOST_WIDTH - self.left() - RIGHT, MOST_HEIGHT - TITLE_HEIGHT - LEGEND_HEIGHT - TOP - BOTTOM);
        (
            fitting(available.0, self.columns.len(), SMALLEST.0, LARGEST.0),
            fitting(available.1, self.lines.len(), SMALLEST.1, LARGEST.1),
        )
    }

    /// The number of decimals in all cells, and the length of the longest value in characters; `None` if the values do not fit.
    fn format(&self) -> Option<(usize, i32)> {
        let most = self.scale.most_decimals();
        let used = (0..most).find(|decimals| self.values().all(|value| is_whole_at(value, *decimals, most)));
        let length = |decimals: usize| self.values().map(|value| fixed(value, decimals).chars().count() as i32).max();
        let fits = |(_, length): &(usize, i32)| length * CHARACTER + 6 <= WITH_TEXT.0;
        let tried = (0..=used.unwrap_or(most)).rev().filter_map(|decimals| Some((decimals, length(decimals)?)));
        tried.filter(|_| self.has_text()).find(fits)
    }

    fn inner(&self, lines: usize) -> Pixel {
        (self.columns.len() as i32 * self.cell().0, lines as i32 * self.cell().1)
    }

    /// The space to the left of the cells.
    fn left(&self) -> i32 {
        let longest = self.lines.iter().map(|name| name.chars().count() as i32).max().unwrap_or(0);
        40 + longest * CHARACTER
    }

    /// The size of a panel with this number of lines.
    fn panel_size(&self, lines: usize) -> Pixel {
        let longest = self.panels.iter().map(|p| p.title.chars().count() as i32).max().unwrap_or(0);
        let inner = self.inner(lines);
        let width = inner.0.max(self.x_label.chars().count() as i32 * CHARACTER);
        ((self.left() + width).max(longest * CHARACTER) + RIGHT, TOP + inner.1 + BOTTOM)
    }

    /// Draws some lines of a panel, with the upper left corner at `(left, top)`.
    fn panel(&self, pen: &Pen, panel: &GridPanel, lines: &Range<usize>, (left, top): Pixel) -> Result<()> {
        let (cell, inner) = (self.cell(), self.inner(lines.len()));
        let middle = left + inner.0 / 2;
        // A title may be wider than the cells, but must not start to the left of the panel.
        let half = panel.title.chars().count() as i32 * CHARACTER / 2;
        pen.text(&panel.title, (middle.max(left - self.left() + half), top - 16), SIZE, HPos::Center)?;
        let step = self.step(self.lines.len());
        for (i, name) in self.lines.iter().enumerate().filter(|(i, _)| lines.contains(i) && *i as i32 % step == 0) {
            let y = top + (i - lines.start) as i32 * cell.1 + cell.1 / 2;
            pen.text(name, (left - 7, y), SIZE, HPos::Right)?;
        }
        for (i, name) in (0..).zip(&self.columns).filter(|(i, _)| i % self.step(self.columns.len()) == 0) {
            pen.text(name, (left + i * cell.0 + cell.0 / 2, top + inner.1 + 14), SIZE, HPos::Center)?;
        }
        pen.text(&self.x_label, (middle, top + inner.1 + 36), SIZE, HPos::Center)?;
        pen.upwards(&self.y_label, (left - self.left() + 14, top + inner.1 / 2))?;
        let format = self.format();
        for (line, column, value) in panel.cells.iter().filter(|(line, ..)| lines.contains(line)) {
            let at = (left + *column as i32 * cell.0, top + (*line - lines.start) as i32 * cell.1);
            self.shaded(pen, at, cell, *value)?;
            let Some((decimals, longest)) = format else { continue };
            let ink = if is_dark(self.scale.depth(*value)) { WHITE } else { INK };
            // Digits are equally wide, so right alignment also aligns the decimal points.
            let end = (at.0 + (cell.0 + longest * CHARACTER) / 2, at.1 + cell.1 / 2);
            pen.coloured(&fixed(*value, decimals), end, SIZE, HPos::Right, ink)?;
        }
        pen.edge((left, top), (left + inner.0, top + inner.1), INK)
    }

    /// The number of lines or columns from one shown name to the next.
    fn step(&self, names: usize) -> i32 {
        if self.has_text() { 1 } else { (names as i32 / 8).max(2) }
    }

    fn legend(&self, pen: &Pen, (middle, top): Pixel) -> Result<()> {
        const STEP: i32 = 42;
        let left = middle - 11 * STEP / 2;
        for i in 0..=10 {
            let (x, value) = (left + i * STEP, f64::from(i) * self.scale.high / 10.0);
            self.shaded(pen, (x, top), (STEP, 14), value)?;
            pen.text(&self.scale.text(value), (x + STEP / 2, top + 26), SIZE, HPos::Center)?;
        }
        pen.text(&self.scale.caption(), (middle, top + 48), SIZE, HPos::Center)
    }

    /// The lines below the scale.
    fn note_lines(&self, width: i32) -> Vec<String> {
        self.notes.iter().flat_map(|note| pen::in_lines(note, width - 2 * NOTES_LEFT)).collect()
    }

    fn shaded(&self, pen: &Pen, (x, y): Pixel, (width, height): Pixel, value: f64) -> Result<()> {
        pen.fill((x, y), (x + width, y + height), shade(self.scale.depth(value)))?;
        // A small cell has no edge, because that would cover it.
        if width <= LARGEST.0 { Ok(()) } else { pen.edge((x, y), (x + width, y + height), WHITE) }
    }
}

/// The colours of the scale from 0 to 100, evenly spaced, each darker than the one before: the page's hue for good values.
const SHADES: [(f64, f64, f64); 5] =
    [(243.0, 248.0, 252.0), (174.0, 208.0, 232.0), (86.0, 157.0, 205.0), (20.0, 97.0, 158.0), (6.0, 42.0, 92.0)];

fn shade(depth: f64) -> RGBColor {
    let at = (depth / 100.0).clamp(0.0, 1.0) * (SHADES.len() - 1) as f64;
    let below = (at as usize).min(SHADES.len() - 2);
    let (a, b, share) = (SHADES[below], SHADES[below + 1], at - below as f64);
    let mix = |a: f64, b: f64| (a + (b - a) * share).round() as u8;
    RGBColor(mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
}

fn brightness(RGBColor(red, green, blue): RGBColor) -> f64 {
    0.299 * f64::from(red) + 0.587 * f64::from(green) + 0.114 * f64::from(blue)
}

fn is_dark(depth: f64) -> bool {
    brightness(shade(depth)) < 140.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shades_get_deeper_with_the_score_and_figures_stand_out_on_them() {
        let all: Vec<f64> = (0..=100).map(|s| brightness(shade(f64::from(s)))).collect();
        assert!(all.windows(2).all(|w| w[0] > w[1]));
        for score in 0..=100 {
            let score = f64::from(score);
            let ink = if is_dark(score) { 255.0 } else { brightness(INK) };
            assert!((brightness(shade(score)) - ink).abs() > 90.0, "{score}");
        }
    }

    #[test]
    fn scales_end_at_round_numbers_and_turn_where_less_is_better() {
        let error = Scale::up_to("output error", [0.31, 0.07].into_iter(), Deeper::LessIsBetter);
        assert_eq!((error.high, error.depth(0.0), error.depth(0.5)), (0.5, 100.0, 0.0));
        assert_eq!(error.caption(), "output error: darker is better");
        assert_eq!((Scale::percent().depth(0.0), Scale::percent().depth(100.0)), (0.0, 100.0));
        assert!(Scale::up_to("entropy", [2.0].into_iter(), Deeper::More).caption().ends_with("darker is larger"));
        assert_eq!([0.31, 0.5, 0.0].map(|v| error.text(v)), ["0.31", "0.5", "0"]);
        assert_eq!([100.0, 33.33, 0.0].map(|v| Scale::percent().text(v)), ["100", "33.3", "0"]);
        assert_eq!(Scale::up_to("", std::iter::empty(), Deeper::More).high, 1.0);
    }

    /// A map with several equal panels.
    fn map(panels: usize, lines: usize, columns: usize, value: impl Fn(usize, usize) -> f64) -> Grid {
        let names = |n: usize| (0..n).map(|i| format!("n{i}")).collect::<Vec<_>>();
        let cells = || (0..lines).flat_map(|l| (0..columns).map(move |c| (l, c)));
        let cells: Vec<_> = cells().map(|(l, c)| (l, c, value(l, c))).collect();
        Grid {
            title: "title".into(),
            x_label: "x".into(),
            y_label: "y".into(),
            columns: names(columns),
            lines: names(lines),
            panels: (0..panels).map(|i| GridPanel { title: format!("p{i}"), cells: cells.clone() }).collect(),
            scale: Scale::percent(),
            notes: vec!["a note".into()],
        }
    }

    fn height(svg: &str) -> i32 {
        svg.split("height=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
    }

    #[test]
    fn what_is_higher_than_a_page_is_split_and_nothing_is_lost() {
        for (panels, lines, columns) in [(1, 120, 3), (20, 12, 8), (3, 90, 40), (1, 400, 30)] {
            let pages = map(panels, lines, columns, |l, c| (l + c) as f64 % 100.0).pages(99).unwrap().drawn;
            assert!(pages.len() > 1 || lines == 90, "{panels} {lines}");
            assert!(pages.iter().all(|svg| height(svg) <= MOST_HEIGHT), "{panels} {lines} {columns}");
            let all = pages.concat();
            for i in 0..panels {
                assert!(all.contains(&format!("\np{i}\n")), "panel {i}");
            }
            if columns < 16 {
                let last = format!("\nn{}\n", lines - 1);
                assert_eq!(all.matches(&last).count(), panels, "each panel's last line");
            }
            assert!(pages.len() == 1 || pages[0].contains(&format!("title (1 of {})", pages.len())));
        }
        let one = map(2, 4, 4, |l, _| l as f64);
        assert_eq!(one.pages(99).unwrap().drawn, [one.svg().unwrap()]);
    }

    #[test]
    fn values_are_aligned_and_stand_where_they_fit() {
        let ends = |svg: &str, text: &str| -> Vec<i32> {
            let place = |part: &str| part.rsplit(" x=\"").next()?.split('"').next()?.parse().ok();
            svg.match_indices(&format!("\n{text}\n")).filter_map(|(at, _)| place(&svg[..at])).collect()
        };
        let svg = map(1, 2, 1, |l, _| [100.0, 7.5][l]).svg().unwrap();
        assert_eq!(ends(&svg, "100.0"), ends(&svg, "7.5"), "both end at one place, with as many decimals");
        assert_eq!(ends(&svg, "7.5").len(), 1);
        let huge = Grid {
            scale: Scale::up_to("x", [2e6].into_iter(), Deeper::LessIsBetter),
            ..map(1, 1, 2, |_, c| 1e6 + c as f64)
        };
        assert_eq!(huge.format(), None);
        assert!(!huge.svg().unwrap().contains("\n1000001"), "seven digits have no room");
        assert!(map(2, 2, 17, |l, _| l as f64).format().is_none() && map(1, 2, 17, |l, _| l as f64).format().is_some());
    }

    #[test]
    fn a_map_of_one_number_is_known() {
        assert_eq!(map(2, 3, 3, |_, _| 100.0).only_number().as_deref(), Some("100"));
        assert_eq!(map(1, 1, 1, |_, _| 33.333).only_number().as_deref(), Some("33.3"));
        assert_eq!(map(1, 3, 3, |l, _| l as f64).only_number(), None);
        assert_eq!(map(0, 3, 3, |l, _| l as f64).only_number(), None);
    }
}

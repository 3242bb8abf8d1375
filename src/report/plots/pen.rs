//! Drawing in pixels with plotters' SVG backend.
//!
//! Text stays text, so no system fonts are needed and the same calls give the same bytes. Colour-blind readers can tell the colours apart
//! (`palette.rs`), and methods of the same colour have different markers, so figures can be printed in greyscale. Letters are large enough
//! for a figure at half its width.

use anyhow::Result;
use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::element::{Circle, Drawable, PathElement, PointCollection, Polygon, Rectangle, Text};
use plotters::prelude::{DrawingArea, IntoDrawingArea, RGBColor, WHITE};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontDesc, FontFamily, FontStyle, FontTransform, TextStyle};

use super::palette::{FLOOR, ORACLE, PALETTE, PEER};
use spattn_base::text::in_line;

/// A place in pixels: its distance from the left and from the top.
pub type Pixel = (i32, i32);

/// The text size. plotters divides by 1.24 for SVG, so these two are 15 and 18 px.
pub const SIZE: i32 = 19;
/// The text size of titles.
pub const TITLE_SIZE: i32 = 22;
/// The approximate width of a character at [`SIZE`].
pub const CHARACTER: i32 = 9;
/// The height of the title above the panels.
pub const TITLE_HEIGHT: i32 = 44;
/// The least width of a figure.
pub const LEAST_WIDTH: i32 = 660;
/// The greatest height of a page: about what a sheet or a screen shows at a readable size.
pub const MOST_HEIGHT: i32 = 1200;
const RADIUS: i32 = 5;

/// The colour of text and frames.
pub const INK: RGBColor = RGBColor(40, 40, 40);
/// The colour of the lines at ticks.
pub const GRID: RGBColor = RGBColor(226, 226, 226);
/// The colour of series in the background, slightly darker than the lines at ticks.
const FAINT: RGBColor = RGBColor(205, 205, 205);
/// The corners of markers, in units of their radius. With the circle, which comes first, there are as many markers as colours.
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
/// The number of markers.
const MARKS: usize = MARKERS.len() + 1;
/// From this many methods on, lines get other dashes, because some earlier methods have similar colours and the same marker.
const IN_ONE_DASH: usize = 32;
/// The lengths of dash and gap along a line in pixels, alternating; empty for a solid line.
const DASHES: [&[f64]; 6] =
    [&[], &[8.0, 5.0], &[3.0, 3.0], &[14.0, 4.0, 3.0, 4.0], &[14.0, 7.0], &[9.0, 3.0, 3.0, 3.0, 3.0, 3.0]];
/// The dashes of dense attention, oracles and floors, none of which is solid.
const DENSE_DASH: &[f64] = &[8.0, 5.0];
const ORACLE_DASHES: [&[f64]; 4] = [&[6.0, 4.0], &[10.0, 3.0], &[4.0, 7.0], &[9.0, 3.0, 2.0, 3.0]];
const FLOOR_DASHES: [&[f64]; 2] = [&[1.5, 3.5], &[1.5, 7.0]];
const FAINT_DASH: &[f64] = &[3.0, 5.0];

/// The look of a series. The first number determines the marker and colour, the second one the dashes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SeriesLook {
    /// A usable method, or another series of equal rank: filled, in colour.
    Method(usize, usize),
    /// An oracle, which shows what is possible: grey, hollow and dashed.
    Oracle(usize, usize),
    /// A floor, which selects without a search: grey, hollow and dotted.
    Floor(usize, usize),
    /// Another program: hollow and dashed, in its own colour.
    Peer(usize),
    /// Dense attention: black and dashed.
    Dense,
    /// The machine's limit: black and without markers.
    Roof,
    /// A method in the background: faint, without markers or intervals.
    Other,
}

impl SeriesLook {
    /// The look of another setting of the same method.
    #[cfg(test)]
    pub fn of_setting(self, setting: usize) -> Self {
        match self {
            SeriesLook::Method(place, _) => SeriesLook::Method(place, setting),
            SeriesLook::Oracle(place, _) => SeriesLook::Oracle(place, setting),
            SeriesLook::Floor(place, _) => SeriesLook::Floor(place, setting),
            other => other,
        }
    }

    /// The colour.
    pub fn colour(self) -> RGBColor {
        match self {
            // Each round of markers shifts the colours by one, so that 64 methods look different, above all those often compared.
            SeriesLook::Method(place, _) => PALETTE[(place + place / MARKS) % PALETTE.len()],
            SeriesLook::Oracle(..) => ORACLE,
            SeriesLook::Floor(..) => FLOOR,
            SeriesLook::Peer(_) => PEER,
            SeriesLook::Dense | SeriesLook::Roof => INK,
            SeriesLook::Other => FAINT,
        }
    }

    /// The lengths of dash and gap along a line, in pixels; empty for a solid line.
    pub fn dash(self) -> &'static [f64] {
        match self {
            SeriesLook::Method(place, setting) => DASHES[(setting + place / IN_ONE_DASH) % DASHES.len()],
            SeriesLook::Roof | SeriesLook::Other => &[],
            SeriesLook::Oracle(place, setting) => ORACLE_DASHES[(place + setting) % ORACLE_DASHES.len()],
            SeriesLook::Floor(place, setting) => FLOOR_DASHES[(place + setting) % FLOOR_DASHES.len()],
            SeriesLook::Peer(i) => ORACLE_DASHES[i % ORACLE_DASHES.len()],
            SeriesLook::Dense => DENSE_DASH,
        }
    }

    /// The index of the marker.
    pub fn mark(self) -> usize {
        match self {
            SeriesLook::Method(place, _) | SeriesLook::Oracle(place, _) | SeriesLook::Peer(place) => place % MARKS,
            // The first floor gets the diamond.
            SeriesLook::Floor(place, _) => (place + 3) % MARKS,
            SeriesLook::Dense | SeriesLook::Roof | SeriesLook::Other => 0,
        }
    }

    fn is_hollow(self) -> bool {
        matches!(self, SeriesLook::Oracle(..) | SeriesLook::Floor(..) | SeriesLook::Peer(_))
    }

    /// The corners of the marker; `None` for a circle.
    fn outline(self) -> Option<&'static [(f64, f64)]> {
        self.mark().checked_sub(1).map(|i| MARKERS[i])
    }
}

/// Draws a figure of this size in pixels with a title, and returns it as SVG.
///
/// # Errors
/// If `body` fails.
pub fn draw(size: Pixel, title: &str, body: impl FnOnce(&Pen) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (size.0 as u32, size.1 as u32)).into_drawing_area();
        let pen = Pen { area: &area };
        area.fill(&WHITE)?;
        pen.text(title, (size.0 / 2, TITLE_HEIGHT / 2), TITLE_SIZE, HPos::Center)?;
        body(&pen)?;
        area.present()?;
    }
    Ok(svg)
}

/// The title of page `page`, counted from 0, of `pages` pages.
pub fn page_title(title: &str, page: usize, pages: usize) -> String {
    if pages > 1 { format!("{title} ({} of {pages})", page + 1) } else { title.to_owned() }
}

/// The width of a title, including margins.
pub fn title_width(title: &str) -> i32 {
    title.chars().count() as i32 * (CHARACTER + 1) + 2 * CHARACTER
}

/// Breaks a note between words into lines of at most `width` pixels. Notes are smaller than other text.
pub fn in_lines(text: &str, width: i32) -> Vec<String> {
    let most = (width / (CHARACTER - 1)).max(1) as usize;
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut().filter(|line| line.chars().count() + 1 + word.chars().count() <= most) {
            Some(line) => *line = format!("{line} {word}"),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A drawing area, with operations that take pixels.
pub struct Pen<'a, 'b> {
    /// The area.
    pub area: &'a DrawingArea<SVGBackend<'b>, Shift>,
}

impl<'b> Pen<'_, 'b> {
    /// Draws any element.
    pub fn draw<E>(&self, element: E) -> Result<()>
    where
        for<'e> &'e E: PointCollection<'e, (i32, i32)>,
        E: Drawable<SVGBackend<'b>>,
    {
        Ok(self.area.draw(&element)?)
    }

    /// Draws a line through points.
    pub fn line(&self, points: &[Pixel], colour: RGBColor, width: u32) -> Result<()> {
        self.draw(PathElement::new(points.to_vec(), colour.stroke_width(width)))
    }

    /// Fills an area between two corners.
    pub fn fill(&self, from: Pixel, to: Pixel, colour: RGBColor) -> Result<()> {
        self.draw(Rectangle::new([from, to], colour.filled()))
    }

    /// Draws the edge of an area between two corners.
    pub fn edge(&self, from: Pixel, to: Pixel, colour: RGBColor) -> Result<()> {
        self.draw(Rectangle::new([from, to], colour.stroke_width(1)))
    }

    /// Draws the line of a series.
    pub fn stroke(&self, look: SeriesLook, points: &[Pixel]) -> Result<()> {
        match look.dash() {
            [] => self.line(points, look.colour(), 2),
            dash => points.windows(2).try_for_each(|ends| self.dashed(ends[0], ends[1], dash, look.colour())),
        }
    }

    fn dashed(&self, from: Pixel, to: Pixel, dash: &[f64], colour: RGBColor) -> Result<()> {
        let (dx, dy) = (f64::from(to.0 - from.0), f64::from(to.1 - from.1));
        let length = dx.hypot(dy);
        let at = |along: f64| {
            let share = (along / length).min(1.0);
            (from.0 + (dx * share).round() as i32, from.1 + (dy * share).round() as i32)
        };
        let mut along = 0.0;
        for (i, part) in dash.iter().cycle().enumerate() {
            if along >= length {
                break;
            }
            if i % 2 == 0 {
                self.line(&[at(along), at(along + part)], colour, 2)?;
            }
            along += part;
        }
        Ok(())
    }

    /// Draws a dashed line whatever the look, beside the line of a series.
    pub fn faint(&self, look: SeriesLook, points: &[Pixel]) -> Result<()> {
        points.windows(2).try_for_each(|ends| self.dashed(ends[0], ends[1], FAINT_DASH, look.colour()))
    }

    /// Draws the marker of a series, hollow.
    pub fn hollow(&self, look: SeriesLook, at: Pixel) -> Result<()> {
        self.shape(look, at, RADIUS + 1, look.colour())?;
        self.shape(look, at, RADIUS - 2, WHITE)
    }

    /// Draws a vertical interval.
    pub fn interval(&self, look: SeriesLook, x: i32, (low, high): (i32, i32)) -> Result<()> {
        if look == SeriesLook::Other {
            return Ok(());
        }
        const CAP: i32 = 3;
        let paths = [[(x, low), (x, high)], [(x - CAP, low), (x + CAP, low)], [(x - CAP, high), (x + CAP, high)]];
        paths.iter().try_for_each(|path| self.line(path, look.colour(), 1))
    }

    /// Draws the marker of a series with a thin white rim, so that overlapping markers can be told apart; hollow for oracles, floors and
    /// peers, and none for a roof or a series in the background.
    pub fn marker(&self, look: SeriesLook, at: Pixel) -> Result<()> {
        match look {
            SeriesLook::Roof | SeriesLook::Other => Ok(()),
            _ if look.is_hollow() => self.hollow(look, at),
            _ => self.filled(look, at),
        }
    }

    /// Draws the marker of a series with a thin white rim, filled whatever the look.
    pub fn filled(&self, look: SeriesLook, at: Pixel) -> Result<()> {
        self.shape(look, at, RADIUS + 1, WHITE)?;
        self.shape(look, at, RADIUS, look.colour())
    }

    fn shape(&self, look: SeriesLook, (x, y): Pixel, radius: i32, colour: RGBColor) -> Result<()> {
        let Some(outline) = look.outline() else {
            return self.draw(Circle::new((x, y), radius, colour.filled()));
        };
        let scaled = |offset: f64| (offset * f64::from(radius)).round() as i32;
        let corners: Vec<_> = outline.iter().map(|(dx, dy)| (x + scaled(*dx), y + scaled(*dy))).collect();
        self.draw(Polygon::new(corners, colour.filled()))
    }

    /// Writes text beside or around `at`. Here, in [`coloured`](Self::coloured) and in [`upwards`](Self::upwards), control characters that
    /// XML does not allow are written as escapes such as `\u{1b}`.
    pub fn text(&self, text: &str, at: (i32, i32), size: i32, anchor: HPos) -> Result<()> {
        self.coloured(text, at, size, anchor, INK)
    }

    /// Writes text as [`text`](Self::text) does, in a given colour.
    pub fn coloured(&self, text: &str, at: (i32, i32), size: i32, anchor: HPos, ink: RGBColor) -> Result<()> {
        self.draw(Text::new(in_line(text).into_owned(), at, style(font(size), anchor).color(&ink)))
    }

    /// Writes vertical text, from bottom to top, centred at `at`.
    pub fn upwards(&self, text: &str, at: (i32, i32)) -> Result<()> {
        let font = font(SIZE).transform(FontTransform::Rotate270);
        self.draw(Text::new(in_line(text).into_owned(), at, style(font, HPos::Center)))
    }
}

fn font(size: i32) -> FontDesc<'static> {
    FontDesc::new(FontFamily::SansSerif, f64::from(size), FontStyle::Normal)
}

fn style(font: FontDesc<'static>, anchor: HPos) -> TextStyle<'static> {
    TextStyle::from(font).color(&INK).pos(Pos::new(anchor, VPos::Center))
}

//! `verdict*.svg`: the table of verdicts as a picture, with methods by requested budgets.
//!
//! A cell has the word of the finding, the difference to dense attention, and the costs of the setting. Its colour repeats the word, so
//! the picture can be read in greyscale.

use anyhow::Result;
use plotters::prelude::{RGBColor, WHITE};
use plotters::style::text_anchor::HPos;

use super::pages::Pages;
use super::pen::{
    self, CHARACTER, INK, LEAST_WIDTH, MOST_HEIGHT, Pen, Pixel, SIZE, TITLE_HEIGHT, page_title, title_width,
};
use super::{Figures, suffix};
use crate::report::verdict::matrix::{VerdictMatrix, about_full, costs};
use crate::report::verdict::words;
use spattn_attention::Role;
use spattn_eval::summary::verdicts::{AskedBudget, Finding, JudgedSetting, VerdictTable};

/// The fewest settings for which a picture is drawn.
const LEAST_SETTINGS: usize = 3;
/// The most columns on a page.
const MOST_COLUMNS: usize = 5;

const CELL_HEIGHT: i32 = 72;
const LINE: i32 = 21;
/// The width of the coloured bar at the left of a cell, and the space between the bar and the text.
const BAR: i32 = 7;
const PADDING: i32 = 10;
const GAP: i32 = 4;
const HEADING: i32 = 34;
const MARGIN: i32 = 16;

/// The colours of a finding: for the cell, and for its bar.
struct Colours {
    paper: RGBColor,
    bar: RGBColor,
}

const SAFE: Colours = Colours { paper: RGBColor(219, 234, 247), bar: RGBColor(0, 114, 178) };
const NOT_SAFE: Colours = Colours { paper: RGBColor(252, 229, 216), bar: RGBColor(213, 94, 0) };
const OPEN: Colours = Colours { paper: RGBColor(240, 240, 240), bar: RGBColor(165, 165, 165) };
const BESIDE: Colours = Colours { paper: WHITE, bar: RGBColor(226, 226, 226) };

/// One figure for each table of several settings. At most `most` pages are drawn.
///
/// # Errors
/// If the drawing fails, for which text output gives no cause.
pub fn figures(tables: &[VerdictTable], most: usize) -> Result<Figures> {
    let mut figures = Figures::up_to(most);
    let worth: Vec<&VerdictTable> = tables.iter().filter(|table| table.settings.len() >= LEAST_SETTINGS).collect();
    for table in &worth {
        let file = file(table, &worth);
        if !figures.is_full(&file) {
            let title = title(table, tables);
            figures.pages(&file, &title, Picture::of(table, &title).pages(figures.pages_left)?);
        }
    }
    Ok(figures)
}

/// The title of the table, with the model, since a figure may be shown alone.
fn title(table: &VerdictTable, among: &[VerdictTable]) -> String {
    let title = words::title(table, among);
    match among.iter().all(|other| other.model == table.model) {
        true => format!("Verdict: {}, {title}", table.model),
        false => format!("Verdict: {title}"),
    }
}

/// The name of a table's file, with what tells the table from others.
fn file(table: &VerdictTable, among: &[&VerdictTable]) -> String {
    let differs = |of: fn(&VerdictTable) -> String| among.iter().any(|other| of(other) != of(table));
    let parts: [fn(&VerdictTable) -> String; 4] =
        [|t| t.model.clone(), |t| t.protocol.clone(), |t| t.length.to_string(), tasks];
    let texts = parts.map(|part| (differs(part), part(table)));
    let suffix = suffix(&texts.each_ref().map(|(differs, text)| (*differs, text.as_str())));
    format!("verdict{suffix}.svg")
}

fn tasks(table: &VerdictTable) -> String {
    match table.tasks.as_slice() {
        [task] => task.clone(),
        tasks => format!("{} tasks", tasks.len()),
    }
}

/// A table, with what all its pages share.
struct Picture<'t> {
    matrix: VerdictMatrix<'t>,
    title: String,
    /// What the words mean, for below the cells.
    notes: String,
    table: &'t VerdictTable,
}

/// The part of a table that is on one page.
struct Page {
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
}

impl<'t> Picture<'t> {
    fn of(table: &'t VerdictTable, title: &str) -> Self {
        let full = about_full(table).map_or(String::new(), |full| format!("{full} "));
        Self {
            matrix: VerdictMatrix::of(table),
            title: title.to_owned(),
            notes: format!("{full}{}", words::rule(table)),
            table,
        }
    }

    fn pages(&self, most: usize) -> Result<Pages> {
        let most_rows = ((MOST_HEIGHT - TITLE_HEIGHT - HEADING - 4 * LINE) / (CELL_HEIGHT + GAP)) as usize;
        let parts = |count: usize, of: usize| (0..count).step_by(of).map(move |at| at..(at + of).min(count));
        let columns: Vec<_> = parts(self.matrix.budgets.len(), MOST_COLUMNS).collect();
        let pages: Vec<Page> = parts(self.matrix.rows.len(), most_rows)
            .flat_map(|rows| columns.iter().map(move |columns| Page { rows: rows.clone(), columns: columns.clone() }))
            .collect();
        Pages::of(&pages, most, |at, page| self.page(page, &page_title(&self.title, at, pages.len())))
    }

    fn page(&self, page: &Page, title: &str) -> Result<String> {
        let (left, cell) = (self.left(), self.cell_width());
        let cells = page.columns.len() as i32 * (cell + GAP);
        let width = (left + cells + MARGIN).max(LEAST_WIDTH).max(title_width(title));
        let notes = pen::in_lines(&self.notes, width - 2 * MARGIN);
        let bottom = TITLE_HEIGHT + HEADING + page.rows.len() as i32 * (CELL_HEIGHT + GAP);
        let height = bottom + notes.len() as i32 * LINE + MARGIN;
        pen::draw((width, height), title, |pen| {
            for (x, budget) in (0..).zip(&self.matrix.budgets[page.columns.clone()]) {
                let at = (left + x * (cell + GAP) + BAR + PADDING, TITLE_HEIGHT + HEADING / 2);
                pen.text(&heading(*budget), at, SIZE, HPos::Left)?;
            }
            for (y, (name, settings)) in (0..).zip(&self.matrix.rows[page.rows.clone()]) {
                let top = TITLE_HEIGHT + HEADING + y * (CELL_HEIGHT + GAP);
                pen.text(name, (left - PADDING, top + CELL_HEIGHT / 2), SIZE, HPos::Right)?;
                for (x, settings) in (0..).zip(&settings[page.columns.clone()]) {
                    // Settings that cannot be told apart share a cell, which shows the first. The page and `summary.md` list all of them.
                    let Some(setting) = settings.first() else { continue };
                    self.cell(pen, setting, (left + x * (cell + GAP), top), cell)?;
                }
            }
            (0..).zip(&notes).try_for_each(|(line, note)| {
                pen.text(note, (MARGIN, bottom + LINE / 2 + line * LINE), SIZE - 3, HPos::Left)
            })
        })
    }

    fn cell(&self, pen: &Pen, setting: &JudgedSetting, (x, y): Pixel, width: i32) -> Result<()> {
        let colours = colours(setting);
        pen.fill((x, y), (x + width, y + CELL_HEIGHT), colours.paper)?;
        pen.fill((x, y), (x + BAR, y + CELL_HEIGHT), colours.bar)?;
        let sizes = [SIZE, SIZE - 3, SIZE - 3];
        for (line, (text, size)) in (0..).zip(self.texts(setting).iter().zip(sizes)) {
            pen.coloured(text, (x + BAR + PADDING, y + 15 + line * LINE), size, HPos::Left, INK)?;
        }
        Ok(())
    }

    /// The three lines of a cell.
    fn texts(&self, setting: &JudgedSetting) -> [String; 3] {
        let difference = words::difference(self.table, setting);
        let difference = if difference.is_empty() { difference } else { format!("Δ {difference}") };
        [word(setting), difference, costs(setting)]
    }

    /// The width of a cell, which fits the longest text.
    fn cell_width(&self) -> i32 {
        let settings = self.matrix.rows.iter().flat_map(|(_, cells)| cells.iter().filter_map(|cell| cell.first()));
        let longest = settings.flat_map(|setting| self.texts(setting)).map(|text| text.chars().count()).max();
        BAR + 2 * PADDING + longest.unwrap_or(0) as i32 * (CHARACTER - 1)
    }

    /// The space to the left of the cells, which fits the longest name.
    fn left(&self) -> i32 {
        let longest = self.matrix.rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        MARGIN + PADDING + longest as i32 * CHARACTER
    }
}

/// The heading of a column: the requested budget, which may differ from the attended one.
fn heading(budget: AskedBudget) -> String {
    match budget {
        AskedBudget::Own => words::budget(budget),
        asked => format!("asked for {}", asked.name()),
    }
}

/// The word of a finding. The tables say how sure it is and what is missing.
fn word(setting: &JudgedSetting) -> String {
    match setting.finding {
        Finding::Safe { .. } if setting.is_recommended() => "safe".to_owned(),
        Finding::Safe { .. } => "safe in the mean only".to_owned(),
        Finding::NotSafe { .. } => "not safe".to_owned(),
        Finding::TooFew { .. } => "too few examples".to_owned(),
        Finding::NothingToLose => "nothing to lose".to_owned(),
        Finding::NotJudged => match setting.role {
            Role::Method => "not judged".to_owned(),
            role => role.name().to_owned(),
        },
    }
}

fn colours(setting: &JudgedSetting) -> Colours {
    match words::class(setting) {
        "safe" => SAFE,
        "not-safe" => NOT_SAFE,
        "open" => OPEN,
        _ => BESIDE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::verdict::testing::{run, tables};

    fn drawn(methods: &[(&str, &str, usize)]) -> Figures {
        let of = |(method, params, lost): &(&str, &str, usize)| run("vt", method, params, *lost, 600);
        let runs: Vec<_> = std::iter::once(run("vt", "full", "", 0, 600)).chain(methods.iter().map(of)).collect();
        figures(&tables(&runs, 1.5), 9).unwrap()
    }

    #[test]
    fn a_cell_says_and_shows_its_finding() {
        let figures = drawn(&[
            ("h2o", "density=0.05", 0),
            ("loki", "density=0.05", 4),
            ("quest", "density=0.05", 60),
            ("quest", "density=0.2", 0),
            ("topk", "density=0.2", 0),
        ]);
        let [figure] = figures.drawn().collect::<Vec<_>>()[..] else { panic!("{figures:?}") };
        assert_eq!((figure.file.as_str(), figure.title.as_str()), ("verdict.svg", "Verdict: builtin, vt at 4K tokens"));
        let count = |text: &str| figure.svg.matches(text).count();
        for (word, times) in [("\nsafe\n", 2), ("\nnot safe\n", 1), ("\ntoo few examples\n", 1), ("\noracle\n", 1)] {
            assert_eq!(count(word), times, "{word}");
        }
        assert_eq!(["#0072B2", "#D55E00"].map(count), [2, 1], "a bar each");
        assert_eq!(
            ["\nasked for 5 %\n", "\nasked for 20 %\n", "\nquest\n", "\nmemory +12 %, reads 10 %\n"].map(count),
            [1, 1, 1, 5]
        );
        assert_eq!(count("Full attention scores 100.0."), 1, "{}", figure.svg);
    }

    #[test]
    fn a_table_of_few_settings_has_none_and_a_long_one_several_pages() {
        assert_eq!(drawn(&[("quest", "density=0.05", 0), ("h2o", "density=0.05", 0)]).drawn().count(), 0);
        let grid: Vec<String> = (1..=14).map(|i| format!("density=0.{i:02}")).collect();
        let many: Vec<(&str, &str, usize)> = grid.iter().map(|params| ("quest", params.as_str(), 0)).collect();
        assert_eq!(drawn(&many).drawn().count(), 3, "five columns each");
    }
}

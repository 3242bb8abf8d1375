//! `plots/*.svg` and `plots/*.png`: drawings of summary rows and records, one file a kind of figure.

pub mod analyses;
pub mod depths;
pub mod papers;
pub mod png;
pub mod trade;
pub mod tuning;

pub(super) mod axis;
pub(super) mod bars;
pub(super) mod chart;
mod grid;
mod heads;
mod lengths;
pub(super) mod looks;
mod palette;
mod params;
pub(super) mod pen;

use anyhow::Result;

use self::axis::Axis;
use self::chart::Chart;
use self::grid::Grid;
use self::pen::page_title;
use super::Report;
use crate::eval::record::SummaryRow;
use crate::tasks::likelihood::Measure;

/// One drawing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// File name, ending in `.svg`.
    pub file: String,
    /// What it shows, as in its title.
    pub title: String,
    /// The drawing.
    pub svg: String,
}

/// The pages of a figure as files: `name.svg`, `name-2.svg` and so on.
pub(super) fn paged(file: &str, title: &str, pages: Vec<String>) -> Vec<Figure> {
    let (name, of) = (file.trim_end_matches(".svg"), pages.len());
    let page = |(i, svg): (usize, String)| {
        let file = if i == 0 { file.to_owned() } else { format!("{name}-{}.svg", i + 1) };
        Figure { file, title: page_title(title, i, of), svg }
    };
    pages.into_iter().enumerate().map(page).collect()
}

/// Figures of a report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// What one looks at first: the first of each kind, or all where they are few.
    pub first: Vec<Figure>,
    /// The others, with further pages of the first.
    pub others: Vec<Figure>,
    /// File and number of each that would repeat one number.
    pub left_out: Vec<(String, String)>,
}

impl Figures {
    /// Up to so many are shown together.
    const HANDFUL: usize = 8;
    /// So many that were left out are named.
    const NAMED: usize = 4;

    /// Draws a chart, or several of one figure, unless it would repeat one number; `is_x_measured` says whether what is to the
    /// right was measured as well.
    fn charts(&mut self, file: &str, charts: &[Chart], is_x_measured: bool) -> Result<()> {
        let Some(first) = charts.first() else { return Ok(()) };
        let mut numbers = charts.iter().map(|chart| chart.only_number(is_x_measured));
        let number = numbers.next().flatten();
        let is_one = numbers.all(|other| other == number);
        match number.filter(|_| is_one) {
            Some(number) => self.left_out.push((file.to_owned(), number)),
            None => self.pages(file, &first.title, chart::pages(charts)?),
        }
        Ok(())
    }

    /// Draws a heat map, unless it would repeat one number.
    fn grid(&mut self, file: &str, grid: &Grid) -> Result<()> {
        match grid.only_number() {
            Some(number) => self.left_out.push((file.to_owned(), number)),
            None => self.pages(file, &grid.title, grid.pages()?),
        }
        Ok(())
    }

    /// Takes the pages of a figure. Of the first figure the first page comes first.
    fn pages(&mut self, file: &str, title: &str, pages: Vec<String>) {
        for page in paged(file, title, pages) {
            if self.first.is_empty() { self.first.push(page) } else { self.others.push(page) }
        }
    }

    /// Takes figures of another kind, with what comes first of them.
    fn take(&mut self, kind: Self) {
        self.first.extend(kind.first);
        self.others.extend(kind.others);
        self.left_out.extend(kind.left_out);
    }

    /// As [`take`](Self::take), but all of them come behind.
    fn take_behind(&mut self, kind: Self) {
        self.others.extend(kind.first);
        self.take(Self { first: Vec::new(), ..kind });
    }

    /// All kinds together.
    fn join(kinds: impl IntoIterator<Item = Self>) -> Self {
        let kinds: Vec<Self> = kinds.into_iter().collect();
        let count: usize = kinds.iter().map(|kind| kind.first.len() + kind.others.len()).sum();
        let mut all = Self::default();
        for mut kind in kinds {
            if count <= Self::HANDFUL {
                kind.first.append(&mut kind.others);
            }
            all.take(kind);
        }
        all
    }

    /// All that were drawn.
    pub fn drawn(&self) -> impl Iterator<Item = &Figure> {
        self.first.iter().chain(&self.others)
    }

    /// A line that says what was left out and why; nothing where nothing was.
    pub fn left_out_line(&self) -> Option<String> {
        let more = self.left_out.len().saturating_sub(Self::NAMED);
        let named: Vec<String> =
            self.left_out.iter().take(Self::NAMED).map(|(file, number)| format!("{file} ({number})")).collect();
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        (!named.is_empty())
            .then(|| format!("Plots that would repeat one number are left out: {}{more}.", named.join(", ")))
    }
}

/// All figures of a report.
///
/// # Errors
/// If a drawing fails, for which text output gives no cause.
pub fn figures(report: &Report) -> Result<Figures> {
    let means: Vec<SummaryRow> = report.means.iter().flat_map(|table| table.rows.iter().cloned()).collect();
    let rows = &report.rows;
    Ok(Figures::join([
        trade::figures(rows, &means)?,
        lengths::figures(rows, &means)?,
        params::figures(rows, &means)?,
        depths::figures(&report.depths)?,
        bars::figures(&report.rows, &report.means)?,
        heads::figures(&report.cells)?,
    ]))
}

/// The vertical axis of the rows of a task: scores have the same in all panels, perplexities of different texts have
/// little in common.
fn score_axis(measure: Measure, all: &[&SummaryRow], of_task: &[&SummaryRow]) -> Axis {
    let ends = |rows: &[&SummaryRow]| {
        let of_row = |r: &&SummaryRow| [r.ci_low.unwrap_or(r.score), r.ci_high.unwrap_or(r.score)];
        rows.iter().flat_map(of_row).collect::<Vec<_>>()
    };
    match measure {
        Measure::Score => Axis::of_scores(ends(all).into_iter()),
        Measure::Perplexity => Axis::of_perplexities(ends(of_task).into_iter()),
    }
}

fn measure_title(measure: Measure) -> &'static str {
    match measure {
        Measure::Score => "Score",
        Measure::Perplexity => "Perplexity",
    }
}

fn measure_label(measure: Measure) -> &'static str {
    match measure {
        Measure::Score => "score (%)",
        Measure::Perplexity => "perplexity (less is better)",
    }
}

/// What differs from the other figures of a kind, to follow in a file name.
pub(super) fn suffix(parts: &[(bool, &str)]) -> String {
    parts.iter().filter(|(differs, _)| *differs).map(|(_, part)| format!("_{}", as_file_name(part))).collect()
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
fn as_file_name(text: &str) -> String {
    let kept = |c: char| c.is_ascii_alphanumeric() || c == '.';
    text.split(|c| !kept(c)).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_pages(name: &str, pages: usize) -> Figures {
        let mut figures = Figures::default();
        figures.pages(&format!("{name}.svg"), name, vec![String::new(); pages]);
        figures
    }

    #[test]
    fn pages_have_numbers_and_the_first_of_each_kind_comes_first() {
        let files = |figures: &[Figure]| figures.iter().map(|figure| figure.file.clone()).collect::<Vec<_>>().join(" ");
        let mut many = of_pages("a", 3);
        many.take(of_pages("each", 1));
        (0..6).for_each(|i| many.take_behind(of_pages(&format!("more{i}"), 1)));
        let all = Figures::join([many, Figures::default(), of_pages("b", 2)]);
        assert_eq!(files(&all.first), "a.svg each.svg b.svg");
        assert!(files(&all.others).starts_with("a-2.svg a-3.svg more0.svg") && all.drawn().count() == 12);
        assert_eq!(all.others[0].title, "a (2 of 3)");
        let few = Figures::join([of_pages("a", 2), of_pages("b", 1)]);
        assert_eq!((files(&few.first).as_str(), few.others.len()), ("a.svg a-2.svg b.svg", 0));
        assert_eq!(few.left_out_line(), None);
    }

    #[test]
    fn what_is_left_out_is_said_in_one_line() {
        let left_out = (0..6).map(|i| (format!("{i}.svg"), "100".to_owned())).collect();
        let said = Figures { left_out, ..Figures::default() }.left_out_line().unwrap();
        let files = "0.svg (100), 1.svg (100), 2.svg (100), 3.svg (100) and 2 more";
        assert_eq!(said, format!("Plots that would repeat one number are left out: {files}."));
    }

    #[test]
    fn long_model_names_keep_their_end() {
        assert_eq!(end_of(&("x".repeat(50) + "é")), format!("…{}é", "x".repeat(35)));
        assert_eq!(end_of("org/model"), "org/model");
    }
}

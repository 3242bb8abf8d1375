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
use crate::eval::summary::summary_row::SummaryRow;
use spattn_tasks::likelihood::Measure;

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

/// The first pages of a figure.
pub(super) struct Pages {
    /// Those that were drawn.
    pub drawn: Vec<String>,
    /// How many there are.
    pub of: usize,
}

impl Pages {
    /// Draws the first pages, up to so many; `draw` is told which it is.
    fn of<P>(all: &[P], most: usize, draw: impl Fn(usize, &P) -> Result<String>) -> Result<Self> {
        let drawn = all.iter().take(most).enumerate().map(|(i, page)| draw(i, page));
        Ok(Self { drawn: drawn.collect::<Result<_>>()?, of: all.len() })
    }
}

impl From<Vec<String>> for Pages {
    fn from(drawn: Vec<String>) -> Self {
        Self { of: drawn.len(), drawn }
    }
}

/// The pages of a figure as files: `name.svg`, `name-2.svg` and so on.
pub(super) fn paged(file: &str, title: &str, pages: impl Into<Pages>) -> Vec<Figure> {
    let pages = pages.into();
    let (name, of) = (file.trim_end_matches(".svg"), pages.of);
    let page = |(i, svg): (usize, String)| {
        let file = if i == 0 { file.to_owned() } else { format!("{name}-{}.svg", i + 1) };
        Figure { file, title: page_title(title, i, of), svg }
    };
    pages.drawn.into_iter().enumerate().map(page).collect()
}

/// Pages of a kind that are drawn of a report unless all are asked for.
pub const MOST_PAGES: usize = 32;

/// Figures of a report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// What one looks at first: the first of each kind, or all where they are few.
    pub first: Vec<Figure>,
    /// The others, with further pages of the first.
    pub others: Vec<Figure>,
    /// File and number of each that would repeat one number.
    pub left_out: Vec<(String, String)>,
    /// Files of which pages were not drawn, since there are many of the kind, and how many.
    pub not_drawn: Vec<(String, usize)>,
    /// Pages that can still be drawn.
    pub(super) room: usize,
}

impl Figures {
    /// Up to so many are shown together.
    const HANDFUL: usize = 8;
    /// So many that were left out are named.
    const NAMED: usize = 4;

    /// None yet, of a kind of which up to `most` pages are drawn.
    fn up_to(most: usize) -> Self {
        Self { room: most, ..Self::default() }
    }

    /// Whether a figure would not be drawn, which is then noted: nothing need be made for it.
    fn is_full(&mut self, file: &str) -> bool {
        let is_full = self.room == 0;
        if is_full {
            self.not_drawn.push((file.to_owned(), 1));
        }
        is_full
    }

    /// Draws a chart, or several of one figure, unless it would repeat one number; `is_x_measured` says whether what is to the
    /// right was measured as well.
    fn charts(&mut self, file: &str, charts: &[Chart], is_x_measured: bool) -> Result<()> {
        let Some(first) = charts.first() else { return Ok(()) };
        let mut numbers = charts.iter().map(|chart| chart.only_number(is_x_measured));
        let number = numbers.next().flatten();
        let is_one = numbers.all(|other| other == number);
        match number.filter(|_| is_one) {
            Some(number) => self.left_out.push((file.to_owned(), number)),
            None => self.pages(file, &first.title, chart::pages(charts, self.room)?),
        }
        Ok(())
    }

    /// Draws a heat map, unless it would repeat one number.
    fn grid(&mut self, file: &str, grid: &Grid) -> Result<()> {
        match grid.only_number() {
            Some(number) => self.left_out.push((file.to_owned(), number)),
            None => self.pages(file, &grid.title, grid.pages(self.room)?),
        }
        Ok(())
    }

    /// Takes the pages of a figure. Of the first figure the first page comes first.
    fn pages(&mut self, file: &str, title: &str, pages: Pages) {
        let left = pages.of - pages.drawn.len();
        self.room = self.room.saturating_sub(pages.drawn.len());
        self.not_drawn.extend((left > 0).then(|| (file.to_owned(), left)));
        for page in paged(file, title, pages) {
            if self.first.is_empty() { self.first.push(page) } else { self.others.push(page) }
        }
    }

    /// Takes figures of another kind, with what comes first of them.
    fn take(&mut self, kind: Self) {
        self.first.extend(kind.first);
        self.others.extend(kind.others);
        self.left_out.extend(kind.left_out);
        self.not_drawn.extend(kind.not_drawn);
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
        let left_out = named(self.left_out.iter().map(|(file, number)| format!("{file} ({number})")));
        Some(format!("Plots that would repeat one number are left out: {}.", left_out?))
    }

    /// A line that says of which figures not all pages were drawn, and how to have them; nothing where all were.
    pub fn not_drawn_line(&self) -> Option<String> {
        let pages = |n: usize| if n == 1 { "1 page".to_owned() } else { format!("{n} pages") };
        let not_drawn = named(self.not_drawn.iter().map(|(file, n)| format!("{file} ({})", pages(*n))))?;
        Some(format!(
            "Of each kind of plot {MOST_PAGES} pages are drawn, and `spattn report --all-plots` draws the rest: {not_drawn}."
        ))
    }
}

/// The first of many names, and how many there are besides; nothing of none.
fn named(all: impl ExactSizeIterator<Item = String>) -> Option<String> {
    let more = all.len().saturating_sub(Figures::NAMED);
    let named = all.take(Figures::NAMED).collect::<Vec<_>>().join(", ");
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    (!named.is_empty()).then(|| named + &more)
}

/// All figures of a report, of each kind up to `most` pages.
///
/// # Errors
/// If a drawing fails, for which text output gives no cause.
pub fn figures(report: &Report, most: usize) -> Result<Figures> {
    let means: Vec<SummaryRow> = report.means.iter().flat_map(|table| table.rows.iter().cloned()).collect();
    let rows = &report.rows;
    Ok(Figures::join([
        trade::figures(rows, &means, most)?,
        lengths::figures(rows, &means, most)?,
        params::figures(rows, &means, most)?,
        depths::figures(&report.depths, most)?,
        bars::figures(&report.rows, &report.means, most)?,
        heads::figures(&report.cells, most)?,
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
        figures.pages(&format!("{name}.svg"), name, vec![String::new(); pages].into());
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
    fn of_a_kind_so_many_pages_are_drawn_and_the_others_are_said_in_one_line() {
        use crate::eval::records::record::Record;
        use crate::eval::records::record::tests::record;
        let at = |task: String, length, method: &str, score| Record {
            length,
            key: format!("{task}{length}{method}"),
            depth: Some(0.0),
            ..record(&task, method, 0, score)
        };
        let both = |task: String, length| [at(task.clone(), length, "full", 1.0), at(task, length, "quest", 0.5)];
        let lengths: Vec<Record> = (0..60).flat_map(|i| both("vt".into(), 1000 + i)).collect();
        let tasks: Vec<Record> = (0..700).flat_map(|i| both(format!("t{i}"), 4096)).collect();
        for records in [&lengths, &tasks] {
            let report = Report::new(records, &[]);
            let count = |figures: &Figures, kind: &str| figures.drawn().filter(|f| f.file.starts_with(kind)).count();
            let (some, all) = (figures(&report, 5).unwrap(), figures(&report, usize::MAX).unwrap());
            for kind in ["score_vs_density", "score_vs_cost", "score_vs_bytes", "score_vs_latency"] {
                assert_eq!(count(&some, kind), 5, "{kind}");
                assert!(count(&all, kind) > 30, "{kind}");
            }
            assert!(some.drawn().all(|figure| all.drawn().any(|other| other == figure)), "the first, as they are");
            let left: usize = some.not_drawn.iter().map(|(_, pages)| pages).sum();
            let depths = if std::ptr::eq(records, &tasks) { 695 } else { 0 };
            assert!(left >= all.drawn().count() - some.drawn().count() && left >= depths, "{left}");
            let said = some.not_drawn_line().unwrap();
            assert!(said.contains("`spattn report --all-plots` draws the rest: score_vs_density"), "{said}");
            assert!(said.len() < 400 && said.ends_with(" more."), "{said}");
            assert_eq!(all.not_drawn_line(), None);
        }
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

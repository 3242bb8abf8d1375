//! The figures of a report. The pages of each kind are limited, and those left out are listed.

use anyhow::Result;

use super::chart::{self, Chart};
use super::grid::Grid;
use super::pages::{Figure, Pages, paged};

/// The most pages of each kind, unless all are requested.
pub const MOST_PAGES: usize = 32;

/// Figures of a report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// The figures to look at first: the first of each kind, or all of a kind with few.
    pub first: Vec<Figure>,
    /// The other figures, and further pages of the first ones.
    pub others: Vec<Figure>,
    /// Figures left out because they would show the same number everywhere: the file, and the number.
    pub left_out: Vec<(String, String)>,
    /// Figures that lack pages because there are too many of their kind: the file, and the number of missing pages.
    pub not_drawn: Vec<(String, usize)>,
    /// The number of pages that can still be drawn.
    pub(in crate::report) pages_left: usize,
}

impl Figures {
    /// If there are at most this many figures, all are shown first.
    const HANDFUL: usize = 8;
    /// The most left out figures that are named.
    const NAMED: usize = 4;

    /// An empty set for figures of one kind, of at most `most` pages.
    pub(super) fn up_to(most: usize) -> Self {
        Self { pages_left: most, ..Self::default() }
    }

    /// Whether no page is left for a figure. If so, it is listed as not drawn, and need not be prepared.
    pub(super) fn is_full(&mut self, file: &str) -> bool {
        let is_full = self.pages_left == 0;
        if is_full {
            self.not_drawn.push((file.to_owned(), 1));
        }
        is_full
    }

    /// Draws the charts of one figure, unless they all show the same single number. `is_x_measured` says whether the horizontal values were
    /// measured too.
    pub(super) fn charts(&mut self, file: &str, charts: &[Chart], is_x_measured: bool) -> Result<()> {
        let Some(first) = charts.first() else { return Ok(()) };
        let mut numbers = charts.iter().map(|chart| chart.only_number(is_x_measured));
        let number = numbers.next().flatten();
        let is_one = numbers.all(|other| other == number);
        match number.filter(|_| is_one) {
            Some(number) => self.left_out.push((file.to_owned(), number)),
            None => self.pages(file, &first.title, chart::pages(charts, self.pages_left)?),
        }
        Ok(())
    }

    /// Draws a heat map, unless all cells show the same number.
    pub(super) fn grid(&mut self, file: &str, grid: &Grid) -> Result<()> {
        match grid.only_number() {
            Some(number) => self.left_out.push((file.to_owned(), number)),
            None => self.pages(file, &grid.title, grid.pages(self.pages_left)?),
        }
        Ok(())
    }

    /// Adds the pages of a figure. The first page of the first figure goes to `first`.
    pub(super) fn pages(&mut self, file: &str, title: &str, pages: Pages) {
        let left = pages.of - pages.drawn.len();
        self.pages_left = self.pages_left.saturating_sub(pages.drawn.len());
        self.not_drawn.extend((left > 0).then(|| (file.to_owned(), left)));
        for page in paged(file, title, pages) {
            if self.first.is_empty() { self.first.push(page) } else { self.others.push(page) }
        }
    }

    /// Adds the figures of another kind.
    pub(super) fn take(&mut self, kind: Self) {
        self.first.extend(kind.first);
        self.others.extend(kind.others);
        self.left_out.extend(kind.left_out);
        self.not_drawn.extend(kind.not_drawn);
    }

    /// Adds the figures of another kind as [`take`](Self::take) does, but all of them to `others`.
    pub(super) fn take_behind(&mut self, kind: Self) {
        self.others.extend(kind.first);
        self.take(Self { first: Vec::new(), ..kind });
    }

    /// Joins the figures of all kinds.
    pub(super) fn join(kinds: impl IntoIterator<Item = Self>) -> Self {
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

    /// All drawn figures.
    pub fn drawn(&self) -> impl Iterator<Item = &Figure> {
        self.first.iter().chain(&self.others)
    }

    /// A line about figures that were left out; `None` if there are none.
    pub fn left_out_line(&self) -> Option<String> {
        let left_out = named(self.left_out.iter().map(|(file, number)| format!("{file} ({number})")));
        Some(format!("Plots with one value only are left out: {}.", left_out?))
    }

    /// A line about figures with pages that were not drawn, and how to draw them; `None` if there are none.
    pub fn not_drawn_line(&self) -> Option<String> {
        let pages = |n: usize| if n == 1 { "1 page".to_owned() } else { format!("{n} pages") };
        let not_drawn = named(self.not_drawn.iter().map(|(file, n)| format!("{file} ({})", pages(*n))))?;
        Some(format!(
            "{MOST_PAGES} pages of each kind of plot are drawn; `spattn report --all-plots` draws the rest: {not_drawn}."
        ))
    }
}

/// The first of some names, and the number of the others; `None` without names.
fn named(all: impl ExactSizeIterator<Item = String>) -> Option<String> {
    let more = all.len().saturating_sub(Figures::NAMED);
    let named = all.take(Figures::NAMED).collect::<Vec<_>>().join(", ");
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    (!named.is_empty()).then(|| named + &more)
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
    fn what_is_left_out_is_said_in_one_line() {
        let left_out = (0..6).map(|i| (format!("{i}.svg"), "100".to_owned())).collect();
        let said = Figures { left_out, ..Figures::default() }.left_out_line().unwrap();
        let files = "0.svg (100), 1.svg (100), 2.svg (100), 3.svg (100) and 2 more";
        assert_eq!(said, format!("Plots with one value only are left out: {files}."));
    }
}

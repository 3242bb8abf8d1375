//! Tables, plots and the page, all drawn from stored records and summary rows; [`mod@bench`] draws those of a bench, [`analyses`]
//! what was found about attention itself, [`tuning`] and [`shapes`] which budgets are enough.
//!
//! Each format is one file that turns rows into text; what is called `write` touches the disk. The same records give the same
//! bytes. Nothing here measures or scores.

pub mod analyses;
pub mod bench;
pub mod csv;
pub mod json;
pub mod latex;
pub mod markdown;
pub mod merge;
pub mod others;
pub mod page;
pub mod papers;
pub mod pivot;
pub mod plots;
pub mod schedules;
pub mod shapes;
pub mod table;
pub mod tuning;

mod best;
mod conclusion;
mod format;
mod heading;
mod means;
mod overview;
mod shards;
mod stand_ins;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rayon::prelude::*;

pub use self::means::MeanTable;
use self::merge::{Merged, Source};
use self::plots::{Figure, MOST_PAGES, depths, png};
use crate::eval::folder::owned_files::{self, OwnFolder};
use crate::eval::records::record::Record;
use crate::eval::summary::cells::{self, Cell};
use crate::eval::summary::self_checks::{self, Warning};
use crate::eval::summary::summarize;
use crate::eval::summary::summary_row::SummaryRow;

/// All that reports are drawn from.
#[derive(Debug, Clone, PartialEq)]
pub struct Report<'a> {
    /// The records.
    pub records: &'a [Record],
    /// The summary of the records.
    pub rows: Vec<SummaryRow>,
    /// The records of each row of the summary.
    pub cells: Vec<Cell<'a>>,
    /// Means over tasks.
    pub means: Vec<MeanTable>,
    /// The scores by length and depth, for tasks that decide on the depth.
    pub depths: Vec<depths::Cell>,
    /// What the self-checks found in the records.
    pub warnings: Vec<Warning>,
    /// The runs that the records are from, if they are known.
    pub sources: &'a [Source],
    /// What is to be known of how these were put together.
    pub notes: &'a [String],
    /// Pages of each kind of plot that are drawn at most.
    pub most_pages: usize,
}

/// What a report wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// The paths of the files.
    pub files: Vec<PathBuf>,
    /// A line that says which plots were not drawn, where there are too many, and how to have them.
    pub not_drawn: Option<String>,
}

impl<'a> Report<'a> {
    /// Summarises and checks records; `order` lists (method, params) as the user gave them.
    pub fn new(records: &'a [Record], order: &[(String, String)]) -> Self {
        let cells = cells::group(records, order);
        let rows = summarize::rows(&cells);
        Self {
            means: means::over_tasks(&rows, &cells),
            records,
            rows,
            depths: depths::cells(records, order),
            warnings: self_checks::check_cells(&cells),
            cells,
            sources: &[],
            notes: &[],
            most_pages: MOST_PAGES,
        }
    }

    /// Of runs that were read.
    pub fn of(merged: &'a Merged) -> Self {
        Self { sources: &merged.sources, notes: &merged.notes, ..Self::new(&merged.records, &merged.order) }
    }

    /// The means over tasks for the model and protocol of a row, in the order of lengths.
    pub fn means_of(&self, row: &SummaryRow) -> impl Iterator<Item = &MeanTable> {
        let place = (row.model.clone(), row.protocol.clone());
        self.means.iter().filter(move |t| t.rows.iter().any(|r| (&r.model, &r.protocol) == (&place.0, &place.1)))
    }

    /// Writes `summary.csv`, `summary.md`, `report.html` and the figures (`plots/*.svg`, `plots/*.png`) into a folder,
    /// which is created where needed; with them `depths.csv` where tasks have depths, and `metrics.csv` where they have
    /// several metrics.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write_all(&self, dir: &Path) -> Result<Written> {
        // The samples are most of the work, and depend on nothing else.
        let (samples, figures) = rayon::join(|| page::samples(self), || plots::figures(self, self.most_pages));
        let figures = figures?;
        let mut files = vec![("summary.csv".to_owned(), csv::render(&self.rows)?)];
        if !self.depths.is_empty() {
            files.push(("depths.csv".to_owned(), depths::csv(&self.depths)?));
        }
        let others = others::other_scores(&self.rows, self.records);
        if !others.is_empty() {
            files.push(("metrics.csv".to_owned(), others::csv(&others)?));
        }
        files.push(("report.html".to_owned(), page::render(self, &figures, &samples?)?));
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        let page = markdown::render(self, &names, &figures);
        files.push(("summary.md".to_owned(), page));
        // The largest come last: where a disk is full, numbers are there.
        let paths = write_files(files, &[&figures.first[..], &figures.others].concat(), dir)?;
        Ok(Written { files: paths, not_drawn: figures.not_drawn_line() })
    }

    /// Writes `summary.tex`, `summary.json`, and under `tables/` the tables of each named layout as Markdown, CSV, LaTeX
    /// and JSON; those for LaTeX without intervals if so asked. Returns the paths of the files.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write_tables(
        &self,
        dir: &Path,
        layouts: &[(String, pivot::Layout)],
        no_intervals: bool,
    ) -> Result<Vec<PathBuf>> {
        let mut files = vec![
            ("summary.tex".to_owned(), latex::summary(self, no_intervals)),
            ("summary.json".to_owned(), json::render(&self.rows)?),
        ];
        for (name, layout) in layouts {
            let tables = pivot::tables(self, layout);
            let texts = [
                ("md", markdown::pivot(&tables)),
                ("csv", pivot::csv(&tables)?),
                ("tex", latex::pivot(&tables, no_intervals)),
                ("json", pivot::json(&tables)),
            ];
            files.extend(texts.map(|(ending, text)| (format!("tables/{name}.{ending}"), text)));
        }
        owned_files::write_all(dir, &files)
    }
}

/// Writes files of some names and, under `plots/`, figures as SVG and as PNG into a folder; returns their paths.
///
/// # Errors
/// If one of them is there and another's, which is found before anything is written; if one cannot be drawn or written.
fn write_files<N: AsRef<str>>(files: Vec<(N, String)>, figures: &[Figure], dir: &Path) -> Result<Vec<PathBuf>> {
    let mut own = OwnFolder::of(dir)?;
    let names: Vec<[String; 2]> = figures.iter().map(|figure| figure_names(&figure.file)).collect();
    let of_figures = names.iter().flatten().map(String::as_str);
    own.claim(files.iter().map(|(name, _)| name.as_ref()).chain(of_figures))?;
    let mut paths: Vec<PathBuf> =
        files.iter().map(|(name, text)| own.write(name.as_ref(), text.as_bytes())).collect::<Result<_>>()?;
    let draw = |(figure, [svg, png]): (&Figure, &[String; 2])| -> Result<[PathBuf; 2]> {
        let pixels = png::render(&figure.svg).with_context(|| format!("cannot draw {}", figure.file))?;
        Ok([own.write(svg, figure.svg.as_bytes())?, own.write(png, &pixels)?])
    };
    let drawn: Vec<[PathBuf; 2]> = figures.par_iter().zip(&names).map(draw).collect::<Result<_>>()?;
    paths.extend(drawn.into_iter().flatten());
    Ok(paths)
}

/// Names of a figure's files, as SVG and as PNG.
fn figure_names(file: &str) -> [String; 2] {
    let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
    [format!("plots/{file}"), format!("plots/{stem}.png")]
}

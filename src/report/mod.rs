//! Tables and plots, all drawn from stored records and summary rows.
//!
//! Each format is one file that turns rows into text; only [`Report::write_all`] touches the disk. The same records
//! give the same bytes. Nothing here measures or scores.

pub mod csv;
pub mod heat;
pub mod json;
pub mod markdown;
pub mod others;
pub mod plots;
pub mod table;

mod format;
mod overall;

use crate::eval::checks::{self, Warning};
use crate::eval::record::{Record, SummaryRow};
use crate::eval::summary;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// All that reports are drawn from.
#[derive(Debug, Clone, PartialEq)]
pub struct Report<'a> {
    /// The records.
    pub records: &'a [Record],
    /// The summary of the records.
    pub rows: Vec<SummaryRow>,
    /// The scores by length and depth, for tasks that decide on the depth.
    pub depths: Vec<heat::Cell>,
    /// What the self-checks found in the records.
    pub warnings: Vec<Warning>,
}

impl<'a> Report<'a> {
    /// Summarises and checks records; `order` lists (method, params) as the user gave them.
    pub fn new(records: &'a [Record], order: &[(String, String)]) -> Self {
        Self {
            records,
            rows: summary::summarize(records, order),
            depths: heat::cells(records, order),
            warnings: checks::check(records, order),
        }
    }

    /// Writes `summary.csv`, `summary.md` and `plots/*.svg` into a folder, which is created where needed; with them
    /// `depths.csv` where tasks have depths, and `metrics.csv` where they have several metrics. Returns the paths of the files.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write_all(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        let figures = plots::score_vs_density(&self.rows)?.into_iter().chain(heat::figures(&self.depths)?);
        let mut files = vec![("summary.csv".to_owned(), csv::render(&self.rows)?)];
        if !self.depths.is_empty() {
            files.push(("depths.csv".to_owned(), heat::csv(&self.depths)?));
        }
        let others = others::other_scores(&self.rows, self.records);
        if !others.is_empty() {
            files.push(("metrics.csv".to_owned(), others::csv(&others)?));
        }
        files.extend(figures.map(|figure| (format!("plots/{}", figure.file), figure.svg)));
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        let page = markdown::render(self, &names);
        files.push(("summary.md".to_owned(), page));
        files.into_iter().map(|(name, text)| write(dir.join(name), &text)).collect()
    }
}

fn write(path: PathBuf, text: &str) -> Result<PathBuf> {
    let failed = || format!("cannot write {}", path.display());
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(failed)?;
    }
    fs::write(&path, text).with_context(failed)?;
    Ok(path)
}

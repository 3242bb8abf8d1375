//! Writes the files of a report: all formats of all tables, and the figures.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rayon::prelude::*;

use super::contents::Report;
use super::plots::{Figure, depths, png};
use super::{csv, json, kv_type, latex, markdown, others, page, pivot, plots, verdict};
use spattn_eval::folder::owned_files::{self, OwnFolder};

/// The files that a report wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// The paths of the files.
    pub files: Vec<PathBuf>,
    /// A line that names plots with pages that were not drawn because there are too many, and says how to draw them.
    pub not_drawn: Option<String>,
}

impl Report<'_> {
    /// Writes `summary.csv`, `summary.md`, `verdict.json`, `report.html` and the figures (`plots/*.svg`, `plots/*.png`) into a folder,
    /// which is created if needed. Also writes `depths.csv` if tasks have depths, and `metrics.csv` if they have several metrics.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write_all(&self, dir: &Path) -> Result<Written> {
        // The samples take most of the time and depend on nothing else, so they are packed at the same time as figures are drawn.
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
        files.push(("verdict.json".to_owned(), verdict::json(&self.verdicts, |model| kv_type::of_model(self, model))));
        files.push(("report.html".to_owned(), page::render(self, &figures, &samples?)?));
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        let page = markdown::render(self, &names, &figures);
        files.push(("summary.md".to_owned(), page));
        // Existing files of an earlier `spattn report` are written again, so that they have the same numbers.
        let own = OwnFolder::of(dir)?;
        if own.has("summary.tex") {
            files.push(("summary.tex".to_owned(), latex::summary(self, false)));
        }
        if own.has("summary.json") {
            files.push(("summary.json".to_owned(), json::summary(self)?));
        }
        // The largest files come last, so that the tables are complete even if the disk fills up.
        let paths = write_files(files, &[&figures.first[..], &figures.others].concat(), dir)?;
        Ok(Written { files: paths, not_drawn: figures.not_drawn_line() })
    }

    /// Writes `summary.tex`, `summary.json`, and under `tables/` the tables of each named layout as Markdown, CSV, LaTeX and JSON. If
    /// `no_intervals`, those for LaTeX have no intervals. Returns the paths of the files.
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
            ("summary.json".to_owned(), json::summary(self)?),
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

/// Writes text files by name, and figures as SVG and PNG under `plots/`, into a folder. Returns their paths.
///
/// # Errors
/// If a name belongs to a file of another program, which is checked before anything is written; if a figure cannot be drawn; if a file
/// cannot be written.
pub(super) fn write_files<N: AsRef<str>>(
    files: Vec<(N, String)>,
    figures: &[Figure],
    dir: &Path,
) -> Result<Vec<PathBuf>> {
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

/// The names of a figure's two files, SVG and PNG.
fn figure_names(file: &str) -> [String; 2] {
    let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
    [format!("plots/{file}"), format!("plots/{stem}.png")]
}

//! The pages of the papers: a front page, a page for each paper, and one for each table or figure, with published and measured
//! numbers and verdicts on claims. All are drawn from stored outcomes and the items' files.

mod equal;
mod files;
mod item_page;
mod paper_page;
mod table;
mod words;

use std::path::{Path, PathBuf};

use anyhow::Result;

pub use self::files::{ItemResults, read, read_stored, result_file, slug, store, suffix};
use self::paper_page::Drawn;
pub use self::table::cells_sha256;
use super::plots::papers::figures;
use super::plots::{Figure, png};
use spattn_eval::folder::owned_files::{self, OwnFolder};
use spattn_lab::papers::findings::PaperFindings;
use spattn_lab::papers::{ITEMS, PAPERS};

/// The figures of each outcome of an item. A file's name has its run's suffix; that of the times has none if no other has none.
fn drawn(results: &ItemResults) -> Result<Vec<Vec<Figure>>> {
    let mut all = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for outcome in &results.outcomes {
        let mut name = format!("plot{}.svg", suffix(&outcome.variant, &outcome.model));
        if outcome.variant == spattn_lab::papers::outcome::TIMES && !names.contains(&"plot.svg".to_owned()) {
            name = "plot.svg".to_owned();
        }
        let of = figures(outcome, &results.item, &name)?;
        names.extend(of.iter().map(|figure| figure.file.clone()));
        all.push(of);
    }
    Ok(all)
}

/// The forms in which an item's results can be printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ItemForm {
    /// The page.
    #[default]
    Markdown,
    /// A line for each cell of the table.
    Csv,
    /// The tables, with `booktabs` rules.
    Latex,
    /// The outcomes, with claims and comparisons.
    Json,
}

/// Further files of an item that are written on request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MoreFiles {
    /// `table.tex`. An existing one is always written again, so that its numbers are those of the other files.
    pub latex: bool,
    /// Each figure as PNG, too. Existing ones are always written again.
    pub png: bool,
}

/// Renders an item's results in a form.
///
/// # Errors
/// If a figure cannot be drawn.
pub fn rendered(results: &ItemResults, form: ItemForm) -> Result<String> {
    Ok(match form {
        ItemForm::Markdown => item_page::item_page(results, &drawn(results)?),
        ItemForm::Csv => table::csv(results)?,
        ItemForm::Latex => table::latex(results),
        ItemForm::Json => serde_json::to_string_pretty(&results.outcomes)?,
    })
}

/// Writes an item's outcomes, page, table and figures into its folder, and further files on request.
///
/// # Errors
/// If a file cannot be written.
pub fn write_item(results: &ItemResults, out: &Path, more: MoreFiles) -> Result<()> {
    let dir = out.join(&results.name);
    results.outcomes.iter().try_for_each(|outcome| store(outcome, &dir))?;
    let figures = drawn(results)?;
    let page = item_page::item_page(results, &figures);
    let mut files = vec![("README.md".to_owned(), page), ("table.csv".to_owned(), table::csv(results)?)];
    let own = OwnFolder::of(&dir)?;
    let is_asked = more.latex || own.has("table.tex");
    files.extend(is_asked.then(|| ("table.tex".to_owned(), table::latex(results))));
    let mut pixels = Vec::new();
    for figure in figures.iter().flatten() {
        let name = Path::new(&figure.file).with_extension("png").to_string_lossy().into_owned();
        if more.png || own.has(&name) {
            pixels.push((name, png::render(&figure.svg)?));
        }
    }
    files.extend(figures.into_iter().flatten().map(|figure| (figure.file, figure.svg)));
    super::write_files(files, &[], &dir)?;
    owned_files::write_all(&dir, &pixels).map(drop)
}

/// The pages of all papers, as file names and texts, from all results in a folder.
///
/// # Errors
/// If a result exists and cannot be read.
pub fn pages(out: &Path) -> Result<Vec<(String, String)>> {
    let mut all: Vec<Drawn> = Vec::new();
    for shipped in ITEMS.iter().filter(|shipped| out.join(shipped.name).is_dir()) {
        let results = ItemResults::read(out, shipped.name, shipped.parse()?)?;
        let figures = drawn(&results)?;
        all.push((results, figures));
    }
    let findings = PaperFindings::shipped()?;
    let mut pages = vec![("README.md".to_owned(), paper_page::front_page(&findings, &all))];
    for paper in &PAPERS {
        let page = paper_page::paper_page(paper, &findings, &all);
        pages.extend(page.map(|page| (format!("{}.md", paper.name), page)));
    }
    Ok(pages)
}

/// Writes the pages of all papers.
///
/// # Errors
/// As [`pages`], and if a file cannot be written.
pub fn write_pages(out: &Path) -> Result<Vec<PathBuf>> {
    super::write_files(pages(out)?, &[], out)
}

#[cfg(test)]
mod tests;

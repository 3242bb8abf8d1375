//! A figure and its pages.

use anyhow::Result;

use super::pen::page_title;

/// One drawing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// The file's name, which ends in `.svg`.
    pub file: String,
    /// The title.
    pub title: String,
    /// The drawing as SVG.
    pub svg: String,
}

/// The first pages of a figure, as many as may be drawn.
pub(in crate::report) struct Pages {
    /// The drawn pages.
    pub drawn: Vec<String>,
    /// The number of all pages, drawn or not.
    pub of: usize,
}

impl Pages {
    /// Draws the first `most` pages. `draw` gets a page's index.
    pub(super) fn of<P>(all: &[P], most: usize, draw: impl Fn(usize, &P) -> Result<String>) -> Result<Self> {
        let drawn = all.iter().take(most).enumerate().map(|(i, page)| draw(i, page));
        Ok(Self { drawn: drawn.collect::<Result<_>>()?, of: all.len() })
    }
}

impl From<Vec<String>> for Pages {
    fn from(drawn: Vec<String>) -> Self {
        Self { of: drawn.len(), drawn }
    }
}

/// The pages of a figure as files `name.svg`, `name-2.svg` and so on.
pub(in crate::report) fn paged(file: &str, title: &str, pages: impl Into<Pages>) -> Vec<Figure> {
    let pages = pages.into();
    let (name, of) = (file.trim_end_matches(".svg"), pages.of);
    let page = |(i, svg): (usize, String)| {
        let file = if i == 0 { file.to_owned() } else { format!("{name}-{}.svg", i + 1) };
        Figure { file, title: page_title(title, i, of), svg }
    };
    pages.drawn.into_iter().enumerate().map(page).collect()
}

//! Printing on standard output, and exporting to files.

use std::io::{self, BufWriter, ErrorKind, IsTerminal, Stdout, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use spattn_base::disk::WholeFile;
use spattn_base::error::UsageError;
use spattn_base::text;

/// Prints text for people on standard output and flushes it. If the reader closes the pipe (`| head`), the command continues, because it
/// may have other work to do. Control characters are made visible ([`text::shown`]).
///
/// # Errors
/// If standard output cannot be written for another reason, such as a full disk.
pub(super) fn print(text: &str) -> Result<()> {
    print_as_is(&text::shown(text))
}

/// Prints text for programs, other than JSON, unchanged; on a terminal, as [`print`] does.
pub(super) fn print_data(text: &str) -> Result<()> {
    if io::stdout().is_terminal() { print(text) } else { print_as_is(text) }
}

/// Prints JSON and a line end. Control characters are escaped, which leaves the data the same.
pub(super) fn print_json(json: &str) -> Result<()> {
    print_as_is(&format!("{}\n", text::shown_json(json.trim_end())))
}

/// Clears the screen, if standard output is a terminal.
pub(super) fn clear_screen() -> Result<()> {
    if io::stdout().is_terminal() { print_as_is("\x1b[H\x1b[2J") } else { Ok(()) }
}

fn print_as_is(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => printed.context("cannot write to standard output"),
    }
}

/// The width of standard output in characters: `COLUMNS`, otherwise the terminal's; `None` if there is neither, as for a file.
pub(super) fn width() -> Option<usize> {
    /// The smallest width that is honoured.
    const LEAST: usize = 20;
    let asked = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse::<usize>().ok());
    let terminal = || terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
    asked.or_else(terminal).filter(|width| *width >= LEAST)
}

/// Prints text as [`print`] does, with a line end.
pub(super) fn print_line(text: &str) -> Result<()> {
    print(&format!("{text}\n"))
}

/// The error that the reader of standard output has closed it (`spattn data export-eval ... | head`).
#[derive(Debug, thiserror::Error)]
#[error("standard output was closed")]
struct Enough;

/// Whether an export ended because its reader closed standard output. That is not an error; other broken pipes and connections are.
pub(super) fn is_enough(error: &anyhow::Error) -> bool {
    let io = error.chain().filter_map(|e| e.downcast_ref::<io::Error>());
    io.filter_map(io::Error::get_ref).any(|inner| inner.is::<Enough>())
}

fn enough(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::BrokenPipe => io::Error::new(ErrorKind::BrokenPipe, Enough),
        kind => io::Error::new(kind, format!("cannot write to standard output: {error}")),
    }
}

/// Where exported rows go: a file, which gets its name only when it is complete, or standard output, whose reader may end the export.
#[derive(Debug)]
pub(super) enum Export {
    File(WholeFile),
    Stdout(BufWriter<Stdout>),
}

impl Export {
    /// Opens an export to `file`, or to standard output if none is given.
    ///
    /// # Errors
    /// A [`UsageError`] that names the file if it cannot be created.
    pub fn to(file: Option<&Path>) -> Result<Self, UsageError> {
        match file {
            None => Ok(Self::Stdout(BufWriter::new(io::stdout()))),
            Some(path) => WholeFile::create(path)
                .map(Self::File)
                .map_err(|e| UsageError::new(e.to_string()).hint("choose another --out file")),
        }
    }

    /// Flushes the buffer, and completes the file.
    ///
    /// # Errors
    /// If this fails; an existing file then stays unchanged.
    pub fn finish(self) -> io::Result<()> {
        match self {
            Self::File(file) => file.finish(),
            Self::Stdout(mut stdout) => stdout.flush().map_err(enough),
        }
    }
}

impl Write for Export {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.write(bytes),
            Self::Stdout(stdout) => stdout.write(bytes).map_err(enough),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File(file) => file.flush(),
            Self::Stdout(stdout) => stdout.flush().map_err(enough),
        }
    }
}

/// The lines that list written files. Plots are listed as one folder, since there may be dozens.
pub(super) fn listed(files: &[PathBuf]) -> Vec<String> {
    let is_plot = |file: &&PathBuf| file.extension().is_some_and(|e| e == "svg" || e == "png");
    let (plots, others): (Vec<&PathBuf>, Vec<&PathBuf>) = files.iter().partition(is_plot);
    let mut lines: Vec<String> = others.iter().map(|file| file.display().to_string()).collect();
    if let Some(folder) = plots.first().and_then(|plot| plot.parent()) {
        let count = plots.iter().filter(|plot| plot.extension().is_some_and(|e| e == "svg")).count();
        let plots = if count == 1 { "1 plot".to_owned() } else { format!("{count} plots") };
        lines.push(format!("{}  ({plots}, as .svg and .png)", folder.join("*").display()));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plots_are_listed_as_their_folder() {
        let files =
            ["r/summary.csv", "r/plots/a.svg", "r/plots/a.png", "r/plots/b.svg", "r/plots/b.png", "r/tables/t.md"];
        let files = files.map(PathBuf::from);
        assert_eq!(listed(&files), ["r/summary.csv", "r/tables/t.md", "r/plots/*  (2 plots, as .svg and .png)"]);
        assert_eq!(listed(&files[..3])[1], "r/plots/*  (1 plot, as .svg and .png)");
        assert_eq!(listed(&files[..1]), ["r/summary.csv"]);
    }
}

//! `spattn report`: tables, plots and the page, from stored records.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::exit::Done;
use super::numbers;
use super::output::listed;
use super::output::{print, print_data, print_json, print_line, width};
use super::verdict_flags::SafetyDemand;
use crate::launch::SHARDS;
use crate::launch::plan::SweepPlan;
use crate::report::lm_eval::Exported;
use crate::report::merge::Merged;
use crate::report::pivot::{self, Layout};
use crate::report::plots::{Figures, MOST_PAGES};
use crate::report::table::Form;
use crate::report::{Report, Written, bench, csv, json, kvpress, latex, lm_eval, markdown, merge, table, verdict};
use spattn_base::error::UsageError;
use spattn_base::privacy;
use spattn_eval::folder::owned_files;
use spattn_eval::records::loaded::SAMPLES;
use spattn_eval::records::store::load_manifest;
use spattn_eval::summary::warnings::in_short;

/// Make tables, plots and an HTML page from the records of one or more runs.
///
/// Needs no model. Shards, and runs with other methods, tasks or lengths, are merged into one table; runs whose models or versions
/// differ keep separate rows, and a note names the difference. The same records give the same files. For a folder of
/// `spattn bench`, its page and plots are made again.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spattn report results/qwen-4k                    draws its files again
  spattn report results/shard-* --out results/qwen
  spattn report results/qwen --rows method --columns task --format latex
  spattn report results/bench                      a bench: bench.md and its plots
  spattn report results/lsh --rows K --columns L --value score,delta,density
  spattn report results/qwen-4k --format lm-eval   the files of lm-evaluation-harness, for its tools")]
pub struct ReportArgs {
    /// Folders of runs, or folders that hold such folders
    ///
    /// Example: spattn report results/ruler-4k results/ruler-8k
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,

    /// Folder for tables, plots and report.html; the run's own folder if there is one DIR and no --format
    ///
    /// Example: --out results/merged
    #[arg(short = 'o', long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Rows of custom tables: model, protocol, task, length, method, or a method's parameter
    ///
    /// Example: --rows method --columns length. Tasks and lengths in neither are averaged; all else in neither gets a table for each value.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    rows: Vec<String>,

    /// Columns of custom tables
    ///
    /// Example: --rows K --columns L
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    columns: Vec<String>,

    /// Columns of summary.csv to show, a table each; `delta` is the difference to full. Scores if not given
    ///
    /// Example: --rows method --columns task --value score,delta,kv_bytes_per_token
    #[arg(long = "value", value_name = "NAME,...", value_delimiter = ',')]
    values: Vec<String>,

    /// Leave out all times: the remaining files are the same, byte for byte, on every machine
    ///
    /// Columns that cannot be empty show a time of 0.
    ///
    /// Example: spattn report results/big --no-times --out compare
    #[arg(long)]
    no_times: bool,

    /// Leave intervals out of printed tables and of those for LaTeX
    ///
    /// Example: spattn report results/qwen --format latex --no-ci
    #[arg(long)]
    no_ci: bool,

    /// Draw all pages of all plots; by default the first 32 pages of each kind are drawn, and a note names the others
    ///
    /// Example: spattn report results/big --all-plots
    #[arg(long)]
    all_plots: bool,
    /// Write and print nothing that names the user: no command line or system prompt, and of paths only the last part
    ///
    /// If the run was made without this flag, --out has to be another folder: the run's own records and manifest are not changed.
    /// docs/privacy.md lists what they hold.
    ///
    /// Example: spattn report results/qwen --anonymous --out to-publish
    #[arg(long)]
    anonymous: bool,

    /// Loss in points that counts as none in the verdict (percent for perplexities); the command then succeeds (status 0) only if a method is
    /// shown to lose no more, and ends with status 3 otherwise
    ///
    /// Without this flag the verdict takes what the run was asked, or 1 point, and the status says nothing of it.
    ///
    /// Example: spattn report results/qwen --safe-within 2
    #[arg(long, value_name = "POINTS", value_parser = numbers::points)]
    safe_within: Option<f64>,

    /// Probability that all verdicts of a table are right; what the run was asked, or 0.95, if not given
    ///
    /// Example: spattn report results/qwen --confidence 0.9
    #[arg(long, value_name = "P", value_parser = numbers::confidence)]
    confidence: Option<f64>,

    /// What to print; or the files of another program, which go to --out (DIR/lm-eval or DIR/kvpress if not given)
    ///
    /// Example: --format latex > table.tex, --format lm-eval --out results/lm-eval
    #[arg(long, value_name = "FORMAT", value_enum, conflicts_with = "json")]
    format: Option<Format>,

    /// Print the summary as JSON: an array of objects with the keys of summary.csv
    ///
    /// Example: spattn report results/qwen --json | jq '.[].score'
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Aligned columns for the terminal
    Table,
    /// Markdown
    Markdown,
    /// CSV: summary.csv, or a line for each cell
    Csv,
    /// LaTeX with booktabs
    Latex,
    /// JSON: the summary, or an object for each cell
    Json,
    /// Files of lm-evaluation-harness, in a folder for each model and method: results_*.json, samples_*.jsonl
    LmEval,
    /// Files of kvpress' evaluation, in a folder for each data set and method: predictions.csv, metrics.json, config.yaml
    Kvpress,
}

impl Format {
    fn print(self, text: &str) -> Result<()> {
        match self {
            Self::Table | Self::Markdown => print(text),
            Self::Csv | Self::Latex => print_data(text),
            Self::Json => print_json(text),
            Self::LmEval | Self::Kvpress => print(text),
        }
    }
}

impl ReportArgs {
    /// Whether the user gave a verdict's limit or confidence.
    fn is_held(&self) -> bool {
        self.safe_within.is_some() || self.confidence.is_some()
    }

    /// Whether the user asked for custom tables.
    fn is_pivot(&self) -> bool {
        !(self.rows.is_empty() && self.columns.is_empty() && self.values.is_empty())
    }

    /// The requested layout. By default, methods are rows and tasks are columns.
    fn layout(&self, report: &Report) -> Result<Layout> {
        let or =
            |given: &[String], default: &str| if given.is_empty() { vec![default.to_owned()] } else { given.to_vec() };
        let values = or(&self.values, "score");
        let layout = match self.rows.is_empty() && self.columns.is_empty() {
            true => Layout::parse(&["method".to_owned()], &["task".to_owned()], &values, &report.rows),
            false => Layout::parse(&self.rows, &self.columns, &values, &report.rows),
        };
        Ok(layout?)
    }

    /// Hides the user's data in tables, plots and pages, if requested.
    ///
    /// # Errors
    /// A [`UsageError`] if the files would lie beside records that reveal that data.
    fn settle_privacy(&self) -> Result<(), UsageError> {
        if !self.anonymous {
            return Ok(());
        }
        let whole = |dir: &Path| dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        let out = self.folder().map(|out| whole(&out));
        let is_anonymous = |dir: &Path| load_manifest(dir).is_ok_and(|stored| stored["config"]["anonymous"] == true);
        match self.dirs.iter().find(|dir| Some(whole(dir)) == out && !is_anonymous(dir)) {
            Some(dir) => {
                Err(UsageError::new(format!("the records and the manifest in {} name the user", dir.display()))
                    .hint("write the report into another folder: --anonymous --out DIR"))
            }
            None => {
                privacy::leave_out();
                Ok(())
            }
        }
    }

    /// Draws a stored benchmark again.
    fn draw_bench(&self, dir: &Path) -> Result<()> {
        if self.is_pivot()
            || self.no_times
            || self.no_ci
            || self.all_plots
            || self.format.is_some()
            || self.json
            || self.is_held()
        {
            return Err(UsageError::new(format!("{} holds a bench, for which --out is the only flag", dir.display()))
                .hint("leave out the other flags; bench.csv has all rows for tables of your own")
                .into());
        }
        let out = self.out.as_deref().unwrap_or(dir);
        owned_files::check(out, &owned_files::BENCH_PAGE)?;
        let mut stored = bench::read(dir)?;
        if privacy::is_left_out() {
            stored.rows.iter_mut().for_each(|row| row.shape = privacy::name_of_source(&row.shape));
            stored.notes.iter_mut().for_each(|note| *note = privacy::text(note));
        }
        let files = bench::draw(&stored, out)?;
        print(&(bench::table(&stored) + "\n"))?;
        listed(&files).iter().try_for_each(|line| print_line(&format!("  {line}")))
    }

    /// Whether files in another program's format are requested.
    fn is_export(&self) -> bool {
        matches!(self.format, Some(Format::LmEval | Format::Kvpress))
    }

    /// Writes the records in another program's format, and lists the files.
    ///
    /// # Errors
    /// A [`UsageError`] if no folder is given for them, or if flags of tables are given; other errors if a file cannot be written.
    fn write_exported(&self, format: Format, merged: &Merged) -> Result<()> {
        if self.is_pivot() || self.no_ci || self.all_plots {
            return Err(UsageError::new("--format lm-eval and --format kvpress write records, not tables")
                .hint("leave out --rows, --columns, --value, --no-ci and --all-plots")
                .into());
        }
        let (name, Exported { files, notes }) = match format {
            Format::Kvpress => ("kvpress", kvpress::export(merged)?),
            _ => ("lm-eval", lm_eval::export(merged)?),
        };
        let out = match (&self.out, &self.dirs[..]) {
            (Some(out), _) => out.clone(),
            (None, [dir]) => dir.join(name),
            (None, _) => {
                return Err(UsageError::new("several folders were given, and none for the files")
                    .hint("say where they go: --out DIR")
                    .into());
            }
        };
        merged.notes.iter().chain(&notes).for_each(|note| eprintln!("note: {note}"));
        let written = owned_files::write_all(&out, &files)?;
        print_line(&format!("{} files:", written.len()))?;
        listed(&written).iter().try_for_each(|line| print_line(&format!("  {line}")))
    }

    /// The folder to write to: `--out`, or else a single run's own folder, unless a format is to be printed.
    fn folder(&self) -> Option<PathBuf> {
        let own = || {
            (self.dirs.len() == 1 && self.format.is_none() && !self.json && !self.is_pivot())
                .then(|| self.dirs[0].clone())
        };
        self.out.clone().or_else(own)
    }
}

/// Whether a shard of a sweep has records.
fn has_begun(dir: &Path) -> bool {
    let shards = std::fs::read_dir(dir.join(SHARDS)).into_iter().flatten().flatten();
    shards.map(|shard| shard.path()).any(|shard| shard.join(SAMPLES).is_file()) || dir.join(SAMPLES).is_file()
}

/// Reads the records, writes the files and prints a table.
///
/// # Errors
/// Folders without records, unknown names, files that cannot be read or written.
pub fn write_report(args: ReportArgs) -> Result<Done> {
    args.settle_privacy()?;
    if let [dir] = &args.dirs[..]
        && bench::is_bench(dir)
    {
        return args.draw_bench(dir).map(|()| Done::Completed);
    }
    if let Some(dir) = args.dirs.iter().find(|dir| SweepPlan::is_in(dir) && !has_begun(dir)) {
        return Err(UsageError::new(format!("nothing of the sweep in {} has run yet", dir.display()))
            .hint(format!("spattn status {} says how far it is", dir.display()))
            .into());
    }
    let mut merged = merge::read(&args.dirs)?;
    if merged.records.is_empty() {
        let dirs: Vec<String> = args.dirs.iter().map(|dir| dir.display().to_string()).collect();
        return Err(UsageError::new(format!("there are no records in {}", dirs.join(", ")))
            .hint("the run ended before it finished an example: its own command with `--resume` goes on, or give another folder")
            .into());
    }
    if let Some(out) = args.folder().filter(|_| !args.is_export()) {
        owned_files::check(&out, &owned_files::REPORT)?;
    }
    let empty = merged.sources.iter().filter(|source| source.records == 0);
    empty.for_each(|source| eprintln!("note: there are no records in {}", source.dir.display()));
    if args.no_times {
        merged.leave_out_times();
    }
    if let Some(format @ (Format::LmEval | Format::Kvpress)) = args.format {
        return args.write_exported(format, &merged).map(|()| Done::Completed);
    }
    merged.shorten_models();
    let most_pages = if args.all_plots { usize::MAX } else { MOST_PAGES };
    let safety = SafetyDemand::new(args.safe_within, args.confidence);
    let rule = merged.held_to(safety.asked);
    let report = Report { most_pages, ..Report::of(&merged).judged_by(rule) };
    let layout = args.is_pivot().then(|| args.layout(&report)).transpose()?;
    merged.notes.iter().for_each(|n| eprintln!("note: {n}"));
    let format = if args.json { Format::Json } else { args.format.unwrap_or(Format::Table) };
    let form = Form { width: width(), no_intervals: args.no_ci };
    let mut text = match layout.as_ref().filter(|_| !args.json) {
        Some(layout) => printed_pivot(&pivot::tables(&report, layout), format, form)?,
        None => printed(&report, format, form)?,
    };
    match format {
        Format::Table if layout.is_none() => {
            in_short(&report.warnings).iter().for_each(|(_, line)| text += &format!("warning: {line}\n"));
        }
        // Custom tables show the warnings about single cells in their notes.
        Format::Json | Format::Csv if layout.is_none() => {
            in_short(&report.warnings).iter().for_each(|(_, line)| eprintln!("warning: {line}"))
        }
        _ if layout.is_some() => {
            let general = report.warnings.iter().filter(|w| w.is_general());
            general.for_each(|warning| eprintln!("warning: {warning}"))
        }
        _ => {}
    }
    let Some(out) = args.folder() else {
        text += &printed_verdict(&report, format, layout.is_some());
        format.print(&text)?;
        return Ok(safety.end(&report.verdicts));
    };
    let is_pivot = layout.is_some();
    let layouts = match layout {
        Some(layout) => vec![("pivot".to_owned(), layout)],
        None => usual(&report)?,
    };
    let Written { files, not_drawn } = report.write_all(&out)?;
    let mut files = [files, report.write_tables(&out, &layouts, args.no_ci)?].concat();
    let mut named = BTreeSet::new();
    files.retain(|file| named.insert(file.clone()));
    if format == Format::Table {
        text += &format!("\n{} records. Files:\n", report.records.len());
        listed(&files).iter().for_each(|line| text += &format!("  {line}\n"));
        text.extend(not_drawn.map(|line| format!("{line}\n")));
    }
    text += &printed_verdict(&report, format, is_pivot);
    format.print(&text)?;
    Ok(safety.end(&report.verdicts))
}

/// The verdict below the tables of a terminal; empty in formats for programs and with custom tables.
fn printed_verdict(report: &Report, format: Format, is_pivot: bool) -> String {
    match format == Format::Table && !is_pivot && !report.verdicts.is_empty() {
        true => format!("\n{}", verdict::terminal::render(&report.verdicts, width())),
        false => String::new(),
    }
}

/// The default tables: methods by tasks, and methods by lengths if there are several lengths.
fn usual(report: &Report) -> Result<Vec<(String, Layout)>> {
    let by = |column: &str| -> Result<(String, Layout)> {
        let values = ["score", "delta"].map(str::to_owned);
        let layout = Layout::parse(&["method".to_owned()], &[column.to_owned()], &values, &report.rows)?;
        Ok((format!("method_by_{column}"), layout))
    };
    let several_lengths = report.rows.iter().any(|r| r.length != report.rows[0].length);
    let columns = if several_lengths { &["task", "length"][..] } else { &["task"] };
    columns.iter().map(|column| by(column)).collect()
}

fn printed(report: &Report, format: Format, form: Form) -> Result<String> {
    Ok(match format {
        Format::Table => table::render(report, form) + "\n",
        Format::Markdown => markdown::render(report, &[], &Figures::default()),
        Format::Csv => csv::render(&report.rows)?,
        Format::Latex => latex::summary(report, form.no_intervals),
        Format::Json => json::summary(report)?,
        Format::LmEval | Format::Kvpress => unreachable!("files are written by `write_exported`"),
    })
}

fn printed_pivot(tables: &[pivot::PivotTable], format: Format, form: Form) -> Result<String> {
    Ok(match format {
        Format::Table => table::pivot(tables, form),
        Format::Markdown => markdown::pivot(tables),
        Format::Csv => pivot::csv(tables)?,
        Format::Latex => latex::pivot(tables, form.no_intervals),
        Format::Json => pivot::json(tables),
        Format::LmEval | Format::Kvpress => unreachable!("files are written by `write_exported`"),
    })
}

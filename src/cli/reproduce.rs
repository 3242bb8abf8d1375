//! `spattn reproduce`: the papers' tables and figures, published beside measured.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use serde_json::{Value, json};

use super::matrix::{OnFailure, Run};
use super::output::{print, print_line};
use super::{Done, numbers};
use crate::disk::write_whole;
use crate::error::UsageError;
use crate::eval::config::{RunConfig, Settings, Several};
use crate::eval::contexts::Shard;
use crate::eval::papers::item::{Item, Variant};
use crate::eval::papers::outcome::{Outcome, judge};
use crate::eval::papers::select;
use crate::eval::record::Record;
use crate::eval::store::{OpenMode, load_manifest};
use crate::report::{merge, papers};

/// Where results go if nothing else is said.
const OUT: &str = "results/papers";
/// The folder of the runs themselves, below that of the results.
const RUNS: &str = "runs";

/// Reproduce the papers' tables and figures: published numbers beside ours, and whether what is claimed holds.
///
/// Each item is a file (`spattn list configs` shows them): a run at the paper's own setting, a run on the built-in model,
/// the published numbers, and claims that are tested by paired intervals. Runs are resumed where they stopped; the page of
/// all items is RESULTS.md in --out, with a table, a plot and the verdicts of each beside it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spattn reproduce --builtin
  spattn reproduce magicpig/table-8 --builtin
  spattn reproduce hip --dry-run --model ./Llama-3.1-8B-Instruct
  spattn reproduce magicpig/table-3 --model ./Llama-3.1-8B-Instruct --device cuda")]
pub struct ReproduceArgs {
    /// A paper, PAPER/ITEM, or a file like one of theirs (ending in .toml); all if not given
    ///
    /// Example: spattn reproduce magicpig/table-3
    #[arg(value_name = "PAPER[/ITEM]|FILE")]
    what: Option<String>,

    /// Run on the built-in model, nearest in spirit: no download, minutes
    ///
    /// Example: spattn reproduce --builtin
    #[arg(long)]
    builtin: bool,

    /// Judge and draw what was run before, and run nothing; where no records are left, what came of them is drawn
    ///
    /// Example: spattn reproduce --builtin --draw-only
    #[arg(long, conflicts_with = "dry_run")]
    draw_only: bool,

    /// Print what would be run, with about how much time and memory, and run nothing
    ///
    /// Example: spattn reproduce magicpig --dry-run
    #[arg(long)]
    dry_run: bool,

    /// Model to run in place of the paper's: a folder or a hub id
    ///
    /// Example: --model ./Llama-3.1-8B-Instruct
    #[arg(long, value_name = "DIR|HUB_ID[@REV]", conflicts_with = "builtin")]
    model: Option<String>,

    /// Where to compute: cpu, or a GPU (in builds with the feature `cuda`)
    ///
    /// Example: --device cuda
    #[arg(long, value_name = "cpu|cuda[:i]")]
    device: Option<String>,

    /// Folder, or data set on the hub, with the published texts
    ///
    /// Example: --data hub:zai-org/LongBench
    #[arg(long, value_name = "DIR|hub:HUB_ID[@REV]")]
    data: Option<PathBuf>,

    /// Examples for each task and length, in place of the items' own numbers
    ///
    /// Example: --samples 5
    #[arg(short = 'n', long, value_name = "N", value_parser = numbers::samples, allow_negative_numbers = true)]
    samples: Option<usize>,

    /// Folder for results; the runs are in its folder `runs`
    ///
    /// Example: --out results/papers
    #[arg(short = 'o', long, value_name = "DIR", default_value = OUT)]
    out: PathBuf,

    /// Throw away the runs that are there and start anew
    ///
    /// Example: spattn reproduce topk --builtin --overwrite
    #[arg(long, conflicts_with_all = ["draw_only", "dry_run"])]
    overwrite: bool,

    /// Threads to use; all cores if not given
    ///
    /// Example: --threads 4
    #[arg(long, value_name = "N", value_parser = numbers::threads, allow_negative_numbers = true)]
    threads: Option<usize>,

    /// Show no progress
    ///
    /// Example: --quiet
    #[arg(short, long)]
    quiet: bool,
}

/// An item with its name.
struct Named {
    name: String,
    item: Item,
}

/// Runs, judges and draws the items that were asked for, and then the page of all.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`]; that parts could not be run.
pub fn run(args: ReproduceArgs) -> Result<Done> {
    let items = args.items()?;
    args.overrides()
        .check_values()
        .map_err(|wrong| UsageError { what: format!("--{}: {}", wrong.key, wrong.error.what), ..wrong.error })?;
    super::setup::set_threads(args.threads)?;
    let (mut failed, count) = (Vec::new(), items.len());
    for (at, Named { name, item }) in items.iter().enumerate() {
        match item.settings(args.variant()) {
            Some(settings) if args.dry_run => {
                print_line(&format!("{name}: {}", item.title))?;
                if let Err(error) = args.prepare(name, settings)?.outline() {
                    failed.push(error.context(name.clone()));
                }
            }
            None if args.dry_run => print_line(&format!("{name}: nothing to run ({})\n", why_not(item)))?,
            settings => {
                if !args.quiet {
                    eprintln!("{name} ({} of {count}): {}", at + 1, item.title);
                }
                let ran =
                    settings.filter(|_| !args.draw_only).map(|settings| args.prepare(name, settings)).transpose()?;
                let failure = match ran.map(Run::record) {
                    Some(Ok(stopped @ (Done::Interrupted | Done::Preempted))) => return Ok(stopped),
                    Some(Err(error)) => Some(error.context(name.clone())),
                    _ => None,
                };
                args.finish(name, item, failure.as_ref())?;
                failed.extend(failure);
            }
        }
    }
    // Of a single one, its own error says what is wrong.
    if count == 1 {
        return failed.into_iter().next().map_or(Ok(Done::Completed), Err);
    }
    failed.iter().for_each(|error| eprintln!("failed: {}", format!("{error:#}").replace('\n', " ")));
    match failed.len() {
        0 => Ok(Done::Completed),
        n => Err(anyhow!("{n} of {count} items could not be run in whole")),
    }
}

fn why_not(item: &Item) -> String {
    item.missing.clone().unwrap_or_else(|| "it has no such run".to_owned())
}

impl ReproduceArgs {
    fn variant(&self) -> Variant {
        if self.builtin { Variant::Builtin } else { Variant::Paper }
    }

    fn items(&self) -> Result<Vec<Named>, UsageError> {
        let Some(file) = self.what.as_deref().filter(|what| what.ends_with(".toml")) else {
            let shipped = select(self.what.as_deref())?;
            return shipped.iter().map(|s| Ok(Named { name: s.name.to_owned(), item: s.parse()? })).collect();
        };
        let text = std::fs::read_to_string(file).map_err(|e| {
            UsageError::new(format!("cannot read {file}: {e}"))
                .hint("give a file, a paper, or PAPER/ITEM: spattn list configs")
        })?;
        let stem = Path::new(file).file_stem().map_or("item".to_owned(), |stem| stem.to_string_lossy().into_owned());
        Ok(vec![Named { name: format!("own/{stem}"), item: Item::parse(&text, file)? }])
    }

    /// What flags say in place of an item.
    fn overrides(&self) -> Settings {
        Settings {
            model: self.model.clone().map(|model| Several(vec![model])),
            device: self.device.clone(),
            data: self.data.clone(),
            samples: self.samples,
            ..Settings::default()
        }
    }

    fn run_folder(&self, name: &str) -> PathBuf {
        self.out.join(RUNS).join(self.variant().name()).join(name)
    }

    /// The run of an item; it goes on where one is that stopped.
    fn prepare(&self, name: &str, settings: Settings) -> Result<Run, UsageError> {
        Ok(Run {
            configs: RunConfig::resolve(self.overrides().over(settings))?,
            shard: Shard::WHOLE,
            out: self.run_folder(name),
            mode: if self.overwrite { OpenMode::Overwrite } else { OpenMode::Resume },
            threads: None,
            quiet: self.quiet,
            json: false,
            on_failure: OnFailure::GoOn,
            is_elsewhere: false,
        })
    }

    /// Judges what was recorded, draws it, and draws the page of all anew.
    fn finish(&self, name: &str, item: &Item, failure: Option<&anyhow::Error>) -> Result<()> {
        let folder = self.run_folder(name);
        let merged =
            folder.join("samples.jsonl").exists().then(|| merge::read(std::slice::from_ref(&folder))).transpose()?;
        let records = merged.as_ref().map_or(&[][..], |merged| &merged.records);
        if records.is_empty() && failure.is_some() {
            // What was drawn before stays.
            return Ok(());
        }
        let item_of_model = match &self.model {
            // Rows that name the paper's model are those of the one that was run in its place.
            Some(_) => of_any_model(item.clone()),
            None => item.clone(),
        };
        let judged = judge(name, &item_of_model, self.variant(), records)?;
        let failure = failure.map(|error| format!("{error:#}").replace('\n', " "));
        let mut outcome = Outcome { ran: ran(records), failure, ..judged };
        let dir = self.out.join(papers::folder(&outcome));
        // Records need not be kept for what came of them to be drawn again.
        match papers::read(&dir)?.filter(|_| self.draw_only && records.is_empty()) {
            Some(stored) => {
                outcome = stored;
                papers::draw_again(&mut outcome, item, &dir)?;
            }
            None => {
                papers::write(&mut outcome, item, &dir)?;
            }
        }
        if !records.is_empty() {
            write_manifest(&dir, &load_manifest(&folder).unwrap_or_default())?;
        }
        let all = papers::read_all(&self.out)?;
        let page = self.out.join("RESULTS.md");
        write_whole(&page, papers::page(&all).as_bytes())
            .with_context(|| format!("cannot write {}", page.display()))?;
        print(&papers::item(&outcome))
    }
}

fn of_any_model(mut item: Item) -> Item {
    item.rows.iter_mut().chain(&mut item.columns).for_each(|line| line.model = None);
    item
}

/// What records say was run.
fn ran(records: &[Record]) -> Vec<(String, String)> {
    if records.is_empty() {
        return Vec::new();
    }
    let list = |of: &dyn Fn(&Record) -> String| {
        let all: BTreeSet<String> = records.iter().map(of).collect();
        all.into_iter().collect::<Vec<_>>().join(", ")
    };
    let lengths: BTreeSet<usize> = records.iter().map(|r| r.length).collect();
    let lengths: Vec<String> = lengths.into_iter().filter(|length| *length > 0).map(|n| n.to_string()).collect();
    let examples: BTreeSet<_> = records.iter().map(|r| (&r.task, r.length, r.seed, r.sample)).collect();
    vec![
        ("model".to_owned(), list(&|r| r.model.to_string())),
        ("tasks".to_owned(), list(&|r| r.task.to_string())),
        ("lengths".to_owned(), lengths.join(", ")),
        ("sparse from".to_owned(), list(&|r| r.protocol.to_string())),
        ("examples".to_owned(), format!("{}, {} records", examples.len(), records.len())),
    ]
}

/// The run's manifest without what is of this machine or of this moment alone.
fn write_manifest(dir: &Path, manifest: &Value) -> Result<()> {
    const KEPT: [&str; 6] = ["program", "identity", "calibration", "methods", "config", "model"];
    let kept: serde_json::Map<String, Value> = manifest
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, _)| KEPT.contains(&key.as_str()))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    let path = dir.join("manifest.json");
    write_whole(&path, format!("{:#}\n", json!(kept)).as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))
}

//! `spattn reproduce`: the papers' tables and figures, with published and measured numbers side by side.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, anyhow};
use clap::Args;
use serde_json::{Value, json};

use super::exit::Done;
use super::interrupt;
use super::matrix::{OnFailure, RunRequest};
use super::numbers;
use super::numbers::{duration, megabytes};
use super::output::{print, print_line};
use super::reproduce_facts::{facts_of_analyses, facts_of_learning, facts_of_records, facts_of_times};
use super::run_flags::{CalibrationFlag, QuietFlag, ThreadsFlag};
use super::setup::{find_data, raise_on_preemption};
use super::verdict_flags::SafetyDemand;
use crate::report::{merge, papers};
use crate::version::PROGRAM;
use spattn_base::error::{UsageError, in_one_line};
use spattn_base::given;
use spattn_base::meter::Meter;
use spattn_base::privacy;
use spattn_eval::config::run_config::RunConfig;
use spattn_eval::config::settings::Settings;
use spattn_eval::config::value::{Given, OneOrMany};
use spattn_eval::folder::owned_files;
use spattn_eval::plan::contexts::Shard;
use spattn_eval::records::store::{OpenMode, load_manifest};
use spattn_lab::analyze::units::{Ended, Order, Outlook};
use spattn_lab::papers::calibrations::Lesson;
use spattn_lab::papers::item::{Item, Variant};
use spattn_lab::papers::learning::Learning;
use spattn_lab::papers::measure::Evidence;
use spattn_lab::papers::outcome::{ItemOutcome, judge};
use spattn_lab::papers::progress::DoneUnit;
use spattn_lab::papers::seen::{AnalysisTables, Observing};
use spattn_lab::papers::select;
use spattn_model::device::Device;

/// The default folder of results.
const OUT: &str = "results/papers";
/// The subfolder of the runs, within that of the results.
const RUNS: &str = "runs";
/// What is said if it is interrupted.
const KEPT: &str = "what was measured is kept; go on with the same command";
/// The subfolder of the analyses' units, within an item's run.
const FOUND: &str = "found";
/// The subfolder of the calibrations' units, within an item's run.
const LEARNED: &str = "learned";

/// Reproduce the papers' tables and figures: published numbers beside ours, and a verdict on each claim.
///
/// Each item is a file (`spattn list configs` shows them): a run at the paper's own setting, a run on the built-in model,
/// the published numbers, and claims that are tested by paired intervals. Items about attention itself run the analyses of
/// `spattn analyze`, items about calibrations train them, and items about latency use times measured on a GPU. Runs that were
/// stopped are resumed. RESULTS.md in --out has a table, a plot and the verdicts of each item.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spattn reproduce --builtin
  spattn reproduce magicpig/table-8 --builtin
  spattn reproduce hip --dry-run --model ./Llama-3.1-8B-Instruct
  spattn reproduce magicpig/table-3 --model ./Llama-3.1-8B-Instruct --device cuda")]
pub struct ReproduceArgs {
    /// A paper, PAPER/ITEM, or an item's file (ending in .toml); all items if not given
    ///
    /// Example: spattn reproduce magicpig/table-3
    #[arg(value_name = "PAPER[/ITEM]|FILE")]
    what: Option<String>,

    /// Run a similar, small experiment on the built-in model: minutes, and no download
    ///
    /// Example: spattn reproduce --builtin
    #[arg(long)]
    builtin: bool,

    /// Run nothing: make verdicts and plots of earlier runs, or of their stored results if the records are gone
    ///
    /// Example: spattn reproduce --builtin --draw-only
    #[arg(long, conflicts_with = "dry_run")]
    draw_only: bool,

    /// Print what would run, with estimated time and memory, and run nothing
    ///
    /// Example: spattn reproduce magicpig --dry-run
    #[arg(long)]
    dry_run: bool,

    /// Model to run in place of the paper's: a folder, a GGUF file or a hub id
    ///
    /// Example: --model ./Llama-3.1-8B-Instruct
    #[arg(long, value_name = "DIR|HUB_ID[@REV]", conflicts_with = "builtin")]
    model: Option<String>,

    /// Where to compute: cpu, a GPU, or several GPUs that divide the model's layers (in builds with the feature `cuda`)
    ///
    /// Example: --device cuda, --device cuda:0,1
    #[arg(long, value_name = "cpu|cuda[:i,...]")]
    device: Option<String>,

    /// Folder, or data set on the hub, with the published texts
    ///
    /// Example: --data hub:zai-org/LongBench
    #[arg(long, value_name = "DIR|hub:HUB_ID[@REV]")]
    data: Option<PathBuf>,

    #[command(flatten)]
    pub(super) calibration: CalibrationFlag,

    /// Examples for each task and length, instead of the items' own numbers
    ///
    /// Example: --samples 5
    #[arg(short = 'n', long, value_name = "N", value_parser = numbers::samples, allow_negative_numbers = true)]
    samples: Option<usize>,

    /// Folder for results; the runs are in its folder `runs`
    ///
    /// Example: --out results/papers
    #[arg(short = 'o', long, value_name = "DIR", default_value = OUT)]
    out: PathBuf,

    /// Delete earlier runs and start again
    ///
    /// Example: spattn reproduce topk --builtin --overwrite
    #[arg(long, conflicts_with_all = ["draw_only", "dry_run"])]
    overwrite: bool,

    #[command(flatten)]
    pub(super) threads: ThreadsFlag,

    /// Write nothing that names the user: no command line, host, job or system prompt, and of paths only the last part
    ///
    /// docs/privacy.md lists what is written with and without this flag.
    ///
    /// Example: spattn reproduce hip --model ~/models/qwen --anonymous
    #[arg(long)]
    anonymous: bool,

    #[command(flatten)]
    quiet: QuietFlag,
}

/// An item with its name.
struct Named {
    name: String,
    item: Item,
}

/// Runs, judges and draws the requested items, and then draws the page of all.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`]; that parts could not be run.
pub fn run_reproduce(args: ReproduceArgs) -> Result<Done> {
    if args.anonymous {
        privacy::leave_out();
    }
    let items = args.items()?;
    args.overrides()
        .check_values()
        .map_err(|wrong| UsageError { what: format!("--{}: {}", wrong.key, wrong.error.what), ..wrong.error })?;
    args.check_calibration()?;
    if !args.dry_run {
        args.check_free(&items)?;
    }
    let (mut failed, count) = (Vec::new(), items.len());
    for (at, Named { name, item }) in items.iter().enumerate() {
        if args.dry_run {
            print_line(&format!("{name}: {}", item.title))?;
            failed.extend(args.outline(name, item).err().map(|error| error.context(name.clone())));
            continue;
        }
        if args.quiet.0.is_none() {
            eprintln!("{name} ({} of {count}): {}", at + 1, item.title);
        }
        let failure = match if args.draw_only { Ok(Done::Completed) } else { args.measure(name, item) } {
            Ok(stopped @ (Done::Interrupted | Done::Preempted)) => return Ok(stopped),
            Ok(Done::Completed | Done::NotSafe) => None,
            Err(error) => Some(error.context(name.clone())),
        };
        args.finish(name, item, failure.as_ref())?;
        failed.extend(failure);
    }
    // If there is only one item, its own error is the result.
    if count == 1 {
        return failed.into_iter().next().map_or(Ok(Done::Completed), Err);
    }
    failed.iter().for_each(|error| eprintln!("failed: {}", in_one_line(error)));
    match failed.len() {
        0 => Ok(Done::Completed),
        n => Err(anyhow!("{n} of {count} items could not be run completely")),
    }
}

fn why_not(item: &Item) -> String {
    match (&item.missing, &item.bench) {
        (Some(missing), _) => missing.clone(),
        (None, Some(bench)) => format!("it uses measured times: {}", bench.tables.join(", ")),
        (None, None) => "it has no run on this model".to_owned(),
    }
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
        let text = given::text(Path::new(file), given::MOST_OF_SETTINGS).map_err(|e| {
            UsageError::new(format!("cannot read {file}: {e}"))
                .hint("give a file, a paper, or PAPER/ITEM: spattn list configs")
        })?;
        let stem = Path::new(file).file_stem().map_or("item".to_owned(), |stem| stem.to_string_lossy().into_owned());
        Ok(vec![Named { name: format!("own/{stem}"), item: Item::parse(&text, file)? }])
    }

    /// The settings that flags override in items.
    fn overrides(&self) -> Settings {
        Settings {
            model: self.model.clone().map(OneOrMany::from),
            device: self.device.clone().map(Given::new),
            data: self.data.clone(),
            calibration: self.calibration.0.clone(),
            samples: self.samples,
            anonymous: self.anonymous.then_some(true),
            ..Settings::default()
        }
    }

    /// Checks that the folder of calibrations is there. Otherwise every method that needs one would fail by itself.
    fn check_calibration(&self) -> Result<(), UsageError> {
        match &self.calibration.0 {
            Some(folder) if !folder.is_dir() => {
                Err(UsageError::new(format!("--calibration: there is no folder {}", folder.display()))
                    .hint("make it with `spattn calibrate NAME --out DIR`"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that no file of another program would be replaced.
    fn check_free(&self, items: &[Named]) -> Result<(), UsageError> {
        owned_files::check(&self.out, &owned_files::PAPERS)?;
        for Named { name, .. } in items {
            owned_files::check(&self.out.join(papers::folder_of(name, self.variant().name())), &owned_files::ITEM)?;
        }
        Ok(())
    }

    fn run_folder(&self, name: &str) -> PathBuf {
        self.out.join(RUNS).join(self.variant().name()).join(name)
    }

    /// The run of an item. A run that stopped earlier is resumed.
    fn prepare(&self, name: &str, settings: Settings) -> Result<RunRequest, UsageError> {
        Ok(RunRequest {
            configs: RunConfig::resolve(self.overrides().over(settings))?,
            shard: Shard::WHOLE,
            out: self.run_folder(name),
            is_unnamed: false,
            mode: if self.overwrite { OpenMode::Overwrite } else { OpenMode::Resume },
            quiet: self.quiet.0.is_some(),
            json: false,
            on_failure: OnFailure::GoOn,
            is_elsewhere: false,
            safety: SafetyDemand::default(),
            until_certain: None,
            resumes_by_itself: true,
        })
    }

    /// The analysis that an item needs, with the flags' values.
    fn observing(&self, item: &Item) -> Option<Observing> {
        let own = item.observing(self.variant())?.clone();
        let samples = self.samples.map(|samples| samples.next_multiple_of(own.together));
        Some(Observing {
            model: self.model.clone().unwrap_or(own.model),
            samples: samples.unwrap_or(own.samples),
            ..own
        })
    }

    /// The calibrations that an item needs, with the flags' values.
    fn learning(&self, item: &Item) -> Option<Learning> {
        let own = item.learning(self.variant())?.clone();
        Some(Learning { model: self.model.clone().unwrap_or(own.model), ..own })
    }

    fn lesson<'a>(&self, learning: &'a Learning, folder: &'a Path) -> Result<Lesson<'a>, UsageError> {
        let device = self.device.as_deref().map_or(Ok(Device::Cpu), str::parse)?.of_one_copy()?;
        Ok(Lesson { learning, folder, device, overwrite: self.overwrite, program: PROGRAM })
    }

    /// Prints what an item would run, analyse and learn.
    fn outline(&self, name: &str, item: &Item) -> Result<()> {
        let settings = item.settings(self.variant());
        let observing = self.observing(item);
        let learning = self.learning(item);
        if settings.is_none() && observing.is_none() && learning.is_none() {
            return print_line(&format!("nothing to run ({})\n", why_not(item)));
        }
        if let Some(observing) = &observing {
            let data = self.data.as_deref().map(find_data).transpose()?;
            let data = data.as_ref().map(|data| data.folder.as_path());
            let order = Order {
                observing,
                folder: &self.run_folder(name).join(FOUND),
                data,
                overwrite: false,
                program: PROGRAM,
            };
            let Outlook { documents, seconds, bytes } = order.check()?;
            let list = |names: &[String]| names.join(", ");
            let lengths: Vec<String> = observing.lengths.iter().map(ToString::to_string).collect();
            print_line(&format!(
                "{} reads {documents} prompts of {} tokens ({}) for spattn analyze {}: about {}, with up to {}\n",
                observing.model,
                list(&lengths),
                list(&observing.tasks),
                observing.analyses.join(" "),
                duration(seconds),
                megabytes(bytes),
            ))?;
        }
        if let Some(learning) = &learning {
            let Learning { model, tokens, length, .. } = learning;
            let (seconds, bytes) = self.lesson(learning, &self.run_folder(name).join(LEARNED))?.check()?;
            print_line(&format!(
                "{model} is calibrated {} times, with {tokens} tokens each in blocks of up to {length}: {}; reading takes about {}, with up to {}, and training comes on top\n",
                learning.calibrations.len(),
                learning.calibrations.join(", "),
                duration(seconds),
                megabytes(bytes),
            ))?;
        }
        if let Some(settings) = settings {
            // It may be for another machine: what the model needs is said, and not refused.
            RunRequest { is_elsewhere: true, ..self.prepare(name, settings)? }.describe()?;
        }
        Ok(())
    }

    /// Runs an item's evaluation, its analysis and its calibrations.
    fn measure(&self, name: &str, item: &Item) -> Result<Done> {
        if let Some(settings) = item.settings(self.variant()) {
            match self.prepare(name, settings)?.record()? {
                Done::Completed => {}
                stopped => return Ok(stopped),
            }
        }
        let (observing, learning) = (self.observing(item), self.learning(item));
        if observing.is_none() && learning.is_none() {
            return Ok(Done::Completed);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let is_preempted = raise_on_preemption(&stop, &Arc::new(AtomicBool::new(false)))?;
        // Each unit is stored when it is done.
        interrupt::stop_within_grace(&stop, || KEPT.to_owned())?;
        let looked = observing.map_or(Ok(true), |observing| self.look(name, &observing, &stop))?;
        let whole = looked && learning.map_or(Ok(true), |learning| self.learn(name, &learning, &stop))?;
        Ok(match (whole, is_preempted.load(Ordering::Relaxed)) {
            (true, _) => Done::Completed,
            (false, true) => Done::Preempted,
            (false, false) => interrupt::answer(),
        })
    }

    /// Learns what was not learned yet; whether all is learned.
    fn learn(&self, name: &str, learning: &Learning, stop: &AtomicBool) -> Result<bool> {
        let folder = self.run_folder(name).join(LEARNED);
        let mut units = Units::begin(self.quiet.0.is_some(), "training the first calibration");
        Ok(self.lesson(learning, &folder)?.learn(stop, |unit| units.told(unit))?.is_some())
    }

    /// Analyses what was not analysed yet; whether all is analysed.
    fn look(&self, name: &str, observing: &Observing, stop: &AtomicBool) -> Result<bool> {
        let data = self.data.as_deref().map(find_data).transpose()?;
        let data = data.as_ref().map(|data| data.folder.as_path());
        let order = Order {
            observing,
            folder: &self.run_folder(name).join(FOUND),
            data,
            overwrite: self.overwrite,
            program: PROGRAM,
        };
        let mut units = Units::begin(self.quiet.0.is_some(), "reading the first prompt");
        Ok(matches!(order.see(stop, |unit| units.told(unit))?, Ended::Whole(_)))
    }

    /// The stored units of an item's analyses and calibrations.
    fn seen(&self, name: &str, item: &Item) -> Result<Vec<AnalysisTables>> {
        Ok([self.found(name, item)?, self.learned(name, item)?].concat())
    }

    fn learned(&self, name: &str, item: &Item) -> Result<Vec<AnalysisTables>> {
        let folder = self.run_folder(name).join(LEARNED);
        let Some(learning) = self.learning(item).filter(|_| folder.exists()) else { return Ok(Vec::new()) };
        self.lesson(&learning, &folder)?.kept_all()
    }

    fn found(&self, name: &str, item: &Item) -> Result<Vec<AnalysisTables>> {
        let folder = self.run_folder(name).join(FOUND);
        let Some(observing) = self.observing(item).filter(|_| folder.exists()) else { return Ok(Vec::new()) };
        let data = self.data.as_deref().map(find_data).transpose()?;
        let data = data.as_ref().map(|data| data.folder.as_path());
        Order { observing: &observing, folder: &folder, data, overwrite: false, program: PROGRAM }.kept_all()
    }

    /// Judges and draws an item's results, and draws the page of all items again.
    fn finish(&self, name: &str, item: &Item, failure: Option<&anyhow::Error>) -> Result<()> {
        let folder = self.run_folder(name);
        let merged =
            folder.join("samples.jsonl").exists().then(|| merge::read(std::slice::from_ref(&folder))).transpose()?;
        let records = merged.as_ref().map_or(&[][..], |merged| &merged.records);
        // If an earlier step failed, units with other settings have been reported there.
        let seen = if failure.is_some() { self.seen(name, item).unwrap_or_default() } else { self.seen(name, item)? };
        if records.is_empty() && seen.is_empty() && failure.is_some() {
            // The earlier drawing stays.
            return Ok(());
        }
        let item_of_model = match &self.model {
            // Rows that name the paper's model get the numbers of the model that was run in its place.
            Some(_) => of_any_model(item.clone()),
            None => item.clone(),
        };
        let judged = judge(name, &item_of_model, self.variant(), Evidence { records, seen: &seen })?;
        let failure = failure.map(|error| privacy::text(&in_one_line(error)));
        let observed = match self.learning(item) {
            Some(learning) => facts_of_learning(&seen, &learning),
            None => facts_of_analyses(&seen),
        };
        let ran = [facts_of_records(records), observed, facts_of_times(item)?].concat();
        let mut outcome = ItemOutcome { ran, failure, ..judged };
        let dir = self.out.join(papers::folder(&outcome));
        // An item can be drawn again from its stored outcome, without records.
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
        } else if let Some(first) = seen.first() {
            let looked = json!({ "program": first.program, "identity": first.identity, "units": seen.len() });
            write_manifest(&dir, &looked)?;
        }
        let all = papers::read_all(&self.out)?;
        owned_files::write_all(&self.out, &[("RESULTS.md", papers::page(&all))])?;
        print(&papers::item(&outcome))
    }
}

/// The progress of analyses or calibrations, a line for each.
struct Units {
    meter: Meter,
    quiet: bool,
}

impl Units {
    fn begin(quiet: bool, doing: &str) -> Self {
        Self { meter: Meter::new(quiet, doing), quiet }
    }

    fn told(&mut self, DoneUnit { number, of, found, what }: DoneUnit<'_>) {
        self.meter.at(number as u64, of as u64, found as u64, || format!("{number}/{of} parts"));
        if !self.quiet {
            let left = if number < of { self.meter.left() } else { String::new() };
            self.meter.tell(&format!("{number} of {of}: {what}{left}"));
        }
    }
}

fn of_any_model(mut item: Item) -> Item {
    item.rows.iter_mut().chain(&mut item.columns).for_each(|line| line.model = None);
    item
}

/// The run's manifest without what is of this machine or of this moment alone.
fn write_manifest(dir: &Path, manifest: &Value) -> Result<()> {
    const KEPT: [&str; 7] = ["program", "identity", "units", "calibration", "methods", "config", "model"];
    let kept: serde_json::Map<String, Value> = manifest
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, _)| KEPT.contains(&key.as_str()))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    owned_files::write_all(dir, &[("manifest.json", format!("{:#}\n", json!(kept)))]).map(drop)
}

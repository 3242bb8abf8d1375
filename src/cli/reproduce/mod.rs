//! `spattn reproduce`: the papers' tables and figures, with published and measured numbers side by side.

mod command;
mod dry_run;
mod facts;
mod finish;
mod item_run;
mod real_file;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, anyhow};
use clap::Args;

use self::dry_run::Outlined;
use self::item_run::ItemRun;
use self::real_file::RealFile;
use super::exit::Done;
use super::interrupt;
use super::matrix::{OnFailure, RunRequest};
use super::numbers;
use super::output::print_line;
use super::run_flags::{CalibrationFlag, QuietFlag, ThreadsFlag};
use super::setup::{find_data, raise_on_preemption};
use super::verdict_flags::SafetyDemand;
use crate::report::papers::write_pages;
use crate::version::PROGRAM;
use spattn_base::error::{UsageError, in_one_line};
use spattn_base::given;
use spattn_base::meter::Meter;
use spattn_base::privacy;
use spattn_eval::config::run_config::RunConfig;
use spattn_eval::config::settings::Settings;
use spattn_eval::config::value::Given;
use spattn_eval::folder::owned_files;
use spattn_eval::plan::contexts::Shard;
use spattn_eval::records::store::OpenMode;
use spattn_lab::analyze::units::{Ended, Order};
use spattn_lab::papers::calibrations::Lesson;
use spattn_lab::papers::item::Item;
use spattn_lab::papers::learning::Learning;
use spattn_lab::papers::progress::DoneUnit;
use spattn_lab::papers::real_models::RealModel;
use spattn_lab::papers::seen::Observing;
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
/// Each item is a file (`spattn list configs` shows them): a run at the paper's own setting, runs on the built-in model and on
/// a small pretrained model, the published numbers, and claims that are tested by paired intervals. Items about attention itself
/// run the analyses of `spattn analyze`, items about calibrations train them, and items about latency use times measured on a
/// GPU. Runs that were stopped are resumed. README.md in --out leads to a page for each paper and each item.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spattn reproduce --builtin
  spattn reproduce magicpig/table-8 --builtin
  spattn reproduce --real --device cuda
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

    /// Run on a small pretrained model, from its file in models/ (scripts/fetch_model.sh): the item's own, or the one named
    ///
    /// qwen2.5-coder-0.5b or smollm2-135m. A file with another SHA-256 is refused; --model names one to run all the same.
    ///
    /// Example: spattn reproduce --real --device cuda, spattn reproduce hip --real=smollm2-135m
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = "", conflicts_with = "builtin")]
    real: Option<String>,

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

    #[arg(skip)]
    files: RealFiles,
}

/// The files of pretrained models that were looked for already, by the models' names.
#[derive(Debug, Default)]
struct RealFiles(RefCell<BTreeMap<String, RealFile>>);

impl Clone for RealFiles {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl RealFiles {
    fn of(&self, name: &str, find: impl FnOnce() -> Result<RealFile, UsageError>) -> Result<RealFile, UsageError> {
        if let Some(known) = self.0.borrow().get(name) {
            return Ok(known.clone());
        }
        let found = find()?;
        self.0.borrow_mut().insert(name.to_owned(), found.clone());
        Ok(found)
    }
}

/// An item with its name.
struct Named {
    name: String,
    item: Item,
}

/// Runs, judges and draws the requested items, and then draws the pages of all.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`]; that parts could not be run.
pub fn run_reproduce(args: ReproduceArgs) -> Result<Done> {
    if args.anonymous {
        privacy::leave_out();
    }
    let items = args.items()?;
    args.check_flags()?;
    if args.dry_run {
        return args.outline_all(&items).map(|()| Done::Completed);
    }
    args.check_free(&items)?;
    let (mut failed, count) = (Vec::new(), items.len());
    for (at, Named { name, item }) in items.iter().enumerate() {
        if args.quiet.0.is_none() {
            eprintln!("{name} ({} of {count}): {}", at + 1, item.title);
        }
        let failure = match if args.draw_only { Ok(Done::Completed) } else { args.measure(name, item) } {
            Ok(stopped @ (Done::Interrupted | Done::Preempted)) => return Ok(stopped),
            Ok(Done::Completed | Done::NotSafe) => None,
            Err(error) => Some(error.context(name.clone())),
        };
        args.finish(name, item, failure.as_ref())?;
        // Pages are complete whenever a run is stopped.
        if !args.draw_only {
            write_pages(&args.out)?;
        }
        failed.extend(failure);
    }
    write_pages(&args.out)?;
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

impl ReproduceArgs {
    /// Prints what all items would run. Fails if one of them would fail, or if none has anything to run.
    fn outline_all(&self, items: &[Named]) -> Result<()> {
        let (mut failed, mut some) = (Vec::new(), false);
        for Named { name, item } in items {
            print_line(&format!("{name}: {}", item.title))?;
            match self.outline(name, item) {
                Ok(outlined) => some |= outlined == Outlined::Something,
                Err(error) => failed.push(UsageError { what: format!("{name}: {}", error.what), ..error }),
            }
        }
        let count = items.len();
        match failed.len() {
            0 if some => Ok(()),
            0 => Err(UsageError::new(format!("there is nothing to run in {count} of {count} items"))
                .hint(
                    "--builtin, --real and --model choose what is run; `spattn list configs` shows what each item has",
                )
                .into()),
            1 if count == 1 => Err(failed.remove(0).into()),
            n => {
                failed.iter().for_each(|error| eprintln!("failed: {}", in_one_line(&error.clone().into())));
                Err(UsageError::new(format!("{n} of {count} items could not be run completely")).into())
            }
        }
    }

    /// Checks the flags' values.
    fn check_flags(&self) -> Result<(), UsageError> {
        let checked = self.overrides().check_values();
        checked
            .map_err(|wrong| UsageError { what: format!("--{}: {}", wrong.key, wrong.error.what), ..wrong.error })?;
        if let Some(name) = self.real.as_deref().filter(|name| !name.is_empty()) {
            RealModel::find(name).map_err(|e| UsageError { what: format!("--real: {}", e.what), ..e })?;
        }
        self.check_calibration()
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
        items.iter().try_for_each(|Named { name, .. }| owned_files::check(&self.out.join(name), &owned_files::ITEM))
    }

    /// The device to compute on.
    fn device(&self) -> Result<Device, UsageError> {
        self.device.as_deref().map_or(Ok(Device::Cpu), str::parse)
    }

    /// The evaluation of an item that has one. A run that stopped earlier is resumed.
    fn prepare(&self, run: &ItemRun) -> Result<RunRequest, UsageError> {
        let settings = run.settings.clone().unwrap_or_default();
        Ok(RunRequest {
            configs: RunConfig::resolve(self.overrides().over(settings))?,
            shard: Shard::WHOLE,
            out: run.folder.clone(),
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

    fn lesson<'a>(&self, learning: &'a Learning, folder: &'a Path) -> Result<Lesson<'a>, UsageError> {
        let device = self.device()?.of_one_copy()?;
        Ok(Lesson { learning, folder, device, overwrite: self.overwrite, program: PROGRAM })
    }

    /// Runs an item's evaluation, its analysis and its calibrations.
    fn measure(&self, name: &str, item: &Item) -> Result<Done> {
        let run = self.item_run(name, item)?;
        if let Some(left_out) = run.left_out.as_ref().filter(|_| self.quiet.0.is_none()) {
            eprintln!("note: {left_out}");
        }
        if run.settings.is_some() {
            match self.prepare(&run)?.record()? {
                Done::Completed => {}
                stopped => return Ok(stopped),
            }
        }
        if run.observing.is_none() && run.learning.is_none() {
            return Ok(Done::Completed);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let is_preempted = raise_on_preemption(&stop, &Arc::new(AtomicBool::new(false)))?;
        // Each unit is stored when it is done.
        interrupt::stop_within_grace(&stop, || KEPT.to_owned())?;
        let looked = run.observing.as_ref().map_or(Ok(true), |observing| self.look(&run.folder, observing, &stop))?;
        let whole = looked && run.learning.as_ref().map_or(Ok(true), |own| self.learn(&run.folder, own, &stop))?;
        Ok(match (whole, is_preempted.load(Ordering::Relaxed)) {
            (true, _) => Done::Completed,
            (false, true) => Done::Preempted,
            (false, false) => interrupt::answer(),
        })
    }

    /// Learns what was not learned yet; whether all is learned.
    fn learn(&self, folder: &Path, learning: &Learning, stop: &AtomicBool) -> Result<bool> {
        let folder = folder.join(LEARNED);
        let mut units = Units::begin(self.quiet.0.is_some(), "training the first calibration");
        Ok(self.lesson(learning, &folder)?.learn(stop, |unit| units.told(unit))?.is_some())
    }

    /// Analyses what was not analysed yet; whether all is analysed.
    fn look(&self, folder: &Path, observing: &Observing, stop: &AtomicBool) -> Result<bool> {
        let data = self.data.as_deref().map(find_data).transpose()?;
        let data = data.as_ref().map(|data| data.folder.as_path());
        let order = Order { observing, folder: &folder.join(FOUND), data, overwrite: self.overwrite, program: PROGRAM };
        let mut units = Units::begin(self.quiet.0.is_some(), "reading the first prompt");
        Ok(matches!(order.see(stop, |unit| units.told(unit))?, Ended::Whole(_)))
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

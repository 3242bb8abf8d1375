//! The flags of `spattn reproduce`, their checks, and the items that they name.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::real_file::RealFile;
use crate::cli::numbers;
use crate::cli::run_flags::{CalibrationFlag, QuietFlag, ThreadsFlag};
use crate::report::papers::ItemForm;
use spattn_base::error::UsageError;
use spattn_base::given;
use spattn_eval::config::settings::Settings;
use spattn_eval::config::value::Given;
use spattn_eval::folder::owned_files;
use spattn_lab::papers::item::Item;
use spattn_lab::papers::real_models::RealModel;
use spattn_lab::papers::select;
use spattn_model::device::Device;

/// The default folder of results.
pub(super) const OUT: &str = "results/papers";
/// The subfolder of the runs, within that of the results.
pub(super) const RUNS: &str = "runs";
/// The subfolder, within an item's run, of the records of steps that were timed alone.
pub(super) const ALONE: &str = "alone";
/// The line that is printed on an interrupt.
pub(super) const KEPT: &str = "what was measured is kept; go on with the same command";
/// The subfolder, within an item's run, of the analyses' units.
pub(super) const FOUND: &str = "found";
/// The subfolder, within an item's run, of the calibrations' units.
pub(super) const LEARNED: &str = "learned";

/// Reproduce the papers' tables and figures: published numbers beside ours, and a verdict on each claim.
///
/// Each item is a file (`spattn list configs` shows them): a run at the paper's own setting, runs on the built-in model and on
/// a small pretrained model, the published numbers, and claims that are tested by paired intervals. Items about attention itself
/// run the analyses of `spattn analyze`, items about calibrations train them, and items about latency use times measured on a
/// GPU. Without --builtin, --real or --model the paper's own model runs, which is downloaded if it is not in the cache. Runs that
/// were stopped are resumed. README.md in --out leads to a page for each paper and each item.
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
    pub(super) what: Option<String>,

    /// Run a similar, small experiment on the built-in model: minutes, and no download
    ///
    /// Example: spattn reproduce --builtin
    #[arg(long)]
    pub(super) builtin: bool,

    /// Run on a small pretrained model, from its file in models/ (scripts/fetch_model.sh): the item's own, or the one named
    ///
    /// qwen2.5-coder-0.5b or smollm2-135m. A file with another SHA-256 is refused; --model names one to run all the same.
    ///
    /// Example: spattn reproduce --real --device cuda, spattn reproduce hip --real=smollm2-135m
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = "", conflicts_with = "builtin")]
    pub(super) real: Option<String>,

    /// Run nothing: make verdicts and plots of earlier runs, or of their stored results if the records are gone
    ///
    /// Example: spattn reproduce --builtin --draw-only
    #[arg(long, conflicts_with = "dry_run")]
    pub(super) draw_only: bool,

    /// Print what would run, with estimated time and memory, and run nothing
    ///
    /// Example: spattn reproduce magicpig --dry-run
    #[arg(long)]
    pub(super) dry_run: bool,

    /// Model to run in place of the paper's: a folder, a GGUF file or a hub id
    ///
    /// Example: --model ./Llama-3.1-8B-Instruct
    #[arg(long, value_name = "DIR|HUB_ID[@REV]", conflicts_with = "builtin")]
    pub(super) model: Option<String>,

    /// Where to compute: cpu, a GPU, or several GPUs that divide the model's layers (in builds with the feature `cuda`)
    ///
    /// Example: --device cuda, --device cuda:0,1
    #[arg(long, value_name = "cpu|cuda[:i,...]")]
    pub(super) device: Option<String>,

    /// Folder, or data set on the hub, with the published texts
    ///
    /// Example: --data hub:zai-org/LongBench
    #[arg(long, value_name = "DIR|hub:HUB_ID[@REV]")]
    pub(super) data: Option<PathBuf>,

    #[command(flatten)]
    pub(in crate::cli) calibration: CalibrationFlag,

    /// Examples for each task and length, instead of the items' own numbers
    ///
    /// Example: --samples 5
    #[arg(short = 'n', long, value_name = "N", value_parser = numbers::samples, allow_negative_numbers = true)]
    pub(super) samples: Option<usize>,

    /// Folder for results; the runs are in its folder `runs`
    ///
    /// Example: --out results/papers
    #[arg(short = 'o', long, value_name = "DIR", default_value = OUT)]
    pub(super) out: PathBuf,

    /// What to print: an item's page, or its numbers; with latex, table.tex is written beside table.csv
    ///
    /// Example: --format latex > table.tex
    #[arg(long, value_name = "FORMAT", value_enum, conflicts_with = "dry_run")]
    pub(super) format: Option<ItemFormat>,

    /// Write each plot as PNG, too
    ///
    /// Example: spattn reproduce magicpig/table-8 --builtin --png
    #[arg(long, conflicts_with = "dry_run")]
    pub(super) png: bool,

    /// Delete earlier runs and start again
    ///
    /// Example: spattn reproduce topk --builtin --overwrite
    #[arg(long, conflicts_with_all = ["draw_only", "dry_run"])]
    pub(super) overwrite: bool,

    #[command(flatten)]
    pub(in crate::cli) threads: ThreadsFlag,

    /// Write nothing that names the user: no command line, host, job or system prompt, and of paths only the last part
    ///
    /// docs/privacy.md lists what is written with and without this flag.
    ///
    /// Example: spattn reproduce hip --model ~/models/qwen --anonymous
    #[arg(long)]
    pub(super) anonymous: bool,

    #[command(flatten)]
    pub(super) quiet: QuietFlag,

    #[arg(skip)]
    pub(super) files: RealFiles,
}

/// What is printed of an item.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum ItemFormat {
    /// The page: claims, numbers, settings
    #[default]
    Markdown,
    /// CSV: a line for each number
    Csv,
    /// LaTeX with booktabs
    Latex,
    /// JSON: an array of what was run, with all numbers and claims
    Json,
}

impl ItemFormat {
    /// The form of the results.
    pub(super) fn form(self) -> ItemForm {
        match self {
            Self::Markdown => ItemForm::Markdown,
            Self::Csv => ItemForm::Csv,
            Self::Latex => ItemForm::Latex,
            Self::Json => ItemForm::Json,
        }
    }
}

/// Caches the files of pretrained models that were looked for, by the models' names.
#[derive(Debug, Default)]
pub(super) struct RealFiles(RefCell<BTreeMap<String, RealFile>>);

impl Clone for RealFiles {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl RealFiles {
    pub(super) fn of(
        &self,
        name: &str,
        find: impl FnOnce() -> Result<RealFile, UsageError>,
    ) -> Result<RealFile, UsageError> {
        if let Some(known) = self.0.borrow().get(name) {
            return Ok(known.clone());
        }
        let found = find()?;
        self.0.borrow_mut().insert(name.to_owned(), found.clone());
        Ok(found)
    }
}

/// An item with its name.
pub(super) struct Named {
    pub name: String,
    pub item: Item,
}

impl ReproduceArgs {
    /// Checks the flags' values.
    pub(super) fn check_flags(&self) -> Result<(), UsageError> {
        let checked = self.overrides().check_values();
        checked
            .map_err(|wrong| UsageError { what: format!("--{}: {}", wrong.key, wrong.error.what), ..wrong.error })?;
        if let Some(name) = self.real.as_deref().filter(|name| !name.is_empty()) {
            RealModel::find(name).map_err(|e| UsageError { what: format!("--real: {}", e.what), ..e })?;
        }
        self.check_calibration()
    }

    pub(super) fn items(&self) -> Result<Vec<Named>, UsageError> {
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
    pub(super) fn overrides(&self) -> Settings {
        Settings {
            device: self.device.clone().map(Given::new),
            data: self.data.clone(),
            calibration: self.calibration.0.clone(),
            samples: self.samples,
            anonymous: self.anonymous.then_some(true),
            ..Settings::default()
        }
    }

    /// Checks that the folder of calibrations exists. Otherwise each method that needs one would fail separately.
    pub(super) fn check_calibration(&self) -> Result<(), UsageError> {
        match &self.calibration.0 {
            Some(folder) if !folder.is_dir() => {
                Err(UsageError::new(format!("--calibration: there is no folder {}", folder.display()))
                    .hint("make it with `spattn calibrate NAME --out DIR`"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that no file of another program would be replaced.
    pub(super) fn check_free(&self, items: &[Named]) -> Result<(), UsageError> {
        owned_files::check(&self.out, &owned_files::PAPERS)?;
        items.iter().try_for_each(|Named { name, .. }| owned_files::check(&self.out.join(name), &owned_files::ITEM))
    }

    /// The device to compute on.
    pub(super) fn device(&self) -> Result<Device, UsageError> {
        self.device.as_deref().map_or(Ok(Device::Cpu), str::parse)
    }
}

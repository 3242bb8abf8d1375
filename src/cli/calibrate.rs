//! `spattn calibrate`: learns what some methods need to know about a model, and stores it in files.

use std::io::{ErrorKind, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::Result;
use clap::Args;

use super::exit::Done;
use super::interrupt;
use super::numbers;
use super::numbers::{duration, megabytes};
use super::output::print_line;
use super::run_flags::{QuietFlag, ThreadsFlag};
use spattn_attention::artefact;
use spattn_base::disk::{self, write_whole};
use spattn_base::error::UsageError;
use spattn_base::given;
use spattn_base::meter::Meter;
use spattn_eval::calibration::calibrate::{CalibrationOrder, CalibrationOutcome, CalibrationPlan, Made, Text, import};
use spattn_eval::calibration::checkpoints::Checkpoints;
use spattn_eval::run::estimate::reading_seconds;
use spattn_model::calibration::file_name;
use spattn_model::device::Device;
use spattn_model::source::ModelSource;
use spattn_model::tokenizer::TokenizerOptions;
use spattn_model::{Model, OpenModel};
use spattn_tasks::{TaskOptions, resolve};

/// Calibrate a model for the methods that need it: read text, and write each method's artefact to a file.
///
/// `spattn eval` finds the files in `calibration/` in the model's folder, or by --calibration. They are valid only for the weights
/// that they were made from. Those of the built-in model are part of the program.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spattn calibrate --model ./Llama-3.2-1B-Instruct
  spattn calibrate loki --model Qwen/Qwen2.5-0.5B-Instruct --data pile-sample.txt --out qwen-calibration
  spattn calibrate hash_attention:bits=64,rate=0.001 --out signatures --resume
  spattn calibrate --out models/builtin/calibration      (the files that the program is built with)")]
pub struct CalibrateArgs {
    /// Methods to calibrate for, with settings of the calibration; all that need it if not given
    ///
    /// Example: spattn calibrate loki hash_attention:steps=8 (`spattn list methods NAME` has the settings)
    #[arg(value_name = "METHOD[:SETTING=VALUE,...]")]
    methods: Vec<String>,

    /// Method to calibrate for, named as in `eval`; may be repeated
    ///
    /// Example: --method loki --method hash_attention:steps=8
    #[arg(short = 'm', long = "method", value_name = "METHOD[:SETTING=VALUE,...]")]
    more_methods: Vec<String>,

    /// Model: builtin, a folder, a GGUF file, or a hub id
    ///
    /// Example: --model ./checkpoint
    #[arg(long, value_name = "builtin|DIR|HUB_ID[@REV]", default_value = "builtin")]
    model: String,

    /// Where the model reads the text: cpu, a GPU, or several GPUs that divide its layers (in builds with the feature `cuda`); training runs on
    /// the CPU
    ///
    /// Example: --device cuda
    #[arg(long, value_name = "cpu|cuda[:i,...]", default_value = "cpu")]
    device: String,

    /// Text file to read; may be repeated; generated text that suits the method if neither this nor --task is given
    ///
    /// Example: --data books.txt
    #[arg(long = "data", value_name = "FILE")]
    data: Vec<PathBuf>,

    /// Task whose prompts to read; they differ from all evaluated ones; may be repeated
    ///
    /// Example: --task ruler/niah_single_2 --task ruler/vt
    #[arg(short = 't', long = "task", value_name = "TASK")]
    tasks: Vec<String>,

    /// Tokens to read, over all blocks; 32768, or as many as the training needs, if not given
    ///
    /// Example: --tokens 131072
    #[arg(long, value_name = "N", value_parser = numbers::tokens, allow_negative_numbers = true)]
    tokens: Option<usize>,

    /// Largest block in tokens, a sequence that is read on its own; 4096 if not given
    ///
    /// Example: --length 2048
    #[arg(short = 'l', long, value_name = "N", value_parser = numbers::tokens, allow_negative_numbers = true)]
    length: Option<usize>,

    /// Seed of generated text, and of methods that use random numbers
    ///
    /// Example: --seed 7
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = numbers::seed, allow_negative_numbers = true)]
    seed: u64,

    /// Where to write; `calibration` in the model's folder if not given
    ///
    /// Example: --out calibration
    #[arg(short = 'o', long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Import nets that were trained elsewhere instead: a safetensors file, for hash_attention
    ///
    /// Example: spattn calibrate hash_attention --import nets.safetensors --model DIR (scripts/import_hash_attention.py makes the file)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["data", "tasks", "tokens", "length", "seed", "resume"])]
    import: Option<PathBuf>,

    /// Resume a calibration that was stopped, from the checkpoints in the output folder
    ///
    /// Example: spattn calibrate hash_attention --out nets --resume
    #[arg(long)]
    resume: bool,

    /// Print what would be calibrated, on what text, how long it takes and where it is written, and do nothing
    ///
    /// No weights are downloaded. It fails where the calibration would.
    ///
    /// Example: spattn calibrate --model ./Llama-3.2-1B-Instruct --dry-run
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    pub(super) threads: ThreadsFlag,

    #[command(flatten)]
    quiet: QuietFlag,
}

/// Reads the text and writes the files.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`]; files that cannot be read or written otherwise.
pub fn run_calibrate(args: CalibrateArgs) -> Result<Done> {
    let orders = CalibrationOrder::parse(&[&args.methods[..], &args.more_methods].concat())?;
    let (source, device) = (ModelSource::parse(&args.model)?, args.device.parse::<Device>()?.of_one_copy()?);
    let tasks = resolve(&args.tasks, &TaskOptions::default())?;
    if let Some(path) = &args.import {
        let model = OpenModel::open(&source, None, TokenizerOptions::default())?;
        return take_in(&orders, path, &model, args.out, args.dry_run);
    }
    let ready = Ready::open(&source, device, &args)?;
    let model = ready.opened();
    model.notes.iter().for_each(|n| eprintln!("note: {n}"));
    let out = folder(args.out, model)?;
    orders.iter().try_for_each(|order| check_own(&out, order.calibration.kind))?;
    let mut given = args.data.iter().map(|path| Text::file(path, model)).collect::<Result<Vec<_>>>()?;
    given.extend(tasks.into_iter().map(Text::Task));
    let groups: Vec<&[CalibrationOrder]> = CalibrationOrder::by_reading(&orders).collect();
    let made = groups.iter().map(|group| Ok(vec![group[0].text()?.into()])).collect::<Result<Vec<Vec<Text>>>>()?;
    let mut plans = Vec::new();
    for (orders, made) in groups.into_iter().zip(&made) {
        let reading = CalibrationOrder::reading(orders);
        plans.push(CalibrationPlan {
            orders,
            texts: if given.is_empty() { made } else { &given },
            tokens: args.tokens.unwrap_or(reading.tokens),
            length: args.length.unwrap_or(reading.length),
            held_out: reading.held_out,
            seed: args.seed,
        });
    }
    plans.iter().try_for_each(|plan| plan.check(model))?;
    plans.iter().flat_map(CalibrationPlan::notes).for_each(|n| eprintln!("note: {n}"));
    match &ready {
        Ready::ToLearn(model) => {
            make_folder(&out)?;
            Learning { model, out: &out, plans: &plans, quiet: args.quiet.0.is_some() }.run(args.resume)
        }
        Ready::ToPlan(model) => Outline { model, out: &out, plans: &plans, device }.print(args.resume),
    }
}

/// The model: with weights if the calibration runs, without them if it is only planned.
enum Ready {
    ToLearn(Box<Model>),
    ToPlan(Box<OpenModel>),
}

impl Ready {
    fn open(source: &ModelSource, device: Device, args: &CalibrateArgs) -> Result<Self> {
        let options = TokenizerOptions::default();
        Ok(match (args.dry_run, args.resume) {
            (false, _) => Self::ToLearn(Box::new(OpenModel::open(source, None, options)?.load(device)?)),
            // A checkpoint belongs to certain weights and names their digest, so the digest of these is needed.
            (true, true) => Self::ToPlan(Box::new(OpenModel::open(source, None, options)?)),
            (true, false) => Self::ToPlan(Box::new(OpenModel::open_to_plan(source, None, options)?)),
        })
    }

    fn opened(&self) -> &OpenModel {
        match self {
            Self::ToLearn(model) => model,
            Self::ToPlan(model) => model,
        }
    }
}

/// The dry run (`--dry-run`): what would be calibrated.
struct Outline<'a> {
    model: &'a OpenModel,
    out: &'a Path,
    plans: &'a [CalibrationPlan<'a>],
    device: Device,
}

impl Outline<'_> {
    /// Runs the checks of a calibration that need no text, then prints the plans.
    ///
    /// # Errors
    /// What would stop the calibration, as far as this is known without reading text.
    fn print(&self, resume: bool) -> Result<Done> {
        self.device.check(self.model.dimensions.config().layers)?;
        check_writable(self.out)?;
        self.plans.iter().try_for_each(|plan| plan.check_first_blocks(self.model))?;
        if resume {
            self.check_resumable()?;
        }
        let (mut prompts, mut bytes) = (Vec::new(), 0);
        for plan in self.plans {
            let (blocks, tokens) = (plan.count(), plan.tokens);
            let held_out = match plan.held_out {
                0 => String::new(),
                n => format!(", and {n} held-out blocks that measure it"),
            };
            print_line(&format!("{}: {tokens} tokens in {blocks} blocks ({}){held_out}", names(plan), plan.data()))?;
            for order in plan.orders {
                print_line(&format!(
                    "  {} -> {}",
                    spec(order),
                    self.out.join(file_name(order.calibration.kind)).display()
                ))?;
            }
            prompts.extend(plan.lengths());
            bytes = bytes.max(plan.bytes(self.model));
        }
        let time = match self.device == Device::Cpu {
            true => format!("reading takes about {}", duration(reading_seconds(&self.model.dimensions, &prompts)?)),
            false => "how long a GPU takes is not known".to_owned(),
        };
        let trained = self.plans.iter().any(|plan| plan.held_out > 0);
        let more = if trained { "; training comes on top" } else { "" };
        let with = megabytes(bytes);
        print_line(&format!(
            "{} would be calibrated: {time}, with up to {with}{more}. Nothing was done.",
            self.model.id
        ))?;
        Ok(Done::Completed)
    }

    /// Checks that `--resume` can continue: from each plan that has a checkpoint. If none has, every plan needs one, and this fails.
    fn check_resumable(&self) -> Result<()> {
        let checkpoints = Checkpoints::new(self.out);
        let kept: Vec<&CalibrationPlan> = self.plans.iter().filter(|plan| plan.has_checkpoint(&checkpoints)).collect();
        let resumed = if kept.is_empty() { self.plans.iter().collect() } else { kept };
        resumed.iter().try_for_each(|plan| plan.check_resumable(&checkpoints, self.model))
    }
}

/// The calibrations to learn, grouped by the text that they read.
struct Learning<'a> {
    model: &'a Model,
    out: &'a Path,
    plans: &'a [CalibrationPlan<'a>],
    quiet: bool,
}

impl Learning<'_> {
    /// Learns one plan after another. All checkpoints are kept until the last plan is done, so that the command can resume at any of them.
    fn run(&self, resume: bool) -> Result<Done> {
        let stop = Arc::new(AtomicBool::new(false));
        interrupt::stop_within_grace(&stop, || "nothing is kept".to_owned())?;
        let first = Checkpoints::new(self.out);
        let is_any_kept = self.plans.iter().any(|plan| plan.has_checkpoint(&first));
        let mut meter = Meter::new(self.quiet, "reading the first block");
        let all: u64 = self.plans.iter().map(|plan| plan.work(None, self.model)).fold(0, u64::saturating_add);
        let (mut before, mut found) = (0, 0);
        for (number, plan) in self.plans.iter().enumerate() {
            let checkpoints = Checkpoints {
                // A plan interrupted before its first checkpoint starts from the beginning.
                resume: resume && (plan.has_checkpoint(&first) || !is_any_kept),
                at_end: number + 1 < self.plans.len(),
                kept: Arc::default(),
                ..first.clone()
            };
            let kept =
                Kept { plan: names(plan), kept: checkpoints.kept.clone(), blocks: plan.count(), is_first: number == 0 };
            interrupt::say_instead(move || kept.line());
            let mut is_begun = false;
            let outcome = plan.run(self.model, Some(&checkpoints), |done, total| {
                if !std::mem::replace(&mut is_begun, true) {
                    // Do not count blocks that the checkpoint covers as work of this run.
                    found += plan.work(Some(done.saturating_sub(1)), self.model);
                }
                let worked = before + plan.work(Some(done), self.model);
                meter.at(worked, all, found, || format!("{}: {done}/{total} blocks", names(plan)));
                if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            let Some(outcome) = outcome else {
                meter.end();
                return Ok(interrupt::answer());
            };
            before += plan.work(None, self.model);
            meter.aside(|| report(&outcome, self.model, self.out))?;
        }
        meter.end();
        for order in self.plans.iter().flat_map(|plan| plan.orders) {
            // The checkpoint may never have been written.
            let _ = std::fs::remove_file(first.file(order.calibration.kind));
        }
        Ok(Done::Completed)
    }
}

/// The calibrations of a plan.
fn names(plan: &CalibrationPlan<'_>) -> String {
    plan.orders.iter().map(|order| order.calibration.kind).collect::<Vec<_>>().join(", ")
}

/// What is kept if a calibration is interrupted.
struct Kept {
    plan: String,
    /// Blocks in the last checkpoint.
    kept: Arc<AtomicUsize>,
    blocks: usize,
    /// Whether no plan was completed before this one.
    is_first: bool,
}

impl Kept {
    fn line(&self) -> String {
        let kept = self.kept.load(Ordering::Relaxed);
        let Self { plan, blocks, is_first, .. } = self;
        match (kept, is_first) {
            (0, true) => format!("nothing is kept, because no block of {plan} was read to its end"),
            (0, false) => {
                format!("what was calibrated before {plan} is kept; go on with the same command and --resume")
            }
            _ => format!("{kept} of {blocks} blocks of {plan} are kept; go on with the same command and --resume"),
        }
    }
}

/// Writes the files and says what they hold.
fn report(outcome: &CalibrationOutcome, model: &Model, out: &Path) -> Result<()> {
    let CalibrationOutcome { made, blocks, tokens, data, took } = outcome;
    let took = took.as_secs_f64();
    let blocks = if *blocks == 1 { "1 block".to_owned() } else { format!("{blocks} blocks") };
    print_line(&format!("{}: {tokens} tokens in {blocks} ({data}), {took:.1} s", model.id))?;
    made.iter().try_for_each(|made| write(made, out))
}

/// Writes one kind of artefact and prints what it holds.
fn write(Made { kind, bytes, notes, held_out }: &Made, out: &Path) -> Result<()> {
    let path = out.join(file_name(kind));
    write_whole(&path, bytes)?;
    print_line(&format!("\n{kind}: {} ({:.0} KB)", path.display(), bytes.len() as f64 / 1e3))?;
    notes.iter().try_for_each(|note| print_line(&format!("  {note}")))?;
    if let Some(text) = held_out {
        let path = out.join(held_out_name(kind));
        write_whole(&path, text.as_bytes())?;
        print_line(&format!("  all of it: {}", path.display()))?;
    }
    Ok(())
}

/// Imports a calibration that was trained elsewhere.
fn take_in(
    orders: &[CalibrationOrder],
    path: &Path,
    model: &OpenModel,
    out: Option<PathBuf>,
    is_dry: bool,
) -> Result<Done> {
    let [order] = orders else {
        return Err(UsageError::new("--import is for one method")
            .hint("name it: spattn calibrate hash_attention --import nets.safetensors")
            .into());
    };
    let out = folder(out, model)?;
    check_own(&out, order.calibration.kind)?;
    let made = import(order, path, model)?;
    if is_dry {
        check_writable(&out)?;
        let file = out.join(file_name(made.kind));
        print_line(&format!(
            "{} would be imported for {}: {} -> {}",
            made.kind,
            model.id,
            path.display(),
            file.display()
        ))?;
        return Ok(Done::Completed);
    }
    make_folder(&out)?;
    write(&made, &out)?;
    Ok(Done::Completed)
}

/// The folder to write to.
fn folder(out: Option<PathBuf>, model: &OpenModel) -> Result<PathBuf, UsageError> {
    out.or_else(|| model.writable_calibration.clone()).ok_or_else(|| {
        UsageError::new(format!("{} has no folder to write to", model.id))
            .hint("give one with --out DIR; `spattn eval --calibration DIR` takes it")
    })
}

/// The start of a table of measurements on held-out text.
const HELD_OUT: &str = "nets,bits,layer,";

fn held_out_name(kind: &str) -> String {
    format!("{kind}.held_out.csv")
}

/// Checks that no file of another program would be replaced.
///
/// # Errors
/// A [`UsageError`] that names such a file.
fn check_own(out: &Path, kind: &str) -> Result<(), UsageError> {
    let is_table = |bytes: &[u8]| bytes.starts_with(HELD_OUT.as_bytes());
    let table = held_out_name(kind);
    for name in [file_name(kind), format!("{kind}.checkpoint"), table.clone()] {
        let is_own = |bytes: &[u8]| if name == table { is_table(bytes) } else { artefact::is_own(bytes) };
        let path = out.join(&name);
        let hint = "it would be replaced: move it away, or choose another --out folder";
        let refused = |why: String| UsageError::new(format!("{} {why}", path.display())).hint(hint);
        let mut beginning = Vec::new();
        match given::plain(&path).and_then(|file| file.take(4096).read_to_end(&mut beginning)) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(e) => return Err(refused(format!("exists, but cannot be read: {e}"))),
            Ok(_) if is_own(&beginning) => {}
            Ok(_) => return Err(refused("exists, and spattn did not write it".to_owned())),
        }
    }
    Ok(())
}

/// Checks that a folder can be made and written, without making it.
fn check_writable(out: &Path) -> Result<(), UsageError> {
    disk::check_writable(out).map_err(|e| unwritable(out, &e))
}

fn make_folder(out: &Path) -> Result<(), UsageError> {
    check_writable(out)?;
    std::fs::create_dir_all(out).map_err(|e| unwritable(out, &e))
}

fn unwritable(out: &Path, why: &std::io::Error) -> UsageError {
    UsageError::new(format!("cannot write to the folder {}: {why}", out.display())).hint("choose another --out folder")
}

/// A calibration order in the user's notation.
fn spec(order: &CalibrationOrder) -> String {
    let settings: Vec<String> = order.spec.params.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let colon = if settings.is_empty() { "" } else { ":" };
    format!("{}{colon}{}", order.spec.name, settings.join(","))
}

//! `spattn eval`: run methods on tasks, write records, print the table.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{Advised, Done};
use crate::error::UsageError;
use crate::eval::calibration::supply;
use crate::eval::config::{RunConfig, Settings};
use crate::eval::manifest::{example_bytes, manifest};
use crate::eval::run::{End, Progress, Runner, Shard};
use crate::eval::sharing::Sharing;
use crate::eval::store::{OpenMode, Store, check_free, load_records};
use crate::model::Model;
use crate::model::data::{DataFolder, DataSource};
use crate::model::source::ModelSource;
use crate::model::tokenizer::TokenizerOptions;
use crate::report::{Report, json, merge, table};
use crate::tasks::{Positions, TaskOptions, assets, resolve};

/// Evaluate methods on tasks and print one table: score, interval, density and cost.
///
/// Every example is prefilled once; all methods and budgets run from that one prefix. Records are appended to the
/// output folder as they finish. Without arguments this runs `configs/quick.toml` on the built-in model, in about a
/// minute on two cores.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spattn eval
  spattn eval --task ruler --length 4096 --samples 25 -m 'topk:k={16,64,256}' -m quest
  spattn eval --model Qwen/Qwen2.5-0.5B-Instruct --task jsonl:niah.jsonl -m topk:ratio=0.02 --out results/qwen")]
pub struct EvalArgs {
    /// Run matrix to start from: a TOML file, or a shipped config; flags override it
    ///
    /// Example: --config my-matrix.toml
    #[arg(long, value_name = "FILE")]
    config: Option<String>,

    /// Model: builtin, a folder, or a hub id
    ///
    /// Example: --model meta-llama/Llama-3.2-1B-Instruct@main, --model ./checkpoint
    #[arg(long, value_name = "builtin|DIR|HUB_ID[@REV]")]
    model: Option<String>,

    /// Task or group; may be repeated
    ///
    /// Example: --task ruler/vt --task jsonl:niah.jsonl, --task ruler
    #[arg(short = 't', long = "task", value_name = "TASK")]
    tasks: Vec<String>,

    /// Length in tokens, prompt and answer together; may be repeated. LongBench's prompts are cut to it instead
    /// (before the chat template; without it, to the model's context)
    ///
    /// Example: --length 4096 --length 16384
    #[arg(short = 'l', long = "length", value_name = "N")]
    lengths: Vec<usize>,

    /// Method with parameters, grids {a,b} and ranges a..b/step; may be repeated
    ///
    /// Example: -m 'topk:k={16,64}' -m quest:page=16,ratio=0.05. `full` always runs as the reference.
    #[arg(short = 'm', long = "method", value_name = "SPEC")]
    methods: Vec<String>,

    /// Leave out `full`, the dense reference
    ///
    /// Example: -m topk:k=64 --no-full
    #[arg(long)]
    no_full: bool,

    /// Examples for each task and length, and for each depth of tasks that have depths
    ///
    /// Example: --samples 100
    #[arg(short = 'n', long, value_name = "N")]
    samples: Option<usize>,

    /// Seed of the examples and of methods that draw
    ///
    /// Example: --seed 7
    #[arg(long, value_name = "S")]
    seed: Option<u64>,

    /// Where sparse attention starts: decode (generated tokens only), question, last:N prompt tokens, or prefill
    ///
    /// Example: --sparse-from last:32
    #[arg(long, value_name = "WHERE")]
    sparse_from: Option<String>,

    /// First tokens that every method attends
    ///
    /// Example: --sink 4
    #[arg(long, value_name = "N")]
    sink: Option<usize>,

    /// Last tokens of the prefix that every method attends
    ///
    /// Example: --local 64
    #[arg(long, value_name = "N")]
    local: Option<usize>,

    /// Layers that attend everything: none, layers, spans, or shares of the depth
    ///
    /// Example: --dense-layers 0,1 or --dense-layers 0+50%
    #[arg(long, value_name = "LIST")]
    dense_layers: Option<String>,

    /// Compare every step with exact attention: output error and top-k recall, by layer
    ///
    /// Example: --fidelity (slower: exact attention is computed beside each method)
    #[arg(long)]
    fidelity: bool,

    /// Where to compute: cpu
    ///
    /// Example: --device cpu
    #[arg(long, value_name = "cpu|cuda[:i]", default_value = "cpu", hide_default_value = true)]
    device: String,

    /// Storage of weights, keys and values: f32, bf16 or f16 (arithmetic is f32); the checkpoint's own if not given
    ///
    /// Example: --dtype f32
    #[arg(long, value_name = "TYPE")]
    dtype: Option<String>,

    /// Threads to use; all cores if not given
    ///
    /// Example: --threads 4
    #[arg(long, value_name = "N")]
    threads: Option<usize>,

    /// Folder for records, tables and plots; results/TIME if not given
    ///
    /// Example: --out results/qwen-4k
    #[arg(short = 'o', long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Go on with the run in --out: records that are there are kept
    ///
    /// Example: --out results/qwen-4k --resume
    #[arg(long, conflicts_with = "overwrite")]
    resume: bool,

    /// Throw away the records in --out and start anew
    ///
    /// Example: --out results/qwen-4k --overwrite
    #[arg(long)]
    overwrite: bool,

    /// Run one share of the examples: I of N, I from 1
    ///
    /// Example: --shard 1/4
    #[arg(long, value_name = "I/N")]
    shard: Option<String>,

    /// Folder, or data set on the hub, with essays, word lists, SQuAD and HotpotQA for RULER, LongBench's files
    ///
    /// Example: --data data (holding PaulGrahamEssays.json, squad/dev-v2.0.json, longbench/hotpotqa.jsonl ...),
    /// --data hub:zai-org/LongBench
    #[arg(long, value_name = "DIR|hub:HUB_ID[@REV]")]
    data: Option<PathBuf>,

    /// Folder with what `spattn calibrate` wrote; `calibration` in the model's folder if not given
    ///
    /// Example: --calibration qwen-calibration
    #[arg(long, value_name = "DIR")]
    calibration: Option<PathBuf>,

    /// Placement in generated examples: varied, or published (RULER's fixed shuffles)
    ///
    /// Example: --positions published
    #[arg(long, value_name = "HOW")]
    positions: Option<String>,

    /// Give the model plain text even if it has a chat template
    ///
    /// Example: --model meta-llama/Llama-3.2-1B --no-chat
    #[arg(long)]
    no_chat: bool,

    /// Allow lengths beyond the model's context
    ///
    /// Example: --length 65536 --allow-extrapolation
    #[arg(long)]
    allow_extrapolation: bool,

    /// Leave out malformed rows of files instead of stopping; their number and lines are noted
    ///
    /// Example: --task jsonl:rows.jsonl --skip-bad
    #[arg(long)]
    skip_bad: bool,

    /// Show no progress
    ///
    /// Example: --quiet
    #[arg(short, long)]
    quiet: bool,

    /// Print the summary as JSON instead of a table
    ///
    /// Example: spattn eval --json | jq '.[].score'
    #[arg(long)]
    json: bool,
}

impl EvalArgs {
    /// The settings that flags give.
    fn settings(&self) -> Result<Settings, UsageError> {
        let flag = |set: bool| set.then_some(true);
        let list = |items: &Vec<String>| (!items.is_empty()).then(|| items.clone());
        Ok(Settings {
            about: None,
            model: self.model.clone(),
            tasks: list(&self.tasks),
            lengths: (!self.lengths.is_empty()).then(|| self.lengths.clone()),
            methods: list(&self.methods),
            samples: self.samples,
            seed: self.seed,
            sparse_from: self.sparse_from.clone(),
            sink: self.sink,
            local: self.local,
            dense_layers: self.dense_layers.clone(),
            fidelity: flag(self.fidelity),
            dtype: self.dtype.clone(),
            data: self.data.clone(),
            calibration: self.calibration.clone(),
            positions: self.positions.as_deref().map(str::parse::<Positions>).transpose()?,
            chat: self.no_chat.then_some(false),
            no_full: flag(self.no_full),
            allow_extrapolation: flag(self.allow_extrapolation),
            skip_bad: flag(self.skip_bad),
        })
    }

    fn run_config(&self) -> Result<RunConfig, UsageError> {
        let file = self.config.as_deref().map(Settings::load).transpose()?.unwrap_or_default();
        RunConfig::resolve(self.settings()?.over(file))
    }

    /// Where to write, and whether what is there may be kept or thrown away.
    fn output(&self) -> Result<(PathBuf, OpenMode), UsageError> {
        let mode = match (self.resume, self.overwrite) {
            (true, _) => OpenMode::Resume,
            (_, true) => OpenMode::Overwrite,
            _ => OpenMode::Fresh,
        };
        match &self.out {
            Some(dir) => Ok((dir.clone(), mode)),
            None if mode == OpenMode::Fresh => Ok((default_folder(), mode)),
            None => Err(UsageError::new("--resume and --overwrite need to know the run's folder")
                .hint("give it with --out DIR")),
        }
    }
}

/// `results/` and the time, as `eval-2025-01-31T12-00-00`.
fn default_folder() -> PathBuf {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    Path::new("results").join(format!("eval-{}", now.trim_end_matches('Z').replace(':', "-")))
}

/// Runs the evaluation and prints its table.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`]; whatever keeps the run from going on otherwise.
pub fn run(args: EvalArgs) -> Result<Done> {
    let mut config = args.run_config()?;
    let shard = args.shard.as_deref().map_or(Ok(Shard::WHOLE), Shard::parse)?;
    let (out, mode) = args.output()?;
    check_free(&out, mode)?;
    check_device(&args.device)?;
    set_threads(args.threads)?;
    let data = config.data.as_deref().map(find_data).transpose()?;
    let options = TaskOptions {
        data: data.as_ref().map(|d| d.folder.clone()),
        positions: config.positions,
        skip_bad: config.skip_bad,
    };
    let tasks = resolve(&config.tasks, &options)?;
    tasks.iter().flat_map(|t| t.notes()).for_each(|n| eprintln!("note: {n}"));
    let model = load_model(&config, args.quiet)?;
    supply(&mut config.methods, &model, config.calibration.as_deref())?;
    let data = data.as_ref().map(|d| d.id.as_str());
    let runner = Runner { model: &model, config: &config, tasks: &tasks, data, shard };
    runner.check()?;
    let command: Vec<String> = std::env::args().collect();
    let mut store = Store::open(&out, mode, &manifest(&config, &model, data, &command))?;
    store.notices().iter().for_each(|n| eprintln!("note: {n}"));
    let stop = stop_on_interrupt()?;
    let bar = progress_bar(args.quiet);
    let start = Instant::now();
    let end = runner.run(&mut store, &stop, |p| show(&bar, &p));
    bar.finish_and_clear();
    drop(store);
    if end.as_ref().is_ok_and(|end| *end == End::Interrupted) {
        eprintln!("interrupted: {}", kept(&out).unwrap_or_else(|| "nothing was recorded yet".to_owned()));
        return Ok(Done::Interrupted);
    }
    match (end.and_then(|_| finish(&out, args.json, start.elapsed())), kept(&out)) {
        (Err(error), Some(advice)) => Err(Advised { error, advice }.into()),
        (ended, _) => ended.map(|()| Done::Completed),
    }
}

/// What is there of a run that did not end, and how to go on.
fn kept(out: &Path) -> Option<String> {
    let count = load_records(out).map_or(0, |l| l.records.len());
    let records = if count == 1 { "1 record is".to_owned() } else { format!("{count} records are") };
    (count > 0).then(|| format!("{records} kept; go on with the same command and --out {} --resume", out.display()))
}

fn check_device(device: &str) -> Result<(), UsageError> {
    match device {
        "cpu" => Ok(()),
        d if d == "cuda" || d.starts_with("cuda:") => {
            Err(UsageError::new("this build computes on the CPU only").hint("use --device cpu"))
        }
        other => Err(UsageError::unknown("device", other, ["cpu", "cuda"])),
    }
}

/// Limits the threads of the whole program.
pub(super) fn set_threads(threads: Option<usize>) -> Result<()> {
    match threads {
        None => Ok(()),
        Some(0) => Err(UsageError::new("0 threads were asked for").hint("--threads takes a number from 1").into()),
        Some(n) => rayon::ThreadPoolBuilder::new().num_threads(n).build_global().context("cannot start threads"),
    }
}

/// Where the data are, and what to record of them.
pub(super) fn find_data(spec: &Path) -> Result<DataFolder> {
    let data = DataSource::parse(spec)?.resolve(&assets::patterns())?;
    data.notes.iter().for_each(|n| eprintln!("note: {n}"));
    Ok(data)
}

fn load_model(config: &RunConfig, quiet: bool) -> Result<Model> {
    let source = ModelSource::parse(&config.model)?;
    let options = TokenizerOptions { chat: config.chat, ..TokenizerOptions::default() };
    let model = Model::load(&source, config.dtype, options)?;
    model.notes.iter().for_each(|n| eprintln!("note: {n}"));
    let longest = config.lengths.iter().copied().max().unwrap_or(0);
    if !quiet && std::io::stderr().is_terminal() {
        eprintln!(
            "{}: {} of weights, up to {} more for an example of {longest} tokens",
            model.id,
            megabytes(model.decoder.weight_bytes()),
            megabytes(example_bytes(config, &model)),
        );
    }
    Ok(model)
}

fn megabytes(bytes: usize) -> String {
    format!("{:.0} MB", bytes as f64 / 1e6)
}

/// A flag that Ctrl-C raises; a second Ctrl-C ends the program at once (records are whole lines).
pub(super) fn stop_on_interrupt() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let raised = stop.clone();
    ctrlc::set_handler(move || {
        if raised.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(super::INTERRUPTED));
        }
    })
    .context("cannot watch for Ctrl-C")?;
    Ok(stop)
}

fn progress_bar(quiet: bool) -> ProgressBar {
    let target = match quiet {
        true => ProgressDrawTarget::hidden(),
        false => ProgressDrawTarget::stderr(),
    };
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} examples, {eta} left  {msg}");
    let bar = ProgressBar::with_draw_target(None, target);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

fn show(bar: &ProgressBar, progress: &Progress<'_>) {
    bar.set_length(progress.total as u64);
    bar.set_position(progress.done as u64);
    let length = if progress.length > 0 { format!(" {}", progress.length) } else { String::new() };
    bar.set_message(format!("{}{length}", progress.task));
}

/// Draws everything from the stored records, and prints the table or JSON.
fn finish(out: &Path, as_json: bool, took: Duration) -> Result<()> {
    let merged = merge::read(&[out.to_owned()])?;
    let report = Report::of(&merged);
    let files = report.write_all(out)?;
    let mut stdout = std::io::stdout().lock();
    if as_json {
        writeln!(stdout, "{}", json::render(&report.rows)?)?;
        report.warnings.iter().for_each(|w| eprintln!("warning: {w}"));
        return Ok(());
    }
    writeln!(stdout, "{}", table::render(&report.rows))?;
    for warning in &report.warnings {
        writeln!(stdout, "warning: {warning}")?;
    }
    let sharing = Sharing::of(&merged.records);
    if sharing.sharing > 0 {
        writeln!(stdout, "\n{sharing}")?;
    }
    writeln!(stdout, "\n{} records in {:.1} s. Files:", merged.records.len(), took.as_secs_f64())?;
    for name in ["samples.jsonl", "manifest.json"] {
        writeln!(stdout, "  {}", out.join(name).display())?;
    }
    for file in files {
        writeln!(stdout, "  {}", file.display())?;
    }
    Ok(())
}

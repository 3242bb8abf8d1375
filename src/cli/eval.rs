//! `spattn eval`: run methods on tasks, write records, print the table.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Result;
use clap::Args;

use super::exit::Done;
use super::matrix::{OnFailure, RunRequest};
use super::numbers;
use crate::eval::config::run_config::RunConfig;
use crate::eval::config::settings::{InvalidValue, OneOrMany, Settings};
use crate::eval::plan::contexts::Shard;
use crate::eval::records::store::OpenMode;
use crate::eval::records::timing::Latency;
use spattn_base::clock;
use spattn_base::error::UsageError;
use spattn_model::source::RANDOM;
use spattn_tasks::Positions;

/// Evaluate methods on tasks and print one table: score, interval, density and cost.
///
/// Every example is prefilled once; all methods and budgets run from that one prefix. Records are appended to the
/// output folder as they finish. Without arguments this runs `configs/quick.toml` on the built-in model, in half a
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

    #[command(flatten)]
    pub(super) run: RunArgs,
}

/// What `eval` and `sweep` take: settings that override a config's, and how to run.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Model: builtin, a folder, or a hub id; a sweep takes several
    ///
    /// Example: --model meta-llama/Llama-3.2-1B@main, --model ./checkpoint
    #[arg(long = "model", value_name = "builtin|DIR|HUB_ID[@REV]")]
    models: Vec<String>,

    /// A model of some shape with random weights, as --model random:SHAPE: for latency and memory, its scores mean nothing
    ///
    /// Example: --random-weights llama-3.1-8b, --random-weights my/config.json
    #[arg(long, value_name = "SHAPE|CONFIG", conflicts_with = "models")]
    random_weights: Option<String>,

    /// Tasks or groups; may be repeated
    ///
    /// Example: --task ruler/vt,ruler/cwe --task jsonl:niah.jsonl, --task ruler
    #[arg(short = 't', long = "task", value_name = "TASK,...")]
    tasks: Vec<String>,

    /// Lengths in tokens, prompt and answer together; may be repeated. LongBench's prompts are cut to it instead
    /// (before the chat template; without it, to the model's context)
    ///
    /// Example: --length 4096,16K (of 1,024 tokens)
    #[arg(short = 'l', long = "length", value_name = "N,...", value_delimiter = ',', value_parser = numbers::tokens, allow_negative_numbers = true)]
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
    #[arg(short = 'n', long, value_name = "N", value_parser = numbers::samples, allow_negative_numbers = true)]
    samples: Option<usize>,

    /// Seed of the examples and of methods that draw; a sweep takes several
    ///
    /// Example: --seed 7
    #[arg(long = "seed", value_name = "S,...", value_delimiter = ',', value_parser = numbers::seed, allow_negative_numbers = true)]
    seeds: Vec<u64>,

    /// Where sparse attention starts: decode (generated tokens only), question, last:N prompt tokens, or prefill; a
    /// sweep takes several
    ///
    /// Example: --sparse-from last:32
    #[arg(long, value_name = "WHERE,...", value_delimiter = ',')]
    sparse_from: Vec<String>,

    /// First tokens that every method attends; a sweep takes several
    ///
    /// Example: --sink 4
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = numbers::static_tokens, allow_negative_numbers = true)]
    sink: Vec<usize>,

    /// Last tokens of the prefix that every method attends; a sweep takes several
    ///
    /// Example: --local 64
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = numbers::static_tokens, allow_negative_numbers = true)]
    local: Vec<usize>,

    /// Layers that attend everything: none, layers, spans, or shares of the depth; a sweep takes several
    ///
    /// Example: --dense-layers 0,1 or --dense-layers 0+50%
    #[arg(long, value_name = "LIST")]
    dense_layers: Vec<String>,

    /// What becomes of the tokens after the prefix: exact, window:N or indexed; a sweep takes several
    ///
    /// exact: all are attended, beside the method's budget. window:N: only the last N tokens are; what leaves the window is
    /// picked from like the rest. indexed: as window with the method's own --local. A method that keeps or drops generated
    /// tokens by a rule of its own goes on to do so (`spattn list methods`).
    ///
    /// Example: --tail indexed
    #[arg(long, value_name = "RULE,...", value_delimiter = ',')]
    tail: Vec<String>,

    /// Compare every step with exact attention: output error and top-k recall, by layer
    ///
    /// Example: --fidelity (slower: exact attention is computed beside each method)
    #[arg(long)]
    fidelity: bool,

    /// What ms/token is: shared, a method's share of steps that all take together, or solo, its steps with all threads to
    /// itself
    ///
    /// solo: after each example its methods take up to 16 of their steps again, one method at a time, five times in turns.
    /// That is the latency a deployment would see. Predictions, scores and costs are the same either way.
    ///
    /// Example: --latency solo
    #[arg(long, value_name = "HOW")]
    latency: Option<String>,

    /// Where to compute: cpu, or a GPU (in builds with the feature `cuda`)
    ///
    /// Example: --device cpu, --device cuda:1
    #[arg(long, value_name = "cpu|cuda[:i]")]
    device: Option<String>,

    /// Storage of weights, keys and values: f32, bf16 or f16 (arithmetic is f32); the checkpoint's own if not given
    ///
    /// Example: --dtype f32
    #[arg(long, value_name = "TYPE")]
    dtype: Option<String>,

    /// What a CPU rounds factors of matrix products to, of weights and of prompts' attention: f32 (nothing) or bf16, which is faster
    /// where the CPU has AMX or AVX512_BF16; f32 if not given
    ///
    /// Example: --matmul-precision bf16
    #[arg(long, value_name = "TYPE")]
    matmul_precision: Option<String>,

    /// Threads to use; all cores if not given
    ///
    /// Example: --threads 4
    #[arg(long, value_name = "N", value_parser = numbers::threads, allow_negative_numbers = true)]
    pub(super) threads: Option<usize>,

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

    /// Run one share of the examples, about as much work as each other: I of N, I from 1
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

    /// What the model's chat template is told before the user's turn: a text, or @FILE for that of a file
    ///
    /// Tasks whose prompts are published as plain text go without it, as without the chat template.
    ///
    /// Example: --system-prompt 'Answer in one word.', --system-prompt @system.txt
    #[arg(long, value_name = "TEXT|@FILE")]
    system_prompt: Option<String>,

    /// Allow lengths beyond the model's context
    ///
    /// Example: --length 65536 --allow-extrapolation
    #[arg(long)]
    allow_extrapolation: bool,

    /// Leave out rows of files that are malformed, or that the model cannot read, instead of stopping; their number and
    /// lines are noted
    ///
    /// Example: --task jsonl:rows.jsonl --skip-bad
    #[arg(long)]
    skip_bad: bool,

    /// Keep what the model reads of each example, compressed, in the folder's prompts/; the page shows it on demand
    ///
    /// Example: --out run --keep-prompts, then zcat run/prompts/*
    #[arg(long)]
    keep_prompts: bool,

    /// Leave the user out of all that is written: paths are names, and there is no command line, host, job or system prompt
    ///
    /// docs/privacy.md lists what is written with it and without. A run goes on with it, or without it, as it began.
    ///
    /// Example: spattn eval --model ~/models/qwen --anonymous --out run
    #[arg(long)]
    anonymous: bool,

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

impl RunArgs {
    /// Options of a run that are not settings.
    pub(super) fn how(&self) -> RunFlags<'_> {
        let Self { threads, out, resume, overwrite, shard, json, .. } = self;
        RunFlags {
            threads: *threads,
            out: out.as_deref(),
            is_resumed: *resume,
            overwrites: *overwrite,
            shard: shard.as_deref(),
            json: *json,
        }
    }

    /// The settings that the flags give.
    fn settings(&self) -> Result<Settings, UsageError> {
        let flag = |set: bool| set.then_some(true);
        Ok(Settings {
            about: None,
            model: match &self.random_weights {
                Some(shape) => Some(OneOrMany(vec![format!("{RANDOM}{shape}")])),
                None => several(&self.models),
            },
            tasks: list(&self.tasks),
            lengths: list(&self.lengths),
            methods: list(&self.methods),
            samples: self.samples,
            seed: several(&self.seeds),
            sparse_from: several(&self.sparse_from),
            sink: several(&self.sink),
            local: several(&self.local),
            dense_layers: several(&self.dense_layers),
            tail: several(&self.tail),
            fidelity: flag(self.fidelity),
            latency: self.latency.as_deref().map(str::parse::<Latency>).transpose()?,
            dtype: self.dtype.clone(),
            matmul_precision: self.matmul_precision.clone(),
            device: self.device.clone(),
            data: self.data.clone(),
            calibration: self.calibration.clone(),
            positions: self.positions.as_deref().map(str::parse::<Positions>).transpose()?,
            chat: self.no_chat.then_some(false),
            system_prompt: self.system_prompt.clone(),
            no_full: flag(self.no_full),
            allow_extrapolation: flag(self.allow_extrapolation),
            skip_bad: flag(self.skip_bad),
            keep_prompts: flag(self.keep_prompts),
            anonymous: flag(self.anonymous),
        })
    }

    /// The flags' settings, completed by a config.
    pub(super) fn over(&self, config: Option<&str>) -> Result<Settings, UsageError> {
        let settings = self.settings()?;
        settings.check_values().map_err(with_flag_name)?;
        Ok(settings.over(config.map(Settings::load).transpose()?.unwrap_or_default()))
    }

    /// The run that these arguments request. `command` is the start of the folder's name if none is given.
    pub(super) fn run(
        self,
        command: &str,
        configs: Vec<RunConfig>,
        on_failure: OnFailure,
    ) -> Result<RunRequest, UsageError> {
        let shard = self.shard.as_deref().map_or(Ok(Shard::WHOLE), Shard::parse)?;
        let (out, mode) = self.output(command)?;
        let is_unnamed = self.out.is_none();
        let Self { quiet, json, .. } = self;
        Ok(RunRequest { configs, shard, out, is_unnamed, mode, quiet, json, on_failure, is_elsewhere: false })
    }

    /// The folder to write to, and whether its contents are kept or deleted.
    fn output(&self, command: &str) -> Result<(PathBuf, OpenMode), UsageError> {
        let mode = match (self.resume, self.overwrite) {
            (true, _) => OpenMode::Resume,
            (_, true) => OpenMode::Overwrite,
            _ => OpenMode::Fresh,
        };
        match &self.out {
            Some(dir) => Ok((dir.clone(), mode)),
            None if mode == OpenMode::Fresh => Ok((default_folder(command), mode)),
            None => Err(UsageError::new("--resume and --overwrite need to know the run's folder")
                .hint("give it with --out DIR")),
        }
    }
}

/// Flags that are not settings.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunFlags<'a> {
    pub threads: Option<usize>,
    pub out: Option<&'a Path>,
    pub is_resumed: bool,
    pub overwrites: bool,
    pub shard: Option<&'a str>,
    pub json: bool,
}

/// The error for a wrong value of a flag. Errors about method specs name the spec themselves.
pub(super) fn with_flag_name(InvalidValue { key, error, .. }: InvalidValue) -> UsageError {
    let flag = match key {
        "methods" => return error,
        "lengths" => "--length".to_owned(),
        key => format!("--{}", key.replace('_', "-")),
    };
    UsageError { what: format!("{flag}: {}", error.what), ..error }
}

fn list<T: Clone>(items: &[T]) -> Option<Vec<T>> {
    (!items.is_empty()).then(|| items.to_vec())
}

fn several<T: Clone>(items: &[T]) -> Option<OneOrMany<T>> {
    list(items).map(OneOrMany)
}

/// `results/` and the time, such as `eval-2025-01-31T12-00-00`.
fn default_folder(command: &str) -> PathBuf {
    let now = clock::date(SystemTime::now());
    Path::new("results").join(format!("{command}-{}", now.trim_end_matches('Z').replace(':', "-")))
}

/// Runs the evaluation and prints its table.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`]; anything else that prevents the run.
pub fn run(args: EvalArgs) -> Result<Done> {
    let config = RunConfig::resolve_single(args.run.over(args.config.as_deref())?)?;
    args.run.run("eval", vec![config], OnFailure::Stop)?.start()
}

//! `spattn tune`: the smallest budget of a method whose loss is within a limit.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::eval::of_flag;
use super::matrix::{Asks, OnFailure, Run};
use super::output::{print, print_line};
use super::{Done, listed, numbers, tune_shapes};
use crate::attention::{DenseLayers, Policy};
use crate::error::UsageError;
use crate::eval::config::{RunConfig, Settings, Several};
use crate::eval::contexts::Shard;
use crate::eval::record::Record;
use crate::eval::store::OpenMode;
use crate::report::tuning as drawing;
use crate::tasks::Task;
use crate::tasks::likelihood::Measure;
use crate::tune::grid::{Asked, DENSITY, ladders};
use crate::tune::{Batch, Goal, Tuning, fewest_samples};

/// Find the smallest budget of a method whose loss to `full` is within --delta points, and say how sure that is.
///
/// Candidates are values of one parameter (density, if none is named) on a logarithmic scale. They are run on the same
/// examples, from one prefix each; the search closes in on the boundary, and takes twice as many samples until one candidate
/// is certain to be within and the next lower one certain not to be. Bounds hold however often it looks, and for all
/// candidates of a method together. The folder is that of an ordinary run, which `spattn report` draws as any other.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spattn tune -m quest -t ruler/vt,ruler/niah_single_2 -l 4K --delta 5
  spattn tune -m magicpig -m hash_attention -t ruler -l 8K --range 0.02..0.3 --max-samples 200 --out tuned
  spattn tune -m topk --parameter k --range 4..1024 -t ruler/cwe -l 4K --delta 2 --confidence 0.9
  spattn tune -m 'magicpig:L=150' --parameter K --range 12..4 -t ruler/vt -l 4K
  spattn tune -m magicpig --target error=0.1 -t ruler/vt,ruler/cwe -l 4K")]
pub struct TuneArgs {
    /// Method to tune, with its other parameters; may be repeated, and each value of a grid is tuned by itself
    ///
    /// Example: -m 'quest:page={16,32}' -m hash_attention
    #[arg(short = 'm', long = "method", value_name = "SPEC", required = true)]
    pub(super) methods: Vec<String>,

    /// Find K and L of magicpig instead, for a density or for a relative error of the attention output
    ///
    /// The collision law predicts both for a grid of shapes from the angles between queries and keys of some prompts; the best
    /// are then checked with real tables on as many others.
    ///
    /// Example: -m magicpig --target density=0.05, --target error=0.1
    #[arg(long, value_name = "density=X|error=X", conflicts_with_all = ["parameter", "range", "steps", "delta", "confidence", "max_samples", "resume", "sparse_from", "tail", "device", "calibration", "no_chat", "allow_extrapolation"])]
    pub(super) target: Option<String>,

    /// With --target: prompts of each task to predict from, and as many others to check on
    ///
    /// Example: --prompts 4
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = numbers::documents, allow_negative_numbers = true, requires = "target")]
    pub(super) prompts: usize,

    /// With --target: last tokens of each prompt whose queries are looked at
    ///
    /// Example: --queries 16
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = numbers::queries, allow_negative_numbers = true, requires = "target")]
    pub(super) queries: usize,

    /// With --target: samples that are drawn for each query and shape, and draws of hyperplanes that shapes are checked with
    ///
    /// Example: --draws 8
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = numbers::draws, allow_negative_numbers = true, requires = "target")]
    pub(super) draws: usize,

    /// What is tuned: a parameter of the methods whose values are numbers
    ///
    /// Example: --parameter k
    #[arg(short = 'p', long, value_name = "KEY", default_value = DENSITY)]
    parameter: String,

    /// Values from the smallest budget to the greatest; 0.01..0.5 for densities
    ///
    /// Example: --range 16..1024 (or 12..4, where less of the parameter is more)
    #[arg(long, value_name = "FROM..TO", allow_hyphen_values = true)]
    range: Option<String>,

    /// Candidates in that range
    ///
    /// Example: --steps 20
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = numbers::candidates, allow_negative_numbers = true)]
    steps: usize,

    /// Points of score that may be lost to `full`, mean over tasks
    ///
    /// Example: --delta 2.5
    #[arg(long, value_name = "POINTS", default_value_t = 1.0, value_parser = numbers::points, allow_negative_numbers = true)]
    delta: f64,

    /// Probability with which all verdicts on the candidates of a method are right
    ///
    /// Example: --confidence 0.9
    #[arg(long, value_name = "P", default_value_t = 0.95, value_parser = numbers::confidence, allow_negative_numbers = true)]
    confidence: f64,

    /// Samples of each task and length at most; it starts with 8
    ///
    /// Example: --max-samples 128
    #[arg(short = 'n', long, value_name = "N", default_value_t = 512, value_parser = numbers::samples, allow_negative_numbers = true)]
    max_samples: usize,

    /// Model: builtin, a folder, or a hub id
    ///
    /// Example: --model ./Llama-3.1-8B-Instruct
    #[arg(short = 'M', long, value_name = "builtin|DIR|HUB_ID[@REV]", default_value = "builtin")]
    pub(super) model: String,

    /// Tasks or groups, all of which weigh equally; may be repeated
    ///
    /// Example: --task ruler/vt,ruler/cwe
    #[arg(short = 't', long = "task", value_name = "TASK,...")]
    pub(super) tasks: Vec<String>,

    /// Lengths in tokens, prompt and answer together; may be repeated
    ///
    /// Example: --length 4K,8K
    #[arg(short = 'l', long = "length", value_name = "N,...", value_delimiter = ',', value_parser = numbers::tokens, allow_negative_numbers = true)]
    pub(super) lengths: Vec<usize>,

    /// Seed of the examples and of methods that draw
    ///
    /// Example: --seed 7
    #[arg(long, value_name = "S", value_parser = numbers::seed, allow_negative_numbers = true)]
    pub(super) seed: Option<u64>,

    /// Where sparse attention starts: decode, question, last:N or prefill
    ///
    /// Example: --sparse-from last:32
    #[arg(long, value_name = "WHERE")]
    sparse_from: Option<String>,

    /// First tokens that every method attends
    ///
    /// Example: --sink 4
    #[arg(long, value_name = "N", value_parser = numbers::static_tokens, allow_negative_numbers = true)]
    sink: Option<usize>,

    /// Last tokens of the prefix that every method attends
    ///
    /// Example: --local 64
    #[arg(long, value_name = "N", value_parser = numbers::static_tokens, allow_negative_numbers = true)]
    local: Option<usize>,

    /// Layers that attend everything: none, layers, spans, or shares of the depth
    ///
    /// Example: --dense-layers 0,1 or --dense-layers 0+50%
    #[arg(long, value_name = "LIST")]
    dense_layers: Option<String>,

    /// What becomes of the tokens after the prefix: exact, window:N or indexed
    ///
    /// Example: --tail indexed
    #[arg(long, value_name = "RULE")]
    tail: Option<String>,

    /// Where to compute: cpu, or a GPU (in builds with the feature `cuda`)
    ///
    /// Example: --device cuda:1
    #[arg(long, value_name = "cpu|cuda[:i]")]
    device: Option<String>,

    /// Storage of weights, keys and values: f32, bf16 or f16; the checkpoint's own if not given
    ///
    /// Example: --dtype bf16
    #[arg(long, value_name = "TYPE")]
    pub(super) dtype: Option<String>,

    /// Threads to use; all cores if not given
    ///
    /// Example: --threads 4
    #[arg(long, value_name = "N", value_parser = numbers::threads, allow_negative_numbers = true)]
    pub(super) threads: Option<usize>,

    /// Folder for records, tables and the plot
    ///
    /// Example: --out tuned/quest
    #[arg(short = 'o', long, value_name = "DIR", default_value = "tuned")]
    pub(super) out: PathBuf,

    /// Go on in --out: records that are there are kept; more samples may be allowed than before
    ///
    /// Example: --out tuned/quest --resume --max-samples 1000
    #[arg(long, conflicts_with = "overwrite")]
    resume: bool,

    /// Throw away the records in --out and start anew
    ///
    /// Example: --out tuned/quest --overwrite
    #[arg(long)]
    pub(super) overwrite: bool,

    /// Folder, or data set on the hub, with the files that tasks are made of
    ///
    /// Example: --data data, --data hub:zai-org/LongBench
    #[arg(long, value_name = "DIR|hub:HUB_ID[@REV]")]
    pub(super) data: Option<PathBuf>,

    /// Folder with what `spattn calibrate` wrote; `calibration` in the model's folder if not given
    ///
    /// Example: --calibration qwen-calibration
    #[arg(long, value_name = "DIR")]
    calibration: Option<PathBuf>,

    /// Give the model plain text even if it has a chat template
    ///
    /// Example: --no-chat
    #[arg(long)]
    no_chat: bool,

    /// Allow lengths beyond the model's context
    ///
    /// Example: --length 65536 --allow-extrapolation
    #[arg(long)]
    allow_extrapolation: bool,

    /// Show no progress
    ///
    /// Example: --quiet
    #[arg(short, long)]
    pub(super) quiet: bool,

    /// Print what was found as JSON instead of tables
    ///
    /// Example: spattn tune -m quest --json | jq -r '.methods[].spec'
    #[arg(long)]
    pub(super) json: bool,
}

/// Searches, prints the tables and the specs, and writes them down.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`]; whatever keeps the run from going on.
pub fn run(args: TuneArgs) -> Result<Done> {
    if let Some(target) = &args.target {
        return tune_shapes::run(&args, target.parse()?);
    }
    let settings = args.settings();
    settings.check_values().map_err(of_flag)?;
    let asked = Asked { parameter: &args.parameter, range: args.range.as_deref(), steps: args.steps };
    let ladders = ladders(&args.methods, asked, &args.policy()?)?;
    let candidates = ladders.iter().flat_map(|ladder| &ladder.candidates);
    let methods = candidates.map(|candidate| candidate.spec.clone()).collect();
    let config = RunConfig::resolve_single(Settings { methods: Some(methods), ..settings })?;
    let goal = args.goal();
    let facts = args.facts(&config);
    let lengths = config.lengths.len();
    let run = Run {
        configs: vec![config],
        shard: Shard::WHOLE,
        out: args.out.clone(),
        mode: args.mode(),
        threads: args.threads,
        quiet: args.quiet,
        json: args.json,
        on_failure: OnFailure::Stop,
        is_elsewhere: false,
    };
    let most_candidates = ladders.iter().map(|ladder| ladder.candidates.len()).max().unwrap_or(0);
    let mut asking = Asking { tuning: Tuning::new(goal, ladders), goal, lengths, most_candidates };
    let done = run.answer(&mut asking)?;
    if done != Done::Completed {
        return Ok(done);
    }
    let outcome = asking.tuning.outcome();
    let files = drawing::write(&outcome, &facts, &args.out)?;
    match args.json {
        true => print_line(drawing::json(&outcome, &facts)?.trim_end())?,
        false => print(&drawing::terminal(&outcome))?,
    }
    eprintln!("Files:");
    listed(&files).iter().for_each(|file| eprintln!("  {file}"));
    eprintln!("All records: spattn report {}", args.out.display());
    Ok(Done::Completed)
}

impl TuneArgs {
    fn goal(&self) -> Goal {
        Goal { limit: self.delta / 100.0, confidence: self.confidence, most_samples: self.max_samples }
    }

    fn mode(&self) -> OpenMode {
        match (self.resume, self.overwrite) {
            (true, _) => OpenMode::Resume,
            (_, true) => OpenMode::Overwrite,
            _ => OpenMode::Fresh,
        }
    }

    pub(super) fn policy(&self) -> Result<Policy, UsageError> {
        let default = Policy::default();
        let dense_layers = self.dense_layers.as_deref().map(DenseLayers::parse).transpose()?;
        let tail = self.tail.as_deref().map(str::parse).transpose()?;
        Ok(Policy {
            sink: self.sink.unwrap_or(default.sink),
            local: self.local.unwrap_or(default.local),
            dense_layers: dense_layers.unwrap_or(default.dense_layers),
            tail: tail.unwrap_or(default.tail),
        })
    }

    /// All but the methods.
    fn settings(&self) -> Settings {
        let given = |list: &[String]| (!list.is_empty()).then(|| list.to_vec());
        let flag = |set: bool| set.then_some(true);
        Settings {
            model: Some(Several(vec![self.model.clone()])),
            tasks: given(&self.tasks),
            lengths: (!self.lengths.is_empty()).then(|| self.lengths.clone()),
            samples: Some(self.max_samples),
            seed: self.seed.map(|seed| Several(vec![seed])),
            sparse_from: self.sparse_from.clone().map(|from| Several(vec![from])),
            sink: self.sink.map(|n| Several(vec![n])),
            local: self.local.map(|n| Several(vec![n])),
            dense_layers: self.dense_layers.clone().map(|layers| Several(vec![layers])),
            tail: self.tail.clone().map(|tail| Several(vec![tail])),
            dtype: self.dtype.clone(),
            device: self.device.clone(),
            data: self.data.clone(),
            calibration: self.calibration.clone(),
            chat: self.no_chat.then_some(false),
            allow_extrapolation: flag(self.allow_extrapolation),
            ..Settings::default()
        }
    }

    /// What the answer holds for.
    fn facts(&self, config: &RunConfig) -> Value {
        json!({
            "program": concat!("spattn ", env!("CARGO_PKG_VERSION")),
            "model": config.model,
            "sparse_from": config.protocols.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            "seed": config.seeds[0],
        })
    }
}

/// Asks for what a search wants to know.
struct Asking {
    tuning: Tuning,
    goal: Goal,
    lengths: usize,
    most_candidates: usize,
}

impl Asks for Asking {
    fn check(&self, tasks: &[Box<dyn Task>]) -> Result<()> {
        let has_no_score = |task: &&dyn Task| task.likelihood().is_some_and(|t| t.measure() != Measure::Score);
        if let Some(task) = tasks.iter().map(AsRef::as_ref).find(has_no_score) {
            return Err(UsageError::new(format!("{} has no score that points could be lost of", task.name()))
                .hint("tune on tasks whose answers are right or wrong; spattn eval gives perplexities by budget")
                .into());
        }
        let places = tasks.iter().map(|task| if task.is_sized() { self.lengths } else { 1 }).sum();
        let (most, points) = (self.goal.most_samples, 100.0 * self.goal.limit);
        let few = fewest_samples(&self.goal, places, self.most_candidates).filter(|fewest| *fewest > most);
        if let Some(fewest) = few {
            eprintln!(
                "note: to be certain of a loss below {points} points takes {fewest} samples of each task even where nothing \
                 is lost, and --max-samples is {most}"
            );
        }
        Ok(())
    }

    fn take(&mut self, records: &[Record]) {
        self.tuning.take(records);
    }

    fn next(&mut self, tasks: &[Box<dyn Task>]) -> Option<Batch> {
        self.tuning.next(tasks)
    }
}

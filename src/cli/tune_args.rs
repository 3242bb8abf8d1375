//! The arguments of `spattn tune`. [`tune`](super::tune) searches for budgets, `tune_shapes` for MagicPIG's tables.

use std::path::PathBuf;

use clap::Args;

use super::numbers;
use super::run_flags::{CalibrationFlag, ExtrapolationFlag, QuietFlag, ThreadsFlag};
use spattn_lab::tune::grid::DENSITY;

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
  spattn tune -m magicpig --target error=0.1 -t ruler/vt,ruler/cwe -l 4K
  spattn tune -m topk:k=64 --schedules -t ruler/vt,ruler/cwe -l 4K")]
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
    #[arg(long, value_name = "density=X|error=X", group = "measured", conflicts_with_all = ["schedules", "parameter", "range", "steps", "delta", "confidence", "max_samples", "sparse_from", "tail", "calibration", "no_chat", "allow_extrapolation"])]
    pub(super) target: Option<String>,

    /// Find how the method's budget is best dealt out to layers instead: a value of its parameter `schedule`
    ///
    /// Entropy and error by layer are measured on some prompts, schedules of equal total made from them (uniform, growing, falling,
    /// by entropy, greedy by error), and each measured on as many others.
    ///
    /// Example: -m topk:k=64 --schedules
    #[arg(long, group = "measured", conflicts_with_all = ["parameter", "range", "steps", "delta", "confidence", "max_samples", "sparse_from", "tail", "calibration", "no_chat", "allow_extrapolation"])]
    pub(super) schedules: bool,

    /// With --target or --schedules: prompts of each task to predict from, and as many others to check on
    ///
    /// Example: --prompts 4
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = numbers::documents, allow_negative_numbers = true, requires = "measured")]
    pub(super) prompts: usize,

    /// With --target or --schedules: last tokens of each prompt whose queries are looked at
    ///
    /// Example: --queries 16
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = numbers::queries, allow_negative_numbers = true, requires = "measured")]
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
    pub(super) parameter: String,

    /// Values from the smallest budget to the greatest; 0.01..0.5 for densities
    ///
    /// Example: --range 16..1024 (or 12..4, where less of the parameter is more)
    #[arg(long, value_name = "FROM..TO", allow_hyphen_values = true)]
    pub(super) range: Option<String>,

    /// Candidates in that range
    ///
    /// Example: --steps 20
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = numbers::candidates, allow_negative_numbers = true)]
    pub(super) steps: usize,

    /// Points of score that may be lost to `full`, mean over tasks
    ///
    /// Example: --delta 2.5
    #[arg(long, value_name = "POINTS", default_value_t = 1.0, value_parser = numbers::points, allow_negative_numbers = true)]
    pub(super) delta: f64,

    /// Probability with which all verdicts on the candidates of a method are right
    ///
    /// Example: --confidence 0.9
    #[arg(long, value_name = "P", default_value_t = 0.95, value_parser = numbers::confidence, allow_negative_numbers = true)]
    pub(super) confidence: f64,

    /// Samples of each task and length at most; it starts with 8
    ///
    /// Example: --max-samples 128
    #[arg(short = 'n', long, value_name = "N", default_value_t = 512, value_parser = numbers::samples, allow_negative_numbers = true)]
    pub(super) max_samples: usize,

    /// Model: builtin, a folder, a GGUF file, or a hub id
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
    pub(super) sparse_from: Option<String>,

    /// First tokens that every method attends
    ///
    /// Example: --sink 4
    #[arg(long, value_name = "N", value_parser = numbers::static_tokens, allow_negative_numbers = true)]
    pub(super) sink: Option<usize>,

    /// Last tokens of the prefix that every method attends
    ///
    /// Example: --local 64
    #[arg(long, value_name = "N", value_parser = numbers::static_tokens, allow_negative_numbers = true)]
    pub(super) local: Option<usize>,

    /// Layers that attend everything: none, layers, spans, or shares of the depth
    ///
    /// Example: --dense-layers 0,1 or --dense-layers 0+50%
    #[arg(long, value_name = "LIST")]
    pub(super) dense_layers: Option<String>,

    /// What becomes of the tokens after the prefix: exact, window:N or indexed
    ///
    /// Example: --tail indexed
    #[arg(long, value_name = "RULE")]
    pub(super) tail: Option<String>,

    /// Where to compute: cpu, or a GPU (in builds with the feature `cuda`)
    ///
    /// Example: --device cuda:1
    #[arg(long, value_name = "cpu|cuda[:i]")]
    pub(super) device: Option<String>,

    /// Storage of weights, keys and values: f32, bf16 or f16; the checkpoint's own if not given
    ///
    /// Example: --dtype bf16
    #[arg(long, value_name = "TYPE")]
    pub(super) dtype: Option<String>,

    #[command(flatten)]
    pub(super) threads: ThreadsFlag,

    /// Folder for records, tables and the plot
    ///
    /// Example: --out tuned/quest
    #[arg(short = 'o', long, value_name = "DIR", default_value = "tuned")]
    pub(super) out: PathBuf,

    /// Go on in --out: records and measurements that are there are kept; more samples may be allowed than before
    ///
    /// Example: --out tuned/quest --resume --max-samples 1000
    #[arg(long, conflicts_with = "overwrite")]
    pub(super) resume: bool,

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

    #[command(flatten)]
    pub(super) calibration: CalibrationFlag,

    /// Give the model plain text even if it has a chat template
    ///
    /// Example: --no-chat
    #[arg(long)]
    pub(super) no_chat: bool,

    /// What the model's chat template is told before the user's turn: a text, or @FILE for that of a file
    ///
    /// Example: --system-prompt 'Answer in one word.', --system-prompt @system.txt
    #[arg(long, value_name = "TEXT|@FILE")]
    pub(super) system_prompt: Option<String>,

    #[command(flatten)]
    pub(super) allow_extrapolation: ExtrapolationFlag,

    /// Leave the user out of all that is written: paths are names, and there is no command line, host, job or system prompt
    ///
    /// docs/privacy.md lists what is written with it and without. A search goes on with it, or without it, as it began.
    ///
    /// Example: --model ~/models/qwen --anonymous
    #[arg(long)]
    pub(super) anonymous: bool,

    #[command(flatten)]
    pub(super) quiet: QuietFlag,

    /// Print what was found as JSON instead of tables
    ///
    /// Example: spattn tune -m quest --json | jq -r '.methods[].spec'
    #[arg(long)]
    pub(super) json: bool,
}

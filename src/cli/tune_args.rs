//! The arguments of `spattn tune`. [`tune`](super::tune) searches for budgets, `tune_shapes` for the K and L of MagicPIG's tables.

use std::path::PathBuf;

use clap::Args;

use super::numbers;
use super::run_flags::{CalibrationFlag, ExtrapolationFlag, QuietFlag, ThreadsFlag};
use spattn_lab::tune::grid::DENSITY;

/// Find the smallest budget of a method whose loss against `full` is at most --delta points, with a given confidence.
///
/// Candidates are values of one parameter (by default density) on a logarithmic scale. They run on the same examples, with one
/// prefill each; the search narrows down to the limit, and doubles the samples until one candidate is certainly within it and
/// the next lower one certainly is not. The bounds are valid at every stop of the search, and for all candidates of a method
/// together. The folder is that of an ordinary run, and `spattn report` reads it as any other.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spattn tune -m quest -t ruler/vt,ruler/niah_single_2 -l 4K --delta 5
  spattn tune -m magicpig -m hash_attention -t ruler -l 8K --range 0.02..0.3 --max-samples 200 --out tuned
  spattn tune -m topk --parameter k --range 4..1024 -t ruler/cwe -l 4K --delta 2 --confidence 0.9
  spattn tune -m 'magicpig:L=150' --parameter K --range 12..4 -t ruler/vt -l 4K
  spattn tune -m magicpig --target error=0.1 -t ruler/vt,ruler/cwe -l 4K
  spattn tune -m topk:k=64 --schedules -t ruler/vt,ruler/cwe -l 4K")]
pub struct TuneArgs {
    /// Method to tune, with its other parameters; may be repeated, and each value of a grid is tuned separately
    ///
    /// Example: -m 'quest:page={16,32}' -m hash_attention
    #[arg(short = 'm', long = "method", value_name = "SPEC", required = true)]
    pub(super) methods: Vec<String>,

    /// Find K and L of magicpig instead, for a density or for a relative error of the attention output
    ///
    /// For a grid of K and L, both are predicted from the angles between queries and keys of some prompts; the best are then checked
    /// with real tables on as many other prompts.
    ///
    /// Example: -m magicpig --target density=0.05, --target error=0.1
    #[arg(long, value_name = "density=X|error=X", group = "measured", conflicts_with_all = ["schedules", "parameter", "range", "steps", "delta", "confidence", "max_samples", "sparse_from", "tail", "calibration", "no_chat", "allow_extrapolation"])]
    pub(super) target: Option<String>,

    /// Find the best distribution of the method's budget over layers instead: a value of its parameter `schedule`
    ///
    /// Entropy and error by layer are measured on some prompts. Schedules of equal total are made from them (uniform, growing, falling,
    /// by entropy, greedy by error), and each is measured on as many other prompts.
    ///
    /// Example: -m topk:k=64 --schedules
    #[arg(long, group = "measured", conflicts_with_all = ["parameter", "range", "steps", "delta", "confidence", "max_samples", "sparse_from", "tail", "calibration", "no_chat", "allow_extrapolation"])]
    pub(super) schedules: bool,

    /// With --target or --schedules: prompts of each task to predict from, and as many more to check on
    ///
    /// Example: --prompts 4
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = numbers::documents, allow_negative_numbers = true, requires = "measured")]
    pub(super) prompts: usize,

    /// With --target or --schedules: number of last tokens of each prompt whose queries are measured
    ///
    /// Example: --queries 16
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = numbers::queries, allow_negative_numbers = true, requires = "measured")]
    pub(super) queries: usize,

    /// With --target: random samples for each query and shape, and draws of hyperplanes to check shapes with
    ///
    /// Example: --draws 8
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = numbers::draws, allow_negative_numbers = true, requires = "target")]
    pub(super) draws: usize,

    /// Parameter to tune, whose values are numbers
    ///
    /// Example: --parameter k
    #[arg(short = 'p', long, value_name = "KEY", default_value = DENSITY)]
    pub(super) parameter: String,

    /// Values from the smallest budget to the largest; 0.01..0.5 for densities if not given
    ///
    /// Example: --range 16..1024 (or 12..4, where less of the parameter is more)
    #[arg(long, value_name = "FROM..TO", allow_hyphen_values = true)]
    pub(super) range: Option<String>,

    /// Number of candidates in that range
    ///
    /// Example: --steps 20
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = numbers::candidates, allow_negative_numbers = true)]
    pub(super) steps: usize,

    /// Largest acceptable loss against `full` in points of score, mean over tasks
    ///
    /// Example: --delta 2.5
    #[arg(long, value_name = "POINTS", default_value_t = 1.0, value_parser = numbers::points, allow_negative_numbers = true)]
    pub(super) delta: f64,

    /// Probability that all verdicts on the candidates of a method are right
    ///
    /// Example: --confidence 0.9
    #[arg(long, value_name = "P", default_value_t = 0.95, value_parser = numbers::confidence, allow_negative_numbers = true)]
    pub(super) confidence: f64,

    /// Largest number of samples of each task and length; the search starts with 8
    ///
    /// Example: --max-samples 128
    #[arg(short = 'n', long, value_name = "N", default_value_t = 512, value_parser = numbers::samples, allow_negative_numbers = true)]
    pub(super) max_samples: usize,

    /// Model: builtin, a folder, a GGUF file, or a hub id
    ///
    /// Example: --model ./Llama-3.1-8B-Instruct
    #[arg(short = 'M', long, value_name = "builtin|DIR|HUB_ID[@REV]", default_value = "builtin")]
    pub(super) model: String,

    /// Tasks or groups, with equal weights; may be repeated
    ///
    /// Example: --task ruler/vt,ruler/cwe
    #[arg(short = 't', long = "task", value_name = "TASK,...")]
    pub(super) tasks: Vec<String>,

    /// Lengths in tokens, prompt and answer together; may be repeated
    ///
    /// Example: --length 4K,8K
    #[arg(short = 'l', long = "length", value_name = "N,...", value_delimiter = ',', value_parser = numbers::tokens, allow_negative_numbers = true)]
    pub(super) lengths: Vec<usize>,

    /// Seed of the examples and of methods that use random numbers
    ///
    /// Example: --seed 7
    #[arg(long, value_name = "S", value_parser = numbers::seed, allow_negative_numbers = true)]
    pub(super) seed: Option<u64>,

    /// Where sparse attention starts: decode, question, last:N or prefill
    ///
    /// Example: --sparse-from last:32
    #[arg(long, value_name = "WHERE")]
    pub(super) sparse_from: Option<String>,

    /// Attention sink: number of first tokens that every method attends
    ///
    /// Example: --sink 4
    #[arg(long, value_name = "N", value_parser = numbers::static_tokens, allow_negative_numbers = true)]
    pub(super) sink: Option<usize>,

    /// Recent window: number of last tokens of the prefix that every method attends
    ///
    /// Example: --local 64
    #[arg(long, value_name = "N", value_parser = numbers::static_tokens, allow_negative_numbers = true)]
    pub(super) local: Option<usize>,

    /// Layers with dense attention: none, layers, spans, or shares of the depth
    ///
    /// Example: --dense-layers 0,1 or --dense-layers 0+50%
    #[arg(long, value_name = "LIST")]
    pub(super) dense_layers: Option<String>,

    /// Attention to tokens after the prefix: exact, window:N or indexed
    ///
    /// Example: --tail indexed
    #[arg(long, value_name = "RULE")]
    pub(super) tail: Option<String>,

    /// Where to compute: cpu, a GPU, or several GPUs that divide the model's layers (in builds with the feature `cuda`)
    ///
    /// Example: --device cuda:1, --device cuda:0,1
    #[arg(long, value_name = "cpu|cuda[:i,...]")]
    pub(super) device: Option<String>,

    /// Storage type of weights, keys and values: f32, bf16 or f16; the checkpoint's own if not given. Files of quantised weights name none: f32 on a CPU, bf16 on a GPU
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

    /// Resume the search in --out: records and measurements are kept; --max-samples may be raised
    ///
    /// Example: --out tuned/quest --resume --max-samples 1000
    #[arg(long, conflicts_with = "overwrite")]
    pub(super) resume: bool,

    /// Delete the records in --out and start again
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

    /// Give the model plain text, even if it has a chat template
    ///
    /// Example: --no-chat
    #[arg(long)]
    pub(super) no_chat: bool,

    /// System prompt for the model's chat template: a text, or @FILE to read it from a file
    ///
    /// Example: --system-prompt 'Answer in one word.', --system-prompt @system.txt
    #[arg(long, value_name = "TEXT|@FILE")]
    pub(super) system_prompt: Option<String>,

    #[command(flatten)]
    pub(super) allow_extrapolation: ExtrapolationFlag,

    /// Write nothing that names the user: no command line, host, job or system prompt, and of paths only the last part
    ///
    /// docs/privacy.md lists what is written with and without this flag. A search is resumed with it or without it, as it began.
    ///
    /// Example: --model ~/models/qwen --anonymous
    #[arg(long)]
    pub(super) anonymous: bool,

    #[command(flatten)]
    pub(super) quiet: QuietFlag,

    /// Print the results as JSON instead of tables
    ///
    /// Example: spattn tune -m quest --json | jq -r '.methods[].spec'
    #[arg(long)]
    pub(super) json: bool,
}

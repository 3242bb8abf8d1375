//! What `spattn bench` is told; [`bench`](super::bench) times it.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::numbers;
use super::run_flags::{QuietFlag, ThreadsFlag};

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// Attention of one step at one layer
    Attention,
    /// Attention of a whole prompt at one layer; with --layers the whole forward pass of so many
    Prefill,
    /// Building a method's index
    Index,
    /// A whole step of a model with random weights
    Decode,
    /// Single kernels
    Kernels,
}

/// Time attention, prefill, indexes, whole steps or kernels: microseconds, bytes, and shares of what the machine can do.
///
/// Keys and values are drawn with what makes those of language models special (a first token that takes attention, heavy
/// channels, RoPE, topics), or captured while a model reads a prompt (--kv-from). Methods, kernels and other programs take turns, after a warm-up, and caches are emptied before
/// each turn; a time is the median of these, with an interval. Everything is held against `full` and against the bandwidth
/// that plain reading reaches in the same run.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spattn bench attention
  spattn bench attention --shape llama-2-7b -c 32K,128K -m quest -m 'magicpig:K=10,L=150' --density 0.0625,0.03 --out speed
  spattn bench attention -c 32K --peers                 (PyTorch and faiss in the same table)
  spattn bench attention --kv-from builtin -c 4K,16K    (keys, values and queries of a model that reads a prompt)
  spattn bench prefill -c 4K,16K -m hip -m minference
  spattn bench decode --layers 4 --batch 1,4
  spattn bench kernels")]
pub struct BenchArgs {
    /// What to time
    ///
    /// Example: spattn bench attention
    #[arg(value_enum)]
    pub(super) what: What,

    /// Whose heads: llama-3.1-8b, llama-3.2-1b, llama-2-7b, mistral-7b, qwen2.5-7b, builtin, a model's folder or hub id, or a
    /// config.json; no weights are read; llama-3.1-8b if not given, or the model of --kv-from
    ///
    /// Example: --shape mistral-7b
    #[arg(long, value_name = "SHAPE|MODEL|CONFIG")]
    pub(super) shape: Option<String>,

    /// A model whose keys, values and queries are timed instead of drawn ones: builtin, a folder or a hub id; it reads a prompt
    /// of ruler/niah_multikey_3, and what is timed are evenly spread layers (of one, the middle)
    ///
    /// Example: --kv-from builtin
    #[arg(long, value_name = "MODEL")]
    pub(super) kv_from: Option<String>,

    /// A text that the model of --kv-from reads instead: as many of its first tokens as are asked for
    ///
    /// Example: --kv-from builtin --text book.txt
    #[arg(long, value_name = "FILE", requires = "kv_from")]
    pub(super) text: Option<PathBuf>,

    /// Tokens in context; may be repeated; 8K and 32K if not given
    ///
    /// Example: -c 8K,32K,128K
    #[arg(short = 'c', long = "context", value_name = "N,...", value_delimiter = ',', value_parser = numbers::tokens, allow_negative_numbers = true)]
    pub(super) contexts: Vec<usize>,

    /// Sequences that step together, each with a context of its own; may be repeated
    ///
    /// Example: --batch 1,8
    #[arg(long = "batch", value_name = "N,...", value_delimiter = ',', default_value = "1", value_parser = numbers::sequences, allow_negative_numbers = true)]
    pub(super) batches: Vec<usize>,

    /// Rows at the end of a prompt that alone are read, as when several tokens are decoded at once; all if not given
    ///
    /// Example: bench prefill --last 32 --batch 96 --device cuda
    #[arg(long, value_name = "N", value_parser = numbers::tokens, allow_negative_numbers = true)]
    pub(super) last: Option<usize>,

    /// Method with parameters, grids {a,b} and ranges a..b/step; may be repeated; nine published ones if not given
    ///
    /// Example: -m quest -m 'magicpig:K={8,10},L=150'
    #[arg(short = 'm', long = "method", value_name = "SPEC")]
    pub(super) methods: Vec<String>,

    /// Shares of the context that methods attend whose spec sets no budget; may be repeated; 0.0625 if not given
    ///
    /// Example: --density 0.0156,0.0625
    #[arg(long = "density", value_name = "D,...", value_delimiter = ',')]
    pub(super) densities: Vec<String>,

    /// Leave out `full`, the dense reference
    ///
    /// Example: --no-full
    #[arg(long)]
    pub(super) no_full: bool,

    /// Layers that are timed together; 1 if not given, 2 of whole steps
    ///
    /// Example: --layers 4
    #[arg(long, value_name = "N", value_parser = numbers::layers, allow_negative_numbers = true)]
    pub(super) layers: Option<usize>,

    /// Storage type of keys, values and weights
    ///
    /// Example: --dtype f16
    #[arg(long, value_name = "bf16|f16|f32", default_value = "bf16")]
    pub(super) dtype: String,

    /// Quantised blocks that weights are in, of whole steps and prompts: q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k or q6_k; as --dtype if
    /// not given
    ///
    /// Example: bench decode --weights q4_k
    #[arg(long, value_name = "TYPE")]
    pub(super) weights: Option<String>,

    /// Where: cpu, cuda, or cuda:N for another GPU, on which attention is timed
    ///
    /// Example: --device cuda
    #[arg(long, value_name = "cpu|cuda|cuda:N", default_value = "cpu")]
    pub(super) device: String,

    /// Turns of each that count; an interval takes six
    ///
    /// Example: --rounds 31
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = numbers::rounds, allow_negative_numbers = true)]
    pub(super) rounds: usize,

    /// Seed of keys, values and queries
    ///
    /// Example: --seed 7
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = numbers::seed, allow_negative_numbers = true)]
    pub(super) seed: u64,

    /// Time PyTorch, faiss and transformers too, in turns with ours, or those of them whose names contain one of these words;
    /// needs Python with torch
    ///
    /// Example: --peers, or --peers=grouped,faiss
    #[arg(long, value_name = "WORD,...", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub(super) peers: Option<String>,

    /// The Python that --peers runs
    ///
    /// Example: --python ./venv/bin/python
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub(super) python: String,

    /// What a CPU rounds factors of matrix products to, in prefill and decode: f32 (nothing) or bf16
    ///
    /// Example: --matmul-precision bf16
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    pub(super) matmul_precision: String,

    #[command(flatten)]
    pub(super) threads: ThreadsFlag,

    /// Folder for bench.json, bench.csv, bench.md, the manifest and plots; nothing is written if not given
    ///
    /// Example: --out speed
    #[arg(short = 'o', long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,

    /// Write over what an earlier bench left in the folder
    ///
    /// Example: --out speed --overwrite
    #[arg(long, requires = "out")]
    pub(super) overwrite: bool,

    /// Print rows as JSON instead of tables
    ///
    /// Example: --json
    #[arg(long)]
    pub(super) json: bool,

    /// Leave the user out of all that is written: paths are names, and there is no command line, host, job or system prompt
    ///
    /// docs/privacy.md lists what is written with it and without.
    ///
    /// Example: spattn bench attention --kv-from ~/models/qwen --anonymous --out speed
    #[arg(long)]
    pub(super) anonymous: bool,

    #[command(flatten)]
    pub(super) quiet: QuietFlag,
}

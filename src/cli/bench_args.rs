//! The arguments of `spattn bench`. [`bench`](super::bench) runs it.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::numbers;
use super::run_flags::{QuietFlag, ThreadsFlag};
use spattn_eval::config::kv_tier::KvMemory;

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// Attention of one step at one layer
    Attention,
    /// Attention of a whole prompt at one layer; with --layers, a forward pass of that many layers
    Prefill,
    /// Building a method's index
    Index,
    /// A whole decode step of a model with random weights
    Decode,
    /// Single kernels
    Kernels,
}

/// Where keys and values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchTier {
    /// In the memory of what computes
    Memory,
    /// In host memory below a GPU
    Host,
}

impl BenchTier {
    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Host => "host",
        }
    }
}

/// Time attention, prefill, indexes, whole decode steps or kernels: microseconds, bytes, and shares of the machine's peak.
///
/// Keys and values are random, with properties of those of language models (an attention sink, heavy channels, RoPE, topics),
/// or captured while a model reads a prompt (--kv-from). After a warm-up, methods, kernels and other programs take turns, and
/// caches are emptied before each turn; a time is the median over turns, with an interval. Times are compared with `full` and
/// with the read bandwidth measured in the same run.
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

    /// Model whose head counts and sizes are used: llama-3.1-8b, llama-3.1-70b, llama-3.2-1b, llama-2-7b, mistral-7b, qwen2.5-7b, qwen3-30b-a3b,
    /// builtin, a model's folder or hub id, or a config.json; weights are not read; the model of --kv-from, or else llama-3.1-8b, if not given
    ///
    /// Example: --shape mistral-7b
    #[arg(long, value_name = "SHAPE|MODEL|CONFIG")]
    pub(super) shape: Option<String>,

    /// Model whose keys, values and queries replace random ones: builtin, a folder, a GGUF file or a hub id; it reads
    /// a prompt of ruler/niah_multikey_3, and evenly spread layers are timed (with --layers 1 the middle one)
    ///
    /// Example: --kv-from builtin
    #[arg(long, value_name = "MODEL")]
    pub(super) kv_from: Option<String>,

    /// Text file that the model of --kv-from reads instead, from its beginning
    ///
    /// Example: --kv-from builtin --text book.txt
    #[arg(long, value_name = "FILE", requires = "kv_from")]
    pub(super) text: Option<PathBuf>,

    /// Tokens in context; may be repeated; 8K and 32K if not given
    ///
    /// Example: -c 8K,32K,128K
    #[arg(short = 'c', long = "context", value_name = "N,...", value_delimiter = ',', value_parser = numbers::tokens, allow_negative_numbers = true)]
    pub(super) contexts: Vec<usize>,

    /// Sequences in a batch, each with its own context; may be repeated
    ///
    /// Example: --batch 1,8
    #[arg(long = "batch", value_name = "N,...", value_delimiter = ',', default_value = "1", value_parser = numbers::sequences, allow_negative_numbers = true)]
    pub(super) batches: Vec<usize>,

    /// Time only the last N rows of a prompt, as when several tokens are decoded at once; all rows if not given
    ///
    /// Example: bench prefill --last 32 --batch 96 --device cuda
    #[arg(long, value_name = "N", value_parser = numbers::tokens, allow_negative_numbers = true)]
    pub(super) last: Option<usize>,

    /// Method with parameters, grids {a,b} and ranges a..b/step; may be repeated; nine published methods if not given
    ///
    /// Example: -m quest -m 'magicpig:K={8,10},L=150'
    #[arg(short = 'm', long = "method", value_name = "SPEC")]
    pub(super) methods: Vec<String>,

    /// Density of methods whose spec sets no budget; may be repeated; 0.0625 if not given
    ///
    /// Example: --density 0.0156,0.0625
    #[arg(long = "density", value_name = "D,...", value_delimiter = ',')]
    pub(super) densities: Vec<String>,

    /// Leave out `full`, the dense reference
    ///
    /// Example: --no-full
    #[arg(long)]
    pub(super) no_full: bool,

    /// Layers that are timed together; 1 if not given, 2 for `bench decode`
    ///
    /// Example: --layers 4
    #[arg(long, value_name = "N", value_parser = numbers::layers, allow_negative_numbers = true)]
    pub(super) layers: Option<usize>,

    /// Storage type of keys, values and weights
    ///
    /// Example: --dtype f16
    #[arg(long, value_name = "bf16|f16|f32", default_value = "bf16")]
    pub(super) dtype: String,

    /// Type of the quantised blocks that hold the weights of `bench decode` and `bench prefill --layers`: q4_0, q4_1, q5_0, q5_1, q8_0, q4_k,
    /// q5_k or q6_k; weights are stored in --dtype if not given
    ///
    /// Example: bench decode --weights q4_k
    #[arg(long, value_name = "TYPE")]
    pub(super) weights: Option<String>,

    /// Device to time: cpu, cuda, or cuda:N for another GPU
    ///
    /// Example: --device cuda
    #[arg(long, value_name = "cpu|cuda|cuda:N", default_value = "cpu")]
    pub(super) device: String,

    /// Where keys and values are: in the memory of what computes, or in host memory, which a GPU reads over the bus
    ///
    /// Example: bench decode --device cuda --kv-tier host
    #[arg(long, value_name = "TIER", value_enum, default_value = "memory")]
    pub(super) kv_tier: BenchTier,

    /// GPU memory in which each method keeps what it fetches of a sequence from host memory, in bytes (K, M, G: of 1,024); nothing if not
    /// given
    ///
    /// Example: bench decode --device cuda --kv-tier host --kv-memory 2G -m hip:offload=true
    #[arg(long, value_name = "SIZE", value_parser = numbers::kv_memory, allow_negative_numbers = true)]
    pub(super) kv_memory: Option<KvMemory>,

    /// Timed turns of each method; an interval needs six
    ///
    /// Example: --rounds 31
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = numbers::rounds, allow_negative_numbers = true)]
    pub(super) rounds: usize,

    /// Seed of keys, values and queries
    ///
    /// Example: --seed 7
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = numbers::seed, allow_negative_numbers = true)]
    pub(super) seed: u64,

    /// Time PyTorch, faiss and transformers too, in turns with our methods; with words, only those whose names contain one of them;
    /// needs Python with torch
    ///
    /// Example: --peers, or --peers=grouped,faiss
    #[arg(long, value_name = "WORD,...", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub(super) peers: Option<String>,

    /// Python interpreter for --peers
    ///
    /// Example: --python ./venv/bin/python
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub(super) python: String,

    /// Precision of the factors of matrix products on a CPU, in prefill and decode: f32 (no rounding) or bf16
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

    /// Overwrite the files of an earlier bench in the folder
    ///
    /// Example: --out speed --overwrite
    #[arg(long, requires = "out")]
    pub(super) overwrite: bool,

    /// Print rows as JSON instead of tables
    ///
    /// Example: --json
    #[arg(long)]
    pub(super) json: bool,

    /// Write nothing that names the user: no command line, host, job or system prompt, and of paths only the last part
    ///
    /// docs/privacy.md lists what is written with and without this flag.
    ///
    /// Example: spattn bench attention --kv-from ~/models/qwen --anonymous --out speed
    #[arg(long)]
    pub(super) anonymous: bool,

    #[command(flatten)]
    pub(super) quiet: QuietFlag,
}

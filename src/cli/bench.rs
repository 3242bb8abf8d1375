//! `spattn bench`: how fast methods are, compared with exact attention, other programs and the machine's limits.

use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::exit::Done;
use super::numbers;
use super::output::listed;
use super::output::{print, print_json};
use super::progress::Meter;
use super::setup::stop_on_interrupt;
use crate::bench::{Bench, Capture, Op, Peers, Plan, Reader, check_memory, steps};
use crate::eval::config::settings::{parse_dtype, parse_matmul_precision};
use crate::eval::folder::owned_files;
use crate::eval::plan::manifest::cpu_name;
use crate::eval::records::record::REFERENCE;
use crate::report::bench as drawing;
use crate::version;
use spattn_attention::methods::configure;
use spattn_attention::{Configured, MethodSpec, Policy, Schedule, expand_grid};
use spattn_base::error::UsageError;
use spattn_base::privacy;
use spattn_kernels::precision::{MatmulPrecision, set_matmul_precision};
use spattn_kernels::{isa_name, tiles};
use spattn_model::decoder::Decoder;
use spattn_model::device::Device;
use spattn_model::dimensions::Dimensions;
use spattn_model::source::{ModelSource, RANDOM};
use spattn_model::weights::Weights;

/// The default methods: the published ones that claim speed, and the oracle.
const METHODS: [&str; 9] =
    ["double_sparsity", "hash_attention", "quest", "magicpig", "hip", "sparq", "loki", "streaming_llm", "topk"];
const DENSITY: f64 = 0.0625;
const CONTEXTS: [usize; 2] = [8192, 32_768];
/// The default shape.
const SHAPE: &str = "llama-3.1-8b";
/// The default number of layers of a model whose whole steps are timed.
const DECODE_LAYERS: usize = 2;

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
    what: What,

    /// Whose heads: llama-3.1-8b, llama-3.2-1b, llama-2-7b, mistral-7b, qwen2.5-7b, builtin, a model's folder or hub id, or a
    /// config.json; no weights are read; llama-3.1-8b if not given, or the model of --kv-from
    ///
    /// Example: --shape mistral-7b
    #[arg(long, value_name = "SHAPE|MODEL|CONFIG")]
    shape: Option<String>,

    /// A model whose keys, values and queries are timed instead of drawn ones: builtin, a folder or a hub id; it reads a prompt
    /// of ruler/niah_multikey_3, and what is timed are evenly spread layers (of one, the middle)
    ///
    /// Example: --kv-from builtin
    #[arg(long, value_name = "MODEL")]
    kv_from: Option<String>,

    /// A text that the model of --kv-from reads instead: as many of its first tokens as are asked for
    ///
    /// Example: --kv-from builtin --text book.txt
    #[arg(long, value_name = "FILE", requires = "kv_from")]
    text: Option<PathBuf>,

    /// Tokens in context; may be repeated; 8K and 32K if not given
    ///
    /// Example: -c 8K,32K,128K
    #[arg(short = 'c', long = "context", value_name = "N,...", value_delimiter = ',', value_parser = numbers::tokens, allow_negative_numbers = true)]
    contexts: Vec<usize>,

    /// Sequences that step together, each with a context of its own; may be repeated
    ///
    /// Example: --batch 1,8
    #[arg(long = "batch", value_name = "N,...", value_delimiter = ',', default_value = "1", value_parser = numbers::sequences, allow_negative_numbers = true)]
    batches: Vec<usize>,

    /// Rows at the end of a prompt that alone are read, as when several tokens are decoded at once; all if not given
    ///
    /// Example: bench prefill --last 32 --batch 96 --device cuda
    #[arg(long, value_name = "N", value_parser = numbers::tokens, allow_negative_numbers = true)]
    last: Option<usize>,

    /// Method with parameters, grids {a,b} and ranges a..b/step; may be repeated; nine published ones if not given
    ///
    /// Example: -m quest -m 'magicpig:K={8,10},L=150'
    #[arg(short = 'm', long = "method", value_name = "SPEC")]
    methods: Vec<String>,

    /// Shares of the context that methods attend whose spec sets no budget; may be repeated; 0.0625 if not given
    ///
    /// Example: --density 0.0156,0.0625
    #[arg(long = "density", value_name = "D,...", value_delimiter = ',')]
    densities: Vec<String>,

    /// Leave out `full`, the dense reference
    ///
    /// Example: --no-full
    #[arg(long)]
    no_full: bool,

    /// Layers that are timed together; 1 if not given, 2 of whole steps
    ///
    /// Example: --layers 4
    #[arg(long, value_name = "N", value_parser = numbers::layers, allow_negative_numbers = true)]
    layers: Option<usize>,

    /// Storage type of keys, values and weights
    ///
    /// Example: --dtype f16
    #[arg(long, value_name = "bf16|f16|f32", default_value = "bf16")]
    dtype: String,

    /// Where: cpu, cuda, or cuda:N for another GPU, on which attention is timed
    ///
    /// Example: --device cuda
    #[arg(long, value_name = "cpu|cuda|cuda:N", default_value = "cpu")]
    device: String,

    /// Turns of each that count; an interval takes six
    ///
    /// Example: --rounds 31
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = numbers::rounds, allow_negative_numbers = true)]
    rounds: usize,

    /// Seed of keys, values and queries
    ///
    /// Example: --seed 7
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = numbers::seed, allow_negative_numbers = true)]
    seed: u64,

    /// Time PyTorch, faiss and transformers too, in turns with ours, or those of them whose names contain one of these words;
    /// needs Python with torch
    ///
    /// Example: --peers, or --peers=grouped,faiss
    #[arg(long, value_name = "WORD,...", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    peers: Option<String>,

    /// The Python that --peers runs
    ///
    /// Example: --python ./venv/bin/python
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: String,

    /// What a CPU rounds factors of matrix products to, in prefill and decode: f32 (nothing) or bf16
    ///
    /// Example: --matmul-precision bf16
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    matmul_precision: String,

    /// Threads to use; all cores if not given
    ///
    /// Example: --threads 4
    #[arg(long, value_name = "N", value_parser = numbers::threads, allow_negative_numbers = true)]
    pub(super) threads: Option<usize>,

    /// Folder for bench.json, bench.csv, bench.md, the manifest and plots; nothing is written if not given
    ///
    /// Example: --out speed
    #[arg(short = 'o', long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Write over what an earlier bench left in the folder
    ///
    /// Example: --out speed --overwrite
    #[arg(long, requires = "out")]
    overwrite: bool,

    /// Print rows as JSON instead of tables
    ///
    /// Example: --json
    #[arg(long)]
    json: bool,

    /// Leave the user out of all that is written: paths are names, and there is no command line, host, job or system prompt
    ///
    /// docs/privacy.md lists what is written with it and without.
    ///
    /// Example: spattn bench attention --kv-from ~/models/qwen --anonymous --out speed
    #[arg(long)]
    anonymous: bool,

    /// Show no progress
    ///
    /// Example: --quiet
    #[arg(short, long)]
    quiet: bool,
}

/// Times what was asked for and prints it.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`]; an operation that fails, files that cannot be written.
pub fn run(args: &BenchArgs) -> Result<Done> {
    if args.anonymous {
        privacy::leave_out();
    }
    set_matmul_precision(args.matmul_precision()?);
    args.check_free()?;
    let plan = args.plan()?;
    let stop = stop_on_interrupt()?;
    let mut meter = Meter::new(args.quiet, "{bar:30} {pos}/{len} rounds, {msg}");
    let timed = plan.run(&stop, &mut |what, done, all| meter.at(done as u64, all as u64, 0, || what.to_owned()));
    meter.end();
    let Some(bench) = timed? else {
        eprintln!("interrupted: nothing was written");
        return Ok(Done::Interrupted);
    };
    match args.json {
        true => print_json(&drawing::json(&bench)?)?,
        false => print(&drawing::table(&bench))?,
    }
    if let Some(folder) = &args.out {
        let files = drawing::write(&bench, &args.manifest(&plan, &bench), folder)?;
        eprintln!("Files:");
        listed(&files).iter().for_each(|file| eprintln!("  {file}"));
    }
    Ok(Done::Completed)
}

impl BenchArgs {
    fn op(&self) -> Op {
        match self.what {
            What::Attention => Op::Attention,
            What::Prefill => Op::Prefill,
            What::Index => Op::Index,
            What::Decode => Op::Decode,
            What::Kernels => Op::Kernels,
        }
    }

    /// Checks that the folder holds no benchmark, unless it may be overwritten.
    fn check_free(&self) -> Result<(), UsageError> {
        let Some(folder) = &self.out else { return Ok(()) };
        // Files that this program did not write are checked first: no flag lets them be replaced.
        owned_files::check(folder, &owned_files::BENCH)?;
        if !self.overwrite && folder.join("bench.json").exists() {
            let what = format!("{} holds an earlier bench", folder.display());
            return Err(UsageError::new(what).hint("choose another --out folder, or add --overwrite"));
        }
        Ok(())
    }

    /// Checks that every argument has a meaning for the operation.
    fn check_meaning(&self) -> Result<(), UsageError> {
        let (what, of_steps) = (self.what, matches!(self.what, What::Attention | What::Decode));
        let refused = |what: &str, hint: &str| Err(UsageError::new(what).hint(hint));
        let on_gpu = self.device()? != Device::Cpu;
        if on_gpu && what == What::Kernels {
            return refused(
                "on a GPU attention, prefill, indexes and whole steps are timed",
                "write `bench attention`, `bench prefill`, `bench index` or `bench decode`, or --device cpu",
            );
        }
        if on_gpu && matches!(what, What::Attention | What::Index) && self.layers.is_some() {
            return refused(
                "on a GPU attention and indexes are those of one layer",
                "leave --layers out, or write `bench decode`",
            );
        }
        let reads_rows = what == What::Prefill && self.layers.is_none();
        let takes_several = of_steps || on_gpu && reads_rows;
        if self.last.is_some() && !reads_rows {
            return refused("--last says which rows of a prompt attend", "write `bench prefill`, without --layers");
        }
        if self.last == Some(0) {
            return refused("no row of a prompt would be read", "give --last a number from 1, or leave it out");
        }
        match self.layers {
            _ if !takes_several && self.batches != [1] => refused(
                "sequences step together in attention and decode, and prompts on a GPU are read together",
                "leave --batch out",
            ),
            None if self.batches != [1] && what == What::Prefill && self.kv_from.is_some() => {
                refused("a model of --kv-from reads one prompt at a time", "leave --batch or --kv-from out")
            }
            Some(_) if what == What::Kernels => refused("single kernels are those of one layer", "leave --layers out"),
            Some(_) if what == What::Prefill && !self.methods.is_empty() => {
                refused("a whole forward pass is timed densely", "leave --layers out to time how methods read a prompt")
            }
            _ if self.kv_from.is_none() => Ok(()),
            Some(_) if what == What::Prefill => refused(
                "--kv-from gives the attention of a layer keys, and a whole pass has its own",
                "leave --layers out",
            ),
            _ if what == What::Decode => refused(
                "whole steps are those of a model with random weights, which has queries of its own",
                "leave --kv-from out, or time its attention: spattn bench attention",
            ),
            _ => Ok(()),
        }
    }

    fn device(&self) -> Result<Device, UsageError> {
        self.device.parse()
    }

    /// The model of `--kv-from`, if there is one, without its weights.
    fn reader(&self) -> Result<Option<Reader>> {
        let Some(model) = &self.kv_from else { return Ok(None) };
        let (dtype, layers) = (parse_dtype(&self.dtype)?, self.layers.unwrap_or(1));
        let reader = Reader::open(model, dtype, self.text.as_deref(), layers, self.seed)?;
        reader.notes().iter().for_each(|note| eprintln!("note: {note}"));
        let heads = |dimensions: &Dimensions| {
            let c = dimensions.config();
            (c.heads, c.kv_heads, c.head_dim)
        };
        let own = heads(&reader.dimensions());
        match &self.shape {
            Some(shape) if heads(&self.dimensions(shape)?) != own => {
                let (heads, kv_heads, d) = own;
                let what = format!("--shape {shape} has other heads than {model} ({heads} and {kv_heads} of {d})");
                Err(UsageError::new(what).hint("leave --shape out: --kv-from says whose heads they are").into())
            }
            _ => Ok(Some(reader)),
        }
    }

    fn plan(&self) -> Result<Plan> {
        self.check_meaning()?;
        let reader = self.reader()?;
        let shape = self.shape.as_ref().or(self.kv_from.as_ref()).map_or(SHAPE, String::as_str);
        let dimensions = reader.as_ref().map_or_else(|| self.dimensions(shape), |reader| Ok(reader.dimensions()))?;
        let reads_whole = self.what == What::Decode || self.what == What::Prefill && self.layers.is_some();
        let contexts = if self.contexts.is_empty() { CONTEXTS.to_vec() } else { self.contexts.clone() };
        let device = self.device()?;
        if let Some(obstacle) = dimensions.gpu_obstacle().filter(|_| device != Device::Cpu) {
            return Err(UsageError::new(obstacle).hint("use --device cpu").into());
        }
        check_memory(device, self.op(), &dimensions, &contexts, &self.batches, (reads_whole, self.last))?;
        let steps = steps(self.op(), self.rounds);
        let most = self.batches.iter().copied().max().unwrap_or(1);
        reader.iter().try_for_each(|reader| reader.check(&contexts, steps, most))?;
        let decoder = reads_whole.then(|| Decoder::load(&dimensions, &Weights::random(self.seed), device));
        if let Some(context) = contexts.iter().find(|context| **context == 0) {
            return Err(UsageError::new(format!("a context of {context} tokens has nothing to attend")).into());
        }
        Ok(Plan {
            op: self.op(),
            device,
            shape: if privacy::is_left_out() { privacy::name_of_source(shape) } else { shape.to_owned() },
            methods: self.configured()?,
            peers: self.started(&dimensions, &contexts, reads_whole)?,
            capture: reader.map(Reader::load).transpose()?,
            contexts,
            batches: self.batches.clone(),
            last: self.last,
            rounds: self.rounds,
            seed: self.seed,
            decoder: decoder.transpose()?,
            dimensions,
        })
    }

    /// The shape, with as many layers as are timed together.
    fn dimensions(&self, shape: &str) -> Result<Dimensions> {
        // Names of published shapes come first, because they need no files.
        let source = ModelSource::parse(&format!("{RANDOM}{shape}"))
            .or_else(|unknown| ModelSource::parse(shape).map_err(|_| unknown))?;
        let mut config = source.resolve_texts()?.config()?;
        let most = if self.what == What::Decode { DECODE_LAYERS } else { 1 };
        config.layers = self.layers.unwrap_or(most);
        let dtype = parse_dtype(&self.dtype)?;
        Ok(Dimensions::new(&config, dtype))
    }

    /// The methods at their budgets, `full` first.
    fn configured(&self) -> Result<Vec<Configured>> {
        let named: Vec<&str> = match self.methods.is_empty() {
            true => METHODS.to_vec(),
            false => self.methods.iter().map(String::as_str).collect(),
        };
        let densities = match self.densities.is_empty() {
            true => vec![DENSITY.to_string()],
            false => self.densities.clone(),
        };
        let mut methods = Vec::new();
        if !self.no_full {
            methods.push(configure(&MethodSpec::bare(REFERENCE), &Policy::default())?);
        }
        for text in named {
            for spec in expand_grid(text)?.into_iter().filter(|spec| *spec != MethodSpec::bare(REFERENCE)) {
                methods.extend(at_densities(&spec, &densities)?);
            }
        }
        Ok(methods)
    }

    /// Starts the peers' script, if it was requested.
    fn started(&self, dimensions: &Dimensions, contexts: &[usize], whole: bool) -> Result<Option<Mutex<Peers>>> {
        let Some(only) = self.peers.as_ref().filter(|_| self.what != What::Kernels) else { return Ok(None) };
        let c = dimensions.config();
        let list = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let named = [
            ("--op", self.op().name().to_owned()),
            ("--heads", c.heads.to_string()),
            ("--kv-heads", c.kv_heads.to_string()),
            ("--d", c.head_dim.to_string()),
            ("--dtype", self.dtype.clone()),
            ("--contexts", list(contexts)),
            ("--batches", list(&self.batches)),
            ("--last", self.last.unwrap_or(0).to_string()),
            ("--threads", rayon::current_num_threads().to_string()),
            ("--device", if self.device()? == Device::Cpu { "cpu" } else { "cuda" }.to_owned()),
            ("--seed", self.seed.to_string()),
            ("--hidden", c.hidden_size.to_string()),
            ("--intermediate", c.intermediate_size.to_string()),
            ("--layers", c.layers.to_string()),
            ("--vocab", c.vocab_size.to_string()),
        ];
        let mut arguments: Vec<String> = named.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
        if whole && self.what == What::Prefill {
            arguments.push("--whole".to_owned());
        }
        if !only.is_empty() {
            arguments.extend(["--only".to_owned(), only.clone()]);
        }
        Ok(Some(Mutex::new(Peers::start(&self.python, &arguments)?)))
    }

    /// The precision of matrix products.
    fn matmul_precision(&self) -> Result<MatmulPrecision, UsageError> {
        let precision = parse_matmul_precision(&self.matmul_precision)?;
        if precision != MatmulPrecision::F32 && self.device()? != Device::Cpu {
            return Err(UsageError::new("--matmul-precision is of products on a CPU").hint("leave it out, or --device"));
        }
        Ok(precision)
    }

    fn manifest(&self, plan: &Plan, bench: &Bench) -> Value {
        let c = plan.dimensions.config();
        let mut program = version::as_json();
        program["command"] = privacy::command().into();
        json!({
            "program": program,
            "bench": {
                "op": plan.op.name(),
                "shape": {
                    "name": plan.shape, "heads": c.heads, "kv_heads": c.kv_heads, "head_dim": c.head_dim, "layers": c.layers,
                },
                "device": self.device,
                "dtype": self.dtype,
                "matmul_precision": self.matmul_precision,
                "contexts": plan.contexts,
                "batches": plan.batches,
                "last": plan.last,
                "methods": plan.methods.iter().map(Configured::label).collect::<Vec<_>>(),
                "rounds": plan.rounds,
                "seed": plan.seed,
                "peers": self.peers,
                "kv_from": plan.capture.as_ref().map(Capture::described),
            },
            "machine": {
                "cpu": cpu_name(),
                "cores": std::thread::available_parallelism().map_or(1, usize::from),
                "threads": rayon::current_num_threads(),
                "simd": isa_name(),
                "bf16_products": tiles::unit().name(),
                "read_gbps": bench.roof.read_gbps,
                "peak_gflops": bench.roof.peak_gflops,
            },
            "notes": bench.notes,
        })
    }
}

/// A method at each density, or unchanged if its spec sets a budget.
fn at_densities(spec: &MethodSpec, densities: &[String]) -> Result<Vec<Configured>, UsageError> {
    let policy = Policy::default();
    let own = configure(spec, &policy)?;
    if let Schedule::Weights(_) = own.policy.schedule {
        let what = format!("`{}` has weights for the layers of a model", own.label());
        return Err(
            UsageError::new(what).hint("a bench times layers by themselves: leave schedule out, or write linear")
        );
    }
    let with = |density: &String| {
        let mut spec = spec.clone();
        spec.params.push(("density".to_owned(), density.clone()));
        configure(&spec, &policy)
    };
    // A wrong density is an error even if every method sets its own budget.
    let bare = |density: &String| {
        let spec = MethodSpec { params: vec![("density".to_owned(), density.clone())], ..MethodSpec::bare("topk") };
        configure(&spec, &policy)
    };
    densities.iter().try_for_each(|density| bare(density).map(drop))?;
    Ok(densities.iter().map(with).collect::<Result<_, _>>().unwrap_or_else(|_| vec![own]))
}

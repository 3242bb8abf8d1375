//! `spattn bench`: how fast methods are, compared with exact attention, other programs and the machine's limits.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use anyhow::Result;
use serde_json::{Value, json};

use super::bench_args::{BenchArgs, BenchTier, What};
use super::exit::Done;
use super::interrupt;
use super::output::listed;
use super::output::{print, print_json};
use crate::report::bench as drawing;
use crate::version::PROGRAM;
use spattn_attention::kv::Tier;
use spattn_attention::methods::configure;
use spattn_attention::{Configured, MethodSpec, Policy, Schedule, expand_grid};
use spattn_base::error::UsageError;
use spattn_base::meter::Meter;
use spattn_base::privacy;
use spattn_eval::config::value::{parse_dtype, parse_matmul_precision};
use spattn_eval::folder::owned_files;
use spattn_eval::plan::manifest::cpu_name;
use spattn_eval::records::record::REFERENCE;
use spattn_kernels::precision::{MatmulPrecision, set_matmul_precision};
use spattn_kernels::quantised::BlockType;
use spattn_kernels::{isa_name, tiles};
use spattn_lab::bench::{Bench, Capture, Op, Peers, Plan, Reader, check_memory, steps};
use spattn_model::decoder::Decoder;
use spattn_model::device::Device;
use spattn_model::dimensions::Dimensions;
use spattn_model::source::{ModelSource, RANDOM};
use spattn_model::tensors::Weights;

/// The default methods: the published ones that claim speed, and the oracle.
const METHODS: [&str; 9] =
    ["double_sparsity", "hash_attention", "quest", "magicpig", "hip", "sparq", "loki", "streaming_llm", "topk"];
const DENSITY: f64 = 0.0625;
const CONTEXTS: [usize; 2] = [8192, 32_768];
/// The default shape.
const SHAPE: &str = "llama-3.1-8b";
/// The default number of layers of a model whose whole steps are timed.
const DECODE_LAYERS: usize = 2;

/// Times what was asked for and prints it.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`]; what is timed that fails, files that cannot be written.
pub fn run_bench(args: &BenchArgs) -> Result<Done> {
    if args.anonymous {
        privacy::leave_out();
    }
    set_matmul_precision(args.matmul_precision()?);
    args.check_free()?;
    let plan = args.plan()?;
    let stop = Arc::new(AtomicBool::new(false));
    interrupt::stop_within_grace(&stop, || "nothing was written".to_owned())?;
    let mut meter = Meter::new(args.quiet.0.is_some(), "drawing keys and values");
    let timed = plan.run(&stop, &mut |what, done, all| meter.at(done, all, 0, || what.to_owned()));
    meter.end();
    let Some(bench) = timed? else { return Ok(interrupt::answer()) };
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
                "`bench kernels` times kernels of the CPU only",
                "use --device cpu, or `bench attention`, `bench prefill`, `bench index` or `bench decode`",
            );
        }
        if on_gpu && matches!(what, What::Attention | What::Index) && self.layers.is_some() {
            return refused(
                "on a GPU, attention and indexes are timed for one layer",
                "leave --layers out, or use `bench decode`",
            );
        }
        if self.kv_tier == BenchTier::Host && !(on_gpu && of_steps) {
            return refused(
                "--kv-tier host applies to `bench attention` and `bench decode` on a GPU",
                "add --device cuda, or leave --kv-tier out",
            );
        }
        if self.kv_memory.is_some() && !(self.kv_tier == BenchTier::Host && what == What::Decode) {
            return refused(
                "--kv-memory applies to `bench decode` with keys and values in host memory",
                "add --kv-tier host, or leave --kv-memory out",
            );
        }
        let reads_rows = what == What::Prefill && self.layers.is_none();
        let takes_several = of_steps || on_gpu && reads_rows;
        if self.last.is_some() && !reads_rows {
            return refused(
                "--last applies only to `bench prefill` without --layers",
                "leave --last out, or use `bench prefill` without --layers",
            );
        }
        if self.last == Some(0) {
            return refused(
                "--last is 0: no row of a prompt would be timed",
                "give --last a number from 1, or leave it out",
            );
        }
        match self.layers {
            _ if !takes_several && self.batches != [1] => refused(
                "--batch applies only to `bench attention`, `bench decode` and, on a GPU, `bench prefill`",
                "leave --batch out",
            ),
            None if self.batches != [1] && what == What::Prefill && self.kv_from.is_some() => {
                refused("a model of --kv-from reads one prompt at a time", "leave --batch or --kv-from out")
            }
            Some(_) if what == What::Kernels => {
                refused("--layers does not apply to `bench kernels`", "leave --layers out")
            }
            Some(_) if what == What::Prefill && !self.methods.is_empty() => refused(
                "`bench prefill --layers` times a dense forward pass, without methods",
                "leave --layers out to time the prefill of methods",
            ),
            _ if self.kv_from.is_none() => Ok(()),
            Some(_) if what == What::Prefill => refused(
                "--kv-from does not apply to a whole forward pass, which computes its own keys",
                "leave --layers out",
            ),
            _ if what == What::Decode => refused(
                "--kv-from does not apply to `bench decode`, which runs a model with random weights",
                "leave --kv-from out, or time the attention alone: spattn bench attention",
            ),
            _ => Ok(()),
        }
    }

    /// Where keys and values are.
    fn tier(&self) -> Tier {
        match self.kv_tier {
            BenchTier::Memory => Tier::Device,
            BenchTier::Host => Tier::Host,
        }
    }

    fn device(&self) -> Result<Device, UsageError> {
        self.device.parse::<Device>()?.of_one_gpu()
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
                Err(UsageError::new(what).hint("leave --shape out: --kv-from sets the heads").into())
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
        let weights = match self.block_type(reads_whole)? {
            Some(block_type) => Weights::random_in(self.seed, block_type),
            None => Weights::random(self.seed),
        };
        let dimensions = dimensions.keeping_blocks(&weights);
        let contexts = if self.contexts.is_empty() { CONTEXTS.to_vec() } else { self.contexts.clone() };
        let device = self.device()?;
        if let Some(obstacle) = dimensions.gpu_obstacle().filter(|_| device != Device::Cpu) {
            return Err(UsageError::new(obstacle).hint("use --device cpu").into());
        }
        check_memory(device, self.op(), &dimensions, &contexts, &self.batches, self.tier(), (reads_whole, self.last))?;
        let steps = steps(self.op(), self.rounds);
        let most = self.batches.iter().copied().max().unwrap_or(1);
        reader.iter().try_for_each(|reader| reader.check(&contexts, steps, most))?;
        let decoder = reads_whole.then(|| Decoder::load(&dimensions, &weights, device));
        if let Some(context) = contexts.iter().find(|context| **context == 0) {
            return Err(UsageError::new(format!("a context of {context} tokens has nothing to attend")).into());
        }
        Ok(Plan {
            op: self.op(),
            device,
            tier: self.tier(),
            cached: self.kv_memory.map(|memory| memory.0),
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
        config.set_layers(self.layers.unwrap_or(most));
        let dtype = parse_dtype(&self.dtype)?;
        Ok(Dimensions::new(&config, dtype))
    }

    /// The blocks that weights are in, if they are quantised.
    fn block_type(&self, reads_whole: bool) -> Result<Option<BlockType>, UsageError> {
        let Some(name) = &self.weights else { return Ok(None) };
        if !reads_whole {
            return Err(UsageError::new("--weights applies only to `bench decode` and to `bench prefill --layers`")
                .hint("leave --weights out, or use `bench decode`"));
        }
        if self.matmul_precision()? != MatmulPrecision::F32 {
            return Err(UsageError::new("products in bf16 take weights in bf16, not in quantised blocks")
                .hint("leave --weights or --matmul-precision out"));
        }
        let found = BlockType::ALL.into_iter().find(|block_type| block_type.name() == name);
        let unknown = || UsageError::unknown("type of blocks", name, BlockType::ALL.map(BlockType::name));
        found.map(Some).ok_or_else(unknown)
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
        if let Some(method) = methods.iter().find(|method| !method.policy.kv_dtype.is_exact()) {
            let what = format!(
                "method `{}` has `kv_dtype={}`, and a bench times keys and values in the type of --dtype",
                method.label(),
                method.policy.kv_dtype
            );
            return Err(UsageError::new(what).hint("its bytes and errors can be measured: use `spattn eval`").into());
        }
        let is_ahead = |method: &&Configured| self.what == What::Attention && method.method.selects_ahead();
        if let Some(method) = methods.iter().find(is_ahead) {
            let what = format!(
                "method `{}` picks the tokens of a layer while the layer before computes, and `bench attention` times one layer alone",
                method.label()
            );
            return Err(UsageError::new(what).hint("time whole steps: use `bench decode`").into());
        }
        if let Some(method) = methods.iter().find(|method| method.method.attends_on_host()) {
            self.check_attending_on_host(method)?;
        }
        if let Some(method) = methods.iter().find(|method| method.method.offloads()) {
            self.check_offloading(method)?;
        }
        if let Some(method) = methods.iter().find(|method| !method.method.counts_costs()) {
            let what = format!(
                "method `{}` runs in another process: nobody counts its work, and pipes take its time",
                method.name
            );
            return Err(UsageError::new(what).hint("its answers can be measured: use `spattn eval`").into());
        }
        Ok(methods)
    }

    /// Refuses a method that attends on the host if it would not do so in this benchmark on a GPU.
    fn check_attending_on_host(&self, method: &Configured) -> Result<(), UsageError> {
        let label = method.label();
        if self.device()? == Device::Cpu || !matches!(self.what, What::Attention | What::Decode) {
            return Ok(());
        }
        if self.kv_tier != BenchTier::Host {
            let what = format!("method `{label}` attends on the host, and keys and values are in the GPU's memory");
            return Err(UsageError::new(what).hint("keep them in the host's: --kv-tier host; or leave attend_on out"));
        }
        if self.what == What::Decode && self.batches.iter().any(|batch| *batch > 1) {
            let what = format!("method `{label}` attends on the host, for which `bench decode` times one sequence");
            return Err(UsageError::new(what).hint("leave --batch out, or use `bench attention`"));
        }
        Ok(())
    }

    /// Refuses a method that keeps tokens in caches of a GPU if it would not do so in this benchmark on a GPU.
    fn check_offloading(&self, method: &Configured) -> Result<(), UsageError> {
        let is_timed = matches!(self.what, What::Attention | What::Decode);
        if self.device()? == Device::Cpu || !is_timed || self.kv_memory.is_some() {
            return Ok(());
        }
        let what = format!("method `{}` keeps some of what is in host memory in caches of the GPU", method.label());
        Err(UsageError::new(what).hint("use `bench decode` with --kv-tier host --kv-memory 2G; or leave offload out"))
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
            return Err(UsageError::new("--matmul-precision applies to a CPU only").hint("leave it out, or --device"));
        }
        Ok(precision)
    }

    fn manifest(&self, plan: &Plan, bench: &Bench) -> Value {
        let c = plan.dimensions.config();
        let mut program = PROGRAM.as_json();
        program["command"] = privacy::command().into();
        let mut manifest = json!({
            "program": program,
            "bench": {
                "op": plan.op.name(),
                "shape": {
                    "name": plan.shape, "heads": c.heads, "kv_heads": c.kv_heads, "head_dim": c.head_dim, "layers": c.layers,
                },
                "device": self.device,
                "kv_tier": self.kv_tier.name(),
                "kv_memory": self.kv_memory.map(|memory| memory.to_string()),
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
                "link_gbps": bench.roof.link_gbps,
                "host_gbps": bench.roof.host_gbps,
            },
            "notes": bench.notes,
        });
        if let Some(weights) = &self.weights {
            manifest["bench"]["weights"] = weights.as_str().into();
        }
        manifest
    }
}

/// A method at each density, or unchanged if its spec sets a budget.
fn at_densities(spec: &MethodSpec, densities: &[String]) -> Result<Vec<Configured>, UsageError> {
    let policy = Policy::default();
    let own = configure(spec, &policy)?;
    if let Schedule::Weights(_) = own.policy.schedule {
        let what = format!("`{}` has a schedule over the layers of a model", own.label());
        return Err(UsageError::new(what).hint("a bench times single layers: leave schedule out, or write linear"));
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

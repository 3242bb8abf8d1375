//! `spattn analyze`: measures on a model what the papers observed about attention.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::exit::Done;
use super::interrupt;
use super::numbers;
use super::output::listed;
use super::output::{print, print_json};
use super::run_flags::{QuietFlag, ThreadsFlag};
use super::setup::{find_data, system_prompt};
use crate::report::analyses as drawing;
use crate::version::PROGRAM;
use spattn_attention::Policy;
use spattn_attention::kv::KvDtype;
use spattn_base::error::UsageError;
use spattn_base::meter::Meter;
use spattn_base::privacy;
use spattn_eval::config::value::parse_dtype;
use spattn_eval::folder::owned_files::{self, OwnFolder};
use spattn_lab::analyze::{Analysis, DocumentReader, Loaded, Method, Request, Running, Setup, dump, select};
use spattn_model::device::Device;

/// The default tasks: one of each kind that the papers distinguish.
pub(super) const TASKS: [&str; 5] =
    ["ruler/niah_single_2", "ruler/niah_multikey_3", "ruler/qa_synth", "ruler/vt", "ruler/cwe"];

/// Measure what the papers observed about attention: where its mass lies, geometry, estimation error, entropy, recall.
///
/// The model reads prompts with dense attention. The queries of the last tokens of each prompt attend all keys before them, and
/// results are averaged by layer, head and task. `spattn list analyses` shows what can be measured, and the figures of papers
/// that show it. Tables are printed; the folder gets them as CSV and JSON, with plots and a page.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spattn analyze
  spattn analyze mass entropy -t ruler/cwe -t ruler/vt -l 4K -n 4 --out attention
  spattn analyze recall -m 'quest:density={0.0625,0.125}' -m hash_attention
  spattn analyze geometry --model ./Llama-3.1-8B-Instruct -l 16K --layers 0,8,16,31
  spattn analyze locality --text book.txt -l 8K --dump")]
pub struct AnalyzeArgs {
    /// What to measure; all if not given
    ///
    /// Example: spattn analyze mass geometry (`spattn list analyses` shows all)
    #[arg(value_name = "ANALYSIS")]
    what: Vec<String>,

    /// Model: builtin, a folder, a GGUF file, or a hub id
    ///
    /// Example: --model ./Llama-3.1-8B-Instruct
    #[arg(short = 'M', long, value_name = "builtin|DIR|HUB_ID[@REV]", default_value = "builtin")]
    model: String,

    /// Task whose prompts to read, or a group; may be repeated; five tasks of RULER if neither this nor --text is given
    ///
    /// Example: -t ruler/cwe -t ruler/vt
    #[arg(short = 't', long = "task", value_name = "TASK", conflicts_with = "text")]
    tasks: Vec<String>,

    /// Text file to read instead of tasks, cut into parts
    ///
    /// Example: --text book.txt
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,

    /// System prompt for the model's chat template: a text, or @FILE to read it from a file
    ///
    /// Example: --system-prompt 'Answer in one word.', --system-prompt @system.txt
    #[arg(long, value_name = "TEXT|@FILE", conflicts_with = "text")]
    system_prompt: Option<String>,

    /// Folder, or data set on the hub, with the files that tasks are made of
    ///
    /// Example: --data data, --data hub:org/ruler-assets@main
    #[arg(long, value_name = "DIR|hub:HUB_ID[@REV]")]
    data: Option<PathBuf>,

    /// Tokens of a prompt
    ///
    /// Example: -l 4K
    #[arg(short = 'l', long, value_name = "N", default_value = "2K", value_parser = numbers::tokens, allow_negative_numbers = true)]
    length: usize,

    /// Prompts of each task, or parts of the text
    ///
    /// Example: -n 4
    #[arg(short = 'n', long, value_name = "N", default_value_t = 2, value_parser = numbers::documents, allow_negative_numbers = true)]
    samples: usize,

    /// Number of last tokens of each prompt whose queries are measured
    ///
    /// Example: --queries 64
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = numbers::queries, allow_negative_numbers = true)]
    queries: usize,

    /// Layers to measure, counted from 0; all if not given
    ///
    /// Example: --layers 0,4,9
    #[arg(long, value_name = "L,...", value_delimiter = ',', value_parser = numbers::layer, allow_negative_numbers = true)]
    layers: Vec<usize>,

    /// First tokens that count as the sink; methods attend them too, unless their spec sets `sink`
    ///
    /// Example: --sink 1
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = numbers::static_tokens, allow_negative_numbers = true)]
    sink: usize,

    /// Method for recall, estimation and --dump, with parameters, grids {a,b} and ranges a..b/step; may be repeated; those of the
    /// papers if not given
    ///
    /// Example: -m quest -m 'magicpig:K={8,10},L=150'
    #[arg(short = 'm', long = "method", value_name = "SPEC")]
    methods: Vec<String>,

    /// Random draws of each sampling estimator, for bias and variance
    ///
    /// Example: --draws 64
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = numbers::draws, allow_negative_numbers = true)]
    draws: usize,

    /// Where the model reads the prompts: cpu, a GPU, or several GPUs that divide its layers (in builds with the feature `cuda`); the analysis
    /// runs on the CPU
    ///
    /// Example: --device cuda
    #[arg(long, value_name = "cpu|cuda[:i,...]", default_value = "cpu")]
    device: String,

    /// Storage type of weights, keys and values; the checkpoint's own if not given
    ///
    /// Example: --dtype bf16
    #[arg(long, value_name = "bf16|f16|f32")]
    dtype: Option<String>,

    /// Seed of prompts and of random draws
    ///
    /// Example: --seed 7
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = numbers::seed, allow_negative_numbers = true)]
    seed: u64,

    #[command(flatten)]
    pub(super) threads: ThreadsFlag,

    /// Folder for analyze.json, analyze.md, tables and plots
    ///
    /// Example: --out attention
    #[arg(short = 'o', long, value_name = "DIR", default_value = "analysis")]
    out: PathBuf,

    /// Overwrite the files of an earlier analysis in the folder
    ///
    /// Example: --overwrite
    #[arg(long)]
    overwrite: bool,

    /// Write queries, keys and values of each prompt, and the selections and outputs of each -m method, to dump/*.safetensors
    ///
    /// Example: spattn analyze mass -n 1 -t ruler/vt -m quest --dump
    #[arg(long)]
    dump: bool,

    /// Print the results as JSON instead of tables
    ///
    /// Example: --json
    #[arg(long)]
    json: bool,

    /// Write nothing that names the user: no command line, host, job or system prompt, and of paths only the last part
    ///
    /// docs/privacy.md lists what is written with and without this flag.
    ///
    /// Example: spattn analyze mass --model ~/models/qwen --anonymous
    #[arg(long)]
    anonymous: bool,

    #[command(flatten)]
    quiet: QuietFlag,
}

/// Reads prompts, measures, prints the tables and writes the files.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`]; a model that cannot read, files that cannot be written.
pub fn run_analyze(args: &AnalyzeArgs) -> Result<Done> {
    if args.anonymous {
        privacy::leave_out();
    }
    let analyses = select(&args.what)?;
    args.check_free()?;
    let data = args.data.as_deref().map(find_data).transpose()?;
    let data = data.as_ref().map(|data| data.folder.as_path());
    let system = system_prompt(args.system_prompt.as_deref())?;
    let system = system.as_deref();
    let device = args.device.parse::<Device>()?.of_one_copy()?;
    let reader = DocumentReader::open(&Request { data, system, ..args.request(device, args.dtype()?, &args.tasks()) })?;
    let methods = Method::read_all(&args.methods, &args.policy(), reader.model())?;
    let folder = args.folder()?;
    interrupt::end_with(|| "nothing was written, except by --dump".to_owned());
    let documents = reader.documents();
    let mut meter = Meter::new(args.quiet.0.is_some(), "loading the weights");
    let loaded = reader.load()?;
    let start = Instant::now();
    meter.begin("", "reading the first prompt");
    loaded.model.notes.iter().for_each(|note| eprintln!("note: {note}"));
    let setup = Setup { loaded: &loaded, sink: args.sink, methods: &methods, draws: args.draws, seed: args.seed };
    let mut running = Running::start(&analyses, &setup)?;
    let mut needs = running.needs().clone();
    if args.dump {
        needs.extend(methods.iter().flat_map(|method| method.configured.method.prompt_needs()));
    }
    let mut dumped = Vec::new();
    for (at, (task, number)) in loaded.documents().enumerate() {
        let document = loaded.read(task, number, &needs)?;
        running.observe(&document)?;
        if let Some(folder) = folder {
            dumped.push(dump::write(&document, at, &methods, folder)?);
        }
        meter.at(at as u64 + 1, documents as u64, 0, || format!("{}/{documents} prompts", at + 1));
        if args.quiet.0.is_none() {
            let (name, tokens, took) = (&document.task, document.ids.len(), start.elapsed().as_secs_f64());
            let left = if at + 1 < documents { meter.left() } else { String::new() };
            meter.tell(&format!("{} of {documents}: {name} {number}, {tokens} tokens ({took:.1} s{left})", at + 1));
        }
    }
    meter.end();
    let found = running.finish();
    let manifest = args.manifest(&loaded, system, &analyses, &methods);
    let facts = drawing::facts(&loaded.model.id, &loaded.tasks(), args.length, documents, args.queries);
    match args.json {
        true => print_json(&drawing::json(&found, &manifest)?)?,
        false => print(&drawing::terminal(&found))?,
    }
    let mut files = drawing::write(&found, &facts, &manifest, &args.out)?;
    files.extend(dumped);
    eprintln!("Files:");
    listed(&files).iter().for_each(|file| eprintln!("  {file}"));
    Ok(Done::Completed)
}

impl AnalyzeArgs {
    fn tasks(&self) -> Vec<String> {
        match self.tasks.is_empty() {
            true => TASKS.map(str::to_owned).to_vec(),
            false => self.tasks.clone(),
        }
    }

    fn dtype(&self) -> Result<Option<KvDtype>, UsageError> {
        self.dtype.as_deref().map(parse_dtype).transpose()
    }

    fn policy(&self) -> Policy {
        Policy { sink: self.sink, ..Policy::default() }
    }

    fn request<'a>(&'a self, device: Device, dtype: Option<KvDtype>, tasks: &'a [String]) -> Request<'a> {
        Request {
            model: &self.model,
            device,
            dtype,
            tasks,
            text: self.text.as_deref(),
            system: None,
            data: None,
            length: self.length,
            samples: self.samples,
            queries: self.queries,
            layers: &self.layers,
            seed: self.seed,
        }
    }

    /// Checks that the folder holds no analysis, unless it may be overwritten.
    fn check_free(&self) -> Result<(), UsageError> {
        // No flag allows replacing files that this program did not write, so check for those first.
        owned_files::check(&self.out, &owned_files::ANALYSIS)?;
        if !self.overwrite && self.out.join(drawing::RESULT).exists() {
            let what = format!("{} holds an earlier analysis", self.out.display());
            return Err(UsageError::new(what).hint("choose another --out folder, or add --overwrite"));
        }
        Ok(())
    }

    /// Creates the folders, and returns the one that dumps go to.
    fn folder(&self) -> Result<Option<&Path>> {
        let dump = self.out.join(dump::DUMP);
        let made = if self.dump { &dump } else { &self.out };
        std::fs::create_dir_all(made).map_err(|e| {
            UsageError::new(format!("cannot write to the folder {}: {e}", made.display()))
                .hint("choose another --out folder")
        })?;
        if self.dump {
            // Dumps of an earlier analysis would be mistaken for this one's.
            OwnFolder::of(&self.out)?.clear(&[&owned_files::DUMP])?;
        }
        Ok(self.dump.then_some(self.out.as_path()))
    }

    fn manifest(
        &self,
        loaded: &Loaded,
        system: Option<&str>,
        analyses: &[&'static Analysis],
        methods: &[Method],
    ) -> Value {
        let labels: Vec<String> = methods.iter().map(|method| method.configured.label()).collect();
        json!({
            "program": PROGRAM.as_json(),
            "model": loaded.model.id,
            "revision": loaded.model.revision,
            "device": self.device,
            "weights_sha256": loaded.model.weights_sha256,
            "read": loaded.tasks(),
            "system_prompt": system.map(privacy::system_prompt),
            "length": self.length,
            "samples": self.samples,
            "queries": self.queries,
            "layers": loaded.layers,
            "sink": self.sink,
            "draws": self.draws,
            "seed": self.seed,
            "methods": labels,
            "analyses": analyses.iter().map(|analysis| analysis.name).collect::<Vec<_>>(),
        })
    }
}

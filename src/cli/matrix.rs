//! What `eval` and `sweep` do: models and tasks are made ready and checked, the matrix is run or described, and what
//! was recorded is drawn.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use super::output::{print, print_line};
use super::setup::{find_data, set_threads, stop_on_interrupt};
use super::{Advised, Done, listed};
use crate::eval::calibration::supply;
use crate::eval::checks::in_short;
use crate::eval::config::RunConfig;
use crate::eval::contexts::Shard;
use crate::eval::estimate::{Estimate, estimate_by_products};
use crate::eval::generate::Spent;
use crate::eval::manifest::{ModelPart, example_bytes, manifest};
use crate::eval::memory::peak_bytes;
use crate::eval::plan::{Cell, Plan, Planner, gpu_need};
use crate::eval::record::REFERENCE;
use crate::eval::record::Record;
use crate::eval::run::{End, Left, Runner};
use crate::eval::sharing::Sharing;
use crate::eval::store::{OpenMode, Store, check_free, identities, load_manifest, load_records};
use crate::eval::watch::{Failure, Progress, Watch};
use crate::model::device::Device;
use crate::model::engine::GpuUse;
use crate::model::source::ModelSource;
use crate::model::tokenizer::TokenizerOptions;
use crate::model::{Model, OpenModel};
use crate::report::{Report, json, merge, table};
use crate::tasks::likelihood::Measure;
use crate::tasks::{Task, TaskOptions, check_names, resolve_each};

/// What to do when a part of the matrix cannot be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnFailure {
    /// End with its error.
    Stop,
    /// Go on with the rest, and list it in the end.
    GoOn,
}

/// A run as arguments ask for it.
#[derive(Debug)]
pub(super) struct Run {
    /// One for each model.
    pub configs: Vec<RunConfig>,
    pub shard: Shard,
    pub out: PathBuf,
    pub mode: OpenMode,
    pub threads: Option<usize>,
    pub quiet: bool,
    pub json: bool,
    pub on_failure: OnFailure,
}

/// A run that is ready to start.
struct Ready {
    tasks: Tasks,
    /// Where the data are, as records are identified by it.
    data: Option<String>,
    /// Models that can be run, those whose turn is over taken out.
    slots: VecDeque<Slot>,
    /// Models that cannot, as they were named.
    missing_models: Vec<String>,
}

/// The tasks of a run.
type Tasks = Vec<Box<dyn Task>>;

/// A model with what is run on it.
struct Slot {
    config: RunConfig,
    plan: Plan,
    part: ModelPart,
    model: Slotted,
}

/// A model before its turn.
enum Slotted {
    /// The only one: its weights are read before any work.
    Loaded(Box<Model>),
    /// One of several: never are the weights of two in memory.
    Open(Box<OpenModel>),
}

impl Slotted {
    fn load(self, device: Device) -> Result<Model> {
        match self {
            Self::Loaded(model) => Ok(*model),
            Self::Open(model) => model.load(device),
        }
    }
}

impl Ready {
    fn planner<'a>(&'a self, config: &'a RunConfig, model: &'a OpenModel, shard: Shard) -> Planner<'a> {
        Planner { model, config, tasks: &self.tasks, data: self.data.as_deref(), shard }
    }
}

impl Run {
    /// Runs what is not recorded yet, and prints the table.
    pub fn start(self) -> Result<Done> {
        self.run(Self::finish)
    }

    /// Runs what is not recorded yet, and draws nothing.
    pub fn record(self) -> Result<Done> {
        self.run(|_, _| Ok(()))
    }

    fn run(self, finish: impl FnOnce(&Self, Took) -> Result<()>) -> Result<Done> {
        check_free(&self.out, self.mode)?;
        let mut watcher = Watcher::new(self.on_failure);
        let mut ready = self.ready(&mut watcher)?;
        let mut store = self.open_store(&ready)?;
        store.notices().iter().for_each(|n| eprintln!("note: {n}"));
        let stop = stop_on_interrupt()?;
        watcher.begin(self.quiet, store.records());
        let (start, mut spent, mut end) = (Instant::now(), Spent::default(), Ok(End::Complete));
        let mut gpu = GpuUse::default();
        let models = ready.slots.len();
        while let Some(Slot { config, plan, part, model }) = ready.slots.pop_front() {
            watcher.begin_model(&part.id, models - ready.slots.len(), models);
            end = match model.load(config.device) {
                Ok(model) => {
                    let runner = Runner { planner: ready.planner(&config, &model, self.shard), model: &model };
                    let ran = runner.run(plan, &mut store, &stop, &mut watcher);
                    let expected_bytes = expected_gpu_bytes(&model, &config).unwrap_or(0);
                    gpu += GpuUse { expected_bytes, ..model.decoder.gpu_use().unwrap_or_default() };
                    ran.map(|(end, of_model)| {
                        spent += of_model;
                        end
                    })
                }
                Err(error) => watcher.failed(Failure { what: part.id, error }).map(|()| End::Complete),
            };
            if !matches!(end, Ok(End::Complete)) {
                break;
            }
        }
        watcher.bar.finish_and_clear();
        drop(store);
        if matches!(end, Ok(End::Interrupted)) {
            let kept = kept(&self.out, "go on");
            eprintln!("interrupted: {}", kept.unwrap_or_else(|| "nothing was recorded yet".to_owned()));
            return Ok(Done::Interrupted);
        }
        let took = Took { all: start.elapsed(), spent, gpu };
        let ended = end.and_then(|_| finish(&self, took)).and_then(|()| watcher.verdict("are done"));
        match (ended, kept(&self.out, "once that is mended, go on")) {
            (Err(error), Some(advice)) => Err(Advised { error, advice }.into()),
            (ended, _) => ended.map(|()| Done::Completed),
        }
    }

    /// Prints what would be run, and what it would take.
    pub fn describe(self) -> Result<Done> {
        let mut watcher = Watcher::new(self.on_failure);
        let mut ready = self.ready(&mut watcher)?;
        let known = match self.mode {
            OpenMode::Resume if self.out.exists() => load_records(&self.out).map_or_else(|_| Vec::new(), |l| l.records),
            _ => Vec::new(),
        };
        let mut models = Vec::new();
        while let Some(Slot { config, plan, model, .. }) = ready.slots.pop_front() {
            let model = &model.load(config.device)?;
            let runner = Runner { planner: ready.planner(&config, model, self.shard), model };
            let left = runner.remaining(&plan, &known);
            models.push(Description::new(&runner, &left)?);
        }
        match self.json {
            true => print_line(&serde_json::to_string_pretty(&as_json(&models))?)?,
            false => print(&as_text(&models))?,
        }
        watcher.verdict("would be").map(|()| Done::Completed)
    }

    /// Prints what would be run, and about what it would take, of models whose weights need not be there.
    pub fn outline(self) -> Result<Done> {
        let mut watcher = Watcher::new(self.on_failure);
        let (tasks, data) = self.tasks(&mut watcher)?;
        let mut models = Vec::new();
        for config in &self.configs {
            let source = ModelSource::parse(&config.model)?;
            let options = TokenizerOptions { chat: config.chat, ..TokenizerOptions::default() };
            let model = match OpenModel::open_without_weights(&source, config.dtype, options) {
                Ok(model) => model,
                Err(error) => {
                    watcher.failed(Failure { what: config.model.clone(), error })?;
                    continue;
                }
            };
            let planner = Planner { model: &model, config, tasks: &tasks, data: data.as_deref(), shard: self.shard };
            models.push(Description::outlined(&planner)?);
        }
        print(&as_text(&models))?;
        watcher.verdict("would be").map(|()| Done::Completed)
    }

    /// Loads and checks everything, before any work.
    fn ready(&self, watcher: &mut Watcher) -> Result<Ready> {
        set_threads(self.threads)?;
        let (tasks, data) = self.tasks(watcher)?;
        let mut ready = Ready { tasks, data, slots: VecDeque::new(), missing_models: Vec::new() };
        for config in &self.configs {
            match self.slot(config.clone(), &ready, watcher)? {
                Some(slot) => ready.slots.push_back(slot),
                None => ready.missing_models.push(config.model.clone()),
            }
        }
        let runs = ready.slots.iter().any(|slot| !slot.plan.cells.is_empty());
        match runs || watcher.failures.is_empty() {
            true => Ok(ready),
            // Nothing is left to run, so the first is what is wrong.
            false => {
                let first = watcher.failures.remove(0).error;
                watcher.list();
                Err(first)
            }
        }
    }

    /// The tasks, and where their data are, as records are identified by it.
    fn tasks(&self, watcher: &mut Watcher) -> Result<(Tasks, Option<String>)> {
        let config = &self.configs[0];
        let data = config.data.as_deref().map(find_data).transpose()?;
        let options = TaskOptions {
            data: data.as_ref().map(|d| d.folder.clone()),
            positions: config.positions,
            skip_bad: config.skip_bad,
        };
        let mut tasks = Vec::new();
        for (what, task) in resolve_each(&config.tasks, &options)? {
            match task {
                Ok(task) => tasks.push(task),
                Err(error) => watcher.failed(Failure { what, error })?,
            }
        }
        check_names(&tasks)?;
        tasks.iter().flat_map(|t| t.notes()).for_each(|n| eprintln!("note: {n}"));
        Ok((tasks, data.map(|d| d.id)))
    }

    /// A model with what is run on it; `None` if it cannot be loaded.
    fn slot(&self, mut config: RunConfig, ready: &Ready, watcher: &mut Watcher) -> Result<Option<Slot>> {
        let opened = open_model(&config).and_then(|model| match self.configs.len() {
            1 => Ok(Slotted::Loaded(Box::new(model.load(config.device)?))),
            _ => Ok(Slotted::Open(Box::new(model))),
        });
        let slotted = match opened {
            Ok(model) => model,
            Err(error) => {
                watcher.failed(Failure { what: config.model, error })?;
                return Ok(None);
            }
        };
        let model: &OpenModel = match &slotted {
            Slotted::Loaded(model) => model,
            Slotted::Open(model) => model,
        };
        model.notes.iter().for_each(|n| eprintln!("note: {n}"));
        if !self.quiet && std::io::stderr().is_terminal() {
            eprintln!("{}", size(model, &config));
        }
        let mut methods = Vec::new();
        for mut method in std::mem::take(&mut config.methods) {
            match supply(std::slice::from_mut(&mut method), model, config.calibration.as_deref()) {
                Ok(()) => methods.push(method),
                Err(error) => {
                    watcher.failed(Failure { what: format!("{}, {}", model.id, method.label()), error })?;
                }
            }
        }
        config.methods = methods;
        let plan = ready.planner(&config, model, self.shard).plan(watcher)?;
        let part = ModelPart::new(&config, model, ready.data.as_deref());
        Ok(Some(Slot { config, plan, part, model: slotted }))
    }

    fn open_store(&self, ready: &Ready) -> Result<Store> {
        // A path need not be UTF-8.
        let command: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let parts: Vec<ModelPart> = ready.slots.iter().map(|slot| slot.part.clone()).collect();
        let mut kept = Vec::new();
        // Records of models that cannot be loaded now stay what they are.
        if self.mode == OpenMode::Resume && !ready.missing_models.is_empty() {
            let stored = load_manifest(&self.out).unwrap_or_default();
            let is_missing = |i: &&Value| ready.missing_models.iter().any(|model| i["model"] == **model);
            kept = identities(&stored).into_iter().filter(is_missing).cloned().collect();
        }
        let settings = &self.configs[0].settings;
        Store::open(&self.out, self.mode, &manifest(settings, &parts, kept, &command))
    }

    /// Draws everything from the stored records, and prints the table or JSON.
    fn finish(&self, took: Took) -> Result<()> {
        let merged = merge::read(std::slice::from_ref(&self.out))?;
        let report = Report::of(&merged);
        let files = report.write_all(&self.out)?;
        if self.json {
            in_short(&report.warnings).iter().for_each(|(_, line)| eprintln!("warning: {line}"));
            return print_line(&json::render(&report.rows)?);
        }
        let mut text = table::render(&report);
        for (i, (_, line)) in in_short(&report.warnings).iter().enumerate() {
            let _ = writeln!(text, "{}warning: {line}", if i == 0 { "\n" } else { "" });
        }
        let sharing = Sharing::of(&merged.records);
        if sharing.is_worth_saying() {
            let _ = writeln!(text, "\n{sharing}");
        }
        let _ = writeln!(text, "\n{} records. {took}\nFiles:", merged.records.len());
        for name in ["samples.jsonl", "manifest.json"] {
            let _ = writeln!(text, "  {}", self.out.join(name).display());
        }
        text.extend(listed(&files).iter().map(|line| format!("  {line}\n")));
        print(&text)
    }
}

/// Where the time of this run went.
struct Took {
    all: Duration,
    spent: Spent,
    gpu: GpuUse,
}

impl std::fmt::Display for Took {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Spent { prefill, index, steps, solo } = self.spent;
        let rest = self.all.saturating_sub(self.spent.total());
        let [all, prefill, index, steps, solo, rest] =
            [self.all, prefill, index, steps, solo, rest].map(|t| t.as_secs_f64());
        write!(f, "{all:.1} s: prefill {prefill:.1}, indexes {index:.1}, steps {steps:.1}, ")?;
        if !self.spent.solo.is_zero() {
            write!(f, "methods alone {solo:.1}, ")?;
        }
        write!(f, "the rest {rest:.1}.")?;
        if let Some(bytes) = peak_bytes() {
            write!(f, " {:.1} GB of memory at most.", bytes as f64 / 1e9)?;
        }
        if self.gpu.most_bytes > 0 { write!(f, "\n{}", self.gpu) } else { Ok(()) }
    }
}

/// What is there of a run that did not end, and how to `go_on`.
fn kept(out: &Path, go_on: &str) -> Option<String> {
    let count = load_records(out).map_or(0, |l| l.records.len());
    let records = if count == 1 { "1 record is".to_owned() } else { format!("{count} records are") };
    (count > 0).then(|| format!("{records} kept; {go_on} with the same command and --out {} --resume", out.display()))
}

fn open_model(config: &RunConfig) -> Result<OpenModel> {
    let source = ModelSource::parse(&config.model)?;
    OpenModel::open(&source, config.dtype, TokenizerOptions { chat: config.chat, ..TokenizerOptions::default() })
}

fn size(model: &OpenModel, config: &RunConfig) -> String {
    let longest = config.lengths.iter().copied().max().unwrap_or(0);
    let weights = megabytes(model.dimensions.weight_bytes());
    match expected_gpu_bytes(model, config) {
        Some(bytes) => format!(
            "{}: {weights} of weights, up to {} of the GPU's memory with an example of {longest} tokens",
            model.id,
            megabytes(bytes)
        ),
        None => {
            let example = megabytes(example_bytes(config, model));
            format!("{}: {weights} of weights, up to {example} more for an example of {longest} tokens", model.id)
        }
    }
}

/// What a run takes at most of the memory of its GPU, if it has one, where it is known how long examples are.
fn expected_gpu_bytes(model: &OpenModel, config: &RunConfig) -> Option<usize> {
    let longest = config.lengths.iter().copied().max().filter(|longest| *longest > 0)?;
    config.device.free_bytes().map(|_| gpu_need(config, model, longest))
}

fn megabytes(bytes: usize) -> String {
    format!("{:.0} MB", bytes as f64 / 1e6)
}

// ---- looking on ----

/// Draws progress and current scores on standard error, and keeps what failed.
struct Watcher {
    on_failure: OnFailure,
    bar: ProgressBar,
    failures: Vec<Failure>,
    scores: Scores,
}

impl Watcher {
    fn new(on_failure: OnFailure) -> Self {
        let bar = ProgressBar::hidden();
        Self { on_failure, bar, failures: Vec::new(), scores: Scores::default() }
    }

    /// Starts to draw; `records` are there already.
    fn begin(&mut self, quiet: bool, records: &[Record]) {
        let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let style = ProgressStyle::with_template("{prefix}{bar:30} {percent}%, {eta} left  {msg}");
        self.bar = ProgressBar::with_draw_target(None, target);
        self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        self.bar.enable_steady_tick(Duration::from_millis(500));
        self.scores.add(records);
        self.scores.current.clear();
    }

    /// The bar is of one model at a time.
    fn begin_model(&mut self, id: &str, number: usize, of: usize) {
        if of > 1 {
            self.bar.set_prefix(format!("{id} ({number} of {of})  "));
        }
        self.bar.reset();
    }

    fn list(&self) {
        for Failure { what, error } in &self.failures {
            eprintln!("failed: {what}: {}", format!("{error:#}").replace('\n', " "));
        }
    }

    /// Lists what failed, which makes the whole a failure; `others` says what became of the rest.
    fn verdict(self, others: &str) -> Result<()> {
        if self.failures.is_empty() {
            return Ok(());
        }
        self.list();
        let parts = if self.failures.len() == 1 { "1 part" } else { &format!("{} parts", self.failures.len()) };
        Err(anyhow!("{parts} of the matrix could not be run; all others {others}"))
    }
}

impl Watch for Watcher {
    fn progress(&mut self, p: Progress<'_>) {
        self.scores.add(p.records);
        self.bar.set_length(p.work);
        self.bar.set_position(p.work_done);
        let place = if p.length > 0 { format!("{} {}", p.task, p.length) } else { p.task.to_owned() };
        let scores = p.records.last().map(|record| self.scores.line(&Place::of(record))).unwrap_or_default();
        self.bar.set_message(format!("{}/{} examples  {place}  {scores}", p.done, p.total));
        if p.ends_cell {
            for place in std::mem::take(&mut self.scores.current) {
                self.bar.println(format!("{place}  {}", self.scores.line(&place)));
            }
        }
    }

    fn failed(&mut self, failure: Failure) -> Result<()> {
        if self.on_failure == OnFailure::Stop {
            return Err(failure.error.context(failure.what));
        }
        self.bar.println(format!("failed: {}: {:#}", failure.what, failure.error));
        self.failures.push(failure);
        Ok(())
    }
}

/// Records that are compared with each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    model: String,
    task: String,
    length: usize,
    protocol: String,
}

impl Place {
    fn of(r: &Record) -> Self {
        let Record { model, task, length, protocol, .. } = r;
        Self { model: model.clone(), task: task.clone(), length: *length, protocol: protocol.clone() }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { model, task, length, protocol } = self;
        let length = if *length > 0 { format!(" {length}") } else { String::new() };
        write!(f, "{model} {task}{length} {protocol}")
    }
}

/// What the records of a method at a place add up to.
#[derive(Debug, Default)]
struct Sum {
    measure: Measure,
    /// Of scores, or of logarithms of perplexities.
    of: f64,
    count: usize,
}

impl Sum {
    /// In percent, or as perplexity.
    fn mean(&self) -> f64 {
        let mean = self.of / self.count.max(1) as f64;
        match self.measure {
            Measure::Score => 100.0 * mean,
            Measure::Perplexity => mean.exp(),
        }
    }

    /// Greater for the better.
    fn merit(&self) -> f64 {
        match self.measure {
            Measure::Score => self.mean(),
            Measure::Perplexity => -self.mean(),
        }
    }
}

/// Mean scores so far, by place and method.
#[derive(Debug, Default)]
struct Scores {
    sums: BTreeMap<Place, BTreeMap<String, Sum>>,
    /// Places that records were added at since they were last told of.
    current: BTreeSet<Place>,
}

impl Scores {
    fn add(&mut self, records: &[Record]) {
        for r in records {
            let place = Place::of(r);
            let label = if r.params.is_empty() { r.method.clone() } else { format!("{}:{}", r.method, r.params) };
            let sum = self.sums.entry(place.clone()).or_default().entry(label).or_default();
            sum.measure = r.measure;
            sum.of += if r.measure == Measure::Score { r.score } else { r.score.ln() };
            sum.count += 1;
            self.current.insert(place);
        }
    }

    /// The reference, the best and the worst of the other methods.
    fn line(&self, place: &Place) -> String {
        let Some(sums) = self.sums.get(place) else { return String::new() };
        let full = sums.get(REFERENCE).map(|sum| format!("{REFERENCE} {:.1}", sum.mean()));
        let mut others: Vec<(&String, &Sum)> = sums.iter().filter(|(label, _)| *label != REFERENCE).collect();
        others.sort_by(|a, b| b.1.merit().total_cmp(&a.1.merit()));
        let ends = match others.as_slice() {
            [] => Vec::new(),
            [only] => vec![*only],
            [best, .., worst] => vec![*best, *worst],
        };
        let ends = ends.into_iter().map(|(label, sum)| format!("{label} {:.1}", sum.mean()));
        full.into_iter().chain(ends).collect::<Vec<_>>().join(", ")
    }
}

// ---- describing ----

/// What is left to run on a model.
struct Description {
    model: String,
    methods: Vec<String>,
    protocols: Vec<String>,
    seeds: Vec<u64>,
    /// Task, length and number of examples.
    cells: Vec<(String, usize, usize)>,
    records: usize,
    estimate: Estimate,
}

impl Description {
    fn outlined(planner: &Planner<'_>) -> Result<Self> {
        let (plan, config) = (planner.outline()?, planner.config);
        let cell = |c: &Cell| (planner.tasks[c.place.task].name().to_owned(), c.place.length, c.examples());
        let examples: usize = plan.cells.iter().map(Cell::examples).sum();
        Ok(Self {
            model: planner.model.id.clone(),
            methods: config.methods.iter().map(|m| m.label()).collect(),
            protocols: config.protocols.iter().map(ToString::to_string).collect(),
            seeds: config.seeds.clone(),
            cells: plan.cells.iter().map(cell).collect(),
            records: examples * config.methods.len() * config.variants().len(),
            estimate: estimate_by_products(planner, &plan)?,
        })
    }

    fn new(runner: &Runner<'_>, left: &Left) -> Result<Self> {
        let config = runner.config;
        let cell = |c: &Cell| (runner.tasks[c.place.task].name().to_owned(), c.place.length, c.examples());
        Ok(Self {
            model: runner.model.id.clone(),
            methods: config.methods.iter().map(|m| m.label()).collect(),
            protocols: config.protocols.iter().map(ToString::to_string).collect(),
            seeds: config.seeds.clone(),
            cells: left.plan.cells.iter().map(cell).collect(),
            records: left.records,
            estimate: runner.estimate(&left.plan)?,
        })
    }
}

fn as_json(models: &[Description]) -> Value {
    let one = |d: &Description| {
        let cell = |(task, length, examples): &(String, usize, usize)| json!({ "task": task, "length": length, "examples": examples });
        let Estimate { prefill, index, steps, bytes } = d.estimate;
        json!({
            "model": d.model,
            "methods": d.methods,
            "protocols": d.protocols,
            "seeds": d.seeds,
            "cells": d.cells.iter().map(cell).collect::<Vec<_>>(),
            "records": d.records,
            "seconds": d.estimate.seconds(),
            "prefill_s": prefill,
            "index_s": index,
            "steps_s": steps,
            "bytes": bytes,
        })
    };
    models.iter().map(one).collect()
}

fn as_text(models: &[Description]) -> String {
    let mut text = String::new();
    for d in models {
        let seeds: Vec<String> = d.seeds.iter().map(u64::to_string).collect();
        let _ = writeln!(
            text,
            "{}, {} methods, sparse from {}, seed {}",
            d.model,
            d.methods.len(),
            d.protocols.join(", "),
            seeds.join(", ")
        );
        d.methods.iter().for_each(|method| text += &format!("  {method}\n"));
        // Examples are those of one seed, each of which has its own.
        let examples = if d.seeds.len() > 1 { "examples a seed" } else { "examples" };
        let width = examples.len() + 1;
        let _ = writeln!(text, "\n{:<32} {:>8} {examples:>width$}", "task", "length");
        for (task, length, examples) in &d.cells {
            let length = if *length > 0 { length.to_string() } else { "by file".to_owned() };
            let _ = writeln!(text, "{task:<32} {length:>8} {examples:>width$}");
        }
        let Estimate { prefill, index, steps, bytes } = d.estimate;
        let [all, prefill, index, steps] = [d.estimate.seconds(), prefill, index, steps].map(duration);
        let _ = writeln!(
            text,
            "\n{} records to make, in about {all} (prefill {prefill}, indexes {index}, steps {steps}), with up to {}\n",
            d.records,
            megabytes(bytes),
        );
    }
    text
}

/// Seconds, minutes or hours.
fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_reference_the_best_and_the_worst() {
        let record = |method: &str, score| crate::eval::record::tests::record("ruler/vt", method, 0, score);
        let mut scores = Scores::default();
        scores.add(&[record("full", 1.0), record("topk", 0.5), record("random", 0.0), record("quest", 0.25)]);
        let place = scores.current.first().unwrap().clone();
        assert_eq!(place.to_string(), "builtin ruler/vt 4096 question");
        assert_eq!(scores.line(&place), "full 100.0, topk 50.0, random 0.0");
        scores.add(&[record("random", 1.0)]);
        assert_eq!(scores.line(&place), "full 100.0, random 50.0, quest 25.0");
    }

    #[test]
    fn of_perplexities_the_least_is_best() {
        let record = crate::eval::record::tests::perplexity;
        let mut scores = Scores::default();
        scores.add(&[record("full", 0, 1.0), record("topk", 0, 3.0), record("quest", 0, 2.0), record("topk", 1, 5.0)]);
        let line = scores.line(scores.current.first().unwrap());
        assert_eq!(line, "full 2.7, quest 7.4, topk 54.6");
    }
}

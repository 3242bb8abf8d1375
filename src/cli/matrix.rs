//! What `eval` and `sweep` do: models and tasks are made ready and checked, the matrix is run or described, and what
//! was recorded is drawn.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use serde_json::{Value, json};

use super::numbers::{duration, megabytes};
use super::output::{print, print_json, width};
use super::progress::Meter;
use super::setup::{find_data, raise_on_interrupt, raise_on_preemption};
use super::{Advised, Done, listed};
use crate::eval::calibration::calibrate::supply;
use crate::eval::config::run_config::RunConfig;
use crate::eval::examples::observer::{Failure, Progress, Watch};
use crate::eval::folder::attempts::{self, Ending, Log};
use crate::eval::folder::owned_files;
use crate::eval::plan::contexts::Shard;
use crate::eval::plan::manifest::{ModelPart, manifest};
use crate::eval::plan::memory::example_bytes;
use crate::eval::plan::planner::{Cell, DealtCell, Plan, Planner, gpu_need};
use crate::eval::plan::renamed::Recorded;
use crate::eval::plan::shard_statement::{self, Stated};
use crate::eval::records::manifest_keys::{MANIFEST, NOTES};
use crate::eval::records::record::{REFERENCE, Record};
use crate::eval::records::store::{OpenMode, Store, check_free, identities, load_manifest, load_records};
use crate::eval::run::estimate::{Estimate, estimate_by_products};
use crate::eval::run::runner::{End, Left, Runner};
use crate::eval::run::stopwatch::Spent;
use crate::eval::summary::prefill_savings::Sharing;
use crate::eval::summary::running_scores::{Place, Scored, Scores};
use crate::eval::summary::self_checks::in_short;
use crate::launch::plan::{PlannedCell, PlannedShard};
use crate::report::table::Form;
use crate::report::{Report, Written, json, merge, table};
use crate::tune::Batch;
use spattn_attention::Configured;
use spattn_base::error::{UsageError, in_one_line};
use spattn_base::memory::peak_bytes;
use spattn_base::privacy;
use spattn_kernels::precision::set_matmul_precision;
use spattn_model::device::Device;
use spattn_model::engine::GpuUse;
use spattn_model::source::{ModelSource, recorded};
use spattn_model::tokenizer::TokenizerOptions;
use spattn_model::{Model, OpenModel};
use spattn_tasks::{Task, TaskOptions, check_names, resolve_each};

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
    /// Whether the folder's name was made up here, and another will do where somebody has it.
    pub is_unnamed: bool,
    pub mode: OpenMode,
    pub quiet: bool,
    pub json: bool,
    pub on_failure: OnFailure,
    /// Whether it is only planned here, for other machines to run it.
    pub is_elsewhere: bool,
}

/// Who asks for a run batch by batch, going by what was recorded so far.
pub(super) trait Asks {
    /// Makes sure that the tasks can be asked about.
    ///
    /// # Errors
    /// If one cannot.
    fn check(&self, tasks: &[Box<dyn Task>]) -> Result<()>;

    /// Takes in records: those that are there, and those that are made.
    fn take(&mut self, records: &[Record]);

    /// What to run next, all that was asked for before being recorded; `None` for nothing more.
    fn next(&mut self, tasks: &[Box<dyn Task>]) -> Option<Batch>;
}

/// Tells who asks of each record, and whoever looks on of everything.
struct Told<'a> {
    watcher: &'a mut Watcher,
    asks: &'a mut dyn Asks,
}

impl Watch for Told<'_> {
    fn progress(&mut self, progress: Progress<'_>) {
        self.asks.take(progress.records);
        self.watcher.progress(progress);
    }

    fn failed(&mut self, failure: Failure) -> Result<()> {
        self.watcher.failed(failure)
    }

    fn mended(&mut self, failure: &Failure) {
        self.watcher.mended(failure);
    }
}

/// A run that is ready to start.
struct Ready {
    tasks: Tasks,
    /// Where the data are, as records are identified by it.
    data: Option<String>,
    /// What the folder has recorded, if it is gone on with.
    recorded: Recorded,
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

/// A matrix in shards.
pub(super) struct Shares {
    /// By model, task and length.
    pub cells: Vec<PlannedCell>,
    pub shards: Vec<PlannedShard>,
    /// What cannot be run, as far as that is known.
    pub failed: Vec<attempts::Failed>,
}

impl Slot {
    fn opened(&self) -> &OpenModel {
        match &self.model {
            Slotted::Loaded(model) => model,
            Slotted::Open(model) => model,
        }
    }
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
    fn planner<'a>(&'a self, config: &'a RunConfig, model: &'a OpenModel, run: &Run) -> Planner<'a> {
        let (shard, is_elsewhere) = (run.shard, run.is_elsewhere);
        Planner { model, config, tasks: &self.tasks, data: self.data.as_deref(), shard, is_elsewhere }
    }
}

impl Run {
    /// Runs what is not recorded yet, and prints the table.
    pub fn start(self) -> Result<Done> {
        self.run(Self::stated, Self::run_all, Self::finish)
    }

    /// Runs what is not recorded yet, and draws nothing.
    pub fn record(self) -> Result<Done> {
        self.run(Self::stated, Self::run_all, |_, _| Ok(()))
    }

    /// Runs what is asked for, of the only model, batch by batch; tells how long it took, and draws nothing.
    pub fn answer(self, asks: &mut dyn Asks) -> Result<Done> {
        let quiet = self.quiet;
        let took = |_: &Self, took: Took| {
            if !quiet {
                eprintln!("{took}");
            }
            Ok(())
        };
        // How many records there will be is not known before they are asked for.
        let unstated = |_: &Self, _: &Ready| Ok(None);
        self.run(unstated, |run, ready, store, stop, watcher| run.run_batches(ready, store, stop, watcher, asks), took)
    }

    /// What is to be made here.
    fn stated(&self, ready: &Ready) -> Result<Option<Stated>> {
        let (mut records, mut whole) = (0usize, 0usize);
        for slot in &ready.slots {
            let planner = ready.planner(&slot.config, slot.opened(), self);
            let own = shard_statement::records(&planner, &slot.plan);
            let all = if self.shard.count == 1 { own } else { shard_statement::whole(&planner, &slot.plan)? };
            (records, whole) = (records.saturating_add(own), whole.saturating_add(all));
        }
        Ok(Some(Stated::new(self.shard, records, whole)))
    }

    fn run(
        mut self,
        stated: impl FnOnce(&Self, &Ready) -> Result<Option<Stated>>,
        work: impl FnOnce(&Self, &mut Ready, &mut Store, &AtomicBool, &mut Watcher) -> Result<(End, Took)>,
        finish: impl FnOnce(&Self, Took) -> Result<()>,
    ) -> Result<Done> {
        let (stop, is_planning) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
        let is_preempted = raise_on_preemption(&stop, &is_planning)?;
        if !self.is_unnamed {
            self.check_free()?;
        }
        self.settle_privacy()?;
        let mut watcher = Watcher::new(self.on_failure);
        let mut ready = self.ready(&mut watcher)?;
        if self.is_unnamed {
            self.out = new_folder(&self.out)?;
        }
        let mut store = self.open_store(&ready, stated(&self, &ready)?)?;
        let place = store.place()?;
        store.notices().iter().for_each(|n| eprintln!("note: {n}"));
        is_planning.store(false, Ordering::Relaxed);
        if self.on_failure == OnFailure::GoOn {
            watcher.keep_log(&self.out, store.records().len())?;
        }
        raise_on_interrupt(&stop)?;
        watcher.begin(self.quiet, store.records());
        let ran = work(&self, &mut ready, &mut store, &stop, &mut watcher);
        watcher.meter.end();
        let ending = match &ran {
            Ok((End::Complete, _)) => Ending::Done,
            Ok((End::Interrupted, _)) => Ending::Stopped,
            Err(_) => Ending::Error,
        };
        if let Some(log) = watcher.log.take() {
            log.end(ending, store.count(), ran.as_ref().err())?;
        }
        drop(store);
        // What was moved away meanwhile is not there to be drawn.
        let ran = ran.and_then(|ran| Ok(place.check().map(|()| ran)?));
        if ending == Ending::Stopped {
            let kept = kept(&self.out, "go on").unwrap_or_else(|| "nothing was recorded yet".to_owned());
            let is_preempted = is_preempted.load(Ordering::Relaxed);
            eprintln!("{}: {kept}", if is_preempted { "told to stop" } else { "interrupted" });
            return Ok(if is_preempted { Done::Preempted } else { Done::Interrupted });
        }
        let ended = ran.and_then(|(_, took)| finish(&self, took)).and_then(|()| Ok(place.check()?));
        let ended = ended.and_then(|()| watcher.verdict("are done"));
        let is_in_place = place.check().is_ok();
        match (ended, kept(&self.out, "once that is mended, go on").filter(|_| is_in_place)) {
            (Err(error), Some(advice)) => Err(Advised { error, advice }.into()),
            (ended, _) => ended.map(|()| Done::Completed),
        }
    }

    /// That the folder can be written, as far as that can be seen.
    fn check_free(&self) -> Result<(), UsageError> {
        check_free(&self.out, self.mode)?;
        match self.on_failure {
            OnFailure::Stop => Ok(()),
            OnFailure::GoOn => owned_files::check(&self.out, &owned_files::ATTEMPTS),
        }
    }

    /// Runs the models one after the other, until all are done or `stop` is raised.
    fn run_all(
        &self,
        ready: &mut Ready,
        store: &mut Store,
        stop: &AtomicBool,
        watcher: &mut Watcher,
    ) -> Result<(End, Took)> {
        let (start, mut spent, mut gpu) = (Instant::now(), Spent::default(), GpuUse::default());
        let models = ready.slots.len();
        while let Some(Slot { config, plan, part, model }) = ready.slots.pop_front() {
            watcher.begin_model(&part.id, models - ready.slots.len(), models);
            let model = match model.load(config.device) {
                Ok(model) => model,
                Err(error) => {
                    watcher.failed(Failure { what: part.id, error })?;
                    continue;
                }
            };
            let runner = Runner { planner: ready.planner(&config, &model, self), model: &model };
            let ran = runner.run(plan, store, stop, watcher);
            let expected_bytes = expected_gpu_bytes(&model, &config).unwrap_or(0);
            gpu += GpuUse { expected_bytes, ..model.decoder.gpu_use().unwrap_or_default() };
            let (end, of_model) = ran?;
            spent += of_model;
            if end == End::Interrupted {
                return Ok((end, Took { all: start.elapsed(), spent, gpu }));
            }
        }
        Ok((End::Complete, Took { all: start.elapsed(), spent, gpu }))
    }

    /// Runs what is asked for on the first model, until nothing more is or `stop` is raised.
    fn run_batches(
        &self,
        ready: &mut Ready,
        store: &mut Store,
        stop: &AtomicBool,
        watcher: &mut Watcher,
        asks: &mut dyn Asks,
    ) -> Result<(End, Took)> {
        let (start, mut spent) = (Instant::now(), Spent::default());
        let Some(Slot { config, model, .. }) = ready.slots.pop_front() else {
            return Err(anyhow!("there is no model to run"));
        };
        let model = model.load(config.device)?;
        asks.check(&ready.tasks)?;
        asks.take(store.records());
        let mut end = End::Complete;
        while let Some(Batch { labels, samples }) = asks.next(&ready.tasks) {
            let is_asked = |m: &Configured| m.label() == REFERENCE || labels.contains(&m.label());
            let methods: Vec<Configured> = config.methods.iter().filter(|m| is_asked(m)).cloned().collect();
            watcher.begin_batch(samples, methods.len());
            let config = RunConfig { methods, samples, ..config.clone() };
            let runner = Runner { planner: ready.planner(&config, &model, self), model: &model };
            let mut told = Told { watcher, asks };
            let plan = runner.plan(&mut told)?;
            let (ended, of_batch) = runner.run(plan, store, stop, &mut told)?;
            spent += of_batch;
            if ended == End::Interrupted {
                end = ended;
                break;
            }
        }
        let expected_bytes = expected_gpu_bytes(&model, &config).unwrap_or(0);
        let gpu = GpuUse { expected_bytes, ..model.decoder.gpu_use().unwrap_or_default() };
        Ok((end, Took { all: start.elapsed(), spent, gpu }))
    }

    /// Leaves the user out of what is written, if that was asked for.
    ///
    /// # Errors
    /// A [`UsageError`] if the folder began the other way, or if prompts are kept that would say what is left out.
    fn settle_privacy(&self) -> Result<(), UsageError> {
        let config = &self.configs[0];
        if self.mode == OpenMode::Resume
            && let Ok(stored) = load_manifest(&self.out)
        {
            let (began, named) = (stored["config"]["anonymous"] == true, self.out.display());
            match (began, config.anonymous) {
                (true, false) => {
                    return Err(UsageError::new(format!("{named} was begun with --anonymous"))
                        .hint("add --anonymous, or choose another --out folder"));
                }
                (false, true) => {
                    return Err(UsageError::new(format!("{named} was begun without --anonymous"))
                        .hint("leave it out, and then: spattn report DIR --anonymous --out OTHER"));
                }
                _ => {}
            }
        }
        if config.anonymous && config.keep_prompts && config.system_prompt.is_some() {
            return Err(UsageError::new("--keep-prompts would keep the system prompt, which --anonymous leaves out")
                .hint("leave one of them out"));
        }
        if config.anonymous {
            privacy::leave_out();
            self.configs.iter().for_each(|config| privacy::tell_of(&config.model));
            config.tasks.iter().for_each(|task| privacy::tell_of(task));
            let folders = [&config.data, &config.calibration].into_iter().flatten().chain([&self.out]);
            folders.for_each(|folder| privacy::tell_of(&folder.to_string_lossy()));
        }
        Ok(())
    }

    /// Whether another model of the run has the name of this one, as it is recorded.
    fn has_twin(&self, model: &str) -> bool {
        let name = recorded(model);
        self.configs.iter().any(|other| other.model != model && recorded(&other.model) == name)
    }

    /// What each of so many shards would do, and what cannot be run, without the weights of a model.
    pub fn shares(mut self, jobs: usize) -> Result<Shares> {
        self.is_elsewhere = true;
        self.shard = Shard { index: 0, count: jobs };
        self.settle_privacy()?;
        let mut watcher = Watcher::new(self.on_failure);
        let ready = self.ready(&mut watcher)?;
        let contexts: usize = ready.slots.iter().map(|slot| self.contexts(&ready, slot)).sum::<Result<usize>>()?;
        // No shard is to have nothing.
        self.shard.count = jobs.min(contexts).max(1);
        let mut shares =
            Shares { cells: Vec::new(), shards: vec![PlannedShard::default(); self.shard.count], failed: Vec::new() };
        for slot in &ready.slots {
            let model = slot.opened();
            let planner = ready.planner(&slot.config, model, &self);
            for cell in
                planner.dealt_to_run()?.iter().filter(|cell| slot.plan.cells.iter().any(|c| c.place == cell.place))
            {
                let records = planner.records_of_example(&slot.plan, cell.place);
                let mut planned = PlannedCell {
                    model: model.id.clone(),
                    task: ready.tasks[cell.place.task].name().to_owned(),
                    length: cell.place.length,
                    contexts: 0,
                    examples: 0,
                    records: 0,
                    work: 0,
                };
                for (shard, size) in shares.shards.iter_mut().zip(cell.sizes(self.shard.count)) {
                    let (of_records, of_work) = (size.examples.saturating_mul(records), size.work);
                    shard.contexts = shard.contexts.saturating_add(size.contexts);
                    shard.records = shard.records.saturating_add(of_records);
                    shard.work = shard.work.saturating_add(of_work);
                    planned.contexts = planned.contexts.saturating_add(size.contexts);
                    planned.examples = planned.examples.saturating_add(size.examples);
                    planned.records = planned.records.saturating_add(of_records);
                    planned.work = planned.work.saturating_add(of_work);
                }
                shares.cells.push(planned);
            }
        }
        watcher.list();
        let failed =
            |f: &Failure| attempts::Failed { what: privacy::text(&f.what), why: privacy::text(&in_one_line(&f.error)) };
        shares.failed = watcher.failures.iter().map(failed).collect();
        Ok(shares)
    }

    /// Contexts of a model's cells, of all shards.
    fn contexts(&self, ready: &Ready, slot: &Slot) -> Result<usize> {
        let model = slot.opened();
        let cells = ready.planner(&slot.config, model, self).dealt_to_run()?;
        let of_cell = |cell: &DealtCell| {
            cell.sizes(self.shard.count).iter().map(|size| size.contexts).fold(0, usize::saturating_add)
        };
        Ok(cells.iter().map(of_cell).fold(0, usize::saturating_add))
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
            let runner = Runner { planner: ready.planner(&config, model, &self), model };
            let left = runner.remaining(&plan, &known);
            models.push(Description::new(&runner, &left)?);
        }
        match self.json {
            true => print_json(&serde_json::to_string_pretty(&as_json(&models))?)?,
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
            let model = match OpenModel::open_without_weights(&source, config.dtype, tokenizer_options(config)) {
                Ok(model) => model,
                Err(error) => {
                    watcher.failed(Failure { what: config.model.clone(), error })?;
                    continue;
                }
            };
            model.notes.iter().for_each(|n| eprintln!("note: {n}"));
            let (data, shard) = (data.as_deref(), self.shard);
            let planner = Planner { model: &model, config, tasks: &tasks, data, shard, is_elsewhere: false };
            models.push(Description::outlined(&planner)?);
        }
        print(&as_text(&models))?;
        watcher.verdict("would be").map(|()| Done::Completed)
    }

    /// Loads and checks everything, before any work.
    fn ready(&self, watcher: &mut Watcher) -> Result<Ready> {
        let (tasks, data) = self.tasks(watcher)?;
        let is_resumed = self.mode == OpenMode::Resume && self.out.join(MANIFEST).is_file();
        let recorded = Recorded(if is_resumed { load_manifest(&self.out).ok() } else { None });
        let data = recorded.name_of_data(&tasks, data);
        let mut ready = Ready { tasks, data, recorded, slots: VecDeque::new(), missing_models: Vec::new() };
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
        let mut model = match open_model(&config) {
            Ok(model) => model,
            Err(error) => {
                watcher.failed(Failure { what: config.model, error })?;
                return Ok(None);
            }
        };
        if privacy::is_left_out() && self.has_twin(&config.model) {
            model.id = privacy::told_apart(&model.id, &model.weights_sha256);
        }
        ready.recorded.name_model(&mut model);
        if let Some(twin) = ready.slots.iter().find(|slot| privacy::is_left_out() && slot.part.id == model.id) {
            let what = format!("{} and {} would be one model in the records", twin.config.model, config.model);
            return Err(UsageError::new(what).hint("give their folders other names").into());
        }
        model.notes.iter().for_each(|n| eprintln!("note: {n}"));
        if !self.quiet && std::io::stderr().is_terminal() {
            eprintln!("{}", size(&model, &config));
        }
        let mut methods = Vec::new();
        for mut method in std::mem::take(&mut config.methods) {
            match supply(std::slice::from_mut(&mut method), &model, config.calibration.as_deref()) {
                Ok(()) => methods.push(method),
                Err(error) => {
                    watcher.failed(Failure { what: format!("{}, {}", model.id, method.label()), error })?;
                }
            }
        }
        config.methods = methods;
        let plan = ready.planner(&config, &model, self).plan(watcher)?;
        plan.notes.iter().for_each(|n| eprintln!("note: {n}"));
        let part = ModelPart::new(&config, &model, ready.data.as_deref());
        // Only now that all is known to fit into memory.
        let is_loaded = self.configs.len() == 1 && !self.is_elsewhere && !plan.cells.is_empty();
        let slotted = match is_loaded {
            true => model.load(config.device).map(|model| Slotted::Loaded(Box::new(model))),
            false => Ok(Slotted::Open(Box::new(model))),
        };
        match slotted {
            Ok(model) => Ok(Some(Slot { config, plan, part, model })),
            Err(error) => {
                watcher.failed(Failure { what: config.model, error })?;
                Ok(None)
            }
        }
    }

    fn open_store(&self, ready: &Ready, stated: Option<Stated>) -> Result<Store> {
        let parts: Vec<ModelPart> = ready.slots.iter().map(|slot| slot.part.clone()).collect();
        let mut kept = Vec::new();
        // Records of models that cannot be loaded now stay what they are.
        if self.mode == OpenMode::Resume && !ready.missing_models.is_empty() {
            let stored = load_manifest(&self.out).unwrap_or_default();
            let is_of = |stored: &str, model: &String| {
                let name = recorded(model);
                stored == name || stored.strip_prefix(&name).is_some_and(|rest| rest.starts_with('@'))
            };
            let is_missing = |i: &&Value| {
                i["model"].as_str().is_some_and(|stored| ready.missing_models.iter().any(|model| is_of(stored, model)))
            };
            kept = identities(&stored).into_iter().filter(is_missing).cloned().collect();
        }
        let settings = &self.configs[0].settings;
        let mut manifest = manifest(settings, &parts, &ready.tasks, kept, &privacy::command());
        stated.into_iter().for_each(|stated| stated.put(&mut manifest));
        let of_plans = ready.slots.iter().flat_map(|slot| slot.plan.notes.clone());
        let notes: Vec<String> = ready.tasks.iter().flat_map(|task| task.notes()).chain(of_plans).collect();
        if !notes.is_empty() {
            // Who reads the records later has to know as well.
            manifest[NOTES] = notes.iter().map(|note| privacy::text(note)).collect();
        }
        Store::open_checked(&self.out, self.mode, &manifest, |stored, loaded| {
            ready.slots.iter().try_for_each(|slot| {
                let planner = ready.planner(&slot.config, slot.opened(), self);
                planner.check_recorded(&self.out, stored, &loaded.records)?;
                planner.leave_out_other_forms(loaded);
                Ok(())
            })
        })
    }

    /// Draws everything from the stored records, and prints the table or JSON.
    fn finish(&self, took: Took) -> Result<()> {
        let merged = merge::read(std::slice::from_ref(&self.out))?;
        let report = Report::of(&merged);
        let Written { files, not_drawn } = report.write_all(&self.out)?;
        if self.json {
            in_short(&report.warnings).iter().for_each(|(_, line)| eprintln!("warning: {line}"));
            not_drawn.iter().for_each(|line| eprintln!("note: {line}"));
            return print_json(&json::render(&report.rows)?);
        }
        let mut text = table::render(&report, Form { width: width(), no_intervals: false });
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
        text.extend(not_drawn.map(|line| format!("{line}\n")));
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

/// Makes a folder of a name, or, where that is there, of the name with a number.
fn new_folder(name: &Path) -> Result<PathBuf, UsageError> {
    let unwritable = |e: std::io::Error| {
        UsageError::new(format!("cannot write to the folder {}: {e}", name.display())).hint("choose one with --out DIR")
    };
    if let Some(parent) = name.parent() {
        std::fs::create_dir_all(parent).map_err(unwritable)?;
    }
    for number in 1_u32.. {
        let path = match number {
            1 => name.to_owned(),
            _ => PathBuf::from(format!("{}-{number}", name.display())),
        };
        match std::fs::create_dir(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| path).map_err(unwritable),
        }
    }
    Err(unwritable(std::io::ErrorKind::AlreadyExists.into()))
}

/// What is there of a run that did not end, and how to `go_on`.
fn kept(out: &Path, go_on: &str) -> Option<String> {
    let count = load_records(out).map_or(0, |l| l.records.len());
    let records = if count == 1 { "1 record is".to_owned() } else { format!("{count} records are") };
    (count > 0).then(|| format!("{records} kept; {go_on} with the same command and --out {} --resume", out.display()))
}

fn open_model(config: &RunConfig) -> Result<OpenModel> {
    let source = ModelSource::parse(&config.model)?;
    set_matmul_precision(config.matmul_precision);
    OpenModel::open(&source, config.dtype, tokenizer_options(config))
}

fn tokenizer_options(config: &RunConfig) -> TokenizerOptions {
    TokenizerOptions { chat: config.chat, system: config.system_prompt.clone(), ..TokenizerOptions::default() }
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

// ---- looking on ----

/// So many of the parts that could not be run are listed at the end; a sweep's folder has all.
const MOST_LISTED: usize = 100;

/// Draws progress and current scores on standard error, and keeps what failed.
struct Watcher {
    on_failure: OnFailure,
    meter: Meter,
    failures: Vec<Failure>,
    /// Nothing runs yet.
    is_planning: bool,
    scores: Scores,
    /// Where what happens is noted, if it is.
    log: Option<Log>,
}

impl Watcher {
    fn new(on_failure: OnFailure) -> Self {
        let (meter, scores) = (Meter::hidden(), Scores::default());
        Self { on_failure, meter, failures: Vec::new(), is_planning: true, scores, log: None }
    }

    /// Begins to note what happens in a run's folder, what happened already too.
    fn keep_log(&mut self, out: &Path, records: usize) -> Result<()> {
        let mut log = Log::begin(out, records)?;
        self.failures.iter().try_for_each(|failure| log.failed(&failure.what, &failure.error))?;
        self.log = Some(log);
        Ok(())
    }

    /// Starts to draw; `records` are there already.
    fn begin(&mut self, quiet: bool, records: &[Record]) {
        self.is_planning = false;
        self.meter = Meter::new(quiet, "{prefix}{bar:30} {percent}%, {eta} left  {msg}");
        records.iter().for_each(|record| self.scores.add(&record.into()));
        self.scores.take_current();
    }

    /// The bar is of one model at a time.
    fn begin_model(&mut self, id: &str, number: usize, of: usize) {
        self.meter.begin(if of > 1 { format!("{id} ({number} of {of})  ") } else { String::new() });
    }

    /// The bar is of one batch at a time.
    fn begin_batch(&mut self, samples: usize, methods: usize) {
        self.meter.begin(format!("{samples} samples, {methods} methods  "));
    }

    fn list(&self) {
        for Failure { what, error } in self.failures.iter().take(MOST_LISTED) {
            eprintln!("failed: {what}: {}", in_one_line(error));
        }
        let more = self.failures.len().saturating_sub(MOST_LISTED);
        if more > 0 {
            eprintln!("failed: {more} more");
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
        p.records.iter().for_each(|record| self.scores.add(&record.into()));
        let scores = &self.scores;
        self.meter.at(p.work_done, p.work, p.work_found, || {
            let place = if p.length > 0 { format!("{} {}", p.task, p.length) } else { p.task.to_owned() };
            let scores =
                p.records.last().map(|record| scores.line(&Place::of(&Scored::from(record)))).unwrap_or_default();
            format!("{}/{} examples  {place}  {scores}", p.done, p.total)
        });
        if p.ends_cell {
            for place in self.scores.take_current() {
                self.meter.say(&format!("{place}  {}", self.scores.line(&place)));
            }
        }
    }

    fn failed(&mut self, failure: Failure) -> Result<()> {
        if self.on_failure == OnFailure::Stop {
            // Some errors begin with the model's name already.
            let is_named = failure.error.to_string().starts_with(&format!("{}: ", failure.what));
            return Err(if is_named { failure.error } else { failure.error.context(failure.what) });
        }
        // While a matrix is planned nothing else is shown, and there may be thousands of models to look for.
        match self.is_planning && self.failures.is_empty() {
            true => eprintln!("note: {} cannot be run: {}", failure.what, in_one_line(&failure.error)),
            false => self.meter.say(&format!("failed: {}: {}", failure.what, in_one_line(&failure.error))),
        }
        if let Some(log) = &mut self.log {
            log.failed(&failure.what, &failure.error)?;
        }
        self.failures.push(failure);
        Ok(())
    }

    fn mended(&mut self, Failure { what, error }: &Failure) {
        self.meter.say(&format!("note: {what}: run one by one, since together: {error:#}"));
    }
}

// ---- describing ----

/// What is left to run on a model.
struct Description {
    model: String,
    methods: Vec<String>,
    protocols: Vec<String>,
    seeds: Vec<u64>,
    system_prompt: Option<String>,
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
            system_prompt: config.system_prompt.clone(),
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
            system_prompt: config.system_prompt.clone(),
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
            "system_prompt": d.system_prompt,
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
        if let Some(system) = &d.system_prompt {
            let _ = writeln!(text, "  system prompt: {system:?}");
        }
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

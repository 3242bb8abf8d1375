//! Prepares models and tasks before any work: opens, checks, plans and calibrates.

use std::collections::VecDeque;
use std::io::IsTerminal;

use anyhow::Result;

use super::reporter::ProgressReporter;
use super::request::RunRequest;
use crate::cli::numbers::megabytes;
use crate::cli::setup::find_data;
use spattn_base::error::UsageError;
use spattn_base::privacy;
use spattn_eval::calibration::supply::supply;
use spattn_eval::config::run_config::RunConfig;
use spattn_eval::config::thinking::Thinking;
use spattn_eval::examples::observer::{RunObserver, SkippedWork};
use spattn_eval::plan::manifest::ModelPart;
use spattn_eval::plan::memory::example_bytes;
use spattn_eval::plan::planner::{Planner, RunPlan, gpu_need};
use spattn_eval::plan::renamed::Recorded;
use spattn_eval::records::manifest_keys::MANIFEST;
use spattn_eval::records::store::{OpenMode, load_manifest};
use spattn_kernels::precision::set_matmul_precision;
use spattn_model::device::Device;
use spattn_model::source::ModelSource;
use spattn_model::tokenizer::TokenizerOptions;
use spattn_model::{Model, OpenModel, StorageOptions};
use spattn_tasks::{Task, TaskOptions, check_names, resolve_each};

/// A run that is ready to start.
pub(super) struct PreparedRun {
    pub(super) tasks: Tasks,
    /// The source of the data, as it identifies records.
    pub(super) data: Option<String>,
    /// What the folder has recorded, if it is resumed.
    pub(super) recorded: Recorded,
    /// The models that remain to be run.
    pub(super) jobs: VecDeque<ModelJob>,
    /// The models that cannot be run, as the user named them.
    pub(super) missing_models: Vec<String>,
}

/// The tasks of a run.
pub(super) type Tasks = Vec<Box<dyn Task>>;

/// A model, and the plan of its runs.
pub(super) struct ModelJob {
    pub(super) config: RunConfig,
    pub(super) plan: RunPlan,
    pub(super) part: ModelPart,
    pub(super) model: ModelHandle,
}

impl ModelJob {
    pub(super) fn opened(&self) -> &OpenModel {
        match &self.model {
            ModelHandle::Loaded(model) => model,
            ModelHandle::Open(model) => model,
        }
    }
}

/// A model before it runs: loaded, or opened without weights.
pub(super) enum ModelHandle {
    /// The only model of a run: its weights are loaded before any work.
    Loaded(Box<Model>),
    /// One of several models: the weights of two are never in memory at once.
    Open(Box<OpenModel>),
}

impl ModelHandle {
    pub(super) fn load(self, device: Device) -> Result<Model> {
        match self {
            Self::Loaded(model) => Ok(*model),
            Self::Open(model) => model.load(device),
        }
    }
}

impl PreparedRun {
    pub(super) fn planner<'a>(&'a self, config: &'a RunConfig, model: &'a OpenModel, run: &RunRequest) -> Planner<'a> {
        let (shard, is_elsewhere) = (run.shard, run.is_elsewhere);
        Planner { model, config, tasks: &self.tasks, data: self.data.as_deref(), shard, is_elsewhere }
    }
}

pub(super) fn open_model(config: &RunConfig) -> Result<OpenModel> {
    let source = ModelSource::parse(&config.model)?;
    set_matmul_precision(config.matmul_precision);
    OpenModel::open(&source, storage_options(config), tokenizer_options(config))
}

pub(super) fn storage_options(config: &RunConfig) -> StorageOptions {
    StorageOptions { dtype: config.dtype, dequantise: config.dequantise }
}

pub(super) fn tokenizer_options(config: &RunConfig) -> TokenizerOptions {
    TokenizerOptions {
        chat: config.chat,
        thinking: config.thinking == Thinking::On,
        system: config.system_prompt.clone(),
    }
}

pub(super) fn size(model: &OpenModel, config: &RunConfig) -> String {
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

/// The most GPU memory that a run needs; `None` on the CPU, or if the lengths of examples are unknown.
pub(super) fn expected_gpu_bytes(model: &OpenModel, config: &RunConfig) -> Option<usize> {
    let longest = config.lengths.iter().copied().max().filter(|longest| *longest > 0)?;
    config.device.free_bytes().map(|_| gpu_need(config, model, longest))
}

impl RunRequest {
    /// Loads and checks everything before any work.
    pub(super) fn ready(&self, reporter: &mut ProgressReporter) -> Result<PreparedRun> {
        let (tasks, data) = self.tasks(reporter)?;
        let is_resumed = self.mode == OpenMode::Resume && self.out.join(MANIFEST).is_file();
        let recorded = Recorded(if is_resumed { load_manifest(&self.out).ok() } else { None });
        let data = recorded.name_of_data(&tasks, data);
        let mut ready = PreparedRun { tasks, data, recorded, jobs: VecDeque::new(), missing_models: Vec::new() };
        for config in &self.configs {
            match self.job(config.clone(), &ready, reporter)? {
                Some(job) => ready.jobs.push_back(job),
                None => ready.missing_models.push(config.model.clone()),
            }
        }
        let runs = ready.jobs.iter().any(|job| !job.plan.cells.is_empty());
        match runs || reporter.failures.is_empty() {
            true => Ok(ready),
            // Nothing can run, so report the first failure as the error.
            false => {
                let first = reporter.failures.remove(0).error;
                reporter.list();
                Err(first)
            }
        }
    }

    /// The tasks, and the source of their data, as it identifies records.
    pub(super) fn tasks(&self, reporter: &mut ProgressReporter) -> Result<(Tasks, Option<String>)> {
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
                Err(error) => reporter.failed(SkippedWork { what, error })?,
            }
        }
        check_names(&tasks)?;
        tasks.iter().flat_map(|t| t.notes()).for_each(|n| eprintln!("note: {n}"));
        Ok((tasks, data.map(|d| d.id)))
    }

    /// A model with the plan of its runs; `None` if it cannot be loaded.
    pub(super) fn job(
        &self,
        mut config: RunConfig,
        ready: &PreparedRun,
        reporter: &mut ProgressReporter,
    ) -> Result<Option<ModelJob>> {
        let mut model = match open_model(&config) {
            Ok(model) => model,
            Err(error) => {
                reporter.failed(SkippedWork { what: config.model, error })?;
                return Ok(None);
            }
        };
        if privacy::is_left_out() && self.has_twin(&config.model) {
            model.id = privacy::told_apart(&model.id, &model.weights_sha256);
        }
        ready.recorded.name_model(&mut model);
        if let Some(twin) = ready.jobs.iter().find(|job| privacy::is_left_out() && job.part.id == model.id) {
            let what = format!("{} and {} would have one name in the records", twin.config.model, config.model);
            return Err(UsageError::new(what).hint("rename one of their folders").into());
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
                    reporter.failed(SkippedWork { what: format!("{}, {}", model.id, method.label()), error })?;
                }
            }
        }
        config.methods = methods;
        let plan = ready.planner(&config, &model, self).plan(reporter)?;
        plan.notes.iter().for_each(|n| eprintln!("note: {n}"));
        let part = ModelPart::new(&config, &model, ready.data.as_deref());
        // Weights are loaded only now that everything is known to fit into memory.
        let is_loaded = self.configs.len() == 1 && !self.is_elsewhere && !plan.cells.is_empty();
        let handle = match is_loaded {
            true => model.load(config.device).map(|model| ModelHandle::Loaded(Box::new(model))),
            false => Ok(ModelHandle::Open(Box::new(model))),
        };
        match handle {
            Ok(model) => Ok(Some(ModelJob { config, plan, part, model })),
            Err(error) => {
                reporter.failed(SkippedWork { what: config.model, error })?;
                Ok(None)
            }
        }
    }
}

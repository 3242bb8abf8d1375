//! Prepares models and tasks before any work: opens, checks, plans and calibrates.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::path::Path;

use anyhow::Result;

use super::reporter::ProgressReporter;
use super::request::RunRequest;
use crate::cli::setup::find_data;
use spattn_attention::kv::KvDtype;
use spattn_base::error::UsageError;
use spattn_base::{disk, privacy, text};
use spattn_eval::calibration::supply::supply;
use spattn_eval::config::run_config::RunConfig;
use spattn_eval::config::thinking::Thinking;
use spattn_eval::examples::observer::{RunObserver, SkippedWork};
use spattn_eval::plan::gpu_memory::{GpuNeed, gpu_needs, listed, placement};
use spattn_eval::plan::manifest::ModelPart;
use spattn_eval::plan::memory::{bytes_of_example, disk_of_example};
use spattn_eval::plan::planner::{Planner, RunPlan};
use spattn_eval::plan::renamed::Recorded;
use spattn_eval::records::manifest_keys::MANIFEST;
use spattn_eval::records::store::{OpenMode, load_manifest};
use spattn_kernels::precision::set_matmul_precision;
use spattn_model::device::{Device, Placement};
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

/// A model before its run: loaded, or opened without weights.
pub(super) enum ModelHandle {
    /// The only model of a run. Its weights are loaded before any work.
    Loaded(Box<Model>),
    /// One of several models. The weights of two models are never in memory at once.
    Open(Box<OpenModel>),
}

impl ModelHandle {
    pub(super) fn load(self, placement: Placement) -> Result<Model> {
        match self {
            Self::Loaded(model) => Ok(*model),
            Self::Open(model) => model.load(placement),
        }
    }
}

impl PreparedRun {
    pub(super) fn planner<'a>(&'a self, config: &'a RunConfig, model: &'a OpenModel, run: &RunRequest) -> Planner<'a> {
        let (shard, is_elsewhere) = (run.shard, run.is_elsewhere);
        Planner { model, config, tasks: &self.tasks, data: self.data.as_deref(), shard, is_elsewhere }
    }
}

/// Opens a model. Only a plan without records can do without the identity of its weights.
fn open_model(config: &RunConfig, purpose: Purpose) -> Result<OpenModel> {
    let source = ModelSource::parse(&config.model)?;
    set_matmul_precision(config.matmul_precision);
    match purpose {
        Purpose::Plan => OpenModel::open_to_plan(&source, storage_options(config), tokenizer_options(config)),
        Purpose::Run | Purpose::Resume => OpenModel::open(&source, storage_options(config), tokenizer_options(config)),
    }
}

/// Why a run is prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To run it here. A single model is loaded.
    Run,
    /// To plan the rest of a run whose records name the weights.
    Resume,
    /// To plan a run without records. No weights are read.
    Plan,
}

fn storage_options(config: &RunConfig) -> StorageOptions {
    let unnamed = if config.device == Device::Cpu { KvDtype::F32 } else { KvDtype::Bf16 };
    StorageOptions { dtype: config.dtype, unnamed, dequantise: config.dequantise }
}

fn tokenizer_options(config: &RunConfig) -> TokenizerOptions {
    TokenizerOptions {
        chat: config.chat,
        thinking: config.thinking == Thinking::On,
        system: config.system_prompt.clone(),
    }
}

/// The memory that a model needs with the longest prompt of its plan.
fn needs(model: &OpenModel, config: &RunConfig, plan: &RunPlan) -> String {
    let (id, weights, longest) = (&model.id, model.dimensions.weight_bytes(), plan.longest());
    let text = |bytes: usize| text::size(bytes as u64);
    let of = format!("weights {}, longest prompt {longest} tokens", text(weights));
    match &gpu_memory(model, config, longest)[..] {
        [] => {
            let bytes = weights.saturating_add(bytes_of_example(config, model, longest));
            let of_tier = disk_of_example(config, model, longest).map_or_else(String::new, |disk| {
                format!(", pages of the KV cache {}) and {} on disk", text(disk.pages), text(disk.disk))
            });
            let end = if of_tier.is_empty() { ")" } else { &of_tier };
            format!("{id} needs about {} of memory ({of}{end}, and what methods store", text(bytes))
        }
        [one] => format!("{id} needs about {} of the GPU's memory ({of})", text(one.bytes)),
        several => format!("{id} needs about {} ({of})", listed(several)),
    }
}

/// Checks that the KV cache of the longest prompt fits on the disk of a folder that has `free` bytes. Nothing is checked if that is
/// unknown, or if the KV cache is not kept there.
///
/// # Errors
/// If the KV cache does not fit.
fn check_disk(
    model: &OpenModel,
    config: &RunConfig,
    longest: usize,
    (folder, free): (&Path, Option<u64>),
) -> Result<(), UsageError> {
    let needed = disk_of_example(config, model, longest).map_or(0, |disk| disk.disk as u64);
    let Some(free) = free.filter(|free| needed > *free) else { return Ok(()) };
    let (needed, free) = (text::size(needed), text::size(free));
    let what = format!("the KV cache of {longest} tokens of {} takes {needed} on disk", model.id);
    Err(UsageError::new(format!("{what}, and {} has {free} free", folder.display()))
        .hint("make room, choose another disk by --out, or a shorter --length"))
}

/// The most memory that a run needs on each GPU with a prompt of `longest` tokens; empty on the CPU, or if no prompt's length is known.
pub(super) fn gpu_memory(model: &OpenModel, config: &RunConfig, longest: usize) -> Vec<GpuNeed> {
    if longest == 0 { Vec::new() } else { gpu_needs(config, model, longest).unwrap_or_default() }
}

/// The most memory that a run needs on all GPUs together, from [`gpu_memory`]; `None` if their free memory is unknown.
pub(super) fn expected_gpu_bytes(model: &OpenModel, config: &RunConfig) -> Option<usize> {
    let needs = gpu_memory(model, config, config.lengths.iter().copied().max().unwrap_or(0));
    let is_known = needs.iter().any(|need| need.free().is_some());
    is_known.then(|| needs.iter().map(|need| need.bytes).fold(0, usize::saturating_add))
}

impl RunRequest {
    /// Loads and checks everything before any work.
    pub(super) fn ready(&self, purpose: Purpose, reporter: &mut ProgressReporter) -> Result<PreparedRun> {
        let (tasks, data) = self.tasks(reporter)?;
        let is_resumed = self.mode == OpenMode::Resume && self.out.join(MANIFEST).is_file();
        let recorded = Recorded(if is_resumed { load_manifest(&self.out).ok() } else { None });
        let data = recorded.name_of_data(&tasks, data);
        let mut ready = PreparedRun { tasks, data, recorded, jobs: VecDeque::new(), missing_models: Vec::new() };
        for config in &self.configs {
            match self.job(config.clone(), purpose, &ready, reporter)? {
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

    /// The tasks, and the source of their data as records name it.
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
        purpose: Purpose,
        ready: &PreparedRun,
        reporter: &mut ProgressReporter,
    ) -> Result<Option<ModelJob>> {
        let mut model = match open_model(&config, purpose) {
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
        if purpose == Purpose::Run && !self.quiet && std::io::stderr().is_terminal() {
            eprintln!("{}", needs(&model, &config, &plan));
        }
        if !self.is_elsewhere {
            check_disk(&model, &config, plan.longest(), (&self.out, disk::free_bytes(&self.out)))?;
        }
        let part = ModelPart::new(&config, &model, ready.data.as_deref());
        // Weights are loaded last, once the plan and the checks of memory and disk have passed.
        let is_loaded =
            purpose == Purpose::Run && self.configs.len() == 1 && !self.is_elsewhere && !plan.cells.is_empty();
        let handle = match is_loaded {
            true => model.load(placement(&config)).map(|model| ModelHandle::Loaded(Box::new(model))),
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

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::config::settings::Settings;

    #[test]
    fn a_kv_cache_that_does_not_fit_on_the_disk_is_refused_before_the_run() {
        let model =
            OpenModel::open_to_plan(&ModelSource::Builtin, StorageOptions::default(), TokenizerOptions::default());
        let model = model.unwrap();
        let check = |more: &str, free: Option<u64>| {
            let text = format!("tasks = ['ruler/vt']\nmethods = ['quest']\n{more}");
            let config = RunConfig::resolve_single(Settings::parse(&text, "test").unwrap()).unwrap();
            check_disk(&model, &config, 8192, (Path::new("some/run"), free))
        };
        let on_disk = "kv_tier = 'disk'\nkv_memory = '2M'";
        let needed = 8192 * model.dimensions.kv_bytes_per_token() as u64;
        assert!(check(on_disk, Some(needed)).is_ok() && check(on_disk, None).is_ok());
        assert!(check("", Some(0)).is_ok(), "in memory it takes no disk");
        let error = check(on_disk, Some(needed - 1)).unwrap_err();
        let size = text::size(needed);
        let expected = format!(
            "the KV cache of 8192 tokens of builtin takes {size} on disk, and some/run has {} free",
            text::size(needed - 1)
        );
        assert_eq!(error.what, expected);
        assert!(error.hint.unwrap().contains("--out"));
    }
}

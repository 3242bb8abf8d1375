//! `--dry-run`: prints what would run, and its cost. Nothing is run or written.

use anyhow::Result;

use super::plan_text::{PlanSummary, as_json, as_text};
use super::prepare::{ModelJob, storage_options, tokenizer_options};
use super::reporter::ProgressReporter;
use super::request::RunRequest;
use crate::cli::exit::Done;
use crate::cli::output::{print, print_json};
use spattn_eval::examples::observer::{RunObserver, SkippedWork};
use spattn_eval::plan::planner::Planner;
use spattn_eval::records::store::{OpenMode, load_records};
use spattn_eval::run::runner::Runner;
use spattn_kernels::precision::set_matmul_precision;
use spattn_model::OpenModel;
use spattn_model::source::ModelSource;

impl RunRequest {
    /// Prints what would run, and its cost.
    pub fn describe(self) -> Result<Done> {
        let mut reporter = ProgressReporter::new(self.on_failure);
        let mut ready = self.ready(&mut reporter)?;
        let known = match self.mode {
            OpenMode::Resume if self.out.exists() => load_records(&self.out).map_or_else(|_| Vec::new(), |l| l.records),
            _ => Vec::new(),
        };
        let mut models = Vec::new();
        while let Some(ModelJob { config, plan, model, .. }) = ready.jobs.pop_front() {
            let model = &model.load(config.device)?;
            let runner = Runner { planner: ready.planner(&config, model, &self), model };
            let left = runner.remaining(&plan, &known);
            models.push(PlanSummary::new(&runner, &left)?);
        }
        match self.json {
            true => print_json(&serde_json::to_string_pretty(&as_json(&models))?)?,
            false => print(&as_text(&models))?,
        }
        reporter.verdict("would run").map(|()| Done::Completed)
    }

    /// Prints what would run, and its approximate cost, for models whose weights may be missing.
    pub fn outline(self) -> Result<Done> {
        let mut reporter = ProgressReporter::new(self.on_failure);
        let (tasks, data) = self.tasks(&mut reporter)?;
        let mut models = Vec::new();
        for config in &self.configs {
            let source = ModelSource::parse(&config.model)?;
            set_matmul_precision(config.matmul_precision);
            let opened = OpenModel::open_without_weights(&source, storage_options(config), tokenizer_options(config));
            let model = match opened {
                Ok(model) => model,
                Err(error) => {
                    reporter.failed(SkippedWork { what: config.model.clone(), error })?;
                    continue;
                }
            };
            model.notes.iter().for_each(|n| eprintln!("note: {n}"));
            let (data, shard) = (data.as_deref(), self.shard);
            let planner = Planner { model: &model, config, tasks: &tasks, data, shard, is_elsewhere: false };
            models.push(PlanSummary::outlined(&planner)?);
        }
        print(&as_text(&models))?;
        reporter.verdict("would run").map(|()| Done::Completed)
    }
}

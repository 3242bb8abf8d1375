//! The dry run (`--dry-run`): says what would run and what it takes, and fails where the run would. Nothing is run or written; weights
//! are read only to measure a GPU.

use anyhow::Result;
use serde_json::Value;

use super::outlook::outlooks;
use super::plan_text::{PlanSummary, TimedOn, as_json, as_text, what_times_are_for};
use super::prepare::{Purpose, gpu_memory};
use super::reporter::ProgressReporter;
use super::request::RunRequest;
use crate::cli::exit::Done;
use crate::cli::output::{print, print_json};
use spattn_base::error::in_one_line;
use spattn_eval::plan::gpu_memory::GpuNeed;
use spattn_eval::plan::planner::Planner;
use spattn_eval::records::manifest_keys::MANIFEST;
use spattn_eval::records::store::{OpenMode, load_manifest, load_records};
use spattn_eval::run::density_floor::unmet;
use spattn_eval::run::estimate::Probe;
use spattn_eval::summary::demand::Demand;
use spattn_model::device::Device;

impl RunRequest {
    /// Prints what would run, its approximate cost, and which verdicts would be too uncertain.
    pub fn describe(self) -> Result<Done> {
        self.outline(true)
    }

    /// Does the same for a run whose methods are not held to a limit.
    pub fn describe_without_verdicts(self) -> Result<Done> {
        self.outline(false)
    }

    fn outline(self, is_judged: bool) -> Result<Done> {
        self.settle_privacy()?;
        let is_resumed = self.mode == OpenMode::Resume && self.out.join(MANIFEST).is_file();
        let purpose = if is_resumed { Purpose::Resume } else { Purpose::Plan };
        let mut reporter = ProgressReporter::new(self.on_failure);
        let mut ready = self.ready(purpose, &mut reporter)?;
        let before = if is_resumed { load_manifest(&self.out).unwrap_or_default() } else { Value::Null };
        let rule = self.safety.or(Demand::of_manifest(&before)).asked.rule();
        let known =
            if is_resumed { load_records(&self.out).map_or_else(|_| Vec::new(), |l| l.records) } else { Vec::new() };
        let processor = Probe::of_this_machine()?;
        let mut models = Vec::new();
        while let Some(job) = ready.jobs.pop_front() {
            let planner = ready.planner(&job.config, job.opened(), &self);
            let left = planner.remaining(&job.plan, &known);
            // Only verdicts over all shards together count, so a shard has no outlook.
            let outlooks = match is_judged && self.shard.count == 1 {
                true => outlooks(&planner, &job.plan, rule, self.until_certain),
                false => Vec::new(),
            };
            let unmet = unmet(&planner, &job.plan);
            let gpu = measured_gpu(&planner, left.plan.longest());
            let timing = match &gpu {
                None => (&processor, TimedOn::Processor),
                Some(Ok(probe)) => (probe, TimedOn::Gpu(probe.gpu().unwrap_or("a GPU").to_owned())),
                Some(Err(why)) => (&processor, TimedOn::NotMeasured(in_one_line(why))),
            };
            models.push(PlanSummary { outlooks, unmet, ..PlanSummary::new(&planner, &left, timing)? });
        }
        match self.json {
            true => print_json(&serde_json::to_string_pretty(&as_json(&models))?)?,
            false => print(&format!("{}{}\n", as_text(&models), what_times_are_for(&models, &self.configs[0])))?,
        }
        reporter.verdict("would run").map(|()| Done::Completed)
    }
}

/// A probe that times the plan's model on its GPU, or the reason why the model does not fit there; `None` if the plan is for the CPU.
fn measured_gpu<'a>(planner: &Planner<'a>, longest: usize) -> Option<Result<Probe<'a>>> {
    let config = planner.config;
    let is_free = || {
        let of_gpu = |need: &GpuNeed| need.check(config, "a run takes up to", &planner.model.id);
        gpu_memory(planner.model, config, longest).iter().try_for_each(of_gpu)
    };
    let probe = || -> Result<Probe<'a>> {
        is_free()?;
        Probe::of_planned(planner.model, config, longest)
    };
    (config.device != Device::Cpu).then(probe)
}

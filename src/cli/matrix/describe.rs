//! `--dry-run`: says what would run and what it takes, and fails where the run would. No weights are read, and nothing is run or written.

use anyhow::Result;
use serde_json::Value;

use super::outlook::outlooks;
use super::plan_text::{PlanSummary, as_json, as_text, this_machine};
use super::prepare::Purpose;
use super::reporter::ProgressReporter;
use super::request::RunRequest;
use crate::cli::exit::Done;
use crate::cli::output::{print, print_json};
use spattn_eval::records::manifest_keys::MANIFEST;
use spattn_eval::records::store::{OpenMode, load_manifest, load_records};
use spattn_eval::run::density_floor::unmet;
use spattn_eval::run::estimate::Probe;
use spattn_eval::summary::demand::Demand;
use spattn_model::device::Device;

impl RunRequest {
    /// Prints what would run, its approximate cost, and what verdicts would be too uncertain.
    pub fn describe(self) -> Result<Done> {
        self.outline(true)
    }

    /// The same of a run whose methods are not held to a limit.
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
        let probe = Probe::of_this_machine()?;
        let mut models = Vec::new();
        while let Some(job) = ready.jobs.pop_front() {
            let planner = ready.planner(&job.config, job.opened(), &self);
            let left = planner.remaining(&job.plan, &known);
            // A shard's verdicts are of no interest: those of all shards together count.
            let outlooks = match is_judged && self.shard.count == 1 {
                true => outlooks(&planner, &job.plan, rule, self.until_certain),
                false => Vec::new(),
            };
            let unmet = unmet(&planner, &job.plan);
            models.push(PlanSummary { outlooks, unmet, ..PlanSummary::new(&planner, &left, &probe)? });
        }
        match self.json {
            true => print_json(&serde_json::to_string_pretty(&as_json(&models))?)?,
            false => print(&format!("{}{}\n", as_text(&models), self.timed_for()))?,
        }
        reporter.verdict("would run").map(|()| Done::Completed)
    }

    /// What the times of a plan are for.
    fn timed_for(&self) -> String {
        match self.configs[0].device == Device::Cpu {
            true => this_machine(&self.configs[0]),
            false => "How long it takes on a GPU is not estimated.".to_owned(),
        }
    }
}

//! Plans the work of each shard of a matrix, without the weights of a model.

use anyhow::Result;

use super::prepare::{ModelJob, PreparedRun, Purpose};
use super::reporter::ProgressReporter;
use super::request::RunRequest;
use crate::launch::plan::{PlannedCell, PlannedShard};
use spattn_base::error::in_one_line;
use spattn_base::privacy;
use spattn_eval::examples::observer::SkippedWork;
use spattn_eval::folder::attempts::{self};
use spattn_eval::plan::contexts::Shard;
use spattn_eval::plan::planner::ShardedCell;
use spattn_eval::run::estimate::{Probe, RunEstimate, estimate};

/// A matrix divided into shards.
pub(in crate::cli) struct ShardPlan {
    /// The cells, by model, task and length.
    pub cells: Vec<PlannedCell>,
    pub shards: Vec<PlannedShard>,
    /// The parts that cannot be run, as far as the planner knows.
    pub failed: Vec<attempts::Failed>,
    /// The estimate for the longest shard, if it was asked for.
    pub longest: Option<RunEstimate>,
}

impl RunRequest {
    /// Divides the matrix into `jobs` shards, and finds what cannot be run, without the weights of a model. If `is_estimated`, also
    /// estimates the time and memory of the longest shard.
    pub fn shares(mut self, jobs: usize, is_estimated: bool) -> Result<ShardPlan> {
        self.is_elsewhere = true;
        self.shard = Shard { index: 0, count: jobs };
        self.settle_privacy()?;
        let mut reporter = ProgressReporter::new(self.on_failure);
        // If the user's data are left out, models with the same name are told apart by their weights, which have to be opened for that.
        let purpose = if privacy::is_left_out() { Purpose::Run } else { Purpose::Plan };
        let ready = self.ready(purpose, &mut reporter)?;
        let contexts: usize = ready.jobs.iter().map(|job| self.contexts(&ready, job)).sum::<Result<usize>>()?;
        // No shard may be empty.
        self.shard.count = jobs.min(contexts).max(1);
        let mut shares = ShardPlan {
            cells: Vec::new(),
            shards: vec![PlannedShard::default(); self.shard.count],
            failed: Vec::new(),
            longest: None,
        };
        for job in &ready.jobs {
            let model = job.opened();
            let planner = ready.planner(&job.config, model, &self);
            for cell in
                planner.dealt_to_run()?.iter().filter(|cell| job.plan.cells.iter().any(|c| c.place == cell.place))
            {
                let records = planner.records_of_example(&job.plan, cell.place);
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
        reporter.list();
        let failed = |f: &SkippedWork| attempts::Failed {
            what: privacy::text(&f.what),
            why: privacy::text(&in_one_line(&f.error)),
        };
        shares.failed = reporter.failures.iter().map(failed).collect();
        if is_estimated {
            shares.longest = Some(self.estimate_longest(&ready, &shares.shards)?);
        }
        Ok(shares)
    }

    /// Estimates the shard with the most work: the estimate of the first shard, scaled by the ratio of their work.
    fn estimate_longest(&self, ready: &PreparedRun, shards: &[PlannedShard]) -> Result<RunEstimate> {
        let probe = Probe::of_this_machine()?;
        let mut sum = RunEstimate::default();
        for job in &ready.jobs {
            let planner = ready.planner(&job.config, job.opened(), self);
            let RunEstimate { prefill, index, steps, bytes } = estimate(&planner, &job.plan, &probe)?;
            sum = RunEstimate {
                prefill: sum.prefill + prefill,
                index: sum.index + index,
                steps: sum.steps + steps,
                bytes: sum.bytes.max(bytes),
            };
        }
        let most = shards.iter().map(|shard| shard.work).max().unwrap_or(0) as f64;
        let first = shards.first().map_or(0, |shard| shard.work).max(1) as f64;
        Ok(sum.times(most / first))
    }

    /// The number of contexts in a model's cells, over all shards.
    pub(super) fn contexts(&self, ready: &PreparedRun, job: &ModelJob) -> Result<usize> {
        let model = job.opened();
        let cells = ready.planner(&job.config, model, self).dealt_to_run()?;
        let of_cell = |cell: &ShardedCell| {
            cell.sizes(self.shard.count).iter().map(|size| size.contexts).fold(0, usize::saturating_add)
        };
        Ok(cells.iter().map(of_cell).fold(0, usize::saturating_add))
    }
}

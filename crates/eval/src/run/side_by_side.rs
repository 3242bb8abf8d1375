//! Runs contexts side by side on several devices, each with a copy of the model.
//!
//! A worker is a thread with one of the copies. Workers take contexts in the order of the plan. The records of a context are written after
//! those of all contexts before it, so that the store and the observer see the same as if contexts ran in turn. A failure leaves methods
//! out of the rest of their cell; a context that was begun before that was known is run again.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread;

use anyhow::{Result, anyhow};

use super::example_runner::ExampleRunner;
use super::inputs_ahead::Made;
use super::job_queue::{Answer, Answers, Closing, JobQueue, LostJob};
use super::run_plan::{ContextEvent, Ledger, RunEnd};
use super::runner::Runner;
use super::stopwatch::PhaseTimes;
use crate::plan::planner::{PlanCell, RunPlan, TaskLength};
use spattn_base::error::UsageError;
use spattn_model::decoder::Decoder;

/// A context of a cell, to be run by a worker.
pub(super) struct Job {
    /// The index of the cell.
    pub(super) cell: usize,
    pub(super) place: TaskLength,
    /// The indices of the examples on the context; at least one.
    pub(super) context: Vec<usize>,
}

/// The result of a job.
struct Finished {
    events: Vec<ContextEvent>,
    /// How much of the job's place had been left out of the plan when it was begun.
    left_out: usize,
    /// The plan at that time, without what the job left out.
    plan: RunPlan,
    end: Result<RunEnd>,
}

impl Runner<'_> {
    /// Runs the contexts of cells on all copies of the model.
    pub(super) fn run_side_by_side(
        &self,
        cells: &[PlanCell],
        plan: RunPlan,
        mut ledger: Ledger<'_>,
        stop: &AtomicBool,
    ) -> Result<(RunEnd, PhaseTimes)> {
        let of_cell = |(cell, of): (usize, &PlanCell)| {
            let place = of.place;
            of.contexts.iter().map(move |context| Job { cell, place, context }).collect::<Vec<_>>()
        };
        let jobs: Vec<Job> = cells.iter().enumerate().flat_map(of_cell).collect();
        let workers: Vec<&Decoder> = self.model.decoders().collect();
        let queue = JobQueue::new(jobs.len(), workers.len(), plan);
        let (known, halt) = (ledger.store().keys().clone(), AtomicBool::new(stop.load(Ordering::Relaxed)));
        thread::scope(|scope| {
            let (tell, answers) = Answers::new(&queue, stop, &halt);
            let (jobs, queue, known, halt) = (&jobs, &queue, &known, &halt);
            let worker = |(number, decoder)| {
                let tell = tell.clone();
                scope.spawn(move || Worker { runner: self, number, jobs, queue, known, halt }.run(decoder, &tell))
            };
            let workers: Vec<_> = workers.into_iter().enumerate().map(worker).collect();
            drop(tell);
            let ended = {
                let _closing = Closing(queue, halt);
                Telling { runner: self, cells, jobs, queue, halt }.tell_all(answers, &mut ledger)
            };
            let mut spent = PhaseTimes::default();
            for worker in workers {
                spent += worker.join().unwrap_or_else(|panic| resume_unwind(panic));
            }
            Ok((ended?, spent))
        })
    }

    /// The error for a job that will never be answered.
    pub(super) fn lost(&self, LostJob { job, worker }: LostJob, jobs: &[Job]) -> anyhow::Error {
        let Job { place, context, .. } = &jobs[job];
        let what = self.example_name(*place, context[0]);
        let Some(worker) = worker else { return anyhow!("{what}: no copy of the model runs any more") };
        let device = self.config.device.copies().ok().filter(|copies| copies.len() > 1);
        let device = device.and_then(|copies| copies.get(worker).map(|device| format!(" on {device}")));
        let device = device.unwrap_or_default();
        UsageError::new(format!("{what}: copy {} of the model{device} ended without an answer", worker + 1))
            .hint("resume the run; if it happens again, leave that GPU out by CUDA_VISIBLE_DEVICES")
            .into()
    }
}

/// A worker: a copy of the model, and where it takes its jobs from.
struct Worker<'a> {
    runner: &'a Runner<'a>,
    /// The index of the copy, from 0.
    number: usize,
    jobs: &'a [Job],
    queue: &'a JobQueue,
    /// The keys of the records that exist already.
    known: &'a HashSet<String>,
    halt: &'a AtomicBool,
}

impl Worker<'_> {
    /// Runs jobs until the queue is closed.
    fn run(&self, decoder: &Decoder, tell: &Sender<Answer<Finished>>) -> PhaseTimes {
        let mut runner = ExampleRunner::new(decoder, self.halt);
        while let Some((job, plan)) = self.queue.take(self.number) {
            let number = job.number;
            // A panic is passed on to the thread of the run, and ends this worker.
            let finished = catch_unwind(AssertUnwindSafe(|| self.finish(number, plan, &mut runner)));
            let is_over = finished.is_err();
            // After the run has ended, nobody receives answers.
            if !job.answer(tell, finished) || is_over {
                break;
            }
        }
        runner.spent()
    }

    fn finish(&self, number: usize, mut plan: RunPlan, runner: &mut ExampleRunner<'_>) -> Finished {
        let Job { place, context, .. } = &self.jobs[number];
        let (left_out, mut events) = (plan.left_out_at(*place), Vec::new());
        let mut keep = |event| {
            events.push(event);
            Ok(())
        };
        let has = |key: &str| self.known.contains(key);
        let end = match self.halt.load(Ordering::Relaxed) {
            true => Ok(RunEnd::Interrupted),
            // Prompts are made while other copies compute.
            false => self.runner.run_context((*place, context), has, Made::new(), (runner, &mut plan), &mut keep),
        };
        Finished { events, left_out, plan, end }
    }
}

/// Reports what workers have finished, in the order of the jobs.
struct Telling<'a> {
    runner: &'a Runner<'a>,
    cells: &'a [PlanCell],
    jobs: &'a [Job],
    queue: &'a JobQueue,
    halt: &'a AtomicBool,
}

impl Telling<'_> {
    fn tell_all(&self, mut answers: Answers<'_, Finished>, ledger: &mut Ledger<'_>) -> Result<RunEnd> {
        let mut begun = None;
        for (number, job) in self.jobs.iter().enumerate() {
            if begun != Some(job.cell) {
                begin_cells(ledger, &self.cells[begun.map_or(0, |begun| begun + 1)..=job.cell]);
                begun = Some(job.cell);
            }
            let mut wait = || answers.wait_for(number).map_err(|lost| self.runner.lost(lost, self.jobs));
            let mut of_job = wait()?;
            while self.is_outdated(&of_job, job) && !self.halt.load(Ordering::Relaxed) {
                self.queue.repeat(number);
                of_job = wait()?;
            }
            if self.is_outdated(&of_job, job) || self.tell(of_job, job, ledger)? == RunEnd::Interrupted {
                for (number, of_job) in answers.rest(number + 1) {
                    self.tell_if_current(of_job, &self.jobs[number], ledger)?;
                }
                return Ok(RunEnd::Interrupted);
            }
        }
        Ok(RunEnd::Complete)
    }

    /// Whether something that a job may have run was left out of the plan after the job was begun.
    fn is_outdated(&self, finished: &Finished, job: &Job) -> bool {
        finished.left_out != self.queue.state().plan.left_out_at(job.place)
    }

    /// Reports a finished job. Returns how it ended.
    fn tell(&self, finished: Finished, job: &Job, ledger: &mut Ledger<'_>) -> Result<RunEnd> {
        for mut event in finished.events {
            if let ContextEvent::Done(records, _) = &mut event {
                // If a cell is asked for twice, its second turn makes the same records again.
                records.retain(|record| !ledger.store().contains(&record.key));
            }
            ledger.take(job.place, event)?;
        }
        self.queue.state().plan.leave_out_as(finished.plan);
        finished.end
    }

    /// Reports a finished job that follows an interrupted one, unless it is outdated, so that its records are kept.
    fn tell_if_current(&self, finished: Finished, job: &Job, ledger: &mut Ledger<'_>) -> Result<()> {
        match self.is_outdated(&finished, job) {
            true => Ok(()),
            false => self.tell(finished, job, ledger).map(drop),
        }
    }
}

/// Begins cells, of which all but the last have no contexts.
fn begin_cells(ledger: &mut Ledger<'_>, cells: &[PlanCell]) {
    cells.iter().for_each(|cell| ledger.begin(cell));
}

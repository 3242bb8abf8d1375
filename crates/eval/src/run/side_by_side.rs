//! Contexts that several devices run side by side, each with a copy of the model.
//!
//! A lane is a thread with one of the copies; lanes take contexts in the order of the plan. What comes of a context waits until all before it
//! are told of, so that the store and the observer see the same as if they had been run in turn. A failure leaves methods out of the rest of
//! their cell: a context that was begun without knowing that is run again.

use std::any::Any;
use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::example_runner::ExampleRunner;
use super::run_plan::{ContextEvent, Ledger, RunEnd};
use super::runner::Runner;
use super::stopwatch::PhaseTimes;
use crate::plan::planner::{PlanCell, RunPlan, TaskLength};
use spattn_model::decoder::Decoder;

/// How long it may take until lanes hear that the run is to stop.
const HEARING: Duration = Duration::from_millis(50);

/// A context of a cell.
struct Job {
    /// Index of the cell.
    cell: usize,
    place: TaskLength,
    context: Vec<usize>,
}

/// What a lane has made of a job.
struct Finished {
    events: Vec<ContextEvent>,
    /// Parts of the job's place that were left out when it was begun.
    left_out: usize,
    /// The plan as it was then, less what the job leaves out.
    plan: RunPlan,
    end: Result<RunEnd>,
}

/// A job's number, and what came of it; or why its lane panicked.
type Report = (usize, Result<Finished, Box<dyn Any + Send>>);

/// What lanes do next.
struct JobQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

struct QueueState {
    /// The first job that nobody has begun.
    next: usize,
    /// A job to be run again.
    again: Option<usize>,
    is_closed: bool,
    /// The plan, without the methods whose failures were reported so far.
    plan: RunPlan,
}

impl JobQueue {
    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next of so many jobs, and the plan that it is begun with; waits while there is none. `None` once the queue is closed.
    fn take(&self, jobs: usize) -> Option<(usize, RunPlan)> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return None;
            }
            let fresh = (state.next < jobs).then_some(state.next);
            if let Some(job) = state.again.take().or(fresh) {
                state.next = state.next.max(job + 1);
                return Some((job, state.plan.clone()));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn repeat(&self, job: usize) {
        self.state().again = Some(job);
        self.changed.notify_all();
    }

    fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_all();
    }
}

/// Closes a queue and raises a flag when it is dropped, be it by a panic: lanes end.
struct Closing<'a>(&'a JobQueue, &'a AtomicBool);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
        self.0.close();
    }
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
        let queue = JobQueue {
            state: Mutex::new(QueueState { next: 0, again: None, is_closed: false, plan }),
            changed: Condvar::new(),
        };
        let (known, halt) = (ledger.store().keys().clone(), AtomicBool::new(stop.load(Ordering::Relaxed)));
        thread::scope(|scope| {
            let (tell, told) = channel();
            let (jobs, queue, known, halt) = (&jobs, &queue, &known, &halt);
            let lane = |decoder| {
                let tell = tell.clone();
                scope.spawn(move || self.lane(decoder, jobs, queue, known, halt, &tell))
            };
            let lanes: Vec<_> = self.model.decoders().map(lane).collect();
            drop(tell);
            let ended = {
                let _closing = Closing(queue, halt);
                Telling { cells, jobs, queue, told: &told, stop, halt }.tell_all(&mut ledger)
            };
            let mut spent = PhaseTimes::default();
            for lane in lanes {
                spent += lane.join().unwrap_or_else(|panic| resume_unwind(panic));
            }
            Ok((ended?, spent))
        })
    }

    /// Runs jobs on one copy of the model until there are none.
    fn lane(
        &self,
        decoder: &Decoder,
        jobs: &[Job],
        queue: &JobQueue,
        known: &HashSet<String>,
        halt: &AtomicBool,
        tell: &Sender<Report>,
    ) -> PhaseTimes {
        let mut runner = ExampleRunner::new(decoder, halt);
        while let Some((number, mut plan)) = queue.take(jobs.len()) {
            let Job { place, context, .. } = &jobs[number];
            let (left_out, mut events) = (plan.left_out_at(*place), Vec::new());
            let mut keep = |event| {
                events.push(event);
                Ok(())
            };
            let has = |key: &str| known.contains(key);
            let run = || match halt.load(Ordering::Relaxed) {
                true => Ok(RunEnd::Interrupted),
                false => self.run_context(*place, context, has, (&mut runner, &mut plan), &mut keep),
            };
            // The panic is the run's, which then goes on with nothing.
            let end = catch_unwind(AssertUnwindSafe(run));
            let finished = end.map(|end| Finished { events, left_out, plan, end });
            let is_over = finished.is_err();
            // Nobody listens any more once the run has ended.
            if tell.send((number, finished)).is_err() || is_over {
                break;
            }
        }
        runner.spent()
    }
}

/// Tells of what lanes have finished, in the order of the jobs.
struct Telling<'a> {
    cells: &'a [PlanCell],
    jobs: &'a [Job],
    queue: &'a JobQueue,
    told: &'a Receiver<Report>,
    stop: &'a AtomicBool,
    halt: &'a AtomicBool,
}

impl Telling<'_> {
    fn tell_all(&self, ledger: &mut Ledger<'_>) -> Result<RunEnd> {
        let mut finished: BTreeMap<usize, Finished> = BTreeMap::new();
        let mut begun = None;
        for (number, job) in self.jobs.iter().enumerate() {
            if begun != Some(job.cell) {
                begin_cells(ledger, &self.cells[begun.map_or(0, |begun| begun + 1)..=job.cell]);
                begun = Some(job.cell);
            }
            let mut of_job = self.wait_for(number, &mut finished)?;
            while self.is_outdated(&of_job, job) && !self.halt.load(Ordering::Relaxed) {
                self.queue.repeat(number);
                of_job = self.wait_for(number, &mut finished)?;
            }
            if self.is_outdated(&of_job, job) || self.tell(of_job, job, ledger)? == RunEnd::Interrupted {
                self.tell_rest(number + 1, finished, ledger)?;
                return Ok(RunEnd::Interrupted);
            }
        }
        Ok(RunEnd::Complete)
    }

    /// Waits until a job is finished; those that are before it stay in `finished`.
    fn wait_for(&self, number: usize, finished: &mut BTreeMap<usize, Finished>) -> Result<Finished> {
        loop {
            if let Some(finished) = finished.remove(&number) {
                return Ok(finished);
            }
            if self.stop.load(Ordering::Relaxed) {
                self.halt.store(true, Ordering::Relaxed);
            }
            match self.told.recv_timeout(HEARING) {
                Ok((other, Ok(of_other))) => drop(finished.insert(other, of_other)),
                Ok((_, Err(panic))) => resume_unwind(panic),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(anyhow!("no copy of the model runs any more")),
            }
        }
    }

    /// Whether a job was begun before something was left out that it may have run.
    fn is_outdated(&self, finished: &Finished, job: &Job) -> bool {
        finished.left_out != self.queue.state().plan.left_out_at(job.place)
    }

    /// Tells of a job; how it ended.
    fn tell(&self, finished: Finished, job: &Job, ledger: &mut Ledger<'_>) -> Result<RunEnd> {
        for mut event in finished.events {
            if let ContextEvent::Done(records, _) = &mut event {
                // A cell that is asked for twice has the records of the first.
                records.retain(|record| !ledger.store().contains(&record.key));
            }
            ledger.take(job.place, event)?;
        }
        self.queue.state().plan.leave_out_as(finished.plan);
        finished.end
    }

    /// Tells of the jobs behind an interrupted one that are finished nevertheless: their records are kept.
    fn tell_rest(&self, from: usize, mut finished: BTreeMap<usize, Finished>, ledger: &mut Ledger<'_>) -> Result<()> {
        finished.extend(self.told.try_iter().filter_map(|(number, of_job)| Some((number, of_job.ok()?))));
        for (number, of_job) in finished.split_off(&from) {
            let job = &self.jobs[number];
            if !self.is_outdated(&of_job, job) {
                self.tell(of_job, job, ledger)?;
            }
        }
        Ok(())
    }
}

/// Begins with cells of which all but the last have no contexts.
fn begin_cells(ledger: &mut Ledger<'_>, cells: &[PlanCell]) {
    cells.iter().for_each(|cell| ledger.begin(cell));
}

//! A queue of jobs for several workers, and their answers. Each job that a worker takes is answered, or the worker that lost it is named.
//!
//! What a job is, and how its answer is used, is in `side_by_side`.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::plan::planner::RunPlan;

/// How often a thread that waits for an answer checks whether the run has to stop or the answer was lost.
const POLL: Duration = Duration::from_millis(50);

/// The jobs that workers take next.
pub(super) struct JobQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

pub(super) struct QueueState {
    /// The first job that no worker has taken yet.
    next: usize,
    /// A job that has to be run again.
    again: Option<usize>,
    is_closed: bool,
    /// For each job, the worker that took it last.
    taken_by: Vec<Option<usize>>,
    /// For each worker, the job that it is running.
    running: Vec<Option<usize>>,
    /// The plan, without the methods whose failures have been reported.
    pub(super) plan: RunPlan,
}

impl JobQueue {
    pub(super) fn new(jobs: usize, workers: usize, plan: RunPlan) -> Self {
        let (taken_by, running) = (vec![None; jobs], vec![None; workers]);
        let state = QueueState { next: 0, again: None, is_closed: false, taken_by, running, plan };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next job for a worker, with the plan as it is now; waits while there is no job. `None` once the queue is closed.
    pub(super) fn take(&self, worker: usize) -> Option<(TakenJob<'_>, RunPlan)> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return None;
            }
            let fresh = (state.next < state.taken_by.len()).then_some(state.next);
            if let Some(number) = state.again.take().or(fresh) {
                state.next = state.next.max(number + 1);
                state.taken_by[number] = Some(worker);
                state.running[worker] = Some(number);
                return Some((TakenJob { queue: self, worker, number }, state.plan.clone()));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Puts a job that was already answered back into the queue.
    pub(super) fn repeat(&self, job: usize) {
        self.state().again = Some(job);
        self.changed.notify_all();
    }

    fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_all();
    }

    /// The worker that took a job and no longer runs it; `None` while the job waits for a worker or is run by one.
    fn dropped_by(&self, job: usize) -> Option<usize> {
        let state = self.state();
        let worker = state.taken_by[job].filter(|_| state.again != Some(job))?;
        (state.running[worker] != Some(job)).then_some(worker)
    }
}

/// A job that a worker runs. Dropping it marks that the worker no longer runs it, whether it was answered or not.
pub(super) struct TakenJob<'q> {
    queue: &'q JobQueue,
    worker: usize,
    pub(super) number: usize,
}

impl TakenJob<'_> {
    /// Answers the job, and only then drops it. Returns whether answers are still received.
    pub(super) fn answer<T>(self, tell: &Sender<Answer<T>>, made: Result<T, Panic>) -> bool {
        tell.send((self.number, made)).is_ok()
    }
}

impl Drop for TakenJob<'_> {
    fn drop(&mut self) {
        self.queue.state().running[self.worker] = None;
    }
}

/// When dropped, also by a panic, closes a queue and raises a flag, so that the workers end.
pub(super) struct Closing<'a>(pub(super) &'a JobQueue, pub(super) &'a AtomicBool);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
        self.0.close();
    }
}

/// The payload of a panic.
pub(super) type Panic = Box<dyn Any + Send>;

/// A job's number with its result, or with the panic of its worker.
pub(super) type Answer<T> = (usize, Result<T, Panic>);

/// A job that will never be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LostJob {
    pub(super) job: usize,
    /// The worker that lost it; `None` if all workers ended before one took it.
    pub(super) worker: Option<usize>,
}

/// Receives the answers of workers, in whatever order they come.
pub(super) struct Answers<'a, T> {
    queue: &'a JobQueue,
    received: Receiver<Answer<T>>,
    /// Answers that arrived before they were waited for, by job.
    arrived: BTreeMap<usize, T>,
    /// Raised by the caller to stop the run.
    stop: &'a AtomicBool,
    /// Raised here after `stop`, to stop the workers.
    halt: &'a AtomicBool,
}

impl<'a, T> Answers<'a, T> {
    /// Makes a receiver without answers, and the sender for workers.
    pub(super) fn new(queue: &'a JobQueue, stop: &'a AtomicBool, halt: &'a AtomicBool) -> (Sender<Answer<T>>, Self) {
        let (tell, received) = channel();
        (tell, Self { queue, received, arrived: BTreeMap::new(), stop, halt })
    }

    /// Waits for a job's answer. Resumes the panic of a worker.
    ///
    /// # Errors
    /// If no worker will ever answer the job.
    pub(super) fn wait_for(&mut self, job: usize) -> Result<T, LostJob> {
        loop {
            if let Some(answer) = self.arrived.remove(&job) {
                return Ok(answer);
            }
            if self.stop.load(Ordering::Relaxed) {
                self.halt.store(true, Ordering::Relaxed);
            }
            // Looked up before answers are received: a worker answers a job before it drops it, so a dropped job's answer is there.
            let dropped_by = self.queue.dropped_by(job);
            match self.received.recv_timeout(POLL) {
                Ok((other, Ok(answer))) => drop(self.arrived.insert(other, answer)),
                Ok((_, Err(panic))) => resume_unwind(panic),
                Err(RecvTimeoutError::Timeout) if dropped_by.is_some() => {
                    return Err(LostJob { job, worker: dropped_by });
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(LostJob { job, worker: self.queue.dropped_by(job) }),
            }
        }
    }

    /// The answers that have arrived for jobs from `first` on. Does not wait for others.
    pub(super) fn rest(mut self, first: usize) -> BTreeMap<usize, T> {
        self.arrived.extend(self.received.try_iter().filter_map(|(job, answer)| Some((job, answer.ok()?))));
        self.arrived.split_off(&first)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::testing::within_a_minute;
    use super::*;

    /// Runs two workers that do `work`, and waits for jobs 0, 1, ... in turn. Another sender stays open all the time, as if a further
    /// worker were still running.
    fn answered(
        jobs: usize,
        work: impl Fn(TakenJob<'_>, &Sender<Answer<usize>>) + Sync,
    ) -> Result<Vec<usize>, LostJob> {
        let queue = JobQueue::new(jobs, 2, RunPlan::default());
        let (stop, halt) = (AtomicBool::new(false), AtomicBool::new(false));
        let (tell, mut answers) = Answers::new(&queue, &stop, &halt);
        thread::scope(|scope| {
            let _closing = Closing(&queue, &halt);
            for worker in 0..2 {
                let (tell, queue, work) = (tell.clone(), &queue, &work);
                scope.spawn(move || {
                    while let Some((job, _)) = queue.take(worker) {
                        work(job, &tell);
                    }
                });
            }
            (0..jobs).map(|job| answers.wait_for(job)).collect()
        })
    }

    #[test]
    fn all_answers_come_whatever_their_order() {
        let got = within_a_minute(|| {
            answered(40, |job, tell| {
                let number = job.number;
                // Every third job takes longer than the ones after it.
                thread::sleep(Duration::from_millis(if number % 3 == 0 { 12 } else { 1 }));
                assert!(job.answer(tell, Ok(10 * number)));
            })
        });
        assert_eq!(got, Ok((0..40).map(|number| 10 * number).collect()));
    }

    #[test]
    fn a_job_that_a_worker_drops_unanswered_is_lost_at_once() {
        let got = within_a_minute(|| {
            answered(9, |job, tell| {
                if job.number != 4 {
                    let number = job.number;
                    job.answer(tell, Ok(number));
                }
            })
        });
        let lost = got.unwrap_err();
        assert_eq!(lost.job, 4);
        assert!(lost.worker.is_some());
    }

    #[test]
    fn a_repeat_that_is_lost_is_told_with_its_worker() {
        let lost = within_a_minute(|| {
            let queue = JobQueue::new(2, 3, RunPlan::default());
            let (stop, halt) = (AtomicBool::new(false), AtomicBool::new(false));
            let (tell, mut answers) = Answers::new(&queue, &stop, &halt);
            assert!(queue.take(0).unwrap().0.answer(&tell, Ok(1)));
            assert_eq!(answers.wait_for(0), Ok(1));
            queue.repeat(0);
            assert_eq!(queue.dropped_by(0), None, "it waits for a worker");
            let (again, _) = queue.take(2).unwrap();
            assert_eq!((again.number, queue.dropped_by(0)), (0, None), "worker 2 runs it");
            drop(again);
            answers.wait_for(0)
        });
        assert_eq!(lost, Err(LostJob { job: 0, worker: Some(2) }));
    }

    #[test]
    fn a_job_that_no_worker_is_left_to_take_is_lost_by_none() {
        let lost = within_a_minute(|| {
            let queue = JobQueue::new(1, 1, RunPlan::default());
            let (stop, halt) = (AtomicBool::new(false), AtomicBool::new(false));
            let (tell, mut answers) = Answers::<()>::new(&queue, &stop, &halt);
            drop(tell);
            answers.wait_for(0)
        });
        assert_eq!(lost, Err(LostJob { job: 0, worker: None }));
    }
}

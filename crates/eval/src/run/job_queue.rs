//! Jobs that lanes take, and the answers that come back: every job that was taken is answered, or the lane that lost it is named.
//!
//! What a job is, and what is done with its answer, is in `side_by_side`.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::plan::planner::RunPlan;

/// How long it may take until lanes hear that the run is to stop, or until a lost answer is noticed.
const HEARING: Duration = Duration::from_millis(50);

/// What lanes do next.
pub(super) struct JobQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

pub(super) struct QueueState {
    /// The first job that nobody has begun.
    next: usize,
    /// A job to be run again.
    again: Option<usize>,
    is_closed: bool,
    /// By job: the lane that took it last.
    taken_by: Vec<Option<usize>>,
    /// By lane: the job that it has taken and not laid down.
    in_hand: Vec<Option<usize>>,
    /// The plan, without the methods whose failures were reported so far.
    pub(super) plan: RunPlan,
}

impl JobQueue {
    pub(super) fn new(jobs: usize, lanes: usize, plan: RunPlan) -> Self {
        let (taken_by, in_hand) = (vec![None; jobs], vec![None; lanes]);
        let state = QueueState { next: 0, again: None, is_closed: false, taken_by, in_hand, plan };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job, for a lane, and the plan that it is begun with; waits while there is none. `None` once the queue is closed.
    pub(super) fn take(&self, lane: usize) -> Option<(TakenJob<'_>, RunPlan)> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return None;
            }
            let fresh = (state.next < state.taken_by.len()).then_some(state.next);
            if let Some(number) = state.again.take().or(fresh) {
                state.next = state.next.max(number + 1);
                state.taken_by[number] = Some(lane);
                state.in_hand[lane] = Some(number);
                return Some((TakenJob { queue: self, lane, number }, state.plan.clone()));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Asks for a job again that was answered before.
    pub(super) fn repeat(&self, job: usize) {
        self.state().again = Some(job);
        self.changed.notify_all();
    }

    fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_all();
    }

    /// The lane that took a job and has laid it down; `None` while the job waits for a lane, or is in one's hand.
    fn laid_down_by(&self, job: usize) -> Option<usize> {
        let state = self.state();
        let lane = state.taken_by[job].filter(|_| state.again != Some(job))?;
        (state.in_hand[lane] != Some(job)).then_some(lane)
    }
}

/// A job in a lane's hand. Dropped, it is laid down, whether or not it was answered before.
pub(super) struct TakenJob<'q> {
    queue: &'q JobQueue,
    lane: usize,
    pub(super) number: usize,
}

impl TakenJob<'_> {
    /// Answers the job and lays it down, in this order. Whether anybody listens.
    pub(super) fn answer<T>(self, tell: &Sender<Answer<T>>, made: Result<T, Panic>) -> bool {
        tell.send((self.number, made)).is_ok()
    }
}

impl Drop for TakenJob<'_> {
    fn drop(&mut self) {
        self.queue.state().in_hand[self.lane] = None;
    }
}

/// Closes a queue and raises a flag when it is dropped, be it by a panic: lanes end.
pub(super) struct Closing<'a>(pub(super) &'a JobQueue, pub(super) &'a AtomicBool);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
        self.0.close();
    }
}

/// What a thread panicked with.
pub(super) type Panic = Box<dyn Any + Send>;

/// A job's number, and what was made of it; or why its lane panicked.
pub(super) type Answer<T> = (usize, Result<T, Panic>);

/// A job that will not be answered any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LostJob {
    pub(super) job: usize,
    /// The lane that had it; `None` if all lanes ended before one took it.
    pub(super) lane: Option<usize>,
}

/// The answers of lanes, in whatever order they come.
pub(super) struct Answers<'a, T> {
    queue: &'a JobQueue,
    told: Receiver<Answer<T>>,
    /// Those that came and were not asked for yet.
    arrived: BTreeMap<usize, T>,
    /// Raised by whoever wants the run to stop.
    stop: &'a AtomicBool,
    /// Raised for the lanes then.
    halt: &'a AtomicBool,
}

impl<'a, T> Answers<'a, T> {
    /// No answers yet, and what lanes send theirs by.
    pub(super) fn new(queue: &'a JobQueue, stop: &'a AtomicBool, halt: &'a AtomicBool) -> (Sender<Answer<T>>, Self) {
        let (tell, told) = channel();
        (tell, Self { queue, told, arrived: BTreeMap::new(), stop, halt })
    }

    /// Waits for a job's answer. A panic of a lane goes on here.
    ///
    /// # Errors
    /// If no lane will answer the job any more.
    pub(super) fn wait_for(&mut self, job: usize) -> Result<T, LostJob> {
        loop {
            if let Some(answer) = self.arrived.remove(&job) {
                return Ok(answer);
            }
            if self.stop.load(Ordering::Relaxed) {
                self.halt.store(true, Ordering::Relaxed);
            }
            // Asked first: a lane answers before it lays a job down, so that the answer of such a job is on its way already.
            let laid_down = self.queue.laid_down_by(job);
            match self.told.recv_timeout(HEARING) {
                Ok((other, Ok(answer))) => drop(self.arrived.insert(other, answer)),
                Ok((_, Err(panic))) => resume_unwind(panic),
                Err(RecvTimeoutError::Timeout) if laid_down.is_some() => return Err(LostJob { job, lane: laid_down }),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(LostJob { job, lane: self.queue.laid_down_by(job) }),
            }
        }
    }

    /// The answers that are there to jobs from `first` on, without waiting for more.
    pub(super) fn rest(mut self, first: usize) -> BTreeMap<usize, T> {
        self.arrived.extend(self.told.try_iter().filter_map(|(job, answer)| Some((job, answer.ok()?))));
        self.arrived.split_off(&first)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::testing::within_a_minute;
    use super::*;

    /// Runs `lanes` lanes, each of which does `work`, and waits for jobs 0, 1, ... in turn. A further sender is held all the time, as that
    /// of a lane that goes on.
    fn answered(
        jobs: usize,
        work: impl Fn(TakenJob<'_>, &Sender<Answer<usize>>) + Sync,
    ) -> Result<Vec<usize>, LostJob> {
        let queue = JobQueue::new(jobs, 2, RunPlan::default());
        let (stop, halt) = (AtomicBool::new(false), AtomicBool::new(false));
        let (tell, mut answers) = Answers::new(&queue, &stop, &halt);
        thread::scope(|scope| {
            let _closing = Closing(&queue, &halt);
            for lane in 0..2 {
                let (tell, queue, work) = (tell.clone(), &queue, &work);
                scope.spawn(move || {
                    while let Some((job, _)) = queue.take(lane) {
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
                // Every third takes longer than those behind it.
                thread::sleep(Duration::from_millis(if number % 3 == 0 { 12 } else { 1 }));
                assert!(job.answer(tell, Ok(10 * number)));
            })
        });
        assert_eq!(got, Ok((0..40).map(|number| 10 * number).collect()));
    }

    #[test]
    fn a_job_that_a_lane_lays_down_unanswered_is_lost_at_once() {
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
        assert!(lost.lane.is_some());
    }

    #[test]
    fn a_repeat_that_is_lost_is_told_with_its_lane() {
        let lost = within_a_minute(|| {
            let queue = JobQueue::new(2, 3, RunPlan::default());
            let (stop, halt) = (AtomicBool::new(false), AtomicBool::new(false));
            let (tell, mut answers) = Answers::new(&queue, &stop, &halt);
            assert!(queue.take(0).unwrap().0.answer(&tell, Ok(1)));
            assert_eq!(answers.wait_for(0), Ok(1));
            queue.repeat(0);
            assert_eq!(queue.laid_down_by(0), None, "it waits for a lane");
            let (again, _) = queue.take(2).unwrap();
            assert_eq!((again.number, queue.laid_down_by(0)), (0, None), "it is in the hand of lane 2");
            drop(again);
            answers.wait_for(0)
        });
        assert_eq!(lost, Err(LostJob { job: 0, lane: Some(2) }));
    }

    #[test]
    fn a_job_that_no_lane_is_left_to_take_is_lost_by_none() {
        let lost = within_a_minute(|| {
            let queue = JobQueue::new(1, 1, RunPlan::default());
            let (stop, halt) = (AtomicBool::new(false), AtomicBool::new(false));
            let (tell, mut answers) = Answers::<()>::new(&queue, &stop, &halt);
            drop(tell);
            answers.wait_for(0)
        });
        assert_eq!(lost, Err(LostJob { job: 0, lane: None }));
    }
}

//! The status of a sweep, from its folder, and from the scheduler if it answers.
//!
//! Each look reads only the new lines of records, and only the fields needed for sums. Memory grows with the number of rows in the
//! tables, not with the number of records.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rayon::prelude::*;
use serde::Serialize;

use super::plan::{PlannedShard, SweepPlan};
use super::slurm::{self, Task};
use super::{LOGS, SCRIPT, shard_folder};
use spattn_base::error::UsageError;
use spattn_eval::folder::attempts::{self, Attempt, Ending, Failed};
use spattn_eval::folder::lease::Owner;
use spattn_eval::plan::shard_statement::Stated;
use spattn_eval::records::store::{SAMPLES, load_manifest};
use spattn_eval::summary::running_scores::Scores;

/// The state of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It has all its records.
    Done,
    /// It ended, but parts of it could not be run.
    Incomplete,
    /// A process is running it.
    Running,
    /// It is waiting in the scheduler's queue.
    Queued,
    /// It was told to stop, and nothing will resume it.
    Stopped,
    /// It ended with an error, or was killed.
    Failed,
    /// It has not started.
    Waiting,
}

impl State {
    /// All states, in the order of the report.
    pub const ALL: [Self; 7] =
        [Self::Done, Self::Incomplete, Self::Running, Self::Queued, Self::Stopped, Self::Failed, Self::Waiting];

    /// Its name.
    pub fn name(self) -> &'static str {
        ["done", "incomplete", "running", "queued", "stopped", "failed", "waiting"][self as usize]
    }
}

/// The status of a shard.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShardStatus {
    /// The shard's number, or the name of its folder.
    pub shard: String,
    /// Its state.
    pub state: State,
    /// The number of records so far.
    pub records: usize,
    /// The number of records when complete, if it is known.
    pub expected: Option<usize>,
    /// How many times a process has started on it.
    pub attempts: usize,
    /// The estimated work, if it was planned.
    pub work: Option<u64>,
    /// The seconds that processes ran on it, summed.
    pub seconds: u64,
    /// The processor seconds; `None` if a process did not record them.
    pub processor_s: Option<f64>,
    /// The scheduler's job and task number.
    pub job: Option<String>,
    /// The node where it runs or ran.
    pub node: Option<String>,
    /// Why the shard waits, or how it ended.
    pub said: Option<String>,
    /// The parts that the last attempt could not run.
    pub failed: Vec<Failed>,
}

/// How evenly the work was divided among completed shards: the largest share over the mean.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Balance {
    /// The number of completed shards.
    pub shards: usize,
    /// The ratio by estimated work.
    pub estimated: f64,
    /// The ratio by the seconds that processes ran.
    pub seconds: Option<f64>,
    /// The ratio by processor seconds; `None` if a shard did not record them.
    pub processor: Option<f64>,
}

impl Balance {
    /// The balance of planned shards, if at least two are completed.
    fn of(shards: &[ShardStatus]) -> Option<Self> {
        let done: Vec<&ShardStatus> = shards.iter().filter(|shard| shard.state == State::Done).collect();
        let over_mean = |of: &dyn Fn(&ShardStatus) -> Option<f64>| {
            longest_over_mean(&done.iter().map(|shard| of(shard)).collect::<Option<Vec<f64>>>()?)
        };
        Some(Self {
            shards: done.len(),
            estimated: over_mean(&|shard| shard.work.map(|work| work as f64)).filter(|_| done.len() > 1)?,
            seconds: over_mean(&|shard| Some(shard.seconds as f64)),
            processor: over_mean(&|shard| shard.processor_s),
        })
    }
}

/// The largest value over the mean; `None` if all are zero.
fn longest_over_mean(of_shards: &[f64]) -> Option<f64> {
    let mean = of_shards.iter().sum::<f64>() / of_shards.len() as f64;
    (mean > 0.0).then(|| of_shards.iter().copied().fold(0.0, f64::max) / mean)
}

/// The status of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// The shards.
    pub shards: Vec<ShardStatus>,
    /// The number of records so far.
    pub records: usize,
    /// The number of records when complete, if it is known. Parts that fail leave no records.
    pub expected: Option<usize>,
    /// Estimated seconds until completion at the pace so far; `None` if there is no basis for an estimate.
    pub seconds_left: Option<f64>,
    /// How evenly the work was divided among completed shards.
    pub balance: Option<Balance>,
    /// Whether the scheduler answered.
    pub knows_queue: bool,
    /// The parts that the planner left out because they could not be run.
    pub left_out: Vec<Failed>,
    /// Each task and length, with the scores so far of `full` and of the best and worst method.
    pub scores: Vec<(String, String)>,
}

impl Status {
    /// The number of shards in a state.
    pub fn count(&self, state: State) -> usize {
        self.shards.iter().filter(|shard| shard.state == state).count()
    }

    /// Whether all shards have ended, completely or with failed parts.
    pub fn is_over(&self) -> bool {
        self.shards.iter().all(|shard| [State::Done, State::Incomplete].contains(&shard.state))
    }

    /// The numbers of the shards to submit again: those that are not completed, and that no process or queue will complete. With
    /// `failed`, also shards that ended with failed parts.
    pub fn missing(&self, failed: bool) -> BTreeSet<usize> {
        let is_missing = |state| match state {
            State::Done | State::Running | State::Queued => false,
            State::Incomplete => failed,
            State::Stopped | State::Failed | State::Waiting => true,
        };
        (1..).zip(&self.shards).filter(|(_, shard)| is_missing(shard.state)).map(|(number, _)| number).collect()
    }
}

/// A sweep's folder, for repeated looks at its status.
#[derive(Debug)]
pub struct Watched {
    dir: PathBuf,
    plan: Option<SweepPlan>,
    shards: Vec<Shard>,
}

#[derive(Debug)]
struct Shard {
    name: String,
    dir: PathBuf,
    planned: Option<PlannedShard>,
    tally: Tally,
}

impl Shard {
    /// The number of records when complete: from the plan, or else from the manifest.
    fn expected(&self) -> Option<usize> {
        let stated = || {
            let manifest = load_manifest(&self.dir).ok()?;
            let resumed = manifest["resumed"].as_array().into_iter().flatten();
            resumed.chain([&manifest]).filter_map(|manifest| Stated::of(manifest)?.records).max()
        };
        self.planned.as_ref().map(|planned| planned.records).or_else(stated)
    }

    /// The state of a run that has records but no log, and that no process is writing to.
    fn without_log(&self) -> State {
        match self.expected() {
            Some(expected) if self.tally.records < expected => State::Stopped,
            _ => State::Done,
        }
    }
}

/// What has been read of a file of records.
#[derive(Debug, Default)]
struct Tally {
    /// The offset of the next line to read.
    offset: u64,
    records: usize,
    scores: Scores,
}

impl Tally {
    /// Reads the complete lines added since the last update.
    fn update(&mut self, path: &Path) -> Result<()> {
        let failed = || format!("cannot read {}", path.display());
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e).with_context(failed),
        };
        if file.metadata().with_context(failed)?.len() < self.offset {
            // The file is shorter than before, so it was started again.
            *self = Self::default();
        }
        file.seek(SeekFrom::Start(self.offset)).with_context(failed)?;
        let (mut lines, mut line) = (BufReader::with_capacity(1 << 16, file), Vec::new());
        loop {
            line.clear();
            let read = lines.read_until(b'\n', &mut line).with_context(failed)?;
            if line.last() != Some(&b'\n') {
                return Ok(());
            }
            self.offset += read as u64;
            // Damaged lines are skipped here; `spattn report` reports them.
            if let Ok(scored) = serde_json::from_slice(&line) {
                self.records += 1;
                self.scores.add(&scored);
            }
        }
    }
}

impl Watched {
    /// Opens a folder that holds a sweep's plan, a run, or folders of runs.
    ///
    /// # Errors
    /// A [`UsageError`] if it holds none of these.
    pub fn open(dir: &Path) -> Result<Self> {
        let shard = |name: String, dir: PathBuf, planned| Shard { name, dir, planned, tally: Tally::default() };
        if SweepPlan::is_in(dir) {
            let plan = SweepPlan::load(dir)?;
            let numbered = (1..).zip(&plan.shards);
            let shards = numbered.map(|(n, s)| shard(n.to_string(), shard_folder(dir, n), Some(s.clone()))).collect();
            return Ok(Self { dir: dir.to_owned(), plan: Some(plan), shards });
        }
        let is_run = |dir: &Path| dir.join(SAMPLES).is_file() || dir.join(attempts::ATTEMPTS).is_file();
        let name = |dir: &Path| dir.file_name().unwrap_or(dir.as_os_str()).to_string_lossy().into_owned();
        let mut runs = vec![dir.to_owned()];
        if !is_run(dir) {
            let below = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
            runs = below.filter(|dir| is_run(dir)).collect();
            runs.sort();
        }
        if runs.is_empty() {
            return Err(UsageError::new(format!("{} holds no sweep", dir.display()))
                .hint("give a folder that `spattn sweep` wrote to")
                .into());
        }
        let shards = runs.into_iter().map(|dir| shard(name(&dir), dir, None)).collect();
        Ok(Self { dir: dir.to_owned(), plan: None, shards })
    }

    /// The plan, if there is one.
    pub fn plan(&self) -> Option<&SweepPlan> {
        self.plan.as_ref()
    }

    /// The status now.
    ///
    /// # Errors
    /// If files cannot be read.
    pub fn look(&mut self) -> Result<Status> {
        self.shards.par_iter_mut().try_for_each(|shard| shard.tally.update(&shard.dir.join(SAMPLES)))?;
        let attempts: Vec<Vec<Attempt>> = self.shards.par_iter().map(|shard| attempts::read(&shard.dir)).collect();
        let of_scheduler = |attempt: &Attempt| Some(attempt.start.job.as_ref()?.split_once('_')?.0.to_owned());
        let jobs = attempts.iter().flatten().filter_map(of_scheduler).collect();
        let tasks = self.plan.as_ref().and_then(|plan| slurm::tasks(plan, &self.dir.join(SCRIPT), &jobs));
        let logs = logs(&self.dir.join(LOGS));
        let mut scores = Scores::default();
        let mut shards = Vec::new();
        for (at, (shard, attempts)) in self.shards.iter().zip(&attempts).enumerate() {
            scores.merge(&shard.tally.scores);
            let task = tasks.as_ref().and_then(|tasks| tasks.get(&(at + 1)));
            shards.push(status_of(
                shard,
                attempts,
                task,
                tasks.is_some(),
                logs.get(&(at + 1)).map(|(_, log)| log.as_path()),
            ));
        }
        let places = scores.take_current();
        Ok(Status {
            records: shards.iter().map(|shard| shard.records).sum(),
            expected: match &self.plan {
                Some(plan) => Some(plan.records()),
                None => shards.iter().map(|shard| shard.expected).sum(),
            },
            seconds_left: self.plan.as_ref().and_then(|plan| seconds_left(plan, &shards)),
            balance: Balance::of(&shards),
            knows_queue: tasks.is_some(),
            left_out: self.plan.as_ref().map(|plan| plan.failed.clone()).unwrap_or_default(),
            scores: places.iter().map(|place| (place.to_string(), scores.line(place))).collect(),
            shards,
        })
    }
}

fn status_of(shard: &Shard, attempts: &[Attempt], task: Option<&Task>, asked: bool, log: Option<&Path>) -> ShardStatus {
    let last = attempts.last();
    let end = last.and_then(|attempt| attempt.end.as_ref());
    let failed = last.map(|attempt| attempt.failed.clone()).unwrap_or_default();
    // A dead node seems alive for a while, so the scheduler decides about tasks in its queue and about the task that started last.
    let is_last = |task: &Task| last.is_some_and(|attempt| attempt.start.job.as_ref() == Some(&task.job));
    let is_running = || match task {
        Some(task) if task.is_queued() || is_last(task) => task.is_running(),
        _ => Owner::is_alive(&shard.dir),
    };
    let (state, said) = match end.map(|end| end.end) {
        Some(Ending::Done) if failed.is_empty() => (State::Done, None),
        Some(Ending::Done) => (State::Incomplete, None),
        _ if is_running() => (State::Running, None),
        _ if task.is_some_and(Task::is_queued) => (State::Queued, task.map(|task| task.reason.clone())),
        Some(Ending::Stopped) => (State::Stopped, task.map(|task| task.state.clone())),
        Some(Ending::Error) => (State::Failed, end.and_then(|end| end.error.clone())),
        // A run outside a sweep keeps no log of attempts, but its manifest states how many records it will have.
        None if last.is_none() && shard.planned.is_none() && shard.tally.records > 0 => (shard.without_log(), None),
        None if last.is_none() && task.is_none() && log.is_none() => (State::Waiting, None),
        // If the scheduler does not answer, a task that has not reached its folder yet may be about to start.
        None if last.is_none() && !asked => (State::Waiting, log.and_then(error_in)),
        None => {
            let how = task.map(|task| format!("{} {}", task.state, task.reason).trim().to_owned());
            let how = how.unwrap_or_else(|| "killed".to_owned());
            (State::Failed, Some(log.and_then(error_in).map_or(how.clone(), |error| format!("{how}: {error}"))))
        }
    };
    ShardStatus {
        shard: shard.name.clone(),
        state,
        records: shard.tally.records,
        expected: shard.expected(),
        attempts: attempts.len(),
        work: shard.planned.as_ref().map(|planned| planned.work),
        processor_s: attempts.iter().map(|attempt| attempt.end.as_ref()?.processor_s).sum(),
        seconds: attempts
            .iter()
            .zip(1..)
            .map(|(attempt, n)| seconds(attempt, attempts.get(n), state, &shard.dir))
            .sum(),
        job: task.map(|task| task.job.clone()).or_else(|| last.and_then(|attempt| attempt.start.job.clone())),
        node: last.map(|attempt| attempt.start.node.clone()).or_else(|| task.map(|task| task.node.clone())),
        said: said.filter(|said| !said.is_empty()),
        failed,
    }
}

/// How long an attempt ran. An attempt that was killed counts until its last record.
fn seconds(attempt: &Attempt, next: Option<&Attempt>, state: State, dir: &Path) -> u64 {
    let last_record = || {
        let changed = fs::metadata(dir.join(SAMPLES)).and_then(|file| file.modified()).ok();
        changed.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok()).map_or(0, |at| at.as_secs())
    };
    let end = match (&attempt.end, next) {
        (Some(end), _) => end.at,
        // A later attempt may have written records since, so the time of the kill is unknown, and this attempt counts as 0.
        (None, Some(_)) => attempt.start.at,
        (None, None) if state == State::Running => attempts::now(),
        (None, None) => last_record(),
    };
    end.saturating_sub(attempt.start.at)
}

/// The seconds left: the remaining work at the pace so far, divided by the number of running tasks.
fn seconds_left(plan: &SweepPlan, shards: &[ShardStatus]) -> Option<f64> {
    let share = |planned: &PlannedShard, shard: &ShardStatus| match shard.state {
        State::Done | State::Incomplete => 1.0,
        _ => (shard.records as f64 / planned.records.max(1) as f64).min(1.0),
    };
    let pairs = || plan.shards.iter().zip(shards);
    let done: f64 = pairs().map(|(planned, shard)| planned.work as f64 * share(planned, shard)).sum();
    let left: f64 = pairs().map(|(planned, shard)| planned.work as f64 * (1.0 - share(planned, shard))).sum();
    let spent: u64 = shards.iter().map(|shard| shard.seconds).sum();
    let at_once = shards.iter().filter(|shard| shard.state == State::Running).count().max(1);
    (done > 0.0 && spent > 0).then(|| left * spent as f64 / done / at_once as f64)
}

/// The newest log of each shard, with the number of its job.
fn logs(dir: &Path) -> BTreeMap<usize, (u64, PathBuf)> {
    let mut newest: BTreeMap<usize, (u64, PathBuf)> = BTreeMap::new();
    for path in fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let numbers = name.split_once('_').and_then(|(job, shard)| Some((job.parse().ok()?, shard.parse().ok()?)));
        if let Some((job, shard)) = numbers
            && newest.get(&shard).is_none_or(|(known, _)| *known <= job)
        {
            newest.insert(shard, (job, path));
        }
    }
    newest
}

/// The last error message in a log.
fn error_in(log: &Path) -> Option<String> {
    const TAIL: u64 = 8192;
    let mut file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).ok()?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail).ok()?;
    let text = String::from_utf8_lossy(&tail);
    let is_error = |line: &&str| line.starts_with("error: ") || line.starts_with("slurmstepd: error: ");
    text.lines().rfind(is_error).map(|line| line.trim_start_matches("error: ").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::folder::attempts::Log;
    use spattn_eval::records::record::Record;
    use spattn_eval::records::testing::record;
    use std::io::Write;

    fn append(dir: &Path, records: &[Record], torn: &str) {
        fs::create_dir_all(dir).unwrap();
        let mut file = fs::OpenOptions::new().create(true).append(true).open(dir.join(SAMPLES)).unwrap();
        for record in records {
            writeln!(file, "{}", serde_json::to_string(record).unwrap()).unwrap();
        }
        write!(file, "{torn}").unwrap();
    }

    #[test]
    fn a_run_without_a_log_is_stopped_until_it_has_what_its_manifest_states() {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), &[record("ruler/vt", "full", 0, 1.0), record("ruler/vt", "topk", 0, 1.0)], "");
        let of = |stated: usize| {
            let manifest = serde_json::json!({"shard": {"index": 1, "of": 1, "records": stated, "whole": stated}});
            fs::write(dir.path().join("manifest.json"), manifest.to_string()).unwrap();
            let status = Watched::open(dir.path()).unwrap().look().unwrap();
            (status.shards[0].state, status.records, status.expected)
        };
        assert_eq!(of(2080), (State::Stopped, 2, Some(2080)));
        assert_eq!(of(2), (State::Done, 2, Some(2)));
    }

    fn planned(dir: &Path, shards: &[(usize, u64)]) -> SweepPlan {
        let shard = |&(records, work): &(usize, u64)| PlannedShard { contexts: 1, records, work };
        let shards = shards.iter().map(shard).collect();
        let (version, cells, failed, submissions) = ("1".into(), Vec::new(), Vec::new(), Vec::new());
        let plan = SweepPlan { version, created: 0, cells, failed, shards, submissions };
        plan.save(dir).unwrap();
        plan
    }

    #[test]
    fn a_folder_tells_what_its_shards_do_without_a_scheduler() {
        let dir = tempfile::tempdir().unwrap();
        planned(dir.path(), &[(2, 10), (4, 20), (2, 10), (2, 10), (2, 10)]);
        let folder = |shard| shard_folder(dir.path(), shard);
        let mut watched = Watched::open(dir.path()).unwrap();
        let states = |watched: &mut Watched| {
            let status = watched.look().unwrap();
            (status.shards.iter().map(|shard| shard.state).collect::<Vec<_>>(), status.records)
        };
        assert_eq!(states(&mut watched), (vec![State::Waiting; 5], 0));
        append(&folder(1), &[record("vt", "full", 0, 1.0), record("vt", "topk", 0, 0.5)], "");
        Log::begin(&folder(1), 0).unwrap().end(Ending::Done, 2, None).unwrap();
        append(&folder(2), &[record("vt", "full", 1, 1.0)], "{\"key\": \"to");
        Log::begin(&folder(2), 0).unwrap().end(Ending::Stopped, 1, None).unwrap();
        append(&folder(3), &[], "");
        drop(Log::begin(&folder(3), 0).unwrap());
        append(&folder(4), &[], "");
        let mut log = Log::begin(&folder(4), 0).unwrap();
        log.failed("vt at 9", &anyhow::anyhow!("too long")).unwrap();
        log.end(Ending::Done, 0, None).unwrap();
        append(&folder(5), &[], "");
        fs::write(folder(5).join(".owner"), "{}").unwrap();
        let expected = vec![State::Done, State::Stopped, State::Failed, State::Incomplete, State::Running];
        assert_eq!(states(&mut watched), (expected, 3));
        let status = watched.look().unwrap();
        assert_eq!((status.missing(false), status.missing(true)), (BTreeSet::from([2, 3]), BTreeSet::from([2, 3, 4])));
        assert_eq!(status.shards[2].said.as_deref(), Some("killed"));
        assert_eq!((status.expected, status.records, status.is_over()), (Some(12), 3, false));
        assert_eq!(status.shards[3].failed[0].what, "vt at 9");
        fs::write(folder(2).join(SAMPLES), "").unwrap();
        assert_eq!(watched.look().unwrap().records, 2);
        append(&folder(2), &[record("vt", "full", 1, 0.0), record("vt", "topk", 1, 1.0)], "");
        let status = watched.look().unwrap();
        assert_eq!(status.records, 4, "a file that was begun anew is read anew");
        assert_eq!(status.scores, [("builtin vt 4096 question".to_owned(), "full 50.0, topk 75.0".to_owned())]);
    }

    #[test]
    fn what_is_left_goes_by_the_work_and_by_how_many_are_at_it() {
        let dir = tempfile::tempdir().unwrap();
        let plan = planned(dir.path(), &[(10, 100), (10, 300), (10, 200)]);
        let shard = |state, records, seconds| ShardStatus {
            shard: String::new(),
            state,
            records,
            expected: Some(10),
            attempts: 1,
            work: None,
            seconds,
            processor_s: None,
            job: None,
            node: None,
            said: None,
            failed: Vec::new(),
        };
        let of = |shards: [ShardStatus; 3]| seconds_left(&plan, &shards);
        // 500 s were spent on the work of 100 and half of 300. The remaining 150 and 200 are for two tasks.
        let shards = [shard(State::Done, 10, 200), shard(State::Running, 5, 300), shard(State::Running, 0, 0)];
        assert_eq!(of(shards), Some(350.0 * 2.0 / 2.0));
        assert_eq!(of([0; 3].map(|_| shard(State::Queued, 0, 0))), None);
    }

    #[test]
    fn shards_that_are_done_are_compared_by_what_they_took() {
        let shard = |state, work, seconds, processor_s| ShardStatus {
            shard: String::new(),
            state,
            records: 1,
            expected: Some(1),
            attempts: 1,
            work: Some(work),
            seconds,
            processor_s,
            job: None,
            node: None,
            said: None,
            failed: Vec::new(),
        };
        let done = |work, seconds, processor_s| shard(State::Done, work, seconds, processor_s);
        let mut shards = vec![
            done(30, 90, Some(4.0)),
            shard(State::Running, 1000, 1000, None),
            done(20, 30, Some(2.0)),
            done(10, 60, Some(2.0)),
        ];
        let expected = Balance { shards: 3, estimated: 1.5, seconds: Some(1.5), processor: Some(1.5) };
        assert_eq!(Balance::of(&shards), Some(expected));
        shards[3].processor_s = None;
        shards[0].seconds = 210;
        assert_eq!(Balance::of(&shards), Some(Balance { seconds: Some(2.1), processor: None, ..expected }));
        assert_eq!(Balance::of(&shards[..2]), None, "one is not compared with itself");
        assert_eq!(Balance::of(&[done(1, 0, Some(0.0)), done(3, 0, None)]).unwrap().seconds, None);
    }

    #[test]
    fn folders_of_runs_need_no_plan() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Watched::open(dir.path()).unwrap_err().to_string().contains("holds no sweep"));
        append(&dir.path().join("b"), &[record("vt", "full", 0, 1.0)], "");
        append(&dir.path().join("a"), &[], "");
        let status = Watched::open(dir.path()).unwrap().look().unwrap();
        let names: Vec<&str> = status.shards.iter().map(|shard| shard.shard.as_str()).collect();
        assert_eq!((names, status.records, status.expected), (vec!["a", "b"], 1, None));
        assert_eq!(Watched::open(&dir.path().join("b")).unwrap().look().unwrap().shards.len(), 1);
    }
}

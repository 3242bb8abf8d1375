//! Slurm through its commands: sbatch submits a sweep, squeue and sacct report its tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::plan::{SweepPlan, ranges};
use spattn_base::error::{RunFailure, UsageError};

/// What Slurm reports about a shard's task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The job and task, for example `12_3`.
    pub job: String,
    /// The state, for example `PENDING` or `RUNNING`.
    pub state: String,
    /// Why the task waits, or how it ended; may be empty.
    pub reason: String,
    /// The node where it runs or ran; may be empty.
    pub node: String,
}

impl Task {
    /// Whether Slurm still has the task, waiting or running.
    pub fn is_queued(&self) -> bool {
        const QUEUED: [&str; 9] = [
            "PENDING",
            "RUNNING",
            "CONFIGURING",
            "COMPLETING",
            "REQUEUED",
            "REQUEUE_HOLD",
            "REQUEUE_FED",
            "SUSPENDED",
            "RESIZING",
        ];
        QUEUED.contains(&self.state.as_str())
    }

    /// Whether the task is running.
    pub fn is_running(&self) -> bool {
        ["RUNNING", "COMPLETING"].contains(&self.state.as_str())
    }
}

/// Submits shards of a sweep, and returns the job's number.
///
/// # Errors
/// A [`UsageError`] if this machine has no sbatch; a [`RunFailure`] with sbatch's message if it refuses.
pub fn submit(script: &Path, shards: &BTreeSet<usize>, options: &[String]) -> Result<String> {
    let mut command = Command::new("sbatch");
    command.arg("--parsable").arg(format!("--array={}", ranges(shards))).args(options).arg(script);
    let output = match command.output() {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let by_hand = format!("sbatch {}", script.display());
            return Err(UsageError::new("this machine has no sbatch to submit the sweep with")
                .hint(format!("the script is written: on a machine with sbatch, run `{by_hand}`"))
                .into());
        }
        output => output.context("cannot start sbatch")?,
    };
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().replace('\n', " ");
    // Its output is `number` or `number;cluster`.
    let job = said(&output.stdout).split(';').next().unwrap_or_default().to_owned();
    match output.status.success() && !job.is_empty() && job.bytes().all(|b| b.is_ascii_digit()) {
        true => Ok(job),
        false => Err(RunFailure {
            what: format!("sbatch rejected the sweep: {}", said(&output.stderr)),
            hint: format!("correct {} or --sbatch, and submit again with --resume", script.display()),
        }
        .into()),
    }
}

/// Slurm's tasks of a sweep, by shard; `None` if squeue is missing or fails.
///
/// `jobs` are the numbers of further jobs of the sweep. Jobs that were submitted by hand are found by their script.
pub fn tasks(plan: &SweepPlan, script: &Path, jobs: &BTreeSet<String>) -> Option<BTreeMap<usize, Task>> {
    let known: BTreeSet<&str> =
        plan.submissions.iter().map(|s| s.job.as_str()).chain(jobs.iter().map(String::as_str)).collect();
    let queue = said_by("squeue", &["--noheader", "--array", "--states=all", "--format=%i|%T|%r|%N|%o"])?;
    let script = script.to_string_lossy();
    let mut tasks = BTreeMap::new();
    if !known.is_empty() {
        let list = known.iter().copied().collect::<Vec<_>>().join(",");
        let fields = "--format=JobID,State,ExitCode,NodeList";
        let ended = said_by("sacct", &["--allocations", "--noheader", "--parsable2", fields, "--jobs", &list]);
        add(&mut tasks, &ended.unwrap_or_default(), |job, _| known.contains(job));
    }
    // squeue overrides what sacct reports, because it is more up to date.
    add(&mut tasks, &queue, |job, command| known.contains(job) || command == script);
    Some(tasks)
}

/// Adds the tasks in lines of `JOB_TASK|STATE|REASON|NODE|COMMAND`. If several jobs have run a shard, the last job counts.
fn add(tasks: &mut BTreeMap<usize, Task>, lines: &str, is_ours: impl Fn(&str, &str) -> bool) {
    let number = |job: &str| job.split('_').next().and_then(|n| n.parse::<u64>().ok());
    for line in lines.lines() {
        let mut fields = line.splitn(5, '|');
        let mut next = || fields.next().unwrap_or_default().trim();
        let [job, state, reason, node, command] = [next(), next(), next(), next(), next()];
        let Some((array, shard)) = job.split_once('_').and_then(|(a, s)| Some((a, s.parse().ok()?))) else { continue };
        let is_newer = tasks.get(&shard).is_none_or(|known: &Task| number(&known.job) <= number(job));
        if is_ours(array, command) && is_newer {
            let none = |text: &str| {
                if ["None", "(null)", "0:0", "None assigned"].contains(&text) { "" } else { text }.to_owned()
            };
            // The state may be followed by more words, as in `CANCELLED by 1000`.
            let state = state.split(' ').next().unwrap_or_default().to_owned();
            tasks.insert(shard, Task { job: job.to_owned(), state, reason: none(reason), node: none(node) });
        }
    }
}

/// The output of a command; `None` if the command does not exist or fails.
fn said_by(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_job_of_a_shard_counts() {
        let mut tasks = BTreeMap::new();
        add(&mut tasks, "7_1|CANCELLED by 0|0:0|n1\n7_2|FAILED|1:0|n2\n8_[3-4]|PENDING|x|\n9|RUNNING||", |job, _| {
            job != "6"
        });
        add(&mut tasks, "9_1|RUNNING|None|n2|/s\n6_2|RUNNING|None|n1|/s\n8_2|PENDING|Resources||/t", |job, command| {
            job != "6" && !command.is_empty()
        });
        let of = |shard: usize| {
            let Task { job, state, reason, node } = &tasks[&shard];
            [job, state, reason, node].map(String::as_str)
        };
        assert_eq!(tasks.len(), 2);
        assert_eq!(of(1), ["9_1", "RUNNING", "", "n2"]);
        assert_eq!(of(2), ["8_2", "PENDING", "Resources", ""]);
        assert!(tasks[&2].is_queued() && !tasks[&2].is_running() && tasks[&1].is_running());
    }
}

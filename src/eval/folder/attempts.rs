//! The log of a sweep's folder, `attempts.jsonl`: a line when a process starts on it, a line for each part of the matrix that
//! could not be run, and a line when the process ends. A process that was killed leaves no last line.
//!
//! `spattn status` reads it. A run reads it too, so that a job that is restarted again and again without progress ends.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::lease::host;
use super::owned_files::OwnFolder;
use spattn_base::disk::{open_here, read_here};
use spattn_base::error::{RunFailure, in_one_line};
use spattn_base::{clock, privacy};

/// Name of the file within a folder.
pub const ATTEMPTS: &str = "attempts.jsonl";
/// Bytes of it that are read at most.
const MOST_BYTES: u64 = 1 << 30;
/// Stands for the machine where the user is left out.
const NOWHERE: &str = "-";
/// How often a job may begin without getting anything done.
const MOST_FRUITLESS: usize = 3;

/// Who began, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Seconds since 1970.
    pub at: u64,
    /// The machine, or the node as the scheduler calls it.
    pub node: String,
    /// The scheduler's number of the job, if there is a scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Its process.
    pub pid: u32,
    /// Records that were there.
    pub records: usize,
}

impl Start {
    /// Without the machine and the number of the process.
    fn without_user(self) -> Self {
        Self { node: NOWHERE.to_owned(), pid: 0, ..self }
    }
}

/// A part of the matrix that could not be run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// What was left out.
    pub what: String,
    /// Why.
    pub why: String,
}

/// How a process ended that could say so.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Seconds since 1970.
    pub at: u64,
    /// How it ended.
    pub end: Ending,
    /// Records that were there then.
    pub records: usize,
    /// The error that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Seconds that processors worked on it, where the system tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor_s: Option<f64>,
}

impl End {
    fn now(end: Ending, records: usize, error: Option<String>) -> Self {
        // To a hundredth: more is noise.
        let processor_s = clock::process_time().map(|time| (100.0 * time.as_secs_f64()).round() / 100.0);
        Self { at: now(), end, records, error, processor_s }
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// All is recorded, but for the parts that are listed as failed.
    Done,
    /// It was told to stop.
    Stopped,
    /// An error ended it.
    Error,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Started(Start),
    Failed(Failed),
    Ended(End),
}

/// One process on the folder.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// How it began.
    pub start: Start,
    /// What it could not run.
    pub failed: Vec<Failed>,
    /// How it ended, if it could say so.
    pub end: Option<End>,
}

/// The attempts on a folder, in their order; none where nothing can be read of them.
pub fn read(dir: &Path) -> Vec<Attempt> {
    let bytes = read_here(&dir.join(ATTEMPTS), MOST_BYTES).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let mut attempts: Vec<Attempt> = Vec::new();
    // A torn line says nothing.
    for line in text.lines().filter_map(|line| serde_json::from_str(line).ok()) {
        match (line, attempts.last_mut()) {
            (Line::Started(start), _) => attempts.push(Attempt { start, failed: Vec::new(), end: None }),
            (Line::Failed(failed), Some(attempt)) => attempt.failed.push(failed),
            (Line::Ended(end), Some(attempt)) => attempt.end = Some(end),
            (_, None) => {}
        }
    }
    attempts
}

/// The attempt that is being made by this process.
#[derive(Debug)]
pub struct Log {
    file: File,
}

impl Log {
    /// Begins an attempt on a folder that this process alone writes to.
    ///
    /// # Errors
    /// If the file cannot be written; a [`RunFailure`] if the scheduler's job has begun so often without one more record
    /// that there is no sense in it.
    pub fn begin(dir: &Path, records: usize) -> Result<Self> {
        Self::begin_as(dir, records, job())
    }

    fn begin_as(dir: &Path, records: usize, job: Option<String>) -> Result<Self> {
        let (before, job) = (read(dir), job.map(|job| marked(job, dir)));
        let path = dir.join(ATTEMPTS);
        OwnFolder::of(dir)?.claim([ATTEMPTS])?;
        let file = open_here(&path, OpenOptions::new().create(true).append(true));
        let mut log = Self { file: file.with_context(|| format!("cannot write {}", path.display()))? };
        let node = std::env::var("SLURMD_NODENAME").unwrap_or_else(|_| host());
        let start = Start { at: now(), node, job: job.clone(), pid: std::process::id(), records };
        let start = if privacy::is_left_out() { start.without_user() } else { start };
        log.write(&Line::Started(start))?;
        match job.filter(|job| fruitless(&before, job, records) >= MOST_FRUITLESS) {
            None => Ok(log),
            Some(job) => {
                let what = format!("job {job} began {MOST_FRUITLESS} times and ended before one example was done");
                log.write(&Line::Ended(End::now(Ending::Error, records, Some(what.clone()))))?;
                let hint = "give it more time or memory, or run fewer methods together".to_owned();
                Err(RunFailure { what, hint }.into())
            }
        }
    }

    /// Notes what cannot be run.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn failed(&mut self, what: &str, error: &anyhow::Error) -> Result<()> {
        let (what, why) = (privacy::text(what), privacy::text(&in_one_line(error)));
        self.write(&Line::Failed(Failed { what, why }))
    }

    /// Notes how it ended.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn end(mut self, end: Ending, records: usize, error: Option<&anyhow::Error>) -> Result<()> {
        let error = error.map(|error| privacy::text(&in_one_line(error)));
        self.write(&Line::Ended(End::now(end, records, error)))
    }

    fn write(&mut self, line: &Line) -> Result<()> {
        let text = serde_json::to_string(line)? + "\n";
        self.file.write_all(text.as_bytes()).with_context(|| format!("cannot write {ATTEMPTS}"))
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The number of the scheduler's job that this process is of, which stays when it is begun again.
fn job() -> Option<String> {
    let of = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    match (of("SLURM_ARRAY_JOB_ID"), of("SLURM_ARRAY_TASK_ID")) {
        (Some(job), Some(task)) => Some(format!("{job}_{task}")),
        _ => of("SLURM_JOB_ID"),
    }
}

/// A job as it is written down: its number, or what stands for it.
fn marked(job: String, dir: &Path) -> String {
    if privacy::is_left_out() { privacy::job(&job, dir) } else { job }
}

/// How often in a row a job began where no record came after.
fn fruitless(attempts: &[Attempt], job: &str, records: usize) -> usize {
    let is = |attempt: &&Attempt| attempt.start.job.as_deref() == Some(job) && attempt.start.records == records;
    attempts.iter().rev().take_while(is).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn attempts_are_read_as_they_were_made() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).is_empty());
        let mut log = Log::begin_as(dir.path(), 0, None).unwrap();
        log.failed("builtin, ruler/vt", &anyhow::anyhow!("too\nlong").context("at 4096")).unwrap();
        log.end(Ending::Stopped, 3, None).unwrap();
        drop(Log::begin_as(dir.path(), 3, Some("7_1".into())).unwrap());
        // A line that was torn by a kill.
        let torn = fs::read_to_string(dir.path().join(ATTEMPTS)).unwrap() + "{\"ended\":{\"at\":";
        fs::write(dir.path().join(ATTEMPTS), torn).unwrap();
        let [first, second] = &read(dir.path())[..] else { panic!("two attempts") };
        assert_eq!(first.failed, [Failed { what: "builtin, ruler/vt".into(), why: "at 4096: too long".into() }]);
        let end = first.end.as_ref().unwrap();
        assert_eq!((end.end, end.records, &end.error), (Ending::Stopped, 3, &None));
        assert_eq!((second.start.records, second.start.job.as_deref(), &second.end), (3, Some("7_1"), &None));
    }

    #[test]
    fn a_job_that_gets_nothing_done_is_not_begun_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let begin = |job: &str, records| Log::begin_as(dir.path(), records, Some(job.into()));
        for records in [0, 0, 5, 5, 5] {
            begin("7_1", records).unwrap();
        }
        let error = begin("7_1", 5).unwrap_err();
        assert!(error.to_string().contains("job 7_1 began 3 times"), "{error}");
        assert_eq!(read(dir.path()).last().unwrap().end.as_ref().unwrap().end, Ending::Error);
        // A user who submits it again means it; so does one who begins by hand.
        begin("8_1", 5).unwrap();
        for _ in 0..4 {
            Log::begin_as(dir.path(), 5, None).unwrap();
        }
    }
}

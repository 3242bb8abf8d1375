//! The log of a sweep's folder, `attempts.jsonl`. A process writes a line when it starts on the folder, a line for each part
//! of the matrix that cannot be run, and a line when it ends. A killed process leaves no last line.
//!
//! `spattn status` reads the log. A run reads it too, to end a job that is restarted again and again without progress.

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

/// The name of the log within a folder.
pub const ATTEMPTS: &str = "attempts.jsonl";
/// The most bytes of the log that are read.
const MOST_BYTES: u64 = 1 << 30;
/// Replaces the machine's name if the user is to be hidden.
const NOWHERE: &str = "-";
/// How often a job may start in a row without making a record.
const MOST_FRUITLESS: usize = 3;

/// The start of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Seconds since 1970.
    pub at: u64,
    /// The machine's name, or the node's name from the scheduler.
    pub node: String,
    /// The scheduler's job number, if there is a scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The process number.
    pub pid: u32,
    /// The number of records at the start.
    pub records: usize,
}

impl Start {
    /// The same start without the machine's name and the process number.
    fn without_user(self) -> Self {
        Self { node: NOWHERE.to_owned(), pid: 0, ..self }
    }
}

/// A part of the matrix that could not be run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// The part that was left out.
    pub what: String,
    /// The reason.
    pub why: String,
}

/// The end of a process. A killed process does not write it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Seconds since 1970.
    pub at: u64,
    /// How it ended.
    pub end: Ending,
    /// The number of records at the end.
    pub records: usize,
    /// The error that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Processor seconds, if the system reports them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor_s: Option<f64>,
}

impl End {
    fn now(end: Ending, records: usize, error: Option<String>) -> Self {
        // Hundredths of a second; more digits are noise.
        let processor_s = clock::process_time().map(|time| (100.0 * time.as_secs_f64()).round() / 100.0);
        Self { at: now(), end, records, error, processor_s }
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Everything is recorded, except for the parts logged as failed.
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

/// One process that worked on the folder.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// The start of the process.
    pub start: Start,
    /// The parts that it could not run.
    pub failed: Vec<Failed>,
    /// The end of the process, unless it was killed.
    pub end: Option<End>,
}

/// Reads the attempts on a folder, in order; none if the log cannot be read.
pub fn read(dir: &Path) -> Vec<Attempt> {
    let bytes = read_here(&dir.join(ATTEMPTS), MOST_BYTES).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let mut attempts: Vec<Attempt> = Vec::new();
    // An incomplete line is skipped.
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

/// The log of this process's attempt.
#[derive(Debug)]
pub struct Log {
    file: File,
}

impl Log {
    /// Logs the start of an attempt on a folder that only this process writes to.
    ///
    /// # Errors
    /// If the log cannot be written; a [`RunFailure`] if the scheduler's job has started too often without making a record.
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
                let what = format!(
                    "job {job} started {MOST_FRUITLESS} times and each time ended before it finished an example"
                );
                log.write(&Line::Ended(End::now(Ending::Error, records, Some(what.clone()))))?;
                let hint = "give it more time or memory, or run fewer methods together".to_owned();
                Err(RunFailure { what, hint }.into())
            }
        }
    }

    /// Logs a part of the matrix that cannot be run.
    ///
    /// # Errors
    /// If the log cannot be written.
    pub fn failed(&mut self, what: &str, error: &anyhow::Error) -> Result<()> {
        let (what, why) = (privacy::text(what), privacy::text(&in_one_line(error)));
        self.write(&Line::Failed(Failed { what, why }))
    }

    /// Logs the end of the attempt.
    ///
    /// # Errors
    /// If the log cannot be written.
    pub fn end(mut self, end: Ending, records: usize, error: Option<&anyhow::Error>) -> Result<()> {
        let error = error.map(|error| privacy::text(&in_one_line(error)));
        self.write(&Line::Ended(End::now(end, records, error)))
    }

    fn write(&mut self, line: &Line) -> Result<()> {
        let text = serde_json::to_string(line)? + "\n";
        self.file.write_all(text.as_bytes()).with_context(|| format!("cannot write {ATTEMPTS}"))
    }
}

/// The time now, in seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The scheduler's job of this process. A restarted job keeps it.
fn job() -> Option<String> {
    let of = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    match (of("SLURM_ARRAY_JOB_ID"), of("SLURM_ARRAY_TASK_ID")) {
        (Some(job), Some(task)) => Some(format!("{job}_{task}")),
        _ => of("SLURM_JOB_ID"),
    }
}

/// The job as it is logged: its number, or a substitute if the user is to be hidden.
fn marked(job: String, dir: &Path) -> String {
    if privacy::is_left_out() { privacy::job(&job, dir) } else { job }
}

/// How often in a row a job started with this number of records, so without making one.
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
        // A line cut short by a kill.
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
        assert!(error.to_string().contains("job 7_1 started 3 times"), "{error}");
        assert_eq!(read(dir.path()).last().unwrap().end.as_ref().unwrap().end, Ending::Error);
        // Submitting a new job is deliberate, and so is starting a run by hand.
        begin("8_1", 5).unwrap();
        for _ in 0..4 {
            Log::begin_as(dir.path(), 5, None).unwrap();
        }
    }
}

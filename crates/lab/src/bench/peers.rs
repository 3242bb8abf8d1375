//! Other programs to compare with, run in a child process that takes turns on command.
//!
//! The script (`scripts/bench_peers.py`, embedded in the program) prepares what can be timed, and then takes one turn for each command, so
//! that its turns are interleaved with those of methods. It reads commands as JSON lines and answers each with one line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::row::BenchRow;
use super::turns::{Runs, Turn};

/// The script.
const SCRIPT: &str = include_str!("../../bench_peers.py");

/// A child that runs the script.
pub struct Peers {
    child: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// Another program's implementation of the same operation.
#[derive(Debug, Clone, Deserialize)]
pub struct Peer {
    /// Its name, which is also the command for a turn.
    pub method: String,
    /// Its parameters as `key=value,...`.
    #[serde(default)]
    pub params: String,
    /// Its type of keys and values, if it differs from the requested one.
    dtype: Option<String>,
    #[serde(default)]
    bytes: u64,
    #[serde(default)]
    flops: u64,
    #[serde(default = "all")]
    density: f64,
    index_ms: Option<f64>,
    /// Whether it does only part of the work that methods do, so that times must not be compared.
    #[serde(default)]
    pub part: bool,
    /// What it does, in words.
    #[serde(default)]
    pub about: String,
}

fn all() -> f64 {
    1.0
}

/// The peers that can be timed, and notes about those that cannot be.
#[derive(Debug, Default, Deserialize)]
pub struct Prepared {
    /// The peers that can be timed.
    pub ready: Vec<Peer>,
    /// Notes for the reader.
    #[serde(default)]
    pub notes: Vec<String>,
}

impl Peers {
    /// Starts the script in the interpreter `python` with `arguments`.
    ///
    /// # Errors
    /// If the interpreter cannot be started.
    pub fn start(python: &str, arguments: &[String]) -> Result<Self> {
        let mut command = Command::new(python);
        command.args(["-c", SCRIPT]).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        // The child must not get Ctrl-C: this program handles it, and the script ends when its input ends.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().with_context(|| format!("--peers needs `{python}` with PyTorch"))?;
        let (Some(commands), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("cannot open pipes to `{python}`");
        };
        Ok(Self { child, commands: Some(commands), answers: BufReader::new(answers) })
    }

    /// Prepares keys and values for `batch` sequences, and frees earlier ones.
    ///
    /// # Errors
    /// If the script ends or fails.
    pub fn prepare(&mut self, context: usize, batch: usize) -> Result<Prepared> {
        let answer = self.ask(&json!({ "prepare": { "context": context, "batch": batch } }))?;
        serde_json::from_value(answer).context("the script of --peers sent an unexpected answer")
    }

    /// Frees what was prepared.
    ///
    /// # Errors
    /// If the script ends or fails.
    pub fn release(&mut self) -> Result<()> {
        self.ask(&json!({ "release": true })).map(drop)
    }

    fn time(&mut self, method: &str) -> Result<Duration> {
        let answer = self.ask(&json!({ "time": method }))?;
        let us = answer["us"].as_f64().ok_or_else(|| anyhow!("--peers: no time of {method}: {answer}"))?;
        Ok(Duration::from_secs_f64(us / 1e6))
    }

    fn ask(&mut self, command: &Value) -> Result<Value> {
        let gone = "the script of --peers has ended; its output is above";
        let commands = self.commands.as_mut().ok_or_else(|| anyhow!(gone))?;
        // A script that failed to start has printed the reason and reads no input, so a failed write is ignored.
        let _ = writeln!(commands, "{command}").and_then(|()| commands.flush());
        let mut line = String::new();
        if self.answers.read_line(&mut line).context(gone)? == 0 {
            bail!(gone);
        }
        let answer: Value =
            serde_json::from_str(&line).with_context(|| format!("the script of --peers sent no JSON: {line}"))?;
        match answer["error"].as_str() {
            Some(error) => Err(anyhow!("--peers: {error}")),
            None => Ok(answer),
        }
    }
}

impl Drop for Peers {
    /// Ends the script by closing its input.
    fn drop(&mut self) {
        drop(self.commands.take());
        // The script may have ended already.
        let _ = self.child.wait();
    }
}

/// A peer that takes turns.
pub struct PeerTurns<'p> {
    /// The child process.
    pub peers: &'p Mutex<Peers>,
    /// The peer to time.
    pub peer: Peer,
}

impl Runs for PeerTurns<'_> {
    fn turn(&mut self, _: usize) -> Result<Turn> {
        Ok(Turn::of(self.peers.lock().unwrap_or_else(PoisonError::into_inner).time(&self.peer.method)?))
    }

    fn count(&self, row: &mut BenchRow) {
        let Peer { bytes, flops, density, index_ms, .. } = self.peer;
        (row.bytes, row.limit_bytes, row.flops) = (bytes, bytes, flops);
        (row.density, row.index_ms) = (density, index_ms);
        if let Some(dtype) = &self.peer.dtype {
            row.dtype.clone_from(dtype);
        }
    }
}

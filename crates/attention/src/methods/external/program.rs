//! A command's only process, which all KV heads, sequences and methods ask in turn.
//!
//! A command that fails is killed, and started again for the next prefix. The prefixes that it was told before are lost: those who still
//! ask for them get the error of the failure.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use serde_json::json;

use super::command::CommandLine;
use super::process::{Fault, Process};
use super::protocol::{Hello, Message, read_ready, read_scores, read_scores_shape, read_tokens};
use crate::kv::KvError;
use crate::types::prefix_head::HeadPrefix;
use spattn_base::error::UsageError;
use spattn_base::text;

/// Running commands. Methods that differ only in their budgets ask the same process.
static RUNNING: Mutex<Vec<Weak<Program>>> = Mutex::new(Vec::new());

/// A command and its process, which ends with it.
pub(super) struct Program {
    command: CommandLine,
    hello: Hello,
    /// Number of failed processes; only the holder of the state changes it. What an earlier process was told is lost.
    failures: AtomicU64,
    state: Mutex<State>,
}

/// The process and what it knows.
struct State {
    process: Option<Process>,
    /// Why the last one failed.
    why: String,
    /// Number of the next prefix.
    next: u64,
    /// Prefixes that are no longer needed. The next message tells the process to forget them.
    forgotten: Vec<u64>,
}

/// Candidates of a KV head that a process knows.
pub(super) struct KnownPrefix {
    program: Arc<Program>,
    number: u64,
    failures: u64,
    /// Number of candidates.
    pub candidates: usize,
}

/// The queries of a step, `[heads][d]`.
pub(super) struct StepQueries<'a> {
    pub layer: usize,
    pub kv_head: usize,
    pub queries: &'a [f32],
    pub d: usize,
    pub scale: f32,
}

impl StepQueries<'_> {
    fn heads(&self) -> usize {
        self.queries.len() / self.d
    }
}

impl Program {
    /// The command's process: one that runs already, or a new one.
    ///
    /// # Errors
    /// If it cannot be started, or its hello is not valid.
    pub fn of(command: CommandLine) -> Result<Arc<Self>, UsageError> {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|program| program.strong_count() > 0);
        let known = running.iter().filter_map(Weak::upgrade).find(|program| program.command == command);
        if let Some(program) = known {
            return Ok(program);
        }
        let (process, hello) = start(&command)
            .map_err(|why| UsageError::new(why).hint("docs/external-methods.md says what a command has to answer"))?;
        let state = State { process: Some(process), why: String::new(), next: 0, forgotten: Vec::new() };
        let program = Arc::new(Self { command, hello, failures: AtomicU64::new(0), state: Mutex::new(state) });
        running.push(Arc::downgrade(&program));
        Ok(program)
    }

    /// What the command said of itself.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// The command.
    pub fn command(&self) -> &CommandLine {
        &self.command
    }

    /// Tells the process of the candidates of a KV head.
    ///
    /// # Errors
    /// If keys and values cannot be read, or the process fails.
    pub fn learn(self: &Arc<Self>, prefix: &HeadPrefix<'_>) -> Result<KnownPrefix, KvError> {
        let (keys, d) = (prefix.candidate_keys().to_f32()?, prefix.d);
        let values = if self.hello.values { Some(prefix.candidate_values().to_f32()?) } else { None };
        let mut state = self.turn(self.failures())?;
        if state.process.is_none() {
            state.process = Some(self.start_again()?);
        }
        let number = state.next;
        state.next += 1;
        let (candidates, scale) = (keys.len() / d, prefix.scale.factor());
        let (layer, kv_head, seed) = (prefix.layer, prefix.kv_head, prefix.seed);
        let fields = json!({
            "prefix": number, "layer": layer, "kv_head": kv_head, "candidates": candidates, "dim": d, "scale": scale, "seed": seed,
        });
        let mut message = Message::new("prefix", fields).with("keys", d, &keys);
        if let Some(values) = values {
            message = message.with("values", d, &values);
        }
        self.ask(&mut state, message, |process, until| read_line(process, until, read_ready))?;
        Ok(KnownPrefix { program: self.clone(), number, failures: self.failures(), candidates })
    }

    fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Waits for a turn with the process.
    ///
    /// # Errors
    /// If the process has failed since `failures` was read, also while waiting: not every KV head should wait for a process that is stuck.
    fn turn(&self, failures: u64) -> Result<MutexGuard<'_, State>, KvError> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match self.failures() == failures {
            true => Ok(state),
            false => Err(KvError::Method(state.why.clone())),
        }
    }

    fn start_again(&self) -> Result<Process, KvError> {
        let (process, hello) = start(&self.command).map_err(KvError::Method)?;
        if hello != self.hello {
            let what = format!("the command {} says something else of itself than when the run began", self.command);
            return Err(KvError::Method(what));
        }
        Ok(process)
    }

    /// Sends a message and reads the answer. A failure leaves no process.
    fn ask<T>(
        &self,
        state: &mut State,
        message: Message,
        read: impl FnOnce(&mut Process, Instant) -> Result<T, Fault>,
    ) -> Result<T, KvError> {
        let Some(mut process) = state.process.take() else { return Err(KvError::Method(state.why.clone())) };
        state.forgotten.drain(..).for_each(|prefix| process.send(Message::forget(prefix).into_bytes()));
        match answer(&self.command, &mut process, message, read) {
            Ok(answer) => {
                state.process = Some(process);
                Ok(answer)
            }
            Err(fault) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                state.why = told(&self.command, process, fault);
                state.forgotten.clear();
                Err(KvError::Method(state.why.clone()))
            }
        }
    }
}

impl KnownPrefix {
    /// The scores of all candidates, a list for each query head.
    ///
    /// # Errors
    /// If the process fails.
    pub fn scores(&self, step: &StepQueries<'_>) -> Result<Vec<f32>, KvError> {
        let (heads, candidates) = (step.heads(), self.candidates);
        let (lists, scores) = self.ask(step, json!({}), |process, until| {
            let lists = read_line(process, until, |line| read_scores_shape(line, heads, candidates))?;
            let bytes = process.bytes(lists * candidates * size_of::<f32>(), until)?;
            Ok((lists, read_scores(&bytes, candidates).map_err(Fault::Wrong)?))
        })?;
        Ok(scores.repeat(heads / lists))
    }

    /// The selected candidates, ascending: a list for each query head, or one for all of them. `further` fields are sent along.
    ///
    /// # Errors
    /// If the process fails.
    pub fn tokens(&self, step: &StepQueries<'_>, further: serde_json::Value) -> Result<Vec<Vec<u32>>, KvError> {
        self.ask(step, further, |process, until| {
            read_line(process, until, |line| read_tokens(line, step.heads(), self.candidates))
        })
    }

    fn ask<T>(
        &self,
        step: &StepQueries<'_>,
        further: serde_json::Value,
        read: impl FnOnce(&mut Process, Instant) -> Result<T, Fault>,
    ) -> Result<T, KvError> {
        let StepQueries { layer, kv_head, queries, d, scale } = *step;
        let mut fields = json!({
            "prefix": self.number, "layer": layer, "kv_head": kv_head, "heads": step.heads(), "dim": d, "scale": scale,
        });
        if let (Some(fields), serde_json::Value::Object(further)) = (fields.as_object_mut(), further) {
            fields.extend(further);
        }
        let mut state = self.program.turn(self.failures)?;
        self.program.ask(&mut state, Message::new("step", fields).with("queries", d, queries), read)
    }
}

impl Drop for KnownPrefix {
    fn drop(&mut self) {
        if let Ok(mut state) = self.program.turn(self.failures) {
            state.forgotten.push(self.number);
        }
    }
}

/// Starts a process and reads its hello.
fn start(command: &CommandLine) -> Result<(Process, Hello), String> {
    let mut process = Process::start(command).map_err(|error| {
        format!("the command {command} cannot be started: {error}; its first word is a program, or a file that may be executed")
    })?;
    let hello =
        answer(command, &mut process, Message::hello(), |process, until| read_line(process, until, Hello::parse));
    match hello {
        Ok(hello) => Ok((process, hello)),
        Err(fault) => Err(told(command, process, fault)),
    }
}

fn answer<T>(
    command: &CommandLine,
    process: &mut Process,
    message: Message,
    read: impl FnOnce(&mut Process, Instant) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let until = Instant::now() + command.limit;
    process.send(message.into_bytes());
    read(process, until)
}

/// The next line of an answer, read by `parse`. A line that is not an object is most often a message for people.
fn read_line<T>(
    process: &mut Process,
    until: Instant,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, Fault> {
    let line = process.line(until)?;
    parse(&line).map_err(|why| {
        Fault::Wrong(match line.trim_start().starts_with('{') {
            true => why,
            false => format!(
                "it printed `{}` on standard output, which is for answers alone: print to standard error",
                text::in_line(&text::cut(&line, 80))
            ),
        })
    })
}

/// Ends a process that failed, and says why in one line, with the last lines of its standard error.
fn told(command: &CommandLine, process: Process, fault: Fault) -> String {
    let has_ended = fault == Fault::Ended;
    let (status, errors) = process.end(has_ended);
    let why = match fault {
        Fault::Ended => match status {
            Some(status) => format!("ended without an answer ({status})"),
            None => "closed its output without an answer".to_owned(),
        },
        Fault::Late => {
            format!("gave no answer within {} s (timeout=SECONDS sets another limit)", command.limit.as_secs_f64())
        }
        Fault::Stopped => "was ended, since the run is to stop".to_owned(),
        Fault::Wrong(why) => format!("failed: {why}"),
    };
    let errors = match errors.is_empty() {
        true => String::new(),
        false => format!("; its standard error ends with: {}", text::in_line(&errors.join(" | "))),
    };
    format!("the command {command} {why}{errors}")
}

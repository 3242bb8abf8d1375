//! The prompts that `spattn tune` measures. Each is read at most once for all measurements, and not at all if the journal has them.

use std::cell::RefCell;
use std::collections::BTreeSet;

use anyhow::Result;
use serde_json::{Value, json};

use super::analyze::TASKS;
use super::interrupt;
use super::setup::{find_data, system_prompt};
use super::tune_args::TuneArgs;
use spattn_attention::PromptNeed;
use spattn_base::error::UsageError;
use spattn_base::meter::Meter;
use spattn_base::privacy;
use spattn_eval::config::value::parse_dtype;
use spattn_eval::plan::manifest::RESULTS_VERSION;
use spattn_lab::analyze::{Document, DocumentReader, Loaded, Request};
use spattn_lab::tune::journal::Journal;
use spattn_model::device::Device;

/// The default length of a prompt in tokens.
const LENGTH: usize = 4096;
const SEED: u64 = 42;

/// One half of the prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Half {
    /// The prompts that predictions are made from.
    First,
    /// The prompts that predictions are checked on.
    Second,
}

/// The prompts of a command with `--prompts`.
pub(super) struct Reading {
    /// The model with its prompts.
    pub loaded: Loaded,
    length: usize,
    prompts: usize,
    quiet: bool,
    system: Option<String>,
    meter: RefCell<Meter>,
}

impl Reading {
    /// Opens and loads the model and prompts that the arguments name.
    ///
    /// # Errors
    /// As [`DocumentReader::open`] and [`DocumentReader::load`]; if several lengths are given to `flag`.
    pub fn open(args: &TuneArgs, flag: &str) -> Result<Self> {
        let device: Device = match &args.device {
            Some(text) => {
                let device = text.parse().and_then(Device::of_one_copy);
                device.map_err(|e: UsageError| UsageError { what: format!("--device: {}", e.what), ..e })?
            }
            None => Device::Cpu,
        };
        let data = args.data.as_deref().map(find_data).transpose()?;
        let tasks = if args.tasks.is_empty() { TASKS.map(str::to_owned).to_vec() } else { args.tasks.clone() };
        let length = match args.lengths.as_slice() {
            [] => LENGTH,
            [length] => *length,
            _ => {
                return Err(UsageError::new(format!("{flag} takes prompts of one length"))
                    .hint("the best setting depends on the length: run it once for each --length")
                    .into());
            }
        };
        let system = system_prompt(args.system_prompt.as_deref())?;
        let request = Request {
            model: &args.model,
            device,
            dtype: args.dtype.as_deref().map(parse_dtype).transpose()?,
            tasks: &tasks,
            text: None,
            system: system.as_deref(),
            data: data.as_ref().map(|data| data.folder.as_path()),
            length,
            samples: 2 * args.prompts,
            queries: args.queries,
            layers: &[],
            seed: args.seed.unwrap_or(SEED),
        };
        let loaded = DocumentReader::open(&request)?.load()?;
        loaded.model.notes.iter().for_each(|note| eprintln!("note: {note}"));
        interrupt::end_with(|| "what was measured is kept; go on with the same command and --resume".to_owned());
        let meter = RefCell::new(Meter::new(args.quiet.0.is_some(), "reading the first prompt"));
        Ok(Self { loaded, length, prompts: args.prompts, quiet: args.quiet.0.is_some(), system, meter })
    }

    /// The journal of `--out`, for measurements of `method`.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn journal(&self, args: &TuneArgs, what: &str, method: &str) -> Result<Journal> {
        let (model, policy) = (&self.loaded.model, args.policy()?);
        let identity = json!({
            "results_version": RESULTS_VERSION,
            "what": what,
            "method": method,
            "model": model.id,
            "weights_sha256": model.weights_sha256,
            "configuration": model.configuration(),
            "inputs": self.loaded.inputs(),
            "dtype": model.dimensions.dtype().name(),
            "device": args.device.as_deref().unwrap_or("cpu"),
            "sink": policy.sink,
            "local": policy.local,
            "dense_layers": policy.dense_layers.to_string(),
            "read": self.loaded.tasks(),
            "length": self.length,
            "prompts": self.prompts,
            "queries": args.queries,
            "draws": args.draws,
            "seed": args.seed.unwrap_or(SEED),
            "system_prompt": self.system.as_deref().map(privacy::system_prompt),
        });
        Journal::open(&args.out, args.mode(), &identity)
    }

    /// Ends the display of progress.
    pub fn end(&self) {
        self.meter.borrow_mut().end();
    }

    /// The conditions of a run, for its files.
    pub fn facts(&self, args: &TuneArgs, program: Value) -> Value {
        json!({
            "program": program,
            "model": self.loaded.model.id,
            "weights_sha256": self.loaded.model.weights_sha256,
            "read": self.loaded.tasks(),
            "length": self.length,
            "queries": args.queries,
            "draws": args.draws,
            "seed": args.seed.unwrap_or(SEED),
            "system_prompt": self.system.as_deref().map(privacy::system_prompt),
        })
    }

    /// The numbers of `parts` on each prompt of a half, `[part][prompt]`. Those that the journal lacks are measured by `look` and written
    /// to it at once. `needs` is what methods need to know about prompts.
    ///
    /// # Errors
    /// If a prompt cannot be read or measured, or the journal cannot be written.
    pub fn numbers(
        &self,
        journal: &mut Journal,
        half: Half,
        parts: &[String],
        needs: &BTreeSet<PromptNeed>,
        look: &mut dyn FnMut(&Document, usize) -> Result<Vec<f64>>,
    ) -> Result<Vec<Vec<Vec<f64>>>> {
        let mut all = vec![Vec::new(); parts.len()];
        let tasks = self.loaded.tasks();
        let is_of = |number: usize| (number < self.prompts) == (half == Half::First);
        let documents: Vec<(usize, usize)> = self.loaded.documents().filter(|(_, number)| is_of(*number)).collect();
        let what = if half == Half::First { "predicted from" } else { "checked on" };
        let (count, mut found) = (documents.len(), 0);
        self.meter.borrow_mut().begin("", "reading the first prompt");
        for (at, (task, number)) in documents.into_iter().enumerate() {
            let name = |part: &String| format!("{part} | {} {number}", tasks[task]);
            let is_known = |journal: &Journal| parts.iter().all(|part| journal.known(&name(part)).is_some());
            if !is_known(journal) {
                let document = self.loaded.read(task, number, needs)?;
                for (at, part) in parts.iter().enumerate() {
                    if journal.known(&name(part)).is_none() {
                        journal.add(&name(part), look(&document, at)?)?;
                    }
                }
                let mut meter = self.meter.borrow_mut();
                meter.at(at as u64 + 1, count as u64, found, || format!("{}/{count} prompts", at + 1));
                if !self.quiet {
                    let left = if at + 1 < count { meter.left() } else { String::new() };
                    let (task, tokens) = (&document.task, document.ids.len());
                    meter.tell(&format!("{what}: {task} {number}, {tokens} tokens{left}"));
                }
            } else {
                found += 1;
            }
            for (numbers, part) in all.iter_mut().zip(parts) {
                numbers.push(journal.known(&name(part)).unwrap_or_default().to_vec());
            }
        }
        Ok(all)
    }
}

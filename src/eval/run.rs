//! The loop over examples: whatever is not in the store yet is generated, scored and recorded.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

use super::config::RunConfig;
use super::cut::{Fitted, fit};
use super::generate::{Held, Outcome, Request, run_example};
use super::manifest::identity;
use super::record::Record;
use super::store::Store;
use crate::attention::{Configured, Positions};
use crate::error::UsageError;
use crate::model::Model;
use crate::model::tokenizer::Tokenizer;
use crate::model::weights::sha256_hex;
use crate::tasks::metrics::Metric;
use crate::tasks::seed::example_seed;
use crate::tasks::{PromptCounter, Task};

/// One share of a run split over machines: contexts whose running number is `index` modulo `count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// From 0.
    pub index: usize,
    /// Number of shares.
    pub count: usize,
}

impl Shard {
    /// Everything.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Reads `I/N` with I from 1 to N.
    pub fn parse(text: &str) -> Result<Self, UsageError> {
        let parts = text.split_once('/').and_then(|(i, n)| Some((i.parse::<usize>().ok()?, n.parse::<usize>().ok()?)));
        match parts {
            Some((i, n)) if i >= 1 && i <= n => Ok(Self { index: i - 1, count: n }),
            _ => Err(UsageError::new(format!("`{text}` is no share of a run")).hint("write --shard 1/4 to 4/4")),
        }
    }
}

/// What one step of the loop tells whoever shows progress.
pub struct Progress<'a> {
    /// Examples done, those found in the store included.
    pub done: usize,
    /// Examples of this share.
    pub total: usize,
    /// The example just done.
    pub task: &'a str,
    /// Its length asked for.
    pub length: usize,
    /// Its new records.
    pub records: &'a [Record],
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Everything is recorded.
    Complete,
    /// It was told to stop; what is recorded stays.
    Interrupted,
}

/// A run's fixed parts.
pub struct Runner<'a> {
    /// The model.
    pub model: &'a Model,
    /// What to run.
    pub config: &'a RunConfig,
    /// The tasks, resolved.
    pub tasks: &'a [Box<dyn Task>],
    /// The data set that the tasks were made from, as records are identified by it.
    pub data: Option<&'a str>,
    /// Which share of the examples.
    pub shard: Shard,
}

const LENGTH_HINT: &str = "choose a shorter --length, or see what happens with --allow-extrapolation";
const FILE_HINT: &str = "leave the file out, or see what happens with --allow-extrapolation";

/// An example's place in the run.
struct Place<'a> {
    task: &'a dyn Task,
    length: usize,
    index: usize,
}

impl Runner<'_> {
    /// Checks what can be checked before any work: lengths against the model's context and against what
    /// tasks need, dense layers against the model's depth.
    ///
    /// # Errors
    /// A [`UsageError`] for the first that does not fit; other errors if a task's data is malformed.
    pub fn check(&self) -> Result<()> {
        let c = self.model.decoder.config();
        let generated = self.tasks.iter().any(|t| t.is_sized());
        if generated && self.config.lengths.is_empty() {
            return Err(UsageError::new("no length was given").hint("for example --length 4096").into());
        }
        if let Some(length) = self.config.lengths.iter().find(|l| generated && **l > c.context_limit()) {
            self.check_length(*length, "the length asked for", LENGTH_HINT)?;
        }
        let cut = self.tasks.iter().any(|t| t.is_cut());
        if let Some(limit) = self.config.limits.iter().find(|l| cut && **l > c.context_limit()) {
            self.check_length(*limit, "the length to cut to", LENGTH_HINT)?;
        }
        if let Some(longest) = self.config.lengths.iter().max().filter(|_| generated) {
            self.check_positions(&self.config.methods, *longest)?;
        }
        for method in &self.config.methods {
            if let Some(layer) = method.policy.dense_layers.highest().filter(|l| *l >= c.layers) {
                return Err(UsageError::new(format!("dense layer {layer} does not exist"))
                    .hint(format!("{} has layers 0 to {}", self.model.id, c.layers - 1))
                    .into());
            }
        }
        // What fits the shortest length fits all.
        if let Some(shortest) = self.config.lengths.iter().min() {
            for task in self.tasks.iter().filter(|t| t.is_sized()) {
                task.example(*shortest, 0, self.config.seed, &Counter(&self.model.tokenizer))?;
            }
        }
        Ok(())
    }

    fn check_length(&self, length: usize, what: &str, hint: &str) -> Result<(), UsageError> {
        let limit = self.model.decoder.config().context_limit();
        if length <= limit || self.config.allow_extrapolation {
            return Ok(());
        }
        Err(UsageError::new(format!("{what}, {length} tokens, is beyond the context of {} ({limit})", self.model.id))
            .hint(hint))
    }

    /// A method that moves positions needs frequencies that stay as they are over the whole of `tokens`.
    fn check_positions(&self, methods: &[Configured], tokens: usize) -> Result<(), UsageError> {
        let moves = |m: &&Configured| m.method.positions() != Positions::Original;
        match methods.iter().find(moves) {
            Some(method) if self.model.decoder.rotation(tokens).is_none() => Err(UsageError::new(format!(
                "{} cannot move positions on {}: beyond the trained length its RoPE frequencies depend on the length",
                method.label(),
                self.model.id
            ))
            .hint("choose a shorter --length, or leave the positions as they are")),
            _ => Ok(()),
        }
    }

    /// Runs what is missing from `store`, telling `progress` after each example, until all is done or
    /// `stop` is raised.
    ///
    /// # Errors
    /// If an example cannot be made or run, or a record cannot be written; earlier records stay.
    pub fn run(&self, store: &mut Store, stop: &AtomicBool, mut progress: impl FnMut(Progress<'_>)) -> Result<End> {
        let places = self.places();
        let identity = identity(self.config, self.model, self.data).to_string();
        let mut held = None;
        for (done, place) in places.iter().enumerate() {
            let missing: Vec<Configured> = self
                .config
                .methods
                .iter()
                .filter(|m| !store.contains(&record_key(&identity, place, m)))
                .cloned()
                .collect();
            let mut records = Vec::new();
            if !missing.is_empty() {
                match self.records(place, &missing, &identity, &mut held, stop)? {
                    Some(new) => records = new,
                    None => return Ok(End::Interrupted),
                }
            }
            for record in &records {
                store.append(record)?;
            }
            progress(Progress {
                done: done + 1,
                total: places.len(),
                task: place.task.name(),
                length: place.length,
                records: &records,
            });
            if stop.load(Ordering::Relaxed) && done + 1 < places.len() {
                return Ok(End::Interrupted);
            }
        }
        Ok(End::Complete)
    }

    /// The examples of this share: by task, length and context, those on one context one after the other.
    fn places(&self) -> Vec<Place<'_>> {
        let mut contexts = 0;
        let mut places = Vec::new();
        for task in self.tasks {
            let lengths: &[usize] = match () {
                () if task.is_sized() => &self.config.lengths,
                () if task.is_cut() && !self.config.limits.is_empty() => &self.config.limits,
                () => &[0],
            };
            let samples = task.available().unwrap_or(usize::MAX).min(self.config.samples);
            let mut indices: Vec<usize> = (0..samples * task.cells()).collect();
            indices.sort_by_key(|index| task.context_of(*index));
            for &length in lengths {
                for together in indices.chunk_by(|a, b| task.context_of(*a) == task.context_of(*b)) {
                    if contexts % self.shard.count == self.shard.index {
                        places.extend(together.iter().map(|&index| Place { task: task.as_ref(), length, index }));
                    }
                    contexts += 1;
                }
            }
        }
        places
    }

    fn records(
        &self,
        place: &Place<'_>,
        methods: &[Configured],
        identity: &str,
        held: &mut Option<Held>,
        stop: &AtomicBool,
    ) -> Result<Option<Vec<Record>>> {
        let Place { task, length, index } = *place;
        let what = || match task.is_sized() {
            true => format!("{} at {length}, example {index}", task.name()),
            false => format!("{}, example {index}", task.name()),
        };
        let counter = Counter(&self.model.tokenizer);
        let example = task.example(length, index, self.config.seed, &counter).with_context(what)?;
        let context = self.model.decoder.config().context_limit();
        let fitted = fit(example, context, &self.model.tokenizer).with_context(what)?;
        let Fitted { example, prompt, .. } = &fitted;
        let hint = if task.is_sized() { LENGTH_HINT } else { FILE_HINT };
        // What was cut to a length beyond the context was checked before.
        if example.length == 0 || task.is_sized() || example.length <= context {
            self.check_length(prompt.ids.len() + example.max_new_tokens, "the prompt with its answer", hint)
                .with_context(what)?;
        }
        self.check_positions(methods, prompt.ids.len() + example.max_new_tokens).with_context(what)?;
        let prefix_tokens = self.config.protocol.prefix_tokens(prompt, example.context.len());
        let request = Request {
            prompt: &prompt.ids,
            prefix_tokens,
            methods,
            max_new_tokens: example.max_new_tokens,
            line_end: if example.handling.ends_at_line { self.line_end()? } else { None },
            seed: example_seed(self.config.seed, task.name(), length, task.context_of(index)),
            step_seed: example_seed(self.config.seed, task.name(), length, index),
            fidelity: self.config.fidelity,
        };
        let Some(outcome) = run_example(self.model, request, held, stop) else { return Ok(None) };
        self.score(Made { place, fitted: &fitted, prefix_tokens, identity }, methods, outcome).map(Some)
    }

    /// The token of a line break: the last of those that stand for it.
    fn line_end(&self) -> Result<Option<u32>> {
        Ok(self.model.tokenizer.encode_text("\n", false)?.last().copied())
    }

    fn score(&self, made: Made<'_>, methods: &[Configured], outcome: Outcome) -> Result<Vec<Record>> {
        let Made { place, fitted: Fitted { example, prompt, cut_tokens }, prefix_tokens, identity } = made;
        let (prefill_s, prefill_reused_s) = (outcome.prefill.as_secs_f64(), outcome.reused.as_secs_f64());
        let reused_tokens = outcome.reused_tokens;
        let record = |(method, run): (&Configured, super::generate::Run)| -> Result<Record> {
            let prediction = self.model.tokenizer.decode(&run.tokens)?;
            let score_by = |m: &Metric| (m.name().to_owned(), example.score_by(*m, &prediction));
            Ok(Record {
                key: record_key(identity, place, method),
                model: self.model.id.clone(),
                task: example.task.clone(),
                length: example.length,
                sample: example.index,
                seed: self.config.seed,
                method: method.name.to_owned(),
                params: method.params.clone(),
                protocol: self.config.protocol.to_string(),
                source: example.source.clone(),
                score: example.score(&prediction),
                other_scores: example.also.iter().map(score_by).collect::<BTreeMap<_, _>>(),
                depth: example.depth,
                prediction,
                references: example.references.clone(),
                all_classes: example.all_classes.clone(),
                metric: Some(example.metric),
                first_line: example.handling.first_line,
                cut_tokens: *cut_tokens,
                max_new_tokens: example.max_new_tokens,
                prompt_tokens: prompt.ids.len(),
                prefix_tokens,
                new_tokens: run.tokens.len(),
                stopped: run.stopped,
                bos_tokens: self.model.tokenizer.bos_id().map(|_| prompt.bos_count),
                density: run.density,
                density_sparse_layers: run.density_sparse_layers,
                cost1: run.cost1,
                cost2: run.cost2,
                aux_bits: run.aux_bits,
                kv_bytes_per_token: run.kv_bytes_per_step,
                kv_bytes_held: Some(run.kv_bytes_held),
                prefill_s,
                prefill_reused_s,
                reused_tokens,
                index_s: run.index.as_secs_f64(),
                decode_s: run.decode.as_secs_f64(),
                steps: run.steps,
                solved: run.solved,
                density_by_layer: run.density_by_layer,
                density_spread: run.density_spread,
                fidelity: run.fidelity,
            })
        };
        methods.iter().zip(outcome.runs).map(record).collect()
    }
}

/// An example with what was made of it.
struct Made<'a> {
    place: &'a Place<'a>,
    fitted: &'a Fitted,
    prefix_tokens: usize,
    identity: &'a str,
}

/// Hash of all that determines a record; known before the example is made.
fn record_key(identity: &str, place: &Place<'_>, method: &Configured) -> String {
    let mut text = format!("{identity}\n{}\n{}\n{}\n{}", place.task.name(), place.length, place.index, method.label());
    if let Some(artefact) = &method.artefact {
        text += &format!("\n{artefact}");
    }
    sha256_hex(text.as_bytes())[..32].to_owned()
}

/// Counts with a model's tokenizer and chat template.
pub struct Counter<'a>(pub &'a Tokenizer);

impl PromptCounter for Counter<'_> {
    fn prompt_tokens(&self, user: &str, answer_prefix: &str) -> Result<usize> {
        Ok(self.0.count_prompt(user, answer_prefix)?)
    }
}

//! The loop over examples: whatever is not in the store yet is generated, scored and recorded.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

use super::config::RunConfig;
use super::cut::{Fitted, fit};
use super::generate::{Held, Outcome, Request, Run, run_example};
use super::likelihood::{self, Scored, run_in_parallel, run_passage};
use super::manifest::identity;
use super::protocol::Protocol;
use super::record::{Choice, Likelihood, Record};
use super::store::Store;
use crate::attention::{Configured, Positions};
use crate::error::UsageError;
use crate::model::Model;
use crate::model::tokenizer::Tokenizer;
use crate::model::weights::sha256_hex;
use crate::tasks::likelihood::{LikelihoodTask, Measure, Passage, Scoring, TextEncoder, TextTokens};
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
                let counter = Counter(&self.model.tokenizer);
                match task.likelihood() {
                    Some(task) => drop(task.passage(*shortest, 0, self.config.seed, &counter)?),
                    None => drop(task.example(*shortest, 0, self.config.seed, &counter)?),
                }
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
        let places = self.places()?;
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
    fn places(&self) -> Result<Vec<Place<'_>>> {
        let counter = Counter(&self.model.tokenizer);
        let mut contexts = 0;
        let mut places = Vec::new();
        for task in self.tasks {
            let lengths: &[usize] = match () {
                () if task.is_sized() => &self.config.lengths,
                () if task.is_cut() && !self.config.limits.is_empty() => &self.config.limits,
                () => &[0],
            };
            for &length in lengths {
                let available = match task.likelihood() {
                    Some(task) => Some(task.available(length, &counter)?),
                    None => task.available(),
                };
                let samples = available.unwrap_or(usize::MAX).min(self.config.samples);
                let mut indices: Vec<usize> = (0..samples * task.cells()).collect();
                indices.sort_by_key(|index| task.context_of(*index));
                for together in indices.chunk_by(|a, b| task.context_of(*a) == task.context_of(*b)) {
                    if contexts % self.shard.count == self.shard.index {
                        places.extend(together.iter().map(|&index| Place { task: task.as_ref(), length, index }));
                    }
                    contexts += 1;
                }
            }
        }
        Ok(places)
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
        if let Some(passages) = task.likelihood() {
            return self.scored(place, passages, methods, identity, held, stop).with_context(what);
        }
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
        let record = |(method, run): (&Configured, Run)| -> Result<Record> {
            let prediction = self.model.tokenizer.decode(&run.tokens)?;
            let score_by = |m: &Metric| (m.name().to_owned(), example.score_by(*m, &prediction));
            Ok(Record {
                task: example.task.clone(),
                length: example.length,
                sample: example.index,
                source: example.source.clone(),
                score: example.score(&prediction),
                other_scores: example.also.iter().map(score_by).collect::<BTreeMap<_, _>>(),
                depth: example.depth,
                question: abridged(&example.question),
                prediction,
                references: example.references.clone(),
                all_classes: example.all_classes.clone(),
                metric: Some(example.metric),
                first_line: example.handling.first_line,
                cut_tokens: *cut_tokens,
                max_new_tokens: example.max_new_tokens,
                prompt_tokens: prompt.ids.len(),
                prefix_tokens,
                bos_tokens: self.model.tokenizer.bos_id().map(|_| prompt.bos_count),
                prefill_s,
                prefill_reused_s,
                reused_tokens,
                ..self.cost_record(identity, place, method, run)
            })
        };
        methods.iter().zip(outcome.runs).map(record).collect()
    }

    /// The records of a passage.
    fn scored(
        &self,
        place: &Place<'_>,
        task: &dyn LikelihoodTask,
        methods: &[Configured],
        identity: &str,
        held: &mut Option<Held>,
        stop: &AtomicBool,
    ) -> Result<Option<Vec<Record>>> {
        let passage = task.passage(place.length, place.index, self.config.seed, &Counter(&self.model.tokenizer))?;
        let longest = passage.continuations.iter().map(|c| c.tokens.len()).max().unwrap_or(0);
        let tokens = passage.prompt.len() + longest;
        self.check_length(tokens, "the text", if place.task.is_sized() { LENGTH_HINT } else { FILE_HINT })?;
        self.check_positions(methods, tokens)?;
        let continuations: Vec<&[u32]> = passage.continuations.iter().map(|c| c.tokens.as_slice()).collect();
        let request = likelihood::Request {
            prompt: &passage.prompt,
            prefix_tokens: self.config.protocol.prefix_before_answer(passage.prompt.len()),
            continuations: &continuations,
            methods,
            seed: example_seed(self.config.seed, place.task.name(), place.length, place.index),
            fidelity: self.config.fidelity,
            compare: passage.scoring == Scoring::Perplexity,
        };
        let outcome = match self.config.protocol {
            Protocol::Prefill => run_in_parallel(&self.model.decoder, request, stop),
            _ => run_passage(&self.model.decoder, request, held, stop)?,
        };
        let Some(outcome) = outcome else { return Ok(None) };
        let bos = self.model.tokenizer.bos_id();
        let record = |(method, scored): (&Configured, Scored)| Record {
            task: passage.task.clone(),
            length: passage.length,
            sample: passage.index,
            source: passage.source.clone(),
            measure: passage.scoring.measure(),
            prompt_tokens: passage.prompt.len(),
            prefix_tokens: request.prefix_tokens,
            bos_tokens: bos.map(|bos| passage.prompt.iter().filter(|id| **id == bos).count()),
            prefill_s: outcome.prefill.as_secs_f64(),
            prefill_reused_s: outcome.reused.as_secs_f64(),
            reused_tokens: outcome.reused_tokens,
            ..scored_record(&passage, &scored.sums, self.cost_record(identity, place, method, scored.run))
        };
        Ok(Some(methods.iter().zip(outcome.runs).map(record).collect()))
    }

    /// A record with what is known of place, method and cost; the rest is empty.
    fn cost_record(&self, identity: &str, place: &Place<'_>, method: &Configured, run: Run) -> Record {
        Record {
            key: record_key(identity, place, method),
            model: self.model.id.clone(),
            task: place.task.name().to_owned(),
            length: place.length,
            sample: place.index,
            seed: self.config.seed,
            method: method.name.to_owned(),
            params: method.params.clone(),
            protocol: self.config.protocol.to_string(),
            source: String::new(),
            question: String::new(),
            prediction: String::new(),
            references: Vec::new(),
            all_classes: Vec::new(),
            score: 0.0,
            measure: Measure::Score,
            other_scores: BTreeMap::new(),
            depth: None,
            metric: None,
            first_line: false,
            cut_tokens: None,
            prompt_tokens: 0,
            prefix_tokens: 0,
            new_tokens: run.tokens.len(),
            max_new_tokens: 0,
            stopped: run.stopped,
            bos_tokens: None,
            density: run.density,
            density_sparse_layers: run.density_sparse_layers,
            cost1: run.cost1,
            cost2: run.cost2,
            aux_bits: run.aux_bits,
            kv_bytes_per_token: run.kv_bytes_per_step,
            kv_bytes_held: Some(run.kv_bytes_held),
            prefill_s: 0.0,
            prefill_reused_s: 0.0,
            reused_tokens: 0,
            index_s: run.index.as_secs_f64(),
            decode_s: run.decode.as_secs_f64(),
            steps: run.steps,
            solved: run.solved,
            density_by_layer: run.density_by_layer,
            density_spread: run.density_spread,
            fidelity: run.fidelity,
            likelihood: None,
            choice: None,
        }
    }
}

/// The record with what the sums say of the passage.
fn scored_record(passage: &Passage, sums: &[likelihood::Sums], record: Record) -> Record {
    match passage.scoring {
        Scoring::Perplexity => {
            let (text, sums) = (&passage.continuations[0], &sums[0]);
            let likelihood = Likelihood {
                nll: sums.nll,
                tokens: text.tokens.len(),
                words: text.words,
                bytes: text.bytes,
                same_top: sums.same_top,
                kl_sum: sums.kl_sum,
                kl: if sums.kl_sum > 0.0 { sums.kl.clone() } else { Vec::new() },
            };
            Record { score: (sums.nll / text.tokens.len() as f64).exp(), likelihood: Some(likelihood), ..record }
        }
        Scoring::Choice { right, normalised } => {
            let choice = Choice::new(
                sums.iter().map(|s| -s.nll).collect(),
                passage.continuations.iter().map(|c| c.text.chars().count()).collect(),
                right,
            );
            let chosen = if normalised { choice.most_likely_by_length } else { choice.most_likely };
            Record {
                score: f64::from(u8::from(chosen == right)),
                prediction: passage.continuations[chosen].text.clone(),
                references: vec![passage.continuations[right].text.clone()],
                choice: Some(choice),
                ..record
            }
        }
    }
}

/// A text of at most a few hundred characters: the middle of a longer one is left out.
fn abridged(text: &str) -> String {
    const HALF: usize = 250;
    let text = text.trim();
    let from = |at: usize| text.char_indices().nth(at).map(|(i, _)| i);
    let count = text.chars().count();
    match (count > 2 * HALF, from(HALF), from(count.saturating_sub(HALF))) {
        (true, Some(head), Some(tail)) => format!("{} … {}", &text[..head], &text[tail..]),
        _ => text.to_owned(),
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

impl TextEncoder for Counter<'_> {
    fn encode(&self, text: &str) -> Result<TextTokens> {
        let (ids, ends) = self.0.encode_with_ends(text)?;
        Ok(TextTokens { ids, ends })
    }

    fn front(&self) -> &[u32] {
        self.0.front()
    }
}

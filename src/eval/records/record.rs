//! What is kept of a run: one [`Record`] per example and method, and the [`SummaryRow`]s made from them.
//!
//! Everything that is drawn or tabulated later comes from these; nothing else is kept.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::interning::{Pool, Shared, Text};
use spattn_attention::FIRST_REVISION;
use spattn_attention::cost::Cost;
use spattn_base::error::UsageError;
use spattn_stats::median;
use spattn_tasks::likelihood::Measure;
use spattn_tasks::metrics::Metric;

/// The method that all others are compared with.
pub const REFERENCE: &str = "full";

/// One method's answer to one example, with its score and what it cost.
///
/// A line of `samples.jsonl`. Fields are only ever added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Hash of everything that determines this record: model, tokenizer, task, example, protocol, method, seed, code version.
    pub key: String,
    /// Model id as given (`builtin`, a folder, a hub id).
    pub model: Text,
    /// Full task name, such as `ruler/vt`.
    pub task: Text,
    /// Length asked for in tokens; 0 if a file fixes it.
    pub length: usize,
    /// Position of the example in its task.
    pub sample: usize,
    /// The run's seed.
    pub seed: u64,
    /// Position of the first example that asks about the same context ([`Task::context_of`](spattn_tasks::Task::context_of)):
    /// examples of one context are not independent. `None` in records from before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,
    /// Digest of what was asked: prompt tokens, answer key, metric and limits. Records are paired, merged and resumed by it.
    /// `None` in records from before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub example_sha256: Option<Shared<String>>,
    /// Bare method name.
    pub method: Text,
    /// Which form of the method's arithmetic made it, 1 for the first ([`Configured::revision`](spattn_attention::Configured::revision)).
    #[serde(default = "first_revision", skip_serializing_if = "is_first_revision")]
    pub revision: u16,
    /// Canonical `key=value,...` of the method's parameters.
    pub params: Text,
    /// All parameters of the method by key, those at their default too; empty in records from before they were kept.
    #[serde(default, skip_serializing_if = "is_empty_map")]
    pub settings: Shared<BTreeMap<String, String>>,
    /// Where sparse attention started: `decode`, `question`, `last:N` or `prefill`.
    pub protocol: Text,
    /// Where the task's text came from.
    pub source: Text,
    /// What was asked: the text after the context, its middle left out where it is long; empty where nothing is asked, and
    /// in records from before it was kept.
    #[serde(default, skip_serializing_if = "is_empty_text")]
    pub question: Text,
    /// Generated text, special tokens removed; the option chosen, where options are scored; empty for perplexity.
    pub prediction: Text,
    /// The answer key.
    pub references: Shared<Vec<String>>,
    /// The names of all classes, where the metric needs them.
    #[serde(default, skip_serializing_if = "is_empty_list")]
    pub all_classes: Shared<Vec<String>>,
    /// Score in 0..=1; where `measure` is perplexity, the token perplexity of this example.
    pub score: f64,
    /// What the score is.
    #[serde(default, skip_serializing_if = "Measure::is_score")]
    pub measure: Measure,
    /// Scores in 0..=1 by further metrics, by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub other_scores: BTreeMap<String, f64>,
    /// How deep in the context lies what is asked for, in percent, where the task decides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<f64>,
    /// How it was scored; `None` in records from before it was kept.
    #[serde(default)]
    pub metric: Option<Metric>,
    /// Whether only the first line of the prediction was scored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub first_line: bool,
    /// Tokens cut out of the middle of the prompt because it was too long for `length`, or for the model's context if
    /// that is 0; `None` for tasks whose prompts are never cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_tokens: Option<usize>,
    /// Tokens of the whole prompt, BOS included.
    pub prompt_tokens: usize,
    /// Tokens of the dense prefix that all methods share.
    pub prefix_tokens: usize,
    /// Generated tokens, a final EOS included.
    pub new_tokens: usize,
    /// Tokens that could be generated at most; 0 in records from before it was kept.
    #[serde(default)]
    pub max_new_tokens: usize,
    /// Whether generation ended by an EOS token rather than by `max_new_tokens`.
    pub stopped: bool,
    /// Number of BOS tokens that the prompt begins with (`None` if it begins with none and the tokenizer puts none there): a
    /// self-check. In earlier records those of the whole prompt.
    pub bos_tokens: Option<usize>,
    /// Tokens attended over tokens in context, mean over heads, layers (dense ones included) and steps.
    pub density: f64,
    /// The same over the layers that are not dense by policy.
    pub density_sparse_layers: f64,
    /// The same as published tables count; `None` in records from before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparable: Option<Comparable>,
    /// FLOPs spent on scoring over FLOPs of full attention.
    pub cost1: f64,
    /// FLOPs of the gathered attention over FLOPs of full attention.
    pub cost2: f64,
    /// Auxiliary memory: bits per token that is indexed per KV head, mean over the layers that are not dense by policy.
    pub aux_bits: f64,
    /// Bytes of K, V and auxiliary data read per token decoded or read after the prefix, over all layers: what a GQA group
    /// reads together counts once. `None` if there was no such token.
    pub kv_bytes_per_token: Option<f64>,
    /// Bytes of what all heads and layers share (hyperplanes), as if every KV head read them anew; no part of the above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_bytes_per_token: Option<f64>,
    /// Bytes of scores and counts that were written and passed over to pick from them; no part of the above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select_bytes_per_token: Option<f64>,
    /// Of the tokens attended in layers that are not dense, the share that followed the prefix and was attended beside the
    /// budget (`--tail exact`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_share: Option<f64>,
    /// Bytes of K and V that this method alone would have to keep in the end, over all layers: all of the
    /// context, less what it evicted; `None` in records from before it was kept.
    #[serde(default)]
    pub kv_bytes_held: Option<u64>,
    /// The same in tokens; `None` in records from before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_tokens: Option<KvTokens>,
    /// Seconds of the prefill, dense and shared by all methods of the example, or the method's own if that is sparse from
    /// the first token. Tokens that were read for an example before count with the time that took.
    pub prefill_s: f64,
    /// How many of these seconds were spent for an example before, and not again.
    #[serde(default)]
    pub prefill_reused_s: f64,
    /// Tokens of the prefix that were read for an example before, and not again.
    #[serde(default)]
    pub reused_tokens: usize,
    /// Seconds of building this method's index, what it would take alone, wherever it was built. In records without
    /// `conditions`: 0 where it was shared with an earlier method or example.
    pub index_s: f64,
    /// How many of these seconds were spent for an earlier method or example, and not again.
    #[serde(default)]
    pub index_reused_s: f64,
    /// Seconds of the steps after the prefix, as this method's share of the time that all methods of the example took
    /// together: those of an example add up to what passed. In records whose conditions do not say `latency`, wall times
    /// of runs beside each other, which add up to more.
    pub decode_s: f64,
    /// How much of it was picking tokens; as the next two, `None` where it was not measured apart, as in records from
    /// before it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select_s: Option<f64>,
    /// How much of it was attending them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attend_s: Option<f64>,
    /// All else of it: above all the weights, whose time all streams of a step share by their tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_s: Option<f64>,
    /// What steps took with nothing beside them; only with `--latency solo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solo: Option<Solo>,
    /// Under what the times were taken; `None` in records from before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Shared<Conditions>>,
    /// Steps after the prefix: question tokens read under the method, and generated tokens fed back.
    pub steps: usize,
    /// What was solved for the density asked for, as `key=value,...`, where the method sets its budget once for an example.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solved: Option<String>,
    /// Density of each layer, to four digits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub density_by_layer: Vec<f64>,
    /// Density over the query heads of all layers that are not dense by policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub density_spread: Option<Spread>,
    /// Against exact attention, by layer; only with `--fidelity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fidelity: Option<Box<Fidelity>>,
    /// Sums over the scored text; only where perplexity is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub likelihood: Option<Box<Likelihood>>,
    /// The options' likelihoods; only where options are scored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<Box<Choice>>,
}

impl Record {
    /// Without what was timed, and what depends on what was run before it.
    pub fn leave_out_times(&mut self) {
        for seconds in [
            &mut self.prefill_s,
            &mut self.prefill_reused_s,
            &mut self.index_s,
            &mut self.index_reused_s,
            &mut self.decode_s,
        ] {
            *seconds = 0.0;
        }
        self.reused_tokens = 0;
        (self.select_s, self.attend_s, self.weights_s) = (None, None, None);
        (self.solo, self.conditions) = (None, None);
    }
}

fn first_revision() -> u16 {
    FIRST_REVISION
}

fn is_first_revision(revision: &u16) -> bool {
    *revision == FIRST_REVISION
}

fn is_empty_text(text: &Text) -> bool {
    text.is_empty()
}

fn is_empty_list(list: &Shared<Vec<String>>) -> bool {
    list.is_empty()
}

fn is_empty_map(map: &Shared<BTreeMap<String, String>>) -> bool {
    map.is_empty()
}

/// What records said so far that others may say again.
#[derive(Debug, Default)]
pub struct Said {
    texts: Pool<str>,
    digests: Pool<String>,
    lists: Pool<Vec<String>>,
    settings: Pool<BTreeMap<String, String>>,
    conditions: Pool<Conditions>,
}

impl Record {
    /// Holds what records before have said as well where those do.
    pub fn share(&mut self, said: &mut Said) {
        let names = [&mut self.model, &mut self.task, &mut self.method, &mut self.params, &mut self.protocol];
        let texts = [&mut self.source, &mut self.question, &mut self.prediction];
        names.into_iter().chain(texts).for_each(|text| said.texts.share(text));
        self.example_sha256.iter_mut().for_each(|digest| said.digests.share(digest));
        [&mut self.references, &mut self.all_classes].into_iter().for_each(|list| said.lists.share(list));
        said.settings.share(&mut self.settings);
        self.conditions.iter_mut().for_each(|conditions| said.conditions.share(conditions));
    }
}

/// What a time depends on besides the method and the example: only times under the same conditions can be compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Conditions {
    /// Whether every step was compared with exact attention as well; within its time on a GPU, and where `latency` is `None`.
    pub fidelity: bool,
    /// Streams that took each step together; 1 where methods were timed alone.
    pub together: usize,
    /// What times of steps are; `None` for wall times of runs beside each other, in records from before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Threads.
    pub threads: usize,
    /// Instruction set of the kernels.
    pub simd: String,
    /// Name of the processor, where the system says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Name of the GPU that the model was on, if it was on one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// Where tokens were picked, of a model on a GPU: `host`, or `device` where none were picked on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select_on: Option<String>,
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fidelity, together, latency, threads, simd, cpu, gpu, select_on } = self;
        if let Some(gpu) = gpu {
            write!(f, "on {gpu}, ")?;
        }
        if let Some(place) = select_on {
            write!(f, "picks made on the {place}, ")?;
        }
        let fidelity = if *fidelity { ", with --fidelity" } else { "" };
        let cpu = cpu.as_deref().unwrap_or("a processor without a name");
        match latency {
            Some(Latency::Solo) => write!(f, "each alone on {threads} threads{fidelity}, {simd}, {cpu}"),
            Some(Latency::Shared) => {
                write!(f, "shares of {together} together on {threads} threads{fidelity}, {simd}, {cpu}")
            }
            None => write!(f, "{together} together on {threads} threads{fidelity}, {simd}, {cpu}"),
        }
    }
}

/// Densities and costs as published tables have them: of the layers that are not dense by policy alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparable {
    /// Tokens picked over tokens in context: sink, window and what follows the prefix left out; of `full`, its density.
    /// `None` where a mask read the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub picked_density: Option<f64>,
    /// FLOPs of scoring over those of full attention in these layers.
    pub cost1: f64,
    /// FLOPs of the gathered attention over those of full attention in these layers.
    pub cost2: f64,
    /// The same without static tokens. `None` where `picked_density` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost2_picked: Option<f64>,
    /// `cost1` without projecting queries onto shared hyperplanes, which MagicPIG counts beside the model's linear layers.
    pub cost1_published: f64,
    /// Bytes of what all heads and layers share (hyperplanes), held once.
    pub shared_bytes_resident: f64,
}

impl Comparable {
    /// Of what was counted in the layers that are not dense by policy.
    pub fn of(sparse: &Cost) -> Self {
        Self {
            picked_density: Some(sparse.picked_density()),
            cost1: sparse.cost1(),
            cost2: sparse.cost2(),
            cost2_picked: Some(sparse.cost2_picked()),
            cost1_published: sparse.cost1_published(),
            shared_bytes_resident: sparse.shared_resident(),
        }
    }
}

/// What the time of a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Latency {
    /// A method's share of the time that steps of all methods take together.
    #[default]
    Shared,
    /// The time of a step of one method that has all threads to itself.
    Solo,
}

impl Latency {
    /// All by name.
    pub const NAMES: [&str; 2] = ["shared", "solo"];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl FromStr for Latency {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Self, UsageError> {
        let known = [Self::Shared, Self::Solo].into_iter().find(|latency| latency.name() == text);
        known.ok_or_else(|| UsageError::unknown("latency", text, Self::NAMES))
    }
}

/// What a method's steps took, in seconds, by what was done.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Parts {
    /// Picking tokens.
    pub select: f64,
    /// Attending them.
    pub attend: f64,
    /// All else of a step.
    pub weights: f64,
    /// What was measured beside the steps and is no part of them: comparing with exact attention, scoring text.
    pub beside: f64,
}

impl Parts {
    /// What the steps took.
    pub fn steps(&self) -> f64 {
        self.select + self.attend + self.weights
    }

    /// All of it.
    pub fn all(&self) -> f64 {
        self.steps() + self.beside
    }

    /// With every part multiplied.
    pub fn scaled(self, factor: f64) -> Self {
        let Self { select, attend, weights, beside } = self;
        Self { select: factor * select, attend: factor * attend, weights: factor * weights, beside: factor * beside }
    }
}

impl std::ops::AddAssign for Parts {
    fn add_assign(&mut self, other: Self) {
        self.select += other.select;
        self.attend += other.attend;
        self.weights += other.weights;
        self.beside += other.beside;
    }
}

/// What steps of a method took that had all threads to itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Solo {
    /// Steps of one token that were timed each time.
    pub steps: usize,
    /// Their median in milliseconds, each time, to four digits.
    pub ms: Vec<f64>,
}

impl Solo {
    /// The median over all times, in milliseconds.
    pub fn median(&self) -> Option<f64> {
        median(self.ms.clone())
    }
}

/// Tokens whose keys and values a method keeps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct KvTokens {
    /// Those it would have to keep in the end, mean over layers and KV heads: what any query head of a group keeps, its KV
    /// head keeps.
    pub held: f64,
    /// All in context.
    pub context: usize,
}

impl KvTokens {
    /// Whether any were let go.
    pub fn is_evicting(&self) -> bool {
        self.held < self.context as f64
    }
}

/// What a method made of a scored text: sums, from which any mean over examples is exact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Likelihood {
    /// Negative log-likelihood of all tokens, in nats.
    pub nll: f64,
    /// Scored tokens.
    pub tokens: usize,
    /// Words, split at white space, that begin in the scored text.
    pub words: usize,
    /// Bytes of the scored text.
    pub bytes: usize,
    /// Tokens at which the most probable one is that of `full`.
    pub same_top: usize,
    /// Sum over tokens of the KL divergence of the distribution from that of `full`, `KL(full ‖ method)`, in nats.
    pub kl_sum: f64,
    /// The divergence at every token to four digits; empty if all are 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kl: Vec<f64>,
}

/// What a method made of the options of a question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Log-likelihood of each option after the question, in nats.
    pub log_likelihoods: Vec<f64>,
    /// Characters of each option.
    pub characters: Vec<usize>,
    /// Index of the right option.
    pub right: usize,
    /// Index of the most likely option.
    pub most_likely: usize,
    /// Index of the most likely option by log-likelihood over characters.
    pub most_likely_by_length: usize,
}

impl Choice {
    /// Of log-likelihoods and characters by option; the first of equals is the most likely.
    pub fn new(log_likelihoods: Vec<f64>, characters: Vec<usize>, right: usize) -> Self {
        let first_greatest = |of: &dyn Fn(usize) -> f64| {
            (0..log_likelihoods.len()).fold(0, |best, i| if of(i) > of(best) { i } else { best })
        };
        let most_likely = first_greatest(&|i| log_likelihoods[i]);
        let most_likely_by_length = first_greatest(&|i| log_likelihoods[i] / characters[i].max(1) as f64);
        Self { log_likelihoods, characters, right, most_likely, most_likely_by_length }
    }
}

impl Record {
    /// Whether two records of one model answer the same question and were scored by the same answer key. Of records without a
    /// digest, what they spell out is compared.
    pub fn asks_as(&self, other: &Self) -> bool {
        match (&self.example_sha256, &other.example_sha256) {
            // A digest is of the answer key as it was; the key may have been edited since.
            (Some(own), Some(others)) => own == others && self.references == other.references,
            _ => {
                let spelled = |r: &Self| (r.question.clone(), r.references.clone(), r.prompt_tokens);
                spelled(self) == spelled(other)
            }
        }
    }

    /// Whether a record of the same digest has another answer key, as where a file of records was edited.
    pub fn has_another_key(&self, other: &Self) -> bool {
        self.example_sha256.is_some() && self.example_sha256 == other.example_sha256 && !self.asks_as(other)
    }

    /// All parameters of the method by key; of a record from before they were kept, those that are named.
    pub fn settings(&self) -> BTreeMap<String, String> {
        if self.settings.is_empty() { named(&self.params) } else { (*self.settings).clone() }
    }

    /// The density asked for, if the budget was given as one.
    pub fn density_target(&self) -> Option<f64> {
        named(&self.params).get("density")?.parse().ok()
    }
}

/// The parameters in a canonical `key=value,...`.
fn named(params: &str) -> BTreeMap<String, String> {
    let pairs = params.split(',').filter_map(|param| param.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// The smallest, the middle and the largest of some numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The smallest.
    pub min: f64,
    /// The one in the middle, or the mean of the two there.
    pub median: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of `values`, to four digits; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let median = (sorted.get(n / 2)? + sorted[(n - 1) / 2]) / 2.0;
        Some(Self { min: four_digits(sorted[0]), median: four_digits(median), max: four_digits(sorted[n - 1]) })
    }
}

/// Rounded to four significant digits, as whatever comes in long lists is kept.
pub fn four_digits(x: f64) -> f64 {
    format!("{x:.3e}").parse().unwrap_or(x)
}

/// How close a method's attention came to exact attention on the same inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fidelity {
    /// Mean over steps and query heads of `‖o − o_full‖ / ‖o_full‖`, one entry a layer.
    pub output_error: Vec<f64>,
    /// Mean share of the exact top-k that was attended, `k` being what the method attended, one entry a layer.
    pub recall: Vec<f64>,
    /// Mean exact attention mass of what was not attended, one entry a layer; empty in records from before it was
    /// measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped_mass: Vec<f64>,
    /// The same over the query heads of all layers that are not dense by policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<FidelitySpread>,
    /// Every query head, `[layer][head]`, to four digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heads: Option<HeadFidelity>,
}

/// Spreads over layers and query heads; see [`Fidelity`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FidelitySpread {
    /// Of the output error.
    pub output_error: Spread,
    /// Of the recall.
    pub recall: Spread,
    /// Of the dropped mass.
    pub dropped_mass: Spread,
}

/// What was measured of each query head, `[layer][head]`, to four digits; see [`Fidelity`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeadFidelity {
    /// Tokens attended over tokens in context.
    pub density: Vec<Vec<f64>>,
    /// Output error.
    pub output_error: Vec<Vec<f64>>,
    /// Recall.
    pub recall: Vec<Vec<f64>>,
    /// Dropped mass.
    pub dropped_mass: Vec<Vec<f64>>,
}

impl Fidelity {
    /// Mean over layers of the output error.
    pub fn mean_error(&self) -> f64 {
        mean(&self.output_error)
    }

    /// Mean over layers of the recall.
    pub fn mean_recall(&self) -> f64 {
        mean(&self.recall)
    }

    /// Mean over layers of the dropped mass, if it was measured.
    pub fn mean_dropped_mass(&self) -> Option<f64> {
        (!self.dropped_mass.is_empty()).then(|| mean(&self.dropped_mass))
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// One line of `summary.csv`: a method on a task at a length, under one protocol.
///
/// The order of the fields is the order of the columns, which is a contract. Scores, intervals and
/// differences are in percent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SummaryRow {
    /// Model id as given.
    pub model: String,
    /// Full task name.
    pub task: String,
    /// Length asked for in tokens; 0 if a file fixes it.
    pub length: usize,
    /// Bare method name.
    pub method: String,
    /// Canonical parameters.
    pub params: String,
    /// All parameters by key, as far as the records have them; not a column.
    #[serde(skip)]
    pub settings: BTreeMap<String, String>,
    /// Where sparse attention started.
    pub protocol: String,
    /// Number of examples.
    pub n: usize,
    /// Mean score, percent.
    pub score: f64,
    /// Lower end of the 95 % interval of the mean; empty where all examples are of one context.
    pub ci_low: Option<f64>,
    /// Upper end of it.
    pub ci_high: Option<f64>,
    /// Mean difference to `full` on the same examples; empty if `full` was not run.
    pub delta_full: Option<f64>,
    /// Lower end of the paired 95 % interval of that difference; empty for `full` itself.
    pub delta_low: Option<f64>,
    /// Upper end of it.
    pub delta_high: Option<f64>,
    /// Mean density.
    pub density: f64,
    /// Mean scoring cost.
    pub cost1: f64,
    /// Mean attention cost.
    pub cost2: f64,
    /// `cost1 + cost2`.
    pub cost_total: f64,
    /// Auxiliary bits per token per KV head.
    pub aux_bits: f64,
    /// Bytes read per token after the prefix; empty if there were none.
    pub kv_bytes_per_token: Option<f64>,
    /// Mean relative output error; only with `--fidelity`.
    pub output_error: Option<f64>,
    /// Mean recall; only with `--fidelity`.
    pub recall: Option<f64>,
    /// Mean seconds of the shared prefill.
    pub prefill_s: f64,
    /// Milliseconds per step after the prefix, by `latency`: the mean share, or the median of steps alone; empty where
    /// there were none.
    pub decode_ms_per_token: Option<f64>,
    /// Mean bytes of K and V that have to be kept in the end; of the records that say so.
    #[serde(default)]
    pub kv_bytes_held: Option<f64>,
    /// Density asked for, if the budget was given as one; to be compared with `density_sparse_layers`.
    pub density_target: Option<f64>,
    /// Mean density of the layers that are not dense by policy.
    pub density_sparse_layers: f64,
    /// Mean over examples of the least density of a query head, in layers that are not dense by policy.
    pub density_min: Option<f64>,
    /// Mean over examples of the median over these heads.
    pub density_median: Option<f64>,
    /// Mean over examples of the greatest.
    pub density_max: Option<f64>,
    /// As `density_min`, for the output error; only with `--fidelity`, as all that follow.
    pub output_error_min: Option<f64>,
    /// As `density_median`.
    pub output_error_median: Option<f64>,
    /// As `density_max`.
    pub output_error_max: Option<f64>,
    /// As `density_min`, for the recall.
    pub recall_min: Option<f64>,
    /// As `density_median`.
    pub recall_median: Option<f64>,
    /// As `density_max`.
    pub recall_max: Option<f64>,
    /// Mean exact attention mass of what was not attended.
    pub dropped_mass: Option<f64>,
    /// As `density_min`, for the dropped mass.
    pub dropped_mass_min: Option<f64>,
    /// As `density_median`.
    pub dropped_mass_median: Option<f64>,
    /// As `density_max`.
    pub dropped_mass_max: Option<f64>,
    /// What `score` with its interval and difference is: `score` in percent, or `perplexity`, for which less is better.
    #[serde(default)]
    pub measure: Measure,
    /// Perplexity over the same text counted by words; only where perplexity is measured, as the next four.
    pub word_perplexity: Option<f64>,
    /// Negative log-likelihood in bits per byte of text.
    pub bits_per_byte: Option<f64>,
    /// Mean KL divergence from `full` over all scored tokens, in nats.
    pub kl_mean: Option<f64>,
    /// Its 99th percentile over all scored tokens.
    pub kl_p99: Option<f64>,
    /// Scored tokens at which the most probable one is that of `full`, in percent.
    pub same_top: Option<f64>,
    /// Questions whose right option is the most likely one, in percent; only where options are scored.
    pub acc: Option<f64>,
    /// The same by log-likelihood over characters.
    pub acc_norm: Option<f64>,
    /// Mean tokens of which K and V have to be kept in the end, over layers and KV heads; empty where nothing was let go.
    #[serde(default)]
    pub kv_tokens_held: Option<f64>,
    /// Mean seconds of building the index, as if for this row alone.
    #[serde(default)]
    pub index_s: f64,
    /// Lower end of the 95 % interval of `decode_ms_per_token` over examples.
    #[serde(default)]
    pub decode_ms_low: Option<f64>,
    /// Upper end of it.
    #[serde(default)]
    pub decode_ms_high: Option<f64>,
    /// Under what the times were taken; empty where the records do not say.
    #[serde(default)]
    pub timed: Option<String>,
    /// Whether most rows of its task and length were timed under other conditions; not a column.
    #[serde(skip)]
    pub is_timed_apart: bool,
    /// Number of contexts that the examples ask about: what is independent, and intervals count.
    #[serde(default)]
    pub contexts: usize,
    /// The true difference to `full`, in points, that would be found beyond noise in 80 % of such runs; only for scores.
    #[serde(default)]
    pub detectable: Option<f64>,
    /// Bytes per token of what all heads share; see [`Record::shared_bytes_per_token`].
    #[serde(default)]
    pub shared_bytes_per_token: Option<f64>,
    /// Bytes per token of picking; see [`Record::select_bytes_per_token`].
    #[serde(default)]
    pub select_bytes_per_token: Option<f64>,
    /// Share of the tokens attended that were beside the budget; see [`Record::free_share`].
    #[serde(default)]
    pub free_share: Option<f64>,
    /// What `decode_ms_per_token` is: `shared` or `solo`; empty for what was recorded before there was a choice.
    #[serde(default)]
    pub latency: Option<Latency>,
    /// Of a share, the milliseconds of picking tokens; empty where they were not measured apart, as the next two.
    #[serde(default)]
    pub select_ms_per_token: Option<f64>,
    /// Of a share, the milliseconds of attending.
    #[serde(default)]
    pub attend_ms_per_token: Option<f64>,
    /// Of a share, the milliseconds of all else.
    #[serde(default)]
    pub weights_ms_per_token: Option<f64>,
    /// Mean share of the context that was picked; see [`Comparable`], as for the next five. Empty in records from before.
    #[serde(default)]
    pub picked_density: Option<f64>,
    /// Mean scoring cost without dense layers.
    #[serde(default)]
    pub cost1_sparse_layers: Option<f64>,
    /// Mean attention cost without dense layers.
    #[serde(default)]
    pub cost2_sparse_layers: Option<f64>,
    /// Mean attention cost without dense layers and static tokens.
    #[serde(default)]
    pub cost2_picked: Option<f64>,
    /// Mean scoring cost without dense layers and projections onto shared hyperplanes.
    #[serde(default)]
    pub cost1_published: Option<f64>,
    /// Bytes that all heads share, held once; `shared_bytes_per_token` is what reading them anew would be.
    #[serde(default)]
    pub shared_bytes_resident: Option<f64>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A plausible record, for the tests of everything made from records.
    pub(crate) fn record(task: &str, method: &str, sample: usize, score: f64) -> Record {
        Record {
            key: format!("{task}/{method}/{sample}"),
            model: "builtin".into(),
            task: task.into(),
            length: 4096,
            sample,
            seed: 1,
            context: None,
            example_sha256: None,
            method: method.into(),
            revision: FIRST_REVISION,
            params: "".into(),
            settings: Shared::default(),
            protocol: "question".into(),
            source: "grammar".into(),
            question: "question".into(),
            prediction: "answer".into(),
            references: vec!["answer".to_owned()].into(),
            all_classes: Shared::default(),
            score,
            other_scores: BTreeMap::new(),
            depth: None,
            metric: Some(Metric::StringMatchAll),
            first_line: false,
            cut_tokens: None,
            measure: Measure::Score,
            prompt_tokens: 4050,
            prefix_tokens: 4000,
            new_tokens: 10,
            max_new_tokens: 40,
            stopped: true,
            bos_tokens: Some(1),
            density: if method == "full" { 1.0 } else { 0.1 },
            density_sparse_layers: if method == "full" { 1.0 } else { 0.05 },
            comparable: None,
            cost1: 0.01,
            cost2: 0.1,
            aux_bits: 32.0,
            kv_bytes_per_token: Some(4096.0),
            shared_bytes_per_token: None,
            select_bytes_per_token: None,
            free_share: None,
            kv_bytes_held: Some(1 << 20),
            kv_tokens: None,
            prefill_s: 1.0,
            prefill_reused_s: 0.0,
            reused_tokens: 0,
            index_s: 0.0,
            index_reused_s: 0.0,
            conditions: None,
            decode_s: 0.5,
            select_s: None,
            attend_s: None,
            weights_s: None,
            solo: None,
            steps: 60,
            solved: None,
            density_by_layer: Vec::new(),
            density_spread: None,
            fidelity: None,
            likelihood: None,
            choice: None,
        }
    }

    /// A plausible record of perplexity: 100 tokens with a mean negative log-likelihood.
    pub(crate) fn perplexity(method: &str, sample: usize, nats: f64) -> Record {
        let likelihood = Likelihood {
            nll: 100.0 * nats,
            tokens: 100,
            words: 50,
            bytes: 400,
            same_top: 90,
            kl_sum: 1.0,
            kl: vec![0.01; 100],
        };
        Record {
            measure: Measure::Perplexity,
            prediction: "".into(),
            max_new_tokens: 0,
            likelihood: Some(likelihood.into()),
            ..record("ppl/text", method, sample, nats.exp())
        }
    }

    #[test]
    fn records_are_small_and_what_they_say_alike_is_held_once() {
        assert!(size_of::<Record>() <= 800, "{} bytes, of which a report holds millions", size_of::<Record>());
        let settings = || Shared::from(BTreeMap::from([("k".to_owned(), "8".to_owned())]));
        let mut records = [0, 1].map(|i| Record { settings: settings(), ..record("vt", "topk", i, 1.0) });
        let before = records.clone();
        let mut said = Said::default();
        records.iter_mut().for_each(|r| r.share(&mut said));
        assert_eq!(records, before);
        let [a, b] = &records;
        let texts = |r: &Record| {
            let names = [&r.model, &r.task, &r.method, &r.params, &r.protocol, &r.source, &r.question, &r.prediction];
            names.map(Shared::address)
        };
        assert_eq!(texts(a), texts(b));
        assert_eq!((a.settings.address(), a.references.address()), (b.settings.address(), b.references.address()));
    }

    #[test]
    fn a_spread_is_of_the_sorted_numbers() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([0.3, 0.1, 0.2]), Some(Spread { min: 0.1, median: 0.2, max: 0.3 }));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).map(|s| s.median), Some(2.5));
        assert_eq!(Spread::of([1.0 / 3.0]).map(|s| s.min), Some(0.3333));
    }

    #[test]
    fn a_long_option_wins_by_length_only() {
        let choice = Choice::new(vec![-4.0, -3.0, -3.0], vec![8, 2, 3], 0);
        assert_eq!((choice.most_likely, choice.most_likely_by_length), (1, 0));
    }

    #[test]
    fn a_target_is_read_from_the_parameters() {
        let target = |params: &str| Record { params: params.into(), ..record("t", "m", 0, 1.0) }.density_target();
        assert_eq!(target("K=8,density=0.05,sink=0"), Some(0.05));
        assert_eq!(target("ratio=0.1"), None);
    }
}

//! [`Record`]: what is stored for one example under one method.
//!
//! All tables and plots are computed from records; nothing else is stored.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use super::costs::{FetchedBytes, KvTokens, PublishedCosts};
use super::fidelity::{Fidelity, Spread};
use super::interning::{Interned, InternedStr, Pool};
use super::text_scores::{Choice, Likelihood};
use super::timing::{Solo, TimingConditions};
use spattn_attention::{FIRST_REVISION, split_params, unquoted};
use spattn_tasks::likelihood::Measure;
use spattn_tasks::metrics::Metric;

/// The method that all others are compared with, where it has no parameters ([`is_reference`]).
pub const REFERENCE: &str = "full";

/// Whether a method with these parameters is dense attention on keys and values as the model computes them, which all others are compared
/// with.
pub fn is_reference(method: &str, params: &str) -> bool {
    method == REFERENCE && params.is_empty()
}

/// What a model generated before its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Thought {
    /// The text, with what marks its ends; empty if there was none.
    pub text: String,
    /// Tokens of `max_new_tokens` that are for it.
    pub limit: usize,
}

/// One of several answers to an example.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Generated text without special tokens and thought.
    pub prediction: InternedStr,
    /// What was generated before it, where the model was asked to think.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thought: Option<Box<Thought>>,
    /// Score in 0..=1.
    pub score: f64,
    /// Scores in 0..=1 by further metrics, by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub other_scores: BTreeMap<String, f64>,
    /// Generated tokens, thought and final EOS included.
    pub new_tokens: usize,
    /// Whether generation ended before `max_new_tokens`.
    pub stopped: bool,
}

/// One method's answer to one example, with its score and what it cost.
///
/// A line of `samples.jsonl`. Fields are only ever added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Hash of everything that determines this record: model, tokenizer, task, example, protocol, method, seed, code version.
    pub key: String,
    /// Model id as given (`builtin`, a folder, a hub id).
    pub model: InternedStr,
    /// Full task name, such as `ruler/vt`.
    pub task: InternedStr,
    /// Requested length in tokens; 0 if a file determines it.
    pub length: usize,
    /// Position of the example in its task.
    pub sample: usize,
    /// The run's seed.
    pub seed: u64,
    /// Position of the first example that asks about the same context ([`Task::context_of`](spattn_tasks::Task::context_of)):
    /// examples of one context are not independent. `None` in records from before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,
    /// Digest of the question: prompt tokens, references, metric and limits. Records are paired, merged and resumed by it. `None` in old
    /// records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub example_sha256: Option<Interned<String>>,
    /// Bare method name.
    pub method: InternedStr,
    /// The form of the method's arithmetic, 1 for the first ([`Configured::revision`](spattn_attention::Configured::revision)).
    #[serde(default = "first_revision", skip_serializing_if = "is_first_revision")]
    pub revision: u16,
    /// Canonical `key=value,...` of the method's parameters.
    pub params: InternedStr,
    /// All parameters of the method by key, including defaults; empty in old records.
    #[serde(default, skip_serializing_if = "is_empty_map")]
    pub settings: Interned<BTreeMap<String, String>>,
    /// Where sparse attention started: `decode`, `question`, `last:N` or `prefill`.
    pub protocol: InternedStr,
    /// Where the task's text came from.
    pub source: InternedStr,
    /// The text after the context, shortened in the middle; empty if there is none, and in old records.
    #[serde(default, skip_serializing_if = "is_empty_text")]
    pub question: InternedStr,
    /// Generated text without special tokens; for scored options, the chosen one; empty for perplexity.
    pub prediction: InternedStr,
    /// What the model generated before its answer, where it was asked to think.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thought: Option<Box<Thought>>,
    /// All answers, where the example was answered several times. Then `prediction`, `thought`, `new_tokens` and `stopped` are those of
    /// the first, scores are means over all, and costs are of all together.
    #[serde(default, skip_serializing_if = "is_no_answer")]
    pub repeats: Box<[Answer]>,
    /// The reference answers.
    pub references: Interned<Vec<String>>,
    /// The names of all classes, if the metric needs them.
    #[serde(default, skip_serializing_if = "is_empty_list")]
    pub all_classes: Interned<Vec<String>>,
    /// Score in 0..=1; for perplexity, the token perplexity of this example.
    pub score: f64,
    /// What the score is.
    #[serde(default, skip_serializing_if = "Measure::is_score")]
    pub measure: Measure,
    /// Scores in 0..=1 by further metrics, by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub other_scores: BTreeMap<String, f64>,
    /// Depth of the answer in the context in percent, if the task sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<f64>,
    /// The metric; `None` in old records.
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
    /// The most tokens that could be generated; 0 in old records.
    #[serde(default)]
    pub max_new_tokens: usize,
    /// Whether generation ended by an EOS token rather than by `max_new_tokens`.
    pub stopped: bool,
    /// Number of BOS tokens at the start of the prompt (`None` if there is none and the tokenizer adds none): a self-check. In old records,
    /// those of the whole prompt.
    pub bos_tokens: Option<usize>,
    /// Tokens attended over tokens in context, mean over heads, layers (dense ones included) and steps.
    pub density: f64,
    /// The density over the layers that are not dense by policy.
    pub density_sparse_layers: f64,
    /// Densities and costs as published tables count them; `None` in old records, and if nobody counted what finding tokens costs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparable: Option<PublishedCosts>,
    /// FLOPs spent on scoring over FLOPs of full attention; `None` (`null`) if nobody counted them.
    #[serde(deserialize_with = "number_or_null")]
    pub cost1: Option<f64>,
    /// FLOPs of the gathered attention over FLOPs of full attention.
    pub cost2: f64,
    /// Auxiliary memory: bits for each indexed token and KV head, mean over the layers that are not dense by policy; `None` (`null`) if
    /// nobody counted them.
    #[serde(deserialize_with = "number_or_null")]
    pub aux_bits: Option<f64>,
    /// Bits of a token's key and value in a KV head, in the model's storage type: what `aux_bits` are compared with. `None` in old records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_bits: Option<u32>,
    /// Bytes of K, V and auxiliary data read in each step, over all layers; what a GQA group reads together counts once. `None` without
    /// steps, and if nobody counted what finding tokens reads.
    pub kv_bytes_per_token: Option<f64>,
    /// Bytes of what all heads and layers share (hyperplanes), as if every KV head read them each time; not included above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_bytes_per_token: Option<f64>,
    /// Bytes of scores and counts that were written and read again for a selection; not included above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select_bytes_per_token: Option<f64>,
    /// Bytes of K and V that each step fetched by tier, over all layers; only where the KV cache is kept on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetched_per_token: Option<Box<FetchedBytes>>,
    /// Of the tokens attended in layers that are not dense, the share that belongs to the tail and was attended in addition to the budget
    /// (`--tail exact`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_share: Option<f64>,
    /// Of the tokens that a layer's own queries would have selected, the share that was not selected ahead; only of methods that select
    /// ahead. Few records have it, so it takes no more than a pointer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed_share: Option<Box<f64>>,
    /// Bytes of K and V that this method alone would keep at the end, over all layers: all of the context less what it evicted; `None` in
    /// old records.
    #[serde(default)]
    pub kv_bytes_held: Option<u64>,
    /// `kv_bytes_held` in tokens; `None` in old records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_tokens: Option<KvTokens>,
    /// Seconds of the prefill: dense and shared by all methods of the example, or the method's own if it is sparse from the first token.
    /// Tokens that were read for an earlier example count with the time that took.
    pub prefill_s: f64,
    /// How many of these seconds were spent for an earlier example.
    #[serde(default)]
    pub prefill_reused_s: f64,
    /// Tokens of the prefix that were read for an earlier example.
    #[serde(default)]
    pub reused_tokens: usize,
    /// Seconds to build this method's index alone, whenever it was built. In records without `conditions`: 0 if it was shared with an
    /// earlier method or example.
    pub index_s: f64,
    /// How many of these seconds were spent for an earlier method or example.
    #[serde(default)]
    pub index_reused_s: f64,
    /// Seconds of the steps after the prefix: this method's share of the time in which all methods of the example ran together, so that the
    /// shares add up to the time that passed. In records whose conditions lack `latency`, wall times of concurrent runs, which add up to
    /// more.
    pub decode_s: f64,
    /// The part for selecting tokens. Like the next two, `None` if it was not measured separately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select_s: Option<f64>,
    /// The part for attending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attend_s: Option<f64>,
    /// The rest, above all products with the weights. All streams of a step share it by their tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_s: Option<f64>,
    /// Times of steps in which the method ran alone; only with `--latency solo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solo: Option<Box<Solo>>,
    /// The conditions of the times; `None` in old records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Interned<TimingConditions>>,
    /// Steps after the prefix: question tokens read under the method, and generated tokens fed back.
    pub steps: usize,
    /// Parameters solved for the requested density, as `key=value,...`, if the method sets its budget once for each example.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solved: Option<Box<str>>,
    /// Density of each layer, to four digits.
    #[serde(default, skip_serializing_if = "is_no_layer")]
    pub density_by_layer: Box<[f64]>,
    /// The spread of the density over the query heads of all layers that are not dense by policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub density_spread: Option<Box<Spread>>,
    /// Comparison with exact attention, by layer; only with `--fidelity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fidelity: Option<Box<Fidelity>>,
    /// Sums over the scored text; only for perplexity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub likelihood: Option<Box<Likelihood>>,
    /// The options' likelihoods; only if options are scored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<Box<Choice>>,
}

impl Record {
    /// Removes times, and what depends on earlier runs.
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

/// A number that has to be there, if only as `null`: what is left out is an error, as of any other field.
fn number_or_null<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    Option::deserialize(from)
}

fn first_revision() -> u16 {
    FIRST_REVISION
}

fn is_first_revision(revision: &u16) -> bool {
    *revision == FIRST_REVISION
}

fn is_no_answer(answers: &[Answer]) -> bool {
    answers.is_empty()
}

fn is_no_layer(layers: &[f64]) -> bool {
    layers.is_empty()
}

fn is_empty_text(text: &InternedStr) -> bool {
    text.is_empty()
}

fn is_empty_list(list: &Interned<Vec<String>>) -> bool {
    list.is_empty()
}

fn is_empty_map(map: &Interned<BTreeMap<String, String>>) -> bool {
    map.is_empty()
}

/// Values of records read so far, for interning the next ones.
#[derive(Debug, Default)]
pub struct RecordInterner {
    texts: Pool<str>,
    digests: Pool<String>,
    lists: Pool<Vec<String>>,
    settings: Pool<BTreeMap<String, String>>,
    conditions: Pool<TimingConditions>,
}

impl Record {
    /// Replaces values by equal ones of earlier records.
    pub fn share(&mut self, said: &mut RecordInterner) {
        let names = [&mut self.model, &mut self.task, &mut self.method, &mut self.params, &mut self.protocol];
        let texts = [&mut self.source, &mut self.question, &mut self.prediction];
        names.into_iter().chain(texts).for_each(|text| said.texts.share(text));
        self.example_sha256.iter_mut().for_each(|digest| said.digests.share(digest));
        [&mut self.references, &mut self.all_classes].into_iter().for_each(|list| said.lists.share(list));
        said.settings.share(&mut self.settings);
        self.conditions.iter_mut().for_each(|conditions| said.conditions.share(conditions));
    }
}

impl Record {
    /// Whether two records of a model answer the same question and were scored with the same references. Records without a digest are
    /// compared by the fields that they contain.
    pub fn asks_as(&self, other: &Self) -> bool {
        match (&self.example_sha256, &other.example_sha256) {
            // The digest covers the original references, but the record's may have been edited since.
            (Some(own), Some(others)) => own == others && self.references == other.references,
            _ => {
                let spelled = |r: &Self| (r.question.clone(), r.references.clone(), r.prompt_tokens);
                spelled(self) == spelled(other)
            }
        }
    }

    /// Whether the text and the references are the same, as far as a record tells, however many tokens may be generated and however they
    /// are scored.
    pub fn asks_the_same_text_as(&self, other: &Self) -> bool {
        let text = |r: &Self| (r.source.clone(), r.question.clone(), r.prompt_tokens, r.prefix_tokens);
        text(self) == text(other) && self.references == other.references
    }

    /// Whether a record with the same digest has other references, as after a file of records was edited.
    pub fn has_another_key(&self, other: &Self) -> bool {
        self.example_sha256.is_some() && self.example_sha256 == other.example_sha256 && !self.asks_as(other)
    }

    /// Whether it is of the [reference](is_reference).
    pub fn is_reference(&self) -> bool {
        is_reference(&self.method, &self.params)
    }

    /// All parameters of the method by key; for an old record, those in `params`.
    pub fn settings(&self) -> BTreeMap<String, String> {
        if self.settings.is_empty() { named(&self.params) } else { (*self.settings).clone() }
    }

    /// The requested density, if the budget is a density.
    pub fn density_target(&self) -> Option<f64> {
        named(&self.params).get("density")?.parse().ok()
    }
}

/// The parameters in canonical `key=value,...`.
fn named(params: &str) -> BTreeMap<String, String> {
    let pairs = split_params(params).into_iter().filter_map(|param| param.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), unquoted(value).unwrap_or(value).to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::testing::record;

    #[test]
    fn records_are_small_and_what_they_say_alike_is_held_once() {
        assert!(size_of::<Record>() <= 800, "{} bytes, of which a report holds millions", size_of::<Record>());
        let settings = || Interned::from(BTreeMap::from([("k".to_owned(), "8".to_owned())]));
        let mut records = [0, 1].map(|i| Record { settings: settings(), ..record("vt", "topk", i, 1.0) });
        let before = records.clone();
        let mut said = RecordInterner::default();
        records.iter_mut().for_each(|r| r.share(&mut said));
        assert_eq!(records, before);
        let [a, b] = &records;
        let texts = |r: &Record| {
            let names = [&r.model, &r.task, &r.method, &r.params, &r.protocol, &r.source, &r.question, &r.prediction];
            names.map(Interned::address)
        };
        assert_eq!(texts(a), texts(b));
        assert_eq!((a.settings.address(), a.references.address()), (b.settings.address(), b.references.address()));
    }

    #[test]
    fn a_target_is_read_from_the_parameters() {
        let target = |params: &str| Record { params: params.into(), ..record("t", "m", 0, 1.0) }.density_target();
        assert_eq!(target("K=8,density=0.05,sink=0"), Some(0.05));
        assert_eq!(target("ratio=0.1"), None);
        assert_eq!(target("cmd=\"my.py a,density=0.5\",density=0.05"), Some(0.05), "commas in quotes part nothing");
    }
}

//! [`Record`]: what is stored for one example under one method.
//!
//! All tables and plots are computed from records; no other results are stored.

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

/// The method with which all others are compared, if it has no parameters ([`is_reference`]).
pub const REFERENCE: &str = "full";

/// Whether a method with these parameters is the reference: dense attention on keys and values as the model computes them, with which all
/// other methods are compared.
pub fn is_reference(method: &str, params: &str) -> bool {
    method == REFERENCE && params.is_empty()
}

/// What a model generated before its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Thought {
    /// The text, including its begin and end marks; empty if there was none.
    pub text: String,
    /// How many of the `max_new_tokens` are for the thought.
    pub limit: usize,
}

/// One of several answers to an example.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The generated text without special tokens and without the thought.
    pub prediction: InternedStr,
    /// What was generated before the answer, if the model was asked to think.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thought: Option<Box<Thought>>,
    /// The score in 0..=1.
    pub score: f64,
    /// Scores in 0..=1 by further metrics, keyed by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub other_scores: BTreeMap<String, f64>,
    /// The number of generated tokens, including the thought and a final EOS.
    pub new_tokens: usize,
    /// Whether generation ended before `max_new_tokens`.
    pub stopped: bool,
}

/// One method's answer to one example, with its score and what it cost.
///
/// It is one line of `samples.jsonl`. Fields are only ever added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The hash of everything that determines this record: model, tokenizer, task, example, protocol, method, seed, code version.
    pub key: String,
    /// The model id as given (`builtin`, a folder, a hub id).
    pub model: InternedStr,
    /// The full task name, such as `ruler/vt`.
    pub task: InternedStr,
    /// The requested length in tokens; 0 if a file determines it.
    pub length: usize,
    /// The index of the example in its task.
    pub sample: usize,
    /// The run's seed.
    pub seed: u64,
    /// The index of the first example that asks about the same context ([`Task::context_of`](spattn_tasks::Task::context_of)). Examples of
    /// one context are not independent. `None` in old records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,
    /// The digest of the question (prompt tokens, references, metric, limits), by which records are paired, merged and resumed; `None` in
    /// old records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub example_sha256: Option<Interned<String>>,
    /// The method's name without parameters.
    pub method: InternedStr,
    /// The revision of the method's arithmetic, from 1 ([`Configured::revision`](spattn_attention::Configured::revision)).
    #[serde(default = "first_revision", skip_serializing_if = "is_first_revision")]
    pub revision: u16,
    /// The method's parameters in the canonical form `key=value,...`.
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
    /// The generated text without special tokens; if options were scored, the chosen option; empty for perplexity.
    pub prediction: InternedStr,
    /// What the model generated before its answer, if it was asked to think.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thought: Option<Box<Thought>>,
    /// All answers, if the example was answered several times. Then `prediction`, `thought`, `new_tokens` and `stopped` are those of the
    /// first answer, scores are means over all answers, and costs are of all answers together.
    #[serde(default, skip_serializing_if = "is_no_answer")]
    pub repeats: Box<[Answer]>,
    /// The reference answers.
    pub references: Interned<Vec<String>>,
    /// The names of all classes, if the metric needs them.
    #[serde(default, skip_serializing_if = "is_empty_list")]
    pub all_classes: Interned<Vec<String>>,
    /// The score in 0..=1; for perplexity, the token perplexity of this example.
    pub score: f64,
    /// What kind of number the score is.
    #[serde(default, skip_serializing_if = "Measure::is_score")]
    pub measure: Measure,
    /// Scores in 0..=1 by further metrics, keyed by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub other_scores: BTreeMap<String, f64>,
    /// The depth of the answer in the context, in percent, if the task sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<f64>,
    /// The metric of the score; `None` in old records.
    #[serde(default)]
    pub metric: Option<Metric>,
    /// Whether only the first line of the prediction was scored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub first_line: bool,
    /// The number of tokens cut out of the prompt because it was too long for `length`, or, if that is 0, for the model's context; `None`
    /// for tasks whose prompts are never cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_tokens: Option<usize>,
    /// The number of tokens of the whole prompt, BOS included.
    pub prompt_tokens: usize,
    /// The number of tokens of the prefix, which is dense and shared by all methods, except under the protocol `prefill`.
    pub prefix_tokens: usize,
    /// The number of generated tokens, including a final EOS.
    pub new_tokens: usize,
    /// The most tokens that could be generated; 0 in old records.
    #[serde(default)]
    pub max_new_tokens: usize,
    /// Whether the answer ended before `max_new_tokens`: by an EOS token, a line end, or a text that ends answers.
    pub stopped: bool,
    /// A self-check: the number of BOS tokens at the start of the prompt; `None` if there is none and the tokenizer adds none. In old
    /// records, the number in the whole prompt.
    pub bos_tokens: Option<usize>,
    /// Tokens attended over tokens in context, as a mean over heads, layers (dense ones included) and steps.
    pub density: f64,
    /// The same density over the layers that are not dense by policy.
    pub density_sparse_layers: f64,
    /// Densities and costs as published tables count them; `None` in old records, and if the cost of finding tokens was not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparable: Option<PublishedCosts>,
    /// FLOPs of scoring over FLOPs of full attention; `None` (`null`) if they were not counted.
    #[serde(deserialize_with = "number_or_null")]
    pub cost1: Option<f64>,
    /// FLOPs of attention over the selected tokens, over FLOPs of full attention.
    pub cost2: f64,
    /// Auxiliary memory: bits for each indexed token and KV head, as a mean over the layers that are not dense by policy; `None` (`null`)
    /// if they were not counted.
    #[serde(deserialize_with = "number_or_null")]
    pub aux_bits: Option<f64>,
    /// Bits of a token's key and value in a KV head, in the model's storage type, to compare with `aux_bits`. `None` in old records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_bits: Option<u32>,
    /// Bytes of K, V and auxiliary data that each step reads, over all layers. What a GQA group reads together counts once. `None` if there
    /// were no steps, and if the reads of finding tokens were not counted.
    pub kv_bytes_per_token: Option<f64>,
    /// Bytes of what all heads and layers share (hyperplanes), as if every KV head read it each time; not included in `kv_bytes_per_token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_bytes_per_token: Option<f64>,
    /// Bytes of scores and counts that are written and read again for a selection; not included in `kv_bytes_per_token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select_bytes_per_token: Option<f64>,
    /// Bytes of K and V that each step fetches, by tier, over all layers; only if the KV cache is on disk, or in host memory below a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetched_per_token: Option<Box<FetchedBytes>>,
    /// Of the tokens attended in layers that are not dense, the share that belongs to the tail and did not count against the budget
    /// (`--tail exact`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_share: Option<f64>,
    /// Of the tokens that a layer's own queries would have selected, the share that the selection made ahead lacks; only for methods that
    /// select ahead. Boxed, because few records have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed_share: Option<Box<f64>>,
    /// Bytes of K and V that this method alone would keep at the end, over all layers: the context minus what it evicted; `None` in old
    /// records.
    #[serde(default)]
    pub kv_bytes_held: Option<u64>,
    /// `kv_bytes_held` in tokens; `None` in old records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_tokens: Option<KvTokens>,
    /// Seconds of the prefill: dense and shared by all methods of the example, or the method's own if it is sparse from the first token.
    /// Tokens that were read for an earlier example count with the time that they took then.
    pub prefill_s: f64,
    /// The part of `prefill_s` that was spent for an earlier example.
    #[serde(default)]
    pub prefill_reused_s: f64,
    /// The number of prefix tokens that were read for an earlier example.
    #[serde(default)]
    pub reused_tokens: usize,
    /// Seconds to build this method's index alone, whenever it was built. In records without `conditions`, 0 if it was shared with an
    /// earlier method or example.
    pub index_s: f64,
    /// The part of `index_s` that was spent for an earlier method or example.
    #[serde(default)]
    pub index_reused_s: f64,
    /// Seconds of the steps after the prefix: this method's share of the time in which all methods of the example ran together. The shares
    /// add up to the time that passed. If `latency` is missing in `conditions`, it is the wall time of a run beside others, and the sum is
    /// larger.
    pub decode_s: f64,
    /// The part of `decode_s` for selecting tokens. Like the next two, `None` if it was not measured separately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select_s: Option<f64>,
    /// The part of `decode_s` for attending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attend_s: Option<f64>,
    /// The rest of `decode_s`, mainly products with the weights. All sequences of a step share it in proportion to their tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_s: Option<f64>,
    /// The times of steps in which the method ran alone; only with `--latency solo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solo: Option<Box<Solo>>,
    /// The conditions under which the times were taken; `None` in old records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Interned<TimingConditions>>,
    /// The number of steps after the prefix: question tokens read under the method, and generated tokens fed back.
    pub steps: usize,
    /// Parameters solved for the requested density, as `key=value,...`, if the method sets its budget once for each example.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solved: Option<Box<str>>,
    /// The density of each layer, with four significant digits.
    #[serde(default, skip_serializing_if = "is_no_layer")]
    pub density_by_layer: Box<[f64]>,
    /// The spread of the density over the query heads of all layers that are not dense by policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub density_spread: Option<Box<Spread>>,
    /// The comparison with exact attention, by layer; only with `--fidelity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fidelity: Option<Box<Fidelity>>,
    /// The sums over the scored text; only for perplexity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub likelihood: Option<Box<Likelihood>>,
    /// The likelihoods of the options; only if options are scored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<Box<Choice>>,
}

impl Record {
    /// Resets all times, and what depends on earlier examples.
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

/// Reads a number that must be there, if only as `null`. A missing field is an error, as for any other required field.
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

/// The values of the records read so far, for interning those of the next.
#[derive(Debug, Default)]
pub struct RecordInterner {
    texts: Pool<str>,
    digests: Pool<String>,
    lists: Pool<Vec<String>>,
    settings: Pool<BTreeMap<String, String>>,
    conditions: Pool<TimingConditions>,
}

impl Record {
    /// Replaces values by equal ones of earlier records, so that they share memory.
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
            // The digest covers the original references, which may have been edited in the record since.
            (Some(own), Some(others)) => own == others && self.references == other.references,
            _ => {
                let spelled = |r: &Self| (r.question.clone(), r.references.clone(), r.prompt_tokens);
                spelled(self) == spelled(other)
            }
        }
    }

    /// Whether two records have the same text and references, as far as records tell. Token limits and scoring may differ.
    pub fn asks_the_same_text_as(&self, other: &Self) -> bool {
        let text = |r: &Self| (r.source.clone(), r.question.clone(), r.prompt_tokens, r.prefix_tokens);
        text(self) == text(other) && self.references == other.references
    }

    /// Whether two records have the same digest but different references, as after a file of records was edited.
    pub fn has_another_key(&self, other: &Self) -> bool {
        self.example_sha256.is_some() && self.example_sha256 == other.example_sha256 && !self.asks_as(other)
    }

    /// Whether it is a record of the [reference](is_reference).
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

/// The parameters of a text in the canonical form `key=value,...`.
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

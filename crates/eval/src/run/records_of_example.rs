//! The records of an example that was run.

use std::collections::BTreeMap;

use anyhow::Result;

use super::example_runner::{ExampleResult, MethodResult};
use super::generate::GeneratedAnswer;
use super::method_costs::MethodCosts;
use super::prefix_reading::PrefillTime;
use super::prepared_example::PreparedExample;
use super::record_key::record_key;
use super::runner::Runner;
use super::score_text::Sums;
use super::thought::Said;
use crate::config::kv_tier::KvTier;
use crate::config::protocol::Protocol;
use crate::config::run_config::Variant;
use crate::examples::question_digest;
use crate::examples::truncate::TruncatedExample;
use crate::plan::manifest::{cpu_name, identity};
use crate::records::costs::PublishedCosts;
use crate::records::interning::{Interned, InternedStr};
use crate::records::record::{Answer, REFERENCE, Record, Thought};
use crate::records::text_scores::{Choice, Likelihood};
use crate::records::timing::{Latency, TimingConditions};
use spattn_attention::Configured;
use spattn_kernels::isa_name;
use spattn_stats::mean;
use spattn_tasks::ended;
use spattn_tasks::likelihood::{Measure, Passage, Scoring};
use spattn_tasks::metrics::Metric;

impl Runner<'_> {
    /// The records of the answers that methods generated.
    ///
    /// # Errors
    /// If the tokenizer cannot decode an answer.
    pub(super) fn records_of_answers(
        &self,
        item: &PreparedExample,
        truncated: &TruncatedExample,
        methods: &[Configured],
        result: ExampleResult<GeneratedAnswer>,
    ) -> Result<Vec<Record>> {
        let TruncatedExample { example, prompt, cut_tokens } = truncated;
        let [identity, digest] = self.identity_and_digest(item);
        let record = |(method, run): (&Configured, MethodResult<GeneratedAnswer>)| -> Result<Record> {
            let answers: Vec<Answer> =
                run.answers.iter().map(|answer| self.score_answer(truncated, answer)).collect::<Result<_>>()?;
            let first = answers[0].clone();
            Ok(Record {
                task: example.task.as_str().into(),
                length: example.length,
                sample: example.index,
                source: example.source.as_str().into(),
                score: mean(&answers.iter().map(|answer| answer.score).collect::<Vec<_>>()),
                other_scores: mean_scores(&answers),
                depth: example.depth,
                question: question_digest::elide_middle(&example.question).into(),
                prediction: first.prediction,
                thought: first.thought,
                references: example.references.clone().into(),
                all_classes: example.all_classes.clone().into(),
                metric: Some(example.metric),
                first_line: example.rules.first_line,
                cut_tokens: *cut_tokens,
                new_tokens: first.new_tokens,
                max_new_tokens: example.max_new_tokens,
                stopped: first.stopped,
                repeats: if answers.len() > 1 { answers.into() } else { Box::default() },
                prompt_tokens: prompt.ids.len(),
                prefix_tokens: item.prefix_tokens,
                bos_tokens: self.model.tokenizer.leading_bos(&prompt.ids),
                ..self.record_of_costs(item, &identity, &digest, method, run.costs, result.prefill)
            })
        };
        methods.iter().zip(result.runs).map(record).collect()
    }

    /// A generated answer without what ends it, and its score.
    fn score_answer(&self, truncated: &TruncatedExample, answer: &GeneratedAnswer) -> Result<Answer> {
        let example = &truncated.example;
        let thoughts = self.thoughts(truncated);
        let said = match thoughts {
            Some(thoughts) => thoughts.split(&answer.tokens)?,
            None => Said { answer: self.model.tokenizer.decode(&answer.tokens)?, ..Said::default() },
        };
        let thought = thoughts.map(|_| Thought { text: said.thought, limit: self.config.thought_tokens() }.into());
        let until = self.end_texts(example);
        let prediction = ended(&said.answer, &until);
        let score_by = |m: &Metric| (m.name().to_owned(), example.score_by(*m, prediction));
        Ok(Answer {
            score: example.score(prediction),
            other_scores: example.also.iter().map(score_by).collect(),
            prediction: prediction.into(),
            thought,
            new_tokens: answer.tokens.len(),
            stopped: answer.stopped,
        })
    }

    /// The records of the continuations that methods scored.
    pub(super) fn records_of_passage(
        &self,
        item: &PreparedExample,
        passage: &Passage,
        methods: &[Configured],
        result: ExampleResult<Sums>,
    ) -> Vec<Record> {
        let [identity, digest] = self.identity_and_digest(item);
        let record = |(method, run): (&Configured, MethodResult<Sums>)| {
            let costs = self.record_of_costs(item, &identity, &digest, method, run.costs, result.prefill);
            let record = Record {
                task: passage.task.as_str().into(),
                length: passage.length,
                sample: passage.index,
                source: passage.source.as_str().into(),
                measure: passage.scoring.measure(),
                prompt_tokens: passage.prompt.len(),
                prefix_tokens: item.prefix_tokens,
                bos_tokens: self.model.tokenizer.leading_bos(&passage.prompt),
                ..costs
            };
            scored_record(passage, &run.answers, record)
        };
        methods.iter().zip(result.runs).map(record).collect()
    }

    /// What a run is identified by in the keys of its records, and the digest of what the example asks.
    fn identity_and_digest(&self, item: &PreparedExample) -> [String; 2] {
        let identity = identity(self.config, item.variant, self.model, self.data);
        [identity.to_string(), question_digest::digest(&item.input)]
    }

    /// The GPU that steps were timed on, with the copies of the model that shared it; `None` on a processor.
    fn gpu_name(&self) -> Option<String> {
        let name = self.model.decoder.gpu()?;
        Some(match self.config.device.copies_per_gpu() {
            1 => name.to_owned(),
            copies => format!("{name} shared by {copies} copies of the model"),
        })
    }

    /// A record with what is known of place, method and cost; the rest is empty. `prefill` is of the prefix that methods
    /// share.
    fn record_of_costs(
        &self,
        item: &PreparedExample,
        identity: &str,
        digest: &str,
        method: &Configured,
        run: MethodCosts,
        prefill: PrefillTime,
    ) -> Record {
        let PreparedExample { place, index, variant, .. } = *item;
        // What a method read by itself was read anew.
        let prefill = run.prefill.map_or(prefill, |whole| PrefillTime { whole, ..PrefillTime::default() });
        let task = self.tasks[place.task].name();
        let is_solo = self.config.latency == Latency::Solo;
        let split = run.is_time_split.then_some(run.step_time);
        let settings = method.settings.iter().map(|s| (s.key.to_owned(), s.value.clone()));
        let example_sha256 = Interned::from(digest.to_owned());
        Record {
            key: record_key(identity, task, place.length, index, method),
            model: self.model.id.as_str().into(),
            task: task.into(),
            length: place.length,
            sample: index,
            seed: variant.seed,
            context: Some(self.tasks[place.task].context_of(index)),
            example_sha256: Some(example_sha256),
            method: method.name.as_str().into(),
            revision: method.revision,
            params: method.params.as_str().into(),
            settings: settings.collect::<BTreeMap<_, _>>().into(),
            protocol: variant.protocol.to_string().into(),
            source: InternedStr::default(),
            question: InternedStr::default(),
            prediction: InternedStr::default(),
            thought: None,
            repeats: Box::default(),
            references: Interned::default(),
            all_classes: Interned::default(),
            score: 0.0,
            measure: Measure::Score,
            other_scores: BTreeMap::new(),
            depth: None,
            metric: None,
            first_line: false,
            cut_tokens: None,
            prompt_tokens: 0,
            prefix_tokens: 0,
            new_tokens: 0,
            max_new_tokens: 0,
            stopped: false,
            bos_tokens: None,
            density: run.density,
            density_sparse_layers: run.density_sparse_layers,
            comparable: comparable(&run, variant, method),
            cost1: run.cost1,
            cost2: run.cost2,
            aux_bits: run.aux_bits,
            kv_bits: Some(run.kv_bits),
            kv_bytes_per_token: run.bytes.map(|bytes| bytes.read),
            shared_bytes_per_token: run.bytes.map(|bytes| bytes.shared),
            select_bytes_per_token: run.bytes.map(|bytes| bytes.select),
            fetched_per_token: run.fetched.map(Box::new),
            free_share: Some(run.free_share),
            missed_share: run.missed_share.map(Box::new),
            kv_bytes_held: Some(run.kv_bytes_held),
            kv_tokens: Some(run.kv_tokens),
            prefill_s: prefill.whole.as_secs_f64(),
            prefill_reused_s: prefill.reused.as_secs_f64(),
            reused_tokens: prefill.reused_tokens,
            index_s: run.index.whole.as_secs_f64(),
            index_reused_s: run.index.reused.as_secs_f64(),
            conditions: Some(Interned::from(TimingConditions {
                // Alone, a method's steps are compared with nothing.
                fidelity: self.config.fidelity && !is_solo,
                together: if is_solo { 1 } else { run.streams },
                latency: Some(self.config.latency),
                threads: rayon::current_num_threads(),
                simd: isa_name().to_owned(),
                cpu: cpu_name(),
                gpu: self.gpu_name(),
                select_on: self.model.decoder.gpu().map(|_| run.select_on.to_owned()),
                kv: match self.config.kv_tier {
                    KvTier::Memory => None,
                    KvTier::Host => Some(match self.config.gpu_cache() {
                        None => "host memory, read over the bus".to_owned(),
                        Some(_) => format!("host memory, {} of tokens in GPU memory", self.config.kv_memory),
                    }),
                    KvTier::Disk => Some(format!("disk, {} of pages in memory", self.config.kv_memory)),
                },
            })),
            decode_s: run.step_time.steps(),
            select_s: split.map(|time| time.select),
            attend_s: split.map(|time| time.attend),
            weights_s: split.map(|time| time.weights),
            solo: run.solo.map(Box::new),
            steps: run.steps,
            solved: run.solved.map(String::into_boxed_str),
            density_by_layer: run.density_by_layer.into(),
            density_spread: run.density_spread.map(Box::new),
            fidelity: run.fidelity.map(Box::new),
            likelihood: None,
            choice: None,
        }
    }
}

/// The means of further scores over answers, by metric.
fn mean_scores(answers: &[Answer]) -> BTreeMap<String, f64> {
    let of = |name: &str| answers.iter().map(|answer| answer.other_scores[name]).collect::<Vec<_>>();
    answers[0].other_scores.keys().map(|name| (name.clone(), mean(&of(name)))).collect()
}

/// The costs that published tables report, as far as they are known: where a mask read the prompt, static tokens were not
/// counted apart; `full` selects every token.
fn comparable(run: &MethodCosts, variant: Variant, method: &Configured) -> Option<PublishedCosts> {
    let counted = run.comparable?;
    let known = |value: Option<f64>| value.filter(|_| variant.protocol != Protocol::Prefill);
    let PublishedCosts { picked_density, cost2_picked, .. } = counted;
    Some(match method.name == REFERENCE {
        true => PublishedCosts { picked_density: Some(run.density), cost2_picked: Some(run.cost2), ..counted },
        false => PublishedCosts { picked_density: known(picked_density), cost2_picked: known(cost2_picked), ..counted },
    })
}

/// The record with what the sums say of the passage.
pub(super) fn scored_record(passage: &Passage, sums: &[Sums], record: Record) -> Record {
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
            Record { score: (sums.nll / text.tokens.len() as f64).exp(), likelihood: Some(likelihood.into()), ..record }
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
                prediction: passage.continuations[chosen].text.as_str().into(),
                references: vec![passage.continuations[right].text.clone()].into(),
                choice: Some(choice.into()),
                ..record
            }
        }
    }
}

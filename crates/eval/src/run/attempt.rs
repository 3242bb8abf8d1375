//! Runs one example, and handles failures.
//!
//! If methods fail together, the first error is kept and each method is tried alone. Methods that fail again are left out of the rest
//! of their cell. If the prefix that they share cannot be read, no method is at fault: all that share it are left out, and it is not
//! read again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, anyhow};

use super::example_request::ExampleRequest;
use super::example_runner::ExampleRunner;
use super::generate::Generation;
use super::prepared_example::PreparedExample;
use super::runner::Runner;
use super::sampling::Sampling;
use super::score_text::{GivenText, TextToScore};
use super::shared_prefill;
use super::thought::Thoughts;
use crate::config::protocol::Protocol;
use crate::config::thinking::Thinking;
use crate::examples::example_input::{ExampleInput, thinks};
use crate::examples::observer::{RunObserver, SkippedWork};
use crate::examples::truncate::TruncatedExample;
use crate::plan::given_prompts::passage_tokens;
use crate::plan::planner::RunPlan;
use crate::records::record::Record;
use crate::records::timing::Latency;
use spattn_attention::Configured;
use spattn_attention::kv::DeviceFailure;
use spattn_model::engine::EngineError;
use spattn_tasks::Example;
use spattn_tasks::likelihood::{Passage, Scoring};
use spattn_tasks::seed::example_seed;

/// Whether the device has failed for the rest of this process. Everything that runs later fails too, through no fault of its own.
pub fn is_fatal(error: &anyhow::Error) -> bool {
    let of_cause = |cause: &(dyn std::error::Error + 'static)| match cause.downcast_ref::<EngineError>() {
        Some(EngineError::Device(failure)) => failure.is_fatal(),
        _ => cause.downcast_ref::<DeviceFailure>().is_some_and(DeviceFailure::is_fatal),
    };
    error.chain().any(of_cause)
}

impl Runner<'_> {
    /// Runs an example and returns its records; `None` if `stop` was raised.
    ///
    /// If methods fail together, they are run one by one. Those that fail again are left out of the rest of their cell, each with its
    /// own error. The first error is reported only if none of these has the same cause. If the shared prompt cannot be read, no method
    /// is at fault: all that share it are left out, and it is not read again.
    ///
    /// # Errors
    /// If the device has failed for good, or `watch` returns an error for a failure.
    pub(super) fn run_example(
        &self,
        item: &PreparedExample,
        examples: &mut ExampleRunner<'_>,
        plan: &mut RunPlan,
        watch: &mut dyn RunObserver,
    ) -> Result<Option<Vec<Record>>> {
        let PreparedExample { methods, .. } = item;
        if methods.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let error = match self.attempt(item, methods, examples) {
            Ok(records) => return Ok(records),
            // Stopping ended a command for which a method waited. The example is not at fault, and is run again on resume.
            Err(_) if examples.stop().load(Ordering::Relaxed) => return Ok(None),
            Err(error) => error,
        };
        self.after_failure(item, error, examples, plan, watch)
    }

    /// Handles the failure of an example's methods together. Returns the records of the methods that are not at fault.
    pub(super) fn after_failure(
        &self,
        item: &PreparedExample,
        error: anyhow::Error,
        examples: &mut ExampleRunner<'_>,
        plan: &mut RunPlan,
        watch: &mut dyn RunObserver,
    ) -> Result<Option<Vec<Record>>> {
        if is_fatal(&error) {
            return Err(error);
        }
        let PreparedExample { place, variant, methods, .. } = item;
        let what = format!("{}, {}", self.name_with_seed(*place, variant.seed), variant.protocol);
        if shared_prefill::is_of_no_method(&error) {
            let (unread, others) = sharing(variant.protocol, methods);
            plan.leave_out(*place, &[*variant], &unread);
            watch.failed(SkippedWork { what, error })?;
            let item = PreparedExample { methods: others, ..item.clone() };
            return self.run_example(&item, examples, plan, watch);
        }
        let first = SkippedWork { what, error };
        match methods.as_slice() {
            [alone] => self.fail(item, alone, first.error, plan, watch).map(|()| Some(Vec::new())),
            _ => self.one_by_one(item, first, examples, plan, watch),
        }
    }

    /// Runs the methods of an example that failed together one by one. Returns their records; `None` if `stop` was raised.
    fn one_by_one(
        &self,
        item: &PreparedExample,
        first: SkippedWork,
        examples: &mut ExampleRunner<'_>,
        plan: &mut RunPlan,
        watch: &mut dyn RunObserver,
    ) -> Result<Option<Vec<Record>>> {
        let (mut all, mut is_told) = (Vec::new(), false);
        for method in &item.methods {
            match self.attempt(item, std::slice::from_ref(method), examples) {
                Ok(Some(records)) => all.extend(records),
                Ok(None) => return Ok(None),
                Err(error) => {
                    is_told |= error.root_cause().to_string() == first.error.root_cause().to_string();
                    self.fail(item, method, error, plan, watch)?;
                }
            }
        }
        if !is_told {
            watch.mended(first);
        }
        Ok(Some(all))
    }

    /// Leaves a method out of the rest of its cell, unless the error is fatal: then it says nothing about the method.
    pub(super) fn fail(
        &self,
        item: &PreparedExample,
        method: &Configured,
        error: anyhow::Error,
        plan: &mut RunPlan,
        watch: &mut dyn RunObserver,
    ) -> Result<()> {
        if is_fatal(&error) {
            return Err(error);
        }
        let PreparedExample { place, variant, .. } = item;
        let cell = self.name_with_seed(*place, variant.seed);
        plan.leave_out(*place, &[*variant], std::slice::from_ref(method));
        watch.failed(SkippedWork { what: format!("{cell}, {}, {}", variant.protocol, method.label()), error })
    }

    /// Makes the records of an example under some methods, or returns why there are none.
    fn attempt(
        &self,
        item: &PreparedExample,
        methods: &[Configured],
        examples: &mut ExampleRunner<'_>,
    ) -> Result<Option<Vec<Record>>> {
        // Nothing that a method leaves incomplete is used again: a cached prefix is outside the cache until its indexes are complete.
        let run = AssertUnwindSafe(|| match &*item.input {
            ExampleInput::Prompt(truncated) => self.generate(item, truncated, methods, examples),
            ExampleInput::Passage(passage) => self.score(item, passage, methods, examples),
        });
        let records = catch_unwind(run).unwrap_or_else(|panic| Err(shared_prefill::fault(&*panic)));
        let records = records.and_then(|records| {
            let broken = records.iter().flatten().find_map(|record| record.check().err());
            broken.map_or(Ok(records), |why| Err(anyhow!("the result is not a valid record: {why}")))
        });
        records.with_context(|| self.example_name(item.place, item.index))
    }

    /// Generates the answers to an example's prompt and scores them.
    fn generate(
        &self,
        item: &PreparedExample,
        truncated: &TruncatedExample,
        methods: &[Configured],
        examples: &mut ExampleRunner<'_>,
    ) -> Result<Option<Vec<Record>>> {
        let TruncatedExample { example, prompt, .. } = truncated;
        self.check_positions(methods, prompt.ids.len() + example.max_new_tokens)?;
        let request = self.request(item, methods);
        let until = self.end_texts(example);
        let policy = Generation {
            tokenizer: &self.model.tokenizer,
            max_new_tokens: example.max_new_tokens,
            line_end: if example.rules.ends_at_line { self.line_end()? } else { None },
            until: &until,
            sampling: Sampling {
                temperature: self.config.temperature,
                top_p: self.config.top_p,
                seed: request.step_seed,
            },
            repeats: self.config.repeats,
            thoughts: self.thoughts(truncated),
        };
        let result = match item.variant.protocol {
            Protocol::Prefill => examples.run_from_first_token(request, &policy),
            _ => examples.run(request, &policy),
        }?;
        result.map(|result| self.records_of_answers(item, truncated, methods, result)).transpose()
    }

    /// Scores the continuations of a passage.
    fn score(
        &self,
        item: &PreparedExample,
        passage: &Passage,
        methods: &[Configured],
        examples: &mut ExampleRunner<'_>,
    ) -> Result<Option<Vec<Record>>> {
        self.check_positions(methods, passage_tokens(passage))?;
        let texts: Vec<TextToScore<'_>> = passage.continuations.iter().map(TextToScore::from).collect();
        let policy = GivenText { texts: &texts, compare: passage.scoring == Scoring::Perplexity };
        // Each passage has a context of its own, so no random numbers have to be the same for several passages.
        let own = self.request(item, methods);
        let request = ExampleRequest { index_seed: own.step_seed, ..own };
        let result = match item.variant.protocol {
            Protocol::Prefill => examples.score_in_one_pass(request, &policy),
            _ => examples.run(request, &policy),
        }?;
        Ok(result.map(|result| self.records_of_passage(item, passage, methods, result)))
    }

    /// The texts that end an answer where they occur: those of the task, and those of `--stop`.
    pub(super) fn end_texts(&self, example: &Example) -> Vec<String> {
        [example.rules.until, self.config.stop_texts()].concat()
    }

    /// Where thoughts end in the answers to a prompt; `None` if the model is not asked to think.
    pub(super) fn thoughts(&self, truncated: &TruncatedExample) -> Option<Thoughts<'_>> {
        let is_asked = self.config.thinking == Thinking::On && thinks(&truncated.example, &self.model.tokenizer);
        is_asked.then(|| Thoughts::new(&self.model.tokenizer, &truncated.prompt.text))
    }

    fn request<'r>(&self, item: &'r PreparedExample, methods: &'r [Configured]) -> ExampleRequest<'r> {
        let PreparedExample { place, index, variant, .. } = *item;
        let task = &self.tasks[place.task];
        let seed_of = |number: usize| example_seed(variant.seed, task.name(), place.length, number);
        ExampleRequest {
            prompt: item.input.prompt(),
            prefix_tokens: item.prefix_tokens,
            longer: &item.longer,
            methods,
            index_seed: seed_of(task.context_of(index)),
            step_seed: seed_of(index),
            fidelity: self.config.fidelity,
            solo: self.config.latency == Latency::Solo,
        }
    }

    /// The token of a line break; if several tokens make one, the last of them.
    pub(super) fn line_end(&self) -> Result<Option<u32>> {
        Ok(self.model.tokenizer.encode_text("\n", false)?.last().copied())
    }
}

/// Splits methods into those that share the dense prefill of a prompt and the others. Under the protocol `prefill`, methods with a
/// prefill mask read the prompt for themselves. If there are no others, all are in the first part.
fn sharing(protocol: Protocol, methods: &[Configured]) -> (Vec<Configured>, Vec<Configured>) {
    let reads_alone = |m: &Configured| protocol == Protocol::Prefill && m.masks_prefill();
    let (others, dense): (Vec<Configured>, Vec<Configured>) = methods.iter().cloned().partition(reads_alone);
    if dense.is_empty() { (others, dense) } else { (dense, others) }
}

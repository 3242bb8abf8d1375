//! Runs one example under many methods: the prefix is read once, a sequence of each method is forked from it, and all
//! sequences take their decode steps together. Then each method may be timed alone.
//!
//! Generating an answer and scoring given text differ only in their `DecodingPolicy`. Scoring all tokens in one pass,
//! without decode steps, is in `one_pass`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;

use super::decode_loop::{DecodeLoop, RunningSequence, SequenceBatch};
use super::decoding_policy::{DecodingPolicy, Feed};
use super::example_request::ExampleRequest;
use super::method_costs::MethodCosts;
use super::prefix_cache::PrefixCache;
use super::prefix_reading::{PrefillTime, PrefixReader, ReadPrefix};
use super::solo;
use super::stopwatch::{PhaseTimes, Stopwatch};
use super::time_attribution::{pool_weights, share_out};
use crate::records::record::REFERENCE;
use crate::records::timing::StepTime;
use spattn_attention::methods::configure;
use spattn_attention::{Configured, IndexCache, Policy, expand_grid};
use spattn_base::error::UsageError;
use spattn_model::decoder::Decoder;
use spattn_model::engine::EngineError;

/// The result of an example.
pub struct ExampleResult<A> {
    /// The time of reading the prefix that the methods share.
    pub prefill: PrefillTime,
    /// Where the wall time went.
    pub spent: PhaseTimes,
    /// The results of the methods, in their order.
    pub runs: Vec<MethodResult<A>>,
}

impl<A> Default for ExampleResult<A> {
    fn default() -> Self {
        Self { prefill: PrefillTime::default(), spent: PhaseTimes::default(), runs: Vec::new() }
    }
}

/// The result of one method on an example.
pub struct MethodResult<A> {
    /// Its answers in order: one for each repeat if text is generated, one for each continuation if text is scored.
    pub answers: Vec<A>,
    /// What was counted and timed over all answers.
    pub costs: MethodCosts,
}

/// Runs examples one after the other. Keeps the last prefix for the next example.
pub struct ExampleRunner<'a> {
    decoder: &'a Decoder,
    stop: &'a AtomicBool,
    prefixes: PrefixCache<ReadPrefix>,
    spent: PhaseTimes,
}

impl<'a> ExampleRunner<'a> {
    /// Makes a runner that starts nothing more once `stop` is raised.
    pub fn new(decoder: &'a Decoder, stop: &'a AtomicBool) -> Self {
        // One prefix is kept, because it takes most of the memory, and in the order of examples the last one has most in
        // common with the next.
        Self { decoder, stop, prefixes: PrefixCache::new(1), spent: PhaseTimes::default() }
    }

    /// The model.
    pub fn decoder(&self) -> &'a Decoder {
        self.decoder
    }

    /// The wall time of all examples so far, by phase.
    pub fn spent(&self) -> PhaseTimes {
        self.spent
    }

    /// Adds the wall time of an example that was not run by [`run`](Self::run).
    pub fn add_spent(&mut self, time: PhaseTimes) {
        self.spent += time;
    }

    /// The flag that stops the runner.
    pub fn stop(&self) -> &'a AtomicBool {
        self.stop
    }

    /// Runs an example from a dense prefix; `None` if `stop` was raised meanwhile.
    ///
    /// # Errors
    /// [`EngineError`]; if the shared prefix cannot be read, the error says that no method is at fault.
    pub fn run<P: DecodingPolicy>(
        &mut self,
        example: ExampleRequest<'_>,
        policy: &P,
    ) -> Result<Option<ExampleResult<P::Answer>>> {
        let result = self.run_from_prefix(&example, None, policy)?;
        self.spent += result.as_ref().map_or(PhaseTimes::default(), |result| result.spent);
        Ok(result)
    }

    /// [`run`](Self::run), but methods with a prefill mask read the prefix by their mask. Methods with the same mask share
    /// the prefix.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    pub fn run_from_first_token<P: DecodingPolicy>(
        &mut self,
        example: ExampleRequest<'_>,
        policy: &P,
    ) -> Result<Option<ExampleResult<P::Answer>>> {
        let mut whole = ExampleResult::default();
        let mut runs: Vec<Option<MethodResult<P::Answer>>> = example.methods.iter().map(|_| None).collect();
        for first in example.methods {
            let reads_alike = |at: &usize| runs[*at].is_none() && first.reads_as(&example.methods[*at]);
            let places: Vec<usize> = (0..runs.len()).filter(reads_alike).collect();
            if places.is_empty() {
                continue;
            }
            let methods: Vec<Configured> = places.iter().map(|at| example.methods[*at].clone()).collect();
            let mask = first.masks_prefill().then(|| first.reads());
            let alike = ExampleRequest { methods: &methods, ..example };
            let Some(result) = self.run_from_prefix(&alike, mask, policy)? else { return Ok(None) };
            whole.spent += result.spent;
            let own_prefill = mask.map(|_| result.prefill.whole);
            if mask.is_none() {
                whole.prefill = result.prefill;
            }
            for (at, run) in places.into_iter().zip(result.runs) {
                let costs = MethodCosts { prefill: own_prefill, ..run.costs };
                runs[at] = Some(MethodResult { costs, ..run });
            }
        }
        whole.runs = runs.into_iter().flatten().collect();
        self.spent += whole.spent;
        Ok(Some(whole))
    }

    /// Runs methods from a prefix that they share: a dense one, or one that is read by the mask of a method.
    fn run_from_prefix<P: DecodingPolicy>(
        &mut self,
        example: &ExampleRequest<'_>,
        mask: Option<&Configured>,
        policy: &P,
    ) -> Result<Option<ExampleResult<P::Answer>>> {
        let (decoder, stop) = (self.decoder, self.stop);
        let is_stopped = || stop.load(Ordering::Relaxed);
        let (mut laps, mut spent) = (Stopwatch::start(), PhaseTimes::default());
        let reader = PrefixReader {
            decoder,
            example,
            longest_answer: policy.longest_answer(),
            known_tokens: policy.known_tokens(),
            mask,
            stop,
        };
        let read = reader.read(&mut self.prefixes);
        // Checked before the error, because a stopped reading ends with one.
        if is_stopped() {
            return Ok(None);
        }
        let (mut read, prefill) = read?;
        spent.prefill = laps.lap();
        let (mut batch, place) = fork_sequences(example, &mut read.indexes, policy)?;
        spent.index = laps.lap();
        // The indexes are complete, so another example may use them, whatever happens in this one's steps.
        let mut masked;
        let read = match mask {
            None => self.prefixes.insert(example.prefix().to_vec(), read),
            Some(_) => {
                masked = read;
                &mut masked
            }
        };
        let (streams, prompt_tokens) = (batch.len(), example.prompt.len());
        let (sequences, reference) = (batch.sequences.len(), batch.reference.len());
        let steps = DecodeLoop::new(decoder, policy, sequences, reference, prompt_tokens, stop);
        steps.run(&mut batch, &read.logits)?;
        spent.steps = laps.lap();
        if is_stopped() {
            return Ok(None);
        }
        attribute_time::<P>(&mut batch, spent.steps);
        let mut sequences = in_order_of_methods(batch, place);
        let mut alone = Vec::new();
        if example.solo {
            let first = sequences.chunks(policy.answers()).map(|of_method| &of_method[0]);
            let runs: Vec<(&Configured, &Feed)> = first.map(|one| (one.sequence.method(), &one.feed)).collect();
            let times = solo::time(decoder, &mut read.indexes, &runs, prompt_tokens, stop)?;
            let Some(times) = times else { return Ok(None) };
            alone = times;
            spent.solo = laps.lap();
        }
        let mut alone = alone.into_iter();
        let result = |_: &Configured| {
            let run = method_result(sequences.drain(..policy.answers()).collect());
            MethodResult { costs: MethodCosts { streams, solo: alone.next().flatten(), ..run.costs }, ..run }
        };
        let runs = example.methods.iter().map(result).collect();
        Ok(Some(ExampleResult { prefill, spent, runs }))
    }
}

/// Forks the sequences of all methods, and those of `full` with which they are compared. If `full` is one of the methods,
/// returns its place among them.
pub(super) fn fork_sequences<P: DecodingPolicy>(
    example: &ExampleRequest<'_>,
    indexes: &mut IndexCache,
    policy: &P,
) -> Result<(SequenceBatch<P::Answer>, Option<usize>)> {
    let fork = |method: &Configured, indexes: &mut IndexCache| {
        fork_method(method, indexes, example.unread(), policy, example.fidelity)
    };
    let mut sequences = Vec::new();
    for method in example.methods {
        sequences.extend(fork(method, indexes)?);
    }
    if !policy.has_reference() {
        return Ok((SequenceBatch { sequences, reference: Vec::new() }, None));
    }
    let place = example.methods.iter().position(Configured::is_reference).map(|at| at * policy.answers());
    let reference = match place {
        Some(place) => sequences.drain(place..place + policy.answers()).collect(),
        None => fork_method(&reference_method()?, indexes, example.unread(), policy, false)?,
    };
    Ok((SequenceBatch { sequences, reference }, place))
}

/// Forks a sequence for each answer of a method. All share one index.
fn fork_method<P: DecodingPolicy>(
    method: &Configured,
    indexes: &mut IndexCache,
    unread: &[u32],
    policy: &P,
    fidelity: bool,
) -> Result<Vec<RunningSequence<P::Answer>>, EngineError> {
    let mut sequences: Vec<RunningSequence<P::Answer>> = Vec::new();
    for number in 0..policy.answers() {
        // A parameter that depends on the requested density is solved for the first answer only.
        let method = sequences.first().map_or(method, |first| first.sequence.method()).clone();
        let (feed, answer) = policy.begin(number, unread);
        let sequence = indexes.fork(&method, fidelity)?.counting_misses();
        sequences.push(RunningSequence { sequence, number, feed, answer, time: StepTime::default() });
    }
    Ok(sequences)
}

fn reference_method() -> Result<Configured, UsageError> {
    let specs = expand_grid(REFERENCE)?;
    configure(&specs[0], &Policy::default())
}

/// Scales the times of all sequences so that their sum is the time that passed.
fn attribute_time<P: DecodingPolicy>(batch: &mut SequenceBatch<P::Answer>, passed: Duration) {
    let mut times: Vec<(&mut StepTime, usize)> =
        batch.iter_mut().map(|running| (&mut running.time, running.feed.fed())).collect();
    if P::SCORES_EACH_TOKEN {
        pool_weights(&mut times);
    }
    share_out(times.into_iter().map(|(time, _)| time), passed);
}

/// The sequences of all methods in order. Those of `full` are inserted at `place`, or dropped if it is `None`.
fn in_order_of_methods<A>(batch: SequenceBatch<A>, place: Option<usize>) -> Vec<RunningSequence<A>> {
    let SequenceBatch { mut sequences, reference } = batch;
    if let Some(place) = place {
        sequences.splice(place..place, reference);
    }
    sequences
}

/// Combines the sequences of one method, at least one, into a result.
fn method_result<A>(sequences: Vec<RunningSequence<A>>) -> MethodResult<A> {
    let (mut steps, mut time) = (0, StepTime::default());
    let (mut forks, mut answers) = (Vec::new(), Vec::new());
    for running in sequences {
        steps += running.feed.fed();
        time += running.time;
        forks.push(running.sequence);
        answers.push(running.answer);
    }
    MethodResult { answers, costs: MethodCosts::of_sequences(forks, steps, time) }
}

//! The decode steps of an example: the sequences of all methods, stepped together until each has its answer.
//!
//! Sequences of `full` that the others are compared with take each step first. The rest is dealt out to groups: the
//! sequences of a group take each step in one batch, and groups step beside each other on threads of their own.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;

use super::decoding_policy::{DecodingPolicy, Feed};
use super::time_attribution::{Clock, Piece, StepTimer};
use crate::records::timing::StepTime;
use spattn_attention::Sequence;
use spattn_model::decoder::Decoder;
use spattn_model::engine::{EngineError, Stream};

/// One sequence on its way through an example.
pub(super) struct RunningSequence<A> {
    pub sequence: Sequence,
    /// Which answer of its method this is, from 0.
    pub number: usize,
    pub feed: Feed,
    pub answer: A,
    /// Time of its steps so far.
    pub time: StepTime,
}

/// The sequences of an example.
pub(super) struct SequenceBatch<A> {
    /// Those of each method, one for each answer, in the methods' order.
    pub sequences: Vec<RunningSequence<A>>,
    /// Those of `full` that take each step first, one for each answer; none if nothing is compared with them.
    pub reference: Vec<RunningSequence<A>>,
}

impl<A> SequenceBatch<A> {
    /// Number of sequences.
    pub fn len(&self) -> usize {
        self.sequences.len() + self.reference.len()
    }

    /// All sequences.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut RunningSequence<A>> {
        self.sequences.iter_mut().chain(&mut self.reference)
    }

    fn is_finished(&self) -> bool {
        self.sequences.iter().chain(&self.reference).all(|sequence| sequence.feed.is_drained())
    }
}

/// How the sequences of an example are stepped.
pub(super) struct DecodeLoop<'a, P> {
    pub decoder: &'a Decoder,
    pub policy: &'a P,
    /// Tokens of the whole prompt.
    pub prompt_tokens: usize,
    /// Sequences of a group.
    pub together: usize,
    /// By what clock steps are timed.
    pub clock: Clock,
    /// Tokens that each sequence is fed in a step at most.
    pub tokens_per_step: usize,
    /// Ends the loop after the current steps when it is raised.
    pub stop: &'a AtomicBool,
}

impl<'a, P: DecodingPolicy> DecodeLoop<'a, P> {
    /// For so many sequences beside `reference` sequences of `full`. A group has all sequences, unless the decoder prefers
    /// threads of their own.
    pub fn new(
        decoder: &'a Decoder,
        policy: &'a P,
        sequences: usize,
        reference: usize,
        prompt_tokens: usize,
        stop: &'a AtomicBool,
    ) -> Self {
        let together = sequences.div_ceil(decoder.groups(sequences).max(1)).max(1);
        let clock = Clock::of_groups(sequences, together);
        let tokens_per_step = policy.tokens_per_step(sequences + reference, decoder.config().vocab_size);
        Self { decoder, policy, prompt_tokens, together, clock, tokens_per_step, stop }
    }

    /// Steps all sequences to their end, or until `stop` is raised. `prefix_logits` (`[vocab_size]`) are those of the
    /// prefix's last token.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn run(&self, batch: &mut SequenceBatch<P::Answer>, prefix_logits: &[f32]) -> Result<(), EngineError> {
        batch.iter_mut().for_each(|running| self.take_prefix_logits(running, prefix_logits));
        while !self.is_stopped() && !batch.is_finished() {
            let SequenceBatch { sequences, reference } = batch;
            let mut round = || -> Result<(), EngineError> {
                let predictions = self.step_reference(reference)?;
                let groups = sequences.par_chunks_mut(self.together);
                groups.try_for_each(|group| self.step_group(group, &predictions))
            };
            // The processor's clock is that of one thread, which then has to take part in the work.
            match self.clock {
                Clock::Wall => round(),
                Clock::Processor => rayon::scope(|_| round()),
            }?;
        }
        self.decoder.collect_device_counters(batch.iter_mut().map(|running| &mut running.sequence))
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Where the whole prompt is the prefix, its last logits are those before each answer's first token.
    fn take_prefix_logits(&self, running: &mut RunningSequence<P::Answer>, logits: &[f32]) {
        let RunningSequence { number, feed, answer, .. } = running;
        if feed.prompt_tokens() == 0 {
            let rows = [logits];
            let reference = self.policy.has_reference().then(|| self.policy.predict(*number, feed, &rows));
            self.policy.take_logits(*number, feed, answer, &rows, reference.as_ref());
        }
    }

    /// One step of the sequences of `full`, one sequence after the other; what each predicts, in their order.
    fn step_reference(&self, reference: &mut [RunningSequence<P::Answer>]) -> Result<Vec<P::Prediction>, EngineError> {
        let step = |running: &mut RunningSequence<P::Answer>| {
            let logits = self.step(&mut [&mut *running])?.pop().unwrap_or_default();
            let rows = self.rows_of(&logits);
            let scoring = Piece::begin(self.clock);
            let predicted = self.policy.predict(running.number, &running.feed, &rows);
            self.take_logits(running, &rows, Some(&predicted));
            running.time.beside += scoring.end().as_secs_f64();
            Ok(predicted)
        };
        reference.iter_mut().map(step).collect()
    }

    /// Steps a group: once, where `full` has to predict the next step first, or until all its sequences are at their end.
    fn step_group(
        &self,
        group: &mut [RunningSequence<P::Answer>],
        predictions: &[P::Prediction],
    ) -> Result<(), EngineError> {
        while !self.is_stopped() {
            let mut active: Vec<_> = group.iter_mut().filter(|running| !running.feed.is_drained()).collect();
            if active.is_empty() {
                break;
            }
            if active.iter().all(|running| self.policy.needs_only_argmax(&running.answer)) {
                self.step_greedily(&mut active)?;
                continue;
            }
            let logits = self.step(&mut active)?;
            for (running, logits) in active.into_iter().zip(&logits) {
                let scoring = P::SCORES_EACH_TOKEN.then(|| Piece::begin(self.clock));
                self.take_logits(running, &self.rows_of(logits), predictions.get(running.number));
                running.time.beside += scoring.map_or(0.0, |scoring| scoring.end().as_secs_f64());
            }
            if !predictions.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// One step of sequences that are not at their end and take the likeliest token.
    fn step_greedily(&self, active: &mut [&mut RunningSequence<P::Answer>]) -> Result<(), EngineError> {
        let tokens = self.timed_step(active, |streams| self.decoder.step_argmax(streams, self.prompt_tokens))?;
        for (running, token) in active.iter_mut().zip(tokens) {
            let RunningSequence { number, feed, answer, .. } = &mut **running;
            self.policy.take_argmax(*number, feed, answer, token);
        }
        Ok(())
    }

    /// Feeds each sequence its next tokens in one step, and times it. Returns for each the logits `[row][vocab_size]`, of
    /// every token fed or of the last; none for a sequence that is at its end.
    fn step(&self, group: &mut [&mut RunningSequence<P::Answer>]) -> Result<Vec<Vec<f32>>, EngineError> {
        let is_fed: Vec<bool> = group.iter().map(|running| !running.feed.is_drained()).collect();
        let logits = self.timed_step(group, |streams| match (streams.is_empty(), P::SCORES_EACH_TOKEN) {
            (true, _) => Ok(Vec::new()),
            (false, true) => self.decoder.step_all(streams, self.prompt_tokens),
            (false, false) => self.decoder.step(streams, self.prompt_tokens),
        })?;
        let mut logits = logits.into_iter();
        Ok(is_fed.iter().map(|is_fed| if *is_fed { logits.next().unwrap_or_default() } else { Vec::new() }).collect())
    }

    /// Has `step` feed each sequence that is not at its end its next tokens, and times it.
    fn timed_step<T>(
        &self,
        group: &mut [&mut RunningSequence<P::Answer>],
        step: impl FnOnce(&mut [Stream<'_>]) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let timer = StepTimer::begin(self.clock, group.iter().map(|running| &running.sequence));
        let rows: Vec<usize> = group.iter().map(|running| running.feed.next(self.tokens_per_step).len()).collect();
        let mut streams: Vec<Stream<'_>> = Vec::with_capacity(group.len());
        for running in group.iter_mut().filter(|running| !running.feed.is_drained()) {
            let RunningSequence { sequence, feed, .. } = &mut **running;
            streams.push(Stream { fork: sequence, tokens: feed.next(self.tokens_per_step) });
        }
        let made = step(&mut streams)?;
        let times = timer.end(group.iter().map(|running| &running.sequence), &rows);
        for ((running, rows), time) in group.iter_mut().zip(&rows).zip(times) {
            running.feed.advance(*rows);
            running.time += time;
        }
        Ok(made)
    }

    fn take_logits(
        &self,
        running: &mut RunningSequence<P::Answer>,
        rows: &[&[f32]],
        reference: Option<&P::Prediction>,
    ) {
        let RunningSequence { number, feed, answer, .. } = running;
        self.policy.take_logits(*number, feed, answer, rows, reference);
    }

    /// The rows `[vocab_size]` of logits.
    fn rows_of<'l>(&self, logits: &'l [f32]) -> Vec<&'l [f32]> {
        logits.chunks_exact(self.decoder.config().vocab_size).collect()
    }
}

//! The decode loop of an example: steps the sequences of all methods together until each has its answer.
//!
//! In each step, sequences of `full` with which the others are compared come first. The others are divided into groups: the sequences of a
//! group step in one batch, and groups step in parallel on threads of their own.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;

use super::decoding_policy::{DecodingPolicy, Feed};
use super::time_attribution::{Clock, Piece, StepTimer};
use crate::records::timing::StepTime;
use spattn_attention::Sequence;
use spattn_model::decoder::Decoder;
use spattn_model::engine::{EngineError, Stream};
use spattn_model::token_scores::{Distributions, PredictingRows, ScoredPart, scores_of_logits};

/// A sequence with what it is fed and its answer so far.
pub(super) struct RunningSequence<A> {
    pub sequence: Sequence,
    /// The index of its answer among those of the method, from 0.
    pub number: usize,
    pub feed: Feed,
    pub answer: A,
    /// The time of its steps so far.
    pub time: StepTime,
}

/// The sequences of an example.
pub(super) struct SequenceBatch<A> {
    /// The sequences of all methods in their order, one for each answer.
    pub sequences: Vec<RunningSequence<A>>,
    /// The sequences of `full` that step first, one for each answer; none if nothing is compared with them.
    pub reference: Vec<RunningSequence<A>>,
}

impl<A> SequenceBatch<A> {
    /// The number of sequences.
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

/// Steps the sequences of an example.
pub(super) struct DecodeLoop<'a, P> {
    pub decoder: &'a Decoder,
    pub policy: &'a P,
    /// The number of tokens of the whole prompt.
    pub prompt_tokens: usize,
    /// The number of sequences in a group.
    pub together: usize,
    /// The clock that times steps.
    pub clock: Clock,
    /// The most tokens that each sequence is fed in a step.
    pub tokens_per_step: usize,
    /// When raised, ends the loop after the current steps.
    pub stop: &'a AtomicBool,
}

impl<'a, P: DecodingPolicy> DecodeLoop<'a, P> {
    /// Makes a loop for `sequences` sequences beside `reference` sequences of `full`. All sequences form one group, unless the decoder
    /// prefers several groups on threads of their own.
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
        let tokens_per_step = policy.tokens_per_step(sequences + reference);
        Self { decoder, policy, prompt_tokens, together, clock, tokens_per_step, stop }
    }

    /// Steps all sequences until they end, or until `stop` is raised. `prefix_logits` (`[vocab_size]`) are of the prefix's last token.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn run(&self, batch: &mut SequenceBatch<P::Answer>, prefix_logits: &[f32]) -> Result<(), EngineError> {
        batch.iter_mut().for_each(|running| self.take_prefix_logits(running, prefix_logits));
        while !self.is_stopped() && !batch.is_finished() {
            let SequenceBatch { sequences, reference } = batch;
            let mut round = || -> Result<(), EngineError> {
                let full = self.step_reference(reference)?;
                let groups = sequences.par_chunks_mut(self.together);
                groups.try_for_each(|group| self.step_group(group, &full))
            };
            // The processor clock counts the current thread only, which therefore has to take part in the work.
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

    /// Gives a sequence the prefix's last logits, if the prefix is the whole prompt: they predict the answer's first token.
    fn take_prefix_logits(&self, running: &mut RunningSequence<P::Answer>, logits: &[f32]) {
        let RunningSequence { number, feed, answer, .. } = running;
        if feed.prompt_tokens() != 0 {
            return;
        }
        if !P::SCORES_EACH_TOKEN {
            return self.policy.take_logits(*number, feed, answer, logits);
        }
        let Some(target) = self.policy.targets(*number, feed, 1).pop().flatten() else { return };
        let targets = [target];
        let full = self.policy.has_reference().then(|| Distributions::of_logits(logits, &targets).0);
        self.policy.take_scores(answer, &scores_of_logits(logits, &targets, full.as_ref()));
    }

    /// Steps the sequences of `full` one after the other. Returns the distributions of each, in their order.
    fn step_reference(&self, reference: &mut [RunningSequence<P::Answer>]) -> Result<Vec<Distributions>, EngineError> {
        let step = |running: &mut RunningSequence<P::Answer>| {
            let rows = self.step_scored(&mut [&mut *running])?.pop().unwrap_or_default();
            let product = Piece::begin(self.clock);
            let logits = self.decoder.row_logits([rows.predicting()])?;
            running.time.weights += product.end().as_secs_f64();
            let scoring = Piece::begin(self.clock);
            let (distributions, scores) = self.decoder.distributions(logits, rows.predicting())?;
            self.policy.take_scores(&mut running.answer, &scores);
            running.time.beside += scoring.end().as_secs_f64();
            Ok(distributions)
        };
        reference.iter_mut().map(step).collect()
    }

    /// Steps a group: once if `full` has to predict the next step first, otherwise until all its sequences end.
    fn step_group(&self, group: &mut [RunningSequence<P::Answer>], full: &[Distributions]) -> Result<(), EngineError> {
        while !self.is_stopped() {
            let mut active: Vec<_> = group.iter_mut().filter(|running| !running.feed.is_drained()).collect();
            if active.is_empty() {
                break;
            }
            if P::SCORES_EACH_TOKEN {
                self.step_and_score(&mut active, full)?;
            } else if active.iter().all(|running| self.policy.needs_only_argmax(&running.answer)) {
                self.step_greedily(&mut active)?;
            } else {
                self.step_by_logits(&mut active)?;
            }
            if !full.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Steps sequences whose tokens are scored, compared with the distributions of `full` if there are any. None is at its end.
    fn step_and_score(
        &self,
        active: &mut [&mut RunningSequence<P::Answer>],
        full: &[Distributions],
    ) -> Result<(), EngineError> {
        let rows = self.step_scored(active)?;
        let numbers = active.iter().map(|running| running.number);
        let parts: Vec<ScoredPart<'_>> =
            rows.iter().zip(numbers).map(|(rows, number)| (rows.predicting(), full.get(number))).collect();
        let (mut scores, mut product_time, mut scoring_time) = (Vec::with_capacity(parts.len()), 0.0, 0.0);
        for parts in together(&parts, self.decoder.rows_scored_together()) {
            let product = Piece::begin(self.clock);
            let logits = self.decoder.row_logits(parts.iter().map(|(rows, _)| *rows))?;
            product_time += product.end().as_secs_f64();
            let scoring = Piece::begin(self.clock);
            scores.extend(self.decoder.score_tokens(logits, parts)?);
            scoring_time += scoring.end().as_secs_f64();
        }
        let scored: usize = rows.iter().map(|rows| rows.targets.len()).sum();
        for ((running, rows), scores) in active.iter_mut().zip(&rows).zip(&scores) {
            self.policy.take_scores(&mut running.answer, scores);
            let share = rows.targets.len() as f64 / scored.max(1) as f64;
            running.time.weights += share * product_time;
            running.time.beside += share * scoring_time;
        }
        Ok(())
    }

    /// Steps sequences whose next tokens are chosen by logits. None is at its end.
    fn step_by_logits(&self, active: &mut [&mut RunningSequence<P::Answer>]) -> Result<(), EngineError> {
        let logits = self.timed_step(active, |streams| self.decoder.step(streams, self.prompt_tokens))?;
        for (running, logits) in active.iter_mut().zip(&logits) {
            let RunningSequence { number, feed, answer, .. } = &mut **running;
            self.policy.take_logits(*number, feed, answer, logits);
        }
        Ok(())
    }

    /// Steps sequences that take the likeliest token. None is at its end.
    fn step_greedily(&self, active: &mut [&mut RunningSequence<P::Answer>]) -> Result<(), EngineError> {
        let tokens = self.timed_step(active, |streams| self.decoder.step_argmax(streams, self.prompt_tokens))?;
        for (running, token) in active.iter_mut().zip(tokens) {
            let RunningSequence { number, feed, answer, .. } = &mut **running;
            self.policy.take_argmax(*number, feed, answer, token);
        }
        Ok(())
    }

    /// Feeds each sequence its next tokens in one timed step. Returns, for each sequence, the output rows of the tokens that are scored; no
    /// rows for a sequence that is at its end.
    fn step_scored(&self, group: &mut [&mut RunningSequence<P::Answer>]) -> Result<Vec<FedRows>, EngineError> {
        let is_fed: Vec<bool> = group.iter().map(|running| !running.feed.is_drained()).collect();
        let firsts: Vec<usize> = group.iter().map(|running| running.sequence.tokens()).collect();
        let rows = self.timed_step(group, |streams| match streams.is_empty() {
            true => Ok(Vec::new()),
            false => self.decoder.step_rows(streams, self.prompt_tokens),
        })?;
        let (mut rows, hidden) = (rows.into_iter(), self.decoder.config().hidden_size);
        let of_sequence = |((is_fed, first), running): ((bool, usize), &&mut RunningSequence<P::Answer>)| {
            let rows = if is_fed { rows.next().unwrap_or_default() } else { return FedRows::default() };
            let targets = self.policy.targets(running.number, &running.feed, rows.len() / hidden);
            FedRows::of_scored(&rows, first, &targets)
        };
        Ok(is_fed.into_iter().zip(firsts).zip(group.iter()).map(of_sequence).collect())
    }

    /// Calls `step` to feed its next tokens to each sequence that is not at its end, and times it.
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
}

/// Groups consecutive parts so that a group has at most `most` rows. A part is never divided.
fn together<'p, 'r>(parts: &'p [ScoredPart<'r>], most: usize) -> impl Iterator<Item = &'p [ScoredPart<'r>]> {
    let mut rest = parts;
    std::iter::from_fn(move || {
        let mut rows = 0;
        let fits = |(part, _): &&ScoredPart<'_>| {
            rows += part.targets.len();
            rows <= most
        };
        let count = rest.iter().take_while(fits).count().max(1).min(rest.len());
        let (now, behind) = rest.split_at(count);
        rest = behind;
        (count > 0).then_some(now)
    })
}

/// The output rows of a step that predict scored tokens.
#[derive(Default)]
struct FedRows {
    /// `[token][hidden]`: outputs of the last layer.
    rows: Vec<f32>,
    /// The position of each token.
    positions: Vec<usize>,
    /// The scored token that each row predicts.
    targets: Vec<u32>,
}

impl FedRows {
    /// Keeps the `rows` that have a target. They are of the tokens from position `first` on.
    fn of_scored(rows: &[f32], first: usize, targets: &[Option<u32>]) -> Self {
        let mut scored = Self::default();
        let width = rows.len() / targets.len().max(1);
        for (row, (position, target)) in rows.chunks_exact(width.max(1)).zip((first..).zip(targets)) {
            let Some(target) = target else { continue };
            scored.rows.extend_from_slice(row);
            scored.positions.push(position);
            scored.targets.push(*target);
        }
        scored
    }

    fn predicting(&self) -> PredictingRows<'_> {
        PredictingRows { rows: &self.rows, positions: &self.positions, targets: &self.targets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_scored_together_as_long_as_their_logits_fit() {
        let positions: Vec<usize> = (0..9).collect();
        let targets = [7; 9];
        let part = |rows: usize| -> ScoredPart<'_> {
            (PredictingRows { rows: &[], positions: &positions[..rows], targets: &targets[..rows] }, None)
        };
        let groups = |rows: &[usize], most: usize| -> Vec<Vec<usize>> {
            let parts: Vec<ScoredPart<'_>> = rows.iter().map(|rows| part(*rows)).collect();
            together(&parts, most).map(|group| group.iter().map(|(rows, _)| rows.targets.len()).collect()).collect()
        };
        assert_eq!(groups(&[2, 3, 4, 0, 5], 5), [vec![2, 3], vec![4, 0], vec![5]]);
        assert_eq!(groups(&[9, 1], 5), [vec![9], vec![1]], "a part is not divided");
        assert_eq!(groups(&[0, 0], 5), [vec![0, 0]]);
        assert!(groups(&[], 5).is_empty());
    }
}

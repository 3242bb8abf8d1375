//! Reads the prefix that methods share, except for the part that was read for an earlier example.
//!
//! Prefixes that were read are kept in a `PrefixCache`. If the next prefix begins with the same tokens, these are not read
//! again; if it is the same prefix, its indexes are kept too. A token's keys and values depend on no later token, and the
//! arithmetic of a row on no other row, so records have the same bits either way.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::example_request::ExampleRequest;
use super::prefix_cache::{PrefixCache, PrefixMatch};
use super::shared_prefill;
use spattn_attention::kv::{KvError, Prefix, Tier};
use spattn_attention::{Configured, IndexCache, PromptNeed, PromptStats, RecentQueries, SparsePrefill};
use spattn_model::decoder::Decoder;
use spattn_model::engine::EngineError;

/// A prefix that was read, with the indexes built over it, from which sequences are forked.
pub struct ReadPrefix {
    /// The number of tokens of its prompt, which may decide the angles of RoPE.
    prompt_tokens: usize,
    /// The logits `[vocab_size]` of the prefix's last token; empty if the prefix is empty.
    pub(super) logits: Vec<f32>,
    pub(super) indexes: IndexCache,
    times: PrefillTimeline,
}

/// The time of reading a prefix.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrefillTime {
    /// The time of reading all of it, whenever its tokens were read.
    pub whole: Duration,
    /// The part of `whole` that was spent for earlier examples.
    pub reused: Duration,
    /// The number of tokens that were not read again.
    pub reused_tokens: usize,
}

/// The least number of common tokens for which a prefix is reused: the first words of a chat template are no shared context.
pub(super) const LEAST_SHARED: usize = 64;
const _: () = assert!(LEAST_SHARED > RecentQueries::COUNT);

/// The prefill time of the first tokens, as pairs of a number of tokens and a time; both ascend.
#[derive(Debug, Clone, Default)]
struct PrefillTimeline(Vec<(usize, Duration)>);

impl PrefillTimeline {
    /// The time of the first `tokens` tokens, interpolated between known points.
    fn of(&self, tokens: usize) -> Duration {
        let mut before = (0, Duration::ZERO);
        for &(at, time) in &self.0 {
            if at >= tokens {
                let share = (tokens - before.0) as f64 / (at - before.0).max(1) as f64;
                return before.1 + (time - before.1).mul_f64(share);
            }
            before = (at, time);
        }
        before.1
    }

    /// The timeline of the first `tokens` tokens.
    fn up_to(&self, tokens: usize) -> Self {
        let mut known: Vec<_> = self.0.iter().filter(|(at, _)| *at < tokens).copied().collect();
        known.push((tokens, self.of(tokens)));
        Self(known)
    }

    fn total(&self) -> Duration {
        self.0.last().map_or(Duration::ZERO, |(_, time)| *time)
    }
}

/// Reads the prefix of an example, densely or by the prefill mask of one method.
pub(super) struct PrefixReader<'a> {
    /// The model.
    pub decoder: &'a Decoder,
    /// The example whose prefix is read.
    pub example: &'a ExampleRequest<'a>,
    /// The most tokens of an answer. With those of the prompt, they bound the positions.
    pub longest_answer: usize,
    /// The number of tokens of an answer that are certain to be fed, as a mean over the answers.
    pub known_tokens: usize,
    /// The method by whose prefill mask the prefix is read; `None` for a dense prefix.
    pub mask: Option<&'a Configured>,
    /// When raised, ends the reading with an error, which the caller ignores.
    pub stop: &'a AtomicBool,
}

/// The beginning of a prefix that is known from an earlier example.
struct KnownBeginning {
    /// Its keys and values, perhaps with those of further tokens.
    prefix: Prefix,
    /// The number of first tokens that are also those of the new prefix.
    tokens: usize,
    times: PrefillTimeline,
    stats: PromptStats,
}

impl PrefixReader<'_> {
    /// Reads the prefix. A dense one continues the best match, which is taken out of `prefixes`. The result is not inserted.
    ///
    /// # Errors
    /// [`EngineError`]; for a dense prefix, the error says that no method is at fault.
    pub(super) fn read(&self, prefixes: &mut PrefixCache<ReadPrefix>) -> Result<(ReadPrefix, PrefillTime)> {
        if self.mask.is_some() {
            return Ok(self.prepared(self.read_from(&self.needs(), None)?));
        }
        let tokens = self.example.prompt.len();
        let is_usable = |read: &ReadPrefix| self.decoder.same_angles(read.prompt_tokens, tokens);
        let known = prefixes.take_longest_match(self.example.prefix(), LEAST_SHARED, is_usable);
        prefixes.make_room();
        let gathers = self.example.methods.iter().any(|m| !m.method.prompt_needs().is_empty());
        let read = shared_prefill::shared(!gathers, || Ok(self.read_dense(known)?))?;
        Ok(self.prepared(read))
    }

    /// What the methods need to know about the prompt.
    fn needs(&self) -> BTreeSet<PromptNeed> {
        self.example.methods.iter().flat_map(|m| m.method.prompt_needs()).collect()
    }

    /// Prepares a prefix for the sequences of this example.
    fn prepared(&self, (read, time): (ReadPrefix, PrefillTime)) -> (ReadPrefix, PrefillTime) {
        let prompt_tokens = self.example.prompt.len();
        let mut indexes = read.indexes.with_prompt(prompt_tokens).with_given(self.known_tokens);
        indexes = indexes.with_step_seed(self.example.step_seed);
        if let Some(rotation) = self.decoder.rotation(self.example.prompt.len(), self.longest()) {
            indexes = indexes.with_rotation(rotation);
        }
        (ReadPrefix { prompt_tokens, indexes, ..read }, time)
    }

    /// The most tokens in context.
    fn longest(&self) -> usize {
        self.example.prompt.len() + self.longest_answer
    }

    /// Reads the part of a dense prefix that `known` lacks.
    fn read_dense(&self, known: Option<PrefixMatch<ReadPrefix>>) -> Result<(ReadPrefix, PrefillTime), EngineError> {
        let (needs, prefix_tokens) = (self.needs(), self.example.prefix_tokens);
        let Some(PrefixMatch { common, tokens, value: known }) = known else { return self.read_from(&needs, None) };
        let is_whole = common == prefix_tokens && common == tokens;
        if is_whole && known.indexes.seed() == self.example.index_seed && known.indexes.has_gathered(&needs) {
            let whole = known.times.total();
            return Ok((known, PrefillTime { whole, reused: whole, reused_tokens: common }));
        }
        // The last tokens are always read again, because their queries are needed.
        let kept = common.min(prefix_tokens - RecentQueries::COUNT);
        let times = known.times.up_to(kept);
        let Some((prefix, stats)) = known.indexes.into_prefix() else { return self.read_from(&needs, None) };
        let stats = match needs.is_empty() {
            true => Some(PromptStats::new(&needs, self.decoder.prompt_shape(prefix_tokens))),
            // Statistics cover a whole prefix. They can be continued only if all of it is the beginning of the new one.
            false => stats.filter(|_| common == tokens).and_then(|stats| stats.continued(&needs, prefix_tokens)),
        };
        self.read_from(&needs, stats.map(|stats| KnownBeginning { prefix, tokens: kept, times, stats }))
    }

    /// Reads the prefix, except for its known beginning.
    fn read_from(
        &self,
        needs: &BTreeSet<PromptNeed>,
        known: Option<KnownBeginning>,
    ) -> Result<(ReadPrefix, PrefillTime), EngineError> {
        let (decoder, tokens, seed) = (self.decoder, self.example.prefix(), self.example.index_seed);
        let (read, mut times, mut stats) = match known {
            Some(KnownBeginning { prefix, tokens, times, stats }) => (Some((prefix, tokens)), times, stats),
            None => {
                let shape = decoder.prompt_shape(tokens.len());
                (None, PrefillTimeline::default(), PromptStats::of_nested(needs, shape, self.example.longer))
            }
        };
        let kept = read.as_ref().map_or(0, |(_, kept)| *kept);
        let mut queries = RecentQueries::of_prefix(tokens.len());
        let (reused, gathered_before) = (times.total(), stats.total_time());
        let start = Instant::now();
        // Gathering statistics counts as building the indexes that need them, not as reading.
        let spent = |stats: &PromptStats| {
            let gathering = stats.total_time() - gathered_before;
            reused + start.elapsed().saturating_sub(gathering)
        };
        let mut observe = |chunk: &spattn_attention::calibration::PrefillChunk<'_>| {
            if chunk.layer == 0 && chunk.first > kept {
                times.0.push((chunk.first, spent(&stats)));
            }
            if self.stop.load(Ordering::Relaxed) {
                let why = "reading was stopped".to_owned();
                return Err(KvError::Unread { layer: chunk.layer, tier: Tier::Host, why });
            }
            stats.observe(chunk)?;
            queries.observe(chunk)
        };
        let prompt_tokens = self.example.prompt.len();
        let mut sparse = self.sparse_prefill();
        let prefill = match (read, &mut sparse) {
            (Some((prefix, kept)), _) => decoder.prefill_after(prefix, kept, tokens, prompt_tokens, &mut observe),
            (None, Some(sparse)) => decoder.prefill_sparse(tokens, prompt_tokens, sparse, &mut observe),
            (None, None) => decoder.prefill_observed(tokens, prompt_tokens, &mut observe),
        }?;
        times.0.push((tokens.len(), spent(&stats)));
        let time = PrefillTime { whole: times.total(), reused, reused_tokens: kept };
        let indexes = IndexCache::new(prefill.prefix, decoder.dtype(), seed).with_stats(stats).with_queries(queries);
        let indexes = match sparse {
            Some(sparse) => indexes.with_reading(sparse.into_costs()),
            None => indexes,
        };
        Ok((ReadPrefix { prompt_tokens, logits: prefill.logits, indexes, times }, time))
    }

    /// How the prefix is read by the method's prefill mask; `None` if it is read densely.
    fn sparse_prefill(&self) -> Option<SparsePrefill<'_>> {
        let sparse = SparsePrefill::new(self.mask?, self.decoder.layer_specs(), self.example.index_seed)?;
        Some(sparse.with_rotation(self.decoder.rotation(self.example.prompt.len(), self.longest())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_lie_evenly_between_those_that_are_known() {
        let ms = Duration::from_millis;
        let times = PrefillTimeline(vec![(100, ms(10)), (200, ms(30))]);
        assert_eq!([0, 50, 100, 150, 200].map(|n| times.of(n)), [0, 5, 10, 20, 30].map(ms));
        assert_eq!(times.up_to(150).0, [(100, ms(10)), (150, ms(20))]);
        assert_eq!((times.total(), PrefillTimeline::default().of(7)), (ms(30), Duration::ZERO));
    }
}

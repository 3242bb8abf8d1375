//! Reading a prefix once for all methods, and keeping it for the next example that begins with the same tokens.
//!
//! What was read of an example is kept until the next one ([`ReusablePrefix`]). If that begins with the same tokens, they are not read
//! again; if its whole prefix is the same, the indexes are kept as well. Keys and values of a token depend on nothing after
//! it, and the arithmetic of a row on no other row, so records are the same bits either way.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::shared_prefill;
use spattn_attention::kv::Prefix;
use spattn_attention::{Configured, IndexCache, PromptNeed, PromptStats, RecentQueries, SparsePrefill};
use spattn_model::decoder::Decoder;
use spattn_model::engine::EngineError;

/// The prefix of the last example, which the next one continues if it begins with the same tokens.
pub struct ReusablePrefix {
    prefix: Vec<u32>,
    prompt_tokens: usize,
    /// Logits of the prefix's last token.
    pub(super) logits: Vec<f32>,
    pub(super) cache: IndexCache,
    times: PrefillTimeline,
}

/// Fewer tokens in common than this are read again: a template's first words are no shared context.
pub(super) const LEAST_SHARED: usize = 64;
const _: () = assert!(LEAST_SHARED > RecentQueries::COUNT);

/// Prefill time by number of tokens, ascending in both.
#[derive(Debug, Clone, Default)]
struct PrefillTimeline(Vec<(usize, Duration)>);

impl PrefillTimeline {
    /// Time of the first `tokens` tokens, interpolated between known points.
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

/// A request for a prefix that methods share: dense, or read by the mask of one method.
pub(crate) struct SharedPrefix<'a> {
    /// The whole prompt.
    pub prompt: &'a [u32],
    /// How many of its tokens are the prefix.
    pub tokens: usize,
    /// Tokens of the prefixes that begin with this one and are wanted next, ascending.
    pub longer: &'a [usize],
    /// Tokens that will be in context at most.
    pub longest: usize,
    /// Tokens behind the prompt that are known to be read, mean over what is read behind it.
    pub given: usize,
    /// Methods that will be forked from it.
    pub methods: &'a [Configured],
    /// The method that reads it by a mask; `None` for a dense prefix.
    pub reader: Option<&'a Configured>,
    /// Seed of what is drawn when indexes are built.
    pub seed: u64,
    /// Seed of what is drawn in steps.
    pub step_seed: u64,
}

impl<'a> SharedPrefix<'a> {
    /// How it is read by a mask.
    fn sparse(&self, decoder: &Decoder) -> Option<SparsePrefill<'a>> {
        let sparse = SparsePrefill::new(self.reader?, decoder.layer_specs(), self.seed)?;
        Some(sparse.with_rotation(decoder.rotation(self.longest)))
    }

    /// Reads it, as far as `held` does not have it already.
    ///
    /// # Errors
    /// [`EngineError`]; of a dense prefix, it says that no method is at fault.
    pub(crate) fn prepared(&self, decoder: &Decoder, held: Option<ReusablePrefix>) -> Result<PreparedPrefix> {
        let read = || Ok(PreparedPrefix::new(decoder, self, held)?);
        let gathers = self.methods.iter().any(|m| !m.method.prompt_needs().is_empty());
        if self.reader.is_some() { read() } else { shared_prefill::shared(!gathers, read) }
    }
}

/// A prefix that methods can be forked from.
pub(crate) struct PreparedPrefix {
    /// The prefix, kept for the next example; methods are forked from its cache.
    pub held: ReusablePrefix,
    /// Tokens that were not read again.
    pub reused_tokens: usize,
    /// How long those took when they were read.
    pub reused: Duration,
}

impl PreparedPrefix {
    /// Reads a prefix, as far as `held` does not have it already.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn new(
        decoder: &Decoder,
        shared: &SharedPrefix<'_>,
        held: Option<ReusablePrefix>,
    ) -> Result<Self, EngineError> {
        let mut read = read(decoder, shared, held)?;
        let mut cache = read.held.cache.with_prompt(shared.prompt.len()).with_given(shared.given);
        cache = cache.with_step_seed(shared.step_seed);
        if let Some(rotation) = decoder.rotation(shared.longest) {
            cache = cache.with_rotation(rotation);
        }
        read.held.cache = cache;
        read.held.prompt_tokens = shared.prompt.len();
        Ok(read)
    }

    /// Time of reading the prefix, whenever that was.
    pub fn prefill(&self) -> Duration {
        self.held.times.total()
    }
}

impl ReusablePrefix {
    /// What methods are forked from.
    pub(crate) fn cache(&mut self) -> &mut IndexCache {
        &mut self.cache
    }

    /// Logits of the prefix's last token; empty if the prefix is.
    pub(crate) fn logits(&self) -> &[f32] {
        &self.logits
    }
}

/// Reads a prefix, as far as `held` does not have it already.
fn read(
    decoder: &Decoder,
    shared: &SharedPrefix<'_>,
    held: Option<ReusablePrefix>,
) -> Result<PreparedPrefix, EngineError> {
    let needs: BTreeSet<PromptNeed> = shared.methods.iter().flat_map(|m| m.method.prompt_needs()).collect();
    let prefix = &shared.prompt[..shared.tokens];
    let held = held
        .filter(|_| shared.reader.is_none())
        .filter(|held| decoder.same_angles(held.prompt_tokens, shared.prompt.len()));
    let common = held.as_ref().map_or(0, |held| held.prefix.iter().zip(prefix).take_while(|(a, b)| a == b).count());
    let Some(held) = held.filter(|_| common >= LEAST_SHARED) else { return read_from(decoder, shared, &needs, None) };
    let held_tokens = held.prefix.len();
    let is_whole = common == prefix.len() && common == held_tokens;
    if is_whole && held.cache.seed() == shared.seed && held.cache.has_gathered(&needs) {
        let reused = held.times.total();
        return Ok(PreparedPrefix { held, reused_tokens: common, reused });
    }
    // The last queries are always seen.
    let kept = common.min(prefix.len() - RecentQueries::COUNT);
    let times = held.times.up_to(kept);
    let Some((read, stats)) = held.cache.into_prefix() else { return read_from(decoder, shared, &needs, None) };
    let stats = match needs.is_empty() {
        true => Some(PromptStats::new(&needs, decoder.prompt_shape(prefix.len()))),
        // What is gathered about a prefix is gathered over all of it, and known where that begins this one.
        false => stats.filter(|_| common == held_tokens).and_then(|stats| stats.continued(&needs, prefix.len())),
    };
    read_from(decoder, shared, &needs, stats.map(|stats| KnownBeginning { prefix: read, tokens: kept, times, stats }))
}

/// The beginning of a prefix that was read before.
struct KnownBeginning {
    /// Keys and values, of more tokens perhaps.
    prefix: Prefix,
    tokens: usize,
    times: PrefillTimeline,
    stats: PromptStats,
}

/// Reads a prefix, or what is not known of it.
fn read_from(
    decoder: &Decoder,
    shared: &SharedPrefix<'_>,
    needs: &BTreeSet<PromptNeed>,
    known: Option<KnownBeginning>,
) -> Result<PreparedPrefix, EngineError> {
    let tokens = &shared.prompt[..shared.tokens];
    let (read, mut times, mut stats) = match known {
        Some(KnownBeginning { prefix, tokens, times, stats }) => (Some((prefix, tokens)), times, stats),
        None => {
            let shape = decoder.prompt_shape(tokens.len());
            (None, PrefillTimeline::default(), PromptStats::of_nested(needs, shape, shared.longer))
        }
    };
    let kept = read.as_ref().map_or(0, |(_, kept)| *kept);
    let mut queries = RecentQueries::of_prefix(tokens.len());
    let (reused, gathered_before) = (times.total(), stats.total_time());
    let start = Instant::now();
    // What is gathered is part of the indexes that are built on it, not of reading.
    let spent = |stats: &PromptStats| {
        let gathering = stats.total_time() - gathered_before;
        reused + start.elapsed().saturating_sub(gathering)
    };
    let mut observe = |chunk: &spattn_attention::calibration::PrefillChunk<'_>| {
        if chunk.layer == 0 && chunk.first > kept {
            times.0.push((chunk.first, spent(&stats)));
        }
        stats.observe(chunk);
        queries.observe(chunk);
    };
    let prompt_tokens = shared.prompt.len();
    let mut sparse = shared.sparse(decoder);
    let prefill = match (read, &mut sparse) {
        (Some((prefix, kept)), _) => decoder.prefill_after(prefix, kept, tokens, prompt_tokens, &mut observe),
        (None, Some(sparse)) => decoder.prefill_sparse(tokens, prompt_tokens, sparse, &mut observe),
        (None, None) => decoder.prefill_observed(tokens, prompt_tokens, &mut observe),
    }?;
    times.0.push((tokens.len(), spent(&stats)));
    let cache = IndexCache::new(prefill.prefix, decoder.dtype(), shared.seed).with_stats(stats).with_queries(queries);
    let cache = match sparse {
        Some(sparse) => cache.with_reading(sparse.into_costs()),
        None => cache,
    };
    let held = ReusablePrefix { prefix: tokens.to_vec(), prompt_tokens, logits: prefill.logits, cache, times };
    Ok(PreparedPrefix { held, reused_tokens: kept, reused })
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

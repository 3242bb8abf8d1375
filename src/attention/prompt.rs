//! What methods may know of the prefix's own attention: some of its queries, and who was attended.
//!
//! A method says what it needs ([`Method::prompt_needs`](super::Method::prompt_needs)); what the methods of
//! a run ask for together is gathered once, while the prefix is read, and given to each as
//! [`HeadPrefix::prompt`](super::HeadPrefix::prompt). Each need is kept apart, so that what a method sees
//! does not depend on which others run beside it.
//!
//! Everything is gathered chunk by chunk: memory is what is kept ([`PromptNeed::bytes`]) and a few rows of
//! logits, never all queries and never an `n × n` matrix.
//!
//! A method sees the prefix and nothing more. If sparse attention starts at the question
//! (`--sparse-from question` or `last:N`), the prefix ends before it, and a method that decides by the last
//! queries of the prompt decides by those of the context. That is what such a method can know when the
//! context is read before the question is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::calibration::PrefillChunk;
use super::method::score_into;
use crate::kernels::cpu::Rows;
use crate::kernels::cpu::softmax::softmax;
use crate::kv::{KvDtype, KvStore};

/// Something that a method has to know of the prefix's own attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PromptNeed {
    /// The rotated queries of the last so many tokens; all, if there are fewer.
    LastQueries(usize),
    /// The rotated queries of so many tokens, evenly spread; all, if there are fewer.
    SampledQueries(usize),
    /// The attention that each token received from all queries of the prefix, itself included.
    AttentionMass,
    /// The mean of `q·k` (unscaled) of each token's key with the queries of the so many tokens after it.
    FollowingScores(usize),
}

impl PromptNeed {
    /// Bytes kept for a prefix of this shape.
    pub fn bytes(self, shape: &PromptShape) -> usize {
        let numbers = match self {
            Self::LastQueries(n) | Self::SampledQueries(n) => n.min(shape.tokens) * shape.heads * shape.d,
            Self::AttentionMass => shape.tokens * shape.heads,
            Self::FollowingScores(_) => shape.tokens * shape.kv_heads,
        };
        shape.layers * numbers * size_of::<f32>()
    }

    /// Positions of the queries kept, ascending.
    fn query_positions(self, tokens: usize) -> Vec<u32> {
        match self {
            Self::LastQueries(n) => (tokens.saturating_sub(n) as u32..tokens as u32).collect(),
            Self::SampledQueries(n) if n < tokens => {
                // The middles of n equal parts.
                (0..n).map(|i| ((2 * i + 1) * tokens / (2 * n)) as u32).collect()
            }
            Self::SampledQueries(_) => (0..tokens as u32).collect(),
            Self::AttentionMass | Self::FollowingScores(_) => Vec::new(),
        }
    }
}

/// The prefix that is going to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptShape {
    /// Layers of the model.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub d: usize,
    /// Tokens of the prefix.
    pub tokens: usize,
}

/// What was gathered about a prefix while it was read.
#[derive(Debug)]
pub struct PromptStats {
    shape: PromptShape,
    gathered: BTreeMap<PromptNeed, Gathered>,
}

/// What was gathered for one need.
#[derive(Debug)]
struct Gathered {
    /// Of the queries kept, ascending.
    positions: Vec<u32>,
    layers: Vec<LayerStats>,
    time: Duration,
}

/// What was gathered for one need at one layer.
#[derive(Debug)]
enum LayerStats {
    /// Queries `[head][position][d]`.
    Queries(KvStore),
    /// A number for each token, `[head][token]` (query heads or KV heads).
    Tokens(Vec<Vec<f32>>),
}

impl PromptStats {
    /// Nothing gathered yet.
    pub fn new(needs: &BTreeSet<PromptNeed>, shape: PromptShape) -> Self {
        let gathered = |need: &PromptNeed| {
            let positions = need.query_positions(shape.tokens);
            let numbers = |heads: usize| LayerStats::Tokens(vec![vec![0.0; shape.tokens]; heads]);
            let layer = |_| match need {
                PromptNeed::LastQueries(_) | PromptNeed::SampledQueries(_) => {
                    LayerStats::Queries(KvStore::new(KvDtype::F32, shape.heads, shape.d, positions.len()))
                }
                PromptNeed::AttentionMass => numbers(shape.heads),
                PromptNeed::FollowingScores(_) => numbers(shape.kv_heads),
            };
            let layers = (0..shape.layers).map(layer).collect();
            (*need, Gathered { positions, layers, time: Duration::ZERO })
        };
        Self { shape, gathered: needs.iter().map(gathered).collect() }
    }

    /// Takes a chunk of the prefix in. Chunks come in order, each at every layer.
    pub fn observe(&mut self, chunk: &PrefillChunk<'_>) {
        for (need, gathered) in &mut self.gathered {
            let start = Instant::now();
            match (&mut gathered.layers[chunk.layer], need) {
                (LayerStats::Queries(kept), _) => keep_queries(chunk, &gathered.positions, kept),
                (LayerStats::Tokens(scores), PromptNeed::FollowingScores(n)) => {
                    add_following_scores(chunk, *n, self.shape.tokens, scores);
                }
                (LayerStats::Tokens(mass), _) => add_attention_mass(chunk, mass),
            }
            gathered.time += start.elapsed();
        }
    }

    /// What is gathered.
    pub fn needs(&self) -> impl Iterator<Item = PromptNeed> {
        self.gathered.keys().copied()
    }

    /// Time spent on one need so far.
    pub fn time(&self, need: PromptNeed) -> Duration {
        self.gathered.get(&need).map_or(Duration::ZERO, |g| g.time)
    }

    /// Time spent on all needs so far.
    pub fn total_time(&self) -> Duration {
        self.gathered.values().map(|g| g.time).sum()
    }

    /// What concerns one KV head and the query heads of its group.
    pub fn head(&self, layer: usize, kv_head: usize) -> PromptHead<'_> {
        PromptHead(Some(Place { stats: self, layer, kv_head }))
    }
}

fn keep_queries(chunk: &PrefillChunk<'_>, positions: &[u32], kept: &mut KvStore) {
    let width = chunk.heads * chunk.d();
    let wanted = positions.iter().map(|p| *p as usize).filter(|p| (chunk.first..chunk.kv.tokens()).contains(p));
    for position in wanted {
        kept.append(&chunk.queries[(position - chunk.first) * width..][..width]);
    }
}

/// Query rows whose logits are held at a time.
const MASS_ROWS: usize = 16;

/// Adds to `mass: [head][token]` the softmax weights of the chunk's queries over the tokens each one sees.
fn add_attention_mass(chunk: &PrefillChunk<'_>, mass: &mut [Vec<f32>]) {
    let (d, tokens) = (chunk.d(), chunk.kv.tokens());
    let group = chunk.heads / chunk.kv.keys.kv_heads();
    let scale = 1.0 / (d as f32).sqrt();
    mass.par_iter_mut().enumerate().for_each(|(head, mass)| {
        let keys = chunk.kv.keys.head(head / group);
        // A chunk's own sum first: small weights are not lost beside the mass of a long prefix.
        let mut of_chunk = vec![0.0; tokens];
        let mut logits = vec![0.0; MASS_ROWS * tokens];
        for begin in (0..chunk.tokens()).step_by(MASS_ROWS) {
            let rows = begin..(begin + MASS_ROWS).min(chunk.tokens());
            let visible = chunk.first + rows.end;
            let scaled: Vec<f32> = rows.clone().flat_map(|row| chunk.query(row, head)).map(|q| q * scale).collect();
            let logits = &mut logits[..rows.len() * visible];
            score_into(&scaled, keys.slice(0..visible, d), d, logits);
            for (row, logits) in rows.zip(logits.chunks_exact_mut(visible)) {
                let seen = &mut logits[..chunk.first + row + 1];
                softmax(seen);
                of_chunk.iter_mut().zip(&*seen).for_each(|(m, w)| *m += w);
            }
        }
        mass.iter_mut().zip(of_chunk).for_each(|(m, w)| *m += w);
    });
}

/// Adds to `scores: [kv_head][token]` what the chunk's queries have to do with the tokens they follow by at
/// most `n`; in a prefix of `tokens`, so that the sums over all chunks are means.
fn add_following_scores(chunk: &PrefillChunk<'_>, n: usize, tokens: usize, scores: &mut [Vec<f32>]) {
    let (d, first, end) = (chunk.d(), chunk.first, chunk.kv.tokens());
    let group = chunk.heads / chunk.kv.keys.kv_heads();
    scores.par_iter_mut().enumerate().for_each(|(kv_head, scores)| {
        let sums = running_sums(chunk, kv_head * group..(kv_head + 1) * group);
        let keys = chunk.kv.keys.head(kv_head);
        let mut key = vec![0.0; d];
        for (token, score) in scores.iter_mut().enumerate().take(end).skip(first.saturating_sub(n)) {
            let followers = (token + 1).max(first)..(token + n + 1).min(end);
            if followers.is_empty() {
                continue;
            }
            keys.read(token, &mut key);
            let (from, to) = (&sums[(followers.start - first) * d..], &sums[(followers.end - first) * d..]);
            let dot: f64 = key.iter().zip(from).zip(to).map(|((k, from), to)| f64::from(*k) * (to - from)).sum();
            let all = n.min(tokens - 1 - token);
            *score += (dot / (all * group) as f64) as f32;
        }
    });
}

/// Sums of the queries of some heads, `[tokens + 1][d]`: those before each token of the chunk, and of all.
fn running_sums(chunk: &PrefillChunk<'_>, heads: Range<usize>) -> Vec<f64> {
    let d = chunk.d();
    let mut sums = vec![0.0; (chunk.tokens() + 1) * d];
    for token in 0..chunk.tokens() {
        let (before, after) = sums.split_at_mut((token + 1) * d);
        after[..d].copy_from_slice(&before[token * d..]);
        for head in heads.clone() {
            after.iter_mut().zip(chunk.query(token, head)).for_each(|(sum, q)| *sum += f64::from(*q));
        }
    }
    sums
}

/// What was gathered about one KV head of one layer, for the methods that asked for it.
///
/// Reading what was not asked for by [`Method::prompt_needs`](super::Method::prompt_needs) is a mistake in
/// the method, and panics.
#[derive(Debug, Clone, Copy, Default)]
pub struct PromptHead<'a>(Option<Place<'a>>);

#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    stats: &'a PromptStats,
    layer: usize,
    kv_head: usize,
}

const ASKED: &str = "a method reads what it asked for";

impl<'a> PromptHead<'a> {
    /// Query heads of the group.
    pub fn group(&self) -> usize {
        let shape = self.place().stats.shape;
        shape.heads / shape.kv_heads
    }

    /// Rotated, unscaled queries `[n][d]` of the last `n` tokens (or all) for one head of the group.
    pub fn last_queries(&self, n: usize, head: usize) -> Rows<'a> {
        self.queries(PromptNeed::LastQueries(n), head).1
    }

    /// Positions, ascending, and rotated, unscaled queries `[n][d]` of the evenly spread tokens for one head
    /// of the group.
    pub fn sampled_queries(&self, n: usize, head: usize) -> (&'a [u32], Rows<'a>) {
        self.queries(PromptNeed::SampledQueries(n), head)
    }

    /// Attention that each token of the prefix received from one head of the group; sums to the number of
    /// tokens.
    pub fn attention_mass(&self, head: usize) -> &'a [f32] {
        self.numbers(PromptNeed::AttentionMass, self.head(head))
    }

    /// Mean `q·k` of each token's key with the queries of the `n` tokens after it (those there are), over
    /// all heads of the group; 0 for the last token.
    pub fn following_scores(&self, n: usize) -> &'a [f32] {
        self.numbers(PromptNeed::FollowingScores(n), self.place().kv_head)
    }

    fn place(&self) -> Place<'a> {
        self.0.expect(ASKED)
    }

    /// The model's number of a head of the group.
    fn head(&self, head: usize) -> usize {
        self.place().kv_head * self.group() + head
    }

    fn layer(&self, need: PromptNeed) -> (&'a [u32], &'a LayerStats) {
        let Place { stats, layer, .. } = self.place();
        let gathered = stats.gathered.get(&need).expect(ASKED);
        (&gathered.positions, &gathered.layers[layer])
    }

    fn queries(&self, need: PromptNeed, head: usize) -> (&'a [u32], Rows<'a>) {
        let (positions, LayerStats::Queries(kept)) = self.layer(need) else { unreachable!("{ASKED}") };
        (positions, kept.head(self.head(head)))
    }

    fn numbers(&self, need: PromptNeed, head: usize) -> &'a [f32] {
        let (_, LayerStats::Tokens(numbers)) = self.layer(need) else { unreachable!("{ASKED}") };
        &numbers[head]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::LayerKv;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    const SHAPE: PromptShape = PromptShape { layers: 2, heads: 4, kv_heads: 2, d: 8, tokens: 53 };

    fn noise(n: usize, seed: u64) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..n).map(|_| rng.random_range(-2.0..2.0)).collect()
    }

    fn queries(layer: usize) -> Vec<f32> {
        noise(SHAPE.tokens * SHAPE.heads * SHAPE.d, layer as u64)
    }

    fn keys(layer: usize) -> Vec<f32> {
        noise(SHAPE.tokens * SHAPE.kv_heads * SHAPE.d, 10 + layer as u64)
    }

    fn query(layer: usize, token: usize, head: usize) -> Vec<f32> {
        queries(layer)[(token * SHAPE.heads + head) * SHAPE.d..][..SHAPE.d].to_vec()
    }

    fn dot(layer: usize, query_token: usize, head: usize, key_token: usize) -> f64 {
        let kv_head = head / (SHAPE.heads / SHAPE.kv_heads);
        let keys = keys(layer);
        let key = &keys[(key_token * SHAPE.kv_heads + kv_head) * SHAPE.d..][..SHAPE.d];
        query(layer, query_token, head).iter().zip(key).map(|(q, k)| f64::from(q * k)).sum()
    }

    /// Read in chunks of `chunk` tokens.
    fn gathered(needs: &[PromptNeed], chunk: usize) -> PromptStats {
        let PromptShape { layers, heads, kv_heads, d, tokens } = SHAPE;
        let mut stats = PromptStats::new(&needs.iter().copied().collect(), SHAPE);
        let mut caches: Vec<_> = (0..layers).map(|_| LayerKv::new(KvDtype::F32, kv_heads, d, tokens)).collect();
        for first in (0..tokens).step_by(chunk) {
            let rows = first..(first + chunk).min(tokens);
            for (layer, kv) in caches.iter_mut().enumerate() {
                for key in keys(layer)[rows.start * kv_heads * d..rows.end * kv_heads * d].chunks(kv_heads * d) {
                    kv.append(key, key);
                }
                let queries = &queries(layer)[rows.start * heads * d..rows.end * heads * d];
                stats.observe(&PrefillChunk { layer, first, queries, heads, kv });
            }
        }
        stats
    }

    const CHUNKS: [usize; 4] = [1, 7, 20, 100];

    #[test]
    fn queries_kept_are_the_last_ones_and_evenly_spread_ones() {
        for chunk in CHUNKS {
            let needs = [3, 5, 100]
                .map(PromptNeed::LastQueries)
                .into_iter()
                .chain([1, 10, 200].map(PromptNeed::SampledQueries));
            let stats = gathered(&needs.collect::<Vec<_>>(), chunk);
            for (layer, kv_head, head) in [(0, 0, 1), (1, 1, 0)] {
                let place = stats.head(layer, kv_head);
                assert_eq!(place.group(), 2);
                let of = |tokens: &[u32]| -> Vec<f32> {
                    tokens.iter().flat_map(|t| query(layer, *t as usize, 2 * kv_head + head)).collect()
                };
                assert_eq!(place.last_queries(3, head).to_f32(), of(&[50, 51, 52]));
                assert_eq!(place.last_queries(100, head).to_f32(), of(&(0..53).collect::<Vec<_>>()));
                let (positions, rows) = place.sampled_queries(10, head);
                assert_eq!(positions, [2, 7, 13, 18, 23, 29, 34, 39, 45, 50]);
                assert_eq!(rows.to_f32(), of(positions));
                assert_eq!(place.sampled_queries(1, head).0, [26]);
                assert_eq!(place.sampled_queries(200, head).0.len(), 53);
            }
        }
    }

    #[test]
    fn attention_mass_is_the_sum_of_softmax_weights_and_sums_to_the_number_of_queries() {
        for chunk in CHUNKS {
            let stats = gathered(&[PromptNeed::AttentionMass], chunk);
            for (layer, kv_head, head) in [(0, 0, 0), (0, 1, 1), (1, 0, 1)] {
                let mut expected = vec![0.0f64; SHAPE.tokens];
                for t in 0..SHAPE.tokens {
                    let logits: Vec<f64> =
                        (0..=t).map(|k| dot(layer, t, 2 * kv_head + head, k) / (SHAPE.d as f64).sqrt()).collect();
                    let sum: f64 = logits.iter().map(|l| l.exp()).sum();
                    expected.iter_mut().zip(logits).for_each(|(e, l)| *e += l.exp() / sum);
                }
                let mass = stats.head(layer, kv_head).attention_mass(head);
                for (m, e) in mass.iter().zip(&expected) {
                    assert!((f64::from(*m) - e).abs() < 1e-4, "{m} against {e}");
                }
                let total: f64 = mass.iter().map(|m| f64::from(*m)).sum();
                assert!((total - SHAPE.tokens as f64).abs() < 1e-3, "{total}");
            }
        }
    }

    #[test]
    fn following_scores_are_means_over_the_tokens_after() {
        for (chunk, n) in CHUNKS.into_iter().flat_map(|c| [(c, 1), (c, 6), (c, 30), (c, 500)]) {
            let stats = gathered(&[PromptNeed::FollowingScores(n)], chunk);
            for (layer, kv_head) in [(0, 1), (1, 0)] {
                let scores = stats.head(layer, kv_head).following_scores(n);
                for (token, score) in scores.iter().enumerate() {
                    let followers = token + 1..(token + 1 + n).min(SHAPE.tokens);
                    let count = (followers.len() * 2) as f64;
                    let pairs = followers.flat_map(|t| [(t, 2 * kv_head), (t, 2 * kv_head + 1)]);
                    let sum: f64 = pairs.map(|(t, head)| dot(layer, t, head, token)).sum();
                    let mean = if count > 0.0 { sum / count } else { 0.0 };
                    assert!((f64::from(*score) - mean).abs() < 1e-4, "chunk {chunk}, n {n}: {score} against {mean}");
                }
            }
        }
    }

    #[test]
    fn what_is_kept_is_what_was_said_and_an_empty_prefix_keeps_nothing() {
        let needs = [
            PromptNeed::LastQueries(5),
            PromptNeed::SampledQueries(9),
            PromptNeed::AttentionMass,
            PromptNeed::FollowingScores(4),
        ];
        let stats = gathered(&needs, 11);
        for need in needs {
            let kept = stats.gathered[&need].layers.iter().map(|layer| match layer {
                LayerStats::Queries(store) => store.bytes(),
                LayerStats::Tokens(heads) => heads.iter().map(|h| size_of_val(h.as_slice())).sum(),
            });
            assert_eq!(kept.sum::<usize>(), need.bytes(&SHAPE), "{need:?}");
        }
        let empty = PromptShape { tokens: 0, ..SHAPE };
        let stats = PromptStats::new(&needs.into_iter().collect(), empty);
        assert_eq!(stats.head(1, 1).attention_mass(0).len(), 0);
        assert_eq!(stats.head(0, 0).last_queries(5, 1).elements(), 0);
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let with = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let stats = pool.install(|| gathered(&[PromptNeed::AttentionMass, PromptNeed::FollowingScores(9)], 20));
            let head = stats.head(1, 1);
            (head.attention_mass(1).to_vec(), head.following_scores(9).to_vec())
        };
        assert_eq!(with(1), with(2));
    }
}

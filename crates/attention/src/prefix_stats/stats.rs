//! What methods may know of the prefix's own attention: some of its queries, and who was attended.
//!
//! A method says what it needs ([`Method::prompt_needs`](crate::Method::prompt_needs)); what the methods of
//! a run ask for together is gathered once, while the prefix is read, and given to each as
//! [`HeadPrefix::prompt`](crate::HeadPrefix::prompt). Each need is kept apart, so that what a method sees
//! does not depend on which others run beside it.
//!
//! Everything is gathered chunk by chunk: memory is what is kept ([`PromptNeed::bytes`]) and a few rows of
//! logits, never all queries and never an `n × n` matrix. What is known beforehand of longer prefixes that begin with
//! this one (the same prompt, sparse from a later token) is gathered for them too, so that they can be gone on to.
//!
//! A method sees the prefix and nothing more. If sparse attention starts at the question
//! (`--sparse-from question` or `last:N`), the prefix ends before it, and a method that decides by the last
//! queries of the prompt decides by those of the context. That is what such a method can know when the
//! context is read before the question is asked.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use rayon::prelude::*;

use crate::calibration::collector::PrefillChunk;
use crate::kv::{KvDtype, KvStore};
use crate::types::prompt_shape::PromptShape;
use crate::types::scores::score_into;
use spattn_base::memory::product;
use spattn_kernels::Rows;
use spattn_kernels::softmax::softmax;

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
    /// Bytes kept for a prefix of this shape that nothing goes on from.
    pub fn bytes(self, shape: &PromptShape) -> usize {
        let numbers = match self {
            Self::LastQueries(n) | Self::SampledQueries(n) => product([n.min(shape.tokens), shape.heads, shape.d]),
            Self::AttentionMass => product([shape.tokens, shape.heads]),
            Self::FollowingScores(_) => product([shape.tokens, shape.kv_heads]),
        };
        product([shape.layers, numbers, size_of::<f32>()])
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

/// Tokens whose queries are summed up together, before they are added to the rest: part of the order of summation, so
/// that sums are the same bits in whatever pieces a prefix is read.
const BLOCK: usize = 2048;

/// What was gathered about a prefix while it was read, and about longer ones that begin with it.
#[derive(Debug, Clone)]
pub struct PromptStats {
    shape: PromptShape,
    /// Tokens of the prefix, and of those that may be gone on to, ascending.
    lengths: Vec<usize>,
    block: usize,
    /// Tokens seen at each layer.
    seen: Vec<usize>,
    gathered: BTreeMap<PromptNeed, Gathered>,
}

/// What was gathered for one need.
#[derive(Debug, Clone)]
struct Gathered {
    /// Of the queries kept, ascending; for each length.
    positions: VecDeque<Vec<u32>>,
    layers: Vec<LayerStats>,
    time: Duration,
}

/// What was gathered for one need at one layer.
#[derive(Debug, Clone)]
enum LayerStats {
    /// Queries `[head][position][d]` for each length.
    Queries(VecDeque<KvStore>),
    /// Of each query head.
    Mass(Vec<HeadMass>),
    /// Of each KV head.
    Following(Vec<HeadFollowing>),
}

/// Attention that each token received from the queries of one head.
#[derive(Debug, Clone)]
struct HeadMass {
    /// From queries of whole blocks, and of what is left at the end of the last prefix.
    closed: Vec<f32>,
    /// From those of a block of which more may come; empty if there are none.
    open: Vec<f32>,
    /// Both together, at the end of a prefix that may be gone on from.
    both: Option<Vec<f32>>,
}

/// Scores of each token of one KV head with the queries after it.
#[derive(Debug, Clone)]
struct HeadFollowing {
    /// For each length.
    scores: VecDeque<Vec<f32>>,
    /// Position of the first of `sums`.
    first: usize,
    /// Sums `[position][d]` of the queries of a block that come before each position, as far back as they matter.
    sums: Vec<f64>,
}

impl PromptStats {
    /// Nothing gathered yet.
    pub fn new(needs: &BTreeSet<PromptNeed>, shape: PromptShape) -> Self {
        Self::of_nested(needs, shape, &[])
    }

    /// Nothing gathered yet, of a prefix that longer ones (ascending) begin with; [`continued`](Self::continued) goes on
    /// to them.
    pub fn of_nested(needs: &BTreeSet<PromptNeed>, shape: PromptShape, longer: &[usize]) -> Self {
        let lengths: Vec<usize> = std::iter::once(shape.tokens).chain(longer.iter().copied()).collect();
        debug_assert!(lengths.is_sorted_by(|a, b| a < b), "each longer than the one before");
        let gathered = |need: &PromptNeed| {
            let positions: VecDeque<Vec<u32>> = lengths.iter().map(|tokens| need.query_positions(*tokens)).collect();
            let queries = |p: &Vec<u32>| KvStore::new(KvDtype::F32, shape.heads, shape.d, p.len());
            let zeros = |tokens: usize| vec![0.0; tokens];
            let layer = |_| match need {
                PromptNeed::LastQueries(_) | PromptNeed::SampledQueries(_) => {
                    LayerStats::Queries(positions.iter().map(queries).collect())
                }
                PromptNeed::AttentionMass => {
                    let head = |_| HeadMass { closed: zeros(shape.tokens), open: Vec::new(), both: None };
                    LayerStats::Mass((0..shape.heads).map(head).collect())
                }
                PromptNeed::FollowingScores(_) => {
                    let scores = || lengths.iter().map(|tokens| zeros(*tokens)).collect();
                    let head = |_| HeadFollowing { scores: scores(), first: 0, sums: Vec::new() };
                    LayerStats::Following((0..shape.kv_heads).map(head).collect())
                }
            };
            let layers = (0..shape.layers).map(layer).collect();
            (*need, Gathered { positions, layers, time: Duration::ZERO })
        };
        let gathered = needs.iter().map(gathered).collect();
        Self { shape, lengths, block: BLOCK, seen: vec![0; shape.layers], gathered }
    }

    /// As gathered so far, for some of the needs, about a longer prefix that begins with this one: if that was foreseen,
    /// and this one was read to its end. It may also be the same prefix.
    pub fn continued(mut self, needs: &BTreeSet<PromptNeed>, tokens: usize) -> Option<Self> {
        let at = self.lengths.iter().position(|length| *length == tokens)?;
        if self.seen.iter().any(|seen| *seen != self.shape.tokens)
            || !needs.iter().all(|n| self.gathered.contains_key(n))
        {
            return None;
        }
        self.lengths.drain(..at);
        self.shape.tokens = tokens;
        self.gathered.retain(|need, _| needs.contains(need));
        for gathered in self.gathered.values_mut() {
            gathered.positions.drain(..at);
            gathered.layers.iter_mut().for_each(|layer| layer.go_on(at, tokens));
        }
        Some(self)
    }

    /// What was gathered about several prefixes of one shape, each in its turn, that lie beside each other as so many sequences: the
    /// heads of one, then those of the next; `None` if there is no prefix. Queries of several are left out.
    pub fn beside(prefixes: &[&Self], sequences: usize) -> Option<Self> {
        let first = *prefixes.first()?;
        assert!(prefixes.iter().all(|other| other.shape == first.shape), "prefixes of one shape");
        let in_turn = || (0..sequences).map(|i| prefixes[i % prefixes.len()]);
        let joined = |(need, own): (&PromptNeed, &Gathered)| {
            let layer = |layer: usize| {
                let mut of_all = in_turn().map(|stats| &stats.gathered[need].layers[layer]);
                let mut joined = of_all.next()?.clone();
                of_all.all(|other| joined.join(other)).then_some(joined)
            };
            let layers = (0..own.layers.len()).map(layer).collect::<Option<_>>()?;
            Some((*need, Gathered { layers, ..own.clone() }))
        };
        let gathered = first.gathered.iter().filter_map(joined).collect();
        let PromptShape { heads, kv_heads, .. } = first.shape;
        let shape = PromptShape { heads: sequences * heads, kv_heads: sequences * kv_heads, ..first.shape };
        Some(Self { shape, gathered, ..first.clone() })
    }

    /// Takes a chunk of the prefix in. Chunks come in order, each at every layer; what was seen before is skipped.
    pub fn observe(&mut self, chunk: &PrefillChunk<'_>) {
        let end = chunk.end();
        let mut first = self.seen[chunk.layer];
        debug_assert!(chunk.first <= first, "no token is left out");
        while first < end {
            let block = first / self.block * self.block;
            let piece =
                Piece { chunk, tokens: first..end.min(block + self.block), block, blocks_end: block + self.block };
            for (need, gathered) in &mut self.gathered {
                let start = Instant::now();
                match (&mut gathered.layers[chunk.layer], need) {
                    (LayerStats::Queries(kept), _) => keep_queries(&piece, &gathered.positions, kept),
                    (LayerStats::Following(heads), PromptNeed::FollowingScores(n)) => {
                        add_following_scores(&piece, *n, &self.lengths, heads);
                    }
                    (LayerStats::Mass(heads), _) => add_attention_mass(&piece, &self.lengths, heads),
                    (LayerStats::Following(_), _) => unreachable!("scores are gathered for one kind of need"),
                }
                gathered.time += start.elapsed();
            }
            first = piece.tokens.end;
        }
        self.seen[chunk.layer] = end.max(self.seen[chunk.layer]);
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

impl LayerStats {
    /// Takes in the heads of another behind its own; `false` for queries, which are not kept by head.
    fn join(&mut self, other: &Self) -> bool {
        match (self, other) {
            (Self::Mass(own), Self::Mass(other)) => own.extend_from_slice(other),
            (Self::Following(own), Self::Following(other)) => own.extend_from_slice(other),
            _ => return false,
        }
        true
    }

    /// Leaves the first `shorter` lengths behind, for a prefix of `tokens`.
    fn go_on(&mut self, shorter: usize, tokens: usize) {
        if shorter == 0 {
            return;
        }
        match self {
            Self::Queries(kept) => drop(kept.drain(..shorter)),
            Self::Following(heads) => heads.iter_mut().for_each(|head| drop(head.scores.drain(..shorter))),
            Self::Mass(heads) => heads.iter_mut().for_each(|head| {
                head.both = None;
                head.closed.resize(tokens, 0.0);
            }),
        }
    }
}

/// Tokens of a chunk within one block.
struct Piece<'a> {
    chunk: &'a PrefillChunk<'a>,
    tokens: Range<usize>,
    /// Where the block begins.
    block: usize,
    /// Where it would end.
    blocks_end: usize,
}

impl Piece<'_> {
    /// Whether no more of the block comes, in a prefix of so many tokens.
    fn ends_block(&self, tokens: usize) -> bool {
        self.tokens.end == self.blocks_end.min(tokens)
    }

    /// Query `[d]` of a token for one head.
    fn query(&self, token: usize, head: usize) -> &[f32] {
        self.chunk.query(token - self.chunk.first, head)
    }

    /// Query heads that share a KV head.
    fn group(&self) -> usize {
        self.chunk.heads / self.chunk.kv_heads()
    }
}

fn keep_queries(piece: &Piece<'_>, positions: &VecDeque<Vec<u32>>, kept: &mut VecDeque<KvStore>) {
    let (chunk, width) = (piece.chunk, piece.chunk.heads * piece.chunk.d());
    for (positions, kept) in positions.iter().zip(kept) {
        for position in positions.iter().map(|p| *p as usize).filter(|p| piece.tokens.contains(p)) {
            kept.append(&chunk.queries()[(position - chunk.first) * width..][..width]);
        }
    }
}

/// Query rows whose logits are held at a time.
const MASS_ROWS: usize = 16;

/// Adds the softmax weights of the piece's queries over the tokens each one sees to the mass of each query head.
fn add_attention_mass(piece: &Piece<'_>, lengths: &[usize], heads: &mut [HeadMass]) {
    // A block's own sum first: small weights are not lost beside the mass of a long prefix.
    match piece.chunk.device() {
        Some(device) => {
            let end = piece.tokens.end;
            let mut of_block = vec![0.0; heads.len() * end];
            for (of_block, mass) in of_block.chunks_exact_mut(end).zip(&*heads) {
                of_block[..mass.open.len()].copy_from_slice(&mass.open);
            }
            device.add_attention_mass(piece.tokens.clone(), &mut of_block);
            let of_heads = of_block.chunks_exact(end).zip(heads);
            of_heads.for_each(|(of_block, mass)| mass.take(of_block.to_vec(), piece, lengths));
        }
        None => heads.par_iter_mut().enumerate().for_each(|(head, mass)| {
            let mut of_block = std::mem::take(&mut mass.open);
            of_block.resize(piece.tokens.end, 0.0);
            add_head_mass(piece, head, &mut of_block);
            mass.take(of_block, piece, lengths);
        }),
    }
}

/// The same on the host, for one query head.
fn add_head_mass(piece: &Piece<'_>, head: usize, of_block: &mut [f32]) {
    let (d, end, group) = (piece.chunk.d(), piece.tokens.end, piece.group());
    let scale = piece.chunk.scale().factor();
    let keys = piece.chunk.kv().keys.head(head / group);
    let mut logits = vec![0.0; MASS_ROWS * end];
    for begin in piece.tokens.clone().step_by(MASS_ROWS) {
        let tokens = begin..(begin + MASS_ROWS).min(end);
        let visible = tokens.end;
        let scaled: Vec<f32> = tokens.clone().flat_map(|t| piece.query(t, head)).map(|q| q * scale).collect();
        let logits = &mut logits[..tokens.len() * visible];
        score_into(&scaled, keys.slice(0..visible, d), d, logits);
        for (token, logits) in tokens.zip(logits.chunks_exact_mut(visible)) {
            let seen = &mut logits[..token + 1];
            softmax(seen);
            of_block.iter_mut().zip(&*seen).for_each(|(m, w)| *m += w);
        }
    }
}

impl HeadMass {
    /// Adds the sum of a block, unless more may come to it.
    fn take(&mut self, of_block: Vec<f32>, piece: &Piece<'_>, lengths: &[usize]) {
        let add = |to: &mut Vec<f32>| to.iter_mut().zip(&of_block).for_each(|(m, w)| *m += w);
        let last = *lengths.last().expect("the prefix has a length");
        if piece.ends_block(last) {
            add(&mut self.closed);
            return;
        }
        if piece.ends_block(lengths[0]) {
            let mut both = self.closed.clone();
            add(&mut both);
            self.both = Some(both);
        }
        self.open = of_block;
    }

    /// Of the prefix that was read.
    fn of_prefix(&self) -> &[f32] {
        self.both.as_ref().unwrap_or(&self.closed)
    }
}

/// Adds what the piece's queries have to do with the tokens they follow by at most `n` to the scores of each KV head,
/// so that the sums over all pieces are means.
///
/// What the queries of one block add to a token is summed up before it is added: as soon as all are there.
fn add_following_scores(piece: &Piece<'_>, n: usize, lengths: &[usize], heads: &mut [HeadFollowing]) {
    let (d, block, Range { start, end }) = (piece.chunk.d(), piece.block, piece.tokens.clone());
    let group = piece.group();
    piece.chunk.show();
    heads.par_iter_mut().enumerate().for_each(|(kv_head, head)| {
        if start == block {
            (head.first, head.sums) = (block, vec![0.0; d]);
        }
        head.extend_sums(piece, kv_head * group..(kv_head + 1) * group);
        let HeadFollowing { scores, first, sums } = head;
        let before = |position: usize| &sums[(position - *first) * d..][..d];
        let keys = piece.chunk.kv().keys.head(kv_head);
        let mut key = vec![0.0; d];
        for (scores, &length) in scores.iter_mut().zip(lengths) {
            let complete = if piece.ends_block(length) { end } else { end.saturating_sub(n) };
            for (token, score) in scores.iter_mut().enumerate().take(complete).skip(start.saturating_sub(n)) {
                let followers = (token + 1).max(block)..(token + n + 1).min(end);
                if followers.is_empty() {
                    continue;
                }
                keys.read(token, &mut key);
                let (from, to) = (before(followers.start), before(followers.end));
                let dot: f64 = key.iter().zip(from).zip(to).map(|((k, from), to)| f64::from(*k) * (to - from)).sum();
                let all = n.min(length - 1 - token);
                *score += (dot / (all * group) as f64) as f32;
            }
        }
        head.forget(piece, n, lengths);
    });
}

impl HeadFollowing {
    /// Goes on with the sums over the piece's queries of some heads.
    fn extend_sums(&mut self, piece: &Piece<'_>, heads: Range<usize>) {
        let d = piece.chunk.d();
        self.sums.reserve(piece.tokens.len() * d);
        for token in piece.tokens.clone() {
            self.sums.extend_from_within(self.sums.len() - d..);
            let at = self.sums.len() - d;
            for head in heads.clone() {
                self.sums[at..].iter_mut().zip(piece.query(token, head)).for_each(|(sum, q)| *sum += f64::from(*q));
            }
        }
    }

    /// Keeps the sums that the rest of the block will need.
    fn forget(&mut self, piece: &Piece<'_>, n: usize, lengths: &[usize]) {
        if piece.ends_block(*lengths.last().expect("the prefix has a length")) {
            self.sums = Vec::new();
            return;
        }
        let first = self.first.max(piece.tokens.end.saturating_sub(n));
        self.sums.drain(..(first - self.first) * piece.chunk.d());
        self.sums.shrink_to_fit();
        self.first = first;
    }
}

/// What was gathered about one KV head of one layer, for the methods that asked for it.
///
/// Reading what was not asked for by [`Method::prompt_needs`](crate::Method::prompt_needs) is a mistake in
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
        match self.layer(PromptNeed::AttentionMass) {
            (_, LayerStats::Mass(heads)) => heads[self.head(head)].of_prefix(),
            _ => unreachable!("{ASKED}"),
        }
    }

    /// Mean `q·k` of each token's key with the queries of the `n` tokens after it (those there are), over
    /// all heads of the group; 0 for the last token.
    pub fn following_scores(&self, n: usize) -> &'a [f32] {
        match self.layer(PromptNeed::FollowingScores(n)) {
            (_, LayerStats::Following(heads)) => &heads[self.place().kv_head].scores[0],
            _ => unreachable!("{ASKED}"),
        }
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
        (&gathered.positions[0], &gathered.layers[layer])
    }

    fn queries(&self, need: PromptNeed, head: usize) -> (&'a [u32], Rows<'a>) {
        let (positions, LayerStats::Queries(kept)) = self.layer(need) else { unreachable!("{ASKED}") };
        (positions, kept[0].head(self.head(head)))
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

    /// Read in chunks of `chunk` tokens, summed up in blocks of 20.
    fn gathered(needs: &[PromptNeed], chunk: usize) -> PromptStats {
        let stats = PromptStats::new(&needs.iter().copied().collect(), SHAPE);
        read(PromptStats { block: 20, ..stats }, 0, chunk)
    }

    /// Reads from token `from` to the end of the prefix.
    fn read(mut stats: PromptStats, from: usize, chunk: usize) -> PromptStats {
        let PromptShape { layers, heads, kv_heads, d, tokens } = stats.shape;
        let mut caches: Vec<_> = (0..layers).map(|_| LayerKv::new(KvDtype::F32, kv_heads, d, tokens)).collect();
        for (layer, kv) in caches.iter_mut().enumerate() {
            keys(layer)[..from * kv_heads * d].chunks(kv_heads * d).for_each(|key| kv.append(key, key));
        }
        for first in (from..tokens).step_by(chunk) {
            let rows = first..(first + chunk).min(tokens);
            for (layer, kv) in caches.iter_mut().enumerate() {
                for key in keys(layer)[rows.start * kv_heads * d..rows.end * kv_heads * d].chunks(kv_heads * d) {
                    kv.append(key, key);
                }
                let queries = &queries(layer)[rows.start * heads * d..rows.end * heads * d];
                stats.observe(&PrefillChunk::new(layer, first, queries, heads, kv));
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
    fn prefixes_beside_each_other_have_the_heads_of_each_in_turn() {
        let needs = [PromptNeed::AttentionMass, PromptNeed::FollowingScores(3)];
        let stats = gathered(&needs, 9);
        let mut other = stats.clone();
        for own in other.gathered.values_mut() {
            match &mut own.layers[0] {
                LayerStats::Mass(heads) => heads.iter_mut().for_each(|head| head.closed[1] += 7.0),
                LayerStats::Following(heads) => heads.iter_mut().for_each(|head| head.scores[0][1] += 5.0),
                LayerStats::Queries(_) => unreachable!(),
            }
        }
        let all = PromptStats::beside(&[&stats, &other], 3).unwrap();
        for (sequence, own) in [&stats, &other, &stats].into_iter().enumerate() {
            for kv_head in 0..SHAPE.kv_heads {
                let (ours, own) = (all.head(0, sequence * SHAPE.kv_heads + kv_head), own.head(0, kv_head));
                assert_eq!(ours.group(), own.group());
                (0..own.group()).for_each(|head| assert_eq!(ours.attention_mass(head), own.attention_mass(head)));
                assert_eq!(ours.following_scores(3), own.following_scores(3));
            }
        }
        let queries = PromptStats::beside(&[&gathered(&[PromptNeed::LastQueries(3)], 9)], 2).unwrap();
        assert_eq!((queries.needs().count(), PromptStats::beside(&[], 2).is_none()), (0, true));
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
                LayerStats::Queries(stores) => stores.iter().map(KvStore::bytes).sum::<usize>(),
                LayerStats::Mass(heads) => heads.iter().map(|h| size_of_val(h.of_prefix()) + h.open.len()).sum(),
                LayerStats::Following(heads) => {
                    heads.iter().map(|h| size_of_val(h.scores[0].as_slice()) + h.sums.len()).sum()
                }
            });
            assert_eq!(kept.sum::<usize>(), need.bytes(&SHAPE), "{need:?}");
        }
        let empty = PromptShape { tokens: 0, ..SHAPE };
        let stats = PromptStats::new(&needs.into_iter().collect(), empty);
        assert_eq!(stats.head(1, 1).attention_mass(0).len(), 0);
        assert_eq!(stats.head(0, 0).last_queries(5, 1).elements(), 0);
    }

    const NEEDS: [PromptNeed; 8] = [
        PromptNeed::LastQueries(5),
        PromptNeed::LastQueries(40),
        PromptNeed::SampledQueries(9),
        PromptNeed::SampledQueries(50),
        PromptNeed::AttentionMass,
        PromptNeed::FollowingScores(1),
        PromptNeed::FollowingScores(7),
        PromptNeed::FollowingScores(33),
    ];

    /// All that methods may see of [`NEEDS`], to the bit.
    fn bits(stats: &PromptStats) -> Vec<Vec<u32>> {
        let mut all = Vec::new();
        let mut add = |numbers: &[f32]| all.push(numbers.iter().map(|x| x.to_bits()).collect());
        for (layer, kv_head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let place = stats.head(layer, kv_head);
            for head in 0..2 {
                [5, 40].iter().for_each(|n| add(&place.last_queries(*n, head).to_f32()));
                for n in [9, 50] {
                    let (positions, rows) = place.sampled_queries(n, head);
                    add(&positions.iter().map(|p| *p as f32).collect::<Vec<_>>());
                    add(&rows.to_f32());
                }
                add(place.attention_mass(head));
            }
            [1, 7, 33].iter().for_each(|n| add(place.following_scores(*n)));
        }
        all
    }

    #[test]
    fn pieces_do_not_change_a_bit() {
        let whole = bits(&gathered(&NEEDS, 100));
        for chunk in CHUNKS {
            assert!(bits(&gathered(&NEEDS, chunk)) == whole, "chunks of {chunk}");
        }
    }

    #[test]
    fn a_longer_prefix_that_is_gone_on_to_is_as_if_read_alone() {
        let needs: BTreeSet<PromptNeed> = NEEDS.into();
        let shape = |tokens| PromptShape { tokens, ..SHAPE };
        let alone = |tokens| bits(&read(PromptStats { block: 20, ..PromptStats::new(&needs, shape(tokens)) }, 0, 100));
        // Within a block, at its end, a token further; all within one; with less than the last queries between them.
        for lengths in [[17, 33, 53], [20, 40, 53], [19, 20, 21], [1, 2, 3], [39, 41, 44]] {
            for (chunk, back) in [(100, 0), (7, 0), (6, 4)] {
                let stats = PromptStats::of_nested(&needs, shape(lengths[0]), &lengths[1..]);
                let mut stats = read(PromptStats { block: 20, ..stats }, 0, chunk);
                assert!(bits(&stats) == alone(lengths[0]), "{lengths:?}");
                for pair in lengths.windows(2) {
                    stats = stats.continued(&needs, pair[1]).unwrap();
                    // Some tokens may be read anew.
                    stats = read(stats, pair[0] - back.min(pair[0]), chunk);
                    assert!(bits(&stats) == alone(pair[1]), "{lengths:?}, chunks of {chunk}, {back} read again");
                }
            }
            // One may be left out.
            let stats = PromptStats::of_nested(&needs, shape(lengths[0]), &lengths[1..]);
            let stats = read(PromptStats { block: 20, ..stats }, 0, 100).continued(&needs, lengths[2]).unwrap();
            assert!(bits(&read(stats, lengths[0], 100)) == alone(lengths[2]), "{lengths:?}");
        }
    }

    #[test]
    fn what_was_not_foreseen_is_not_gone_on_to() {
        let few = BTreeSet::from([PromptNeed::AttentionMass]);
        let stats = || PromptStats::of_nested(&few, PromptShape { tokens: 20, ..SHAPE }, &[30]);
        assert!(stats().continued(&few, 30).is_none(), "it was not read to its end");
        let read = || read(stats(), 0, 7);
        assert!(read().continued(&few, 30).is_some() && read().continued(&few, 31).is_none());
        let same = read().continued(&few, 20).unwrap();
        assert_eq!(same.head(1, 0).attention_mass(1), read().head(1, 0).attention_mass(1));
        assert!(read().continued(&BTreeSet::from(NEEDS), 30).is_none());
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

//! Statistics of the prefix's own attention: some of its queries, and how much attention each token received.
//!
//! A method names the statistics it needs ([`Method::prompt_needs`](crate::Method::prompt_needs)). Those of all methods of a run are
//! gathered once, during prefill, and a method reads them from [`HeadPrefix::prompt`](crate::HeadPrefix::prompt). Each need is stored
//! on its own, so a method's statistics do not depend on the other methods of the run.
//!
//! Statistics are gathered chunk by chunk. Memory holds what is kept ([`PromptNeed::bytes`]) and a few rows of logits, never all
//! queries and never an `n × n` matrix. If the same prompt is also read to longer prefixes (a later start of sparse attention), their
//! statistics are gathered in the same pass, and [`PromptStats::continued`] turns this prefix's statistics into theirs.
//!
//! Statistics cover the prefix alone. With `--sparse-from question` or `last:N` the prefix ends before the question, so a method that
//! decides by the prompt's last queries decides by the context's last queries. A deployment that reads the context before the question
//! is asked knows no more than that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::following::{HeadFollowing, add_following_scores};
use super::mass::{HeadMass, add_attention_mass};
use super::need::PromptNeed;
use super::piece::Piece;
use crate::calibration::collector::PrefillChunk;
use crate::kv::{KvDtype, KvError, KvStore};
use crate::types::prompt_shape::PromptShape;
use spattn_kernels::Rows;

/// Tokens of a summation block. Sums are taken within a block first and then over blocks, so they have the same bits for any chunk
/// size.
const BLOCK: usize = 2048;

/// Statistics of a prefix, and of planned longer prefixes that start with it.
#[derive(Debug, Clone)]
pub struct PromptStats {
    shape: PromptShape,
    /// Tokens of the prefix and of the planned longer ones, ascending.
    lengths: Vec<usize>,
    block: usize,
    /// Tokens read so far, by layer.
    seen: Vec<usize>,
    gathered: BTreeMap<PromptNeed, Gathered>,
}

/// The statistics of one need.
#[derive(Debug, Clone)]
struct Gathered {
    /// Positions of the queries kept, ascending, for each length.
    positions: VecDeque<Vec<u32>>,
    layers: Vec<LayerStats>,
    time: Duration,
}

/// The statistics of one need at one layer.
#[derive(Debug, Clone)]
enum LayerStats {
    /// Queries `[query head][position][d]`, for each length.
    Queries(VecDeque<KvStore>),
    /// For each query head.
    Mass(Vec<HeadMass>),
    /// For each KV head.
    Following(Vec<HeadFollowing>),
}

impl PromptStats {
    /// Empty statistics of a prefix of this shape.
    pub fn new(needs: &BTreeSet<PromptNeed>, shape: PromptShape) -> Self {
        Self::of_nested(needs, shape, &[])
    }

    /// Like [`new`](Self::new), and also for longer prefixes of `longer` tokens (ascending) that start with this one.
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

    /// Continues with the statistics of a longer planned prefix (or of the same one), for some of the needs.
    ///
    /// `None` if no prefix of `tokens` tokens was planned, if a need was not gathered, or if this prefix was not read to its end.
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

    /// Joins the statistics of prefixes of equal shape as if their heads were the heads of one model: `sequences` sequences, which take
    /// the prefixes in turn. Kept queries are dropped. `None` if there is no prefix.
    ///
    /// # Panics
    /// If the shapes differ.
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

    /// Adds a chunk of the prefix. Chunks come in order, each at every layer; tokens that were read before are skipped.
    ///
    /// # Errors
    /// If a device that computes the chunk fails. The statistics are unusable afterwards.
    pub fn observe(&mut self, chunk: &PrefillChunk<'_>) -> Result<(), KvError> {
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
                    (LayerStats::Queries(kept), _) => keep_queries(&piece, &gathered.positions, kept)?,
                    (LayerStats::Following(heads), PromptNeed::FollowingScores(n)) => {
                        add_following_scores(&piece, *n, &self.lengths, heads)?;
                    }
                    (LayerStats::Mass(heads), _) => add_attention_mass(&piece, &self.lengths, heads)?,
                    (LayerStats::Following(_), _) => {
                        unreachable!("following scores are gathered only for `FollowingScores`")
                    }
                }
                gathered.time += start.elapsed();
            }
            first = piece.tokens.end;
        }
        self.seen[chunk.layer] = end.max(self.seen[chunk.layer]);
        Ok(())
    }

    /// The needs that are gathered.
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

    /// The statistics of one KV head and its query heads.
    pub fn head(&self, layer: usize, kv_head: usize) -> PromptHead<'_> {
        PromptHead(Some(Place { stats: self, layer, kv_head }))
    }
}

impl LayerStats {
    /// Appends the heads of `other`. Returns `false` for queries, which cannot be joined.
    fn join(&mut self, other: &Self) -> bool {
        match (self, other) {
            (Self::Mass(own), Self::Mass(other)) => own.extend_from_slice(other),
            (Self::Following(own), Self::Following(other)) => own.extend_from_slice(other),
            _ => return false,
        }
        true
    }

    /// Drops the first `shorter` lengths and extends the statistics to `tokens` tokens.
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

fn keep_queries(
    piece: &Piece<'_>,
    positions: &VecDeque<Vec<u32>>,
    kept: &mut VecDeque<KvStore>,
) -> Result<(), KvError> {
    let chunk = piece.chunk;
    for (positions, kept) in positions.iter().zip(kept) {
        let within = |bound: usize| positions.partition_point(|position| (*position as usize) < bound);
        let positions = &positions[within(piece.tokens.start)..within(piece.tokens.end)];
        if positions.is_empty() {
            continue;
        }
        let tokens: Vec<u32> = positions.iter().map(|position| position - chunk.first as u32).collect();
        kept.append_rows(&chunk.queries_of(&tokens)?);
    }
    Ok(())
}

/// The statistics of one KV head of one layer.
///
/// # Panics
/// All accessors panic if the method did not ask for the statistic in [`Method::prompt_needs`](crate::Method::prompt_needs).
#[derive(Debug, Clone, Copy, Default)]
pub struct PromptHead<'a>(Option<Place<'a>>);

#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    stats: &'a PromptStats,
    layer: usize,
    kv_head: usize,
}

const ASKED: &str = "the method did not ask for this statistic in `prompt_needs`";

impl<'a> PromptHead<'a> {
    /// Number of query heads of this KV head.
    pub fn group(&self) -> usize {
        let shape = self.place().stats.shape;
        shape.heads / shape.kv_heads
    }

    /// The rotated, unscaled queries `[n][d]` of the last `n` tokens (or all), for query head `head` of the group.
    pub fn last_queries(&self, n: usize, head: usize) -> Rows<'a> {
        self.queries(PromptNeed::LastQueries(n), head).1
    }

    /// The positions (ascending) and the rotated, unscaled queries `[n][d]` of `n` evenly spread tokens, for query head `head` of the
    /// group.
    pub fn sampled_queries(&self, n: usize, head: usize) -> (&'a [u32], Rows<'a>) {
        self.queries(PromptNeed::SampledQueries(n), head)
    }

    /// The attention mass `[token]` that each token received from query head `head` of the group. It sums to the number of tokens.
    pub fn attention_mass(&self, head: usize) -> &'a [f32] {
        match self.layer(PromptNeed::AttentionMass) {
            (_, LayerStats::Mass(heads)) => heads[self.head(head)].of_prefix(),
            _ => unreachable!("{ASKED}"),
        }
    }

    /// For each token, the mean of `q·k` of its key with the queries of the next `n` tokens (or as many as follow), over all query
    /// heads of the group; 0 for the last token.
    pub fn following_scores(&self, n: usize) -> &'a [f32] {
        match self.layer(PromptNeed::FollowingScores(n)) {
            (_, LayerStats::Following(heads)) => &heads[self.place().kv_head].scores[0],
            _ => unreachable!("{ASKED}"),
        }
    }

    fn place(&self) -> Place<'a> {
        self.0.expect(ASKED)
    }

    /// The number of a query head within the layer.
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
#[path = "stats_tests.rs"]
mod tests;

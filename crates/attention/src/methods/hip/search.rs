//! The search for the key blocks that a block of query rows attends (HiP §3.1–3.2, Algorithm 1).
//!
//! The candidates are cut into key blocks, and these into as many equal chunks as blocks are to be kept. Each round
//! halves every chunk, scores each half by one representative block and keeps the best halves of all chunks; when
//! chunks are single blocks, they are the result. Keeping `k` of `n` tokens scores `O(k·log(n/k))` keys.
//!
//! A candidate that some query rows must not see counts for the other rows only. In a decode step all rows see all candidates.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::Grouped;
use crate::cost::Cost;
use crate::kv::{KvError, KvRows, MOST_TOKENS};
use spattn_kernels::Elem;
use spattn_kernels::linear;
use spattn_kernels::matmul::{matmul, transposed};
use spattn_kernels::rows::with_rows;
use spattn_kernels::topk::top_k;

/// How a search samples and scores.
#[derive(Debug, Clone, Copy)]
pub(super) struct Search {
    /// The block that represents a branch.
    pub representative: Representative,
    /// Stride of the keys of a block that are scored (`b_sk`).
    pub key_stride: usize,
    /// The key of each stride that is scored.
    pub key_offset: Offset,
    /// How blocks are cut into the first chunks.
    pub chunks: Chunks,
    /// Number of channels that enter a score (`r` of §B.3.1).
    pub channels: Limit,
}

/// The candidates, cut into blocks of `size` tokens; the last one may be shorter.
#[derive(Debug, Clone)]
pub(super) struct KeyBlocks<'a> {
    /// Rotated keys `[token][d]` of the whole context, to be read.
    pub keys: KvRows<'a>,
    /// Width of a head.
    pub d: usize,
    /// The candidates.
    pub candidates: Range<usize>,
    /// Tokens of a block (`b_k`).
    pub size: usize,
}

impl KeyBlocks<'_> {
    /// Number of blocks.
    pub fn count(&self) -> usize {
        self.candidates.len().div_ceil(self.size)
    }

    /// The tokens of one block.
    pub fn tokens(&self, block: usize) -> Range<usize> {
        let start = self.candidates.start + block * self.size;
        start..(start + self.size).min(self.candidates.end)
    }
}

/// Place of a branch's representative: 0 for its first block, 1 for its last, 0.5 for the middle (Table 16).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Representative(pub(super) f64);

impl Representative {
    /// The middle block, rounded up in a branch of even length (§3.1).
    pub const MIDDLE: Self = Self(0.5);

    fn of(self, branch: &Range<usize>) -> usize {
        branch.start + (self.0 * (branch.len() - 1) as f64 + 0.5) as usize
    }
}

impl FromStr for Representative {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let place = match text {
            "first" => 0.0,
            "middle" => 0.5,
            "last" => 1.0,
            fraction => fraction.parse().map_err(|_| ())?,
        };
        if (0.0..=1.0).contains(&place) { Ok(Self(place)) } else { Err(()) }
    }
}

impl fmt::Display for Representative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0.0 => f.write_str("first"),
            0.5 => f.write_str("middle"),
            1.0 => f.write_str("last"),
            fraction => write!(f, "{fraction}"),
        }
    }
}

/// The row or key of a stride that is sampled (§3.2 only names the strides).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offset {
    /// The first.
    First,
    /// The last, as in HiP's code.
    Last,
}

impl Offset {
    /// Samples one of each stride of `places`, and at least one unless `places` is empty.
    pub fn sample(self, places: Range<usize>, stride: usize) -> impl ExactSizeIterator<Item = usize> + use<> {
        let first = match self {
            Self::First => places.start,
            // Fewer places than a stride give their last one; otherwise a last stride that is not whole is not sampled.
            Self::Last => (places.start + stride).min(places.end).saturating_sub(1),
        };
        (first..places.end).step_by(stride)
    }
}

/// How key blocks are cut into the chunks that a search begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chunks {
    /// At equal distances, rounded to whole blocks (Algorithm 1, line 4).
    Equal,
    /// The same, rounded down to multiples of the largest power of two in the number of blocks, divided by the number
    /// of chunks, as in HiP's code. Blocks after the last bound are never found.
    Aligned,
}

impl Chunks {
    /// Cuts `count` blocks into up to `keep` chunks, none empty; `keep` is at most `count`.
    fn cut(self, count: usize, keep: usize) -> Vec<Range<usize>> {
        let step = (1usize << count.ilog2()).div_ceil(keep);
        let bound = |j: usize| match self {
            Self::Equal => (2 * j * count + keep) / (2 * keep),
            Self::Aligned => j * count / keep / step * step,
        };
        (0..keep).map(|j| bound(j)..bound(j + 1)).filter(|chunk| !chunk.is_empty()).collect()
    }
}

/// Randomness in the branch decisions of the middle round, so that searches differ (§C.5).
pub(super) struct Randomness<'a> {
    /// Largest number added to a branch's score, in units of `q·k`.
    pub reach: f32,
    /// Generator of the numbers.
    pub rng: &'a mut ChaCha8Rng,
}

impl Randomness<'_> {
    /// Adds to each score a number drawn uniformly from 0 to `reach`.
    fn raise(&mut self, scores: &mut [f32]) {
        scores.iter_mut().for_each(|score| *score += self.reach * self.rng.random::<f32>());
    }
}

/// The rows of a query block that are scored.
#[derive(Debug, Clone)]
pub(super) struct Queries<'a> {
    /// `[row][d]`.
    pub rows: Cow<'a, [f32]>,
    /// First token that each row does not see; empty if all rows see all candidates.
    pub ends: Vec<usize>,
    /// The rows as they see far tokens at grouped positions; `None` if they see none.
    pub far: Option<FarQueries<'a>>,
}

/// Query rows as they see far tokens, at grouped positions.
#[derive(Debug, Clone)]
pub(super) struct FarQueries<'a> {
    /// Rotated to their grouped positions, `[row][d]`.
    rows: Vec<f32>,
    /// Number of far tokens of each row: the first ones of the context.
    tokens: Vec<usize>,
    grouped: Grouped<'a>,
}

impl<'a> FarQueries<'a> {
    /// Far queries of rows `[row][d]` at `positions`; `None` if no row has far tokens.
    pub fn new(grouped: Grouped<'a>, rows: &[f32], d: usize, positions: &[usize]) -> Option<Self> {
        let tokens: Vec<usize> = positions.iter().map(|position| grouped.grouping.far(*position)).collect();
        let mut rows = rows.to_vec();
        for (row, position) in rows.chunks_exact_mut(d).zip(positions) {
            grouped.turn_queries(row, d, *position);
        }
        tokens.iter().any(|tokens| *tokens > 0).then_some(Self { rows, tokens, grouped })
    }
}

impl Search {
    /// Finds the `keep` best blocks for `queries`, ascending; all blocks if there are no more.
    ///
    /// Of equal scores the lower position is kept. Adds the FLOPs and bytes of the scored keys to `cost`.
    pub fn find(
        &self,
        queries: &Queries<'_>,
        blocks: &KeyBlocks<'_>,
        keep: usize,
        mut randomness: Option<Randomness<'_>>,
        cost: &mut Cost,
    ) -> Result<Vec<usize>, KvError> {
        let count = blocks.count();
        if keep >= count {
            return Ok((0..count).collect());
        }
        let rows = Sides::new(queries, blocks.d, self.channels);
        let mut chunks = self.chunks.cut(count, keep);
        let middle = rounds(&chunks) / 2;
        let mut round = 0;
        while chunks.iter().any(|c| c.len() > 1) {
            let branches: Vec<Range<usize>> = chunks.iter().flat_map(halves).collect();
            let representatives: Vec<usize> = branches.iter().map(|b| self.representative.of(b)).collect();
            let mut scores = self.scores(&rows, blocks, &representatives, cost)?;
            if let (Some(randomness), true) = (&mut randomness, round == middle) {
                randomness.raise(&mut scores);
            }
            chunks = top_k(&scores, keep).into_iter().map(|i| branches[i as usize].clone()).collect();
            round += 1;
        }
        Ok(chunks.into_iter().map(|c| c.start).collect())
    }

    /// For each of the `wanted` blocks, the largest product of a query row with a sampled key.
    fn scores(
        &self,
        rows: &Sides<'_>,
        blocks: &KeyBlocks<'_>,
        wanted: &[usize],
        cost: &mut Cost,
    ) -> Result<Vec<f32>, KvError> {
        let sampled = |block: &usize| self.key_offset.sample(blocks.tokens(*block), self.key_stride);
        let tokens: Vec<u32> = wanted.iter().flat_map(sampled).map(|token| token as u32).collect();
        let largest = rows.largest_products(blocks, &tokens, cost)?;
        let mut first = 0;
        let mut scores = Vec::with_capacity(wanted.len());
        for block in wanted {
            let of_block = first..first + sampled(block).len();
            first = of_block.end;
            scores.push(largest[of_block].iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
        Ok(scores)
    }
}

/// The two branches of a chunk, of which the second may be longer. A single block is not divided.
fn halves(chunk: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let middle = chunk.start + chunk.len() / 2;
    [chunk.start..middle, middle..chunk.end].into_iter().filter(|branch| !branch.is_empty())
}

/// Number of rounds until the longest chunk is a single block.
fn rounds(chunks: &[Range<usize>]) -> u32 {
    chunks.iter().map(Range::len).max().unwrap_or(1).next_power_of_two().trailing_zeros()
}

/// Query rows as they see near tokens, and far tokens if these are at grouped positions.
struct Sides<'a> {
    near: QueryRows<'a>,
    far: Option<QueryRows<'a>>,
}

impl<'a> Sides<'a> {
    fn new(queries: &'a Queries<'_>, d: usize, channels: Limit) -> Self {
        let Queries { rows, ends, far } = queries;
        let Some(FarQueries { rows: turned, tokens: far, grouped }) = far else {
            let sees = ends.iter().map(|end| 0..*end).collect();
            return Self { near: QueryRows::new(rows, sees, d, channels), far: None };
        };
        let end = |row: usize| ends.get(row).copied().unwrap_or(usize::MAX);
        let near_of = |(row, far): (usize, &usize)| *far..end(row);
        let far_of = |(row, far): (usize, &usize)| 0..end(row).min(*far);
        let near = QueryRows::new(rows, far.iter().enumerate().map(near_of).collect(), d, channels);
        let far = QueryRows::new(turned, far.iter().enumerate().map(far_of).collect(), d, channels);
        Self { near, far: Some(QueryRows { grouped: Some(*grouped), ..far }) }
    }

    /// For each of `tokens` (ascending), the largest product of a row with its key; counts the cost of all products.
    fn largest_products(&self, blocks: &KeyBlocks<'_>, tokens: &[u32], cost: &mut Cost) -> Result<Vec<f32>, KvError> {
        let Some(far) = &self.far else { return self.near.largest_products(blocks, tokens, cost) };
        let mut largest = vec![f32::NEG_INFINITY; tokens.len()];
        for rows in [&self.near, far] {
            let seen = rows.seen_of(tokens);
            if !seen.is_empty() {
                let products = rows.largest_products(blocks, &tokens[seen.clone()], cost)?;
                largest[seen].iter_mut().zip(products).for_each(|(most, x)| *most = most.max(x));
            }
        }
        Ok(largest)
    }
}

/// Query rows reduced to the channels that enter a score.
struct QueryRows<'a> {
    /// `[row][width]`.
    values: Cow<'a, [f32]>,
    width: usize,
    /// The tokens that each row sees; empty if all rows see all candidates.
    sees: Vec<Range<usize>>,
    /// Grouped positions to which keys are rotated; `None` if they keep their positions.
    grouped: Option<Grouped<'a>>,
    /// The channels, ascending; `None` for all.
    channels: Option<Vec<u32>>,
}

impl<'a> QueryRows<'a> {
    /// Keeps the channels with the largest `Σ |q_c|` over the rows. With one row this is eq. 6; several rows share
    /// channels, so that each key is read once.
    fn new(queries: &'a [f32], sees: Vec<Range<usize>>, d: usize, channels: Limit) -> Self {
        let Some(width) = channels.0.filter(|r| *r < d) else {
            return Self { values: Cow::Borrowed(queries), width: d, sees, grouped: None, channels: None };
        };
        let mut magnitudes = vec![0.0; d];
        for row in queries.chunks_exact(d) {
            magnitudes.iter_mut().zip(row).for_each(|(m, q)| *m += q.abs());
        }
        let channels = top_k(&magnitudes, width);
        let values = some_channels(queries, d, &channels);
        Self { values: Cow::Owned(values), width, sees, grouped: None, channels: Some(channels) }
    }

    /// Range of `tokens` (ascending) that any row may see.
    fn seen_of(&self, tokens: &[u32]) -> Range<usize> {
        let place = |bound: usize| tokens.partition_point(|token| (*token as usize) < bound);
        let first = self.sees.iter().map(|sees| sees.start).min().unwrap_or(0);
        let end = self.sees.iter().map(|sees| sees.end).max().unwrap_or(usize::MAX);
        place(first)..place(end.max(first))
    }

    /// For each of `tokens`, the largest product of a row with its key; counts the cost of all products.
    fn largest_products(&self, blocks: &KeyBlocks<'_>, tokens: &[u32], cost: &mut Cost) -> Result<Vec<f32>, KvError> {
        let rows = self.values.len() / self.width;
        cost.score_flops += 2 * (rows * tokens.len() * self.width) as u64;
        // If few channels are scored, only these are read of each key.
        cost.kv_bytes += (blocks.keys.bytes_of(tokens) * self.width / blocks.d) as u64;
        let mut largest = vec![f32::NEG_INFINITY; tokens.len()];
        let mut raise = |row: usize, products: &mut [f32]| {
            self.hide(row, tokens, products);
            largest.iter_mut().zip(products).for_each(|(most, x)| *most = most.max(*x));
        };
        if let (None, None) = (&self.channels, &self.grouped)
            && rows <= FEW_ROWS
            && let Some(keys) = blocks.keys.stored(tokens)?
        {
            let mut products = vec![0.0; tokens.len()];
            for (row, query) in self.values.chunks_exact(self.width).enumerate() {
                with_rows!(keys.rows(), rows => linear::scores_of(query, rows, keys.places(), &mut products));
                raise(row, &mut products);
            }
            return Ok(largest);
        }
        let gathered = self.gathered(blocks, tokens)?;
        let mut products = vec![0.0; rows * tokens.len()];
        if rows <= FEW_ROWS {
            linear::scores(&self.values, &gathered, self.width, &mut products);
            products.chunks_exact_mut(tokens.len()).enumerate().for_each(|(row, products)| raise(row, products));
            return Ok(largest);
        }
        matmul(&gathered, self.width, &transposed(&self.values, self.width), rows, &mut products);
        let larger = |a: f32, b: f32| if b > a { b } else { a };
        let of_token = |(products, token): (&mut [f32], &u32)| {
            let hidden = products.iter_mut().zip(&self.sees).filter(|(_, sees)| !sees.contains(&(*token as usize)));
            hidden.for_each(|(product, _)| *product = f32::NEG_INFINITY);
            products.iter().copied().fold(f32::NEG_INFINITY, larger)
        };
        Ok(products.chunks_exact_mut(rows).zip(tokens).map(of_token).collect())
    }

    /// Gives the tokens that a row does not see the lowest score.
    fn hide(&self, row: usize, tokens: &[u32], products: &mut [f32]) {
        let Some(sees) = self.sees.get(row) else { return };
        let hidden = tokens.iter().zip(products).filter(|(token, _)| !sees.contains(&(**token as usize)));
        hidden.for_each(|(_, product)| *product = f32::NEG_INFINITY);
    }

    /// The scored channels of the keys of `tokens`, `[token][width]`, rotated to grouped positions if there are any.
    fn gathered(&self, blocks: &KeyBlocks<'_>, tokens: &[u32]) -> Result<Vec<f32>, KvError> {
        let Some(grouped) = &self.grouped else {
            return match &self.channels {
                None => blocks.keys.gather(tokens),
                Some(channels) => channels_of(blocks, tokens, channels),
            };
        };
        let mut keys = blocks.keys.gather(tokens)?;
        grouped.turn_keys(&mut keys, blocks.d, tokens);
        Ok(match &self.channels {
            None => keys,
            Some(channels) => some_channels(&keys, blocks.d, channels),
        })
    }
}

/// Some channels of `rows`, `[row][channel]`.
fn some_channels(rows: &[f32], d: usize, channels: &[u32]) -> Vec<f32> {
    rows.chunks_exact(d).flat_map(|row| channels.iter().map(|c| row[*c as usize])).collect()
}

/// Some channels of the keys of `tokens`, `[token][channel]`.
fn channels_of(blocks: &KeyBlocks<'_>, tokens: &[u32], channels: &[u32]) -> Result<Vec<f32>, KvError> {
    let Some(keys) = blocks.keys.stored(tokens)? else {
        return Ok(some_channels(&blocks.keys.gather(tokens)?, blocks.d, channels));
    };
    Ok(with_rows!(keys.rows(), rows => {
        let key = |place: &u32| &rows[*place as usize * blocks.d..][..blocks.d];
        keys.places().iter().map(key).flat_map(|key| channels.iter().map(|c| key[*c as usize].to_f32())).collect()
    }))
}

/// Up to this many query rows read keys in place; for more, keys are gathered once.
const FEW_ROWS: usize = 8;

/// A number from 1, or no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limit(pub(super) Option<usize>);

impl FromStr for Limit {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "all" => Ok(Self(None)),
            number => number.parse().ok().filter(|n| (1..=MOST_TOKENS).contains(n)).map(|n| Self(Some(n))).ok_or(()),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("all"),
            Some(n) => write!(f, "{n}"),
        }
    }
}

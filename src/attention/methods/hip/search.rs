//! The search for the key blocks that a block of query rows attends (HiP §3.1–3.2, Algorithm 1).
//!
//! The candidates are cut into key blocks, and these into as many equal chunks as blocks are to be
//! kept. Each round halves every chunk, scores each half by one representative block and keeps the best
//! halves; chunks of a single block are the answer. Keeping `k` of `n` tokens scores `O(k·log(n/k))` keys.
//!
//! Every query row must be allowed to see every candidate: causality is in the choice of candidates,
//! the search masks nothing. A decoding step has one row for each head that shares the mask.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::Limit;
use crate::cost::Cost;
use crate::kernels::cpu::matmul::{matmul, transposed};
use crate::kernels::cpu::rows::with_rows;
use crate::kernels::cpu::topk::top_k;
use crate::kernels::cpu::{Elem, Rows, linear};

/// How a search samples and scores.
#[derive(Debug, Clone, Copy)]
pub(super) struct Search {
    /// Which block of a branch stands for it.
    pub representative: Representative,
    /// Distance of the keys of a block that are scored (`b_sk`).
    pub key_stride: usize,
    /// Channels that enter a score (`r` of §B.3.1).
    pub channels: Limit,
}

/// The candidates cut into blocks of `size` tokens, the last of which may be shorter.
#[derive(Debug, Clone)]
pub(super) struct KeyBlocks<'a> {
    /// Rotated keys `[token][d]` of the whole context.
    pub keys: Rows<'a>,
    /// Width of a head.
    pub d: usize,
    /// Tokens to choose from; every query row may see all of them.
    pub candidates: Range<usize>,
    /// Tokens a block (`b_k`).
    pub size: usize,
}

impl KeyBlocks<'_> {
    /// Number of blocks.
    pub fn count(&self) -> usize {
        self.candidates.len().div_ceil(self.size)
    }

    /// Tokens of one block.
    pub fn tokens(&self, block: usize) -> Range<usize> {
        let start = self.candidates.start + block * self.size;
        start..(start + self.size).min(self.candidates.end)
    }
}

/// Place of a branch's representative: 0 for its first block, 1 for its last, 0.5 for the middle (Table 16).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Representative(f64);

impl Representative {
    /// The middle one, rounded up in a branch of even length (§3.1).
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

/// Randomness of the branch decisions of the middle round, so that searches differ (§C.5).
pub(super) struct Randomness<'a> {
    /// Most that a branch's score is raised by, in units of `q·k`.
    pub reach: f32,
    /// Where the raises are drawn from.
    pub rng: &'a mut ChaCha8Rng,
}

impl Randomness<'_> {
    /// Raises each score by a number drawn uniformly from 0 to `reach`.
    fn raise(&mut self, scores: &mut [f32]) {
        scores.iter_mut().for_each(|score| *score += self.reach * self.rng.random::<f32>());
    }
}

impl Search {
    /// The `keep` blocks found for `queries: [rows][d]`, ascending; all blocks if there are no more.
    ///
    /// Equal scores favour the lower position. Adds the FLOPs and bytes of the keys scored to `cost`.
    pub fn find(
        &self,
        queries: &[f32],
        blocks: &KeyBlocks<'_>,
        keep: usize,
        mut randomness: Option<Randomness<'_>>,
        cost: &mut Cost,
    ) -> Vec<usize> {
        let count = blocks.count();
        if keep >= count {
            return (0..count).collect();
        }
        let rows = QueryRows::new(queries, blocks.d, self.channels);
        let mut chunks = equal_chunks(count, keep);
        let middle = rounds(&chunks) / 2;
        let mut round = 0;
        while chunks.iter().any(|c| c.len() > 1) {
            let branches: Vec<Range<usize>> = chunks.iter().flat_map(halves).collect();
            let representatives: Vec<usize> = branches.iter().map(|b| self.representative.of(b)).collect();
            let mut scores = self.scores(&rows, blocks, &representatives, cost);
            if let (Some(randomness), true) = (&mut randomness, round == middle) {
                randomness.raise(&mut scores);
            }
            chunks = top_k(&scores, keep).into_iter().map(|i| branches[i as usize].clone()).collect();
            round += 1;
        }
        chunks.into_iter().map(|c| c.start).collect()
    }

    /// For each of `wanted` blocks the largest score of a query row and a sampled key.
    fn scores(&self, rows: &QueryRows, blocks: &KeyBlocks<'_>, wanted: &[usize], cost: &mut Cost) -> Vec<f32> {
        let sampled = |block: &usize| blocks.tokens(*block).step_by(self.key_stride);
        let tokens: Vec<u32> = wanted.iter().flat_map(sampled).map(|token| token as u32).collect();
        let largest = rows.largest_products(blocks, &tokens, cost);
        let mut first = 0;
        let mut scores = Vec::with_capacity(wanted.len());
        for block in wanted {
            let of_block = first..first + sampled(block).len();
            first = of_block.end;
            scores.push(largest[of_block].iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
        scores
    }
}

/// `count` blocks as `chunks` chunks that differ by at most one block, bounds rounded to nearest
/// (Algorithm 1, line 4); `chunks` is at most `count`.
fn equal_chunks(count: usize, chunks: usize) -> Vec<Range<usize>> {
    let bound = |j: usize| (2 * j * count + chunks) / (2 * chunks);
    (0..chunks).map(|j| bound(j)..bound(j + 1)).collect()
}

/// The two branches of a chunk; the second is the longer one. A single block is not divided.
fn halves(chunk: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let middle = chunk.start + chunk.len() / 2;
    [chunk.start..middle, middle..chunk.end].into_iter().filter(|branch| !branch.is_empty())
}

/// Rounds until the longest chunk is a single block.
fn rounds(chunks: &[Range<usize>]) -> u32 {
    chunks.iter().map(Range::len).max().unwrap_or(1).next_power_of_two().trailing_zeros()
}

/// Query rows reduced to the channels that enter a score.
struct QueryRows {
    /// `[rows][width]`.
    values: Vec<f32>,
    width: usize,
    /// The channels, ascending; `None` for all.
    channels: Option<Vec<u32>>,
}

impl QueryRows {
    /// Keeps the channels in which the queries are largest, by `Σ |q_c|` over the rows: with one row
    /// eq. 6; with several they share their channels, so that each key is fetched once.
    fn new(queries: &[f32], d: usize, channels: Limit) -> Self {
        let Some(width) = channels.0.filter(|r| *r < d) else {
            return Self { values: queries.to_vec(), width: d, channels: None };
        };
        let mut magnitudes = vec![0.0; d];
        for row in queries.chunks_exact(d) {
            magnitudes.iter_mut().zip(row).for_each(|(m, q)| *m += q.abs());
        }
        let channels = top_k(&magnitudes, width);
        let mut values = Vec::with_capacity(queries.len() / d * width);
        for row in queries.chunks_exact(d) {
            values.extend(channels.iter().map(|c| row[*c as usize]));
        }
        Self { values, width, channels: Some(channels) }
    }

    /// For each of `tokens` the largest product of a row with its key, with the cost of all products.
    fn largest_products(&self, blocks: &KeyBlocks<'_>, tokens: &[u32], cost: &mut Cost) -> Vec<f32> {
        let rows = self.values.len() / self.width;
        let read = tokens.len() * self.width;
        cost.score_flops += 2 * (rows * read) as u64;
        cost.kv_bytes += (read * blocks.keys.elem_bytes()) as u64;
        let mut largest = vec![f32::NEG_INFINITY; tokens.len()];
        let mut raise = |products: &[f32]| largest.iter_mut().zip(products).for_each(|(most, x)| *most = most.max(*x));
        if rows <= FEW_ROWS && self.channels.is_none() {
            let mut products = vec![0.0; tokens.len()];
            for query in self.values.chunks_exact(self.width) {
                with_rows!(blocks.keys, keys => linear::scores_of(query, keys, tokens, &mut products));
                raise(&products);
            }
            return largest;
        }
        let gathered = match &self.channels {
            None => blocks.keys.gather(tokens, self.width),
            Some(channels) => channels_of(blocks, tokens, channels),
        };
        let mut products = vec![0.0; rows * tokens.len()];
        if rows <= FEW_ROWS {
            linear::scores(&self.values, &gathered, self.width, &mut products);
            products.chunks_exact(tokens.len()).for_each(raise);
            return largest;
        }
        matmul(&gathered, self.width, &transposed(&self.values, self.width), rows, &mut products);
        let larger = |a: f32, b: f32| if b > a { b } else { a };
        products.chunks_exact(rows).map(|of_token| of_token.iter().copied().fold(f32::NEG_INFINITY, larger)).collect()
    }
}

/// Some channels of the keys of `tokens`, `[token][channel]`.
fn channels_of(blocks: &KeyBlocks<'_>, tokens: &[u32], channels: &[u32]) -> Vec<f32> {
    with_rows!(blocks.keys, keys => {
        let key = |token: &u32| &keys[*token as usize * blocks.d..][..blocks.d];
        tokens.iter().map(key).flat_map(|key| channels.iter().map(|c| key[*c as usize].to_f32())).collect()
    })
}

/// Up to so many query rows read each key where it lies; for more it is gathered once.
const FEW_ROWS: usize = 8;

//! The mean score of each token with the queries that follow it.

use std::collections::VecDeque;
use std::ops::Range;

use rayon::prelude::*;

use super::piece::Piece;
use crate::calibration::collector::HostChunk;
use crate::kv::KvError;

/// The following scores of one KV head: for each token, the mean of `q·k` with the queries of the next `n` tokens.
#[derive(Debug, Clone)]
pub(super) struct HeadFollowing {
    /// `[token]` for each planned length of the prefix.
    pub(super) scores: VecDeque<Vec<f32>>,
    /// The position of the first row of `sums`.
    pub(super) first: usize,
    /// Prefix sums `[position][d]`: the sum of the block's queries before each position. Rows that are no longer needed are
    /// dropped.
    pub(super) sums: Vec<f64>,
}

/// Adds to the scores of each KV head the piece's contribution. Each query contributes to the tokens at most `n` before it,
/// divided by the number of queries that follow the token, so that the sum over all pieces is the mean.
///
/// A block's contribution to a token is added once, when the last of its queries that reach the token has been read.
pub(super) fn add_following_scores(
    piece: &Piece<'_>,
    n: usize,
    lengths: &[usize],
    heads: &mut [HeadFollowing],
) -> Result<(), KvError> {
    let (d, block, Range { start, end }) = (piece.chunk.d(), piece.block, piece.tokens.clone());
    let group = piece.group();
    let chunk = piece.chunk.on_host()?;
    heads.par_iter_mut().enumerate().for_each(|(kv_head, head)| {
        if start == block {
            (head.first, head.sums) = (block, vec![0.0; d]);
        }
        head.extend_sums(piece, &chunk, kv_head * group..(kv_head + 1) * group);
        let HeadFollowing { scores, first, sums } = head;
        let before = |position: usize| &sums[(position - *first) * d..][..d];
        let keys = chunk.kv().keys.head(kv_head);
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
    Ok(())
}

impl HeadFollowing {
    /// Extends `sums` with the piece's queries, summed over the query heads `heads`.
    fn extend_sums(&mut self, piece: &Piece<'_>, chunk: &HostChunk<'_>, heads: Range<usize>) {
        let d = chunk.d();
        self.sums.reserve(piece.tokens.len() * d);
        for token in piece.tokens.clone() {
            self.sums.extend_from_within(self.sums.len() - d..);
            let at = self.sums.len() - d;
            for head in heads.clone() {
                self.sums[at..]
                    .iter_mut()
                    .zip(chunk.query(token - chunk.first, head))
                    .for_each(|(sum, q)| *sum += f64::from(*q));
            }
        }
    }

    /// Drops the rows of `sums` that the rest of the block does not need.
    fn forget(&mut self, piece: &Piece<'_>, n: usize, lengths: &[usize]) {
        if piece.ends_block(*lengths.last().expect("at least one prefix length")) {
            self.sums = Vec::new();
            return;
        }
        let first = self.first.max(piece.tokens.end.saturating_sub(n));
        self.sums.drain(..(first - self.first) * piece.chunk.d());
        self.sums.shrink_to_fit();
        self.first = first;
    }
}

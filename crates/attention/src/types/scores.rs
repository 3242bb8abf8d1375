//! Exact products of queries with stored keys, and the queries of a GQA group in the form that scorers take.

use crate::cost::Cost;
use crate::kv::{KvError, KvRows};
use crate::types::attention_spec::SoftmaxScale;
use spattn_kernels::matmul::{matmul, transposed};
use spattn_kernels::{Rows, linear};

/// More queries than this are multiplied as a matrix. With fewer, each query's results have the same bits as if it were
/// alone.
pub(crate) const FEW_QUERIES: usize = 16;

/// Writes the products of `queries: [g][d]` with stored rows into `out: [g][rows]`.
pub(crate) fn score_into(queries: &[f32], rows: Rows<'_>, d: usize, out: &mut [f32]) {
    if queries.len() > FEW_QUERIES * d && rows.elements() > 0 {
        return matmul(queries, d, &transposed(&rows.to_f32(), d), rows.elements() / d, out);
    }
    match rows {
        Rows::F32(data) => linear::scores(queries, data, d, out),
        Rows::F16(data) => linear::scores(queries, data, d, out),
        Rows::Bf16(data) => linear::scores(queries, data, d, out),
    }
}

/// Writes the products of `queries: [query][d]` with the stored rows listed in `some` into `out: [query][listed]`.
pub(crate) fn score_some(queries: &[f32], rows: Rows<'_>, d: usize, some: &[u32], out: &mut [f32]) {
    match rows {
        Rows::F32(data) => linear::scores_of_each(queries, data, d, some, out),
        Rows::F16(data) => linear::scores_of_each(queries, data, d, some, out),
        Rows::Bf16(data) => linear::scores_of_each(queries, data, d, some, out),
    }
}

/// Queries of a GQA group, from one step or from several rows of a prompt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupQueries<'a> {
    /// Layer, from 0.
    pub layer: usize,
    /// KV head, from 0.
    pub kv_head: usize,
    /// Rotated, unscaled, `[group][row][d]`.
    pub queries: &'a [f32],
    /// Rows of each head; 1 in a decode step.
    pub rows: usize,
    /// Channels of a head.
    pub d: usize,
    /// Factor of the logits.
    pub scale: SoftmaxScale,
}

impl<'a> GroupQueries<'a> {
    /// Number of queries, over all heads and rows.
    pub fn count(&self) -> usize {
        self.queries.len() / self.d
    }

    /// Number of query heads in the group.
    pub fn group(&self) -> usize {
        self.count() / self.rows
    }

    /// Returns the rows `[row][d]` of one head.
    pub fn head(&self, head: usize) -> &'a [f32] {
        &self.queries[head * self.rows * self.d..][..self.rows * self.d]
    }

    /// Unscaled products of every query with every row, `[query][row]`; counts the FLOPs, not the bytes.
    pub fn dots(&self, rows: Rows<'_>, cost: &mut Cost) -> Vec<f32> {
        dots(self.queries, rows, self.d, cost)
    }

    /// Like [`dots`](Self::dots), for rows in context, wherever they are stored.
    ///
    /// # Errors
    /// If the rows cannot be read.
    pub fn dots_in_context(&self, rows: KvRows<'_>, cost: &mut Cost) -> Result<Vec<f32>, KvError> {
        let mut scores = vec![0.0; self.count() * rows.tokens()];
        score_context(self.queries, rows, &mut scores)?;
        cost.score_flops += 2 * (scores.len() * self.d) as u64;
        Ok(scores)
    }
}

/// Writes the products of `queries: [g][d]` with rows in context into `out: [g][rows]`. Rows in memory are not copied.
///
/// # Errors
/// If the rows cannot be read.
pub(crate) fn score_context(queries: &[f32], rows: KvRows<'_>, out: &mut [f32]) -> Result<(), KvError> {
    let (d, all) = (rows.d(), rows.tokens());
    rows.scan(|first, piece| {
        let tokens = piece.elements() / d;
        if queries.len() == d {
            return score_into(queries, piece, d, &mut out[first..first + tokens]);
        }
        if tokens == all {
            return score_into(queries, piece, d, out);
        }
        let mut own = vec![0.0; queries.len() / d * tokens];
        score_into(queries, piece, d, &mut own);
        out.chunks_exact_mut(all).zip(own.chunks_exact(tokens)).for_each(|(out, own)| {
            out[first..first + tokens].copy_from_slice(own);
        });
    })
}

/// Calls `visit` with the number of each of the queries `[query][d]` and its products with all rows in context, which
/// `visit` may change. Rows are read once for every [`FEW_QUERIES`] queries, or once for all if they are not in memory.
///
/// # Errors
/// If the rows cannot be read.
pub(crate) fn score_each(
    queries: &[f32],
    rows: KvRows<'_>,
    mut visit: impl FnMut(usize, &mut [f32]),
) -> Result<(), KvError> {
    let (d, all) = (rows.d(), rows.tokens());
    if rows.in_memory().is_some() {
        let mut scores = vec![0.0; FEW_QUERIES.min(queries.len() / d) * all];
        for (batch, queries) in queries.chunks(FEW_QUERIES * d).enumerate() {
            let scores = &mut scores[..queries.len() / d * all];
            score_context(queries, rows, scores)?;
            let each = scores.chunks_exact_mut(all.max(1)).enumerate();
            each.for_each(|(i, scores)| visit(batch * FEW_QUERIES + i, scores));
        }
        return Ok(());
    }
    let mut scores = vec![0.0; queries.len() / d * all];
    rows.scan(|first, piece| {
        for (query, out) in queries.chunks_exact(d).zip(scores.chunks_exact_mut(all)) {
            score_into(query, piece, d, &mut out[first..][..piece.elements() / d]);
        }
    })?;
    scores.chunks_exact_mut(all.max(1)).enumerate().for_each(|(i, scores)| visit(i, scores));
    Ok(())
}

/// Writes the products of `queries: [query][d]` with the listed rows in context, `[query][listed]`.
///
/// # Errors
/// If the rows cannot be read.
pub(crate) fn score_some_in_context(
    queries: &[f32],
    rows: KvRows<'_>,
    some: &[u32],
    out: &mut [f32],
) -> Result<(), KvError> {
    match rows.stored(some)? {
        Some(stored) => score_some(queries, stored.rows(), rows.d(), stored.places(), out),
        None => linear::scores(queries, &rows.gather(some)?, rows.d(), out),
    }
    Ok(())
}

/// Joins, for each of `rows` rows, the first `kept` columns of `left` and all of `right`.
pub(crate) fn joined_scores(rows: usize, (left, kept): (&[f32], usize), right: &[f32]) -> Vec<f32> {
    let (l, r) = (left.len() / rows, right.len() / rows);
    let mut joined = Vec::with_capacity(rows * (kept + r));
    for row in 0..rows {
        joined.extend_from_slice(&left[row * l..][..kept]);
        joined.extend_from_slice(&right[row * r..][..r]);
    }
    joined
}

/// Products of `queries: [query][width]` with stored rows of that width, `[query][row]`; counts the FLOPs, not the bytes.
pub(crate) fn dots(queries: &[f32], rows: Rows<'_>, width: usize, cost: &mut Cost) -> Vec<f32> {
    let (count, stored) = (queries.len() / width, rows.elements() / width);
    let mut scores = vec![0.0; count * stored];
    score_into(queries, rows, width, &mut scores);
    cost.score_flops += 2 * (count * rows.elements()) as u64;
    scores
}

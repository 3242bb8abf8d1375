//! Exact products of queries with stored keys, and the queries of a GQA group in the form that scorers take.

use crate::cost::Cost;
use crate::types::attention_spec::SoftmaxScale;
use spattn_kernels::matmul::{matmul, transposed};
use spattn_kernels::{Joined, Rows, linear};

/// More queries than this are multiplied as a matrix. With fewer, a query's results are the same bits as if it were alone.
pub(crate) const FEW_QUERIES: usize = 16;

/// Products of `queries: [g][d]` with stored rows, into `out: [g][rows]`.
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

/// Products of `query: [d]` with the stored rows that `some` names.
pub(crate) fn score_some(query: &[f32], rows: Rows<'_>, some: &[u32], out: &mut [f32]) {
    match rows {
        Rows::F32(data) => linear::scores_of(query, data, some, out),
        Rows::F16(data) => linear::scores_of(query, data, some, out),
        Rows::Bf16(data) => linear::scores_of(query, data, some, out),
    }
}

/// Queries of a GQA group: those of one step, or of some rows of a prompt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupQueries<'a> {
    /// Layer, from 0.
    pub layer: usize,
    /// KV head, from 0.
    pub kv_head: usize,
    /// Rotated, unscaled, `[group][row][d]`.
    pub queries: &'a [f32],
    /// Rows of each head; 1 in a step.
    pub rows: usize,
    /// Channels of a head.
    pub d: usize,
    /// Factor of the logits.
    pub scale: SoftmaxScale,
}

impl<'a> GroupQueries<'a> {
    /// Queries of all heads and rows.
    pub fn count(&self) -> usize {
        self.queries.len() / self.d
    }

    /// Query heads in the group.
    pub fn group(&self) -> usize {
        self.count() / self.rows
    }

    /// The rows `[row][d]` of one head.
    pub fn head(&self, head: usize) -> &'a [f32] {
        &self.queries[head * self.rows * self.d..][..self.rows * self.d]
    }

    /// Unscaled products of every query with every row, `[query][row]`; counts the FLOPs, not the bytes.
    pub fn dots(&self, rows: Rows<'_>, cost: &mut Cost) -> Vec<f32> {
        dots(self.queries, rows, self.d, cost)
    }

    /// As [`dots`](Self::dots), for rows in two slices.
    pub fn dots_joined(&self, rows: Joined<'_>, cost: &mut Cost) -> Vec<f32> {
        let [front, back] = rows.pieces();
        let before = self.dots(front, cost);
        match back.elements() {
            0 => before,
            _ => joined_scores(self.count(), (&before, front.elements() / self.d), &self.dots(back, cost)),
        }
    }
}

/// For each of `rows` rows, the first `kept` columns of `left`, then all of `right`.
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

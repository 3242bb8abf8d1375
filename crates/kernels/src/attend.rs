//! Attention of a group of queries over stored rows: contiguous ranges, gathered lists, given weights.
//!
//! All parts are folded into one [`Accumulator`] by the online softmax, so that a selection made of
//! several pieces (sink, window, selection, tail) comes out as one softmax over their union.

use std::ops::Range;

use super::linear::{dot_tile, prefetch_row};
use super::logit_rule::cap_logits;
use super::pieces::{PIECE, deal_columns};
use super::rows::{Elem, Rows, with_rows};
use super::simd::{Simd, dispatch};
use spattn_base::clock;

/// Tokens handled between two rescalings of the running sums.
const BLOCK: usize = 256;

/// Running softmax attention of `g` queries: maximum and sum of exponentials, and the weighted values.
#[derive(Debug, Clone)]
pub struct Accumulator {
    d: usize,
    max: Vec<f32>,
    sum: Vec<f32>,
    values: Vec<f32>,
    scratch: Vec<f32>,
    soft_cap: Option<f32>,
}

impl Accumulator {
    /// An empty accumulator for `g` queries of width `d`.
    pub fn new(g: usize, d: usize) -> Self {
        Self {
            d,
            max: vec![f32::NEG_INFINITY; g],
            sum: vec![0.0; g],
            values: vec![0.0; g * d],
            scratch: vec![0.0; g * BLOCK],
            soft_cap: None,
        }
    }

    /// The same, empty, where logits pass `cap·tanh(x/cap)` before the softmax.
    pub fn with_soft_cap(self, soft_cap: Option<f32>) -> Self {
        Self { soft_cap, ..self }
    }

    /// Adds a logit without a value to the denominator of query `h`.
    pub fn add_sink(&mut self, h: usize, logit: f32) {
        let max = self.max[h].max(logit);
        let (old, new) = ((self.max[h] - max).exp(), (logit - max).exp());
        self.max[h] = max;
        self.sum[h] = self.sum[h] * old + new;
        self.values[h * self.d..][..self.d].iter_mut().for_each(|v| *v *= old);
    }

    /// Number of queries.
    pub fn queries(&self) -> usize {
        self.max.len()
    }

    /// Log of the sum of exponentials that query `h` attended; `-inf` if it attended nothing.
    pub fn log_sum_exp(&self, h: usize) -> f32 {
        self.max[h] + self.sum[h].ln()
    }

    /// Adds to query `h` a partial attention, given as its log-sum-exp and its normalised output.
    pub fn merge(&mut self, h: usize, log_sum_exp: f32, output: &[f32]) {
        if log_sum_exp == f32::NEG_INFINITY {
            return;
        }
        let max = self.max[h].max(log_sum_exp);
        let (old, new) = ((self.max[h] - max).exp(), (log_sum_exp - max).exp());
        self.max[h] = max;
        self.sum[h] = self.sum[h] * old + new;
        for (v, o) in self.values[h * self.d..][..self.d].iter_mut().zip(output) {
            *v = *v * old + o * new;
        }
    }

    /// Adds the partial sums of `other`, which holds the same queries over other tokens.
    pub fn absorb(&mut self, other: &Accumulator) {
        assert_eq!(
            (self.d, self.queries()),
            (other.d, other.queries()),
            "width and number of queries differ between accumulators"
        );
        for h in 0..self.queries() {
            let row = h * self.d..(h + 1) * self.d;
            let own = (&mut self.max[h], &mut self.sum[h], &mut self.values[row.clone()]);
            merge_sums(own, (other.max[h], other.sum[h], &other.values[row]));
        }
    }

    /// Adds `other`, which holds one query, to query `h`.
    pub fn merge_query(&mut self, h: usize, other: &Accumulator) {
        let mut output = vec![0.0; self.d];
        other.finish(&mut output);
        self.merge(h, other.log_sum_exp(0), &output);
    }

    /// Writes what query `h` attended as a partial softmax of `2 + d` numbers: the maximum of the logits, the sum of the exponentials of
    /// logits less the maximum, and the sums of values weighted by these exponentials. If the query attended nothing, the maximum is `-inf`
    /// and the rest 0.
    ///
    /// # Panics
    /// If `partial` has another length.
    pub fn write_partial(&self, h: usize, partial: &mut [f32]) {
        assert_eq!(partial.len(), 2 + self.d, "a partial softmax has two numbers beside {} sums of values", self.d);
        (partial[0], partial[1]) = (self.max[h], self.sum[h]);
        partial[2..].copy_from_slice(&self.values[h * self.d..][..self.d]);
    }

    /// Adds to query `h` a partial softmax written by [`write_partial`](Self::write_partial).
    ///
    /// # Panics
    /// If `partial` has another length.
    pub fn merge_partial(&mut self, h: usize, partial: &[f32]) {
        let d = self.d;
        assert_eq!(partial.len(), 2 + d, "a partial softmax has two numbers beside {d} sums of values");
        let row = h * d..(h + 1) * d;
        merge_sums(
            (&mut self.max[h], &mut self.sum[h], &mut self.values[row]),
            (partial[0], partial[1], &partial[2..]),
        );
    }

    /// Writes the attention outputs `[g][d]`; zeros for a query that attended nothing.
    pub fn finish(&self, out: &mut [f32]) {
        for (h, out) in out.chunks_exact_mut(self.d).enumerate() {
            let scale = if self.sum[h] > 0.0 { 1.0 / self.sum[h] } else { 0.0 };
            for (o, v) in out.iter_mut().zip(&self.values[h * self.d..]) {
                *o = v * scale;
            }
        }
    }
}

/// Merges a maximum, a sum of exponentials and sums of values into others; each are relative to their own maximum.
fn merge_sums(own: (&mut f32, &mut f32, &mut [f32]), other: (f32, f32, &[f32])) {
    if other.0 == f32::NEG_INFINITY {
        return;
    }
    let max = own.0.max(other.0);
    let (shrink, more) = ((*own.0 - max).exp(), (other.0 - max).exp());
    *own.0 = max;
    *own.1 = *own.1 * shrink + other.1 * more;
    for (v, o) in own.2.iter_mut().zip(other.2) {
        *v = *v * shrink + o * more;
    }
}

/// Attends `queries: [g][d]` (already scaled) to all rows of `keys` and `values: [tokens][d]`.
pub fn attend_range(queries: &[f32], keys: Rows, values: Rows, acc: &mut Accumulator) {
    let (tokens, d) = (keys.elements() / acc.d, acc.d);
    in_pieces(tokens, acc, |piece, acc| {
        let (keys, values) = (keys.slice(piece.clone(), d), values.slice(piece.clone(), d));
        attend_any(queries, keys, values, All(piece.len()), &[], acc);
    });
}

/// Attends `queries: [g][d]` (already scaled) to the rows in `tokens`.
///
/// `log_bias`, if not empty, is subtracted from each token's logit (`ln u` of MagicPIG's estimator).
pub fn attend_list(queries: &[f32], keys: Rows, values: Rows, tokens: &[u32], log_bias: &[f32], acc: &mut Accumulator) {
    assert!(
        log_bias.is_empty() || log_bias.len() == tokens.len(),
        "{} biases for {} tokens",
        log_bias.len(),
        tokens.len()
    );
    let available = keys.elements() / acc.d;
    assert!(tokens.iter().all(|&t| (t as usize) < available), "a token is not below {available}");
    in_pieces(tokens.len(), acc, |piece, acc| {
        let bias = log_bias.get(piece.clone()).unwrap_or(&[]);
        attend_any(queries, keys, values, List(&tokens[piece]), bias, acc);
    });
}

/// Attends the rows in `tokens` for one query whose products with their keys are known: `scores` are those of the scaled query, one for each
/// token. As [`attend_list`], to the same bits as far as the scores have those of its products, without reading keys.
///
/// # Panics
/// If `acc` has more than one query, a token is out of range, or the lists differ in length.
pub fn attend_scored(scores: &[f32], values: Rows, tokens: &[u32], log_bias: &[f32], acc: &mut Accumulator) {
    assert_eq!(acc.queries(), 1, "scores are those of one query");
    assert_eq!(scores.len(), tokens.len(), "scores and tokens differ in number");
    assert!(log_bias.is_empty() || log_bias.len() == tokens.len(), "biases and tokens differ in number");
    let available = values.elements() / acc.d;
    assert!(tokens.iter().all(|&t| (t as usize) < available), "a token is not below {available}");
    in_pieces(tokens.len(), acc, |piece, acc| {
        let bias = log_bias.get(piece.clone()).unwrap_or(&[]);
        let (scores, tokens) = (&scores[piece.clone()], &tokens[piece]);
        with_rows!(values, values => attend_values(scores, values, tokens, bias, acc));
    });
}

/// Attends `tokens` tokens into `acc`. More than one [piece](PIECE) is dealt out to threads; partial sums are added in the pieces' order.
fn in_pieces(tokens: usize, acc: &mut Accumulator, attend: impl Fn(Range<usize>, &mut Accumulator) + Sync) {
    if tokens <= PIECE {
        return attend(0..tokens, acc);
    }
    let (g, d, soft_cap) = (acc.queries(), acc.d, acc.soft_cap);
    let parts = clock::deal(0..tokens.div_ceil(PIECE), |piece| {
        let mut part = Accumulator::new(g, d).with_soft_cap(soft_cap);
        attend(piece * PIECE..((piece + 1) * PIECE).min(tokens), &mut part);
        part
    });
    parts.iter().for_each(|part| acc.absorb(part));
}

/// `out += Σ_i weights[i] · values[tokens[i]]`, in the order of `tokens`.
///
/// # Panics
/// If a token is out of range, or the lists are not of one length.
pub fn weighted_list(values: Rows, tokens: &[u32], weights: &[f32], out: &mut [f32]) {
    weighted_lists(values, tokens, weights, 1, out);
}

/// As [`weighted_list`], for several sets of weights `[set][token]` and outputs `[set][d]`: each row is read once for all sets.
///
/// # Panics
/// If a token is out of range, or there are not as many weights and outputs.
pub fn weighted_lists(values: Rows, tokens: &[u32], weights: &[f32], sets: usize, out: &mut [f32]) {
    assert_eq!(tokens.len() * sets, weights.len(), "weights and tokens differ in number");
    assert!(out.len().is_multiple_of(sets), "{} outputs are no multiple of {sets} sets of weights", out.len());
    let d = out.len() / sets;
    with_rows!(values, data => deal_columns(out, d, |first, out| weighted_rows(data, (d, first), tokens, weights, out)))
}

dispatch! {
    /// Adds the weighted rows' columns to `out: [set][column]`. `place` is the width of a row and the first of these columns; how many
    /// columns there are is the length of `out`'s rows.
    fn weighted_rows[T: Elem](
        data: &[T], place: (usize, usize), tokens: &[u32], weights: &[f32], out: &mut [&mut [f32]],
    ) = weighted_rows_kernel
}

/// Columns whose sums stay in registers while all rows are added.
const SUMS: usize = 64;
/// Columns, over all sets, whose sums stay in the first-level cache. Rows wider than this are read in long stretches.
const WIDE: usize = 2048;

/// Adds columns `first..first + width` of the weighted rows to columns `to..to + width` of `out: [set][column]`. Four rows at a time are
/// added, in the order of `tokens`.
#[inline(always)]
fn add_wide_rows<T: Elem>(
    data: &[T],
    (d, first): (usize, usize),
    (to, width): (usize, usize),
    tokens: &[u32],
    weights: &[f32],
    out: &mut [&mut [f32]],
) {
    let columns = |token: u32| &data[token as usize * d + first..][..width];
    let (fours, rest) = tokens.as_chunks::<4>();
    for (i, &[a, b, c, e]) in fours.iter().enumerate() {
        let (a, b, c, e) = (columns(a), columns(b), columns(c), columns(e));
        for (weights, out) in weights.chunks_exact(tokens.len()).zip(&mut *out) {
            let &[wa, wb, wc, we] = weights[4 * i..].first_chunk().expect("there is one weight for each row");
            for (i, sum) in out[to..][..width].iter_mut().enumerate() {
                *sum = *sum + wa * a[i].to_f32() + wb * b[i].to_f32() + wc * c[i].to_f32() + we * e[i].to_f32();
            }
        }
    }
    for (i, &token) in rest.iter().enumerate() {
        let row = columns(token);
        for (weights, out) in weights.chunks_exact(tokens.len()).zip(&mut *out) {
            let w = weights[4 * fours.len() + i];
            for (sum, v) in out[to..][..width].iter_mut().zip(row) {
                *sum += w * v.to_f32();
            }
        }
    }
}

#[inline(always)]
unsafe fn weighted_rows_kernel<S: Simd, T: Elem>(
    data: &[T],
    (d, first): (usize, usize),
    tokens: &[u32],
    weights: &[f32],
    out: &mut [&mut [f32]],
) {
    let width = out.first().map_or(0, |out| out.len());
    if tokens.is_empty() || width == 0 {
        return;
    }
    if d > WIDE {
        let step = (WIDE / out.len()).max(SUMS);
        for to in (0..width).step_by(step) {
            add_wide_rows(data, (d, first + to), (to, step.min(width - to)), tokens, weights, out);
        }
        return;
    }
    for (weights, out) in weights.chunks_exact(tokens.len()).zip(out) {
        let (blocks, rest) = out.as_chunks_mut::<SUMS>();
        for (first, sums) in (first..).step_by(SUMS).zip(blocks) {
            for (&t, &w) in tokens.iter().zip(weights) {
                let row: &[T; SUMS] =
                    data[t as usize * d + first..].first_chunk().expect("a row has a number for each output");
                sums.iter_mut().zip(row).for_each(|(sum, v)| *sum += w * v.to_f32());
            }
        }
        let first = first + width - rest.len();
        for (&t, &w) in tokens.iter().zip(weights) {
            let row = &data[t as usize * d + first..][..rest.len()];
            rest.iter_mut().zip(row).for_each(|(sum, v)| *sum += w * v.to_f32());
        }
    }
}

/// Which rows a kernel walks over.
trait Walk: Copy + Send + Sync {
    fn len(self) -> usize;
    /// Row of the `i`-th token. For `i < len`, the public functions have checked that it is in range.
    fn row(self, i: usize) -> usize;
}

#[derive(Clone, Copy)]
struct All(usize);
impl Walk for All {
    #[inline(always)]
    fn len(self) -> usize {
        self.0
    }
    #[inline(always)]
    fn row(self, i: usize) -> usize {
        i
    }
}

#[derive(Clone, Copy)]
struct List<'a>(&'a [u32]);
impl Walk for List<'_> {
    #[inline(always)]
    fn len(self) -> usize {
        self.0.len()
    }
    #[inline(always)]
    fn row(self, i: usize) -> usize {
        self.0[i] as usize
    }
}

fn attend_any<W: Walk>(q: &[f32], keys: Rows, values: Rows, walk: W, bias: &[f32], acc: &mut Accumulator) {
    assert_eq!(q.len(), acc.values.len(), "queries and accumulator differ in length");
    assert_eq!(keys.elements(), values.elements(), "keys and values differ in number");
    match (keys, values) {
        (Rows::F32(k), Rows::F32(v)) => attend(q, k, v, walk, bias, acc),
        (Rows::F16(k), Rows::F16(v)) => attend(q, k, v, walk, bias, acc),
        (Rows::Bf16(k), Rows::Bf16(v)) => attend(q, k, v, walk, bias, acc),
        _ => unreachable!("keys and values are stored in one type"),
    }
}

dispatch! {
    fn attend[T: Elem, W: Walk](
        q: &[f32], k: &[T], v: &[T], walk: W, bias: &[f32], acc: &mut Accumulator,
    ) = attend_kernel
}

#[inline(always)]
unsafe fn attend_kernel<S: Simd, T: Elem, W: Walk>(
    q: &[f32],
    k: &[T],
    v: &[T],
    walk: W,
    bias: &[f32],
    acc: &mut Accumulator,
) {
    let (g, d) = (acc.max.len(), acc.d);
    let mut begin = 0;
    while begin < walk.len() {
        let n = (walk.len() - begin).min(BLOCK);
        let block = WalkedBlock { k, v, d, walk, begin, n };
        // SAFETY: the CPU supports `S` (caller). Rows `walk.row(begin..begin + n)` were checked against
        // the length of `k` by the public functions, and `v` is as long; scratch holds `g * BLOCK`.
        unsafe {
            let mut h = 0;
            while h < g {
                h += match g - h {
                    4.. => logits::<S, T, W, 4>(q, block, h, &mut acc.scratch),
                    2 | 3 => logits::<S, T, W, 2>(q, block, h, &mut acc.scratch),
                    _ => logits::<S, T, W, 1>(q, block, h, &mut acc.scratch),
                };
            }
            for h in 0..g {
                weigh_block::<S>(acc, h, n, bias.get(begin..begin + n).unwrap_or(&[]));
            }
            let mut h = 0;
            while h < g {
                h += match g - h {
                    4.. => add_values::<S, T, W, 4>(block, h, acc),
                    2 | 3 => add_values::<S, T, W, 2>(block, h, acc),
                    _ => add_values::<S, T, W, 1>(block, h, acc),
                };
            }
        }
        begin += n;
    }
}

dispatch! {
    fn attend_values[T: Elem](
        scores: &[f32], v: &[T], tokens: &[u32], bias: &[f32], acc: &mut Accumulator,
    ) = attend_values_kernel
}

/// Values that are prefetched ahead of their use where keys are not read, in rows.
const VALUES_AHEAD: usize = 16;

#[inline(always)]
unsafe fn attend_values_kernel<S: Simd, T: Elem>(
    scores: &[f32],
    v: &[T],
    tokens: &[u32],
    bias: &[f32],
    acc: &mut Accumulator,
) {
    for token in tokens.iter().take(VALUES_AHEAD) {
        // SAFETY: the CPU supports `S` (caller).
        unsafe { prefetch_row::<S, T>(v, acc.d, *token as usize) };
    }
    for begin in (0..tokens.len()).step_by(BLOCK) {
        let n = (tokens.len() - begin).min(BLOCK);
        acc.scratch[..n].copy_from_slice(&scores[begin..begin + n]);
        // SAFETY: there is one query, a block has at most `BLOCK` tokens, and the public function checked that their rows lie in `v`; the CPU
        // supports `S` (caller).
        unsafe {
            weigh_block::<S>(acc, 0, n, bias.get(begin..begin + n).unwrap_or(&[]));
            add_rows::<S, T>(v, &tokens[begin..], n, acc);
        }
    }
}

/// Adds the values of the first `n` of `tokens` by the weights in the scratch of the only query, four rows at a time. Later rows are
/// prefetched. Every column is summed in the tokens' order, as by [`add_values`].
///
/// # Safety
/// The rows of the first `n` tokens lie in `v`; `n` is at most [`BLOCK`]; the CPU supports `S`.
#[inline(always)]
unsafe fn add_rows<S: Simd, T: Elem>(v: &[T], tokens: &[u32], n: usize, acc: &mut Accumulator) {
    let d = acc.d;
    let whole = d / S::LANES * S::LANES;
    let mut i = 0;
    while i < n {
        for later in tokens.iter().skip(i + VALUES_AHEAD).take(4) {
            // SAFETY: the CPU supports `S` (caller).
            unsafe { prefetch_row::<S, T>(v, d, *later as usize) };
        }
        // SAFETY: rows `i..i + R` are among the first `n` (caller), and columns below `whole` within a row.
        i += unsafe {
            match n - i {
                4.. => add_few_rows::<S, T, 4>(v, (&tokens[i..], &acc.scratch[i..]), whole, &mut acc.values),
                _ => add_few_rows::<S, T, 1>(v, (&tokens[i..], &acc.scratch[i..]), whole, &mut acc.values),
            }
        };
    }
    for c in whole..d {
        for (token, weight) in tokens[..n].iter().zip(&acc.scratch) {
            acc.values[c] += weight * v[*token as usize * d + c].to_f32();
        }
    }
}

/// Adds the first `columns` columns of `R` weighted rows to `sums: [d]`; returns `R`.
///
/// # Safety
/// There are `R` tokens and weights; the tokens' rows of `d` lie in `v`; `columns` is a multiple of the lanes and at most `d`; the CPU supports
/// `S`.
#[inline(always)]
unsafe fn add_few_rows<S: Simd, T: Elem, const R: usize>(
    v: &[T],
    (tokens, weights): (&[u32], &[f32]),
    columns: usize,
    sums: &mut [f32],
) -> usize {
    // SAFETY: every access is at a column below `columns` of a row that lies in `v`, or of the sums (caller).
    unsafe {
        let (mut rows, mut by) = ([v.as_ptr(); R], [S::splat(0.0); R]);
        for j in 0..R {
            rows[j] = rows[j].add(tokens[j] as usize * sums.len());
            by[j] = S::splat(weights[j]);
        }
        let mut c = 0;
        while c < columns {
            let mut sum = S::load(sums.as_ptr().add(c));
            for j in 0..R {
                sum = S::fma(by[j], T::load::<S>(rows[j].add(c)), sum);
            }
            S::store(sums.as_mut_ptr().add(c), sum);
            c += S::LANES;
        }
    }
    R
}

/// Turns the products of query `h` with the `n` tokens of a block, which are in its scratch, into weights, and rescales the query's sums.
///
/// # Safety
/// `h` is a query of `acc`, and `n` is at most [`BLOCK`]; the CPU supports `S`.
#[inline(always)]
unsafe fn weigh_block<S: Simd>(acc: &mut Accumulator, h: usize, n: usize, bias: &[f32]) {
    let row = &mut acc.scratch[h * BLOCK..][..BLOCK];
    if let Some(cap) = acc.soft_cap {
        cap_logits(&mut row[..n], 1.0, cap);
    }
    for (x, b) in row.iter_mut().zip(bias) {
        *x -= b;
    }
    let padded = n.next_multiple_of(S::LANES);
    row[n..padded].fill(f32::NEG_INFINITY);
    // SAFETY: the length is a multiple of the lanes; the CPU supports `S` (caller).
    let rescale = unsafe { softmax_block::<S>(&mut row[..padded], &mut acc.max[h], &mut acc.sum[h]) };
    for o in &mut acc.values[h * acc.d..][..acc.d] {
        *o *= rescale;
    }
}

/// A block of the tokens that are attended, and the rows that they lie among.
#[derive(Clone, Copy)]
struct WalkedBlock<'a, T, W> {
    /// Keys, `[row][d]`.
    k: &'a [T],
    /// Values, likewise.
    v: &'a [T],
    /// Width of a head.
    d: usize,
    /// The row of each token.
    walk: W,
    /// The first token of the block, in the order of the walk.
    begin: usize,
    /// Tokens of the block, at most [`BLOCK`].
    n: usize,
}

/// Keys of the first block that are prefetched ahead of their use. Later, a block's values are prefetched while its keys are read, and the
/// next block's keys while its values are read. The hardware prefetcher can follow neither a list nor the end of a page of memory.
const AHEAD: usize = 16;

/// Prefetches the row of the `token`-th walked token, if there is one.
///
/// # Safety
/// The CPU supports `S`.
#[inline(always)]
unsafe fn prefetch_walked<S: Simd, T: Elem, W: Walk>(rows: &[T], d: usize, walk: W, token: usize) {
    if token < walk.len() {
        // SAFETY: the CPU supports `S` (caller).
        unsafe { prefetch_row::<S, T>(rows, d, walk.row(token)) };
    }
}

/// Logits of queries `h..h+H` for the tokens of the block into rows `h..` of `scratch`; returns `H`.
///
/// # Safety
/// All walked rows lie in `k` and `v`; `scratch` has `BLOCK` entries a query; the CPU supports `S`.
#[inline(always)]
unsafe fn logits<S: Simd, T: Elem, W: Walk, const H: usize>(
    q: &[f32],
    block: WalkedBlock<'_, T, W>,
    h: usize,
    scratch: &mut [f32],
) -> usize {
    let WalkedBlock { k, v, d, walk, begin, n } = block;
    let last = begin + n - 1;
    let mut i = 0;
    while i < n {
        let token = begin + i;
        if h == 0 {
            for j in 0..4.min(n - i) {
                // SAFETY: the CPU supports `S` (caller).
                unsafe {
                    prefetch_walked::<S, T, W>(v, d, walk, token + j);
                    if begin == 0 {
                        prefetch_walked::<S, T, W>(k, d, walk, token + j + AHEAD);
                    }
                }
            }
        }
        let mut starts = [0; 4];
        for (j, start) in starts.iter_mut().enumerate() {
            *start = walk.row((token + j).min(last)) * d;
        }
        // SAFETY: forwarded from the caller.
        let sums = unsafe { dot_tile::<S, T, H>(q.as_ptr().add(h * d), d, k.as_ptr(), starts, d) };
        for (j, row) in sums.iter().enumerate() {
            let width = (n - i).min(4);
            scratch[(h + j) * BLOCK + i..][..width].copy_from_slice(&row[..width]);
        }
        i += 4;
    }
    H
}

/// Turns logits into `exp(logit - max)`, updates maximum and sum; returns the factor for earlier sums.
///
/// # Safety
/// `logits.len()` is a multiple of `S::LANES`; the CPU supports `S`.
#[inline(always)]
pub(super) unsafe fn softmax_block<S: Simd>(logits: &mut [f32], max: &mut f32, sum: &mut f32) -> f32 {
    // SAFETY: offsets stay below the length, a multiple of the lanes (caller).
    unsafe {
        let ptr = logits.as_mut_ptr();
        let mut top = S::splat(*max);
        let mut i = 0;
        while i < logits.len() {
            top = S::max(top, S::load(ptr.add(i)));
            i += S::LANES;
        }
        let new_max = S::maximum(top);
        let rescale = if *max == new_max { 1.0 } else { (*max - new_max).exp() };
        let minus_max = S::splat(-new_max);
        let mut total = S::splat(0.0);
        let mut i = 0;
        while i < logits.len() {
            let e = S::exp(S::add(S::load(ptr.add(i)), minus_max));
            S::store(ptr.add(i), e);
            total = S::add(total, e);
            i += S::LANES;
        }
        *max = new_max;
        *sum = *sum * rescale + S::sum(total);
        rescale
    }
}

/// Adds the weighted values of the block's tokens to queries `h..h+H`; returns `H`.
///
/// # Safety
/// All walked rows lie in `k` and `v`; the CPU supports `S`.
#[inline(always)]
unsafe fn add_values<S: Simd, T: Elem, W: Walk, const H: usize>(
    block: WalkedBlock<'_, T, W>,
    h: usize,
    acc: &mut Accumulator,
) -> usize {
    let d = block.d;
    let weights = &acc.scratch[h * BLOCK..];
    let out = &mut acc.values[h * d..][..H * d];
    let mut c = 0;
    while c < d {
        // SAFETY: columns `c..c + width` lie within a row; the rest is forwarded from the caller.
        c += unsafe {
            match (d - c) / S::LANES {
                4.. => add_value_columns::<S, T, W, H, 4>(block, h, weights, out, c),
                2 | 3 => add_value_columns::<S, T, W, H, 2>(block, h, weights, out, c),
                1 => add_value_columns::<S, T, W, H, 1>(block, h, weights, out, c),
                _ => add_value_column::<T, W, H>(block, weights, out, c),
            }
        };
    }
    H
}

/// Adds `C` vectors of columns, from column `c` on; returns how many columns these are.
///
/// # Safety
/// `c + C * LANES <= d`, walked rows lie in `k` and `v`, the CPU supports `S`.
#[inline(always)]
unsafe fn add_value_columns<S: Simd, T: Elem, W: Walk, const H: usize, const C: usize>(
    block: WalkedBlock<'_, T, W>,
    h: usize,
    weights: &[f32],
    out: &mut [f32],
    c: usize,
) -> usize {
    let WalkedBlock { k, v, d, walk, begin, n } = block;
    // SAFETY: forwarded from the caller; `weights` has `BLOCK >= n` entries for each of `H` queries
    // (the last may be cut at `n`), `out` has `H * d`.
    unsafe {
        let mut sums = [[S::splat(0.0); C]; H];
        for (h, sums) in sums.iter_mut().enumerate() {
            for (j, s) in sums.iter_mut().enumerate() {
                *s = S::load(out.as_ptr().add(h * d + c + j * S::LANES));
            }
        }
        // The first queries prefetch the next block's keys: each pass over columns a share of them.
        let passes = d.div_ceil(C * S::LANES);
        let asked = begin + n + c / (C * S::LANES) * n / passes;
        let mut until_next = if h == 0 { 0 } else { n };
        for i in 0..n {
            if until_next == 0 {
                prefetch_walked::<S, T, W>(k, d, walk, asked + i / passes);
                until_next = passes;
            }
            until_next -= 1;
            let row = v.as_ptr().add(walk.row(begin + i) * d + c);
            let mut vv = [S::splat(0.0); C];
            for (j, vv) in vv.iter_mut().enumerate() {
                *vv = T::load::<S>(row.add(j * S::LANES));
            }
            for (h, sums) in sums.iter_mut().enumerate() {
                let w = S::splat(*weights.as_ptr().add(h * BLOCK + i));
                for j in 0..C {
                    sums[j] = S::fma(w, vv[j], sums[j]);
                }
            }
        }
        for (h, sums) in sums.iter().enumerate() {
            for (j, s) in sums.iter().enumerate() {
                S::store(out.as_mut_ptr().add(h * d + c + j * S::LANES), *s);
            }
        }
    }
    C * S::LANES
}

/// As [`add_value_columns`] for a single column, where fewer than a vector's lanes are left; returns 1.
///
/// # Safety
/// Walked rows lie in `v` (checked again by indexing).
#[inline(always)]
unsafe fn add_value_column<T: Elem, W: Walk, const H: usize>(
    WalkedBlock { v, d, walk, begin, n, .. }: WalkedBlock<'_, T, W>,
    weights: &[f32],
    out: &mut [f32],
    c: usize,
) -> usize {
    for h in 0..H {
        for i in 0..n {
            out[h * d + c] += weights[h * BLOCK + i] * v[walk.row(begin + i) * d + c].to_f32();
        }
    }
    1
}

#[cfg(test)]
mod tests;

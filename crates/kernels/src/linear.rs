//! Matrix products of activations with stored weights, for one row (decode) to thousands (prefill).
//!
//! Weights stay in their storage type and are widened in registers. Each output is one dot product in a fixed order of summation, so a
//! row's result does not depend on the other rows of its batch. Methods can therefore share a step, and each result can still be reproduced
//! alone.

use rayon::prelude::*;

use super::pieces::PIECE;
use super::rows::Elem;
use super::simd::{Simd, dispatch};
use spattn_base::clock;

/// Products with fewer multiply-adds are not split over threads.
pub(super) const PARALLEL_WORK: usize = 1 << 22;
/// Number of rows of activations in a block, which has [`COLUMN_BLOCK`] columns and stays in the second-level cache while weights are
/// streamed. The column block is part of the order of summation: partial sums are per block.
pub(super) const ROW_BLOCK: usize = 64;
pub(super) const COLUMN_BLOCK: usize = 1024;
/// Number of rows from which weights are widened once for all rows, instead of once for every few rows.
const WIDEN_FROM: usize = 12;
/// Number of weights widened at a time; they stay in the second-level cache.
const WIDENED: usize = 1 << 15;
/// Number of activations multiplied with the same four rows of weights; both stay in the first-level cache.
const ROWS_BESIDE: usize = 5 << 10;
/// Number of f32 in a cache line. Reading a vector that spans two lines takes twice as long.
const LINE: usize = 16;
/// How far ahead of the multiplication weights are prefetched, in bytes.
const AHEAD: usize = 8192;
/// If four rows have fewer bytes than this, nothing is prefetched, because sums over lanes take most of the time.
const NARROW: usize = 512;

/// Computes `out[r][o] = Σ_c x[r][c] · w[o][c]` for `x: [rows][columns]`, `w: [outputs][columns]`.
///
/// # Panics
/// If the slices do not have these shapes.
pub fn linear_rows<T: Elem>(x: &[f32], w: &[T], columns: usize, out: &mut [f32]) {
    let (rows, outputs) = (x.len() / columns, w.len() / columns);
    assert_eq!(x.len(), rows * columns, "activations are not `[rows][columns]`");
    assert_eq!(w.len(), outputs * columns, "weights are not `[outputs][columns]`");
    assert_eq!(out.len(), rows * outputs, "the output is not `[rows][outputs]`");
    let threads = rayon::current_num_threads();
    if threads == 1 || rows * outputs * columns < PARALLEL_WORK {
        dots(x, w, columns, OutputColumns::new(out, outputs));
        return;
    }
    // A few chunks per thread balance the load. A multiple of four keeps register tiles whole.
    let chunk = outputs.div_ceil(threads * 4).next_multiple_of(4);
    let base = OutputColumns::new(out, outputs);
    w.par_chunks(chunk * columns).enumerate().for_each(|(i, w)| {
        dots(x, w, columns, base.at_column(i * chunk));
    });
}

/// Computes the scores of `queries: [g][d]` with every row of `keys: [tokens][d]`: `out[g][token]`, unscaled.
pub fn scores<T: Elem>(queries: &[f32], keys: &[T], d: usize, out: &mut [f32]) {
    let tokens = keys.len() / d;
    assert_eq!(out.len(), queries.len() / d * tokens, "the output is not `[query][token]`");
    let all = OutputColumns::new(out, tokens);
    if tokens <= PIECE {
        return dots(queries, keys, d, all);
    }
    clock::deal(keys.par_chunks(PIECE * d).enumerate(), |(piece, keys)| {
        dots(queries, keys, d, all.at_column(piece * PIECE));
    });
}

/// Computes the scores of one `query: [d]` with the rows of `keys: [tokens][d]` listed in `tokens`, unscaled; the same bits as from
/// [`scores`].
///
/// # Panics
/// If a token is out of range or the slices do not have these shapes.
pub fn scores_of<T: Elem>(query: &[f32], keys: &[T], tokens: &[u32], out: &mut [f32]) {
    scores_of_each(query, keys, query.len(), tokens, out);
}

/// Computes [`scores_of`] several `queries: [query][d]`, `out[query][listed token]`. Each row is read from memory once for all queries.
///
/// # Panics
/// If a token is out of range or the slices do not have these shapes.
pub fn scores_of_each<T: Elem>(queries: &[f32], keys: &[T], d: usize, tokens: &[u32], out: &mut [f32]) {
    assert!(queries.len().is_multiple_of(d), "queries are not `[query][d]`");
    assert_eq!(out.len(), queries.len() / d * tokens.len(), "the output is not `[query][listed token]`");
    assert!(tokens.iter().all(|&t| (t as usize + 1) * d <= keys.len()), "a token is not below {}", keys.len() / d);
    gathered_dots(queries, keys, d, tokens, OutputColumns::new(out, tokens.len()));
}

dispatch! {
    fn gathered_dots[T: Elem](
        queries: &[f32], keys: &[T], d: usize, tokens: &[u32], out: OutputColumns,
    ) = gathered_dots_kernel
}

#[inline(always)]
unsafe fn gathered_dots_kernel<S: Simd, T: Elem>(
    queries: &[f32],
    keys: &[T],
    d: usize,
    tokens: &[u32],
    out: OutputColumns,
) {
    /// How far ahead of the multiplication keys are prefetched, in rows.
    const ROWS_AHEAD: usize = 16;
    let count = queries.len() / d;
    assert!(out.holds(count, tokens.len()));
    for (first, four) in (0..).step_by(4).zip(tokens.chunks(4)) {
        for later in tokens.iter().skip(first + ROWS_AHEAD).take(4) {
            // SAFETY: the CPU supports `S` (caller).
            unsafe { prefetch_row::<S, T>(keys, d, *later as usize) };
        }
        let row = |i: usize| four[i.min(four.len() - 1)] as usize * d;
        for (column, span) in (0..d).step_by(COLUMN_BLOCK).map(|column| (column, COLUMN_BLOCK.min(d - column))) {
            let starts = std::array::from_fn(|i| row(i) + column);
            let mut q = 0;
            while q < count {
                // SAFETY: the CPU supports `S` (caller). The public function checked that these rows exist; queries `q..q + R` are among
                // `count`, and the output has a row for each of them and a column for each token, which was asserted.
                unsafe {
                    let x = queries.as_ptr().add(q * d + column);
                    q += match count - q {
                        2.. => {
                            let sums = dot_tile::<S, T, 2>(x, d, keys.as_ptr(), starts, span);
                            out.add_tile(q, first, tokens.len(), &sums, column == 0)
                        }
                        _ => {
                            let sums = dot_tile::<S, T, 1>(x, d, keys.as_ptr(), starts, span);
                            out.add_tile(q, first, tokens.len(), &sums, column == 0)
                        }
                    };
                }
            }
        }
    }
}

/// Prefetches row `number` of `rows: [row][d]`.
///
/// # Safety
/// The CPU supports `S`.
#[inline(always)]
pub(super) unsafe fn prefetch_row<S: Simd, T: Elem>(rows: &[T], d: usize, number: usize) {
    const LINE: usize = 64;
    let row = rows.as_ptr().wrapping_add(number * d).cast::<u8>();
    for byte in (0..d * T::BYTES).step_by(LINE) {
        // SAFETY: a prefetch may take any address, even an invalid one; the CPU supports `S` (caller).
        unsafe { S::prefetch(row.wrapping_add(byte)) };
    }
}

/// Columns of a row-major output that one call may write.
#[derive(Clone, Copy)]
pub(super) struct OutputColumns {
    ptr: *mut f32,
    len: usize,
    stride: usize,
}

// SAFETY: `linear_rows`, `linear_quantised` and `scores` hand each thread a disjoint set of columns of one exclusively borrowed slice.
unsafe impl Send for OutputColumns {}
// SAFETY: each thread has a disjoint set of columns, as for `Send`; the value itself is only read.
unsafe impl Sync for OutputColumns {}

impl OutputColumns {
    /// All rows and columns of an output with `columns` columns.
    pub(super) fn new(out: &mut [f32], columns: usize) -> Self {
        Self { ptr: out.as_mut_ptr(), len: out.len(), stride: columns }
    }

    /// Whether the output has `rows` rows of `columns` columns.
    pub(super) fn holds(&self, rows: usize, columns: usize) -> bool {
        rows == 0 || columns == 0 || (rows - 1) * self.stride + columns <= self.len
    }

    /// Writes the sums of `R` rows from `row` on to columns `column..column+4`, as far as they are below `columns`; unless `is_first`, adds
    /// the sums to the numbers there. Returns `R`.
    ///
    /// # Safety
    /// These rows and `column` exist among the columns that this call may write.
    #[inline(always)]
    pub(super) unsafe fn add_tile<const R: usize>(
        self,
        row: usize,
        column: usize,
        columns: usize,
        sums: &[[f32; 4]; R],
        is_first: bool,
    ) -> usize {
        for (i, sums) in sums.iter().enumerate() {
            if is_first && columns - column >= 4 {
                // SAFETY: row `row + i` and four columns from `column` on exist (caller); the write is unaligned.
                unsafe { self.ptr.add((row + i) * self.stride + column).cast::<[f32; 4]>().write_unaligned(*sums) };
                continue;
            }
            for (j, &sum) in sums.iter().enumerate().take(columns - column) {
                // SAFETY: row `row + i` and column `column + j` exist (caller, and `take`).
                let out = unsafe { &mut *self.ptr.add((row + i) * self.stride + column + j) };
                *out = if is_first { sum } else { *out + sum };
            }
        }
        R
    }

    /// Returns the columns from `column` on.
    pub(super) fn at_column(self, column: usize) -> Self {
        assert!(column <= self.len);
        // SAFETY: `column` is within the slice that `ptr` and `len` describe.
        Self { ptr: unsafe { self.ptr.add(column) }, len: self.len - column, ..self }
    }

    /// Returns the rows from `row` on.
    pub(super) fn at_row(self, row: usize) -> Self {
        self.at_column(row * self.stride)
    }
}

dispatch! {
    fn dots[T: Elem](x: &[f32], w: &[T], columns: usize, out: OutputColumns) = dots_kernel
}

#[inline(always)]
unsafe fn dots_kernel<S: Simd, T: Elem>(x: &[f32], w: &[T], columns: usize, out: OutputColumns) {
    let (rows, outputs) = (x.len() / columns, w.len() / columns);
    assert!(out.holds(rows, outputs));
    if rows == 1 {
        // A single row stays in the cache in any order, so weights are read in memory order. Every sum still runs over the same spans in
        // the same order.
        let spans = |first: usize| first..(first + COLUMN_BLOCK).min(columns);
        for o in (0..outputs).step_by(4) {
            for first_column in (0..columns).step_by(COLUMN_BLOCK) {
                let block = Block { x, w, columns, span: spans(first_column), outputs, out };
                // SAFETY: the CPU supports `S` (caller); the row and the outputs exist.
                unsafe {
                    block.ahead::<S>(o);
                    block.tile::<S, 1>(0, o);
                }
            }
        }
        return;
    }
    if rows >= WIDEN_FROM {
        // SAFETY: the CPU supports `S` (caller); the output holds these rows and columns.
        return unsafe { widened_dots::<S, T>(x, w, columns, out) };
    }
    for first_column in (0..columns).step_by(COLUMN_BLOCK) {
        let span = first_column..(first_column + COLUMN_BLOCK).min(columns);
        let block = Block { x, w, columns, span, outputs, out };
        // SAFETY: the CPU supports `S` (caller); the rows exist in `x` and in the output.
        unsafe { block.multiply::<S>(rows) };
    }
}

/// Like [`dots`] for many rows: widens some weights at a time, once for all rows.
///
/// # Safety
/// `x` and `w` are rows of `columns`, and `out` has room for their products; the CPU supports `S`.
#[inline(always)]
unsafe fn widened_dots<S: Simd, T: Elem>(x: &[f32], w: &[T], columns: usize, out: OutputColumns) {
    let (rows, outputs) = (x.len() / columns, w.len() / columns);
    let widest = columns.min(COLUMN_BLOCK);
    let at_once = (WIDENED / widest / 4 * 4).max(4).min(outputs);
    let rows_at_once = (ROWS_BESIDE / widest / 12 * 12).max(12);
    let mut memory = vec![0.0f32; at_once * widest + LINE];
    let begin = memory.as_ptr().align_offset(4 * LINE).min(LINE);
    let panel = &mut memory[begin..];
    for first_output in (0..outputs).step_by(at_once) {
        let count = at_once.min(outputs - first_output);
        for first in (0..columns).step_by(COLUMN_BLOCK) {
            let span = COLUMN_BLOCK.min(columns - first);
            for (o, row) in panel.chunks_exact_mut(span).take(count).enumerate() {
                // SAFETY: the CPU supports `S` (caller).
                unsafe { widen::<S, T>(&w[(first_output + o) * columns + first..][..span], row) };
            }
            for first_row in (0..rows).step_by(rows_at_once) {
                let end = (first_row + rows_at_once).min(rows);
                for o in (0..count).step_by(4) {
                    let last = count - 1;
                    let starts = [o, (o + 1).min(last), (o + 2).min(last), (o + 3).min(last)].map(|o| o * span);
                    let out = out.at_column(first_output);
                    let mut r = first_row;
                    while r < end {
                        // SAFETY: rows `r..r + R` are among those of `x` and of the output, and rows of the panel have the span; the CPU
                        // supports `S` (caller).
                        unsafe {
                            let x = x.as_ptr().add(r * columns + first);
                            let is_first = first == 0;
                            r += match end - r {
                                4.. if S::PANEL_ROWS == 4 => {
                                    let sums = dot_tile::<S, f32, 4>(x, columns, panel.as_ptr(), starts, span);
                                    out.add_tile(r, o, count, &sums, is_first)
                                }
                                3 | 5.. if S::PANEL_ROWS == 3 => {
                                    let sums = dot_tile::<S, f32, 3>(x, columns, panel.as_ptr(), starts, span);
                                    out.add_tile(r, o, count, &sums, is_first)
                                }
                                2.. => {
                                    let sums = dot_tile::<S, f32, 2>(x, columns, panel.as_ptr(), starts, span);
                                    out.add_tile(r, o, count, &sums, is_first)
                                }
                                _ => {
                                    let sums = dot_tile::<S, f32, 1>(x, columns, panel.as_ptr(), starts, span);
                                    out.add_tile(r, o, count, &sums, is_first)
                                }
                            };
                        }
                    }
                }
            }
        }
    }
}

/// Converts numbers to f32.
///
/// # Safety
/// The CPU supports `S`.
#[inline(always)]
unsafe fn widen<S: Simd, T: Elem>(from: &[T], to: &mut [f32]) {
    assert_eq!(from.len(), to.len());
    let whole = from.len() / S::LANES * S::LANES;
    for i in (0..whole).step_by(S::LANES) {
        // SAFETY: `i + LANES <= whole`, the length of neither is less; the CPU supports `S` (caller).
        unsafe { S::store(to.as_mut_ptr().add(i), T::load::<S>(from.as_ptr().add(i))) };
    }
    to[whole..].iter_mut().zip(&from[whole..]).for_each(|(to, from)| *to = from.to_f32());
}

/// Some rows of `x` and a span of columns, to be multiplied with all rows of `w`.
struct Block<'a, T> {
    x: &'a [f32],
    w: &'a [T],
    columns: usize,
    span: std::ops::Range<usize>,
    outputs: usize,
    out: OutputColumns,
}

impl<T: Elem> Block<'_, T> {
    /// Adds the products of `rows` rows to all outputs.
    ///
    /// # Safety
    /// `rows` rows exist in `x` and in the output; the CPU supports `S`.
    #[inline(always)]
    unsafe fn multiply<S: Simd>(&self, rows: usize) {
        for o in (0..self.outputs).step_by(4) {
            // SAFETY: the CPU supports `S` (caller).
            unsafe { self.ahead::<S>(o) };
            let mut r = 0;
            while r < rows {
                // SAFETY: `r..r + R` are among `rows`, which exist (caller), and `o` is an output; the CPU supports `S` (caller).
                unsafe {
                    r += match (rows - r).min(S::DOT_ROWS) {
                        4.. => self.tile::<S, 4>(r, o),
                        2 | 3 => self.tile::<S, 2>(r, o),
                        _ => self.tile::<S, 1>(r, o),
                    };
                }
            }
        }
    }

    /// Prefetches this span of the weights of four later outputs, as far as they exist. How much later depends on the width of a row.
    ///
    /// # Safety
    /// The CPU supports `S`.
    #[inline(always)]
    unsafe fn ahead<S: Simd>(&self, o: usize) {
        const LINE: usize = 64;
        let of_four = 4 * self.span.len() * T::BYTES;
        if of_four < NARROW {
            return;
        }
        let o = o + 4 * (AHEAD / of_four).max(1);
        for output in o..(o + 4).min(self.outputs) {
            let row = self.w.as_ptr().wrapping_add(output * self.columns + self.span.start).cast::<u8>();
            for byte in (0..self.span.len() * T::BYTES).step_by(LINE) {
                // SAFETY: a prefetch may take any address, even an invalid one (`S` is supported: caller).
                unsafe { S::prefetch(row.wrapping_add(byte)) };
            }
        }
    }

    /// Adds this span's part to outputs `o..o+4` (as far as they exist) of rows `r..r+R`; returns `R`.
    ///
    /// # Safety
    /// Rows `r..r + R` exist in `x` and in the output, `o < outputs`; the CPU supports `S`.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize>(&self, r: usize, o: usize) -> usize {
        // Missing outputs repeat the last row instead of taking another code path, so the order of summation is the same everywhere.
        let last = self.outputs - 1;
        let starts =
            [o, (o + 1).min(last), (o + 2).min(last), (o + 3).min(last)].map(|i| i * self.columns + self.span.start);
        // SAFETY: `starts` are within whole rows of `w`, as the span is within the columns.
        let sums = unsafe {
            let x = self.x.as_ptr().add(r * self.columns + self.span.start);
            dot_tile::<S, T, R>(x, self.columns, self.w.as_ptr(), starts, self.span.len())
        };
        // SAFETY: these rows and outputs exist (caller).
        unsafe { self.out.add_tile(r, o, self.outputs, &sums, self.span.start == 0) }
    }
}

/// Dot products over `columns` of `R` rows of `x` (`x_stride` apart) with four rows of `w` from `starts`.
///
/// # Safety
/// All rows must hold `columns` elements; the CPU must support `S`.
#[inline(always)]
pub(super) unsafe fn dot_tile<S: Simd, T: Elem, const R: usize>(
    x: *const f32,
    x_stride: usize,
    w: *const T,
    starts: [usize; 4],
    columns: usize,
) -> [[f32; 4]; R] {
    // SAFETY: every access is at an offset below `columns` from the beginning of a row (caller).
    unsafe {
        let mut acc = [[S::splat(0.0); 4]; R];
        let whole = columns / S::LANES * S::LANES;
        let mut c = 0;
        while c < whole {
            let mut xv = [S::splat(0.0); R];
            for (r, xv) in xv.iter_mut().enumerate() {
                *xv = S::load(x.add(r * x_stride + c));
            }
            for j in 0..4 {
                let wv = T::load::<S>(w.add(starts[j] + c));
                // Indexed, because a zip is not always inlined here, which costs more than the products.
                for (r, acc) in acc.iter_mut().enumerate() {
                    acc[j] = S::fma(xv[r], wv, acc[j]);
                }
            }
            c += S::LANES;
        }
        let mut sums = [[0.0f32; 4]; R];
        match R {
            4 => sums.copy_from_slice(&S::sum_all([acc[0], acc[1 % R], acc[2 % R], acc[3 % R]])),
            _ => {
                for r in 0..R {
                    sums[r] = S::sum_each([acc[r][0], acc[r][1], acc[r][2], acc[r][3]]);
                }
            }
        }
        for c in whole..columns {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (sum, start) in sums.iter_mut().zip(starts) {
                    *sum += *x.add(r * x_stride + c) * (*w.add(start + c)).to_f32();
                }
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let mut s = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
        (0..n)
            .map(|_| {
                s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (s >> 8) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    fn reference(x: &[f32], w: &[f32], columns: usize) -> Vec<f32> {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| *a as f64 * *b as f64).sum::<f64>() as f32;
        x.chunks(columns).flat_map(|x| w.chunks(columns).map(move |w| dot(x, w))).collect()
    }

    fn check<T: Elem>(rows: usize, outputs: usize, columns: usize) {
        let x = noise(rows * columns, 1);
        let w: Vec<T> = noise(outputs * columns, 2).into_iter().map(T::from_f32).collect();
        let exact: Vec<f32> = w.iter().map(|w| w.to_f32()).collect();
        let mut out = vec![f32::NAN; rows * outputs];
        linear_rows(&x, &w, columns, &mut out);
        for (a, b) in out.iter().zip(reference(&x, &exact, columns)) {
            assert!((a - b).abs() < 2e-4, "{rows}x{outputs}x{columns}: {a} against {b}");
        }
    }

    #[test]
    fn equals_the_plain_product_in_every_shape_and_type() {
        for (rows, outputs, columns) in
            [(1, 1, 1), (1, 5, 16), (2, 4, 33), (3, 7, 64), (7, 130, 256), (67, 300, 259), (130, 9, 2500)]
        {
            check::<f32>(rows, outputs, columns);
            check::<f16>(rows, outputs, columns);
            check::<bf16>(rows, outputs, columns);
        }
    }

    #[test]
    fn scores_of_some_rows_are_those_of_all() {
        for (tokens, d) in [(1, 5), (9, 64), (30, 100), (7, 2500)] {
            let (q, keys) = (noise(d, 5), noise(tokens * d, 6));
            let keys: Vec<f16> = keys.into_iter().map(f16::from_f32).collect();
            let mut all = vec![0.0; tokens];
            scores(&q, &keys, d, &mut all);
            for step in 1..4 {
                let some: Vec<u32> = (0..tokens as u32).rev().step_by(step).collect();
                let mut out = vec![f32::NAN; some.len()];
                scores_of(&q, &keys, &some, &mut out);
                assert_eq!(out, some.iter().map(|&t| all[t as usize]).collect::<Vec<f32>>());
            }
        }
    }

    #[test]
    fn scores_of_several_queries_are_those_of_each() {
        for (tokens, d) in [(1, 5), (9, 64), (30, 100), (41, 128), (7, 2500)] {
            let keys: Vec<bf16> = noise(tokens * d, 6).into_iter().map(bf16::from_f32).collect();
            let some: Vec<u32> = (0..tokens as u32).rev().step_by(2).collect();
            for count in 0..6 {
                let queries = noise(count * d, 5);
                let mut together = vec![f32::NAN; count * some.len()];
                scores_of_each(&queries, &keys, d, &some, &mut together);
                let mut alone = vec![f32::NAN; count * some.len()];
                for (query, out) in queries.chunks_exact(d).zip(alone.chunks_exact_mut(some.len())) {
                    scores_of(query, &keys, &some, out);
                }
                assert_eq!(together, alone, "{count} queries, {tokens} tokens of {d}");
            }
        }
    }

    #[test]
    fn long_contexts_have_the_scores_of_their_rows_on_any_number_of_threads() {
        let (tokens, d, queries) = (2 * PIECE + 77, 20, 3);
        let q = noise(queries * d, 7);
        let keys: Vec<bf16> = noise(tokens * d, 8).into_iter().map(bf16::from_f32).collect();
        let expected: Vec<f32> = q
            .chunks(d)
            .flat_map(|q| {
                keys.chunks(d).map(|key| {
                    let mut score = [f32::NAN];
                    scores(q, key, d, &mut score);
                    score[0]
                })
            })
            .collect();
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut out = vec![f32::NAN; queries * tokens];
            pool.install(|| scores(&q, &keys, d, &mut out));
            assert_eq!(out, expected, "{threads} threads");
        }
    }

    #[test]
    fn widened_weights_give_the_bits_of_weights_that_are_widened_as_they_are_read() {
        fn check<T: Elem>(rows: usize, outputs: usize, columns: usize) {
            let x = noise(rows * columns, 9);
            let w: Vec<T> = noise(outputs * columns, 10).into_iter().map(T::from_f32).collect();
            let mut together = vec![f32::NAN; rows * outputs];
            linear_rows(&x, &w, columns, &mut together);
            for (x, together) in x.chunks(columns).zip(together.chunks(outputs)) {
                let mut alone = vec![f32::NAN; outputs];
                linear_rows(x, &w, columns, &mut alone);
                assert_eq!(alone, together, "{rows}x{outputs}x{columns}");
            }
        }
        for rows in WIDEN_FROM - 1..WIDEN_FROM + 6 {
            // Fewer outputs than a tile, several passes of weights, and several spans of columns.
            for (outputs, columns) in
                [(1, 1), (3, 7), (5, 64), (2 * WIDENED / 256 + 3, 256), (39, 2 * COLUMN_BLOCK + 9)]
            {
                check::<f32>(rows, outputs, columns);
                check::<f16>(rows, outputs, columns);
                check::<bf16>(rows, outputs, columns);
            }
        }
        check::<bf16>(131, 70, 300);
    }

    #[test]
    #[should_panic(expected = "a token is not below")]
    fn scores_of_a_missing_row_are_refused() {
        scores_of(&[1.0; 4], &[1.0f32; 12], &[3], &mut [0.0]);
    }

    #[test]
    fn a_row_is_the_same_bits_in_any_batch_and_on_any_number_of_threads() {
        let (rows, outputs, columns) = (97, 517, 1320);
        let x = noise(rows * columns, 3);
        let w: Vec<bf16> = noise(outputs * columns, 4).into_iter().map(bf16::from_f32).collect();
        let mut together = vec![0.0; rows * outputs];
        linear_rows(&x, &w, columns, &mut together);
        let single = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        for r in 0..rows {
            let mut alone = vec![0.0; outputs];
            single.install(|| linear_rows(&x[r * columns..][..columns], &w, columns, &mut alone));
            assert_eq!(alone, together[r * outputs..][..outputs]);
        }
    }
}

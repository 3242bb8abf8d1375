//! Products of activations with quantised matrices.
//!
//! For a few rows of activations, as in decode, weights are decoded in registers, so that only blocks are read from memory. For more rows,
//! as in prefill, a panel of four rows by [`COLUMN_BLOCK`] columns is dequantised into the first-level cache, where all activations are
//! multiplied with it. Both sum in the order of [`linear_rows`](crate::linear::linear_rows): a result has the same bits as with the
//! dequantised matrix in f32, whatever the batch.

use rayon::prelude::*;

use super::block_type::{BlockType, with_format};
use super::formats::{Format, Q4K, Q4x0, Q4x1, Q5K, Q5x0, Q5x1, Q6K, Q8x0, Sink};
use super::lanes::Lanes;
use crate::linear::{COLUMN_BLOCK, OutputColumns, PARALLEL_WORK, ROW_BLOCK, dot_tile};
use crate::simd::dispatch;

/// The largest number of rows of activations that are multiplied without a panel.
pub(super) const FUSED_ROWS: usize = 8;
/// How far ahead of the multiplication blocks are prefetched, in bytes and in the order of reading.
pub(super) const AHEAD: usize = 16 << 10;
/// Number of bytes of a cache line.
pub(super) const LINE: usize = 64;

/// The order of the blocks of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowLayout {
    /// One row after the other, as in a file.
    Rows,
    /// [`BlockType::strip_rows`] rows interleaved, as arranged by [`BlockType::lay_side_by_side`].
    Strips,
}

/// Rows of a matrix in blocks of one type.
#[derive(Debug, Clone, Copy)]
pub struct BlockRows<'a> {
    /// The layout of blocks.
    pub block_type: BlockType,
    /// Their order.
    pub layout: RowLayout,
    /// The blocks; each row consists of whole blocks.
    pub blocks: &'a [u8],
}

/// Computes `out[r][o] = Σ_c x[r][c] · w[o][c]` for `x: [rows][columns]`, where the rows of `w` are those of all `parts`, in order.
///
/// # Panics
/// If `columns` are not whole blocks of every part, or the slices do not have these shapes.
pub fn linear_quantised(x: &[f32], parts: &[BlockRows<'_>], columns: usize, out: &mut [f32]) {
    let rows = x.len() / columns;
    assert_eq!(x.len(), rows * columns, "activations are not whole rows");
    let outputs: usize = parts.iter().map(|part| part.outputs(columns)).sum();
    assert_eq!(out.len(), rows * outputs, "output shape");
    let all = OutputColumns::new(out, outputs);
    let threads = rayon::current_num_threads();
    let is_small = threads == 1 || rows * outputs * columns < PARALLEL_WORK;
    // A few chunks per thread balance the load. A multiple of sixteen keeps register tiles and strips whole.
    let chunk = if is_small { outputs } else { outputs.div_ceil(threads * 4) }.next_multiple_of(16);
    let mut chunks = Vec::new();
    let mut first = 0;
    for part in parts {
        for blocks in part.blocks.chunks((chunk * part.block_type.bytes_of(columns)).max(1)) {
            let chunk = BlockRows { blocks, ..*part };
            chunks.push((first, chunk));
            first += chunk.outputs(columns);
        }
    }
    let multiply = |(first, chunk): &(usize, BlockRows<'_>)| chunk.multiply(x, columns, all.at_column(*first));
    match is_small {
        true => chunks.iter().for_each(multiply),
        false => chunks.par_iter().for_each(multiply),
    }
}

impl BlockType {
    /// Decodes whole blocks into `out`.
    ///
    /// # Panics
    /// If the length of `out` is not the number of elements in `blocks`.
    pub fn dequantise(self, blocks: &[u8], out: &mut [f32]) {
        assert!(out.len().is_multiple_of(self.numbers()), "numbers are not whole blocks");
        assert_eq!(blocks.len(), self.bytes_of(out.len()), "another number of blocks");
        with_format!(self, F => dequantise::<F>(blocks, out));
    }
}

impl BlockRows<'_> {
    /// Number of rows.
    fn outputs(&self, columns: usize) -> usize {
        assert!(columns.is_multiple_of(self.block_type.numbers()), "columns are not whole blocks");
        let row = self.block_type.bytes_of(columns);
        assert!(self.blocks.len().is_multiple_of(row), "weights are not whole rows");
        self.blocks.len() / row
    }

    fn multiply(&self, x: &[f32], columns: usize, out: OutputColumns) {
        match self.layout {
            RowLayout::Rows => with_format!(self.block_type, F => products::<F>(x, self.blocks, columns, out)),
            RowLayout::Strips => self.multiply_strips(x, columns, out),
        }
    }
}

dispatch! {
    fn products[F: Format](x: &[f32], blocks: &[u8], columns: usize, out: OutputColumns) = products_kernel
}

#[inline(always)]
pub(super) unsafe fn products_kernel<S: Lanes, F: Format>(
    x: &[f32],
    blocks: &[u8],
    columns: usize,
    out: OutputColumns,
) {
    let row_bytes = columns / F::NUMBERS * F::BYTES;
    let weights =
        Weights::<F> { blocks, row_bytes, outputs: blocks.len() / row_bytes, format: std::marker::PhantomData };
    let rows = x.len() / columns;
    assert!(columns.is_multiple_of(F::NUMBERS) && out.holds(rows, weights.outputs));
    // SAFETY: the CPU supports `S` (caller); the rows exist in `x` and in the output.
    unsafe {
        match rows {
            0 => {}
            1..=FUSED_ROWS => weights.multiply_fused::<S>(x, columns, out),
            _ => weights.multiply_panels::<S>(x, columns, out),
        }
    }
}

/// Rows of blocks of one format.
struct Weights<'a, F> {
    blocks: &'a [u8],
    row_bytes: usize,
    outputs: usize,
    format: std::marker::PhantomData<F>,
}

/// Iterates over the spans of columns that are summed together, from the start of a row.
pub(super) fn spans(columns: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..columns).step_by(COLUMN_BLOCK).map(move |first| (first, COLUMN_BLOCK.min(columns - first)))
}

/// How far ahead blocks are prefetched for rows that are multiplied together.
///
/// A step multiplies one span of some rows. The blocks of the step that is `steps` later are prefetched block by block, a few lines at a
/// time: if all were requested at once, the requests would have to wait for each other.
#[derive(Clone, Copy)]
struct Prefetch {
    steps: usize,
    /// Number of spans of a row.
    spans: usize,
    /// Number of bytes of a span.
    span_bytes: usize,
    /// Number of bytes from the rows of a step to the rows after them.
    rows_bytes: usize,
}

impl Prefetch {
    /// Computes the distances for `rows` rows multiplied together.
    fn new<F: Format>(rows: usize, columns: usize) -> Self {
        let bytes = |columns: usize| columns / F::NUMBERS * F::BYTES;
        let span_bytes = bytes(COLUMN_BLOCK.min(columns));
        let steps = AHEAD.div_ceil(rows * span_bytes);
        Self { steps, spans: columns.div_ceil(COLUMN_BLOCK), span_bytes, rows_bytes: rows * bytes(columns) }
    }

    /// Returns the distance in bytes from a block of a step at column `first` to the same block of the later step. That block may be beyond
    /// the end of the matrix.
    fn offset(&self, first: usize) -> isize {
        let span = first / COLUMN_BLOCK;
        let later = span + self.steps;
        let (rows, later) = (later / self.spans, later % self.spans);
        (rows * self.rows_bytes + later * self.span_bytes) as isize - (span * self.span_bytes) as isize
    }
}

/// The weights in a panel: columns `first..first + span` of the rows of outputs `o..o + 4`.
#[derive(Clone, Copy)]
pub(super) struct PanelColumns {
    pub(super) o: usize,
    pub(super) first: usize,
    pub(super) span: usize,
}

impl<F: Format> Weights<'_, F> {
    /// Multiplies a few rows of activations, reading weights in memory order.
    ///
    /// # Safety
    /// `x` is rows of `columns`, which are whole blocks; `out` has room for their products; the CPU supports `S`.
    #[inline(always)]
    unsafe fn multiply_fused<S: Lanes>(&self, x: &[f32], columns: usize, out: OutputColumns) {
        let rows = x.len() / columns;
        // There are 32 vector registers of 16 lanes, enough for eight sums.
        if rows == 1 && S::LANES == 16 {
            // SAFETY: upheld by the caller.
            return unsafe { self.multiply_one::<S>(x, columns, out) };
        }
        let prefetch = Prefetch::new::<F>(4, columns);
        for o in (0..self.outputs).step_by(4) {
            for (first, span) in spans(columns) {
                let own = RowBlocks { rows: self.rows::<4>(o, first), ahead: prefetch.offset(first) };
                let mut r = 0;
                while r < rows {
                    // SAFETY: rows `r..r + R` are among `rows`; they and those of the weights have the span; the caller upholds the rest.
                    unsafe {
                        let x = x.as_ptr().add(r * columns + first);
                        r += match (rows - r).min(S::DOT_ROWS) {
                            4.. => {
                                let sums = fused_tile::<S, F, 4>(x, columns, own, span);
                                out.add_tile(r, o, self.outputs, &sums, first == 0)
                            }
                            2 | 3 => {
                                let sums = fused_tile::<S, F, 2>(x, columns, own, span);
                                out.add_tile(r, o, self.outputs, &sums, first == 0)
                            }
                            _ => {
                                let sums = fused_tile::<S, F, 1>(x, columns, own, span);
                                out.add_tile(r, o, self.outputs, &sums, first == 0)
                            }
                        };
                    }
                }
            }
        }
    }

    /// Multiplies one row of activations with eight rows of weights at a time: each product waits for the sum that it is added to, and four
    /// sums do not keep the processor busy.
    ///
    /// # Safety
    /// Like [`multiply_fused`](Self::multiply_fused).
    #[inline(always)]
    unsafe fn multiply_one<S: Lanes>(&self, x: &[f32], columns: usize, out: OutputColumns) {
        let prefetch = Prefetch::new::<F>(8, columns);
        for o in (0..self.outputs).step_by(8) {
            // Adding a sum to -0 gives that sum, even if it is -0.
            let mut totals = [[-0.0f32; 4]; 2];
            for (first, span) in spans(columns) {
                // SAFETY: the row and those of the weights have the span; the caller upholds the rest.
                let sums = unsafe {
                    let own = RowBlocks { rows: self.rows::<8>(o, first), ahead: prefetch.offset(first) };
                    let sums = fused_sums::<S, F, 1, 8>(x.as_ptr().add(first), columns, own, span);
                    let [a, b, c, d, e, f, g, h] = sums.map(|[sum]| sum);
                    [S::sum_each([a, b, c, d]), S::sum_each([e, f, g, h])]
                };
                for (total, sum) in totals.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
                    *total += sum;
                }
            }
            for (o, totals) in (o..self.outputs).step_by(4).zip(totals) {
                // SAFETY: row 0 and output `o` exist in the output (caller).
                unsafe { out.add_tile(0, o, self.outputs, &[totals], true) };
            }
        }
    }

    /// Multiplies any number of rows of activations with panels of dequantised weights.
    ///
    /// # Safety
    /// `x` is rows of `columns`, which are whole blocks; `out` has room for their products; the CPU supports `S`.
    #[inline(always)]
    unsafe fn multiply_panels<S: Lanes>(&self, x: &[f32], columns: usize, out: OutputColumns) {
        let mut panel = vec![0.0f32; 4 * COLUMN_BLOCK];
        for (x, first_row) in x.chunks(ROW_BLOCK * columns).zip((0..).step_by(ROW_BLOCK)) {
            let out = out.at_row(first_row);
            for (first, span) in spans(columns) {
                for o in (0..self.outputs).step_by(4) {
                    // SAFETY: the rows of `x` and of the weights have the span, as has each row of the panel; the caller upholds the rest.
                    unsafe {
                        self.fill::<S>(&mut panel, o, first, span);
                        multiply_panel::<S>(x, columns, &panel, PanelColumns { o, first, span }, self.outputs, out);
                    }
                }
            }
        }
    }

    /// Returns the blocks of `N` rows from row `o` and column `first` on. If there are fewer rows, the last one is repeated, so the order
    /// of summation is the same everywhere.
    #[inline(always)]
    fn rows<const N: usize>(&self, o: usize, first: usize) -> [*const u8; N] {
        let within = first / F::NUMBERS * F::BYTES;
        let mut rows = [self.blocks.as_ptr(); N];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = self.blocks[(o + i).min(self.outputs - 1) * self.row_bytes + within..].as_ptr();
        }
        rows
    }

    /// Dequantises `span` columns of rows `o..o+4` from column `first` on into the rows of the panel.
    ///
    /// # Safety
    /// The rows have these columns, which are whole blocks and no more than `COLUMN_BLOCK`; the CPU supports `S`.
    #[inline(always)]
    unsafe fn fill<S: Lanes>(&self, panel: &mut [f32], o: usize, first: usize, span: usize) {
        assert!(span <= COLUMN_BLOCK && panel.len() == 4 * COLUMN_BLOCK);
        for (row, out) in self.rows::<4>(o, first).into_iter().zip(panel.chunks_exact_mut(COLUMN_BLOCK)) {
            // SAFETY: the caller guarantees the columns and the CPU; `out` holds `COLUMN_BLOCK` numbers, at least `span`.
            unsafe { dequantise_row::<S, F>(row, out.as_mut_ptr(), span) };
        }
    }
}

/// Multiplies rows of activations with a panel, for the outputs `o..o+4` that exist. Writes the products, or adds them if the panel does
/// not start at column 0.
///
/// # Safety
/// `x` is rows of `columns`, which exist in the output; the columns of the panel are among these; `o` is an output; the CPU supports `S`.
#[inline(always)]
pub(super) unsafe fn multiply_panel<S: Lanes>(
    x: &[f32],
    columns: usize,
    panel: &[f32],
    at: PanelColumns,
    outputs: usize,
    out: OutputColumns,
) {
    const STARTS: [usize; 4] = [0, COLUMN_BLOCK, 2 * COLUMN_BLOCK, 3 * COLUMN_BLOCK];
    let PanelColumns { o, first, span } = at;
    let (rows, is_first) = (x.len() / columns, first == 0);
    let mut r = 0;
    while r < rows {
        // SAFETY: rows `r..r + R` are among `rows`; a row of the panel has `COLUMN_BLOCK` numbers; the caller upholds the rest.
        unsafe {
            let x = x.as_ptr().add(r * columns + first);
            r += match (rows - r).min(S::DOT_ROWS) {
                4.. => {
                    let sums = dot_tile::<S, f32, 4>(x, columns, panel.as_ptr(), STARTS, span);
                    out.add_tile(r, o, outputs, &sums, is_first)
                }
                2 | 3 => {
                    let sums = dot_tile::<S, f32, 2>(x, columns, panel.as_ptr(), STARTS, span);
                    out.add_tile(r, o, outputs, &sums, is_first)
                }
                _ => {
                    let sums = dot_tile::<S, f32, 1>(x, columns, panel.as_ptr(), STARTS, span);
                    out.add_tile(r, o, outputs, &sums, is_first)
                }
            };
        }
    }
}

/// The blocks of `N` rows, from the same column on.
#[derive(Clone, Copy)]
struct RowBlocks<const N: usize> {
    rows: [*const u8; N],
    /// Number of bytes from a block to the one that is prefetched at the same time.
    ahead: isize,
}

/// Adds up products of `R` rows of activations with the numbers of one row of weights.
struct Dots<S: Lanes, const R: usize> {
    x: *const f32,
    stride: usize,
    sums: [S::V; R],
}

impl<S: Lanes, const R: usize> Sink<S> for Dots<S, R> {
    #[inline(always)]
    unsafe fn take(&mut self, at: usize, numbers: S::V) {
        for (r, sum) in self.sums.iter_mut().enumerate() {
            // SAFETY: the rows have activations for all numbers of the block (`fused_tile`).
            unsafe { *sum = S::fma(S::load(self.x.add(r * self.stride + at)), numbers, *sum) };
        }
    }
}

/// Returns the dot products over `columns` of `R` rows of `x`, `stride` apart, with four rows of blocks, like [`dot_tile`] of the decoded
/// numbers.
///
/// # Safety
/// All rows hold `columns` numbers, which are whole blocks; the CPU supports `S`.
#[inline(always)]
unsafe fn fused_tile<S: Lanes, F: Format, const R: usize>(
    x: *const f32,
    stride: usize,
    own: RowBlocks<4>,
    columns: usize,
) -> [[f32; 4]; R] {
    // SAFETY: upheld by the caller.
    unsafe {
        let sums = fused_sums::<S, F, R, 4>(x, stride, own, columns);
        let mut out = [[0.0; 4]; R];
        for (r, out) in out.iter_mut().enumerate() {
            *out = S::sum_each([sums[0][r], sums[1][r], sums[2][r], sums[3][r]]);
        }
        out
    }
}

/// Returns the sums of [`fused_tile`] for `N` rows of blocks, before lanes are added up.
///
/// # Safety
/// Like [`fused_tile`].
#[inline(always)]
unsafe fn fused_sums<S: Lanes, F: Format, const R: usize, const N: usize>(
    x: *const f32,
    stride: usize,
    own: RowBlocks<N>,
    columns: usize,
) -> [[S::V; R]; N] {
    // SAFETY: blocks and activations are read within the columns (caller).
    unsafe {
        let mut sums = [[S::splat(0.0); R]; N];
        for block in 0..columns / F::NUMBERS {
            let mut at = own.rows;
            for row in &mut at {
                *row = row.add(block * F::BYTES);
                for byte in (0..F::BYTES).step_by(LINE) {
                    // A prefetch may take any address, even an invalid one.
                    S::prefetch(row.wrapping_offset(own.ahead).wrapping_add(byte));
                }
            }
            let scales = F::scales_of_each::<S, N>(at);
            for part in 0..F::NUMBERS / F::PART {
                for j in 0..N {
                    let mut dots = Dots::<S, R> { x: x.add(block * F::NUMBERS), stride, sums: sums[j] };
                    F::part::<S, _>(at[j], &scales[j], part, &mut dots);
                    sums[j] = dots.sums;
                }
            }
        }
        sums
    }
}

/// Stores numbers in memory.
struct Store(*mut f32);

impl<S: Lanes> Sink<S> for Store {
    #[inline(always)]
    unsafe fn take(&mut self, at: usize, numbers: S::V) {
        // SAFETY: the caller of `dequantise_row` guarantees room for the whole block.
        unsafe { S::store(self.0.add(at), numbers) }
    }
}

/// Decodes the first `columns` numbers of a row of blocks into `out`.
///
/// # Safety
/// The row has these numbers, which are whole blocks, and `out` has room for them; the CPU supports `S`.
#[inline(always)]
unsafe fn dequantise_row<S: Lanes, F: Format>(row: *const u8, out: *mut f32, columns: usize) {
    for block in 0..columns / F::NUMBERS {
        // SAFETY: the block is within the row, and its numbers within the room (caller).
        unsafe {
            let at = row.add(block * F::BYTES);
            let scales = F::scales::<S>(at);
            let mut store = Store(out.add(block * F::NUMBERS));
            for part in 0..F::NUMBERS / F::PART {
                F::part::<S, _>(at, &scales, part, &mut store);
            }
        }
    }
}

dispatch! {
    /// Decodes whole blocks into `out`, which has room for exactly these.
    pub(super) fn dequantise[F: Format](blocks: &[u8], out: &mut [f32]) = dequantise_kernel
}

#[inline(always)]
unsafe fn dequantise_kernel<S: Lanes, F: Format>(blocks: &[u8], out: &mut [f32]) {
    assert!(out.len().is_multiple_of(F::NUMBERS) && blocks.len() == out.len() / F::NUMBERS * F::BYTES);
    // SAFETY: there are as many blocks as `out` has room for; the CPU supports `S` (caller).
    unsafe { dequantise_row::<S, F>(blocks.as_ptr(), out.as_mut_ptr(), out.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the offsets of all steps of a matrix whose number of rows is a multiple of `rows`.
    fn check<F: Format>(rows: usize, columns: usize) {
        let prefetch = Prefetch::new::<F>(rows, columns);
        let row_bytes = columns / F::NUMBERS * F::BYTES;
        let begin = |o: usize, first: usize| (o * row_bytes + first / F::NUMBERS * F::BYTES) as isize;
        let steps: Vec<(usize, isize)> = (0..100 * rows)
            .step_by(rows)
            .flat_map(|o| spans(columns).map(move |(first, _)| (first, begin(o, first))))
            .collect();
        let between: usize =
            (0..prefetch.steps).map(|i| rows * spans(columns).nth(i % prefetch.spans).unwrap().1).sum();
        assert!(between / F::NUMBERS * F::BYTES <= AHEAD + rows * prefetch.span_bytes, "{between} numbers ahead");
        assert!(steps.len() > 2 * prefetch.steps);
        for (now, later) in steps.iter().zip(&steps[prefetch.steps..]) {
            assert_eq!(prefetch.offset(now.0), later.1 - now.1, "{rows} rows of {columns}, column {}", now.0);
        }
    }

    #[test]
    fn blocks_are_prefetched_in_the_order_in_which_they_are_multiplied() {
        for rows in [4, 8] {
            for columns in [256, 768, 1024, 1280, 4096, 14_336] {
                check::<Q4K>(rows, columns);
                check::<Q6K>(rows, columns);
                check::<Q8x0>(rows, columns);
            }
        }
    }
}

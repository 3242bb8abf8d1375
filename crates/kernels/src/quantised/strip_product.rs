//! Products of activations with strips, and code to read rows of strips.
//!
//! As in [`product`](super::product), a few rows of activations are multiplied with weights decoded in registers, and more rows with
//! panels. Each column of a vector's width has its own sum, so that a lane adds up in the order in which the lanes of a vector do for a row
//! of blocks: results have the same bits.

use super::formats::{Q4K, Q5K, Q6K};
use super::lanes::Lanes;
use super::product::{AHEAD, FUSED_ROWS, LINE, PanelColumns, multiply_panel, spans};
use super::strips::{BLOCK, BUNDLES, StripFormat, StripScales, code, code_shift, write_strip};
use super::{BlockRows, BlockType, RowLayout};
use crate::linear::{COLUMN_BLOCK, OutputColumns, ROW_BLOCK};
use crate::simd::{Simd, dispatch};
use rayon::prelude::*;

/// The largest number of lanes of a vector.
const MOST_LANES: usize = 16;
/// Number of lanes of the vectors that rows are read with.
const EIGHT: usize = 8;

/// Evaluates `$body` with `$format` as the [`StripFormat`] of a [`BlockType`] that has one.
macro_rules! with_strip_format {
    ($block_type:expr, $format:ident => $body:expr) => {
        match $block_type {
            BlockType::Q4K => with_strip_format!(@ Q4K, $format => $body),
            BlockType::Q5K => with_strip_format!(@ Q5K, $format => $body),
            BlockType::Q6K => with_strip_format!(@ Q6K, $format => $body),
            other => unreachable!("rows of {} are never side by side", other.name()),
        }
    };
    (@ $own:ident, $format:ident => $body:expr) => {{
        type $format = $own;
        $body
    }};
}

/// Evaluates `$body` for all codes of a bundle in order, with the code's number as the constant `$i`.
macro_rules! each_code {
    ($format:ident, $i:ident => $body:expr) => {
        each_code!(@ $format, $i, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)
    };
    (@ $format:ident, $i:ident, $body:expr, $($number:literal)*) => {
        $(
            if $number < $format::CODES {
                const $i: usize = $number;
                $body
            }
        )*
    };
}

impl BlockType {
    /// Number of rows of this type that [`lay_side_by_side`](Self::lay_side_by_side) interleaves; `None` if rows stay as they are.
    pub fn strip_rows(self) -> Option<usize> {
        match self {
            Self::Q4K | Self::Q5K | Self::Q6K => Some(lanes()),
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => None,
        }
    }

    /// Turns `rows` of `columns` columns into strips ([`RowLayout::Strips`]), in place.
    ///
    /// # Panics
    /// If the type has no strips, the columns are not whole blocks, or the rows not whole strips.
    pub fn lay_side_by_side(self, rows: &mut [u8], columns: usize) {
        let strip_rows = self.strip_rows().expect("a type whose rows can be side by side");
        assert!(columns.is_multiple_of(self.numbers()), "columns are not whole blocks");
        let strip_bytes = strip_rows * self.bytes_of(columns);
        assert!(rows.len().is_multiple_of(strip_bytes), "rows are not whole strips");
        rows.par_chunks_exact_mut(strip_bytes).for_each(|strip| {
            let blocks = strip.to_vec();
            with_strip_format!(self, F => write_strip::<F>(&blocks, strip_rows, strip));
        });
    }
}

dispatch! {
    fn lanes[]() -> usize = lanes_kernel
}

#[inline(always)]
unsafe fn lanes_kernel<S: Simd>() -> usize {
    S::LANES
}

impl BlockRows<'_> {
    /// Multiplies rows of activations by strips.
    pub(super) fn multiply_strips(&self, x: &[f32], columns: usize, out: OutputColumns) {
        with_strip_format!(self.block_type, F => products::<F>(x, self.blocks, columns, out));
    }

    /// Reads one row as f32.
    ///
    /// # Panics
    /// If there is no such row, or `out` does not have whole blocks of numbers.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        let row_bytes = self.block_type.bytes_of(out.len());
        match self.layout {
            RowLayout::Rows => self.block_type.dequantise(&self.blocks[row * row_bytes..][..row_bytes], out),
            RowLayout::Strips => {
                let rows = lanes();
                let strip = &self.blocks[row / rows * rows * row_bytes..][..rows * row_bytes];
                with_strip_format!(self.block_type, F => read_lane::<F>(strip, row % rows, out));
            }
        }
    }
}

dispatch! {
    /// Decodes the row in lane `lane` of a strip.
    fn read_lane[F: StripFormat](strip: &[u8], lane: usize, out: &mut [f32]) = read_lane_kernel
}

#[inline(always)]
unsafe fn read_lane_kernel<S: Lanes, F: StripFormat>(strip: &[u8], lane: usize, out: &mut [f32]) {
    assert!(
        out.len().is_multiple_of(BLOCK) && strip.len() == S::LANES * out.len() / BLOCK * F::BYTES && lane < S::LANES
    );
    let mut eight = [0.0f32; EIGHT * BLOCK];
    for (cell, out) in strip.chunks_exact(S::LANES * F::BYTES).zip(out.chunks_exact_mut(BLOCK)) {
        // SAFETY: the cell has `LANES` rows, of which eight are decoded, with room for a block of each; the CPU supports `S` (caller).
        unsafe { read_eight::<S::Eight, F>(cell.as_ptr(), S::LANES, lane / EIGHT * EIGHT, eight.as_mut_ptr(), BLOCK) };
        out.copy_from_slice(&eight[lane % EIGHT * BLOCK..][..BLOCK]);
    }
}

dispatch! {
    fn products[F: StripFormat](x: &[f32], strips: &[u8], columns: usize, out: OutputColumns) = products_kernel
}

#[inline(always)]
unsafe fn products_kernel<S: Lanes, F: StripFormat>(x: &[f32], strips: &[u8], columns: usize, out: OutputColumns) {
    let rows = x.len() / columns;
    let strip_bytes = S::LANES * columns / BLOCK * F::BYTES;
    assert!(columns.is_multiple_of(BLOCK) && strips.len().is_multiple_of(strip_bytes));
    assert!(out.holds(rows, strips.len() / strip_bytes * S::LANES));
    let strips = Strips::<F> { strips, strip_bytes, format: std::marker::PhantomData };
    // SAFETY: the CPU supports `S` (caller); the rows exist in `x` and in the output.
    unsafe {
        match rows {
            0 => {}
            1..=FUSED_ROWS => strips.multiply_fused::<S>(x, columns, out),
            _ => strips.multiply_panels::<S>(x, columns, out),
        }
    }
}

/// Strips of one format.
struct Strips<'a, F> {
    strips: &'a [u8],
    strip_bytes: usize,
    format: std::marker::PhantomData<F>,
}

impl<F: StripFormat> Strips<'_, F> {
    /// Iterates over the strips, each with its first output.
    fn each(&self, rows: usize) -> impl Iterator<Item = (usize, &[u8])> {
        (0..).step_by(rows).zip(self.strips.chunks_exact(self.strip_bytes))
    }

    /// Multiplies a few rows of activations, reading weights in memory order.
    ///
    /// # Safety
    /// `x` is rows of `columns`, which are whole blocks; `out` has room for their products; the CPU supports `S`.
    #[inline(always)]
    unsafe fn multiply_fused<S: Lanes>(&self, x: &[f32], columns: usize, out: OutputColumns) {
        let rows = x.len() / columns;
        for (o, strip) in self.each(S::LANES) {
            for (first, span) in spans(columns) {
                let cells = &strip[first / BLOCK * S::LANES * F::BYTES..][..span / BLOCK * S::LANES * F::BYTES];
                let mut r = 0;
                while r < rows {
                    // SAFETY: rows `r..r + R` are among `rows` and have the span, as many columns as there are cells; the caller upholds
                    // the rest.
                    unsafe {
                        let x = x.as_ptr().add(r * columns + first);
                        r += match (rows - r).min(S::DOT_ROWS) {
                            4.. => add_sums::<S, 4>(cells_sums::<S, F, 4, 2>(x, columns, cells), out, (r, o), first),
                            2 | 3 => add_sums::<S, 2>(cells_sums::<S, F, 2, 4>(x, columns, cells), out, (r, o), first),
                            _ => add_sums::<S, 1>(cells_sums::<S, F, 1, 8>(x, columns, cells), out, (r, o), first),
                        };
                    }
                }
            }
        }
    }

    /// Multiplies any number of rows of activations with panels of dequantised weights.
    ///
    /// # Safety
    /// Like [`multiply_fused`](Self::multiply_fused).
    #[inline(always)]
    unsafe fn multiply_panels<S: Lanes>(&self, x: &[f32], columns: usize, out: OutputColumns) {
        let mut panel = vec![0.0f32; S::LANES * COLUMN_BLOCK];
        for (x, first_row) in x.chunks(ROW_BLOCK * columns).zip((0..).step_by(ROW_BLOCK)) {
            let out = out.at_row(first_row);
            for (first, span) in spans(columns) {
                for (o, strip) in self.each(S::LANES) {
                    for block in first / BLOCK..(first + span) / BLOCK {
                        let cell = &strip[block * S::LANES * F::BYTES..][..S::LANES * F::BYTES];
                        for lane in (0..S::LANES).step_by(EIGHT) {
                            let rows = &mut panel[lane * COLUMN_BLOCK + block * BLOCK - first..];
                            // SAFETY: the cell has these eight lanes, and the panel has a row for each, with the block within its columns;
                            // the CPU supports `S` (caller).
                            unsafe {
                                read_eight::<S::Eight, F>(
                                    cell.as_ptr(),
                                    S::LANES,
                                    lane,
                                    rows.as_mut_ptr(),
                                    COLUMN_BLOCK,
                                );
                            }
                        }
                    }
                    for (panel, o) in panel.chunks_exact(4 * COLUMN_BLOCK).zip((o..).step_by(4)) {
                        // SAFETY: the rows of `x` have the span, as has each row of the panel; four outputs of the strip are left from `o`
                        // on; the caller upholds the rest.
                        unsafe { multiply_panel::<S>(x, columns, panel, PanelColumns { o, first, span }, o + 4, out) };
                    }
                }
            }
        }
    }
}

/// Writes the sums of `R` rows and a strip to the output at (row, column); unless `first` is 0, adds them to the sums of earlier columns.
/// Returns `R`.
///
/// # Safety
/// These rows and columns exist in the output; the CPU supports `S`.
#[inline(always)]
unsafe fn add_sums<S: Lanes, const R: usize>(
    sums: [S::V; R],
    out: OutputColumns,
    (row, column): (usize, usize),
    first: usize,
) -> usize {
    for (r, sums) in sums.into_iter().enumerate() {
        let mut lanes = [[0.0f32; 4]; MOST_LANES / 4];
        // SAFETY: `lanes` has room for 16 lanes, the most that a vector has; the outputs exist and the CPU supports `S` (caller).
        unsafe {
            S::store(lanes.as_mut_ptr().cast(), sums);
            for (four, column) in lanes[..S::LANES / 4].iter().zip((column..).step_by(4)) {
                out.add_tile(row + r, column, column + 4, &[*four], first == 0);
            }
        }
    }
    R
}

/// Returns the dot products of `R` rows of `x`, `stride` apart, with the rows of cells, over a span of columns. Of the eight bundles of a
/// set, `J` are processed at a time, as many as registers allow.
///
/// # Safety
/// The rows of `x` have all columns of the cells; the CPU supports `S`.
#[inline(always)]
unsafe fn cells_sums<S: Lanes, F: StripFormat, const R: usize, const J: usize>(
    x: *const f32,
    stride: usize,
    cells: &[u8],
) -> [S::V; R] {
    // SAFETY: columns are read within the cells, and activations at these columns (caller).
    unsafe {
        let mut sums: ColumnSums<S, R> = [[[S::splat(0.0); R]; BUNDLES]; 2];
        for (block, cell) in cells.chunks_exact(S::LANES * F::BYTES).enumerate() {
            for byte in (0..S::LANES * F::BYTES).step_by(LINE) {
                // A prefetch may take any address, even an invalid one.
                S::prefetch(cell.as_ptr().wrapping_add(AHEAD + byte));
            }
            let scales = F::strip_scales::<S>(cell.as_ptr(), S::LANES, 0);
            for bundle in (0..BUNDLES).step_by(J) {
                add_products::<S, F, R, J>(x.add(block * BLOCK), stride, cell.as_ptr(), &scales, bundle, &mut sums);
            }
        }
        let mut out = [S::splat(0.0); R];
        for (r, out) in out.iter_mut().enumerate() {
            *out = sum_of_columns::<S, R>(&sums, r);
        }
        out
    }
}

/// The sums for all lanes, by half of a vector, column within the half, and row of activations.
type ColumnSums<S, const R: usize> = [[[<S as Simd>::V; R]; BUNDLES]; 2];

/// Adds up the sums of all columns for row `r`, in the order in which [`Simd::sum`] adds up lanes.
///
/// # Safety
/// The CPU supports `S`.
#[inline(always)]
unsafe fn sum_of_columns<S: Lanes, const R: usize>([low, high]: &ColumnSums<S, R>, r: usize) -> S::V {
    // SAFETY: value operations only (caller).
    unsafe {
        let mut sums = [S::splat(0.0); BUNDLES];
        for (sum, (low, high)) in sums.iter_mut().zip(low.iter().zip(high)) {
            *sum = if S::LANES == MOST_LANES { S::add(low[r], high[r]) } else { low[r] };
        }
        let [a, b, c, d, e, f, g, h] = sums;
        let (ae, bf, cg, dh) = (S::add(a, e), S::add(b, f), S::add(c, g), S::add(d, h));
        S::add(S::add(ae, cg), S::add(bf, dh))
    }
}

/// Adds the products of a cell's bundles `first..first + J` of each set to `sums`.
///
/// # Safety
/// The cell is readable, and the rows of `x` have its columns; the CPU supports `S`.
#[inline(always)]
unsafe fn add_products<S: Lanes, F: StripFormat, const R: usize, const J: usize>(
    x: *const f32,
    stride: usize,
    cell: *const u8,
    of: &StripScales<S>,
    first: usize,
    sums: &mut ColumnSums<S, R>,
) {
    let word_bytes = 4 * S::LANES;
    let set_columns = BUNDLES * F::CODES;
    // SAFETY: bundles are read within the cell, and activations within its columns (caller).
    unsafe {
        // Local copies, which stay in registers.
        let mut own = [[[S::splat(0.0); R]; J]; 2];
        for (own, sums) in own.iter_mut().zip(&*sums) {
            own.copy_from_slice(&sums[first..first + J]);
        }
        for set in 0..BLOCK / set_columns {
            let mut bundles = cell.add(S::LANES * F::HEAD + (BUNDLES * set + first) * F::WORDS * word_bytes);
            let x = x.add(set * set_columns + first);
            each_code!(F, I => {
                let group = (set * set_columns + BUNDLES * I) / F::GROUP;
                let scale = S::mul(of.scales[group], S::splat(1.0 / (1u32 << code_shift::<F>(I)) as f32));
                let half = BUNDLES * I % S::LANES / BUNDLES;
                bundles = read_anew(bundles);
                for (j, own) in own[half].iter_mut().enumerate() {
                    let code = code::<S, F>(bundles.add(j * F::WORDS * word_bytes), word_bytes, I);
                    let numbers = S::fma(S::to_f32(code), scale, of.offsets[group]);
                    for (r, sum) in own.iter_mut().enumerate() {
                        *sum = S::fma(S::splat(*x.add(r * stride + BUNDLES * I + j)), numbers, *sum);
                    }
                }
            });
        }
        for (own, sums) in own.iter().zip(sums) {
            sums[first..first + J].copy_from_slice(own);
        }
    }
}

/// Returns the same pointer, but hides its origin from the compiler. Otherwise the compiler loads all words of a set early and spills them
/// to the stack, because the sums need the registers. This way it loads each word where it is used.
#[allow(clippy::pointers_in_nomem_asm_block, reason = "there is no instruction that could read")]
#[inline(always)]
fn read_anew(ptr: *const u8) -> *const u8 {
    #[cfg(target_arch = "x86_64")]
    {
        let same;
        // SAFETY: the assembly is a comment, without instructions.
        unsafe {
            std::arch::asm!("/* {0} */", inlateout(reg) ptr => same, options(pure, nomem, nostack, preserves_flags));
        }
        same
    }
    #[cfg(not(target_arch = "x86_64"))]
    ptr
}

/// Decodes eight rows of a cell of `rows`, from lane `first` on, into rows of `out` that are `stride` apart.
///
/// # Safety
/// `cell` can be read, and has eight rows from `first` on. `out` has room for a block of each. `E` has eight lanes, and the CPU supports
/// it.
#[inline(always)]
unsafe fn read_eight<E: Lanes, F: StripFormat>(
    cell: *const u8,
    rows: usize,
    first: usize,
    out: *mut f32,
    stride: usize,
) {
    /// The largest number of words in a bundle.
    const MOST_WORDS: usize = 5;
    let set_columns = BUNDLES * F::CODES;
    // SAFETY: words are read within the cell; buffers have room for eight rows of eight; the caller upholds the rest.
    unsafe {
        let of = F::strip_scales::<E>(cell, rows, first);
        let (mut scales, mut offsets) = ([[0.0f32; EIGHT]; 16], [[0.0f32; EIGHT]; 16]);
        for group in 0..BLOCK / F::GROUP {
            E::store(scales[group].as_mut_ptr(), of.scales[group]);
            E::store(offsets[group].as_mut_ptr(), of.offsets[group]);
        }
        // The words, by word, row and bundle. Their bits are moved as if they were floats.
        let mut words = [[[0.0f32; BUNDLES]; EIGHT]; MOST_WORDS];
        for set in 0..BLOCK / set_columns {
            let bundles = cell.add(rows * F::HEAD + set * BUNDLES * F::WORDS * 4 * rows + 4 * first);
            for (w, words) in words[..F::WORDS].iter_mut().enumerate() {
                let mut eight = [E::splat(0.0); BUNDLES];
                for (j, eight) in eight.iter_mut().enumerate() {
                    *eight = E::load(bundles.add((j * F::WORDS + w) * 4 * rows).cast());
                }
                for (eight, words) in transposed::<E>(eight).into_iter().zip(words) {
                    E::store(words.as_mut_ptr(), eight);
                }
            }
            for row in 0..EIGHT {
                let own = words[0][row].as_ptr().cast::<u8>();
                let out = out.add(row * stride + set * set_columns);
                each_code!(F, I => {
                    let group = (set * set_columns + BUNDLES * I) / F::GROUP;
                    let scale = E::splat(scales[group][row] / (1u32 << code_shift::<F>(I)) as f32);
                    let code = code::<E, F>(own, size_of_val(&words[0]), I);
                    E::store(out.add(BUNDLES * I), E::fma(E::to_f32(code), scale, E::splat(offsets[group][row])));
                });
            }
        }
    }
}

/// Exchanges rows and columns of eight vectors of eight lanes.
///
/// # Safety
/// `E` has eight lanes, and the CPU supports it.
#[inline(always)]
unsafe fn transposed<E: Lanes>(mut v: [E::V; 8]) -> [E::V; 8] {
    // Each step moves the highest bit of a vector's number to the lowest of the lane's, and the highest of the lane's to the lowest of the
    // vector's.
    for _ in 0..3 {
        // SAFETY: value operations only (caller).
        let [a, b, c, d] = unsafe {
            [E::interleave(v[0], v[4]), E::interleave(v[1], v[5]), E::interleave(v[2], v[6]), E::interleave(v[3], v[7])]
        };
        v = [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]];
    }
    v
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantised::product;
    use crate::simd::PortableLanes;

    /// Compares strips with rows in vectors of `N` lanes.
    fn check<const N: usize, F: StripFormat>(seed: u32) {
        let (strips, columns) = (3, 5 * BLOCK);
        let outputs = strips * N;
        let row_bytes = columns / BLOCK * F::BYTES;
        // Bytes below 32, so that no scale is NaN or infinite.
        let blocks: Vec<u8> =
            (0..(outputs * row_bytes) as u32).map(|i| ((i ^ seed).wrapping_mul(2_654_435_761) >> 27) as u8).collect();
        let mut laid = vec![0; blocks.len()];
        for (strip, blocks) in laid.chunks_exact_mut(N * row_bytes).zip(blocks.chunks_exact(N * row_bytes)) {
            write_strip::<F>(blocks, N, strip);
        }
        let x: Vec<f32> = (0..11 * columns).map(|i| (i as f32 * 0.37).sin()).collect();
        for rows in 1..=11 {
            let x = &x[..rows * columns];
            let (mut out, mut expected) = (vec![f32::NAN; rows * outputs], vec![f32::NAN; rows * outputs]);
            // SAFETY: portable code runs on every CPU.
            unsafe {
                let to = OutputColumns::new(&mut expected, outputs);
                product::products_kernel::<PortableLanes<N>, F>(x, &blocks, columns, to);
                products_kernel::<PortableLanes<N>, F>(x, &laid, columns, OutputColumns::new(&mut out, outputs));
            }
            assert!(expected.iter().all(|sum| sum.is_finite() && *sum != 0.0));
            assert_eq!(out, expected, "{rows} rows, {N} lanes");
        }
    }

    #[test]
    fn vectors_of_either_width_sum_in_the_order_of_rows() {
        check::<8, Q4K>(1);
        check::<8, Q5K>(2);
        check::<8, Q6K>(3);
        check::<16, Q4K>(4);
        check::<16, Q5K>(5);
        check::<16, Q6K>(6);
    }
}

//! Rows quantised to 2 or 4 bits, column by column in groups of tokens.
//!
//! A few channels of keys are far larger than the rest, so each column has its own range, not each row (as in KIVI, for keys): `x ≈ min +
//! step · code`, with `min` and `step` for a column over [`GROUP`] tokens. Numbers are rounded to nearest, or to one side if they are
//! bounds. Codes are packed, so the bytes counted are the bytes in memory.

use spattn_kernels::codes::{CodeGroup, CodeRange as Range, Factors, group_scores};
use spattn_kernels::pieces::{PIECE, deal_columns};

// A piece of a context consists of whole groups.
const _: () = assert!(PIECE.is_multiple_of(GROUP));

/// Number of tokens that share a column's range.
pub use spattn_kernels::codes::GROUP;

/// Rows `[token][column]`, in `bits` bits per number.
#[derive(Debug, Clone)]
pub struct QuantisedRows {
    bits: usize,
    columns: usize,
    tokens: usize,
    /// For each group and column, the codes of the group's tokens, from the lowest bits up.
    codes: Vec<u8>,
    /// One range for each group and column.
    ranges: Vec<Range>,
}

/// The cost of reading some rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// Bytes of the rows' codes, and of the ranges of their groups.
    pub bytes: usize,
    /// Number of groups that hold the rows.
    pub groups: usize,
}

/// How numbers are rounded to representable ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest.
    Nearest,
    /// To the nearest number that is not greater, or to the one below it if rounding of the quotient leads there.
    Down,
    /// To the nearest number that is not less, or to the one above it if rounding of the quotient leads there.
    Up,
}

/// Returns the bytes of codes and ranges of `tokens` rows with `columns` columns, as [`QuantisedRows`] stores them.
pub fn coded_bytes(tokens: usize, columns: usize, bits: usize) -> usize {
    let of_group = |tokens: usize| columns * (tokens * bits).div_ceil(8);
    let (whole, rest) = (tokens / GROUP, tokens % GROUP);
    whole * of_group(GROUP) + of_group(rest) + tokens.div_ceil(GROUP) * columns * size_of::<Range>()
}

/// Computes the range of a column's values, for codes up to `top`. If values are rounded up, the step is raised until the last code
/// reaches the largest value in spite of rounding.
fn range_of(values: impl Iterator<Item = f32> + Clone, top: f32, rounding: Rounding) -> Range {
    let min = values.clone().fold(f32::INFINITY, f32::min);
    let max = values.fold(f32::NEG_INFINITY, f32::max);
    let mut range = Range { min, step: (max - min) / top };
    while rounding == Rounding::Up && value_of(range, top) < max && range.step.is_finite() {
        range.step = range.step.next_up();
    }
    range
}

fn value_of(range: Range, code: f32) -> f32 {
    range.min + range.step * code
}

/// Returns the code, up to `top`, of `x`, which lies in the range.
fn code_of(range: Range, x: f32, top: f32, rounding: Rounding) -> u8 {
    if range.step <= 0.0 {
        return 0;
    }
    let place = (x - range.min) / range.step;
    let code = match rounding {
        Rounding::Nearest => place.round(),
        Rounding::Down => place.floor(),
        Rounding::Up => place.ceil(),
    };
    // The quotient is rounded, so correct the code by the number that it decodes to.
    let code = code.clamp(0.0, top);
    let code = match rounding {
        Rounding::Down if value_of(range, code) > x => code - 1.0,
        Rounding::Up if value_of(range, code) < x => code + 1.0,
        _ => code,
    };
    code.clamp(0.0, top) as u8
}

impl QuantisedRows {
    /// Quantises `values: [token][columns]`, rounded to nearest.
    ///
    /// # Panics
    /// If `bits` is neither 2 nor 4, or the values are not whole rows.
    pub fn new(values: &[f32], columns: usize, bits: usize) -> Self {
        Self::rounded(values, columns, bits, Rounding::Nearest)
    }

    /// Like [`new`](Self::new), with a choice of rounding: with [`Rounding::Down`] no number grows, with [`Rounding::Up`] none shrinks.
    ///
    /// # Panics
    /// Like `new`.
    pub fn rounded(values: &[f32], columns: usize, bits: usize, rounding: Rounding) -> Self {
        assert!(bits == 2 || bits == 4, "2 or 4 bits");
        let mut rows = Self { bits, columns, tokens: 0, codes: Vec::new(), ranges: Vec::new() };
        rows.push(values, rounding);
        rows
    }

    /// Appends `values: [token][columns]`, which start a new group.
    ///
    /// # Panics
    /// If the last group is not whole, or the values are not whole rows.
    pub fn push(&mut self, values: &[f32], rounding: Rounding) {
        let columns = self.columns;
        assert!(columns > 0 && values.len().is_multiple_of(columns), "whole rows");
        assert!(self.tokens.is_multiple_of(GROUP), "behind whole groups");
        self.tokens += values.len() / columns;
        for group in values.chunks(GROUP * columns) {
            for column in 0..columns {
                self.push_column(group.iter().skip(column).step_by(columns).copied(), rounding);
            }
        }
    }

    /// Keeps the first `tokens` tokens, which must be whole groups.
    ///
    /// # Panics
    /// If they are not whole groups, or if fewer tokens are stored.
    pub fn truncate(&mut self, tokens: usize) {
        assert!(tokens.is_multiple_of(GROUP) && tokens <= self.tokens, "whole groups that are there");
        let groups = tokens / GROUP;
        self.tokens = tokens;
        self.ranges.truncate(groups * self.columns);
        self.codes.truncate(groups * self.columns * GROUP * self.bits / 8);
    }

    /// Number of columns of a row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    fn push_column(&mut self, column: impl Iterator<Item = f32> + Clone, rounding: Rounding) {
        let top = ((1 << self.bits) - 1) as f32;
        let range = range_of(column.clone(), top, rounding);
        self.ranges.push(range);
        let per_byte = 8 / self.bits;
        for (i, x) in column.enumerate() {
            let code = code_of(range, x, top, rounding);
            match i % per_byte {
                0 => self.codes.push(code),
                place => {
                    *self.codes.last_mut().expect("the first code of a byte was pushed") |= code << (place * self.bits)
                }
            }
        }
    }

    /// Number of rows.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Number of groups.
    pub fn groups(&self) -> usize {
        self.tokens.div_ceil(GROUP)
    }

    /// Bytes of codes and ranges.
    pub fn bytes(&self) -> usize {
        self.codes.len() + std::mem::size_of_val(self.ranges.as_slice())
    }

    /// Writes `out[g][token] = queries[g] · row(token)` for `queries: [g][columns]`.
    ///
    /// # Panics
    /// If the slices do not have these shapes.
    pub fn scores(&self, queries: &[f32], out: &mut [f32]) {
        let heads = queries.len() / self.columns;
        assert_eq!(out.len(), heads * self.tokens, "output shape");
        deal_columns(out, self.tokens, |first, out| {
            let mut factors = Factors::default();
            let (groups, tokens) = (first / GROUP.., out.first().map_or(0, |out| out.len()));
            for (group, to) in groups.zip((0..tokens).step_by(GROUP)) {
                let own = self.group(group);
                factors.set(queries, own.ranges);
                group_scores(own, &factors, out, to);
            }
        });
    }

    /// Returns one group. Only the last may have fewer than [`GROUP`] tokens.
    fn group(&self, group: usize) -> CodeGroup<'_> {
        let (columns, bits) = (self.columns, self.bits);
        let tokens = (self.tokens - group * GROUP).min(GROUP);
        CodeGroup {
            codes: &self.codes[group * columns * GROUP * bits / 8..][..columns * (tokens * bits).div_ceil(8)],
            ranges: &self.ranges[group * columns..][..columns],
            bits,
            tokens,
        }
    }

    /// Writes `out[g][i] = queries[g] · row(rows[i])`, as [`scores`](Self::scores) computes them; returns the cost of reading.
    ///
    /// # Panics
    /// If the slices do not have these shapes, or a row is out of range.
    pub fn scores_of(&self, queries: &[f32], rows: &[u32], out: &mut [f32]) -> Read {
        assert_eq!(out.len(), queries.len() / self.columns * rows.len(), "output shape");
        let (per_byte, mask, mut last) = (8 / self.bits, (1u8 << self.bits) - 1, None);
        let (mut factors, mut own) = (Factors::default(), vec![0.0; self.columns]);
        for (i, row) in rows.iter().map(|row| *row as usize).enumerate() {
            assert!(row < self.tokens, "row out of range");
            let (group, place) = (row / GROUP, row % GROUP);
            if last.replace(group) != Some(group) {
                factors.set(queries, &self.ranges[group * self.columns..][..self.columns]);
            }
            let bytes_a_column = ((self.tokens - group * GROUP).min(GROUP) * self.bits).div_ceil(8);
            let codes = &self.codes[group * self.columns * GROUP * self.bits / 8..];
            for (column, code) in own.iter_mut().enumerate() {
                let byte = codes[column * bytes_a_column + place / per_byte];
                *code = f32::from(byte >> (place % per_byte * self.bits) & mask);
            }
            for (query, out) in out.chunks_exact_mut(rows.len()).enumerate() {
                let steps = &factors.steps[query * self.columns..][..self.columns];
                out[i] = steps.iter().zip(&own).fold(factors.least[query], |sum, (step, code)| sum + step * code);
            }
        }
        self.read_of(rows)
    }

    /// The cost of reading some rows, in ascending order: their codes, and the ranges of each group once.
    pub fn read_of(&self, rows: &[u32]) -> Read {
        let groups = rows.chunk_by(|a, b| *a as usize / GROUP == *b as usize / GROUP).count();
        let codes = (rows.len() * self.columns * self.bits).div_ceil(8);
        Read { bytes: codes + groups * self.columns * std::mem::size_of::<Range>(), groups }
    }

    /// Returns all rows `[token][column]`, decoded.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut rows = vec![0.0; self.tokens * self.columns];
        let mut codes = [0.0; GROUP];
        self.walk(|first, tokens, column, range, bytes| {
            unpack(bytes, self.bits, &mut codes[..tokens]);
            for (i, code) in codes[..tokens].iter().enumerate() {
                rows[(first + i) * self.columns + column] = range.min + range.step * code;
            }
        });
        rows
    }

    /// Calls `visit(first token, tokens, column, range, codes)` for each column of each group.
    fn walk(&self, mut visit: impl FnMut(usize, usize, usize, Range, &[u8])) {
        let mut codes = self.codes.as_slice();
        for (at, range) in self.ranges.iter().enumerate() {
            let (group, column) = (at / self.columns, at % self.columns);
            let tokens = (self.tokens - group * GROUP).min(GROUP);
            let (own, rest) = codes.split_at((tokens * self.bits).div_ceil(8));
            visit(group * GROUP, tokens, column, *range, own);
            codes = rest;
        }
    }
}

/// Unpacks codes of 2 or 4 bits, from the lowest bits of each byte up.
pub(super) fn unpack(bytes: &[u8], bits: usize, out: &mut [f32]) {
    match bits {
        2 => unpack_by::<2, 4>(bytes, out),
        _ => unpack_by::<4, 2>(bytes, out),
    }
}

/// Unpacks bytes of `PER_BYTE` codes of `BITS` bits; the last byte may hold fewer.
fn unpack_by<const BITS: usize, const PER_BYTE: usize>(bytes: &[u8], out: &mut [f32]) {
    let code = |byte: u8, place: usize| f32::from(byte >> (place * BITS) & ((1 << BITS) - 1));
    let (whole, rest) = out.as_chunks_mut::<PER_BYTE>();
    for (out, byte) in whole.iter_mut().zip(bytes) {
        *out = std::array::from_fn(|place| code(*byte, place));
    }
    for (place, out) in rest.iter_mut().enumerate() {
        *out = code(bytes[whole.len()], place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn values_are_off_by_half_a_step_at_most_and_scores_are_their_products(
            values in proptest::collection::vec(-9.0f32..9.0, 1..900),
            columns in 1usize..9,
            bits in prop_oneof![Just(2usize), Just(4usize)],
        ) {
            let values = &values[..values.len() / columns * columns];
            let rows = QuantisedRows::new(values, columns, bits);
            let back = rows.to_f32();
            prop_assert_eq!(back.len(), values.len());
            let most = 18.0 / ((1 << bits) - 1) as f32 / 2.0 + 1e-4;
            for (x, y) in values.iter().zip(&back) {
                prop_assert!((x - y).abs() <= most);
            }
            let queries: Vec<f32> = (0..2 * columns).map(|i| (i as f32 * 0.7).sin()).collect();
            let mut scores = vec![f32::NAN; 2 * rows.tokens()];
            rows.scores(&queries, &mut scores);
            for (h, query) in queries.chunks(columns).enumerate() {
                for (t, row) in back.chunks(columns).enumerate() {
                    let dot: f32 = query.iter().zip(row).map(|(a, b)| a * b).sum();
                    prop_assert!((scores[h * rows.tokens() + t] - dot).abs() < 1e-3);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn numbers_rounded_to_one_side_stay_there_and_within_a_step(
            values in proptest::collection::vec(prop_oneof![-9.0f32..9.0, -1e-3f32..1e-3, Just(0.1f32)], 1..700),
            columns in 1usize..5,
            bits in prop_oneof![Just(2usize), Just(4usize)],
        ) {
            let values = &values[..values.len() / columns * columns];
            let back = |rounding| QuantisedRows::rounded(values, columns, bits, rounding).to_f32();
            let step = 18.0 / ((1 << bits) - 1) as f32 + 1e-4;
            for ((x, low), high) in values.iter().zip(back(Rounding::Down)).zip(back(Rounding::Up)) {
                prop_assert!(low <= *x && *x <= high, "{low} {x} {high}");
                prop_assert!(high - x <= step && x - low <= step, "{low} {x} {high}");
            }
        }
    }

    #[test]
    fn scores_of_some_rows_are_their_scores_and_read_their_codes_and_ranges() {
        let (columns, tokens) = (5, 300);
        let values: Vec<f32> = (0..tokens * columns).map(|i| ((i * 37 % 101) as f32).sin() * 3.0).collect();
        let queries: Vec<f32> = (0..2 * columns).map(|i| (i as f32 * 0.7).cos()).collect();
        for bits in [2, 4] {
            let rows = QuantisedRows::new(&values, columns, bits);
            let (back, mut all) = (rows.to_f32(), vec![f32::NAN; 2 * tokens]);
            rows.scores(&queries, &mut all);
            for (some, groups) in [(vec![], 0), (vec![0, 1, 127], 1), (vec![3, 128, 131, 256, 299], 3), (vec![299], 1)]
            {
                let mut scores = vec![f32::NAN; 2 * some.len()];
                let read = rows.scores_of(&queries, &some, &mut scores);
                assert_eq!(
                    read,
                    Read { bytes: (some.len() * columns * bits).div_ceil(8) + groups * columns * 8, groups }
                );
                for (h, query) in queries.chunks(columns).enumerate() {
                    for (i, row) in some.iter().enumerate() {
                        let row = &back[*row as usize * columns..][..columns];
                        let dot: f64 = query.iter().zip(row).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                        assert!((f64::from(scores[h * some.len() + i]) - dot).abs() < 1e-4, "{bits} bits, {some:?}");
                        assert_eq!(scores[h * some.len() + i], all[h * tokens + some[i] as usize]);
                    }
                }
            }
        }
    }

    #[test]
    fn long_contexts_have_the_scores_of_their_rows_on_any_number_of_threads() {
        let (columns, tokens) = (3, 2 * PIECE + 300);
        let values: Vec<f32> = (0..tokens * columns).map(|i| ((i * 37 % 101) as f32).sin() * 3.0).collect();
        let queries: Vec<f32> = (0..2 * columns).map(|i| (i as f32 * 0.7).cos()).collect();
        let rows = QuantisedRows::new(&values, columns, 4);
        let mut expected = vec![f32::NAN; 2 * tokens];
        rows.scores_of(&queries, &(0..tokens as u32).collect::<Vec<_>>(), &mut expected);
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut scores = vec![f32::NAN; 2 * tokens];
            pool.install(|| rows.scores(&queries, &mut scores));
            assert_eq!(scores, expected, "{threads} threads");
        }
    }

    #[test]
    fn bytes_are_packed() {
        let rows = QuantisedRows::new(&vec![1.0; 256 * 8], 8, 4);
        assert_eq!(rows.bytes(), 256 * 8 / 2 + 2 * 8 * 8, "half a byte a number, and 8 bytes a range");
        assert_eq!(QuantisedRows::new(&vec![1.0; 256 * 8], 8, 2).bytes(), 256 * 8 / 4 + 2 * 8 * 8);
        assert_eq!(QuantisedRows::new(&[1.0; 3], 1, 4).bytes(), 2 + 8);
        assert_eq!(QuantisedRows::new(&[], 3, 4).bytes(), 0);
        for (tokens, columns, bits) in [(0, 3, 4), (1, 5, 2), (127, 4, 4), (128, 3, 2), (300, 7, 4), (301, 7, 2)] {
            let rows = QuantisedRows::new(&vec![1.0; tokens * columns], columns, bits);
            assert_eq!(coded_bytes(tokens, columns, bits), rows.bytes(), "{tokens} rows of {columns} in {bits} bits");
        }
    }

    #[test]
    fn columns_without_spread_and_huge_ones_stay_exact_or_finite() {
        let values = [5.0, -1e30, 5.0, 1e30, 5.0, 0.0];
        let back = QuantisedRows::new(&values, 2, 2).to_f32();
        assert!(back.iter().all(|x| x.is_finite()));
        assert_eq!([back[0], back[2], back[4]], [5.0; 3]);
    }
}

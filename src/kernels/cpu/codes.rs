//! Products of queries with rows whose numbers are codes of a few bits, stored column by column in groups of tokens.
//!
//! The loops are plain; they are compiled for each instruction set. Every sum goes over the columns in their order, so that
//! all of them give the same bits.

use super::simd::{Simd, dispatch};

/// Tokens of a group.
pub const GROUP: usize = 128;

/// What the codes of a column stand for within a group: `min + step · code`.
#[derive(Debug, Clone, Copy, Default)]
pub struct CodeRange {
    /// The least value.
    pub min: f32,
    /// Distance between two codes.
    pub step: f32,
}

/// One group: `tokens` of them, no more than [`GROUP`].
#[derive(Debug, Clone, Copy)]
pub struct CodeGroup<'a> {
    /// For each column the codes of all tokens, from the lowest bits up, each column in whole bytes.
    pub codes: &'a [u8],
    /// Of each column.
    pub ranges: &'a [CodeRange],
    /// Bits of a code: 2 or 4.
    pub bits: usize,
    /// Tokens in the group.
    pub tokens: usize,
}

impl CodeGroup<'_> {
    /// Codes of all columns as numbers, `[column][GROUP]`, zeros behind the last token.
    ///
    /// # Panics
    /// If there are fewer codes than tokens and columns, or another number of bits.
    #[inline(always)]
    fn unpack(&self, out: &mut Vec<f32>) {
        out.clear();
        out.resize(self.ranges.len() * GROUP, 0.0);
        let bytes = (self.tokens * self.bits).div_ceil(8);
        // In two steps, each of which the compiler makes vectors of.
        let mut whole = [0u8; GROUP];
        for (column, out) in out.chunks_exact_mut(GROUP).enumerate() {
            let codes = &self.codes[column * bytes..(column + 1) * bytes];
            match self.bits {
                4 => {
                    for (pair, byte) in whole.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                        *pair = [byte & 15, byte >> 4];
                    }
                }
                2 => {
                    for (four, byte) in whole.as_chunks_mut::<4>().0.iter_mut().zip(codes) {
                        *four = [byte & 3, byte >> 2 & 3, byte >> 4 & 3, byte >> 6];
                    }
                }
                _ => unreachable!("2 or 4 bits"),
            }
            for (out, code) in out.iter_mut().zip(whole) {
                *out = f32::from(code);
            }
        }
    }
}

dispatch! {
    /// `out[query][token] = Σ_column (query · min + query · step · code)`, `stride` numbers from one query to the next.
    /// `unpacked` is room for the codes.
    ///
    /// # Panics
    /// If the slices do not have these shapes.
    pub fn group_scores[](
        group: CodeGroup<'_>, queries: &[f32], out: &mut [f32], stride: usize, unpacked: &mut Vec<f32>,
    ) = group_scores_kernel
}

#[inline(always)]
unsafe fn group_scores_kernel<S: Simd>(
    group: CodeGroup<'_>,
    queries: &[f32],
    out: &mut [f32],
    stride: usize,
    unpacked: &mut Vec<f32>,
) {
    /// Vectors whose sums stay in registers while the columns go by.
    const SUMS: usize = 8;
    let columns = group.ranges.len();
    assert!(group.tokens <= GROUP && queries.len().is_multiple_of(columns), "a group and whole queries");
    group.unpack(unpacked);
    let mut sums = [0.0f32; GROUP];
    for (at, query) in queries.chunks_exact(columns).enumerate() {
        for first in (0..GROUP).step_by(SUMS * S::LANES) {
            // SAFETY: a group is whole blocks of sums for every `S`, whose `LANES` divide 16; the codes hold a group for
            // each column. The CPU supports `S` (caller).
            unsafe {
                let mut block = [S::splat(0.0); SUMS];
                for (column, (q, range)) in query.iter().zip(group.ranges).enumerate() {
                    let (offset, factor) = (S::splat(q * range.min), S::splat(q * range.step));
                    let codes = unpacked.as_ptr().add(column * GROUP + first);
                    for (i, sum) in block.iter_mut().enumerate() {
                        let product = S::mul(factor, S::load(codes.add(i * S::LANES)));
                        let term = S::add(offset, product);
                        *sum = if column == 0 { term } else { S::add(*sum, term) };
                    }
                }
                for (i, sum) in block.iter().enumerate() {
                    S::store(sums.as_mut_ptr().add(first + i * S::LANES), *sum);
                }
            }
        }
        out[at * stride..][..group.tokens].copy_from_slice(&sums[..group.tokens]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_go_over_columns_in_their_order_to_the_bit() {
        for (bits, tokens, columns) in [(4usize, 128, 32), (4, 77, 5), (2, 128, 3), (2, 1, 1), (4, 2, 40)] {
            let bytes = (tokens * bits).div_ceil(8);
            let codes: Vec<u8> = (0..bytes * columns).map(|i| (i * 151 + 7) as u8).collect();
            let range = |i: usize| CodeRange { min: (i as f32 * 0.7).sin(), step: 0.01 + (i as f32 * 1.3).cos().abs() };
            let ranges: Vec<CodeRange> = (0..columns).map(range).collect();
            let queries: Vec<f32> = (0..3 * columns).map(|i| (i as f32 * 2.1).sin() * 5.0).collect();
            let stride = tokens + 9;
            let mut out = vec![f32::NAN; 3 * stride];
            let group = CodeGroup { codes: &codes, ranges: &ranges, bits, tokens };
            group_scores(group, &queries, &mut out, stride, &mut vec![7.0; 3]);
            for (query, row) in queries.chunks(columns).zip(out.chunks(stride)) {
                for (token, score) in row[..tokens].iter().enumerate() {
                    let code = |column: usize| {
                        let bit = token * bits;
                        let byte = codes[column * bytes + bit / 8];
                        f32::from(byte >> (bit % 8) & ((1 << bits) - 1))
                    };
                    let term = |column: usize| {
                        query[column] * ranges[column].min + query[column] * ranges[column].step * code(column)
                    };
                    let expected = (1..columns).fold(term(0), |sum, column| sum + term(column));
                    assert_eq!(score.to_bits(), expected.to_bits(), "{bits} bits, token {token} of {tokens}");
                }
                assert!(row[tokens..].iter().all(|x| x.is_nan()), "nothing is written behind the last token");
            }
        }
    }
}

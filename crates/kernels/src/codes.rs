//! Dot products of queries with quantised rows, stored as codes of 2 or 4 bits, column by column in groups of tokens.
//!
//! Codes are unpacked in registers, once for all queries of a group. Every sum runs over the columns in order, and factors are rounded so
//! that a product with a code is exact. So all instruction sets give the same bits, whether or not they fuse multiplications with
//! additions.

use super::simd::{Simd, dispatch};

/// Number of tokens in a full group.
pub const GROUP: usize = 128;

/// The range of a column within a group, which codes are decoded with: `min + step · code`.
#[derive(Debug, Clone, Copy, Default)]
pub struct CodeRange {
    /// The smallest value.
    pub min: f32,
    /// Distance between the values of consecutive codes.
    pub step: f32,
}

/// One group of at most [`GROUP`] tokens.
#[derive(Debug, Clone, Copy)]
pub struct CodeGroup<'a> {
    /// For each column, the codes of all tokens, packed from the lowest bits up. Each column takes whole bytes.
    pub codes: &'a [u8],
    /// One range for each column.
    pub ranges: &'a [CodeRange],
    /// Number of bits of a code: 2 or 4.
    pub bits: usize,
    /// Number of tokens in the group.
    pub tokens: usize,
}

/// Factors for some queries with which the codes of a group are multiplied.
#[derive(Debug, Clone, Default)]
pub struct Factors {
    /// `Σ_column query · min`, one for each query.
    pub least: Vec<f32>,
    /// `query · step`, `[query][column]`, rounded so that a product with a code is exact in f32.
    pub steps: Vec<f32>,
}

impl Factors {
    /// Sets the factors for `queries: [query][ranges.len()]`.
    ///
    /// # Panics
    /// If `queries` is not `[query][ranges.len()]`.
    pub fn set(&mut self, queries: &[f32], ranges: &[CodeRange]) {
        assert!(
            queries.len().is_multiple_of(ranges.len()),
            "{} numbers of queries are no multiple of {} columns",
            queries.len(),
            ranges.len()
        );
        self.least.clear();
        self.least.resize(queries.len() / ranges.len(), 0.0);
        self.steps.resize(queries.len(), 0.0);
        set_factors(queries, ranges, &mut self.least, &mut self.steps);
    }
}

dispatch! {
    fn set_factors[](queries: &[f32], ranges: &[CodeRange], least: &mut [f32], steps: &mut [f32]) = set_factors_kernel
}

#[inline(always)]
unsafe fn set_factors_kernel<S: Simd>(queries: &[f32], ranges: &[CodeRange], least: &mut [f32], steps: &mut [f32]) {
    let columns = ranges.len();
    // Sums of several queries are independent, so no addition waits for another.
    for (column, range) in ranges.iter().enumerate() {
        for (query, least) in least.iter_mut().enumerate() {
            *least += queries[query * columns + column] * range.min;
        }
    }
    for (queries, steps) in queries.chunks_exact(columns).zip(steps.chunks_exact_mut(columns)) {
        for ((step, query), range) in steps.iter_mut().zip(queries).zip(ranges) {
            *step = shortened(query * range.step);
        }
    }
}

/// Rounds to the nearest number whose last four bits are zero. A product with a code of at most four bits is then exact, so fusing it with
/// the addition makes no difference.
#[inline(always)]
fn shortened(x: f32) -> f32 {
    const SPARE: u32 = 15;
    f32::from_bits(x.to_bits().wrapping_add(SPARE / 2 + 1) & !SPARE)
}

/// Computes `out[query][first + token] = Σ_column query · min + Σ_column query · step · code` for the queries and ranges for which
/// `factors` were set.
///
/// # Panics
/// If the slices do not have these shapes, or codes have another number of bits.
pub fn group_scores(group: CodeGroup<'_>, factors: &Factors, out: &mut [&mut [f32]], first: usize) {
    let (columns, queries) = (group.ranges.len(), factors.least.len());
    assert!(
        group.tokens <= GROUP && factors.steps.len() == queries * columns,
        "a group of {} tokens, and {} factors for {queries} queries of {columns} columns",
        group.tokens,
        factors.steps.len()
    );
    let (bytes, whole) = ((group.tokens * group.bits).div_ceil(8), GROUP * group.bits / 8);
    assert!(group.codes.len() >= columns * bytes, "{} bytes of codes for {columns} columns", group.codes.len());
    if bytes == whole {
        return all_sums(group.codes, group.bits, factors, group.tokens, out, first);
    }
    // Codes are read as whole vectors, so a short last group is padded.
    let mut filled = vec![0; columns * whole];
    for (to, from) in filled.chunks_exact_mut(whole).zip(group.codes.chunks_exact(bytes)) {
        to[..bytes].copy_from_slice(from);
    }
    all_sums(&filled, group.bits, factors, group.tokens, out, first);
}

dispatch! {
    /// Computes the sums of whole groups; writes the first `tokens` of them.
    fn all_sums[](codes: &[u8], bits: usize, factors: &Factors, tokens: usize, out: &mut [&mut [f32]], to: usize)
        = all_sums_kernel
}

#[inline(always)]
unsafe fn all_sums_kernel<S: Simd>(
    codes: &[u8],
    bits: usize,
    factors: &Factors,
    tokens: usize,
    out: &mut [&mut [f32]],
    to: usize,
) {
    let mut query = 0;
    while query < factors.least.len() {
        let left = factors.least.len() - query;
        // SAFETY: `left` queries remain, and each arm takes no more; the CPU supports `S` (caller).
        let took = unsafe {
            match (bits, left) {
                // Take as many queries as have their sums in registers.
                (4, 4..) if S::LANES == 16 => sums::<S, 2, 4>(codes, factors, query, tokens, out, to),
                (4, 2..) => sums::<S, 2, 2>(codes, factors, query, tokens, out, to),
                (4, _) => sums::<S, 2, 1>(codes, factors, query, tokens, out, to),
                (2, 2..) if S::LANES == 16 => sums::<S, 4, 2>(codes, factors, query, tokens, out, to),
                (2, _) => sums::<S, 4, 1>(codes, factors, query, tokens, out, to),
                _ => unreachable!("codes have 2 or 4 bits, not {bits}"),
            }
        };
        query += took;
    }
}

/// Computes the sums for `QUERIES` queries from `first_query` on, with `PER_BYTE` codes per byte. Returns `QUERIES`.
///
/// # Safety
/// The CPU supports `S`.
#[inline(always)]
unsafe fn sums<S: Simd, const PER_BYTE: usize, const QUERIES: usize>(
    codes: &[u8],
    factors: &Factors,
    first_query: usize,
    tokens: usize,
    out: &mut [&mut [f32]],
    to: usize,
) -> usize {
    let bytes = GROUP / PER_BYTE;
    let columns = factors.steps.len() / factors.least.len();
    assert!(
        codes.len() >= columns * bytes && first_query + QUERIES <= factors.least.len(),
        "codes end before the last column, or factors before the last query"
    );
    let least = &factors.least[first_query..first_query + QUERIES];
    let steps = &factors.steps[first_query * columns..][..QUERIES * columns];
    let mut scores = [[0.0f32; GROUP]; QUERIES];
    for first in (0..bytes).step_by(2 * S::LANES) {
        // SAFETY: lanes divide 16, and a column has 32 or 64 bytes, so both vectors lie within every column and their codes within the
        // group. The number of factors was asserted above. The CPU supports `S` (caller).
        unsafe {
            let mut sums = [[[S::splat(0.0); PER_BYTE]; 2]; QUERIES];
            for (sums, least) in sums.iter_mut().zip(least) {
                *sums = [[S::splat(*least); PER_BYTE]; 2];
            }
            for column in 0..columns {
                let own = codes.as_ptr().add(column * bytes + first);
                let codes = [S::load_codes::<PER_BYTE>(own), S::load_codes::<PER_BYTE>(own.add(S::LANES))];
                for (query, sums) in sums.iter_mut().enumerate() {
                    let step = S::splat(*steps.get_unchecked(query * columns + column));
                    // Iterate by reference: an iterator that moves vectors may be compiled without these instructions, and then costs a
                    // call for each vector.
                    for (sums, codes) in sums.iter_mut().zip(&codes) {
                        for (sum, code) in sums.iter_mut().zip(codes) {
                            *sum = S::fma(step, *code, *sum);
                        }
                    }
                }
            }
            for (scores, sums) in scores.iter_mut().zip(&sums) {
                let to = scores.as_mut_ptr().add(first * PER_BYTE);
                store_in_turn::<S, PER_BYTE>(to, sums[0]);
                store_in_turn::<S, PER_BYTE>(to.add(S::LANES * PER_BYTE), sums[1]);
            }
        }
    }
    for (query, scores) in scores.iter().enumerate() {
        out[first_query + query][to..][..tokens].copy_from_slice(&scores[..tokens]);
    }
    QUERIES
}

/// Stores the vectors interleaved: the first lane of each, then the second lane of each, and so on.
///
/// # Safety
/// `PER_BYTE · LANES` numbers are writable at `to`, `PER_BYTE` is 2 or 4, and the CPU supports `S`.
#[inline(always)]
unsafe fn store_in_turn<S: Simd, const PER_BYTE: usize>(to: *mut f32, v: [S::V; PER_BYTE]) {
    // SAFETY: upheld by the caller: the numbers are writable, and the CPU supports `S`.
    unsafe {
        if PER_BYTE == 2 {
            let [low, high] = S::interleave(v[0], v[1]);
            S::store(to, low);
            return S::store(to.add(S::LANES), high);
        }
        let (even, odd) = (S::interleave(v[0], v[2 % PER_BYTE]), S::interleave(v[1], v[3 % PER_BYTE]));
        for half in 0..2 {
            let [low, high] = S::interleave(even[half], odd[half]);
            S::store(to.add(2 * half * S::LANES), low);
            S::store(to.add((2 * half + 1) * S::LANES), high);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_go_over_columns_in_their_order_to_the_bit() {
        let shapes =
            [(4usize, 128, 32, 4), (4, 77, 5, 3), (2, 128, 3, 7), (2, 1, 1, 1), (4, 2, 40, 2), (2, 126, 32, 9)];
        for (bits, tokens, columns, count) in shapes {
            let bytes = (tokens * bits).div_ceil(8);
            let codes: Vec<u8> = (0..bytes * columns).map(|i| (i * 151 + 7) as u8).collect();
            let range = |i: usize| CodeRange { min: (i as f32 * 0.7).sin(), step: 0.01 + (i as f32 * 1.3).cos().abs() };
            let ranges: Vec<CodeRange> = (0..columns).map(range).collect();
            let queries: Vec<f32> = (0..count * columns).map(|i| (i as f32 * 2.1).sin() * 5.0).collect();
            let (before, stride) = (3, tokens + 12);
            let mut out = vec![f32::NAN; count * stride];
            let mut factors = Factors { least: vec![7.0; 3], steps: vec![7.0; 3] };
            factors.set(&queries, &ranges);
            let mut rows: Vec<&mut [f32]> = out.chunks_exact_mut(stride).collect();
            group_scores(CodeGroup { codes: &codes, ranges: &ranges, bits, tokens }, &factors, &mut rows, before);
            for (query, row) in queries.chunks(columns).zip(out.chunks(stride)) {
                let (untouched, row) = row.split_at(before);
                assert!(untouched.iter().all(|x| x.is_nan()), "nothing is written before the first token");
                let mut least = 0.0f32;
                query.iter().zip(&ranges).for_each(|(q, range)| least += q * range.min);
                for (token, score) in row[..tokens].iter().enumerate() {
                    let code = |column: usize| {
                        let bit = token * bits;
                        let byte = codes[column * bytes + bit / 8];
                        f32::from(byte >> (bit % 8) & ((1 << bits) - 1))
                    };
                    let step = |column: usize| {
                        // The nearest number with four fewer bits, computed in f64.
                        let x = f64::from(query[column] * ranges[column].step);
                        if x == 0.0 {
                            return 0.0;
                        }
                        let unit = 2f64.powi(x.abs().log2().floor() as i32 - 19);
                        ((x.abs() / unit + 0.5).floor() * unit).copysign(x) as f32
                    };
                    let expected = (0..columns).fold(least, |sum, column| sum + step(column) * code(column));
                    assert_eq!(score.to_bits(), expected.to_bits(), "{bits} bits, token {token} of {tokens}");
                    let exact = (0..columns).fold(0.0f64, |sum, column| {
                        let value =
                            f64::from(ranges[column].min) + f64::from(ranges[column].step) * f64::from(code(column));
                        sum + f64::from(query[column]) * value
                    });
                    assert!((f64::from(*score) - exact).abs() < 1e-3, "{score} for {exact}");
                }
                assert!(row[tokens..].iter().all(|x| x.is_nan()), "nothing is written behind the last token");
            }
        }
    }
}

//! Hamming distances of packed bit signatures: XOR and population count over 32-bit words.
//!
//! Words are stored by plane, `[word][row]`, so that a register holds the same word of many rows, and no sum runs across lanes. A block of
//! rows stays in the cache while all queries of a group are compared with it. The loops are plain Rust, compiled for each instruction set;
//! AVX-512 with `vpopcntdq` counts the bits of sixteen words at once.

use super::pieces::deal_columns;
#[cfg(target_arch = "x86_64")]
use super::simd::{Isa, isa};

/// Number of rows compared with all queries at a time.
const BLOCK: usize = 1024;

/// Offsets below 1 that order rows at the same distance. A row's offset depends on its place and the seed, not on the query.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TieBreakOffsets {
    /// Seed of the permutation of all 32-bit numbers that ranks places.
    pub seed: u64,
    /// Place of the first row.
    pub place: u32,
    /// Number of high bits of a place's rank that are used; 0 turns offsets off.
    pub levels: u32,
    /// The offset for each level.
    pub unit: f32,
}

impl TieBreakOffsets {
    /// Returns the rank of a place, by a permutation of all 32-bit numbers that the seed determines.
    #[inline(always)]
    fn rank(self, place: u32) -> u32 {
        mixed(mixed(place ^ self.seed as u32) ^ (self.seed >> 32) as u32)
    }

    /// Returns the offset of the row at `place`.
    #[inline(always)]
    fn of(self, place: u32) -> f32 {
        // Convert through i32, which holds all levels: x86 converts signed words in one instruction.
        (self.rank(place) >> (32 - self.levels)).cast_signed() as f32 * self.unit
    }
}

/// The finalizer of 32-bit MurmurHash3, which is invertible.
#[inline(always)]
fn mixed(mut x: u32) -> u32 {
    x = (x ^ x >> 16).wrapping_mul(0x85eb_ca6b);
    x = (x ^ x >> 13).wrapping_mul(0xc2b2_ae35);
    x ^ x >> 16
}

/// Computes `out[q][r] = offset(r) − distance(queries[q], row r)` for `queries: [q][words]` and signatures stored as `planes:
/// [words][rows]`; exact up to 2²⁴ bits.
///
/// # Panics
/// If the slices do not have these shapes, or `words` is 0.
pub fn hamming_scores(queries: &[u32], planes: &[u32], words: usize, raises: TieBreakOffsets, out: &mut [f32]) {
    let rows = planes.len() / words;
    assert_eq!(planes.len(), rows * words, "`planes` is not `[words][rows]`");
    assert_eq!(queries.len() % words, 0, "`queries` is not `[query][words]`");
    assert_eq!(out.len(), queries.len() / words * rows, "`out` is not `[query][row]`");
    deal_columns(out, rows, |first, out| scores_from(first, queries, planes, words, raises, out));
}

/// Computes the sums of [`hamming_scores`] over all queries, `[rows]`. They are exact, so the order of addition changes no bit.
///
/// # Panics
/// Like [`hamming_scores`].
pub fn hamming_sums(queries: &[u32], planes: &[u32], words: usize, raises: TieBreakOffsets, out: &mut [f32]) {
    let rows = planes.len() / words;
    assert_eq!(planes.len(), rows * words, "`planes` is not `[words][rows]`");
    assert_eq!(queries.len() % words, 0, "`queries` is not `[query][words]`");
    assert_eq!(out.len(), rows, "`out` does not have one number for each row");
    deal_columns(out, rows, |first, out| scores_from(first, queries, planes, words, raises, out));
}

/// Computes the scores of the rows from `first` on, as many as the rows of `out` hold: one row of `out` for each query, or a single one
/// for their sum.
fn scores_from(
    first: usize,
    queries: &[u32],
    planes: &[u32],
    words: usize,
    raises: TieBreakOffsets,
    out: &mut [&mut [f32]],
) {
    #[cfg(target_arch = "x86_64")]
    match isa() {
        Isa::Avx512 if is_x86_feature_detected!("avx512vl") && is_x86_feature_detected!("avx512vpopcntdq") => {
            // SAFETY: the features were detected just now.
            return unsafe { on_avx512(first, queries, planes, words, raises, out) };
        }
        Isa::Avx512 | Isa::Avx2 if is_x86_feature_detected!("popcnt") => {
            // SAFETY: `isa` detected AVX2, and popcnt was detected just now.
            return unsafe { on_avx2(first, queries, planes, words, raises, out) };
        }
        _ => {}
    }
    scan(first, queries, planes, words, raises, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512vpopcntdq,avx2,popcnt")]
fn on_avx512(
    first: usize,
    queries: &[u32],
    planes: &[u32],
    words: usize,
    raises: TieBreakOffsets,
    out: &mut [&mut [f32]],
) {
    scan(first, queries, planes, words, raises, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,popcnt")]
fn on_avx2(
    first: usize,
    queries: &[u32],
    planes: &[u32],
    words: usize,
    raises: TieBreakOffsets,
    out: &mut [&mut [f32]],
) {
    scan(first, queries, planes, words, raises, out);
}

#[inline(always)]
fn scan(first: usize, queries: &[u32], planes: &[u32], words: usize, raises: TieBreakOffsets, out: &mut [&mut [f32]]) {
    let (rows, wanted) = (planes.len() / words, out.first().map_or(0, |out| out.len()));
    let (mut distances, mut raised) = ([0u32; BLOCK], [0.0f32; BLOCK]);
    for begin in (0..wanted).step_by(BLOCK) {
        let count = BLOCK.min(wanted - begin);
        let (distances, raised) = (&mut distances[..count], &mut raised[..count]);
        if raises.levels > 0 {
            let place = raises.place.wrapping_add((first + begin) as u32);
            for (row, raise) in (0u32..).zip(&mut *raised) {
                *raise = raises.of(place.wrapping_add(row));
            }
        }
        // Number of queries whose distances are summed into one output row.
        let together = queries.len() / words / out.len().max(1);
        for (queries, out) in queries.chunks_exact(together * words).zip(&mut *out) {
            distances.fill(0);
            for (w, word) in (0..words).cycle().zip(queries) {
                let plane = &planes[w * rows + first + begin..][..count];
                for (distance, bits) in distances.iter_mut().zip(plane) {
                    *distance += (bits ^ word).count_ones();
                }
            }
            for ((out, distance), raise) in out[begin..][..count].iter_mut().zip(&*distances).zip(&*raised) {
                // Convert through i32, as in `TieBreakOffsets::of`.
                *out = together as f32 * raise - distance.cast_signed() as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn equals_bits_compared_one_by_one_in_every_shape() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for (queries, rows, words) in
            [(1, 1, 1), (2, 31, 1), (3, 1025, 2), (1, 2048, 3), (8, 3000, 8), (2, 70, 32), (2, 20_000, 2)]
        {
            let mut draw = |n: usize| (0..n).map(|_| rng.random()).collect::<Vec<u32>>();
            let (query, planes) = (draw(queries * words), draw(rows * words));
            let mut out = vec![f32::NAN; queries * rows];
            hamming_scores(&query, &planes, words, TieBreakOffsets::default(), &mut out);
            let bit = |words: &[u32], step: usize, first: usize, b: usize| words[first + b / 32 * step] >> (b % 32) & 1;
            for q in 0..queries {
                for r in 0..rows {
                    let differ = |b: &usize| bit(&query, 1, q * words, *b) != bit(&planes, rows, r, *b);
                    let distance = (0..words * 32).filter(differ).count();
                    assert_eq!(out[q * rows + r], -(distance as f32), "{queries}x{rows}x{words}: {q}, {r}");
                }
            }
        }
    }

    #[test]
    fn sums_are_what_scores_add_up_to() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        for (queries, rows, words) in [(1, 5, 1), (4, 3000, 1), (3, 1025, 2), (8, 20_000, 3)] {
            let mut draw = |n: usize| (0..n).map(|_| rng.random()).collect::<Vec<u32>>();
            let (query, planes) = (draw(queries * words), draw(rows * words));
            // Every sum is exact in f32.
            let raises = TieBreakOffsets { seed: 11, place: 3, levels: 6, unit: 1.0 / 512.0 };
            let (mut each, mut sums) = (vec![f32::NAN; queries * rows], vec![f32::NAN; rows]);
            hamming_scores(&query, &planes, words, raises, &mut each);
            hamming_sums(&query, &planes, words, raises, &mut sums);
            for (row, sum) in sums.iter().enumerate() {
                let expected: f32 = each.iter().skip(row).step_by(rows).sum();
                assert_eq!(*sum, expected, "{queries}x{rows}x{words}: row {row}");
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_plain_scan() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let (words, rows) = (4, 1500);
        let query: Vec<u32> = (0..2 * words).map(|_| rng.random()).collect();
        let planes: Vec<u32> = (0..rows * words).map(|_| rng.random()).collect();
        let (mut best, mut plain) = (vec![0.0; 2 * rows], vec![0.0; 2 * rows]);
        let raises = TieBreakOffsets { seed: 0x1234_5678_9abc_def0, place: 77, levels: 12, unit: 1.0 / 4096.0 };
        hamming_scores(&query, &planes, words, raises, &mut best);
        scan(0, &query, &planes, words, raises, &mut plain.chunks_exact_mut(rows).collect::<Vec<_>>());
        assert_eq!(best, plain);
    }

    #[test]
    fn no_rows_give_no_scores_and_equal_signatures_zero() {
        hamming_scores(&[7, 8], &[], 1, TieBreakOffsets::default(), &mut []);
        let mut out = [1.0; 2];
        hamming_scores(&[7, 8], &[7, 7, 8, 8], 2, TieBreakOffsets::default(), &mut out);
        assert_eq!(out, [0.0, 0.0]);
    }

    /// The published values of 32-bit MurmurHash3 for an empty input and these seeds, which come from the finalizer alone.
    #[test]
    fn places_are_mixed_as_murmur_hash_finishes() {
        assert_eq!([0, 1, 0xffff_ffff].map(super::mixed), [0, 0x514e_28b7, 0x81f1_6f39]);
    }

    #[test]
    fn no_two_places_have_one_rank() {
        let raises = TieBreakOffsets { seed: 5, ..TieBreakOffsets::default() };
        let ranks: std::collections::BTreeSet<u32> = (0..100_000).map(|place| raises.rank(place)).collect();
        assert_eq!(ranks.len(), 100_000, "a permutation");
    }

    /// All rows have the query's signature, so scores are the offsets alone. They depend on the place, not on the piece.
    #[test]
    fn raises_are_those_of_places_in_any_piece() {
        let rows = 20_000;
        let raises = TieBreakOffsets { seed: 99, place: 5, levels: 15, unit: 1.0 / 65_536.0 };
        let mut out = vec![f32::NAN; 2 * rows];
        hamming_scores(&[7, 6], &vec![7; rows], 1, raises, &mut out);
        for (row, score) in out[..rows].iter().enumerate() {
            // The same definition, written differently.
            let finish = |x: u32| {
                let x = (x ^ (x >> 16)).wrapping_mul(2_246_822_507);
                let x = (x ^ (x >> 13)).wrapping_mul(3_266_489_909);
                x ^ (x >> 16)
            };
            let rank = finish(finish((5 + row as u32) ^ 99)) >> 17;
            assert_eq!(*score, rank as f32 / 65_536.0, "row {row}");
        }
        assert!(out[rows..].iter().zip(&out[..rows]).all(|(far, near)| *far == near - 1.0), "one bit further");
        assert!(out[..rows].iter().all(|raise| (0.0..0.5).contains(raise)));
    }
}

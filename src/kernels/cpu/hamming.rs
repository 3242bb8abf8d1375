//! Hamming distances of packed bit signatures: XOR and population count over words of 32 bits.
//!
//! Words are stored by plane, `[word][row]`, so that a register holds the same word of many rows and no
//! sum runs across lanes, however wide a signature is. A block of rows stays in the cache while every
//! query of a group passes it. The loops are plain; they are compiled for each instruction set, of which
//! AVX-512 with `vpopcntdq` counts sixteen words at once.

use super::pieces::deal_columns;
#[cfg(target_arch = "x86_64")]
use super::simd::{Isa, isa};

/// Rows worked on together.
const BLOCK: usize = 1024;

/// `out[q][r] = −distance(queries[q], row r)` for `queries: [q][words]` and signatures stored as
/// `planes: [words][rows]`; exact up to 2²⁴ bits.
///
/// # Panics
/// If the slices do not have these shapes, or `words` is 0.
pub fn hamming_scores(queries: &[u32], planes: &[u32], words: usize, out: &mut [f32]) {
    let rows = planes.len() / words;
    assert_eq!(planes.len(), rows * words, "signatures are not whole planes");
    assert_eq!(queries.len() % words, 0, "queries are not whole signatures");
    assert_eq!(out.len(), queries.len() / words * rows, "output shape");
    deal_columns(out, rows, |first, out| scores_from(first, queries, planes, words, out));
}

/// Those of the rows from the `first` on, as many as there is room for.
fn scores_from(first: usize, queries: &[u32], planes: &[u32], words: usize, out: &mut [&mut [f32]]) {
    #[cfg(target_arch = "x86_64")]
    match isa() {
        Isa::Avx512 if is_x86_feature_detected!("avx512vl") && is_x86_feature_detected!("avx512vpopcntdq") => {
            // SAFETY: the features were detected just now.
            return unsafe { on_avx512(first, queries, planes, words, out) };
        }
        Isa::Avx512 | Isa::Avx2 if is_x86_feature_detected!("popcnt") => {
            // SAFETY: `isa` detected AVX2, and popcnt was detected just now.
            return unsafe { on_avx2(first, queries, planes, words, out) };
        }
        _ => {}
    }
    scan(first, queries, planes, words, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512vpopcntdq,avx2,popcnt")]
fn on_avx512(first: usize, queries: &[u32], planes: &[u32], words: usize, out: &mut [&mut [f32]]) {
    scan(first, queries, planes, words, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,popcnt")]
fn on_avx2(first: usize, queries: &[u32], planes: &[u32], words: usize, out: &mut [&mut [f32]]) {
    scan(first, queries, planes, words, out);
}

#[inline(always)]
fn scan(first: usize, queries: &[u32], planes: &[u32], words: usize, out: &mut [&mut [f32]]) {
    let (rows, wanted) = (planes.len() / words, out.first().map_or(0, |out| out.len()));
    let mut distances = [0u32; BLOCK];
    for begin in (0..wanted).step_by(BLOCK) {
        let count = BLOCK.min(wanted - begin);
        let distances = &mut distances[..count];
        for (query, out) in queries.chunks_exact(words).zip(&mut *out) {
            distances.fill(0);
            for (w, word) in query.iter().enumerate() {
                let plane = &planes[w * rows + first + begin..][..count];
                for (distance, bits) in distances.iter_mut().zip(plane) {
                    *distance += (bits ^ word).count_ones();
                }
            }
            for (out, distance) in out[begin..][..count].iter_mut().zip(&*distances) {
                // Through i32: distances are small, and the conversion of signed words is one instruction.
                *out = -(*distance as i32 as f32);
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
            hamming_scores(&query, &planes, words, &mut out);
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
    fn every_instruction_set_gives_the_plain_scan() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let (words, rows) = (4, 1500);
        let query: Vec<u32> = (0..2 * words).map(|_| rng.random()).collect();
        let planes: Vec<u32> = (0..rows * words).map(|_| rng.random()).collect();
        let (mut best, mut plain) = (vec![0.0; 2 * rows], vec![0.0; 2 * rows]);
        hamming_scores(&query, &planes, words, &mut best);
        scan(0, &query, &planes, words, &mut plain.chunks_exact_mut(rows).collect::<Vec<_>>());
        assert_eq!(best, plain);
    }

    #[test]
    fn no_rows_give_no_scores_and_equal_signatures_zero() {
        hamming_scores(&[7, 8], &[], 1, &mut []);
        let mut out = [1.0; 2];
        hamming_scores(&[7, 8], &[7, 7, 8, 8], 2, &mut out);
        assert_eq!(out, [0.0, 0.0]);
    }
}

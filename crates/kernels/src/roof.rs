//! Measures the machine's limits: reading from memory, and multiply-adds on registers. It computes no attention.

use std::hint::black_box;

use rayon::prelude::*;

use super::simd::{Simd, dispatch};
use super::tiles::{LeftTiles, Multiplier, PAIR_OUTPUTS, Part, RightTiles};

/// Number of independent sums, enough to keep all adders busy.
const CHAINS: usize = 16;
/// Number of independent multiply-adds. Fewer than [`CHAINS`], because the factor and the term need registers, too.
const PRODUCTS: usize = 12;

/// Reads all of `buffer` once, a part on each thread, and returns the sum.
pub fn read_all(buffer: &[f32]) -> f32 {
    let part = buffer.len().div_ceil(rayon::current_num_threads()).max(1);
    buffer.par_chunks(part).map(sum).sum()
}

dispatch! {
    fn sum[](buffer: &[f32]) -> f32 = sum_kernel
}

#[inline(always)]
unsafe fn sum_kernel<S: Simd>(buffer: &[f32]) -> f32 {
    let block = CHAINS * S::LANES;
    let whole = buffer.len() / block * block;
    // SAFETY: every load lies within the whole blocks; the CPU supports `S` (caller).
    unsafe {
        let mut sums = [S::splat(0.0); CHAINS];
        for first in (0..whole).step_by(block) {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = S::add(*sum, S::load(buffer.as_ptr().add(first + i * S::LANES)));
            }
        }
        let rest: f32 = buffer[whole..].iter().sum();
        sums.into_iter().map(|sum| S::sum(sum)).sum::<f32>() + rest
    }
}

/// Multiplies and adds `rounds` times on every thread, in registers. Returns the number of floating-point operations; a multiply-add counts
/// as two.
pub fn multiply_adds(rounds: usize) -> u64 {
    rayon::broadcast(|_| chains(rounds)).into_iter().sum()
}

dispatch! {
    fn chains[](rounds: usize) -> u64 = chains_kernel
}

#[inline(always)]
unsafe fn chains_kernel<S: Simd>(rounds: usize) -> u64 {
    // SAFETY: value operations only; the CPU supports `S` (caller).
    let total: f32 = unsafe {
        let mut sums = [S::splat(black_box(1.0)); PRODUCTS];
        let (factor, term) = (S::splat(black_box(0.999)), S::splat(black_box(0.001)));
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = S::fma(*sum, factor, term);
            }
        }
        sums.into_iter().map(|sum| S::sum(sum)).sum()
    };
    black_box(total);
    (2 * PRODUCTS * S::LANES * rounds) as u64
}

/// Multiplies two tiles of rows by two of outputs `rounds` times on every thread. The tiles fit in the first-level cache. Returns the
/// number of floating-point operations.
pub fn multiply_tiles(rounds: usize) -> u64 {
    const COLUMNS: usize = 256;
    const SIDE: usize = PAIR_OUTPUTS;
    let ones = vec![1.0f32; SIDE * COLUMNS];
    let (left, right) = (LeftTiles::new(&ones, COLUMNS), RightTiles::of_rows(&ones, COLUMNS));
    let part = Part { x: &left, rows: SIDE, w: &right, outputs: 0..SIDE, first: 0, depth: COLUMNS, adds: true };
    rayon::broadcast(|_| {
        let (multiplier, mut sums) = (Multiplier::new(), vec![0.0f32; SIDE * SIDE]);
        (0..rounds).for_each(|_| multiplier.multiply(&part, &mut sums, SIDE));
        black_box(&sums);
    });
    (2 * SIDE * SIDE * COLUMNS * rounds * rayon::current_num_threads()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_read_once_whatever_the_length() {
        for n in [0, 1, 7, 255, 256, 257, 10_000] {
            let numbers: Vec<f32> = (0..n).map(|i| (i % 7) as f32).collect();
            // Such small integers are summed exactly in any order.
            let expected: u32 = (0..n).map(|i| (i % 7) as u32).sum();
            assert_eq!(read_all(&numbers), expected as f32, "{n}");
        }
    }

    #[test]
    fn operations_are_counted_for_every_thread() {
        let of = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| [multiply_adds(10), multiply_tiles(10)])
        };
        assert_eq!(of(3), of(1).map(|operations| 3 * operations));
        assert_eq!(of(1)[0] % (2 * 10 * PRODUCTS as u64), 0);
        assert_eq!(of(1)[1], 10 * 2 * 32 * 32 * 256);
    }
}

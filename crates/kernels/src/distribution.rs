//! Distributions over a vocabulary, given by logits: the log of the sum of their exponentials, and the divergence between two
//! distributions, in f64.
//!
//! On every processor, sixteen interleaved sums are added in order and nothing is fused, so that all instruction sets give the same bits.
//! Compilers turn loops over an array of sixteen numbers into vector instructions.

use super::simd::{Simd, dispatch};

/// Number of interleaved sums.
const LANES: usize = 16;

/// Below this, `e^x` is negligible compared with the 1 of the largest logit; it is still a normal number.
const LOWEST: f64 = -708.0;

/// Added to a number below 2^51, it leaves the nearest integer in the lowest bits of the sum.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// ln 2 in two parts, the first with so few bits that its products with integers are exact.
const LN_2: [f64; 2] = [6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10];

/// 1/n! from n = 13 down to 2.
const SERIES: [f64; 12] = [
    1.605_904_383_682_161_5e-10,
    2.087_675_698_786_81e-9,
    2.505_210_838_544_172e-8,
    2.755_731_922_398_589e-7,
    2.755_731_922_398_589_3e-6,
    2.480_158_730_158_73e-5,
    1.984_126_984_126_984e-4,
    1.388_888_888_888_889e-3,
    8.333_333_333_333_333e-3,
    4.166_666_666_666_666_4e-2,
    1.666_666_666_666_666_6e-1,
    0.5,
];

/// Returns `e^x` for `x <= 709`, to about 2 units in the last place; for `x` below [`LOWEST`], that of [`LOWEST`].
#[inline(always)]
fn exp(x: f64) -> f64 {
    let x = if x > LOWEST { x } else { LOWEST };
    let sum = x * std::f64::consts::LOG2_E + ROUND;
    let n = sum - ROUND;
    let r = (x - n * LN_2[0]) - n * LN_2[1];
    let mut p = SERIES[0];
    for c in &SERIES[1..] {
        p = p * r + c;
    }
    let p = p * (r * r) + r + 1.0;
    // 2^n · p: the integer n is in the lowest bits of the sum; shifted, it is added to the exponent of p.
    f64::from_bits(p.to_bits().wrapping_add(sum.to_bits() << 52))
}

/// Returns the largest number; -inf for an empty slice.
#[inline(always)]
fn largest(numbers: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (whole, rest) = numbers.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in whole {
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane = larger(*lane, *x));
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, b| larger(a, *b))
}

dispatch! {
    /// Returns `ln Σ exp(logit)` of finite logits; -inf for none.
    pub fn log_sum_exp[](logits: &[f32]) -> f64 = log_sum_exp_kernel
}

#[inline(always)]
unsafe fn log_sum_exp_kernel<S: Simd>(logits: &[f32]) -> f64 {
    let max = f64::from(largest(logits));
    let (whole, rest) = logits.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for chunk in whole {
        for (sum, logit) in sums.iter_mut().zip(chunk) {
            *sum += exp(f64::from(*logit) - max);
        }
    }
    for (sum, logit) in sums.iter_mut().zip(rest) {
        *sum += exp(f64::from(*logit) - max);
    }
    max + sums.iter().sum::<f64>().ln()
}

dispatch! {
    /// Returns `Σ p·(ln p - ln q)` of two distributions over the same vocabulary: p has finite logits whose [`log_sum_exp`] is `log_z`, and
    /// q has the logits `other`, with `other_log_z`. Rounding may make the result negative.
    ///
    /// # Panics
    /// If the numbers of logits differ.
    pub fn divergence[](logits: &[f32], log_z: f64, other: &[f32], other_log_z: f64) -> f64 = divergence_kernel
}

#[inline(always)]
unsafe fn divergence_kernel<S: Simd>(logits: &[f32], log_z: f64, other: &[f32], other_log_z: f64) -> f64 {
    assert_eq!(logits.len(), other.len(), "two distributions are of different vocabularies");
    let shift = other_log_z - log_z;
    let term = |a: f32, b: f32| exp(f64::from(a) - log_z) * (f64::from(a) - f64::from(b) + shift);
    let ((whole, rest), (others, other_rest)) = (logits.as_chunks::<LANES>(), other.as_chunks::<LANES>());
    let mut sums = [0.0; LANES];
    for (chunk, other) in whole.iter().zip(others) {
        for ((sum, a), b) in sums.iter_mut().zip(chunk).zip(other) {
            *sum += term(*a, *b);
        }
    }
    for ((sum, a), b) in sums.iter_mut().zip(rest).zip(other_rest) {
        *sum += term(*a, *b);
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_e_are_those_of_the_standard_library() {
        for i in -7_080..=7_090 {
            for x in [f64::from(i) / 10.0, f64::from(i) / 10.0 + 0.0371] {
                let (ours, exact) = (exp(x.max(LOWEST)), x.max(LOWEST).exp());
                assert!((ours - exact).abs() <= 4.0 * f64::EPSILON * exact, "e^{x}: {ours:e} for {exact:e}");
            }
        }
        assert_eq!([exp(0.0), exp(f64::NEG_INFINITY)], [1.0, exp(LOWEST)]);
    }

    /// Logits of a vocabulary of `n` tokens, some far above the others.
    fn logits(n: usize, seed: usize) -> Vec<f32> {
        (0..n)
            .map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 40.0 - if i % 3 == 0 { 90.0 } else { 3.0 })
            .collect()
    }

    #[test]
    fn sums_and_divergences_are_those_of_plain_loops() {
        for n in [1, 2, 15, 16, 17, 100, 4099] {
            let (ours, other) = (logits(n, 1), logits(n, 2));
            let plain = |logits: &[f32]| logits.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln();
            let (log_z, other_log_z) = (log_sum_exp(&ours), log_sum_exp(&other));
            assert!((log_z - plain(&ours)).abs() < 1e-13 * (1.0 + plain(&ours).abs()), "{n}");
            let term = |(a, b): (&f32, &f32)| {
                let (ln_p, ln_q) = (f64::from(*a) - plain(&ours), f64::from(*b) - plain(&other));
                ln_p.exp() * (ln_p - ln_q)
            };
            let expected: f64 = ours.iter().zip(&other).map(term).sum();
            let got = divergence(&ours, log_z, &other, other_log_z);
            assert!((got - expected).abs() < 1e-12 * (1.0 + expected), "{n}: {got} for {expected}");
            assert!(divergence(&ours, log_z, &ours, log_z).abs() < 1e-15);
        }
    }

    #[test]
    fn the_bits_are_those_of_plain_loops_over_sixteen_sums() {
        let summed = |terms: &[f64]| -> f64 {
            let lane = |lane: usize| terms.iter().skip(lane).step_by(LANES).fold(0.0, |sum, term| sum + term);
            (0..LANES).map(lane).sum()
        };
        for n in [1, 16, 100, 4099] {
            let (ours, other) = (logits(n, 1), logits(n, 2));
            let max = f64::from(ours.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let exponentials: Vec<f64> = ours.iter().map(|x| exp(f64::from(*x) - max)).collect();
            let (log_z, other_log_z) = (log_sum_exp(&ours), log_sum_exp(&other));
            assert_eq!(log_z.to_bits(), (max + summed(&exponentials).ln()).to_bits(), "{n}");
            let shift = other_log_z - log_z;
            let term = |(a, b): (&f32, &f32)| exp(f64::from(*a) - log_z) * (f64::from(*a) - f64::from(*b) + shift);
            let terms: Vec<f64> = ours.iter().zip(&other).map(term).collect();
            assert_eq!(divergence(&ours, log_z, &other, other_log_z).to_bits(), summed(&terms).to_bits(), "{n}");
        }
    }

    #[test]
    fn logits_far_from_zero_neither_overflow_nor_vanish() {
        assert_eq!(log_sum_exp(&[1000.0; 4]), 1000.0 + 4f64.ln());
        assert_eq!(log_sum_exp(&[-1000.0, -1e30]), -1000.0);
        assert_eq!(log_sum_exp(&[]), f64::NEG_INFINITY);
    }
}

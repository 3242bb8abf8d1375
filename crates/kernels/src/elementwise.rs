//! Operations between the matrix products: RMS norm, the gated activation and the logistic function.

use rayon::prelude::*;

use super::simd::{Simd, dispatch};

/// Operations on fewer elements are not split over threads.
const PARALLEL_ELEMENTS: usize = 1 << 17;

/// Number of rows whose squares are summed concurrently.
const SUMS: usize = 4;

/// Computes `out[r] = x[r] / sqrt(mean(x[r]²) + eps) · weight` for each row of `weight.len()` elements.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let width = weight.len();
    assert_eq!(x.len(), out.len(), "input and output differ in length");
    assert_eq!(x.len() % width, 0, "the length is no multiple of the width {width}");
    let row = |mean: f64, x: &[f32], out: &mut [f32]| {
        let scale = 1.0 / (mean as f32 + eps).sqrt();
        for ((o, x), w) in out.iter_mut().zip(x).zip(weight) {
            *o = x * scale * w;
        }
    };
    let rows = |(x, out): (&[f32], &mut [f32])| {
        let squares = sums_of_squares(x, width);
        for ((sum, x), out) in squares.into_iter().zip(x.chunks_exact(width)).zip(out.chunks_exact_mut(width)) {
            row(sum / width as f64, x, out);
        }
    };
    if x.len() < PARALLEL_ELEMENTS {
        x.chunks(SUMS * width).zip(out.chunks_mut(SUMS * width)).for_each(rows);
    } else {
        x.par_chunks(SUMS * width).zip(out.par_chunks_mut(SUMS * width)).for_each(rows);
    }
}

/// Returns the sums of squares of up to [`SUMS`] rows, each in the order of its elements. An addition waits for the previous one, so the
/// sums of several rows are interleaved.
fn sums_of_squares(x: &[f32], width: usize) -> [f64; SUMS] {
    let mut sums = [0.0; SUMS];
    if x.len() == SUMS * width {
        let rows: [&[f32]; SUMS] = std::array::from_fn(|row| &x[row * width..][..width]);
        for column in 0..width {
            for (sum, row) in sums.iter_mut().zip(rows) {
                *sum += f64::from(row[column] * row[column]);
            }
        }
    } else {
        for (sum, row) in sums.iter_mut().zip(x.chunks_exact(width)) {
            *sum = row.iter().map(|x| f64::from(x * x)).sum();
        }
    }
    sums
}

/// Computes SwiGLU: `out[r][c] = silu(x[r][c]) · x[r][width + c]` for rows `x: [gate | up]` of `2·width`.
pub fn silu_gate(x: &[f32], width: usize, out: &mut [f32]) {
    assert_eq!(x.len(), 2 * out.len(), "the input is not twice as long as the output");
    assert_eq!(out.len() % width, 0, "the length is no multiple of the width {width}");
    let row = |(x, out): (&[f32], &mut [f32])| silu_gate_row(&x[..width], &x[width..], out);
    if x.len() < PARALLEL_ELEMENTS {
        x.chunks_exact(2 * width).zip(out.chunks_exact_mut(width)).for_each(row);
    } else {
        x.par_chunks_exact(2 * width).zip(out.par_chunks_exact_mut(width)).for_each(row);
    }
}

/// Computes GeGLU: like [`silu_gate`], with GELU by its approximation `x/2 · (1 + tanh(√(2/π)·(x + 0.044715·x³)))` in place of SiLU.
pub fn gelu_tanh_gate(x: &[f32], width: usize, out: &mut [f32]) {
    assert_eq!(x.len(), 2 * out.len(), "the input is not twice as long as the output");
    assert_eq!(out.len() % width, 0, "the length is no multiple of the width {width}");
    let gelu = |x: f32| {
        let inner = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2 * (x + 0.044_715 * x * x * x);
        0.5 * x * (1.0 + inner.tanh())
    };
    let row = |(x, out): (&[f32], &mut [f32])| {
        out.iter_mut().enumerate().for_each(|(i, out)| *out = gelu(x[i]) * x[width + i]);
    };
    x.par_chunks_exact(2 * width).zip(out.par_chunks_exact_mut(width)).for_each(row);
}

dispatch! {
    fn silu_gate_row[](gate: &[f32], up: &[f32], out: &mut [f32]) = silu_gate_kernel
}

#[inline(always)]
unsafe fn silu_gate_kernel<S: Simd>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    let whole = out.len() / S::LANES * S::LANES;
    assert!(gate.len() >= out.len() && up.len() >= out.len());
    let mut i = 0;
    while i < whole {
        // SAFETY: `i + LANES <= whole <= len` of all three; the CPU supports `S` (caller).
        unsafe {
            let x = S::load(gate.as_ptr().add(i));
            // Clamp, because e^-x overflows below about −88; silu is practically 0 there.
            let minus = S::mul(S::max(x, S::splat(-80.0)), S::splat(-1.0));
            let denominator = S::add(S::splat(1.0), S::exp(minus));
            S::store(out.as_mut_ptr().add(i), S::mul(S::div(x, denominator), S::load(up.as_ptr().add(i))));
        }
        i += S::LANES;
    }
    for i in whole..out.len() {
        out[i] = gate[i] / (1.0 + (-gate[i]).exp()) * up[i];
    }
}

/// Computes `out[i] = 1 / (1 + e^(−x[i]))` to about 1e-7. Values of `x` below −80 count as −80, so the result is never 0.
///
/// # Panics
/// If the slices differ in length.
pub fn sigmoid(x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "input and output differ in length");
    sigmoid_row(x, out);
}

dispatch! {
    fn sigmoid_row[](x: &[f32], out: &mut [f32]) = sigmoid_kernel
}

#[inline(always)]
unsafe fn sigmoid_kernel<S: Simd>(x: &[f32], out: &mut [f32]) {
    let whole = out.len() / S::LANES * S::LANES;
    assert!(x.len() >= out.len());
    let mut i = 0;
    while i < whole {
        // SAFETY: `i + LANES <= whole <= len` of both; the CPU supports `S` (caller).
        unsafe {
            // Clamp, because e^-x overflows below about −88.
            let minus = S::mul(S::max(S::load(x.as_ptr().add(i)), S::splat(-80.0)), S::splat(-1.0));
            let denominator = S::add(S::splat(1.0), S::exp(minus));
            S::store(out.as_mut_ptr().add(i), S::div(S::splat(1.0), denominator));
        }
        i += S::LANES;
    }
    for i in whole..out.len() {
        out[i] = 1.0 / (1.0 + (-x[i].max(-80.0)).exp());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sigmoid_equals_the_formula_and_is_finite_everywhere() {
        for len in [1, 16, 37] {
            let x: Vec<f32> = (0..len).map(|i| (i as f32 * 0.9).sin() * 20.0).collect();
            let mut out = vec![f32::NAN; len];
            sigmoid(&x, &mut out);
            for (x, s) in x.iter().zip(&out) {
                assert!((f64::from(*s) - 1.0 / (1.0 + (-f64::from(*x)).exp())).abs() < 2e-7);
            }
        }
        let mut out = [f32::NAN; 20];
        sigmoid(&[-1e30; 20], &mut out);
        assert!(out.iter().all(|s| *s > 0.0 && *s < 1e-30));
        sigmoid(&[1e30; 20], &mut out);
        assert_eq!(out, [1.0; 20]);
    }

    #[test]
    fn silu_gate_equals_the_formula() {
        for width in [1, 16, 19, 100] {
            let x: Vec<f32> = (0..2 * width * 3).map(|i| (i as f32 * 0.7).sin() * 12.0 - 3.0).collect();
            let mut out = vec![0.0; width * 3];
            silu_gate(&x, width, &mut out);
            for (r, row) in x.chunks(2 * width).enumerate() {
                for c in 0..width {
                    let exact = row[c] as f64 / (1.0 + (-row[c] as f64).exp()) * row[width + c] as f64;
                    assert!((out[r * width + c] as f64 - exact).abs() < 1e-5 * (1.0 + exact.abs()));
                }
            }
        }
    }

    #[test]
    fn silu_of_extreme_values_is_finite() {
        let x = [-1e4f32, 1e4, -200.0, 100.0, 1.0, 1.0, 1.0, 1.0];
        let mut wide = vec![0.0; 64];
        let row: Vec<f32> = x[..4].iter().cycle().take(64).chain(x[4..].iter().cycle().take(64)).copied().collect();
        silu_gate(&row, 64, &mut wide);
        assert!(wide.iter().all(|v| v.is_finite()));
        assert_eq!(wide[1], 1e4);
    }

    #[test]
    fn a_row_is_normed_to_the_same_bits_alone_and_among_others() {
        for (width, rows) in [(1, 9), (37, 1), (37, 4), (37, 7), (256, 515)] {
            let x: Vec<f32> = (0..width * rows).map(|i| (i as f32 * 0.7).sin() * 10f32.powi(i as i32 % 7)).collect();
            let weight: Vec<f32> = (0..width).map(|i| (i as f32 * 0.3).cos()).collect();
            let mut together = vec![f32::NAN; x.len()];
            rms_norm(&x, &weight, 1e-5, &mut together);
            for (x, together) in x.chunks_exact(width).zip(together.chunks_exact(width)) {
                // Sum from the first element to the last.
                let mean = x.iter().fold(0.0, |sum, x| sum + f64::from(x * x)) / width as f64;
                let scale = 1.0 / (mean as f32 + 1e-5).sqrt();
                let expected: Vec<f32> = x.iter().zip(&weight).map(|(x, w)| x * scale * w).collect();
                assert_eq!(together, expected, "{rows} rows of {width}");
            }
        }
    }

    #[test]
    fn rms_norm_gives_unit_mean_square() {
        let x: Vec<f32> = (0..256).map(|i| i as f32 - 100.0).collect();
        let mut out = vec![0.0; 256];
        rms_norm(&x, &[1.0; 256], 0.0, &mut out);
        let mean = out.iter().map(|x| x * x).sum::<f32>() / 256.0;
        assert!((mean - 1.0).abs() < 1e-5);
    }
}

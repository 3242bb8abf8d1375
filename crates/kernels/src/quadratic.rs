//! Linear and quadratic forms of many rows in f64, by which keys are scored under a normal distribution of queries.
//!
//! A vector holds the same column of several rows, so that each row's sums run in the order of its columns: all instruction sets give the
//! same bits as plain loops.

use super::simd::{Simd, dispatch};

/// Number of matrix rows whose sums are interleaved, because an addition waits for the previous one.
const BESIDE: usize = 8;

/// The forms of one row `x: [d]`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Forms {
    /// The linear form `Σ_c m[c]·x[c]`.
    pub linear: f64,
    /// The quadratic form `Σ_i x[i]·(Σ_j s[i][j]·x[j])`.
    pub quadratic: f64,
}

/// Computes the forms of each of `rows: [row][d]`, for `m: [d]` and `s: [d][d]`. Without a matrix (`s` is empty) the quadratic forms are 0.
///
/// # Panics
/// If the slices do not have these shapes.
pub fn forms(m: &[f64], s: &[f64], rows: &[f32]) -> Vec<Forms> {
    let d = m.len();
    assert!(d > 0 && rows.len().is_multiple_of(d), "the rows are not `[row][d]`");
    assert!(s.is_empty() || s.len() == d * d, "the matrix is not `[d][d]`");
    let mut out = vec![Forms::default(); rows.len() / d];
    each_form(m, s, rows, &mut out);
    out
}

dispatch! {
    fn each_form[](m: &[f64], s: &[f64], rows: &[f32], out: &mut [Forms]) = forms_kernel
}

#[inline(always)]
unsafe fn forms_kernel<S: Simd>(m: &[f64], s: &[f64], rows: &[f32], out: &mut [Forms]) {
    let (d, lanes) = (m.len(), S::LANES / 2);
    // The columns of a few rows, `[d][lanes]`; rows missing at the end are 0.
    let mut columns = vec![0.0; d * lanes];
    let (mut linear, mut quadratic) = ([0.0; 16], [0.0; 16]);
    for (rows, out) in rows.chunks(lanes * d).zip(out.chunks_mut(lanes)) {
        columns.fill(0.0);
        for (lane, row) in rows.chunks_exact(d).enumerate() {
            for (c, x) in row.iter().enumerate() {
                columns[c * lanes + lane] = f64::from(*x);
            }
        }
        // SAFETY: `columns` holds `d` vectors, `m` has `d` elements, and `s` has `d` rows of `d` elements or none; at most 16 lanes are
        // stored; the CPU supports `S` (caller).
        unsafe {
            let sum = dots::<S, 1>(m.as_ptr(), d, columns.as_ptr());
            S::store_wide(linear.as_mut_ptr(), sum[0]);
            let mut total = S::splat_wide(0.0);
            let mut i = 0;
            while !s.is_empty() && i + BESIDE <= d {
                let sums = dots::<S, BESIDE>(s.as_ptr().add(i * d), d, columns.as_ptr());
                for (r, sum) in sums.into_iter().enumerate() {
                    let x = S::load_wide(columns.as_ptr().add((i + r) * lanes));
                    total = S::add_wide(total, S::mul_wide(x, sum));
                }
                i += BESIDE;
            }
            while !s.is_empty() && i < d {
                let sum = dots::<S, 1>(s.as_ptr().add(i * d), d, columns.as_ptr());
                let x = S::load_wide(columns.as_ptr().add(i * lanes));
                total = S::add_wide(total, S::mul_wide(x, sum[0]));
                i += 1;
            }
            S::store_wide(quadratic.as_mut_ptr(), total);
        }
        for (lane, out) in out.iter_mut().enumerate() {
            *out = Forms { linear: linear[lane], quadratic: quadratic[lane] };
        }
    }
}

/// Computes the products of `R` rows `[R][d]` of a matrix with each lane of `columns: [d][lanes]`.
///
/// # Safety
/// That many elements are readable at both pointers, and the CPU supports `S`.
#[inline(always)]
unsafe fn dots<S: Simd, const R: usize>(matrix: *const f64, d: usize, columns: *const f64) -> [S::W; R] {
    // SAFETY: `j` is below `d` and `r` below `R` (caller).
    unsafe {
        let mut sums = [S::splat_wide(0.0); R];
        for j in 0..d {
            let x = S::load_wide(columns.add(j * (S::LANES / 2)));
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = S::add_wide(*sum, S::mul_wide(S::splat_wide(*matrix.add(r * d + j)), x));
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the forms by loops, in the order of the columns.
    fn by_loops(m: &[f64], s: &[f64], row: &[f32]) -> Forms {
        let dot = |factors: &[f64]| factors.iter().zip(row).fold(0.0, |sum, (a, x)| sum + a * f64::from(*x));
        let quadratic =
            s.chunks_exact(m.len()).zip(row).fold(0.0, |sum, (factors, x)| sum + f64::from(*x) * dot(factors));
        Forms { linear: dot(m), quadratic }
    }

    #[test]
    fn the_bits_are_those_of_loops_at_every_width_and_number_of_rows() {
        let noise = |n: usize, step: f64| (0..n).map(|i| (i as f64 * step).sin() * (1.0 + i as f64 % 7.0)).collect();
        for d in [1, 7, 8, 20, 64] {
            let (m, s): (Vec<f64>, Vec<f64>) = (noise(d, 0.7), noise(d * d, 1.3));
            for rows in [0, 1, 3, 4, 8, 9, 33] {
                let x: Vec<f32> = noise(rows * d, 2.1).into_iter().map(|x: f64| x as f32).collect();
                for s in [&s[..], &[]] {
                    let expected: Vec<Forms> = x.chunks_exact(d).map(|row| by_loops(&m, s, row)).collect();
                    assert_eq!(forms(&m, s, &x), expected, "{rows} rows of {d}, a matrix of {}", s.len());
                }
            }
        }
    }
}

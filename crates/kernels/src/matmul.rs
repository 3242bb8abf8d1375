//! Products of two f32 matrices in row-major order, for training small networks.
//!
//! The register tiles are those of blocked attention. A product is one sum in a fixed order and runs on one thread, because many small
//! networks are trained in parallel.

use super::prefill::{Factors, RowMajor, Write, product};
use super::simd::{Simd, dispatch};

/// Number of columns of `b` in a pass over the rows.
const PANEL: usize = 64;
/// Number of rows of `a` in a pass over the panels, so that both stay in the cache.
const ROWS: usize = 192;

/// Computes `out[r][c] = Σ_k a[r][k] · b[k][c]` for `a: [rows][depth]` and `b: [depth][width]`.
///
/// # Panics
/// If the slices do not have these shapes.
pub fn matmul(a: &[f32], depth: usize, b: &[f32], width: usize, out: &mut [f32]) {
    checked(a, depth, b, width, out, Write::Replace);
}

/// Like [`matmul`], but adds the product to `out`.
///
/// # Panics
/// Like [`matmul`].
pub fn matmul_add(a: &[f32], depth: usize, b: &[f32], width: usize, out: &mut [f32]) {
    checked(a, depth, b, width, out, Write::Add);
}

/// Like [`matmul`], but the sums start with the contents of `out`. So a product of long factors can be computed from parts of their depth,
/// in order: starting from zeros, this gives the same bits as one product.
///
/// # Panics
/// Like [`matmul`].
pub fn matmul_continue(a: &[f32], depth: usize, b: &[f32], width: usize, out: &mut [f32]) {
    checked(a, depth, b, width, out, Write::Continue);
}

fn checked(a: &[f32], depth: usize, b: &[f32], width: usize, out: &mut [f32], write: Write) {
    let rows = a.len() / depth;
    assert_eq!(a.len(), rows * depth, "`a` is not `[rows][depth]`");
    assert_eq!(b.len(), depth * width, "`b` is not `[depth][width]`");
    assert_eq!(out.len(), rows * width, "the output is not `[rows][width]`");
    panels(a, depth, b, width, out, write);
}

dispatch! {
    fn panels[](a: &[f32], depth: usize, b: &[f32], width: usize, out: &mut [f32], write: Write) = panels_kernel
}

#[inline(always)]
unsafe fn panels_kernel<S: Simd>(a: &[f32], depth: usize, b: &[f32], width: usize, out: &mut [f32], write: Write) {
    for (a, out) in a.chunks(ROWS * depth).zip(out.chunks_mut(ROWS * width)) {
        let rows = a.len() / depth;
        for first in (0..width).step_by(PANEL) {
            let columns = PANEL.min(width - first);
            let (a, b) = (RowMajor { data: a, stride: depth }, RowMajor { data: &b[first..], stride: width });
            let factors = Factors { a, b, rows, depth, width: columns };
            // SAFETY: the CPU supports `S` (caller); `product` checks the shapes.
            unsafe { product::<S>(factors, &mut out[first..], width, write) };
        }
    }
}

/// Returns `x: [rows][columns]` as `[columns][rows]`.
///
/// # Panics
/// If `x` is not `[rows][columns]`.
pub fn transposed(x: &[f32], columns: usize) -> Vec<f32> {
    const TILE: usize = 16;
    let rows = x.len() / columns;
    assert_eq!(x.len(), rows * columns, "`x` is not `[rows][columns]`");
    let mut out = vec![0.0; x.len()];
    for first in (0..rows).step_by(TILE) {
        for c in 0..columns {
            for r in first..(first + TILE).min(rows) {
                out[c * rows + r] = x[r * columns + c];
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_the_plain_product_in_every_shape() {
        let noise = |n: usize, s: f64| (0..n).map(|i| ((i as f64 * s).sin()) as f32).collect::<Vec<f32>>();
        for (rows, depth, width) in [(1, 1, 1), (5, 3, 2), (64, 64, 32), (193, 70, 65), (32, 500, 64), (2, 33, 300)] {
            let (a, b) = (noise(rows * depth, 0.7), noise(depth * width, 1.3));
            let mut out = vec![f32::NAN; rows * width];
            matmul(&a, depth, &b, width, &mut out);
            for r in 0..rows {
                for c in 0..width {
                    let exact: f64 =
                        (0..depth).map(|k| f64::from(a[r * depth + k]) * f64::from(b[k * width + c])).sum();
                    assert!((f64::from(out[r * width + c]) - exact).abs() < 1e-4, "{rows}x{depth}x{width}");
                }
            }
        }
    }

    #[test]
    fn parts_of_the_depth_continue_to_the_same_bits_and_products_are_added() {
        let noise = |n: usize, s: f64| (0..n).map(|i| ((i as f64 * s).sin()) as f32).collect::<Vec<f32>>();
        for (rows, depth, width) in [(1, 5, 1), (5, 30, 2), (63, 70, 64), (193, 70, 65), (3, 500, 37), (2, 33, 300)] {
            let (a, b) = (noise(rows * depth, 0.7), noise(depth * width, 1.3));
            let mut whole = vec![f32::NAN; rows * width];
            matmul(&a, depth, &b, width, &mut whole);
            let mut continued = vec![0.0; rows * width];
            let cut = depth / 3 + 1;
            for part in [0..cut, cut..depth] {
                let a: Vec<f32> = a.chunks_exact(depth).flat_map(|row| &row[part.clone()]).copied().collect();
                let b = &b[part.start * width..part.end * width];
                matmul_continue(&a, part.len(), b, width, &mut continued);
            }
            assert_eq!(continued, whole, "{rows}x{depth}x{width}");
            let mut sum = noise(rows * width, 2.1);
            let expected: Vec<f32> = sum.iter().zip(&whole).map(|(x, product)| x + product).collect();
            matmul_add(&a, depth, &b, width, &mut sum);
            assert_eq!(sum, expected, "{rows}x{depth}x{width}");
        }
    }

    #[test]
    fn transposing_twice_gives_the_matrix() {
        for (rows, columns) in [(1, 1), (17, 3), (40, 65)] {
            let x: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
            let t = transposed(&x, columns);
            assert!((0..rows * columns).all(|i| t[i % columns * rows + i / columns] == x[i]));
            assert_eq!(transposed(&t, rows), x);
        }
    }
}

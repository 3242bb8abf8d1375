//! Determines on which side of many hyperplanes vectors lie: the bits of random-projection hashes.
//!
//! The projections are a matrix product with a short inner dimension. It runs on the register tiles of the blocked product (lanes across
//! planes, no sums across lanes), and only signs leave the cache.

use super::prefill::{Factors, RowMajor, Write, product};
use super::simd::{Simd, dispatch};

/// Number of planes packed together: the bits of one output word.
const PANEL: usize = u64::BITS as usize;
/// Number of vectors projected between two passes over the planes; a multiple of every register tile's height.
const VECTORS: usize = 48;

/// Hyperplanes through the origin, given by their normals.
#[derive(Debug, Clone)]
pub struct Hyperplanes {
    /// The normals `[panel][d][PANEL]`, zero beyond the last plane.
    packed: Vec<f32>,
    count: usize,
    d: usize,
}

impl Hyperplanes {
    /// Packs `normals: [plane][d]`.
    ///
    /// # Panics
    /// If `normals` is not `[count][d]`.
    pub fn new(normals: &[f32], d: usize) -> Self {
        let count = normals.len() / d;
        assert_eq!(normals.len(), count * d, "normals are not `[count][d]`");
        let mut packed = vec![0.0; count.div_ceil(PANEL) * PANEL * d];
        for (plane, normal) in normals.chunks_exact(d).enumerate() {
            let panel = &mut packed[plane / PANEL * PANEL * d..];
            for (c, x) in normal.iter().enumerate() {
                panel[c * PANEL + plane % PANEL] = *x;
            }
        }
        Self { packed, count, d }
    }

    /// Number of planes.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Width of the vectors.
    pub fn d(&self) -> usize {
        self.d
    }

    /// Number of 64-bit words that hold one bit for each plane.
    pub fn words(&self) -> usize {
        self.count.div_ceil(PANEL)
    }

    /// Bytes of the normals.
    pub fn bytes(&self) -> usize {
        self.count * self.d * size_of::<f32>()
    }

    /// Computes, for each of `vectors: [rows][d]`, a bit for each plane: 1 where `x · normal > 0`.
    ///
    /// Plane `p` is bit `p % 64` of word `p / 64` of its row of `bits: [rows][words]`. A row's bits do not depend on the other rows.
    ///
    /// # Panics
    /// If the slices do not have these shapes.
    pub fn side_bits(&self, vectors: &[f32], bits: &mut [u64]) {
        let rows = vectors.len() / self.d;
        assert_eq!(vectors.len(), rows * self.d, "vectors are not `[rows][d]`");
        assert_eq!(bits.len(), rows * self.words(), "the output is not `[rows][words]`");
        side_bits(self, vectors, bits);
    }
}

dispatch! {
    fn side_bits[](planes: &Hyperplanes, vectors: &[f32], bits: &mut [u64]) = side_bits_kernel
}

#[inline(always)]
unsafe fn side_bits_kernel<S: Simd>(planes: &Hyperplanes, vectors: &[f32], bits: &mut [u64]) {
    let (d, words) = (planes.d, planes.words());
    let mut projections = [0.0f32; VECTORS * PANEL];
    for (x, bits) in vectors.chunks(VECTORS * d).zip(bits.chunks_mut(VECTORS * words)) {
        let rows = x.len() / d;
        for (word, panel) in planes.packed.chunks_exact(PANEL * d).enumerate() {
            let (a, b) = (RowMajor { data: x, stride: d }, RowMajor { data: panel, stride: PANEL });
            let factors = Factors { a, b, rows, depth: d, width: PANEL };
            // SAFETY: the CPU supports `S` (caller); `product` checks the shapes.
            unsafe { product::<S>(factors, &mut projections, PANEL, Write::Replace) };
            for (row, bits) in projections.chunks_exact(PANEL).zip(bits.chunks_exact_mut(words)) {
                // SAFETY: the CPU supports `S` (caller); a row holds one panel.
                bits[word] = unsafe { positive_bits::<S>(row) };
            }
        }
    }
}

/// Returns a bit for each element of `row`, set if it is positive.
///
/// # Safety
/// `row` holds at least `PANEL` elements; the CPU supports `S`.
#[inline(always)]
unsafe fn positive_bits<S: Simd>(row: &[f32]) -> u64 {
    let mut bits = 0;
    for first in (0..PANEL).step_by(S::LANES) {
        // SAFETY: PANEL is a multiple of every lane count, so the load stays within the row (caller).
        bits |= u64::from(unsafe { S::positive(S::load(row.as_ptr().add(first))) }) << first;
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let mut s = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
        (0..n)
            .map(|_| {
                s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (s >> 8) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    /// Compares bits with `f64` projections, except for projections so small that rounding could flip their sign.
    fn check(rows: usize, count: usize, d: usize) {
        let (x, normals) = (noise(rows * d, 1), noise(count * d, 2));
        let planes = Hyperplanes::new(&normals, d);
        assert_eq!((planes.count(), planes.d(), planes.words()), (count, d, count.div_ceil(64)));
        let mut bits = vec![u64::MAX; rows * planes.words()];
        planes.side_bits(&x, &mut bits);
        let mut checked = 0;
        for (x, bits) in x.chunks(d).zip(bits.chunks(planes.words())) {
            for (plane, normal) in normals.chunks(d).enumerate() {
                let exact: f64 = x.iter().zip(normal).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                if exact.abs() > 1e-4 {
                    assert_eq!(bits[plane / 64] >> (plane % 64) & 1 == 1, exact > 0.0, "{rows}x{count}x{d}");
                    checked += 1;
                }
            }
            for plane in count..planes.words() * 64 {
                assert_eq!(bits[plane / 64] >> (plane % 64) & 1, 0, "no plane, no bit");
            }
        }
        assert!(checked > rows * count * 9 / 10);
    }

    #[test]
    fn bits_are_the_signs_of_the_plain_product_in_every_shape() {
        for (rows, count, d) in [(1, 1, 1), (1, 64, 16), (3, 65, 33), (7, 100, 64), (50, 130, 65), (97, 200, 128)] {
            check(rows, count, d);
        }
    }

    #[test]
    fn a_row_has_the_same_bits_in_any_batch() {
        let (rows, d) = (101, 48);
        let x = noise(rows * d, 3);
        let planes = Hyperplanes::new(&noise(150 * d, 4), d);
        let words = planes.words();
        let mut together = vec![0; rows * words];
        planes.side_bits(&x, &mut together);
        for (x, together) in x.chunks(d).zip(together.chunks(words)) {
            let mut alone = vec![0; words];
            planes.side_bits(x, &mut alone);
            assert_eq!(alone, together);
        }
    }

    #[test]
    fn nothing_lies_on_the_positive_side_of_a_zero_vector() {
        let planes = Hyperplanes::new(&noise(70 * 8, 5), 8);
        let mut bits = vec![u64::MAX; 2];
        planes.side_bits(&[0.0; 8], &mut bits);
        assert_eq!(bits, [0, 0]);
    }
}

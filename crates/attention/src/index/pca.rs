//! Principal components: the mean and covariance of rows, and the covariance's eigenvectors.
//!
//! Heads are at most a few hundred wide, so cyclic Jacobi rotations are fast enough (milliseconds) and accurate to the last bits; no
//! library is needed.

/// Sums, in f64, that give the covariance of rows of width `d`.
#[derive(Debug, Clone)]
pub struct Covariance {
    d: usize,
    count: u64,
    sum: Vec<f64>,
    /// Sums of products `[i][j]`, only for `j >= i`.
    products: Vec<f64>,
}

/// Orthonormal directions, sorted by the variance along them.
#[derive(Debug, Clone, PartialEq)]
pub struct Components {
    /// The directions `[component][d]`.
    pub directions: Vec<f64>,
    /// Variance along each direction, descending, never negative.
    pub variances: Vec<f64>,
}

impl Covariance {
    /// A covariance of no rows.
    pub fn new(d: usize) -> Self {
        Self { d, count: 0, sum: vec![0.0; d], products: vec![0.0; d * d] }
    }

    /// Adds rows `[row][d]`.
    pub fn add(&mut self, rows: &[f32]) {
        let d = self.d;
        for row in rows.chunks_exact(d) {
            self.count += 1;
            for (i, x) in row.iter().enumerate() {
                let x = f64::from(*x);
                self.sum[i] += x;
                for (p, y) in self.products[i * d + i..(i + 1) * d].iter_mut().zip(&row[i..]) {
                    *p += x * f64::from(*y);
                }
            }
        }
    }

    /// Returns all sums: the number of rows, their sum `[d]`, the sums of products `[d][d]`.
    pub(crate) fn sums(&self) -> Vec<f64> {
        [&[self.count as f64][..], &self.sum, &self.products].concat()
    }

    /// Restores the [`sums`](Self::sums) of a covariance of the same width.
    ///
    /// # Panics
    /// If there are fewer numbers.
    pub(crate) fn set_sums(&mut self, sums: &[f64]) {
        let (sum, products) = sums[1..].split_at(self.d);
        self.count = sums[0] as u64;
        self.sum.copy_from_slice(sum);
        self.products.copy_from_slice(products);
    }

    /// Returns the covariance `[d][d]`; zeros if there are no rows.
    pub fn matrix(&self) -> Vec<f64> {
        let (d, n) = (self.d, self.count.max(1) as f64);
        let mut matrix = vec![0.0; d * d];
        for i in 0..d {
            for j in i..d {
                let c = self.products[i * d + j] / n - self.sum[i] / n * (self.sum[j] / n);
                (matrix[i * d + j], matrix[j * d + i]) = (c, c);
            }
        }
        matrix
    }

    /// Returns all `d` principal components.
    pub fn components(&self) -> Components {
        let (values, vectors) = symmetric_eigen(self.matrix(), self.d);
        let mut order: Vec<usize> = (0..self.d).collect();
        order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
        let direction = |&i: &usize| {
            let mut column: Vec<f64> = (0..self.d).map(|row| vectors[row * self.d + i]).collect();
            // An eigenvector's sign is arbitrary; make its largest entry positive.
            let largest = column.iter().copied().fold(0.0f64, |m, x| if x.abs() > m.abs() { x } else { m });
            if largest < 0.0 {
                column.iter_mut().for_each(|x| *x = -*x);
            }
            column
        };
        Components {
            directions: order.iter().flat_map(direction).collect(),
            variances: order.iter().map(|&i| values[i].max(0.0)).collect(),
        }
    }
}

/// Returns the eigenvalues, and the eigenvectors as columns, of a symmetric matrix `[d][d]` (cyclic Jacobi; Golub and Van Loan,
/// Matrix Computations, §8.5).
fn symmetric_eigen(mut a: Vec<f64>, d: usize) -> (Vec<f64>, Vec<f64>) {
    const MOST_SWEEPS: usize = 50;
    let mut v = vec![0.0; d * d];
    (0..d).for_each(|i| v[i * d + i] = 1.0);
    let norm: f64 = a.iter().map(|x| x * x).sum::<f64>();
    for _ in 0..MOST_SWEEPS {
        let off: f64 = (0..d).flat_map(|i| (i + 1..d).map(move |j| (i, j))).map(|(i, j)| a[i * d + j].powi(2)).sum();
        if off <= 1e-28 * norm {
            break;
        }
        for p in 0..d {
            for q in p + 1..d {
                rotate(&mut a, &mut v, d, p, q);
            }
        }
    }
    ((0..d).map(|i| a[i * d + i]).collect(), v)
}

/// Rotates the plane of axes `p` and `q` so that `a[p][q]` becomes 0.
fn rotate(a: &mut [f64], v: &mut [f64], d: usize, p: usize, q: usize) {
    let apq = a[p * d + q];
    if apq == 0.0 {
        return;
    }
    let theta = (a[q * d + q] - a[p * d + p]) / (2.0 * apq);
    let t = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
    let cos = 1.0 / (t * t + 1.0).sqrt();
    let sin = t * cos;
    for k in 0..d {
        let (x, y) = (a[k * d + p], a[k * d + q]);
        (a[k * d + p], a[k * d + q]) = (cos * x - sin * y, sin * x + cos * y);
    }
    for k in 0..d {
        let (x, y) = (a[p * d + k], a[q * d + k]);
        (a[p * d + k], a[q * d + k]) = (cos * x - sin * y, sin * x + cos * y);
    }
    for k in 0..d {
        let (x, y) = (v[k * d + p], v[k * d + q]);
        (v[k * d + p], v[k * d + q]) = (cos * x - sin * y, sin * x + cos * y);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    fn noise(n: usize, seed: u64) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..n).map(|_| rng.random_range(-1.0..1.0)).collect()
    }

    fn dot(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(x, y)| x * y).sum()
    }

    fn covariance(rows: &[f32], d: usize) -> Covariance {
        let mut covariance = Covariance::new(d);
        covariance.add(rows);
        covariance
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn components_are_orthonormal_sorted_and_give_the_covariance_back(
            seed in 0u64..1000, d in 1usize..40, rows in 0usize..120,
        ) {
            let covariance = covariance(&noise(rows * d, seed), d);
            let Components { directions, variances } = covariance.components();
            let direction = |i: usize| &directions[i * d..][..d];
            for i in 0..d {
                prop_assert!(variances[i] >= 0.0 && (i == 0 || variances[i] <= variances[i - 1]));
                for j in 0..d {
                    let expected = f64::from(u8::from(i == j));
                    prop_assert!((dot(direction(i), direction(j)) - expected).abs() < 1e-10, "{} {}", i, j);
                }
            }
            for (at, c) in covariance.matrix().iter().enumerate() {
                let (i, j) = (at / d, at % d);
                let sum: f64 = (0..d).map(|k| variances[k] * direction(k)[i] * direction(k)[j]).sum();
                prop_assert!((sum - c).abs() < 1e-9, "{} instead of {}", sum, c);
            }
        }
    }

    #[test]
    fn a_planted_subspace_is_found_wherever_its_centre_is() {
        let (d, rank, rows) = (48, 5, 400);
        let basis = noise(rank * d, 1);
        let centre = noise(d, 2);
        let weights = noise(rows * rank, 3);
        let mut data = Vec::new();
        for w in weights.chunks(rank) {
            for c in 0..d {
                data.push(10.0 * centre[c] + (0..rank).map(|r| w[r] * basis[r * d + c]).sum::<f32>());
            }
        }
        let Components { directions, variances } = covariance(&data, d).components();
        let kept: f64 = variances[..rank].iter().sum();
        assert!(variances[rank..].iter().sum::<f64>() < 1e-8 * kept);
        for planted in basis.chunks(d) {
            let planted: Vec<f64> = planted.iter().map(|x| f64::from(*x)).collect();
            let inside: f64 = (0..rank).map(|r| dot(&directions[r * d..][..d], &planted).powi(2)).sum();
            assert!((inside / dot(&planted, &planted) - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn rows_may_come_in_any_pieces() {
        let rows = noise(64 * 16, 7);
        let mut pieces = Covariance::new(16);
        rows.chunks(5 * 16).for_each(|piece| pieces.add(piece));
        assert_eq!(pieces.components(), covariance(&rows, 16).components());
    }
}

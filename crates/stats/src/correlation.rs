//! Correlation of two quantities.

use super::Estimate;
use super::distributions::Z;

/// Returns Pearson's correlation, with an interval by Fisher's z. `None` for fewer than three pairs, or if either quantity does not
/// vary; no interval for fewer than four pairs.
pub fn correlation(pairs: &[(f64, f64)]) -> Option<Estimate> {
    const LEAST: usize = 3;
    let n = pairs.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|pair| pair.0), mean(|pair| pair.1));
    let sum = |of: &dyn Fn(f64, f64) -> f64| pairs.iter().map(|pair| of(pair.0 - x, pair.1 - y)).sum::<f64>();
    let spread = (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt();
    if pairs.len() < LEAST || spread <= 0.0 {
        return None;
    }
    let r = (sum(&|a, b| a * b) / spread).clamp(-1.0, 1.0);
    let half = Z / (n - LEAST as f64).sqrt();
    let ends = (pairs.len() > LEAST && r.abs() < 1.0).then(|| ((r.atanh() - half).tanh(), (r.atanh() + half).tanh()));
    Some(Estimate { mean: r, ends })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn correlation_is_that_of_scipy() {
        // SciPy 1.17.1, pearsonr of Top-k's Table 3, and its confidence_interval().
        let pairs = [(0.001, 1.93), (0.27, 2.33), (0.23, 2.27), (0.11, 2.11), (8.87, 2.68)];
        let found = correlation(&pairs).unwrap();
        let (low, high) = found.ends.unwrap();
        assert!((found.mean - PUBLISHED.0).abs() < 1e-12, "{found:?}");
        assert!((low - PUBLISHED.1).abs() < 1e-12 && (high - PUBLISHED.2).abs() < 1e-12, "{found:?}");
        // 1, 2, 3 with 1, 3, 2: computed by hand, 0.5.
        assert!((correlation(&[(1.0, 1.0), (2.0, 3.0), (3.0, 2.0)]).unwrap().mean - 0.5).abs() < 1e-12);
        assert_eq!(correlation(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0), (3.0, 7.0)]).unwrap().ends, None, "a line");
        assert_eq!(correlation(&pairs[..2]), None);
        assert_eq!(correlation(&pairs[..3]).unwrap().ends, None);
        assert_eq!(correlation(&[(1.0, 1.0), (2.0, 1.0), (3.0, 1.0)]), None);
    }

    const PUBLISHED: (f64, f64, f64) = (0.846_412_575_484_281_3, -0.141_581_298_824_415, 0.989_648_044_388_054_6);
}

//! How certain a difference must be before it counts as one.

use super::distributions::{Z, normal_tail, root, t_quantile, t_tail};

/// The largest probability with which noise alone may look like a gain, and equally like a loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    tail: f64,
    z: f64,
}

impl Level {
    /// For a single comparison: 2.5 %, so a difference counts if its 95 % interval does not contain 0.
    pub const SINGLE: Self = Self { tail: 0.025, z: Z };

    /// For each of several comparisons, so that noise looks like a gain in any of them with a probability of at most 2.5 % (Bonferroni),
    /// however they depend on each other.
    ///
    /// This also holds if the best of several methods is compared with each of the others, although the same examples chose it: the truly
    /// best method is taken for a worse one only if another gains on it by noise, and there are as many others as comparisons.
    pub fn of_each(comparisons: usize) -> Self {
        /// In doubles, the probability of a greater normal variable is 0.
        const GREATEST: f64 = 38.0;
        if comparisons <= 1 {
            return Self::SINGLE;
        }
        let tail = Self::SINGLE.tail / comparisons as f64;
        Self { tail, z: root(Z, GREATEST, |z| tail - normal_tail(z)) }
    }

    /// The standard normal quantile with this tail probability above it.
    pub(super) fn z(self) -> f64 {
        self.z
    }

    /// The same for Student's t distribution.
    pub(super) fn t(self, freedom: f64) -> f64 {
        /// The quantile for one degree of freedom and 10⁹ comparisons.
        const GREATEST: f64 = 1e11;
        match self == Self::SINGLE {
            true => t_quantile(freedom),
            false => root(1.0, GREATEST, |t| self.tail - t_tail(t, freedom)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference: mpmath 1.3.0 with 30 digits, roots of `erfc(z / sqrt(2)) / 2 - 0.025 / m` and of the tail of Student's t with
    /// four degrees of freedom, `betainc(2, 1 / 2, 0, 4 / (4 + t ** 2), regularized=True) / 2 - 0.025 / m`.
    const OF_EACH: [(usize, f64, f64); 3] = [
        (1, 1.959_963_984_540_054, 2.776_445_105_197_794),
        (4, 2.497_705_474_412_373, 4.314_656_048_886_738),
        (100, 3.480_756_404_346_213, 10.306_254_681_807_76),
    ];

    #[test]
    fn each_of_several_comparisons_has_its_share_of_the_error() {
        for (comparisons, z, t) in OF_EACH {
            let level = Level::of_each(comparisons);
            assert!((level.z() - z).abs() < 1e-9, "{comparisons}: {}", level.z());
            assert!((level.t(4.0) - t).abs() < 1e-9 * t, "{comparisons}: {}", level.t(4.0));
        }
        assert_eq!(Level::of_each(0), Level::SINGLE, "nothing is compared");
    }
}

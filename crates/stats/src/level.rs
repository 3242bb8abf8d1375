//! How sure a difference has to be before it counts as one.

use super::distributions::{Z, normal_tail, root, t_quantile, t_tail};

/// The probability that noise alone looks like a gain, at most; and the same for a loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    tail: f64,
    z: f64,
}

impl Level {
    /// Of a comparison by itself: 2.5 %, as where its 95 % interval lies beyond 0.
    pub const SINGLE: Self = Self { tail: 0.025, z: Z };

    /// Of each of so many comparisons, so that in all of them together noise looks like a gain with 2.5 % at most (Bonferroni),
    /// however they depend on each other.
    ///
    /// Where the best of several is compared with each of the others, that holds although the best was chosen by the same
    /// examples: the one that is best in truth is taken for a worse one only if another gains on it by noise, and the others
    /// are as many as the comparisons.
    pub fn of_each(comparisons: usize) -> Self {
        /// No normal variable is greater, as far as doubles tell.
        const GREATEST: f64 = 38.0;
        if comparisons <= 1 {
            return Self::SINGLE;
        }
        let tail = Self::SINGLE.tail / comparisons as f64;
        Self { tail, z: root(Z, GREATEST, |z| tail - normal_tail(z)) }
    }

    /// The quantile of the standard normal distribution above which its tail lies.
    pub(super) fn z(self) -> f64 {
        self.z
    }

    /// The same of Student's t distribution.
    pub(super) fn t(self, freedom: f64) -> f64 {
        /// Of one degree of freedom, for 10⁹ comparisons.
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

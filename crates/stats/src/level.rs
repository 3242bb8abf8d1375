//! How certain a difference must be before it counts as one.

use super::distributions::{Z, normal_tail, root, t_quantile, t_tail};

/// The smallest share of samples whose interval contains the true value.
pub const CONFIDENCE: f64 = 0.95;

/// The largest probability with which noise alone may look like a gain, and equally like a loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    tail: f64,
    z: f64,
}

impl Level {
    /// The level for a single comparison: 2.5 %, so a difference counts if its 95 % interval does not contain 0.
    pub const SINGLE: Self = Self { tail: 0.025, z: Z };

    /// The level for each of several comparisons at which noise looks like a gain in any of them with a probability of at most 2.5 %
    /// (Bonferroni), however they depend on each other.
    ///
    /// This also holds if the best of several methods is compared with each of the others, although the same examples chose it: the truly
    /// best method is mistaken for a worse one only if another gains on it by noise, and there are as many others as comparisons.
    pub fn of_each(comparisons: usize) -> Self {
        match comparisons {
            0 | 1 => Self::SINGLE,
            several => Self::of_tail(Self::SINGLE.tail / several as f64),
        }
    }

    /// The level for each of several comparisons at which all of their intervals together contain the truth with this confidence, a share
    /// between 0.5 and 1. At 0.95 it is [`of_each`](Self::of_each).
    pub fn with(confidence: f64, comparisons: usize) -> Self {
        match confidence == CONFIDENCE {
            true => Self::of_each(comparisons),
            false => Self::of_tail((1.0 - confidence) / 2.0 / comparisons.max(1) as f64),
        }
    }

    fn of_tail(tail: f64) -> Self {
        /// In doubles, the probability of a larger normal variable is 0.
        const GREATEST: f64 = 38.0;
        let least = if tail > Self::SINGLE.tail { 0.0 } else { Z };
        Self { tail, z: root(least, GREATEST, |z| tail - normal_tail(z)) }
    }

    /// The probability that noise alone looks like a gain, and equally like a loss.
    pub(super) fn tail(self) -> f64 {
        self.tail
    }

    /// Returns the standard normal quantile with this tail probability above it.
    pub(super) fn z(self) -> f64 {
        self.z
    }

    /// Returns the quantile of Student's t distribution with this tail probability above it.
    pub(super) fn t(self, freedom: f64) -> f64 {
        /// The quantile for one degree of freedom and 10⁹ comparisons.
        const GREATEST: f64 = 1e11;
        if self == Self::SINGLE {
            return t_quantile(freedom);
        }
        let least = if self.tail > Self::SINGLE.tail { 0.0 } else { 1.0 };
        root(least, GREATEST, |t| self.tail - t_tail(t, freedom))
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

    #[test]
    fn another_confidence_is_another_quantile() {
        // Standard normal quantiles of 95 % and 99.5 % (scipy 1.17.1, `stats.norm.ppf`), and Student's t of 95 % for four degrees of freedom.
        let (less, more) = (Level::with(0.9, 1), Level::with(0.99, 1));
        assert!((less.z() - 1.644_853_626_951_472_2).abs() < 1e-9, "{less:?}");
        assert!((more.z() - 2.575_829_303_548_900_4).abs() < 1e-9, "{more:?}");
        assert!((less.t(4.0) - 2.131_846_786_326_649).abs() < 1e-9, "{}", less.t(4.0));
        assert_eq!(Level::with(0.95, 4), Level::of_each(4));
        assert!((Level::with(0.9, 2).tail() - 0.025).abs() < 1e-15);
    }
}

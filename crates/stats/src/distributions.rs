//! Quantiles and tail probabilities of the normal, Student's t and beta distributions.
//!
//! Quantiles are found by bisection of the distribution function, which terminates for every parameter and is fast enough for thousands
//! of rows.

use statrs::function::beta::beta_reg;
use statrs::function::erf::erfc;

/// The 97.5 % quantile of the standard normal distribution.
pub const Z: f64 = 1.959_963_984_540_054;

/// The probability that a standard normal variable is greater than `z`.
pub fn normal_tail(z: f64) -> f64 {
    0.5 * erfc(z / std::f64::consts::SQRT_2)
}

/// The probability that a variable of Student's t distribution is greater than `t`.
pub fn t_tail(t: f64, freedom: f64) -> f64 {
    let beyond = 0.5 * beta_reg(freedom / 2.0, 0.5, freedom / (freedom + t * t));
    if t >= 0.0 { beyond } else { 1.0 - beyond }
}

/// The 97.5 % quantile of Student's t distribution.
pub fn t_quantile(freedom: f64) -> f64 {
    // The largest quantile is 12.7, for one degree of freedom.
    root(1.0, 13.0, |t| 0.025 - t_tail(t, freedom))
}

/// The quantile of the beta distribution.
pub fn beta_quantile(a: f64, b: f64, share: f64) -> f64 {
    root(0.0, 1.0, |x| beta_reg(a, b, x) - share)
}

/// The probability that at most `k` of `n` fair coins show heads; `k` is below `n`.
pub fn half_tail(n: usize, k: usize) -> f64 {
    beta_reg((n - k) as f64, (k + 1) as f64, 0.5)
}

/// Returns the zero of an increasing function between `low` and `high`; the nearer end if there is none.
pub fn root(mut low: f64, mut high: f64, increasing: impl Fn(f64) -> f64) -> f64 {
    // Bisect until the bounds are adjacent doubles; their digits and exponents need no more steps than this.
    const MOST: usize = 200;
    for _ in 0..MOST {
        let middle = low + (high - low) / 2.0;
        if middle <= low || middle >= high {
            break;
        }
        if increasing(middle) < 0.0 { low = middle } else { high = middle }
    }
    low + (high - low) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(value: f64, expected: f64) -> bool {
        (value - expected).abs() <= 1e-9 * expected.abs()
    }

    /// Reference: scipy 1.17.1, `stats.norm.sf`, `stats.t.sf`, `stats.t.ppf(.975, df)`, `stats.beta.ppf`.
    #[test]
    fn quantiles_and_tails_are_scipys() {
        assert!(close(normal_tail(Z), 0.025) && close(normal_tail(6.0), 9.865_876_450_377e-10));
        for (freedom, expected) in T {
            assert!(close(t_quantile(freedom), expected), "{freedom}: {}", t_quantile(freedom));
        }
        assert!(close(t_tail(3.5, 4.0), T_TAIL) && close(t_tail(-3.5, 4.0), 1.0 - T_TAIL));
        for (a, b, share, expected) in BETA {
            let found = beta_quantile(a, b, share);
            assert!(close(found, expected), "{a} {b} {share}: {found}");
        }
    }

    const T: [(f64, f64); 5] = [
        (1.0, 12.706_204_736_174_694),
        (2.0, 4.302_652_729_749_462),
        (19.0, 2.093_024_054_408_308_7),
        (99.0, 1.984_216_951_586_417_4),
        (100_000.0, 1.959_987_707_534_609_5),
    ];
    const T_TAIL: f64 = 0.012_448_081_730_111_374;
    const BETA: [(f64, f64, f64, f64); 6] = [
        (4.0, 7.0, 0.8, 0.483_657_237_414_851_6),
        (0.3, 1.3, 0.025, 3.232_923_854_601_271_8e-6),
        (59.0, 2.0, 0.025, 0.910_600_949_942_513),
        (1.0, 20.0, 0.975, 0.168_433_470_983_085_3),
        (4900.5, 100.5, 0.975, 0.983_607_873_824_540_6),
        (20.0, 1.0, 0.025, 0.831_566_529_016_914_6),
    ];
}

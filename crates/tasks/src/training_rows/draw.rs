//! Random numbers that several families of rows draw.

use crate::seed::Draw;

/// A uniformly distributed number in `0.0..1.0`.
pub(crate) fn fraction(draw: &mut Draw) -> f64 {
    const STEPS: usize = 1 << 30;
    draw.below(STEPS) as f64 / STEPS as f64
}

/// A number from `low` to `high` whose logarithm is uniformly distributed.
pub(crate) fn log_uniform(low: f64, high: f64, draw: &mut Draw) -> usize {
    (low * (high / low).max(1.0).powf(fraction(draw))) as usize
}

/// True with a probability of `percent` %.
pub(crate) fn percent(percent: usize, draw: &mut Draw) -> bool {
    draw.below(100) < percent
}

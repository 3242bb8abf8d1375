//! Draws that several families of rows make.

use crate::seed::Draw;

/// A number in 0..1.
pub(crate) fn fraction(draw: &mut Draw) -> f64 {
    const STEPS: usize = 1 << 30;
    draw.below(STEPS) as f64 / STEPS as f64
}

/// A number between `low` and `high`, every factor equally likely.
pub(crate) fn log_uniform(low: f64, high: f64, draw: &mut Draw) -> usize {
    (low * (high / low).max(1.0).powf(fraction(draw))) as usize
}

/// Whether something happens that happens `percent` times in a hundred.
pub(crate) fn percent(percent: usize, draw: &mut Draw) -> bool {
    draw.below(100) < percent
}

//! The probability that a token is sampled, from its angle to the query and the shape of the tables (eq. 10).

use std::f64::consts::PI;

use super::tables::Shape;

/// Probability that a random hyperplane leaves two vectors on one side, from their cosine.
///
/// At least `√(2ε)/π`: the smallest angle from 180° that a cosine with precision `ε = 2^−23` can resolve.
pub(super) fn agreement(cos: f64) -> f64 {
    let smallest = (2.0 * f64::from(f32::EPSILON)).sqrt() / PI;
    (1.0 - cos.clamp(-1.0, 1.0).acos() / PI).max(smallest)
}

/// `u`: the probability of a collision in at least `least` (1 or 2) tables, from that of agreement on one sign.
pub(super) fn sampling_probability(shape: Shape, least: u8, agreement: f64) -> f64 {
    let c = agreement.powi(shape.bits as i32);
    match least {
        1 => at_least_one(c, shape.tables as f64),
        _ => at_least_two(c, shape.tables as f64),
    }
}

/// `1 − (1 − c)^L`: probability of a collision in at least one of `L` tables, each with probability `c`.
pub(super) fn at_least_one(c: f64, tables: f64) -> f64 {
    -(tables * (-c).ln_1p()).exp_m1()
}

/// `1 − (1 − c)^L − L·c·(1 − c)^(L−1)` (eq. 10): the same for at least two tables.
pub(super) fn at_least_two(c: f64, tables: f64) -> f64 {
    if tables * c < 1e-4 {
        // The differences would cancel; the first two terms of the series are exact to (L·c)².
        return 0.5 * tables * (tables - 1.0) * c * c * (1.0 - 2.0 / 3.0 * (tables - 2.0) * c);
    }
    at_least_one(c, tables) - tables * c * ((tables - 1.0) * (-c).ln_1p()).exp()
}

/// Table of `ln(floor + u)` by cosine, interpolated. Computing it for every sampled token would take longer than attending them.
pub(super) struct LogProbability {
    shape: Shape,
    least: u8,
    floor: f64,
    /// At equal steps of the sine of half the angle, in which it is smooth, up to [`Self::FARTHEST`].
    pub(super) steps: Vec<f32>,
}

impl LogProbability {
    /// Number of steps, such that the error is that of single precision.
    const STEPS: usize = 8192;
    /// Sine of half of 129°. Tokens at larger angles are sampled so rarely that their value is computed.
    pub const FARTHEST: f64 = 0.9;

    pub fn new(shape: Shape, least: u8, floor: f64) -> Self {
        let mut table = Self { shape, least, floor, steps: Vec::new() };
        let sine = |step: usize| step as f64 * Self::FARTHEST / Self::STEPS as f64;
        table.steps = (0..=Self::STEPS).map(|step| table.exact(1.0 - 2.0 * sine(step).powi(2))).collect();
        table
    }

    #[cold]
    fn exact(&self, cos: f64) -> f32 {
        (self.floor + sampling_probability(self.shape, self.least, agreement(cos))).ln() as f32
    }

    /// The logarithm for a token at this cosine to the query.
    #[inline]
    pub fn at(&self, cos: f64) -> f32 {
        let sine = (0.5 - 0.5 * cos.clamp(-1.0, 1.0)).sqrt();
        let at = sine * (Self::STEPS as f64 / Self::FARTHEST);
        match self.steps.get(at as usize..at as usize + 2) {
            // Not `fract`, which calls a function where the processor may lack the instruction.
            Some(&[low, high]) => low + (at - (at as usize) as f64) as f32 * (high - low),
            _ => self.exact(cos),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpolation_is_as_exact_as_single_precision() {
        for (bits, tables, least, floor) in [(10, 150, 2, 0.0), (11, 300, 2, 1e-4), (8, 75, 1, 0.0), (1, 2, 2, 0.0)] {
            let table = LogProbability::new(Shape { bits, tables }, least, floor);
            for cos in (-1000..=1000).map(|i| f64::from(i) / 1000.0) {
                let (found, exact) = (f64::from(table.at(cos)), f64::from(table.exact(cos)));
                let error = (found - exact).abs() / exact.abs().max(1.0);
                assert!(error < 1e-6, "K={bits} L={tables} at {cos}: {found}, {exact}");
            }
            assert_eq!(table.at(1.0 + 1e-9), table.exact(1.0));
        }
    }
}

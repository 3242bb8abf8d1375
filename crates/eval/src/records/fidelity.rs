//! How close a method's attention comes to exact attention: by layer, over query heads, and by head.

use serde::{Deserialize, Serialize};

/// The smallest, the middle and the largest of some numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The smallest.
    pub min: f64,
    /// The median.
    pub median: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// The spread of `values`, with four significant digits; `None` if there are no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let median = (sorted.get(n / 2)? + sorted[(n - 1) / 2]) / 2.0;
        Some(Self { min: four_digits(sorted[0]), median: four_digits(median), max: four_digits(sorted[n - 1]) })
    }
}

/// Rounds a number to four significant digits, so that long lists take less space.
pub fn four_digits(x: f64) -> f64 {
    format!("{x:.3e}").parse().unwrap_or(x)
}

/// How close a method's attention comes to exact attention on the same inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fidelity {
    /// The mean over steps and query heads of `‖o − o_full‖ / ‖o_full‖`, by layer.
    pub output_error: Vec<f64>,
    /// The mean share of the exact top-k that was attended, by layer, where k is the number of attended tokens.
    pub recall: Vec<f64>,
    /// The mean exact attention mass of the tokens that were not attended, by layer; empty in old records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped_mass: Vec<f64>,
    /// The spread over the query heads of all layers that are not dense by policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<FidelitySpread>,
    /// The values of every query head, `[layer][head]`, with four significant digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heads: Option<HeadFidelity>,
}

/// Spreads over layers and query heads; see [`Fidelity`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FidelitySpread {
    /// The spread of the output error.
    pub output_error: Spread,
    /// The spread of the recall.
    pub recall: Spread,
    /// The spread of the dropped mass.
    pub dropped_mass: Spread,
}

/// Measurements of each query head, `[layer][head]`, with four significant digits; see [`Fidelity`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeadFidelity {
    /// Tokens attended over tokens in context.
    pub density: Vec<Vec<f64>>,
    /// Output error.
    pub output_error: Vec<Vec<f64>>,
    /// Recall.
    pub recall: Vec<Vec<f64>>,
    /// Dropped mass.
    pub dropped_mass: Vec<Vec<f64>>,
}

impl Fidelity {
    /// The mean output error over layers.
    pub fn mean_error(&self) -> f64 {
        mean(&self.output_error)
    }

    /// The mean recall over layers.
    pub fn mean_recall(&self) -> f64 {
        mean(&self.recall)
    }

    /// The mean dropped mass over layers, if it was measured.
    pub fn mean_dropped_mass(&self) -> Option<f64> {
        (!self.dropped_mass.is_empty()).then(|| mean(&self.dropped_mass))
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_of_the_sorted_numbers() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([0.3, 0.1, 0.2]), Some(Spread { min: 0.1, median: 0.2, max: 0.3 }));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).map(|s| s.median), Some(2.5));
        assert_eq!(Spread::of([1.0 / 3.0]).map(|s| s.min), Some(0.3333));
    }
}

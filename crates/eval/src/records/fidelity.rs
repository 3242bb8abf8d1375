//! How close a method's attention came to exact attention: by layer, over query heads, and by head.

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
    /// The spread of `values`, to four digits; `None` without values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let median = (sorted.get(n / 2)? + sorted[(n - 1) / 2]) / 2.0;
        Some(Self { min: four_digits(sorted[0]), median: four_digits(median), max: four_digits(sorted[n - 1]) })
    }
}

/// A number rounded to four significant digits, for storing long lists.
pub fn four_digits(x: f64) -> f64 {
    format!("{x:.3e}").parse().unwrap_or(x)
}

/// How close a method's attention came to exact attention on the same inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fidelity {
    /// Mean over steps and query heads of `‖o − o_full‖ / ‖o_full‖`, by layer.
    pub output_error: Vec<f64>,
    /// Mean share of the exact top-k that was attended, by layer; `k` is the number of tokens that the method attended.
    pub recall: Vec<f64>,
    /// Mean exact attention mass of the tokens not attended, by layer; empty in old records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped_mass: Vec<f64>,
    /// The spread over the query heads of all layers that are not dense by policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<FidelitySpread>,
    /// Every query head, `[layer][head]`, to four digits.
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

/// The measurements of each query head, `[layer][head]`, to four digits; see [`Fidelity`].
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
    /// Mean over layers of the output error.
    pub fn mean_error(&self) -> f64 {
        mean(&self.output_error)
    }

    /// Mean over layers of the recall.
    pub fn mean_recall(&self) -> f64 {
        mean(&self.recall)
    }

    /// Mean over layers of the dropped mass, if it was measured.
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

//! How a method's budget of tokens is distributed over layers.
//!
//! A schedule gives each layer a weight. Take a budget of `k` tokens per layer and `n` sparse layers whose weights `w` sum to `W`. The
//! `i`-th sparse layer gets `C(i) − C(i−1)` tokens, where `C(i) = ⌊k·n·(w_1 + … + w_i)/W⌋`. So all layers together get exactly `k·n`,
//! whatever the rounding. A layer whose budget exceeds its candidates selects all of them; the rest of its budget is not given to other
//! layers. `linear` is the schedule that the paper on top-k attention suggests (arXiv:2502.06766, §4.4): weights 1, 2, 3, ... from the
//! first sparse layer to the last.

use std::fmt;
use std::str::FromStr;

use spattn_base::error::UsageError;

/// The weights of layers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// Equal weights.
    #[default]
    Uniform,
    /// In proportion to a layer's rank among the sparse layers, from 1.
    Linear,
    /// One weight for each layer of the model; those of dense layers are ignored.
    Weights(Vec<u32>),
}

/// The largest weight of a layer.
const MOST_WEIGHT: u32 = 1_000_000;

impl Schedule {
    /// Whether all layers have equal budgets.
    pub fn is_uniform(&self) -> bool {
        *self == Self::Uniform
    }

    /// Checks that the schedule fits a model with these `dense` layers.
    ///
    /// # Errors
    /// If the number of weights is not the number of layers, or all weights of sparse layers are 0.
    pub fn check(&self, dense: &[bool]) -> Result<(), UsageError> {
        let Self::Weights(weights) = self else { return Ok(()) };
        if weights.len() != dense.len() {
            let what = format!("the schedule has {} weights, and the model has {} layers", weights.len(), dense.len());
            return Err(UsageError::new(what).hint("give a weight for each layer, dense ones included"));
        }
        let is_sparse = dense.iter().any(|dense| !dense);
        let has_weight = weights.iter().zip(dense).any(|(weight, dense)| *weight > 0 && !dense);
        match is_sparse && !has_weight {
            true => Err(UsageError::new("the schedule gives no budget to any layer that is not dense")
                .hint("give one of them a weight above 0")),
            false => Ok(()),
        }
    }

    /// Upper bound of the largest budget of a layer, as a multiple of the mean budget, in a model with these `dense` layers.
    pub fn largest(&self, dense: &[bool]) -> usize {
        let times = |layer: usize| {
            let LayerShare { own, all, layers, .. } = self.share(dense, layer);
            (own * layers).div_ceil(all) as usize
        };
        (0..dense.len()).filter(|layer| !dense[*layer]).map(times).max().unwrap_or(1)
    }

    /// Returns the share of layer `layer`, in a model with these `dense` layers.
    pub fn share(&self, dense: &[bool], layer: usize) -> LayerShare {
        let weight = |rank: usize, at: usize| match self {
            Self::Uniform => 1,
            Self::Linear => rank as u64 + 1,
            Self::Weights(weights) => u64::from(weights.get(at).copied().unwrap_or(0)),
        };
        let sparse = dense.iter().enumerate().filter(|(_, dense)| !**dense).map(|(at, _)| at);
        let mut share = LayerShare { before: 0, own: 0, all: 0, layers: 0 };
        for (rank, at) in sparse.enumerate() {
            let own = weight(rank, at);
            if at < layer {
                share.before += own;
            } else if at == layer {
                share.own = own;
            }
            share.all += own;
            share.layers += 1;
        }
        if share.all == 0 { LayerShare::default() } else { share }
    }
}

/// A layer's share of the budgets of all sparse layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerShare {
    /// Sum of the weights of the sparse layers before it.
    before: u64,
    /// Its own weight.
    own: u64,
    /// Sum of the weights of all sparse layers.
    all: u64,
    /// Number of sparse layers.
    layers: u64,
}

impl Default for LayerShare {
    /// The share of the only layer: the whole budget.
    fn default() -> Self {
        Self { before: 0, own: 1, all: 1, layers: 1 }
    }
}

impl LayerShare {
    /// Returns the layer's part of a budget whose mean over layers is `mean`.
    pub fn of(self, mean: usize) -> usize {
        let up_to = |weights: u64| u128::from(self.layers) * mean as u128 * u128::from(weights) / u128::from(self.all);
        (up_to(self.before + self.own) - up_to(self.before)) as usize
    }
}

impl FromStr for Schedule {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Self, UsageError> {
        let weight = |text: &str| text.parse().ok().filter(|weight| *weight <= MOST_WEIGHT);
        match text {
            "uniform" => Ok(Self::Uniform),
            "linear" => Ok(Self::Linear),
            _ => text.split('+').map(weight).collect::<Option<Vec<u32>>>().map(Self::Weights).ok_or_else(|| {
                UsageError::new(format!("`{text:.60}` is not a schedule of budgets by layer")).hint(format!(
                    "write uniform, linear, or a whole number from 0 to {MOST_WEIGHT} for each layer with + between \
                     them: 4+2+1+1"
                ))
            }),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Linear => f.write_str("linear"),
            Self::Weights(weights) => {
                let texts: Vec<String> = weights.iter().map(u32::to_string).collect();
                f.write_str(&texts.join("+"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dealt(schedule: &str, dense: &[bool], mean: usize) -> Vec<usize> {
        let schedule: Schedule = schedule.parse().unwrap();
        let layers = (0..dense.len()).filter(|layer| !dense[*layer]);
        layers.map(|layer| schedule.share(dense, layer).of(mean)).collect()
    }

    #[test]
    fn shares_follow_the_weights_and_sum_to_the_whole() {
        assert_eq!(dealt("4+2+1+1", &[false; 4], 16), [32, 16, 8, 8]);
        assert_eq!(dealt("uniform", &[false; 4], 16), [16; 4]);
        assert_eq!(dealt("linear", &[false; 4], 10), [4, 8, 12, 16]);
        assert_eq!(dealt("9+2+9+2", &[true, false, true, false], 5), [5, 5], "weights of dense layers are left out");
        assert_eq!(dealt("0+1+1", &[false; 3], 6), [0, 9, 9]);
        let dense = [false, true, false, false, false, false, true, false];
        for schedule in ["uniform", "linear", "3+1+4+1+5+9+2+6", "1+1+1+1+1+1+1+1000000"] {
            for mean in [0, 1, 2, 7, 33, 1000, 1 << 24] {
                let all = dealt(schedule, &dense, mean);
                assert_eq!(all.iter().sum::<usize>(), mean * all.len(), "{schedule}, {mean}: {all:?}");
            }
        }
        // Computed by hand in real numbers; equal to within a token.
        let weights = [3.0, 4.0, 1.0, 5.0, 9.0, 6.0];
        let all: f64 = weights.iter().sum();
        for (own, weight) in dealt("3+1+4+1+5+9+2+6", &dense, 100).iter().zip(weights) {
            assert!((*own as f64 - 600.0 * weight / all).abs() < 1.0, "{own}");
        }
    }

    #[test]
    fn no_layer_gets_more_than_the_largest_budget() {
        let dense = [false, true, false, false];
        for (schedule, most) in [("uniform", 1), ("linear", 2), ("9+1000+1+2", 3), ("0+5+0+1", 3)] {
            let times = schedule.parse::<Schedule>().unwrap().largest(&dense);
            assert_eq!(times, most, "{schedule}");
            assert!(dealt(schedule, &dense, 100).into_iter().all(|own| own <= times * 100), "{schedule}");
        }
        assert_eq!(Schedule::Linear.largest(&[true; 3]), 1);
    }

    #[test]
    fn what_fits_no_model_is_said() {
        let check = |text: &str, dense: &[bool]| text.parse::<Schedule>().unwrap().check(dense);
        assert!(check("1+2", &[false; 2]).is_ok() && check("linear", &[false; 9]).is_ok());
        assert!(check("1+2", &[false; 3]).unwrap_err().what.contains("2 weights, and the model has 3 layers"));
        assert!(check("1+0", &[true, false]).unwrap_err().what.contains("gives no budget"));
        assert!(check("0+0", &[true, true]).is_ok(), "nobody asks");
        for text in ["", "1+", "+", "-1+2", "1.5", "1000001", "Linear", "a+b"] {
            assert!(text.parse::<Schedule>().unwrap_err().hint.is_some(), "{text}");
        }
        for text in ["uniform", "linear", "3", "1+0+12"] {
            assert_eq!(text.parse::<Schedule>().unwrap().to_string(), text);
        }
    }
}

//! How many tokens a method may attend: a number, a share of the context, or a density to meet.
//!
//! Every method accepts `density=X` instead of its own budget. X is the share of the context that is attended in sparse layers, static
//! tokens (sink, window, and all tokens after the prefix) included: the column `density_sparse_layers`, and also `density` if no layer is
//! dense. At every step, the budget is the number of tokens that this share amounts to, less the static tokens. A budget in other terms
//! (tables, a probability, draws) is solved once for an example, from the measurements of a [`Probe`](crate::Probe).
//!
//! Layers may have different shares of a budget of tokens ([`Schedule`](crate::Schedule)): the number computed from the context is the mean
//! over layers, and [`Context::share`] gives this layer's part.

use std::fmt::{self, Display};
use std::hash::{Hash, Hasher};
use std::mem::discriminant;
use std::ops::Range;

use crate::types::index_key::Bits;
use crate::types::schedule::LayerShare;

/// How many tokens a method may select beyond the static ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// A number of tokens.
    Tokens(usize),
    /// A share of the tokens in context, rounded up.
    Ratio(f64),
    /// A density: a share of the tokens in context, static ones included.
    Density(f64),
    /// A share of the prefix that is kept when it ends, static tokens of the prefix included, rounded down. Tokens after the prefix are
    /// kept as well and do not count.
    Kept(f64),
}

impl Eq for Budget {}

impl Hash for Budget {
    fn hash<H: Hasher>(&self, state: &mut H) {
        discriminant(self).hash(state);
        match self {
            Self::Tokens(tokens) => tokens.hash(state),
            Self::Ratio(share) | Self::Density(share) | Self::Kept(share) => Bits::from(*share).hash(state),
        }
    }
}

impl Budget {
    /// Number of tokens to select in this context: the layer's share of the mean over layers.
    pub fn tokens(self, context: Context) -> usize {
        context.share.of(self.mean_tokens(context))
    }

    /// Number of tokens to select, as the mean over layers. At least 1 for a density, because a method that selects nothing is a different
    /// method.
    fn mean_tokens(self, context: Context) -> usize {
        match self {
            Budget::Tokens(k) => k,
            Budget::Ratio(r) => (r * context.visible() as f64).ceil() as usize,
            Budget::Density(density) => context.missing(density).max(1),
            Budget::Kept(share) => context.missing_of_kept(share),
        }
    }

    /// Whether the budget is 0 tokens.
    pub fn is_none(self) -> bool {
        self == Budget::Tokens(0)
    }

    /// Number of blocks of `size` tokens to select. Tokens and ratios are rounded up to whole blocks, a density to the nearest.
    pub fn blocks(self, context: Context, size: usize) -> usize {
        let tokens = self.mean_tokens(context);
        context.share.of(match self {
            Budget::Density(density) if density < 1.0 => ((tokens + size / 2) / size).max(1),
            _ => tokens.div_ceil(size),
        })
    }
}

/// The number of tokens in context, and how many of them are not candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// All tokens, the current one included.
    pub tokens: usize,
    /// Tokens that are not candidates: the static ones, and those that the layer hides.
    pub fixed: usize,
    /// Number of first tokens that the layer hides.
    pub hidden: usize,
    /// The layer's share of a budget.
    pub share: LayerShare,
}

impl Context {
    /// A context of `tokens` tokens, of which `candidates` may be selected, at a layer with the mean budget.
    pub fn new(tokens: usize, candidates: &Range<usize>) -> Self {
        Self { tokens, fixed: tokens.saturating_sub(candidates.len()), hidden: 0, share: LayerShare::default() }
    }

    /// The same context at a layer that hides the first `hidden` tokens, none of which is a candidate.
    pub(crate) fn hiding(self, hidden: usize) -> Self {
        Self { hidden, ..self }
    }

    /// Number of tokens that the current one sees, itself included.
    fn visible(self) -> usize {
        self.tokens - self.hidden
    }

    /// The same context at a layer with this share of the budget.
    pub fn at(self, share: LayerShare) -> Self {
        Self { share, ..self }
    }

    /// Number of candidates.
    pub fn candidates(self) -> usize {
        self.tokens - self.fixed
    }

    /// Number of candidates to select so that a share `density` of the context is attended; 0 if the static tokens alone exceed it.
    pub fn missing(self, density: f64) -> usize {
        let fixed = self.fixed - self.hidden;
        ((density * self.visible() as f64).round() as usize).saturating_sub(fixed).min(self.candidates())
    }

    /// Number of candidates to keep so that a share of the context is kept, rounded down; 0 if the static tokens alone exceed it.
    pub(crate) fn missing_of_kept(self, share: f64) -> usize {
        // A decimal share is seldom exact in binary: without this, 0.29 of 100 tokens would be 28.
        const ROUNDING: f64 = 1e-9;
        let fixed = self.fixed - self.hidden;
        ((share * self.visible() as f64 + ROUNDING).floor() as usize).saturating_sub(fixed).min(self.candidates())
    }
}

/// A parameter that sets the budget, given as a value or as the density to reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Tuned<T> {
    /// The value.
    Value(T),
    /// Share of the context to attend.
    Density(f64),
}

impl<T: Eq> Eq for Tuned<T> {}

impl<T: Hash> Hash for Tuned<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        discriminant(self).hash(state);
        match self {
            Self::Value(value) => value.hash(state),
            Self::Density(share) => Bits::from(*share).hash(state),
        }
    }
}

impl<T: Copy> Tuned<T> {
    /// Returns the value.
    ///
    /// # Panics
    /// If it has not been solved yet; the engine solves it before any other call.
    pub fn value(self) -> T {
        match self {
            Tuned::Value(value) => value,
            Tuned::Density(density) => panic!("density={density} was not converted to a budget before its use"),
        }
    }

    /// Returns the density to solve for, if no value is given.
    pub fn density(&self) -> Option<f64> {
        match self {
            Tuned::Value(_) => None,
            Tuned::Density(density) => Some(*density),
        }
    }
}

impl<T: Display> Display for Tuned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tuned::Value(value) => value.fmt(f),
            Tuned::Density(density) => write!(f, "density={density}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_density_counts_what_is_static() {
        let context = Context::new(1000, &(4..904));
        assert_eq!((context.fixed, context.candidates()), (100, 900));
        assert_eq!(Budget::Density(0.25).tokens(context), 150);
        assert_eq!(Budget::Density(1.0).tokens(context), 900);
        assert_eq!(Budget::Density(0.05).tokens(context), 1, "the static tokens alone are more");
        assert_eq!(Budget::Density(0.1504).tokens(context), 50, "the nearest whole number");
        assert_eq!(Budget::Density(0.1506).tokens(context), 51);
        assert_eq!(Budget::Ratio(0.25).tokens(context), 250);
        assert_eq!(Budget::Ratio(0.2501).tokens(context), 251, "rounded up");
        assert_eq!(Budget::Tokens(7).tokens(context), 7);
    }

    #[test]
    fn a_share_that_is_kept_counts_what_is_static_and_is_rounded_down() {
        let context = Context::new(1000, &(4..936));
        assert_eq!(context.fixed, 68);
        assert_eq!(Budget::Kept(0.5).tokens(context), 432);
        assert_eq!(Budget::Kept(0.1237).tokens(context), 55, "123 of 1,000 tokens");
        assert_eq!(Budget::Kept(0.29).tokens(Context::new(100, &(0..100))), 29, "0.29 * 100 is below 29 in binary");
        assert_eq!(Budget::Kept(0.05).tokens(context), 0, "the static tokens alone are more");
        assert_eq!(Budget::Kept(1.0).tokens(context), 932);
    }

    #[test]
    fn nothing_is_picked_for_a_budget_of_no_token_alone() {
        assert!(Budget::Tokens(0).is_none());
        for budget in [Budget::Tokens(1), Budget::Ratio(1e-9), Budget::Density(1e-9)] {
            assert!(!budget.is_none(), "{budget:?}");
        }
    }

    #[test]
    fn blocks_of_a_density_are_the_nearest_and_all_for_one() {
        let context = Context::new(1000, &(0..1000));
        let blocks = |budget: Budget| budget.blocks(context, 16);
        assert_eq!((blocks(Budget::Tokens(40)), blocks(Budget::Ratio(0.04))), (3, 3));
        assert_eq!((blocks(Budget::Density(0.039)), blocks(Budget::Density(0.041))), (2, 3));
        assert_eq!((blocks(Budget::Density(0.001)), blocks(Budget::Density(1.0))), (1, 63));
    }

    #[test]
    fn layers_get_their_share_of_tokens_and_of_whole_blocks() {
        let schedule: crate::Schedule = "1+3+2".parse().unwrap();
        let at = |layer| Context::new(1000, &(4..904)).at(schedule.share(&[false; 3], layer));
        let all = |of: &dyn Fn(Context) -> usize| [0, 1, 2].map(|layer| of(at(layer)));
        assert_eq!(all(&|context| Budget::Tokens(10).tokens(context)), [5, 15, 10]);
        assert_eq!(all(&|context| Budget::Ratio(0.1).tokens(context)), [50, 150, 100]);
        // 25 % of 1,000 is 250, of which 100 are static: 150 on average.
        assert_eq!(all(&|context| Budget::Density(0.25).tokens(context)), [75, 225, 150]);
        // 64 tokens are four blocks on average, twelve in all layers.
        assert_eq!(all(&|context| Budget::Tokens(64).blocks(context, 16)), [2, 6, 4]);
    }
}

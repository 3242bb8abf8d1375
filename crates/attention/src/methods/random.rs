//! `random`: uniformly random tokens, drawn anew at each step; the floor of every plot.
//!
//! Nothing is stored, and selection costs nothing. With `weights=inverse` each of the `k` drawn tokens stands for `n/k`
//! of the `n` candidates: its logit is lowered by `ln(k/n)`, the logarithm of its sampling probability. That is
//! MagicPIG's estimator (eq. 11) with uniform probabilities: the baseline for sampling by similarity.

use std::ops::Range;
use std::sync::Arc;

use rand::seq::index;
use rand_chacha::ChaCha8Rng;

use super::ParamInfo;
use crate::cost::Cost;
use crate::kv::KvError;
use crate::methods::MethodEntry;
use crate::scored::granularity::Granularity;
use crate::scored::method::Scored;
use crate::scored::scorer::{Growth, NewTokens, Scorer, Segment};
use crate::scored::select::{DataIndependentPicker, Picker, ScoredRow};
use crate::types::prefix_head::KvHeadId;
use crate::types::scores::GroupQueries;
use crate::{Budget, Context, HeadPrefix, Role, SelectedTokens, Weighting};

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "random",
    role: Role::Floor,
    about: "uniformly random tokens, drawn anew each step: the floor",
    reference: "none: the floor of every plot",
    params: &[
        ParamInfo { key: "ratio", default: "0.0625", about: "share of the context picked, above 0 to 1" },
        ParamInfo { key: "k", default: "-", about: "instead of ratio: tokens picked beyond the static ones, from 0" },
        ParamInfo {
            key: "weights",
            default: "one",
            about: "one | inverse: as they are, or by the inverse of the probability that they are drawn",
        },
        Granularity::INFO,
    ],
    presets: &[],
    build: |params| {
        let budget = params.budget_from_zero(Budget::Ratio(0.0625))?;
        let stands_for_rest = params.choice("weights", &["one", "inverse"])? == "inverse";
        Ok(Arc::new(Scored::new(Blind, Uniform { budget, stands_for_rest }, Granularity::read_per(params)?)))
    },
};

/// Gives all candidates the same score.
#[derive(Clone)]
struct Blind;

impl Scorer for Blind {
    type Index = ();

    fn build(&self, _: &HeadPrefix<'_>) -> Result<(), KvError> {
        Ok(())
    }

    fn growth(&self) -> Growth {
        Growth::Free("nothing is stored: they are drawn like others")
    }

    fn empty(&self, _: KvHeadId, _: Option<&()>) {}

    fn append(&self, (): &mut (), _: usize, _: &NewTokens<'_>) {}

    fn index_bytes(&self, (): &()) -> usize {
        0
    }

    fn scores(&self, queries: &GroupQueries<'_>, segment: &Segment<'_, ()>, _: &mut Cost) -> Result<Vec<f32>, KvError> {
        Ok(vec![0.0; queries.count() * segment.keys.tokens()])
    }
}

/// Draws distinct candidates with equal probability.
struct Uniform {
    budget: Budget,
    /// Whether a drawn token also stands for tokens that were not drawn (`weights=inverse`).
    stands_for_rest: bool,
}

impl Picker for Uniform {
    fn pick(&self, row: &ScoredRow<'_>, _: &mut Cost) -> Result<SelectedTokens, KvError> {
        Ok(self.draw(&row.candidates, row.context, row.rng()))
    }

    fn blind(&self) -> Option<&dyn DataIndependentPicker> {
        Some(self)
    }

    fn is_nothing(&self) -> bool {
        self.budget.is_none()
    }
}

impl DataIndependentPicker for Uniform {
    fn draw(&self, candidates: &Range<usize>, context: Context, mut rng: ChaCha8Rng) -> SelectedTokens {
        let k = self.budget.tokens(context).min(candidates.len());
        let drawn = index::sample(&mut rng, candidates.len(), k);
        let mut tokens: Vec<u32> = drawn.iter().map(|i| (i + candidates.start) as u32).collect();
        tokens.sort_unstable();
        let weighting = match self.stands_for_rest {
            true => Weighting::LogBias(vec![(k as f32 / candidates.len() as f32).ln(); k]),
            false => Weighting::Softmax,
        };
        SelectedTokens::weighted(tokens, weighting)
    }
}

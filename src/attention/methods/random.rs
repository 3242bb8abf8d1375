//! `random`: uniformly drawn tokens, the floor of every plot.

use std::ops::Range;
use std::sync::Arc;

use rand::seq::index;
use rand_chacha::ChaCha8Rng;

use super::{Granularity, MethodEntry, ParamInfo};
use crate::attention::pick::{BlindPicker, Picker, ScoredRow};
use crate::attention::scored::Scored;
use crate::attention::scorer::{GroupQueries, Growth, NewTokens, Place, Scorer, Segment};
use crate::attention::{Budget, Context, HeadPrefix, Picks};
use crate::cost::Cost;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "random",
    about: "uniformly random tokens, drawn anew each step: the floor",
    reference: "none: the floor of every plot",
    params: &[
        ParamInfo { key: "ratio", default: "0.0625", about: "share of the context picked, above 0 to 1" },
        ParamInfo { key: "k", default: "-", about: "instead of ratio: tokens picked beyond the static ones, from 0" },
        Granularity::INFO,
    ],
    presets: &[],
    build: |params| {
        let budget = params.budget_from_zero(Budget::Ratio(0.0625))?;
        Ok(Arc::new(Scored::new(Blind, Uniform { budget }, Granularity::read_per(params)?)))
    },
};

/// Looks at nothing: all scores are equal.
#[derive(Clone)]
struct Blind;

impl Scorer for Blind {
    type Index = ();

    fn build(&self, _: &HeadPrefix<'_>) {}

    fn growth(&self) -> Growth {
        Growth::Free("nothing is stored: they are drawn like others")
    }

    fn empty(&self, _: Place, _: Option<&()>) {}

    fn append(&self, (): &mut (), _: usize, _: &NewTokens<'_>) {}

    fn index_bytes(&self, (): &()) -> usize {
        0
    }

    fn scores(&self, queries: &GroupQueries<'_>, segment: &Segment<'_, ()>, _: &mut Cost) -> Vec<f32> {
        vec![0.0; queries.count() * segment.keys.tokens()]
    }
}

/// Distinct candidates, each as likely as any other.
struct Uniform {
    budget: Budget,
}

impl Picker for Uniform {
    fn pick(&self, row: &ScoredRow<'_>, _: &mut Cost) -> Picks {
        Picks::softmax(self.draw(&row.candidates, row.context, row.rng()))
    }

    fn blind(&self) -> Option<&dyn BlindPicker> {
        Some(self)
    }

    fn is_nothing(&self) -> bool {
        self.budget.is_none()
    }
}

impl BlindPicker for Uniform {
    fn draw(&self, candidates: &Range<usize>, context: Context, mut rng: ChaCha8Rng) -> Vec<u32> {
        let k = self.budget.tokens(context).min(candidates.len());
        let drawn = index::sample(&mut rng, candidates.len(), k);
        let mut tokens: Vec<u32> = drawn.iter().map(|i| (i + candidates.start) as u32).collect();
        tokens.sort_unstable();
        tokens
    }
}

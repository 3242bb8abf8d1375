//! `random`: uniformly drawn tokens, the floor of every plot.

use std::sync::Arc;

use rand::seq::index;

use super::{Granularity, MethodEntry, ParamInfo};
use crate::attention::{Budget, HeadPrefix, Method, Picks, Selection, Step, TailRule};
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
        Ok(Arc::new(Random { budget, per: Granularity::read_per(params)? }))
    },
};

/// Draws without replacement, seeded by example, layer, head and position.
struct Random {
    budget: Budget,
    per: Granularity,
}

impl Random {
    fn draw(&self, step: &Step<'_>, head: usize) -> Picks {
        let candidates = step.candidates.len();
        let k = self.budget.tokens(step.context).min(candidates);
        let first = step.candidates.start as u32;
        let drawn = index::sample(&mut step.rng(head), candidates, k);
        let mut tokens: Vec<u32> = drawn.iter().map(|i| i as u32 + first).collect();
        tokens.sort_unstable();
        Picks::softmax(tokens)
    }
}

impl Method for Random {
    type Index = ();
    type State = ();

    fn build(&self, _: &HeadPrefix<'_>) {}

    fn index_bytes(&self, (): &()) -> usize {
        0
    }

    fn start(&self, (): &()) {}

    fn tail_rule(&self) -> TailRule {
        TailRule::Indexed("nothing is stored: they are drawn like others")
    }

    fn select(&self, step: &Step<'_>, (): &(), (): &mut (), _: &mut Cost) -> Selection {
        match self.per {
            Granularity::KvHead(_) => Selection::Shared(self.draw(step, 0)),
            Granularity::QueryHead => Selection::PerHead((0..step.group()).map(|h| self.draw(step, h)).collect()),
        }
    }
}

//! `topk`: the exact top-k tokens by `q·k` (Gupta et al. 2021; "Oracle(top)" of HashAttention §5).
//!
//! The upper bound of every method that searches for the largest scores: what it loses, no index can win.

use std::sync::Arc;

use super::{Granularity, MethodEntry, ParamInfo, Preset};
use crate::attention::{Budget, HeadPrefix, Method, Selection, Step};
use crate::cost::Cost;
use crate::kernels::cpu::topk::top_k;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "topk",
    about: "exact top-k by q·k: the oracle of search methods",
    reference: "Gupta et al. 2021, arXiv:2106.06899; Oracle(top) of HashAttention, arXiv:2412.14468",
    params: &[
        ParamInfo { key: "k", default: "64", about: "tokens picked beyond the static ones, from 0" },
        ParamInfo { key: "ratio", default: "-", about: "instead of k: share of the context, above 0 to 1" },
        Granularity::INFO,
        Granularity::REDUCE,
    ],
    presets: &[
        Preset {
            name: "paper",
            values: &[("sink", "4"), ("local", "64"), ("dense_layers", "0+50%")],
            source: "MagicPIG §5 (baselines): 4 sink and 64 local tokens, layers 0 and 16 of 32 kept dense",
        },
        Preset {
            name: "repo",
            values: &[("sink", "4"), ("local", "64"), ("dense_layers", "0+1")],
            source: "MagicPIG's code, evaluations/RULER/pred/topk_cache: layers 0 and 1 dense",
        },
    ],
    build: |params| {
        let budget = params.budget_from_zero(Budget::Tokens(64))?;
        Ok(Arc::new(TopK { budget, per: Granularity::read(params)? }))
    },
};

/// Exact top-k over the candidates.
struct TopK {
    budget: Budget,
    per: Granularity,
}

impl Method for TopK {
    type Index = ();
    type State = ();

    fn build(&self, _: &HeadPrefix<'_>) {}

    fn index_bytes(&self, (): &()) -> usize {
        0
    }

    fn start(&self, (): &()) {}

    fn select(&self, step: &Step<'_>, (): &(), (): &mut (), cost: &mut Cost) -> Selection {
        // Who picks nothing has no key to score.
        if self.budget.is_none() {
            return self.per.nothing(step.group());
        }
        let scores = step.exact_scores(cost);
        let k = self.budget.tokens(step.context);
        let first = step.candidates.start as u32;
        self.per.select(&scores, step.group(), |scores| top_k(scores, k).into_iter().map(|i| i + first).collect())
    }
}

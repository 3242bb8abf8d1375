//! `topk`: the exact top-k tokens by `q·k` (Gupta et al. 2021; "Oracle(top)" of HashAttention §5).
//!
//! Nothing is stored. A decode step multiplies the queries with the keys of all candidates. It is the upper bound of
//! methods that search for the largest scores: no index can find better tokens by that measure.

#[cfg(feature = "cuda")]
mod cuda;

use super::ParamInfo;
use crate::backend::reasons::HostReason;
use crate::backend::scorer::DeviceScorer;
use crate::cost::Cost;
use crate::kv::KvError;
use crate::methods::{MethodEntry, Preset};
use crate::scored::granularity::Granularity;
use crate::scored::method::Scored;
use crate::scored::scorer::{Growth, NewTokens, Scorer, Segment};
use crate::scored::select::{BASE, Choice, DELTA, EPSILON, PICK, RESCORE, SECOND, SHARE};
use crate::types::prefix_head::KvHeadId;
use crate::types::scores::GroupQueries;
use crate::{Budget, HeadPrefix, Role, StepShape};

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "topk",
    role: Role::Oracle,
    about: "exact top-k by q·k: the oracle of search methods",
    reference: "Gupta et al. 2021, arXiv:2106.06899; Oracle(top) of HashAttention, arXiv:2412.14468",
    params: &[
        ParamInfo { key: "k", default: "64", about: "tokens picked beyond the static ones, from 0" },
        ParamInfo { key: "ratio", default: "-", about: "instead of k: share of the context, above 0 to 1" },
        PICK,
        SHARE,
        EPSILON,
        DELTA,
        BASE,
        RESCORE,
        SECOND,
        Granularity::INFO,
        Granularity::REDUCE,
    ],
    presets: &[
        Preset {
            name: "paper",
            values: &[("sink", "4"), ("local", "64"), ("dense_layers", "0-48/16")],
            source: "MagicPIG §5 (baselines): 4 sink and 64 local tokens, layers 0 and 16 kept dense (of 80 layers 0, 16, 32, 48)",
        },
        Preset {
            name: "repo",
            values: &[("sink", "4"), ("local", "64"), ("dense_layers", "0+1")],
            source: "MagicPIG's code, evaluations/RULER/pred/topk_cache: layers 0 and 1 dense",
        },
    ],
    build: |params| {
        let choice = Choice { from_zero: true, ..Choice::by_logits(Budget::Tokens(64)) };
        Ok(Scored::read(params, ExactScores, choice)?.method())
    },
};

/// Scores candidates by exact `q·k`; stores nothing.
#[derive(Clone)]
pub(super) struct ExactScores;

impl Scorer for ExactScores {
    type Index = ();

    fn ranks_by_products(&self) -> bool {
        true
    }

    fn build(&self, _: &HeadPrefix<'_>) -> Result<(), KvError> {
        Ok(())
    }

    fn growth(&self) -> Growth {
        Growth::Free("nothing is stored: keys are scored where they are")
    }

    fn empty(&self, _: KvHeadId, _: Option<&()>) {}

    fn append(&self, (): &mut (), _: usize, _: &NewTokens<'_>) {}

    fn index_bytes(&self, (): &()) -> usize {
        0
    }

    fn scores(
        &self,
        queries: &GroupQueries<'_>,
        segment: &Segment<'_, ()>,
        cost: &mut Cost,
    ) -> Result<Vec<f32>, KvError> {
        let (keys, d) = (segment.keys, queries.d);
        *cost += dot_cost(queries.count(), keys.tokens(), d, keys.bytes());
        queries.dots_in_context(keys, &mut Cost::default())
    }

    fn takes_products(&self) -> bool {
        true
    }

    fn is_linear(&self) -> bool {
        true
    }

    fn device(&self) -> Result<&dyn DeviceScorer, HostReason> {
        Ok(self)
    }
}

/// Cost of the dot products of queries with keys of `d` numbers, which take `bytes` in total; each key is read once.
fn dot_cost(queries: usize, keys: usize, d: usize, bytes: usize) -> Cost {
    Cost { kv_bytes: bytes as u64, score_flops: (2 * queries * keys * d) as u64, ..Cost::default() }
}

impl DeviceScorer for ExactScores {
    fn cost(&self, step: &StepShape) -> Cost {
        dot_cost(step.group, step.candidates, step.d, step.candidates * step.d * step.dtype.bytes())
    }

    fn grows(&self) -> bool {
        true
    }
}

//! `topk_norm`: the exact top-k tokens by `a_i‖v_i‖`, the norm of a token's contribution to the output (HashAttention, Lemma 4.1).
//!
//! The index holds `ln‖v_i‖` of each candidate, 4 bytes a token. A decode step multiplies the queries with the keys of
//! all candidates and reads the index. `a_i` is proportional to `exp(s·q·k_i)`, so tokens are ordered by
//! `s·q·k_i + ln‖v_i‖` (Lemma 4.2, with the attention's scale `s`).

use super::ParamInfo;
use crate::cost::Cost;
use crate::kv::KvError;
use crate::methods::MethodEntry;
use crate::scored::granularity::Granularity;
use crate::scored::method::Scored;
use crate::scored::scorer::{Growth, NewTokens, Scorer, Segment};
use crate::scored::select::{BASE, Choice, DELTA, EPSILON, PICK_BY_ORDER, RESCORE, SECOND, SHARE};
use crate::types::prefix_head::KvHeadId;
use crate::types::scores::GroupQueries;
use crate::{Budget, HeadPrefix, Role};

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "topk_norm",
    role: Role::Oracle,
    about: "exact top-k by attention times the norm of the value",
    reference: "HashAttention (Desai et al. 2024, arXiv:2412.14468), Lemma 4.1",
    params: &[
        ParamInfo { key: "k", default: "64", about: "tokens picked beyond the static ones" },
        ParamInfo { key: "ratio", default: "-", about: "instead of k: share of the context, above 0 to 1" },
        PICK_BY_ORDER,
        SHARE,
        EPSILON,
        DELTA,
        BASE,
        RESCORE,
        SECOND,
        Granularity::INFO,
        Granularity::REDUCE,
    ],
    presets: &[],
    build: |params| Ok(Scored::read(params, AttentionTimesNorm, Choice::by_order(Budget::Tokens(64)))?.method()),
};

/// Scores candidates by `s·q·k + ln‖v‖`: the logarithm of `a·‖v‖`, up to a constant of the query.
#[derive(Clone)]
struct AttentionTimesNorm;

/// `ln‖v‖` of each of `values: [token][d]`.
fn log_norms(values: &[f32], d: usize) -> impl Iterator<Item = f32> {
    values.chunks_exact(d).map(|v| 0.5 * v.iter().map(|x| x * x).sum::<f32>().ln())
}

impl Scorer for AttentionTimesNorm {
    /// `ln‖v‖` of every candidate.
    type Index = Vec<f32>;

    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Vec<f32>, KvError> {
        let mut norms = Vec::with_capacity(prefix.candidates.len());
        prefix.candidate_values().each_block(1, |values| norms.extend(log_norms(values, prefix.d)))?;
        Ok(norms)
    }

    fn growth(&self) -> Growth {
        Growth::Free("norms of new values are appended")
    }

    fn empty(&self, _: KvHeadId, _: Option<&Vec<f32>>) -> Vec<f32> {
        Vec::new()
    }

    fn append(&self, norms: &mut Vec<f32>, kept: usize, new: &NewTokens<'_>) {
        norms.truncate(kept);
        norms.extend(log_norms(new.values, new.place.d));
    }

    fn index_bytes(&self, norms: &Vec<f32>) -> usize {
        size_of_val(norms.as_slice())
    }

    fn takes_products(&self) -> bool {
        true
    }

    fn scores(
        &self,
        queries: &GroupQueries<'_>,
        segment: &Segment<'_, Vec<f32>>,
        cost: &mut Cost,
    ) -> Result<Vec<f32>, KvError> {
        let (keys, norms) = (segment.keys, segment.index);
        cost.kv_bytes += keys.bytes() as u64;
        let mut scores = queries.dots_in_context(keys, cost)?;
        for scores in scores.chunks_exact_mut(norms.len().max(1)) {
            scores.iter_mut().zip(norms).for_each(|(score, norm)| *score = queries.scale.factor() * *score + norm);
        }
        cost.score_flops += 2 * scores.len() as u64;
        cost.aux_bytes += size_of_val(norms.as_slice()) as u64;
        Ok(scores)
    }
}

//! `topk_norm`: the exact top-k tokens by `a_i‖v_i‖`, what a token alone adds to the output (HashAttention, Lemma 4.1).
//!
//! `a_i` is proportional to `exp(s·q·k_i)`, so the order is that of `s·q·k_i + ln‖v_i‖` (Lemma 4.2, with the scale `s`
//! that the attention uses). The logarithms of the norms are the index: four bytes a token.

use std::sync::Arc;

use super::{Granularity, MethodEntry, ParamInfo};
use crate::attention::{Budget, HeadPrefix, Method, Selection, Step};
use crate::cost::Cost;
use crate::kernels::cpu::topk::top_k;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "topk_norm",
    about: "exact top-k by attention times the norm of the value",
    reference: "HashAttention (Desai et al. 2024, arXiv:2412.14468), Lemma 4.1",
    params: &[
        ParamInfo { key: "k", default: "64", about: "tokens picked beyond the static ones" },
        ParamInfo { key: "ratio", default: "-", about: "instead of k: share of the context, above 0 to 1" },
        Granularity::INFO,
        Granularity::REDUCE,
    ],
    presets: &[],
    build: |params| {
        let budget = params.budget(Budget::Tokens(64))?;
        Ok(Arc::new(TopKNorm { budget, per: Granularity::read(params)? }))
    },
};

/// Exact top-k by contribution over the candidates.
struct TopKNorm {
    budget: Budget,
    per: Granularity,
}

impl Method for TopKNorm {
    /// `ln‖v‖` of every candidate.
    type Index = Vec<f32>;
    type State = ();

    fn build(&self, prefix: &HeadPrefix<'_>) -> Vec<f32> {
        let values = prefix.values.slice(prefix.candidates.clone(), prefix.d).to_f32();
        values.chunks_exact(prefix.d).map(|v| 0.5 * v.iter().map(|x| x * x).sum::<f32>().ln()).collect()
    }

    fn index_bytes(&self, norms: &Vec<f32>) -> usize {
        size_of_val(norms.as_slice())
    }

    fn start(&self, _: &Vec<f32>) {}

    fn select(&self, step: &Step<'_>, norms: &Vec<f32>, (): &mut (), cost: &mut Cost) -> Selection {
        let mut scores = step.exact_scores(cost);
        for head in scores.chunks_exact_mut(norms.len()) {
            head.iter_mut().zip(norms).for_each(|(score, norm)| *score = step.scale * *score + norm);
        }
        cost.score_flops += 2 * scores.len() as u64;
        cost.aux_bytes += size_of_val(norms.as_slice()) as u64;
        let (k, first) = (self.budget.tokens(step.context), step.candidates.start as u32);
        self.per.select(&scores, step.group(), |scores| top_k(scores, k).into_iter().map(|i| i + first).collect())
    }
}

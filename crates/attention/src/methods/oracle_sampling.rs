//! `oracle_sampling`: samples tokens from the exact attention distribution (MagicPIG, Definition 3.1).
//!
//! Nothing is stored. A decode step multiplies the queries with the keys of all candidates, and attends the distinct
//! tokens drawn. `B` tokens are drawn independently from `w = softmax(s·qKᵀ)`; the output is `Σ (f_i/B)·v_i` over the
//! distinct ones, where `f_i` counts a token's draws (eq. 4–5). The estimate is unbiased; the expected number of
//! distinct tokens is at most `1 + B(1 − max w)` (Theorem 3.3). Static tokens are attended exactly: draws are from the
//! candidates, and the estimate enters with the candidates' exact share of the softmax.
//!
//! `draw_from=all` is Definition 3.1 to the letter: every token is a candidate, the current one included, so `sink`,
//! `local` and `tail` have no effect. `proposal=value_norm` draws in proportion to `w_i‖v_i‖` (Appendix C). The paper
//! found this worse downstream: sinks have short values and are drawn less often.

use std::num::NonZero;
use std::sync::Arc;

use super::ParamInfo;
use super::topk::ExactScores;
use crate::Role;
use crate::methods::{MethodEntry, Preset};
use crate::scored::granularity::Granularity;
use crate::scored::method::Scored;
use crate::scored::select::{Draws, Proposal};

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "oracle_sampling",
    role: Role::Oracle,
    about: "samples from the exact attention weights: the oracle of sampling methods",
    reference: "MagicPIG (Chen et al. 2024, arXiv:2410.16179), Definition 3.1",
    params: &[
        ParamInfo { key: "budget", default: "64", about: "draws for each query head and step" },
        ParamInfo {
            key: "draw_from",
            default: "candidates",
            about: "candidates | all: beside exact static tokens, or every token drawn and none exact, as in Definition 3.1",
        },
        ParamInfo {
            key: "proposal",
            default: "attention",
            about: "attention | value_norm: drawn in proportion to a token's weight, or to it times its value's norm (App. C)",
        },
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
            source: "MagicPIG's code, evaluations/RULER/pred/oraclesampling_cache: layers 0 and 1 dense",
        },
    ],
    build: |params| {
        let budget = params.tuned_within("budget", NonZero::new(64).expect("not 0"), 1..=MOST_DRAWS)?;
        let has_static = params.choice("draw_from", &["candidates", "all"])? == "candidates";
        let proposal = match params.choice("proposal", &["attention", "value_norm"])? {
            "value_norm" => Proposal::ValueNorm,
            _ => Proposal::Attention,
        };
        let sampled = Scored::new(ExactScores, Draws { budget, proposal }, Granularity::QueryHead);
        Ok(Arc::new(if has_static { sampled } else { sampled.without_static() }))
    },
};

/// Largest number of draws that can be requested. All of them are made, however few the tokens.
const MOST_DRAWS: usize = 1 << 20;

//! `oracle_sampling`: draws from the exact attention distribution (MagicPIG, Definition 3.1).
//!
//! `B` tokens are drawn independently from `w = softmax(s·qKᵀ)` and the output is `Σ (f_i/B)·v_i` over
//! the distinct ones (eq. 4–5), an unbiased estimate whose cost is the number of distinct tokens, at
//! most `1 + B(1 − max w)` in expectation (Theorem 3.3). Static tokens are attended exactly: draws are
//! from the candidates, and the estimate enters with the candidates' exact share of the softmax.

use std::sync::Arc;

use rand::RngExt;

use super::{MethodEntry, ParamInfo, Preset};
use crate::attention::{HeadPrefix, Method, Picks, Selection, Step, Weighting};
use crate::cost::Cost;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "oracle_sampling",
    about: "samples from the exact attention weights: the oracle of sampling methods",
    params: &[ParamInfo { key: "budget", default: "64", about: "draws for each query head and step" }],
    presets: &[
        Preset {
            name: "paper",
            values: &[("sink", "4"), ("local", "64"), ("dense_layers", "0+50%")],
            source: "MagicPIG §5 (baselines): 4 sink and 64 local tokens, layers 0 and 16 of 32 kept dense",
        },
        Preset {
            name: "repo",
            values: &[("sink", "4"), ("local", "64"), ("dense_layers", "0+1")],
            source: "MagicPIG's code, evaluations/RULER/pred/oraclesampling_cache: layers 0 and 1 dense",
        },
    ],
    build: |params| Ok(Arc::new(OracleSampling { budget: params.get_positive("budget", 64)? })),
};

/// Independent draws from the exact weights of the candidates.
struct OracleSampling {
    budget: usize,
}

impl OracleSampling {
    fn draw(&self, step: &Step<'_>, head: usize, scores: &[f32]) -> Picks {
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut cumulative = Vec::with_capacity(scores.len());
        let mut total = 0.0f64;
        for s in scores {
            total += f64::from((step.scale * (s - max)).exp());
            cumulative.push(total);
        }
        let mut rng = step.rng(head);
        let mut draws: Vec<u32> = (0..self.budget)
            .map(|_| {
                let x = rng.random::<f64>() * total;
                cumulative.partition_point(|c| *c <= x).min(scores.len() - 1) as u32
            })
            .collect();
        draws.sort_unstable();
        let first = step.candidates.start as u32;
        let mut picks: (Vec<u32>, Vec<f32>) = Default::default();
        for run in draws.chunk_by(|a, b| a == b) {
            picks.0.push(run[0] + first);
            picks.1.push(run.len() as f32 / self.budget as f32);
        }
        let log_mass = step.scale * max + (total as f32).ln();
        Picks { tokens: picks.0, weighting: Weighting::Direct { weights: picks.1, log_mass } }
    }
}

impl Method for OracleSampling {
    type Index = ();
    type State = ();

    fn build(&self, _: &HeadPrefix<'_>) {}

    fn index_bytes(&self, (): &()) -> usize {
        0
    }

    fn start(&self, (): &()) {}

    fn select(&self, step: &Step<'_>, (): &(), (): &mut (), cost: &mut Cost) -> Selection {
        let scores = step.exact_scores(cost);
        let n = step.candidates.len();
        Selection::PerHead((0..step.group()).map(|h| self.draw(step, h, &scores[h * n..][..n])).collect())
    }
}

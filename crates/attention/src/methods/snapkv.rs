//! `snapkv`: evicts once after the prefix, by the attention of the prompt's last queries (SnapKV, Li et al. 2024, §4).
//!
//! The softmax weights of the prefix's last `window` queries are summed by token and pooled over `kernel` neighbours;
//! the best `k` tokens before the window are kept, the others evicted for good. Each decode step attends the kept
//! tokens, the window and all tokens after the prefix; selecting costs nothing. Only the list of kept tokens is stored.
//!
//! Votes do not depend on the budget, so sequences with different budgets share them, also those of [`ada_kv`](super::ada_kv) and
//! [`pyramid_kv`](super::pyramid_kv).
//!
//! With `per=query_head`, as published, each query head keeps `k` tokens of its own, so a KV head holds up to `k` times the group's size,
//! more than with one choice for the group. With `per=kv_head` it holds `k` tokens and the window.
//! `kv_tokens_held` reports the number held.
//!
//! The window contains the question only if the question is part of the prefix (`--sparse-from decode`), as in the
//! paper; with `--sparse-from question` the last queries of the context vote.

#[cfg(feature = "cuda")]
mod cuda;

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::ParamInfo;
use crate::IndexKey;
use crate::backend::reasons::HostReason;
use crate::cost::Cost;
use crate::kv::{KvDtype, KvError, KvShape};
use crate::methods::{MethodEntry, Preset};
use crate::scored::granularity::{Granularity, Reduce};
use crate::spec::KEEP;
use crate::types::budget::Context;
use crate::types::scores::score_each;
use crate::{
    Budget, HeadPrefix, IndexBuilder, Method, Params, Policy, Probe, PromptNeed, PromptShape, Role, Selection, Solved,
    SparseLayerRank, StaticTokens, Step, TailRule,
};
use spattn_base::error::UsageError;
use spattn_kernels::GPU_WIDEST;
use spattn_kernels::softmax::softmax;
use spattn_kernels::topk::top_k;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "snapkv",
    role: Role::Method,
    reference: "SnapKV (Li et al. 2024, arXiv:2404.14469)",
    about: "evicts after the prefix: keeps what its last queries attended (max-pooled)",
    params: &[
        ParamInfo {
            key: "k",
            default: "992",
            about: "tokens kept of those before the window by each selection (per=query_head: a KV head keeps what any \
                    query head of its group does); 0 leaves the window",
        },
        ParamInfo { key: "ratio", default: "-", about: "instead of k: share of the prefix, above 0 to 1" },
        KEEP,
        ParamInfo {
            key: "window",
            default: "32",
            about: "last tokens of the prefix, whose queries vote; kept as well",
        },
        ParamInfo { key: "kernel", default: "7", about: "tokens pooled around each one, an odd number" },
        ParamInfo { key: "pool", default: "max", about: "max | avg: how votes of neighbours are pooled" },
        Granularity::INFO,
        Granularity::REDUCE,
    ],
    presets: &[
        Preset {
            name: "paper",
            values: &[("k", "992"), ("window", "32"), ("kernel", "7"), ("pool", "max"), ("sink", "0"), ("local", "0")],
            source: "SnapKV §5, LongBench: window 32, max pooling over 7, 1024 tokens together (also 2048, 4096)",
        },
        Preset {
            name: "repo",
            values: &[("k", "2016"), ("window", "32"), ("kernel", "5"), ("pool", "avg"), ("sink", "0"), ("local", "0")],
            source: "SnapKV's code, snapkv_utils.py: window 32, average pooling over 5, 2048 tokens together",
        },
        Preset {
            name: "kvpress",
            values: &[
                ("keep", "0.5"),
                ("window", "64"),
                ("kernel", "5"),
                ("pool", "avg"),
                ("per", "kv_head"),
                ("sink", "0"),
                ("local", "0"),
            ],
            source: "kvpress, snapkv_press.py: window 64, average pooling over 5, one choice for each KV head; half of the tokens \
                     is one of its compression ratios",
        },
    ],
    build: |params| Ok(Arc::new(SnapKv::read(params, 992, 32)?)),
};

/// Eviction by the votes of the last queries.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct SnapKv {
    /// Number of tokens before the window that are kept.
    pub budget: Budget,
    /// Number of last tokens of the prefix whose queries vote.
    pub window: usize,
    kernel: usize,
    pool: Pool,
    /// Which heads choose together.
    pub per: Granularity,
    /// How the budget is distributed over layers.
    layers: LayerBudgets,
}

/// How many tokens each layer keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum LayerBudgets {
    /// All layers keep the same number of tokens.
    Equal,
    /// Deeper layers keep fewer; the value is `β` of [`pyramid_kv`](super::pyramid_kv).
    Pyramid(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Pool {
    Max,
    Average,
}

/// The pooled votes of one KV head's candidates, from which sequences of any budget choose what they keep.
pub(super) struct Votes {
    /// A list for each query head, or one for the group; no list if only the window is kept.
    of_selections: Vec<Vec<f32>>,
    /// The first candidate.
    first: u32,
    /// The tokens of the prefix, from which a budget given as a share is computed.
    context: Context,
    /// The rank of the layer, which a pyramid's budgets depend on.
    depth: SparseLayerRank,
}

impl Votes {
    /// A list for each query head, or one for the group.
    pub fn of_selections(&self) -> &[Vec<f32>] {
        &self.of_selections
    }

    /// The tokens of the prefix.
    pub fn context(&self) -> Context {
        self.context
    }

    /// The `count` candidates with the most votes in a list of these votes, ascending.
    pub fn best(&self, of_selection: &[f32], count: usize) -> Vec<u32> {
        top_k(of_selection, count).into_iter().map(|place| place + self.first).collect()
    }
}

/// The settings that determine votes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct VoteSettings {
    window: usize,
    kernel: usize,
    pool: Pool,
    per: Granularity,
    /// False if only the window is kept.
    is_counted: bool,
}

/// The candidates kept, ascending: a list for each query head, or one for the group.
pub(super) struct Kept(Vec<Vec<u32>>);

impl SnapKv {
    /// Reads the budget, `window`, `kernel`, `pool`, `per` and `reduce`; `k` and `window` are the defaults.
    pub fn read(params: &mut Params, k: usize, window: usize) -> Result<Self, UsageError> {
        let budget = params.budget_of_evicting(Budget::Tokens(k))?;
        let window = params.get_minor("window", window)?;
        let kernel = params.get_minor("kernel", 7)?;
        if kernel % 2 == 0 {
            return Err(params.bad_value("kernel", &kernel.to_string(), "an odd number"));
        }
        let pool = match params.choice("pool", &["max", "avg"])? {
            "avg" => Pool::Average,
            _ => Pool::Max,
        };
        Ok(Self { budget, window, kernel, pool, per: Granularity::read(params)?, layers: LayerBudgets::Equal })
    }

    /// Settings that sum votes over a GQA group and max-pool them, for a method with a budget of its own.
    pub fn of_group(window: usize, kernel: usize) -> Self {
        let per = Granularity::KvHead(Reduce::Sum);
        Self { budget: Budget::Tokens(0), window, kernel, pool: Pool::Max, per, layers: LayerBudgets::Equal }
    }

    /// Replaces the distribution of the budget over layers.
    pub fn with_layers(self, layers: LayerBudgets) -> Self {
        Self { layers, ..self }
    }

    /// Pooled votes of the candidates: a list for each query head, or one for the group.
    ///
    /// # Errors
    /// If keys of the prefix cannot be read.
    pub fn pooled_votes(&self, prefix: &HeadPrefix<'_>) -> Result<Vec<Vec<f32>>, KvError> {
        let heads = 0..prefix.prompt.group();
        let votes: Vec<Vec<f32>> = heads.map(|head| self.votes(prefix, head)).collect::<Result<_, KvError>>()?;
        let votes: Vec<&[f32]> = votes.iter().map(Vec::as_slice).collect();
        Ok(self.pooled_of_group(&votes, &prefix.candidates))
    }

    /// Pooled votes of the candidates, of those of a group's query heads: a list for each query head, or one for the group.
    fn pooled_of_group(&self, votes: &[&[f32]], candidates: &Range<usize>) -> Vec<Vec<f32>> {
        match self.per {
            Granularity::QueryHead => votes.par_iter().map(|votes| self.pooled(votes, candidates)).collect(),
            Granularity::KvHead(_) => {
                let merged = self.per.merged(votes.iter().map(|votes| votes.to_vec()).collect());
                merged.iter().map(|votes| self.pooled(votes, candidates)).collect()
            }
        }
    }

    /// Number of lists of a layer.
    pub fn lists(&self, prefix: &PromptShape) -> usize {
        if self.per == Granularity::QueryHead { prefix.heads } else { prefix.kv_heads }
    }

    /// Upper bound of the tokens that a list keeps in the mean over lists and layers.
    pub fn mean_budget(&self, prefix: &PromptShape) -> usize {
        self.budget.tokens(Context::new(prefix.tokens, &(0..prefix.tokens)))
    }

    /// Number of candidates that this layer keeps.
    fn layer_budget(&self, votes: &Votes) -> usize {
        let mean = self.budget.tokens(votes.context);
        match self.layers {
            LayerBudgets::Equal => mean,
            LayerBudgets::Pyramid(beta) => pyramid(mean, beta, votes.context.candidates(), votes.depth),
        }
    }

    /// Softmax weights of the window's queries of one head, summed for each token before the window.
    fn votes(&self, prefix: &HeadPrefix<'_>, head: usize) -> Result<Vec<f32>, KvError> {
        let (d, tokens, scale) = (prefix.d, prefix.tokens(), prefix.scale.factor());
        let queries = prefix.prompt.last_queries(self.window, head).to_f32();
        let scaled: Vec<f32> = queries.iter().map(|q| q * scale).collect();
        let first = tokens - queries.len() / d;
        let mut votes = vec![0.0; first];
        score_each(&scaled, prefix.keys, |i, logits| {
            let weights = &mut logits[..first + i + 1];
            softmax(weights);
            votes.iter_mut().zip(weights).for_each(|(vote, weight)| *vote += *weight);
        })?;
        Ok(votes)
    }

    /// Votes of the candidates, pooled over neighbours. Beyond either end the average counts zeros, and the maximum nothing.
    fn pooled(&self, votes: &[f32], candidates: &Range<usize>) -> Vec<f32> {
        let none = if self.pool == Pool::Max { f32::NEG_INFINITY } else { 0.0 };
        let (mut pooled, reach) = (vec![none; candidates.len()], self.kernel / 2);
        // Neighbour by neighbour over all candidates, so that the loop can be vectorised.
        for neighbour in reach.saturating_sub(votes.len())..self.kernel.min(reach + votes.len()) {
            // The token itself is neighbour `reach`.
            let tokens = candidates.start.max(reach.saturating_sub(neighbour))
                ..candidates.end.min((votes.len() + reach).saturating_sub(neighbour));
            if tokens.is_empty() {
                continue;
            }
            let own = &mut pooled[tokens.start - candidates.start..tokens.end - candidates.start];
            let near = &votes[tokens.start + neighbour - reach..tokens.end + neighbour - reach];
            match self.pool {
                Pool::Max => own.iter_mut().zip(near).for_each(|(most, vote)| *most = most.max(*vote)),
                Pool::Average => own.iter_mut().zip(near).for_each(|(sum, vote)| *sum += vote),
            }
        }
        if self.pool == Pool::Average {
            pooled.iter_mut().for_each(|sum| *sum /= self.kernel as f32);
        }
        pooled
    }
}

impl IndexBuilder for SnapKv {
    fn fits(&self, shape: KvShape) -> bool {
        HostReason::of_head_width(shape.d, GPU_WIDEST, 8).is_none()
    }

    /// The window's queries and outputs, their log-sums, and the vote of each token.
    fn bytes(&self, prefix: &PromptShape, dtype: KvDtype) -> usize {
        let PromptShape { heads, d, tokens, .. } = *prefix;
        let window = self.window.min(tokens);
        match self.budget.is_none() {
            true => 0,
            false => heads * (2 * window * d * dtype.bytes() + (window + tokens) * size_of::<f32>()),
        }
    }
}

impl Method for SnapKv {
    type Index = Arc<Votes>;
    type State = Kept;

    fn prompt_needs(&self) -> Vec<PromptNeed> {
        if self.budget.is_none() { Vec::new() } else { vec![PromptNeed::LastQueries(self.window)] }
    }

    fn solve(&self, probe: &Probe<'_>) -> Result<Option<Solved<Self>>, KvError> {
        let Some(k) = probe.tokens_once(self.budget) else { return Ok(None) };
        Ok(Some(Solved { method: Self { budget: Budget::Tokens(k), ..self.clone() }, params: format!("k={k}") }))
    }

    fn index_key(&self) -> IndexKey {
        let Self { budget, window, kernel, pool, per, layers: _ } = *self;
        IndexKey::of_several_methods(VoteSettings { window, kernel, pool, per, is_counted: !budget.is_none() })
    }

    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Arc<Votes>, KvError> {
        let of_selections = if self.budget.is_none() { Vec::new() } else { self.pooled_votes(prefix)? };
        let first = prefix.candidates.start as u32;
        Ok(Arc::new(Votes { of_selections, first, context: prefix.context(), depth: prefix.depth }))
    }

    /// Counts nothing: votes are needed only to start sequences.
    fn index_bytes(&self, _: &Arc<Votes>) -> usize {
        0
    }

    /// The list of kept tokens, as stored here. An implementation that moves the kept keys and values together needs no list.
    fn state_bytes(&self, Kept(tokens): &Kept) -> usize {
        tokens.iter().map(|tokens| size_of_val(tokens.as_slice())).sum()
    }

    fn start(&self, votes: &Arc<Votes>) -> Kept {
        let budget = self.layer_budget(votes);
        Kept(votes.of_selections.iter().map(|of_selection| votes.best(of_selection, budget)).collect())
    }

    fn tail_rule(&self) -> TailRule {
        TailRule::Exact("SnapKV compresses the prompt once and keeps all that is generated (its §4)")
    }

    fn select(&self, step: &Step<'_>, _: &Arc<Votes>, kept: &mut Kept, _: &mut Cost) -> Result<Selection, KvError> {
        if self.budget.is_none() {
            return Ok(self.per.nothing(step.group()));
        }
        Ok(self.per.selection(kept.0.clone()))
    }

    fn selects_once(&self) -> bool {
        true
    }

    fn kept_tokens(&self, prefix: &PromptShape) -> usize {
        let mean = self.mean_budget(prefix);
        let most = match self.layers {
            LayerBudgets::Equal => mean,
            LayerBudgets::Pyramid(_) => 2 * mean,
        };
        self.lists(prefix) * most.min(prefix.tokens)
    }

    fn index_builder(&self) -> Option<&dyn IndexBuilder> {
        Some(self)
    }

    /// The voting window is static even if the policy's window is shorter.
    fn exact(&self, policy: &Policy, prefix_tokens: usize, _total_tokens: usize) -> StaticTokens {
        StaticTokens::policy(
            &Policy { local: policy.local.max(self.window), ..policy.clone() },
            prefix_tokens,
            prefix_tokens,
        )
    }

    fn resident_candidates(&self, _: &Arc<Votes>, kept: &Kept) -> Option<usize> {
        Some(super::entry::distinct(kept.0.iter().flatten().copied()))
    }
}

/// Number of candidates that a layer keeps if all layers keep `mean` on average (PyramidKV).
pub(super) fn pyramid(mean: usize, beta: usize, candidates: usize, depth: SparseLayerRank) -> usize {
    if depth.of < 2 || 2 * mean > candidates {
        return mean;
    }
    let (mean, all) = (mean as f64, candidates as f64);
    let most = (2.0 * mean - mean / beta as f64).min(all);
    let least = 2.0 * mean - most;
    let place = depth.rank as f64 / (depth.of - 1) as f64;
    (most - place * (most - least)).round() as usize
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Stepper, none};
    use super::*;
    use crate::SelectedTokens;

    /// Votes of one query head for the tokens before the window, by the definition.
    fn votes(stepper: &Stepper, head: usize, window: usize) -> Vec<f64> {
        let first = stepper.prefix_tokens - window;
        let mut votes = vec![0.0; first];
        for t in first..stepper.prefix_tokens {
            let weights: Vec<f64> = (0..=t).map(|k| stepper.prompt_logit(t, head, k).exp()).collect();
            let sum: f64 = weights.iter().sum();
            votes.iter_mut().zip(weights).for_each(|(v, w)| *v += w / sum);
        }
        votes
    }

    fn best(votes: &[f64], kernel: usize, max: bool, candidates: std::ops::Range<usize>, k: usize) -> Vec<u32> {
        let at = |i: isize| if (0..votes.len() as isize).contains(&i) { votes[i as usize] } else { 0.0 };
        let reach = kernel as isize / 2;
        let pooled = |t: u32| -> f64 {
            let near = (t as isize - reach..=t as isize + reach).map(at);
            if max { near.fold(0.0, f64::max) } else { near.sum::<f64>() / kernel as f64 }
        };
        let mut order: Vec<u32> = candidates.map(|t| t as u32).collect();
        order.sort_by(|a, b| pooled(*b).total_cmp(&pooled(*a)).then(a.cmp(b)));
        order.truncate(k);
        order.sort_unstable();
        order
    }

    #[test]
    fn keeps_what_the_window_attends_most_after_pooling() {
        let policy = Policy { sink: 2, local: 5, ..none() };
        for (kernel, pool, window) in [(1, "max", 8), (5, "max", 8), (7, "max", 20), (5, "avg", 8), (3, "avg", 1)] {
            let spec = format!("snapkv:k=12,window={window},kernel={kernel},pool={pool}");
            let candidates = 2..90 - window.max(5);
            let mut stepper = Stepper::new(&spec, &policy, 90, 2);
            let of_head: Vec<Vec<f64>> = (0..2).map(|h| votes(&stepper, h, window)).collect();
            let expected =
                |votes: &Vec<f64>| SelectedTokens::softmax(best(votes, kernel, pool == "max", candidates.clone(), 12));
            let each = Selection::PerHead(of_head.iter().map(expected).collect());
            for _ in 0..3 {
                assert_eq!(stepper.step().0, each, "{spec}");
            }
            let together: Vec<f64> = of_head[0].iter().zip(&of_head[1]).map(|(a, b)| a + b).collect();
            let mut shared = Stepper::new(&format!("{spec},per=kv_head"), &policy, 90, 2);
            assert_eq!(shared.step().0, Selection::Shared(expected(&together)), "{spec}");
        }
    }
}

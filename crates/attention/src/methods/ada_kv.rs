//! `ada_kv`: evicts after the prefix by SnapKV's votes, with a budget that the heads of a layer share (Ada-KV, Feng et
//! al. 2024, arXiv:2407.11550).
//!
//! Some heads attend few tokens, others many. If a layer has `s` selections, the `s·k` largest votes of all of them
//! decide how many tokens each selection keeps, `k` on average (Alg. 1). This keeps the largest sum of votes, and so
//! minimises an upper bound of the loss in the layer's output (Theorem 3.1). As a safeguard, each selection first gets
//! a share `floor` of `k`; the rest is distributed as above. Votes, pooling, storage and cost of a decode step are as
//! in [`snapkv`](super::snapkv).
//!
//! The authors' code can weigh votes by the share of a head's votes on its best `k` tokens (`normalize`). Neither
//! the paper nor this method does.

use std::sync::Arc;

use super::ParamInfo;
use super::snapkv::{SnapKv, Votes};
use crate::cost::Cost;
use crate::kv::KvError;
use crate::methods::{MethodEntry, Preset};
use crate::scored::granularity::Granularity;
use crate::spec::KEEP;
use crate::{
    HeadPrefix, IndexBuilder, IndexKey, Method, Policy, Probe, PromptNeed, PromptShape, Role, Selection, Solved,
    StaticTokens, Step, TailRule,
};
use spattn_kernels::topk::top_k;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "ada_kv",
    role: Role::Method,
    about: "evicts after the prefix as snapkv does, more tokens where a head's votes are few",
    reference: "Ada-KV (Feng et al. 2024, arXiv:2407.11550)",
    params: &[
        ParamInfo {
            key: "k",
            default: "992",
            about: "tokens kept of those before the window by each selection, mean over those of a layer; 0 leaves the window",
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
        ParamInfo {
            key: "floor",
            default: "0.2",
            about: "share of k that each selection keeps in any case, from 0 to 1",
        },
        Granularity::INFO,
        Granularity::REDUCE,
    ],
    presets: &[Preset {
        name: "repo",
        values: &[
            ("k", "992"),
            ("window", "32"),
            ("kernel", "7"),
            ("pool", "max"),
            ("floor", "0.2"),
            ("sink", "0"),
            ("local", "0"),
        ],
        source: "Ada-KV's code, experiments/LongBench/GQA_eval_longbench.sh: window 32, max pooling over 7, floor_alpha 0.2, 128 to \
                 1024 tokens together (1024 here)",
    }],
    build: |params| {
        let snapkv = SnapKv::read(params, 992, 32)?;
        const RANGE: &str = "a number from 0 to 1";
        let floor: f64 = params.get_minor_as("floor", 0.2, RANGE)?;
        if !(0.0..=1.0).contains(&floor) {
            return Err(params.bad_value("floor", &floor.to_string(), RANGE));
        }
        Ok(Arc::new(AdaKv { snapkv, floor }))
    },
};

/// Eviction by the votes of the prefix's last queries, with one budget for all heads of a layer.
#[derive(Clone)]
struct AdaKv {
    snapkv: SnapKv,
    floor: f64,
}

/// The candidates of one KV head that are kept.
#[derive(Default)]
struct Kept {
    /// The votes, until the layer has chosen.
    votes: Option<Arc<Votes>>,
    /// Tokens kept by each query head, or by the group, ascending.
    tokens: Vec<Vec<u32>>,
}

/// Number of tokens that each selection of a layer keeps, given the votes of all of them.
fn shares(votes: &[&[f32]], budget: usize, floor: f64) -> Vec<usize> {
    let candidates = votes[0].len();
    let mut counts = vec![0usize; votes.len()];
    for place in top_k(&votes.concat(), budget * votes.len()) {
        counts[place as usize / candidates] += 1;
    }
    let share = |count: usize| ((1.0 - floor) * count as f64 + floor * budget as f64).round() as usize;
    counts.into_iter().map(share).collect()
}

impl Method for AdaKv {
    type Index = Arc<Votes>;
    type State = Kept;

    fn prompt_needs(&self) -> Vec<PromptNeed> {
        self.snapkv.prompt_needs()
    }

    fn solve(&self, probe: &Probe<'_>) -> Result<Option<Solved<Self>>, KvError> {
        let solved = self.snapkv.solve(probe)?;
        Ok(solved.map(|Solved { method: snapkv, params }| Solved { method: Self { snapkv, ..*self }, params }))
    }

    fn index_key(&self) -> IndexKey {
        self.snapkv.index_key()
    }

    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Arc<Votes>, KvError> {
        self.snapkv.build(prefix)
    }

    /// Counts nothing: once the layer has chosen, votes are needed only to start further sequences.
    fn index_bytes(&self, _: &Arc<Votes>) -> usize {
        0
    }

    fn state_bytes(&self, kept: &Kept) -> usize {
        kept.tokens.iter().map(|tokens| size_of_val(tokens.as_slice())).sum()
    }

    fn start(&self, votes: &Arc<Votes>) -> Kept {
        Kept { votes: Some(votes.clone()), tokens: Vec::new() }
    }

    /// Distributes the budget once, when all KV heads of the layer have their votes.
    fn coordinate_heads(&self, heads: &mut [&mut Kept]) {
        let votes: Vec<Arc<Votes>> = heads.iter_mut().filter_map(|head| head.votes.take()).collect();
        let all: Vec<&[f32]> = votes.iter().flat_map(|v| v.of_selections().iter().map(Vec::as_slice)).collect();
        if all.is_empty() || all[0].is_empty() {
            return;
        }
        let budget = self.snapkv.budget.tokens(votes[0].context());
        let mut shares = shares(&all, budget, self.floor).into_iter();
        for (head, votes) in heads.iter_mut().zip(&votes) {
            let selections = votes.of_selections().iter().zip(&mut shares);
            head.tokens = selections.map(|(of_selection, share)| votes.best(of_selection, share)).collect();
        }
    }

    fn tail_rule(&self) -> TailRule {
        TailRule::Exact("Ada-KV compresses the prompt once and keeps all that is generated, as SnapKV does")
    }

    fn select(&self, step: &Step<'_>, _: &Arc<Votes>, kept: &mut Kept, _: &mut Cost) -> Result<Selection, KvError> {
        if self.snapkv.budget.is_none() {
            return Ok(self.snapkv.per.nothing(step.group()));
        }
        Ok(self.snapkv.per.selection(kept.tokens.clone()))
    }

    fn selects_once(&self) -> bool {
        true
    }

    /// One list may get the budget of all.
    fn kept_tokens(&self, prefix: &PromptShape) -> usize {
        let lists = self.snapkv.lists(prefix);
        lists * (lists * self.snapkv.mean_budget(prefix)).min(prefix.tokens)
    }

    fn index_builder(&self) -> Option<&dyn IndexBuilder> {
        self.snapkv.index_builder()
    }

    fn exact(&self, policy: &Policy, prefix_tokens: usize, total_tokens: usize) -> StaticTokens {
        self.snapkv.exact(policy, prefix_tokens, total_tokens)
    }

    fn resident_candidates(&self, _: &Arc<Votes>, kept: &Kept) -> Option<usize> {
        Some(super::entry::distinct(kept.tokens.iter().flatten().copied()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{configured, noise, none, prompt_queries, random_stats};
    use crate::kv::{KvDtype, LayerKv, Prefix};
    use crate::{IndexCache, Policy};

    const D: usize = 16;
    const HEADS: usize = 4;
    const GROUP: usize = 2;

    /// One layer of two KV heads and four query heads, by loops.
    struct Naive {
        /// `[token][kv_head][d]`.
        keys: Vec<Vec<f32>>,
        values: Vec<Vec<f32>>,
    }

    impl Naive {
        fn logit(&self, head: usize, query: &[f32], token: usize) -> f64 {
            let key = &self.keys[token][head / GROUP * D..][..D];
            query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() / (D as f64).sqrt()
        }

        /// Softmax weights of the last `window` queries, summed for each token before them.
        fn votes(&self, head: usize, window: usize) -> Vec<f64> {
            let tokens = self.keys.len();
            let queries = prompt_queries(0, tokens * HEADS * D);
            let mut votes = vec![0.0; tokens - window];
            for t in tokens - window..tokens {
                let query = &queries[(t * HEADS + head) * D..][..D];
                let weights: Vec<f64> = (0..=t).map(|x| self.logit(head, query, x).exp()).collect();
                let sum: f64 = weights.iter().sum();
                votes.iter_mut().zip(weights).for_each(|(vote, w)| *vote += w / sum);
            }
            votes
        }

        fn output(&self, head: usize, query: &[f32], tokens: &[usize]) -> Vec<f64> {
            let weights: Vec<f64> = tokens.iter().map(|t| self.logit(head, query, *t).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let value = |t: usize, c: usize| f64::from(self.values[t][head / GROUP * D + c]);
            (0..D).map(|c| tokens.iter().zip(&weights).map(|(t, w)| w * value(*t, c)).sum::<f64>() / sum).collect()
        }
    }

    fn best(votes: &[f64], from: usize, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (from..votes.len()).collect();
        order.sort_by(|a, b| votes[*b].total_cmp(&votes[*a]));
        order.truncate(count);
        order
    }

    fn check(spec: &str, sharp: f32, k: usize, floor: f64, together: bool) {
        let (tokens, sink, window) = (150, 2, 6);
        let mut kv = LayerKv::new(KvDtype::F32, HEADS / GROUP, D, tokens);
        let mut naive = Naive { keys: vec![], values: vec![] };
        let key = |t: usize| -> Vec<f32> {
            // The second KV head attends more sharply, or less, by the factor `sharp`.
            noise(2 * D, t as u64).iter().enumerate().map(|(c, x)| if c < D { *x } else { sharp * x }).collect()
        };
        for t in 0..tokens {
            let value = noise(2 * D, 500 + t as u64);
            kv.append(&key(t), &value);
            naive.keys.push(key(t));
            naive.values.push(value);
        }
        // The votes of each selection: those of a query head, or their sum over a group.
        let of_heads: Vec<Vec<f64>> = (0..HEADS).map(|head| naive.votes(head, window)).collect();
        let selections: Vec<Vec<f64>> = match together {
            false => of_heads,
            true => of_heads.chunks(GROUP).map(|g| g[0].iter().zip(&g[1]).map(|(a, b)| a + b).collect()).collect(),
        };
        let mut all: Vec<(f64, usize)> = Vec::new();
        for (selection, votes) in selections.iter().enumerate() {
            all.extend(votes[sink..].iter().map(|vote| (*vote, selection)));
        }
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        all.truncate(k * selections.len());
        let share = |s: usize| {
            let wins = all.iter().filter(|(_, of)| *of == s).count();
            (wins as f64 * (1.0 - floor) + k as f64 * floor).round() as usize
        };
        let shares: Vec<usize> = (0..selections.len()).map(share).collect();
        if sharp != 1.0 {
            let last = selections.len() - 1;
            assert!(shares[0] != shares[last], "{spec}: heads differ, {shares:?}");
        }
        let kept: Vec<Vec<usize>> = selections.iter().zip(&shares).map(|(v, share)| best(v, sink, *share)).collect();

        let method = configured(spec, &Policy { sink, ..none() });
        let prefix = Prefix::new(vec![kv]);
        let stats = random_stats(&method.method, &prefix, HEADS);
        let mut fork = IndexCache::new(prefix, KvDtype::F32, 1).with_stats(stats).fork(&method, false).unwrap();
        for step in 0..3 {
            let (queries, value) = (noise(HEADS * D, 900 + step), noise(2 * D, 950 + step));
            let key = key(tokens + step as usize);
            let mut out = vec![f32::NAN; HEADS * D];
            fork.step(0, &queries, &key, &value, &mut out).unwrap();
            naive.keys.push(key);
            naive.values.push(value);
            for head in 0..HEADS {
                let selection = if together { head / GROUP } else { head };
                let static_ones = (0..sink).chain(tokens - window..naive.keys.len());
                let attended: Vec<usize> = static_ones.chain(kept[selection].iter().copied()).collect();
                let expected = naive.output(head, &queries[head * D..][..D], &attended);
                for (ours, expected) in out[head * D..][..D].iter().zip(expected) {
                    assert!((f64::from(*ours) - expected).abs() < 1e-5, "{spec}, sharp {sharp}, head {head}");
                }
            }
        }
    }

    #[test]
    fn the_heads_of_a_layer_share_its_budget_by_their_votes() {
        for sharp in [1.0, 4.0, 0.2] {
            for (k, floor) in [(10, 0.2), (25, 0.0), (7, 0.5), (12, 1.0)] {
                let spec = format!("ada_kv:k={k},floor={floor},window=6,kernel=1");
                let sharp = if floor == 1.0 { 1.0 } else { sharp };
                check(&spec, sharp, k, floor, false);
                check(&format!("{spec},per=kv_head"), sharp, k, floor, true);
            }
        }
    }
}

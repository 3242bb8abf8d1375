//! `knn`: selects the top-k tokens through a nearest-neighbour index over the prefix (top-k attention over a kNN index,
//! Synk, Hoover et al. 2025, Algorithm 1).
//!
//! With `index=hnsw`, a graph over the candidates of each KV head is stored
//! ([`Hnsw`](crate::index::graph::hnsw::Hnsw)); a decode step searches it by the query's inner product with the cached
//! keys. With `index=flat` nothing is stored, and a step scores all candidates, with the selection of `topk`. Generated
//! tokens stay static, as in the paper; with `--tail indexed`, those that leave the window are scored one by one beside
//! the graph. All selected and static tokens are in one softmax; the paper's listing (l. 14–15) adds two that are
//! normalised separately, which is not attention.
//!
//! Budgets that grow with depth (§4.4, which gives no slope) are set by `schedule=linear`, as for any method
//! ([`Schedule`](crate::Schedule)). If `k` is at least the number of candidates, all are selected and none is scored.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::ParamInfo;
use super::graph_search::{MOST_LINKS, SearchWidth, pick_all, search_each};
use crate::IndexKey;
use crate::cost::Cost;
use crate::index::graph::Beam;
use crate::index::graph::hnsw::{Hnsw, HnswParams};
use crate::index::workspaces::Workspaces;
use crate::kv::KvError;
use crate::methods::{MethodEntry, Preset};
use crate::scored::granularity::Granularity;
use crate::{Budget, HeadPrefix, Method, Params, Role, SelectedTokens, Selection, Step, TailRule};
use spattn_base::clock;
use spattn_base::error::UsageError;
use spattn_kernels::topk::top_k;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "knn",
    role: Role::Method,
    reference: "Top-k attention over a kNN index (Synk et al. 2025, arXiv:2502.06766)",
    about: "top-k through a nearest-neighbour index",
    params: &[
        ParamInfo { key: "index", default: "hnsw", about: "hnsw | flat: a graph of keys, or all keys scored" },
        ParamInfo { key: "k", default: "64", about: "tokens picked beyond the static ones, mean over layers" },
        ParamInfo { key: "ratio", default: "-", about: "instead of k: share of the context, above 0 to 1" },
        ParamInfo {
            key: "ef",
            default: SearchWidth::USUAL,
            about: "hnsw: keys held while searching, a number or a multiple of k; more find more (at least k)",
        },
        ParamInfo {
            key: "M",
            default: "16",
            about: "hnsw: links of a new key (twice that at most on the ground level)",
        },
        ParamInfo { key: "ef_construction", default: "100", about: "hnsw: keys held while links are looked for" },
        Granularity::INFO,
    ],
    presets: &[Preset {
        name: "paper",
        values: &[("index", "flat"), ("ratio", "0.01"), ("sink", "0"), ("local", "0")],
        source: "Top-k attention §4: k of 1 % of the context is enough; only generated tokens are attended beside it",
    }],
    build: |params| {
        let index = match params.get("index", Kind::Hnsw, "hnsw or flat")? {
            Kind::Flat => KnnIndex::Flat,
            Kind::Hnsw => KnnIndex::Hnsw(GraphSearch::read(params)?),
        };
        let budget = params.budget(Budget::Tokens(64))?;
        Ok(Arc::new(Knn { index, budget, per: Granularity::read_per(params)? }))
    },
};

/// Top-k selection through an index.
struct Knn {
    index: KnnIndex,
    budget: Budget,
    per: Granularity,
}

enum KnnIndex {
    Flat,
    Hnsw(GraphSearch),
}

#[derive(Clone, Copy)]
enum Kind {
    Flat,
    Hnsw,
}

impl FromStr for Kind {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "flat" => Ok(Self::Flat),
            "hnsw" => Ok(Self::Hnsw),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flat => "flat",
            Self::Hnsw => "hnsw",
        })
    }
}

/// How the graph is built and searched.
struct GraphSearch {
    params: HnswParams,
    width: SearchWidth,
}

impl GraphSearch {
    fn read(params: &mut Params) -> Result<Self, UsageError> {
        let width = params.get_minor_as("ef", SearchWidth::Usual, SearchWidth::EXPECTED)?;
        let links = params.get_minor_within("M", 16, 2..=MOST_LINKS)?;
        let build_width = params.get_minor("ef_construction", 100)?;
        Ok(Self { params: HnswParams { links, width: build_width }, width })
    }
}

impl Method for Knn {
    /// The graph; `None` with `index=flat`, or without candidates.
    type Index = Option<Hnsw>;
    /// Workspaces of searches.
    type State = Workspaces<Beam>;

    /// Leaves out the width of the search, the budget and the grouping, which concern only a step.
    fn index_key(&self) -> IndexKey {
        let Self { index, budget: _, per: _ } = self;
        IndexKey::new(match index {
            KnnIndex::Flat => None,
            KnnIndex::Hnsw(GraphSearch { params, width: _ }) => Some(*params),
        })
    }

    /// A graph needs all keys at once: each inserted key searches among those before it.
    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Option<Hnsw>, KvError> {
        let KnnIndex::Hnsw(search) = &self.index else { return Ok(None) };
        if prefix.candidates.is_empty() {
            return Ok(None);
        }
        let keys = prefix.candidate_keys().to_f32()?;
        Ok(Some(Hnsw::build(&keys, prefix.d, search.params, prefix.seed)))
    }

    fn index_bytes(&self, graph: &Option<Hnsw>) -> usize {
        graph.as_ref().map_or(0, Hnsw::bytes)
    }

    fn start(&self, _: &Option<Hnsw>) -> Workspaces<Beam> {
        Workspaces::new()
    }

    fn select(
        &self,
        step: &Step<'_>,
        graph: &Option<Hnsw>,
        beams: &mut Workspaces<Beam>,
        cost: &mut Cost,
    ) -> Result<Selection, KvError> {
        let k = self.budget.tokens(step.context);
        if k >= step.candidates.len() {
            return Ok(pick_all(step, self.per));
        }
        if let (KnnIndex::Hnsw(search), Some(graph)) = (&self.index, graph) {
            let width = search.width.of(k);
            return search_each(step, self.per, k, graph.nodes(), beams, cost, |beam, score| {
                graph.search(width, beam, score)
            });
        }
        let queries = self.per.queries(step);
        let scores = clock::scoring(|| step.exact_scores(&queries, cost))?;
        let first = step.candidates.start as u32;
        let pick = |_, scores: &[f32], cost: &mut Cost| {
            cost.select_bytes += 2 * size_of_val(scores) as u64;
            Ok(SelectedTokens::softmax(top_k(scores, k).into_iter().map(|i| i + first).collect()))
        };
        let selection = clock::picking(|| self.per.select(&scores, queries.len() / step.d, cost, pick))?;
        if self.per.asks_each(step.group()) {
            step.leave_to_attention(&selection, cost);
        }
        Ok(selection)
    }

    fn tail_rule(&self) -> TailRule {
        TailRule::Indexed("new keys are scored one by one beside the graph, as indexes buffer what is to be inserted")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::tests::{assert_close, noise, none, prefix, random_kv, run, select};
    use crate::kv::KvDtype;
    use crate::{DenseLayers, Policy, Selection};

    #[test]
    fn flat_and_graphs_as_wide_as_the_prefix_pick_what_topk_picks() {
        for (dtype, d, group) in [(KvDtype::F32, 32, 1), (KvDtype::Bf16, 64, 8), (KvDtype::F16, 128, 2)] {
            let kv = random_kv(dtype, 1, 300, d, 3);
            let queries = noise(group * d, 8);
            for per in ["query_head", "kv_head"] {
                let (exact, scanned) = select(&format!("topk:k=17,per={per}"), &kv, &queries, 5..280);
                let flat = select(&format!("knn:index=flat,k=17,per={per}"), &kv, &queries, 5..280);
                assert_eq!(flat, (exact.clone(), scanned));
                assert_eq!(select(&format!("knn:k=17,ef=275,per={per}"), &kv, &queries, 5..280).0, exact);
            }
        }
        let prefix = prefix(2, 2, 300, 32);
        let output = |spec: &str| run(&prefix, spec, &Policy::default(), 4, 3).0;
        assert_eq!(output("knn:index=flat,k=20"), output("topk:k=20"));
        assert_eq!(output("knn:index=flat,ratio=0.1,per=kv_head"), output("topk:ratio=0.1,per=kv_head"));
        assert_eq!(output("knn:k=20,ef=300"), output("topk:k=20"));
    }

    #[test]
    fn picks_and_generated_tokens_are_one_softmax() {
        let (tokens, d, k, steps) = (200, 32, 12, 3);
        let prefix = prefix(1, 1, tokens, d);
        let (out, _) = run(&prefix, "knn:index=flat,k=12", &none(), 1, steps);
        // The last step of a naive reference: the 12 best tokens of the prefix and all three tokens after it.
        let kv = prefix.layer(0).unwrap();
        let (mut keys, mut values) = (kv.keys.head(0).to_f32(), kv.values.head(0).to_f32());
        for t in 0..steps as u64 {
            keys.extend(noise(d, 100 * t + 1_000));
            values.extend(noise(d, 100 * t + 2_000));
        }
        let query = noise(d, 100 * (steps as u64 - 1));
        let logit = |t: usize| -> f64 {
            let dot: f64 = query.iter().zip(&keys[t * d..]).map(|(q, k)| f64::from(q * k)).sum();
            dot / (d as f64).sqrt()
        };
        let mut attended: Vec<usize> = (0..tokens).collect();
        attended.sort_by(|a, b| logit(*b).total_cmp(&logit(*a)));
        attended.truncate(k);
        attended.extend(tokens..tokens + steps);
        let total: f64 = attended.iter().map(|&t| logit(t).exp()).sum();
        let expected: Vec<f32> = (0..d)
            .map(|c| {
                attended.iter().map(|&t| logit(t).exp() / total * f64::from(values[t * d + c])).sum::<f64>() as f32
            })
            .collect();
        assert_close(&out[(steps - 1) * d..], &expected, 1e-5, "one softmax");
    }

    #[test]
    fn searching_costs_what_was_scored_and_less_than_a_scan() {
        let (n, d) = (4000, 32);
        let kv = random_kv(KvDtype::Bf16, 1, n, d, 3);
        let queries = noise(2 * d, 8);
        let (picks, cost) = select("knn:k=4,ef=8", &kv, &queries, 0..n);
        let (scanned, scan) = select("knn:index=flat,k=4", &kv, &queries, 0..n);
        let Selection::PerHead(picks) = picks else { panic!("a set for each query head") };
        assert!(picks.iter().all(|p| p.tokens.len() == 4));
        let union: BTreeSet<u32> = picks.iter().flat_map(|p| p.tokens.iter().copied()).collect();
        // Each head's four products count as attention; of the keys that the searches read, those selected by either head do.
        let (flops, bytes) = (2 * d as u64, 2 * d as u64);
        let scored = cost.score_flops / flops + 2 * 4;
        assert_eq!((cost.score_flops, cost.kv_bytes), (flops * (scored - 8), bytes * (scored - union.len() as u64)));
        assert!(scored >= 16 && scored < n as u64, "{scored}");
        assert!(cost.aux_bytes >= 4 * (scored - 20), "{}", cost.aux_bytes);
        let Selection::PerHead(scanned) = scanned else { panic!("a set for each query head") };
        let union: BTreeSet<u32> = scanned.iter().flat_map(|p| p.tokens.iter().copied()).collect();
        assert_eq!(scan.score_flops, flops * (2 * n - 2 * 4) as u64, "two heads, all keys, less four picks each");
        assert_eq!((scan.kv_bytes, scan.aux_bytes), (bytes * (n - union.len()) as u64, 0));
        assert_eq!(select("knn:k=4000", &kv, &queries, 0..n).1.score_flops, 0, "nothing to choose, nothing scored");
    }

    #[test]
    fn a_linear_schedule_grows_and_sums_to_the_uniform_one() {
        for (layers, dense) in [(1, "none"), (2, "none"), (5, "none"), (10, "none"), (6, "0+3")] {
            let prefix = prefix(layers, 1, 150, 32);
            let policy = Policy { dense_layers: DenseLayers::parse(dense).unwrap(), ..none() };
            for k in [1, 2, 7, 33] {
                let attended = |schedule: &str| -> Vec<u64> {
                    let spec = format!("knn:index=flat,k={k},schedule={schedule}");
                    let (_, fork) = run(&prefix, &spec, &policy, 1, 1);
                    (0..layers)
                        .filter(|l| !fork.is_dense(*l))
                        .map(|l| fork.costs().layers()[l].attended_tokens)
                        .collect()
                };
                let (uniform, linear) = (attended("uniform"), attended("linear"));
                assert!(uniform.iter().all(|n| *n == k + 1));
                assert_eq!(linear.iter().sum::<u64>(), uniform.iter().sum::<u64>(), "{layers} layers, k={k}");
                let sparse = linear.len() as u64;
                for (i, n) in linear.iter().enumerate() {
                    let ideal = (2 * k * (i as u64 + 1)) as f64 / (sparse + 1) as f64 + 1.0;
                    assert!((*n as f64 - ideal).abs() < 1.0, "{layers} layers, k={k}: {linear:?}");
                }
            }
        }
    }
}

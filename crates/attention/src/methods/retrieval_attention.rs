//! `retrieval_attention`: selects the top-k tokens through a graph over keys that the prompt's queries build
//! (RetrievalAttention, Liu et al. 2024).
//!
//! The graph is stored for each KV head; a decode step searches it by the exact inner product, so it reads the keys
//! that it visits. Queries and keys are distributed differently, so a query wanders in a graph that links near keys.
//! Here keys that the same prompt queries look for are linked ([`Roar`](crate::index::graph::roar::Roar)), and similar
//! queries find them in few steps. If `k` is at least the number of candidates, all are selected and none is scored.
//!
//! The graph is built from the queries of `queries` tokens, evenly spread over the prefix, of all query heads of the group. Each
//! is compared with all candidates, also later ones, as a decode step's queries are. The paper takes the queries of all tokens,
//! whose nearest keys prefill finds on the accelerator; its static tokens (128 first and 512 last) are `sink` and `local`.

use std::sync::Arc;

use super::ParamInfo;
use super::graph_search::{MOST_LINKS, SearchWidth, pick_all, search_each};
use crate::IndexKey;
use crate::cost::Cost;
use crate::index::graph::Beam;
use crate::index::graph::roar::{Roar, RoarParams};
use crate::index::workspaces::Workspaces;
use crate::kv::KvError;
use crate::methods::{MethodEntry, Preset};
use crate::scored::granularity::Granularity;
use crate::{Budget, HeadPrefix, Method, PromptNeed, Role, Selection, Step, TailRule};

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "retrieval_attention",
    role: Role::Method,
    reference: "RetrievalAttention (Liu et al. 2024, arXiv:2409.10516)",
    about: "top-k through a graph that the prompt's queries make",
    params: &[
        ParamInfo { key: "k", default: "100", about: "tokens picked beyond the static ones" },
        ParamInfo { key: "ratio", default: "-", about: "instead of k: share of the context, above 0 to 1" },
        ParamInfo { key: "queries", default: "512", about: "tokens of the prefix whose queries make the graph" },
        ParamInfo { key: "nearest", default: "100", about: "keys that each of these queries is linked to" },
        ParamInfo {
            key: "ef",
            default: SearchWidth::USUAL,
            about: "keys held while searching, a number or a multiple of k; more find more (at least k)",
        },
        ParamInfo { key: "M", default: "16", about: "links of a key made by queries, and again by its own search" },
        ParamInfo { key: "ef_construction", default: "100", about: "keys held while a key looks for itself" },
        Granularity::INFO,
    ],
    presets: &[
        Preset {
            name: "paper",
            values: &[("k", "100"), ("sink", "128"), ("local", "512")],
            source: "RetrievalAttention §4.1: the 100 nearest keys, and 640 static tokens: 128 first and 512 last",
        },
        Preset {
            name: "repo",
            values: &[("k", "4096"), ("sink", "128"), ("local", "512")],
            source: "MInference's code, modules/retr_attn.py and models_patch.py: top_k 4096, 128 first and 512 last \
                     tokens",
        },
    ],
    build: |params| {
        let queries = params.get_minor("queries", 512)?;
        let nearest = params.get_minor("nearest", 100)?;
        let width = params.get_minor_as("ef", SearchWidth::Usual, SearchWidth::EXPECTED)?;
        let links = params.get_minor_within("M", 16, 1..=MOST_LINKS)?;
        let build_width = params.get_minor("ef_construction", 100)?;
        let budget = params.budget(Budget::Tokens(100))?;
        let graph = RoarParams { nearest, links, width: build_width };
        Ok(Arc::new(RetrievalAttention { queries, graph, width, budget, per: Granularity::read_per(params)? }))
    },
};

/// Top-k selection through a graph built from queries.
struct RetrievalAttention {
    queries: usize,
    graph: RoarParams,
    width: SearchWidth,
    budget: Budget,
    per: Granularity,
}

impl Method for RetrievalAttention {
    type Index = Roar;
    /// Workspaces of searches.
    type State = Workspaces<Beam>;

    fn prompt_needs(&self) -> Vec<PromptNeed> {
        vec![PromptNeed::SampledQueries(self.queries)]
    }

    /// Leaves out the width of the search, the budget and the grouping, which concern only a step.
    fn index_key(&self) -> IndexKey {
        let Self { queries, graph, width: _, budget: _, per: _ } = self;
        IndexKey::new((*queries, *graph))
    }

    /// A graph needs all keys at once: each query of the prompt is joined to the keys nearest to it.
    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Roar, KvError> {
        let keys = prefix.candidate_keys().to_f32()?;
        let of_head = |head| prefix.prompt.sampled_queries(self.queries, head).1.to_f32();
        let queries: Vec<f32> = (0..prefix.prompt.group()).flat_map(of_head).collect();
        Ok(Roar::build(&keys, prefix.d, &queries, self.graph))
    }

    fn index_bytes(&self, graph: &Roar) -> usize {
        graph.bytes()
    }

    fn start(&self, _: &Roar) -> Workspaces<Beam> {
        Workspaces::new()
    }

    fn tail_rule(&self) -> TailRule {
        TailRule::Exact("its graph is made from the prompt's queries, and its authors keep generated tokens exact")
    }

    fn select(
        &self,
        step: &Step<'_>,
        graph: &Roar,
        beams: &mut Workspaces<Beam>,
        cost: &mut Cost,
    ) -> Result<Selection, KvError> {
        let k = self.budget.tokens(step.context);
        if k >= step.candidates.len() {
            return Ok(pick_all(step, self.per));
        }
        let width = self.width.of(k);
        search_each(step, self.per, k, graph.nodes(), beams, cost, |beam, score| graph.search(width, beam, score))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{noise, none, prefix, random_kv, run, select};
    use crate::kv::KvDtype;
    use crate::{Policy, Selection};

    #[test]
    fn a_search_as_wide_as_the_prefix_picks_what_topk_picks() {
        for (dtype, d, group) in [(KvDtype::F32, 32, 1), (KvDtype::Bf16, 64, 8)] {
            let kv = random_kv(dtype, 1, 300, d, 3);
            let queries = noise(group * d, 8);
            for per in ["query_head", "kv_head"] {
                let exact = select(&format!("topk:k=17,per={per}"), &kv, &queries, 5..280).0;
                let spec = format!("retrieval_attention:k=17,ef=275,queries=20,nearest=10,M=3,per={per}");
                assert_eq!(select(&spec, &kv, &queries, 5..280).0, exact);
            }
        }
        let prefix = prefix(2, 2, 300, 32);
        let output = |spec: &str| run(&prefix, spec, &Policy::default(), 4, 3).0;
        assert_eq!(output("retrieval_attention:k=20,ef=300"), output("topk:k=20"));
    }

    #[test]
    fn most_of_the_largest_scores_are_found_without_a_scan() {
        let (n, d, k) = (4000, 32, 10);
        let kv = random_kv(KvDtype::F32, 1, n, d, 3);
        let queries = noise(16 * d, 8);
        let (picks, cost) = select("retrieval_attention:k=10,ef=160", &kv, &queries, 0..n);
        let (exact, scan) = select("topk:k=10", &kv, &queries, 0..n);
        let (Selection::PerHead(picks), Selection::PerHead(exact)) = (picks, exact) else { panic!() };
        let hits = |(a, b): (&crate::SelectedTokens, &crate::SelectedTokens)| {
            a.tokens.iter().filter(|t| b.tokens.contains(t)).count()
        };
        let hits: usize = picks.iter().zip(&exact).map(hits).sum();
        assert!(hits * 10 >= 9 * 16 * k, "{hits} of {}", 16 * k);
        assert!(cost.score_flops < scan.score_flops && cost.aux_bytes > 0);
        let union: std::collections::BTreeSet<u32> = picks.iter().flat_map(|p| p.tokens.iter().copied()).collect();
        let scored = cost.score_flops / (2 * d as u64) + (16 * k) as u64;
        assert_eq!(cost.kv_bytes, 4 * d as u64 * (scored - union.len() as u64), "what is attended is read there");
    }

    #[test]
    fn all_is_picked_unscored_if_there_is_nothing_to_choose() {
        let prefix = prefix(1, 1, 90, 32);
        let (_, fork) = run(&prefix, "retrieval_attention", &none(), 2, 1);
        let cost = fork.costs().total(|_| true);
        assert_eq!((cost.density(), cost.score_flops, cost.aux_bytes), (1.0, 0, 0));
    }
}

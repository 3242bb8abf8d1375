//! `tova`: evicts at every step the token that the newest query attends least (TOVA, Oren et al. 2024, arXiv:2401.06104).
//!
//! The cache has a fixed size. A decode step attends the cache and the current token; then the token with the smallest
//! weight is evicted, be it an old one or the newest. Weights are means over all query heads of a layer, so all its KV
//! heads hold the same tokens. At the end of the prefix the weights of its last query choose the initial cache, as in
//! the authors' code. Evicted tokens never return, generated ones included.
//!
//! There is no window: a token is held for its weight alone. The policy's sink is kept beside the cache (the paper has none:
//! `preset=paper`). The list of held tokens is stored. The weights are those of the step's attention, so scoring costs
//! nothing: they are computed twice here, but counted once, as attention.

use std::sync::Arc;

use super::ParamInfo;
use super::streaming_llm::last_tokens;
use crate::IndexKey;
use crate::cost::Cost;
use crate::kv::KvError;
use crate::methods::{MethodEntry, Preset};
use crate::types::scores::score_each;
use crate::{
    Budget, HeadPrefix, Method, Policy, Probe, PromptNeed, Role, SelectedTokens, Selection, Solved, StaticTokens, Step,
    TailRule,
};
use spattn_kernels::Rows;
use spattn_kernels::softmax::softmax;
use spattn_kernels::topk::top_k;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "tova",
    role: Role::Method,
    about: "evicts at every step the token that the newest query attends least, one choice for a layer",
    reference: "TOVA (Oren et al. 2024, arXiv:2401.06104)",
    params: &[
        ParamInfo { key: "k", default: "512", about: "tokens held by a layer beside sinks and the current token" },
        ParamInfo { key: "ratio", default: "-", about: "instead of k: share of the prefix, above 0 to 1" },
    ],
    presets: &[Preset {
        name: "paper",
        values: &[("k", "512"), ("sink", "0"), ("local", "0")],
        source: "TOVA's abstract: an eighth of the cache is nearly enough, here of 4096 tokens; no sinks, no window",
    }],
    build: |params| Ok(Arc::new(Tova { budget: params.budget(Budget::Tokens(512))? })),
};

/// Eviction by the last query's weights.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Tova {
    budget: Budget,
}

/// The tokens that a KV head holds, and the weights that its last query gave them.
#[derive(Clone)]
struct Cache {
    /// Tokens held beside the sinks, ascending.
    held: Vec<u32>,
    /// Weights of the held tokens, summed over the query heads of the group.
    weights: Vec<f32>,
    /// Largest number of tokens held.
    budget: usize,
    /// The token of that last query.
    newest: Option<u32>,
}

impl Cache {
    fn keep(&mut self, places: &[u32]) {
        self.held = places.iter().map(|place| self.held[*place as usize]).collect();
        self.weights.clear();
    }
}

/// Softmax weights of unscaled logits `[head][token]`, summed over the heads.
fn summed_weights(logits: &mut [f32], tokens: usize, scale: f32) -> Vec<f32> {
    let mut sums = vec![0.0; tokens];
    for weights in logits.chunks_exact_mut(tokens) {
        weights.iter_mut().for_each(|w| *w *= scale);
        softmax(weights);
        sums.iter_mut().zip(&*weights).for_each(|(sum, w)| *sum += w);
    }
    sums
}

impl Method for Tova {
    type Index = Cache;
    type State = Cache;

    fn prompt_needs(&self) -> Vec<PromptNeed> {
        vec![PromptNeed::LastQueries(1)]
    }

    fn solve(&self, probe: &Probe<'_>) -> Result<Option<Solved<Self>>, KvError> {
        let Some(k) = probe.tokens_once(self.budget) else { return Ok(None) };
        Ok(Some(Solved { method: Self { budget: Budget::Tokens(k) }, params: format!("k={k}") }))
    }

    fn index_key(&self) -> IndexKey {
        IndexKey::new(self.clone())
    }

    /// All tokens but the sink, with the last query's weights. The layer chooses later which to keep.
    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Cache, KvError> {
        let (tokens, sink) = (prefix.tokens(), prefix.candidates.start);
        let query_of = |head| prefix.prompt.last_queries(1, head).to_f32();
        let mut sums = Vec::new();
        if tokens > 0 {
            let queries: Vec<f32> = (0..prefix.prompt.group()).flat_map(query_of).collect();
            let mut logits = Vec::with_capacity(queries.len() / prefix.d * tokens);
            score_each(&queries, prefix.keys, |_, own| logits.extend_from_slice(own))?;
            sums = summed_weights(&mut logits, tokens, prefix.scale.factor());
        }
        let held: Vec<u32> = (sink as u32..tokens as u32).collect();
        let weights = sums.get(sink..).unwrap_or_default().to_vec();
        Ok(Cache { newest: held.last().copied(), held, weights, budget: self.budget.tokens(prefix.context()) })
    }

    /// Counts nothing: once the layer has chosen, the weights are needed only to start further sequences.
    fn index_bytes(&self, _: &Cache) -> usize {
        0
    }

    fn state_bytes(&self, cache: &Cache) -> usize {
        size_of_val(cache.held.as_slice())
    }

    fn start(&self, cache: &Cache) -> Cache {
        cache.clone()
    }

    /// Computes the step's weights. They are the weights of its attention, which counts their cost.
    fn select(&self, step: &Step<'_>, _: &Cache, cache: &mut Cache, _: &mut Cost) -> Result<Selection, KvError> {
        let (sink, newest) = (step.candidates.start as u32, step.context.tokens as u32 - 1);
        cache.held.retain(|token| (sink..newest).contains(token));
        let picks = SelectedTokens::softmax(cache.held.clone());
        cache.held.push(newest);
        let mut there = Cost::default();
        let keys = step.gather_keys((0..sink).chain(cache.held.iter().copied()), &mut there)?;
        let mut logits = step.score_rows(Rows::F32(&keys), &mut there);
        cache.weights = summed_weights(&mut logits, keys.len() / step.d, step.scale.factor()).split_off(sink as usize);
        cache.newest = Some(newest);
        Ok(Selection::Shared(picks))
    }

    /// Sums the weights of all KV heads and evicts the tokens with the smallest sums from all of them.
    fn coordinate_heads(&self, caches: &mut [&mut Cache]) {
        let Some((first, others)) = caches.split_first_mut() else { return };
        let mut sums = first.weights.clone();
        for other in &*others {
            debug_assert_eq!(first.held, other.held, "KV heads of a layer hold the same tokens");
            sums.iter_mut().zip(&other.weights).for_each(|(sum, w)| *sum += w);
        }
        let places = top_k(&sums, first.budget);
        first.keep(&places);
        others.iter_mut().for_each(|cache| cache.keep(&places));
    }

    /// The sink and the current token.
    fn exact(&self, policy: &Policy, _prefix_tokens: usize, total_tokens: usize) -> StaticTokens {
        last_tokens(policy, 1, total_tokens)
    }

    fn tail_rule(&self) -> TailRule {
        TailRule::Own("every token that follows is held or evicted by its weight")
    }

    fn manages_decoded_tokens(&self) -> bool {
        true
    }

    /// Does not count the newest token, which is static whether it is held or not.
    fn resident_candidates(&self, _: &Cache, cache: &Cache) -> Option<usize> {
        Some(cache.held.iter().filter(|token| Some(**token) != cache.newest).count())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::tests::{assert_close, configured, noise, none, prompt_queries, random_stats};
    use super::*;
    use crate::kv::{KvDtype, LayerKv, Prefix};
    use crate::{IndexCache, Sequence};

    const D: usize = 16;
    const KV_HEADS: usize = 2;
    const HEADS: usize = 4;

    /// The algorithm as stated in the paper, on a set, in f64, for one layer.
    struct Naive {
        /// `[token][kv_head][d]`.
        keys: Vec<Vec<Vec<f32>>>,
        values: Vec<Vec<Vec<f32>>>,
        held: BTreeSet<usize>,
        sink: usize,
        k: usize,
    }

    impl Naive {
        /// Weights of the tokens that a head's query attends.
        fn weights(&self, head: usize, query: &[f32], attended: &BTreeSet<usize>) -> Vec<(usize, f64)> {
            let key = |t: &usize| &self.keys[*t][head / (HEADS / KV_HEADS)];
            let dot = |t: &usize| query.iter().zip(key(t)).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
            let weights: Vec<(usize, f64)> =
                attended.iter().map(|t| (*t, (dot(t) / (D as f64).sqrt()).exp())).collect();
            let sum: f64 = weights.iter().map(|(_, w)| w).sum();
            weights.into_iter().map(|(t, w)| (t, w / sum)).collect()
        }

        /// Evicts the tokens with the least mean weight of `queries: [head][d]`, until `k` tokens beside the sink are left.
        fn evict(&mut self, queries: &[f32]) {
            let attended = self.attended();
            let of_heads: Vec<_> =
                queries.chunks(D).enumerate().map(|(h, query)| self.weights(h, query, &attended)).collect();
            let mean = |t: usize| of_heads.iter().flatten().filter(|(x, _)| *x == t).map(|(_, w)| w).sum::<f64>();
            while self.held.iter().filter(|t| **t >= self.sink).count() > self.k {
                let others = self.held.iter().copied().filter(|t| *t >= self.sink);
                let least = others.min_by(|a, b| mean(*a).total_cmp(&mean(*b))).unwrap();
                self.held.remove(&least);
            }
        }

        fn attended(&self) -> BTreeSet<usize> {
            self.held.clone()
        }

        fn output(&self, head: usize, query: &[f32]) -> Vec<f32> {
            let weights = self.weights(head, query, &self.attended());
            let value = |t: usize, c: usize| f64::from(self.values[t][head / (HEADS / KV_HEADS)][c]);
            (0..D).map(|c| weights.iter().map(|(t, w)| w * value(*t, c)).sum::<f64>() as f32).collect()
        }
    }

    /// Keys `[kv_head][d]` of a token; with `peaks`, some tokens are attended by most queries, others by none.
    fn keys(token: usize, peaks: bool) -> Vec<f32> {
        let factor = match (peaks, token % 11) {
            (true, 3) => 4.0,
            (true, 7) => 0.1,
            _ => 1.0,
        };
        noise(KV_HEADS * D, 40_000 + token as u64).iter().map(|x| x * factor).collect()
    }

    fn check(prefix_tokens: usize, sink: usize, k: usize, peaks: bool) {
        let mut kv = LayerKv::new(KvDtype::F32, KV_HEADS, D, prefix_tokens);
        let mut naive = Naive { keys: vec![], values: vec![], held: (0..prefix_tokens).collect(), sink, k };
        let split = |row: &[f32]| row.chunks(D).map(<[f32]>::to_vec).collect::<Vec<_>>();
        for t in 0..prefix_tokens {
            let (key, value) = (keys(t, peaks), noise(KV_HEADS * D, 90_000 + t as u64));
            kv.append(&key, &value);
            naive.keys.push(split(&key));
            naive.values.push(split(&value));
        }
        let prefix = Prefix::new(vec![kv]);
        let method = configured(&format!("tova:k={k}"), &Policy { sink, ..none() });
        let stats = random_stats(&method.method, &prefix, HEADS);
        let mut fork: Sequence =
            IndexCache::new(prefix, KvDtype::F32, 1).with_stats(stats).fork(&method, false).unwrap();
        let of_prompt = prompt_queries(0, prefix_tokens * HEADS * D);
        if prefix_tokens > 0 {
            naive.evict(&of_prompt[(prefix_tokens - 1) * HEADS * D..]);
        }
        let what = format!("{prefix_tokens} tokens, sink {sink}, k {k}, peaks {peaks}");
        let mut gone: BTreeSet<usize> = BTreeSet::new();
        let mut attended = 0;
        for t in prefix_tokens..prefix_tokens + 50 {
            let (key, value) = (keys(t, peaks), noise(KV_HEADS * D, 90_000 + t as u64));
            let queries = noise(HEADS * D, 7_000 + t as u64);
            let mut out = vec![f32::NAN; HEADS * D];
            fork.step(0, &queries, &key, &value, &mut out).unwrap();
            naive.keys.push(split(&key));
            naive.values.push(split(&value));
            naive.held.insert(t);
            for (head, (query, out)) in queries.chunks(D).zip(out.chunks(D)).enumerate() {
                assert_close(out, &naive.output(head, query), 1e-5, &format!("{what}, token {t}, head {head}"));
            }
            attended += naive.held.len();
            naive.evict(&queries);
            assert!(naive.held.is_disjoint(&gone), "what was evicted stays so");
            gone.extend((0..=t).filter(|x| !naive.held.contains(x)));
            let held = naive.held.iter().filter(|x| **x != t).count() + 1;
            assert_eq!(fork.kv_tokens_held(), held as f64, "{what}, token {t}");
        }
        assert!(gone.iter().any(|t| *t >= prefix_tokens), "generated tokens are evicted too");
        // Each KV head reads a held token once, key and value; each query head multiplies it once, to weigh and to attend it.
        let cost = fork.costs().total(|_| true);
        assert_eq!(cost.kv_bytes as usize, attended * KV_HEADS * 2 * 4 * D, "{what}");
        assert_eq!((cost.score_flops, cost.aux_bytes), (0, 0), "{what}");
        assert_eq!(cost.attend_flops as usize, attended * HEADS * 4 * D, "{what}");
        // Beside the cache, each KV head stores the list of held tokens without the sink, 32 bits each.
        let listed = naive.held.iter().filter(|token| **token >= sink).count();
        let bits = 32.0 * listed as f64 / fork.tokens() as f64;
        assert!((fork.aux_bits() - bits).abs() < 1e-9, "{what}: {} bits, not {bits}", fork.aux_bits());
    }

    #[test]
    fn equals_the_algorithm_on_a_set_for_all_heads_of_a_layer() {
        for peaks in [false, true] {
            for (prefix_tokens, sink, k) in [(60, 0, 12), (60, 3, 1), (45, 2, 30), (9, 4, 20), (2, 4, 7), (0, 0, 5)] {
                check(prefix_tokens, sink, k, peaks);
            }
        }
    }
}

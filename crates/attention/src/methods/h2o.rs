//! `h2o`: evicts at every step; keeps heavy hitters and recent tokens (H2O, Zhang et al. 2023, Alg. 1).
//!
//! Each token has a mass: the attention that it received from all queries so far. When the prefix has been read, the `k` tokens
//! with the largest mass before the `recent` window are kept. Each decode step attends them and the window and adds its weights
//! to their masses; the token that leaves the window is kept only if a lighter one is evicted. So the cache never grows, and
//! evicted tokens never return, generated ones included. Token numbers and masses are stored beside keys and values.
//!
//! With `per=query_head` each query head has its own cache, so a KV head holds up to `k` tokens times the size of the group.
//! The column `kv_tokens_held` reports the number of tokens that stay in the cache.
//!
//! The weights that a step adds are those by which it attends, so scoring costs nothing. They are computed twice here,
//! but counted once, as attention: a fused kernel computes them once.

#[cfg(feature = "cuda")]
mod cuda;
mod device;

use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use super::ParamInfo;
use super::streaming_llm::last_tokens;
use crate::backend::reasons::HostReason;
use crate::cost::Cost;
use crate::kv::{KvError, MOST_TOKENS};
use crate::methods::{MethodEntry, Preset};
use crate::scored::granularity::Granularity;
use crate::{Bits, IndexKey};
use crate::{
    Budget, DeviceForm, HeadPrefix, Method, Policy, Probe, PromptHead, PromptNeed, Role, Selection, Solved,
    StaticTokens, Step, TailRule,
};
use spattn_kernels::Rows;
use spattn_kernels::softmax::softmax;
use spattn_kernels::topk::top_k;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "h2o",
    role: Role::Method,
    reference: "H2O (Zhang et al. 2023, arXiv:2306.14048)",
    about: "evicts at every step: heavy hitters by accumulated attention, and a sliding window",
    params: &[
        ParamInfo { key: "k", default: "-", about: "heavy hitters kept; 0 leaves sink and window" },
        ParamInfo { key: "ratio", default: "0.1", about: "instead of k: share of the prefix, above 0 to 1" },
        ParamInfo {
            key: "recent",
            default: "0.1",
            about: "last tokens kept, the current one included: a number, or a share of the prefix below 1",
        },
        Granularity::INFO,
        Granularity::REDUCE,
    ],
    presets: &[Preset {
        name: "paper",
        values: &[("ratio", "0.1"), ("recent", "0.1"), ("sink", "0"), ("local", "0")],
        source: "H2O §5.1: a cache of 20 % of the prompt, one half heavy hitters and one half recent tokens",
    }],
    build: |params| {
        let heavy = params.budget_from_zero(Budget::Ratio(0.1))?;
        let expected = "a whole number from 1, or a share above 0 and below 1";
        // Heavy hitters and recent tokens get half of the budget each, as in the paper.
        let share = if let Budget::Density(density) = heavy { density / 2.0 } else { 0.1 };
        let recent = params.get_minor_as("recent", Recent::Share(share), expected)?;
        Ok(Arc::new(H2o { heavy, recent, per: Granularity::read(params)? }))
    },
};

/// Length of the window, in tokens or as a share of the prefix.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Recent {
    Tokens(usize),
    Share(f64),
}

impl Eq for Recent {}

impl Hash for Recent {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Tokens(tokens) => (0, tokens).hash(state),
            Self::Share(share) => (1, Bits::from(*share)).hash(state),
        }
    }
}

impl Recent {
    fn tokens(self, prefix_tokens: usize) -> usize {
        match self {
            Self::Tokens(n) => n,
            Self::Share(share) => ((share * prefix_tokens as f64).ceil() as usize).max(1),
        }
    }
}

impl FromStr for Recent {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match (text.parse::<usize>(), text.parse::<f64>()) {
            (Ok(n), _) if (1..=MOST_TOKENS).contains(&n) => Ok(Self::Tokens(n)),
            (Err(_), Ok(share)) if share > 0.0 && share < 1.0 => Ok(Self::Share(share)),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Recent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens(n) => write!(f, "{n}"),
            Self::Share(share) => write!(f, "{share}"),
        }
    }
}

/// Heavy hitters and a sliding window.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct H2o {
    heavy: Budget,
    recent: Recent,
    per: Granularity,
}

/// The tokens held for a query head, or for a group that decides together.
#[derive(Clone)]
struct Cache {
    /// Heavy hitters with their masses, ascending by token.
    heavy: Vec<(u32, f32)>,
    /// First token of the window.
    first: usize,
    /// Masses of the tokens of the window, from `first` on.
    recent: VecDeque<f32>,
    /// Largest number of heavy hitters.
    budget: usize,
}

impl Cache {
    /// Moves the window to `first..end`. Tokens that leave it compete with the heavy hitters, except those below
    /// `sink`, which are static.
    fn slide(&mut self, sink: usize, first: usize, end: usize) {
        self.recent.resize(end - self.first, 0.0);
        for token in self.first..first {
            let mass = self.recent.pop_front().unwrap_or(0.0);
            if token >= sink {
                self.heavy.push((token as u32, mass));
            }
        }
        self.first = first;
        if self.heavy.len() > self.budget {
            let masses: Vec<f32> = self.heavy.iter().map(|(_, mass)| *mass).collect();
            self.heavy = top_k(&masses, self.budget).into_iter().map(|i| self.heavy[i as usize]).collect();
        }
    }

    fn tokens(&self) -> impl Iterator<Item = u32> {
        self.heavy.iter().map(|(token, _)| *token)
    }

    /// Adds a step's weights to the masses; `weights` are of sink, heavy hitters and window, in this order.
    fn add(&mut self, sink: usize, weights: &[f32]) {
        let (heavy, recent) = weights[sink..].split_at(self.heavy.len());
        self.heavy.iter_mut().zip(heavy).for_each(|((_, mass), w)| *mass += w);
        self.recent.iter_mut().zip(recent).for_each(|(mass, w)| *mass += w);
    }
}

/// Bytes of token numbers and masses.
fn bytes_of(caches: &[Cache]) -> usize {
    caches.iter().map(|c| size_of_val(c.heavy.as_slice()) + c.recent.len() * size_of::<f32>()).sum()
}

impl H2o {
    /// The caches at the end of the prefix, by the attention mass of the candidates (tokens before the window): one for
    /// each query head, or one for the group.
    fn caches(&self, prompt: &PromptHead<'_>, candidates: Range<usize>, budget: usize) -> Vec<Cache> {
        let masses = (0..prompt.group()).map(|head| prompt.attention_mass(head).to_vec()).collect();
        let cache = |mass: Vec<f32>| {
            let all = candidates.clone().map(|t| (t as u32, mass[t])).collect();
            let recent = mass[candidates.end..].iter().copied().collect();
            let mut cache = Cache { heavy: all, first: candidates.end, recent, budget };
            cache.slide(candidates.start, candidates.end, mass.len());
            cache
        };
        self.per.merged(masses).into_iter().map(cache).collect()
    }
}

impl Method for H2o {
    type Index = Vec<Cache>;
    type State = Vec<Cache>;

    fn prompt_needs(&self) -> Vec<PromptNeed> {
        if self.heavy.is_none() { Vec::new() } else { vec![PromptNeed::AttentionMass] }
    }

    fn solve(&self, probe: &Probe<'_>) -> Result<Option<Solved<Self>>, KvError> {
        let Some(k) = probe.tokens_once(self.heavy) else { return Ok(None) };
        Ok(Some(Solved { method: Self { heavy: Budget::Tokens(k), ..self.clone() }, params: format!("k={k}") }))
    }

    fn index_key(&self) -> IndexKey {
        IndexKey::new(self.clone())
    }

    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Vec<Cache>, KvError> {
        Ok(match self.heavy.is_none() {
            true => Vec::new(),
            false => self.caches(&prefix.prompt, prefix.candidates.clone(), self.heavy.tokens(prefix.context())),
        })
    }

    /// Token numbers and masses, as stored.
    fn index_bytes(&self, caches: &Vec<Cache>) -> usize {
        bytes_of(caches)
    }

    fn device_form(&self) -> Result<&dyn DeviceForm, Vec<HostReason>> {
        if self.heavy.is_none() { Err(vec![HostReason::SelectsNothing]) } else { Ok(self) }
    }

    fn start(&self, caches: &Vec<Cache>) -> Vec<Cache> {
        caches.clone()
    }

    fn select(
        &self,
        step: &Step<'_>,
        _: &Vec<Cache>,
        caches: &mut Vec<Cache>,
        _: &mut Cost,
    ) -> Result<Selection, KvError> {
        if self.heavy.is_none() {
            return Ok(self.per.nothing(step.group()));
        }
        let (sink, window) = (step.candidates.start, step.candidates.end..step.context.tokens);
        let at_ends = (0..sink).chain(window.clone()).map(|t| t as u32);
        // Attention counts these reads and products, so their cost is dropped here.
        let mut there = Cost::default();
        let at_ends = step.gather_keys(at_ends, &mut there)?;
        let heads = step.group() / caches.len();
        for (queries, cache) in step.queries.chunks_exact(heads * step.d).zip(caches.iter_mut()) {
            cache.slide(sink, window.start, window.end);
            // Keys in the order of the weights: sink, heavy hitters, window.
            let heavy = step.gather_keys(cache.tokens(), &mut there)?;
            let (first, last) = at_ends.split_at(sink * step.d);
            let keys = [first, &heavy, last].concat();
            let of_heads = Step { queries, ..step.clone() };
            let mut logits = of_heads.score_rows(Rows::F32(&keys), &mut there);
            for weights in logits.chunks_exact_mut(keys.len() / step.d) {
                weights.iter_mut().for_each(|w| *w *= step.scale.factor());
                softmax(weights);
                cache.add(sink, weights);
            }
        }
        Ok(self.per.selection(caches.iter().map(|cache| cache.tokens().collect()).collect()))
    }

    /// The window slides over tokens after the prefix too.
    fn exact(&self, policy: &Policy, prefix_tokens: usize, total_tokens: usize) -> StaticTokens {
        last_tokens(policy, self.recent.tokens(prefix_tokens), total_tokens)
    }

    fn tail_rule(&self) -> TailRule {
        TailRule::Own(
            "its recent window moves on by itself, and what leaves it must be a heavy hitter to stay: set recent",
        )
    }

    fn manages_decoded_tokens(&self) -> bool {
        true
    }

    fn resident_candidates(&self, _: &Vec<Cache>, caches: &Vec<Cache>) -> Option<usize> {
        Some(super::entry::distinct(caches.iter().flat_map(Cache::tokens)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Stepper, none};
    use super::*;
    use crate::cost::Cost;
    use crate::kv::KvDtype;
    use crate::kv::KvShape;
    use crate::{PromptShape, SelectedTokens, StepShape};
    use std::collections::{BTreeMap, BTreeSet};

    /// The algorithm as stated in the paper, on sets and maps, in f64.
    struct Naive {
        masses: BTreeMap<usize, f64>,
        held: BTreeSet<usize>,
        sink: usize,
        heavy: usize,
        recent: usize,
    }

    impl Naive {
        fn evict(&mut self, total: usize) {
            let window = total.saturating_sub(self.recent);
            let is_heavy = |t: &usize| *t >= self.sink && *t < window;
            while self.held.iter().filter(|t| is_heavy(t)).count() > self.heavy {
                let lightest = self.held.iter().copied().filter(|t| is_heavy(t));
                let lightest = lightest.min_by(|a, b| self.masses[a].total_cmp(&self.masses[b]).then(b.cmp(a)));
                self.held.remove(&lightest.unwrap());
            }
        }

        fn heavy(&self, total: usize) -> Vec<u32> {
            let window = total.saturating_sub(self.recent);
            self.held.iter().filter(|t| **t >= self.sink && **t < window).map(|t| *t as u32).collect()
        }
    }

    /// Mass that the query heads `heads` gave to each token of the prefix.
    fn masses(stepper: &Stepper, heads: &[usize]) -> BTreeMap<usize, f64> {
        let mut masses = BTreeMap::new();
        for t in 0..stepper.prefix_tokens {
            for head in heads {
                let weights: Vec<f64> = (0..=t).map(|k| stepper.prompt_logit(t, *head, k).exp()).collect();
                let sum: f64 = weights.iter().sum();
                weights.iter().enumerate().for_each(|(k, w)| *masses.entry(k).or_default() += w / sum);
            }
        }
        masses
    }

    fn check(spec: &str, prefix_tokens: usize, sink: usize, heavy: usize, recent: usize, groups: &[&[usize]]) {
        let policy = Policy { sink, ..none() };
        let mut stepper = Stepper::new(spec, &policy, prefix_tokens, 2);
        let mut naive: Vec<Naive> = groups
            .iter()
            .map(|heads| {
                let (masses, held) = (masses(&stepper, heads), (0..prefix_tokens).collect());
                Naive { masses, held, sink, heavy, recent }
            })
            .collect();
        naive.iter_mut().for_each(|n| n.evict(prefix_tokens));
        let mut gone: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); groups.len()];
        for total in prefix_tokens + 1..prefix_tokens + 60 {
            let (selection, _) = stepper.step();
            for ((n, heads), gone) in naive.iter_mut().zip(groups).zip(&mut gone) {
                n.held.insert(total - 1);
                n.masses.insert(total - 1, 0.0);
                n.evict(total);
                for head in *heads {
                    let weights: Vec<(usize, f64)> =
                        n.held.iter().map(|t| (*t, stepper.logit(*head, *t).exp())).collect();
                    let sum: f64 = weights.iter().map(|(_, w)| w).sum();
                    weights.iter().for_each(|(t, w)| *n.masses.get_mut(t).unwrap() += w / sum);
                }
                assert!(n.held.is_disjoint(gone), "{spec}: an evicted token came back");
                gone.extend((0..total).filter(|t| !n.held.contains(t)));
                assert!(n.held.len() <= sink + heavy + recent, "the cache has grown to {}", n.held.len());
            }
            let mut picks = naive.iter().map(|n| SelectedTokens::softmax(n.heavy(total)));
            let expected = match groups.len() {
                1 => Selection::Shared(picks.next().unwrap()),
                _ => Selection::PerHead(picks.collect()),
            };
            assert_eq!(selection, expected, "{spec} at {total}");
            let union: BTreeSet<usize> = naive.iter().flat_map(|n| n.held.iter().copied()).collect();
            assert_eq!(stepper.held(), union.len(), "{spec} at {total}");
        }
        assert!(gone.iter().all(|g| g.iter().any(|t| *t >= prefix_tokens)), "generated tokens are evicted too");
    }

    #[test]
    fn equals_the_algorithm_on_sets_and_nothing_evicted_returns() {
        for (prefix_tokens, sink) in [(70, 3), (70, 0), (5, 3), (0, 0)] {
            for (heavy, recent) in [(6, 9), (1, 1), (20, 4)] {
                let spec = format!("h2o:k={heavy},recent={recent}");
                check(&spec, prefix_tokens, sink, heavy, recent, &[&[0], &[1]]);
                check(&format!("{spec},per=kv_head"), prefix_tokens, sink, heavy, recent, &[&[0, 1]]);
            }
        }
    }

    #[test]
    fn shares_are_those_of_the_prefix_and_stay() {
        let mut stepper = Stepper::new("h2o", &none(), 95, 1);
        for _ in 0..40 {
            stepper.step();
            assert_eq!(stepper.held(), 10 + 10);
        }
    }

    #[test]
    fn a_form_on_a_device_costs_what_the_host_counts() {
        for (spec, lists) in [("h2o:k=6,recent=9", 2), ("h2o:k=6,recent=9,per=kv_head", 1)] {
            let (group, d, dtype) = (2, 32, KvDtype::F32);
            let method = super::super::tests::configured(spec, &none()).method;
            let form = method.device_form().unwrap();
            let step = StepShape { group, d, dtype, candidates: 59, all_candidates: 59, exact: 2 + 9, number: 0 };
            let mut cost = form.cost(&step);
            // Both query heads attend six heavy hitters.
            cost += form.cost_of_picks(&step, 0, 2 * 6);
            assert_eq!(cost, Cost::default(), "{spec}");
            let prompt = PromptShape { layers: 3, heads: 2, kv_heads: 1, d, tokens: 70 };
            assert_eq!(form.held_bytes(&prompt), lists * (4 + 6 * 8 + 9 * 4));
            assert!(
                form.fits(KvShape { kv_heads: 1, d: 256, dtype }) && !form.fits(KvShape { kv_heads: 1, d: 4, dtype })
            );
        }
        assert!(super::super::tests::configured("h2o:k=0", &none()).method.device_form().is_err());
    }

    /// A step reads each token that any of its query heads holds once, key and value, both to weigh and to attend it.
    #[test]
    fn what_is_held_is_read_once_for_the_group() {
        let (sink, heavy, recent, width) = (2, 6, 9, 2 * 4 * 32);
        for per in ["query_head", "kv_head"] {
            let spec = format!("h2o:k={heavy},recent={recent},per={per}");
            let mut stepper = Stepper::new(&spec, &Policy { sink, ..none() }, 70, 2);
            let (mut read, mut context) = (0, 0);
            for total in 71..100 {
                let (selection, _) = stepper.step();
                let held: BTreeSet<u32> = match selection {
                    Selection::PerHead(heads) => heads.into_iter().flat_map(|picks| picks.tokens).collect(),
                    Selection::Shared(picks) => picks.tokens.into_iter().collect(),
                };
                read += sink + held.len() + recent;
                context += 2 * total;
            }
            let cost = stepper.counted();
            assert_eq!(cost.kv_bytes as usize, read * width, "{spec}");
            assert_eq!((cost.score_flops, cost.aux_bytes), (0, 0), "{spec}");
            assert_eq!(cost.full_flops as usize, 4 * 32 * context, "{spec}");
        }
    }
}

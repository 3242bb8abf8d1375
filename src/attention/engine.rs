//! The engine: forks of a shared prefix, each attending what its method picks.
//!
//! A [`Fork`] owns a short tail of keys and values and the method's state; the prefix and the indexes
//! over it are shared. All methods run through the same code here, and all costs of attending are
//! counted here.

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::ops::{AddAssign, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::Configured;
use super::budget::Context;
use super::fidelity::{FidelityMeter, Place};
use super::head::{HeadKv, Queries};
use super::method::{
    AnyMethod, Depth, Exact, GIVEN_ROTATION, HeadPrefix, Positions, Rotation, Solved, Step, TailRule, mix_seed,
};
use super::probe::{Probe, RecentQueries};
use super::prompt::{PromptHead, PromptNeed, PromptStats};
use crate::cost::{Cost, LayerCosts};
use crate::kv::{KvDtype, LayerKv, Prefix};

type Index = Box<dyn Any + Send + Sync>;

/// Indexes of one prefix for one index key: one for each KV head of each layer that is not dense.
struct IndexSet {
    by_layer: Vec<Vec<Index>>,
    build_time: Duration,
}

/// How long a run's index took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndexTime {
    /// What the run would have taken for it alone.
    pub whole: Duration,
    /// How much of that was spent for an earlier run on the same prefix, and not again.
    pub reused: Duration,
}

impl AddAssign for IndexTime {
    fn add_assign(&mut self, other: Self) {
        self.whole += other.whole;
        self.reused += other.reused;
    }
}

/// Indexes over one prefix, built once for all runs that can share them.
pub struct IndexCache {
    prefix: Arc<Prefix>,
    dtype: KvDtype,
    /// Of what is drawn once for the prefix, when an index is built.
    seed: u64,
    /// Of what is drawn in the steps of a run.
    step_seed: u64,
    prompt_tokens: usize,
    stats: Option<PromptStats>,
    rotation: Option<Arc<dyn Rotation>>,
    /// Needs whose gathering no index was charged with yet.
    uncharged: BTreeSet<PromptNeed>,
    queries: RecentQueries,
    read: Option<LayerCosts>,
    sets: HashMap<(String, Exact, Vec<bool>), Arc<IndexSet>>,
}

impl IndexCache {
    /// An empty cache for `prefix`; `seed` is the example's. All that follows the prefix counts as
    /// generated.
    pub fn new(prefix: Arc<Prefix>, dtype: KvDtype, seed: u64) -> Self {
        let prompt_tokens = prefix.tokens();
        Self {
            prefix,
            dtype,
            seed,
            step_seed: seed,
            prompt_tokens,
            stats: None,
            rotation: None,
            uncharged: BTreeSet::new(),
            queries: RecentQueries::default(),
            read: None,
            sets: HashMap::new(),
        }
    }

    /// The prefix is the beginning of a prompt of so many tokens; only what follows them is generated.
    pub fn with_prompt(self, prompt_tokens: usize) -> Self {
        Self { prompt_tokens, ..self }
    }

    /// The next runs are of an example whose steps draw from a seed of its own; that of the context stays the one
    /// of its indexes.
    pub fn with_step_seed(self, step_seed: u64) -> Self {
        Self { step_seed, ..self }
    }

    /// Whether all of these needs were gathered while the prefix was read.
    pub fn has_gathered(&self, needs: &BTreeSet<PromptNeed>) -> bool {
        needs.iter().all(|need| self.stats.as_ref().is_some_and(|stats| stats.needs().any(|n| n == *need)))
    }

    /// The seed that indexes draw from.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Gives the prefix back with what was gathered about it, once no run is left on it.
    pub fn into_prefix(self) -> Option<(Prefix, Option<PromptStats>)> {
        Some((Arc::into_inner(self.prefix)?, self.stats))
    }

    /// What was gathered while the prefix was read, for the methods that ask for it.
    pub fn with_stats(self, stats: PromptStats) -> Self {
        Self { uncharged: stats.needs().collect(), stats: Some(stats), ..self }
    }

    /// How the model's positions are moved, for methods that attend at others than the original ones
    /// ([`Positions`]); such a method cannot run without.
    pub fn with_rotation(self, rotation: Arc<dyn Rotation>) -> Self {
        Self { rotation: Some(rotation), ..self }
    }

    /// The last queries of the prefix, by which methods find the parameter that gives a density.
    pub fn with_queries(self, queries: RecentQueries) -> Self {
        Self { queries, ..self }
    }

    /// The prefix was read sparsely by the method that will run on it: what that cost is part of each run.
    pub fn with_reading(self, costs: LayerCosts) -> Self {
        Self { read: Some(costs), ..self }
    }

    /// Starts a run of `method` on the prefix, building its index unless an earlier run left one.
    pub fn fork(&mut self, method: &Configured, fidelity: bool) -> Fork {
        let start = Instant::now();
        let mut method = method.clone();
        let solved = self.solve(&method).map(|solved| {
            method.method = solved.method;
            solved.params
        });
        let solve_time = if solved.is_some() { start.elapsed() } else { Duration::ZERO };
        let mut fork = self.fork_as_is(&method, fidelity);
        fork.index_time.whole += solve_time;
        Fork { solved, ..fork }
    }

    /// The method with its parameter solved for the density asked for, if that is how it takes one.
    fn solve(&self, method: &Configured) -> Option<Solved<Arc<dyn AnyMethod>>> {
        let tokens = self.prefix.tokens();
        let candidates = method.method.exact(&method.policy, tokens, tokens).candidates(tokens);
        let layers = self.prefix.layers();
        let dense: Vec<bool> = (0..layers).map(|l| method.policy.dense_layers.contains(l, layers)).collect();
        if candidates.is_empty() || dense.iter().all(|dense| *dense) {
            return None;
        }
        let context = Context::new(self.prompt_tokens.max(tokens) + 1, &candidates);
        let Self { prefix, queries, dtype, .. } = self;
        method.method.solve(&Probe { prefix, queries, dtype: *dtype, dense: &dense, candidates, context })
    }

    fn fork_as_is(&mut self, method: &Configured, fidelity: bool) -> Fork {
        let layers = self.prefix.layers();
        let tokens = self.prefix.tokens();
        let exact = method.method.exact(&method.policy, tokens, tokens);
        let candidates = exact.candidates(tokens);
        let dense: Vec<bool> = (0..layers).map(|l| method.policy.dense_layers.contains(l, layers)).collect();
        let key = (format!("{}:{}", method.name, method.method.index_key()), exact, dense.clone());
        let known = self.sets.get(&key).cloned();
        let is_known = known.is_some();
        let indexes = known.unwrap_or_else(|| {
            let set = Arc::new(self.build(method, candidates.clone(), &dense));
            self.sets.insert(key, set.clone());
            set
        });
        let gathering = self.gathering_time(&method.method.prompt_needs());
        let index_time = IndexTime {
            whole: indexes.build_time + gathering.whole,
            reused: if is_known { indexes.build_time } else { Duration::ZERO } + gathering.reused,
        };
        Fork::new(self, method.clone(), indexes, index_time, candidates, dense, fidelity)
    }

    /// Time of gathering `needs`; reused is what an earlier index was charged with.
    fn gathering_time(&mut self, needs: &[PromptNeed]) -> IndexTime {
        let mut time = IndexTime::default();
        let Some(stats) = &self.stats else { return time };
        for need in needs {
            time.whole += stats.time(*need);
            if !self.uncharged.remove(need) {
                time.reused += stats.time(*need);
            }
        }
        time
    }

    fn build(&self, method: &Configured, candidates: Range<usize>, dense: &[bool]) -> IndexSet {
        let start = Instant::now();
        let asked = !candidates.is_empty() || method.moves_on();
        let dense_layers = dense;
        let by_layer = dense
            .par_iter()
            .enumerate()
            .map(|(layer, dense)| {
                let kv = self.prefix.layer(layer);
                let heads = if *dense || !asked { 0 } else { kv.keys.kv_heads() };
                (0..heads)
                    .into_par_iter()
                    .map(|kv_head| {
                        method.method.build(&HeadPrefix {
                            layer,
                            depth: depth(dense_layers, layer),
                            rotation: self.rotation.as_deref(),
                            kv_head,
                            keys: kv.keys.head(kv_head),
                            values: kv.values.head(kv_head),
                            d: kv.keys.d(),
                            dtype: self.dtype,
                            candidates: candidates.clone(),
                            prompt: self.stats.as_ref().map_or_else(PromptHead::default, |s| s.head(layer, kv_head)),
                            seed: head_seed(self.seed, layer, kv_head),
                        })
                    })
                    .collect()
            })
            .collect();
        IndexSet { by_layer, build_time: start.elapsed() }
    }
}

/// Where a layer stands among those that are not dense.
fn depth(dense: &[bool], layer: usize) -> Depth {
    let sparse = |dense: &[bool]| dense.iter().filter(|dense| !**dense).count();
    Depth { rank: sparse(&dense[..layer]), of: sparse(dense) }
}

pub(super) fn head_seed(example: u64, layer: usize, kv_head: usize) -> u64 {
    mix_seed(mix_seed(example, layer as u64), kv_head as u64)
}

/// One run: a method decoding from a shared prefix.
pub struct Fork {
    method: Configured,
    solved: Option<String>,
    prefix: Arc<Prefix>,
    rotation: Option<Arc<dyn Rotation>>,
    indexes: Arc<IndexSet>,
    states: Vec<Vec<Box<dyn Any + Send>>>,
    tail: Vec<LayerKv>,
    dense: Vec<bool>,
    prefix_candidates: Range<usize>,
    prompt_tokens: usize,
    seed: u64,
    costs: LayerCosts,
    fidelity: Option<FidelityMeter>,
    index_time: IndexTime,
    attend_time: Duration,
}

/// Room for this many tokens behind the prefix before the tail has to grow.
const TAIL_CAPACITY: usize = 64;

impl Fork {
    fn new(
        cache: &IndexCache,
        method: Configured,
        indexes: Arc<IndexSet>,
        index_time: IndexTime,
        prefix_candidates: Range<usize>,
        dense: Vec<bool>,
        fidelity: bool,
    ) -> Self {
        let prefix = cache.prefix.clone();
        let layers = prefix.layers();
        let start = |index: &Index| method.method.start(index.as_ref());
        let of_layer = |heads: &Vec<Index>| {
            let mut states: Vec<_> = heads.iter().map(start).collect();
            method.method.agree(&mut states);
            states
        };
        let states = indexes.by_layer.iter().map(of_layer).collect();
        let tail = (0..layers)
            .map(|l| {
                let keys = &prefix.layer(l).keys;
                LayerKv::new(cache.dtype, keys.kv_heads(), keys.d(), TAIL_CAPACITY)
            })
            .collect();
        let costs = cache.read.clone().unwrap_or_else(|| LayerCosts::new(layers));
        Self {
            rotation: cache.rotation.clone(),
            method,
            solved: None,
            indexes,
            states,
            tail,
            dense,
            prefix_candidates,
            prompt_tokens: cache.prompt_tokens,
            seed: cache.step_seed,
            costs,
            fidelity: fidelity.then(|| FidelityMeter::new(layers)),
            index_time,
            attend_time: Duration::ZERO,
            prefix,
        }
    }

    /// The method of this run.
    pub fn method(&self) -> &Configured {
        &self.method
    }

    /// What was solved for the density asked for, as `key=value,...`; `None` if nothing had to be.
    pub fn solved(&self) -> Option<&str> {
        self.solved.as_deref()
    }

    /// Tokens in context: prefix and tail.
    pub fn tokens(&self) -> usize {
        self.prefix.tokens() + self.tail.first().map_or(0, LayerKv::tokens)
    }

    /// What was counted so far, by layer.
    pub fn costs(&self) -> &LayerCosts {
        &self.costs
    }

    /// Whether `layer` attends everything by policy.
    pub fn is_dense(&self, layer: usize) -> bool {
        self.dense[layer]
    }

    /// Closeness to exact attention, if it was asked for.
    pub fn fidelity(&self) -> Option<&FidelityMeter> {
        self.fidelity.as_ref()
    }

    /// Time of this run's index, built for it or for an earlier one.
    pub fn index_time(&self) -> IndexTime {
        self.index_time
    }

    /// Time this run spent selecting and attending.
    pub fn attend_time(&self) -> Duration {
        self.attend_time
    }

    /// Auxiliary memory, of the shared index and of what the run holds beside it: bits per token that may be looked up in
    /// it and per KV head, mean over the layers that are not dense; 0 if all are.
    pub fn aux_bits(&self) -> f64 {
        let method = self.method.method.as_ref();
        let shared: usize = self.indexes.by_layer.iter().flatten().map(|i| method.index_bytes(i.as_ref())).sum();
        let own: usize = self.states.iter().flatten().map(|state| method.state_bytes(state.as_ref())).sum();
        let tokens = if self.method.moves_on() { self.tokens() } else { self.prefix.tokens() };
        let sparse = self.dense.iter().filter(|dense| !**dense).count();
        let rows = sparse * self.prefix.layer(0).keys.kv_heads() * tokens.max(1);
        (shared + own) as f64 * 8.0 / rows.max(1) as f64
    }

    /// Adds what another run of the same method on the same prefix counted; what either holds stays its own.
    pub fn absorb(&mut self, other: &Fork) {
        self.costs.absorb(&other.costs);
        self.index_time += other.index_time;
        self.attend_time += other.attend_time;
        if let (Some(own), Some(other)) = (&mut self.fidelity, &other.fidelity) {
            own.absorb(other);
        }
    }

    /// Bytes of keys and values that this run alone has to keep at this point, over all layers: all in
    /// context, less what its method has let go.
    pub fn kv_bytes_held(&self) -> u64 {
        let of_layer = |(layer, tokens): (usize, usize)| {
            let keys = &self.prefix.layer(layer).keys;
            tokens * 2 * keys.d() * keys.dtype().bytes()
        };
        self.tokens_held().into_iter().enumerate().map(of_layer).sum::<usize>() as u64
    }

    /// Tokens whose keys and values this run alone has to keep at this point, mean over layers and KV heads; what any
    /// query head of a group keeps, its KV head keeps.
    pub fn kv_tokens_held(&self) -> f64 {
        let held = self.tokens_held();
        let kv_heads: usize = (0..held.len()).map(|layer| self.prefix.layer(layer).keys.kv_heads()).sum();
        held.iter().sum::<usize>() as f64 / kv_heads.max(1) as f64
    }

    /// Tokens that each layer has to keep, summed over its KV heads.
    fn tokens_held(&self) -> Vec<usize> {
        let total = self.tokens();
        let exact = self.method.method.exact(&self.method.policy, self.prefix.tokens(), total);
        let fixed = exact.sink + total - exact.recent;
        let held = |index: &Index, state: &Box<dyn Any + Send>| {
            self.method.method.held(index.as_ref(), state.as_ref()).map_or(total, |held| fixed + held)
        };
        let of_layer = |layer: usize| {
            let (kv_heads, indexes) = (self.prefix.layer(layer).keys.kv_heads(), &self.indexes.by_layer[layer]);
            match (self.dense[layer], indexes.is_empty()) {
                (true, _) => kv_heads * total,
                // Without an index there was nothing to pick: what is not exact now has left for good.
                (false, true) => kv_heads * fixed,
                (false, false) => indexes.iter().zip(&self.states[layer]).map(|(i, s)| held(i, s)).sum(),
            }
        };
        (0..self.prefix.layers()).map(of_layer).collect()
    }

    /// One token at one layer: stores its key and value (`[kv_heads][d]`, rotated) and attends its
    /// queries (`[heads][d]`, rotated, unscaled) into `out` (`[heads][d]`).
    pub fn step(&mut self, layer: usize, queries: &[f32], key: &[f32], value: &[f32], out: &mut [f32]) {
        let start = Instant::now();
        self.tail[layer].append(key, value);
        let kv_heads = self.tail[layer].keys.kv_heads();
        let group = queries.len() / kv_heads;
        for (kv_head, (queries, out)) in queries.chunks_exact(group).zip(out.chunks_exact_mut(group)).enumerate() {
            self.attend_head(layer, kv_head, queries, out);
        }
        if !self.dense[layer] {
            self.method.method.agree(&mut self.states[layer]);
        }
        self.attend_time += start.elapsed();
    }

    fn attend_head(&mut self, layer: usize, kv_head: usize, queries: &[f32], out: &mut [f32]) {
        let prefix_tokens = self.prefix.tokens();
        let total = prefix_tokens + self.tail[layer].tokens();
        let exact = match self.dense[layer] {
            true => Exact::all(),
            false => self.method.method.exact(&self.method.policy, prefix_tokens, total),
        };
        let kv = HeadKv::new(&self.prefix, &self.tail[layer], layer, kv_head);
        let scale = 1.0 / (kv.d as f32).sqrt();
        let mut cost = Cost::default();
        let moves_on = self.method.moves_on();
        let candidates = if moves_on { exact.sink..exact.recent } else { self.prefix_candidates.clone() };
        let grouped = self.method.method.positions().grouped(self.rotation.as_deref());
        let follows_tail = self.method.method.follows_tail();
        let selection = if self.dense[layer] || candidates.is_empty() && !follows_tail {
            None
        } else {
            let step = Step {
                layer,
                depth: depth(&self.dense, layer),
                kv_head,
                queries,
                d: kv.d,
                scale,
                keys: kv.prefix_keys,
                values: kv.prefix_values,
                tail_keys: kv.tail_keys,
                tail_values: kv.tail_values,
                dtype: self.prefix.layer(layer).keys.dtype(),
                indexed: self.prefix_candidates.clone(),
                context: Context::new(total, &candidates),
                candidates,
                grouped,
                generated: (total - 1).saturating_sub(self.prompt_tokens),
                seed: mix_seed(head_seed(self.seed, layer, kv_head), total as u64),
            };
            let index = self.indexes.by_layer[layer][kv_head].as_ref();
            let state = self.states[layer][kv_head].as_mut();
            Some(self.method.method.select(&step, index, state, &mut cost))
        };
        let attended = kv.attend(&self.placed(queries, &kv, exact), exact, selection.as_ref(), out, &mut cost);
        cost.steps += attended.len() as u64;
        cost.context_tokens += (attended.len() * total) as u64;
        cost.attended_tokens += attended.iter().sum::<usize>() as u64;
        let has_rule = matches!(self.method.method.tail_rule(), TailRule::Own(_));
        if !self.dense[layer] && !moves_on && !has_rule {
            cost.free_tokens += (attended.len() * (total - prefix_tokens - 1)) as u64;
        }
        let per_token = 4 * kv.d as u64;
        cost.attend_flops += per_token * attended.iter().sum::<usize>() as u64;
        cost.full_flops += per_token * (attended.len() * total) as u64;
        if let Some(meter) = &mut self.fidelity {
            let first_head = kv_head * attended.len();
            meter.compare(Place { layer, first_head }, &kv, queries, scale, exact, selection.as_ref(), out);
        }
        self.costs.count_heads(layer, kv_head * attended.len(), &attended, total);
        *self.costs.layer_mut(layer) += cost;
    }

    /// The queries at the positions of the method's choice.
    fn placed(&self, queries: &[f32], kv: &HeadKv<'_>, exact: Exact) -> Queries<'_> {
        let scaled = Queries::new(queries, 1.0 / (kv.d as f32).sqrt());
        let (positions, rotation) = (self.method.method.positions(), self.rotation.as_deref());
        if let Some(grouped) = positions.grouped(rotation) {
            return scaled.grouped(grouped, kv.total() - 1, kv.d);
        }
        if positions == Positions::Original || exact.recent == exact.sink {
            return scaled;
        }
        scaled.nearer_to_sink(exact, kv.d, rotation.expect(GIVEN_ROTATION))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::PromptShape;
    use crate::attention::calibration::PrefillChunk;

    #[test]
    fn what_was_gathered_is_part_of_every_index_and_spent_once() {
        let (d, tokens) = (4, 30);
        let mut kv = LayerKv::new(KvDtype::F32, 1, d, tokens);
        (0..tokens).for_each(|t| kv.append(&[t as f32; 4], &[1.0; 4]));
        let needs = [PromptNeed::AttentionMass, PromptNeed::LastQueries(2)];
        let shape = PromptShape { layers: 1, heads: 1, kv_heads: 1, d, tokens };
        let mut stats = PromptStats::new(&needs.into(), shape);
        let queries = vec![0.5; tokens * d];
        stats.observe(&PrefillChunk { layer: 0, first: 0, queries: &queries, heads: 1, kv: &kv });
        let times = needs.map(|need| stats.time(need));
        assert!(times.iter().all(|time| !time.is_zero()));
        let mut cache = IndexCache::new(Prefix::new(vec![kv]), KvDtype::F32, 1).with_stats(stats);
        let [mass, last] = times;
        let both = mass + last;
        assert_eq!(cache.gathering_time(&needs[..1]), IndexTime { whole: mass, reused: Duration::ZERO });
        assert_eq!(cache.gathering_time(&needs), IndexTime { whole: both, reused: mass });
        assert_eq!(cache.gathering_time(&needs), IndexTime { whole: both, reused: both });
    }
}

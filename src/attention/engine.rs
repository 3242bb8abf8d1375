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
use super::head::{HeadKv, Picked, Queries};
use super::method::{
    AnyMethod, Depth, Exact, GIVEN_ROTATION, HeadPrefix, Positions, Rotation, Selection, Solved, Step, TailRule,
    mix_seed,
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
        let asked = !method.method.picks_nothing() && (!candidates.is_empty() || method.moves_on());
        let dense_layers = dense;
        let by_layer = dense
            .par_iter()
            .enumerate()
            .map(|(layer, dense)| {
                if *dense || !asked {
                    return Vec::new();
                }
                let kv = self.prefix.layer(layer);
                (0..kv.keys.kv_heads())
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
    /// Keys and values behind the prefix, of the layers where the host picks.
    tail: Vec<LayerKv>,
    /// Tokens behind the prefix that each layer has seen.
    tail_tokens: Vec<usize>,
    device: Option<Box<dyn Any + Send>>,
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
        let (layers, shape) = (prefix.layers(), prefix.shape());
        let start = |index: &Index| method.method.start(index.as_ref());
        let of_layer = |heads: &Vec<Index>| {
            let mut states: Vec<_> = heads.iter().map(start).collect();
            method.method.agree(&mut states);
            states
        };
        let states = indexes.by_layer.iter().map(of_layer).collect();
        let tail = (0..layers).map(|_| LayerKv::new(cache.dtype, shape.kv_heads, shape.d, TAIL_CAPACITY)).collect();
        let costs = cache.read.clone().unwrap_or_else(|| LayerCosts::new(layers));
        Self {
            rotation: cache.rotation.clone(),
            method,
            solved: None,
            indexes,
            states,
            tail,
            tail_tokens: vec![0; layers],
            device: None,
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
        self.total(0)
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
        let rows = sparse * self.prefix.shape().kv_heads * tokens.max(1);
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
        (self.tokens_held().iter().sum::<usize>() * self.prefix.shape().row_bytes()) as u64
    }

    /// Tokens whose keys and values this run alone has to keep at this point, mean over layers and KV heads; what any
    /// query head of a group keeps, its KV head keeps.
    pub fn kv_tokens_held(&self) -> f64 {
        let held = self.tokens_held();
        let kv_heads = held.len() * self.prefix.shape().kv_heads;
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
            let (kv_heads, indexes) = (self.prefix.shape().kv_heads, &self.indexes.by_layer[layer]);
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
        let picked = self.pick(layer, queries, key, value);
        let group = queries.len() / picked.len();
        let heads = queries.chunks_exact(group).zip(out.chunks_exact_mut(group)).zip(&picked);
        for (kv_head, ((queries, out), picked)) in heads.enumerate() {
            let kv = HeadKv::new(&self.prefix, &self.tail[layer], layer, kv_head);
            kv.attend(&self.placed(queries, &kv, picked.exact), picked, out);
        }
        self.compare(layer, queries, &picked, self.total(layer), out);
        self.attend_time += start.elapsed();
    }

    /// The first half of a [`step`](Self::step), for engines that attend by themselves: stores the token's key and value,
    /// and says what each KV head attends. What that costs is counted.
    pub fn pick(&mut self, layer: usize, queries: &[f32], key: &[f32], value: &[f32]) -> Vec<Picked> {
        self.tail[layer].append(key, value);
        self.tail_tokens[layer] += 1;
        let kv_heads = self.prefix.shape().kv_heads;
        let heads = queries.chunks_exact(queries.len() / kv_heads).enumerate();
        let picked: Vec<Picked> = heads.map(|(kv_head, queries)| self.pick_head(layer, kv_head, queries)).collect();
        if !self.dense[layer] {
            self.method.method.agree(&mut self.states[layer]);
        }
        picked
    }

    /// As [`pick`](Self::pick), at a layer where [nothing is picked](Self::picks_at): what every KV head attends, for
    /// `heads` query heads.
    pub fn pass(&mut self, layer: usize, heads: usize) -> Exact {
        self.tail_tokens[layer] += 1;
        let picked = Picked { exact: self.exact(layer), selection: None };
        let (kv_heads, d) = (self.prefix.shape().kv_heads, self.prefix.shape().d);
        for kv_head in 0..kv_heads {
            self.count(layer, kv_head, heads / kv_heads, &picked, Cost::default());
        }
        debug_assert!(!self.picks_at(layer) && d > 0);
        picked.exact
    }

    /// Whether tokens are picked at `layer`, for which the host has to see queries, keys and values.
    pub fn picks_at(&self, layer: usize) -> bool {
        let method = &self.method.method;
        let may = || !self.prefix_candidates.is_empty() || self.method.moves_on() || method.follows_tail();
        !self.dense[layer] && !method.picks_nothing() && may()
    }

    /// Whether the host picks tokens, or attends by itself, at any layer.
    pub fn picks_on_host(&self) -> bool {
        self.moves_positions() || (0..self.dense.len()).any(|layer| self.picks_at(layer))
    }

    /// Whether the host has to see queries, keys and values at every layer, picks or none: it compares with exact
    /// attention, or attends by itself.
    pub fn needs_host(&self) -> bool {
        self.fidelity.is_some() || self.moves_positions()
    }

    /// Whether tokens are attended at other positions than they were read at, which [`step`](Self::step) alone can do.
    pub fn moves_positions(&self) -> bool {
        self.method.method.positions() != Positions::Original
    }

    /// The second half of a [`step`](Self::step), if closeness to exact attention was asked for: looks at what was
    /// attended when `total` tokens were in context. The host has to hold keys and values.
    pub fn compare(&mut self, layer: usize, queries: &[f32], picked: &[Picked], total: usize, out: &[f32]) {
        let Some(mut meter) = self.fidelity.take() else { return };
        let group = queries.len() / picked.len();
        let heads = queries.chunks_exact(group).zip(out.chunks_exact(group)).zip(picked);
        for (kv_head, ((queries, out), picked)) in heads.enumerate() {
            let kv = HeadKv::new(&self.prefix, &self.tail[layer], layer, kv_head).up_to(total);
            meter.compare(Place { layer, first_head: kv_head * group / kv.d }, &kv, queries, picked, out);
        }
        self.fidelity = Some(meter);
    }

    /// Room for what an engine keeps of this run on its device.
    pub fn device_mut(&mut self) -> &mut Option<Box<dyn Any + Send>> {
        &mut self.device
    }

    /// The prefix that the run goes on from.
    pub fn prefix(&self) -> &Arc<Prefix> {
        &self.prefix
    }

    /// Notes time that an engine spent picking or attending for this run.
    pub fn spent(&mut self, time: Duration) {
        self.attend_time += time;
    }

    /// Tokens in context at a layer.
    fn total(&self, layer: usize) -> usize {
        self.prefix.tokens() + self.tail_tokens.get(layer).copied().unwrap_or(0)
    }

    /// What is attended at a layer whatever is picked.
    fn exact(&self, layer: usize) -> Exact {
        match self.dense[layer] {
            true => Exact::all(),
            false => self.method.method.exact(&self.method.policy, self.prefix.tokens(), self.total(layer)),
        }
    }

    fn pick_head(&mut self, layer: usize, kv_head: usize, queries: &[f32]) -> Picked {
        let exact = self.exact(layer);
        let mut cost = Cost::default();
        let candidates = if self.method.moves_on() { exact.sink..exact.recent } else { self.prefix_candidates.clone() };
        let asks = self.picks_at(layer) && (!candidates.is_empty() || self.method.method.follows_tail());
        let selection = asks.then(|| self.select(layer, kv_head, queries, candidates, &mut cost));
        let picked = Picked { exact, selection };
        self.count(layer, kv_head, queries.len() / self.prefix.shape().d, &picked, cost);
        picked
    }

    fn select(
        &mut self,
        layer: usize,
        kv_head: usize,
        queries: &[f32],
        candidates: Range<usize>,
        cost: &mut Cost,
    ) -> Selection {
        let total = self.total(layer);
        let kv = HeadKv::new(&self.prefix, &self.tail[layer], layer, kv_head);
        let step = Step {
            layer,
            depth: depth(&self.dense, layer),
            kv_head,
            queries,
            d: kv.d,
            scale: 1.0 / (kv.d as f32).sqrt(),
            keys: kv.prefix_keys,
            values: kv.prefix_values,
            tail_keys: kv.tail_keys,
            tail_values: kv.tail_values,
            dtype: self.prefix.shape().dtype,
            indexed: self.prefix_candidates.clone(),
            context: Context::new(total, &candidates),
            candidates,
            grouped: self.method.method.positions().grouped(self.rotation.as_deref()),
            generated: (total - 1).saturating_sub(self.prompt_tokens),
            seed: mix_seed(head_seed(self.seed, layer, kv_head), total as u64),
        };
        let index = self.indexes.by_layer[layer][kv_head].as_ref();
        let state = self.states[layer][kv_head].as_mut();
        self.method.method.select(&step, index, state, cost)
    }

    /// Counts what a group of query heads attends, beside what picking it cost.
    fn count(&mut self, layer: usize, kv_head: usize, group: usize, picked: &Picked, mut cost: Cost) {
        let (total, shape) = (self.total(layer), self.prefix.shape());
        let attended = picked.attended(group, total);
        let summed: usize = attended.iter().sum();
        cost.kv_bytes += (picked.read(total) * shape.row_bytes()) as u64;
        cost.attend_flops += picked.selection.as_ref().map_or(0, |s| s.remainders() * 2 * shape.d) as u64;
        cost.steps += group as u64;
        cost.context_tokens += (group * total) as u64;
        cost.attended_tokens += summed as u64;
        let has_rule = matches!(self.method.method.tail_rule(), TailRule::Own(_));
        if !self.dense[layer] && !self.method.moves_on() && !has_rule {
            cost.free_tokens += (group * (self.tail_tokens[layer] - 1)) as u64;
        }
        let per_token = 4 * shape.d as u64;
        cost.attend_flops += per_token * summed as u64;
        cost.full_flops += per_token * (group * total) as u64;
        self.costs.count_heads(layer, kv_head * group, &attended, total);
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
        stats.observe(&PrefillChunk::new(0, 0, &queries, 1, &kv));
        let times = needs.map(|need| stats.time(need));
        assert!(times.iter().all(|time| !time.is_zero()));
        let mut cache = IndexCache::new(Prefix::new(vec![kv]), KvDtype::F32, 1).with_stats(stats);
        let [mass, last] = times;
        let both = mass + last;
        assert_eq!(cache.gathering_time(&needs[..1]), IndexTime { whole: mass, reused: Duration::ZERO });
        assert_eq!(cache.gathering_time(&needs), IndexTime { whole: both, reused: mass });
        assert_eq!(cache.gathering_time(&needs), IndexTime { whole: both, reused: both });
    }

    const TOKENS: usize = 12;
    const D: usize = 8;

    /// Forks of one prefix of a layer with two KV heads; what each of its rows asks, and adds.
    fn forks<const N: usize>(spec: &str, fidelity: bool) -> ([Fork; N], impl Fn(u64) -> [Vec<f32>; 3]) {
        let noise = |count: usize, seed: u64| -> Vec<f32> {
            (0..count as u64).map(|i| ((i * 37 + seed * 101) as f32 * 0.61).sin()).collect()
        };
        let mut kv = LayerKv::new(KvDtype::F32, 2, D, TOKENS);
        (0..TOKENS as u64).for_each(|t| kv.append(&noise(2 * D, 50 + t), &noise(2 * D, 80 + t)));
        let spec = crate::attention::expand_grid(spec).unwrap().remove(0);
        let method = crate::attention::methods::configure(
            &spec,
            &crate::attention::Policy { sink: 1, local: 2, ..Default::default() },
        )
        .unwrap();
        let mut cache = IndexCache::new(Prefix::new(vec![kv]), KvDtype::F32, 1);
        let row = move |i: u64| [noise(4 * D, 10 + i), noise(2 * D, 20 + i), noise(2 * D, 30 + i)];
        (std::array::from_fn(|_| cache.fork(&method, fidelity)), row)
    }

    #[test]
    fn what_is_attended_is_counted_by_head_and_token() {
        let ([mut fork], row) = forks("topk:k=3", false);
        for i in 0..2 {
            let [queries, key, value] = row(i);
            fork.step(0, &queries, &key, &value, &mut [0.0; 4 * D]);
        }
        let cost = &fork.costs().layers()[0];
        // Of 13 and of 14 tokens in context, each of four heads attends a sink, two of the window, three picks, and the
        // one or two behind the prefix. The second step's first is neither the token itself nor in the budget.
        let (context, attended) = (4 * (13 + 14), 4 * (7 + 8));
        assert_eq!(
            (cost.steps, cost.context_tokens, cost.attended_tokens, cost.free_tokens),
            (8, context, attended, 4)
        );
        // A product with a key and one with a value.
        let each = 2 * 2 * D as u64;
        assert_eq!((cost.attend_flops, cost.full_flops), (each * attended, each * context));
    }

    #[test]
    fn every_head_is_compared_once_at_its_own_place() {
        // All is picked: nothing differs from exact attention, and nothing is left out.
        let ([mut fork], row) = forks("topk:k=100", true);
        let [queries, key, value] = row(0);
        fork.step(0, &queries, &key, &value, &mut [0.0; 4 * D]);
        let meter = fork.fidelity().unwrap();
        assert_eq!(meter.dropped_mass(), [vec![0.0; 4]], "four heads of one layer");
    }

    #[test]
    fn rows_may_be_picked_for_first_and_compared_afterwards() {
        let ([mut whole, mut split], row) = forks("topk:k=3,tail=indexed", true);
        let rows: Vec<[Vec<f32>; 3]> = (0..4).map(row).collect();
        let step = |[queries, key, value]: &[Vec<f32>; 3]| {
            let mut out = vec![f32::NAN; 4 * D];
            whole.step(0, queries, key, value, &mut out);
            out
        };
        let outs: Vec<Vec<f32>> = rows.iter().map(step).collect();
        let picked: Vec<Vec<Picked>> =
            rows.iter().map(|[queries, key, value]| split.pick(0, queries, key, value)).collect();
        for (i, (([queries, ..], picked), out)) in rows.iter().zip(&picked).zip(&outs).enumerate() {
            split.compare(0, queries, picked, TOKENS + i + 1, out);
        }
        assert_eq!((split.tokens(), split.costs()), (whole.tokens(), whole.costs()));
        let [split, whole] = [&split, &whole].map(|fork| fork.fidelity().unwrap());
        assert_eq!(split.output_error(), whole.output_error());
        assert_eq!((split.recall(), split.dropped_mass()), (whole.recall(), whole.dropped_mass()));
    }

    #[test]
    fn a_row_for_which_nothing_is_picked_costs_the_same_unseen() {
        for spec in ["full", "streaming_llm:window=4", "streaming_llm:window=4,slide=false", "topk:k=3,dense_layers=0"]
        {
            let ([mut seen, mut unseen], row) = forks(spec, false);
            assert!(!unseen.picks_at(0), "{spec}");
            for [queries, key, value] in (0..3).map(row) {
                let picked = seen.pick(0, &queries, &key, &value);
                assert!(picked.iter().all(|picked| picked.selection.is_none()));
                assert_eq!(unseen.pass(0, 4), picked[0].exact, "{spec}");
            }
            assert_eq!((unseen.tokens(), unseen.costs()), (seen.tokens(), seen.costs()), "{spec}");
        }
        let ([picks], _) = forks("topk:k=3", false);
        assert!(picks.picks_at(0) && picks.picks_on_host());
    }
}

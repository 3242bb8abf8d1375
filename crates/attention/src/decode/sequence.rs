//! One sequence: a method decoding from a shared prefix.
//!
//! It owns a short tail of keys and values and the method's state; the prefix and the indexes over it are shared. All methods run through
//! the same code here, and all costs of attending are counted here.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rayon::prelude::*;

use crate::configured::Configured;
use crate::cost::{Cost, LayerCosts};
use crate::decode::fidelity::{FidelityMeter, Place};
use crate::decode::head_kv::{HeadKv, Queries};
use crate::decode::index_cache::{HAS_FORM, Index, IndexCache, IndexSet, depth};
use crate::decode::timing::{AttentionTime, IndexTime, ParallelTime};
use crate::device::form::{DeviceForm, StepShape};
use crate::device::layer::DeviceIndex;
use crate::kv::{LayerKv, Prefix};
use crate::method::{Step, TailRule};
use crate::types::budget::Context;
use crate::types::positions::{GIVEN_ROTATION, Positions, Rotation};
use crate::types::seed::RowSeed;
use crate::types::selection::{AttendedTokens, Selection, StaticTokens};
use spattn_base::clock;
use spattn_base::clock::Section;
use spattn_kernels::Rows;

/// Where the tokens of a layer are selected, for engines that attend by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelectionSite {
    /// Nowhere: only static tokens are attended ([`Sequence::attend_static_only`]).
    None,
    /// On the host, from positions alone: queries, keys and values are not needed
    /// ([`Sequence::select_without_queries`]).
    DataIndependent,
    /// On the device that holds the prefix ([`Sequence::select_on_device`]).
    Device,
    /// On the host ([`Sequence::select`]).
    Host,
}

/// One sequence: a method decoding from a shared prefix.
pub struct Sequence {
    pub(super) method: Configured,
    pub(super) solved: Option<String>,
    pub(super) prefix: Arc<Prefix>,
    pub(super) rotation: Option<Arc<dyn Rotation>>,
    pub(super) indexes: Arc<IndexSet>,
    pub(super) states: Vec<Vec<Box<dyn Any + Send>>>,
    /// Keys and values behind the prefix, for the layers whose tokens the host selects.
    pub(super) tail: Vec<LayerKv>,
    /// Tokens behind the prefix that each layer has seen.
    pub(super) tail_tokens: Vec<usize>,
    pub(super) device: Option<Box<dyn Any + Send>>,
    /// Whether tokens are selected on the device that holds the prefix.
    pub(super) on_device: bool,
    /// Whether counters of the device are still to be collected.
    pub(super) uncollected: bool,
    /// Evictable tokens still resident per layer, summed over KV heads; `None` until
    /// [`collect_device_counters`](Self::collect_device_counters).
    pub(super) resident_on_device: Vec<Option<usize>>,
    pub(super) dense: Vec<bool>,
    pub(super) prefix_candidates: Range<usize>,
    pub(super) prompt_tokens: usize,
    pub(super) seed: u64,
    pub(super) costs: LayerCosts,
    pub(super) fidelity: Option<FidelityMeter>,
    pub(super) index_time: IndexTime,
    pub(super) attention_time: AttentionTime,
    /// Whether the time of some step could not be split into attention and the rest.
    pub(super) has_whole_steps: bool,
    /// Whether selection time is split into scoring and selecting.
    pub(super) has_selection_breakdown: bool,
}

/// The selection of a KV head, its cost, and its processor time on another thread than the caller's.
type Selected = (Option<Selection>, Cost, ParallelTime);

/// Context length from which the KV heads of a layer run on threads of their own; below it, starting threads costs more
/// than it saves.
const MIN_PARALLEL_TOKENS: usize = 4096;

/// Room for this many tokens behind the prefix before the tail has to grow.
const TAIL_CAPACITY: usize = 64;

impl Sequence {
    pub(super) fn new(
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
            method.method.coordinate_heads(&mut states);
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
            on_device: false,
            uncollected: false,
            resident_on_device: vec![None; layers],
            dense,
            prefix_candidates,
            prompt_tokens: cache.prompt_tokens,
            seed: cache.step_seed,
            costs,
            fidelity: fidelity.then(|| FidelityMeter::new(layers)),
            index_time,
            attention_time: AttentionTime::default(),
            has_whole_steps: false,
            has_selection_breakdown: false,
            prefix,
        }
    }

    /// The method that this sequence decodes with.
    pub fn method(&self) -> &Configured {
        &self.method
    }

    /// The parameter solved for the requested density, as `key=value,...`; `None` if there was none to solve.
    pub fn solved(&self) -> Option<&str> {
        self.solved.as_deref()
    }

    /// Tokens in context: prefix and tail.
    pub fn tokens(&self) -> usize {
        self.total(0)
    }

    /// Costs so far, by layer. Selections on a device are included once [their counters are
    /// collected](Self::collect_device_counters).
    pub fn costs(&self) -> &LayerCosts {
        debug_assert!(!self.uncollected, "a run is settled before its costs are looked at");
        &self.costs
    }

    /// Whether `layer` attends everything by policy.
    pub fn is_dense(&self, layer: usize) -> bool {
        self.dense[layer]
    }

    /// Fidelity to exact attention, if it is measured.
    pub fn fidelity(&self) -> Option<&FidelityMeter> {
        self.fidelity.as_ref()
    }

    /// Time of this sequence's index, whether it was built for it or for an earlier one.
    pub fn index_time(&self) -> IndexTime {
        self.index_time
    }

    /// Attention time of this sequence's steps.
    pub fn attention_time(&self) -> AttentionTime {
        self.attention_time
    }

    /// Whether the time of some steps could not be split into attention and the rest.
    pub fn has_whole_steps(&self) -> bool {
        self.has_whole_steps
    }

    /// Auxiliary memory of the shared index and of the sequence's own state: bits per indexed token and KV head, mean
    /// over the sparse layers; 0 if all layers are dense.
    pub fn aux_bits(&self) -> f64 {
        let method = self.method.method.as_ref();
        let there = self.indexes.on_device.iter().flatten().map(|index| index.bytes);
        let here = self.indexes.by_layer.iter().flatten().map(|index| method.index_bytes(index.as_ref()));
        let shared = here.chain(there).sum::<usize>();
        let own: usize = self.states.iter().flatten().map(|state| method.state_bytes(state.as_ref())).sum();
        let tokens = if self.method.has_moving_candidates() { self.tokens() } else { self.prefix.tokens() };
        let sparse = self.dense.iter().filter(|dense| !**dense).count();
        let rows = sparse * self.prefix.shape().kv_heads * tokens.max(1);
        (shared + own) as f64 * 8.0 / rows.max(1) as f64
    }

    /// Adds the costs, times and fidelity of another sequence of the same method on the same prefix; caches and states
    /// stay apart.
    pub fn merge_counters(&mut self, other: &Sequence) {
        self.costs.absorb(other.costs());
        self.index_time += other.index_time;
        self.attention_time += other.attention_time;
        self.has_whole_steps |= other.has_whole_steps;
        if let (Some(own), Some(other)) = (&mut self.fidelity, &other.fidelity) {
            own.absorb(other);
        }
    }

    /// Bytes of keys and values that this sequence needs at this point, over all layers: all tokens in context, less
    /// the evicted ones.
    pub fn kv_bytes_held(&self) -> u64 {
        (self.tokens_held().iter().sum::<usize>() * self.prefix.shape().row_bytes()) as u64
    }

    /// Tokens whose keys and values this sequence needs at this point, mean over layers and KV heads. A KV head keeps
    /// what any query head of its group keeps.
    pub fn kv_tokens_held(&self) -> f64 {
        let held = self.tokens_held();
        let kv_heads = held.len() * self.prefix.shape().kv_heads;
        held.iter().sum::<usize>() as f64 / kv_heads.max(1) as f64
    }

    /// Resident tokens of each layer, summed over its KV heads.
    fn tokens_held(&self) -> Vec<usize> {
        let total = self.tokens();
        let exact = self.method.method.exact(&self.method.policy, self.prefix.tokens(), total);
        let fixed = exact.sink + total - exact.recent;
        let held = |index: &Index, state: &Box<dyn Any + Send>| {
            self.method.method.resident_candidates(index.as_ref(), state.as_ref()).map_or(total, |held| fixed + held)
        };
        let of_layer = |layer: usize| {
            let (kv_heads, indexes) = (self.prefix.shape().kv_heads, &self.indexes.by_layer[layer]);
            match (self.dense[layer], indexes.is_empty()) {
                (true, _) => kv_heads * total,
                // A device selects from all tokens, unless it has reported how many are resident.
                (false, true) if self.on_device => {
                    self.resident_on_device[layer].map_or(kv_heads * total, |held| kv_heads * fixed + held)
                }
                // Without an index there are no candidates: all tokens that are not static are evicted.
                (false, true) => kv_heads * fixed,
                (false, false) => indexes.iter().zip(&self.states[layer]).map(|(i, s)| held(i, s)).sum(),
            }
        };
        (0..self.prefix.layers()).map(of_layer).collect()
    }

    /// One decode step of one layer: stores the token's key and value (`[kv_heads][d]`, rotated) and attends its
    /// queries (`[heads][d]`, rotated, unscaled) into `out` (`[heads][d]`).
    pub fn step(&mut self, layer: usize, queries: &[f32], key: &[f32], value: &[f32], out: &mut [f32]) {
        let mut section = Section::begin();
        let (picked, apart) = self.select_timed(layer, queries, key, value);
        let select = section.lap() + apart.select;
        let width = queries.len() / picked.len();
        let of_head = |(kv_head, (queries, picked)): (usize, (_, &AttendedTokens))| {
            let kv = HeadKv::new(&self.prefix, &self.tail[layer], layer, kv_head);
            let placed = self.placed(queries, &kv, picked.exact);
            (kv, placed)
        };
        let heads: Vec<_> = queries.chunks_exact(width).zip(&picked).enumerate().map(of_head).collect();
        let attend = |((out, (kv, queries)), picked): ((&mut [f32], &(HeadKv<'_>, Queries<'_>)), &AttendedTokens)| {
            kv.attend(queries, picked, out);
        };
        let elsewhere = match self.total(layer) < MIN_PARALLEL_TOKENS {
            true => {
                out.chunks_exact_mut(width).zip(&heads).zip(&picked).for_each(attend);
                Duration::ZERO
            }
            false => {
                let work = out.par_chunks_exact_mut(width).zip(&heads).zip(&picked);
                work.map(|head| Section::of(|| attend(head)).1).sum()
            }
        };
        drop(heads);
        let attend = section.lap() + elsewhere;
        self.compare(layer, queries, &picked, self.total(layer), out);
        let compare = if self.fidelity.is_some() { section.end() } else { Duration::ZERO };
        self.attention_time +=
            AttentionTime { select, parts: apart.parts, attend, compare, ..AttentionTime::default() };
    }

    /// The first half of a [`step`](Self::step), for engines that attend by themselves: stores the token's key and
    /// value, and returns the tokens that each KV head attends. Counts what that costs.
    pub fn select(&mut self, layer: usize, queries: &[f32], key: &[f32], value: &[f32]) -> Vec<AttendedTokens> {
        let (picked, apart) = self.select_timed(layer, queries, key, value);
        self.attention_time += apart.into();
        picked
    }

    /// As [`select`](Self::select), with the processor time spent on other threads than the caller's.
    fn select_timed(
        &mut self,
        layer: usize,
        queries: &[f32],
        key: &[f32],
        value: &[f32],
    ) -> (Vec<AttendedTokens>, ParallelTime) {
        self.tail[layer].append(key, value);
        self.tail_tokens[layer] += 1;
        let group = queries.len() / (self.prefix.shape().kv_heads * self.prefix.shape().d);
        self.select_for_heads(layer, Some(queries), group)
    }

    /// As [`select`](Self::select), at a layer where [nothing is selected](Self::selects_at): the static tokens, which
    /// every KV head attends, for `heads` query heads.
    pub fn attend_static_only(&mut self, layer: usize, heads: usize) -> StaticTokens {
        self.tail_tokens[layer] += 1;
        let picked = AttendedTokens { exact: self.exact(layer), selection: None };
        let (kv_heads, d) = (self.prefix.shape().kv_heads, self.prefix.shape().d);
        for kv_head in 0..kv_heads {
            self.count(layer, kv_head, heads / kv_heads, &picked, Cost::default());
        }
        debug_assert!(!self.selects_at(layer) && d > 0);
        picked.exact
    }

    /// As [`select`](Self::select), where the selection is [data-independent](SelectionSite::DataIndependent), for
    /// `heads` query heads.
    pub fn select_without_queries(&mut self, layer: usize, heads: usize) -> Vec<AttendedTokens> {
        self.tail_tokens[layer] += 1;
        debug_assert_eq!(self.selection_site(layer), SelectionSite::DataIndependent);
        let (drawn, apart) = self.select_for_heads(layer, None, heads / self.prefix.shape().kv_heads);
        self.attention_time += apart.into();
        drawn
    }

    /// As [`select`](Self::select), where the [device](SelectionSite::Device) selects for `heads` query heads: returns
    /// the static tokens. The selected tokens are counted on the device until [its counters are
    /// collected](Self::collect_device_counters).
    pub fn select_on_device(&mut self, layer: usize, heads: usize) -> StaticTokens {
        self.tail_tokens[layer] += 1;
        let (picked, shape) = (AttendedTokens { exact: self.exact(layer), selection: None }, self.prefix.shape());
        let group = heads / shape.kv_heads;
        let number = self.budget_units(self.total(layer));
        let step = StepShape { exact: picked.exact.tokens(self.total(layer)), ..self.step_shape(group, number) };
        let form = self.method.method.device_form().expect(HAS_FORM);
        let cost = if self.selects_anew(self.total(layer)) { form.cost(&step) } else { Cost::default() };
        (0..shape.kv_heads).for_each(|kv_head| self.count(layer, kv_head, group, &picked, cost));
        self.uncollected = true;
        picked.exact
    }

    /// The shape of a step with `group` query heads per KV head, a budget in the method's own units, and no static tokens.
    pub fn step_shape(&self, group: usize, number: u32) -> StepShape {
        let shape = self.prefix.shape();
        let candidates = self.prefix_candidates.len();
        StepShape { group, d: shape.d, dtype: shape.dtype, candidates, exact: 0, number }
    }

    /// Adds the counters of a device since the last call, `[layer][kv_heads + heads + 1]`, summed over steps: tokens
    /// read by each KV head, tokens attended by each query head, and index entries read.
    pub fn collect_device_counters(&mut self, picks: &[u64]) {
        self.uncollected = false;
        let (layers, shape) = (self.prefix.layers(), self.prefix.shape());
        let method = self.method.method.clone();
        let form = method.device_form().expect(HAS_FORM);
        for (layer, picks) in picks.chunks_exact(picks.len() / layers).enumerate() {
            let (read, picks) = picks.split_at(shape.kv_heads);
            let (entries, attended) = picks.split_last().expect("heads and entries");
            let tokens: u64 = attended.iter().sum();
            let step = self.step_shape(attended.len() / shape.kv_heads, 0);
            let cost = self.costs.layer_mut(layer);
            *cost += form.cost_of_picks(&step, *entries, tokens);
            let read = read.iter().sum::<u64>();
            if form.takes_products(step.group) {
                cost.leave_to_attention(tokens as usize, read as usize, shape.d, shape.dtype.bytes());
            }
            cost.kv_bytes += read * shape.row_bytes() as u64;
            cost.attended_tokens += tokens;
            cost.attend_flops += attend_flops(shape.d) * tokens;
            if tokens > 0 {
                let attended: Vec<usize> = attended.iter().map(|tokens| *tokens as usize).collect();
                self.costs.count_heads(layer, 0, &attended, 0);
            }
        }
    }

    /// Sets how many evictable tokens a layer still holds, summed over KV heads, as counted on the device.
    pub fn set_resident_tokens(&mut self, layer: usize, tokens: usize) {
        self.resident_on_device[layer] = Some(tokens);
    }

    /// Whether the device selects anew when `total` tokens are in context; otherwise the token attends the last
    /// selection.
    pub fn selects_anew(&self, total: usize) -> bool {
        let refresh = self.method.method.device_form().map_or(1, DeviceForm::refresh);
        self.generated(total).is_multiple_of(refresh)
    }

    /// Whether some tokens attend an earlier selection of the device.
    pub fn reuses_selections(&self) -> bool {
        self.method.method.device_form().is_some_and(|form| form.refresh() > 1)
    }

    /// Tokens generated before the last of `total`.
    fn generated(&self, total: usize) -> usize {
        (total - 1).saturating_sub(self.prompt_tokens)
    }

    /// Whether the device selects, at the layers where there is something to select.
    pub fn selects_on_device(&self) -> bool {
        self.on_device
    }

    /// Whether counters of the device are still to be collected.
    pub fn has_uncollected_counters(&self) -> bool {
        self.uncollected
    }

    /// Where the tokens of `layer` are selected.
    pub fn selection_site(&self, layer: usize) -> SelectionSite {
        match self.selects_at(layer) {
            false => SelectionSite::None,
            true if self.on_device => SelectionSite::Device,
            true if self.method.method.is_data_independent() && !self.needs_host() => SelectionSite::DataIndependent,
            true => SelectionSite::Host,
        }
    }

    /// Whether one launch on the device can select for rows of both sequences.
    pub fn selects_together_with(&self, other: &Sequence) -> bool {
        let share_index = Arc::ptr_eq(&self.indexes, &other.indexes);
        self.on_device && other.on_device && share_index && self.method.picks_with(&other.method)
    }

    /// The method's device form and the device index of a sparse layer; `None` if the host selects.
    pub fn device_form(&self, layer: usize) -> Option<(&dyn DeviceForm, &DeviceIndex)> {
        let index = self.indexes.on_device[layer].as_ref().filter(|_| self.on_device)?;
        Some((self.method.method.device_form()?, index))
    }

    /// Tokens of the prefix that may be selected.
    pub fn prefix_candidates(&self) -> Range<usize> {
        self.prefix_candidates.clone()
    }

    /// The budget of a step with `total` tokens in context, in the method's own units (tokens, pages, blocks); 0 if it
    /// selects nothing on a device.
    pub fn budget_units(&self, total: usize) -> u32 {
        let context = Context::new(total, &self.prefix_candidates);
        self.method.method.device_form().map_or(0, |form| form.budget_units(context, self.prefix_candidates.len()))
    }

    /// The seed of a step with `total` tokens in context.
    pub fn row_seed(&self, total: usize) -> RowSeed {
        RowSeed { run: self.seed, total }
    }

    /// Whether tokens are selected at `layer`.
    pub fn selects_at(&self, layer: usize) -> bool {
        let method = &self.method.method;
        let may = || {
            !self.prefix_candidates.is_empty() || self.method.has_moving_candidates() || method.manages_decoded_tokens()
        };
        !self.dense[layer] && !method.is_static_only() && may()
    }

    /// Whether the host selects tokens, or attends by itself, at any layer.
    pub fn selects_on_host(&self) -> bool {
        let here = |layer| matches!(self.selection_site(layer), SelectionSite::Host | SelectionSite::DataIndependent);
        self.moves_positions() || (0..self.dense.len()).any(here)
    }

    /// Whether the host needs queries, keys and values at every layer, even where nothing is selected: to measure
    /// fidelity, or because it attends by itself.
    pub fn needs_host(&self) -> bool {
        self.fidelity.is_some() || self.moves_positions()
    }

    /// Whether tokens are attended at other positions than their own. Only [`step`](Self::step) can do that.
    pub fn moves_positions(&self) -> bool {
        self.method.method.positions() != Positions::Original
    }

    /// The second half of a [`step`](Self::step) if fidelity is measured: compares the output with exact attention over
    /// `total` tokens. The host has to hold keys and values.
    pub fn compare(&mut self, layer: usize, queries: &[f32], picked: &[AttendedTokens], total: usize, out: &[f32]) {
        let Some(mut meter) = self.fidelity.take() else { return };
        let group = queries.len() / picked.len();
        let heads = queries.chunks_exact(group).zip(out.chunks_exact(group)).zip(picked);
        for (kv_head, ((queries, out), picked)) in heads.enumerate() {
            let kv = HeadKv::new(&self.prefix, &self.tail[layer], layer, kv_head).up_to(total);
            meter.compare(Place { layer, first_head: kv_head * group / kv.d }, &kv, queries, picked, out);
        }
        self.fidelity = Some(meter);
    }

    /// Slot for the data that an engine keeps on its device for this sequence.
    pub fn device_mut(&mut self) -> &mut Option<Box<dyn Any + Send>> {
        &mut self.device
    }

    /// The data that an engine keeps on its device for this sequence.
    pub fn device(&self) -> Option<&(dyn Any + Send)> {
        self.device.as_deref()
    }

    /// The shared prefix.
    pub fn prefix(&self) -> &Arc<Prefix> {
        &self.prefix
    }

    /// Takes back the time added since `earlier` and returns it: for engines that attribute a device's time themselves.
    pub fn take_busy_time_since(&mut self, earlier: AttentionTime) -> Duration {
        let worked = (self.attention_time - earlier).worked();
        self.attention_time = earlier;
        worked
    }

    /// Splits selection time into [parts](AttentionTime::parts) from now on; this reads the clock more often.
    pub fn with_selection_breakdown(self) -> Self {
        Self { has_selection_breakdown: true, ..self }
    }

    /// Adds attention time measured by an engine.
    pub fn add_attention_time(&mut self, time: AttentionTime) {
        self.attention_time += time;
    }

    /// Records that a step's time could not be split into attention and the rest.
    pub fn mark_time_unattributed(&mut self) {
        self.has_whole_steps = true;
    }

    /// Tokens in context at a layer.
    fn total(&self, layer: usize) -> usize {
        self.prefix.tokens() + self.tail_tokens.get(layer).copied().unwrap_or(0)
    }

    /// The static tokens of a layer.
    fn exact(&self, layer: usize) -> StaticTokens {
        match self.dense[layer] {
            true => StaticTokens::all(),
            false => self.method.method.exact(&self.method.policy, self.prefix.tokens(), self.total(layer)),
        }
    }

    /// The tokens that every KV head attends, for `group` query heads each, and the processor time spent on other
    /// threads than the caller's. Without `queries`, methods get no keys and values either.
    fn select_for_heads(
        &mut self,
        layer: usize,
        queries: Option<&[f32]>,
        group: usize,
    ) -> (Vec<AttendedTokens>, ParallelTime) {
        let exact = self.exact(layer);
        let candidates = self.candidates(exact);
        let mut states = std::mem::take(&mut self.states[layer]);
        let asks = self.selects_at(layer) && (!candidates.is_empty() || self.method.method.manages_decoded_tokens());
        let selected = match asks {
            true => self.select_per_head(layer, queries, group, candidates, &mut states),
            false => vec![(None, Cost::default(), ParallelTime::default()); self.prefix.shape().kv_heads],
        };
        if !self.dense[layer] {
            self.method.method.coordinate_heads(&mut states);
        }
        self.states[layer] = states;
        let mut all = ParallelTime::default();
        for (_, _, apart) in &selected {
            all.select += apart.select;
            all.parts += apart.parts;
        }
        let count = |(kv_head, (selection, cost, _)): (usize, Selected)| {
            let picked = AttendedTokens { exact, selection };
            self.count(layer, kv_head, group, &picked, cost);
            picked
        };
        (selected.into_iter().enumerate().map(count).collect(), all)
    }

    /// The candidates: tokens that may be selected beside the static ones.
    fn candidates(&self, exact: StaticTokens) -> Range<usize> {
        if self.method.has_moving_candidates() { exact.sink..exact.recent } else { self.prefix_candidates.clone() }
    }

    /// A step at a layer, for the first KV head, without keys and values.
    fn step_of<'a>(&'a self, layer: usize, total: usize, queries: &'a [f32], candidates: Range<usize>) -> Step<'a> {
        let (shape, none) = (self.prefix.shape(), Rows::F32(&[]));
        let depth = depth(&self.dense, layer, &self.method.policy.schedule);
        Step {
            layer,
            depth,
            kv_head: 0,
            queries,
            d: shape.d,
            scale: 1.0 / (shape.d as f32).sqrt(),
            keys: none,
            values: none,
            tail_keys: none,
            tail_values: none,
            dtype: shape.dtype,
            indexed: self.prefix_candidates.clone(),
            context: Context::new(total, &candidates).at(depth.share),
            candidates,
            grouped: self.method.method.positions().grouped(self.rotation.as_deref()),
            has_moving_candidates: self.method.has_moving_candidates(),
            generated: self.generated(total),
            seed: self.row_seed(total).of_head(layer, 0),
        }
    }

    /// The method's selection for each KV head, independently of the others.
    fn select_per_head(
        &self,
        layer: usize,
        queries: Option<&[f32]>,
        group: usize,
        candidates: Range<usize>,
        states: &mut [Box<dyn Any + Send>],
    ) -> Vec<Selected> {
        let (total, width) = (self.total(layer), group * self.prefix.shape().d);
        let nothing = vec![0.0; width];
        let step_of = |kv_head: usize| {
            let own = queries.map_or(&nothing[..], |queries| &queries[kv_head * width..][..width]);
            let seed = self.row_seed(total).of_head(layer, kv_head);
            let step = Step { kv_head, seed, ..self.step_of(layer, total, own, candidates.clone()) };
            if queries.is_none() {
                return step;
            }
            let kv = HeadKv::new(&self.prefix, &self.tail[layer], layer, kv_head);
            let (keys, values) = (kv.prefix_keys, kv.prefix_values);
            Step { keys, values, tail_keys: kv.tail_keys, tail_values: kv.tail_values, ..step }
        };
        let steps: Vec<Step<'_>> = (0..states.len()).map(step_of).collect();
        let (method, indexes) = (self.method.method.as_ref(), &self.indexes.by_layer[layer]);
        let has_selection_breakdown = self.has_selection_breakdown;
        let select = |((step, index), state): ((&Step<'_>, &Index), &mut Box<dyn Any + Send>)| {
            let mut cost = Cost::default();
            let mut work = || method.select(step, index.as_ref(), state.as_mut(), &mut cost);
            let (selection, parts) =
                if has_selection_breakdown { clock::with_parts(work) } else { (work(), clock::Parts::default()) };
            (Some(selection), cost, ParallelTime { select: parts.sum(), parts })
        };
        let apart = |head| {
            let ((selection, cost, apart), time) = Section::of(|| select(head));
            (selection, cost, ParallelTime { select: apart.select + time, ..apart })
        };
        match candidates.len() < MIN_PARALLEL_TOKENS {
            true => steps.iter().zip(indexes).zip(states).map(select).collect(),
            false => steps.par_iter().zip(indexes).zip(states).map(apart).collect(),
        }
    }

    /// Adds the cost of attending for a group of query heads to `cost`, the cost of its selection.
    fn count(&mut self, layer: usize, kv_head: usize, group: usize, picked: &AttendedTokens, mut cost: Cost) {
        let (total, shape) = (self.total(layer), self.prefix.shape());
        let attended = picked.attended(group, total);
        let summed: usize = attended.iter().sum();
        cost.kv_bytes += (picked.read(total) * shape.row_bytes()) as u64;
        cost.attend_flops += picked.selection.as_ref().map_or(0, |s| s.remainders() * 2 * shape.d) as u64;
        cost.steps += group as u64;
        cost.context_tokens += (group * total) as u64;
        cost.attended_tokens += summed as u64;
        cost.exact_tokens += (group * picked.exact.tokens(total)) as u64;
        let has_rule = matches!(self.method.method.tail_rule(), TailRule::Own(_));
        if !self.dense[layer] && !self.method.has_moving_candidates() && !has_rule {
            cost.free_tokens += (group * (self.tail_tokens[layer] - 1)) as u64;
        }
        let per_token = attend_flops(shape.d);
        cost.attend_flops += per_token * summed as u64;
        cost.full_flops += per_token * (group * total) as u64;
        self.costs.count_heads(layer, kv_head * group, &attended, total);
        *self.costs.layer_mut(layer) += cost;
    }

    /// The scaled queries, at the positions that the method asks for.
    fn placed(&self, queries: &[f32], kv: &HeadKv<'_>, exact: StaticTokens) -> Queries<'_> {
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

/// FLOPs of attending one token by one query head.
fn attend_flops(d: usize) -> u64 {
    4 * d as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PromptShape;
    use crate::calibration::collector::PrefillChunk;
    use crate::decode::index_cache::has_fixed_candidates;
    use crate::kv::{DeviceFailure, KvDtype};
    use crate::{PromptNeed, PromptStats};

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

    /// Forks of one prefix of a layer with two KV heads, and a function that makes a row's queries, key and value.
    fn forks<const N: usize>(spec: &str, fidelity: bool) -> ([Sequence; N], impl Fn(u64) -> [Vec<f32>; 3]) {
        let noise = |count: usize, seed: u64| -> Vec<f32> {
            (0..count as u64).map(|i| ((i * 37 + seed * 101) as f32 * 0.61).sin()).collect()
        };
        let mut kv = LayerKv::new(KvDtype::F32, 2, D, TOKENS);
        (0..TOKENS as u64).for_each(|t| kv.append(&noise(2 * D, 50 + t), &noise(2 * D, 80 + t)));
        let spec = crate::expand_grid(spec).unwrap().remove(0);
        let method =
            crate::methods::configure(&spec, &crate::Policy { sink: 1, local: 2, ..Default::default() }).unwrap();
        let mut cache = IndexCache::new(Prefix::new(vec![kv]), KvDtype::F32, 1);
        let row = move |i: u64| [noise(4 * D, 10 + i), noise(2 * D, 20 + i), noise(2 * D, 30 + i)];
        (std::array::from_fn(|_| cache.fork(&method, fidelity)), row)
    }

    /// With 40 tokens behind a prefix of 500 the mean context is 520. Tokens that a moving window leaves behind can be selected.
    #[test]
    fn what_is_set_once_is_set_for_the_mean_of_the_tokens_that_follow() {
        use crate::{Policy, Tail};
        let configured = |spec: &str, policy: &Policy| {
            let spec = crate::expand_grid(spec).unwrap().remove(0);
            crate::methods::configure(&spec, policy).unwrap()
        };
        let (tokens, policy) = (500, Policy { sink: 4, local: 16, ..Policy::default() });
        let mut kv = LayerKv::new(KvDtype::F32, 1, 16, tokens);
        (0..tokens).for_each(|_| kv.append(&[0.5; 16], &[0.5; 16]));
        let cache = IndexCache::new(Prefix::new(vec![kv]), KvDtype::F32, 1).with_prompt(510).with_given(30);
        let context = |spec: &str, policy: &Policy| {
            let context = cache.mean_context(&configured(spec, policy));
            (context.tokens, context.fixed)
        };
        assert_eq!(context("topk", &policy), (520, 4 + 16 + 20));
        assert_eq!(context("topk", &Policy { tail: Tail::Window(16), ..policy.clone() }), (520, 4 + 16));
        assert_eq!(context("tova", &policy), (520, 4 + 1));
        assert_eq!(context("snapkv:window=32", &policy), (520, 4 + 32 + 20));
        let one = IndexCache::new(cache.prefix.clone(), KvDtype::F32, 1);
        assert_eq!(one.mean_context(&configured("topk", &policy)).tokens, 501, "the first token of an answer");
    }

    #[test]
    fn kv_heads_on_threads_of_their_own_attend_what_is_theirs() {
        const LONG: usize = MIN_PARALLEL_TOKENS + 3;
        let noise = |count: usize, seed: u64| -> Vec<f32> {
            (0..count as u64).map(|i| ((i * 37 + seed * 101) as f32 * 0.61).sin()).collect()
        };
        let (kv_heads, group) = (3, 2);
        let row = |t: usize| [noise(kv_heads * D, 50 + t as u64), noise(kv_heads * D, 900_000 + t as u64)];
        let rows: Vec<[Vec<f32>; 2]> = (0..=LONG).map(row).collect();
        let mut kv = LayerKv::new(KvDtype::F32, kv_heads, D, LONG);
        rows[..LONG].iter().for_each(|[key, value]| kv.append(key, value));
        let queries = noise(kv_heads * group * D, 7);
        // One sink, two tokens of the window and the last token are attended besides the selection.
        let policy = crate::Policy { sink: 1, local: 2, ..Default::default() };
        let candidates = 1..LONG - 2;
        let expected = |k: usize| -> Vec<f64> {
            let head = |(head, query): (usize, &[f32])| {
                let own =
                    |row: &[f32]| row[head / group * D..][..D].iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
                let logit = |[key, _]: &[Vec<f32>; 2]| -> f64 {
                    own(key).iter().zip(query).map(|(k, q)| k * f64::from(*q)).sum::<f64>() / (D as f64).sqrt()
                };
                let logits: Vec<f64> = rows.iter().map(logit).collect();
                let mut picked: Vec<usize> = candidates.clone().collect();
                picked.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
                picked.truncate(k);
                let attended = (0..=LONG).filter(|t| !candidates.contains(t)).chain(picked);
                let (mut out, mut sum) = (vec![0.0; D], 0.0);
                for t in attended {
                    sum += logits[t].exp();
                    out.iter_mut().zip(own(&rows[t][1])).for_each(|(o, v)| *o += logits[t].exp() * v);
                }
                out.into_iter().map(|o| o / sum).collect::<Vec<f64>>()
            };
            queries.chunks_exact(D).enumerate().flat_map(head).collect()
        };
        let mut cache = IndexCache::new(Prefix::new(vec![kv]), KvDtype::F32, 1);
        let [key, value] = &rows[LONG];
        for (spec, k) in [("full", LONG), ("topk:k=5000", LONG), ("topk:k=40", 40), ("random:k=5000", LONG)] {
            let method = crate::expand_grid(spec).unwrap().remove(0);
            let method = crate::methods::configure(&method, &policy).unwrap();
            let mut out = vec![f32::NAN; queries.len()];
            cache.fork(&method, false).step(0, &queries, key, value, &mut out);
            for (ours, expected) in out.iter().zip(expected(k)) {
                assert!((f64::from(*ours) - expected).abs() < 1e-4, "{spec}: {ours} for {expected}");
            }
        }
    }

    #[test]
    fn what_is_attended_is_counted_by_head_and_token() {
        let ([mut fork], row) = forks("topk:k=3", false);
        for i in 0..2 {
            let [queries, key, value] = row(i);
            fork.step(0, &queries, &key, &value, &mut [0.0; 4 * D]);
        }
        let cost = &fork.costs().layers()[0];
        // With 13 and then 14 tokens in context, each of four heads attends a sink, two tokens of the window, three selected ones, and the
        // one or two behind the prefix. In the second step, the first token behind the prefix is free: it is neither the new token nor
        // within the budget.
        let (context, attended) = (4 * (13 + 14), 4 * (7 + 8));
        assert_eq!(
            (cost.steps, cost.context_tokens, cost.attended_tokens, cost.free_tokens),
            (8, context, attended, 4)
        );
        // All tokens but three selected ones per head and step are attended exactly whatever is selected.
        assert_eq!(cost.exact_tokens, attended - 4 * 2 * 3);
        // One product with a key and one with a value.
        let each = 2 * 2 * D as u64;
        assert_eq!((cost.attend_flops, cost.full_flops), (each * attended, each * context));
    }

    #[test]
    fn every_head_is_compared_once_at_its_own_place() {
        // Everything is selected: nothing differs from exact attention, and no mass is missed.
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
        let picked: Vec<Vec<AttendedTokens>> =
            rows.iter().map(|[queries, key, value]| split.select(0, queries, key, value)).collect();
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
            assert!(!unseen.selects_at(0), "{spec}");
            for [queries, key, value] in (0..3).map(row) {
                let picked = seen.select(0, &queries, &key, &value);
                assert!(picked.iter().all(|picked| picked.selection.is_none()));
                assert_eq!(unseen.attend_static_only(0, 4), picked[0].exact, "{spec}");
            }
            assert_eq!((unseen.tokens(), unseen.costs()), (seen.tokens(), seen.costs()), "{spec}");
        }
        let ([picks], _) = forks("topk:k=3", false);
        assert!(picks.selects_at(0) && picks.selects_on_host());
    }

    #[test]
    fn what_is_drawn_without_a_look_is_what_a_step_picks_and_costs() {
        for spec in [
            "random:k=3",
            "random:ratio=0.3",
            "random:density=0.6",
            "random:k=3,per=kv_head",
            "random:k=50",
            "random:k=0",
            "random:k=3,tail=indexed",
            "topk:k=0",
            "topk:k=0,per=kv_head",
        ] {
            let ([mut seen, mut drawn], row) = forks(spec, false);
            assert_eq!(drawn.selection_site(0), SelectionSite::DataIndependent, "{spec}");
            for [queries, key, value] in (0..4).map(row) {
                assert_eq!(drawn.select_without_queries(0, 4), seen.select(0, &queries, &key, &value), "{spec}");
            }
            assert_eq!((drawn.tokens(), drawn.costs()), (seen.tokens(), seen.costs()), "{spec}");
            assert_eq!((drawn.aux_bits(), drawn.kv_bytes_held()), (seen.aux_bits(), seen.kv_bytes_held()), "{spec}");
            assert!(drawn.selects_on_host());
        }
        let ([watched], _) = forks("random:k=3", true);
        assert_eq!(watched.selection_site(0), SelectionSite::Host, "it is compared with exact attention");
    }

    #[test]
    fn a_step_left_to_a_device_costs_what_it_costs_the_host_once_it_is_settled() {
        for spec in [
            "topk:k=3",
            "topk:k=50",
            "topk:ratio=0.3",
            "topk:density=0.6",
            "topk:k=3,per=kv_head",
            "topk:k=3,per=kv_head,reduce=max",
            "quest:page=2,k=3",
            "quest:page=5,k=4",
            "quest:page=5,k=50",
            "quest:page=2,k=1,min_pages=3",
            "quest:page=5,k=4,per=kv_head,reduce=max",
        ] {
            let ([mut seen, mut left], row) = forks(spec, false);
            left.on_device = true;
            assert_eq!(
                (seen.selection_site(0), left.selection_site(0)),
                (SelectionSite::Host, SelectionSite::Device),
                "{spec}"
            );
            for steps in [0..3, 3..4] {
                // The device's counters: tokens read by two KV heads, tokens attended by four query heads, index entries read.
                let mut counted = [0; 7];
                for [queries, key, value] in steps.map(&row) {
                    let picked = seen.select(0, &queries, &key, &value);
                    assert_eq!(left.select_on_device(0, 4), picked[0].exact, "{spec}");
                    let total = seen.tokens();
                    for (kv_head, picked) in picked.iter().enumerate() {
                        let fixed = picked.exact.tokens(total);
                        counted[kv_head] += (picked.read(total) - fixed) as u64;
                        let heads = counted[2 + 2 * kv_head..].iter_mut().zip(picked.attended(2, total));
                        heads.for_each(|(sum, attended)| *sum += (attended - fixed) as u64);
                    }
                }
                assert!(left.has_uncollected_counters());
                left.collect_device_counters(&counted);
                assert!(!left.has_uncollected_counters());
                assert_eq!((left.tokens(), left.costs()), (seen.tokens(), seen.costs()), "{spec}");
                assert_eq!(left.kv_bytes_held(), seen.kv_bytes_held(), "{spec}");
            }
            assert!(seen.selects_on_host() && !left.selects_on_host(), "{spec}");
        }
    }

    #[test]
    fn a_method_has_a_form_on_a_device_if_all_of_its_parts_have() {
        let form = |spec: &str| {
            let ([fork], _) = forks(spec, false);
            fork.method().method.device_form().is_some()
        };
        for spec in [
            "topk:k=3",
            "topk:per=kv_head",
            "quest",
            "quest:k=3,min_pages=2",
            "topp:density=0.5",
            "topk:pick=topp",
            "sparq:k=3,r=2",
        ] {
            assert!(form(spec), "{spec}");
        }
        for spec in [
            "full",
            "random",
            "topk:k=0",
            "sparq:storage=1xK",
            "topk:pick=sample",
            "topk:rescore=int4",
            "quest:summary_bits=4",
            "quest:rescore=exact",
        ] {
            assert!(!form(spec), "{spec}");
        }
    }

    #[test]
    fn what_is_picked_for_together_differs_in_budgets_alone() {
        let policy = crate::Policy::default();
        let method = |spec: &str| {
            let spec = crate::expand_grid(spec).unwrap().remove(0);
            crate::methods::configure(&spec, &policy).unwrap()
        };
        for (a, b, together) in [
            ("topk:k=3", "topk:k=5", true),
            ("topk:k=3", "topk:density=0.1", true),
            ("topk:ratio=0.1,reduce=max,per=kv_head", "topk:k=3,per=kv_head,reduce=max", true),
            ("topk:k=3", "topk:k=3,per=kv_head", false),
            ("topk:per=kv_head", "topk:per=kv_head,reduce=max", false),
            ("topk:k=3", "topk:pick=topp,p=0.5", false),
            ("topk:k=3", "quest:k=3", false),
            // Parameters of the comparison with queries must agree too.
            ("sparq:k=3,r=4", "sparq:k=5,r=4", true),
            ("sparq:k=3,r=4", "sparq:k=3,r=8", false),
            ("lsh_bits:k=3", "lsh_bits:ratio=0.1", true),
            ("lsh_bits:k=3", "lsh_bits:k=3,ties=first", false),
            ("hash_attention:k=3", "hash_attention:k=3,ties=first", false),
            ("magicpig:K=4,L=12", "magicpig:K=4,L=12,min_collisions=1", false),
            // Selections by share, samples, searches and evictions have no budget that is a number of rows.
            ("topp:p=0.5", "topp:p=0.6", false),
            ("topp:p=0.5", "topp:p=0.5", true),
            ("oracle_sampling:budget=3", "oracle_sampling:budget=4", false),
            ("hip:k=16", "hip:k=32", false),
            ("hip:k=16", "hip:k=16,r_m=1", false),
            ("h2o:k=3", "h2o:k=5", false),
        ] {
            assert_eq!([(a, b), (b, a)].map(|(a, b)| method(a).picks_with(&method(b))), [together; 2], "{a} with {b}");
        }
        let number =
            |spec: &str| method(spec).method.device_form().unwrap().budget_units(Context::new(TOKENS + 1, &(1..9)), 8);
        // Budgets end at the number of candidates: eight tokens, or four pages of two.
        assert_eq!(["topk:k=3", "topk:k=5", "topk:k=50"].map(number), [3, 5, 8]);
        let of_pages = ["quest:page=2,k=3", "quest:page=2,k=1,min_pages=3", "quest:page=2,k=100"];
        assert_eq!(of_pages.map(number), [2, 3, 4]);
    }

    /// A prefix held by a device that is no GPU.
    #[derive(Debug)]
    struct Elsewhere;

    impl crate::kv::DeviceKv for Elsewhere {
        fn shape(&self) -> crate::kv::KvShape {
            crate::kv::KvShape { kv_heads: 2, d: D, dtype: KvDtype::F32 }
        }

        fn copy_layer(&self, _: usize) -> Result<LayerKv, DeviceFailure> {
            Ok(LayerKv::zeros(self.shape(), TOKENS))
        }
    }

    #[test]
    fn a_device_picks_for_methods_that_can_and_only_where_nobody_looks() {
        let policy = crate::Policy { sink: 1, local: 2, ..Default::default() };
        let fork = |spec: &str, fidelity: bool, on_host: bool| {
            let spec = crate::expand_grid(spec).unwrap().remove(0);
            let method = crate::methods::configure(&spec, &policy).unwrap();
            let cache = IndexCache::new(Prefix::on_device(1, TOKENS, Box::new(Elsewhere)), KvDtype::F32, 1);
            if on_host { cache.selecting_on_host() } else { cache }.fork(&method, fidelity)
        };
        let there = cfg!(feature = "cuda");
        assert_eq!(fork("topk:k=3", false, false).selects_on_device(), there);
        assert_eq!(fork("quest:k=3", false, false).selects_on_device(), there);
        for (spec, fidelity, on_host) in [
            ("topk:k=3", true, false),
            ("topk:k=3", false, true),
            ("topk:k=3,tail=indexed", false, false),
            ("topk:pick=sample", false, false),
            ("random:k=3", false, false),
            ("full", false, false),
        ] {
            assert!(!fork(spec, fidelity, on_host).selects_on_device(), "{spec}");
        }
        let stays = |spec: &str| {
            let spec = crate::expand_grid(spec).unwrap().remove(0);
            has_fixed_candidates(&crate::methods::configure(&spec, &policy).unwrap())
        };
        assert!(stays("quest:k=3") && stays("quest:k=3,local=0"));
        for filled in ["quest:preset=paper", "quest:preset=repo", "quest:k=3,local=0,tail=window:5"] {
            assert!(!stays(filled), "{filled}: the host picks where pages are filled");
        }
        let dense = fork("topk:k=3,dense_layers=0", false, false);
        assert_eq!((dense.selection_site(0), dense.selects_on_host()), (SelectionSite::None, false));
    }
}

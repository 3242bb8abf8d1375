//! One sequence: a method decoding from a shared prefix.
//!
//! It owns a short tail of keys and values and the method's state; the prefix and the indexes over it are shared. All methods run through
//! the same code. `layer_step` has the steps of engines that attend by themselves, and `sequence_costs` counts the costs of a sequence.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rayon::prelude::*;

use crate::backend::form::{DeviceForm, StepShape};
use crate::backend::index::DeviceIndex;
use crate::configured::Configured;
use crate::cost::LayerCosts;
use crate::decode::fidelity::{FidelityMeter, Place};
use crate::decode::head_kv::{HeadKv, Queries};
use crate::decode::index_cache::{Index, IndexCache, IndexSet, depth};
use crate::decode::queries_ahead::QueriesAhead;
use crate::decode::timing::{AttentionTime, IndexTime};
use crate::kv::{KvError, KvReads, KvRows, LayerKv, PageLedger, Prefix, TierBytes};
use crate::method::Step;
use crate::types::budget::Context;
use crate::types::policy::Tail;
use crate::types::positions::{GIVEN_ROTATION, Positions, Rotation};
use crate::types::prefix_head::KvHeadId;
use crate::types::seed::RowSeed;
use crate::types::selection::{AttendedTokens, SelectionCounts, StaticTokens};
use spattn_base::clock::Section;
use spattn_kernels::Rows;

/// One sequence: a method decoding from a shared prefix.
pub struct Sequence {
    pub(super) method: Configured,
    pub(super) solved: Option<String>,
    /// The prefix as it is stored for the method.
    pub(super) prefix: Arc<Prefix>,
    /// The prefix as the model computed it; outputs are compared with exact attention over it.
    pub(super) exact_prefix: Arc<Prefix>,
    pub(super) rotation: Option<Arc<dyn Rotation>>,
    pub(super) indexes: Arc<IndexSet>,
    pub(super) states: Vec<Vec<Box<dyn Any + Send>>>,
    /// Keys and values after the prefix, of the layers for which the host selects tokens.
    pub(super) tail: Vec<LayerKv>,
    /// For layers whose selection is [fixed](super::layer_step::SelectionSite::Fixed), what each KV head selected; empty until the first
    /// step.
    pub(super) fixed: Vec<Vec<SelectionCounts>>,
    /// Number of tokens after the prefix that each layer has seen.
    pub(super) tail_tokens: Vec<usize>,
    pub(super) device: Option<Box<dyn Any + Send>>,
    pub(super) selector: Selector,
    pub(super) dense: Vec<bool>,
    pub(super) prefix_candidates: Range<usize>,
    pub(super) prompt_tokens: usize,
    pub(super) seed: u64,
    pub(super) costs: LayerCosts,
    pub(super) fidelity: Option<FidelityMeter>,
    pub(super) index_time: IndexTime,
    /// What solving for a density read, if the prefix cannot be borrowed.
    pub(super) solve_reads: KvReads,
    /// The queries by which tokens are selected ahead.
    pub(super) ahead: QueriesAhead,
    /// Whether misses of selections ahead are counted.
    pub(super) counts_misses: bool,
    /// The ledger of the prefix's pages, if its source reads pages.
    pub(super) pages: Option<PageLedger>,
    pub(super) attention_time: AttentionTime,
    /// Whether the time of any step could not be split into attention and the rest.
    pub(super) has_whole_steps: bool,
    /// Whether selection time is split into scoring and selecting.
    pub(super) has_selection_breakdown: bool,
}

/// What selects the tokens of a sequence, with the state needed for it.
pub(super) enum Selector {
    /// The host.
    Host,
    /// The device that holds the prefix, which counts the tokens that it selects.
    Device {
        /// Whether counters of the device are still to be collected.
        has_uncollected: bool,
        /// Evictable tokens still resident per layer, summed over KV heads; `None` until they are
        /// [set](Sequence::set_resident_tokens).
        resident: Vec<Option<usize>>,
    },
}

impl Selector {
    /// Selection on the device, for a model of this many layers.
    pub(super) fn device(layers: usize) -> Self {
        Self::Device { has_uncollected: false, resident: vec![None; layers] }
    }
}

/// Context length from which the KV heads of a layer run on separate threads; below it, starting threads costs more than it saves.
pub(super) const MIN_PARALLEL_TOKENS: usize = 4096;

/// Number of tokens after the prefix for which the tail has room before it must grow.
const TAIL_CAPACITY: usize = 64;

impl Sequence {
    pub(super) fn new(
        cache: &IndexCache,
        prefix: Arc<Prefix>,
        method: Configured,
        (indexes, index_time): (Arc<IndexSet>, IndexTime),
        prefix_candidates: Range<usize>,
        dense: Vec<bool>,
        fidelity: bool,
    ) -> Self {
        let (layers, shape) = (prefix.layers(), prefix.shape());
        let start = |index: &Index| method.method.start(index.as_ref());
        let of_layer = |heads: &Vec<Index>| {
            let mut states: Vec<_> = heads.iter().map(start).collect();
            method.method.coordinate_heads(&mut states);
            states
        };
        let states = indexes.by_layer.par_iter().map(of_layer).collect();
        let tail = (0..layers).map(|_| LayerKv::new(cache.dtype, shape.kv_heads, shape.d, TAIL_CAPACITY)).collect();
        let costs = cache.read.clone().unwrap_or_else(|| LayerCosts::new(layers));
        Self {
            rotation: cache.rotation.clone(),
            method,
            solved: None,
            indexes,
            states,
            tail,
            fixed: vec![Vec::new(); layers],
            tail_tokens: vec![0; layers],
            device: None,
            selector: Selector::Host,
            dense,
            prefix_candidates,
            prompt_tokens: cache.prompt_tokens,
            seed: cache.step_seed,
            costs,
            fidelity: fidelity.then(|| FidelityMeter::new(layers)),
            index_time,
            solve_reads: KvReads::default(),
            ahead: QueriesAhead::default(),
            counts_misses: false,
            pages: prefix.source().paging().map(PageLedger::new),
            attention_time: AttentionTime::default(),
            has_whole_steps: false,
            has_selection_breakdown: false,
            prefix,
            exact_prefix: cache.prefix.clone(),
        }
    }

    /// The method that this sequence decodes with.
    pub fn method(&self) -> &Configured {
        &self.method
    }

    /// The parameter solved for the requested density, as `key=value,...`; `None` if there was nothing to solve.
    pub fn solved(&self) -> Option<&str> {
        self.solved.as_deref()
    }

    /// Number of tokens in context: prefix and tail.
    pub fn tokens(&self) -> usize {
        self.total(0)
    }

    /// Costs so far, by layer. Selections on a device are included once [their counters are
    /// collected](Self::collect_device_counters).
    pub fn costs(&self) -> &LayerCosts {
        debug_assert!(!self.has_uncollected_counters(), "counters are collected before costs are read");
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

    /// Build time of this sequence's index, whether it was built for this sequence or an earlier one.
    pub fn index_time(&self) -> IndexTime {
        self.index_time
    }

    /// Attention time of this sequence's steps.
    pub fn attention_time(&self) -> AttentionTime {
        self.attention_time
    }

    /// Whether the time of any step could not be split into attention and the rest.
    pub fn has_whole_steps(&self) -> bool {
        self.has_whole_steps
    }

    /// Whether the method counts the costs of its index and of finding tokens.
    pub fn counts_costs(&self) -> bool {
        self.method.method.counts_costs()
    }

    /// Auxiliary memory of the shared index and of the sequence's own state: bits per indexed token and KV head, mean
    /// over the sparse layers; 0 if all layers are dense.
    pub fn aux_bits(&self) -> f64 {
        let method = self.method.method.as_ref();
        let there = self.indexes.on_device.iter().flatten().map(DeviceIndex::host_bytes);
        let here = self.indexes.by_layer.iter().flatten().map(|index| method.index_bytes(index.as_ref()));
        let shared = here.chain(there).sum::<usize>();
        let own: usize = self.states.iter().flatten().map(|state| method.state_bytes(state.as_ref())).sum();
        let own = own + self.grown_bytes();
        let tokens = if self.method.has_moving_candidates() { self.tokens() } else { self.prefix.tokens() };
        let sparse = self.dense.iter().filter(|dense| !**dense).count();
        let rows = sparse * self.prefix.shape().kv_heads * tokens.max(1);
        (shared + own) as f64 * 8.0 / rows.max(1) as f64
    }

    /// Bytes that the host would need for the sequence's own indexes, if a device selects.
    fn grown_bytes(&self) -> usize {
        let (shape, candidates) = (self.prefix.shape(), self.device_candidates(self.tokens()).len());
        let of_layer = |(layer, index): (usize, &Option<DeviceIndex>)| {
            let (form, _) = index.as_ref().and_then(|_| self.device_form(layer))?;
            let scale = self.prefix.spec(layer).scale;
            let head = KvHeadId { layer, kv_head: 0, d: shape.d, scale, dtype: shape.dtype };
            Some(shape.kv_heads * form.grown_bytes(head, self.prefix_candidates.len(), candidates))
        };
        self.indexes.on_device.iter().enumerate().filter_map(of_layer).sum()
    }

    /// Bits of a token's key and value in a KV head in the model's storage type. [`aux_bits`](Self::aux_bits) are compared with them,
    /// whatever the storage type of the prefix.
    pub fn kv_bits(&self) -> u32 {
        8 * self.prefix.shape().row_bytes() as u32
    }

    /// Performs one decode step of one layer: stores the token's key and value (`[kv_heads][d]`, rotated) and attends its queries
    /// (`[heads][d]`, rotated, unscaled) into `out` (`[heads][d]`).
    ///
    /// # Errors
    /// If keys and values of the prefix cannot be read. The step is then half done, and the sequence is unusable.
    pub fn step(
        &mut self,
        layer: usize,
        queries: &[f32],
        key: &[f32],
        value: &[f32],
        out: &mut [f32],
    ) -> Result<(), KvError> {
        let mut section = Section::begin();
        let (picked, apart) = self.select_timed(layer, queries, key, value)?;
        let select = section.lap() + apart.select;
        let width = queries.len() / picked.len();
        let of_head = |(kv_head, (queries, picked)): (usize, (_, &AttendedTokens))| {
            let kv = HeadKv::new(&self.prefix, &self.tail[layer], layer, kv_head)?;
            let placed = self.placed(queries, &kv, picked.exact);
            Ok((kv, placed))
        };
        let heads = queries.chunks_exact(width).zip(&picked).enumerate().map(of_head);
        let heads: Vec<_> = heads.collect::<Result<_, KvError>>()?;
        let attend = |((out, (kv, queries)), picked): ((&mut [f32], &(HeadKv<'_>, Queries<'_>)), &AttendedTokens)| {
            kv.attend(queries, picked, out)
        };
        let elsewhere = match self.total(layer) < MIN_PARALLEL_TOKENS {
            true => {
                out.chunks_exact_mut(width).zip(&heads).zip(&picked).try_for_each(attend)?;
                Duration::ZERO
            }
            false => {
                let work = out.par_chunks_exact_mut(width).zip(&heads).zip(&picked);
                let timed = |head| {
                    let (attended, time) = Section::of(|| attend(head));
                    attended.map(|()| time)
                };
                work.map(timed).collect::<Result<Vec<_>, _>>()?.into_iter().sum()
            }
        };
        let read: Vec<_> = heads.iter().map(|(kv, _)| (kv.reads.reads().fetched, kv.reads.take_pages())).collect();
        drop(heads);
        for (kv_head, (mut fetched, pages)) in read.into_iter().enumerate() {
            fetched += self.count_pages(layer, kv_head, &pages);
            self.costs.layer_mut(layer).fetched += fetched;
        }
        let attend = section.lap() + elsewhere;
        self.compare(layer, queries, &picked, self.total(layer), out)?;
        let compare = match self.counts_misses_at(layer) {
            true => self.count_misses(layer, queries, &picked)? + section.end(),
            false if self.fidelity.is_some() => section.end(),
            false => Duration::ZERO,
        };
        self.attention_time +=
            AttentionTime { select, parts: apart.parts, attend, compare, ..AttentionTime::default() };
        Ok(())
    }

    /// Counts the bytes, by tier, of the pages of a KV head that a step requested, in the order of its requests.
    pub(super) fn count_pages(&mut self, layer: usize, kv_head: usize, pages: &[Range<u32>]) -> TierBytes {
        self.pages.as_mut().map_or_else(TierBytes::default, |ledger| ledger.count(layer, kv_head, pages))
    }

    /// The shape of a step with `group` query heads per KV head, a budget in the method's own units, no static tokens, and the candidates
    /// of the prefix.
    pub fn step_shape(&self, group: usize, number: u32) -> StepShape {
        let shape = self.prefix.shape();
        let candidates = self.prefix_candidates.len();
        StepShape { group, d: shape.d, dtype: shape.dtype, candidates, all_candidates: candidates, exact: 0, number }
    }

    /// Whether the device makes a new selection when `total` tokens are in context; otherwise the token attends the last selection.
    pub fn selects_anew(&self, total: usize) -> bool {
        let refresh = self.method.method.device_form().map_or(1, DeviceForm::refresh);
        self.generated(total).is_multiple_of(refresh)
    }

    /// Whether some tokens attend an earlier selection of the device.
    pub fn reuses_selections(&self) -> bool {
        self.method.method.device_form().is_ok_and(|form| form.refresh() > 1)
    }

    /// Number of tokens generated before the last of `total`.
    pub(super) fn generated(&self, total: usize) -> usize {
        (total - 1).saturating_sub(self.prompt_tokens)
    }

    /// Whether one launch on the device can select for rows of both sequences.
    pub fn selects_together_with(&self, other: &Sequence) -> bool {
        let share_index = Arc::ptr_eq(&self.indexes, &other.indexes);
        self.selects_on_device() && other.selects_on_device() && share_index && self.method.picks_with(&other.method)
    }

    /// The method's device form and the device index of a sparse layer; `None` if the host selects.
    pub fn device_form(&self, layer: usize) -> Option<(&dyn DeviceForm, &DeviceIndex)> {
        let index = self.indexes.on_device[layer].as_ref().filter(|_| self.selects_on_device())?;
        Some((self.method.method.device_form().ok()?, index))
    }

    /// Tokens of the prefix that may be selected.
    pub fn prefix_candidates(&self) -> Range<usize> {
        self.prefix_candidates.clone()
    }

    /// Whether tokens after the prefix become candidates on a device.
    pub fn device_candidates_move(&self) -> bool {
        self.method.policy.tail != Tail::Exact && !self.method.method.manages_decoded_tokens()
    }

    /// The candidates from which a device selects when `total` tokens are in context.
    pub fn device_candidates(&self, total: usize) -> Range<usize> {
        if !self.device_candidates_move() {
            return self.prefix_candidates.clone();
        }
        let exact = self.method.method.exact(&self.method.policy, self.prefix.tokens(), total);
        self.prefix_candidates.start..exact.recent.max(self.prefix_candidates.end)
    }

    /// The budget of a layer at a step with `total` tokens in context, in the method's own units (tokens, pages, blocks); 0 if the layer
    /// selects nothing on a device.
    pub fn budget_units(&self, layer: usize, total: usize) -> u32 {
        let candidates = self.device_candidates(total);
        let share = self.method.policy.schedule.share(&self.dense, layer);
        let context = Context::new(total, &candidates).at(share);
        self.method.method.device_form().map_or(0, |form| form.budget_units(context, candidates.len()))
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

    /// Whether the host needs queries, keys and values at every layer, even where nothing is selected: to measure fidelity, or because it
    /// attends by itself.
    pub fn needs_host(&self) -> bool {
        self.fidelity.is_some() || self.moves_positions()
    }

    /// Whether tokens are attended at positions other than their own. Only [`step`](Self::step) can do that.
    pub fn moves_positions(&self) -> bool {
        self.method.method.positions() != Positions::Original
    }

    /// Performs the second half of a [`step`](Self::step) if fidelity is measured: compares the output with exact attention over `total`
    /// tokens, with keys and values as the model computed them. The host must hold them.
    ///
    /// # Errors
    /// If keys and values of the prefix cannot be read.
    pub fn compare(
        &mut self,
        layer: usize,
        queries: &[f32],
        picked: &[AttendedTokens],
        total: usize,
        out: &[f32],
    ) -> Result<(), KvError> {
        let Some(mut meter) = self.fidelity.take() else { return Ok(()) };
        let group = queries.len() / picked.len();
        let heads = queries.chunks_exact(group).zip(out.chunks_exact(group)).zip(picked);
        for (kv_head, ((queries, out), picked)) in heads.enumerate() {
            let kv = HeadKv::new(&self.exact_prefix, &self.tail[layer], layer, kv_head)?.up_to(total);
            meter.compare(Place { layer, first_head: kv_head * group / kv.d }, &kv, queries, picked, out)?;
        }
        self.fidelity = Some(meter);
        Ok(())
    }

    /// What building the index and solving for a density read, if the prefix cannot be borrowed, and the largest buffer that this took.
    /// An index that sequences share counts for each of them.
    pub fn index_reads(&self) -> KvReads {
        let mut reads = self.indexes.reads;
        reads.add(self.solve_reads);
        reads
    }

    /// The slot for the data that an engine keeps on its device for this sequence.
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

    /// Removes the time added since `earlier` and returns it, for engines that attribute a device's time themselves.
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
    pub(super) fn total(&self, layer: usize) -> usize {
        self.prefix.tokens() + self.tail_tokens.get(layer).copied().unwrap_or(0)
    }

    /// The static tokens of a layer.
    pub(super) fn exact(&self, layer: usize) -> StaticTokens {
        match self.dense[layer] {
            true => StaticTokens { sink: 0, recent: self.first_visible(layer) },
            false => {
                let total = self.total(layer);
                let exact = self.method.method.exact(&self.method.policy, self.prefix.tokens(), total);
                self.prefix.spec(layer).visible_static(exact, total)
            }
        }
    }

    /// Returns the first token that the last one sees at a layer.
    pub(super) fn first_visible(&self, layer: usize) -> usize {
        self.prefix.spec(layer).first_visible(self.total(layer))
    }

    /// The candidates: tokens that may be selected besides the static ones. In a layer with a window, they include candidates that have
    /// left the window since the prefix was read.
    pub(super) fn candidates(&self, layer: usize, exact: StaticTokens) -> Range<usize> {
        if self.method.has_moving_candidates() { exact.sink..exact.recent } else { self.indexed(layer) }
    }

    /// The candidates in the index of a layer.
    fn indexed(&self, layer: usize) -> Range<usize> {
        self.prefix.spec(layer).visible_candidates(self.prefix_candidates.clone(), self.prefix.tokens())
    }

    /// A step at a layer, for the first KV head, without keys and values.
    pub(super) fn step_of<'a>(
        &'a self,
        layer: usize,
        total: usize,
        queries: &'a [f32],
        candidates: Range<usize>,
    ) -> Step<'a> {
        let (shape, none) = (self.prefix.shape(), Rows::F32(&[]));
        let nothing = KvRows::none(shape.d);
        let depth = depth(&self.dense, layer, &self.method.policy.schedule);
        Step {
            layer,
            depth,
            kv_head: 0,
            queries,
            d: shape.d,
            scale: self.prefix.spec(layer).scale,
            keys: nothing,
            values: nothing,
            tail_keys: none,
            tail_values: none,
            dtype: shape.dtype,
            indexed: self.indexed(layer),
            context: self.context_of(layer, total, &candidates).at(depth.share),
            candidates,
            grouped: self.method.method.positions().grouped(self.rotation.as_deref()),
            has_moving_candidates: self.method.has_moving_candidates(),
            generated: self.generated(total),
            seed: self.row_seed(total).of_head(layer, 0),
        }
    }

    /// The context from which budgets of a layer are computed, with `total` tokens in context.
    fn context_of(&self, layer: usize, total: usize, candidates: &Range<usize>) -> Context {
        let first = self.prefix.spec(layer).first_visible(total);
        let seen = candidates.start.max(first)..candidates.end.max(first);
        Context::new(total, &seen).hiding(first)
    }

    /// The scaled queries, at the positions that the method requires.
    fn placed(&self, queries: &[f32], kv: &HeadKv<'_>, exact: StaticTokens) -> Queries<'_> {
        let scaled = Queries::new(queries, kv.spec.scale);
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

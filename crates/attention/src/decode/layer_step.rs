//! One decode step of a sequence at one layer, for engines that attend by themselves: what is to be done, as a type that
//! allows nothing else.
//!
//! [`Sequence::begin_step`] says by what the tokens are selected. Each case is a value with the only method that is legal
//! there; it takes the value, so a step is finished at most once. A step that is begun and not finished changes nothing.

use std::any::Any;
use std::ops::Range;
use std::time::Duration;

use rayon::prelude::*;

use crate::backend::form::StepShape;
use crate::cost::Cost;
use crate::decode::head_kv::{HeadKv, Queries};
use crate::decode::index_cache::{HAS_FORM, Index};
use crate::decode::sequence::{MIN_PARALLEL_TOKENS, Selector, Sequence};
use crate::decode::timing::{AttentionTime, ParallelTime};
use crate::kv::{KvError, KvHead, KvPart, KvRows, KvShape, ReadCounter};
use crate::method::Step;
use crate::scored::granularity::try_each_head;
use crate::types::selection::{AttendedTokens, Selection, SelectionCounts, StaticTokens};
use spattn_base::clock;
use spattn_base::clock::Section;

/// Where the tokens of a layer are selected, for engines that attend by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelectionSite {
    /// Nowhere: only static tokens are attended.
    None,
    /// On the host, from positions alone: queries, keys and values are not needed.
    DataIndependent,
    /// Nowhere any more: the tokens that were selected when the sequence started are attended in all steps.
    Fixed,
    /// On the device that holds the prefix.
    Device,
    /// On the host.
    Host,
}

/// The step of the next token of a sequence at a layer, by what selects the tokens that it attends.
#[must_use = "a step that is begun has to be finished"]
pub enum LayerStep<'s> {
    /// Nothing is selected: the engine attends static tokens.
    StaticOnly(StaticStep<'s>),
    /// The host selects from positions alone, and the engine attends.
    DataIndependent(DataIndependentStep<'s>),
    /// The engine attends static tokens and those that were [selected at the start](Sequence::fixed_selections).
    Fixed(FixedStep<'s>),
    /// The device selects, and the engine attends.
    Device(DeviceSelectStep<'s>),
    /// The host selects by queries, keys and values, and the engine attends.
    Host(HostStep<'s>),
    /// The host selects and attends what it selected; the engine attends static tokens and merges both.
    HostAttendsPart(PartStep<'s>),
    /// The host selects and attends, since it attends tokens at other positions than their own.
    HostAttends(HostStep<'s>),
}

/// The host's part of a step's attention.
#[derive(Debug, Clone, PartialEq)]
pub struct AttendedPart {
    /// The tokens that each KV head attends: static ones, which the engine still has to attend, and the selected ones.
    pub picked: Vec<AttendedTokens>,
    /// A partial softmax of the selected tokens for each query head, `[head][2 + d]`: the maximum of the logits, the sum of the
    /// exponentials of logits less the maximum, and the sums of values weighted by these exponentials.
    pub partials: Vec<f32>,
}

/// A sequence at a layer.
struct AtLayer<'s> {
    sequence: &'s mut Sequence,
    layer: usize,
}

/// A step in which nothing is selected.
pub struct StaticStep<'s>(AtLayer<'s>);

/// A step whose selection depends on positions alone.
pub struct DataIndependentStep<'s>(AtLayer<'s>);

/// A step that attends what was selected when the sequence started.
pub struct FixedStep<'s>(AtLayer<'s>);

/// A step for which a device selects.
pub struct DeviceSelectStep<'s>(AtLayer<'s>);

/// A step for which the host selects. `queries` are `[heads][d]`, `key` and `value` `[kv_heads][d]`, rotated and unscaled.
pub struct HostStep<'s>(AtLayer<'s>);

/// A step in which the host selects and attends what it selected.
pub struct PartStep<'s>(AtLayer<'s>);

impl StaticStep<'_> {
    /// The static tokens, which each of `heads` query heads attends.
    pub fn finish(self, heads: usize) -> StaticTokens {
        self.0.sequence.attend_static_only(self.0.layer, heads)
    }
}

impl DataIndependentStep<'_> {
    /// The tokens that each KV head attends, for `heads` query heads.
    pub fn finish(self, heads: usize) -> Vec<AttendedTokens> {
        self.0.sequence.select_without_queries(self.0.layer, heads)
    }
}

impl FixedStep<'_> {
    /// The static tokens, which each of `heads` query heads attends beside those that were selected at the start.
    pub fn finish(self, heads: usize) -> StaticTokens {
        self.0.sequence.attend_fixed(self.0.layer, heads)
    }
}

impl DeviceSelectStep<'_> {
    /// The static tokens, which each of `heads` query heads attends beside those that the device selects. The latter are
    /// counted on the device, until [its counters are collected](Sequence::collect_device_counters).
    pub fn finish(self, heads: usize) -> StaticTokens {
        self.0.sequence.select_on_device(self.0.layer, heads)
    }
}

impl HostStep<'_> {
    /// Stores the token's key and value, and returns the tokens that each KV head attends.
    ///
    /// # Errors
    /// If keys and values of the prefix cannot be read. The step is then half done: the sequence is of no use any more.
    pub fn select(self, queries: &[f32], key: &[f32], value: &[f32]) -> Result<Vec<AttendedTokens>, KvError> {
        self.0.sequence.select(self.0.layer, queries, key, value)
    }

    /// Stores the token's key and value, and attends into `out` (`[heads][d]`).
    ///
    /// # Errors
    /// As [`select`](Self::select).
    pub fn attend(self, queries: &[f32], key: &[f32], value: &[f32], out: &mut [f32]) -> Result<(), KvError> {
        self.0.sequence.step(self.0.layer, queries, key, value, out)
    }
}

impl PartStep<'_> {
    /// Selects by `queries` `[heads][d]`, rotated and unscaled, and attends what was selected. `following` is the token's key and value,
    /// each `[kv_heads][d]`, to be stored; it may be missing if the sequence [takes queries alone](Sequence::takes_queries_alone). `codes`
    /// are what a device made of the queries, `[heads][code]`, or empty.
    ///
    /// # Errors
    /// Those of [`HostStep::select`].
    pub fn attend(
        self,
        queries: &[f32],
        following: Option<[&[f32]; 2]>,
        codes: &[u16],
    ) -> Result<AttendedPart, KvError> {
        self.0.sequence.attend_part(self.0.layer, queries, following, codes)
    }
}

/// The selection of a KV head.
#[derive(Debug, Clone)]
pub(super) struct Selected {
    /// `None` if there were no candidates.
    pub selection: Option<Selection>,
    pub counts: SelectionCounts,
    /// What it cost to select.
    cost: Cost,
    /// Processor time on another thread than the caller's.
    pub apart: ParallelTime,
    /// The pages that it asked for.
    pages: Vec<Range<u32>>,
}

/// The selection of a KV head, and the result of the work that used it at once.
struct SelectedThen<T> {
    selected: Selected,
    result: T,
    /// Processor time of that work, on another thread than the caller's.
    result_time: Duration,
}

impl Selected {
    /// No selection of `group` query heads.
    fn nothing(group: usize) -> Self {
        let counts = SelectionCounts::nothing(group);
        Self { selection: None, counts, cost: Cost::default(), apart: ParallelTime::default(), pages: Vec::new() }
    }
}

impl Sequence {
    /// Begins the step of the next token at a layer. Each token has one step at every layer, in the tokens' order.
    pub fn begin_step(&mut self, layer: usize) -> LayerStep<'_> {
        let (site, needs_host, moves) = (self.selection_site(layer), self.needs_host(), self.moves_positions());
        let at = AtLayer { sequence: self, layer };
        match site {
            SelectionSite::Device => LayerStep::Device(DeviceSelectStep(at)),
            SelectionSite::DataIndependent => LayerStep::DataIndependent(DataIndependentStep(at)),
            SelectionSite::Fixed => LayerStep::Fixed(FixedStep(at)),
            SelectionSite::None if !needs_host => LayerStep::StaticOnly(StaticStep(at)),
            SelectionSite::None | SelectionSite::Host if moves => LayerStep::HostAttends(HostStep(at)),
            SelectionSite::Host if at.sequence.attends_part_on_host(layer) => LayerStep::HostAttendsPart(PartStep(at)),
            SelectionSite::None | SelectionSite::Host => LayerStep::Host(HostStep(at)),
        }
    }

    /// Begins a step for which the host selects, even where it could do without queries or has nothing to select.
    ///
    /// # Panics
    /// If the device selects for this sequence: the host has no index.
    pub fn begin_host_step(&mut self, layer: usize) -> HostStep<'_> {
        assert!(!self.selects_on_device(), "the host has no index of a sequence whose tokens a device selects");
        HostStep(AtLayer { sequence: self, layer })
    }

    /// The first half of a [`step`](Self::step), for engines that attend by themselves: stores the token's key and
    /// value, and returns the tokens that each KV head attends. Counts what that costs.
    pub(crate) fn select(
        &mut self,
        layer: usize,
        queries: &[f32],
        key: &[f32],
        value: &[f32],
    ) -> Result<Vec<AttendedTokens>, KvError> {
        let (picked, apart) = self.select_timed(layer, queries, key, value)?;
        self.attention_time += apart.into();
        Ok(picked)
    }

    /// As [`select`](Self::select), with the processor time spent on other threads than the caller's.
    pub(super) fn select_timed(
        &mut self,
        layer: usize,
        queries: &[f32],
        key: &[f32],
        value: &[f32],
    ) -> Result<(Vec<AttendedTokens>, ParallelTime), KvError> {
        self.tail[layer].append(key, value);
        self.tail_tokens[layer] += 1;
        let group = queries.len() / (self.prefix.shape().kv_heads * self.prefix.shape().d);
        let ahead = self.take_queries_ahead(layer)?;
        self.select_for_heads(layer, Some(ahead.as_deref().unwrap_or(queries)), group)
    }

    /// Whether the host attends what it selects at a layer, and the engine attends the rest.
    pub fn attends_part_on_host(&self, layer: usize) -> bool {
        let method = self.method.method.as_ref();
        method.attends_on_host() && self.selection_site(layer) == SelectionSite::Host && !self.moves_positions()
    }

    /// Whether the host's part needs only queries: no token of the tail is a candidate, and nothing is compared with exact attention.
    pub fn takes_queries_alone(&self, layer: usize) -> bool {
        self.attends_part_on_host(layer) && !self.method.has_moving_candidates() && self.fidelity.is_none()
    }

    /// Selects, and attends what was selected.
    fn attend_part(
        &mut self,
        layer: usize,
        queries: &[f32],
        following: Option<[&[f32]; 2]>,
        codes: &[u16],
    ) -> Result<AttendedPart, KvError> {
        match following {
            Some([key, value]) => self.tail[layer].append(key, value),
            None => debug_assert!(self.takes_queries_alone(layer), "the token's key and value are not given"),
        }
        self.tail_tokens[layer] += 1;
        let (method, of_head) = (self.method.method.clone(), codes.len() / self.states[layer].len().max(1));
        if of_head > 0 {
            let states = self.states[layer].iter_mut().zip(codes.chunks_exact(of_head));
            states.for_each(|(state, codes)| method.take_codes(state.as_mut(), codes));
        }
        if self.crosses_bus() {
            self.costs.layer_mut(layer).fetched.host += size_of_val(codes) as u64;
        }
        let KvShape { kv_heads, d, .. } = self.prefix.shape();
        let group = queries.len() / (kv_heads * d);
        // A KV head is attended as soon as it has selected: threads are woken once for both.
        let done = self.with_states(layer, |own, states| {
            let (heads, total) = (own.head_kvs(layer, queries)?, own.total(layer));
            let attend = |kv_head: usize, selection: Option<&Selection>| {
                let (kv, queries) = &heads[kv_head];
                let of_query = |head: usize, _: &mut Cost| {
                    let mut partial = vec![0.0; 2 + d];
                    kv.attend_picked(queries, head, selection, &mut partial)?;
                    Ok(partial)
                };
                try_each_head(group, total, &mut Cost::default(), of_query)
            };
            own.select_then(layer, Some(queries), group, states, attend)
        })?;
        let (mut selected, mut partials, mut attend) = (Vec::with_capacity(kv_heads), Vec::new(), Duration::ZERO);
        for SelectedThen { selected: of_head, result, result_time } in done {
            selected.push(of_head);
            partials.extend(result.into_iter().flatten());
            attend += result_time;
        }
        let (picked, apart) = self.count_selected(layer, selected);
        self.attention_time += AttentionTime { attend, ..apart.into() };
        Ok(AttendedPart { picked, partials })
    }

    /// Returns the keys and values of each KV head, and its queries, of `queries` `[heads][d]`.
    fn head_kvs<'a>(&'a self, layer: usize, queries: &'a [f32]) -> Result<Vec<(HeadKv<'a>, Queries<'a>)>, KvError> {
        let of_head = |(kv_head, queries): (usize, &'a [f32])| {
            let kv = HeadKv::new(&self.prefix, &self.tail[layer], layer, kv_head)?;
            let queries = Queries::new(queries, kv.spec.scale);
            Ok((kv, queries))
        };
        queries.chunks_exact(queries.len() / self.prefix.shape().kv_heads).enumerate().map(of_head).collect()
    }

    /// As [`select`](Self::select), at a layer where [nothing is selected](Self::selects_at): the static tokens, which
    /// every KV head attends, for `heads` query heads.
    pub(crate) fn attend_static_only(&mut self, layer: usize, heads: usize) -> StaticTokens {
        self.tail_tokens[layer] += 1;
        let (exact, kv_heads) = (self.exact(layer), self.prefix.shape().kv_heads);
        let nothing = SelectionCounts::nothing(heads / kv_heads);
        (0..kv_heads).for_each(|kv_head| self.count(layer, kv_head, exact, &nothing, Cost::default()));
        debug_assert!(!self.selects_at(layer));
        exact
    }

    /// The tokens that each KV head selected at a layer when the sequence started, for `heads` query heads, if it attends them in all steps:
    /// a list for each query head, or one for each KV head.
    ///
    /// # Panics
    /// If the layer selects in each step.
    pub fn fixed_selections(&mut self, layer: usize, heads: usize) -> Vec<Vec<u32>> {
        assert_eq!(self.selection_site(layer), SelectionSite::Fixed, "layer {layer} selects in each step");
        let tokens = |selected: Selected| match selected.selection {
            None => vec![Vec::new()],
            Some(Selection::Shared(picks)) => vec![picks.tokens],
            Some(Selection::PerHead(heads)) => heads.into_iter().map(|picks| picks.tokens).collect(),
        };
        self.select_once(layer, heads).into_iter().flat_map(tokens).collect()
    }

    /// What each KV head selects at a layer in all steps, for `heads` query heads. Keeps what it counts.
    fn select_once(&mut self, layer: usize, heads: usize) -> Vec<Selected> {
        let selected = self.selected_by(layer, None, heads / self.prefix.shape().kv_heads);
        let selected = selected.expect("what was selected at the start reads no keys, so it cannot fail");
        self.fixed[layer] = selected.iter().map(|own| own.counts.clone()).collect();
        selected
    }

    /// As [`select`](Self::select), where the selection is [fixed](SelectionSite::Fixed), for `heads` query heads: returns the static
    /// tokens.
    pub(crate) fn attend_fixed(&mut self, layer: usize, heads: usize) -> StaticTokens {
        self.tail_tokens[layer] += 1;
        if self.fixed[layer].is_empty() {
            self.select_once(layer, heads);
        }
        let (exact, counts) = (self.exact(layer), std::mem::take(&mut self.fixed[layer]));
        for (kv_head, counts) in counts.iter().enumerate() {
            self.count(layer, kv_head, exact, counts, Cost::default());
        }
        self.fixed[layer] = counts;
        exact
    }

    /// As [`select`](Self::select), where the selection is [data-independent](SelectionSite::DataIndependent), for
    /// `heads` query heads.
    pub(crate) fn select_without_queries(&mut self, layer: usize, heads: usize) -> Vec<AttendedTokens> {
        self.tail_tokens[layer] += 1;
        debug_assert_eq!(self.selection_site(layer), SelectionSite::DataIndependent);
        let selected = self.select_for_heads(layer, None, heads / self.prefix.shape().kv_heads);
        let (drawn, apart) = selected.expect("selecting by position reads no keys, so it cannot fail");
        self.attention_time += apart.into();
        drawn
    }

    /// As [`select`](Self::select), where the [device](SelectionSite::Device) selects for `heads` query heads: returns
    /// the static tokens. The selected tokens are counted on the device until [its counters are
    /// collected](Self::collect_device_counters).
    pub(crate) fn select_on_device(&mut self, layer: usize, heads: usize) -> StaticTokens {
        self.tail_tokens[layer] += 1;
        let (exact, shape) = (self.exact(layer), self.prefix.shape());
        let group = heads / shape.kv_heads;
        let number = self.budget_units(layer, self.total(layer));
        let total = self.total(layer);
        let step = StepShape {
            exact: exact.tokens(total),
            all_candidates: self.device_candidates(total).len(),
            ..self.step_shape(group, number)
        };
        let form = self.method.method.device_form().expect(HAS_FORM);
        let mut cost = if self.selects_anew(self.total(layer)) { form.cost(&step) } else { Cost::default() };
        if self.crosses_bus() {
            // A form counts the scoring of the prefix's candidates here, so their keys are where the prefix is.
            cost.fetched.host += cost.kv_bytes;
        }
        let nothing = SelectionCounts::nothing(group);
        (0..shape.kv_heads).for_each(|kv_head| self.count(layer, kv_head, exact, &nothing, cost));
        if let Selector::Device { has_uncollected, .. } = &mut self.selector {
            *has_uncollected = true;
        }
        exact
    }

    /// Whether the device selects, at the layers where there is something to select.
    pub fn selects_on_device(&self) -> bool {
        matches!(self.selector, Selector::Device { .. })
    }

    /// Whether counters of the device are still to be collected.
    pub fn has_uncollected_counters(&self) -> bool {
        matches!(self.selector, Selector::Device { has_uncollected: true, .. })
    }

    /// Where the tokens of `layer` are selected.
    pub fn selection_site(&self, layer: usize) -> SelectionSite {
        match self.selects_at(layer) {
            false => SelectionSite::None,
            true if self.selects_on_device() => SelectionSite::Device,
            true if self.is_fixed_at(layer) && !self.needs_host() => SelectionSite::Fixed,
            true if self.method.method.is_data_independent() && !self.needs_host() => SelectionSite::DataIndependent,
            true => SelectionSite::Host,
        }
    }

    /// Whether the tokens selected at a layer when the sequence starts are attended in all steps. A layer with a window of its own hides more
    /// of them in each.
    fn is_fixed_at(&self, layer: usize) -> bool {
        self.method.method.selects_once() && self.prefix.spec(layer).window.is_none()
    }

    /// Whether the host selects tokens, or attends by itself, at any layer.
    pub fn selects_on_host(&self) -> bool {
        let here = |layer| matches!(self.selection_site(layer), SelectionSite::Host | SelectionSite::DataIndependent);
        self.moves_positions() || (0..self.dense.len()).any(here)
    }

    /// The tokens that every KV head attends, for `group` query heads each, and the processor time spent on other
    /// threads than the caller's. Without `queries`, methods get no keys and values either.
    fn select_for_heads(
        &mut self,
        layer: usize,
        queries: Option<&[f32]>,
        group: usize,
    ) -> Result<(Vec<AttendedTokens>, ParallelTime), KvError> {
        let selected = self.selected_by(layer, queries, group)?;
        Ok(self.count_selected(layer, selected))
    }

    /// Counts what the KV heads of a layer selected. Returns what each attends, and the processor time spent on other threads than the
    /// caller's.
    fn count_selected(&mut self, layer: usize, selected: Vec<Selected>) -> (Vec<AttendedTokens>, ParallelTime) {
        let (exact, mut all) = (self.exact(layer), ParallelTime::default());
        for Selected { apart, .. } in &selected {
            all.select += apart.select;
            all.parts += apart.parts;
        }
        let count = |(kv_head, selected): (usize, Selected)| {
            let Selected { selection, counts, mut cost, pages, .. } = selected;
            cost.fetched += self.count_pages(layer, kv_head, &pages);
            self.count(layer, kv_head, exact, &counts, cost);
            AttendedTokens { exact, selection }
        };
        (selected.into_iter().enumerate().map(count).collect(), all)
    }

    /// What each KV head selects by these queries, for `group` query heads each. Counts nothing.
    pub(super) fn selected_by(
        &mut self,
        layer: usize,
        queries: Option<&[f32]>,
        group: usize,
    ) -> Result<Vec<Selected>, KvError> {
        let nothing = |_: usize, _: Option<&Selection>| Ok(());
        let done = self.with_states(layer, |own, states| own.select_then(layer, queries, group, states, nothing))?;
        Ok(done.into_iter().map(|head| head.selected).collect())
    }

    /// Lends the states of a layer's KV heads to `act`, and then lets the heads decide together.
    fn with_states<T>(
        &mut self,
        layer: usize,
        act: impl FnOnce(&Self, &mut [Box<dyn Any + Send>]) -> Result<T, KvError>,
    ) -> Result<T, KvError> {
        let mut states = std::mem::take(&mut self.states[layer]);
        let done = act(self, &mut states)?;
        if !self.dense[layer] {
            self.method.method.coordinate_heads(&mut states);
        }
        self.states[layer] = states;
        Ok(done)
    }

    /// What each KV head selects, if anything is to be selected, and the result of `then` for it, which gets the head's number and selection.
    fn select_then<T: Send>(
        &self,
        layer: usize,
        queries: Option<&[f32]>,
        group: usize,
        states: &mut [Box<dyn Any + Send>],
        then: impl Fn(usize, Option<&Selection>) -> Result<T, KvError> + Sync,
    ) -> Result<Vec<SelectedThen<T>>, KvError> {
        let candidates = self.candidates(layer, self.exact(layer));
        if self.selects_at(layer) && (!candidates.is_empty() || self.method.method.manages_decoded_tokens()) {
            return self.select_per_head(layer, queries, group, candidates, (states, then));
        }
        let nothing = |kv_head| {
            let (selected, result) = (Selected::nothing(group), then(kv_head, None)?);
            Ok(SelectedThen { selected, result, result_time: Duration::ZERO })
        };
        (0..self.prefix.shape().kv_heads).map(nothing).collect()
    }

    /// The method's selection for each KV head, independently of the others, and the result of `then` for it.
    fn select_per_head<T: Send>(
        &self,
        layer: usize,
        queries: Option<&[f32]>,
        group: usize,
        candidates: Range<usize>,
        (states, then): (&mut [Box<dyn Any + Send>], impl Fn(usize, Option<&Selection>) -> Result<T, KvError> + Sync),
    ) -> Result<Vec<SelectedThen<T>>, KvError> {
        let (total, width) = (self.total(layer), group * self.prefix.shape().d);
        let nothing = vec![0.0; width];
        let tokens = self.prefix.tokens();
        let head_of = |kv_head| Ok((self.prefix.head(layer, kv_head)?, ReadCounter::default()));
        let prefix: Vec<(KvHead<'_>, ReadCounter)> = match queries {
            Some(_) => (0..states.len()).map(head_of).collect::<Result<_, KvError>>()?,
            None => Vec::new(),
        };
        let step_of = |kv_head: usize| {
            let own = queries.map_or(&nothing[..], |queries| &queries[kv_head * width..][..width]);
            let seed = self.row_seed(total).of_head(layer, kv_head);
            let step = Step { kv_head, seed, ..self.step_of(layer, total, own, candidates.clone()) };
            if queries.is_none() {
                return step;
            }
            let ((head, counter), tail) = (&prefix[kv_head], &self.tail[layer]);
            let [keys, values] =
                [KvPart::Keys, KvPart::Values].map(|part| KvRows::of_head(*head, part, tokens, counter));
            Step { keys, values, tail_keys: tail.keys.head(kv_head), tail_values: tail.values.head(kv_head), ..step }
        };
        let steps: Vec<Step<'_>> = (0..states.len()).map(step_of).collect();
        let (method, indexes) = (self.method.method.as_ref(), &self.indexes.by_layer[layer]);
        let (first, rows) = (self.first_visible(layer) as u32, self.prefix.row_bytes());
        let has_selection_breakdown = self.has_selection_breakdown;
        let select = |((step, index), state): ((&Step<'_>, &Index), &mut Box<dyn Any + Send>)| {
            let mut cost = Cost::default();
            let mut work = || {
                let mut selection = method.select(step, index.as_ref(), state.as_mut(), &mut cost)?;
                if first > 0 {
                    selection.leave_out_before(first);
                }
                Ok::<_, KvError>(selection)
            };
            let (selection, parts) =
                if has_selection_breakdown { clock::with_parts(work) } else { (work(), clock::Parts::default()) };
            let selection = selection?;
            let mut pages = Vec::new();
            if let Some((_, counter)) = prefix.get(step.kv_head) {
                cost.fetched += counter.reads().fetched;
                pages = counter.take_pages();
            }
            let counts = SelectionCounts::of(&selection, group, &rows, total);
            let apart = ParallelTime { select: parts.sum(), parts };
            Ok(Selected { selection: Some(selection), counts, cost, apart, pages })
        };
        let here = |((step, index), state): ((&Step<'_>, &Index), &mut Box<dyn Any + Send>)| {
            let selected = select(((step, index), state))?;
            let result = then(step.kv_head, selected.selection.as_ref())?;
            Ok(SelectedThen { selected, result, result_time: Duration::ZERO })
        };
        let apart = |((step, index), state): ((&Step<'_>, &Index), &mut Box<dyn Any + Send>)| {
            let (selected, select) = Section::of(|| select(((step, index), state)));
            let mut selected = selected?;
            selected.apart.select += select;
            let (result, result_time) = Section::of(|| then(step.kv_head, selected.selection.as_ref()));
            Ok(SelectedThen { selected, result: result?, result_time })
        };
        match candidates.len() < MIN_PARALLEL_TOKENS {
            true => steps.iter().zip(indexes).zip(states).map(here).collect(),
            false => steps.par_iter().zip(indexes).zip(states).map(apart).collect(),
        }
    }
}

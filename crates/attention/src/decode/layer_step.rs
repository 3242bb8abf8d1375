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
use crate::kv::{KvError, KvHead, KvPart, KvRows, ReadCounter};
use crate::method::Step;
use crate::types::selection::{AttendedTokens, Selection, StaticTokens};
use spattn_base::clock;
use spattn_base::clock::Section;

/// Where the tokens of a layer are selected, for engines that attend by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelectionSite {
    /// Nowhere: only static tokens are attended.
    None,
    /// On the host, from positions alone: queries, keys and values are not needed.
    DataIndependent,
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

/// The selection of a KV head, its cost, its processor time on another thread than the caller's, and the pages that it asked for.
pub(super) type Selected = (Option<Selection>, Cost, ParallelTime, Vec<Range<u32>>);

impl Sequence {
    /// Begins the step of the next token at a layer. Each token has one step at every layer, in the tokens' order.
    pub fn begin_step(&mut self, layer: usize) -> LayerStep<'_> {
        let (site, needs_host, moves) = (self.selection_site(layer), self.needs_host(), self.moves_positions());
        let at = AtLayer { sequence: self, layer };
        match site {
            SelectionSite::Device => LayerStep::Device(DeviceSelectStep(at)),
            SelectionSite::DataIndependent => LayerStep::DataIndependent(DataIndependentStep(at)),
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
        let group = queries.len() / (self.prefix.shape().kv_heads * self.prefix.shape().d);
        let (picked, apart) = self.select_for_heads(layer, Some(queries), group)?;
        let (partials, attend) = self.attend_picked(layer, queries, &picked)?;
        self.attention_time += AttentionTime { attend, ..apart.into() };
        Ok(AttendedPart { picked, partials })
    }

    /// Returns the partial softmaxes of what was picked, `[head][2 + d]`, and the processor time spent on other threads than the caller's.
    fn attend_picked(
        &self,
        layer: usize,
        queries: &[f32],
        picked: &[AttendedTokens],
    ) -> Result<(Vec<f32>, Duration), KvError> {
        let (d, width) = (self.prefix.shape().d, queries.len() / picked.len());
        let of_head = |(kv_head, queries): (usize, &[f32])| {
            let kv = HeadKv::new(&self.prefix, &self.tail[layer], layer, kv_head)?;
            let queries = Queries::new(queries, kv.spec.scale);
            Ok((kv, queries))
        };
        let heads = queries.chunks_exact(width).enumerate().map(of_head).collect::<Result<Vec<_>, KvError>>()?;
        let mut partials = vec![0.0; queries.len() / d * (2 + d)];
        let attend = |(head, partial): (usize, &mut [f32])| {
            let (kv_head, own) = (head * d / width, head % (width / d));
            let (kv, queries) = &heads[kv_head];
            kv.attend_picked(queries, own, picked[kv_head].selection.as_ref(), partial)
        };
        if self.total(layer) < MIN_PARALLEL_TOKENS {
            partials.chunks_exact_mut(2 + d).enumerate().try_for_each(attend)?;
            return Ok((partials, Duration::ZERO));
        }
        let timed = |head| {
            let (attended, time) = Section::of(|| attend(head));
            attended.map(|()| time)
        };
        let work = partials.par_chunks_exact_mut(2 + d).enumerate().map(timed);
        let times = work.collect::<Result<Vec<Duration>, KvError>>()?;
        Ok((partials, times.into_iter().sum()))
    }

    /// As [`select`](Self::select), at a layer where [nothing is selected](Self::selects_at): the static tokens, which
    /// every KV head attends, for `heads` query heads.
    pub(crate) fn attend_static_only(&mut self, layer: usize, heads: usize) -> StaticTokens {
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
        let (picked, shape) = (AttendedTokens { exact: self.exact(layer), selection: None }, self.prefix.shape());
        let group = heads / shape.kv_heads;
        let number = self.budget_units(layer, self.total(layer));
        let total = self.total(layer);
        let step = StepShape {
            exact: picked.exact.tokens(total),
            all_candidates: self.device_candidates(total).len(),
            ..self.step_shape(group, number)
        };
        let form = self.method.method.device_form().expect(HAS_FORM);
        let mut cost = if self.selects_anew(self.total(layer)) { form.cost(&step) } else { Cost::default() };
        if self.crosses_bus() {
            // A form counts the scoring of the prefix's candidates here, so their keys are where the prefix is.
            cost.fetched.host += cost.kv_bytes;
        }
        (0..shape.kv_heads).for_each(|kv_head| self.count(layer, kv_head, group, &picked, cost));
        if let Selector::Device { has_uncollected, .. } = &mut self.selector {
            *has_uncollected = true;
        }
        picked.exact
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
            true if self.method.method.is_data_independent() && !self.needs_host() => SelectionSite::DataIndependent,
            true => SelectionSite::Host,
        }
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
        let exact = self.exact(layer);
        let selected = self.selected_by(layer, queries, group)?;
        let mut all = ParallelTime::default();
        for (_, _, apart, _) in &selected {
            all.select += apart.select;
            all.parts += apart.parts;
        }
        let count = |(kv_head, (selection, mut cost, _, pages)): (usize, Selected)| {
            cost.fetched += self.count_pages(layer, kv_head, &pages);
            let picked = AttendedTokens { exact, selection };
            self.count(layer, kv_head, group, &picked, cost);
            picked
        };
        Ok((selected.into_iter().enumerate().map(count).collect(), all))
    }

    /// What each KV head selects by these queries, for `group` query heads each. Counts nothing.
    pub(super) fn selected_by(
        &mut self,
        layer: usize,
        queries: Option<&[f32]>,
        group: usize,
    ) -> Result<Vec<Selected>, KvError> {
        let candidates = self.candidates(layer, self.exact(layer));
        let mut states = std::mem::take(&mut self.states[layer]);
        let asks = self.selects_at(layer) && (!candidates.is_empty() || self.method.method.manages_decoded_tokens());
        let selected = match asks {
            true => self.select_per_head(layer, queries, group, candidates, &mut states)?,
            false => vec![(None, Cost::default(), ParallelTime::default(), Vec::new()); self.prefix.shape().kv_heads],
        };
        if !self.dense[layer] {
            self.method.method.coordinate_heads(&mut states);
        }
        self.states[layer] = states;
        Ok(selected)
    }

    /// The method's selection for each KV head, independently of the others.
    fn select_per_head(
        &self,
        layer: usize,
        queries: Option<&[f32]>,
        group: usize,
        candidates: Range<usize>,
        states: &mut [Box<dyn Any + Send>],
    ) -> Result<Vec<Selected>, KvError> {
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
        let first = self.first_visible(layer) as u32;
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
            Ok((Some(selection), cost, ParallelTime { select: parts.sum(), parts }, pages))
        };
        let apart = |head| {
            let (selected, time) = Section::of(|| select(head));
            let (selection, cost, apart, pages) = selected?;
            Ok((selection, cost, ParallelTime { select: apart.select + time, ..apart }, pages))
        };
        match candidates.len() < MIN_PARALLEL_TOKENS {
            true => steps.iter().zip(indexes).zip(states).map(select).collect(),
            false => steps.par_iter().zip(indexes).zip(states).map(apart).collect(),
        }
    }
}

//! [`Scored`]: a scorer, a picker and a granularity as a method.
//!
//! A step scores all candidates and selects from them. Candidates of the prefix are in the index that sequences share.
//! Candidates that have since left the window (`--tail`) are in the sequence's own index, which grows with them. An index
//! consists of grains, each of which depends only on its own tokens. So only the last grain is ever rebuilt, and a step selects
//! what an index built from scratch would select. Prefill row by row works in the same way: each row has the selection of a
//! decode step at its position.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod cuda_tail;
mod device;
mod rows;

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::backend::form::DeviceForm;
use crate::backend::reasons::HostReason;
use crate::calibration::artefact::{Artefact, ArtefactError};
use crate::cost::Cost;
use crate::kv::quantised::QuantisedRows;
use crate::kv::{KvError, KvPart, KvRows};
use crate::method::{AnyMethod, CalibrationNeed, Method, Solved, Step, TailRule};
use crate::prefill::mask::PrefillPattern;
use crate::scored::coded::Coded;
use crate::scored::granularity::Granularity;
use crate::scored::scorer::{Growth, NewTokens, Part, Scorer, Segment, SelectionSource};
use crate::scored::select::{Choice, DataIndependentPicker, Finer, Picker, ScoredRow};
use crate::spec::Params;
use crate::types::attention_spec::{AttentionSpec, SpecReason};
use crate::types::budget::Context;
use crate::types::policy::Policy;
use crate::types::prefix_head::{HeadPrefix, KvHeadId};
use crate::types::scores::{GroupQueries, joined_scores};
use crate::types::selection::{Selection, StaticTokens, TokenSet};
use crate::{IndexKey, Probe, PromptNeed};
use spattn_base::clock;
use spattn_base::error::UsageError;
use spattn_kernels::linear;

/// A method of the form SCORE → SELECT.
#[derive(Clone)]
pub(crate) struct Scored<S> {
    scorer: S,
    picker: Arc<dyn Picker>,
    per: Granularity,
    /// The least number of pages to select.
    least: usize,
    /// Whether every token is a candidate and none is static.
    has_no_static: bool,
}

impl<S: Scorer> Scored<S> {
    /// Reads the parameters of the selection (`pick` and its budget, `per`, `reduce`).
    pub fn read(params: &mut Params, scorer: S, choice: Choice) -> Result<Self, UsageError> {
        Ok(Self {
            scorer,
            picker: choice.read(params)?,
            per: Granularity::read(params)?,
            least: 0,
            has_no_static: false,
        })
    }

    /// Combines a scorer with a picker whose parameters have been read.
    pub fn with(scorer: S, picker: Arc<dyn Picker>, per: Granularity) -> Self {
        Self { scorer, picker, per, least: 0, has_no_static: false }
    }

    /// Combines a scorer with a picker.
    pub fn new(scorer: S, picker: impl Picker + 'static, per: Granularity) -> Self {
        Self { scorer, picker: Arc::new(picker), per, least: 0, has_no_static: false }
    }

    /// Makes the method; its index also holds keys in 4 bits if the picker uses them.
    pub fn method(self) -> Arc<dyn AnyMethod> {
        match self.picker.finer() {
            Some(Finer::Codes) => {
                let Self { scorer, picker, per, least, has_no_static } = self;
                Arc::new(Scored { scorer: Coded(scorer), picker, per, least, has_no_static })
            }
            _ => Arc::new(self),
        }
    }

    /// Makes every selection at least `least` pages long.
    pub fn at_least(self, least: usize) -> Self {
        Self { least, ..self }
    }

    /// Makes all tokens candidates, the current one included: there are no static tokens.
    pub fn without_static(self) -> Self {
        Self { has_no_static: true, ..self }
    }

    fn with_artefact(&self, artefact: &Artefact) -> Result<Self, ArtefactError> {
        match self.scorer.calibration() {
            Some(need) => Ok(Self { scorer: (need.load)(&self.scorer, artefact)?, ..self.clone() }),
            None => Ok(self.clone()),
        }
    }

    /// Returns the selection of a data-independent picker.
    fn draw(&self, picker: &dyn DataIndependentPicker, step: &Step<'_>) -> Selection {
        let draw = |head| picker.draw(&step.candidates, step.context, step.rng(head));
        let heads = if self.per == Granularity::QueryHead { step.group() } else { 1 };
        self.per.selection_of((0..heads).map(draw).collect())
    }

    /// Whether the scores of a group are summed while they are computed.
    fn adds(&self) -> bool {
        self.per.adds() && !self.scorer.weighs()
    }

    /// Number of score lists of a position with `group` query heads.
    fn lists(&self, group: usize) -> usize {
        if self.adds() { 1 } else { group }
    }

    /// Whether scoring computed the exact products of the `group` query heads with the tokens they attend.
    fn takes_products(&self, group: usize) -> bool {
        let of_sums = self.adds() && self.scorer.is_linear() && group > 1;
        self.scorer.takes_products() && !of_sums
    }

    /// The page of the candidates that contains the current token, if it is the last page and is always selected.
    fn open_page(&self, candidates: &Range<usize>, tokens: usize) -> Option<usize> {
        let page = self.scorer.page();
        let last = candidates.len().checked_sub(1)? / page;
        let of_current = (tokens - 1 - candidates.start) / page;
        (self.scorer.keeps_open_page() && last == of_current).then_some(last)
    }

    /// Scores of a segment, `[list][row][page]`.
    fn scores_of(
        &self,
        queries: &GroupQueries<'_>,
        segment: &Segment<'_, S::Index>,
        cost: &mut Cost,
    ) -> Result<Vec<f32>, KvError> {
        match self.adds() {
            true => self.scorer.sums(queries, segment, cost),
            false => self.scorer.scores(queries, segment, cost),
        }
    }

    /// Selects by the scores of a step's candidates, weights the tokens, and counts only once the products that attention
    /// reuses.
    fn select_at(
        &self,
        step: &Step<'_>,
        (scores, parts): (&[f32], &[Part<'_, S::Index>]),
        at: &QueryPosition<'_>,
        cost: &mut Cost,
    ) -> Result<Selection, KvError> {
        let mut selection = self.select_by(scores, at, parts, cost)?;
        self.scorer.weigh(&SelectionSource { scores, first: at.candidates.start, parts }, &mut selection, cost)?;
        if self.takes_products(at.group) {
            step.leave_to_attention(&selection, cost);
        }
        Ok(selection)
    }

    /// Selects by the scores `[list][page]` of one position's candidates.
    fn select_by(
        &self,
        scores: &[f32],
        at: &QueryPosition<'_>,
        parts: &[Part<'_, S::Index>],
        cost: &mut Cost,
    ) -> Result<Selection, KvError> {
        let heads = if self.per == Granularity::QueryHead { 1 } else { at.group };
        let width = at.queries.len() / at.group;
        let takes_products = self.takes_products(at.group);
        let seen = ReadTokens::default();
        let pick = |head: usize, scores: &[f32], cost: &mut Cost| {
            let queries = &at.queries[head * width..][..heads * width];
            let rescore = |finer, tokens: &[u32], cost: &mut Cost| {
                clock::scoring(|| {
                    let scores = match finer {
                        Finer::Keys => dots_of(queries, width, &at.keys.gather(tokens)?),
                        Finer::Codes => {
                            seen.note_codes(tokens);
                            self.scores_by_codes(queries, width, at.candidates.start, tokens, parts, cost)
                        }
                    };
                    Ok(if tokens.is_empty() { scores } else { self.per.reduced_scores(scores, tokens.len()) })
                })
            };
            let pass_over = |tokens: &[u32], cost: &mut Cost| {
                if !takes_products {
                    seen.note_keys(tokens);
                    cost.score_flops += 2 * (tokens.len() * queries.len()) as u64;
                }
            };
            let value_norms =
                |cost: &mut Cost| seen.norms.get_or_init(|| clock::scoring(|| value_norms(parts, width, cost))).clone();
            let kept = at.open.map(|page| with_best(scores, page));
            let scores = kept.as_deref().unwrap_or(scores);
            let row = ScoredRow {
                scores,
                page: self.scorer.page(),
                least: self.least,
                candidates: at.candidates.clone(),
                context: at.context,
                scale: at.scale,
                seed: at.seed,
                head,
                heads,
                queries,
                keys: at.keys,
                rescore: &rescore,
                pass_over: &pass_over,
                value_norms: &value_norms,
            };
            self.picker.pick(&row, cost)
        };
        let selection = clock::picking(|| self.per.select(scores, self.lists(at.group), cost, pick))?;
        self.count_seen(&seen, at, parts, &selection, cost);
        Ok(selection)
    }

    /// Counts the data that selection reads in addition to scores: each key and code once per group, without what attention
    /// reads anyway.
    fn count_seen(
        &self,
        seen: &ReadTokens,
        at: &QueryPosition<'_>,
        parts: &[Part<'_, S::Index>],
        picked: &Selection,
        cost: &mut Cost,
    ) {
        let (total, rows) = (at.context.tokens, at.keys.row_bytes());
        if let Some(tokens) = seen.keys(total) {
            cost.kv_bytes += tokens.without(&picked.tokens(total)).bytes(KvPart::Keys, &rows) as u64;
        }
        if seen.norms.get().is_some() {
            cost.kv_bytes -= picked.bytes(KvPart::Values, &rows, total) as u64;
        }
        if let Some(tokens) = seen.codes(total) {
            let bytes = |(index, rows): (&S::Index, Vec<u32>)| self.codes_of(index).read_of(&rows).bytes;
            let of_parts = by_part(at.candidates.start, &tokens.ascending(), parts);
            cost.aux_bytes += of_parts.into_iter().map(bytes).sum::<usize>() as u64;
        }
    }

    fn codes_of<'a>(&self, index: &'a S::Index) -> &'a QuantisedRows {
        self.scorer.codes(index).expect("the scorer has no codes")
    }

    /// Returns `q·k` with the 4-bit keys of some candidates (ascending), `[query][token]`. Counts FLOPs, not bytes.
    fn scores_by_codes(
        &self,
        queries: &[f32],
        d: usize,
        first: usize,
        tokens: &[u32],
        parts: &[Part<'_, S::Index>],
        cost: &mut Cost,
    ) -> Vec<f32> {
        let (heads, mut scores) = (queries.len() / d, Vec::new());
        for (place, (index, rows)) in by_part(first, tokens, parts).into_iter().enumerate() {
            let mut of_part = vec![0.0; heads * rows.len()];
            let read = self.codes_of(index).scores_of(queries, &rows, &mut of_part);
            cost.score_flops += (2 * heads * d * (rows.len() + read.groups)) as u64;
            scores = if place == 0 { of_part } else { joined_scores(heads, (&scores, scores.len() / heads), &of_part) };
        }
        scores
    }
}

/// Splits `tokens` (ascending) over the parts of the candidates, which start at `first`: for each part, its index and the
/// tokens' rows in it.
fn by_part<'a, I>(first: usize, tokens: &[u32], parts: &[Part<'a, I>]) -> Vec<(&'a I, Vec<u32>)> {
    let (mut begin, mut left) = (first, tokens);
    let of_part = |part: &Part<'a, I>| {
        let end = begin + part.tokens;
        let (own, rest) = left.split_at(left.partition_point(|token| (*token as usize) < end));
        let rows = own.iter().map(|token| token - begin as u32).collect();
        (begin, left) = (end, rest);
        (part.index, rows)
    };
    parts.iter().map(of_part).collect()
}

/// Data that the heads of a group read for the selection at one position, in addition to scores.
#[derive(Default)]
struct ReadTokens {
    /// Tokens whose keys were multiplied by heads that do not attend them.
    pub(crate) keys: Mutex<Vec<u32>>,
    /// Tokens whose 4-bit keys were multiplied.
    pub(crate) codes: Mutex<Vec<u32>>,
    /// `‖v‖` of every candidate.
    pub(crate) norms: OnceLock<Result<Vec<f32>, KvError>>,
}

impl ReadTokens {
    fn note_keys(&self, tokens: &[u32]) {
        note(&self.keys, tokens);
    }

    fn note_codes(&self, tokens: &[u32]) {
        note(&self.codes, tokens);
    }

    fn keys(&self, total: usize) -> Option<TokenSet> {
        noted(&self.keys, total)
    }

    fn codes(&self, total: usize) -> Option<TokenSet> {
        noted(&self.codes, total)
    }
}

fn note(list: &Mutex<Vec<u32>>, tokens: &[u32]) {
    list.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(tokens);
}

/// The listed tokens, given `total` tokens in context; `None` if there are none.
fn noted(list: &Mutex<Vec<u32>>, total: usize) -> Option<TokenSet> {
    let list = list.lock().unwrap_or_else(PoisonError::into_inner);
    (!list.is_empty()).then(|| TokenSet::of(list.iter().copied(), total))
}

/// Returns the scores with that of `page` raised above all others.
fn with_best(scores: &[f32], page: usize) -> Vec<f32> {
    let mut scores = scores.to_vec();
    scores[page] = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max).next_up();
    scores
}

/// Returns `‖v‖` of each candidate; counts the cost of reading all values.
fn value_norms<I>(parts: &[Part<'_, I>], d: usize, cost: &mut Cost) -> Result<Vec<f32>, KvError> {
    let mut norms = Vec::new();
    for part in parts {
        let values = part.values.slice(0..part.tokens);
        cost.kv_bytes += values.bytes() as u64;
        cost.score_flops += 2 * (values.tokens() * d) as u64;
        values.each_block(1, |rows| {
            norms.extend(rows.chunks_exact(d).map(|v| v.iter().map(|x| x * x).sum::<f32>().sqrt()));
        })?;
    }
    Ok(norms)
}

/// Returns `q·k` of queries `[query][d]` with keys `[token][d]`.
fn dots_of(queries: &[f32], d: usize, keys: &[f32]) -> Vec<f32> {
    let mut dots = vec![0.0; queries.len() / d * (keys.len() / d)];
    if !dots.is_empty() {
        linear::scores(queries, keys, d, &mut dots);
    }
    dots
}

/// One query position and its candidates.
struct QueryPosition<'a> {
    candidates: Range<usize>,
    context: Context,
    scale: f32,
    seed: u64,
    group: usize,
    /// Rotated, unscaled queries `[group][d]`.
    queries: &'a [f32],
    /// Rotated keys of all tokens in context, read on demand.
    keys: KvRows<'a>,
    /// The page that is always selected.
    open: Option<usize>,
}

/// The index of a prefix; `None` if the index must learn from candidates and the prefix has none.
pub(crate) type PrefixIndex<I> = Option<I>;

/// The index over the tokens that left the window after the prefix was read.
pub(crate) struct TailIndex<I> {
    index: Option<I>,
    /// Number of candidates in the index.
    tokens: usize,
}

impl<S: Scorer> Method for Scored<S> {
    type Index = PrefixIndex<S::Index>;
    type State = TailIndex<S::Index>;

    fn calibration(&self) -> Option<CalibrationNeed<Self>> {
        self.scorer.calibration().map(|need| CalibrationNeed { kind: need.kind, load: Self::with_artefact })
    }

    fn required_head_dim(&self) -> Option<(&'static str, usize)> {
        self.scorer.required_head_dim()
    }

    fn unsupported(&self, spec: &AttentionSpec) -> Vec<SpecReason> {
        let ranks = self.picker.only_ranks() && self.scorer.ranks_by_products();
        SpecReason::of_method(spec, ranks || Method::is_data_independent(self), Method::positions(self))
    }

    fn prompt_needs(&self) -> Vec<PromptNeed> {
        self.scorer.prompt_needs()
    }

    fn solve(&self, probe: &Probe<'_>) -> Result<Option<Solved<Self>>, KvError> {
        let solved = self.picker.solve(probe)?;
        Ok(solved.map(|Solved { method: picker, params }| Solved { method: Self { picker, ..self.clone() }, params }))
    }

    fn index_key(&self) -> IndexKey {
        self.scorer.index_key()
    }

    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<PrefixIndex<S::Index>, KvError> {
        Ok(match (prefix.candidates.is_empty(), self.scorer.growth()) {
            (false, _) => Some(self.scorer.build(prefix)?),
            (true, Growth::Free(_)) => Some(self.scorer.empty(prefix.into(), None)),
            (true, _) => None,
        })
    }

    fn index_bytes(&self, index: &PrefixIndex<S::Index>) -> usize {
        index.as_ref().map_or(0, |index| self.scorer.index_bytes(index))
    }

    fn counts_costs(&self) -> bool {
        self.scorer.counts_costs()
    }

    fn selects_ahead(&self) -> bool {
        self.scorer.selects_ahead()
    }

    fn start(&self, _: &PrefixIndex<S::Index>) -> TailIndex<S::Index> {
        TailIndex { index: None, tokens: 0 }
    }

    fn state_bytes(&self, state: &TailIndex<S::Index>) -> usize {
        state.index.as_ref().map_or(0, |index| self.scorer.index_bytes(index))
    }

    fn select(
        &self,
        step: &Step<'_>,
        index: &PrefixIndex<S::Index>,
        state: &mut TailIndex<S::Index>,
        cost: &mut Cost,
    ) -> Result<Selection, KvError> {
        if self.picker.is_nothing() || step.candidates.is_empty() {
            return Ok(self.per.nothing(step.group()));
        }
        if let Some(picker) = self.picker.blind() {
            return Ok(self.draw(picker, step));
        }
        // No index: the prefix has no candidates to learn from.
        let Some(shared) = index else { return Ok(self.per.all(step)) };
        let candidates = step.candidates.clone();
        let (indexed, keys, values) = (step.indexed.len(), step.all_keys(), step.all_values());
        let queries = step.group_queries();
        let at = QueryPosition {
            candidates: candidates.clone(),
            context: step.context,
            scale: step.scale.factor(),
            seed: step.seed,
            group: step.group(),
            queries: step.queries,
            keys,
            // If all tokens after the prefix are static, the last page grows no further.
            open: self.open_page(&candidates, step.context.tokens).filter(|_| step.has_moving_candidates),
        };
        let of_prefix = Segment { index: shared, keys: keys.slice(step.indexed.clone()) };
        if candidates.len() <= indexed {
            let scores = clock::scoring(|| self.scores_of(&queries, &of_prefix, cost))?;
            let parts = [Part { index: shared, tokens: indexed, values: values.slice(candidates.clone()) }];
            return self.select_at(step, (&scores, &parts), &at, cost);
        }
        // The prefix's last grain is incomplete, so it continues in the sequence's own index.
        let whole = indexed / self.scorer.grain() * self.scorer.grain();
        let behind = candidates.start + whole..candidates.end;
        let place =
            KvHeadId { layer: step.layer, kv_head: step.kv_head, d: step.d, scale: step.scale, dtype: step.dtype };
        let own =
            state.grow(&self.scorer, place, Some(shared), keys.slice(behind.clone()), values.slice(behind.clone()))?;
        let mut parts = Vec::with_capacity(2);
        let mut scores = Vec::new();
        if whole > 0 {
            scores = clock::scoring(|| self.scores_of(&queries, &of_prefix, cost))?;
            parts.push(Part { index: shared, tokens: whole, values: values.slice(candidates.start..behind.start) });
        }
        let behind_it = Segment { index: own, keys: keys.slice(behind.clone()) };
        let more = clock::scoring(|| self.scores_of(&queries, &behind_it, cost))?;
        let scores = joined_scores(self.lists(step.group()), (&scores, whole / self.scorer.page()), &more);
        parts.push(Part { index: own, tokens: behind.len(), values: values.slice(behind) });
        self.select_at(step, (&scores, &parts), &at, cost)
    }

    fn exact(&self, policy: &Policy, prefix_tokens: usize, total_tokens: usize) -> StaticTokens {
        match self.has_no_static {
            true => StaticTokens { sink: 0, recent: total_tokens },
            false => StaticTokens::policy(policy, prefix_tokens, total_tokens),
        }
    }

    fn manages_decoded_tokens(&self) -> bool {
        self.has_no_static
    }

    fn is_data_independent(&self) -> bool {
        self.picker.is_nothing() || self.picker.blind().is_some()
    }

    fn device_form(&self) -> Result<&dyn DeviceForm, Vec<HostReason>> {
        let mut reasons = Vec::new();
        if self.picker.is_nothing() {
            reasons.push(HostReason::SelectsNothing);
        }
        if self.has_no_static {
            reasons.push(HostReason::setting("draw_from", "all"));
        }
        match self.on_device() {
            Ok(_) if reasons.is_empty() => return Ok(self),
            Ok(_) => {}
            Err(further) => reasons.extend(further),
        }
        Err(reasons)
    }

    fn tail_rule(&self) -> TailRule {
        match self.scorer.growth() {
            _ if self.has_no_static => TailRule::Own("every token is a candidate, the current one included"),
            Growth::None(why) => TailRule::Exact(why),
            Growth::OfPrefix(how) | Growth::Free(how) => TailRule::Indexed(how),
        }
    }

    fn prefill_pattern(&self) -> Option<PrefillPattern<'_>> {
        match self.scorer.growth() {
            // Rows of a prompt have no queries of the previous layer.
            _ if self.scorer.selects_ahead() => None,
            Growth::Free(_) if self.picker.is_known() && !self.has_no_static => Some(PrefillPattern::Rows(self)),
            _ => None,
        }
    }
}

impl<I> TailIndex<I> {
    /// Appends the tokens of `keys` and `values` that the index does not hold yet, and rebuilds its last grain. These are few:
    /// the last grain of the prefix, and tokens after it.
    ///
    /// # Errors
    /// If keys or values cannot be read.
    fn grow<S: Scorer<Index = I>>(
        &mut self,
        scorer: &S,
        place: KvHeadId,
        like: Option<&I>,
        keys: KvRows<'_>,
        values: KvRows<'_>,
    ) -> Result<&I, KvError> {
        let index = self.index.get_or_insert_with(|| scorer.empty(place, like));
        let tokens = keys.tokens();
        if tokens > self.tokens {
            let kept = self.tokens / scorer.grain() * scorer.grain();
            let (keys, values) = (keys.slice(kept..tokens).to_f32()?, values.slice(kept..tokens).to_f32()?);
            scorer.append(index, kept, &NewTokens { place, keys: &keys, values: &values });
            self.tokens = tokens;
        }
        Ok(index)
    }
}

//! The [`Method`] trait and what passes between a method and the engine.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::calibration::artefact::{Artefact, ArtefactError};
use crate::cost::Cost;
use crate::kv::{KvDtype, KvError, KvPart, KvRows};
use crate::types::attention_spec::{AttentionSpec, SoftmaxScale, SpecReason};
use crate::types::budget::Context;
use crate::types::policy::Policy;
use crate::types::positions::{Grouped, Positions};
use crate::types::prefix_head::{HeadPrefix, SparseLayerRank};
use crate::types::prompt_shape::PromptShape;
use crate::types::scores::{GroupQueries, score_into, score_some_in_context};
use crate::types::seed::mix_seed;
use crate::types::selection::{Selection, StaticTokens};
use crate::{DeviceForm, HostReason, IndexBuilder, IndexKey, PrefillPattern, Probe, PromptNeed};
use spattn_kernels::Rows;

/// A sparse attention method: SCORE and SELECT; the engine gathers and attends.
///
/// One value serves all layers, heads and examples; it holds parameters, and a calibration of the model if it needs
/// one. Its `Index` over a prefix is shared by all sequences with equal [`index_key`](Method::index_key); its `State`,
/// which changes from step to step, belongs to one sequence, layer and KV head.
pub trait Method: Send + Sync + 'static {
    /// Index over one KV head of one layer of a finished prefix.
    type Index: Send + Sync + 'static;
    /// State that is carried from step to step.
    type State: Send + 'static;

    /// The artefact that it needs before an index can be built; `None` if it needs no calibration.
    fn calibration(&self) -> Option<CalibrationNeed<Self>>
    where
        Self: Sized,
    {
        None
    }

    /// A parameter that counts channels of a head, and its value: models with narrower heads are refused. `None` if
    /// there is no such parameter, or it is a share of the head.
    fn required_head_dim(&self) -> Option<(&'static str, usize)> {
        None
    }

    /// What of a layer's attention it cannot honour: nothing if that is plain. A method that looks at queries and keys knows the softmax
    /// of scaled products alone unless it says otherwise; one that moves tokens knows no layer's own window.
    fn unsupported(&self, spec: &AttentionSpec) -> Vec<SpecReason> {
        let decodes = self.is_static_only() || self.is_data_independent() && self.prompt_needs().is_empty();
        let reads = match self.prefill_pattern() {
            None | Some(PrefillPattern::Dense) => true,
            Some(PrefillPattern::Blocks(mask)) => mask.is_data_independent(),
            Some(PrefillPattern::Rows(_) | PrefillPattern::Whole(_)) => false,
        };
        SpecReason::of_method(spec, decodes && reads, self.positions())
    }

    /// Statistics of the prefix's own attention that an index needs; none by default.
    fn prompt_needs(&self) -> Vec<PromptNeed> {
        Vec::new()
    }

    /// The method with its parameter solved for the requested density on this prefix. `None` if there is nothing to
    /// solve: budgets in tokens ([`Budget`](crate::Budget)) are computed at each step.
    ///
    /// # Errors
    /// If keys and values of the prefix cannot be read.
    fn solve(&self, _probe: &Probe<'_>) -> Result<Option<Solved<Self>>, KvError>
    where
        Self: Sized,
    {
        Ok(None)
    }

    /// The settings that the index depends on; sequences of equal methods with equal keys share one index, on the host and
    /// on a device. None by default.
    fn index_key(&self) -> IndexKey {
        IndexKey::none()
    }

    /// Builds the index over the candidates of a prefix. Reads keys and values by [scan](KvRows::scan),
    /// [block](KvRows::each_block) or [token](KvRows::gather): where the prefix is not in host memory, only an algorithm that
    /// needs them all at the same time should [collect](KvRows::to_f32) them.
    ///
    /// # Errors
    /// If keys and values of the prefix cannot be read.
    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Self::Index, KvError>;

    /// Bytes that the index occupies.
    fn index_bytes(&self, index: &Self::Index) -> usize;

    /// Whether it counts what its index occupies and what finding tokens costs. False for what is done where nobody counts: records then
    /// mark these costs as unknown.
    fn counts_costs(&self) -> bool {
        true
    }

    /// The state before the first step.
    fn start(&self, index: &Self::Index) -> Self::State;

    /// Selects candidates for a step's queries. Called only if there are candidates.
    ///
    /// Adds the cost of scoring (`score_flops`, `kv_bytes`, `aux_bytes`) to `cost`; the engine counts attention. Exact
    /// products of a query head with tokens that it then attends are [counted once](Cost::leave_to_attention), as
    /// attention.
    ///
    /// # Errors
    /// If keys and values of the prefix cannot be read. The state may then be half changed: the sequence ends.
    fn select(
        &self,
        step: &Step<'_>,
        index: &Self::Index,
        state: &mut Self::State,
        cost: &mut Cost,
    ) -> Result<Selection, KvError>;

    /// Lets the KV heads of a layer decide together. Called after all states of a layer have been started, and after
    /// each step of all of them. Does nothing by default.
    fn coordinate_heads(&self, _states: &mut [&mut Self::State]) {}

    /// The static tokens, which are always attended; all others are candidates.
    fn exact(&self, policy: &Policy, prefix_tokens: usize, total_tokens: usize) -> StaticTokens {
        StaticTokens::policy(policy, prefix_tokens, total_tokens)
    }

    /// Whether tokens after the prefix can become candidates.
    fn tail_rule(&self) -> TailRule {
        TailRule::OF_PREFIX
    }

    /// Bytes of auxiliary data in the state, without the index.
    fn state_bytes(&self, _state: &Self::State) -> usize {
        0
    }

    /// Whether the method also selects among decoded tokens. [`select`](Self::select) is then called at every step of
    /// every sparse layer, even without candidates; the candidates are all tokens that are not [static](Self::exact).
    /// The selection must use an ordinary softmax.
    fn manages_decoded_tokens(&self) -> bool {
        false
    }

    /// True if the method only attends [static tokens](Self::exact); [`select`](Self::select) is then never called.
    fn is_static_only(&self) -> bool {
        false
    }

    /// Number of candidates still resident in the cache of this KV head (for any query head of its group); `None` if
    /// the method never evicts. Evicted tokens must never be selected again.
    fn resident_candidates(&self, _index: &Self::Index, _state: &Self::State) -> Option<usize> {
        None
    }

    /// True if selection ignores queries, keys and values of the step (fixed when the index is built, or random). The
    /// engine may then pass empty slices.
    fn is_data_independent(&self) -> bool {
        self.selects_once()
    }

    /// Whether a sequence keeps the tokens that it selects when it starts, each list in one softmax with the static tokens, and selects
    /// nothing in its steps. Default false.
    fn selects_once(&self) -> bool {
        false
    }

    /// For methods whose sequences [select once](Self::selects_once): upper bound of the tokens for which the lists of a layer have room
    /// together. All lists have room for as many tokens as the longest.
    fn kept_tokens(&self, prefix: &PromptShape) -> usize {
        prefix.heads * prefix.tokens
    }

    /// Whether tokens are selected ahead, so that they can be fetched while the layer before computes: by the queries that the input of the
    /// layer before has in this layer (Double Sparsity-Offload, §5). [`Step::queries`] are then these, except at the first layer, which has
    /// none before it. [`select`](Self::select) is called a second time at a step where [misses are
    /// counted](crate::Sequence::counting_misses): what it leaves in the state must not depend on the queries.
    fn selects_ahead(&self) -> bool {
        false
    }

    /// Whether the host attends what it selects if the prefix is on a device or read by one; the device attends static tokens and merges
    /// both softmaxes. Such a method selects for each query head, or for a group by ordinary logits. Default false: the device attends all.
    fn attends_on_host(&self) -> bool {
        false
    }

    /// Whether a device that reads the prefix from host memory is to keep what it scores and attends in caches of its own. A run on a device
    /// without such caches is refused; what is selected is the same with and without them. Default false: the run decides.
    fn offloads(&self) -> bool {
        false
    }

    /// Takes the codes that a device made of the queries of the next step, for the group of a KV head. [`select`](Self::select) then looks
    /// up tokens by these codes instead of hashing the queries itself. Does nothing by default.
    fn take_codes(&self, _state: &mut Self::State, _codes: &[u16]) {}

    /// Its form on a device, with equal selections.
    ///
    /// # Errors
    /// Why there is none, or none with these parameters: at least one reason.
    fn device_form(&self) -> Result<&dyn DeviceForm, Vec<HostReason>> {
        Err(vec![HostReason::NoForm])
    }

    /// How its index is built on a device that holds the prefix, where the host selects; `None` if the host builds it, too.
    fn index_builder(&self) -> Option<&dyn IndexBuilder> {
        None
    }

    /// The positions at which tokens are attended.
    fn positions(&self) -> Positions {
        Positions::Original
    }

    /// Its prefill pattern, for `--sparse-from prefill`; `None` if its prefill is dense.
    fn prefill_pattern(&self) -> Option<PrefillPattern<'_>> {
        None
    }

    /// True if decoding is dense: the method is sparse only in its [prefill pattern](Self::prefill_pattern).
    fn decodes_densely(&self) -> bool {
        false
    }
}

/// An artefact that a method needs, and how the method loads it.
#[derive(Debug, Clone, Copy)]
pub struct CalibrationNeed<M> {
    /// Kind of the artefact, one of [`CALIBRATIONS`](crate::methods::CALIBRATIONS).
    pub kind: &'static str,
    /// Loads the artefact, which fits the model, into the method.
    pub load: fn(&M, &Artefact) -> Result<M, ArtefactError>,
}

/// How a method treats tokens after the prefix that leave the window ([`Tail`](crate::Tail)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TailRule {
    /// They become candidates; the text says how.
    Indexed(&'static str),
    /// They stay static; the text says why.
    Exact(&'static str),
    /// The method has a rule of its own; the text says which.
    Own(&'static str),
}

impl TailRule {
    /// The rule of a method that does not say another.
    pub(crate) const OF_PREFIX: Self = Self::Exact("it picks from the prefix alone");
}

/// A method whose parameter was solved for a density.
pub struct Solved<M> {
    /// The method to run.
    pub method: M,
    /// The solved parameter, as `key=value,...`.
    pub params: String,
}

/// One decode step of one KV head: the queries of its group, and the keys and values that they may see.
#[derive(Debug, Clone)]
pub struct Step<'a> {
    /// Layer, from 0.
    pub layer: usize,
    /// Rank of the layer among the sparse layers.
    pub depth: SparseLayerRank,
    /// KV head, from 0.
    pub kv_head: usize,
    /// Rotated, unscaled queries of the group, `[group][d]`; those of the layer before of a method that [selects
    /// ahead](Method::selects_ahead).
    pub queries: &'a [f32],
    /// Channels of a head.
    pub d: usize,
    /// Factor of the logits.
    pub scale: SoftmaxScale,
    /// Rotated keys `[token][d]` of the prefix, to be read.
    pub keys: KvRows<'a>,
    /// Values `[token][d]` of the prefix, to be read.
    pub values: KvRows<'a>,
    /// Rotated keys `[token][d]` of the tokens after the prefix, the current one last.
    pub tail_keys: Rows<'a>,
    /// Values `[token][d]` of the tokens after the prefix, the current one last.
    pub tail_values: Rows<'a>,
    /// The model's storage type of keys and values, in which they are shown whatever they are stored as.
    pub dtype: KvDtype,
    /// The candidates of the prefix when the index was built.
    pub indexed: Range<usize>,
    /// Tokens that may be selected.
    pub candidates: Range<usize>,
    /// Whether decoded tokens become candidates as more follow.
    pub has_moving_candidates: bool,
    /// Tokens in context, the current one included, and how many of them are static.
    pub context: Context,
    /// Grouped positions of tokens far from the current one, which is the last in context; `None` if positions are the
    /// original ones.
    pub grouped: Option<Grouped<'a>>,
    /// Tokens generated before the current one; 0 while the prompt is read.
    pub generated: usize,
    /// Seed of this example, layer, KV head and position.
    pub seed: u64,
}

impl Step<'_> {
    /// Query heads in the group.
    pub fn group(&self) -> usize {
        self.queries.len() / self.d
    }

    /// The query of one head of the group.
    pub fn query(&self, head: usize) -> &[f32] {
        &self.queries[head * self.d..][..self.d]
    }

    /// A random generator for one head of the group, which depends only on the step's seed and the head.
    pub fn rng(&self, head: usize) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(mix_seed(self.seed, head as u64))
    }

    /// Rotated keys of prefix and tail, to be read.
    pub fn all_keys(&self) -> KvRows<'_> {
        self.keys.followed_by(self.tail_keys)
    }

    /// Values of prefix and tail, to be read.
    pub fn all_values(&self) -> KvRows<'_> {
        self.values.followed_by(self.tail_values)
    }

    /// The queries in the form that scorers take.
    pub(super) fn group_queries(&self) -> GroupQueries<'_> {
        let Self { layer, kv_head, queries, d, scale, .. } = *self;
        GroupQueries { layer, kv_head, queries, rows: 1, d, scale }
    }

    /// Exact `q·k` (unscaled) of every candidate for `queries: [query][d]`, `[query][candidates]`, with its cost.
    ///
    /// # Errors
    /// If the keys cannot be read.
    pub fn exact_scores(&self, queries: &[f32], cost: &mut Cost) -> Result<Vec<f32>, KvError> {
        let keys = self.all_keys().slice(self.candidates.clone());
        cost.kv_bytes += keys.bytes() as u64;
        GroupQueries { queries, ..self.group_queries() }.dots_in_context(keys, cost)
    }

    /// Tokens of the prefix.
    pub fn prefix_tokens(&self) -> usize {
        self.keys.tokens()
    }

    /// Gathers the keys `[token][d]` of some tokens of prefix and tail; counts their bytes.
    ///
    /// # Errors
    /// If the keys cannot be read.
    pub fn gather_keys(&self, tokens: impl IntoIterator<Item = u32>, cost: &mut Cost) -> Result<Vec<f32>, KvError> {
        let tokens: Vec<u32> = tokens.into_iter().collect();
        let keys = self.all_keys();
        cost.kv_bytes += keys.bytes_of(&tokens) as u64;
        keys.gather(&tokens)
    }

    /// Moves exact products that scoring shares with attention to the cost of attention: those of each query head with
    /// its selected tokens, with each key read once for the group.
    pub fn leave_to_attention(&self, selection: &Selection, cost: &mut Cost) {
        let products = selection.of_heads(self.group()).iter().sum();
        let read = selection.bytes(KvPart::Keys, &self.keys.row_bytes(), self.context.tokens);
        cost.leave_to_attention(products, self.d, read);
    }

    /// Exact `q·k` (unscaled) of some tokens of prefix and tail for one head of the group; counts nothing.
    ///
    /// # Errors
    /// If the keys cannot be read.
    pub fn exact_scores_of(&self, head: usize, tokens: &[u32]) -> Result<Vec<f32>, KvError> {
        let mut scores = vec![0.0; tokens.len()];
        score_some_in_context(self.query(head), self.all_keys(), tokens, &mut scores)?;
        Ok(scores)
    }

    /// Exact `q·k` of some tokens of prefix and tail for one head of the group, and the [scores](crate::SelectedTokens::scores) by which attention
    /// weighs the same tokens. Each key is read once. Counts nothing.
    ///
    /// # Errors
    /// If the keys cannot be read.
    pub fn exact_scores_for_attention(&self, head: usize, tokens: &[u32]) -> Result<[Vec<f32>; 2], KvError> {
        let query = self.query(head);
        let queries = [query, &self.scale.scaled(query)].concat();
        let mut products = vec![0.0; 2 * tokens.len()];
        score_some_in_context(&queries, self.all_keys(), tokens, &mut products)?;
        let scores = products.split_off(tokens.len());
        Ok([products, scores])
    }

    /// `q·k` (unscaled) of some of the candidates in the index, numbered from 0, for a query `[d]`; counts nothing.
    ///
    /// # Errors
    /// If the keys cannot be read.
    pub fn score_indexed(&self, query: &[f32], candidates: &[u32], out: &mut [f32]) -> Result<(), KvError> {
        score_some_in_context(query, self.keys.slice(self.indexed.clone()), candidates, out)
    }

    /// `q·row` of every row, `[group][rows]`; counts the FLOPs, not the bytes.
    pub fn score_rows(&self, rows: Rows<'_>, cost: &mut Cost) -> Vec<f32> {
        let count = rows.elements() / self.d;
        let mut scores = vec![0.0; self.group() * count];
        score_into(self.queries, rows, self.d, &mut scores);
        cost.score_flops += 2 * (self.group() * count * self.d) as u64;
        scores
    }
}

/// [`Method`] with its types erased, so that methods of any type can be held together.
///
/// Indexes and states are `dyn Any`; the engine passes each back to the method that made it.
pub trait AnyMethod: Send + Sync {
    /// Kind of the artefact that it needs; see [`Method::calibration`].
    fn calibration(&self) -> Option<&'static str>;
    /// The method with its artefact, if it needs one ([`CalibrationNeed::load`]).
    fn calibrated(&self, artefact: &Artefact) -> Result<Option<Arc<dyn AnyMethod>>, ArtefactError>;
    /// See [`Method::required_head_dim`].
    fn required_head_dim(&self) -> Option<(&'static str, usize)>;
    /// See [`Method::unsupported`].
    fn unsupported(&self, spec: &AttentionSpec) -> Vec<SpecReason>;
    /// See [`Method::prompt_needs`].
    fn prompt_needs(&self) -> Vec<PromptNeed>;
    /// See [`Method::solve`].
    fn solve(&self, probe: &Probe<'_>) -> Result<Option<Solved<Arc<dyn AnyMethod>>>, KvError>;
    /// See [`Method::index_key`].
    fn index_key(&self) -> IndexKey;
    /// See [`Method::build`].
    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Box<dyn Any + Send + Sync>, KvError>;
    /// See [`Method::index_bytes`].
    fn index_bytes(&self, index: &dyn Any) -> usize;
    /// See [`Method::counts_costs`].
    fn counts_costs(&self) -> bool;
    /// See [`Method::start`].
    fn start(&self, index: &dyn Any) -> Box<dyn Any + Send>;
    /// See [`Method::select`].
    fn select(
        &self,
        step: &Step<'_>,
        index: &dyn Any,
        state: &mut dyn Any,
        cost: &mut Cost,
    ) -> Result<Selection, KvError>;
    /// See [`Method::coordinate_heads`].
    fn coordinate_heads(&self, states: &mut [Box<dyn Any + Send>]);
    /// See [`Method::exact`].
    fn exact(&self, policy: &Policy, prefix_tokens: usize, total_tokens: usize) -> StaticTokens;
    /// See [`Method::manages_decoded_tokens`].
    fn manages_decoded_tokens(&self) -> bool;
    /// See [`Method::is_static_only`].
    fn is_static_only(&self) -> bool;
    /// See [`Method::tail_rule`].
    fn tail_rule(&self) -> TailRule;
    /// See [`Method::state_bytes`].
    fn state_bytes(&self, state: &dyn Any) -> usize;
    /// See [`Method::resident_candidates`].
    fn resident_candidates(&self, index: &dyn Any, state: &dyn Any) -> Option<usize>;
    /// See [`Method::is_data_independent`].
    fn is_data_independent(&self) -> bool;
    /// See [`Method::selects_once`].
    fn selects_once(&self) -> bool;
    /// See [`Method::kept_tokens`].
    fn kept_tokens(&self, prefix: &PromptShape) -> usize;
    /// See [`Method::selects_ahead`].
    fn selects_ahead(&self) -> bool;
    /// See [`Method::attends_on_host`].
    fn attends_on_host(&self) -> bool;
    /// See [`Method::offloads`].
    fn offloads(&self) -> bool;
    /// See [`Method::take_codes`].
    fn take_codes(&self, state: &mut dyn Any, codes: &[u16]);
    /// See [`Method::device_form`].
    ///
    /// # Errors
    /// Why there is none.
    fn device_form(&self) -> Result<&dyn DeviceForm, Vec<HostReason>>;
    /// See [`Method::index_builder`].
    fn index_builder(&self) -> Option<&dyn IndexBuilder>;
    /// See [`Method::positions`].
    fn positions(&self) -> Positions;
    /// See [`Method::prefill_pattern`].
    fn prefill_pattern(&self) -> Option<PrefillPattern<'_>>;
    /// See [`Method::decodes_densely`].
    fn decodes_densely(&self) -> bool;
}

const OWN: &str = "the index or state is not of this method's type";

impl<M: Method> AnyMethod for M {
    fn calibration(&self) -> Option<&'static str> {
        Method::calibration(self).map(|need| need.kind)
    }
    fn calibrated(&self, artefact: &Artefact) -> Result<Option<Arc<dyn AnyMethod>>, ArtefactError> {
        let Some(need) = Method::calibration(self) else { return Ok(None) };
        Ok(Some(Arc::new((need.load)(self, artefact)?)))
    }
    fn required_head_dim(&self) -> Option<(&'static str, usize)> {
        Method::required_head_dim(self)
    }
    fn unsupported(&self, spec: &AttentionSpec) -> Vec<SpecReason> {
        Method::unsupported(self, spec)
    }
    fn prompt_needs(&self) -> Vec<PromptNeed> {
        Method::prompt_needs(self)
    }
    fn solve(&self, probe: &Probe<'_>) -> Result<Option<Solved<Arc<dyn AnyMethod>>>, KvError> {
        let solved = Method::solve(self, probe)?;
        Ok(solved.map(|Solved { method, params }| Solved { method: Arc::new(method) as _, params }))
    }
    fn index_key(&self) -> IndexKey {
        Method::index_key(self)
    }
    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Box<dyn Any + Send + Sync>, KvError> {
        Ok(Box::new(Method::build(self, prefix)?))
    }
    fn index_bytes(&self, index: &dyn Any) -> usize {
        Method::index_bytes(self, index.downcast_ref().expect(OWN))
    }
    fn counts_costs(&self) -> bool {
        Method::counts_costs(self)
    }
    fn start(&self, index: &dyn Any) -> Box<dyn Any + Send> {
        Box::new(Method::start(self, index.downcast_ref().expect(OWN)))
    }
    fn select(
        &self,
        step: &Step<'_>,
        index: &dyn Any,
        state: &mut dyn Any,
        cost: &mut Cost,
    ) -> Result<Selection, KvError> {
        Method::select(self, step, index.downcast_ref().expect(OWN), state.downcast_mut().expect(OWN), cost)
    }
    fn coordinate_heads(&self, states: &mut [Box<dyn Any + Send>]) {
        let mut states: Vec<&mut M::State> =
            states.iter_mut().map(|state| state.as_mut().downcast_mut().expect(OWN)).collect();
        Method::coordinate_heads(self, &mut states);
    }
    fn exact(&self, policy: &Policy, prefix_tokens: usize, total_tokens: usize) -> StaticTokens {
        Method::exact(self, policy, prefix_tokens, total_tokens)
    }
    fn manages_decoded_tokens(&self) -> bool {
        Method::manages_decoded_tokens(self)
    }
    fn is_static_only(&self) -> bool {
        Method::is_static_only(self)
    }
    fn tail_rule(&self) -> TailRule {
        Method::tail_rule(self)
    }
    fn state_bytes(&self, state: &dyn Any) -> usize {
        Method::state_bytes(self, state.downcast_ref().expect(OWN))
    }
    fn resident_candidates(&self, index: &dyn Any, state: &dyn Any) -> Option<usize> {
        Method::resident_candidates(self, index.downcast_ref().expect(OWN), state.downcast_ref().expect(OWN))
    }
    fn is_data_independent(&self) -> bool {
        Method::is_data_independent(self)
    }
    fn selects_once(&self) -> bool {
        Method::selects_once(self)
    }
    fn kept_tokens(&self, prefix: &PromptShape) -> usize {
        Method::kept_tokens(self, prefix)
    }
    fn selects_ahead(&self) -> bool {
        Method::selects_ahead(self)
    }
    fn attends_on_host(&self) -> bool {
        Method::attends_on_host(self)
    }
    fn offloads(&self) -> bool {
        Method::offloads(self)
    }
    fn take_codes(&self, state: &mut dyn Any, codes: &[u16]) {
        Method::take_codes(self, state.downcast_mut().expect(OWN), codes);
    }
    fn device_form(&self) -> Result<&dyn DeviceForm, Vec<HostReason>> {
        Method::device_form(self)
    }
    fn index_builder(&self) -> Option<&dyn IndexBuilder> {
        Method::index_builder(self)
    }
    fn positions(&self) -> Positions {
        Method::positions(self)
    }
    fn prefill_pattern(&self) -> Option<PrefillPattern<'_>> {
        Method::prefill_pattern(self)
    }
    fn decodes_densely(&self) -> bool {
        Method::decodes_densely(self)
    }
}

impl fmt::Debug for dyn AnyMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyMethod")
    }
}

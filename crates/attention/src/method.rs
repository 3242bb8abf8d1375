//! The [`Method`] trait and what passes between a method and the engine.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::calibration::artefact::{Artefact, ArtefactError};
use crate::cost::Cost;
use crate::kv::KvDtype;
use crate::types::budget::Context;
use crate::types::policy::Policy;
use crate::types::positions::{Grouped, Positions};
use crate::types::prefix_head::{HeadPrefix, SparseLayerRank};
use crate::types::scores::{GroupQueries, score_into, score_some};
use crate::types::seed::mix_seed;
use crate::types::selection::{Selection, StaticTokens};
use crate::{DeviceForm, PrefillPattern, Probe, PromptNeed};
use spattn_kernels::{Joined, Rows, linear};

/// A sparse attention method: SCORE and SELECT; the engine gathers and attends.
///
/// One value serves all layers, heads and examples; it holds parameters, and what was learned about the
/// model offline if it needs that. What it stores about a prefix is its `Index` (shared by all runs with
/// equal [`index_key`](Method::index_key)), what it carries from step to step its `State` (private to a
/// run, a layer and a KV head).
pub trait Method: Send + Sync + 'static {
    /// Stored about one KV head of one layer when the prefix is ready.
    type Index: Send + Sync + 'static;
    /// Carried from step to step.
    type State: Send + 'static;

    /// What has to be learned about the model offline before an index can be built; `None` if nothing.
    fn calibration(&self) -> Option<CalibrationNeed<Self>>
    where
        Self: Sized,
    {
        None
    }

    /// A parameter that counts channels of a head, and its value: a model whose heads are narrower is refused. `None` if
    /// nothing counts them, or only as a share.
    fn required_head_dim(&self) -> Option<(&'static str, usize)> {
        None
    }

    /// What has to be known of the prefix's own attention before an index can be built; nothing by default.
    fn prompt_needs(&self) -> Vec<PromptNeed> {
        Vec::new()
    }

    /// The method with the value of its own parameter that gives the density asked for on this prefix. `None` if
    /// there is nothing to solve: always where the budget is a number of tokens ([`Budget`](crate::Budget)), which
    /// each step works out by itself.
    fn solve(&self, _probe: &Probe<'_>) -> Option<Solved<Self>>
    where
        Self: Sized,
    {
        None
    }

    /// The parameters that the index depends on; runs with equal keys share one index.
    fn index_key(&self) -> String {
        String::new()
    }

    /// Builds the index over the candidates of a prefix.
    fn build(&self, prefix: &HeadPrefix<'_>) -> Self::Index;

    /// Bytes the index occupies, as stored.
    fn index_bytes(&self, index: &Self::Index) -> usize;

    /// The state before the first step.
    fn start(&self, index: &Self::Index) -> Self::State;

    /// Picks candidates for a step's queries. Called only if there are candidates.
    ///
    /// Adds what scoring cost (`score_flops`, `kv_bytes`, `aux_bytes`) to `cost`; attending is counted
    /// by the engine. What attention does anyway is [left to it](Cost::leave_to_attention): where finding took the exact
    /// product of a query head with a token that this head then attends, product and key count once.
    fn select(&self, step: &Step<'_>, index: &Self::Index, state: &mut Self::State, cost: &mut Cost) -> Selection;

    /// What the KV heads of a layer decide together: asked for when all of a layer's states have been started, and
    /// whenever all of them have taken a step. Nothing by default.
    fn coordinate_heads(&self, _states: &mut [&mut Self::State]) {}

    /// What is attended exactly, whatever is picked; the rest are the candidates.
    fn exact(&self, policy: &Policy, prefix_tokens: usize, total_tokens: usize) -> StaticTokens {
        StaticTokens::policy(policy, prefix_tokens, total_tokens)
    }

    /// Whether tokens after the prefix can become candidates.
    fn tail_rule(&self) -> TailRule {
        TailRule::Exact("it picks from the prefix alone")
    }

    /// Bytes of auxiliary data that a run keeps for itself, beside the index.
    fn state_bytes(&self, _state: &Self::State) -> usize {
        0
    }

    /// Whether the method decides about the tokens after the prefix too. It is then asked at every step of
    /// every layer that is not dense, candidates or none: those of a step are all tokens that
    /// [`exact`](Self::exact) leaves out, and its picks (in an ordinary softmax only) may be among them.
    fn manages_decoded_tokens(&self) -> bool {
        false
    }

    /// Whether what is [exact](Self::exact) is all that is ever attended: [`select`](Self::select) is then never asked.
    fn is_static_only(&self) -> bool {
        false
    }

    /// Candidates whose keys and values are still held for this KV head (by any query head of its group);
    /// `None` if the method needs to hold all of them, however few it attends. What was let go must never
    /// be picked again.
    fn resident_candidates(&self, _index: &Self::Index, _state: &Self::State) -> Option<usize> {
        None
    }

    /// Whether what it picks hangs on nothing that a step brings, neither queries nor keys nor values, which a step need then
    /// not hold: it was chosen when the index was made, or is drawn.
    fn is_data_independent(&self) -> bool {
        false
    }

    /// Its form on a device, which picks what this one picks; `None` if it has none, or not with these parameters.
    fn device_form(&self) -> Option<&dyn DeviceForm> {
        None
    }

    /// At which positions tokens are attended.
    fn positions(&self) -> Positions {
        Positions::Original
    }

    /// How this method attends while the prompt is read, for `--sparse-from prefill`; `None` if it has
    /// no such form.
    fn prefill_pattern(&self) -> Option<PrefillPattern<'_>> {
        None
    }

    /// Whether it attends everything once the prompt has been read: it is sparse by its [prefill
    /// pattern](Self::prefill_pattern) alone, and has nothing to do where a prompt is read densely.
    fn decodes_densely(&self) -> bool {
        false
    }
}

/// An artefact that a method needs, and how the method takes it in.
#[derive(Debug, Clone, Copy)]
pub struct CalibrationNeed<M> {
    /// Kind of the artefact, one of [`CALIBRATIONS`](crate::methods::CALIBRATIONS).
    pub kind: &'static str,
    /// The method with what the artefact holds; the artefact is known to fit the model.
    pub load: fn(&M, &Artefact) -> Result<M, ArtefactError>,
}

/// What a method makes of the tokens after the prefix, if they are to leave the exact window ([`Tail`](crate::Tail)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TailRule {
    /// They become candidates; how.
    Indexed(&'static str),
    /// They stay exact; why.
    Exact(&'static str),
    /// The method decides about them by a rule of its own; which.
    Own(&'static str),
}

/// A method whose parameter was solved for a density.
pub struct Solved<M> {
    /// The method to run.
    pub method: M,
    /// What was found, as `key=value,...`.
    pub params: String,
}

/// One decoding step of one KV head: the queries of its group and what they may look at.
#[derive(Debug, Clone)]
pub struct Step<'a> {
    /// Layer, from 0.
    pub layer: usize,
    /// Where the layer stands among those that are not dense.
    pub depth: SparseLayerRank,
    /// KV head, from 0.
    pub kv_head: usize,
    /// Rotated, unscaled queries of the group, `[group][d]`.
    pub queries: &'a [f32],
    /// Width of a head.
    pub d: usize,
    /// Factor of the logits, `1/√d`.
    pub scale: f32,
    /// Rotated keys `[token][d]` of the whole prefix.
    pub keys: Rows<'a>,
    /// Values `[token][d]` of the whole prefix.
    pub values: Rows<'a>,
    /// Rotated keys `[token][d]` of the tokens after the prefix, the current one last.
    pub tail_keys: Rows<'a>,
    /// Values `[token][d]` of the tokens after the prefix, the current one last.
    pub tail_values: Rows<'a>,
    /// Storage type of keys and values.
    pub dtype: KvDtype,
    /// The candidates that the prefix had when the index was built.
    pub indexed: Range<usize>,
    /// Tokens that may be picked.
    pub candidates: Range<usize>,
    /// Whether tokens behind the prefix become candidates as more follow.
    pub has_moving_candidates: bool,
    /// Tokens in context, the current one included, and how many of them are static.
    pub context: Context,
    /// How tokens far from the current one are seen, if not where they are; the current one is the last in context.
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

    /// A generator for one head of the group, the same whenever this step is computed.
    pub fn rng(&self, head: usize) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(mix_seed(self.seed, head as u64))
    }

    /// Rotated keys of prefix and tail.
    pub fn all_keys(&self) -> Joined<'_> {
        Joined::new(self.keys, self.tail_keys, self.d)
    }

    /// Values of prefix and tail.
    pub fn all_values(&self) -> Joined<'_> {
        Joined::new(self.values, self.tail_values, self.d)
    }

    /// The queries, as scorers take them.
    pub(super) fn group_queries(&self) -> GroupQueries<'_> {
        let Self { layer, kv_head, queries, d, scale, .. } = *self;
        GroupQueries { layer, kv_head, queries, rows: 1, d, scale }
    }

    /// Exact `q·k` (unscaled) of every candidate for `queries: [query][d]`, `[query][candidates]`, with its cost.
    pub fn exact_scores(&self, queries: &[f32], cost: &mut Cost) -> Vec<f32> {
        let keys = self.all_keys().slice(self.candidates.clone());
        cost.kv_bytes += (keys.tokens() * self.d * keys.elem_bytes()) as u64;
        GroupQueries { queries, ..self.group_queries() }.dots_joined(keys, cost)
    }

    /// Tokens of the prefix.
    pub fn prefix_tokens(&self) -> usize {
        self.keys.elements() / self.d
    }

    /// Keys `[token][d]` of some tokens of prefix and tail, as they are read into one place; counts their
    /// bytes.
    pub fn gather_keys(&self, tokens: impl IntoIterator<Item = u32>, cost: &mut Cost) -> Vec<f32> {
        let tokens: Vec<u32> = tokens.into_iter().collect();
        let gathered = self.all_keys().gather(&tokens);
        cost.kv_bytes += (gathered.len() * self.keys.elem_bytes()) as u64;
        gathered
    }

    /// Leaves to attention the products that it needs and that finding took: each query head's with what it attends of a
    /// selection, each key read once for the group.
    pub fn leave_to_attention(&self, selection: &Selection, cost: &mut Cost) {
        let products = selection.of_heads(self.group()).iter().sum();
        cost.leave_to_attention(products, selection.distinct(self.context.tokens), self.d, self.keys.elem_bytes());
    }

    /// Exact `q·k` (unscaled) of some tokens of prefix and tail for one head of the group; counts nothing.
    pub fn exact_scores_of(&self, head: usize, tokens: &[u32]) -> Vec<f32> {
        let mut scores = vec![0.0; tokens.len()];
        let prefix = self.prefix_tokens() as u32;
        if tokens.iter().all(|token| *token < prefix) {
            score_some(self.query(head), self.keys, tokens, &mut scores);
            return scores;
        }
        let keys = self.all_keys().gather(tokens);
        linear::scores(self.query(head), &keys, self.d, &mut scores);
        scores
    }

    /// `q·k` (unscaled) of some of the candidates in the index, numbered from 0, for a query `[d]`; counts nothing.
    pub fn score_indexed(&self, query: &[f32], candidates: &[u32], out: &mut [f32]) {
        score_some(query, self.keys.slice(self.indexed.clone(), self.d), candidates, out);
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

/// [`Method`] with its types erased, so that a run can hold methods of any kind.
///
/// Indexes and states travel as `dyn Any`; the engine hands each back to the method that made it.
pub trait AnyMethod: Send + Sync {
    /// Kind of the artefact that has to be given before an index can be built; see [`Method::calibration`].
    fn calibration(&self) -> Option<&'static str>;
    /// The method with its artefact, if it needs one ([`CalibrationNeed::load`]).
    fn calibrated(&self, artefact: &Artefact) -> Result<Option<Arc<dyn AnyMethod>>, ArtefactError>;
    /// See [`Method::required_head_dim`].
    fn required_head_dim(&self) -> Option<(&'static str, usize)>;
    /// See [`Method::prompt_needs`].
    fn prompt_needs(&self) -> Vec<PromptNeed>;
    /// See [`Method::solve`].
    fn solve(&self, probe: &Probe<'_>) -> Option<Solved<Arc<dyn AnyMethod>>>;
    /// See [`Method::index_key`].
    fn index_key(&self) -> String;
    /// See [`Method::build`].
    fn build(&self, prefix: &HeadPrefix<'_>) -> Box<dyn Any + Send + Sync>;
    /// See [`Method::index_bytes`].
    fn index_bytes(&self, index: &dyn Any) -> usize;
    /// See [`Method::start`].
    fn start(&self, index: &dyn Any) -> Box<dyn Any + Send>;
    /// See [`Method::select`].
    fn select(&self, step: &Step<'_>, index: &dyn Any, state: &mut dyn Any, cost: &mut Cost) -> Selection;
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
    /// See [`Method::device_form`].
    fn device_form(&self) -> Option<&dyn DeviceForm>;
    /// See [`Method::positions`].
    fn positions(&self) -> Positions;
    /// See [`Method::prefill_pattern`].
    fn prefill_pattern(&self) -> Option<PrefillPattern<'_>>;
    /// See [`Method::decodes_densely`].
    fn decodes_densely(&self) -> bool;
}

const OWN: &str = "the engine returns to a method what that method made";

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
    fn prompt_needs(&self) -> Vec<PromptNeed> {
        Method::prompt_needs(self)
    }
    fn solve(&self, probe: &Probe<'_>) -> Option<Solved<Arc<dyn AnyMethod>>> {
        let Solved { method, params } = Method::solve(self, probe)?;
        Some(Solved { method: Arc::new(method), params })
    }
    fn index_key(&self) -> String {
        Method::index_key(self)
    }
    fn build(&self, prefix: &HeadPrefix<'_>) -> Box<dyn Any + Send + Sync> {
        Box::new(Method::build(self, prefix))
    }
    fn index_bytes(&self, index: &dyn Any) -> usize {
        Method::index_bytes(self, index.downcast_ref().expect(OWN))
    }
    fn start(&self, index: &dyn Any) -> Box<dyn Any + Send> {
        Box::new(Method::start(self, index.downcast_ref().expect(OWN)))
    }
    fn select(&self, step: &Step<'_>, index: &dyn Any, state: &mut dyn Any, cost: &mut Cost) -> Selection {
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
    fn device_form(&self) -> Option<&dyn DeviceForm> {
        Method::device_form(self)
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

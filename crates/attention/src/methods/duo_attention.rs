//! `duo_attention`: retrieval heads attend everything, streaming heads only sink and recent tokens (DuoAttention, Xiao et al. 2024).
//!
//! Each KV head of the model has one class, whatever the text. A share `retrieval` of the heads, those that lose most
//! by streaming, keep the full KV cache; the others attend the first `sink` and last `local` tokens of the context, the
//! current one included, and evict the rest, read or generated (§2.3). A prompt read sparsely is read the same way.
//! Nothing is stored beside keys and values, and selecting costs nothing in a decode step.
//!
//! Calibration finds the heads that lose most. The paper learns a gate `α` for each KV head, whose output is
//! `α·full + (1 − α)·streaming`. Gradient descent through the model, on all gates together, minimises the squared error
//! of the *last hidden state* at the passkeys that end a synthetic prompt, plus `λ·Σ|α|` (§2.2). There is no backward
//! pass here, so the objective is taken at each head's own output. The differences:
//! - The error of a head's output is `(1 − α)²·E`, where `E` is the mean squared distance of streaming from full
//!   attention. With `λ·α` its minimum on `[0, 1]` is at `α = max(0, 1 − λ/2E)`, which rises with `E`. So heads are
//!   ranked by `E`: no `λ` is needed, and heads whose gates would all be 0 are told apart.
//! - How later layers change the error is not seen, nor how heads make up for each other. `E` is divided by the mean squared norm of
//!   full attention's output, so that heads with outputs of different size compare. Both are summed over the query heads of the group.
//! - Queries are those of the `last` tokens of each prompt, where streaming leaves tokens out: the paper's loss also
//!   counts only the end of the prompt. The default text is the harness's training rows, contexts that end in questions
//!   with answers, not ten passkeys in books; `spattn calibrate duo_attention --task` or `--data` takes other text.
//! - Keys and values come from a dense pass; in the paper the inputs of a layer depend on the gates of earlier layers.
//!
//! Equal errors are ranked by head number; the paper breaks ties at random. With `density=`, the number of retrieval heads
//! is solved: the one whose density, together with sink and window of all others, is nearest, but at least one head. So a
//! small model cannot meet a small density closely. A prompt read sparsely meets its density on average over its rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use rayon::prelude::*;

use super::ParamInfo;
use super::lines::{Static, all_pairs};
use super::streaming_llm::last_tokens;
use crate::calibration::artefact::{Artefact, ArtefactError, ModelShape, NamedTensor, Precision};
use crate::calibration::collector::{Calibration, Collected, Collector, HostChunk, PrefillChunk, Reading, ReadingText};
use crate::calibration::sums;
use crate::cost::Cost;
use crate::kv::{KvError, MOST_TOKENS};
use crate::methods::{MethodEntry, Preset};
use crate::{Bits, IndexKey};
use crate::{
    BlockMask, CalibrationNeed, HeadPrefix, Mask, Masks, Method, Params, Policy, PrefillPattern, Probe, PromptMask,
    PromptPlan, QueryBlock, Role, SelectedTokens, Selection, Solved, StaticTokens, Step, TailRule, Tuned,
};
use spattn_base::error::UsageError;
use spattn_kernels::{Accumulator, attend_range};

const NAME: &str = "duo_attention";

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: NAME,
    role: Role::Method,
    about: "retrieval heads attend everything, the others sinks and recent tokens (needs `spattn calibrate`)",
    reference: "DuoAttention (Xiao et al. 2024, arXiv:2410.10819)",
    params: &[ParamInfo {
        key: "retrieval",
        default: "0.5",
        about: "share of the model's KV heads that attend everything, above 0 to 1; the others attend sink and local",
    }],
    presets: &[Preset {
        name: "paper",
        values: &[("retrieval", "0.5"), ("sink", "64"), ("local", "256")],
        source: "DuoAttention §3.2 and the code's run_niah.sh: half of the KV heads of models with GQA (a quarter without), \
                 64 sinks, 256 recent tokens",
    }],
    build: |params| Ok(Arc::new(DuoAttention { retrieval: read_share(params)?, heads: None })),
};

pub(super) const CALIBRATION: Calibration = Calibration {
    kind: NAME,
    about: "how far the output of sinks and recent tokens is from full attention's, for each KV head",
    params: &[
        ParamInfo { key: "sink", default: "128", about: "first tokens of the streaming attention compared (§3.1)" },
        ParamInfo { key: "recent", default: "256", about: "its last tokens, the query's own included (§3.1)" },
        ParamInfo { key: "last", default: "128", about: "last tokens of each prompt, whose queries count" },
    ],
    reading: Reading { text: ReadingText::Rows, tokens: 65_536, length: 8192, held_out: 0 },
    text: None,
    import: None,
    waiting: |_, _| 0,
    start: |assignment, params| Ok(Box::new(StreamingErrors::new(assignment.model, Settings::read(params)?))),
};

/// Reads `retrieval`, or the `density` for which it is solved.
fn read_share(params: &mut Params) -> Result<Tuned<f64>, UsageError> {
    const RANGE: &str = "a number above 0 and up to 1";
    match params.tuned("retrieval", 0.5, RANGE)? {
        Tuned::Value(share) if !(share > 0.0 && share <= 1.0) => {
            Err(params.bad_value("retrieval", &share.to_string(), RANGE))
        }
        share => Ok(share),
    }
}

/// Retrieval heads, which attend everything, and streaming heads.
#[derive(Clone)]
struct DuoAttention {
    /// Share of the model's KV heads that attend everything.
    retrieval: Tuned<f64>,
    /// The ranking of the heads; `None` before the artefact is loaded.
    heads: Option<Heads>,
}

/// The KV heads of the model, ranked by their streaming error.
#[derive(Clone)]
struct Heads {
    /// Number of heads with a larger error, `[layer][kv_head]`.
    ranks: Arc<Vec<Vec<usize>>>,
    /// Hash of the artefact.
    sha256: String,
}

impl Heads {
    /// Ranks errors `[layer][kv_head]`.
    fn new(errors: &[Vec<f32>], sha256: &str) -> Self {
        let mut ranks: Vec<Vec<usize>> = errors.iter().map(|heads| vec![0; heads.len()]).collect();
        let places = |layer: usize| (0..errors[layer].len()).map(move |kv_head| (layer, kv_head));
        let mut order: Vec<(usize, usize)> = (0..errors.len()).flat_map(places).collect();
        order.sort_by(|a, b| errors[b.0][b.1].total_cmp(&errors[a.0][a.1]));
        order.iter().enumerate().for_each(|(rank, (layer, kv_head))| ranks[*layer][*kv_head] = rank);
        Self { ranks: Arc::new(ranks), sha256: sha256.to_owned() }
    }

    /// Number of KV heads of the model.
    fn count(&self) -> usize {
        self.ranks.iter().map(Vec::len).sum()
    }

    /// Whether the head is a retrieval head if a share `share` of all heads are, rounded to whole heads and at least one.
    fn is_among(&self, share: f64, layer: usize, kv_head: usize) -> bool {
        self.ranks[layer][kv_head] < ((share * self.count() as f64).round() as usize).max(1)
    }

    /// Share of all heads at which a share `of_sparse` of the heads in sparse layers are retrieval heads, rounded to whole heads and
    /// at least one.
    fn share_with(&self, of_sparse: f64, dense: &[bool]) -> f64 {
        let sparse = self.ranks.iter().zip(dense).filter(|(_, dense)| !**dense);
        let mut ranks: Vec<usize> = sparse.flat_map(|(ranks, _)| ranks.iter().copied()).collect();
        ranks.sort_unstable();
        let wanted = ((of_sparse * ranks.len() as f64).round() as usize).clamp(1, ranks.len());
        (ranks[wanted - 1] + 1) as f64 / self.count() as f64
    }
}

impl DuoAttention {
    fn with_errors(&self, artefact: &Artefact) -> Result<Self, ArtefactError> {
        let ModelShape { layers, kv_heads, .. } = artefact.info().model;
        let of_layer = |layer: usize| artefact.read_rows(&tensor_name(layer), &[kv_heads], kv_heads);
        let errors = (0..layers).map(of_layer).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { heads: Some(Heads::new(&errors, artefact.sha256())), ..self.clone() })
    }

    fn heads(&self) -> &Heads {
        self.heads.as_ref().expect("methods are calibrated before they build an index")
    }

    /// Share of all heads that attend everything. A density has been solved before, unless the prefix has no candidates; then nearly
    /// all tokens follow the prefix, and the share equals the density.
    fn share(&self) -> f64 {
        match self.retrieval {
            Tuned::Value(share) | Tuned::Density(share) => share,
        }
    }

    /// The share of retrieval heads at which the rows of a prompt meet the density on average.
    fn share_of_reading(&self, density: f64, prompt: &QueryBlock<'_>) -> f64 {
        let fixed = Static::new(prompt.policy, prompt.rows);
        let all = all_pairs(prompt.rows) as f64;
        let streamed: usize = (0..prompt.rows).map(|position| fixed.tokens(position)).sum();
        let missing = (density * all - streamed as f64) / (all - streamed as f64).max(1.0);
        let layers = self.heads().ranks.len();
        let dense = prompt.policy.dense(layers);
        self.heads().share_with(missing.clamp(0.0, 1.0), &dense)
    }
}

impl Method for DuoAttention {
    /// Whether the head is a retrieval head.
    type Index = bool;
    type State = ();

    fn calibration(&self) -> Option<CalibrationNeed<Self>> {
        Some(CalibrationNeed { kind: NAME, load: Self::with_errors })
    }

    fn solve(&self, probe: &Probe<'_>) -> Result<Option<Solved<Self>>, KvError> {
        let Some(density) = self.retrieval.density() else { return Ok(None) };
        let missing = probe.context.missing(density);
        let retrieval = self.heads().share_with(missing as f64 / probe.candidates() as f64, probe.dense);
        let method = Self { retrieval: Tuned::Value(retrieval), ..self.clone() };
        Ok(Some(Solved { method, params: format!("retrieval={retrieval}") }))
    }

    fn index_key(&self) -> IndexKey {
        let Self { retrieval, heads } = self;
        let retrieval = match retrieval {
            Tuned::Value(share) => Tuned::Value(Bits::from(*share)),
            Tuned::Density(density) => Tuned::Density(*density),
        };
        IndexKey::new((retrieval, heads.as_ref().map(|heads| heads.sha256.clone())))
    }

    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<bool, KvError> {
        Ok(self.heads().is_among(self.share(), prefix.layer, prefix.kv_head))
    }

    /// Counts nothing: the class of a head belongs to the model, not to the prefix.
    fn index_bytes(&self, _: &bool) -> usize {
        0
    }

    fn start(&self, _: &bool) {}

    fn select(&self, step: &Step<'_>, attends_all: &bool, (): &mut (), _: &mut Cost) -> Result<Selection, KvError> {
        let picked = if *attends_all { step.candidates.clone() } else { 0..0 };
        Ok(Selection::Shared(SelectedTokens::softmax(picked.map(|token| token as u32).collect())))
    }

    fn is_data_independent(&self) -> bool {
        true
    }

    /// The sink and window of a streaming head.
    fn exact(&self, policy: &Policy, _prefix_tokens: usize, total_tokens: usize) -> StaticTokens {
        last_tokens(policy, policy.local.max(1), total_tokens)
    }

    fn tail_rule(&self) -> TailRule {
        TailRule::Own("retrieval heads attend all of it, the others the last `local` tokens")
    }

    fn manages_decoded_tokens(&self) -> bool {
        true
    }

    fn resident_candidates(&self, attends_all: &bool, (): &()) -> Option<usize> {
        (!attends_all).then_some(0)
    }

    fn prefill_pattern(&self) -> Option<PrefillPattern<'_>> {
        Some(match self.retrieval {
            Tuned::Value(_) => PrefillPattern::Blocks(self),
            // The number of heads that meets a density depends on the length of the prompt.
            Tuned::Density(_) => PrefillPattern::Whole(self),
        })
    }
}

/// Query rows that share a mask, in which each has its own window.
const ROWS: usize = 64;

impl BlockMask for DuoAttention {
    fn query_rows(&self) -> usize {
        ROWS
    }

    fn masks(&self, block: &QueryBlock<'_>, _: &mut Cost) -> Masks {
        mask(block, self.heads().is_among(self.share(), block.layer, block.kv_head))
    }

    fn is_data_independent(&self) -> bool {
        true
    }
}

impl PromptMask for DuoAttention {
    fn query_rows(&self) -> usize {
        ROWS
    }

    fn plan<'p>(&'p self, prompt: &QueryBlock<'p>, _: &mut Cost) -> PromptPlan<'p> {
        let share = match self.retrieval {
            Tuned::Value(share) => share,
            Tuned::Density(density) => self.share_of_reading(density, prompt),
        };
        let attends_all = self.heads().is_among(share, prompt.layer, prompt.kv_head);
        Box::new(move |block| mask(block, attends_all))
    }
}

fn mask(block: &QueryBlock<'_>, attends_all: bool) -> Masks {
    Masks::Shared(match attends_all {
        true => Mask::new(Vec::new(), vec![0; block.rows]),
        false => Static::new(block.policy, block.first + block.rows).mask(block),
    })
}

/// Name of the tensor with the errors of a layer, `[kv_head]`.
fn tensor_name(layer: usize) -> String {
    format!("layers.{layer}.error")
}

// ---- calibration ----

/// The streaming attention to compare (sink and window), and how many last queries of each prompt count.
struct Settings {
    sink: usize,
    recent: usize,
    last: usize,
}

impl Settings {
    fn read(params: &mut Params) -> Result<Self, UsageError> {
        Ok(Self {
            sink: params.get_within("sink", 128, 0..=MOST_TOKENS)?,
            recent: params.get_positive("recent", 256)?,
            last: params.get_positive("last", 128)?,
        })
    }
}

/// Collects the streaming error of each KV head, `[layer][kv_head]`.
struct StreamingErrors {
    model: ModelShape,
    settings: Settings,
    heads: Vec<Vec<HeadError>>,
}

/// Errors of one KV head, over the query heads of its group.
#[derive(Clone, Default)]
struct HeadError {
    /// Sums over the prompts that have ended.
    total: Outputs,
    /// One entry for each position of the current prompt where streaming leaves tokens out.
    prompt: Vec<Outputs>,
    /// Number of positions in `total`.
    positions: usize,
}

/// Sums over the query heads of a group, for one position or over positions.
#[derive(Clone, Copy, Default)]
struct Outputs {
    /// Squared distances of streaming from full attention.
    distance: f64,
    /// Squared norms of full attention.
    norm: f64,
}

impl HeadError {
    /// Adds the last `last` positions of a prompt that has ended to the total.
    fn end_prompt(&mut self, last: usize) {
        let counted = &self.prompt[self.prompt.len().saturating_sub(last)..];
        for at in counted {
            self.total.distance += at.distance;
            self.total.norm += at.norm;
        }
        self.positions += counted.len();
        self.prompt.clear();
    }

    /// Mean squared distance over mean squared norm; 0 if nothing was measured.
    fn relative(&self) -> f64 {
        if self.total.norm > 0.0 { self.total.distance / self.total.norm } else { 0.0 }
    }
}

impl StreamingErrors {
    fn new(model: &ModelShape, settings: Settings) -> Self {
        let heads = vec![vec![HeadError::default(); model.kv_heads]; model.layers];
        Self { model: model.clone(), settings, heads }
    }

    fn end(&mut self) {
        let last = self.settings.last;
        self.heads.iter_mut().flatten().for_each(|head| head.end_prompt(last));
    }
}

impl Settings {
    /// The settings as noted in an artefact.
    fn told(&self) -> BTreeMap<String, String> {
        let Self { sink, recent, last } = self;
        let numbers = [("sink", sink), ("recent", recent), ("last", last)];
        BTreeMap::from(numbers.map(|(key, number)| (key.to_owned(), number.to_string())))
    }

    /// Compares streaming with full attention for one token of a chunk at one KV head; `None` if streaming leaves no token out.
    fn outputs(&self, chunk: &HostChunk<'_>, kv_head: usize, token: usize) -> Option<Outputs> {
        let total = chunk.first + token + 1;
        let (d, start) = (chunk.d(), total.saturating_sub(self.recent));
        if start <= self.sink {
            return None;
        }
        let group = chunk.heads / chunk.kv_heads();
        let queries = &chunk.queries()[(token * chunk.heads + kv_head * group) * d..][..group * d];
        let scale = chunk.scale().factor();
        let queries: Vec<f32> = queries.iter().map(|x| x * scale).collect();
        let (keys, values) = (chunk.kv().keys.head(kv_head), chunk.kv().values.head(kv_head));
        let mut attention = Accumulator::new(group, d);
        let mut attend = |tokens: std::ops::Range<usize>| {
            attend_range(&queries, keys.slice(tokens.clone(), d), values.slice(tokens, d), &mut attention);
            let mut out = vec![0.0; group * d];
            attention.finish(&mut out);
            out
        };
        attend(0..self.sink);
        let streaming = attend(start..total);
        let full = attend(self.sink..start);
        let distance = full.iter().zip(&streaming).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        Some(Outputs { distance, norm: full.iter().map(|x| f64::from(*x).powi(2)).sum() })
    }
}

impl Collector for StreamingErrors {
    fn observe(&mut self, chunk: &PrefillChunk<'_>) -> Result<(), KvError> {
        let chunk = &chunk.on_host()?;
        let settings = &self.settings;
        let heads = self.heads[chunk.layer].par_iter_mut().enumerate();
        heads.for_each(|(kv_head, head)| {
            let outputs: Vec<Option<Outputs>> =
                (0..chunk.tokens()).into_par_iter().map(|token| settings.outputs(chunk, kv_head, token)).collect();
            head.prompt.extend(outputs.into_iter().flatten());
        });
        Ok(())
    }

    fn end_prompt(&mut self, _tokens: usize) {
        self.end();
    }

    fn finish(mut self: Box<Self>) -> Collected {
        self.end();
        let errors: Vec<Vec<f64>> =
            self.heads.iter().map(|heads| heads.iter().map(HeadError::relative).collect()).collect();
        let tensor = |(layer, errors): (usize, &Vec<f64>)| NamedTensor {
            name: tensor_name(layer),
            shape: vec![self.model.kv_heads],
            values: errors.iter().map(|error| *error as f32).collect(),
            precision: Precision::F32,
        };
        let Settings { sink, recent, .. } = self.settings;
        let positions = self.heads.first().and_then(|heads| heads.first()).map_or(0, |head| head.positions);
        let mut settings = self.settings.told();
        settings.insert("positions".to_owned(), positions.to_string());
        Collected {
            tensors: errors.iter().enumerate().map(tensor).collect(),
            settings,
            notes: vec![in_words(&errors, positions, sink + recent)],
            held_out: None,
        }
    }

    fn checkpoint(&self) -> Collected {
        let sums = |head: &HeadError| [head.total.distance, head.total.norm, head.positions as f64];
        let tensor =
            |(layer, heads): (usize, &Vec<HeadError>)| sums::tensor(sums_name(layer), heads.iter().flat_map(sums));
        let tensors = self.heads.iter().enumerate().map(tensor).collect();
        Collected { tensors, settings: self.settings.told(), ..Collected::default() }
    }

    fn restore(&mut self, checkpoint: &Artefact) -> Result<(), ArtefactError> {
        self.settings.told().iter().try_for_each(|(key, value)| checkpoint.check_setting(key, value))?;
        for (layer, heads) in self.heads.iter_mut().enumerate() {
            let mut positions = vec![0.0; heads.len()];
            let with_positions = heads.iter_mut().zip(&mut positions);
            let sums = with_positions
                .flat_map(|(head, positions)| [&mut head.total.distance, &mut head.total.norm, positions]);
            sums::restore(checkpoint, &sums_name(layer), sums)?;
            heads.iter_mut().zip(positions).for_each(|(head, positions)| head.positions = positions as usize);
        }
        Ok(())
    }
}

/// Name of the checkpoint's tensor with a layer's sums.
fn sums_name(layer: usize) -> String {
    format!("layers.{layer}.sums")
}

/// Summarises the errors in one line.
fn in_words(errors: &[Vec<f64>], positions: usize, streamed: usize) -> String {
    if positions == 0 {
        return format!("nothing was measured: no prompt is longer than the {streamed} tokens of streaming heads");
    }
    let mut sorted: Vec<f64> = errors.iter().flatten().copied().collect();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share).round() as usize];
    let (least, middle, most) = (at(0.0), at(0.5), at(1.0));
    format!("streaming moves a KV head's output by {least:.3} to {most:.3} of its squared norm (median {middle:.3})")
}

#[cfg(test)]
mod tests;

//! Offline calibration: the data of a dense prefill, and the collectors that learn from it.
//!
//! A [`Calibration`] makes one kind of [`Artefact`]: its [`Collector`] sees the rotated queries and the cached keys and values of every
//! layer, chunk by chunk, and returns tensors. The caller decides which text is read and where artefacts are written.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::calibration::artefact::{Artefact, ArtefactError, ModelShape, NamedTensor};
use crate::kv::{DeviceFailure, KvError, KvShape, KvStore, LayerKv, Tier};
use crate::spec::{MethodSpec, ParamInfo, Params};
use crate::types::attention_spec::{AttentionSpec, SoftmaxScale};
use crate::types::positions::Rotation;
use spattn_base::error::UsageError;

/// Tokens of a prompt at one layer of a dense prefill, before attention.
///
/// If a device computes the prefill, queries, keys and values are copied to the host on first use. If a copy fails, the call that needs it
/// returns an error, so no caller ever gets wrong numbers in their place.
#[derive(Clone, Copy)]
pub struct PrefillChunk<'a> {
    /// Layer, from 0.
    pub layer: usize,
    /// Position of the chunk's first token in the prompt.
    pub first: usize,
    /// Number of query heads.
    pub heads: usize,
    tokens: usize,
    shape: KvShape,
    source: Source<'a>,
    input: Option<&'a [f32]>,
    /// How the layer attends; `None` for the default.
    spec: Option<&'a AttentionSpec>,
}

#[derive(Clone, Copy)]
enum Source<'a> {
    Host { queries: &'a [f32], kv: &'a LayerKv },
    Device(&'a dyn DeviceChunk),
}

/// A chunk that a device computes; each call copies what it returns to the host.
pub trait DeviceChunk: Sync {
    /// Like [`PrefillChunk::queries`].
    ///
    /// # Errors
    /// If the device fails.
    fn queries(&self) -> Result<&[f32], DeviceFailure>;

    /// Like [`PrefillChunk::input`].
    ///
    /// # Errors
    /// If the device fails.
    fn input(&self) -> Result<Vec<f32>, DeviceFailure>;

    /// Like [`PrefillChunk::queries_of`], which checks that all tokens are in the chunk.
    ///
    /// # Errors
    /// If the device fails.
    fn queries_of(&self, tokens: &[u32]) -> Result<Vec<f32>, DeviceFailure>;

    /// Like [`PrefillChunk::kv`].
    ///
    /// # Errors
    /// If the device fails.
    fn kv(&self) -> Result<&LayerKv, DeviceFailure>;

    /// Adds the softmax weights of the chunk's queries at `positions` to `mass: [head][token]`, which covers all tokens up to the last of
    /// these positions. Each query sees the tokens up to its own.
    ///
    /// # Errors
    /// If the device fails; the contents of `mass` are unspecified then.
    fn add_attention_mass(&self, positions: Range<usize>, mass: &mut [f32]) -> Result<(), DeviceFailure>;
}

/// Called with each chunk of a prefill at each layer, in the order of computation. An error ends the prefill.
pub type ObserveChunk<'o> = dyn FnMut(&PrefillChunk<'_>) -> Result<(), KvError> + 'o;

/// A chunk whose queries, keys and values are in host memory.
#[derive(Clone, Copy)]
pub struct HostChunk<'a> {
    chunk: PrefillChunk<'a>,
    queries: &'a [f32],
    kv: &'a LayerKv,
}

impl<'a> Deref for HostChunk<'a> {
    type Target = PrefillChunk<'a>;

    fn deref(&self) -> &PrefillChunk<'a> {
        &self.chunk
    }
}

impl<'a> HostChunk<'a> {
    /// Rotated, unscaled queries `[token][head][d]` of the chunk.
    pub fn queries(&self) -> &'a [f32] {
        self.queries
    }

    /// Rotated keys, and values, of all tokens up to the chunk's last, as in the KV cache.
    pub fn kv(&self) -> &'a LayerKv {
        self.kv
    }

    /// Returns the query of one head of the chunk's token `token`.
    pub fn query(&self, token: usize, head: usize) -> &'a [f32] {
        &self.queries[(token * self.heads + head) * self.d()..][..self.d()]
    }

    /// Returns keys and values `[token][kv_head][d]` of only the chunk's tokens.
    pub fn rows(&self) -> (Vec<f32>, Vec<f32>) {
        let (d, range) = (self.d(), self.first..self.end());
        let by_token = |store: &KvStore| {
            let of_head = |head| store.head(head).slice(range.clone(), d).to_f32();
            let heads: Vec<Vec<f32>> = (0..store.kv_heads()).map(of_head).collect();
            (0..range.len())
                .flat_map(|token| heads.iter().flat_map(move |head| &head[token * d..][..d]))
                .copied()
                .collect()
        };
        (by_token(&self.kv.keys), by_token(&self.kv.values))
    }

    /// Returns keys `[token][d]` of one KV head, for only the chunk's tokens.
    pub fn keys(&self, kv_head: usize) -> Vec<f32> {
        self.kv.keys.head(kv_head).slice(self.first..self.end(), self.d()).to_f32()
    }
}

impl<'a> PrefillChunk<'a> {
    /// A chunk of the tokens of `kv` from position `first`, with their rotated, unscaled `queries` `[token][head][d]`.
    pub fn new(layer: usize, first: usize, queries: &'a [f32], heads: usize, kv: &'a LayerKv) -> Self {
        let tokens = kv.tokens() - first;
        let source = Source::Host { queries, kv };
        Self { layer, first, heads, tokens, shape: kv.shape(), source, input: None, spec: None }
    }

    /// A chunk of `tokens` tokens from position `first`, in the memory of a device.
    pub fn on_device(
        layer: usize,
        first: usize,
        tokens: usize,
        heads: usize,
        shape: KvShape,
        source: &'a dyn DeviceChunk,
    ) -> Self {
        Self { layer, first, heads, tokens, shape, source: Source::Device(source), input: None, spec: None }
    }

    /// Adds the layer's input, `[token][hidden]`, before its norm.
    pub fn with_input(self, input: &'a [f32]) -> Self {
        Self { input: Some(input), ..self }
    }

    /// The same chunk at a layer that attends as `spec` says instead of [by default](AttentionSpec::of_width).
    pub fn with_spec(self, spec: &'a AttentionSpec) -> Self {
        Self { spec: Some(spec), ..self }
    }

    /// How the layer attends.
    pub fn spec(&self) -> AttentionSpec {
        self.spec.cloned().unwrap_or_else(|| AttentionSpec::of_width(self.d()))
    }

    /// Factor of the layer's logits.
    pub fn scale(&self) -> SoftmaxScale {
        self.spec.map_or_else(|| SoftmaxScale::inverse_root(self.d()), |spec| spec.scale)
    }

    /// The layer's input, `[token][hidden]`, before its norm; `None` if the chunk is in host memory and was made without it.
    ///
    /// # Errors
    /// If a device that computes the chunk fails.
    pub fn input(&self) -> Result<Option<Cow<'a, [f32]>>, KvError> {
        match self.source {
            Source::Host { .. } => Ok(self.input.map(Cow::Borrowed)),
            Source::Device(chunk) => {
                chunk.input().map(|input| Some(Cow::Owned(input))).map_err(|failure| self.error(failure))
            }
        }
    }

    /// Returns the chunk with its queries, keys and values in host memory. If a device computes the prefill, they are copied now. Call this
    /// before distributing work over threads, because the copy uses these threads, too.
    ///
    /// # Errors
    /// If the device fails.
    pub fn on_host(&self) -> Result<HostChunk<'a>, KvError> {
        Ok(HostChunk { chunk: *self, queries: self.queries()?, kv: self.kv()? })
    }

    /// Returns the rotated, unscaled queries `[token][head][d]` of the chunk.
    ///
    /// # Errors
    /// If a device that computes the chunk fails.
    pub fn queries(&self) -> Result<&'a [f32], KvError> {
        match self.source {
            Source::Host { queries, .. } => Ok(queries),
            Source::Device(chunk) => chunk.queries().map_err(|failure| self.error(failure)),
        }
    }

    /// Returns the queries of the chunk's last `count` tokens, or of all if there are fewer.
    ///
    /// # Errors
    /// If a device that computes the chunk fails.
    pub fn last_queries(&self, count: usize) -> Result<Cow<'a, [f32]>, KvError> {
        let count = count.min(self.tokens);
        match self.source {
            Source::Host { queries, .. } => {
                Ok(Cow::Borrowed(&queries[(self.tokens - count) * self.heads * self.d()..]))
            }
            Source::Device(_) => {
                let last: Vec<u32> = ((self.tokens - count) as u32..self.tokens as u32).collect();
                self.queries_of(&last).map(Cow::Owned)
            }
        }
    }

    /// Returns the queries of some tokens of the chunk, which are numbered from the chunk's first, ascending. Unlike
    /// [`queries`](Self::queries), copies no others from a device.
    ///
    /// # Errors
    /// If a device that computes the chunk fails.
    ///
    /// # Panics
    /// If a token is beyond the chunk.
    pub fn queries_of(&self, tokens: &[u32]) -> Result<Vec<f32>, KvError> {
        let beyond = tokens.iter().find(|token| **token as usize >= self.tokens);
        assert!(beyond.is_none(), "token {beyond:?} is beyond a chunk of {} tokens", self.tokens);
        match self.source {
            Source::Host { queries, .. } => {
                let width = self.heads * self.d();
                Ok(tokens.iter().flat_map(|token| &queries[*token as usize * width..][..width]).copied().collect())
            }
            Source::Device(chunk) => chunk.queries_of(tokens).map_err(|failure| self.error(failure)),
        }
    }

    /// Rotated keys, and values, of all tokens up to the chunk's last, as in the KV cache.
    ///
    /// # Errors
    /// If a device that computes the chunk fails.
    pub fn kv(&self) -> Result<&'a LayerKv, KvError> {
        match self.source {
            Source::Host { kv, .. } => Ok(kv),
            Source::Device(chunk) => chunk.kv().map_err(|failure| self.error(failure)),
        }
    }

    /// The error of a failed copy of this chunk, or of data computed from it, from the device.
    pub(crate) fn error(&self, failure: DeviceFailure) -> KvError {
        KvError::Unread { layer: self.layer, tier: Tier::Device, why: failure.to_string() }
    }

    /// The device that computes the chunk, if one does.
    pub fn device(&self) -> Option<&'a dyn DeviceChunk> {
        match self.source {
            Source::Host { .. } => None,
            Source::Device(chunk) => Some(chunk),
        }
    }

    /// Number of tokens in the chunk.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Number of tokens from the start of the prompt up to the chunk's last.
    pub fn end(&self) -> usize {
        self.first + self.tokens
    }

    /// Shape of the keys and values of a token.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Number of KV heads of the layer.
    pub fn kv_heads(&self) -> usize {
        self.shape.kv_heads
    }

    /// Width of a head.
    pub fn d(&self) -> usize {
        self.shape.d
    }
}

/// Learns from prefills.
pub trait Collector: Send {
    /// Processes a chunk. Prompts come one after the other; a chunk passes all layers in order before the next chunk.
    ///
    /// # Errors
    /// If a device that computes the chunk fails. The collector has then learned nothing from the chunk.
    fn observe(&mut self, chunk: &PrefillChunk<'_>) -> Result<(), KvError>;

    /// Called at the end of each prompt, with its number of tokens.
    fn end_prompt(&mut self, _tokens: usize) {}

    /// Evaluates on a hold-out chunk. Hold-out chunks come after all others.
    ///
    /// # Errors
    /// Those of [`observe`](Self::observe).
    fn examine(&mut self, _chunk: &PrefillChunk<'_>) -> Result<(), KvError> {
        Ok(())
    }

    /// Returns the result.
    fn finish(self: Box<Self>) -> Collected;

    /// The state after the prompts read so far, as the tensors and settings of a checkpoint.
    fn checkpoint(&self) -> Collected;

    /// Resumes from a checkpoint that an equal collector wrote.
    ///
    /// # Errors
    /// If the checkpoint has other settings or is malformed.
    fn restore(&mut self, checkpoint: &Artefact) -> Result<(), ArtefactError>;
}

/// The result of a [`Collector`], or its checkpoint.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Collected {
    /// Tensors of the artefact.
    pub tensors: Vec<NamedTensor>,
    /// Settings for [`ArtefactInfo::settings`](crate::calibration::artefact::ArtefactInfo::settings).
    pub settings: BTreeMap<String, String>,
    /// Notes for the user, one line each.
    pub notes: Vec<String>,
    /// Hold-out evaluation, as CSV.
    pub held_out: Option<String>,
}

/// A calibration that makes one kind of artefact.
pub struct Calibration {
    /// Kind of the artefact: the name of the method that reads it.
    pub kind: &'static str,
    /// What is learned, in one line.
    pub about: &'static str,
    /// The settings with defaults and meaning, written like a method's parameters.
    pub params: &'static [ParamInfo],
    /// What it reads by default.
    pub reading: Reading,
    /// Chooses the generated text by the settings, in place of that of [`reading`](Self::reading).
    pub text: Option<TextBySettings>,
    /// Makes a collector; its randomness comes only from the seed.
    pub start: StartCollector,
    /// Imports what others learned about a model of this shape, from the bytes of their file; `None` if such files are not supported.
    pub import: Option<Import>,
    /// Upper bound of the bytes of queries and keys that are held before the collector learns from them, while a model of this shape reads
    /// prompts of the given number of tokens.
    pub waiting: fn(&ModelShape, usize) -> usize,
}

/// Makes a collector from its settings.
///
/// # Errors
/// If a setting is out of range.
pub type StartCollector = fn(&Assignment<'_>, &mut Params) -> Result<Box<dyn Collector>, UsageError>;

/// Chooses the generated text by the settings.
///
/// # Errors
/// If a setting is out of range.
pub type TextBySettings = fn(&MethodSpec) -> Result<ReadingText, UsageError>;

/// Imports what others learned about a model, from the bytes of their file.
///
/// # Errors
/// One line that says what does not fit.
pub type Import = fn(&ModelShape, &[u8]) -> Result<Collected, String>;

/// What a collector knows before it starts.
#[derive(Clone)]
pub struct Assignment<'a> {
    /// The model's rotation; `None` if its frequencies change within the text.
    pub rotation: Option<Arc<dyn Rotation>>,
    /// The model that reads the text.
    pub model: &'a ModelShape,
    /// Seed of all randomness.
    pub seed: u64,
    /// Approximate number of tokens that will be read.
    pub tokens: usize,
    /// The kind of text.
    pub text: TextKind,
}

/// The kind of text that a calibration learns from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextKind {
    /// Running text.
    General,
    /// Prompts of tasks, or training rows like them; may include running text.
    Tasks,
}

/// What a calibration reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The text.
    pub text: ReadingText,
    /// Number of tokens in all prompts together.
    pub tokens: usize,
    /// Largest number of tokens of a prompt.
    pub length: usize,
    /// Number of hold-out prompts, for evaluation.
    pub held_out: usize,
}

impl Reading {
    /// Eight blocks of generated essays, enough for means and variances.
    pub const STATISTICS: Self = Self { text: ReadingText::Essays, tokens: 32_768, length: 4096, held_out: 0 };
}

/// Generated text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadingText {
    /// Essays, all blocks of one length.
    Essays,
    /// Contexts of many lengths with questions and answers, of the same kinds as the tasks.
    Rows,
}

/// Returns text for notes, such as "8, 16 of 64" and "31, 52 %": for each of `counts`, the share of the sum of a list that its first
/// `count` entries hold, as the mean over all `masses` (lists in descending order).
pub(crate) fn shares_in_words(counts: &[usize], d: usize, masses: &[Vec<f64>]) -> (String, String) {
    let counts: Vec<usize> = counts.iter().copied().filter(|c| (1..d).contains(c)).collect();
    let share = |mass: &Vec<f64>, count: usize| {
        let all: f64 = mass.iter().sum();
        if all > 0.0 { mass[..count].iter().sum::<f64>() / all } else { 0.0 }
    };
    let mean = |count: usize| masses.iter().map(|m| share(m, count)).sum::<f64>() / masses.len().max(1) as f64;
    let percents: Vec<String> = counts.iter().map(|c| format!("{:.0}", 100.0 * mean(*c))).collect();
    let counts: Vec<String> = counts.iter().map(usize::to_string).collect();
    (format!("{} of {d}", counts.join(", ")), format!("{} %", percents.join(", ")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::kv::KvDtype;
    use crate::methods::configure;
    use crate::{LayerSpecs, Policy, PromptNeed, PromptShape, PromptStats, RecentQueries, SparsePrefill, expand_grid};

    const SHAPE: KvShape = KvShape { kv_heads: 1, d: 8, dtype: KvDtype::F32 };
    const TOKENS: usize = 20;

    /// A device on which every copy fails.
    struct Gone;

    fn gone<T>() -> Result<T, DeviceFailure> {
        Err(DeviceFailure::new("the device is gone"))
    }

    impl DeviceChunk for Gone {
        fn queries(&self) -> Result<&[f32], DeviceFailure> {
            gone()
        }

        fn input(&self) -> Result<Vec<f32>, DeviceFailure> {
            gone()
        }

        fn queries_of(&self, _: &[u32]) -> Result<Vec<f32>, DeviceFailure> {
            gone()
        }

        fn kv(&self) -> Result<&LayerKv, DeviceFailure> {
            gone()
        }

        fn add_attention_mass(&self, _: Range<usize>, _: &mut [f32]) -> Result<(), DeviceFailure> {
            gone()
        }
    }

    #[test]
    fn a_copy_that_fails_is_an_error_of_every_reader_of_the_chunk() {
        let chunk = PrefillChunk::on_device(1, 0, TOKENS, 2, SHAPE, &Gone);
        let expected = KvError::Unread { layer: 1, tier: Tier::Device, why: "the device is gone".to_owned() };
        assert_eq!(chunk.on_host().err(), Some(expected.clone()));
        assert_eq!(chunk.input(), Err(expected.clone()));
        assert_eq!(RecentQueries::default().observe(&chunk), Err(expected.clone()));
        let shape = PromptShape { layers: 2, heads: 2, kv_heads: 1, d: 8, tokens: TOKENS };
        let needs = [
            PromptNeed::LastQueries(3),
            PromptNeed::SampledQueries(4),
            PromptNeed::AttentionMass,
            PromptNeed::FollowingScores(2),
        ];
        for need in needs {
            let seen = PromptStats::new(&BTreeSet::from([need]), shape).observe(&chunk);
            assert_eq!(seen, Err(expected.clone()), "{need:?}");
        }
        let specs = LayerSpecs::uniform(2, AttentionSpec::of_width(8));
        for spec in ["topk:k=3", "a_shape:window=4", "vertical_slash:vertical=3,slash=3"] {
            let method = configure(&expand_grid(spec).unwrap()[0], &Policy::default()).unwrap();
            let mut sparse = SparsePrefill::new(&method, &specs, 1).unwrap();
            let read = sparse.attend(&chunk, &mut vec![0.0; TOKENS * 2 * 8]);
            assert_eq!(read, Err(expected.clone()), "{spec}");
        }
        for calibration in crate::methods::CALIBRATIONS {
            let model = ModelShape { weights_sha256: "none".into(), layers: 2, heads: 2, kv_heads: 1, head_dim: 8 };
            let of = Assignment { rotation: None, model: &model, seed: 1, tokens: TOKENS, text: TextKind::General };
            // The chunk starts late, because nets are trained only on queries that see enough tokens.
            let long = PrefillChunk::on_device(1, 20_000, TOKENS, 2, SHAPE, &Gone);
            let spec = expand_grid(calibration.kind).unwrap().remove(0);
            let mut collector = (calibration.start)(&of, &mut Params::new(&spec)).unwrap();
            assert_eq!(collector.observe(&long), Err(expected.clone()), "{}", calibration.kind);
        }
    }
}

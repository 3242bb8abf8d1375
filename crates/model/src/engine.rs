//! What a decoder computes on: the interface between it and the engines that know a processor.
//!
//! An engine holds the weights, reads tokens into a prefix and steps streams in lock-step. What is read, by whom, and what
//! becomes of logits is the business of [`decoder`](super::decoder) and of what stands above it.

use std::any::Any;
use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

use rayon::prelude::*;

use super::token_scores::{Distributions, PredictingRows, RowLogits, ScoredPart, TokenScore};
use spattn_attention::calibration::ObserveChunk;
use spattn_attention::kv::{DeviceFailure, DiskTier, KvError, Prefix};
use spattn_attention::{Sequence, SparsePrefill, StartError};

/// Why tokens could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The numbers broke.
    #[error(transparent)]
    NotFinite(#[from] NotFinite),
    /// The device did.
    #[error(transparent)]
    Device(#[from] DeviceFailure),
    /// Keys and values could not be stored, or read back.
    #[error(transparent)]
    Kv(#[from] KvError),
}

impl From<StartError> for EngineError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Kv(error) => error.into(),
            StartError::Device(failure) => failure.into(),
        }
    }
}

/// A NaN or an infinite number came up while tokens were read: nothing that follows from it means anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotFinite {
    /// In what a layer passes on.
    #[error(
        "the activations after layer {layer} are NaN or infinite at position {position}: the cause is a calibration, or numbers \
         beyond the range of --dtype (that of bf16 and f32 is larger than that of f16)"
    )]
    Activations {
        /// The layer, from 0.
        layer: usize,
        /// The token's position, from 0.
        position: usize,
    },
    /// Behind the last layer.
    #[error(
        "the logits are NaN or infinite at position {position}: the cause is numbers beyond the range of --dtype, or broken weights"
    )]
    Logits {
        /// The token's position, from 0.
        position: usize,
    },
}

/// What prefill leaves: the shared prefix and the logits of its last token.
pub struct Prefill {
    /// Keys and values of all layers.
    pub prefix: Arc<Prefix>,
    /// `[vocab_size]`, empty if the prefix is.
    pub logits: Vec<f32>,
}

/// Tokens that a stream is given in one step at most: a bound on the memory of a step.
pub const READ_AT_ONCE: usize = 128;

/// One run's part of a step: tokens to read, in order, under its method.
pub struct Stream<'a> {
    /// The run.
    pub fork: &'a mut Sequence,
    /// Tokens that follow what the fork holds; at least one.
    pub tokens: &'a [u32],
}

/// What a GPU was used for.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GpuUse {
    /// How many there are.
    pub gpus: usize,
    /// The most bytes that weights, prefixes, indexes and activations took together; the sum over GPUs, each at its own time.
    pub most_bytes: usize,
    /// What they would take at most, as estimated before the run; 0 where that was not known.
    pub expected_bytes: usize,
    /// Steps in which tokens were picked, and where their time went; of others there is no such split.
    pub steps: usize,
    /// All but attention.
    pub weights: Duration,
    /// Attending what was picked.
    pub attend: Duration,
    /// Picking, in layers where the device alone does.
    pub select_on_device: Duration,
    /// Picking, in layers where the host does for one method at least: the device waits.
    pub select_on_host: Duration,
}

impl GpuUse {
    /// Together with what other GPUs were used for in the same run.
    #[must_use]
    pub fn beside(self, other: Self) -> Self {
        let mut both = self;
        both += other;
        Self { gpus: self.gpus + other.gpus, most_bytes: self.most_bytes + other.most_bytes, ..both }
    }

    /// The same, if each GPU had this many copies of the model, which were counted as a GPU each.
    #[must_use]
    pub fn of_copies(self, on_each: usize) -> Self {
        Self { gpus: self.gpus / on_each, ..self }
    }
}

impl AddAssign for GpuUse {
    fn add_assign(&mut self, other: Self) {
        self.gpus = self.gpus.max(other.gpus);
        self.most_bytes = self.most_bytes.max(other.most_bytes);
        self.expected_bytes = self.expected_bytes.max(other.expected_bytes);
        self.steps += other.steps;
        self.weights += other.weights;
        self.attend += other.attend;
        self.select_on_device += other.select_on_device;
        self.select_on_host += other.select_on_host;
    }
}

impl fmt::Display for GpuUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = self.most_bytes as f64 / 1e9;
        match self.gpus {
            0 | 1 => write!(f, "GPU: {most:.1} GB of its memory at most")?,
            gpus => write!(f, "{gpus} GPUs: {most:.1} GB of their memory together at most")?,
        }
        match self.expected_bytes {
            0 => f.write_str(".")?,
            bytes => write!(f, ", {:.1} estimated before the run.", bytes as f64 / 1e9)?,
        }
        if self.steps == 0 {
            return Ok(());
        }
        let [weights, attend, device, host] =
            [self.weights, self.attend, self.select_on_device, self.select_on_host].map(|time| time.as_secs_f64());
        let steps = if self.steps == 1 { "1 step".to_owned() } else { format!("{} steps", self.steps) };
        write!(
            f,
            " {steps} with tokens to select: weights {weights:.2} s, attending {attend:.2}, selecting on the device \
             {device:.2}, waiting while the host selects {host:.2}."
        )
    }
}

/// Sees the first position of a chunk and its rows.
pub(super) type Finished<'a> = dyn FnMut(usize, &[f32]) + 'a;

/// Sees how many layers a chunk has passed, its first position and its rows of the residual stream.
pub(super) type Passed<'a> = dyn FnMut(usize, usize, &[f32]) + 'a;

/// How tokens are read, and who looks on.
#[derive(Default)]
pub(super) struct Reading<'a, 's> {
    /// Sees each chunk at every layer before it attends.
    pub observe: Option<&'a mut ObserveChunk<'a>>,
    /// Sees the first position of each chunk and its rows `[token][hidden]` behind the last layer.
    pub finished: Option<&'a mut Finished<'a>>,
    /// Sees the rows `[token][hidden]` of each chunk behind the embedding, and then behind each layer. Only the engine on the CPU
    /// shows them.
    pub passed: Option<&'a mut Passed<'a>>,
    /// What rows attend; all earlier tokens if there is none.
    pub sparse: Option<&'a mut SparsePrefill<'s>>,
    /// Where keys and values are kept.
    pub kv: &'a KvPlacement,
}

/// Where keys and values of prefixes are kept.
#[derive(Debug)]
pub(super) enum KvPlacement {
    /// In the memory of what computes.
    Memory,
    /// In host memory. For the engine on the CPU that is its memory.
    Host {
        /// Bytes of GPU memory in which each sequence caches tokens that it has fetched; `None` if it caches none.
        #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only GPUs cache tokens"))]
        cached: Option<usize>,
    },
    /// In files. Only the engine on the CPU does that.
    Disk(DiskTier),
}

impl Default for &KvPlacement {
    fn default() -> Self {
        &KvPlacement::Memory
    }
}

/// Weights on some processor, and the forward pass over them.
pub(super) trait Engine: Any + Send + Sync {
    /// Reads `tokens`, of which the first so many of `known` are read already, into a prefix that has all of them and
    /// nothing else. `prompt_tokens` is the length of the whole prompt, of which these are the beginning. The logits are
    /// those of the last token, empty if there is none.
    fn read(
        &self,
        known: Option<(Prefix, usize)>,
        tokens: &[u32],
        prompt_tokens: usize,
        reading: Reading<'_, '_>,
    ) -> Result<Prefill, EngineError>;

    /// Feeds each stream its tokens, in lock-step through the layers; the rows `[token][hidden]` of all streams behind the
    /// last layer.
    fn step(&self, streams: &mut [Stream<'_>], prompt_tokens: usize) -> Result<Vec<f32>, EngineError>;

    /// As [`step`](Self::step); the likeliest token after the last one of each stream, the first of equally likely ones. `None`, with nothing
    /// done, where the engine does not choose tokens without giving out their logits.
    fn step_argmax(&self, _streams: &mut [Stream<'_>], _prompt_tokens: usize) -> Result<Option<Vec<u32>>, EngineError> {
        Ok(None)
    }

    /// Counts what a run's method picked on the device, when the run is at its end; steps do not wait for that.
    fn collect_device_counters(&self, _fork: &mut Sequence) -> Result<(), EngineError> {
        Ok(())
    }

    /// Logits `[token][vocab_size]` of rows `[token][hidden]` behind the last layer.
    fn logits(&self, x: &[f32]) -> Result<Vec<f32>, EngineError>;

    /// Logits of rows `[token][hidden]` behind the last layer, kept where they are computed. `None`, with nothing done, where the engine gives
    /// them out ([`logits`](Self::logits)).
    fn row_logits(&self, _x: &[f32]) -> Result<Option<RowLogits>, EngineError> {
        Ok(None)
    }

    /// The distributions of rows by logits that the engine keeps, with what each makes of its target, compared with itself.
    fn distributions(
        &self,
        _logits: RowLogits,
        _rows: PredictingRows<'_>,
    ) -> Result<(Distributions, Vec<TokenScore>), EngineError> {
        unreachable!("the engine keeps no logits")
    }

    /// What the distributions of each part's rows make of their targets, by logits of all parts that the engine keeps, compared with those of
    /// `full` that belong to the part.
    fn score_tokens(&self, _logits: RowLogits, _parts: &[ScoredPart<'_>]) -> Result<Vec<Vec<TokenScore>>, EngineError> {
        unreachable!("the engine keeps no logits")
    }

    /// What the GPU is called, if it computes on one.
    fn gpu(&self) -> Option<&str>;

    /// What the GPU was used for, if it computes on one.
    fn gpu_use(&self) -> Option<GpuUse> {
        None
    }

    /// Groups that so many streams are best dealt out to; those of a group step together.
    fn groups(&self, streams: usize) -> usize;
}

/// The positions of the tokens that streams are to read, stream by stream.
pub(super) fn positions(streams: &[Stream<'_>]) -> Vec<usize> {
    streams.iter().flat_map(|s| (0..s.tokens.len()).map(|i| s.fork.tokens() + i)).collect()
}

/// The first row `[width]` of `x` with a number that is not finite.
pub(super) fn first_not_finite(x: &[f32], width: usize) -> Option<usize> {
    let is_broken = |row: &[f32]| !row.iter().fold(true, |finite, x| finite & x.is_finite());
    x.par_chunks_exact(width).position_first(is_broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_gpus_were_used_for_adds_up_and_says_so() {
        let second = Duration::from_secs(1);
        let first = GpuUse { most_bytes: 3_000_000_000, steps: 1, attend: second, ..GpuUse::default() };
        let second = GpuUse { most_bytes: 2_000_000_000, steps: 4, select_on_host: 2 * second, ..first };
        let mut both = first;
        both += second;
        assert_eq!((both.most_bytes, both.steps), (3_000_000_000, 5));
        assert_eq!(
            both.to_string(),
            "GPU: 3.0 GB of its memory at most. 5 steps with tokens to select: weights 0.00 s, attending 2.00, selecting on \
             the device 0.00, waiting while the host selects 2.00."
        );
        let beside = first.beside(GpuUse { gpus: 1, ..second });
        assert_eq!((beside.gpus, beside.most_bytes, beside.steps), (1, 5_000_000_000, 5));
        let foreseen = GpuUse { steps: 0, expected_bytes: 3_500_000_000, ..first };
        assert_eq!(foreseen.to_string(), "GPU: 3.0 GB of its memory at most, 3.5 estimated before the run.");
        assert_eq!(GpuUse { steps: 0, ..first }.to_string(), "GPU: 3.0 GB of its memory at most.");
        let several = GpuUse { gpus: 2, ..foreseen };
        let said = "2 GPUs: 3.0 GB of their memory together at most, 3.5 estimated before the run.";
        assert_eq!(several.to_string(), said);
        assert_eq!(GpuUse { gpus: 8, ..foreseen }.of_copies(4).to_string(), said, "four copies on each of two GPUs");
    }
}

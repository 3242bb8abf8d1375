//! The decoder: prefill into a prefix, dense and shared or by one method's mask, then steps in which each stream
//! attends by its own method.
//!
//! Streams of one example run in lock-step: all their rows pass each weight matrix together, so the
//! weights are read once for all methods and budgets. What computes is an [`engine`](super::engine).

#[cfg(feature = "cuda")]
use std::any::Any;
use std::ops::Deref;
#[cfg(feature = "cuda")]
use std::ops::Range;
use std::path::Path;

use rayon::prelude::*;

use super::cpu::Cpu;
use super::device::{Device, Placement};
pub use super::dimensions::Dimensions;
use super::division::GpuShare;
use super::engine::{Engine, EngineError, GpuUse, KvPlacement, NotFinite, Prefill, Reading, Stream, first_not_finite};
use super::layers;
use super::tensors::{Weights, WeightsError};
use super::token_scores::{Distributions, PredictingRows, RowLogits, ScoredPart, TokenScore, scores_of_logits};
use spattn_attention::calibration::ObserveChunk;
use spattn_attention::kv::{DeviceFailure, DiskTier, DiskUse, Prefix};
use spattn_attention::{Sequence, SparsePrefill};
use spattn_base::error::UsageError;
use spattn_kernels::topk::argmax;

/// Bytes of the logits by which tokens are scored that are in memory at a time, about.
const LOGIT_BYTES: usize = 64 << 20;

/// A Llama-family decoder with its weights in memory.
pub struct Decoder {
    dimensions: Dimensions,
    engine: Box<dyn Engine>,
    /// Where keys and values of prefixes are kept.
    kv: KvPlacement,
}

impl Deref for Decoder {
    type Target = Dimensions;

    fn deref(&self) -> &Dimensions {
        &self.dimensions
    }
}

/// Why a decoder cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A tensor is not what it should be.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The device is not there, or cannot take the weights.
    #[error(transparent)]
    Device(#[from] DeviceFailure),
}

/// An error that was to be found before, without its hint.
fn told(error: UsageError) -> DeviceFailure {
    DeviceFailure::new(error.what)
}

/// Opens GPUs and makes sure that each has room for the weights of its share.
#[cfg(feature = "cuda")]
fn open_gpus(
    dimensions: &Dimensions,
    shares: Vec<GpuShare>,
) -> Result<Vec<(spattn_cuda::Gpu, Range<usize>)>, DeviceFailure> {
    let is_one = shares.len() == 1;
    let open = |GpuShare { ordinal, free, layers }: GpuShare| {
        let gpu = spattn_cuda::Gpu::open(ordinal)?;
        let needed = dimensions.weight_bytes_of(&layers);
        let Some(free) = free.filter(|free| needed as u64 > *free) else { return Ok((gpu, layers)) };
        let what = match is_one {
            true => "the weights take".to_owned(),
            false => format!("on GPU {ordinal}, the weights of layers {} to {} take", layers.start, layers.end - 1),
        };
        Err(DeviceFailure::new(format!(
            "{what} {:.1} GB of the GPU's memory, and {:.1} GB are free: use a smaller model, or --dtype bf16",
            needed as f64 / 1e9,
            free as f64 / 1e9
        )))
    };
    shares.into_iter().map(open).collect()
}

#[cfg(feature = "cuda")]
fn cuda_engine(
    dimensions: &Dimensions,
    weights: &Weights,
    shares: Vec<GpuShare>,
) -> Result<Box<dyn Engine>, LoadError> {
    use super::cuda::{Cuda, LoadFailure};
    if let Some(obstacle) = dimensions.gpu_obstacle() {
        return Err(DeviceFailure::new(format!("{obstacle}; use --device cpu")).into());
    }
    match Cuda::load(dimensions, weights, open_gpus(dimensions, shares)?) {
        Ok(engine) => Ok(Box::new(engine)),
        Err(LoadFailure::Weights(error)) => Err(error.into()),
        Err(LoadFailure::Device(error)) => Err(DeviceFailure::from(error).into()),
    }
}

/// Another engine on the GPUs of `engine`, with the same weights.
#[cfg(feature = "cuda")]
fn engine_beside(engine: &dyn Engine) -> Result<Box<dyn Engine>, DeviceFailure> {
    let engine: &dyn Any = engine;
    match engine.downcast_ref::<super::cuda::Cuda>() {
        Some(engine) => Ok(Box::new(engine.beside()?)),
        None => Err(DeviceFailure::new("only a GPU has several copies of a model")),
    }
}

#[cfg(not(feature = "cuda"))]
fn engine_beside(_: &dyn Engine) -> Result<Box<dyn Engine>, DeviceFailure> {
    Err(DeviceFailure::new("this build computes on the CPU only"))
}

#[cfg(not(feature = "cuda"))]
fn cuda_engine(_: &Dimensions, _: &Weights, _: Vec<GpuShare>) -> Result<Box<dyn Engine>, LoadError> {
    Err(DeviceFailure::new("this build computes on the CPU only").into())
}

impl Decoder {
    /// Reads the weights to where the device of a placement computes, converted to the storage type unless they stay in quantised blocks.
    ///
    /// # Errors
    /// A tensor that is missing, misshapen or cannot be read; a device that is not there or cannot take them; a device that has
    /// [several copies](Device::copies), of which a decoder is one; or more GPUs than layers.
    pub fn load(
        dimensions: &Dimensions,
        weights: &Weights,
        placement: impl Into<Placement>,
    ) -> Result<Self, LoadError> {
        let Placement { device, tokens } = placement.into();
        match device.of_one_copy().map_err(told)? {
            Device::Cpu => {
                Self::with_engine(dimensions, weights, |dimensions| Ok(Box::new(Cpu::load(dimensions, weights)?)))
            }
            _ => Self::load_divided(dimensions, weights, dimensions.divide(device, tokens).map_err(told)?),
        }
    }

    /// As [`load`](Self::load), to GPUs of which each has a share of the layers. The shares follow each other from the first layer to the
    /// last; two of them may be on one GPU.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_divided(dimensions: &Dimensions, weights: &Weights, shares: Vec<GpuShare>) -> Result<Self, LoadError> {
        Self::with_engine(dimensions, weights, |dimensions| cuda_engine(dimensions, weights, shares))
    }

    /// Makes a copy of this decoder that computes beside it on the same GPUs. Both share the weights; the copy keeps keys and values in
    /// the memory of the GPU until it is told otherwise.
    ///
    /// # Errors
    /// If it computes on the CPU, whose cores one decoder uses; if a GPU cannot be opened again, or has no memory left.
    pub fn beside(&self) -> Result<Self, DeviceFailure> {
        let engine = engine_beside(self.engine.as_ref())?;
        Ok(Self { engine, dimensions: self.dimensions.clone(), kv: KvPlacement::Memory })
    }

    fn with_engine(
        dimensions: &Dimensions,
        weights: &Weights,
        load: impl FnOnce(&Dimensions) -> Result<Box<dyn Engine>, LoadError>,
    ) -> Result<Self, LoadError> {
        let dimensions = dimensions.clone().with_sinks(layers::sinks(&dimensions.config, weights)?);
        Ok(Self { engine: load(&dimensions)?, dimensions, kv: KvPlacement::Memory })
    }

    /// What the GPU is called, if it computes on one.
    pub fn gpu(&self) -> Option<&str> {
        self.engine.gpu()
    }

    /// Keeps keys and values of the prefixes that are read from now on in files in `folder`, of which pages of `memory` bytes are in memory.
    /// On a GPU nothing changes: prefixes stay in its memory.
    pub fn keep_kv_on_disk(&mut self, folder: &Path, memory: usize) {
        self.kv = KvPlacement::Disk(DiskTier::new(folder, memory, self.dimensions.kv_shape(), self.config.layers));
    }

    /// Keeps keys and values of the prefixes that are read from now on in host memory. On GPUs, each sequence caches tokens that it has
    /// fetched in `cached` bytes of their memory, if given. On a CPU nothing changes.
    pub fn keep_kv_on_host(&mut self, cached: Option<usize>) {
        self.kv = KvPlacement::Host { cached };
    }

    /// What was read and written on disk, where keys and values are kept there.
    pub fn disk_use(&self) -> Option<DiskUse> {
        match &self.kv {
            KvPlacement::Disk(disk) => Some(disk.used()),
            KvPlacement::Memory | KvPlacement::Host { .. } => None,
        }
    }

    /// Reading that keeps keys and values where they are to be.
    fn reading<'a, 's>(&'a self) -> Reading<'a, 's> {
        Reading { kv: &self.kv, ..Reading::default() }
    }

    /// The engine, if it computes on a GPU.
    #[cfg(feature = "cuda")]
    pub fn cuda(&self) -> Option<&super::cuda::Cuda> {
        let engine: &dyn Any = self.engine.as_ref();
        engine.downcast_ref()
    }

    /// What the GPU was used for so far, if it computes on one.
    pub fn gpu_use(&self) -> Option<GpuUse> {
        self.engine.gpu_use()
    }

    /// Groups that so many streams are best dealt out to; those of a group step together.
    pub fn groups(&self, streams: usize) -> usize {
        self.engine.groups(streams)
    }

    /// Reads `tokens` densely into a prefix. `prompt_tokens` is the length of the whole prompt, of which
    /// these are the beginning; only `dynamic` RoPE depends on it.
    ///
    /// # Errors
    /// As for all that reads tokens: [`EngineError`], with the layer and position where it came up.
    pub fn prefill(&self, tokens: &[u32], prompt_tokens: usize) -> Result<Prefill, EngineError> {
        self.prefill_observed(tokens, prompt_tokens, &mut |_| Ok(()))
    }

    /// As [`prefill`](Self::prefill), showing `observe` the queries, keys and values of every chunk at every
    /// layer, in the order in which they are computed.
    ///
    /// # Errors
    /// [`EngineError`], or that of `observe`, which ends the prefill.
    pub fn prefill_observed(
        &self,
        tokens: &[u32],
        prompt_tokens: usize,
        observe: &mut ObserveChunk<'_>,
    ) -> Result<Prefill, EngineError> {
        let reading = Reading { observe: Some(observe), ..self.reading() };
        self.engine.read(None, tokens, prompt_tokens, reading)
    }

    /// As [`prefill_observed`](Self::prefill_observed), where rows attend what `sparse` leaves them.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn prefill_sparse(
        &self,
        tokens: &[u32],
        prompt_tokens: usize,
        sparse: &mut SparsePrefill<'_>,
        observe: &mut ObserveChunk<'_>,
    ) -> Result<Prefill, EngineError> {
        let reading = Reading { observe: Some(observe), sparse: Some(sparse), ..self.reading() };
        self.engine.read(None, tokens, prompt_tokens, reading)
    }

    /// As [`prefill`](Self::prefill) of a whole text, or by `sparse`, with the rows `[token][hidden]` behind the last
    /// layer from token `from` on, which [`logits`](Self::logits) takes.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn prefill_rows(
        &self,
        tokens: &[u32],
        from: usize,
        sparse: Option<&mut SparsePrefill<'_>>,
    ) -> Result<(Prefill, Vec<f32>), EngineError> {
        let hidden = self.config.hidden_size;
        let mut rows = Vec::with_capacity(tokens.len().saturating_sub(from) * hidden);
        let mut keep = |first: usize, x: &[f32]| {
            let skipped = from.saturating_sub(first).min(x.len() / hidden);
            rows.extend_from_slice(&x[skipped * hidden..]);
        };
        let reading = Reading { sparse, finished: Some(&mut keep), ..self.reading() };
        let prefill = self.engine.read(None, tokens, tokens.len(), reading)?;
        Ok((prefill, rows))
    }

    /// The residual stream at some positions of a text that is read densely, `[layers passed][position][hidden]`: behind the embedding
    /// first, behind the last layer last. `None` on a GPU, which does not show it.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn residual_stream(&self, tokens: &[u32], positions: &[usize]) -> Result<Option<Vec<Vec<f32>>>, EngineError> {
        if self.engine.gpu().is_some() {
            return Ok(None);
        }
        let hidden = self.config.hidden_size;
        let mut stream = vec![Vec::new(); self.config.layers + 1];
        let mut keep = |passed: usize, first: usize, x: &[f32]| {
            let row = |position: &usize| position.checked_sub(first).and_then(|row| x.chunks_exact(hidden).nth(row));
            positions.iter().filter_map(row).for_each(|row| stream[passed].extend_from_slice(row));
        };
        let reading = Reading { passed: Some(&mut keep), ..self.reading() };
        self.engine.read(None, tokens, tokens.len(), reading)?;
        Ok(Some(stream))
    }

    /// As [`prefill_observed`](Self::prefill_observed), where the first `kept` of `tokens` were read before, for a prompt
    /// with the [same angles](Self::same_angles), and are still the first of `prefix`. The prefix is the one that
    /// reading all of `tokens` would give, to the bit. `observe` sees what is read now.
    ///
    /// # Errors
    /// [`EngineError`].
    ///
    /// # Panics
    /// If `kept` is not less than the number of tokens, or more than the prefix has.
    pub fn prefill_after(
        &self,
        prefix: Prefix,
        kept: usize,
        tokens: &[u32],
        prompt_tokens: usize,
        observe: &mut ObserveChunk<'_>,
    ) -> Result<Prefill, EngineError> {
        assert!(
            kept < tokens.len(),
            "{kept} kept tokens, but only {} tokens: the last one must be read for its logits",
            tokens.len()
        );
        let reading = Reading { observe: Some(observe), ..self.reading() };
        self.engine.read(Some((prefix, kept)), tokens, prompt_tokens, reading)
    }

    /// Whether tokens of a prompt of one length are rotated as those of another.
    pub fn same_angles(&self, prompt_tokens: usize, others: usize) -> bool {
        self.ropes().iter().all(|rope| rope.same_for(prompt_tokens, others))
    }

    /// Logits `[tokens][vocab_size]` at every position of a prompt read densely.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn all_logits(&self, tokens: &[u32]) -> Result<Vec<f32>, EngineError> {
        let (_, rows) = self.prefill_rows(tokens, 0, None)?;
        self.logits(&rows, |row| row)
    }

    /// Feeds each stream its tokens, in lock-step through the layers; returns the logits after the last
    /// token of each. `prompt_tokens` is the length of the example's prompt.
    ///
    /// # Errors
    /// [`EngineError`], if it came up in any of the streams.
    pub fn step(&self, streams: &mut [Stream<'_>], prompt_tokens: usize) -> Result<Vec<Vec<f32>>, EngineError> {
        let c = &self.config;
        let x = self.engine.step(streams, prompt_tokens)?;
        let mut end = 0;
        let mut last = Vec::with_capacity(streams.len() * c.hidden_size);
        for stream in streams.iter() {
            end += stream.tokens.len();
            last.extend_from_slice(&x[(end - 1) * c.hidden_size..end * c.hidden_size]);
        }
        let logits = self.logits(&last, |stream| streams[stream].fork.tokens() - 1)?;
        Ok(logits.par_chunks_exact(c.vocab_size).map(<[f32]>::to_vec).collect())
    }

    /// As [`step`](Self::step); returns the likeliest token after the last one of each stream, the first of equally likely ones.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn step_argmax(&self, streams: &mut [Stream<'_>], prompt_tokens: usize) -> Result<Vec<u32>, EngineError> {
        if let Some(tokens) = self.engine.step_argmax(streams, prompt_tokens)? {
            return Ok(tokens);
        }
        let logits = self.step(streams, prompt_tokens)?;
        Ok(logits.iter().map(|logits| argmax(logits) as u32).collect())
    }

    /// As [`step`](Self::step); returns for each stream the rows `[token][hidden]` behind the last layer of all tokens it was given.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn step_rows(&self, streams: &mut [Stream<'_>], prompt_tokens: usize) -> Result<Vec<Vec<f32>>, EngineError> {
        let x = self.engine.step(streams, prompt_tokens)?;
        let (mut rows, hidden) = (x.as_slice(), self.config.hidden_size);
        let of_stream = |stream: &Stream<'_>| {
            let (own, rest) = rows.split_at(stream.tokens.len() * hidden);
            rows = rest;
            own.to_vec()
        };
        Ok(streams.iter().map(of_stream).collect())
    }

    /// Rows whose logits are computed together, about: so many that they take 64 MB.
    pub fn rows_scored_together(&self) -> usize {
        (LOGIT_BYTES / (size_of::<f32>() * self.config.vocab_size)).max(1)
    }

    /// The logits of the rows of all parts.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn row_logits<'r>(
        &self,
        parts: impl IntoIterator<Item = PredictingRows<'r>> + Clone,
    ) -> Result<RowLogits, EngineError> {
        let x: Vec<f32> = parts.clone().into_iter().flat_map(|rows| rows.rows).copied().collect();
        if x.is_empty() {
            return Ok(RowLogits::on_host(Vec::new()));
        }
        if let Some(logits) = self.engine.row_logits(&x)? {
            return Ok(logits);
        }
        let positions: Vec<usize> = parts.into_iter().flat_map(|rows| rows.positions).copied().collect();
        Ok(RowLogits::on_host(self.logits(&x, |row| positions[row])?))
    }

    /// The distributions of rows by their logits, with what each makes of its target, compared with itself.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn distributions(
        &self,
        logits: RowLogits,
        rows: PredictingRows<'_>,
    ) -> Result<(Distributions, Vec<TokenScore>), EngineError> {
        match logits.into_host() {
            Ok(logits) => Ok(Distributions::of_logits(&logits, rows.targets)),
            Err(on_device) => self.engine.distributions(on_device, rows),
        }
    }

    /// What the distributions of each part's rows make of their targets, by the [logits](Self::row_logits) of all parts.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn score_tokens(
        &self,
        logits: RowLogits,
        parts: &[ScoredPart<'_>],
    ) -> Result<Vec<Vec<TokenScore>>, EngineError> {
        let logits = match logits.into_host() {
            Ok(logits) => logits,
            Err(on_device) => return self.engine.score_tokens(on_device, parts),
        };
        let mut rest = logits.as_slice();
        let score = |(rows, full): &ScoredPart<'_>| {
            let (own, behind) = rest.split_at(rows.targets.len() * self.config.vocab_size);
            rest = behind;
            scores_of_logits(own, rows.targets, *full)
        };
        Ok(parts.iter().map(score).collect())
    }

    /// Counts what has not been counted yet of runs that are at their end, or at a point where their costs are looked at.
    ///
    /// # Errors
    /// [`EngineError::Device`].
    pub fn collect_device_counters<'f>(
        &self,
        forks: impl IntoIterator<Item = &'f mut Sequence>,
    ) -> Result<(), EngineError> {
        forks.into_iter().try_for_each(|fork| self.engine.collect_device_counters(fork))
    }

    /// Logits `[token][vocab_size]` of rows `[token][hidden]` behind the last layer; `position` is that of a row's token.
    ///
    /// # Errors
    /// [`NotFinite::Logits`].
    pub fn logits(&self, x: &[f32], position: impl Fn(usize) -> usize) -> Result<Vec<f32>, EngineError> {
        let logits = self.engine.logits(x)?;
        match first_not_finite(&logits, self.config.vocab_size) {
            Some(row) => Err(NotFinite::Logits { position: position(row) }.into()),
            None => Ok(logits),
        }
    }
}

//! The engine on NVIDIA GPUs. Weights, the KV cache of prefix and tails, and all arithmetic on rows are on one GPU, or on several of which
//! each holds a [segment](model::Segment) of consecutive layers.
//!
//! How tokens are selected in a decode step depends on the method:
//!
//! - Methods with a [device form](spattn_attention::DeviceForm) select on the GPU, into lists that are attended there. Within a step,
//!   nothing waits for the host. The same holds for sequences that attend static tokens only.
//! - All other methods select on the host, by the code that every engine uses: the step's queries, keys and values are copied to the
//!   host, the lists of selected tokens are copied back, and the GPU attends them.
//! - Methods that also attend on the host what they select there get only the queries, with codes that the GPU made of them. Their partial
//!   softmaxes are copied back, and the GPU merges them with those of the static tokens.
//! - Methods whose selection is independent of the data also select on the host, but nothing is copied to it.
//!
//! A layer of the prefix that is not in host memory is copied to the host when host code first reads it. Rows that are attended at
//! positions other than those they were rotated for are attended on the host. A prompt that is read with a mask is attended on the GPU if
//! the mask can be given as lists of blocks ([`attend_on_device`](spattn_attention::SparsePrefill::attend_on_device)).
//!
//! The residual stream and sums are f32. Inputs of products, keys and values have the storage type.

mod alone;
mod alone_part;
mod asked;
mod batch;
mod expert_room;
mod experts;
mod gpus;
mod host;
mod kv;
mod model;
mod prompt;
mod row_plan;
mod step;
mod token_scores;
mod weights;
mod workspace;

pub use alone::{AloneTimes, Following, LayerAlone, RunAlone};
pub use alone_part::{PartAlone, PartTimes};
pub use batch::BatchWorkspace;
pub use gpus::Cuda;
pub use prompt::{PromptAlone, ReadTimes};
pub(crate) use weights::LoadFailure;

use std::sync::{Mutex, OnceLock, PoisonError};

use self::host::{HostView, Numbers};
use self::kv::{DevicePrefix, owned};
use self::model::Segment;
use self::workspace::Workspace;
use super::dimensions::GPU_PREFILL_CHUNK;
use super::engine::{Engine, EngineError, GpuUse, Prefill, Reading, Stream};
use super::rope::Rope;
use super::token_scores::{Distributions, PredictingRows, RowLogits, ScoredPart, TokenScore};
use spattn_attention::Sequence;
use spattn_attention::calibration::PrefillChunk;
use spattn_attention::kv::Prefix;
use spattn_cuda::{Buffer, GpuError, Rows};

impl Engine for Cuda {
    fn read(
        &self,
        known: Option<(Prefix, usize)>,
        tokens: &[u32],
        prompt_tokens: usize,
        mut reading: Reading<'_, '_>,
    ) -> Result<Prefill, EngineError> {
        let mut prefix = match known {
            Some((prefix, kept)) => owned(prefix).kept(kept, tokens.len())?,
            None => self.empty_prefix(reading.kv, tokens.len())?,
        };
        let most = reading.sparse.as_ref().map_or(GPU_PREFILL_CHUNK, |sparse| sparse.chunk_rows(GPU_PREFILL_CHUNK));
        let upload = |segment: &Segment| -> Result<RopeBuffers, GpuError> {
            let of_rope = |rope: &Rope| {
                let (inverse, scaling) = rope.frequencies(prompt_tokens);
                Ok((segment.gpu.upload(&inverse)?, scaling))
            };
            self.ropes().iter().map(of_rope).collect()
        };
        let tables = self.segments.iter().map(upload).collect::<Result<Vec<RopeBuffers>, GpuError>>()?;
        let kept = prefix.tokens;
        let mut logits = Vec::new();
        for (i, chunk) in tokens[kept..].chunks(most).enumerate() {
            let first = kept + i * most;
            let is_last = first + chunk.len() == tokens.len();
            let row = self.read_chunk(&mut prefix, chunk, first, &tables, &mut reading, is_last)?;
            if is_last {
                logits = row;
            }
        }
        prefix.end_reading();
        self.forget_views();
        if let Some(sparse) = &mut reading.sparse {
            for segment in &self.segments {
                let of_heads = (self.config.heads, segment.shape());
                sparse.collect_device_counters(&segment.gpu, segment.range.clone(), of_heads)?;
            }
        }
        let specs = self.layer_specs().clone();
        Ok(Prefill { prefix: Prefix::on_device(specs, prefix.tokens, Box::new(prefix)), logits })
    }

    fn step(&self, streams: &mut [Stream<'_>], prompt_tokens: usize) -> Result<Vec<f32>, EngineError> {
        self.step_streams(streams, prompt_tokens)
    }

    fn step_argmax(&self, streams: &mut [Stream<'_>], prompt_tokens: usize) -> Result<Option<Vec<u32>>, EngineError> {
        let is_last_row = |stream: &Stream<'_>| stream.tokens.len() == 1;
        match self.config.block.leaves_logits() && streams.iter().all(is_last_row) {
            true => self.choose_in_step(streams, prompt_tokens).map(Some),
            false => Ok(None),
        }
    }

    fn collect_device_counters(&self, fork: &mut Sequence) -> Result<(), EngineError> {
        self.collect_counters(fork)
    }

    fn logits(&self, x: &[f32]) -> Result<Vec<f32>, EngineError> {
        self.logits_of_rows(x)
    }

    fn row_logits(&self, x: &[f32]) -> Result<Option<RowLogits>, EngineError> {
        self.config.block.leaves_logits().then(|| Ok(RowLogits::on_device(self.device_logits(x)?))).transpose()
    }

    fn distributions(
        &self,
        logits: RowLogits,
        rows: PredictingRows<'_>,
    ) -> Result<(Distributions, Vec<TokenScore>), EngineError> {
        self.distributions_of(logits, rows)
    }

    fn score_tokens(&self, logits: RowLogits, parts: &[ScoredPart<'_>]) -> Result<Vec<Vec<TokenScore>>, EngineError> {
        self.scores_of(logits, parts)
    }

    fn gpu(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn gpu_use(&self) -> Option<GpuUse> {
        Some(self.used())
    }

    fn groups(&self, _: usize) -> usize {
        1
    }
}

/// The frequencies of each RoPE table on a GPU, with the factor of cos and sin.
type RopeBuffers = Vec<(Buffer, f32)>;

impl Cuda {
    /// Reads a chunk into the prefix, and returns the last row's logits if they are wanted.
    fn read_chunk(
        &self,
        prefix: &mut DevicePrefix,
        tokens: &[u32],
        first: usize,
        tables: &[RopeBuffers],
        reading: &mut Reading<'_, '_>,
        wants_logits: bool,
    ) -> Result<Vec<f32>, EngineError> {
        let (c, rows, last) = (&self.config, tokens.len(), self.last());
        let mut guard = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        let mut workspaces = self.reserve(&mut guard, rows)?;
        let positions: Vec<u32> = (first..first + rows).map(|position| position as u32).collect();
        for (segment, workspace) in self.segments.iter().zip(&mut workspaces) {
            segment.start(workspace, tokens, &positions)?;
        }
        prefix.tokens = first + rows;
        self.pass_segments(&mut workspaces, rows, |segment, workspace| {
            segment.read_layers(workspace, prefix, (first, rows), &tables[segment.number], reading)
        })?;
        let of_last = workspaces.last_mut().expect("a model is on at least one GPU");
        // The final norm checks that the last layer's output is finite.
        last.norm(of_last, 0, rows, Some(last.end().0), c.layers, first)?;
        self.check(&workspaces, |position| position)?;
        let of_last = workspaces.last_mut().expect("a model is on at least one GPU");
        if let Some(finished) = &mut reading.finished {
            let mut x = vec![0.0; rows * c.hidden_size];
            last.gpu.download(&of_last.x, 0, &mut x)?;
            finished(first, &x);
        }
        if wants_logits { last.logits_of(of_last, rows - 1, 1) } else { Ok(Vec::new()) }
    }
}

impl Segment {
    /// Passes a chunk of a prompt through the segment's layers.
    fn read_layers(
        &self,
        workspace: &mut Workspace,
        prefix: &mut DevicePrefix,
        (first, rows): (usize, usize),
        tables: &[(Buffer, f32)],
        reading: &mut Reading<'_, '_>,
    ) -> Result<(), EngineError> {
        for index in self.range.clone() {
            prefix.stage(index, first)?;
            self.forward_layer(workspace, rows, index, first, |workspace, layer| {
                let Workspace { qkv, positions, .. } = &mut *workspace;
                let (inverse, scaling) = &tables[self.place_of_rope(index)];
                let positions = self.angles_at(index, positions, inverse, (false, *scaling));
                let rotation = self.rotation_of(rows, layer, positions);
                self.gpu.rope(qkv, &rotation, &prefix.cache(index), first)?;
                self.attend_chunk(workspace, prefix, index, first, rows, reading)
            })?;
            prefix.store(index, first..first + rows)?;
        }
        Ok(())
    }

    /// Attends a chunk densely or by a mask, on the device or the host, after showing it to the observer.
    fn attend_chunk(
        &self,
        workspace: &mut Workspace,
        prefix: &DevicePrefix,
        layer: usize,
        first: usize,
        rows: usize,
        reading: &mut Reading<'_, '_>,
    ) -> Result<(), EngineError> {
        let (c, widths, spec) = (&self.config, self.widths(), self.layer_specs().layer(layer));
        let scale = spec.scale.factor();
        let Workspace { qkv, x, attended, host, .. } = workspace;
        let view = HostView {
            gpu: &self.gpu,
            qkv,
            x,
            hidden: c.hidden_size,
            rows,
            widths,
            prefix,
            layer,
            end: first + rows,
            scale,
            rule: self.rule(layer),
            queries: OnceLock::new(),
            kv: OnceLock::new(),
            workspace: Mutex::new(host),
            attended: Mutex::new(&mut *attended),
            log_sums: OnceLock::new(),
        };
        let chunk = PrefillChunk::on_device(layer, first, rows, c.heads, self.shape(), &view).with_spec(spec);
        if let Some(observe) = &mut reading.observe {
            observe(&chunk)?;
        }
        let (queries, cache) = (
            Rows {
                queries: qkv,
                skip: 0,
                stride: widths.1,
                count: rows,
                heads: c.heads,
                first,
                scale,
                rule: self.rule(layer),
            },
            prefix.cache(layer),
        );
        let Some(sparse) = reading.sparse.as_mut() else {
            view.close();
            return Ok(self.gpu.prefill_attention(&queries, &cache, attended)?);
        };
        let is_attended = {
            let mut attended = view.attended.lock().unwrap_or_else(PoisonError::into_inner);
            sparse.attend_on_device(&self.gpu, &chunk, &queries, &cache, &mut attended, None)?
        };
        let masked = if is_attended {
            None
        } else {
            let mut out = vec![0.0; rows * widths.0];
            sparse.attend(&chunk, &mut out)?;
            Some(out)
        };
        view.close();
        if let Some(out) = masked {
            Numbers::narrow(out, self.storage()).upload_to(&self.gpu, attended, 0)?;
        }
        Ok(())
    }
}

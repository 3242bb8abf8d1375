//! The engine on an NVIDIA GPU. Weights, the KV cache of the prefix and of tails, and all arithmetic on rows are in device memory.
//!
//! How tokens are selected in a decode step depends on the method:
//!
//! - Methods with a [device form](spattn_attention::DeviceForm) select on the GPU, into lists that are attended there. Nothing waits
//!   for the host within a step. The same holds for sequences that attend static tokens only.
//! - All other methods select on the host, by the code that every engine uses: the step's queries, keys and values are copied to the
//!   host, the selected tokens are copied back, and the GPU attends them.
//! - Methods whose selection is independent of the data also select on the host, but nothing is copied to it.
//!
//! A layer of the prefix is copied to the host when host code reads it for the first time. Rows that are attended at other positions
//! than they were rotated for are attended on the host. A prompt that is read with a mask is attended on the GPU where the mask can be
//! given as lists of blocks ([`attend_on_device`](spattn_attention::SparsePrefill::attend_on_device)).
//!
//! The residual stream and sums are f32. Inputs of products, keys and values have the storage type.

mod alone;
mod batch;
mod expert_room;
mod experts;
mod host;
mod kv;
mod model;
mod prompt;
mod row_plan;
mod step;
mod weights;
mod workspace;

pub use alone::{AloneTimes, Following, LayerAlone, RunAlone};
pub use batch::BatchWorkspace;
pub use model::Cuda;
pub use prompt::{PromptAlone, ReadTimes};
pub(crate) use weights::LoadFailure;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use self::host::{HostView, HostWorkspace, Numbers};
use self::kv::{DevicePrefix, SequenceKv, owned};
use self::step::StepPlan;
use self::workspace::Workspace;
use super::dimensions::GPU_PREFILL_CHUNK;
use super::engine::{Engine, EngineError, GpuUse, NotFinite, Prefill, Reading, Stream, first_not_finite, positions};
use super::rope::Rope;
use spattn_attention::calibration::PrefillChunk;
use spattn_attention::kv::Prefix;
use spattn_attention::{SelectionSite, Sequence};
use spattn_cuda::{Buffer, GpuError, Rotation, Rows};

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
            None => DevicePrefix::new(&self.gpu, self.shape(), self.config.layers, tokens.len())?,
        };
        let most = reading.sparse.as_ref().map_or(GPU_PREFILL_CHUNK, |sparse| sparse.chunk_rows(GPU_PREFILL_CHUNK));
        let upload = |rope: &Rope| {
            let (inverse, scaling) = rope.frequencies(prompt_tokens);
            Ok((self.gpu.upload(&inverse)?, scaling))
        };
        let tables = self.ropes().iter().map(upload).collect::<Result<Vec<_>, GpuError>>()?;
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
        if let Some(workspace) = self.workspace.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            workspace.host = HostWorkspace::default();
        }
        if let Some(sparse) = &mut reading.sparse {
            sparse.collect_device_counters(&self.gpu, (self.config.heads, self.shape()))?;
        }
        let specs = self.layer_specs().clone();
        Ok(Prefill { prefix: Prefix::on_device(specs, prefix.tokens, Box::new(prefix)), logits })
    }

    fn step(&self, streams: &mut [Stream<'_>], prompt_tokens: usize) -> Result<Vec<f32>, EngineError> {
        let c = &self.config;
        let first = streams[0].fork.prefix();
        assert!(
            streams.iter().all(|s| Arc::ptr_eq(s.fork.prefix(), first)),
            "streams of one step have different prefixes"
        );
        let positions = positions(streams);
        let rows = positions.len();
        self.make_tails(streams)?;
        let mut guard = self.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        let workspace = self.reserve(&mut guard, rows)?;
        let tokens: Vec<u32> = streams.iter().flat_map(|stream| stream.tokens).copied().collect();
        self.start(workspace, &tokens, positions.iter().map(|position| *position as u32).collect())?;
        let angles = self.send_frequencies(workspace, &positions, prompt_tokens)?;
        let plan = StepPlan { rows: &self.send_places(workspace, streams)?, angles: &angles };
        let picks = |layer: usize, stream: &Stream<'_>| stream.fork.selection_site(layer) != SelectionSite::None;
        let looks = |stream: &Stream<'_>| stream.fork.needs_host() || (0..c.layers).any(|layer| picks(layer, stream));
        match streams.iter().any(looks) {
            true => self.step_picking(workspace, streams, &plan)?,
            false => {
                workspace.timeline.clear();
                self.step_exactly(workspace, streams, &plan)?;
            }
        }
        let mut x = vec![0.0; rows * c.hidden_size];
        self.gpu.download(&workspace.x, 0, &mut x)?;
        self.note_times(&workspace.timeline, &workspace.work, streams)?;
        self.check(workspace, |row| positions[row])?;
        match first_not_finite(&x, c.hidden_size) {
            Some(row) => Err(NotFinite::Activations { layer: c.layers - 1, position: positions[row] }.into()),
            None => Ok(x),
        }
    }

    fn collect_device_counters(&self, fork: &mut Sequence) -> Result<(), EngineError> {
        let kv_heads = self.config.kv_heads;
        let Some(own) = fork.device_mut().as_mut().and_then(|own| own.downcast_mut::<SequenceKv>()) else {
            return Ok(());
        };
        let Some(buffer) = own.picked.take() else { return Ok(()) };
        let mut picked = vec![0; self.counters()];
        self.gpu.download(&buffer, 0, &mut picked)?;
        let held = own.held.iter().map(|held| held.as_ref().map(|held| held.count(&self.gpu, kv_heads)).transpose());
        let held: Vec<Option<usize>> = held.collect::<Result<_, _>>()?;
        fork.collect_device_counters(&picked);
        for (layer, tokens) in held.into_iter().enumerate() {
            tokens.into_iter().for_each(|tokens| fork.set_resident_tokens(layer, tokens));
        }
        Ok(())
    }

    fn logits(&self, x: &[f32]) -> Result<Vec<f32>, EngineError> {
        let rows = x.len() / self.config.hidden_size;
        let mut guard = self.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        let workspace = self.reserve(&mut guard, rows)?;
        self.gpu.upload_to(&mut workspace.x, 0, x)?;
        self.logits_of(workspace, 0, rows)
    }

    fn gpu(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn gpu_use(&self) -> Option<GpuUse> {
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        Some(GpuUse { most_bytes: self.gpu.most_bytes(), ..used })
    }

    fn groups(&self, _: usize) -> usize {
        1
    }
}

impl Cuda {
    /// Reads a chunk into the prefix; the last row's logits, if they are wanted.
    fn read_chunk(
        &self,
        prefix: &mut DevicePrefix,
        tokens: &[u32],
        first: usize,
        tables: &[(Buffer, f32)],
        reading: &mut Reading<'_, '_>,
        wants_logits: bool,
    ) -> Result<Vec<f32>, EngineError> {
        let (c, rows) = (&self.config, tokens.len());
        let mut guard = self.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        let workspace = self.reserve(&mut guard, rows)?;
        self.start(workspace, tokens, (first..first + rows).map(|position| position as u32).collect())?;
        prefix.tokens = first + rows;
        for index in 0..c.layers {
            self.forward_layer(workspace, rows, index, first, |workspace, layer| {
                let Workspace { qkv, positions, .. } = &mut *workspace;
                let (inverse, scaling) = &tables[self.place_of_rope(index)];
                let positions = self.angles_at(index, positions, inverse, (false, *scaling));
                let rotation = Rotation { rows, heads: c.heads, norms: self.norms(layer), positions };
                self.gpu.rope(qkv, &rotation, &prefix.cache(index), first)?;
                self.attend_chunk(workspace, prefix, index, first, rows, reading)
            })?;
        }
        // The last norm looks at what the last layer left.
        self.norm(workspace, 0, rows, Some(&self.parts.norm), c.layers, first)?;
        self.check(workspace, |position| position)?;
        if let Some(finished) = &mut reading.finished {
            let mut x = vec![0.0; rows * c.hidden_size];
            self.gpu.download(&workspace.x, 0, &mut x)?;
            finished(first, &x);
        }
        if wants_logits { self.logits_of(workspace, rows - 1, 1) } else { Ok(Vec::new()) }
    }

    /// Attention of a chunk, by the device or a mask of the host, with whoever looks on.
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
        let Workspace { qkv, attended, host, .. } = workspace;
        let view = HostView {
            gpu: &self.gpu,
            qkv,
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

//! A single layer whose selected tokens the host attends. Its steps wait for the host, so they are timed by the wall clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::alone::LayerAlone;
use super::host::download_wide;
use super::kv::{Tail, shared, storage};
use super::row_plan::{HeadPlan, RowPlan};
use crate::engine::EngineError;
use spattn_attention::{AttendedPart, DeviceScratch, LayerStep, Sequence};
use spattn_cuda::{
    self as kernels, Attention, AttentionWorkspace, Buffer, GpuError, HostDeviceVec, LayerRule, Queries,
};

/// A method that steps token by token after a context, while the host attends the tokens that it selects.
pub struct PartAlone {
    layer: Arc<LayerAlone>,
    fork: Sequence,
    /// The tokens after the context: the given one, then zeros.
    tail: Tail,
    rows: HostDeviceVec<u32>,
    scratch: DeviceScratch,
    attention: AttentionWorkspace,
    out: Buffer,
}

impl std::fmt::Debug for PartAlone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PartAlone({:?})", self.layer)
    }
}

/// The time that a step took.
#[derive(Debug, Clone, Copy, Default)]
pub struct PartTimes {
    /// The whole step: hashing and downloading queries, the host's part, uploading its result, attending static tokens and merging both.
    pub whole: Duration,
    /// The host's part: looking up codes, weighting the sampled tokens and attending them.
    pub host: Duration,
}

impl LayerAlone {
    /// Makes a run of `steps` steps of the method of `fork`, which must not have made a step yet; `None` unless the host attends what the
    /// method selects and needs only the queries for it.
    ///
    /// # Errors
    /// If there is no room.
    pub fn run_part(self: &Arc<Self>, fork: Sequence, steps: usize) -> Result<Option<PartAlone>, GpuError> {
        if !fork.takes_queries_alone(0) {
            return Ok(None);
        }
        let (gpu, shape) = (&self.gpu, self.shape);
        let mut tail = Tail::of(gpu, shape, 1, None, 0, steps)?;
        let row = shape.d * shape.dtype.bytes();
        for run in 0..2 * shape.kv_heads {
            let (from, to) = (run * self.tail.capacity * row, run * tail.capacity * row);
            gpu.copy(&self.tail.buffer, from, &mut tail.buffer, to, row)?;
        }
        let mut rows = HostDeviceVec::default();
        rows.set(gpu, vec![0])?;
        Ok(Some(PartAlone {
            out: gpu.alloc(self.heads() * row)?,
            layer: self.clone(),
            fork,
            tail,
            rows,
            scratch: DeviceScratch::default(),
            attention: AttentionWorkspace::default(),
        }))
    }
}

impl PartAlone {
    /// Returns the sequence, with the costs of its steps.
    pub fn fork(&self) -> &Sequence {
        &self.fork
    }

    /// Takes the next step by the queries given to [`ask`](LayerAlone::ask), and waits for it.
    ///
    /// # Errors
    /// [`EngineError`].
    ///
    /// # Panics
    /// If the run has made all of its steps.
    pub fn step(&mut self) -> Result<PartTimes, EngineError> {
        let layer = self.layer.clone();
        layer.gpu.synchronize()?;
        let start = Instant::now();
        let (queries, codes) = self.ask(&layer)?;
        let host = Instant::now();
        let LayerStep::HostAttendsPart(step) = self.fork.begin_step(0) else {
            unreachable!("`run_part` checked that the host attends a part")
        };
        let part = step.attend(&queries, None, &codes)?;
        let host = host.elapsed();
        self.merge(&layer, part)?;
        layer.gpu.synchronize()?;
        Ok(PartTimes { whole: start.elapsed(), host })
    }

    /// Downloads the queries, and the codes that the device makes of them.
    fn ask(&mut self, layer: &LayerAlone) -> Result<(Vec<f32>, Vec<u16>), GpuError> {
        let (heads, d) = (layer.heads(), layer.shape.d);
        let cache = shared(layer.prefix()).cache(0);
        layer.with_queries(|asked| {
            let builder = self.fork.method().method.index_builder().filter(|builder| builder.fits(layer.shape));
            let queries = Queries { queries: asked, stride: heads * d, heads, rows: &self.rows };
            let codes = match builder {
                Some(builder) => builder.hash_queries(&queries, (&layer.gpu, cache), &mut self.scratch)?,
                None => Vec::new(),
            };
            Ok((download_wide(&layer.gpu, asked, 0, heads * d, storage(layer.shape.dtype))?, codes))
        })
    }

    /// Attends static tokens, and merges them with the host's part.
    fn merge(&mut self, layer: &LayerAlone, part: AttendedPart) -> Result<(), GpuError> {
        let (kv_heads, total, tokens) = (layer.shape.kv_heads, self.fork.tokens(), layer.prefix().tokens());
        let plan = RowPlan::Merged(part);
        let sizes = (plan.units(kv_heads, &[]), plan.tokens(total, kv_heads, &[]));
        let tail = self.tail.view(layer.shape, 1);
        let new = Attention::new(1, layer.heads(), sizes, layer.gpu.processors());
        let mut attention = new.in_workspace(&mut self.attention);
        let group = layer.heads() / kv_heads;
        for kv_head in 0..kv_heads {
            HeadPlan { row: 0, kv_head, group, total, tail: &tail }.add(&mut attention, &plan, tokens, &[]);
        }
        let prepared = layer.gpu.prepare(&mut attention, &mut self.attention, layer.shape.d)?;
        self.attention.keep(attention);
        let (cache, scale) = (shared(layer.prefix()).cache(0), layer.prefix().spec(0).scale.factor());
        let prefix = kernels::Prefix { cache, tokens, layer: 0, scale, rule: LayerRule::PLAIN };
        let (stride, out) = (layer.heads() * layer.shape.d, &mut self.out);
        layer.with_queries(|queries| layer.gpu.attend(&prepared, &prefix, queries, stride, out, None))
    }

    /// Returns the outputs of the last step, `[sequence][head][d]`.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn outputs(&self) -> Result<Vec<f32>, GpuError> {
        let (layer, count) = (&self.layer, self.layer.heads() * self.layer.shape.d);
        download_wide(&layer.gpu, &self.out, 0, count, storage(layer.shape.dtype))
    }
}

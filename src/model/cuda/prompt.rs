//! Attention of a prompt at one layer without a model around it, for timing: queries, keys and values are there beforehand.

use std::sync::Arc;
use std::time::Duration;

use super::host::Numbers;
use super::kv::DevicePrefix;
use super::storage;
use crate::attention::SparsePrefill;
use crate::kernels::cuda::{Buffer, Gpu, GpuError, Rows, Timeline};
use crate::kv::LayerKv;
use crate::model::dimensions::GPU_PREFILL_CHUNK;

/// One layer of a prompt on a device.
pub struct PromptAlone {
    gpu: Arc<Gpu>,
    prefix: DevicePrefix,
    heads: usize,
    /// Of each chunk.
    queries: Vec<Buffer>,
    out: Buffer,
    timeline: Timeline,
}

impl std::fmt::Debug for PromptAlone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PromptAlone({} tokens)", self.prefix.tokens)
    }
}

/// What reading took on the device.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadTimes {
    /// Finding out what blocks attend.
    pub select: Duration,
    /// Attending it.
    pub attend: Duration,
}

impl PromptAlone {
    /// Takes a prompt to a device: rotated queries `[token][head][d]`, keys and values.
    ///
    /// # Errors
    /// If it does not fit.
    pub fn new(gpu: Arc<Gpu>, heads: usize, queries: &[f32], kv: &LayerKv) -> Result<Self, GpuError> {
        let (shape, tokens) = (kv.shape(), kv.tokens());
        let mut prefix = DevicePrefix::new(&gpu, shape, 1, tokens)?;
        prefix.tokens = tokens;
        let (row, width) = (shape.d * shape.dtype.bytes(), heads * shape.d);
        let (keys, values) = &mut prefix.layers[0];
        for head in 0..shape.kv_heads {
            gpu.upload_rows(keys, head * tokens * row, kv.keys.head(head))?;
            gpu.upload_rows(values, head * tokens * row, kv.values.head(head))?;
        }
        let chunk = |queries: &[f32]| -> Result<Buffer, GpuError> {
            let mut buffer = gpu.alloc(queries.len() * shape.dtype.bytes())?;
            Numbers::narrow(queries.to_vec(), storage(shape.dtype)).upload_to(&gpu, &mut buffer, 0)?;
            Ok(buffer)
        };
        let queries = queries.chunks(GPU_PREFILL_CHUNK * width).map(chunk).collect::<Result<_, _>>()?;
        let out = gpu.alloc(GPU_PREFILL_CHUNK.min(tokens) * heads * row)?;
        Ok(Self { gpu, prefix, heads, queries, out, timeline: Timeline::default() })
    }

    /// Reads it, chunk by chunk as a model does, densely or by a mask. `None` if the host has to look at queries and keys for that.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&mut self, mut sparse: Option<&mut SparsePrefill<'_>>) -> Result<Option<ReadTimes>, GpuError> {
        let Self { gpu, prefix, heads, queries, out, timeline } = self;
        timeline.clear();
        let (shape, cache, width) = (prefix.shape, prefix.cache(0), *heads * prefix.shape.d);
        for (chunk, queries) in queries.iter().enumerate() {
            let count = queries.bytes() / (width * shape.dtype.bytes());
            let rows = Rows { queries, stride: width, count, heads: *heads, first: chunk * GPU_PREFILL_CHUNK };
            gpu.mark(timeline)?;
            match &mut sparse {
                Some(sparse) => {
                    if !sparse.attend_there(gpu, (0, shape), &rows, &cache, out, Some(timeline))? {
                        return Ok(None);
                    }
                }
                None => {
                    gpu.mark(timeline)?;
                    gpu.prefill_attention(&rows, &cache, out)?;
                }
            }
            gpu.mark(timeline)?;
        }
        gpu.synchronize()?;
        if let Some(sparse) = sparse {
            sparse.settle_there(gpu, (*heads, shape))?;
        }
        let spans = timeline.spans()?;
        // Before a chunk, between finding and attending, behind it; then the next chunk.
        let of = |number: usize| spans.iter().skip(number).step_by(3).sum();
        Ok(Some(ReadTimes { select: of(0), attend: of(1) }))
    }
}

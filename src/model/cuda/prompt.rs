//! Attention of a prompt at one layer without a model around it, for timing: queries, keys and values are there beforehand.

use std::sync::Arc;
use std::time::Duration;

use super::host::Numbers;
use super::kv::DevicePrefix;
use super::storage;
use crate::attention::SparsePrefill;
use crate::attention::calibration::PrefillChunk;
use crate::kernels::cuda::{Buffer, Gpu, GpuError, Rows, Timeline};
use crate::kv::LayerKv;
use crate::model::dimensions::GPU_PREFILL_CHUNK;

/// One layer of a prompt on a device.
pub struct PromptAlone {
    gpu: Arc<Gpu>,
    prefix: DevicePrefix,
    heads: usize,
    queries: Buffer,
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
        let mut there = gpu.alloc(tokens * heads * row)?;
        for (chunk, queries) in queries.chunks(GPU_PREFILL_CHUNK * width).enumerate() {
            let numbers = Numbers::narrow(queries.to_vec(), storage(shape.dtype));
            numbers.upload_to(&gpu, &mut there, chunk * GPU_PREFILL_CHUNK * heads * row)?;
        }
        let out = gpu.alloc(tokens * heads * row)?;
        Ok(Self { gpu, prefix, heads, queries: there, out, timeline: Timeline::default() })
    }

    /// Reads it, chunk by chunk as a model does, densely or by a mask; `prompt` shows all of it to a mask that is planned. `None` if
    /// attending takes the host.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(
        &mut self,
        prompt: &PrefillChunk<'_>,
        mut sparse: Option<&mut SparsePrefill<'_>>,
    ) -> Result<Option<ReadTimes>, GpuError> {
        let Self { gpu, prefix, heads, queries, out, timeline } = self;
        timeline.clear();
        let (shape, cache, width) = (prefix.shape, prefix.cache(0), *heads * prefix.shape.d);
        let most = sparse.as_ref().map_or(GPU_PREFILL_CHUNK, |sparse| sparse.chunk_rows(GPU_PREFILL_CHUNK));
        for first in (0..prefix.tokens).step_by(most) {
            let count = most.min(prefix.tokens - first);
            let rows = Rows { queries, skip: first, stride: width, count, heads: *heads, first };
            gpu.mark(timeline)?;
            match &mut sparse {
                Some(sparse) => {
                    // A plan is of one chunk, which is the prompt; other masks need not be shown anything.
                    if !sparse.attend_there(gpu, prompt, &rows, &cache, out, Some(timeline))? {
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

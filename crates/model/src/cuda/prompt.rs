//! Attention of one layer in prefill, without a model around it, for timing. Queries, keys and values are given.

use std::sync::Arc;
use std::time::Duration;

use super::host::Numbers;
use super::kv::{DevicePrefix, PrefixLayer, storage};
use crate::dimensions::GPU_PREFILL_CHUNK;
use spattn_attention::calibration::PrefillChunk;
use spattn_attention::kv::{KvShape, LayerKv};
use spattn_attention::{DevicePrefillError, SparsePrefill};
use spattn_cuda::{Buffer, Gpu, GpuError, LayerRule, Rows, Timeline};

/// One layer of a prompt on a device. Several sequences that are read together are stored as the heads of a single one.
pub struct PromptAlone {
    gpu: Arc<Gpu>,
    prefix: DevicePrefix,
    /// The query heads of all sequences.
    heads: usize,
    /// The position of the first row that is read.
    first: usize,
    queries: Buffer,
    out: Buffer,
    timeline: Timeline,
}

impl std::fmt::Debug for PromptAlone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PromptAlone({} tokens)", self.prefix.tokens)
    }
}

/// The time that the device took to read a prompt.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadTimes {
    /// Finding what each block attends.
    pub select: Duration,
    /// Attending it.
    pub attend: Duration,
}

impl PromptAlone {
    /// Copies a prompt to a device `batch` times: rotated queries `[row][head][d]` of its last rows, and keys and values of all tokens.
    ///
    /// # Errors
    /// If it does not fit.
    ///
    /// # Panics
    /// If there are more rows than tokens.
    pub fn new(gpu: Arc<Gpu>, heads: usize, queries: &[f32], kv: &LayerKv, batch: usize) -> Result<Self, GpuError> {
        let (of_one, tokens) = (kv.shape(), kv.tokens());
        let shape = KvShape { kv_heads: batch * of_one.kv_heads, ..of_one };
        let mut prefix = DevicePrefix::new([&gpu], shape, tokens)?;
        prefix.tokens = tokens;
        let (row, width) = (shape.d * shape.dtype.bytes(), heads * shape.d);
        let PrefixLayer { keys, values, .. } = &mut prefix.layers[0];
        for head in 0..shape.kv_heads {
            gpu.upload_rows(keys, head * tokens * row, kv.keys.head(head % of_one.kv_heads))?;
            gpu.upload_rows(values, head * tokens * row, kv.values.head(head % of_one.kv_heads))?;
        }
        let rows = queries.len() / width;
        let mut there = gpu.alloc(rows * batch * heads * row)?;
        let at_once = (GPU_PREFILL_CHUNK / batch).max(1);
        for (chunk, queries) in queries.chunks(at_once * width).enumerate() {
            let of_all = queries.chunks_exact(width).flat_map(|row| row.repeat(batch)).collect();
            let numbers = Numbers::narrow(of_all, storage(shape.dtype));
            numbers.upload_to(&gpu, &mut there, chunk * at_once * batch * heads * row)?;
        }
        let out = gpu.alloc(rows * batch * heads * row)?;
        let (heads, first) = (batch * heads, tokens - rows);
        Ok(Self { gpu, prefix, heads, first, queries: there, out, timeline: Timeline::default() })
    }

    /// Reads the rows chunk by chunk, as a model does, densely or by a mask. A mask that is planned sees the whole `prompt`. Returns
    /// `None` if the host has to attend.
    ///
    /// # Errors
    /// If the device fails, or `prompt` cannot be read.
    pub fn read(
        &mut self,
        prompt: &PrefillChunk<'_>,
        mut sparse: Option<&mut SparsePrefill<'_>>,
    ) -> Result<Option<ReadTimes>, DevicePrefillError> {
        let Self { gpu, prefix, heads, first: begin, queries, out, timeline } = self;
        timeline.clear();
        let (shape, cache, width) = (prefix.shape, prefix.cache(0), *heads * prefix.shape.d);
        let most = sparse.as_ref().map_or(GPU_PREFILL_CHUNK, |sparse| sparse.chunk_rows(GPU_PREFILL_CHUNK));
        for first in (*begin..prefix.tokens).step_by(most) {
            let count = most.min(prefix.tokens - first);
            let (skip, scale) = (first - *begin, prompt.scale().factor());
            let rows =
                Rows { queries, skip, stride: width, count, heads: *heads, first, scale, rule: LayerRule::PLAIN };
            gpu.mark(timeline)?;
            match &mut sparse {
                Some(sparse) => {
                    // A planned mask has one chunk, the prompt; other masks need not be shown anything.
                    if !sparse.attend_on_device(gpu, prompt, &rows, &cache, out, Some(timeline))? {
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
            sparse.collect_device_counters(gpu, 0..1, (*heads, shape))?;
        }
        let spans = timeline.spans()?;
        // Each chunk has three spans: select, attend, and the time until the next chunk.
        let of = |number: usize| spans.iter().skip(number).step_by(3).sum();
        Ok(Some(ReadTimes { select: of(0), attend: of(1) }))
    }

    /// Returns the attention output of the last read, `[row][sequence][head][d]`.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn outputs(&self) -> Result<Vec<f32>, GpuError> {
        let (shape, rows) = (self.prefix.shape, self.prefix.tokens - self.first);
        super::host::download_wide(&self.gpu, &self.out, 0, rows * self.heads * shape.d, storage(shape.dtype))
    }
}

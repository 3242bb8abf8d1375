//! The label cache on a device: in 4 or 2 bits by ranges of 128 tokens as on the host, or in 16 as keys are stored.

#[cfg(feature = "cuda")]
use std::ops::Range;

use super::LabelScores;
use crate::cost::Cost;
#[cfg(feature = "cuda")]
use crate::device::form::FITS;
use crate::device::form::row_width;
use crate::device::scorer::DeviceScorer;
use crate::kv::quantised::GROUP;
use crate::kv::{KvDtype, KvShape};
#[cfg(feature = "cuda")]
use crate::{DeviceIndex, DeviceLayer, DeviceScratch, DeviceStep, PrefixStatsView};
use crate::{PromptShape, StepShape};
#[cfg(feature = "cuda")]
use spattn_cuda::{ChannelLists, GpuError, IndexRows, LabelCodes, ProjectedQueries, Reduction};
use spattn_kernels::codes::CodeRange;

/// Bytes of a channel's range.
const RANGE_BYTES: usize = size_of::<CodeRange>();
/// Channels of a product, of which labels in a few bits have whole ones.
const DEPTH: usize = 16;

impl LabelScores {
    /// Bytes that the host's labels of so many tokens take.
    fn label_bytes(&self, tokens: usize, width: usize) -> usize {
        if self.bits == 16 {
            return 2 * tokens * width;
        }
        let bytes = |tokens: usize| width * (tokens * self.bits).div_ceil(8);
        let (whole, rest) = (tokens / GROUP, tokens % GROUP);
        whole * bytes(GROUP) + bytes(rest) + tokens.div_ceil(GROUP) * width * RANGE_BYTES
    }

    /// Channels of each KV head of the model, in the order of the head.
    #[cfg(feature = "cuda")]
    fn chosen(&self, layer: usize, kv_heads: usize, d: usize) -> Vec<Vec<u32>> {
        let known = self.rankings.as_ref().map_or(kv_heads, |(rankings, _)| rankings[layer].len());
        let of_head = |kv_head: usize| {
            let mut channels = self.ranking(layer, kv_head, d);
            channels.truncate(self.channels.of(d));
            channels.sort_unstable();
            channels
        };
        (0..known.min(kv_heads)).map(of_head).collect()
    }
}

impl DeviceScorer for LabelScores {
    fn fits(&self, shape: KvShape) -> bool {
        let stored = self.bits != 16 || shape.dtype != KvDtype::F32;
        stored && row_width(self.channels.of(shape.d)).is_some()
    }

    fn cost(&self, step: &StepShape) -> Cost {
        let (tokens, width) = (step.candidates, self.channels.of(step.d));
        let ranges = if self.bits == 16 { 0 } else { tokens.div_ceil(GROUP) };
        Cost {
            aux_bytes: self.label_bytes(tokens, width) as u64,
            score_flops: (2 * step.group * width * (tokens + ranges)) as u64,
            ..Cost::default()
        }
    }

    fn layer_bytes(&self, prefix: &PromptShape, _: KvDtype) -> usize {
        let width = self.channels.of(prefix.d);
        let held = if self.bits == 16 {
            row_width(width).unwrap_or(width)
        } else {
            DEPTH * width.div_ceil(DEPTH).next_power_of_two()
        };
        prefix.kv_heads * (self.label_bytes(prefix.tokens.next_multiple_of(GROUP), held) + 4 * width)
    }

    #[cfg(feature = "cuda")]
    fn build_all(&self, layer: &DeviceLayer<'_>, _: &PrefixStatsView<'_>) -> Result<DeviceIndex, GpuError> {
        let (gpu, cache, tokens) = (layer.gpu, &layer.cache, layer.candidates.len());
        let lists = self.chosen(layer.layer, cache.kv_heads, cache.d);
        let width = self.channels.of(cache.d);
        let buffer = gpu.upload(&lists.concat())?;
        let channels = ChannelLists { buffer: &buffer, heads: lists.len(), width };
        let bytes = cache.kv_heads * self.label_bytes(tokens, width);
        let made = match self.bits {
            16 => {
                let padded = row_width(width).expect(FITS);
                let mut rows = gpu.alloc(cache.kv_heads * tokens * padded * cache.storage.bytes())?;
                gpu.gather_keys(cache, layer.candidates.clone(), &channels, padded, &mut rows)?;
                vec![rows]
            }
            bits => {
                let labels = LabelCodes { channels, bits, tokens, kv_heads: cache.kv_heads };
                let [range_bytes, code_bytes] = labels.bytes();
                let (mut ranges, mut codes) = (gpu.alloc(range_bytes)?, gpu.alloc(code_bytes)?);
                gpu.build_labels(cache, layer.candidates.start, &labels, [&mut ranges, &mut codes])?;
                vec![ranges, codes]
            }
        };
        Ok(DeviceIndex { buffers: [buffer].into_iter().chain(made).collect(), bytes, ..DeviceIndex::default() })
    }

    #[cfg(feature = "cuda")]
    fn score_all(
        &self,
        step: &DeviceStep<'_>,
        rows: Range<usize>,
        index: &DeviceIndex,
        reduction: Option<Reduction>,
        scratch: &mut DeviceScratch,
    ) -> Result<(), GpuError> {
        let (gpu, cache, tokens) = (step.prefix.gpu, &step.prefix.cache, step.prefix.candidates.len());
        let (d, kv_heads, storage, width) = (cache.d, cache.kv_heads, cache.storage, self.channels.of(cache.d));
        let (buffer, held) = index.buffers.split_first().expect("what `build_all` made");
        let channels = ChannelLists { buffer, heads: buffer.bytes() / (4 * width), width };
        let DeviceScratch { scores, queries: made, in_order, .. } = scratch;
        if let [ranges, codes] = held {
            let labels = LabelCodes { channels, bits: self.bits, tokens, kv_heads };
            return gpu.score_labels((&step.queries, rows), (d, storage), &labels, [ranges, codes], reduction, scores);
        }
        let (padded, heads) = (row_width(width).expect(FITS), step.queries.heads);
        gpu.reserve(&mut made[0], rows.len() * heads * padded * storage.bytes())?;
        let Some(gathered) = &mut made[0] else { unreachable!("it was reserved") };
        gpu.gather_queries((&step.queries, rows.clone()), (d, kv_heads, storage), &channels, padded, gathered)?;
        in_order.set(gpu, (0..rows.len() as u32).collect())?;
        let queries = ProjectedQueries { high: gathered, low: None, heads, width: padded, rows: in_order };
        gpu.score_rows(&queries, &IndexRows { rows: &held[0], count: tokens, kv_heads, storage }, reduction, scores)
    }
}

//! Scores by the queries' largest channels, and what picks leave over, on a device.

#[cfg(feature = "cuda")]
use std::ops::Range;

use super::QueryChannels;
use crate::cost::Cost;
use crate::device::scorer::DeviceScorer;
use crate::kv::{KvDtype, KvShape};
use crate::scored::granularity::Granularity;
#[cfg(feature = "cuda")]
use crate::{DeviceIndex, DeviceLayer, DeviceScratch, DeviceStep, DeviceWorkspace, PrefixStatsView};
use crate::{PromptShape, StepShape};
#[cfg(feature = "cuda")]
use spattn_cuda::{ChosenChannels, GpuError, KeysByChannel, Reduction};
use spattn_kernels::GPU_WIDEST;

impl DeviceScorer for QueryChannels {
    fn fits(&self, shape: KvShape) -> bool {
        shape.d <= GPU_WIDEST
    }

    fn cost(&self, step: &StepShape) -> Cost {
        let lists = if self.per == Granularity::QueryHead { step.group } else { 1 };
        let numbers = self.r.of(step.d) * step.candidates;
        Cost {
            aux_bytes: (lists * (numbers * step.dtype.bytes() + step.d * size_of::<f32>())) as u64,
            score_flops: (2 * step.group * numbers) as u64,
            // The mean value enters each head's sum.
            attend_flops: (2 * step.group * step.d) as u64,
            ..Cost::default()
        }
    }

    fn layer_bytes(&self, prefix: &PromptShape, dtype: KvDtype) -> usize {
        prefix.kv_heads * prefix.d * ((prefix.tokens + 7) * dtype.bytes() + size_of::<f32>())
    }

    #[cfg(feature = "cuda")]
    fn build_all(&self, layer: &DeviceLayer<'_>, _: &PrefixStatsView<'_>) -> Result<DeviceIndex, GpuError> {
        let (cache, tokens) = (&layer.cache, layer.candidates.len());
        let [keys, means] = KeysByChannel::bytes(tokens, cache.kv_heads, cache.d, cache.storage.bytes());
        let (mut keys, mut means) = (layer.gpu.alloc(keys)?, layer.gpu.alloc(means)?);
        layer.gpu.keys_by_channel(cache, layer.candidates.clone(), [&mut keys, &mut means])?;
        let bytes = cache.kv_heads * cache.d * (tokens * layer.dtype.bytes() + size_of::<f32>());
        Ok(DeviceIndex { buffers: vec![keys, means], bytes, ..DeviceIndex::default() })
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
        let (gpu, cache, heads) = (step.prefix.gpu, &step.prefix.cache, step.queries.heads);
        let DeviceScratch { scores, queries: [channels, weights], .. } = scratch;
        let lists = if self.per == Granularity::QueryHead { heads } else { cache.kv_heads };
        let mut chosen = ChosenChannels { channels, weights, count: self.r.of(cache.d), lists };
        gpu.choose_channels(&step.queries, rows.clone(), (cache.d, cache.storage), &mut chosen)?;
        // What picks leave over is a matter of each head's own logits, so these stay.
        gpu.score_channels(&chosen, (rows.len(), heads), &by_channel(step, index), reduction, scores)
    }

    #[cfg(feature = "cuda")]
    fn weigh_all(
        &self,
        step: &DeviceStep<'_>,
        index: &DeviceIndex,
        first: usize,
        scratch: &DeviceScratch,
        to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError> {
        let begin = step.prefix.candidates.start;
        step.prefix.gpu.rest_shares(&scratch.scores, begin, &by_channel(step, index), first, &mut to.lists)
    }
}

/// The index of a layer.
#[cfg(feature = "cuda")]
fn by_channel<'a>(step: &DeviceStep<'_>, index: &'a DeviceIndex) -> KeysByChannel<'a> {
    let [keys, means] = index.buffers.as_slice() else { unreachable!("what `build_all` made") };
    let cache = &step.prefix.cache;
    let (kv_heads, d, storage) = (cache.kv_heads, cache.d, cache.storage);
    KeysByChannel { keys, means, tokens: step.prefix.candidates.len(), kv_heads, d, storage }
}

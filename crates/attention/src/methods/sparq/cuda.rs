//! Launches, on a GPU, of scores by the queries' largest channels and of the mean value's share.

use super::QueryChannels;
use crate::backend::active::{
    Built, CudaScorer, DeviceLayer, DeviceScratch, DeviceStep, DeviceWorkspace, ScoreRequest,
};
use crate::backend::index::PrefixStatsView;
use crate::scored::granularity::Granularity;
use spattn_cuda::{Buffer, ChosenChannels, GpuError, KeysByChannel};

/// The keys of a layer, channel by channel, and the mean values.
pub(super) struct LayerChannels {
    keys: Buffer,
    means: Buffer,
}

impl LayerChannels {
    fn view(&self, step: &DeviceStep<'_>) -> KeysByChannel<'_> {
        let (Self { keys, means }, cache) = (self, &step.prefix.cache);
        let (kv_heads, d, storage) = (cache.kv_heads, cache.d, cache.storage);
        KeysByChannel { keys, means, tokens: step.prefix.candidates.len(), kv_heads, d, storage }
    }
}

/// The channels that the queries chose, and the queries' numbers there.
#[derive(Debug, Default)]
struct ChannelWorkspace {
    channels: Option<Buffer>,
    weights: Option<Buffer>,
}

impl CudaScorer for QueryChannels {
    type Index = LayerChannels;

    fn build_all(&self, layer: &DeviceLayer<'_>, _: &PrefixStatsView<'_>) -> Result<Built<LayerChannels>, GpuError> {
        let (cache, tokens) = (&layer.cache, layer.candidates.len());
        let [keys, means] = KeysByChannel::bytes(tokens, cache.kv_heads, cache.d, cache.storage.bytes());
        let (mut keys, mut means) = (layer.gpu.alloc(keys)?, layer.gpu.alloc(means)?);
        layer.gpu.keys_by_channel(cache, layer.candidates.clone(), [&mut keys, &mut means])?;
        let host_bytes = cache.kv_heads * cache.d * (tokens * layer.dtype.bytes() + size_of::<f32>());
        Ok(Built { index: LayerChannels { keys, means }, host_bytes })
    }

    fn score_all(&self, request: ScoreRequest<'_, LayerChannels>, scratch: &mut DeviceScratch) -> Result<(), GpuError> {
        let ScoreRequest { step, rows, index, reduction } = request;
        let (gpu, cache, heads) = (step.prefix.gpu, &step.prefix.cache, step.queries.heads);
        let DeviceScratch { scores, own } = scratch;
        let ChannelWorkspace { channels, weights } = own.of();
        let lists = if self.per == Granularity::QueryHead { heads } else { cache.kv_heads };
        let mut chosen = ChosenChannels { channels, weights, count: self.r.of(cache.d), lists };
        gpu.choose_channels(&step.queries, rows.clone(), (cache.d, cache.storage), &mut chosen)?;
        // The share of the mean value depends on each head's own logits, so these are kept.
        gpu.score_channels(&chosen, (rows.len(), heads), &index.view(step), reduction, scores)
    }

    fn weigh_all(
        &self,
        request: ScoreRequest<'_, LayerChannels>,
        scratch: &DeviceScratch,
        to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError> {
        let ScoreRequest { step, rows, index, .. } = request;
        let begin = step.prefix.candidates.start;
        step.prefix.gpu.rest_shares(&scratch.scores, begin, &index.view(step), rows.start, &mut to.lists)
    }
}

//! Launches of the label cache on a GPU: in 4 or 2 bits with ranges over 128 tokens, as on the host, or in the keys' 16-bit type.

use std::sync::Arc;

use super::LabelScores;
use crate::backend::active::{
    Built, CudaScorer, DeviceLayer, DeviceScratch, FITS, ProjectionWorkspace, ScoreRequest, TailPlaces,
};
use crate::backend::form::row_width;
use crate::backend::index::PrefixStatsView;
use spattn_cuda::{Buffer, ChannelLists, CodeRounding, GpuError, IndexRows, LabelCodes};

/// The label cache of a layer.
pub(super) struct LayerLabels {
    /// Channels of each KV head of the model, ascending: u32 `[kv_head][width]`.
    channels: Arc<Buffer>,
    labels: StoredLabels,
}

/// Labels of all candidates.
enum StoredLabels {
    /// Rows of keys in the type of the keys, padded to a supported width.
    Rows(Buffer),
    /// Codes in a few bits, with the range of each channel.
    Codes { ranges: Buffer, codes: Buffer },
}

impl LabelScores {
    /// Channels of each KV head of the model, ascending.
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

    /// Builds the labels of a layer's candidates from the channels of `heads` KV heads.
    fn label(&self, layer: &DeviceLayer<'_>, (channels, heads): (&Buffer, usize)) -> Result<StoredLabels, GpuError> {
        let (gpu, cache, tokens) = (layer.gpu, &layer.cache, layer.candidates.len());
        let width = self.channels.of(cache.d);
        let channels = ChannelLists { buffer: channels, heads, width };
        Ok(match self.bits {
            16 => {
                let padded = row_width(width).expect(FITS);
                let mut rows = gpu.alloc(cache.kv_heads * tokens * padded * cache.storage.bytes())?;
                gpu.gather_keys(cache, layer.candidates.clone(), &channels, padded, &mut rows)?;
                StoredLabels::Rows(rows)
            }
            bits => {
                let labels = LabelCodes { channels, bits, tokens, kv_heads: cache.kv_heads };
                let [range_bytes, code_bytes] = labels.bytes();
                let (mut ranges, mut codes) = (gpu.alloc(range_bytes)?, gpu.alloc(code_bytes)?);
                let from = (layer.candidates.start, CodeRounding::Nearest);
                gpu.build_labels(cache, from, &labels, [&mut ranges, &mut codes])?;
                StoredLabels::Codes { ranges, codes }
            }
        })
    }
}

impl LayerLabels {
    /// Number of KV heads with channels of their own, `width` channels each.
    fn heads(&self, width: usize) -> usize {
        self.channels.bytes() / (4 * width)
    }
}

impl CudaScorer for LabelScores {
    type Index = LayerLabels;

    fn build_all(&self, layer: &DeviceLayer<'_>, _: &PrefixStatsView<'_>) -> Result<Built<LayerLabels>, GpuError> {
        let (cache, tokens) = (&layer.cache, layer.candidates.len());
        let lists = self.chosen(layer.layer, cache.kv_heads, cache.d);
        let channels = Arc::new(layer.gpu.upload(&lists.concat())?);
        let labels = self.label(layer, (&channels, lists.len()))?;
        let host_bytes = cache.kv_heads * self.label_bytes(tokens, self.channels.of(cache.d));
        Ok(Built { index: LayerLabels { channels, labels }, host_bytes })
    }

    fn build_tail(&self, layer: &DeviceLayer<'_>, like: &LayerLabels, _: TailPlaces) -> Result<LayerLabels, GpuError> {
        let heads = like.heads(self.channels.of(layer.cache.d));
        let labels = self.label(layer, (&like.channels, heads))?;
        Ok(LayerLabels { channels: like.channels.clone(), labels })
    }

    fn score_all(&self, request: ScoreRequest<'_, LayerLabels>, scratch: &mut DeviceScratch) -> Result<(), GpuError> {
        let ScoreRequest { step, rows, index, reduction } = request;
        let (gpu, cache, tokens) = (step.prefix.gpu, &step.prefix.cache, step.prefix.candidates.len());
        let (d, kv_heads, storage, width) = (cache.d, cache.kv_heads, cache.storage, self.channels.of(cache.d));
        let channels = ChannelLists { buffer: &index.channels, heads: index.heads(width), width };
        let DeviceScratch { scores, own } = scratch;
        let held = match &index.labels {
            StoredLabels::Rows(rows) => rows,
            StoredLabels::Codes { ranges, codes } => {
                let labels = LabelCodes { channels, bits: self.bits, tokens, kv_heads };
                let queries = (&step.queries, rows);
                return gpu.score_labels(queries, (d, storage), &labels, [ranges, codes], reduction, scores);
            }
        };
        let (padded, heads) = (row_width(width).expect(FITS), step.queries.heads);
        let projection: &mut ProjectionWorkspace = own.of();
        let gathered = gpu.reserved(&mut projection.high, rows.len() * heads * padded * storage.bytes())?;
        gpu.gather_queries((&step.queries, rows.clone()), (d, kv_heads, storage), &channels, padded, gathered)?;
        let index = IndexRows { rows: held, count: tokens, kv_heads, storage };
        projection.score(step, (rows.len(), heads, padded), false, (&index, reduction), scores)
    }
}

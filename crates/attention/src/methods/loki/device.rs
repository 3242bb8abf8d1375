//! Keys on their leading components on a device.

#[cfg(feature = "cuda")]
use std::ops::Range;

use super::Loki;
use crate::cost::Cost;
#[cfg(feature = "cuda")]
use crate::device::form::FITS;
use crate::device::form::row_width;
use crate::device::scorer::DeviceScorer;
use crate::kv::{KvDtype, KvShape};
#[cfg(feature = "cuda")]
use crate::{DeviceIndex, DeviceLayer, DeviceScratch, DeviceStep, PrefixStatsView};
use crate::{PromptShape, StepShape};
#[cfg(feature = "cuda")]
use spattn_cuda::{Directions, GpuError, IndexRows, ProjectedQueries, Reduction, Storage};
use spattn_kernels::GPU_WIDEST;

impl DeviceScorer for Loki {
    fn fits(&self, shape: KvShape) -> bool {
        shape.d.is_multiple_of(8) && shape.d <= GPU_WIDEST && row_width(self.rank.of(shape.d)).is_some()
    }

    fn cost(&self, step: &StepShape) -> Cost {
        let rank = self.rank.of(step.d);
        Cost {
            aux_bytes: (rank * step.d * size_of::<f32>() + step.candidates * rank * step.dtype.bytes()) as u64,
            score_flops: (2 * step.group * rank * (step.d + step.candidates)) as u64,
            ..Cost::default()
        }
    }

    fn layer_bytes(&self, prefix: &PromptShape, dtype: KvDtype) -> usize {
        let (rank, d) = (self.rank.of(prefix.d), prefix.d);
        let rows = prefix.tokens * row_width(rank).unwrap_or(rank) * dtype.bytes();
        prefix.kv_heads * (rows + rank * d * size_of::<f32>())
    }

    #[cfg(feature = "cuda")]
    fn build_all(&self, layer: &DeviceLayer<'_>, _: &PrefixStatsView<'_>) -> Result<DeviceIndex, GpuError> {
        let (gpu, cache, tokens) = (layer.gpu, &layer.cache, layer.candidates.len());
        let rank = self.rank.of(cache.d);
        let padded = row_width(rank).expect(FITS);
        let known = self.basis.as_ref().map_or(0, |basis| basis.heads[layer.layer].len()).min(cache.kv_heads);
        let components = (0..known).map(|kv_head| self.components(layer.layer, kv_head, cache.d));
        let buffer = gpu.upload(&components.collect::<Vec<_>>().concat())?;
        let directions = Directions { buffer: &buffer, heads: known, count: rank, d: cache.d };
        let mut rows = gpu.alloc(cache.kv_heads * tokens * padded * cache.storage.bytes())?;
        gpu.project_keys(cache, layer.candidates.clone(), &directions, padded, &mut rows)?;
        let bytes = cache.kv_heads * tokens * rank * cache.storage.bytes();
        Ok(DeviceIndex { buffers: vec![buffer, rows], bytes, ..DeviceIndex::default() })
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
        let [buffer, projected] = index.buffers.as_slice() else { unreachable!("what `build_all` made") };
        let (gpu, cache, heads) = (step.prefix.gpu, &step.prefix.cache, step.queries.heads);
        let (d, kv_heads, storage, rank) = (cache.d, cache.kv_heads, cache.storage, self.rank.of(cache.d));
        let padded = row_width(rank).expect(FITS);
        let directions = Directions { buffer, heads: buffer.bytes() / (4 * rank * d), count: rank, d };
        let DeviceScratch { scores, queries: [most, rest], in_order, .. } = scratch;
        // A sum of scores is the score of a sum.
        let summed = reduction == Some(Reduction::Sum);
        let made = if summed { kv_heads } else { heads };
        let bytes = rows.len() * made * padded * storage.bytes();
        gpu.reserve(most, bytes)?;
        gpu.reserve(rest, bytes)?;
        let (Some(most), Some(rest)) = (most, rest) else { unreachable!("both were reserved") };
        let of_rows = (&step.queries, rows.clone());
        gpu.project_queries(of_rows, (kv_heads, storage), &directions, (padded, summed), [most, rest])?;
        in_order.set(gpu, (0..rows.len() as u32).collect())?;
        // What single precision rounds is nothing.
        let rest = (storage != Storage::F32).then_some(&*rest);
        let queries = ProjectedQueries { high: most, low: rest, heads: made, width: padded, rows: in_order };
        let index = IndexRows { rows: projected, count: step.prefix.candidates.len(), kv_heads, storage };
        gpu.score_rows(&queries, &index, reduction, scores)
    }
}

//! Launches of page bounds on a GPU.

use super::{Bounds, bound_bytes};
use crate::backend::active::{Built, CudaScorer, DeviceLayer, DeviceScratch, ScoreRequest};
use crate::backend::index::PrefixStatsView;
use spattn_cuda::{Buffer, GpuError, PageBounds, Pages};

/// Channel-wise bounds of each page, `[kv_head][page][d]` each, in the storage type of the keys.
pub(crate) struct LayerBounds {
    lower: Buffer,
    upper: Buffer,
}

impl CudaScorer for Bounds {
    type Index = LayerBounds;

    fn build_all(&self, layer: &DeviceLayer<'_>, _: &PrefixStatsView<'_>) -> Result<Built<LayerBounds>, GpuError> {
        let pages = Pages { tokens: layer.candidates.clone(), size: self.page };
        let (kv_heads, d) = (layer.cache.kv_heads, layer.cache.d);
        let host_bytes = kv_heads * bound_bytes(pages.count(), d, layer.dtype.bytes());
        let (mut lower, mut upper) = (layer.gpu.alloc(host_bytes / 2)?, layer.gpu.alloc(host_bytes / 2)?);
        layer.gpu.page_bounds(&layer.cache, &pages, &mut lower, &mut upper)?;
        Ok(Built { index: LayerBounds { lower, upper }, host_bytes })
    }

    fn score_all(&self, request: ScoreRequest<'_, LayerBounds>, scratch: &mut DeviceScratch) -> Result<(), GpuError> {
        let ScoreRequest { step, rows, index: LayerBounds { lower, upper }, reduction } = request;
        let (prefix, pages) = (&step.prefix, step.prefix.candidates.len().div_ceil(self.page));
        let (kv_heads, d, storage) = (prefix.cache.kv_heads, prefix.cache.d, prefix.cache.storage);
        let bounds = PageBounds { lower, upper, pages, kv_heads, d, storage };
        prefix.gpu.score_bounds(&step.queries, rows, &bounds, reduction, &mut scratch.scores)
    }
}

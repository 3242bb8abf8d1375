//! Launches of page bounds on a GPU.

use super::{Bounds, bound_bytes};
use crate::backend::active::{Built, CudaScorer, DeviceLayer, DeviceScratch, ScoreRequest};
use crate::backend::index::PrefixStatsView;
use spattn_cuda::{Buffer, CodedBounds, CodedBoundsWorkspace, GpuError, PageBounds, PageCodes, Pages};

/// Channel-wise bounds of each page of a layer.
pub(crate) enum LayerBounds {
    /// In the keys' storage type, each `[kv_head][page][d]`.
    Exact { lower: Buffer, upper: Buffer },
    /// In a few bits.
    Coded(Box<PageCodes>),
}

impl CudaScorer for Bounds {
    type Index = LayerBounds;

    fn build_all(&self, layer: &DeviceLayer<'_>, _: &PrefixStatsView<'_>) -> Result<Built<LayerBounds>, GpuError> {
        let pages = Pages { tokens: layer.candidates.clone(), size: self.page };
        let (kv_heads, d) = (layer.cache.kv_heads, layer.cache.d);
        if let Some(bits) = self.summary_bits {
            let index = LayerBounds::Coded(layer.gpu.code_bounds(&layer.cache, &pages, bits)?.into());
            return Ok(Built { index, host_bytes: kv_heads * self.coded_bytes(pages.count(), d, bits) });
        }
        let host_bytes = kv_heads * bound_bytes(pages.count(), d, layer.dtype.bytes());
        let (mut lower, mut upper) = (layer.gpu.alloc(host_bytes / 2)?, layer.gpu.alloc(host_bytes / 2)?);
        layer.gpu.page_bounds(&layer.cache, &pages, &mut lower, &mut upper)?;
        Ok(Built { index: LayerBounds::Exact { lower, upper }, host_bytes })
    }

    fn score_all(&self, request: ScoreRequest<'_, LayerBounds>, scratch: &mut DeviceScratch) -> Result<(), GpuError> {
        let ScoreRequest { step, rows, index, reduction } = request;
        let (prefix, pages) = (&step.prefix, step.prefix.candidates.len().div_ceil(self.page));
        let (kv_heads, d, storage) = (prefix.cache.kv_heads, prefix.cache.d, prefix.cache.storage);
        let DeviceScratch { scores, own } = scratch;
        match (index, self.summary_bits) {
            (LayerBounds::Coded(codes), Some(bits)) => {
                let workspace: &mut CodedBoundsWorkspace = own.of();
                let bounds = (&CodedBounds { bits, pages, kv_heads, d }, &**codes);
                prefix.gpu.score_coded_bounds((&step.queries, rows), storage, bounds, reduction, (scores, workspace))
            }
            (LayerBounds::Exact { lower, upper }, None) => {
                let bounds = PageBounds { lower, upper, pages, kv_heads, d, storage };
                prefix.gpu.score_bounds(&step.queries, rows, &bounds, reduction, scores)
            }
            _ => unreachable!("an index has the bounds that `build_all` made"),
        }
    }
}

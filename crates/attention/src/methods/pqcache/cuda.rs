//! Launches of product-quantised keys on a GPU. The host clusters the keys when a prefix is read, as the authors' code does, and
//! uploads codes and centroids; the GPU multiplies queries with the centroids at every step.

use super::{ProductCodes, Subspace};
use crate::backend::active::{Built, CudaScorer, DeviceLayer, DeviceScratch, ScoreRequest, build_on_host};
use crate::backend::index::PrefixStatsView;
use crate::scored::scorer::Scorer;
use spattn_cuda::{Buffer, CodedKeys, GpuError};

/// The quantised keys of a layer.
pub(super) struct LayerCodes {
    /// Codes `[kv_head][subspace][stride]`, a byte each.
    codes: Buffer,
    /// Centroids f32 `[kv_head][centroid][d]`.
    centroids: Buffer,
}

/// Products of the queries with all centroids.
#[derive(Debug, Default)]
struct CentroidProducts(Option<Buffer>);

impl CudaScorer for ProductCodes {
    type Index = LayerCodes;

    fn build_all(&self, layer: &DeviceLayer<'_>, learned: &PrefixStatsView<'_>) -> Result<Built<LayerCodes>, GpuError> {
        let (d, tokens) = (layer.cache.d, layer.candidates.len());
        let (stride, count) = (CodedKeys::stride(tokens), self.centroids(tokens));
        let heads = build_on_host(layer, learned, |prefix| self.build(prefix))?;
        let mut codes = Vec::with_capacity(heads.len() * self.parts(d) * stride);
        let mut centroids = vec![0.0f32; heads.len() * count * d];
        for (subspaces, rows) in heads.iter().zip(centroids.chunks_exact_mut(count * d)) {
            for Subspace { channels, centroids, codes: own } in subspaces {
                codes.extend(own);
                codes.resize(codes.len().next_multiple_of(4), 0);
                let numbers = centroids.head(0).to_f32();
                for (row, own) in rows.chunks_exact_mut(d).zip(numbers.chunks_exact(channels.len())) {
                    row[channels.clone()].copy_from_slice(own);
                }
            }
        }
        let host_bytes = heads.iter().map(|subspaces| self.index_bytes(subspaces)).sum();
        let index = LayerCodes { codes: layer.gpu.upload(&codes)?, centroids: layer.gpu.upload(&centroids)? };
        Ok(Built { index, host_bytes })
    }

    fn score_all(&self, request: ScoreRequest<'_, LayerCodes>, scratch: &mut DeviceScratch) -> Result<(), GpuError> {
        let ScoreRequest { step, rows, index: LayerCodes { codes, centroids }, reduction } = request;
        let (gpu, cache, tokens) = (step.prefix.gpu, &step.prefix.cache, step.prefix.candidates.len());
        let keys = CodedKeys {
            codes,
            centroids,
            parts: self.parts(cache.d),
            count: self.centroids(tokens),
            tokens,
            kv_heads: cache.kv_heads,
        };
        let DeviceScratch { scores, own } = scratch;
        let CentroidProducts(products) = own.of();
        gpu.score_codes((&step.queries, rows), (cache.d, cache.storage), &keys, reduction, products, scores)
    }
}

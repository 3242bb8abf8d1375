//! Launches of scores on the leading components of keys, on a GPU.

use super::Loki;
use crate::backend::active::{Built, CudaScorer, DeviceLayer, DeviceScratch, FITS, ProjectionWorkspace, ScoreRequest};
use crate::backend::form::row_width;
use crate::backend::index::PrefixStatsView;
use spattn_cuda::{Buffer, Directions, GpuError, IndexRows, Reduction, Storage};

/// The projected keys of a layer.
pub(super) struct ProjectedKeys {
    /// Components of each KV head of the model: f32 `[kv_head][rank][d]`.
    components: Buffer,
    /// Projected keys, `[kv_head][token][padded rank]`, in the keys' storage type.
    keys: Buffer,
}

impl CudaScorer for Loki {
    type Index = ProjectedKeys;

    fn build_all(&self, layer: &DeviceLayer<'_>, _: &PrefixStatsView<'_>) -> Result<Built<ProjectedKeys>, GpuError> {
        let (gpu, cache, tokens) = (layer.gpu, &layer.cache, layer.candidates.len());
        let rank = self.rank.of(cache.d);
        let padded = row_width(rank).expect(FITS);
        let known = self.basis.as_ref().map_or(0, |basis| basis.heads[layer.layer].len()).min(cache.kv_heads);
        let components = (0..known).map(|kv_head| self.components(layer.layer, kv_head, cache.d));
        let components = gpu.upload(&components.collect::<Vec<_>>().concat())?;
        let directions = Directions { buffer: &components, heads: known, count: rank, d: cache.d };
        let mut keys = gpu.alloc(cache.kv_heads * tokens * padded * cache.storage.bytes())?;
        gpu.project_keys(cache, layer.candidates.clone(), &directions, padded, &mut keys)?;
        let host_bytes = cache.kv_heads * tokens * rank * cache.storage.bytes();
        Ok(Built { index: ProjectedKeys { components, keys }, host_bytes })
    }

    fn score_all(&self, request: ScoreRequest<'_, ProjectedKeys>, scratch: &mut DeviceScratch) -> Result<(), GpuError> {
        let ScoreRequest { step, rows, index, reduction } = request;
        let (gpu, cache, heads) = (step.prefix.gpu, &step.prefix.cache, step.queries.heads);
        let (d, kv_heads, storage, rank) = (cache.d, cache.kv_heads, cache.storage, self.rank.of(cache.d));
        let padded = row_width(rank).expect(FITS);
        let heads_of = index.components.bytes() / (4 * rank * d);
        let directions = Directions { buffer: &index.components, heads: heads_of, count: rank, d };
        let DeviceScratch { scores, own } = scratch;
        // Summed scores equal the score of the summed queries.
        let summed = reduction == Some(Reduction::Sum);
        let made = if summed { kv_heads } else { heads };
        let bytes = rows.len() * made * padded * storage.bytes();
        let projection: &mut ProjectionWorkspace = own.of();
        let both = [gpu.reserved(&mut projection.high, bytes)?, gpu.reserved(&mut projection.low, bytes)?];
        let of_rows = (&step.queries, rows.clone());
        gpu.project_queries(of_rows, (kv_heads, storage), &directions, (padded, summed), both)?;
        // Single precision loses nothing by rounding.
        let with_low = storage != Storage::F32;
        let index = IndexRows { rows: &index.keys, count: step.prefix.candidates.len(), kv_heads, storage };
        projection.score(step, (rows.len(), made, padded), with_low, (&index, reduction), scores)
    }
}

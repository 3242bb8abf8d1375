//! Launches of representative keys on a GPU. The host chooses the representatives when a prefix is read, by the prompt's
//! statistics, and uploads their keys.

use super::Representatives;
use crate::backend::active::{Built, CudaScorer, DeviceLayer, DeviceScratch, ScoreRequest, build_on_host};
use crate::backend::index::PrefixStatsView;
use crate::scored::scorer::Scorer;
use spattn_cuda::{Buffer, Cache, GpuError, ScoreWorkspace};

/// Keys of the representatives, `[kv_head][representative][d]`.
pub(super) struct RepresentativeKeys(Buffer);

/// Scores of single representatives, which are summed over each block.
#[derive(Debug, Default)]
struct RepresentativeScores(ScoreWorkspace);

impl CudaScorer for Representatives {
    type Index = RepresentativeKeys;

    fn build_all(
        &self,
        layer: &DeviceLayer<'_>,
        learned: &PrefixStatsView<'_>,
    ) -> Result<Built<RepresentativeKeys>, GpuError> {
        let heads = build_on_host(layer, learned, |prefix| self.build(prefix))?;
        let each = self.of(layer.candidates.len()) * layer.cache.d * layer.dtype.bytes();
        let mut keys = layer.gpu.alloc(heads.len() * each)?;
        for (kv_head, own) in heads.iter().enumerate() {
            layer.gpu.upload_rows(&mut keys, kv_head * each, own.head(0))?;
        }
        let host_bytes = heads.iter().map(|keys| self.index_bytes(keys)).sum();
        Ok(Built { index: RepresentativeKeys(keys), host_bytes })
    }

    fn score_all(
        &self,
        request: ScoreRequest<'_, RepresentativeKeys>,
        scratch: &mut DeviceScratch,
    ) -> Result<(), GpuError> {
        let ScoreRequest { step, rows, index: RepresentativeKeys(keys), reduction } = request;
        let (gpu, count) = (step.prefix.gpu, self.of(step.prefix.candidates.len()));
        let cache = Cache { keys, values: keys, keys_at: 0, values_at: 0, capacity: count, ..step.prefix.cache };
        let RepresentativeScores(each) = scratch.own.of();
        gpu.score_keys(&step.queries, rows, &cache, 0..count, None, each)?;
        gpu.sum_runs(each.of(None), self.count, cache.kv_heads, reduction, &mut scratch.scores)
    }
}

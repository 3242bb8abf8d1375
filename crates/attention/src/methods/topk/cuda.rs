//! Launches of exact scores on a GPU: keys are scored where the cache holds them.

use super::ExactScores;
use crate::backend::active::{Built, CudaScorer, DeviceLayer, DeviceScratch, ScoreRequest};
use crate::backend::index::PrefixStatsView;
use spattn_cuda::GpuError;

impl CudaScorer for ExactScores {
    type Index = ();

    fn build_all(&self, _: &DeviceLayer<'_>, _: &PrefixStatsView<'_>) -> Result<Built<()>, GpuError> {
        Ok(Built::default())
    }

    fn score_all(&self, request: ScoreRequest<'_, ()>, scratch: &mut DeviceScratch) -> Result<(), GpuError> {
        let ScoreRequest { step, rows, reduction, .. } = request;
        let (prefix, candidates) = (&step.prefix, step.prefix.candidates.clone());
        prefix.gpu.score_keys(&step.queries, rows, &prefix.cache, candidates, reduction, &mut scratch.scores)
    }
}

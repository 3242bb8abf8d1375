//! Launches of exact scores on a GPU: keys are scored where the cache holds them.

use std::ops::Range;

use super::ExactScores;
use crate::backend::active::{Built, CudaScorer, DeviceLayer, DeviceScratch, DeviceStep};
use crate::backend::index::PrefixStatsView;
use spattn_cuda::{GpuError, Reduction};

impl CudaScorer for ExactScores {
    type Index = ();

    fn build_all(&self, _: &DeviceLayer<'_>, _: &PrefixStatsView<'_>) -> Result<Built<()>, GpuError> {
        Ok(Built::default())
    }

    fn score_all(
        &self,
        step: &DeviceStep<'_>,
        rows: Range<usize>,
        (): &(),
        reduction: Option<Reduction>,
        scratch: &mut DeviceScratch,
    ) -> Result<(), GpuError> {
        let (prefix, candidates) = (&step.prefix, step.prefix.candidates.clone());
        prefix.gpu.score_keys(&step.queries, rows, &prefix.cache, candidates, reduction, &mut scratch.scores)
    }
}

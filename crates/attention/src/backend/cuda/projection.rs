//! Scores as products of projected queries with the rows of an index, for methods that keep a few numbers per key.

use crate::backend::cuda::layer::DeviceStep;
use spattn_cuda::{Buffer, GpuError, HostDeviceVec, IndexRows, ProjectedQueries, Reduction, ScoreWorkspace};

/// Projected queries of the rows of a step.
#[derive(Debug, Default)]
pub(crate) struct ProjectionWorkspace {
    /// Queries in the storage type of the index.
    pub(crate) high: Option<Buffer>,
    /// The rounding errors of the queries in that type, where they are added.
    pub(crate) low: Option<Buffer>,
    /// Row numbers `0..rows`.
    in_order: HostDeviceVec<u32>,
}

impl ProjectionWorkspace {
    /// Scores `index` by the last written queries `[row][head][width]`, of `rows` rows; `with_low` adds the products with the
    /// queries' rounding errors.
    pub(crate) fn score(
        &mut self,
        step: &DeviceStep<'_>,
        (rows, heads, width): (usize, usize, usize),
        with_low: bool,
        (index, reduction): (&IndexRows<'_>, Option<Reduction>),
        scores: &mut ScoreWorkspace,
    ) -> Result<(), GpuError> {
        let gpu = step.prefix.gpu;
        self.in_order.set(gpu, (0..rows as u32).collect())?;
        let high = self.high.as_ref().expect("queries are projected before they are scored");
        let low = self.low.as_ref().filter(|_| with_low);
        let queries = ProjectedQueries { high, low, heads, width, rows: &self.in_order };
        gpu.score_rows(&queries, index, reduction, scores)
    }
}

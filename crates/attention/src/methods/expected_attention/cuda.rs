//! Expected attention of keys on a GPU, which sums up queries and computes the forms of keys and the norms of values.

use rayon::prelude::*;

use super::{ExpectedAttention, Queries, Scores, mean_rotation};
use crate::backend::active::{CudaBuilder, KvHandle};
use crate::backend::index::IndexLayer;
use crate::index::pca::Covariance;
use spattn_cuda::{Gpu, GpuError, RowMoments};

impl CudaBuilder for ExpectedAttention {
    type Index = Scores;

    fn build_heads(&self, kv: KvHandle<'_>, layer: &IndexLayer<'_>) -> Result<Vec<Scores>, GpuError> {
        let (first, context) = (layer.candidates.start as u32, layer.context());
        if self.budget.is_none() {
            return Ok((0..kv.1.kv_heads).map(|_| Scores { of_candidates: Vec::new(), first, context }).collect());
        }
        let rotation = layer.rotation.map(|turn| mean_rotation(turn, kv.1.d, layer.tokens, self.future));
        let of_head = |kv_head: usize| -> Result<Scores, GpuError> {
            let of_candidates = self.scores_there(kv, layer, kv_head, rotation.as_deref())?;
            Ok(Scores { of_candidates, first, context })
        };
        (0..kv.1.kv_heads).map(of_head).collect()
    }
}

impl ExpectedAttention {
    /// Score of each candidate of a KV head, for the group.
    fn scores_there(
        &self,
        (gpu, cache): KvHandle<'_>,
        layer: &IndexLayer<'_>,
        kv_head: usize,
        mean_rotation: Option<&[f64]>,
    ) -> Result<Vec<f32>, GpuError> {
        let candidates = layer.candidates.clone();
        let queries = self.queries_there(gpu, layer, (kv_head, cache.d), mean_rotation)?;
        let means: Vec<f64> = queries.iter().flat_map(|queries| &queries.mean).copied().collect();
        let matrices: Vec<f64> = queries.iter().flat_map(|queries| &queries.covariance).copied().collect();
        let matrix = self.covariance.then_some(&matrices[..]);
        let forms = gpu.forms(&cache, kv_head, candidates.clone(), &means, matrix)?;
        let log = |[linear, quadratic]: &[f64; 2]| self.log_expected(*linear, *quadratic, layer.scale);
        let logs = forms.par_chunks_exact(candidates.len()).map(|forms| forms.iter().map(log).collect()).collect();
        let norms = self.norm.then(|| gpu.value_norms(&cache, kv_head, candidates)).transpose()?;
        Ok(Self::merged(logs, norms))
    }

    /// Distributions of the future queries of each head of the group.
    fn queries_there(
        &self,
        gpu: &Gpu,
        layer: &IndexLayer<'_>,
        (kv_head, d): (usize, usize),
        mean_rotation: Option<&[f64]>,
    ) -> Result<Vec<Queries>, GpuError> {
        let unrotated = self.unrotated(&layer.head(kv_head), layer.rotation, layer.candidates.start, d);
        let heads = layer.head(kv_head).group();
        let rows = unrotated.len() / (heads * d);
        let moments = gpu.moments(&gpu.upload(&unrotated)?, (heads, rows, d))?;
        let of_head = |moments: &RowMoments| Queries::of_moments(rows, moments).mapped_by(mean_rotation);
        Ok(moments.par_iter().map(of_head).collect())
    }
}

impl Queries {
    /// The distribution of `count` rows with these moments.
    fn of_moments(count: usize, moments: &RowMoments) -> Self {
        let RowMoments { sum, products } = moments;
        let mut covariance = Covariance::new(sum.len());
        covariance.set_sums(&[&[count as f64], &sum[..], &products[..]].concat());
        let mean = sum.iter().map(|sum| sum / count.max(1) as f64).collect();
        Self { mean, covariance: covariance.matrix() }
    }
}

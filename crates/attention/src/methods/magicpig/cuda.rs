//! Launches of the hash tables on a GPU: keys are hashed and sorted when the prefix is read, collisions are looked up at every step.

use super::probability::LogProbability;
use super::{MagicPig, Shape};
use crate::backend::active::{Built, CudaForm, DeviceLayer, DeviceScratch, DeviceStep, DeviceWorkspace, FITS};
use crate::backend::index::PrefixStatsView;
use crate::methods::planes::gaussians;
use spattn_cuda::{CollisionWorkspace, GpuError, HashTables, HostDeviceVec, SamplingSpec, TableShape, TokenListLayout};

/// One of this many candidates is expected to be sampled, by which work is cut evenly: the published settings sample 1 to 4 %.
const SAMPLED_OF: usize = 32;

impl MagicPig {
    fn table_shape(&self, d: usize) -> TableShape {
        let Shape { bits, tables } = self.shape();
        TableShape { bits, tables, d }
    }
}

/// Logarithms of the probabilities by which sampled tokens are weighted. They belong to the method, not to its index, which methods with
/// other probabilities share.
#[derive(Debug, Default)]
struct SamplingTable(HostDeviceVec<f32>);

impl CudaForm for MagicPig {
    type Index = HashTables;

    fn build_all(&self, layer: &DeviceLayer<'_>, _: &PrefixStatsView<'_>) -> Result<Built<HashTables>, GpuError> {
        let (shape, d) = (self.shape(), layer.cache.d);
        let planes = gaussians(shape.planes() * d, self.hashing.seed);
        let (gpu, tokens) = (layer.gpu, layer.candidates.clone());
        let tables = gpu.hash_keys(&layer.cache, tokens, self.table_shape(d), (&planes, self.hashing.center))?;
        Ok(Built { host_bytes: tables.bytes(), index: tables })
    }

    fn select_all(
        &self,
        step: &DeviceStep<'_>,
        tables: &HashTables,
        to: &mut DeviceWorkspace,
        scratch: &mut DeviceScratch,
    ) -> Result<(), GpuError> {
        let (gpu, candidates) = (step.prefix.gpu, step.prefix.candidates.clone());
        let layout = TokenListLayout::new(step.queries.heads, candidates.len())
            .expecting(candidates.len().div_ceil(SAMPLED_OF))
            .weighted();
        to.lists.resize(gpu, layout, vec![candidates.end; step.budget_units.len()])?;
        let log_probability = self.log_probability.as_ref().expect(FITS);
        let DeviceWorkspace { lists, own, .. } = to;
        let SamplingTable(steps) = own.of();
        steps.set(gpu, log_probability.steps.clone())?;
        let chances = SamplingSpec {
            least: self.hashing.min_collisions,
            floor: self.u_floor,
            log_probabilities: steps,
            farthest: LogProbability::FARTHEST,
        };
        let workspace: &mut CollisionWorkspace = scratch.own.of();
        gpu.sample_collisions(&step.queries, &step.prefix.cache, (tables, &chances), lists, workspace)
    }
}

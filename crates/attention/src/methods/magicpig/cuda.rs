//! Launches of the hash tables on a GPU: keys are hashed and sorted when the prefix is read, collisions are looked up at every step.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::probability::LogProbability;
use super::tables::{Buckets, HashTables as OwnTables};
use super::{Geometry, HashIndex, MagicPig, Norms, Shape};
use crate::backend::active::{
    Built, CudaBuilder, CudaForm, DeviceLayer, DeviceScratch, DeviceStep, DeviceWorkspace, FITS, KvHandle,
};
use crate::backend::index::{IndexLayer, PrefixStatsView};
use spattn_cuda::{
    Buffer, CollisionWorkspace, DownloadedTables, GpuError, HashTables, HostDeviceVec, Queries, SamplingSpec,
    TableNumbers, TableShape, TokenListLayout,
};

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

/// What a GPU keeps to hash queries for the host.
#[derive(Debug, Default)]
struct QueryHashing {
    /// Hyperplanes, by everything that determines them: bits, tables, channels and seed. All layers share them.
    planes: HashMap<(usize, usize, usize, u64), Buffer>,
    workspace: CollisionWorkspace,
}

impl CudaBuilder for MagicPig {
    type Index = HashIndex;

    /// Builds the tables of [`build_all`](CudaForm::build_all), and downloads them.
    fn build_heads(&self, (gpu, cache): KvHandle<'_>, layer: &IndexLayer<'_>) -> Result<Vec<HashIndex>, GpuError> {
        let shape = self.table_shape(cache.d);
        let normals = self.planes.normals_of_width(cache.d);
        let tables = gpu.hash_keys(&cache, layer.candidates.clone(), shape, (&normals, self.hashing.center))?;
        (0..cache.kv_heads).map(|kv_head| Ok(self.index_of(tables.download(gpu, kv_head)?, cache.d))).collect()
    }

    fn hash_queries(
        &self,
        queries: &Queries<'_>,
        (gpu, cache): KvHandle<'_>,
        scratch: &mut DeviceScratch,
    ) -> Result<Vec<u16>, GpuError> {
        let (shape, seed) = (self.table_shape(cache.d), self.hashing.seed);
        let key = (shape.bits, shape.tables, shape.d, seed);
        let QueryHashing { planes, workspace } = scratch.own.of();
        let planes = match planes.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(none) => none.insert(gpu.upload(&self.planes.normals_of_width(shape.d))?),
        };
        gpu.hash_queries(queries, cache.storage, shape, planes, workspace)
    }
}

impl MagicPig {
    /// Makes the index of a KV head from tables that a device made.
    fn index_of(&self, made: DownloadedTables, d: usize) -> HashIndex {
        let (shape, tokens) = (self.shape(), made.lengths.len());
        let tables = match made.numbers {
            TableNumbers::Narrow(bounds, sorted) => OwnTables::Narrow(Buckets::of(shape, tokens, bounds, sorted)),
            TableNumbers::Wide(bounds, sorted) => OwnTables::Wide(Buckets::of(shape, tokens, bounds, sorted)),
        };
        let mean = (!made.mean.is_empty()).then_some(made.mean);
        let geometry = Geometry { mean, norms: Norms::Each(made.lengths) };
        HashIndex { planes: self.planes.of_width(d), tables, geometry }
    }
}

impl CudaForm for MagicPig {
    type Index = HashTables;

    fn build_all(&self, layer: &DeviceLayer<'_>, _: &PrefixStatsView<'_>) -> Result<Built<HashTables>, GpuError> {
        let d = layer.cache.d;
        let planes = self.planes.normals_of_width(d);
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
        steps.set_to(gpu, &log_probability.steps)?;
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

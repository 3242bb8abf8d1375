//! Launches of heavy hitters on a GPU, which holds each sequence's token cache with the mass of each token and updates it at every
//! step.
//!
//! The prompt's masses were gathered while it was read. By them the host selects the first heavy hitters, which it uploads.

use rayon::prelude::*;

use super::{H2o, bytes_of};
use crate::backend::active::{Built, CudaForm, DeviceLayer, DeviceScratch, DeviceStep, DeviceWorkspace};
use crate::backend::index::PrefixStatsView;
use crate::types::budget::Context;
use spattn_cuda::{Gpu, GpuError, HeldList, HeldSizes, HeldTokens, HoldingPrefix, HoldingRow, HoldingWorkspace};

impl CudaForm for H2o {
    /// The token cache with which sequences start.
    type Index = HeldTokens;

    fn build_all(&self, layer: &DeviceLayer<'_>, learned: &PrefixStatsView<'_>) -> Result<Built<HeldTokens>, GpuError> {
        let stats = learned.stats.expect("the prompt statistics were gathered before the index is built");
        let candidates = layer.candidates.clone();
        let prompt = |kv_head: usize| stats.head(layer.layer, kv_head);
        let tokens = prompt(0).attention_mass(0).len();
        let budget = self.heavy.tokens(Context::new(tokens, &candidates));
        let caches: Vec<_> = (0..layer.cache.kv_heads)
            .into_par_iter()
            .flat_map(|kv_head| self.caches(&prompt(kv_head), candidates.clone(), budget))
            .collect();
        let lists: Vec<HeldList> = caches
            .iter()
            .map(|cache| HeldList {
                tokens: cache.tokens().collect(),
                masses: cache.heavy.iter().map(|(_, mass)| *mass).collect(),
                window: cache.recent.iter().copied().collect(),
            })
            .collect();
        let sizes = HeldSizes { budget, window: tokens - candidates.end };
        let index = HeldTokens::upload(layer.gpu, sizes, tokens, &lists)?;
        Ok(Built { index, host_bytes: bytes_of(&caches) })
    }

    fn start_all(&self, gpu: &Gpu, index: &HeldTokens, total: usize) -> Result<Option<HeldTokens>, GpuError> {
        index.with_room(gpu, total).map(Some)
    }

    fn select_all(
        &self,
        step: &DeviceStep<'_>,
        index: &HeldTokens,
        to: &mut DeviceWorkspace,
        scratch: &mut DeviceScratch,
    ) -> Result<(), GpuError> {
        let candidates = &step.prefix.candidates;
        let prefix = HoldingPrefix {
            keys: step.prefix.cache,
            tokens: candidates.end + index.sizes().window,
            sink: candidates.start,
            scale: step.prefix.scale.factor(),
        };
        let rows: Vec<HoldingRow<'_>> = step
            .runs
            .iter()
            .zip(step.seeds)
            .map(|(run, seed)| HoldingRow {
                held: run.held.expect("`start_all` made the token cache of the sequence"),
                tail: run.tail,
                total: seed.total,
            })
            .collect();
        let workspace: &mut HoldingWorkspace = scratch.own.of();
        step.prefix.gpu.evict_and_weigh(&step.queries, &prefix, &rows, &mut to.lists, workspace)
    }
}

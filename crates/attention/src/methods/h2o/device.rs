//! Heavy hitters on a device: what a run holds lies there with what each token has received, and changes there at every step.
//!
//! The masses of the prompt were gathered while it was read; the host says which tokens are heavy hitters then, and sends them.

#[cfg(feature = "cuda")]
use rayon::prelude::*;

use super::H2o;
#[cfg(feature = "cuda")]
use super::bytes_of;
use crate::cost::Cost;
use crate::kv::{KvDtype, KvShape};
use crate::scored::granularity::Granularity;
use crate::{Context, DeviceForm, PromptShape, StepShape};
#[cfg(feature = "cuda")]
use crate::{DeviceIndex, DeviceLayer, DeviceScratch, DeviceStep, DeviceWorkspace, PrefixStatsView};
#[cfg(feature = "cuda")]
use spattn_cuda::{Gpu, GpuError, HeldList, HeldSizes, HeldTokens, HoldingPrefix, HoldingRow};

/// The widest head that kernels weigh.
const WIDEST: usize = 256;
/// Bytes of a heavy hitter, and of a token in the window.
const HEAVY: usize = 2 * size_of::<u32>();
const RECENT: usize = size_of::<f32>();

impl H2o {
    /// Query heads that share what is held.
    fn sharing(&self, group: usize) -> usize {
        if self.per == Granularity::QueryHead { 1 } else { group }
    }

    /// Heavy hitters and tokens of the window that a list has at most, where a run generates no more than was read.
    fn sizes(&self, prefix: &PromptShape) -> [usize; 2] {
        let budget = self.heavy.tokens(Context::new(prefix.tokens, &(0..prefix.tokens)));
        [budget.min(2 * prefix.tokens), self.recent.tokens(prefix.tokens)]
    }

    fn lists(&self, prefix: &PromptShape) -> usize {
        prefix.heads / self.sharing(prefix.heads / prefix.kv_heads)
    }
}

impl DeviceForm for H2o {
    fn fits(&self, shape: KvShape) -> bool {
        shape.d.is_multiple_of(8) && shape.d <= WIDEST
    }

    /// Nothing: the weights that are added up are those by which a step attends.
    fn cost(&self, _: &StepShape) -> Cost {
        Cost::default()
    }

    /// What is held says that.
    fn budget_units(&self, _: Context, _: usize) -> u32 {
        0
    }

    fn index_bytes(&self, prefix: &PromptShape, _: KvDtype) -> usize {
        prefix.layers * self.held_bytes(prefix)
    }

    fn holds(&self) -> bool {
        true
    }

    fn held_bytes(&self, prefix: &PromptShape) -> usize {
        let [heavy, recent] = self.sizes(prefix);
        self.lists(prefix) * (size_of::<u32>() + HEAVY * heavy + RECENT * recent)
    }

    /// Beside the list itself, a logit for each query head of what is held.
    fn list_bytes(&self, prefix: &PromptShape) -> usize {
        let [heavy, recent] = self.sizes(prefix);
        size_of::<u32>() * (self.lists(prefix) * heavy + prefix.heads * (heavy + recent))
    }

    #[cfg(feature = "cuda")]
    fn build_all(&self, layer: &DeviceLayer<'_>, learned: &PrefixStatsView<'_>) -> Result<DeviceIndex, GpuError> {
        let stats = learned.stats.expect("an index is built when what it needs was gathered");
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
        let held = HeldTokens::upload(layer.gpu, sizes, tokens, &lists)?;
        Ok(DeviceIndex { held: Some(held), bytes: bytes_of(&caches), ..DeviceIndex::default() })
    }

    #[cfg(feature = "cuda")]
    fn start_all(&self, gpu: &Gpu, index: &DeviceIndex, total: usize) -> Result<Option<HeldTokens>, GpuError> {
        index.held.as_ref().map(|held| held.with_room(gpu, total)).transpose()
    }

    #[cfg(feature = "cuda")]
    fn select_all(
        &self,
        step: &DeviceStep<'_>,
        index: &DeviceIndex,
        room: &mut DeviceWorkspace,
        scratch: &mut DeviceScratch,
    ) -> Result<(), GpuError> {
        let began = index.held.as_ref().expect("the index is what runs begin with");
        let candidates = &step.prefix.candidates;
        let prefix = HoldingPrefix {
            keys: step.prefix.cache,
            tokens: candidates.end + began.sizes().window,
            sink: candidates.start,
            scale: step.prefix.scale.factor(),
        };
        let rows: Vec<HoldingRow<'_>> = step
            .runs
            .iter()
            .zip(step.seeds)
            .map(|(run, seed)| HoldingRow {
                held: run.held.expect("a run holds what it began with"),
                tail: run.tail,
                total: seed.total,
            })
            .collect();
        step.prefix.gpu.evict_and_weigh(&step.queries, &prefix, &rows, &mut room.lists, &mut scratch.holding)
    }
}

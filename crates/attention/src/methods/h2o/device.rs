//! Heavy hitters on a device: which shapes they fit, what they cost and how much memory the token caches take.

use super::H2o;
use crate::backend::reasons::HostReason;
use crate::cost::Cost;
use crate::kv::{KvDtype, KvShape};
use crate::scored::granularity::Granularity;
use crate::{Context, DeviceForm, PromptShape, StepShape};

/// The widest head that the kernels support.
const WIDEST: usize = 256;
/// Bytes of a heavy hitter, and of a token in the window.
const HEAVY: usize = 2 * size_of::<u32>();
const RECENT: usize = size_of::<f32>();

impl H2o {
    /// Number of query heads that share a token cache.
    fn sharing(&self, group: usize) -> usize {
        if self.per == Granularity::QueryHead { 1 } else { group }
    }

    /// The most heavy hitters and window tokens of a list, if a run generates no more tokens than the prefix has.
    fn sizes(&self, prefix: &PromptShape) -> [usize; 2] {
        let budget = self.heavy.tokens(Context::new(prefix.tokens, &(0..prefix.tokens)));
        [budget.min(2 * prefix.tokens), self.recent.tokens(prefix.tokens)]
    }

    fn lists(&self, prefix: &PromptShape) -> usize {
        prefix.heads / self.sharing(prefix.heads / prefix.kv_heads)
    }
}

impl DeviceForm for H2o {
    fn shape_reasons(&self, shape: KvShape) -> Vec<HostReason> {
        HostReason::of_head_width(shape.d, WIDEST, 8).into_iter().collect()
    }

    /// Zero: the weights that are summed are those of the step's attention.
    fn cost(&self, _: &StepShape) -> Cost {
        Cost::default()
    }

    /// Zero: the token cache fixes the budget.
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

    /// The lists, and a logit for each query head and held token.
    fn list_bytes(&self, prefix: &PromptShape) -> usize {
        let [heavy, recent] = self.sizes(prefix);
        size_of::<u32>() * (self.lists(prefix) * heavy + prefix.heads * (heavy + recent))
    }
}

//! Product-quantised keys on a device: which shapes they fit, what they cost and how much memory they take.

use super::ProductCodes;
use crate::backend::reasons::HostReason;
use crate::backend::scorer::DeviceScorer;
use crate::cost::Cost;
use crate::kv::{KvDtype, KvShape};
use crate::{PromptShape, StepShape};

/// The widest head, and the most entries of a query's tables, that kernels take.
const WIDEST: usize = 256;
const MOST_ENTRIES: usize = 40 << 10;

impl ProductCodes {
    pub(super) fn parts(&self, d: usize) -> usize {
        self.subspaces.min(d)
    }

    /// Number of centroids of a sub-space over `keys` keys.
    pub(super) fn centroids(&self, keys: usize) -> usize {
        (1 << self.bits).min(keys)
    }
}

impl DeviceScorer for ProductCodes {
    fn shape_reasons(&self, shape: KvShape) -> Vec<HostReason> {
        let mut reasons = Vec::from_iter(HostReason::of_head_width(shape.d, WIDEST, 1));
        if self.parts(shape.d) << self.bits > MOST_ENTRIES {
            reasons.push(HostReason::setting("bits", self.bits));
        }
        reasons
    }

    /// Products with all centroids, and an addition for each code.
    fn cost(&self, step: &StepShape) -> Cost {
        let (parts, count) = (self.parts(step.d), self.centroids(step.candidates));
        let products = 2 * count * step.d;
        Cost {
            score_flops: (step.group * (products + parts * step.candidates)) as u64,
            aux_bytes: (count * step.d * step.dtype.bytes() + parts * step.candidates) as u64,
            ..Cost::default()
        }
    }

    fn layer_bytes(&self, prefix: &PromptShape, _: KvDtype) -> usize {
        let codes = self.parts(prefix.d) * prefix.tokens.next_multiple_of(4);
        prefix.kv_heads * (codes + 4 * prefix.d * self.centroids(prefix.tokens))
    }
}

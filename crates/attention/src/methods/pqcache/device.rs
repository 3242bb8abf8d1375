//! Product-quantised keys on a device: the host clusters them when a prefix is read, as the authors' code does, and codes and
//! centroids are sent; queries meet them there at every step.

use super::ProductCodes;
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

    /// Centroids of a part, of so many keys.
    pub(super) fn centroids(&self, keys: usize) -> usize {
        (1 << self.bits).min(keys)
    }
}

impl DeviceScorer for ProductCodes {
    fn fits(&self, shape: KvShape) -> bool {
        shape.d <= WIDEST && self.parts(shape.d) << self.bits <= MOST_ENTRIES
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

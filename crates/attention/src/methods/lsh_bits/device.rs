//! Signatures by random hyperplanes on a device: queries are signed there at every step. Keys are signed by the host form when a prefix is
//! read, as what they are lengthened to depends on all of them, and their signatures are sent.

use super::RandomSignatures;
use crate::backend::scorer::DeviceScorer;
use crate::cost::Cost;
use crate::kv::{KvDtype, KvShape};
use crate::methods::signatures::words_of;
use crate::{PromptShape, StepShape};

/// The widest head whose queries kernels sign.
const WIDEST: usize = 256;

impl DeviceScorer for RandomSignatures {
    fn fits(&self, shape: KvShape) -> bool {
        shape.d <= WIDEST
    }

    fn cost(&self, step: &StepShape) -> Cost {
        let numbers = (self.width(step.d) * self.bits) as u64;
        let flops = 2 * step.group as u64 * numbers;
        Cost {
            score_flops: flops,
            projection_flops: flops,
            shared_bytes: 4 * numbers,
            shared_uses: 1,
            aux_bytes: (4 * words_of(self.bits) * step.candidates) as u64,
            ..Cost::default()
        }
    }

    fn layer_bytes(&self, prefix: &PromptShape, _: KvDtype) -> usize {
        let signatures = 4 * prefix.kv_heads * words_of(self.bits) * prefix.tokens.next_multiple_of(4);
        signatures + 4 * self.bits * (prefix.d + 1)
    }
}

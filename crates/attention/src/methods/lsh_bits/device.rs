//! Signatures by random hyperplanes on a device: which shapes they fit, what they cost and how much memory they take.

use super::RandomSignatures;
use crate::backend::reasons::HostReason;
use crate::backend::scorer::DeviceScorer;
use crate::cost::Cost;
use crate::kv::{KvDtype, KvShape};
use crate::methods::signatures::{device_bytes, words_of};
use crate::{PromptShape, StepShape};

/// The widest head whose queries kernels sign.
const WIDEST: usize = 256;

impl DeviceScorer for RandomSignatures {
    fn shape_reasons(&self, shape: KvShape) -> Vec<HostReason> {
        HostReason::of_head_width(shape.d, WIDEST, 1).into_iter().collect()
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
        device_bytes(prefix.kv_heads, self.bits, prefix.tokens) + 4 * self.bits * (prefix.d + 1)
    }
}

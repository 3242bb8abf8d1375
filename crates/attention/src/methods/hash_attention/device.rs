//! Signatures by learned nets on a device: which shapes they fit, what they cost and how much memory they take.

use super::net::SignNet;
use crate::backend::reasons::HostReason;
use crate::backend::scorer::DeviceScorer;
use crate::cost::Cost;
use crate::kv::{KvDtype, KvShape};
use crate::methods::hash_attention::learned::LearnedSignatures;
use crate::methods::signatures::{device_bytes, words_of};
use crate::{PromptShape, StepShape};
use spattn_kernels::GPU_WIDEST;

impl LearnedSignatures {
    /// Number of key nets of a KV head, and one query net, of the first layer. All nets have the same shape.
    pub(super) fn any_net(&self) -> Option<(usize, &SignNet)> {
        let layer = self.nets.as_ref()?.layers.first()?;
        Some((layer.keys.first()?.len(), layer.queries.first()?))
    }
}

impl DeviceScorer for LearnedSignatures {
    fn shape_reasons(&self, shape: KvShape) -> Vec<HostReason> {
        let width = HostReason::of_head_width(shape.d, GPU_WIDEST, 8);
        width.into_iter().chain(HostReason::of_index_width(self.kind.bits, GPU_WIDEST)).collect()
    }

    fn cost(&self, step: &StepShape) -> Cost {
        let Some((each, net)) = self.any_net() else { return Cost::default() };
        let signatures = 4 * each * words_of(self.kind.bits) * step.candidates;
        Cost {
            aux_bytes: (step.group * net.bytes() + signatures) as u64,
            score_flops: step.group as u64 * net.flops(),
            ..Cost::default()
        }
    }

    fn grows(&self) -> bool {
        true
    }

    fn layer_bytes(&self, prefix: &PromptShape, _: KvDtype) -> usize {
        let Some((each, net)) = self.any_net() else { return 0 };
        let nets = (prefix.heads + prefix.kv_heads * each) * net.bytes();
        device_bytes(prefix.kv_heads * each, self.kind.bits, prefix.tokens) + nets
    }
}

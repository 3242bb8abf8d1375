//! The label cache on a device: which shapes it fits, what it costs and how much memory it takes.

use super::LabelScores;
use crate::backend::form::{WIDEST_ROW, padded_width, row_width};
use crate::backend::reasons::HostReason;
use crate::backend::scorer::DeviceScorer;
use crate::cost::Cost;
use crate::kv::quantised::{GROUP, coded_bytes};
use crate::kv::{KvDtype, KvShape};
use crate::{PromptShape, StepShape};

impl LabelScores {
    /// Bytes of the host's labels of `tokens` tokens.
    pub(super) fn label_bytes(&self, tokens: usize, width: usize) -> usize {
        if self.bits == 16 { 2 * tokens * width } else { coded_bytes(tokens, width, self.bits) }
    }
}

impl DeviceScorer for LabelScores {
    fn shape_reasons(&self, shape: KvShape) -> Vec<HostReason> {
        let mut reasons = Vec::from_iter(HostReason::of_index_width(self.channels.of(shape.d), WIDEST_ROW));
        // Labels in 16 bits have the type of the keys.
        if self.bits == 16 && shape.dtype == KvDtype::F32 {
            reasons.push(HostReason::Storage(shape.dtype));
        }
        reasons
    }

    fn cost(&self, step: &StepShape) -> Cost {
        let (tokens, width) = (step.candidates, self.channels.of(step.d));
        let ranges = if self.bits == 16 { 0 } else { tokens.div_ceil(GROUP) };
        Cost {
            aux_bytes: self.label_bytes(tokens, width) as u64,
            score_flops: (2 * step.group * width * (tokens + ranges)) as u64,
            ..Cost::default()
        }
    }

    fn grows(&self) -> bool {
        true
    }

    fn layer_bytes(&self, prefix: &PromptShape, _: KvDtype) -> usize {
        let width = self.channels.of(prefix.d);
        let held = if self.bits == 16 { row_width(width).unwrap_or(width) } else { padded_width(width) };
        prefix.kv_heads * (self.label_bytes(prefix.tokens.next_multiple_of(GROUP), held) + 4 * width)
    }
}

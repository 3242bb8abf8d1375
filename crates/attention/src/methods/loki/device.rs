//! Scores on leading components on a device: which shapes they fit, what they cost and how much memory they take.

use super::Loki;
use crate::backend::form::{WIDEST_ROW, row_width};
use crate::backend::reasons::HostReason;
use crate::backend::scorer::DeviceScorer;
use crate::cost::Cost;
use crate::kv::{KvDtype, KvShape};
use crate::{PromptShape, StepShape};
use spattn_kernels::GPU_WIDEST;

impl DeviceScorer for Loki {
    fn shape_reasons(&self, shape: KvShape) -> Vec<HostReason> {
        let width = HostReason::of_head_width(shape.d, GPU_WIDEST, 8);
        width.into_iter().chain(HostReason::of_index_width(self.rank.of(shape.d), WIDEST_ROW)).collect()
    }

    fn cost(&self, step: &StepShape) -> Cost {
        let rank = self.rank.of(step.d);
        Cost {
            aux_bytes: (rank * step.d * size_of::<f32>() + step.candidates * rank * step.dtype.bytes()) as u64,
            score_flops: (2 * step.group * rank * (step.d + step.candidates)) as u64,
            ..Cost::default()
        }
    }

    fn layer_bytes(&self, prefix: &PromptShape, dtype: KvDtype) -> usize {
        let (rank, d) = (self.rank.of(prefix.d), prefix.d);
        let rows = prefix.tokens * row_width(rank).unwrap_or(rank) * dtype.bytes();
        prefix.kv_heads * (rows + rank * d * size_of::<f32>())
    }
}

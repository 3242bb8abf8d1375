//! Keys on their leading components on a device.

use super::Loki;
use crate::backend::form::row_width;
use crate::backend::scorer::DeviceScorer;
use crate::cost::Cost;
use crate::kv::{KvDtype, KvShape};
use crate::{PromptShape, StepShape};
use spattn_kernels::GPU_WIDEST;

impl DeviceScorer for Loki {
    fn fits(&self, shape: KvShape) -> bool {
        shape.d.is_multiple_of(8) && shape.d <= GPU_WIDEST && row_width(self.rank.of(shape.d)).is_some()
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

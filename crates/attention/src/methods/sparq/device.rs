//! Scores by the queries' largest channels, and what picks leave over, on a device.

use super::QueryChannels;
use crate::backend::scorer::DeviceScorer;
use crate::cost::Cost;
use crate::kv::{KvDtype, KvShape};
use crate::scored::granularity::Granularity;
use crate::{PromptShape, StepShape};
use spattn_kernels::GPU_WIDEST;

impl DeviceScorer for QueryChannels {
    fn fits(&self, shape: KvShape) -> bool {
        shape.d <= GPU_WIDEST
    }

    fn cost(&self, step: &StepShape) -> Cost {
        let lists = if self.per == Granularity::QueryHead { step.group } else { 1 };
        let numbers = self.r.of(step.d) * step.candidates;
        Cost {
            aux_bytes: (lists * (numbers * step.dtype.bytes() + step.d * size_of::<f32>())) as u64,
            score_flops: (2 * step.group * numbers) as u64,
            // The mean value enters each head's sum.
            attend_flops: (2 * step.group * step.d) as u64,
            ..Cost::default()
        }
    }

    fn layer_bytes(&self, prefix: &PromptShape, dtype: KvDtype) -> usize {
        prefix.kv_heads * prefix.d * ((prefix.tokens + 7) * dtype.bytes() + size_of::<f32>())
    }
}

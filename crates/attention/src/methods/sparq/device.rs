//! Scores by the queries' largest channels on a device: which shapes they fit, what they cost and how much memory they take.

use super::QueryChannels;
use crate::backend::reasons::HostReason;
use crate::backend::scorer::DeviceScorer;
use crate::cost::Cost;
use crate::kv::{KvDtype, KvShape};
use crate::scored::granularity::Granularity;
use crate::{PromptShape, StepShape};
use spattn_kernels::GPU_WIDEST;

impl DeviceScorer for QueryChannels {
    fn shape_reasons(&self, shape: KvShape) -> Vec<HostReason> {
        HostReason::of_head_width(shape.d, GPU_WIDEST, 1).into_iter().collect()
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

//! The hash tables on a device: which shapes they fit, what they cost and how much memory they take.

use super::{MagicPig, Shape};
use crate::backend::reasons::HostReason;
use crate::cost::Cost;
use crate::kv::{KvDtype, KvShape};
use crate::{Context, DeviceForm, IndexBuilder, PromptShape, StepShape, Tuned};
use spattn_kernels::{GPU_WIDEST, NARROW_TOKENS};

/// The most bits of a code that kernels sort by.
const MOST_BITS: usize = 15;

/// Bytes of a token's number in a table.
fn number_bytes(candidates: usize) -> usize {
    if candidates <= NARROW_TOKENS { 2 } else { 4 }
}

/// Returns the bytes of the tables, the mean and the lengths of a KV head.
fn of_head(Shape { bits, tables }: Shape, prefix: &PromptShape) -> usize {
    let tokens = prefix.tokens;
    tables * ((1 << bits) + 1 + tokens) * number_bytes(tokens) + 4 * (tokens + prefix.d)
}

impl MagicPig {
    /// Returns the shape, if it is known before a density is solved.
    fn known_shape(&self) -> Option<Shape> {
        let Tuned::Value(tables) = self.tables else { return None };
        Some(Shape { bits: self.bits.unwrap_or(Self::DEFAULT_BITS), tables })
    }

    /// Whether kernels hash as the method does, for heads of a supported width.
    pub(super) fn can_hash_on_device(&self) -> bool {
        !self.hashing.simple_lsh && self.bits_reason().is_none()
    }

    /// Returns the number of bits as a reason, if kernels do not sort by so many.
    pub(super) fn bits_reason(&self) -> Option<HostReason> {
        let bits = self.bits.unwrap_or(Self::DEFAULT_BITS);
        (bits > MOST_BITS).then(|| HostReason::setting("K", bits))
    }
}

/// A device builds the tables by which the host samples.
impl IndexBuilder for MagicPig {
    fn fits(&self, shape: KvShape) -> bool {
        HostReason::of_head_width(shape.d, GPU_WIDEST, 8).is_none()
    }

    /// The tables of one layer, the codes of a KV head while they are made, and hyperplanes.
    fn bytes(&self, prefix: &PromptShape, _: KvDtype) -> usize {
        let published = Shape { bits: Self::DEFAULT_BITS, tables: Self::PUBLISHED_TABLES };
        let shape = self.known_shape().unwrap_or(published);
        let Shape { bits, tables } = shape;
        prefix.kv_heads * of_head(shape, prefix) + 2 * tables * prefix.tokens + 2 * 4 * bits * tables * prefix.d
    }

    /// Tables, means and lengths of all layers; 0 if the number of tables follows from an unsolved density.
    fn host_bytes(&self, prefix: &PromptShape) -> usize {
        self.known_shape().map_or(0, |shape| prefix.layers * prefix.kv_heads * of_head(shape, prefix))
    }
}

impl DeviceForm for MagicPig {
    fn shape_reasons(&self, shape: KvShape) -> Vec<HostReason> {
        let mut reasons = Vec::from_iter(HostReason::of_head_width(shape.d, GPU_WIDEST, 8));
        reasons.extend(self.bits_reason());
        reasons
    }

    fn cost(&self, step: &StepShape) -> Cost {
        let (shape, group, d) = (self.shape(), step.group as u64, step.d as u64);
        let planes = shape.planes() as u64 * d;
        let (mean_bytes, mean_flops) = if self.hashing.center { (4 * d, 2 * d) } else { (0, 0) };
        let bounds = 2 * (shape.tables * number_bytes(step.candidates)) as u64;
        Cost {
            score_flops: group * (2 * planes + mean_flops),
            aux_bytes: group * (bounds + mean_bytes),
            select_bytes: group * 2 * step.candidates as u64,
            projection_flops: group * 2 * planes,
            shared_bytes: 4 * planes,
            shared_uses: 1,
            ..Cost::default()
        }
    }

    fn cost_of_picks(&self, step: &StepShape, entries: u64, picked: u64) -> Cost {
        Cost { aux_bytes: number_bytes(step.candidates) as u64 * entries + 4 * picked, ..Cost::default() }
    }

    /// 1: what is sampled is as much as it is.
    fn budget_units(&self, _: Context, candidates: usize) -> u32 {
        u32::from(candidates > 0)
    }

    fn index_bytes(&self, prefix: &PromptShape, _: KvDtype) -> usize {
        let Shape { bits, tables } = self.shape();
        let own = prefix.layers * (prefix.kv_heads * of_head(self.shape(), prefix) + 4 * bits * tables * prefix.d);
        // Codes of one KV head, while tables are made.
        own + 2 * tables * prefix.tokens
    }

    /// Whatever collides: each token with its weight.
    fn list_bytes(&self, prefix: &PromptShape) -> usize {
        prefix.heads * (prefix.tokens * (2 * size_of::<u32>() + 1) + 2 * self.shape().tables)
    }
}

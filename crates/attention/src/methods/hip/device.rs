//! The tree search on a device: plain HiP, one search over all channels at ordinary positions, with chunks at equal distances. What it
//! costs, and how much memory it takes.

use super::search::Chunks;
use super::{Hip, View, Window};
use crate::backend::reasons::HostReason;
use crate::cost::Cost;
use crate::kv::{KvDtype, KvShape};
use crate::scored::granularity::Granularity;
use crate::{Context, DeviceForm, Positions, PromptShape, QueryBlock, SearchedMask, StepShape};
use std::ops::Range;

/// The widest head that kernels search in a decode step, and the head widths that they search in a prompt.
const WIDEST: usize = 256;
const TILED: [usize; 2] = [64, 128];

impl Hip {
    /// Why a device cannot search as this method does; nothing if it can.
    pub(super) fn search_reasons(&self) -> Vec<HostReason> {
        let Self { search, ensemble, positions, .. } = self;
        let mut reasons = Vec::new();
        if let Some(channels) = search.channels.0 {
            reasons.push(HostReason::setting("top_r", channels));
        }
        if search.chunks != Chunks::Equal {
            reasons.push(HostReason::setting("chunks", "aligned"));
        }
        if ensemble.searches != 1 {
            reasons.push(HostReason::setting("n_e", ensemble.searches));
        }
        if *positions != Positions::Original {
            reasons.push(HostReason::MovedPositions);
        }
        reasons
    }

    pub(super) fn count_lists(&self, heads: usize, kv_heads: usize) -> usize {
        if self.per == Granularity::QueryHead { heads } else { kv_heads }
    }
}

impl DeviceForm for Hip {
    fn shape_reasons(&self, shape: KvShape) -> Vec<HostReason> {
        HostReason::of_head_width(shape.d, WIDEST, 8).into_iter().collect()
    }

    fn scores_keys(&self) -> bool {
        true
    }

    fn refresh(&self) -> usize {
        self.refresh
    }

    fn grows(&self, _: KvShape) -> bool {
        true
    }

    /// Zero: the number of branches depends on what is found, so the cost follows from the picks.
    fn cost(&self, _: &StepShape) -> Cost {
        Cost::default()
    }

    /// Each entry is a key that was scored.
    fn cost_of_picks(&self, step: &StepShape, entries: u64, _: u64) -> Cost {
        let queries = if self.per == Granularity::QueryHead { 1 } else { step.group };
        Cost {
            kv_bytes: entries * (step.d * step.dtype.bytes()) as u64,
            score_flops: entries * (2 * queries * step.d) as u64,
            ..Cost::default()
        }
    }

    fn budget_units(&self, context: Context, candidates: usize) -> u32 {
        self.keep(context).min(candidates.div_ceil(self.key_block)) as u32
    }

    fn index_bytes(&self, _: &PromptShape, _: KvDtype) -> usize {
        0
    }

    fn list_bytes(&self, prefix: &PromptShape) -> usize {
        // Beside its tokens, a list takes branches: their bounds, their scores and which are kept.
        const EACH: usize = 2 * (2 * 8 + 4 + 4);
        self.list_tokens(prefix) * (size_of::<u32>() + EACH / self.key_block.min(EACH))
    }

    fn list_tokens(&self, prefix: &PromptShape) -> usize {
        // A budget that is a share of the context grows with generated tokens, assumed to be as many as the prefix has.
        let context = Context::new(2 * prefix.tokens, &(0..prefix.tokens));
        let most = self.budget_units(context, prefix.tokens) as usize * self.key_block;
        self.count_lists(prefix.heads, prefix.kv_heads) * most.min(prefix.tokens)
    }
}

impl SearchedMask for Hip {
    fn fits(&self, shape: KvShape) -> bool {
        shape.dtype != KvDtype::F32 && TILED.contains(&shape.d)
    }

    fn lists(&self, heads: usize, kv_heads: usize) -> usize {
        self.count_lists(heads, kv_heads)
    }

    fn searched(&self, block: &QueryBlock<'_>) -> (Range<usize>, usize) {
        let View { candidates, context, .. } = Window::Block.view(block);
        let keep = self.keep(context);
        (candidates, keep)
    }

    fn key_block(&self) -> usize {
        self.key_block
    }
}

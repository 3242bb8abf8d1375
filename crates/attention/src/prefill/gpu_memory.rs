//! Device memory that the token lists of masks take.

use crate::configured::Configured;
use crate::cost::Cost;
use crate::prefill::mask::{Masks, PrefillPattern, PromptMask, QueryBlock};
use crate::types::prompt_shape::PromptShape;

/// Bytes that the lists of `rows` rows take on a device that attends what a mask leaves them, at the end of a prompt of this shape:
/// more than before it; with the rows' own tokens, where there are any. Nothing where the host attends.
pub fn mask_list_bytes(method: &Configured, prompt: &PromptShape, rows: usize) -> usize {
    let PromptShape { heads, kv_heads, d, tokens, .. } = *prompt;
    let mask = match method.reads().method.prefill_pattern() {
        Some(PrefillPattern::Blocks(mask)) => mask,
        Some(PrefillPattern::Whole(mask)) => {
            return PlannedBlock::of(mask, heads, d, tokens).bytes_of(tokens.div_ceil(mask.query_rows()));
        }
        _ => return 0,
    };
    let policy = &method.reads().policy;
    let here = mask.query_rows().min(tokens.max(1));
    let block = QueryBlock::unseen(policy, (0, heads / kv_heads), (tokens.saturating_sub(here), here), d);
    let (lists, most) = match (mask.is_data_independent(), mask.device_form()) {
        (true, _) => match mask.masks(&block, &mut Cost::default()) {
            Masks::Shared(mask) => (kv_heads, mask.common.len()),
            Masks::PerHead(masks) => (heads, masks.iter().map(|mask| mask.common.len()).max().unwrap_or(0)),
        },
        (false, Some(form)) => {
            let (candidates, keep) = form.searched(&block);
            let found = keep.saturating_mul(form.key_block()).min(candidates.len());
            (form.lists(heads, kv_heads), candidates.start + found)
        }
        (false, None) => (0, 0),
    };
    size_of::<u32>() * rows.min(tokens).div_ceil(mask.query_rows()) * lists * most
}

/// Bytes that lists of a planned mask and rows' own tokens take at most, if those of a single block do not take more.
pub(super) const PLANNED_LIST_BYTES: usize = 512 << 20;

/// Bytes of a row's own token and of its weight.
pub(super) const OWN_TOKEN_BYTES: usize = size_of::<u32>() + size_of::<f32>();

/// What a block of a planned mask takes on a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlannedBlock {
    /// Lists of all tokens, for every head, and of rows that have tokens of their own where these begin and what they come to.
    pub(super) fixed: usize,
    /// Tokens of rows' own, at most.
    pub(super) own: usize,
}

impl PlannedBlock {
    /// Of a mask of so many heads, `d` wide, in a prompt of so many tokens.
    pub(crate) fn of(mask: &dyn PromptMask, heads: usize, d: usize, tokens: usize) -> Self {
        let (rows, own) = (mask.query_rows().min(tokens) * heads, mask.own_tokens(tokens));
        // Where they begin; a maximum, a sum, and sums of values.
        let of_row = if own > 0 { size_of::<u64>() + size_of::<f32>() * (2 + d) } else { 0 };
        Self { fixed: size_of::<u32>() * heads * tokens + rows * of_row, own: rows * own }
    }

    /// Bytes of one whose rows have so many tokens of their own.
    pub(crate) fn bytes(&self, own: usize) -> usize {
        self.fixed + OWN_TOKEN_BYTES * own
    }

    /// Bytes that a prompt of so many blocks takes at most at a time.
    pub(super) fn bytes_of(&self, blocks: usize) -> usize {
        let most = self.bytes(self.own);
        most.saturating_mul(blocks).min(most.max(PLANNED_LIST_BYTES))
    }

    /// How many more blocks are to be looked at, where some wait that take so many bytes: as many as there is room for if they take
    /// what those do, but no more than those, as they may take more. The first ones are taken to have all that they can have.
    #[cfg(feature = "cuda")]
    pub(crate) fn ahead(&self, waiting: &[usize]) -> usize {
        let room = PLANNED_LIST_BYTES.saturating_sub(waiting.iter().sum());
        match waiting.len() {
            0 => (room / self.bytes(self.own).max(1)).max(1),
            count => (room / (waiting.iter().sum::<usize>() / count).max(1)).min(count),
        }
    }

    /// How many of the blocks that wait, which take so many bytes, there is room for at a time: at least one.
    #[cfg(feature = "cuda")]
    pub(crate) fn at_once(waiting: &[usize]) -> usize {
        let sums = waiting.iter().scan(0, |sum, bytes| {
            *sum += bytes;
            Some(*sum)
        });
        sums.take_while(|sum| *sum <= PLANNED_LIST_BYTES).count().max(1)
    }
}

//! Device memory for the token lists of masks, and for selecting for each row of a prompt.

use crate::backend::form::{DeviceForm, SCORE_BYTES};
use crate::configured::Configured;
use crate::cost::Cost;
use crate::kv::{KvDtype, KvShape};
use crate::prefill::mask::{Masks, PrefillPattern, PromptMask, QueryBlock};
use crate::prefill::rows::device_rows_form;
use crate::types::prompt_shape::PromptShape;

/// Device memory, in bytes, of the token lists of `rows` rows at the end of a prompt of this shape and storage type, where it is
/// largest. Includes tokens of single rows, and all that selecting for each row takes. 0 if the host attends.
pub fn mask_list_bytes(method: &Configured, prompt: &PromptShape, rows: usize, dtype: KvDtype) -> usize {
    let PromptShape { heads, kv_heads, d, tokens, .. } = *prompt;
    let mask = match method.reads().method.prefill_pattern() {
        Some(PrefillPattern::Blocks(mask)) => mask,
        Some(PrefillPattern::Whole(mask)) => {
            let blocks = tokens.div_ceil(mask.query_rows());
            let lists = PlannedBlock::of(mask, heads, d, tokens).bytes_of(blocks);
            let lined = mask.lined().map_or(0, |lined| lined_bytes(lined.voters(), prompt, blocks));
            return lists.max(lined) + SHARED_TOKEN_BYTES * heads * mask.slice_bounds(tokens).tokens;
        }
        Some(PrefillPattern::Rows(_)) => {
            let form = device_rows_form(method.reads().method.as_ref(), KvShape { kv_heads, d, dtype });
            return form.map_or(0, |form| row_bytes(form, prompt, dtype));
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

/// Largest number of prompt rows for which a device selects at once.
const MOST_ROWS: usize = 256;

/// Limit of the bytes of the token lists of these rows; a single row may exceed it.
const ROW_LIST_BYTES: usize = 128 << 20;

/// Largest number of spans into which the tokens of an average row and KV head are cut.
const ROW_SPANS: usize = 4;

/// Number of rows of a prompt of this shape for which a device selects at once.
pub(super) fn rows_at_once(form: &dyn DeviceForm, prompt: &PromptShape) -> usize {
    (ROW_LIST_BYTES / form.list_bytes(prompt).max(1)).clamp(1, MOST_ROWS)
}

/// Device memory for selecting for rows at the end of a prompt, at one layer: token lists, the index of all candidates, the scores of
/// candidates and gathered keys, and partial softmaxes.
fn row_bytes(form: &dyn DeviceForm, prompt: &PromptShape, dtype: KvDtype) -> usize {
    let PromptShape { heads, kv_heads, d, tokens, .. } = *prompt;
    let rows = rows_at_once(form, prompt).min(tokens);
    let index = form.index_bytes(&PromptShape { layers: 1, ..*prompt }, dtype);
    // Scores per query head and per KV head, of the candidates and of gathered keys.
    let scores = 4 * SCORE_BYTES.max(size_of::<f32>() * heads * tokens);
    let gathered = kv_heads * tokens * d * dtype.bytes();
    let partials = size_of::<f32>() * rows * heads * ROW_SPANS * (d + 2);
    rows * form.list_bytes(prompt) + 2 * index + scores + gathered + partials
}

/// Upper bound of the device memory for reading a prompt along lines: lists that hold all tokens for every head, found and joined, the lines,
/// and the votes of the last queries.
fn lined_bytes(voters: usize, prompt: &PromptShape, blocks: usize) -> usize {
    let PromptShape { heads, tokens, .. } = *prompt;
    let of_tokens = size_of::<u32>() * heads * tokens;
    let block = 2 * of_tokens;
    let lists = block.saturating_mul(blocks).min(block.max(PLANNED_LIST_BYTES));
    // Verticals, diagonals as bits, and votes for tokens and for distances; then the voters' sums.
    lists + 4 * of_tokens + size_of::<f32>() * heads * voters.min(tokens)
}

/// Limit of the device memory of a planned mask's lists, in bytes; a single block may exceed it.
pub(super) const PLANNED_LIST_BYTES: usize = 512 << 20;

/// Bytes of a single-row token and its weight.
pub(super) const OWN_TOKEN_BYTES: usize = size_of::<u32>() + size_of::<f32>();

/// Bytes of a shared token, its weight and its group.
const SHARED_TOKEN_BYTES: usize = OWN_TOKEN_BYTES + size_of::<u32>();

/// Bytes of a slice of shared tokens: its ends and the group that it leaves out.
const SLICE_BYTES: usize = 3 * size_of::<u32>();

/// Device memory of a block of a planned mask.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlannedBlock {
    /// Bytes of lists that hold all tokens for every head, and, if rows have tokens besides, of their slices and partial softmaxes.
    pub(super) fixed: usize,
    /// Upper bound of the number of single-row tokens.
    pub(super) own: usize,
}

impl PlannedBlock {
    /// The memory for a mask of `heads` heads of width `d`, in a prompt of `tokens` tokens.
    pub(crate) fn of(mask: &dyn PromptMask, heads: usize, d: usize, tokens: usize) -> Self {
        let (rows, own) = (mask.query_rows().min(tokens) * heads, mask.own_tokens(tokens));
        let slices = mask.slice_bounds(tokens).slices.max(usize::from(own > 0));
        // Where the slices begin, the slices, and a partial softmax: a maximum, a sum, and sums of values.
        let of_row = size_of::<u32>() + SLICE_BYTES * slices + size_of::<f32>() * (2 + d);
        let of_rows = if slices > 0 { rows * of_row } else { 0 };
        Self { fixed: size_of::<u32>() * heads * tokens + of_rows, own: rows * own }
    }

    /// Bytes of a block with `own` single-row tokens.
    pub(crate) fn bytes(&self, own: usize) -> usize {
        self.fixed + OWN_TOKEN_BYTES * own
    }

    /// Upper bound of the bytes in use at a time, for a prompt of `blocks` blocks.
    pub(super) fn bytes_of(&self, blocks: usize) -> usize {
        let most = self.bytes(self.own);
        most.saturating_mul(blocks).min(most.max(PLANNED_LIST_BYTES))
    }
}

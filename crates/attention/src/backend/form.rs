//! [`DeviceForm`]: how a method selects on the device that holds the prefix, for all rows of a step that share it.

use crate::backend::active::DeviceLaunch;
use crate::backend::reasons::HostReason;
use crate::cost::Cost;
use crate::kv::{KvDtype, KvShape};
use crate::types::budget::Context;
use crate::types::prefix_head::KvHeadId;
use crate::types::prompt_shape::PromptShape;
use spattn_kernels::GPU_ROW_WIDTHS;

/// The shape of a step at one KV head, as far as the cost of selection depends on it.
#[derive(Debug, Clone, Copy)]
pub struct StepShape {
    /// Query heads of the group.
    pub group: usize,
    /// Channels of a head.
    pub d: usize,
    /// Storage type of keys and values.
    pub dtype: KvDtype,
    /// Tokens that may be selected and are in the index of the prefix.
    pub candidates: usize,
    /// All tokens that may be selected; more than `candidates` if tokens after the prefix become candidates.
    pub all_candidates: usize,
    /// Static tokens.
    pub exact: usize,
    /// The budget, in the method's own units ([`DeviceForm::budget_units`]).
    pub number: u32,
}

/// Limit of the bytes of scores that a device computes at a time; a single row may exceed it.
pub(crate) const SCORE_BYTES: usize = 64 << 20;

/// The most numbers per key in an index whose rows are scored by products.
pub(crate) const WIDEST_ROW: usize = GPU_ROW_WIDTHS[GPU_ROW_WIDTHS.len() - 1];

/// The smallest supported row width of an index with `numbers` numbers per key; `None` if there is none.
pub(crate) fn row_width(numbers: usize) -> Option<usize> {
    GPU_ROW_WIDTHS.into_iter().find(|width| (1..=*width).contains(&numbers))
}

/// Returns the number of columns of codes as a device stores them: sixteen times a power of two.
pub(crate) fn padded_width(columns: usize) -> usize {
    const DEPTH: usize = 16;
    DEPTH * columns.div_ceil(DEPTH).next_power_of_two()
}

/// A method's device form, as far as every build knows it; the supertrait launches it. Its candidates are those of the prefix, unless
/// [sequences have a token cache of their own](Self::holds) or [it grows](Self::grows).
pub trait DeviceForm: DeviceLaunch + Send + Sync {
    /// The reasons why kernels do not accept keys and values of this shape; empty if they do.
    fn shape_reasons(&self, shape: KvShape) -> Vec<HostReason>;

    /// Whether kernels accept keys and values of this shape.
    fn fits(&self, shape: KvShape) -> bool {
        self.shape_reasons(shape).is_empty()
    }

    /// Whether selection reads keys of the prefix one by one, so that the device can cache those that it reads often. Default false.
    fn scores_keys(&self) -> bool {
        false
    }

    /// Number of generated tokens that attend one selection before the next is made; the engine keeps the selection for that long.
    fn refresh(&self) -> usize {
        1
    }

    /// Cost of scoring the candidates of one KV head at a step, and of the passes over the scores.
    fn cost(&self, step: &StepShape) -> Cost;

    /// Cost of selection that depends on its outcome: on the index entries read and the tokens selected, summed over all lists.
    fn cost_of_picks(&self, _step: &StepShape, _entries: u64, _picked: u64) -> Cost {
        Cost::default()
    }

    /// Whether [`cost`](Self::cost) includes the exact products of the group's queries with the tokens that they then attend. Attention
    /// reuses these, so they are counted only there. Default false.
    fn takes_products(&self, _group: usize) -> bool {
        false
    }

    /// Whether [`budget_units`](Self::budget_units) fully encodes the budget, so that methods that differ only in it can share a
    /// launch. Default false.
    fn units_encode_budget(&self) -> bool {
        false
    }

    /// The budget in this context, for a prefix with `candidates` candidates, in the method's own units (tokens, pages,
    /// blocks).
    fn budget_units(&self, context: Context, candidates: usize) -> u32;

    /// Upper bound of the device memory of its indexes over all layers of a prefix, in bytes.
    fn index_bytes(&self, prefix: &PromptShape, dtype: KvDtype) -> usize;

    /// Whether tokens after the prefix may become candidates (`tail`), for keys and values of this shape. Default false.
    fn grows(&self, _shape: KvShape) -> bool {
        false
    }

    /// Bytes that a sequence's own index in host form takes for a KV head, when `all_candidates` tokens may be selected and the index
    /// of the prefix holds `candidates` of them; 0 by default.
    fn grown_bytes(&self, _head: KvHeadId, _candidates: usize, _all_candidates: usize) -> usize {
        0
    }

    /// Whether each sequence has its own token cache on the device, which changes with every decoded token.
    fn holds(&self) -> bool {
        false
    }

    /// Upper bound of the device memory of that token cache at one layer, in bytes; 0 by default.
    fn held_bytes(&self, _prefix: &PromptShape) -> usize {
        0
    }

    /// Upper bound of the device memory of one row's token lists, in bytes; layers reuse them.
    fn list_bytes(&self, prefix: &PromptShape) -> usize;

    /// Upper bound of the tokens in one row's lists.
    fn list_tokens(&self, prefix: &PromptShape) -> usize {
        self.list_bytes(prefix) / size_of::<u32>()
    }
}

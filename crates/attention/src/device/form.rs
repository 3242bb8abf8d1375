//! [`DeviceForm`]: how a method selects on the device that holds the prefix, for all rows of a step that share it.

use crate::cost::Cost;
#[cfg(feature = "cuda")]
use crate::device::layer::{DeviceIndex, DeviceLayer, DeviceStep, PrefixStatsView};
#[cfg(feature = "cuda")]
use crate::device::workspaces::{DeviceScratch, DeviceWorkspace};
use crate::kv::{KvDtype, KvShape};
use crate::types::budget::Context;
use crate::types::prompt_shape::PromptShape;
#[cfg(feature = "cuda")]
use spattn_cuda::{Gpu, GpuError, HeldTokens};
use spattn_kernels::GPU_ROW_WIDTHS;

/// The shape of a step of one KV head, as far as the cost of selection depends on it.
#[derive(Debug, Clone, Copy)]
pub struct StepShape {
    /// Query heads of the group.
    pub group: usize,
    /// Width of a head.
    pub d: usize,
    /// Storage type of keys and values.
    pub dtype: KvDtype,
    /// Tokens that may be selected.
    pub candidates: usize,
    /// Static tokens.
    pub exact: usize,
    /// The budget, in the method's own units ([`DeviceForm::budget_units`]).
    pub number: u32,
}

/// Panic message.
#[cfg(feature = "cuda")]
pub(crate) const FITS: &str = "`fits` was not checked before `build_all` or `select_all`";

/// The smallest supported row width of an index with `numbers` numbers per key; `None` if there is none.
pub(crate) fn row_width(numbers: usize) -> Option<usize> {
    GPU_ROW_WIDTHS.into_iter().find(|width| (1..=*width).contains(&numbers))
}

/// A method's form on a device. Its candidates are those of the prefix, unless [sequences have a cache of their
/// own](Self::holds).
pub trait DeviceForm: Send + Sync {
    /// Whether there is a form for keys and values of this shape.
    fn fits(&self, shape: KvShape) -> bool;

    /// Generated tokens that attend one selection before the next is made; the engine keeps the selection for that
    /// long.
    fn refresh(&self) -> usize {
        1
    }

    /// Cost of scoring the candidates of one KV head at a step, and of the passes over the scores.
    fn cost(&self, step: &StepShape) -> Cost;

    /// Cost of selection that depends on its outcome, from the index entries read and the tokens selected, summed over
    /// all lists.
    fn cost_of_picks(&self, _step: &StepShape, _entries: u64, _picked: u64) -> Cost {
        Cost::default()
    }

    /// Whether [`cost`](Self::cost) includes the exact products of the group's queries with the tokens that they then
    /// attend. Attention reuses these, so they are counted there alone. Default false.
    fn takes_products(&self, _group: usize) -> bool {
        false
    }

    /// True if [`budget_units`](Self::budget_units) fully encodes the budget: methods that differ only in it can share
    /// a launch. Default false.
    fn units_encode_budget(&self) -> bool {
        false
    }

    /// The budget in this context, for a prefix with `candidates` candidates, in the method's own units (tokens, pages,
    /// blocks).
    fn budget_units(&self, context: Context, candidates: usize) -> u32;

    /// Upper bound of the device memory of its indexes over all layers of a prefix, in bytes.
    fn index_bytes(&self, prefix: &PromptShape, dtype: KvDtype) -> usize;

    /// Whether each sequence has a token cache of its own on the device, which changes with every decoded token.
    fn holds(&self) -> bool {
        false
    }

    /// Upper bound of the device memory of that cache at one layer, in bytes; 0 by default.
    fn held_bytes(&self, _prefix: &PromptShape) -> usize {
        0
    }

    /// Upper bound of the device memory of one row's token lists, in bytes; layers reuse them.
    fn list_bytes(&self, prefix: &PromptShape) -> usize;

    /// The index of all KV heads of a layer.
    ///
    /// # Errors
    /// If the device fails.
    #[cfg(feature = "cuda")]
    fn build_all(&self, layer: &DeviceLayer<'_>, learned: &PrefixStatsView<'_>) -> Result<DeviceIndex, GpuError>;

    /// The token cache of a sequence at the layer, when it starts with room for `total` tokens in context; `None` by
    /// default.
    ///
    /// # Errors
    /// If the device fails.
    #[cfg(feature = "cuda")]
    fn start_all(&self, _gpu: &Gpu, _index: &DeviceIndex, _total: usize) -> Result<Option<HeldTokens>, GpuError> {
        Ok(None)
    }

    /// Selects for all heads of all rows of a step, into a list for each query head or each KV head. Launches the work
    /// and does not wait for it.
    ///
    /// # Errors
    /// If the device fails.
    #[cfg(feature = "cuda")]
    fn select_all(
        &self,
        step: &DeviceStep<'_>,
        index: &DeviceIndex,
        room: &mut DeviceWorkspace,
        scratch: &mut DeviceScratch,
    ) -> Result<(), GpuError>;

    /// Benchmark hook: scores all candidates and selects nothing. Returns whether [`select_all`](Self::select_all) also
    /// materialises scores.
    ///
    /// # Errors
    /// If the device fails.
    #[cfg(feature = "cuda")]
    fn score_only(
        &self,
        _step: &DeviceStep<'_>,
        _index: &DeviceIndex,
        _scratch: &mut DeviceScratch,
    ) -> Result<MaterializesScores, GpuError> {
        Ok(MaterializesScores::No)
    }
}

/// Whether a form writes the scores of all candidates to memory and selects by them.
#[cfg(feature = "cuda")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaterializesScores {
    /// There are no such scores.
    No,
    /// Only [`score_only`](DeviceForm::score_only) does; selection is fused with scoring.
    ForTimingOnly,
    /// Every selection does.
    Yes,
}

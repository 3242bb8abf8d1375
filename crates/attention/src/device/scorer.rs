//! Device forms of the two halves of a SCORE → SELECT method: its scorer and its picker.

#[cfg(feature = "cuda")]
use std::ops::Range;

use crate::cost::Cost;
use crate::device::form::StepShape;
#[cfg(feature = "cuda")]
use crate::device::layer::{DeviceIndex, DeviceLayer, DeviceStep, PrefixStatsView};
#[cfg(feature = "cuda")]
use crate::device::workspaces::{DeviceScratch, DeviceWorkspace};
use crate::kv::{KvDtype, KvShape};
use crate::types::budget::Context;
use crate::types::prompt_shape::PromptShape;
#[cfg(feature = "cuda")]
use spattn_cuda::{GpuError, Pages, Reduction, Scores};

/// Panic message.
#[cfg(feature = "cuda")]
pub(crate) const AT_ONCE: &str = "`fused_top_k` called although `supports_fused_top_k` is false";

/// A scorer's form on a device.
pub(crate) trait DeviceScorer: Send + Sync {
    /// As [`DeviceForm::fits`](crate::DeviceForm::fits); every shape by default.
    fn fits(&self, _shape: KvShape) -> bool {
        true
    }

    /// Cost of scoring the candidates of one KV head at a step.
    fn cost(&self, step: &StepShape) -> Cost;

    /// As [`DeviceForm::index_bytes`](crate::DeviceForm::index_bytes), of one layer; nothing by default.
    fn layer_bytes(&self, _prefix: &PromptShape, _dtype: KvDtype) -> usize {
        0
    }

    /// The index of all KV heads of a layer; nothing by default.
    #[cfg(feature = "cuda")]
    fn build_all(&self, _layer: &DeviceLayer<'_>, _learned: &PrefixStatsView<'_>) -> Result<DeviceIndex, GpuError> {
        Ok(DeviceIndex::default())
    }

    /// Writes the scores of every page of the candidates for `rows` into `scratch.scores`: one list per query head, or
    /// per KV head if they are reduced.
    #[cfg(feature = "cuda")]
    fn score_all(
        &self,
        step: &DeviceStep<'_>,
        rows: Range<usize>,
        index: &DeviceIndex,
        reduction: Option<Reduction>,
        scratch: &mut DeviceScratch,
    ) -> Result<(), GpuError>;

    /// Whether it can select the top tokens of all rows without materialising scores. Default false.
    #[cfg(feature = "cuda")]
    fn supports_fused_top_k(
        &self,
        _step: &DeviceStep<'_>,
        _index: &DeviceIndex,
        _reduction: Option<Reduction>,
    ) -> bool {
        false
    }

    /// Scores and selects the top `to.budget_units` tokens in one launch; only if
    /// [`supports_fused_top_k`](Self::supports_fused_top_k).
    #[cfg(feature = "cuda")]
    fn fused_top_k(
        &self,
        _step: &DeviceStep<'_>,
        _index: &DeviceIndex,
        _reduction: Option<Reduction>,
        _scratch: &mut DeviceScratch,
        _to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError> {
        unreachable!("{AT_ONCE}")
    }

    /// Weights the selected tokens of the rows from `first` on by the scores that [`score_all`](Self::score_all) wrote
    /// last, as the scorer does on the host. Does nothing by default: tokens enter the softmax by their logits.
    #[cfg(feature = "cuda")]
    fn weigh_all(
        &self,
        _step: &DeviceStep<'_>,
        _index: &DeviceIndex,
        _first: usize,
        _scratch: &DeviceScratch,
        _to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError> {
        Ok(())
    }
}

/// A picker's form on a device.
pub(crate) trait DevicePicker: Send + Sync {
    /// Cost of one selection from `scores` scores.
    fn cost(&self, scores: usize) -> Cost;

    /// Whether it is a plain top-k of [`budget_units`](Self::budget_units) scores. Default false.
    fn is_top_k(&self) -> bool {
        false
    }

    /// As [`DeviceForm::budget_units`](crate::DeviceForm::budget_units), for candidates in pages: how many pages are selected, or
    /// an upper bound.
    fn budget_units(&self, context: Context, pages: &LeastPages) -> u32;

    /// Reserves `lists` lists for each row in `to`, and uploads what the rows need.
    #[cfg(feature = "cuda")]
    fn prepare(
        &self,
        step: &DeviceStep<'_>,
        pages: &Pages,
        lists: usize,
        to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError>;

    /// Selects by the scores of some rows, from row `first` on. `pages` are the candidates' pages and the least number
    /// of them to select.
    #[cfg(feature = "cuda")]
    fn pick_all(
        &self,
        step: &DeviceStep<'_>,
        pages: (&Pages, usize),
        scores: &Scores,
        first: usize,
        to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError>;
}

/// Pages of candidates, and how many are selected at least.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeastPages {
    /// Tokens a page.
    pub size: usize,
    /// How many there are.
    pub all: usize,
    /// Selected at least.
    pub least: usize,
}

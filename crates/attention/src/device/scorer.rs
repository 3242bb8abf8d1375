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

/// Whoever picks at once has asked whether a scorer does.
#[cfg(feature = "cuda")]
pub(crate) const AT_ONCE: &str = "who picks at once says so";

/// A scorer's form on a device.
pub(crate) trait DeviceScorer: Send + Sync {
    /// As [`DeviceForm::fits`]; every shape by default.
    fn fits(&self, _shape: KvShape) -> bool {
        true
    }

    /// What it costs to score the candidates of one KV head at a step.
    fn cost(&self, step: &StepShape) -> Cost;

    /// As [`DeviceForm::index_bytes`], of one layer; nothing by default.
    fn layer_bytes(&self, _prefix: &PromptShape, _dtype: KvDtype) -> usize {
        0
    }

    /// The index of all KV heads of a layer; nothing by default.
    #[cfg(feature = "cuda")]
    fn build_all(&self, _layer: &DeviceLayer<'_>, _learned: &PrefixStatsView<'_>) -> Result<DeviceIndex, GpuError> {
        Ok(DeviceIndex::default())
    }

    /// Scores of every page of the candidates for some rows into `scratch.scores`, in lists by query head, or by KV head if they
    /// are reduced.
    #[cfg(feature = "cuda")]
    fn score_all(
        &self,
        step: &DeviceStep<'_>,
        rows: Range<usize>,
        index: &DeviceIndex,
        reduction: Option<Reduction>,
        scratch: &mut DeviceScratch,
    ) -> Result<(), GpuError>;

    /// Whether it picks the tokens with the largest scores for all rows at once, without writing scores; not by default.
    #[cfg(feature = "cuda")]
    fn supports_fused_top_k(
        &self,
        _step: &DeviceStep<'_>,
        _index: &DeviceIndex,
        _reduction: Option<Reduction>,
    ) -> bool {
        false
    }

    /// Picks them, as many as `to.budget_units` says, where it [does so](Self::supports_fused_top_k).
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

    /// Weighs what was picked by the scores that [`score_all`](Self::score_all) made last, from row `first` on: as a scorer weighs
    /// on the host. Nothing by default: picks enter by their logits.
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
    /// What it costs to pick once by so many scores.
    fn cost(&self, scores: usize) -> Cost;

    /// Whether it picks the largest scores, as many as [`budget_units`](Self::budget_units) says; not by default.
    fn is_top_k(&self) -> bool {
        false
    }

    /// As [`DeviceForm::budget_units`], of candidates in so many pages: how many are picked, or the most that may be.
    fn budget_units(&self, context: Context, pages: &LeastPages) -> u32;

    /// Makes room in `to` for `lists` lists of each row, and sends what has to be known of the rows.
    #[cfg(feature = "cuda")]
    fn prepare(
        &self,
        step: &DeviceStep<'_>,
        pages: &Pages,
        lists: usize,
        to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError>;

    /// What is picked by the scores of some rows, from row `first` on, of pages of which `least` are picked at least.
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

/// Pages of candidates, and how many are picked at least.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeastPages {
    /// Tokens a page.
    pub size: usize,
    /// How many there are.
    pub all: usize,
    /// Picked at least.
    pub least: usize,
}

//! Top-k by score.

use crate::cost::Cost;
#[cfg(feature = "cuda")]
use crate::device::layer::DeviceStep;
use crate::device::scorer::{DevicePicker, LeastPages};
#[cfg(feature = "cuda")]
use crate::device::workspaces::DeviceWorkspace;
use crate::scored::select::picker::{Picker, ScoredRow};
use crate::types::budget::{Budget, Context};
use crate::types::selection::SelectedTokens;
#[cfg(feature = "cuda")]
use spattn_cuda::{GpuError, Pages, Scores};
use spattn_kernels::topk::top_k;

/// The pages with the largest scores; among equal ones the earlier.
pub(crate) struct Top {
    /// Tokens, in whole pages.
    pub budget: Budget,
}

impl Top {
    /// Pages to select.
    fn pages(&self, context: Context, size: usize, least: usize) -> usize {
        self.budget.blocks(context, size).max(least)
    }
}

impl Picker for Top {
    fn pick(&self, row: &ScoredRow<'_>, cost: &mut Cost) -> SelectedTokens {
        *cost += self.cost(row.scores.len());
        let pages = self.pages(row.context, row.page, row.least);
        SelectedTokens::softmax(row.tokens(&top_k(row.scores, pages)))
    }

    fn is_nothing(&self) -> bool {
        self.budget.is_none()
    }

    fn device(&self) -> Option<&dyn DevicePicker> {
        Some(self)
    }
}

impl DevicePicker for Top {
    /// Scores are written once and read once; a sample rules out all but few of them.
    fn cost(&self, scores: usize) -> Cost {
        Cost { select_bytes: (2 * scores * size_of::<f32>()) as u64, ..Cost::default() }
    }

    fn is_top_k(&self) -> bool {
        true
    }

    fn budget_units(&self, context: Context, pages: &LeastPages) -> u32 {
        self.pages(context, pages.size, pages.least).min(pages.all) as u32
    }

    #[cfg(feature = "cuda")]
    fn prepare(
        &self,
        step: &DeviceStep<'_>,
        of: &Pages,
        lists: usize,
        to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError> {
        let most = step.budget_units.iter().max().map_or(0, |most| (*most as usize * of.size).min(of.tokens.len()));
        to.lists.resize(step.prefix.gpu, step.budget_units.len(), lists, most, of.tokens.end)?;
        to.budget_units.set(step.prefix.gpu, step.budget_units.to_vec())
    }

    #[cfg(feature = "cuda")]
    fn pick_all(
        &self,
        step: &DeviceStep<'_>,
        (of, _): (&Pages, usize),
        scores: &Scores,
        first: usize,
        to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError> {
        step.prefix.gpu.top_pages(scores, &to.budget_units, first, of, &mut to.lists)
    }
}

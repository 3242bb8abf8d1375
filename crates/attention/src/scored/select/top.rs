//! Top-k by score.

use crate::backend::reasons::HostReason;
use crate::backend::scorer::{DevicePicker, LeastPages};
use crate::cost::Cost;
use crate::kv::KvError;
use crate::scored::select::picker::{Picker, ScoredRow};
use crate::types::budget::{Budget, Context};
use crate::types::selection::SelectedTokens;
use spattn_kernels::topk::top_k;

/// Selects the pages with the largest scores; of equal ones, the earlier.
pub(crate) struct Top {
    /// Number of tokens, in whole pages.
    pub budget: Budget,
}

impl Top {
    /// Number of pages to select.
    fn pages(&self, context: Context, size: usize, least: usize) -> usize {
        self.budget.blocks(context, size).max(least)
    }
}

impl Picker for Top {
    fn only_ranks(&self) -> bool {
        true
    }

    fn pick(&self, row: &ScoredRow<'_>, cost: &mut Cost) -> Result<SelectedTokens, KvError> {
        *cost += self.cost(row.scores.len());
        let pages = self.pages(row.context, row.page, row.least);
        Ok(SelectedTokens::softmax(row.tokens(&top_k(row.scores, pages))))
    }

    fn is_nothing(&self) -> bool {
        self.budget.is_none()
    }

    fn device(&self) -> Result<&dyn DevicePicker, HostReason> {
        Ok(self)
    }
}

impl DevicePicker for Top {
    /// Scores are written once and read once; a sample rules out all but a few of
    /// them.
    fn cost(&self, scores: usize) -> Cost {
        Cost { select_bytes: (2 * scores * size_of::<f32>()) as u64, ..Cost::default() }
    }

    fn is_top_k(&self) -> bool {
        true
    }

    fn budget_units(&self, context: Context, pages: &LeastPages) -> u32 {
        self.pages(context, pages.size, pages.least).min(pages.all) as u32
    }
}

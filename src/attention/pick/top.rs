//! The largest scores, as many as the budget says.

use super::{Picker, ScoredRow};
use crate::attention::{Budget, Picks};
use crate::cost::Cost;
use crate::kernels::cpu::topk::top_k;

/// The pages with the largest scores; of equal ones the earlier.
pub(in crate::attention) struct Top {
    /// Tokens, in whole pages.
    pub budget: Budget,
}

impl Picker for Top {
    fn pick(&self, row: &ScoredRow<'_>, cost: &mut Cost) -> Picks {
        // Written once, and passed over once: what a sample has not ruled out is few.
        cost.select_bytes += 2 * row.pass();
        let pages = self.budget.blocks(row.context, row.page).max(row.least);
        Picks::softmax(row.tokens(&top_k(row.scores, pages)))
    }

    fn is_nothing(&self) -> bool {
        self.budget.is_none()
    }
}

//! HiP's masks of a prompt with AVD's vertical and diagonal lines ("HiP + VD" in the paper's tables).
//!
//! The last queries choose the lines, so planning needs the whole prompt. On a host, the masks of all query blocks are
//! found before any block is attended, so that their costs are known by then; on a device, kernels find them.

use rayon::prelude::*;

use super::Hip;
use crate::cost::Cost;
use crate::methods::hip::LineBudget;
use crate::methods::lines::{LineVotes, Static, of_each_head, ranked};
use crate::{BlockMask, Mask, MaskAddition, Masks, PromptMask, PromptPlan, QueryBlock, SearchedPlan};

/// Lines of one attention map.
struct Lines {
    /// Tokens, ascending.
    vertical: Vec<u32>,
    /// Distances, ascending.
    slashes: Vec<usize>,
}

impl Lines {
    /// The lines with most votes, within the budget.
    fn chosen(votes: &LineVotes, budget: LineBudget, fixed: Static) -> Self {
        let tokens = votes.vertical.len();
        let mut vertical = ranked(&votes.vertical, fixed.sink..tokens);
        let mut slashes = ranked(&votes.slash, fixed.window.min(tokens)..tokens);
        vertical.truncate(budget.vertical);
        slashes.truncate(budget.slash);
        vertical.sort_unstable();
        slashes.sort_unstable();
        Self { vertical, slashes: slashes.into_iter().map(|distance| distance as usize).collect() }
    }

    /// Adds the lines to the mask of rows that end before `end`.
    fn add_to(&self, mask: &mut Mask, end: usize) {
        let seen = self.vertical.partition_point(|token| (*token as usize) < end);
        mask.common.extend_from_slice(&self.vertical[..seen]);
        // A stable sort merges two ascending lists in linear time.
        mask.common.sort();
        mask.common.dedup();
        let reach = self.slashes.partition_point(|distance| *distance < end);
        mask.slashes = self.slashes[..reach].to_vec();
    }
}

impl Hip {
    /// The masks of the query block of `prompt` that begins at row `first`, without lines, and the cost of finding them.
    fn block_masks(&self, prompt: &QueryBlock<'_>, first: usize) -> (Masks, Cost) {
        let rows = self.query_block.min(prompt.rows - first);
        let of_head = |head: usize| &prompt.head(head)[first * prompt.d..][..rows * prompt.d];
        let queries: Vec<f32> = (0..prompt.group).flat_map(of_head).copied().collect();
        let block = QueryBlock { queries: &queries, rows, first, ..prompt.clone() };
        let mut cost = Cost::default();
        (BlockMask::masks(self, &block, &mut cost), cost)
    }
}

impl PromptMask for Hip {
    fn query_rows(&self) -> usize {
        self.query_block
    }

    fn plan<'p>(&'p self, prompt: &QueryBlock<'p>, cost: &mut Cost) -> PromptPlan<'p> {
        let add_lines = self.addition(prompt, cost);
        let firsts: Vec<usize> = (0..prompt.rows).step_by(self.query_block).collect();
        let found = firsts.into_par_iter().map(|first| self.block_masks(prompt, first));
        let (masks, costs): (Vec<Masks>, Vec<Cost>) = found.unzip();
        costs.into_iter().for_each(|of_block| *cost += of_block);
        Box::new(move |block| {
            let mut masks = masks[block.first / self.query_block].clone();
            add_lines(block, &mut masks);
            masks
        })
    }

    fn searched(&self) -> Option<&dyn SearchedPlan> {
        Some(self)
    }
}

impl SearchedPlan for Hip {
    fn mask(&self) -> &dyn BlockMask {
        self
    }

    fn last_queries(&self) -> usize {
        self.lines.snapshot
    }

    fn addition<'p>(&'p self, prompt: &QueryBlock<'p>, cost: &mut Cost) -> MaskAddition<'p> {
        let fixed = Static::new(prompt.policy, prompt.end());
        let votes =
            of_each_head(prompt.group, cost, |head, cost| LineVotes::of_last(prompt, head, self.lines.snapshot, cost));
        let votes = self.per.reduced(votes, LineVotes::add);
        let lines: Vec<Lines> = votes.iter().map(|votes| Lines::chosen(votes, self.lines, fixed)).collect();
        Box::new(move |block, masks| {
            let of_heads = match masks {
                Masks::Shared(mask) => std::slice::from_mut(mask),
                Masks::PerHead(masks) => masks,
            };
            of_heads.iter_mut().zip(&lines).for_each(|(mask, lines)| lines.add_to(mask, block.end()));
        })
    }
}

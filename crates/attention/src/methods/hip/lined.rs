//! HiP's masks of a prompt with AVD's vertical and diagonal lines ("HiP + VD" in the paper's tables).
//!
//! The last queries choose the lines, so planning needs the whole prompt. On a host, the masks of all query blocks are
//! found before any block is attended, so that their costs are known by then; on a device, kernels find them.

use rayon::prelude::*;

use super::Hip;
use crate::cost::Cost;
use crate::methods::hip::LineBudget;
use crate::methods::lines::{Static, best, of_each_head, votes_of_last};
use crate::{AddedLines, BlockMask, LineVotes, LinedMask, Mask, Masks, Policy, PromptMask, PromptPlan, QueryBlock};

/// The lines with most votes, within the budget.
fn chosen(votes: &LineVotes, budget: LineBudget, fixed: Static) -> AddedLines {
    let tokens = votes.vertical.len();
    let mut vertical = best(&votes.vertical, fixed.sink..tokens, budget.vertical);
    let slashes = best(&votes.slash, fixed.window.min(tokens)..tokens, budget.slash);
    let mut slashes: Vec<usize> = slashes.into_iter().map(|distance| distance as usize).collect();
    vertical.sort_unstable();
    slashes.sort_unstable();
    AddedLines { vertical, slashes }
}

/// Adds lines to the mask of rows that end before `end`.
fn add_to(mask: &mut Mask, lines: &AddedLines, end: usize) {
    let seen = lines.vertical.partition_point(|token| (*token as usize) < end);
    mask.common.extend_from_slice(&lines.vertical[..seen]);
    // A stable sort merges two ascending lists in linear time.
    mask.common.sort();
    mask.common.dedup();
    let reach = lines.slashes.partition_point(|distance| *distance < end);
    mask.slashes = lines.slashes[..reach].to_vec();
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
        let voters = self.lines.snapshot;
        let votes = of_each_head(prompt.group, cost, |head, cost| votes_of_last(prompt, head, voters, cost));
        let lines = self.choose(votes, prompt.policy);
        let firsts: Vec<usize> = (0..prompt.rows).step_by(self.query_block).collect();
        let found = firsts.into_par_iter().map(|first| self.block_masks(prompt, first));
        let (masks, costs): (Vec<Masks>, Vec<Cost>) = found.unzip();
        costs.into_iter().for_each(|of_block| *cost += of_block);
        Box::new(move |block| {
            let mut masks = masks[block.first / self.query_block].clone();
            let of_heads = match &mut masks {
                Masks::Shared(mask) => std::slice::from_mut(mask),
                Masks::PerHead(masks) => masks,
            };
            of_heads.iter_mut().zip(&lines).for_each(|(mask, lines)| add_to(mask, lines, block.end()));
            masks
        })
    }

    fn lined(&self) -> Option<&dyn LinedMask> {
        Some(self)
    }
}

impl LinedMask for Hip {
    fn searched(&self) -> Option<&dyn BlockMask> {
        Some(self)
    }

    fn voters(&self) -> usize {
        self.lines.snapshot
    }

    fn starts(&self, block: &QueryBlock<'_>) -> Vec<usize> {
        self.window.view(block).starts
    }

    fn choose(&self, votes: Vec<LineVotes>, policy: &Policy) -> Vec<AddedLines> {
        let fixed = Static::new(policy, votes.first().map_or(0, |votes| votes.vertical.len()));
        let votes = self.per.reduced(votes, LineVotes::with);
        votes.iter().map(|votes| chosen(votes, self.lines, fixed)).collect()
    }
}

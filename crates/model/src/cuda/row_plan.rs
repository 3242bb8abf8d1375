//! What one row of a step attends at a layer, and how the kernels get it.

use spattn_attention::{AttendedPart, AttendedTokens, SelectedTokens, Selection, StaticTokens, Weighting};
use spattn_cuda::{self as kernels, Attention, TokenLists, Tokens, Unit, Weights};

/// What one row of a step attends at a layer.
pub(super) enum RowPlan {
    /// The same static tokens for all KV heads.
    Exact(StaticTokens),
    /// Each KV head's static tokens and its selection by the host.
    Picked(Vec<AttendedTokens>),
    /// Static tokens, to be merged with the partial softmax of the tokens that the host attended.
    Merged(AttendedPart),
    /// Static tokens, and a row of the lists that the device selects.
    Left(StaticTokens, RowOfLists),
    /// The output `[heads][d]` of attention on the host.
    Done(Vec<f32>),
}

/// A row of the step's lists: first what each stream has [kept](super::kv::SequenceKv::kept), then the selection of each group.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowOfLists {
    pub(super) lists: usize,
    pub(super) row: usize,
}

impl RowPlan {
    /// Returns the tokens attended, summed over KV heads.
    pub(super) fn tokens(&self, total: usize, kv_heads: usize, lists: &[&TokenLists]) -> usize {
        let of_head = |picked: &AttendedTokens| {
            let picks = match &picked.selection {
                None => 0,
                Some(Selection::Shared(picks)) => picks.tokens.len(),
                Some(Selection::PerHead(heads)) => heads.iter().map(|picks| picks.tokens.len()).sum(),
            };
            picked.exact.tokens(total) + picks
        };
        match self {
            Self::Exact(exact) => kv_heads * exact.tokens(total),
            Self::Merged(part) => part.picked.iter().map(|picked| picked.exact.tokens(total)).sum(),
            Self::Picked(heads) => heads.iter().map(of_head).sum(),
            Self::Left(exact, of) => {
                let lists = lists[of.lists];
                kv_heads * exact.tokens(total) + lists.lists() * lists.expected()
            }
            Self::Done(_) => 0,
        }
    }

    /// Returns the number of units that hold most of these tokens.
    pub(super) fn units(&self, kv_heads: usize, lists: &[&TokenLists]) -> usize {
        let of_head = |picked: &AttendedTokens| match &picked.selection {
            Some(Selection::PerHead(heads)) => heads.len(),
            Some(Selection::Shared(_)) | None => 1,
        };
        match self {
            Self::Exact(_) | Self::Merged(_) => kv_heads,
            Self::Picked(heads) => heads.iter().map(of_head).sum(),
            Self::Left(_, of) => lists[of.lists].lists(),
            Self::Done(_) => 0,
        }
    }
}

/// One KV head of one row, with what its attention needs.
pub(super) struct HeadPlan<'a> {
    pub(super) row: usize,
    pub(super) kv_head: usize,
    pub(super) group: usize,
    pub(super) total: usize,
    pub(super) tail: &'a kernels::Tail<'a>,
}

impl HeadPlan<'_> {
    /// Adds what the head attends: static tokens and the group's selection, or static tokens and then each query's selection.
    pub(super) fn add(&self, attention: &mut Attention, plan: &RowPlan, prefix_tokens: usize, lists: &[&TokenLists]) {
        let head = self.kv_head * self.group;
        let (exact, selection) = match plan {
            RowPlan::Exact(exact) => (*exact, None),
            RowPlan::Merged(part) => (part.picked[self.kv_head].exact, None),
            RowPlan::Picked(heads) => (heads[self.kv_head].exact, heads[self.kv_head].selection.as_ref()),
            RowPlan::Left(exact, of) => {
                return self.add_lists(attention, *exact, lists[of.lists], of.row, prefix_tokens);
            }
            RowPlan::Done(_) => return,
        };
        if let RowPlan::Merged(part) = plan {
            let width = part.partials.len() / self.heads();
            let partials = part.partials.chunks_exact(width).enumerate().skip(head).take(self.group);
            partials.for_each(|(head, partial)| attention.give_partial(self.row, head, partial));
        }
        let mut add =
            |part: usize, head: usize, queries: usize, exact: StaticTokens, picks: Option<&SelectedTokens>| {
                let weights = match picks.map(|picks| &picks.weighting) {
                    None | Some(Weighting::Softmax | Weighting::Remainder { .. }) => Weights::Softmax,
                    Some(Weighting::LogBias(log_u)) => Weights::LogBias(log_u),
                    Some(Weighting::Direct { weights, log_mass }) => Weights::Explicit(weights, *log_mass),
                };
                let picked = picks.map_or(&[][..], |picks| &picks.tokens);
                let tokens = Tokens { sink: exact.sink, recent: exact.recent, total: self.total, picked };
                let (row, kv_head, tail) = (self.row, self.kv_head, self.tail);
                attention.add(part, &Unit { row, head, queries, kv_head, tail, tokens, weights }, prefix_tokens);
                if let Some(Weighting::Remainder { shares, value }) = picks.map(|picks| &picks.weighting) {
                    shares.iter().enumerate().for_each(|(i, share)| attention.give_rest(row, head + i, *share, value));
                }
            };
        let nothing = StaticTokens { sink: 0, recent: self.total };
        match selection {
            None => add(0, head, self.group, exact, None),
            Some(Selection::Shared(picks)) if matches!(picks.weighting, Weighting::Softmax | Weighting::LogBias(_)) => {
                add(0, head, self.group, exact, Some(picks));
            }
            Some(Selection::Shared(picks)) => {
                add(0, head, self.group, exact, None);
                add(1, head, self.group, nothing, Some(picks));
            }
            Some(Selection::PerHead(heads)) => {
                add(0, head, self.group, exact, None);
                heads.iter().enumerate().for_each(|(i, picks)| add(1, head + i, 1, nothing, Some(picks)));
            }
        }
    }

    /// Does what [`add`](Self::add) does for lists that the device selected.
    fn add_lists(
        &self,
        attention: &mut Attention,
        exact: StaticTokens,
        lists: &TokenLists,
        of_row: usize,
        prefix_tokens: usize,
    ) {
        let Self { row, kv_head, group, total, tail } = *self;
        let unit = |head: usize, queries: usize, exact: StaticTokens| {
            let tokens = Tokens { sink: exact.sink, recent: exact.recent, total, picked: &[] };
            Unit { row, head, queries, kv_head, tail, tokens, weights: Weights::Softmax }
        };
        let (first, nothing) = (kv_head * group, StaticTokens { sink: 0, recent: total });
        let is_shared = lists.lists() * group == self.heads();
        let rests: Vec<_> = (first..first + group).filter_map(|head| Some((head, lists.rest(of_row, head)?))).collect();
        if is_shared && rests.is_empty() {
            return attention.add_list(0, &unit(first, group, exact), lists.list(of_row, kv_head), prefix_tokens);
        }
        attention.add(0, &unit(first, group, exact), prefix_tokens);
        match is_shared {
            true => attention.add_list(1, &unit(first, group, nothing), lists.list(of_row, kv_head), prefix_tokens),
            false => (first..first + group).for_each(|head| {
                attention.add_list(1, &unit(head, 1, nothing), lists.list(of_row, head), prefix_tokens);
            }),
        }
        rests.into_iter().for_each(|(head, places)| attention.give_rest_there(row, head, places));
    }

    /// Returns the number of query heads of all KV heads.
    fn heads(&self) -> usize {
        self.group * self.tail.kv_heads
    }
}

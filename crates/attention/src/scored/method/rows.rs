//! Reads a prompt row by row: each row has the selection of a decode step at its position.

use std::any::Any;
use std::ops::Range;

use super::{QueryPosition, Scored, TailIndex};
use crate::cost::Cost;
use crate::kv::KvRows;
use crate::prefill::mask::{QueryBlock, RowHead, RowMask};
use crate::scored::scorer::{Part, Scorer, Segment, SelectionSource};
use crate::types::budget::Context;
use crate::types::scores::{GroupQueries, joined_scores};
use crate::types::seed::mix_seed;
use crate::types::selection::{Selection, StaticTokens};

/// Panic message: reading failed although the rows are borrowed.
const IN_MEMORY: &str = "prefill on the CPU keeps the prompt in host memory";

impl<S: Scorer> RowMask for Scored<S> {
    fn begin(&self) -> Box<dyn Any + Send + Sync> {
        Box::new(TailIndex::<S::Index> { index: None, tokens: 0 })
    }

    fn take_in(&self, state: &mut (dyn Any + Send + Sync), head: &RowHead<'_>, candidates: Range<usize>) {
        let grown: &mut TailIndex<S::Index> = state.downcast_mut().expect("the state is not of this scorer's type");
        let whole = candidates.start..candidates.start + candidates.len() / self.scorer.grain() * self.scorer.grain();
        let d = head.place.d;
        let keys = KvRows::lent(head.keys, d).slice(whole.clone());
        let values = KvRows::lent(head.values, d).slice(whole);
        grown.grow(&self.scorer, head.place, None, keys, values).expect(IN_MEMORY);
    }

    fn picks(&self, block: &QueryBlock<'_>, head: &RowHead<'_>, state: &dyn Any, cost: &mut Cost) -> Vec<Selection> {
        let grown: &TailIndex<S::Index> = state.downcast_ref().expect("the state is not of this scorer's type");
        let (group, d, page) = (block.group, block.d, self.scorer.page());
        // No row read so far has a candidate.
        let Some(index) = &grown.index else { return vec![self.per.nothing(group); block.rows] };
        let scale = block.scale;
        let nothing = self.picker.is_nothing();
        let rows = block.rows;
        let exact: Vec<StaticTokens> =
            (0..rows).map(|row| StaticTokens::sliding(block.policy, block.first + row + 1)).collect();
        let sink = exact[rows - 1].sink;
        let keys = KvRows::lent(head.keys, d);
        let values = KvRows::lent(head.values, d);
        let queries =
            GroupQueries { layer: block.layer, kv_head: block.kv_head, queries: block.queries, rows, d, scale };
        let (mut scores, mut scoring) = (Vec::new(), Cost::default());
        if !nothing && grown.tokens > 0 {
            let segment = Segment { index, keys: keys.slice(sink..sink + grown.tokens) };
            scores = self.scores_of(&queries, &segment, &mut scoring).expect(IN_MEMORY);
        }
        let lists = self.lists(group);
        let columns = scores.len() / (lists * rows);
        let (mut used, mut attended) = (0, 0);
        let mut selections = Vec::with_capacity(rows);
        for (row, exact) in exact.into_iter().enumerate() {
            let candidates = exact.sink..exact.recent;
            if nothing || candidates.is_empty() {
                selections.push(self.per.nothing(group));
                continue;
            }
            let whole = candidates.len() / self.scorer.grain() * self.scorer.grain();
            let pages = whole / page;
            used += pages;
            let of_head = |list: usize| &scores[(list * rows + row) * columns..][..pages];
            let mut own: Vec<f32> = (0..lists).flat_map(of_head).copied().collect();
            let mut parts = vec![Part { index, tokens: whole, values: values.slice(sink..sink + whole) }];
            let numbers: Vec<f32> = (0..group).flat_map(|h| &block.head(h)[row * d..][..d]).copied().collect();
            let total = block.first + row + 1;
            let seen = keys.slice(0..total);
            // The last grain is incomplete, so it is built for this row from the tokens that
            // the row sees.
            let open = candidates.start + whole..candidates.end;
            let mut last = TailIndex { index: None, tokens: 0 };
            if !open.is_empty() {
                let queries = GroupQueries { queries: &numbers, rows: 1, ..queries };
                let (keys, values) = (keys.slice(open.clone()), values.slice(open.clone()));
                let index = last.grow(&self.scorer, head.place, None, keys, values).expect(IN_MEMORY);
                let more = self.scores_of(&queries, &Segment { index, keys }, cost).expect(IN_MEMORY);
                own = joined_scores(lists, (&own, pages), &more);
                parts.push(Part { index, tokens: open.len(), values });
            }
            let at = QueryPosition {
                context: Context::new(total, &candidates).at(block.share),
                open: self.open_page(&candidates, total),
                candidates,
                scale: block.scale.factor(),
                seed: mix_seed(block.seed, total as u64),
                group,
                queries: &numbers,
                keys: seen,
            };
            let mut selection = self.select_by(&own, &at, &parts, cost).expect(IN_MEMORY);
            let source = SelectionSource { scores: &own, first: sink, parts: &parts };
            self.scorer.weigh(&source, &mut selection, cost).expect(IN_MEMORY);
            attended += selection.of_heads(group).iter().sum::<usize>();
            selections.push(selection);
        }
        // Count only the share of the scores that rows need: earlier rows do not need scores
        // of later tokens.
        let share = used as f64 / (rows * columns).max(1) as f64;
        cost.score_flops += (scoring.score_flops as f64 * share) as u64;
        if self.takes_products(group) {
            // Bytes are not counted during prefill.
            cost.leave_to_attention(attended, d, 0);
        }
        selections
    }
}

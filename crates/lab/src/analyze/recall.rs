//! The share of the true top tokens that a method selects (HashAttention §4.1 and Fig. 5).
//!
//! The true top `k` of a query are the candidates (all tokens that are not static) with the highest `q·k`. Recall is the share of these
//! that the method selected. If scores are tied at rank `k`, so that only `m` of `t` tied tokens belong to the top, up to `m` selected ones
//! count: it does not matter which of them the method selects.

use std::collections::BTreeSet;

use anyhow::Result;

use super::findings::{Drawing, Lines, Map, Panel, Table, Tally, Unit};
use super::head::{Head, Query};
use super::picked::picks_of;
use super::{Analysis, Document, Findings, Method, Observation, Setup};
use spattn_attention::AttendedTokens;

pub(super) const ANALYSIS: Analysis = Analysis {
    name: "recall",
    about: "recall of the true top 32, 64, ... tokens among those that a method selects, by layer and head",
    reference: "HashAttention §4.1, Fig. 5",
    methods: &[
        "topk:ratio=0.0625",
        "hash_attention:ratio=0.0625",
        "lsh_bits:bits=32,ratio=0.0625",
        "double_sparsity:ratio=0.0625",
        "quest:ratio=0.0625",
        "loki:ratio=0.0625",
        "hip:ratio=0.0625",
        "magicpig:K=9,L=120",
        "random:ratio=0.0625",
    ],
    start: |setup| Ok(Box::new(Recall::new(setup))),
};

/// The numbers of top tokens.
const TOP: [usize; 4] = [16, 32, 64, 128];
/// Index into [`TOP`] of the number that is plotted: 32, as in the paper.
const DRAWN: usize = 1;

struct Recall {
    methods: Vec<Method>,
    tallies: Vec<Tally>,
}

impl Recall {
    fn new(setup: &Setup<'_>) -> Self {
        Self { tallies: vec![Tally::default(); setup.methods.len()], methods: setup.methods.to_vec() }
    }
}

impl Observation for Recall {
    fn observe(&mut self, document: &Document) -> Result<()> {
        for (method, tally) in self.methods.iter().zip(&mut self.tallies) {
            let choices = document.choices(&method.configured, &mut document.cache())?;
            let looked = document.each_head(|head| {
                let of_step = &choices[document.at(head.layer)];
                let one =
                    |query: &Query| Some((query.head, of_query(head, query, &of_step[query.step][head.kv_head])?));
                (head.layer, head.queries.iter().filter_map(one).collect::<Vec<_>>())
            })?;
            for (layer, queries) in looked {
                queries.iter().for_each(|(head, numbers)| tally.add(&document.task, layer, *head, numbers));
            }
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Findings {
        let Self { methods, tallies } = *self;
        let names: Vec<String> = TOP.iter().map(|k| format!("recall@{k}")).collect();
        let columns: Vec<(&str, Unit)> =
            std::iter::once("picked").chain(names.iter().map(String::as_str)).map(|name| (name, Unit::Share)).collect();
        let about = "Recall of the top tokens among selected ones, and selected tokens as a share of the candidates; without dense layers";
        let mut overall = Table::new(
            "recall",
            &format!("{about}; mean over documents, layers, heads and queries"),
            &["method"],
            &columns,
        );
        let mut by_head = Table::new(
            "recall_by_head",
            &format!("{about}; by layer and head"),
            &["method", "layer", "head"],
            &columns,
        )
        .detail();
        let mut by_task =
            Table::new("recall_by_task", &format!("{about}; by task"), &["method", "task"], &columns).detail();
        let mut notes = Vec::new();
        let (mut panels, mut series) = (Vec::new(), Vec::new());
        for (method, tally) in methods.iter().zip(&tallies) {
            let label = method.configured.label();
            let Some(numbers) = tally.overall() else {
                notes.push(format!("{label} selected nothing: all of its layers are dense, or all tokens static"));
                continue;
            };
            overall.push([&label], numbers);
            for ((layer, head), numbers) in tally.heads() {
                by_head.push([label.clone(), layer.to_string(), head.to_string()], numbers);
            }
            tally.tasks().into_iter().for_each(|(task, numbers)| by_task.push([label.clone(), task], numbers));
            panels.push((label.clone(), tally.panel(1 + DRAWN)));
            let mut points = tally.by_layer(1 + DRAWN);
            points.iter_mut().for_each(|point| (point.y, point.ends) = (100.0 * point.y, None));
            series.push((label, points));
        }
        let map = Map {
            name: "recall_heads".to_owned(),
            title: format!("Recall of the top {} by layer and query head", TOP[DRAWN]),
            label: "recall".to_owned(),
            panels,
        };
        let lines = Lines {
            name: "recall_layers".to_owned(),
            title: format!("Recall of the top {} by layer", TOP[DRAWN]),
            x_label: "layer".to_owned(),
            y_label: "recall (%)".to_owned(),
            panels: vec![Panel { title: String::new(), series }],
            ..Lines::default()
        };
        Findings {
            tables: vec![overall, by_task, by_head],
            drawings: vec![Drawing::Lines(lines), Drawing::Map(map)],
            notes,
        }
    }
}

/// Returns the selected share of the candidates, and the recall at each of [`TOP`]; `None` without candidates or selection.
fn of_query(head: &Head, query: &Query, picked: &AttendedTokens) -> Option<Vec<f64>> {
    let candidates = picked.exact.sink..picked.exact.recent.min(query.tokens);
    let picks = picks_of(picked, query.in_group)?;
    if candidates.is_empty() {
        return None;
    }
    let logits = &head.logits(query)[candidates.clone()];
    let taken: BTreeSet<usize> = picks.tokens.iter().map(|token| *token as usize - candidates.start).collect();
    let share = taken.len() as f64 / logits.len() as f64;
    Some(std::iter::once(share).chain(TOP.iter().map(|k| recall(logits, &taken, *k))).collect())
}

/// Returns the recall of the `k` highest, or of all if there are fewer.
fn recall(logits: &[f64], taken: &BTreeSet<usize>, k: usize) -> f64 {
    let k = k.min(logits.len());
    let mut sorted = logits.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    let last = sorted[k - 1];
    let above = logits.iter().filter(|x| **x > last).count();
    let taken_where = |holds: &dyn Fn(f64) -> bool| taken.iter().filter(|token| holds(logits[**token])).count();
    let equal = taken_where(&|x| x == last).min(k - above);
    (taken_where(&|x| x > last) + equal) as f64 / k as f64
}

#[cfg(test)]
mod tests {
    use super::super::head::testing::drawn;
    use super::*;
    use spattn_attention::{SelectedTokens, Selection, StaticTokens};

    #[test]
    fn equal_scores_count_as_many_times_as_they_are_in_the_top() {
        let logits = [3.0, 1.0, 2.0, 2.0, 2.0, 0.0];
        let of = |taken: &[usize], k: usize| recall(&logits, &taken.iter().copied().collect(), k);
        // The top 2 are token 0 and any of 2, 3 and 4.
        assert_eq!([of(&[0, 2], 2), of(&[0, 4], 2), of(&[2, 3, 4], 2), of(&[1, 5], 2)], [1.0, 1.0, 0.5, 0.0]);
        assert_eq!([of(&[0, 3, 4], 3), of(&[0, 3], 4), of(&[0, 1, 2, 3, 4, 5], 9)], [1.0, 0.5, 1.0]);
    }

    #[test]
    fn recall_is_the_share_of_the_true_top_among_picks_alone() {
        let head = drawn(200, 1, 4, 6);
        let query = &head.queries[1];
        let logits = head.logits(query);
        let (sink, recent) = (4, 190);
        // The second head of the group selects every third token, the first head none.
        let tokens: Vec<u32> = (sink as u32..recent as u32).filter(|t| t % 3 == 0).collect();
        let selection =
            Selection::PerHead(vec![SelectedTokens::softmax(Vec::new()), SelectedTokens::softmax(tokens.clone())]);
        let picked = AttendedTokens { exact: StaticTokens { sink, recent }, selection: Some(selection) };
        let numbers = of_query(&head, query, &picked).unwrap();
        assert!((numbers[0] - tokens.len() as f64 / 186.0).abs() < 1e-12);
        for (number, k) in numbers[1..].iter().zip(TOP) {
            let rank = |t: usize| (sink..recent).filter(|o| logits[*o] > logits[t]).count();
            let hit = tokens.iter().filter(|t| rank(**t as usize) < k).count();
            assert!((number - hit as f64 / k as f64).abs() < 1e-12);
        }
        let nothing = AttendedTokens { exact: StaticTokens { sink, recent }, selection: None };
        assert_eq!(of_query(&head, query, &nothing), None);
    }
}

//! How concentrated attention is, and how many tokens hold most of its mass (Top-k Fig. 3, 5, 9, 10 and Table 3).
//!
//! Entropy is `−Σ wᵢ ln wᵢ` over a row of the attention matrix, in nats. The "tokens for" a share of the mass are the fewest whose weights
//! sum to it. Table 3 compares entropy with the k that a task's score needs; here it is compared with the k that holds 95 % of the mass,
//! which needs no scores.

use anyhow::Result;

use super::findings::{Drawing, Lines, Panel, Point, Table, Tally, Unit};
use super::head::{Head, Query, softmax};
use super::{Analysis, Document, Findings, Observation};
use spattn_stats::correlation;

pub(super) const ANALYSIS: Analysis = Analysis {
    name: "entropy",
    about: "entropy of attention by layer and task, tokens for 75 % and 95 % of the mass, and their correlation",
    reference: "Top-k Table 3, Figs. 3, 5, 9, 10",
    methods: &[],
    start: |_| Ok(Box::new(Entropy::default())),
};

#[derive(Default)]
struct Entropy {
    tally: Tally,
    /// For each document: its name, its tokens, and the mean, quartiles and greatest of the tokens for 75 % over layers, heads and
    /// queries.
    documents: Vec<(String, usize, [f64; 5])>,
}

/// Entropy, the tokens for 75 % and for 95 % of the mass, and these as shares of the context.
const NUMBERS: [(&str, Unit); 5] = [
    ("entropy (nats)", Unit::Number),
    ("tokens for 75 %", Unit::Tokens),
    ("tokens for 95 %", Unit::Tokens),
    ("share for 75 %", Unit::Share),
    ("share for 95 %", Unit::Share),
];

impl Observation for Entropy {
    fn observe(&mut self, document: &Document) -> Result<()> {
        let looked = document.each_head(|head| {
            let one = |query: &Query| (query.head, of_query(head, query));
            (head.layer, head.queries.iter().map(one).collect::<Vec<_>>())
        })?;
        let mut needed: Vec<f64> = Vec::new();
        for (layer, queries) in looked {
            for (head, numbers) in queries {
                needed.push(numbers[1]);
                self.tally.add(&document.task, layer, head, &numbers);
            }
        }
        needed.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| needed[((needed.len() - 1) as f64 * share).round() as usize];
        let mean = needed.iter().sum::<f64>() / needed.len() as f64;
        let name = format!("{} {}", document.task, document.number);
        self.documents.push((name, document.ids.len(), [mean, at(0.25), at(0.5), at(0.75), at(1.0)]));
        Ok(())
    }

    fn finish(self: Box<Self>) -> Findings {
        let Self { tally, documents } = *self;
        let about = "Entropy of attention and the fewest tokens that hold a share of it";
        let mut by_task = Table::new(
            "entropy_by_task",
            &format!("{about}; by task, mean over layers, heads and queries"),
            &["task"],
            &NUMBERS,
        );
        tally.tasks().into_iter().for_each(|(task, numbers)| by_task.push([task], numbers));
        let mut by_layer = Table::new(
            "entropy_by_layer",
            &format!("{about}; by layer, mean over tasks, heads and queries"),
            &["layer"],
            &NUMBERS,
        );
        tally.layers().into_iter().for_each(|(layer, numbers)| by_layer.push([layer], numbers));
        let mut of_documents = Table::new(
            "entropy_by_document",
            "Tokens for 75 % of the attention, by document: mean, quartiles and greatest over layers, heads and queries",
            &["document"],
            &[
                ("context", Unit::Tokens),
                ("mean", Unit::Tokens),
                ("25 %", Unit::Tokens),
                ("median", Unit::Tokens),
                ("75 %", Unit::Tokens),
                ("greatest", Unit::Tokens),
            ],
        );
        for (name, tokens, numbers) in documents {
            of_documents.push([name], std::iter::once(tokens as f64).chain(numbers));
        }
        let mut by_head = Table::new(
            "entropy_by_head",
            &format!("{about}; by task, layer and head"),
            &["task", "layer", "head"],
            &NUMBERS,
        )
        .detail();
        for (place, numbers) in tally.means(|place| Some(place.clone())) {
            by_head.push([place.task, place.layer.to_string(), place.head.to_string()], numbers);
        }
        let notes = notes(&tally);
        let drawings = vec![
            Drawing::Lines(over_layers(&tally, "entropy_layers", "Entropy of attention by layer", "entropy (nats)", 0)),
            Drawing::Lines(over_layers(
                &tally,
                "tokens_for_75",
                "Tokens for 75 % of the attention by layer",
                "tokens",
                1,
            )),
        ];
        Findings { tables: vec![by_task, by_layer, of_documents, by_head], drawings, notes }
    }
}

fn of_query(head: &Head, query: &Query) -> Vec<f64> {
    let mut weights = softmax(&head.logits(query));
    let entropy: f64 = weights.iter().filter(|w| **w > 0.0).map(|w| -w * w.ln()).sum();
    weights.sort_unstable_by(|a, b| b.total_cmp(a));
    let n = weights.len() as f64;
    let [most, nearly_all] = [0.75, 0.95].map(|share| tokens_for(&weights, share) as f64);
    vec![entropy, most, nearly_all, most / n, nearly_all / n]
}

/// Returns the smallest number of weights, given in descending order, that sum to `share`.
fn tokens_for(descending: &[f64], share: f64) -> usize {
    let mut sum = 0.0;
    let enough = descending.iter().position(|weight| {
        sum += weight;
        sum >= share
    });
    enough.map_or(descending.len(), |at| at + 1)
}

/// Returns lines of number `at` by layer: one over all tasks with the range of the heads, and one for each task.
fn over_layers(tally: &Tally, name: &str, title: &str, label: &str, at: usize) -> Lines {
    let by_task = tally.means(|place| Some((place.task.clone(), place.layer)));
    let tasks = tally.tasks();
    let of_task = |task: &String| {
        let points = by_task.iter().filter(|((other, _), _)| other == task);
        (task.clone(), points.map(|((_, layer), numbers)| Point::at(*layer as f64, numbers[at])).collect())
    };
    let all = Panel {
        title: "mean, and range over heads".to_owned(),
        series: vec![("all tasks".to_owned(), tally.by_layer(at))],
    };
    let each = Panel { title: "by task".to_owned(), series: tasks.keys().map(of_task).collect() };
    Lines {
        name: name.to_owned(),
        title: title.to_owned(),
        x_label: "layer".to_owned(),
        y_label: label.to_owned(),
        panels: if tasks.len() > 1 { vec![all, each] } else { vec![all] },
        ..Lines::default()
    }
}

fn notes(tally: &Tally) -> Vec<String> {
    let pairs = |means: Vec<Vec<f64>>| means.iter().map(|n| (n[0], n[4])).collect::<Vec<_>>();
    let tasks = pairs(tally.tasks().into_values().collect());
    let places = pairs(tally.means(|place| Some(place.clone())).into_values().collect());
    let said = |pairs: &[(f64, f64)], of: &str| {
        let r = correlation(pairs)?.mean;
        Some(format!("entropy and the share of tokens for 95 % correlate with r = {r:.3} over {} {of}", pairs.len()))
    };
    [said(&tasks, "tasks"), said(&places, "heads of all layers and tasks")].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::super::head::testing::drawn;
    use super::*;

    #[test]
    fn entropy_and_tokens_are_those_of_a_naive_count() {
        let head = drawn(50, 2, 4, 9);
        for query in &head.queries {
            let numbers = of_query(&head, query);
            let exps: Vec<f64> = head.logits(query).iter().map(|x| x.exp()).collect();
            let sum: f64 = exps.iter().sum();
            // H = ln Z − Σ wᵢ xᵢ.
            let mean: f64 = exps.iter().map(|e| e / sum * e.ln()).sum();
            assert!((numbers[0] - (sum.ln() - mean)).abs() < 1e-9);
            for (number, share) in [(numbers[1], 0.75), (numbers[2], 0.95)] {
                // Exactly `count` of the largest weights reach the share; one fewer does not.
                let of_rank = |rank: usize| {
                    exps.iter().filter(|e| exps.iter().filter(|other| other > e).count() < rank).sum::<f64>() / sum
                };
                let count = number as usize;
                assert!(of_rank(count) >= share && of_rank(count - 1) < share, "{number}");
            }
            assert_eq!(numbers[4], numbers[2] / query.tokens as f64);
        }
        let even = [0.25; 4];
        assert_eq!([0.75, 0.95].map(|share| tokens_for(&even, share)), [3, 4]);
    }
}

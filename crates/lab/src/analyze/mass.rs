//! How much of the attention the top tokens hold, and how much of that is due to the sink (MagicPIG Fig. 2a and b, Top-k §3).
//!
//! For each query, the weights `w = softmax(q·k/√d)` over all tokens that it may attend are sorted. The coverage of the top share `x` of
//! `n` tokens is the sum of the `⌈x·n⌉` largest weights. "Without the sink" leaves its tokens out and scales the other weights to sum to 1.

use anyhow::Result;

use super::findings::{Drawing, Lines, Map, Panel, Point, Table, Tally, Unit};
use super::head::{Head, Query, softmax};
use super::{Analysis, Document, Findings, Observation};

pub(super) const ANALYSIS: Analysis = Analysis {
    name: "mass",
    about: "attention covered by the top x % of the tokens by layer and head, with the sink and without it",
    reference: "MagicPIG Figs. 2a, 2b; Top-k Fig. 3",
    methods: &[],
    start: |setup| Ok(Box::new(Mass { sink: setup.sink, tally: Tally::default() })),
};

/// The top shares of the tokens, in percent.
const TOP: [f64; 8] = [0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0];
/// The index of the first coverage among a query's numbers: first the coverages with the sink, then those without it.
const BEFORE: usize = 2;
/// The number of last tokens that count as the window.
const WINDOW: usize = 64;
/// Index into [`TOP`] of the share in the paper's claim: in some heads, the top 20 % hold 70 %.
const CLAIM: usize = 6;

struct Mass {
    sink: usize,
    tally: Tally,
}

impl Observation for Mass {
    fn observe(&mut self, document: &Document) -> Result<()> {
        let sink = self.sink;
        let looked = document.each_head(|head| {
            let one = |query: &Query| (query.head, of_query(head, query, sink));
            (head.layer, head.queries.iter().map(one).collect::<Vec<_>>())
        })?;
        for (layer, queries) in looked {
            queries.iter().for_each(|(head, numbers)| self.tally.add(&document.task, layer, *head, numbers));
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Findings {
        let Self { sink, tally } = *self;
        let head = ["sink", "window"].map(|name| (name.to_owned(), Unit::Share));
        let named = |of: &str| TOP.map(|x| (format!("top {x}%{of}"), Unit::Share));
        let all: Vec<(String, Unit)> = head.into_iter().chain(named("")).chain(named(", no sink")).collect();
        let columns: Vec<(&str, Unit)> = all.iter().map(|(name, unit)| (name.as_str(), *unit)).collect();
        let about = format!(
            "Attention covered by the top tokens; the sink is the first {sink} tokens, the recent window the last {WINDOW}"
        );
        let title = format!("{about}; by layer, mean over heads, queries and documents");
        let by_layer = tally.layer_table("mass_by_layer", &title, &columns);
        let mut by_task = Table::new(
            "mass_by_task",
            &format!("{about}; by task, mean over layers, heads and queries"),
            &["task"],
            &columns,
        );
        tally.tasks().into_iter().for_each(|(task, numbers)| by_task.push([task], numbers));
        let title = format!("{about}; by layer and head");
        let by_head = tally.head_table("mass_by_head", &title, ["layer", "head"], &columns);
        let maps = Map {
            name: "mass_heads".to_owned(),
            title: "Attention by layer and query head".to_owned(),
            label: "share of the attention".to_owned(),
            panels: vec![
                (format!("first {sink} tokens"), tally.panel(0)),
                (format!("top {} %", TOP[CLAIM]), tally.panel(BEFORE + CLAIM)),
                (format!("top {} %, without the sink", TOP[CLAIM]), tally.panel(BEFORE + TOP.len() + CLAIM)),
            ],
        };
        let drawings = vec![Drawing::Lines(curves(&tally)), Drawing::Map(maps)];
        Findings { notes: notes(&tally), tables: vec![by_layer, by_task, by_head], drawings }
    }
}

/// Returns the mass of sink and window, then the coverage of the top shares with the sink and without it.
fn of_query(head: &Head, query: &Query, sink: usize) -> Vec<f64> {
    let weights = softmax(&head.logits(query));
    let sink = sink.min(weights.len() - 1);
    let rest = &weights[sink..];
    let (in_sink, in_rest): (f64, f64) = (weights[..sink].iter().sum(), rest.iter().sum());
    let window: f64 = weights[weights.len().saturating_sub(WINDOW)..].iter().sum();
    let with = coverage(&weights);
    let without = coverage(rest).into_iter().map(|covered| covered / in_rest.max(f64::MIN_POSITIVE));
    [in_sink, window].into_iter().chain(with).chain(without).collect()
}

/// The coverage of each of [`TOP`].
fn coverage(weights: &[f64]) -> Vec<f64> {
    let mut sorted = weights.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    let sum = |percent: f64| {
        let count = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
        sorted[..count.min(sorted.len())].iter().sum()
    };
    TOP.into_iter().map(sum).collect()
}

/// Returns the mean curve, and the curves of the least and the most concentrated head.
fn curves(tally: &Tally) -> Lines {
    let heads = tally.heads();
    let panel = |title: &str, first: usize| {
        let curve = |numbers: &[f64]| -> Vec<Point> {
            TOP.iter().zip(&numbers[first..]).map(|(x, covered)| Point::at(*x, 100.0 * covered)).collect()
        };
        let order = |a: &(&(usize, usize), &Vec<f64>), b: &(&(usize, usize), &Vec<f64>)| {
            a.1[first + CLAIM].total_cmp(&b.1[first + CLAIM])
        };
        let of = |name: &str, found: Option<(&(usize, usize), &Vec<f64>)>| {
            found.map(|(_, numbers)| (name.to_owned(), curve(numbers)))
        };
        let mean = tally.overall().map(|numbers| ("mean over heads".to_owned(), curve(&numbers)));
        let all = [
            mean,
            of("least concentrated head", heads.iter().min_by(order)),
            of("most concentrated head", heads.iter().max_by(order)),
        ];
        Panel { title: title.to_owned(), series: all.into_iter().flatten().collect() }
    };
    Lines {
        name: "mass".to_owned(),
        title: "Attention that the top tokens cover".to_owned(),
        x_label: "top tokens (% of context)".to_owned(),
        y_label: "attention covered (%)".to_owned(),
        log_x: true,
        log_y: false,
        panels: vec![panel("all tokens", BEFORE), panel("without the sink", BEFORE + TOP.len())],
    }
}

fn notes(tally: &Tally) -> Vec<String> {
    let heads = tally.panel(BEFORE + CLAIM);
    let least = heads.iter().min_by(|a, b| a.2.total_cmp(&b.2));
    let claimed = |(layer, head, covered): &(usize, usize, f64)| {
        let few = heads.iter().filter(|head| head.2 < 0.7).count();
        format!(
            "the top {} % cover least at layer {layer}, head {head}: {:.1} %; they cover less than 70 % in {few} of {} heads",
            TOP[CLAIM],
            100.0 * covered,
            heads.len()
        )
    };
    least.map(claimed).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::super::head::testing::drawn;
    use super::*;

    /// Computes the coverage by taking the largest token again and again.
    fn naive(weights: &[f64], percent: f64) -> f64 {
        let (mut left, mut covered, mut taken) = (weights.to_vec(), 0.0, 0);
        while (taken as f64) < percent / 100.0 * weights.len() as f64 {
            let at = (0..left.len()).max_by(|a, b| left[*a].total_cmp(&left[*b])).unwrap();
            covered += left.swap_remove(at);
            taken += 1;
        }
        covered
    }

    #[test]
    fn coverage_is_that_of_tokens_taken_one_by_one() {
        let head = drawn(90, 2, 8, 3);
        for query in &head.queries {
            let exps: Vec<f64> = (0..query.tokens)
                .map(|t| {
                    let product: f32 = query.vector.iter().zip(head.key(t)).map(|(q, k)| q * k).sum();
                    (f64::from(product) / 8f64.sqrt()).exp()
                })
                .collect();
            let sum: f64 = exps.iter().sum();
            let weights: Vec<f64> = exps.iter().map(|e| e / sum).collect();
            let rest: f64 = weights[4..].iter().sum();
            let without: Vec<f64> = weights[4..].iter().map(|w| w / rest).collect();
            let numbers = of_query(&head, query, 4);
            let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-5, "{a} {b}");
            close(numbers[0], weights[..4].iter().sum());
            close(numbers[1], weights[query.tokens - 64..].iter().sum());
            for (at, percent) in TOP.into_iter().enumerate() {
                close(numbers[BEFORE + at], naive(&weights, percent));
                close(numbers[BEFORE + TOP.len() + at], naive(&without, percent));
            }
        }
    }
}

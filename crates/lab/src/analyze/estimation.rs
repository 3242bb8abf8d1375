//! The error of estimates of attention, by budget (MagicPIG Figs. 3 and 4, Definition 3.1, Theorem 3.3).
//!
//! `o` is the output of exact attention, `ô` the estimate of one draw. Over `R` draws with mean `ō` and `s² = Σ‖ô−ō‖²/(R−1)`:
//!
//! ```text
//! error    = mean of ‖ô−o‖/‖o‖
//! variance = s²/‖o‖²
//! bias²    = (‖ō−o‖² − s²/R)/‖o‖²        without the variance of ō; may be negative if there is no bias
//! ```
//!
//! Exact top-k and sampling by Definition 3.1 have no static tokens. For oracle sampling with static tokens and for methods, the first and
//! last tokens are exact. Budgets are shares of the context: tokens for top-k, draws for sampling. `attended` counts the distinct tokens
//! that are read. The effective sample size is `(Σw)²/Σw²` over an estimate's weights.

use std::collections::BTreeMap;

use anyhow::Result;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

use super::findings::{Drawing, Lines, Panel, Point, Table, Tally, Unit};
use super::head::{Head, Query, norm, softmax};
use super::picked::{Estimate, estimate};
use super::{Analysis, Choices, Document, Findings, Method, Observation, Setup};
use spattn_attention::{Configured, mix_seed};

pub(super) const ANALYSIS: Analysis = Analysis {
    name: "estimation",
    about: "estimation error of top-k, sampling, oracle sampling and MagicPIG by budget: bias², variance, sample size, tails",
    reference: "MagicPIG Figs. 3, 4, Definition 3.1, Theorem 3.3, Table 8",
    methods: &["magicpig:K={8,9,10},L=75", "magicpig:K=9,L=120", "magicpig:K=10,L=150"],
    start: |setup| Ok(Box::new(Estimation::new(setup)?)),
};

/// The divisors of the context length that give the budgets.
const ONE_IN: [usize; 6] = [128, 64, 32, 16, 8, 4];
const TOP_K: &str = "top-k";
const SAMPLING: &str = "sampling";
const ORACLE: &str = "sampling, static exact";
/// The recent window of oracle sampling, the same as the methods'.
const LOCAL: usize = 64;

const NUMBERS: [(&str, Unit); 6] = [
    ("attended", Unit::Share),
    ("error", Unit::Number),
    ("bias²", Unit::Number),
    ("variance", Unit::Number),
    ("sample size", Unit::Number),
    ("largest weight", Unit::Share),
];

struct Estimation {
    /// The methods' names, each with its method for every draw.
    methods: Vec<(String, Vec<Configured>)>,
    draws: usize,
    seed: u64,
    sink: usize,
    /// Numbers by the estimator's place in the order, its name and its budget.
    tallies: BTreeMap<(usize, String, String), Tally>,
}

impl Estimation {
    fn new(setup: &Setup<'_>) -> Result<Self> {
        let Setup { draws, seed, sink, .. } = *setup;
        let of_method = |method: &Method| {
            let all = (0..draws).map(|draw| method.drawn_anew(draw, &setup.loaded.model)).collect::<Result<_>>()?;
            Ok((method.configured.label(), all))
        };
        let methods = setup.methods.iter().map(of_method).collect::<Result<_>>()?;
        Ok(Self { methods, draws, seed, sink, tallies: BTreeMap::new() })
    }

    /// Returns what each method attends in each draw.
    fn choices(&self, document: &Document) -> Result<Vec<(String, Vec<Choices>)>> {
        let of_draw = |(draw, method): (usize, &Configured)| {
            let mut cache = document.cache().with_step_seed(mix_seed(document.seed(), draw as u64));
            Ok(document.choices(method, &mut cache)?)
        };
        let of_method = |(label, draws): &(String, Vec<Configured>)| {
            Ok((label.clone(), draws.iter().enumerate().map(of_draw).collect::<Result<_>>()?))
        };
        self.methods.iter().map(of_method).collect()
    }
}

impl Observation for Estimation {
    fn observe(&mut self, document: &Document) -> Result<()> {
        let choices = self.choices(document)?;
        let (draws, sink, context) = (self.draws, self.sink, document.context());
        let looked = document.each_head(|head| {
            let mut all = Vec::new();
            for query in &head.queries {
                let exact = Exact::new(head, query);
                let place = [document.seed(), self.seed, head.layer as u64, query.head as u64, query.step as u64];
                let mut rng = ChaCha8Rng::seed_from_u64(place.into_iter().fold(0, mix_seed));
                for one_in in ONE_IN {
                    let budget = (query.tokens / one_in).max(1);
                    let mut note = |at: usize, name: &str, estimates: &[Estimate]| {
                        let name = (at, name.to_owned(), format!("1/{one_in}"));
                        all.push((name, head.layer, query.head, exact.quality(head, query, estimates)));
                    };
                    note(0, TOP_K, &[exact.top(budget)]);
                    let sampled: Vec<Estimate> =
                        (0..draws).map(|_| exact.sample(0, query.tokens, budget, &mut rng)).collect();
                    note(1, SAMPLING, &sampled);
                    let recent = context.saturating_sub(LOCAL).max(sink.min(context));
                    let sampled: Vec<Estimate> =
                        (0..draws).map(|_| exact.sample(sink.min(context), recent, budget, &mut rng)).collect();
                    note(2, ORACLE, &sampled);
                }
                for (at, (label, choices)) in choices.iter().enumerate() {
                    let layer = document.at(head.layer);
                    let of_draw = |choices: &Choices| {
                        estimate(&exact.logits, &choices[layer][query.step][head.kv_head], query.in_group)
                    };
                    let estimates: Vec<Estimate> = choices.iter().map(of_draw).collect();
                    let name = (3 + at, label.clone(), "its own".to_owned());
                    all.push((name, head.layer, query.head, exact.quality(head, query, &estimates)));
                }
            }
            all
        })?;
        for (name, layer, head, numbers) in looked.into_iter().flatten() {
            self.tallies.entry(name).or_default().add(&document.task, layer, head, &numbers);
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Findings {
        let Self { tallies, draws, sink, .. } = *self;
        let about = format!(
            "Estimates of the attention output; {draws} random draws; static tokens, if any, are {sink} sink tokens and the last {LOCAL}"
        );
        let mut by_budget = Table::new(
            "estimation",
            &format!("{about}; mean over documents, layers, heads and queries"),
            &["estimator", "budget"],
            &NUMBERS,
        );
        let mut by_task =
            Table::new("estimation_by_task", &format!("{about}; by task"), &["estimator", "budget", "task"], &NUMBERS)
                .detail();
        let mut by_head = Table::new(
            "estimation_by_head",
            &format!("{about}; by layer and head"),
            &["estimator", "budget", "layer", "head"],
            &NUMBERS,
        )
        .detail();
        let mut rows: Vec<(&(usize, String, String), &Tally)> = tallies.iter().collect();
        // Smallest budget first. A method sets its own budget.
        rows.sort_by(|a, b| (a.0.0, denominator(&b.0.2), &a.0.1).cmp(&(b.0.0, denominator(&a.0.2), &b.0.1)));
        for ((_, name, budget), tally) in &rows {
            if let Some(numbers) = tally.overall() {
                by_budget.push([name, budget], numbers);
            }
            for (task, numbers) in tally.tasks() {
                by_task.push([name, budget, &task], numbers);
            }
            for ((layer, head), numbers) in tally.heads() {
                by_head.push([name.clone(), budget.clone(), layer.to_string(), head.to_string()], numbers);
            }
        }
        let drawings = vec![Drawing::Lines(curves(&rows, "estimation"))];
        Findings { tables: vec![by_budget, by_task, by_head], drawings, notes: Vec::new() }
    }
}

fn denominator(budget: &str) -> usize {
    budget.strip_prefix("1/").and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// An estimator's name and budget, with its numbers.
type Estimator<'t> = (&'t (usize, String, String), &'t Tally);

/// Error, bias² and variance against the share attended.
fn curves(rows: &[Estimator<'_>], name: &str) -> Lines {
    let all: Vec<(String, Vec<f64>)> = rows
        .iter()
        .filter_map(|((_, name, _), tally)| Some((name.split(':').next().unwrap_or(name).to_owned(), tally.overall()?)))
        .collect();
    let panel = |title: &str, at: usize| {
        let mut series: Vec<(String, Vec<Point>)> = Vec::new();
        for (name, numbers) in &all {
            // A logarithmic axis cannot show values up to 0: an absent bias, or the variance of an estimator without draws.
            if numbers[at] <= 0.0 {
                continue;
            }
            let point = Point::at(100.0 * numbers[0], numbers[at]);
            match series.iter_mut().find(|(other, _)| other == name) {
                Some((_, points)) => points.push(point),
                None => series.push((name.clone(), vec![point])),
            }
        }
        series.iter_mut().for_each(|(_, points)| points.sort_by(|a, b| a.x.total_cmp(&b.x)));
        Panel { title: title.to_owned(), series }
    };
    Lines {
        name: name.to_owned(),
        title: "Estimates of the attention output by what they attend".to_owned(),
        x_label: "attended tokens (% of context)".to_owned(),
        y_label: "relative to the exact output".to_owned(),
        log_x: true,
        log_y: true,
        panels: vec![panel("error", 1), panel("bias², where above 0", 2), panel("variance", 3)],
    }
}

/// Exact attention of a query.
struct Exact {
    logits: Vec<f64>,
    weights: Vec<f64>,
    /// For each token, the sum of the weights before it; the last entry is the total.
    sums: Vec<f64>,
    /// The tokens by descending weight.
    order: Vec<usize>,
    output: Vec<f64>,
}

impl Exact {
    fn new(head: &Head, query: &Query) -> Self {
        let logits = head.logits(query);
        let weights = softmax(&logits);
        let mut sums = vec![0.0];
        weights.iter().for_each(|w| sums.push(sums[sums.len() - 1] + w));
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        Self { output: head.output(&weights), logits, weights, sums, order }
    }

    /// Returns the softmax over the `count` tokens with the highest weights.
    fn top(&self, count: usize) -> Estimate {
        let top = &self.order[..count.min(self.order.len())];
        let sum: f64 = top.iter().map(|token| self.weights[*token]).sum();
        Estimate { weights: top.iter().map(|token| (*token, self.weights[*token] / sum)).collect(), rest: None }
    }

    /// Draws tokens in `from..to` by their weights, to stand for the whole range. Tokens outside it are exact.
    fn sample(&self, from: usize, to: usize, draws: usize, rng: &mut ChaCha8Rng) -> Estimate {
        let (first, mass) = (self.sums[from], self.sums[to] - self.sums[from]);
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        for _ in 0..if mass > 0.0 { draws } else { 0 } {
            let at = first + mass * (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            let token = self.sums[..=to].partition_point(|sum| *sum <= at).clamp(from + 1, to) - 1;
            *counts.entry(token).or_default() += 1;
        }
        let exact = (0..from).chain(to..self.weights.len()).map(|token| (token, self.weights[token]));
        let drawn = counts.into_iter().map(|(token, count)| (token, mass * count as f64 / draws as f64));
        Estimate { weights: exact.chain(drawn).collect(), rest: None }
    }

    /// Returns the [`NUMBERS`] of some estimates, one for each draw.
    fn quality(&self, head: &Head, query: &Query, estimates: &[Estimate]) -> Vec<f64> {
        let outputs: Vec<Vec<f64>> = estimates.iter().map(|estimate| estimate.output(head)).collect();
        let [error, bias, variance] = decompose(&self.output, &outputs);
        let mean = |of: &dyn Fn(&Estimate) -> f64| estimates.iter().map(of).sum::<f64>() / estimates.len() as f64;
        let attended = mean(&|estimate| estimate.weights.len() as f64 / query.tokens as f64);
        vec![attended, error, bias, variance, mean(&Estimate::effective), mean(&Estimate::largest)]
    }
}

/// Returns the mean error, bias² and variance of draws, relative to the exact output.
fn decompose(exact: &[f64], draws: &[Vec<f64>]) -> [f64; 3] {
    let (n, size) = (draws.len() as f64, norm(exact).max(f64::MIN_POSITIVE));
    let mean: Vec<f64> = (0..exact.len()).map(|c| draws.iter().map(|draw| draw[c]).sum::<f64>() / n).collect();
    let squared = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
    let error = draws.iter().map(|draw| squared(draw, exact).sqrt()).sum::<f64>() / n;
    let around: f64 = draws.iter().map(|draw| squared(draw, &mean)).sum();
    let variance = if draws.len() > 1 { around / (n - 1.0) } else { 0.0 };
    let bias = squared(&mean, exact) - variance / n;
    [error / size, bias / (size * size), variance / (size * size)]
}

#[cfg(test)]
mod tests {
    use super::super::head::testing::drawn;
    use super::*;

    #[test]
    fn draws_are_taken_apart_into_bias_and_variance() {
        // Both draws are one to the right of (3, 4); one is one above it, the other one below.
        let draws = [vec![4.0, 5.0], vec![4.0, 3.0]];
        let [error, bias, variance] = decompose(&[3.0, 4.0], &draws);
        assert!((error - 2f64.sqrt() / 5.0).abs() < 1e-12);
        // ō = (4, 4): 1 from o; s² = 2; bias² = 1 − 2/2 = 0.
        assert!((variance - 2.0 / 25.0).abs() < 1e-12 && bias.abs() < 1e-12, "{bias} {variance}");
        assert_eq!(decompose(&[3.0, 4.0], &[vec![3.0, 5.0]]), [0.2, 0.04, 0.0]);
    }

    #[test]
    fn sampling_has_no_bias_and_the_variance_of_its_law() {
        const DRAWS: usize = 4000;
        let (head, budget) = (drawn(60, 1, 4, 8), 7);
        let query = &head.queries[0];
        let exact = Exact::new(&head, query);
        let mut rng = ChaCha8Rng::seed_from_u64(4);
        let size = norm(&exact.output).powi(2);
        for (from, to) in [(0, 61), (4, 40)] {
            let estimates: Vec<Estimate> = (0..DRAWS).map(|_| exact.sample(from, to, budget, &mut rng)).collect();
            let numbers = exact.quality(&head, query, &estimates);
            // Var Σ f/B v = (Σ p‖v‖² − ‖Σ p v‖²)/B over the sampled range, times the square of its mass.
            let mass: f64 = exact.weights[from..to].iter().sum();
            let p = |token: usize| exact.weights[token] / mass;
            let square = |token: usize| head.value(token).iter().map(|v| f64::from(v * v)).sum::<f64>();
            let mean = head.weighted((from..to).map(|token| (token, p(token))));
            let law =
                mass * mass * ((from..to).map(|t| p(t) * square(t)).sum::<f64>() - norm(&mean).powi(2)) / budget as f64;
            let (variance, bias) = (numbers[3] * size, numbers[2] * size);
            assert!((variance / law - 1.0).abs() < 0.08, "{variance} {law}");
            assert!(bias.abs() < 0.01 * law, "{bias} {law}");
            // The expected number of distinct tokens, Σ 1 − (1 − p)^B, and the exact ones.
            let distinct: f64 = (from..to).map(|t| 1.0 - (1.0 - p(t)).powi(budget as i32)).sum();
            let attended = (distinct + (61 - (to - from)) as f64) / 61.0;
            assert!((numbers[0] / attended - 1.0).abs() < 0.02, "{} {attended}", numbers[0]);
        }
    }

    #[test]
    fn top_k_is_the_softmax_of_the_highest() {
        let head = drawn(30, 1, 4, 2);
        let query = &head.queries[1];
        let exact = Exact::new(&head, query);
        let top = exact.top(5);
        let exps: Vec<f64> = head.logits(query).iter().map(|x| x.exp()).collect();
        let is_top = |t: usize| exps.iter().filter(|e| **e > exps[t]).count() < 5;
        let sum: f64 = (0..31).filter(|t| is_top(*t)).map(|t| exps[t]).sum();
        assert_eq!(top.weights.len(), 5);
        for (token, weight) in &top.weights {
            assert!(is_top(*token) && (weight - exps[*token] / sum).abs() < 1e-12);
        }
        assert!((exact.top(31).output(&head)[0] - exact.output[0]).abs() < 1e-12);
        let even = Estimate { weights: vec![(0, 0.25); 4], rest: None };
        assert_eq!((even.effective(), even.largest()), (4.0, 0.25));
    }
}

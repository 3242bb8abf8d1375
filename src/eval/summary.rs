//! From records to summary rows: grouping, order, means, and differences to `full`.
//!
//! The result does not depend on the order of the records, to the last bit: everything is summed in the order
//! of the examples.

use super::record::{Choice, Fidelity, FidelitySpread, Likelihood, Record, Spread, SummaryRow};
use super::stats::ratios::{self, Window};
use super::stats::{self, Estimate, Sample};
use crate::tasks::likelihood::Measure;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// The method that all others are compared with.
pub const REFERENCE: &str = "full";

/// The order of RULER's tasks, as its paper lists them; other tasks follow in natural order.
const TASK_ORDER: [&str; 13] = [
    "niah_single_1",
    "niah_single_2",
    "niah_single_3",
    "niah_multikey_1",
    "niah_multikey_2",
    "niah_multikey_3",
    "niah_multivalue",
    "niah_multiquery",
    "vt",
    "cwe",
    "fwe",
    "qa_1",
    "qa_2",
];

/// One row for each (model, task, length, method, params, protocol).
///
/// Rows are sorted by model, protocol, task, length, and then method: `full` first, then as in `order` (pairs of
/// method and params, as the user gave them), then in natural order of name and params. Where a sample is
/// there twice, the record with the lesser key counts. Differences are to `full` of the same model,
/// protocol, task and length, on the samples that both have; for `full` itself they are 0.
pub fn summarize(records: &[Record], order: &[(String, String)]) -> Vec<SummaryRow> {
    let groups = group(records, order);
    groups.iter().map(|cell| row(cell, cell.reference(&groups))).collect()
}

/// The records of one row, one a sample, in the order of the samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell<'a> {
    /// The records, sorted by seed and sample; never empty.
    pub records: Vec<&'a Record>,
    /// How many further records repeat a sample, and are left out.
    pub repeated: usize,
}

impl<'a> Cell<'a> {
    /// Any record of the cell, for the fields that all share.
    pub fn head(&self) -> &'a Record {
        self.records[0]
    }

    /// The context of each record.
    ///
    /// The depths of a sample share one, and so do the questions of a row. An example of a file is the same under every
    /// seed, and then seeds tell no contexts apart.
    pub fn contexts(&self) -> Vec<Context> {
        let (of_seed, depths) = (!self.repeats_under_seeds(), self.depths_of_sample());
        let first = |r: &Record| r.context.unwrap_or(r.sample - r.sample % depths);
        self.records.iter().map(|r| (of_seed.then_some(r.seed), first(r))).collect()
    }

    /// Whether several seeds asked the same.
    fn repeats_under_seeds(&self) -> bool {
        let asked = |r: &'a Record| (&r.question, &r.references, r.prompt_tokens);
        let mut by_sample = BTreeMap::new();
        let mut several = false;
        for r in &self.records {
            match by_sample.insert(r.sample, asked(r)) {
                Some(before) if before != asked(r) => return false,
                before => several |= before.is_some(),
            }
        }
        several
    }

    /// How many examples make up a sample, told by their depths: for records that do not name their context. 1 where
    /// depths do not come in turns.
    fn depths_of_sample(&self) -> usize {
        // Percentages are as good as their bits: they are not negative.
        let depths: BTreeSet<Option<u64>> = self.records.iter().map(|r| r.depth.map(f64::to_bits)).collect();
        let count = depths.len().max(1);
        let mut of_turn = BTreeMap::new();
        let in_turns = |r: &&Record| *of_turn.entry(r.sample % count).or_insert(r.depth) == r.depth;
        if depths.contains(&None) || !self.records.iter().all(in_turns) { 1 } else { count }
    }

    /// A number of every record, with the contexts.
    pub fn sample(&self, of: impl Fn(&Record) -> f64) -> Sample {
        Sample::new(self.contexts().into_iter().zip(self.records.iter().map(|r| of(r))))
    }

    /// The difference of a number to another cell's, on the examples that both have.
    pub fn differences(&self, other: &Cell, of: impl Fn(&Record) -> f64) -> Sample {
        Sample::new(self.pairs(other).into_iter().map(|(context, ours, theirs)| (context, of(ours) - of(theirs))))
    }

    /// The records of the examples that both have.
    fn pairs<'b>(&self, other: &Cell<'b>) -> Vec<(Context, &'a Record, &'b Record)> {
        let theirs: BTreeMap<_, _> = other.records.iter().map(|r| ((r.seed, r.sample), *r)).collect();
        let pair =
            |(context, ours): (Context, &&'a Record)| Some((context, *ours, *theirs.get(&(ours.seed, ours.sample))?));
        self.contexts().into_iter().zip(&self.records).filter_map(pair).collect()
    }

    /// What the scores are.
    pub fn measure(&self) -> Measure {
        self.head().measure
    }

    /// The score over all examples: in percent, or as perplexity.
    pub fn score(&self) -> f64 {
        match self.measure() {
            Measure::Score => 100.0 * self.mean(|r| r.score),
            Measure::Perplexity => perplexity(&self.likelihoods(), |l| l.tokens),
        }
    }

    /// The sums of the records that have them.
    fn likelihoods(&self) -> Vec<&'a Likelihood> {
        self.records.iter().filter_map(|r| r.likelihood.as_ref()).collect()
    }

    /// The cell of `full` on the same model, protocol, task and length.
    pub fn reference<'b>(&self, cells: &'b [Cell<'a>]) -> Option<&'b Cell<'a>> {
        cells.iter().find(|other| other.head().method == REFERENCE && place(other.head()) == place(self.head()))
    }

    /// Mean of a number over the records.
    pub fn mean(&self, of: impl Fn(&Record) -> f64) -> f64 {
        stats::mean(&self.records.iter().map(|r| of(r)).collect::<Vec<_>>())
    }
}

/// What tells contexts apart: the seed that it was made under, if another makes another, and its first example.
pub type Context = (Option<u64>, usize);

/// A number that is greater for the better and can be averaged: the score, or the mean log-likelihood of a token.
pub fn merit(r: &Record) -> f64 {
    match (r.measure, &r.likelihood) {
        (Measure::Perplexity, Some(l)) => -l.nll / l.tokens.max(1) as f64,
        (Measure::Perplexity, None) => -r.score.ln(),
        (Measure::Score, _) => r.score,
    }
}

/// The fields that rows to compare with each other share.
pub fn place(r: &Record) -> (&str, &str, &str, usize) {
    (&r.model, &r.protocol, &r.task, r.length)
}

/// The records by row, in the order of the summary.
pub fn group<'a>(records: &'a [Record], order: &[(String, String)]) -> Vec<Cell<'a>> {
    let mut groups: BTreeMap<_, Vec<&Record>> = BTreeMap::new();
    for r in records {
        groups.entry((place(r), &r.method, &r.params)).or_default().push(r);
    }
    let mut cells: Vec<Cell> = groups.into_values().map(cell).collect();
    cells.sort_by(|a, b| compare(a.head(), b.head(), order));
    cells
}

/// Sorts by example and keeps one record of each.
fn cell(mut records: Vec<&Record>) -> Cell<'_> {
    // Equal keys with different contents are no run's work; comparing all of it keeps the choice defined.
    let content = |r: &Record| serde_json::to_string(r).unwrap_or_default();
    records.sort_by(|a, b| {
        (a.seed, a.sample, &a.key).cmp(&(b.seed, b.sample, &b.key)).then_with(|| content(a).cmp(&content(b)))
    });
    let all = records.len();
    records.dedup_by_key(|r| (r.seed, r.sample));
    Cell { repeated: all - records.len(), records }
}

fn row(cell: &Cell, reference: Option<&Cell>) -> SummaryRow {
    let (score, delta) = (score(cell), reference.and_then(|full| delta(cell, full)));
    let Record { model, task, length, method, params, protocol, .. } = cell.head();
    let (cost1, cost2) = (cell.mean(|r| r.cost1), cell.mean(|r| r.cost2));
    let of_fidelity = |of: fn(&FidelitySpread) -> Spread| {
        MeanSpread::new(cell, |r| Some(of(r.fidelity.as_ref()?.spread.as_ref()?)))
    };
    let density = MeanSpread::new(cell, |r| r.density_spread);
    let (error, recall) = (of_fidelity(|f| f.output_error), of_fidelity(|f| f.recall));
    let dropped = of_fidelity(|f| f.dropped_mass);
    let likelihoods = cell.likelihoods();
    let over_text = |of: fn(&[&Likelihood]) -> f64| (!likelihoods.is_empty()).then(|| of(&likelihoods));
    let right = |of: fn(&Choice) -> usize| {
        mean_of_known(cell, |r| r.choice.as_ref().map(|c| 100.0 * f64::from(u8::from(of(c) == c.right))))
    };
    SummaryRow {
        model: model.clone(),
        task: task.clone(),
        length: *length,
        method: method.clone(),
        params: params.clone(),
        protocol: protocol.clone(),
        n: cell.records.len(),
        score: score.mean,
        ci_low: score.low(),
        ci_high: score.high(),
        delta_full: delta.map(|d| d.mean),
        delta_low: delta.and_then(|d| d.low()),
        delta_high: delta.and_then(|d| d.high()),
        density: cell.mean(|r| r.density),
        cost1,
        cost2,
        cost_total: cost1 + cost2,
        aux_bits: cell.mean(|r| r.aux_bits),
        kv_bytes_per_token: cell.mean(|r| r.kv_bytes_per_token),
        output_error: fidelity(cell, |f| Some(f.mean_error())),
        recall: fidelity(cell, |f| Some(f.mean_recall())),
        prefill_s: cell.mean(|r| r.prefill_s),
        decode_ms_per_token: ms_per_step(cell),
        kv_bytes_held: bytes_held(cell),
        density_target: cell.head().density_target(),
        density_sparse_layers: cell.mean(|r| r.density_sparse_layers),
        density_min: density.min,
        density_median: density.median,
        density_max: density.max,
        output_error_min: error.min,
        output_error_median: error.median,
        output_error_max: error.max,
        recall_min: recall.min,
        recall_median: recall.median,
        recall_max: recall.max,
        dropped_mass: fidelity(cell, Fidelity::mean_dropped_mass),
        dropped_mass_min: dropped.min,
        dropped_mass_median: dropped.median,
        dropped_mass_max: dropped.max,
        measure: cell.measure(),
        word_perplexity: over_text(|l| perplexity(l, |l| l.words)),
        bits_per_byte: over_text(|l| nll(l) / std::f64::consts::LN_2 / total(l, |l| l.bytes)),
        kl_mean: over_text(|l| l.iter().map(|l| l.kl_sum).sum::<f64>() / total(l, |l| l.tokens)),
        kl_p99: over_text(kl_p99),
        same_top: over_text(|l| 100.0 * total(l, |l| l.same_top) / total(l, |l| l.tokens)),
        acc: right(|c| c.most_likely),
        acc_norm: right(|c| c.most_likely_by_length),
        contexts: cell.sample(|r| r.score).contexts(),
        detectable: reference.and_then(|full| detectable(cell, full)),
    }
}

/// The score over all examples.
fn score(cell: &Cell) -> Estimate {
    let found = match cell.measure() {
        Measure::Perplexity => perplexity_interval(cell),
        Measure::Score => stats::score(&cell.sample(|r| r.score)).map(|score| score.scaled(100.0)),
    };
    found.unwrap_or(Estimate { mean: 0.0, ends: None })
}

/// The difference of the score to the reference's, over the examples that both have.
fn delta(cell: &Cell, full: &Cell) -> Option<Estimate> {
    let delta = match cell.measure() {
        Measure::Perplexity => perplexity_difference(cell, full),
        Measure::Score => stats::difference(&cell.differences(full, |r| r.score)).map(|delta| delta.scaled(100.0)),
    }?;
    // What is compared with itself differs by nothing, and not by chance.
    Some(if cell.head().method == REFERENCE { Estimate { ends: None, ..delta } } else { delta })
}

/// The difference in points that would be found.
fn detectable(cell: &Cell, full: &Cell) -> Option<f64> {
    if cell.head().method == REFERENCE || cell.measure() != Measure::Score {
        return None;
    }
    stats::least_detectable(&cell.differences(full, |r| r.score)).map(|difference| 100.0 * difference)
}

// ---- perplexity ----

fn nll(likelihoods: &[&Likelihood]) -> f64 {
    likelihoods.iter().map(|l| l.nll).sum()
}

/// Sum of a count, at least 1.
fn total(likelihoods: &[&Likelihood], count: fn(&Likelihood) -> usize) -> f64 {
    likelihoods.iter().map(|l| count(l)).sum::<usize>().max(1) as f64
}

fn perplexity(likelihoods: &[&Likelihood], units: fn(&Likelihood) -> usize) -> f64 {
    ratios::perplexity(&likelihoods.iter().map(|l| Window { nats: l.nll, units: units(l) as f64 }).collect::<Vec<_>>())
}

/// What a record says of its window, in tokens.
fn window(r: &Record) -> Option<Window> {
    r.likelihood.as_ref().map(|l| Window { nats: l.nll, units: l.tokens as f64 })
}

fn perplexity_interval(cell: &Cell) -> Option<Estimate> {
    let windows = cell.contexts().into_iter().zip(&cell.records).filter_map(|(context, r)| Some((context, window(r)?)));
    ratios::perplexity_interval(&windows.collect::<Vec<_>>())
}

fn perplexity_difference(cell: &Cell, full: &Cell) -> Option<Estimate> {
    let pairs = cell.pairs(full).into_iter();
    let windows = pairs.filter_map(|(context, ours, dense)| Some((context, window(ours)?, window(dense)?)));
    ratios::perplexity_difference(&windows.collect::<Vec<_>>())
}

/// 99th percentile over all scored tokens.
fn kl_p99(likelihoods: &[&Likelihood]) -> f64 {
    // Tokens whose divergence is not listed have none.
    let unlisted = |l: &Likelihood| l.tokens.saturating_sub(l.kl.len());
    let mut all: Vec<f64> = likelihoods.iter().flat_map(|l| l.kl.iter().copied()).collect();
    all.extend(std::iter::repeat_n(0.0, likelihoods.iter().map(|l| unlisted(l)).sum()));
    if all.is_empty() {
        return 0.0;
    }
    all.sort_by(f64::total_cmp);
    stats::quantile(&all, 0.99)
}

/// Mean over the records that have it.
fn mean_of_known(cell: &Cell, of: impl Fn(&Record) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = cell.records.iter().filter_map(|r| of(r)).collect();
    (!values.is_empty()).then(|| stats::mean(&values))
}

/// Mean over the records that have it.
fn bytes_held(cell: &Cell) -> Option<f64> {
    mean_of_known(cell, |r| r.kv_bytes_held.map(|bytes| bytes as f64))
}

fn fidelity(cell: &Cell, of: impl Fn(&Fidelity) -> Option<f64>) -> Option<f64> {
    mean_of_known(cell, |r| of(r.fidelity.as_ref()?))
}

/// Means over the records that have a spread.
struct MeanSpread {
    min: Option<f64>,
    median: Option<f64>,
    max: Option<f64>,
}

impl MeanSpread {
    fn new(cell: &Cell, of: impl Fn(&Record) -> Option<Spread>) -> Self {
        let mean = |part: fn(Spread) -> f64| mean_of_known(cell, |r| of(r).map(part));
        Self { min: mean(|s| s.min), median: mean(|s| s.median), max: mean(|s| s.max) }
    }
}

/// Milliseconds of all steps over their number, so that long generations count for what they are.
fn ms_per_step(cell: &Cell) -> f64 {
    let steps: usize = cell.records.iter().map(|r| r.steps).sum();
    let seconds: f64 = cell.records.iter().map(|r| r.decode_s).sum();
    1000.0 * seconds / steps.max(1) as f64
}

// ---- order ----

fn compare(a: &Record, b: &Record, order: &[(String, String)]) -> Ordering {
    let method = |r: &Record| {
        let given = order.iter().position(|(method, params)| *method == r.method && *params == r.params);
        (r.method != REFERENCE, given.unwrap_or(usize::MAX))
    };
    natural(&a.model, &b.model)
        .then_with(|| natural(&a.protocol, &b.protocol))
        .then_with(|| compare_tasks(&a.task, &b.task))
        .then_with(|| a.length.cmp(&b.length))
        .then_with(|| method(a).cmp(&method(b)))
        .then_with(|| natural(&a.method, &b.method))
        .then_with(|| natural(&a.params, &b.params))
}

/// Orders task names by family, then RULER's tasks in their own order before others in natural order.
pub fn compare_tasks(a: &str, b: &str) -> Ordering {
    let split = |task: &str| task.rsplit_once('/').map_or((String::new(), task.to_owned()), owned);
    let rank = |name: &str| TASK_ORDER.iter().position(|task| *task == name).unwrap_or(TASK_ORDER.len());
    let ((family_a, a), (family_b, b)) = (split(a), split(b));
    natural(&family_a, &family_b).then_with(|| rank(&a).cmp(&rank(&b))).then_with(|| natural(&a, &b))
}

fn owned((a, b): (&str, &str)) -> (String, String) {
    (a.to_owned(), b.to_owned())
}

/// Orders text with the numbers in it by value: `k=8` before `k=16`, `p=0.5` before `p=0.95`.
pub fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    loop {
        match (piece(&mut left), piece(&mut right)) {
            (None, None) => return a.cmp(b),
            (None, _) => return Ordering::Less,
            (_, None) => return Ordering::Greater,
            (Some(l), Some(r)) => match compare_pieces(l, r) {
                Ordering::Equal => {}
                unequal => return unequal,
            },
        }
    }
}

fn compare_pieces(a: &str, b: &str) -> Ordering {
    match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => a.total_cmp(&b),
        _ => a.cmp(b),
    }
}

/// Takes a number (digits with at most one point between them) or the text before the next off the front.
fn piece<'a>(text: &mut &'a str) -> Option<&'a str> {
    let bytes = text.as_bytes();
    let is_number = bytes.first()?.is_ascii_digit();
    let mut end = bytes.iter().position(|b| b.is_ascii_digit() != is_number).unwrap_or(bytes.len());
    let is_point = is_number && bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit);
    if is_point {
        end += 1 + bytes[end + 1..].iter().position(|b| !b.is_ascii_digit()).unwrap_or(bytes.len() - end - 1);
    }
    let (front, rest) = text.split_at(end);
    *text = rest;
    Some(front)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::record::tests::record;

    #[test]
    fn numbers_in_text_sort_by_value() {
        let mut params = ["k=16", "p=0.95", "k=8", "p=0.5", "k=8,page=16", "", "K=10,L=150", "K=10,L=75"];
        params.sort_by(|a, b| natural(a, b));
        assert_eq!(params, ["", "K=10,L=75", "K=10,L=150", "k=8", "k=8,page=16", "k=16", "p=0.5", "p=0.95"]);
    }

    #[test]
    fn tasks_sort_as_their_benchmark_lists_them() {
        let mut tasks = ["ruler/cwe", "ruler/qa_1", "longbench/qasper", "ruler/vt", "ruler/niah_multikey_2", "mcq/b"];
        tasks.sort_by(|a, b| compare_tasks(a, b));
        assert_eq!(
            tasks,
            ["longbench/qasper", "mcq/b", "ruler/niah_multikey_2", "ruler/vt", "ruler/cwe", "ruler/qa_1"]
        );
    }

    fn method(name: &str, params: &str, sample: usize, score: f64) -> Record {
        Record {
            params: params.into(),
            key: format!("{name}{params}{sample}"),
            ..record("ruler/vt", name, sample, score)
        }
    }

    #[test]
    fn full_comes_first_then_the_given_order_then_the_rest() {
        let records =
            [("topk", "k=64"), ("topk", "k=8"), ("quest", ""), ("full", "")].map(|(m, p)| method(m, p, 0, 1.0));
        let order = [("quest".to_owned(), String::new())];
        let rows = summarize(&records, &order);
        let listed: Vec<_> = rows.iter().map(|r| format!("{}{}", r.method, r.params)).collect();
        assert_eq!(listed, ["full", "quest", "topkk=8", "topkk=64"]);
    }

    #[test]
    fn differences_are_taken_on_common_samples() {
        let mut records: Vec<_> = (0..4).map(|i| method("full", "", i, 1.0)).collect();
        records.extend((2..6).map(|i| method("topk", "", i, if i < 4 { 0.5 } else { 1.0 })));
        let rows = summarize(&records, &[]);
        assert_eq!((rows[1].n, rows[1].score, rows[1].delta_full), (4, 75.0, Some(-50.0)));
        assert_eq!(rows[0].delta_full, Some(0.0));
        assert_eq!(summarize(&records[4..], &[])[0].delta_full, None);
    }

    #[test]
    fn other_lengths_and_protocols_are_other_rows() {
        let mut records = vec![method("full", "", 0, 1.0), method("topk", "", 0, 0.0)];
        records.push(Record { protocol: "decode".into(), ..method("topk", "", 0, 1.0) });
        records.push(Record { length: 512, ..method("topk", "", 0, 1.0) });
        let deltas: Vec<_> =
            summarize(&records, &[]).iter().map(|r| (r.protocol.clone(), r.length, r.delta_full)).collect();
        let at = |p: &str, length, delta| (p.to_owned(), length, delta);
        assert_eq!(
            deltas,
            [
                at("decode", 4096, None),
                at("question", 512, None),
                at("question", 4096, Some(0.0)),
                at("question", 4096, Some(-100.0))
            ]
        );
    }

    #[test]
    fn perplexity_is_of_the_sums_and_its_difference_is_paired() {
        use crate::eval::record::tests::perplexity;
        let mut records = vec![perplexity("full", 0, 1.0), perplexity("full", 1, 3.0)];
        records.extend([perplexity("topk", 0, 1.5), perplexity("topk", 1, 3.5), perplexity("topk", 2, 9.0)]);
        let long = records[1].likelihood.as_mut().unwrap();
        (long.nll, long.tokens, long.kl) = (900.0, 300, vec![0.5; 5]);
        let rows = summarize(&records, &[]);
        assert!((rows[0].score - 2.5f64.exp()).abs() < 1e-9, "1,000 nats over 400 tokens: {}", rows[0].score);
        // The long window lies 0.375 nats above what all tokens have, the short one as much below; Student's t for two.
        let half: f64 = 2.0 * 0.375 * 12.706_204_736_174_694;
        assert!(close(rows[0].ci_low, (2.5 - half).exp()) && close(rows[0].ci_high, (2.5 + half).exp()), "{rows:?}");
        let delta = rows[1].delta_full.unwrap();
        assert!((delta - (2.5f64.exp() - 2.5f64.exp())).abs() < 1e-9, "common windows only: {delta}");
        assert!(close(rows[0].word_perplexity, (1000.0f64 / 100.0).exp()));
        assert!(close(rows[0].bits_per_byte, 1000.0 / 800.0 / std::f64::consts::LN_2));
        assert!(close(rows[0].kl_mean, 2.0 / 400.0) && close(rows[0].same_top, 45.0));
        assert!(close(rows[0].kl_p99, 0.5), "the greatest 5 of 400: {:?}", rows[0].kl_p99);
    }

    fn close(value: Option<f64>, expected: f64) -> bool {
        value.is_some_and(|value| (value - expected).abs() < 1e-9 * expected)
    }

    #[test]
    fn one_example_has_no_interval_and_what_all_get_right_is_not_certain() {
        let rows = |n: usize| -> Vec<SummaryRow> {
            let records: Vec<Record> =
                (0..n).flat_map(|i| [method("full", "", i, 1.0), method("topk", "", i, 1.0)]).collect();
            summarize(&records, &[])
        };
        let one = rows(1);
        assert_eq!((one[1].score, one[1].ci_low, one[1].ci_high), (100.0, None, None));
        assert_eq!((one[1].delta_full, one[1].delta_low, one[1].detectable), (Some(0.0), None, None));
        let twenty = rows(20);
        assert!(close(twenty[1].ci_low, 83.156_652_901_691_46) && twenty[1].ci_high == Some(100.0), "{:?}", twenty[1]);
        assert!(close(twenty[1].delta_high, 16.112_515_805_282_83), "{:?}", twenty[1]);
        assert_eq!((twenty[0].delta_full, twenty[0].delta_low, twenty[0].detectable), (Some(0.0), None, None));
    }

    /// Five depths of each of four samples; `right` of a sample's number.
    fn needles(seed: u64, right: impl Fn(usize) -> bool) -> Vec<Record> {
        let make = |i: usize| Record {
            seed,
            key: format!("{seed} {i}"),
            depth: Some(25.0 * (i % 5) as f64),
            references: vec![format!("{seed} {}", i / 5)],
            ..record("needle/number", "topk", i, f64::from(u8::from(right(i / 5))))
        };
        (0..20).map(make).collect()
    }

    #[test]
    fn depths_of_a_sample_are_one_context_in_old_records_as_in_new() {
        let old = needles(1, |sample| sample % 2 == 0);
        let new: Vec<Record> = old.iter().map(|r| Record { context: Some(r.sample / 5 * 5), ..r.clone() }).collect();
        let apart: Vec<Record> = old.iter().map(|r| Record { depth: None, ..r.clone() }).collect();
        let row = |records: &[Record]| summarize(records, &[]).remove(0);
        assert_eq!((row(&old).n, row(&old).contexts, row(&new).contexts, row(&apart).contexts), (20, 4, 4, 20));
        assert_eq!(row(&old), row(&new));
        assert!(row(&old).ci_low < row(&apart).ci_low && row(&old).ci_high > row(&apart).ci_high);
        let mut reversed = old.clone();
        reversed.reverse();
        assert_eq!(row(&reversed), row(&old));
        // A depth out of turn: no telling what belongs together.
        let mut odd = old.clone();
        odd[7].depth = Some(25.0);
        assert_eq!(row(&odd).contexts, 20);
        let one: Vec<Record> = old[..5].to_vec();
        assert_eq!((row(&one).n, row(&one).ci_low), (5, None));
    }

    #[test]
    fn an_example_of_a_file_is_the_same_under_every_seed() {
        let generated = [needles(1, |_| true), needles(2, |_| true)].concat();
        assert_eq!(summarize(&generated, &[])[0].contexts, 8);
        let asked: Vec<Record> = generated
            .iter()
            .map(|r| Record { references: vec![r.sample.to_string()], task: "jsonl:rows".into(), ..r.clone() })
            .collect();
        let row = &summarize(&asked, &[])[0];
        assert_eq!((row.n, row.contexts), (40, 4));
    }

    #[test]
    fn a_repeated_sample_counts_once() {
        let mut other = method("full", "", 0, 0.0);
        other.key = "0 comes before".into();
        let rows = summarize(&[method("full", "", 0, 1.0), other], &[]);
        assert_eq!((rows[0].n, rows[0].score), (1, 0.0));
    }

    #[test]
    fn time_a_step_weighs_long_generations() {
        let short = Record { decode_s: 1.0, steps: 1, ..method("full", "", 0, 1.0) };
        let long = Record { decode_s: 1.0, steps: 9, ..method("full", "", 1, 1.0) };
        assert_eq!(summarize(&[short, long], &[])[0].decode_ms_per_token, 200.0);
    }

    #[test]
    fn no_records_make_no_rows() {
        assert!(summarize(&[], &[]).is_empty());
    }
}

//! Cells: the records of a summary's row, one a sample, grouped and in order.

use super::order::compare;
use super::record::{Likelihood, REFERENCE, Record};
use super::stats::ratios::{self, Window};
use super::stats::{self, Sample};
use crate::tasks::likelihood::Measure;
use std::collections::{BTreeMap, BTreeSet};

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

    /// The seeds of the records.
    pub fn seeds(&self) -> BTreeSet<u64> {
        self.records.iter().map(|r| r.seed).collect()
    }

    /// The part of the cell that is of one seed; `None` if there is none.
    pub fn of_seed(&self, seed: u64) -> Option<Self> {
        let records: Vec<&Record> = self.records.iter().copied().filter(|r| r.seed == seed).collect();
        (!records.is_empty()).then_some(Self { records, repeated: 0 })
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
    pub(super) fn pairs<'b>(&self, other: &Cell<'b>) -> Vec<(Context, &'a Record, &'b Record)> {
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
    pub(super) fn likelihoods(&self) -> Vec<&'a Likelihood> {
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

/// Exponential of all nats over all units of some sums.
pub(super) fn perplexity(likelihoods: &[&Likelihood], units: fn(&Likelihood) -> usize) -> f64 {
    ratios::perplexity(&likelihoods.iter().map(|l| Window { nats: l.nll, units: units(l) as f64 }).collect::<Vec<_>>())
}

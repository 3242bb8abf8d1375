//! Cells: the records of one summary row, one for each sample, grouped and sorted.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::OnceLock;

use rayon::prelude::*;

use crate::records::order::{MethodOrder, compare};
use crate::records::record::Record;
use crate::records::text_scores::Likelihood;
use spattn_stats::Sample;
use spattn_stats::ratios::{self, Window};
use spattn_tasks::likelihood::Measure;

/// The records of one row, one for each sample, in order.
#[derive(Debug, Clone)]
pub struct SummaryCell<'a> {
    /// The records, sorted by seed and sample; never empty.
    pub records: Vec<&'a Record>,
    /// The number of further records that repeat a sample. They are left out.
    pub repeated: usize,
    /// The context of each record, computed on first use.
    contexts: OnceLock<Vec<Context>>,
}

impl PartialEq for SummaryCell<'_> {
    /// Ignores whether contexts have been computed.
    fn eq(&self, other: &Self) -> bool {
        (&self.records, self.repeated) == (&other.records, other.repeated)
    }
}

impl<'a> SummaryCell<'a> {
    fn of(records: Vec<&'a Record>, repeated: usize) -> Self {
        Self { records, repeated, contexts: OnceLock::new() }
    }

    /// The first record, for fields that all records of the cell share.
    pub fn head(&self) -> &'a Record {
        self.records[0]
    }

    /// The seeds of the records.
    pub fn seeds(&self) -> BTreeSet<u64> {
        self.records.iter().map(|r| r.seed).collect()
    }

    /// The part of the cell with one seed; `None` if it has no records of the seed.
    pub fn of_seed(&self, seed: u64) -> Option<Self> {
        let records: Vec<&Record> = self.records.iter().copied().filter(|r| r.seed == seed).collect();
        (!records.is_empty()).then(|| Self::of(records, 0))
    }

    /// The context of each record.
    ///
    /// The depths of a sample share a context, and so do the questions of a row. Examples from a file are the same under every seed, so
    /// seeds do not distinguish their contexts.
    pub fn contexts(&self) -> &[Context] {
        self.contexts.get_or_init(|| {
            let of_seed = !self.repeats_under_seeds();
            let depths = if self.records.iter().all(|r| r.context.is_some()) { 1 } else { self.depths_of_sample() };
            let first = |r: &Record| r.context.unwrap_or(r.sample - r.sample % depths);
            self.records.iter().map(|r| (of_seed.then_some(r.seed), first(r))).collect()
        })
    }

    /// Whether the records of several seeds have the same questions.
    fn repeats_under_seeds(&self) -> bool {
        let seed = self.head().seed;
        if self.records.iter().all(|r| r.seed == seed) {
            return false;
        }
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

    /// The number of examples of a sample, derived from depths, for records without a context; 1 if depths do not repeat in order.
    fn depths_of_sample(&self) -> usize {
        // Percentages are not negative, so their bits have the same order as their values.
        let depths: BTreeSet<Option<u64>> = self.records.iter().map(|r| r.depth.map(f64::to_bits)).collect();
        let count = depths.len().max(1);
        let mut of_turn = BTreeMap::new();
        let in_turns = |r: &&Record| *of_turn.entry(r.sample % count).or_insert(r.depth) == r.depth;
        if depths.contains(&None) || !self.records.iter().all(in_turns) { 1 } else { count }
    }

    /// A number of each record, with the record's context.
    pub fn sample(&self, of: impl Fn(&Record) -> f64) -> Sample {
        Sample::new(self.contexts().iter().zip(self.records.iter().map(|r| of(r))))
    }

    /// The differences of a number to that of another cell, on the examples that both cells have.
    pub fn differences(&self, other: &SummaryCell, of: impl Fn(&Record) -> f64) -> Sample {
        Sample::new(self.pairs(other).into_iter().map(|(context, ours, theirs)| (context, of(ours) - of(theirs))))
    }

    /// The pairs of records of examples that both cells have, each with its context.
    pub fn pairs<'b>(&self, other: &SummaryCell<'b>) -> Vec<(Context, &'a Record, &'b Record)> {
        let mut theirs = other.records.iter().copied().peekable();
        let mut pairs = Vec::with_capacity(self.records.len().min(other.records.len()));
        for (context, ours) in self.contexts().iter().zip(&self.records) {
            // Both cells are in the order of examples.
            while theirs.next_if(|theirs| example(theirs) < example(ours)).is_some() {}
            let same = theirs.next_if(|theirs| example(theirs) == example(ours));
            // With the same model, only records of equal questions are paired. Equal names do not ensure that.
            let same = same.filter(|theirs| ours.model != theirs.model || ours.asks_as(theirs));
            pairs.extend(same.map(|theirs| (*context, *ours, theirs)));
        }
        pairs
    }

    /// What kind of numbers the scores are.
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

    /// The likelihoods of the records that have them.
    pub(crate) fn likelihoods(&self) -> Vec<&'a Likelihood> {
        self.records.iter().filter_map(|r| r.likelihood.as_deref()).collect()
    }

    /// The cell of `full` on the same model, protocol, task and length.
    pub fn reference<'b>(&self, cells: &'b [SummaryCell<'a>]) -> Option<&'b SummaryCell<'a>> {
        cells.iter().find(|other| other.head().is_reference() && place(other.head()) == place(self.head()))
    }

    /// The mean of a number over the records.
    pub fn mean(&self, of: impl Fn(&Record) -> f64) -> f64 {
        spattn_stats::mean(&self.records.iter().map(|r| of(r)).collect::<Vec<_>>())
    }
}

/// A context: its seed, unless seeds share contexts, and the index of its first example.
pub type Context = (Option<u64>, usize);

/// A number that is larger for better results and can be averaged: the score, or the mean log-likelihood of a token.
pub fn merit(r: &Record) -> f64 {
    match (r.measure, &r.likelihood) {
        (Measure::Perplexity, Some(l)) => -l.nll / l.tokens.max(1) as f64,
        (Measure::Perplexity, None) => -r.score.ln(),
        (Measure::Score, _) => r.score,
    }
}

/// The fields that rows must share to be compared.
pub fn place(r: &Record) -> (&str, &str, &str, usize) {
    (&r.model, &r.protocol, &r.task, r.length)
}

/// The key of an example within a row.
fn example(r: &Record) -> (u64, usize) {
    (r.seed, r.sample)
}

/// Groups records by row, in the order of the summary.
pub fn group<'a>(records: &'a [Record], order: &[(String, String)]) -> Vec<SummaryCell<'a>> {
    let row = |r: &'a Record| (place(r), r.method.as_str(), r.params.as_str());
    let mut groups: HashMap<_, Vec<&Record>> = HashMap::new();
    for r in records {
        groups.entry(row(r)).or_default().push(r);
    }
    let mut cells: Vec<SummaryCell> = groups.into_values().collect::<Vec<_>>().into_par_iter().map(cell).collect();
    let given = MethodOrder::of(order);
    cells.sort_by(|a, b| compare(a.head(), b.head(), &given).then_with(|| row(a.head()).cmp(&row(b.head()))));
    cells
}

/// Sorts records by example and keeps one of each example.
fn cell(mut records: Vec<&Record>) -> SummaryCell<'_> {
    // No run makes records with equal keys but different contents. Comparing all content keeps the choice deterministic.
    let content = |r: &Record| serde_json::to_string(r).unwrap_or_default();
    records.sort_by(|a, b| match example(a).cmp(&example(b)) {
        Ordering::Equal => a.key.cmp(&b.key).then_with(|| content(a).cmp(&content(b))),
        other => other,
    });
    let all = records.len();
    records.dedup_by_key(|r| example(r));
    let repeated = all - records.len();
    SummaryCell::of(records, repeated)
}

/// The exponential of total nats over total units.
pub(crate) fn perplexity(likelihoods: &[&Likelihood], units: fn(&Likelihood) -> usize) -> f64 {
    ratios::perplexity(&likelihoods.iter().map(|l| Window { nats: l.nll, units: units(l) as f64 }).collect::<Vec<_>>())
}

/// Groups cells by model, protocol, task and length.
pub(super) fn by_place<'b, 'a>(cells: &'b [SummaryCell<'a>]) -> Vec<&'b [SummaryCell<'a>]> {
    cells.chunk_by(|a, b| place(a.head()) == place(b.head())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::testing::{perplexity as text, record};

    fn of_seed(seed: u64, sample: usize, score: f64) -> Record {
        Record { seed, question: format!("{seed} {sample}").into(), ..record("vt", "topk", sample, score) }
    }

    #[test]
    fn a_cell_has_each_sample_once_in_their_order() {
        let again = Record { key: "zzz comes later".into(), ..of_seed(1, 0, 0.0) };
        let records = [of_seed(2, 0, 1.0), of_seed(1, 1, 0.5), again, of_seed(1, 0, 1.0)];
        let cells = group(&records, &[]);
        let listed: Vec<_> = cells[0].records.iter().map(|r| (r.seed, r.sample, r.score)).collect();
        assert_eq!((cells.len(), listed), (1, vec![(1, 0, 1.0), (1, 1, 0.5), (2, 0, 1.0)]));
        assert_eq!((cells[0].repeated, cells[0].seeds()), (1, BTreeSet::from([1, 2])));
        assert!((cells[0].score() - 250.0 / 3.0).abs() < 1e-9 && (cells[0].mean(|r| r.score) - 2.5 / 3.0).abs() < 1e-9);
        let second = cells[0].of_seed(2).unwrap();
        assert_eq!((second.records, second.repeated), (vec![&records[0]], 0));
        assert_eq!(cells[0].of_seed(3), None);
    }

    #[test]
    fn what_rows_share_tells_cells_apart() {
        type Change = fn(&mut Record);
        let changes: [Change; 7] = [
            |_| {},
            |r| r.model = "other".into(),
            |r| r.protocol = "decode".into(),
            |r| r.task = "cwe".into(),
            |r| r.length = 1,
            |r| r.method = "quest".into(),
            |r| r.params = "k=1".into(),
        ];
        let changed = |change: &Change| {
            let mut record = of_seed(1, 0, 1.0);
            change(&mut record);
            record
        };
        let records: Vec<Record> = changes.iter().map(changed).collect();
        assert_eq!(group(&records, &[]).len(), changes.len());
        assert_eq!(place(&records[0]), ("builtin", "question", "vt", 4096));
    }

    #[test]
    fn contexts_are_told_by_the_seed_and_the_first_example() {
        let asked = |seed, sample, question: &str| Record { question: question.into(), ..of_seed(seed, sample, 1.0) };
        let contexts = |records: &[Record]| group(records, &[])[0].contexts().to_vec();
        assert_eq!(contexts(&[asked(1, 0, "a"), asked(2, 0, "b")]), [(Some(1), 0), (Some(2), 0)]);
        assert_eq!(contexts(&[asked(1, 0, "a"), asked(2, 0, "a")]), [(None, 0); 2], "the same is asked again");
        assert_eq!(contexts(&[asked(1, 0, "a"), asked(1, 1, "a")]), [(Some(1), 0), (Some(1), 1)]);
        let one_differs = [asked(1, 0, "a"), asked(2, 0, "a"), asked(1, 1, "c"), asked(2, 1, "d")];
        assert!(contexts(&one_differs).iter().all(|(seed, _)| seed.is_some()));
        assert_eq!(contexts(&[Record { context: Some(3), ..asked(1, 5, "a") }]), [(Some(1), 3)]);
        let deep = |sample, depth| Record { depth: Some(depth), ..asked(1, sample, "a") };
        let firsts = |records: &[Record]| contexts(records).into_iter().map(|(_, first)| first).collect::<Vec<_>>();
        assert_eq!(firsts(&[deep(2, 0.0), deep(3, 50.0), deep(4, 0.0), deep(5, 50.0)]), [2, 2, 4, 4]);
        assert_eq!(firsts(&[deep(2, 0.0), deep(3, 50.0), deep(4, 50.0)]), [2, 3, 4], "they do not come in turns");
        assert_eq!(firsts(&[deep(2, 0.0), Record { depth: None, ..deep(3, 0.0) }]), [2, 3]);
    }

    #[test]
    fn differences_are_to_the_same_example_of_the_row_of_full() {
        let of = |method: &str, sample, score| record("vt", method, sample, score);
        let mut records = vec![of("full", 0, 1.0), of("full", 1, 0.5), of("topk", 1, 0.25), of("topk", 2, 1.0)];
        records.push(Record { length: 512, ..of("topk", 0, 1.0) });
        records.push(Record { task: "vt2".into(), ..of("full", 0, 1.0) });
        let cells = group(&records, &[]);
        let found = |method: &str, length| {
            cells.iter().find(|c| (c.head().method.as_str(), c.head().length) == (method, length)).unwrap()
        };
        let (full, topk) = (found("full", 4096), found("topk", 4096));
        assert_eq!((topk.reference(&cells), full.reference(&cells)), (Some(full), Some(full)));
        assert_eq!(found("topk", 512).reference(&cells), None);
        assert_eq!(topk.differences(full, |r| r.score), Sample::new([((Some(1), 1), -0.25)]));
        assert_eq!(topk.sample(|r| r.score), Sample::new([((Some(1), 1), 0.25), ((Some(1), 2), 1.0)]));
    }

    #[test]
    fn merit_is_greater_for_the_better() {
        assert_eq!(merit(&record("vt", "topk", 0, 0.75)), 0.75);
        assert!((merit(&text("topk", 0, 1.5)) + 1.5).abs() < 1e-12, "nats a token");
        let unsaid = Record { likelihood: None, ..text("topk", 0, 1.5) };
        assert!((merit(&unsaid) + 1.5).abs() < 1e-12, "the logarithm of the perplexity");
    }

    #[test]
    fn a_perplexity_is_of_all_nats_over_all_units() {
        let records = [text("topk", 0, 1.0), text("topk", 1, 3.0), Record { likelihood: None, ..text("topk", 2, 9.0) }];
        let cells = group(&records, &[]);
        let likelihoods = cells[0].likelihoods();
        assert_eq!((likelihoods.len(), cells[0].measure()), (2, Measure::Perplexity));
        // 100 and 300 nats, each over 100 tokens and 50 words.
        assert!((cells[0].score() - 2f64.exp()).abs() < 1e-9);
        assert!((perplexity(&likelihoods, |l| l.words) - 4f64.exp()).abs() < 1e-9);
    }
}

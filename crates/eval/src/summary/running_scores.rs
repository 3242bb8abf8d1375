//! Mean scores while records are still being made: sums by place and method.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;

use crate::records::record::{REFERENCE, Record};
use spattn_tasks::likelihood::Measure;

/// The fields of a record from which current scores are computed.
#[derive(Debug, Clone, Deserialize)]
pub struct ScoredSample<'a> {
    #[serde(borrow)]
    model: Cow<'a, str>,
    #[serde(borrow)]
    task: Cow<'a, str>,
    length: usize,
    #[serde(borrow)]
    protocol: Cow<'a, str>,
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow)]
    params: Cow<'a, str>,
    #[serde(default)]
    measure: Measure,
    score: f64,
}

impl<'a> From<&'a Record> for ScoredSample<'a> {
    fn from(r: &'a Record) -> Self {
        let [model, task, protocol] = [&r.model, &r.task, &r.protocol].map(|text| Cow::from(text.as_str()));
        let [method, params] = [&r.method, &r.params].map(|text| Cow::from(text.as_str()));
        Self { model, task, length: r.length, protocol, method, params, measure: r.measure, score: r.score }
    }
}

/// Where records can be compared with each other: one model, task, length and protocol.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScorePlace {
    model: String,
    task: String,
    length: usize,
    protocol: String,
}

impl ScorePlace {
    /// The place of a record.
    pub fn of(r: &ScoredSample<'_>) -> Self {
        let [model, task, protocol] = [&r.model, &r.task, &r.protocol].map(|text| text.clone().into_owned());
        Self { model, task, length: r.length, protocol }
    }
}

impl fmt::Display for ScorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, task, length, protocol } = self;
        let length = if *length > 0 { format!(" {length}") } else { String::new() };
        write!(f, "{model} {task}{length} {protocol}")
    }
}

/// The sum over a method's records at a place.
#[derive(Debug, Default, Clone)]
struct Sum {
    measure: Measure,
    /// The sum of scores, or of logarithms of perplexities.
    of: f64,
    count: usize,
}

impl Sum {
    /// The mean, in percent or as a perplexity.
    fn mean(&self) -> f64 {
        let mean = self.of / self.count.max(1) as f64;
        match self.measure {
            Measure::Score => 100.0 * mean,
            Measure::Perplexity => mean.exp(),
        }
    }

    /// A number that is larger for better results.
    fn merit(&self) -> f64 {
        match self.measure {
            Measure::Score => self.mean(),
            Measure::Perplexity => -self.mean(),
        }
    }
}

/// Mean scores so far, by place and method.
#[derive(Debug, Default, Clone)]
pub struct Scores {
    sums: BTreeMap<ScorePlace, BTreeMap<String, Sum>>,
    /// Places that got records since they were last reported.
    current: BTreeSet<ScorePlace>,
}

impl Scores {
    /// Adds a record.
    pub fn add(&mut self, r: &ScoredSample<'_>) {
        let place = ScorePlace::of(r);
        let label = if r.params.is_empty() { r.method.to_string() } else { format!("{}:{}", r.method, r.params) };
        let sum = self.sums.entry(place.clone()).or_default().entry(label).or_default();
        sum.measure = r.measure;
        sum.of += if r.measure == Measure::Score { r.score } else { r.score.ln() };
        sum.count += 1;
        self.current.insert(place);
    }

    /// Adds all sums of `others`.
    pub fn merge(&mut self, others: &Self) {
        for (place, methods) in &others.sums {
            let sums = self.sums.entry(place.clone()).or_default();
            for (label, other) in methods {
                let sum = sums.entry(label.clone()).or_default();
                sum.measure = other.measure;
                sum.of += other.of;
                sum.count += other.count;
            }
            self.current.insert(place.clone());
        }
    }

    /// Returns the places that got records since the last call.
    pub fn take_current(&mut self) -> BTreeSet<ScorePlace> {
        std::mem::take(&mut self.current)
    }

    /// A line with the reference, and with the best and the worst of the other methods.
    pub fn line(&self, place: &ScorePlace) -> String {
        let Some(sums) = self.sums.get(place) else { return String::new() };
        let full = sums.get(REFERENCE).map(|sum| format!("{REFERENCE} {:.1}", sum.mean()));
        let mut others: Vec<(&String, &Sum)> = sums.iter().filter(|(label, _)| *label != REFERENCE).collect();
        others.sort_by(|a, b| b.1.merit().total_cmp(&a.1.merit()));
        let ends = match others.as_slice() {
            [] => Vec::new(),
            [only] => vec![("", *only)],
            [best, .., worst] => vec![("best ", *best), ("worst ", *worst)],
        };
        let ends = ends.into_iter().map(|(which, (label, sum))| format!("{which}{label} {:.1}", sum.mean()));
        full.into_iter().chain(ends).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::testing::{perplexity, record};

    fn of(records: &[Record]) -> Scores {
        let mut scores = Scores::default();
        records.iter().for_each(|record| scores.add(&record.into()));
        scores
    }

    #[test]
    fn a_line_has_the_reference_the_best_and_the_worst() {
        let record = |method: &str, score| record("ruler/vt", method, 0, score);
        let first = [record("full", 1.0), record("topk", 0.5), record("random", 0.0), record("quest", 0.25)];
        let mut scores = of(&first);
        let place = scores.take_current().pop_first().unwrap();
        assert_eq!(place.to_string(), "builtin ruler/vt 4096 question");
        assert_eq!(scores.line(&place), "full 100.0, best topk 50.0, worst random 0.0");
        scores.merge(&of(&[record("random", 1.0)]));
        assert_eq!(scores.line(&place), "full 100.0, best random 50.0, worst quest 25.0");
        assert_eq!(scores.take_current().len(), 1);
    }

    #[test]
    fn of_perplexities_the_least_is_best() {
        let record = perplexity;
        let records = [record("full", 0, 1.0), record("topk", 0, 3.0), record("quest", 0, 2.0), record("topk", 1, 5.0)];
        let mut scores = of(&records);
        let place = scores.take_current().pop_first().unwrap();
        assert_eq!(scores.line(&place), "full 2.7, best quest 7.4, worst topk 54.6");
    }

    #[test]
    fn a_stored_line_reads_as_what_it_scored() {
        let record = Record { params: "k=\"1\"".into(), ..record("ruler/vt", "topk", 0, 0.5) };
        let line = serde_json::to_string(&record).unwrap();
        let mut scores = Scores::default();
        scores.add(&serde_json::from_str(&line).unwrap());
        let place = scores.take_current().pop_first().unwrap();
        assert_eq!((scores.line(&place), place), ("topk:k=\"1\" 50.0".to_owned(), ScorePlace::of(&(&record).into())));
    }
}

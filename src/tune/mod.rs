//! What `spattn tune` decides: the smallest budget of a method whose loss to `full` is within a limit.
//!
//! [`grid`] makes the candidates, `losses` keeps what records say of them, `search` decides for one method what to look
//! at next and when an answer is certain, and [`Tuning`] asks for it, batch by batch, of all methods on the same examples.
//! Nothing here runs an example, and nothing knows how results are drawn.
//!
//! A loss is the mean difference of `full`'s score and the candidate's, by task and length, which weigh equally. Whether it
//! lies within the limit is told by [`Evidence`], which may be looked at as often as one likes; what is
//! left to correct for is that several candidates are compared: each may err with `(1 − confidence) / candidates`. A
//! candidate is either within or beyond, so only one of the two answers can be wrong.

pub mod grid;
pub mod journal;
mod losses;
pub mod schedules;
mod search;
pub mod shapes;

use std::collections::BTreeMap;

use serde::Serialize;

use self::grid::Ladder;
use self::losses::{Look, Losses};
pub use self::search::{Answer, Verdict};
use self::search::{Found, Search};
use crate::eval::records::record::{REFERENCE, Record};
use spattn_stats::evidence::{Evidence, Side, fewest_rounds};
use spattn_tasks::Task;

/// What is asked of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Goal {
    /// The loss that is allowed, as a share of the greatest score.
    pub limit: f64,
    /// The probability with which all verdicts on a method's candidates are right.
    pub confidence: f64,
    /// Samples of each task and length at most.
    pub most_samples: usize,
}

/// Samples of each task and length at the first look; each further look has twice as many.
const FIRST_LOOK: usize = 8;

/// Methods to be run on the first samples of each task and length, beside `full`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The methods' labels.
    pub labels: Vec<String>,
    /// How many samples.
    pub samples: usize,
}

/// The search for the budgets of some methods.
#[derive(Debug)]
pub struct Tuning {
    goal: Goal,
    methods: Vec<(Ladder, Search)>,
    losses: Losses,
    /// How many samples each method was run on, by label.
    run: BTreeMap<String, usize>,
    samples: usize,
    /// The batch that was asked for last.
    asked: Option<Batch>,
    /// What the last look covers.
    look: Look,
    /// What each look so far covers, by samples: what is told of a candidate is of the look that it was judged by.
    looks: BTreeMap<usize, Look>,
}

/// What was found of all methods.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// What was asked.
    pub goal: Goal,
    /// Tasks with their lengths, each of which weighs as much as the others.
    pub places: Vec<String>,
    /// Of each method.
    pub methods: Vec<MethodOutcome>,
}

/// What was found of a method.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MethodOutcome {
    /// The method without what was tuned.
    pub base: String,
    /// What was tuned.
    pub parameter: String,
    /// Candidates that were there to choose from.
    pub candidates: usize,
    /// The probability with which a verdict on one of them may be wrong.
    pub error: f64,
    /// Those that were run, from the smallest budget.
    pub rows: Vec<Row>,
    /// The answer; its numbers are places in `rows`.
    pub answer: Answer,
    /// The spec to use, if there is one.
    pub spec: Option<String>,
    /// Pairs of neighbours of which the greater budget lost more.
    pub contradictions: Vec<Contradiction>,
}

/// A candidate that was run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Its spec.
    pub spec: String,
    /// The value of what is tuned.
    pub value: f64,
    /// The same as written.
    pub text: String,
    /// Contexts of each task and length that it was judged by.
    pub n: usize,
    /// Mean loss, as a share.
    pub loss: f64,
    /// Lower bound of the loss, at all looks together wrong with the method's `error` at most.
    pub low: f64,
    /// Upper bound of the same kind.
    pub high: f64,
    /// Whether it is within the limit.
    pub verdict: Verdict,
    /// Share of the context that was attended.
    pub density: f64,
}

/// A greater budget that lost more than the next smaller one that was run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Contradiction {
    /// Place in `rows` of the smaller budget; the greater one is the next.
    pub smaller: usize,
    /// By how much it lost more, over the examples that both were run on.
    pub by: f64,
    /// Contexts of each task and length that both were run on.
    pub n: usize,
    /// Whether that is beyond noise.
    pub is_certain: bool,
}

impl Tuning {
    /// A search that has seen nothing yet.
    pub fn new(goal: Goal, ladders: Vec<Ladder>) -> Self {
        let search = |ladder: Ladder| {
            let search = Search::new(ladder.candidates.len(), goal.limit, goal.confidence);
            (ladder, search)
        };
        Self {
            goal,
            methods: ladders.into_iter().map(search).collect(),
            losses: Losses::default(),
            run: BTreeMap::new(),
            samples: FIRST_LOOK.min(goal.most_samples),
            asked: None,
            look: Look::default(),
            looks: BTreeMap::new(),
        }
    }

    /// Takes in records of the run.
    pub fn take(&mut self, records: &[Record]) {
        records.iter().for_each(|record| self.losses.add(record));
    }

    /// What to run next, all that was asked for before being there; `None` if every answer is certain, or no further samples
    /// may be had.
    pub fn next(&mut self, tasks: &[Box<dyn Task>]) -> Option<Batch> {
        if let Some(Batch { labels, samples }) = self.asked.take() {
            self.run.extend(labels.into_iter().map(|label| (label, samples)));
        }
        loop {
            self.look = Look::new(tasks, self.samples);
            self.looks.insert(self.samples, self.look.clone());
            let labels = self.wanted();
            if !labels.is_empty() {
                let batch = Batch { labels, samples: self.samples };
                self.asked = Some(batch.clone());
                return Some(batch);
            }
            let is_answered = self.methods.iter().all(|(_, search)| search.is_certain());
            if is_answered || self.samples >= self.goal.most_samples || self.has_no_more(tasks) {
                return None;
            }
            self.samples = self.samples.saturating_mul(2).min(self.goal.most_samples);
        }
    }

    /// Takes note of all that was run, and tells what is still to be run at this look.
    fn wanted(&mut self) -> Vec<String> {
        let Self { methods, losses, run, samples, look, .. } = self;
        let mut labels = Vec::new();
        for (ladder, search) in methods {
            loop {
                let label = |at: &usize| ladder.candidates[*at].label.as_str();
                let (there, missing): (Vec<usize>, Vec<usize>) = search
                    .wanted(*samples)
                    .into_iter()
                    .partition(|at| run.get(label(at)).is_some_and(|run| *run >= *samples));
                if !missing.is_empty() || there.is_empty() {
                    labels.extend(missing.iter().map(|at| label(at).to_owned()));
                    break;
                }
                for at in there {
                    search.take(at, *samples, losses.against(REFERENCE, label(&at), look));
                }
            }
        }
        labels
    }

    /// Whether the last look had no more examples than the one before: files end.
    fn has_no_more(&self, tasks: &[Box<dyn Task>]) -> bool {
        let rounds = |look: &Look| self.losses.against(REFERENCE, REFERENCE, look).map_or(0, |all| all.rounds());
        self.samples > FIRST_LOOK && rounds(&self.look) == rounds(&Look::new(tasks, self.samples / 2))
    }

    /// What was found so far.
    pub fn outcome(&self) -> Outcome {
        let of = |(ladder, search): &(Ladder, Search)| self.of_method(ladder, search);
        Outcome { goal: self.goal, places: self.losses.places(), methods: self.methods.iter().map(of).collect() }
    }

    fn of_method(&self, ladder: &Ladder, search: &Search) -> MethodOutcome {
        let measured: Vec<(usize, &Found)> = search.found().collect();
        let row = |(at, found): &(usize, &Found)| {
            let candidate = &ladder.candidates[*at];
            Row {
                spec: candidate.spec.clone(),
                value: candidate.value,
                text: candidate.text.clone(),
                n: found.evidence.rounds(),
                loss: found.evidence.mean(),
                low: found.bounds.0,
                high: found.bounds.1,
                verdict: found.verdict,
                density: self.losses.density(&candidate.label, self.look_of(found.samples)),
            }
        };
        let rows: Vec<Row> = measured.iter().map(row).collect();
        let place = |at: usize| measured.iter().position(|(other, _)| *other == at).unwrap_or(0);
        let answer = search.answer().map(place);
        let contradictions = self.contradictions(ladder, &measured);
        MethodOutcome {
            base: ladder.base.clone(),
            parameter: ladder.parameter.clone(),
            candidates: ladder.candidates.len(),
            error: search.error(),
            spec: answer.chosen().map(|at| rows[at].spec.clone()),
            rows,
            answer,
            contradictions,
        }
    }

    fn look_of(&self, samples: usize) -> &Look {
        self.looks.get(&samples).unwrap_or(&self.look)
    }

    fn contradictions(&self, ladder: &Ladder, measured: &[(usize, &Found)]) -> Vec<Contradiction> {
        let error = (1.0 - self.goal.confidence) / measured.len().saturating_sub(1).max(1) as f64;
        let of_pair = |(smaller, pair): (usize, &[(usize, &Found)])| {
            let [less, more] = [pair[0].0, pair[1].0].map(|at| &ladder.candidates[at].label);
            let look = self.look_of(pair[0].1.samples.min(pair[1].1.samples));
            let excess: Evidence = self.losses.against(less, more, look)?;
            let is_certain = excess.side(0.0, error) == Some(Side::Above);
            let (by, n) = (excess.mean(), excess.rounds());
            (by > 0.0).then_some(Contradiction { smaller, by, n, is_certain })
        };
        measured.windows(2).enumerate().filter_map(of_pair).collect()
    }
}

/// About how many samples of each of so many tasks and lengths it takes to be certain of a method that never loses.
pub fn fewest_samples(goal: &Goal, places: usize, candidates: usize) -> Option<usize> {
    fewest_rounds(places, goal.limit, search::error(goal.confidence, candidates))
}

#[cfg(test)]
mod tests;

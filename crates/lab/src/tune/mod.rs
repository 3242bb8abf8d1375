//! Finds the smallest budget of a method whose loss against `full` is within a limit (`spattn tune`).
//!
//! [`grid`] makes the candidates. `losses` holds their scores and computes losses. `search` decides for one method which candidates to run
//! next, and when the answer is certain. [`Tuning`] joins the searches of all methods into batches on the same examples. Other modules run
//! the examples and draw the results.
//!
//! A candidate's loss is the mean difference between `full`'s score and its own; every task and length has the same weight. [`Evidence`]
//! decides whether the loss is within the limit; its verdicts stay valid however often it is evaluated. Since several candidates are
//! compared, each verdict may be wrong with probability `(1 − confidence) / candidates`. A candidate is either within or beyond the limit,
//! so only one of the two verdicts can be wrong.

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
pub use self::search::{Answer, BudgetVerdict};
use self::search::{MeasuredCandidate, Search};
use spattn_eval::records::record::{REFERENCE, Record};
use spattn_stats::evidence::{Evidence, Side, fewest_rounds};
use spattn_tasks::Task;

/// The requirement on a budget.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Goal {
    /// The largest loss allowed, as a share of the greatest score.
    pub limit: f64,
    /// The probability that all verdicts on a method's candidates are right.
    pub confidence: f64,
    /// The most samples of each task and length.
    pub most_samples: usize,
}

/// The number of samples of each task and length at the first look. Each further look doubles it.
const FIRST_LOOK: usize = 8;

/// Methods to run, beside `full`, on the first samples of each task and length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The methods' labels.
    pub labels: Vec<String>,
    /// The number of samples.
    pub samples: usize,
}

/// The search for the budgets of some methods.
#[derive(Debug)]
pub struct Tuning {
    goal: Goal,
    methods: Vec<Searched>,
    losses: Losses,
    /// The number of samples that each method was run on, by label.
    run: BTreeMap<String, usize>,
    samples: usize,
    /// The batch that was returned last.
    asked: Option<Batch>,
    /// The examples of the last look.
    look: Look,
    /// The examples of each look, by its number of samples. A candidate is reported over the look that decided it.
    looks: BTreeMap<usize, Look>,
}

/// The search of one method.
#[derive(Debug)]
struct Searched {
    /// The candidates. Those that attend the same are joined into one.
    ladder: Ladder,
    search: Search,
    /// The number of candidates before any were joined.
    candidates: usize,
    alike: Vec<AlikeBudgets>,
}

impl Searched {
    fn new(ladder: Ladder, goal: &Goal) -> Self {
        let candidates = ladder.candidates.len();
        let search = Search::new(candidates, goal.limit, goal.confidence);
        Self { ladder, search, candidates, alike: Vec::new() }
    }

    /// Joins neighbouring candidates that attend the same on all examples of a look into the largest of them, so that no more examples are
    /// spent on the others. If sink, window and question exceed a budget, all smaller budgets attend as many tokens.
    fn join_alike(&mut self, losses: &Losses, look: &Look) {
        let label = |at: usize| self.ladder.candidates[at].label.as_str();
        let measured: Vec<usize> = self.search.found().map(|(at, _)| at).collect();
        let alike: Vec<(usize, usize)> = measured
            .windows(2)
            .filter(|pair| losses.attend_alike(label(pair[0]), label(pair[1]), look))
            .map(|pair| (pair[0], pair[1]))
            .collect();
        // From the largest on, so that the numbers of the others stay valid.
        for (smaller, larger) in alike.into_iter().rev() {
            let text = |at: usize| self.ladder.candidates[at].text.clone();
            let (smallest, largest) = (text(smaller), text(larger));
            match self.alike.iter_mut().find(|of| of.largest == largest || of.largest == smallest) {
                Some(of) if of.largest == largest => of.smallest = smallest,
                Some(of) => of.largest = largest,
                None => self.alike.push(AlikeBudgets { smallest, largest }),
            }
            self.ladder.candidates.drain(smaller..larger);
            self.search.leave_out(smaller..larger);
        }
    }
}

/// Budgets that attended the same on all examples, and count as one candidate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AlikeBudgets {
    /// The smallest budget, as written in a spec.
    pub smallest: String,
    /// The largest budget, whose row stands for all.
    pub largest: String,
}

/// The results of all methods.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TuneOutcome {
    /// The requirement.
    pub goal: Goal,
    /// Tasks with their lengths, which have the same weight.
    pub places: Vec<String>,
    /// The result of each method.
    pub methods: Vec<MethodOutcome>,
}

/// The result of one method.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MethodOutcome {
    /// The method's spec without the tuned parameter.
    pub base: String,
    /// The tuned parameter.
    pub parameter: String,
    /// The number of candidates.
    pub candidates: usize,
    /// The allowed probability that the verdict on one of them is wrong.
    pub error: f64,
    /// The candidates that were run, smallest budget first.
    pub rows: Vec<CandidateRow>,
    /// The answer, with indices into `rows`.
    pub answer: Answer,
    /// The spec to use, if there is one.
    pub spec: Option<String>,
    /// Neighbouring candidates where the larger budget lost more.
    pub contradictions: Vec<Contradiction>,
    /// Budgets that attended the same, so that only one of them has a row.
    pub alike: Vec<AlikeBudgets>,
}

/// A candidate that was run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CandidateRow {
    /// The spec.
    pub spec: String,
    /// The value of the tuned parameter.
    pub value: f64,
    /// The value as written in the spec.
    pub text: String,
    /// The number of contexts of each task and length that the verdict is based on.
    pub n: usize,
    /// The mean loss, as a share of the greatest score.
    pub loss: f64,
    /// The lower bound of the loss. Over all looks it is wrong with at most the method's `error` probability.
    pub low: f64,
    /// The upper bound of the loss, with the same guarantee.
    pub high: f64,
    /// Whether the loss is within the limit.
    pub verdict: BudgetVerdict,
    /// The mean density.
    pub density: f64,
}

/// A candidate that lost more than the next smaller budget that was run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Contradiction {
    /// Index into `rows` of the smaller budget; the larger one follows it.
    pub smaller: usize,
    /// The additional loss, over the examples that both were run on.
    pub by: f64,
    /// The number of contexts of each task and length that both were run on.
    pub n: usize,
    /// Whether the additional loss is beyond noise.
    pub is_certain: bool,
}

impl Tuning {
    /// Starts a search.
    pub fn new(goal: Goal, ladders: Vec<Ladder>) -> Self {
        Self {
            goal,
            methods: ladders.into_iter().map(|ladder| Searched::new(ladder, &goal)).collect(),
            losses: Losses::default(),
            run: BTreeMap::new(),
            samples: FIRST_LOOK.min(goal.most_samples),
            asked: None,
            look: Look::default(),
            looks: BTreeMap::new(),
        }
    }

    /// Adds records of the run.
    pub fn take(&mut self, records: &[Record]) {
        records.iter().for_each(|record| self.losses.add(record));
    }

    /// Returns the next batch to run; `None` if every answer is certain, or no more samples are allowed or exist. The records of the
    /// previous batch must have been [added](Self::take).
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
            let is_answered = self.methods.iter().all(|method| method.search.is_certain());
            if is_answered || self.samples >= self.goal.most_samples || self.has_no_more(tasks) {
                return None;
            }
            self.samples = self.samples.saturating_mul(2).min(self.goal.most_samples);
        }
    }

    /// Passes what was run to the searches, and returns the labels of the methods still to run at this look.
    fn wanted(&mut self) -> Vec<String> {
        let Self { methods, losses, run, samples, look, .. } = self;
        let mut labels = Vec::new();
        for method in methods {
            loop {
                let label = |at: &usize| method.ladder.candidates[*at].label.as_str();
                let (there, missing): (Vec<usize>, Vec<usize>) = method
                    .search
                    .wanted(*samples)
                    .into_iter()
                    .partition(|at| run.get(label(at)).is_some_and(|run| *run >= *samples));
                if !missing.is_empty() || there.is_empty() {
                    labels.extend(missing.iter().map(|at| label(at).to_owned()));
                    break;
                }
                let found: Vec<_> =
                    there.into_iter().map(|at| (at, losses.against(REFERENCE, label(&at), look))).collect();
                for (at, losses) in found {
                    method.search.take(at, *samples, losses);
                }
                method.join_alike(losses, look);
            }
        }
        labels
    }

    /// Whether the last look had no more examples than the one before, because a task's file ended.
    fn has_no_more(&self, tasks: &[Box<dyn Task>]) -> bool {
        let rounds = |look: &Look| self.losses.against(REFERENCE, REFERENCE, look).map_or(0, |all| all.rounds());
        self.samples > FIRST_LOOK && rounds(&self.look) == rounds(&Look::new(tasks, self.samples / 2))
    }

    /// Returns the results so far.
    pub fn outcome(&self) -> TuneOutcome {
        let methods = self.methods.iter().map(|method| self.of_method(method)).collect();
        TuneOutcome { goal: self.goal, places: self.losses.places(), methods }
    }

    fn of_method(&self, method: &Searched) -> MethodOutcome {
        let Searched { ladder, search, candidates, alike } = method;
        let measured: Vec<(usize, &MeasuredCandidate)> = search.found().collect();
        let row = |(at, found): &(usize, &MeasuredCandidate)| {
            let candidate = &ladder.candidates[*at];
            CandidateRow {
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
        let rows: Vec<CandidateRow> = measured.iter().map(row).collect();
        let place = |at: usize| measured.iter().position(|(other, _)| *other == at).unwrap_or(0);
        let answer = search.answer().map(place);
        let contradictions = self.contradictions(ladder, &measured);
        MethodOutcome {
            base: ladder.base.clone(),
            parameter: ladder.parameter.clone(),
            candidates: *candidates,
            alike: alike.clone(),
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

    fn contradictions(&self, ladder: &Ladder, measured: &[(usize, &MeasuredCandidate)]) -> Vec<Contradiction> {
        let error = (1.0 - self.goal.confidence) / measured.len().saturating_sub(1).max(1) as f64;
        let of_pair = |(smaller, pair): (usize, &[(usize, &MeasuredCandidate)])| {
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

/// Returns about how many samples of each of `places` tasks and lengths it takes to be certain of a method that never loses.
pub fn fewest_samples(goal: &Goal, places: usize, candidates: usize) -> Option<usize> {
    fewest_rounds(places, goal.limit, search::error(goal.confidence, candidates))
}

#[cfg(test)]
mod tests;

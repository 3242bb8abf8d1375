//! Scores of candidates by example, and losses over the examples that two methods were both run on.

use std::collections::BTreeMap;

use spattn_eval::records::record::Record;
use spattn_stats::evidence::Evidence;
use spattn_stats::mean;
use spattn_tasks::Task;

/// Scores of a run, by task and length and by method.
#[derive(Debug, Default)]
pub struct Losses {
    places: BTreeMap<Place, BTreeMap<String, Examples>>,
}

/// Task and length.
type Place = (String, usize);
/// Scores by the number of the example.
type Examples = BTreeMap<usize, Scored>;

#[derive(Debug, Clone, Copy)]
struct Scored {
    context: usize,
    score: f64,
    density: f64,
}

/// The examples of a look: the first samples of each task, without contexts of which only a part is among them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Look {
    samples: usize,
    /// For each task, the first example beyond the look, and its context, which the look leaves out as it may be incomplete.
    ends: BTreeMap<String, (usize, usize)>,
}

impl Look {
    /// Creates the look at the first `samples` samples of each task.
    pub fn new(tasks: &[Box<dyn Task>], samples: usize) -> Self {
        let end = |task: &dyn Task| {
            let end = samples.saturating_mul(task.cells());
            (task.name().to_owned(), (end, task.context_of(end)))
        };
        Self { samples, ends: tasks.iter().map(|task| end(task.as_ref())).collect() }
    }

    fn covers(&self, task: &str, example: usize, context: usize) -> bool {
        let (end, open) = self.ends.get(task).copied().unwrap_or((self.samples, self.samples));
        example < end && context != open
    }
}

impl Losses {
    /// Adds a record's score.
    pub fn add(&mut self, r: &Record) {
        let label = if r.params.is_empty() { r.method.to_string() } else { format!("{}:{}", r.method, r.params) };
        let of_place = self.places.entry((r.task.to_string(), r.length)).or_default();
        let scored = Scored { context: r.context.unwrap_or(r.sample), score: r.score, density: r.density };
        of_place.entry(label).or_default().entry(r.sample).or_insert(scored);
    }

    /// Returns the tasks with their lengths, as text.
    pub fn places(&self) -> Vec<String> {
        let name = |(task, length): &Place| if *length > 0 { format!("{task} at {length}") } else { task.clone() };
        self.places.keys().map(name).collect()
    }

    /// Returns the loss of `other` against `reference` over the contexts of a look that both were run on; `None` if some task and length
    /// has no such context.
    pub fn against(&self, reference: &str, other: &str, look: &Look) -> Option<Evidence> {
        let of_place = |((task, _), methods): (&Place, &BTreeMap<String, Examples>)| -> Option<Vec<f64>> {
            let (reference, other) = (methods.get(reference)?, methods.get(other)?);
            let mut contexts: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
            for (example, theirs) in reference.iter().filter(|(example, s)| look.covers(task, **example, s.context)) {
                let loss = other.get(example).map(|own| theirs.score - own.score);
                contexts.entry(theirs.context).or_default().extend(loss);
            }
            Some(contexts.values().filter(|losses| !losses.is_empty()).map(|losses| mean(losses)).collect())
        };
        let places: Option<Vec<Vec<f64>>> = self.places.iter().map(of_place).collect();
        Evidence::new(&places?)
    }

    /// Whether two methods have the same density and the same score on each example of a look that both were run on; false if there is
    /// no such example.
    pub fn attend_alike(&self, a: &str, b: &str, look: &Look) -> bool {
        let mut common = 0;
        for ((task, _), methods) in &self.places {
            let (Some(a), Some(b)) = (methods.get(a), methods.get(b)) else { return false };
            for (example, one) in a.iter().filter(|(example, s)| look.covers(task, **example, s.context)) {
                let Some(other) = b.get(example) else { continue };
                if (one.density, one.score) != (other.density, other.score) {
                    return false;
                }
                common += 1;
            }
        }
        common > 0
    }

    /// Returns a method's density, as the mean over tasks and lengths; 0 if it was not run.
    pub fn density(&self, label: &str, look: &Look) -> f64 {
        let of_place = |((task, _), methods): (&Place, &BTreeMap<String, Examples>)| {
            let examples = methods.get(label)?.iter();
            let covered: Vec<f64> = examples
                .filter(|(example, scored)| look.covers(task, **example, scored.context))
                .map(|(_, scored)| scored.density)
                .collect();
            (!covered.is_empty()).then(|| mean(&covered))
        };
        mean(&self.places.iter().filter_map(of_place).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::records::record::REFERENCE;
    use spattn_eval::records::testing::record;
    use spattn_tasks::{TaskOptions, resolve};

    fn losses(scores: &[(&str, &str, usize, f64)]) -> Losses {
        let mut losses = Losses::default();
        scores.iter().for_each(|(task, method, sample, score)| losses.add(&record(task, method, *sample, *score)));
        losses
    }

    fn look(names: &[&str], samples: usize) -> Look {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Look::new(&resolve(&names, &TaskOptions::default()).unwrap(), samples)
    }

    #[test]
    fn losses_are_paired_and_places_weigh_equally() {
        let losses = losses(&[
            ("ruler/vt", "full", 0, 1.0),
            ("ruler/vt", "topk", 0, 0.5),
            ("ruler/vt", "full", 1, 0.5),
            ("ruler/vt", "topk", 1, 1.0),
            ("ruler/vt", "full", 2, 1.0),
            ("ruler/cwe", "full", 0, 1.0),
            ("ruler/cwe", "topk", 0, 0.0),
            ("ruler/cwe", "full", 1, 1.0),
            ("ruler/cwe", "topk", 1, 1.0),
        ]);
        let of = |samples| losses.against(REFERENCE, "topk", &look(&["ruler/vt", "ruler/cwe"], samples)).unwrap();
        assert_eq!((of(1).rounds(), of(1).mean()), (1, 0.75));
        assert_eq!((of(8).rounds(), of(8).mean()), (2, 0.25), "the third has no partner");
        assert_eq!(losses.against(REFERENCE, "quest", &look(&["ruler/vt", "ruler/cwe"], 8)), None);
        assert_eq!(losses.places(), ["ruler/cwe at 4096", "ruler/vt at 4096"]);
    }

    #[test]
    fn contexts_count_once_and_only_when_they_are_whole() {
        let of_context = |method: &str, sample, score| Record {
            context: Some(sample / 5 * 5),
            ..record("needle/number", method, sample, score)
        };
        let mut losses = Losses::default();
        for sample in 0..10 {
            losses.add(&of_context("full", sample, 1.0));
            losses.add(&of_context("topk", sample, f64::from(u8::from(sample < 7))));
        }
        let needle = look(&["needle/number:steps=5"], 2);
        let (name, _) = needle.ends.iter().next().unwrap();
        // Gives the task of the records the name that it has in the look.
        losses.places = losses.places.into_iter().map(|((_, n), of)| ((name.clone(), n), of)).collect();
        let found = losses.against(REFERENCE, "topk", &needle).unwrap();
        assert_eq!((found.rounds(), found.mean()), (2, 0.3));
        let cut = Look { samples: 1, ends: [(name.clone(), (7, 5))].into() };
        assert_eq!(losses.against(REFERENCE, "topk", &cut).unwrap().rounds(), 1);
    }
}

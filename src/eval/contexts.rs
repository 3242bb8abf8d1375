//! The contexts of a task at a length, and the examples on each.
//!
//! Where a file holds the samples they are listed. Generated samples are all alike in this, and there may be any number
//! of them: theirs are worked out one by one, so that a plan takes no memory, however much it asks for.

use crate::error::UsageError;
use crate::tasks::Task;

/// One share of a run split over machines: contexts whose running number is `index` modulo `count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// From 0.
    pub index: usize,
    /// Number of shares.
    pub count: usize,
}

impl Shard {
    /// Everything.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Reads `I/N` with I from 1 to N.
    pub fn parse(text: &str) -> Result<Self, UsageError> {
        let parts = text.split_once('/').and_then(|(i, n)| Some((i.parse::<usize>().ok()?, n.parse::<usize>().ok()?)));
        match parts {
            Some((i, n)) if i >= 1 && i <= n => Ok(Self { index: i - 1, count: n }),
            _ => Err(UsageError::new(format!("--shard: `{text}` is no share of a run"))
                .hint("write I/N with I from 1 to N, for example --shard 1/4 to --shard 4/4")),
        }
    }
}

/// Examples by context, in the order in which they are run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Contexts {
    listed: Vec<Vec<usize>>,
    /// What follows those that are listed.
    generated: Generated,
}

/// Contexts of generated samples: every `step`-th from `next` on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Generated {
    /// The examples of the first sample, by context.
    first: Vec<Vec<usize>>,
    /// Examples of a sample.
    cells: usize,
    /// Number of a context among those of all shares.
    next: usize,
    step: usize,
    /// Contexts of all shares.
    end: usize,
}

impl Contexts {
    /// One share of `samples` samples of a task; `before` counts the contexts of all shares, and goes on by these.
    pub fn of(task: &dyn Task, samples: usize, is_listed: bool, shard: Shard, before: &mut usize) -> Self {
        let cells = task.cells();
        let first = by_context(task, if is_listed { samples * cells } else { cells });
        let end = if is_listed { first.len() } else { samples.saturating_mul(first.len()) };
        let taken = *before % shard.count;
        let next = if shard.index >= taken { shard.index - taken } else { shard.count - (taken - shard.index) };
        *before = before.saturating_add(end);
        let all = Generated { first, cells, next, step: shard.count, end };
        match is_listed {
            true => Self { listed: all.collect(), generated: Generated::default() },
            false => Self { listed: Vec::new(), generated: all },
        }
    }

    /// The examples on each context.
    pub fn iter(&self) -> impl Iterator<Item = Vec<usize>> {
        self.listed.iter().cloned().chain(self.generated.clone())
    }

    /// Number of examples.
    pub fn examples(&self) -> usize {
        let listed: usize = self.listed.iter().map(Vec::len).sum();
        listed.saturating_add(self.generated.examples())
    }

    /// Leaves out contexts that `keep` does not want. Of generated ones only those are looked at that have an example
    /// below `below`; the number of examples on all others is returned.
    pub fn retain(&mut self, below: usize, mut keep: impl FnMut(&[usize]) -> bool) -> usize {
        self.listed.retain(|context| keep(context));
        while self.generated.next_index().is_some_and(|index| index < below) {
            let wanted = self.generated.next().filter(|context| keep(context));
            self.listed.extend(wanted);
        }
        self.generated.examples()
    }
}

/// The first `count` examples of a task, those on one context together.
fn by_context(task: &dyn Task, count: usize) -> Vec<Vec<usize>> {
    let mut indices: Vec<usize> = (0..count).collect();
    indices.sort_by_key(|index| task.context_of(*index));
    indices.chunk_by(|a, b| task.context_of(*a) == task.context_of(*b)).map(<[usize]>::to_vec).collect()
}

impl Generated {
    /// The least index of an example of the sample that the next context belongs to.
    fn next_index(&self) -> Option<usize> {
        (self.next < self.end).then(|| self.next / self.first.len() * self.cells)
    }

    /// Number of examples on all contexts from the next on.
    fn examples(&self) -> usize {
        if self.next >= self.end {
            return 0;
        }
        let left = (self.end - self.next - 1) / self.step + 1;
        // Sizes come again after as many contexts as a sample has, at the latest.
        let period = self.first.len();
        let of = |count: usize| self.clone().take(count).map(|context| context.len()).sum::<usize>();
        (left / period).saturating_mul(of(period)).saturating_add(of(left % period))
    }
}

impl Iterator for Generated {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        let offset = self.next_index()?;
        let context = &self.first[self.next % self.first.len()];
        self.next = self.next.saturating_add(self.step);
        Some(context.iter().map(|index| index + offset).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::{TaskOptions, resolve};

    fn task(name: &str) -> Box<dyn Task> {
        resolve(&[name.to_owned()], &TaskOptions::default()).unwrap().remove(0)
    }

    fn share(name: &str, samples: usize, is_listed: bool, index: usize, count: usize, before: usize) -> Contexts {
        Contexts::of(task(name).as_ref(), samples, is_listed, Shard { index, count }, &mut before.clone())
    }

    #[test]
    fn what_is_worked_out_is_what_would_be_listed() {
        for name in ["ruler/vt", "needle/number:steps=3", "needle/number:steps=1"] {
            for (samples, count, before) in [(1, 1, 0), (7, 1, 5), (7, 2, 3), (7, 3, 1), (2, 5, 9), (5, usize::MAX, 3)]
            {
                let mut all = Vec::new();
                for index in 0..count.min(5) {
                    let listed = share(name, samples, true, index, count, before);
                    let lazy = share(name, samples, false, index, count, before);
                    assert!(lazy.listed.is_empty());
                    assert_eq!(listed.iter().collect::<Vec<_>>(), lazy.iter().collect::<Vec<_>>());
                    assert_eq!(listed.examples(), lazy.examples());
                    all.extend(lazy.iter().flatten());
                }
                all.sort_unstable();
                let cells = task(name).cells();
                if count <= 5 {
                    assert_eq!(
                        all,
                        (0..samples * cells).collect::<Vec<_>>(),
                        "{name}, {samples} samples, {count} shares"
                    );
                }
            }
        }
    }

    #[test]
    fn any_number_of_samples_is_planned_without_listing_them() {
        let mut plan = share("needle/number:steps=11", 1_000_000_000_000, false, 0, 2, 0);
        assert_eq!(plan.examples(), 5_500_000_000_000);
        let mut seen = 0;
        let rest = plan.retain(100, |context| {
            seen += 1;
            context[0] > 0
        });
        assert_eq!((seen, plan.listed.len(), rest), (5, 4, 5_500_000_000_000 - 5 * 11));
        assert_eq!(plan.iter().next().unwrap()[0], 22);
    }

    #[test]
    fn shares_are_numbered_from_1_to_their_count() {
        let read = |text| Shard::parse(text).map(|Shard { index, count }| (index, count)).ok();
        assert_eq!(["1/1", "1/4", "4/4"].map(read), [(0, 1), (0, 4), (3, 4)].map(Some));
        assert_eq!(["0/4", "5/4", "1/0", "0/0", "1", "1/", "a/2", "-1/2"].map(read), [None; 8]);
    }
}

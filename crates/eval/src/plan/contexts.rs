//! The contexts of a task at a length, and the examples on each context.
//!
//! The contexts of samples from a file are listed. Generated samples all have the same structure, and there may be any number of them, so
//! their contexts are computed one by one: a plan of any size takes hardly any memory.

use std::collections::HashSet;

use super::sharding::{MOST_SHARDS, ShardAssignment, ShardLoads, Work};
use spattn_base::error::UsageError;
use spattn_tasks::Task;

/// A share of a run that is split among machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// The shard's index, from 0.
    pub index: usize,
    /// The number of shards.
    pub count: usize,
}

impl Shard {
    /// The whole run.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Parses `I/N`, with I from 1 to N.
    pub fn parse(text: &str) -> Result<Self, UsageError> {
        let parts = text.split_once('/').and_then(|(i, n)| Some((i.parse::<usize>().ok()?, n.parse::<usize>().ok()?)));
        match parts {
            Some((i, n)) if i >= 1 && i <= n && n > MOST_SHARDS => {
                Err(UsageError::new(format!("--shard: a run cannot be split into {n} shards"))
                    .hint(format!("use {MOST_SHARDS} at most")))
            }
            Some((i, n)) if i >= 1 && i <= n => Ok(Self { index: i - 1, count: n }),
            _ => Err(UsageError::new(format!("--shard: `{text}` is not a shard of a run"))
                .hint("write I/N with I from 1 to N, for example --shard 1/4 to --shard 4/4")),
        }
    }
}

/// Examples by context, in the order of the run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Contexts {
    listed: Vec<Vec<usize>>,
    /// The generated contexts, which follow the listed ones.
    generated: Generated,
}

/// Contexts of generated samples: every `step`-th one from `next` to `end`, and at most one extra context.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Generated {
    /// The indices of the first sample's examples, by context.
    first: Vec<Vec<usize>>,
    /// The number of examples of each sample.
    cells: usize,
    /// The number of the next context, counted over all shards.
    next: usize,
    step: usize,
    /// The end of the contexts that are taken in steps.
    end: usize,
    /// One more context after those.
    extra: Option<usize>,
}

/// The size of a shard's share of the contexts of a task at a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShareSize {
    /// The number of contexts.
    pub contexts: usize,
    /// The number of examples.
    pub examples: usize,
    /// The estimated work.
    pub work: u64,
}

/// The contexts of a task at a length, before they are assigned to shards.
#[derive(Debug, Clone)]
pub struct UnassignedContexts {
    /// The indices of the examples, by context: of all examples if they are listed, else of the first sample.
    first: Vec<Vec<usize>>,
    cells: usize,
    /// The number of samples, if they are generated with the structure of the first; `None` if all are listed.
    generated: Option<usize>,
}

impl UnassignedContexts {
    /// The contexts of `samples` samples of a task.
    pub fn new(task: &dyn Task, samples: usize, is_listed: bool) -> Self {
        let cells = task.cells();
        let first = by_context(task, if is_listed { samples * cells } else { cells });
        Self { first, cells, generated: (!is_listed).then_some(samples) }
    }

    /// No contexts.
    pub fn none() -> Self {
        Self { first: Vec::new(), cells: 0, generated: None }
    }

    /// The indices of the listed examples.
    pub fn listed(&self) -> Vec<usize> {
        if self.generated.is_some() { Vec::new() } else { self.first.concat() }
    }

    /// Removes listed examples after their contexts were assigned, and updates the assignment.
    pub fn leave_out(&mut self, deal: &mut ShardAssignment, examples: &HashSet<usize>) {
        let (None, ShardAssignment::Each(shard_of)) = (self.generated, deal) else { return };
        let left = std::mem::take(&mut self.first).into_iter().zip(std::mem::take(shard_of));
        let left = left.map(|(context, shard)| {
            let own: Vec<usize> = context.into_iter().filter(|index| !examples.contains(index)).collect();
            (own, shard)
        });
        (self.first, *shard_of) = left.filter(|(context, _)| !context.is_empty()).unzip();
    }

    /// The work of the context with most work. All contexts of generated samples count as equal.
    pub fn longest(&self, work: Work) -> u64 {
        match self.generated {
            Some(_) => work.of(self.examples_of_context()),
            None => self.first.iter().map(|context| work.of(context.len())).max().unwrap_or(0),
        }
    }

    /// The mean number of examples on a generated context, rounded up.
    fn examples_of_context(&self) -> usize {
        self.cells.div_ceil(self.first.len().max(1))
    }

    /// Assigns the contexts to shards. All contexts of generated samples count as having equally many examples.
    pub fn deal(&self, work: Work, loads: &mut ShardLoads) -> ShardAssignment {
        match self.generated {
            None => loads.deal_each(&self.first.iter().map(|context| work.of(context.len())).collect::<Vec<_>>()),
            Some(samples) => {
                let contexts = samples.saturating_mul(self.first.len());
                loads.deal_alike(contexts, work.of(self.examples_of_context()))
            }
        }
    }

    /// The size of each shard's share.
    pub fn sizes(&self, deal: &ShardAssignment, work: Work, shards: usize) -> Vec<ShareSize> {
        let mut sizes = vec![ShareSize::default(); shards];
        match deal {
            ShardAssignment::Each(shard_of) => {
                for (context, shard) in self.first.iter().zip(shard_of) {
                    sizes[*shard].contexts += 1;
                    sizes[*shard].examples += context.len();
                    sizes[*shard].work = sizes[*shard].work.saturating_add(work.of(context.len()));
                }
            }
            ShardAssignment::Rounds { contexts, rest, .. } => {
                let mut extra = vec![false; shards];
                rest.iter().for_each(|shard| extra[*shard] = true);
                for (index, size) in sizes.iter_mut().enumerate() {
                    size.contexts = contexts / shards + usize::from(extra[index]);
                    size.examples = self.of_shard(deal, Shard { index, count: shards }).examples();
                    size.work = work.of(self.examples_of_context()).saturating_mul(size.contexts as u64);
                }
            }
        }
        sizes
    }

    /// The contexts of one shard.
    pub fn of_shard(&self, deal: &ShardAssignment, shard: Shard) -> Contexts {
        let all = match (deal, deal.rounds_of(shard.index)) {
            (ShardAssignment::Each(shard_of), _) => {
                let own = self.first.iter().zip(shard_of).filter(|(_, of)| **of == shard.index);
                return Contexts { listed: own.map(|(context, _)| context.clone()).collect(), ..Contexts::default() };
            }
            (ShardAssignment::Rounds { shards, .. }, Some((end, extra))) => {
                Generated { first: self.first.clone(), cells: self.cells, next: shard.index, step: *shards, end, extra }
            }
            (ShardAssignment::Rounds { .. }, None) => Generated::default(),
        };
        Contexts { listed: Vec::new(), generated: all }
    }
}

impl Contexts {
    /// The indices of the examples on each context.
    pub fn iter(&self) -> impl Iterator<Item = Vec<usize>> {
        self.listed.iter().cloned().chain(self.generated.clone())
    }

    /// The number of examples.
    pub fn examples(&self) -> usize {
        let listed: usize = self.listed.iter().map(Vec::len).sum();
        listed.saturating_add(self.generated.examples())
    }

    /// Removes listed examples, and contexts that have none left.
    pub fn leave_out(&mut self, examples: &HashSet<usize>) {
        self.listed.iter_mut().for_each(|context| context.retain(|index| !examples.contains(index)));
        self.listed.retain(|context| !context.is_empty());
    }

    /// Removes contexts that `keep` rejects. Of the generated contexts, only those whose sample begins below the example `below` are
    /// checked. Returns the number of examples on the others.
    pub fn retain(&mut self, below: usize, mut keep: impl FnMut(&[usize]) -> bool) -> usize {
        self.listed.retain(|context| keep(context));
        while self.generated.next_index().is_some_and(|index| index < below) {
            let wanted = self.generated.next().filter(|context| keep(context));
            self.listed.extend(wanted);
        }
        self.generated.examples()
    }
}

/// The first `count` examples of a task, grouped by context.
fn by_context(task: &dyn Task, count: usize) -> Vec<Vec<usize>> {
    let mut indices: Vec<usize> = (0..count).collect();
    indices.sort_by_key(|index| task.context_of(*index));
    indices.chunk_by(|a, b| task.context_of(*a) == task.context_of(*b)).map(<[usize]>::to_vec).collect()
}

impl Generated {
    /// The number of the next context.
    fn next_context(&self) -> Option<usize> {
        if self.next < self.end { Some(self.next) } else { self.extra }
    }

    /// The smallest index of an example in the sample of the next context.
    fn next_index(&self) -> Option<usize> {
        self.next_context().map(|context| context / self.first.len() * self.cells)
    }

    /// The number of examples on the next and all later contexts.
    fn examples(&self) -> usize {
        let extra = self.extra.map_or(0, |context| self.first[context % self.first.len()].len());
        if self.next >= self.end {
            return extra;
        }
        let left = (self.end - self.next - 1) / self.step + 1;
        // The sizes of contexts repeat after the number of contexts that a sample has, or earlier.
        let period = self.first.len();
        let of = |count: usize| self.clone().take(count).map(|context| context.len()).sum::<usize>();
        (left / period).saturating_mul(of(period)).saturating_add(of(left % period)).saturating_add(extra)
    }
}

impl Iterator for Generated {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        let offset = self.next_index()?;
        let context = self.next_context()?;
        match self.next < self.end {
            true => self.next = self.next.saturating_add(self.step),
            false => self.extra = None,
        }
        Some(self.first[context % self.first.len()].iter().map(|index| index + offset).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_tasks::{TaskOptions, resolve};

    fn task(name: &str) -> Box<dyn Task> {
        resolve(&[name.to_owned()], &TaskOptions::default()).unwrap().remove(0)
    }

    const WORK: Work = Work { context: 3, example: 1 };

    /// A shard's share, after other work was assigned to all shards.
    fn share(name: &str, samples: usize, is_listed: bool, index: usize, count: usize, before: usize) -> Contexts {
        let mut loads = ShardLoads::new(count, 0);
        loads.deal_alike(before, 10);
        let all = UnassignedContexts::new(task(name).as_ref(), samples, is_listed);
        all.of_shard(&all.deal(WORK, &mut loads), Shard { index, count })
    }

    #[test]
    fn what_is_worked_out_is_dealt_whole_and_as_evenly_as_what_is_listed() {
        for name in ["ruler/vt", "needle/number:steps=3", "needle/number:steps=1"] {
            for (samples, count, before) in [(1, 1, 0), (7, 1, 5), (7, 2, 3), (7, 3, 1), (2, 5, 9), (23, 4, 2)] {
                let (mut all, mut sizes) = (Vec::new(), Vec::new());
                for index in 0..count {
                    let listed = share(name, samples, true, index, count, before);
                    let lazy = share(name, samples, false, index, count, before);
                    assert!(lazy.listed.is_empty());
                    assert_eq!(listed.examples(), listed.iter().flatten().count());
                    assert_eq!(lazy.examples(), lazy.iter().flatten().count());
                    assert!(lazy.iter().flatten().is_sorted(), "in their order");
                    sizes.push((listed.iter().count(), lazy.iter().count()));
                    all.extend(lazy.iter().flatten());
                }
                all.sort_unstable();
                let cells = task(name).cells();
                let whole: Vec<usize> = (0..samples * cells).collect();
                assert_eq!(all, whole, "{name}, {samples} samples, {count} shards");
                sizes.iter().for_each(|(listed, lazy)| assert!(listed.abs_diff(*lazy) <= 1, "{sizes:?}"));
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
    fn questions_on_one_context_stay_together() {
        let name = "needle/number:steps=4";
        let of = |index| share(name, 9, true, index, 4, 0).iter().collect::<Vec<_>>();
        for context in (0..4).flat_map(of) {
            assert_eq!(context, (context[0]..context[0] + 4).collect::<Vec<_>>());
        }
    }

    #[test]
    fn shares_are_numbered_from_1_to_their_count() {
        let read = |text| Shard::parse(text).map(|Shard { index, count }| (index, count)).ok();
        assert_eq!(["1/1", "1/4", "4/4"].map(read), [(0, 1), (0, 4), (3, 4)].map(Some));
        assert!(Shard::parse("3/100001").unwrap_err().hint.unwrap().contains("100000 at most"));
        assert_eq!(["0/4", "5/4", "1/0", "0/0", "1", "1/", "a/2", "-1/2"].map(read), [None; 8]);
    }
}

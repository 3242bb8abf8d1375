//! `plan.json`: the work of each shard of a sweep, computed before anything runs, and what was submitted.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use spattn_base::error::{UsageError, in_plain_words};
use spattn_base::given;
use spattn_eval::folder::attempts::Failed;
use spattn_eval::folder::owned_files;

/// Name of the file within a sweep's folder.
pub const PLAN: &str = "plan.json";
/// The largest size that is read, in bytes.
const MOST_BYTES: u64 = 1 << 30;

/// The work of a sweep, by shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepPlan {
    /// The version of the program that made the plan.
    pub version: String,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// The cells, in the order of the matrix.
    pub cells: Vec<PlannedCell>,
    /// The parts of the matrix that cannot be run, as far as the planner knows.
    pub failed: Vec<Failed>,
    /// The shards; the first has number 1.
    pub shards: Vec<PlannedShard>,
    /// The job arrays that were submitted, in order.
    pub submissions: Vec<Submission>,
}

/// A task at one length, run on one model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedCell {
    /// The model.
    pub model: String,
    /// The task.
    pub task: String,
    /// The requested length; 0 if a file determines it.
    pub length: usize,
    /// The number of contexts, which are never split between shards.
    pub contexts: usize,
    /// The number of examples, for one seed.
    pub examples: usize,
    /// The number of records, over all seeds, protocols and methods.
    pub records: usize,
    /// Estimated work, in millions of multiplications.
    pub work: u64,
}

/// The work of a shard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedShard {
    /// The number of the shard's contexts.
    pub contexts: usize,
    /// The number of the shard's records.
    pub records: usize,
    /// The shard's estimated work, in millions of multiplications.
    pub work: u64,
}

/// A job array that the scheduler accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submission {
    /// The scheduler's job number.
    pub job: String,
    /// The numbers of the shards, for example `1,3-5`.
    pub shards: String,
    /// When it was submitted, in seconds since 1970.
    pub at: u64,
}

impl SweepPlan {
    /// Whether a folder has a plan.
    pub fn is_in(dir: &Path) -> bool {
        dir.join(PLAN).is_file()
    }

    /// Reads the plan of a folder.
    ///
    /// # Errors
    /// A [`UsageError`] if there is no plan, or it cannot be read.
    pub fn load(dir: &Path) -> Result<Self, UsageError> {
        let path = dir.join(PLAN);
        let text = given::bytes(&path, MOST_BYTES).map_err(|e| {
            UsageError::new(format!("cannot read {}: {e}", path.display()))
                .hint("give the folder that `spattn sweep --launch slurm` wrote to")
        })?;
        let wrong = |what: &str| UsageError::new(format!("{}: {what}", path.display())).hint("plan the sweep again");
        let plan: Self = serde_json::from_slice(&text).map_err(|e| wrong(&in_plain_words(&e.to_string())))?;
        if plan.shards.is_empty() { Err(wrong("it has no shards")) } else { Ok(plan) }
    }

    /// Writes the plan to a folder.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, dir: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        owned_files::write_all(dir, &[(PLAN, text)]).map(drop).context("the plan cannot be kept")
    }

    /// Whether another plan has the same cells in the same shards.
    pub fn is_same_work(&self, other: &Self) -> bool {
        (&self.cells, &self.shards) == (&other.cells, &other.shards)
    }

    /// The number of records of all shards.
    pub fn records(&self) -> usize {
        self.shards.iter().map(|shard| shard.records).fold(0, usize::saturating_add)
    }

    /// The largest estimated work of a shard, over the mean.
    pub fn imbalance(&self) -> f64 {
        let most = self.shards.iter().map(|shard| shard.work).max().unwrap_or(0) as f64;
        let mean = self.shards.iter().map(|shard| shard.work as f64).sum::<f64>() / self.shards.len().max(1) as f64;
        if mean > 0.0 { most / mean } else { 1.0 }
    }
}

/// Writes numbers in the schedulers' notation, for example `1,3-5`.
pub fn ranges(numbers: &BTreeSet<usize>) -> String {
    let mut text = String::new();
    let mut numbers = numbers.iter().copied().peekable();
    while let Some(first) = numbers.next() {
        let mut last = first;
        while numbers.next_if_eq(&(last + 1)).is_some() {
            last += 1;
        }
        let comma = if text.is_empty() { "" } else { "," };
        let _ = match last {
            last if last == first => write!(text, "{comma}{first}"),
            last => write!(text, "{comma}{first}-{last}"),
        };
    }
    text
}

/// Reads numbers that [`ranges`] wrote. Parts that are not numbers are ignored.
pub fn numbers(ranges: &str) -> BTreeSet<usize> {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    let of = |part: &str| match part.split_once('-') {
        None => number(part).map(|n| n..=n),
        Some((first, last)) => Some(number(first)?..=number(last)?),
    };
    ranges.split(',').filter_map(of).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_ranges_and_read_again() {
        for (list, text) in [(&[][..], ""), (&[4], "4"), (&[1, 2, 3], "1-3"), (&[1, 3, 4, 9], "1,3-4,9")] {
            let set: BTreeSet<usize> = list.iter().copied().collect();
            assert_eq!((ranges(&set).as_str(), numbers(text)), (text, set));
        }
        assert_eq!(numbers("x,2,3-y"), BTreeSet::from([2]));
    }

    #[test]
    fn a_plan_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let shard = |work| PlannedShard { contexts: 1, records: 3, work };
        let mut plan = SweepPlan {
            version: "1".into(),
            created: 7,
            cells: Vec::new(),
            failed: vec![Failed { what: "a".into(), why: "b".into() }],
            shards: vec![shard(10), shard(30)],
            submissions: Vec::new(),
        };
        plan.save(dir.path()).unwrap();
        assert_eq!(SweepPlan::load(dir.path()).unwrap(), plan);
        assert_eq!((plan.records(), plan.imbalance()), (6, 1.5));
        let other = SweepPlan { created: 8, ..plan.clone() };
        assert!(plan.is_same_work(&other));
        plan.shards.pop();
        assert!(!plan.is_same_work(&other));
        plan.shards.clear();
        plan.save(dir.path()).unwrap();
        assert!(SweepPlan::load(dir.path()).unwrap_err().what.ends_with("plan.json: it has no shards"));
    }
}
